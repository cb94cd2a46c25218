"""What does it cost to decode a code of some length, against one of all its dimensions?

The paper's auto-encoder, a code of 128 dimensions and images of 64×64, decodes codes of 8 … 128 dimensions. A code that
stops early reads that many columns of the first layer, whose share in a whole decoder is small, so the layer is timed
by itself as well. Beside them what a mask would take: all 128 columns, zeros from the length on. They take turns;
medians over rounds, ratios within this run, and the multiply-accumulates that torch counts.

    python benchmarks/decoding.py [--device cuda] [--batch 64] [--out benchmarks/results/decoding-cpu.json]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from record import write
from vnd.methods import VNDAE
from vnd.methods.codes import coded
from vnd.models import AutoEncoder

LENGTHS = (8, 16, 32, 64, 96, 128)


def milliseconds(runs: dict[str, Callable[[], Tensor]], rounds: int, device: str) -> dict[str, float]:
    """The median of each, of rounds in which all have their turn."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 3):
        for name, run in runs.items():
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            if turn >= 3:  # the first ones warm it up
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def macs(run: Callable[[], Tensor], batch: int) -> int:
    """Multiply-accumulates of an image."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops()) // (2 * batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    method = VNDAE()
    model = method.build(AutoEncoder(image_size=args.size, length_bias=False), torch.zeros(2, 3, args.size, args.size))
    network = coded(model.to(args.device).eval())
    code = torch.randn(args.batch, LENGTHS[-1], device=args.device)
    cut = {length: code[:, :length].contiguous() for length in LENGTHS}
    zeros = {length: F.pad(x, (0, LENGTHS[-1] - length)) for length, x in cut.items()}
    with torch.inference_mode():
        runs: dict[str, Callable[[], Tensor]] = {}
        for length in LENGTHS:
            runs[f"decode {length}"] = lambda length=length: method.decode(network, cut[length])
            runs[f"masked {length}"] = lambda length=length: method.decode(network, zeros[length])
        decoded = milliseconds(runs, args.rounds, args.device)
        layers = {f"{length}": lambda length=length: network.expand(cut[length]) for length in LENGTHS}
        first = milliseconds(layers, 20 * args.rounds, args.device)
        counted = {length: macs(runs[f"decode {length}"], args.batch) for length in LENGTHS}
        own = {length: macs(layers[f"{length}"], args.batch) for length in LENGTHS}
    full = LENGTHS[-1]
    rows = [
        {
            "length": length,
            "decode_ms": decoded[f"decode {length}"],
            "decode_ratio": decoded[f"decode {length}"] / decoded[f"decode {full}"],
            "masked_ratio": decoded[f"masked {length}"] / decoded[f"decode {full}"],
            "decode_macs": counted[length],
            "first_layer_ms": first[f"{length}"],
            "first_layer_ratio": first[f"{length}"] / first[f"{full}"],
            "first_layer_macs": own[length],
            "first_layer_macs_ratio": own[length] / own[full],
        }
        for length in LENGTHS
    ]
    for row in rows:
        print(
            f"{row['length']:4d} dimensions: decode {row['decode_ms']:.2f} ms, {row['decode_ratio']:.3f} of {full} "
            f"(masked {row['masked_ratio']:.3f}); first layer {row['first_layer_ratio']:.3f} of the time, "
            f"{row['first_layer_macs_ratio']:.3f} of the products"
        )
    out = args.out or Path(f"benchmarks/results/decoding-{args.device}.json")
    write(out, "python benchmarks/decoding.py", args.device, batch=args.batch, image=args.size, rows=rows)


if __name__ == "__main__":
    main()
