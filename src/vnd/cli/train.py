"""`vnd train`: from a recipe to a trained network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vnd.train.loop import fit
from vnd.train.recipe import Recipe, names, parse, parser_of

USAGE = "vnd train RECIPE [--out RUN] [--SECTION.KEY VALUE ...]\n       vnd train --resume RUN"
HELP = """Train a recipe: a name of `vnd recipes`, or a YAML file.

Examples: vnd train fashion/bn3 --out runs/first --train.epochs 2
          vnd train --resume runs/first
          torchrun --nproc-per-node 2 -m vnd train cifar10/vgg11-bn3 --data.folder data
"""


def train(recipe: str = "", out: Path | None = None, resume: Path | None = None, overrides: Sequence[str] = ()) -> None:
    """Train a recipe, any of its keys replaced on the way; Ctrl-C saves, and the run can go on.

    Example: vnd train fashion/bn3 --out runs/first --train.epochs 2

    Args:
        recipe: A name of `vnd recipes`, or a YAML file.
        out: Folder of the run; runs/RECIPE-SEED if not given.
        resume: Folder of a run that was stopped, to go on with; then there is no recipe.
        overrides: Keys to replace: --train.epochs 2.
    """
    settings, folder = _resumed(resume, recipe, overrides) if resume else _begun(recipe, out, overrides)
    if fit(settings, folder):
        Console().print(f"done: {folder}\nevaluate it with: vnd evaluate {folder}", soft_wrap=True, highlight=False)
    else:
        raise KeyboardInterrupt(f"saved in {folder}; go on with: vnd train --resume {folder}")


def main(args: list[str]) -> None:
    """Run `vnd train` with these arguments."""
    parser = argparse.ArgumentParser(prog="vnd train", usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("recipe", nargs="?", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("-h", "--help", action="store_true")
    options, overrides = parser.parse_known_args(args)
    if options.help:
        print(f"usage: {USAGE}\n\n{HELP}")
        example = parse(options.recipe or names()[0])
        parser_of(example.method_name, example.network.name).print_help()
        return
    train(options.recipe, options.out, options.resume, overrides)


def _begun(name: str, out: Path | None, overrides: Sequence[str]) -> tuple[Recipe, Path]:
    if not name:
        raise ValueError("train: give a recipe, a name of `vnd recipes` or a YAML file; or --resume RUN")
    recipe = parse(name, overrides)
    folder = (
        out
        or Path("runs") / f"{Path(name).with_suffix('').as_posix().strip('/.').replace('/', '-')}-{recipe.train.seed}"
    )
    if (folder / "recipe.yaml").exists():
        raise ValueError(f"{folder} holds a run already; go on with vnd train --resume {folder}, or give another --out")
    return recipe, folder


def _resumed(folder: Path, name: str, overrides: Sequence[str]) -> tuple[Recipe, Path]:
    if name or overrides:
        what = name or overrides[0]
        raise ValueError(f"train: --resume goes on with the recipe that the run began with; leave out {what}")
    if not (folder / "recipe.yaml").exists():
        raise ValueError(
            f"{folder} is not a run: it holds no recipe.yaml; begin one with vnd train RECIPE --out {folder}"
        )
    if (folder / "last" / "network.json").exists():
        print(f"{folder} is finished already; evaluate it with: vnd evaluate {folder}", file=sys.stderr)
    return parse(folder / "recipe.yaml"), folder
