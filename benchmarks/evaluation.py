"""What does an evaluation at ten widths cost, against plain forward passes of networks of the same sizes?

VGG11, converted to BN³, at the fractions .1 … 1 of its groups, on images as many and as large as CIFAR-10's test set.
The contestant runs the ten extracted networks, torch's own layers, over batches that lie on the device normalised,
under `inference_mode`, and keeps nothing. The evaluation is that of `vnd.tasks.classification`, as `vnd evaluate`
runs it with the means of the weights: it extracts, normalises, predicts, counts parameters and MACs, times single
images and scores the answers; with recalibration it collects BatchNorm's statistics for each width as well.
float32, channels last, the same batches. They take turns; medians over rounds, ratios within this run. A last round
says what each part takes.

    python benchmarks/evaluation.py [--device cuda] [--width 1.5] [--out benchmarks/results/evaluation-cpu.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vnd.tasks.classification as module
from vnd.data.batches import Normalise, in_order
from vnd.data.images import Images
from vnd.methods import BN3, Sizes
from vnd.models import build
from vnd.tasks import TrainedRun
from vnd.tasks.classification import ClassificationEvaluation, measure

FRACTIONS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 11))
# Parts that follow each other, of an evaluation and of a method; what is left is the evaluation's own.
PARTS = {
    "Pass": module,
    "scores": module,
    "latency": module,
    "recalibrate": BN3,
    "extract": BN3,
    "cost": BN3,
}


def random_images(count: int, seed: int) -> Images:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 3, 32, 32), np.uint8)
    return Images(pixels, np.arange(count) % 10, tuple(map(str, range(10))))


def make_run(args: argparse.Namespace, recalibrated: bool) -> TrainedRun:
    """An untrained network; with `recalibrated`, the evaluation collects the statistics of every width."""
    torch.manual_seed(0)
    method = BN3(base=2)
    network = build("vgg11", width=args.width)
    model = method.build(network, torch.randn(2, 3, 32, 32)).eval().to(args.device)
    model = model.to(memory_format=torch.channels_last)
    normalise = Normalise((0.5,) * 3, (0.25,) * 3, args.device)
    train = random_images(args.bn_images, seed=1)

    def batches(images: int, repeat: int, augmented: bool | None) -> Iterator[Tensor]:
        return in_order(train, normalise, args.device, min(512, args.bn_images))

    return TrainedRun(method, model, normalise, batches if recalibrated else None)


def options(args: argparse.Namespace) -> ClassificationEvaluation:
    return ClassificationEvaluation(
        Sizes(fractions=FRACTIONS), samples=0, inference=("mean",), bn_images=args.bn_images
    )


def plain_networks(run: TrainedRun, args: argparse.Namespace) -> list[nn.Module]:
    sizes = run.method.sizes(run.model, options(args).sizes)
    networks = [run.method.extract(run.model, size.width).eval() for size in sizes]
    return [network.to(memory_format=torch.channels_last) for network in networks]


@torch.inference_mode()
def plain_passes(networks: list[nn.Module], batches: list[Tensor]) -> Tensor:
    """What anybody would write; the last outputs, to see that they are numbers."""
    for network in networks:
        for x in batches:
            out: Tensor = network(x)
    return out


def whole_evaluation(run: TrainedRun, args: argparse.Namespace, test: Images) -> Tensor:
    """The rows of all widths."""
    rows = [measured.row for measured in measure(run, options(args), test)]
    return torch.tensor([[row["accuracy"], row["nll"], row["latency_ms"]] for row in rows])


def seconds(run: Callable[[], Tensor], device: str) -> float:
    """Time of one run; stops if a value is not finite."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronise()
    start = time.perf_counter()
    out = run()
    synchronise()
    taken = time.perf_counter() - start
    if not out.isfinite().all():
        raise SystemExit("a value is not finite")
    return taken


@contextmanager
def timed_parts(device: str, found: dict[str, float]) -> Iterator[None]:
    """Add up what each part takes, with a synchronisation before and after it."""
    before = {name: getattr(owner, name) for name, owner in PARTS.items()}

    def timed(name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            kept: list[Any] = []

            def call() -> Tensor:
                kept.append(before[name](*args, **kwargs))
                return torch.zeros(())

            found[name] = found.get(name, 0.0) + seconds(call, device)
            return kept[0]

        return run

    for name, owner in PARTS.items():
        setattr(owner, name, timed(name))
    try:
        yield
    finally:
        for name, owner in PARTS.items():
            setattr(owner, name, before[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=float, default=1.5)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--bn_images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    test = random_images(args.images, seed=0)
    bare, recalibrated = make_run(args, False), make_run(args, True)
    networks = plain_networks(bare, args)
    batches = list(in_order(test, bare.normalise, args.device))
    runs: dict[str, Callable[[], Tensor]] = {
        "passes": lambda: plain_passes(networks, batches),
        "evaluation": lambda: whole_evaluation(bare, args, test),
        "with recalibration": lambda: whole_evaluation(recalibrated, args, test),
    }
    warm = test.take(range(min(len(test), len(batches[0]))))
    plain_passes(networks, batches[:1])
    whole_evaluation(recalibrated, args, warm)
    turns = []
    for _ in range(args.rounds):
        turn = {name: seconds(run, args.device) for name, run in runs.items()}
        turns.append(turn)
        ratios = ", ".join(f"{name} {turn[name] / turn['passes']:.3f}" for name in runs if name != "passes")
        print(f"ten passes {turn['passes']:8.2f} s; times that: {ratios}", flush=True)
    parts: dict[str, float] = {}
    with timed_parts(args.device, parts):
        total = seconds(lambda: whole_evaluation(recalibrated, args, test), args.device)
    parts["the rest"] = total - sum(parts.values())
    parts["making batches, in passes"] = len(FRACTIONS) * seconds(
        lambda: torch.stack([x.sum() for x in in_order(test, bare.normalise, args.device)]), args.device
    )
    passes = statistics.median(turn["passes"] for turn in turns)
    result = {
        "command": " ".join(["python", *sys.argv]), "device": args.device, "width": args.width, "images": args.images,
        "bn_images": args.bn_images, "batch": len(batches[0]), "fractions": FRACTIONS,
        "machine": torch.cuda.get_device_name() if args.device == "cuda" else platform.platform(),
        "threads": torch.get_num_threads(), "torch": torch.__version__, "python": platform.python_version(),
        "seconds": {name: statistics.median(turn[name] for turn in turns) for name in runs},
        "ratio": {name: statistics.median(t[name] / t["passes"] for t in turns) for name in runs if name != "passes"},
        "rounds": turns,
        "parts": {"seconds": parts, "shares of the passes": {name: value / passes for name, value in parts.items()}},
    }  # fmt: skip
    for name, value in result["ratio"].items():
        print(f"{name:28} {value:8.3f} of ten passes, median")
    for name, value in sorted(parts.items(), key=lambda part: -part[1]):
        print(f"  {name:26} {value:8.3f} s {value / passes:8.3f} of ten passes")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {args.out}")


if __name__ == "__main__":
    main()
