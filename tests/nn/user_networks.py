"""Networks as people bring them: the structures of popular models, each written out small, without a dependency."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

HIDDEN, HEADS, KEY_VALUE_HEADS, VOCABULARY = 32, 4, 2, 20


# -- images -----------------------------------------------------------------------------------------------------------


class MNISTNet(nn.Module):
    """The network of pytorch/examples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(16 * 4 * 4, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = self.dropout2(F.relu(self.fc1(torch.flatten(self.dropout1(x), 1))))
        return F.log_softmax(self.fc2(x), dim=1)


class OldMNISTNet(nn.Module):
    """The same of years ago, with the number of features written into a view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv2_drop = nn.Conv2d(1, 10, 3), nn.Conv2d(10, 20, 3), nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2)).view(-1, 320)
        return self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training))


class AttentionUNet(nn.Module):
    """A UNet whose skips are gated by what comes from below."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                *(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
            )

        self.down, self.bottom, self.up = block(1, 8), block(8, 16), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.of_skip, self.of_below, self.gate = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 1), nn.Conv2d(6, 1, 1)
        self.merge, self.head = block(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        below = self.up(self.bottom(F.max_pool2d(skip, 2)))
        gate = torch.sigmoid(self.gate(F.relu(self.of_skip(skip) + self.of_below(below))))
        return self.head(self.merge(torch.cat([skip * gate, below], dim=1)))


class ParametricReLU(nn.Sequential):
    """A slope for each channel, and one for all."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.ReflectionPad2d(1), nn.Conv2d(8, 12, 3), nn.PReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10)),
        )


class SuperResolution(nn.Module):
    """ESPCN with a second pixel shuffle within the network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.third, self.last, self.shuffle = (
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(8, 4, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.shuffle(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return self.shuffle(self.last(F.relu(self.third(x))))


class TemporalConvolutions(nn.Module):
    """A causal network on a signal: padding by a function, the last step by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 8, 3), nn.Conv1d(8, 12, 3, dilation=2)
        self.downsample, self.head = nn.Conv1d(2, 12, 1), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.first(F.pad(x, (2, 0))))
        out = F.relu(self.second(F.pad(out, (4, 0))))
        return self.head(F.relu(out + self.downsample(x))[:, :, -1])


class SqueezeExpand(nn.Module):
    """Squeeze-and-excitation as in many repositories: `view` and `expand_as`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.fc = nn.Sequential(nn.Linear(16, 4, bias=False), nn.ReLU(), nn.Linear(4, 16, bias=False), nn.Sigmoid())
        self.next, self.head = nn.Conv2d(16, 12, 3), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        b, c, _, _ = x.size()
        y = self.fc(F.adaptive_avg_pool2d(x, 1).view(b, c)).view(b, c, 1, 1)
        x = F.relu(self.next(x * y.expand_as(x)))
        return self.head(x.mean([2, 3]))


class ShuffleUnit(nn.Module):
    """A ShuffleNetV2 unit: half of the channels pass, the others are worked on, then both are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 10)
        self.branch = nn.Sequential(
            *(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)),
            *(nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        passed, worked = self.stem(x).chunk(2, dim=1)
        x = torch.cat((passed, self.branch(worked)), dim=1)
        b, c, h, w = x.size()
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
        return self.head(x.mean([2, 3]))


class NormAct2d(nn.BatchNorm2d):
    """A norm and its activation that call the function themselves, as timm's do."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        training = self.training or (self.running_mean is None and self.running_var is None)
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum, self.eps
        )
        return self.act(self.drop(x))


class SamePad(nn.Conv2d):
    """A convolution that pads itself, by as much as its input's size asks for."""

    def forward(self, x: Tensor) -> Tensor:
        sizes = zip(x.shape[-2:], self.kernel_size, self.stride, strict=True)
        need = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in sizes]
        if any(need):
            x = F.pad(x, [need[1] // 2, need[1] - need[1] // 2, need[0] // 2, need[0] - need[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class InvertedResidual(nn.Module):
    """The blocks of EfficientNet and MobileNet: norms with activations, own padding, a branch on a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = SamePad(3, 16, 3, stride=2, bias=False), NormAct2d(16)
        self.expand, self.expand_norm = nn.Conv2d(16, 48, 1, bias=False), NormAct2d(48)
        self.depthwise, self.depthwise_norm = SamePad(48, 48, 3, groups=48, bias=False), NormAct2d(48)
        self.squeeze, self.excite = nn.Conv2d(48, 8, 1), nn.Conv2d(8, 48, 1)
        self.project, self.project_norm = nn.Conv2d(48, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        y = self.depthwise_norm(self.depthwise(self.expand_norm(self.expand(x))))
        y = y * self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))).sigmoid()
        y = self.project_norm(self.project(y))
        if x.shape == y.shape:
            y = y + x
        return self.head(y.mean((2, 3)))


class StandardConv(nn.Conv2d):
    """A convolution whose weight is standardised on the way, as in BiT and NFNet."""

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True, eps=1e-6)
        weight = weight.reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Standardised(nn.Module):
    """Standardised convolutions with group norms between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.norm = StandardConv(3, 16, 3), StandardConv(16, 24, 3), nn.GroupNorm(4, 24)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(F.relu(self.stem(x))))).mean((2, 3)))


# -- dense, recurrent -------------------------------------------------------------------------------------------------


class ModuleLists(nn.Module):
    """An MLP of lists of layers and norms."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (6, 16, 16, 16)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(b) for b in sizes[1:]), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x)))
        return self.head(x)


class Recurrent(nn.Module):
    """A recurrent layer, of which the last state is read."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.rnn, self.hidden, self.head = kind(5, 8, batch_first=True), nn.Linear(8, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.head(F.relu(self.hidden(out[:, -1])))


class GatedChunk(nn.Module):
    """A gated linear unit: one layer makes value and gate, `chunk` parts them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gated, self.out = nn.Linear(6, 16), nn.Linear(16, 32), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.gated(F.relu(self.inner(x))).chunk(2, dim=-1)
        return self.out(value * F.silu(gate))


class Reparametrised(nn.Module):
    """Weight norm and spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(6, 16))
        self.second = parametrizations.spectral_norm(nn.Linear(16, 16))
        self.third, self.head = nn.Linear(16, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.third(F.relu(self.second(F.relu(self.first(x)))))))


class Normalised(nn.Module):
    """An embedding of length one, and layers that other names and operations hide."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.head = (
            nn.Linear(a, b) for a, b in ((6, 16), (16, 16), (16, 16), (16, 10))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.clip(self.first(x), min=-2, max=2) ** 2
        x = torch.maximum(self.second(x), torch.zeros_like(x))
        return F.normalize(self.head(F.logsigmoid(self.third(x)).masked_fill(x < 0.1, 0.0)), dim=-1)


class DictOutput(nn.Module):
    """A stem with two heads, named."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 16)
        self.heads = nn.ModuleDict({"logits": nn.Linear(16, 10), "depth": nn.Linear(16, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.second(F.relu(self.first(x))))
        return {name: head(x) for name, head in self.heads.items()}


class Branching(nn.Module):
    """Which layer runs depends on the values: it cannot be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 10), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        return self.a(h) if x.sum() > 0 else self.b(h)


# -- transformers -----------------------------------------------------------------------------------------------------


class TorchEncoder(nn.Module):
    """torch's own encoder between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, HIDDEN), nn.Linear(HIDDEN, 10)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class FusedAttention(nn.Module):
    """timm's attention: one layer for q, k and v, heads by a reshape with the stream's size."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = heads, dim // heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape  # noqa: N806
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, blocks before which is normalised, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm, self.head = (
            nn.Conv2d(3, HIDDEN, 4, stride=4),
            nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, 10),
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, HIDDEN))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 5, HIDDEN))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(4))
        self.attention = nn.ModuleList(FusedAttention(HIDDEN, HEADS) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(OrderedDict(fc1=nn.Linear(HIDDEN, 64), act=nn.GELU(), fc2=nn.Linear(64, HIDDEN)))
            for _ in range(2)
        )
        self.gammas = nn.ParameterList(torch.full((HIDDEN,), 0.1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        for index in range(2):
            x = x + self.gammas[index] * self.attention[index](self.norms[2 * index](x))
            x = x + self.mlps[index](self.norms[2 * index + 1](x))
        return self.head(self.norm(x)[:, 0])


class BertLike(nn.Module):
    """q, k and v apart, norms after the sums, a mask as an argument, a dict of outputs: BERT's layout."""

    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads, self.attention_head_size = HEADS, HIDDEN // HEADS
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.word, self.position = nn.Embedding(VOCABULARY, HIDDEN, padding_idx=0), nn.Embedding(16, HIDDEN)
        self.query, self.key, self.value = (nn.Linear(HIDDEN, self.all_head_size) for _ in range(3))
        self.dense, self.intermediate, self.output = (
            nn.Linear(HIDDEN, HIDDEN),
            nn.Linear(HIDDEN, 64),
            nn.Linear(64, HIDDEN),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN, eps=1e-12) for _ in range(3))
        self.pooler, self.classifier = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 10)
        self.register_buffer("position_ids", torch.arange(16).expand((1, -1)), persistent=False)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        length = input_ids.shape[1]
        x = self.norms[0](self.word(input_ids) + self.position(self.position_ids[:, :length]))
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.attention_head_size**0.5
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        context = torch.matmul(scores.softmax(dim=-1), v).permute(0, 2, 1, 3).contiguous()
        x = self.norms[1](self.dense(context.view(*context.shape[:-2], self.all_head_size)) + x)
        x = self.norms[2](self.output(F.gelu(self.intermediate(x))) + x)
        return {"logits": self.classifier(torch.tanh(self.pooler(x[:, 0]))), "last_hidden_state": x}


class ScaleNorm(nn.Module):
    """RMSNorm written out, in float32, as in Llama and T5."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class LlamaLike(nn.Module):
    """Grouped-query attention with rotary positions, written-out norms, a SwiGLU, a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim, self.num_key_value_groups = HIDDEN // HEADS, HEADS // KEY_VALUE_HEADS
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.q_proj = nn.Linear(HIDDEN, HEADS * self.head_dim, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(HIDDEN, KEY_VALUE_HEADS * self.head_dim, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(HEADS * self.head_dim, HIDDEN, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(HIDDEN, 64, bias=False), nn.Linear(HIDDEN, 64, bias=False)
        self.down_proj, self.lm_head = nn.Linear(64, HIDDEN, bias=False), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.norms = nn.ModuleList(ScaleNorm(HIDDEN) for _ in range(3))
        self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("inv_freq", 0.1 ** torch.linspace(0, 3, self.head_dim // 2), persistent=False)

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[2]).to(x)[:, None] * self.inv_freq.to(x)
        angles = torch.cat((angles, angles), dim=-1)
        half = torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)
        return x * angles.cos() + half * angles.sin()

    def attention(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.head_dim)
        q, k = (self.rotated(layer(x).view(shape).transpose(1, 2)) for layer in (self.q_proj, self.k_proj))
        v = self.v_proj(x).view(shape).transpose(1, 2)
        k, v = self.repeated(k), self.repeated(v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous()
        return self.o_proj(out.reshape(*x.shape[:-1], -1).contiguous())

    def repeated(self, x: Tensor) -> Tensor:
        batch, heads, length, size = x.shape
        x = x[:, :, None, :, :].expand(batch, heads, self.num_key_value_groups, length, size)
        return x.reshape(batch, heads * self.num_key_value_groups, length, size)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        x = x + self.attention(self.norms[0](x))
        h = self.norms[1](x)
        x = x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))
        return self.lm_head(self.norms[2](x))


class Conv1D(nn.Module):
    """GPT-2's linear layer: a transposed weight and `addmm`."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf, self.nx = outputs, inputs
        self.weight, self.bias = nn.Parameter(0.2 * torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        size_out = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size_out)


class GPT2Like(nn.Module):
    """Fused projections by `addmm`, parted by `split` with a size that is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_dim, self.split_size, self.num_heads, self.head_dim = HIDDEN, HIDDEN, HEADS, HIDDEN // HEADS
        self.wte, self.wpe = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(16, HIDDEN)
        self.ln_1, self.ln_2, self.ln_f = (nn.LayerNorm(HIDDEN) for _ in range(3))
        self.c_attn, self.c_proj = Conv1D(3 * HIDDEN, HIDDEN), Conv1D(HIDDEN, HIDDEN)
        self.c_fc, self.mlp_proj = Conv1D(64, HIDDEN), Conv1D(HIDDEN, 64)
        self.score = nn.Linear(HIDDEN, 10, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[-1]))
        q, k, v = self.c_attn(self.ln_1(x)).split(self.split_size, dim=2)
        q, k, v = (y.view(*y.shape[:-1], -1, self.head_dim).transpose(1, 2) for y in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.c_proj(out.reshape(*out.shape[:-2], -1).contiguous())
        inner = self.c_fc(self.ln_2(x))
        inner = 0.5 * inner * (1.0 + torch.tanh(0.8 * (inner + 0.04 * torch.pow(inner, 3.0))))
        return self.score(self.ln_f(x + self.mlp_proj(inner)))[:, -1]


class RelativeBias(nn.Module):
    """T5's decoder layout: a bias for each head and distance, self- and cross-attention, wider than the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.key_value_proj_dim = HEADS, 12
        self.inner_dim = self.n_heads * self.key_value_proj_dim
        self.shared, self.relative = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(8, HEADS)
        self.own = nn.ModuleDict({name: nn.Linear(HIDDEN, self.inner_dim, bias=False) for name in "qkv"})
        self.cross = nn.ModuleDict({name: nn.Linear(HIDDEN, self.inner_dim, bias=False) for name in "qkv"})
        self.outs = nn.ModuleList(nn.Linear(self.inner_dim, HIDDEN, bias=False) for _ in range(2))
        self.norms, self.head = nn.ModuleList(ScaleNorm(HIDDEN) for _ in range(3)), nn.Linear(HIDDEN, 10)

    def attend(self, layers: nn.ModuleDict, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        def states(name: str, y: Tensor) -> Tensor:
            return layers[name](y).view(y.shape[0], -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        scores = torch.matmul(states("q", x), states("k", memory).transpose(3, 2))
        scores = scores if bias is None else scores + bias
        out = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), states("v", memory))
        return out.transpose(1, 2).contiguous().view(x.shape[0], -1, self.inner_dim)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        memory, x = self.shared(input_ids), self.shared(decoder_input_ids)
        places = torch.arange(x.shape[1])
        distances = (places[:, None] - places[None, :]).abs().clamp(max=7)
        bias = self.relative(distances).permute([2, 0, 1]).unsqueeze(0)
        h = self.norms[0](x)
        x = x + self.outs[0](self.attend(self.own, h, h, bias))
        x = x + self.outs[1](self.attend(self.cross, self.norms[1](x), memory, None))
        return self.head(self.norms[2](x)).mean(1)


class Windows(nn.Module):
    """Swin's layout: windows by views, a shift by `roll`, a table of biases by head, patches merged by slices."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.window_size, self.num_heads = nn.Conv2d(3, HIDDEN, 2, stride=2), 2, HEADS
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in (HIDDEN, HIDDEN, 4 * HIDDEN, 2 * HIDDEN))
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 64), nn.Linear(64, HIDDEN)
        self.table = nn.Parameter(0.1 * torch.randn(9, HEADS))
        self.register_buffer("index", torch.randint(0, 9, (4, 4)), persistent=False)
        self.reduction, self.head = nn.Linear(4 * HIDDEN, 2 * HIDDEN, bias=False), nn.Linear(2 * HIDDEN, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        B, H, W, C = x.shape  # noqa: N806
        size = self.window_size
        h = torch.roll(self.norms[0](x), shifts=(-1, -1), dims=(1, 2))
        h = h.view(B, H // size, size, W // size, size, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, C)
        q, k, v = self.qkv(h).view(h.shape[0], h.shape[1], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1).contiguous()
        h = ((q @ k.transpose(-2, -1)) * 0.3 + bias.unsqueeze(0)).softmax(-1) @ v
        h = self.proj(h.transpose(1, 2).flatten(2)).view(B, H // size, W // size, size, size, C)
        x = x + torch.roll(h.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C), shifts=(1, 1), dims=(1, 2))
        x = x + self.fc2(F.gelu(self.fc1(self.norms[1](x))))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.head(self.norms[3](self.reduction(self.norms[2](x))).mean((1, 2)))


def _images(channels: int = 3, size: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, channels, size, size)


def _rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, *shape)


def _ids() -> Tensor:
    return torch.randint(1, VOCABULARY, (2, 6))


USER_NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "MNIST net": (MNISTNet, _images(1, 12)),
    "old MNIST net": (OldMNISTNet, _images(1, 12)),
    "attention UNet": (AttentionUNet, _images(1)),
    "PReLU by channel": (ParametricReLU, _images()),
    "pixel shuffles": (SuperResolution, _images(1)),
    "temporal convolutions": (TemporalConvolutions, _rows(2, 10)),
    "squeeze, expand_as": (SqueezeExpand, _images()),
    "shuffle unit": (ShuffleUnit, _images()),
    "inverted residual": (InvertedResidual, _images()),
    "standardised convolutions": (Standardised, _images()),
    "module lists": (ModuleLists, _rows(6)),
    "LSTM": (Recurrent, _rows(4, 5)),
    "GRU": (lambda: Recurrent(nn.GRU), _rows(4, 5)),
    "gate by chunk": (GatedChunk, _rows(6)),
    "weight norm": (Reparametrised, _rows(6)),
    "normalised": (Normalised, _rows(6)),
    "dict output": (DictOutput, _rows(6)),
    "branching": (Branching, _rows(6)),
    "torch encoder": (TorchEncoder, _rows(4, 5)),
    "vision transformer": (VisionTransformer, _images()),
    "BERT layout": (BertLike, lambda: {"input_ids": _ids(), "attention_mask": torch.ones(2, 6, dtype=torch.long)}),
    "Llama layout": (LlamaLike, _ids),
    "GPT-2 layout": (GPT2Like, _ids),
    "T5 layout": (RelativeBias, lambda: (_ids(), _ids())),
    "Swin layout": (Windows, _images()),
}
