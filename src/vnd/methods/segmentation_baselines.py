"""The segmenters that VND-PUNet is held against: BN³ on a UNet, a UNet with dropout, an ensemble of UNets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal  # noqa: F401  # jsonargparse looks here for what inherited options name

import torch
from torch import Tensor, nn

from vnd.methods.base import (
    DASH_DOTS,
    DOTTED,
    Batch,
    Single,
    Size,
    Step,
    Terms,
    Traits,
    mc,
    refuse_several_processes,
    register,
)
from vnd.methods.bn3 import BN3
from vnd.methods.vnd_punet import Segmenter, check_unet, likelihood
from vnd.models.unet import EnsembleUNet, UNet
from vnd.nn import BayesLayer
from vnd.nn.state import unwrap


@register("bn3_unet", Traits(rank=15, name="BN³-UNet", order="learned", looks=mc("#009e73", "^", "-.")))
@dataclass(frozen=True)
class BN3UNet(Segmenter, BN3):
    r"""Learn the order of a UNet's channels together with a posterior over its weights.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w, z) + \frac{κ}{N}\, \mathrm{KL}(q(w, z) \,\|\, p(w, z))$$

    with the likelihood of all pixels of a mask. Its options are those of `BN3`, but for a sandwich and smoothed labels,
    which are of classes. Paper: Sec. 6.3, 32 groups, 6 of them always kept.

    A mask is that of one draw of the weights for all positions, whatever estimator training had: outputs that are drawn
    by themselves, each pixel for itself, would be a mask with noise and not one of many masks.
    """

    base: int = 6
    student: ClassVar[None] = None  # masks are not distilled

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, none in (("sandwich", False), ("label_smoothing", 0.0)):
            if getattr(self, name) != none:
                raise ValueError(
                    f"{name} is of classes, and bn3_unet has masks; leave it out, got {getattr(self, name)}"
                )

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a UNet."""
        check_unet(network)
        return super().build(network, example)

    def distinct(self, model: nn.Module) -> int | None:
        """Any number; one of point weights."""
        return None if self.bayesian else 1

    def ready(self, model: nn.Module, size: Size) -> nn.Module:
        """The network of a size, every pass of which draws weights for all positions."""
        network = self.extract(model, size.width, "posterior").eval()
        for module in network.modules():
            if isinstance(module, BayesLayer):
                module.sampling, module.estimator = True, "weight"
        return network

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """One for each draw of the weights; of point weights, one pass for all."""
        drawn = super().masks(network, images, count if self.bayesian else 1, size)
        return drawn.expand(count, -1, -1, -1)

    def _likelihood(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return likelihood(model(images).squeeze(1), labels).mean()


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

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with dropout."""
        return UNet(**check_unet(network) | {"dropout": self.rate})

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Negative log-likelihood, a mean over the images."""
        surprise = likelihood(model(batch[0]).squeeze(1), batch[1]).mean()
        return Terms(surprise, {"nll": surprise.detach()})

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """One a pass, with dropout, but with BatchNorm's statistics of training."""
        dropouts = [module for module in network.modules() if isinstance(module, nn.Dropout)]
        for dropout in dropouts:
            dropout.train()
        try:
            return super().masks(network, images, count, size)
        finally:
            for dropout in dropouts:
                dropout.eval()


@register("unet_ensemble", Traits(rank=17, name="UNet ensemble", looks=mc("#8a6d00", "v", DASH_DOTS)))
@dataclass(frozen=True)
class UNetEnsemble(Segmenter, Single):
    r"""Learn several UNets from different random starts, each for itself; sample i is the mask of member i mod M.

    $$\mathcal L = \sum_{m \le M} -\log p(y \mid x, w_m)$$

    A deep ensemble (Lakshminarayanan et al., 2017), as Kohl et al. (2018) hold the probabilistic UNet against it.

    Args:
        members: How many there are.
    """

    members: int = 4

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """So many networks like the given one."""
        config = check_unet(network)
        if config["dropout"]:
            raise ValueError(f"network.dropout must be 0 for unet_ensemble; got {config['dropout']}")
        return EnsembleUNet(config["in_channels"], config["channels"], self.members)

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Refuse several processes."""
        refuse_several_processes("ensembles of UNets")

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Negative log-likelihoods of all members, means over the images."""
        ensemble: Any = unwrap(model)
        surprises = likelihood(ensemble.logits(batch[0]), batch[1]).mean(1)
        return Terms(surprises.sum(), {"nll": surprises.detach().mean()})

    def distinct(self, model: nn.Module) -> int:
        """One for each member."""
        return self.members

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """Those of the members in turn."""
        each: Tensor = network.logits(images)
        return each[torch.arange(count, device=each.device) % len(each)]
