"""Methods at the same number of parameters: the network of each that fits a size, its full one, its worst calibrated.

A method that learns its shapes is held to those; one training a size is one row of all its sizes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from vnd.metrics import Interval, confidence_interval
from vnd.report.families import SEPARATE
from vnd.report.series import Point, Rows, Series, point_of, read_as
from vnd.report.summary import Block

PLAIN = "plain"  # the method that others are held against, shape by shape


@dataclass(frozen=True)
class Line:
    """A row of the table of methods: a series, or of one training a size, its widths or its learned shapes alone."""

    name: str
    own: Series
    kinds: tuple[str, ...]

    @property
    def points(self) -> list[Point]:
        """Its sizes, from the smallest to the largest."""
        return [point for point in self.own.points if point.kind in self.kinds]

    @property
    def separate(self) -> bool:
        """Whether each size was trained for itself."""
        return self.own.method in SEPARATE


@dataclass(frozen=True)
class Fit:
    """The networks of a line that fit a number of parameters: one of each training.

    Args:
        point: What they measure.
        low: Parameters of the smallest.
        high: Parameters of the largest.
        runs: How many trainings have one.
    """

    point: Point
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Twin:
    """Plain networks of the shapes of a size, trained for themselves.

    Args:
        accuracy: Theirs.
        gain: How much more accurate the networks of the size are; over shapes where trainings have shapes of their own.
        runs: How many trainings of the size have a twin.
    """

    accuracy: Interval
    gain: Interval
    runs: int


def lines(block: Block) -> list[Line]:
    """The rows of the table of methods, in the order of the series."""
    found = []
    for own in block.series:
        kinds = dict.fromkeys(point.kind for point in own.points)
        parts = [(kind,) for kind in ("uniform", "learned") if kind in kinds]
        for part in parts if own.method in SEPARATE else [tuple(kinds)]:
            shaped = own.method in SEPARATE and part == ("learned",)
            found.append(Line(f"{own.name} at learned shapes" if shaped else own.name, own, part))
    return found


def headline(block: Block) -> Series:
    """The series of the run that was given first, in its main reading."""
    first = block.runs[0].path
    return next(own for own in block.series if own.main and any(run.path == first for run in own.runs))


def within(line: Line, size: float) -> Fit | None:
    """The largest network of each training that has no more parameters than `size`; None where none has so few.

    Of a method that learns shapes it is one of these. Random masks fit no size: they reach to the full network.
    """
    kind = "learned" if "learned" in line.kinds else "uniform"
    if line.separate:  # a size is as large in every run, and not every seed need have every size
        sizes = [rows for rows in line.own.sizes if _first(rows)["kind"] == kind and _most(rows) <= size]
        chosen: Rows = max(sizes, key=_most, default=[])
    else:
        chosen = [_largest(rows, kind, size) for rows in (read_as(run, line.own.reading) for run in line.own.runs)]
        chosen = [rows for rows in chosen if rows]
    if not chosen:
        return None
    sizes_of = [float(row["parameters"]) for rows in chosen for row in rows]
    return Fit(point_of(chosen), min(sizes_of), max(sizes_of), len(chosen))


def full(line: Line) -> Point | None:
    """The full network, or what random masks gave; None where a line has none, as plain ones of learned shapes."""
    whole = [point for point in line.points if (point.fraction or 0) >= 1 - 1e-6 or point.kind == "sampled"]
    return max(whole, key=lambda point: point.parameters, default=None)


def worst(line: Line, kind: str | None = None) -> Point | None:
    """The size with the largest calibration error, of all or of one kind; None where there is none of it."""
    some = [point for point in line.points if kind in (None, point.kind)]
    return max(some, key=lambda point: point.measures["ece"].mean, default=None)


def seeds(point: Point) -> int:
    """How many trainings a point rests on."""
    return point.measures["accuracy"].count if point.over == "seeds" else 1


def twins(block: Block, own: Series) -> list[Twin | None]:
    """For each size of a series the plain networks of the same shape, known by parameters and multiply-adds."""
    plain: dict[Hashable, Point] = {}
    for other in block.series:
        if other.method == PLAIN and other.main and other is not own:
            for rows, point in zip(other.sizes, other.points, strict=True):
                plain.setdefault(_shape(_first(rows)), point)
    return [_twin(rows, plain) for rows in own.sizes]


def _twin(rows: Rows, plain: dict[Hashable, Point]) -> Twin | None:
    alike: dict[Hashable, Rows] = {}  # trainings by shape: uniform widths have one, learned shapes one each
    for run in rows:
        if _shape(run[0]) in plain:
            alike.setdefault(_shape(run[0]), []).append(run)
    if not alike:
        return None
    theirs = [plain[shape].measures["accuracy"] for shape in alike]
    ours = [point_of(runs).measures["accuracy"] for runs in alike.values()]
    gain = confidence_interval([one.mean - other.mean for one, other in zip(ours, theirs, strict=True)])
    runs = sum(map(len, alike.values()))
    return Twin(theirs[0] if len(theirs) == 1 else confidence_interval([one.mean for one in theirs]), gain, runs)


def _shape(row: dict[str, Any]) -> Hashable:
    """What tells shapes of a network apart without the shape itself, which a plain network's rows do not have."""
    return row["parameters"], row.get("macs")


def _largest(rows: list[dict[str, Any]], kind: str, size: float) -> list[dict[str, Any]]:
    """The rows, one a repeat, of the largest network of a kind that fits."""
    some = [row for row in rows if row["kind"] == kind and row["parameters"] <= size]
    best = max(some, key=lambda row: row["parameters"], default=None)
    return [] if best is None else [row for row in some if row["label"] == best["label"]]


def _first(rows: Rows) -> dict[str, Any]:
    return rows[0][0]


def _most(rows: Rows) -> float:
    return max(float(row["parameters"]) for run in rows for row in run)
