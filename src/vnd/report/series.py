"""Series of a comparison: runs that differ in their seed alone, read in one way, as points with intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vnd.metrics import Interval, confidence_interval
from vnd.report.families import SEPARATE, families, size_of
from vnd.report.runs import Run

# Names in figures, in the order of legends and tables.
NAMES = {
    "bn3": "BN³", "fn3": "FN³", "ibnn": "IBNN", "svb": "SVB", "ordered_l0": "ordered ℓ0", "us_net": "US-Net",
    "plain": "plain", "sn3": "SN³", "vnd_ae": "VND-AE", "vae": "VAE", "beta_vae": "BetaVAE", "joint_vae": "JointVAE",
    "swae": "SWAE", "nested_ae": "nested AE", "vnd_punet": "VND-PUNet", "bn3_unet": "BN³-UNet", "punet": "P-UNet",
    "unet_ensemble": "UNet ensemble", "dropout_unet": "dropout UNet",
}  # fmt: skip
FORMS = {"mc": "{}", "mean": "DT-{}", "mc_mask": "{}-MC", "temperature_scaled": "{}-TS"}
CERTAIN = ("fn3", "ordered_l0", "us_net", "plain")  # weights that are not drawn: samples and means are one
MEASURES = (
    *("accuracy", "nll", "brier", "ece", "classwise_ece", "adaptive_ece", "batch_ece", "auroc", "aupr", "fpr95"),
    "aurc",
)
COSTS = (
    *("parameters", "macs", "bytes", "latency_ms", "test_seconds", "base_rate", "usage_std", "dense_parameters"),
    "temperature",
)

Rows = list[list[dict[str, Any]]]  # of each run, of one reading


@dataclass(frozen=True)
class Point:
    """One size of a series.

    Args:
        kind: "uniform", "learned" or "sampled".
        label: What the size is called; of learned shapes, what the first run calls it.
        fraction: Share of every layer; None where it is no such share.
        measures: How good it is; `count` of an interval is 1 where there is nothing to take one over.
        costs: What it costs, means over runs and repeats.
        over: What the intervals are over: "seeds", "repeats", or "" for none.
    """

    kind: str
    label: str
    fraction: float | None
    measures: dict[str, Interval]
    costs: dict[str, float]
    over: str

    @property
    def parameters(self) -> float:
        """Of the network of this size; the mean where it varies."""
        return self.costs["parameters"]


@dataclass(frozen=True)
class Series:
    """Runs of one method and settings, read in one way."""

    name: str
    method: str
    reading: str
    main: bool
    runs: tuple[Run, ...]

    @cached_property
    def sizes(self) -> list[Rows]:
        """The rows of each size, from the smallest to the largest, those of each run together."""
        return by_size([read_as(run, self.reading) for run in self.runs], separate=self.method in SEPARATE)

    @cached_property
    def points(self) -> list[Point]:
        """The sizes, from the smallest to the largest."""
        return [point_of(size) for size in self.sizes]

    def parts(self, key: str) -> list[dict[str, Any]]:
        """What its first run says of sizes under a key; with one training a width, the first of each width."""
        runs = [run for run in self.runs if run.results.get(key)]
        found: dict[str, dict[str, Any]] = {}
        for run in runs if self.method in SEPARATE else runs[:1]:
            said = run.results[key]
            for row in said["rows"] if isinstance(said, dict) else said:
                found.setdefault(row["label"], row)
        return list(found.values())

    def of(self, kind: str) -> list[Point]:
        """The points of a kind of size."""
        return [point for point in self.points if point.kind == kind]

    @property
    def full(self) -> float:
        """Parameters of the largest network of its runs, whatever the reading; with the zeros, if any."""
        rows = [row for run in self.runs for row in run.rows]
        return float(max(row.get("dense_parameters") or row["parameters"] for row in rows))


def group(runs: Iterable[Run]) -> list[Series]:
    """Series of the runs of one data set and network, in the order of `NAMES`; those of unknown methods last.

    Which runs are one series, `families` says.
    """
    methods: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        methods[run.method].append(run)
    order = sorted(methods, key=lambda name: list(NAMES).index(name) if name in NAMES else len(NAMES))
    found: list[Series] = []
    for method in order:
        named = families(method, methods[method])
        for label, family in sorted(named, key=lambda one: one[0] != ""):  # the one that needs no words first
            found += _readings(NAMES.get(method, method), f" ({label})" if label else "", method, tuple(family))
    return found


def answering(series: Sequence[Series]) -> list[Series]:
    """The series whose answers differ: a scaled reading has those of another one of its runs, and other confidences."""
    other = {run.path for own in series if own.reading != "temperature_scaled" for run in own.runs}
    return [
        own for own in series if own.reading != "temperature_scaled" or any(run.path not in other for run in own.runs)
    ]


def display(name: str, method: str, reading: str) -> str:
    """What a method is called when it is read in some way.

    >>> display("BN³", "bn3", "mean"), display("FN³", "fn3", "mean"), display("FN³", "fn3", "temperature_scaled")
    ('DT-BN³', 'FN³', 'FN³-TS')
    """
    return name if method in CERTAIN and reading == "mean" else FORMS[reading].format(name)


def read_as(run: Run, reading: str, calibration: int | None = -1) -> list[dict[str, Any]]:
    """The rows of a run of one reading; for BatchNorm as many images as its first has, unless told."""
    rows = [row for row in run.rows if row["inference"] == reading]
    if calibration == -1 and rows:
        calibration = rows[0].get("bn_images")
    return [row for row in rows if row.get("bn_images") == calibration]


def by_size(runs: Rows, separate: bool = False) -> list[Rows]:
    """The rows of runs that differ in their seed alone, by size, from the smallest to the largest.

    Learned shapes are called otherwise in every run, so the i-th smallest of each are one size.

    Args:
        runs: Their rows.
        separate: Each run has a size of its own: no i-th smallest of it is that of another.
    """
    ranks = [{label: rank for rank, label in enumerate(_learned(rows))} for rows in runs]
    by_rank = not separate and len({len(names) for names in ranks if names}) == 1
    sizes: dict[Hashable, Rows] = {}
    for rows, rank in zip(runs, ranks, strict=True):
        own: dict[Hashable, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            learned = row["kind"] == "learned" and by_rank
            own[(row["kind"], rank[row["label"]] if learned else size_of(row, separate))].append(row)
        for key, repeats in own.items():
            sizes.setdefault(key, []).append(repeats)
    return sorted(sizes.values(), key=lambda size: point_of(size).parameters)


def point_of(runs: Rows) -> Point:
    """One size, of the rows of each run; repeats are averaged before runs are compared."""
    first = runs[0][0]
    over = "seeds" if len(runs) > 1 else "repeats" if len(runs[0]) > 1 else ""
    measures, costs = {}, {}
    for key in MEASURES + COSTS:
        known = [[row[key] for row in rows if row.get(key) is not None] for rows in runs]
        means = [sum(values) / len(values) for values in known if values]
        if not means:
            continue
        values = known[0] if over == "repeats" else means
        if key in COSTS:
            costs[key] = sum(means) / len(means)
        else:
            measures[key] = confidence_interval(values)
    return Point(first["kind"], first["label"], first.get("fraction"), measures, costs, over)


def _learned(rows: list[dict[str, Any]]) -> list[str]:
    """Labels of the learned shapes of a run, from the smallest to the largest."""
    shapes = [row for row in rows if row["kind"] == "learned"]
    return list(dict.fromkeys(row["label"] for row in sorted(shapes, key=lambda row: row["parameters"])))


def _readings(name: str, added: str, method: str, runs: tuple[Run, ...]) -> list[Series]:
    present = dict.fromkeys(row["inference"] for run in runs for row in run.rows)
    main = (runs[0].results.get("inference") or [runs[0].rows[0]["inference"]])[0]
    if method in CERTAIN and "mc" in present and "mean" in present:
        present.pop("mean" if main == "mc" else "mc")
    order = [reading for reading in FORMS if reading in present]
    found = []
    for reading in order:
        own = tuple(run for run in runs if any(row["inference"] == reading for row in run.rows))
        found.append(Series(display(name, method, reading) + added, method, reading, reading == main, own))
    return found
