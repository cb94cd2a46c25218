"""Auto-encoders at every length of their code: errors, rates, and images drawn from the prior."""

from __future__ import annotations

import torch
from torch import nn

from vnd.data.arrays import Images
from vnd.data.batches import Normalise, in_order
from vnd.methods import Coder, Size
from vnd.methods.coding import coded, length_of, squared_error


@torch.no_grad()
def error_of(method: Coder, model: nn.Module, size: Size, images: Images, normalise: Normalise) -> float:
    """Mean squared error of a pixel between 0 and 1, of images decoded from their most likely codes of a length."""
    network = coded(model)
    assert size.fraction is not None
    length = length_of(network.config["code"], size.fraction, method.base)
    training = network.training
    network.eval()
    try:
        total = 0.0
        for x in in_order(images, normalise, network.expand.weight.device):
            decoded = method.decode(network, method.point(method.encode(network, x), length))
            total += float(squared_error(x, decoded).sum())
    finally:
        network.train(training)
    return float(total / (4 * len(images) * images.pixels[0].size))
