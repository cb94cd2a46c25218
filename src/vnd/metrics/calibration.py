"""How right predicted class probabilities are: accuracy, likelihood, Brier score, calibration.

All take `probs` of shape (N, C), each row a distribution over C classes, and `labels` of shape (N,), whole numbers in
0 … C − 1. All are pooled over the N rows and computed in float64 on the CPU, whatever the device of the input, so that
one set of predictions has one number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SUM_TOLERANCE = 5e-3  # rounding probabilities to bfloat16 moves their sum by up to 2e-3; logits miss it by far


@dataclass(frozen=True, eq=False)
class Reliability:
    """The rows of each confidence bin: how many, how sure on average, and how often right; zeros where there are none.

    Shape: (bins,) each; `count` is int64, the others float64.
    """

    count: Tensor
    confidence: Tensor
    accuracy: Tensor


def accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Share of rows whose most probable class is the label; of equal probabilities the first class counts.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """
    probs, labels = _checked("accuracy", probs, labels)
    return (probs.argmax(1) == labels).double().mean()


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Mean negative log-likelihood of the labels, in nats.

    $$\frac 1N \sum_n -\log p_{n, y_n}$$

    Note: A probability below the smallest normal float64, zero too, counts as that number: 708 nats a row at most.

    >>> negative_log_likelihood(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
    tensor(0.6931, dtype=torch.float64)
    """
    probs, labels = _checked("negative_log_likelihood", probs, labels)
    of_labels = probs.gather(1, labels[:, None])
    return -of_labels.clamp_min(torch.finfo(torch.float64).tiny).log().mean()


def brier_score(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Mean squared distance of the probabilities from the label's one-hot vector, in 0 … 2.

    $$\frac 1N \sum_n \sum_c \big(p_{nc} - [c = y_n]\big)^2$$

    Note: Summed over the classes, as Brier (1950) has it; for two classes it is twice the one-probability form.

    >>> brier_score(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([1, 1]))
    tensor(1.2500, dtype=torch.float64)
    """
    probs, labels = _checked("brier_score", probs, labels)
    one_hot = torch.nn.functional.one_hot(labels, probs.size(1))
    return (probs - one_hot).square().sum(1).mean()


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    r"""Mean gap between confidence and accuracy over equal-width bins of the confidence in the top class.

    $$\sum_b \frac{n_b}{N} \left| \mathrm{accuracy}_b - \mathrm{confidence}_b \right|$$

    Bin b of B holds confidences in ((b − 1)/B, b/B], the first also 0. Paper: Sec. 6.1.

    Note: Pooled over the whole set. The mean over batches is another and larger number. A finite set is biased
        upwards, since each bin's chance error counts: a perfectly calibrated network does not reach zero.

    Args:
        probs: Class probabilities (N, C).
        labels: Classes (N,).
        bins: Number of bins, at least 1.

    >>> expected_calibration_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    tensor(0.4500, dtype=torch.float64)
    """
    probs, labels = _checked("expected_calibration_error", probs, labels)
    per_bin = _reliability("expected_calibration_error", probs, labels, bins)
    gap = (per_bin.accuracy - per_bin.confidence).abs()
    return (per_bin.count * gap).sum() / len(labels)


def reliability(probs: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Count, mean confidence and accuracy of each bin of `expected_calibration_error`: the reliability diagram.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]), bins=2).count
    tensor([0, 2])
    """
    probs, labels = _checked("reliability", probs, labels)
    return _reliability("reliability", probs, labels, bins)


def _reliability(name: str, probs: Tensor, labels: Tensor, bins: int) -> Reliability:
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"{name}: bins must be a whole number of at least 1; got {bins!r}")
    confidence, top = probs.max(1)
    # Inner edges only: what is at or below the first is in the first bin, what is above the last in the last.
    edges = torch.arange(1, bins, dtype=torch.float64) / bins
    index = torch.bucketize(confidence, edges)
    count = torch.bincount(index, minlength=bins)
    share = count.clamp_min(1).double()
    return Reliability(
        count,
        torch.bincount(index, confidence, minlength=bins) / share,
        torch.bincount(index, (top == labels).double(), minlength=bins) / share,
    )


def _checked(name: str, probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities in float64, and the labels in int64 beside them, once they are known to be such."""
    for argument, value in (("probs", probs), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: {argument} must be a tensor; got a {type(value).__name__}")
    if probs.ndim != 2 or not probs.is_floating_point():
        raise ValueError(f"{name}: probs must be floats of shape (N, C); got {probs.dtype} of {tuple(probs.shape)}")
    if labels.shape != probs.shape[:1] or labels.is_floating_point() or labels.is_complex():
        wanted = f"whole numbers of shape ({len(probs)},), one for each row of probs"
        raise ValueError(f"{name}: labels must be {wanted}; got {labels.dtype} of {tuple(labels.shape)}")
    if probs.numel() == 0:
        raise ValueError(f"{name}: probs must not be empty; got shape {tuple(probs.shape)}")
    probs, labels = probs.detach().cpu().double(), labels.detach().cpu().long()
    if (row := _first(~probs.isfinite().all(1))) is not None:
        raise ValueError(f"{name}: probs must be finite; row {row} holds NaN or infinity")
    if (row := _first((probs < 0).any(1))) is not None:
        raise ValueError(f"{name}: probs must not be negative; got {probs[row].min():g} in row {row} (logits?)")
    total = probs.sum(1)
    if (row := _first((total - 1).abs() > SUM_TOLERANCE)) is not None:
        raise ValueError(f"{name}: each row of probs must sum to 1; row {row} sums to {total[row]:g} (logits?)")
    if (row := _first((labels < 0) | (labels >= probs.size(1)))) is not None:
        raise ValueError(f"{name}: labels must lie in 0 … {probs.size(1) - 1}; got {labels[row]} at index {row}")
    return probs, labels


def _first(wrong: Tensor) -> int | None:
    """Index of the first True."""
    return int(wrong.to(torch.uint8).argmax()) if wrong.any() else None
