"""A trained run, opened again and evaluated: its results, their rows as files, and the size to choose."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vnd._files import write_json, write_text
from vnd.data.batches import Normalise
from vnd.data.images import Images
from vnd.serialization import load
from vnd.tasks import Evaluation, TrainedRun, task_of
from vnd.tasks.base import declare, machine
from vnd.tasks.trained import BestOrLast, bn_batches, read_splits
from vnd.train.config import parse_run
from vnd.train.recipe import Recipe, digest_of
from vnd.train.run import Log


def find_network(folder: Path, checkpoint: BestOrLast | None = None) -> tuple[Recipe, BestOrLast]:
    """The recipe of a run, and which of its networks is meant; refused where that is not there."""
    recipe = parse_run(folder)
    checkpoint = checkpoint or recipe.evaluate.checkpoint
    if not (folder / checkpoint / "network.json").exists():
        raise ValueError(f"{folder} has no {checkpoint} network yet; go on with vnd train --resume {folder}")
    return recipe, checkpoint


def open_run(folder: Path, checkpoint: BestOrLast | None = None, augmented: bool | None = None) -> TrainedRun:
    """Open a trained run, the network of one checkpoint; its images are read when they are first asked for.

    BatchNorm's statistics are collected from images that are `augmented` as in training or not. Of this and of the
    checkpoint None is what the recipe says.
    """
    recipe, checkpoint = find_network(folder, checkpoint)
    place = "cuda" if recipe.train.device != "cpu" and torch.cuda.is_available() else "cpu"  # wherever it was trained
    model: nn.Module = load(folder / checkpoint).to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    task, (_, mean, std) = task_of(recipe.method), fed(folder)
    read = cache(partial(read_splits, recipe.data, task))
    return TrainedRun(
        recipe.method, model, Normalise(mean, std, place),
        lambda images, repeat, augmented: bn_batches(recipe, read(), task, place, images, repeat, augmented),
        augmented, read, recipe, folder, checkpoint,
    )  # fmt: skip


def fed(folder: Path) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """Input of a run's network: channels, height and width, and the mean and std of its channels."""
    path = folder / "data.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        shape, mean, std = (tuple(about[key]) for key in ("image", "mean", "std"))
        if len(shape) != 3 or not len(mean) == len(std) == shape[0]:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: must say image, mean and std, as vnd train wrote them") from None
    return shape, mean, std


def results_of(
    run: TrainedRun, options: Evaluation, test: Images, command: str, done: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """Evaluate a run at its sizes, and say where it all comes from: what `results.json` holds.

    `command` is the user's; `done` is called again and again with a part of the work that the task says there is.
    """
    recipe, splits, task = run.recipe, run.splits, task_of(run.method)
    start = time.perf_counter()
    found = task.evaluate(dataclasses.replace(run, augmented=options.augmented), options, test, done)
    seconds = {"evaluate": round(time.perf_counter() - start, 2)}
    log = Log(run.folder / "metrics.jsonl").read()
    shown = ("step", "epoch", "loss", "nll", "kl", "mse", "rate")
    series = {
        "run": run.folder.resolve().name, "recipe": recipe_name(run.folder), "method": recipe.method_name,
        "network": recipe.network.name, "data": recipe.data.name, "seed": recipe.train.seed,
        "settings": settings_of(recipe),
    }  # fmt: skip
    seconds["train"] = training_seconds(log, recipe.train.batch)
    return {
        **declare(task, recipe.method_name, recipe.data.name), "machine": machine(run.device), **found,
        "seconds": seconds, "series": series,
        "title": recipe.about or f"{recipe.method_name} on {recipe.data.name}", "command": command,
        "checkpoint": run.checkpoint, "data": splits.about(recipe.data.name) | {"test": len(test)},
        "curves": [{key: row[key] for key in shown if key in row} for row in log if "loss" in row],
    }  # fmt: skip


def training_seconds(log: list[dict[str, Any]], batch: int) -> float:
    """Seconds of a run's steps, validation and checkpoints left out, from the speeds in its log."""
    seconds, before = 0.0, 0
    for row in log:
        if "images_per_second" in row:
            seconds += (row["step"] - before) * batch / max(row["images_per_second"], 1e-9)
            before = row["step"]
    return round(seconds, 1)


def settings_of(recipe: Recipe) -> str:
    """A short hash of what decides a training but its seed, its width and where it runs: runs of one curve have one.

    The width of an auto-encoder is the length of its code; a network that segments has all its sizes in one run.
    """
    given = recipe.to_dict()
    widths = task_of(recipe.method).widths
    for section, keys in (("train", ("seed", "device")), ("data", ("folder",)), widths):
        given[section] = {key: value for key, value in given[section].items() if key not in keys}
    del given["evaluate"]
    return digest_of(given)[:12]


def recipe_name(folder: Path) -> str | None:
    """The recipe that a run was begun with, as its command named it; None where it was not begun by one."""
    try:
        words = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["command"]
        name = words[words.index("train") + 1]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return None if not isinstance(name, str) or name.startswith("-") else Path(name).with_suffix("").as_posix()


def write(results: dict[str, Any], folder: Path) -> Path:
    """Write `results.json` and its tidy rows as `rows.csv`; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows([results], folder, as_json=False)
    write_json(folder / "results.json", results)  # last: who finds it takes the run for evaluated
    return folder / "results.json"


def write_rows(every: list[dict[str, Any]], folder: Path, as_json: bool = True) -> None:
    """Write the tidy rows of some results, what they are of in front, as `rows.csv` and `rows.json`."""
    rows, buffer = list[dict[str, Any]](), io.StringIO()
    for results in every:
        own = {"train_seed" if key == "seed" else key: x for key, x in (results.get("series") or {}).items()}
        rows += [own | row for row in results["tidy"]]
    table = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(folder / "rows.csv", buffer.getvalue())
    if as_json:
        write_json(folder / "rows.json", rows)


def choose(rows: list[dict[str, Any]], accuracy: dict[str, float], margin: float = 0.01) -> dict[str, Any]:
    """The row of the smallest network whose accuracy is within a margin of the largest's.

    The accuracy is that of each row's label on images that are not those of the test, the margin a share of these.
    """
    full = max(rows, key=lambda row: row["parameters"])
    least = accuracy[full["label"]] - margin - 1e-9  # 0.87 - 0.01 is a little more than 0.86
    good = [row for row in rows if accuracy[row["label"]] >= least]
    return min(good, key=lambda row: row["parameters"])
