"""The optimizers a recipe can name, with rates of their own for weights, log α and the chain's logits."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from vnd.nn import parameter_groups
from vnd.optim.ngd import NGD


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
