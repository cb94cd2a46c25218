r"""Masks where channels are read by a function and not by a layer of torch's.

A weight that a function contracts with channels is multiplied by their mask: $(h \odot m) W = h\,(\mathrm{diag}(m) W)$.
A statistic over channels, as written-out norms take them, is that of the kept ones: a mean divides by their number, a
maximum leaves the others out. Masked and sliced networks then agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vnd.nn.context import remade
from vnd.nn.recorder import name_of

Mask = Callable[[], Tensor]
Key = tuple[str, int, int]  # function, dimension from the end, size


class MaskedModule(nn.Module):
    """A module of the user's whose weights, or whose statistics, are masked; mixed into its class by `mask_module`."""

    plain: ClassVar[type[nn.Module]]
    names: ClassVar[tuple[str, ...]]  # of the masked parameters

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward pass, with its statistics over the kept channels."""
        statistics = self.__dict__["_vnd_statistics"]
        if not statistics:
            return super().forward(*args, **kwargs)
        with KeptChannels({key: (mask().detach() > 0) for key, mask in statistics}):
            return super().forward(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return remade(self, _masked, self.plain, self.names)


def mask_module(
    module: nn.Module, weights: dict[str, tuple[Mask, int]], statistics: Sequence[tuple[Key, Mask]]
) -> None:
    """Mask parameters along a dimension each, and statistics over channels, in place: of a subclass from then on."""
    vars(module)["_vnd_weights"], vars(module)["_vnd_statistics"] = weights, tuple(statistics)
    module.__class__ = _masked(type(module), tuple(weights))


def unmask_module(module: nn.Module) -> None:
    """Give a masked module its own class back, and no masks."""
    if isinstance(module, MaskedModule):
        module.__class__ = module.plain  # type: ignore[assignment]
        del vars(module)["_vnd_weights"], vars(module)["_vnd_statistics"]


_CLASSES: dict[tuple[type[nn.Module], tuple[str, ...]], type[MaskedModule]] = {}


def _masked(kind: type[nn.Module], names: tuple[str, ...]) -> type[MaskedModule]:
    if (kind, names) not in _CLASSES:
        members: dict[str, Any] = {"plain": kind, "names": names, "__doc__": f"{kind.__name__} with masks."}
        members |= {name: _property(name) for name in names}
        _CLASSES[kind, names] = type(f"Masked{kind.__name__}", (MaskedModule, kind), members)
    return _CLASSES[kind, names]


def _property(name: str) -> property:
    """A parameter, multiplied by its mask where it is read."""

    def get(module: nn.Module) -> Tensor:
        value = module._parameters[name]
        assert value is not None
        mask, dim = module.__dict__["_vnd_weights"][name]
        shape = [-1 if d == dim else 1 for d in range(value.dim())]
        masked: Tensor = value * mask().view(shape).to(value.dtype)
        return masked

    def put(module: nn.Module, value: nn.Parameter) -> None:
        module._parameters[name] = value

    return property(get, put)


# The positional arguments of statistics after the tensor; of all others the dimension and keepdim.
ORDER = {
    **{"norm": ("p", "dim", "keepdim"), "normalize": ("p", "dim", "eps")},
    **dict.fromkeys(("vector_norm", "linalg_vector_norm"), ("ord", "dim", "keepdim")),
    **dict.fromkeys(("var", "std"), ("dim", "unbiased", "keepdim")),
}


class KeptChannels(TorchFunctionMode):
    """Statistics over channels are those of the kept ones, for functions of given names, dimensions and sizes.

    Args:
        kept: Whether each channel is kept, (channels,) or (batch, channels), by function, dimension from the end, size.
    """

    def __init__(self, kept: dict[Key, Tensor]) -> None:
        super().__init__()
        self.kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        for (function, dim, size), kept in self.kept.items():
            if function == name and args and isinstance(args[0], Tensor):
                x = args[0]
                if x.dim() >= -dim and x.size(dim) == size:
                    taken = _statistic(name, x, dim, _aligned(kept, x, dim), args[1:], kwargs)
                    if taken is not None:
                        return taken
        return func(*args, **kwargs)


def _aligned(kept: Tensor, x: Tensor, dim: int) -> Tensor:
    """The mask of channels, of the rank of `x`."""
    shape = [1] * x.dim()
    shape[dim] = kept.size(-1)
    if kept.dim() == 2:
        shape[0] = kept.size(0)
    return kept.view(shape)


def _statistic(name: str, x: Tensor, dim: int, kept: Tensor, rest: Any, named: dict[str, Any]) -> Any:
    """The statistic over the kept channels; None where the call is not over them."""
    if name in ("layer_norm", "rms_norm"):
        return _layer_norm(name, x, kept, rest, named)
    if name == "group_norm":
        return _group_norm(x, kept, *rest, **named)
    if name == "batch_norm":
        return _standardized(x, kept, *rest, **named)
    if name in ("var", "std") and rest and isinstance(rest[0], bool):
        return None
    arguments = dict(zip(ORDER.get(name, ("dim", "keepdim")), rest, strict=False)) | named
    given = arguments.pop("dim", arguments.pop("axis", 1 if name == "normalize" else None))
    axes = range(x.dim()) if given is None else given if isinstance(given, (tuple, list)) else (given,)
    dims = [int(d) % x.dim() for d in axes]
    if dim % x.dim() not in dims:
        return None
    keep = bool(arguments.pop("keepdim", False))
    if (dtype := arguments.pop("dtype", None)) is not None:
        x = x.to(dtype)
    zeros = x * kept.to(x.dtype)
    count = kept.sum(dim, keepdim=True)
    for d in dims:
        count = count * (1 if d == dim % x.dim() else x.size(d))
    if name == "sum":
        return zeros.sum(dims, keepdim=keep)
    if name == "normalize":
        p = float(arguments.get("p", 2.0))
        return x / zeros.norm(p, dims, keepdim=True).clamp_min(float(arguments.get("eps", 1e-12)))
    if name in ("norm", "vector_norm", "linalg_vector_norm"):
        p = arguments.get("p", arguments.get("ord", 2))
        return torch.linalg.vector_norm(zeros, 2 if p in (None, "fro") else p, dims, keep)
    if name in ("amax", "amin", "max", "min"):
        low = name.endswith("max")
        filled = x.masked_fill(~kept, float("-inf") if low else float("inf"))
        if name in ("amax", "amin"):
            return (filled.amax if low else filled.amin)(dims, keepdim=keep)
        if given is None:
            return filled.max() if low else filled.min()
        return filled.max(dims[0], keepdim=keep) if low else filled.min(dims[0], keepdim=keep)
    mean = zeros.sum(dims, keepdim=True) / count.to(x.dtype)
    if name in ("var", "std"):
        correction = arguments.get("correction", 1 if arguments.get("unbiased", True) else 0)
        squares = ((x - mean).square() * kept.to(x.dtype)).sum(dims, keepdim=True)
        mean = squares / (count - correction).clamp(min=1).to(x.dtype)
        mean = mean.sqrt() if name == "std" else mean
    if not keep:
        for d in sorted(dims, reverse=True):
            mean = mean.squeeze(d)
    return mean


def _layer_norm(name: str, x: Tensor, kept: Tensor, rest: Any, named: dict[str, Any]) -> Tensor:
    """F.layer_norm and F.rms_norm over the kept channels of the last dimension."""
    names = (
        ("normalized_shape", "weight", "bias", "eps") if name == "layer_norm" else ("normalized_shape", "weight", "eps")
    )
    given = dict(zip(names, rest, strict=False)) | named
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mask = kept.to(wide.dtype)
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    eps = given.get("eps", 1e-5 if name == "layer_norm" else None)
    if name == "layer_norm":
        wide = wide - (wide * mask).sum(-1, keepdim=True) / count
    power = (wide.square() * mask).sum(-1, keepdim=True) / count
    out = wide * torch.rsqrt(power + (torch.finfo(wide.dtype).eps if eps is None else eps))
    weight, bias = given.get("weight"), given.get("bias")
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias).to(x.dtype)


def _standardized(
    x: Tensor,
    kept: Tensor,
    running_mean: None = None,
    running_var: None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm of a weight over what it reads of the kept channels; 0 where it reads others."""
    dims = [d for d in range(x.dim()) if d != 1]
    mask = kept.to(x.dtype).expand(1, 1, *x.shape[2:])
    count = mask.sum(dims, keepdim=True).clamp(min=1) * x.size(0)
    mean = (x * mask).sum(dims, keepdim=True) / count
    variance = ((x - mean).square() * mask).sum(dims, keepdim=True) / count
    out = (x - mean) * torch.rsqrt(variance + eps)
    shape = [-1 if d == 1 else 1 for d in range(x.dim())]
    out = out if weight is None else out * weight.view(shape)
    return (out if bias is None else out + bias.view(shape)) * mask


def _group_norm(
    x: Tensor,
    kept: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """F.group_norm over the kept channels of each group; the order is nested inside each, so all keep as many."""
    batch, channels = x.shape[:2]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    parts = wide.reshape(batch, num_groups, channels // num_groups, -1)
    mask = kept.expand(batch, channels, *[1] * (x.dim() - 2)).reshape(batch, num_groups, -1, 1).to(wide.dtype)
    count = (mask.sum((2, 3), keepdim=True) * parts.size(-1)).clamp(min=1)
    mean = (parts * mask).sum((2, 3), keepdim=True) / count
    variance = ((parts - mean).square() * mask).sum((2, 3), keepdim=True) / count
    out = ((parts - mean) * torch.rsqrt(variance + eps)).view(x.shape)
    shape = (-1,) + (1,) * (x.dim() - 2)
    out = out if weight is None else out * weight.view(shape)
    return (out if bias is None else out + bias.view(shape)).to(x.dtype)
