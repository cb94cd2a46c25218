"""Integrals over the density of a Downhill, in coordinates in which it is smooth."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vnd.distributions import Downhill

LOST = 1e-13  # increments below this have lost digits to the differences of z in float64


def grid(distribution: Downhill, points: int = 65, reach: float = 16.0) -> tuple[Tensor, Tensor]:
    r"""Points z (points, n) and weights of the trapezoid rule in $y_i = \log(c_i / c_0)$, $i = 1 … n$.

    The Jacobian $|∂z / ∂y|$ is $\prod_j c_j$ over all n + 1 increments. Each $τ y_i$ is logistic around
    $\log(q_i / q_0)$, so the mass beyond `reach` is e^{-reach}; the trapezoid rule converges faster than any power.
    """
    log_q = distribution.length_log_probs.detach().double()
    temperature = float(distribution.temperature)
    offset = torch.linspace(-reach, reach, points, dtype=torch.float64)
    y = torch.cartesian_prod(*((log_q[i] - log_q[0] + offset) / temperature for i in range(1, log_q.numel())))
    y = y.reshape(-1, log_q.numel() - 1)
    log_c = torch.nn.functional.pad(y, (1, 0)).log_softmax(-1)
    step = (offset[1] - offset[0]) / temperature
    kept = log_c.min(-1).values > math.log(LOST)
    z = log_c.exp()[:, 1:].flip(-1).cumsum(-1).flip(-1)
    return z[kept], log_c.sum(-1).exp()[kept] * step ** y.size(-1)


def integral(
    distribution: Downhill,
    of: Callable[[Tensor], Tensor] = lambda z: z.new_ones(z.shape[:-1]),
    log_prob: Callable[[Tensor], Tensor] | None = None,
    points: int = 65,
) -> Tensor:
    """E f(z) under a density, that of the distribution if none is given; differentiable in its parameters."""
    z, weights = grid(distribution, points)
    density = (log_prob or distribution.log_prob)(z).exp()
    assert density.isfinite().all(), "density: not finite"
    return (of(z) * density * weights).sum()
