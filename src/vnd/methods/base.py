"""What every method says of itself: the loop, the sweep and the commands know no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd.nn as nested
from vnd.nn import Prediction
from vnd.nn.extract import Keep
from vnd.nn.width import Width


@dataclass(frozen=True)
class Look:
    """Color, marker and line of a curve, as matplotlib takes them."""

    color: str
    marker: str
    line: Any = "-"


@dataclass(frozen=True)
class Traits:
    """Of a method.

    Args:
        name: As tables and figures call it.
        rank: Its place in legends and tables.
        about: One sentence or two.
        sizes: "many" of one training; "each" where a training has one, chosen before; "found" where training finds it.
        order: Whether the order of units is "learned", "fixed" in advance, or there is "none".
        stochastic: Whether weights or masks are drawn at prediction.
        reference: Whether other methods are held against it.
        looks: Of its curves, by way of inference.
    """

    name: str
    rank: int = 99
    about: str = ""
    sizes: Literal["many", "each", "found"] = "many"
    order: Literal["learned", "fixed", "none"] = "none"
    stochastic: bool = True
    reference: bool = False
    looks: dict[str, Look] = field(default_factory=dict)


DASHED, DOTTED, DASH_DOTS = [0, [5, 1.5]], [0, [1, 1]], [0, [3, 1, 1, 1]]


def mc(color: str, marker: str, line: Any = "-") -> dict[str, Look]:
    """The look of averages over draws alone."""
    return {"mc": Look(color, marker, line)}


TRAITS: dict[str, Traits] = {}


def describe(key: str) -> dict[str, Any]:
    """What a result file says of a method under "method"; of one that declares nothing, its key."""
    return {"key": key, "name": key} | (asdict(TRAITS[key]) if key in TRAITS else {})


Kind = TypeVar("Kind")

# Images (batch, channels, height, width); labels (batch,) or (batch, classes), or masks (batch, height, width) of 0, 1.
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Terms:
    """A loss and the parts it is made of; the parts are for people to read."""

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """Where training stands, `share` of it being done.

    `kl_weight` is a tensor, so that a compiled step is compiled once; index and share are for `prepare`.
    `log_loss_temperature`, (num_loss_temperatures,), is log τ of each network of fixed size (`vnd.train.confidence`).
    `batch`, for `prepare` too, is the first step that had this batch, where batches come again (`data.repeat_epochs`).
    """

    index: int
    kl_weight: Tensor
    temperature: float
    num_data: int
    share: float = 0.0
    log_loss_temperature: Tensor | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Sizes:
    """The sizes that a trained network is run at.

    Args:
        fractions: The same share of the groups of every layer, in (0, 1].
        levels: Learned shapes at these levels, in (0, 1].
        parameters: Learned shapes of at most so many parameters.
        learned: Learned shapes of sizes spread evenly, by ratio, from the smallest network to the full one; fewer
            where two would be the same.
        leading: The fractions are shares of this leading part of every layer, in (0, 1]: 2/3 where the paper trains a
            network of 1.5 times the width and tests the more important part of it.
    """

    fractions: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    levels: tuple[float, ...] = ()
    parameters: tuple[float, ...] = ()
    learned: int = 0
    leading: float = 1.0

    def __post_init__(self) -> None:
        for name in ("fractions", "levels"):
            if not all(0 < value <= 1 for value in getattr(self, name)):
                raise ValueError(f"{name} must lie in (0, 1]; got {list(getattr(self, name))}")
        if not all(value > 0 for value in self.parameters):
            raise ValueError(f"parameters must be greater than 0; got {list(self.parameters)}")
        if self.learned < 0:
            raise ValueError(f"learned must be 0 or more; got {self.learned}")
        if not 0 < self.leading <= 1:
            raise ValueError(f"leading must lie in (0, 1]; got {self.leading}")
        if not (self.fractions or self.levels or self.parameters or self.learned):
            raise ValueError("fractions, levels, parameters or learned must name at least one size; got none")


@dataclass(frozen=True)
class Size:
    """One of them: a width, what it is called, where it comes from, and which fraction it is, if one."""

    kind: Literal["uniform", "learned", "sampled"]
    label: str
    width: Width
    fraction: float | None = None


class Method(Protocol):
    """A frozen dataclass of options, with what a system of the paper does in its own way."""

    @property
    def task(self) -> str:
        """What its model does with an image."""

    @property
    def num_loss_temperatures(self) -> int:
        """Number of networks of fixed size trained in every step: each can have a loss temperature of its own."""

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Make its model from a plain network."""

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Do what comes before a step and needs no gradient; `average` is the mean over processes."""

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The loss of a batch."""

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """Logits, (batch, classes), of those networks, from the smallest to the full one; none before all are there."""

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """Those of the wanted sizes that it has."""

    def recalibrate(
        self, model: nn.Module, batches: Callable[[], Iterable[Any]], widths: list[Width], samples: bool
    ) -> None:
        """Make these widths ready for prediction with samples or with means, from a few batches of training data."""

    def extract(self, model: nn.Module, width: Width, keep: Keep = "mean") -> nn.Module:
        """The network of a width, as small as that: a copy, as `vnd.extract` makes one."""

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """Predict by what `extract` gave, with some draws of the weights; 0 for their means."""

    def cost(self, network: nn.Module, example: Tensor) -> dict[str, int]:
        """What a network that `extract` gave takes: its `parameters`, `macs` an example and `bytes`."""


@runtime_checkable
class Distills(Protocol):
    """A method whose network is a student of a trained one."""

    def kept(self, teacher: nn.Module) -> Any:
        """What a student of this teacher has of it; refused where it cannot have it."""


METHODS: dict[str, type[Any]] = {}


def register(name: str, traits: Traits | None = None) -> Callable[[type[Kind]], type[Kind]]:
    """Make a method known by the name that recipes give it: a decorator of its class."""

    def known(kind: type[Kind]) -> type[Kind]:
        METHODS[name], TRAITS[name] = kind, traits or Traits(name)
        return kind

    return known


class ClassificationDefaults:
    """Defaults: a classification method without loss temperatures."""

    @property
    def task(self) -> str:
        """It classifies."""
        return "classification"

    @property
    def num_loss_temperatures(self) -> int:
        """None."""
        return 0

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """None."""
        return []


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Mean negative log-likelihood of the labels, in float32; they may be probabilities of classes."""
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)


def cost_of(network: nn.Module, example: Tensor) -> dict[str, int]:
    """The parameters, multiply-accumulates an example and bytes of a plain network."""
    counted = nested.profile(network, example_input=example)
    return {"parameters": counted.parameters, "macs": counted.macs, "bytes": counted.bytes}


def rules_of(rules: dict[str, dict[str, Any]]) -> dict[str, nested.Rule]:
    """The rules of `to_nested` from what a recipe says."""
    known = {f.name for f in fields(nested.Rule)}
    for pattern, options in rules.items():
        if unknown := set(options) - known:
            raise ValueError(f"rules: {pattern} has no {unknown.pop()!r}; known are {', '.join(sorted(known))}")
    return {pattern: nested.Rule(**options) for pattern, options in rules.items()}


def refuse_several_processes(who: str) -> None:
    """Refuse to train in several processes what runs by other passes than those that a wrapper sees."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise ValueError(f"{who} are trained in one process; start vnd train without a launcher")


def check(method: Any) -> None:
    """Refuse options out of range, by their names: those that a method has of the ones that several have."""

    def refuse(name: str, wanted: str) -> None:
        raise ValueError(f"{name} must {wanted}; got {getattr(method, name)}")

    known = {f.name for f in fields(method)}
    if "num_groups" in known and method.num_groups < 1:
        refuse("num_groups", "be at least 1")
    if "base" in known and not 0 <= method.base <= method.num_groups:
        refuse("base", f"lie in 0 … num_groups = {method.num_groups}")
    if "label_smoothing" in known and not 0 <= method.label_smoothing < 1:
        refuse("label_smoothing", "lie in [0, 1)")
    if "draws" in known and method.draws < 1:
        refuse("draws", "be at least 1")
    if "measure_every" in known and method.measure_every < 0:
        refuse("measure_every", "be 0 (never) or more")
    if "distill" in known and not 0 <= method.distill <= 1:
        refuse("distill", "lie in [0, 1]")
    if "full_share" in known and not 0 < method.full_share < 1:
        refuse("full_share", "lie in (0, 1)")
    if "fixed_budgets" in known and not all(budget > 0 for budget in method.fixed_budgets):
        refuse("fixed_budgets", "be numbers of parameters, greater than 0")
    if "fixed_budgets" in known and list(method.fixed_budgets) != sorted(set(method.fixed_budgets)):
        refuse("fixed_budgets", "rise from the smallest to the largest")
    if "freeze_order_after" in known and not 0 <= method.freeze_order_after <= 1:
        refuse("freeze_order_after", "lie in [0, 1]")
    if "sampled_share" in known and not 0 < method.sampled_share <= 1:
        refuse("sampled_share", "lie in (0, 1]")
    if "uniform_share" in known and not 0 <= method.uniform_share <= 1:
        refuse("uniform_share", "lie in [0, 1]")
    if "length_kl_weight" in known and method.length_kl_weight < 0:
        refuse("length_kl_weight", "be 0 or more")
    if "fraction" in known and not 0 < method.fraction <= 1:
        refuse("fraction", "lie in (0, 1]")
    rules_of(method.rules)
