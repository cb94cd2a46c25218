"""A task: its data, options, scores, rows and pages; and what is evaluated of a trained network."""

from __future__ import annotations

import copy
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from vnd import metrics
from vnd._text import table
from vnd.data.batches import Normalise, statistics
from vnd.data.images import Images
from vnd.methods import Method, Size, Sizes
from vnd.methods.base import describe, refuse_unless
from vnd.nn import Prediction
from vnd.nn.extract import Keep
from vnd.nn.predict import Link
from vnd.tasks.trained import BestOrLast, TrainedRun

PERCENT: dict[str, Any] = {"form": "percent", "digits": 1}
COSTS: list[dict[str, Any]] = [
    {"key": "parameters", "heading": "Parameters", "form": "short"},
    {"key": "macs", "heading": "Multiply-adds", "form": "short"},
    {"key": "bytes", "heading": "Size", "form": "bytes"},
    {"key": "latency_ms", "heading": "Time", "form": "ms"},
]
SHAPED = frozenset(("levels", "parameters", "learned", "augmented"))  # options of tasks whose networks have shapes
BATCH = 512  # images in a batch that statistics are collected from


@dataclass(frozen=True)
class Evaluation:
    """Options of an evaluation, whatever the task; a task with options of its own has a subclass of this.

    Args:
        sizes: The sizes that the network is run at.
        bn_images: Training images that BatchNorm's statistics are collected from, for each size; 0 for all.
        augmented: Estimate those statistics on augmented images. None: only if training used CutMix, since a network
            that was trained on mixed images knows other statistics than those of images as they are.
        checkpoint: The network with the "best" validation score, or the "last": where a price that rises in training
            prunes the network, the best one is an early one.
    """

    sizes: Sizes = field(default_factory=Sizes)
    bn_images: int = 1024
    augmented: bool | None = None
    checkpoint: BestOrLast = "best"

    def __post_init__(self) -> None:
        check_bn_images("bn_images", self.bn_images)


def check_bn_images(name: str, *counts: int) -> None:
    """Refuse numbers of images that have no statistics."""
    for count in counts:
        refuse_unless(count == 0 or count >= 2, name, "be at least 2 images, or 0 for all", count)


def machine(device: torch.device) -> str:
    """Machine that times were measured on, in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()}), torch {torch.__version__}"


@dataclass(frozen=True)
class Reading:
    """Reading of a network's outputs: the link, and the dimension along which classes are counted."""

    link: Link
    dim: int | None = None


class Scores(ABC):
    """Scores of a network on labelled examples that come batch by batch."""

    @abstractmethod
    def add(self, prediction: Prediction, target: Tensor) -> None:
        """Count a batch; a ValueError says what labels must be where they cannot be meant."""

    @abstractmethod
    def row(self) -> dict[str, Any]:
        """The scores of all examples that were counted, by the keys of columns; "_low" and "_high" end an interval."""


def detection(inside: Tensor, outside: Tensor) -> dict[str, Tensor]:
    """Detection of examples out of domain by their uncertainties, (M,), beside those in domain, (N,)."""
    return {
        "auroc": metrics.auroc(inside, outside),
        "aupr": metrics.aupr(inside, outside),
        "base_rate": metrics.base_rate(inside, outside),
        "fpr95": metrics.fpr_at_tpr(inside, outside),
    }


class Task(ABC):
    """Task of a network, what it does with an image: one object a task, which registers itself by `register`.

    Networks of recipes are trained and evaluated by what takes a recipe or a `TrainedRun`. Any other network is
    evaluated by `reads` and `scores`: a task that has but these two takes part in `vnd.evaluate`.

    Attributes:
        name: What methods give as their `task`.
        kind: What a run of it is called in a sentence: "a classifier".
        noun: What pages call its networks.
        evaluation: What is evaluated: the section `evaluate` of its recipes, and options of `vnd evaluate`.
        options: Kinds of sizes, beside fractions, that its networks can have.
        scored: What validation measures, and how that is shown.
        compare: What two runs must have in common to stand in one figure.
        columns: Of the rows of its results, as pages show them.
        measures: Those of the rows that `vnd.evaluate` gives; `columns` unless said.
        drawn: Sections of a page of such rows, beside those of all tasks.
        sections: Of its pages, in their order; those of `vnd.report.html`.
        has_classes: Whether an answer is a probability of each class that a picture may be of.
        has_masks: Whether its labels are masks.
        validates_draws: Whether validation draws weights, and takes statistics of drawn ones.
        widths: The section and keys of a recipe that say a width: runs that differ in them alone are one curve.
        calls_network: Whether its methods call a network of the user's own, or only parts of it.
        not_extracted: Why `vnd extract` is not for it; empty if it is.
        hub_task: What the Hugging Face Hub calls it.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    noun: ClassVar[str]
    evaluation: ClassVar[type[Evaluation]] = Evaluation
    options: ClassVar[frozenset[str]] = frozenset()
    scored: ClassVar[tuple[str, Callable[[float], str]]] = ("score", "{:.4f}".format)
    compare: ClassVar[Sequence[str]] = ("data", "network")
    columns: ClassVar[list[dict[str, Any]]] = COSTS
    measures: ClassVar[list[dict[str, Any]] | None] = None
    drawn: ClassVar[Sequence[str]] = ()
    sections: ClassVar[Sequence[str]] = ("training",)
    has_classes: ClassVar[bool] = False
    has_masks: ClassVar[bool] = False
    validates_draws: ClassVar[bool] = False
    widths: ClassVar[tuple[str, tuple[str, ...]]] = ("method", ())
    calls_network: ClassVar[bool] = True
    not_extracted: ClassVar[str] = "its task measures no network that was cut out"
    hub_task: ClassVar[str] = "other"

    def reads(self, output: Tensor, target: Tensor, dim: int | None = None) -> Reading | None:
        """Reading of outputs beside labels, both of one batch; None where they cannot be of this task.

        Args:
            output: As the network gives it, (B, …).
            target: The labels.
            dim: The dimension of classes, where the caller says it.
        """
        return None

    def scores(self, reading: Reading, bins: int) -> Scores:
        """Empty scores of a network whose outputs are so read; `bins` of calibration errors."""
        raise ValueError(f"task: {self.name} scores no network by itself; evaluate a run by vnd evaluate RUN")

    def takes(self, net: Any) -> bool:
        """Tell if a network is not read by predictions beside labels, but by `measure`, as a code."""
        return False

    def measure(self, net: Any, batches: Iterable[Any], widths: Any, done: Callable[[], Any]) -> list[dict[str, Any]]:
        """Rows of a network that it takes, on batches, at widths, None for sensible ones; `done` counts batches."""
        raise ValueError(f"task: {self.name} measures no network by itself; evaluate a run by vnd evaluate RUN")

    def uncertainties(self, prediction: Prediction) -> dict[str, Tensor]:
        """Uncertainties of each example, (B,), by name, the main one without: the entropy, between samples also MI.

        Of what has no entropy it is the standard deviation between samples. Those of parts, as pixels, are averaged.
        """
        drawn = prediction.samples > 1
        named: dict[str, Tensor] = {}
        if prediction.entropy is not None:
            named[""] = prediction.entropy
        elif drawn:
            named[""] = prediction.variance.sqrt()
        if drawn and prediction.mutual_information is not None:
            named["mutual_information"] = prediction.mutual_information
        return {name: found.flatten(1).mean(1) if found.dim() > 1 else found for name, found in named.items()}

    def check_data(self, images: Images, recipe: Any) -> None:  # noqa: B027
        """Refuse training images that nobody could learn it from; `recipe` is the section `data`."""

    def moments(self, train: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std that pixels between 0 and 1 are normalised by: mean 0 and std 1 unless said."""
        return statistics(train)

    def check_network(self, network: nn.Module, recipe: Any, images: Images) -> None:  # noqa: B027
        """Refuse a plain network that cannot do it."""

    def check_answer(self, answer: Any, recipe: Any, images: Images) -> None:  # noqa: B027
        """Refuse what a plain network answers two images with."""

    def check_model(self, model: nn.Module, options: Any) -> None:  # noqa: B027
        """Refuse options of an evaluation that a model cannot have."""

    def num_outputs(self, classes: int) -> int:
        """Numbers that a network answers with, for data of so many classes; 0 where they do not tell."""
        return classes

    def bn_batch(self, batch: int) -> int:
        """Images in a batch that BatchNorm's statistics are collected from, where training has so many."""
        return BATCH

    def validate(self, method: Any, model: nn.Module, size: Size, images: Images, normalise: Normalise) -> float:
        """Measure a size of a recalibrated network on validation images."""
        raise ValueError(self._without_recipes("validate"))

    def score(self, mean: float) -> float:
        """The mean over the sizes that are looked at, as what is best when it is largest."""
        return -mean

    def evaluate(self, run: TrainedRun, options: Any, test: Images, done: Callable[[int], None]) -> dict[str, Any]:
        """Measure a network at its sizes: `rows`, `tidy` rows, and what else its sections draw."""
        raise ValueError(self._without_recipes("evaluate"))

    def cut_row(self, run: TrainedRun, size: Size, small: nn.Module, keep: Keep, samples: int) -> dict[str, Any]:
        """Measure a network that `vnd extract` cut out of a run, on the test images: a row of `cut_table`."""
        raise ValueError(f"extract: {self.not_extracted}")

    def cut_table(self, row: dict[str, Any], title: str) -> Table:
        """Table of such a row, for a terminal."""
        raise ValueError(f"extract: {self.not_extracted}")

    def work(self, run: TrainedRun, options: Any, test: Images) -> int:
        """The sum of what `evaluate` reports to `done`, for a progress bar."""
        raise ValueError(self._without_recipes("work"))

    def tables(self, results: dict[str, Any], split: str, options: Any) -> list[Table]:
        """Tables that `vnd evaluate` prints."""
        raise ValueError(self._without_recipes("tables"))

    def _without_recipes(self, missing: str) -> str:
        return f"{self.name}: a task of recipes must have its own {missing}; it is for networks that vnd.evaluate takes"

    def of_data(self, name: str) -> dict[str, Any]:
        """Further entries of results on a data set."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Entries of a result file on it."""
        about = {"name": self.name, "noun": self.noun, "compare": list(self.compare)}
        return {"task": about, "columns": self.columns, "sections": list(self.sections)}


def rows_table(
    rows: list[dict[str, Any]],
    lead: Mapping[str, Callable[[dict[str, Any]], str]],
    numbers: Mapping[str, tuple[str, Callable[[Any], str]]],
    title: str,
    caption: str | None = None,
    chosen: str | None = None,
) -> Table:
    """Table of results for a terminal: what leads each row, then the numbers that any of them has; "–" for none.

    Args:
        rows: Of results.
        lead: Headings of the first columns, and the text of a row there.
        numbers: Keys of rows, each with its heading and how a number is shown.
        title: Above the table, and
        caption: below it.
        chosen: The label of the row that is marked.
    """
    shown = {key: both for key, both in numbers.items() if any(row.get(key) is not None for row in rows)}
    look: dict[str, Any] = {"title": Text(title), "caption": caption and Text(caption), "padding": (0, 1, 0, 0)}
    made = table([*lead, *(heading for heading, _ in shown.values())], lead, **look)
    for row in rows:
        first, *others = (text(row) for text in lead.values())
        mark, style = (" ←", "bold") if chosen is not None and row["label"] == chosen else ("", None)
        cells = ("–" if row.get(key) is None else form(row[key]) for key, (_, form) in shown.items())
        made.add_row(first + mark, *others, *cells, style=style)
    return made


TASKS: dict[str, Task] = {}


def register(task: type[Task]) -> type[Task]:
    """Make a task known by its name: a decorator of its class."""
    TASKS[task.name] = task()
    return task


def task_of(method: Method | type[Method]) -> Task:
    """The task of a method."""
    return TASKS[method.task]


def declare(task: Task, method: str, data: str) -> dict[str, Any]:
    """Beginning of a result file: format, task, method, columns and sections."""
    return copy.deepcopy({"format": 2, **task.describe(), "method": describe(method), **task.of_data(data)})
