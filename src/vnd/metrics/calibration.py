"""Accuracy, likelihood, Brier score and calibration of predicted class probabilities.

All take `probs` of shape (N, C), each row a distribution over C classes, and `labels` of shape (N,), whole numbers in
0 … C − 1; those of calibration also a number of `bins`. All are pooled over the N rows and computed in float64 on the
CPU, whatever the device of the input; what is unchecked runs where its input is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vnd.metrics._checks import check_count, checked_predictions


@dataclass(frozen=True, eq=False)
class Reliability:
    """Rows of each bin: how many, their mean confidence, and how often they are right; zeros where there are none.

    Shape: (bins,) each; `count` is int64, the others float64.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]), bins=2).accuracy
    tensor([0.0000, 0.5000], dtype=torch.float64)
    """

    count: Tensor
    confidence: Tensor
    accuracy: Tensor


def accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Share of rows whose most probable class is the label; of equal probabilities the first class counts.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """
    probs, labels = checked_predictions("accuracy", probs, labels)
    return TopClass.of(probs, labels).hit.double().mean()


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Mean negative log-likelihood of the labels, in nats.

    $$\frac 1N \sum_n -\log p_{n, y_n}$$

    Note: A probability below the smallest normal float64, zero too, counts as that number: 708 nats a row at most.

    >>> negative_log_likelihood(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.6931, dtype=torch.float64)
    """
    return log_likelihood(*checked_predictions("negative_log_likelihood", probs, labels))


def log_likelihood(probs: Tensor, labels: Tensor) -> Tensor:
    """The mean negative log-likelihood, unchecked."""
    of_labels = probs.gather(1, labels[:, None])
    return -of_labels.clamp_min(torch.finfo(torch.float64).tiny).log().mean()


def brier_score(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Mean squared distance of the probabilities from the label's one-hot vector, in 0 … 2.

    $$\frac 1N \sum_n \sum_c \big(p_{nc} - [c = y_n]\big)^2$$

    Note: Summed over the classes, as Brier (1950) has it; for two classes it is twice the one-probability form.

    >>> brier_score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 1]))
    tensor(1.2500, dtype=torch.float64)
    """
    return squared_distance(*checked_predictions("brier_score", probs, labels))


def squared_distance(probs: Tensor, labels: Tensor) -> Tensor:
    """The Brier score, unchecked."""
    one_hot = torch.nn.functional.one_hot(labels, probs.size(1))
    return (probs - one_hot).square().sum(1).mean()


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    r"""Mean gap between confidence and accuracy over equal-width bins of the confidence in the top class.

    $$\sum_b \frac{n_b}{N} \left| \mathrm{accuracy}_b - \mathrm{confidence}_b \right|$$

    Bin b of B holds confidences in ((b − 1)/B, b/B], the first also 0. Paper: Sec. 6.1.

    Note: Pooled over the whole set. The mean over batches (`batch_calibration_error`) is another and larger number. A
        finite set is biased upwards, since each bin's chance error counts: a perfectly calibrated network does not
        reach zero.

    >>> expected_calibration_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    tensor(0.4500, dtype=torch.float64)
    """
    name = "expected_calibration_error"
    probs, labels = checked_predictions(name, probs, labels)
    check_count(name, "bins", bins)
    top = TopClass.of(probs, labels)
    return binned_error(equal_width(top.confidence, bins), top.gap, bins)


def classwise_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    r"""Mean over the classes of the calibration error of each class's own probability, sure of it or not.

    $$\frac 1C \sum_c \sum_b \frac{n_{cb}}{N} \left| \mathrm{frequency}_{cb} - \mathrm{probability}_{cb} \right|$$

    where row n is in the bin b of class c that holds $p_{nc}$ (equal-width bins, as in `expected_calibration_error`),
    and the frequency is the share of these rows whose label is c. This is the classwise-ECE of Kull et al. (2019) and
    the static calibration error of Nixon et al. (2019), which are one.

    Note: With many classes most probabilities are near zero and well calibrated, so it shrinks as C grows: compare it
        within one data set only.

    >>> classwise_calibration_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    tensor(0.4500, dtype=torch.float64)
    """
    probs, labels = checked_predictions("classwise_calibration_error", probs, labels)
    check_count("classwise_calibration_error", "bins", bins)
    return classwise(probs, labels, bins)


def classwise(probs: Tensor, labels: Tensor, bins: int) -> Tensor:
    """The calibration error of each class's own probability, unchecked."""
    gap = probs - torch.nn.functional.one_hot(labels, probs.size(1))
    return binned_error(equal_width(probs, bins).T, gap.T, bins).mean()


def adaptive_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    r"""Mean gap between confidence and accuracy over bins of equally many rows, by the confidence in the top class.

    $$\sum_b \frac{n_b}{N} \left| \mathrm{accuracy}_b - \mathrm{confidence}_b \right|$$

    Of N rows in rising confidence, row i = 0 … N − 1 is in bin ⌊iB/N⌋ of B. Rows of equal confidence stay together, in
    the bin of the middle of their places, so that the order of the rows does not matter: bins are then uneven.

    Note: The top class alone, as in `expected_calibration_error`, whose equal widths leave most bins nearly empty when
        a network is sure. Nixon et al. (2019) bin every class so; netcal's ACE is something else, bins of equal weight.

    >>> adaptive_calibration_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    tensor(0.4500, dtype=torch.float64)
    """
    probs, labels = checked_predictions("adaptive_calibration_error", probs, labels)
    check_count("adaptive_calibration_error", "bins", bins)
    return adaptive(TopClass.of(probs, labels), bins)


def adaptive(top: TopClass, bins: int) -> Tensor:
    """The calibration error of bins of equally many rows, unchecked."""
    ordered, order = top.confidence.sort()
    first, last = ties(ordered)
    index = (first + last) * bins // (2 * len(order))  # twice the middle place, whole, so that no rounding decides
    return binned_error(index, top.gap[order], bins)


def batch_calibration_error(probs: Tensor, labels: Tensor, batch: int = 64, bins: int = 15) -> Tensor:
    r"""Mean over consecutive batches of the expected calibration error within each: the paper's number, for comparison.

    $$\frac 1K \sum_{k=1}^{K} \mathrm{ECE}\big(\text{rows } (k - 1) \cdot 64 + 1 \;…\; k \cdot 64\big)$$

    A last, smaller batch counts as much as the others. Paper: what the released evaluation script computes.

    Note: A poor measure of calibration: a bin of a few rows has a gap by chance, so that a *perfectly calibrated* model
        reads 0.05 to 0.15, and the number depends on the order of the rows. See `docs/errata.md`, and use
        `expected_calibration_error`.

    >>> batch_calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]), batch=1)
    tensor(0.3750, dtype=torch.float64)
    """
    name = "batch_calibration_error"
    probs, labels = checked_predictions(name, probs, labels)
    check_count(name, "batch", batch)
    check_count(name, "bins", bins)
    return batchwise(TopClass.of(probs, labels), batch, bins)


def batchwise(top: TopClass, batch: int, bins: int) -> Tensor:
    """The mean calibration error of batches, unchecked."""
    index, gap = equal_width(top.confidence, bins), top.gap
    whole = len(gap) // batch * batch
    errors = [binned_error(index[:whole].view(-1, batch), gap[:whole].view(-1, batch), bins)] if whole else []
    errors += [binned_error(index[whole:], gap[whole:], bins)[None]] if whole < len(gap) else []
    return torch.cat(errors).mean()


def reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Count, mean confidence and accuracy of each bin of `expected_calibration_error`: the reliability diagram.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]), bins=2).count
    tensor([0, 2])
    """
    probs, labels = checked_predictions("reliability", probs, labels)
    check_count("reliability", "bins", bins)
    top = TopClass.of(probs, labels)
    return _per_bin(equal_width(top.confidence, bins), top.confidence, top.hit, bins)


@dataclass(frozen=True, eq=False)
class TopClass:
    """The most probable class of each row: its probability, and whether it is the label; (N,) each."""

    confidence: Tensor
    hit: Tensor

    @classmethod
    def of(cls, probs: Tensor, labels: Tensor) -> TopClass:
        """Those of probabilities and labels that were checked."""
        confidence, top = probs.max(1)
        return cls(confidence, top == labels)

    @property
    def gap(self) -> Tensor:
        """Excess of the confidence over what is right."""
        return self.confidence - self.hit.double()


def ties(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last place of each value's like in rising order."""
    return torch.searchsorted(ordered, ordered), torch.searchsorted(ordered, ordered, right=True) - 1


def binned_error(index: Tensor, gap: Tensor, bins: int) -> Tensor:
    r"""Calibration error $\frac 1N \sum_b | \sum_{n: i_n = b} g_n |$ of gaps in bins, (…, N) each; (…)."""
    rows, count = gap.shape[:-1], gap.size(-1)
    if gap.is_cuda:  # in an order that is always the same, and without waiting for the device
        sums = [torch.where(index == number, gap, 0.0).sum(-1).abs() for number in range(bins)]
        return torch.stack(sums).sum(0) / count
    offset = bins * torch.arange(rows.numel()).view(*rows, 1)  # each row has bins of its own
    sums_of = torch.bincount((index + offset).flatten(), gap.flatten(), minlength=rows.numel() * bins)
    return sums_of.abs().view(*rows, bins).sum(-1) / count


def equal_width(confidence: Tensor, bins: int) -> Tensor:
    """Bin of each confidence, 0 … bins − 1: of B bins, b holds those in (b/B, (b + 1)/B], the first also 0."""
    return torch.bucketize(confidence, torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins)


def _per_bin(index: Tensor, confidence: Tensor, hit: Tensor, bins: int) -> Reliability:
    """Count, mean confidence and share of hits of each bin, where `index` has the bin of each entry."""
    count = torch.bincount(index, minlength=bins)
    share = count.clamp_min(1).double()
    return Reliability(
        count,
        torch.bincount(index, confidence, minlength=bins) / share,
        torch.bincount(index, hit.double(), minlength=bins) / share,
    )
