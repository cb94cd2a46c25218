r"""Regression: numbers that a network gives for an example, and how far they are from the right ones."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from vnd import metrics
from vnd.nn import Prediction
from vnd.tasks.base import COSTS, PERCENT, Reading, Scores, Task, register
from vnd.tasks.classification import is_binary, is_one_hot


class RegressionScores(Scores):
    r"""Errors of the mean prediction $\bar y$, over all numbers of all examples.

    $$\mathrm{MSE} = \overline{(\bar y - y)^2}, \qquad R^2 = 1 - \frac{\sum (\bar y - y)^2}{\sum (y - \overline{y})^2}$$

    with the mean of each of an example's numbers over the examples. `std` is the root of the mean variance between
    samples: what the weights are unsure of, without the noise of the data.
    """

    def __init__(self) -> None:
        self.squares, self.absolute, self.variance, self.drawn = list[Tensor](), 0.0, 0.0, False
        self.first = self.sums = torch.zeros(0, dtype=torch.float64)
        self.spread = 0.0

    def add(self, prediction: Prediction, target: Tensor) -> None:
        """Count a batch."""
        made, true = prediction.probs.cpu().double(), target.detach().cpu().double()
        if len(made) != len(true) or made.numel() != true.numel():
            raise ValueError(f"labels must be of shape {tuple(made.shape)}, as outputs; got {tuple(true.shape)}")
        made, true = (x.reshape(len(x), -1) for x in (made, true))
        if not bool(true.isfinite().all()):
            raise ValueError("labels must be finite; got NaN or infinity")
        if not len(self.first):  # sums are about the first example, so that far from zero no digit is lost
            self.first, self.sums = true[0], torch.zeros_like(true[0])
        if true.shape[1:] != self.first.shape:
            raise ValueError(f"labels must have as many numbers in each batch, {len(self.first)}; got {true.size(1)}")
        errors, shifted = made - true, true - self.first
        self.squares.append(errors.square().mean(1))
        self.absolute += float(errors.abs().mean(1).sum())
        self.variance += float(prediction.variance.double().reshape(len(made), -1).mean(1).sum())
        self.drawn |= prediction.samples > 1
        self.sums += shifted.sum(0)
        self.spread += float(shifted.square().sum())

    def row(self) -> dict[str, Any]:
        """The errors, with a 95 % interval of the squared one; R² is None where all labels are one number."""
        squares = torch.cat(self.squares)
        count = len(squares)
        mse = metrics.confidence_interval(squares.tolist())
        about = (self.spread - float(self.sums.square().sum()) / count) / len(self.first)
        found: dict[str, Any] = {
            "mse": mse.mean,
            "mse_low": max(0.0, mse.low),
            "mse_high": mse.high,
            "rmse": mse.mean**0.5,
            "mae": self.absolute / count,
            "r2": 1 - count * mse.mean / about if about > 1e-12 * max(1.0, self.spread) else None,
        }
        return found | ({"std": (self.variance / count) ** 0.5} if self.drawn else {})


@register
class Regression(Task):
    """Numbers of an example; its networks are those that `vnd.evaluate` takes, no recipe trains one."""

    name = "regression"
    kind, noun = "a network that gives numbers", "regressor"
    measures: ClassVar[list[dict[str, Any]]] = [
        *COSTS,
        {
            **{"key": "rmse", "heading": "RMSE", "better": "less", "title": "Error", "digits": 4},
            **{"axis": "root of the mean squared error", "headline": "Smallest error"},
            "description": "Root of the mean squared error of the numbers, in their unit. Less is better.",
        },
        {"key": "mse", "heading": "MSE", "better": "less", "digits": 4},
        {"key": "mae", "heading": "MAE", "better": "less", "digits": 4},
        {
            **{"key": "r2", "heading": "R²", "better": "more", "title": "Share of the variance explained", "digits": 3},
            **{"axis": "R²"},
            "description": "One minus the error’s share of the variance of the right numbers: 1 for no error, 0 for "
            "always giving the mean. More is better.",
        },
        {"key": "std", "heading": "Std between samples", "digits": 4},
        {"key": "auroc", "heading": "AUROC", "better": "more", **PERCENT},
        {"key": "aupr", "heading": "AUPR", "better": "more", "chance": "base_rate", **PERCENT},
        {"key": "base_rate", "heading": "AUPR by chance", **PERCENT},
    ]

    def reads(self, output: Tensor, target: Tensor, dim: int | None = None) -> Reading | None:
        """As many numbers as labels, which are not those of classes."""
        alike = output.shape == target.shape or (len(output) == len(target) and output.numel() == target.numel())
        whole = not target.is_floating_point()
        if not alike or target.is_complex() or target.dtype == torch.bool or is_one_hot(target):
            return None
        return None if whole and (output.dim() > 2 or is_binary(target)) else Reading("identity")

    def scores(self, reading: Reading, bins: int) -> Scores:
        """Empty scores."""
        return RegressionScores()
