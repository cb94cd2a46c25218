"""The result files of a run: rows of a sweep, and what the report draws beside them."""

from __future__ import annotations

import csv
import io
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vnd import metrics
from vnd._files import write_text
from vnd.data.images import Images
from vnd.evaluate.sweep import Answers, Measured, Subject, Sweep, answer, at_temperature, sweep
from vnd.evaluate.trust import cascade, selective
from vnd.methods import Size
from vnd.nn import OrderingUnit

SHOWN = 8  # images of each kind
CLOSE = (0.0, 0.5, 1.0)  # sizes that are looked at closely: the smallest, the middle one, the largest
LEVELS = (0.25, 0.5, 1.0)  # those of a cascade; the smallest passes on too much to be worth its pass


def evaluate(
    subject: Subject,
    options: Sweep,
    test: Images,
    validation: Images,
    outside: Images | None = None,
    done: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Sweep a network over sizes and ways of inference; rows, reliability, trust, survival and examples, as numbers.

    Args:
        subject: The network.
        options: Which sizes, which ways of inference.
        test: The images that it should know.
        validation: Those that thresholds and temperatures are fitted on.
        outside: Images out of its domain.
        done: Called after every measurement with its row.
    """
    start, calibration = time.perf_counter(), subject.images(options.bn_images)
    tidy: list[dict[str, Any]] = []
    main: dict[Size, Measured] = {}
    for measured in sweep(subject, options, test, outside, validation):
        tidy.append(measured.row)
        row = measured.row
        if (row["inference"], row["repeat"], row["bn_images"]) == (options.inference[0], 0, calibration):
            main.setdefault(measured.size, measured)
        if done is not None:
            done(row)
    found = list(main.values())
    largest = max(reversed(found), key=lambda one: one.row["parameters"])
    units = {name: unit for name, unit in subject.model.named_modules() if isinstance(unit, OrderingUnit)}
    labels = torch.as_tensor(test.labels)
    close, levels = (_spread_over(found, places) for places in (CLOSE, LEVELS))
    results = {
        "samples": options.samples,
        "inference": list(options.inference),
        "ood": options.ood if outside is not None else None,
        "machine": machine(subject.device),
        "bn_images": calibration,
        "rows": rows_of(tidy, options.inference[0], calibration),
        "tidy": [{key: value for key, value in row.items() if key != "shape"} for row in tidy],
        "reliability": [_diagram(one, labels, options.bins) for one in close],
        "correlation": correlation(found),
        "selective": selective(
            [(one.row["label"], one.said, _of_validation(subject, one, options, validation)) for one in close],
            labels, torch.as_tensor(validation.labels), options.risk,
        ),
        "cascade": cascade([(one.row, one.said) for one in found], [one.row["label"] for one in levels], labels),
        "survival": {name.removesuffix(".ordering"): unit.survival().tolist() for name, unit in units.items()},
        "groups": {name.removesuffix(".ordering"): unit.num_groups for name, unit in units.items()},
        "examples": _examples(test, outside, largest.said, largest.outside),
    }  # fmt: skip
    return results | {"seconds": {"evaluate": round(time.perf_counter() - start, 2)}}


def write(results: dict[str, Any], folder: Path) -> Path:
    """Write `results.json` and its tidy rows as `rows.csv`; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "rows.csv", as_csv(tidy_rows([results])))
    write_text(folder / "results.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return folder / "results.json"


def write_rows(every: list[dict[str, Any]], folder: Path) -> None:
    """Write the tidy rows of some results, all in one, as `rows.csv` and `rows.json`."""
    rows = tidy_rows(every)
    write_text(folder / "rows.csv", as_csv(rows))
    write_text(folder / "rows.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def tidy_rows(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tidy rows of some results, what they are of in front."""
    rows = []
    for results in every:
        own = {"train_seed" if key == "seed" else key: x for key, x in (results.get("series") or {}).items()}
        rows += [own | row for row in results["tidy"]]
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Rows as a table; what a row does not have is empty."""
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return buffer.getvalue()


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


def rows_of(tidy: list[dict[str, Any]], reading: str, calibration: int) -> list[dict[str, Any]]:
    """One row a size: those of a reading, numbers averaged over the repeats."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in tidy:
        if (row["inference"], row["bn_images"]) == (reading, calibration):
            found.setdefault(row["label"], []).append(row)
    return [_averaged(rows) for rows in found.values()]


def _averaged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    averaged = {}
    for key, value in rows[0].items():
        measured = isinstance(value, float) and key != "fraction"
        averaged[key] = sum(row[key] for row in rows) / len(rows) if measured else value
    for key in ("inference", "repeat", "bn_images"):
        averaged.pop(key)
    return averaged


def _spread_over(found: list[Measured], places: tuple[float, ...]) -> list[Measured]:
    """A few sizes of one kind, by their places from the smallest to the largest; learned ones if there are enough."""
    kinds = [[one for one in found if one.size.kind == kind] for kind in ("learned", "uniform")]
    chosen = next((own for own in kinds if len(own) >= len(places)), found)
    by_size = {one.row["parameters"]: one for one in sorted(chosen, key=lambda one: one.row["parameters"])}
    distinct = list(by_size.values())
    return [distinct[index] for index in dict.fromkeys(round(place * (len(distinct) - 1)) for place in places)]


def _diagram(one: Measured, labels: Tensor, bins: int) -> dict[str, Any]:
    drawn = metrics.reliability(one.said.probs, labels, bins)
    return {
        "label": one.row["label"],
        **{name: _numbers(getattr(drawn, name)) for name in ("count", "confidence", "accuracy")},
    }


def _of_validation(subject: Subject, one: Measured, options: Sweep, validation: Images) -> Answers:
    """What the network of a size says of the validation images."""
    samples = 0 if one.row["inference"] == "mean" else options.samples
    network = subject.cut(one.size, samples, one.row["bn_images"], 0)
    said = answer(subject.method, network, subject.batches(validation), samples)
    return at_temperature(said, one.row["temperature"]) if one.row["inference"] == "temperature_scaled" else said


def correlation(found: list[Measured]) -> dict[str, Any] | None:
    """Pearson's between the entropies of uniform widths, from the narrowest to the widest."""
    widths = sorted((one for one in found if one.size.fraction is not None), key=lambda one: one.size.fraction or 0)
    if len(widths) < 2:
        return None
    inside = metrics.pearson(torch.stack([one.said.entropy for one in widths]))
    strange = [one.outside.entropy for one in widths if one.outside is not None]
    return {
        "labels": [one.row["label"] for one in widths],
        "inside": inside.tolist(),
        "outside": metrics.pearson(torch.stack(strange)).tolist() if strange else None,
    }


def _examples(test: Images, outside: Images | None, said: Answers, strange: Answers | None) -> dict[str, Any]:
    order = said.entropy.argsort()
    found = {
        "most_certain": _describe(test, said, order[:SHOWN]),
        "least_certain": _describe(test, said, order[-SHOWN:]),
    }
    if outside is not None and strange is not None:
        middle = strange.entropy.argsort()[:: max(1, len(outside) // SHOWN)][:SHOWN]  # from the surest to the least
        found["ood"] = _describe(outside, strange, middle, test.classes)
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
