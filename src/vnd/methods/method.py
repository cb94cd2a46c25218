"""What every method says of itself: the loop, the sweep and the commands know no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from vnd.nn import Prediction
from vnd.nn.width import Width

Batch = tuple[Tensor, Tensor]  # images (batch, channels, height, width) and labels (batch,)


@dataclass(frozen=True)
class Terms:
    """A loss and the parts it is made of; the parts are for people to read."""

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """Where training stands; `kl_weight` is a tensor, so that a compiled step is compiled once."""

    index: int
    kl_weight: Tensor
    temperature: float
    num_data: int


@dataclass(frozen=True)
class Sizes:
    """The sizes that a trained network is run at.

    Args:
        fractions: The same share of the groups of every layer, in (0, 1].
        levels: Learned shapes at these levels, in (0, 1].
        parameters: Learned shapes of at most so many parameters.
        learned: Learned shapes of sizes spread evenly, by ratio, from the smallest network to the full one; fewer
            where two would be the same.
    """

    fractions: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    levels: tuple[float, ...] = ()
    parameters: tuple[float, ...] = ()
    learned: int = 0

    def __post_init__(self) -> None:
        for name in ("fractions", "levels"):
            if not all(0 < value <= 1 for value in getattr(self, name)):
                raise ValueError(f"{name} must lie in (0, 1]; got {list(getattr(self, name))}")
        if not all(value > 0 for value in self.parameters):
            raise ValueError(f"parameters must be greater than 0; got {list(self.parameters)}")
        if self.learned < 0:
            raise ValueError(f"learned must be 0 or more; got {self.learned}")
        if not (self.fractions or self.levels or self.parameters or self.learned):
            raise ValueError("fractions, levels, parameters or learned must name at least one size; got none")


@dataclass(frozen=True)
class Size:
    """One of them: a width, what it is called, and where it comes from."""

    kind: Literal["uniform", "learned"]
    label: str
    width: Width


class Method(Protocol):
    """A frozen dataclass of options, with what a system of the paper does in its own way."""

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Make its model from a plain network."""

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Do what comes before a step and needs no gradient; `average` is the mean over processes."""

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The loss of a batch."""

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """Those of the wanted sizes that it has."""

    def calibrate(
        self, model: nn.Module, batches: Callable[[], Iterable[Any]], widths: list[Width], samples: bool
    ) -> None:
        """Make these widths ready for prediction with samples or with means, from a few batches of training data."""

    def cut(self, model: nn.Module, width: Width, samples: int) -> nn.Module:
        """The network of a width as `predict` takes it for so many samples, as small as that."""

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """Predict by what `cut` gave, with some draws of the weights; 0 for their means."""

    def extract(self, model: nn.Module, width: Width) -> nn.Module:
        """The plain network of a width: posterior means, torch's own layers."""
