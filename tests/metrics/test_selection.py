"""Selective prediction: known answers, enumeration of ties, a promise by simulation, refused input."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from vnd import metrics

ROWS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)  # few values: ties are the rule
MEASURES = (
    metrics.risk_coverage,
    metrics.area_under_risk_coverage,
    metrics.excess_area_under_risk_coverage,
    metrics.threshold_for_risk,
)


def made(uncertainty: list[float], wrong: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Sure predictions of class 0, the labels that make some of them wrong, and the uncertainties."""
    labels = torch.tensor(wrong).long()
    return torch.eye(2)[torch.zeros_like(labels)], labels, torch.tensor(uncertainty, dtype=torch.float64)


def drawn(rows: int, seed: int, error=lambda u: 0.4 * u) -> tuple[Tensor, Tensor, Tensor]:
    generator = np.random.default_rng(seed)
    uncertainty = generator.random(rows)
    return made(uncertainty.tolist(), (generator.random(rows) < error(uncertainty)).tolist())


def area_by_hand(wrong: tuple[bool, ...]) -> float:
    return sum(sum(wrong[:k]) / k for k in range(1, len(wrong) + 1)) / len(wrong)


@given(ROWS)
def test_the_area_is_the_mean_over_every_order_of_tied_rows(rows: list[tuple[int, bool]]) -> None:
    orders = [order for order in itertools.permutations(rows) if [u for u, _ in order] == sorted(u for u, _ in rows)]
    expected = np.mean([area_by_hand(tuple(bad for _, bad in order)) for order in orders])
    given_rows = made([u for u, _ in rows], [bad for _, bad in rows])
    assert float(metrics.area_under_risk_coverage(*given_rows)) == pytest.approx(expected, abs=1e-13)


def test_an_area_in_the_order_of_the_rows_would_be_noticed() -> None:
    rows = made([1, 1], [True, False])
    assert float(metrics.area_under_risk_coverage(*rows)) == 0.5
    assert {area_by_hand((True, False)), area_by_hand((False, True))} == {0.75, 0.25}  # without a care for ties


def test_the_area_without_ties_is_its_definition() -> None:
    probs, labels, uncertainty = drawn(500, 0)
    wrong = tuple((labels[uncertainty.argsort()] == 1).tolist())
    value = metrics.area_under_risk_coverage(probs, labels, uncertainty)
    assert float(value) == pytest.approx(area_by_hand(wrong), abs=1e-13)
    best = area_by_hand(tuple(sorted(wrong)))
    excess = metrics.excess_area_under_risk_coverage(probs, labels, uncertainty)
    assert float(excess) == pytest.approx(area_by_hand(wrong) - best, abs=1e-13)


def test_known_areas() -> None:
    right, bad = [False] * 4, [True, True, True, True]
    for u in ([1.0, 2, 3, 4], [0.0, 0, 0, 0]):
        assert float(metrics.area_under_risk_coverage(*made(u, right))) == 0
        assert float(metrics.area_under_risk_coverage(*made(u, bad))) == 1
        assert float(metrics.excess_area_under_risk_coverage(*made(u, bad))) == 0
    constant = made([0.5] * 8, [True, False] * 4)
    assert float(metrics.area_under_risk_coverage(*constant)) == 0.5  # knows nothing: the error rate
    perfect = made([0, 0, 1, 1], [False, False, True, True])
    assert float(metrics.excess_area_under_risk_coverage(*perfect)) == 0
    upside_down = made([1, 1, 0, 0], [False, False, True, True])
    assert float(metrics.excess_area_under_risk_coverage(*upside_down)) > 0.5
    random = made(torch.rand(20_000).tolist(), (torch.rand(20_000) < 0.3).tolist())
    assert float(metrics.area_under_risk_coverage(*random)) == pytest.approx(0.3, abs=0.03)


def test_the_curve_has_one_point_for_each_distinct_uncertainty() -> None:
    curve = metrics.risk_coverage(*made([2, 1, 2, 3, math.inf], [True, False, False, False, True]))
    assert curve.threshold.tolist() == [1, 2, 3, math.inf]
    assert curve.coverage.tolist() == [0.2, 0.6, 0.8, 1]
    assert curve.risk.tolist() == [0, 1 / 3, 0.25, 0.4]
    assert {each.dtype for each in (curve.threshold, curve.coverage, curve.risk)} == {torch.float64}


@given(ROWS, st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]))
def test_the_threshold_is_the_largest_that_keeps_the_risk(rows: list[tuple[int, bool]], risk: float) -> None:
    good = [-math.inf]
    for threshold in {u for u, _ in rows}:
        accepted = [bad for u, bad in rows if u <= threshold]
        if sum(accepted) / len(accepted) <= risk:
            good.append(threshold)
    rows_made = made([u for u, _ in rows], [bad for _, bad in rows])
    threshold = metrics.threshold_for_risk(*rows_made, risk=risk)
    assert threshold == max(good)
    coverage = sum(u <= threshold for u, _ in rows) / len(rows)
    chosen = metrics.selective(*rows_made, threshold)
    assert chosen.coverage == pytest.approx(coverage, abs=1e-15)
    assert chosen.risk is None if coverage == 0 else chosen.risk <= risk


def test_the_threshold_looks_past_a_rise_of_the_risk() -> None:
    rows = made([1, 2, 3, 4], [True, False, False, False])  # the surest row is wrong, and 1 in 4 is allowed
    assert metrics.threshold_for_risk(*rows, risk=0.25) == 4
    assert metrics.threshold_for_risk(*rows, risk=0.24) == -math.inf


def test_selective_counts_what_is_at_most_the_threshold() -> None:
    rows = made([1, 2, 2, 3], [False, True, False, True])
    assert metrics.selective(*rows, 2.0) == metrics.Selection(0.75, 1 / 3)
    assert metrics.selective(*rows, 1.99) == metrics.Selection(0.25, 0.0)
    assert metrics.selective(*rows, 0.5) == metrics.selective(*rows, -math.inf) == metrics.Selection(0.0, None)
    assert metrics.selective(*rows, math.inf) == metrics.Selection(1.0, 0.5)


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.__name__)
def test_the_order_of_the_rows_does_not_matter(measure) -> None:
    probs, labels, uncertainty = drawn(300, 0)
    uncertainty = uncertainty.mul(20).round()
    order = torch.randperm(300)
    expected = measure(probs, labels, uncertainty)
    value = measure(probs[order], labels[order], uncertainty[order])
    for attribute in ("coverage", "risk", "threshold") if measure is metrics.risk_coverage else ("__float__",):
        pair = [getattr(each, attribute) for each in (value, expected)]
        assert torch.equal(*pair) if measure is metrics.risk_coverage else pair[0]() == pair[1]()  # to the bit


def test_a_confidence_is_clopper_and_pearson_with_bonferroni() -> None:
    probs, labels, uncertainty = drawn(2000, 0, lambda u: 0.2 * u**3)
    wrong = (labels == 1)[uncertainty.argsort()].numpy()
    good = -math.inf
    for step in range(1, 21):
        accepted = step * 100
        errors = wrong[:accepted].sum()
        if stats.beta.ppf(1 - 0.05 / 20, errors + 1, accepted - 1 - errors) <= 0.05:
            good = float(uncertainty.sort().values[accepted - 1])
    threshold = metrics.threshold_for_risk(probs, labels, uncertainty, 0.05, confidence=0.95)
    assert threshold == good > 0.5
    assert metrics.threshold_for_risk(probs, labels, uncertainty, 0.05) > threshold  # caution costs coverage
    assert metrics.threshold_for_risk(probs, labels, uncertainty, 0.05, confidence=0.5) >= threshold


def test_few_rows_promise_nothing() -> None:
    rows = made(list(range(59)), [False] * 59)  # 59 would do for one threshold, not for the largest of twenty
    assert metrics.threshold_for_risk(*rows, risk=0.05, confidence=0.95) == -math.inf
    for count, found in ((117, -math.inf), (118, 117)):  # .95¹¹⁷ ≤ .05 / 20, besides the row that sets the threshold
        rows = made(list(range(count)), [False] * count)
        assert metrics.threshold_for_risk(*rows, risk=0.05, confidence=0.95) == found
    assert metrics.threshold_for_risk(*made([1.0], [False]), risk=0.05, confidence=0.95) == -math.inf
    assert metrics.threshold_for_risk(*made([1.0], [True]), risk=1.0, confidence=0.95) == 1
    tied = made([0.5] * 200, [False] * 200)
    assert metrics.threshold_for_risk(*tied, risk=0.05, confidence=0.95) == 0.5


def broken_promises(find, trials: int) -> int:
    """How often a threshold is found though no part of the rows keeps the risk of 5 %, in some trials."""
    return sum(find(*drawn(1000, seed, lambda u: 0.0501 + 0 * u)) > -math.inf for seed in range(trials))


def promised(probs: Tensor, labels: Tensor, uncertainty: Tensor) -> float:
    return metrics.threshold_for_risk(probs, labels, uncertainty, 0.05, confidence=0.9)


def hoped(probs: Tensor, labels: Tensor, uncertainty: Tensor) -> float:
    """The planted fault: the bound of one threshold for the best of all."""
    errors = (labels == 1)[uncertainty.argsort()].cumsum(0).numpy()
    good = stats.binom.cdf(errors, np.arange(1, len(errors) + 1), 0.05) <= 0.1
    return float(uncertainty.sort().values[good.nonzero()[0].max()]) if good.any() else -math.inf


def test_a_promise_is_kept_as_often_as_it_says() -> None:
    most = stats.binom.ppf(1 - 1e-6, 100, 0.1)  # one false alarm in a million if the promise holds
    assert broken_promises(promised, 100) <= most < broken_promises(hoped, 100)
