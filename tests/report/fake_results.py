"""A result file such as an evaluation writes, with numbers and pictures that are made up but likely."""

from typing import Any

import numpy as np

import vnd.tasks  # noqa: F401
from vnd.tasks.base import TASKS, declare

CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


SMALL = {"layers": 2, "units": 4, "shown": 2, "points": 20, "widths": 1}  # quick to draw


def fake_results(
    layers: int = 4,
    units: int = 32,
    shown: int = 8,
    points: int = 200,
    widths: int = 3,
    image: tuple[int, ...] = (28, 28),
    seed: int = 0,
) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    names = [f"features.{3 * i + 1}" for i in range(layers)]
    ends = random.uniform(0.25, 0.9, layers) * units
    place = np.arange(units)
    survival = {name: (1 / (1 + np.exp((place - end) / 1.5))).round(4) for name, end in zip(names, ends, strict=True)}
    for probs in survival.values():
        probs[:2] = 1.0
    rows = [
        _row(
            "uniform", f"{100 * fraction:g} %", fraction, None, {name: round(fraction * units) for name in names}, units
        )
        for fraction in (1.0, 0.75, 0.5, 0.375, 0.25, 0.125)
    ]
    for level in (0.05, 0.2, 0.4, 0.6, 0.9):
        kept = {name: int((probs >= level).sum()) for name, probs in survival.items()}
        rows.append(_row("learned", f"level {level:g}", None, level, kept, units))
    chosen = rows[8]
    return declare(TASKS["classification"], "bn3", "fashion") | {
        "title": "Fashion-MNIST, nested Bayesian CNN",
        "command": "vnd demo --out runs/demo",
        "data": {"name": "fashion", "train": 11000, "validation": 1000, "test": 3000, "classes": CLASSES},
        "ood": "digits",
        "samples": 6,
        "machine": "2 CPU threads, torch 2.13.0",
        "seconds": {"train": 80.1, "evaluate": 30.2, "total": 120.0},
        "rows": rows,
        "chosen": {
            "label": chosen["label"],
            "parameters": chosen["parameters"],
            "reason": "smallest within 1 % of the full accuracy",
            "folder": "runs/demo/extracted",
        },
        "reliability": [_bins(random, row) for row in (rows[0], chosen, rows[5])[:widths]],
        "survival": {name: probs.tolist() for name, probs in survival.items()},
        "groups": dict.fromkeys(names, units),
        "examples": {
            "most_certain": [_example(random, image, 0.999, right=True) for _ in range(shown)],
            "least_certain": [_example(random, image, 0.35, right=i % 3 == 0) for i in range(shown)],
            "ood": [_example(random, image, 0.45, right=False) | {"label": "digit 7"} for _ in range(shown)],
        },
        "curves": [_point(random, step) for step in range(10, 10 * points + 10, 10)],
    }


def _row(kind: str, label: str, fraction: float | None, level: float | None, shape: dict[str, int], units: int) -> dict:
    share = float(np.mean(list(shape.values()))) / units
    size = round(200 + 90_000 * share**2 + 9_000 * share)
    lost = 0.14 * (1 - share) ** (3 if kind == "uniform" else 5)
    return {
        "kind": kind,
        "label": label,
        "fraction": fraction,
        "level": level,
        "shape": shape,
        "parameters": size,
        "macs": 40 * size,
        "bytes": 4 * size,
        "latency_ms": round(0.2 + 0.9 * share, 3),
        "accuracy": round(0.9113 - lost, 4),
        "nll": round(0.253 + 2.2 * lost, 4),
        "ece": round(0.0117 + 0.2 * lost, 4),
        "brier": round(0.131 + 1.1 * lost, 4),
        "auroc": round(0.957 - 0.9 * lost, 4),
        "aupr": round(0.921 - lost, 4),
        "base_rate": 0.3746,
    }


def _bins(random: np.random.Generator, row: dict, bins: int = 15) -> dict[str, Any]:
    middle = (np.arange(bins) + 0.5) / bins
    count = np.floor(3000 * np.exp(7 * (middle - 1)) / np.exp(7 * (middle - 1)).sum()).astype(int)
    count[:3] = 0
    right = np.clip(middle - row["ece"] * np.sin(3 * middle) * 3 + 0.02 * random.standard_normal(bins), 0, 1)
    some = count > 0
    return {
        "label": row["label"],
        "count": count.tolist(),
        "confidence": np.where(some, middle, 0).tolist(),
        "accuracy": np.where(some, right, 0).tolist(),
    }


def _example(random: np.random.Generator, size: tuple[int, ...], confidence: float, right: bool) -> dict[str, Any]:
    rows, columns = np.mgrid[: size[0], : size[1]] / size[0]
    blob = np.exp(
        -(((rows - random.uniform(0.3, 0.7)) / 0.25) ** 2) - ((columns - random.uniform(0.3, 0.7)) / 0.2) ** 2
    )
    picture = blob if len(size) == 2 else blob[..., None] * random.uniform(0.3, 1, size[2])
    label = CLASSES[random.integers(10)]
    return {
        "image": (255 * picture).astype(int).tolist(),
        "label": label,
        "prediction": label if right else CLASSES[(CLASSES.index(label) + 3) % 10],
        "confidence": round(confidence * random.uniform(0.9, 1), 4),
        "entropy": round(2.3 * (1 - confidence), 4),
        "mutual_information": round(0.4 * (1 - confidence), 4),
    }


def _point(random: np.random.Generator, step: int) -> dict[str, Any]:
    nll = 0.3 + 2.0 * np.exp(-step / 200) + 0.06 * random.standard_normal()
    kl = 0.02 + 0.1 * np.exp(-step / 900)
    return {"step": step, "epoch": step // 90, "loss": round(nll + kl, 5), "nll": round(nll, 5), "kl": round(kl, 5)}
