"""Loss temperatures: how they move, what they do to a network, and that they are brought back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vnd
from vnd.data.batches import in_order
from vnd.methods import BN3, Step
from vnd.tasks import task_of
from vnd.tasks.trained import read_splits
from vnd.train import checkpoint
from vnd.train import state as train_state
from vnd.train.loop import fit, make_accelerator
from vnd.train.recipe import Recipe
from vnd.train.state import TrainState

from .small import blobs, recipe, write_blobs

SANDWICH = {"name": "bn3", "num_groups": 4, "gradient": "survival", "sandwich": True}


def made(wanted: Recipe, folder: Path) -> TrainState:
    return TrainState(wanted, folder, make_accelerator(wanted))


@pytest.mark.parametrize(
    "method", [{"name": "plain"}, SANDWICH, SANDWICH | {"fixed_budgets": [1200], "freeze_order_after": 0.0}]
)
def test_a_loss_temperature_moves_by_confidence_less_accuracy(tmp_path: Path, method: dict[str, Any]) -> None:
    data = write_blobs(tmp_path / "blobs.npz", train=150)
    wanted = recipe(
        data, method=method, data={"validation": 60}, train={"loss_temperature": 2.0}, optimizer={"chain_lr": None}
    )
    loop_state = made(wanted, tmp_path / "run")
    with torch.no_grad():
        for parameter in loop_state.root.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)  # sure of nothing in particular
    loop_state.method.prepare(loop_state.root, (torch.rand(4, 1, 8, 8), torch.arange(4) % 3), _step(), lambda x: x)
    images = torch.cat(list(in_order(loop_state.splits.validation, loop_state.splits.normalise("cpu"), "cpu")))
    labels = torch.from_numpy(loop_state.splits.validation.labels)
    before = {name: value.clone() for name, value in loop_state.root.state_dict().items()}
    torch.manual_seed(0)
    with torch.no_grad():
        answers = loop_state.method.answers(loop_state.root, images)
    wants = [
        float((z.softmax(1).max(1).values - (z.softmax(1).max(1).indices == labels).float()).mean()) for z in answers
    ]
    assert len(wants) == loop_state.method.num_loss_temperatures
    assert all(abs(gap) > 1e-3 for gap in wants)
    loop_state.root.load_state_dict(before)
    loop_state.confidence.log.fill_(0.25)
    torch.manual_seed(0)
    loop_state.confidence.move()
    assert loop_state.confidence.log.tolist() == pytest.approx([0.25 + 2.0 * gap for gap in wants], abs=1e-5)
    assert all(torch.equal(before[name], value) for name, value in loop_state.root.state_dict().items())
    assert loop_state.root.training


def _step() -> Step:
    return Step(0, torch.zeros(()), 1.0, 100, 0.5)


def test_images_are_as_many_among_mixed_ones_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_blobs(tmp_path / "blobs.npz", train=150)
    plain: dict[str, Any] = {
        "method": {"name": "plain"},
        "optimizer": {"chain_lr": None},
        "train": {"loss_temperature": 2.0},
    }
    loop_state = made(recipe(data, data={"validation": 60, "augment": {"cutmix": 0.75}}, **plain), tmp_path / "run")
    images = torch.cat(list(in_order(loop_state.splits.validation, loop_state.splits.normalise("cpu"), "cpu")))
    labels = torch.from_numpy(loop_state.splits.validation.labels)

    def right_where_it_counts(_: object, model: object, shown: torch.Tensor) -> list[torch.Tensor]:
        assert len(shown) == 240
        torch.testing.assert_close(shown[:60], images)
        mixed, known = shown[60:].flatten(1), images.flatten(1)
        assert (mixed[:, None] == known).any(1).all()  # every pixel is of one of them,
        assert (mixed[:, None] == known).all(2).any(1).float().mean() < 0.2  # and hardly any image is
        sure = torch.nn.functional.one_hot(torch.cat([labels, (labels + 1).repeat(3) % 3]), 3) * 100.0
        return [sure]

    monkeypatch.setattr(type(loop_state.method), "answers", right_where_it_counts)
    loop_state.confidence.move()
    assert loop_state.confidence.log.tolist() == [0.0]
    with pytest.raises(
        ValueError, match=r"^train.loss_temperature needs images that are not mixed; use .* below 1, got 1$"
    ):
        made(recipe(data, data={"validation": 60, "augment": {"cutmix": 1.0}}, **plain), tmp_path / "other")


def test_before_there_are_fixed_budgets_no_loss_temperature_moves(tmp_path: Path) -> None:
    data = write_blobs(tmp_path / "blobs.npz", train=150)
    method = SANDWICH | {"fixed_budgets": [1200], "freeze_order_after": 0.9}
    loop_state = made(
        recipe(data, method=method, data={"validation": 60}, train={"loss_temperature": 2.0}), tmp_path / "run"
    )
    assert isinstance(loop_state.method, BN3)
    loop_state.method.prepare(loop_state.root, (torch.rand(4, 1, 8, 8), torch.arange(4) % 3), _step(), lambda x: x)
    loop_state.confidence.move()
    assert loop_state.confidence.log.tolist() == [0.0, 0.0]


def noisy(path: Path) -> Path:
    """Blobs of which two in five have a label drawn at random: 73 % can be right, and 100 % learnt by heart."""
    generator = np.random.default_rng(0)
    (x, y), (tx, ty) = blobs(300, 0), blobs(30, 1)
    wrong = generator.random(len(y)) < 0.4
    np.savez(path, x_train=x, y_train=np.where(wrong, generator.integers(0, 3, len(y)), y), x_test=tx, y_test=ty)
    return path


def gap_of(wanted: Recipe, folder: Path) -> float:
    """Confidence less accuracy of a finished run, on the validation images."""
    net, splits = vnd.load(folder / "last").eval(), read_splits(wanted.data, task_of(wanted.method))
    images = torch.cat(list(in_order(splits.validation, splits.normalise("cpu"), "cpu")))
    with torch.no_grad():
        probs = net(images).softmax(1)
    right = probs.argmax(1) == torch.from_numpy(splits.validation.labels)
    return float(probs.max(1).values.mean() - right.float().mean())


def gap_at(path: Path, folder: Path, rate: float) -> float:
    wanted = recipe(
        path,
        method={"name": "plain"},
        data={"validation": 150, "augment": {"pad": 0}},
        optimizer={"lr": 0.005, "chain_lr": None},
        train={"epochs": 60, "loss_temperature": rate, "validate_every": 60, "save_every": 60},
    )
    assert fit(wanted, folder, quiet=True)
    return gap_of(wanted, folder)


def test_a_tempered_network_is_nearly_as_sure_as_it_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = noisy(tmp_path / "noisy.npz")
    without = gap_at(data, tmp_path / "without", 0.0)
    tempered = gap_at(data, tmp_path / "with", 1.0)
    found = checkpoint.read(tmp_path / "with" / "checkpoints")
    assert found is not None
    assert found.state["log_loss_temperature"][0] > 0.3  # so the loss asked for less
    assert without > 0.1
    assert abs(tempered) < without / 2
    own = train_state._excess
    monkeypatch.setattr(train_state, "_excess", lambda *given: -own(*given))  # planted: the wrong way round
    worse = gap_at(data, tmp_path / "worse", 1.0)
    assert worse > without
