"""What a comparison says: the points of every series, who is best where, sizes and times; for pages and for files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from vnd.metrics import confidence_interval
from vnd.report.compare import AXES
from vnd.report.families import SEPARATE, size_of
from vnd.report.runs import Run
from vnd.report.series import CERTAIN, COSTS, MEASURES, Point, Series, answering

QUARTER, WHOLE, NEAR = 0.25, 1.0, 0.011
READING = {
    "mc": "draws of the weights",
    "mean": "means of the weights",
    "mc_mask": "random masks",
    "temperature_scaled": "scaled",
}
SPARSE = ("svb",)  # one size, found by training: no width that others have as well


@dataclass(frozen=True)
class Block:
    """The runs of one data set and one network, which can be compared."""

    data: str
    network: str
    runs: tuple[Run, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Lead:
    """Who is best in a measure, who is next, and whether their difference is more than chance may make.

    `verdict` is "alone" (there is no other), "apart" (their intervals do not meet), "overlap", or "single" (one has no
    interval).
    """

    best: Series
    point: Point
    next: Series | None
    runner: Point | None
    verdict: str


def places(block: Block) -> dict[str, dict[str, Point]]:
    """The points of a block that its summary speaks of, by place and by series.

    "smallest" is the narrowest of the widths, where there are several; "one size" what has no others.
    """
    found: dict[str, dict[str, Point]] = {"full": {}, "quarter": {}, "smallest": {}, "one size": {}}
    for own in block.series:
        widths = [point for point in own.of("uniform") if point.fraction is not None]
        if own.method in SPARSE or not widths:
            if len(own.points) == 1:
                found["one size"][own.name] = own.points[0]
            continue
        for place, share in (("full", WHOLE), ("quarter", QUARTER)):
            near = min(widths, key=lambda point: abs((point.fraction or 0) - share))
            if abs((near.fraction or 0) - share) < NEAR:
                found[place][own.name] = near
        if len(widths) > 1:
            found["smallest"][own.name] = min(widths, key=lambda point: point.fraction or 0)
    return {place: points for place, points in found.items() if points}


def comparable(points: dict[str, Point]) -> bool:
    """Whether points are of one width, so that the best of them is best at something."""
    shares = [point.fraction for point in points.values()]
    return None not in shares and max(shares) - min(shares) < 2 * NEAR  # type: ignore[operator, type-var]


def lead(block: Block, points: dict[str, Point], key: str) -> Lead | None:
    """The best of some points in a measure; None where none has it. Of accuracy, scaled answers are no others."""
    some = [own for own in block.series if own.name in points and key in points[own.name].measures]
    named = [(own, points[own.name]) for own in (answering(some) if key == "accuracy" else some)]
    if not named:
        return None
    sign = -1 if AXES[key][2] else 1
    (best, point), *rest = sorted(named, key=lambda pair: sign * pair[1].measures[key].mean)
    if not rest:
        return Lead(best, point, None, None, "alone")
    first, second = point.measures[key], rest[0][1].measures[key]
    if min(first.count, second.count) < 2:
        verdict = "single"
    else:
        verdict = "overlap" if first.low <= second.high and second.low <= first.high else "apart"
    return Lead(best, point, *rest[0], verdict)


def efficiency(block: Block) -> list[dict[str, Any]]:
    """What little networks can do, and what they use; the order is the paper's.

    Paper: the table of performance with limited parameters. `usage` is of the method's own largest network.
    """
    lines: list[tuple[int, str, Series, Point]] = []
    for own in block.series:
        if own.reading == "temperature_scaled":
            continue  # other confidences, not another network
        rank = {"bn3": 0 if own.main else 5, "svb": 1}.get(own.method, 4)
        uniform, learned = own.of("uniform"), own.of("learned") if own.main else []
        lines += [(rank, f"smallest {own.name}" if len(uniform) > 1 else own.name, own, p) for p in uniform[:1]]
        lines += [(rank, f"smallest learned {own.name}", own, p) for p in learned[:1]]
        lines += [(2, own.name, own, p) for p in own.of("sampled")]
        if own.method == "bn3" and own.main:
            lines += [(3, f"full {own.name}", own, p) for p in uniform[-1:] if len(uniform) > 1]
    return [{"name": name, **_used(own, point)} for _, name, own, point in sorted(lines, key=lambda line: line[0])]


def times(block: Block) -> list[dict[str, Any]]:
    """What training and testing took, one line a series; with one training a width, the sum over widths.

    Paper: the table of training and testing time. `train` is null where a file does not say.
    """
    found = []
    for own in block.series:
        trained: dict[Any, list[float | None]] = {}
        for run in own.runs:
            size = size_of(run.rows[0], separate=True) if own.method in SEPARATE else ""
            trained.setdefault(size, []).append((run.results.get("seconds") or {}).get("train"))
        said = [[value for value in values if value is not None] for values in trained.values()]
        known = [sum(values) / len(values) for values in said if values]
        tested = [point for point in own.points if "test_seconds" in point.costs and point.kind != "learned"]
        widest = max(tested, key=lambda point: point.parameters, default=None)
        found.append(
            {
                "name": own.name,
                "inference": "one pass"
                if own.method in CERTAIN and own.reading != "temperature_scaled"
                else READING[own.reading],
                "train": sum(known) if len(known) == len(trained) else None,
                "trainings": len(trained),
                "runs": len(own.runs),
                "test": widest.costs["test_seconds"] if widest else None,
                "test_label": widest.label if widest else None,
                "machine": ", ".join(dict.fromkeys(run.results.get("machine") or "not said" for run in own.runs)),
            }
        )
    return found


def withheld(block: Block) -> list[dict[str, Any]]:
    """Coverage and risk at the fitted thresholds, means over runs; `never` counts runs without a threshold."""
    found = []
    for own in block.series:
        if not own.main:
            continue
        rows: dict[tuple[str, float], list[dict[str, Any]]] = {}
        for run in own.runs:
            said = run.results.get("selective") or {"rows": []}
            for row in said["rows"]:
                rows.setdefault((row["label"], said["risk"]), []).append(row)
        for (label, target), same in rows.items():
            line: dict[str, Any] = {"name": own.name, "label": label, "target": target, "runs": len(same)}
            for key in ("coverage", "risk", "aurc"):
                values = [row[key] for row in same if row.get(key) is not None]
                line[key] = confidence_interval(values) if values else None
            found.append(line | {"never": sum(row.get("threshold") is None for row in same)})
    return found


def rows(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Every point of every series, flat: what the figures draw."""
    found = []
    for block in blocks:
        for own in block.series:
            for point in own.points:
                line: dict[str, Any] = {
                    "data": block.data, "network": block.network, "series": own.name, "method": own.method,
                    "inference": own.reading, "kind": point.kind, "label": point.label, "fraction": point.fraction,
                    "runs": len(own.runs), "interval_over": point.over,
                }  # fmt: skip
                line |= {key: point.costs.get(key) for key in COSTS}
                for key in MEASURES:
                    interval = point.measures.get(key)
                    line[key] = interval.mean if interval else None
                    for side in ("low", "high"):
                        line[f"{key}_{side}"] = getattr(interval, side) if interval and interval.count > 1 else None
                found.append(line)
    return found


def as_csv(lines: list[dict[str, Any]]) -> str:
    """Flat rows as CSV; what is not known is empty, and no text can pass for a formula of a spreadsheet."""
    text = StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: _safe(value) for key, value in line.items()})
    return text.getvalue()


def _safe(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _used(own: Series, point: Point) -> dict[str, Any]:
    full = point.costs.get("dense_parameters") or own.full
    std = point.costs.get("usage_std")
    return {
        "label": point.label,
        "over": point.over,
        **{key: point.measures.get(key) for key in ("accuracy", "ece", "auroc", "aupr")},
        "base_rate": point.costs.get("base_rate"),
        "parameters": point.parameters,
        "usage": point.parameters / full,
        "usage_std": None if std is None else std / full,
    }
