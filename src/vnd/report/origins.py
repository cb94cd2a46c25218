"""Where runs come from: machine, versions, commit and commands, without the paths of one machine."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vnd.report.runs import Run

ENVIRONMENT = "environment.json"
PROGRAM = re.compile(r"(vnd|__main__\.py)$")  # what the command line calls itself


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
    """Where a run comes from, as the files beside its results say, or else the results themselves.

    Args:
        run: The run; its `environment.json` may be missing or broken.
    """
    said = _environment(run.path.parent / ENVIRONMENT)
    machine, _, torch = str(run.results.get("machine") or "").partition(", torch ")
    gpus = Counter(said["gpus"])
    if gpus:
        machine = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in gpus.items())
    elif said["cpus"]:
        machine = f"{said['cpus']} CPU cores"
    git = said["git"]
    commit = f"{git['commit'][:9]}{'+' * bool(git.get('dirty'))}" if isinstance(git.get("commit"), str) else ""
    words = [PROGRAM.sub("vnd", word) if index == 0 else word for index, word in enumerate(said["command"])]
    commands = [shlex.join(portable(words)), portable(str(run.results.get("command") or ""))]
    torch = str(said["versions"].get("torch") or torch)
    return Origin(machine, torch, commit, tuple(command for command in commands if command))


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


def _environment(path: Path) -> dict[str, Any]:
    """What the file says, each part of the type that it should have; what is missing or broken is empty."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        said = {}
    found: dict[str, Any] = {"versions": {}, "git": {}, "gpus": [], "command": [], "cpus": 0}
    for key, empty in found.items() if isinstance(said, dict) else ():
        if isinstance(said.get(key), type(empty)):
            found[key] = said[key]
    for key in ("gpus", "command"):
        found[key] = [str(one) for one in found[key]]
    return found
