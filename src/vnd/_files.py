"""Files that survive what happens to them: written in one step, by one writer at a time.

Readers of a file that `put` or `write_text` writes, also after a kill, a full disk or a loss of power, see the old one
or the new one. `exclusive` keeps other writers of a folder waiting.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PART = re.compile(r"\.(.+?)(?:\.[0-9]+-[0-9a-f]{8})?\.part")
LOCK = ".lock"  # in a folder that is being written; whoever holds it removes it
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
STALE = 3600  # seconds after which a part of a file is of a writer that was killed
_held: set[int] = set()  # the open lock files of this process


def write_text(path: Path, text: str) -> None:
    """Write a small file in one step: whoever reads it, also after a kill or a full disk, sees the old or the new."""
    put(path, lambda part: part.write_text(text, encoding="utf-8", newline="\n"))


def write_json(path: Path, content: Any) -> None:
    """Write plain values as JSON in one step, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then put it there in one step that outlives a loss of power.

    A link is followed, and the file that it leads to is replaced. Into what is no regular file (a device, a pipe, one
    of this process's open files such as /dev/stdout) the contents are written as they are.
    """
    target = _target(path)
    if target is not None:
        replace_file(target, write)
        _tidy_parts(target)
        return
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part"
        write(part)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        with open(handle, "wb") as file:
            file.write(part.read_bytes())


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a name that nobody else has, then rename it."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        write(part)
        sync(part)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; Windows has no such call for folders."""
    is_folder = path.is_dir()
    if is_folder and not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs only what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _tidy_parts(path: Path) -> None:
    """Remove the parts that killed writers of this file have left long ago."""
    with suppress(OSError):
        for part in path.parent.glob(".*.part"):
            if written_for(part) == path.name and is_stale(part, path):
                part.unlink(missing_ok=True)


def written_for(part: Path) -> str:
    """The name of the file that a part was to become."""
    match = PART.fullmatch(part.name)
    return match[1] if match else ""


def is_stale(part: Path, written: Path) -> bool:
    """Tell if a file is much older than one that was just written, by the clock of their file system."""
    return written.stat().st_mtime - part.stat().st_mtime > STALE


def _target(path: Path) -> Path | None:
    """The place of a regular file that a path leads to, there or not; None for what must not be replaced."""
    place = Path(os.path.abspath(path))
    for _ in range(40):  # links; the kernel follows as many
        if place.parts[1:2] in (("dev",), ("proc",)) and os.path.lexists(place):
            return place if place.is_relative_to("/dev/shm") and _regular(place) else None
        if not place.is_symlink():
            break
        place = Path(os.path.abspath(place.parent.resolve() / os.readlink(place)))
    return place if not os.path.lexists(place) or _regular(place) else None


def _regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


@contextmanager
def exclusive(folder: Path) -> Iterator[bool]:
    """Wait until no other process or thread writes into a folder, and keep them waiting.

    The kernel drops the lock of a process that ends, however it ends, so a killed writer keeps nobody waiting. The lock
    file is removed by whoever holds it, so one that waited for a removed file tries again.

    Yields:
        True; False where there are no locks (Windows, some network file systems), and nobody waits.
    """
    handle = _locked(folder / LOCK)
    if handle is None:
        yield False
        return
    _held.add(handle)
    try:
        yield True
    finally:
        if handle in _held:  # not in a forked child
            _held.discard(handle)
            with suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
            os.close(handle)


def _locked(path: Path) -> int | None:
    """An open lock file that is locked and in its place; None where there are no locks."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(handle)
                raise
            with suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _leave() -> None:
    """Let go of all locks in a forked child, or one that outlives a killed writer would keep others waiting."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
