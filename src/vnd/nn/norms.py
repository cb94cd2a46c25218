"""Normalisations that mix channels, with statistics over the kept channels only.

A sliced network normalises over the channels that it has. So does a masked one here, and the two agree.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vnd.functional import widen


class _MaskedNorm(nn.Module):
    """What the masked normalisations share; mixed into one of torch's own."""

    plain: ClassVar[type[nn.Module]]

    @classmethod
    def from_plain(cls, norm: nn.Module, mask: Callable[[], Tensor]) -> Self:
        """Make the masked form of torch's `norm`, with the same parameters and a mask over channels."""
        new = cls.__new__(cls)
        new.__dict__ = {name: x.copy() if isinstance(x, dict) else x for name, x in norm.__dict__.items()}
        new.__dict__["_mask"] = (mask,)
        return new

    def to_plain(self) -> nn.Module:
        """Make torch's own norm with the same parameters."""
        new = self.plain.__new__(self.plain)
        attributes = {name: x for name, x in self.__dict__.items() if name != "_mask"}
        new.__dict__ = {name: x.copy() if isinstance(x, dict) else x for name, x in attributes.items()}
        return new

    def _kept(self) -> Tensor:
        mask: Tensor = self.__dict__["_mask"][0]()
        return (mask.detach() > 0).to(mask.dtype)


class MaskedLayerNorm(_MaskedNorm, nn.LayerNorm):
    r"""LayerNorm over the kept channels: $\hat x_c = (x_c - \bar x) / \sqrt{s^2 + ε}$, with their moments."""

    plain = nn.LayerNorm

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last dimension of `input`."""
        kept, x = self._kept(), widen(input)
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
        kept, wide = self._kept(), widen(x)
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
        x = widen(input).reshape(batch, self.num_groups, channels // self.num_groups, -1)
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


MASKED_OF: dict[type[nn.Module], Any] = {
    nn.LayerNorm: MaskedLayerNorm,
    nn.RMSNorm: MaskedRMSNorm,
    nn.GroupNorm: MaskedGroupNorm,
}
