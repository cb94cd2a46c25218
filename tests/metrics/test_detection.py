"""Detection of out-of-domain inputs: known answers, scikit-learn, invariances, refused input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from vnd import metrics

MEASURES = (metrics.auroc, metrics.aupr, metrics.base_rate, metrics.fpr_at_tpr)
SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=30)  # few values, so that ties are the rule


def oracle(in_scores: Tensor, out_scores: Tensor) -> tuple[float, float, float]:
    scores = torch.cat((in_scores, out_scores)).numpy()
    positive = np.repeat([0, 1], [len(in_scores), len(out_scores)])
    fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False)
    return roc_auc_score(positive, scores), average_precision_score(positive, scores), fpr[tpr >= 0.95].min()


def check(in_scores: Tensor, out_scores: Tensor) -> None:
    roc, pr, fpr = oracle(in_scores, out_scores)
    assert float(metrics.auroc(in_scores, out_scores)) == pytest.approx(roc, abs=1e-12)
    assert float(metrics.aupr(in_scores, out_scores)) == pytest.approx(pr, abs=1e-12)
    assert float(metrics.fpr_at_tpr(in_scores, out_scores)) == pytest.approx(fpr, abs=1e-12)


@given(SCORES, SCORES)
def test_tied_scores_agree_with_scikit_learn(inside: list[int], outside: list[int]) -> None:
    check(torch.tensor(inside), torch.tensor(outside))


@pytest.mark.parametrize(("inside", "outside", "decimals"), [(1, 1, 0), (1, 500, 0), (3000, 1797, 1), (3000, 1797, 12)])
def test_scores_agree_with_scikit_learn(inside: int, outside: int, decimals: int) -> None:
    in_scores = torch.randn(inside, dtype=torch.float64).round(decimals=decimals)
    check(in_scores, (1 + torch.randn(outside, dtype=torch.float64)).round(decimals=decimals))


def test_auroc_is_a_probability_over_pairs() -> None:
    in_scores, out_scores = torch.tensor([0.0, 1, 1, 3]), torch.tensor([1.0, 2, 3])
    pairs = [1.0 if o > i else 0.5 if o == i else 0.0 for i in in_scores for o in out_scores]
    assert float(metrics.auroc(in_scores, out_scores)) == sum(pairs) / len(pairs)


def test_known_answers() -> None:
    low, high, rate = torch.arange(6.0), torch.arange(10.0, 12.0), 0.25
    assert float(metrics.base_rate(low, high)) == rate
    assert float(metrics.auroc(low, high)) == float(metrics.aupr(low, high)) == 1  # told apart perfectly
    assert float(metrics.auroc(high, low)) == 0  # upside down
    flat = torch.zeros(6), torch.zeros(2)
    assert float(metrics.auroc(*flat)) == 0.5  # a constant knows nothing
    assert float(metrics.aupr(*flat)) == rate
    assert float(metrics.fpr_at_tpr(low, high)) == 0
    assert float(metrics.fpr_at_tpr(high, low)) == float(metrics.fpr_at_tpr(*flat)) == 1
    assert float(metrics.auroc(torch.tensor([-math.inf, 0]), torch.tensor([math.inf]))) == 1
    assert float(metrics.auroc(torch.tensor([math.inf]), torch.tensor([math.inf]))) == 0.5


def test_random_scores_are_at_chance() -> None:
    in_scores, out_scores = torch.rand(30_000), torch.rand(10_000)
    assert float(metrics.auroc(in_scores, out_scores)) == pytest.approx(0.5, abs=0.02)  # six standard errors
    assert float(metrics.aupr(in_scores, out_scores)) == pytest.approx(0.25, abs=0.02)
    assert float(metrics.fpr_at_tpr(in_scores, out_scores)) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("tpr", [0.05, 0.95, 1.0])
def test_the_false_positive_rate_is_the_smallest_over_all_thresholds(tpr: float) -> None:
    in_scores, out_scores = torch.randn(80).round(decimals=1), torch.randn(20).round(decimals=1) + 1

    def share(scores: Tensor, threshold: float) -> float:
        return sum(score >= threshold for score in scores.tolist()) / len(scores)

    thresholds = torch.cat((in_scores, out_scores)).tolist()
    rates = [share(in_scores, threshold) for threshold in thresholds if share(out_scores, threshold) >= tpr]
    assert float(metrics.fpr_at_tpr(in_scores, out_scores, tpr)) == pytest.approx(min(rates), abs=1e-15)


def test_exactly_enough_is_enough_and_ties_are_flagged_together() -> None:
    outside = torch.arange(20.0)
    assert float(metrics.fpr_at_tpr(torch.tensor([0.5, 1.0, 2.0, 3.0]), outside)) == 0.75  # 19 of 20 are at least 1
    assert float(metrics.fpr_at_tpr(torch.tensor([0.5, 0.9, 2.0, 3.0]), outside)) == 0.5


def test_the_other_convention_is_another_number() -> None:
    in_scores, out_scores = torch.tensor([0.0, 5.0]), torch.tensor([1.0, 2.0, 3.0])
    assert float(metrics.fpr_at_tpr(in_scores, out_scores)) == 0.5
    assert float(metrics.fpr_at_tpr(-out_scores, -in_scores)) == 1  # in-domain positive, as in ODIN


@given(SCORES, SCORES)
def test_exchanging_the_domains_turns_auroc_round(inside: list[int], outside: list[int]) -> None:
    in_scores, out_scores = torch.tensor(inside), torch.tensor(outside)
    there, back = metrics.auroc(in_scores, out_scores), metrics.auroc(out_scores, in_scores)
    assert float(there + back) == pytest.approx(1, abs=1e-15)


def test_order_and_rising_maps_do_not_matter() -> None:
    in_scores, out_scores = torch.randn(200).round(decimals=1), torch.randn(90).round(decimals=1) + 1
    for measure in MEASURES:
        expected = float(measure(in_scores, out_scores))
        assert float(measure(in_scores.flip(0), out_scores[torch.randperm(90)])) == expected
        assert float(measure(in_scores.double().exp(), out_scores.double().exp())) == expected


def test_types_may_differ_and_no_gradient_comes_out() -> None:
    value = metrics.aupr(torch.tensor([0, 1]), torch.tensor([1.0, 2.0], dtype=torch.float16, requires_grad=True))
    assert value.dtype == torch.float64
    assert not value.requires_grad
    assert float(value) == float(metrics.aupr(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])))
