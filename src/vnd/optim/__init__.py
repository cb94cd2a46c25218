r"""The optimizers and schedules that a recipe can name; schedules are pure functions of the step.

`NGD` is Povey's online natural gradient.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from vnd.nn import parameter_groups
from vnd.optim.ngd import NGD

__all__ = ["NGD", "Optimizer", "Schedule", "set_rates", "value"]


@dataclass(frozen=True)
class Optimizer:
    """An optimizer and its rates.

    Args:
        name: "sgd", "adam", "adamw" or "ngd" (Povey's online natural gradient).
        lr: Learning rate of the weights, at its peak.
        log_alpha_lr: That of log α; None for `lr`.
        chain_lr: That of the chain's logits; None for `lr`.
        weight_decay: Decay of weights of two or more dimensions.
        momentum: Of SGD and NGD, and the first decay rate of Adam.
        nesterov: Look ahead along the momentum, with SGD and NGD.
        beta2: The second decay rate of Adam.
    """

    name: Literal["sgd", "adam", "adamw", "ngd"] = "sgd"
    lr: float = 0.1
    log_alpha_lr: float | None = None
    chain_lr: float | None = None
    weight_decay: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    beta2: float = 0.999

    def __post_init__(self) -> None:
        for name in ("lr", "log_alpha_lr", "chain_lr", "weight_decay"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must be 0 or more; got {value}")
        for name in ("momentum", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1); got {getattr(self, name)}")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make it for a network; each group keeps its peak rate as `peak`."""
        groups = parameter_groups(model, self.lr, self.log_alpha_lr, self.chain_lr, self.weight_decay)
        for group in groups:
            group["peak"] = group["lr"]
        cuda = any(parameter.is_cuda for parameter in model.parameters())
        if self.name in ("sgd", "ngd"):
            nesterov = self.nesterov and self.momentum > 0
            options: dict[str, Any] = {"lr": self.lr, "momentum": self.momentum, "nesterov": nesterov}
            return NGD(groups, **options) if self.name == "ngd" else torch.optim.SGD(groups, **options, fused=cuda)
        kind = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return kind(groups, lr=self.lr, betas=(self.momentum, self.beta2), fused=cuda)


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its peak rate times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


Kind = Literal["constant", "linear", "cosine", "exponential", "steps"]


@dataclass(frozen=True)
class Schedule:
    r"""A number that changes over training, given by where it starts, where it ends, and the way between.

    With $t \in [0, 1]$ the share of training done after the warm-up, $a$ = `start`, $b$ = `end`:

    $$\text{constant}: a \quad \text{linear}: a + (b - a) t \quad
      \text{cosine}: b + (a - b) \tfrac{1 + \cos π t}{2} \quad \text{exponential}: a (b / a)^t \quad
      \text{steps}: a\, γ^{\lfloor \text{epoch} / \text{step size} \rfloor}$$

    where `milestones` stand in the place of a step size, the exponent is the number of those that are passed.

    Args:
        kind: The way from start to end.
        start: The value at the beginning; for the learning rate a factor on the optimizer's.
        end: The value at the end; "constant" and "steps" do not look at it.
        warmup: Share of training over which the value first rises linearly from 0, in [0, 1).
        step_size: For "steps", epochs between two.
        gamma: For "steps", what each multiplies by.
        milestones: For "steps", the epochs of all of them, in the place of `step_size`.

    >>> [round(value(Schedule("linear", 1.0, 0.0, warmup=0.5), step, steps=4, epoch=0), 2) for step in range(4)]
    [0.33, 0.67, 1.0, 0.5]
    """

    kind: Kind = "constant"
    start: float = 1.0
    end: float = 0.0
    warmup: float = 0.0
    step_size: int = 1
    gamma: float = 0.1
    milestones: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if list(self.milestones) != sorted(set(self.milestones)) or any(epoch < 1 for epoch in self.milestones):
            raise ValueError(f"milestones must be epochs of at least 1 that rise; got {list(self.milestones)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must lie in [0, 1); got {self.warmup}")
        for name in ("start", "end", "gamma"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)}")
        if self.step_size < 1:
            raise ValueError(f"step_size must be at least 1 epoch; got {self.step_size}")
        if self.kind == "exponential" and not (self.start > 0 and self.end > 0):
            raise ValueError(f"start and end of an exponential must be greater than 0; got {self.start}, {self.end}")


def value(schedule: Schedule, step: int, steps: int, epoch: int) -> float:
    """The value of a schedule at a step, from 0, of `steps` in all; a warm-up begins with a step of more than 0."""
    rising = math.ceil(schedule.warmup * steps - 1e-9)
    share = max(0, step - rising) / max(1, steps - rising)
    a, b = schedule.start, schedule.end
    if schedule.kind == "linear":
        now = a + (b - a) * share
    elif schedule.kind == "cosine":
        now = b + (a - b) * (1 + math.cos(math.pi * share)) / 2
    elif schedule.kind == "exponential":
        now = float(a * (b / a) ** share)
    elif schedule.kind == "steps":
        passed = sum(epoch >= milestone for milestone in schedule.milestones)
        now = float(a * schedule.gamma ** (passed if schedule.milestones else epoch // schedule.step_size))
    else:
        now = a
    return now * (step + 1) / (rising + 1) if step < rising else now
