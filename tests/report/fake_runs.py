"""Result files of several methods, such as evaluations write, with numbers that are made up but likely."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from fake_results import SMALL, fake_results

import vnd.tasks  # noqa: F401
from vnd.tasks.base import TASKS, declare

FRACTIONS = (0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
FULL = 9_230_000
# Accuracy and ECE at the full width, and how much of the accuracy goes with the width.
QUALITY = {
    "bn3": (0.926, 0.012, 0.09),
    "fn3": (0.921, 0.046, 0.13),
    "us_net": (0.924, 0.040, 0.11),
    "ordered_l0": (0.919, 0.050, 0.10),
    "ibnn": (0.928, 0.020, 0.08),
    "svb": (0.829, 0.060, 0.0),
    "plain": (0.931, 0.035, 0.085),
}
SHIFT = {"mc": (0, 0), "mean": (-0.003, 0.012), "mc_mask": (-0.03, 0.01), "temperature_scaled": (0, -0.02)}


def fake_run(
    method: str = "bn3",
    seed: int | None = 0,
    inference: tuple[str, ...] = ("mc",),
    repeats: int = 1,
    fractions: tuple[float, ...] = FRACTIONS,
    learned: int = 0,
    statistics: tuple[int, ...] = (),
    studies: bool = False,
    network: str = "vgg11",
    data: str = "cifar10",
    recipe: str | None = None,
    run: str | None = None,
    settings: str | None = None,
    lift: float = 0.0,
) -> dict[str, Any]:
    random = np.random.default_rng([len(method), seed or 0, round(1000 * min(fractions))])
    tidy = []
    for reading in inference:
        for calibration in (1024, *statistics) if reading == inference[0] else (1024,):
            for repeat in range(repeats):
                sizes = [("uniform", f"{100 * f:.4g} %", f, f) for f in fractions]
                sizes += [("learned", f"level {i + seed or i}", None, 0.1 * 2**i) for i in range(learned)]
                if reading == "mc_mask":
                    sizes = [("sampled", "random", None, 0.68)]
                for kind, label, fraction, share in sizes:
                    tidy.append(
                        {"inference": reading, "repeat": repeat, "bn_images": calibration, "kind": kind, "label": label}
                        | {"fraction": fraction}
                        | _numbers(random, method, reading, kind, share, calibration, lift)
                    )
    results = fake_results(**SMALL)
    main = [row for row in tidy if row["inference"] == inference[0] and row["repeat"] == 0 and row["bn_images"] == 1024]
    results |= {
        "title": f"{method} on {data}",
        **declare(TASKS["classification"], method, data),
        "data": {"name": data, "train": 45_000, "validation": 5_000, "test": 10_000},
        "ood": "svhn",
        "machine": "NVIDIA H200, torch 2.13.0",
        "seconds": {"train": 900.0 + 10 * (seed or 0), "evaluate": 61.0},
        "rows": [{**row, "parameters": round(row["parameters"])} for row in main],
        "chosen": None,
        "examples": None,
        "curves": None,
        "series": {"run": run or f"{method}-{seed}", "recipe": recipe, "method": method, "network": network}
        | {"data": data, "seed": seed}
        | ({"settings": settings} if settings else {}),
        "tidy": tidy,
    }
    if method not in ("bn3", "ordered_l0"):
        results["survival"] = {}
    if studies:
        results |= _studies(random, results["rows"])
    return results


def suite(full: bool = True) -> dict[str, dict[str, Any]]:
    """Runs of all methods by folder; `full` with three seeds, else with the least that shows each thing."""
    seeds = range(3 if full else 2)
    found = {}
    for seed in seeds:
        extra = {"statistics": (0, 64, 256), "repeats": 3} if seed == 0 else {}
        inference = ("mc", "mean", "mc_mask")
        found[f"bn3-{seed}"] = fake_run("bn3", seed, inference, learned=3, studies=True, recipe="c10/bn3", **extra)
        found[f"fn3-{seed}"] = fake_run("fn3", seed, ("mc", "temperature_scaled"), studies=full and seed == 0)
    found["svb-0"] = fake_run("svb", fractions=(1.0,), repeats=2)
    for fraction in FRACTIONS[1::2]:
        found[f"ibnn-{fraction}"] = fake_run("ibnn", fractions=(fraction,), run=f"ibnn-{fraction}")
    if full:
        found["us_net-0"] = fake_run("us_net", repeats=3, studies=True)
        found["ordered_l0-0"] = fake_run("ordered_l0", learned=3)
        found["sandwich"] = fake_run("bn3", learned=3, recipe="c10/bn3-sandwich", lift=0.008, run="sandwich")
        for fraction in FRACTIONS[2:]:
            found[f"plain-{fraction}"] = fake_run("plain", fractions=(fraction,), run=f"plain-{fraction}")
    for name, one in found.items():
        if not full and not name.startswith("bn3"):
            one["reliability"] = None
    return found


def write_runs(folder: Path, runs: dict[str, dict[str, Any]]) -> list[Path]:
    for name, results in runs.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "results.json").write_text(json.dumps(results))
    return [folder / name for name in runs]


def _numbers(
    random: np.random.Generator, method: str, reading: str, kind: str, share: float, calibration: int, lift: float
) -> dict[str, Any]:
    right, off, loss = QUALITY.get(method, (0.9, 0.03, 0.1))
    up, worse = SHIFT[reading]
    lost = (loss * (1 - share) ** 2 + lift / 4) * (0.7 if kind == "learned" else 1)
    lost += 0.05 * (1 - share) / np.sqrt(calibration) if calibration else 0
    noise = 0.002 * random.standard_normal(4)
    size = FULL * (0.02 * share + 0.98 * share**2)
    row = {
        "parameters": round(size) if method != "svb" else round(0.057 * FULL),
        "macs": round(40 * size),
        "bytes": round(4 * size),
        "latency_ms": 0.4 + share,
        "test_seconds": (0.3 if reading in ("mean", "temperature_scaled") else 1.8) * (0.3 + share),
        "accuracy": right + up - lost + noise[0],
        "nll": 0.25 + 2 * lost + noise[1],
        "brier": 0.12 + lost,
        "ece": abs(off + worse + 0.3 * lost + noise[2]),
        "classwise_ece": 0.01,
        "adaptive_ece": 0.02,
        "batch_ece": 0.05,
        "auroc": 0.95 - lost + noise[3],
        "aupr": 0.97 - lost + noise[3],
        "base_rate": 0.7225,
        "fpr95": 0.2 + lost,
        "aurc": 0.01 + lost / 4,
    }
    if reading == "mc_mask":
        row["usage_std"] = 0.27 * FULL
    if method == "svb":
        row["dense_parameters"] = FULL
    if reading == "temperature_scaled":
        row["temperature"] = 1.7
    return row


def _studies(random: np.random.Generator, rows: list[dict[str, Any]]) -> dict[str, Any]:
    uniform = [row for row in rows if row["kind"] == "uniform"]
    labels, shares = [row["label"] for row in uniform], np.array([row["fraction"] for row in uniform])
    apart = np.abs(np.log2(shares)[:, None] - np.log2(shares)[None])
    cover = np.linspace(0.002, 1, 500)
    selective = []
    for row in uniform:
        risk = (1 - row["accuracy"]) * cover**3
        where = int(np.argmin(abs(risk - 0.05))) if risk[-1] > 0.05 else 499
        selective.append(
            {"label": row["label"], "threshold": 0.4, "coverage": cover[where], "risk": risk[where]}
            | {"aurc": float(risk.mean()), "curve": {"coverage": cover.tolist(), "risk": risk.tolist()}}
        )
    selective[0] |= {"threshold": None, "coverage": 0.0, "risk": None}
    low, high = uniform[2], uniform[-1]
    steps = np.linspace(0, 1, 40)
    curve = [
        {
            "threshold": 2.3 * (1 - step),
            "accuracy": low["accuracy"] + (high["accuracy"] - low["accuracy"]) * (1 - (1 - step) ** 4),
            "macs": low["macs"] + step * high["macs"],
            "share": [1 - step, step],
        }
        for step in steps
    ]
    return {
        "correlation": {
            "labels": labels,
            "inside": (0.97**apart * (1 - 0.05 * apart)).tolist(),
            "outside": np.clip(0.9**apart - 0.1 * apart, -1, 1).tolist(),
        },
        "selective": {"risk": 0.05, "rows": selective},
        "cascade": {
            "levels": [low["label"], high["label"]],
            "curve": curve,
            "single": [{key: row[key] for key in ("label", "accuracy", "macs")} for row in uniform],
        },
    }
