"""Figures that compare methods: measures against width and parameters, and what BatchNorm's statistics need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from vnd.report.canvas import MUTED, WIDE, canvas, legend, plain, size_axis, tidy, title
from vnd.report.series import Point, Series, answering, by_size, point_of, read_as

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vnd.report.markdown import Named

Look = tuple[str, str, Any]
# Colour, marker and line of each name; then those of any other, which no name above has.
STYLES: dict[str, Look] = {
    "BN³": ("#0072b2", "o", "-"),
    "DT-BN³": ("#56b4e9", "v", (0, (5, 1.5))),
    "BN³-MC": ("#1f2933", "*", "-"),
    "FN³": ("#d55e00", "s", "-"),
    "FN³-TS": ("#e69f00", "D", (0, (5, 1.5))),
    "IBNN": ("#009e73", "^", "-."),
    "SVB": ("#cc79a7", "X", "-"),
    "ordered ℓ0": ("#7a4b9a", "P", (0, (3, 1, 1, 1))),
    "US-Net": ("#8a6d00", "<", ":"),
    "plain": ("#5f6b76", "h", (0, (1, 1))),
}
COLORS, MARKERS = ("#332288", "#117733", "#882255", "#0b7a75", "#b5651d", "#44556b", "#c2185b"), "dp>8H1x"
OTHERS: list[Look] = [
    (color, MARKERS[(first + place) % len(MARKERS)], line)  # no two alike, also where there is no line
    for first, line in enumerate(((0, (7, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (2, 1))))
    for place, color in enumerate(COLORS)
]
# What a measure is called on its axis, what its numbers are multiplied with, and whether more is better.
AXES: dict[str, tuple[str, float, bool]] = {
    "accuracy": ("accuracy (% of images)", 100, True),
    "ece": ("calibration error, ECE (%)", 100, False),
    "auroc": ("AUROC, unfamiliar images (%)", 100, True),
    "aupr": ("AUPR, unfamiliar images (%)", 100, True),
    "nll": ("negative log-likelihood (nats)", 1, False),
}
HEIGHT, ROW = 3.9, 0.19  # inches: of a figure, and what each row of its legend adds
PAGE = 8.2  # inches: what a page of documentation has room for
MANY = 12  # series; with more, only they are in the legend
COUNTS = [("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#7a4b9a", "D"), ("#8a6d00", "v"), ("#5f6b76", "X")]


def styles(series: Sequence[Named], looks: dict[str, Look] = STYLES) -> dict[str, Look]:
    """Colour, marker and line of each series; of several with one name, before what tells them apart, the first's."""
    rest, known = cycle(OTHERS), dict(looks)
    found: dict[str, Look] = {}
    for own in series:
        name = own.name.partition(" (")[0]
        found[own.name] = known.pop(name) if name in known else next(rest)
    return found


def measured(series: Sequence[Series], key: str) -> bool:
    """Whether there is anything to draw of a measure."""
    return any(_has(own, key) for own in series)


def _has(own: Series, key: str) -> bool:
    return any(key in point.measures for point in own.points)


def curves(series: Sequence[Series], key: str) -> Figure:
    """A measure of all series against width, on the left, and against parameters; bands are confidence intervals.

    Learned shapes have their own lines, on the right, and of main inference only.
    """
    name, factor, _ = AXES[key]
    looks = styles(series)
    series = answering(series) if key == "accuracy" else series
    figure, (left, right) = canvas(WIDE, HEIGHT, columns=2)
    right.sharey(left)
    for own in series:
        known = [point for point in own.points if key in point.measures]
        shares = sorted((p for p in known if p.fraction is not None), key=lambda p: p.fraction or 0)
        style = looks[own.name]
        _line(left, [p.fraction or 0 for p in shares], shares, key, factor, own.name, style)
        for kind in ("uniform", "learned", "sampled") if own.main else ("uniform", "sampled"):  # enough lines as it is
            some = [point for point in known if point.kind == kind]
            label = own.name
            if kind == "learned":
                label = f"{own.name}, learned" if len(series) <= MANY else "_"  # the caption says what is hollow
            _line(right, [p.parameters for p in some], some, key, factor, label, style, hollow=kind == "learned")
    _width_axis(left)
    size_axis(right, [p.parameters for own in series for p in own.points if key in p.measures])
    left.set_ylabel(name)
    _limit(left, [factor * p.measures[key].mean for own in series for p in own.points if key in p.measures])
    right.tick_params(labelleft=False)
    if key == "aupr":
        _chance(left, [p.costs["base_rate"] for own in series for p in own.points if "base_rate" in p.costs])
    for axis in (left, right):
        tidy(axis)
    figure.set_figheight(HEIGHT + ROW * legend(figure, right, left))
    return figure


def over_parameters(series: Sequence[Series], key: str) -> Figure:
    """A measure of main inference against parameters, on one axis; learned shapes have hollow markers.

    Scaled inference are there where confidence itself is measured, unless there are too many series.
    """
    name, factor, _ = AXES[key]
    looks = styles(series)
    shown = [own for own in series if own.main or (own.reading == "temperature_scaled" and key in ("ece", "nll"))]
    shown = [own for own in (shown if len(shown) <= MANY else [own for own in shown if own.main]) if _has(own, key)]
    figure, axis = canvas(PAGE, HEIGHT)
    for own in shown:
        for kind in dict.fromkeys(point.kind for point in own.points):
            some = [point for point in own.points if point.kind == kind and key in point.measures]
            label, hollow = f"{own.name}, learned" if kind == "learned" else own.name, kind == "learned"
            _line(axis, [p.parameters for p in some], some, key, factor, label, looks[own.name], hollow)
    known = [point for own in shown for point in own.points if key in point.measures]
    size_axis(axis, [point.parameters for point in known])
    axis.set_ylabel(name)
    _limit(axis, [factor * point.measures[key].mean for point in known])
    tidy(axis)
    figure.set_figheight(HEIGHT + ROW * legend(figure, axis))
    return figure


def counts(own: Series) -> list[int]:
    """The numbers of images that BatchNorm's statistics were collected from, as its runs say; 0, all, last."""
    found = {row.get("bn_images") for run in own.runs for row in run.rows if row["inference"] == own.reading}
    return sorted((count for count in found if count is not None), key=lambda count: (count == 0, count))


def statistics(own: Series) -> Figure:
    """Accuracy and calibration error against width, for every number of images that BatchNorm's statistics are of.

    Paper: the appendix on less data for batch-norm statistics. A band reaches from the worst repeat to the best,
    on average over runs.
    """
    figure, axes = canvas(WIDE, 4.2, columns=2)
    for index, count in enumerate(counts(own)):
        runs = [rows for run in own.runs if (rows := read_as(run, own.reading, count))]
        sizes = sorted(
            (p for p in map(point_of, by_size(runs)) if p.fraction is not None), key=lambda p: p.fraction or 0
        )
        color, marker = COUNTS[index % len(COUNTS)]
        label = "all images" if count == 0 else f"{count:,} images"
        for axis, key in zip(axes, ("accuracy", "ece"), strict=True):
            shares = [p.fraction or 0 for p in sizes]
            axis.plot(shares, [100 * p.measures[key].mean for p in sizes], color=color, marker=marker, label=label)
            low, high = ([100 * _outermost(runs, p, key, end) for p in sizes] for end in (min, max))
            axis.fill_between(shares, low, high, color=color, alpha=0.15, linewidth=0)
    for axis, key in zip(axes, ("accuracy", "ece"), strict=True):
        _width_axis(axis)
        axis.set_ylabel(AXES[key][0])
        tidy(axis)
    title(axes[0], own.name)
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    legend(figure, axes[0])
    return figure


def _outermost(runs: list[list[dict[str, Any]]], point: Point, key: str, end: Callable[[list[float]], float]) -> float:
    """The smallest or largest repeat of a size, averaged over runs: what draws do, without what seeds do."""
    own = [[row[key] for row in rows if row.get("fraction") == point.fraction] for rows in runs]
    found = [end(values) for values in own if values]
    return sum(found) / len(found)


def _line(
    axis: Axes,
    places: list[float],
    shown: list[Point],
    key: str,
    factor: float,
    label: str,
    style: tuple[str, str, Any],
    hollow: bool = False,
) -> None:
    """A series with its band; one point is a larger marker, with bars in the place of the band."""
    if not shown:
        return
    color, marker, line = style
    found = [point.measures[key] for point in shown]
    mean, low, high = ([factor * getattr(one, part) for one in found] for part in ("mean", "low", "high"))
    low, high = [max(0.0, x) for x in low], [x if key == "nll" else min(factor, x) for x in high]  # what can be
    look: dict[str, Any] = {"color": color, "marker": marker, "label": plain(label, 60), "zorder": 3}
    if len(shown) == 1:
        across = shown[0].costs.get("usage_std", 0) if axis.get_xscale() == "log" or places[0] > 1 else 0
        reach = [[mean[0] - low[0]], [high[0] - mean[0]]] if found[0].count > 1 else None
        sides = [[min(across, 0.9 * places[0])], [across]] if across else None
        axis.errorbar(places, mean, yerr=reach, xerr=sides, linestyle="none", markersize=9, elinewidth=1.2, **look)
        return
    if hollow:
        look |= {"markerfacecolor": "white", "linestyle": (0, (2, 1.5)), "linewidth": 1.2, "markersize": 5.5}
    else:
        look |= {"linestyle": line, "linewidth": 1.7, "markersize": 5.5}
    axis.plot(places, mean, **look)
    if any(one.count > 1 for one in found):
        axis.fill_between(places, low, high, color=color, alpha=0.13, linewidth=0, zorder=1)


def _limit(axis: Axes, means: list[float]) -> None:
    """Keep to the means and a part of the bands: over two seeds a band may be ten times as wide as all else."""
    room = 0.3 * (max(means) - min(means)) or 0.05 * abs(means[0]) or 1.0
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, min(means) - room), min(high, max(means) + room))


def _width_axis(axis: Axes) -> None:
    axis.set_xlabel("width (% of every layer)")
    axis.set_xlim(0, 1.04)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100"])


def _chance(axis: Axes, rates: list[float]) -> None:
    """What a detector that knows nothing would have; the axis keeps to the measured numbers."""
    if rates and max(rates) - min(rates) < 1e-4:
        limits = axis.get_ylim()
        axis.axhline(100 * rates[0], color=MUTED, linewidth=1, linestyle=":", zorder=1)
        axis.set_ylim(limits)
        axis.set_ylabel(f"{axis.get_ylabel()}, by chance {100 * rates[0]:.1f}")
