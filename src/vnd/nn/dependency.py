"""Dependencies between the channels of a network: an analysis by torch.fx, which never becomes the result.

Every output channel of a mixing layer (convolution, linear) gets an identity. Identities flow through the graph:
normalisation, activation and pooling hand them on, concatenation puts them side by side, flattening repeats them,
an addition ties those of its two sides together. Where they reach something that this page does not know, or the
network's output, the channels must stay whole, and the reason is kept.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from vnd.nn.bayesian import BAYES_OF

Labels = list[list[int] | None]  # one entry a dimension: the identities along it, or None if it has none


@dataclass(frozen=True)
class Segment:
    """A run of channels: all of a unit's, each repeated `repeat` times, or `channels` that belong to no unit."""

    unit: str | None
    channels: int
    repeat: int = 1


Layout = tuple[Segment, ...]


@dataclass
class Group:
    """Channels that can only be dropped together: those of one or more layers, tied one to one."""

    name: str
    producers: list[str]
    channels: int
    tiles: int = 1
    residual: bool = False


@dataclass
class Analysis:
    """What `analyse` found: the groups, how each layer's channels are made of them, and what must stay whole."""

    groups: dict[str, Group] = field(default_factory=dict)
    inputs: dict[str, Layout] = field(default_factory=dict)
    outputs: dict[str, Layout] = field(default_factory=dict)
    parameters: dict[str, tuple[Layout | None, ...]] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    first_consumers: list[str] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)  # layers whose weight is used elsewhere, too
    functional: list[str] = field(default_factory=list)  # modules whose statistics F.batch_norm is called with
    called: set[str] = field(default_factory=set)  # modules that the graph calls, not those inside of them


class Identities:
    """Identities of channels in a union-find, and the layers that make, read or hand them on."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.reasons: dict[int, str] = {}  # identity → why it must stay whole
        self.residual: set[int] = set()
        self.producers: dict[str, list[int]] = {}
        self.inputs: dict[str, list[int] | None] = {}
        self.outputs: dict[str, list[int] | None] = {}
        self.parameters: dict[str, Labels] = {}
        self.tiled: list[tuple[str, list[int], int]] = []  # who groups which channels into how many blocks
        self.left: dict[str, str] = {}  # modules with parameters that are not looked into

    def fresh(self, count: int) -> list[int]:
        """New identities, tied to none."""
        start = len(self.parent)
        self.parent += range(start, start + count)
        return list(range(start, start + count))

    def find(self, identity: int) -> int:
        """The one that stands for all that this identity is tied to."""
        while self.parent[identity] != identity:
            self.parent[identity] = self.parent[self.parent[identity]]
            identity = self.parent[identity]
        return identity

    def tie(self, a: list[int], b: list[int], residual: bool) -> None:
        """Tie two runs of channels, one to one; `residual` if by an addition."""
        for left, right in zip(a, b, strict=True):
            left, right = self.find(left), self.find(right)
            if left != right:
                self.parent[right] = left
                if right in self.reasons:
                    self.reasons.setdefault(left, self.reasons[right])
                if residual or left in self.residual or right in self.residual:
                    self.residual.add(left)

    def keep_whole(self, labels: Labels | list[int] | None, reason: str) -> None:
        """Note why these channels cannot be dropped; the first reason stays."""
        for entry in labels or ():
            for identity in entry if isinstance(entry, list) else () if entry is None else (entry,):
                self.reasons.setdefault(self.find(identity), reason)

    def conclude(self, first_consumers: list[str]) -> Analysis:
        """Turn identities into groups of layers, and every layer's channels into segments of groups."""
        result = Analysis(whole=dict(self.left), first_consumers=first_consumers)
        candidates = dict(self._components(result))
        while True:
            owner = {
                identity: (group.name, channel)
                for group, roots in candidates.values()
                for channel, identity in enumerate(roots)
            }
            broken = self._irregular(candidates, owner)
            if not broken:
                break
            for name, reason in broken.items():
                self._set_aside(result, candidates.pop(name)[0], reason)
        result.groups = {name: group for name, (group, _) in candidates.items()}
        for table, target in ((self.inputs, result.inputs), (self.outputs, result.outputs)):
            for name, ids in table.items():
                layout = self._layout(ids, owner)
                if layout is not None and any(segment.unit for segment in layout):
                    target[name] = layout
        for name, labels in self.parameters.items():
            layouts = tuple(self._layout(ids, owner) for ids in labels)
            if any(layout and any(segment.unit for segment in layout) for layout in layouts):
                result.parameters[name] = layouts
        return result

    def _components(self, result: Analysis) -> Iterator[tuple[str, tuple[Group, list[int]]]]:
        """Groups of producers that share identities, unless a reason speaks against them."""
        left = dict(self.producers)
        while left:
            first = next(iter(left))
            members, roots = [first], {self.find(i) for i in left[first]}
            while grown := [n for n in left if n not in members and roots & {self.find(i) for i in left[n]}]:
                members += grown
                roots |= {self.find(i) for n in grown for i in left[n]}
            ids = [[self.find(i) for i in left.pop(n)] for n in members]
            group = Group(members[0], members, len(ids[0]), residual=bool(roots & self.residual))
            reason = next((self.reasons[root] for root in roots if root in self.reasons), None)
            if reason is None and (any(other != ids[0] for other in ids) or len(set(ids[0])) < len(ids[0])):
                reason = "its channels are tied to others out of step"
            if reason is None:
                reason = self._tile(group, ids[0])
            if reason is None:
                yield group.name, (group, ids[0])
            else:
                self._set_aside(result, group, reason)

    def _tile(self, group: Group, roots: list[int]) -> str | None:
        """Nest inside each group of a grouped convolution or GroupNorm; a reason if that cannot be."""
        for name, ids, tiles in self.tiled:
            found = [self.find(i) for i in ids]
            if not set(found) & set(roots):
                continue
            if found != roots:
                return f"{name} groups its channels together with others"
            if tiles % group.tiles and group.tiles % tiles:
                return f"{name} groups its channels into {tiles}, another layer into {group.tiles}"
            group.tiles = max(group.tiles, tiles)
        return None if group.channels > group.tiles else "each of its groups has a single channel"

    def _irregular(
        self, candidates: dict[str, tuple[Group, list[int]]], owner: dict[int, tuple[str, int]]
    ) -> dict[str, str]:
        """Groups that some layer or parameter does not take up in one piece."""
        broken: dict[str, str] = {}
        uses: list[tuple[str, list[int] | None]] = [*self.inputs.items(), *self.outputs.items()]
        uses += [(name, ids) for name, labels in self.parameters.items() for ids in labels]
        for name, ids in uses:
            if ids is not None and self._layout(ids, owner) is None:
                touched = {owner[self.find(i)][0] for i in ids if self.find(i) in owner}
                broken |= dict.fromkeys(touched, f"{name} takes up its channels only in part")
        return {name: reason for name, reason in broken.items() if name in candidates}

    def _layout(self, ids: list[int] | None, owner: dict[int, tuple[str, int]]) -> Layout | None:
        """Segments of a sequence of identities; None if a group does not appear in one piece."""
        if ids is None:
            return None
        places = [owner.get(self.find(i)) for i in ids]
        segments: list[Segment] = []
        at = 0
        while at < len(places):
            place, run = places[at], 1
            while at + run < len(places) and places[at + run] == place:
                run += 1
            if place is None:
                segments.append(Segment(None, run))
                at += run
                continue
            name, channels = place[0], len(self.producers[place[0]])
            expected = [(name, c) for c in range(channels) for _ in range(run)]
            if places[at : at + channels * run] != expected:
                return None
            segments.append(Segment(name, channels, run))
            at += channels * run
        return tuple(segments)

    @staticmethod
    def _set_aside(result: Analysis, group: Group, reason: str) -> None:
        result.whole |= dict.fromkeys(group.producers, reason)


MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CHANNEL_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
MIXING_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
ELEMENTWISE_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.Softplus, nn.Tanh),
    *(nn.Sigmoid, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Identity, nn.Dropout, nn.AlphaDropout),
    *(nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
SPATIAL_MODULES = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.Upsample),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d),
)
ELEMENTWISE = {
    *(F.relu, F.relu6, F.leaky_relu, F.gelu, F.silu, F.elu, F.mish, F.softplus, F.tanh, F.sigmoid, F.hardswish),
    *(F.hardsigmoid, F.hardtanh, F.dropout, F.dropout2d, torch.relu, torch.tanh, torch.sigmoid, torch.clamp),
    *(torch.exp, torch.abs, torch.square, torch.sqrt, operator.neg),
    *("relu", "relu_", "tanh", "sigmoid", "contiguous", "clone", "detach", "clamp", "exp", "abs", "square", "sqrt"),
    *("float", "half", "double", "bfloat16", "to", "type_as"),
}
SPATIAL = {F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d}
SPATIAL |= {F.adaptive_max_pool2d, F.interpolate, F.max_pool3d, F.avg_pool3d}
ADDING = {operator.add, operator.iadd, operator.sub, operator.isub, torch.add, torch.sub, "add", "add_", "sub", "sub_"}
SCALING = {operator.mul, operator.imul, operator.truediv, torch.mul, torch.div, "mul", "mul_", "div", "div_"}
RESHAPING = {torch.flatten, torch.reshape, "flatten", "view", "reshape"}
TORCH_LAYERS = (
    *(*MIXING, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, *MIXING_NORMS),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
CHEAP = {getattr, operator.getitem, "size", "dim"}  # ask for sizes


def analyse(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Analysis:
    """Trace `model` on an example and find which of its channels can be dropped together; leaves it in evaluation."""
    nodes = list(_trace(model, args, kwargs).graph.nodes)
    walk = _Walk(model)
    for node in nodes:
        walk.visit(node)
    walk.tie_shared()
    result = walk.conclude(_first_consumers(nodes, walk.modules))
    result.shared = walk.shared
    result.functional = _functional_norms(nodes)
    result.called = {str(node.target) for node in nodes if node.op == "call_module"}
    return result


def _functional_norms(nodes: list[fx.Node]) -> list[str]:
    """The modules whose running statistics are given to `F.batch_norm` by the network itself."""
    calls = [node for node in nodes if node.target is F.batch_norm]
    means = [node.args[1] if len(node.args) > 1 else node.kwargs.get("running_mean") for node in calls]
    holders = [str(x.target).rpartition(".")[0] for x in means if isinstance(x, fx.Node) and x.op == "get_attr"]
    return list(dict.fromkeys(owner or "the network" for owner in holders))


def _trace(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
    """The graph of `model` on the example; numbers, flags and what the example leaves out are constants in it."""
    model.eval()
    doing = "run on the example"
    try:
        with torch.no_grad():
            model(*args, **kwargs)
            doing = "be traced"
            given = inspect.signature(model.forward).bind(*args, **kwargs)
            given.apply_defaults()
            simple = (bool, int, float, str)
            constants = {name: x for name, x in given.arguments.items() if x is None or isinstance(x, simple)}
            traced = fx.GraphModule(model, _Tracer().trace(model, constants))
            _Sizes(traced).run(*given.arguments.values())
    except Exception as error:
        raise ValueError(f"to_nested: {type(model).__name__} cannot {doing}: {_where(error)}{error}") from error
    return traced


class _Tracer(fx.Tracer):
    """Traces a network down to layers: torch's own and what inherits from them, whatever these do inside."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, TORCH_LAYERS) or super().is_leaf_module(m, module_qualified_name)


class _Sizes(fx.Interpreter):
    """Runs a graph, and notes the size of every tensor in it."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["size"] = tuple(result.shape)
        return result


def _where(error: Exception) -> str:
    """The user's line at which tracing stopped, if it is one of theirs."""
    others = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))
    found, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith(others) and "<" not in file:
            found = f"at {file}, line {step.tb_lineno}: "
        step = step.tb_next
    return found


class _Walk(Identities):
    """One pass over the graph, in which identities flow from node to node."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules = dict(model.named_modules())
        self.model = model
        self.labels: dict[fx.Node, Labels] = {}
        self.shared: set[str] = set()

    def visit(self, node: fx.Node) -> None:
        """Work out the labels of one node's output from those of its inputs."""
        self.labels[node] = _none(node)
        if node.op == "get_attr":
            self.visit_attribute(node)
        elif node.op == "output":
            for source in node.all_input_nodes:
                self.keep_whole(self.labels[source], "reaches the output of the network")
        elif node.op == "call_module":
            self.visit_module(node)
        elif node.op != "placeholder":
            self.visit_function(node)

    def visit_attribute(self, node: fx.Node) -> None:
        if not _has_shape(node):
            return
        name = str(node.target)
        if name not in self.parameters:
            self.parameters[name] = [self.fresh(size) if size > 1 else None for size in _shape(node)]
            if name.startswith("_tensor_constant"):  # torch.fx's name for a tensor that is made in the forward pass
                self.keep_whole(self.parameters[name], "meets a constant that is made in the forward pass")
        self.labels[node] = list(self.parameters[name])

    def visit_module(self, node: fx.Node) -> None:
        name = str(node.target)
        module, source = self.modules[name], _first(node)
        labels = self.labels[source] if source is not None else []
        dim = -1 if isinstance(module, (nn.Linear, nn.LayerNorm, nn.RMSNorm)) else 1
        known = (*MIXING, *CHANNEL_NORMS, *MIXING_NORMS)
        if isinstance(module, known) and type(module) not in TORCH_LAYERS:
            self.leave(node, name, f"enters {name} ({type(module).__name__}), whose exact type is not known")
            base = next(kind.__name__ for kind in type(module).__mro__ if kind in (*TORCH_LAYERS, *CHANNEL_NORMS))
            self.left[name] = (
                f"{_article(type(module).__name__)}, whose exact type is not known: only {base} itself is nested"
            )
        elif isinstance(module, known) and (source is None or len(node.all_input_nodes) > 1):
            self.leave(node, name, f"{name} has inputs that are not one tensor")
        elif isinstance(module, MIXING):
            self.visit_mixing(node, name, module, labels, dim)
        elif isinstance(module, CHANNEL_NORMS):
            self.keep_whole(labels[2:], f"enters {name} as positions")
            self.record(name, labels[dim], labels[dim])
            self.labels[node] = list(labels)
        elif isinstance(module, MIXING_NORMS):
            self.visit_norm(node, name, module, labels, dim)
        elif isinstance(module, ELEMENTWISE_MODULES) or (isinstance(module, nn.PReLU) and module.num_parameters == 1):
            self.labels[node] = list(labels)
        elif isinstance(module, SPATIAL_MODULES):
            self.spatial(node, labels, name)
        elif isinstance(module, nn.Flatten):
            self.reshape(node, labels)
        elif isinstance(module, (nn.Softmax, nn.LogSoftmax)) and module.dim is not None and labels[module.dim] is None:
            self.labels[node] = list(labels)
        else:
            self.leave(node, name, f"enters {name} ({type(module).__name__})")

    def visit_mixing(self, node: fx.Node, name: str, module: Any, labels: Labels, dim: int) -> None:
        incoming = labels[dim]
        groups = getattr(module, "groups", 1)
        inputs = module.in_features if isinstance(module, nn.Linear) else module.in_channels
        outputs = module.out_features if isinstance(module, nn.Linear) else module.out_channels
        out: Labels = _none(node)
        if isinstance(module, nn.Linear):
            out[:-1] = labels[:-1]
        else:
            self.keep_whole([*labels[:1], *labels[2:]], f"enters {name} as positions")
        if groups == inputs and groups > 1:  # depthwise: the channels go on as they are
            out[dim] = None if incoming is None else [i for i in incoming for _ in range(outputs // inputs)]
        else:
            if name in self.producers:
                self.keep_whole(self.producers[name], f"{name} is used more than once")
            out[dim] = self.producers.setdefault(name, self.fresh(outputs))
            if type(module) not in BAYES_OF:
                self.keep_whole(incoming, f"enters {name} ({type(module).__name__}), which has no masked form")
            if groups > 1:
                self.tiled += [(name, ids, groups) for ids in (incoming, out[dim]) if ids is not None]
        self.record(name, incoming, out[dim])
        self.labels[node] = out

    def visit_norm(self, node: fx.Node, name: str, module: Any, labels: Labels, dim: int) -> None:
        if isinstance(module, nn.GroupNorm):
            self.keep_whole(labels[2:], f"enters {name} as positions")
            if labels[dim] is not None:
                self.tiled.append((name, labels[dim] or [], module.num_groups))
        elif len(module.normalized_shape) > 1:
            self.keep_whole(labels, f"{name} normalises over several dimensions")
        self.record(name, labels[dim], labels[dim])
        self.labels[node] = list(labels)

    def record(self, name: str, incoming: list[int] | None, outgoing: list[int] | None) -> None:
        """Note what a layer reads and writes; a second call must read and write channels that are tied alike."""
        for table, ids in ((self.inputs, incoming), (self.outputs, outgoing)):
            if name in table and table[name] != ids:
                self.keep_whole(table[name], f"{name} is used more than once")
                self.keep_whole(ids, f"{name} is used more than once")
            table.setdefault(name, ids)

    def tie_shared(self) -> None:
        """Tie the channels along each dimension of a tensor that several layers share: cut alike, or whole.

        A layer that cannot be cut keeps the others whole.
        """
        uses: dict[int, list[tuple[str, Labels | None]]] = {}
        holders: dict[str, int] = {}
        for name, module in self.modules.items():
            for key, value in (*module._parameters.items(), *module._buffers.items()):
                if value is None:
                    continue
                path = f"{name}.{key}" if name else key
                holders[path] = id(value)
                if name in self.inputs or name in self.outputs:
                    uses.setdefault(id(value), []).append((name, self.dimensions(name, module, key, value.dim())))
                elif path not in self.parameters:
                    uses.setdefault(id(value), []).append((name or path, None))
        for path, dims in self.parameters.items():
            if path in holders:
                uses.setdefault(holders[path], []).append((path, dims))
        for tensor, members in uses.items():
            names = [name for name, _ in members]
            if len(members) > 1:
                self.shared |= {name for name in names if holders.get(f"{name}.weight") == tensor}
            for name, labels in members if len(members) > 1 else ():
                other = next((n for n in names if n != name), name)
                reason = f"{name} shares a tensor with {other}, which is not cut alike"
                first = members[0][1]
                if any(x is None for _, x in members):
                    self.keep_whole([*(labels or ()), self.inputs.get(name), self.outputs.get(name)], reason)
                    continue
                assert labels is not None
                assert first is not None
                for mine, theirs in zip(labels, first, strict=True):
                    if mine is None or theirs is None:
                        self.keep_whole([mine, theirs], reason)
                    else:
                        self.tie(theirs, mine, residual=False)

    def dimensions(self, name: str, module: Any, key: str, dims: int) -> Labels | None:
        """Channels along each dimension of a layer's tensor; None if they are not simply its inputs and outputs."""
        inputs, outputs = self.inputs.get(name), self.outputs.get(name)
        if dims == 0:
            return []
        if not isinstance(module, MIXING):
            return [outputs] if dims == 1 else None
        if getattr(module, "groups", 1) > 1:
            return None
        if key == "bias":
            return [outputs]
        transposed = not isinstance(module, nn.Linear) and module.transposed
        ends = [inputs, outputs] if transposed else [outputs, inputs]
        return [*ends, *[None] * (dims - 2)] if key == "weight" else None

    def visit_function(self, node: fx.Node) -> None:
        target, source = node.target, _first(node)
        labels = self.labels[source] if source is not None else []
        if not _has_shape(
            node
        ):  # a size, which follows a sliced network by itself; else it must not depend on channels
            if target not in CHEAP:
                self.sizes_or_give_up(node)
        elif target in ELEMENTWISE and len(node.all_input_nodes) == 1:
            self.labels[node] = list(labels)
        elif target in ADDING or target in SCALING:
            self.combine(node, residual=target in ADDING)
        elif target in (torch.cat, torch.concat):
            self.concatenate(node)
        elif target in SPATIAL:
            self.spatial(node, labels, str(target))
        elif target in RESHAPING and source is not None:
            self.reshape(node, labels)
        elif target in (
            torch.permute,
            "permute",
            torch.transpose,
            "transpose",
            "squeeze",
            "unsqueeze",
            "mean",
            torch.mean,
        ):
            self.rearrange(node, labels, str(getattr(target, "__name__", target)))
        elif target in (torch.chunk, "chunk", torch.split, "split"):
            self.give_up(node, f"is split by {getattr(target, '__name__', target)}")
        else:
            self.give_up(node, f"enters {getattr(target, '__name__', target)}")

    def sizes_or_give_up(self, node: fx.Node) -> None:
        if any(_has_shape(source) for source in node.all_input_nodes):
            self.give_up(node, f"enters {getattr(node.target, '__name__', node.target)}")

    def leave(self, node: fx.Node, name: str, reason: str) -> None:
        """Give up at a module that is not looked into."""
        self.give_up(node, reason)
        if any(True for _ in self.modules[name].parameters()):
            self.left[name] = f"{_article(type(self.modules[name]).__name__)}, which is used as it is"

    def give_up(self, node: fx.Node, reason: str) -> None:
        for source in node.all_input_nodes:
            self.keep_whole(self.labels[source], reason)

    def spatial(self, node: fx.Node, labels: Labels, name: str) -> None:
        if len(labels) < 3:
            return self.give_up(node, f"enters {name}")
        self.keep_whole([labels[0], *labels[2:]], f"enters {name}")
        out = _none(node)
        if len(out) != len(labels):
            return self.give_up(node, f"enters {name}")
        out[1] = labels[1]
        self.labels[node] = out

    def combine(self, node: fx.Node, residual: bool) -> None:
        """Addition and its like: what meets at one place is tied, and only like meets like."""
        out = _none(node)
        operands = [source for source in node.all_input_nodes if _has_shape(source)]
        rank = len(out)
        for back in range(1, rank + 1):
            entries = []
            for source in operands:
                shape = _shape(source)
                if len(shape) >= back and shape[-back] == _shape(node)[-back] and _shape(node)[-back] > 1:
                    entries.append((source, self.labels[source][-back]))
            labelled = [ids for _, ids in entries if ids is not None]
            if len(labelled) == 2:
                parameter = any(source.op == "get_attr" for source, _ in entries)
                self.tie(labelled[0], labelled[1], residual and not parameter and labelled[0] != labelled[1])
                out[-back] = labelled[0]
            elif labelled and len(entries) == 2:
                self.keep_whole(labelled[0], "meets a tensor whose channels are not those of a layer")
            elif labelled:
                out[-back] = labelled[0]
        self.labels[node] = out

    def concatenate(self, node: fx.Node) -> None:
        tensors = node.args[0] if node.args else node.kwargs["tensors"]
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if not isinstance(tensors, (list, tuple)) or not isinstance(dim, int):
            return self.give_up(node, "enters a concatenation of a list that is not fixed")
        sources = [source for source in tensors if isinstance(source, fx.Node)]
        out = _none(node)
        for d in range(len(out)):
            parts = [self.labels[source][d] for source in sources]
            if d == dim % len(out):
                if any(part is not None for part in parts):  # channels without an owner stand for themselves
                    sizes = [_shape(source)[d] for source in sources]
                    joined: list[int] = []
                    for part, size in zip(parts, sizes, strict=True):
                        if part is None:
                            part = self.fresh(size)
                            self.keep_whole(part, "is no channel of a layer")
                        joined += part
                    out[d] = joined
            else:
                for part in parts:
                    self.keep_whole(part, "is concatenated along another dimension")
        self.labels[node] = out

    def reshape(self, node: fx.Node, labels: Labels) -> None:
        """Follow labels through a reshape that merges dimensions; one that takes a labelled one apart ends them."""
        source = _first(node)
        assert source is not None
        old, new = _shape(source), _shape(node)
        out = _none(node)
        for inner, outer in _blocks(old, new):
            held = [d for d in inner if labels[d] is not None]
            if not held:
                continue
            d = held[0]
            before, after = prod(old[i] for i in inner if i < d), prod(old[i] for i in inner if i > d)
            wide = [i for i in outer if new[i] > 1]
            if len(held) > 1 or before > 1 or len(wide) != 1:
                for i in held:
                    self.keep_whole(labels[i], "is taken apart by a reshape")
            else:
                out[wide[0]] = [identity for identity in labels[d] or [] for _ in range(after)]
        self.labels[node] = out

    def rearrange(self, node: fx.Node, labels: Labels, name: str) -> None:
        """Permutations, squeezes and means, replayed on a tensor whose sizes name the dimensions."""
        source = _first(node)
        assert source is not None
        probe = torch.empty([d + 2 for d in range(len(labels))], device="meta")
        if name in ("squeeze", "mean"):
            shape = _shape(source)
            probe = torch.empty([1 if name == "squeeze" and shape[d] == 1 else d + 2 for d in range(len(labels))])
        rest = list(node.args[1:])
        try:
            sizes = list(getattr(probe, name)(*rest, **node.kwargs).shape)
        except Exception:
            return self.give_up(node, f"enters {name}")
        kept = [size - 2 for size in sizes if size >= 2]
        for d, entry in enumerate(labels):
            if d not in kept:
                self.keep_whole(entry, f"enters {name} over its channels")
        self.labels[node] = [labels[size - 2] if size >= 2 else None for size in sizes]


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'AEIOU' else 'a'} {word}"


def _none(node: fx.Node) -> Labels:
    return [None] * len(_shape(node)) if _has_shape(node) else []


def _has_shape(node: fx.Node) -> bool:
    return "size" in node.meta


def _shape(node: fx.Node) -> tuple[int, ...]:
    size: tuple[int, ...] = node.meta["size"]
    return size


def _first(node: fx.Node) -> fx.Node | None:
    return next((a for a in node.all_input_nodes if _has_shape(a)), None)


def _first_consumers(nodes: list[fx.Node], modules: dict[str, nn.Module]) -> list[str]:
    """The mixing layer that alone reads the network's input, if there is one and it runs once: a list of its name.

    What lies between leaves the examples along dimension 0.
    """
    inputs = [node for node in nodes if node.op == "placeholder" and _has_shape(node)]
    node = inputs[0] if len(inputs) == 1 else None
    while node is not None and len(node.users) == 1:
        before, node = node, next(iter(node.users))
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, MIXING):
            runs = sum(other.op == "call_module" and other.target == node.target for other in nodes)
            return [str(node.target)] if runs == 1 else []
        harmless = (*ELEMENTWISE_MODULES, *SPATIAL_MODULES, *CHANNEL_NORMS, nn.Flatten)
        functional = node.op != "call_module" and node.target in ELEMENTWISE | SPATIAL | RESHAPING
        if not (functional or isinstance(module, harmless)) or len(node.all_input_nodes) > 1:
            break
        if not _has_shape(node) or _shape(node)[:1] != _shape(before)[:1]:
            break
    return []


def _blocks(old: tuple[int, ...], new: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Pair up runs of old and new dimensions with the same number of elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        inner, outer = ([i] if i < len(old) else []), ([j] if j < len(new) else [])
        i, j = i + len(inner), j + len(outer)
        while prod(old[k] for k in inner) != prod(new[k] for k in outer):
            if prod(old[k] for k in inner) < prod(new[k] for k in outer):
                inner.append(i)
                i += 1
            else:
                outer.append(j)
                j += 1
        yield inner, outer
