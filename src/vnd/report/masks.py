"""What `vnd segment` draws of an image: the masks, their mean, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vnd.report.canvas import INK, MUTED, ORANGE, canvas, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pixels = NDArray[np.uint8]
Map = NDArray[np.float64]

DPI = 144
CERTAIN = math.log(2)  # nats of a pixel that is as likely foreground as not: the most there is
ACROSS = 8  # masks in a row
GAP = 2  # pixels between the masks of a grid
TINT = 0.35  # of a mask over its image; its edge is all colour


def overview(image: Pixels, mean: Map, entropy: Map, samples: Sequence[Pixels], heading: str, about: str) -> Figure:
    """The image, the mean of the masks, their entropy with its scale, and below them each mask over the image.

    Args:
        image: (height, width) or (height, width, 3).
        mean: Probability of the foreground, (height, width).
        entropy: Nats of a pixel, (height, width).
        samples: Each mask over the image, as `tinted` has it: small, or its edge is too thin to be seen.
        heading: What the sheet shows.
        about: A line below it.
    """
    count, tall = len(samples), min(max(image.shape[0] / image.shape[1], 0.4), 2.5)
    across = min(ACROSS, count)
    rows, small = -(-count // across), 10.2 / ACROSS
    heights = 3.1 * tall + 0.35, rows * (small * tall + 0.24) + 0.1
    figure, _ = canvas(10.8, sum(heights) + 0.75)
    figure.clear()
    figure.suptitle(plain(heading, 120), x=0.012, ha="left", fontsize=12, color=INK)
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    top, below = parts
    for axis, title in zip(top.subplots(1, 3), ("image", "mean probability", "uncertainty"), strict=True):
        axis.set_title(title, fontsize=10, color=INK)
        axis.set_axis_off()
        if title == "image":
            _show(axis, image)
        elif title == "uncertainty":
            _bar(top, axis, entropy)
        else:
            _show(axis, mean, vmin=0, vmax=1)
    grid = below.subplots(rows, ACROSS, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for index, sample in enumerate(samples):
        axis = grid[index // across][index % across]
        _show(axis, sample)
        axis.set_title(str(index + 1), fontsize=8, color=MUTED, pad=2)
    figure.supxlabel(plain(about, 200), x=0.012, ha="left", fontsize=8.5, color=MUTED)
    return figure


def uncertainty(entropy: Map, heading: str) -> Figure:
    """The entropy of each pixel as colours, with their scale."""
    tall = min(max(entropy.shape[0] / entropy.shape[1], 0.4), 2.5)
    figure, axis = canvas(5.4, 4.2 * tall + 0.5)
    axis.set_axis_off()
    axis.set_title(plain(heading, 60), fontsize=10, color=INK)
    _bar(figure, axis, entropy)
    return figure


def tinted(image: Pixels, mask: NDArray[np.bool_]) -> Pixels:
    """An image (height, width) or (height, width, 3) in colours, with a mask laid over it and its edge drawn.

    >>> tinted(np.zeros((3, 3), np.uint8), np.ones((3, 3), bool)).shape
    (3, 3, 3)
    """
    three = np.broadcast_to(image[..., None] if image.ndim == 2 else image, (*image.shape[:2], 3)).astype(np.float64)
    around = np.pad(mask, 1, mode="edge")
    inside = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    share = np.where(mask & ~inside, 1.0, np.where(mask, TINT, 0.0))[..., None]
    colour = np.array(tuple(bytes.fromhex(ORANGE[1:])), np.float64)
    return np.asarray((1 - share) * three + share * colour).round().astype(np.uint8)


def grid(masks: NDArray[np.bool_]) -> Pixels:
    """Masks (samples, height, width) side by side, white on black, in rows with grey lines between.

    >>> grid(np.ones((3, 4, 4), bool)).shape
    (14, 14)
    """
    count, height, width = masks.shape
    across = min(count, math.ceil(math.sqrt(count)))
    rows = -(-count // across)
    sheet = np.full((rows * (height + GAP) + GAP, across * (width + GAP) + GAP), 128, np.uint8)
    for index, mask in enumerate(masks):
        top, left = (
            place * (side + GAP) + GAP for place, side in zip(divmod(index, across), (height, width), strict=True)
        )
        sheet[top : top + height, left : left + width] = 255 * mask
    return sheet


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _bar(figure: Any, axis: Axes, entropy: Map) -> None:
    """The entropy, and the scale of its colours in nats."""
    shown = _show(axis, entropy, cmap="inferno", vmin=0, vmax=CERTAIN)
    bar = figure.colorbar(shown, ax=axis, fraction=0.045, pad=0.03)
    bar.set_label("entropy, nats", fontsize=8.5, color=INK)
    bar.set_ticks([0, 0.2, 0.4, 0.6, CERTAIN], labels=["0", "0.2", "0.4", "0.6", "ln 2"])
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)


def _show(axis: Axes, image: Any, **look: Any) -> Any:
    grey: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255} if image.ndim == 2 else {}
    large = max(image.shape[:2]) > 400  # more pixels than the paper has: then smoothed
    return axis.imshow(image, interpolation="antialiased" if large else "nearest", **grey | look)
