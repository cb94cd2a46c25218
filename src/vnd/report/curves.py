"""Figures on networks of several sizes: measures over sizes, what was learned, what answers can be trusted with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vnd.metrics import confidence_interval
from vnd.report import theory
from vnd.report.html import NONE, Cell, Drawing, Items, Options, Panel, Table, caption, each, interval, part, section
from vnd.report.results import Column
from vnd.report.series import Block, Point, Series, points_of, rows_of
from vnd.report.sizes import answering, described, drawn_columns, first_of, has_several, headline, other_of
from vnd.report.style import (
    BLUE,
    GREEN,
    INK,
    LOOKS_OF_SIZES,
    MUTED,
    ORANGE,
    PURPLE,
    WIDE,
    Look,
    bare,
    canvas,
    legend,
    looks,
    one_line,
    panels,
    plot,
    size_axis,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT, ROW = 3.9, 0.19  # inches: of a figure, and what each row of its legend adds
PAGE = 8.2  # inches: what a page of documentation has room for
MANY = 12  # series; with more, only they are in the legend
FEW = 20  # predictions in a bin, or points of a curve: accuracy is mostly chance, a line is hard to see
DIAGRAMS, CURVES, DRAWN = 3, 4, 200  # reliability diagrams; curves in a panel; points of a curve: more cannot be seen
EXAMPLES = {"most_certain": "Most certain", "least_certain": "Least certain", "ood": "Out of domain"}
LINES_OF_TRAINING = {  # by the first that a log has: of the upper panel, and last that of the lower one
    "mse": [("mse", "mean squared error", BLUE, "-"), ("rate", "rate", ORANGE, "--")],
    "loss": [
        ("loss", "loss", BLUE, "-"),
        ("nll", "negative log-likelihood", ORANGE, "--"),
        ("kl", "KL term", GREEN, "-."),
    ],
}
ACROSS, PIXELS = 8, 96  # examples in a row; a larger one is thinned: it is shown small


# Figures over sizes


@section("curves", "page", "markdown")
def curves(block: Block, options: Options) -> list[Panel]:
    """Each measure of all series over sizes."""
    found = []
    for index, column in enumerate(drawn_columns(block)):
        on_page, note = options.view == "page", described(column, block)
        if not on_page and (column.chance or column.better == ""):
            continue
        draw = over_sizes if on_page else over_parameters
        heading = column.title if on_page else f"{column.title}, over parameters"
        note = f"{note} {caption(f'curves_{options.view}')}" if index == 0 else note
        found.append(
            Panel(column.key, heading, note.strip(), [options.drawing(column.key, draw, block.series, column)])
        )
    return found


def over_sizes(series: Sequence[Series], column: Column) -> Figure:
    """A measure of all series against width, on the left, and against parameters; bands are confidence intervals.

    Learned shapes have their own lines, on the right, and of main series only.
    """
    styles, series = looks(series), series if column.scaled else answering(series)
    figure, (left, right) = canvas(WIDE, HEIGHT, columns=2)
    right.sharey(left)
    for own in series:
        shares = _widths(own.of(having=column.key))
        _line(left, [p.fraction or 0 for p in shares], shares, column, own.name, styles[own.name])
        kinds = ("uniform", "learned", "sampled") if own.main else ("uniform", "sampled")  # enough lines as it is
        learned = f"{own.name}, learned" if len(series) <= MANY else "_"  # the caption says what is hollow
        _by_parameters(right, own, kinds, column, styles[own.name], learned)
    known = [p for own in series for p in own.of(having=column.key)]
    _width_axis(left)
    size_axis(right, [p.parameters for p in known])
    _measure_axis(left, column, known)
    right.tick_params(labelleft=False)
    rates = [p.measures[column.chance].mean for p in known if column.chance in p.measures]
    if rates and max(rates) - min(rates) < 1e-4:  # what chance gives; the axis keeps to the measured numbers
        limits = left.get_ylim()
        left.axhline(100 * rates[0], color=MUTED, linewidth=1, linestyle=":", zorder=1)
        left.set(ylim=limits, ylabel=f"{column.axis}, by chance {100 * rates[0]:.1f}")
    return legend(figure, right, left, row=ROW)


def over_parameters(series: Sequence[Series], column: Column) -> Figure:
    """A measure of main series against parameters, on one axis; learned shapes have hollow markers.

    Scaled ones are there where confidence itself is measured, unless there are too many series.
    """
    styles = looks(series)
    scaled = [own for own in series if own.main or (own.inference == "temperature_scaled" and column.better == "less")]
    shown = scaled if len(scaled) <= MANY else [own for own in scaled if own.main]
    shown = [own for own in shown if own.of(having=column.key)]
    figure, axis = canvas(PAGE, HEIGHT)
    for own in shown:
        kinds = dict.fromkeys(point.kind for point in own.points)
        _by_parameters(axis, own, kinds, column, styles[own.name], f"{own.name}, learned")
    known = [point for own in shown for point in own.of(having=column.key)]
    size_axis(axis, [point.parameters for point in known])
    _measure_axis(axis, column, known)
    return legend(figure, axis, row=ROW)


def _by_parameters(axis: Axes, own: Series, kinds: Iterable[str], column: Column, look: Look, learned: str) -> None:
    """A series over parameters, each of these kinds of size for itself; learned shapes are called otherwise."""
    for kind in kinds:
        some, hollow = own.of(kind, having=column.key), kind == "learned"
        _line(axis, [p.parameters for p in some], some, column, learned if hollow else own.name, look, hollow)


def _line(
    axis: Axes, at: list[float], shown: list[Point], column: Column, label: str, look: Look, hollow: bool = False
) -> None:
    """A series with its band; one point is a larger marker, with bars in the place of the band."""
    if not shown:
        return
    color, marker, _ = look
    found = [point.measures[column.key] for point in shown]
    mean, low, high = ([column.factor * getattr(one, part) for one in found] for part in ("mean", "low", "high"))
    if column.factor == 100:
        high = [min(100, x) for x in high]  # what can be
    low = [max(0.0, x) for x in low]
    if len(shown) == 1:
        style: dict[str, Any] = {"color": color, "marker": marker, "label": one_line(label, 60), "zorder": 3}
        across = (shown[0].mean("usage_std") or 0) if axis.get_xscale() == "log" or at[0] > 1 else 0
        reach = [[mean[0] - low[0]], [high[0] - mean[0]]] if found[0].count > 1 else None
        sides = [[min(across, 0.9 * at[0])], [across]] if across else None
        axis.errorbar(at, mean, yerr=reach, xerr=sides, linestyle="none", markersize=9, elinewidth=1.2, **style)
        return
    plot(axis, at, mean, look, label, hollow)
    if any(one.count > 1 for one in found):
        axis.fill_between(at, low, high, color=color, alpha=0.13, linewidth=0, zorder=1)


def _measure_axis(axis: Axes, column: Column, known: Sequence[Point]) -> None:
    """Keep to the means and a part of the bands: over two seeds a band may be ten times as wide as all else."""
    means = [column.factor * point.measures[column.key].mean for point in known]
    room = 0.3 * (max(means) - min(means)) or 0.05 * abs(means[0]) or 1.0
    low, high = axis.get_ylim()
    axis.set(ylabel=column.axis, ylim=(max(low, min(means) - room), min(high, max(means) + room)))


def _widths(points: Iterable[Point]) -> list[Point]:
    """The points that have one share of every layer, from the narrowest."""
    return sorted((p for p in points if p.fraction is not None), key=lambda p: p.fraction or 0)


def _width_axis(axis: Axes) -> None:
    axis.set(xlabel="width (% of every layer)", xlim=(0, 1.04))
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100"])


@section("statistics", "page")
def statistics(block: Block, options: Options) -> list[Panel]:
    """Worth of more images for BatchNorm's statistics."""
    some = [own for own in block.main if len(image_counts(own)) > 1]
    drawings = each(some, "statistics", draw_statistics, options.prefix)
    return [part("statistics", drawings)]


def image_counts(own: Series) -> list[int]:
    """The numbers of images that BatchNorm's statistics were collected from, as its runs say; 0, all, last."""
    found = {row.get("bn_images") for run in own.runs for row in run.rows if row["inference"] == own.inference}
    return sorted((count for count in found if count is not None), key=lambda count: (count == 0, count))


def draw_statistics(own: Series) -> Figure:
    """The first two drawn columns against width, for every number of images that BatchNorm's statistics are of.

    Paper: the appendix on less data for batch-norm statistics. A band reaches from the worst repeat to the best,
    on average over runs.
    """
    columns = [column for column in own.columns.values() if column.title and own.of(having=column.key)][:2]
    figure, axes = canvas(WIDE, columns=2, wspace=0.06)
    for index, count in enumerate(image_counts(own)):
        runs = [rows for run in own.runs if (rows := rows_of(run, own.inference, count))]
        sizes = _widths(points_of(runs))
        color, marker, _ = LOOKS_OF_SIZES[index % len(LOOKS_OF_SIZES)]
        label = "all images" if count == 0 else f"{count:,} images"
        for axis, column in zip(axes, columns, strict=False):
            shares, key, factor = [p.fraction or 0 for p in sizes], column.key, column.factor
            values = [factor * p.measures[key].mean for p in sizes]
            axis.plot(shares, values, color=color, marker=marker, label=label)
            ends = []
            for end in (min, max):  # the outermost repeat of a size, averaged over runs: what draws do, not seeds
                found = [[end(r[key] for r in rows) for rows in p.rows] for p in sizes]
                ends.append([factor * sum(values) / len(values) for values in found])
            axis.fill_between(shares, *ends, color=color, alpha=0.15, linewidth=0)
    for axis, column in zip(axes, columns, strict=False):
        _width_axis(axis)
        axis.set_ylabel(column.axis)
    title(axes[0], own.name)
    return legend(figure, axes[0])


# What was learned


def length_probs(survival: Sequence[float]) -> list[float]:
    r"""$P(\text{length} = j)$ for j = 0 … n, from $P(\text{unit } j \text{ is kept})$: differences of neighbors.

    >>> length_probs([1.0, 0.75, 0.25])
    [0.0, 0.25, 0.5, 0.25]
    """
    steps = [1.0, *survival, 0.0]
    return [max(0.0, before - after) for before, after in pairwise(steps)]


def learned_layers(own: Series) -> dict[str, list[float]]:
    """Length probabilities of each layer of the first run; none where lengths are fixed: all alike, or certain."""
    layers = {name: length_probs(probs) for name, probs in (own.runs[0].results.get("survival") or {}).items()}
    likely = [[p for p in probs if p > 1e-6] for probs in layers.values()]
    return layers if any(1e-3 < max(probs) < 0.999 and np.ptp(probs) > 1e-3 for probs in likely) else {}


@section("survival", "run", "page", "markdown")
def survival(block: Block, options: Options) -> list[Panel]:
    """Units that a network learned to keep: one by one for one run, their number for many."""
    if options.view == "page":
        drawings = each([own for own in block.main if learned_layers(own)], "lengths", tail_index, options.prefix)
        return [part("lengths", drawings, caption_of="layers", first=first_of(block))]
    own = headline(block)
    layers = own.runs[0].results.get("survival")
    known = learned_layers(own) if options.view == "markdown" else layers and own.method.get("order") != "fixed"
    drawn = [options.drawing("survival", draw_survival, layers)] if known and layers else []
    return [part("survival", drawn, name=own.name if options.view == "markdown" else "")]


def draw_survival(layers: dict[str, list[float]]) -> Figure:
    """Probability that each unit is kept, one row a layer, with the expected number of units beside it."""
    units = max(len(probs) for probs in layers.values())
    table = np.full((len(layers), units), np.nan)
    for row, probs in enumerate(layers.values()):
        table[row, : len(probs)] = probs
    figure, axis = canvas(WIDE, 1.5 + 0.3 * len(layers))
    edges = np.arange(units + 1) + 0.5
    mesh = axis.pcolormesh(edges, np.arange(len(layers) + 1) - 0.5, np.ma.masked_invalid(table), vmin=0, vmax=1)
    mesh.set(cmap="cividis", edgecolor="white", linewidth=0.6)
    axis.set_yticks(range(len(layers)), [one_line(name, 28) for name in layers])
    axis.invert_yaxis()
    step = next(step for step in (1, 2, 4, 8, 16, 32, units) if units / step <= 34)
    axis.set_xticks([unit for unit in range(1, units + 1) if unit == 1 or unit % step == 0])
    axis.set_xlabel("unit, in the order learned (a unit is a group of channels)", color=INK, fontsize=10)
    expected = axis.secondary_yaxis("right")
    expected.set_yticks(range(len(layers)), [f"{sum(probs):.1f} of {len(probs)}" for probs in layers.values()])
    expected.set_ylabel("units kept on average", color=INK, fontsize=10)
    bar = figure.colorbar(mesh, ax=axis, pad=0.02, aspect=max(8, 3 * len(layers)))
    bar.set_label("P(unit is kept)", color=INK, fontsize=10)
    bare(axis, expected, bar.ax)
    return figure


def tail_index(own: Series) -> Figure:
    """Probabilities of a layer's numbers of units, as learned, after two laws of the literature that are fixed.

    Paper: the first figure, on the probabilities of the tail index.
    """
    layers = learned_layers(own)
    fixed = theory.fixed_lengths(max(len(probs) for probs in layers.values()) - 1)
    shown = [*fixed.items(), *layers.items()]
    few = len(shown) <= 12
    figure, axes = panels(len(shown), 4 if few else 6, 1.75)
    for index, (axis, (name, probs)) in enumerate(zip(axes, shown, strict=True)):
        axis.bar(range(len(probs)), probs, color=BLUE if index >= len(fixed) else MUTED, width=0.9)
        title(axis, name, 26 if few else 19, 9.5)
        note = f"mean {sum(j * p for j, p in enumerate(probs)):.1f} of {len(probs) - 1}"
        axis.text(0.03, 0.97, note, transform=axis.transAxes, color=INK, fontsize=8, va="top", zorder=5)
        axis.set(xlim=(-0.7, len(probs) - 0.3), ylim=(0, 1.22 * max(probs)))  # room for the note
        axis.locator_params(axis="y", nbins=3)
        axis.locator_params(axis="x", nbins=5, integer=True)
    figure.supxlabel("units kept", color=INK, fontsize=10)
    figure.supylabel("probability", color=INK, fontsize=10)
    return figure


@section("correlation", "page")
def correlation(block: Block, options: Options) -> list[Panel]:
    """Correlation of the uncertainties of two widths: Pearson's, of their entropies, mean over runs."""
    some = [own for own in block.main if own.first("correlation")]
    drawings = each(some, "correlation", lambda own: heat_maps(*mean_correlation(own), own.name), options.prefix)
    return [part("correlation", drawings, other=other_of(block), several=has_several(block))]


def mean_correlation(own: Series) -> tuple[list[str], dict[str, Any]]:
    """Labels and the mean matrices in and out of domain, of the runs that have the labels of the first."""
    found = [run.results["correlation"] for run in own.runs if run.results.get("correlation")]
    labels: list[str] = found[0]["labels"]
    return labels, correlation_maps([one for one in found if one["labels"] == labels])


def correlation_maps(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean matrices of correlations of the same labels, in and out of domain, as `heat_maps` takes them."""
    named = {"in domain": "inside", "out of domain": "outside"}
    tables = {name: [np.asarray(one[key], dtype=float) for one in found if one.get(key)] for name, key in named.items()}
    return {name: np.mean(some, axis=0) for name, some in tables.items() if some}


def heat_maps(labels: Sequence[str], maps: dict[str, Any], name: str) -> Figure:
    """Correlations of pairs as colored squares, a panel a map, whose heading begins with `name`.

    Each map is a square table of what its labels have in common, NaN where there is nothing.
    """
    lowest = min(float(np.nan_to_num(one).min()) for one in maps.values())
    low = lowest if lowest < -0.05 else 0.0
    figure, axes = panels(len(maps), 2, 4.3)
    figure.set_layout_engine("compressed")  # squares need not fill the page
    mesh = None
    for axis, (domain, table) in zip(axes, maps.items(), strict=True):
        mesh = axis.imshow(table, vmin=low, vmax=1, cmap="cividis")
        for (row, column), value in np.ndenumerate(table) if len(labels) <= MANY else ():
            dark = (value - low) / (1 - low) < 0.55
            words = NONE if np.isnan(value) else f"{value:.2f}"
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5 if len(labels) <= 8 else 7}
            axis.text(column, row, words, color="white" if dark else INK, **look)
        title(axis, f"{name}, {domain}", 44)
        names = [one_line(label, 10) for label in labels]
        axis.set_xticks(range(len(labels)), names, rotation=45 if len(labels) > 5 else 0)
        axis.set_yticks(range(len(labels)), names)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, shrink=0.85)  # type: ignore[arg-type]
    bar.set_label("correlation", color=INK, fontsize=10)
    bare(*axes, bar.ax)
    return figure


# What a network can be trusted with


@section("trust", "run", "page")
def trust(block: Block, options: Options) -> list[Panel]:
    """Answers withheld, and narrow networks first."""
    withholding = [own for own in block.main if answers(own)]
    growing = [own for own in block.main if own.runs[0].results.get("cascade")]
    alone, split = options.view == "run", block.runs[0].split
    shown: list[Table | Drawing | Items] = []
    shown += [options.drawing("selective", draw_selective, withholding)] if withholding else []
    shown += [] if alone else [withheld(block)]
    grown = [options.drawing("cascade", draw_cascade, growing)] if growing else []
    return [
        part("selective", shown, alone, split=split, several=has_several(block)),
        part("cascade", grown, alone, first=first_of(block)),
    ]


def answers(own: Series) -> list[dict[str, Any]]:
    """The sizes that have a curve of errors against answers."""
    return [row for row in own.parts("selective") if row.get("curve")]


def draw_selective(series: Sequence[Series]) -> Figure:
    """Errors among the answers given against the share of images answered, a panel a series."""
    figure, axes = _panels(series)
    for axis, own in zip(axes, series, strict=True):
        for row, (color, marker, line) in zip(spread_out(answers(own), CURVES), LOOKS_OF_SIZES, strict=False):
            share, risk = (np.asarray(row["curve"][key], dtype=float) for key in ("coverage", "risk"))
            kept = np.unique(np.linspace(0, len(share) - 1, DRAWN).round().astype(int))
            label = one_line(row["label"], 14)
            axis.plot(100 * share[kept], 100 * risk[kept], color=color, linestyle=line, label=label, linewidth=1.6)
            if row.get("risk") is not None:
                spot: dict[str, Any] = {"marker": marker, "markersize": 8, "markeredgecolor": INK, "linestyle": "none"}
                axis.plot(100 * row["coverage"], 100 * row["risk"], color=color, zorder=4, **spot)
        axis.axhline(100 * own.first("selective")["risk"], color=MUTED, linestyle=":", linewidth=1.2)
        axis.set(xlabel="images answered (%)", xlim=(0, 103))
        axis.legend(edgecolor="none", fontsize=8.5, labelcolor=INK)
    for axis in axes[::3]:
        axis.set_ylabel("wrong among these (%)")
    axes[0].set_ylim(bottom=0)  # of all, once all are drawn
    return figure


def draw_cascade(series: Sequence[Series]) -> Figure:
    """Accuracy against the mean cost of an answer, of narrow networks first, a panel a series; of its first run."""
    figure, axes = _panels(series)
    styles = looks(series) if len(series) > 1 else {series[0].name: (BLUE, "o", "-")}
    for axis, own in zip(axes, series, strict=True):
        found, (color, marker, _) = own.runs[0].results["cascade"], styles[own.name]
        curve, single = (sorted(found[key], key=lambda point: point["macs"]) for key in ("curve", "single"))
        costs, alone = [point["macs"] for point in curve], [point["macs"] for point in single]
        right = [100 * point["accuracy"] for point in curve]
        axis.plot(costs, right, color=color, linewidth=2, label="narrow first", zorder=3)
        look: dict[str, Any] = {"color": MUTED, "marker": marker, "markersize": 6, "markerfacecolor": "white"}
        values = [100 * point["accuracy"] for point in single]
        axis.plot(alone, values, linestyle="--", linewidth=1, label="one size alone", **look)
        size_axis(axis, [*costs, *alone], "multiply-adds an image (log scale)")
        axis.legend(edgecolor="none", fontsize=8.5, labelcolor=INK)
    for axis in axes[::3]:
        axis.set_ylabel("accuracy (% of images)")
    return figure


def _panels(series: Sequence[Series]) -> tuple[Figure, list[Axes]]:
    """A panel for each series with its name; one of its own is as large as half a page, and needs none."""
    if len(series) == 1:
        figure, axis = canvas()
        return figure, [axis]
    figure, axes = panels(len(series), 3, 3.5, share=True)
    for axis, own in zip(axes, series, strict=True):
        title(axis, own.name, 30)
    return figure, axes


def withheld(block: Block) -> Table:
    """Coverage and risk at the fitted thresholds, means over runs; how many runs have no threshold."""
    share, risk = Column("", "", "percent", 1), Column("", "", "percent", 2)
    lines: list[list[Cell | str]] = []
    for own in block.main:
        rows: dict[tuple[str, float], list[dict[str, Any]]] = {}
        for run in own.runs:
            said = run.results.get("selective") or {"rows": []}
            for row in said["rows"]:
                rows.setdefault((row["label"], said["risk"]), []).append(row)
        for (label, target), same in rows.items():
            cells = []
            for key, column in (("coverage", share), ("risk", share), ("aurc", risk)):
                values = [row[key] for row in same if row.get(key) is not None]
                cells.append(interval(confidence_interval(values) if values else None, column))
            never = sum(row.get("threshold") is None for row in same)
            none = f"(no threshold in {never} of {len(same)})" if never else ""
            cells[0] = Cell(cells[0].text, " ".join(filter(None, (cells[0].small, none))))
            lines.append([own.name, label, f"{100 * target:g} %", *cells])
    head = ["Method", "Size", "Risk aimed at", "Images answered", "Wrong among these", "AURC (mean risk)"]
    return Table(head, lines, fold="In numbers")


@section("reliability", "run", "page", "markdown")
def reliability(block: Block, options: Options) -> list[Panel]:
    """Confidence against accuracy, at a few sizes."""
    some = [own for own in block.main if own.parts("reliability")]
    if options.view == "page":
        drawings = each(some, "reliability", draw_reliability, options.prefix)
        return [part("reliability", drawings, has_counts=False, first=first_of(block), name="")]
    own = headline(block)
    drawing = [options.drawing("reliability", draw_reliability, own)] if own in some else []
    name = own.name if options.view == "markdown" else ""
    return [part("reliability", drawing, has_counts=not name, first="", name=name)]


def draw_reliability(own: Series) -> Figure:
    """Accuracy in each bin of confidence, and how many predictions it holds, at a few sizes."""
    widths = spread_out(own.parts("reliability"), DIAGRAMS)
    figure, axes = canvas(WIDE, 4.8, columns=len(widths), ratios=(3, 1))
    for diagram, counts, width in zip(*axes, widths, strict=True):
        count = np.asarray(width["count"], dtype=float)
        sure, right = (np.nan_to_num(np.asarray(width[key], dtype=float)) for key in ("confidence", "accuracy"))
        bins, some = len(count), count > 0
        left = np.arange(bins) / bins * 100
        gap = float((count * abs(sure - right)).sum() / max(count.sum(), 1))
        style: dict[str, Any] = {"width": 94 / bins, "align": "edge"}
        few = f"the same, of fewer than {FEW} images"
        for shown, strength, label in ((count >= FEW, 1.0, "images right"), (some & (count < FEW), 0.35, few)):
            if shown.any():  # or the legend has a wrong color for nothing
                diagram.bar(left[shown], 100 * right[shown], color=BLUE, alpha=strength, label=label, **style)
        dashes = diagram.hlines(100 * sure[some], left[some], left[some] + style["width"], color=ORANGE, linewidth=2.2)
        dashes.set_label("mean confidence")
        diagram.plot((0, 100), (0, 100), color=MUTED, linestyle=":", linewidth=1.2, label="perfectly calibrated")
        diagram.set(xlim=(0, 100), ylim=(0, 102))
        heading = f"{one_line(width['label'], 24)}: ECE {100 * gap:.1f} %"
        diagram.set_title(heading, color=INK, fontsize=11, loc="left")
        diagram.tick_params(labelbottom=False)
        counts.bar(left, count, color=MUTED, **style)
        counts.set(xlim=(0, 100), xlabel="confidence (%)")
        for axis in (diagram, counts):
            axis.set_xticks((0, 20, 40, 60, 80, 100))
    for row, name in zip(axes, ("images right (%)", "images"), strict=True):
        row[0].set_ylabel(name)
    return legend(figure, *axes[0])


def spread_out(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many of some rows, from the first to the last.

    >>> spread_out([{"label": size} for size in "abcdefg"], 3)
    [{'label': 'a'}, {'label': 'd'}, {'label': 'g'}]
    """
    kept = dict.fromkeys(round(index * (len(rows) - 1) / (most - 1)) for index in range(most))
    return [rows[index] for index in kept] if rows else []


@section("theory", "bottom")
def laws(block: Block, options: Options) -> list[Panel]:
    """The figures that are the same whatever was run."""
    return [
        part("downhill", [options.drawing("downhill", theory.downhill)]),
        part("kl", [options.drawing("kl", theory.noise_costs)]),
    ]


# Of one run


@section("examples", "run")
def examples(block: Block, options: Options) -> list[Panel]:
    """The images a network is most and least sure of."""
    groups = {key: (block.first("examples") or {}).get(key) for key in EXAMPLES}
    shown = {EXAMPLES[key]: (some, key == "ood") for key, some in groups.items() if some}
    drawing = [options.drawing("examples", draw_examples, shown)] if shown else []
    return [part("examples", drawing, other=other_of(block))]


def draw_examples(shown: dict[str, tuple[list[dict[str, Any]], bool]]) -> Figure:
    """Images with prediction and confidence, a row a group; those of foreign groups have no right answer."""
    columns = min(ACROSS, max(len(group) for group, _ in shown.values()))
    figure, axes = canvas(1.35 * max(columns, 4), 2.15 * len(shown), columns=columns, ratios=(1,) * len(shown))
    for row, (name, (group, foreign)) in zip(axes, shown.items(), strict=True):
        for axis in row:
            axis.set_axis_off()
        for axis, example in zip(row, group, strict=False):
            image = np.asarray(example["image"], dtype=np.uint8)
            thin = -(-max(image.shape[:2]) // PIXELS)
            axis.imshow(image[::thin, ::thin], cmap="gray", vmin=0, vmax=255, interpolation="none")
            prediction, label = str(example["prediction"]), str(example.get("label") or "")
            right = prediction == label
            mark = "?" if foreign else "✓" if right else "✗"
            lines = [f"{mark} {one_line(prediction, 13)}", f"{100 * example['confidence']:.1f} % sure"]
            lines += [f"is {one_line(label, 14)}"] if label and not right else []
            color = PURPLE if foreign else INK if right else ORANGE
            for index, line in enumerate(lines):  # one by one, or the baselines differ from image to image
                place: dict[str, Any] = {"xytext": (0, -11 - 11 * index), "textcoords": "offset points"}
                axis.annotate(line, (0, 0), xycoords="axes fraction", color=color, fontsize=8.5, **place)
        row[0].text(0, 1.1, name, transform=row[0].transAxes, color=INK, fontsize=11, weight="bold")
    return figure


@section("training", "run")
def training(block: Block, options: Options) -> list[Panel]:
    """Loss over the steps of training, and the price in a panel of its own, since it has another scale."""
    curves = block.first("curves") or []
    known = [key for key in LINES_OF_TRAINING if any(point.get(key) is not None for point in curves)][:1]
    drawn = [options.drawing("training", draw_training, curves, *known)] if known else []
    return [part("training", drawn, is_half=True)]


def draw_training(curves: list[dict[str, Any]], key: str) -> Figure:
    """Curves over the steps of training."""
    lines = LINES_OF_TRAINING[key]
    has_below = any(point.get(lines[-1][0]) is not None for point in curves)
    figure, axes = canvas(ratios=(2, 1) if has_below else (1,))
    for name, label, color, line in lines[:-1]:
        draw_curve(axes[0][0], curves, name, label, color, line)
    axes[0][0].set_ylabel("error of a pixel" if key == "mse" else "nats per image")
    if has_below:
        draw_curve(axes[1][0], curves, *lines[-1])
        axes[1][0].set_ylabel("rate (nats)" if key == "mse" else "KL (nats)")
        axes[0][0].tick_params(labelbottom=False)
    axes[-1][0].set_xlabel("step")
    return legend(figure, *axes[:, 0])


def draw_curve(axis: Axes, curves: list[dict[str, Any]], key: str, label: str, color: str, line: str) -> None:
    """A running mean over the points themselves, pale; a few points are drawn as they are."""
    points = [(point["step"], point[key]) for point in curves if point.get(key) is not None]
    if not points:
        return
    steps, values = np.asarray(points, dtype=float).T
    window = max(1, len(values) // 40)
    if window > 1:
        axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        values = np.convolve(values, np.ones(window) / window, "valid")
        steps = steps[window // 2 :][: len(values)]
    marker = "o" if len(values) <= FEW else ""  # a line of one point cannot be seen
    axis.plot(steps, values, color=color, linestyle=line, marker=marker, markersize=3, label=label)
