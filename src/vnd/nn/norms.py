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


class _MaskedNorm(nn.Module):
    """What the masked normalisations share; mixed into one of torch's own."""

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


class CalibratedNorm(nn.Module):
    """What BatchNorm layers of a nested network share: statistics of the width that is set, beside those of training.

    In evaluation a layer uses `active_mean` and `active_var` while `active_at` is its count of training batches, and
    its own running statistics otherwise: training on, or loading another state, lets go of them by itself.
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
        """Make the form of torch's `norm` that has statistics per width; the same parameters and state."""
        new = cls.__new__(cls)
        new.__dict__ = attributes_of(norm)
        new.register_buffer("active_mean", new.running_mean.clone(), persistent=False)
        new.register_buffer("active_var", new.running_var.clone(), persistent=False)
        new.register_buffer("active_at", torch.full_like(new.num_batches_tracked, -1), persistent=False)
        return new

    def to_plain(self) -> nn.Module:
        """Make torch's own norm, with the statistics of training."""
        new = self.plain.__new__(self.plain)
        new.__dict__ = attributes_of(self)
        for name in ("active_mean", "active_var", "active_at"):
            delattr(new, name)
        return new

    def statistics(self) -> tuple[Tensor, Tensor]:
        """The mean and the variance that evaluation normalises with."""
        active = self.active_at == self.num_batches_tracked
        mean = torch.where(active, self.active_mean, self.running_mean)
        return mean, torch.where(active, self.active_var, self.running_var)

    def activate(self, statistics: tuple[Tensor, Tensor] | None) -> None:
        """Use these statistics from now on, or those of training if None."""
        if statistics is None:
            self.active_at.fill_(-1)
        else:
            self.active_mean.copy_(statistics[0])
            self.active_var.copy_(statistics[1])
            self.active_at.copy_(self.num_batches_tracked)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise as torch does, in evaluation with the statistics of the width."""
        if self.training:
            return super().forward(input)  # type: ignore[no-any-return]
        self._check_input_dim(input)  # type: ignore[operator]
        mean, variance = self.statistics()
        return F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)  # type: ignore[arg-type]


class CalibratedBatchNorm1d(CalibratedNorm, nn.BatchNorm1d):
    """BatchNorm1d with statistics per width."""

    plain = nn.BatchNorm1d


class CalibratedBatchNorm2d(CalibratedNorm, nn.BatchNorm2d):
    """BatchNorm2d with statistics per width."""

    plain = nn.BatchNorm2d


class CalibratedBatchNorm3d(CalibratedNorm, nn.BatchNorm3d):
    """BatchNorm3d with statistics per width."""

    plain = nn.BatchNorm3d


class CalibratedSyncBatchNorm(CalibratedNorm, nn.SyncBatchNorm):
    """SyncBatchNorm with statistics per width."""

    plain = nn.SyncBatchNorm


CALIBRATED_OF: dict[type[nn.Module], type[CalibratedNorm]] = {
    kind.plain: kind
    for kind in (CalibratedBatchNorm1d, CalibratedBatchNorm2d, CalibratedBatchNorm3d, CalibratedSyncBatchNorm)
}
MASKED_OF: dict[type[nn.Module], Any] = {
    nn.LayerNorm: MaskedLayerNorm,
    nn.RMSNorm: MaskedRMSNorm,
    nn.GroupNorm: MaskedGroupNorm,
}
