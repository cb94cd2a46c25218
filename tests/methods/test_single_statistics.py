"""BatchNorm's statistics in networks of one size: those of training, or of averaged weights where these are kept."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from train.small import recipe, write_blobs
from train.test_loop import assert_same_run, state_of, stopping_at
from vnd.data.batches import in_order
from vnd.tasks import task_of
from vnd.tasks.trained import read_splits
from vnd.train import state as module
from vnd.train.loop import fit, make_accelerator
from vnd.train.recipe import Recipe
from vnd.train.state import TrainState

SINGLE = {"plain": {}, "ibnn": {"num_groups": 4}, "svb": {}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_blobs(tmp_path / "blobs.npz")


def wanted(data: Path, method: str = "plain", ema: float | None = 0.97, **sections: Any) -> Recipe:
    """Ten steps with rates so high that the averaged weights are not the last ones, nor near them."""
    return recipe(
        data,
        method={"name": method, **SINGLE[method]},
        optimizer={"chain_lr": None, "lr": 0.03},
        train={"ema": ema},
        evaluate={"samples": 1, "bn_images": 0, "sizes": {}},
        **sections,
    )


def pixels_of(made: Recipe) -> tuple[Tensor, Tensor]:
    splits = read_splits(made.data, task_of(made.method))
    return torch.cat(list(in_order(splits.train, splits.normalise("cpu"), "cpu"))), torch.tensor(splits.train.labels)


def likelihood(network: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(network.eval()(x), y.long()))


def recollected(network: nn.Module, x: Tensor) -> nn.Module:
    """A copy with the statistics that all training images give, in one batch."""
    new = copy.deepcopy(network).train()
    norms = [layer for layer in new.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert norms
    for norm in norms:
        norm.momentum = 1.0
    torch.manual_seed(123)
    with torch.no_grad():
        new(x)
    return new


def buffers(network: nn.Module | Path) -> dict[str, Tensor]:
    root = vnd.load(network) if isinstance(network, Path) else network
    return {name: value.clone() for name, value in root.named_buffers()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def off(made: Recipe, folder: Path) -> float:
    """By how much the likelihood of the last network is not that with statistics of its own weights, in nats."""
    assert fit(made, folder, quiet=True)
    network, (x, y) = vnd.load(folder / "last"), pixels_of(made)
    found, right = likelihood(network, x, y), likelihood(recollected(network, x), x, y)
    assert found < 10
    assert right < 10
    return abs(found - right)


@pytest.mark.parametrize("method", SINGLE)
def test_an_averaged_network_has_statistics_of_its_own_weights(
    method: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tolerance = 1e-5 if method == "plain" else 0.01  # noise in the weights is another one here
    assert off(wanted(data, method), tmp_path / "run") < tolerance
    monkeypatch.setattr(module, "update_bn", lambda batches, network: None)  # as it was: those of the last weights
    assert off(wanted(data, method), tmp_path / "fault") > 0.1


def test_without_an_average_statistics_are_those_of_training(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(batches: Iterable[Tensor], network: nn.Module) -> None:
        raise AssertionError("statistics were collected anew")

    monkeypatch.setattr(module, "update_bn", never)
    assert fit(wanted(data, ema=None), tmp_path / "run", quiet=True)
    trained = {name[6:]: value for name, value in state_of(tmp_path / "run").items() if name.startswith("model/")}
    last = vnd.load(tmp_path / "run" / "last").state_dict()
    assert equal(dict(last), trained)
    nested = recipe(data, train={"epochs": 1, "ema": 0.9})  # collects its own, for each width
    assert fit(nested, tmp_path / "nested", quiet=True)


@pytest.mark.parametrize("method", ["plain", "ibnn"])
def test_training_goes_on_with_the_statistics_it_had(method: str, tmp_path: Path, data: Path) -> None:
    made = wanted(data, method)
    train_state = TrainState(made, tmp_path / "run", make_accelerator(made))
    train_state.model.train()
    with torch.no_grad():
        for _ in range(2):
            train_state.root(train_state.batches.at(0)[0])
        for parameter in train_state.root.parameters():
            parameter.mul_(1.5)
    before = {name: value.clone() for name, value in train_state.root.state_dict().items()}
    modes, momenta = ([getattr(m, name, None) for m in train_state.root.modules()] for name in ("training", "momentum"))
    seen = []
    for _ in range(2):
        with suppress(KeyboardInterrupt), train_state.averaged():
            seen.append(buffers(train_state.root))
            raise KeyboardInterrupt
        assert equal(dict(train_state.root.state_dict()), before)
    assert equal(*seen)  # the same, whatever was drawn before
    assert not equal(seen[0], buffers(train_state.root))
    assert modes == [m.training for m in train_state.root.modules()]
    train_state.root.eval()
    with train_state.averaged():
        pass
    assert not any(m.training for m in train_state.root.modules())
    assert momenta == [getattr(m, "momentum", None) for m in train_state.root.modules()]


def test_a_stopped_run_keeps_the_same_averaged_network(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wanted(data, "ibnn")
    assert fit(made, tmp_path / "whole", quiet=True)
    stopping_at(monkeypatch, 3, 5)
    assert [fit(made, tmp_path / "parts", quiet=True) for _ in range(3)] == [False, False, True]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    for checkpoint in ("best", "last"):
        one, other = (vnd.load(tmp_path / run / checkpoint).state_dict() for run in ("whole", "parts"))
        assert equal(dict(one), dict(other))
