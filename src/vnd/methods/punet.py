"""P-UNet: the probabilistic UNet of Kohl et al., whose latent has one length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vnd.distributions.kl import normal_kl
from vnd.methods.method import Batch, Step, Terms, register
from vnd.methods.segmenting import Probabilistic, likelihood, normal_of, probabilistic
from vnd.methods.traits import DASHED, Traits, mc


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
