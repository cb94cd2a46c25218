"""How does cost grow with a network's width, its depth, and the number of groups?

Question: of a transformer and of VGG11, a training step of the nested network (local estimator, log α a weight, masks,
KL, backward), the most memory that a step holds, conversion, and extraction at a quarter: how do they grow with the
width (0.25 … 4 times), with the number of layers, and with the number of groups (8 … 512)? A deterministic step of the
same network beside it. One thread, medians of processor time; the exponent is the slope of the logarithms over the
upper half of each axis: against parameters for the width, against layers, against groups.

    python benchmarks/growth.py [--out benchmarks/results/growth-cpu.json] [--small]
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import layers
import record
import vnd

WIDTH, DEPTH, TOKENS, BATCH = 128, 4, 32, 8
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
LAYERS = (2, 4, 8, 16, 32)
GROUPS = (8, 16, 32, 64, 128, 256, 512)


def transformer(width: int, depth: int) -> tuple[nn.Module, Tensor]:
    """A transformer that reads vectors of 16 numbers, and a batch."""
    return layers.transformer(depth, width), torch.randn(BATCH, TOKENS, 16)


def vgg(factor: float) -> tuple[nn.Module, Tensor]:
    """VGG11 of an eighth of its channels, times a factor, and a batch."""
    return vnd.models.VGG11(width=factor / 8), torch.randn(BATCH, 3, 32, 32)


def seconds(call: Callable[[], Any], turns: int) -> float:
    """Median processor time."""
    times = []
    for turn in range(turns + 1):
        start = time.thread_time()
        call()
        times += [time.thread_time() - start] if turn or turns == 1 else []
    return statistics.median(times)


def peak(call: Callable[[], Any]) -> float:
    """The most bytes that were held at once of those that a call allocated."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure(plain: nn.Module, x: Tensor, groups: int, turns: int) -> dict[str, float]:
    """Seconds and bytes of a network."""
    row: dict[str, float] = {"parameters": sum(parameter.numel() for parameter in plain.parameters())}
    row["conversion"] = seconds(lambda: vnd.to_nested(plain, x[:1], num_groups=groups), max(1, turns - 2))
    net = vnd.to_nested(plain, x[:1], num_groups=groups)

    def step(network: nn.Module, penalty: Callable[[], Tensor | float]) -> None:
        network.zero_grad(set_to_none=True)
        (network(x).square().mean() + penalty()).backward()

    row["step"] = seconds(lambda: step(net, lambda: 1e-6 * vnd.kl(net)), turns)
    row["plain step"] = seconds(lambda: step(plain, lambda: 0.0), turns)
    for key, network, penalty in (("memory", net, lambda: vnd.kl(net)), ("plain memory", plain, lambda: 0.0)):
        network.zero_grad(set_to_none=True)
        row[key] = peak(lambda network=network, penalty=penalty: step(network, penalty))
    net.eval()
    row["extraction"] = seconds(lambda: vnd.extract(net, 0.25, warn=False), turns)
    return row


def exponents(rows: list[dict[str, float]], axis: str) -> dict[str, float]:
    """Slopes of the logarithms over the upper half of an axis."""
    upper = rows[len(rows) // 2 :]
    x = [math.log(row[axis]) for row in upper]
    slopes = {}
    for key in ("step", "plain step", "memory", "plain memory", "conversion", "extraction"):
        slopes[key] = statistics.linear_regression(x, [math.log(row[key]) for row in upper]).slope
    return slopes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/growth-cpu.json"))
    parser.add_argument("--small", action="store_true", help="the first three of each axis, one turn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    turns = 1 if args.small else 5
    axes: dict[str, tuple[str, list[tuple[float, Callable[[], tuple[nn.Module, Tensor]], int]]]] = {
        "width, transformer": (
            "parameters",
            [(f, lambda f=f: transformer(int(WIDTH * f), DEPTH), 32) for f in FACTORS],
        ),
        "width, VGG11": ("parameters", [(f, lambda f=f: vgg(f), 32) for f in FACTORS]),
        "depth": ("value", [(count, lambda count=count: transformer(WIDTH, count), 32) for count in LAYERS]),
        "groups": ("value", [(count, lambda: transformer(4 * WIDTH, DEPTH), count) for count in GROUPS]),
    }
    rows = []
    for name, (axis, points) in axes.items():
        found = []
        for value, make, groups in points[:3] if args.small else points:
            torch.manual_seed(0)
            found.append({"value": value, **measure(*make(), groups, turns)})
            print(name, {key: round(number, 4) for key, number in found[-1].items()}, flush=True)
        rows.append({"axis": name, "against": axis, "points": found, "exponents": exponents(found, axis)})
        print(name, {key: round(slope, 2) for key, slope in rows[-1]["exponents"].items()}, flush=True)
    record.write(args.out, "python benchmarks/growth.py", "cpu", turns=turns, rows=rows)


if __name__ == "__main__":
    main()
