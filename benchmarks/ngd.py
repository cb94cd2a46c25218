"""What does a step of NGD cost?

Question: how long does `NGD.step` take beside `torch.optim.SGD(foreach=True)`, both with momentum, for the parameters
of VGG11 1.5× as BN³ has them (weights and as many log α, channels last)? Random gradients; rounds of 40 steps, of 20
on a CPU, one synchronisation at the end of each; medians over rounds, the contestants taking turns. The last column is
how long `step` keeps its CPU thread at work, waiting excluded.

On a GPU also behind other work: before each step the device is kept busy for `--busy` milliseconds, about what a
forward and a backward pass take, and what a step adds to that is reported. It is what a step costs in training, where
NGD decomposes on the CPU while the device works.

    python benchmarks/ngd.py [--device cuda] [--busy 7.5] [--small] [--out benchmarks/results/ngd.json]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import record
from vnd.models import build
from vnd.optim.ngd import NGD

LR, MOMENTUM, WARM_UP = 1e-3, 0.9, 20  # beyond the first ten steps, each of which updates the factors


def parameter_groups(width: float, device: str) -> list[dict[str, object]]:
    """Parameters of a VGG11, and for each of its weights as many of another rate; all with gradients."""
    network = build("vgg11", width=width).to(device, memory_format=torch.channels_last)
    weights = list(network.parameters())
    variances = [nn.Parameter(torch.full_like(weight, -1.0)) for weight in weights if weight.ndim > 1]
    for parameter in (*weights, *variances):
        scale = torch.logspace(0, -2, len(parameter), device=device).view(-1, *[1] * (parameter.ndim - 1))
        parameter.grad = 1e-3 * torch.randn_like(parameter) * scale
    return [{"params": weights, "lr": LR}, {"params": variances, "lr": LR / 2}]


def contestants(width: float, device: str) -> dict[str, Callable[[], object]]:
    ngd = NGD(parameter_groups(width, device), lr=LR, momentum=MOMENTUM, nesterov=True)
    sgd = torch.optim.SGD(parameter_groups(width, device), lr=LR, momentum=MOMENTUM, nesterov=True, foreach=True)
    return {"ngd": ngd.step, "sgd": sgd.step, "nothing": lambda: None}


def measure(
    steps: dict[str, Callable[[], object]], rounds: int, length: int, device: str, busy: float
) -> dict[str, tuple[float, float]]:
    """Median milliseconds of a step, with `busy` cycles of the device's before each, and those of the CPU alone."""
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            synchronize()
            start, own = time.perf_counter(), 0.0
            for _ in range(length):
                if busy:
                    torch.cuda._sleep(int(busy))
                before = time.thread_time()
                step()
                own += time.thread_time() - before
            synchronize()
            times[name].append(((time.perf_counter() - start) / length * 1e3, own / length * 1e3))
    medians = {name: [statistics.median(part) for part in zip(*found, strict=True)] for name, found in times.items()}
    return {name: (whole, own) for name, (whole, own) in medians.items()}


def cycles_per_millisecond() -> float:
    """Of the clock that `torch.cuda._sleep` counts by."""
    cycles, found = 50_000_000, []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        found.append(cycles / (time.perf_counter() - start) / 1e3)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ngd.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--busy", type=float, default=7.5, help="milliseconds of other work before a step, on a GPU")
    parser.add_argument("--small", action="store_true", help="a narrow network and few steps: does it run?")
    args = parser.parse_args()
    on_a_gpu = args.device.startswith("cuda")
    width, rounds, length = (1 / 8, 3, 4) if args.small else (1.5, 11, 40) if on_a_gpu else (1.5, 5, 20)
    torch.manual_seed(0)
    steps = contestants(width, args.device)
    measure(steps, 1, WARM_UP, args.device, 0)
    rows = []
    print(f"one step, VGG11 {width}× and log α, {args.device}, torch {torch.__version__}; milliseconds")
    print(f"{'device busy before it':>24} {'optimizer':>20} {'step':>10} {'adds':>10} {'CPU':>10}")
    for busy in (0.0, args.busy) if on_a_gpu and args.busy else (0.0,):
        found = measure(steps, rounds, length, args.device, busy * cycles_per_millisecond() if busy else 0)
        whole = {name: value[0] for name, value in found.items()}
        adds = {name: value - whole["nothing"] for name, value in whole.items() if name != "nothing"}
        own = {name: value[1] for name, value in found.items()}
        rows.append({"busy": busy, "milliseconds": whole, "added": adds, "of the CPU": own})
        for name, added in adds.items():
            print(f"{busy:>24} {name:>20} {whole[name]:>10.3f} {added:>10.3f} {own[name]:>10.3f}")
    command = "python benchmarks/ngd.py" + (" --small" if args.small else "")
    options = {"width": width, "rounds": rounds, "steps a round": length}
    record.write(args.out, command, args.device, **options, rows=rows)


if __name__ == "__main__":
    main()
