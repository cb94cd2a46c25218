"""Passes over large gradients on a GPU by Triton kernels, each bound by memory; elsewhere the same by torch."""

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on this machine: the plain form everywhere
    triton = None

BLOCK = 4096
NARROWEST, MOST = 16, 16  # the kernel for narrow products: entries that follow an axis at least, and its size at most


def norms(x: Tensor) -> Tensor:
    """The norm of each tensor of a batch, (n, …), whatever its scale: its squares are summed in float64."""
    if not _suits_kernels(x):
        found: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
        return found
    count = x[0].numel()
    partial = x.new_empty(len(x), triton.cdiv(count, BLOCK), dtype=torch.float64)
    _squares[partial.shape[1], len(x)](x, partial, count, partial.shape[1], BLOCK=BLOCK)
    return partial.sum(1).sqrt()


def put_scaled(x: Tensor, scale: Tensor, place: Tensor) -> None:
    """Put n tensors, each times its `scale` ≥ 0, (n,), in a place, which stays as it is where that is not finite."""
    if _suits_kernels(x, place) and scale.dtype == torch.float64:
        count = x[0].numel()
        _put_scaled[triton.cdiv(count, BLOCK), len(x)](x, scale, place, count, BLOCK=BLOCK)
        return
    sound, one = scale.isfinite(), (-1, *[1] * (x.ndim - 1))
    scaled = x * torch.where(sound, scale, 1.0).to(x.dtype).view(one)
    torch.where(sound.view(one), scaled, place, out=place)


def narrow_product(matrix: Tensor, x: Tensor) -> Tensor | None:
    """(n, d, d) times (n, before, d, after) along d; None where no kernel suits it."""
    n, before, size, after = x.shape
    if not (_suits_kernels(x) and size <= MOST and after >= NARROWEST and n <= 65535):
        return None
    out, wide = torch.empty_like(x), min(128, triton.next_power_of_2(after))
    grid = before, triton.cdiv(after, wide), n
    _narrow[grid](matrix.contiguous(), x, out, before, size, after, SIZE=MOST, WIDE=wide)
    return out


def narrow_moments(x: Tensor, unit: Tensor) -> Tensor | None:
    """$u X X^⊤$ along d, (n, d, d), of (n, before, d, after) and u, (n, …) of one entry each; None as above."""
    n, before, size, after = x.shape
    if not (_suits_kernels(x, unit) and size <= MOST and after >= NARROWEST and n <= 65535):
        return None
    partial = x.new_empty(n, before, size, size)
    _moments[before, n](x, unit, partial, before, size, after, SIZE=MOST, WIDE=128)
    return partial.sum(1)


def _suits_kernels(*tensors: Tensor) -> bool:
    """Tell if all are on a GPU, of float32, and lie in memory alike and without gaps."""
    if triton is None:
        return False
    return all(x.is_cuda and x.dtype == torch.float32 and x.is_contiguous() and x.numel() for x in tensors)


if triton is not None:
    kernel: Any = triton.jit

    @kernel  # type: ignore[untyped-decorator]
    def _squares(x, partial, count, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        block, which = tl.program_id(0), tl.program_id(1)
        at = block * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + which.to(tl.int64) * count + at, mask=at < count, other=0.0).to(tl.float64)
        tl.store(partial + which * blocks + block, tl.sum(value * value, 0))

    @kernel  # type: ignore[untyped-decorator]
    def _put_scaled(x, scale, place, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        which = tl.program_id(1)
        factor = tl.load(scale + which)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < tl.where(factor < float("inf"), count, 0)  # false for NaN
        start = which.to(tl.int64) * count
        value = tl.load(x + start + at, mask=inside, other=0.0)
        tl.store(place + start + at, value * factor.to(tl.float32), mask=inside)

    @kernel  # type: ignore[untyped-decorator]
    def _narrow(matrix, x, out, before, size, after, SIZE: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        which = tl.program_id(2)
        rows, columns = tl.arange(0, SIZE), tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        inside = rows[:, None] < size
        square = inside & (rows[None, :] < size)
        weights = tl.load(matrix + which * size * size + rows[:, None] * size + rows[None, :], mask=square, other=0.0)
        start = (which * before + tl.program_id(0)).to(tl.int64) * size * after
        at = start + rows[:, None] * after + columns[None, :]
        inside = inside & (columns[None, :] < after)
        value = tl.load(x + at, mask=inside, other=0.0)
        tl.store(out + at, tl.dot(weights, value, input_precision="ieee"), mask=inside)

    @kernel  # type: ignore[untyped-decorator]
    def _moments(x, unit, partial, before, size, after, SIZE: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        which = tl.program_id(1)
        own = which * before + tl.program_id(0)
        rows = tl.arange(0, SIZE)
        inside, sums = rows[:, None] < size, tl.zeros((SIZE, SIZE), dtype=tl.float32)
        factor = tl.load(unit + which)
        for begin in range(0, after, WIDE):
            columns = begin + tl.arange(0, WIDE)
            at = own.to(tl.int64) * size * after + rows[:, None] * after + columns[None, :]
            value = tl.load(x + at, mask=inside & (columns[None, :] < after), other=0.0)
            sums += tl.dot(value * factor, tl.trans(value), input_precision="ieee")
        at = own * size * size + rows[:, None] * size + rows[None, :]
        tl.store(partial + at, sums, mask=inside & (rows[None, :] < size))
