"""A trained run: its network, the images that it was trained on and held out, and BatchNorm's statistics from these."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vnd.data.batches import ROOM, Batches, Normalise, in_order, key
from vnd.data.images import Images, digest, fit_to, hold_out
from vnd.data.registry import find, is_own, load
from vnd.methods import Method, Size
from vnd.nn.extract import Keep

if TYPE_CHECKING:
    from vnd.tasks.base import Task

BestOrLast = Literal["best", "last"]


@dataclass(frozen=True)
class Splits:
    """The images that a recipe trains on and those it holds out, and what brings pixels to the network."""

    train: Images
    validation: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_groups: tuple[str, ...] = ()
    sha256: str | None = None  # of all training images, where they are the user's own

    def normalise(self, device: torch.device | str) -> Normalise:
        """From pixels to what the network is fed."""
        return Normalise(self.mean, self.std, device)

    def about(self, name: str) -> dict[str, Any]:
        """Describe the images of a run, which are of the data set of a name."""
        return {
            "name": name, "train": len(self.train), "validation": len(self.validation),
            "classes": list(self.train.classes), "image": list(self.train.pixels.shape[1:]),
        }  # fmt: skip

    def check_same(self, folder: Path) -> None:
        """Refuse images of the user's own that are not those that a run was trained on."""
        try:
            known = json.loads((folder / "data.json").read_text(encoding="utf-8")).get("sha256")
        except (OSError, ValueError, AttributeError):
            known = None
        if known is not None and known != self.sha256:
            raise ValueError(
                f"{folder} was trained on other images than data.name gives now: their SHA-256 was {known[:12]}… and "
                f"is {str(self.sha256)[:12]}…; give it the same ones, or train anew"
            )

    def groups(self) -> dict[str, Any]:
        """Groups on either side of the split, such as patients: by name, or else by number.

        Those of the test images are known by name only: all that are not of the training split.
        """
        sides = {}
        for side, images in (("train", self.train), ("validation", self.validation)):
            if images.groups is None:
                return {}
            sides[side] = named_groups(images, np.unique(images.groups))
        return {"groups": sides | ({"test": list(self.test_groups)} if self.test_groups else {})}


def named_groups(images: Images, numbers: NDArray[np.int64]) -> list[str] | list[int]:
    """Groups of images by their names, or else by their numbers."""
    return [images.group_names[number] for number in numbers] if images.group_names else list(numbers.tolist())


def read_splits(data: Any, task: Task) -> Splits:
    """Read the training images that a recipe's section says, and hold out some; the task scales pixels."""
    images = load(data.name, "train", None if data.folder is None else Path(data.folder), data.options)
    task.check_data(images, data)
    sha256 = digest(images) if is_own(data.name) else None
    images = images if data.size is None else fit_to(images, images.pixels.shape[1], data.size)
    if data.validation >= len(images):
        raise ValueError(f"data.validation must be less than the {len(images)} training images; got {data.validation}")
    train, validation = hold_out(images, data.validation, data.split_seed, data.split)
    if data.limit is not None and data.limit < len(train):
        _, train = hold_out(train, data.limit, data.split_seed)
    known = set() if images.groups is None else set(images.groups.tolist())
    elsewhere = tuple(name for number, name in enumerate(images.group_names) if number not in known)
    return Splits(train, validation, *task.moments(train), elsewhere, sha256)


def bn_batches(
    recipe: Any,
    splits: Splits,
    task: Task,
    device: torch.device | str,
    images: int | None = None,
    repeat: int = 0,
    augmented: bool | None = None,
) -> Iterator[Tensor]:
    """Batches of training images that BatchNorm's statistics are collected from, always the same ones.

    Args:
        recipe: That of the run.
        splits: Its images.
        task: Its task, which says how large a batch is.
        device: Where the batches go.
        images: How many, 0 for all; None for what the recipe says.
        repeat: Which choice of them.
        augmented: As in training, in batches that are all alike large, or as they are in a test; None for what the
            recipe says.
    """
    wanted = recipe.evaluate.bn_images if images is None else images
    count = min(wanted or len(splits.train), len(splits.train))
    seed = key(recipe.train.seed, "calibration", *([repeat] if repeat else []))
    chosen = np.random.default_rng(seed).permutation(len(splits.train))[:count]
    parts = math.ceil(count / task.bn_batch(recipe.train.batch))
    if recipe.augmented(augmented):
        normal, augment = (splits.mean, splits.std), recipe.data.augment
        batches = Batches(splits.train.take(chosen), count // parts, seed, *normal, device, augment)
        yield from (batches.at(number)[0] for number in range(parts))
        return
    for part in np.array_split(chosen, parts):  # as even as can be: each counts as much as another
        yield from in_order(splits.train.take(part), splits.normalise(device), device, len(part))


@dataclass(frozen=True)
class TrainedRun:
    """A trained network in evaluation mode, and what it takes to run it; `vnd.evaluation.open_run` opens one.

    Args:
        method: What it was made and trained by.
        model: The network, on its device.
        normalise: From pixels to what it is fed.
        bn_batches: Batches of training images that BatchNorm's statistics are collected from: so many, 0 for all; other
            ones in each repeat; augmented or not. None where the network has its statistics.
        augmented: Whether these are augmented as in training; None for what the recipe says.
        read: Reads the images that it was trained on and those held out, once.
        recipe: All that decided it, a `vnd.train.recipe.Recipe`.
        folder: Where it is kept, and
        checkpoint: which of its networks this is.
        kept: The batches for BatchNorm's statistics that were made last, where they have room: every size has the same.
    """

    method: Method
    model: nn.Module
    normalise: Normalise
    bn_batches: Callable[[int, int, bool | None], Iterable[Tensor]] | None = None
    augmented: bool | None = None
    read: Callable[[], Splits] | None = None
    recipe: Any = None
    folder: Path = Path()
    checkpoint: BestOrLast = "best"
    kept: dict[Any, list[Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.model.parameters()).device

    @property
    def splits(self) -> Splits:
        """The images that it was trained on and those held out."""
        if self.read is None:
            raise ValueError("evaluate: this run does not know the images that it was trained on")
        return self.read()

    def test(self) -> Images:
        """The test images, of the size that the network was trained on."""
        data = self.recipe.data
        images = load(data.name, "test", None if data.folder is None else Path(data.folder), data.options)
        return images if data.size is None else fit_to(images, images.pixels.shape[1], data.size)

    def outside(self, options: Any) -> Images | None:
        """The images out of domain, brought to the size and the channels of the training images."""
        if options.ood is None:
            return None
        folder = None if options.ood_folder is None else Path(options.ood_folder)
        channels, height, size = self.splits.train.pixels.shape[1:]
        if height != size:
            raise ValueError(
                f"evaluate.ood: other images can be brought to squares only, and these are {height}×{size}"
            )
        return fit_to(load(options.ood, "test", folder, options.ood_options), channels, size)

    def truth(self, images: Images) -> tuple[Tensor, Tensor] | None:
        """Distribution that the test images' graders draw from, where it is known, in the size that it is known in."""
        if (data := self.recipe and self.recipe.data) is None:
            return None
        known = find(data.name, "evaluate", data.options).truth
        if known is None or data.size is not None or images is self.splits.validation:
            return None
        masks, probs = known("test")
        return torch.from_numpy(masks), torch.from_numpy(probs)

    def bn_images(self, wanted: int) -> int:
        """Number of images that the statistics are collected from where so many are wanted, 0 for all."""
        available = wanted if self.read is None else len(self.splits.train)
        return min(wanted or available, available)

    def about(self) -> dict[str, Any]:
        """Describe a run beside what was made of it: method, data and network, with the checksum of this."""
        manifest = json.loads((self.folder / self.checkpoint / "network.json").read_text(encoding="utf-8"))
        network = {"name": self.recipe.network.name, "checksum": manifest["checksum"]}
        return {
            "method": self.recipe.method_name, "data": self.recipe.data.name, "checkpoint": self.checkpoint,
            "network": network,
        }  # fmt: skip

    def recalibrate(self, size: Size, samples: bool, bn_images: int, repeat: int = 0) -> None:
        """Give BatchNorm the statistics of a size, as if it were the only one."""
        if self.bn_batches is not None:
            with repeatable(repeat):
                batches = partial(self._bn_batches, bn_images, repeat)
                self.method.recalibrate(self.model, batches, [size.width], samples=samples)

    def _bn_batches(self, bn_images: int, repeat: int) -> Iterator[Tensor]:
        """Batches of so many images; made once, if they have room."""
        assert self.bn_batches is not None  # `recalibrate` has looked
        key = self.bn_batches, bn_images, repeat, self.augmented
        if key in self.kept:
            yield from self.kept[key]
            return
        held, size = list[Tensor](), 0
        for batch in self.bn_batches(bn_images, repeat, self.augmented):
            size += batch.nbytes
            held = [*held, batch] if size <= ROOM else []
            yield batch
        self.kept.clear()
        if size <= ROOM:
            self.kept[key] = held

    def extract(self, size: Size, keep: Keep = "mean", bn_images: int | None = None, repeat: int = 0) -> nn.Module:
        """The network of a size, with its statistics from so many images; None for what the recipe says."""
        wanted = self.recipe.evaluate.bn_images if bn_images is None else bn_images
        for samples in (False, True) if keep == "nested" else (keep == "posterior",):
            self.recalibrate(size, samples, wanted, repeat)
        return self.method.extract(self.model, size.width, keep)

    def batches(self, images: Images) -> Iterator[Tensor]:
        """The images of a split in their order, as the network is fed."""
        return in_order(images, self.normalise, self.device)


@contextmanager
def repeatable(seed: int = 0) -> Iterator[None]:
    """Draw the same numbers as the last time; the global generators are left as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
