"""What `vnd evaluate` does with a network that segments: its sizes, with a progress bar, and a table of them."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from vnd.cli.coding import counted
from vnd.data.images import Images
from vnd.evaluate.segmenting import work
from vnd.evaluate.sweep import Sweep
from vnd.train.trained import TrainedRun

COLUMNS = {  # key of a row → heading, digits; beside the distances
    "matched_iou": ("matched IoU", 4),
    "diversity": ("diversity", 4),
    "dice": ("Dice", 4),
    "calibration_error": ("ECE", 4),
}


def evaluate_masks(opened: TrainedRun, options: Sweep, images: Images, command: str) -> dict[str, Any]:
    """Evaluate a network that segments, and say while it lasts how far it is, and then what could not be done."""
    return counted(opened, options, images, command, work(opened.subject(), options, images))


def masks_table(results: dict[str, Any], split: str) -> Table:
    """One line a size; then what samples of the true distribution would have, where that is known."""
    rows, own = results["rows"], results["graders_own"]
    images = len(next(iter(rows[0]["per_image"].values())))
    apart = f"{images:,} images, {results['graders']} grader{'s' * (results['graders'] > 1)}"
    if own["diversity"] is not None:
        apart += f", whose masks are {own['diversity']:.4f} apart"
    foretold = "" if own["dice"] is None else f"; Dice of one grader by the others together {own['dice']:.4f}"
    table = Table(
        title=Text(f"{results['title']}: {split}"), title_justify="left", box=None, padding=(0, 1, 0, 0),
        caption=Text("\n".join(filter(None, (apart + foretold, _of_groups(results))))), caption_justify="left",
    )  # fmt: skip
    table.add_column("size", no_wrap=True)
    for count in results["samples"]:
        table.add_column(f"GED {count}", justify="right", no_wrap=True)
    shown = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    for key in shown:
        table.add_column(COLUMNS[key][0], justify="right", no_wrap=True)
    for row in rows:
        others = ["–" if row[key] is None else f"{row[key]:.{COLUMNS[key][1]}f}" for key in shown]
        table.add_row(row["label"], *[f"{ged:.4f}" for ged in row["ged"].values()], *others)
    if rows[0]["expected_ged"] is not None:
        expected = [f"{ged:.4f}" for ged in rows[0]["expected_ged"].values()]
        table.add_row("truth", *expected, *[""] * len(shown))
    return table


def _of_groups(results: dict[str, Any]) -> str:
    """How sure the distance of the largest size is, and what it is where every owner of images counts once."""
    count, groups = str(results["samples"][-1]), results["groups"]
    row = next((row for row in reversed(results["rows"]) if row["kind"] != "sampled"), results["rows"][-1])
    if row["ged_interval"] is None:
        return ""
    low, high = row["ged_interval"][count]
    those = "images" if groups is None else f"{len(set(groups))} groups"
    said = f"GED {count} at {row['label']}: {low:.4f} … {high:.4f}, 95 % by resampling {those}"
    return said if groups is None else f"{said}; mean of their means {row['ged_by_group'][count]:.4f}"
