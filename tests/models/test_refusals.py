"""Arguments, codes and images that no network takes: refused in one line by name."""

import math
from collections.abc import Callable

import pytest
import torch

from refusals import refused, table
from vnd.models import EnsembleUNet, ProbabilisticUNet, UNet, build
from vnd.models.autoencoder import AutoEncoder, DenseAutoEncoder


@table(
    {
        "vgg11 of no width": (lambda: build("vgg11", width=0), "VGG11: width must be"),
        "vgg11 of nan": (lambda: build("vgg11", width=math.nan), "VGG11: width must be"),
        "vgg11 of words": (lambda: build("vgg11", width="1.5"), "VGG11: width must be"),
        "vgg11 of odd images": (
            lambda: build("vgg11", image_size=48),
            "VGG11: image_size must be a multiple of 32; got 48",
        ),
        "vgg11 of nothing hidden": (lambda: build("vgg11", hidden=0), "VGG11: hidden must be"),
        "vgg11 of ten classes and a bit": (lambda: build("vgg11", num_classes=10.0), "VGG11: num_classes must be"),
        "mobilenet of infinity": (lambda: build("mobilenet_v2", width=math.inf), "MobileNetV2: width must be"),
        "mobilenet of nothing": (lambda: build("mobilenet_v2", in_channels=0), "MobileNetV2: in_channels must be"),
        "resnext of odd depth": (lambda: build("resnext", depth=28), "ResNeXt: depth must be 9k + 2"),
        "resnext of no depth": (lambda: build("resnext", depth=2), "ResNeXt: depth must be 9k + 2"),
        "resnext of no groups": (lambda: build("resnext", cardinality=0), "ResNeXt: cardinality must be"),
        "resnext of true": (lambda: build("resnext", widen_factor=True), "ResNeXt: widen_factor must be"),
        "unet of no level": (lambda: build("unet", channels=[]), "UNet: channels must be"),
        "unet of a number": (lambda: build("unet", channels=32), "UNet: channels must be"),
        "unet of an empty level": (lambda: build("unet", channels=[32, 0]), "UNet: channels[1] must be"),
        "unet that drops all": (lambda: UNet(dropout=1.0), "UNet: dropout must lie in [0, 1); got 1.0"),
        "unet that drops nan": (lambda: UNet(dropout=math.nan), "UNet: dropout must lie in [0, 1); got nan"),
        "unet that drops true": (lambda: UNet(dropout=True), "UNet: dropout must lie in [0, 1); got True"),
        "ensemble of none": (
            lambda: EnsembleUNet(members=0),
            "EnsembleUNet: members must be an integer of at least 1; got 0",
        ),
        "no latent": (
            lambda: ProbabilisticUNet(latent=0),
            "ProbabilisticUNet: latent must be an integer of at least 1; got 0",
        ),
        "no level": (
            lambda: ProbabilisticUNet(channels=()),
            "ProbabilisticUNet: channels must be a list of at least one integer",
        ),
        "no head loc": (
            lambda: ProbabilisticUNet(heads={"mean": 3}),
            ("ProbabilisticUNet: heads must be a mapping ", " named 'loc'"),
        ),
        "a head beyond the latent": (
            lambda: ProbabilisticUNet(heads={"loc": 7}),
            "ProbabilisticUNet: heads['loc'] must be at most latent = 6",
        ),
        "an argument near another": (
            lambda: build("vgg11", widht=1.5),
            "build: vgg11 has no argument 'widht', did you mean 'width'",
        ),
        "an argument near none": (
            lambda: build("unet", qqq=1),
            "build: unet has no argument 'qqq'. Known: in_channels, num_classes, channels",
        ),
        "a network near another": (lambda: build("VGG-11"), "build: unknown network 'VGG-11', did you mean 'vgg11'"),
        "the first word of a network": (lambda: build("mobilenet"), "did you mean 'mobilenet_v2'"),
        "a network near none": (
            lambda: build("qqq"),
            "build: unknown network 'qqq'. Known: vgg11, mobilenet_v2, resnext, unet, convnet",
        ),
        "no code": (
            lambda: AutoEncoder(latent_dim=0),
            "AutoEncoder: latent_dim must be an integer of at least 1; got 0",
        ),
        "odd images": (lambda: AutoEncoder(image_size=48), "AutoEncoder: image_size must be a multiple of 32; got 48"),
        "no channels": (lambda: AutoEncoder(in_channels=0), "AutoEncoder: in_channels must be"),
        "a width of nan": (lambda: AutoEncoder(width=math.nan), "AutoEncoder: width must be"),
        "bounded by a word": (lambda: AutoEncoder(bounded="no"), "bounded must be true or false; got 'no'"),
        "a bias of 1": (lambda: AutoEncoder(length_bias=1), "length_bias must be true or false; got 1"),
        "no loc": (lambda: AutoEncoder(heads={"mean": 4}), ("AutoEncoder: heads must be a mapping ", "named 'loc'")),
        "heads of a list": (lambda: AutoEncoder(heads=["loc"]), "AutoEncoder: heads must be a mapping"),
        "an empty head": (
            lambda: AutoEncoder(heads={"loc": 0}),
            "AutoEncoder: heads['loc'] must be an integer of at least 1; got 0",
        ),
        "a head beyond the code": (
            lambda: AutoEncoder(4, heads={"loc": 5}),
            "AutoEncoder: heads['loc'] must be at most latent_dim = 4; got 5",
        ),
        "a head with a dot": (
            lambda: AutoEncoder(heads={"loc": 5, "a.b": 1}),
            ("AutoEncoder: heads must have plain words ", " got 'a.b'"),
        ),
        "a head of torch's words": (
            lambda: AutoEncoder(heads={"loc": 5, "keys": 1}),
            ("AutoEncoder: heads must have plain words ", " got 'keys'"),
        ),
        "a head of a number": (
            lambda: AutoEncoder(heads={"loc": 5, 3: 1}),
            ("AutoEncoder: heads must have plain words ", " got 3"),
        ),
        "hidden a number": (
            lambda: DenseAutoEncoder(hidden=512),
            "DenseAutoEncoder: hidden must be a list of integers; got 512",
        ),
        "hidden a word": (
            lambda: DenseAutoEncoder(hidden="512"),
            "DenseAutoEncoder: hidden must be a list of integers; got '512'",
        ),
        "hidden of nothing": (
            lambda: DenseAutoEncoder(hidden=[5, 0]),
            "DenseAutoEncoder: hidden[1] must be an integer of at least 1",
        ),
        "dense images of nothing": (lambda: DenseAutoEncoder(image_size=0), "DenseAutoEncoder: image_size must be"),
        "dense bounded by 1": (lambda: DenseAutoEncoder(bounded=1), "DenseAutoEncoder: bounded must be"),
        "a dense head beyond the code": (
            lambda: DenseAutoEncoder(heads={"loc": 5}),
            "DenseAutoEncoder: heads['loc'] must be at most latent_dim = 4",
        ),
    }
)
def test_bad_arguments_are_refused_in_one_line(call: Callable[[], object], words: str) -> None:
    with torch.device("meta"):
        refused(call, words)


SMALL = {
    "autoencoder": {"latent_dim": 6, "image_size": 32, "width": 0.125},
    "dense_autoencoder": {"latent_dim": 6, "in_channels": 2, "image_size": 5, "hidden": [8]},
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("autoencoder", (2, 7)),
        ("dense_autoencoder", (2, 0)),
        ("autoencoder", (6,)),
    ],
)
def test_codes_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    words = f"AutoEncoder: codes must have shape (B, b) with b in 1 … 6; got {shape}"
    refused(lambda: build(name, **SMALL[name]).decode(torch.zeros(shape)), words)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("autoencoder", (2, 3, 31, 31)),  # five halvings round up: it would pass for 32
        ("autoencoder", (2, 1, 32, 32)),
        ("dense_autoencoder", (2, 1, 10, 5)),  # as many numbers as 2 × 5 × 5
        ("dense_autoencoder", (2, 50)),
    ],
)
def test_images_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    words = ("AutoEncoder: images must have shape (B, ", f"; got {shape}")
    refused(lambda: build(name, **SMALL[name])(torch.zeros(shape)), words)
