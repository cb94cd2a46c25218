"""Statistics over channels: norms and reductions, which are those of the kept channels where that can be."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vnd.nn.channel_flow.walk import (
    Operand,
    Walk,
    along,
    entering,
    labeled,
    of_parameters,
    operand,
    outer,
    plain_kind,
)
from vnd.nn.dependency import SizeUse, support
from vnd.nn.recorder import Call, Value

Axes = tuple[int, ...]

REDUCING = {"mean", "sum", "var", "std", "amax", "amin", "max", "min", "norm", "vector_norm", "linalg_vector_norm"}
# Over a dimension, which they keep, and all of whose entries they read.
READING = {
    *("softmax", "log_softmax", "normalize", "cumsum", "cumprod", "logsumexp", "prod", "argmax", "argmin", "sort"),
    *("softmin", "logcumsumexp", "all", "any", "argsort", "topk", "median", "var_mean", "std_mean"),
}
# Statistics that `KeptChannels` takes over the kept channels.
MASKABLE = REDUCING | {"layer_norm", "rms_norm", "group_norm", "normalize", "batch_norm"}
# Those whose dimension is the third argument, after an order or a number.
DIM_THIRD = {"norm", "vector_norm", "linalg_vector_norm", "normalize", "topk"}


class Statistics(Walk):
    """Rules for what reads all entries along dimensions."""

    def statistic(self, call: Call, source: Value, axes: Axes, size: Any = None) -> list[Tensor]:
        """Labels after a statistic over dimensions: of the kept channels if `maskable`, else all of them are tied.

        `size` is their number as the code gives it. Labels that also run over other dimensions, as those of heads do
        over entries, are tied along these.
        """
        made = []
        for identities in source.labels:
            over = support(identities)
            within = [d for d in over if d in axes]
            if within and self.idle:
                continue
            if within and len(within) < len(over):
                identities = self.collapse(identities, within, entering(call))
            elif within:
                dim, rank = outer(identities), len(source.shape)
                identities = self.collapse(identities, [d for d in over if d != dim], entering(call))
                if self.maskable(call):
                    held = self.channels.statistics.setdefault(call.scope, {})
                    key = call.name, dim - rank, source.shape[dim]
                    self.channels.tie(held.setdefault(key, identities.flatten()), identities.flatten())
                    if size is not None:
                        self.channels.sizes.append(SizeUse(size, identities, dim, call.where))
                else:
                    identities = self.collapse(identities, over, entering(call, " over its channels"))
            if support(identities):
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
        return call.name != "norm" or call.argument(1, "p") != "nuc"

    def part_statistics(self) -> None:
        """Keep whole what a module takes a statistic of where it takes the same one of positions, too.

        On an input of another size both may be as long, and the mask of channels would be put on positions.
        """
        for path, held in self.channels.statistics.items():
            inside = [
                c for s in self.recording.scopes if s.path == path for c in self.recording.calls[s.first : s.last]
            ]
            for (function, dim, _), identities in held.items():
                for call in (c for c in inside if c.name == function and c.inputs):
                    source = call.inputs[0]
                    rank = len(source.shape)
                    if rank + dim in _read_by(call, rank) and all(x.size(dim) == 1 for x in source.labels):
                        owner = path or "the network"
                        reason = f"enters {function}, which {owner} takes over other dimensions, too, {call.where}"
                        self.channels.keep_whole(identities, reason)

    # -- functions -----------------------------------------------------------------------------------------------------

    def reduce(self, call: Call) -> None:
        """Means, sums and their like over dimensions."""
        source = labeled(call)
        rank, axes = len(source.shape), axes_of(call, len(source.shape))
        kept = [x for x in self.statistic(call, source, axes) if not set(support(x)) & set(axes)]
        for output in call.outputs:
            shown = [d for d in range(rank) if len(output.shape) == rank or d not in axes]
            output.labels = [x.reshape([x.size(d) for d in shown]) for x in kept]

    def read_all(self, call: Call) -> None:
        """Softmax and its like read all entries along a dimension: its channels are tied."""
        source = labeled(call)
        axes = axes_of(call, len(source.shape))
        if call.name == "normalize":
            labels = self.statistic(call, source, axes)
        elif self.idle:
            labels = list(source.labels)
        else:
            reason = entering(call, " over its channels")
            labels = [self.collapse(x, [d for d in support(x) if d in axes], reason) for x in source.labels]
        for output in call.outputs:
            if output.shape == source.shape:
                output.labels = [x for x in labels if support(x)]
            else:
                for x in labels:
                    self.channels.keep_whole(x, entering(call))

    def visit_batch_norm(self, call: Call) -> None:
        """F.batch_norm: each channel, at dimension 1, by itself; of a weight, each filter over what it reads."""
        source, rank = call.argument(0, "input"), len(call.outputs[0].shape)
        others = tuple(d for d in range(rank) if d != 1)
        if of_parameters(source):
            source.labels = self.statistic(call, source, others)
        else:
            self.keep_positions(source, others, entering(call, " as positions"))
        mean = call.argument(1, "running_mean")
        path = mean.parameter.rpartition(".")[0] if isinstance(mean, Value) and mean.parameter is not None else ""
        if path == call.scope and isinstance(self.modules[path], nn.modules.batchnorm._BatchNorm):
            identities = self.channel(source, 1, f"enters {path}")
            self.note(path, identities, identities)
        names = ("running_mean", "running_var", "weight", "bias")
        vectors = [v for place, name in enumerate(names, 1) for v in along(call.argument(place, name), 1, rank)]
        self.join(call.outputs[0], [operand(source), *vectors], call)

    def visit_layer_norm(self, call: Call) -> None:
        """F.layer_norm and F.rms_norm over the last dimension; over several nothing can be dropped along them."""
        source, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
        rank = len(source.shape)
        if len(shape) > 1:
            reason = f"{call.name} over several dimensions, {call.where}"
            self.keep_positions(source, range(rank - len(shape), rank), reason)
        given = [call.argument(place, name) for place, name in ((2, "weight"), (3, "bias"))]
        parameters = [operand(v) for v in given if isinstance(v, Value)]
        labels = self.statistic(call, source, (rank - 1,), shape[-1])
        self.join(call.outputs[0], [Operand(source.shape, labels), *parameters], call)

    visit_rms_norm = visit_layer_norm

    def visit_group_norm(self, call: Call) -> None:
        """F.group_norm: over groups of channels and all positions; each group is cut alike."""
        source, groups = call.argument(0, "input"), int(call.argument(1, "num_groups"))
        rank = len(source.shape)
        self.keep_positions(source, range(2, rank), entering(call, " as positions"))
        labels = self.statistic(call, source, (1,))
        for x in labels:
            if x.size(1) > 1:
                self.channels.tiled.append((f"group_norm, {call.where},", x.flatten(), groups))
        vectors = [
            v for place, name in ((2, "weight"), (3, "bias")) for v in along(call.argument(place, name), 1, rank)
        ]
        self.join(call.outputs[0], [Operand(source.shape, labels), *vectors], call)

    # -- modules -------------------------------------------------------------------------------------------------------

    def norm_module(self, call: Call, module: Any, path: str) -> None:
        """A norm of torch's, whose own tensors have an entry for each channel."""
        source, kind = call.inputs[0], plain_kind(module)
        rank, dim = len(source.shape), 1
        inner = kind in (nn.LayerNorm, nn.RMSNorm)
        if inner:
            dim = rank - 1
            if (count := len(module.normalized_shape)) > 1:
                self.keep_positions(source, range(rank - count, rank), f"{path} normalises over several dimensions")
                call.outputs[0].labels = list(source.labels)
                return
        else:
            self.keep_positions(source, range(2, rank), f"enters {path} as positions")
        identities = self.channel(source, dim, f"enters {path}", inner)
        if identities is not None:
            if kind is nn.GroupNorm and module.num_groups < source.shape[1]:
                self.channels.tiled.append((path, identities, module.num_groups))
            self.note(path, identities, identities)
        self.tie_shared(path, identities, source.shape[dim])
        call.outputs[0].labels = list(source.labels)

    def tie_shared(self, path: str, identities: Tensor | None, size: int) -> None:
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

    def tie_biases(self) -> None:
        """Tie the entries of a bias that is used elsewhere, too, to the channels of its layer."""
        for path, identities in self.channels.outputs.items():
            bias = self.modules[path]._parameters.get("bias") if path in self.modules else None
            first = self.paths.get(id(bias))
            if bias is None or first is None or (first not in self.entries and len(self.holders[first]) == 1):
                continue
            if first not in self.entries:
                self.entries[first] = self.channels.fresh(len(bias))
                self.channels.shapes[first] = (len(bias),)
                self.channels.parameters.setdefault(first, []).append(self.entries[first])
            reason = f"{path} shares a tensor with another layer, which is not cut alike"
            if identities is None:
                self.channels.keep_whole(self.entries[first], reason)
            else:
                self.channels.tie(self.entries[first].flatten(), identities, reason=reason)

    def note(self, path: str, incoming: Tensor | None, outgoing: Tensor | None) -> None:
        """Note what a layer reads and writes; a second call must read and write channels that are tied alike."""
        reason = f"{path} is used more than once, not alike"
        for table, identities in ((self.channels.inputs, incoming), (self.channels.outputs, outgoing)):
            before = table.setdefault(path, identities)
            if before is None or identities is None:
                self.channels.keep_whole(before, reason)
                self.channels.keep_whole(identities, reason)
            elif before is not identities:
                self.channels.tie(before, identities, reason=reason)


def _read_by(call: Call, rank: int) -> Axes:
    """The dimensions over which a norm or a reduction takes its statistics."""
    if call.name in ("layer_norm", "rms_norm"):
        return (rank - 1,)
    return (1,) if call.name in ("group_norm", "batch_norm") else axes_of(call, rank)


def axes_of(call: Call, rank: int) -> Axes:
    """The dimensions that a function runs over: all, if it is given none."""
    given = call.kwargs.get("dim", call.kwargs.get("axis"))
    if given is None:
        place = 2 if call.name in DIM_THIRD else 1
        given = call.args[place] if len(call.args) > place else 1 if call.name == "normalize" else None
    if given is None or isinstance(given, bool):  # as in var(unbiased)
        return tuple(range(rank))
    return tuple(int(d) % rank for d in (given if isinstance(given, (tuple, list)) else (given,)))
