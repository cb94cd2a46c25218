"""Povey's Fisher factors, one low-rank-plus-identity matrix for each axis of a parameter, and their updates."""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOOR = 5e-4  # δ, the smallest eigenvalue of a factor over its largest
LIFT = 1e-6  # the smallest ρ over the trace of a scatter to be mixed in
OVERLAPPED = ("cuda",)  # devices that go on while their decompositions run in threads
TASKS = 4  # at most, in as many threads: each that wakes takes Python's lock from the thread that launches kernels
LOAD = 64**3  # what a task is worth starting for, a matrix of this rank; the cost of a rank r is r³
SMALL = 8  # ranks up to this are decomposed together, as matrices of this size


class Factor(NamedTuple):
    """One axis's Fisher factor, $F = R^⊤ D R + ρ I$, and $E = D (D + β I)^{-1}$: (r, d), (r,), a 0-d tensor, (r,)."""

    basis: Tensor
    strength: Tensor
    rest: Tensor
    shrinkage: Tensor


class Options(NamedTuple):
    """What NGD says of factors."""

    rank: int
    alpha: float
    eta: float
    epsilon: float


class Update(NamedTuple):
    """What factors are updated with: $R X X^⊤$, (n, r, d); the square of the norm of X; the trace of S, (n,) each.

    The first two may have any common scale.
    """

    factors: Sequence[Factor]
    options: Options
    scattered: Tensor
    square: Tensor
    power: Tensor


class Renewal(NamedTuple):
    """Updates of one shape between their halves."""

    factors: Sequence[Factor]
    options: Options
    old: Factor
    rest: Tensor
    sketch: Tensor
    scale: Tensor
    trace: Tensor
    usable: Tensor


class Half(NamedTuple):
    """All updates of a device between their halves, and their Gram matrices in one piece, those of one size together.

    `sizes` says how many there are of each size.
    """

    renewals: Sequence[Renewal]
    gram: Tensor
    sizes: dict[int, int]


class Errand(NamedTuple):
    """Gram matrices on the CPU, in whose place the tasks put eigenvectors."""

    host: Tensor
    tasks: Sequence[Future[None]]


def factor_of(state: dict[str, Any], axis: int, size: int, x: Tensor, options: Options) -> Factor:
    """An axis's factor, made if there is none: rows of equal entries in turn, (1.1, 0, 1, 0, 1 …), (0, 1.1, 0, 1 …)."""
    names = [f"{name}_{axis}" for name in Factor._fields]
    if names[0] not in state:
        rank = min(options.rank, (size + 1) // 2)
        rows = torch.arange(rank, device=x.device)[:, None]
        basis = (torch.arange(size, device=x.device) % rank == rows).to(x.dtype)
        basis[:, :rank] *= 1.1  # or a direction that gradients often lack, (1, …, 1), would be a sum of rows
        strength = torch.full((rank,), options.epsilon, dtype=torch.float64, device=x.device)
        shrinkage = _shrinkage(strength, strength[0], size, options.alpha).to(x.dtype)
        made = torch.nn.functional.normalize(basis, dim=1), strength, strength[0].clone(), shrinkage
        state.update(zip(names, made, strict=True))
    return Factor(*(state[name] for name in names))


def sketch(updates: Sequence[Update]) -> list[Half]:
    """The first half of updates, those of one shape together; nothing but work on their devices."""
    batches: dict[Any, list[Update]] = {}
    for update in updates:
        basis = update.factors[0].basis
        batches.setdefault((basis.shape, basis.device, basis.dtype, update.options), []).append(update)
    devices: dict[torch.device, list[tuple[Renewal, Tensor]]] = {}
    for batch in batches.values():
        renewal, gram = _sketch(batch)
        devices.setdefault(gram.device, []).append((renewal, gram))
    halves = []
    for made in devices.values():
        made.sort(key=lambda pair: -pair[1].shape[1])
        sizes: dict[int, int] = {}
        for _, gram in made:
            sizes[gram.shape[1]] = sizes.get(gram.shape[1], 0) + len(gram)
        halves.append(Half([renewal for renewal, _ in made], torch.cat([gram.flatten() for _, gram in made]), sizes))
    return halves


def renew(half: Half, turned: Tensor) -> None:
    """The second half: give the factors their new values, in place; nothing but work on their device.

    Args:
        half: The first half.
        turned: Eigenvectors, as the Gram matrices lie.
    """
    new = [_renewed(renewal, own) for renewal, own in zip(half.renewals, _own(half, turned), strict=True)]
    for name in Factor._fields:
        own = [getattr(factor, name) for renewal in half.renewals for factor in renewal.factors]
        torch._foreach_copy_(own, [value for factors in new for value in getattr(factors, name).unbind()])


def send(half: Half, wait: bool = False, host: Tensor | None = None, ready: Any = None) -> Errand:
    """Have Gram matrices decomposed on the CPU, where matrices this small take a third of the time.

    Args:
        half: The first half of the updates.
        wait: Do it now, in this thread.
        host: Pinned memory to use; some is taken if there is none.
        ready: An event to record; one is made if there is none.
    """
    gram = half.gram
    if wait or gram.device.type not in OVERLAPPED:
        host = gram.cpu()
        _decompose(_portions(host, half.sizes, 1)[0])
        return Errand(host, ())
    if gram.is_cuda:
        host = torch.empty(gram.shape, dtype=gram.dtype, pin_memory=True) if host is None else host
        ready = torch.cuda.Event(blocking=True) if ready is None else ready
        host.copy_(gram, non_blocking=True)
        ready.record(torch.cuda.current_stream(gram.device))
    else:
        host, ready = gram, None
    portions = _portions(host, half.sizes, TASKS)
    return Errand(host, [_threads().submit(_decompose, portion, ready) for portion in portions])


def begin(updates: Sequence[Update], wait: bool = False) -> list[tuple[Half, Errand]]:
    """The first half of updates, with the decompositions under way or, if it is to `wait`, done."""
    return [(half, send(half, wait)) for half in sketch(updates)]


def finish(begun: Sequence[tuple[Half, Errand]]) -> None:
    """The second half. An error in a thread is raised here, before any factor changes."""
    for _, errand in begun:
        await_all(errand)
    for half, errand in begun:
        renew(half, errand.host.to(half.gram.device, non_blocking=True))


def await_all(errand: Errand) -> None:
    """Wait for the tasks of an errand, all of them even if one fails; the first error is raised."""
    errors = [task.exception() for task in errand.tasks]
    for error in errors:
        if error is not None:
            raise error


def _shrinkage(strength: Tensor, rest: Tensor, size: int, alpha: float) -> Tensor:
    """E, of one factor or a batch of them."""
    beta = (1 + alpha) * rest + alpha / size * strength.sum(-1)
    return strength / (strength + beta[..., None])


def _sketch(batch: Sequence[Update]) -> tuple[Renewal, Tensor]:
    """The trace of T, the sketch Y = R T over its largest entry, and Y Yᵀ."""
    factors, options = [factor for update in batch for factor in update.factors], batch[0].options
    old = Factor(*(torch.stack(parts) for parts in zip(*factors, strict=True)))
    size, eta = old.basis.shape[2], options.eta
    scattered, square, power = (torch.cat(parts) for parts in zip(*(update[2:] for update in batch), strict=True))
    rest = torch.maximum(old.rest, LIFT * power)
    made = scattered.double()
    made *= (eta * power / torch.where(square > 0, square, 1.0))[:, None, None]
    made += ((1 - eta) * (old.strength + rest[:, None]))[:, :, None] * old.basis
    trace = eta * power + (1 - eta) * (size * rest + old.strength.sum(1))

    scale = made.abs().amax((1, 2))
    usable = power.isfinite() & scale.isfinite()
    made /= scale[:, None, None]
    return Renewal(factors, options, old, rest, made, scale, trace, usable), _gram(made, usable)


def _gram(made: Tensor, usable: Tensor) -> Tensor:
    """Y Yᵀ, of a size that few have: rows and columns are added whose eigenvalue, -1, comes first, for it has none."""
    rank = made.shape[1]
    one = torch.eye(rank, dtype=torch.float64, device=made.device)
    gram = torch.where(usable[:, None, None], made @ made.mT, one)
    if rank >= SMALL:
        return gram
    padded = torch.eye(SMALL, dtype=torch.float64, device=made.device).neg().repeat(len(gram), 1, 1)
    padded[:, :rank, :rank] = gram
    return padded


def _renewed(renewal: Renewal, turned: Tensor) -> Factor:
    """The next factors of a batch; the old ones where a gradient is not finite."""
    _, options, old, rest, sketch, scale, trace, usable = renewal
    rank, size = old.basis.shape[1:]
    rows = turned[:, :rank, -rank:].mT @ sketch
    # Norms of rows are the roots of the eigenvalues, of which the smallest are lost beside the largest.
    roots = torch.linalg.vector_norm(rows, dim=2)
    basis = rows / roots[:, :, None]
    one = torch.eye(rank, dtype=torch.float64, device=sketch.device)
    usable = usable & ((basis @ basis.mT - one).abs().amax((1, 2)) < 1e-4)  # false for NaN

    roots = torch.maximum(roots * scale[:, None], (1 - options.eta) * rest[:, None])
    rest = (trace - roots.sum(1)) / (size - rank)
    floor = (FLOOR * roots.amax(1)).clamp(min=options.epsilon)
    strength, rest = torch.maximum(roots - rest[:, None], floor[:, None]), torch.maximum(rest, floor)
    new = basis, strength, rest, _shrinkage(strength, rest, size, options.alpha)
    return Factor(
        *(
            torch.where(usable.view(-1, *[1] * (was.dim() - 1)), now.to(was.dtype), was)
            for now, was in zip(new, old, strict=True)
        )
    )


def _own(half: Half, turned: Tensor) -> Iterator[Tensor]:
    """What belongs to each batch of updates, (n, s, s)."""
    at = 0
    for renewal in half.renewals:
        count, size = len(renewal.factors), max(renewal.sketch.shape[1], SMALL)
        yield turned[at : at + count * size**2].view(count, size, size)
        at += count * size**2


def _portions(host: Tensor, sizes: dict[int, int], tasks: int) -> list[list[Tensor]]:
    """Stacks of matrices for so many tasks at most, of about the same cost."""
    total = sum(count * size**3 for size, count in sizes.items())
    tasks = max(1, min(tasks, total // LOAD))
    portions: list[list[Tensor]] = [[] for _ in range(tasks)]
    at, spent = 0, 0
    for size, count in sizes.items():
        stack = host[at : at + count * size**2].view(count, size, size)
        task = [(2 * spent + (2 * i + 1) * size**3) * tasks // (2 * total) for i in range(count)]  # by their middles
        for portion, part in zip(portions, stack.split([task.count(i) for i in range(tasks)]), strict=True):
            if len(part):
                portion.append(part)
        at, spent = at + count * size**2, spent + count * size**3
    return [portion for portion in portions if portion]


def _decompose(stacks: Sequence[Tensor], ready: torch.cuda.Event | None = None) -> None:
    """Put eigenvectors in the place of matrices."""
    if ready is not None:
        with torch.cuda.device(ready.device):  # or the thread would make itself at home on the first one
            ready.synchronize()
    for stack in stacks:
        stack.copy_(torch.linalg.eigh(stack).eigenvectors)


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads for decompositions, made on first use and ended with the interpreter, each with one thread of torch's."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count, torchs = min(TASKS, cores), torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "vnd-eigh", initializer=torch.set_num_threads, initargs=(1,))
    started = threading.Barrier(count + 1)
    for _ in range(count):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(torchs)  # theirs is their own, but also what threads to come would begin with
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has none of the threads
