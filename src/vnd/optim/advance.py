"""What a step of NGD does on the device: gradients, directions, momentum, parameters; the same work at each call."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from vnd.functional import widen
from vnd.optim.course import Course, Move, Turn, laid
from vnd.optim.fisher import Half, Update, renew, sketch
from vnd.optim.natural import Batch, Kept, norms, precondition, prime

PRECISION = "tf32"  # of products of float32 matrices on a GPU
EXTENT = 1e30  # units of gradients lie between one over it and it, in float32


def advance(course: Course, operators: dict[Any, Kept]) -> list[Half]:
    """One step with the gradients of a course; gives the first half of the factors' updates, if they are due."""
    for move in course.moves:
        if move.weight_decay:
            own = [course.gradients[i] for i in move.at]
            torch._foreach_add_(own, [widen(course.parameters[i]) for i in move.at], alpha=move.weight_decay)
    directions, updates = list(course.gradients), list[Update]()
    for turns in _alike(course.turns):
        updates += _turn(course, turns, directions, operators)
    for move in course.moves:
        _move(course, move, directions)
    return sketch(updates)


def end(half: Half, turned: Tensor, operators: dict[Any, Kept]) -> None:
    """The second half of an update, and the products of factors that the next steps use, in place."""
    renew(half, turned)
    for kept in operators.values():
        kept.refresh()


def prepare(course: Course, operators: dict[Any, Kept]) -> None:
    """Make the products of factors that a course needs, twice, so that the kernels of both ways have been loaded."""
    for turn in course.turns:
        nothing = turn.stack.new_empty(0)
        batch = Batch(turn.states, turn.order, nothing, nothing, turn.options, False, None, operators)
        prime(turn.stack, batch)
    for kept in operators.values():
        kept.refresh()


@contextmanager
def undisturbed(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Without autocast, and on a GPU with products of matrices in TF32, as long as this lasts."""
    kinds = {parameter.device.type for parameter in parameters}
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if "cuda" in kinds:
            stack.enter_context(fast_products())
        yield


@contextmanager
def fast_products() -> Iterator[None]:
    """TF32 for float32 matrices on a GPU, by torch's newer setting; the older must not be read meanwhile."""
    setting: Any = torch.backends.cuda.matmul
    before = setting.fp32_precision
    if before == PRECISION:
        yield
        return
    setting.fp32_precision = PRECISION
    try:
        yield
    finally:
        setting.fp32_precision = before


def _alike(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Turns by the device and dtype of their gradients."""
    alike: dict[Any, list[Turn]] = {}
    for turn in turns:
        alike.setdefault((turn.stack.device, turn.stack.dtype), []).append(turn)
    return list(alike.values())


def _turn(course: Course, turns: Sequence[Turn], directions: list[Tensor], operators: dict[Any, Kept]) -> list[Update]:
    """Put natural gradients in the place of gradients; what is one number for each is computed for all at once.

    A gradient that is not finite, or whose direction is not, stays what it is.
    """
    counts, updates = [len(turn.at) for turn in turns], list[Update]()
    norm = norms([turn.stack for turn in turns])
    unit = norm.reciprocal().clamp(1 / EXTENT, EXTENT).to(turns[0].stack.dtype)
    turned = []
    for turn, energy, own in zip(turns, norm.square().split(counts), unit.split(counts), strict=True):
        learnt = updates if turn.due else None
        batch = Batch(turn.states, turn.order, energy, own, turn.options, turn.first, learnt, operators)
        turned.append(precondition(turn.stack, batch))
    scale = _restoring(norm, norms(turned))
    sound = scale.isfinite()
    scale = torch.where(sound, scale, 1.0).to(unit.dtype)
    for turn, x, factor, fine in zip(turns, turned, scale.split(counts), sound.split(counts), strict=True):
        one = -1, *[1] * (x.ndim - 1)
        direction = torch.where(fine.view(one), x.mul_(factor.view(one)), turn.stack).contiguous()
        for i, part in zip(turn.at, direction.unbind(), strict=True):
            directions[i] = laid(part, turn.order, course.parameters[i])
    return updates


def _restoring(norm: Tensor, own: Tensor) -> Tensor:
    """What gives tensors their norm again; not finite for zeros."""
    return norm / own


def _move(course: Course, move: Move, directions: Sequence[Tensor]) -> None:
    """Move parameters along directions, with momentum."""
    parameters, along = [course.parameters[i] for i in move.at], [directions[i] for i in move.at]
    states = [course.states[i] for i in move.at]
    begun = [i for i, state in enumerate(states) if "momentum_buffer" in state]
    if move.momentum and len(begun) < len(states):  # as in torch's SGD the first direction is the momentum
        fresh = [i for i, state in enumerate(states) if "momentum_buffer" not in state]
        for i in fresh:
            states[i]["momentum_buffer"] = _like(parameters[i], along[i])
        torch._foreach_sub_(
            [parameters[i] for i in fresh],
            torch._foreach_mul([along[i] for i in fresh], move.rate * (1 + move.momentum * move.nesterov)),
        )
        parameters, along = [parameters[i] for i in begun], [along[i] for i in begun]
        states = [states[i] for i in begun]
    if parameters:
        _go_on(parameters, along, states, move)


def _go_on(parameters: list[Tensor], along: list[Tensor], states: list[dict[str, Any]], move: Move) -> None:
    """The same for parameters that have moved before, in one pass where torch has a kernel for it."""
    buffers: list[Tensor] = []
    if move.momentum:
        for parameter, state in zip(parameters, states, strict=True):
            if state["momentum_buffer"].stride() != parameter.stride():  # alike, or there is no fast way
                state["momentum_buffer"] = _like(parameter, state["momentum_buffer"])
        buffers = [state["momentum_buffer"] for state in states]
    if move.rate.dtype == torch.float32 and _fusible(parameters, along, buffers or along):
        torch._fused_sgd_(
            parameters,
            along,
            buffers,
            weight_decay=0.0,
            momentum=float(move.momentum),
            lr=move.rate,
            dampening=0.0,
            nesterov=move.nesterov,
            maximize=False,
            is_first_step=False,
        )
        return
    if move.momentum:
        torch._foreach_mul_(buffers, move.momentum)
        torch._foreach_add_(buffers, along)
        along = list(torch._foreach_add(along, buffers, alpha=move.momentum)) if move.nesterov else buffers
    torch._foreach_sub_(parameters, torch._foreach_mul(along, move.rate))


def _like(parameter: Tensor, x: Tensor) -> Tensor:
    """A copy of a tensor, with the strides of the parameter."""
    return torch.empty_like(parameter, dtype=x.dtype, requires_grad=False).copy_(x)


def _fusible(parameters: list[Tensor], *others: list[Tensor]) -> bool:
    """Whether torch's fused SGD takes them: of one dtype, in the same places of memory; that of the others is dense."""
    return all(
        parameter.device.type in ("cpu", "cuda")
        and all(x.dtype == parameter.dtype and x.stride() == parameter.stride() for x in own)
        for parameter, *own in zip(parameters, *others, strict=True)
    )
