"""Povey's Fisher factors, one low-rank-plus-identity matrix for each axis of a parameter, and their updates."""

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor

FLOOR = 5e-4  # δ, the smallest eigenvalue of a factor over its largest
LIFT = 1e-6  # the smallest ρ over the trace of a scatter to be mixed in

# Factors F = RᵀDR + ρI of n parameters, and E = D (D + βI)⁻¹: tensors (n, r, d), (n, r), (n,), (n, r).
Factor = namedtuple("Factor", ("basis", "strength", "rest", "shrinkage"))


class PendingUpdate:
    """An update between its halves: $Y = R T$ over its largest entry, and $Y Y^⊤$, or by now its eigenvectors.

    Made of $R X X^⊤$ and the square of the norm of X, on any common scale, and the trace of S.
    """

    def __init__(self, factor: Factor, options: Any, scattered: Tensor, square: Tensor, power: Tensor) -> None:
        _, self.alpha, eta, self.epsilon, _ = options
        size, lifted = factor.basis.shape[2], torch.maximum(factor.rest, LIFT * power)
        made = scattered.double() * (eta * power / torch.where(square > 0, square, 1.0))[:, None, None]
        made += ((1 - eta) * (factor.strength + lifted[:, None]))[:, :, None] * factor.basis
        self.factor, self.least = factor, (1 - eta) * lifted
        self.trace = eta * power + (1 - eta) * (size * lifted + factor.strength.sum(1))
        self.scale = made.abs().amax((1, 2))
        self.usable = power.isfinite() & self.scale.isfinite()
        self.sketch = made.div_(self.scale[:, None, None])
        self.gram = torch.where(self.usable[:, None, None], made @ made.mT, identity(made))

    def finish(self) -> None:
        """Give the factors their new values, in place; the old ones stay where a gradient was not finite."""
        rank, size = self.factor.basis.shape[1:]
        rows = self.gram.mT @ self.sketch
        roots = torch.linalg.vector_norm(rows, dim=2)  # of the eigenvalues, the smallest of which are lost in C
        basis = rows / roots[:, :, None]
        usable = self.usable & ((basis @ basis.mT - identity(basis)).abs().amax((1, 2)) < 1e-4)  # false for NaN
        roots = torch.maximum(roots * self.scale[:, None], self.least[:, None])
        rest = (self.trace - roots.sum(1)) / (size - rank)
        floor = (FLOOR * roots.amax(1)).clamp(min=self.epsilon)
        strength, rest = torch.maximum(roots - rest[:, None], floor[:, None]), torch.maximum(rest, floor)
        new = basis, strength, rest, shrinkage_of(strength, rest, size, self.alpha)
        for was, now in zip(self.factor, new, strict=True):
            was.copy_(torch.where(usable.view(-1, *[1] * (was.ndim - 1)), now.to(was.dtype), was))


def shrinkage_of(strength: Tensor, rest: Tensor, size: int, alpha: float) -> Tensor:
    """E, of strengths (…, r) and rests (…,)."""
    return strength / (strength + ((1 + alpha) * rest + alpha / size * strength.sum(-1))[..., None])


def identity(x: Tensor) -> Tensor:
    """The identity matrix that may stand on the left of x, (n, d, m)."""
    return torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
