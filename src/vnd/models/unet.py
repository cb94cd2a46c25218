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

    The initialisation is that of all networks (`models/initialise.py`), but the output's convolution is a linear layer
    at each position and starts as one, from N(0, 1 / c₀).

    Args:
        in_channels: Channels of the images.
        num_classes: Logits of a pixel; 1 for a binary mask.
        channels: Channels of each level.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W); H and W multiples of 2^(L−1), by default 8.

    >>> network = UNet()
    >>> sum(p.numel() for p in network.parameters())
    1561633
    >>> network(torch.ones(2, 1, 16, 24)).shape
    torch.Size([2, 1, 16, 24])
    """

    def __init__(
        self, in_channels: int = 1, num_classes: int = 1, channels: Sequence[int] = (32, 64, 128, 192)
    ) -> None:
        super().__init__()
        check_counts("UNet", in_channels=in_channels, num_classes=num_classes)
        if isinstance(channels, int | str) or not channels:
            raise ValueError(f"UNet: channels must be a list of at least one integer; got {channels!r}")
        check_counts("UNet", **{f"channels[{level}]": size for level, size in enumerate(channels)})
        self.config: dict[str, Any] = {
            "in_channels": in_channels,
            "num_classes": num_classes,
            "channels": list(channels),  # a list, as JSON gives it back
        }
        self.pool = nn.MaxPool2d(2)
        self.encoder = nn.ModuleList(_two_convolutions(i, o) for i, o in pairwise((in_channels, *channels)))
        deepest_first = tuple(pairwise(reversed(channels)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in deepest_first)
        self.decoder = nn.ModuleList(_two_convolutions(2 * o, o) for _, o in deepest_first)
        self.output = nn.Conv2d(channels[0], num_classes, 1)
        initialise(self)
        nn.init.normal_(self.output.weight, std=channels[0] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel of a batch of images."""
        first, *deeper = self.encoder
        x = first(x)
        skips = []
        for block in deeper:
            skips.append(x)
            x = block(self.pool(x))
        for up, block, skip in zip(self.up, self.decoder, reversed(skips), strict=True):
            x = block(torch.cat((skip, up(x)), 1))
        logits: Tensor = self.output(x)
        return logits


def _two_convolutions(in_channels: int, out_channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (in_channels, out_channels):
        layers += [nn.Conv2d(before, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU()]
    return nn.Sequential(*layers)
