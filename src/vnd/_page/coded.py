"""Networks with a code or a latent as a page shows them: the decoder at every length, and masks that fan out."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vnd._export import export
from vnd._export.checks import check_outputs, engine
from vnd._export.onnx import standalone
from vnd._page import pictures
from vnd.methods import OrderedCode
from vnd.models.autoencoder import CodedNetwork
from vnd.models.probabilistic import ProbabilisticSegmenter
from vnd.nn.state import unwrap
from vnd.tasks import TrainedRun

SIDE = 64  # of the pictures that a network for images of any size is shown at


@dataclass(frozen=True)
class Coded:
    """An auto-encoder or a probabilistic UNet in a page: its facts, and its files."""

    facts: dict[str, Any]
    networks: dict[str, bytes]

    def others(self, data: str | None) -> tuple[list[pictures.Picture], list[str]]:
        """Pictures of other kinds than those that it was trained on."""
        if self.facts["kind"] == "codes":
            return pictures.unlike(data, self.facts["image"])
        return pictures.blobs(data, self.facts["image"])


class Encoder(nn.Module):
    """The most likely code (batch, d) of images."""

    def __init__(self, net: CodedNetwork) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> Tensor:
        """The head of the means."""
        loc: Tensor = self.net.encode(image)["loc"]
        return loc


def of(
    net: nn.Module, run: TrainedRun | None, samples: int, example_input: Tensor | None, tell: Callable[[str], object]
) -> Coded:
    """The page of a network with a code or a latent, of a run or not."""
    own = unwrap(net)
    part = own.network if isinstance(own, OrderedCode) else own
    image = _image_of(part, run, example_input)
    if isinstance(part, CodedNetwork):
        return _codes(own, part, run, image, tell)
    assert isinstance(part, ProbabilisticSegmenter)
    return _masks(part, run, image, samples, tell)


def _codes(
    own: nn.Module, net: CodedNetwork, run: TrainedRun | None, image: list[int], tell: Callable[[str], object]
) -> Coded:
    size = net.dimensions
    tell("exporting encoder and decoder")
    with tempfile.TemporaryDirectory() as folder:
        export(own, Path(folder) / "decoder.onnx")
        decoder = (Path(folder) / "decoder.onnx").read_bytes()
    whole = Encoder(copy.deepcopy(net)).cpu().float().eval()
    zeros = torch.zeros(2, *image)
    with torch.no_grad():
        codes = whole(zeros)
        if codes.shape != (2, size) or whole.net.decode(codes).shape != zeros.shape:
            raise ValueError(
                f"page: an auto-encoder must have codes of {size} numbers, and give images of the size that it takes, "
                f"{tuple(image)}; its codes are {tuple(codes.shape[1:])}"
            )
        rows = torch.export.Dim("batch", min=1)
        encoder = standalone(whole, (zeros,), ({0: rows},), ["image"], ["code"], {"kind": "encoder"})
        probe = torch.rand(8, *image, generator=torch.Generator().manual_seed(0))
        got = torch.from_numpy(engine(encoder).run(None, {"image": probe.numpy()})[0])
        check_outputs(got, whole(probe), "the encoder")
    ordered = "keep_logits" in net.heads or (run is not None and bool(getattr(run.method, "ordered", False)))
    bounded = not isinstance(own, OrderedCode) and bool(net.config.get("bounded", True))
    facts = {
        "kind": "codes", "image": image, "length": size, **_fed(run, bounded=bounded),
        "logits": getattr(own, "_named", None) == "bernoulli_logits",
        "ordered": ordered,
    }  # fmt: skip
    return Coded(facts, {"encoder.onnx": encoder, "decoder.onnx": decoder})


def _masks(
    net: ProbabilisticSegmenter,
    run: TrainedRun | None,
    image: list[int],
    samples: int,
    tell: Callable[[str], object],
) -> Coded:
    tell("exporting features and masks")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "masks.onnx"
        told = export(net, place)
        names = [f"masks-{end}.onnx" for end in ("features", "combine")]
        networks = {name: (place.parent / name).read_bytes() for name in names}
    step = int(told[names[0]]["inputs"]["image"][2].split()[0])
    image = [image[0], *(max(step, round(side / step) * step) for side in image[1:])]
    facts = {
        "kind": "masks", "image": image, "length": net.config["latent"], "num_classes": net.num_classes,
        "ordered": "keep_logits" in (net.config.get("heads") or {}), "samples": samples, **_fed(run, bounded=False),
    }  # fmt: skip
    return Coded(facts, networks)


def _image_of(net: nn.Module, run: TrainedRun | None, example_input: Tensor | None) -> list[int]:
    """Channels, height and width of the images that a network is shown."""
    config: dict[str, Any] = getattr(net, "config", {})
    if run is not None:
        image = list(run.splits.train.pixels.shape[1:])
    elif example_input is not None:
        image = list(example_input.shape[1:])
    elif isinstance(net, CodedNetwork) and "image_size" not in config:
        raise ValueError(f"page: example_input must be a batch of images, of a {type(net).__name__}; got none")
    else:
        side = int(config.get("image_size", SIDE))
        image = [int(config.get("in_channels", 1)), side, side]
    if len(image) != 3 or image[0] not in (1, 3):
        raise ValueError(f"page: images must be (channels, height, width) with 1 or 3 channels; got {tuple(image)}")
    return image


def _fed(run: TrainedRun | None, bounded: bool) -> dict[str, Any]:
    """Mean and std by which pixels between 0 and 1 become what a network is fed, and back."""
    if run is not None:
        return {"mean": list(map(float, run.splits.mean)), "std": list(map(float, run.splits.std))}
    return {"mean": [0.5] * 3, "std": [0.5] * 3} if bounded else {"mean": None, "std": None}
