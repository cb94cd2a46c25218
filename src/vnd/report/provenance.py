"""Where runs come from, without the paths of one machine, and what is kept of them, small enough to commit."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vnd._files import write_text
from vnd.report.results import Run

PROGRAM = re.compile(r"(vnd|__main__\.py)$")  # what the command line calls itself
LONGEST, WHOLE = 30_000, 8  # bytes of a kept log, and its rows that speak of every layer
# Of a result file: images, which are not ours to pass on, and the curve, which the log has. No comparison reads them.
DROPPED = ("examples", "curves")
FOLDER = re.compile(r"""^(\s*(?:- |[^\s:'"]+: ))['"]?/.*$""", re.MULTILINE)  # a path of one machine, in a recipe


@dataclass(frozen=True)
class Origin:
    """Where one run was trained, in words; empty where nothing says.

    Args:
        machine: Its GPUs, or its CPU cores.
        torch: Version.
        commit: Of the library, in short; "+" after it where the source was changed.
        commands: That trained it and that evaluated it.
    """

    machine: str
    torch: str
    commit: str
    commands: tuple[str, ...]


def origin(run: Run) -> Origin:
    """Where a run comes from, as its environment says, which may be missing or broken, or else its results."""
    given: Any = run.beside.get("environment")
    said: dict[str, Any] = {"versions": {}, "git": {}, "gpus": [], "command": [], "cpus": 0}
    for key, empty in said.items() if isinstance(given, dict) else ():
        if isinstance(given.get(key), type(empty)):
            said[key] = given[key]
    machine, _, torch = str(run.results.get("machine") or "").partition(", torch ")
    gpus: dict[str, int] = Counter(map(str, said["gpus"]))
    if gpus:
        machine = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in gpus.items())
    elif said["cpus"]:
        machine = f"{said['cpus']} CPU cores"
    git = dict(said["git"])
    commit = f"{git['commit'][:9]}{'+' * bool(git.get('dirty'))}" if isinstance(git.get("commit"), str) else ""
    command = [str(word) for word in said["command"]]
    command[:1] = [PROGRAM.sub("vnd", word) for word in command[:1]]
    commands = [shlex.join(portable(command)), portable(str(run.results.get("command") or ""))]
    torch = str(said["versions"].get("torch") or torch)
    return Origin(machine, torch, commit, tuple(filter(None, commands)))


def keep(runs: Sequence[Run], path: Path) -> int:
    """Write what a comparison reads of runs into one file, a run a line, so that a report of it is that of the runs.

    All numbers are as they were, but for a thinned log. Texts have no absolute paths.

    Args:
        runs: The runs, in the order that they are to have.
        path: The file, `.jsonl`.

    Returns:
        Its bytes.
    """
    if path.suffix != ".jsonl":
        raise ValueError(f"report: keep must be a file whose name ends in .jsonl; got {path}")
    recipes = tails([run.recipe for run in runs if run.recipe])
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(kept(run, recipes), ensure_ascii=False, allow_nan=False)}\n" for run in runs)
    write_text(path, text)
    return len(text.encode())


def kept(run: Run, recipes: dict[str, str]) -> dict[str, Any]:
    """What is kept of a run: "results", "environment", "data", "recipe" and "log", those that there are."""
    results = {key: value for key, value in run.results.items() if key not in DROPPED}
    results |= {key: portable(results[key]) for key in ("command", "chosen") if results.get(key)}
    if run.recipe and isinstance(results.get("series"), dict):
        results["series"] = {**results["series"], "recipe": recipes[run.recipe]}
    found: dict[str, Any] = {"results": results}
    environment = run.beside.get("environment")
    if isinstance(environment, dict):
        git = environment.get("git")
        own = {key: value for key, value in git.items() if key != "folder"} if isinstance(git, dict) else git
        found["environment"] = portable(environment | ({"git": own} if git is not None else {}))
    if "data" in run.beside:
        found["data"] = run.beside["data"]
    if "recipe" in run.beside:
        found["recipe"] = FOLDER.sub(r"\1null", run.beside["recipe"])
    if log := run.beside.get("log") or _log(run.path.parent / "metrics.jsonl"):
        found["log"] = thinned(log)
    return found


def thinned(rows: Sequence[dict[str, Any]], most: int = LONGEST) -> list[dict[str, Any]]:
    r"""A log that is not too long: every n-th row of training and of validation, and the last; n is the least for it.

    What a row says of every layer, its "units", is longer than all else and stays in a few rows.

    >>> [row["step"] for row in thinned([{"step": step, "loss": 1.0} for step in range(1, 8)], 90)]
    [1, 4, 7]
    """
    found = list(rows)
    kinds = [[at for at, row in enumerate(rows) if ("loss" in row) == loss] for loss in (True, False)]
    for step in range(1, len(rows) + 1):
        if sum(len(json.dumps(row)) + 1 for row in found) <= most:
            break
        some = [kind[::step] + kind[-1:] * bool((len(kind) - 1) % step) for kind in kinds if kind]
        whole = {kind[round(part * (len(kind) - 1) / (WHOLE - 1))] for kind in some for part in range(WHOLE)}
        found = [rows[at] if at in whole else _lean(rows[at]) for at in sorted(at for kind in some for at in kind)]
    return found


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


def portable(value: Any) -> Any:
    """A JSON value whose texts have, in the place of an absolute path, its last part alone.

    >>> portable({"folder": "/home/me/runs/first", "command": "vnd evaluate '/home/me/my runs/a' --out=/tmp/b"})
    {'folder': 'first', 'command': 'vnd evaluate a --out=b'}
    >>> portable(["--data.folder=/data/x", "T-shirt/top", "cifar10/bn3", 3])
    ['--data.folder=x', 'T-shirt/top', 'cifar10/bn3', 3]
    """
    if isinstance(value, dict):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    return _text(value) if isinstance(value, str) and "/" in value else value


def _text(text: str) -> str:
    if (short := _word(text)) != text:
        return short
    try:
        words = shlex.split(text)
    except ValueError:  # no command: a lone quote
        return " ".join(_word(word) for word in text.split(" "))
    short_words = [_word(word) for word in words]
    return text if short_words == words else shlex.join(short_words)


def _word(word: str) -> str:
    """A word that is an absolute path, or has one after its first "=", with the path's last part alone."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{Path(value).name}" if value.startswith("/") and len(value) > 1 else word


def _log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; what a kill left of one is none."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        found += [row] if isinstance(row, dict) else []
    return found


def _lean(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "units"}
