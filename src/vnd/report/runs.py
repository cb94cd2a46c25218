"""Runs to compare: where they lie, and their result files as one kind of row, whatever wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vnd.report.results import RESULTS, read

SIGNS = ("recipe.yaml", "checkpoints", "metrics.jsonl")  # of a run's folder, evaluated or not


@dataclass(frozen=True)
class Run:
    """One evaluated run.

    Args:
        path: Its result file.
        name: What its folder is called.
        method: The method's name, as recipes spell it.
        recipe: The recipe's name; None where the file does not say.
        network: The network's name.
        data: The data set's name.
        seed: Of its training; None where the file does not say.
        rows: One a reading, number of images for BatchNorm, size and repeat.
        results: All that the file holds.
    """

    path: Path
    name: str
    method: str
    recipe: str | None
    network: str
    data: str
    seed: int | None
    rows: tuple[dict[str, Any], ...]
    results: dict[str, Any]


def find(places: Iterable[Path]) -> list[Path]:
    """The result files of runs, of files themselves, and of folders that hold runs; each once, in the order given.

    A folder that is a run and was not evaluated is an error, also where it is one of several: a comparison from which
    runs are silently missing misleads.

    Args:
        places: Run folders, result files, or folders with runs one level down.
    """
    found: dict[Path, Path] = {}
    for place in places:
        for path in _in(Path(place)):
            found.setdefault(path.resolve(), path)
    if not found:
        raise ValueError("report: at least one run must be given; got none")
    return list(found.values())


def open_results(path: Path) -> Run:
    """Read a result file; what an older one does not say of its run is taken from what it says elsewhere.

    Args:
        path: The file.
    """
    results = read(path)
    series = results.get("series") or {}
    return Run(
        path=path,
        name=series.get("run") or path.resolve().parent.name,
        method=series.get("method") or results.get("method") or "unknown method",
        recipe=series.get("recipe") or None,
        network=series.get("network") or "unnamed network",
        data=series.get("data") or results["data"]["name"],
        seed=series.get("seed"),
        rows=tuple(results.get("tidy") or _from_rows(results)),
        results=results,
    )


def _in(place: Path) -> list[Path]:
    if not place.exists():
        where = (
            f"run `vnd evaluate {place.parent}` first" if place.name == RESULTS else f"give run folders or {RESULTS}"
        )
        raise FileNotFoundError(f"report: {place} does not exist; {where}")
    if not place.is_dir():
        return [place]
    if (place / RESULTS).exists():
        return [place / RESULTS]
    below = [] if _is_run(place) else sorted(path for path in place.iterdir() if path.is_dir() and _is_run(path))
    for run in below or [place]:
        if not (run / RESULTS).exists():
            raise FileNotFoundError(f"report: {run / RESULTS} is missing; run `vnd evaluate {run}` first")
    return [run / RESULTS for run in below]


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (RESULTS, *SIGNS))


def _from_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a file that was written before there were readings and repeats."""
    reading = "means" if results.get("samples") == 0 else "samples"
    return [
        {**row, "reading": reading, "repeat": 0, "calibration": None, "fraction": row.get("fraction") or _share(row)}
        for row in results["rows"]
    ]


def _share(row: dict[str, Any]) -> float | None:
    said = re.fullmatch(r"([0-9.]+) %", row["label"]) if row["kind"] == "uniform" else None
    try:
        share = float(said[1]) / 100 if said else 0.0
    except ValueError:  # two points
        return None
    return share if 0 < share <= 1 else None
