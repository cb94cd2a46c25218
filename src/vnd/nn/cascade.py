"""Cascades: a narrow network answers what it is sure of, and wider ones the rest."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vnd.nn.arguments import Arguments, Output
from vnd.nn.plan import plan_of, unwrap
from vnd.nn.predict import predict
from vnd.nn.profile import profile
from vnd.nn.selective import Score, check_score, uncertainty_of
from vnd.nn.width import Width

LEVELS = (0.1, 0.4, 1.0)


@dataclass(frozen=True, eq=False)
class Cascade:
    """What a cascade says of a batch of B examples, and what it spent.

    `probs` (B, C) and `uncertainty` (B,) are those of the level that answered, `level` (B,) is its index, and `macs`
    (B,) counts the multiply-accumulates of all levels that the example went through, times their samples.
    """

    probs: Tensor
    uncertainty: Tensor
    level: Tensor
    macs: Tensor


@torch.no_grad()
def cascade(
    net: nn.Module | Sequence[nn.Module],
    x: Tensor | tuple[Any, ...] | Mapping[str, Any],
    levels: Sequence[Width] | None = None,
    *,
    threshold: float | Sequence[float],
    samples: int = 0,
    score: Score = "entropy",
    macs: Sequence[int] | None = None,
    seed: int | None = None,
    dim: int | None = None,
    output: Output | None = None,
) -> Cascade:
    r"""Run the narrowest level on all examples, and each wider one on those that are still uncertain.

    $$\text{level}(x) = \min \{ l : u_l(x) \le t_l \}, \qquad
      \text{macs}(x) = \sum_{l \le \text{level}(x)} \max(1, S)\, c_l$$

    with uncertainty $u_l$, threshold $t_l$ (none at the last level, which answers what is left), cost $c_l$ of one
    pass and S samples. An uncertainty that is not a number goes on.

    A nested network runs masked, which takes as long at every width: it shows what a cascade would answer and spend.
    To save that time too, extract the levels once and give them as `net`, with their costs as `macs`:

        networks = [vnd.extract(net, width) for width in (0.1, 0.4, 1.0)]
        macs = [vnd.profile(network, example_input=x[:1]).macs for network in networks]
        answer = vnd.cascade(networks, x, threshold=0.5, macs=macs)

    Note: A pass of the local estimator multiplies twice, for mean and variance; `macs` counts it once.

    Args:
        net: A nested network, recalibrated at the levels; or a list of networks from small to large, plain or with
            Bayesian layers (`extract(…, bayesian=True)`).
        x: A batch of inputs, (B, …), a tuple of arguments or a dict of keyword arguments, as `predict` takes them; a
            wider level gets the rows that reach it of every tensor with B of them.
        levels: The widths of a nested network, `Shape`s or fractions, each costlier than the one before; 0.1, 0.4 and
            1.0 if None. A list of networks has none.
        threshold: The uncertainty above which an example goes on; one for all levels, or one for each but the last.
        samples: Draws of the weights at each level; 0 for posterior means. A plain network runs once.
        score: The uncertainty; see `selective`.
        macs: Multiply-accumulates of one example and pass at each level; if None, counted by running the first
            example through a copy of every level, each time.
        seed: Makes the draws repeatable; the global generator is left as it was.
        dim: The dimension of classes of the outputs, which must be (B, C).
        output: The tensor that counts, where the networks give several, as in `predict`.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> answer = vnd.cascade(net, torch.ones(5, 2), levels=[0.25, 1.0], threshold=0.0)  # so strict that all go on
    >>> answer.level.tolist()
    [1, 1, 1, 1, 1]
    """
    check_score(score, "cascade")
    inputs = Arguments.of(x, "cascade")
    if len(inputs) == 0:
        raise ValueError(f"cascade: x must hold at least one example; got shape {tuple(inputs.lead.shape)}")
    steps = _steps(net, levels)
    limits = [*_limits(threshold, len(steps) - 1), math.inf]
    costs = _costs(steps, inputs.rows(slice(0, 1)).given, macs)
    waiting = torch.arange(len(inputs), device=inputs.lead.device)  # the rows that no level has answered yet
    level, spent = torch.zeros_like(waiting), torch.zeros_like(waiting)
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
            told = f"level {index} gives {answer.probs.size(1)} classes, level 0 gave {probs.size(1)}"
            raise ValueError(f"cascade: all levels must tell the same classes; {told}")
        else:
            probs[waiting], uncertainty[waiting] = answer.probs.to(probs), found.to(uncertainty)
        level[waiting] = index
        spent[waiting] += costs[index] * answer.samples
        waiting = waiting[~(found <= limits[index])]
        if len(waiting) == 0:
            break
    return Cascade(probs, uncertainty, level, spent)


def _steps(net: Any, levels: Sequence[Width] | None) -> list[tuple[nn.Module, Width]]:
    """The network and the width of every level."""
    if isinstance(net, list | tuple | nn.ModuleList):
        if levels is not None:
            raise ValueError("cascade: levels must be None where net is a list of networks; they have their widths")
        if len(net) == 0 or not all(isinstance(network, nn.Module) for network in net):
            kinds = ", ".join(type(network).__name__ for network in net) or "none"
            raise ValueError(f"cascade: net must be a nested network or a list of networks; got a list of {kinds}")
        return [(_alone(network), None) for network in net]
    if not isinstance(net, nn.Module):
        raise ValueError(f"cascade: net must be a nested network or a list of networks; got a {type(net).__name__}")
    plan_of(net)
    widths = LEVELS if levels is None else levels
    if not isinstance(widths, list | tuple) or len(widths) == 0:
        raise ValueError(f"cascade: levels must be a list of one width or more; got {levels!r}")
    return [(_alone(net), width) for width in widths]


def _alone(net: nn.Module) -> nn.Module:
    """The network without DistributedDataParallel: its processes would wait for each other at levels not all reach."""
    return unwrap(net) if any(isinstance(module, DistributedDataParallel) for module in net.modules()) else net


def _limits(threshold: Any, count: int) -> list[float]:
    """The threshold of each level but the last."""
    several = isinstance(threshold, list | tuple) or (isinstance(threshold, Tensor) and threshold.dim() == 1)
    limits = list(threshold) if several else [threshold] * count
    if len(limits) != count:
        raise ValueError(
            f"cascade: threshold must be one number, or {count}, one a level but the last; got {len(limits)}"
        )
    limits = [limit.item() if isinstance(limit, Tensor) and limit.numel() == 1 else limit for limit in limits]
    for limit in limits:
        if isinstance(limit, bool) or not isinstance(limit, Real) or math.isnan(limit):
            raise ValueError(f"cascade: threshold must be a number, infinity too; got {limit!r}")
    return [float(limit) for limit in limits]


def _costs(steps: list[tuple[nn.Module, Width]], example: Any, macs: Sequence[int] | None) -> list[int]:
    """Multiply-accumulates of one example and pass at each level, which must grow."""
    if macs is not None and len(macs) != len(steps):
        raise ValueError(f"cascade: macs must be {len(steps)} numbers, one a level; got {len(macs)}")
    costs = [_count(*step, example) for step in steps] if macs is None else [int(cost) for cost in macs]
    for index in range(1, len(costs)):
        if costs[index] <= costs[index - 1]:
            raise ValueError(
                f"cascade: levels must grow; level {index} costs {costs[index]} multiply-accumulates an example, "
                f"level {index - 1} before it {costs[index - 1]}"
            )
    return costs


def _count(net: nn.Module, width: Width, example: Any) -> int:
    root = unwrap(net)
    if not hasattr(root, "_vnd_plan"):  # of a nested network the profile itself makes a copy
        root = copy.deepcopy(root)
    return profile(root, width, example).macs
