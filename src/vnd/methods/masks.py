r"""What segmenting methods share: a Bernoulli likelihood of pixels, and masks that are drawn.

An image x has a mask y of 0 and 1, one of several that graders have drawn, and a network gives logits $\ell$ of its
pixels, foreground where they are greater than 0:

$$-\log p(y \mid \ell) = \sum_\text{pixels} \log(1 + e^{\ell}) - y\, \ell \quad \text{(nats of an image)}$$

All losses are sums over the pixels and means over images, so that the KL beside them is that of the bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.functional import to_float32
from vnd.methods.base import Size
from vnd.methods.codes import Coded
from vnd.models.unet import ProbabilisticUNet, UNet
from vnd.nn import Prediction
from vnd.nn.state import unwrap

Drawer = Callable[[Tensor, int], Tensor]  # from images (B, 1, H, W) and n to logits (n, B, H, W)
LOG_VARIANCE = (-10.0, 4.0)  # what log σ² of a latent lies between
PIXELS = 2**23  # times samples in one pass of the combiner: 1 GiB for each of its layers of 32 channels


class Segmenter(ABC):
    """A method that draws masks of images."""

    task = "segmentation"

    @abstractmethod
    def drawer(self, model: nn.Module, size: Size) -> Drawer:
        """What draws n masks of each image of a batch, as logits (n, B, H, W), without gradient.

        The network runs as in evaluation and is left as it was. Where weights are drawn, those of sample i are the
        same for all images of the batch; where a latent is, each image has its own.
        """

    def distinct(self, model: nn.Module) -> int | None:
        """How many masks of an image it has to draw from; None where no two draws are the same."""
        return None

    def others(self, model: nn.Module) -> list[Size]:
        """Sizes that it can be read at beside those that are wanted."""
        return []

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """Refused: it answers with masks, not with probabilities of classes."""
        raise ValueError("a segmenting method predicts no classes; use vnd evaluate and vnd segment")


class Probabilistic(Segmenter, Coded):
    """A method whose model is a probabilistic UNet: the latent of an image is drawn, the weights are not."""

    called = "latent"
    who = "probabilistic UNets"

    def dimensions(self, model: nn.Module) -> int:
        """Of the latent."""
        return int(probabilistic(model).config["latent"])

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with the heads of this method."""
        if not isinstance(network, ProbabilisticUNet):
            raise ValueError(
                f"network.name must be probabilistic_unet for a method that draws latents; "
                f"got a {type(network).__name__}"
            )
        return ProbabilisticUNet(**network.config | {"heads": self.heads(network.config["latent"])})

    def drawer(self, model: nn.Module, size: Size) -> Drawer:
        """What draws latents of a size's length from the prior, and makes masks of them."""
        network = probabilistic(model)

        @torch.no_grad()
        def draw(images: Tensor, count: int) -> Tensor:
            with evaluating(network):
                h = self.prior_draws(network, images, count, size)
                features = network.unet(images)
                at_once = max(1, PIXELS // images[:, 0].numel())
                return torch.cat([to_float32(network.combine(features, part)) for part in h.split(at_once)])

        return draw

    def prior_draws(self, network: ProbabilisticUNet, images: Tensor, count: int, size: Size) -> Tensor:
        """Latents drawn from the prior, of the length of a size, (count, B, b)."""
        loc, scale = normal_of(network.describe(images))
        noise = torch.randn(count, *loc.shape, dtype=loc.dtype, device=loc.device)
        return (loc + scale * noise)[..., : self.length(network, size)]


def likelihood(logits: Tensor, masks: Tensor) -> Tensor:
    """Negative log-likelihood of masks (…, H, W), summed over their pixels, in nats, float32 or wider."""
    logits = to_float32(logits)
    each = F.binary_cross_entropy_with_logits(logits, masks.to(logits.dtype).expand_as(logits), reduction="none")
    return each.sum((-2, -1))


def normal_of(heads: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    r"""Means and deviations of a latent from what a net says of it, float32 or wider, (batch, dimensions) each.

    The log variance is $c + r \tanh((v - c) / r)$ for the head's v, within `LOG_VARIANCE` = c ∓ r: nearly v itself in
    the middle, and at no v without gradient, so that one at a bound can come back. Between these bounds the ratio of
    two variances, which the KL takes, is a number also in float32.
    """
    low, high = LOG_VARIANCE
    centre, reach = (low + high) / 2, (high - low) / 2
    log_variance = centre + reach * ((to_float32(heads["log_variance"]) - centre) / reach).tanh()
    return to_float32(heads["loc"]), (0.5 * log_variance).exp()


def probabilistic(model: nn.Module) -> ProbabilisticUNet:
    """The probabilistic UNet that a model is."""
    root = unwrap(model)
    assert isinstance(root, ProbabilisticUNet)
    return root


def check_unet(network: nn.Module) -> dict[str, Any]:
    """The arguments of a UNet of one logit a pixel; any other network is refused."""
    if not isinstance(network, UNet):
        raise ValueError(f"network.name must be unet for this method; got a {type(network).__name__}")
    if network.config["num_classes"] != 1:
        raise ValueError(
            f"network.num_classes must be 1, the foreground's logit, to segment; got {network.config['num_classes']}"
        )
    return network.config


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """A network in evaluation mode, then as it was."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
