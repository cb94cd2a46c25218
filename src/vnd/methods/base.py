"""Interface of every method: the loop, the evaluation and the commands know no more."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from inspect import signature
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd.nn as nested
from vnd.nn import BayesLayer, Prediction
from vnd.nn.extract import ORIGINS, Keep
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
    """Entry "method" of a result file; of one that declares nothing, its key."""
    return {"key": key, "name": key} | (asdict(TRAITS[key]) if key in TRAITS else {})


Kind = TypeVar("Kind")

# Images (batch, channels, height, width); labels (batch,) or (batch, classes), or masks (batch, height, width).
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Terms:
    """A loss and the parts it is made of; the parts are for people to read."""

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """State of training at a step, `share` of it being done.

    `kl_weight` is a tensor, so that a compiled step is compiled once; index and share are for `prepare`.
    `log_loss_temperature`, (num_loss_temperatures,), is log τ of each network of fixed size; see
    `vnd.train.state.ConfidenceController`.
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
            shares = getattr(self, name)
            refuse_unless(all(0 < share <= 1 for share in shares), name, "lie in (0, 1]", shares)
        refuse_unless(all(x > 0 for x in self.parameters), "parameters", "be greater than 0", self.parameters)
        refuse_unless(self.learned >= 0, "learned", "be 0 or more", self.learned)
        refuse_unless(0 < self.leading <= 1, "leading", "lie in (0, 1]", self.leading)
        some = bool(self.fractions or self.levels or self.parameters or self.learned)
        refuse_unless(some, "fractions, levels, parameters or learned", "name at least one size", "none")


@dataclass(frozen=True)
class Size:
    """One of them: a width, what it is called, where it comes from, and which fraction it is, if one."""

    kind: Literal["uniform", "learned", "sampled"]
    label: str
    width: Width
    fraction: float | None = None


class Method(ABC):
    """A frozen dataclass of options, with what a system of the paper does in its own way.

    Attributes:
        task: What its model does with an image.
    """

    task = "classification"

    def __post_init__(self) -> None:
        check(self)

    @property
    def num_loss_temperatures(self) -> int:
        """Number of networks of fixed size trained in every step: each can have a loss temperature of its own."""
        return 0

    @abstractmethod
    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Make its model from a plain network."""

    def prepare(  # noqa: B027
        self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]
    ) -> None:
        """Do what comes before a step and needs no gradient; `average` is the mean over processes."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The loss of a batch."""

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """Logits, (batch, classes), of those networks, from the smallest to the full one; none before all are there."""
        return []

    @abstractmethod
    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """Those of the wanted sizes that it has."""

    def recalibrate(  # noqa: B027
        self, model: nn.Module, batches: Callable[[], Iterable[Any]], widths: list[Width], samples: bool
    ) -> None:
        """Make these widths ready for prediction with samples or with means, from a few batches of training data."""

    @abstractmethod
    def extract(self, model: nn.Module, width: Width, keep: Keep = "mean") -> nn.Module:
        """The network of a width, as small as that: a copy, as `vnd.extract` makes one."""

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """Average probabilities over draws of the weights of what `extract` gave; with 0, those of their means."""
        return nested.predict(network, x, samples=samples)

    def cost(self, network: nn.Module, example: Tensor) -> dict[str, int]:
        """Cost of a network that `extract` gave: its `parameters`, `macs` an example and `bytes`."""
        counted = nested.profile(network, example_input=example)
        return {"parameters": counted.parameters, "macs": counted.macs, "bytes": counted.bytes}


class Single(Method):
    """A method whose model has one size; its statistics are those of training, or of a moving average's weights."""

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """The one that it has, whatever is wanted."""
        shape = getattr(self, "shape", None)
        fraction = getattr(self, "fraction", 1.0)
        return [
            Size("learned", "own shape", None) if shape else Size("uniform", f"{100 * fraction:.4g} %", None, fraction)
        ]

    def show(self, model: nn.Module, x: Tensor) -> None:
        """Run images through the model as its training does, so that BatchNorm sees what it sees there."""
        model(x)

    def extract(self, model: nn.Module, width: Width, keep: Keep = "mean") -> nn.Module:
        """A copy of the network, with or without its posterior: nothing is done to the one in training."""
        return with_means(model) if keep == "mean" else copied(model)


def copied(model: nn.Module) -> nn.Module:
    """A copy that knows as well what it was cut from, so that `vnd.load` can build it again."""
    new = copy.deepcopy(model)
    if model in ORIGINS:
        ORIGINS[new] = ORIGINS[model]
    return new


def with_means(model: nn.Module) -> nn.Module:
    """A copy of the network with torch's own layers in the place of Bayesian ones."""
    plain = copied(model)
    if plain in ORIGINS:
        ORIGINS[plain] = ORIGINS[plain] | {"keep": "mean"}
    for parent in list(plain.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, BayesLayer):
                setattr(parent, name, module.to_plain())
    return plain


@runtime_checkable
class Distills(Protocol):
    """A method whose network is a student of a trained one."""

    def kept(self, teacher: nn.Module) -> Any:
        """Groups that a student of this teacher has; refused where it cannot have them."""


METHODS: dict[str, type[Any]] = {}


def register(name: str, traits: Traits | None = None) -> Callable[[type[Kind]], type[Kind]]:
    """Make a method known by the name that recipes give it: a decorator of its class."""

    def known(kind: type[Kind]) -> type[Kind]:
        METHODS[name], TRAITS[name] = kind, traits or Traits(name)
        return kind

    return known


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Mean negative log-likelihood of the labels, in float32; they may be probabilities of classes."""
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)


def rules_of(rules: dict[str, dict[str, Any]]) -> dict[str, nested.Rule]:
    """The rules of `to_nested` from what a recipe says."""
    known = {f.name for f in fields(nested.Rule)}
    for pattern, options in rules.items():
        if unknown := set(options) - known:
            raise ValueError(f"rules: {pattern} has no {unknown.pop()!r}; known are {', '.join(sorted(known))}")
    return {pattern: nested.Rule(**options) for pattern, options in rules.items()}


def converted(network: nn.Module, example: Tensor, method: Any, **options: Any) -> nn.Module:
    """The nested form of a plain network, by those of a method's options that `to_nested` has, and some more."""
    given = {name: getattr(method, name) for name in signature(nested.to_nested).parameters if hasattr(method, name)}
    return nested.to_nested(network, example, **given | {"rules": rules_of(method.rules)} | options)


def refuse_several_processes(who: str) -> None:
    """Refuse to train in several processes what runs by other passes than those that a wrapper sees."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise ValueError(f"{who} are trained in one process; start vnd train without a launcher")


LIMITS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (  # option, of whatever method; what it must do
    ("num_groups", lambda x: x >= 1, "be at least 1"),
    ("label_smoothing", lambda x: 0 <= x < 1, "lie in [0, 1)"),
    ("draws", lambda x: x >= 1, "be at least 1"),
    ("measure_every", lambda x: x >= 0, "be 0 (never) or more"),
    ("measured_share", lambda x: 0 < x <= 1, "lie in (0, 1]"),
    ("distill", lambda x: 0 <= x <= 1, "lie in [0, 1]"),
    ("full_share", lambda x: 0 < x < 1, "lie in (0, 1)"),
    ("fixed_budgets", lambda x: all(budget > 0 for budget in x), "be numbers of parameters, greater than 0"),
    ("fixed_budgets", lambda x: list(x) == sorted(set(x)), "rise from the smallest to the largest"),
    ("freeze_order_after", lambda x: 0 <= x <= 1, "lie in [0, 1]"),
    ("sampled_share", lambda x: 0 < x <= 1, "lie in (0, 1]"),
    ("variance_share", lambda x: 0 < x <= 1, "lie in (0, 1]"),
    ("uniform_share", lambda x: 0 <= x <= 1, "lie in [0, 1]"),
    ("length_kl_weight", lambda x: x >= 0, "be 0 or more"),
    ("fraction", lambda x: 0 < x <= 1, "lie in (0, 1]"),
    ("label_weight", lambda x: x >= 0, "be 0 or more"),
    ("bandwidths", lambda x: bool(x) and all(0 < m < math.inf for m in x), "be one or more positive numbers"),
    ("likelihood_std", lambda x: 0 < x < math.inf, "be greater than 0"),
    ("over", lambda x: x >= 1, "be at least 1 step"),
    *((name, lambda x: x >= 0, "be 0 or more") for name in ("beta", "gamma", "capacity", "category_capacity")),
    ("categories", lambda x: x >= 2, "be at least 2"),
    ("temperature", lambda x: x > 0, "be greater than 0"),
    ("projections", lambda x: x >= 1, "be at least 1"),
    ("free_bits", lambda x: x >= 0, "be 0 or more"),
    ("free_until", lambda x: x is None or 0 < x <= 1, "lie in (0, 1]"),
    ("fractions", lambda x: all(0 < fraction <= 1 for fraction in x), "lie in (0, 1]"),
    ("fixed_share", lambda x: 0 <= x < 1, "lie in [0, 1)"),
    ("all_lengths_until", lambda x: x is None or 0 < x <= 1, "lie in (0, 1]"),
    ("all_lengths_share", lambda x: x is None or 0 <= x < 1, "lie in [0, 1)"),
    ("sampler", lambda x: x in ("exact", "released"), "be exact or released"),
    ("test_noise", lambda x: x in ("weights", "pixels"), "be weights or pixels"),
    ("rate", lambda x: 0 < x < 1, "lie in (0, 1)"),
    ("keep_prob", lambda x: x is None or 0 < x < 1, "lie in (0, 1)"),
    ("weight_prior", lambda x: isinstance(x, str) or 0 < x < math.inf, "be greater than 0, the scale of a Gaussian"),
    ("kl_constant", lambda x: x is None or math.isfinite(x), "be finite"),
    ("members", lambda x: x >= 1, "be at least 1"),
)


def check(method: Any) -> None:
    """Refuse options out of range, by their names."""
    given = {f.name: getattr(method, f.name) for f in fields(method)}
    for name, holds, wanted in LIMITS:
        if name in given:
            refuse_unless(holds(given[name]), name, wanted, given[name])
    if given.get("all_lengths_share"):
        refuse_unless(not given["fractions"], "fractions", "be none with all_lengths_share", given["fractions"])
    if given.get("kl_constant") is not None:
        gaussian = not isinstance(given["weight_prior"], str)
        refuse_unless(not gaussian, "kl_constant", "be none with a Gaussian weight_prior", given["kl_constant"])
    base, most = given.get("base", 1), given.get("num_groups")
    if most is None:
        refuse_unless(base >= 1, "base", "be at least 1 dimension", base)
    else:
        refuse_unless(0 <= base <= most, "base", f"lie in 0 … num_groups = {most}", base)
    rules_of(given.get("rules", {}))


def refuse_unless(holds: bool, name: str, wanted: str, got: Any) -> None:
    """Refuse an option by its name, unless it does what it must."""
    if not holds:
        raise ValueError(f"{name} must {wanted}; got {list(got) if isinstance(got, tuple) else got}")


@dataclass(frozen=True)
class Converted:
    """Options of a method that trains a converted network on labels.

    Args:
        label_smoothing: Share of the target given to all classes alike.
        rules: Exceptions by name pattern of a layer: {"features.0": {"nest": false, "log_alpha_init": -8}}.
    """

    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def _likelihood(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(images), labels, self.label_smoothing)


@dataclass(frozen=True)
class Grouped(Converted):
    """Those of a method whose network has the widths of a nested one.

    Args:
        num_groups: Groups that the channels of a layer are split into.
        base: Groups that are always kept.
    """

    num_groups: int = 32
    base: int = 1
