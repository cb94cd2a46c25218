r"""Classification: what each size costs, how often it is right, and whether it knows when it is not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from vnd import metrics
from vnd._text import short
from vnd.data.batches import Normalise, Passes, in_order
from vnd.data.images import Images
from vnd.data.registry import check_name
from vnd.methods import Method, Size
from vnd.methods.base import refuse_unless
from vnd.methods.classification_baselines import fit_temperature, scaled
from vnd.metrics.uncertainty import SCORES, score_vector
from vnd.models.autoencoder import CodedNetwork
from vnd.nn import BayesLayer, OrderingUnit, Prediction
from vnd.nn.arguments import class_dim, describe_value
from vnd.nn.correlation import UncertaintyCorrelation
from vnd.nn.extract import Keep
from vnd.nn.profile import TIMED, latency, profile
from vnd.nn.state import Shape, unwrap
from vnd.nn.width import sample_shapes
from vnd.tasks.base import (
    COSTS,
    PERCENT,
    SHAPED,
    Evaluation,
    Reading,
    Scores,
    Task,
    check_bn_images,
    detection,
    register,
    rows_table,
)
from vnd.tasks.trained import TrainedRun, repeatable

Inference = Literal["mc", "mean", "mc_mask", "temperature_scaled"]


@dataclass(frozen=True)
class ClassificationEvaluation(Evaluation):
    """Options of the evaluation of a classifier.

    Args:
        samples: Draws of the weights a prediction averages over; 0 for their means.
        inference: How the network predicts, the main way first. "mc": an average over draws of the weights; "mean":
            their means alone, in one pass (DT-BN³); "mc_mask": an average over random masks, each with a draw of the
            weights, as in training (BN³-MC); "temperature_scaled": as "mc", with a temperature for each size that is
            fitted on the validation images (FN³-TS).
        repeats: Evaluations, each with other draws of the weights and other images for BatchNorm's statistics.
        bn_images_sweep: Further numbers of such images that the main way of inference is evaluated with; 0 for all.
        ood: A data set that the network should be unsure about, by the name of a recipe's `data.name`; None for none.
        ood_folder: Where its official files lie; None for the data root.
        ood_options: Arguments of a function of one's own.
        bins: Of the calibration error.
        risk: Share of wrong answers that is allowed among those that a network gives and does not withhold.
    """

    samples: int = 6
    inference: tuple[Inference, ...] = ("mc",)
    repeats: int = 1
    bn_images_sweep: tuple[int, ...] = ()
    ood: str | None = None
    ood_folder: str | None = None
    ood_options: dict[str, Any] = field(default_factory=dict)
    bins: int = 15
    risk: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("samples", 0), ("bins", 1), ("repeats", 1)):
            refuse_unless(getattr(self, name) >= least, name, f"be at least {least}", getattr(self, name))
        check_bn_images("bn_images_sweep", *self.bn_images_sweep)
        ways, known = list(self.inference), get_args(Inference)
        refuse_unless(bool(ways) and {*ways} <= {*known}, "inference", f"be some of {', '.join(known)}", ways)
        sized = ways[0] != "mc_mask"
        refuse_unless(sized, "inference", "begin with one that has sizes, not mc_mask", "mc_mask first")
        if self.ood is not None:
            check_name("ood", self.ood, self.ood_folder, self.ood_options)
        refuse_unless(0 < self.risk < 1, "risk", "lie in (0, 1)", self.risk)


@dataclass(frozen=True)
class Answers:
    """Answers of a network to a set, (images, classes) and (images,), on the CPU."""

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor


@dataclass(frozen=True)
class Measured:
    """A row, and the answers that it was made of: of the test images, and of those out of domain."""

    row: dict[str, Any]
    size: Size
    said: Answers
    outside: Answers | None


def answer(method: Method, network: nn.Module, batches: Iterable[Tensor], samples: int, seed: int = 0) -> Answers:
    """Predict all batches by what `method.extract` gave, with the same draws each time."""
    return Pass(method, network, batches, samples, seed).answers()


class Pass:
    """A pass over all batches, which is under way on a GPU when this is made: in a stream of its own, beside others.

    There `score` gives a vector of the probabilities and their entropy, as `score_vector` does.
    """

    def __init__(
        self,
        method: Method,
        network: nn.Module,
        batches: Iterable[Tensor],
        samples: int,
        seed: int = 0,
        score: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.held = network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the faster
        like = next(network.parameters(), None)
        self.stream = _beside(like.device) if like is not None and like.is_cuda else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream), repeatable(seed):
            start = self._now()
            found = [method.predict(network, x, samples) for x in batches]
            entropy, information = ([torch.as_tensor(getattr(p, key)) for p in found] for key in UNSURE)
            parts = [torch.cat(part) for part in ([p.probs for p in found], entropy, information)]
            if self.stream is not None and score is not None:  # there, without waiting for the pass
                parts.append(score(parts[0], parts[1]))
            self.found = [part.to("cpu", non_blocking=self.stream is not None) for part in parts]
            self.ends = start, self._now()

    def answers(self) -> Answers:
        """The answers, once they are there."""
        if self.stream is not None:
            self.stream.synchronize()
        self.held = None  # what other streams may write to again
        return Answers(*self.found[:3])

    def scores(self, *options: Any) -> dict[str, float]:
        """The scores of the answers: those of the device, if it has given any, or `scores` of these options."""
        said = self.answers()
        if len(self.found) > 3 and self.found[3][-1] == 1:  # 0 for what a CPU refuses in words
            return dict(zip(SCORES, self.found[3].tolist(), strict=False))
        return scores(said.probs, said.entropy, *options)

    @property
    def seconds(self) -> float:
        """Time that it took, once the answers are there."""
        start, end = self.ends
        return end - start if self.stream is None else start.elapsed_time(end) / 1e3  # type: ignore[no-any-return]

    def _now(self) -> Any:
        """The time; of a stream an event that it has yet to come to."""
        if self.stream is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


UNSURE = ("entropy", "mutual_information")


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """The stream of a GPU that passes run in: always the same one, so that its memory is used again."""
    return torch.cuda.Stream(device)


def accuracy_of(
    method: Method, model: nn.Module, size: Size, images: Images, normalise: Normalise, samples: int
) -> float:
    """Share of a split that a size of a recalibrated network is right about."""
    network = method.extract(model, size.width, "posterior" if samples else "mean")
    said = answer(method, network, in_order(images, normalise, next(model.parameters()).device), samples)
    return float(metrics.accuracy(said.probs, torch.as_tensor(images.labels)))


def row_of(method: Method, small: nn.Module, size: Size, example: Tensor) -> dict[str, Any]:
    """Describe a size and its cost: of the network that was extracted, with its time for one image here and now."""
    cost = method.cost(small, example)  # first, for a GPU can still be at other work
    return {**_about(size), **cost, "latency_ms": latency(small, example_input=example, repeats=TIMED)}


def _about(size: Size) -> dict[str, Any]:
    shape = dict(size.width) if isinstance(size.width, Shape) else None
    return {"kind": size.kind, "label": size.label, "fraction": size.fraction, "shape": shape}


def measure(
    run: TrainedRun,
    options: ClassificationEvaluation,
    test: Images,
    outside: Images | None = None,
    validation: Images | None = None,
) -> Iterator[Measured]:
    """Evaluate a network at every size, by every way of inference, as often as asked; one at a time, for a bar.

    Images of the test have labels; those outside of its domain are as large and have as many channels. The temperature
    of "temperature_scaled" is fitted on validation images with labels.
    """
    check_inference(run.model, options)
    if test.labels is None:
        raise ValueError("evaluate: the test images have no labels to be right about; give a set that has")
    measurements = _Measurements(run, options, test, outside, validation)
    return _one_ahead(measurements.all()) if run.device.type == "cuda" else (one() for one in measurements.all())


def _one_ahead(begun: Iterator[Callable[[], Measured]]) -> Iterator[Measured]:
    """Measurements that were begun, each read when the next one has begun: a GPU runs that while this one is scored."""
    before = next(begun, None)
    for one in begun:
        assert before is not None  # or there would be no next one
        yield before()
        before = one
    if before is not None:
        yield before()


def check_inference(model: nn.Module, options: ClassificationEvaluation) -> None:
    """Refuse ways of inference that a network cannot have."""
    if "mc_mask" in options.inference and not hasattr(unwrap(model), "_vnd_state"):
        raise ValueError(
            "inference: mc_mask needs a nested network, whose masks can be drawn; leave it out for this method"
        )


class _Measurements:
    """Images, which go to the device once, and costs that all measurements have in common."""

    def __init__(
        self,
        run: TrainedRun,
        options: ClassificationEvaluation,
        test: Images,
        outside: Images | None,
        validation: Images | None,
    ) -> None:
        def passes(images: Images) -> Passes:
            return Passes(images, run.normalise, run.device)

        self.run, self.options = run, options
        self.test = passes(test)
        self.outside = None if outside is None else passes(outside)
        self.validation = None if validation is None else passes(validation)
        self.labels = torch.as_tensor(test.labels)
        there = self.labels.to(run.device)
        self.score = lambda probs, entropy: score_vector(probs, there, entropy, options.bins)
        self.example = next(iter(in_order(test, run.normalise, run.device, batch=1)))
        self.costs: dict[Size, dict[str, Any]] = {}

    def all(self) -> Iterator[Callable[[], Measured]]:
        """All that is wanted, one after the other; see `read`."""
        run, options = self.run, self.options
        first, *others = dict.fromkeys(run.bn_images(count) for count in (options.bn_images, *options.bn_images_sweep))
        for repeat in range(options.repeats):
            for size in run.method.sizes(run.model, options.sizes):
                yield from self.read(size, options.inference, first, repeat)
                for count in others:
                    yield from self.read(size, options.inference[:1], count, repeat)
            if "mc_mask" in options.inference:
                yield partial(self.read_masks, first, repeat)

    def read(
        self, size: Size, wanted: Sequence[Inference], bn_images: int, repeat: int
    ) -> Iterator[Callable[[], Measured]]:
        """One size in the ways of inference that are wanted of it: with samples or means, as such and scaled.

        Each is given as soon as its passes have begun, as a function that waits for them and scores them.
        """
        for way in dict.fromkeys("mc" if one == "temperature_scaled" else one for one in wanted if one != "mc_mask"):
            samples = 0 if way == "mean" else self.options.samples
            network = self.run.extract(size, "posterior" if samples else "mean", bn_images, repeat)
            cost = self._cost(size, network)
            said = self._pass(network, self.test, samples, repeat, self.score)
            strange = None if self.outside is None else self._pass(network, self.outside, samples, repeat)
            about = {"repeat": repeat, "bn_images": bn_images, **cost}
            if way in wanted:
                yield partial(self._measured, {"inference": way, **about}, size, said, strange)
            if way == "mc" and "temperature_scaled" in wanted:
                if self.validation is None:
                    none = "needs validation images to fit a temperature on; got none"
                    raise ValueError(f"inference: temperature_scaled {none}")
                known = self._pass(network, self.validation, samples, repeat)
                yield partial(self._scaled, about, size, said, strange, known)

    def read_masks(self, bn_images: int, repeat: int) -> Measured:
        """An average over networks of random masks, as many as there are samples."""
        method, options = self.run.method, self.options
        size = Size("sampled", "random masks", None)
        shapes = sample_shapes(self.run.model, max(1, options.samples), seed=repeat)
        said, strange, costs, seconds = list[Answers](), list[Answers](), list[dict[str, int]](), 0.0
        for index, shape in enumerate(shapes):
            one = min(1, options.samples)
            network = self.run.extract(Size("sampled", "", shape), "posterior" if one else "mean", bn_images, repeat)
            seed = repeat * len(shapes) + index  # another draw of the weights for each
            run = self._pass(network, self.test, one, seed)
            said.append(run.answers())
            seconds += run.seconds
            if self.outside is not None:
                strange.append(self._pass(network, self.outside, one, seed).answers())
            costs.append(method.cost(method.extract(self.run.model, shape), self.example))
        sizes = torch.tensor([cost["parameters"] for cost in costs]).double()
        row = {
            **{"inference": "mc_mask", "repeat": repeat, "bn_images": bn_images},
            **_about(size),
            **{key: round(sum(cost[key] for cost in costs) / len(costs)) for key in costs[0]},
            "usage_std": float(sizes.std(correction=0)),
            "test_seconds": seconds,
        }
        return self._scored(row, size, _mixed(said), _mixed(strange) if strange else None)

    def _cost(self, size: Size, network: nn.Module) -> dict[str, Any]:
        """Cost of a size, measured once; by the network that was cut, where that is a plain one."""
        if size not in self.costs:
            is_plain = not any(isinstance(module, BayesLayer) for module in network.modules())
            own = network if is_plain else self.run.method.extract(self.run.model, size.width)
            self.costs[size] = row_of(self.run.method, own, size, self.example)
        return self.costs[size]

    def _pass(self, network: nn.Module, images: Passes, samples: int, seed: int, score: Any = None) -> Pass:
        return Pass(self.run.method, network, images, samples, seed, score)

    def _measured(self, row: dict[str, Any], size: Size, said: Pass, strange: Pass | None) -> Measured:
        answers, outside = said.answers(), None if strange is None else strange.answers()
        found = {"test_seconds": said.seconds} | said.scores(self.labels, self.options.bins)
        if outside is not None:
            found |= {name: float(x) for name, x in detection(answers.entropy, outside.entropy).items()}
        return Measured(row | found, size, answers, outside)

    def _scaled(self, row: dict[str, Any], size: Size, said: Pass, strange: Pass | None, known: Pass) -> Measured:
        assert self.validation is not None  # `read` had it predicted
        temperature = fit_temperature(known.answers().probs, torch.as_tensor(self.validation.images.labels))
        answers = at_temperature(said.answers(), temperature)
        outside = None if strange is None else at_temperature(strange.answers(), temperature)
        row = row | {"test_seconds": said.seconds, "inference": "temperature_scaled", "temperature": temperature}
        return self._scored(row, size, answers, outside)

    def _scored(self, row: dict[str, Any], size: Size, said: Answers, strange: Answers | None) -> Measured:
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


def scores(
    probs: Tensor, entropy: Tensor, labels: Tensor, bins: int, domains: tuple[Tensor, Tensor] | None = None
) -> dict[str, float]:
    """Accuracy, likelihood and calibration of answers (N, C), with their entropy (N,), to images of these labels (N,).

    What the entropy is worth is measured on `domains`, entropies of images in and out of domain, if there are such.
    """
    measured = metrics.classification_scores(probs, labels, entropy, bins)
    return measured if domains is None else measured | {name: float(x) for name, x in detection(*domains).items()}


LEFT_OUT = -100  # as torch has it: the label of what nobody is to be right about, such as padding


class ClassScores(Scores):
    """`scores` of a network that gives classes of examples, (B, C), or of their parts, as of tokens (B, T, C)."""

    def __init__(self, reading: Reading, bins: int) -> None:
        self.reading, self.bins = reading, bins
        self.probs, self.entropy, self.labels = list[Tensor](), list[Tensor](), list[Tensor]()
        self.parts = False  # whether rows are parts of examples, which are not independent of each other

    def add(self, prediction: Prediction, target: Tensor) -> None:
        """Count a batch."""
        probs, entropy = prediction.probs, torch.as_tensor(prediction.entropy)
        if self.reading.link == "sigmoid":
            probs = torch.stack((1 - probs, probs), -1).flatten(0, -2)
        else:
            self.parts |= probs.dim() > 2
            probs = probs.movedim(class_dim(tuple(probs.shape), self.reading.dim, "evaluate"), -1).flatten(0, -2)
        if self.reading.link != "sigmoid" and target.shape == prediction.probs.shape:
            if not is_one_hot(target):
                raise ValueError(
                    "labels must be whole numbers, or rows of zeros with a one; got shares or several classes"
                )
            target = target.argmax(1)
        if target.is_floating_point() and bool((target != target.round()).any()):
            raise ValueError("labels must be whole numbers; got shares of classes")
        labels = target.flatten().long().cpu()
        if len(labels) != len(probs):
            raise ValueError(f"labels must be {len(probs)}, as many as predictions; got {len(labels)}")
        known = labels != LEFT_OUT
        check_labels(labels[known], probs.size(1))
        for held, found in ((self.probs, probs), (self.entropy, entropy.flatten())):
            held.append(found.cpu()[known])
        self.labels.append(labels[known])

    def row(self) -> dict[str, Any]:
        """The scores, and of independent examples 95 % intervals of the accuracy and the log-likelihood."""
        probs, entropy, labels = torch.cat(self.probs), torch.cat(self.entropy), torch.cat(self.labels)
        if not len(labels):
            raise ValueError(f"labels must not all be {LEFT_OUT}, which leaves an example out")
        found: dict[str, Any] = scores(probs, entropy, labels, self.bins)
        if self.parts:
            return found
        wrong, count = int((probs.argmax(1) != labels).sum()), len(labels)
        of_labels = probs.double().gather(1, labels[:, None]).clamp_min(torch.finfo(torch.float64).tiny)
        nll = metrics.confidence_interval((-of_labels.log()[:, 0]).tolist())
        return found | {
            "accuracy_low": 1 - metrics.error_bound(wrong, count, 0.975),  # Clopper and Pearson's
            "accuracy_high": metrics.error_bound(count - wrong, count, 0.975),
            "nll_low": nll.low,
            "nll_high": nll.high,
        }


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no class."""
    if len(wrong := labels[(labels < 0) | (labels >= classes)]):
        raise ValueError(f"labels must lie in 0 … {classes - 1}, or be {LEFT_OUT} to be left out; got {wrong[0]}")


def is_binary(target: Tensor) -> bool:
    """Tell if labels are zeros and ones alone."""
    return not target.is_complex() and bool(((target == 0) | (target == 1)).all())


def is_one_hot(target: Tensor) -> bool:
    """Tell if labels are rows of zeros with a one."""
    return target.dim() == 2 and target.size(1) > 1 and is_binary(target) and bool((target.sum(1) == 1).all())


def is_shares(target: Tensor) -> bool:
    """Tell if labels are rows of numbers in 0 … 1 that sum to 1, or of zeros and ones, as of several classes each."""
    if target.dim() != 2 or target.size(1) < 2 or not target.is_floating_point() or not len(target):
        return False
    sums = target.double().sum(1)
    return is_binary(target) or bool((target >= 0).all() and ((sums - 1).abs() < 1e-3).all())


SHOWN = 8  # images of each kind
CLOSE = (0.0, 0.5, 1.0)  # sizes that are looked at closely: the smallest, the middle one, the largest
LEVELS = (0.25, 0.5, 1.0)  # those of a cascade; the smallest passes on too much to be worth its pass


def evaluate(
    run: TrainedRun,
    options: ClassificationEvaluation,
    test: Images,
    validation: Images,
    outside: Images | None = None,
    done: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure a network at its sizes; rows, reliability, trust, survival and examples, as numbers.

    Thresholds and temperatures are fitted on the validation images; `done` is called with each row.
    """
    bn_images = run.bn_images(options.bn_images)
    tidy: list[dict[str, Any]] = []
    main: dict[Size, Measured] = {}
    for measured in measure(run, options, test, outside, validation):
        tidy.append(measured.row)
        row = measured.row
        if (row["inference"], row["repeat"], row["bn_images"]) == (options.inference[0], 0, bn_images):
            main.setdefault(measured.size, measured)
        if done is not None:
            done(row)
    found = list(main.values())
    largest = max(reversed(found), key=lambda one: one.row["parameters"])
    units = {name: unit for name, unit in run.model.named_modules() if isinstance(unit, OrderingUnit)}
    labels = torch.as_tensor(test.labels)
    close, levels = (_spread_over(found, places) for places in (CLOSE, LEVELS))
    return {
        "samples": options.samples,
        "inference": list(options.inference),
        "ood": options.ood if outside is not None else None,
        "bn_images": bn_images,
        "rows": rows_of(tidy, options.inference[0], bn_images),
        "tidy": [{key: value for key, value in row.items() if key != "shape"} for row in tidy],
        "reliability": [_diagram(one, labels, options.bins) for one in close],
        "correlation": correlation(found),
        "selective": selective(
            [(one.row["label"], one.said, _of_validation(run, one, options, validation)) for one in close],
            labels, torch.as_tensor(validation.labels), options.risk,
        ),
        "cascade": cascade([(one.row, one.said) for one in found], [one.row["label"] for one in levels], labels),
        "survival": {name.removesuffix(".ordering"): unit.survival().tolist() for name, unit in units.items()},
        "groups": {name.removesuffix(".ordering"): unit.num_groups for name, unit in units.items()},
        "examples": _examples(test, outside, largest.said, largest.outside),
    }  # fmt: skip


def rows_of(tidy: list[dict[str, Any]], reading: str, bn_images: int) -> list[dict[str, Any]]:
    """One row a size: those of a way of inference, numbers averaged over the repeats."""
    repeats: dict[str, list[dict[str, Any]]] = {}
    for row in tidy:
        if (row["inference"], row["bn_images"]) == (reading, bn_images):
            repeats.setdefault(row["label"], []).append(row)
    return [
        {
            key: sum(row[key] for row in rows) / len(rows) if isinstance(x, float) and key != "fraction" else x
            for key, x in rows[0].items()
            if key not in ("inference", "repeat", "bn_images")
        }
        for rows in repeats.values()
    ]


def _spread_over(found: list[Measured], places: tuple[float, ...]) -> list[Measured]:
    """A few sizes of one kind, by their places from the smallest to the largest; learned ones if there are enough."""
    kinds = [[one for one in found if one.size.kind == kind] for kind in ("learned", "uniform")]
    chosen = next((own for own in kinds if len(own) >= len(places)), found)
    by_size = {one.row["parameters"]: one for one in sorted(chosen, key=lambda one: one.row["parameters"])}
    distinct = list(by_size.values())
    return [distinct[index] for index in dict.fromkeys(round(place * (len(distinct) - 1)) for place in places)]


def _diagram(one: Measured, labels: Tensor, bins: int) -> dict[str, Any]:
    drawn = metrics.reliability(one.said.probs, labels, bins)
    return {
        "label": one.row["label"],
        **{name: _numbers(getattr(drawn, name)) for name in ("count", "confidence", "accuracy")},
    }


def _of_validation(run: TrainedRun, one: Measured, options: ClassificationEvaluation, validation: Images) -> Answers:
    """Answers of the network of a size to the validation images."""
    samples = 0 if one.row["inference"] == "mean" else options.samples
    network = run.extract(one.size, "posterior" if samples else "mean", one.row["bn_images"])
    said = answer(run.method, network, run.batches(validation), samples)
    return at_temperature(said, one.row["temperature"]) if one.row["inference"] == "temperature_scaled" else said


def correlation(found: list[Measured]) -> dict[str, Any] | None:
    """Pearson's between the entropies of uniform widths, from the narrowest to the widest."""
    widths = sorted((one for one in found if one.size.fraction is not None), key=lambda one: one.size.fraction or 0)
    if len(widths) < 2:
        return None
    inside = torch.stack([one.said.entropy for one in widths])
    strange = [one.outside.entropy for one in widths if one.outside is not None]
    labels = [one.row["label"] for one in widths]
    return UncertaintyCorrelation.of(labels, inside, torch.stack(strange) if strange else None).to_dict()


def _examples(test: Images, outside: Images | None, said: Answers, strange: Answers | None) -> dict[str, Any]:
    order = said.entropy.argsort()
    found = {
        "most_certain": _describe(test, said, order[:SHOWN]),
        "least_certain": _describe(test, said, order[-SHOWN:]),
    }
    if outside is not None and strange is not None:
        middle = strange.entropy.argsort()[:: max(1, len(outside) // SHOWN)][:SHOWN]  # from the surest to the least
        found["ood"] = _describe(outside, strange, middle, test.classes)
    return found


def _describe(images: Images, said: Answers, which: Tensor, classes: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    names = classes or images.classes
    described = []
    for index in which.tolist():
        pixels = images.pixels[index]
        confidence, best = said.probs[index].max(0)
        described.append(
            {
                "image": (pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).tolist(),
                "label": images.classes[int(images.labels[index])] if images.labels is not None else "",
                "prediction": names[int(best)],
                "confidence": float(confidence),
                "entropy": float(said.entropy[index]),
                "mutual_information": float(said.mutual_information[index]),
            }
        )
    return described


def _numbers(values: Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


POINTS = 100  # of a curve in a result file


def selective(found: list[tuple[str, Answers, Answers]], labels: Tensor, known: Tensor, risk: float) -> dict[str, Any]:
    """Answers below a threshold of entropy, fitted so that at most a share `risk` of them is wrong.

    Args:
        found: The label of a size, its answers on the test images and on those of validation.
        labels: Classes of the test images.
        known: Classes of the validation images, which the threshold is fitted on.
        risk: The share.
    """
    rows = []
    for label, said, fitted in found:
        threshold = metrics.threshold_for_risk(fitted.probs, known, fitted.entropy, risk)
        kept = metrics.selective(said.probs, labels, said.entropy, threshold)
        curve = metrics.risk_coverage(said.probs, labels, said.entropy)
        every = torch.linspace(0, len(curve.coverage) - 1, min(POINTS, len(curve.coverage))).round().long()
        rows.append(
            {
                "label": label,
                "threshold": threshold if math.isfinite(threshold) else None,
                "coverage": kept.coverage,
                "risk": kept.risk,
                "aurc": float(metrics.area_under_risk_coverage(said.probs, labels, said.entropy)),
                "curve": {"coverage": curve.coverage[every].tolist(), "risk": curve.risk[every].tolist()},
            }
        )
    return {"risk": risk, "rows": rows}


def cascade(found: list[tuple[dict[str, Any], Answers]], levels: list[str], labels: Tensor) -> dict[str, Any] | None:
    """Run the narrow network first, and a wider one where it is unsure: accuracy against multiply-accumulates.

    The networks of all sizes are found with their rows and their answers; those of some levels are run in turn.
    """
    chosen = [next(one for one in found if one[0]["label"] == level) for level in levels]
    if len(chosen) < 2:
        return None
    curve = metrics.cascade_curve(
        torch.stack([said.probs for _, said in chosen]),
        torch.stack([said.entropy for _, said in chosen]),
        torch.tensor([float(row["macs"]) for row, _ in chosen]),
        labels,
    )
    kinds = {row["kind"] for row, _ in chosen}
    alike = [row for row, _ in found if row["kind"] in kinds]
    parts = (curve.threshold.tolist(), curve.accuracy.tolist(), curve.cost.tolist(), curve.share.tolist())
    return {
        "levels": levels,
        "curve": [
            {"threshold": t if math.isfinite(t) else None, "accuracy": a, "macs": c, "share": s}
            for t, a, c, s in zip(*parts, strict=True)
        ],
        "single": [{key: row[key] for key in ("label", "accuracy", "macs")} for row in alike],
    }


TABLE: dict[str, tuple[str, Any]] = {  # key of a row → heading, and how a number is shown
    "parameters": ("parameters", lambda x: f"{x:,}"),
    "macs": ("MACs", short),
    "bytes": ("bytes", short),
    "latency_ms": ("latency", lambda x: f"{x:.2f} ms"),
    "accuracy": ("accuracy", lambda x: f"{100 * x:.2f} %"),
    "nll": ("NLL", lambda x: f"{x:.3f}"),
    "ece": ("ECE", lambda x: f"{x:.3f}"),
    "auroc": ("AUROC", lambda x: f"{x:.3f}"),
}


def sizes_table(rows: list[dict[str, Any]], title: str, chosen: str | None = None) -> Table:
    """One line a size; the chosen one is marked."""
    return rows_table(rows, {"width": lambda row: row["label"]}, TABLE, title, chosen=chosen)


COLUMNS: list[dict[str, Any]] = [
    *COSTS,
    {
        **{"key": "accuracy", "heading": "Accuracy", "better": "more", "title": "Accuracy", **PERCENT},
        **{"axis": "accuracy (% of images)", "headline": "Right most often", "scaled": False},
        "description": "The share of {split} images that are classified right. More is better.",
    },
    {
        **{"key": "ece", "heading": "ECE", "better": "less", "title": "Calibration error", **PERCENT},
        **{"axis": "calibration error, ECE (%)", "headline": "Most honest confidence"},
        "description": "Expected calibration error: how far, on average, the stated confidence is from the "
        "share of right answers. A network that is right on 90 of 100 images that it is “90 % sure” of has "
        "none. Less is better.",
    },
    {
        **{"key": "nll", "heading": "NLL (nats)", "better": "less", "title": "Negative log-likelihood"},
        **{"axis": "negative log-likelihood (nats)", "digits": 3},
        "description": "Negative log-likelihood: the price of wrong answers, the higher the surer they were. "
        "Less is better.",
    },
    {"key": "brier", "heading": "Brier", "digits": 3, "better": "less"},
    {
        **{"key": "auroc", "heading": "AUROC", "better": "more", "title": "Noticing unfamiliar images"},
        **{"axis": "AUROC, unfamiliar images (%)", "headline": "Notices unfamiliar images best", **PERCENT},
        "description": "Of an image of the kind it was trained on and an unfamiliar one, how often the network "
        "is less certain of the unfamiliar one. 50 % is chance. More is better.",
    },
    {
        **{"key": "aupr", "heading": "AUPR", "better": "more", "chance": "base_rate", **PERCENT},
        **{"title": "Noticing unfamiliar images: precision and recall", "axis": "AUPR, unfamiliar images (%)"},
        "description": "Of the images that are reported as unfamiliar, how many are, on average over all "
        "degrees of caution. What chance gives depends on the shares of the two kinds, the base rate. More is "
        "better.",
    },
    {"key": "base_rate", "heading": "AUPR by chance", **PERCENT},
]  # of its rows, as pages show them
AURC: dict[str, Any] = {
    **{"key": "aurc", "heading": "AURC", "better": "less", "title": "Risk of the surest answers", **PERCENT},
    **{"axis": "area under risk and coverage, AURC (%)"},
    "description": "The share of wrong answers among the surest, on average over all shares that are answered. Less is "
    "better.",
}


@register
class Classification(Task):
    """Classes of images."""

    name = "classification"
    kind, noun = "a classifier", "classifier"
    has_classes = True
    evaluation, options = ClassificationEvaluation, SHAPED
    scored = ("accuracy", lambda share: f"{100 * share:.2f} %")
    compare = ("data", "network")
    widths = ("method", ("fraction", "shape"))
    sections = (
        "summary",
        "curves",
        "efficiency",
        "times",
        "trust",
        "survival",
        "statistics",
        "correlation",
        "reliability",
        "examples",
        "numbers",
        "training",
        "theory",
    )
    columns = COLUMNS
    measures: ClassVar[list[dict[str, Any]]] = [*COLUMNS, AURC]
    not_extracted = ""
    hub_task = "image-classification"

    def reads(self, output: Tensor, target: Tensor, dim: int | None = None) -> Reading | None:
        """Classes (B, C), or of parts (B, T, C) and (B, C, T), beside whole numbers; one logit beside 0 and 1.

        Shares of classes are its labels, too, though it scores none: nobody shall take them for any other numbers.
        """
        if target.shape in (output.shape, output.shape[:1]) and output.numel() == len(output) and output.dim() < 3:
            return Reading("sigmoid") if is_binary(target) else None
        if output.dim() == 2 and target.shape == output.shape:
            return Reading("softmax", 1) if is_one_hot(target) or is_shares(target) else None
        if output.dim() not in (2, 3) or target.dtype == torch.bool or target.is_floating_point():
            return None
        places = [1, 2][: output.dim() - 1] if dim is None else [dim % output.dim()]
        fits = [one for one in places if one and (*output.shape[:one], *output.shape[one + 1 :]) == target.shape]
        if len(fits) > 1:
            shape = tuple(output.shape)
            raise ValueError(f"outputs of shape {shape} do not say where their classes are; pass dim=-1 or dim=1")
        return Reading("softmax", fits[0]) if fits and output.size(fits[0]) > 1 else None

    def scores(self, reading: Reading, bins: int) -> Scores:
        """Empty scores."""
        return ClassScores(reading, bins)

    def check_data(self, images: Images, recipe: Any) -> None:
        """Refuse images without labels, or of one class."""
        if images.labels is None:
            raise ValueError(
                f"data.name: {recipe.name} has no labels to learn; `vnd data list` shows which sets have classes"
            )
        if len(set(np.asarray(images.labels).tolist())) < 2:
            raise ValueError(
                f"data.name: all {len(images)} training images of {recipe.name} are of one class; need two"
            )

    def check_network(self, network: nn.Module, recipe: Any, images: Images) -> None:
        """Refuse an auto-encoder, and another number of classes."""
        if isinstance(network, CodedNetwork):
            raise ValueError(
                f"network.name: {recipe.network.name} is for methods that learn codes, such as vnd_ae; got the method "
                f"{recipe.method_name}"
            )
        check_classes(recipe, images)

    def check_answer(self, answer: Any, recipe: Any, images: Images) -> None:
        """Refuse an answer for each pixel, and one that is not a logit for each class."""
        name, classes = recipe.network.name, len(images.classes)
        if isinstance(answer, Tensor) and answer.ndim == 4:
            raise ValueError(
                f"network.name: {name} answers for each pixel, and {recipe.method_name} learns classes "
                "of images; use it with a method that segments, such as vnd_punet"
            )
        if not isinstance(answer, Tensor) or answer.shape != (2, classes):
            wanted = f"a logit for each of the {classes} classes of {recipe.data.name}, (2, {classes})"
            raise ValueError(f"network.name: {name} must answer two images with {wanted}; got {describe_value(answer)}")

    def check_model(self, model: nn.Module, options: ClassificationEvaluation) -> None:
        """Refuse ways of inference that it cannot have."""
        check_inference(model, options)

    def validate(self, method: Any, model: nn.Module, size: Size, images: Images, normalise: Normalise) -> float:
        """The accuracy, with posterior means."""
        return accuracy_of(method, model, size, images, normalise, samples=0)

    def score(self, mean: float) -> float:
        """The accuracy."""
        return mean

    def evaluate(
        self, run: TrainedRun, options: ClassificationEvaluation, test: Images, done: Callable[[int], None]
    ) -> dict[str, Any]:
        """Rows of sizes and ways of inference; `done` counts rows."""
        found = evaluate(run, options, test, run.splits.validation, run.outside(options), lambda row: done(1))
        return found | {"augmented": run.recipe.augmented(run.augmented)}

    def cut_row(self, run: TrainedRun, size: Size, small: nn.Module, keep: Keep, samples: int) -> dict[str, Any]:
        """Costs and scores."""
        test = run.test()
        example = next(iter(in_order(test, run.normalise, run.device, batch=1)))
        said = answer(run.method, small, run.batches(test), samples)
        row = row_of(run.method, run.method.extract(run.model, size.width), size, example)
        if keep != "mean":  # what is saved, which has log α too
            row |= asdict(profile(small, example_input=example)) | {"latency_ms": latency(small, example_input=example)}
        row |= scores(said.probs, said.entropy, torch.as_tensor(test.labels), run.recipe.evaluate.bins)
        return row | {"classes": list(test.classes)}

    def cut_table(self, row: dict[str, Any], title: str) -> Table:
        """As `vnd evaluate` prints one."""
        return sizes_table([row], title)

    def work(self, run: TrainedRun, options: ClassificationEvaluation, test: Images) -> int:
        """Rows."""
        masks = "mc_mask" in options.inference
        ways = len(options.inference) - masks + len(options.bn_images_sweep)
        return options.repeats * (len(run.method.sizes(run.model, options.sizes)) * ways + masks)

    def tables(self, results: dict[str, Any], split: str, options: ClassificationEvaluation) -> list[Table]:
        """One table a way of inference."""
        first = sizes_table(results["rows"], f"{results['title']}: {split}, {results['samples']} samples")
        others = {way: rows_of(results["tidy"], way, results["bn_images"]) for way in options.inference[1:]}
        return [first, *(sizes_table(rows, f"the same, read by {way}") for way, rows in others.items())]


def check_classes(recipe: Any, images: Images) -> None:
    """Refuse a network whose number of classes is not that of the images."""
    classes = recipe.network.config.get("num_classes")
    if classes is not None and classes != len(images.classes):
        raise ValueError(
            f"network.num_classes must be that of {recipe.data.name}, {len(images.classes)}; got {classes}"
        )
