"""`vnd evaluate`: a trained run at many sizes."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import rich
from rich.console import Console
from rich.progress import Progress

from vnd.cli.output import say
from vnd.evaluation import find_network, open_run, results_of, write, write_rows
from vnd.methods import Sizes
from vnd.tasks import TASKS, Evaluation, Task, TrainedRun, task_of
from vnd.tasks.classification import Inference
from vnd.tasks.trained import BestOrLast
from vnd.train.config import parse


def evaluate(
    runs: list[Path],
    fractions: Sequence[float] | None = None,
    levels: Sequence[float] | None = None,
    parameters: Sequence[float] | None = None,
    learned: int | None = None,
    samples: int | None = None,
    inference: Sequence[Inference] | None = None,
    repeats: int | None = None,
    bn_images_sweep: Sequence[int] | None = None,
    augmented: bool | None = None,
    num_generated: int | None = None,
    inception: Path | None = None,
    target: float | None = None,
    num_mask_samples: Sequence[int] | None = None,
    checkpoint: BestOrLast | None = None,
    split: Literal["test", "validation"] = "test",
    out: Path | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Evaluate trained runs at every size: tables, tidy rows as CSV and JSON, and a page with figures.

    Sizes that are not given are those of the run's recipe; give one kind, and only what is given counts. Sizes of an
    auto-encoder are shares of its code. Masks of a network that segments are held against those of all graders.
    `vnd report` compares runs.

    Example: vnd evaluate runs/first --fractions 0.25,1.0 --learned 4 --inference mc,mean --repeats 3
    Example: vnd evaluate runs/codes --fractions 0.25,0.5,0.75,1.0 --num_generated 10000 --target 0.01
    Example: vnd evaluate runs/lungs --fractions 0.33,1.0 --num_mask_samples 1,4,8,16

    Args:
        runs: Folders of the runs.
        fractions: The same share of every layer, or of the code, in (0, 1].
        levels: Learned shapes at these levels, in (0, 1].
        parameters: Learned shapes of at most so many parameters.
        learned: So many learned shapes, spread from the smallest to the full network.
        samples: Draws of the weights; 0 for posterior means.
        inference: How it is read, the main way first: mc, mean (DT-BN³), mc_mask (BN³-MC), temperature_scaled (FN³-TS).
        repeats: Evaluations, each with other draws of the weights and other images for BatchNorm's statistics.
        bn_images_sweep: Further numbers of training images for BatchNorm's statistics, 0 for all: what they are worth.
        augmented: Collect BatchNorm's statistics from images that are augmented as in training; as the recipe says if
            not given.
        num_generated: Images that an auto-encoder draws at each length, to be held against the test images; 0 for none.
        inception: Weights of FID's Inception, torch-fidelity's file; without it the distance is by EfficientNet-Lite0.
        target: Mean squared error that the shortest code of each image is sought for; that at half the code if not
            given.
        num_mask_samples: Numbers of masks that a network that segments draws for each image, from few to many.
        checkpoint: The network with the best validation score, or the last; as the recipe says if not given.
        split: The images to evaluate on.
        out: Folder for results.json, rows.csv and report.html, the run's own if not given; of several runs, a folder
            for each in it, and the rows of all as rows.csv and rows.json.
        overrides: Any key that the task of the runs has in the section `evaluate` of a recipe: --evaluate.bins 20.
    """
    sizes: dict[str, Any] = {"fractions": fractions, "levels": levels, "parameters": parameters, "learned": learned}
    given: dict[str, Any] = {
        "samples": samples, "inference": inference and tuple(inference), "repeats": repeats,
        "bn_images_sweep": bn_images_sweep and tuple(bn_images_sweep), "augmented": augmented,
        "num_generated": num_generated, "inception": None if inception is None else str(inception), "target": target,
        "num_mask_samples": num_mask_samples and tuple(num_mask_samples),
    }  # fmt: skip
    said = {**sizes, **given, "checkpoint": checkpoint, "split": None if split == "test" else split}
    words = [f"--{name}={_word(value)}" for name, value in said.items() if value is not None]
    given = {name: value for name, value in given.items() if value is not None}
    names = [run.resolve().name for run in runs]
    if out is not None and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"evaluate: two runs are called {twice}, and both would go to {out / twice}; leave out --out")
    for word in overrides:
        if word.startswith("--") and not word.startswith("--evaluate."):
            raise ValueError(f"evaluate: of a recipe's keys it takes those of evaluate alone; got {word}")
    for run in runs:  # what is wrong with the last is said before the first is worked on
        recipe, _ = find_network(run, checkpoint)
        check_flags(str(run), task_of(recipe.method), said)
        parse(recipe.to_dict(), overrides)
    every = []
    for run in runs:
        folder = run if out is None else out if len(runs) == 1 else out / run.resolve().name
        opened = open_run(run, checkpoint)
        options = parse(opened.recipe.to_dict(), overrides).evaluate
        options = dataclasses.replace(options, sizes=chosen_sizes(options.sizes, **sizes), **given)
        every.append(
            _evaluate(opened, options, split, folder, shlex.join(["vnd", "evaluate", str(run), *words, *overrides]))
        )
    if out is not None and len(runs) > 1:
        write_rows(every, out)
        say(f"all rows: {(out / 'rows.csv').resolve()}, rows.json")


def _evaluate(
    opened: TrainedRun, options: Evaluation, split: Literal["test", "validation"], folder: Path, command: str
) -> dict[str, Any]:
    """Evaluate one run with a progress bar, and write and show what came of it."""
    images = opened.test() if split == "test" else opened.splits.validation
    console, task = Console(stderr=True), task_of(opened.method)
    task.check_options(options)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("evaluate", total=task.work(opened, options, images))
        results = results_of(opened, options, images, command, lambda count: progress.advance(bar, count))
    for note in results.get("notes", ()):
        say(f"vnd: {note}", error=True)
    results["split"] = split
    if split != "test":
        del results["data"]["test"]
    path = write(results, folder)
    for table in task.tables(results, split, options):
        rich.print(table)
    rows, page = folder.resolve() / "rows.csv", _page(path, folder)
    say(f"numbers: {path.resolve()}\n         {rows}\nreport:  {page}")
    return results


def check_flags(opened: str, task: Task, given: dict[str, Any]) -> None:
    """Refuse flags that make no sense for what a run does."""
    takes = {known: known.options | known.own_options() for known in TASKS.values()}
    for name in frozenset().union(*takes.values()) - takes[task]:
        if given.get(name) is not None:
            kinds = " or ".join(known.kind for known, names in takes.items() if name in names)
            raise ValueError(f"evaluate: --{name} is for {kinds}, and {opened} is {task.kind}; leave it out")


def _word(value: Any) -> str:
    """A value as the command line takes it."""
    return str(value) if isinstance(value, int | float | str) else f"[{', '.join(map(str, value))}]"


def chosen_sizes(
    own: Sizes,
    fractions: Sequence[float] | None,
    levels: Sequence[float] | None,
    parameters: Sequence[float] | None,
    learned: int | None,
) -> Sizes:
    """The recipe's sizes, or those that were given in their place."""
    if all(given is None for given in (fractions, levels, parameters, learned)):
        return own
    return Sizes(tuple(fractions or ()), tuple(levels or ()), tuple(parameters or ()), learned or 0, own.leading)


def _page(results: Path, folder: Path) -> str:
    from vnd.report import html

    try:
        return str(html.write_run(results, folder).resolve())
    except ModuleNotFoundError as error:
        return f"not drawn: {error}"
