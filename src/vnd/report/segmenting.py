"""What pages of segmenters show: tables, figures, numbers, and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vnd.report import figures, paired, scores, segments
from vnd.report.captions import NOT_TEST
from vnd.report.entries import Entry, bins, counts, expected, graders, group, published
from vnd.report.scores import listed
from vnd.report.shown import Shown
from vnd.report.tasks import Task, flat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        "many samples show its distribution better than one.{bars}{hollow}",
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
}
TRAINING = "The loss over the steps, summed over the pixels of an image, pale as it was and bold as a running mean."
LINES = " Lines across are the means of methods that have one size."
TRUTH = " The black dotted line is what samples of the true distribution, which is known here, would reach on average."
DRAWN = " Drawn: each sample has a length of its own, which is drawn too."
HOLLOW = " Hollow: {sizes}."
BARS = " Bars: 95 % intervals where there are trainings from several seeds; a wide one may reach past the figure."
OTHERS = " {name}: about {values}, read from its paper, on the full set and other images: a landmark, no contest."


def summary(results: dict[str, Any], own: Entry, images: str) -> tuple[str, str, str]:
    """What was trained, at how many sizes it is measured, and what came of it, in words."""
    trained = (
        f"A network was trained on {images}, each with the masks of {results['graders']} graders, who need not agree. "
        "Every sample that it draws for an image is a whole mask, such as one grader might have made."
    )
    sized = sum(not point.drawn for point in own.points)
    where = f" at {sized} sizes" if sized > 1 else ""
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
    return trained, where, words


def in_markdown(entries: Sequence[Entry]) -> list[str]:
    """The tables as Markdown, each after what it shows."""
    return [*([NOT_TEST] if entries[0].runs[0].split != "test" else []), *scores.in_markdown(entries)]


def points(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every size of every method: its means, the ends of their intervals over trainings and over groups, differences.

    Keys that end in "low" and "high" are of trainings; in "groups low" and "groups high", of groups or else images.
    """
    found = []
    apart = {(one.entry.name, one.point.label): one.found for one in paired.differences(entries)}
    base, key = paired.reference(entries), f"ged_{counts(entries)[-1]} difference"
    for own in entries:
        for point in own.points:
            line = flat(own, point.measures, size=point.label, fraction=point.fraction, runs=point.runs)
            for count, (low, high) in point.spans.items():
                line |= {f"ged_{count} groups low": low, f"ged_{count} groups high": high}
            difference = apart.get((own.name, point.label))
            if difference is not None and base is not None:
                line |= {f"{key} from": base.name, key: difference.mean}
                line |= {f"{key} groups low": difference.low, f"{key} groups high": difference.high}
            found.append(line)
    return found


def shown(entries: Sequence[Entry], prefix: str = "") -> list[Shown]:
    """The figures that there are numbers for."""
    found: list[Shown] = []
    several = [own for own in entries if len(own.points) > 1]
    lone = not several and len(entries) == 1
    truth, (name, others) = expected(entries), published(entries)
    values = listed([f"{value:.2f} at {count} samples" for count, value in others.items()])
    drawn = any(point.drawn for own in several for point in own.points)
    repeated = any(len(own.runs) > 1 for own in entries)
    sizes = listed([f"{own.name} at other sizes" for own in several]) + ", unjoined where drawn" * drawn
    said = {
        "truth": TRUTH if truth else "",
        "published": OTHERS.format(name=name, values=values) if others else "",
        "drawn": DRAWN if drawn else "",
        "lines": LINES if several and len(several) < len(entries) else "",
        "beside": "Below" if lone else "Right",
        "first": " Of several trainings, the first is shown." if repeated else "",
        "bars": BARS if repeated else "",
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


TASK = Task(
    name="segmentation",
    noun="segmenter",
    key=lambda run: (run.data,),
    where=lambda keys: f"on {' and '.join(dict.fromkeys(f'“{data}”' for data, *_ in keys))}",
    group=group,
    summary=summary,
    training=("loss", TRAINING, figures.training),
    tables=scores.parts,
    in_markdown=in_markdown,
    shown=shown,
    rows=points,
)
