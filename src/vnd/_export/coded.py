r"""Networks with a code or a latent, whose files take its length as an input: decoders, and pairs that draw masks.

$$\mathrm{decode}(z, b) = g(z \odot [i < b]), \qquad
  \mathrm{combine}(f, μ, σ, ε, b) = c\bigl(f, (μ + σ ε) \odot [i < b]\bigr), \quad (f, μ, σ) = \mathrm{features}(x)$$
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vnd import __version__
from vnd._export.checks import check_outputs, engine, required
from vnd._export.onnx import put_file, standalone, told
from vnd.methods import OrderedCode
from vnd.methods.segmenter import normal_of
from vnd.models.autoencoder import CodedNetwork
from vnd.models.probabilistic import LatentNet, ProbabilisticSegmenter

LENGTHS = 16  # at most so many lengths of a code are checked


class Decoder(nn.Module):
    """Images of codes (batch, d), of which the first `length` entries count."""

    def __init__(self, net: CodedNetwork) -> None:
        super().__init__()
        self.net = net

    def forward(self, code: Tensor, length: Tensor) -> Tensor:
        """The decoder on masked codes."""
        images: Tensor = self.net.decode(code * (torch.arange(code.size(1)) < length).to(code.dtype))
        return images


class Features(nn.Module):
    """Parts that all masks of an image have in common: features, and mean and deviation of the latent."""

    def __init__(self, net: ProbabilisticSegmenter) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (B, c, H, W), μ and σ (B, d)."""
        return self.net.features(image), *normal_of(self.net.describe(image))


class Combine(nn.Module):
    """Logits of masks (samples, B, K, H, W) from what they have in common and noise (samples, B, d)."""

    def __init__(self, net: ProbabilisticSegmenter) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor, loc: Tensor, scale: Tensor, noise: Tensor, length: Tensor) -> Tensor:
        """The combiner on latents whose first `length` entries count."""
        latent = (loc + scale * noise) * (torch.arange(loc.size(1)) < length).to(loc.dtype)
        return self.net.combine(features, latent)


def is_coded(net: nn.Module) -> bool:
    """Tell if a network has a code or a latent whose length its file takes as an input."""
    return isinstance(net, CodedNetwork | OrderedCode | ProbabilisticSegmenter)


def write(net: nn.Module, path: Path, card: Any) -> dict[str, dict[str, Any]]:
    """Write the files of such a network; what is known of each, by its name."""
    required("onnx", "onnxscript", "onnxruntime")
    part = net.network if isinstance(net, OrderedCode) else net
    own = copy.deepcopy(part).cpu().float().eval()
    if isinstance(own, CodedNetwork):
        return _decoder(own, path, card)
    assert isinstance(own, ProbabilisticSegmenter)
    return _masks(own, path, card)


def lengths_of(size: int) -> list[int]:
    """Lengths to check: all of a short code, or some evenly spread, the shortest and the longest among them."""
    return sorted({round(1 + step * (size - 1) / (LENGTHS - 1)) for step in range(LENGTHS)})


@torch.no_grad()
def _decoder(net: CodedNetwork, path: Path, card: Any) -> dict[str, dict[str, Any]]:
    size = net.dimensions
    facts = _facts("decoder", net, card, {"length": size})
    zeros, rows = (torch.zeros(2, size), torch.tensor(size)), torch.export.Dim("batch", min=1)
    content = standalone(Decoder(net), zeros, ({0: rows}, None), ["code", "length"], ["image"], facts)
    opened = engine(content)
    codes = torch.randn(8, size, generator=torch.Generator().manual_seed(0))
    worst = 0.0
    for length in lengths_of(size):
        got = opened.run(None, {"code": codes.numpy(), "length": np.asarray(length)})[0]
        worst = max(worst, check_outputs(torch.from_numpy(got), net.decode(codes[:, :length]), f"length {length}"))
    put_file(path, content)
    inputs = {"code": ["batch", size], "length": []}
    known = {"form": "decoder", "bytes": len(content), "inputs": inputs, "lengths": size, "largest_difference": worst}
    return {path.name: known}


@torch.no_grad()
def _masks(net: ProbabilisticSegmenter, path: Path, card: Any) -> dict[str, dict[str, Any]]:
    channels, latent, deep = net.config["in_channels"], net.config["latent"], net.num_features
    step = net.divisor
    if isinstance(net.prior, LatentNet):
        step = math.lcm(step, 2 ** (len(net.prior.encoder) - 1))
    size = 4 * step
    known = net.describe(torch.zeros(1, channels, size, size))
    if not {"loc", "log_variance"} <= set(known):
        raise ValueError(f"export: a network that draws masks must have heads loc and log_variance; got {[*known]}")
    rows, draws = (torch.export.Dim(name, min=1) for name in ("batch", "samples"))
    down, across = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    facts = _facts("masks", net, card, {"length": latent, "step": step})
    image = torch.zeros(2, channels, size, size)
    first = standalone(
        Features(net), (image,), ({0: rows, 2: step * down, 3: step * across},),
        ["image"], ["features", "loc", "scale"], facts,
    )  # fmt: skip
    high, wide = torch.export.Dim("height", min=2), torch.export.Dim("width", min=2)
    given = (
        torch.zeros(2, deep, size, size),
        torch.zeros(2, latent),
        torch.zeros(2, latent),
        torch.zeros(3, 2, latent),
    )
    shapes = ({0: rows, 2: high, 3: wide}, {0: rows}, {0: rows}, {0: draws, 1: rows}, None)
    names = ["features", "loc", "scale", "noise", "length"]
    second = standalone(Combine(net), (*given, torch.tensor(latent)), shapes, names, ["logits"], facts)
    features, combine = engine(first), engine(second)
    worst = 0.0
    for number, (high_of, wide_of) in enumerate(((size, size), (3 * step, 5 * step))):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(3, channels, high_of, wide_of, generator=generator)
        noise = torch.randn(16, 3, latent, generator=generator)
        held = dict(zip(["features", "loc", "scale"], features.run(None, {"image": x.numpy()}), strict=True))
        loc, scale = normal_of(net.describe(x))
        for length in range(1, latent + 1):
            feed = {**held, "noise": noise.numpy(), "length": np.asarray(length)}
            want = net.combine(net.features(x), (loc + scale * noise)[..., :length])
            got = torch.from_numpy(combine.run(None, feed)[0])
            worst = max(worst, check_outputs(got, want, f"length {length}"))
    entries = {}
    for end, content, inputs in (
        ("features", first, {"image": ["batch", channels, f"{step} rows", f"{step} columns"]}),
        ("combine", second, dict(zip(names, (["batch", deep, "height", "width"], ["batch", latent], ["batch", latent],
                                             ["samples", "batch", latent], []), strict=True))),
    ):  # fmt: skip
        place = path.with_name(f"{path.stem}-{end}{path.suffix}")
        put_file(place, content)
        entries[place.name] = {
            "form": end, "bytes": len(content), "inputs": inputs, "lengths": latent, "largest_difference": worst,
        }  # fmt: skip
    return entries


def _facts(kind: str, net: nn.Module, card: Any, more: dict[str, Any]) -> dict[str, str]:
    about = {"network": type(net).__name__} if card is None else dict(card)
    return told({"vnd": __version__, "kind": kind, "card": about, **more})
