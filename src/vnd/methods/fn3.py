"""FN³: a fully nested network, with point weights and lengths that are drawn, never learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vnd.methods.method import Batch, Step, Terms, check, cross_entropy, register
from vnd.methods.nested import FixedOrder, in_parts, with_uniform_lengths
from vnd.methods.traits import DASHED, Look, Traits
from vnd.nn.conversion import Coupling


@register(
    "fn3",
    Traits(
        rank=1,
        name="FN³",
        about="Nested network with plain weights; in training the width is drawn at random, with equal probability.",
        order="fixed",
        stochastic=False,
        looks={"mc": Look("#d55e00", "s"), "temperature_scaled": Look("#e69f00", "D", DASHED)},
    ),
)
@dataclass(frozen=True)
class FN3(FixedOrder):
    r"""Train all widths of a network at once, every length as likely as another.

    $$\mathcal L = \mathbb E_{z \sim \text{uniform lengths}} \frac1B \sum_b -\log p(y_b \mid x_b, θ, z)$$

    Paper: Sec. 6.1; Cui et al. (2020), an extension of slimmable networks to fine-grained widths.

    Args:
        num_groups: Groups that the channels of a layer are split into.
        base: Groups that are always kept.
        coupling: One width for all layers ("quantile"), or a length drawn for each ("independent").
        draws: Draws of the masks in a step, each on its part of the batch.
        label_smoothing: Share of the target given to all classes alike.
        rules: Exceptions by name pattern of a layer.
    """

    num_groups: int = 32
    base: int = 1
    coupling: Coupling = "quantile"
    draws: int = 1
    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a plain network."""
        return with_uniform_lengths(network, example, self, coupling=self.coupling)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch."""
        likelihood = in_parts(batch, self.draws, lambda x, y: cross_entropy(model(x), y, self.label_smoothing))
        return Terms(likelihood, {"nll": likelihood.detach()})
