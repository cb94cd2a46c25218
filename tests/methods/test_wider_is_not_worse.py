"""Trained runs: a wider network is not worse than a narrower one, within the noise of the test images."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vnd
from train.small import recipe
from vnd.evaluation import open_run, results_of
from vnd.methods import Size, Sizes, USNet
from vnd.methods.nested import Nested
from vnd.nn import OrderingUnit
from vnd.nn.state import state_of
from vnd.tasks import TrainedRun
from vnd.tasks.classification import ClassificationEvaluation
from vnd.train.loop import fit

CLASSES, TEST = 8, 1000
FRACTIONS = (0.25, 0.5, 1.0)
GROUPS = {"num_groups": 4, "draws": 2}
# A learned order trains what it draws: from logits of 3 that is seldom the middle, which a sandwich leaves behind.
LEARNED = GROUPS | {"measure_every": 4, "initial_logit": 0.0}
NESTED: dict[str, dict[str, Any]] = {
    "bn3": {"name": "bn3", **LEARNED, "log_alpha_init": -5},
    "bn3 sandwich": {"name": "bn3", **LEARNED, "log_alpha_init": -5, "draws": 1, "sandwich": True},
    "fn3": {"name": "fn3", **GROUPS},
    "us_net": {"name": "us_net", **GROUPS},
    "ordered_l0": {"name": "ordered_l0", **LEARNED},
}
SINGLE: dict[str, dict[str, Any]] = {
    "ibnn": {"name": "ibnn", "num_groups": 4, "log_alpha_init": -5},
    "plain": {"name": "plain", "num_groups": 4},
}
READ = ClassificationEvaluation(Sizes(fractions=FRACTIONS), samples=2, bn_images=256)


def patterns(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8×8, each a mixture of two patterns in noise: the class is the stronger one's, the weaker deceives."""
    shapes = np.random.default_rng(11).normal(size=(CLASSES, 2, 8, 8))
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    other = (labels + generator.integers(1, CLASSES, count)) % CLASSES
    form = generator.integers(0, 2, (2, count))  # a class looks like this or like that: more than a line divides them
    image = shapes[labels, form[0]] + 0.6 * shapes[other, form[1]] + 1.0 * generator.normal(size=(count, 8, 8))
    return np.clip(128 + 28 * image, 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ordering") / "patterns.npz"
    (x, y), (tx, ty) = patterns(1216, 0), patterns(TEST, 1)
    np.savez(path, x_train=x, y_train=y, x_test=tx, y_test=ty)
    return path


def trained(data: Path, method: dict[str, Any], folder: Path) -> TrainedRun:
    nested = method["name"] in ("bn3", "ordered_l0")
    given = recipe(
        data, method=method,
        network={"name": "convnet", "width": 0.5, "image_size": 8, "num_classes": CLASSES, "hidden": 64},
        data={"validation": 64, "augment": {}},
        optimizer={"name": "adam", "lr": 0.01, "chain_lr": 0.02 if nested else None},
        schedule={"lr": {"kind": "cosine"}, "kl_weight": {"start": 0.001}},
        train={"epochs": 6, "batch": 64, "validate_every": 6, "log_every": 100},
    )  # fmt: skip
    assert fit(given, folder, quiet=True)
    return open_run(folder, "last")


def accuracies(run: TrainedRun) -> list[float]:
    rows = results_of(run, READ, run.test(), "test")["rows"]
    return [row["accuracy"] for row in rows]


def noise(*rates: float) -> float:
    """Three standard errors of the difference of two accuracies, each of so many images, drawn independently."""
    return 3 * math.sqrt(sum(rate * (1 - rate) for rate in rates) / TEST)


def check(found: list[float]) -> None:
    """From narrow to wide: never worse, the widest better than the narrowest, and better than chance."""
    for narrow, wide in pairwise(found):
        assert wide >= narrow - noise(narrow, wide), found
    assert found[-1] > found[0] + noise(found[0], found[-1]), found
    assert found[0] > 1 / CLASSES + noise(1 / CLASSES), found


def of_single_widths(name: str, data: Path) -> list[float]:
    found = []
    for fraction in FRACTIONS:
        run = trained(data, SINGLE[name] | {"fraction": fraction}, data.parent / f"{name}-{fraction}")
        found += accuracies(run)
    return found


@pytest.fixture(scope="module")
def alone(data: Path) -> list[float]:
    return of_single_widths("plain", data)


@pytest.fixture(scope="module")
def slimmable(data: Path) -> TrainedRun:
    return trained(data, NESTED["us_net"], data.parent / "us_net")


def check_slimmable(found: list[float], alone: list[float]) -> None:
    """In order, and no width far behind a network that was trained for it alone."""
    check(found)
    for own, other in zip(found, alone, strict=True):
        assert own >= other - 0.03 - noise(own, other), (found, alone)


@pytest.mark.parametrize("name", [name for name in NESTED if name != "us_net"])
def test_a_wider_part_of_a_nested_network_is_not_worse(name: str, data: Path) -> None:
    check(accuracies(trained(data, NESTED[name], data.parent / name.replace(" ", "-"))))


def test_a_wider_part_of_a_slimmable_network_is_not_worse(slimmable: TrainedRun, alone: list[float]) -> None:
    check_slimmable(accuracies(slimmable), alone)


def test_a_wider_network_by_itself_is_not_worse(data: Path, alone: list[float]) -> None:
    check(alone)
    check(of_single_widths("ibnn", data))


# Faults that the accuracies give away


def swapped(extract: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The narrowest width in the place of the widest, and the other way round."""

    def wrong(self: USNet, model: nn.Module, width: Any, *options: Any) -> nn.Module:
        most = {name: unit.num_groups + unit.base for name, unit in state_of(model).units.items()}
        other = vnd.Shape({name: most[name] - kept for name, kept in dict(width).items()})
        return extract(self, model, other, *options)

    return wrong


def trailing(self: OrderingUnit, groups: int) -> torch.Tensor:
    """The last channels, not the first."""
    return torch.nonzero(self.spread(torch.arange(self.num_groups)) >= self.num_groups - groups).squeeze(-1)


def of_another_width(extract: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """BatchNorm's statistics of the narrowest width at every other."""

    def wrong(self: TrainedRun, size: Size, *options: Any) -> nn.Module:
        narrow = vnd.shape(self.model, fraction=FRACTIONS[0])
        extract(self, size, *options)
        extract(self, Size("uniform", "", narrow), *options)
        found = state_of(self.model).statistics
        found[size.width, False] = found[narrow, False]  # type: ignore[index]
        return self.method.extract(self.model, size.width)

    return wrong


@pytest.mark.parametrize("fault", ["widths swapped", "the last channels", "statistics of another width"])
def test_a_planted_fault_is_seen(
    fault: str, slimmable: TrainedRun, alone: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "widths swapped":
        monkeypatch.setattr(Nested, "recalibrate", lambda *_, **__: None)
        monkeypatch.setattr(Nested, "extract", swapped(Nested.extract))
    elif fault == "the last channels":
        monkeypatch.setattr(OrderingUnit, "kept_channels", trailing)
        monkeypatch.setattr(state_of(slimmable.model), "places", {})  # which remembers the right ones
    else:
        monkeypatch.setattr(TrainedRun, "extract", of_another_width(TrainedRun.extract))
    with pytest.raises(AssertionError):
        check_slimmable(accuracies(slimmable), alone)
