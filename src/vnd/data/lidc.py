"""LIDC-IDRI slices: lung nodules in CT, each marked by four graders."""

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np

from vnd.data.decode import Form, decode, natural, pictures, subfolders
from vnd.data.images import Images

FORM = Form(1, 128, 128, luma=True)
MASK = Form(1, 128, 128, luma=True, binary=True)
GRADERS = 4


def read(folder: Path, split: Literal["train", "test"]) -> Images:
    r"""Read `PATIENT/nodule-k/images/slice-j.png` as grey 128×128, and `mask-0` … `mask-3` beside it.

    Armato et al. (2011). `groups` is the number of the patient among all in the folder, `group_names` what these are
    called. The test split is a fifth of the patients, chosen by name alone: those for whom $h / 2^{64} < 0.2$, with h
    the first eight bytes of the SHA-256 of `lidc-2:PATIENT`. So a patient stays on the same side whoever else is there;
    of the names LIDC-IDRI-0001 … 1012 it takes 19.4 %.
    """
    groups, images = list[int](), list[Path]()
    patients = subfolders(folder)
    for number, patient in enumerate(patients):
        if is_test(patient.name) == (split == "test"):
            for nodule in subfolders(patient):
                slices = sorted(pictures(nodule / "images", (".png",)), key=natural)
                _check_masks(nodule, slices)
                images += slices
                groups += [number] * len(slices)
    if not images:
        raise ValueError(f"{folder}: holds no patient of the {split} split, which a hash of the name decides")
    masks = [file.parent.parent / f"mask-{grader}" / file.name for file in images for grader in range(GRADERS)]
    pixels = decode(folder, f"lidc-{split}", images, FORM)
    marks = decode(folder, f"lidc-{split}-masks", masks, MASK).reshape(len(images), GRADERS, 128, 128)
    names = tuple(patient.name for patient in patients)
    return Images(pixels, masks=marks, groups=np.array(groups, np.int64), group_names=names)


def is_test(patient: str) -> bool:
    """Whether a patient belongs to the test split.

    >>> [name for name in ("LIDC-IDRI-0001", "LIDC-IDRI-0002", "LIDC-IDRI-0003") if is_test(name)]
    []
    """
    return int.from_bytes(hashlib.sha256(f"lidc-2:{patient}".encode()).digest()[:8], "big") < 2**64 // 5


def _check_masks(nodule: Path, slices: list[Path]) -> None:
    """Refuse a slice without a mask, or a mask without its slice, before anything is decoded."""
    wanted = {file.name for file in slices}
    for grader in range(GRADERS):
        place = nodule / f"mask-{grader}"
        there = {file.name for file in pictures(place, (".png",))}
        if wanted - there:
            raise FileNotFoundError(f"{place / min(wanted - there)}: no such file; every slice must have four masks")
        if there - wanted:
            raise ValueError(f"{place / min(there - wanted)}: is a mask of a slice that is not in {nodule / 'images'}")
