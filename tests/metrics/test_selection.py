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
from vnd.metrics.calibration import ties
from vnd.metrics.uncertainty import score_vector

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


def predictions(rows: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of which some are tied, labels, and uncertainties of which some are equal."""
    generator = torch.Generator().manual_seed(seed)
    probs = (torch.randn(rows, classes, generator=generator) * 3).softmax(1)
    probs[::7], probs[1::7] = 1 / classes, torch.eye(classes)[0]
    uncertainty = torch.special.entr(probs).sum(1).mul(20).round()
    return probs, torch.randint(classes, (rows,), generator=generator), uncertainty


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (63, 3), (500, 10), (130, 1)])
def test_all_scores_at_once_are_those_of_each_function(rows: int, classes: int) -> None:
    probs, labels, uncertainty = predictions(rows, classes, seed=rows)
    assert metrics.classification_scores(probs, labels, uncertainty, 12) == {
        "accuracy": float(metrics.accuracy(probs, labels)),
        "nll": float(metrics.negative_log_likelihood(probs, labels)),
        "brier": float(metrics.brier_score(probs, labels)),
        "ece": float(metrics.expected_calibration_error(probs, labels, 12)),
        "classwise_ece": float(metrics.classwise_calibration_error(probs, labels, 12)),
        "adaptive_ece": float(metrics.adaptive_calibration_error(probs, labels, 12)),
        "batch_ece": float(metrics.batch_calibration_error(probs, labels)),
        "aurc": float(metrics.area_under_risk_coverage(probs, labels, uncertainty)),
    }


VALUES = st.lists(st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 1e-300, 1.0, math.inf]), min_size=1, max_size=9)


def places_by_hand(ordered: list[float]) -> list[tuple[int, int]]:
    likes = [[place for place, other in enumerate(ordered) if other == value] for value in ordered]
    return [(min(like), max(like)) for like in likes]


@given(VALUES)
def test_ties_have_the_first_and_the_last_place_of_their_like(values: list[float]) -> None:
    ordered = torch.tensor(sorted(values), dtype=torch.float64)
    first, last = ties(ordered)
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == places_by_hand(ordered.tolist())


@pytest.mark.parametrize("change", ["labels", "probs", "sum", "nan", "uncertainty"])
def test_what_the_scores_refuse_is_marked_in_their_vector(change: str) -> None:
    probs, labels, uncertainty = predictions(50, 3, seed=0)
    assert score_vector(probs, labels, uncertainty, 15)[-1] == 1
    if change == "labels":
        labels[3] = 3
    elif change == "uncertainty":
        uncertainty[3] = math.nan
    else:
        probs[3, :2] = {"probs": torch.tensor([1.5, -0.5]), "sum": torch.ones(2), "nan": torch.full((2,), math.nan)}[
            change
        ]
    assert score_vector(probs, labels, uncertainty, 15)[-1] == 0
    with pytest.raises(ValueError, match="classification_scores: "):
        metrics.classification_scores(probs, labels, uncertainty)


def test_the_scores_of_a_device_are_those_of_a_cpu(device: str) -> None:
    probs, labels, uncertainty = predictions(1000, 10, seed=1)
    here = score_vector(probs, labels, uncertainty, 12)
    there = score_vector(probs.to(device), labels.to(device), uncertainty.to(device), 12).cpu()
    assert torch.allclose(here, there, rtol=1e-13, atol=1e-15)
    again = score_vector(probs.to(device), labels.to(device), uncertainty.to(device), 12).cpu()
    assert torch.equal(there, again)  # no sum in an order of chance
