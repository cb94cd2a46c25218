"""Sheets of images: labeled rows, trees, and masks over an image.

Each image of rows and trees is enlarged by a whole factor, so that its pixels stay as they are.

A sheet is drawn pixel by pixel: its images lie in one array, at places that are whole numbers, and words and lines over
it. Images are uint8, (count, channels, height, width), of one channel or three.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from vnd.report.style import BLUE, GRID, HALF, INK, MUTED, ORANGE, WIDE, canvas, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pixels = NDArray[np.uint8]

DPI = 128  # a power of two: inches are then exact, and a pixel of the sheet is one of the file
SMALL, LARGE, ACROSS = 56, 128, 1500  # pixels: least and most of an enlarged image, and of all images side by side
MARGIN, GAP, LETTER, LINE = 24, 6, 8, 18  # pixels: of the sheet, between images, of a letter, of a line of words
NARROW = 620  # pixels of the narrowest sheet, so that its heading has room
BLOCK = 9  # pixels of a colored block, which stands for one value of a code
LOW, HIGH = BLUE, ORANGE  # the two values of a tree
MASKS_ACROSS = 8  # masks in a row
GRID_GAP = 2  # pixels between the masks of a grid
TINT = 0.35  # of a mask over its image; its edge is all color
CLASSES = (ORANGE, "#56b4e9", "#009e73", "#cc79a7", "#e69f00", "#0072b2", "#f0e442", "#999999")  # but the background


@dataclass(frozen=True)
class Row:
    """Images that belong together."""

    label: str  # what they are, at their left
    images: Pixels  # (count, channels, height, width)
    note: str = ""  # what else is to be said of them, below the label
    captions: Sequence[str] = ()  # words below each image; none, or as many as there are images

    def __post_init__(self) -> None:
        _checked(self.images, "Row")
        if self.captions and len(self.captions) != len(self.images):
            count = len(self.images)
            raise ValueError(f"Row: captions must be as many as the {count} images; got {len(self.captions)}")


@dataclass
class Sheet:
    """White paper of some pixels, and what is to be written and drawn over its images."""

    width: int
    height: int
    pixels: Pixels = field(init=False)

    def __post_init__(self) -> None:
        self.pixels = np.full((self.height, self.width, 3), 255, np.uint8)
        self._figure, self.axis = canvas(self.width / DPI, self.height / DPI)

    def paste(self, image: Pixels, left: int, top: int, factor: int) -> None:
        """Lay an image (channels, height, width) down, enlarged, with a hair-line around it."""
        large = enlarged(image, factor)
        height, width = large.shape[:2]
        self.fill(left - 1, top - 1, width + 2, height + 2, GRID)
        self.pixels[top : top + height, left : left + width] = large

    def fill(self, left: int, top: int, width: int, height: int, color: str) -> None:
        """A rectangle of one color, #rrggbb."""
        self.pixels[top : top + height, left : left + width] = tuple(bytes.fromhex(color[1:]))

    def write(self, x: float, y: float, text: str, size: float = 8, color: str = INK, **look: Any) -> None:
        """Words at a place; their middle is there but for what `look` says."""
        style = {"ha": "center", "va": "center", "fontsize": size, "color": color}
        self.axis.text(x, y, one_line(text, 400), **style | look)

    def figure(self) -> Figure:
        """The sheet as a figure of exactly its pixels."""
        figure, axis = self._figure, self.axis
        figure.set_layout_engine("none")
        figure.set_dpi(DPI)
        axis.set_position((0, 0, 1, 1))
        axis.set_axis_off()
        axis.imshow(self.pixels, interpolation="nearest", aspect="auto", extent=(0, self.width, self.height, 0))
        axis.set(xlim=(0, self.width), ylim=(self.height, 0))
        return figure


def enlarged(image: Pixels, factor: int) -> Pixels:
    """An image (channels, height, width) as (height, width, 3), each pixel a square of so many.

    >>> enlarged(np.array([[[7, 9]]], np.uint8), 2)[..., 0].tolist()
    [[7, 7, 9, 9], [7, 7, 9, 9]]
    """
    three = np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)
    return three.repeat(factor, axis=0).repeat(factor, axis=1)


def factor_of(side: int, across: int) -> int:
    """Factor to enlarge images by: as much as so many of them side by side have room for.

    >>> factor_of(28, 8), factor_of(28, 16), factor_of(32, 12), factor_of(64, 16), factor_of(300, 4)
    (4, 3, 3, 1, 1)
    """
    room = min(LARGE, ACROSS // across - GAP)
    return max(-(-SMALL // side), room // side, 1)


def rows(
    shown: Sequence[Row],
    heading: str,
    about: str,
    heads: Sequence[str] = (),
    above: str = "",
    first: Row | None = None,
    across: int = 12,
) -> Figure:
    """Labelled rows of images; a row that is longer than `across` goes on below itself.

    Args:
        shown: The rows, whose images all have the same size.
        heading: What the sheet shows.
        about: Sentences below the heading.
        heads: Words above the columns; none, or as many as there are.
        above: What the heads are.
        first: A row above the heads, of what is not in these columns.
        across: The most columns.
    """
    every = [*([first] if first else []), *shown]
    if not shown or not all(len(row.images) for row in every):
        raise ValueError("rows: shown must hold at least one row, each of at least one image; got none")
    columns = min(across, max(len(row.images) for row in every))
    if heads and len(heads) != columns:
        raise ValueError(f"rows: heads must be as many as the {columns} columns; got {len(heads)}")
    factor = factor_of(max(shown[0].images.shape[2:]), columns)
    high, wide = (side * factor for side in shown[0].images.shape[2:])
    steps = [high + GAP + LINE * bool(row.captions) for row in every]  # from one line of a row to the next
    rooms = [-(-len(row.images) // columns) * step + 2 * GAP for row, step in zip(every, steps, strict=True)]
    gutter = LETTER * max(len(words) for row in every for words in (row.label, row.note, above)) + 2 * GAP
    below = sum(rooms) + (LINE + GAP if heads else 0)
    sheet, top = _begin(gutter + columns * (wide + GAP), below, heading, about)
    left = MARGIN + gutter
    for row, step, room in zip(every, steps, rooms, strict=True):
        if heads and row is shown[0]:
            for column, words in enumerate(heads):
                sheet.write(left + column * (wide + GAP) + wide / 2, top + LINE / 2, words)
            sheet.write(left - 2 * GAP, top + LINE / 2, above, color=MUTED, ha="right")
            top += LINE + GAP
        middle = top + (room - 3 * GAP - LINE * bool(row.captions)) / 2
        sheet.write(left - 2 * GAP, middle - LINE / 2 * bool(row.note), row.label, ha="right")
        sheet.write(left - 2 * GAP, middle + LINE / 2, row.note, color=MUTED, ha="right")
        for index, image in enumerate(row.images):
            x, y = left + index % columns * (wide + GAP), top + index // columns * step
            sheet.paste(image, x, y, factor)
            if row.captions:
                sheet.write(x + wide / 2, y + high + LINE / 2 + 1, row.captions[index], 7.5, MUTED)
        top += room
    return sheet.figure()


def tree(
    levels: Sequence[Pixels], heading: str, about: str, values: tuple[str, str], trunk: int = 0, only: str = ""
) -> Figure:
    """A binary tree of images: image j of the $2^b$ of level b has the images 2 j and 2 j + 1 of the next below it.

    Over the top left corner of each image are as many blocks as its code is long: `trunk` grey ones, of values that all
    codes share, and one for each level, the values on the way to it. `values` says what the left and the right way
    stand for, `only` what a grey block does, `about` what stands below the heading.
    """
    for level, images in enumerate(levels):
        _checked(images, "tree")
        if len(images) != 2**level:
            raise ValueError(f"tree: level {level} must have {2**level} images; got {len(images)}")
    height, width = levels[0].shape[2:]
    leaves = 2 ** (len(levels) - 1)
    factor = factor_of(max(height, width), leaves)
    high, wide = height * factor, width * factor
    gutter, step, edge = LETTER * 9, wide + 2 * GAP, max(44, min(72, 3 * leaves + 30))
    pitch = high + edge + BLOCK + GAP
    inside = gutter + leaves * step
    sheet, top = _begin(inside, LINE + 2 * GAP + len(levels) * pitch - edge, heading, about)
    x = MARGIN
    legend = [*([(only, MUTED)] if trunk else []), *zip(values, (LOW, HIGH), strict=True)]
    for words, color in legend:  # what the colors stand for
        sheet.fill(x, top + (LINE - BLOCK) // 2, BLOCK, BLOCK, color)
        sheet.write(x + BLOCK + GAP, top + LINE / 2, words, ha="left")
        x += BLOCK + 4 * GAP + LETTER * len(words)
    top += LINE + 3 * GAP + BLOCK
    for level, images in enumerate(levels):
        y = top + level * pitch
        sheet.write(MARGIN, y + high / 2, f"length {trunk + level}", ha="left")
        block = min(BLOCK, (wide + GAP) // max(1, trunk + level) - 2)
        for index, image in enumerate(images):
            middle = MARGIN + gutter + step * (leaves >> level) * (index + 0.5)  # over that of the leaves below it
            sheet.paste(image, round(middle - wide / 2), y, factor)
            signs = [HIGH if index >> (level - 1 - place) & 1 else LOW for place in range(level)]
            for place, color in enumerate([MUTED] * trunk + signs):
                sheet.fill(round(middle - wide / 2) + place * (block + 2), y - block - 4, block, block, color)
            if level:
                above = MARGIN + gutter + step * (leaves >> (level - 1)) * (index // 2 + 0.5)
                color = HIGH if index % 2 else LOW
                ends = (y - pitch + high + 3, y - BLOCK - 7)
                sheet.axis.plot((above, middle), ends, color=color, linewidth=1.3, solid_capstyle="round")
    return sheet.figure()


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """A sheet as a PNG file in all its colors."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def _begin(inside: int, below: int, heading: str, about: str) -> tuple[Sheet, int]:
    """A sheet with its heading and what is said below it, and where the rest begins."""
    width = max(NARROW, inside + 2 * MARGIN, 11 * len(heading) + 2 * MARGIN)
    lines = textwrap.wrap(about, (width - 2 * MARGIN) // LETTER)
    top = MARGIN + LINE + GAP + len(lines) * LINE + 2 * GAP
    sheet = Sheet(width, top + below + MARGIN - GAP)
    sheet.write(MARGIN, MARGIN + LINE / 2, heading, 11, ha="left")
    for index, line in enumerate(lines):
        sheet.write(MARGIN, MARGIN + LINE + GAP + (index + 0.5) * LINE, line, color=MUTED, ha="left")
    return sheet, top


def _checked(images: Pixels, who: str) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        got = f"{images.dtype} {images.shape}"
        raise ValueError(f"{who}: images must be uint8 (count, 1 or 3, height, width); got {got}")


def overview(
    image: Pixels,
    mean: NDArray[Any],
    entropy: NDArray[np.float64],
    samples: Sequence[Pixels],
    heading: str,
    about: str,
    classes: Sequence[str] = (),
) -> Figure:
    """The image, the mean of the masks, their entropy with its scale, and below them each mask over the image.

    Of several classes the most likely one is in the place of the mean, and their names stand beside the heading.

    Args:
        image: (height, width) or (height, width, 3).
        mean: Probability of the foreground, (height, width); of several classes the most likely, as `tinted` has it.
        entropy: Nats of a pixel, (height, width).
        samples: Each mask over the image, as `tinted` has it: small, or its edge is too thin to be seen.
        heading: What the sheet shows.
        about: A line below it.
        classes: Names of the classes, the background first; none where there is one foreground.
    """
    count, tall = len(samples), _tall(image)
    across = min(MASKS_ACROSS, count)
    rows, small = -(-count // across), 10.2 / MASKS_ACROSS
    heights = 3.1 * tall + 0.35, rows * (small * tall + 0.24) + 0.1
    figure, _ = canvas(WIDE, sum(heights) + 0.75)
    figure.clear()
    figure.suptitle(one_line(heading, 120), x=0.012, ha="left", fontsize=12, color=INK)
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    top, below = parts
    first, middle, last = top.subplots(1, 3)
    likely = "most likely class" if classes else "mean probability"
    for axis, title in ((first, "image"), (middle, likely), (last, "uncertainty")):
        axis.set_title(title, fontsize=10, color=INK)
        axis.set_axis_off()
    _show(first, image)
    _show(middle, mean, **({} if classes else {"vmin": 0, "vmax": 1}))
    _bar(top, last, entropy, max(2, len(classes)))
    if classes:
        _legend(figure, classes)
    grid = below.subplots(rows, MASKS_ACROSS, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for index, sample in enumerate(samples):
        axis = grid[index // across][index % across]
        _show(axis, sample)
        axis.set_title(str(index + 1), fontsize=8, color=MUTED, pad=2)
    figure.supxlabel(one_line(about, 200), x=0.012, ha="left", fontsize=8.5, color=MUTED)
    return figure


def _legend(figure: Any, classes: Sequence[str]) -> None:
    """Names of the classes in their colors, but for the background."""
    from matplotlib.patches import Patch

    shown = list(enumerate(classes))[1 : len(CLASSES) + 1]
    patches: list[Any] = [Patch(color=color_of(label), label=one_line(name, 24)) for label, name in shown]
    if len(classes) - 1 > len(shown):
        patches.append(Patch(color="white", label=f"and {len(classes) - 1 - len(shown)} more"))
    figure.legend(handles=patches, loc="upper right", ncols=len(patches), fontsize=8.5, frameon=False, labelcolor=INK)


def color_of(label: int) -> str:
    """Colour of a class, from 1 on; after the eight that are easily told apart they come again.

    >>> color_of(1) == color_of(9)
    True
    """
    return CLASSES[(label - 1) % len(CLASSES)]


def palette() -> bytes:
    """Red, green and blue of 256 classes, the background black."""
    return bytes(3) + b"".join(bytes.fromhex(color_of(label)[1:]) for label in range(1, 256))


def uncertainty(entropy: NDArray[np.float64], heading: str, classes: int = 2) -> Figure:
    """The entropy of each pixel as colors, with their scale, which ends at that of so many classes alike."""
    figure, axis = canvas(HALF, 4.2 * _tall(entropy) + 0.5)
    axis.set_axis_off()
    axis.set_title(one_line(heading, 60), fontsize=10, color=INK)
    _bar(figure, axis, entropy, classes)
    return figure


def tinted(image: Pixels, mask: NDArray[Any]) -> Pixels:
    """An image (height, width) or (height, width, 3) in colors, with a mask laid over it and its edges drawn.

    The mask is of truths, or of numbers of classes, 0 for the background.

    >>> tinted(np.zeros((3, 3), np.uint8), np.ones((3, 3), bool)).shape
    (3, 3, 3)
    """
    three = np.broadcast_to(image[..., None] if image.ndim == 2 else image, (*image.shape[:2], 3)).astype(np.float64)
    for label in np.unique(mask[mask > 0]).tolist():
        inside = mask == label
        edge = inside & ~ndimage.binary_erosion(inside, border_value=1)
        share = np.where(edge, 1.0, np.where(inside, TINT, 0.0))[..., None]
        three = (1 - share) * three + share * np.array(tuple(bytes.fromhex(color_of(int(label))[1:])), np.float64)
    return np.asarray(three).round().astype(np.uint8)


def grid(masks: NDArray[Any]) -> Pixels:
    """Masks (samples, height, width) side by side, white on black, in rows with grey lines between.

    Masks of numbers of classes are in the colors of these, and the sheet has three channels.

    >>> grid(np.ones((3, 4, 4), bool)).shape
    (14, 14)
    """
    count, height, width = masks.shape
    across, high, wide = math.ceil(math.sqrt(count)), height + GRID_GAP, width + GRID_GAP
    size = -(-count // across) * high + GRID_GAP, across * wide + GRID_GAP
    if masks.dtype == np.bool_:
        sheet, colors = np.full(size, 128, np.uint8), np.array([0, 255], np.uint8)
    else:
        sheet, colors = np.full((*size, 3), 128, np.uint8), np.frombuffer(palette(), np.uint8).reshape(256, 3)
    for index, mask in enumerate(masks):
        top, left = index // across * high + GRID_GAP, index % across * wide + GRID_GAP
        sheet[top : top + height, left : left + width] = colors[mask.astype(np.int64)]
    return sheet


def _tall(image: NDArray[Any]) -> float:
    """The height of an image by its width, as far as a figure has room for it."""
    return float(min(max(image.shape[0] / image.shape[1], 0.4), 2.5))


def _bar(figure: Any, axis: Axes, entropy: NDArray[np.float64], classes: int = 2) -> None:
    """The entropy, and the scale of its colors in nats, up to that of so many classes that are alike likely."""
    most = math.log(classes)
    shown = _show(axis, entropy, cmap="inferno", vmin=0, vmax=most)
    bar = figure.colorbar(shown, ax=axis, fraction=0.045, pad=0.03)
    bar.set_label("entropy, nats", fontsize=8.5, color=INK)
    step = next(step for step in (0.2, 0.5, 1.0, 2.0) if most / step < 4)
    ticks = [step * place for place in range(math.ceil(most / step)) if most - step * place > 0.3 * step]
    bar.set_ticks([*ticks, most], labels=[*(f"{tick:.1f}".removesuffix(".0") for tick in ticks), f"ln {classes}"])
    bar.ax.tick_params(labelsize=8, colors=INK)
    bar.outline.set_visible(False)


def _show(axis: Axes, image: Any, **look: Any) -> Any:
    gray: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255} if image.ndim == 2 else {}
    large = max(image.shape[:2]) > 400  # more pixels than the paper has: then smoothed
    return axis.imshow(image, interpolation="antialiased" if large else "nearest", **gray | look)
