r"""Draws of outputs for several samples of a prediction at once, which share a variance, or their mean too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vnd.functional import to_float32

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on this machine: the plain form everywhere
    triton = None


def draw_outputs(
    mean: Tensor, variance: Tensor, samples: int, floor: float, generator: torch.Generator | None = None
) -> Tensor:
    r"""Draw $b_s = γ_s + \sqrt{\max(δ, δ_0)}\; ε_s$ for all samples, those of one after those of another.

    The square root and the noise are float32 or wider; the noise is `generator`'s, or torch's global one. On CUDA a
    Triton kernel reads each variance once from memory and draws ε where it is used. It has no gradient.

    Args:
        mean: γ, of the shape of the variance if all samples share it, or (samples · B, …).
        variance: δ, (B, …).
        samples: How many there are.
        floor: δ₀, the smallest variance.
        generator: The source of the noise.

    Shape: (samples · B, …), with the dtype of the mean.
    """
    if triton is not None and _suits_kernel(mean, variance):
        given: dict[str, Any] = {} if generator is None else {"generator": generator}
        seed = torch.randint(2**31 - 1, (1,), device=mean.device, **given)
        drawn: Tensor = torch.ops.vnd.draw_outputs(mean, variance, seed, samples, floor)
        return drawn
    return plain_draw_outputs(mean, variance, samples, floor, generator)


def plain_draw_outputs(
    mean: Tensor, variance: Tensor, samples: int, floor: float, generator: torch.Generator | None = None
) -> Tensor:
    """The plain form of `draw_outputs`: its reference, and what runs where there is no Triton."""
    scale = to_float32(variance).clamp(min=floor).sqrt()
    means = [mean] * samples if len(mean) == len(variance) else mean.chunk(samples)
    given: dict[str, Any] = {} if generator is None else {"generator": generator}
    return torch.cat([(to_float32(own) + scale * torch.randn_like(scale, **given)).to(mean.dtype) for own in means])


def _suits_kernel(mean: Tensor, variance: Tensor) -> bool:
    """Tell if both lie alike on a GPU, without gaps, in a dtype that the kernel has, and need no gradient."""
    if not mean.is_cuda or torch.is_grad_enabled() or mean.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return False
    layout = torch.channels_last if mean.dim() == 4 and not mean.is_contiguous() else torch.contiguous_format
    dense = mean.is_contiguous(memory_format=layout) and variance.is_contiguous(memory_format=layout)
    return dense and mean.dtype == variance.dtype


if triton is not None:
    BLOCK = 512  # each program draws four normals for every entry of its block

    @triton.jit  # type: ignore[untyped-decorator]
    def _kernel(mean, variance, out, seed, count, samples, floor, SHARED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        # Programs that follow each other are samples of the same entries, so that these lie in the cache.
        program, sample = tl.program_id(0) // samples, tl.program_id(0) % samples
        lane = tl.arange(0, BLOCK)
        e0, e1, e2, e3 = tl.randn4x(tl.load(seed), tl.program_id(0) * BLOCK + lane)
        start = program.to(tl.int64) * BLOCK * 4 + lane
        shift = sample.to(tl.int64) * count
        for part in tl.static_range(4):
            at = start + part * BLOCK
            inside = at < count
            delta = tl.load(variance + at, mask=inside, other=0.0).to(tl.float32)
            noise = e0 if part == 0 else (e1 if part == 1 else (e2 if part == 2 else e3))
            value = tl.load(mean + (at if SHARED else at + shift), mask=inside, other=0.0).to(tl.float32)
            result = value + tl.sqrt(tl.maximum(delta, floor)) * noise
            tl.store(out + at + shift, result.to(out.dtype.element_ty), mask=inside)

    def _empty(mean: Tensor, variance: Tensor, samples: int) -> Tensor:
        channels_last = mean.dim() == 4 and not mean.is_contiguous()
        layout = torch.channels_last if channels_last else torch.contiguous_format
        shape = (samples * variance.size(0), *variance.shape[1:])
        return torch.empty(shape, dtype=mean.dtype, device=mean.device, memory_format=layout)

    @torch.library.custom_op("vnd::draw_outputs", mutates_args=())
    def _draw(mean: Tensor, variance: Tensor, seed: Tensor, samples: int, floor: float) -> Tensor:
        out, count = _empty(mean, variance, samples), variance.numel()
        grid = (triton.cdiv(count, 4 * BLOCK) * samples,)
        shared = mean.numel() == count
        _kernel[grid](mean, variance, out, seed, count, samples, floor, SHARED=shared, BLOCK=BLOCK)
        return out

    @_draw.register_fake
    def _(mean: Tensor, variance: Tensor, seed: Tensor, samples: int, floor: float) -> Tensor:
        return _empty(mean, variance, samples)
