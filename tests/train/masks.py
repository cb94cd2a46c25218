"""Recipes that segment in a second: a few of the made-up images, small UNets."""

from __future__ import annotations

from typing import Any

import pytest

from vnd.data import synthetic
from vnd.train.config import parse
from vnd.train.recipe import Recipe

CHANNELS = [4, 8]
UNET = {"name": "unet", "channels": CHANNELS}
PUNET = {"name": "probabilistic_unet", "channels": CHANNELS, "latent": 6}
METHODS: dict[str, dict[str, Any]] = {
    "vnd_punet": {"method": {"name": "vnd_punet"}, "network": PUNET},
    "punet": {"method": {"name": "punet"}, "network": PUNET},
    "bn3_unet": {"method": {"name": "bn3_unet", "num_groups": 4, "base": 1, "measure_every": 2}, "network": UNET},
    "unet_ensemble": {"method": {"name": "unet_ensemble", "members": 2}, "network": UNET},
    "dropout_unet": {"method": {"name": "dropout_unet"}, "network": UNET},
}


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave few of the made-up images."""
    monkeypatch.setattr(synthetic, "COUNTS", {"train": 48, "test": 12})


def settings(name: str, /, **sections: Any) -> dict[str, Any]:
    """A recipe of a method as a dict; each section may be replaced, others than method and network key by key."""
    own: dict[str, Any] = {
        **METHODS[name],
        "data": {"name": "synthetic_graders", "validation": 16, "augment": {"flip": True}},
        "optimizer": {"name": "adam", "lr": 0.01, "chain_lr": 0.02 if name == "bn3_unet" else None},
        "schedule": {"kl_weight": {"start": 0.5}},
        "train": {"epochs": 1, "batch": 16, "device": "cpu", "log_every": 1, "validate_at": [0.34, 1.0]},
        "evaluate": {"sizes": {"fractions": [0.34, 1.0]}, "bn_images": 16, "num_mask_samples": [1, 2, 4]},
    }
    for section, part in sections.items():
        own[section] = part if section in ("method", "network") else {**own[section], **part}
    return own


def recipe(name: str, /, **sections: Any) -> Recipe:
    return parse(settings(name, **sections))
