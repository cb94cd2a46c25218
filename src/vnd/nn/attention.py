r"""Torch's multi-head attention, written so that its heads and its channels can be dropped.

$$\mathrm{out} = \mathrm{concat}_h\bigl(\mathrm{softmax}(q_h k_h^\top / \sqrt d)\, v_h\bigr) W_o$$

`nn.MultiheadAttention` computes this within one function, by the number of heads and the size of its input. The form
here has the same parameters and arguments, and takes each head's size alone as fixed: with fewer heads, or fewer
channels that come in and go out, it is a smaller attention layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn


class HeadwiseAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` in torch's basic functions; given by `open_attention`."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, as torch's layer does."""
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (self._heads(x, index) for index, x in enumerate((query, key, value)))
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            out = F.dropout(weights, self.dropout, self.training) @ v
        else:
            dropout = self.dropout if self.training else 0.0
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal and mask is None)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _heads(self, x: Tensor, index: int) -> Tensor:
        """Queries, keys or values, (batch, heads, positions, size of a head)."""
        if self._qkv_same_embed_dim:
            weight = self.in_proj_weight.chunk(3)[index]
        else:
            weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[index]
        bias = None if self.in_proj_bias is None else self.in_proj_bias.chunk(3)[index]
        made: Tensor = F.linear(x, weight, bias).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return made

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, attention: Tensor | None) -> Tensor | None:
        """The sum of both masks for the scores, −∞ where a query must not attend."""
        total: Tensor | None = None
        if attention is not None:
            if attention.dim() == 3:  # (batch · heads, queries, keys)
                attention = attention.view(q.shape[0], -1, *attention.shape[1:])
            total = _additive(attention, q)
        if padding is not None:
            padded = _additive(padding.view(-1, 1, 1, k.shape[2]), q)
            total = padded if total is None else total + padded
        return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.is_floating_point():
        return mask.to(like.dtype)
    return like.new_zeros(mask.shape).masked_fill(mask, float("-inf"))


def open_attention(model: nn.Module) -> list[nn.Module]:
    """Give each of torch's attention layers the form above, in place, and keep encoders off their fused path.

    Returns what was changed.
    """
    changed: list[nn.Module] = []
    for module in model.modules():
        if type(module) is nn.MultiheadAttention and module.bias_k is None and not module.add_zero_attn:
            module.__class__ = HeadwiseAttention
            changed.append(module)
        elif isinstance(module, nn.TransformerEncoderLayer) and "_vnd_fused" not in vars(module):
            vars(module)["_vnd_fused"] = vars(module)["activation_relu_or_gelu"]
            module.activation_relu_or_gelu = 0  # on that path it reads its layers' weights past them
            changed.append(module)
    return changed


@contextmanager
def opened_attention(model: nn.Module) -> Iterator[None]:
    """Let torch's attention layers run in the form above for the time of a block."""
    changed = open_attention(model)
    try:
        yield
    finally:
        for module in changed:
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = vars(module).pop("_vnd_fused")
            else:
                module.__class__ = nn.MultiheadAttention


def close_attention(model: nn.Module) -> None:
    """Give attention layers that are still what torch's layer can be its class back, and count heads anew."""
    whole = True
    for module in model.modules():
        if type(module) is not HeadwiseAttention:
            continue
        weights = [module.in_proj_weight.chunk(3)[0]] if module._qkv_same_embed_dim else [module.q_proj_weight]
        heads, inputs = weights[0].size(0), weights[0].size(1)
        module.num_heads, module.embed_dim = heads // module.head_dim, inputs
        if not module._qkv_same_embed_dim:
            module.kdim, module.vdim = module.k_proj_weight.size(1), module.v_proj_weight.size(1)
        else:
            module.kdim = module.vdim = inputs
        plain = type(module.out_proj) is nn.modules.linear.NonDynamicallyQuantizableLinear
        if plain and heads == inputs == module.out_proj.out_features:
            module.__class__ = nn.MultiheadAttention  # type: ignore[assignment]
        else:
            whole = False
    for module in model.modules():
        if (fused := vars(module).pop("_vnd_fused", None)) is not None and whole:
            module.activation_relu_or_gelu = fused
