"""How far the probability of a pixel can be believed: its entropy, and its calibration by the share of graders."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vnd.metrics.checks import check_count, check_tensor
from vnd.metrics.segmentation import checked_sets


@dataclass(frozen=True, eq=False)
class PixelCalibration:
    """The calibration error of pixels, and of each bin: how many, the mean probability, the mean share of graders.

    Shape: `error` (), the others (bins,), zeros where a bin is empty; `count` is int64, the others float64.
    """

    error: Tensor
    count: Tensor
    confidence: Tensor
    frequency: Tensor


def pixel_entropy(probs: Tensor) -> Tensor:
    r"""Entropy of each pixel's being foreground or not, in nats, from 0 to log 2.

    $$-p \log p - (1 - p) \log (1 - p)$$

    Args:
        probs: Probabilities of the foreground, of any shape; it is kept.

    >>> pixel_entropy(torch.tensor([0.0, 0.5]))
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    probs = _checked_probs("pixel_entropy", probs)
    entropy: Tensor = torch.special.entr(probs) + torch.special.entr(1 - probs)
    return entropy


def pixel_calibration(probs: Tensor, graders: Tensor, bins: int = 15) -> PixelCalibration:
    r"""Mean gap between a pixel's probability and the share of graders who marked it, over equal-width bins.

    $$\sum_b \frac{n_b}{N} \left| \mathrm{frequency}_b - \mathrm{confidence}_b \right|$$

    Bin b of B holds probabilities of the foreground in ((b − 1)/B, b/B], the first also 0; all pixels of all images are
    pooled, and the frequency is the mean over a bin's pixels of the share of graders.

    Note: Most pixels are background and nobody doubts it, so that the error is small where objects are: compare it
        within one data set only.

    Args:
        probs: Probabilities of the foreground, (B, H, W).
        graders: Masks (B, G, H, W).
        bins: Number of bins, at least 1.

    >>> pixel_calibration(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[[1, 1]], [[1, 1]]]]), bins=2).error
    tensor(0.2500, dtype=torch.float64)
    """
    check_count("pixel_calibration", "bins", bins)
    sums = PixelSums(bins)
    sums.add(probs, graders)
    return sums.calibration()


class PixelSums:
    """`pixel_calibration` of images that come batch by batch: sums over the pixels of each bin, and no pixel is kept.

    Args:
        bins: Number of bins, at least 1.

    >>> sums = PixelSums(bins=2)
    >>> for prob in (0.5, 1.0):
    ...     sums.add(torch.tensor([[[prob]]]), torch.tensor([[[[1]], [[1]]]]))
    >>> sums.calibration().error
    tensor(0.2500, dtype=torch.float64)
    """

    def __init__(self, bins: int = 15) -> None:
        check_count("PixelSums", "bins", bins)
        self.count = torch.zeros(bins, dtype=torch.int64)
        self.confidence = torch.zeros(bins, dtype=torch.float64)
        self.share = torch.zeros(bins, dtype=torch.float64)

    def add(self, probs: Tensor, graders: Tensor) -> None:
        """Count the pixels of some images: probabilities of the foreground (B, H, W), and masks (B, G, H, W)."""
        name, bins = "pixel_calibration", len(self.count)
        (graders,) = checked_sets(name, graders=graders)
        confidence = _checked_probs(name, probs)
        wanted = (graders.size(0), *graders.shape[2:])
        if confidence.shape != wanted:
            raise ValueError(f"{name}: probs must be of shape {wanted}, as graders are; got {tuple(probs.shape)}")
        confidence, share = confidence.flatten(), graders.double().mean(1).cpu().flatten()
        index = torch.bucketize(confidence, torch.arange(1, bins, dtype=torch.float64) / bins)
        self.count += torch.bincount(index, minlength=bins)
        self.confidence += torch.bincount(index, confidence, minlength=bins)
        self.share += torch.bincount(index, share, minlength=bins)

    def calibration(self) -> PixelCalibration:
        """What has been counted so far, at least one pixel."""
        if not self.count.any():
            raise ValueError("PixelSums: no pixel was counted; add images first")
        error = (self.confidence - self.share).abs().sum() / self.count.sum()
        held = self.count.clamp_min(1)
        return PixelCalibration(error, self.count.clone(), self.confidence / held, self.share / held)


def _checked_probs(name: str, probs: Tensor) -> Tensor:
    """Probabilities in float64 on the CPU."""
    check_tensor(name, "probs", probs)
    found = probs.detach().cpu().double()
    if not probs.is_floating_point() or not found.numel() or not bool(((found >= 0) & (found <= 1)).all()):
        raise ValueError(f"{name}: probs must be floats in [0, 1], not empty (logits?); got {tuple(probs.shape)}")
    return found
