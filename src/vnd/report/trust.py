"""Panels of what a run can be trusted with: answers withheld, and narrow networks first; for one run and for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vnd.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, plain, size_axis, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = [(BLUE, "o", "-"), (ORANGE, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":")]  # of curves that share a panel
POINTS = 200  # of a curve: more cannot be seen


def selective_panel(axis: Axes, rows: Sequence[dict[str, Any]], target: float) -> None:
    """Errors among the answers given against the share of images answered, of some sizes; fitted thresholds are marked.

    Args:
        axis: Where to draw.
        rows: Sizes with a curve; at most four are drawn.
        target: The risk that the thresholds were fitted for.
    """
    for row, (color, marker, line) in zip(spread(rows, len(SIZES)), SIZES, strict=False):
        share, risk = (np.asarray(row["curve"][key], dtype=float) for key in ("coverage", "risk"))
        kept = np.unique(np.linspace(0, len(share) - 1, POINTS).round().astype(int))
        label = plain(row["label"], 14)
        axis.plot(100 * share[kept], 100 * risk[kept], color=color, linestyle=line, label=label, linewidth=1.6)
        if row.get("risk") is not None:
            spot: dict[str, Any] = {"marker": marker, "markersize": 8, "markeredgecolor": INK, "linestyle": "none"}
            axis.plot(100 * row["coverage"], 100 * row["risk"], color=color, zorder=4, **spot)
    axis.axhline(100 * target, color=MUTED, linestyle=":", linewidth=1.2)
    axis.set_xlabel("images answered (%)")
    axis.set_xlim(0, 103)
    axis.legend(edgecolor="none", fontsize=8.5, labelcolor=INK)
    tidy(axis)


def cascade_panel(axis: Axes, found: dict[str, Any], color: str = BLUE, marker: str = "o") -> None:
    """Accuracy against the mean cost of an answer, of narrow networks first, beside each size for itself.

    Args:
        axis: Where to draw.
        found: The cascade of a result file.
        color: Of its curve.
        marker: Of the single sizes.
    """
    curve, single = (sorted(found[key], key=lambda point: point["macs"]) for key in ("curve", "single"))
    costs, right = ([point[key] for point in curve] for key in ("macs", "accuracy"))
    axis.plot(costs, [100 * one for one in right], color=color, linewidth=2, label="narrow first", zorder=3)
    look: dict[str, Any] = {"color": MUTED, "marker": marker, "markersize": 6, "markerfacecolor": "white"}
    values = [100 * point["accuracy"] for point in single]
    axis.plot([point["macs"] for point in single], values, linestyle="--", linewidth=1, label="one size alone", **look)
    size_axis(axis, [*costs, *(point["macs"] for point in single)], "multiply-adds an image (log scale)")
    axis.legend(edgecolor="none", fontsize=8.5, labelcolor=INK)
    tidy(axis)


def answers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sizes that have a curve of errors against answers."""
    return [row for row in rows if row.get("curve")]


def spread(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many of some rows, from the first to the last.

    >>> spread([{"label": size} for size in "abcdefg"], 3)
    [{'label': 'a'}, {'label': 'd'}, {'label': 'g'}]
    """
    kept = dict.fromkeys(round(index * (len(rows) - 1) / (most - 1)) for index in range(most))
    return [rows[index] for index in kept] if rows else []
