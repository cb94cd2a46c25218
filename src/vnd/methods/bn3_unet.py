"""BN³ on a UNet: masks by drawing the weights of a nested network, at any width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vnd.functional import to_float32
from vnd.methods.bn3 import BN3
from vnd.methods.method import Size, register
from vnd.methods.segmenting import Drawer, Segmenter, check_unet, likelihood
from vnd.methods.traits import Traits, mc
from vnd.nn import BayesLayer


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

    def drawer(self, model: nn.Module, size: Size) -> Drawer:
        """What runs the network of a size, once for each draw of its weights; of point weights, once."""
        network = self.cut(model, size.width, samples=1).eval()
        for module in network.modules():
            if isinstance(module, BayesLayer):
                module.sampling, module.estimator = True, "weight"

        @torch.no_grad()
        def draw(images: Tensor, count: int) -> Tensor:
            if not self.bayesian:
                return to_float32(network(images).squeeze(1)).expand(count, -1, -1, -1)
            return torch.stack([to_float32(network(images).squeeze(1)) for _ in range(count)])

        return draw

    def _likelihood(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return likelihood(model(images).squeeze(1), labels).mean()
