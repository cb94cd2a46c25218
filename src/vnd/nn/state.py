"""State of a nested network: its ordering units, and how every layer's channels are made of theirs."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vnd.nn import context
from vnd.nn.dependency import Attribute, Group, Layout, Reduction, Segment
from vnd.nn.depth import Place, Stage, place_of
from vnd.nn.norms import WidthNorm
from vnd.nn.ordering import OrderingUnit, Quantile, draw_masks

Statistics = dict[str, tuple[Tensor, Tensor]]  # BatchNorm's name → running mean and variance
Key = tuple["Shape", bool]  # a width, and whether weights are sampled
Table = dict[WidthNorm, tuple[Tensor, ...]]  # what a BatchNorm normalises with; () for what training left


class Shape(Mapping[str, int]):
    """A map from units to the number of groups kept, base included: immutable, hashable, JSON.

    Two shapes are equal if they keep as much of each unit, in whatever order they name them.

    >>> Shape({"a": 3, "b": 1})
    Shape({'a': 3, 'b': 1})
    """

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[str, int]) -> None:
        if not isinstance(groups, Mapping):
            raise ValueError(f"Shape: groups must map units to whole numbers; got a {type(groups).__name__}")
        for unit, kept in groups.items():
            if not isinstance(kept, Integral) or isinstance(kept, bool):
                raise ValueError(f"Shape: the number of groups of each unit must be an int; got {kept!r} for {unit}")
        self._groups = {unit: int(kept) for unit, kept in groups.items()}

    @classmethod
    def from_json(cls, text: str) -> Shape:
        """The inverse of `to_json`."""
        return cls(json.loads(text))

    def to_json(self) -> str:
        """The shape as a JSON object."""
        return json.dumps(self._groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._groups == other._groups

    def __hash__(self) -> int:
        return hash(frozenset(self._groups.items()))

    def __getitem__(self, unit: str) -> int:
        return self._groups[unit]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        return f"Shape({self._groups})"


class InputMask:
    """The mask of a layer's input channels, put together from the units that they belong to."""

    def __init__(self, layout: Layout, units: dict[str, OrderingUnit]) -> None:
        self._take((units.get(s.unit) if s.unit else None, s) for s in layout)

    def _take(self, parts: Iterable[tuple[OrderingUnit | None, Segment]]) -> None:
        self.parts = tuple(parts)
        self.orders = [None if s.order is None else torch.tensor(s.order) for _, s in self.parts]

    @property
    def size(self) -> int:
        """Number of channels."""
        return sum(segment.size for _, segment in self.parts)

    def shorten(self, kept: Mapping[OrderingUnit, Tensor]) -> None:
        """Follow units that have no other channels than these from now on."""
        self._take((u, s if u is None else s.shortened(kept[u])) for u, s in self.parts)

    def __call__(self) -> Tensor:
        """The mask of the forward pass under way, (channels,) or (batch, channels)."""
        masks = [None if unit is None else unit.channel_mask() for unit, _ in self.parts]
        like = next(mask for mask in masks if mask is not None)
        pieces = []
        for number, (mask, (_, segment)) in enumerate(zip(masks, self.parts, strict=True)):
            order = self.orders[number]
            if order is not None and order.device != like.device:
                order = self.orders[number] = order.to(like.device)
            size = (*like.shape[:-1], segment.size)
            pieces.append(like.new_ones(size) if mask is None else segment.spread(mask, order))
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


@dataclass(frozen=True)
class Setting:
    """A width as it was asked for.

    Args:
        shape: Groups of each unit.
        words: The width as it was given, for messages.
        free: No width was given: training draws one, evaluation keeps everything.
        sampled: Use the statistics of sampled weights instead of those of the means.
    """

    shape: Shape
    words: str = "1.0"
    free: bool = False
    sampled: bool = False

    @property
    def key(self) -> Key:
        """Key that statistics are kept by."""
        return self.shape, self.sampled


MOST_PLACES = 4096  # answers of `NestedState.kept` that are remembered


@dataclass(eq=False)
class NestedState:
    """The units of a nested network by name, and the layouts of all that they reach."""

    groups: dict[str, Group]
    units: dict[str, OrderingUnit]
    inputs: dict[str, Layout]
    outputs: dict[str, Layout]
    parameters: dict[str, tuple[Layout | None, ...]]
    masked: dict[str, int]  # parameter that a function reads → the dimension of it that is masked
    reductions: dict[str, tuple[Reduction, ...]]  # module → statistics over channels that it takes by functions
    attributes: dict[Attribute, tuple[Layout, int, int]]  # numbers that follow channels: layout, its size, the value
    rows: dict[str, str]  # layer → the unit that orders its own input channels
    elements: dict[str, str]  # layer → the unit that orders its single weights
    bits: dict[str, str]  # layer → the unit that orders the bits of its weights
    whole: dict[str, str]
    first_consumers: list[str]
    functional: list[str]  # what calls F.batch_norm by itself, and has no statistics of widths
    quantile: Quantile | None
    options: dict[str, Any]
    arguments: dict[str, Any]  # of `to_nested`, to build the network again
    example: tuple[tuple[Any, ...], dict[str, Any]]
    stages: dict[str, Stage] = field(default_factory=dict)  # the blocks that units order
    within: dict[str, Place] = field(default_factory=dict)  # unit → the block of a stage that has all its channels
    default: Setting = field(init=False)  # the width that `set_width` sets
    statistics: dict[Key, Statistics] = field(default_factory=dict)
    stamps: dict[Key, int] = field(default_factory=dict)  # batches trained when they were collected
    converted_at: int = 0  # batches trained at the conversion: until there are more, full width needs no statistics
    warned: set[Key] = field(default_factory=set)
    others: list[str] = field(default_factory=list)  # BatchNorms that came in later and were warned of
    ready: dict[Key, Table] = field(default_factory=dict)  # statistics where the norms are
    trained: bool = False  # whether there was a training pass since: BatchNorm may have been frozen, and not count it
    settled: bool = True  # whether statistics were looked up since training or loading
    collecting: int | None = None  # the thread in which `recalibrate` runs the masked network
    blocks: int = 0  # open blocks of `vnd.width`
    unseen: bool = False  # whether compiled code does not know of one of them
    loading: tuple[Tensor | None, ...] | None = None  # what a state dict that is being loaded says of statistics
    shortened: bool = False  # whether it was cut out of a wider nested network, as `extract(keep="nested")` does
    positions: tuple[list[Fraction], ...] | None = None  # at which weights are applied to the example; see `profile`
    places: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)  # what `kept` has answered
    origin: dict[str, Any] | None = None  # what its plain network was cut from; as in `extract.ORIGINS`

    def __post_init__(self) -> None:
        self.default = Setting(self.full, free=True)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle has the width of the context that it is made in as its default."""
        setting = context.here(self) or self.default
        return self.__dict__ | {
            "default": setting,
            "ready": {},
            "settled": False,
            "blocks": 0,
            "unseen": False,
            "collecting": None,
            "places": {},
        }

    @property
    def full(self) -> Shape:
        """The shape that keeps everything."""
        return Shape({name: unit.num_groups for name, unit in self.units.items()})

    @property
    def own_units(self) -> dict[str, str]:
        """Units that order input rows, single weights or bits of one layer, by the layer."""
        return {**self.rows, **self.elements, **self.bits}

    @property
    def shape(self) -> Shape | None:
        """The width that is set, None if none is."""
        return None if self.default.free else self.default.shape

    def setting(self) -> Setting:
        """The width of the caller's context, or the one that is set."""
        return context.said_of(self) or self.default

    # -- statistics ----------------------------------------------------------------------------------------------------

    def stamp(self, root: nn.Module) -> int:
        """Number of batches that BatchNorm was trained on."""
        counts: dict[torch.device, list[Tensor]] = {}
        for _, norm in batch_norms(root):
            counts.setdefault(norm.num_batches_tracked.device, []).append(norm.num_batches_tracked)
        return max((int(torch.stack(own).max()) for own in counts.values()), default=0)  # one look a device

    def valid_statistics(self, root: nn.Module, key: Key) -> Statistics | None:
        """The statistics of a width, unless the network was trained since they were collected."""
        self.let_go()
        return self.statistics.get(key) if self.stamps.get(key) == self.stamp(root) else None

    def let_go(self) -> None:
        """Let go of all statistics if there was a training pass since they were collected."""
        if self.trained:
            self.trained = False
            self.stamps.clear()

    def look_up(self, root: nn.Module, setting: Setting, again: bool = True, warn: bool = True) -> Table:
        """Find what each BatchNorm normalises with at a width; warns where that is of another one.

        Args:
            root: The network.
            setting: The width.
            again: Look whether the network was trained or moved since; the norms themselves see that they were trained.
            warn: Warn of a width without statistics.
        """
        key = setting.key
        table = self.ready.get(key) if self.settled else None
        if table is not None and not again and all(_fits(norm, held) for norm, held in table.items()):
            return table
        norms: dict[str, WidthNorm] = {}
        others: list[str] = []
        for name, module in root.named_modules():
            if isinstance(module, WidthNorm):
                norms[name] = module
            elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
                others.append(name)
        found = self.valid_statistics(root, key)
        if warn and others:
            self._warn_of_others(others)
        if found is None:
            table = dict.fromkeys(norms.values(), ())
            if warn and norms and (setting.shape != self.full or self.stamp(root) != self.converted_at):
                self.warn(setting)
        else:
            table = {
                norm: (*(x.to(norm.trained[0]) for x in found[name]), norm.num_batches_tracked.clone())
                for name, norm in norms.items()
            }
        self.ready = {key: table} if not self.settled or len(self.ready) > 100 else self.ready | {key: table}
        self.settled = True
        return table

    def _warn_of_others(self, others: list[str]) -> None:
        """Warn once of BatchNorms that came in after the conversion, as `convert_sync_batchnorm` puts them in."""
        if new := [name for name in others if name not in (*self.functional, *self.others)]:
            self.others += new
            warnings.warn(
                f"{', '.join(new)}: BatchNorm that came in after the conversion has no statistics of widths; put it in "
                "before vnd.to_nested",
                stacklevel=_outside(),
            )

    def warn(self, setting: Setting) -> None:
        """Warn once that a width was not recalibrated, and name the call that mends it."""
        if setting.key in self.warned:
            return
        self.warned.add(setting.key)
        call = f"vnd.recalibrate(net, batches, widths=({setting.words},){', samples=True' if setting.sampled else ''})"
        message = f"BatchNorm has no statistics for this width; run {call} first"
        warnings.warn(message, stacklevel=_outside())

    def activate(self, root: nn.Module, warn: bool = False) -> None:
        """Give BatchNorm the statistics of the width that is set, for compiled code."""
        for norm, held in self.look_up(root, self.default, warn=warn).items():
            norm.activate(held)

    def said(self, root: nn.Module, setting: Setting, warn: bool = True) -> dict[Any, Any]:
        """Entries of the context for the network to run at a width."""
        return {self: setting, **self._groups(setting), **self.look_up(root, setting, warn=warn and not root.training)}

    def _groups(self, setting: Setting) -> dict[OrderingUnit, int]:
        """Numbers of groups that units keep at a width; −1 for as many as are drawn."""
        kept = dict(setting.shape)
        return {unit: -1 if setting.free else kept[name] for name, unit in self.units.items()}

    # -- a forward pass ------------------------------------------------------------------------------------------------

    def before_forward(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Draw the masks of the forward pass that begins, one draw for all that read them, and find its statistics."""
        if torch.compiler.is_compiling():
            if self.unseen:
                _refuse_unseen()
            if root.training:
                self._begin_training(root)
            for unit, mask in self._draw(root, args, kwargs, None):
                unit.current = mask
            return
        if context.runs_again():  # its layers know their masks
            return
        if self.collecting not in (None, threading.get_ident()):
            raise RuntimeError("vnd.recalibrate runs this network, masked, in another thread; wait for it")
        if (left := context.here(("pass", self))) is not None:
            left.leave()  # of a pass that was interrupted, as by Ctrl-C
            self._forget_masks()
        setting = context.said_of(self)
        values: dict[Any, Any] = {}
        if root.training:
            self._begin_training(root)
            self.warned.clear()
        elif self.collecting is None:
            values |= self.look_up(root, setting or self.default, again=False)
        with lock_of(root) if setting is None else nullcontext(), context.outside_of_regions():
            masks = dict(self._draw(root, args, kwargs, setting))  # no compiled call sets the default width meanwhile
        if setting is None and root.training:
            for unit, mask in masks.items():
                unit.current = mask  # for parts that were compiled; in evaluation they make the same ones
        before = context.put(values | masks)
        stack = ExitStack()
        if (as_defaults := context.here(("compiled", self))) is not None:
            stack.enter_context(as_defaults(root))
        run = _Pass(before, stack)
        context.put({("pass", self): run})
        run.own = context.everything()

    def _begin_training(self, root: nn.Module) -> None:
        self.settled = False
        if torch.is_grad_enabled():
            self.trained = True
        if self.quantile is not None:
            self.quantile.draw()

    def _draw(
        self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], setting: Setting | None
    ) -> Iterator[tuple[OrderingUnit, Tensor]]:
        """The channel mask of each unit, at a width or at the one that is set."""
        batch = None
        if root.training and any(unit.per_example for unit in self.units.values()):
            batch = next((x.size(0) for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        groups = None if setting is None else self._groups(setting)
        for units in alike(self.units.values()):
            fixed = None if groups is None else [groups[unit] for unit in units]
            masks = draw_masks(units, batch if units[0].per_example else None, fixed)
            for unit, mask in zip(units, masks.unbind(), strict=True):
                yield unit, unit.spread(mask)

    def after_forward(self, root: nn.Module, args: Any, output: Any) -> None:
        """Let go of the masks."""
        run = None if torch.compiler.is_compiling() else context.here(("pass", self))
        if run is not None:
            run.end()
        if run is None or root.training:  # compiled, or maybe in parts
            self._forget_masks()

    def _forget_masks(self) -> None:
        for unit in self.units.values():
            unit.current = None

    # -- state dicts ---------------------------------------------------------------------------------------------------

    def write_state(self, root: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Add the statistics of all widths to a state dict: a hook.

        `_vnd_converted_at` is the count of training batches at the conversion; `_vnd_widths`, (widths, units + 1), has
        the groups of each unit, and 1 for sampled weights; `_vnd_statistics`, (widths, 2, channels), the means and the
        variances of all norms, one after the other. The last two are not there where no width has statistics.
        """
        norms = list(batch_norms(root))
        if not norms:
            return
        device = norms[0][1].num_batches_tracked.device
        state[f"{prefix}_vnd_converted_at"] = torch.tensor(self.converted_at, device=device)
        found = {key: held for key in self.statistics if (held := self.valid_statistics(root, key)) is not None}
        if found:
            rows = [[*(shape[name] for name in self.units), int(sampled)] for shape, sampled in found]
            pairs = [
                [torch.cat([held[name][part].to(device) for name, _ in norms]) for part in (0, 1)]
                for held in found.values()
            ]
            state[f"{prefix}_vnd_widths"] = torch.tensor(rows, device=device)
            state[f"{prefix}_vnd_statistics"] = torch.stack([torch.stack(pair) for pair in pairs])

    def before_loading(self, root: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the statistics of all widths out of a state dict: a hook before it is loaded."""
        found = tuple(state.pop(f"{prefix}_vnd_{name}", None) for name in ("converted_at", "widths", "statistics"))
        norms = any(f"{prefix}{name}.running_mean" in state for name, _ in batch_norms(root))
        self.loading = found if norms or found[0] is not None else None

    def after_loading(self, root: nn.Module, incompatible: Any) -> None:
        """Hold the statistics of a state dict that was loaded, and no older ones: a hook after it was loaded."""
        if self.loading is None:
            return
        (converted_at, widths, statistics), self.loading = self.loading, None
        self.settled = False
        self.warned.clear()
        self.statistics.clear()
        self.stamps.clear()
        self.trained = False
        if converted_at is not None:
            self.converted_at = int(converted_at)
            if widths is not None and statistics is not None:
                self._take(root, widths, statistics)
        elif self.stamp(root) != self.converted_at:
            warnings.warn(
                "load_state_dict: the state dict has no BatchNorm statistics of widths, not even of full width; run "
                "vnd.recalibrate(net, batches, widths=(1.0,)), with the widths that you use, first",
                stacklevel=_outside(),
            )
        self.activate(root)

    def _take(self, root: nn.Module, widths: Tensor, statistics: Tensor) -> None:
        norms = list(batch_norms(root))
        sizes = [norm.trained[0].numel() for _, norm in norms]
        if widths.shape != (len(statistics), len(self.units) + 1) or statistics.shape[1:] != (2, sum(sizes)):
            shapes = f"{tuple(widths.shape)} and {tuple(statistics.shape)}"
            raise ValueError(f"load_state_dict: statistics of widths must be those of this network; got {shapes}")
        if not bool(statistics.isfinite().all()) or bool((statistics[:, 1] < 0).any()):
            raise ValueError("load_state_dict: statistics of widths must be finite, and no variance below 0")
        for row, pair in zip(widths.tolist(), statistics, strict=True):
            key = Shape(dict(zip(self.units, row, strict=False))), bool(row[-1])
            parts = zip(norms, *(part.split(sizes) for part in pair), strict=True)
            self.statistics[key] = {
                name: (m.to(norm.trained[0], copy=True), v.to(norm.trained[1], copy=True))
                for (name, norm), m, v in parts
            }
            self.stamps[key] = self.stamp(root)

    # -- channels ------------------------------------------------------------------------------------------------------

    def survival(self, layout: Layout | None, like: Tensor) -> Tensor | None:
        """Probability that each channel of a layout is kept, (channels,); None if all always are."""
        if layout is None:
            return None
        pieces = []
        for segment in layout:
            if segment.unit is None:
                pieces.append(like.new_ones(segment.size))
            else:
                unit = self.units[segment.unit]
                pieces.append(segment.spread(unit.spread(unit.survival())))
        return torch.cat(pieces)

    def place_of(self, name: str) -> Place | None:
        """The block of a stage that a module or parameter lies in."""
        return place_of(self.stages, name)

    def block_survival(self, place: Place | None) -> Tensor | None:
        """Probability that a block is kept, (); None for what lies in no block."""
        if place is None:
            return None
        unit = self.units[place[0]]
        return unit.spread(unit.survival())[place[1]]

    def kept(self, layout: Layout | None, groups: Mapping[str, int]) -> Tensor | None:
        """Indices of the channels of a layout that a shape keeps, in order; None if the layout has no unit.

        They are looked up where the same were asked for before: do not change them in place.
        """
        if layout is None:
            return None
        units = [None if s.unit is None else (self.units[s.unit], groups[s.unit]) for s in layout]
        key = layout, *(None if x is None else (x[0].channels, x[0].num_groups, x[0].tiles, x[1]) for x in units)
        if (found := self.places.get(key)) is not None:
            return found
        pieces, start = [], 0
        for segment, kept in zip(layout, units, strict=True):
            own = torch.arange(start, start + segment.size)
            if kept is not None:
                own = own[torch.isin(segment.places, kept[0].kept_channels(kept[1]).cpu())]
            pieces.append(own)
            start += segment.size
        if len(self.places) >= MOST_PLACES:
            self.places.clear()
        return self.places.setdefault(key, torch.cat(pieces))


class _Pass:
    """A forward pass under way: what the context said before it, and what is to be closed after it."""

    own: Mapping[Any, Any]

    def __init__(self, before: Mapping[Any, Any], stack: ExitStack) -> None:
        self.before, self.stack = before, stack

    def end(self) -> None:
        """Let go of what the pass put into the context."""
        self.stack.close()
        context.put_back(self.before)

    def leave(self) -> None:
        """Let go of a pass that never ended; what a block that was opened since says stays."""
        self.stack.close()
        if context.everything() is self.own:
            context.put_back(self.before)


def alike(units: Iterable[OrderingUnit]) -> list[list[OrderingUnit]]:
    """Sort units into lists whose masks can be drawn together, by a few kernels instead of many."""
    kinds: dict[tuple[Any, ...], list[OrderingUnit]] = {}
    for unit in units:
        kinds.setdefault(unit.likeness, []).append(unit)
    return list(kinds.values())


def _fits(norm: WidthNorm, held: tuple[Tensor, ...]) -> bool:
    mean = norm.trained[0]
    return not held or (held[0].device == mean.device and held[0].dtype == mean.dtype)


def _refuse_unseen() -> None:
    raise RuntimeError(
        "vnd.width: compiled code does not see this block; open it on what torch.compile gave, or use vnd.set_width"
    )


# So that it runs while code is compiled: torch.compiler.assume_constant_result would load the compiler, a second.
_refuse_unseen._dynamo_marked_constant = True  # type: ignore[attr-defined]


_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def lock_of(root: nn.Module) -> Any:
    """Lock that is held while a network's defaults are those of one compiled call."""
    return _LOCKS.get(root) or _LOCKS.setdefault(root, threading.RLock())


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
    if not isinstance(net, nn.Module):
        raise ValueError(f"net must be an nn.Module; got a {type(net).__name__}")
    while True:
        inner = getattr(net, "_orig_mod", None) or (net.module if hasattr(net, "device_ids") else None)
        if not isinstance(inner, nn.Module):
            return net
        net = inner


def nested_part(net: nn.Module) -> nn.Module:
    """The nested network in a module: the module itself without wrappers, or the only nested network within it.

    A module without any, or with several, is given back itself, without its wrappers.
    """
    root = unwrap(net)
    if hasattr(root, "_vnd_state"):
        return root
    parts = [module for module in all_modules(root) if "_vnd_state" in vars(module)]
    return parts[0] if len(parts) == 1 else root


def all_modules(root: nn.Module) -> list[nn.Module]:
    """All modules of a network, each once: `root.modules()` without its names, which take longer than small layers."""
    found, seen = [root], {root}
    for module in found:  # which grows
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def path_of(root: nn.Module, part: nn.Module) -> str:
    """The name of a part of a network, "" for the network itself."""
    return next((name for name, module in root.named_modules() if module is part), "")


def state_of(net: nn.Module) -> NestedState:
    """The state of a nested network, or of the only one within a larger model; a ValueError for any other."""
    state = getattr(nested_part(net), "_vnd_state", None)
    if isinstance(state, NestedState):
        return state
    kind = type(unwrap(net)).__name__
    if parts := [name for name, module in unwrap(net).named_modules() if hasattr(module, "_vnd_state")]:
        raise ValueError(
            f"{kind} holds {len(parts)} nested networks, each with a width of its own; give one of them: "
            f"{', '.join(parts)}"
        )
    raise ValueError(f"{kind} is not a nested network; make it one with vnd.to_nested first")


def batch_norms(net: nn.Module) -> Iterator[tuple[str, WidthNorm]]:
    """All BatchNorm layers of a nested network that keep running statistics, by name."""
    for name, module in nested_part(net).named_modules():
        if isinstance(module, WidthNorm):
            yield name, module
