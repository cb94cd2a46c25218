"""The networks of the paper and a small one, each written once, plain; `vnd.to_nested` makes the other versions.

A network keeps its constructor's arguments in `config`, plain numbers and lists that JSON can hold, so that
`build(name, **network.config)` makes it again without pickle.
"""

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from torch import nn

from vnd.models.convnet import ConvNet
from vnd.models.mobilenet import MobileNetV2
from vnd.models.resnext import ResNeXt
from vnd.models.unet import UNet
from vnd.models.vgg import VGG11

__all__ = ["MODELS", "VGG11", "ConvNet", "MobileNetV2", "ResNeXt", "UNet", "build"]

MODELS: dict[str, type[nn.Module]] = {
    "vgg11": VGG11,
    "mobilenet_v2": MobileNetV2,
    "resnext": ResNeXt,
    "unet": UNet,
    "convnet": ConvNet,
}


def build(name: str, /, **config: Any) -> nn.Module:
    """Make a network by its name in `MODELS`; what `config` leaves out has its default.

    >>> build("vgg11", num_classes=100, width=0.25).classifier[-1]
    Linear(in_features=256, out_features=100, bias=True)
    >>> build("vgg", width=0.25)
    Traceback (most recent call last):
    ValueError: build: unknown network 'vgg', did you mean 'vgg11'? Known: vgg11, mobilenet_v2, resnext, unet, convnet
    """
    if name not in MODELS:
        raise ValueError(f"build: unknown network {name!r}{_nearest(name, MODELS)} Known: {', '.join(MODELS)}")
    known = inspect.signature(MODELS[name]).parameters
    for argument in config:
        if argument not in known:
            raise ValueError(
                f"build: {name} has no argument {argument!r}{_nearest(argument, known)} Known: {', '.join(known)}"
            )
    return MODELS[name](**config)


def _nearest(word: str, known: Iterable[str]) -> str:
    matches = get_close_matches(str(word).lower(), known, n=1)
    return f", did you mean {matches[0]!r}?" if matches else "."
