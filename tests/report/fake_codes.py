"""Result files of auto-encoders, such as evaluations write, with numbers that are made up but likely."""

from __future__ import annotations

from typing import Any

import numpy as np

import vnd.tasks  # noqa: F401
from vnd.tasks.base import TASKS, declare


def fake_code(
    method: str = "vnd_ae",
    code: int = 128,
    seed: int = 0,
    data: str = "celeba",
    settings: str | None = None,
    extractor: str | None = "EfficientNet-Lite0",
    lift: float = 0.0,
    run: str | None = None,
) -> dict[str, Any]:
    """One run; ordered methods have four lengths, those that say a length for each image two inference more."""
    random = np.random.default_rng([len(method), code, seed])
    ordered = method in ("vnd_ae", "nested_ae")
    rows = [_row(length, code, lift + 0.001 * random.random()) for length in _lengths(code, ordered)]
    for row in rows:
        if extractor is not None:
            row |= {"frechet": 90.0 - row["length"] / 4 + 10 * lift, "inception_score": 2.1, "diversity": 11.5}
    tidy, lengths = list(rows), dict[str, Any]()
    if method == "vnd_ae":
        own = np.clip(random.normal(0.7 * code, 0.1 * code, 300).round(), 1, code).astype(int)
        for name in ("posterior", "target"):
            lengths[name] = np.bincount(own, minlength=code + 1).tolist()
            tidy.append({"length_rule": name, "length": float(own.mean()), "mse": 0.011, "summed": 0.011 * 12_288})
        tidy[-1] |= {"target": 0.0123, "reached": 0.97}
        shown = {"png": (3000 + 20 * own + random.integers(0, 500, 300)).tolist(), "posterior": own.tolist()}
        shown["target"] = own.tolist()
    name = f"Fréchet distance ({extractor})" if extractor != "Inception" else "FID"
    features = {"name": extractor, "sha256": f"{extractor}"[:3] * 8, "distance_name": name, "num_generated": 10_000}
    features |= {"score_name": f"Inception Score ({extractor})", "real": 2000, "real_diversity": 14.25}
    correlation = {key: {"spearman": 0.53, "pearson": 0.51} for key in ("posterior", "target")}
    return declare(TASKS["autoencoding"], method, data) | {
        "title": f"{method} on {data}",
        "machine": "NVIDIA H200, torch 2.13.0",
        "latent_dim": code,
        "likelihood_std": 0.3,
        "data": {"name": data, "train": 6000, "validation": 500, "test": 1500},
        "rows": rows,
        "tidy": tidy,
        "features": features if extractor is not None else None,
        "lengths": lengths,
        "complexity": {"measure": "bytes as a PNG", "images": 300, "correlation": correlation, "shown": shown}
        if lengths
        else None,
        "notes": [],
        "curves": [{"step": s, "loss": 1 / s, "mse": 0.3 / s, "rate": 2.0 * s} for s in range(1, 30)],
        "seconds": {"train": 60.0, "evaluate": 7.5},
        "command": "vnd evaluate runs/one",
        "split": "test",
        "series": {
            "run": run or f"{method}-{code}-{seed}",
            "recipe": f"bench/{data}-{method}",
            "method": method,
            "network": "autoencoder",
            "data": data,
            "seed": seed,
            "settings": settings or f"{method}",
        },
    }


def _lengths(code: int, ordered: bool) -> list[int]:
    return [code // 4, code // 2, 3 * code // 4, code] if ordered else [code]


def _row(length: int, code: int, lift: float) -> dict[str, Any]:
    mse, rate = 0.4 / length + lift, 1.5 * length
    distortion = 12_288 * (2 * mse / 0.09 - 0.3)
    return {
        "length_rule": "fixed", "length": length, "label": f"{length} of {code}", "fraction": length / code, "mse": mse,
        "summed": 12_288 * mse, "rate": rate, "distortion": distortion, "negative_elbo": distortion + rate,
    }  # fmt: skip
