"""UNet, for segmentation."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from vnd.models.initialise import check_counts, initialise


class UNet(nn.Module):
    r"""An encoder that halves the resolution, a decoder that doubles it again, joined at every level.

    With L levels of c₀ … c_{L−1} channels and `B` two 3×3 convolutions, each with BatchNorm and ReLU:

        encoder:  e₀ = B(x),            e_l = B(MaxPool(e_{l−1}))                   l = 1 … L−1
        decoder:  d_{L−1} = e_{L−1},    d_l = B([e_l, Up(d_{l+1})])                 l = L−2 … 0
        output:   a 1×1 convolution of d₀ to logits

    Up is a 2×2 transposed convolution of stride 2 from c_{l+1} to c_l channels, as in Ronneberger et al. (2015). With
    kernel and stride equal, each output has one input pixel, so that there is no overlap to draw a checkerboard. It is
    preferred to bilinear upsampling because it changes the channels itself, so that both sides of a concatenation have
    c_l, and because by default the gradient of bilinear upsampling is not deterministic on CUDA.

    Paper: Sec. 6.3, App. C.1, 32-64-128-192.

    Note: The paper says "UNet" and the encoder's channels. Padding keeps the size here, and there is a BatchNorm after
        each convolution; the UNet of 2015 has neither.

    With `dropout`, the inputs of both blocks of the deeper half of the levels, l ≥ L / 2, lose so large a share of
    their numbers in training, as in the middle of Bayesian SegNet (Kendall et al., 2015).

    The initialisation is that of all networks (`models/initialise.py`), but the output's convolution is a linear layer
    at each position and starts as one, from N(0, 1 / c₀).

    Args:
        in_channels: Channels of the images.
        num_classes: Logits of a pixel; 1 for a binary mask.
        channels: Channels of each level.
        dropout: Probability that an input of an inner block is dropped.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W); H and W multiples of 2^(L−1), by default 8.

    >>> network = UNet()
    >>> sum(p.numel() for p in network.parameters())
    1561633
    >>> network(torch.ones(2, 1, 16, 24)).shape
    torch.Size([2, 1, 16, 24])
    """

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 1,
        channels: Sequence[int] = (32, 64, 128, 192),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_counts("UNet", in_channels=in_channels, num_classes=num_classes)
        check_channels("UNet", channels)
        if not isinstance(dropout, int | float) or isinstance(dropout, bool) or not 0 <= dropout < 1:
            raise ValueError(f"UNet: dropout must lie in [0, 1); got {dropout!r}")
        self.config: dict[str, Any] = {
            "in_channels": in_channels,
            "num_classes": num_classes,
            "channels": list(channels),  # a list, as JSON gives it back
            "dropout": dropout,
        }
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout) if dropout else None  # nothing to trace where nothing is dropped
        self.encoder = nn.ModuleList(two_convolutions(i, o) for i, o in pairwise((in_channels, *channels)))
        deepest_first = tuple(pairwise(reversed(channels)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in deepest_first)
        self.decoder = nn.ModuleList(two_convolutions(2 * o, o) for _, o in deepest_first)
        self.output = nn.Conv2d(channels[0], num_classes, 1)
        initialise(self)
        nn.init.normal_(self.output.weight, std=channels[0] ** -0.5)

    def features(self, x: Tensor) -> Tensor:
        """d₀, what the decoder says of every pixel of a batch of images before logits are made of it."""
        first, *deeper = self.encoder
        x = first(self._dropped(x, 0))
        skips = []
        for level, block in enumerate(deeper, 1):
            skips.append(x)
            x = block(self._dropped(self.pool(x), level))
        for level, up, block in zip(reversed(range(len(skips))), self.up, self.decoder, strict=True):
            x = block(self._dropped(torch.cat((skips[level], up(x)), 1), level))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel of a batch of images."""
        logits: Tensor = self.output(self.features(x))
        return logits

    def _dropped(self, x: Tensor, level: int) -> Tensor:
        """The input of a block, thinned out if its level is one of the deeper half."""
        if self.dropout is None or 2 * level < len(self.encoder):
            return x
        thinned: Tensor = self.dropout(x)
        return thinned


def two_convolutions(in_channels: int, out_channels: int) -> nn.Sequential:
    """A block: two 3×3 convolutions, each with BatchNorm and ReLU, that keep the resolution."""
    layers: list[nn.Module] = []
    for before in (in_channels, out_channels):
        layers += [nn.Conv2d(before, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU()]
    return nn.Sequential(*layers)


def check_channels(owner: str, channels: object) -> None:
    """Refuse what is not a list of at least one level's channels."""
    if not isinstance(channels, Sequence) or isinstance(channels, str) or not channels:
        raise ValueError(f"{owner}: channels must be a list of at least one integer; got {channels!r}")
    check_counts(owner, **{f"channels[{level}]": size for level, size in enumerate(channels)})
