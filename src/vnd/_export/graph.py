r"""Networks as functions of tensors alone, which is what a file holds: one for each width, or one masked for all.

A posterior's draws are a function of noise, an input of its own: $b = γ + \sqrt δ\, ε$ with ε from the columns of a
matrix (batch, n) that belong to the layer. n counts the noise of the whole network; a narrower one reads those columns
of it that belong to the channels it keeps. So the same noise gives the same draws in any program, masked or cut.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from vnd.nn.arguments import Arguments, Output, pick_tensor
from vnd.nn.bayesian import BayesLayer
from vnd.nn.context import saying
from vnd.nn.extract import Keep, slice_network
from vnd.nn.predict import evaluating
from vnd.nn.recalibrate import sampling
from vnd.nn.state import NestedState, Setting, Shape, batch_norms, nested_part, path_of

Selection = dict[str, tuple[Tensor, ...]]  # tensor of a network → which entries it keeps, along each dimension
Kept = Mapping[str, list[int] | None]  # layer → the channels of its output that there are; None for all
OWN = ("width", "noise", "logits", "output")  # names that files have for other things
_HERE = object()  # a place among arguments where a tensor comes


# -- inputs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """The tensors among a network's arguments, by name; all else stays as the example has it.

    >>> inputs = Inputs.of(nn.Linear(4, 2), (torch.ones(3, 4),), {})
    >>> inputs.names, [tuple(x.shape) for x in inputs.zeros(2)]
    (['input'], [(2, 4)])
    """

    names: list[str]
    examples: list[Tensor]
    batched: list[bool]
    leaves: list[Any]
    spec: Any

    @classmethod
    def of(cls, net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The inputs of a network, from example arguments."""
        lead = Arguments.of(kwargs or args, "export").lead
        paths, spec = _pytree.tree_flatten_with_path((args, kwargs))
        found = [(_name(net, path), leaf.detach().cpu()) for path, leaf in paths if isinstance(leaf, Tensor)]
        examples = [x.float() if x.is_floating_point() else x for _, x in found]  # as the network's copy is
        names: list[str] = []
        for name, _ in found:
            while name in (*OWN, *names):
                name += "_input"
            names.append(name)
        names = ["image"] if len(found) == 1 and examples[0].dim() == 4 else names
        batched = [x.dim() > 0 and x.size(0) == lead.size(0) for x in examples]
        return cls(names, examples, batched, [_HERE if isinstance(x, Tensor) else x for _, x in paths], spec)

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with these tensors in their places."""
        given = iter(tensors)
        leaves = [next(given) if leaf is _HERE else leaf for leaf in self.leaves]
        args, kwargs = _pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def zeros(self, batch: int) -> list[Tensor]:
        """Zeros in the shapes of the example: what is traced, so that no file holds a byte of a user's data."""
        return [x.new_zeros(self._shape(x, many, batch)) for x, many in zip(self.examples, self.batched, strict=True)]

    def random(self, batch: int, seed: int = 0) -> list[Tensor]:
        """Made-up inputs in the range of the example's: floats evenly spread, others drawn from its entries."""
        generator = torch.Generator().manual_seed(seed)

        def one(x: Tensor, many: bool) -> Tensor:
            shape = self._shape(x, many, batch)
            if not x.is_floating_point():
                return x.flatten()[torch.randint(max(1, x.numel()), shape, generator=generator)]
            low, high = (float(end) for end in x.aminmax()) if x.numel() else (0.0, 0.0)
            low, high = (low, high) if high > low else (0.0, 1.0)
            return torch.rand(shape, generator=generator, dtype=x.dtype) * (high - low) + low

        return [one(x, many) for x, many in zip(self.examples, self.batched, strict=True)]

    @staticmethod
    def _shape(x: Tensor, many: bool, batch: int) -> tuple[int, ...]:
        return (batch, *x.shape[1:]) if many else tuple(x.shape)


def _name(net: nn.Module, path: tuple[Any, ...]) -> str:
    """The name that `forward` has for an argument; what lies deeper has the keys to it behind."""
    first, key, *rest = (getattr(entry, "key", getattr(entry, "idx", entry)) for entry in path)
    try:
        names = [*inspect.signature(net.forward).parameters]
    except (TypeError, ValueError):
        names = []
    if first == 0:
        key = names[key] if key < len(names) else f"input_{key}"
    return "_".join(map(str, (key, *rest)))


# -- noise -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A draw of a layer: the columns of the noise that it reads, and the size of its channels, counted from the end."""

    start: int
    stop: int
    dim: int
    channels: int
    weight: tuple[int, ...] = ()  # the whole weight's shape, where it is drawn itself, once for all examples


Noise = dict[tuple[str, int], Site]  # (layer, how many times it ran before) → its draw


def noise_columns(sites: Noise) -> int:
    """Number n of standard normal numbers that one draw of one example takes."""
    return max((site.stop for site in sites.values()), default=0)


def shares_noise(sites: Noise) -> bool:
    """Tell if all examples of a pass share its noise: that of the weights."""
    return any(site.weight for site in sites.values())


class _Drawing(TorchFunctionMode):
    """Within it, layers draw from an input; or the draws of a whole network are written down, where there is none."""

    def __init__(
        self,
        net: nn.Module,
        sites: Noise,
        noise: Tensor | None = None,
        kept: Kept | None = None,
        weights: Mapping[str, list[list[int]]] | None = None,
    ) -> None:
        super().__init__()
        self.weights = weights or {}
        self.sites, self.noise, self.kept, self.batch = sites, noise, kept or {}, 1
        self.at: tuple[str, BayesLayer] | None = None
        self.runs: Counter[str] = Counter()
        layers = [(name, m) for name, m in net.named_modules() if isinstance(m, BayesLayer)]
        self.hooks = [layer.register_forward_pre_hook(self._enter(name, layer)) for name, layer in layers]

    def _enter(self, name: str, layer: BayesLayer) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self.at = name, layer

        return enter

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self.hooks:
            hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.randn_like or self.at is None:
            return func(*args, **(kwargs or {}))
        (name, layer), like = self.at, args[0]
        key, dim = (name, self.runs[name]), 1 - layer.weight.dim()
        self.runs[name] += 1
        shared = layer.estimator == "weight"
        if self.noise is None and shared:
            start = noise_columns(self.sites)
            self.sites[key] = Site(start, start + like.numel(), dim, like.size(dim), tuple(like.shape))
            return torch.zeros_like(like)
        if self.noise is None:
            start, each = noise_columns(self.sites), like.numel() // self.batch
            self.sites[key] = Site(start, start + each, dim, like.size(dim))
            return torch.zeros_like(like)
        site, kept = self.sites[key], self.kept.get(name)
        if site.weight:
            lines = self.weights.get(f"{name}.weight", ())
            rows = 1 + max(lines[0]) if lines and lines[0] else site.weight[0]  # those behind are not even copied
            columns = self.noise[0, site.start : site.start + rows * math.prod(site.weight[1:])]
            drawn = columns.reshape(rows, *site.weight[1:])
            for along, line in enumerate(lines):
                if len(line) < drawn.size(along):
                    prefix = line == [*range(len(line))]
                    drawn = (
                        drawn.narrow(along, 0, len(line)) if prefix else drawn.index_select(along, torch.tensor(line))
                    )
            return drawn.to(like.dtype)
        whole = [*like.shape]
        whole[dim] = site.channels
        columns = self.noise[:, site.start : site.stop].reshape(whole)
        if kept is not None and len(kept) != site.channels:
            prefix = kept == [*range(len(kept))]
            index = None if prefix else torch.tensor(kept)
            columns = columns.narrow(dim, 0, len(kept)) if index is None else columns.index_select(dim, index)
        return columns.to(like.dtype)


def find_noise(net: nn.Module, inputs: Inputs) -> Noise:
    """The draws of a whole network, in the order in which they are made."""
    for name, layer in net.named_modules():
        if isinstance(layer, BayesLayer) and layer.bayesian and layer.estimator == "flipout":
            raise ValueError(
                f"export: posterior=True must have the estimator 'local' or 'weight'; {name} has 'flipout'"
            )
    sites: Noise = {}
    tensors = inputs.zeros(2)
    args, kwargs = inputs.arguments(tensors)
    mode = _Drawing(net, sites)
    mode.batch = 2
    try:
        with torch.no_grad(), evaluating(net), sampling(net, True), mode:
            net(*args, **kwargs)
    finally:
        mode.close()
    if len({bool(site.weight) for site in sites.values()}) > 1:
        raise ValueError("export: posterior=True must have one estimator for all layers, 'local' or 'weight'; got both")
    if not sites:
        raise ValueError("export: posterior=True must have a network with a posterior over its weights; it has none")
    return sites


# -- functions of tensors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Width:
    """A width of a file: as it was asked for, and the shape; None for a network of one size."""

    given: Any
    shape: Shape | None
    fraction: float | None


class Function(nn.Module):
    """A network as a function of tensors, and of noise where it draws."""

    def __init__(
        self,
        net: nn.Module,
        inputs: Inputs,
        output: Output | None = None,
        sites: Noise | None = None,
        kept: Kept | None = None,
        weights: Mapping[str, list[list[int]]] | None = None,
    ) -> None:
        super().__init__()
        self.weights = dict(weights or {})
        self.net, self.inputs, self.output, self.sites, self.kept = net, inputs, output, sites, dict(kept or {})
        for layer in net.modules():
            if isinstance(layer, BayesLayer):
                layer.sampling = sites is not None

    def run(self, tensors: Sequence[Tensor], noise: Tensor | None) -> Tensor:
        """The output that counts."""
        args, kwargs = self.inputs.arguments(tensors)
        if self.sites is None:
            return pick_tensor(self.net(*args, **kwargs), self.output, "export")
        mode = _Drawing(self.net, self.sites, noise, self.kept, self.weights)
        try:
            with mode:
                return pick_tensor(self.net(*args, **kwargs), self.output, "export")
        finally:
            mode.close()

    def forward(self, *tensors: Tensor) -> Tensor:
        """The output for inputs, and for noise behind them."""
        if self.sites is None:
            return self.run(tensors, None)
        return self.run(tensors[:-1], tensors[-1])


class Masked(Function):
    r"""A nested network as a function of its inputs and of the number of a width: masked, at the full cost.

    What a width sets is looked up in tables of (widths, …): the groups that units keep, and BatchNorm's statistics.
    """

    def __init__(
        self, net: nn.Module, widths: Sequence[Shape], inputs: Inputs, output: Output | None, sites: Noise | None
    ) -> None:
        super().__init__(copy.deepcopy(net).eval(), inputs, output, sites)
        part = nested_part(self.net)
        state: NestedState = part._vnd_state  # type: ignore[assignment]
        prefix = f"{path}." if (path := path_of(self.net, part)) else ""
        self.places: dict[str, str] = {}  # buffer of the network → its table here
        names = {unit: name for name, unit in part.named_modules() if unit in {*state.units.values()}}
        for number, (name, unit) in enumerate(state.units.items()):
            table = torch.tensor([shape[name] for shape in widths])
            self._table(f"{prefix}{names[unit]}.fixed_groups", f"groups_{number}", table)
        looked_up = [state.look_up(part, Setting(shape, sampled=sites is not None), warn=False) for shape in widths]
        for number, (name, norm) in enumerate(batch_norms(part)):
            held = [found[norm][:2] or norm.trained for found in looked_up]
            for index, own in enumerate(("mean", "var")):
                table = torch.stack([pair[index] for pair in held])
                self._table(f"{prefix}{name}.active_{own}", f"{own}_{number}", table)
            self._table(
                f"{prefix}{name}.active_at", f"at_{number}", norm.num_batches_tracked.expand(len(widths)).clone()
            )

    def _table(self, place: str, name: str, values: Tensor) -> None:
        self.register_buffer(name, values)
        self.places[place] = name

    def forward(self, *tensors: Tensor) -> Tensor:
        """The output for inputs, the number of a width and, where it draws, noise."""
        *rest, last = tensors
        noise = None if self.sites is None else last
        *given, width = tensors if self.sites is None else rest
        chosen = {f"net.{place}": getattr(self, name)[width] for place, name in self.places.items()}
        call = _Run(self, self.net)
        return torch.func.functional_call(call, chosen, (given, noise))  # type: ignore[no-any-return]


class _Run(nn.Module):
    """A call of a function's network, for what replaces buffers by name."""

    def __init__(self, function: Function, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.function = (function,)

    def forward(self, given: Sequence[Tensor], noise: Tensor | None) -> Tensor:
        return self.function[0].run(given, noise)


def cut(net: nn.Module, width: Width, inputs: Inputs, output: Output | None, sites: Noise | None) -> Function:
    """The extracted network of a width as a function."""
    if width.shape is None:
        return Function(copy.deepcopy(net).eval(), inputs, output, sites)
    small = slice_network(net, width.shape, "mean" if sites is None else "posterior").eval()
    part = nested_part(net)
    state: NestedState = part._vnd_state  # type: ignore[assignment]
    prefix = f"{path}." if (path := path_of(net, part)) else ""
    groups = dict(width.shape)
    found = {f"{prefix}{name}": state.kept(layout, groups) for name, layout in state.outputs.items()}
    kept = {name: None if channels is None else channels.tolist() for name, channels in found.items()}
    weights: dict[str, list[list[int]]] = {}
    if sites is not None and shares_noise(sites):
        lines = selection(net, width.shape, "posterior")
        weights = {name: [line.tolist() for line in entry] for name, entry in lines.items()}
    return Function(small, inputs, output, sites, kept, weights)


def selection(net: nn.Module, shape: Shape, keep: Keep) -> Selection:
    """The entries of each tensor of a network that its extracted form has, along each dimension.

    Found by extracting a copy whose tensors hold the numbers of their own entries.
    """
    numbered = copy.deepcopy(net)
    with torch.no_grad():
        tensors = {**dict(numbered.named_parameters()), **dict(numbered.named_buffers())}
        floats = {name: x for name, x in tensors.items() if x.is_floating_point() and "keep_logits" not in name}
        for x in floats.values():
            x.data = torch.arange(x.numel(), dtype=torch.float64).view(x.shape)
        small = slice_network(numbered, shape, keep).state_dict()
    found: Selection = {}
    for name, x in floats.items():
        value = small.get(name)
        if value is None or value.dtype != torch.float64 or value.dim() != x.dim() or not value.numel():
            continue
        sizes = x.shape
        if not bool(((value >= 0) & (value < x.numel()) & (value == value.floor())).all()):
            continue
        places = torch.unravel_index(value.long(), sizes)
        lines = []
        for dim, place in enumerate(places):
            lines.append(place.movedim(dim, 0).reshape(value.size(dim), -1)[:, 0].contiguous())
        found[name] = tuple(lines)
    return found


@contextmanager
def at_width(net: nn.Module, width: Width, drawing: bool) -> Iterator[None]:
    """Run a nested network itself at a width, masked: what files are checked against."""
    if width.shape is None:
        with evaluating(net), sampling(net, drawing):
            yield
        return
    part = nested_part(net)
    state: NestedState = part._vnd_state  # type: ignore[assignment]
    said = state.said(part, Setting(width.shape, sampled=drawing), warn=False)
    with evaluating(net), saying(said), sampling(net, drawing):
        yield


@torch.no_grad()
def reference(
    net: nn.Module,
    width: Width,
    inputs: Inputs,
    tensors: Sequence[Tensor],
    output: Output | None = None,
    sites: Noise | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """The output of torch at a width, masked; with draws that come from noise (batch, n)."""
    args, kwargs = inputs.arguments(tensors)
    with at_width(net, width, sites is not None):
        if sites is None:
            return pick_tensor(net(*args, **kwargs), output, "export")
        mode = _Drawing(net, sites, noise)
        try:
            with mode:
                return pick_tensor(net(*args, **kwargs), output, "export")
        finally:
            mode.close()


# -- programs ---------------------------------------------------------------------------------------------------------


@contextmanager
def quietly() -> Iterator[None]:
    """Leave out what the exporter says about packages that nobody asked for."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch._export", "torch.export", "onnxscript", "onnx_ir")
    ]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def any_batch(batched: Sequence[bool]) -> tuple[Any, ...]:
    """Shapes that are free in the number of examples."""
    batch = torch.export.Dim("batch", min=1)
    return tuple({0: batch} if many else None for many in batched)


def program(function: nn.Module, tensors: Sequence[Tensor], shapes: Any) -> Any:
    """The `torch.export.ExportedProgram` of a function, free in the sizes that `shapes` name."""
    try:
        with torch.no_grad(), quietly():
            return torch.export.export(function, tuple(tensors), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        told = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(
            f"export: torch.export must be able to trace the network for any number of examples; got: {told[:300]}"
        ) from error
