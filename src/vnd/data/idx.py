"""The IDX format of MNIST and its kin: a header that gives the sizes, then one byte a number."""

import gzip
import io
import struct
import zlib
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vnd.data.arrays import DEFLATE, Images, check_labels

CHUNK = 2**20
STEMS = {"train": "train", "test": "t10k"}


def read(folder: Path, split: Literal["train", "test"], classes: tuple[str, ...], size: int) -> Images:
    """Read `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, plain (memory-mapped) or with `.gz`.

    Args:
        folder: Where the files lie.
        split: Which one; t10k is the test split.
        classes: Names of the classes.
        size: Height and width that the images must have.
    """
    images, labels = (_find(folder / f"{STEMS[split]}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    return assemble(read_file(images, 3), read_file(labels, 1), classes, size, images, labels)


def assemble(
    pixels: NDArray[np.uint8], labels: NDArray[np.uint8], classes: tuple[str, ...], size: int, images: Any, where: Any
) -> Images:
    """A split of two IDX arrays; `images` and `where` name their files."""
    if pixels.shape[1:] != (size, size):
        raise ValueError(f"{images}: images must have {size}×{size} pixels; got {pixels.shape[2]}×{pixels.shape[1]}")
    if len(labels) != len(pixels):
        raise ValueError(f"{where}: must have a label for each of the {len(pixels)} images; got {len(labels)}")
    check_labels(labels, len(classes), where, "record")
    return Images(pixels[:, None], labels.astype(np.int64), classes)


def read_file(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one IDX file of bytes; a plain one is memory-mapped."""
    size = path.stat().st_size
    if path.suffix != ".gz":
        with path.open("rb") as file:
            shape = header(file, dimensions, str(path), most=size)
            start = file.tell()
        if prod(shape) != size - start:
            raise _wrong_length(shape, size - start, str(path))
        return np.memmap(path, np.uint8, "r", start, shape) if size > start else np.zeros(shape, np.uint8)
    with gzip.GzipFile(path) as stream:
        return parse(stream, dimensions, str(path), most=DEFLATE * size)


def parse(stream: io.BufferedIOBase, dimensions: int, where: str, most: int) -> NDArray[np.uint8]:
    """Read IDX from a stream of decompressed bytes, never more of them than the header promises, and one."""
    shape = header(stream, dimensions, where, most)
    body, size = bytearray(), prod(shape)
    try:
        while len(body) <= size and (part := stream.read1(min(CHUNK, size + 1 - len(body)))):
            body += part  # grows with what there is, whatever was promised
    except (EOFError, OSError, zlib.error) as error:
        raise _damaged(shape, len(body), where, error) from None
    if len(body) != size:
        raise _wrong_length(shape, len(body), where)
    return np.frombuffer(body, np.uint8).reshape(shape)


def header(stream: io.BufferedIOBase, dimensions: int, where: str, most: int) -> tuple[int, ...]:
    """The sizes that a header gives, if a file with room for `most` bytes can keep its promise."""
    try:
        head = stream.read(4 + 4 * dimensions)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{where}: is damaged in its header ({type(error).__name__}: {error})") from None
    if head[:4] != bytes([0, 0, 8, dimensions]):
        wanted = f"an IDX file of bytes in {dimensions} dimensions"
        raise ValueError(
            f"{where}: must be {wanted}, beginning 0 0 8 {dimensions}; it begins {' '.join(map(str, head[:4]))}"
        )
    if len(head) < 4 + 4 * dimensions:
        raise ValueError(f"{where}: is cut off in its header")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    if prod(shape) > most:
        raise ValueError(f"{where}: its header promises {' × '.join(map(str, shape))} bytes, more than it can hold")
    return shape


def _find(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    found = next((x for x in (path, packed) if x.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{path}: neither it nor {packed.name} is there")
    return found


def _wrong_length(shape: tuple[int, ...], length: int, where: str) -> ValueError:
    if length > prod(shape):
        return ValueError(f"{where}: has more bytes than the {shape[0]} records that its header promises")
    return ValueError(f"{where}: is cut off in record {length // prod(shape[1:])} of {shape[0]}")


def _damaged(shape: tuple[int, ...], length: int, where: str, error: Exception) -> ValueError:
    record = length // max(1, prod(shape[1:]))
    return ValueError(
        f"{where}: is cut off or damaged at record {record} of {shape[0]} ({type(error).__name__}: {error})"
    )
