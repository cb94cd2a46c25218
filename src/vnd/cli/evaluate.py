"""`vnd evaluate`: a trained run at many sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import track

from vnd.cli.table import sizes_table
from vnd.evaluate.results import write
from vnd.evaluate.sweep import Reading, Sweep
from vnd.methods import Sizes
from vnd.train.finished import Which, open_run


def evaluate(
    run: Path,
    fractions: Sequence[float] | None = None,
    levels: Sequence[float] | None = None,
    parameters: Sequence[float] | None = None,
    learned: int | None = None,
    samples: int | None = None,
    readings: Sequence[Reading] | None = None,
    repeats: int | None = None,
    statistics: Sequence[int] | None = None,
    which: Which = "best",
    split: Literal["test", "validation"] = "test",
    out: Path | None = None,
) -> None:
    """Evaluate a trained run at every size: a table, JSON, and a page with figures.

    Sizes that are not given are those of the run's recipe; give one kind, and only what is given counts.

    Example: vnd evaluate runs/first --fractions "[0.25, 1.0]" --learned 4

    Args:
        run: Folder of the run.
        fractions: The same share of every layer, in (0, 1].
        levels: Learned shapes at these levels, in (0, 1].
        parameters: Learned shapes of at most so many parameters.
        learned: So many learned shapes, spread from the smallest to the full network.
        samples: Draws of the weights; 0 for posterior means.
        readings: How it is read, the main one first: samples, means (DT-BN³), masks (BN³-MC), scaled (FN³-TS).
        repeats: Evaluations, each with other draws of the weights and other images for BatchNorm's statistics.
        statistics: Further numbers of training images for BatchNorm's statistics, 0 for all: what they are worth.
        which: The network with the best validation accuracy, or the last.
        split: The images to evaluate on.
        out: Folder for results.json, rows.csv and report.html; the run's own if not given.
    """
    opened = open_run(run, which)
    options = chosen_options(opened.recipe.evaluate, fractions, levels, parameters, learned, samples)
    given = {"readings": readings, "statistics": statistics}
    changed: dict[str, Any] = {name: tuple(value) for name, value in given.items() if value is not None}
    options = dataclasses.replace(options, **changed, repeats=options.repeats if repeats is None else repeats)
    images = opened.test() if split == "test" else opened.splits.validation
    sizes = len(opened.recipe.method.sizes(opened.model, options.sizes))
    masks = "masks" in options.readings
    count = options.repeats * (sizes * (len(options.readings) - masks + len(options.statistics)) + masks)
    console = Console()
    bar = iter(track(range(count), description="evaluate", console=Console(stderr=True), transient=True))
    results = opened.results(options, images, f"vnd evaluate {run}", done=lambda row: next(bar, None))
    next(bar, None)
    results["split"] = split
    if split != "test":
        del results["data"]["test"]
    folder = out or run
    path = write(results, folder)
    console.print(sizes_table(results["rows"], f"{results['title']}: {split}, {results['samples']} samples"))
    for reading in options.readings[1:]:
        rows = [row for row in results["tidy"] if row["reading"] == reading and not row["repeat"]]
        console.print(sizes_table(rows, f"the same, read by {reading}"))
    console.print(
        f"numbers: {path.resolve()}\n         {folder.resolve() / 'rows.csv'}\nreport:  {_page(path, folder)}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def chosen_options(
    own: Sweep,
    fractions: Sequence[float] | None,
    levels: Sequence[float] | None,
    parameters: Sequence[float] | None,
    learned: int | None,
    samples: int | None,
) -> Sweep:
    """The recipe's options, with those that were given in their place."""
    if any(given is not None for given in (fractions, levels, parameters, learned)):
        sizes = Sizes(tuple(fractions or ()), tuple(levels or ()), tuple(parameters or ()), learned or 0)
        own = dataclasses.replace(own, sizes=sizes)
    return own if samples is None else dataclasses.replace(own, samples=samples)


def _page(results: Path, folder: Path) -> str:
    from vnd.report import page

    try:
        return str(page.write(results, folder).resolve())
    except ModuleNotFoundError as error:
        return f"not drawn: {error}"
