"""VGG11 with BatchNorm, and what all networks share: the initialisation, the scaling and checking of sizes."""

import math
from typing import Any

import torch
from torch import Tensor, nn

CHANNELS = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


class VGG11(nn.Module):
    r"""Eight 3×3 convolutions in five levels, one hidden dense layer and a linear classifier.

    With w = `width`, `C` a convolution, BatchNorm and ReLU, and `M` a 2×2 maximum pooling:

        features:    C(64w) M · C(128w) M · C(256w) C(256w) M · C(512w) C(512w) M · C(512w) C(512w) M
        classifier:  Linear(512w · (image_size / 32)², hidden) · ReLU · Linear(hidden, num_classes)

    Convolutions have no bias, since the BatchNorm that follows has one. The paper trains w = 1.5 on CIFAR and on Tiny
    ImageNet and adds the hidden layer; `features.0` and the two dense layers are Bayesian but not nested there.

    Paper: Sec. 6.1, App. C.1; Simonyan and Zisserman (2015), configuration A.

    Note: The paper does not give `hidden`. 256, whatever the width, is the authors' released code, and gives the
        20.9 M parameters of the 1.5× network. That code also has a BatchNorm after the hidden layer and biases in
        the convolutions, which are left out here.

    Args:
        num_classes: Number of logits.
        width: Factor on the channels of every convolution; rounded, at least one channel.
        image_size: Height and width of the images, a multiple of 32.
        in_channels: Channels of the images.
        hidden: Size of the hidden dense layer; not scaled by `width`.

    Shape: (B, in_channels, image_size, image_size) to logits (B, num_classes).

    >>> network = VGG11(width=1.5)
    >>> sum(p.numel() for p in network.parameters())
    20946282
    >>> network(torch.ones(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, num_classes: int = 10, width: float = 1.0, image_size: int = 32, in_channels: int = 3, hidden: int = 256
    ) -> None:
        super().__init__()
        check_counts("VGG11", num_classes=num_classes, image_size=image_size, in_channels=in_channels, hidden=hidden)
        check_width("VGG11", width)
        if image_size % 32:
            raise ValueError(f"VGG11: image_size must be a multiple of 32; got {image_size}")
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
            if isinstance(size, str):
                layers.append(nn.MaxPool2d(2))
            else:
                before, channels = channels, scaled(size, width)
                layers += [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        positions = (image_size // 32) ** 2
        self.classifier = nn.Sequential(
            nn.Linear(channels * positions, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


def initialise(network: nn.Module) -> None:
    r"""Set every layer of a network to its random start.

    Convolutions, transposed ones too, are Kaiming normal by fan-out, $w \sim \mathcal{N}(0, 2 / f)$ with
    $f$ = kernel positions × output channels / groups, the number of outputs that an input reaches; torch's own
    `kaiming_normal_` forgets the groups, and so starts a depthwise layer √C too small. Linear layers are
    $\mathcal{N}(0, 1 / \text{fan-in})$, so that the first logits are of order one. BatchNorm is 1 and 0, biases 0.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            fan_out = math.prod(layer.kernel_size) * layer.out_channels / layer.groups
            nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_out))
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(1 / layer.in_features))
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def scaled(channels: int, width: float) -> int:
    """`channels` times `width`, rounded, at least 1."""
    return max(1, round(channels * width))


def check_counts(owner: str, **counts: object) -> None:
    """Refuse what is not an integer of at least 1, by its name."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{owner}: {name} must be an integer of at least 1; got {value!r}")


def check_width(owner: str, width: object) -> None:
    """Refuse a factor that is not a finite number greater than 0."""
    if not isinstance(width, int | float) or isinstance(width, bool) or not (math.isfinite(width) and width > 0):
        raise ValueError(f"{owner}: width must be a finite number greater than 0; got {width!r}")
