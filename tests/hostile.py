"""Hostile disks and hostile files, for the tests of all that is written and read in checksummed folders."""

import errno
import json
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from vnd import _manifest


class Calls:
    """Stands in the way of every call that writes, and at one of them does something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *more: tuple[Any, str]) -> None:
        self.count, self.at, self.names = 0, -1, list[str]()
        self.action: Callable[[], None] = lambda: None
        for owner, name in ((_manifest, "save_file"), (os, "fsync"), (os, "replace"), (Path, "write_text"), *more):
            monkeypatch.setattr(owner, name, self._wrap(name, getattr(owner, name)))

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            here, self.count = self.count, self.count + 1
            self.names.append(name)
            if here != self.at:
                return call(*args, **kwargs)
            if name in ("save_file", "write_text"):  # the disk is full half way
                path = args[1] if name == "save_file" else args[0]
                with open(path, "wb") as file:
                    file.write(b"half")
            return self.action()

        return wrapped

    def restart(self, at: int, action: Callable[[], None] = lambda: None) -> None:
        self.count, self.at, self.action, self.names = 0, at, action, []


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken_disk() -> None:
    raise OSError(errno.EIO, "Input/output error")


def read_only() -> None:  # tests may run as root, whom no mode of a folder stops
    raise OSError(errno.EROFS, "Read-only file system")


def interrupted() -> None:
    raise KeyboardInterrupt


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def short_writes(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes: the system writes that many and no more."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def forked(work: Callable[[], object]) -> int:
    """Start a child that does `work` and ends with code 0, or with 1 after an error; return its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons fear for torch's threads
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a child; its exit code, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def flips(whole: bytes, count: int, draw: Random) -> Iterator[bytes]:
    """A file with one bit flipped; two in five of them in its header, if it has one."""
    header = 8 + int.from_bytes(whole[:8], "little") if whole[:1] != b"{" else len(whole)
    for index in range(count):
        broken = bytearray(whole)
        broken[draw.randrange(len(whole) if index % 5 < 3 else header)] ^= 1 << draw.randrange(8)
        yield bytes(broken)


def cuts(whole: bytes, count: int, draw: Random) -> Iterator[bytes]:
    """A file cut short, or with more at its end."""
    for size in (0, 1, 7, 8, 9, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(count))):
        yield whole[:size]
    yield from (whole + more for more in (b"x", b"{}", b"\n", b"\0" * 100))


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any], sign: bool = True) -> None:
    """Change a manifest as somebody with ill intent would, who also makes its checksum right."""
    manifest = json.loads(path.read_text())
    change(manifest)
    if sign:
        manifest["checksum"] = _manifest.checksum(manifest)
    path.write_text(json.dumps(manifest, indent=1) + "\n")


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def nested_dict(depth: int) -> str:
    return '{"format": 1, "kind": ' + '{"a":' * depth + "1" + "}" * depth + "}"


DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {  # what no manifest may say
    "traversal": lambda m: m.update(tensors="../net/" + m["tensors"]),
    "absolute path": lambda m: m.update(tensors="/etc/passwd"),
    "absolute safetensors": lambda m: m.update(tensors="/tmp/" + m["tensors"]),
    "another name": lambda m: m.update(tensors="x.safetensors"),
    "a pickle as tensors": lambda m: m.update(tensors="tensors.pkl"),
    "a name of two lines": lambda m: m.update(tensors="a\nb.safetensors"),
    "a name with zero": lambda m: m.update(tensors="a\0.safetensors"),
    "a name that is none": lambda m: m.update(tensors=7),
    "no tensors": lambda m: m.pop("tensors"),
    "no format": lambda m: m.pop("format"),
    "format 2": lambda m: m.update(format=2),
    "format 0": lambda m: m.update(format=0),
    "format of words": lambda m: m.update(format="1"),
    "no sha256": lambda m: m.pop("sha256"),
    "list as sha256": lambda m: m.update(sha256=list(m["sha256"])),
    "number as sha256": lambda m: m.update(sha256=5),
    "numbers in sha256": lambda m: m["sha256"].update(dict.fromkeys(m["sha256"], 0)),
}

MANIFESTS = [  # what is no manifest
    *("", "null", "[]", "3", '"network"', "{}", "{", "\ufeff{}", "[" * 10**5, '{"a":' * 10**5, nested_dict(10**5)),
    *(nested_dict(900), '{"format": ' + "9" * 5000 + "}", '{"format": NaN}', '{"format": 1, "format": 2}', "\0" * 50),
]

HEADERS = [  # what is no safetensors file
    b"\xff" * 8,
    (10**12).to_bytes(8, "little") + b"{}",
    (2).to_bytes(8, "little") + b"{}",
    *(
        len(text).to_bytes(8, "little") + text + bytes(8)
        for text in (
            b"[1]",
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1000]}}',
            b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,8]}}',
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
            b'"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}',
            b'{"a":{"dtype":"pickle","shape":[2],"data_offsets":[0,8]}}',
            b'{"a":' * 2000,
        )
    ),
]
