"""BetaVAE: a VAE whose KL weighs more, or is held at a capacity that grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from vnd.methods.coding import CapacitySchedule, check_options, coded
from vnd.methods.method import Batch, Step, Terms, register
from vnd.methods.traits import Traits, mc


@register("beta_vae", Traits(rank=10, name="BetaVAE", sizes="each", looks=mc("#009e73", "^", "-.")))
@dataclass(frozen=True)
class BetaVAE(CapacitySchedule):
    r"""Ask for independent dimensions, by a penalty on the KL.

    $$\text{"beta"}: β \sum_i κ_i, \qquad \text{"capacity"}: γ \Bigl| \sum_i κ_i - C_t \Bigr|, \quad
      C_t = C \min(t / T, 1)$$

    in the place of the KL of `VAE`. Higgins et al. (2017), Burgess et al. (2018).

    Args:
        likelihood_std: σ of a pixel between −1 and 1.
        form: Which of the two.
        beta: β.
        gamma: γ.
        capacity: C, in nats.
        over: T, in steps.
    """

    likelihood_std: float = 1.0
    form: Literal["beta", "capacity"] = "beta"
    beta: float = 10.0
    gamma: float = 10.0
    capacity: float = 25.0
    over: int = 10_000

    def __post_init__(self) -> None:
        check_options(self)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Squared error and the penalty."""
        code = self.encode(model, batch[0])
        rate = code.cost.sum(1)
        if self.form == "beta":
            penalty = self.beta * rate
        else:
            penalty = self.gamma * (rate.mean() - self.capacity * coded(model).grown).abs().expand_as(rate)
        return self._terms(model, batch[0], self.sample(code), step.kl_weight * penalty, {"rate": rate.mean()})
