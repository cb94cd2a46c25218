"""Correlation: Pearson's of the uncertainties of all widths, Spearman's of two lists of numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from vnd.metrics._checks import check_number, checked_rows, checked_scores


def pearson(scores: Tensor) -> Tensor:
    r"""Pearson's correlation of every pair of rows: the heat map of the uncertainties of all widths.

    $$r_{ij} = \frac{\sum_n (u_{in} - \bar u_i)(u_{jn} - \bar u_j)}
    {\sqrt{\sum_n (u_{in} - \bar u_i)^2 \sum_n (u_{jn} - \bar u_j)^2}}$$

    Exactly symmetric, within −1 … 1, and 1 on the diagonal. Paper: Sec. 3.5, the analysis behind SN³.

    Note: The formula leaves a constant row undefined. Here it has the correlation 0 with every other row, and 1 with
        itself: it tells nothing of them.

    Args:
        scores: One row a width (W, N), such as the predictive entropies of N images; finite.

    Returns:
        The matrix (W, W) in float64.

    >>> pearson(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [5.0, 5.0, 5.0]]))
    tensor([[ 1., -1.,  0.],
            [-1.,  1.,  0.],
            [ 0.,  0.,  1.]], dtype=torch.float64)
    """
    scores = checked_rows("pearson", "scores", scores, "(W, N)")
    largest = scores.abs().amax(1, keepdim=True)
    scores = scores / largest.masked_fill(largest == 0, 1)  # neither the mean nor the squares overflow
    constant = (scores == scores[:, :1]).all(1, keepdim=True)  # by the values: their mean may be off in the last digit
    centred = (scores - scores.mean(1, keepdim=True)).masked_fill(constant, 0)
    unit = centred / torch.linalg.vector_norm(centred, dim=1, keepdim=True).masked_fill(constant, 1)
    product = unit @ unit.T
    correlation: Tensor = ((product + product.T) / 2).clamp(-1, 1).fill_diagonal_(1)
    return correlation


def smallest_width(correlation: Tensor, threshold: float = 0.9) -> int:
    r"""Index of the first width whose correlation with the last, the full one, exceeds a threshold.

    Paper: Sec. 3.5 keeps a quarter of the units, from where on the correlation is "strong"; it names no threshold.

    Args:
        correlation: The matrix (W, W) of `pearson`, widths in rising order.
        threshold: In −1 … 1, below 1, so that the full width itself always exceeds it.

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

    Within −1 … 1; 0 where one of the two is constant, since it then tells nothing of the other.

    Args:
        a: Numbers (N,), such as the code length of each image.
        b: Numbers (N,), such as its size as a PNG.

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
