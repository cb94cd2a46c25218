"""Means over images whose groups are resampled: a plain loop, coverage of the truth, groups that matter, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from vnd.metrics import bootstrap_interval, group_mean

VALUES = torch.tensor([[0.1, 5.0], [0.4, 4.0], [0.2, 3.0], [0.9, 2.0], [0.7, 1.0], [0.3, 0.0]], dtype=torch.float64)
GROUPS = ["b", "b", "b", "a", "c", "c"]


def by_loops(values: np.ndarray, groups: list[str], seed: int, resamples: int) -> list[float]:
    """Means of resamples, image by image, with draws of NumPy's own."""
    generator, names = np.random.default_rng(seed), sorted(set(groups))
    found = []
    for _ in range(resamples):
        drawn = generator.choice(names, len(names))
        found.append(np.mean([x for name in drawn for x, own in zip(values, groups, strict=True) if own == name]))
    return np.percentile(found, (2.5, 97.5)).tolist()


def test_ends_are_those_of_a_loop_over_resamples() -> None:
    rng = np.random.default_rng(1)
    groups = [str(at) for at in rng.integers(0, 25, 120)]
    values = rng.standard_normal(120) + np.array([int(own) / 5 for own in groups])
    (found,) = bootstrap_interval(torch.from_numpy(values)[:, None], groups, resamples=20_000)
    low, high = by_loops(values, groups, 2, 5_000)
    assert (found.mean, found.count) == (pytest.approx(values.mean()), len(set(groups)))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.04 * (high - low))
    (alone,) = bootstrap_interval(torch.from_numpy(values)[:, None])
    assert alone.count == 120
    assert alone.high - alone.low < 0.7 * (found.high - found.low)  # who took them for independent would be too sure


def test_columns_have_the_same_resamples_and_each_call_the_same_draws() -> None:
    found = bootstrap_interval(torch.cat((VALUES, VALUES[:, :1] + 1), 1), GROUPS)
    assert found[2].low == pytest.approx(found[0].low + 1)
    assert bootstrap_interval(VALUES, GROUPS) == found[:2]
    assert bootstrap_interval(VALUES, [{"b": 7, "a": 3, "c": 1}[own] for own in GROUPS]) == found[:2]
    assert bootstrap_interval(VALUES[:, :1], GROUPS, confidence=0.5)[0].low > found[0].low
    assert bootstrap_interval(VALUES, seed=1) != bootstrap_interval(VALUES)


def test_many_groups_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap_interval(VALUES, GROUPS, resamples=500)
    monkeypatch.setattr("vnd.metrics.statistics.AT_ONCE", 7)
    parts = bootstrap_interval(VALUES, GROUPS, resamples=500)
    assert [x.low for x in parts] == pytest.approx([x.low for x in whole])


def covered(interval: Callable[[Tensor, list[int]], tuple[float, float]]) -> float:
    """How often the true mean, 0, lies within, of 400 sets of 40 groups with 8 images each that are much alike."""
    generator = torch.Generator().manual_seed(5)
    groups, inside = [at // 8 for at in range(320)], 0
    for _ in range(400):
        own = torch.randn(40, 1, generator=generator).repeat_interleave(8, 0)
        low, high = interval(own + 0.3 * torch.randn(320, 1, generator=generator), groups)
        inside += low <= 0 <= high
    return inside / 400


def check_coverage(share: float) -> None:
    """Near 95 %: for percentiles of 40 groups about 93.5 %; a false alarm is one in thousands."""
    assert 0.89 < share < 0.985, share


def test_the_true_mean_is_covered_as_often_as_is_said() -> None:
    def ends(values: Tensor, groups: list[int] | None) -> tuple[float, float]:
        (found,) = bootstrap_interval(values, groups, resamples=400)
        return found.low, found.high

    check_coverage(covered(ends))
    with pytest.raises(AssertionError):  # the planted fault: images for groups
        check_coverage(covered(lambda values, groups: ends(values, None)))


def test_the_mean_of_means_counts_every_owner_once() -> None:
    wanted = [(0.7 / 3 + 0.9 + 0.5) / 3, (4 + 2 + 0.5) / 3]
    assert group_mean(VALUES, GROUPS).tolist() == pytest.approx(wanted)
    assert group_mean(VALUES).tolist() == pytest.approx(VALUES.mean(0).tolist())


def test_one_owner_has_no_spread() -> None:
    (found, _) = bootstrap_interval(VALUES, ["a"] * 6)
    assert found.low == found.mean == found.high
    assert found.count == 1
