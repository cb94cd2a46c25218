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

from vnd._text import command, say
from vnd.evaluation import find_network, open_run, results_of, write, write_rows
from vnd.methods import Sizes
from vnd.tasks import TASKS, Evaluation, Task, TrainedRun, task_of
from vnd.tasks.trained import BestOrLast
from vnd.train.config import parse


def evaluate(
    runs: list[Path],
    fractions: Sequence[float] | None = None,
    levels: Sequence[float] | None = None,
    parameters: Sequence[float] | None = None,
    learned: int | None = None,
    checkpoint: BestOrLast | None = None,
    split: Literal["test", "validation"] = "test",
    out: Path | None = None,
    options: Sequence[str] = (),
) -> None:
    """Evaluate trained runs at every size: tables, tidy rows as CSV and JSON, and a page with figures.

    If any size option is given, the sizes of the run's recipe are ignored. Sizes of an
    auto-encoder are shares of its code. Masks of a network that segments are held against those of all graders.
    `vnd report` compares runs. `vnd evaluate RUN --help` lists the further options of a run, by what it does.

    Example: vnd evaluate runs/first --fractions 0.25,1.0 --learned 4 --inference mc,mean --repeats 3
    Example: vnd evaluate runs/codes --fractions 0.25,0.5,0.75,1.0 --num_generated 10000 --target 0.01
    Example: vnd evaluate runs/lungs --fractions 0.33,1.0 --num_mask_samples 1,4,8,16

    Args:
        runs: Folders of the runs.
        fractions: The same share of every layer, or of the code, in (0, 1].
        levels: Learned shapes at these levels, in (0, 1].
        parameters: Learned shapes of at most so many parameters.
        learned: So many learned shapes, spread from the smallest to the full network.
        checkpoint: The network with the best validation score, or the last; as the recipe says if not given.
        split: The images to evaluate on.
        out: Folder for results.json, rows.csv and report.html, the run's own if not given; of several runs, a folder
            for each in it, and the rows of all as rows.csv and rows.json.
        options: Keys of the section `evaluate` of the runs' recipes: --samples 6 or --evaluate.samples 6.
    """
    sizes: dict[str, Any] = {"fractions": fractions, "levels": levels, "parameters": parameters, "learned": learned}
    given = {**sizes, "checkpoint": checkpoint, "split": None if split == "test" else split}
    words = [f"--evaluate.{word[2:]}" if _is_short(word) else word for word in options]
    names = [run.resolve().name for run in runs]
    if out is not None and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"evaluate: two runs are called {twice}, and both would go to {out / twice}; leave out --out")
    for word in words:
        if word.startswith("--") and not word.startswith("--evaluate."):
            raise ValueError(f"evaluate: of a recipe's keys it takes those of evaluate alone; got {word}")
    said = [name for name, value in sizes.items() if value is not None]
    said += [word[2:].partition("=")[0].replace("-", "_") for word in options if _is_short(word)]
    for run in runs:  # what is wrong with the last is said before the first is worked on
        recipe, _ = find_network(run, checkpoint)
        check_flags(str(run), task_of(recipe.method), said)
        parse(recipe.to_dict(), words)
    every = []
    for run in runs:
        folder = run if out is None else out if len(runs) == 1 else out / run.resolve().name
        opened = open_run(run, checkpoint)
        wanted = parse(opened.recipe.to_dict(), words).evaluate
        wanted = dataclasses.replace(wanted, sizes=chosen_sizes(wanted.sizes, **sizes))
        again = command("vnd", "evaluate", run, **given) + "".join(f" {shlex.quote(word)}" for word in options)
        every.append(_evaluate(opened, wanted, split, folder, again))
    if out is not None and len(runs) > 1:
        write_rows(every, out)
        say(f"all rows: {(out / 'rows.csv').resolve()}, rows.json")


def _is_short(word: str) -> bool:
    """Tell if a word is an option without the name of its section."""
    return word.startswith("--") and "." not in word.partition("=")[0]


def _evaluate(
    opened: TrainedRun, options: Evaluation, split: Literal["test", "validation"], folder: Path, command: str
) -> dict[str, Any]:
    """Evaluate one run with a progress bar, and write and show what came of it."""
    images = opened.test() if split == "test" else opened.splits.validation
    console, task = Console(stderr=True), task_of(opened.method)
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


def check_flags(opened: str, task: Task, given: Sequence[str]) -> None:
    """Refuse flags that make no sense for what a run does."""
    takes = {
        known: known.options | {field.name for field in dataclasses.fields(known.evaluation)}
        for known in TASKS.values()
    }
    for name in given:
        if kinds := [known.kind for known, names in takes.items() if name in names and name not in takes[task]]:
            raise ValueError(
                f"evaluate: --{name} is for {' or '.join(kinds)}, and {opened} is {task.kind}; leave it out"
            )


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
