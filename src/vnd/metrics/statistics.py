"""Statistics of results: how far a number may be off by chance, and how two lists of numbers go together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor

from vnd.metrics._checks import check_count, check_number, checked_rows, checked_scores


@dataclass(frozen=True)
class Interval:
    """A mean over `count` values, and where its true value lies with the stated confidence.

    >>> confidence_interval([0.5])
    Interval(mean=0.5, low=0.5, high=0.5, count=1)
    """

    mean: float
    low: float
    high: float
    count: int


def confidence_interval(values: Iterable[float], confidence: float = 0.95) -> Interval:
    r"""Mean of a few independent values, such as those of training seeds, and Student's interval of it.

    $$\bar x \pm t_{n-1,\,(1 + \mathrm{confidence})/2} \; \frac{s}{\sqrt n}, \qquad
    s^2 = \frac 1{n-1} \sum_i (x_i - \bar x)^2$$

    Note: One value has no spread to go by: low = high = mean, and `count` says so. The interval holds for values that
        are normal about their mean; of an accuracy near 1 it may reach past 1.

    >>> interval = confidence_interval([1, 2, 3])
    >>> interval.mean, round(interval.low, 6), round(interval.high, 6), interval.count
    (2.0, -0.484138, 4.484138, 3)
    """
    check_number("confidence_interval", "confidence", confidence, 0, 1, "()")
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor whose rows are no numbers
        raise ValueError(
            f"confidence_interval: values must be numbers; got a {type(values).__name__}: {error}"
        ) from None
    if not numbers:
        raise ValueError("confidence_interval: values must not be empty")
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            raise ValueError(f"confidence_interval: values must be finite; got {number} at index {index}")
    count = len(numbers)
    mean = math.fsum(numbers) / count  # fsum: exact, so that the order does not matter
    if count == 1:
        return Interval(mean, mean, mean, 1)
    spread = math.sqrt(math.fsum((number - mean) * (number - mean) for number in numbers) / (count - 1))
    reach = student_quantile(confidence, count - 1) * spread / math.sqrt(count)
    return Interval(mean, mean - reach, mean + reach, count)


def student_quantile(confidence: float, degrees: int) -> float:
    r"""The t that a Student variable of some degrees of freedom stays within: $P(|T| \le t) = \mathrm{confidence}$.

    `degrees` is that of freedom; the confidence .95 gives the quantile of .975 at one end.

    >>> round(student_quantile(0.95, 2), 6)
    4.302653
    """
    check_number("student_quantile", "confidence", confidence, 0, 1, "()")
    check_count("student_quantile", "degrees", degrees)
    return -float(special.stdtrit(degrees, (1 - confidence) / 2))


def error_bound(errors: int, rows: int, confidence: float = 0.95) -> float:
    r"""Upper bound of an error rate of which `errors` were seen in `rows` (Clopper and Pearson, one-sided).

    $$\max \{ p : P(\mathrm{Binomial}(\mathrm{rows}, p) \le \mathrm{errors}) \ge 1 - \mathrm{confidence} \}$$

    It is at least the true rate with probability `confidence` or more, however few the rows; without rows it is 1.

    >>> round(error_bound(0, 59), 4)  # no error in 59 rows: at most 5 %
    0.0495
    """
    check_count("error_bound", "rows", rows, 0)
    check_count("error_bound", "errors", errors, 0)
    check_number("error_bound", "confidence", confidence, 0, 1, "()")
    if errors > rows:
        raise ValueError(f"error_bound: errors must be at most rows = {rows}; got {errors}")
    return 1.0 if errors == rows else float(special.betaincinv(errors + 1, rows - errors, confidence))


AT_ONCE = 2**20  # groups that are drawn together


def bootstrap_interval(
    values: Tensor,
    groups: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Interval]:
    r"""Mean over images, and where it would lie with other groups of the same kind, one interval a column.

    A resample has as many groups as there are, drawn with replacement, each with all of its images, the same ones for
    all columns; without `groups` each image is its own:

    $$\bar x^* = \frac{\sum_k w_k \sum_{i \in k} x_i}{\sum_k w_k\, n_k}, \qquad
    w \sim \mathrm{Multinomial}\big(K; \tfrac 1K, …, \tfrac 1K\big)$$

    with $n_k$ images of group k of K, and the interval lies between quantiles of $\bar x^*$ (Efron's percentiles).
    Images of one patient are alike, and an interval that took them for independent would be too short.

    Note: One group has no spread to go by: low = high = mean, and `count`, the number of groups, says so. Percentiles
        of few groups are too short; below ten of them take the interval for a rough one.

    >>> values = torch.tensor([[0.0], [0.0], [1.0], [1.0], [2.0]])
    >>> bootstrap_interval(values, ["a", "a", "b", "b", "c"])
    [Interval(mean=0.8, low=0.0, high=2.0, count=3)]
    """
    name = "bootstrap_interval"
    check_number(name, "confidence", confidence, 0, 1, "()")
    check_count(name, "resamples", resamples)
    sums, sizes = _sums(name, values, groups)
    generator, count = torch.Generator().manual_seed(seed), len(sizes)
    ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    means = list[Tensor]()
    for some in torch.arange(resamples).split(max(1, AT_ONCE // count)):
        chosen = torch.randint(count, (len(some), count), generator=generator)
        times = torch.zeros(len(some), count, dtype=torch.float64)
        times.scatter_add_(1, chosen, torch.ones_like(times))
        means.append(times @ sums / (times @ sizes)[:, None])
    low, high = torch.cat(means).quantile(ends, 0)
    mean = sums.sum(0) / sizes.sum()
    if count == 1:
        low = high = mean  # which rounding would part
    return [Interval(*three, count) for three in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)]


def group_mean(values: Tensor, groups: Sequence[Hashable] | None = None) -> Tensor:
    r"""Mean over groups of their means over images, (columns,): each group counts once, however many images it has.

    $$\frac 1K \sum_k \frac{1}{n_k} \sum_{i \in k} x_i$$

    >>> group_mean(torch.tensor([[0.0], [0.0], [1.0]]), ["a", "a", "b"])
    tensor([0.5000], dtype=torch.float64)
    """
    sums, sizes = _sums("group_mean", values, groups)
    return (sums / sizes[:, None]).mean(0)


def _sums(name: str, values: Tensor, groups: Sequence[Hashable] | None) -> tuple[Tensor, Tensor]:
    """Sums over the images of each group, (groups, columns), and how many these are, (groups,)."""
    table = checked_rows(name, "values", values, "(images, columns)")
    if groups is None:
        return table, torch.ones(len(table), dtype=torch.float64)
    if len(groups) != len(table):
        raise ValueError(f"{name}: groups must be as many as the {len(table)} images; got {len(groups)}")
    number = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    whose = torch.tensor([number[group] for group in groups])
    sums = torch.zeros(len(number), table.size(1), dtype=torch.float64).index_add_(0, whose, table)
    return sums, torch.bincount(whose, minlength=len(number)).double()


def pearson(scores: Tensor) -> Tensor:
    r"""Pearson's correlation of every pair of rows: the heat map of the uncertainties of all widths.

    $$r_{ij} = \frac{\sum_n (u_{in} - \bar u_i)(u_{jn} - \bar u_j)}
    {\sqrt{\sum_n (u_{in} - \bar u_i)^2 \sum_n (u_{jn} - \bar u_j)^2}}$$

    of one row a width (W, N), such as the predictive entropies of N images. Exactly symmetric, within −1 … 1, and 1 on
    the diagonal. Paper: Sec. 3.5, the analysis behind SN³.

    Note: A constant row, which the formula leaves undefined, has the correlation 0 with every other.

    >>> pearson(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [5.0, 5.0, 5.0]]))
    tensor([[ 1., -1.,  0.],
            [-1.,  1.,  0.],
            [ 0.,  0.,  1.]], dtype=torch.float64)
    """
    scores = checked_rows("pearson", "scores", scores, "(W, N)")
    largest = scores.abs().amax(1, keepdim=True)
    scores = scores / largest.masked_fill(largest == 0, 1)  # neither the mean nor the squares overflow
    constant = (scores == scores[:, :1]).all(1, keepdim=True)  # by the values: their mean may be off in the last digit
    centered = (scores - scores.mean(1, keepdim=True)).masked_fill(constant, 0)
    unit = centered / torch.linalg.vector_norm(centered, dim=1, keepdim=True).masked_fill(constant, 1)
    product = unit @ unit.T
    correlation: Tensor = ((product + product.T) / 2).clamp(-1, 1).fill_diagonal_(1)
    return correlation


def smallest_width(correlation: Tensor, threshold: float = 0.9) -> int:
    r"""Index of the first width whose correlation with the last, the full one, exceeds a threshold.

    Paper: Sec. 3.5 keeps a quarter of the units, from where on the correlation is "strong"; it names no threshold.

    The matrix is that of `pearson`, widths in rising order; a threshold below 1 is always exceeded by the full width.

    >>> smallest_width(torch.tensor([[1.0, 0.8, 0.7], [0.8, 1.0, 0.95], [0.7, 0.95, 1.0]]))
    1
    """
    correlation = checked_rows("smallest_width", "correlation", correlation, "(W, W)")
    if correlation.shape[0] != correlation.shape[1]:
        raise ValueError(f"smallest_width: correlation must be a square matrix; got {tuple(correlation.shape)}")
    check_number("smallest_width", "threshold", threshold, -1, 1, "[)")
    if correlation[-1, -1] != 1:
        got = f"{correlation[-1, -1]:g}"
        raise ValueError(f"smallest_width: correlation must be 1 of the last width with itself; got {got}")
    return int((correlation[:, -1] > threshold).nonzero()[0, 0])


def spearman(a: Tensor, b: Tensor) -> Tensor:
    r"""Spearman's rank correlation: Pearson's of the ranks, where equal numbers share the mean of their places.

    Both have the shape (N,); 0 where one of the two is constant.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 100.0, 1000.0]))
    tensor(1., dtype=torch.float64)
    """
    a, b = checked_scores("spearman", "a", a), checked_scores("spearman", "b", b)
    if len(a) != len(b):
        raise ValueError(f"spearman: a and b must be equally long; got {len(a)} and {len(b)}")
    return pearson(torch.stack((_ranks(a), _ranks(b))))[0, 1]


def _ranks(values: Tensor) -> Tensor:
    _, group, count = values.unique(return_inverse=True, return_counts=True)
    ranks: Tensor = (count.cumsum(0) - (count.double() - 1) / 2)[group]
    return ranks
