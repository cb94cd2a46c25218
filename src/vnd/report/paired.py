"""Segmenters against one of them, image by image: differences of the energy distance, and how sure these are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vnd.metrics import Interval, bootstrap_interval
from vnd.report.entries import Entry, Point, counts, owner_word

REFERENCE = "punet"  # the method that others are held against, where it is there
NOTE = (
    "Of each image the energy distance with {most} samples, less that of {name} for the same image, on average over "
    "images: below 0 is nearer to the graders than {name}. The interval is where 95 % of such means lie with other "
    "{groups} in place of these (2,000 resamples); bold: all of it is below 0. Other trainings are not in it{seeds}."
)


@dataclass(frozen=True)
class Difference:
    """What a size of a segmenter differs by from the reference; None where it was measured on other images."""

    entry: Entry
    point: Point
    found: Interval | None


def reference(entries: Sequence[Entry]) -> Entry | None:
    """What the others are held against: the first P-UNet, or else the first; nothing where one is alone."""
    if len(entries) < 2:
        return None
    return next((own for own in entries if own.method == REFERENCE), entries[0])


def differences(entries: Sequence[Entry]) -> list[Difference]:
    """Every size of every segmenter against the largest of the reference, with the largest number of samples."""
    most, base = counts(entries)[-1], reference(entries)
    if base is None:
        return []
    sizes = [(own, point) for own in entries for point in own.points if point is not base.full]
    return [Difference(own, point, _found(own, point, base, most)) for own, point in sizes]


def title(entries: Sequence[Entry]) -> str:
    """What the table is of."""
    base = reference(entries)
    return "" if base is None else f"GED {counts(entries)[-1]}, difference from {_name(base)}"


def note(entries: Sequence[Entry]) -> str:
    """What its numbers mean."""
    base = reference(entries)
    if base is None:
        return ""
    several = any(point.runs > 1 for own in entries for point in own.points)
    groups = f"{owner_word(entries)}s" if base.groups else "images"
    seeds = "; where there are several, their mean is taken" if several else ""
    return NOTE.format(most=counts(entries)[-1], name=_name(base), groups=groups, seeds=seeds)


def lines(entries: Sequence[Entry]) -> tuple[list[str], list[list[tuple[str, bool]]]]:
    """Heading and lines of the table, text and whether it is bold; no lines where nothing can be compared."""
    every = differences(entries)
    if not any(one.found for one in every):
        return [], []
    has_size = any(len(own.points) > 1 for own in entries)
    body = []
    for one in every:
        line = [(one.entry.name, False)]
        line += [(one.point.label if len(one.entry.points) > 1 else "–", False)] * has_size
        body.append([*line, *_cells(one.found)])
    return ["Method", *["Size"] * has_size, "Difference", "95 % interval"], body


def signed(value: float) -> str:
    """A difference, with its sign.

    >>> signed(-0.0213), signed(0.1)
    ('−0.021', '+0.100')
    """
    return f"{value:+.3f}".replace("-", "−")


def _found(own: Entry, point: Point, base: Entry, most: int) -> Interval | None:
    """The mean difference over images and its interval, where both were measured on the same images."""
    one, other = point.each.get(most, ()), base.full.each.get(most, ())
    if not one or len(one) != len(other) or own.groups != base.groups:
        return None
    apart = torch.tensor([one, other], dtype=torch.float64)
    return bootstrap_interval((apart[0] - apart[1])[:, None], base.groups or None)[0]


def _cells(found: Interval | None) -> list[tuple[str, bool]]:
    if found is None:
        return [("–", False), ("–", False)]
    sure = found.count > 1 and found.high < 0
    span = f"{signed(found.low)} … {signed(found.high)}" if found.count > 1 else "–"
    return [(signed(found.mean), sure), (span, False)]


def _name(base: Entry) -> str:
    """The reference, with its size where it has several."""
    return f"{base.name}, {base.full.label}" if len(base.points) > 1 else base.name
