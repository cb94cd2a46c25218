r"""The mathematics of ordered masks and weight priors, as plain functions of tensors.

A chain of $n$ nested units has $n + 1$ ordered masks: `length` leading ones, then zeros. Its parameters are the
conditional keep logits $m_1 … m_n$, with $μ_i = σ(m_i) = P(z_i = 1 \mid z_{i-1} = 1)$. Everything here stays in log
space and in float32 or wider: products of a thousand probabilities leave the range of float32, and lengths leave
that of float16.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

LogUniformForm = Literal["vnd", "exact", "molchanov", "kingma"]

CONCENTRATION_FLOOR, LARGEST_LOG_CONCENTRATION = 0.01, 10.0  # of the Dirichlet that outputs stand for


def to_float32(x: Tensor) -> Tensor:
    """Return `x` in float32 or wider, the precision in which log-probabilities are computed.

    >>> to_float32(torch.ones(2, dtype=torch.bfloat16)).dtype, to_float32(torch.ones(2, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def log_survival(keep_logits: Tensor) -> Tensor:
    r"""Log probability that each unit is kept, $S_i = \sum_{k ≤ i} \log σ(m_k) = \log P(z_i = 1)$, (…, n) to (…, n).

    Paper: Eq. (2), the marginal of $z_i$.

    >>> log_survival(torch.tensor([0.0, 0.0])).exp()
    tensor([0.5000, 0.2500])
    """
    return F.logsigmoid(to_float32(keep_logits)).cumsum(-1)


def length_log_probs(keep_logits: Tensor) -> Tensor:
    r"""Log probability of each length, $\log q_j = S_j + \log σ(-m_{j+1})$ for $j < n$ and $\log q_n = S_n$.

    Paper: $p(\mathbf v_j) = (1 - π_{j+1}) \prod_{k ≤ j} π_k$ with $π_{n+1} = 0$, Eq. (10) and (A9). Shapes: (…, n) to
    (…, n + 1).

    >>> length_log_probs(torch.tensor([0.0, 0.0])).exp()
    tensor([0.5000, 0.2500, 0.2500])
    """
    keep_logits = to_float32(keep_logits)
    return F.pad(log_survival(keep_logits), (1, 0)) + F.pad(F.logsigmoid(-keep_logits), (0, 1))


def keep_logits_from_lengths(length_logits: Tensor) -> Tensor:
    r"""Conditional keep logits of a length distribution, $m_i = \log \sum_{j ≥ i} q_j - \log q_{i-1}$.

    The inverse of `length_log_probs`, (…, n + 1) to (…, n); the logits need no normalisation. A unit that is never
    reached (its tail and the step before it both have probability zero) gets the logit $-∞$.

    >>> keep_logits_from_lengths(torch.tensor([0.5, 0.25, 0.25]).log())
    tensor([0., 0.])
    """
    length_logits = to_float32(length_logits)
    floor = 0.25 * torch.finfo(length_logits.dtype).min  # stands for -∞, which has no gradient in a logcumsumexp
    tail = length_logits[..., 1:].clamp(min=floor).flip(-1).logcumsumexp(-1).flip(-1)
    return torch.where(tail <= 0.5 * floor, -torch.inf, tail - length_logits[..., :-1])


def suffix_sum(x: Tensor) -> Tensor:
    """Sum of each entry and all that follow it along the last dimension, (…, n) to (…, n).

    >>> suffix_sum(torch.tensor([1.0, 2.0, 3.0]))
    tensor([6., 5., 3.])
    """
    return x.flip(-1).cumsum(-1).flip(-1)


def length_mask(length: Tensor, num_units: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ordered masks of the given lengths, (…) to (…, num_units).

    >>> length_mask(torch.tensor([0, 2]), 3)
    tensor([[0., 0., 0.],
            [1., 1., 0.]])
    """
    return (torch.arange(num_units, device=length.device) < length.unsqueeze(-1)).to(dtype)


def pick(log_probs: Tensor, length: Tensor) -> Tensor:
    """The entry of `log_probs` (…, n + 1) at each length (…), the two broadcast against each other.

    >>> pick(torch.tensor([[0.1, 0.2, 0.7]]), torch.tensor([[2]]))
    tensor([[0.7000]])
    """
    log_probs, index = torch.broadcast_tensors(log_probs, length.unsqueeze(-1))
    return log_probs.gather(-1, index[..., :1]).squeeze(-1)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """Exactly `hard` forward, the gradient of `soft` backward.

    The difference of `soft` and itself is zero to the last bit, so a mask stays made of exact zeros and ones.

    >>> soft = torch.tensor([0.2, 0.9], requires_grad=True)
    >>> straight_through(torch.tensor([0.0, 1.0]), soft).sum().backward()
    >>> soft.grad
    tensor([1., 1.])
    """
    return hard + (soft - soft.detach())


def log_exponential_noise(shape: torch.Size, like: Tensor) -> Tensor:
    """Log of Exp(1) noise, the negative of standard Gumbel noise; always finite, on the device of `like`.

    From uniform numbers: on a CPU that is several times faster than `Tensor.exponential_`, with the resolution of
    the dtype (2⁻²⁴ in float32) that CUDA's exponential has as well.

    >>> log_exponential_noise(torch.Size((2, 3)), like=torch.zeros(())).shape
    torch.Size([2, 3])
    """
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device)
    return uniform.clamp_min_(0.25 * torch.finfo(like.dtype).eps).log_().neg_().log_()


def gated_kl(log_survival: Tensor, kept: Tensor, dropped: Tensor | None = None) -> Tensor:
    r"""Expected KL of units that are kept with probability $P(z_i = 1)$, summed over the units.

    $$Φ_2 = \sum_i \left[ P(z_i = 1)\, κ^1_i + P(z_i = 0)\, κ^0_i \right]$$

    with $\log P(z_i = 1)$, $κ^1$ and $κ^0$ (…, n), to nats (…). Paper: Eq. (12),
    $e^T κ^0 (J - J_L)^T β + e^T κ^1 J_L^T β$; $κ^0 = 0$, as for a shared spike, if `dropped` is None.

    >>> gated_kl(torch.tensor([0.5, 0.25]).log(), torch.tensor([2.0, 4.0]))
    tensor(2.)
    """
    total = (log_survival.exp() * kept).sum(-1)
    if dropped is not None:
        total = total - (torch.expm1(log_survival) * dropped).sum(-1)
    return total


def log_uniform_kl(log_alpha: Tensor, form: LogUniformForm = "vnd", offset: float | None = None) -> Tensor:
    r"""KL of $\mathcal N(θ, αθ^2)$ from the log-uniform prior, elementwise, in nats.

    $$\mathrm{KL} = C - \left(\tfrac12 \log α - \mathbb E_{ε \sim \mathcal N(0, 1)} \log |1 + \sqrt α\, ε|\right)$$

    Paper: Eq. (16) and its approximation (17). The forms are

    - `vnd`: the paper's fit. A deliberate regulariser: it is smallest at log α ≈ 1.03, so α stays finite.
    - `exact`: the expectation itself, to the precision of the dtype.
    - `molchanov`: the fit of sparse variational dropout, smallest as α → ∞.
    - `kingma`: the cubic fit of variational dropout, with α clamped to at most 1.

    C is `offset`, by default the one that makes the smallest KL of the form 0. Any shape, float32 or wider.

    Note:
        The log-uniform prior is improper, so the objective that it gives is no evidence bound (Hron et al., 2018),
        and the KL is known up to C only. C is not cosmetic: a unit that is kept with probability P(z) pays P(z)·KL.
        Without an offset the paper's form is negative for log α > −0.64 and would reward width.

    >>> log_uniform_kl(torch.tensor([-8.0, 0.0]), form="exact")
    tensor([4.6350, 0.4267])
    """
    if form not in _LOG_UNIFORM:
        raise ValueError(f"form must be one of {', '.join(get_args(LogUniformForm))}; got {form!r}")
    function, constant = _LOG_UNIFORM[form]
    divergence = function(to_float32(log_alpha))
    return divergence if offset is None else divergence + (offset - constant)


def log_uniform_constant(form: LogUniformForm, offset: float | None = None) -> float:
    """The constant C in `log_uniform_kl`: `offset`, or else the one that makes the smallest KL of the form 0.

    >>> log_uniform_constant("vnd"), log_uniform_constant("vnd", offset=0.0)
    (0.547125, 0.0)
    """
    return _LOG_UNIFORM[form][1] if offset is None else offset


# The constant C of each form that makes its smallest KL zero (a hair more, so that rounding stays above it).
_VND, _MOLCHANOV, _KINGMA = 0.547125, 0.63576, 0.2457092701
_EXACT = 0.5 * (0.5772156649015329 + math.log(2.0))


def _vnd_kl(log_alpha: Tensor) -> Tensor:
    bump = 0.7294 * torch.exp(-math.exp(0.5387) * (0.3492 * log_alpha - 0.2041).square())
    return (_VND - bump) + 0.5 * F.softplus(-log_alpha)


def _molchanov_kl(log_alpha: Tensor) -> Tensor:
    return _MOLCHANOV * torch.sigmoid(-1.87320 - 1.48695 * log_alpha) + 0.5 * F.softplus(-log_alpha)


def _kingma_kl(log_alpha: Tensor) -> Tensor:
    log_alpha = log_alpha.clamp(max=0.0)
    alpha = log_alpha.exp()
    cubic = alpha * (1.16145124 + alpha * (-1.50204118 + alpha * 0.58629921))
    return (_KINGMA - cubic - 0.5 * log_alpha).clamp(min=0.0)


def concentration(outputs: Tensor) -> Tensor:
    r"""Concentration of the Dirichlet that outputs z stand for, $a = ε + e^{z - \max(0, \max_c z_c - 10)}$, ε = 0.01.

    Its mean $a / a_0$ is softmax(z) but for ε; the scale of $e^z$ says how sure it is of that mean. ε keeps samples and
    their gradients finite; beyond $e^{10}$, that is a deviation below 0.004, it is no surer. The gradient is that of
    outputs less a constant, so that one beyond can learn to be less sure. Outputs are those of a student of SN³,
    (batch, classes, …).

    >>> concentration(torch.tensor([[0.0, 20.0]]))
    tensor([[1.0045e-02, 2.2026e+04]])
    """
    outputs = to_float32(outputs)
    excess = outputs.detach().amax(1, keepdim=True) - LARGEST_LOG_CONCENTRATION
    return CONCENTRATION_FLOOR + (outputs - excess.clamp(min=0)).exp()


class _ExactLogUniformKL(torch.autograd.Function):
    r"""The exact KL and its derivative, both without cancellation, from $λ = 1 / (2α)$.

    $$\mathrm{KL} = \tfrac12 \sum_j \mathrm{Pois}(j; λ) \left[ψ(j + \tfrac12) - ψ(\tfrac12)\right], \qquad
      \frac{d\,\mathrm{KL}}{d \log α} = -s\,D(s) = -\sum_j \mathrm{Pois}(j; λ) \frac{λ}{2j + 1},$$

    with $s = \sqrt λ$ and Dawson's function $D$. Beyond λ = 40 the sums give way to their asymptotic series in α.
    """

    SWITCH, TERMS, ASYMPTOTIC_TERMS = 40.0, 130, 20

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        cls, log_alpha = _ExactLogUniformKL, given.double()  # the terms of the sum lose four digits in float32
        rate = (0.5 * torch.exp(-log_alpha)).clamp(max=cls.SWITCH)
        log_rate = (-log_alpha - math.log(2.0)).clamp(max=math.log(cls.SWITCH))
        value, slope, harmonic = torch.zeros_like(rate), torch.zeros_like(rate), 0.0
        for j in range(cls.TERMS):
            poisson = torch.exp(j * log_rate - rate - math.lgamma(j + 1))
            value += 0.5 * harmonic * poisson
            slope += poisson / (2 * j + 1)
            harmonic += 1 / (j + 0.5)
        slope *= rate

        alpha = torch.exp(log_alpha).clamp(max=0.5 / cls.SWITCH)
        far, far_slope, term = -0.5 * log_alpha + _EXACT, torch.full_like(alpha, 0.5), torch.ones_like(alpha)
        for k in range(1, cls.ASYMPTOTIC_TERMS + 1):
            term = term * (2 * k - 1) * alpha
            far = far - term / (2 * k)
            far_slope = far_slope + 0.5 * term

        small = log_alpha < -math.log(2 * cls.SWITCH)
        ctx.save_for_backward(torch.where(small, far_slope, slope).to(given.dtype))
        return torch.where(small, far, value).to(given.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        slope: Tensor = ctx.saved_tensors[0]
        return -grad * slope


_LOG_UNIFORM: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "vnd": (_vnd_kl, _VND),
    "exact": (cast(Callable[[Tensor], Tensor], _ExactLogUniformKL.apply), _EXACT),
    "molchanov": (_molchanov_kl, _MOLCHANOV),
    "kingma": (_kingma_kl, _KINGMA),
}
