"""Temperature scaling: one number a width, fitted on validation images, that makes answers less or more sure."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BOUNDS = (-5.0, 5.0)  # of log T: at 0.007 every answer is sure, at 148 none
STEPS = 60


def scaled(probs: Tensor, temperature: float) -> Tensor:
    r"""Probabilities whose logits were divided by a temperature, (N, C): $\mathrm{softmax}(\log p / T)$.

    Those of a softmax are its logits up to a constant, so nothing but the probabilities is needed; for an average over
    draws this scales the average.

    >>> scaled(torch.tensor([[0.9, 0.1]]), 2.0)
    tensor([[0.7500, 0.2500]])
    """
    tiny = torch.finfo(probs.dtype).tiny
    return (probs.clamp_min(tiny).log() / temperature).softmax(1)


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    r"""The temperature that makes labels most likely: FN³-TS (paper, Sec. 6.1; Guo et al., 2017).

    $$T = \arg\min_T \sum_n -\log \mathrm{softmax}(\log p_n / T)_{y_n}$$

    The sum is convex in 1/T, so its derivative changes sign once: found by halving, in float64, to 1e-15 of log T.
    Where every answer is right the likelihood has no maximum, and nothing can be learned of how sure to be: T = 1.

    Args:
        probs: Class probabilities (N, C) of validation images.
        labels: Their classes (N,).
    """
    logits = probs.detach().cpu().clamp_min(torch.finfo(probs.dtype).tiny).double().log()  # as `scaled` has them
    own = logits.gather(1, labels.detach().cpu().long()[:, None])

    def slope(log_temperature: float) -> float:
        """Of the mean negative log-likelihood along 1/T: positive where T is too small."""
        weights = (logits / math.exp(log_temperature)).softmax(1)
        return float(((weights * logits).sum(1, keepdim=True) - own).mean())

    low, high = BOUNDS
    if slope(low) <= 0:
        return 1.0
    if slope(high) >= 0:
        return math.exp(high)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return math.exp((low + high) / 2)
