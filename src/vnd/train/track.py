"""Trackers: what a run logs, sent to TensorBoard, Trackio, W&B and others through Hugging Face Accelerate.

All that they write stays in RUN/trackers: vnd/ of TensorBoard, trackio/, and wandb/, which `wandb sync` sends. A run
that goes on goes on in its trackers as well, by an id of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vnd._text import check_known, one_line
from vnd.train.recipe import Recipe, digest_of

PROJECT, FOLDER = "vnd", "trackers"


def options(names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Arguments of an `Accelerator` that has these trackers; one that is unknown or not installed is refused."""
    if not names:
        return {}
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    shipped = [str(kind.value) for kind in LoggerType if kind != LoggerType.ALL]
    installed = [str(kind.value) for kind in get_available_trackers()]
    for name in names:
        check_known("train.track", name, dict.fromkeys((*shipped, *LOGGER_TYPE_TO_CLASS)))
        if name in shipped and name not in installed:
            raise ModuleNotFoundError(f"train.track: {name} is not installed; pip install {name}")
    return {"log_with": list(dict.fromkeys(names)), "project_dir": str(folder / FOLDER)}


def start(accelerator: Any, recipe: Recipe, folder: Path, step: int) -> None:
    """Begin to track a run, or go on behind a step, which was logged; in the first process alone."""
    if not recipe.train.track or not accelerator.is_main_process:
        return
    place = (folder / FOLDER).resolve()
    place.mkdir(parents=True, exist_ok=True)  # W&B writes elsewhere if there is none
    name = run_id(recipe, folder)
    if "trackio" in recipe.train.track:
        _set_folder_of_trackio(place / "trackio")
    if "wandb" in recipe.train.track:
        os.environ["WANDB_CACHE_DIR"] = str(place)  # for wandb/logs
    mode = os.environ.get("WANDB_MODE", "offline")
    options = {
        "tensorboard": {"purge_step": step + 1} if step else {},  # what was logged after the checkpoint
        "trackio": {"name": name, "resume": "allow"},
        "wandb": {"dir": str(place), "id": name, "name": folder.resolve().name, "resume": "allow", "mode": mode},
    }
    try:
        accelerator.init_trackers(PROJECT, flat(recipe.to_dict()) if step == 0 else None, options)
    except Exception as error:  # of a tracker's own kind
        names = ", ".join(recipe.train.track)
        raise OSError(f"train.track: {names} cannot begin to track {folder}: {one_line(error)}") from error


def run_id(recipe: Recipe, folder: Path) -> str:
    """Hash of a run: of its place and of what decides it, but the number of epochs, which may be changed on the way."""
    decides = digest_of(recipe.with_train(epochs=1).to_dict())
    return hashlib.sha256(f"{decides} {folder.resolve()}".encode()).hexdigest()[:16]


def flat(row: dict[str, Any], prefix: str = "") -> dict[str, float | int | str]:
    """A row with one level of keys, as trackers take it; what is neither a number nor text as words.

    >>> flat({"step": 3, "validation": {"50 %": 0.9}, "sizes": [1, 2], "clip": None})
    {'step': 3, 'validation/50 %': 0.9, 'sizes': '[1, 2]', 'clip': 'None'}
    """
    found: dict[str, float | int | str] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}/")
        else:
            found[prefix + key] = value if isinstance(value, int | float | str) else str(value)
    return found


def _set_folder_of_trackio(folder: Path) -> None:
    """Tell Trackio where to write, which it asks for once a process, when it is loaded."""
    if "trackio" not in sys.modules:
        os.environ["TRACKIO_DIR"] = str(folder)
    elif (held := os.environ.get("TRACKIO_DIR")) != str(folder):
        raise ValueError(
            f"train.track: trackio writes to one folder a process, here {held or 'its own'}; train in another process"
        )
