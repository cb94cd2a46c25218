"""KL divergences between the library's distributions, registered with `torch.distributions.kl_divergence`."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, register_kl

from vnd.distributions.bernoulli_chain import BernoulliChain
from vnd.distributions.downhill import Downhill
from vnd.distributions.ordered_normal import OrderedNormal
from vnd.distributions.weights import LogUniform, MultiplicativeNormal
from vnd.functional import gated_kl, log_uniform_kl, to_float32


def chain_kl(posterior: BernoulliChain, prior: BernoulliChain) -> Tensor:
    r"""KL of one chain from another, (…), in nats.

    $$Φ_1 = \sum_j q_j (\log q_j - \log p_j)
         = \sum_i P(z_{i-1} = 1)\, \mathrm{KL}[\mathrm{Bern}(μ_i) ‖ \mathrm{Bern}(π_i)]$$

    Paper: $Φ_1$ (Sec. 3.3, App. A.1). The second form, by the chain rule, is a sum of terms that are never negative,
    so nothing cancels however long the chain.
    """
    if posterior.event_shape != prior.event_shape:
        raise ValueError(
            f"kl_divergence: the chains have {posterior.event_shape[0]} and {prior.event_shape[0]} units; "
            "they must have the same number"
        )
    q, p = to_float32(posterior.keep_logits), to_float32(prior.keep_logits)
    reached = F.pad(posterior.log_survival, (1, 0))[..., :-1].exp()
    step = _weighted(q, F.logsigmoid(q) - F.logsigmoid(p)) + _weighted(-q, F.logsigmoid(-q) - F.logsigmoid(-p))
    step = torch.where(reached > 0, step.clamp(min=0.0), 0.0)
    return (reached * step).sum(-1)


def downhill_chain_kl(posterior: Downhill, prior: BernoulliChain) -> Tensor:
    """KL in the limit of zero temperature, where a Downhill is the chain `posterior.chain` (paper: Property 2)."""
    return chain_kl(posterior.chain, prior)


def downhill_kl(posterior: Downhill, prior: Downhill) -> Tensor:
    """KL in the limit of zero temperature, between the two chains; the temperatures play no part."""
    return chain_kl(posterior.chain, prior.chain)


def ordered_normal_kl(posterior: OrderedNormal, prior: OrderedNormal) -> Tensor:
    r"""Exact KL of one ordered code from another with hard masks, (…), in nats, by the tail-sum form.

    $$\mathrm{KL} = Φ_1 + \sum_{i ≤ \text{base}} κ_i + \sum_{i > \text{base}} P(z_i = 1)\, κ_i,$$

    $κ_i$ the KL between the two Gaussians of dimension i; a dropped dimension is a spike at zero in both codes and
    costs nothing.

    Note:
        The paper writes $\sum_i β_i κ_i$, with β the length probabilities (App. A.5). That is right only if $κ_i$ is
        read as the KL of the whole prefix; see docs/errata.md.
    """
    if posterior.event_shape != prior.event_shape or posterior.base != prior.base:
        raise ValueError(
            f"kl_divergence: the codes have {posterior.event_shape[0]} dimensions, {posterior.base} always kept, and "
            f"{prior.event_shape[0]}, {prior.base} always kept; both must agree"
        )
    cost = normal_kl(posterior.loc, posterior.scale, prior.loc, prior.scale)
    always, nested = cost[..., : posterior.base].sum(-1), cost[..., posterior.base :]
    chain = posterior.gate.chain
    return chain_kl(chain, prior.gate.chain) + always + gated_kl(chain.log_survival, nested)


def normal_kl(loc: Tensor, scale: Tensor, prior_loc: Tensor, prior_scale: Tensor) -> Tensor:
    r"""KL of a Gaussian $\mathcal N(μ, σ^2)$ from another $\mathcal N(m, s^2)$, (…), in nats, float32 or wider.

    $$κ = \tfrac12 \left[ \frac{σ^2 + (μ - m)^2}{s^2} - 1 - \log \frac{σ^2}{s^2} \right]$$
    """
    loc, scale, prior_loc, prior_scale = (to_float32(x) for x in (loc, scale, prior_loc, prior_scale))
    ratio = (scale / prior_scale).square()
    return 0.5 * (ratio + ((loc - prior_loc) / prior_scale).square() - 1 - ratio.log())


def log_uniform_prior_kl(posterior: MultiplicativeNormal, prior: LogUniform) -> Tensor:
    """KL of each weight from the log-uniform prior, (…), in nats up to the prior's offset."""
    return log_uniform_kl(posterior.log_alpha, prior.form, prior.offset)


def gaussian_prior_kl(posterior: MultiplicativeNormal, prior: Normal) -> Tensor:
    r"""KL of each weight from a Gaussian prior $\mathcal N(m, s^2)$, (…), in nats.

    $$\mathrm{KL} = \tfrac12 \left[ \frac{σ^2 + (θ - m)^2}{s^2} - 1 - \log \frac{σ^2}{s^2} \right]$$

    Note:
        With σ² = αθ² it grows without bound as θ → 0: give the posterior a free `log_variance` instead.
    """
    log_ratio = to_float32(posterior.log_variance) - 2 * prior.scale.log()
    shift = (to_float32(posterior.loc) - prior.loc) / prior.scale
    return 0.5 * (log_ratio.exp() + shift.square() - 1 - log_ratio)


def _weighted(logits: Tensor, difference: Tensor) -> Tensor:
    """σ(logits) · difference, and 0 where the weight is 0 even if the difference is infinite or undefined."""
    weight = torch.sigmoid(logits)
    return weight * torch.where(weight > 0, difference, 0.0)


register_kl(BernoulliChain, BernoulliChain)(chain_kl)
register_kl(Downhill, BernoulliChain)(downhill_chain_kl)
register_kl(Downhill, Downhill)(downhill_kl)
register_kl(OrderedNormal, OrderedNormal)(ordered_normal_kl)
register_kl(MultiplicativeNormal, LogUniform)(log_uniform_prior_kl)
register_kl(MultiplicativeNormal, Normal)(gaussian_prior_kl)
