"""Result files of segmenters, such as evaluations write, with numbers that are made up but likely."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import vnd.tasks  # noqa: F401
from vnd.metrics import bootstrap_interval, group_mean
from vnd.tasks.base import TASKS, declare

COUNTS = (1, 4, 8, 16)
# Energy distance at endless samples and the diversity of samples, of the full size; its sizes.
METHODS: dict[str, tuple[float, float, tuple[float, ...]]] = {
    "vnd_punet": (0.215, 0.47, (1 / 3, 1.0)),
    "bn3_unet": (0.225, 0.44, (0.1875, 0.3229, 0.5, 0.75, 1.0)),
    "punet": (0.245, 0.48, (1.0,)),
    "unet_ensemble": (0.30, 0.32, (1.0,)),
    "dropout_unet": (0.36, 0.25, (1.0,)),
}
GRADERS_APART = 0.36  # two different ones
MEMBERS = 4  # of the ensemble


def groups_of(images: int) -> list[str]:
    """Whose they are: the first two have half of them."""
    return [f"LIDC-{at % 2 if at < images // 2 else at % 9:04}" for at in range(images)]


def fake_segment(
    method: str = "vnd_punet",
    seed: int = 0,
    data: str = "lidc",
    settings: str | None = None,
    run: str | None = None,
    images: int = 60,
    counts: tuple[int, ...] = COUNTS,
    lift: float = 0.0,
    truth: bool = False,
    drawn: bool = False,
    owned: bool = True,
) -> dict[str, Any]:
    """One run; methods that can be cut have several sizes, and with `truth` what samples of it would reach.

    With `drawn` there is a row of lengths that are drawn; with `owned` the images have groups.
    """
    base, diversity, fractions = METHODS[method]
    random = np.random.default_rng([list(METHODS).index(method), seed])
    hardness = np.random.default_rng(0).gamma(2.0, 0.5, images)  # the same images for all
    rows = [
        _row(method, base + lift + 0.01 * random.standard_normal(), diversity, part, random, hardness, counts, truth)
        for part in fractions
    ]
    if drawn:
        rows.append({**rows[-1], "label": "drawn", "kind": "sampled", "fraction": None})
        rows[-1]["per_image"] = {n: [x + 0.01 for x in each] for n, each in rows[-1]["per_image"].items()}
        rows[-1]["ged"] = {n: float(np.mean(each)) for n, each in rows[-1]["per_image"].items()}
    groups = groups_of(images) if owned else None
    for row in rows:
        each = torch.tensor(list(row["per_image"].values()), dtype=torch.float64).T
        found = zip(row["ged"], group_mean(each, groups).tolist(), bootstrap_interval(each, groups), strict=True)
        by_owner = {n: (mean, [one.low, one.high]) for n, mean, one in found}
        row["ged_by_group"] = {n: mean for n, (mean, _) in by_owner.items()} if owned else None
        row["ged_interval"] = {n: ends for n, (_, ends) in by_owner.items()}
    return declare(TASKS["segmentation"], method, data) | {
        "title": f"{method} on {data}",
        "machine": "NVIDIA H200, torch 2.13.0",
        "graders": 4,
        "samples": list(counts),
        "threshold": 0.5,
        "groups": groups,
        "data": {"name": data, "train": 2280, "validation": 282, "test": 644},
        "rows": rows,
        "reliability": {row["label"]: _bins(row["calibration_error"], random) for row in rows},
        "graders_own": {"diversity": GRADERS_APART, "dice": 0.713},
        "notes": [],
        "curves": [
            {"step": s, "loss": 900 / s**0.5, "nll": 700 / s**0.5, "kl": 20 * (1 - 1 / s)} for s in range(1, 300, 3)
        ],
        "seconds": {"train": 1260.0, "evaluate": 37.5},
        "command": "vnd evaluate runs/one",
        "split": "test",
        "series": {
            "run": run or f"{method}-{seed}",
            "recipe": f"bench/{data}-{method}",
            "method": method,
            "network": "probabilistic_unet" if "punet" in method else "unet",
            "data": data,
            "seed": seed,
            "settings": settings or method,
        },
    }


def _row(
    method: str,
    base: float,
    diversity: float,
    part: float,
    random: np.random.Generator,
    hardness: np.ndarray,
    counts: tuple[int, ...],
    truth: bool,
) -> dict[str, Any]:
    own = base + 0.05 * (1 - part) ** 3
    noise = random.normal(1, 0.25, len(hardness)).clip(0.2)
    per_image = {str(n): [round(float(x), 5) for x in hardness * noise * own + diversity / n] for n in counts}
    ged = {n: float(np.mean(values)) for n, values in per_image.items()}
    most = MEMBERS if method == "unet_ensemble" else max(counts)
    label = f"{round(6 * part)} of 6" if method == "vnd_punet" else f"{100 * part:.4g} %"
    row = {
        "label": label,
        "kind": "uniform",
        "fraction": part if len(METHODS[method][2]) > 1 else None,
        "ged": ged,
        "ged_unbiased": {n: value - diversity / int(n) if 1 < int(n) <= most else None for n, value in ged.items()},
        "expected_ged": {str(n): 0.18 + GRADERS_APART / n for n in counts} if truth else None,
        "matched_iou": 0.72 - own,
        "diversity": diversity + 0.03 * (1 - part),
        "dice": 0.80 - own / 2,
        "entropy": 0.011,
        "entropy_marked": 0.31,
        "calibration_error": 0.002 + own / 100,
        "per_image": per_image,
        "seconds": 3.1,
    }
    if method == "bn3_unet":
        row |= {"parameters": round(2_900_000 * part**2), "macs": round(3_100_000_000 * part**2)}
    return row


def _bins(error: float, random: np.random.Generator) -> dict[str, list[Any]]:
    middles = (np.arange(15) + 0.5) / 15
    frequency = (middles**1.2 - 10 * error * middles + 0.02 * random.standard_normal(15)).clip(0, 1)
    count = (1e7 * np.exp(-18 * middles) + 2e4 + 9e4 * middles**8).round().astype(int)
    count[7] = 0
    bins: list[Any] = frequency.round(4).tolist()
    where: list[Any] = middles.round(4).tolist()
    bins[7] = where[7] = None
    return {"count": count.tolist(), "confidence": where, "frequency": bins}
