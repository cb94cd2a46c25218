"""Pictures that a page may show to anyone: of data that come with the package, shapes of our own, or those it is given.

A picture in a page is its pixels, uint8 (C, H, W), as base64: exactly those that the network is fed in Python.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vnd.data.images import Images, fit_to
from vnd.data.registry import load

Picture = dict[str, Any]  # name, kind ("like" the training data, "unlike" them, or "given"), label, pixels
CREDITS = {  # data whose license allows it → what a page that shows some of them says
    "fashion": "Clothing: Fashion-MNIST, © 2017 Zalando SE, MIT license.",
    "digits": (
        "Digits: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning "
        "Repository, CC BY 4.0; enlarged."
    ),
    "synthetic_graders": "Blobs: made by vnd, Apache 2.0.",
}
BLOBS = "synthetic_graders"
SAME = {"fashion-mnist": "fashion"}  # data sets of which a part comes with the package
DRAWN = "Shapes: made by vnd, Apache 2.0."
UNLIKE = 3  # pictures of each other kind


def of_training(name: str, image: Sequence[int]) -> tuple[list[Picture], list[str]]:
    """Pictures like those that a network was trained on, where these may be shown to anyone, and whose they are."""
    name = SAME.get(name, name)
    if name not in CREDITS:
        return [], []
    images = load(name, "test")
    if images.labels is not None:
        first = [int(np.flatnonzero(images.labels == label)[0]) for label in np.unique(images.labels)]
        images = images.take(first)
    else:
        images = images.take(range(10))
    return _pictures(fitted(images, image), "like"), [CREDITS[name]]


def unlike(trained_on: str | None, image: Sequence[int]) -> tuple[list[Picture], list[str]]:
    """Pictures of other kinds than those that a network was trained on."""
    found, credits = list[Picture](), list[str]()
    for name in ("digits", "fashion"):
        if name != SAME.get(str(trained_on), trained_on) and not (name == "digits" and trained_on == "mnist"):
            images = load(name, "test")
            found += _pictures(fitted(images.take(range(UNLIKE)), image), "unlike")
            credits.append(CREDITS[name])
    for name, pixels in shapes(image).items():
        found.append({"name": name, "kind": "unlike", "label": None, "pixels": pixels})
    return found, [*credits, DRAWN]


def blobs(trained_on: str | None, image: Sequence[int]) -> tuple[list[Picture], list[str]]:
    """Pictures to mark: blobs, unless the network was trained on them, and shapes."""
    found = list[Picture]()
    if trained_on != BLOBS:
        made = _pictures(fitted(load(BLOBS, "test").take(range(6)), image), "unlike")
        found = [{**picture, "name": f"blob {number + 1}"} for number, picture in enumerate(made)]
    drawn = [
        {"name": name, "kind": "unlike", "label": None, "pixels": pixels}
        for name, pixels in shapes(image).items()
        if name != "checkerboard"
    ]
    return found + drawn, [*([] if trained_on == BLOBS else [CREDITS[BLOBS]]), DRAWN]


def given(images: Any, image: Sequence[int], classes: Sequence[str] | None = None) -> list[Picture]:
    """Pictures of the user's own: `Images`, uint8, or floats between 0 and 1, (N, C, H, W)."""
    if isinstance(images, Images):
        return _pictures(fitted(images, image), "given")
    values = np.asarray(images.detach().cpu() if isinstance(images, torch.Tensor) else images)
    if values.ndim != 4 or values.dtype.kind not in "fu" or list(values.shape[1:]) != list(image):
        told = ", ".join(map(str, image))
        raise ValueError(
            f"page: images must be uint8, or floats of 0 … 1, (N, {told}); got {values.dtype} {values.shape}"
        )
    if values.dtype != np.uint8:
        if not bool(np.all((values >= 0) & (values <= 1))):
            raise ValueError(f"page: images must lie between 0 and 1; got {values.min():.4g} … {values.max():.4g}")
        values = np.rint(values * 255).astype(np.uint8)
    return [
        {"name": f"image {index}", "kind": "given", "label": None, "pixels": pixels}
        for index, pixels in enumerate(values)
    ]


def fitted(images: Images, image: Sequence[int]) -> Images:
    """Images of a size that need not be square, and of as many channels."""
    channels, height, width = image
    square = fit_to(images, channels, max(height, width))
    top, left = (square.pixels.shape[2] - height) // 2, (square.pixels.shape[3] - width) // 2
    pixels = np.ascontiguousarray(square.pixels[:, :, top : top + height, left : left + width])
    return Images(pixels, images.labels, images.classes)


def shapes(image: Sequence[int]) -> dict[str, NDArray[np.uint8]]:
    """A ring, a spiral and a checkerboard, white on black."""
    channels, height, width = image
    rows, columns = np.mgrid[:height, :width]
    down, across = (rows + 0.5) / height * 2 - 1, (columns + 0.5) / width * 2 - 1
    radius, angle = np.hypot(down, across), np.arctan2(down, across)
    soft = 4 / min(height, width)  # of an edge
    ring = (0.16 - np.abs(radius - 0.6)) / soft + 0.5
    spiral = np.sin(angle - 9 * radius) * 1.4 + 0.4
    spiral = np.where(radius < 0.92, spiral, 0)
    checkered = np.sign(np.sin(np.pi * 2 * (down + 1)) * np.sin(np.pi * 2 * (across + 1)))
    drawn = {"ring": ring, "spiral": spiral, "checkerboard": checkered}
    return {
        name: np.repeat((np.clip(grey, 0, 1) * 255).astype(np.uint8)[None], channels, 0) for name, grey in drawn.items()
    }


def encoded(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    """Pictures as the page has them."""
    return [
        {**picture, "pixels": base64.b64encode(np.ascontiguousarray(picture["pixels"]).tobytes()).decode()}
        for picture in pictures
    ]


def _pictures(images: Images, kind: str) -> list[Picture]:
    found = []
    for index, pixels in enumerate(images.pixels):
        label = None if images.labels is None or not images.classes else str(images.classes[int(images.labels[index])])
        name = f"image {index}" if label is None else f"digit {label}" if label.isdecimal() else label
        found.append({"name": name, "kind": kind, "label": label, "pixels": np.array(pixels)})
    return found
