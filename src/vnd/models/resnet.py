"""ResNeXt for small images."""

from typing import Any

import torch
from torch import Tensor, nn

from vnd.models.initialise import arguments, initialise

STEM = 64
STAGES = 3


class GroupedBottleneck(nn.Module):
    r"""Reduces the channels, filters them in groups, expands them, and adds the input.

    $$ y = \mathrm{ReLU}(S(x) + E(\mathrm{ReLU}(G(\mathrm{ReLU}(R(x)))))) $$

    R and E are 1×1 convolutions, G a 3×3 one in `groups` groups that carries the stride, each followed by BatchNorm;
    S is the identity, or a strided 1×1 convolution with BatchNorm where the shapes differ. The `middle` channels on
    either side of G belong to this block alone: they are what is nested, inside each group.

    Paper: App. C.1, ResNeXt-Cifar.

    Shape: (B, in_channels, H, W) to (B, out_channels, ⌈H / stride⌉, ⌈W / stride⌉).

    >>> GroupedBottleneck(8, 6, 16, groups=2, stride=2)(torch.ones(2, 8, 4, 4)).shape
    torch.Size([2, 16, 2, 2])
    """

    def __init__(self, in_channels: int, middle: int, out_channels: int, groups: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(in_channels, middle, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(middle)
        self.reduce_activation = nn.ReLU()
        self.grouped = nn.Conv2d(middle, middle, 3, stride, padding=1, groups=groups, bias=False)
        self.grouped_norm = nn.BatchNorm2d(middle)
        self.grouped_activation = nn.ReLU()
        self.expand = nn.Conv2d(middle, out_channels, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        middle = self.reduce_activation(self.reduce_norm(self.reduce(x)))
        middle = self.grouped_activation(self.grouped_norm(self.grouped(middle)))
        out: Tensor = self.activation(self.shortcut(x) + self.expand_norm(self.expand(middle)))
        return out


class ResNeXt(nn.Module):
    r"""A 3×3 convolution to 64 channels, three stages of grouped bottlenecks, the mean over positions, a classifier.

    Stage s = 0, 1, 2 has (depth − 2) / 9 blocks, `cardinality` groups of `base_width` · 2ˢ channels inside each, and
    64 · `widen_factor` · 2ˢ channels between them; its first block has stride 1, 2, 2. By default ResNeXt-29, 2×64d,
    with 128, 256, 512 channels inside and 256, 512, 1024 between: 32×32 images end as 8×8 maps.

    Paper: Sec. 6.1, App. C.1; Xie et al. (2017), Sec. 5.3.

    Note: The paper says "ResNeXt-Cifar, normal size" and no more. 2×64d is this library's choice.

    Args:
        num_classes: Number of logits.
        depth: Number of layers with weights on the longest path, 9k + 2.
        cardinality: Number of groups.
        base_width: Channels of a group in the first stage.
        widen_factor: Channels between the blocks of the first stage, as a multiple of 64.
        in_channels: Channels of the images.

    Shape: (B, in_channels, H, W) to logits (B, num_classes), any H and W.

    >>> network = ResNeXt()
    >>> sum(p.numel() for p in network.parameters())
    9130314
    >>> ResNeXt(depth=11, base_width=4, widen_factor=1)(torch.ones(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        depth: int = 29,
        cardinality: int = 2,
        base_width: int = 64,
        widen_factor: int = 4,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        repeats, rest = divmod(depth - 2, 9)
        if rest or repeats < 1:
            raise ValueError(f"ResNeXt: depth must be 9k + 2 with k at least 1, as 11, 20, 29; got {depth}")
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, STEM, 3, padding=1, bias=False), nn.BatchNorm2d(STEM), nn.ReLU()
        )
        channels = STEM
        stages: list[nn.Module] = []
        for stage in range(STAGES):
            blocks: list[nn.Module] = []
            for index in range(repeats):
                before, channels = channels, 64 * widen_factor * 2**stage
                stride = 2 if stage and not index else 1
                blocks.append(
                    GroupedBottleneck(before, cardinality * base_width * 2**stage, channels, cardinality, stride)
                )
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        pooled = self.pool(self.stages(self.stem(x)))
        logits: Tensor = self.classifier(torch.flatten(pooled, 1))
        return logits
