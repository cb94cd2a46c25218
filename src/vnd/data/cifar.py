"""CIFAR-10 and CIFAR-100 in their binary versions: records of labels and 3,072 pixels, plane by plane."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vnd.data.arrays import Images, check_labels

PIXELS = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))


def read_cifar10(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `data_batch_1.bin` … `data_batch_5.bin`, or `test_batch.bin`, which is memory-mapped.

    Krizhevsky (2009); 50,000 and 10,000 images of 10 classes, whose names are in `batches.meta.txt`.
    """
    names = BATCHES if split == "train" else ("test_batch.bin",)
    batches = [_records(folder / name, label_bytes=1, classes=10) for name in names]
    for name, batch in zip(names, batches, strict=True):
        if len(batch) != len(batches[0]):  # as when a file was cut off just between two records
            raise ValueError(
                f"{folder / name}: must have as many records as {names[0]}, {len(batches[0])}; got {len(batch)}"
            )
    records = batches[0] if len(batches) == 1 else np.concatenate(batches)
    return _images(records, 1, _names(folder / "batches.meta.txt", 10))


def read_cifar100(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `train.bin` or `test.bin`, memory-mapped; the fine labels, and not the coarse ones before them.

    Krizhevsky (2009); 50,000 and 10,000 images of 100 classes, whose names are in `fine_label_names.txt`.
    """
    records = _records(folder / f"{split}.bin", label_bytes=2, classes=100)
    return _images(records, 2, _names(folder / "fine_label_names.txt", 100))


def _records(path: Path, label_bytes: int, classes: int) -> NDArray[np.uint8]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    size, length = path.stat().st_size, label_bytes + PIXELS
    if not size or size % length:
        raise ValueError(f"{path}: is cut off in record {size // length}; a record has {length} bytes, the file {size}")
    records = np.memmap(path, np.uint8, "r", shape=(size // length, length))
    check_labels(records[:, label_bytes - 1], classes, str(path), "record")
    return records


def _images(records: NDArray[np.uint8], label_bytes: int, names: tuple[str, ...]) -> Images:
    pixels = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return Images(pixels, records[:, label_bytes - 1].astype(np.int64), names)


def _names(path: Path, count: int) -> tuple[str, ...]:
    """The names of the classes; their numbers where the file of names was left behind."""
    if not path.is_file():
        return tuple(map(str, range(count)))
    names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if len(names) != count:
        raise ValueError(f"{path}: must have {count} names; got {len(names)}")
    return names
