"""Normalisations of nested networks.

Those that mix channels have statistics over the kept channels only: a sliced network normalises over the channels that
it has, so does a masked one here, and the two agree. BatchNorm has statistics per width.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vnd.functional import to_float32
from vnd.nn.bayesian import attributes_of
from vnd.nn.context import here, recall, remade


class _MaskedNorm(nn.Module):
    """Normalisation of masked channels; mixed into one of torch's own."""

    plain: ClassVar[type[nn.Module]]

    @classmethod
    def from_plain(cls, norm: nn.Module, mask: Callable[[], Tensor]) -> Self:
        """Make the masked form of torch's `norm`, with the same parameters and a mask over channels."""
        new = cls.__new__(cls)
        new.__dict__ = attributes_of(norm)
        new.__dict__["_mask"] = (mask,)
        return new

    def to_plain(self) -> nn.Module:
        """Make torch's own norm with the same parameters."""
        new = self.plain.__new__(self.plain)
        new.__dict__ = attributes_of(self)
        del new.__dict__["_mask"]
        return new

    def _kept(self) -> Tensor:
        mask: Tensor = self.__dict__["_mask"][0]()
        return (mask.detach() > 0).to(mask.dtype)


class MaskedLayerNorm(_MaskedNorm, nn.LayerNorm):
    r"""LayerNorm over the kept channels: $\hat x_c = (x_c - \bar x) / \sqrt{s^2 + ε}$, with their moments."""

    plain = nn.LayerNorm

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last dimension of `input`."""
        kept, x = self._kept(), to_float32(input)
        kept = (kept if kept.dim() == 1 else _align(kept, x, -1)).to(x.dtype)
        count = kept.sum(-1, keepdim=True).clamp(min=1)
        mean = (x * kept).sum(-1, keepdim=True) / count
        variance = ((x - mean).square() * kept).sum(-1, keepdim=True) / count
        return _affine((x - mean) * torch.rsqrt(variance + self.eps), self.weight, self.bias, input.dtype)


class MaskedRMSNorm(_MaskedNorm, nn.RMSNorm):
    r"""RMSNorm over the kept channels: $\hat x_c = x_c / \sqrt{\overline{x^2} + ε}$."""

    plain = nn.RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of `x`."""
        kept, wide = self._kept(), to_float32(x)
        kept = (kept if kept.dim() == 1 else _align(kept, x, -1)).to(wide.dtype)
        count = kept.sum(-1, keepdim=True).clamp(min=1)
        power = (wide.square() * kept).sum(-1, keepdim=True) / count
        eps = torch.finfo(wide.dtype).eps if self.eps is None else self.eps
        return _affine(wide * torch.rsqrt(power + eps), self.weight, None, x.dtype)


class MaskedGroupNorm(_MaskedNorm, nn.GroupNorm):
    """GroupNorm over the kept channels of each group; the order is nested inside each group, so all keep as many."""

    plain = nn.GroupNorm

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each group of channels (dimension 1) of `input` over its kept channels and all positions."""
        batch, channels = input.shape[:2]
        x = to_float32(input).reshape(batch, self.num_groups, channels // self.num_groups, -1)
        kept = self._kept().expand(batch, channels).reshape(batch, self.num_groups, -1, 1).to(x.dtype)
        count = (kept.sum((2, 3), keepdim=True) * x.size(-1)).clamp(min=1)
        mean = (x * kept).sum((2, 3), keepdim=True) / count
        variance = ((x - mean).square() * kept).sum((2, 3), keepdim=True) / count
        out = ((x - mean) * torch.rsqrt(variance + self.eps)).view(input.shape)
        if self.weight is None:
            return out.to(input.dtype)
        shape = (-1,) + (1,) * (input.dim() - 2)
        return _affine(out, self.weight.view(shape), self.bias.view(shape), input.dtype)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Scale and shift the wide `x`, then narrow it to the input's dtype, or the weight's if that is wider."""
    dtype = dtype if weight is None else torch.promote_types(dtype, weight.dtype)
    x = x if weight is None else x * weight
    return (x if bias is None else x + bias).to(dtype)


def _align(mask: Tensor, x: Tensor, dim: int) -> Tensor:
    """Give a mask (batch, channels) the rank of `x`, with the channels at `dim`."""
    shape = [1] * x.dim()
    shape[0], shape[dim] = mask.shape
    return mask.view(shape)


class WidthNorm(nn.Module):
    """A BatchNorm of a nested network: statistics of the caller's width beside those of training.

    Mixed into the class of the layer by `with_widths`. In evaluation the layer uses the statistics that the context
    holds for it, or `active_mean` and `active_var`, those of the default width, which compiled code reads; either only
    while the count of training batches is what it was when they were collected, and its own running statistics
    otherwise: training on, or loading another state, lets go of them by itself.
    """

    plain: ClassVar[type[nn.Module]]
    num_features: int
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any
    active_mean: Tensor
    active_var: Tensor
    active_at: Tensor

    @classmethod
    def from_plain(cls, norm: nn.Module) -> Self:
        """Make the form of `norm` that has statistics per width; the same parameters and state."""
        new = cls.__new__(cls)
        new.__dict__ = attributes_of(norm)
        mean, variance = new.trained
        if new.num_batches_tracked is None:  # as in networks of old files
            new.num_batches_tracked = torch.zeros((), dtype=torch.long, device=mean.device)
        new.register_buffer("active_mean", mean.clone(), persistent=False)
        new.register_buffer("active_var", variance.clone(), persistent=False)
        new.register_buffer("active_at", torch.full_like(new.num_batches_tracked, -1), persistent=False)
        return new

    def to_plain(self) -> nn.Module:
        """Make the layer's own class again, with the statistics of training."""
        new = self.plain.__new__(self.plain)
        new.__dict__ = attributes_of(self)
        for name in ACTIVE:
            delattr(new, name)
        return new

    @property
    def trained(self) -> tuple[Tensor, Tensor]:
        """The running mean and variance of training, the buffers themselves."""
        return self._buffers["running_mean"], self._buffers["running_var"]  # type: ignore[return-value]

    def statistics(self) -> tuple[Tensor, Tensor]:
        """The mean and the variance that evaluation normalises with."""
        mean, variance = self.trained
        found = self._active() if torch.compiler.is_compiling() else recall(self, self._found)
        if not found:
            return mean, variance
        active = found[2] == self.num_batches_tracked
        return torch.where(active, found[0], mean), torch.where(active, found[1], variance)

    def _active(self) -> tuple[Tensor, ...]:
        return self.active_mean, self.active_var, self.active_at

    def _found(self, said: Any) -> tuple[Tensor, ...]:
        return self._active() if said is None else said

    def activate(self, statistics: tuple[Tensor, ...]) -> None:
        """Use this mean, variance and count by default from now on, or those of training if there are none."""
        if not statistics:
            self.active_at.fill_(-1)
            return
        for name, value in zip(ACTIVE, statistics, strict=True):
            getattr(self, name).copy_(value)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise as torch does, in evaluation with the statistics of the width."""
        if self.training:
            return super().forward(input)  # type: ignore[no-any-return]
        self._check_input_dim(input)  # type: ignore[operator]
        mean, variance = self.statistics()
        return F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle has the width of the context that it is made in as its default."""
        said = here(self)
        if said is None:
            return self.__dict__
        values = said or (*self.trained, torch.full_like(self.num_batches_tracked, -1))
        return self.__dict__ | {"_buffers": self._buffers | dict(zip(ACTIVE, values, strict=True))}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return remade(self, with_widths, self.plain)


ACTIVE = ("active_mean", "active_var", "active_at")


_WITH_WIDTHS: dict[type[nn.Module], type[WidthNorm]] = {}


def with_widths(kind: type[nn.Module]) -> type[WidthNorm]:
    """The form of a BatchNorm class that has statistics per width: a subclass of it.

    One with a `forward` of its own finds the statistics of the width where it looks for the running ones.
    """
    if kind in _WITH_WIDTHS:
        return _WITH_WIDTHS[kind]
    members: dict[str, Any] = {"plain": kind, "__doc__": f"{kind.__name__} with statistics per width."}
    if kind not in TORCH_NORMS:
        members["forward"] = kind.forward
        members["running_mean"] = property(lambda norm: norm.trained[0] if norm.training else norm.statistics()[0])
        members["running_var"] = property(lambda norm: norm.trained[1] if norm.training else norm.statistics()[1])
    return _WITH_WIDTHS.setdefault(kind, type(f"Width{kind.__name__}", (WidthNorm, kind), members))


TORCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
MASKED_OF: dict[type[nn.Module], Any] = {
    nn.LayerNorm: MaskedLayerNorm,
    nn.RMSNorm: MaskedRMSNorm,
    nn.GroupNorm: MaskedGroupNorm,
}


_MASKED: dict[type[nn.Module], Any] = {}


def masked_of(kind: type[nn.Module]) -> Any:
    """The masked form of LayerNorm, RMSNorm, GroupNorm, or of a class that inherits its forward pass from one."""
    if kind in MASKED_OF:
        return MASKED_OF[kind]
    base = next((plain for plain in MASKED_OF if issubclass(kind, plain)), None)
    if base is None or issubclass(kind, _MaskedNorm) or kind.forward is not base.forward:
        return None
    if kind not in _MASKED:
        members = {"plain": kind, "__reduce_ex__": _reduce, "__doc__": f"{kind.__name__} over kept channels."}
        _MASKED[kind] = type(f"Masked{kind.__name__}", (MASKED_OF[base], kind), members)
    return _MASKED[kind]


def _reduce(norm: _MaskedNorm, protocol: Any) -> tuple[Any, ...]:
    return remade(norm, masked_of, norm.plain)
