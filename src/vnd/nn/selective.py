"""Selective prediction: a threshold on the uncertainty, fitted so that what is accepted is seldom wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vnd import metrics
from vnd.nn.arguments import Arguments, Output, to_device
from vnd.nn.plan import unwrap
from vnd.nn.predict import Prediction, predict
from vnd.nn.width import Width

Score = Literal["entropy", "mutual_information", "confidence"]


@dataclass(frozen=True)
class Selective:
    """Which predictions to accept: those whose uncertainty is at most `threshold`.

    `coverage` is the share of the validation examples that it accepts, `risk` the share of wrong ones among these.
    Where no threshold reaches the risk that was asked for, `threshold` is −inf, `coverage` 0 and `risk` None.
    """

    threshold: float
    coverage: float
    risk: float | None
    score: Score
    samples: int

    def accept(self, prediction: Prediction) -> Tensor:
        """Whether to accept each prediction of a batch, (B,); never one whose uncertainty is not a number.

        Args:
            prediction: What `predict` gave, at the width and with the samples that the threshold was fitted for.
        """
        if not isinstance(prediction, Prediction):
            raise ValueError(f"accept: prediction must be what vnd.predict gives; got a {type(prediction).__name__}")
        if prediction.samples != self.samples:
            raise ValueError(
                f"accept: the threshold is for predictions of {self.samples} samples; got one of {prediction.samples}"
            )
        return uncertainty_of(prediction, self.score, "accept") <= self.threshold


def selective(
    net: nn.Module,
    x: Tensor | Mapping[str, Any] | Iterable[Any],
    y: Tensor | None = None,
    *,
    risk: float = 0.05,
    width: Width = None,
    samples: int = 6,
    score: Score = "entropy",
    confidence: float | None = None,
    seed: int | None = None,
    dim: int | None = None,
    output: Output | None = None,
) -> Selective:
    r"""Fit on validation data the largest threshold on the uncertainty at which the accepted are seldom wrong.

    $$t = \max \Big\{ u : \frac{\sum_n [u_n \le u]\,[\hat y_n \ne y_n]}{\sum_n [u_n \le u]} \le \text{risk} \Big\}$$

    Note: Without `confidence` the risk is that on this data, the best of many thresholds, and a little optimistic for
        other data. Data of another kind is not covered either way.

    Args:
        net: A nested network, or any that `predict` takes.
        x: Inputs (N, …) that the network was not trained on, with `y`: a tensor, a tuple of arguments or a dict of
            keyword arguments; or batches of (inputs, labels).
        y: Classes (N,); None where `x` is batches.
        risk: Largest share of wrong ones among the accepted.
        width: A `Shape`, a fraction in (0, 1], or None for the width that is set.
        samples: Draws of the weights, as `predict` takes them; 0 for posterior means.
        score: The uncertainty: "entropy" of the averaged probabilities, "mutual_information" between samples, or
            "confidence", one minus the largest probability.
        confidence: Probability with which the risk on new data of the same kind is to be at most `risk`; it costs
            coverage. See `vnd.metrics.threshold_for_risk`.
        seed: Makes the draws repeatable.
        dim: The dimension of classes of the outputs, which must be (N, C).
        output: The tensor that counts, where the network gives several, as in `predict`.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> x, y = torch.randn(100, 2), torch.randint(3, (100,))
    >>> chosen = vnd.selective(net, x, y, risk=0.9, samples=0)
    >>> chosen.coverage
    1.0
    """
    check_score(score, "selective")
    probs, labels, uncertainty, drawn = [], [], [], 1
    for index, (inputs, classes) in enumerate(_batches(net, x, y)):
        draws = None if seed is None else seed + index
        answer = predict(net, inputs, width, samples, seed=draws, dim=-1 if dim is None else dim, output=output)
        uncertainty.append(uncertainty_of(answer, score, "selective").cpu())
        probs.append(answer.probs.cpu())
        labels.append(classes.cpu())
        drawn = answer.samples
    if not probs:
        raise ValueError("selective: x must hold at least one batch; got none")
    rows = torch.cat(probs), torch.cat(labels), torch.cat(uncertainty)
    threshold = metrics.threshold_for_risk(*rows, risk, confidence)
    measured = metrics.selective(*rows, threshold)
    return Selective(threshold, measured.coverage, measured.risk, score, drawn)


def uncertainty_of(prediction: Prediction, score: Score, who: str) -> Tensor:
    """How unsure a prediction of classes is of each example, (B,); larger is less sure."""
    if prediction.probs.dim() != 2 or prediction.entropy is None or prediction.mutual_information is None:
        shape = tuple(prediction.probs.shape)
        raise ValueError(f"{who}: the network must give class scores of shape (B, C), link 'softmax'; got {shape}")
    if score == "confidence":
        return 1 - prediction.probs.amax(1)
    if score == "entropy":
        return prediction.entropy
    if prediction.samples < 2:  # it is zero, and says nothing
        raise ValueError(f"{who}: score 'mutual_information' needs 2 samples or more of a Bayesian network; got 1 pass")
    return prediction.mutual_information


def check_score(score: str, who: str) -> None:
    """Refuse a score that there is not."""
    if score not in get_args(Score):
        raise ValueError(f"{who}: score must be 'entropy', 'mutual_information' or 'confidence'; got {score!r}")


def _batches(net: nn.Module, x: Any, y: Tensor | None) -> Iterable[tuple[Any, Tensor]]:
    """Inputs where the network is, and their labels."""
    whole = isinstance(x, Tensor | Mapping) or (isinstance(x, tuple) and y is not None)
    if whole and not isinstance(y, Tensor):
        raise ValueError(f"selective: y must be a tensor of classes, one for each row of x; got a {type(y).__name__}")
    if not whole and y is not None:
        raise ValueError("selective: y must be None where x is batches of (inputs, labels); got both")
    like = next(unwrap(net).parameters(), None)
    batches: Iterable[Any] = [(x, y)] if whole else x
    for batch in batches:
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor)):
            raise ValueError(f"selective: a batch must be (inputs, labels); got a {type(batch).__name__}")
        given = tuple(batch[0]) if isinstance(batch[0], list) else batch[0]  # a data loader makes lists of tuples
        inputs = Arguments.of(given, "selective")
        if len(inputs) != len(batch[1]):
            raise ValueError(
                f"selective: a batch must have as many labels as inputs; got {len(batch[1])} labels "
                f"and {len(inputs)} inputs"
            )
        yield inputs.given if like is None else to_device(inputs.given, like.device), batch[1]
