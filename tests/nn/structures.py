"""Networks under test: each kind of channel dependency once, and what conversion has to make of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vnd
from vnd.models import MODELS, EnsembleUNet, ProbabilisticUNet, build
from vnd.models.autoencoder import CodedNetwork
from vnd.nn.state import state_of

Example = Tensor | tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Structure:
    """A network, an example of its input, and its units and whole layers after conversion with `options`."""

    make: Callable[[], nn.Module]
    example: Callable[[], Example]
    units: tuple[str, ...]
    whole: dict[str, str] = field(default_factory=dict)  # layer → words of the reason
    options: dict[str, Any] = field(default_factory=dict)


class Residual(nn.Module):
    """A block of two convolutions on a stream, then a strided one with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 6, 3, padding=1, bias=False)
        self.inner_norm = nn.BatchNorm2d(6)
        self.outer = nn.Conv2d(6, 8, 3, padding=1)
        self.outer_norm = nn.BatchNorm2d(8)
        self.wide = nn.Conv2d(8, 10, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(8, 10, 1, stride=2)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        inner = F.relu(self.inner_norm(self.inner(x)))
        x = F.relu(x + self.outer_norm(self.outer(inner)))
        x = F.relu(self.wide(x) + self.shortcut(x))
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """Every layer reads all before it, through a norm over the concatenation, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (6, 11, 16))
        self.layers = nn.ModuleList(nn.Conv2d(size, 5, 3, padding=1, bias=False) for size in (6, 11))
        self.transition = nn.Conv2d(16, 7, 1)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
        x = F.avg_pool2d(self.transition(F.relu(self.norms[2](x))), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcite(nn.Module):
    """A convolution whose channels are scaled by a gate computed from their own means."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 9, 3)
        self.norm = nn.BatchNorm2d(9)
        self.squeeze = nn.Conv2d(9, 4, 1)
        self.excite = nn.Conv2d(4, 9, 1)
        self.head = nn.Conv2d(9, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.conv(x)))
        gate = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1))))
        return self.head(x * torch.sigmoid(gate))


class Inverted(nn.Module):
    """Expand, depthwise with two outputs a channel, project: an inverted residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.expand = nn.Conv2d(6, 10, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(10)
        self.depthwise = nn.Conv2d(10, 20, 3, padding=1, groups=10)
        self.depthwise_norm = nn.BatchNorm2d(20)
        self.project = nn.Conv2d(20, 6, 1)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = F.relu6(self.expand_norm(self.expand(x)))
        inner = F.relu6(self.depthwise_norm(self.depthwise(inner)))
        return self.head(x + self.project(inner))


class Grouped(nn.Module):
    """Convolutions and norms in groups: cut alike in each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(3, 12, 1)
        self.grouped = nn.Conv2d(12, 16, 3, padding=1, groups=2)
        self.norm = nn.GroupNorm(4, 16)
        self.up = nn.ConvTranspose2d(16, 12, 2, stride=2, groups=4)
        self.single = nn.GroupNorm(1, 12)
        self.head = nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.norm(self.grouped(F.relu(self.reduce(x)))))
        return self.head(F.gelu(self.single(self.up(x))))


class Decoder(nn.Module):
    """An encoder and a decoder of transposed convolutions, one of them depthwise, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 8, 3, stride=2, padding=1)])
        self.bottom = nn.Conv2d(8, 9, 3, stride=2, padding=1)
        self.up = nn.ModuleList([nn.ConvTranspose2d(9, 6, 2, stride=2), nn.ConvTranspose2d(14, 5, 2, stride=2)])
        self.norm = nn.BatchNorm2d(14)
        self.spread = nn.ConvTranspose2d(10, 10, 3, padding=1, groups=10)
        self.head = nn.Conv2d(10, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.tanh(self.down[0](x))
        coarse = F.relu(self.down[1](fine))
        x = F.relu(self.bottom(coarse))
        x = self.norm(torch.cat((coarse, self.up[0](x)), dim=1))
        x = torch.cat((self.up[1](F.relu(x)), fine), dim=1)
        return self.head(self.spread(x))


class Flatten(nn.Sequential):
    """A dense layer after several pixels are flattened: each channel is a run of its inputs."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(54, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.2), nn.Linear(10, 3)),
        )


class Transformer(nn.Module):
    """A block with attention and an MLP on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.before_attention, self.before_mlp = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.widen, self.narrow = nn.Linear(8, 14), nn.Linear(14, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h = self.before_attention(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.narrow(F.gelu(self.widen(self.before_mlp(x))))
        return self.head(x.mean(1))


class ConvNeXt(nn.Module):
    """Depthwise convolution, LayerNorm and MLP with the channels last, a learned scale, a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.widen, self.narrow = nn.Linear(8, 12), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.1))
        self.last_norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.scale * self.narrow(F.gelu(self.widen(h)))
        x = x + h.permute(0, 3, 1, 2)
        return self.head(self.last_norm(x.mean((-2, -1))))


class Wave(nn.Module):
    """One-dimensional convolutions with InstanceNorm, on a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv1d(2, 7, 3), nn.InstanceNorm1d(7, affine=True)
        self.second, self.second_norm = nn.Conv1d(7, 9, 3, stride=2), nn.BatchNorm1d(9)
        self.head = nn.Linear(9 * 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first_norm(self.first(x)))
        x = F.relu(self.second_norm(self.second(x)))
        return self.head(x.view(x.size(0), -1))


class Volume(nn.Sequential):
    """Three-dimensional convolutions."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv3d(1, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d(2)),
            *(nn.Conv3d(6, 8, 3, padding=1, groups=2), nn.SiLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
            nn.Linear(8, 3),
        )


class RootMeanSquare(nn.Module):
    """A gated MLP with RMSNorm on its hidden units: two layers tied by a product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(6, 11), nn.Linear(6, 11)
        self.norm = nn.RMSNorm(11)
        self.out = nn.Linear(11, 7, bias=False)
        self.out_norm = nn.RMSNorm(7, eps=1e-3, elementwise_affine=False)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(F.silu(self.gate(x)) * self.value(x))
        return self.head(self.out_norm(self.out(hidden)))


class Shared(nn.Module):
    """One layer used twice, whose inputs and outputs are cut alike, between two that are used once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.twice = nn.Linear(8, 8)
        self.last = nn.Linear(8, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.head(torch.tanh(self.last(x)))


class Several(nn.Module):
    """Two inputs by name and an optional one, a tuple with a dict as output."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.table = nn.Conv2d(3, 6, 3), nn.Linear(4, 7)
        self.joint = nn.Linear(13, 8)
        self.score, self.feature = nn.Linear(8, 2), nn.Linear(8, 5)

    def forward(self, image: Tensor, table: Tensor, shift: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        pixels = F.relu(self.image(image)).mean(dim=[2, 3])
        joint = torch.cat((pixels, torch.relu(self.table(table))), -1)
        joint = torch.tanh(self.joint(joint))
        return self.score(joint), {"feature": self.feature(joint)}


class HardCoded(nn.Module):
    """A view with the channels written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.body, self.head = nn.Conv2d(1, 6, 3), nn.Linear(96, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).view(-1, 6, 4, 4)
        return self.head(torch.relu(self.body(x.flatten(1))))


class Shuffle(nn.Module):
    """A pixel shuffle, which needs multiples of four channels, and a channel shuffle by reshaping."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.widen = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.after, self.head = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shuffle(F.relu(self.widen(F.relu(self.before(x)))))
        x = F.relu(self.after(x))
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        return self.head(x)


class Uneven(nn.Module):
    """Channels that do not divide by the groups, and fewer channels than groups."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((3, 13), (13, 7), (7, 2), (2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        *inner, last = self.layers
        for layer in inner:
            x = F.elu(layer(x))
        return last(x)


class Functional(nn.Module):
    """Functional activations and dropout, a buffer, and methods of its own."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 10), nn.Linear(10, 3)
        self.register_buffer("offset", torch.linspace(0.5, 1.5, 8).view(8, 1, 1))

    def encode(self, x: Tensor) -> Tensor:
        """Everything before the head."""
        x = F.dropout2d(F.relu(self.conv(x)) + self.offset, 0.1, training=self.training)
        x = F.max_pool2d(x, 2).mean((2, 3))
        return F.dropout(F.relu(self.hidden(x)), 0.3, training=self.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x))

    def most_likely(self, x: Tensor) -> Tensor:
        return self(x).argmax(-1)


class Mixer(nn.Module):
    """An MLP over positions and one over channels, on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.tokens = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.channels = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        return self.head(self.norms[2](x).mean(1))


class TiedPair(nn.Module):
    """Two layers in a row that share one weight, between two that have their own: all are cut alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(F.relu(self.first(x)))))))


class TiedApart(nn.Module):
    """Two layers of one weight, of which one reads the network's input and the other a layer: that stays whole."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.inner, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 8), nn.Linear(8, 3)
        self.b.weight = self.a.weight
        self.last, self.out = nn.Linear(3, 9), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(torch.tanh(self.b(torch.tanh(self.inner(torch.tanh(self.a(x)))))))
        return self.out(torch.tanh(self.last(x)))


class TiedEmbedding(nn.Module):
    """A language model whose embedding is its head, with an MLP between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 6), nn.Linear(6, 12, bias=False)
        self.head.weight = self.embed.weight
        self.widen, self.narrow = nn.Linear(6, 16), nn.Linear(16, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.narrow(F.gelu(self.widen(x))))


class TiedDecoder(nn.Module):
    """An auto-encoder that reads its first weight backwards by a function: that stays whole, what lies within not."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.inner, self.outer = nn.Linear(5, 8), nn.Linear(8, 10), nn.Linear(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.outer(torch.tanh(self.inner(torch.tanh(self.encode(x))))))
        return F.linear(x, self.encode.weight.t())


class SizeArithmetic(nn.Module):
    """Divides by the root of the number of channels, before a head that starts at zero."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.before, self.a, self.b = nn.Linear(8, 9), nn.Linear(9, width), nn.Linear(width, 3)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(F.relu(self.before(x))))
        return self.b(h * h.shape[-1] ** -0.5)


class ZeroHead(nn.Module):
    """A head that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 9), nn.Linear(9, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(x)))))


class NormReLU(nn.BatchNorm2d):
    """A norm with its activation."""

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(super().forward(input))


class OwnLinear(nn.Linear):
    """Torch's layer under another name."""


class Subclasses(nn.Module):
    """Layers that inherit from torch's, among others that are torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 5, 3), NormReLU(5)
        self.conv, self.hidden, self.head = nn.Conv2d(5, 8, 3), OwnLinear(8, 7), nn.Linear(7, 3)
        self.last_norm, self.widen, self.narrow = nn.BatchNorm1d(3), nn.Linear(3, 60), nn.Linear(60, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(self.norm(self.stem(x)))).mean((2, 3))
        return self.narrow(F.relu(self.widen(self.last_norm(self.head(F.relu(self.hidden(x)))))))


class Random(nn.Module):
    """A network of random operations, each of which reads any tensors before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw, sizes = random.Random(seed), [3]
        self.layers = nn.ModuleDict()
        self.steps: list[tuple[str, str, int, int]] = []  # operation, name, first and second operand
        for index in range(draw.randint(4, 9)):
            first, name = draw.randrange(len(sizes)), f"layer{index}"
            kind = draw.choice((*LAYERS, "conv", "layer norm", "gate", "scale", "activate", "add", "multiply", "cat"))
            channels = sizes[first]
            alike = [i for i, size in enumerate(sizes) if size == channels]
            second = draw.choice(alike if kind in ("add", "multiply") else range(len(sizes)))
            size = sizes[second] + channels if kind == "cat" else channels
            if kind in LAYERS:
                size = {"grow": 2 * channels}.get(kind, channels if "norm" in kind else draw.choice((4, 6, 8)))
                self.layers[name] = LAYERS[kind](channels, size, 2 - channels % 2)
            elif kind == "layer norm":
                self.layers[name] = nn.LayerNorm(channels)
            elif kind == "gate":
                self.layers[name] = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, channels, 1))
            elif kind == "scale":
                self.register_parameter(name, nn.Parameter(torch.randn(channels, 1, 1)))
            self.steps.append((kind, name, first, second))
            sizes.append(size)
        self.flat = draw.random() < 0.5
        self.head = nn.Linear(sizes[-1] * (16 if self.flat else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for kind, name, first, second in self.steps:
            x, y = made[first], made[second]
            if kind in LAYERS:
                x = self.layers[name](x)
            elif kind == "layer norm":
                x = self.layers[name](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            elif kind == "gate":
                x = x * torch.sigmoid(self.layers[name](F.adaptive_avg_pool2d(x, 1)))
            elif kind == "scale":
                x = x * getattr(self, name)
            elif kind == "activate":
                x = F.leaky_relu(x)
            else:
                x = x + y if kind == "add" else x * y if kind == "multiply" else torch.cat((x, y), 1)
            made.append(x)
        return self.head(x.flatten(1) if self.flat else x.mean((2, 3)))


LAYERS: dict[str, Callable[[int, int, int], nn.Module]] = {  # of input channels, output channels, groups
    "conv": lambda i, o, g: nn.Conv2d(i, o, 3, padding=1),
    "transposed": lambda i, o, g: nn.ConvTranspose2d(i, o, 3, padding=1),
    "grouped": lambda i, o, g: nn.Conv2d(i, o, 3, padding=1, groups=g),
    "grow": lambda i, o, g: nn.Conv2d(i, o, 3, padding=1, groups=i),
    "batch norm": lambda i, o, g: nn.BatchNorm2d(i),
    "group norm": lambda i, o, g: nn.GroupNorm(g, i),
}


def images(channels: int = 3, size: int = 8) -> Tensor:
    return torch.randn(2, channels, size, size)


OUTPUT = "reaches the output"
STREAM = "a residual stream"
OPEN = vnd.Rule(nest=True)

STRUCTURES: dict[str, Structure] = {
    "residual": Structure(Residual, images, ("inner",), {"stem": STREAM, "outer": STREAM, "wide": STREAM}),
    "residual, stream": Structure(
        *(Residual, images, ("stem", "inner", "wide"), {"head": OUTPUT}), {"rules": {"stem": OPEN, "shortcut": OPEN}}
    ),
    "dense": Structure(Dense, images, ("stem", "layers.0", "layers.1", "transition"), {"head": OUTPUT}),
    "squeeze-excite": Structure(SqueezeExcite, images, ("conv", "squeeze"), {"head": OUTPUT}),
    "inverted": Structure(Inverted, images, ("expand",), {"stem": STREAM, "project": STREAM}),
    "inverted, stream": Structure(Inverted, images, ("stem", "expand"), {}, {"rules": {"project": OPEN}}),
    "grouped": Structure(Grouped, images, ("reduce", "grouped", "up"), {"head": OUTPUT}),
    "decoder": Structure(Decoder, lambda: images(2), ("down.0", "down.1", "bottom", "up.0", "up.1"), {"head": OUTPUT}),
    "flatten": Structure(Flatten, lambda: images(1), ("0", "5"), {"9": OUTPUT}),
    "transformer": Structure(
        Transformer,
        lambda: torch.randn(2, 4, 5),
        ("attention", "widen"),
        {"embed": STREAM, "attention.out_proj": STREAM, "narrow": STREAM},
    ),
    "transformer, stream": Structure(
        *(Transformer, lambda: torch.randn(2, 4, 5), ("embed", "attention", "widen"), {}, {"residual": True})
    ),
    "convnext": Structure(ConvNeXt, images, ("widen",), {"stem": STREAM, "narrow": STREAM}),
    "convnext, stream": Structure(ConvNeXt, images, ("stem", "widen"), {}, {"rules": {"stem": OPEN}}),
    "wave": Structure(Wave, lambda: torch.randn(2, 2, 10), ("first", "second")),
    "volume": Structure(Volume, lambda: torch.randn(2, 1, 4, 4, 4), ("0", "4")),
    "root mean square": Structure(RootMeanSquare, lambda: torch.randn(3, 6), ("gate", "out")),
    "shared": Structure(*(Shared, lambda: torch.randn(3, 4), ("first", "last"), {"head": OUTPUT})),
    "several": Structure(
        *(Several, lambda: {"image": images(), "table": torch.randn(2, 4)}, ("image", "table", "joint")),
        {"score": OUTPUT, "feature": OUTPUT},
    ),
    "hard-coded view": Structure(
        HardCoded, lambda: images(1, 6), ("body",), {"conv": "its size is written into the code"}
    ),
    "shuffle": Structure(Shuffle, lambda: images(1), ("before", "widen", "after"), {"head": OUTPUT}),
    "uneven": Structure(Uneven, lambda: torch.randn(4, 3), ("layers.0", "layers.1", "layers.2"), {"layers.3": OUTPUT}),
    "functional": Structure(Functional, images, ("conv", "hidden"), {"head": OUTPUT}),
    "tied pair": Structure(TiedPair, lambda: torch.randn(3, 4), ("first",), {"head": OUTPUT}),
    "tied apart": Structure(
        *(TiedApart, lambda: torch.randn(3, 6), ("a", "head", "last")),
        {"inner": "b shares a tensor with a, which is not cut alike"},
    ),
    "tied embedding": Structure(TiedEmbedding, lambda: torch.arange(10).view(2, 5), ("widen",), {"head": OUTPUT}),
    "tied decoder": Structure(TiedDecoder, lambda: torch.randn(3, 5), ("inner",), {"encode": "a function reads"}),
    "size arithmetic": Structure(
        SizeArithmetic, lambda: torch.randn(3, 8), ("before",), {"a": "does not compute what the masked one does"}
    ),
    "zero head": Structure(ZeroHead, lambda: torch.randn(3, 4), ("a", "b"), {"head": OUTPUT}),
    "subclasses": Structure(Subclasses, images, ("stem", "conv", "hidden", "head", "widen"), {"narrow": OUTPUT}),
    "mixer": Structure(
        *(Mixer, lambda: torch.randn(2, 4, 5), ("embed", "tokens.0", "channels.0")), {}, {"rules": {"embed": OPEN}}
    ),
}

SMALL: dict[str, dict[str, Any]] = {
    "vgg11": {"width": 0.1, "hidden": 12},
    "mobilenet_v2": {"width": 0.1},
    "resnext": {"depth": 11, "base_width": 4, "widen_factor": 1},
    "unet": {"channels": [4, 5, 6]},
    "convnet": {"width": 0.15, "image_size": 8, "in_channels": 3},
}


def _model(name: str) -> Structure:
    channels, size = (1, 8) if name == "unet" else (3, 32 if name == "vgg11" else 8)
    return Structure(lambda: build(name, **SMALL[name]), lambda: torch.randn(2, channels, size, size), ())


# What an auto-encoder nests is its code, by its method, and not its channels: no other network is cut out of it. Nor is
# one out of a probabilistic UNet, by its latent, or out of several UNets.
WHOLE = (CodedNetwork, ProbabilisticUNet, EnsembleUNet)
NESTED = [name for name, model in MODELS.items() if not issubclass(model, WHOLE)]
NETWORKS: dict[str, Structure] = {**STRUCTURES, **{name: _model(name) for name in NESTED}}
GROUPS = 4
# Each kind of layer, norm and dependency once, for what hangs on these and not on how a network combines them.
VARIED = (
    *("residual, stream", "dense", "grouped", "inverted", "flatten"),
    *("transformer", "several", "tied apart", "vgg11"),
)


def make(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.Module, nn.Module, Example]:
    """A plain network with every number of it random, its nested form in evaluation, and an example, by name."""
    structure = NETWORKS[name]
    torch.manual_seed(len(name))
    plain, example = randomise(structure.make()).to(dtype), cast(structure.example(), dtype)
    options = {"num_groups": GROUPS, **structure.options, **options}
    return plain, vnd.to_nested(plain, example, **options).eval(), example


def randomise(net: nn.Module) -> nn.Module:
    """Give all that starts at 0 or 1 (norms, their statistics, biases, scales) a value of its own."""
    with torch.no_grad():
        for module in net.modules():
            for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if name == "running_var":
                    value.uniform_(0.5, 2)
                elif value.is_floating_point() and value.dim() == 1:
                    value.normal_(0.3, 0.5)
                elif value.is_floating_point() and value.dim() > 1 and not value.any():
                    value.normal_(0.0, value[0].numel() ** -0.5)
    return net


def cast(example: Any, dtype: torch.dtype) -> Any:
    if isinstance(example, dict):
        return {key: cast(value, dtype) for key, value in example.items()}
    if isinstance(example, tuple):
        return tuple(cast(value, dtype) for value in example)
    return example.to(dtype) if example.is_floating_point() else example


def run(net: nn.Module, example: Example) -> Tensor:
    """All outputs of a network on an example, as one vector."""
    args, named = ((), example) if isinstance(example, dict) else (example, {})
    out = net(*(args if isinstance(args, tuple) else (args,)), **named)
    return torch.cat([part.flatten() for part in _tensors(out)])


def _tensors(out: Any) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    else:
        for part in out.values() if isinstance(out, dict) else out:
            yield from _tensors(part)


def gap(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest value; finite, or it is an error."""
    assert a.shape == b.shape
    assert a.isfinite().all()
    assert b.isfinite().all()
    return float(((a - b).abs().max() / a.abs().max()).detach())


def uniform_shapes(net: nn.Module) -> list[vnd.Shape]:
    """All shapes with k = 1 … G groups of every unit that has as many."""
    units = state_of(net).units
    most = max(unit.num_groups for unit in units.values())
    found = [{n: max(u.base, min(k, u.num_groups)) for n, u in units.items()} for k in range(1, most + 1)]
    return [vnd.Shape(groups) for groups in found]


def mixed_shapes(net: nn.Module, count: int = 4) -> list[vnd.Shape]:
    """Shapes in which every unit has a number of groups of its own, drawn at random."""
    units = state_of(net).units
    draw = torch.Generator().manual_seed(count)

    def groups(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=draw))

    return [vnd.Shape({n: groups(u.base, u.num_groups) for n, u in units.items()}) for _ in range(count)]
