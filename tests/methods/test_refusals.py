"""Options, networks and clouds that a method cannot have: refused in one line that begins with what was wrong."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from methods import classes, codes, masks
from refusals import Refusals, refused, table
from vnd.evaluation import evaluate
from vnd.methods import (
    BN3,
    FN3,
    IBNN,
    SN3,
    SVB,
    SWAE,
    VAE,
    VNDAE,
    BetaVAE,
    BN3UNet,
    DropoutUNet,
    JointVAE,
    NestedAE,
    OrderedL0,
    OrderedSegmenter,
    Plain,
    PUNet,
    Size,
    Sizes,
    UNetEnsemble,
    USNet,
    VNDPUNet,
    predict_masks,
)  # fmt: skip
from vnd.methods.sn3 import median_distance, squared_mmd
from vnd.models import ConvNet, ProbabilisticUNet, UNet

IMAGES = torch.zeros(2, 1, 16, 16)
OWN = torch.nn.Conv2d(1, 4, 3, padding=1)
UNETS = UNet(channels=(4,)), ProbabilisticUNet(channels=(4,))
CLOUDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "a point": ((1, 4, 3), (5, 4, 3)),
    "another point": ((5, 4, 3), (1, 4, 3)),
    "clouds of other examples": ((5, 4, 3), (5, 1, 3)),
    "clouds of no dimension": ((5,), (5,)),
}


def clouds(measure: Callable[..., Any], a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Callable[[], Any], str]:
    wanted = "x and y must be (S, ..., C) and (T, ..., C) with S and T at least 2"
    return lambda: measure(torch.zeros(a), torch.zeros(b)), f"{measure.__name__}: {wanted}; got shapes {a} and {b}"


def mmd(bandwidths: list[float]) -> tuple[Callable[[], Any], str]:
    words = f"squared_mmd: bandwidths must be one or more positive numbers; got {bandwidths}"
    return lambda: squared_mmd(torch.zeros(2, 3), torch.zeros(2, 3), bandwidths), words


def missing(wanted: str) -> str:
    return f"network.name must be {wanted}; got a "


KNOWN = "base, bayesian, bits, granularity, log_alpha_init, nest, num_groups, prior"
CASES: Refusals = {
    # Options
    "no groups": (lambda: FN3(num_groups=0), "num_groups must be at least 1; got 0"),
    "a base of too many groups": (
        lambda: BN3(num_groups=4, base=5),
        "base must lie in 0 … num_groups = 4; got 5",
    ),
    "a base below 0": (lambda: USNet(num_groups=4, base=-1), "base must lie in 0 … num_groups = 4; got -1"),
    "a prior of all groups": (
        lambda: BN3(num_groups=4, prior_length=4.0),
        "prior_length must lie strictly between base = 1 and num_groups = 4; got 4.0",
    ),
    "a smoothing of 1": (lambda: SVB(label_smoothing=1.0), "label_smoothing must lie in [0, 1); got 1.0"),
    "measured backwards": (lambda: BN3(measure_every=-1), "measure_every must be 0 (never) or more; got -1"),
    "no draws": (lambda: OrderedL0(draws=0), "draws must be at least 1; got 0"),
    "taught too much": (lambda: USNet(distill=1.5), "distill must lie in [0, 1]; got 1.5"),
    "taught less than nothing": (lambda: BN3(distill=-0.1), "distill must lie in [0, 1]; got -0.1"),
    "no share of the width": (lambda: IBNN(fraction=0.0), "fraction must lie in (0, 1]; got 0.0"),
    "a shape and a fraction": (
        lambda: Plain(shape={"features.4": 3}, fraction=0.5),
        "shape and fraction cannot both be given; got the fraction 0.5",
    ),
    "a rule of no option": (lambda: Plain(rules={"a": {"nst": False}}), f"rules: a has no 'nst'; known are {KNOWN}"),
    "budgets alone": (
        lambda: BN3(fixed_budgets=(1200.0,)),
        "fixed_budgets are trained in a sandwich; set sandwich, or leave out [1200.0]",
    ),
    "no leading part": (lambda: Sizes(leading=0.0), "leading must lie in (0, 1]; got 0.0"),
    "pixels of no noise": (lambda: VAE(likelihood_std=0.0), "likelihood_std must be greater than 0; got 0.0"),
    "pixels of nan": (lambda: VNDAE(likelihood_std=math.nan), "likelihood_std must be greater than 0; got nan"),
    "no base": (lambda: VNDAE(base=0), "base must be at least 1 dimension; got 0"),
    "a prior of the base": (
        lambda: VNDAE(base=3, prior_length=3.0),
        "prior_length must be greater than base = 3; got 3.0",
    ),
    "more than a code": (lambda: VNDAE(fractions=(0.5, 1.5)), "fractions must lie in (0, 1]; got [0.5, 1.5]"),
    "nothing of a latent": (lambda: VNDPUNet(fractions=(0.0,)), "fractions must lie in (0, 1]; got [0.0]"),
    "all at fixed lengths": (lambda: VNDAE(fixed_share=1.0), "fixed_share must lie in [0, 1); got 1.0"),
    "all at all lengths": (
        lambda: VNDPUNet(all_lengths_share=1.0),
        "all_lengths_share must lie in [0, 1); got 1.0",
    ),
    "all lengths and some": (
        lambda: VNDAE(all_lengths_share=0.5, fractions=(0.5,)),
        "fractions must be none with all_lengths_share; got [0.5]",
    ),
    "all lengths until never": (
        lambda: VNDAE(all_lengths_share=0.5, all_lengths_until=0.0),
        "all_lengths_until must lie in (0, 1]; got 0.0",
    ),
    "another sampler": (lambda: VNDAE(sampler="gumbel"), "sampler must be exact or released; got gumbel"),  # type: ignore[arg-type]
    "weights of nothing": (
        lambda: VNDAE(weights=(1.0,)),
        "weights must be above 0, one for each of fractions; got [1.0]",
    ),
    "weights of 0": (
        lambda: VNDAE(fractions=(0.5,), weights=(0.0,)),
        "weights must be above 0, one for each of fractions; got [0.0]",
    ),
    "bits below 0": (lambda: VNDAE(free_bits=-0.1), "free_bits must be 0 or more; got -0.1"),
    "bits until 0": (lambda: VNDAE(free_until=0.0), "free_until must lie in (0, 1]; got 0.0"),
    "bits for ever": (lambda: VNDAE(free_until=1.1), "free_until must lie in (0, 1]; got 1.1"),
    "never decoded": (
        lambda: VNDAE(each_image="one", decodes=0),
        "decodes must be at least 1, and 1 with each_image all; got 0",
    ),
    "decoded twice at all": (
        lambda: VNDAE(decodes=2, all_lengths_share=0.0),
        "decodes must be at least 1, and 1 with each_image all; got 2",
    ),
    "a penalty below 0": (lambda: BetaVAE(beta=-1.0), "beta must be 0 or more; got -1.0"),
    "no time to grow": (lambda: BetaVAE(over=0), "over must be at least 1 step; got 0"),
    "one category": (lambda: JointVAE(categories=1), "categories must be at least 2; got 1"),
    "no temperature": (lambda: JointVAE(temperature=0.0), "temperature must be greater than 0; got 0.0"),
    "no projections": (lambda: SWAE(projections=0), "projections must be at least 1; got 0"),
    "less than a distance": (
        lambda: SWAE(power=0.5),
        "power must be at least 1 and weight 0 or more; got 0.5 and 100.0",
    ),
    "always kept": (lambda: NestedAE(keep=1.0), "keep must lie in (0, 1); got 1.0"),
    "no members": (lambda: UNetEnsemble(members=0), "members must be at least 1; got 0"),
    "nothing dropped": (lambda: DropoutUNet(rate=0.0), "rate must lie in (0, 1); got 0.0"),
    "a sandwich of masks": (
        lambda: BN3UNet(sandwich=True),
        "sandwich is of classes, and bn3_unet has masks; leave it out, got True",
    ),
    "smoothed masks": (
        lambda: BN3UNet(label_smoothing=0.1),
        "label_smoothing is of classes, and bn3_unet has masks; leave it out, got 0.1",
    ),
    "a base of masks": (lambda: BN3UNet(base=33), "base must lie in 0 … num_groups = 32; got 33"),
    "kernels of no width": (
        lambda: SN3(bandwidths=(1.0, 0.0)),
        "bandwidths must be one or more positive numbers; got [1.0, 0.0]",
    ),
    "nothing kept": (lambda: SN3(keep=0.0), "keep must lie in (0, 1]; got 0.0"),
    "no parameters": (lambda: SN3(parameters=0.0), "parameters must be greater than 0 and finite; got 0.0"),
    "nan parameters": (lambda: SN3(parameters=math.nan), "parameters must be greater than 0 and finite; got nan"),
    "a share and a size": (
        lambda: SN3(keep=0.25, parameters=1e6),
        "keep or parameters, not both; got keep 0.25 and parameters 1e+06",
    ),
    "one answer": (lambda: SN3(samples=1), "samples must be at least 2 for mmd; got 1"),
    "one draw of a student": (lambda: SN3(student_samples=1), "student_samples must be at least 2 for mmd; got 1"),
    "labels against": (lambda: SN3(label_weight=-1.0), "label_weight must be 0 or more; got -1.0"),
    "a width of all": (lambda: SN3(widths=(0.5, 1.0)), "widths must lie in (0, 1) and rise; got [0.5, 1.0]"),
    "widths that fall": (lambda: SN3(widths=(0.5, 0.25)), "widths must lie in (0, 1) and rise; got [0.5, 0.25]"),
    # Networks
    "a rule of no layer": (
        lambda: classes.model_of(BN3(num_groups=4, rules={"nowhere": {"nest": False}})),
        "to_nested: the rule 'nowhere' matches no layer of ConvNet that can be nested",
    ),
    "a code of classes": (
        lambda: VAE().build(ConvNet(num_classes=3, image_size=8, in_channels=1, width=0.1), IMAGES),
        missing("autoencoder or dense_autoencoder for a method that learns codes, or have an encoder and a decoder")
        + "ConvNet",
    ),
    "a code of its base": (
        lambda: codes.model_of(VNDAE(base=codes.CODE)),
        "network.latent_dim must be greater than method.base = 6; got 6",
    ),
    "a code of its prior": (
        lambda: codes.model_of(VNDAE(prior_length=6.0)),
        "method.prior_length must be less than network.latent_dim = 6; got 6.0",
    ),
    "a code of categories": (
        lambda: codes.model_of(JointVAE(categories=6)),
        "network.latent_dim must be greater than the 6 categories; got 6",
    ),
    "a code below its base": (
        lambda: codes.model_of(NestedAE(base=7)),
        "network.latent_dim must be at least method.base = 7; got 6",
    ),
    "no latent": (
        lambda: PUNet().build(UNETS[0], IMAGES),
        "network.name must be probabilistic_unet, or a ProbabilisticSegmenter of your own, for a method that draws "
        "latents; a UNet has no describe",
    ),
    "a latent of its base": (
        lambda: VNDPUNet(base=6).build(UNETS[1], IMAGES),
        "network.latent must be greater than method.base = 6; got 6",
    ),
    "dropout of a latent": (
        lambda: DropoutUNet().build(UNETS[1], IMAGES),
        missing("unet, or another network without a latent, for this method") + "ProbabilisticUNet",
    ),
    "masks of classes": (
        lambda: BN3UNet().build(ConvNet(), torch.zeros(2, 1, 28, 28)),
        "network.name must give logits (batch, classes, height, width) of images, as unet does; "
        "a ConvNet gives (2, 10) for images (2, 1, 28, 28)",
    ),
    "dropout of a network without": (
        lambda: DropoutUNet().build(torch.nn.Conv2d(1, 2, 1), IMAGES),
        "network.name must be unet, or a network that has dropout; a Conv2d has none",
    ),
    "an ensemble of what cannot be made again": (
        lambda: UNetEnsemble().build(torch.nn.Conv2d(1, 2, 1), IMAGES),
        "network.name must keep its arguments in `config`, to be made several times; a Conv2d has none",
    ),
    "noise of neither kind": (lambda: BN3UNet(test_noise="none"), "test_noise must be weights or pixels; got none"),  # type: ignore[arg-type]
    # Masks in a loop of one's own
    "a backbone of no network": (
        lambda: OrderedSegmenter(len, 4),  # type: ignore[arg-type]
        "OrderedSegmenter: backbone must be an nn.Module; got a builtin_function_or_method",
    ),
    "a latent of the base in a loop": (
        lambda: OrderedSegmenter(OWN, 4, latent_dim=2),
        "OrderedSegmenter: latent_dim must be greater than the method's base = 2; got 2",
    ),
    "a method without a latent": (
        lambda: OrderedSegmenter(OWN, 4, method=BN3UNet()),  # type: ignore[arg-type]
        "OrderedSegmenter: method must be a VNDPUNet or PUNet; got a BN3UNet",
    ),
    "features of another number": (
        lambda: OrderedSegmenter(OWN, 5)(IMAGES),
        "OrderedSegmenter: the backbone must give maps (2, num_features = 5, H, W); got (2, 4, 16, 16)",
    ),
    "images of other channels": (
        lambda: OrderedSegmenter(OWN, 4).predict(torch.zeros(2, 3, 8, 8)),
        "OrderedSegmenter: images must be floats (B, 1, H, W); got torch.float32 (2, 3, 8, 8)",
    ),
    "images of an array": (
        lambda: OrderedSegmenter(OWN, 4).predict(IMAGES.numpy()),  # type: ignore[arg-type]
        "OrderedSegmenter: images must be floats (B, 1, H, W); got a ndarray",
    ),
    "images of nan": (
        lambda: OrderedSegmenter(OWN, 4).loss(IMAGES / 0, IMAGES[:, 0]),
        "OrderedSegmenter: images must be finite; got nan … nan",
    ),
    "a prior that gives a tensor": (
        lambda: OrderedSegmenter(OWN, 4, prior=torch.nn.Flatten()).predict(IMAGES),
        "OrderedSegmenter: prior must give a dict of loc (2, 6), log_variance (2, 6), keep_logits (2, 4); "
        "got a tensor of shape (2, 256)",
    ),
    "masks of no image": (
        lambda: OrderedSegmenter(OWN, 4).loss(IMAGES, []),
        "loss: masks must be (B, H, W), (B, graders, H, W) or a list of (graders, H, W); got none",
    ),
    "masks of other images": (
        lambda: OrderedSegmenter(OWN, 4).loss(IMAGES, torch.zeros(2, 8, 16)),
        "OrderedSegmenter: masks must be of the 2 images, of 16×16; got (2, 8, 16) of one grader each",
    ),
    "a mask of a class that there is not": (
        lambda: OrderedSegmenter(OWN, 4, num_classes=3).loss(
            IMAGES, torch.arange(2.0)[:, None, None] * 3 + IMAGES[:, 0]
        ),
        "OrderedSegmenter: masks must be whole numbers in 0 … 2; image 1 has 3",
    ),
    "an image without a grader": (
        lambda: OrderedSegmenter(OWN, 4).loss(IMAGES, [torch.zeros(2, 16, 16), torch.zeros(0, 16, 16)]),
        "loss: masks of an image must be (graders, H, W), all of one size, with at least one grader; "
        "those of image 1 are (0, 16, 16)",
    ),
    "no samples": (
        lambda: OrderedSegmenter(OWN, 4).predict(IMAGES, 0),
        "predict: samples must be a whole number of at least 1; got 0",
    ),
    "a length below the base": (
        lambda: OrderedSegmenter(OWN, 4).predict(IMAGES, length=1),
        "predict: length must be a whole number in 2 … 6, 'drawn' or None; got 1",
    ),
    "a length of a latent that has one": (
        lambda: OrderedSegmenter(OWN, 4, method=PUNet()).predict(IMAGES, length=2),
        "predict: length must be None where latents have one length; got 2",
    ),
    "an evaluation of a length below the base": (
        lambda: evaluate(OrderedSegmenter(OWN, 4), [(IMAGES, IMAGES[:, 0])], widths=1),
        "evaluate: widths of this latent must be shares in (0, 1], lengths in 2 … 6, or 'drawn'; got 1",
    ),
    "an evaluation of masks that there are not": (
        lambda: evaluate(OrderedSegmenter(OWN, 4), [(IMAGES, IMAGES[:, 0] + 255)]),
        "evaluate: batch 0: OrderedSegmenter: masks must be whole numbers in 0 … 1; image 0 has 255",
    ),
    "an evaluation by so many draws": (
        lambda: evaluate(OrderedSegmenter(OWN, 4), [(IMAGES, IMAGES[:, 0])], samples=4),
        "evaluate: a network that segments takes widths alone; got samples, ood or recalibrate",
    ),
    "masks of a width of a latent": (
        lambda: predict_masks(OrderedSegmenter(OWN, 4), IMAGES, width=0.5),
        "predict_masks: this network draws latents and has no widths; give its predict a length",
    ),
    "noise of no kind": (
        lambda: predict_masks(OWN, IMAGES, noise="none"),  # type: ignore[arg-type]
        "predict_masks: noise must be 'weights' or 'pixels'; got 'none'",
    ),
    "noise of a latent": (
        lambda: predict_masks(OrderedSegmenter(OWN, 4), IMAGES, noise="pixels"),
        "predict_masks: this network draws latents, not weights, and has no noise of pixels",
    ),
    "masks of a classifier": (
        lambda: predict_masks(ConvNet(), torch.zeros(2, 1, 28, 28)),
        "predict_masks: net must give logits (B, K, H, W); got (2, 10)",
    ),
    "an ensemble with dropout": (
        lambda: UNetEnsemble().build(UNet(channels=(4,), dropout=0.5), IMAGES),
        "network.dropout must be 0 for unet_ensemble; got 0.5",
    ),
    # Sizes, steps and answers
    "a size that is no share of a code": (
        lambda: VNDAE().length(codes.model_of(VNDAE()), Size("learned", "≤ 10 k", None)),
        "sizes of a code are shares of its length; got '≤ 10 k', which is none",
    ),
    "a code at a number of sizes": (
        lambda: VNDAE().sizes(codes.model_of(VNDAE()), Sizes(fractions=(), learned=3)),
        "sizes of an ordered code are fractions of its length; give fractions",
    ),
    "a latent at a number of sizes": (
        lambda: VNDPUNet().sizes(masks.model_of(VNDPUNet()), Sizes(fractions=(), learned=3)),
        "sizes of an ordered latent are fractions of its length; give fractions",
    ),
    "more draws than images": (
        lambda: BN3(num_groups=4, draws=13).loss(
            classes.model_of(BN3(num_groups=4, draws=13)), classes.batch(), classes.step()
        ),
        "method.draws must be at most the images of a batch, 12; got 13",
    ),
    "a cloud of one code": (
        lambda: SWAE().loss(codes.model_of(SWAE()), (codes.dots(1), torch.zeros(1)), codes.at()),
        "swae: train.batch must be at least 2, a cloud of codes; got 1",
    ),
    "a code from no prior": (
        lambda: NestedAE().draw(codes.model_of(NestedAE()), 3),
        "nested_ae: its codes have no prior to draw from; use vnd_ae to generate images",
    ),
    "a code from a log-uniform prior": (
        lambda: VNDAE(prior="log_uniform").draw(codes.model_of(VNDAE()), 3),
        "vnd_ae: nothing can be drawn from a log-uniform prior; train with method.prior normal",
    ),
    "classes of a code": (
        lambda: VNDAE().predict(codes.model_of(VNDAE()), codes.dots(3), 0),
        "an auto-encoder predicts no classes; use vnd evaluate and vnd generate",
    ),
    "classes of masks": (
        lambda: BN3UNet().predict(nn.Identity(), torch.zeros(1), 1),
        "a segmenting method predicts no classes; use vnd evaluate and vnd segment",
    ),
    # Clouds
    **{name: clouds(squared_mmd, *shapes) for name, shapes in CLOUDS.items()},
    "clouds of other spaces": clouds(median_distance, (5, 4, 3), (5, 4, 2)),
    "no kernel": mmd([]),
    "a kernel of no width": mmd([1.0, 0.0]),
    "a kernel of nan": mmd([math.nan]),
    "a kernel without end": mmd([math.inf]),
    "a scale of other examples": (
        lambda: squared_mmd(torch.zeros(2, 4, 3), torch.zeros(2, 4, 3), scale=torch.ones(3)),
        "squared_mmd: scale must have the shape (4,) of the examples, or be one number; got shape (3,)",
    ),
}


@table(CASES)
def test_bad_input_is_refused_in_one_line(call: Callable[[], object], words: str) -> None:
    assert refused(call, words) == words


@pytest.mark.parametrize(
    ("entries", "name", "given"),
    [
        (codes, "vae", (codes.dots(3), torch.zeros(3))),
        (masks, "punet", masks.shapes()),
        (masks, "unet_ensemble", masks.shapes()),
    ],
)
def test_several_processes_are_refused(entries: Any, name: str, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    method = entries.SMALL[name]
    model = entries.model_of(method)
    method.prepare(model, given, entries.at(), lambda value: value)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    who = {"vae": "auto-encoders", "punet": "probabilistic UNets", "unet_ensemble": "ensembles of UNets"}[name]
    words = f"{who} are trained in one process; start vnd train without a launcher"
    assert refused(lambda: method.prepare(model, given, entries.at(), lambda value: value), words) == words
