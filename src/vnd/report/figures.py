"""Figures of a run: each takes the contents of `results.json` (see `results.read`) and returns a matplotlib figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vnd._text import short
from vnd.report.canvas import (
    BLUE,
    GREEN,
    HALF,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    WIDE,
    canvas,
    legend,
    plain,
    size_axis,
    tidy,
)
from vnd.report.results import chosen_row, full_row
from vnd.report.trust import answers, cascade_panel, selective_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {
    "uniform": ("the same share of every layer", BLUE, "o", "-"),
    "learned": ("learned shape", ORANGE, "D", "--"),
    "sampled": ("a random mask each time", PURPLE, "*", ":"),
}
EXAMPLES = {"most_certain": "Most certain", "least_certain": "Least certain", "ood": "Out of domain"}
COLUMNS = 8
PIXELS = 96  # a larger example is thinned: it is shown small
FEW = 20  # predictions in a bin, or points of a curve: accuracy is mostly chance, a line is hard to see


def accuracy(results: dict[str, Any]) -> Figure:
    """Accuracy against size, uniform widths and learned shapes; the full size as a line, the chosen network ringed."""
    figure, axis = canvas(HALF, 4.2)
    _against_size(axis, results, "accuracy", 100)
    full = 100 * full_row(results)["accuracy"]
    axis.axhline(full, color=MUTED, linewidth=1, linestyle=":", label=f"full size: {full:.1f} %", zorder=1)
    axis.set_ylabel("accuracy (% of images)")
    legend(figure, axis)
    return figure


def detection(results: dict[str, Any]) -> Figure:
    """AUROC of telling out-of-domain inputs from in-domain ones, against size."""
    figure, axis = canvas(HALF, 4.2)
    _against_size(axis, results, "auroc", 100)
    axis.set_ylabel("AUROC, unfamiliar images against own (%)")
    legend(figure, axis)
    return figure


def calibration(results: dict[str, Any]) -> Figure:
    """Expected calibration error and negative log-likelihood against size."""
    figure, axes = canvas(WIDE, 4.0, columns=2)
    _against_size(axes[0], results, "ece", 100)
    _against_size(axes[1], results, "nll", 1)
    axes[0].set_ylabel("calibration error, ECE (%)")
    axes[1].set_ylabel("negative log-likelihood (nats per image)")
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylim(bottom=0)
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    legend(figure, axes[0])
    return figure


def survival(results: dict[str, Any]) -> Figure:
    """Probability that each unit is kept, one row a layer, with the expected number of units beside it."""
    layers: dict[str, list[float]] = results["survival"]
    units = max(len(probs) for probs in layers.values())
    table = np.full((len(layers), units), np.nan)
    for row, probs in enumerate(layers.values()):
        table[row, : len(probs)] = probs
    figure, axis = canvas(WIDE, 1.5 + 0.3 * len(layers))
    edges = np.arange(units + 1) + 0.5
    mesh = axis.pcolormesh(edges, np.arange(len(layers) + 1) - 0.5, np.ma.masked_invalid(table), vmin=0, vmax=1)
    mesh.set(cmap="cividis", edgecolor="white", linewidth=0.6)
    axis.set_yticks(range(len(layers)), [plain(name, 28) for name in layers])
    axis.invert_yaxis()
    axis.set_xticks([unit for unit in range(1, units + 1) if unit == 1 or unit % _step(units) == 0])
    axis.set_xlabel("unit, in the order learned (a unit is a group of channels)", color=INK, fontsize=10)
    expected = axis.secondary_yaxis("right")
    expected.set_yticks(range(len(layers)), [f"{sum(probs):.1f} of {len(probs)}" for probs in layers.values()])
    expected.set_ylabel("units kept on average", color=INK, fontsize=10)
    bar = figure.colorbar(mesh, ax=axis, pad=0.02, aspect=max(8, 3 * len(layers)))
    bar.set_label("P(unit is kept)", color=INK, fontsize=10)
    for scale in (axis, expected, bar.ax):
        scale.tick_params(colors=INK, labelsize=9, length=0)
        for spine in scale.spines.values():
            spine.set_visible(False)
    bar.outline.set_visible(False)
    return figure


def reliability(results: dict[str, Any]) -> Figure:
    """Accuracy in each bin of confidence, and how many predictions it holds, for each width given."""
    widths = results["reliability"]
    figure, axes = canvas(WIDE, 4.8, columns=len(widths), ratios=(3, 1))
    for column, width in enumerate(widths):
        _draw_reliability(axes[0][column], axes[1][column], width)
    for row, name in enumerate(("images right (%)", "images")):
        axes[row][0].set_ylabel(name)
    legend(figure, *axes[0])
    return figure


def selective(results: dict[str, Any]) -> Figure:
    """Errors among the answers given against the share of images answered, of the sizes that were looked at closely."""
    figure, axis = canvas(HALF, 4.2)
    found = results["selective"]
    selective_panel(axis, answers(found["rows"]), found["risk"])
    axis.set_ylabel("wrong among these (%)")
    axis.set_ylim(bottom=0)
    return figure


def cascade(results: dict[str, Any]) -> Figure:
    """Accuracy against the mean cost of an answer, of narrow networks first, beside each width for itself."""
    figure, axis = canvas(HALF, 4.2)
    cascade_panel(axis, results["cascade"])
    axis.set_ylabel("accuracy (% of images)")
    return figure


def examples(results: dict[str, Any]) -> Figure:
    """The images the network is most and least certain of, and foreign ones, with prediction and confidence."""
    groups = {name: group[:COLUMNS] for name in EXAMPLES if (group := results["examples"].get(name))}
    columns = max(len(group) for group in groups.values())
    figure, axes = canvas(1.35 * max(columns, 4), 2.15 * len(groups), columns=columns, ratios=(1,) * len(groups))
    for row, (name, group) in zip(axes, groups.items(), strict=True):
        for axis in row:
            axis.set_axis_off()
        for axis, example in zip(row, group, strict=False):
            _draw_example(axis, example, foreign=name == "ood")
        row[0].text(0, 1.1, EXAMPLES[name], transform=row[0].transAxes, color=INK, fontsize=11, weight="bold")
    return figure


def training(results: dict[str, Any]) -> Figure:
    """The loss and its parts over the steps of training; the KL term in a panel of its own, since its scale is."""
    curves = results["curves"]
    has_kl = any(point.get("kl") is not None for point in curves)
    figure, axes = canvas(HALF, 4.2, columns=1, ratios=(2, 1) if has_kl else (1,))
    draw_curve(axes[0][0], curves, "loss", "loss", BLUE, "-")
    draw_curve(axes[0][0], curves, "nll", "negative log-likelihood", ORANGE, "--")
    axes[0][0].set_ylabel("nats per image")
    if has_kl:
        draw_curve(axes[1][0], curves, "kl", "KL term", GREEN, "-.")
        axes[1][0].set_ylabel("KL (nats)")
        axes[0][0].tick_params(labelbottom=False)
    axes[-1][0].set_xlabel("step")
    legend(figure, axes[0][0])
    return figure


def _against_size(axis: Axes, results: dict[str, Any], key: str, factor: float) -> None:
    """One measure against the number of parameters, the kinds of width as series; rows without the measure left out."""
    rows = sorted((row for row in results["rows"] if row.get(key) is not None), key=lambda row: row["parameters"])
    for kind, (label, color, marker, line) in KINDS.items():
        series = [row for row in rows if row["kind"] == kind]
        if series:
            sizes, values = [row["parameters"] for row in series], [factor * row[key] for row in series]
            axis.plot(sizes, values, color=color, marker=marker, linestyle=line, label=label, markersize=5, zorder=3)
    chosen = chosen_row(results)
    if chosen is not None and chosen.get(key) is not None:
        label = f"chosen: {plain(chosen['label'], 20)}, {short(chosen['parameters'])} parameters"
        spot: dict[str, Any] = {
            "marker": "o",
            "markersize": 13,
            "markerfacecolor": "none",
            "markeredgewidth": 2,
            "linestyle": "none",
        }
        axis.plot(chosen["parameters"], factor * chosen[key], color=GREEN, label=label, zorder=4, **spot)
    size_axis(axis, [row["parameters"] for row in rows])
    tidy(axis)


def _draw_reliability(diagram: Axes, counts: Axes, width: dict[str, Any]) -> None:
    number = np.asarray(width["count"], dtype=float)
    sure, right = (np.nan_to_num(np.asarray(width[key], dtype=float)) for key in ("confidence", "accuracy"))
    bins, some = len(number), number > 0
    left = np.arange(bins) / bins * 100
    gap = float((number * abs(sure - right)).sum() / max(number.sum(), 1))
    style: dict[str, Any] = {"width": 94 / bins, "align": "edge"}
    for shown, strength, label in (
        (number >= FEW, 1.0, "images right"),
        (some & (number < FEW), 0.35, f"the same, of fewer than {FEW} images"),
    ):
        if shown.any():  # or the legend has a wrong colour for nothing
            diagram.bar(left[shown], 100 * right[shown], color=BLUE, alpha=strength, label=label, **style)
    dashes = diagram.hlines(100 * sure[some], left[some], left[some] + style["width"], color=ORANGE, linewidth=2.2)
    dashes.set_label("mean confidence")
    diagram.plot((0, 100), (0, 100), color=MUTED, linestyle=":", linewidth=1.2, label="perfectly calibrated")
    diagram.set(xlim=(0, 100), ylim=(0, 102))
    diagram.set_title(f"{plain(width['label'], 24)}: ECE {100 * gap:.1f} %", color=INK, fontsize=11, loc="left")
    diagram.tick_params(labelbottom=False)
    counts.bar(left, number, color=MUTED, **style)
    counts.set(xlim=(0, 100), xlabel="confidence (%)")
    for axis in (diagram, counts):
        axis.set_xticks((0, 20, 40, 60, 80, 100))
        tidy(axis)


def _draw_example(axis: Axes, example: dict[str, Any], foreign: bool) -> None:
    image = np.asarray(example["image"], dtype=np.uint8)
    thin = math.ceil(max(image.shape[:2]) / PIXELS)
    axis.imshow(image[::thin, ::thin], cmap="gray", vmin=0, vmax=255, interpolation="none")
    prediction, label = str(example["prediction"]), example.get("label")
    right = prediction == str(label)
    mark = "?" if foreign else "✓" if right else "✗"
    lines = [f"{mark} {plain(prediction, 13)}", f"{100 * example['confidence']:.1f} % sure"]
    if not right and label:
        lines.append(f"is {plain(str(label), 14)}")
    color = PURPLE if foreign else INK if right else ORANGE
    for index, line in enumerate(lines):  # one by one, or the baselines differ from image to image
        place: dict[str, Any] = {
            "xycoords": "axes fraction",
            "xytext": (0, -11 - 11 * index),
            "textcoords": "offset points",
        }
        axis.annotate(line, (0, 0), color=color, fontsize=8.5, **place)


def draw_curve(axis: Axes, curves: list[dict[str, Any]], key: str, label: str, color: str, line: str) -> None:
    """A running mean over the points themselves, pale; a few points are drawn as they are."""
    points = [(point["step"], point[key]) for point in curves if point.get(key) is not None]
    if not points:
        return
    steps, values = np.asarray(points, dtype=float).T
    window = max(1, len(values) // 40)
    if window > 1:
        axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        values = np.convolve(values, np.ones(window) / window, "valid")
        steps = steps[window // 2 :][: len(values)]
    marker = "o" if len(values) <= FEW else ""  # a line of one point cannot be seen
    axis.plot(steps, values, color=color, linestyle=line, marker=marker, markersize=3, label=label)
    tidy(axis)


def _step(units: int) -> int:
    return next(step for step in (1, 2, 4, 8, 16, 32, units) if units / step <= 34)
