"""An independent implementation of the laws, in NumPy and float64, written from the paper and not from the library."""

import functools

import numpy as np
import torch
from torch import Tensor

from examples import Ordering
from laws.statistics import ENERGY_SAMPLES, distribution_function

# Φ-like spacing towards both ends, well clear of the rounding of float32 beside 0 and 1.
THRESHOLDS = torch.sigmoid(torch.linspace(-9.0, 9.0, 257, dtype=torch.float64))


def length_probs(keep_logits: np.ndarray) -> np.ndarray:
    """P(length = j) by the plain product of conditionals."""
    keep = 1 / (1 + np.exp(-np.asarray(keep_logits, np.float64)))
    return np.append(np.cumprod(np.append(1.0, keep))[:-1] * (1 - keep), np.prod(keep))


def lengths(keep_logits: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Walk the chain: the length is the number of successes before the first failure."""
    keep = 1 / (1 + np.exp(-np.asarray(keep_logits, np.float64)))
    return np.cumprod(rng.random((size, keep.size)) < keep, axis=1).sum(1)


def descents(keep_logits: np.ndarray, temperature: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """Gumbel softmax over the lengths, then suffix sums."""
    with np.errstate(divide="ignore"):
        scores = (np.log(length_probs(keep_logits)) + rng.gumbel(size=(size, len(keep_logits) + 1))) / temperature
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return np.cumsum(weights[:, ::-1], axis=1)[:, ::-1][:, 1:]


def codes(ordering: Ordering, base: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Gaussian dimensions, zero from the length on."""
    position = np.arange(ordering.n + base)
    normal = np.cos(position) + (0.5 + np.sin(position) ** 2) * rng.standard_normal((size, position.size))
    kept = base + lengths(np.array(ordering.keep_logits), size, rng)
    return np.where(position < kept[:, None], normal, 0.0)


def downhill_sampler(ordering: Ordering, seed: int):
    rng = np.random.default_rng(seed)
    logits = np.array(ordering.keep_logits)
    return lambda size: torch.from_numpy(descents(logits, ordering.temperature, size, rng).copy())


@functools.cache
def downhill_marginals(ordering: Ordering, size: int) -> Tensor:
    return distribution_function(downhill_sampler(ordering, seed=1), THRESHOLDS, size)


@functools.cache
def downhill_vectors(ordering: Ordering) -> Tensor:
    return downhill_sampler(ordering, seed=2)(ENERGY_SAMPLES)
