"""VND-PUNet, a probabilistic UNet whose latent is ordered, and P-UNet, whose latent has one length (Kohl et al.)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vnd.distributions import OrderedNormal
from vnd.distributions.kl import normal_kl, ordered_normal_kl
from vnd.functional import to_float32
from vnd.methods.base import DASHED, Batch, Size, Step, Terms, Traits, check, mc, register
from vnd.methods.codes import length_of
from vnd.methods.masks import Probabilistic, likelihood, normal_of, probabilistic
from vnd.models.unet import ProbabilisticUNet


@register("punet", Traits(rank=16, name="P-UNet", reference=True, looks=mc("#d55e00", "s", DASHED)))
@dataclass(frozen=True)
class PUNet(Probabilistic):
    r"""Learn a latent whose draws from p(h | x) give the masks that graders draw.

    $$\mathcal L = -\log p(y \mid x, h) + κ\, \mathrm{KL}[q(h \mid x, y) ‖ p(h \mid x)], \qquad h \sim q(h \mid x, y)$$

    with Gaussians q and p of independent dimensions, y the mask of one grader, and κ the schedule's `kl_weight`. Kohl
    et al. (2018), whose κ is 10.
    """

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The negative bound on the likelihood, a mean over the images."""
        (images, masks), network = batch, probabilistic(model)
        loc, scale = normal_of(network.describe(images, masks))
        divergence = normal_kl(loc, scale, *normal_of(network.describe(images))).sum(1).mean()
        h = loc + scale * torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
        surprise = likelihood(network.combine(network.unet(images), h), masks).mean()
        total = surprise + step.kl_weight * divergence
        return Terms(total, {"nll": surprise.detach(), "kl": divergence.detach()})


@register("vnd_punet", Traits(rank=14, name="VND-PUNet", order="learned", looks=mc("#0072b2", "o")))
@dataclass(frozen=True)
class VNDPUNet(Probabilistic):
    r"""Learn an order of the latent's dimensions, and for each image how many of them its masks need.

    $$\mathcal L = -\log p(y \mid x, z ∘ h) + κ\, \mathrm{KL}, \qquad
      \mathrm{KL} = \mathrm{KL}[q(z \mid x, y) ‖ p(z \mid x)] + \sum_i P_q(z_i = 1)\, κ_i$$

    with z and h drawn from the posterior, both ends `OrderedNormal`s: Gaussians gated by a Downhill, whose means,
    variances and keep logits the nets give, $κ_i$ the KL of the Gaussians of dimension i. Paper: Sec. 4.2.

    With `fractions`, a share of the loss is that of latents of fixed lengths b, charged $\sum_{i \le b} κ_i$, in every
    step, beside the one of a drawn length; the features of an image are computed once for all.

    Note: The paper writes $\sum_i β_i (\log \frac{β_i}{p_i} + κ_i)$ with β the probabilities of lengths, which charges
        a dimension only where it is the last; see docs/errata.md.

    Args:
        base: Dimensions that are always kept.
        initial_logit: Where the keep logits of prior and posterior start.
        fractions: Shares of the latent that are trained in every step.
        fixed_share: Their share of the loss.
    """

    ordered = True
    base: int = 2
    initial_logit: float = 3.0
    fractions: tuple[float, ...] = ()
    fixed_share: float = 0.5

    def __post_init__(self) -> None:
        check(self)

    def heads(self, code: int) -> dict[str, int]:
        """Means, log variances, and keep logits of the dimensions beyond the base."""
        if not self.base < code:
            raise ValueError(f"network.latent must be greater than method.base = {self.base}; got {code}")
        return {**super().heads(code), "keep_logits": code - self.base}

    @torch.no_grad()
    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with the heads of this method, its latents long at first."""
        model = probabilistic(super().build(network, example))
        for net in (model.prior, model.posterior):
            head = net.heads["keep_logits"]
            assert isinstance(head, nn.Linear)
            head.weight.mul_(0.1)
            head.bias.fill_(self.initial_logit)
        return model

    def latent(self, model: nn.Module, images: Tensor, masks: Tensor | None, temperature: float) -> OrderedNormal:
        """The prior over the latent of images, or with their masks the posterior."""
        heads = probabilistic(model).describe(images, masks)
        return OrderedNormal(*normal_of(heads), to_float32(heads["keep_logits"]), temperature, validate_args=False)

    def others(self, model: nn.Module) -> list[Size]:
        """Lengths that are drawn from the prior as well, as the paper draws them at a test."""
        return [Size("sampled", "drawn", None)]

    def prior_draws(self, network: ProbabilisticUNet, images: Tensor, count: int, size: Size) -> Tensor:
        """Latents drawn from the prior: of the length of a size, or each of a length that is drawn too."""
        if size.kind != "sampled":
            return super().prior_draws(network, images, count, size)
        return self.latent(network, images, None, 1.0).sample((count,))

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The negative bound on the likelihood for a drawn length, and for those of every step."""
        (images, masks), network = batch, probabilistic(model)
        posterior, prior = (self.latent(model, images, y, step.temperature) for y in (masks, None))
        fixed = [length_of(posterior.event_shape[0], fraction, self.base) for fraction in self.fractions]
        drawn = posterior.rsample(hard=True)
        h = torch.stack([drawn, *(posterior.rsample(length=length) for length in fixed)])
        surprises = likelihood(network.combine(network.unet(images), h), masks).mean(1)
        cost = normal_kl(posterior.loc, posterior.scale, prior.loc, prior.scale)
        own = ordered_normal_kl(posterior, prior).mean()
        rates = torch.stack([own, *(cost[:, :length].sum(1).mean() for length in fixed)])
        share = self.fixed_share if fixed else 0.0
        total = (1 - share) * (surprises[0] + step.kl_weight * rates[0])
        if fixed:
            total = total + share * (surprises + step.kl_weight * rates)[1:].mean()
        parts = {
            "nll": surprises[0],
            "kl": own,
            "length": posterior.expected_length.mean(),
            "prior_length": prior.expected_length.mean(),
        }
        return Terms(total, {name: value.detach() for name, value in parts.items()})
