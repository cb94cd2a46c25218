"""What do callers in eight threads get of one nested network, and what does a plain call of it cost?

Questions: how many predictions a second do eight threads make of one network on two cores, each at a width of its own
and with torch on one thread, beside a single caller? And how long does `net(x)` of a nested network take, beside the
same call of the network that it was made from, both at full width? Medians over turns; ratios within this run. The
processor time beside the wall time tells whether the machine was quiet: eight callers should have two cores of it.

    python benchmarks/threads.py [--out benchmarks/results/threads-cpu.json]
"""

import argparse
import os
import statistics
import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import record
import vnd

WIDTHS = (0.25, 0.5, 0.75, 1.0)
CALLERS, TURNS, SECONDS = 8, 7, 2.0


def throughput(net: nn.Module, x: Tensor, samples: int, callers: int, seconds: float) -> tuple[float, float]:
    """Predictions a second by some threads, and how many cores they had."""
    counts, stop = [0] * callers, threading.Event()

    def work(caller: int) -> None:
        while not stop.is_set():
            vnd.predict(net, x, width=WIDTHS[counts[caller] % 4], samples=samples, seed=0)
            counts[caller] += 1

    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(callers)]
    start, busy = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - start
    return sum(counts) / wall, (time.process_time() - busy) / wall


def seconds_of(net: nn.Module, x: Tensor, repeats: int) -> float:
    """Median processor seconds of a plain call."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        net(x)
        found.append(time.process_time() - start)
    return statistics.median(found)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/threads-cpu.json"))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cores, rows = len(os.sched_getaffinity(0)), []
    print(f"eight callers beside one, {cores} cores, torch {torch.__version__}; predictions a second (cores had)")
    for name, size, batch, samples in (("convnet", 28, 64, 0), ("convnet", 28, 64, 6), ("vgg11", 32, 16, 0)):
        plain = vnd.models.build(name, image_size=size, in_channels=3) if name == "convnet" else vnd.models.build(name)
        x = torch.randn(batch, 3, size, size)
        net = vnd.to_nested(plain.eval(), x[:2], num_groups=8).eval()
        vnd.recalibrate(net, [x], widths=WIDTHS, samples="both")
        turns = [{n: throughput(net, x, samples, n, args.seconds) for n in (1, CALLERS)} for _ in range(TURNS)]
        speedup = statistics.median(turn[CALLERS][0] / turn[1][0] for turn in turns)
        one, eight = (tuple(statistics.median(turn[n][i] for turn in turns) for i in (0, 1)) for n in (1, CALLERS))
        calls = [seconds_of(net, x, 20) / seconds_of(plain, x, 20) for _ in range(TURNS)]
        row = {"network": name, "batch": batch, "samples": samples, "one": one[0], "eight": eight[0]}
        row |= {"speedup": speedup, "cores": eight[1], "nested / plain call": statistics.median(calls)}
        rows.append(row)
        print(
            f"{name:>8}, batch {batch}, {samples} samples: one {one[0]:7.1f} ({one[1]:.2f}), eight {eight[0]:7.1f} "
            f"({eight[1]:.2f}), {speedup:.2f}×; net(x) takes {row['nested / plain call']:.2f} × the plain network's"
        )
    record.write(args.out, "python benchmarks/threads.py", "cpu", cores=cores, callers=CALLERS, rows=rows)


if __name__ == "__main__":
    main()
