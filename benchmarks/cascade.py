"""Does a cascade spend less time than its best width alone, image by image, and answer as well?

Question: of the network shipped as `cifar10-bn3`, on CIFAR-10's test images, one at a time, one thread: how long
does a cascade over three of its sizes take on average, as a share of the best size alone? The sizes' accuracies and
times, the score and the thresholds come from the 5,000 images that were held back from its training; the test images
are read once, at the end. Two ways to run it, each against its own best size alone: extracted networks by
`vnd.cascade`, with channels last in memory, and one ONNX file by `vnd.runtime.cascade`. Means over images of the
median processor time of three calls; the best size and the cascade take turns at blocks of 20 images.

    python benchmarks/cascade.py CIFAR [--out benchmarks/results/cascade-cpu.json] [--images 1000]

CIFAR holds `cifar-10-batches-bin`, the binary version of CIFAR-10.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import record
import vnd
from vnd.data.binary import read_cifar10

LEVELS, BLOCK, TURNS = 3, 20, 3
Answer = Callable[[Tensor], Any]


def pixels(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images between 0 and 1, and their classes."""
    images = read_cifar10(folder / "cifar-10-batches-bin", split)
    return torch.tensor(images.pixels).float() / 255, torch.tensor(images.labels)


def probabilities(ready: Any, shapes: list[vnd.Shape], x: Tensor) -> Tensor:
    """Those of all images at each size (sizes, N, classes), by posterior means."""
    parts = [part.numpy() for part in x.split(250)]
    return torch.stack(
        [torch.cat([torch.tensor(ready.predict(part, shape, samples=0).probs) for part in parts]) for shape in shapes]
    )


def uncertainty(probs: Tensor, score: str) -> Tensor:
    return torch.special.entr(probs).sum(-1) if score == "entropy" else 1 - probs.amax(-1)


def timed(calls: dict[str, Answer], images: Tensor) -> dict[str, float]:
    """Mean processor time of an image, in milliseconds, of each call: they take turns at blocks of images."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number, block in enumerate(images.split(BLOCK)):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times: list[list[float]] = [[] for _ in block]
            for _ in range(TURNS):  # the median of each image: other work on the machine disturbs single calls
                for own, image in zip(times, block.split(1), strict=True):
                    start = time.thread_time()
                    calls[name](image)
                    own.append(time.thread_time() - start)
            spent[name] += map(statistics.median, times)
    return {name: 1000 * statistics.mean(own) for name, own in spent.items()}


def ways(net: Any, shapes: list[vnd.Shape], ready: Any) -> dict[str, tuple[list[Answer], Callable[..., Answer]]]:
    """Ways to run it: the calls of each size alone, and the call of a cascade over some of them."""
    networks = [vnd.extract(net, shape).to(memory_format=torch.channels_last) for shape in shapes]
    macs = [row["macs"] for row in reversed(net.card["results"])]

    def eager(levels: tuple[int, ...], limits: tuple[float, ...], score: Any) -> Answer:
        some, costs = [networks[level] for level in levels], [macs[level] for level in levels]
        return lambda x: vnd.cascade(some, x, threshold=limits, macs=costs, score=score)

    def exported(levels: tuple[int, ...], limits: tuple[float, ...], score: Any) -> Answer:
        some = [shapes[level] for level in levels]
        return lambda x: vnd.runtime.cascade(ready, x.numpy(), some, threshold=limits, score=score)

    eagerly = [lambda x, one=one: vnd.predict(one, x, samples=0) for one in networks]
    from_file = [lambda x, shape=shape: ready.predict(x.numpy(), shape, samples=0) for shape in shapes]
    return {"eager": (eagerly, eager), "onnxruntime": (from_file, exported)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cascade-cpu.json"))
    parser.add_argument("--images", type=int, default=1000, help="test images that are timed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = vnd.load_pretrained("cifar10-bn3")
    held = net.card["data"]["validation"]
    x, y = (part[-held:] for part in pixels(args.cifar, "train"))
    test, labels = pixels(args.cifar, "test")
    shapes = [vnd.Shape(row["shape"]) for row in reversed(net.card["results"])]
    with tempfile.TemporaryDirectory() as folder:
        vnd.export(net, Path(folder) / "any.onnx", widths=shapes)
        ready = vnd.runtime.load(Path(folder) / "any.onnx", threads=1)
    held_probs, probs = probabilities(ready, shapes, x), probabilities(ready, shapes, test)
    right = (probs.argmax(2) == labels).double().mean(1)
    best = int((held_probs.argmax(2) == y).double().mean(1).argmax())
    picked = torch.randperm(len(test))[: args.images]
    some, shown = x[torch.randperm(len(x))[:100]], test[picked]
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name, (alone, through) in ways(net, shapes, ready).items():
            sizes = {str(place): call for place, call in enumerate(alone)}
            timed(sizes, some[:20])  # warm up
            costs = list(timed(sizes, some).values())
            chosen = choose(held_probs, y, costs, best)
            calls = {"alone": alone[best], "cascade": through(**chosen)}
            ms = timed(calls, shown)
            index, limits = torch.tensor(chosen["levels"]), chosen["limits"]
            unsure = uncertainty(probs, chosen["score"])
            step = answering(unsure[index], limits)
            answers = probs[index[step], torch.arange(len(test))]
            row = {"way": name, **chosen, "best": best, "ms_validation": costs, "ms": ms}
            row |= {"ratio": ms["cascade"] / ms["alone"], "test_alone": right.tolist()}
            row |= {"test": float((answers.argmax(1) == labels).double().mean())}
            row |= {"share": (torch.bincount(step, minlength=LEVELS) / len(test)).tolist()}
            row |= {"lost": row["test_alone"][best] - row["test"]}
            same = torch.as_tensor(calls["cascade"](shown).step) == step[picked]  # but for rounding
            assert same.double().mean() > 0.99, "the cascade that is timed is not the one that is scored"
            rows.append(row)
            print({key: row[key] for key in ("way", "levels", "score", "ratio", "ms", "lost", "share")}, flush=True)
    parameters = [row["parameters"] for row in reversed(net.card["results"])]
    command = f"python benchmarks/cascade.py CIFAR --images {args.images}"
    record.write(args.out, command, "cpu", images=args.images, parameters=parameters, rows=rows)


def choose(probs: Tensor, y: Tensor, costs: list[float], best: int) -> dict[str, Any]:
    """The sizes, the score and the thresholds of the cheapest cascade that loses nothing on validation images."""
    tried = []
    for score, levels in itertools.product(
        ("entropy", "confidence"), itertools.combinations(range(len(probs)), LEVELS)
    ):
        if best in levels:
            index, prices = torch.tensor(levels), torch.tensor([costs[level] for level in levels])
            unsure = uncertainty(probs[index], score)
            limits = vnd.metrics.cascade_thresholds(probs[index], unsure, prices, y)
            cost = float(prices.cumsum(0)[answering(unsure, limits)].mean())
            tried.append((cost, {"levels": levels, "score": score, "limits": limits}))
    return min(tried, key=lambda pair: pair[0])[1]


def answering(unsure: Tensor, limits: tuple[float, ...]) -> Tensor:
    """The step that answers each image."""
    accepted = unsure <= torch.tensor([*limits, float("inf")])[:, None]
    return accepted.to(torch.uint8).argmax(0)


if __name__ == "__main__":
    main()
