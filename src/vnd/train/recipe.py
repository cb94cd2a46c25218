"""A recipe: everything that decides a run, as frozen dataclasses."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import yaml
from torch import nn

from vnd._code import find_code, names_code
from vnd._text import check_known, one_line
from vnd.data.augment import Augment
from vnd.data.registry import check_name
from vnd.methods import METHODS, Method
from vnd.methods.base import refuse_unless
from vnd.models import MODELS, build
from vnd.optim import Optimizer, Schedule
from vnd.tasks import Evaluation, task_of

Precision = Literal["no", "bf16", "fp16"]
LARGEST_SEED = 2**63 - 1  # that torch's generators take


DERIVED = ("in_channels", "image_size", "num_classes")  # arguments of networks that their data tell


@dataclass(frozen=True)
class Network:
    """A network and the arguments that it is made with.

    Args:
        name: That of one of `vnd.models`, or `package.module:Class` for one of one's own.
        config: The arguments, by name; those of `DERIVED` that it lacks are the data's.
    """

    name: str
    config: dict[str, Any]

    @property
    def kind(self) -> type[nn.Module]:
        """Its class."""
        return network_class(self.name)

    @property
    def is_own(self) -> bool:
        """Tell if it is of the user's own, so that no saved network says how to build it."""
        return names_code(self.name)

    def arguments(self, image: Sequence[int], classes: int) -> dict[str, Any]:
        """All arguments, for images (channels, height, width) of so many classes; 0 where they have none."""
        channels, height, width = image
        told = {"in_channels": channels, "image_size": height if height == width else 0, "num_classes": classes}
        open_yet = [name for name in DERIVED if name not in self.config and name in known_arguments(self.kind)[0]]
        return self.config | {name: told[name] for name in open_yet if told[name]}

    def build(self, image: Sequence[int] = (0, 0, 0), classes: int = 0) -> nn.Module:
        """Make it, with random weights; what it refuses is named by its key."""
        config = self.arguments(image, classes)
        if not self.is_own:
            try:
                return build(self.name, **config)
            except ValueError as error:
                own = "" if "image_size" in self.config or "image_size" not in str(error) else "; data.size changes it"
                raise ValueError(f"network.{str(error).partition(': ')[2]}{own}") from None
        _, needed = known_arguments(self.kind)
        if missing := next((name for name in needed if name not in config), None):
            raise ValueError(f"network.{missing} must be given: {self.name} has no default for it")
        try:
            return self.kind(**config)
        except Exception as error:  # it is anybody's
            said, short = one_line(error), self.name.partition(":")[2]
            argument = re.match(r"\w+", said.removeprefix(f"{short}: "))
            if isinstance(error, ValueError) and argument and argument[0] in config:
                raise ValueError(f"network.{said.removeprefix(f'{short}: ')}") from None
            raise ValueError(f"network: {self.call(config)} cannot be made: {said}") from None

    def check(self) -> None:
        """Make it, to see that it can be, unless it is of one's own and its data are not known yet."""
        if not self.is_own or all(name in self.config for name in known_arguments(self.kind)[0] if name in DERIVED):
            self.build()

    def call(self, config: dict[str, Any]) -> str:
        """The call that makes it, for people: SmallNet(channels=32)."""
        return f"{self.kind.__name__}({', '.join(f'{name}={value!r}' for name, value in config.items())})"


def network_class(name: str) -> type[nn.Module]:
    """The class of a network, by the name that recipes give it."""
    if not names_code(name):
        check_known("network.name", name, [*MODELS, "package.module:Class"])
        return MODELS[name]
    kind = find_code(name, "network.name")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        what = f"a class that is a {kind.__name__}" if isinstance(kind, type) else f"a {type(kind).__name__}"
        raise ValueError(f"network.name must be a class of torch.nn.Module; {name} is {what}")
    return kind


def known_arguments(kind: type[nn.Module]) -> tuple[dict[str, Any], list[str]]:
    """Arguments of a network's class with their annotations, and the names of those without a default.

    What `**kwargs` passes on is what the next class's `__init__` takes. Where nobody says, "**" is among the names.
    """
    found, needed = dict[str, Any](), list[str]()
    passes_on = False
    makers = [base for base in kind.__mro__ if "__init__" in vars(base)]
    first = makers[0]  # what others need, it may give them itself
    for place in makers:
        if place is nn.Module:
            break
        try:
            hints = get_type_hints(vars(place)["__init__"])
        except Exception:  # of a name that is not there
            hints = {}
        parameters = list(inspect.signature(vars(place)["__init__"]).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                needed += [parameter.name] * (parameter.default is parameter.empty and place is first)
                found.setdefault(parameter.name, (hints.get(parameter.name, Any), parameter.default))
        passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        if not passes_on:
            break
    if passes_on:
        found["**"] = (Any, inspect.Parameter.empty)
    return found, needed


@dataclass(frozen=True)
class Data:
    """Data that a run is trained on.

    Args:
        name: One of `vnd data list`, or `package.module:function` for images that a function of one's own gives.
        folder: Where its official files lie; None for the data root ($VND_DATA, or ~/.cache/vnd/data). Of `folder` and
            `npz`, one's own folder of images or file of arrays.
        options: Arguments of the function.
        validation: Training images that are held out, by which the best network is chosen.
        split: Which images are held out: at "random" by `split_seed`, or the "last" ones.
        split_seed: Of the random split.
        limit: Train on so many images at most, drawn by `split_seed`; None for all.
        size: Height and width that images are brought to; None for their own.
        augment: Random changes of the training images.
        repeat_epochs: Number of distinct augmented epochs; later epochs replay them, and a student's teacher is asked
            once for each. 0: always new.
    """

    name: str = "fashion"
    folder: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    validation: int = 1000
    split: Literal["random", "last"] = "random"
    split_seed: int = 0
    limit: int | None = None
    size: int | None = None
    augment: Augment = dataclasses.field(default_factory=Augment)
    repeat_epochs: int = 0

    def __post_init__(self) -> None:
        check_name("name", self.name, self.folder, self.options)
        _at_least("validation", self.validation, 1)
        _at_least("repeat_epochs", self.repeat_epochs, 0)
        _at_least("split_seed", self.split_seed, 0)
        _at_least("limit", self.limit, 2)
        _at_least("size", self.size, 1)


@dataclass(frozen=True)
class Schedules:
    """Schedules of what changes over training.

    Args:
        lr: Factor on the optimizer's learning rates.
        temperature: τ of the relaxed masks.
        kl_weight: κ, on the KL in nats over the number of training images.
    """

    lr: Schedule = dataclasses.field(default_factory=lambda: Schedule("cosine", 1.0, 0.0, warmup=0.1))
    temperature: Schedule = dataclasses.field(default_factory=lambda: Schedule("constant", 2.0))
    kl_weight: Schedule = dataclasses.field(default_factory=lambda: Schedule("constant", 1e-3))

    def __post_init__(self) -> None:
        lowest = min(self.temperature.start, self.temperature.gamma if self.temperature.kind == "steps" else 1.0)
        refuse_unless(lowest > 0, "temperature", "stay greater than 0", lowest)


@dataclass(frozen=True)
class Train:
    """Settings of the training of a run.

    Args:
        epochs: Passes over the training images.
        batch: Images in a step, all processes together.
        seed: Of the weights, the order of the images, the augmentation and all noise.
        precision: "no" for float32, "bf16" or "fp16" for mixed precision.
        compile: Compile the step with `torch.compile`.
        channels_last: Lay images out with channels last, as GPUs like them.
        deterministic: Use only algorithms that give the same bits each time, so that a run that goes on is the same;
            on a GPU others can be a little faster.
        device: "auto" for a CUDA GPU if there is one, "cpu", or "cuda".
        clip: Largest norm of the gradient; None for no bound.
        ema: Decay of a moving average of the weights, which is then what is kept; None for none.
        loss_temperature: How far, after each epoch, the loss temperature of a network of fixed size moves for a
            difference of 1 between its confidence and its accuracy on validation images, so that it is calibrated when
            training ends; 0 for not at all. See `vnd.train.state.ConfidenceController`.
        log_every: Steps between two rows of the log.
        validate_every: Epochs between two looks at the validation images.
        validate_at: Fractions of the width that are looked at; the best network has the best mean accuracy over them.
        save_every: Epochs between two checkpoints: what is written is three times the network and more.
        checkpoint_every: Steps between two checkpoints, beside those; None for none.
        track: Trackers that rows of the log go to as well, by the names that Accelerate has for them: tensorboard,
            trackio, wandb, … Their files stay in the run's folder. They decide nothing.
    """

    epochs: int = 10
    batch: int = 128
    seed: int = 0
    precision: Precision = "no"
    compile: bool = False
    channels_last: bool = False
    deterministic: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    clip: float | None = None
    ema: float | None = None
    loss_temperature: float = 0.0
    log_every: int = 20
    validate_every: int = 1
    validate_at: tuple[float, ...] = (0.25, 1.0)
    save_every: int = 1
    checkpoint_every: int | None = None
    track: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every", "validate_every", "save_every", "checkpoint_every"):
            _at_least(name, getattr(self, name), 1)
        _at_least("batch", self.batch, 2)
        refuse_unless(0 <= self.seed < LARGEST_SEED, "seed", f"lie in 0 … {LARGEST_SEED - 1}", self.seed)
        refuse_unless(self.clip is None or self.clip > 0, "clip", "be greater than 0", self.clip)
        refuse_unless(self.loss_temperature >= 0, "loss_temperature", "be 0 or more", self.loss_temperature)
        refuse_unless(self.ema is None or 0 < self.ema < 1, "ema", "lie in (0, 1)", self.ema)
        some = bool(self.validate_at) and all(0 < fraction <= 1 for fraction in self.validate_at)
        refuse_unless(some, "validate_at", "hold fractions in (0, 1]", list(self.validate_at))


SECTIONS: dict[str, type] = {
    "data": Data, "optimizer": Optimizer, "schedule": Schedules, "train": Train, "evaluate": Evaluation,
}  # fmt: skip


def sections_of(method: str) -> dict[str, type]:
    """The sections of a recipe with a method: what is evaluated is its task's."""
    return SECTIONS | {"evaluate": task_of(METHODS[method]).evaluation}


@dataclass(frozen=True)
class Recipe:
    """All that decides a run; `about` is one line for people."""

    about: str
    method_name: str
    method: Method
    network: Network
    data: Data
    optimizer: Optimizer
    schedule: Schedules
    train: Train
    evaluate: Any  # of the class that the task has

    def augmented(self, wanted: bool | None = None) -> bool:
        """Tell if BatchNorm's statistics are those of images as in training; None for what the recipe says."""
        wanted = self.evaluate.augmented if wanted is None else wanted
        return self.data.augment.cutmix > 0 if wanted is None else wanted

    def with_train(self, **options: Any) -> Recipe:
        """The recipe with other options of its section `train`."""
        try:
            return dataclasses.replace(self, train=dataclasses.replace(self.train, **options))
        except ValueError as error:
            raise ValueError(f"train.{error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The recipe as YAML and JSON hold it."""
        method = {"name": self.method_name, **dataclasses.asdict(self.method)}  # type: ignore[call-overload]
        recipe = {"about": self.about, "method": method, "network": {"name": self.network.name, **self.network.config}}
        recipe |= {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}
        return dict(json.loads(json.dumps(recipe)))  # in which tuples are lists

    def to_yaml(self) -> str:
        """The recipe with every value spelt out; `parse` reads it back."""
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=120))


def digest_of(settings: dict[str, Any]) -> str:
    """The SHA-256 of what `Recipe.to_dict` gave, or of a part of it, in any order of the keys.

    Without what decides nothing: `about` and `train.track`.
    """
    decides = {key: value for key, value in settings.items() if key != "about"}
    if isinstance(decides.get("train"), dict):
        decides["train"] = {key: value for key, value in decides["train"].items() if key != "track"}
    if rules := decides["method"].get("rules"):  # of these the later ones win: their order decides
        decides["method"] = {**decides["method"], "rules": list(rules.items())}
    return hashlib.sha256(json.dumps(decides, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def differing_keys(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The keys, such as `train.epochs`, in which two of what `Recipe.to_dict` gave differ; none that decides nothing.

    >>> differing_keys({"about": "a", "train": {"seed": 0}}, {"about": "b", "train": {"seed": 1}})
    ['train.seed']
    """
    mine, theirs = (
        {k: json.dumps(v) for k, v in flatten(x) if k not in ("about", "train.track")} for x in (one, other)
    )
    keys = [key for key in {**mine, **theirs} if key not in mine or key not in theirs or mine[key] != theirs[key]]
    return keys or ["the order of method.rules"]


def flatten(given: dict[str, Any], leaves: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a recipe, such as `train.epochs`, with their values: no mappings, but for the `leaves`."""
    for name, value in given.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in leaves:
            yield from flatten(value, leaves, f"{key}.") if value else [(key, None)]
        else:
            yield key, value


def _at_least(name: str, value: int | None, least: int) -> None:
    refuse_unless(value is None or value >= least, name, f"be at least {least}", value)
