"""A folder a class: Chest X-ray, and a user's own images."""

from pathlib import Path
from typing import Literal

import numpy as np

from vnd.data.arrays import Images, last_fifth
from vnd.data.decode import Form, decode, pictures, probe, subfolders


def read_chest_xray(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `{train,test}/{NORMAL,PNEUMONIA}/*` as grey, the whole frame resized to 64×64, whatever its aspect.

    Kermany et al. (2018); 5,232 and 624 images. What some copies have as `val/` is not read.
    """
    classes = "NORMAL", "PNEUMONIA"
    groups = [pictures(folder / split / name) for name in classes]
    return _labelled(folder, f"chest-xray-{split}", groups, classes, Form(1, 64, 64, luma=True, resize=True))


def read_own(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `{train,test}/CLASS/*`, or `CLASS/*`, of PNG, JPEG and BMP files that all have one size.

    Classes are numbered by name, as the training folder has them. Without a division, the last 20 % of each class by
    name (`arrays.last_fifth`) are the test split. Images are RGB if the first one is, and a grey one among them is
    repeated; if the first one is grey, all must be.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    divided = [x for x in (folder / "train", folder / "test") if x.is_dir()]
    roots = subfolders(divided[0] if divided else folder)
    classes = tuple(x.name for x in roots)
    if divided:
        place = folder / split
        stray = [x for x in subfolders(place) if x.name not in classes]
        if stray:
            raise ValueError(f"{stray[0]}: is a class that {divided[0]} does not have")
        groups = [pictures(place / name) if (place / name).is_dir() else [] for name in classes]
    else:
        groups = [_part(pictures(root), split) for root in roots]
    if not any(groups):
        raise ValueError(f"{folder}: must have at least two images of some class, to have a test split")
    return _labelled(folder, f"folder-{split}", groups, classes, probe(pictures(roots[0])[0]))


def _part(files: list[Path], split: Literal["train", "test"]) -> list[Path]:
    first = len(files) - last_fifth(len(files))
    return files[first:] if split == "test" else files[:first]


def _labelled(folder: Path, label: str, groups: list[list[Path]], classes: tuple[str, ...], form: Form) -> Images:
    files = [file for group in groups for file in group]
    labels = np.array([number for number, group in enumerate(groups) for _ in group], np.int64)
    return Images(decode(folder, label, files, form), labels, classes)
