"""Pages of auto-encoders: of one run, and of many; a table of lengths, figures, numbers, and Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vnd.files import write_text
from vnd.report import canvas, codes, markdown, marked, sections
from vnd.report.captions import NOT_TEST
from vnd.report.codes import READINGS, Curve, Point
from vnd.report.document import document, pair, picture, section, table
from vnd.report.runs import Run, run_of
from vnd.report.series import NAMES
from vnd.report.shown import Shown, laid, prefixes
from vnd.report.summary import as_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
DPI = 144  # of the PNG files
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
    "{target}."
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
    "training": ("Training", "Over the steps, pale as it was and bold as a running mean."),
}


@dataclass(frozen=True)
class CodeBlock:
    """The auto-encoders of one data set and one network, which can be compared."""

    data: str
    network: str
    runs: tuple[Run, ...]
    series: tuple[Curve, ...]


@dataclass(frozen=True)
class Codes:
    """Auto-encoders that are compared, and the names of runs that are left out."""

    blocks: tuple[CodeBlock, ...]
    left_out: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """All runs, block by block."""
        return [run for block in self.blocks for run in block.runs]


# One run


def drawn(results: dict[str, Any]) -> dict[str, Figure]:
    """The figures of a run that there are numbers for, by name."""
    found = {one.name: one.draw() for one in shown([_only(results)])}
    if any(point.get("mse") is not None for point in results.get("curves") or []):
        found["training"] = codes.training(results)
    return found


def html(results: dict[str, Any], pictures: dict[str, str], made: str) -> str:
    """The page of a run, of what `results.read` gave, of each figure as SVG, and of where it comes from, as HTML."""
    own = _only(results)
    body = [f"<h1>{escape(results['title'])}</h1>", *(f"<p>{escape(text)}</p>" for text in _summary(results))]
    body += [section("In numbers", note_of([own]), numbers([own])), *laid(shown([own]), pictures)]
    heading, note = HEADINGS["training"]
    last = section(heading, note, picture(pictures["training"], heading, "half")) if "training" in pictures else ""
    return document(results["title"], [*body, pair(last, made)])


def _only(results: dict[str, Any]) -> Curve:
    run = run_of(Path(), results)
    return codes.curve(NAMES.get(run.method, run.method), [run])


def _summary(results: dict[str, Any]) -> list[str]:
    """What was trained, and what came of it, in words."""
    data, rows, code = results["data"], sorted(results["rows"], key=lambda row: row["length"]), results["code"]
    split = results.get("split") or "test"
    count = f"{data['train']:,} images of " if data.get("train") else ""
    trained = f"An auto-encoder with a code of {code} numbers was trained on {count}“{data['name']}”."
    if results["kind"] == "ordered":
        trained += " Its numbers stand in an order, so that a code can end after any of them."
    where = f" at {len(rows)} lengths" if len(rows) > 1 else ""
    number = f"{data[split]:,} " if data.get(split) else ""
    measured = f"Here it is measured{where} on {number}{split} images, which it was not trained on."
    errors = [f"{row['mse']:.5f} with {row['length']:g}" for row in rows]
    said = f"The mean squared error of a pixel is {', '.join(errors[:-1])}{' and ' * (len(errors) > 1)}{errors[-1]}"
    found = [f"{trained} {measured}", f"{said} of {code} numbers.", *(results.get("notes") or [])]
    return found if split == "test" else [*found, NOT_TEST]


# Many runs


def split(runs: Sequence[Run]) -> tuple[CodeBlock, ...]:
    """One block for each data set and network, in the order of the runs."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.data, run.network), []).append(run)
    return tuple(CodeBlock(*key, tuple(own), tuple(codes.group(own))) for key, own in found.items())


def write(found: Codes, out: Path, title: str | None = None) -> Path:
    """Write the page of auto-encoders, its figures and its numbers; its path."""
    count = len(found.runs)
    title = title or f"Comparison of {count} auto-encoder{'s' * (count > 1)}"
    where = "; ".join(f"{block.network} on {block.data}" for block in found.blocks)
    names = dict.fromkeys(own.name for block in found.blocks for own in block.series)
    words = [f"{count} run{'s' * (count > 1)} of {where}. Shown: {', '.join(names)}."]
    if found.runs[0].split != "test":
        words.append(NOT_TEST)
    if found.left_out:
        words.append(f"Left out: {', '.join(found.left_out)}, not evaluated.")
    body, files = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in words)], list[str]()
    for block, prefix in zip(found.blocks, prefixes([block.data for block in found.blocks]), strict=True):
        if len(found.blocks) > 1:
            body.append(f'<h2 class="block">{escape(f"{block.data}, {block.network}")}</h2>')
        every = shown(block.series, prefix)
        pictures = canvas.pictures({one.name: one.draw() for one in every}, out / "figures", DPI)
        files += pictures
        body += [section("In numbers", note_of(block.series), numbers(block.series)), *laid(every, pictures)]
    rows = points(found.blocks)
    write_text(out / "summary.csv", as_csv(rows))
    about = {"format": FORMAT, "task": "encode", "split": found.runs[0].split, "left_out": list(found.left_out)}
    about |= {"points": rows, "figures": [f"figures/{name}.png" for name in files]}
    write_text(out / "summary.json", json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(out / "report.html", document(title, [*body, sections.made(found.runs)]))
    return out / "report.html"


def write_markdown(found: Codes, path: Path, command: str = "") -> list[Path]:
    """Write the comparison between the marks of a Markdown file, and its figures into `images/` beside it."""
    marked.parts(path)  # or all the drawing would be for nothing
    text, files = list[str](), list[Path]()
    for block, prefix in zip(found.blocks, prefixes([block.data for block in found.blocks]), strict=True):
        text.append(f"### {markdown.words(block.data)}, {markdown.words(block.network)}")
        note = note_of(block.series)
        text += [markdown.words(note if block.runs[0].split == "test" else f"{note} {NOT_TEST}")]
        head, lines = cells(block.series)
        bold = [[f"**{text}**" if best else markdown.words(text) for text, best in line] for line in lines]
        text.append(markdown.table([markdown.words(name) for name in head], bold))
        for one in shown(block.series, prefix):
            files.append(markdown.put_figure(one.draw(), path, one.name))
            text += markdown.shown(files[-1], one.heading, one.note)
        text += markdown.made(block)
    if command:
        text += ["Tables and figures were made by", markdown.code([command])]
    marked.write(path, "\n\n".join(text))
    return files


def points(blocks: Sequence[CodeBlock]) -> list[dict[str, Any]]:
    """Every point of the figures: its mean, and the ends of its interval over trainings."""
    found = []
    for block in blocks:
        for own in block.series:
            for point in own.points:
                row: dict[str, Any] = {
                    "data": block.data, "network": block.network, "method": own.method, "name": own.name,
                    "reading": point.reading, "length": point.length, "code": point.code, "runs": point.runs,
                }  # fmt: skip
                for key, value in point.measures.items():
                    row |= {key: value.mean, f"{key} low": value.low, f"{key} high": value.high}
                found.append(row)
    return found


# Both


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


def numbers(curves: Sequence[Curve]) -> str:
    """The table as HTML."""
    head, lines = cells(curves)
    body = [[f"<b>{escape(text)}</b>" if best else escape(text) for text, best in line] for line in lines]
    return table([escape(name) for name in head], body)


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


def _counts(curves: Sequence[Curve]) -> str:
    """How many images were drawn, and how many real ones they are held against."""
    features = [run.results.get("features") for own in curves for run in own.runs]
    found = sorted({(one["drawn"], one["real"]) for one in features if one})
    said = " or ".join(f"{drawn:,} drawn images against {real:,} real ones" for drawn, real in found)
    return said if len(found) == 1 else f"{said} (of fewer images a distance is larger: these do not compare)"


def _length(own: Curve, point: Point) -> str:
    if point.reading == "fixed":
        return f"{point.length:g} of {point.code}" if own.is_ordered else f"{point.length:g}"
    return f"{point.length:.1f} of {point.code}, {READINGS[point.reading]}"
