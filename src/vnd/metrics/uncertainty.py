"""Quality of an uncertainty: selective prediction, cascades, and detection of out-of-domain inputs.

**Selective prediction** answers where the uncertainty is low enough, and abstains elsewhere; a cascade goes on to the
next, wider network there. The others take `probs` (N, C), `labels` (N,) and `uncertainty` (N,), where larger means less
sure (entropy, mutual information). A threshold accepts the rows whose uncertainty is at most it; *coverage* is the
share of rows accepted, and *risk* the share of errors among them. Rows of equal uncertainty are accepted together, so
no number depends on the order of the rows. Geifman and El-Yaniv (2017).

**Detection** (`auroc`, `aupr`, `base_rate`, `fpr_at_tpr`) takes two vectors of scores, in any order, where a larger
score means more uncertain; out-of-domain is the positive class. Infinite scores are allowed. Computed by sorting,
O(n log n).

All is computed in float64 on the CPU, whatever the device of the input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vnd.metrics import calibration
from vnd.metrics._checks import (
    SUM_TOLERANCE,
    check_count,
    check_number,
    check_tensor,
    checked_predictions,
    checked_rows,
    checked_scores,
)
from vnd.metrics.calibration import TopClass, ties
from vnd.metrics.statistics import error_bound

COVERAGES = 20  # thresholds that are tried where a confidence is asked for: at coverages of 5 %, 10 % … 100 %


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Coverage and risk at each distinct uncertainty as threshold, from the smallest up; shape (K,) each, float64.

    >>> risk_coverage(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 1, 1]), torch.tensor([1, 3, 3])).threshold
    tensor([1., 3.], dtype=torch.float64)
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor


@dataclass(frozen=True)
class Selection:
    """Share of rows accepted, and of errors among these; the risk is None where none was accepted.

    >>> selective(torch.eye(2), torch.tensor([0, 1]), torch.tensor([1, 3]), threshold=0)
    Selection(coverage=0.0, risk=None)
    """

    coverage: float
    risk: float | None


def risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor) -> RiskCoverage:
    """The risk of the accepted rows against their share, for every threshold that makes a difference.

    >>> curve = risk_coverage(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 1, 1]), torch.tensor([0.1, 0.3, 0.3]))
    >>> curve.coverage, curve.risk
    (tensor([0.3333, 1.0000], dtype=torch.float64), tensor([0.0000, 0.3333], dtype=torch.float64))
    """
    groups = _grouped("risk_coverage", probs, labels, uncertainty)
    return RiskCoverage(groups.coverage, groups.risk, groups.threshold)


def area_under_risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor) -> Tensor:
    r"""AURC: the mean risk over all coverages 1/N, 2/N … 1; lower is better.

    $$\frac 1N \sum_{k=1}^N \frac 1k \sum_{i \le k} \mathbb E [\text{row } i \text{ is wrong}]$$

    with the rows in rising uncertainty and the expectation over the order of equal ones. An uncertainty that knows
    nothing has the error rate as its area.

    Note: It falls with the error rate, however good the uncertainty: see `excess_area_under_risk_coverage`.

    >>> area_under_risk_coverage(torch.eye(2)[[0, 0]], torch.tensor([0, 1]), torch.tensor([0.1, 0.3]))
    tensor(0.2500, dtype=torch.float64)
    """
    name = "area_under_risk_coverage"
    probs, labels = checked_predictions(name, probs, labels)
    return _area(TopClass.of(probs, labels).hit, _checked_uncertainty(name, uncertainty, labels))


def excess_area_under_risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor) -> Tensor:
    """E-AURC: the area beyond that of an uncertainty which ranks every error last; 0 is the best.

    Geifman, Uziel and El-Yaniv (2019). Compares the uncertainties of networks of different accuracy.

    >>> excess_area_under_risk_coverage(torch.eye(2)[[0, 0]], torch.tensor([0, 1]), torch.tensor([0.1, 0.3]))
    tensor(0., dtype=torch.float64)
    """
    name = "excess_area_under_risk_coverage"
    probs, labels = checked_predictions(name, probs, labels)
    hit = TopClass.of(probs, labels).hit
    return _area(hit, _checked_uncertainty(name, uncertainty, labels)) - _area(hit, hit.logical_not().double())


def threshold_for_risk(
    probs: Tensor, labels: Tensor, uncertainty: Tensor, risk: float = 0.05, confidence: float | None = None
) -> float:
    r"""The largest threshold, so the most coverage, at which the error of the accepted rows is at most `risk`.

    $$\max \{ t : \mathrm{risk}(t) \le \mathrm{risk} \}$$

    or −∞ where no threshold does that. Fit it on validation rows, then see what it is worth on others with `selective`.

    Without `confidence` it is the risk on these rows, which is optimistic: the best of many thresholds. With it, the
    risk on new rows of the same distribution is at most `risk` with probability `confidence`: 20 thresholds fixed by
    the uncertainties alone (coverage 5 %, 10 % … 100 %) are tried, each by Clopper and Pearson's bound at
    1 − (1 − confidence)/20 (Bonferroni), and the largest whose bound is at most `risk` is taken. The row that sets a
    threshold counts only if it is wrong; with that the promise is exact where uncertainties do not tie.

    Note: Not the binary search of Geifman and El-Yaniv (SGR): which thresholds that tries depends on the errors it saw,
        and its bound counts the log₂ N tried, not those that might have been.

    >>> threshold_for_risk(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 1, 1]), torch.tensor([1, 3, 2]))
    2.0
    """
    groups = _grouped("threshold_for_risk", probs, labels, uncertainty)
    check_number("threshold_for_risk", "risk", risk, 0, 1, "[]")
    low = groups.risk <= risk
    if confidence is None:
        good = low.nonzero()[:, 0].tolist()
    else:
        check_number("threshold_for_risk", "confidence", confidence, 0, 1, "()")
        bound_confidence = 1 - (1 - confidence) / COVERAGES
        rows = int(groups.accepted[-1])
        wanted = torch.tensor([-(-rows * step // COVERAGES) for step in range(1, COVERAGES + 1)])
        tried = [index for index in torch.searchsorted(groups.accepted, wanted).tolist() if low[index]]
        seen = [(int(groups.errors[index]), int(groups.accepted[index]) - 1) for index in tried]
        bounds = [error_bound(min(errors, others), others, bound_confidence) for errors, others in seen]
        good = [index for index, bound in zip(tried, bounds, strict=True) if bound <= risk]
    return float(groups.threshold[max(good)]) if good else -math.inf


def selective(probs: Tensor, labels: Tensor, uncertainty: Tensor, threshold: float) -> Selection:
    """Coverage and risk at a threshold that was found elsewhere (`threshold_for_risk` on validation rows).

    >>> selective(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 1, 1]), torch.tensor([1, 3, 2]), threshold=2.5)
    Selection(coverage=0.6666666666666666, risk=0.0)
    """
    groups = _grouped("selective", probs, labels, uncertainty)
    check_number("selective", "threshold", threshold, -math.inf, math.inf, "[]")
    below = int((groups.threshold <= threshold).sum())
    if below == 0:
        return Selection(0.0, None)
    return Selection(float(groups.coverage[below - 1]), float(groups.risk[below - 1]))


@dataclass(frozen=True, eq=False)
class _Groups:
    """The distinct uncertainties in rising order, and how many rows, and errors, lie at or below each (int64)."""

    threshold: Tensor
    accepted: Tensor
    errors: Tensor

    @property
    def coverage(self) -> Tensor:
        return self.accepted.double() / self.accepted[-1]

    @property
    def risk(self) -> Tensor:
        return self.errors.double() / self.accepted


def _grouped(name: str, probs: Tensor, labels: Tensor, uncertainty: Tensor) -> _Groups:
    probs, labels = checked_predictions(name, probs, labels)
    uncertainty = _checked_uncertainty(name, uncertainty, labels)
    threshold, group, size = uncertainty.unique(return_inverse=True, return_counts=True)
    wrong = torch.bincount(group[TopClass.of(probs, labels).hit.logical_not()], minlength=len(size))
    return _Groups(threshold, size.cumsum(0), wrong.cumsum(0))


def _checked_uncertainty(name: str, uncertainty: Tensor, labels: Tensor) -> Tensor:
    uncertainty = checked_scores(name, "uncertainty", uncertainty)
    if len(uncertainty) != len(labels):
        raise ValueError(
            f"{name}: uncertainty must have one number for each row of probs, {len(labels)}; got {len(uncertainty)}"
        )
    return uncertainty


def _area(hit: Tensor, uncertainty: Tensor) -> Tensor:
    ordered, order = uncertainty.sort()
    first, last = ties(ordered)
    wrong = hit[order].logical_not().long()
    errors = wrong.cumsum(0)
    before = (errors - wrong)[first]
    place = torch.arange(1, len(order) + 1, device=order.device)
    # Of the rows of a group, those up to this place have their share of its errors, on average over their order.
    expected = before + ((place - first) * (errors[last] - before)).double() / (last - first + 1)
    return (expected / place).mean()


SCORES = ("accuracy", "nll", "brier", "ece", "classwise_ece", "adaptive_ece", "batch_ece", "aurc")


def classification_scores(probs: Tensor, labels: Tensor, uncertainty: Tensor, bins: int = 15) -> dict[str, float]:
    """All scores of class probabilities at once: what the function of each gives, for one check and one look at them.

    `accuracy`, `nll`, `brier`, `ece`, `classwise_ece`, `adaptive_ece`, `batch_ece` and `aurc`.

    >>> scores = classification_scores(torch.eye(2)[[0, 0]], torch.tensor([0, 1]), torch.tensor([0.1, 0.3]))
    >>> scores["accuracy"], scores["aurc"]
    (0.5, 0.25)
    """
    name = "classification_scores"
    probs, labels = checked_predictions(name, probs, labels)
    uncertainty = _checked_uncertainty(name, uncertainty, labels)
    check_count(name, "bins", bins)
    return dict(zip(SCORES, score_vector(probs, labels, uncertainty, bins)[:-1].tolist(), strict=True))


def score_vector(probs: Tensor, labels: Tensor, uncertainty: Tensor, bins: int) -> Tensor:
    """The numbers of `classification_scores`, and 1 if it takes what they are of, 0 if it refuses it; float64.

    On the device of the probabilities, which nothing waits for: equal to those of a CPU up to the rounding of float64.
    """
    probs, uncertainty = probs.double(), uncertainty.double()
    good = (
        ((probs.sum(1) - 1).abs() <= SUM_TOLERANCE).all() & (probs.min() >= 0) & uncertainty.isnan().logical_not().all()
    )
    good = good & (labels.min() >= 0) & (labels.max() < probs.size(1))
    labels, uncertainty = labels.clamp(0, probs.size(1) - 1), uncertainty.nan_to_num(0.0, torch.inf, -torch.inf)
    top = TopClass.of(probs, labels)
    found = (
        top.hit.double().mean(),
        calibration.log_likelihood(probs, labels),
        calibration.squared_distance(probs, labels),
        calibration.binned_error(calibration.equal_width(top.confidence, bins), top.gap, bins),
        calibration.classwise(probs, labels, bins),
        calibration.adaptive(top, bins),
        calibration.batchwise(top, 64, 15),
        _area(top.hit, uncertainty),
    )
    return torch.stack((*found, good.double()))


POINTS = 50  # thresholds of the default curve, besides the one that accepts nothing


@dataclass(frozen=True, eq=False)
class CascadeCurve:
    """Threshold, accuracy and mean cost of an image, (T,) each, and share of images answered at each step, (T, L).

    >>> probs, unsure = torch.eye(2).expand(2, 2, 2), torch.tensor([[0.1, 0.9], [0.2, 0.2]])
    >>> cascade_curve(probs, unsure, torch.tensor([1, 10]), torch.tensor([0, 1]), torch.tensor([0.5])).share.tolist()
    [[0.5, 0.5]]
    """

    threshold: Tensor
    accuracy: Tensor
    cost: Tensor
    share: Tensor


def cascade_curve(
    probs: Tensor, uncertainty: Tensor, costs: Tensor, labels: Tensor, thresholds: Tensor | None = None
) -> CascadeCurve:
    r"""Accuracy against mean cost of running narrow and going on to the next step where that is uncertain.

    $$\ell_n(t) = \min \{ l : u_{ln} \le t \text{ or } l = L \}, \qquad
    \mathrm{cost}(t) = \frac 1N \sum_n \sum_{l \le \ell_n(t)} c_l$$

    An image is answered by the first step that is sure enough, by the last in any case, and pays for all that it ran.

    Args:
        probs: Class probabilities of every step (L, N, C), in the order in which they run.
        uncertainty: Uncertainty of every step (L, N), larger is less sure; finite.
        costs: Cost of one image at each step (L,), such as MACs: finite, none negative.
        labels: Classes (N,).
        thresholds: Thresholds (T,), in any order. By default rising, without repetitions: one that accepts nothing
            before the last step, then up to 50 quantiles of the uncertainties of all steps but the last, of which
            the largest accepts everything at the first.

    >>> labels, probs = torch.tensor([0, 1]), torch.eye(2)[torch.tensor([[0, 0], [0, 1]])]  # the second step is right
    >>> uncertainty, costs = torch.tensor([[0.1, 0.9], [0.2, 0.2]]), torch.tensor([1, 10])
    >>> curve = cascade_curve(probs, uncertainty, costs, labels, torch.tensor([0, 0.5, 1]))
    >>> curve.accuracy.tolist(), curve.cost.tolist()
    ([1.0, 1.0, 0.5], [11.0, 6.0, 1.0])
    """
    probs, uncertainty, costs, labels = _checked_steps("cascade_curve", probs, uncertainty, costs, labels)
    steps, rows = uncertainty.shape
    if thresholds is None:
        asked = uncertainty[: max(1, steps - 1)]  # the last step answers whatever it is
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
        step = accepts.to(torch.uint8).argmax(0)  # the first that accepts
        accuracy.append(right.gather(0, step[None]).double().mean())
        share.append(torch.bincount(step, minlength=steps).double() / rows)
    shares = torch.stack(share)
    return CascadeCurve(thresholds, torch.stack(accuracy), shares @ costs.cumsum(0), shares)


CELLS = 2**20  # most combinations of thresholds that are tried


def cascade_thresholds(
    probs: Tensor, uncertainty: Tensor, costs: Tensor, labels: Tensor, loss: float = 0.0
) -> tuple[float, ...]:
    r"""The thresholds, one a step but the last, of the cheapest cascade that is as accurate as the best step alone.

    $$\arg\min_t \mathrm{cost}(t) \quad \text{where} \quad
    \mathrm{accuracy}(t) \ge \max_l \mathrm{accuracy}_l - \mathrm{loss}$$

    All combinations are tried of −∞, which accepts nothing, and up to 50 quantiles of each step's uncertainties, of
    which the largest accepts everything; fewer quantiles from five steps on. Of equal costs the more accurate is taken.

    Note: The accuracy is that on these rows, and a little optimistic for others: fit on validation rows.

    Args:
        probs: Class probabilities of every step (L, N, C), in the order in which they run.
        uncertainty: Uncertainty of every step (L, N), larger is less sure; finite.
        costs: Cost of one image at each step (L,), such as MACs or seconds: finite, none negative.
        labels: Classes (N,).
        loss: Accuracy that may be lost against the best step alone, in [0, 1].

    >>> labels, probs = torch.tensor([0, 1]), torch.eye(2)[torch.tensor([[0, 0], [0, 1]])]  # the second step is right
    >>> uncertainty, costs = torch.tensor([[0.1, 0.9], [0.2, 0.2]]), torch.tensor([1, 10])
    >>> [round(threshold, 2) for threshold in cascade_thresholds(probs, uncertainty, costs, labels)]
    [0.1]
    """
    name = "cascade_thresholds"
    probs, uncertainty, costs, labels = _checked_steps(name, probs, uncertainty, costs, labels)
    check_number(name, "loss", loss, 0, 1, "[]")
    right, limits = probs.argmax(2) == labels, _candidates(uncertainty[:-1])
    places = [torch.searchsorted(own, asked) for own, asked in zip(limits, uncertainty, strict=False)]
    sizes, rows = [len(own) for own in limits], len(labels)
    correct, cost = torch.zeros(sizes, dtype=torch.long), torch.zeros(sizes, dtype=torch.float64)
    for step, price in enumerate(costs):
        later = [1] * (len(sizes) - step)
        arriving = _combinations(places[:step], sizes[:step], torch.ones(rows, dtype=torch.bool), accepted=False)
        cost += price * arriving.reshape([*arriving.shape, *later])
        answered = _combinations(places[: step + 1], sizes[: step + 1], right[step], accepted=step < len(sizes))
        correct += answered.reshape([*answered.shape, *later[1:]])
    enough = correct >= right.sum(1).max() - math.floor(loss * rows + 1e-9)
    least = cost[enough].min()
    best = torch.where(enough & (cost <= least * (1 + 1e-12)), correct, -1).argmax()
    chosen = torch.unravel_index(best, correct.shape)
    return tuple(float(own[place]) for own, place in zip(limits, chosen, strict=True))


def _candidates(uncertainty: Tensor) -> list[Tensor]:
    """Thresholds to try at each step, rising: −∞ and quantiles, of which the last is the largest uncertainty."""
    count = min(POINTS, int(CELLS ** (1 / max(1, len(uncertainty)))) - 1)
    places = (torch.linspace(0, 1, count + 1, dtype=torch.float64)[1:] * (uncertainty.size(1) - 1)).round().long()
    none = uncertainty.new_tensor([-math.inf])
    return [torch.cat((none, own.sort().values[places])).unique() for own in uncertainty]


def _combinations(places: list[Tensor], sizes: list[int], counted: Tensor, accepted: bool) -> Tensor:
    """Number of rows that all of some steps pass on, or that the last of them accepts, for each of their thresholds.

    Args:
        places: Of each step, the number of the lowest threshold that accepts each row.
        sizes: How many thresholds each step has.
        counted: The rows that count.
        accepted: Count those that the last step accepts.
    """
    cell = torch.zeros(len(counted), dtype=torch.long)
    for place, size in zip(places, sizes, strict=True):
        cell = cell * size + place
    table = torch.bincount(cell[counted], minlength=math.prod(sizes)).view(sizes)
    for dim, size in enumerate(sizes):
        below = table.cumsum(dim)
        table = below if accepted and dim == len(sizes) - 1 else below.narrow(dim, size - 1, 1) - below
    return table


def _checked_steps(name: str, probs: Tensor, uncertainty: Tensor, costs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    check_tensor(name, "probs", probs)
    if probs.ndim != 3 or len(probs) == 0:
        got = f"{probs.dtype} of {tuple(probs.shape)}"
        raise ValueError(f"{name}: probs must be floats of shape (L, N, C), at least one step; got {got}")
    pairs = [checked_predictions(f"{name}: step {step}", each, labels) for step, each in enumerate(probs)]
    uncertainty = checked_rows(name, "uncertainty", uncertainty, "(L, N)")
    if uncertainty.shape != probs.shape[:2]:
        wanted = f"the shape {tuple(probs.shape[:2])} of the steps and rows of probs"
        raise ValueError(f"{name}: uncertainty must have {wanted}; got {tuple(uncertainty.shape)}")
    costs = checked_scores(name, "costs", costs)
    if len(costs) != len(probs) or not costs.isfinite().all() or (costs < 0).any():
        wanted = f"{len(probs)} finite numbers, one for each step, none negative"
        raise ValueError(f"{name}: costs must be {wanted}; got {costs.tolist()}")
    return torch.stack([pair[0] for pair in pairs]), uncertainty, costs, pairs[0][1]


def auroc(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    r"""Area under the ROC curve: how often an out-of-domain score is the larger of two, one from each domain.

    $$P(s_\mathrm{out} > s_\mathrm{in}) + \tfrac 12 P(s_\mathrm{out} = s_\mathrm{in})$$

    0.5 is chance, whatever the base rate; below 0.5 the score is upside down.

    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.9]))
    tensor(0.9167, dtype=torch.float64)
    """
    inside, outside = _checked_domains("auroc", in_scores, out_scores)
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
    inside, outside = _checked_domains("aupr", in_scores, out_scores)
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
    inside, outside = _checked_domains("base_rate", in_scores, out_scores)
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
    inside, outside = _checked_domains("fpr_at_tpr", in_scores, out_scores)
    check_number("fpr_at_tpr", "tpr", tpr, 0, 1, "(]")
    enough = torch.arange(1, len(outside) + 1, dtype=torch.float64) / len(outside) >= tpr
    threshold = outside.sort(descending=True).values[enough][0]
    return (inside >= threshold).double().mean()


def _checked_domains(name: str, in_scores: Tensor, out_scores: Tensor) -> tuple[Tensor, Tensor]:
    return checked_scores(name, "in_scores", in_scores), checked_scores(name, "out_scores", out_scores)
