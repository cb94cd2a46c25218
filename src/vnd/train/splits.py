"""The images of a run: those that it trains on, those that it holds out, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vnd.data.batches import Normalise
from vnd.data.images import Images, fit_to, hold_out
from vnd.data.registry import load
from vnd.tasks import Task
from vnd.train.recipe import Data


@dataclass(frozen=True)
class Splits:
    """The images that a recipe trains on and those it holds out, and what brings pixels to the network."""

    train: Images
    validation: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_groups: tuple[str, ...] = ()

    def normalise(self, device: torch.device | str) -> Normalise:
        """From pixels to what the network is fed."""
        return Normalise(self.mean, self.std, device)


def read_splits(data: Data, task: Task) -> Splits:
    """Read the training images of a recipe, and hold out those of validation; the task scales pixels."""
    images = load(data.name, "train", None if data.folder is None else Path(data.folder))
    task.check_data(images, data)
    images = images if data.size is None else fit_to(images, images.pixels.shape[1], data.size)
    if data.validation >= len(images):
        raise ValueError(f"data.validation must be less than the {len(images)} training images; got {data.validation}")
    train, validation = hold_out(images, data.validation, data.split_seed, data.split)
    if data.limit is not None and data.limit < len(train):
        _, train = hold_out(train, data.limit, data.split_seed)
    known = set() if images.groups is None else set(images.groups.tolist())
    elsewhere = tuple(name for number, name in enumerate(images.group_names) if number not in known)
    return Splits(train, validation, *task.moments(train), elsewhere)


def groups_of(splits: Splits) -> dict[str, Any]:
    """Whose images are on which side, where they have groups, such as patients: by name, or else by number.

    Those of the test images are known by name only: all that are not of the training split.
    """
    sides = {}
    for side, images in (("train", splits.train), ("validation", splits.validation)):
        if images.groups is None:
            return {}
        numbers = np.unique(images.groups).tolist()
        sides[side] = [images.group_names[number] for number in numbers] if images.group_names else numbers
    return {"groups": sides | ({"test": list(splits.test_groups)} if splits.test_groups else {})}
