"""`vnd export`: a run's network as files that run without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import rich
import torch
from torch import Tensor

from vnd._export import export as write
from vnd._export.coded import is_coded
from vnd._export.int8 import AccuracyError
from vnd._text import say, table
from vnd.data.batches import key
from vnd.data.images import Images
from vnd.evaluation import open_run
from vnd.methods import Size
from vnd.methods.base import Single
from vnd.nn import shape
from vnd.nn.state import unwrap
from vnd.pretrained import FromPixels
from vnd.tasks import TrainedRun
from vnd.tasks.trained import BestOrLast


def export(
    run: Path,
    widths: tuple[float, ...] = (1.0, 0.5, 0.25),
    parameters: float | None = None,
    posterior: bool | None = None,
    int8: bool = False,
    loss: float = 0.01,
    images: int = 1000,
    augmented: bool | None = None,
    checkpoint: BestOrLast | None = None,
    out: Path | None = None,
) -> None:
    """Write a trained run's network to files that run without torch, each checked against torch at every width.

    any.onnx has all widths, as an input, and draws from the posterior where there is one; w-WIDTH.onnx has one. They
    take pixels between 0 and 1. export.json tells their bytes, inputs, accuracy and time. An auto-encoder gives
    decoder.onnx, a probabilistic UNet masks-features.onnx and masks-combine.onnx, for normalised images.

    Example: vnd export runs/first --widths 1,0.5,0.25 --int8

    Args:
        run: Folder of the run.
        widths: Shares of every layer, in (0, 1].
        parameters: At most so many parameters instead: one file, of the learned shape that fits.
        posterior: Whether any.onnx draws from the posterior; as the method has one if not given.
        int8: Write each width in eight bits as well, quantized with training images.
        loss: How much of the accuracy eight bits may cost; more is refused.
        images: Test images to measure the accuracy on, drawn at random.
        augmented: Collect BatchNorm's statistics from images that are augmented as in training; as the recipe says if
            not given.
        checkpoint: The network with the best validation accuracy, or the last; as the recipe says if not given.
        out: Folder of the files; RUN/export if not given.
    """
    if images < 1:
        raise ValueError(f"export: images must be at least 1; got {images}")
    opened, folder = open_run(run, checkpoint, augmented), out or run / "export"
    model = opened.model
    if is_coded(unwrap(model)):
        name = "masks.onnx" if hasattr(unwrap(model), "combine") else "decoder.onnx"
        write(model, folder / name, card=_card(opened))
        say(f"files: {folder.resolve()}")
        return
    test = opened.test()
    net, check = _from_pixels(opened, test), _check(opened, test, images)
    common: dict[str, Any] = {"check": check, "example_input": check[0][:2]}
    known: dict[str, dict[str, Any]] = {}
    refused: list[str] = []

    def add(name: str, **options: Any) -> None:
        known[name] = write(net, folder / name, **common, **options)

    batches = _pixels(opened, opened.splits.train, 256) if int8 else None
    if isinstance(opened.method, Single):
        add("network.onnx")
    else:
        draws = bool(getattr(opened.method, "bayesian", False)) if posterior is None else posterior
        sizes = [
            (f"{width:g}", Size("uniform", f"fraction {width:.10g}", shape(model, fraction=width))) for width in widths
        ]
        if parameters is not None:
            chosen = shape(model, parameters=parameters)
            sizes = [(f"parameters-{parameters:.10g}", Size("learned", f"parameters {parameters:.10g}", chosen))]
        for _, size in sizes:
            for samples in (False, True) if draws else (False,):
                opened.recalibrate(size, samples, opened.recipe.evaluate.bn_images)
        net = _from_pixels(opened, test)  # a copy, with the statistics
        given = [*widths] if parameters is None else [size.width for _, size in sizes]
        add("any.onnx", widths=given, posterior=draws)
        named = [(name, width) for (name, _), width in zip(sizes, given, strict=True)]
        for name, width in named:
            add(f"w-{name}.onnx", width=width)
        for name, width in named if batches is not None else ():
            try:
                add(f"w-{name}-int8.onnx", width=width, int8=[batches], loss=loss)
            except AccuracyError as error:
                refused.append(f"w-{name}-int8.onnx: {str(error).removeprefix('export: ')}")
    columns = ("file", "form", "width", "bytes", "parameters", "accuracy", "CPU time")
    shown = table(columns, left=columns[:2], title=f"exported from {run}, on {len(check[1]):,} test images")
    for name, entry in known.items():
        for row in entry["widths"]:
            cost = f"{entry['bytes']:,}", f"{row['parameters']:,}", f"{row['accuracy']:.1%}", _time(entry, row)
            shown.add_row(name, entry["form"], _words(row), *cost)
    rich.print(shown)
    say(f'files: {folder.resolve()}\nrun them: vnd.runtime.load("{folder / next(iter(known))}")')
    if refused:
        raise ValueError(f"export: {'; '.join(refused)}")


def _time(entry: dict[str, Any], row: dict[str, Any]) -> str:
    """The processor time of a width beside the widest of its file, or of eight bits beside floating point."""
    if entry["form"] == "int8":
        return f"{row['time_to_float']:.2f} of float"
    return f"{row['time_ratio']:.2f}" if len(entry["widths"]) > 1 else "–"


def _words(row: dict[str, Any]) -> str:
    if row["fraction"] is not None:
        return f"{row['fraction']:g}"
    return "learned" if row["shape"] else "whole"


def _from_pixels(opened: TrainedRun, test: Images) -> FromPixels:
    """The network with its normalisation in front."""
    splits = opened.splits
    about = {"mean": splits.mean, "std": splits.std, "image": list(test.pixels.shape[1:])}
    net = FromPixels(unwrap(opened.model).cpu(), about | {"classes": splits.train.classes, "card": _card(opened)})
    return net.eval()


def _card(opened: TrainedRun) -> dict[str, Any]:
    return opened.about()


def _check(opened: TrainedRun, test: Images, images: int) -> tuple[Tensor, Tensor]:
    """Random test images, between 0 and 1, and their classes."""
    if test.labels is None:
        raise ValueError("export: the run's test images have no classes to measure the accuracy on")
    chosen = np.random.default_rng(key(opened.recipe.train.seed, "export")).permutation(len(test))[:images]
    part = test.take(chosen)
    assert part.labels is not None
    return _pixels(opened, part, len(part)), torch.from_numpy(part.labels.astype(np.int64))


def _pixels(opened: TrainedRun, images: Images, count: int) -> Tensor:
    """Images between 0 and 1."""
    chosen = (
        np.random.default_rng(0).permutation(len(images))[:count] if len(images) > count else np.arange(len(images))
    )
    return torch.from_numpy(np.ascontiguousarray(images.take(chosen).pixels)).float() / 255
