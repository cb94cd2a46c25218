"""The networks of the paper and a small one, each written once, plain; `vnd.to_nested` makes the other versions.

A network keeps its constructor's arguments in `config`, plain numbers and lists that JSON can hold, so that
`build(name, **network.config)` makes it again without pickle.
"""

import inspect
from typing import Any

from torch import nn

from vnd._text import nearest
from vnd.models.autoencoder import AutoEncoder, DenseAutoEncoder
from vnd.models.mobilenet import MobileNetV2
from vnd.models.probabilistic import ProbabilisticSegmenter, ProbabilisticUNet
from vnd.models.resnet import ResNeXt
from vnd.models.unet import Ensemble, EnsembleUNet, UNet
from vnd.models.vgg import VGG11, ConvNet

__all__ = [
    "MODELS", "VGG11", "AutoEncoder", "ConvNet", "DenseAutoEncoder", "Ensemble", "EnsembleUNet", "MobileNetV2",
    "ProbabilisticSegmenter", "ProbabilisticUNet", "ResNeXt", "UNet", "build",
]  # fmt: skip

MODELS: dict[str, type[nn.Module]] = {
    "vgg11": VGG11,
    "mobilenet_v2": MobileNetV2,
    "resnext": ResNeXt,
    "unet": UNet,
    "convnet": ConvNet,
    "autoencoder": AutoEncoder,
    "dense_autoencoder": DenseAutoEncoder,
    "probabilistic_unet": ProbabilisticUNet,
    "ensemble_unet": EnsembleUNet,
}


def build(name: str, /, **config: Any) -> nn.Module:
    """Make a network by its name in `MODELS`; what `config` leaves out has its default.

    >>> build("vgg11", num_classes=100, width=0.25).classifier[-1]
    Linear(in_features=256, out_features=100, bias=True)
    >>> build("vgg", width=0.25)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: build: unknown network 'vgg', did you mean 'vgg11'? Known: vgg11, mobilenet_v2, resnext, unet, ...
    """
    if name not in MODELS:
        raise ValueError(
            f"build: unknown network {name!r}{nearest(str(name).lower(), MODELS)} Known: {', '.join(MODELS)}"
        )
    known = inspect.signature(MODELS[name]).parameters
    for argument in config:
        if argument not in known:
            hint = nearest(argument.lower(), known)
            raise ValueError(f"build: {name} has no argument {argument!r}{hint} Known: {', '.join(known)}")
    return MODELS[name](**config)
