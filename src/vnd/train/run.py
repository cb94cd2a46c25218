"""The folder of a run: who holds it, where it ran, and what it measured on the way.

runs/x/{recipe.yaml, environment.json, data.json, metrics.jsonl, checkpoints/, best/, last/, lock}
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import platform
import re
import shlex
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from vnd import _files, _text

LOCK, HOLDER = "lock", "lock.json"  # the second says who holds the first
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, which is made if need be; a second holder is refused by a ValueError of one line.

    The kernel drops the lock of a process that ends, however it ends, so a dead holder is no obstacle. A holder on
    another host that did not end properly is named in a warning: not every network file system shows its locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held, process, host = FileLock(folder / LOCK, timeout=0, fallback_to_soft=False), os.getpid(), socket.gethostname()
    try:
        held.acquire()
    except Timeout:
        holder = _say(_holder(folder))
        raise ValueError(f"run: {folder} is in use by {holder}; wait for it or give another folder") from None
    except OSError as error:
        if error.errno not in _files.NO_LOCKS:
            raise
        text = f"run: {folder} is on a file system without locks ({error.strerror}); give a folder on another"
        raise OSError(text) from None
    try:
        left = _holder(folder)
        if left and left.get("host") != host:
            text = f"run: {folder} was held by {_say(left)}, which did not end properly; if it still runs, stop it"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        own = {"pid": process, "host": host, "command": shlex.join(_command())[:200]}
        (folder / HOLDER).write_text(json.dumps(own), encoding="utf-8")
        yield
    finally:
        if os.getpid() == process:  # and not in a forked child, which filelock lets go of it
            with suppress(OSError):
                (folder / HOLDER).unlink()
            held.release()


def is_locked(folder: Path) -> bool:
    """Tell if a process holds the folder of a run; where nobody says so the lock is not tried, for a run may start."""
    if not (folder / HOLDER).exists():
        return False
    held = FileLock(folder / LOCK, timeout=0, fallback_to_soft=False)
    try:
        held.acquire()
    except Timeout:
        return True
    held.release()
    return False


def environment() -> dict[str, Any]:
    """Environment of a run: versions, commit, machine and command; no environment variables.

    >>> sorted(environment())
    ['command', 'cpus', 'git', 'gpus', 'platform', 'versions']
    """
    versions: dict[str, str | None] = {"python": platform.python_version()}
    packages = {"vnd": "variational-nested-dropout", "torch": "torch", "numpy": "numpy", "safetensors": "safetensors"}
    for name, package in (packages | {"accelerate": "accelerate"}).items():
        try:
            versions[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[name] = None
    versions |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    return {
        "versions": versions,
        "git": _commit(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": _command(),
    }


class Log:
    """Rows of numbers, one JSON object a line; each has its "step", and the file is one history of the run.

    What is not finite is written as "nan", "inf" or "-inf", so that every line is strict JSON and `float` reads it.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: dict[str, Any]) -> None:
        """Add a row: all of it, or after an error nothing."""
        if type(row.get("step")) is not int:
            raise ValueError(f"Log: a row must have its step, an int; got {row.get('step')!r}")
        line = json.dumps(_finite(row), allow_nan=False).encode() + b"\n"
        with self.path.open("a+b", buffering=0) as file:
            size = self._whole(file)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            except BaseException:
                file.truncate(size)
                raise

    def read(self) -> list[dict[str, Any]]:
        """All rows; without the last one if a kill left only the beginning of it."""
        return [row for row, _ in self._rows()]

    def truncate(self, step: int) -> None:
        """Drop, in one step, the rows beyond `step`, from which training goes on, and what a kill left of a row."""
        if self.path.exists():
            _files.write_text(self.path, "".join(line + "\n" for row, line in self._rows() if row["step"] <= step))

    def _whole(self, file: io.FileIO) -> int:
        """Drop what a kill left of a row, and return the size."""
        size = file.seek(0, os.SEEK_END)
        if size and (file.seek(size - 1), file.read(1))[1] != b"\n":
            size = self.path.read_bytes().rfind(b"\n") + 1
            file.truncate(size)
        return size

    def _rows(self) -> Iterator[tuple[dict[str, Any], str]]:
        """All rows, each with its line."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], 1):  # what follows the last line's end is the beginning of a row
            try:
                row = json.loads(line.decode())
                if type(row["step"]) is not int:
                    raise ValueError(f"step must be an int; got {row['step']!r}")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ValueError(f"run: line {number} of {self.path} is damaged: {_text.one_line(error)}") from None
            yield row, line.decode()


def _holder(folder: Path) -> dict[str, Any]:
    """Process that wrote that it holds a folder; nothing if it was left in order, or is of somebody else."""
    try:
        with (folder / HOLDER).open("rb") as file:
            found = json.loads(file.read(4096))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _say(holder: dict[str, Any]) -> str:
    if not holder:
        return "another process"
    words = f"process {holder.get('pid')} on {holder.get('host')} ({holder.get('command')})"
    return " ".join(words.split())[:300]


def _command() -> list[str]:
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def _commit() -> dict[str, str] | None:
    """The commit of the library's own source, where it runs from a checkout; None for an installed copy.

    Read by hand: git would obey the configuration that it finds, which can name programs to run. The current folder is
    not looked at.
    """
    source = Path(_files.__file__).resolve().parent
    root = source.parent.parent
    if source.parent.name != "src" or not (root / "pyproject.toml").is_file():
        return None
    try:
        commit = _head(root / ".git")
    except (OSError, ValueError):
        return None
    return None if commit is None else {"folder": str(source), "commit": commit}


def _head(git: Path) -> str | None:
    """The commit that a checkout stands at; None if it cannot be told."""
    if git.is_file():  # of a second working tree, or a submodule
        git = git.parent / _short(git).removeprefix("gitdir: ")
    common = git / _short(git / "commondir") if (git / "commondir").is_file() else git
    said = _short(git / "HEAD")
    name, places = said.removeprefix("ref: "), [said]
    if name != said and re.fullmatch(r"refs/[^\x00-\x20]+", name) and ".." not in name:
        places += [_short(place / name) for place in (git, common) if (place / name).is_file()]
        packed = common / "packed-refs"
        lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
        places += [line.split(" ")[0] for line in lines if line.endswith(f" {name}")]
    return next((place for place in places if COMMIT.fullmatch(place)), None)


def _short(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(4096).strip()


def _finite(value: Any) -> Any:
    """A value with words for the numbers that JSON does not have; tensors and arrays of one number are numbers."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    value = value.item() if hasattr(value, "item") else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
