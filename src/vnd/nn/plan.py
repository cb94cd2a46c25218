"""What a nested network knows of itself: its ordering units, and how every layer's channels are made of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.ordering import OrderingUnit, draw_masks
from vnd.nn.quantile import Quantile
from vnd.nn.trace import Group, Layout

Statistics = dict[str, tuple[Tensor, Tensor]]  # BatchNorm's name → running mean and variance


class InputMask:
    """The mask of a layer's input channels, put together from the units that they belong to."""

    def __init__(self, layout: Layout, units: dict[str, OrderingUnit]) -> None:
        self.parts = tuple((units.get(s.unit) if s.unit else None, s.channels, s.repeat) for s in layout)

    def __call__(self) -> Tensor:
        """The mask of the forward pass under way, (channels,) or (batch, channels)."""
        masks = [None if unit is None else unit.channel_mask() for unit, _, _ in self.parts]
        like = next(mask for mask in masks if mask is not None)
        pieces = []
        for mask, (_, channels, repeat) in zip(masks, self.parts, strict=True):
            if mask is None:
                pieces.append(like.new_ones((*like.shape[:-1], channels)))
            else:
                pieces.append(mask if repeat == 1 else mask.repeat_interleave(repeat, -1))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


class ProductMask:
    """The product of two masks over the same channels."""

    def __init__(self, first: InputMask | ProductMask, second: InputMask) -> None:
        self.first, self.second = first, second

    def __call__(self) -> Tensor:
        """The mask of the forward pass under way."""
        return self.first() * self.second()


class OutputMask:
    """Masks a layer's output, before what follows it: the placement of the released code, for reproduction only."""

    def __init__(self, unit: OrderingUnit, dim: int) -> None:
        self.unit, self.dim = unit, dim

    def hook(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Multiply the output by the mask: a forward hook."""
        mask = self.unit.channel_mask()
        shape = [1] * output.dim()
        shape[self.dim] = mask.size(-1)
        if mask.dim() == 2:
            shape[0] = mask.size(0)
        return output * mask.view(shape).to(output.dtype)


@dataclass
class Plan:
    """The units of a nested network by name, and the layouts of all that they reach."""

    groups: dict[str, Group]
    units: dict[str, OrderingUnit]
    inputs: dict[str, Layout]
    outputs: dict[str, Layout]
    parameters: dict[str, tuple[Layout | None, ...]]
    rows: dict[str, str]  # layer → the unit that orders its own input channels
    elements: dict[str, str]  # layer → the unit that orders its single weights
    whole: dict[str, str]
    first_consumers: list[str]
    quantile: Quantile | None
    options: dict[str, Any]
    arguments: dict[str, Any]  # of `to_nested`, to build the network again
    example: tuple[tuple[Any, ...], dict[str, Any]]
    statistics: dict[tuple[Any, bool], Statistics] = field(default_factory=dict)
    warned: set[Any] = field(default_factory=set)
    shape: Any = None  # the Shape that is set, None for full width

    def before_forward(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Draw the masks of the forward pass that begins: one draw for all that read them."""
        if root.training and self.quantile is not None:
            self.quantile.draw()
        batch = None
        if root.training and any(unit.per_example for unit in self.units.values()):
            batch = next((x.size(0) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        for units in alike(self.units.values()):
            masks = draw_masks(units, batch if units[0].per_example else None)
            for unit, mask in zip(units, masks.unbind(), strict=True):
                unit.current = unit.spread(mask)

    def after_forward(self, root: nn.Module, args: Any, output: Any) -> None:
        """Let go of the masks, and of the graph that they hold."""
        for unit in self.units.values():
            unit.current = None

    def survival(self, layout: Layout | None, like: Tensor) -> Tensor | None:
        """Probability that each channel of a layout is kept, (channels,); None if all always are."""
        if layout is None:
            return None
        pieces = []
        for segment in layout:
            if segment.unit is None:
                pieces.append(like.new_ones(segment.channels))
            else:
                unit = self.units[segment.unit]
                pieces.append(unit.spread(unit.survival()).repeat_interleave(segment.repeat))
        return torch.cat(pieces)

    def kept(self, layout: Layout | None, groups: dict[str, int]) -> Tensor | None:
        """Indices of the channels of a layout that a shape keeps, in order; None if the layout has no unit."""
        if layout is None:
            return None
        pieces, start = [], 0
        for segment in layout:
            size = segment.channels * segment.repeat
            if segment.unit is None:
                pieces.append(torch.arange(start, start + size))
            else:
                channels = self.units[segment.unit].kept_channels(groups[segment.unit])
                pieces.append(start + (channels[:, None] * segment.repeat + torch.arange(segment.repeat)).flatten())
            start += size
        return torch.cat(pieces)


def alike(units: Iterable[OrderingUnit]) -> list[list[OrderingUnit]]:
    """Sort units into lists whose masks can be drawn together, by a few kernels instead of many."""
    kinds: dict[tuple[Any, ...], list[OrderingUnit]] = {}
    for unit in units:
        kinds.setdefault(unit.likeness, []).append(unit)
    return list(kinds.values())


def unwrap(net: nn.Module) -> nn.Module:
    """Look through the wrappers of `torch.compile` and of data-parallel training."""
    while True:
        inner = getattr(net, "_orig_mod", None) or (net.module if hasattr(net, "device_ids") else None)
        if not isinstance(inner, nn.Module):
            return net
        net = inner


def plan_of(net: nn.Module) -> Plan:
    """The plan of a nested network; a ValueError for any other."""
    plan = getattr(unwrap(net), "_vnd_plan", None)
    if not isinstance(plan, Plan):
        raise ValueError(f"{type(unwrap(net)).__name__} is not a nested network; make it one with vnd.to_nested first")
    return plan


def batch_norms(net: nn.Module) -> Iterator[tuple[str, nn.modules.batchnorm._BatchNorm]]:
    """All BatchNorm layers of a network that keep running statistics, by name."""
    for name, module in unwrap(net).named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            yield name, module
