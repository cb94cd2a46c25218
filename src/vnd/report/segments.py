"""Figures of segmenters: energy distances of all images, over samples, diversity, calibration of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vnd.metrics import Interval
from vnd.report.canvas import HALF, INK, MUTED, WIDE, canvas, legend, panels, plain, tidy, title
from vnd.report.compare import COUNTS, Look, styles
from vnd.report.entries import Entry, Point, bins, counts, expected, graders, named, published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, Look] = {
    "VND-PUNet": ("#0072b2", "o", "-"),
    "BN³-UNet": ("#009e73", "^", "-."),
    "P-UNet": ("#d55e00", "s", (0, (5, 1.5))),
    "UNet ensemble": ("#8a6d00", "v", (0, (3, 1, 1, 1))),
    "dropout UNet": ("#cc79a7", "X", (0, (1, 1))),
}
TRUTH = "samples of the truth, expected"
ENDS = (5, 25, 50, 75, 95)  # percentiles of a box: whisker, box, median, box, whisker
HEIGHT, PANEL = 4.2, 3.1  # inches
BESIDE = 1.012  # by which the bars of two methods are apart, so that both are seen
LEAST = 0.1  # what an axis of IoU spans at least
APART, FEWEST = 0.7, 4.0  # between the boxes of two methods, and what a panel is wide at least, in boxes


def boxes(entries: Sequence[Entry]) -> Figure:
    """Energy distances of all images, a panel for each number of samples and a box for each size.

    Paper: the figure of semantic segmentation. Methods of one size are lines at their mean, unless there are no others.
    A lone size has one panel, and a box for each number of samples.
    """
    several = [own for own in entries if len(own.points) > 1] or list(entries)
    looks, known = styles(entries, STYLES), counts(entries)
    if sum(len(own.points) for own in several) == 1:
        return _lone(several[0], looks[several[0].name], known)
    figure, axes = panels(len(known), 2, PANEL, share=True)
    for index, (axis, count) in enumerate(zip(axes, known, strict=True)):
        ticks = _boxes(axis, several, looks, count)
        for own in entries:
            found = own.full.measures.get(f"ged_{count}") if own not in several else None
            if found is not None:
                color, _, line = looks[own.name]
                axis.axhline(found.mean, color=color, linestyle=line, linewidth=2, label=plain(own.name, 60), zorder=2)
        _marks(axis, entries, count)
        small = 8 if len(ticks) <= 10 else 7
        axis.set_xticks(list(ticks), list(ticks.values()), fontsize=small, rotation=45 if len(ticks) > 10 else 0)
        room = max(0.0, FEWEST - (max(ticks) - min(ticks))) / 2
        axis.set_xlim(min(ticks) - 0.6 - room, max(ticks) + 0.6 + room)
        title(axis, f"{count} sample{'s' * (count > 1)}")
        if index % 2 == 0:
            axis.set_ylabel("energy distance (GED)")
        else:
            axis.tick_params(labelleft=False)
        tidy(axis)
        axis.tick_params(axis="x", labelsize=small)
    axes[0].set_ylim(bottom=0)
    legend(figure, *axes)
    return figure


def over_samples(entries: Sequence[Entry]) -> Figure:
    """The mean energy distance against the number of samples, of the largest size and, hollow, of the smallest."""
    figure, axis = canvas(HALF, HEIGHT)
    looks, known, bars = styles(entries, STYLES), counts(entries), list[tuple[float, Interval, str]]()
    for index, own in enumerate(entries):
        color, marker, line = looks[own.name]
        beside = BESIDE ** (index - (len(entries) - 1) / 2)
        for point in dict.fromkeys((own.full.label, own.points[0].label)):
            one = next(p for p in own.points if p.label == point)
            places = [count for count in known if f"ged_{count}" in one.measures]
            found = [one.measures[f"ged_{count}"] for count in places]
            look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5.5, "zorder": 3}
            if one is own.full:
                look |= {"linestyle": line, "linewidth": 1.7}
            else:
                look |= {"linestyle": (0, (2, 1.5)), "linewidth": 1.2, "markerfacecolor": "white"}
            axis.plot(places, [x.mean for x in found], label=plain(named(own, one), 60), **look)
            bars += [(place * beside, x, color) for place, x in zip(places, found, strict=True) if x.count > 1]
    truth, (name, others) = expected(entries), published(entries)
    if truth:
        axis.plot(list(truth), list(truth.values()), color=INK, linestyle=":", marker="_", label=TRUTH, zorder=2)
    if others:
        axis.plot(list(others), list(others.values()), "D", color=MUTED, markerfacecolor="none", label=name, zorder=4)
    axis.set_xscale("log")
    axis.set_xticks(known, [str(count) for count in known])
    axis.minorticks_off()
    axis.set(xlabel="samples of each image (log scale)", ylabel="energy distance (GED)")
    top = axis.get_ylim()[1]  # of the means: an interval over two trainings may be wider than all there is to see
    for place, x, color in bars:
        axis.vlines(place, x.low, x.high, color=color, linewidth=1.2)
    axis.set_ylim(0, top)
    tidy(axis)
    legend(figure, axis)
    return figure


def diversity(entries: Sequence[Entry]) -> Figure:
    """How well samples match the graders against how far they are apart; those of a method are joined."""
    figure, axis = canvas(HALF, HEIGHT)
    looks = styles(entries, STYLES)
    for own in entries:
        known = [p for p in own.points if {"diversity", "matched_iou"} <= set(p.measures)]
        color, marker, _ = looks[own.name]
        sized = [p for p in known if not p.drawn]
        places, values = ([p.measures[key].mean for p in sized] for key in ("diversity", "matched_iou"))
        axis.plot(places, values, color=color, linewidth=1, zorder=2)
        hollow, spot = [p for p in known if p is not own.full], dict[str, Any]()
        for p in hollow:
            spot = {"color": color, "markerfacecolor": "white", "markersize": 6, "zorder": 3}
            axis.plot(p.measures["diversity"].mean, p.measures["matched_iou"].mean, marker, **spot)
        if own.full in known:
            label = plain(own.name, 60)
            full = own.full.measures
            spot = {"color": color, "markersize": 8, "label": label, "zorder": 4}
            axis.plot(full["diversity"].mean, full["matched_iou"].mean, marker, **spot)
    own_diversity = graders(entries, "diversity")
    if own_diversity is not None:
        axis.axvline(own_diversity, color=MUTED, linestyle=":", linewidth=1.2, label="two different graders", zorder=1)
    axis.set(xlabel="diversity: mean distance of two samples", ylabel="matched IoU")
    axis.margins(0.12)
    for limits, limit in ((axis.get_xlim(), axis.set_xlim), (axis.get_ylim(), axis.set_ylim)):
        room = max(0.0, LEAST - (limits[1] - limits[0])) / 2  # or what is next to nothing would look like much
        limit(limits[0] - room, limits[1] + room)
    tidy(axis)
    legend(figure, axis)
    return figure


def calibration(entries: Sequence[Entry], half: bool = False) -> Figure:
    """Share of graders who marked a pixel against its probability, and how many pixels there are of each.

    Of several entries the largest size of each, of one entry all its sizes; of several runs the first.
    """
    if half:
        figure, axes = canvas(HALF, HEIGHT + 0.5, ratios=(2, 1))
        left, right = axes[:, 0]
    else:
        figure, (left, right) = canvas(WIDE, HEIGHT, columns=2)
    left.plot([0, 1], [0, 1], color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
    looks = styles(entries, STYLES)
    for own in entries:
        known = bins(own)
        if len(entries) > 1:
            known = {label: found for label, found in known.items() if label == own.full.label}
        for index, (label, found) in enumerate(known.items()):
            color, marker, line = looks[own.name]
            if len(entries) == 1 and len(known) > 1:
                color, marker = COUNTS[index % len(COUNTS)]
            name = own.name if len(entries) > 1 or len(known) == 1 else label
            some = [at for at, count in enumerate(found["count"]) if count and found["frequency"][at] is not None]
            places = [found["confidence"][at] for at in some]
            look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": line, "linewidth": 1.5}
            left.plot(places, [found["frequency"][at] for at in some], label=plain(name, 60), markersize=5, **look)
            right.plot(places, [found["count"][at] for at in some], label="_", markersize=5, **look)
    left.set(xlabel="probability that a pixel is marked", ylabel="share of graders who marked it")
    right.set(xlabel="probability that a pixel is marked", ylabel="pixels (log scale)", yscale="log")
    right.minorticks_off()
    for axis in (left, right):
        axis.set_xlim(-0.02, 1.02)
        tidy(axis)
    left.set_ylim(-0.02, 1.02)
    if half:
        left.set_xlabel("")
        left.tick_params(labelbottom=False)
    else:
        figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    legend(figure, left)
    return figure


def _boxes(axis: Axes, entries: Sequence[Entry], looks: dict[str, Look], count: int) -> dict[float, str]:
    """The boxes of each entry beside each other; what stands below each."""
    ticks: dict[float, str] = {}
    place = 0.0
    for own in entries:
        stats = []
        places = []
        for point in own.points:
            place += 1
            ticks[place] = point.label if len(own.points) > 1 else own.name.replace(" ", "\n")
            if count in point.images:
                stats.append(_spread(point, count))
                places.append(place)
        place += APART
        if stats:
            _draw(axis, stats, places, looks[own.name][0], plain(own.name, 60))
    return {at: plain(words, 24) if "\n" not in words else words.replace("$", r"\$") for at, words in ticks.items()}


def _lone(own: Entry, look: Look, known: list[int]) -> Figure:
    """The boxes of one size, by number of samples."""
    figure, axis = canvas(HALF, HEIGHT)
    _draw(axis, [_spread(own.full, count) for count in known], list(range(1, len(known) + 1)), look[0], "this network")
    truth, (name, others) = expected([own]), published([own])
    for words, values, color, line in ((TRUTH, truth, INK, ":"), (name, others, MUTED, "-.")):
        for at, count in enumerate(known, 1):
            if count in values:
                axis.plot(
                    [at - 0.4, at + 0.4], [values[count]] * 2, color=color, linestyle=line, linewidth=1.6, label=words
                )
    axis.set_xticks(range(1, len(known) + 1), [str(count) for count in known])
    axis.set(xlabel="samples of each image", ylabel="energy distance (GED)")
    tidy(axis)
    axis.set_ylim(bottom=0)
    legend(figure, axis)
    return figure


def _draw(axis: Axes, stats: list[dict[str, Any]], places: Sequence[float], color: str, label: str) -> None:
    """Boxes with a black line at the mean and a thin one at the median."""
    drawn = axis.bxp(
        stats, positions=places, widths=0.62, patch_artist=True, showfliers=False, showmeans=True, meanline=True,
        manage_ticks=False, zorder=3, boxprops={"facecolor": f"{color}40", "edgecolor": color, "linewidth": 1.2},
        whiskerprops={"color": color, "linewidth": 1.2}, capprops={"color": color, "linewidth": 1.2},
        medianprops={"color": color, "linewidth": 1.0}, meanprops={"color": "black", "linewidth": 2, "linestyle": "-"},
    )  # fmt: skip
    drawn["boxes"][0].set_label(label)


def _spread(point: Point, count: int) -> dict[str, Any]:
    low, first, middle, third, high = np.percentile(point.images[count], ENDS)
    mean = point.measures[f"ged_{count}"].mean
    return {"whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high, "mean": mean, "fliers": []}


def _marks(axis: Axes, entries: Sequence[Entry], count: int) -> None:
    """Lines at what the truth would reach, and at what others published."""
    truth, (name, others) = expected(entries), published(entries)
    if count in truth:
        axis.axhline(truth[count], color=INK, linestyle=":", linewidth=1.6, label=TRUTH, zorder=2)
    if count in others:
        axis.axhline(others[count], color=MUTED, linestyle="-.", linewidth=1.2, label=name, zorder=2)
