"""A plain network of one size: the anchor that every other method is held against."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from vnd.methods.method import Batch, Size, Sizes, Step, Terms
from vnd.nn import Prediction, predict
from vnd.nn.width import Width


@dataclass(frozen=True)
class Plain:
    """Train the network as it is, by cross-entropy.

    Args:
        label_smoothing: Share of the target given to all classes alike.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1); got {self.label_smoothing}")

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network itself."""
        return network

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Nothing."""

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch."""
        likelihood = F.cross_entropy(model(batch[0]).float(), batch[1], label_smoothing=self.label_smoothing)
        return Terms(likelihood, {"nll": likelihood.detach()})

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """The one that it has."""
        return [Size("uniform", "100 %", None)]

    def calibrate(
        self, model: nn.Module, batches: Callable[[], Iterable[Any]], widths: list[Width], samples: bool
    ) -> None:
        """Nothing: its statistics are those of training."""

    def cut(self, model: nn.Module, width: Width, samples: int) -> nn.Module:
        """A copy of the network: what is done to it is not done to the one in training."""
        return copy.deepcopy(model)

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """One pass; there is nothing to draw."""
        return predict(network, x)

    def extract(self, model: nn.Module, width: Width) -> nn.Module:
        """The network itself."""
        return model
