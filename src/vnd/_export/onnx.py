r"""ONNX files: a network of one width; or one file in which the width is an input, and that costs less with it.

Such a file has the weights once, those of the widest network, and a branch for each width, which cuts its own out of
them: by `Slice` where kept channels come first, by `Gather` where they do not. Both are of constants only, so that a
runtime does them once, when it opens the file; a call then costs what the extracted network does. BatchNorm's
statistics are each width's own. A network that has no exact smaller form is masked instead, at its full cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vnd._export.checks import compare, cpu_times, required
from vnd._export.graph import Function, Masked, Noise, Selection, any_batch, cut, program, quietly, selection
from vnd._files import put
from vnd.nn.extract import Keep, slice_network
from vnd.nn.state import Shape

if TYPE_CHECKING:
    from vnd._export import Job

Array = NDArray[Any]
MOST = 2**31 - 2**20  # bytes of a file: those of Protocol Buffers end here


@dataclass
class Branch:
    """The graph of one width, its weights apart from it."""

    model: Any  # onnx.ModelProto, whose weights are inputs
    weights: dict[str, Array]
    select: Selection = field(default_factory=dict)


def branch(
    function: Function,
    tensors: Sequence[Tensor],
    batched: Sequence[bool],
    select: Selection | None = None,
    whole: bool = False,
) -> Branch:
    """The ONNX graph of a function; its weights are inputs of the graph, behind the others.

    Args:
        function: The network.
        tensors: Its inputs.
        batched: Which of them have a row for each example.
        select: Where its weights are in those of the widest.
        whole: It is alone in its file: BatchNorm is folded into convolutions.
    """
    _, optimizer = required("onnx", "onnxscript.optimizer")
    exported = program(function, tensors, (any_batch(batched),))
    with torch.no_grad(), quietly():
        made: Any = torch.onnx.export(exported, dynamo=True, optimize=False, verbose=False)
        model = made.model
        if whole:
            optimizer.optimize(model)
        graph = model.graph
        held = dict(graph.initializers)
        for name, value in held.items():
            graph.initializers.pop(name)
            graph.inputs.append(value)
        weights = {name: np.asarray(value.const_value.numpy()) for name, value in held.items()}
        for value in held.values():
            value.const_value = None
        optimizer.inline(model)
        optimizer.fold_constants(model)
        optimizer.remove_unused_nodes(model)
        from onnx_ir import serde

        found = serde.serialize_model(model)
        _drop_biases_of_volumes(found.graph)
        return Branch(found, weights, select or {})


def _drop_biases_of_volumes(graph: Any) -> None:
    """Drop zeros (channels, 2) that onnxscript adds as a bias to 3-d convolutions without one (its issue 2931)."""
    sizes = {value.name: len(value.dims) for value in graph.initializer}
    wrong = {n.input[2] for n in graph.node if n.op_type == "Conv" and len(n.input) == 3 and sizes.get(n.input[2]) == 2}
    for node in graph.node:
        if node.op_type == "Conv" and len(node.input) == 3 and node.input[2] in wrong:
            del node.input[2]
    still = {name for node in graph.node for name in _reads(node)}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in wrong - still:
            del graph.initializer[index]


def write(job: Job, path: Path, int8: tuple[Iterable[Any], float] | None) -> dict[str, Any]:
    """Write an ONNX file that agrees with torch; what is known of it.

    Args:
        job: What is exported.
        path: The file.
        int8: Batches to quantize with, and how much of the accuracy that may cost; None for floating point.
    """
    required("onnx", "onnxscript", "onnxruntime")
    file, model, alone = build(job)
    content = model.SerializeToString()
    if len(content) > MOST:
        raise ValueError(f"export: a file must have less than 2 GiB; got {len(content):,} bytes: export fewer widths")
    rows = compare(job, content)
    form = "masked" if job.masked else "sliced" if job.several else "extracted"
    entry: dict[str, Any] = {"form": form}
    entry |= {"because": job.masked} if form == "masked" else {"weights": file.counts}
    kind = "time_to_extracted"
    if int8 is not None:
        from vnd._export.int8 import quantize

        floats = content
        content, known = quantize(job, floats, *int8)
        entry |= {"form": "int8", **known}
        rows[0]["accuracy"] = known["accuracy_int8"]
        rows[0]["largest_difference_float"] = rows[0].pop("largest_difference")
        alone, kind = [floats], "time_to_float"
    times = cpu_times(job, content, alone)
    for row, (own, other) in zip(rows, times, strict=True):
        row["time_ratio"] = round(own / times[0][0], 3)
        if other is not None:
            row[kind] = round(own / other, 3)
    put_file(path, content)
    inputs = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    return entry | {"bytes": len(content), "opset": file.opset, "inputs": inputs, "widths": rows}


def put_file(path: Path, content: bytes) -> None:
    """Write a file in one step, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, lambda part: part.write_bytes(content))


def told(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as `metadata_props` hold them: words as they are, all else as JSON."""
    return {key: x if isinstance(x, str) else json.dumps(x) for key, x in facts.items() if x is not None}


def standalone(
    function: torch.nn.Module,
    tensors: Sequence[Tensor],
    shapes: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    facts: Mapping[str, str],
) -> bytes:
    """A file of one function, whose shapes are free where `shapes` say, as `torch.export` takes them."""
    onnx, _ = required("onnx", "onnxscript")
    traced = program(function.eval(), tensors, shapes)
    with torch.no_grad(), quietly():
        names: dict[str, Any] = {"input_names": [*inputs], "output_names": [*outputs]}
        made: Any = torch.onnx.export(traced, dynamo=True, optimize=True, verbose=False, **names)
        model = made.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    del model.graph.value_info[:], model.graph.metadata_props[:]
    describe(model, facts)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def build(job: Job) -> tuple[File, Any, list[bytes]]:
    """The model of an export, and that of each width alone where there are several."""
    file = File(_base(job), {*job.inputs.names, "width", "noise", output_name(job)})
    numbered = job.several or bool(job.masked)
    kinds = [None] if job.sites is None else [job.sites, *([None] if job.means else [])]
    alone: list[bytes] = []
    graphs = [_masked(job, file, sites) if job.masked else _cut(job, file, sites, alone) for sites in kinds]
    graph = graphs[0] if len(graphs) == 1 else file.drawn_or_not(*graphs)
    if numbered:
        graph = file.numbered(graph, len(job.widths))
    facts = {"noise": job.columns, "means": job.means or job.sites is None, "numbered": numbered}
    facts["shared"] = job.shared
    return file, file.finish(graph, _described(job, numbered), output_name(job), told(job.facts | facts)), alone


def _masked(job: Job, file: File, sites: Noise | None) -> Any:
    """The graph of a masked network, which reads the number of its width."""
    shapes = [width.shape for width in job.widths if width.shape is not None]
    function = Masked(job.net, shapes, job.inputs, job.output, sites)
    tensors, batched = job.inputs.zeros(2), job.inputs.batched
    number, noise = torch.zeros((), dtype=torch.int64), job.noise(2)
    names = [*job.inputs.names, "width/number"]
    if sites is None:
        return file.add(branch(function, [*tensors, number], [*batched, False]), "means", names)
    part = branch(function, [*tensors, number, noise], [*batched, False, not job.shared])
    return file.add(part, "draws", [*names, "noise"])


def _cut(job: Job, file: File, sites: Noise | None, alone: list[bytes]) -> Any:
    """The graph of the networks of all widths, each cut out; adds those alone, where there are several."""
    drawn = sites is not None
    names = [*job.inputs.names, *["noise"] * drawn]
    tensors = [*job.inputs.zeros(2), *[job.noise(2)] * drawn]
    batched = [*job.inputs.batched, *[not job.shared] * drawn]
    keep: Keep = "posterior" if drawn else "mean"
    largest, graphs = _largest(job), []
    whole = {} if largest is None else selection(job.net, largest, keep)
    for number, width in enumerate(job.widths):
        select = {} if width.shape is None else _within(whole, selection(job.net, width.shape, keep))
        fold = not job.several and job.sites is None
        part = branch(cut(job.net, width, job.inputs, job.output, sites), tensors, batched, select, whole=fold)
        graphs.append(file.add(part, f"{'draws' if drawn else 'means'}{number}", names))
        if job.several and sites is job.sites:
            own = File({}, file.taken)
            model = own.finish(own.add(part, "only", names), _described(job, several=False), output_name(job), {})
            alone.append(model.SerializeToString())
    return file.choose(graphs, "width/number", "draws" if drawn else "means")


def _within(whole: Selection, narrow: Selection) -> Selection:
    """The entries of a narrow network's tensors, counted among those of a wider one."""
    return {
        name: tuple(torch.searchsorted(wide, line) for wide, line in zip(whole[name], lines, strict=True))
        for name, lines in narrow.items()
        if name in whole
    }


def output_name(job: Job) -> str:
    """Name of the output: that of what it is."""
    return "logits" if job.facts["link"] in ("softmax", "sigmoid") else "output"


def _described(job: Job, several: bool) -> list[tuple[str, Any, list[Any]]]:
    """Names, dtypes and shapes of a file's inputs."""
    rows = zip(job.inputs.names, job.inputs.zeros(2), job.inputs.batched, strict=True)
    found: list[tuple[str, Any, list[Any]]] = [
        (name, x.numpy().dtype, ["batch" if many else x.size(0), *x.shape[1:]] if x.dim() else [])
        for name, x, many in rows
    ]
    found += [("width", "int64", [])] if several else []
    return found + (
        []
        if job.sites is None
        else [("noise", "float32", [1 if job.shared else "batch", "columns" if job.means else job.columns])]
    )


def _largest(job: Job) -> Shape | None:
    """The smallest shape that holds those of all widths; None for a network of one size."""
    shapes = [width.shape for width in job.widths if width.shape is not None]
    return Shape({unit: max(shape[unit] for shape in shapes) for unit in shapes[0]}) if shapes else None


def _base(job: Job) -> dict[str, Array]:
    """The weights that all widths are cut from: those of the smallest network that holds all."""
    largest = _largest(job)
    if largest is None or job.masked:
        return {}
    keep: Keep = "mean" if job.sites is None else "posterior"
    return {name: x.numpy() for name, x in slice_network(job.net, largest, keep).state_dict().items()}


# -- one file of branches ----------------------------------------------------------------------------------------------


class File:
    """An ONNX graph under construction: weights that all branches share, and what each has of its own."""

    def __init__(self, base: Mapping[str, Array], taken: Iterable[str] = ()) -> None:
        self.onnx, self.helper, self.numpy_helper = required("onnx", "onnx.helper", "onnx.numpy_helper")
        self.base, self.taken = dict(base), frozenset(taken)
        self.weights: dict[str, Array] = {}
        self.opset = 0
        self.counts = {"whole": 0, "sliced": 0, "gathered": 0, "copied": 0}

    def add(self, part: Branch, label: str, inputs: Sequence[str], output: str = "") -> Any:
        """The graph of a branch, for `If`: no inputs, its values named after it.

        Args:
            part: The branch.
            label: A name of its own.
            inputs: Names of the file's inputs, in the order of the branch's.
            output: The name of its output; one made of the label if not given.
        """
        graph = part.model.graph
        self.opset = max(self.opset, *(s.version for s in part.model.opset_import if s.domain in ("", "ai.onnx")))
        names = {value.name: name for value, name in zip(graph.input, inputs, strict=False)}
        nodes: list[Any] = []
        own: list[Any] = []
        used = {name for node in graph.node for name in _reads(node)} | {value.name for value in graph.output}
        for value in graph.input[len(inputs) :]:
            if value.name in used:
                names[value.name] = self._weight(part, value.name, label, nodes, own)
        out = output or f"{label}/output"
        last = graph.output[0].name
        if last in names:  # an input or a weight itself
            nodes_after = [self.helper.make_node("Identity", [names[last]], [out])]
        else:
            names[last], nodes_after = out, []

        def name_of(name: str) -> str:
            return names.setdefault(name, f"{label}/{name}") if name else name

        for tensor in graph.initializer:
            copied = self.onnx.TensorProto()
            copied.CopyFrom(tensor)
            copied.name = name_of(tensor.name)
            copied.doc_string = ""
            del copied.metadata_props[:]
            own.append(copied)
        nodes += [_renamed(node, name_of) for node in graph.node] + nodes_after
        value = self.helper.make_empty_tensor_value_info(out)
        value.CopyFrom(graph.output[0])
        value.name = out
        del value.metadata_props[:]
        return self.helper.make_graph(nodes, label, [], [value], own)

    def _weight(self, part: Branch, name: str, label: str, nodes: list[Any], own: list[Any]) -> str:
        """A weight of a branch, cut out of the one that all share; its name there."""
        value, short = part.weights[name], name.removeprefix("net.")
        base, select = self.base.setdefault(short, value), part.select.get(short)
        lines = None if _equal(base, value) else _lines(base, value, select)
        short = name if short in self.taken else short  # a parameter may be called as an input is
        if _equal(base, value):
            self.counts["whole"] += 1
        elif lines is None:
            self.counts["copied"] += 1
            self.weights[f"{label}/{short}"] = value
            return f"{label}/{short}"
        self.weights[short] = base
        cut = {dim: line for dim, line in enumerate(lines or []) if len(line) < base.shape[dim]}
        prefix = {dim: len(line) for dim, line in cut.items() if np.array_equal(line, np.arange(len(line)))}
        if cut:
            self.counts["sliced" if len(prefix) == len(cut) else "gathered"] += 1

        def constant(what: str, numbers: Any) -> str:
            own.append(self.numpy_helper.from_array(np.asarray(numbers, np.int64), f"{label}/{short}.{what}"))
            return f"{label}/{short}.{what}"

        last = short
        if prefix:
            bounds = [
                constant("starts", [0] * len(prefix)), constant("ends", [*prefix.values()]), constant("dims", [*prefix])
            ]  # fmt: skip
            nodes.append(self.helper.make_node("Slice", [last, *bounds], [f"{label}/{short}.sliced"]))
            last = f"{label}/{short}.sliced"
        for dim, line in cut.items():
            if dim not in prefix:
                index = constant(f"index{dim}", line)
                nodes.append(
                    self.helper.make_node("Gather", [last, index], [f"{label}/{short}.gathered{dim}"], axis=dim)
                )
                last = f"{label}/{short}.gathered{dim}"
        return last

    def choose(self, graphs: Sequence[Any], number: str, label: str) -> Any:
        """A graph that runs one of several, by their number in an int64 scalar: a tree of `If`s."""
        return self._tree(0, graphs, number, label)

    def _tree(self, first: int, graphs: Sequence[Any], number: str, label: str) -> Any:
        if len(graphs) == 1:
            return graphs[0]
        middle = len(graphs) // 2
        parts = (first, graphs[:middle], f"{label}0"), (first + middle, graphs[middle:], f"{label}1")
        then, other = (self._tree(start, some, number, name) for start, some, name in parts)
        bound = self.numpy_helper.from_array(np.asarray(first + middle, np.int64), f"{label}/bound")
        less = self.helper.make_node("Less", [number, f"{label}/bound"], [f"{label}/less"])
        return self.decide([less], then, other, label, [bound])

    def decide(self, before: Sequence[Any], then: Any, other: Any, label: str, constants: Sequence[Any] = ()) -> Any:
        """A graph that runs one of two, by what the nodes before it find."""
        out = f"{label}/output"
        choice = self.helper.make_node("If", [before[-1].output[0]], [out], then_branch=then, else_branch=other)
        return self.helper.make_graph([*before, choice], label, [], [self._output(then, out)], [*constants])

    def drawn_or_not(self, draws: Any, means: Any) -> Any:
        """A graph that draws from its noise, or gives the means where that has no columns."""
        sizes = self.helper.make_node("Shape", ["noise"], ["noise/size"], start=1, end=2)
        one = self.helper.make_node("Squeeze", ["noise/size"], ["noise/columns"])
        some = self.helper.make_node("Cast", ["noise/columns"], ["noise/some"], to=self.onnx.TensorProto.BOOL)
        return self.decide([sizes, one, some], draws, means, "drawn")

    def numbered(self, graph: Any, count: int) -> Any:
        """A graph that refuses a number of a width that the file does not have."""
        table = self.numpy_helper.from_array(np.arange(count), "width/known")
        look_up = self.helper.make_node("Gather", ["width/known", "width"], ["width/number"])
        nodes = [look_up, *graph.node]
        return self.helper.make_graph(nodes, graph.name, [], [graph.output[0]], [table, *graph.initializer])

    def _output(self, graph: Any, name: str) -> Any:
        value = self.helper.make_empty_tensor_value_info(name)
        value.CopyFrom(graph.output[0])
        value.name = name
        return value

    def finish(
        self,
        graph: Any,
        inputs: Sequence[tuple[str, Array | None, Sequence[Any]]],
        output: str,
        facts: Mapping[str, str],
    ) -> Any:
        """The model: a graph with its inputs, the shared weights and what `metadata_props` say."""
        types = self.helper.np_dtype_to_tensor_dtype
        described = [
            self.helper.make_tensor_value_info(name, types(np.dtype(dtype)), shape) for name, dtype, shape in inputs
        ]
        weights = [
            self.numpy_helper.from_array(np.asarray(value, order="C"), name) for name, value in self.weights.items()
        ]
        whole = self.helper.make_graph(
            [*graph.node], "vnd", described, [self._output(graph, output)], [*weights, *graph.initializer]
        )
        if graph.output[0].name != output:
            whole.node.append(self.helper.make_node("Identity", [graph.output[0].name], [output]))
        opsets = [self.helper.make_opsetid("", self.opset)]
        model = self.helper.make_model(whole, opset_imports=opsets, ir_version=10, producer_name="vnd")
        describe(model, facts)
        return model


def describe(model: Any, facts: Mapping[str, str]) -> None:
    """Set the `metadata_props` of a model."""
    del model.metadata_props[:]
    for key, value in facts.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def _equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _lines(base: Array, value: Array, lines: Sequence[Tensor] | None) -> list[Array] | None:
    """Entries of a shared tensor along each dimension that a narrower one consists of; None if it is of others."""
    if (
        base.ndim != value.ndim
        or base.dtype != value.dtype
        or any(b < v for b, v in zip(base.shape, value.shape, strict=True))
    ):
        return None
    prefix = [np.arange(size) for size in value.shape]
    found = [line.numpy() for line in lines] if lines is not None else prefix
    for tried in (prefix, found):
        fits = [len(line) for line in tried] == [*value.shape] and all(
            len(line) == 0 or line.max() < size for line, size in zip(tried, base.shape, strict=True)
        )
        if fits and _equal(np.ascontiguousarray(base[np.ix_(*tried)]), value):
            return tried
    return None


def _reads(node: Any) -> Iterator[str]:
    """Names that a node reads, within its own graphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (value.name for value in graph.output)


def _renamed(node: Any, name_of: Callable[[str], str]) -> Any:
    """A copy of a node with other names of values, and nothing of where it came from."""
    new = type(node)()
    new.CopyFrom(node)
    new.name = new.doc_string = ""
    del new.metadata_props[:]
    for names in (new.input, new.output):
        names[:] = [name_of(name) for name in names]
    for attribute in new.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            del graph.value_info[:]
            for value in (*graph.input, *graph.output, *graph.initializer):
                value.name = name_of(value.name)
            inner = [_renamed(x, name_of) for x in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return new
