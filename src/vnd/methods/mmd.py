"""Maximum mean discrepancy: a distance between two distributions, from points of each, that has a gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the kernels, in units of the median distance


def squared_mmd(x: Tensor, y: Tensor, bandwidths: Sequence[float] = BANDWIDTHS, scale: Tensor | None = None) -> Tensor:
    r"""Unbiased estimate of the squared maximum mean discrepancy between two distributions, from points of each.

    $$\frac{1}{S (S - 1)} \sum_{i \ne j} k(x_i, x_j) + \frac{1}{T (T - 1)} \sum_{i \ne j} k(y_i, y_j)
      - \frac{2}{S T} \sum_{i, j} k(x_i, y_j), \qquad
      k(a, b) = \frac{1}{M} \sum_m \exp\Bigl(-\frac{\lVert a - b \rVert^2}{2 m^2\, \text{scale}}\Bigr)$$

    No point is paired with itself, so the mean over draws is MMD² itself, 0 for equal distributions; a single estimate
    may be negative, and no root is taken (Gretton et al., 2012, Lemma 6). This is what SN³ lowers between the answers
    of a teacher and those of a Dirichlet (paper, Sec. 3.5; Cui et al., 2020).

    Args:
        x: S ≥ 2 points for each example, (S, ..., C).
        y: T ≥ 2 points for each, (T, ..., C).
        bandwidths: The lengths m, in units of the root of the scale.
        scale: A squared length above 0, of shape (...) or one for all; None for `median_distance`.

    Note: With the scale None the estimate is unbiased for a kernel that was chosen from the same points.

    >>> squared_mmd(torch.zeros(2, 1), torch.ones(2, 1), bandwidths=[1.0], scale=torch.tensor(0.5))
    tensor(1.2642)
    """
    if not bandwidths or not all(0 < m < math.inf for m in bandwidths):
        raise ValueError(f"squared_mmd: bandwidths must be one or more positive numbers; got {list(bandwidths)}")
    distances = _squared_distances(x, y, "squared_mmd")
    if scale is None:
        scale = _median(distances)
    elif scale.ndim and scale.shape != x.shape[1:-1]:
        raise ValueError(
            f"squared_mmd: scale must have the shape {tuple(x.shape[1:-1])} of the examples, or be one number; "
            f"got shape {tuple(scale.shape)}"
        )
    exponent = distances / (-2 * scale[..., None, None])
    kernel = torch.stack([(exponent / m**2).exp() for m in bandwidths]).mean(0)
    return (kernel * _weights(len(x), len(y), kernel)).sum((-2, -1))


def median_distance(x: Tensor, y: Tensor, floor: float = 1e-4, across: bool = False) -> Tensor:
    r"""The median heuristic: the middle of all squared distances between different points, those of x and y pooled.

    $$\max\bigl(\text{floor},\ \operatorname{median}_{i < j} \lVert p_i - p_j \rVert^2\bigr),
      \qquad p = (x_1, \dots, x_S, y_1, \dots, y_T)$$

    Of an even number of pairs, the mean of the middle two. No gradient passes through it.

    Args:
        x: As in `squared_mmd`.
        y: As in `squared_mmd`.
        floor: The least squared length: points that all but coincide, as the answers of a sure teacher do, are not
            told apart by less.
        across: Only pairs of a point of x and one of y. Where one cloud is tight, has more points and is far from the
            other, the pooled median is the distance within it, and no kernel reaches across: nothing pulls.

    >>> median_distance(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [7.0]]))  # of 1, 4, 9, 16, 36, 49
    tensor(12.5000)
    """
    distances = _squared_distances(x, y, "median_distance")
    return _middle(distances[..., : len(x), len(x) :].flatten(-2), floor) if across else _median(distances, floor)


def _squared_distances(x: Tensor, y: Tensor, owner: str) -> Tensor:
    r"""Squared distances between all points, those of x first, (..., S + T, S + T), float32 or wider.

    $$\lVert p_i - p_j \rVert^2 = \lVert p_i \rVert^2 + \lVert p_j \rVert^2 - 2\, p_i \cdot p_j$$

    The differences themselves would be C times as many numbers, kept for the gradient: more than 1 GB for 32 + 32
    points of 512 examples in 200 classes. But products cancel: those of points close to one vertex of the simplex are
    all about 1, and in float32 distances below some 5e-4 are lost. So they are of the points less their mean, and in
    float64, which leaves an error of about 1e-16 in a square and which neither autocast nor TF32 touches.
    """
    if x.ndim < 2 or x.shape[1:] != y.shape[1:] or len(x) < 2 or len(y) < 2:
        raise ValueError(
            f"{owner}: x and y must be (S, ..., C) and (T, ..., C) with S and T at least 2; "
            f"got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    points = torch.cat([x.double(), y.double()]).movedim(0, -2)
    points = points - points.detach().mean(-2, keepdim=True)  # distances do not depend on it: no gradient is lost
    products = points @ points.mT
    norms = products.diagonal(dim1=-2, dim2=-1)
    squares = norms[..., :, None] + norms[..., None, :] - 2 * products
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return squares.clamp(min=0).to(dtype)


def _median(distances: Tensor, floor: float = 1e-4) -> Tensor:
    """The median above the diagonal."""
    count = distances.size(-1)
    rows, columns = torch.triu_indices(count, count, 1, device=distances.device)
    return _middle(distances[..., rows, columns], floor)


def _middle(distances: Tensor, floor: float) -> Tensor:
    """The median of the last dimension, as a constant; torch's own would be the lower of the middle two."""
    ordered = distances.detach().sort(-1).values
    pairs = ordered.size(-1)
    return ((ordered[..., (pairs - 1) // 2] + ordered[..., pairs // 2]) / 2).clamp(min=floor)


def _weights(s: int, t: int, like: Tensor) -> Tensor:
    """Weights of pairs in the estimate, (S + T, S + T): 0 where a point meets itself."""
    within = torch.block_diag(like.new_full((s, s), 1 / (s * (s - 1))), like.new_full((t, t), 1 / (t * (t - 1))))
    across = torch.block_diag(like.new_ones(s, s), like.new_ones(t, t)) - 1  # 0 within, −1 across
    weights: Tensor = (within + across / (s * t)).fill_diagonal_(0)
    return weights
