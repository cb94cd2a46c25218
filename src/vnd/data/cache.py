"""Decoded images kept as `.npy` files and memory-mapped, as long as the files they were made of do not change.

Beside each lies its SHA-256, as `sha256sum` writes it, which is checked when a process first uses the file.
"""

import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vnd.files import sync, write_text

VERSION = 1  # of what decoding makes of a file; another one makes all caches anew
_checked: set[tuple[str, int, int, int, int]] = set()  # the files whose checksum this process has found right


def data_root() -> Path:
    """The folder of all data sets: the environment variable `VND_DATA`, else `~/.cache/vnd/data`."""
    given = os.environ.get("VND_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "vnd" / "data"


def key(folder: Path, files: Sequence[Path], how: str) -> str:
    """A name for what decoding makes of these files: another one if any name, size, time or order changes."""
    digest = hashlib.sha256(json.dumps([VERSION, how, len(files)]).encode())
    for file in files:
        about = file.stat()
        digest.update(json.dumps([str(file.relative_to(folder)), about.st_size, about.st_mtime_ns]).encode())
    return digest.hexdigest()[:16]


def cached(
    folder: Path, label: str, name: str, shape: tuple[int, ...], blocks: Iterator[NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """The uint8 array of a cache file, memory-mapped; made of `blocks` if it is not there.

    The file lies beside the data set, in `.FOLDER.vnd-cache/`, or, where that cannot be written, below `data_root()`;
    where neither can, the array stays in memory. A file whose bytes are not those that were written is made anew, with
    a warning.

    Args:
        folder: The data set's folder.
        label: What it is of; a cache of the same label and another name is out of date, and removed.
        name: What `key` says.
        shape: Of the array.
        blocks: Its parts along the first dimension, in order; not asked for if the file is there.
    """
    folder = folder.resolve()
    inner = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    places = folder.parent / f".{folder.name}.vnd-cache", data_root() / "cache" / inner
    for place in places:
        found = _open(place / f"{label}-{name}.npy", shape)
        if found is not None:
            return found
    for place in places:
        part = place / f".{label}-{name}.{os.getpid()}.part"  # two processes may write the same cache
        try:
            place.mkdir(parents=True, exist_ok=True)
            part.touch()
        except OSError:
            continue
        _write(part, place / f"{label}-{name}.npy", shape, blocks)
        _tidy(place, label, name)
        found = _open(place / f"{label}-{name}.npy", shape)
        if found is not None:
            return found
        raise OSError(f"{place / f'{label}-{name}.npy'}: was changed while it was written; read again")
    return np.concatenate(list(blocks))


def _open(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The file as an array, if it is one of this shape and has its checksum; a damaged one is as good as none."""
    try:
        if not _intact(path):
            text = f"cache: {path} is damaged: its SHA-256 is not the one that was written; decoding the images anew"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _intact(path: Path) -> bool:
    """Whether a file has the SHA-256 that lies beside it; an OSError if one of the two is missing."""
    about = path.stat()
    mark = str(path), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
    if mark in _checked:
        return True
    wanted = _sum_of(path).read_text(encoding="utf-8", errors="replace")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if wanted.split()[:1] != [found]:
        return False
    _checked.add(mark)
    return True


def _sum_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _write(part: Path, path: Path, shape: tuple[int, ...], blocks: Iterator[NDArray[np.uint8]]) -> None:
    """Write the blocks one after the other and put the file in place; after any error nothing is left.

    Not through a memory map, which on a full disk would end the process.
    """
    digest = hashlib.sha256()  # of what is meant, not of what the disk has made of it
    try:
        with part.open("wb") as file:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
            digest.update(header.getvalue())
            file.write(header.getvalue())
            start = file.tell()
            for block in blocks:
                values = np.ascontiguousarray(block).data
                digest.update(values)
                file.write(values)
            if file.tell() - start != prod(shape):
                raise ValueError(f"{path}: got {file.tell() - start} bytes for an array of {shape}")
        sync(part)
        os.replace(part, path)
        sync(path.parent)
        write_text(_sum_of(path), f"{digest.hexdigest()}  {path.name}\n")
    except OSError as error:
        if error.errno is None:  # of decoding, which says more itself
            raise
        raise OSError(f"{path}: {error.strerror}; make room for the cache of decoded images") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _tidy(place: Path, label: str, name: str) -> None:
    for old in (*place.glob(f"{label}-*.npy"), *place.glob(f"{label}-*.sha256")):
        if (
            re.fullmatch(rf"{re.escape(label)}-[0-9a-f]{{16}}\.(npy|sha256)", old.name)
            and old.stem != f"{label}-{name}"
        ):
            with suppress(OSError):
                old.unlink(missing_ok=True)
