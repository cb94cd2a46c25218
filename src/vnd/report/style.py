"""Style of all figures: colors, looks of series, axes, legends, text that is safe to draw, and PNG and SVG of them.

Nothing here touches pyplot or its global state. Colours are those of Okabe and Ito, which colour-blind readers can tell
apart; every series has a marker or a line style of its own besides.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from io import BytesIO, StringIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vnd._text import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2933", "#5f6b76", "#d9dee3"
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#aa4499"
Look = tuple[str, str, Any]  # color, marker and line of a series
COLORS, MARKERS = ("#332288", "#117733", "#882255", "#0b7a75", "#b5651d", "#44556b", "#c2185b"), "dp>8H1x"
LOOKS: list[Look] = [  # of series that declare none
    (color, MARKERS[(first + place) % len(MARKERS)], line)  # no two alike, also where there is no line
    for first, line in enumerate(((0, (7, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (2, 1))))
    for place, color in enumerate(COLORS)
]
LOOKS_OF_SIZES: list[Look] = [  # of sizes that share a panel
    *((BLUE, "o", "-"), (ORANGE, "s", "--"), (GREEN, "^", "-."), ("#7a4b9a", "D", ":"), ("#8a6d00", "v", "-")),
    (MUTED, "X", "--"),
]
HALF, WIDE, HEIGHT = 5.4, 10.8, 4.2  # inches; a wide figure fills a page of 1,040 pixels
LETTER = 0.075  # inches that a letter of a legend takes


def canvas(
    width: float = HALF,
    height: float = HEIGHT,
    columns: int = 1,
    ratios: tuple[float, ...] | None = None,
    **gaps: float,
) -> tuple[Figure, Any]:
    """A figure, of half a page, and its axes: one, a row (`columns`), or rows with heights in these `ratios`.

    All axes have one look. `wspace` and `hspace` are gaps between them.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        message = "figures of the report need matplotlib; pip install 'variational-nested-dropout[report]'"
        raise ModuleNotFoundError(message) from None
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(**gaps)  # type: ignore[union-attr]
    rows: dict[str, Any] = {} if ratios is None else {"squeeze": False, "height_ratios": ratios}
    axes = figure.subplots(len(ratios or (1,)), columns, **rows)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(MUTED)
        axis.grid(axis="y", color=GRID, linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(colors=INK, labelsize=9)
        for label in (axis.xaxis.label, axis.yaxis.label):
            label.set(color=INK, fontsize=10)
    return figure, axes


def panels(count: int, across: int, height: float, share: bool = False) -> tuple[Figure, list[Axes]]:
    """A wide figure with so many panels, at most `across` in a row, each `height` inches high."""
    columns = min(count, across)
    rows = math.ceil(count / columns)
    width = WIDE * max(columns, across / 2) / across  # a lone panel need not fill the page
    figure, axes = canvas(width, height * rows + 0.6, columns, (1,) * rows, hspace=0.06, wspace=0.04)
    flat: list[Axes] = list(axes.flat)
    for axis in flat[count:]:
        axis.set_axis_off()
    for axis in flat[1:count] if share else ():
        axis.sharey(flat[0])
    return figure, flat[:count]


def legend(figure: Figure, *axes: Axes, row: float = 0.0) -> Figure:
    """The figure, with a legend above its axes, where it can cover nothing, in as many columns as there is room for.

    A label that several axes have is there once. The figure grows by `row` inches for each row.
    """
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = _columns(list(entries), figure.get_figwidth())
    style: dict[str, Any] = {"ncols": columns, "frameon": False, "fontsize": 9, "labelcolor": INK}
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", **style)
    figure.set_figheight(figure.get_figheight() + row * math.ceil(len(entries) / columns))
    return figure


def _columns(labels: list[str], width: float) -> int:
    """As many columns as labels have room for, filled one after the other; few labels need not fill the width."""
    most = 2 if width <= HALF else 4 if len(labels) <= 16 else 6
    for columns in range(most, 1, -1):
        rows = math.ceil(len(labels) / columns)
        longest = [max(map(len, labels[start : start + rows])) for start in range(0, len(labels), rows)]
        if sum(LETTER * letters + 0.55 for letters in longest) <= width:  # with the line before each
            return columns
    return 1


def looks(series: Sequence[Any]) -> dict[str, Look]:
    """Color, marker and line of each series: the one that its method declares, which the first to have it keeps."""
    rest, taken, found = cycle(LOOKS), list[Look](), dict[str, Look]()
    for own in series:
        found[own.name] = next(rest) if own.look is None or own.look in taken else own.look
        taken.append(found[own.name])
    return found


def plot(
    axis: Axes, x: Sequence[float], y: Sequence[float], look: Look, label: str = "_", hollow: bool = False, **more: Any
) -> None:
    """A series of points: its markers, filled or hollow, and the line that joins them, dashed where hollow."""
    color, marker, line = look
    style: dict[str, Any] = {"markersize": 5.5, "linestyle": line, "linewidth": 1.7, "zorder": 3}
    if hollow:
        style |= {"markerfacecolor": "white", "linestyle": (0, (2, 1.5)), "linewidth": 1.2}
    axis.plot(x, y, color=color, marker=marker, label=one_line(label, 60), **style | more)


def bare(*axes: Axes) -> None:
    """The look of axes without a frame, of images and colored squares."""
    for axis in axes:
        axis.grid(False)
        axis.set_axisbelow("line")
        axis.tick_params(colors=INK, labelsize=9, length=0)
        axis.spines[:].set_visible(False)


def title(axis: Axes, text: str, length: int = 40, size: float = 11) -> None:
    """The heading of a panel, at its left."""
    axis.set_title(one_line(text, length), color=INK, fontsize=size, loc="left")


def size_axis(axis: Axes, sizes: Sequence[float], name: str = "parameters (log scale)") -> None:
    """A log scale that holds these sizes, with numbers for people."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = min(sizes) / 1.3, max(sizes) * 1.3
    decades = math.log10(high / low)
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1, 3) if decades < 4 else (1,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(name)


def one_line(text: str, length: int) -> str:
    """Text of a result file, safe to draw: one line, not too long, and no mathematics within dollars."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return (line if len(line) <= length else line[: length - 1] + "…").replace("$", r"\$")


def pictures(drawn: dict[str, Figure], folder: Path, dpi: int) -> dict[str, str]:
    """Write each figure as a PNG file of its name, and return it as an SVG element for a page."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, figure in drawn.items():
        _save(figure, folder / f"{name}.png", dpi=dpi)
        figure.set_layout_engine("none")  # laid out now; once is enough
        found[name] = svg(figure)
    return found


def _save(figure: Figure, file: Any, **form: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box in the PNG; browsers have more fonts
        figure.savefig(file, **form)


def png(figure: Figure, dpi: int, most: int) -> bytes:
    """A figure as a PNG file of 256 colours and at most so many bytes, coarser than `dpi` if need be."""
    from PIL import Image  # which matplotlib writes PNG files with

    while True:
        drawn, buffer = BytesIO(), BytesIO()
        _save(figure, drawn, format="png", dpi=dpi)
        Image.open(drawn).convert("RGB").quantize(256).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= most or dpi < 40:
            return buffer.getvalue()
        dpi = dpi * 4 // 5


def svg(figure: Figure) -> str:
    """A figure as an element of a page: text stays text, and nothing in it names an address."""
    import matplotlib

    buffer = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vnd"}):
        _save(figure, buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg, count=2)
