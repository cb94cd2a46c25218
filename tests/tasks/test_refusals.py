"""Refusals of tasks: options of evaluations, and images that features are not of, each in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from refusals import refused, table
from tasks.test_features import fake, picture
from vnd.tasks.autoencoding import AutoencodingEvaluation
from vnd.tasks.classification import ClassificationEvaluation
from vnd.tasks.segmentation import SegmentationEvaluation

Call = Callable[[], object]
SHAPE = "Extractor: images must be of shape (n, 3 or 1, h, w), not empty; got "


def options(kind: type = ClassificationEvaluation, **given: Any) -> Call:
    return lambda: kind(**given)


def read(images: Any) -> Call:
    return lambda: fake().read(images)


@table(
    {
        "samples": (options(samples=-1), "samples must be at least 0; got -1"),
        "one image for BatchNorm": (options(bn_images=1), "bn_images must be at least 2 images, or 0 for all; got 1"),
        "bins": (options(bins=0), "bins must be at least 1; got 0"),
        "no inference": (
            options(inference=()),
            "inference must be some of mc, mean, mc_mask, temperature_scaled; got []",
        ),
        "an unknown inference": (
            options(inference=("means",)),
            "inference must be some of mc, mean, mc_mask, temperature_scaled; got ['means']",
        ),
        "masks first": (
            options(inference=("mc_mask",)),
            "inference must begin with one that has sizes, not mc_mask; got mc_mask first",
        ),
        "repeats": (options(repeats=0), "repeats must be at least 1; got 0"),
        "a further image for BatchNorm": (
            options(bn_images_sweep=(1,)),
            "bn_images_sweep must be at least 2 images, or 0 for all; got 1",
        ),
        "risk": (options(risk=1.0), "risk must lie in (0, 1); got 1.0"),
        "one generated image": (
            options(AutoencodingEvaluation, num_generated=1),
            "num_generated must be at least 2 images, or 0 for none; got 1",
        ),
        **{
            f"masks {counts}": (
                options(SegmentationEvaluation, num_mask_samples=counts),
                "num_mask_samples must be numbers of masks that rise from 1 or more; got ",
            )
            for counts in ((), (0, 4), (4, 1), (2, 2))
        },
        "images of floats": (
            read(torch.rand(2, 3, 8, 8)),
            "Extractor: images must be uint8, 0 … 255; got torch.float32",
        ),
        "no images": (read(None), "Extractor: images must be a tensor; got a NoneType"),
        "one image": (read(picture()[0]), f"{SHAPE}(3, 64, 48)"),
        "two channels": (read(picture()[:, :2]), f"{SHAPE}(1, 2, 64, 48)"),
        "an empty batch": (read(picture()[:0]), f"{SHAPE}(0, 3, 64, 48)"),
    }
)
def test_it_is_refused(call: Call, words: str) -> None:
    assert refused(call, words).startswith(words)
