"""Plain convolutional classifiers: VGG11 with BatchNorm, and a small network for small images."""

from typing import Any

import torch
from torch import Tensor, nn

from vnd.models.initialise import arguments, conv_norm_relu, initialise, scaled

CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # of the convolutions before each pooling
SMALL_CHANNELS = ((32,), (64,), (96,))


def _features(levels: tuple[tuple[int, ...], ...], width: float, channels: int) -> tuple[nn.Sequential, int]:
    """Convolutions with BatchNorm and ReLU, a 2×2 pooling after each level; and the channels of the last."""
    layers: list[nn.Module] = []
    for level in levels:
        for size in level:
            before, channels = channels, scaled(size, width)
            layers += conv_norm_relu(before, channels)
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers), channels


class VGG11(nn.Module):
    r"""Eight 3×3 convolutions in five levels, one hidden dense layer and a linear classifier.

    With w = `width`, `C` a convolution, BatchNorm and ReLU, and `M` a 2×2 maximum pooling:

        features:    C(64w) M · C(128w) M · C(256w) C(256w) M · C(512w) C(512w) M · C(512w) C(512w) M
        classifier:  Linear(512w · (image_size / 32)², hidden) · ReLU · Linear(hidden, num_classes)

    Convolutions have no bias, since the BatchNorm that follows has one. The paper trains w = 1.5 on CIFAR and on Tiny
    ImageNet and adds the hidden layer; `features.0` and the two dense layers are Bayesian but not nested there.

    Paper: Sec. 6.1, App. C.1; Simonyan and Zisserman (2015), configuration A.

    Note: The paper does not give `hidden`. 256, whatever the width, is the authors' released code, and gives the
        20.9 M parameters of the 1.5× network. That code also has a BatchNorm after the hidden layer, here
        `hidden_norm`, and biases in the convolutions, which are left out.

    Args:
        num_classes: Number of logits.
        width: Factor on the channels of every convolution; rounded, at least one channel.
        image_size: Height and width of the images, a multiple of 32.
        in_channels: Channels of the images.
        hidden: Size of the hidden dense layer; not scaled by `width`.
        hidden_norm: A BatchNorm after the hidden layer, as in the authors' released code.

    Shape: (B, in_channels, image_size, image_size) to logits (B, num_classes).

    >>> network = VGG11(width=1.5)
    >>> sum(p.numel() for p in network.parameters())
    20946282
    >>> network(torch.ones(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        width: float = 1.0,
        image_size: int = 32,
        in_channels: int = 3,
        hidden: int = 256,
        hidden_norm: bool = False,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        if image_size % 32:
            raise ValueError(f"VGG11: image_size must be a multiple of 32; got {image_size}")
        self.features, channels = _features(CHANNELS, width, in_channels)
        positions = (image_size // 32) ** 2
        between = [nn.BatchNorm1d(hidden), nn.ReLU()] if hidden_norm else [nn.ReLU()]
        self.classifier = nn.Sequential(
            nn.Linear(channels * positions, hidden), *between, nn.Linear(hidden, num_classes)
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


class ConvNet(nn.Module):
    r"""Three 3×3 convolutions, each halving the image, one hidden dense layer and a linear classifier.

    With w = `width`, `C` a convolution, BatchNorm and ReLU, and `M` a 2×2 maximum pooling:

        features:    C(32w) M · C(64w) M · C(96w) M
        classifier:  Linear(96w · ⌊image_size / 8⌋², hidden · w) · ReLU · Linear(hidden · w, num_classes)

    Not of the paper: it is what `vnd demo` and the recipes on small grey images train.

    Args:
        num_classes: Number of logits.
        width: Factor on the channels of every layer; rounded, at least one channel.
        image_size: Height and width of the images, at least 8.
        in_channels: Channels of the images.
        hidden: Size of the hidden dense layer, before `width`.

    Shape: (B, in_channels, image_size, image_size) to logits (B, num_classes).

    >>> network = ConvNet()
    >>> sum(p.numel() for p in network.parameters())
    186410
    >>> network(torch.ones(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, num_classes: int = 10, width: float = 1.0, image_size: int = 28, in_channels: int = 1, hidden: int = 128
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        if image_size < 8:
            raise ValueError(f"ConvNet: image_size must be at least 8; got {image_size}")
        self.features, channels = _features(SMALL_CHANNELS, width, in_channels)
        inner = scaled(hidden, width)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (image_size // 8) ** 2, inner), nn.ReLU(), nn.Linear(inner, num_classes)
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits
