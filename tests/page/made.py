"""Networks whose pages are tested, in Python and in a browser, and what Python says that these pages must show."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vnd
from vnd._export.graph import Inputs, Width, find_noise, reference
from vnd.methods import METHODS
from vnd.models import build

SAMPLES, SEEDS = 4, (0, 1)
IMAGE = (1, 8, 8)
MARK = b"a picture of my own, nobody else"


def classifier(estimator: str = "local") -> nn.Module:
    """A nested network of five classes, with statistics of means and of draws at three widths."""
    torch.manual_seed(3)
    layers = nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    plain = nn.Sequential(*layers, nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 5))
    for layer in (plain[5], plain[7]):
        nn.init.normal_(layer.weight, std=0.6)  # so that it answers differently
    net = vnd.to_nested(plain, torch.rand(2, *IMAGE), num_groups=4, estimator=estimator, log_alpha_init=-2.0)
    vnd.recalibrate(net, [torch.rand(64, *IMAGE)], widths=(1.0, 0.5, 0.25), samples="both")
    return net.eval()


def auto_encoder() -> nn.Module:
    """One with a code of five numbers."""
    torch.manual_seed(4)
    method = METHODS["vnd_ae"]()
    plain = build("dense_autoencoder", latent_dim=5, image_size=8, in_channels=1, hidden=[24])
    return method.build(plain, torch.zeros(2, *IMAGE)).eval()


def segmenter() -> nn.Module:
    """A probabilistic UNet of three classes, with a latent of four numbers."""
    torch.manual_seed(5)
    net = vnd.OrderedSegmenter(nn.Conv2d(1, 6, 3, padding=1), 6, num_classes=3, latent_dim=4, channels=(6, 8))
    return net.eval()


def labelled(net: nn.Module, count: int = 200) -> tuple[Tensor, Tensor]:
    """Images, and classes that the network is mostly right about."""
    x = torch.rand(count, *IMAGE, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        y = net(x).argmax(1)
    y[::5] = (y[::5] + 1) % 5
    return x, y


def facts_of(page: Path) -> dict[str, Any]:
    """The facts of a page."""
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    facts: dict[str, Any] = json.loads(found[1])
    return facts


def files_of(page: Path) -> dict[str, bytes]:
    """The compressed files in a page, unpacked."""
    found = re.findall(r'<script type="text/plain" id="([^"]+)">([^<]*)</script>', page.read_text())
    return {name: gzip.decompress(base64.b64decode(text, validate=True)) for name, text in found}


def networks_of(page: Path, folder: Path) -> Path:
    """The networks in a page as files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files_of(page).items():
        if name.startswith("network-"):
            (folder / name.removeprefix("network-")).write_bytes(content)
    return folder


def fed(facts: dict[str, Any], number: int) -> np.ndarray:
    """A picture of a page as its network is fed, (1, C, H, W)."""
    raw = np.frombuffer(base64.b64decode(facts["pictures"][number]["pixels"]), np.uint8)
    x = raw.reshape(1, *facts["image"]).astype(np.float32) / np.float32(255)
    if facts.get("mean"):
        channels = facts["image"][0]
        mean, std = (np.asarray(facts[key][:channels], np.float32).reshape(1, -1, 1, 1) for key in ("mean", "std"))
        x = (x - mean) / std
    return x


def expected(page: Path, folder: Path, net: nn.Module | None = None) -> list[dict[str, Any]]:
    """What `vnd.runtime` says at each stop of a page's slider, and torch of the network too where it is given."""
    facts, place = facts_of(page), networks_of(page, folder)
    x = fed(facts, 0)
    if facts["kind"] == "classes":
        return [_classes(facts, place, x, row, net) for row in facts["widths"]]
    if facts["kind"] == "codes":
        return _codes(facts, place, x, net)
    ready = vnd.runtime.load(place / "masks.onnx")
    return [
        {"seeds": [ready.draw(x, facts["samples"], length, seed).ravel().tolist() for seed in SEEDS]}
        for length in range(1, facts["length"] + 1)
    ]


def _classes(facts: dict[str, Any], place: Path, x: np.ndarray, row: dict[str, Any], net: Any) -> dict[str, Any]:
    ready, shape = vnd.runtime.load(place / "network.onnx"), row["shape"]
    found = []
    for seed in SEEDS:
        size = (facts["samples"], 1, ready.columns)
        noise = np.random.default_rng(seed).standard_normal(size, np.float32)
        answer = ready.predict(x, shape, facts["samples"], seed)
        draws = np.stack([ready.predict(x, shape, noise=noise[i : i + 1]).probs[0] for i in range(len(noise))])
        told = {"probs": answer.probs[0], "entropy": answer.entropy, "draws": draws}
        if net is not None:
            told["torch"] = _drawn(net, torch.from_numpy(x), shape, torch.from_numpy(noise)).softmax(-1)
        found.append({name: np.asarray(value).tolist() for name, value in told.items()})
    means = ready.predict(x, shape, samples=0).probs[0].tolist() if ready._means else None
    given = row["threshold"] is not None and bool(found[0]["entropy"][0] <= row["threshold"])
    return {"seeds": found, "means": means, "given": given, "ruled": facts["rule"] is not None}


def _drawn(net: nn.Module, x: Tensor, shape: dict[str, int], noise: Tensor) -> Tensor:
    """Logits (draws, classes) of torch's masked network, from noise."""
    inputs = Inputs.of(net, (x,), {})
    width, sites = Width(None, vnd.nn.Shape(shape), None), find_noise(net, inputs)
    return torch.cat([reference(net, width, inputs, [x], sites=sites, noise=part) for part in noise])


def _codes(facts: dict[str, Any], place: Path, x: np.ndarray, net: Any) -> list[dict[str, Any]]:
    ready = vnd.runtime.load(place / "decoder.onnx")
    (code,) = vnd.runtime._open(str(place / "encoder.onnx"), 1).run(None, {"image": x})
    made_up = np.random.default_rng(1).standard_normal((1, facts["length"]), np.float32)
    rows = []
    for length in range(1, facts["length"] + 1):
        seeds = [ready.decode(one, length).ravel().tolist() for one in (code, made_up)]
        row = {"seeds": seeds, "code": code[0].tolist()}
        if net is not None:
            with torch.no_grad():
                loc = net.encode(torch.from_numpy(x))["loc"]
                row["torch"] = net.decode(loc[:, :length]).ravel().tolist()
        rows.append(row)
    return rows
