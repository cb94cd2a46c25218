"""What a step of NGD works on: parameters, states and gradients, in batches that can be worked on together."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vnd.optim.fisher import Options

EAGER_STEPS = 10  # the factors are updated on each of the first steps, then once a period


class Turn(NamedTuple):
    """Parameters of one shape and layout whose gradients are turned together, by their places in a course.

    The stack holds their gradients, the axes in the order in which they lie in memory.
    """

    at: list[int]
    stack: Tensor
    states: list[dict[str, Any]]
    order: tuple[int, ...]
    options: Options
    first: bool
    due: bool


class Move(NamedTuple):
    """Parameters of one group, device and dtype, by their places, the group's options, and its rate, a 0-d tensor."""

    at: list[int]
    weight_decay: float
    momentum: float
    nesterov: bool
    rate: Tensor


class Course(NamedTuple):
    """All that a step works on: parameters, their states, and `gradients`, tensors that hold theirs for the step.

    Whatever is a number here is the same at each call; what changes from step to step is in tensors.
    """

    parameters: list[Tensor]
    states: list[dict[str, Any]]
    gradients: list[Tensor]
    turns: list[Turn]
    moves: list[Move]

    def given(self) -> list[Tensor]:
        """The parameters' own gradients."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def updating(self, due: bool) -> "Course":
        """The same, with or without an update of the factors."""
        return self._replace(turns=[turn._replace(due=due) for turn in self.turns])


class Kind(NamedTuple):
    """What the gradients of a turn have in common."""

    device: torch.device
    dtype: torch.dtype
    shape: torch.Size
    order: tuple[int, ...]
    options: Options
    first: bool
    due: bool


def lay_out(
    groups: Sequence[dict[str, Any]], states: dict[Tensor, Any], rate: Callable[..., Tensor], count: bool
) -> Course:
    """The course of a step with the gradients that there are.

    Args:
        groups: Groups of parameters.
        states: States of parameters.
        rate: Gives the rate of a group, by its number, a device and a dtype.
        count: Count the step.
    """
    parameters: list[Tensor] = []
    own: list[dict[str, Any]] = []
    kinds: dict[Kind, list[int]] = {}
    places: dict[tuple[int, torch.device, torch.dtype], list[int]] = {}
    for index, group in enumerate(groups):
        options = Options(*(group[name] for name in Options._fields))
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.grad.layout != torch.strided:
                raise ValueError(
                    "NGD: gradients must be dense tensors; got a sparse one, make its layer with sparse=False"
                )
            at, dtype = len(parameters), torch.float64 if parameter.dtype == torch.float64 else torch.float32
            parameters.append(parameter)
            own.append(states[parameter] if turns(group, parameter) or group["momentum"] else {})
            places.setdefault((index, parameter.device, dtype), []).append(at)
            if turns(group, parameter):
                step = own[at].setdefault("step", torch.zeros((), dtype=torch.int64))
                number = int(step.add_(1) if count else step)
                shared = parameter.device, dtype, parameter.shape, _order(parameter), options
                kind = Kind(*shared, count and number == 1, due(number, group["update_period"]))
                kinds.setdefault(kind, []).append(at)
    stacks = {kind: _stack(kind, len(at)) for kind, at in kinds.items()}
    gradients = {
        i: laid(part, kind.order, parameters[i])
        for kind, at in kinds.items()
        for i, part in zip(at, stacks[kind].unbind(), strict=True)
    }
    moves = []
    for (index, device, dtype), where in places.items():
        weight_decay, momentum, nesterov = (groups[index][name] for name in ("weight_decay", "momentum", "nesterov"))
        moves.append(Move(where, weight_decay, momentum, nesterov, rate(index, device, dtype)))
        for i in where:
            if i not in gradients:
                gradients[i] = torch.empty_like(parameters[i], dtype=dtype, requires_grad=False)
    return Course(
        parameters,
        own,
        [gradients[i] for i in range(len(parameters))],
        [Turn(at, stacks[kind], [own[i] for i in at], *kind[3:]) for kind, at in kinds.items()],
        moves,
    )


def turns(group: dict[str, Any], parameter: Tensor) -> bool:
    """Whether the gradient of a parameter is preconditioned."""
    return bool(group["precondition"]) and parameter.ndim >= 2 and parameter.numel() > 0


def due(step: int, period: int) -> bool:
    """Whether the factors are updated on this step, counted from 1."""
    return step <= EAGER_STEPS or (step - EAGER_STEPS) % period == 0


def laid(x: Tensor, order: Sequence[int], parameter: Tensor) -> Tensor:
    """A tensor whose axes are in an order, as its parameter has them: with its very strides, if these leave no gap."""
    x = x.permute([order.index(axis) for axis in range(x.ndim)])
    theirs = parameter.stride()
    if all(own == other or n == 1 for own, other, n in zip(x.stride(), theirs, x.shape, strict=True)):
        return x.as_strided(x.shape, theirs, x.storage_offset())
    return x


def _order(parameter: Tensor) -> tuple[int, ...]:
    """The axes of a parameter as they lie in memory, the outermost first."""
    return tuple(sorted(range(parameter.ndim), key=lambda axis: parameter.stride()[axis], reverse=True))


def _stack(kind: Kind, count: int) -> Tensor:
    return torch.empty(count, *(kind.shape[axis] for axis in kind.order), dtype=kind.dtype, device=kind.device)
