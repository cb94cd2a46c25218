"""Sections on masks against those of all graders: energy distances, overlap, diversity, calibration of pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vnd._text import short
from vnd.metrics import Interval, bootstrap_interval
from vnd.report.html import (
    NONE,
    NOT_TEST,
    ROWS_OF,
    Cell,
    Options,
    Panel,
    Table,
    caption,
    images_of,
    listed,
    of_split,
    paragraphs,
    part,
    section,
    spread,
)
from vnd.report.results import Column
from vnd.report.series import Block, Point, Series
from vnd.report.style import (
    HEIGHT,
    INK,
    LOOKS_OF_SIZES,
    MUTED,
    WIDE,
    Look,
    canvas,
    legend,
    looks,
    one_line,
    panels,
    plot,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRUTH, GRADERS, IDEAL = "Samples of the truth, expected", "Graders among themselves", "samples of the truth, expected"
ENDS = (5, 25, 50, 75, 95)  # percentiles of a box: whisker, box, median, box, whisker
PANEL = 3.1  # inches
SPAN = Column("span", "95 % interval")
BESIDE = 1.012  # by which the bars of two methods are apart, so that both are seen
LEAST = 0.1  # what an axis of IoU spans at least
APART, FEWEST = 0.7, 4.0  # between the boxes of two methods, and what a panel is wide at least, in boxes


# What was measured


def counts(block: Block) -> list[int]:
    """The numbers of samples that were drawn, from the smallest."""
    return sorted({count for run in block.runs for count in run.results["samples"]})


def ged(point: Point, count: int) -> Interval | None:
    """The mean energy distance with so many samples, where it was measured."""
    return point.measures.get(f"ged_{count}")


def images(point: Point, count: int) -> list[float]:
    """The energy distance of every image, those of all runs one after another."""
    return [x for rows in point.rows for x in rows[0]["per_image"].get(str(count), ())]


def each_image(point: Point, count: int) -> list[float]:
    """The energy distance of every image, on average over runs; nothing where runs were measured on other images."""
    runs = [rows[0]["per_image"].get(str(count), []) for rows in point.rows]
    return [sum(own) / len(own) for own in zip(*runs, strict=True)] if len(set(map(len, runs))) == 1 else []


def groups_of(own: Series) -> tuple[str | int, ...] | None:
    """Groups of the images, as all runs say, empty where there are none; None where runs do not agree."""
    said = {tuple(run.results.get("groups") or ()) for run in own.runs}
    return said.pop() if len(said) == 1 else None


@cache
def _bootstrap(values: tuple[tuple[float, ...], ...], groups: tuple[str | int, ...]) -> tuple[Interval, ...]:
    found = bootstrap_interval(torch.tensor(values, dtype=torch.float64).T, groups or None)
    return tuple(found)


def span(own: Series, point: Point, count: int) -> tuple[float, float] | None:
    """Interval of 95 % of the mean, by resampling groups, or images where there are none.

    As the file says; of several runs on the same images, of their mean.
    """
    said, groups = [rows[0].get("ged_interval") for rows in point.rows], groups_of(own)
    if not all(said):
        return None
    if len(said) == 1:
        low, high = (said[0] or {})[str(count)]
        return low, high
    values = each_image(point, count)
    if groups is None or not values:
        return None
    known = sorted(map(int, point.rows[0][0]["per_image"]))
    found = _bootstrap(tuple(tuple(each_image(point, n)) for n in known), groups)[known.index(count)]
    return found.low, found.high


def expected(block: Block) -> dict[int, float]:
    """Distances of samples of the true distribution, by number of samples; nothing where it is not known."""
    found = {n: [point.mean(f"expected_ged_{n}") for _, point in block.points] for n in counts(block)}
    known = {count: [value for value in some if value is not None] for count, some in found.items()}
    return {count: sum(some) / len(some) for count, some in known.items() if some}


def published(block: Block) -> tuple[str, dict[int, float]]:
    """Published results on the data set: a name, and energy distances by number of samples."""
    said = block.first("published") or {"name": "", "ged": {}}
    return said["name"], {int(count): value for count, value in said["ged"].items()}


def graders_own(block: Block, key: str) -> float | None:
    """Measures of the graders among themselves, of the first run that has them."""
    known = [(run.results.get("graders_own") or {}).get(key) for own in block.series for run in own.runs]
    return next((value for value in known if value is not None), None)


def bins_of(own: Series) -> dict[str, dict[str, list[Any]]]:
    """The bins of calibration of the first run, by size, from the smallest."""
    found: dict[str, Any] = own.runs[0].results.get("reliability") or {}
    return {point.label: found[point.label] for point in own.points if point.label in found}


def several(block: Block) -> list[Series]:
    """The series that have several sizes."""
    return [own for own in block.series if len(own.points) > 1]


def graders_in_words(results: Sequence[Mapping[str, Any]]) -> str:
    """Numbers of graders of an image.

    >>> graders_in_words([{"graders": 4}]), graders_in_words([{"graders": 4, "fewest_graders": 1}])
    ('4', '1 to 4')
    """
    ranges = sorted({(one.get("fewest_graders", one["graders"]), one["graders"]) for one in results})
    return " or ".join(f"{most}" if least == most else f"{least} to {most}" for least, most in ranges)


def group_noun(block: Block) -> str:
    """Noun for a group of images."""
    return str(block.first("group_noun") or "owner")


def label_of(own: Series, point: Point) -> list[Cell]:
    """The size of a line of a table; a dash where its series has no other."""
    return [Cell(point.label if len(own.points) > 1 else NONE)]


def named(own: Series, point: Point) -> str:
    """A series at a size, in words; the size is said where there are several."""
    return f"{own.name}, {point.label}" if len(own.points) > 1 else own.name


def reference(block: Block) -> Series | None:
    """Series that the others are held against: the first reference, or else the first; nothing where one is alone."""
    if len(block.series) < 2:
        return None
    return next((own for own in block.series if own.method.get("reference")), block.series[0])


def differences(block: Block) -> list[tuple[Series, Point, Interval | None]]:
    """Every size against the largest of the reference, with the largest number of samples; None on other images."""
    most, base = counts(block)[-1], reference(block)
    if base is None:
        return []
    theirs, groups = each_image(base.full, most), groups_of(base)

    def apart(own: Series, point: Point) -> Interval | None:
        values = each_image(point, most)
        if not values or len(values) != len(theirs) or groups is None or groups_of(own) != groups:
            return None
        return _bootstrap((tuple(np.subtract(values, theirs).tolist()),), groups)[0]

    return [(own, point, apart(own, point)) for own, point in block.points if point is not base.full]


# Tables


@section("mask_tables", "run")
def overview(block: Block, options: Options) -> list[Panel]:
    """Summary of what was trained, at how many sizes it is measured, and what came of it."""
    results, own = block.runs[0].results, block.series[0]
    sized, most = sum(not point.is_drawn for point in own.points), counts(block)[-1]
    said = []
    for point in own.points:
        place = " with lengths that are drawn" if point.is_drawn else f" at {point.label}"
        said.append(f"{point.measures[f'ged_{most}'].mean:.3f}{place * (len(own.points) > 1)}")
    truth, apart, between = expected(block).get(most), own.full.mean("diversity"), graders_own(block, "diversity")
    given: dict[str, Any] = {"images": images_of(results)}
    given |= {"measured": of_split(results, f" at {sized} sizes" if sized > 1 else "")}
    given |= {"graders": graders_in_words([results]), "most": most, "distances": listed(said)}
    given["classes"] = listed(results.get("mask_classes") or [])
    text = caption("trained_masks", truth=truth, apart=apart, between=between, **given)
    return [Panel("summary", "", "", [paragraphs(text, *(results.get("notes") or []))]), *tables(block, options)]


@section("mask_tables", "page", "markdown")
def tables(block: Block, options: Options) -> list[Panel]:
    """Energy distances, their differences from the reference's, and what else was measured."""
    first, second = _columns(block)
    most, between = counts(block)[-1], graders_own(block, "diversity")
    spoken: dict[str, Any] = {"most": most, "between": "" if between is None else f"{between:.3f}"}
    found = [
        part("distances", [_table(block, first)], **_spoken_of(block, first)),
        *_against(block),
        part("others", [_table(block, second)], **spoken, classes=bool(block.first("mask_classes"))),
    ]
    if options.view != "markdown":
        return found
    notes = [f"{one.heading}. {one.note}" if one.key == "differences" else one.note for one in found]
    split = Panel("split", "", "", [paragraphs(NOT_TEST)] if block.runs[0].split != "test" else [])
    return [split, *(replace(one, heading="", note=note) for one, note in zip(found, notes, strict=True))]


def _columns(block: Block) -> tuple[list[Column], list[Column]]:
    """The columns of the two tables that there are numbers for."""
    most, some = counts(block)[-1], block.columns
    known = {key for _, point in block.points for key in point.measures}
    known |= {SPAN.key for own, point in block.points if span(own, point, most)}
    first = [
        *(column for key, column in some.items() if key == "parameters"),
        *(Column(f"ged_{n}", f"GED {n}", digits=some["ged"].digits, better="less") for n in counts(block)),
        SPAN,
        Column(f"ged_by_group_{most}", f"By {group_noun(block)}", better="less"),
        Column(f"ged_unbiased_{most}", f"GED* {most}", better="less"),
    ]
    second = [column for key, column in some.items() if key not in ("ged", *(one.key for one in first))]
    return [c for c in first if c.key in known], [c for c in second if c.key in known]


def _table(block: Block, columns: Sequence[Column]) -> Table:
    """One line a series and size, the best of a column bold, and lines to compare with."""
    best: dict[str, float] = {}
    for column in columns if len(block.series) > 1 else ():
        values = [point.measures[column.key].mean for _, point in block.points if column.key in point.measures]
        if column.better:
            best[column.key] = max(values) if column.better == "more" else min(values)
    has_size, most = bool(several(block)), counts(block)[-1]

    def cell(own: Series, point: Point, column: Column) -> Cell:
        ends, value = span(own, point, most) if column is SPAN else None, point.measures.get(column.key)
        shape = f"{{:.{column.digits}f}}"
        if value is None:
            return Cell(NONE if ends is None else " … ".join(map(shape.format, ends)))
        if column.key == "parameters":
            return Cell(short(value.mean))
        return Cell(spread(value, shape), bold=best.get(column.key) == value.mean)

    lines = [
        [Cell(own.name), *label_of(own, point) * has_size, *(cell(own, point, column) for column in columns)]
        for own, point in (block.points if columns else ())
    ]
    name, others = published(block)
    own_of = {key: graders_own(block, key) for key in ("diversity", "dice")}
    beside = {
        TRUTH: {f"ged_{count}": f"{value:.3f}" for count, value in expected(block).items()},
        GRADERS: {key: f"{value:.3f}" for key, value in own_of.items() if value is not None},
        name: {f"ged_{count}": f"≈ {value:.2f}" for count, value in others.items()},
    }
    keys = [column.key for column in columns]
    for name, said in beside.items():
        if said.keys() & set(keys):
            lines.append([Cell(name), *[Cell(NONE)] * has_size, *(Cell(said.get(key, NONE)) for key in keys)])
    return Table(["Method", *["Size"] * has_size, *(column.heading for column in columns)], lines)


def _spoken_of(block: Block, columns: Sequence[Column]) -> dict[str, Any]:
    """Names that the note of the first table needs."""
    keys, points = {column.key for column in columns}, [point for _, point in block.points]
    most, noun = counts(block)[-1], group_noun(block)
    classes = block.first("mask_classes") or []
    unbiased, groups = f"ged_unbiased_{most}", Counter(next(filter(None, map(groups_of, block.series)), ()))
    whose = f"{len(groups)} {noun}s, each with all of their images" if groups else "images"
    share = 100 * sum(count for _, count in groups.most_common(2)) / max(1, groups.total())
    sizes = sorted({len(images(p, n)) // p.seeds for p in points for n in map(int, p.rows[0][0]["per_image"])})
    return {
        "graders": graders_in_words([run.results for run in block.runs]),
        "classes": bool(classes),
        "background": classes[0] if classes else "",
        "most": most,
        "unbiased": unbiased in keys,
        "is_partial": unbiased in keys and any(unbiased not in p.measures for p in points if ged(p, most)),
        "those": whose if SPAN in columns else "",
        "noun": noun if f"ged_by_group_{most}" in keys else "",
        "share": f"{share:.0f}" if len(groups) > 2 else "",
        "drawn": any(point.is_drawn for point in points),
        "seeds": any(point.seeds > 1 for point in points),
        "sizes": listed([f"{size:,}" for size in sizes]) if len(sizes) > 1 else "",
    }


def _against(block: Block) -> list[Panel]:
    """The table of differences, where there is something to compare."""
    base, most, found = reference(block), counts(block)[-1], differences(block)
    if base is None or not any(one for _, _, one in found):
        return []
    has_size = bool(several(block))
    lines = []
    for own, point, one in found:
        mean, ends = Cell(NONE), NONE
        if one is not None:
            mean = Cell(signed(one.mean), bold=one.count > 1 and one.high < 0)
            ends = f"{signed(one.low)} … {signed(one.high)}" if one.count > 1 else NONE
        lines.append([Cell(own.name), *label_of(own, point) * has_size, mean, Cell(ends)])
    table = Table(["Method", *["Size"] * has_size, "Difference", "95 % interval"], lines)
    name, groups = named(base, base.full), f"{group_noun(block)}s" if groups_of(base) else "images"
    seeds = any(point.seeds > 1 for _, point in block.points)
    return [part("differences", [table], most=most, name=name, groups=groups, seeds=seeds)]


def signed(value: float) -> str:
    """A difference, with its sign.

    >>> signed(-0.0213), signed(0.1)
    ('−0.021', '+0.100')
    """
    return f"{value:+.3f}".replace("-", "−")


def more_rows(block: Block) -> dict[tuple[str, str], dict[str, Any]]:
    """Add to the flat rows the ends of intervals over groups, or else images, and differences."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    base, key = reference(block), f"ged_{counts(block)[-1]} difference"
    for own, point in block.points:
        line = found.setdefault((own.name, point.label), {})
        for count in counts(block):
            if ends := span(own, point, count) if ged(point, count) else None:
                line |= {f"ged_{count} groups low": ends[0], f"ged_{count} groups high": ends[1]}
    for own, point, one in differences(block):
        if one is not None and base is not None:
            line = {f"{key} from": base.name, key: one.mean}
            found[own.name, point.label] |= line | {f"{key} groups low": one.low, f"{key} groups high": one.high}
    return found


ROWS_OF["mask_tables"] = more_rows


# Figures


@section("energy_distance", "run", "page", "markdown")
def figures(block: Block, options: Options) -> list[Panel]:
    """The figures that there are numbers for."""
    some, lone = several(block), not several(block) and len(block.series) == 1
    drawn, repeated = any(p.is_drawn for own in some for p in own.points), any(len(s.runs) > 1 for s in block.series)
    (name, others), found = published(block), list[Panel]()

    def add(key: str, draw: Any, is_half: bool, **given: Any) -> None:
        found.append(part(key, [options.drawing(key, draw, block)], is_half, **given))

    values = listed([f"{value:.2f} at {count} samples" for count, value in others.items()])
    lines, truth = 0 < len(some) < len(block.series), bool(expected(block))
    add("boxes", draw_boxes, lone, drawn=drawn, lines=lines, truth=truth, name=name, values=values)
    if len(counts(block)) > 1 and not lone:
        smallest = listed([f"{own.name}, {own.points[0].label}" for own in some if own.points[0] is not own.full])
        add("samples", over_samples, True, bars=repeated, hollow=smallest)
    if sum({"diversity", "matched_iou"} <= set(point.measures) for _, point in block.points) > 1:
        sizes = listed([f"{own.name} at other sizes" for own in some]) + ", unjoined where drawn" * drawn
        add("diversity", draw_diversity, True, hollow=sizes if some else "")
    if any(bins_of(own) for own in block.series):
        where = "Below" if lone else "Right"
        add("calibration", partial(draw_calibration, lone), lone, where=where, repeated=repeated)
    return found


def draw_boxes(block: Block) -> Figure:
    """Energy distances of all images, a panel for each number of samples and a box for each size.

    Paper: the figure of semantic segmentation. Methods of one size are lines at their mean, unless there are no others.
    A lone size has one panel, and a box for each number of samples.
    """
    some, styles, known = several(block) or list(block.series), looks(block.series), counts(block)
    if sum(len(own.points) for own in some) == 1:
        return _lone(block, some[0], styles[some[0].name][0], known)
    figure, axes = panels(len(known), 2, PANEL, share=True)
    for index, (axis, count) in enumerate(zip(axes, known, strict=True)):
        ticks = _boxes(axis, some, styles, count)
        for own in block.series:
            found = ged(own.full, count) if own not in some else None
            if found is not None:
                color, _, line = styles[own.name]
                label = one_line(own.name, 60)
                axis.axhline(found.mean, color=color, linestyle=line, linewidth=2, label=label, zorder=2)
        _marks(axis, block, count)
        small = 8 if len(ticks) <= 10 else 7
        axis.set_xticks(list(ticks), list(ticks.values()), fontsize=small, rotation=45 if len(ticks) > 10 else 0)
        room = max(0.0, FEWEST - (max(ticks) - min(ticks))) / 2
        axis.set_xlim(min(ticks) - 0.6 - room, max(ticks) + 0.6 + room)
        title(axis, f"{count} sample{'s' * (count > 1)}")
        if index % 2 == 0:
            axis.set_ylabel("energy distance (GED)")
        else:
            axis.tick_params(labelleft=False)
        axis.tick_params(axis="x", labelsize=small)
    axes[0].set_ylim(bottom=0)
    return legend(figure, *axes)


def over_samples(block: Block) -> Figure:
    """The mean energy distance against the number of samples, of the largest size and, hollow, of the smallest."""
    figure, axis = canvas()
    styles, known, bars = looks(block.series), counts(block), list[tuple[float, Interval, str]]()
    for index, own in enumerate(block.series):
        beside = BESIDE ** (index - (len(block.series) - 1) / 2)
        for one in {point.label: point for point in (own.full, own.points[0])}.values():
            found = {count: x for count in known if (x := ged(one, count)) is not None}
            means = [x.mean for x in found.values()]
            plot(axis, list(found), means, styles[own.name], named(own, one), hollow=one is not own.full)
            bars += [(count * beside, x, styles[own.name][0]) for count, x in found.items() if x.count > 1]
    truth, (name, others) = expected(block), published(block)
    if truth:
        axis.plot(list(truth), list(truth.values()), color=INK, linestyle=":", marker="_", label=IDEAL, zorder=2)
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
    return legend(figure, axis)


def draw_diversity(block: Block) -> Figure:
    """Draw how well samples match the graders against how far they are apart; those of a method are joined."""
    figure, axis = canvas()
    styles = looks(block.series)
    for own in block.series:
        known = [p for p in own.points if {"diversity", "matched_iou"} <= set(p.measures)]
        color, marker, _ = styles[own.name]
        sized = [p for p in known if not p.is_drawn]
        places, values = ([p.measures[key].mean for p in sized] for key in ("diversity", "matched_iou"))
        axis.plot(places, values, color=color, linewidth=1, zorder=2)
        for p in known:
            spot: dict[str, Any] = {"color": color, "markersize": 8, "label": one_line(own.name, 60), "zorder": 4}
            if p is not own.full:
                spot = {"color": color, "markerfacecolor": "white", "markersize": 6, "zorder": 3}
            axis.plot(p.measures["diversity"].mean, p.measures["matched_iou"].mean, marker, **spot)
    between = graders_own(block, "diversity")
    if between is not None:
        axis.axvline(between, color=MUTED, linestyle=":", linewidth=1.2, label="two different graders", zorder=1)
    axis.set(xlabel="diversity: mean distance of two samples", ylabel="matched IoU")
    axis.margins(0.12)
    for limits, limit in ((axis.get_xlim(), axis.set_xlim), (axis.get_ylim(), axis.set_ylim)):
        room = max(0.0, LEAST - (limits[1] - limits[0])) / 2  # or what is next to nothing would look like much
        limit(limits[0] - room, limits[1] + room)
    return legend(figure, axis)


def draw_calibration(lone: bool, block: Block) -> Figure:
    """Share of graders who marked a pixel against its probability, and how many pixels there are of each.

    Of several series the largest size of each, of one all its sizes; of several runs the first.
    """
    figure, axes = canvas(height=HEIGHT + 0.5, ratios=(2, 1)) if lone else canvas(WIDE, columns=2, wspace=0.06)
    left, right = axes.flat
    left.plot([0, 1], [0, 1], color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
    styles, alone = looks(block.series), len(block.series) == 1
    for own in block.series:
        known = {label: found for label, found in bins_of(own).items() if alone or label == own.full.label}
        for index, (label, found) in enumerate(known.items()):
            name, look = own.name, styles[own.name]
            if alone and len(known) > 1:
                name, look = label, (*LOOKS_OF_SIZES[index % len(LOOKS_OF_SIZES)][:2], look[2])
            some = [at for at, count in enumerate(found["count"]) if count and found["frequency"][at] is not None]
            for axis, key, words in ((left, "frequency", name), (right, "count", "_")):
                places, values = ([found[part][at] for at in some] for part in ("confidence", key))
                plot(axis, places, values, look, words, markersize=5, linewidth=1.5, zorder=2)
    left.set(xlabel="probability that a pixel is marked", ylabel="share of graders who marked it")
    right.set(xlabel="probability that a pixel is marked", ylabel="pixels (log scale)", yscale="log")
    right.minorticks_off()
    for axis in (left, right):
        axis.set_xlim(-0.02, 1.02)
    left.set_ylim(-0.02, 1.02)
    if lone:
        left.set_xlabel("")
        left.tick_params(labelbottom=False)
    return legend(figure, left)


def _boxes(axis: Axes, series: Sequence[Series], styles: dict[str, Look], count: int) -> dict[float, str]:
    """The boxes of each series beside each other; what stands below each."""
    ticks: dict[float, str] = {}
    place = 0.0
    for own in series:
        stats = {}
        for point in own.points:
            place += 1
            ticks[place] = point.label if len(own.points) > 1 else own.name.replace(" ", "\n")
            if images(point, count):
                stats[place] = _spread(point, count)
        place += APART
        if stats:
            _draw(axis, stats, styles[own.name][0], one_line(own.name, 60))
    return {at: one_line(text, 24) if "\n" not in text else text.replace("$", r"\$") for at, text in ticks.items()}


def _lone(block: Block, own: Series, color: str, known: list[int]) -> Figure:
    """The boxes of one size, by number of samples."""
    figure, axis = canvas()
    places = dict(enumerate(known, 1))
    _draw(axis, {at: _spread(own.full, count) for at, count in places.items()}, color, "this network")
    for at, count in places.items():
        _marks(axis, block, count, (at - 0.4, at + 0.4))
    axis.set_xticks([*places], [str(count) for count in known])
    axis.set(xlabel="samples of each image", ylabel="energy distance (GED)")
    axis.set_ylim(bottom=0)
    return legend(figure, axis)


def _draw(axis: Axes, stats: Mapping[float, dict[str, Any]], color: str, label: str) -> None:
    """Boxes with a black line at the mean and a thin one at the median."""
    line = {"color": color, "linewidth": 1.2}
    drawn = axis.bxp(
        [*stats.values()], positions=[*stats], widths=0.62, manage_ticks=False, patch_artist=True, zorder=3,
        showfliers=False, showmeans=True, meanline=True, whiskerprops=line, capprops=line,
        boxprops={"facecolor": f"{color}40", "edgecolor": color, "linewidth": 1.2}, medianprops=line | {"linewidth": 1},
        meanprops={"color": "black", "linewidth": 2, "linestyle": "-"},
    )  # fmt: skip
    drawn["boxes"][0].set_label(label)


def _spread(point: Point, count: int) -> dict[str, Any]:
    low, first, middle, third, high = np.percentile(images(point, count), ENDS)
    mean = point.measures[f"ged_{count}"].mean
    return {"whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high, "mean": mean, "fliers": []}


def _marks(axis: Axes, block: Block, count: int, ends: tuple[float, float] | None = None) -> None:
    """Lines at what the truth would reach, and at what others published: across, or between two ends."""
    name, others = published(block)
    for text, values, color, line, wide in ((IDEAL, expected(block), INK, ":", 1.6), (name, others, MUTED, "-.", 1.2)):
        if count in values and ends is None:
            axis.axhline(values[count], zorder=2, color=color, linestyle=line, label=text, linewidth=wide)
        elif count in values and ends is not None:
            axis.plot(ends, [values[count]] * 2, color=color, linestyle=line, label=text, linewidth=1.6)
