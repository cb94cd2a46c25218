"""What a nested network knows of itself: its ordering units, and how every layer's channels are made of theirs."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.channels import Group, Layout
from vnd.nn.masks import draw_masks
from vnd.nn.norms import CalibratedNorm
from vnd.nn.ordering import OrderingUnit
from vnd.nn.quantile import Quantile

Statistics = dict[str, tuple[Tensor, Tensor]]  # BatchNorm's name → running mean and variance


@dataclass(frozen=True, eq=False)
class Shape(Mapping[str, int]):
    """A map from units to the number of groups kept, base included: frozen, hashable, JSON.

    Two shapes are equal if they keep as much of each unit, in whatever order they name them.

    >>> Shape.of({"a": 3, "b": 1}).to_json()
    '{"a": 3, "b": 1}'
    """

    groups: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, groups: Mapping[str, int]) -> Shape:
        """The shape with these numbers of groups."""
        for unit, kept in groups.items() if isinstance(groups, Mapping) else [("groups", groups)]:
            if not isinstance(kept, Integral) or isinstance(kept, bool):
                raise ValueError(f"Shape: the number of groups of each unit must be an int; got {kept!r} for {unit}")
        return cls(tuple((unit, int(kept)) for unit, kept in groups.items()))

    @classmethod
    def from_json(cls, text: str) -> Shape:
        """The inverse of `to_json`."""
        return cls.of(json.loads(text))

    def to_json(self) -> str:
        """The shape as a JSON object."""
        return json.dumps(dict(self.groups))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and dict(self.groups) == dict(other.groups)

    def __hash__(self) -> int:
        return hash(frozenset(self.groups))

    def __getitem__(self, unit: str) -> int:
        return dict(self.groups)[unit]

    def __iter__(self) -> Iterator[str]:
        return (unit for unit, _ in self.groups)

    def __len__(self) -> int:
        return len(self.groups)


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
    statistics: dict[tuple[Shape, bool], Statistics] = field(default_factory=dict)  # of (shape, samples or means)
    warned: set[tuple[Shape, bool]] = field(default_factory=set)
    shape: Shape | None = None  # the width that is set, None for full width
    words: str = "1.0"  # the width as it was given, for messages
    sampled: bool = False  # whether statistics of sampled weights are asked for
    stamps: dict[tuple[Shape, bool], int] = field(default_factory=dict)  # batches trained when they were collected
    settled: bool = True  # whether the statistics of the width that is set were looked up since
    collecting: bool = False  # whether `recalibrate` is at work
    smallest: Any = None  # for training: the network of base groups alone, sliced; False where there is no such
    fixed_budgets: list[Any] = field(default_factory=list)  # for training: the networks of fixed shapes, sliced
    origin: dict[str, Any] | None = None  # what its plain network was cut from; as in `extract.ORIGINS`
    lesson: Any = None  # for training a student: its teacher, and what that answered
    lowest: Tensor | None = None  # the lowest survival of a group in each of them, and 0 for the full network

    @property
    def key(self) -> tuple[Shape, bool]:
        """The shape that is set, full width spelt out, and whether weights are sampled."""
        full = Shape.of({name: unit.num_groups for name, unit in self.units.items()})
        return full if self.shape is None else self.shape, self.sampled

    def stamp(self, root: nn.Module) -> int:
        """Number of batches that BatchNorm was trained on."""
        return max((int(norm.num_batches_tracked) for _, norm in batch_norms(root)), default=0)

    def valid_statistics(self, root: nn.Module, key: tuple[Shape, bool]) -> Statistics | None:
        """The statistics of a width, unless the network was trained since they were collected."""
        return self.statistics.get(key) if self.stamps.get(key) == self.stamp(root) else None

    def load_statistics(self, root: nn.Module) -> bool:
        """Give BatchNorm the statistics of the width that is set, or those of training; say whether it had its own."""
        found = self.valid_statistics(root, self.key)
        norms = list(batch_norms(root))
        for name, norm in norms:
            norm.activate(None if found is None else found[name])
        self.settled = True
        return found is not None or not norms

    def warn(self) -> None:
        """Warn once that the width that is set was not recalibrated, and name the call that mends it."""
        if self.key in self.warned:
            return
        self.warned.add(self.key)
        call = f"vnd.recalibrate(net, batches, widths=({self.words},){', samples=True' if self.sampled else ''})"
        message = f"BatchNorm has no statistics for this width; run {call} first"
        warnings.warn(message, stacklevel=_outside())

    def before_forward(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Draw the masks of the forward pass that begins: one draw for all that read them."""
        if root.training:
            self.settled = False
            if self.quantile is not None:
                self.quantile.draw()
            if not torch.compiler.is_compiling():
                self.warned.clear()
        elif not (self.settled or self.collecting or torch.compiler.is_compiling()) and not self.load_statistics(root):
            self.warn()
        batch = None
        if root.training and any(unit.per_example for unit in self.units.values()):
            batch = next((x.size(0) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        for units in alike(self.units.values()):
            masks = draw_masks(units, batch if units[0].per_example else None)
            for unit, mask in zip(units, masks.unbind(), strict=True):
                unit.hold(unit.spread(mask))

    def after_forward(self, root: nn.Module, args: Any, output: Any) -> None:
        """Let go of the masks; of training's not before the backward pass, since checkpointing runs parts again."""
        if root.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return
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


def _outside() -> int:
    """The stack level of the first caller outside of this library, torch and the standard library's contexts."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("vnd.", "torch.", "contextlib")):
            break
        level, frame = level + 1, frame.f_back
    return level


def arguments_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, a tuple of arguments or a dict."""
    if isinstance(example, dict):
        return (), example
    return (example if isinstance(example, tuple) else (example,)), {}


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


def batch_norms(net: nn.Module) -> Iterator[tuple[str, CalibratedNorm]]:
    """All BatchNorm layers of a nested network that keep running statistics, by name."""
    for name, module in unwrap(net).named_modules():
        if isinstance(module, CalibratedNorm):
            yield name, module
