"""The rows of an evaluation, sizes × metrics: as files, as one table of several runs, and the one to choose."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from vnd._files import write_text


def write(results: dict[str, Any], folder: Path) -> Path:
    """Write `results.json` and its tidy rows as `rows.csv`; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "rows.csv", as_csv(tidy_rows([results])))
    write_text(folder / "results.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return folder / "results.json"


def write_rows(every: list[dict[str, Any]], folder: Path) -> None:
    """Write the tidy rows of some results, all in one, as `rows.csv` and `rows.json`."""
    rows = tidy_rows(every)
    write_text(folder / "rows.csv", as_csv(rows))
    write_text(folder / "rows.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def tidy_rows(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tidy rows of some results, what they are of in front."""
    rows = []
    for results in every:
        own = {"train_seed" if key == "seed" else key: x for key, x in (results.get("series") or {}).items()}
        rows += [own | row for row in results["tidy"]]
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Rows as a table; what a row does not have is empty."""
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return buffer.getvalue()


def choose(rows: list[dict[str, Any]], accuracy: dict[str, float], margin: float = 0.01) -> dict[str, Any]:
    """The row of the smallest network whose accuracy is within a margin of the largest's.

    Args:
        rows: One a size.
        accuracy: Of each size by its label, on images that are not those of the test.
        margin: What may be lost, as a share of all images.
    """
    full = max(rows, key=lambda row: row["parameters"])
    least = accuracy[full["label"]] - margin - 1e-9  # 0.87 - 0.01 is a little more than 0.86
    good = [row for row in rows if accuracy[row["label"]] >= least]
    return min(good, key=lambda row: row["parameters"])
