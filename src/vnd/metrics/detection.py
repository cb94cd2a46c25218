"""Detection of out-of-domain inputs by a score: ROC, precision and recall, false positives.

All take two vectors of scores, in any order, where a larger score means more uncertain (entropy, mutual information);
out-of-domain is the positive class. Infinite scores are allowed. Computed by sorting, O(n log n), in float64 on the
CPU, whatever the device of the input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vnd.metrics._checks import check_number, checked_scores


def auroc(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    r"""Area under the ROC curve: how often an out-of-domain score is the larger of two, one from each domain.

    $$P(s_\mathrm{out} > s_\mathrm{in}) + \tfrac 12 P(s_\mathrm{out} = s_\mathrm{in})$$

    0.5 is chance, whatever the base rate; below 0.5 the score is upside down.

    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.9]))
    tensor(0.9167, dtype=torch.float64)
    """
    inside, outside = _checked("auroc", in_scores, out_scores)
    ordered = inside.sort().values
    below, not_above = torch.searchsorted(ordered, outside), torch.searchsorted(ordered, outside, right=True)
    # Whole numbers until the last step, so that the order of the scores cannot matter.
    return (below + not_above).sum().double() / (2 * len(inside) * len(outside))


def aupr(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    r"""Average precision, out-of-domain positive: the area under the precision-recall curve, drawn in steps.

    $$\sum_k (R_k - R_{k-1}) P_k$$

    over the distinct scores from the largest down, with precision $P_k$ and recall $R_k$ of "at least the k-th".
    Chance is `base_rate`, so values of sets of different proportions cannot be compared.

    >>> aupr(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.9]))
    tensor(0.8333, dtype=torch.float64)
    """
    inside, outside = _checked("aupr", in_scores, out_scores)
    scores, order = torch.cat((inside, outside)).sort(descending=True)
    hits = (order >= len(inside)).long().cumsum(0)
    last = torch.ones_like(scores, dtype=torch.bool)  # equal scores stand or fall together: count at the last of them
    last[:-1] = scores[:-1] != scores[1:]
    rank = last.nonzero()[:, 0] + 1
    hits = hits[last]
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return (gained * hits / rank.double()).sum() / len(outside)


def base_rate(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    """Share of out-of-domain scores among all: the `aupr` of a score that knows nothing.

    >>> base_rate(torch.zeros(3), torch.zeros(1))
    tensor(0.2500, dtype=torch.float64)
    """
    inside, outside = _checked("base_rate", in_scores, out_scores)
    return torch.tensor(len(outside) / (len(inside) + len(outside)), dtype=torch.float64)


def fpr_at_tpr(in_scores: Tensor, out_scores: Tensor, tpr: float = 0.95) -> Tensor:
    r"""False-positive rate where enough out-of-domain inputs are found: FPR95, lower is better.

    $$\min_t \{ P(s_\mathrm{in} \ge t) : P(s_\mathrm{out} \ge t) \ge \mathrm{tpr} \}$$

    the share of in-domain inputs that are flagged by the strictest threshold that flags at least `tpr` of the
    out-of-domain ones. Equal scores are flagged together, with no interpolation between thresholds.

    Note: Some (ODIN) call in-domain the positive class: `fpr_at_tpr(-out_scores, -in_scores)`, another number.

    >>> fpr_at_tpr(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.9]))
    tensor(0.5000, dtype=torch.float64)
    """
    inside, outside = _checked("fpr_at_tpr", in_scores, out_scores)
    check_number("fpr_at_tpr", "tpr", tpr, 0, 1, "(]")
    enough = torch.arange(1, len(outside) + 1, dtype=torch.float64) / len(outside) >= tpr
    threshold = outside.sort(descending=True).values[enough][0]
    return (inside >= threshold).double().mean()


def _checked(name: str, in_scores: Tensor, out_scores: Tensor) -> tuple[Tensor, Tensor]:
    return checked_scores(name, "in_scores", in_scores), checked_scores(name, "out_scores", out_scores)
