"""Recipes that train in a second: blobs of light in one of three corners, and a small CNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vnd.methods import METHODS
from vnd.tasks import task_of
from vnd.train.config import parse
from vnd.train.recipe import Recipe

CLASSES = 3


def blobs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey images of 8×8 with noise, and a bright corner that says the class."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = generator.integers(0, 120, (count, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 90
    return images, labels


def write_blobs(path: Path, train: int = 97, test: int = 33) -> Path:
    (x, y), (tx, ty) = blobs(train, 0), blobs(test, 1)
    np.savez(path, x_train=x, y_train=y, x_test=tx, y_test=ty)
    return path


def settings(path: Path, /, **sections: Any) -> dict[str, Any]:
    """A recipe as a dict; each section may be replaced key by key."""
    own: dict[str, Any] = {
        "method": {"name": "bn3", "num_groups": 4, "measure_every": 2},
        "network": {
            "name": "convnet", "width": 0.15, "image_size": 8, "in_channels": 1, "num_classes": CLASSES, "hidden": 32
        },
        "data": {"name": "npz", "folder": str(path), "validation": 16, "augment": {"pad": 1}},
        "optimizer": {"name": "adam", "lr": 0.01, "chain_lr": 0.02},
        "schedule": {"kl_weight": {"start": 0.001}},
        "train": {"epochs": 2, "batch": 16, "device": "cpu", "log_every": 2, "validate_at": [0.5, 1.0]},
        "evaluate": {"sizes": {"fractions": [0.5, 1.0], "learned": 2}, "samples": 2, "bn_images": 64},
    }  # fmt: skip
    for name, part in sections.items():
        own[name] = part if "name" in part and name in ("method", "network") else {**own[name], **part}
    if task_of(METHODS[own["method"]["name"]]).name != "classification":
        own["evaluate"].pop("samples")
    return own


def recipe(path: Path, /, **sections: Any) -> Recipe:
    return parse(settings(path, **sections))
