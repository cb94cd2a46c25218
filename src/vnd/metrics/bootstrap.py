"""How far a mean over images may be off by chance where some belong together: resampling of their groups."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from vnd.metrics.checks import check_count, check_number, checked_rows
from vnd.metrics.intervals import Interval

AT_ONCE = 2**20  # groups that are drawn together


def bootstrap_interval(
    values: Tensor,
    groups: Sequence[Hashable] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Interval]:
    r"""Mean over images, and where it would lie with other groups of the same kind, one interval a column.

    A resample has as many groups as there are, drawn with replacement, each with all of its images:

    $$\bar x^* = \frac{\sum_k w_k \sum_{i \in k} x_i}{\sum_k w_k\, n_k}, \qquad
    w \sim \mathrm{Multinomial}\big(K; \tfrac 1K, …, \tfrac 1K\big)$$

    with $n_k$ images of owner k of K, and the interval lies between quantiles of $\bar x^*$ (Efron's percentiles).
    Images of one patient are alike, and an interval that took them for independent would be too short.

    Note: One owner has no spread to go by: low = high = mean, and `count`, the number of groups, says so. Percentiles
        of few groups are too short; below ten of them take the interval for a rough one.

    Args:
        values: Finite numbers, (images, columns); all columns have the same resamples.
        groups: Whose each image is; if None, each is its own.
        level: Share of the resamples that lie within, between 0 and 1.
        resamples: How many, at least 1.
        seed: Of the draws.

    >>> values = torch.tensor([[0.0], [0.0], [1.0], [1.0], [2.0]])
    >>> bootstrap_interval(values, ["a", "a", "b", "b", "c"])
    [Interval(mean=0.8, low=0.0, high=2.0, count=3)]
    """
    name = "bootstrap_interval"
    check_number(name, "level", level, 0, 1, "()")
    check_count(name, "resamples", resamples)
    sums, sizes = _sums(name, values, groups)
    generator, count = torch.Generator().manual_seed(seed), len(sizes)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    found = list[Tensor]()
    for some in torch.arange(resamples).split(max(1, AT_ONCE // count)):
        drawn = torch.randint(count, (len(some), count), generator=generator)
        times = torch.zeros(len(some), count, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones_like(times))
        found.append(times @ sums / (times @ sizes)[:, None])
    low, high = torch.cat(found).quantile(ends, 0)
    mean = sums.sum(0) / sizes.sum()
    if count == 1:
        low = high = mean  # which rounding would part
    return [Interval(*three, count) for three in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)]


def group_mean(values: Tensor, groups: Sequence[Hashable] | None = None) -> Tensor:
    r"""Mean over groups of their means over images, (columns,): each owner counts once, however many images it has.

    $$\frac 1K \sum_k \frac{1}{n_k} \sum_{i \in k} x_i$$

    Args:
        values: Finite numbers, (images, columns).
        groups: Whose each image is; if None, each is its own.

    >>> group_mean(torch.tensor([[0.0], [0.0], [1.0]]), ["a", "a", "b"])
    tensor([0.5000], dtype=torch.float64)
    """
    sums, sizes = _sums("group_mean", values, groups)
    return (sums / sizes[:, None]).mean(0)


def _sums(name: str, values: Tensor, groups: Sequence[Hashable] | None) -> tuple[Tensor, Tensor]:
    """Sums over the images of each owner, (groups, columns), and how many these are, (groups,)."""
    table = checked_rows(name, "values", values, "(images, columns)")
    if groups is None:
        return table, torch.ones(len(table), dtype=torch.float64)
    if len(groups) != len(table):
        raise ValueError(f"{name}: groups must be as many as the {len(table)} images; got {len(groups)}")
    number = {owner: at for at, owner in enumerate(dict.fromkeys(groups))}
    whose = torch.tensor([number[owner] for owner in groups])
    sums = torch.zeros(len(number), table.size(1), dtype=torch.float64).index_add_(0, whose, table)
    return sums, torch.bincount(whose, minlength=len(number)).double()
