"""How many images a second does the library's loop train, against a bare PyTorch loop?

The same network, batch, loss and optimizer: VGG11 on images of CIFAR's size, plain and as BN³. The bare loop indexes
normalised float images that lie on the device, and does nothing else: no check of the loss, no log, no checkpoint, no
progress bar; like ours it uses deterministic algorithms. Ours is `vnd.train.loop`, as `vnd train` runs it, from uint8
images. Medians of single steps, in turns within this run; on a GPU bf16, compiled, in windows of steps between
synchronisations.

    python benchmarks/throughput.py [--device cuda] [--batch 512] [--out benchmarks/results/throughput.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vnd.methods import Step
from vnd.train import loop
from vnd.train.config import parse
from vnd.train.recipe import Recipe
from vnd.train.state import TrainState

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain"},
    "bn3": {"name": "bn3", "base": 2, "measure_every": 0},
    "bn3, order measured every 4 steps": {"name": "bn3", "base": 2, "measure_every": 4},
}


class DoneError(Exception):
    """Enough steps were timed."""


class Clock:
    """Times windows of steps; the first windows, in which things are compiled and allocated, do not count."""

    def __init__(self, window: int, windows: int, device: str) -> None:
        self.window, self.windows, self.device, self.count = window, windows, device, 0
        self.times: list[float] = []

    def tick(self) -> None:
        """One step was done."""
        if self.count % self.window == 0:
            if self.device == "cuda":
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
        self.count += 1
        if len(self.times) > self.windows + 2:
            raise DoneError

    def seconds(self) -> float:
        """Median seconds of a step."""
        return statistics.median(b - a for a, b in zip(self.times[2:-1], self.times[3:], strict=True)) / self.window


def recipe_of(method: str, args: argparse.Namespace, data: Path) -> Recipe:
    cuda = args.device == "cuda"
    return parse(
        {
            "method": METHODS[method],
            "network": {"name": "vgg11", "width": args.width},
            "data": {"name": "npz", "folder": str(data), "validation": 1000},
            "optimizer": {"name": "sgd", "lr": 0.01},
            "train": {
                "epochs": 10_000, "batch": args.batch, "device": args.device, "precision": "bf16" if cuda else "no",
                "compile": cuda, "channels_last": True, "log_every": 50, "validate_every": 10_000,
            },
        }
    )  # fmt: skip


def bare(state: TrainState, clock: Clock) -> None:
    """The loop that a user of PyTorch writes."""
    options, device = state.recipe.train, state.accelerator.device
    images, labels = state.splits.train.pixels, torch.from_numpy(state.splits.train.labels).to(device)
    data = state.batches.normalise(torch.from_numpy(np.array(images)).to(device))
    model, optimizer, method = state.root, state.optimizer.optimizer, state.method
    loss_of = loop._compiled(method.loss, state)
    step = Step(0, torch.full((), 1e-3, device=device), 2.0, len(data))
    model.train()
    while True:
        order = torch.randperm(len(data), device=device)
        for chosen in order[: len(data) // options.batch * options.batch].split(options.batch):
            with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
                loss = loss_of(model, (data[chosen], labels[chosen]), step).total
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            clock.tick()


def ours(state: TrainState, clock: Clock) -> None:
    """The library's loop."""
    state.move_average = clock.tick  # type: ignore[method-assign]
    loop._train(state, quiet=False)


def measure(run: Callable[[TrainState, Clock], None], recipe: Recipe, args: argparse.Namespace) -> float:
    """Images a second."""
    with tempfile.TemporaryDirectory() as folder:
        state = TrainState(recipe, Path(folder), loop.make_accelerator(recipe))
        clock = Clock(args.window, args.windows, args.device)
        with loop.deterministic(recipe.train.deterministic), suppress(DoneError):
            run(state, clock)
        torch._dynamo.reset()
    return float(args.batch / clock.seconds())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=float, default=1.5)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--windows", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "device": args.device, "batch": args.batch, "width": args.width,
        "machine": torch.cuda.get_device_name() if args.device == "cuda" else platform.platform(),
        "threads": torch.get_num_threads(), "torch": torch.__version__, "images_per_second": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "images.npz"
        generator = np.random.default_rng(0)
        shape = (args.images, 3, 32, 32)
        np.savez(data, x_train=generator.integers(0, 256, shape, np.uint8), y_train=np.arange(args.images) % 10)
        for method in args.methods:
            recipe = recipe_of(method, args, data)
            turns = [(measure(bare, recipe, args), measure(ours, recipe, args)) for _ in range(args.rounds)]
            plain, own = (statistics.median(x) for x in zip(*turns, strict=True))
            ratio = statistics.median(b / a for a, b in turns)
            row = {"bare": plain, "ours": own, "ratio": ratio, "rounds": turns}
            result["images_per_second"][method] = row
            print(f"{method:36} bare {plain:10.1f}  ours {own:10.1f} images/s  ratio {ratio:.3f}", flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
