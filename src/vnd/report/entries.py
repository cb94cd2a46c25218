"""Segmenters that are compared: which runs are one entry, each at its sizes, and what stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vnd.metrics import Interval, confidence_interval
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
BY_SAMPLES = ("ged", "ged_unbiased", "expected_ged")
# Energy distances that others published for a data set, on another split of it, by number of samples.
PUBLISHED = {"lidc": ("P-UNet as published, another split", {16: 0.29})}


@dataclass(frozen=True)
class Point:
    """One size of a segmenter.

    Args:
        label: What the size is called.
        fraction: Of the latent dimensions or of every layer; None where there is one size.
        measures: Means over runs by name; those of some number of samples have it behind, as `ged_16`.
        images: Energy distance of every image, those of all runs one after another, by number of samples.
        runs: How many trainings.
    """

    label: str
    fraction: float | None
    measures: dict[str, Interval]
    images: dict[int, tuple[float, ...]]
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
        """Its largest size."""
        return self.points[-1]


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
    points = [_point(own) for own in rows.values()]
    points.sort(key=lambda point: 1.0 if point.fraction is None else point.fraction)
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
    found: dict[str, Any] = own.runs[0].results.get("calibration") or {}
    return {point.label: found[point.label] for point in own.points if point.label in found}


def named(own: Entry, point: Point) -> str:
    """An entry at a size, in words; the size is said where there are several."""
    return f"{own.name}, {point.label}" if len(own.points) > 1 else own.name


def _apart(runs: list[Run]) -> list[list[Run]]:
    seeds = [run.seed for run in runs]
    return [runs] if len(set(seeds)) == len(seeds) else [[run] for run in runs]


def _point(rows: list[dict[str, Any]]) -> Point:
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
    return Point(rows[0]["label"], rows[0].get("fraction"), measures, images, len(rows))
