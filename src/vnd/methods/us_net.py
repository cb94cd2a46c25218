"""US-Net: a universally slimmable network, trained by the sandwich rule with in-place distillation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vnd.methods.method import Batch, Step, Terms, check, register
from vnd.methods.nested import (
    FixedOrder,
    count_loss_temperatures,
    prepare_sandwich,
    sandwich,
    sandwiched,
    with_fixed_budgets,
    with_uniform_lengths,
)
from vnd.methods.traits import Traits, mc


@register(
    "us_net",
    Traits(
        rank=5,
        name="US-Net",
        about="Slimmable network: every step trains the full, the smallest and random widths together.",
        order="fixed",
        stochastic=False,
        looks=mc("#8a6d00", "<", ":"),
    ),
)
@dataclass(frozen=True)
class USNet(FixedOrder):
    r"""Train the full, the smallest and randomly sampled widths in every step, the narrower taught by the full one.

    The loss is `sandwich`, with point weights and one width for all layers. Yu and Huang, *Universally slimmable
    networks and improved training techniques* (2019): an anchor from outside the paper.

    Note: The mean of the three losses, where theirs is the sum: the learning rate means the same as in other methods.

    Args:
        num_groups: Groups that the channels of a layer are split into.
        base: Groups that are always kept: the smallest width.
        draws: Sampled widths in a step, each on its part of the batch.
        distill: Share of the full network's answers in the targets of the narrower ones.
        full_share: Share of the full network's loss; the others share the rest.
        fixed_budgets: Widths of at most so many parameters that are trained in every step in place of the smallest.
        sampled_share: Share of the batch that sampled widths are run on with fixed budgets.
        label_smoothing: Share of the target given to all classes alike, for the full network; see `sandwich`.
        rules: Exceptions by name pattern of a layer.
    """

    num_groups: int = 32
    base: int = 1
    draws: int = 2
    distill: float = 1.0
    full_share: float = 1 / 3
    fixed_budgets: tuple[float, ...] = ()
    sampled_share: float = 0.25
    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @property
    def uniform_share(self) -> float:
        """All its widths are uniform as they are."""
        return 0.0

    @property
    def num_loss_temperatures(self) -> int:
        """The fixed budgets, or the smallest network, and the full one."""
        return count_loss_temperatures(self)

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """Their logits."""
        return sandwiched(model, images, self)

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a plain network."""
        return with_fixed_budgets(with_uniform_lengths(network, example, self), self.fixed_budgets)

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Cut the smallest network and the fixed budgets out of the full one."""
        prepare_sandwich(model, self.fixed_budgets, settled=True)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean loss of the three kinds of width."""
        likelihood = sandwich(model, batch, self, step.log_loss_temperature)
        return Terms(likelihood, {"nll": likelihood.detach()})
