"""A trial at conversion: does a sliced network run, and compute what the masked one does?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.extract import extract
from vnd.nn.plan import Shape, plan_of
from vnd.nn.width import pin_width


@torch.no_grad()
def try_slicing(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """Slice the units by one group and run the example: which of them fail, and why."""
    plan = plan_of(net)
    full = {name: unit.num_groups for name, unit in plan.units.items()}
    smaller = {name: max(unit.base, unit.num_groups - 1) for name, unit in plan.units.items()}
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        if _failure(net, smaller, args, kwargs) is None:
            return {}
        found = {name: _failure(net, full | {name: smaller[name]}, args, kwargs) for name in full}
        failures = {name: reason for name, reason in found.items() if reason is not None}
        return failures or dict.fromkeys(full, "slicing fails for all units together")
    finally:
        pin_width(net, None)
        for module, mode in modes:
            module.training = mode


def _failure(net: nn.Module, groups: dict[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    shape = Shape.of(groups)
    try:
        pin_width(net, shape)
        masked = net(*args, **kwargs)
        sliced = extract(net, shape)(*args, **kwargs)
    except Exception as error:
        return f"slicing it fails: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return None if _alike(masked, sliced) else "a sliced network does not compute what the masked one does"


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.shape != b.shape:
            return False
        scale = a.abs().max().clamp(min=1e-30) if a.numel() else 1.0
        return bool(((a - b).abs() <= 1e-3 * scale).all())
    if isinstance(a, Mapping):
        return all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))
    return True
