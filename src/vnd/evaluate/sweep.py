"""One trained network at many sizes: what each costs, how often it is right, and whether it knows when it is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vnd import metrics
from vnd.data.batches import Normalise, Passes, in_order
from vnd.data.images import Images
from vnd.evaluate.scores import scores
from vnd.methods import Method, Size, Sizes
from vnd.methods.temperature_scaling import fit_temperature, scaled
from vnd.nn import BayesLayer
from vnd.nn.plan import Shape, unwrap
from vnd.nn.profile import latency
from vnd.nn.width import sample_shapes

Inference = Literal["mc", "mean", "mc_mask", "temperature_scaled"]
BestOrLast = Literal["best", "last"]


@dataclass(frozen=True)
class Sweep:
    """What is evaluated.

    Args:
        sizes: The sizes that the network is run at.
        samples: Draws of the weights a prediction averages over; 0 for their means.
        inference: How the network predicts, the main way first. "mc": an average over draws of the weights; "mean":
            their means alone, in one pass (DT-BN³); "mc_mask": an average over random masks, each with a draw of the
            weights, as in training (BN³-MC); "temperature_scaled": as "mc", with a temperature for each size that is
            fitted on the validation images (FN³-TS).
        repeats: Evaluations, each with other draws of the weights and other images for BatchNorm's statistics.
        bn_images: Training images that BatchNorm's statistics are collected from, for each size; 0 for all.
        augmented: Those images are augmented as in training. None for where they were mixed (CutMix): a nested network
            that was trained on batches with mixed images in them knows other statistics than those of images as they
            are.
        bn_images_sweep: Further numbers of such images that the main reading is evaluated with; 0 for all.
        ood: A data set that the network should be unsure about; None for none.
        ood_folder: Where its official files lie; None for the data root.
        bins: Of the calibration error.
        risk: Share of wrong answers that is allowed among those that a network gives and does not withhold.
        checkpoint: The network with the "best" validation accuracy, or the "last": where a price that rises in training
            prunes the network, the best one is an early one.
        num_generated: Images that an auto-encoder draws at each length, to be held against test images; 0 for none.
        inception: File with the weights of FID's Inception; None for EfficientNet-Lite0, and then it is no FID.
        target: Mean squared error that the shortest codes are sought for; None for the one at half the length.
        num_mask_samples: Numbers of masks that are drawn for an image and held against its graders', from few to many.
    """

    sizes: Sizes = field(default_factory=Sizes)
    samples: int = 6
    inference: tuple[Inference, ...] = ("mc",)
    repeats: int = 1
    bn_images: int = 1024
    augmented: bool | None = None
    bn_images_sweep: tuple[int, ...] = ()
    ood: str | None = None
    ood_folder: str | None = None
    bins: int = 15
    risk: float = 0.05
    checkpoint: BestOrLast = "best"
    num_generated: int = 10_000
    inception: str | None = None
    target: float | None = None
    num_mask_samples: tuple[int, ...] = (1, 4, 8, 16)

    def __post_init__(self) -> None:
        if self.target is not None and not self.target > 0:
            raise ValueError(f"target must be greater than 0; got {self.target}")
        for name, least in (("samples", 0), ("bins", 1), ("repeats", 1), ("num_generated", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")
        for name, count in (
            ("bn_images", self.bn_images),
            *(("bn_images_sweep", count) for count in self.bn_images_sweep),
        ):
            if count < 0 or count == 1:
                raise ValueError(f"{name} must be at least 2 images, or 0 for all; got {count}")
        if not self.inference or set(self.inference) - set(get_args(Inference)):
            raise ValueError(f"inference must be some of {', '.join(get_args(Inference))}; got {list(self.inference)}")
        if self.inference[0] == "mc_mask":
            raise ValueError("inference must begin with one that has sizes, not mc_mask; got mc_mask first")
        if (
            not self.num_mask_samples
            or self.num_mask_samples[0] < 1
            or list(self.num_mask_samples) != sorted(set(self.num_mask_samples))
        ):
            raise ValueError(
                f"num_mask_samples must be numbers of masks that rise from 1 or more; got {list(self.num_mask_samples)}"
            )
        if not 0 < self.risk < 1:
            raise ValueError(f"risk must lie in (0, 1); got {self.risk}")


@dataclass(frozen=True)
class Subject:
    """A trained network, and what it takes to run it.

    Args:
        method: What it was made and trained by.
        model: The network, in evaluation mode.
        normalise: From pixels to what it is fed.
        statistics: Batches of training images that BatchNorm's statistics are collected from: so many images, and other
            ones in each repeat. None where the network is calibrated already.
        available: Number of training images; None where that is not known.
    """

    method: Method
    model: nn.Module
    normalise: Normalise
    statistics: Callable[[int, int], Iterable[Tensor]] | None = None
    available: int | None = None

    def images(self, wanted: int) -> int:
        """How many images the statistics are collected from where so many are wanted, 0 for all."""
        return wanted if self.available is None else min(wanted or self.available, self.available)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.parameters()).device

    def cut(self, size: Size, samples: int, bn_images: int, repeat: int) -> nn.Module:
        """The network of a size, calibrated as if it were the only one."""
        if self.statistics is not None:
            batches = self.statistics
            with repeatable(repeat):
                self.method.recalibrate(
                    self.model, lambda: batches(bn_images, repeat), [size.width], samples=samples > 0
                )
        return self.method.cut(self.model, size.width, samples)

    def batches(self, images: Images) -> Iterator[Tensor]:
        """The images of a split in their order, as the network is fed."""
        return in_order(images, self.normalise, self.device)


@dataclass(frozen=True)
class Answers:
    """What a network says of a set, (images, classes) and (images,), on the CPU."""

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor


@dataclass(frozen=True)
class Measured:
    """A row of a sweep, and the answers that it was made of: of the test images, and of those out of domain."""

    row: dict[str, Any]
    size: Size
    said: Answers
    outside: Answers | None


@contextmanager
def repeatable(seed: int = 0) -> Iterator[None]:
    """Draw the same numbers as the last time; the global generators are left as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def answer(method: Method, network: nn.Module, batches: Iterable[Tensor], samples: int, seed: int = 0) -> Answers:
    """Predict all batches by what `method.cut` gave, with the same draws each time."""
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the faster layout
    with repeatable(seed):
        found = [method.predict(network, x, samples) for x in batches]
    return Answers(
        torch.cat([p.probs for p in found]).cpu(),
        torch.cat([torch.as_tensor(p.entropy) for p in found]).cpu(),
        torch.cat([torch.as_tensor(p.mutual_information) for p in found]).cpu(),
    )


def accuracy_of(
    method: Method, model: nn.Module, size: Size, images: Images, normalise: Normalise, samples: int
) -> float:
    """Share of a split that a size of a calibrated network is right about."""
    subject = Subject(method, model, normalise)
    said = answer(method, subject.cut(size, samples, 0, 0), subject.batches(images), samples)
    return float(metrics.accuracy(said.probs, torch.as_tensor(images.labels)))


def row_of(method: Method, small: nn.Module, size: Size, example: Tensor) -> dict[str, Any]:
    """What a size is and costs: of the network that was extracted, and its time for one image here and now."""
    return {
        "kind": size.kind,
        "label": size.label,
        "fraction": size.fraction,
        "shape": dict(size.width) if isinstance(size.width, Shape) else None,
        **method.cost(small, example),
        "latency_ms": latency(small, example_input=example),
    }


def sweep(
    subject: Subject, options: Sweep, test: Images, outside: Images | None = None, validation: Images | None = None
) -> Iterator[Measured]:
    """Evaluate a network at every size, in every reading, as often as asked; one at a time, so that a bar can move.

    Args:
        subject: The network.
        options: Which sizes, which ways of inference.
        test: The images that it should know, with labels.
        outside: Images out of its domain, as large and with as many channels.
        validation: Images with labels that the temperature of "temperature_scaled" is fitted on.
    """
    check_inference(subject.model, options)
    if test.labels is None:
        raise ValueError("evaluate: the test images have no labels to be right about; give a set that has")
    run = _Run(subject, options, test, outside, validation)
    first, *others = dict.fromkeys(subject.images(count) for count in (options.bn_images, *options.bn_images_sweep))
    for repeat in range(options.repeats):
        for size in subject.method.sizes(subject.model, options.sizes):
            yield from run.read(size, options.inference, first, repeat)
            for count in others:
                yield from run.read(size, options.inference[:1], count, repeat)
        if "mc_mask" in options.inference:
            yield run.read_masks(first, repeat)


def check_inference(model: nn.Module, options: Sweep) -> None:
    """Refuse ways of inference that a network cannot have."""
    if "mc_mask" in options.inference and not hasattr(unwrap(model), "_vnd_plan"):
        raise ValueError(
            "inference: mc_mask needs a nested network, whose masks can be drawn; leave it out for this method"
        )


class _Run:
    """What all measurements of a sweep have in common: the images, which go to the device once, and the costs."""

    def __init__(
        self, subject: Subject, options: Sweep, test: Images, outside: Images | None, validation: Images | None
    ) -> None:
        def passes(images: Images) -> Passes:
            return Passes(images, subject.normalise, subject.device)

        self.subject, self.options = subject, options
        self.test = passes(test)
        self.outside = None if outside is None else passes(outside)
        self.validation = None if validation is None else passes(validation)
        self.labels = torch.as_tensor(test.labels)
        self.known = None if validation is None else torch.as_tensor(validation.labels)
        self.example = next(iter(in_order(test, subject.normalise, subject.device, batch=1)))
        self.costs: dict[Size, dict[str, Any]] = {}

    def read(self, size: Size, wanted: Sequence[Inference], bn_images: int, repeat: int) -> Iterator[Measured]:
        """One size in the ways of inference that are wanted of it."""
        for reading in dict.fromkeys(
            "mc" if one == "temperature_scaled" else one for one in wanted if one != "mc_mask"
        ):
            yield from self._read(size, reading, wanted, bn_images, repeat)

    def _read(
        self, size: Size, reading: Inference, wanted: Sequence[Inference], bn_images: int, repeat: int
    ) -> Iterator[Measured]:
        """One size with samples or means, as such and scaled."""
        samples = 0 if reading == "mean" else self.options.samples
        network = self.subject.cut(size, samples, bn_images, repeat)
        cost = self._cost(size, network)
        start = time.perf_counter()
        said = self._answer(network, self.test, samples, repeat)
        seconds = time.perf_counter() - start
        strange = None if self.outside is None else self._answer(network, self.outside, samples, repeat)
        about = {"repeat": repeat, "bn_images": bn_images, **cost, "test_seconds": seconds}
        if reading in wanted:
            yield self._measured({"inference": reading, **about}, size, said, strange)
        if reading == "mc" and "temperature_scaled" in wanted:
            if self.validation is None or self.known is None:
                raise ValueError(
                    "inference: temperature_scaled needs validation images to fit a temperature on; got none"
                )
            known = self._answer(network, self.validation, samples, repeat)
            temperature = fit_temperature(known.probs, self.known)
            about |= {"temperature": temperature}
            strange = None if strange is None else at_temperature(strange, temperature)
            yield self._measured(
                {"inference": "temperature_scaled", **about}, size, at_temperature(said, temperature), strange
            )

    def read_masks(self, bn_images: int, repeat: int) -> Measured:
        """An average over networks of random masks, as many as there are samples."""
        method, options = self.subject.method, self.options
        size = Size("sampled", "random masks", None)
        shapes = sample_shapes(self.subject.model, max(1, options.samples), seed=repeat)
        said, strange, costs, seconds = list[Answers](), list[Answers](), list[dict[str, int]](), 0.0
        for index, shape in enumerate(shapes):
            one = min(1, options.samples)
            network = self.subject.cut(Size("sampled", "", shape), one, bn_images, repeat)
            seed = repeat * len(shapes) + index  # another draw of the weights for each
            start = time.perf_counter()
            said.append(self._answer(network, self.test, one, seed))
            seconds += time.perf_counter() - start
            if self.outside is not None:
                strange.append(self._answer(network, self.outside, one, seed))
            costs.append(method.cost(method.extract(self.subject.model, shape), self.example))
        sizes = torch.tensor([cost["parameters"] for cost in costs]).double()
        row = {
            "inference": "mc_mask",
            "repeat": repeat,
            "bn_images": bn_images,
            "kind": size.kind,
            "label": size.label,
            "fraction": None,
            "shape": None,
            **{key: round(sum(cost[key] for cost in costs) / len(costs)) for key in costs[0]},
            "usage_std": float(sizes.std(correction=0)),
            "test_seconds": seconds,
        }
        return self._measured(row, size, _mixed(said), _mixed(strange) if strange else None)

    def _cost(self, size: Size, network: nn.Module) -> dict[str, Any]:
        """What a size costs, measured once; by the network that was cut, where that is a plain one."""
        if size not in self.costs:
            is_plain = not any(isinstance(module, BayesLayer) for module in network.modules())
            own = network if is_plain else self.subject.method.extract(self.subject.model, size.width)
            self.costs[size] = row_of(self.subject.method, own, size, self.example)
        return self.costs[size]

    def _answer(self, network: nn.Module, images: Passes, samples: int, seed: int) -> Answers:
        return answer(self.subject.method, network, images, samples, seed)

    def _measured(self, row: dict[str, Any], size: Size, said: Answers, strange: Answers | None) -> Measured:
        pair = None if strange is None else (said.entropy, strange.entropy)
        measured = scores(said.probs, said.entropy, self.labels, self.options.bins, pair)
        return Measured(row | measured, size, said, strange)


def at_temperature(said: Answers, temperature: float) -> Answers:
    """Answers of another temperature; the information between draws is that of the unscaled ones."""
    probs = scaled(said.probs, temperature)
    return Answers(probs, torch.special.entr(probs).sum(1), said.mutual_information)


def _mixed(said: list[Answers]) -> Answers:
    """The average of several networks' answers; what its entropy exceeds theirs by is the information between them."""
    probs = torch.stack([one.probs for one in said]).mean(0)
    entropy: Tensor = torch.special.entr(probs).sum(1)
    inner = torch.stack([one.entropy - one.mutual_information for one in said]).mean(0)
    return Answers(probs, entropy, (entropy - inner).clamp(min=0.0))
