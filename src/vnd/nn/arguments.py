"""Inputs and outputs of any network: arguments by position or by name, batches with labels, one tensor of many."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.state import state_of

Output = str | int | Callable[[Any], Tensor]


@dataclass(frozen=True)
class Arguments:
    """The arguments of a forward pass on a batch of B examples.

    The first tensor with a dimension says what B is. Tensors of that size along dimension 0 have a row for each
    example, however deep they lie; all other values belong to the whole batch, and are handed on as they are.

    >>> inputs = Arguments.of({"tokens": torch.zeros(3, 5), "scale": torch.tensor(2.0)}, "predict")
    >>> len(inputs), len(inputs.rows(slice(0, 2))), len(inputs.repeat(4))
    (3, 2, 12)
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    lead: Tensor

    @classmethod
    def of(cls, x: Any, who: str) -> Arguments:
        """Arguments from a tensor, a tuple of positional arguments or a mapping of keyword arguments."""
        if not isinstance(x, Tensor | tuple | Mapping):
            raise ValueError(
                f"{who}: x must be a tensor, a tuple of arguments or a dict of keyword arguments; "
                f"got a {type(x).__name__}"
            )
        args = (x,) if isinstance(x, Tensor) else tuple(x) if isinstance(x, tuple) else ()
        kwargs = dict(x) if isinstance(x, Mapping) else {}
        if not all(isinstance(name, str) for name in kwargs):
            raise ValueError(f"{who}: x must name its arguments by words; got the keys {list(kwargs)}")
        lead = next((value for value in tensors_of((args, kwargs)) if value.dim()), None)
        if lead is None:
            raise ValueError(f"{who}: x must hold a tensor with examples along dimension 0; got {describe_value(x)}")
        if lead.layout is not torch.strided:
            raise ValueError(f"{who}: x must be dense, to be taken apart by examples; got layout {lead.layout}")
        return cls(args, kwargs, lead)

    def __len__(self) -> int:
        return self.lead.size(0)

    @property
    def single(self) -> bool:
        """True if there is one argument only."""
        return len(self.args) + len(self.kwargs) == 1

    @property
    def given(self) -> tuple[Any, ...] | dict[str, Any]:
        """The arguments as `of` takes them."""
        return self.kwargs or self.args

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, however deep they lie."""
        return tensors_of((self.args, self.kwargs))

    def run(self, net: nn.Module) -> Any:
        """The network's output."""
        return net(*self.args, **self.kwargs)

    def rows(self, index: slice | Tensor) -> Arguments:
        """The arguments of some of the examples."""
        return self._each(lambda value: value[index if isinstance(index, slice) else index.to(value.device)])

    def split(self, size: int) -> Iterator[Arguments]:
        """Parts of at most `size` examples; one, without examples, of an empty batch."""
        for start in range(0, max(1, len(self)), size):
            yield self.rows(slice(start, start + size))

    def repeat(self, count: int) -> Arguments:
        """All examples `count` times, one whole batch after the other."""
        return self._each(lambda value: value.repeat(count, *[1] * (value.dim() - 1)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Arguments:
        def one(value: Tensor) -> Tensor:
            return change(value) if value.dim() > 0 and value.size(0) == len(self) else value

        return Arguments(each_tensor(self.args, one), each_tensor(self.kwargs, one), one(self.lead))


# -- outputs ----------------------------------------------------------------------------------------------------------


def check_output(output: Any, who: str) -> None:
    """Refuse an `output` that can pick nothing."""
    if output is not None and (isinstance(output, bool) or not (isinstance(output, str | int) or callable(output))):
        raise ValueError(
            f"{who}: output must be a key or attribute, an index or a function that picks a tensor; got {output!r}"
        )


def pick_tensor(out: Any, output: Output | None, who: str) -> Tensor:
    """The tensor of a network's output that is meant.

    Args:
        out: A tensor, a mapping, a tuple or list, or an object with attributes, such as a `ModelOutput`.
        output: A key or attribute, an index, or a function of `out`. None for `out` itself; of several the `logits`,
            or else the only tensor that there is.
        who: The caller, for messages.

    >>> pick_tensor({"logits": torch.ones(2), "hidden": torch.zeros(2)}, None, "predict")
    tensor([1., 1.])
    """
    if callable(output):
        found = output(out)
        if not isinstance(found, Tensor):
            raise ValueError(f"{who}: output must pick a tensor; its function gave {describe_value(found)}")
        return found
    if output is None and isinstance(out, Tensor):
        return out
    parts = _parts(out)
    tensors = {name: value for name, value in parts.items() if isinstance(value, Tensor)}
    choice = ", ".join(map(repr, tensors)) or "no tensor"
    if output is None:
        if "logits" in tensors:
            return tensors["logits"]
        if len(tensors) == 1:
            return next(iter(tensors.values()))
        raise ValueError(f"{who}: the network gives a {type(out).__name__}; pass output=, one of {choice}")
    if isinstance(output, int):  # of a mapping or an object, too, the place of a tensor
        values = list(parts.values())
        value = values[output] if -len(values) <= output < len(values) else None
    else:
        value = parts.get(output, None if isinstance(out, Mapping | Tensor) else getattr(out, output, None))
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{who}: output {output!r} is no tensor of the network's {type(out).__name__}; it has {choice}"
        )
    return value


def _parts(out: Any) -> dict[Any, Any]:
    """Parts of an output, by key, name or index."""
    if isinstance(out, Mapping):
        return dict(out)
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return dict(zip(out._fields, out, strict=True))
    if isinstance(out, tuple | list):
        return dict(enumerate(out))
    if is_dataclass(out):
        return {field.name: getattr(out, field.name) for field in fields(out)}
    return {} if isinstance(out, Tensor) else dict(getattr(out, "__dict__", {}))


def class_dim(shape: tuple[int, ...], dim: int | None, who: str) -> int:
    """The dimension of an output that counts classes: the one given, or 1 where nobody would ask.

    >>> class_dim((8, 10), None, "predict"), class_dim((8, 7, 10), -1, "predict")
    (1, 2)
    """
    if len(shape) < 2:
        raise ValueError(f"{who}: the output must have a dimension of classes; got one of shape {shape}, see link=")
    if dim is None and len(shape) not in (2, 4, 5):
        raise ValueError(f"{who}: the output of shape {shape} does not say where its classes are; pass dim=-1 or dim=1")
    found = 1 if dim is None else dim + len(shape) if dim < 0 else dim
    if not 0 < found < len(shape):
        raise ValueError(f"{who}: dim must be a dimension of the output {shape} other than 0, its examples; got {dim}")
    if shape[found] == 1:  # whose probability is 1, whatever the output
        hint = "give link='sigmoid' for the probability of one logit, 'identity' for regression"
        raise ValueError(f"{who}: the output must have two or more classes; got one of shape {shape}: {hint}")
    return found


# -- batches ----------------------------------------------------------------------------------------------------------


def batch_inputs(root: nn.Module, batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a nested network from a batch of data, which may have labels in it.

    The example of the conversion tells how many tensors the network reads: so many a tuple or list must begin with,
    and what follows is labels. It may begin with them in a tuple or a dict of their own, too. Of a dict what `forward`
    does not know is left out. A model that holds a nested network was converted on no example of its own: it reads as
    many tensors as its `forward` needs.

    Args:
        root: The network or the model that holds it, without wrappers.
        batch: A tensor, a tuple or list, or a mapping.
        device: Where the tensors are brought to.
    """
    forward = _signature(root)
    example = state_of(root).example if hasattr(root, "_vnd_state") else _needed(forward)
    found = _read_batch(example, forward, batch)
    if found is not None and forward is not None:
        try:
            forward.bind(*found[0], **found[1])
        except TypeError:
            found = None
    if found is None:
        raise ValueError(f"a batch must be {_expected(example)}; got {describe_value(batch)}")
    args, kwargs = to_device(found, device)
    return args, kwargs


def _needed(forward: inspect.Signature | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example of the arguments that `forward` needs: a tensor for each that has no default, and at least one."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [] if forward is None else [p for p in forward.parameters.values() if p.kind in positional]
    return tuple(torch.zeros(0) for _ in range(max(1, sum(p.default is p.empty for p in known)))), {}


def tensors_of(x: Any) -> Iterator[Tensor]:
    """All tensors in arguments, however deep they lie."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping | list | tuple):
        for value in x.values() if isinstance(x, Mapping) else x:
            yield from tensors_of(value)


def _read_batch(
    example: tuple[tuple[Any, ...], dict[str, Any]], forward: inspect.Signature | None, batch: Any
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments in a batch, or None if it cannot be understood."""
    args, count = example[0], sum(isinstance(x, Tensor) for x in example[0])
    if isinstance(batch, Tensor):
        batch = (batch,)
    if isinstance(batch, Mapping):
        known = _known(forward, batch)
        return ((), known) if known else None
    if not isinstance(batch, tuple | list) or len(batch) == 0:
        return None
    if _alike(args, batch):
        return tuple(batch[: len(args)]), {}
    first = batch[0]
    if isinstance(first, Mapping):
        return _read_batch(example, forward, first)
    if isinstance(first, tuple | list):  # the inputs by themselves: exactly as many
        return _read_batch(example, forward, first) if len(first) in (len(args), max(1, count)) else None
    if isinstance(first, Tensor) and (count == 0 or len(batch) == 1 < count):  # further ones have names, or defaults
        return (first,), {}
    values = iter(batch)
    filled = tuple(next(values, None) if isinstance(x, Tensor) else x for x in args)
    return (filled, {}) if _alike(args, filled) else None


def _known(forward: inspect.Signature | None, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Values with names that `forward` takes."""
    if forward is None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in forward.parameters.values()):
        return dict(batch)
    return {name: x for name, x in batch.items() if name in forward.parameters}


def split_labels(root: nn.Module, batch: Any, who: str) -> tuple[Arguments, Tensor]:
    """The inputs and the labels of a batch.

    Args:
        root: The network, without wrappers.
        batch: (inputs, labels), (a, b, …, labels), or a dict with "labels" or "label" in it, of which `forward` gets
            the other values that it knows. Inputs are a tensor, a tuple or list of arguments, or a dict.
        who: The caller, for messages.

    >>> batch = {"input": torch.ones(4, 2), "label": torch.zeros(4), "index": torch.arange(4)}
    >>> inputs, labels = split_labels(nn.Linear(2, 3), batch, "selective")
    >>> list(inputs.kwargs), len(labels)
    (['input'], 4)
    """
    inputs: Any = None
    labels = None
    if isinstance(batch, Mapping):
        name = next((name for name in ("labels", "label") if name in batch), None)
        inputs = _known(_signature(root), {key: x for key, x in batch.items() if key != name})
        labels = batch[name] if name else None
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        *first, labels = batch
        inputs = first[0] if len(first) == 1 else tuple(first)
        inputs = tuple(inputs) if isinstance(inputs, list) else inputs  # a data loader makes lists of tuples
    if not isinstance(labels, Tensor):
        raise ValueError(
            f'{who}: a batch must be (inputs, labels), labels last, or a dict with "labels"; '
            f"got {describe_value(batch)}"
        )
    return Arguments.of(inputs, who), labels


def _alike(args: tuple[Any, ...], batch: Any) -> bool:
    """Tell if a batch begins with values of the kinds that the example has."""

    def kind(x: Any) -> Any:
        return Tensor if isinstance(x, Tensor) else list if isinstance(x, tuple | list) else type(x)

    return 0 < len(args) <= len(batch) and all(kind(a) == kind(b) for a, b in zip(args, batch, strict=False))


def _signature(root: nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(root.forward)
    except (TypeError, ValueError):
        return None


def each_tensor(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Arguments with their tensors changed, however deep they lie."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Mapping):
        return {name: each_tensor(value, change) for name, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(each_tensor(value, change) for value in x))
    return type(x)(each_tensor(value, change) for value in x) if type(x) in (tuple, list) else x


def to_device(x: Any, device: torch.device) -> Any:
    """Arguments with their tensors on a device."""
    return each_tensor(x, lambda value: value.to(device))


def _expected(example: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    """The form of a batch, in words, after the example of the conversion."""
    args, kwargs = example
    if kwargs:
        return f"a dict with {', '.join(map(repr, kwargs))} as in the example of the conversion, or (dict, labels)"
    inner = ", ".join(describe_value(x) for x in args)
    if len(args) == 1:
        return f"{inner} as in the example of the conversion, (inputs, labels) or a dict"
    return f"({inner}) as in the example of the conversion, labels after them or not, or a dict"


def describe_value(x: Any) -> str:
    """A value in a few words: of tensors the shape."""
    if isinstance(x, Tensor):
        return f"a tensor of shape {tuple(x.shape)}"
    if isinstance(x, Mapping):
        return f"a {type(x).__name__} with the keys {', '.join(map(repr, x)) or 'none'}"
    if isinstance(x, tuple | list):
        return f"a {type(x).__name__} of ({', '.join(describe_value(value) for value in x)})"
    return repr(x) if x is None or isinstance(x, bool | int | float | str) else f"a {type(x).__name__}"
