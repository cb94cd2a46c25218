"""A small convolutional network for small images, which a laptop trains in a minute or two."""

from typing import Any

import torch
from torch import Tensor, nn

from vnd.models.initialise import check_counts, check_width, initialise, scaled

CHANNELS = (32, 64, 96)


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
        check_counts("ConvNet", num_classes=num_classes, image_size=image_size, in_channels=in_channels, hidden=hidden)
        check_width("ConvNet", width)
        if image_size < 8:
            raise ValueError(f"ConvNet: image_size must be at least 8; got {image_size}")
        self.config: dict[str, Any] = {
            "num_classes": num_classes,
            "width": width,
            "image_size": image_size,
            "in_channels": in_channels,
            "hidden": hidden,
        }
        layers: list[nn.Module] = []
        channels = in_channels
        for size in CHANNELS:
            before, channels = channels, scaled(size, width)
            layers += [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        inner = scaled(hidden, width)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (image_size // 8) ** 2, inner), nn.ReLU(), nn.Linear(inner, num_classes)
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits
