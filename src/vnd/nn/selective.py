"""Selective prediction and cascades: what to do with an answer that a network is not sure of.

A threshold on the uncertainty is fitted so that what is accepted is seldom wrong; a cascade lets a narrow network
answer what it is sure of, and wider ones the rest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vnd import metrics
from vnd.nn.arguments import Arguments, Output, describe_value, split_labels, to_device
from vnd.nn.predict import Prediction, check_seed, predict
from vnd.nn.profile import profile
from vnd.nn.state import all_modules, state_of, unwrap
from vnd.nn.width import Width

Score = Literal["entropy", "mutual_information", "confidence"]


@dataclass(frozen=True)
class Selective:
    """Rule of acceptance: predictions whose uncertainty is at most `threshold`.

    `coverage` is the share of the validation examples that it accepts, `risk` the share of wrong ones among these.
    Where no threshold reaches the risk that was asked for, `threshold` is −inf, `coverage` 0 and `risk` None.

    >>> import torch, vnd
    >>> net, x = torch.nn.Linear(2, 3), torch.randn(8, 2)
    >>> rule = vnd.selective(net, x, net(x).argmax(1), risk=0.1)  # of labels that it is right about
    >>> rule.coverage, rule.risk, bool(rule.accept(vnd.predict(net, x)).all())
    (1.0, 0.0, True)
    """

    threshold: float
    coverage: float
    risk: float | None
    score: Score
    samples: int

    def accept(self, prediction: Prediction) -> Tensor:
        """Tell which predictions of a batch to accept, (B,); never one whose uncertainty is not a number.

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
            keyword arguments; or batches, each (inputs, labels), (a, b, …, labels) or a dict with "labels" in it.
        y: Classes (N,); None where `x` is batches.
        risk: Largest share of wrong ones among the accepted.
        width: A `Shape`, a fraction in (0, 1], or None: no width given; the one that is set.
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
    check_seed(seed, "selective")
    probs, labels, uncertainty, drawn = [], [], [], 1
    for index, (inputs, classes) in enumerate(_batches(net, x, y, "selective")):
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
    """Uncertainty of a prediction of classes, of each example, (B,); larger is less sure."""
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
        raise ValueError(
            f"{who}: score must be 'entropy', 'mutual_information' or 'confidence'; got {describe_value(score)}"
        )


def _batches(net: nn.Module, x: Any, y: Tensor | None, who: str) -> Iterable[tuple[Any, Tensor]]:
    """Inputs where the network is, and their labels."""
    whole = isinstance(x, Tensor | Mapping) or (isinstance(x, tuple) and y is not None)
    if whole and not isinstance(y, Tensor):
        raise ValueError(f"{who}: y must be a tensor of classes, one for each row of x; got a {type(y).__name__}")
    if not whole and y is not None:
        raise ValueError(f"{who}: y must be None where x is batches of (inputs, labels); got both")
    like = next(unwrap(net).parameters(), None)
    batches: Iterable[Any] = [(x, y)] if whole else x
    for batch in batches:
        inputs, labels = split_labels(unwrap(net), batch, who)
        if len(inputs) != len(labels):
            raise ValueError(
                f"{who}: a batch must have as many labels as inputs; got {len(labels)} labels and {len(inputs)} inputs"
            )
        yield inputs.given if like is None else to_device(inputs.given, like.device), labels


WIDTHS = (0.1, 0.4, 1.0)


@dataclass(frozen=True, eq=False)
class Cascade:
    """Answers of a cascade to a batch of B examples, and their cost.

    `probs` (B, C) and `uncertainty` (B,) are those of the step that answered, `step` (B,) is its index, and `macs`
    (B,) counts the multiply-accumulates of all steps that the example went through, times their samples.

    >>> import torch, vnd
    >>> networks = [torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 3))]
    >>> answer = vnd.cascade(networks, torch.ones(2, 2), threshold=0.0)  # so strict that all go on
    >>> answer.step.tolist(), answer.macs.tolist()
    ([1, 1], [26, 26])
    """

    probs: Tensor
    uncertainty: Tensor
    step: Tensor
    macs: Tensor


@torch.no_grad()
def cascade(
    net: nn.Module | Sequence[nn.Module],
    x: Tensor | tuple[Any, ...] | Mapping[str, Any],
    widths: Sequence[Width] = WIDTHS,
    *,
    threshold: float | Sequence[float],
    samples: int = 0,
    score: Score = "entropy",
    macs: Sequence[int] | None = None,
    seed: int | None = None,
    dim: int | None = None,
    output: Output | None = None,
) -> Cascade:
    r"""Run the narrowest width on all examples, and each wider one on those that are still uncertain.

    $$\text{step}(x) = \min \{ l : u_l(x) \le t_l \}, \qquad
      \text{macs}(x) = \sum_{l \le \text{step}(x)} \max(1, S)\, c_l$$

    with uncertainty $u_l$, threshold $t_l$ (none at the last step, which answers what is left), cost $c_l$ of one
    pass and S samples. An uncertainty that is not a number goes on.

    A nested network runs masked, which takes as long at every width: it shows what a cascade would answer and spend.
    To save that time too, extract the networks once and give them as `net`, with their costs as `macs`:

        networks = [vnd.extract(net, width) for width in (0.1, 0.4, 1.0)]
        macs = [vnd.profile(network, example_input=x[:1]).macs for network in networks]
        answer = vnd.cascade(networks, x, threshold=0.5, macs=macs)

    Note: A pass of the local estimator multiplies twice, for mean and variance; `macs` counts it once.

    Args:
        net: A nested network, recalibrated at the widths; or a list of networks from small to large, plain or with
            Bayesian layers (`extract(…, keep="posterior")`).
        x: A batch of inputs, (B, …), a tuple of arguments or a dict of keyword arguments, as `predict` takes them; a
            wider network gets the rows that reach it of every tensor with B of them.
        widths: Those of a nested network, `Shape`s or fractions, each costlier than the one before. A list of networks
            has its own.
        threshold: The uncertainty above which an example goes on; one for all steps, or one for each but the last.
        samples: Draws of the weights at each step; 0 for posterior means. A plain network runs once.
        score: The uncertainty; see `selective`.
        macs: Multiply-accumulates of one example and pass at each step; if None, counted by running the first
            example through a copy of every network, each time.
        seed: Makes the draws repeatable; the global generator is left as it was.
        dim: The dimension of classes of the outputs, which must be (B, C).
        output: The tensor that counts, where the networks give several, as in `predict`.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> answer = vnd.cascade(net, torch.ones(5, 2), widths=[0.25, 1.0], threshold=0.0)  # so strict that all go on
    >>> answer.step.tolist()
    [1, 1, 1, 1, 1]
    """
    check_score(score, "cascade")
    check_seed(seed, "cascade")
    inputs = Arguments.of(x, "cascade")
    if len(inputs) == 0:
        raise ValueError(f"cascade: x must hold at least one example; got shape {tuple(inputs.lead.shape)}")
    steps = _steps(net, widths)
    limits = [*_limits(threshold, len(steps) - 1), math.inf]
    costs = _costs(steps, inputs.rows(slice(0, 1)).given, macs)
    waiting = torch.arange(len(inputs), device=inputs.lead.device)  # the rows that no step has answered yet
    step, spent = torch.zeros_like(waiting), torch.zeros_like(waiting)
    for index, (network, width) in enumerate(steps):
        rows = inputs if index == 0 else inputs.rows(waiting)
        draws = None if seed is None else seed + index
        answer = predict(
            network, rows.given, width, samples, seed=draws, dim=-1 if dim is None else dim, output=output
        )  # of (B, C) the last is the only one; any other output is refused below
        found = uncertainty_of(answer, score, "cascade")
        if index == 0:
            probs, uncertainty = answer.probs, found
        elif answer.probs.size(1) != probs.size(1):
            told = f"step {index} gives {answer.probs.size(1)} classes, step 0 gave {probs.size(1)}"
            raise ValueError(f"cascade: all steps must tell the same classes; {told}")
        else:
            probs[waiting], uncertainty[waiting] = answer.probs.to(probs), found.to(uncertainty)
        step[waiting] = index
        spent[waiting] += costs[index] * answer.samples
        waiting = waiting[~(found <= limits[index])]
        if len(waiting) == 0:
            break
    return Cascade(probs, uncertainty, step, spent)


@torch.no_grad()
def cascade_thresholds(
    net: nn.Module | Sequence[nn.Module],
    x: Tensor | Mapping[str, Any] | Iterable[Any],
    y: Tensor | None = None,
    widths: Sequence[Width] = WIDTHS,
    *,
    loss: float = 0.0,
    costs: Sequence[float] | None = None,
    samples: int = 0,
    score: Score = "entropy",
    seed: int | None = None,
    dim: int | None = None,
    output: Output | None = None,
) -> tuple[float, ...]:
    """Choose on validation data the thresholds of the cheapest cascade that is as accurate as its best width alone.

    What `cascade` and `vnd.runtime.cascade` take as `threshold`, one a step but the last. How they are searched for:
    `vnd.metrics.cascade_thresholds`.

    Note: The accuracy is that on this data, and a little optimistic for other data.

    Args:
        net: As `cascade` takes it.
        x: Inputs (N, …) that the networks were not trained on, with `y`; or batches, as `selective` takes them.
        y: Classes (N,); None where `x` is batches.
        widths: As `cascade` takes them.
        loss: Accuracy that may be lost against the best width alone: 0.002 for two examples in a thousand.
        costs: Cost of one example at each step; multiply-accumulates if None. With times measured where the cascade
            is to run it is the fastest there, which need not be the one of the fewest multiply-accumulates.
        samples: As `cascade` takes them; this and what follows must be what the cascade will be run with.
        score: The uncertainty; see `selective`.
        seed: Makes the draws repeatable.
        dim: The dimension of classes of the outputs, which must be (N, C).
        output: The tensor that counts, where the networks give several, as in `predict`.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> x, y = torch.randn(100, 2), torch.randint(3, (100,))
    >>> limits = vnd.cascade_thresholds(net, x, y, widths=[0.25, 0.5, 1.0])
    >>> len(limits), len(vnd.cascade(net, x, widths=[0.25, 0.5, 1.0], threshold=limits).step)
    (2, 100)
    """
    who = "cascade_thresholds"
    check_score(score, who)
    check_seed(seed, who)
    steps = _steps(net, widths)
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in steps]
    labels: list[Tensor] = []
    for index, (inputs, own) in enumerate(_batches(steps[0][0], x, y, who)):
        if costs is None:
            costs = _costs(steps, Arguments.of(inputs, who).rows(slice(0, 1)).given, None)
        labels.append(own.cpu())
        for step, (network, width) in enumerate(steps):
            draws = None if seed is None else seed + index * len(steps) + step
            answer = predict(network, inputs, width, samples, seed=draws, dim=-1 if dim is None else dim, output=output)
            found[step].append((answer.probs.cpu(), uncertainty_of(answer, score, who).cpu()))
    if not labels:
        raise ValueError(f"{who}: x must hold at least one batch; got none")
    classes = [pairs[0][0].size(1) for pairs in found]
    if len({*classes}) > 1:
        raise ValueError(f"{who}: all steps must tell the same classes; they give {', '.join(map(str, classes))}")
    probs, uncertainty = (
        torch.stack([torch.cat([pair[part] for pair in pairs]) for pairs in found]) for part in (0, 1)
    )
    prices = torch.as_tensor(costs, dtype=torch.float64)
    return metrics.cascade_thresholds(probs, uncertainty, prices, torch.cat(labels), loss)


def _steps(net: Any, widths: Sequence[Width]) -> list[tuple[nn.Module, Width]]:
    """The network and the width of every step."""
    if isinstance(net, list | tuple | nn.ModuleList):
        if len(net) == 0 or not all(isinstance(network, nn.Module) for network in net):
            kinds = ", ".join(type(network).__name__ for network in net) or "none"
            raise ValueError(f"cascade: net must be a nested network or a list of networks; got a list of {kinds}")
        if widths is not WIDTHS:
            raise ValueError("cascade: leave out widths where net is a list of networks, which have their own")
        return [(_alone(network), None) for network in net]
    if not isinstance(net, nn.Module):
        raise ValueError(f"cascade: net must be a nested network or a list of networks; got a {type(net).__name__}")
    state_of(net)
    if not isinstance(widths, list | tuple) or len(widths) == 0:
        raise ValueError(f"cascade: widths must be a list of one width or more; got {describe_value(widths)}")
    return [(_alone(net), width) for width in widths]


def _alone(net: nn.Module) -> nn.Module:
    """The network without DistributedDataParallel: its processes would wait for each other at steps not all reach."""
    return unwrap(net) if any(isinstance(module, DistributedDataParallel) for module in all_modules(net)) else net


def _limits(threshold: Any, count: int) -> list[float]:
    """The threshold of each step but the last."""
    several = isinstance(threshold, list | tuple) or (isinstance(threshold, Tensor) and threshold.dim() == 1)
    limits = list(threshold) if several else [threshold] * count
    if len(limits) != count:
        raise ValueError(
            f"cascade: threshold must be one number, or {count}, one a step but the last; got {len(limits)}"
        )
    limits = [limit.item() if isinstance(limit, Tensor) and limit.numel() == 1 else limit for limit in limits]
    for limit in limits:
        if isinstance(limit, bool) or not isinstance(limit, Real) or math.isnan(limit):
            raise ValueError(f"cascade: threshold must be a number, infinity too; got {describe_value(limit)}")
    return [float(limit) for limit in limits]


def _costs(steps: list[tuple[nn.Module, Width]], example: Any, macs: Sequence[int] | None) -> list[int]:
    """Multiply-accumulates of one example and pass at each step, which must grow."""
    if macs is not None and not isinstance(macs, Sequence):
        raise ValueError(f"cascade: macs must be {len(steps)} numbers, one a step; got {describe_value(macs)}")
    if macs is not None and not all(isinstance(cost, Real) and not isinstance(cost, bool) for cost in macs):
        raise ValueError(f"cascade: macs must be numbers, one a step; got {describe_value(list(macs))}")
    if macs is not None and len(macs) != len(steps):
        raise ValueError(f"cascade: macs must be {len(steps)} numbers, one a step; got {len(macs)}")
    costs = [_count(*step, example) for step in steps] if macs is None else [int(cost) for cost in macs]
    for index in range(1, len(costs)):
        if costs[index] <= costs[index - 1]:
            raise ValueError(
                f"cascade: widths must grow; step {index} costs {costs[index]} multiply-accumulates an example, "
                f"step {index - 1} before it {costs[index - 1]}"
            )
    return costs


def _count(net: nn.Module, width: Width, example: Any) -> int:
    root = unwrap(net)
    if not hasattr(root, "_vnd_state"):  # of a nested network the profile itself makes a copy
        root = copy.deepcopy(root)
    return profile(root, width, example).macs
