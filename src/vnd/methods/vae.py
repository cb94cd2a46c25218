"""VAE: a variational auto-encoder of one code length, which VND-AE is held against, retrained for each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vnd.methods.coding import AutoencoderMethod, check_options
from vnd.methods.method import Batch, Step, Terms, register
from vnd.methods.traits import DASHED, Traits, mc


@register("vae", Traits(rank=9, name="VAE", sizes="each", looks=mc("#d55e00", "s", DASHED)))
@dataclass(frozen=True)
class VAE(AutoencoderMethod):
    r"""Encode to independent Gaussians, and charge their KL from a standard normal.

    $$\mathcal L = \frac{2 σ^2}{P} \Bigl[-\log p(x \mid h) + κ \sum_i κ_i\Bigr], \qquad h \sim q(h \mid x)$$

    Kingma and Welling (2014). Its length is the network's `code`.

    Args:
        likelihood_std: σ of a pixel between −1 and 1.
    """

    likelihood_std: float = 1.0

    def __post_init__(self) -> None:
        check_options(self)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The negative bound on the likelihood, scaled."""
        code = self.encode(model, batch[0])
        rate = code.cost.sum(1)
        return self._terms(model, batch[0], self.sample(code), step.kl_weight * rate, {"rate": rate.mean()})
