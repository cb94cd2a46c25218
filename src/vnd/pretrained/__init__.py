"""Trained networks that come with the package: `load_pretrained` needs no file and no connection.

Each lies in a folder of its name: what `vnd.save` writes, and `card.json`. `scripts/ship.py` makes one of a run.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vnd._manifest import checksum
from vnd._text import nearest, one_line
from vnd.data.batches import Normalise
from vnd.models import build
from vnd.nn.extract import is_depthwise
from vnd.serialization import load

__all__ = ["FromPixels", "load_pretrained"]

CARD = "card.json"
ROOT = Path(str(files(__name__)))
SLACK = 1e-3  # what rounding and resizing may leave beyond [0, 1]; a step between two pixel values is four times that


def names() -> list[str]:
    """The networks that come with the package."""
    return sorted(path.parent.name for path in ROOT.glob(f"*/{CARD}"))


def load_pretrained(name: str) -> FromPixels:
    """Load a trained network that comes with the package, on the CPU, in evaluation mode.

    A nested network that takes images as they are, floats between 0 and 1, and normalises them itself. `card` says what
    it was trained on and by, and what was measured at the widths that its BatchNorm has statistics for.

        net = load_pretrained("cifar10-bn3-small")
        prediction = vnd.predict(net, images, width=0.5)  # images (B, 3, 32, 32), pixels between 0 and 1
        [net.classes[index] for index in prediction.probs.argmax(1)]

    To load one that you have saved: `vnd.load(folder, model=net.plain())`.

    >>> net = load_pretrained("cifar10-bn3-small")
    >>> net.classes[:3]
    ('airplane', 'automobile', 'bird')
    """
    known = names()
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ValueError(f"load_pretrained: unknown network {name!r}{nearest(str(name), known)} Known: {listed}")
    return read(ROOT / name)


def read(folder: Path) -> FromPixels:
    """Load a network with its card, whose checksum must be its own; what is damaged is refused in one line."""
    path = folder / CARD
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        if description["checksum"] != checksum(description):
            raise ValueError("its checksum is not the one that was saved")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"load_pretrained: {path} is damaged; install vnd again: {one_line(error)}") from None
    net = load(folder, model=plain_of(description))
    assert isinstance(net, FromPixels)
    return net.float()  # of what may be kept as bfloat16


class FromPixels(nn.Module):
    r"""Network with its normalisation in front: it takes pixels between 0 and 1.

    $$y = f\left((x - \text{mean}) / \text{std}\right)$$

    From pixels that were bytes, divided by 255, it computes bit for bit what the loop feeds a network in training.

    Args:
        network: f.
        description: "mean" and "std" of each channel, of pixels between 0 and 1; "image", the size of one; "classes"
            and "card"; and what `plain_of` needs.

    Shape: (B, channels, height, width), floats between 0 and 1, to logits (B, classes).

    Note: Values beyond [0, 1] are refused on a CPU. On a GPU to look at them would stop it, and only their dtype is
        looked at.

    >>> net = load_pretrained("cifar10-bn3-small")
    >>> net.card["data"]["name"], net.description["image"]
    ('cifar10', [3, 32, 32])
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, description: Mapping[str, Any]) -> None:
        super().__init__()
        normalise = Normalise(tuple(description["mean"]), tuple(description["std"]), "cpu")
        self.register_buffer("scale", normalise.scale)  # in the state, so that they are saved, checked and cast
        self.register_buffer("shift", normalise.shift)
        self.network = network
        self.description = dict(description)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of its outputs."""
        return tuple(self.description["classes"])

    @property
    def card(self) -> dict[str, Any]:
        """A copy of the card: the data, the recipe, and what was measured at each width."""
        return copy.deepcopy(dict(self.description["card"]))

    def plain(self) -> FromPixels:
        """The plain network that this one was made from, with weights of no meaning: what `vnd.load` takes."""
        return plain_of(self.description)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        if isinstance(x, Tensor):  # what torch.fx hands through is none
            self._check(x)
        logits: Tensor = self.network(x.to(self.scale.dtype) * 255 * self.scale - self.shift)
        return logits

    def _check(self, x: Tensor) -> None:
        who, image = "images of a pretrained network", tuple(self.description["image"])
        if not x.is_floating_point():
            raise ValueError(f"{who} must be floats between 0 and 1; got {x.dtype}: divide bytes by 255")
        if x.shape[1:] != image:
            raise ValueError(f"{who} must be of the shape {image} each; got {tuple(x.shape[1:])}")
        if x.device.type != "cpu" or torch.compiler.is_compiling() or not x.numel():
            return
        low, high = (float(end) for end in x.detach().aminmax())
        if not (low >= -SLACK and high <= 1 + SLACK):  # so that NaN is refused, too
            raise ValueError(
                f"{who} must lie between 0 and 1, not normalised; got {low:.4g} … {high:.4g}: divide bytes by 255, "
                f"clamp what resizing has left beyond"
            )


def plain_of(description: Mapping[str, Any]) -> FromPixels:
    """The plain network of a card: of the size that its layers had, with weights of no meaning.

    Args:
        description: "network" and "config" as `build` takes them, the "shapes" of its tensors, and what `FromPixels`
            needs.
    """
    with torch.device("meta"):  # what it is cut from may be a hundred times as large
        network = build(description["network"], **description["config"])
    shapes = {name: tuple(shape) for name, shape in description["shapes"].items()}
    known = set(network.state_dict())
    if known != set(shapes):
        name = sorted(known ^ set(shapes))[0]
        raise ValueError(f"load_pretrained: the card and {description['network']} differ in {name}; install vnd again")
    for name, module in network.named_modules():
        _resize(module, name, shapes)
    return FromPixels(network, description)


def _resize(module: Any, name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Give a layer's own tensors these shapes, on the CPU, and its attributes the numbers that follow from them."""
    prefix = f"{name}." if name else ""
    depthwise = is_depthwise(module)
    for table in (module._parameters, module._buffers):
        for key, value in table.items():
            if value is not None:
                new = torch.zeros(shapes[prefix + key], dtype=value.dtype)
                table[key] = nn.Parameter(new) if isinstance(value, nn.Parameter) else new
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Conv2d):
        module.out_channels = module.weight.size(0)
        module.groups = module.out_channels if depthwise else module.groups
        module.in_channels = module.weight.size(1) * module.groups
    elif hasattr(module, "num_features"):
        module.num_features = module.weight.size(0)
