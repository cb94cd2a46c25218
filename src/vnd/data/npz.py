"""A user's own arrays in one NumPy `.npz` file."""

import struct
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vnd.data.arrays import DEFLATE, Images, check_labels, last_fifth
from vnd.files import one_line

MOST_CLASSES = 65_536
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, OverflowError, UnicodeError)


def read(path: Path, split: Literal["train", "test"]) -> Images:
    """Read x_train, y_train, x_test and y_test, or x and y, of which the last 20 % of each class are the test split.

    x is (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3, as uint8, or as floats between 0 and 1, which become the
    nearest of 0 … 255. y is (N,) or (N, 1), whole numbers from 0; it may be left out. Classes are 0 … the highest label
    of both splits. Nothing is unpickled.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            names = {Path(name).stem: name for name in archive.namelist() if name.endswith(".npy")}
            divided = "x_train" in names or "x_test" in names
            x, y = (f"x_{split}", f"y_{split}") if divided else ("x", "y")
            if x not in names:
                raise ValueError(f"{path}: must have x_train and x_test, or x; it has {', '.join(names) or 'nothing'}")
            pixels = _pixels(_array(archive, names[x], f"{path}: {x}"), f"{path}: {x}")
            labels = {
                name: _labels(_array(archive, names[name], f"{path}: {name}"), f"{path}: {name}")
                for name in ("y_train", "y_test", "y")
                if name in names and (name == "y") != divided
            }
    except DAMAGE as error:
        raise ValueError(f"{path}: is cut off, or not a .npz file: {one_line(error)}") from None
    images = Images(pixels)
    if y in labels:
        if len(labels[y]) != len(pixels):
            raise ValueError(
                f"{path}: {y} must have a label for each of the {len(pixels)} images; got {len(labels[y])}"
            )
        highest = max(int(values.max(initial=-1)) for values in labels.values())
        images = Images(pixels, labels[y], tuple(map(str, range(highest + 1))))
    return images if divided else _divided(images, split)


def _array(archive: zipfile.ZipFile, name: str, where: str) -> NDArray[Any]:
    """One array, if the file has the bytes that its header promises; memory is not asked for before that."""
    about = archive.getinfo(name)
    if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{where}: must be stored or deflated, as numpy.savez has it")
    with archive.open(about) as file:
        try:
            version = np.lib.format.read_magic(file)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = reader(file)
            start = file.tell()
        except Exception as error:  # it is parsed as Python, so of many kinds
            raise ValueError(f"{where}: is not an array of NumPy: {one_line(error)}") from None
        if dtype.hasobject:
            raise ValueError(f"{where}: must hold numbers; it holds Python objects, which are not unpickled")
        size = prod(shape) * dtype.itemsize
        if start + size != about.file_size or about.file_size > DEFLATE * (about.compress_size + 1):
            raise ValueError(f"{where}: its header promises {shape} of {dtype}, which the file does not hold")
        file.seek(0)
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _pixels(x: NDArray[Any], where: str) -> NDArray[np.uint8]:
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim != 4 or (x.shape[1] in (1, 3)) == (x.shape[3] in (1, 3)):
        wanted = "(N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3, at one end only"
        raise ValueError(f"{where}: must be {wanted}; got {x.shape}")
    elif x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if np.issubdtype(x.dtype, np.floating):
        wrong = np.argwhere(~((x >= 0) & (x <= 1)))  # also NaN
        if len(wrong):
            raise ValueError(f"{where}: floats must lie in 0 … 1; image {wrong[0][0]} has {x[tuple(wrong[0])]}")
        scaled = np.multiply(x, 255, dtype=np.promote_types(x.dtype, np.float32))
        rounded: NDArray[np.uint8] = np.rint(scaled).astype(np.uint8)
        return rounded
    if x.dtype != np.uint8:
        raise ValueError(f"{where}: must be uint8, or floats in 0 … 1; got {x.dtype}")
    return np.ascontiguousarray(x)


def _labels(y: NDArray[Any], where: str) -> NDArray[np.int64]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{where}: must be whole numbers (N,); got {y.dtype} {y.shape}")
    check_labels(y, MOST_CLASSES, where)
    return y.astype(np.int64)


def _divided(images: Images, split: Literal["train", "test"]) -> Images:
    """The last 20 % of each class, or all but those; of all images where there are no labels."""
    labels = np.zeros(len(images), np.int64) if images.labels is None else images.labels
    test = np.zeros(len(images), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        test[members[len(members) - last_fifth(len(members)) :]] = True
    return images.take(np.flatnonzero(test if split == "test" else ~test))
