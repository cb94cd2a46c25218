"""Images that an auto-encoder draws: how far they are from real ones, by the features of a trained classifier."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vnd import metrics
from vnd.data.images import Images
from vnd.evaluate.features import Extractor, distance_name, extractor, score_name
from vnd.evaluate.sweep import repeatable
from vnd.methods import AutoencoderMethod

PAIRS = 1000  # images whose features are held against each other
SPLITS = 10  # of the Inception Score


@dataclass
class Gallery:
    """An extractor, how many images are drawn, and the features of real ones once they are known."""

    extractor: Extractor
    num_generated: int
    batch: int
    real: Tensor = field(default_factory=lambda: torch.empty(0))

    def compare(self, images: Images, done: Any) -> dict[str, Any]:
        """Read the real images, as many as are drawn or as there are; what stands beside every number of this."""
        some = spaced(len(images), self.num_generated).numpy()
        found = []
        for start in range(0, len(some), self.batch):
            pixels = torch.from_numpy(images.pixels[some[start : start + self.batch]].copy())
            found.append(self.extractor.features(pixels))
            done(len(pixels))
        self.real = torch.cat(found)
        return {
            "name": self.extractor.name,
            "sha256": self.extractor.sha256,
            "distance_name": distance_name(self.extractor),
            "score_name": score_name(self.extractor),
            "num_generated": self.num_generated,
            "real": len(self.real),
            "real_diversity": self._diversity(self.real),
        }

    def read(self, method: AutoencoderMethod, model: nn.Module, length: int, done: Any) -> dict[str, Any]:
        """Measures of images that are drawn at a length; the same draws each time, and at every length."""
        features, probs = list[Tensor](), list[Tensor]()
        with repeatable():
            for start in range(0, self.num_generated, self.batch):
                count = min(self.batch, self.num_generated - start)
                some = self.extractor.read(as_pixels(method.decode(model, method.draw(model, count, length))))
                features.append(some[0])
                probs.append(some[1])
                done(count)
        made = torch.cat(features)
        score, deviation = metrics.inception_score(torch.cat(probs), min(SPLITS, self.num_generated))
        return {
            "frechet": float(metrics.frechet_distance(made, self.real)),
            "inception_score": float(score),
            "inception_score_std": float(deviation),
            "diversity": self._diversity(made),
        }

    def _diversity(self, features: Tensor) -> float:
        return float(
            metrics.pairwise_distance(features[spaced(len(features), min(PAIRS, self.num_generated, len(self.real)))])
        )


def gallery(drawn: int, inception: str | None, device: torch.device) -> Gallery:
    """What generated images are measured by: FID's Inception from its file, or EfficientNet-Lite0.

    Args:
        drawn: Images to draw at each length.
        inception: File with the weights of FID's Inception; None for the other.
        device: Where the extractor runs.
    """
    if drawn < 2:
        raise ValueError(f"drawn must be at least 2 images, or 0 for none; got {drawn}")
    found = extractor(None if inception is None else Path(inception), device)
    return Gallery(found, drawn, 128 if device.type == "cpu" else 512)


def spaced(count: int, most: int) -> Tensor:
    """Places of at most so many of `count` things, spread evenly: those of a sorted set are of all its classes.

    >>> spaced(9, 3), spaced(2, 5)
    (tensor([0, 4, 8]), tensor([0, 1]))
    """
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def as_pixels(images: Tensor) -> Tensor:
    """Images between −1 and 1 as whole numbers in 0 … 255.

    >>> as_pixels(torch.tensor([-1.2, -1.0, 0.0, 0.5, 1.0]))
    tensor([  0,   0, 128, 191, 255], dtype=torch.uint8)
    """
    return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
