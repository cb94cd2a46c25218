"""What pages of auto-encoders show: a table of lengths, figures, numbers, and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from vnd.report import codes, markdown
from vnd.report.captions import NOT_TEST
from vnd.report.codes import READINGS, Curve, Point
from vnd.report.document import section, table
from vnd.report.shown import Shown
from vnd.report.tasks import Task, flat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "mse": ("MSE", "{:.5f}"), "summed": ("Summed error", "{:.4g}"), "rate": ("Rate", "{:.2f}"),
    "distortion": ("Distortion", "{:.2f}"), "negative_elbo": ("−ELBO", "{:.2f}"),
}  # fmt: skip
BEST = ("mse", "summed", "negative_elbo")  # less is better; of the others there are two sides, or none
WORDS = (
    "MSE: mean squared error of a pixel between 0 and 1, of the most likely codes; summed: over the pixels of an "
    "image. Rate: what a code costs; distortion: what is then missing to the image, of codes drawn from the posterior; "
    "−ELBO: both, in nats per image. Of all these less is better."
)
WAYS = (
    " By image: each at the length that its posterior says. By target: each at the shortest with an error of at most "
    "{target}, or at all of the code where none has it."
)
HEADINGS = {
    "error": ("Error at every length", "Further left is a shorter code, lower is better."),
    "rate": (
        "Rate and distortion",
        "Left: what codes cost and what is then missing; further down and left is better, a point is a length. Right: "
        "their sum, an upper bound on −log p(x).",
    ),
    "distance": (
        "Generated images against real ones",
        "{distance} of {counts}, at each length; lower is better. Numbers of other extractors do not compare.",
    ),
    "lengths": (
        "How long the code of an image is",
        "Left: at how many dimensions codes end, by what the posterior of each image says (its median), and by where "
        "its error is at most {target}. Right: the same against how many bytes the image takes as a PNG, a measure of "
        "how much there is to see in it.",
    ),
}


def summary(results: dict[str, Any], own: Curve, images: str) -> tuple[str, str, str]:
    """What was trained, at how many lengths it is measured, and what came of it, in words."""
    rows, code = sorted(results["rows"], key=lambda row: row["length"]), results["latent_dim"]
    trained = f"An auto-encoder with a code of {code} numbers was trained on {images}."
    if own.is_ordered:
        trained += " Its numbers stand in an order, so that a code can end after any of them."
    where = f" at {len(rows)} lengths" if len(rows) > 1 else ""
    errors = [f"{row['mse']:.5f} with {row['length']:g}" for row in rows]
    said = f"The mean squared error of a pixel is {', '.join(errors[:-1])}{' and ' * (len(errors) > 1)}{errors[-1]}"
    return trained, where, f"{said} of {code} numbers."


def note_of(curves: Sequence[Curve]) -> str:
    """What the columns of the table mean."""
    note = WORDS
    targets = {f"{row['target']:.4g}" for own in curves for run in own.runs for row in run.rows if row.get("target")}
    if targets:
        note += WAYS.format(target=" or ".join(sorted(targets)))
    if any(len({point.code for point in own.points}) > 1 for own in curves):
        note += " Retrained: a training for each length."
    if any(len(own.runs) > 1 and any(point.runs > 1 for point in own.points) for own in curves):
        note += " ± is half a 95 % interval over trainings from other seeds."
    names = codes.distances(curves)
    if names:
        note += f" {' and '.join(names)}: of {_counts(curves)}; less is better."
        note += f" Score: {' and '.join(codes.distances(curves, 'score_name'))}; more is better."
        features = [run.results["features"] for own in curves for run in own.runs if run.results.get("features")]
        real = sorted({f"{one['real_diversity']:.3g}" for one in features})
        note += f" Diversity: mean distance of two images by their features; of real ones it is {' or '.join(real)}."
    return note


def cells(curves: Sequence[Curve]) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """Heading and lines of the table, one a curve and length: each cell as text, and whether it is the best."""
    names = codes.distances(curves), codes.distances(curves, "score_name")
    known = dict.fromkeys(key for own in curves for point in own.points for key in point.measures)
    keys = [key for key in (*COLUMNS, *names[0], *names[1], *known) if key in known]
    keys = list(dict.fromkeys(keys))
    lower = {*BEST, *names[0]}
    best: dict[tuple[str, float], float] = {}
    several: dict[tuple[str, float], int] = {}
    for own in curves:
        for point in own.of("mse"):
            for key in lower & set(point.measures):
                place = (key, point.length)
                best[place] = min(best.get(place, point.measures[key].mean), point.measures[key].mean)
                several[place] = several.get(place, 0) + 1
    lines = []
    for own in curves:
        for point in own.points:
            line = [(own.name, False), (_length(own, point), False)]
            for key in keys:
                value, place = point.measures.get(key), (key, point.length)
                text = "–" if value is None else markdown.spread(value, COLUMNS.get(key, ("", "{:.3f}"))[1])
                leads = value is not None and several.get(place, 0) > 1 and value.mean == best[place]
                line.append((text, leads and point.reading == "fixed"))
            lines.append(line)
    head = ["Method", "Length"]
    short = {key: COLUMNS[key][0] for key in COLUMNS}
    if len(names[0]) == 1:  # the note says whose they are
        features = next(run.results["features"] for own in curves for run in own.runs if run.results.get("features"))
        whole = dict(zip(codes.names_of(features).values(), ("Fréchet", "Score", "Diversity"), strict=True))
        short |= whole if names[0] != ["FID"] else whole | {"FID": "FID"}
    return [*head, *(short.get(key, key) for key in keys)], lines


def tables(curves: Sequence[Curve]) -> list[str]:
    """The table as a part of a page."""
    head, lines = cells(curves)
    body = [[f"<b>{escape(text)}</b>" if best else escape(text) for text, best in line] for line in lines]
    return [section("In numbers", note_of(curves), table([escape(name) for name in head], body))]


def in_markdown(curves: Sequence[Curve]) -> list[str]:
    """The table as Markdown, after what it shows."""
    note = note_of(curves) if curves[0].runs[0].split == "test" else f"{note_of(curves)} {NOT_TEST}"
    return [markdown.words(note), markdown.bold_table(*cells(curves))]


def shown(curves: Sequence[Curve], prefix: str = "") -> list[Shown]:
    """The figures that there are numbers for."""
    found: list[Shown] = []

    def add(key: str, mark: str, draw: Callable[[], Figure], whose: str = "", **said: str) -> None:
        heading, note = HEADINGS[key]
        found.append(Shown(f"{prefix}{mark}", heading + whose, note.format(**said), draw, key in ("error", "distance")))

    def many(key: str) -> bool:
        return sum(len(own.of(key)) for own in curves) > 1

    if many("mse"):
        add("error", "error", partial(codes.against_length, curves, "mse", "mean squared error of a pixel (0 … 1)"))
    for index, name in enumerate(filter(many, codes.distances(curves))):
        draw, counts = partial(codes.against_length, curves, name, name), _counts([c for c in curves if c.of(name)])
        add("distance", f"distance-{index + 1}" if index else "distance", draw, distance=name, counts=counts)
    if many("negative_elbo"):
        add("rate", "rate", partial(codes.rate_distortion, curves))
    for index, own in enumerate(own for own in curves if own.has_lengths):
        results, whose = own.runs[0].results, f": {own.name}" if len(curves) > 1 else ""
        target = next((f"{row['target']:.4g}" for row in results["tidy"] if row.get("target") is not None), "a target")
        mark = f"lengths-{index + 1}" if index else "lengths"
        add("lengths", mark, partial(codes.lengths, results), whose, target=target)
    return found


def points(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Every point of the figures: its mean, and the ends of its interval over trainings."""
    return [
        flat(own, point.measures, inference=point.reading, length=point.length, code=point.code, runs=point.runs)
        for own in curves
        for point in own.points
    ]


def _counts(curves: Sequence[Curve]) -> str:
    """How many images were drawn, and how many real ones they are held against."""
    features = [run.results.get("features") for own in curves for run in own.runs]
    found = sorted({(one["num_generated"], one["real"]) for one in features if one})
    said = " or ".join(f"{drawn:,} drawn images against {real:,} real ones" for drawn, real in found)
    return said if len(found) == 1 else f"{said} (of fewer images a distance is larger: these do not compare)"


def _length(own: Curve, point: Point) -> str:
    if point.reading == "fixed":
        return f"{point.length:g} of {point.code}" if own.is_ordered else f"{point.length:g}"
    return f"{point.length:.1f} of {point.code}, {READINGS[point.reading]}"


TASK = Task(
    name="autoencoding",
    noun="auto-encoder",
    key=lambda run: (run.data, run.network),
    where=lambda keys: f"of {'; '.join(dict.fromkeys(f'{network} on {data}' for data, network, *_ in keys))}",
    group=codes.group,
    summary=summary,
    training=("mse", "Over the steps, pale as it was and bold as a running mean.", codes.training),
    tables=tables,
    in_markdown=in_markdown,
    shown=shown,
    rows=points,
)
