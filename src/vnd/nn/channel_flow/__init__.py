"""The flow of channel identities through a recorded run: a rule for each kind of operation.

The labels of a value are arrays of identities of its rank, each of size 1 along the dimensions that it does not run
over, no two of them over the same dimension. What only moves entries about (views, permutations, splits, windows) is
run on the labels themselves (`movements`). A contraction with a parameter (linear layer, convolution, embedding,
`addmm`, `einsum`) reads channels and makes new ones (`layers`). An operation between tensors ties what meets (`walk`).
One over channels ties all of them, unless it is a statistic that can be taken over the kept ones alone, as norms do
(`statistics`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.channel_flow.layers import Layers
from vnd.nn.channel_flow.movements import Movements
from vnd.nn.channel_flow.statistics import READING, REDUCING
from vnd.nn.channel_flow.walk import (
    CHANNEL_NORMS,
    MIXING,
    MOVING,
    entering,
    filled,
    is_leaf,
    operand,
    plain_kind,
    stretch,
)
from vnd.nn.dependency import Analysis, SizeUse, support
from vnd.nn.recorder import NUMBERS, Call, Recording, TracedInt, Value, record, signature, where_raised

__all__ = ["ADDING", "MIXING", "analyze", "is_leaf", "plain_kind"]

ALONE = {  # each entry by itself
    *("relu", "relu6", "leaky_relu", "gelu", "silu", "elu", "selu", "celu", "mish", "softplus", "tanh", "sigmoid"),
    *("hardswish", "hardsigmoid", "hardtanh", "logsigmoid", "softsign", "hardshrink", "softshrink", "tanhshrink"),
    *("threshold", "rrelu", "exp", "expm1", "log", "log1p", "abs", "square", "sqrt", "rsqrt", "reciprocal", "neg"),
    *("sin", "cos", "erf", "sign", "clamp", "clip", "clamp_min", "clamp_max", "round", "floor", "ceil", "nan_to_num"),
    *("contiguous", "clone", "detach", "float", "half", "double", "bfloat16", "long", "int", "bool", "to", "type"),
    *("type_as", "cpu", "requires_grad", "data", "alias", "positive", "isnan", "isinf", "logical_not", "invert"),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"),
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "identity", "set"),
}
MEETING = {  # entries of several tensors at one place
    *("mul", "rmul", "div", "rdiv", "true_divide", "truediv", "rtruediv", "pow", "rpow", "floor_divide", "floordiv"),
    *("where", "masked_fill", "maximum", "minimum", "fmax", "fmin", "max", "min", "lerp", "addcmul", "addcdiv"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "and", "or", "xor", "atan2", "remainder", "mod"),
    *("bitwise_and", "bitwise_or", "isclose", "clamp", "fill", "copy", "hypot", "xlogy", "divide", "multiply"),
}
ADDING = {"add", "radd", "sub", "rsub", "subtract"}
SPATIAL = {"interpolate", "instance_norm", "grid_sample", "boolean_dispatch"}  # and all with "pool" or "upsample"
CREATING = {"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty"}
# Functions that ask for a number, which need not change what is done; the others have outputs of no fixed size.
ASKING = {"__bool__", "item", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal", "allclose"}


def analyze(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], pick: Callable[[Any], Any] = lambda output: output
) -> Analysis:
    """Record `model` on an example and find which of its channels can be dropped together; give a copy of it.

    Channels that reach what `pick` takes of the output stay whole.
    """
    name = type(model).__name__
    try:
        with torch.no_grad():
            model.eval()(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        recording = record(model.train().eval(), args, kwargs, is_leaf, pick)  # of caches, some are cleared by train
    except Exception as error:
        raise ValueError(f"to_nested: {name} cannot run on the example: {where_raised(error)}{error}") from error
    for level, function, where in recording.seen:
        if level == NUMBERS and (function not in ASKING or _branches(model, args, kwargs, recording)):
            raise ValueError(
                f"to_nested: what {name} does depends on the values of its input ({function} at {where}), so that one "
                "example does not show it; move that out of the forward pass"
            )
    if not recording.outputs:
        raise ValueError(f"to_nested: in the output of {name} no tensor can be found; say with output= how to take one")
    return _Flow(model, recording).analysis()


def _branches(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recording: Recording) -> bool:
    """Tell if the network does something else on other numbers; inputs that it refuses do not count."""
    wanted = signature(recording)
    changes: list[Callable[[Tensor], Tensor]] = [
        *(lambda x: -x, lambda x: 10 * x, lambda x: x.flip(0), lambda x: x * 0),
        *[lambda x: x.min() + (x.max() - x.min()) * torch.rand_like(x)] * 4,
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for change in changes:
            try:
                again = record(model.train().eval(), _changed(args, change), _changed(kwargs, change), is_leaf)
            except Exception:
                continue
            if signature(again) != wanted:
                return True
    return False


def _changed(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested arguments with the floating tensors changed."""
    if isinstance(x, Tensor):
        return change(x) if x.is_floating_point() and x.numel() else x
    if isinstance(x, (list, tuple)):
        return type(x)(_changed(item, change) for item in x) if type(x) in (list, tuple) else x
    return {key: _changed(item, change) for key, item in x.items()} if isinstance(x, dict) else x


class _Flow(Layers, Movements):
    """One pass over the calls of a run, in which labels flow from value to value."""

    def analysis(self) -> Analysis:
        """Follow all calls, and conclude; of what the output does not depend on, only sizes matter."""
        calls, reaching = self.recording.calls, _reaching(self.recording)
        for call in calls:
            self.idle = call not in reaching and not call.overwrites
            for value in call.inputs:
                self.begin(value)
            for value in call.outputs:
                value.labels = []
            self.visit(call)
            if call.overwrites:
                self.overwrite(call)
        for value in self.recording.outputs:
            self.whole(value, "reaches the output of the network")
        for identities in self.vocabularies:
            self.channels.keep_whole(identities, "is an entry of a vocabulary")
        for left, right, where in self.recording.compared:
            self.compare(left, right, where)
            self.compare(right, left, where)
        for path in [path for path in self.weights if path in self.by_function]:
            self.channels.parameters[path] = list(self.weights[path])
        for path, entries in self.entries.items():
            self.channels.parameters.setdefault(path, []).append(entries)
        self.read_by_functions()
        self.part_statistics()
        self.tie_biases()
        result = self.channels.conclude()
        result.whole = self.left | result.whole
        result.called = {call.scope for call in calls if call.module is not None}
        result.unused = [name for name in self.modules if self.is_unused(name, result.called)]
        result.whole |= dict.fromkeys(result.unused, "did not run on the example")
        result.first_consumers = _first_consumers(self.recording)
        shared = [paths for paths in self.holders.values() if len(paths) > 1]
        result.shared = {path.rpartition(".")[0] for paths in shared for path in paths if path.endswith("weight")}
        result.shared |= {path.rpartition(".")[0] for path in self.by_function}
        result.functional = self.functional_norms(calls)
        return result

    def overwrite(self, call: Call) -> None:
        """Tie what is written in place to what stood there: views see the one, and have labels of the other."""
        before, after = call.args[0], call.outputs[0]
        if not isinstance(before, Value) or not before.viewed:
            return
        for x in after.labels:
            if not any(x is y for y in before.labels):
                like = next((y for y in before.labels if y.shape == x.shape), None)
                if like is None:
                    self.channels.keep_whole(x, f"is written into another tensor, {call.where}")
                else:
                    self.channels.tie(x, like, reason=f"is written into another tensor, {call.where}")
        for y in before.labels:
            if not any(x.shape == y.shape for x in after.labels):
                self.channels.keep_whole(y, f"is written over, {call.where}")

    def is_unused(self, path: str, called: set[str]) -> bool:
        """Tell if a layer had no part in the run."""
        layer = self.modules[path]
        if not isinstance(layer, MIXING) or path in called:
            return False
        return not any(self.paths[id(tensor)] in self.channels.shapes for tensor in layer.parameters())

    def compare(self, size: Any, attribute: Any, where: str) -> None:
        """An attribute that code compares with a size has to follow it."""
        kinds = [x.source[0] for x in (size, attribute) if isinstance(x, TracedInt)]
        if len(kinds) == 2 and kinds[0] == "size" and kinds[1] != "size":
            value, dim = size.source[1:]
            for identities in value.labels:
                if identities.size(dim) > 1:
                    self.channels.sizes.append(SizeUse(attribute, identities, dim, where))

    def read_by_functions(self) -> None:
        """Keep whole what a function reads of a layer's own weight: the layer would not know of the mask."""
        for path in list(self.channels.read):
            layers = [p.rpartition(".")[0] for p in self.holders.get(path, [path])]
            inside = [name for name in layers if name in self.channels.inputs or name in self.channels.outputs]
            if inside:
                for identities in self.weights[path]:
                    self.channels.keep_whole(identities, f"a function reads the weight of {inside[0]}, too")
                del self.channels.read[path]

    def functional_norms(self, calls: list[Call]) -> list[str]:
        """The modules whose running statistics are given to `F.batch_norm`, but by a norm of torch's to its own."""
        found: dict[str, None] = {}
        for call in calls:
            mean = call.argument(1, "running_mean") if call.name == "batch_norm" and call.module is None else None
            if isinstance(mean, Value) and mean.parameter is not None:
                owner = mean.parameter.rpartition(".")[0]
                if owner != call.scope or not isinstance(self.modules[owner], nn.modules.batchnorm._BatchNorm):
                    found[owner or "the network"] = None
        called = {call.scope for call in calls if call.module is not None} | {s.path for s in self.recording.scopes}
        for call in calls:  # as where a norm is folded into a convolution
            for value in call.inputs if call.module is None and call.name != "batch_norm" else ():
                owner, _, name = (value.parameter or "").rpartition(".")
                if name == "running_mean" and owner not in called:
                    found[owner] = None
        return list(found)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def visit(self, call: Call) -> None:
        """Work out the labels of a call's outputs from those of its inputs."""
        if call.module is not None:
            self.visit_module(call, call.module)
            return
        name = call.name
        labeled = [value for value in call.inputs if value.labels]
        rule: Callable[[Call], None] | None = getattr(self, f"visit_{name}", None)
        meets = name in MEETING and (name not in ("max", "min") or isinstance(call.argument(1, "other"), Value))
        if name in CREATING:
            self.create(call)
        elif not labeled or not call.outputs:
            return
        elif rule is not None:
            rule(call)
        elif name in MOVING:
            self.move(call)
        elif meets or name in ADDING:
            self.meet(call, name in ADDING)
        elif name in ALONE:
            self.alone(call)
        elif name in REDUCING:
            self.reduce(call)
        elif name in READING:
            self.read_all(call)
        elif name in SPATIAL or "pool" in name or "upsample" in name:
            self.spatial(call)
        elif len(labeled) == 1 and self.acts_alone(call):
            self.alone(call)
        else:
            self.give_up(call)

    def meet(self, call: Call, residual: bool) -> None:
        """Operations between entries at one place: what meets is tied, and only like meets like."""
        output = call.outputs[0]
        operands = [v for v in call.inputs if len(v.shape) <= len(output.shape)]
        if call.name == "copy":  # the first one is overwritten
            operands = operands[1:]
        self.join(output, [operand(v) for v in operands], call, residual)

    def create(self, call: Call) -> None:
        """A tensor of one value has the channels whose sizes it is made with."""
        output, rank = call.outputs[0], len(call.outputs[0].shape)
        sizes = _integers(call.args)[:rank] or _integers(call.kwargs.get("size", ()))[:rank]
        for dim, size in enumerate(sizes if len(sizes) == rank else ()):
            if isinstance(size, TracedInt) and output.shape[dim] > 1:
                if size.source[0] == "size":
                    value, axis = size.source[1:]
                    along = [x for x in value.labels if support(x) == (axis,)]
                    output.labels += [stretch(x.flatten(), dim, rank) for x in along]
                else:  # as many as an attribute says
                    made = stretch(self.channels.fresh(output.shape[dim]), dim, rank)
                    output.labels.append(made)
                    self.channels.sizes.append(SizeUse(size, made, dim, call.where))

    def alone(self, call: Call) -> None:
        """The output has the labels of the first input, where it has its shape."""
        source = call.args[0] if call.args and isinstance(call.args[0], Value) else call.inputs[0]
        for output in call.outputs:
            if output.shape == source.shape:
                output.labels = list(source.labels)
            else:
                self.whole(source, entering(call))

    def acts_alone(self, call: Call) -> bool:
        """Tell if a function that is not known changes each entry by itself, as an experiment has it."""
        source = next(value for value in call.inputs if value.labels)
        if any(output.shape != source.shape for output in call.outputs):
            return False

        def again(x: Tensor) -> list[Tensor]:
            args, kwargs = filled((call.args, call.kwargs), lambda v: x if v is source else _sample(v))
            torch.manual_seed(1)
            with torch.no_grad():
                output = call.function(*args, **kwargs)
            return [output] if isinstance(output, Tensor) else list(output)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            x = torch.rand(source.shape, dtype=source.dtype)
            changed = torch.rand(source.shape) < 0.5
            try:
                before, after = again(x.clone()), again(torch.where(changed, x + 1, x))
                if not all(isinstance(output, Tensor) for output in (*before, *after)):
                    return False
                turned = [(d, again(x.flip(d))) for d in {d for labels in source.labels for d in support(labels)}]
            except Exception:
                return False
        alone = all(torch.equal(a[~changed], b[~changed]) for a, b in zip(before, after, strict=True))
        return alone and all(  # and does the same wherever it stands
            bool(torch.isclose(a.flip(d), b, equal_nan=True).all())
            for d, outputs in turned
            for a, b in zip(before, outputs, strict=True)
        )


def _sample(value: Value) -> Tensor:
    """A tensor of a value's shape and dtype."""
    return torch.rand(value.shape, dtype=value.dtype) if value.tensor is None else value.tensor.cpu()


def _integers(x: Any) -> list[Any]:
    """All integers in nested arguments, in order."""
    if isinstance(x, (list, tuple)):
        return [number for item in x for number in _integers(item)]
    return [x] if isinstance(x, int) and not isinstance(x, bool) else []


def _reaching(recording: Recording) -> set[Call]:
    """The calls that the output depends on."""
    needed: set[int] = {id(value) for value in recording.outputs}
    found = set()
    for call in reversed(recording.calls):
        if any(id(value) in needed for value in call.outputs):
            found.add(call)
            needed |= {id(value) for value in call.inputs}
    return found


def _first_consumers(recording: Recording) -> list[str]:
    """The mixing layer that alone reads the network's input, if there is one and it runs once: a list of its name.

    What lies between leaves the examples along dimension 0, and nothing else is told how many there are.
    """
    value = recording.inputs[0] if len(recording.inputs) == 1 else None
    before: list[Value] = []
    while value is not None and len(value.users) == 1:
        call = value.users[0]
        if call.module is not None and plain_kind(call.module) in MIXING:
            runs = sum(other.module is call.module for other in recording.calls)
            sizes = [s for other in recording.calls for s in _sources((other.args, other.kwargs))]
            counted = any(s[0] == "size" and s[2] == 0 and s[1] in (*before, value) for s in sizes)
            return [call.scope] if runs == 1 and len(call.inputs) == 1 and not counted else []
        norm = call.module is not None and plain_kind(call.module) in CHANNEL_NORMS
        spatial = call.name in SPATIAL or "pool" in call.name
        if (
            not (norm or spatial or call.name in ALONE | {"flatten", "view", "reshape", "pad"})
            or len(call.outputs) != 1
        ):
            break
        if len(call.inputs) > 1 or call.outputs[0].shape[:1] != value.shape[:1]:
            break
        before.append(value)
        value = call.outputs[0]
    return []


def _sources(x: Any) -> list[tuple[Any, ...]]:
    """Sizes and attributes that the integers in nested arguments come from."""
    if isinstance(x, TracedInt):
        return list(x.leaves())
    if isinstance(x, dict):
        x = list(x.values())
    return [source for item in x for source in _sources(item)] if isinstance(x, (list, tuple)) else []
