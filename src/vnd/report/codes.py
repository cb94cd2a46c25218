"""Auto-encoders as curves over the length of their code, and the figures of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vnd.metrics import Interval, confidence_interval
from vnd.report.canvas import BLUE, HALF, ORANGE, WIDE, canvas, legend, plain, tidy
from vnd.report.compare import styles
from vnd.report.families import labels_of
from vnd.report.figures import draw_curve
from vnd.report.runs import Run
from vnd.report.series import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EACH = "retrained"  # for each length
READINGS = {"posterior": "by image", "target": "by target"}
STYLES: dict[str, tuple[str, str, Any]] = {
    "VND-AE": ("#0072b2", "o", "-"),
    "VAE": ("#d55e00", "s", (0, (5, 1.5))),
    "BetaVAE": ("#009e73", "^", "-."),
    "JointVAE": ("#cc79a7", "X", ":"),
    "SWAE": ("#8a6d00", "v", (0, (3, 1, 1, 1))),
    "nested AE": ("#7a4b9a", "P", (0, (1, 1))),
}
PLAIN = ("mse", "summed", "rate", "distortion", "negative_elbo")  # measures whose names need no extractor
HEIGHT = 4.2


@dataclass(frozen=True)
class Point:
    """One length of a curve, or one reading that has a length for each image.

    Args:
        reading: "fixed", "posterior" or "target".
        length: Dimensions, of all images or on average.
        code: Dimensions of the whole code.
        measures: By name; those of features are called as their extractor calls them.
        runs: How many trainings.
    """

    reading: str
    length: float
    code: int
    measures: dict[str, Interval]
    runs: int


@dataclass(frozen=True)
class Curve:
    """Runs of one method and settings: seeds of one code, or of several codes, each trained for itself."""

    name: str
    method: str
    runs: tuple[Run, ...]
    points: tuple[Point, ...]

    def of(self, key: str, fixed: bool = True) -> list[Point]:
        """The points that have a measure: those of fixed lengths, or the others."""
        return [p for p in self.points if key in p.measures and (p.reading == "fixed") == fixed]

    @property
    def is_ordered(self) -> bool:
        """Whether its codes can be cut."""
        return bool(self.runs[0].results["kind"] == "ordered")

    @property
    def has_lengths(self) -> bool:
        """Whether its codes have a length for each image."""
        return bool(self.runs[0].results.get("lengths"))


def group(runs: Sequence[Run]) -> list[Curve]:
    """Curves of the runs of one data set and network, in the order of `NAMES`; those of unknown methods last.

    Runs of equal settings that differ in their seed are one curve, and where a network has one length, those of all
    lengths. Two with the same seed and code differ in something else: each is a curve.
    """
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    found = []
    for method in sorted(methods, key=lambda name: list(NAMES).index(name) if name in NAMES else len(NAMES)):
        parts = [part for alike in _alike(methods[method]) for part in _apart(alike)]
        for label, part in zip(labels_of(parts), parts, strict=True):
            name = NAMES.get(method, method)
            several = len({run.results["latent_dim"] for run in part}) > 1
            words = ", ".join(filter(None, (EACH if several else "", label)))
            found.append(curve(f"{name} ({words})" if words else name, part))
    return found


def curve(name: str, runs: Sequence[Run]) -> Curve:
    """The curve of some runs: what they measured at one length and reading is averaged."""
    rows: dict[tuple[str, float, int], list[tuple[dict[str, Any], dict[str, float]]]] = {}
    for run in runs:
        for row in run.rows:
            key = (row["length_rule"], row["length"] if row["length_rule"] == "fixed" else 0, run.results["latent_dim"])
            rows.setdefault(key, []).append((row, _measures(run.results, row)))
    points = []
    for (reading, _, code), own in rows.items():
        names = dict.fromkeys(name for _, measures in own for name in measures)
        found = {name: confidence_interval([m[name] for _, m in own if name in m]) for name in names}
        length = sum(row["length"] for row, _ in own) / len(own)
        points.append(Point(reading, length, code, found, len(own)))
    order = {"fixed": 0, "posterior": 1, "target": 2}
    points.sort(key=lambda point: (order[point.reading], point.length))
    return Curve(name, runs[0].method, tuple(runs), tuple(points))


def distances(curves: Sequence[Curve], key: str = "distance_name") -> list[str]:
    """What the Fréchet distances of some curves are called, one name an extractor; or their scores."""
    features = [run.results.get("features") or {} for own in curves for run in own.runs]
    return list(dict.fromkeys(one[key] for one in features if key in one))


def against_length(curves: Sequence[Curve], key: str, name: str) -> Figure:
    """A measure against the length of the code; hollow markers are inference with a length for each image."""
    figure, axis = canvas(HALF, HEIGHT)
    _over_lengths(axis, curves, key)
    axis.set_ylabel(name)
    legend(figure, axis)
    return figure


def rate_distortion(curves: Sequence[Curve]) -> Figure:
    """Distortion against rate, on the left, and the negative ELBO, which is their sum, against length."""
    figure, (left, right) = canvas(WIDE, HEIGHT, columns=2)
    looks = styles(curves, STYLES)
    for own in curves:
        for fixed in (True, False):
            known = [p for p in own.of("rate", fixed) if "distortion" in p.measures]
            places, values = ([p.measures[key].mean for p in known] for key in ("rate", "distortion"))
            _draw(left, places, values, known, own.name, looks[own.name], fixed)
    left.set_xlabel("rate (nats per image)")
    left.set_ylabel("distortion (nats per image)")
    tidy(left)
    _over_lengths(right, curves, "negative_elbo")
    right.set_ylabel("negative ELBO (nats per image)")
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    legend(figure, left, right)
    return figure


def lengths(results: dict[str, Any]) -> Figure:
    """How long the codes of images are, and on the right their lengths against the images' sizes as PNG files."""
    complexity = results.get("complexity")
    figure, axes = canvas(WIDE if complexity else HALF, HEIGHT, columns=2 if complexity else 1)
    left, *others = axes if complexity else [axes]
    from matplotlib.ticker import MaxNLocator

    for (name, counts), color, share in zip(results["lengths"].items(), (BLUE, ORANGE), (-0.2, 0.2), strict=False):
        total = sum(counts)
        places = [length + share for length in range(1, len(counts))]
        label = "_" if others else READINGS.get(name, name)  # once is enough
        left.bar(places, [100 * n / total for n in counts[1:]], 0.4, color=color, label=label)
        for right in others:
            said = complexity["correlation"].get(name)  # type: ignore[index]
            shown = complexity["shown"]  # type: ignore[index]
            if said is not None:
                label = f"{READINGS.get(name, name)}: Spearman {said['spearman']:.2f}, Pearson {said['pearson']:.2f}"
                marker = "o" if share < 0 else "^"
                right.plot(shown["png"], shown[name], marker, color=color, alpha=0.5, markersize=3.5, label=label)
    left.set(xlabel="length of the code (dimensions)", ylabel="images (%)")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(left)
    for right in others:
        right.yaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(xlabel="image as a PNG file (bytes)", ylabel="length of the code (dimensions)")
        tidy(right)
        figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    legend(figure, left, *others)
    return figure


def training(results: dict[str, Any]) -> Figure:
    """The error over the steps of training, and the rate in a panel of its own, since its scale is."""
    curves = results["curves"]
    has_rate = any(point.get("rate") is not None for point in curves)
    figure, axes = canvas(HALF, HEIGHT, columns=1, ratios=(2, 1) if has_rate else (1,))
    draw_curve(axes[0][0], curves, "mse", "mean squared error", BLUE, "-")
    axes[0][0].set_ylabel("error of a pixel")
    if has_rate:
        draw_curve(axes[1][0], curves, "rate", "rate", ORANGE, "--")
        axes[1][0].set_ylabel("rate (nats)")
        axes[0][0].tick_params(labelbottom=False)
    axes[-1][0].set_xlabel("step")
    legend(figure, *axes[:, 0])
    return figure


def _over_lengths(axis: Axes, curves: Sequence[Curve], key: str) -> None:
    looks = styles(curves, STYLES)
    for own in curves:
        for fixed in (True, False):
            known = own.of(key, fixed)
            values = [p.measures[key].mean for p in known]
            _draw(axis, [p.length for p in known], values, known, own.name, looks[own.name], fixed)
        some = [p for p in own.of(key) if p.measures[key].count > 1]
        for p in some:
            found = p.measures[key]
            axis.vlines(p.length, found.low, found.high, color=looks[own.name][0], linewidth=1.2)
    ticks = sorted({p.length for own in curves for p in own.of(key)})
    if ticks and len(ticks) <= 8:
        apart = [x for i, x in enumerate(ticks) if i + 1 == len(ticks) or ticks[i + 1] - x > 0.05 * ticks[-1]]
        axis.set_xticks(apart, [f"{x:g}" for x in apart])
    axis.set_xlim(left=0)
    axis.set_xlabel("length of the code (dimensions)")
    tidy(axis)


def _draw(
    axis: Axes,
    places: list[float],
    values: list[float],
    known: list[Point],
    name: str,
    style: tuple[str, str, Any],
    fixed: bool,
) -> None:
    """A line of fixed lengths; other inference are hollow markers, each with its words."""
    color, marker, line = style
    if fixed and places:
        look: dict[str, Any] = {"linestyle": line, "marker": marker, "markersize": 5.5 if len(places) > 1 else 8}
        axis.plot(places, values, color=color, label=plain(name, 60), linewidth=1.7, zorder=3, **look)
    for place, value, point in zip(places, values, known, strict=True) if not fixed else ():
        label = plain(f"{name}, {READINGS[point.reading]}", 70)
        shape = "*" if point.reading == "posterior" else "D"
        spot: dict[str, Any] = {"marker": shape, "markersize": 11 if shape == "*" else 6, "markerfacecolor": "white"}
        axis.plot([place], [value], color=color, linestyle="none", label=label, zorder=4, **spot)


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of equal settings; those that do not say theirs, by recipe. Codes that can be cut are of one length each."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        code = run.results["latent_dim"] if run.results["kind"] == "ordered" else 0
        features = (run.results.get("features") or {}).get("sha256")
        found.setdefault((run.settings, None if run.settings else run.recipe, code, features), []).append(run)
    return list(found.values())


def _apart(runs: list[Run]) -> list[list[Run]]:
    seen = [(run.seed, run.results["latent_dim"]) for run in runs]
    return [runs] if len(set(seen)) == len(seen) else [[run] for run in runs]


def _measures(results: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row by name."""
    found = {key: float(row[key]) for key in PLAIN if row.get(key) is not None}
    features = results.get("features") or {}
    for key, name in names_of(features).items():
        if row.get(key) is not None:
            found[name] = float(row[key])
    return found


def names_of(features: dict[str, Any]) -> dict[str, str]:
    """What measures of features are called, by their key in a row; with the extractor, so that no two are mixed."""
    if not features:
        return {}
    diversity = f"Diversity ({features['name']})"
    return {"frechet": features["distance_name"], "inception_score": features["score_name"], "diversity": diversity}
