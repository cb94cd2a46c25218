"""Series: runs that differ in their seed alone, read in one way, as points with intervals; and which runs are one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from vnd.metrics import Interval, confidence_interval
from vnd.report.results import Column, Run

FORMS = {"mc": "{}", "mean": "DT-{}", "mc_mask": "{}-MC", "temperature_scaled": "{}-TS"}  # names by way of inference
DRAWN = ("mc", "mean")  # one, where no weight is drawn
RULES = ("fixed", "posterior", "target")  # by which codes have their lengths
RETRAINED = "retrained"  # for each length
COMPARED = ("data", "network", "image")  # what a task may compare runs by
MARK = re.compile(r"(?<![0-9]e)-|[/ ]")  # between the words of a name; not within 1e-05
PLACES = ("repeat", "fraction", "bn_images", "temperature_scaled")  # numbers of a row that are no measures

Rows = list[list[dict[str, Any]]]  # of each run, of one way of inference


@dataclass(frozen=True)
class Point:
    """One size of a series."""

    kind: str  # "uniform", "learned" or "sampled"; of codes by which rule they have their length
    label: str  # what the size is called; of learned shapes, what the first run calls it
    fraction: float | None  # share of every layer; None where it is no such share
    measures: dict[str, Interval]  # means by name; `count` is 1 where there is nothing to take an interval over
    over: str  # what the intervals are over: "seeds", "repeats", or "" for none
    rows: Rows  # of each run

    def mean(self, key: str) -> float | None:
        """The mean of a measure; None where it was not measured."""
        return self.measures[key].mean if key in self.measures else None

    @property
    def parameters(self) -> float:
        """Of the network of this size; the mean where it varies."""
        return self.measures["parameters"].mean

    @property
    def length(self) -> float:
        """Of a code, the mean where it varies."""
        return self.measures["length"].mean

    @property
    def seeds(self) -> int:
        """Number of trainings that it rests on."""
        return len(self.rows)

    @property
    def is_drawn(self) -> bool:
        """True if each sample has a size of its own."""
        return self.kind == "sampled"


@dataclass(frozen=True)
class Series:
    """Runs of one method and settings, read in one way."""

    name: str
    inference: str
    main: bool
    runs: tuple[Run, ...]

    @property
    def method(self) -> dict[str, Any]:
        """Key, name and traits of its method."""
        return self.runs[0].method

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of its runs, by key."""
        return {key: column for run in reversed(self.runs) for key, column in run.columns.items()}

    @property
    def is_separate(self) -> bool:
        """True if each size was trained for itself."""
        return is_separate(self.method)

    @property
    def look(self) -> tuple[str, str, Any] | None:
        """Color, marker and line that its method declares for this way of inference."""
        declared = self.method.get("looks") or {}
        others = next(iter(declared.values()), None) if is_certain(self.method) and self.inference in DRAWN else None
        found = declared.get(self.inference) or others
        if found is None:
            return None
        line = found["line"]
        return found["color"], found["marker"], line if isinstance(line, str) else (line[0], tuple(line[1]))

    @cached_property
    def points(self) -> list[Point]:
        """The sizes, from the smallest to the largest; those that are drawn last."""
        return points_of([rows_of(run, self.inference) for run in self.runs], self.is_separate)

    @property
    def full(self) -> Point:
        """Its largest size; one that is drawn only where there is no other."""
        return next((point for point in reversed(self.points) if not point.is_drawn), self.points[-1])

    @property
    def dense(self) -> float:
        """Parameters of the largest network of its runs, however it is read; with the zeros, if any."""
        rows = [row for run in self.runs for row in run.rows]
        return float(max(row.get("dense_parameters") or row["parameters"] for row in rows))

    def of(self, *kinds: str, having: str = "") -> list[Point]:
        """The points of some kinds of size, all if none is named, that have a measure."""
        return [p for p in self.points if (not kinds or p.kind in kinds) and (not having or having in p.measures)]

    def parts(self, key: str) -> list[dict[str, Any]]:
        """Entries of its first run under a key, by size; with one training a size, the first of each."""
        runs = [run for run in self.runs if run.results.get(key)]
        found: dict[str, dict[str, Any]] = {}
        for run in runs if self.is_separate else runs[:1]:
            said = run.results[key]
            for row in said["rows"] if isinstance(said, dict) else said:
                found.setdefault(row["label"], row)
        return list(found.values())

    def first(self, key: str) -> Any:
        """Entry under a key of the first of its runs that has one; None where none does."""
        return next((run.results[key] for run in self.runs if run.results.get(key)), None)


@dataclass(frozen=True)
class Block:
    """Runs that can be compared: what they have in common, the data set first, and their series."""

    key: tuple[str, ...]
    runs: tuple[Run, ...]
    series: tuple[Series, ...]

    @property
    def name(self) -> str:
        """Name of what it is of."""
        return ", ".join(self.key)

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of its runs, by key."""
        return {key: column for own in reversed(self.series) for key, column in own.columns.items()}

    @property
    def sections(self) -> list[str]:
        """The parts of its page."""
        return list(dict.fromkeys(name for run in self.runs for name in run.results["sections"]))

    @property
    def points(self) -> list[tuple[Series, Point]]:
        """Every size of every series, with the series."""
        return [(own, point) for own in self.series for point in own.points]

    @property
    def main(self) -> list[Series]:
        """The series of main ways of inference."""
        return [own for own in self.series if own.main]

    def first(self, key: str) -> Any:
        """Entry under a key of the first run that has one; None where none does."""
        return next((run.results[key] for run in self.runs if run.results.get(key)), None)


def is_certain(method: dict[str, Any]) -> bool:
    """Tell if no weight is drawn: then draws and means are one."""
    return method.get("stochastic") is False


def is_separate(method: dict[str, Any]) -> bool:
    """Tell if a training has one size that was chosen before, so that runs of several sizes are one series."""
    return method.get("sizes") == "each"


def blocks_of(runs: Sequence[Run]) -> list[Block]:
    """One block for each key that its task compares by, in the order of the runs."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        parts = (str(getattr(run, name)) for name in run.results["task"]["compare"] if name in COMPARED)
        found.setdefault(tuple(filter(None, parts)), []).append(run)
    return [Block(key, tuple(own), tuple(group(own))) for key, own in found.items()]


def group(runs: Iterable[Run]) -> list[Series]:
    """Series of the runs of a block, in the order that methods declare; those that declare none last."""
    methods: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        methods[run.method["key"]].append(run)
    found: list[Series] = []
    for own in sorted(methods.values(), key=lambda own: own[0].method.get("rank", 10**6)):
        for label, family in sorted(families(own), key=lambda one: one[0] != ""):  # the one that needs no words first
            sizes = {row["latent_dim"] for run in family for row in run.rows if "latent_dim" in row}
            words = ", ".join(filter(None, (RETRAINED * (len(sizes) > 1), label)))
            found += _by_inference(f" ({words})" if words else "", tuple(family))
    return found


def families(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Runs of a method that belong together, each family with what tells it apart; no words where there is no need.

    Runs of equal settings that differ in their seed are one family, and with one training a size, those of all sizes.
    Files that do not say their settings go by recipe. Runs that would be one and have the same seed at the same size
    differ in something else: each is a family.
    """
    older = [run for run in runs if run.settings is None]
    together = is_separate(runs[0].method) and not _clash(older)
    alike: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        other = ("together",) if together else ("recipe", run.recipe)
        own = other if run.settings is None else ("settings", run.settings)
        features = (run.results.get("features") or {}).get("sha256")
        alike[own, None if is_separate(run.method) else run.results.get("latent_dim"), features].append(run)
    parts: list[list[Run]] = []
    for family in alike.values():
        parts += [[run] for run in family] if _clash(family) else [family]
    return list(zip(labels_of(parts), parts, strict=True))


def display(method: dict[str, Any], inference: str) -> str:
    """Name a method when its inference is a given one.

    >>> names = {"key": "b", "name": "BN³"}
    >>> display(names, "mean"), display(names | {"stochastic": False}, "mean"), display(names, "temperature_scaled")
    ('DT-BN³', 'BN³', 'BN³-TS')
    """
    form = "mc" if is_certain(method) and inference == "mean" else inference
    return FORMS[form].format(method["name"])


def rows_of(run: Run, inference: str, bn_images: int | None = -1) -> list[dict[str, Any]]:
    """The rows of a run, read in one way; for BatchNorm as many images as its first has, unless told."""
    rows = [row for row in run.rows if row["inference"] == inference]
    if bn_images == -1 and rows:
        bn_images = rows[0].get("bn_images")
    return [row for row in rows if row.get("bn_images") == bn_images]


def points_of(runs: Rows, separate: bool = False) -> list[Point]:
    """The sizes of runs that differ in their seed alone, from the smallest to the largest.

    Learned shapes are called otherwise in every run, so the i-th smallest of each are one size; not where runs are
    `separate`, with a size of its own each.
    """
    shapes = [[row for row in rows if row["kind"] == "learned"] for rows in runs]
    names = [dict.fromkeys(row["label"] for row in sorted(some, key=lambda row: row["parameters"])) for some in shapes]
    ranks = [{label: rank for rank, label in enumerate(own)} for own in names]
    by_rank = not separate and len({len(names) for names in ranks if names}) == 1
    sizes: dict[Hashable, Rows] = {}
    for rows, rank in zip(runs, ranks, strict=True):
        own: dict[Hashable, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            learned = row["kind"] == "learned" and by_rank
            own[(row["kind"], rank[row["label"]] if learned else size_of(row, separate))].append(row)
        for key, repeats in own.items():
            sizes.setdefault(key, []).append(repeats)
    return sorted(map(point_of, sizes.values()), key=_place)


def point_of(runs: Rows) -> Point:
    """One size, of the rows of each run; repeats are averaged before runs are compared."""
    first = runs[0][0]
    over = "seeds" if len(runs) > 1 else "repeats" if len(runs[0]) > 1 else ""
    measures = {}
    pairs = ((key, value) for rows in runs for row in rows for key, value in row.items() if key not in PLACES)
    numbers = (key for key, value in pairs if isinstance(value, int | float) and not isinstance(value, bool))
    for key in dict.fromkeys(numbers):
        known = [[row[key] for row in rows if row.get(key) is not None] for rows in runs]
        means = [sum(values) / len(values) for values in known if values]
        measures[key] = confidence_interval(known[0] if over == "repeats" else means)
    return Point(first["kind"], first["label"], first.get("fraction"), measures, over, runs)


def size_of(row: dict[str, Any], separate: bool = False) -> Hashable:
    """Key of the size of a row among others of its kind: its length, its share of every layer, or its label."""
    if "length" in row:
        return (row["length"] if row["kind"] == RULES[0] else 0, row["latent_dim"])
    if row.get("fraction") is not None:
        return round(float(row["fraction"]), 6)
    return (row["label"], row["parameters"]) if separate else str(row["label"])


def differences(labels: Sequence[str]) -> list[str]:
    """Labels without the words that all of them have; one of them may be those alone, and needs no words.

    >>> differences(["cifar10/vgg11-bn3", "cifar10/vgg11-bn3-sandwich"]), differences(["a-lr=1e-05", "a-lr=1e-06"])
    (['', 'sandwich'], ['lr=1e-05', 'lr=1e-06'])
    """
    words = [MARK.split(label) for label in labels]
    common = set(words[0]).intersection(*words)
    found = ["-".join(word for word in own if word not in common).strip("-_, ") for own in words]
    return found if len(set(found)) == len(found) else list(labels)


def numbered(names: Sequence[str], between: str) -> list[str]:
    """Names that are all different: the second of two equal ones has a number behind it.

    >>> numbered(["a", "b", "a", "a"], "-")
    ['a', 'b', 'a-2', 'a-3']
    """
    found: list[str] = []
    for name in names:
        others = (f"{name}{between}{number}".removeprefix(", ") if number > 1 else name for number in count(1))
        found.append(next(other for other in others if other not in found))
    return found


def labels_of(parts: Sequence[list[Run]]) -> list[str]:
    """Labels that tell families apart: recipes, else what differs in the names of their folders, else a number."""
    stems = [_stem(part) for part in parts]
    for labels in ([part[0].recipe or "" for part in parts], stems, [part[0].name for part in parts]):
        if "" not in labels and len(set(labels)) == len(labels):
            return differences(labels)
    short = dict(zip(dict.fromkeys(stems), differences(list(dict.fromkeys(stems))), strict=True))
    return numbered([short[stem] for stem in stems], ", no. ")


def _by_inference(added: str, runs: tuple[Run, ...]) -> list[Series]:
    present = dict.fromkeys(row["inference"] for run in runs for row in run.rows)
    method, main = runs[0].method, runs[0].inference
    if is_certain(method) and set(DRAWN) <= set(present):
        present.pop(DRAWN[main == DRAWN[0]])
    found = []
    for inference in (one for one in FORMS if one in present):
        own = tuple(run for run in runs if any(row["inference"] == inference for row in run.rows))
        found.append(Series(display(method, inference) + added, inference, inference == main, own))
    return found


def _clash(runs: Sequence[Run]) -> bool:
    """Tell if two runs have one seed and a size in common."""
    sizes = [{(run.seed, row["kind"], size_of(row, is_separate(run.method))) for row in run.rows} for run in runs]
    return len(set().union(*sizes)) < sum(map(len, sizes))


def _stem(part: Sequence[Run]) -> str:
    """Common part of the names of a family's folders, without seed and hash."""
    names = [re.sub(rf"-{run.seed}(-[0-9a-f]{{8}})?$", "", run.name) for run in part]
    first, *others = [name.split("-") for name in names]
    return "-".join(word for word in first if all(word in other for other in others)) or names[0]


def _place(point: Point) -> tuple[float, ...]:
    rule = RULES.index(point.kind) if point.kind in RULES else 0
    size = point.mean("length") or point.mean("parameters") or 0
    return (point.is_drawn, rule, size, 1.0 if point.fraction is None else point.fraction)
