"""Pages of segmenters: of one run, and of many; tables, figures, numbers, and Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vnd.files import write_text
from vnd.report import canvas, figures, markdown, marked, paired, scores, sections, segments
from vnd.report.captions import NOT_TEST
from vnd.report.document import document, pair, picture, section
from vnd.report.entries import Entry, bins, counts, entry, expected, graders, group, published
from vnd.report.runs import Run, run_of
from vnd.report.scores import listed
from vnd.report.series import NAMES
from vnd.report.shown import Shown, laid, prefixes
from vnd.report.summary import as_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
DPI = 144  # of the PNG files
HEADINGS = {
    "boxes": (
        "How far samples are from the graders, image by image",
        "Energy distance of every image; lower is better. A box holds the middle half of the images, its whiskers end "
        "where 5 % lie beyond on each side; the black line in it is the mean, the thin one the median.{drawn}{lines}"
        "{truth}{published}",
    ),
    "samples": (
        "More samples",
        "The mean energy distance against the number of samples; lower is better. It falls whatever the network, since "
        "many samples show its distribution better than one.{hollow}",
    ),
    "diversity": (
        "As many minds as the graders?",
        "Right: samples that differ more from each other; up: samples that match the graders better. Samples of a good "
        "network differ as much as two graders do, the dotted line.{hollow}",
    ),
    "calibration": (
        "Can the probability of a pixel be believed?",
        "Of the pixels with some probability, by how many of the graders they were marked; on the dotted line the two "
        "agree, below it a network marks too much. {beside}: how many pixels there are.{first}",
    ),
    "training": (
        "Training",
        "The loss over the steps, summed over the pixels of an image, pale as it was and bold as a running mean.",
    ),
}
LINES = " Lines across are the means of methods that have one size."
TRUTH = " The black dotted line is what samples of the true distribution, which is known here, would reach on average."
DRAWN = " Drawn: each sample has a length of its own, which is drawn too."
HOLLOW = " Hollow: {sizes}."
OTHERS = " {name}: about {values}, read from its paper, on the full set and other images: a landmark, no contest."


@dataclass(frozen=True)
class SegmentBlock:
    """The segmenters of one data set, whatever their network."""

    data: str
    runs: tuple[Run, ...]
    series: tuple[Entry, ...]


@dataclass(frozen=True)
class Segments:
    """Segmenters that are compared, and the names of runs that are left out."""

    blocks: tuple[SegmentBlock, ...]
    left_out: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """All runs, block by block."""
        return [run for block in self.blocks for run in block.runs]


# One run


def drawn(results: dict[str, Any]) -> dict[str, Figure]:
    """The figures of a run that there are numbers for, by name."""
    found = {one.name: one.draw() for one in shown([_only(results)])}
    if any(point.get("loss") is not None for point in results.get("curves") or []):
        found["training"] = figures.training(results)
    return found


def html(results: dict[str, Any], pictures: dict[str, str], made: str) -> str:
    """The page of a run, of what `results.read` gave, of each figure as SVG, and of where it comes from, as HTML."""
    own = _only(results)
    body = [f"<h1>{escape(results['title'])}</h1>", *(f"<p>{escape(text)}</p>" for text in _summary(results, own))]
    body += [*scores.parts([own]), *laid(shown([own]), pictures)]
    heading, note = HEADINGS["training"]
    last = section(heading, note, picture(pictures["training"], heading, "half")) if "training" in pictures else ""
    return document(results["title"], [*body, pair(last, made)])


def _only(results: dict[str, Any]) -> Entry:
    run = run_of(Path(), results)
    return entry(NAMES.get(run.method, run.method), [run])


def _summary(results: dict[str, Any], own: Entry) -> list[str]:
    """What was trained, and what came of it, in words."""
    data, split = results["data"], results.get("split") or "test"
    count = f"{data['train']:,} images of " if data.get("train") else ""
    trained = (
        f"A network was trained on {count}“{data['name']}”, each with the masks of {results['graders']} graders, who "
        "need not agree. Every sample that it draws for an image is a whole mask, such as one grader might have made."
    )
    sized = sum(not point.drawn for point in own.points)
    where = f" at {sized} sizes" if sized > 1 else ""
    number = f"{data[split]:,} " if data.get(split) else ""
    measured = f"Here it is measured{where} on {number}{split} images, which it was not trained on."
    most = counts([own])[-1]
    places = [" with lengths that are drawn" if point.drawn else f" at {point.label}" for point in own.points]
    said = [
        f"{point.measures[f'ged_{most}'].mean:.3f}{place * (len(own.points) > 1)}"
        for point, place in zip(own.points, places, strict=True)
    ]
    words = f"The energy distance between {most} sample{'s' * (most > 1)} and the graders is {listed(said)}"
    truth = expected([own]).get(most)
    words += f"; samples of the true distribution would have {truth:.3f} on average." if truth is not None else "."
    spread, between = own.full.measures.get("diversity"), graders([own], "diversity")
    if spread is not None and between is not None:
        words += f" Two samples are {spread.mean:.2f} apart (1 − IoU), two graders {between:.2f}."
    found = [f"{trained} {measured}", words, *(results.get("notes") or [])]
    return found if split == "test" else [*found, NOT_TEST]


# Many runs


def split(runs: Sequence[Run]) -> tuple[SegmentBlock, ...]:
    """One block for each data set, in the order of the runs."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.data, []).append(run)
    return tuple(SegmentBlock(data, tuple(own), tuple(group(own))) for data, own in found.items())


def write(found: Segments, out: Path, title: str | None = None) -> Path:
    """Write the page of segmenters, its figures and its numbers; its path."""
    count = len(found.runs)
    title = title or f"Comparison of {count} segmenter{'s' * (count > 1)}"
    names = dict.fromkeys(own.name for block in found.blocks for own in block.series)
    where = " and ".join(f"“{block.data}”" for block in found.blocks)
    words = [f"{count} run{'s' * (count > 1)} on {where}. Shown: {', '.join(names)}."]
    if found.runs[0].split != "test":
        words.append(NOT_TEST)
    if found.left_out:
        words.append(f"Left out: {', '.join(found.left_out)}, not evaluated.")
    body, files = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in words)], list[str]()
    for block, prefix in zip(found.blocks, prefixes([block.data for block in found.blocks]), strict=True):
        if len(found.blocks) > 1:
            body.append(f'<h2 class="block">{escape(block.data)}</h2>')
        every = shown(block.series, prefix)
        pictures = canvas.pictures({one.name: one.draw() for one in every}, out / "figures", DPI)
        files += pictures
        body += [*scores.parts(block.series), *laid(every, pictures)]
    rows = points(found.blocks)
    write_text(out / "summary.csv", as_csv(rows))
    about = {"format": FORMAT, "task": "segment", "split": found.runs[0].split, "left_out": list(found.left_out)}
    about |= {"points": rows, "figures": [f"figures/{name}.png" for name in files]}
    write_text(out / "summary.json", json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(out / "report.html", document(title, [*body, sections.made(found.runs)]))
    return out / "report.html"


def write_markdown(found: Segments, path: Path, command: str = "") -> list[Path]:
    """Write the comparison between the marks of a Markdown file, and its figures into `images/` beside it."""
    marked.parts(path)  # or all the drawing would be for nothing
    text, files = list[str](), list[Path]()
    for block, prefix in zip(found.blocks, prefixes([block.data for block in found.blocks]), strict=True):
        text += [f"### {markdown.words(block.data)}", *([NOT_TEST] if block.runs[0].split != "test" else [])]
        text += scores.in_markdown(block.series)
        for one in shown(block.series, prefix):
            files.append(markdown.put_figure(one.draw(), path, one.name))
            text += markdown.shown(files[-1], one.heading, one.note)
        text += markdown.made(block)
    if command:
        text += ["Tables and figures were made by", markdown.code([command])]
    marked.write(path, "\n\n".join(text))
    return files


def points(blocks: Sequence[SegmentBlock]) -> list[dict[str, Any]]:
    """Every size of every method: its means, the ends of their intervals over trainings and over owners, differences.

    Keys that end in "low" and "high" are of trainings; in "owners low" and "owners high", of owners or else images.
    """
    found = []
    for block in blocks:
        apart = {(one.entry.name, one.point.label): one.found for one in paired.differences(block.series)}
        base, most = paired.reference(block.series), counts(block.series)[-1]
        for own in block.series:
            for point in own.points:
                row: dict[str, Any] = {
                    "data": block.data, "network": own.runs[0].network, "method": own.method, "name": own.name,
                    "size": point.label, "fraction": point.fraction, "runs": point.runs,
                }  # fmt: skip
                for key, value in point.measures.items():
                    row |= {key: value.mean, f"{key} low": value.low, f"{key} high": value.high}
                for count, (low, high) in point.spans.items():
                    row |= {f"ged_{count} owners low": low, f"ged_{count} owners high": high}
                difference = apart.get((own.name, point.label))
                if difference is not None and base is not None:
                    key = f"ged_{most} difference"
                    row |= {f"{key} from": base.name, key: difference.mean}
                    row |= {f"{key} owners low": difference.low, f"{key} owners high": difference.high}
                found.append(row)
    return found


# Both


def shown(entries: Sequence[Entry], prefix: str = "") -> list[Shown]:
    """The figures that there are numbers for."""
    found: list[Shown] = []
    several = [own for own in entries if len(own.points) > 1]
    lone = not several and len(entries) == 1
    truth, (name, others) = expected(entries), published(entries)
    values = listed([f"{value:.2f} at {count} samples" for count, value in others.items()])
    drawn = any(point.drawn for own in several for point in own.points)
    sizes = listed([f"{own.name} at other sizes" for own in several]) + ", unjoined where drawn" * drawn
    said = {
        "truth": TRUTH if truth else "",
        "published": OTHERS.format(name=name, values=values) if others else "",
        "drawn": DRAWN if drawn else "",
        "lines": LINES if several and len(several) < len(entries) else "",
        "beside": "Below" if lone else "Right",
        "first": " Of several trainings, the first is shown." if any(len(own.runs) > 1 for own in entries) else "",
    }

    def add(key: str, draw: Callable[[], Figure], half: bool, hollow: str = "") -> None:
        heading, note = HEADINGS[key]
        words = note.format(**said, hollow=HOLLOW.format(sizes=hollow) if hollow and several else "")
        found.append(Shown(f"{prefix}{key}", heading, words, draw, half))

    add("boxes", partial(segments.boxes, entries), lone)
    if len(counts(entries)) > 1 and not lone:
        smallest = listed([f"{own.name}, {own.points[0].label}" for own in several if own.points[0] is not own.full])
        add("samples", partial(segments.over_samples, entries), True, smallest)
    known = [p for own in entries for p in own.points if {"diversity", "matched_iou"} <= set(p.measures)]
    if len(known) > 1:
        add("diversity", partial(segments.diversity, entries), True, sizes)
    if any(bins(own) for own in entries):
        add("calibration", partial(segments.calibration, entries, lone), lone)
    return found
