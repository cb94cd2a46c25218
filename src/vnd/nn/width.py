"""Shapes: how many groups of each unit a network keeps, and how to choose and set them.

What `torch.compile` makes cannot read the caller's context, but the defaults that modules hold: `fixed_groups` of
units, the active statistics of norms, `sampling` and `expansion` of Bayesian layers. For one call at a time they are
set to what the context says, and others wait: one graph serves all widths, and nobody sees the width of another.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from vnd.functional import log_survival
from vnd.nn import context
from vnd.nn.arguments import describe_value
from vnd.nn.bayesian import BayesLayer
from vnd.nn.norms import WidthNorm
from vnd.nn.ordering import OrderingUnit, pin, sampling_posterior
from vnd.nn.state import NestedState, Setting, Shape, all_modules, lock_of, nested_part, state_of, unwrap

Width = Shape | float | None  # None: no width given; the one that is set, full if none is
_CALLS = threading.local()  # what undoes the calls of compiled networks under way, the innermost last


def shape(
    net: nn.Module,
    *,
    fraction: float | None = None,
    level: float | None = None,
    parameters: float | None = None,
    macs: float | None = None,
    bytes: float | None = None,
    latency_ms: float | None = None,
    example_input: Any = None,
) -> Shape:
    r"""Choose a shape: give exactly one of the keywords.

    A budget walks one order of all units of the network, by falling survival, and takes the longest prefix whose
    extracted network fits, so shapes of growing budgets are nested. A network that is masked before its norms has no
    smaller form, and no budget but the whole can be met: those are refused.

    Args:
        net: A nested network.
        fraction: The same share of the groups of every unit, in (0, 1], rounded up.
        level: The learned shape at the quantile u = 1 − level: unit i is kept where $1 - \text{level} < P(z_i = 1)$.
            In (0, 1]; larger is larger.
        parameters: Largest number of parameters of the extracted network.
        macs: Largest number of multiply-accumulates of one example, counted on `example_input`.
        bytes: Largest size of parameters and buffers.
        latency_ms: Largest median time of a forward pass on `example_input`, measured here and now.
        example_input: What to count or time on; that of the conversion if None.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> dict(vnd.shape(net, fraction=0.5)), dict(vnd.shape(net, parameters=50))
    ({'0': 2}, {'0': 3})
    """
    from vnd.nn.profile import cost_of

    state = state_of(net)
    given = {
        "fraction": fraction, "level": level, "parameters": parameters, "macs": macs, "bytes": bytes,
        "latency_ms": latency_ms,
    }  # fmt: skip
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise ValueError(f"shape: give exactly one of {', '.join(given)}; got {', '.join(chosen) or 'none'}")
    if fraction is not None:
        _check_share("fraction", fraction)
        return Shape({name: _share(fraction, unit) for name, unit in state.units.items()})
    if level is not None:
        _check_share("level", level)
        return _level_shape(state, level)
    budget = given[chosen[0]]
    if isinstance(budget, bool) or not isinstance(budget, Real):
        raise ValueError(f"shape: {chosen[0]} must be a number; got {describe_value(budget)}")
    if state.options["placement"] == "before_norm":
        raise ValueError(
            f"shape: {chosen[0]} must be left out for a network that is masked before its norms: it runs whole at "
            "every width; give fraction or level"
        )
    return _longest_prefix(state, cost_of(net, chosen[0], example_input), float(budget), chosen[0])


def _share(fraction: float, unit: OrderingUnit) -> int:
    """Number of groups of a fraction: rounded up (but for a rounding error), never below base."""
    return max(unit.base, math.ceil(fraction * unit.num_groups - 1e-9))


def _check_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value <= 1:
        raise ValueError(f"shape: {name} must lie in (0, 1]; got {describe_value(value)}")


@torch.no_grad()
def _level_shape(state: NestedState, level: float) -> Shape:
    log_u, units = math.log1p(-level) if level < 1 else -math.inf, state.units.items()
    return Shape({name: unit.base + int((log_survival(unit.keep_logits) > log_u).sum()) for name, unit in units})


@torch.no_grad()
def sample_shapes(net: nn.Module, count: int, seed: int = 0) -> list[Shape]:
    r"""Draw shapes from the posterior over lengths, as training does; the global generator is left as it was.

    Coupled layers share the quantile u of a shape, and the shapes are spread evenly: $u_k = (k + U) / \text{count}$
    with one uniform U. Layers that are not coupled draw one each.

    Args:
        net: A nested network.
        count: Number of shapes, at least 1.
        seed: Makes the draws repeatable.
    """
    state = state_of(net)
    if count < 1:
        raise ValueError(f"sample_shapes: count must be at least 1; got {count}")
    generator = torch.Generator().manual_seed(seed)
    if state.quantile is not None:
        start = float(torch.rand((), generator=generator, dtype=torch.float64))
        return [_level_shape(state, 1 - (k + start) / count) for k in range(count)]

    def draw(unit: OrderingUnit) -> int:
        log_u = float(torch.rand((), generator=generator, dtype=torch.float64).log())
        return unit.base + int((sampling_posterior([unit]).chain.log_survival > log_u).sum())

    return [Shape({name: draw(unit) for name, unit in state.units.items()}) for _ in range(count)]


@torch.no_grad()
def _longest_prefix(state: NestedState, cost: Callable[[Shape], float], budget: float, name: str) -> Shape:
    """Add units to the smallest shape in the order of their survival, while the cost stays within the budget."""
    entries = [
        (-float(value), place, unit)
        for place, (unit, module) in enumerate(state.units.items())
        for value in log_survival(module.keep_logits)
    ]
    order = [unit for _, _, unit in sorted(entries, key=lambda entry: entry[:2])]

    def prefix(length: int) -> Shape:
        groups = {unit: module.base for unit, module in state.units.items()}
        for unit in order[:length]:
            groups[unit] += 1
        return Shape(groups)

    if not budget > 0:
        raise ValueError(f"shape: {name} must be greater than 0; got {budget:g}")
    smallest = cost(prefix(0))
    if smallest > budget:
        raise ValueError(f"shape: {name} must be at least {smallest:g}, the smallest network's; got {budget:g}")
    low, high = 0, len(order)  # the prefix of length low fits
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(prefix(middle)) <= budget else (low, middle - 1)
    return prefix(low)


def as_shape(net: nn.Module, width: Width) -> Shape:
    """A shape from a shape, a fraction in (0, 1], or None: no width given; the one that is set, full if none is.

    The whole number 1 is all of the network, as 1.0 is; others might count groups or channels, and are refused.
    """
    state = state_of(net)
    if width is None:
        return state.setting().shape
    if isinstance(width, Shape):
        _check_shape(state, width)
        return width
    if isinstance(width, float) or (type(width) is int and width == 1):
        return shape(net, fraction=width)
    got = describe_value(width)
    raise ValueError(f"width must be a Shape, a float fraction in (0, 1] or None; got {got}, which is ambiguous")


def _check_shape(state: NestedState, width: Shape) -> None:
    unknown, missing = set(width) - set(state.units), set(state.units) - set(width)
    if unknown or missing:
        raise ValueError(
            f"width: the shape is of another network; unknown {sorted(unknown)}, missing {sorted(missing)}"
        )
    for name, unit in state.units.items():
        if not unit.base <= width[name] <= unit.num_groups:
            raise ValueError(f"width: unit {name} must keep {unit.base} … {unit.num_groups} groups; got {width[name]}")


def setting_of(net: nn.Module, width: Width, samples: bool = False) -> Setting:
    """A width as it was asked for; see `as_shape`."""
    if not isinstance(samples, bool):
        raise ValueError(f"width: samples must be True or False; got {samples!r}")
    if width is None:
        return replace(state_of(net).setting(), sampled=samples)
    return Setting(as_shape(net, width), "shape" if isinstance(width, Shape) else f"{width:g}", sampled=samples)


def set_width(net: nn.Module, width: Width, *, samples: bool = False, warn: bool = True) -> None:
    """Set the width at which a nested network runs by default, until it is set again.

    It holds for all who run the network outside of `vnd.width`, in every thread. In evaluation, BatchNorm gets the
    statistics that `recalibrate` kept for this shape. A shape without any runs on those of training, and warns once.

    Args:
        net: A nested network.
        width: A `Shape` or a fraction in (0, 1]. None takes the setting back, as after the conversion: training draws
            widths, evaluation keeps everything.
        samples: Use the statistics of sampled weights instead of those of the means.
        warn: Warn of a shape that was not recalibrated.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> vnd.set_width(net, 0.5)
    >>> vnd.profile(net).parameters
    27
    """
    state, part = state_of(net), nested_part(net)
    setting = setting_of(net, width, samples)
    if width is None:
        setting = Setting(state.full, free=True, sampled=samples)
    with lock_of(part):
        state.default = setting
        pin([*state.units.values()], [-1 if setting.free else setting.shape[name] for name in state.units])
        state.activate(part, warn=warn and not part.training)
    if part.training:
        state.settled = False  # look again, and warn, at the next evaluation


@contextmanager
def width(net: nn.Module, width: Width, *, samples: bool = False) -> Iterator[nn.Module]:
    """Run a nested network at a width within a block; see `set_width`. None: no width given; the one that is set.

    The width belongs to the thread or task that opened the block, and others run the network at widths of their own
    meanwhile. Tasks and `asyncio.to_thread` that start within the block have it, too. The workers of a thread pool do
    not: there the network refuses to run, unless in a block or by `predict` at a width given.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> with vnd.width(net, 0.5):
    ...     net(torch.ones(4, 2)).shape
    torch.Size([4, 3])
    """
    state, part = state_of(net), nested_part(net)
    said = state.said(part, setting_of(net, width, samples))
    serve(net)
    if is_compiled(part):
        said["compiled", state] = as_defaults  # for every pass: parts of it cannot read the context
    with context.block(said):
        _count(part, state, 1)
        try:
            yield net
        finally:
            _count(part, state, -1)


def _count(part: nn.Module, state: NestedState, change: int) -> None:
    with lock_of(part):
        state.blocks += change
        state.unseen = state.blocks > 0


# -- compiled networks -------------------------------------------------------------------------------------------------


def is_compiled(net: nn.Module) -> bool:
    """Tell if a network, a wrapper of it or a part of it was compiled."""
    return any(_is_wrapper(m) or m._compiled_call_impl is not None for m in all_modules(net))


def _is_wrapper(module: nn.Module) -> bool:
    """Tell if `torch.compile` gave a module; where its compiler was never loaded, it gave none."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and isinstance(module, frames.OptimizedModule)


@contextmanager
def as_defaults(net: nn.Module) -> Iterator[None]:
    """Run a network, of which all or parts were compiled, with what the context says as its defaults."""
    root = unwrap(net)
    with lock_of(nested_part(root)):
        undo: list[Callable[[], Any]] = []
        try:
            _set(root, undo)
            yield
        finally:
            for step in reversed(undo):
                step()


def serve(net: nn.Module) -> None:
    """Let every call of what `torch.compile` gave run with what its caller's context says."""
    while net is not unwrap(net):
        if _is_wrapper(net) and _before not in net._forward_pre_hooks.values():
            net.register_forward_pre_hook(_before)
            net.register_forward_hook(_after, always_call=True)
        net = net._orig_mod if _is_wrapper(net) else net.module  # type: ignore[assignment]


def _before(wrapper: nn.Module, args: Any) -> None:
    state: NestedState | None = getattr(nested_part(wrapper), "_vnd_state", None)
    if state is not None:
        context.said_of(state)  # refuses other threads
    call = as_defaults(wrapper)
    call.__enter__()
    _CALLS.open = [*getattr(_CALLS, "open", []), call]


def _after(wrapper: nn.Module, args: Any, output: Any) -> None:
    if calls := getattr(_CALLS, "open", []):
        _CALLS.open = calls[:-1]
        calls[-1].__exit__(None, None, None)


def _set(root: nn.Module, undo: list[Callable[[], Any]]) -> None:
    state: NestedState | None = getattr(nested_part(root), "_vnd_state", None)
    if state is not None and state.unseen:
        undo.append(lambda: setattr(state, "unseen", bool(state.blocks)))
        state.unseen = False
    buffers: list[tuple[Tensor, Any]] = []  # and what they are to hold
    for module in root.modules():
        said = context.here(module)
        if isinstance(module, OrderingUnit) and said is not None:
            undo.append(partial(setattr, module, "current", module.current))
            if isinstance(said, int):
                buffers.append((module.fixed_groups, said))
            else:
                module.current = said
        elif isinstance(module, WidthNorm) and said is not None:
            active: Any = zip((module.active_mean, module.active_var, module.active_at), said, strict=True)
            buffers += active if said else [(module.active_at, -1)]
        elif isinstance(module, BayesLayer) and said is not None:
            asked = {"sampling": said.sampling, "expansion": said.expansion, "_pooled": said.pooled}
            asked["estimator"] = said.estimator or module.estimator
            own = vars(module)  # no parameters, which alone need the much slower setattr
            undo.append(partial(own.update, {name: own[name] for name in asked}))
            own.update(asked)
    kinds: dict[Any, list[tuple[Tensor, Any]]] = {}
    for buffer, value in buffers:
        kinds.setdefault((buffer.device, buffer.dtype, isinstance(value, int)), []).append((buffer, value))
    for (device, dtype, whole), pairs in kinds.items():  # few kernels for all of them
        held, values = [buffer for buffer, _ in pairs], [value for _, value in pairs]
        undo.append(partial(torch._foreach_copy_, held, torch._foreach_mul(held, 1)))
        torch._foreach_copy_(held, [*torch.tensor(values, device=device, dtype=dtype)] if whole else values)
