"""Parameter sets that drive every law, after the manner of `torch.distributions`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from vnd.distributions import BernoulliChain, Downhill, LogUniform, MultiplicativeNormal, OrderedNormal


@dataclass(frozen=True)
class Ordering:
    """One parameter set of a chain and its relaxation."""

    name: str
    keep_logits: tuple[float, ...]
    temperature: float

    def __str__(self) -> str:
        return f"{self.name}-n{len(self.keep_logits)}-t{self.temperature:g}"

    @property
    def n(self) -> int:
        return len(self.keep_logits)

    def logits(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(self.keep_logits, dtype=dtype)

    def chain(self, dtype: torch.dtype = torch.float32) -> BernoulliChain:
        return BernoulliChain(self.logits(dtype))

    def downhill(self, dtype: torch.dtype = torch.float32) -> Downhill:
        return Downhill(self.temperature, self.logits(dtype))

    def ordered_normal(self, dtype: torch.dtype = torch.float32, base: int = 1) -> OrderedNormal:
        """Dimensions whose means and scales differ, so that a permutation of them shows."""
        position = torch.arange(self.n + base, dtype=dtype)
        return OrderedNormal(
            torch.cos(position), 0.5 + torch.sin(position).square(), self.logits(dtype), self.temperature
        )


def _uniform(n: int) -> tuple[float, ...]:
    return tuple(math.log(k) for k in range(n, 0, -1))


def _peaked(n: int, at: int, height: float) -> tuple[float, ...]:
    """Nearly always the length `at`."""
    return tuple(height if i < at else -height for i in range(n))


def _waves(n: int, height: float) -> tuple[float, ...]:
    return tuple(height * math.sin(1.7 * i + 0.4) for i in range(n))


ORDERINGS = [
    Ordering("even", (0.0,), 0.5),
    Ordering("kept", (3.0,), 2.0),
    Ordering("extreme", (8.0,), 1.0),
    Ordering("extreme-short", (-8.0,), 5.0),
    Ordering("even", (0.0, 0.0), 1.0),
    Ordering("falling", (2.0, -1.0), 0.1),
    Ordering("rising", (-1.0, 2.0), 5.0),
    Ordering("uniform", _uniform(3), 0.2),
    Ordering("waves", _waves(3, 4.0), 2.0),
    Ordering("peaked", _peaked(4, 2, 8.0), 0.5),
    Ordering("geometric", (math.log(9.0),) * 4, 0.1),
    Ordering("uniform", _uniform(5), 1.0),
    Ordering("waves", _waves(6, 8.0), 1.0),
    Ordering("short", (-2.0,) * 6, 2.0),
    Ordering("uniform", _uniform(8), 0.1),
    Ordering("uniform", _uniform(8), 5.0),
    Ordering("peaked", _peaked(8, 3, 4.0), 0.5),
    Ordering("peaked-full", _peaked(8, 8, 8.0), 0.2),
    Ordering("geometric", (math.log(9.0),) * 12, 2.0),
    Ordering("waves", _waves(16, 2.0), 0.7),
    Ordering("long", (3.0,) * 16, 1.0),
    Ordering("paper", (3.0,) * 30, 2.0),
    Ordering("uniform", _uniform(32), 0.5),
    Ordering("geometric", (math.log(19.0),) * 32, 0.2),
]
SMALL = [ordering for ordering in ORDERINGS if ordering.n in (1, 3, 5)]


@dataclass(frozen=True)
class Example:
    """A distribution and parameters that it accepts, batched or not."""

    family: type[Distribution]
    parameters: dict[str, Any]

    def build(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Distribution:
        def move(value: Any) -> Any:
            return value.to(device, dtype) if isinstance(value, Tensor) else value

        return self.family(**{name: move(value) for name, value in self.parameters.items()})

    def __str__(self) -> str:
        shapes = [f"{k}{tuple(v.shape)}" if isinstance(v, Tensor) else f"{k}={v}" for k, v in self.parameters.items()]
        return f"{self.family.__name__}-{'-'.join(shapes)}"


def _tensor(*shape: int, shift: float = 0.0) -> Tensor:
    """Fixed numbers of order one."""
    return shift + torch.sin(torch.arange(math.prod(shape), dtype=torch.float32) * 2.3 + 0.5).reshape(shape)


_RELAXED: list[Callable[[float | Tensor], dict[str, Any]]] = [
    lambda t: {"temperature": t, "keep_logits": _tensor(1)},
    lambda t: {"temperature": t, "length_logits": 2 * _tensor(2, 6)},
    lambda t: {"temperature": t, "keep_logits": 50 * _tensor(3, 1, 4)},
    lambda t: {"temperature": t, "keep_logits": 1e4 * _tensor(4)},
]
EXAMPLES = [
    Example(BernoulliChain, {"keep_logits": SMALL[3].logits()}),
    Example(BernoulliChain, {"keep_logits": 4 * _tensor(3, 7)}),
    Example(BernoulliChain, {"keep_logits": 1e4 * _tensor(2, 1, 7)}),
    Example(BernoulliChain, {"keep_probs": 0.5 + 0.5 * _tensor(2, 5)}),
    Example(BernoulliChain, {"keep_probs": torch.tensor([1.0, 0.5, 0.0, 0.5])}),
    Example(BernoulliChain, {"keep_logits": torch.tensor([torch.inf, 0.3, -torch.inf, 1.0])}),
    *(Example(Downhill, parameters(0.5)) for parameters in _RELAXED),
    Example(Downhill, _RELAXED[1](torch.tensor(2.0))),
    Example(Downhill, {"temperature": torch.tensor([0.5, 5.0]), "keep_logits": _tensor(4)}),
    Example(Downhill, {"temperature": torch.tensor([[0.5], [2.0]]), "keep_logits": _tensor(3, 4)}),
    Example(
        OrderedNormal,
        {"loc": _tensor(4), "scale": _tensor(4, shift=1.5), "keep_logits": _tensor(3), "temperature": 1.0},
    ),
    Example(
        OrderedNormal,
        {"loc": _tensor(2, 4), "scale": _tensor(4, shift=1.5), "keep_logits": _tensor(4), "temperature": 0.5},
    ),
    Example(
        OrderedNormal,
        {"loc": _tensor(5), "scale": _tensor(2, 5, shift=1.5), "keep_logits": _tensor(3, 1, 2), "temperature": 0.5},
    ),
    Example(
        OrderedNormal,
        {
            "loc": _tensor(3),
            "scale": _tensor(3, shift=1.5),
            "keep_logits": _tensor(2),
            "temperature": torch.tensor([0.5, 2.0]),
        },
    ),
    Example(MultiplicativeNormal, {"loc": _tensor(3), "log_alpha": _tensor(3)}),
    Example(MultiplicativeNormal, {"loc": _tensor(2, 3), "log_alpha": _tensor(1)}),
    Example(MultiplicativeNormal, {"loc": _tensor(2, 1), "log_variance": _tensor(4)}),
]
PRIORS = [LogUniform(form) for form in ("vnd", "exact", "molchanov", "kingma")]
