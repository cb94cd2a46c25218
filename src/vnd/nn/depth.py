r"""Depth: the residual blocks of a stage as groups of an ordering unit, dropped from the end of the stage.

Block k computes $f_k$ of the same shape as its input, and has a mask $z_k$ of the stage's unit:

$$x_{k+1} = (1 - z_k)\, x_k + z_k f_k(x_k), \qquad 1 \ge z_1 \ge z_2 \ge \dots \ge z_n \ge 0$$

A dropped block hands its input on. So it is for $f(x) = x + g(x)$ as for blocks that normalise after the addition. What
else a block gives, such as a bias for the next one, goes through if it came in, and is not there otherwise.

A *stage* is a run of blocks of one class, in consecutive places of one container, each of which adds something to its
input, gives what it took in shape, and feeds the next. A first block of another shape is no part of it. Of stages
within blocks of others the outer ones are taken.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.channel_flow import ADDING, MIXING, is_leaf
from vnd.nn.ordering import OrderingUnit
from vnd.nn.recorder import Recording, Scope, record

Place = tuple[str, int]  # a stage's unit and the number of the block
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # which run, or list, all that is in them
# Functions after which the entries of a tensor are no longer at their places, beside layers that mix channels.
BLENDING = {
    *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "matmul"),
    *("rmatmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "bilinear", "scaled_dot_product_attention", "cat"),
    *("concat", "stack", "mean", "sum", "softmax", "cumsum"),
}


@dataclass(frozen=True)
class Handed:
    """A part of a block's output that is one of its arguments: positional (0) or named (1), and its place there."""

    path: tuple[Any, ...]

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look it up."""
        value: Any = (args, kwargs)
        for key in self.path:
            value = value[key]
        return value


@dataclass(frozen=True)
class Form:
    """The form of a block's output: its class, and what each part of it is where the block is dropped.

    Args:
        kind: Class of the output, None for a tensor by itself.
        stream: Key of the part that the mask is on.
        source: The argument that goes in its place.
        parts: Arguments or constants, by index or name.
    """

    kind: type | None
    stream: Any
    source: Handed
    parts: tuple[tuple[Any, Any], ...]

    def skip(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of a dropped block."""
        values = {key: x.find(args, kwargs) if isinstance(x, Handed) else x for key, x in self.parts}
        return _assemble(self.kind, values)


def _parts(output: Any) -> dict[Any, Any]:
    """Parts of an output by index or name; {None: the tensor} for one by itself."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    if is_dataclass(output):
        return {f.name: getattr(output, f.name) for f in fields(output)}
    return {None: output}


def _assemble(kind: type | None, parts: dict[Any, Any]) -> Any:
    if kind is None:
        return parts[None]
    if issubclass(kind, tuple | list):
        return kind(*parts.values()) if hasattr(kind, "_fields") else kind(parts.values())
    return kind(**parts)


class Skip(nn.Module):
    """Hands its input on, in the form of a block's output: what stands in the place of a dropped block.

    It has the plain attributes of the block, which the code around may ask for.

    >>> import torch
    >>> form = Form(tuple, 0, Handed((0, 0)), ((0, Handed((0, 0))), (1, None)))
    >>> Skip(nn.Identity(), form)(torch.ones(2))
    (tensor([1., 1.]), None)
    """

    def __init__(self, block: nn.Module, form: Form) -> None:
        super().__init__()
        known = vars(self)
        for name, value in vars(block).items():
            if name not in known and isinstance(value, bool | int | float | str | None):
                known[name] = value
        self.training = block.training
        self.form = form

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Hand the input on."""
        return self.form.skip(args, kwargs)


class BlockMask:
    """The mask of a block, on the output that it hands on."""

    def __init__(self, unit: OrderingUnit, index: int, form: Form) -> None:
        self.unit, self.index, self.form = unit, index, form

    def hook(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        r"""Give $(1 - z) x + z f(x)$: a forward hook."""
        x = self.form.source.find(args, kwargs)
        parts = _parts(output)
        out: Tensor = parts[self.form.stream]
        z = self.unit.channel_mask()[..., self.index].to(out.dtype)
        if z.dim():
            if len(z) != out.size(0):
                raise ValueError(
                    f"{type(module).__name__}: per_example masks need the examples along dimension 0 of a block's "
                    f"output; got {tuple(out.shape)} for {len(z)} examples"
                )
            z = z.view(-1, *[1] * (out.dim() - 1))
        parts[self.form.stream] = torch.lerp(x.to(out.dtype), out, z)
        return _assemble(None if isinstance(output, Tensor) else type(output), parts)


@dataclass(frozen=True)
class Stage:
    """Blocks that one unit orders.

    Args:
        name: The unit's name.
        blocks: Paths of the blocks.
        forms: The forms of their outputs.
    """

    name: str
    blocks: tuple[str, ...]
    forms: tuple[Form, ...]

    def holder(self, modules: Mapping[str, nn.Module]) -> str:
        """The module that holds the unit: the first within the first block that does not run all that is in it."""
        first = self.blocks[0]
        inside = [name for name in modules if name == first or name.startswith(f"{first}.")]
        return next(name for name in inside if not isinstance(modules[name], CONTAINERS))

    def shortened(self, blocks: int) -> Stage:
        """The stage without its last blocks."""
        return replace(self, blocks=self.blocks[:blocks], forms=self.forms[:blocks])


Stages = Mapping[str, Stage]


def place_of(stages: Stages, name: str) -> Place | None:
    """The block that a module, or a parameter, lies in."""
    if not stages:
        return None
    table = {path: (unit, k) for unit, stage in stages.items() for k, path in enumerate(stage.blocks)}
    end = len(name)
    while end > 0:
        if (found := table.get(name[:end])) is not None:
            return found
        end = name.rfind(".", 0, end)
    return None


def mask_blocks(net: nn.Module, stages: Stages, units: Mapping[str, OrderingUnit]) -> None:
    """Put the masks of its stages on a network's blocks."""
    for name, stage in stages.items():
        for index, (path, form) in enumerate(zip(stage.blocks, stage.forms, strict=True)):
            mask = BlockMask(units[name], index, form)
            net.get_submodule(path).register_forward_hook(mask.hook, with_kwargs=True)


def unmask_blocks(root: nn.Module) -> None:
    """Take the masks off all blocks."""
    for module in root.modules():
        hooks = module._forward_hooks
        for key in [k for k, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), BlockMask)]:
            del hooks[key]
            module._forward_hooks_with_kwargs.pop(key, None)


def dropped_blocks(stages: Stages, units: Mapping[str, OrderingUnit], groups: Mapping[str, int]) -> dict[str, Form]:
    """Paths of the blocks that a shape drops, with the forms of their outputs."""
    dropped: dict[str, Form] = {}
    for name, stage in stages.items():
        kept = len(units[name].kept_channels(groups[name]))
        dropped |= dict(zip(stage.blocks[kept:], stage.forms[kept:], strict=True))
    return dropped


def skip_blocks(root: nn.Module, dropped: Mapping[str, Form]) -> None:
    """Put a `Skip` in the place of blocks."""
    for path, form in dropped.items():
        parent, _, child = path.rpartition(".")
        owner = root.get_submodule(parent)
        setattr(owner, child, Skip(owner.get_submodule(child), form))


# -- finding stages ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _BlockCall:
    """A call of a block: its arguments, their tensors with the versions that they had before, and its output."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[tuple[Tensor, int]]
    output: Any = None


@dataclass(eq=False)
class _Block:
    """A block that can be dropped: the tensors that it takes and gives in each call."""

    path: str
    number: int
    kind: type
    form: Form
    taken: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)

    def feeds(self, other: _Block) -> bool:
        """Tell if `other` comes next in place, and takes what this one gives."""
        if other.number != self.number + 1 or other.kind is not self.kind or len(other.taken) != len(self.given):
            return False
        return all(a is b for a, b in zip(self.given, other.taken, strict=True))


def find_stages(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Stage], dict[str, str]]:
    """Record a network on an example and find its stages; give a copy of it.

    Returns:
        Stages by the names of their units, also those within blocks of others; and why containers have none.
    """
    containers = dict(_containers(model))
    watched = {path: module for blocks in containers.values() for _, path, module in blocks}
    calls: dict[str, list[_BlockCall]] = {path: [] for path in watched}
    handles: list[Any] = []
    for path, module in watched.items():
        handles += _watch(module, calls[path])
    try:
        recording = record(model.eval(), *copy.deepcopy((args, kwargs)), is_leaf)
    finally:
        for handle in handles:
            handle.remove()
    scopes: dict[str, list[Scope]] = {path: [] for path in watched}
    for scope in recording.scopes:
        if scope.path in scopes:
            scopes[scope.path].append(scope)
    shared = _shared(model)
    stages: dict[str, Stage] = {}
    reasons: dict[str, str] = {}
    for container, blocks in containers.items():
        runs: list[list[_Block]] = [[]]
        for number, path, module in blocks:
            found = _examine(path, number, module, calls[path], scopes[path], recording, shared)
            if isinstance(found, str):
                reasons.setdefault(container, f"its block {path} {found}")
                runs.append([])
            elif runs[-1] and runs[-1][-1].feeds(found):
                runs[-1].append(found)
            else:
                runs.append([found])
        long = [run for run in runs if len(run) > 1]
        for run in long:
            name = f"{container if container and len(long) == 1 else run[0].path}[depth]"
            stages[name] = Stage(name, tuple(b.path for b in run), tuple(b.form for b in run))
        if not long:
            reasons.setdefault(container, "its blocks do not feed one another")
    outer = {c: r for c, r in reasons.items() if not any(c.startswith(f"{path}.") for path in watched)}
    outer = outer or {"": "it has no blocks of one class in consecutive places of a container"}
    return stages, {f"{container}[depth]": reason for container, reason in outer.items()}


def outermost(stages: Iterable[Stage]) -> dict[str, Stage]:
    """Those stages that lie within no block of another."""
    known = {stage.name: stage for stage in stages}
    return {
        name: stage
        for name, stage in known.items()
        if place_of({other: s for other, s in known.items() if other != name}, stage.blocks[0]) is None
    }


def _containers(model: nn.Module) -> Iterator[tuple[str, list[tuple[int, str, nn.Module]]]]:
    """Containers with children of one class in consecutive places: their numbers, paths and modules."""
    paths = dict(model.named_modules())
    for container, parent in paths.items():
        numbered: dict[str, list[tuple[int, str, nn.Module]]] = {}
        for name, child in parent._modules.items():
            match, path = re.fullmatch(r"(.*?)(\d+)", name), f"{container}.{name}" if container else name
            if match and paths.get(path) is child and child is not None and _may_be_block(path, child):
                numbered.setdefault(match[1], []).append((int(match[2]), path, child))
        for prefix, blocks in numbered.items():
            if any(type(a) is type(b) and n == m + 1 for (m, _, a), (n, _, b) in pairwise(blocks)):
                yield f"{container}.{prefix}".strip("._") if prefix else container, blocks


def _may_be_block(path: str, module: nn.Module) -> bool:
    """Tell if a module has layers, and is no stage by itself: a sequence of blocks that are alike."""
    if is_leaf(path, module) or next(module.parameters(), None) is None:
        return False
    children = [child for child in module._modules.values() if child is not None]
    if not isinstance(module, nn.Sequential) or len(children) < 2 or is_leaf(path, children[-1]):
        return True
    names = [{name for name, _ in child.named_parameters()} for child in children]
    alike = all(type(child) is type(children[0]) for child in children) and all(own == names[-1] for own in names[1:])
    return not (alike and names[-1])


def _watch(module: nn.Module, calls: list[_BlockCall]) -> list[Any]:
    """Note the calls of a module."""

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [(x, x._version) for _, x in _inside((args, kwargs)) if isinstance(x, Tensor)]
        calls.append(_BlockCall(args, kwargs, tensors))

    def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        next(call for call in reversed(calls) if call.output is None).output = output

    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]


def _inside(x: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All values in nested arguments, with their places."""
    if isinstance(x, tuple | list):
        for index, value in enumerate(x):
            yield from _inside(value, (*path, index))
    elif isinstance(x, dict):
        for key, value in x.items():
            yield from _inside(value, (*path, key))
    yield path, x


def _examine(
    path: str,
    number: int,
    module: nn.Module,
    calls: list[_BlockCall],
    scopes: list[Scope],
    recording: Recording,
    shared: Callable[[str], str | None],
) -> _Block | str:
    """A block as it can be dropped, or why it cannot."""
    if not calls or len(calls) != len(scopes):
        return "does not run"
    if (other := shared(path)) is not None:
        return f"shares a weight with {other}"
    block: _Block | None = None
    for call, scope in zip(calls, scopes, strict=True):
        found = _form(call)
        if isinstance(found, str):
            return found
        form, taken, given = found
        if not _adds(scope, recording):
            return "adds nothing to its input"
        block = block or _Block(path, number, type(module), form)
        if block.form != form:
            return "is called in several ways"
        block.taken.append(taken)
        block.given.append(given)
    assert block is not None
    return block


def _form(call: _BlockCall) -> tuple[Form, Tensor, Tensor] | str:
    """The form of a block's output, and the tensors that it took and gave."""
    given = [(path, x) for path, x in _inside((call.args, call.kwargs)) if path]
    source = next(((p, x) for p, x in given if isinstance(x, Tensor) and x.is_floating_point()), None)
    parts = _parts(call.output)
    stream = next((key for key, x in parts.items() if isinstance(x, Tensor)), parts)
    if source is None or stream is parts:
        return "takes or gives no tensor"
    taken, out = source[1], parts[stream]
    if tuple(map(int, taken.shape)) != tuple(map(int, out.shape)) or taken.dtype != out.dtype:
        return "gives another shape than it takes"
    before = next((version for x, version in call.tensors if x is taken), None)
    if out is taken or before != taken._version:
        return "changes its input in place"

    def when_dropped(key: Any, x: Any) -> Any:
        if key == stream:
            return Handed(source[0])
        place = next((path for path, value in given if value is x and not _is_plain(x)), None)
        return Handed(place) if place is not None else x if _is_plain(x) else None

    kind = None if isinstance(call.output, Tensor) else type(call.output)
    return Form(kind, stream, Handed(source[0]), tuple((k, when_dropped(k, x)) for k, x in parts.items())), taken, out


def _is_plain(x: Any) -> bool:
    return isinstance(x, bool | int | float | str | None) or (isinstance(x, tuple) and not x)


def _adds(scope: Scope, recording: Recording) -> bool:
    """Tell if a block adds something to its input, as it is, normalised, or with its entries moved."""
    stream = next((v for v in scope.inputs if v.dtype.is_floating_point), None)
    same = {stream}
    for call in recording.calls[scope.first : scope.last]:
        read = [value for value in call.inputs if value.parameter is None]
        if not any(value in same for value in read):
            continue
        if call.name in ADDING and len(read) > 1:
            return True
        mixing = isinstance(call.module, MIXING) or (call.module is None and call.name in BLENDING)
        if len(read) == 1 and not mixing:
            same.update(call.outputs)
    return False


def _shared(model: nn.Module) -> Callable[[str], str | None]:
    """The function from a block to a parameter outside of it that is one of its own."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
    groups = [group for group in names.values() if len(group) > 1]

    def shared(path: str) -> str | None:
        for group in groups:
            inside = [name for name in group if name.startswith(f"{path}.")]
            if inside and len(inside) < len(group):
                return next(name for name in group if name not in inside)
        return None

    return shared
