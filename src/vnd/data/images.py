"""One split of a data set as arrays, and what is done to whole splits: check, hold out, fit to a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

CHUNK = 512  # images that are resized together
NAMES = ("classes", "group_names")  # what a split has once, not for each image
DEFLATE = 1032  # bytes that gzip and zip can make of one, at most: a bound on what a file can hold
LUMA = (0.299, 0.587, 0.114)  # of ITU-R BT.601, as Pillow has it


@dataclass(frozen=True, eq=False)
class Images:
    """One split: pixels, and what is known of each image.

    Args:
        pixels: (N, channels, height, width), in memory or memory-mapped; perhaps read-only.
        labels: (N,), the class of each image as a position in `classes`.
        classes: Their names; without labels, those of the classes that pixels of masks are of, the first background.
        masks: (N, graders, height, width), what each grader marked: 0 or 1, or the number of a class where `classes`
            are of masks.
        num_graders: (N,), how many of its masks an image has, where they differ: the first ones. None for all.
        groups: (N,), the number of the patient, or other thing, that each image is of; a split never divides one.
        group_names: What they are called, by number, where they have names; all of them, also those of other splits.

    >>> images = Images(np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 1, 0]), ("cat", "dog"))
    >>> len(images), images.take([2, 3]).labels
    (4, array([1, 0]))
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    masks: NDArray[np.uint8] | None = None
    num_graders: NDArray[np.int64] | None = None
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Images:
        """The images of these numbers, in this order; a run of neighbours stays memory-mapped."""
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            raise ValueError(f"take: indices must be whole numbers in one dimension; got {chosen.dtype} {chosen.shape}")
        chosen = chosen.astype(np.int64)
        rows: Any = chosen
        if len(chosen) and 0 <= chosen[0] <= chosen[-1] < len(self) and np.all(np.diff(chosen) == 1):
            rows = slice(int(chosen[0]), int(chosen[-1]) + 1)
        return replace(self, **{name: values[rows] for name, values in self._arrays().items()})

    @property
    def grader_counts(self) -> NDArray[np.int64]:
        """Number of graders of each image, (N,)."""
        if self.num_graders is not None:
            return self.num_graders
        return np.full(len(self), 0 if self.masks is None else self.masks.shape[1], np.int64)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in NAMES}
        return {name: value for name, value in values.items() if value is not None}


def check(images: Images, where: str, *, classes_needed: int = 1) -> Images:
    """Refuse a split that no training could use, in one line that names `where` and the index at fault; or return it.

    If it has labels, `classes_needed` different ones must occur.

    >>> check(Images(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 7]), ("cat", "dog")), "pets train")
    Traceback (most recent call last):
    ValueError: pets train: a label must lie in 0 … 1; image 1 has 7
    """
    pixels = images.pixels
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ValueError(f"{where}: pixels must be uint8 (N, C, H, W); got {pixels.dtype} {pixels.shape}")
    if not pixels.size:
        raise ValueError(f"{where}: must have at least one image of at least one pixel; got {pixels.shape}")
    for name, values in images._arrays().items():
        if len(values) != len(images):
            raise ValueError(f"{where}: {name} must be as many as the {len(images)} images; got {len(values)}")
    if images.groups is not None:
        _check_numbers(images.groups, f"{where}: groups")
        if images.group_names and not 0 <= images.groups.min() <= images.groups.max() < len(images.group_names):
            got = f"{images.groups.min()} … {images.groups.max()}"
            raise ValueError(f"{where}: groups must be numbers of the {len(images.group_names)} group_names; got {got}")
    if images.labels is not None:
        _check_numbers(images.labels, f"{where}: labels")
        check_labels(images.labels, len(images.classes) or None, where)
        labels = np.unique(images.labels)
        if len(labels) < classes_needed:
            only = f"; all images have label {labels[0]}" if len(labels) == 1 else ""
            raise ValueError(f"{where}: must have at least {classes_needed} classes; got {len(labels)}{only}")
    if images.num_graders is not None and images.masks is None:
        raise ValueError(f"{where}: num_graders must come with masks; got none")
    if images.masks is not None:
        _check_masks(images, where)
    return images


def digest(images: Images) -> str:
    """SHA-256 of a split: of its arrays, their sizes, and the names of its classes.

    >>> digest(Images(np.zeros((2, 1, 8, 8), np.uint8)))[:12]
    'afd5dcf457ec'
    """
    found = hashlib.sha256(repr(images.classes).encode())
    for name, values in images._arrays().items():
        found.update(f"{name}{values.dtype}{values.shape}".encode())
        for start in range(0, len(values), CHUNK):
            found.update(np.ascontiguousarray(values[start : start + CHUNK]).data)
    return found.hexdigest()


def present(path: Path) -> Path:
    """The path of a file, which must be there."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return path


def check_labels(labels: NDArray[Any], count: int | None, where: str, item: str = "image") -> None:
    """Refuse the first label that is not below `count`, or below 0; of labels that are whole numbers."""
    wrong = np.flatnonzero(labels < 0 if count is None else (labels < 0) | (labels >= count))
    if len(wrong):
        allowed = "be at least 0" if count is None else f"lie in 0 … {count - 1}"
        raise ValueError(f"{where}: a label must {allowed}; {item} {wrong[0]} has {labels[wrong[0]]}")


def hold_out(
    images: Images, count: int, seed: int, rule: Literal["random", "last"] = "random"
) -> tuple[Images, Images]:
    """Divide a split into training and validation images, both in the order they had.

    Which images are held out depends on their number, `count`, `seed` and `rule`, and on nothing else. Groups are held
    out whole, one after the other until at least `count` images are, so that no patient is on both sides. The rule
    `last` takes the last images, or the groups of the highest numbers.

    >>> train, validation = hold_out(Images(np.zeros((10, 1, 8, 8), np.uint8)), 3, seed=0)
    >>> len(train), len(validation)
    (7, 3)
    """
    check_images(images, "hold_out")
    total = len(images)
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise ValueError(f"hold_out: count must be a whole number; got a {type(count).__name__}")
    if rule not in ("random", "last"):
        raise ValueError(f"hold_out: rule must be 'random' or 'last'; got {rule!r}")
    if not 0 <= count < total:
        raise ValueError(f"hold_out: count must be at least 0 and less than the {total} images; got {count}")
    groups = np.arange(total) if images.groups is None else images.groups
    names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names)) if rule == "random" else np.arange(len(names))[::-1]
    needed = int(np.searchsorted(np.cumsum(sizes[order]), count)) + 1 if count else 0
    if needed == len(names):
        raise ValueError(f"hold_out: {count} images take all {needed} groups, which are held out whole; hold out fewer")
    held = np.isin(group, order[:needed])
    return images.take(np.flatnonzero(~held)), images.take(np.flatnonzero(held))


def check_images(images: object, who: str) -> None:
    """Refuse what is no set of images, as an array of pixels."""
    if not isinstance(images, Images):
        raise ValueError(f"{who}: images must be an Images, such as vnd.data.load gives; got a {type(images).__name__}")


def last_fifth(count: int) -> int:
    """Number of images that are the test split where a data set has none of its own: the last 20 %, at least one."""
    return min(max(1, count // 5), count - 1)


def fit_to(images: Images, channels: int, size: int) -> Images:
    r"""The images as a network for another data set wants them; the same object where they fit already.

    Grey becomes RGB by repeating; RGB becomes grey by the luma of ITU-R BT.601, $Y = .299 R + .587 G + .114 B$. Another
    size is reached by bilinear interpolation with antialiasing, whatever the aspect; masks take the nearest pixel.

    >>> fit_to(Images(np.full((2, 1, 28, 28), 7, np.uint8)), 3, 32).pixels.shape
    (2, 3, 32, 32)
    """
    check_images(images, "fit_to")
    for name, value in (("channels", channels), ("size", size)):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"fit_to: {name} must be a whole number; got a {type(value).__name__}")
    count, have, *frame = images.pixels.shape
    if size < 1 or (channels != have and {channels, have} != {1, 3}):
        raise ValueError(
            f"fit_to: {have} channels of {frame[0]}×{frame[1]} cannot become {channels} of {size}×{size}; "
            f"channels must be 1 or 3, and size at least 1"
        )
    if (have, *frame) == (channels, size, size):
        return images
    pixels = np.empty((count, channels, size, size), np.uint8)
    for start in range(0, count, CHUNK):
        block = torch.from_numpy(np.array(images.pixels[start : start + CHUNK])).float()
        if have > channels:
            block = (block * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
        if frame != [size, size]:
            block = F.interpolate(block, (size, size), mode="bilinear", align_corners=False, antialias=True)
        pixels[start : start + CHUNK] = block.round().clamp(0, 255).to(torch.uint8).numpy()  # repeats grey
    masks = images.masks
    if masks is not None:
        rows, columns = (((np.arange(size) + 0.5) * side / size).astype(np.int64) for side in frame)
        masks = masks[:, :, rows[:, None], columns]
    return replace(images, pixels=pixels, masks=masks)


def _check_numbers(values: NDArray[Any], where: str) -> None:
    if values.ndim != 1 or values.dtype != np.int64:
        raise ValueError(f"{where} must be int64 (N,); got {values.dtype} {values.shape}")


def stack_masks(
    masks: NDArray[Any] | Sequence[NDArray[Any]], num_graders: NDArray[Any] | None = None, where: str = "masks"
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    """Masks as `Images` has them, (N, graders, H, W), and `num_graders`, None where images have equally many.

    Args:
        masks: (N, H, W) of one grader each; (N, graders, H, W); a list of (graders, H, W), differently many; or, with
            `num_graders`, those of all images one after another, (sum of these, H, W). Whole numbers of 0 … 254.
        num_graders: (N,), how many an image has.
        where: What they are called in refusals.

    >>> masks, num_graders = stack_masks([np.zeros((3, 8, 8)), np.ones((1, 8, 8))])
    >>> masks.shape, num_graders
    ((2, 3, 8, 8), array([3, 1]))
    """
    if not isinstance(masks, np.ndarray):
        every = [np.asarray(own) for own in masks]
        for index, own in enumerate(every):
            if own.ndim != 3 or not len(own) or own.shape[1:] != every[0].shape[1:]:
                wanted = "be (graders, H, W), all of one size, with at least one grader"
                raise ValueError(f"{where}: of each image must {wanted}; image {index} has {own.shape}")
        if not every:
            raise ValueError(f"{where}: must be of at least one image; got none")
        masks, num_graders = np.concatenate(every), np.array([len(own) for own in every])
    if masks.ndim not in (3, 4) or masks.dtype.kind not in "biuf":
        wanted = "(N, H, W), (N, graders, H, W) or a list of (graders, H, W)"
        raise ValueError(f"{where}: must be {wanted}, of numbers; got {masks.dtype} {masks.shape}")
    wrong = np.argwhere(~((masks >= 0) & (masks <= 254) & (masks == np.floor(masks))))  # also NaN, and white
    if len(wrong):
        wanted = "be 0 or 1, or whole numbers of classes up to 254"
        raise ValueError(f"{where}: must {wanted}; image {wrong[0][0]} has {masks[tuple(wrong[0])]}")
    whole = masks.astype(np.uint8)
    if num_graders is None:
        return np.ascontiguousarray(whole if whole.ndim == 4 else whole[:, None]), None
    counts = np.asarray(num_graders)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or not len(counts) or counts.min() < 1:
        raise ValueError(f"{where}: num_graders must be whole numbers from 1, (N,); got {counts.dtype} {counts.shape}")
    counts = counts.astype(np.int64)
    if whole.ndim == 3:
        if counts.sum() != len(whole):
            raise ValueError(f"{where}: must be the {counts.sum()} that num_graders has in all; got {len(whole)}")
        placed = np.zeros((len(counts), int(counts.max()), *whole.shape[1:]), np.uint8)
        rows = np.repeat(np.arange(len(counts)), counts)
        placed[rows, np.arange(len(whole)) - (counts.cumsum() - counts)[rows]] = whole
        whole = placed
    if len(whole) != len(counts) or counts.max() > whole.shape[1]:
        got = f"up to {counts.max()} graders of {len(counts)} images"
        raise ValueError(f"{where}: of shape {whole.shape} must have the masks that num_graders says; it says {got}")
    whole[np.arange(whole.shape[1]) >= counts[:, None]] = 0
    return whole, counts if len(np.unique(counts)) > 1 or counts[0] < whole.shape[1] else None


def _check_masks(images: Images, where: str) -> None:
    assert images.masks is not None
    masks, shape, counts = images.masks, images.pixels.shape, images.num_graders
    if masks.dtype != np.uint8 or masks.ndim != 4 or masks.shape[2:] != shape[2:] or not masks.shape[1]:
        wanted = f"(N, graders, {shape[2]}, {shape[3]})"
        raise ValueError(f"{where}: masks must be uint8 {wanted}; got {masks.dtype} {masks.shape}")
    most = len(images.classes) - 1 if images.classes and images.labels is None else 1
    for start in range(0, len(masks), CHUNK):
        wrong = np.argwhere(masks[start : start + CHUNK] > most)
        if len(wrong):
            image, grader, *_ = wrong[0]
            value, wanted = masks[start + image, grader].max(), "0 or 1" if most == 1 else f"in 0 … {most}"
            raise ValueError(f"{where}: masks must be {wanted}; mask {grader} of image {start + image} has {value}")
    if counts is not None:
        _check_numbers(counts, f"{where}: num_graders")
        outside = np.flatnonzero((counts < 1) | (counts > masks.shape[1]))
        if len(outside):
            wanted = f"lie in 1 … {masks.shape[1]}"
            raise ValueError(f"{where}: num_graders must {wanted}; image {outside[0]} has {counts[outside[0]]}")
