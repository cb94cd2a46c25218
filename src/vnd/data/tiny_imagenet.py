"""Tiny ImageNet: 64×64 JPEG files in a folder a class, and one folder for validation."""

from pathlib import Path
from typing import Literal

import numpy as np

from vnd.data.arrays import Images
from vnd.data.decode import Form, decode, pictures

FORM = Form(3, 64, 64)


def read(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `train/*/images/*.JPEG`, or, since the official test images have no labels, `val/images/*.JPEG` as test.

    Stanford CS231n; 100,000 and 10,000 images of 200 classes, numbered in the order of `wnids.txt`. Grey images, of
    which there are some, become RGB by repeating.
    """
    path = folder / "wnids.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    classes = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if not classes or len(set(classes)) != len(classes):
        raise ValueError(f"{path}: must name each class once; got {len(classes)} names, {len(set(classes))} different")
    if split == "test":
        files, labels = _annotated(folder / "val", classes)
    else:
        groups = [pictures(folder / "train" / name / "images", (".jpeg",)) for name in classes]
        files = [file for group in groups for file in group]
        labels = [label for label, group in enumerate(groups) for _ in group]
    return Images(decode(folder, f"tiny-imagenet-{split}", files, FORM), np.array(labels, np.int64), classes)


def _annotated(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The images that `val_annotations.txt` names, and their classes: name, class and a box in a line, by tabs."""
    path = folder / "val_annotations.txt"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    there = {file.name: file for file in pictures(folder / "images", (".jpeg",))}
    numbers = {name: label for label, name in enumerate(classes)}
    labels = dict[str, int]()
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        name, kind, *_ = (*text.split("\t"), "", "")
        if kind not in numbers:
            raise ValueError(f"{path}: line {line}: the class must be one of wnids.txt; got {kind!r}")
        if name not in there:
            raise FileNotFoundError(f"{folder / 'images' / name}: no such file, named in line {line} of {path.name}")
        if name in labels:
            raise ValueError(f"{path}: line {line}: names {name} a second time")
        labels[name] = numbers[kind]
    unnamed = next((name for name in there if name not in labels), None)
    if unnamed is not None:
        raise ValueError(f"{there[unnamed]}: has no line in {path}")
    return [there[name] for name in labels], list(labels.values())
