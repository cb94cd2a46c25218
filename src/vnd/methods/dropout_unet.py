"""Dropout UNet: a UNet whose inner blocks drop activations, in training and when masks are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vnd.functional import to_float32
from vnd.methods.method import Batch, Size, Step, Terms, register
from vnd.methods.segmenting import Drawer, Segmenter, check_unet, evaluating, likelihood
from vnd.methods.single import Single
from vnd.methods.traits import DOTTED, Traits, mc
from vnd.models.unet import UNet
from vnd.nn.state import unwrap


@register("dropout_unet", Traits(rank=18, name="dropout UNet", looks=mc("#cc79a7", "X", DOTTED)))
@dataclass(frozen=True)
class DropoutUNet(Segmenter, Single):
    r"""Learn with dropout, and leave it on: every pass draws a mask.

    $$\mathcal L = -\log p(y \mid x, ξ), \qquad ξ \sim \mathrm{Bernoulli}(1 - \text{rate})$$

    Bayesian SegNet (Kendall et al., 2015), as Kohl et al. (2018) hold the probabilistic UNet against it.

    Args:
        rate: Probability that an input of an inner block is dropped; see `UNet`.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must lie in (0, 1); got {self.rate}")

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with dropout."""
        return UNet(**check_unet(network) | {"dropout": self.rate})

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Negative log-likelihood, a mean over the images."""
        surprise = likelihood(model(batch[0]).squeeze(1), batch[1]).mean()
        return Terms(surprise, {"nll": surprise.detach()})

    def drawer(self, model: nn.Module, size: Size) -> Drawer:
        """What runs the network with dropout, but with BatchNorm's statistics of training."""
        network = unwrap(model)

        @torch.no_grad()
        def draw(images: Tensor, count: int) -> Tensor:
            with evaluating(network):
                for module in network.modules():
                    if isinstance(module, nn.Dropout):
                        module.train()
                return torch.stack([to_float32(network(images).squeeze(1)) for _ in range(count)])

        return draw
