"""Runs to compare: where they lie, and their result files as one kind of row, whatever wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vnd.report.results import RESULTS, read

SIGNS = ("recipe.yaml", "checkpoints", "metrics.jsonl")  # of a run's folder, evaluated or not
LAST = "last"  # the network at the end of training
ORDER = "order.json"  # of the runs that `keep` put into a folder, by name


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
        image: How large its images are, "64×64"; empty where neither the file nor the run's folder says.
        seed: Of its training; None where the file does not say.
        settings: A hash of all else that decides its training, but a width of its own; None where the file has none.
        split: Whether it was measured on "test" or on "validation" images.
        rows: One a reading, number of images for BatchNorm, size and repeat.
        results: All that the file holds.
    """

    path: Path
    name: str
    method: str
    recipe: str | None
    network: str
    data: str
    image: str
    seed: int | None
    settings: str | None
    split: str
    rows: tuple[dict[str, Any], ...]
    results: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What lies where runs were looked for.

    Args:
        results: Result files, each once, in the order given.
        left_out: Folders of runs without one, in folders that hold others.
    """

    results: tuple[Path, ...]
    left_out: tuple[Path, ...]


def find(places: Iterable[Path]) -> Found:
    """The result files of runs, of files themselves, and of folders that hold runs.

    A run that is named and was not evaluated is an error. In a folder of runs it is left out, and the page says so: a
    sweep may have runs that failed, and a comparison from which runs are silently missing misleads.

    Args:
        places: Run folders, result files, or folders with runs one level down.
    """
    found: dict[Path, Path] = {}
    left_out: dict[Path, Path] = {}
    for place in map(Path, places):
        for run in _in(place):
            path = run / RESULTS if run.is_dir() else run
            (found if path.exists() else left_out).setdefault(path.resolve(), path)
    if not found and left_out:
        names = ", ".join(path.parent.name for path in left_out.values())
        raise FileNotFoundError(
            f"report: none of the runs was evaluated ({names}); run `vnd evaluate` on those that are trained"
        )
    if not found:
        raise ValueError("report: at least one run must be given; got none")
    return Found(tuple(found.values()), tuple(path.parent for path in left_out.values()))


def open_results(path: Path) -> Run:
    """Read a result file; what an older one does not say of its run is taken from what it says elsewhere.

    Args:
        path: The file.
    """
    return run_of(path, read(path))


def run_of(path: Path, results: dict[str, Any]) -> Run:
    """The run of a result file that was read."""
    series = results.get("series") or {}
    return Run(
        path=path,
        name=series.get("run") or path.resolve().parent.name,
        method=series.get("method") or results.get("method") or "unknown method",
        recipe=series.get("recipe") or None,
        network=series.get("network") or "unnamed network",
        data=series.get("data") or results["data"]["name"],
        image=_sides(results["data"].get("image") or _image_beside(path)),
        seed=series.get("seed"),
        settings=series.get("settings") or None,
        split=results.get("split") or "test",
        rows=tuple(results.get("tidy") or (results["rows"] if "task" in results else _from_rows(results))),
        results=results,
    )


def _sides(image: Any) -> str:
    """The sides of an image of some channels: "64×48"; empty where that is none."""
    known = isinstance(image, list) and len(image) == 3 and all(isinstance(n, int) and n > 0 for n in image)
    return "×".join(map(str, image[1:])) if known else ""


def _image_beside(path: Path) -> Any:
    """An image's shape by what the run wrote at its begin, for older result files of it, or in a folder of its own."""
    for folder in (path.parent, path.parent.parent) if path.name else ():
        try:
            return json.loads((folder / "data.json").read_text(encoding="utf-8"))["image"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None


def split_of(runs: Sequence[Run]) -> str:
    """The images that all of some runs were measured on: "test" or "validation"; a mixture is refused."""
    first = runs[0]
    other = next((run for run in runs if run.split != first.split), first)
    if other is not first:
        raise ValueError(
            f"report: runs must all be measured on the same images; got {first.split} images in {first.path} and "
            f"{other.split} images in {other.path}"
        )
    return first.split


def order_of(folder: Path) -> list[str]:
    """The names of the runs of a folder in the order that they were given in; none where no file says."""
    path = folder / ORDER
    if not path.exists():
        return []
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"report: {path} must be a JSON list of the names of runs; mend it, or remove it")
    return names


def _in(place: Path) -> list[Path]:
    """The runs of a place: itself, which must be evaluated then, or those one level down."""
    if not place.is_dir():
        if place.exists():
            return [place]
        if place.name == RESULTS and _is_run(place.parent):
            raise FileNotFoundError(_unfinished(place.parent))
        raise FileNotFoundError(f"report: {place} does not exist; give run folders or {RESULTS}")
    if (place / RESULTS).exists():
        return [place]
    if _is_run(place):
        raise FileNotFoundError(_unfinished(place))
    ranks = {name: rank for rank, name in enumerate(order_of(place))}
    found = [path for path in place.iterdir() if path.is_dir() and _is_run(path)]
    below = sorted(found, key=lambda path: (ranks.get(path.name, len(ranks)), path.name))
    if not below:
        raise FileNotFoundError(f"report: {place} holds no run; give run folders or folders that hold them")
    return below


def _unfinished(run: Path) -> str:
    if (run / LAST).is_dir():
        return f"report: {run} was not evaluated; run `vnd evaluate {run}` first"
    return f"report: {run} is not trained to the end; go on with `vnd train --resume {run}`"


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (RESULTS, *SIGNS))


def _from_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a file that was written before there were inference and repeats."""
    reading = "mean" if results.get("samples") == 0 else "mc"
    return [
        {**row, "inference": reading, "repeat": 0, "bn_images": None, "fraction": row.get("fraction") or _share(row)}
        for row in results["rows"]
    ]


def _share(row: dict[str, Any]) -> float | None:
    said = re.fullmatch(r"([0-9.]+) %", row["label"]) if row["kind"] == "uniform" else None
    try:
        share = float(said[1]) / 100 if said else 0.0
    except ValueError:  # two points
        return None
    return share if 0 < share <= 1 else None
