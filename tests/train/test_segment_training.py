"""Training of networks that segment: every method in the one loop, what validation measures, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from data import layouts
from train.masks import CHANNELS, METHODS, few, recipe, settings
from vnd.data import synthetic
from vnd.data.images import Images
from vnd.evaluation import fed, open_run, settings_of
from vnd.tasks import TASKS
from vnd.tasks import trained as module
from vnd.tasks.trained import Splits, read_splits
from vnd.train.config import parse
from vnd.train.loop import fit
from vnd.train.recipe import Recipe
from vnd.train.state import TrainState


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)


def refused(settings: Recipe, folder: Path) -> str:
    with pytest.raises(ValueError, match=r"^(data|network)") as error:
        fit(settings, folder / "run", quiet=True)
    return str(error.value)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_trained_and_the_nearest_network_is_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Console, "print", lambda self, text="", **look: said.append(str(text)))
    assert fit(recipe(name, train={"epochs": 2}), tmp_path, quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    looks = [row for row in rows if "validation" in row]
    assert len(looks) == 2
    scores = [-sum(row["validation"].values()) / len(row["validation"]) for row in looks]
    assert looks[-1]["best"] == pytest.approx(max(scores))
    assert all(-2 < score < 0 for score in scores)
    assert len(looks[0]["validation"]) == (2 if name in ("vnd_punet", "bn3_unet") else 1)
    label, distance = next(iter(looks[0]["validation"].items()))
    assert any(f"epoch 1 of 2: validation GED at {label}: {distance:.4f}" in words for words in said)
    assert {"step", "loss", "nll"} <= rows[0].keys()
    assert (tmp_path / "best" / "network.json").exists()
    assert (tmp_path / "last" / "network.json").exists()


def test_validation_draws_with_the_statistics_of_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    settings = recipe("bn3_unet")
    kind = type(settings.method)
    original = kind.recalibrate

    def watched(self: Any, model: Any, batches: Any, widths: Any, samples: bool) -> None:
        found.append(samples)
        original(self, model, batches, widths, samples)

    monkeypatch.setattr(kind, "recalibrate", watched)
    fit(settings, tmp_path, quiet=True)
    assert found == [True, False, True]  # validation, then both kinds for what is kept


def test_a_batch_is_images_and_the_mask_of_one_grader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    settings = recipe("dropout_unet")
    kind = type(settings.method)
    loss = kind.loss
    monkeypatch.setattr(
        kind, "loss", lambda self, model, batch, step: seen.append(batch) or loss(self, model, batch, step)
    )
    fit(settings, tmp_path, quiet=True)
    images, masks = seen[0]
    assert (images.shape, masks.shape, masks.dtype) == ((16, 1, 32, 32), (16, 32, 32), torch.float32)
    assert masks.unique().tolist() == [0.0, 1.0]
    assert abs(float(torch.cat([x for x, _ in seen]).mean())) < 0.2


def test_patients_are_on_one_side_and_the_run_says_on_which(tmp_path: Path) -> None:
    layouts.lidc(tmp_path / "lidc")
    own = {"name": "lidc", "folder": str(tmp_path / "lidc"), "validation": 5, "limit": None, "size": 16}
    assert fit(recipe("dropout_unet", data=own, train={"batch": 8}), tmp_path / "run", quiet=True)
    about = json.loads((tmp_path / "run" / "data.json").read_text())
    train, validation, test = (set(about["groups"][side]) for side in ("train", "validation", "test"))
    assert not train & validation
    assert not test & (train | validation)
    assert test == {"LIDC-IDRI-0006", "LIDC-IDRI-0008"}
    assert train | validation == {f"LIDC-IDRI-000{i}" for i in (1, 2, 3, 4, 5, 7, 9)}
    assert len(validation) == 2
    assert about["validation"] == 8
    assert fed(tmp_path / "run") == ((1, 16, 16), tuple(about["mean"]), tuple(about["std"]))


def test_groups_without_names_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    images = synthetic.read(None, "train")
    numbered = Images(images.pixels, masks=images.masks, groups=np.arange(len(images)) // 4)
    monkeypatch.setattr(module, "load", lambda *given: numbered)
    found = read_splits(recipe("dropout_unet").data, TASKS["segmentation"]).groups()["groups"]
    assert not set(found["train"]) & set(found["validation"])
    assert all(isinstance(number, int) for number in found["train"])
    assert Splits(images, images, (0.5,), (0.5,)).groups() == {}


def test_data_that_cannot_be_segmented_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = refused(recipe("punet", data={"name": "fashion"}), tmp_path)
    assert words.startswith("data.name: fashion has no masks to learn")
    words = refused(recipe("punet", data={"augment": {"cutmix": 0.5}}), tmp_path)
    assert words == "data.augment.cutmix mixes labels, and masks have none; use 0, got 0.5"
    images = synthetic.read(None, "train")
    monkeypatch.setattr(module, "load", lambda *given: Images(images.pixels, masks=0 * images.masks))
    words = refused(recipe("punet"), tmp_path)
    assert words == f"data.name: nothing is marked in the {len(images)} training images of synthetic_graders"


def test_networks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    words = refused(recipe("dropout_unet", network={"name": "unet", "channels": CHANNELS, "in_channels": 3}), tmp_path)
    assert words.startswith("network unet cannot read the images of synthetic_graders, 1×32×32: ")
    words = refused(recipe("punet", network={"name": "unet", "channels": CHANNELS}), tmp_path)
    assert words.startswith("network.name must be probabilistic_unet")
    plain = {"method": {"name": "plain"}, "data": {"name": "fashion", "size": 32, "augment": {}}}
    network = {"name": "probabilistic_unet", "channels": CHANNELS, "num_classes": 10}
    mixed = settings("punet", network=network, **plain)
    del mixed["evaluate"]["num_mask_samples"]  # which a classifier has not
    words = refused(parse(mixed), tmp_path)
    assert words.startswith(
        "network.name: probabilistic_unet answers for each pixel, and plain learns classes of images"
    )


def test_a_moving_average_of_the_weights_is_kept_with_statistics_of_its_own(tmp_path: Path) -> None:
    assert fit(recipe("vnd_punet", train={"ema": 0.9}), tmp_path, quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(x) for row in rows for x in row.get("validation", {}).values())
    model = open_run(tmp_path, "last").model
    spread = {name: buffer for name, buffer in model.named_buffers() if "running_var" in name}
    assert spread
    assert not any(torch.equal(x, torch.ones_like(x)) for x in spread.values())


def test_the_truth_is_known_of_test_images_alone(tmp_path: Path) -> None:
    assert fit(recipe("punet"), tmp_path / "run", quiet=True)
    opened = open_run(tmp_path / "run")
    known = opened.truth(opened.test())
    assert known is not None
    assert (known[0].shape[0], known[1].shape[0]) == (len(opened.test()),) * 2
    assert opened.truth(opened.splits.validation) is None


def test_all_of_a_method_is_a_setting_of_its_curve() -> None:
    one, other = recipe("vnd_punet"), recipe("vnd_punet", method={"name": "vnd_punet", "base": 1})
    assert settings_of(one) == settings_of(recipe("vnd_punet", train={"seed": 3}))
    assert settings_of(one) != settings_of(other)


@pytest.mark.parametrize("content", ["", "[]", '{"image": [1, 2]}', '{"image": [1, 8, 8], "mean": [0], "std": []}'])
def test_a_damaged_note_on_the_data_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(ValueError, match=r"data\.json: must say image, mean and std"):
        fed(tmp_path)


def test_a_train_state_is_given_masks_for_this_task_alone(tmp_path: Path) -> None:
    from vnd.train.loop import make_accelerator

    settings = recipe("dropout_unet")
    train_state = TrainState(settings, tmp_path, make_accelerator(settings))
    assert train_state.batches.masks is not None
