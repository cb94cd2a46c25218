"""A cascade of networks, narrow ones first: what it answers right and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vnd.metrics.checks import check_tensor, checked_predictions, checked_rows, checked_scores

POINTS = 50  # thresholds of the default curve, besides the one that accepts nothing


@dataclass(frozen=True, eq=False)
class CascadeCurve:
    """What a cascade does at each threshold; float64.

    Shape: `threshold`, `accuracy` and `cost` (the mean of an image) (T,); `share` of images answered at each level
        (T, L).
    """

    threshold: Tensor
    accuracy: Tensor
    cost: Tensor
    share: Tensor


def cascade_curve(
    probs: Tensor, uncertainty: Tensor, costs: Tensor, labels: Tensor, thresholds: Tensor | None = None
) -> CascadeCurve:
    r"""Accuracy against mean cost of running narrow and going on to the next level where that is uncertain.

    $$\ell_n(t) = \min \{ l : u_{ln} \le t \text{ or } l = L \}, \qquad
    \mathrm{cost}(t) = \frac 1N \sum_n \sum_{l \le \ell_n(t)} c_l$$

    An image is answered by the first level that is sure enough, by the last in any case, and pays for all that it ran.

    Args:
        probs: Class probabilities of every level (L, N, C), in the order in which they run.
        uncertainty: Uncertainty of every level (L, N), larger is less sure; finite.
        costs: Cost of one image at each level (L,), such as MACs: finite, none negative.
        labels: Classes (N,).
        thresholds: Thresholds (T,), in any order. By default rising, without repetitions: one that accepts nothing
            before the last level, then up to 50 quantiles of the uncertainties of all levels but the last, of which
            the largest accepts everything at the first.

    >>> labels, probs = torch.tensor([0, 1]), torch.eye(2)[torch.tensor([[0, 0], [0, 1]])]  # the second level is right
    >>> uncertainty, costs = torch.tensor([[0.1, 0.9], [0.2, 0.2]]), torch.tensor([1, 10])
    >>> curve = cascade_curve(probs, uncertainty, costs, labels, torch.tensor([0, 0.5, 1]))
    >>> curve.accuracy.tolist(), curve.cost.tolist()
    ([1.0, 1.0, 0.5], [11.0, 6.0, 1.0])
    """
    probs, uncertainty, costs, labels = _checked(probs, uncertainty, costs, labels)
    levels, rows = uncertainty.shape
    if thresholds is None:
        asked = uncertainty[: max(1, levels - 1)]  # the last level answers whatever it is
        ordered = asked.flatten().sort().values
        places = (torch.linspace(0, 1, POINTS, dtype=torch.float64) * (ordered.numel() - 1)).round().long()
        nothing = asked.min() - 1
        thresholds = torch.cat((nothing[None], ordered[places])).unique()
    else:
        thresholds = checked_scores("cascade_curve", "thresholds", thresholds)
    right = probs.argmax(2) == labels
    accuracy, share = [], []
    for threshold in thresholds:
        accepts = uncertainty <= threshold
        accepts[-1] = True
        level = accepts.to(torch.uint8).argmax(0)  # the first that accepts
        accuracy.append(right.gather(0, level[None]).double().mean())
        share.append(torch.bincount(level, minlength=levels).double() / rows)
    shares = torch.stack(share)
    return CascadeCurve(thresholds, torch.stack(accuracy), shares @ costs.cumsum(0), shares)


def _checked(probs: Tensor, uncertainty: Tensor, costs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    name = "cascade_curve"
    check_tensor(name, "probs", probs)
    if probs.ndim != 3 or len(probs) == 0:
        got = f"{probs.dtype} of {tuple(probs.shape)}"
        raise ValueError(f"{name}: probs must be floats of shape (L, N, C), at least one level; got {got}")
    pairs = [checked_predictions(f"{name}: level {level}", each, labels) for level, each in enumerate(probs)]
    uncertainty = checked_rows(name, "uncertainty", uncertainty, "(L, N)")
    if uncertainty.shape != probs.shape[:2]:
        wanted = f"the shape {tuple(probs.shape[:2])} of the levels and rows of probs"
        raise ValueError(f"{name}: uncertainty must have {wanted}; got {tuple(uncertainty.shape)}")
    costs = checked_scores(name, "costs", costs)
    if len(costs) != len(probs) or not costs.isfinite().all() or (costs < 0).any():
        wanted = f"{len(probs)} finite numbers, one for each level, none negative"
        raise ValueError(f"{name}: costs must be {wanted}; got {costs.tolist()}")
    return torch.stack([pair[0] for pair in pairs]), uncertainty, costs, pairs[0][1]
