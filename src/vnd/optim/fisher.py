"""Povey's Fisher factors, one low-rank-plus-identity matrix for each axis of a parameter, and their updates."""

from collections import namedtuple
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOOR = 5e-4  # δ, the smallest eigenvalue of a factor over its largest
LIFT = 1e-6  # the smallest ρ over the trace of a scatter to be mixed in

# Factors F = RᵀDR + ρI of n parameters, and E = D (D + βI)⁻¹: tensors (n, r, d), (n, r), (n,), (n, r).
Factor = namedtuple("Factor", ("basis", "strength", "rest", "shrinkage"))


class Observed(NamedTuple):
    """An observation for a factor: $R X X^⊤$, the square of the norm of X, on any scale, and the trace of S."""

    factor: Factor
    options: Any
    scattered: Tensor
    square: Tensor
    power: Tensor


def by_kind(seen: Iterable[Observed]) -> list[list[Observed]]:
    """Sort by what updates must have in common to be made together."""
    kinds = dict[Any, list[Observed]]()
    for one in seen:
        basis = one.factor.basis
        kinds.setdefault((one.options, basis.shape[1:], basis.dtype, basis.device), []).append(one)
    return list(kinds.values())


class PendingUpdate:
    """An update between its halves: $Y = R T$ over its largest entry, and $Y Y^⊤$, or by now its eigenvectors.

    Of all factors of a kind: a few kernels for many, where each has too little work for a device.
    """

    def __init__(self, seen: list[Observed]) -> None:
        factors, options, *given = zip(*seen, strict=True)
        self.factors = [Factor(*factor) for factor in factors]
        scattered, square, power = (torch.cat(x) for x in given)
        basis, strength, rest = (torch.cat([factor[i] for factor in self.factors]) for i in range(3))
        _, self.alpha, eta, self.epsilon, _ = options[0]
        size, lifted = basis.shape[2], torch.maximum(rest, LIFT * power)
        made = scattered.double() * (eta * power / torch.where(square > 0, square, 1.0))[:, None, None]
        made += ((1 - eta) * (strength + lifted[:, None]))[:, :, None] * basis
        self.least = (1 - eta) * lifted
        self.trace = eta * power + (1 - eta) * (size * lifted + strength.sum(1))
        self.scale = made.abs().amax((1, 2))
        self.usable = power.isfinite() & self.scale.isfinite()
        self.sketch = made.div_(self.scale[:, None, None])
        self.gram = torch.where(self.usable[:, None, None], made @ made.mT, identity(made))

    def finish(self) -> None:
        """Give the factors their new values, in place; the old ones stay where a gradient was not finite."""
        rank, size = self.sketch.shape[1:]
        rows = self.gram.mT @ self.sketch
        roots = torch.linalg.vector_norm(rows, dim=2)  # of the eigenvalues, the smallest of which are lost in C
        basis = rows / roots[:, :, None]
        usable = self.usable & ((basis @ basis.mT - identity(basis)).abs().amax((1, 2)) < 1e-4)  # false for NaN
        roots = torch.maximum(roots * self.scale[:, None], self.least[:, None])
        rest = (self.trace - roots.sum(1)) / (size - rank)
        floor = (FLOOR * roots.amax(1)).clamp(min=self.epsilon)
        strength, rest = torch.maximum(roots - rest[:, None], floor[:, None]), torch.maximum(rest, floor)
        new = basis, strength, rest, shrinkage_of(strength, rest, size, self.alpha)
        for was, now in zip(zip(*self.factors, strict=True), new, strict=True):
            kept = torch.where(usable.view(-1, *[1] * (now.ndim - 1)), now.to(was[0].dtype), torch.cat(was))
            torch._foreach_copy_(was, kept.split([len(x) for x in was]))


def shrinkage_of(strength: Tensor, rest: Tensor, size: int, alpha: float) -> Tensor:
    """E, of strengths (…, r) and rests (…,)."""
    return strength / (strength + ((1 + alpha) * rest + alpha / size * strength.sum(-1))[..., None])


def identity(x: Tensor) -> Tensor:
    """The identity matrix that may stand on the left of x, (n, d, m)."""
    return torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
