"""MobileNetV2 in its variant for small images."""

from typing import Any

import torch
from torch import Tensor, nn

from vnd.models.initialise import arguments, initialise, scaled

# (expansion, channels, blocks, stride of the first block)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM, LAST = 32, 1280


class InvertedResidual(nn.Module):
    r"""Expands the channels, filters each on its own, and projects them back without an activation.

    $$ y = x + P(\mathrm{ReLU6}(D(\mathrm{ReLU6}(E(x))))) $$

    E is a 1×1 convolution to t = `expansion` times the channels (the identity if t = 1), D a depthwise 3×3 one that
    carries the stride, P a 1×1 one, each followed by BatchNorm. x is added only where the stride is 1 and the channels
    agree. The channels between E and P belong to this block alone: they are what is nested.

    Paper: App. C.1, MobileNetV2.

    Shape: (B, in_channels, H, W) to (B, out_channels, ⌈H / stride⌉, ⌈W / stride⌉).

    >>> InvertedResidual(8, 12, stride=2, expansion=6)(torch.ones(2, 8, 4, 4)).shape
    torch.Size([2, 12, 2, 2])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        middle = expansion * in_channels
        wide = expansion > 1
        self.residual = stride == 1 and in_channels == out_channels
        self.expand = nn.Conv2d(in_channels, middle, 1, bias=False) if wide else nn.Identity()
        self.expand_norm = nn.BatchNorm2d(middle) if wide else nn.Identity()
        self.expand_activation = nn.ReLU6() if wide else nn.Identity()
        self.depthwise = nn.Conv2d(middle, middle, 3, stride, padding=1, groups=middle, bias=False)
        self.depthwise_norm = nn.BatchNorm2d(middle)
        self.depthwise_activation = nn.ReLU6()
        self.project = nn.Conv2d(middle, out_channels, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        middle = self.expand_activation(self.expand_norm(self.expand(x)))
        middle = self.depthwise_activation(self.depthwise_norm(self.depthwise(middle)))
        out: Tensor = self.project_norm(self.project(middle))
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    r"""A 3×3 convolution, 17 inverted residual blocks, a 1×1 convolution, the mean over positions, a classifier.

    The blocks, with t the expansion, c the channels, n the repeats and s the stride of the first:

        t, c, n, s = 1 16 1 1 · 6 24 2 1 · 6 32 3 2 · 6 64 4 2 · 6 96 3 1 · 6 160 3 2 · 6 320 1 1

    as in Sandler et al. (2018), but with stride 1 in the stem and in the second stage: 32×32 images end as 4×4 maps
    (64×64 as 8×8). No dropout.

    Paper: Sec. 6.1, App. C.1. Width 1 on CIFAR, 1.5 on Tiny ImageNet.

    Note: Channels are c · `width`, rounded; Sandler et al. round on to multiples of 8. So 2/3 of a 1.5× network has
        the channels of the network itself. The last convolution's 1280 never shrink, as there.

    Args:
        num_classes: Number of logits.
        width: Factor on the channels.
        in_channels: Channels of the images.

    Shape: (B, in_channels, H, W) to logits (B, num_classes), any H and W.

    >>> network = MobileNetV2()
    >>> sum(p.numel() for p in network.parameters())
    2236682
    >>> network(torch.ones(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, num_classes: int = 10, width: float = 1.0, in_channels: int = 3) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        channels = scaled(STEM, width)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU6()
        )
        blocks: list[nn.Module] = []
        for expansion, size, repeats, stride in STAGES:
            for index in range(repeats):
                before, channels = channels, scaled(size, width)
                blocks.append(InvertedResidual(before, channels, 1 if index else stride, expansion))
        self.blocks = nn.Sequential(*blocks)
        last = scaled(LAST, max(1.0, width))
        self.last = nn.Sequential(nn.Conv2d(channels, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(last, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        pooled = self.pool(self.last(self.blocks(self.stem(x))))
        logits: Tensor = self.classifier(torch.flatten(pooled, 1))
        return logits
