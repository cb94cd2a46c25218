"""The flow of channel identities through a recorded run: a rule for each kind of operation.

The labels of a value are arrays of identities of its rank, each of size 1 along the dimensions that it does not run
over, no two of them over the same dimension. What only moves entries about (views, permutations, splits, windows) is
run on the labels themselves. A contraction with a parameter (linear layer, convolution, embedding, `addmm`, `einsum`)
reads channels and makes new ones. An operation between tensors ties what meets. One over channels ties all of them,
unless it is a statistic that can be taken over the kept ones alone, as norms do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.dependency import NONE, Analysis, Channels, SizeUse, step
from vnd.nn.recorder import NUMBERS, Call, Recording, TracedInt, Value, record, signature, values_in, where_raised

MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CHANNEL_NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
MIXING_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
LEAVES = (*MIXING, *CHANNEL_NORMS, *MIXING_NORMS)

Axes = tuple[int, ...]

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
MOVING = {  # entries to other places
    *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "T", "mT", "H", "swapaxes", "swapdims"),
    *("movedim", "moveaxis", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "view_as", "reshape_as"),
    *("getitem", "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "select", "narrow", "index_select"),
    *("roll", "flip", "repeat", "repeat_interleave", "tile", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    *("unfold", "diagonal", "adjoint", "ravel", "take_along_dim", "gather", "atleast_2d", "atleast_3d", "rot90"),
}
SPATIAL = {  # over positions, which are the dimensions from 2
    *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "upsample"),
    *("adaptive_max_pool2d", "adaptive_max_pool3d", "interpolate", "instance_norm", "grid_sample", "boolean_dispatch"),
    *("max_pool1d_with_indices", "max_pool2d_with_indices", "adaptive_max_pool2d_with_indices", "upsample_nearest"),
    *("upsample_bilinear",),
}
REDUCING = {"mean", "sum", "var", "std", "amax", "amin", "max", "min", "norm", "vector_norm", "linalg_vector_norm"}
TIEING = {  # over a dimension, which they keep, and all of whose entries they read
    *("softmax", "log_softmax", "normalize", "cumsum", "cumprod", "logsumexp", "prod", "argmax", "argmin", "sort"),
    *(
        "softmin",
        "logcumsumexp",
        "all",
        "any",
        "argsort",
        "topk",
        "median",
        "var_mean",
        "std_mean",
        "cosine_similarity",
    ),
}
# Statistics over channels that `KeptChannels` takes over the kept ones.
MASKABLE = REDUCING | {"layer_norm", "rms_norm", "group_norm", "normalize", "batch_norm"}
# Functions that ask for a number, which need not change what is done; the others have outputs of no fixed size.
ASKING = {"__bool__", "item", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal", "allclose"}
RESCALING = {"_weight_norm", "weight_norm", "batch_norm", "to", "contiguous", "float", "type_as", "detach"}
SCALING = {"mul", "rmul", "multiply", "div", "truediv", "true_divide", "divide"}
CREATING = {"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty"}


def analyse(
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


def is_leaf(path: str, module: nn.Module) -> bool:
    """Tell if a module is one of torch's layers, or inherits all that it does from one."""
    kind = plain_kind(module)
    if kind is None or torch.nn.utils.parametrize.is_parametrized(module):
        return False
    return kind in CHANNEL_NORMS or "weight" in module._parameters


def plain_kind(module: nn.Module) -> type[nn.Module] | None:
    """The layer of torch's that a module is, or whose forward pass it inherits as it is."""
    for kind in LEAVES:
        if isinstance(module, kind):
            same = all(
                getattr(type(module), name, None) is getattr(kind, name, None)
                for name in ("forward", "_conv_forward", "__getattr__", "__call__")
            )
            return kind if same and "forward" not in vars(module) else None
    return None


class _Flow:
    """One pass over the calls of a run, in which labels flow from value to value."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.model, self.recording = model, recording
        self.modules = dict(model.named_modules())
        self.channels = Channels()
        self.paths: dict[int, str] = {}  # tensors to their first names
        self.holders: dict[str, list[str]] = {}  # first name → all of them
        named = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        for path, tensor in (entry for table in named for entry in table):
            first = self.paths.setdefault(id(tensor), path)
            self.holders.setdefault(first, []).append(path)
        self.weights: dict[str, list[Tensor]] = {}  # parameter → identities along each of its first two dimensions
        self.entries: dict[str, Tensor] = {}  # parameter → those of its single entries
        self.origin: dict[int, tuple[str, int]] = {}  # run of identities → the parameter and the dimension it is of
        self.by_function: set[str] = set()  # parameters that functions read
        self.left: dict[str, str] = {}
        self.vocabularies: list[Tensor] = []
        self.idle = False  # whether the output does not depend on the call under way
        self.trained = {path for path, _ in model.named_parameters(remove_duplicate=False)}

    def analysis(self) -> Analysis:
        """Follow all calls, and conclude; of what the output does not depend on, only sizes matter."""
        calls, reaching = self.recording.calls, _reaching(self.recording)
        for call in calls:
            self.idle = call not in reaching
            for value in call.inputs:
                self.begin(value)
            for value in call.outputs:
                value.labels = []
            self.visit(call)
        for value in self.recording.outputs:
            self.whole(value, "reaches the output of the network")
        for identities in self.vocabularies:
            self.channels.keep_whole(identities, "is an entry of a vocabulary")
        for left, right, where in self.recording.compared:
            self.compare(left, right, where)
        for path, arrays in self.weights.items():
            if path in self.by_function:
                self.channels.parameters.setdefault(path, []).extend(arrays)
        for path, entries in self.entries.items():
            self.channels.parameters.setdefault(path, []).append(entries)
        self.read_by_functions()
        self.refuse_alike()
        self.tie_biases()
        result = self.channels.conclude()
        result.whole = self.left | result.whole
        result.called = {call.scope for call in calls if call.module is not None}
        result.first_consumers = _first_consumers(self.recording)
        shared = [paths for paths in self.holders.values() if len(paths) > 1]
        result.shared = {path.rpartition(".")[0] for paths in shared for path in paths if path.endswith("weight")}
        result.shared |= {path.rpartition(".")[0] for path in self.by_function}
        result.functional = self.functional_norms(calls)
        return result

    def compare(self, left: Any, right: Any, where: str) -> None:
        """A size that code compares with an attribute: that has to follow it."""
        for size, other in ((left, right), (right, left)):
            if isinstance(size, TracedInt) and isinstance(other, TracedInt) and size.source[0] == "size":
                value, dim = size.source[1:]
                if other.source[0] != "size":
                    for identities in value.labels:
                        if identities.size(dim) > 1:
                            self.channels.sizes.append(SizeUse(other, identities, dim, where))

    # -- values and parameters -----------------------------------------------------------------------------------------

    def begin(self, value: Value) -> None:
        """Give a parameter its identities when it is met first."""
        if value.parameter is None or value.labels or value.tensor is not None:
            return
        path, shape = value.parameter, value.shape
        self.channels.shapes[path] = shape
        if path in self.trained and _is_weight(value, set()):
            self.by_function.add(path)
            value.labels = self.weight(path, shape)
        elif value.labels == [] and any(size > 1 for size in shape):
            if path not in self.entries:
                self.entries[path] = self.channels.fresh(max(1, _count(shape))).view(shape)
            value.labels = [self.entries[path]]

    def weight(self, path: str, shape: tuple[int, ...]) -> list[Tensor]:
        """The identities along the dimensions of a weight, each of the weight's rank."""
        if path not in self.weights:
            self.weights[path] = []
            self.channels.shapes[path] = shape
            for dim, size in enumerate(shape[:2] if len(shape) > 3 else shape):
                if size > 1:
                    identities = self.channels.fresh(size)
                    self.origin[len(self.channels.starts) - 1] = path, dim
                    self.weights[path].append(_stretch(identities, dim, len(shape)))
        return list(self.weights[path])

    def side(self, path: str, shape: tuple[int, ...], dim: int) -> Tensor:
        """The identities along a dimension of a weight, (size,)."""
        for identities in self.weight(path, shape):
            if identities.size(dim) > 1:
                return identities.flatten()
        single = self.channels.fresh(1)
        self.origin[len(self.channels.starts) - 1] = path, dim
        self.weights[path].append(_stretch(single, dim, len(shape)))
        return single

    def made_by(self, identities: Tensor, name: str, table: bool = False) -> None:
        """Note that a layer makes these channels; what none can be named for stays whole."""
        if name == ".":
            return self.channels.keep_whole(identities, "is made by no layer")
        for run in sorted({self.channels.maker(int(i)) for i in identities[[0, -1]] if i != NONE}):
            if name not in self.channels.makers[run]:
                self.channels.makers[run] += (name,)
            if table:
                self.channels.tables.add(run)

    def whole(self, value: Value, reason: str) -> None:
        """Keep all channels of a value."""
        for identities in value.labels:
            self.channels.keep_whole(identities, reason)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def visit(self, call: Call) -> None:
        """Work out the labels of a call's outputs from those of its inputs."""
        if call.module is not None:
            self.visit_leaf(call, call.module)
            return
        name, operands = call.name, call.inputs
        rule: Callable[[Call], None] | None = getattr(self, f"visit_{name}", None)
        labelled = [value for value in operands if value.labels]
        if name in CREATING:
            self.create(call)
        elif not labelled or not call.outputs:
            return
        elif rule is not None:
            rule(call)
        elif name in MOVING:
            self.move(call)
        elif name in ("max", "min") and self.axes(call) is not None:
            self.reduce(call)
        elif name in ADDING or name in MEETING:
            self.meet(call, name in ADDING)
        elif name in ALONE:
            self.alone(call)
        elif name in REDUCING:
            self.reduce(call)
        elif name in TIEING:
            self.over(call)
        elif name in SPATIAL or "pool" in name or "upsample" in name:
            self.spatial(call)
        elif len(labelled) == 1 and self.acts_alone(call):
            self.alone(call)
        else:
            self.give_up(call, f"enters {name}, {call.where}")

    def give_up(self, call: Call, reason: str) -> None:
        """Keep all that a call reads, and the modules whose weights it uses."""
        for value in call.inputs:
            self.whole(value, reason)
            if value.parameter is not None and len(value.shape) > 1 and call.scope:
                self.left[call.scope] = f"{_article(type(self.modules[call.scope]).__name__)}, which is used as it is"

    def create(self, call: Call) -> None:
        """A tensor of one value has the channels whose sizes it is made with."""
        output = call.outputs[0]
        rank = len(output.shape)
        sizes = _numbers(call.args)[:rank] or _numbers(call.kwargs.get("size", ()))[:rank]
        if len(sizes) < rank:
            return
        for dim, size in enumerate(sizes):
            if not isinstance(size, TracedInt) or output.shape[dim] == 1:
                continue
            if size.source[0] == "size":
                value, axis = size.source[1:]
                for identities in value.labels:
                    if _support(identities) == (axis,):
                        output.labels.append(_stretch(identities.flatten(), dim, rank))
            else:  # as many as an attribute says
                made = _stretch(self.channels.fresh(output.shape[dim]), dim, rank)
                output.labels.append(made)
                self.channels.sizes.append(SizeUse(size, made, dim, call.where))

    def alone(self, call: Call) -> None:
        """The output has the labels of the one labelled input of its shape."""
        source = call.args[0] if call.args and isinstance(call.args[0], Value) else call.inputs[0]
        for output in call.outputs:
            if output.shape == source.shape:
                output.labels = list(source.labels)
            else:
                self.whole(source, f"enters {call.name}, {call.where}")

    def acts_alone(self, call: Call) -> bool:
        """Tell if a function that is not known changes each entry by itself, as an experiment has it."""
        source = next(value for value in call.inputs if value.labels)
        if any(output.shape != source.shape for output in call.outputs):
            return False

        def again(x: Tensor) -> list[Tensor]:
            args, kwargs = _filled((call.args, call.kwargs), lambda v: x if v is source else _sample(v))
            with torch.no_grad():
                output = call.function(*args, **kwargs)
            return [output] if isinstance(output, Tensor) else list(output)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            x = torch.rand(source.shape, dtype=source.dtype)
            changed = torch.rand(source.shape) < 0.5
            dims = sorted({d for x in source.labels for d in _support(x)})
            try:
                torch.manual_seed(1)
                before = again(x.clone())
                torch.manual_seed(1)
                after = again(torch.where(changed, x + 1, x))
                flipped = [(d, again(x.flip(d))) for d in dims]  # where an entry stands must not matter
            except Exception:
                return False
        alone = all(torch.equal(a[~changed], b[~changed]) for a, b in zip(before, after, strict=True))
        return alone and all(
            bool(torch.isclose(a.flip(d), b, equal_nan=True).all())
            for d, turned in flipped
            for a, b in zip(before, turned, strict=True)
        )

    # -- layers --------------------------------------------------------------------------------------------------------

    def visit_leaf(self, call: Call, module: nn.Module) -> None:
        """One of torch's own layers."""
        kind, path, inputs = plain_kind(module), call.scope, call.inputs
        if len(inputs) != 1 or not call.outputs:
            self.give_up(call, f"{path} has inputs that are not one tensor")
        elif kind in MIXING:
            self.visit_layer(call, module, path)
        elif kind in (nn.LayerNorm, nn.RMSNorm):
            self.visit_layer_norm_module(call, module, path)
        elif kind is nn.GroupNorm:
            self.group_norm(call, inputs[0], module, path)
        else:
            self.keep_positions(inputs[0], range(2, len(inputs[0].shape)), f"enters {path} as positions")
            self.by_channel(call, inputs[0], path)

    def by_channel(self, call: Call, source: Value, path: str) -> None:
        """A norm whose parameters are one for each channel, at dimension 1."""
        identities = self.channel(source, 1, f"enters {path}")
        if identities is not None:
            self.note(path, identities, identities)
        self.tie_own(path, identities, source.shape[1] if len(source.shape) > 1 else 0)
        call.outputs[0].labels = list(source.labels)

    def tie_own(self, path: str, identities: Tensor | None, size: int) -> None:
        """Tie the entries of a norm's own tensors that others share to its channels."""
        module = self.modules[path]
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            first = None if tensor is None else self.paths.get(id(tensor))
            if first is None or tensor is None or tensor.shape != (size,) or len(self.holders[first]) == 1:
                continue
            if first not in self.entries:
                self.entries[first] = self.channels.fresh(size)
                self.channels.shapes[first] = (size,)
            if identities is None:
                self.channels.keep_whole(self.entries[first], f"shares a tensor with {path}, which is not cut alike")
            else:
                reason = f"{path} shares a tensor with another layer, which is not cut alike"
                self.channels.tie(self.entries[first], identities, reason=reason)

    def visit_layer_norm_module(self, call: Call, module: Any, path: str) -> None:
        """LayerNorm and RMSNorm: statistics over the last dimension."""
        source = call.inputs[0]
        if len(module.normalized_shape) > 1:
            dims = range(len(source.shape) - len(module.normalized_shape), len(source.shape))
            self.keep_positions(source, dims, f"{path} normalises over several dimensions")
            call.outputs[0].labels = list(source.labels)
            return
        identities = self.channel(source, len(source.shape) - 1, f"enters {path}", inner=True)
        if identities is not None:
            self.note(path, identities, identities)
        self.tie_own(path, identities, source.shape[-1])
        call.outputs[0].labels = list(source.labels)

    def group_norm(self, call: Call, source: Value, module: Any, path: str) -> None:
        """Statistics over groups of channels and all positions."""
        self.keep_positions(source, range(2, len(source.shape)), f"enters {path} as positions")
        identities = self.channel(source, 1, f"enters {path}")
        if identities is not None:
            if module.num_groups < source.shape[1]:
                self.channels.tiled.append((path, identities, module.num_groups))
            self.note(path, identities, identities)
        self.tie_own(path, identities, source.shape[1])
        call.outputs[0].labels = list(source.labels)

    def visit_layer(self, call: Call, module: Any, path: str) -> None:
        """A linear layer or convolution: reads channels, makes new ones."""
        weight = self.paths[id(module.weight)]
        convolution, transposed = not isinstance(module, nn.Linear), getattr(module, "transposed", False)
        groups, source = getattr(module, "groups", 1), call.inputs[0]
        rank = len(source.shape)
        dim = 1 if convolution and rank == module.weight.dim() else 0 if convolution else rank - 1
        if convolution:
            self.keep_positions(source, range(dim + 1, rank), f"enters {path} as positions")
        shape = tuple(module.weight.shape)
        sides = (1, 0) if transposed else (0, 1)
        if groups > 1:
            size = module.out_channels
            self.mix(call, source, dim, path, groups, None, None if transposed else self.side(weight, shape, 0), size)
        else:
            self.mix(call, source, dim, path, 1, self.side(weight, shape, sides[1]), self.side(weight, shape, sides[0]))

    def mix(
        self,
        call: Call,
        source: Value,
        dim: int,
        path: str,
        groups: int,
        reads: Tensor | None,
        makes: Tensor | None,
        size: int = 0,
    ) -> None:
        """Read the channels along a dimension, and make others in their place."""
        incoming = self.channel(source, dim, f"enters {path}")
        rest = [identities for identities in source.labels if identities.size(dim) == 1]
        rank, inputs = len(call.outputs[0].shape), source.shape[dim]
        if groups > 1 and groups == inputs:  # depthwise: the channels go on as they are
            made = None if incoming is None else incoming.repeat_interleave(size // inputs)
            if len(self.sharing(path)) > 1:
                self.channels.keep_whole(made, self.apart(path))
        else:
            made = self.outputs_of(path, size) if makes is None else makes
            self.made_by(made, path)
            if incoming is not None and reads is not None:
                self.channels.tie(incoming, reads, reason=f"{path} shares its weight, or is used, with other inputs")
            elif reads is not None:
                self.channels.keep_whole(reads, self.apart(path))
            if groups > 1:
                self.channels.tiled += [(path, ids, groups) for ids in (incoming, made) if ids is not None]
                if len(self.sharing(path)) > 1:
                    for identities in (incoming, made):
                        self.channels.keep_whole(identities, self.apart(path))
        self.note(path, incoming, made)
        call.outputs[0].labels = [*rest, *([] if made is None else [_stretch(made, dim, rank)])]

    def outputs_of(self, path: str, size: int) -> Tensor:
        """The identities of outputs that are no whole dimension of the weight, as in groups of a transposed one."""
        return self.weights.setdefault(f"{path} (outputs)", [self.channels.fresh(size)])[0]

    def sharing(self, path: str) -> list[str]:
        """The names of a layer's weight."""
        return self.holders[self.paths[id(self.modules[path].weight)]]

    def apart(self, path: str) -> str:
        """Why a layer that reads channels of no layer keeps others whole."""
        others = [name.rpartition(".")[0] for name in self.sharing(path) if name != f"{path}.weight"]
        return f"{others[0]} shares a tensor with {path}, which is not cut alike" if others else f"enters {path}"

    def note(self, path: str, incoming: Tensor | None, outgoing: Tensor | None) -> None:
        """Note what a layer reads and writes; a second call must read and write channels that are tied alike."""
        for table, identities in ((self.channels.inputs, incoming), (self.channels.outputs, outgoing)):
            if path in table:
                before = table[path]
                if before is None or identities is None:
                    for one in (before, identities):
                        self.channels.keep_whole(one, f"{path} is used more than once, not alike")
                else:
                    self.channels.tie(before, identities, reason=f"{path} is used more than once, not alike")
            else:
                table[path] = identities

    # -- functions with a weight ---------------------------------------------------------------------------------------

    def visit_linear(self, call: Call) -> None:
        """F.linear: y = x Wᵀ + b."""
        source, weight = call.argument(0, "input"), call.argument(1, "weight")
        letters = _letters(len(source.shape) - 1)
        term = "zy" if len(weight.shape) == 2 else "y"
        self.contract(call, [source, weight], [f"{letters}y", term], letters + term[:-1])
        self.add_bias(call, call.argument(2, "bias"))

    def add_bias(self, call: Call, bias: Value | None, dim: int = -1) -> None:
        if isinstance(bias, Value) and bias.labels:
            rank = len(call.outputs[0].shape)
            aligned = [_stretch(x.flatten(), dim % rank, rank) for x in bias.labels]
            self.join(call.outputs[0], [(call.outputs[0].shape, call.outputs[0].labels), (None, aligned)], False, call)

    def visit_addmm(self, call: Call) -> None:
        """torch.addmm: y = b + x W."""
        bias, source, weight = call.args[0], call.argument(1, "mat1"), call.argument(2, "mat2")
        self.contract(call, [source, weight], ["xy", "yz"], "xz")
        self.add_bias(call, bias)

    def visit_baddbmm(self, call: Call) -> None:
        """torch.baddbmm: y = b + x W, batched."""
        bias, a, b = call.args[0], call.argument(1, "batch1"), call.argument(2, "batch2")
        self.contract(call, [a, b], ["bxy", "byz"], "bxz")
        shapes = [(call.outputs[0].shape, call.outputs[0].labels), (bias.shape, bias.labels)]
        self.join(call.outputs[0], shapes, False, call)

    def visit_matmul(self, call: Call) -> None:
        """Matrix products, batched."""
        a, b = call.inputs if call.name != "rmatmul" else call.inputs[::-1]
        ranks = len(a.shape), len(b.shape)
        batch = _letters(max(*ranks, 2) - 2)
        left = "y" if ranks[0] == 1 else f"{batch[len(batch) - ranks[0] + 2 :]}xy"
        right = "y" if ranks[1] == 1 else f"{batch[len(batch) - ranks[1] + 2 :]}yz"
        out = batch + ("" if ranks[0] == 1 else "x") + ("" if ranks[1] == 1 else "z")
        self.contract(call, [a, b], [left, right], out)

    visit_rmatmul = visit_bmm = visit_mm = visit_mv = visit_dot = visit_matmul

    def visit_einsum(self, call: Call) -> None:
        """torch.einsum with an explicit or implicit output, without ellipses."""
        equation, operands = call.args[0], list(call.args[1:])
        operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
        if not isinstance(equation, str) or "." in equation or len(operands) > 2:
            return self.give_up(call, f"enters einsum, {call.where}")
        left, _, out = equation.replace(" ", "").partition("->")
        terms = left.split(",")
        if "->" not in equation:
            out = "".join(sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1))
        self.contract(call, list(operands), terms, out)

    def visit_embedding(self, call: Call) -> None:
        """F.embedding: rows of a table."""
        table = next((v for v in call.inputs if v.labels and len(v.shape) == 2), None)
        if (
            table is None
            or call.kwargs.get("max_norm") is not None
            or (len(call.args) > 3 and call.args[3] is not None)
        ):
            return self.give_up(call, f"enters embedding, {call.where}")
        output = call.outputs[0]
        for identities in table.labels:
            if identities.size(1) > 1:
                self.made_by(identities.flatten(), self.owner(identities, call), table=True)
                output.labels = [_stretch(identities.flatten(), len(output.shape) - 1, len(output.shape))]
            else:
                self.vocabularies.append(identities)

    def visit_conv(self, call: Call) -> None:
        """F.conv1d, conv2d, conv3d and their transposed forms."""
        source, weight = call.argument(0, "input"), call.argument(1, "weight")
        transposed = "transpose" in call.name
        groups = call.argument(6, "groups", 1)
        rank, dim = len(source.shape), 1 if len(source.shape) == len(weight.shape) else 0
        self.keep_positions(source, range(dim + 1, rank), f"enters {call.name} as positions, {call.where}")
        incoming = self.channel(source, dim, f"enters {call.name}, {call.where}")
        output, inputs = call.outputs[0], source.shape[dim]
        own, other = (1, 0) if transposed else (0, 1)
        across = [x for x in weight.labels if _support(x) == (other,)]
        along = [x for x in weight.labels if _support(x) == (own,)]
        for x in weight.labels:
            if _support(x) not in ((0,), (1,)):
                self.channels.keep_whole(x, f"enters {call.name} as positions, {call.where}")
        rest = [x for x in source.labels if x.size(dim) == 1]
        made = along[0].flatten() if along else None
        if 1 < int(groups) == inputs and not transposed:  # depthwise: the channels go on as they are
            repeated = None if incoming is None else incoming.repeat_interleave(output.shape[dim] // inputs)
            if made is not None and repeated is not None and incoming is not None:
                self.channels.tie(made, repeated)
                self.channels.sizes.append(SizeUse(groups, _stretch(incoming, 0, 1), 0, call.where))
            else:
                self.channels.keep_whole(made, f"enters {call.name}, {call.where}")
            made = repeated
        else:
            if int(groups) > 1:  # each group is cut alike
                incoming, made = (
                    self.alike_in_groups(x, int(groups)) for x in (incoming, None if transposed else made)
                )
                across = [x.repeat(*[int(groups) if d == other else 1 for d in range(x.dim())]) for x in across]
                if transposed:
                    for x in along:
                        self.channels.keep_whole(x, f"enters {call.name} in groups, {call.where}")
            self.read_channels(incoming, across, call)
            if made is not None:
                self.made_by(made, self.owner(made, call))
        output.labels = [*rest, *([] if made is None else [_stretch(made, dim, rank)])]
        self.add_bias(call, call.argument(2, "bias"), dim)

    def alike_in_groups(self, identities: Tensor | None, groups: int) -> Tensor | None:
        """Tie the channels of a convolution's groups, one to one."""
        if identities is not None:
            rows = identities.view(groups, -1)
            self.channels.tie(rows, rows[:1])
        return identities

    visit_conv1d = visit_conv2d = visit_conv3d = visit_conv
    visit_conv_transpose1d = visit_conv_transpose2d = visit_conv_transpose3d = visit_conv

    def read_channels(self, incoming: Tensor | None, weight: list[Tensor], call: Call) -> None:
        """Tie the channels that are read to the entries of a weight that read them."""
        for identities in weight:
            if incoming is None:
                self.channels.keep_whole(identities, f"reads channels of no layer, {call.where}")
            else:
                self.channels.tie(incoming, identities.flatten(), reason=f"enters {call.name}, {call.where}")
                if (origin := self.origin_of(identities)) is not None:
                    self.channels.read[origin[0]] = origin[1]
        if incoming is not None and not weight:
            self.channels.keep_whole(incoming, f"enters {call.name} with a weight that is not cut alike, {call.where}")

    def origin_of(self, identities: Tensor) -> tuple[str, int] | None:
        """The parameter and dimension that identities are of."""
        some = identities[identities != NONE].flatten()
        return self.origin.get(self.channels.maker(int(some[0]))) if len(some) else None

    def owner(self, identities: Tensor, call: Call) -> str:
        """The module that holds the weight which makes channels."""
        origin = self.origin_of(identities)
        held = [path for path, entries in self.entries.items() if bool(torch.isin(identities, entries).any())]
        path = origin[0] if origin else held[0] if held else f"{call.scope}."
        return path.rpartition(".")[0].partition(".parametrizations")[0] or path

    def contract(self, call: Call, operands: list[Value], terms: list[str], out: str) -> None:
        """A sum of products over the letters that the output does not have.

        A letter that runs over a weight's own channels is read; between two activations what is summed over is tied.
        """
        output = call.outputs[0]
        labels = [[(x, t) for x in v.labels] for v, t in zip(operands, terms, strict=True)]
        sizes = {c: n for v, t in zip(operands, terms, strict=True) for c, n in zip(t, v.shape, strict=True)}
        weights = [self.is_weight(v) for v in operands]
        if all(weights):
            weights = [False] * len(weights)
        if any(len(set(t)) < len(t) for t in terms):
            return self.give_up(call, f"enters {call.name}, {call.where}")
        summed = [c for c in sizes if c not in out]
        found: list[list[tuple[Tensor, str]]] = [[] for _ in operands]
        for number, own in enumerate(labels):
            other = number ^ 1
            for identities, term in own:
                letters = [term[d] for d in _support(identities)]
                within = [c for c in letters if c in summed]
                if not within:
                    found[number].append((identities, term))
                    continue
                if weights[number]:
                    continue  # what it reads is tied from the other side
                if len(operands) == 2 and weights[other] and terms[other].count(within[0]) == 1 and len(within) == 1:
                    at = terms[other].index(within[0])
                    across = [x for x, _ in labels[other] if _support(x) == (at,)]
                    if len(letters) == 1 or all(c not in terms[other] for c in letters if c != within[0]):
                        kept = self.collapse(
                            identities, [term.index(c) for c in letters if c not in within], f"enters {call.name}"
                        )
                        self.read_channels(kept.flatten(), across, call)
                        continue
                kept = self.collapse(identities, [term.index(c) for c in within], f"is summed over, {call.where}")
                if _support(kept):
                    found[number].append((kept, term))
        for number, own in enumerate(labels):  # what no labelled channel reads
            if weights[number]:
                for identities, term in own:
                    letters = [term[d] for d in _support(identities)]
                    if any(c in summed for c in letters):
                        readers = [x for x, t in labels[number ^ 1] if any(t[d] in letters for d in _support(x))]
                        if not readers:
                            self.channels.keep_whole(identities, f"reads channels of no layer, {call.where}")
                    elif all(c in out for c in letters) and not any(
                        c in terms[number ^ 1] for c in letters if len(operands) > 1
                    ):
                        self.made_by(identities.flatten(), self.owner(identities, call))
        entries = []
        for value, term, own in zip(operands, terms, found, strict=True):
            order = [*(term.index(c) for c in out if c in term), *(d for d, c in enumerate(term) if c not in out)]
            sizes_of = [[x.size(term.index(c)) if c in term else 1 for c in out] for x, _ in own]
            moved = [x.permute(order).reshape(size) for (x, _), size in zip(own, sizes_of, strict=True)]
            entries.append((tuple(value.shape[term.index(c)] if c in term else 1 for c in out), moved))
        self.join(output, entries, False, call)

    def is_weight(self, value: Value) -> bool:
        """Tell if a value is a parameter's, moved about or not."""
        return any(self.origin_of(x) is not None for x in value.labels) and (
            value.parameter is not None or _of_parameters(value)
        )

    def visit_scaled_dot_product_attention(self, call: Call) -> None:
        """Attention: softmax(q kᵀ) v, heads apart."""
        q, k, v = (call.argument(i, n) for i, n in enumerate(("query", "key", "value")))
        mask, output = call.argument(3, "attn_mask"), call.outputs[0]
        rank = len(output.shape)
        entries: list[tuple[tuple[int, ...] | None, list[Tensor]]] = []
        for value in (q, k, v):
            kept = [
                self.collapse(x, [d for d in _support(x) if d >= rank - 2], f"attends, {call.where}")
                for x in value.labels
            ]
            if rank > 2 and value.shape[-3] != q.shape[-3] and value.shape[-3] > 1:  # grouped queries
                times = q.shape[-3] // value.shape[-3]
                kept = [x.repeat_interleave(times, -3) if x.size(-3) > 1 else x for x in kept]
            entries.append(((*q.shape[:-2], 1, 1), [x for x in kept if _support(x)]))
        if isinstance(mask, Value):
            kept = [
                self.collapse(x, [d for d in _support(x) if d >= x.dim() - 2], f"attends, {call.where}")
                for x in mask.labels
            ]
            entries.append(((*mask.shape[:-2], 1, 1), kept))
        self.join(output, entries, False, call)

    def visit__weight_norm(self, call: Call) -> None:
        """A weight of a direction and a length: w = g v / |v|."""
        v, g = call.args[0], call.args[1]
        dim = call.argument(2, "dim", 0) % len(v.shape)
        kept = []
        for identities in v.labels:
            if _support(identities) == (dim,):
                kept.append(identities)
            else:
                self.channels.keep_whole(identities, "enters a weight norm")
        self.join(call.outputs[0], [(v.shape, kept), (g.shape, g.labels)], False, call)

    visit_weight_norm = visit__weight_norm

    def visit_prelu(self, call: Call) -> None:
        """A slope for each channel, or one for all."""
        source, slope = call.argument(0, "input"), call.argument(1, "weight")
        rank = len(source.shape)
        aligned = [_stretch(x.flatten(), 1, rank) for x in slope.labels if slope.shape != (1,)]
        shape = tuple(source.shape[1] if d == 1 and slope.shape != (1,) else 1 for d in range(rank))
        self.join(call.outputs[0], [(source.shape, source.labels), (shape, aligned)], False, call)

    def visit_batch_norm(self, call: Call) -> None:
        """F.batch_norm: by channel, at dimension 1."""
        source = call.argument(0, "input")
        rank = len(source.shape)
        if _of_parameters(source):  # a weight that is standardised over what it reads
            source.labels = self.statistic(call, source, tuple(d for d in range(rank) if d != 1))
        else:
            reason = f"enters batch_norm as positions, {call.where}"
            self.keep_positions(source, [d for d in range(rank) if d != 1], reason)
        owner = call.argument(1, "running_mean")
        path = owner.parameter.rpartition(".")[0] if isinstance(owner, Value) and owner.parameter is not None else ""
        if path == call.scope and isinstance(self.modules[path], nn.modules.batchnorm._BatchNorm):
            identities = self.channel(source, 1, f"enters {path}")
            self.note(path, identities, identities)
        entries = [(source.shape, source.labels)]
        names = ("running_mean", "running_var", "weight", "bias")
        for place, name in enumerate(names, 1):
            value = call.argument(place, name)
            if isinstance(value, Value):
                shape = tuple(value.shape[0] if d == 1 else 1 for d in range(rank))
                entries.append((shape, [_stretch(x.flatten(), 1, rank) for x in value.labels]))
        self.join(call.outputs[0], entries, False, call)

    def visit_layer_norm(self, call: Call) -> None:
        """F.layer_norm and F.rms_norm over the last dimension."""
        source, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
        rank = len(source.shape)
        if len(shape) > 1:
            self.keep_positions(
                source, range(rank - len(shape), rank), f"{call.name} over several dimensions, {call.where}"
            )
        labels = self.statistic(call, source, (rank - 1,), sizes=[(shape[-1], rank - 1)])
        entries = [(source.shape, labels)]
        for place, name in ((2, "weight"), (3, "bias")):
            value = call.argument(place, name)
            if isinstance(value, Value):
                entries.append(
                    ((*[1] * (rank - len(value.shape)), *value.shape), [_lift(x, rank) for x in value.labels])
                )
        self.join(call.outputs[0], entries, False, call)

    visit_rms_norm = visit_layer_norm

    def visit_group_norm(self, call: Call) -> None:
        """F.group_norm: over groups of channels and all positions."""
        source, groups = call.argument(0, "input"), int(call.argument(1, "num_groups"))
        rank = len(source.shape)
        self.keep_positions(source, range(2, rank), f"enters group_norm as positions, {call.where}")
        labels = self.statistic(call, source, (1,))
        for x in labels:
            if x.size(1) > 1:
                self.channels.tiled.append((f"group_norm, {call.where},", x.flatten(), groups))
        entries = [(source.shape, labels)]
        for place, name in ((2, "weight"), (3, "bias")):
            value = call.argument(place, name)
            if isinstance(value, Value):
                shape = tuple(value.shape[0] if d == 1 else 1 for d in range(rank))
                entries.append((shape, [_stretch(x.flatten(), 1, rank) for x in value.labels]))
        self.join(call.outputs[0], entries, False, call)

    # -- what meets ----------------------------------------------------------------------------------------------------

    def meet(self, call: Call, residual: bool) -> None:
        """Operations between entries at one place: what meets is tied, and only like meets like."""
        output = call.outputs[0]
        operands = [v for v in call.inputs if len(v.shape) <= len(output.shape)]
        if call.name == "copy":  # the first one is overwritten
            operands = operands[1:]
        self.join(output, [(v.shape, v.labels) for v in operands], residual, call, operands)

    def visit_glu(self, call: Call) -> None:
        """One half times the sigmoid of the other: both are cut alike."""
        source, output = call.inputs[0], call.outputs[0]
        dim = call.argument(1, "dim", -1) % len(source.shape)
        halves = [[x.chunk(2, dim)[i] if x.size(dim) > 1 else x for x in source.labels] for i in range(2)]
        self.join(output, [(output.shape, half) for half in halves], False, call)

    def visit_masked_scatter(self, call: Call) -> None:
        """Rows of one tensor in the place of some of another's."""
        source, rows = call.args[0], call.args[2]
        last = len(source.shape) - 1
        found = [self.channel(v, len(v.shape) - 1, f"enters masked_scatter, {call.where}") for v in (source, rows)]
        if found[0] is not None and found[1] is not None:
            self.channels.tie(found[0], found[1], True)
            call.outputs[0].labels = [_stretch(found[0], last, last + 1)]
        else:
            for one in found:
                self.channels.keep_whole(one, f"enters masked_scatter, {call.where}")

    def join(
        self,
        output: Value,
        entries: Iterable[tuple[tuple[int, ...] | None, list[Tensor]]],
        residual: bool,
        call: Call,
        operands: list[Value] | None = None,
    ) -> None:
        """Tie the labels of operands of these shapes where they run over the same dimensions of the output."""
        rank = len(output.shape)
        sides = []
        for number, (shape, labels) in enumerate(entries):
            sizes = (1,) * rank if shape is None else (*[1] * (rank - len(shape)), *shape)
            plain = operands is not None and (
                operands[number].parameter is not None or _of_parameters(operands[number])
            )
            sides.append((sizes, [_lift(x, rank) for x in labels], plain))
        made: list[Tensor] = []
        free: list[bool] = []
        reason = f"meets a tensor whose channels are not those of a layer, {call.where}"
        for number, (_, labels, plain) in enumerate(sides):
            for identities in labels:
                for other, (sizes, theirs, _) in enumerate(sides):
                    if other == number:
                        continue
                    covered = {d for x in theirs for d in _support(x)}
                    bare = [d for d in _support(identities) if sizes[d] > 1 and d not in covered]
                    if bare:
                        identities = self.collapse(identities, bare, reason)
                if _support(identities):
                    left = self.fit(identities, plain, made, free, residual and not plain, reason)
                    if left is not None:
                        made.append(left)
                        free.append(plain)
        taken = [x for x, plain in zip(made, free, strict=True) if not plain]
        output.labels = taken or made  # entries of a parameter that lie along other dimensions are not cut

    def fit(
        self, identities: Tensor, plain: bool, made: list[Tensor], free: list[bool], residual: bool, reason: str
    ) -> Tensor | None:
        """Tie identities to those of the same dimensions that are there already; what is left of them, if anything."""
        for index, other in enumerate(made):
            mine, theirs = set(_support(identities)), set(_support(other))
            if not mine & theirs:
                continue
            if mine != theirs:
                if plain and theirs < mine:
                    identities = self.collapse(identities, sorted(mine - theirs), reason)
                elif free[index] and mine < theirs:
                    other = self.collapse(other, sorted(theirs - mine), reason)
                elif plain and mine < theirs and max(theirs, key=lambda d: step(other, d)) not in mine:
                    made[index] = self.outermost(other, reason)  # a parameter along an inner dimension alone
                    return None
                elif free[index] and theirs < mine and max(mine, key=lambda d: step(identities, d)) not in theirs:
                    made[index], free[index] = self.outermost(identities, reason), plain
                    return None
                else:
                    identities, other = self.outermost(identities, reason), self.outermost(other, reason)
                made[index] = other
                if set(_support(identities)) != set(_support(other)):
                    if set(_support(identities)) & set(_support(other)):
                        self.channels.keep_whole(identities, reason)
                        self.channels.keep_whole(other, reason)
                        return None
                    continue
            self.channels.tie(other, identities, residual and not free[index], reason=reason)
            if free[index] and not plain:
                made[index], free[index] = identities, False
            return None
        return identities if _support(identities) else None

    def outermost(self, identities: Tensor, reason: str) -> Tensor:
        """Keep apart what lies along the dimension of the largest step only, as heads do and not their entries."""
        dims = sorted(_support(identities), key=lambda d: -step(identities, d))
        return self.collapse(identities, dims[1:], reason)

    def collapse(self, identities: Tensor, dims: Iterable[int], reason: str) -> Tensor:
        """Tie all that lies along some dimensions; if nothing is left apart, it stays whole."""
        for dim in dims:
            if identities.size(dim) > 1:
                first = identities.narrow(dim, 0, 1)
                self.channels.tie(identities, first, reason=reason)
                identities = identities.amax(dim, keepdim=True) if bool((first == NONE).any()) else first
        if not _support(identities):
            self.channels.keep_whole(identities, reason)
        return identities

    def channel(self, value: Value, dim: int, reason: str, inner: bool = False) -> Tensor | None:
        """The identities along a dimension, apart from all others, (size,); None if there are none.

        Where they run over several dimensions, those along the others are tied; with `inner`, those along this one if
        it is not the outer one.
        """
        for index, identities in enumerate(value.labels):
            if identities.size(dim) == 1 or dim not in _support(identities):
                continue
            others = [d for d in _support(identities) if d != dim]
            if inner and others and max(_support(identities), key=lambda d: step(identities, d)) != dim:
                value.labels[index] = self.collapse(identities, [dim], reason)
                return None
            value.labels[index] = kept = self.collapse(identities, others, reason)
            return kept.flatten()
        return None

    def keep_positions(self, value: Value, dims: Iterable[int], reason: str) -> None:
        """Keep apart nothing that lies along these dimensions."""
        dims = list(dims)
        kept = [self.collapse(x, [d for d in _support(x) if d in dims], reason) for x in value.labels]
        value.labels = [x for x in kept if _support(x)]

    # -- over a dimension ----------------------------------------------------------------------------------------------

    def axes(self, call: Call) -> Axes | None:
        """The dimensions that a reduction runs over; None if the call has none, as `max` of two tensors."""
        source = next(v for v in call.inputs if v.labels or len(v.shape) > 0)
        given = call.kwargs.get("dim", call.kwargs.get("axis"))
        rest = call.args[1:]
        if given is None and rest:
            numbers = [x for x in rest if isinstance(x, (int, tuple, list)) and not isinstance(x, bool)]
            place = 1 if call.name in ("norm", "vector_norm", "linalg_vector_norm", "normalize") else 0
            if call.name in ("max", "min") and isinstance(rest[0], Value):
                return None
            given = rest[place] if len(rest) > place and rest[place] in numbers else None
            if place == 0 and given is not None and len(numbers) > 1 and isinstance(given, int):
                given = tuple(x for x in numbers if isinstance(x, int))
        rank = len(source.shape)
        if given is None:
            return (1,) if call.name == "normalize" else tuple(range(rank))
        return tuple(int(d) % rank for d in (given if isinstance(given, (tuple, list)) else (given,)))

    def reduce(self, call: Call) -> None:
        """Means, sums and their like over dimensions."""
        source = next(v for v in call.inputs if v.labels)
        axes = self.axes(call)
        assert axes is not None
        labels = self.statistic(call, source, axes)
        for output in call.outputs:
            gone = len(output.shape) < len(source.shape)
            kept = [x for x in labels if not set(_support(x)) & set(axes)]
            shape = [d for d in range(len(source.shape)) if not (gone and d in axes)]
            output.labels = [
                x.permute([*shape, *(d for d in axes if gone)]).reshape([x.size(d) for d in shape]) for x in kept
            ]

    def statistic(self, call: Call, source: Value, axes: Axes, sizes: Iterable[tuple[Any, int]] = ()) -> list[Tensor]:
        """Labels after a statistic over dimensions, which is of the kept channels where a module can have it so."""
        made = []
        for identities in source.labels:
            own = _support(identities)
            within = [d for d in own if d in axes]
            if within and self.idle:
                continue
            if within and len(own) > 1 and len(within) < len(own):
                identities = self.collapse(identities, within, f"enters {call.name}, {call.where}")
            elif within:
                outer = max(own, key=lambda d: step(identities, d))
                identities = self.collapse(identities, [d for d in own if d != outer], f"enters {call.name}")
                if self.maskable(call):
                    rank = len(source.shape)
                    held = self.channels.statistics.setdefault(call.scope, {})
                    key = call.name, outer - rank, source.shape[outer]
                    self.channels.tie(held.setdefault(key, identities.flatten()), identities.flatten())
                    for given, dim in sizes:
                        self.channels.sizes.append(SizeUse(given, identities, dim, call.where))
                else:
                    reason = f"enters {call.name} over its channels, {call.where}"
                    identities = self.collapse(identities, own, reason)
            if _support(identities):
                made.append(identities)
        return made

    def maskable(self, call: Call) -> bool:
        """Tell if a statistic is taken by a module of its own, so that only its channels are meant.

        Within one call of the module, other modules must not call the same function.
        """
        if call.name not in MASKABLE or call.scope not in self.modules or plain_kind(self.modules[call.scope]):
            return False
        for scope in self.recording.scopes:
            if scope.path == call.scope:
                inside = self.recording.calls[scope.first : scope.last]
                if any(c.name == call.name and c.scope != call.scope for c in inside):
                    return False
        return call.name != "norm" or len(call.args) < 3

    def over(self, call: Call) -> None:
        """Operations that read all entries along a dimension, and keep it."""
        source = next(v for v in call.inputs if v.labels)
        given = call.kwargs.get("dim")
        place = 2 if call.name == "normalize" else 1
        if given is None:
            given = call.args[place] if len(call.args) > place else (1 if call.name == "normalize" else None)
        rank = len(source.shape)
        axes = tuple(range(rank)) if given is None else tuple(
            int(d) % rank for d in (given if isinstance(given, (tuple, list)) else (given,))
        )  # fmt: skip
        if call.name == "normalize":
            labels = self.statistic(call, source, axes)
        elif self.idle:
            labels = list(source.labels)
        else:
            labels = [
                self.collapse(
                    x, [d for d in _support(x) if d in axes], f"enters {call.name} over its channels, {call.where}"
                )
                for x in source.labels
            ]
        for output in call.outputs:
            if output.shape == source.shape:
                output.labels = [x for x in labels if _support(x)]
            else:
                for x in labels:
                    self.channels.keep_whole(x, f"enters {call.name}, {call.where}")

    def spatial(self, call: Call) -> None:
        """Pooling and resizing: over positions."""
        source = next(v for v in call.inputs if v.labels)
        rank, output = len(source.shape), call.outputs[0]
        count = next((int(d) for d in "123" if f"{d}d" in call.name), rank - 2)  # of an unbatched one all but the first
        self.keep_positions(source, range(max(1, rank - count), rank), f"enters {call.name}, {call.where}")
        for output in call.outputs:
            if len(output.shape) == rank:
                output.labels = list(source.labels)
            else:
                self.whole(source, f"enters {call.name}, {call.where}")

    def visit_pad(self, call: Call) -> None:
        """F.pad: along a dimension of channels it adds some that are none."""
        source, pads = call.argument(0, "input"), call.argument(1, "pad")
        rank, output = len(source.shape), call.outputs[0]
        padded = {rank - 1 - i // 2: (pads[i - i % 2], pads[i - i % 2 + 1]) for i in range(len(pads)) if pads[i]}
        for identities in source.labels:
            for dim in _support(identities):
                if dim in padded:
                    before, after = padded[dim]
                    if min(before, after) < 0 or call.argument(2, "mode", "constant") != "constant":
                        identities = self.collapse(identities, [dim], f"enters pad, {call.where}")
                        continue
                    if not _support(identities):
                        break
                    none = [
                        identities.new_full((*identities.shape[:dim], n, *identities.shape[dim + 1 :]), NONE)
                        for n in (before, after)
                    ]
                    identities = torch.cat([none[0], identities, none[1]], dim)
            if _support(identities):
                output.labels.append(identities)

    # -- what moves ----------------------------------------------------------------------------------------------------

    def move(self, call: Call) -> None:
        """Run what only moves entries about on the labels, and note the sizes that the code gives."""
        sources = [v for v in call.inputs if v.labels]
        source = sources[0]
        if len(sources) > 1 and call.name not in ("expand_as", "view_as", "reshape_as"):
            return self.give_up(call, f"enters {call.name}, {call.where}")
        self.tie_chosen(call, source)
        for identities in source.labels:
            full = identities.expand(source.shape)
            name = "reshape" if call.name == "view" else call.name
            try:
                moved = self.replay(call, name, source, full)
            except Exception:
                self.channels.keep_whole(identities, f"enters {call.name}, {call.where}")
                continue
            for output, labels in zip(call.outputs, moved, strict=True):
                if tuple(labels.shape) != output.shape:
                    self.channels.keep_whole(identities, f"enters {call.name}, {call.where}")
                    continue
                small = _compress(labels)
                if _support(small):
                    output.labels.append(small)
                    if len(_support(small)) > 1:
                        self.channels.split.append(small)
                elif not self.idle and bool((small != NONE).all()) and len(torch.unique(identities)) > 1:
                    self.channels.keep_whole(small, f"a channel is taken out by {call.name}, {call.where}")
        self.note_sizes(call)

    def tie_chosen(self, call: Call, source: Value) -> None:
        """Keep nothing apart along dimensions whose entries are chosen by what the network is given."""
        if call.name == "getitem":
            index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
            taken, dim, dims = sum(_indexed(i) for i in index), 0, []
            for item in index:
                if item is Ellipsis:
                    dim += len(source.shape) - taken
                    continue
                if any(value.data for value in values_in(item)):
                    dims += range(dim, dim + _indexed(item))
                dim += _indexed(item)
        elif call.name in ("gather", "index_select", "take_along_dim"):
            chosen = call.argument(2, "index") if call.name != "take_along_dim" else call.argument(1, "indices")
            dim = call.argument(1, "dim") if call.name != "take_along_dim" else call.argument(2, "dim")
            rank = len(source.shape)
            given = isinstance(chosen, Value) and chosen.data
            dims = [] if not given else list(range(rank)) if dim is None else [int(dim) % rank]
        else:
            return
        if dims:
            self.keep_positions(source, dims, f"is chosen from by {call.name}, {call.where}")

    def replay(self, call: Call, name: str, source: Value, labels: Tensor) -> list[Tensor]:
        """Call a function on labels in the place of a value."""

        def fill(value: Value) -> Any:
            if value is source:
                return labels
            return value.tensor if value.tensor is not None else labels.new_empty(()).expand(value.shape)

        args, kwargs = _filled((call.args, call.kwargs), fill)
        if name == "reshape":
            rest = args[1:]
            if rest and isinstance(rest[0], torch.dtype):
                return [labels]
            size = kwargs.get(
                "shape", kwargs.get("size", rest[0] if len(rest) == 1 and not isinstance(rest[0], int) else rest)
            )
            found = labels.reshape([int(n) for n in ([size] if isinstance(size, int) else size)])
        elif name == "getitem":
            found = labels[args[1]]
        else:
            found = call.function(*args, **kwargs)
        return [found] if isinstance(found, Tensor) else list(found)

    def note_sizes(self, call: Call) -> None:
        """Sizes in the arguments of a view and its like, each with the dimension that has it."""
        name, args = call.name, call.args[1:]
        output = call.outputs[0]
        if name in ("view", "reshape", "expand", "broadcast_to"):
            size = call.kwargs.get(
                "size", call.kwargs.get("shape", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
            )
            given = [size] if isinstance(size, int) else list(size)
            offset = len(output.shape) - len(given)
            for place, number in enumerate(given):
                self.note_size(number, output, place + offset, call)
        elif name == "unflatten":
            dim, sizes = call.argument(1, "dim"), call.argument(2, "sizes")
            for place, number in enumerate(sizes):
                self.note_size(number, output, dim % (len(output.shape) - len(sizes) + 1) + place, call)
        elif name in ("split", "split_with_sizes"):
            sizes = call.argument(
                1, "split_size_or_sections", call.kwargs.get("split_size", call.kwargs.get("split_sizes"))
            )
            dim = call.argument(2, "dim", 0) % len(output.shape)
            numbers = list(sizes) if isinstance(sizes, (tuple, list)) else [sizes] * len(call.outputs)
            for number, part in zip(numbers, call.outputs, strict=False):
                if part.shape[dim] == int(number):
                    self.note_size(number, part, dim, call)
        elif name == "chunk":
            self.tie_chunks(call)
        elif name == "getitem":
            index = args[0] if isinstance(args[0], tuple) else (args[0],)
            if any(isinstance(i, (Value, list)) for i in index):
                return
            self.note_slices(index, call)
        elif name == "narrow":
            dim = call.argument(1, "dim") % len(output.shape)
            self.note_size(call.argument(3, "length"), output, dim, call)

    def tie_chunks(self, call: Call) -> None:
        """Parts of one size are cut alike."""
        dim = call.argument(2, "dim", 0) % len(call.outputs[0].shape)
        first, *others = call.outputs
        for part in others:
            for mine, theirs in zip(first.labels, part.labels, strict=False):
                if mine.size(dim) > 1 and mine.shape == theirs.shape:
                    self.channels.tie(mine, theirs)
                elif mine.size(dim) > 1 or theirs.size(dim) > 1:
                    for labels in (mine, theirs):
                        self.channels.keep_whole(labels, f"is split into uneven parts, {call.where}")

    def note_slices(self, index: tuple[Any, ...], call: Call) -> None:
        """Bounds of slices along channels."""
        source = call.args[0]
        dims = sum(1 for i in index if i is not None and i is not Ellipsis)
        dim = 0
        for item in index:
            if item is None:
                continue
            if item is Ellipsis:
                dim += len(source.shape) - dims
                continue
            if isinstance(item, slice):
                for identities in source.labels:
                    if identities.size(dim) == 1:
                        continue
                    for bound in (item.start, item.stop):
                        if isinstance(bound, int):
                            size = source.shape[dim]
                            place = min(int(bound), size) if bound >= 0 else size + int(bound)
                            if 0 < place < size:
                                part = (
                                    identities.narrow(dim, 0, place)
                                    if bound >= 0
                                    else identities.narrow(dim, place, size - place)
                                )
                                number = bound if bound >= 0 else -bound
                                self.channels.sizes.append(SizeUse(number, part, dim, call.where))
            dim += 1

    def note_size(self, number: Any, value: Value, dim: int, call: Call) -> None:
        """A size given by the code for a dimension: one that is another tensor's ties the two."""
        if not isinstance(number, int) or number == -1 or dim < 0:
            return
        along = [x for x in value.labels if x.size(dim) > 1]
        for identities in along:
            self.channels.sizes.append(SizeUse(number, identities, dim, call.where))
            if isinstance(number, TracedInt) and number.source[0] == "size":
                self.tie_sizes(identities, dim, number.source[1], number.source[2], call)
        if not along and isinstance(number, TracedInt) and value.shape[dim] > 1:
            none = torch.full([value.shape[dim] if d == dim else 1 for d in range(len(value.shape))], NONE)
            self.channels.sizes.append(SizeUse(number, none, dim, call.where))

    def tie_sizes(self, identities: Tensor, dim: int, other: Value, axis: int, call: Call) -> None:
        """Tie channels to those of another tensor whose number the code takes for theirs."""
        theirs = next((x for x in other.labels if x.size(axis) > 1), None)
        if theirs is None or theirs.size(axis) != identities.size(dim) or len(_support(identities)) > 1:
            return
        if len(_support(theirs)) > 1 or torch.equal(theirs.flatten().sort().values, identities.flatten().sort().values):
            return
        self.channels.tie(identities.flatten(), theirs.flatten(), reason=f"its size is that of another, {call.where}")

    def visit_cat(self, call: Call) -> None:
        """Concatenation: along channels they lie side by side, along others they are tied."""
        parts = call.argument(0, "tensors")
        dim = call.argument(1, "dim", call.kwargs.get("axis", 0))
        output = call.outputs[0]
        rank = len(output.shape)
        dim %= rank
        parts = [v for v in parts if isinstance(v, Value) and len(v.shape) == rank]
        along = {frozenset(_support(x)) - {dim} for v in parts for x in v.labels if x.size(dim) > 1}
        beside: list[Tensor] = []
        apart: list[tuple[tuple[int, ...], list[Tensor]]] = []
        for value in parts:
            own = [x for x in value.labels if x.size(dim) > 1 or (along - {frozenset()}) & {frozenset(_support(x))}]
            rest = [x for x in value.labels if not any(x is y for y in own)]
            apart.append((tuple(1 if d == dim else n for d, n in enumerate(value.shape)), rest))
            beside.append(own[0] if own else torch.full([1] * rank, NONE))
        if along:
            if len(along) > 1:
                reason = f"is concatenated along several dimensions, {call.where}"
                for x in beside:
                    self.channels.keep_whole(x, reason)
            else:
                sizes = [max(x.size(d) for x in beside) for d in range(rank)]
                wide = [
                    x.expand([v.shape[d] if d == dim else sizes[d] for d in range(rank)])
                    for x, v in zip(beside, parts, strict=True)
                ]
                output.labels = [_compress(torch.cat(wide, dim))]
                if len(_support(output.labels[0])) > 1:
                    self.channels.split.append(output.labels[0])
        extra = Value(output.shape, output.dtype)
        self.join(extra, apart, False, call, parts)
        taken = {d for x in output.labels for d in _support(x)}
        for identities in extra.labels:
            if set(_support(identities)) & taken:
                self.channels.keep_whole(identities, f"is concatenated along several dimensions, {call.where}")
            else:
                output.labels.append(identities)

    visit_concat = visit_concatenate = visit_cat

    def visit_stack(self, call: Call) -> None:
        """A new dimension."""
        parts = [v for v in call.argument(0, "tensors") if isinstance(v, Value)]
        output = call.outputs[0]
        rank = len(output.shape)
        dim = call.argument(1, "dim", 0) % rank
        if any(len(v.labels) > 1 for v in parts):
            return self.give_up(call, f"enters stack, {call.where}")
        arrays = [v.labels[0].expand(v.shape) if v.labels else torch.full(v.shape, NONE) for v in parts]
        output.labels = [x for x in (_compress(torch.stack(arrays, dim)),) if _support(x)]
        if output.labels and len(_support(output.labels[0])) > 1:
            self.channels.split.append(output.labels[0])

    def visit_setitem(self, call: Call) -> None:
        """Entries of one tensor in the place of some of another's."""
        target, index, value = call.args[0], call.args[1], call.args[2]
        output = call.outputs[0]
        if not isinstance(value, Value) or (not value.labels and value.shape in ((), (1,))):
            output.labels = list(target.labels)
            return
        if len(target.labels) > 1 or len(value.labels) > 1:
            return self.give_up(call, f"is written into another tensor, {call.where}")
        rank = len(target.shape)
        labels = target.labels[0].expand(target.shape).clone() if target.labels else torch.full(target.shape, NONE)
        index = _filled(index, lambda v: v.tensor)
        put = value.labels[0].expand(value.shape) if value.labels else torch.full(value.shape, NONE)
        try:
            labels[index] = put
        except Exception:
            return self.give_up(call, f"is written into another tensor, {call.where}")
        output.labels = [x for x in (_compress(labels),) if _support(x)]
        if rank and output.labels and len(_support(output.labels[0])) > 1:
            self.channels.split.append(output.labels[0])

    # -- the end -------------------------------------------------------------------------------------------------------

    def read_by_functions(self) -> None:
        """Keep whole what a function reads of a layer's own weight: the layer would not know of the mask."""
        for path in list(self.channels.read):
            layers = [p.rpartition(".")[0] for p in self.holders.get(path, [path])]
            inside = [name for name in layers if name in self.channels.inputs or name in self.channels.outputs]
            if inside:
                for identities in self.weights[path]:
                    self.channels.keep_whole(identities, f"a function reads the weight of {inside[0]}, too")
                del self.channels.read[path]

    def refuse_alike(self) -> None:
        """Keep whole what a module takes a statistic of where it takes the same one over a dimension of other kind.

        On an input of another size both may be as long, and a mask of channels would be put on positions.
        """
        for path, held in self.channels.statistics.items():
            inside = [c for s in self.recording.scopes if s.path == path for c in self.recording.calls[s.first : s.last]]
            for (function, dim, _), identities in held.items():
                for call in inside:
                    source = next(iter(call.inputs), None)
                    if call.name != function or source is None:
                        continue
                    rank = len(source.shape)
                    fixed = {"layer_norm": (rank - 1,), "rms_norm": (rank - 1,), "group_norm": (1,), "batch_norm": (1,)}
                    axes = fixed[function] if function in fixed else self.axes(call) or ()
                    if rank >= -dim and rank + dim in axes and all(x.size(dim) == 1 for x in source.labels):
                        reason = f"enters {function}, which {path or 'the network'} takes of positions, too, {call.where}"
                        self.channels.keep_whole(identities, reason)

    def tie_biases(self) -> None:
        """Tie the entries of a bias that is used elsewhere, too, to the channels of its layer."""
        for path, identities in self.channels.outputs.items():
            bias = getattr(self.modules[path], "bias", None) if path in self.modules else None
            first = self.paths.get(id(bias))
            if first is None or (first not in self.entries and len(self.holders[first]) == 1):
                continue
            size = len(bias)
            if first not in self.entries:
                self.entries[first] = self.channels.fresh(size)
                self.channels.shapes[first] = (size,)
                self.channels.parameters.setdefault(first, []).append(self.entries[first])
            reason = f"{path} shares a tensor with another layer, which is not cut alike"
            if identities is None:
                self.channels.keep_whole(self.entries[first], reason)
            else:
                self.channels.tie(self.entries[first].flatten(), identities, reason=reason)

    def functional_norms(self, calls: list[Call]) -> list[str]:
        """The modules whose running statistics are given to `F.batch_norm`, but by a norm of torch's to its own."""
        found: dict[str, None] = {}
        for call in calls:
            mean = call.argument(1, "running_mean") if call.name == "batch_norm" and call.module is None else None
            if isinstance(mean, Value) and mean.parameter is not None:
                owner = mean.parameter.rpartition(".")[0]
                if owner != call.scope or not isinstance(self.modules[owner], nn.modules.batchnorm._BatchNorm):
                    found[owner or "the network"] = None
        called = {call.scope for call in calls if call.module is not None} | {scope.path for scope in self.recording.scopes}
        for call in calls:  # as where a norm is folded into a convolution
            for value in call.inputs if call.module is None and call.name != "batch_norm" else ():
                owner, _, name = (value.parameter or "").rpartition(".")
                if name == "running_mean" and owner not in called:
                    found[owner] = None
        return list(found)


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

    What lies between leaves the examples along dimension 0.
    """
    value = recording.inputs[0] if len(recording.inputs) == 1 else None
    while value is not None and len(value.users) == 1:
        call = value.users[0]
        if call.module is not None and plain_kind(call.module) in MIXING:
            runs = sum(other.module is call.module for other in recording.calls)
            return [call.scope] if runs == 1 and len(call.inputs) == 1 else []
        norm = call.module is not None and plain_kind(call.module) in CHANNEL_NORMS
        if not (norm or call.name in ALONE | SPATIAL | {"flatten", "view", "reshape", "pad"}) or len(call.outputs) != 1:
            break
        if len(call.inputs) > 1 or call.outputs[0].shape[:1] != value.shape[:1]:
            break
        value = call.outputs[0]
    return []


def _is_weight(value: Value, seen: set[int]) -> bool:
    """Tell if a parameter ends up, moved about or rescaled, as the weight of a contraction."""
    for call in value.users:
        if call.module is not None or id(call) in seen:
            continue
        seen.add(id(call))
        name, args = call.name, [*call.args, *call.kwargs.values()]
        if name in ("linear", "embedding", "bilinear") or name.startswith("conv"):
            if any(arg is value for arg in (*call.args[1:2], call.kwargs.get("weight"))):
                return True
        elif name in ("matmul", "rmatmul", "mm", "bmm", "einsum"):
            return True
        elif name in ("addmm", "baddbmm"):
            if any(arg is value for arg in call.args[1:]):
                return True
        moved = name in MOVING | RESCALING and args and args[0] is value
        scaled = name in SCALING and len(value.shape) > 1 and all(v.shape == value.shape for v in call.outputs)
        if (moved or scaled) and any(_is_weight(v, seen) for v in call.outputs):
            return True
    return False


def _of_parameters(value: Value) -> bool:
    """Tell if a value is made of parameters alone."""
    if value.call is None:
        return value.parameter is not None
    return value.call.module is None and bool(value.call.inputs) and all(_of_parameters(v) for v in value.call.inputs)


def _stretch(identities: Tensor, dim: int, rank: int) -> Tensor:
    """Identities (size,) along a dimension of a value."""
    shape = [1] * rank
    shape[dim] = -1
    return identities.view(shape)


def _lift(identities: Tensor, rank: int) -> Tensor:
    """Identities of a value of fewer dimensions, aligned as broadcasting does."""
    return identities.view([1] * (rank - identities.dim()) + list(identities.shape))


def _support(identities: Tensor) -> Axes:
    """The dimensions that identities run over."""
    return tuple(dim for dim, size in enumerate(identities.shape) if size > 1)


def _indexed(item: Any) -> int:
    """How many dimensions an entry of an index takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return len(item.shape) if isinstance(item, Value) and item.dtype == torch.bool else 1


def _compress(identities: Tensor) -> Tensor:
    """Size 1 along the dimensions that identities do not change along."""
    for dim in range(identities.dim()):
        if identities.size(dim) > 1:
            first = identities.narrow(dim, 0, 1)
            if bool((identities == first).all()):
                identities = first
    return identities.contiguous()


def _count(shape: Iterable[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def _article(word: str) -> str:
    """A word with its article."""
    spelled = word[:2].isupper()
    return f"{'an' if word[0] in ('AEFHILMNORSX' if spelled else 'AEIOU') else 'a'} {word}"


def _letters(count: int) -> str:
    return "abcdefghijklmnopqrstuvw"[:count]


def _numbers(x: Any) -> list[Any]:
    """All numbers in nested arguments, in order."""
    if isinstance(x, (list, tuple)):
        return [number for item in x for number in _numbers(item)]
    return [x] if isinstance(x, int) and not isinstance(x, bool) else []


def _filled(x: Any, fill: Callable[[Value], Any]) -> Any:
    """Nested arguments with something in the place of values."""
    if isinstance(x, Value):
        return fill(x)
    if isinstance(x, (list, tuple)):
        items = [_filled(item, fill) for item in x]
        return items if isinstance(x, list) else tuple(items)
    if isinstance(x, dict):
        return {key: _filled(item, fill) for key, item in x.items()}
    if isinstance(x, slice):
        return slice(_filled(x.start, fill), _filled(x.stop, fill), _filled(x.step, fill))
    return int(x) if isinstance(x, TracedInt) else x


def _sample(value: Value) -> Tensor:
    """A tensor of a value's shape and dtype."""
    if value.tensor is not None:
        return value.tensor
    return torch.rand(value.shape, dtype=value.dtype)
