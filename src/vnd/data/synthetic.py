"""Synthetic images that four graders mark differently, with known probabilities."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vnd.data.images import Images

COUNTS = {"train": 4096, "test": 512}
GRADERS = 4
SIZE = 32
BACKGROUND = 64  # grey of what is no blob, of 255
NOISE = 8  # a pixel's noise is the sum of two whole numbers within this: of deviation 7
CORE = (96.0, 168.0)  # how much brighter than the background a core may be
RIM = (28.0, 60.0)  # and a rim: both can be told from what is beside them, or no network could draw their edges
OVERLOOKED = (0.45, 0.05)  # probability that a grader marks nothing, from the faintest core to the brightest
INCLUDED = (0.1, 0.9)  # that who marks the core marks the rim too, from the faintest rim to the brightest


class Scenes(NamedTuple):
    """Pixels of a split (N, 1, 32, 32), possible masks (N, 3, 32, 32), probabilities, and the graders' choices."""

    pixels: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    probs: NDArray[np.float64]
    chosen: NDArray[np.int64]


def read(_: object, split: Literal["train", "test"]) -> Images:
    r"""4,096 training and 512 test images, grey 32×32: one bright blob with a fainter rim, on noise; four masks each.

    Each grader draws a mask by himself: nothing, the core, or the core and its rim,

    $$P(\text{nothing}) = .45 - .4\, c, \qquad P(\text{rim} \mid \text{core}) = .1 + .8\, r,$$

    where c and r, uniform in [0, 1], say how bright core and rim are. So a network can see how probable each mask is,
    and not which one a grader drew. Made by NumPy from whole numbers and square roots, the same on every machine.

    >>> images = read(None, "test")
    >>> images.pixels.shape, images.masks.shape
    ((512, 1, 32, 32), (512, 4, 32, 32))
    """
    scenes = _make(split)
    marked = np.take_along_axis(scenes.masks, scenes.chosen[:, :, None, None], axis=1)
    return Images(scenes.pixels, masks=marked)


def truth(split: Literal["train", "test"]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The distribution that the graders of each image draw from: K = 3 masks (N, K, 32, 32), probabilities (N, K).

    >>> masks, probs = truth("test")
    >>> masks.shape, bool(np.allclose(probs.sum(1), 1))
    ((512, 3, 32, 32), True)
    """
    scenes = _make(split)
    return scenes.masks, scenes.probs


def _make(split: Literal["train", "test"]) -> Scenes:
    count, generator = COUNTS[split], np.random.default_rng([9, list(COUNTS).index(split)])
    # Sines differ in the last digit between processors: a direction is a point of a square, brought to length 1.
    direction = generator.random((count, 2)) + 0.01
    across, down = (direction / np.sqrt((direction**2).sum(1, keepdims=True))).T[:, :, None, None]
    centre = 11.5 + 8 * generator.random((count, 2))  # so that the largest rim is within the image
    radius = 4 + 3 * generator.random((count, 2, 1, 1))
    width = 0.35 + 0.2 * generator.random((count, 1, 1))  # of the rim, as a share of the radius
    core, rim = generator.random((2, count))
    rows, columns = np.arange(SIZE)[:, None] - centre[:, :1, None], np.arange(SIZE) - centre[:, 1:, None]
    along, beside = across * columns + down * rows, down * columns - across * rows
    reach = np.sqrt((along / radius[:, 0]) ** 2 + (beside / radius[:, 1]) ** 2)  # 1 at the core's edge
    inner, outer = reach <= 1, reach <= 1 + width
    grey = BACKGROUND + generator.integers(-NOISE, NOISE + 1, (2, count, SIZE, SIZE)).sum(0)
    grey = grey + np.where(inner, _between(CORE, core), np.where(outer, _between(RIM, rim), 0))
    overlooked, included = (_between(*x).ravel() for x in ((OVERLOOKED, core), (INCLUDED, rim)))
    probs = np.stack((overlooked, (1 - overlooked) * (1 - included), (1 - overlooked) * included), 1)
    chosen = (generator.random((count, GRADERS, 1)) > probs.cumsum(1)[:, None, :2]).sum(2)
    masks = np.stack((np.zeros_like(inner), inner, outer), 1)
    return Scenes(grey.round().astype(np.uint8)[:, None], masks.astype(np.uint8), probs, chosen)


def _between(ends: tuple[float, float], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """From one end to the other by a share of the way, (N, 1, 1)."""
    return (ends[0] + (ends[1] - ends[0]) * share)[:, None, None]
