"""Segmenters that are compared: which runs are one entry, each at its sizes, and what stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vnd.metrics import Interval, bootstrap_interval, confidence_interval
from vnd.report.families import labels_of
from vnd.report.runs import Run
from vnd.report.series import NAMES

WHOLE = (
    "matched_iou",
    "diversity",
    "dice",
    "entropy",
    "entropy_marked",
    "calibration_error",
    "parameters",
    "macs",
    "seconds",
)
BY_SAMPLES = ("ged", "ged_unbiased", "ged_by_group", "expected_ged")
# Energy distances that others published for a data set, on another split of it, by number of samples.
PUBLISHED = {"lidc": ("P-UNet as published, another split", {16: 0.29})}

OWNER = {"lidc": "patient"}  # what groups of images are called, by data set

Owners = tuple[str | int, ...]  # of all images of a split


@dataclass(frozen=True)
class Point:
    """One size of a segmenter.

    Args:
        label: What the size is called.
        fraction: Of the latent dimensions or of every layer; None where there is one size, or where it is drawn.
        drawn: Whether each sample has a size of its own, which is drawn.
        measures: Means over runs by name; those of some number of samples have it behind, as `ged_16`.
        images: Energy distance of every image, those of all runs one after another, by number of samples.
        each: The same, on average over runs; nothing where runs were measured on other images.
        spans: Where the mean energy distance would lie, by 95 %, with other groups, or images where nobody owns them.
        runs: How many trainings.
    """

    label: str
    fraction: float | None
    drawn: bool
    measures: dict[str, Interval]
    images: dict[int, tuple[float, ...]]
    each: dict[int, tuple[float, ...]]
    spans: dict[int, tuple[float, float]]
    runs: int


@dataclass(frozen=True)
class Entry:
    """Runs of one method and settings, which differ in their seed: its sizes, from the smallest to the largest."""

    name: str
    method: str
    runs: tuple[Run, ...]
    points: tuple[Point, ...]

    @property
    def full(self) -> Point:
        """Its largest size; one that is drawn only where there is no other."""
        return next((point for point in reversed(self.points) if not point.drawn), self.points[-1])

    @property
    def groups(self) -> Owners | None:
        """Whose the images are, as all of its runs say, empty where nobody's; None where they do not agree."""
        return groups_of(self.runs)


def group(runs: Sequence[Run]) -> list[Entry]:
    """Entries of the runs of one data set, in the order of `NAMES`; those of unknown methods last.

    Runs of equal settings that differ in their seed are one entry; those that do not say their settings go by recipe.
    Two with the same seed differ in something else: each is an entry.
    """
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    found = []
    for method in sorted(methods, key=lambda name: list(NAMES).index(name) if name in NAMES else len(NAMES)):
        alike: dict[tuple[str | None, str | None], list[Run]] = {}
        for run in methods[method]:
            alike.setdefault((run.settings, None if run.settings else run.recipe), []).append(run)
        parts = [part for own in alike.values() for part in _apart(own)]
        for label, part in zip(labels_of(parts), parts, strict=True):
            name = NAMES.get(method, method)
            found.append(entry(f"{name} ({label})" if label else name, part))
    return found


def entry(name: str, runs: Sequence[Run]) -> Entry:
    """The entry of some runs: what they measured at sizes of one label is averaged."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for row in run.results["rows"]:
            rows.setdefault(row["label"], []).append(row)
    points = [_point(own, groups_of(runs)) for own in rows.values()]
    points.sort(key=lambda point: (point.drawn, 1.0 if point.fraction is None else point.fraction))
    return Entry(name, runs[0].method, tuple(runs), tuple(points))


def counts(entries: Sequence[Entry]) -> list[int]:
    """The numbers of samples that were drawn, from the smallest."""
    return sorted({count for own in entries for run in own.runs for count in run.results["samples"]})


def expected(entries: Sequence[Entry]) -> dict[int, float]:
    """What samples of the true distribution would reach, by number of samples; nothing where it is not known."""
    found: dict[int, float] = {}
    for count in counts(entries):
        known = [
            p.measures[key].mean
            for own in entries
            for p in own.points
            if (key := f"expected_ged_{count}") in p.measures
        ]
        found |= {count: sum(known) / len(known)} if known else {}
    return found


def published(entries: Sequence[Entry]) -> tuple[str, dict[int, float]]:
    """What others reached on the data set of some entries: their name, and energy distances by number of samples."""
    return PUBLISHED.get(entries[0].runs[0].data, ("", {}))


def graders(entries: Sequence[Entry], key: str) -> float | None:
    """What the graders measure among themselves, as the first run that does says."""
    known = [(run.results.get("graders_own") or {}).get(key) for own in entries for run in own.runs]
    return next((value for value in known if value is not None), None)


def bins(own: Entry) -> dict[str, dict[str, list[Any]]]:
    """The bins of calibration of an entry's first run, by size, from the smallest."""
    found: dict[str, Any] = own.runs[0].results.get("reliability") or {}
    return {point.label: found[point.label] for point in own.points if point.label in found}


def groups_of(runs: Sequence[Run]) -> Owners | None:
    """Whose the images of some runs are, empty where nobody's; None where they do not agree."""
    said = {tuple(run.results.get("groups") or ()) for run in runs}
    return said.pop() if len(said) == 1 else None


def owner_word(entries: Sequence[Entry]) -> str:
    """What an owner of images is called."""
    return OWNER.get(entries[0].runs[0].data, "owner")


def named(own: Entry, point: Point) -> str:
    """An entry at a size, in words; the size is said where there are several."""
    return f"{own.name}, {point.label}" if len(own.points) > 1 else own.name


def _apart(runs: list[Run]) -> list[list[Run]]:
    seeds = [run.seed for run in runs]
    return [runs] if len(set(seeds)) == len(seeds) else [[run] for run in runs]


def _point(rows: list[dict[str, Any]], groups: Owners | None) -> Point:
    values: dict[str, list[float]] = {}
    images: dict[int, tuple[float, ...]] = {}
    for row in rows:
        known = {key: row.get(key) for key in WHOLE}
        known |= {f"{key}_{count}": x for key in BY_SAMPLES for count, x in (row.get(key) or {}).items()}
        for key, value in known.items():
            if value is not None:
                values.setdefault(key, []).append(float(value))
        for count, own in row["per_image"].items():
            images[int(count)] = images.get(int(count), ()) + tuple(own)
    measures = {key: confidence_interval(own) for key, own in values.items()}
    each = {} if groups is None else _each(rows)
    label, fraction, drawn = rows[0]["label"], rows[0].get("fraction"), rows[0].get("kind") == "sampled"
    return Point(label, fraction, drawn, measures, images, each, _spans(rows, each, groups), len(rows))


def _each(rows: list[dict[str, Any]]) -> dict[int, tuple[float, ...]]:
    """Energy distances of the images that all runs were measured on, means over runs, by number of samples."""
    found = {}
    for count in rows[0]["per_image"]:
        runs = [row["per_image"].get(count, ()) for row in rows]
        if len({len(run) for run in runs}) == 1:
            found[int(count)] = tuple(sum(values) / len(runs) for values in zip(*runs, strict=True))
    return found


def _spans(
    rows: list[dict[str, Any]], each: dict[int, tuple[float, ...]], groups: Owners | None
) -> dict[int, tuple[float, float]]:
    """The intervals that the file says; of several runs on the same images, those of their mean."""
    said = [row.get("ged_interval") or {} for row in rows]
    if len(said) == 1:
        return {int(count): (low, high) for count, (low, high) in said[0].items()}
    if not each or not all(said):
        return {}
    found = bootstrap_interval(torch.tensor(list(each.values()), dtype=torch.float64).T, groups or None)
    return {count: (one.low, one.high) for count, one in zip(each, found, strict=True)}
