"""A recorder: what a network does on an example, written down while it runs.

The network is run, not traced by proxies: sizes are integers, so that whatever branches on a shape just runs. Calls of
torch's functions and of leaf modules become a list. Integers that come from a tensor's size or from an attribute of a
module know where they come from, also through sums and products, so that a reader of the list can tell a size that
follows the tensors by itself from one that is written into the code.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

# How a value depends on what the network is given.
FIXED, INTEGERS, NUMBERS = 0, 1, 2
# Functions that tell Python what is in a tensor, or whose output has a size that depends on it.
TELLING = {
    *("__bool__", "item", "__int__", "__float__", "__index__", "__complex__", "tolist", "numpy", "__array__"),
    *("is_nonzero", "equal", "allclose", "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select"),
}
RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal_"}


class TracedInt(int):
    """An integer with its source: a size ("size", value, dim), an attribute ("attribute", path, name), or arithmetic.

    Arithmetic is (operator's name, left, right), where a side is a `TracedInt` or a plain integer.
    """

    source: tuple[Any, ...]

    @classmethod
    def of(cls, value: int, *source: Any) -> TracedInt:
        """Make one."""
        made = cls(value)
        made.source = source
        return made

    def leaves(self) -> Iterator[tuple[Any, ...]]:
        """The sizes and attributes that it is computed from."""
        if self.source[0] in ("size", "attribute"):
            yield self.source
        else:
            for side in self.source[1:]:
                if isinstance(side, TracedInt):
                    yield from side.leaves()

    def evaluate(self, leaf: Callable[[tuple[Any, ...]], int]) -> int:
        """Compute it anew from the values that `leaf` gives to its sizes and attributes."""
        if self.source[0] in ("size", "attribute"):
            return leaf(self.source)
        sides = [side.evaluate(leaf) if isinstance(side, TracedInt) else side for side in self.source[1:]]
        return int(getattr(operator, self.source[0])(*sides))


def _arithmetic(name: str) -> None:
    plain, reflected = getattr(int, f"__{name}__"), getattr(int, f"__r{name}__")

    def forward(self: TracedInt, other: Any) -> Any:
        value = plain(self, other)
        return TracedInt.of(value, name, self, other) if isinstance(value, int) else value

    def backward(self: TracedInt, other: Any) -> Any:
        value = reflected(self, other)
        return TracedInt.of(value, name, other, self) if isinstance(value, int) else value

    setattr(TracedInt, f"__{name}__", forward)
    setattr(TracedInt, f"__r{name}__", backward)


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _arithmetic(_name)
TracedInt.__neg__ = lambda self: 0 - self  # type: ignore[method-assign]


def _comparison(name: str) -> None:
    plain = getattr(int, f"__{name}__")

    def compare(self: TracedInt, other: Any) -> Any:
        found = plain(self, other)
        if COMPARED is not None and isinstance(other, int) and int(self) == int(other):
            COMPARED.append((self, other, _where()))
        return found

    setattr(TracedInt, f"__{name}__", compare)


COMPARED: list[tuple[Any, Any, str]] | None = None  # equal integers that code compares, while a run is recorded
for _name in ("eq", "ne"):
    _comparison(_name)
TracedInt.__hash__ = int.__hash__  # type: ignore[method-assign]


@dataclass(eq=False)
class Value:
    """A tensor of the run: its shape, the call that made it, or its name if it is a parameter, buffer or input."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    call: Call | None = None
    parameter: str | None = None
    data: int = FIXED
    tensor: Tensor | None = None  # itself, of integers: what indexes others
    labels: list[Tensor] = field(default_factory=list)  # who its entries are; see `channel_flow`
    users: list[Call] = field(default_factory=list)
    viewed: bool = False  # whether it is a view of another tensor, or may have views

    def __repr__(self) -> str:
        maker = self.parameter or (self.call.name if self.call else "input")
        return f"Value({maker}, {self.shape})"


@dataclass(eq=False)
class Call:
    """A call of a function of torch's or of a leaf module, with values in the place of tensors."""

    name: str  # of the function, without underscores; of the module's class
    function: Any  # the function, or the module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: str  # file and line of the user's
    scope: str  # the innermost module that it happens in; a leaf's own path
    outputs: list[Value] = field(default_factory=list)
    overwrites: bool = False  # its first argument, in place: views of it change, too

    @property
    def module(self) -> nn.Module | None:
        """The leaf module that is called, if it is one."""
        return self.function if isinstance(self.function, nn.Module) else None

    @property
    def inputs(self) -> list[Value]:
        """All values among the arguments."""
        return list(values_in((self.args, self.kwargs)))

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


@dataclass(eq=False)
class Scope:
    """A call of a module that is no leaf: its path, what goes in and comes out, and the calls in between."""

    path: str
    inputs: list[Value]
    outputs: list[Value]
    first: int
    last: int


@dataclass(eq=False)
class Recording:
    """Record of a run: its calls in order, the inputs and outputs of the network, and what Python saw of the data."""

    calls: list[Call] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    seen: list[tuple[int, str, str]] = field(default_factory=list)  # (how it depends, function, where)
    compared: list[tuple[Any, Any, str]] = field(default_factory=list)  # integers that code found equal, and where


def record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_leaf: Callable[[str, nn.Module], bool],
    pick: Callable[[Any], Any] = lambda output: output,
) -> Recording:
    """Run a network on an example, in evaluation and without gradients, and write down what it does.

    Args:
        model: A network, of which the integer attributes become traced ones: give a copy.
        args: Positional arguments of the example.
        kwargs: Keyword arguments of the example.
        is_leaf: Whether a module, by path, is one call; the others are looked into.
        pick: What of the output counts.
    """
    recorder = _Recorder(model, is_leaf)
    with recorder.attached(), torch.no_grad(), _uncached_einops(), _noting(recorder.recording.compared):
        recorder.give((args, kwargs))
        with recorder:
            output = model(*args, **kwargs)
        recorder.recording.outputs = [recorder.value(tensor) for tensor in tensors_within(pick(output))]
    return recorder.recording


@contextlib.contextmanager
def _noting(compared: list[tuple[Any, Any, str]]) -> Iterator[None]:
    """Note which integers code compares."""
    global COMPARED
    before, COMPARED = COMPARED, compared
    try:
        yield
    finally:
        COMPARED = before


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, is_leaf: Callable[[str, nn.Module], bool]) -> None:
        super().__init__()
        self.model, self.is_leaf = model, is_leaf
        self.recording = Recording()
        self.known: Any = WeakIdKeyDictionary()
        self.own: dict[int, str] = {}
        for path, tensor in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ):
            self.own.setdefault(id(tensor), path)
        self.scopes = [""]
        self.inside = False  # a leaf, whose doings are not written down

    # -- modules -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Have the network's modules report their calls."""
        wrapped = []
        for path, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise ValueError(f"{path or 'the network'} is a ScriptModule, whose code cannot be followed")
            leaf = path != "" and self.is_leaf(path, module)
            if not leaf:
                _trace_attributes(path, module)
            before = vars(module).get("forward")
            wrapped.append((module, before))
            wrap = self.leaf if leaf else self.scope
            vars(module)["forward"] = wrap(path, module, module.forward)
        try:
            yield
        finally:
            for module, before in wrapped:
                del vars(module)["forward"]
                if before is not None:
                    vars(module)["forward"] = before

    def leaf(self, path: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.inside or not _active(self):
                return forward(*args, **kwargs)
            positional, named = self.mapped(args), self.mapped(kwargs)
            self.inside = True
            try:
                output = forward(*args, **kwargs)
            finally:
                self.inside = False
            self.note(Call(type(module).__name__, module, positional, named, _where(), path), output)
            return output

        return call

    def scope(self, path: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.inside or not _active(self):
                return forward(*args, **kwargs)
            given, first = list(values_in(self.mapped((args, kwargs)))), len(self.recording.calls)
            self.scopes.append(path)
            try:
                output = forward(*args, **kwargs)
            finally:
                self.scopes.pop()
            last = len(self.recording.calls)
            self.recording.scopes.append(Scope(path, given, list(self.values_of(output)), first, last))
            return output

        return call

    # -- functions -----------------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        name = name_of(func)
        if name in ("shape", "size", "numel"):
            return self.sized(name, func(*args, **kwargs), args, kwargs)
        positional, named = self.mapped(args), self.mapped(kwargs)
        output = func(*args, **kwargs)
        data = max((value.data for value in values_in((positional, named))), default=FIXED)
        picks = name == "getitem" and any(v.dtype == torch.bool and v.data for v in values_in(positional[1:]))
        if data and (name in TELLING or picks or (name == "where" and len(args) == 1)):
            self.recording.seen.append((data, name, _where()))
        if name == "setitem":
            output = args[0]
        if next(_tensors(output), None) is not None:
            call = Call(name, func, positional, named, _where(), self.scopes[-1])
            call.overwrites = bool(args) and output is args[0] and isinstance(output, Tensor)
            self.note(call, output)
            for value, tensor in zip(call.outputs, _tensors(output), strict=True):
                value.viewed = not call.overwrites and any(_shares(tensor, other) for other in _tensors(args))
            if not call.overwrites and any(value.viewed for value in call.outputs):
                for value in call.inputs:
                    value.viewed = True
            elif call.overwrites:
                call.outputs[0].viewed = isinstance(positional[0], Value) and positional[0].viewed
        return output

    def sized(self, name: str, size: Any, args: Any, kwargs: Any) -> Any:
        """A size whose integers know whose they are."""
        value = self.value(args[0])
        if name == "numel":
            whole: Any = 1
            for dim, count in enumerate(value.shape):
                whole = whole * TracedInt.of(count, "size", value, dim)
            return whole
        if isinstance(size, torch.Size):
            return torch.Size([TracedInt.of(n, "size", value, dim) for dim, n in enumerate(size)])
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        return TracedInt.of(size, "size", value, dim % len(value.shape))

    # -- values --------------------------------------------------------------------------------------------------------

    def give(self, example: Any) -> None:
        """Note the tensors of the example as the network's inputs."""
        for tensor in _tensors(example):
            if tensor not in self.known:
                level = NUMBERS if tensor.is_floating_point() else INTEGERS
                self.known[tensor] = value = self.make(tensor, data=level)
                self.recording.inputs.append(value)

    def make(self, tensor: Tensor, **fields: Any) -> Value:
        integer = not (tensor.is_floating_point() or tensor.is_complex())
        return Value(tuple(map(int, tensor.shape)), tensor.dtype, tensor=tensor if integer else None, **fields)

    def value(self, tensor: Tensor) -> Value:
        """The value of a tensor; one that nothing of the run made is a constant."""
        value: Value | None = self.known.get(tensor)
        if value is None:
            self.known[tensor] = value = self.make(tensor, parameter=self.own.get(id(tensor)))
        return value

    def values_of(self, x: Any) -> Iterator[Value]:
        return map(self.value, _tensors(x))

    def mapped(self, x: Any) -> Any:
        """Arguments with values in the place of tensors."""
        if isinstance(x, Tensor):
            return self.value(x)
        if isinstance(x, (list, tuple)):
            items = [self.mapped(item) for item in x]
            return items if isinstance(x, list) else tuple(items)
        if isinstance(x, dict):
            return {key: self.mapped(item) for key, item in x.items()}
        if isinstance(x, slice):
            return slice(self.mapped(x.start), self.mapped(x.stop), self.mapped(x.step))
        return x

    def note(self, call: Call, output: Any) -> None:
        """Write a call down, with what it made."""
        self.recording.calls.append(call)
        inputs = call.inputs
        data = max((value.data for value in inputs), default=FIXED)
        if call.name in RANDOM or (call.name == "dropout" and call.argument(2, "training", True)):
            data = NUMBERS
        for value in inputs:
            value.users.append(call)
        for tensor in _tensors(output):
            self.known[tensor] = value = self.make(tensor, call=call, data=data)
            call.outputs.append(value)


def _active(recorder: _Recorder) -> bool:
    """Tell if functions are reported: not in a function of torch's that calls a module by itself."""
    return torch._C._len_torch_function_stack() > 0


def _trace_attributes(path: str, module: nn.Module) -> None:
    """Let the integer attributes of a module, and those of its configuration, know whose they are."""
    for prefix in ("", *(f"{name}." for name in CONFIGURATIONS if hasattr(vars(module).get(name), "__dict__"))):
        held = attributes(module, prefix)[0]
        for name, value in list(held.items()):
            if type(value) is int:
                held[name] = TracedInt.of(value, "attribute", path, prefix + name, None)
            elif type(value) in (tuple, list) and value and all(type(item) is int for item in value):
                numbered = enumerate(value)
                held[name] = type(value)(TracedInt.of(n, "attribute", path, prefix + name, i) for i, n in numbered)


CONFIGURATIONS = ("config", "cfg")  # what modules call an object that holds their numbers, often one for all of them


def attributes(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The attributes among which one of a module's is, and its name there; dotted if its configuration has it."""
    holder, _, key = name.rpartition(".")
    return vars(vars(module)[holder]) if holder else vars(module), key


@contextlib.contextmanager
def _uncached_einops() -> Iterator[None]:
    """Keep einops from answering with the integers of an earlier call."""
    einops = sys.modules.get("einops.einops")
    cached = getattr(einops, "_reconstruct_from_shape", None)
    if cached is None or not hasattr(cached, "__wrapped__"):
        yield
        return
    einops._reconstruct_from_shape = cached.__wrapped__  # type: ignore[union-attr]
    try:
        yield
    finally:
        einops._reconstruct_from_shape = cached  # type: ignore[union-attr]


def name_of(function: Any) -> str:
    """The name of one of torch's functions, alike for a function, a method, an operator and their in-place forms."""
    name = str(getattr(function, "__name__", function))
    if name == "__get__":
        return str(function.__self__.__name__)
    if name in TELLING:
        return name
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        plain = name[1:]
        if name not in ("invert",) and plain in ("add", "sub", "mul", "div", "truediv", "pow", "floordiv", "mod"):
            reflected = name[0] == "r"
            return f"r{plain}" if reflected else plain
        return name
    return name.rstrip("_") or name


def values_in(x: Any) -> Iterator[Value]:
    """All values in nested arguments."""
    if isinstance(x, Value):
        yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from values_in(item)
    elif isinstance(x, dict):
        yield from values_in(list(x.values()))
    elif isinstance(x, slice):
        yield from values_in((x.start, x.stop, x.step))


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from _tensors(item)
    elif isinstance(x, Mapping):
        for item in x.values():
            yield from _tensors(item)
    elif hasattr(x, "__dataclass_fields__") and not isinstance(x, type):
        yield from _tensors([getattr(x, name) for name in x.__dataclass_fields__])


def _shares(a: Tensor, b: Tensor) -> bool:
    """Tell if two tensors lie in the same memory."""
    try:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # as of sparse tensors and of those in a transform
        return True


def tensors_within(x: Any) -> Iterator[Tensor]:
    """All tensors in an output, also in the attributes of objects, such as distributions."""
    seen: set[int] = set()

    def find(x: Any) -> Iterator[Tensor]:
        if isinstance(x, Tensor):
            yield x
        elif id(x) not in seen and not isinstance(x, (int, str, type, nn.Module)) and not callable(x):
            seen.add(id(x))
            parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, (list, tuple, set)) else ()
            for part in (*parts, *getattr(x, "__dict__", {}).values()):
                yield from find(part)

    return find(x)


_LIBRARIES = ("<", *(str(Path(file).parent) for file in (torch.__file__, __file__)))
_STANDARD = str(Path(contextlib.__file__).parent)


def _foreign(file: str) -> bool:
    """Tell if a file is not the user's: torch's, this library's, the standard library's."""
    standard = file.startswith(_STANDARD) and "site-packages" not in file
    return file.startswith(_LIBRARIES) or "/einops/" in file or standard


def _where() -> str:
    """The file and line of the user's code that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _foreign(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown place"


def where_raised(error: BaseException) -> str:
    """The user's line at which an error came up, "at file, line n: ", if it is one of theirs."""
    found, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not _foreign(file):
            found = f"at {file}, line {step.tb_lineno}: "
        step = step.tb_next
    return found


def signature(recording: Recording) -> list[tuple[Any, ...]]:
    """Signature of a run but for sizes: each call's name, place and the calls that its arguments come from."""
    number = {call: index for index, call in enumerate(recording.calls)}

    def origin(value: Value) -> Any:
        return number.get(value.call, -1) if value.call else value.parameter

    return [(call.name, call.scope, tuple(map(origin, call.inputs))) for call in recording.calls]
