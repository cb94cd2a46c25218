"""An ensemble of UNets, each of which answers with its own mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vnd.functional import to_float32
from vnd.methods.method import Batch, Size, Step, Terms, refuse_several_processes, register
from vnd.methods.segmenting import Drawer, Segmenter, check_unet, evaluating, likelihood
from vnd.methods.single import Single
from vnd.methods.traits import DASH_DOTS, Traits, mc
from vnd.models.unet import EnsembleUNet
from vnd.nn.state import unwrap


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

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"members must be at least 1; got {self.members}")

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
        surprises = likelihood(_members(model).logits(batch[0]), batch[1]).mean(1)
        return Terms(surprises.sum(), {"nll": surprises.detach().mean()})

    def distinct(self, model: nn.Module) -> int:
        """One for each member."""
        return self.members

    def drawer(self, model: nn.Module, size: Size) -> Drawer:
        """What runs the members in turn."""
        network = _members(model)

        @torch.no_grad()
        def draw(images: Tensor, count: int) -> Tensor:
            with evaluating(network):
                each = to_float32(network.logits(images))
                return each[torch.arange(count, device=each.device) % len(each)]

        return draw


def _members(model: nn.Module) -> EnsembleUNet:
    root = unwrap(model)
    assert isinstance(root, EnsembleUNet)
    return root
