"""Classifiers as a page shows them: the exported file, what each width keeps, gets right and may answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vnd import runtime
from vnd._export import export
from vnd._page import pictures
from vnd._text import short
from vnd.data.images import Images
from vnd.data.registry import find, is_own
from vnd.methods import Size
from vnd.nn import BayesLayer
from vnd.nn.state import NestedState, Shape, nested_part, unwrap
from vnd.nn.width import as_shape
from vnd.nn.width import shape as shape_of
from vnd.pretrained import FromPixels
from vnd.report.results import RESULTS, read
from vnd.tasks import TrainedRun, task_of

FILE = "network.onnx"
MEASURED = 1000  # images at most that the accuracy and the threshold of a run are measured on
Examples = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True)
class Classifier:
    """A classifier in a page: its facts, and its file."""

    facts: dict[str, Any]
    networks: dict[str, bytes]

    def others(self, data: str | None) -> tuple[list[pictures.Picture], list[str]]:
        """Pictures unlike those that it was trained on."""
        return pictures.unlike(data, self.facts["image"])


def of_run(run: TrainedRun, risk: float, samples: int, tell: Callable[[str], object]) -> Classifier:
    """The classifier of a run at the sizes of its evaluation: the learned shapes and the whole, or all there are."""
    task = task_of(run.method)
    if not task.has_classes:
        raise ValueError(f"page: a run must be of classes, codes or masks drawn from a latent; this is {task.kind}")
    splits, test = run.splits, run.test()
    if test.labels is None or splits.validation.labels is None:
        raise ValueError("page: the run's test and validation images have no classes to measure on")
    nested = hasattr(unwrap(run.model), "_vnd_state")
    sizes = _sizes(run) if nested else []
    draws = any(layer.bayesian for layer in unwrap(run.model).modules() if isinstance(layer, BayesLayer))
    for size in sizes:
        tell(f"collecting statistics at {size.label}")
        run.recalibrate(size, draws, run.recipe.evaluate.bn_images)
    about = {"mean": splits.mean, "std": splits.std, "image": list(test.pixels.shape[1:])}
    classes = [str(name) for name in splits.train.classes]
    net = FromPixels(unwrap(run.model).cpu(), about | {"classes": classes, "card": run.about()}).eval()
    check, validation = _some(test), _some(splits.validation)
    widths = [size.width for size in sizes if isinstance(size.width, Shape)] if nested else None
    known = _evaluated(run, samples if draws else 1)
    wanted: set[Shape | None] = {*widths} if widths else {None}
    every = wanted <= {*known}
    words = f"{len(test) if every else len(check[1]):,} test images"
    asked = None if every else check
    made = _of(net, widths, draws, asked, words, validation, risk, samples, classes, None, about["image"], tell)
    for row in made.facts["widths"] if every else []:
        row["accuracy"] = known[None if row["shape"] is None else Shape(row["shape"])]
    made.facts["data"] = _data_name(run.recipe.data.name)
    made.facts["learned"] = any(size.kind == "learned" for size in sizes)
    return made


def of_network(
    net: nn.Module,
    widths: Sequence[Shape | float] | None,
    check: tuple[Tensor, Tensor] | None,
    validation: tuple[Tensor, Tensor] | None,
    risk: float,
    samples: int,
    classes: Sequence[str] | None,
    example_input: Tensor | None,
    tell: Callable[[str], object],
) -> Classifier:
    """The classifier that a network is, at some widths."""
    state: NestedState | None = getattr(nested_part(unwrap(net)), "_vnd_state", None)
    if widths is not None and (not isinstance(widths, list | tuple) or not widths):
        raise ValueError(f"page: widths must be a list of widths, one or more; got {widths!r}")
    draws = any(layer.bayesian for layer in unwrap(net).modules() if isinstance(layer, BayesLayer))
    if state is not None and widths is None:
        known = {shape for shape, drawn in state.statistics if drawn == draws}
        widths = [*known] if known else [1.0, 0.5, 0.25]
    known_classes = getattr(unwrap(net), "classes", None) if classes is None else classes
    found = (_examples("check", check), _examples("validation", validation))
    words = "" if found[0] is None else f"{len(found[0][1]):,} images"
    return _of(
        net, widths, draws, found[0], words, found[1], risk, samples,
        None if known_classes is None else [str(name) for name in known_classes], example_input, None, tell,
    )  # fmt: skip


def _of(
    net: nn.Module,
    widths: Sequence[Shape | float] | None,
    draws: bool,
    check: Examples | None,
    check_words: str,
    validation: Examples | None,
    risk: float,
    samples: int,
    classes: list[str] | None,
    example_input: Tensor | None,
    image: Sequence[int] | None,
    tell: Callable[[str], object],
) -> Classifier:
    """Export a network, and measure the file at each width."""
    if image is not None:
        example_input = torch.zeros(2, *image)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        tell("exporting it" if widths is None else f"exporting {len(widths)} widths")
        entry = export(net, path, widths=widths, posterior=draws, classes=classes, example_input=example_input)
        ready = runtime.load(path)
        assert isinstance(ready, runtime.Network)
        content = path.read_bytes()
    (name, image_shape), *more = [(key, value) for key, value in entry["inputs"].items() if key not in OWN]
    if more or len(image_shape) != 4 or image_shape[1] not in (1, 3):
        told = ", ".join(f"{key} {tuple(value)}" for key, value in [(name, image_shape), *more])
        raise ValueError(f"page: a network must take one image, (batch, 1 or 3, height, width); it takes {told}")
    if ready.link not in ("softmax", "dirichlet"):
        raise ValueError(f"page: a network must tell classes, link softmax or dirichlet; its link is {ready.link}")
    zeros = np.zeros((1, *image_shape[1:]), np.float32)
    outputs = ready.predict(zeros, samples=1).probs
    if outputs.ndim != 2:
        raise ValueError(f"page: a network must give scores of classes, (batch, classes); it gives {outputs.shape}")
    names = classes or [str(number) for number in range(outputs.shape[1])]
    if len(names) != outputs.shape[1]:
        raise ValueError(f"page: classes must be the {outputs.shape[1]} of the network's outputs; got {len(names)}")
    layers, rows = _layers(net), []
    for number, row in enumerate(ready.widths):
        tell(f"measuring {short(row['parameters'])} parameters")
        rows.append(_row(ready, number, row, layers, check, validation, risk, samples))
    facts = {
        "kind": "classes", "data": None, "image": list(image_shape[1:]), "classes": names,
        "samples": samples if ready.columns else 0, "accuracy_of": check_words,
        "rule": None if validation is None else {"risk": risk, "images": len(validation[1])},
        "layers": [{"name": layer, "channels": unit.channels} for layer, unit in layers.items()], "learned": False,
        "widths": sorted(rows, key=lambda row: (row["parameters"], row["macs"])),
        "network": {
            "input": name, "columns": ready.columns, "shared": ready._shared, "numbered": bool(ready._numbered),
            "link": ready.link,
        },
    }  # fmt: skip
    return Classifier(facts, {FILE: content})


OWN = ("width", "noise")  # inputs of an exported file that are not the network's


def _row(
    ready: runtime.Network,
    number: int,
    row: dict[str, Any],
    layers: dict[str, Any],
    check: Examples | None,
    validation: Examples | None,
    risk: float,
    samples: int,
) -> dict[str, Any]:
    """A width as the page has it, its accuracy and its threshold by the draws of seed 0."""
    shape = row["shape"]
    kept = [len(unit.kept_channels(shape[name])) for name, unit in layers.items()] if shape else []
    made: dict[str, Any] = {
        "number": number, "shape": shape, "parameters": row["parameters"], "macs": row["macs"], "kept": kept,
        "accuracy": None, "threshold": None, "coverage": None,
    }  # fmt: skip
    if check is not None:
        answer = ready.predict(check[0], shape, samples, seed=0)
        made["accuracy"] = float((answer.probs.argmax(1) == check[1]).mean())
    if validation is not None:
        rule = runtime.selective(ready, *validation, risk=risk, width=shape, samples=samples, seed=0)
        made |= {"threshold": rule.threshold if np.isfinite(rule.threshold) else None, "coverage": rule.coverage}
    return made


def _evaluated(run: TrainedRun, samples: int) -> dict[Shape | None, float]:
    """Accuracy on all test images by shape, where this very network was evaluated with as many draws."""
    path, network = run.folder / RESULTS, run.folder / run.checkpoint / "network.json"
    if not path.exists() or path.stat().st_mtime < network.stat().st_mtime:
        return {}
    found = read(path)
    if found["checkpoint"] != run.checkpoint or found.get("samples") != samples:
        return {}
    return {Shape(row["shape"]) if row.get("shape") else None: row["accuracy"] for row in found["rows"]}


def _sizes(run: TrainedRun) -> list[Size]:
    """Learned shapes of a run's evaluation and the whole network; all its sizes where none is learned."""
    every = run.method.sizes(run.model, run.recipe.evaluate.sizes)
    learned = [size for size in every if size.kind == "learned"]
    whole = Size("uniform", "the whole network", shape_of(run.model, fraction=1.0), 1.0)
    found: dict[Shape, Size] = {}
    for size in [*(learned or every), whole]:
        shape = as_shape(unwrap(run.model), size.width)
        found.setdefault(shape, Size(size.kind, size.label, shape, size.fraction))
    return [*found.values()]


def _layers(net: nn.Module) -> dict[str, Any]:
    """The units of a network that are layers' channels, by name; none where it is not nested."""
    state: NestedState | None = getattr(nested_part(unwrap(net)), "_vnd_state", None)
    return {} if state is None else dict(state.units)


def _some(images: Images) -> Examples:
    """Images between 0 and 1 and their classes: all, or so many at random."""
    chosen = np.random.default_rng(0).permutation(len(images))[:MEASURED]
    part = images.take(np.sort(chosen))
    assert part.labels is not None
    return np.ascontiguousarray(part.pixels, np.float32) / np.float32(255), part.labels


def _examples(what: str, given: Any) -> Examples | None:
    """Inputs and classes as arrays; a ValueError where they are none."""
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"page: {what} must be (x, y): images, and classes of shape (N,)")
    x, y = (np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value) for value in given)
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(x) != len(y) or not len(y):
        raise ValueError(f"page: {what} must have one class for each image; got {x.shape} and {y.dtype} {y.shape}")
    return x.astype(np.float32), y.astype(np.int64)


def _data_name(name: str) -> str | None:
    """A data set's name for people; None where it is the user's own."""
    if pictures.SAME.get(name, name) == "fashion":
        return "pictures of clothing, Fashion-MNIST"
    return None if is_own(name) else find(name, "page").about.partition(",")[0]
