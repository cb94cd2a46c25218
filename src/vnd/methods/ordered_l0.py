"""Ordered ℓ0: the paper's reduced objective, point weights and a learned order under a price for width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vnd.methods.method import Batch, Step, Terms, check, cross_entropy, register
from vnd.methods.nested import Nested, in_parts, measure_order, nested_model, order_term
from vnd.methods.traits import DASH_DOTS, Traits, mc
from vnd.nn.conversion import Coupling
from vnd.nn.extract import CONVOLUTIONS
from vnd.nn.ordering import Gradient
from vnd.nn.state import state_of, unwrap


@register(
    "ordered_l0",
    Traits(
        rank=4,
        name="ordered ℓ0",
        about="Nested network with plain weights that learns the order, and pays for every unit that it keeps.",
        order="learned",
        stochastic=False,
        looks=mc("#7a4b9a", "P", DASH_DOTS),
    ),
)
@dataclass(frozen=True)
class OrderedL0(Nested):
    r"""Learn the order of a network's channels at a price for each that is expected to be kept.

    $$\mathcal L = \mathbb E_{z \sim β} \frac1B \sum_b -\log p(y_b \mid x_b, θ, z) + λ \sum_l d_l \sum_j j β_{lj}$$

    with $λ = κ / N$, κ the `kl_weight` of the step. Paper: Eq. (13), (A16), (A17), where $λ = χ d$: the KL of BN³ with
    χ nats a weight and without the KL of the lengths.

    Note: The paper drops a term of the evidence bound that is never negative, so this maximises an upper bound of it,
        not the bound itself (docs/errata.md).

    Args:
        num_groups: Groups that the channels of a layer are split into.
        base: Groups that are always kept.
        coupling: One draw of the length for all layers ("quantile"), or one each ("independent").
        gradient: How the loss reaches the order; see `OrderingUnit`.
        measure_every: With `gradient` "difference", steps between two measurements of a unit.
        draws: Draws of the masks in a step, each on its part of the batch.
        initial_logit: Where the keep logits start.
        charge: What is counted: "weights", d the weights of a channel, or "units", d = 1 and j in groups.
        label_smoothing: Share of the target given to all classes alike.
        rules: Exceptions by name pattern of a layer.
    """

    bayesian = False
    num_groups: int = 32
    base: int = 1
    coupling: Coupling = "quantile"
    gradient: Gradient = "difference"
    measure_every: int = 4
    draws: int = 1
    initial_logit: float = 3.0
    charge: Literal["weights", "units"] = "weights"
    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a plain network."""
        options = {"coupling": self.coupling, "initial_logit": self.initial_logit, "gradient": self.gradient}
        return nested_model(network, example, self, bayesian=False, **options)

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Set the temperature, and measure what one unit is worth to the loss."""
        measure_order(self, model, step, lambda: average(self._likelihood(model, *batch)))

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch, and the price of the expected width."""
        likelihood = in_parts(batch, self.draws, lambda x, y: self._likelihood(model, x, y))
        size = expected_size(model, self.charge)
        total = likelihood + step.kl_weight / step.num_data * size + order_term(self, model)
        return Terms(total, {"nll": likelihood.detach(), "size": size.detach()})

    def _likelihood(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(images), labels, self.label_smoothing)


def expected_size(model: nn.Module, charge: Literal["weights", "units"]) -> Tensor:
    r"""Expected number of weights of the nested channels, or of groups, that are kept: $\sum_l d_l \sum_j j β_{lj}$.

    Summed by tails, $\sum_j j β_j = \sum_i P(z_i = 1)$; a weight counts with its output channel.
    """
    state, root = state_of(model), unwrap(model)
    sizes = [torch.zeros((), device=next(root.parameters()).device)]
    if charge == "units":
        return torch.stack([*sizes, *(unit.survival().sum() for unit in state.units.values())]).sum()
    for name, layout in state.outputs.items():
        layer: Any = root.get_submodule(name)
        if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
            kept = state.survival(layout, layer.weight)
            assert kept is not None
            sizes.append(layer.weight.numel() / len(kept) * kept.sum())
    return torch.stack(sizes).sum()
