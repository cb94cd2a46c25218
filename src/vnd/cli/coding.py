"""What `vnd evaluate` does with an auto-encoder: its lengths, with a progress bar, and a table of them."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from vnd.data.images import Images
from vnd.evaluate.coding import work
from vnd.evaluate.sweep import Sweep
from vnd.train.trained import TrainedRun


def evaluate_codes(opened: TrainedRun, options: Sweep, images: Images, command: str) -> dict[str, Any]:
    """Evaluate an auto-encoder, and say while it lasts how far it is, and then what could not be done."""
    if options.inception is not None and not options.num_generated:
        raise ValueError(
            "evaluate: --inception measures images that are drawn, and none are; give --num_generated 10000 too"
        )
    return counted(opened, options, images, command, work(opened.subject(), options, images))


def counted(opened: TrainedRun, options: Sweep, images: Images, command: str, total: int) -> dict[str, Any]:
    """The results of a run, with a bar that counts images up to a total, and then the notes that came with them."""
    said = Console(stderr=True)
    with Progress(console=said, transient=True, disable=not said.is_terminal) as progress:
        task = progress.add_task("evaluate", total=total)
        results = opened.results(options, images, command, done=lambda count: progress.advance(task, count))
    for note in results["notes"]:
        said.print(f"vnd: {note}", soft_wrap=True, highlight=False, markup=False)
    return results


def codes_table(results: dict[str, Any], split: str) -> Table:
    """One line a reading of the code; below it, what measures of features are of."""
    features = results["features"] or {}
    columns = {
        "mse": ("MSE", ".5f"),
        "summed": ("summed", ".4g"),
        "rate": ("rate", ".2f"),
        "distortion": ("distortion", ".2f"),
        "negative_elbo": ("−ELBO", ".2f"),
        "frechet": ("FID" if features.get("distance_name") == "FID" else "Fréchet", ".2f"),
        "inception_score": ("score", ".3f"),
        "diversity": ("diversity", ".3f"),
    }
    rows = results["tidy"]
    about: dict[str, Any] = {
        "title": Text(f"{results['title']}: {split}"),
        "title_justify": "left",
        "caption_justify": "left",
    }
    if features:
        of = f"{features['distance_name']} and {features['score_name']}"
        about["caption"] = Text(f"{of}: {features['num_generated']:,} drawn images, {features['real']:,} real ones")
    table = Table(box=None, padding=(0, 1, 0, 0), **about)
    table.add_column("length", no_wrap=True)
    table.add_column("length rule", no_wrap=True)
    shown = [key for key in columns if any(row.get(key) is not None for row in rows)]
    for key in shown:
        table.add_column(columns[key][0], justify="right", no_wrap=True)
    for row in rows:
        length = row["label"] if row["length_rule"] == "fixed" else f"{row['length']:.1f} of {results['latent_dim']}"
        cells = ["–" if row.get(key) is None else f"{row[key]:{columns[key][1]}}" for key in shown]
        table.add_row(length, row["length_rule"], *cells)
    return table
