"""Splits, changes and batches that cannot be: refused in one line. Damaged files are in `test_readers.py`."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from refusals import Refusals, refused, table
from vnd.data import Images, fit_to, hold_out, load
from vnd.data.arrays import from_function
from vnd.data.augment import Augment, apply, draw, mix
from vnd.data.batches import Batches
from vnd.data.images import check


def some(count: int = 10, channels: int = 1, **more: Any) -> Images:
    return Images(np.zeros((count, channels, 8, 8), np.uint8), np.arange(count) % 3, ("a", "b", "c"), **more)


def given(value: Any) -> Callable[[], object]:
    """A function of one's own that gives a value."""

    def gives() -> Any:
        return value

    return lambda: from_function(gives, {}, "train")


X, Y = np.zeros((6, 8, 8), np.uint8), np.arange(6)
MASKS = np.zeros((6, 4, 8, 8), np.uint8)
MASKS[4, 2, 1, 1] = 255
GOOD = some(6, masks=np.zeros((6, 4, 8, 8), np.uint8), groups=np.arange(6))
ONE = replace(GOOD, labels=np.ones(6, np.int64))
NOTHING = draw(Augment(), 1, torch.Generator())
PIXELS = torch.zeros(1, 1, 4, 4)


def split(**change: Any) -> Callable[[], object]:
    return lambda: check(replace(GOOD, **change), "set.bin")


def batches(images: Images, **options: Any) -> Callable[[], object]:
    return lambda: Batches(images, **{"batch": 5, "seed": 0, "mean": (0.0,), "std": (1.0,), **options})


CASES: Refusals = {
    "an array for images": (lambda: hold_out(MASKS, 2, 0), "hold_out: images must be an Images, such as vnd.data.load"),  # type: ignore[arg-type]
    "a half held out": (lambda: hold_out(some(), 0.5, 0), "hold_out: count must be a whole number; got a float"),  # type: ignore[arg-type]
    "no images to fit": (lambda: fit_to(None, 3, 8), "fit_to: images must be an Images"),  # type: ignore[arg-type]
    "a size in words": (lambda: fit_to(some(), 3, "8"), "fit_to: size must be a whole number; got a str"),  # type: ignore[arg-type]
    "a list for a name": (lambda: load(["digits"], "train"), "load: name must be that of a data set, text; got a list"),  # type: ignore[arg-type]
    "one split": (given((X,)), "gives must give two splits, (train, test); got 1 things"),
    "no splits": (given(X), "gives must give two splits, (train, test); got a ndarray"),
    "a test of another size": (given(((X, Y), (X[:, :7], Y))), "must be of one size; got 1×8×8 and 1×7×8"),
    "fewer labels of a function": (
        given(((X, Y[:5]), (X, Y))),
        "gives: train labels must have a label for each of the 6",
    ),
    "labels of a function": (
        given(((X, Y / 2), (X, Y))),
        "gives: train labels: must be whole numbers (N,); got float64",
    ),
    "pixels of a function": (
        given(((X, Y), (X + 1.5, Y))),
        "gives: test images: floats must lie in 0 … 1; image 0 has",
    ),
    "three things for a split": (
        given(((X, Y, Y), (X, Y))),
        "gives: train images: must be an array; got a tuple: setting an array element with a sequence",
    ),
    "masks of a function": (given(((X, X + 0.5), (X, X))), "gives: train masks: must be 0 or 1, or whole numbers of"),
    "another name": (given(({"image": X}, {"image": X})), "got 'image', did you mean 'images'?"),
    "no images of a function": (given(({"labels": Y}, {"labels": Y})), "gives: train: must have images; got labels"),
    "numbers of booleans": (lambda: some(2).take(np.array([True, False])), "take: indices must be whole numbers"),
    "numbers of floats": (lambda: some(2).take([0.5]), "take: indices must be whole numbers"),
    "numbers in two dimensions": (lambda: some(2).take([[0, 1]]), "take: indices must be whole numbers"),
    "floats": (split(pixels=np.zeros((6, 1, 8, 8))), "set.bin: pixels must be uint8"),
    "three dimensions": (split(pixels=np.zeros((6, 8, 8), np.uint8)), ("set.bin: pixels must", "(6, 8, 8)")),
    "no images": (split(pixels=np.zeros((0, 1, 8, 8), np.uint8)), "set.bin: must have at least one image"),
    "no pixels": (split(pixels=np.zeros((6, 1, 0, 8), np.uint8)), "of at least one pixel; got (6, 1, 0, 8)"),
    "fewer labels": (split(labels=np.zeros(5, np.int64)), "set.bin: labels must be as many as the 6 images; got 5"),
    "a high label": (split(labels=np.array([0, 1, 2, 3, 0, 4])), "a label must lie in 0 … 2; image 3 has 3"),
    "a negative label": (split(labels=np.array([0, 1, 2, 0, 0, -4])), "image 5 has -4"),
    "a negative label without names": (
        split(labels=np.array([0, 1, 2, 0, 0, -4]), classes=()),
        "a label must be at least 0; image 5 has -4",
    ),
    "labels of floats": (split(labels=np.zeros(6)), "set.bin: labels must be int64 (N,); got float64"),
    "groups without a name": (
        split(group_names=("x", "y")),
        "set.bin: groups must be numbers of the 2 group_names; got 0 … 5",
    ),
    "groups of bytes": (split(groups=np.zeros(6, np.uint8)), "set.bin: groups must be int64"),
    "a mask of 255": (split(masks=MASKS), "masks must be 0 or 1; mask 2 of image 4 has 255"),
    "masks of another size": (split(masks=MASKS[..., :7]), "set.bin: masks must be uint8"),
    "no graders": (split(masks=MASKS[:, :0]), "set.bin: masks must be uint8"),
    "one class": (
        lambda: check(ONE, "one", classes_needed=2),
        "one: must have at least 2 classes; got 1; all images have label 1",
    ),
    "three classes": (lambda: check(GOOD, "good", classes_needed=4), "good: must have at least 4 classes; got 3"),
    "fewer than none held out": (
        lambda: hold_out(some(10), -1, 0),
        "hold_out: count must be at least 0 and less than the 10 images; got -1",
    ),
    "all held out": (lambda: hold_out(some(10), 10, 0), "less than the 10 images; got 10"),
    "the first held out": (
        lambda: hold_out(some(10), 2, 0, "first"),  # type: ignore[arg-type]
        "hold_out: rule must be 'random' or 'last'; got 'first'",
    ),
    "one patient": (lambda: hold_out(some(10, groups=np.zeros(10, np.int64)), 2, 0), "2 images take all 1 groups"),
    "two channels": (lambda: fit_to(some(2, 3), 2, 8), "fit_to: 3 channels of 8×8 cannot become 2 of 8×8"),
    "no channel": (lambda: fit_to(some(2, 3), 0, 8), "fit_to: 3 channels of 8×8 cannot become 0 of 8×8"),
    "no size": (lambda: fit_to(some(2, 3), 1, 0), "fit_to: 3 channels of 8×8 cannot become 1 of 0×0"),
    "a name near another": (
        lambda: load("tinyimagenet", "test"),
        "load: unknown data set 'tinyimagenet', did you mean 'tiny-imagenet'? Known: ",
    ),
    "a name near none": (lambda: load("zzz", "test"), "load: unknown data set 'zzz'. Known: fashion"),
    "a third split": (
        lambda: load("fashion", "val"),  # type: ignore[arg-type]
        "load: split must be 'train' or 'test'; got 'val'",
    ),
    "less than no padding": (lambda: Augment(pad=-1), "pad must be 0 or more; got -1"),
    "more than a turn": (lambda: Augment(rotation=200.0), "rotation must lie in [0, 180]; got 200.0"),
    "another padding": (lambda: Augment(padding="edge"), "padding must be black or reflect; got 'edge'"),  # type: ignore[arg-type]
    "less than no square": (lambda: Augment(cutout=-1), "cutout must be 0 or more; got -1"),
    "less than no share": (lambda: Augment(cutout_share=-0.1), "cutout_share must lie in [0, 1]; got -0.1"),
    "a share of nan": (lambda: Augment(cutout_share=math.nan), "cutout_share must lie in [0, 1]; got nan"),
    "more than all": (lambda: Augment(cutmix=1.1), "cutmix must lie in [0, 1]; got 1.1"),
    "no squares": (lambda: apply(Augment(cutout=3), PIXELS, NOTHING), "cutout is 3, and no squares were drawn"),
    "no turns": (lambda: apply(Augment(turn=True), PIXELS, NOTHING), "turn is set, and no turns were drawn"),
    "no boxes": (lambda: mix(PIXELS, PIXELS, NOTHING), "mix: no boxes were drawn"),
    "more than there are": (
        batches(some(10), batch=11),
        "train.batch must be at most the number of training images, 10; got 11",
    ),
    "half an image": (
        batches(some(10), world=2),
        "train.batch must be a multiple of the number of processes, 2; got 5",
    ),
    "no masks": (
        batches(some(10), masks=True),
        "data: must have masks of graders, as lidc and synthetic_graders have; got images without",
    ),
    "mixed masks": (
        batches(GOOD, masks=True, augment=Augment(cutmix=0.5)),
        "data.augment.cutmix must be 0 for masks: it mixes classes; got 0.5",
    ),
}


@table(CASES)
def test_what_cannot_be_is_refused_in_one_line(call: Callable[[], object], words: str) -> None:
    refused(call, words)
