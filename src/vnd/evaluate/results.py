"""The result file of a run: rows of a sweep, and what the report draws beside them."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vnd import metrics
from vnd.data.arrays import Images
from vnd.data.batches import Normalise
from vnd.evaluate.sweep import Answers, Sweep, sweep
from vnd.methods import Method
from vnd.nn import OrderingUnit

FORMAT = 1
SHOWN = 8  # images of each kind


def evaluate(
    method: Method,
    model: nn.Module,
    options: Sweep,
    normalise: Normalise,
    test: Images,
    outside: Images | None = None,
    done: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Sweep a calibrated network over its sizes; rows, reliability, survival and examples, as plain numbers.

    Args:
        method: What the network was made and trained by.
        model: The network.
        options: Which sizes, how many samples.
        normalise: From pixels to what the network is fed.
        test: The images that it should know.
        outside: Images out of its domain.
        done: Called after every size with its row.
    """
    start = time.perf_counter()
    diagrams: dict[str, Any] = {}
    largest: list[tuple[dict[str, Any], Answers, Answers | None]] = []
    labels = torch.as_tensor(test.labels)

    def keep(row: dict[str, Any], said: Answers, strange: Answers | None) -> None:
        drawn = metrics.reliability(said.probs, labels, options.bins)
        parts = {name: _numbers(getattr(drawn, name)) for name in ("count", "confidence", "accuracy")}
        diagrams[row["label"]] = {"label": row["label"], **parts}
        if not largest or row["parameters"] >= largest[0][0]["parameters"]:
            largest[:] = [(row, said, strange)]
        if done is not None:
            done(row)

    rows = sweep(method, model, options, normalise, test, outside, keep)
    units = {name: unit for name, unit in model.named_modules() if isinstance(unit, OrderingUnit)}
    by_size = sorted(rows, key=lambda row: row["parameters"])
    shown = dict.fromkeys(row["label"] for row in (by_size[0], by_size[len(by_size) // 2], largest[0][0]))
    return {
        "format": FORMAT,
        "samples": options.samples,
        "out_of_domain": options.out_of_domain if outside is not None else None,
        "machine": machine(next(model.parameters()).device),
        "seconds": {"evaluate": round(time.perf_counter() - start, 2)},
        "rows": rows,
        "reliability": [diagrams[label] for label in shown],
        "survival": {name.removesuffix(".ordering"): unit.survival().tolist() for name, unit in units.items()},
        "groups": {name.removesuffix(".ordering"): unit.num_groups for name, unit in units.items()},
        "examples": _examples(test, outside, *largest[0][1:]),
    }


def machine(device: torch.device) -> str:
    """Where the times were measured, in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()}), torch {torch.__version__}"


def choose(rows: list[dict[str, Any]], accuracy: dict[str, float], margin: float = 0.01) -> dict[str, Any]:
    """The row of the smallest network whose accuracy is within a margin of the largest's.

    Args:
        rows: One a size.
        accuracy: Of each size by its label, on images that are not those of the test.
        margin: What may be lost, as a share of all images.
    """
    full = max(rows, key=lambda row: row["parameters"])
    least = accuracy[full["label"]] - margin - 1e-9  # 0.87 - 0.01 is a little more than 0.86
    good = [row for row in rows if accuracy[row["label"]] >= least]
    return min(good, key=lambda row: row["parameters"])


def _examples(test: Images, outside: Images | None, said: Answers, strange: Answers | None) -> dict[str, Any]:
    order = said.entropy.argsort()
    found = {
        "most_certain": _describe(test, said, order[:SHOWN]),
        "least_certain": _describe(test, said, order[-SHOWN:]),
    }
    if outside is not None and strange is not None:
        middle = strange.entropy.argsort()[:: max(1, len(outside) // SHOWN)][:SHOWN]  # from the surest to the least
        found["out_of_domain"] = _describe(outside, strange, middle, test.classes)
    return found


def _describe(images: Images, said: Answers, which: Tensor, classes: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    names = classes or images.classes
    described = []
    for index in which.tolist():
        pixels = images.pixels[index]
        confidence, best = said.probs[index].max(0)
        described.append(
            {
                "image": (pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).tolist(),
                "label": images.classes[int(images.labels[index])] if images.labels is not None else "",
                "prediction": names[int(best)],
                "confidence": float(confidence),
                "entropy": float(said.entropy[index]),
                "mutual_information": float(said.mutual_information[index]),
            }
        )
    return described


def _numbers(values: Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
