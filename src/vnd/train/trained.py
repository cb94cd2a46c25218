"""A trained run, opened again: its recipe, its network, and the data that it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vnd.data.images import Images, fit_to
from vnd.data.registry import DATASETS
from vnd.data.registry import load as load_images
from vnd.methods import Size
from vnd.serialization import load
from vnd.tasks import Subject, Sweep, task_of
from vnd.tasks.base import BestOrLast, declare
from vnd.train.config import parse_run
from vnd.train.recipe import Recipe, digest_of
from vnd.train.run import Log
from vnd.train.splits import Splits, read_splits
from vnd.train.state import calibration


@dataclass(frozen=True)
class TrainedRun:
    """A run's folder, with the network in evaluation mode on its device."""

    folder: Path
    checkpoint: BestOrLast
    recipe: Recipe
    model: nn.Module
    splits: Splits
    device: torch.device

    def test(self) -> Images:
        """The test images, of the size that the network was trained on."""
        data = self.recipe.data
        images = load_images(data.name, "test", None if data.folder is None else Path(data.folder))
        return images if data.size is None else fit_to(images, images.pixels.shape[1], data.size)

    def outside(self, options: Sweep) -> Images | None:
        """The images out of domain, brought to the size and the channels of the training images."""
        if options.ood is None:
            return None
        folder = None if options.ood_folder is None else Path(options.ood_folder)
        channels, height, size = self.splits.train.pixels.shape[1:]
        if height != size:
            raise ValueError(
                f"evaluate.ood: other images can be brought to squares only, and these are {height}×{size}"
            )
        return fit_to(load_images(options.ood, "test", folder), channels, size)

    def truth(self, images: Images) -> tuple[Tensor, Tensor] | None:
        """What the graders of the test images draw from, where that is known, in the size that it is known in."""
        known, data = DATASETS[self.recipe.data.name].truth, self.recipe.data
        if known is None or data.size is not None or images is self.splits.validation:
            return None
        masks, probs = known("test")
        return torch.from_numpy(masks), torch.from_numpy(probs)

    def subject(self, augmented: bool | None = None) -> Subject:
        """The network, as a sweep takes it; by statistics of augmented images or not, None for what the recipe says."""

        def statistics(images: int, repeat: int) -> Iterator[Tensor]:
            return calibration(self.recipe, self.splits, self.device, images, repeat, augmented)

        normalise, images = self.splits.normalise(self.device), len(self.splits.train)
        return Subject(
            self.recipe.method, self.model, normalise, statistics, images,
            self.splits.validation, self.outside, self.truth, self.recipe.augmented(augmented),
        )  # fmt: skip

    def cut(self, size: Size, samples: int, augmented: bool | None = None) -> nn.Module:
        """The network of a size, calibrated."""
        subject = self.subject(augmented)
        return subject.cut(size, samples, subject.images(self.recipe.evaluate.bn_images), 0)

    def results(self, options: Sweep, test: Images, command: str, done: Any = None) -> dict[str, Any]:
        """Sweep over sizes or lengths, and say where it all comes from: what `results.json` holds."""
        task = task_of(self.recipe.method)
        found = task.evaluate(self.subject(options.augmented), options, test, done or (lambda count: None))
        log = Log(self.folder / "metrics.jsonl").read()
        data = {
            "name": self.recipe.data.name, "train": len(self.splits.train), "validation": len(self.splits.validation),
            "test": len(test), "classes": list(test.classes), "image": list(test.pixels.shape[1:]),
        }  # fmt: skip
        curves = [
            {k: row[k] for k in ("step", "epoch", "loss", "nll", "kl", "mse", "rate") if k in row}
            for row in log
            if "loss" in row
        ]
        title = self.recipe.about or f"{self.recipe.method_name} on {self.recipe.data.name}"
        series = {
            "run": self.folder.resolve().name, "recipe": recipe_name(self.folder), "method": self.recipe.method_name,
            "network": self.recipe.network.name, "data": self.recipe.data.name, "seed": self.recipe.train.seed,
            "settings": settings_of(self.recipe),
        }  # fmt: skip
        found["seconds"] |= {"train": training_seconds(log, self.recipe.train.batch)}
        return {
            **declare(self.recipe.method.task, self.recipe.method_name, self.recipe.data.name), **found,
            "series": series, "title": title, "command": command,
            "checkpoint": self.checkpoint, "data": data, "curves": curves,
        }  # fmt: skip


def training_seconds(log: list[dict[str, Any]], batch: int) -> float:
    """What the steps of a run took, validation and checkpoints left out, from the speeds in its log."""
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


def find_network(folder: Path, checkpoint: BestOrLast | None = None) -> tuple[Recipe, BestOrLast]:
    """The recipe of a run, and which of its networks is meant; refused where that is not there."""
    recipe = parse_run(folder)
    checkpoint = checkpoint or recipe.evaluate.checkpoint
    if not (folder / checkpoint / "network.json").exists():
        raise ValueError(f"{folder} has no {checkpoint} network yet; go on with vnd train --resume {folder}")
    return recipe, checkpoint


def open_run(folder: Path, checkpoint: BestOrLast | None = None) -> TrainedRun:
    """Open a trained run.

    Args:
        folder: The run.
        checkpoint: The network with the best validation score, or the last; None for what the recipe says.
    """
    recipe, checkpoint = find_network(folder, checkpoint)
    model, device = load_network(folder / checkpoint, recipe)
    return TrainedRun(folder, checkpoint, recipe, model, read_splits(recipe.data, task_of(recipe.method)), device)


def load_network(folder: Path, recipe: Recipe) -> tuple[nn.Module, torch.device]:
    """A network of a run, in evaluation mode: trained on a GPU or not, it is brought to what there is."""
    place = "cuda" if recipe.train.device != "cpu" and torch.cuda.is_available() else "cpu"
    model: nn.Module = load(folder).to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, torch.device(place)


def fed(folder: Path) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """What the network of a run is fed: channels, height and width, and the mean and deviation of its channels."""
    path = folder / "data.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        shape, mean, std = (tuple(about[key]) for key in ("image", "mean", "std"))
        if len(shape) != 3 or not len(mean) == len(std) == shape[0]:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: must say image, mean and std, as vnd train wrote them") from None
    return shape, mean, std
