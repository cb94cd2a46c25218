"""What does a width cost in one ONNX file that has them all?

Questions: of VGG11, the shipped network and MobileNetV2, how long does onnxruntime take for one example and for a
batch at each width of a file whose width is an input: as a share of its own full width, and beside the file of the
extracted network alone? And how long does opening it take, and how large is it? One thread; medians of processor time
over turns in which all take part once; ratios within this run.

    python benchmarks/export.py [--out benchmarks/results/export-cpu.json] [--small]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import record
import vnd

WIDTHS = (1.0, 0.75, 0.5, 0.25)
TURNS = 21


def opened(path: Path) -> tuple[Any, float]:
    """A file ready to run in one thread, and the processor seconds that opening it took."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    start = time.process_time()
    ready = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return ready, time.process_time() - start


def networks(small: bool) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Nested networks, recalibrated at all widths, and examples."""
    x = torch.rand(64, 3, 32, 32)
    names = {"vgg11": {"width": 0.25} if small else {}, "mobilenet_v2": {"width": 0.25} if small else {}}
    found: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "cifar10-bn3-small": (vnd.load_pretrained("cifar10-bn3-small"), x)
    }
    for name, options in names.items():
        found[name] = vnd.to_nested(vnd.models.build(name, **options), x[:2], num_groups=32).eval(), x
    for net, examples in found.values():
        vnd.recalibrate(net, [examples], widths=WIDTHS, samples="both")
    return found


def measure(net: nn.Module, x: torch.Tensor, folder: Path, posterior: bool, turns: int) -> dict[str, Any]:
    """Shares of the full width's time, and times beside the extracted networks', for one example and for all."""
    whole = vnd.export(net, folder / "any.onnx", widths=WIDTHS, posterior=posterior)
    single = [vnd.export(net, folder / f"w-{w}.onnx", width=w, posterior=posterior) for w in WIDTHS]
    engine, seconds = opened(folder / "any.onnx")
    alone = [opened(folder / f"w-{w}.onnx")[0] for w in WIDTHS]
    columns = vnd.runtime.load(folder / "any.onnx").columns
    row: dict[str, Any] = {
        "posterior": posterior,
        "widths": WIDTHS,
        "open_seconds": seconds,
        "weights": whole["weights"],
    }
    row |= {"bytes": whole["bytes"], "bytes_alone": [entry["bytes"] for entry in single], "form": whole["form"]}
    row["largest_difference"] = [entry["largest_difference"] for entry in whole["widths"]]
    for batch in (1, len(x)):
        given = {"image": x[:batch].numpy()}
        if posterior:  # weights are drawn once for all examples of a pass, outputs for each
            rows = 1 if whole["inputs"]["noise"][0] == 1 else batch
            given["noise"] = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
        calls = [(engine, {**given, "width": np.asarray(number)}) for number in range(len(WIDTHS))]
        calls += [(other, given) for other in alone]
        times: list[list[float]] = [[] for _ in calls]
        for turn in range(turns + 1):
            for own, (ready, feed) in zip(times, calls, strict=True):
                start = time.process_time()
                ready.run(None, feed)
                own += [time.process_time() - start] if turn else []
        medians = [statistics.median(own) for own in times]
        here, apart = medians[: len(WIDTHS)], medians[len(WIDTHS) :]
        row[f"of_full_{batch}"] = [round(t / here[0], 3) for t in here]
        row[f"of_extracted_{batch}"] = [round(t / other, 3) for t, other in zip(here, apart, strict=True)]
        row[f"ms_{batch}"] = [round(1000 * t, 3) for t in here]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/export-cpu.json"))
    parser.add_argument("--small", action="store_true", help="small networks and three turns, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for name, (net, x) in networks(args.small).items():
        for posterior in (False,) if name == "mobilenet_v2" else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                row = {"network": name, **measure(net, x, Path(folder), posterior, 3 if args.small else TURNS)}
            rows.append(row)
            print(name, "drawn" if posterior else "means", {key: row[key] for key in row if "of_" in key}, flush=True)
    versions = {"onnxruntime": onnxruntime.__version__, "turns": 3 if args.small else TURNS}
    record.write(args.out, "python benchmarks/export.py", "cpu", **versions, rows=rows)


if __name__ == "__main__":
    main()
