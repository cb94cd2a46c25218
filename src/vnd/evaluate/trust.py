"""When to trust an answer: what a network may withhold, and when a narrow one is enough."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vnd import metrics
from vnd.evaluate.sweep import Answers

POINTS = 100  # of a curve in a result file


def selective(found: list[tuple[str, Answers, Answers]], labels: Tensor, known: Tensor, risk: float) -> dict[str, Any]:
    """Answers below a threshold of entropy, fitted so that at most a share `risk` of them is wrong.

    Args:
        found: The label of a size, its answers on the test images and on those of validation.
        labels: Classes of the test images.
        known: Classes of the validation images, which the threshold is fitted on.
        risk: The share.
    """
    rows = []
    for label, said, fitted in found:
        threshold = metrics.threshold_for_risk(fitted.probs, known, fitted.entropy, risk)
        kept = metrics.selective(said.probs, labels, said.entropy, threshold)
        curve = metrics.risk_coverage(said.probs, labels, said.entropy)
        every = torch.linspace(0, len(curve.coverage) - 1, min(POINTS, len(curve.coverage))).round().long()
        rows.append(
            {
                "label": label,
                "threshold": threshold if math.isfinite(threshold) else None,
                "coverage": kept.coverage,
                "risk": kept.risk,
                "aurc": float(metrics.area_under_risk_coverage(said.probs, labels, said.entropy)),
                "curve": {"coverage": curve.coverage[every].tolist(), "risk": curve.risk[every].tolist()},
            }
        )
    return {"risk": risk, "rows": rows}


def cascade(found: list[tuple[dict[str, Any], Answers]], levels: list[str], labels: Tensor) -> dict[str, Any] | None:
    """Run the narrow network first, and a wider one where it is unsure: accuracy against multiply-accumulates.

    Args:
        found: The row of each size and its answers on the test images.
        levels: The labels of the sizes that are run one after the other.
        labels: Classes of the test images.
    """
    chosen = [next(one for one in found if one[0]["label"] == level) for level in levels]
    if len(chosen) < 2:
        return None
    curve = metrics.cascade_curve(
        torch.stack([said.probs for _, said in chosen]),
        torch.stack([said.entropy for _, said in chosen]),
        torch.tensor([float(row["macs"]) for row, _ in chosen]),
        labels,
    )
    kinds = {row["kind"] for row, _ in chosen}
    alike = [row for row, _ in found if row["kind"] in kinds]
    parts = (curve.threshold.tolist(), curve.accuracy.tolist(), curve.cost.tolist(), curve.share.tolist())
    return {
        "levels": levels,
        "curve": [
            {"threshold": t if math.isfinite(t) else None, "accuracy": a, "macs": c, "share": s}
            for t, a, c, s in zip(*parts, strict=True)
        ],
        "single": [{key: row[key] for key in ("label", "accuracy", "macs")} for row in alike],
    }
