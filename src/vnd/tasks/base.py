"""A task: its data, options, scores, rows and pages; and what is evaluated of a trained network."""

from __future__ import annotations

import copy
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from rich.table import Table
from torch import Tensor, nn

from vnd.data.batches import Normalise, statistics
from vnd.data.images import Images
from vnd.methods import Method, Size, Sizes
from vnd.methods.base import describe
from vnd.tasks.trained import BestOrLast, TrainedRun

PERCENT: dict[str, Any] = {"form": "percent", "digits": 1}
COSTS: list[dict[str, Any]] = [
    {"key": "parameters", "heading": "Parameters", "form": "short"},
    {"key": "macs", "heading": "Multiply-adds", "form": "short"},
    {"key": "bytes", "heading": "Size", "form": "bytes"},
    {"key": "latency_ms", "heading": "Time", "form": "ms"},
]
BATCH = 512  # images in a batch that statistics are collected from

Inference = Literal["mc", "mean", "mc_mask", "temperature_scaled"]


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated.

    Args:
        sizes: The sizes that the network is run at.
        samples: Draws of the weights a prediction averages over; 0 for their means.
        inference: How the network predicts, the main way first. "mc": an average over draws of the weights; "mean":
            their means alone, in one pass (DT-BN³); "mc_mask": an average over random masks, each with a draw of the
            weights, as in training (BN³-MC); "temperature_scaled": as "mc", with a temperature for each size that is
            fitted on the validation images (FN³-TS).
        repeats: Evaluations, each with other draws of the weights and other images for BatchNorm's statistics.
        bn_images: Training images that BatchNorm's statistics are collected from, for each size; 0 for all.
        augmented: Those images are augmented as in training. None for where they were mixed (CutMix): a nested network
            that was trained on batches with mixed images in them knows other statistics than those of images as they
            are.
        bn_images_sweep: Further numbers of such images that the main reading is evaluated with; 0 for all.
        ood: A data set that the network should be unsure about; None for none.
        ood_folder: Where its official files lie; None for the data root.
        bins: Of the calibration error.
        risk: Share of wrong answers that is allowed among those that a network gives and does not withhold.
        checkpoint: The network with the "best" validation accuracy, or the "last": where a price that rises in training
            prunes the network, the best one is an early one.
        num_generated: Images that an auto-encoder draws at each length, to be held against test images; 0 for none.
        inception: File with the weights of FID's Inception; None for EfficientNet-Lite0, and then it is no FID.
        target: Mean squared error that the shortest codes are sought for; None for the one at half the length.
        num_mask_samples: Numbers of masks that are drawn for an image and held against its graders', from few to many.
    """

    sizes: Sizes = field(default_factory=Sizes)
    samples: int = 6
    inference: tuple[Inference, ...] = ("mc",)
    repeats: int = 1
    bn_images: int = 1024
    augmented: bool | None = None
    bn_images_sweep: tuple[int, ...] = ()
    ood: str | None = None
    ood_folder: str | None = None
    bins: int = 15
    risk: float = 0.05
    checkpoint: BestOrLast = "best"
    num_generated: int = 10_000
    inception: str | None = None
    target: float | None = None
    num_mask_samples: tuple[int, ...] = (1, 4, 8, 16)

    def __post_init__(self) -> None:
        if self.target is not None and not self.target > 0:
            raise ValueError(f"target must be greater than 0; got {self.target}")
        for name, least in (("samples", 0), ("bins", 1), ("repeats", 1), ("num_generated", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        for name, count in (
            ("bn_images", self.bn_images),
            *(("bn_images_sweep", count) for count in self.bn_images_sweep),
        ):
            if count < 0 or count == 1:
                raise ValueError(f"{name} must be at least 2 images, or 0 for all; got {count}")
        if not self.inference or set(self.inference) - set(get_args(Inference)):
            raise ValueError(f"inference must be some of {', '.join(get_args(Inference))}; got {list(self.inference)}")
        if self.inference[0] == "mc_mask":
            raise ValueError("inference must begin with one that has sizes, not mc_mask; got mc_mask first")
        if (
            not self.num_mask_samples
            or self.num_mask_samples[0] < 1
            or list(self.num_mask_samples) != sorted(set(self.num_mask_samples))
        ):
            raise ValueError(
                f"num_mask_samples must be numbers of masks that rise from 1 or more; got {list(self.num_mask_samples)}"
            )
        if not 0 < self.risk < 1:
            raise ValueError(f"risk must lie in (0, 1); got {self.risk}")


def machine(device: torch.device) -> str:
    """Where the times were measured, in words."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{torch.get_num_threads()} CPU threads ({platform.machine()}), torch {torch.__version__}"


class Task(ABC):
    """What a network does with an image: one object a task, which registers itself by `register`.

    Attributes:
        name: What methods give as their `task`.
        kind: What a run of it is called in a sentence: "a classifier".
        noun: What pages call its networks.
        options: Options of `vnd evaluate` that are for it, of those that are not for every run.
        scored: What validation measures, and how that is shown.
        compare: What two runs must have in common to stand in one figure.
        columns: Of the rows of its results, as pages show them.
        sections: Of its pages, in their order; those of `vnd.report.html`.
        has_masks: Whether its labels are masks.
        validates_draws: Whether validation draws weights, and takes statistics of drawn ones.
        widths: The section and keys of a recipe that say a width: runs that differ in them alone are one curve.
        not_extracted: Why `vnd extract` is not for it; empty if it is.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    noun: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    scored: ClassVar[tuple[str, Callable[[float], str]]] = ("score", "{:.4f}".format)
    compare: ClassVar[Sequence[str]] = ("data", "network")
    columns: ClassVar[list[dict[str, Any]]] = COSTS
    sections: ClassVar[Sequence[str]] = ("training",)
    has_masks: ClassVar[bool] = False
    validates_draws: ClassVar[bool] = False
    widths: ClassVar[tuple[str, tuple[str, ...]]] = ("method", ())
    not_extracted: ClassVar[str] = ""

    def check_data(self, images: Images, recipe: Any) -> None:  # noqa: B027
        """Refuse training images that nobody could learn it from; `recipe` is the section `data`."""

    def moments(self, train: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What is taken from pixels between 0 and 1, and what they are divided by: mean 0 and std 1 unless said."""
        return statistics(train)

    def check_network(self, network: nn.Module, recipe: Any, images: Images) -> None:  # noqa: B027
        """Refuse a plain network that cannot do it."""

    def check_answer(self, answer: Tensor, recipe: Any) -> None:  # noqa: B027
        """Refuse what a plain network answers two images with."""

    def check_options(self, options: Evaluation) -> None:  # noqa: B027
        """Refuse options of an evaluation that exclude each other."""

    def check_model(self, model: nn.Module, options: Evaluation) -> None:  # noqa: B027
        """Refuse options of an evaluation that a model cannot have."""

    def bn_batch(self, batch: int) -> int:
        """Images in a batch that BatchNorm's statistics are collected from, where training has so many."""
        return BATCH

    @abstractmethod
    def validate(self, method: Any, model: nn.Module, size: Size, images: Images, normalise: Normalise) -> float:
        """Measure a size of a calibrated network on validation images."""

    def score(self, mean: float) -> float:
        """The mean over the sizes that are looked at, as what is best when it is largest."""
        return -mean

    @abstractmethod
    def evaluate(
        self, run: TrainedRun, options: Evaluation, test: Images, done: Callable[[int], None]
    ) -> dict[str, Any]:
        """Measure a network at its sizes: `rows`, `tidy` rows, `seconds`, and what else its sections draw."""

    @abstractmethod
    def work(self, run: TrainedRun, options: Evaluation, test: Images) -> int:
        """The sum of what `evaluate` reports to `done`, for a progress bar."""

    @abstractmethod
    def tables(self, results: dict[str, Any], split: str, options: Evaluation) -> list[Table]:
        """What `vnd evaluate` prints of its results."""

    def of_data(self, name: str) -> dict[str, Any]:
        """What results say of a data set beside these."""
        return {}

    def describe(self) -> dict[str, Any]:
        """What a result file says of it."""
        about = {"name": self.name, "noun": self.noun, "compare": list(self.compare)}
        return {"task": about, "columns": self.columns, "sections": list(self.sections)}


TASKS: dict[str, Task] = {}


def register(task: type[Task]) -> type[Task]:
    """Make a task known by its name: a decorator of its class."""
    TASKS[task.name] = task()
    return task


def task_of(method: Method) -> Task:
    """The task of a method."""
    return TASKS[method.task]


def declare(task: Task, method: str, data: str) -> dict[str, Any]:
    """What a result file begins with: format, task, method, columns and sections."""
    return copy.deepcopy({"format": 2, **task.describe(), "method": describe(method), **task.of_data(data)})
