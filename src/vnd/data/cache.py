"""Decoded images kept as `.npy` files and memory-mapped, as long as the files they were made of do not change."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vnd.files import sync

VERSION = 1  # of what decoding makes of a file; another one makes all caches anew


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
    where neither can, the array stays in memory.

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
    """The file as an array, if it is one of this shape; a damaged one is as good as none."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _write(part: Path, path: Path, shape: tuple[int, ...], blocks: Iterator[NDArray[np.uint8]]) -> None:
    """Write the blocks one after the other and put the file in place; after any error nothing is left.

    Not through a memory map, which on a full disk would end the process.
    """
    try:
        with part.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            for block in blocks:
                file.write(np.ascontiguousarray(block).data)
            if file.tell() - start != prod(shape):
                raise ValueError(f"{path}: got {file.tell() - start} bytes for an array of {shape}")
        sync(part)
        os.replace(part, path)
        sync(path.parent)
    except OSError as error:
        if error.errno is None:  # of decoding, which says more itself
            raise
        raise OSError(f"{path}: {error.strerror}; make room for the cache of decoded images") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _tidy(place: Path, label: str, name: str) -> None:
    for old in place.glob(f"{label}-*.npy"):
        if re.fullmatch(rf"{re.escape(label)}-[0-9a-f]{{16}}\.npy", old.name) and old.name != f"{label}-{name}.npy":
            with suppress(OSError):
                old.unlink(missing_ok=True)
