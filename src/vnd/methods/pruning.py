"""A student cut out of a Bayesian nested network: what it keeps, its order, and lengths tied to the teacher's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import vnd.nn as nested
from vnd.nn import BayesLayer, OrderingUnit, Shape
from vnd.nn.extract import exact
from vnd.nn.state import state_of, unwrap


def leading(teacher: nn.Module, share: float) -> Shape:
    """The same share of every unit's groups, and no less than its base, which has no order."""
    units = state_of(teacher).units.items()
    return Shape({name: max(1, unit.base, math.ceil(share * unit.num_groups - 1e-9)) for name, unit in units})


def fitting(teacher: nn.Module, parameters: float) -> Shape:
    """The learned shape of at most so many parameters: the groups that are kept most often, whatever their layer."""
    least = nested.profile(teacher, nested.shape(teacher, fraction=1e-9), count_macs=False).parameters
    full = nested.profile(teacher, 1.0, count_macs=False).parameters
    if not least <= parameters < full:
        raise ValueError(f"sn3: parameters must be from {least:,} to below {full:,} here; got {parameters:,.0f}")
    shape = nested.shape(teacher, parameters=parameters)
    if empty := [name for name, groups in shape.items() if not groups]:
        raise ValueError(f"sn3: parameters: {parameters:,.0f} leave nothing of {empty[0]}; give more of them, or keep")
    return shape


def tied(groups: int, unit: OrderingUnit, kept: int) -> int:
    r"""The teacher's length for the student's, $|v| = ⌈r |\bar v|⌉$, base included, if so many of its groups are kept.

    Paper: 16 groups of the teacher's for 4 of the student's, r = 4.
    """
    return min(unit.num_groups, math.ceil(groups * unit.num_groups / kept - 1e-9))


def coarsened(unit: OrderingUnit, kept: int) -> tuple[int, Tensor]:
    r"""Base and keep logits of the student's unit: $\bar S_j = S_{⌈r j⌉}$ for the probability that a group is kept.

    Note: The paper copies the order of the leading groups: the student would be full whenever the teacher has as many
        groups, most of the time.
    """
    base = min(kept, math.ceil(unit.base * kept / unit.num_groups - 1e-9))
    places = torch.tensor([tied(j, unit, kept) - 1 for j in range(1, kept + 1)])
    log_survival = unit.survival().detach().double().cpu().log()[places]
    log_survival[:base] = 0.0  # always kept, also where they stand for groups of the teacher's that are not
    steps = torch.diff(log_survival, prepend=torch.zeros(1, dtype=torch.float64)).clamp(max=-1e-12)[base:]
    return base, (steps - torch.log(-torch.expm1(steps))).clamp(-30, 30).float()


@torch.no_grad()
def prune(teacher: nn.Module, keep: Shape | float, example: Tensor) -> nn.Module:
    """The leading groups of a nested network as a smaller nested one: means and order, and the last layer's variances.

    Args:
        teacher: A nested network.
        keep: The groups of every unit that are kept, or the share of them.
        example: An input.
    """
    state = state_of(teacher)
    if state.rows or state.elements:
        raise ValueError("sn3: a teacher whose input rows or single weights are ordered cannot be pruned")
    shape = keep if isinstance(keep, Shape) else leading(teacher, keep)
    last = [name for name, module in unwrap(teacher).named_modules() if isinstance(module, BayesLayer)][-1]
    rules = {pattern: replace(rule, prior=None, bayesian=None) for pattern, rule in state.arguments["rules"].items()}
    orders = {name: coarsened(unit, shape[name]) for name, unit in state.units.items()}
    for name, (base, _) in orders.items():
        own = nested.Rule(num_groups=shape[name], base=base)
        rules[name] = own.over(rules.pop(name, nested.Rule()))
    rules[last] = nested.Rule(bayesian=True).over(rules.pop(last, nested.Rule()))
    options = {
        k: v for k, v in state.arguments.items() if k not in ("rules", "prior", "bayesian", "num_groups", "base")
    }
    options |= {"rescale": "none", "gradient": "survival"}  # factors are in the weights by now
    options["link"] = "dirichlet"
    student = nested.to_nested(exact(teacher, shape), example, bayesian=False, rules=rules, **options)
    for name, unit in state_of(student).units.items():
        unit.keep_logits.copy_(orders[name][1])
        unit.keep_logits.requires_grad_(False)
    theirs: Any = exact(teacher, shape, bayesian=True).get_submodule(last)
    ours: Any = student.get_submodule(last)
    for name in ("log_alpha", "log_variance"):
        if getattr(theirs, name, None) is not None and getattr(ours, name, None) is not None:
            getattr(ours, name).copy_(getattr(theirs, name))
    return student
