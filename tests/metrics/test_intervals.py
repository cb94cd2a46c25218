"""Confidence intervals: scipy, known answers, coverage by simulation, refused input."""

import math
import random

import numpy as np
import pytest
import torch
from scipy import stats

from vnd import metrics


@pytest.mark.parametrize("confidence", [0.01, 0.9, 0.9999])
def test_the_quantile_agrees_with_scipy(confidence: float) -> None:
    for degrees in [*range(1, 31), *range(40, 201, 10), 199, 5000]:
        expected = stats.t.ppf((1 + confidence) / 2, degrees)
        assert metrics.student_quantile(confidence, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_known_quantiles() -> None:
    assert metrics.student_quantile(0.5, 1) == pytest.approx(1, rel=1e-14)  # Cauchy: tan(π/4)
    for confidence in (0.5, 0.95, 0.99999):
        assert metrics.student_quantile(confidence, 1) == pytest.approx(math.tan(confidence * math.pi / 2), rel=1e-9)
        assert metrics.student_quantile(confidence, 2) == pytest.approx(
            confidence * math.sqrt(2 / (1 - confidence**2)), rel=1e-9
        )


def test_the_interval_agrees_with_scipy() -> None:
    values = np.random.default_rng(0).normal(0.9, 0.01, 7)
    low, high = stats.t.interval(0.9, 6, values.mean(), stats.sem(values))
    interval = metrics.confidence_interval(values.tolist(), confidence=0.9)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-12)
    assert interval.mean == pytest.approx(values.mean(), rel=1e-15)
    assert interval.count == 7
    assert metrics.confidence_interval(torch.as_tensor(values), confidence=0.9) == interval


def test_one_value_and_equal_values_are_their_own_interval() -> None:
    assert metrics.confidence_interval([0.7]) == metrics.Interval(0.7, 0.7, 0.7, 1)
    assert metrics.confidence_interval([0.75, 0.75]) == metrics.Interval(0.75, 0.75, 0.75, 2)


def test_the_order_of_the_values_does_not_matter() -> None:
    values = np.random.default_rng(0).normal(size=9).tolist()
    shuffled = random.Random(0).sample(values, 9)
    assert metrics.confidence_interval(shuffled) == metrics.confidence_interval(values)


def covered(quantile: float | None = None) -> int:
    """Of 4,000 intervals at 90 % over three normal values, how many hold the true mean."""
    hits = 0
    reach = metrics.student_quantile(0.9, 2) if quantile is None else quantile
    for values in np.random.default_rng(0).normal(5, 2, (4000, 3)):
        hits += abs(values.mean() - 5) <= reach * values.std(ddof=1) / math.sqrt(3)
    return hits


def test_the_interval_covers_as_often_as_it_says() -> None:
    low, high = stats.binom.ppf([5e-7, 1 - 5e-7], 4000, 0.9)  # one false alarm in a million
    assert low <= covered() <= high
    assert covered(stats.norm.ppf(0.95)) < low  # the planted fault: a normal quantile for three values


@pytest.mark.parametrize("rows", [1, 59, 10_000])
def test_the_bound_of_an_error_rate_agrees_with_scipy(rows: int) -> None:
    for errors in sorted({0, rows // 20, rows // 2, rows - 1}):
        for confidence in (0.5, 0.95, 0.9975):
            expected = stats.beta.ppf(confidence, errors + 1, rows - errors)
            assert metrics.error_bound(errors, rows, confidence) == pytest.approx(expected, rel=1e-9)
    expected = stats.binomtest(rows // 2, rows, alternative="less").proportion_ci(0.95).high
    assert metrics.error_bound(rows // 2, rows) == pytest.approx(expected, rel=1e-9)


def test_the_bound_at_its_ends() -> None:
    assert metrics.error_bound(0, 0) == metrics.error_bound(7, 7) == 1
    assert metrics.error_bound(0, 10) == pytest.approx(1 - 0.05**0.1, rel=1e-12)
    assert metrics.error_bound(0, 58) > 0.05 > metrics.error_bound(0, 59)
