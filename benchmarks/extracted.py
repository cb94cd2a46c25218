"""Is an extracted network as fast as one of its size that was written by hand?

Question: of VGG11 1.5×, MobileNetV2 and ResNeXt, cut at a quarter and at an uneven shape, as a learned one is, and of
the shipped `cifar10-bn3` at a shape that it learned: how long does one image take, eager, compiled by `torch.compile`
(at a quarter), and in onnxruntime? Contestants: what `vnd.extract` gives; the plain class with layers of those sizes,
made by torch's own constructors; and the plain network that Torch-Pruning cut to the same channels, where it is
installed (`pip install --no-deps torch-pruning`). All have the same weights, and their outputs are compared. One
thread; medians of processor time over turns in which all take part once; ratios within this run.

    python benchmarks/extracted.py [--out benchmarks/results/extracted-cpu.json] [--small]
"""

import argparse
import copy
import importlib.util
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn

import record
import vnd
from vnd.nn.state import state_of

TURNS = 101
NAMES = {"vgg11": {"width": 1.5}, "mobilenet_v2": {}, "resnext": {}}


def by_hand(plain: nn.Module, small: nn.Module) -> nn.Module:
    """The plain network with layers of another one's sizes, made anew, and its weights."""
    made = copy.deepcopy(plain)
    for name, layer in small.named_modules():
        new: nn.Module | None = None
        if isinstance(layer, nn.Conv2d):
            sizes = layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding
            new = nn.Conv2d(*sizes, groups=layer.groups, bias=layer.bias is not None)
        elif isinstance(layer, nn.Linear):
            new = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
        elif isinstance(layer, nn.BatchNorm2d):
            new = nn.BatchNorm2d(layer.num_features)
        if new is not None:
            made.set_submodule(name, new)
    made.load_state_dict(small.state_dict())
    return made.eval()


def pruned(plain: nn.Module, net: nn.Module, shape: vnd.Shape, x: Tensor) -> nn.Module | None:
    """The plain network, of the nested one's weights, that Torch-Pruning cut to a shape; None without Torch-Pruning."""
    if importlib.util.find_spec("torch_pruning") is None:
        return None
    import torch_pruning as tp

    twin, state = vnd.extract(net, 1.0, warn=False).eval(), state_of(net)
    for name, groups in shape.items():
        layer = twin.get_submodule(state.groups[name].producers[0])
        unit = state.units[name]
        dropped = sorted({*range(unit.channels)} - {*unit.kept_channels(groups).tolist()})
        if dropped:
            graph = tp.DependencyGraph().build_dependency(twin, example_inputs=x)
            prune = tp.prune_linear_out_channels if isinstance(layer, nn.Linear) else tp.prune_conv_out_channels
            graph.get_pruning_group(layer, prune, idxs=dropped).prune()
    return twin


def contestants(small: bool) -> dict[str, dict[str, nn.Module]]:
    """Of each network and shape, those who take part."""
    found: dict[str, dict[str, nn.Module]] = {}
    x = torch.rand(1, 3, 32, 32)
    for name, config in NAMES.items():
        torch.manual_seed(0)
        plain = vnd.models.build(name, **({"width": 0.25} if small and name == "vgg11" else config)).eval()
        net = vnd.to_nested(plain, x, num_groups=32).eval()
        for unit in state_of(net).units.values():
            nn.init.normal_(unit.keep_logits, 3.0, 1.0)  # so that every unit has a length of its own
        vnd.recalibrate(net, [torch.rand(16, 3, 32, 32)], widths=(vnd.shape(net, level=0.5), 0.25))
        for words, shape in {"a quarter": vnd.shape(net, fraction=0.25), "uneven": vnd.shape(net, level=0.5)}.items():
            ours = vnd.extract(net, shape)
            rows = {"extracted": ours, "by hand": by_hand(plain, ours)}
            try:
                twin = pruned(plain, net, shape, x)
            except Exception as error:
                print(f"{name}, {words}: Torch-Pruning fails: {str(error)[:150]}")
                twin = None
            if twin is not None:
                if {n: p.shape for n, p in twin.named_parameters()} != {n: p.shape for n, p in ours.named_parameters()}:
                    print(f"{name}, {words}: Torch-Pruning's network has other sizes")
                twin.load_state_dict(ours.state_dict())
                rows["Torch-Pruning"] = twin.eval()
            found[f"{name}, {words}"] = rows
    shipped = vnd.load_pretrained("cifar10-bn3")
    shape = vnd.Shape(shipped.card["results"][2]["shape"])
    ours = vnd.extract(shipped, shape).network
    found["cifar10-bn3, 0.2 M"] = {"extracted": ours, "by hand": by_hand(vnd.models.build("vgg11"), ours)}
    return found


def runs(
    rows: dict[str, nn.Module], x: Tensor, folder: Path, compiled: bool
) -> dict[str, dict[str, Callable[[], Any]]]:
    """Calls of each contestant, by the way it runs."""
    calls: dict[str, dict[str, Callable[[], Any]]] = {"eager": {}, "compiled": {}, "onnxruntime": {}}
    for name, net in rows.items():
        calls["eager"][name] = lambda net=net: net(x)
        if compiled:
            fast = torch.compile(net)
            calls["compiled"][name] = lambda fast=fast: fast(x)
        path = folder / f"{name}.onnx"
        if name == "extracted":
            vnd.export(net, path, example_input=x)
        else:
            torch.onnx.export(net, (x,), str(path), dynamo=True, external_data=False, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        engine = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        given = {engine.get_inputs()[0].name: x.numpy()}
        calls["onnxruntime"][name] = lambda engine=engine, given=given: engine.run(None, given)
    return calls


def measure(rows: dict[str, nn.Module], x: Tensor, compiled: bool, turns: int) -> dict[str, Any]:
    """Milliseconds of each contestant and way, and ours over the others."""
    first = rows["extracted"](x)
    for net in rows.values():
        assert torch.allclose(net(x), first, atol=1e-5), "the contestants are not the same function"
    row: dict[str, Any] = {"parameters": sum(p.numel() for p in rows["extracted"].parameters())}
    row["modules"] = {name: sum(1 for _ in net.modules()) for name, net in rows.items()}
    with tempfile.TemporaryDirectory() as folder:
        for way, calls in runs(rows, x, Path(folder), compiled).items():
            times: dict[str, list[float]] = {name: [] for name in calls}
            names = list(calls)
            for turn in range(turns + 5 if calls else 0):
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    start = time.thread_time()
                    calls[name]()
                    times[name] += [time.thread_time() - start] if turn >= 5 else []
            ms = {name: 1000 * statistics.median(own) for name, own in times.items()}
            row[way] = (
                {"ms": ms, "ratio": {name: ms["extracted"] / other for name, other in ms.items()}} if ms else None
            )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/extracted-cpu.json"))
    parser.add_argument("--small", action="store_true", help="a small VGG11, few turns, to see that it runs")
    parser.add_argument("--no-compile", action="store_true", help="leave `torch.compile` out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    x, found = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1)), []
    turns = 5 if args.small else TURNS
    for name, rows in contestants(args.small).items():
        with torch.inference_mode():
            compiled = name.endswith("a quarter") and not args.no_compile  # to compile takes longer than all the rest
            row = {"network": name, **measure(rows, x, compiled, turns)}
            found.append(row)
            print(
                name, {way: row[way] and row[way]["ratio"] for way in ("eager", "compiled", "onnxruntime")}, flush=True
            )
    about = {"onnxruntime": onnxruntime.__version__, "turns": turns}
    record.write(args.out, "python benchmarks/extracted.py", "cpu", **about, rows=found)


if __name__ == "__main__":
    main()
