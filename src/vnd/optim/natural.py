"""Natural directions of gradients of one shape together, axis by axis, without moving the axes in memory."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import inf, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vnd.optim.fisher import Factor, Options, Update, begin, factor_of, finish

FIRST_ROUNDS = 3  # updates with the first gradient before its use: a power method from the regular start
NARROW = 64  # up to this size an axis takes one product with a full matrix, as cheap as two with half as many rows


class Kept:
    """What was made of factors, for as long as they are the same tensors and untouched."""

    def __init__(self, factors: Sequence[Factor], make: Callable[[], tuple[Tensor, ...]]) -> None:
        self.factors, self.make = factors, make  # the factors too: an id is theirs while they live
        self.made, self.versions = make(), _versions(factors)

    def refresh(self) -> None:
        """Make it anew of factors that have changed, in the same tensors."""
        torch._foreach_copy_(list(self.made), list(self.make()))
        self.versions = _versions(self.factors)


class Batch(NamedTuple):
    """Gradients of one shape: their parameters' states, the squares of their norms, and the updates they lead to.

    Their axes may lie in memory in any `order`, the outermost first. Updates are noted in `updates` if there is a list;
    `operators` keeps products of factors from step to step. Products of two gradients are taken over `unit`, which is
    about one over their norms, so that they stay within range.
    """

    states: Sequence[dict[str, Any]]
    order: Sequence[int]
    energy: Tensor
    unit: Tensor
    options: Options
    first: bool
    updates: list[Update] | None
    operators: dict[Any, Kept]

    def update(self, factors: Sequence[Factor], scattered: Tensor, square: Tensor, columns: int) -> Update:
        """An update with so many columns, whose squared norm is to be what the gradient's is."""
        return Update(factors, self.options, scattered, square, self.energy / columns)

    def start(self, factors: Sequence[Factor], scattered: Callable[[Tensor], Tensor], *rest: Any) -> None:
        """Update new factors at once, with what their bases make of the scatter."""
        for _ in range(FIRST_ROUNDS if self.first else 0):
            finish(begin([self.update(factors, scattered(_bases(factors)), *rest)], wait=True))

    def kept(self, key: Any, factors: Sequence[Factor], make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What was made of the factors, or is made now if they are others or have changed."""
        key = key, self.options, *self.order
        if key not in self.operators or self.operators[key].versions != _versions(factors):
            self.operators[key] = Kept(factors, make)
        return self.operators[key].made


class Stage(NamedTuple):
    """A run of axes to be turned: where they lie, by entries before and after, and their factors, axis by axis.

    `front` is the order that the axes of the batch have to be brought into, if they have to; `key` names the run.
    """

    front: list[int] | None
    before: int
    size: int
    after: int
    factors: list[list[Factor]]
    key: Any

    @property
    def narrow(self) -> bool:
        """Whether a full matrix is as cheap."""
        return self.size <= NARROW

    def operators(self, batch: Batch) -> tuple[Tensor, ...]:
        """The products of factors that the run is turned with."""
        make, factors = _narrow if self.narrow else _wide, self.factors
        return batch.kept(self.key, [factor for own in factors for factor in own], lambda: make(factors))


def precondition(x: Tensor, batch: Batch) -> Tensor:
    """The natural directions of gradients x, (n, …), contiguous, up to their norms; perhaps x itself."""
    stages, order = _stages(x, batch)
    given, shape = x, x.shape
    for stage in stages:
        if stage.front is not None:  # so that a column is in one piece
            x = x.permute(stage.front).contiguous()
            shape = x.shape
        flat = x.view(-1, stage.before, stage.size, stage.after)
        x = (_use_narrow if stage.narrow else _use_wide)(flat, stage, batch, x is given).view(shape)
    return x.permute(0, *(1 + order.index(axis) for axis in batch.order))


def prime(x: Tensor, batch: Batch) -> None:
    """Make the products of factors that directions of such gradients need."""
    for stage in _stages(x, batch)[0]:
        stage.operators(batch)


def _stages(x: Tensor, batch: Batch) -> tuple[list[Stage], list[int]]:
    """What has to be done to gradients, and the order in which their axes then lie in memory."""
    order, shape, stages = list(batch.order), list(x.shape[1:]), []
    for run in _runs(shape, order):
        sizes = [shape[order.index(axis)] for axis in run]
        before, after = _sides(shape, order, run)
        front = None
        if prod(sizes) > NARROW and before > 1 and after > 1:
            moved = [*run, *(axis for axis in order if axis not in run)]
            front = [0, *(1 + order.index(axis) for axis in moved)]
            order, shape = moved, [shape[order.index(axis)] for axis in moved]
            before, after = _sides(shape, order, run)
        factors = [
            [factor_of(state, axis, size, x, batch.options) for state in batch.states]
            for axis, size in zip(run, sizes, strict=True)
        ]
        stages.append(Stage(front, before, prod(sizes), after, factors, (tuple(shape), *run)))
    return stages, order


def _runs(shape: Sequence[int], order: list[int]) -> list[list[int]]:
    """The axes in turn, narrow ones that lie side by side in memory together."""
    sizes = dict(zip(order, shape, strict=True))
    memory = [axis for axis in order if sizes[axis] > 1]
    runs: list[list[int]] = []
    for axis in sorted(memory):
        last = runs[-1] if runs else []
        adjacent = last and memory.index(axis) == memory.index(last[-1]) + 1
        if adjacent and prod(sizes[other] for other in (*last, axis)) <= NARROW:
            last.append(axis)
        else:
            runs.append([axis])
    return runs


def _sides(shape: Sequence[int], order: list[int], run: list[int]) -> tuple[int, int]:
    """Entries before and after a run of axes in memory."""
    return prod(shape[: order.index(run[0])]), prod(shape[order.index(run[-1]) + 1 :])


def _use_wide(x: Tensor, stage: Stage, batch: Batch, given: bool) -> Tensor:
    """$β G^{-1} X = X - R^⊤ E (R X)$ for one axis, by Woodbury's identity, in place unless x was `given`."""
    (own,), unit = stage.factors, batch.unit.view(-1, 1, 1, 1)
    square, columns = x, x[0].numel() // stage.size
    if batch.updates is not None:
        square = (batch.energy if given else norms([x]).square()) * batch.unit
        batch.start(own, lambda basis: _scatter(_times(basis, x) * unit, x), square, columns)
    basis, shrink = stage.operators(batch)
    sketch = _times(basis, x)
    if batch.updates is not None:
        batch.updates.append(batch.update(own, _scatter(sketch * unit, x), square, columns))
    return _times(shrink, sketch, onto=x.clone() if given else x)


def _use_narrow(x: Tensor, stage: Stage, batch: Batch, given: bool) -> Tensor:
    """$β G^{-1} X$ for a run of axes, in one product; all that they learn is in the second moments of the run."""
    factors, size = stage.factors, stage.size
    if batch.updates is not None:
        moments, before = _scatter(x * batch.unit.view(-1, 1, 1, 1), x), 1
        for own in factors:
            n = own[0].basis.shape[1]
            split, columns = (before, n, size // (before * n)), x[0].numel() // n
            scatter = torch.einsum("zaicajc->zij", moments.view(-1, *split, *split))
            square = scatter.diagonal(dim1=1, dim2=2).double().sum(1)
            batch.start(own, scatter.__rmatmul__, square, columns)
            batch.updates.append(batch.update(own, _bases(own) @ scatter, square, columns))
            for _ in range(2 if own is not factors[-1] else 0):  # its rows, then its columns: it is symmetric
                moments = _along(_matrix(own), moments, before).mT.contiguous()
            before *= n
    (product,) = stage.operators(batch)
    return _times(product, x)


def _wide(factors: list[list[Factor]]) -> tuple[Tensor, ...]:
    """R and -RᵀE."""
    (own,) = factors
    basis = _bases(own)
    return basis, (basis * -_shrinkages(own)).mT


def _narrow(factors: list[list[Factor]]) -> tuple[Tensor, ...]:
    """The product of the matrices of a run of axes."""
    return (reduce(_kron, map(_matrix, factors)),)


def _bases(factors: Sequence[Factor]) -> Tensor:
    return torch.stack([factor.basis for factor in factors])


def _shrinkages(factors: Sequence[Factor]) -> Tensor:
    return torch.stack([factor.shrinkage for factor in factors])[:, :, None]


def _matrix(factors: Sequence[Factor]) -> Tensor:
    """$β G^{-1} = I - R^⊤ E R$, (n, d, d)."""
    basis = _bases(factors)
    one = torch.eye(basis.shape[2], dtype=basis.dtype, device=basis.device)
    return torch.baddbmm(one, basis.mT, basis * _shrinkages(factors), alpha=-1)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """Kronecker products of two batches of square matrices."""
    size = a.shape[1] * b.shape[1]
    return (a[:, :, None, :, None] * b[:, None, :, None, :]).view(-1, size, size)


def _along(matrix: Tensor, x: Tensor, before: int) -> Tensor:
    """`matrix` times one of the axes that make the rows of x, the one with so many entries before it."""
    return _times(matrix, x.view(len(x), before, matrix.shape[2], -1)).view(x.shape)


def _times(matrix: Tensor, x: Tensor, onto: Tensor | None = None) -> Tensor:
    """(n, m, d) times (n, before, d, after), along d where it lies; perhaps added `onto` a tensor, in place."""
    n, before, _, after = x.shape
    if after == 1:
        left, right = x.squeeze(3), matrix.mT
    elif before == 1:
        left, right = matrix, x.squeeze(1)
    else:
        left, right = matrix[:, None].expand(-1, before, -1, -1).flatten(0, 1), x.flatten(0, 1)
    if onto is None:
        return torch.bmm(left, right).view(n, before, matrix.shape[1], after)
    onto.view(len(left), left.shape[1], right.shape[2]).baddbmm_(left, right)
    return onto


def _scatter(y: Tensor, x: Tensor) -> Tensor:
    """$Y X^⊤$, of (n, before, r, after) and (n, before, d, after): (n, r, d)."""
    if x.shape[3] == 1:
        return torch.bmm(y.squeeze(3).mT, x.squeeze(3))
    if x.shape[1] == 1:
        return torch.bmm(y.squeeze(1), x.squeeze(1).mT)
    return torch.matmul(y, x.mT).sum(1)


def norms(batches: Sequence[Tensor]) -> Tensor:
    """Norms of the tensors in batches of one dtype, all in a row, (n,) in float64, whatever their scale."""
    if batches[0].is_cuda:  # one pass over memory, summed in float64
        tensors = [x for batch in batches for x in batch.unbind()]
        return torch.stack(torch._foreach_norm(tensors, 2, torch.float64))
    return torch.cat([_norms(batch) for batch in batches])


def _norms(x: Tensor) -> Tensor:
    """The same by rows, which are much faster here, in units of the largest entry.

    Over five million entries at once float32 is wrong by 1e-4 on the CPU.
    """
    largest: Tensor = torch.linalg.vector_norm(x.flatten(1), inf, dim=1)
    unit = torch.where(largest > 0, largest, 1.0).view(-1, *[1] * (x.ndim - 1))
    rows = torch.linalg.vector_norm((x / unit).flatten(2), dim=2)
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return largest * norm


def _versions(factors: Sequence[Factor]) -> list[tuple[int, int]]:
    return [(id(part), part._version) for factor in factors for part in (factor.basis, factor.shrinkage)]
