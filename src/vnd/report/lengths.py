"""Sections on codes: errors, rates and generated images at every length, and how long the code of an image is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vnd.report.html import (
    NONE,
    NOT_TEST,
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
from vnd.report.results import Run, measure_names
from vnd.report.series import RULES, Block, Point, Series
from vnd.report.style import BLUE, ORANGE, WIDE, Look, canvas, legend, looks, one_line, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIXED = RULES[0]
WORDS = {"posterior": "by image", "target": "by target"}


@section("code_lengths", "run")
def overview(block: Block, options: Options) -> list[Panel]:
    """Summary of what was trained, at how many lengths it is measured, and what came of it."""
    results, own = block.runs[0].results, block.series[0]
    rows, code = sorted(results["rows"], key=lambda row: row["length"]), results["latent_dim"]
    errors = listed([f"{row['mse']:.5f} with {row['length']:g}" for row in rows])
    measured = of_split(results, f" at {len(rows)} lengths" if len(rows) > 1 else "")
    given = {"images": images_of(results), "measured": measured, "errors": errors, "ordered": not own.is_separate}
    text = paragraphs(caption("trained_codes", code=code, **given), *(results.get("notes") or []))
    return [Panel("summary", "", "", [text]), *numbers(block, options)]


@section("code_lengths", "page", "markdown")
def numbers(block: Block, options: Options) -> list[Panel]:
    """The table of lengths: one line a series and length, the best of each length bold."""
    extractors, named, columns = distances(block.series), _named(block.runs), block.columns
    wanted = [*(key for key in columns if key not in named), *extractors, *distances(block.series, "score_name")]
    known = {key for _, point in block.points for key in point.measures}
    keys = [key for key in dict.fromkeys([*wanted, *columns]) if key in known]

    def cell(point: Point, key: str) -> Cell:
        value, column = point.measures.get(key), columns[key]
        same = [p for _, p in block.points if (p.kind, p.length) == (point.kind, point.length) and key in p.measures]
        others = [p.measures[key].mean for p in same if column.better == "less" and point.kind == FIXED]
        shape = f"{{:.{column.digits}{'f' if column.form == 'number' else 'g'}}}"
        leads = value is not None and len(others) > 1 and value.mean == min(others)
        return Cell(NONE if value is None else spread(value, shape), bold=leads)

    lines = [
        [Cell(own.name), Cell(_length(own, point)), *(cell(point, key) for key in keys)] for own, point in block.points
    ]
    # one extractor: the note says whose they are
    heads = [key if key == "FID" or (len(extractors) > 1 and key in named) else columns[key].heading for key in keys]
    not_test = NOT_TEST * (options.view == "markdown" and block.runs[0].split != "test")
    return [part("numbers", [Table(["Method", "Length", *heads], lines)], not_test=not_test, **spoken_of(block.series))]


def spoken_of(series: Sequence[Series]) -> dict[str, Any]:
    """Names that the note of the table needs."""
    runs = [run for own in series for run in own.runs]
    targets = {f"{row['target']:.4g}" for run in runs for row in run.rows if row.get("target")}
    real = {f"{one['real_diversity']:.3g}" for run in runs if (one := run.results.get("features"))}
    return {
        "target": " or ".join(sorted(targets)),
        "retrained": any(len({p.rows[0][0]["latent_dim"] for p in own.points}) > 1 for own in series),
        "seeds": any(point.seeds > 1 for own in series for point in own.points),
        "distances": " and ".join(distances(series)),
        "scores": " and ".join(distances(series, "score_name")),
        "counts": _counts(series),
        "real": " or ".join(sorted(real)),
    }


def distances(series: Sequence[Series], key: str = "distance_name") -> list[str]:
    """Names of the Fréchet distances of some series, one an extractor; or of their scores."""
    features = [run.results.get("features") or {} for own in series for run in own.runs]
    return list(dict.fromkeys(one[key] for one in features if key in one))


@section("code_error", "run", "page", "markdown")
def error(block: Block, options: Options) -> list[Panel]:
    """The error at every length, and generated images against real ones."""
    found = []
    if _many(block.series, "mse"):
        words = "mean squared error of a pixel (0 … 1)"
        drawing = options.drawing("error", against_length, block.series, "mse", words)
        found.append(part("error", [drawing], is_half=True))
    for index, name in enumerate(one for one in distances(block.series) if _many(block.series, one)):
        key = f"distance-{index + 1}" if index else "distance"
        counts = _counts([own for own in block.series if own.of(having=name)])
        drawing = options.drawing(key, against_length, block.series, name, name)
        found.append(part(key, [drawing], True, "distance", distance=name, counts=counts))
    return found


@section("rate_distortion", "run", "page", "markdown")
def rate(block: Block, options: Options) -> list[Panel]:
    """Rate, distortion and their sum."""
    drawing = options.drawing("rate", rate_distortion, block.series)
    return [part("rate", [drawing] if _many(block.series, "negative_elbo") else [])]


@section("image_lengths", "run", "page", "markdown")
def image_lengths(block: Block, options: Options) -> list[Panel]:
    """Lengths of the codes of images, a part for each series that has a length for each image."""
    found = []
    for index, own in enumerate(own for own in block.series if own.runs[0].results.get("lengths")):
        results, name = own.runs[0].results, own.name if len(block.series) > 1 else ""
        target = next((f"{row['target']:.4g}" for row in own.runs[0].rows if row.get("target") is not None), "a target")
        key = f"lengths-{index + 1}" if index else "lengths"
        drawing = options.drawing(key, draw_lengths, results)
        found.append(part(key, [drawing], caption_of="lengths", target=target, name=name))
    return found


def against_length(series: Sequence[Series], key: str, name: str) -> Figure:
    """A measure against the length of the code; hollow markers have a length for each image."""
    figure, axis = canvas()
    _over_lengths(axis, series, key, name)
    return legend(figure, axis)


def rate_distortion(series: Sequence[Series]) -> Figure:
    """Distortion against rate, on the left, and the negative ELBO, which is their sum, against length."""
    figure, (left, right) = canvas(WIDE, columns=2, wspace=0.06)
    styles = looks(series)
    for own in series:
        known = [point for point in own.of(having="rate") if "distortion" in point.measures]
        _draw(left, [p.measures["rate"].mean for p in known], known, "distortion", own.name, styles[own.name])
    left.set(xlabel="rate (nats per image)", ylabel="distortion (nats per image)")
    _over_lengths(right, series, "negative_elbo", "negative ELBO (nats per image)")
    return legend(figure, left, right)


def draw_lengths(results: dict[str, Any]) -> Figure:
    """Draw the lengths of codes, and on the right these against the images' sizes as PNG files."""
    from matplotlib.ticker import MaxNLocator

    complexity = results.get("complexity")
    figure, axes = canvas(WIDE, columns=2, wspace=0.06) if complexity else canvas()
    left, *others = axes if complexity else [axes]
    for (name, counts), color, share in zip(results["lengths"].items(), (BLUE, ORANGE), (-0.2, 0.2), strict=False):
        places = [length + share for length in range(1, len(counts))]
        label = "_" if others else WORDS.get(name, name)  # once is enough
        left.bar(places, [100 * n / sum(counts) for n in counts[1:]], 0.4, color=color, label=label)
        for right in others:
            said, shown = complexity["correlation"].get(name), complexity["shown"]  # type: ignore[index]
            if said is not None:
                label = f"{WORDS.get(name, name)}: Spearman {said['spearman']:.2f}, Pearson {said['pearson']:.2f}"
                marker = "o" if share < 0 else "^"
                right.plot(shown["png"], shown[name], marker, color=color, alpha=0.5, markersize=3.5, label=label)
    left.set(xlabel="length of the code (dimensions)", ylabel="images (%)")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    for right in others:
        right.yaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(xlabel="image as a PNG file (bytes)", ylabel="length of the code (dimensions)")
    return legend(figure, left, *others)


def _over_lengths(axis: Axes, series: Sequence[Series], key: str, name: str) -> None:
    styles = looks(series)
    for own in series:
        known = own.of(having=key)
        _draw(axis, [p.length for p in known], known, key, own.name, styles[own.name])
        for p in own.of(FIXED, having=key):
            if p.seeds > 1:
                low, high = p.measures[key].low, p.measures[key].high
                axis.vlines(p.length, low, high, color=styles[own.name][0], linewidth=1.2)
    ticks = sorted({p.length for own in series for p in own.of(FIXED, having=key)})
    if ticks and len(ticks) <= 8:
        apart = [x for i, x in enumerate(ticks) if i + 1 == len(ticks) or ticks[i + 1] - x > 0.05 * ticks[-1]]
        axis.set_xticks(apart, [f"{x:g}" for x in apart])
    axis.set_xlim(left=0)
    axis.set(xlabel="length of the code (dimensions)", ylabel=name)


def _draw(axis: Axes, places: list[float], known: list[Point], key: str, name: str, look: Look) -> None:
    """A line of fixed lengths; lengths by other rules are hollow markers, each with its words."""
    pairs = [(x, point.measures[key].mean, point) for x, point in zip(places, known, strict=True)]
    fixed = [(x, y) for x, y, point in pairs if point.kind == FIXED]
    if fixed:
        size = 5.5 if len(fixed) > 1 else 8
        plot(axis, [x for x, _ in fixed], [y for _, y in fixed], look, name, markersize=size)
    for x, y, point in pairs:
        if point.kind != FIXED:
            label = one_line(f"{name}, {WORDS[point.kind]}", 70)
            shape, size = ("*", 11) if point.kind == "posterior" else ("D", 6)
            axis.plot([x], [y], shape, color=look[0], label=label, zorder=4, markersize=size, markerfacecolor="white")


def _many(series: Sequence[Series], key: str) -> bool:
    return sum(len(own.of(FIXED, having=key)) for own in series) > 1


def _named(runs: Sequence[Run]) -> set[str]:
    return {name for run in runs for name in measure_names(run.results.get("features") or {}).values()}


def _counts(series: Sequence[Series]) -> str:
    """Numbers of generated images, and of real ones that they are held against."""
    features = [run.results.get("features") for own in series for run in own.runs]
    found = sorted({(one["num_generated"], one["real"]) for one in features if one})
    said = " or ".join(f"{drawn:,} drawn images against {real:,} real ones" for drawn, real in found)
    return said if len(found) == 1 else f"{said} (of fewer images a distance is larger: these do not compare)"


def _length(own: Series, point: Point) -> str:
    code = point.rows[0][0]["latent_dim"]
    if point.kind == FIXED:
        return f"{point.length:g}" if own.is_separate else f"{point.length:g} of {code}"
    return f"{point.length:.1f} of {code}, {WORDS[point.kind]}"
