"""`vnd train`: from a recipe to a trained network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vnd._text import say
from vnd.train.config import parse, parse_run
from vnd.train.loop import fit
from vnd.train.recipe import Recipe


def train(
    recipe: str = "",
    out: Path | None = None,
    resume: Path | None = None,
    new_epochs: int | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Train a recipe, any of its keys replaced on the way; Ctrl-C saves, and the run can go on.

    Examples: vnd train fashion/bn3 --out runs/first --train.epochs 2
              vnd train --resume runs/first
              vnd train --resume runs/first --new_epochs 4
              torchrun --nproc-per-node 2 -m vnd train cifar10/vgg11-bn3 --data.folder data

    Args:
        recipe: A name of `vnd recipes`, or a YAML file.
        out: Folder of the run; runs/RECIPE-SEED if not given.
        resume: Folder of a run that was stopped, to go on with; then there is no recipe.
        new_epochs: With --resume: go on to this number of epochs, in place of the one that the run began with.
        overrides: Keys to replace: --train.epochs 2.
    """
    if new_epochs is not None and not resume:
        raise ValueError("train: --new_epochs is for --resume RUN; to begin, give --train.epochs")
    settings, folder = _resumed(resume, recipe, out, overrides) if resume else _begun(recipe, out, overrides)
    changed = new_epochs is not None and new_epochs != settings.train.epochs
    if new_epochs is not None:
        settings = settings.with_train(epochs=new_epochs)
    if (folder / "last" / "network.json").exists() and not changed:
        say(f"{folder} is finished; evaluate it with: vnd evaluate {folder}")
        return
    if not fit(settings, folder, new_epochs=new_epochs is not None):
        raise KeyboardInterrupt(f"saved in {folder}; go on with: vnd train --resume {folder}")
    if os.environ.get("RANK", "0") == "0":  # of the processes of a launcher, one speaks
        say(f"done: {folder}\nevaluate it with: vnd evaluate {folder}")


def _begun(name: str, out: Path | None, overrides: Sequence[str]) -> tuple[Recipe, Path]:
    if not name:
        raise ValueError("train: give a recipe, a name of `vnd recipes` or a YAML file; or --resume RUN")
    recipe = parse(name, overrides)
    plain = Path(name).with_suffix("").as_posix().strip("/.").replace("/", "-")
    folder = out or Path("runs") / f"{plain}-{recipe.train.seed}"
    check_free(folder)
    return recipe, folder


def check_free(folder: Path) -> None:
    """Refuse to begin a run in a folder that holds one."""
    if (folder / "recipe.yaml").exists():
        raise ValueError(f"{folder} holds a run already; go on with vnd train --resume {folder}, or give another --out")


def _resumed(folder: Path, name: str, out: Path | None, overrides: Sequence[str]) -> tuple[Recipe, Path]:
    if name or out or overrides:
        what = overrides[0] if overrides else name or "--out"
        raise ValueError(
            f"train: --resume goes on in its folder, with the recipe that the run began with; leave out {what}"
        )
    return parse_run(folder), folder
