"""Noise of outputs, in a plain form and as kernels for GPUs; and where noise comes from."""

from typing import Any

import torch
from torch import Tensor

from vnd.functional import to_float32

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ImportError:  # no Triton on this machine: the plain form everywhere
    triton = None

# Smallest variance of an output. It keeps d√δ/dδ finite where the input is all zero, and √δ real where a fast
# convolution rounds a zero to a little less; outputs of any size that float32 can tell from zero are well above it.
SMALLEST_VARIANCE = 1e-16


def add_noise(
    mean: Tensor, variance: Tensor, generator: torch.Generator | None = None, rest: Tensor | None = None
) -> Tensor:
    r"""Draw outputs $b = γ + \sqrt{\max(δ, δ_0)}\; ε$ of the given mean and variance, of the shape and dtype of `mean`.

    The square root and the noise are float32 or wider; the noise is `generator`'s, or torch's global one. The plain
    form is a few lines of torch. On CUDA a Triton kernel does the same with less memory traffic: it draws ε where it
    is used, from a seed, and draws it again in the backward pass instead of keeping it.

    Args:
        mean: γ.
        variance: δ, of all examples, or of the leading ones.
        generator: Where noise comes from; None for torch's global one.
        rest: δ of the other examples, a constant; the gradient of `variance` is scaled to stand for all of them.
    """
    if triton is None or not _suits_kernel(mean, variance) or not (rest is None or _suits_kernel(mean, rest)):
        return plain_add_noise(mean, variance, generator, rest)
    seed = torch.randint(2**31 - 1, (1,), device=mean.device, **source(generator))
    drawn: Tensor = torch.ops.vnd.add_noise(mean, variance, rest, seed)
    return drawn


def plain_add_noise(
    mean: Tensor, variance: Tensor, generator: torch.Generator | None = None, rest: Tensor | None = None
) -> Tensor:
    """The plain form of `add_noise`: its reference, and what runs where there is no Triton."""
    if rest is not None:
        constant = variance.detach()
        variance = torch.cat([constant + len(mean) / len(variance) * (variance - constant), rest])
    scale = to_float32(variance).clamp(min=SMALLEST_VARIANCE).sqrt()
    return (to_float32(mean) + scale * normal(scale, generator)).to(mean.dtype)


def draw_outputs(mean: Tensor, variance: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
    r"""Draw $b_s = γ_s + \sqrt{\max(δ, δ_0)}\; ε_s$ for all samples, those of one after those of another.

    The square root and the noise are float32 or wider; the noise is `generator`'s, or torch's global one. On CUDA a
    Triton kernel reads each variance once from memory and draws ε where it is used. It has no gradient.

    Args:
        mean: γ, of the shape of the variance if all samples share it, or (samples · B, …).
        variance: δ, (B, …).
        samples: How many there are.
        generator: Where noise comes from; None for torch's global one.

    Shape: (samples · B, …), with the dtype of the mean.
    """
    if triton is None or torch.is_grad_enabled() or not _suits_kernel(mean[: len(variance)], variance):
        return plain_draw_outputs(mean, variance, samples, generator)
    seed = torch.randint(2**31 - 1, (1,), device=mean.device, **source(generator))
    drawn: Tensor = torch.ops.vnd.draw_outputs(mean, variance, seed, samples)
    return drawn


def plain_draw_outputs(
    mean: Tensor, variance: Tensor, samples: int, generator: torch.Generator | None = None
) -> Tensor:
    """The plain form of `draw_outputs`: its reference, and what runs where there is no Triton."""
    scale = to_float32(variance).clamp(min=SMALLEST_VARIANCE).sqrt()
    means = [mean] * samples if len(mean) == len(variance) else mean.chunk(samples)
    return torch.cat([(to_float32(part) + scale * normal(scale, generator)).to(mean.dtype) for part in means])


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
    ROUNDS = tl.constexpr(7)  # of Philox; so many pass BigCrush (Salmon et al., 2011)

    @triton.jit
    def _pair(radius, angle):  # type: ignore[no-untyped-def]
        """Box and Muller's two normals; the angle lies in [−π, π), where the fast sine is right to 2⁻²¹."""
        radius = tl.sqrt(-2.0 * tl.log(tl.maximum(tl.uint_to_uniform_float(radius), 1e-7)))
        angle = 6.283185307179586 * (tl.uint_to_uniform_float(angle) - 0.5)
        return radius * libdevice.fast_cosf(angle), radius * libdevice.fast_sinf(angle)

    @triton.jit  # type: ignore[untyped-decorator]
    def _kernel(given, head, rest, out, seed, count, split, floor, slope, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        program = tl.program_id(0)
        lane = tl.arange(0, BLOCK)
        i0, i1, i2, i3 = tl.randint4x(tl.load(seed), program * BLOCK + lane, ROUNDS)
        e0, e1 = _pair(i0, i1)
        e2, e3 = _pair(i2, i3)
        start = program.to(tl.int64) * BLOCK * 4 + lane
        for part in tl.static_range(4):
            at = start + part * BLOCK
            inside = at < count
            delta = tl.load(head + at, mask=at < split, other=0.0).to(tl.float32)
            if not BACKWARD:
                delta += tl.load(rest + (at - split), mask=inside & (at >= split), other=0.0).to(tl.float32)
            scale = tl.sqrt(tl.maximum(delta, floor))
            noise = e0 if part == 0 else (e1 if part == 1 else (e2 if part == 2 else e3))
            value = tl.load(given + at, mask=inside).to(tl.float32)
            result = tl.where(delta >= floor, value * noise * slope / scale, 0.0) if BACKWARD else value + scale * noise
            tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)

    def _launch(given: Tensor, variance: Tensor, rest: Tensor, out: Tensor, seed: Tensor, slope: float | None) -> None:
        count, split = out.numel(), variance.numel()
        sizes = (count, split, SMALLEST_VARIANCE, slope or 0.0, slope is not None)
        _kernel[triton.cdiv(count, 4 * BLOCK),](given, variance, rest, out, seed, *sizes, BLOCK=BLOCK)

    @torch.library.custom_op("vnd::add_noise", mutates_args=())
    def _add_noise(mean: Tensor, variance: Tensor, rest: Tensor | None, seed: Tensor) -> Tensor:
        out = torch.empty_like(mean)
        _launch(mean, variance, variance if rest is None else rest, out, seed, None)
        return out

    @torch.library.custom_op("vnd::noise_slope", mutates_args=())
    def _noise_slope(grad: Tensor, variance: Tensor, seed: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(variance)
        _launch(grad, variance, variance, out, seed, 0.5 * scale)
        return out

    @_add_noise.register_fake
    def _(mean: Tensor, variance: Tensor, rest: Tensor | None, seed: Tensor) -> Tensor:
        return torch.empty_like(mean)

    @_noise_slope.register_fake
    def _(grad: Tensor, variance: Tensor, seed: Tensor, scale: float) -> Tensor:
        return torch.empty_like(variance)

    def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[3])

    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        variance, seed = ctx.saved_tensors
        leading = grad[: len(variance)]
        if leading.stride() != variance.stride():
            leading = torch.empty_like(variance).copy_(leading)
        slope = torch.ops.vnd.noise_slope(leading, variance, seed, len(grad) / len(variance))
        return grad, slope, None, None

    _add_noise.register_autograd(_backward, setup_context=_keep)

    @triton.jit  # type: ignore[untyped-decorator]
    def _draw_kernel(mean, variance, out, seed, count, samples, floor, SHARED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        # Programs that follow each other are samples of the same entries, so that these lie in the cache.
        program, sample = tl.program_id(0) // samples, tl.program_id(0) % samples
        lane = tl.arange(0, BLOCK)
        i0, i1, i2, i3 = tl.randint4x(tl.load(seed), tl.program_id(0) * BLOCK + lane, ROUNDS)
        e0, e1 = _pair(i0, i1)
        e2, e3 = _pair(i2, i3)
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
    def _draw(mean: Tensor, variance: Tensor, seed: Tensor, samples: int) -> Tensor:
        out, count = _empty(mean, variance, samples), variance.numel()
        grid = (triton.cdiv(count, 4 * BLOCK) * samples,)
        shared = mean.numel() == count
        _draw_kernel[grid](mean, variance, out, seed, count, samples, SMALLEST_VARIANCE, SHARED=shared, BLOCK=BLOCK)
        return out

    @_draw.register_fake
    def _(mean: Tensor, variance: Tensor, seed: Tensor, samples: int) -> Tensor:
        return _empty(mean, variance, samples)
