"""One trained network at many sizes: what each costs, how often it is right, and whether it knows when it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vnd import metrics
from vnd.data.arrays import Images
from vnd.data.batches import Normalise, in_order
from vnd.methods import Method, Size, Sizes
from vnd.nn import profile
from vnd.nn.plan import Shape
from vnd.nn.profile import latency


@dataclass(frozen=True)
class Sweep:
    """What is evaluated.

    Args:
        sizes: The sizes that the network is run at.
        samples: Draws of the weights a prediction averages over; 0 for their means.
        calibration: Training images that BatchNorm's statistics are collected from, for each size.
        out_of_domain: A data set that the network should be unsure about; None for none.
        out_of_domain_folder: Where its official files lie; None for the data root.
        bins: Of the calibration error.
    """

    sizes: Sizes = field(default_factory=Sizes)
    samples: int = 6
    calibration: int = 1024
    out_of_domain: str | None = None
    out_of_domain_folder: str | None = None
    bins: int = 15

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("calibration", 2), ("bins", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}; got {getattr(self, name)}")


@dataclass(frozen=True)
class Answers:
    """What a network says of a set, (images, classes) and (images,), on the CPU."""

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor


@contextmanager
def repeatable() -> Iterator[None]:
    """Draw the same numbers as the last time; the global generators are left as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield


def answer(method: Method, network: nn.Module, batches: Iterable[Tensor], samples: int) -> Answers:
    """Predict all batches by what `method.cut` gave, with the same draws each time."""
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the faster layout
    with repeatable():
        found = [method.predict(network, x, samples) for x in batches]
    return Answers(
        torch.cat([p.probs.cpu() for p in found]),
        torch.cat([torch.as_tensor(p.entropy).cpu() for p in found]),
        torch.cat([torch.as_tensor(p.mutual_information).cpu() for p in found]),
    )


def accuracy_of(
    method: Method, model: nn.Module, size: Size, images: Images, normalise: Normalise, samples: int
) -> float:
    """Share of a split that a size of the network is right about."""
    device = next(model.parameters()).device
    said = answer(method, method.cut(model, size.width, samples), in_order(images, normalise, device), samples)
    return float(metrics.accuracy(said.probs, torch.as_tensor(images.labels)))


def row_of(method: Method, model: nn.Module, size: Size, example: Tensor) -> dict[str, Any]:
    """What a size is and costs: of the extracted network, and its time for one image here and now."""
    small = method.extract(model, size.width)
    cost = profile(small, example_input=example)
    return {
        "kind": size.kind,
        "label": size.label,
        "shape": dict(size.width) if isinstance(size.width, Shape) else None,
        "parameters": cost.parameters,
        "macs": cost.macs,
        "bytes": cost.bytes,
        "latency_ms": latency(small, example_input=example),
    }


def scores(said: Answers, labels: Tensor, bins: int, outside: Answers | None) -> dict[str, Any]:
    """How good answers are, and how well their entropy tells a set from one out of domain."""
    measured: dict[str, Any] = {
        "accuracy": float(metrics.accuracy(said.probs, labels)),
        "nll": float(metrics.negative_log_likelihood(said.probs, labels)),
        "ece": float(metrics.expected_calibration_error(said.probs, labels, bins)),
        "brier": float(metrics.brier_score(said.probs, labels)),
    }
    if outside is not None:
        pair = said.entropy, outside.entropy
        measured |= {
            "auroc": float(metrics.auroc(*pair)),
            "aupr": float(metrics.aupr(*pair)),
            "base_rate": float(metrics.base_rate(*pair)),
        }
    return measured


def sweep(
    method: Method,
    model: nn.Module,
    options: Sweep,
    normalise: Normalise,
    test: Images,
    outside: Images | None = None,
    done: Callable[[dict[str, Any], Answers, Answers | None], None] | None = None,
) -> list[dict[str, Any]]:
    """Evaluate a calibrated network at every size.

    Args:
        method: What the network was made and trained by.
        model: The network.
        options: Which sizes, how many samples.
        normalise: From pixels to what the network is fed.
        test: The images that it should know, with labels.
        outside: Images out of its domain, as large and with as many channels.
        done: Called after every size with its row and its answers.

    Returns:
        One row a size, plain numbers.
    """
    device = next(model.parameters()).device
    example = next(iter(in_order(test, normalise, device, batch=1)))
    labels, rows = torch.as_tensor(test.labels), []
    for size in method.sizes(model, options.sizes):
        network = method.cut(model, size.width, options.samples)
        said = answer(method, network, in_order(test, normalise, device), options.samples)
        strange = None
        if outside is not None:
            strange = answer(method, network, in_order(outside, normalise, device), options.samples)
        row = row_of(method, model, size, example) | scores(said, labels, options.bins, strange)
        rows.append(row)
        if done is not None:
            done(row, said, strange)
    return rows
