"""A plain network of one size: the anchor that every other method is held against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vnd.methods.method import Batch, Step, Terms, check, cross_entropy, register
from vnd.methods.single import Single, narrowed
from vnd.methods.traits import DOTTED, Traits, mc


@register(
    "plain",
    Traits(
        rank=6,
        name="plain",
        about="An ordinary network for each width: one training a width.",
        sizes="each",
        stochastic=False,
        reference=True,
        looks=mc("#5f6b76", "h", DOTTED),
    ),
)
@dataclass(frozen=True)
class Plain(Single):
    """Train a network by cross-entropy, as it is or as narrow as a nested one is tested at.

    Args:
        fraction: Share of every layer's groups that the network has, in (0, 1]: one run each makes a curve.
        shape: Groups that each unit has, as a result's rows give them, in the place of a fraction.
        num_groups: Groups that the channels of a layer are split into.
        base: Groups that are always kept.
        label_smoothing: Share of the target given to all classes alike.
        rules: Exceptions by name pattern of a layer: {"features.0": {"nest": false}} leaves it as wide as it is.
    """

    fraction: float = 1.0
    shape: dict[str, int] | None = None
    num_groups: int = 32
    base: int = 1
    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if self.shape is not None and self.fraction != 1.0:
            raise ValueError(f"shape and fraction cannot both be given; got the fraction {self.fraction:g}")

    @property
    def num_loss_temperatures(self) -> int:
        """The one that there is."""
        return 1

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """Its logits, as in a test: its statistics are those of training, and stay so."""
        model.eval()
        try:
            return [model(images)]
        finally:
            model.train()

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network itself, or a narrower one."""
        if self.fraction == 1.0 and self.shape is None:
            return network
        return narrowed(network, example, self, self.shape, bayesian=False)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch."""
        logits = model(batch[0])
        if step.log_loss_temperature is not None:
            logits = step.log_loss_temperature.exp() * logits.float()
        likelihood = cross_entropy(logits, batch[1], self.label_smoothing)
        return Terms(likelihood, {"nll": likelihood.detach()})
