"""Cost of an extracted network: parameters, multiply-accumulates, bytes, time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vnd._text import one_line
from vnd.nn.arguments import describe_value, each_tensor, tensors_of
from vnd.nn.attention import opened_attention
from vnd.nn.bayesian import BayesLayer
from vnd.nn.context import saying
from vnd.nn.dependency import Layout, Segment
from vnd.nn.depth import Place
from vnd.nn.extract import CONVOLUTIONS, TRANSPOSED, is_depthwise, slice_network
from vnd.nn.norms import ACTIVE, WidthNorm
from vnd.nn.predict import evaluating
from vnd.nn.recorder import name_of
from vnd.nn.state import Shape, arguments_of, nested_part, state_of, unwrap
from vnd.nn.width import Width, as_shape, setting_of

NOISE = ("log_alpha", "log_variance")
TIMED = 5  # passes whose median is the latency that an evaluation has of each size
CONTRACTIONS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm"}  # whose multiply-accumulates are counted
Size = Callable[[Mapping[str, int]], int]  # along a dimension, of how many groups each unit keeps
Kept = Callable[[Mapping[str, int]], int]  # 1 where a block is kept, 0 where not


@dataclass(frozen=True)
class Profile:
    """The size of a network; `macs` is for one example, 0 if it was not counted.

    Of weights whose bits are ordered, `bytes` has the bits that are kept, packed, and a scale for each output channel,
    as they can be stored; an extracted network holds them as floats.

    >>> import torch, vnd
    >>> vnd.profile(torch.nn.Linear(2, 3), example_input=torch.zeros(1, 2))
    Profile(parameters=9, macs=6, bytes=36)
    """

    parameters: int
    macs: int
    bytes: int


def profile(net: nn.Module, width: Width = None, example_input: Any = None, *, count_macs: bool = True) -> Profile:
    """Count the extracted network's parameters, its bytes (with buffers), and its multiply-accumulates an example.

    Multiply-accumulates are those of convolutions and linear layers, counted while running the example. A network that
    is masked before its norms has no smaller form: it costs at every width what the whole one does.

    Args:
        net: A nested network; or any other, of its one width, or a model that holds a nested network, which need an
            example.
        width: A `Shape`, a fraction in (0, 1], or None: no width given; the one that is set.
        example_input: A tensor, a tuple of arguments or a dict; that of the conversion if None.
        count_macs: Whether to run the example.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> vnd.profile(net, 0.5)
    Profile(parameters=27, macs=20, bytes=108)
    """
    if not count_macs and hasattr(nested_part(net), "_vnd_state"):
        shape = as_shape(net, width)
        return Counter(net).profile(state_of(net).full if runs_whole(net) else shape)
    small = _small(net, width)
    parameters = list(small.parameters())
    size = sum(x.numel() * x.element_size() for x in (*parameters, *small.buffers()))
    if hasattr(nested_part(net), "_vnd_state") and state_of(net).bits:
        size = Counter(net).profile(as_shape(net, width)).bytes
    macs = 0
    if count_macs:
        args, kwargs = _example(net, example_input)
        weights = [x for module in small.modules() for x in _weights_of(module).values()]
        places = zip(_positions(small, args, kwargs), weights, strict=True)
        macs = int(sum(count * weight.numel() for count, weight in places)) // _batch(args, kwargs)
    return Profile(sum(x.numel() for x in parameters), macs, size)


class Counter:
    """Counts what would be extracted from a nested network, from the layouts of its channels alone.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> Counter(net).profile(vnd.Shape({"0": 2}))
    Profile(parameters=27, macs=0, bytes=108)
    """

    def __init__(self, net: nn.Module) -> None:
        self.state = state_of(net)
        self.channels = {  # unit → channels of its first 0, 1, … groups
            name: [0, *accumulate(size * unit.tiles for size in unit.group_sizes)]
            for name, unit in self.state.units.items()
        }
        # The tensors by id, since shared ones count once: whether a parameter, bytes of an entry, entries along the
        # dimensions that are not cut, and sizes along those that are.
        self.tensors: dict[int, tuple[bool, int, int, list[Size]]] = {}
        self.bits: dict[int, str] = {}  # id of a weight whose bits are ordered → its unit
        self.weights: list[int] = []  # ids of what may mix channels, in the order of modules
        self.selections: list[Size] = []  # indices that stand before layers whose own rows are cut
        dropped = {id(part) for unit in self.state.units.values() for part in unit.modules()}
        nested = {id(module): name for name, module in nested_part(net).named_modules()}
        self.kept: list[Kept] = []  # of their layers: whether a shape keeps the block that each lies in
        for module in unwrap(net).modules():
            if id(module) not in dropped:
                self._add(nested.get(id(module)), module)
        self._add_blocks(net)

    def _add(self, name: str | None, module: Any) -> None:
        """Count a module, by its name in the nested network; None for one of a larger model around it."""
        state = self.state
        inputs, outputs = self._size(state.inputs.get(name or "")), self._size(state.outputs.get(name or ""))
        if name in state.rows:
            inputs = self._read(name or "", module)
            self.selections.append(inputs)
        if name in state.bits:
            self.bits[id(module.weight)] = state.bits[name]
        dims = _cut_dims(module, inputs, outputs)
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            noise = isinstance(module, BayesLayer) and key in NOISE
            if tensor is None or noise or (isinstance(module, WidthNorm) and key in ACTIVE):
                continue
            sizes = dims.get(key, {})
            if name is not None and name not in state.inputs and name not in state.outputs:
                layouts = state.parameters.get(f"{name}.{key}" if name else key, ())
                sizes |= {dim: self._size(layout) for dim, layout in enumerate(layouts)}
            cut = {dim: size for dim, size in sizes.items() if size is not None}
            fixed = prod(size for dim, size in enumerate(tensor.shape) if dim not in cut)
            parameter = isinstance(tensor, nn.Parameter) and key != "log_scale"  # which no extracted network has
            entry = (parameter, tensor.element_size(), fixed, list(cut.values()))
            self.tensors.setdefault(id(tensor), entry)
        for weight in _weights_of(module).values():
            self.weights.append(id(weight))
            self.kept.append(self._keeps(self.state.place_of(name or "")))

    def _keeps(self, place: Place | None) -> Kept:
        """The function that tells if a shape keeps a block."""
        if place is None:
            return lambda groups: 1
        (unit, index), blocks = place, self.channels[place[0]]
        return lambda groups: int(blocks[groups[unit]] > index)

    def _add_blocks(self, net: nn.Module) -> None:
        """Let tensors count only where a block is kept that holds them."""
        if not self.state.stages:
            return
        part = nested_part(net)
        held: dict[int, set[Place | None]] = {}
        inside = {id(module) for module in part.modules()}
        for module in unwrap(net).modules():
            if id(module) not in inside:
                for tensor in (*module._parameters.values(), *module._buffers.values()):
                    held.setdefault(id(tensor), set()).add(None)
        named = (part.named_parameters(remove_duplicate=False), part.named_buffers(remove_duplicate=False))
        for name, tensor in (entry for table in named for entry in table):
            held.setdefault(id(tensor), set()).add(self.state.place_of(name))
        for key, places in held.items():
            if key in self.tensors and None not in places:
                self.tensors[key][3].append(_any_of([self._keeps(place) for place in places]))

    def _size(self, layout: Layout | None) -> Size | None:
        """Number of channels of a layout that are kept."""
        if layout is None:
            return None
        fixed = sum(s.size for s in layout if s.unit is None)
        parts = [(s.unit, self._sizes(s)) for s in layout if s.unit is not None]
        return lambda groups: fixed + sum(sizes[groups[unit]] for unit, sizes in parts)

    def _sizes(self, segment: Segment) -> list[int]:
        """Numbers of places of a segment that are kept with 0, 1, … groups of its unit."""
        assert segment.unit is not None
        if segment.order is None:
            return [segment.repeat * count for count in self.channels[segment.unit]]
        unit = self.state.units[segment.unit]
        kept = [unit.kept_channels(groups).cpu() for groups in range(unit.num_groups + 1)]
        return [int(torch.isin(segment.places, channels).sum()) for channels in kept]

    def _read(self, name: str, layer: Any) -> Size:
        """Number of channels that arrive at a layer whose own rows are cut, and that it reads."""
        layout, unit = self.state.inputs.get(name), self.state.rows[name]

        def count(groups: Mapping[str, int]) -> int:
            rows = self.state.units[unit].kept_channels(groups[unit])
            arriving = self.state.kept(layout, dict(groups))
            return len(rows) if arriving is None else int(torch.isin(arriving, rows).sum())

        return count

    def entries(self, shape: Mapping[str, int]) -> dict[int, int]:
        """Number of entries of each tensor, by id."""
        return {key: fixed * prod(size(shape) for size in cut) for key, (_, _, fixed, cut) in self.tensors.items()}

    def profile(self, shape: Mapping[str, int], positions: list[Fraction] | None = None) -> Profile:
        """Count the network of a shape, and what it computes, given at how many positions each layer runs."""
        sizes = self.entries(shape)
        parameters = sum(sizes[key] for key, (parameter, *_) in self.tensors.items() if parameter)
        held = sum(sizes[key] * width for key, (_, width, *_) in self.tensors.items() if key not in self.bits)
        held += sum(-(-sizes[key] * self.channels[unit][shape[unit]] // 8) for key, unit in self.bits.items())
        held += sum(8 * size(shape) for size in self.selections)
        macs = int(sum(places * sizes[key] for places, key in zip(positions or (), self.weights, strict=False)))
        return Profile(parameters, macs, held)


def _any_of(blocks: list[Kept]) -> Kept:
    """The function that tells if a shape keeps one of several blocks."""
    return lambda groups: max(kept(groups) for kept in blocks)


def _cut_dims(module: Any, inputs: Size | None, outputs: Size | None) -> dict[str, dict[int, Size | None]]:
    """Sizes of a layer's tensors along the dimensions that `extract` cuts."""
    if isinstance(module, nn.Linear):
        return {"weight": {0: outputs, 1: inputs}, "bias": {0: outputs}, "log_scale": {0: outputs}}
    if not isinstance(module, CONVOLUTIONS):
        return {key: {0: outputs} for key in ("weight", "bias", "running_mean", "running_var")}
    own, other = (inputs, outputs) if isinstance(module, TRANSPOSED) else (outputs, inputs)
    across = None if is_depthwise(module) or other is None else lambda groups: other(groups) // module.groups
    scales = across if isinstance(module, TRANSPOSED) else own
    return {"weight": {0: own, 1: across}, "bias": {0: outputs}, "log_scale": {0: scales}}


def cost_of(net: nn.Module, what: str, example_input: Any = None) -> Callable[[Shape], float]:
    """The function from shapes to parameters, bytes, macs or latency_ms of what would be extracted.

    All but the time are counted from layouts. Multiply-accumulates need the number of positions at which each layer
    runs: that of the full network, unless the smallest runs at others, when each network is extracted and run.
    """
    if what == "latency_ms":
        return lambda shape: latency(net, shape, example_input)
    counter, positions = Counter(net), None
    if what == "macs":
        state, (args, kwargs) = state_of(net), _example(net, example_input)
        least = Shape({name: unit.base for name, unit in state.units.items()})
        found = None if example_input is not None else state.positions
        found = found or tuple(_positions(slice_network(net, shape), args, kwargs) for shape in (state.full, least))
        if example_input is None:
            state.positions = found
        positions, smallest = found
        if [count for count, kept in zip(positions, counter.kept, strict=True) if kept(least)] != smallest:
            return lambda shape: profile(net, shape, example_input).macs
        batch = _batch(args, kwargs)
        return lambda shape: counter.profile(shape, positions).macs // batch
    return lambda shape: float(getattr(counter.profile(shape), what))


def latency(net: nn.Module, width: Width = None, example_input: Any = None, repeats: int = 11) -> float:
    """Median milliseconds of a forward pass of the extracted network on the example, here and now.

    Of one that is masked before its norms, of the masked network.
    """
    masked = runs_whole(net)
    small = net if masked else _small(net, width)
    args, kwargs = _example(net, example_input)
    cuda = any(p.is_cuda for p in small.parameters())
    times = []
    setting: AbstractContextManager[None] = nullcontext()
    if masked and width is not None:  # whatever BatchNorm's statistics are, it takes as long: no warning
        setting = saying(state_of(net).said(nested_part(net), setting_of(net, width), warn=False))
    with evaluating(small), setting, torch.inference_mode():
        _run(small, args, kwargs)
        for _ in range(repeats):
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            small(*args, **kwargs)
            if cuda:
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _small(net: nn.Module, width: Width) -> nn.Module:
    if width is None and not hasattr(nested_part(net), "_vnd_state"):
        return net
    shape = as_shape(net, width)
    return slice_network(net, state_of(net).full if runs_whole(net) else shape)


def runs_whole(net: nn.Module) -> bool:
    """Tell if a nested network is masked before its norms, so that nothing smaller computes what it does."""
    return hasattr(nested_part(net), "_vnd_state") and state_of(net).options["placement"] == "before_norm"


def _example(net: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is None:
        root = unwrap(net)
        if not hasattr(root, "_vnd_state"):
            raise ValueError(
                f"example_input must be an input of the {type(root).__name__} to run it on, which was not converted on "
                "one; got None"
            )
        like = next((p for p in net.parameters() if p.is_floating_point()), None)
        held: tuple[tuple[Any, ...], dict[str, Any]] = state_of(net).example
        if like is None:
            return held
        args, kwargs = each_tensor(held, lambda x: x.to(like) if x.is_floating_point() else x.to(like.device))
        return args, kwargs
    if not any(True for _ in tensors_of(example)):
        got = describe_value(example)
        raise ValueError(f"example_input must be a tensor, a tuple of arguments or a dict of them; got {got}")
    return arguments_of(example)


def _run(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run an example; what the network cannot read is said with its shapes."""
    try:
        net(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        got = ", ".join(describe_value(x) for x in tensors_of((args, kwargs)))
        raise ValueError(f"example_input must be what the network reads; got {got}: {one_line(error)}") from error


@torch.no_grad()
def _positions(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Fraction]:
    """At how many positions of all examples each weight is applied: multiply-accumulates over its entries."""
    weights = [x for module in net.modules() for x in _weights_of(module).values()]
    work = _Work({id(weight) for weight in weights})
    with evaluating(net), opened_attention(net), work:
        _run(net, args, kwargs)
    # One that several modules hold counts where it is met first.
    return [Fraction(work.macs.pop(id(weight), 0), max(1, weight.numel())) for weight in weights]


def _weights_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module that may mix channels, not what a posterior has beside them."""
    found = {key: x for key, x in module._parameters.items() if x is not None and x.dim() > 1}
    return {key: x for key, x in found.items() if not (isinstance(module, BayesLayer) and key in NOISE)}


class _Work(TorchFunctionMode):
    """Counts the multiply-accumulates of functions that contract a tensor with one of these weights or a part of it."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self.macs = dict.fromkeys(weights, 0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output, name = func(*args, **(kwargs or {})), name_of(func)
        if name in CONTRACTIONS or name.startswith("conv"):
            operands = list(tensors_of((args, kwargs or {})))
            for operand in operands:
                base = operand if id(operand) in self.macs else operand._base
                if base is not None and id(base) in self.macs:
                    self.macs[id(base)] += _macs(name, operands, operand, output)
                    break
        return output


def _macs(name: str, operands: list[Tensor], weight: Tensor, output: Tensor) -> int:
    """Multiply-accumulates of one contraction."""
    if name.startswith("conv"):
        places = operands[0].numel() if "transpose" in name else output.numel()
        return places // weight.size(0) * weight.numel()
    return output.numel() * (weight.size(-1) if name == "linear" or weight is operands[0] else weight.size(-2))


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return next((x.size(0) for x in tensors_of((args, kwargs)) if x.dim()), 1)
