r"""Gaussian outputs from their mean and variance: $b = γ + \sqrt{\max(δ, δ_0)}\; ε$.

The plain form is two lines of torch. On CUDA a Triton kernel does the same with less memory traffic: it draws ε where
it is used, from a seed, and draws it again in the backward pass instead of keeping it.
"""

from typing import Any

import torch
from torch import Tensor

from vnd.functional import to_float32

# Smallest variance of an output. It keeps d√δ/dδ finite where the input is all zero, and √δ real where a fast
# convolution rounds a zero to a little less; outputs of any size that float32 can tell from zero are well above it.
SMALLEST_VARIANCE = 1e-16

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on this machine: the plain form everywhere
    triton = None


def add_noise(mean: Tensor, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw outputs of the given mean and variance, of the shape and dtype of `mean`.

    The square root and the noise are float32 or wider; the noise is `generator`'s, or torch's global one.
    """
    if triton is None or not _suits_kernel(mean, variance):
        return plain_add_noise(mean, variance, generator)
    seed = torch.randint(2**31 - 1, (1,), device=mean.device, **source(generator))
    drawn: Tensor = torch.ops.vnd.add_noise(mean, variance, seed)
    return drawn


def plain_add_noise(mean: Tensor, variance: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The plain form of `add_noise`: its reference, and what runs where there is no Triton."""
    scale = to_float32(variance).clamp(min=SMALLEST_VARIANCE).sqrt()
    return (to_float32(mean) + scale * normal(scale, generator)).to(mean.dtype)


def normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise of the shape, dtype and place of a tensor."""
    return torch.randn_like(like, **source(generator))


def source(generator: torch.Generator | None) -> dict[str, Any]:
    """The argument that says where noise comes from; none for the global generator, which alone `vmap` knows."""
    return {} if generator is None else {"generator": generator}


def _suits_kernel(mean: Tensor, variance: Tensor) -> bool:
    """Tell if both lie alike in memory, without gaps, on a GPU, in a dtype that the kernel has."""
    dense = mean.is_contiguous() or (mean.dim() == 4 and mean.is_contiguous(memory_format=torch.channels_last))
    alike = mean.dtype == variance.dtype and mean.stride() == variance.stride()
    return mean.is_cuda and dense and alike and mean.dtype in (torch.bfloat16, torch.float16, torch.float32)


if triton is not None:
    BLOCK = 512  # each program draws four normals for every entry of its block

    @triton.jit  # type: ignore[untyped-decorator]
    def _kernel(given, variance, out, seed, count, floor, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        program = tl.program_id(0)
        lane = tl.arange(0, BLOCK)
        e0, e1, e2, e3 = tl.randn4x(tl.load(seed), program * BLOCK + lane)
        start = program.to(tl.int64) * BLOCK * 4 + lane
        for part in tl.static_range(4):
            at = start + part * BLOCK
            inside = at < count
            delta = tl.load(variance + at, mask=inside, other=0.0).to(tl.float32)
            scale = tl.sqrt(tl.maximum(delta, floor))
            noise = e0 if part == 0 else (e1 if part == 1 else (e2 if part == 2 else e3))
            value = tl.load(given + at, mask=inside).to(tl.float32)
            result = tl.where(delta >= floor, value * noise * 0.5 / scale, 0.0) if BACKWARD else value + scale * noise
            tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)

    def _launch(given: Tensor, variance: Tensor, seed: Tensor, backward: bool) -> Tensor:
        out = torch.empty_like(variance)
        grid = (triton.cdiv(variance.numel(), 4 * BLOCK),)
        _kernel[grid](given, variance, out, seed, variance.numel(), SMALLEST_VARIANCE, backward, BLOCK=BLOCK)
        return out

    @torch.library.custom_op("vnd::add_noise", mutates_args=())
    def _add_noise(mean: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
        return _launch(mean, variance, seed, backward=False)

    @torch.library.custom_op("vnd::noise_slope", mutates_args=())
    def _noise_slope(grad: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
        return _launch(grad, variance, seed, backward=True)

    def _fake(given: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
        return torch.empty_like(variance)

    _add_noise.register_fake(_fake)
    _noise_slope.register_fake(_fake)

    def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        variance, seed = ctx.saved_tensors
        grad = torch.empty_like(variance).copy_(grad) if grad.stride() != variance.stride() else grad
        return grad, torch.ops.vnd.noise_slope(grad, variance, seed), None

    _add_noise.register_autograd(_backward, setup_context=_keep)
