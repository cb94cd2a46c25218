"""What a comparison reads of runs, small enough to commit: results, recipe, data, machine, and a thinned log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vnd._files import write_text
from vnd.report.origins import ENVIRONMENT, portable
from vnd.report.results import RESULTS
from vnd.report.runs import ORDER, Run, order_of

LOG, RECIPE = "metrics.jsonl", "recipe.yaml"
LONGEST, WHOLE = 30_000, 8  # bytes of a kept log, and its rows that speak of every layer
# Of a result file: images, which are not ours to pass on, and the curve, which the log has. No comparison reads them.
DROPPED = ("examples", "curves")
FOLDER = re.compile(r"""^(\s*(?:- |[^\s:'"]+: ))['"]?/.*$""", re.MULTILINE)  # a path of one machine, in a recipe

UNSAFE = re.compile(r"[^\w.=+-]")  # in a name that a result file says


@dataclass(frozen=True)
class Kept:
    """What was kept: the folder of each run, and the bytes in them."""

    folders: tuple[Path, ...]
    size: int


def keep(runs: Sequence[Run], folder: Path) -> Kept:
    """Copy what a comparison reads of each run, so that a report of the folder is that of the runs.

    A run that lies there already is put in its own place; another of the same name is called name-2, and so on. All
    numbers are as they were. Texts have no absolute paths.

    Args:
        runs: The runs.
        folder: Where to; it is made if need be, and what else it holds stays.
    """
    if (folder / RESULTS).exists():
        raise ValueError(f"report: keep must be a folder for runs, not a run's own; got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    order, size = order_of(folder), 0
    places: list[Path] = []
    recipes = tails([run.recipe for run in runs if run.recipe])
    for run in runs:
        files = _files(run, recipes)
        place = _place(folder, UNSAFE.sub("-", run.name)[:120].lstrip(".") or "run", files, places)
        place.mkdir(exist_ok=True)
        for name, text in files.items():
            write_text(place / name, text)
            size += len(text.encode())
        places.append(place)
    write_text(folder / ORDER, json.dumps(list(dict.fromkeys([*order, *(place.name for place in places)])), indent=1))
    return Kept(tuple(places), size)


def thinned(log: str, most: int = LONGEST) -> str:
    r"""A log that is not too long: every n-th row of training and of validation, and the last; n is the least for it.

    What a row says of every layer, its "units", is longer than all else and stays in a few rows.

    >>> log = "".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in range(1, 8))
    >>> [json.loads(line)["step"] for line in thinned(log, 90).splitlines()]
    [1, 4, 7]
    """
    rows = [row for line in log.split("\n") if (row := _row(line)) is not None]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    kinds = [[at for at, row in enumerate(rows) if ("loss" in row) == loss] for loss in (True, False)]
    for step in range(1, len(rows) + 1):
        if len(text) <= most:
            break
        kept = [kind[::step] + kind[-1:] * bool((len(kind) - 1) % step) for kind in kinds if kind]
        whole = {kind[round(part * (len(kind) - 1) / (WHOLE - 1))] for kind in kept for part in range(WHOLE)}
        shown = sorted(at for kind in kept for at in kind)
        text = "".join(f"{json.dumps(rows[at] if at in whole else _lean(rows[at]))}\n" for at in shown)
    return text


def tails(paths: Sequence[str]) -> dict[str, str]:
    """For each absolute path the fewest of its last parts that tell it from all others; others are as they are.

    >>> tails(["/a/b/bn3", "/a/c/bn3", "cifar10/fn3"])
    {'/a/b/bn3': 'b/bn3', '/a/c/bn3': 'c/bn3', 'cifar10/fn3': 'cifar10/fn3'}
    """
    for count in range(1, 2 + max((path.count("/") for path in paths), default=0)):
        found = {path: "/".join(Path(path).parts[1:][-count:]) if path.startswith("/") else path for path in paths}
        if len(set(found.values())) == len(found):
            break
    return found


def _files(run: Run, recipes: dict[str, str]) -> dict[str, str]:
    """The files of a run that are kept, those that there are."""
    results = {key: value for key, value in run.results.items() if key not in DROPPED}
    results |= {key: portable(results[key]) for key in ("command", "chosen") if results.get(key)}
    if run.recipe and isinstance(results.get("series"), dict):
        results["series"] = {**results["series"], "recipe": recipes[run.recipe]}
    others: dict[str, Callable[[str], str]] = {
        RECIPE: lambda text: FOLDER.sub(r"\1null", text), ENVIRONMENT: _environment, "data.json": str, LOG: thinned
    }  # fmt: skip
    found = {RESULTS: json.dumps(results, ensure_ascii=False, allow_nan=False) + "\n"}
    for name, copy in others.items():
        path = run.path.parent / name
        if path.is_file():
            found[name] = copy(path.read_text(encoding="utf-8", errors="replace"))
    return found


def _environment(text: str) -> str:
    """Where a run took place, without the folder of the library and with names in the place of paths."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return "{}\n"  # broken: nothing that could be said of it
    if isinstance(said, dict) and isinstance(said.get("git"), dict):
        said["git"] = {key: value for key, value in said["git"].items() if key != "folder"}
    return json.dumps(portable(said), indent=1, ensure_ascii=False) + "\n"


def _place(folder: Path, name: str, files: dict[str, str], taken: Sequence[Path]) -> Path:
    """The folder of a run: the first of its name, name-2, … that is free, or holds the same run."""
    number = 1
    while True:
        place = folder / (name if number == 1 else f"{name}-{number}")
        if place not in taken and (not place.exists() or _same(place, files)):
            return place
        number += 1


def _same(place: Path, files: dict[str, str]) -> bool:
    """Whether a kept run is this one: the same training, evaluated anew or not; without its files, the same results."""
    trained = [name for name in files if name != RESULTS] or [RESULTS]
    return all((place / name).is_file() and (place / name).read_text("utf-8") == files[name] for name in trained)


def _row(line: str) -> dict[str, Any] | None:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):  # what a kill left of one
        return None
    return row if isinstance(row, dict) else None


def _lean(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "units"}
