"""Arrays of one's own as a split: what images, labels and masks must be, and what a function may give."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vnd._code import find_code
from vnd._text import nearest, one_line
from vnd.data.images import Images, check_labels, stack_masks

KINDS = {
    "images": ("x", "images"),
    "labels": ("y", "labels"),
    "masks": ("masks",),
    "graders": ("graders",),
}  # of an array → its names
MOST_CLASSES = 65_536


def split_of(arrays: Mapping[str, NDArray[Any]], where: Mapping[str, str]) -> Images:
    """A split of arrays by their kinds, "images", "labels" and "masks", of which the first must be there.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3, uint8, or floats in 0 … 1, which become the
    nearest of 0 … 255. Labels are (N,) or (N, 1), whole numbers from 0; classes are 0 … the highest. Masks, with or
    without "graders", are what `stack_masks` takes: of 0 and 1, or of numbers of classes. `where` names each array.

    >>> images = split_of({"images": np.zeros((2, 8, 8)), "labels": np.array([0, 2])}, {})
    >>> images.pixels.shape, images.pixels.dtype, images.classes
    ((2, 1, 8, 8), dtype('uint8'), ('0', '1', '2'))
    """
    pixels = _pixels(arrays["images"], where.get("images", "images"))
    labels = labels_of(arrays["labels"], where.get("labels", "labels")) if "labels" in arrays else None
    masks, counts = None, None
    if "masks" in arrays:
        masks, counts = stack_masks(arrays["masks"], arrays.get("graders"), where.get("masks", "masks"))
    for name, values in (("labels", labels), ("masks", masks)):
        if values is not None and len(values) != len(pixels):
            thing = name.removesuffix("s")
            raise ValueError(
                f"{where.get(name, name)} must have a {thing} for each of the {len(pixels)} images; got {len(values)}"
            )
    if masks is not None and masks.shape[2:] != pixels.shape[2:]:
        sizes = [f"{x.shape[2]}×{x.shape[3]}" for x in (pixels, masks)]
        raise ValueError(f"{where.get('masks', 'masks')} must be as large as the images, {sizes[0]}; got {sizes[1]}")
    classes = _numbered(labels) if labels is not None else () if masks is None else _of_masks(masks)
    return Images(pixels, labels, classes, masks, counts)


def with_classes_of(
    images: Images, labels: Sequence[NDArray[np.int64]], masks: Sequence[NDArray[np.uint8]] = ()
) -> Images:
    """The split, its classes those of the labels, or else of the masks, of other splits too."""
    if images.labels is not None:
        return replace(images, classes=_numbered(images.labels, *labels))
    return images if images.masks is None else replace(images, classes=_of_masks(images.masks, *masks))


def _numbered(*labels: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(map(str, range(1 + max(int(values.max(initial=-1)) for values in labels))))


def _of_masks(*masks: NDArray[np.uint8]) -> tuple[str, ...]:
    """Classes that pixels of masks are of; none where they are of one foreground."""
    most = max(int(values.max(initial=0)) for values in masks)
    return tuple(map(str, range(most + 1))) if most > 1 else ()


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


def labels_of(y: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Labels (N,) of an array, which must hold whole numbers from 0."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{where}: must be whole numbers (N,); got {y.dtype} {y.shape}")
    check_labels(y, MOST_CLASSES, where)
    return y.astype(np.int64)


# Functions


def check_function(name: str, options: Mapping[str, Any], key: str) -> Callable[..., Any]:
    """The function that `package.module:function` names, if it can be called with the options."""
    function: Callable[..., Any] = find_code(name, key)
    if not callable(function) or isinstance(function, type):
        raise ValueError(f"{key} must be a function that gives images; {name} is a {type(function).__name__}")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # one written in C
        return function
    known = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    beside = f"{key.removesuffix('name')}options" if key.endswith("name") else f"{key}_options"
    for option in options:
        if option not in known and not anything:
            takes = f" It takes {', '.join(known)}." if known else " It takes none."
            raise ValueError(f"{beside}: {name} has no {option!r}{nearest(option, known, cutoff=0.5)}{takes}")
    for needed in known:
        if parameters[needed].default is inspect.Parameter.empty and needed not in options:
            raise ValueError(f"{beside}.{needed} must be given: {name} has no default for it")
    return function


def from_function(function: Callable[..., Any], options: Mapping[str, Any], split: Literal["train", "test"]) -> Images:
    """A split of the two that a function gives: (train, test), each `Images`, or images and labels or masks.

    >>> def blobs(count):
    ...     x = np.zeros((count, 8, 8), np.uint8)
    ...     return (x, np.arange(count) % 2), (x[:2], np.array([0, 2]))
    >>> from_function(blobs, {"count": 4}, "train").classes
    ('0', '1', '2')
    """
    train, test = _both(function, json.dumps(options, sort_keys=True))
    return train if split == "train" else test


@lru_cache(maxsize=1)  # a second split of the same data costs nothing
def _both(function: Callable[..., Any], options: str) -> tuple[Images, Images]:
    name = getattr(function, "__name__", "function")
    try:
        given = function(**json.loads(options))
    except Exception as error:  # it is anybody's
        raise ValueError(f"{name} failed: {one_line(error)}") from error
    if not isinstance(given, tuple | list) or len(given) != 2:
        what = f"{len(given)} things" if isinstance(given, tuple | list) else f"a {type(given).__name__}"
        raise ValueError(f"{name} must give two splits, (train, test); got {what}")
    found = [_split(part, f"{name}: {split}") for part, split in zip(given, ("train", "test"), strict=True)]
    if any(isinstance(part, Images) for part in given):
        train, test = found
    else:
        labels = [images.labels for images in found if images.labels is not None]
        masks = [images.masks for images in found if images.masks is not None]
        train, test = (with_classes_of(images, labels, masks) for images in found)
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        sizes = " and ".join("×".join(map(str, images.pixels.shape[1:])) for images in (train, test))
        raise ValueError(f"{name}: images for training and for the test must be of one size; got {sizes}")
    return train, test


def _split(given: Any, where: str) -> Images:
    """A split from what a function gives for it."""
    if isinstance(given, Images):
        return given
    arrays: dict[str, Any]
    if isinstance(given, Mapping):
        names = {name: kind for kind, words in KINDS.items() for name in words}
        if unknown := next((name for name in given if name not in names), None):
            hint = nearest(str(unknown), names)
            raise ValueError(f"{where}: must have images, and labels or masks; got {unknown!r}{hint}")
        arrays = {names[name]: values for name, values in given.items()}
    elif isinstance(given, tuple | list) and len(given) == 2:
        marks = given[1]
        arrays = {"images": given[0], "masks" if _are_masks(marks) else "labels": marks}
    else:
        arrays = {"images": given}
    found = {kind: values for kind, values in arrays.items() if values is not None}
    if isinstance(found.get("masks"), list | tuple):
        found["masks"], counts = stack_masks(found["masks"], where=f"{where} masks")
        found |= {} if counts is None else {"graders": counts}
    found = {kind: _array(values, f"{where} {kind}") for kind, values in found.items()}
    if "images" not in found:
        raise ValueError(f"{where}: must have images; got {', '.join(found) or 'nothing'}")
    return split_of(found, {kind: f"{where} {kind}" for kind in found})


def _array(values: Any, where: str) -> NDArray[Any]:
    """An array of one, of a tensor wherever it lies, or of lists of numbers."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values  # which numpy has not
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: must be an array; got a {type(values).__name__}: {one_line(error)}") from None


def _are_masks(marks: Any) -> bool:
    """Tell if it is an array of masks, or a list of those of each image, and no labels."""
    if isinstance(marks, list | tuple) and marks:
        return np.ndim(marks[0]) > 1
    return np.ndim(marks) > 2
