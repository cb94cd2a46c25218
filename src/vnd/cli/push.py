"""`vnd push`: a trained run, with its figures, to the Hugging Face Hub."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from vnd._text import say, short
from vnd.evaluation import open_run
from vnd.hub import CARD, Figures, check, files_of
from vnd.hub import push as push_network
from vnd.methods import Size
from vnd.nn.state import Shape
from vnd.nn.width import as_shape
from vnd.report.results import RESULTS, Column, Run, read
from vnd.tasks import task_of


def push(
    run: Path,
    name: str,
    license: str | None = None,
    private: bool = False,
    dry_run: bool = False,
    out: Path | None = None,
) -> None:
    """Push an evaluated run to the Hugging Face Hub: its network, a card with the figures of every size, a picture.

    BatchNorm gets its statistics for each size as in the evaluation, so that what is loaded is what was measured.

    Example: vnd push runs/first you/first --dry_run

    Args:
        run: Folder of the run, which `vnd evaluate` was run on.
        name: USER/NAME; the repository is made if need be.
        license: The Hub's word for the license of the network, such as apache-2.0.
        private: Make the repository for its owner alone, if it is new.
        dry_run: Only write the files and show the card; nothing is sent.
        out: Folder of the files; RUN/hub if not given.
    """
    check(name)
    if not (run / RESULTS).exists():
        raise ValueError(f"push: {run} has no {RESULTS} with the figures of its card; first: vnd evaluate {run}")
    results = read(run)
    opened = open_run(run, results["checkpoint"])
    rows = list(results["rows"])
    if hasattr(opened.model, "_vnd_state"):
        images = results.get("bn_images", opened.recipe.evaluate.bn_images)
        for row in rows:
            width = as_shape(opened.model, Shape(row["shape"]) if "shape" in row else row.get("fraction"))
            for samples in (False, True):
                opened.recalibrate(Size(row["kind"], row["label"], width), samples, images)
    evaluated = Run(run / RESULTS, {**results, "tidy": rows})
    task, folder, shown = task_of(opened.method), out or run / "hub", results["data"]
    mean, std = (", ".join(f"{x:.6g}" for x in values) for values in (opened.splits.mean, opened.splits.std))
    image = "×".join(map(str, opened.splits.train.pixels.shape[1:]))
    parts = [
        f"{results['title']}: {results['method']['name']}, trained by vnd on {shown['name']}.",
        f"Input: images of {image}, pixels between 0 and 1, less the mean ({mean}), over the std ({std}).",
    ]
    if shown.get("classes"):
        parts.append(f"Classes, in the order of the outputs: {', '.join(map(str, shown['classes']))}.")
    figures = Figures(evaluated.rows, columns_of(evaluated), task.hub_task, shown["name"], evaluated.split)
    place = push_network(
        opened.model, name, figures, description="\n\n".join(parts), license=license, folder=folder, private=private,
        dry_run=dry_run,
    )  # fmt: skip
    if dry_run:
        _, about, text = (folder / CARD).read_text(encoding="utf-8").split("---\n", 2)
        say(f"{text.strip()}\n\nmodel-index: {about.count('- type: ')} figures")
    for file in files_of(folder):
        say(f"{short((folder / file).stat().st_size, 'B'):>9}  {folder / file}")
    say(f'{"nothing was sent; load it" if dry_run else "load it"}: vnd.load("{place}")')


def columns_of(run: Run) -> dict[str, Column]:
    """The columns of a run's rows; of a measure by numbers of samples one for each, "ged_4", the most first."""
    found: dict[str, Column] = {}
    for key, column in run.columns.items():
        names = dict.fromkeys(name for row in run.rows for name in row if name.rpartition("_")[0] == key)
        counted = {name: name.rpartition("_")[2] for name in names if name.rpartition("_")[2].isdigit()}
        for name, count in sorted(counted.items(), key=lambda pair: -int(pair[1])):
            found[name] = dataclasses.replace(column, key=name, heading=f"{column.heading} {count}")
        found.update({} if counted else {key: column})
    return found
