"""Figures of single studies: lengths of layers, uncertainties of widths, answers withheld, narrow networks first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vnd.report import theory
from vnd.report.canvas import BLUE, INK, MUTED, panels, plain, tidy, title
from vnd.report.compare import styles
from vnd.report.series import Series
from vnd.report.trust import answers, cascade_panel, selective_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 12  # widths whose correlations are written out


def length_probs(survival: Sequence[float]) -> list[float]:
    r"""$P(\text{length} = j)$ for j = 0 … n, from $P(\text{unit } j \text{ is kept})$: differences of neighbours.

    >>> length_probs([1.0, 0.75, 0.25])
    [0.0, 0.25, 0.5, 0.25]
    """
    steps = [1.0, *survival, 0.0]
    return [max(0.0, before - after) for before, after in pairwise(steps)]


def learned_layers(own: Series) -> dict[str, list[float]]:
    """Length probabilities of each layer of the first run; none where lengths are fixed: all alike, or certain."""
    layers = {name: length_probs(probs) for name, probs in (own.runs[0].results.get("survival") or {}).items()}
    learned = any(
        1e-3 < max(probs) < 0.999 and np.ptp([p for p in probs if p > 1e-6]) > 1e-3 for probs in layers.values()
    )
    return layers if learned else {}


def tail_index(own: Series) -> Figure:
    """How many units a layer keeps, as learned, after two laws of the literature that are fixed for all layers.

    Paper: the first figure, on the probabilities of the tail index.
    """
    layers = learned_layers(own)
    units = max(len(probs) for probs in layers.values()) - 1
    fixed = theory.fixed_lengths(units)
    shown = [(name, probs, MUTED) for name, probs in fixed.items()]
    shown += [(name, probs, BLUE) for name, probs in layers.items()]
    figure, axes = panels(len(shown), 4 if len(shown) <= 12 else 6, 1.75)
    for axis, (name, probs, color) in zip(axes, shown, strict=True):
        axis.bar(range(len(probs)), probs, color=color, width=0.9)
        mean = sum(j * p for j, p in enumerate(probs))
        title(axis, name, 26 if len(shown) <= 12 else 19, 9.5)
        note = f"mean {mean:.1f} of {len(probs) - 1}"
        axis.text(0.03, 0.97, note, transform=axis.transAxes, color=INK, fontsize=8, va="top", zorder=5)
        axis.set_ylim(0, 1.22 * max(probs))  # room for the note
        axis.set_xlim(-0.7, len(probs) - 0.3)
        axis.locator_params(axis="y", nbins=3)
        axis.locator_params(axis="x", nbins=5, integer=True)
        tidy(axis)
    figure.supxlabel("units kept", color=INK, fontsize=10)
    figure.supylabel("probability", color=INK, fontsize=10)
    return figure


def correlation(own: Series) -> Figure:
    """How alike the uncertainties of two widths are: Pearson's correlation of their entropies, mean over runs."""
    return heat_maps(*mean_correlation(own), own.name)


def heat_maps(labels: Sequence[str], maps: Mapping[str, Any], name: str) -> Figure:
    """Correlations of pairs as coloured squares, a panel a map.

    Args:
        labels: What the rows and the columns of each map are.
        maps: A square table of correlations for each name of a map; NaN where there is none.
        name: Whose they are: the beginning of each heading.
    """
    lowest = min(float(np.nan_to_num(one).min()) for one in maps.values())
    low = lowest if lowest < -0.05 else 0.0
    figure, axes = panels(len(maps), 2, 4.3)
    figure.set_layout_engine("compressed")  # squares need not fill the page
    mesh = None
    for axis, (part, table) in zip(axes, maps.items(), strict=True):
        mesh = axis.imshow(table, vmin=low, vmax=1, cmap="cividis")
        for (row, column), value in np.ndenumerate(table) if len(labels) <= FEW else ():
            dark = (value - low) / (1 - low) < 0.55
            words = "–" if np.isnan(value) else f"{value:.2f}"
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5 if len(labels) <= 8 else 7}
            axis.text(column, row, words, color="white" if dark else INK, **look)
        title(axis, f"{name}, {part}", 44)
        names = [plain(label, 10) for label in labels]
        axis.set_xticks(range(len(labels)), names, rotation=45 if len(labels) > 5 else 0)
        axis.set_yticks(range(len(labels)), names)
        axis.tick_params(colors=INK, labelsize=9, length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, shrink=0.85)  # type: ignore[arg-type]
    bar.set_label("correlation", color=INK, fontsize=10)
    bar.ax.tick_params(colors=INK, labelsize=9, length=0)
    bar.outline.set_visible(False)
    return figure


def mean_correlation(own: Series) -> tuple[list[str], dict[str, Any]]:
    """Labels and the mean matrices in and out of domain, of the runs that have the labels of the first."""
    found = [run.results["correlation"] for run in own.runs if run.results.get("correlation")]
    labels: list[str] = found[0]["labels"]
    alike = [one for one in found if one["labels"] == labels]
    maps = {}
    for key, name in (("inside", "in domain"), ("outside", "out of domain")):
        tables = [np.asarray(one[key], dtype=float) for one in alike if one.get(key)]
        if tables:
            maps[name] = np.mean(tables, axis=0)
    return labels, maps


def selective(series: Sequence[Series]) -> Figure:
    """Errors among the answers given against the share of images answered, a panel a series."""
    figure, axes = panels(len(series), 3, 3.5, share=True)
    for axis, own in zip(axes, series, strict=True):
        target = next(run.results["selective"]["risk"] for run in own.runs if run.results.get("selective"))
        selective_panel(axis, answers(own.parts("selective")), target)
        title(axis, own.name, 30)
    for axis in axes[::3]:
        axis.set_ylabel("wrong among these (%)")
    axes[0].set_ylim(bottom=0)  # of all, once all are drawn
    return figure


def cascade(series: Sequence[Series]) -> Figure:
    """Accuracy against the mean cost of an answer, of narrow networks first, a panel a series; of its first run."""
    figure, axes = panels(len(series), 3, 3.5, share=True)
    looks = styles(series)
    for axis, own in zip(axes, series, strict=True):
        color, marker, _ = looks[own.name]
        cascade_panel(axis, own.runs[0].results["cascade"], color, marker)
        title(axis, own.name, 30)
    for axis in axes[::3]:
        axis.set_ylabel("accuracy (% of images)")
    return figure
