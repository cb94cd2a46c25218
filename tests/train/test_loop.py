"""The loop: what it leaves behind, that it can be stopped anywhere, and what it says when it must stop."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hostile
import vnd
from vnd.cli import main
from vnd.models import MODELS
from vnd.nn import BayesConv2d
from vnd.train import checkpoint, loop
from vnd.train.config import parse, parse_run
from vnd.train.loop import fit
from vnd.train.run import Log
from vnd.train.state import TrainState

from .small import recipe, settings, write_blobs

HERE = Path(__file__).parent


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_blobs(tmp_path / "blobs.npz")


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.read(folder / "checkpoints")
    assert found is not None
    return found.tensors


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in Log(folder / "metrics.jsonl").read()]


def assert_same_run(one: Path, other: Path) -> None:
    mine, theirs = state_of(one), state_of(other)
    assert mine.keys() == theirs.keys()
    different = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not different
    assert rows_of(one) == rows_of(other)


def stopping_at(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Wish to stop after these steps, once each."""
    left, count = set(steps), {"now": 0}

    class Wish(loop.GracefulStop):
        def asked(self, accelerator: Any) -> bool:
            count["now"] += 1
            if count["now"] in left:
                left.discard(count["now"])
                return True
            return False

    monkeypatch.setattr(loop, "GracefulStop", Wish)


def test_a_run_learns_and_leaves_all_that_evaluation_needs(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "run"
    assert fit(recipe(data, train={"epochs": 8}), folder, quiet=True)
    rows = rows_of(folder)
    losses = [row["nll"] for row in rows if "nll" in row]
    assert losses[-1] < losses[0] / 2
    seen = [row["validation"] for row in rows if "validation" in row]
    assert len(seen) == 8
    assert seen[-1]["100 %"] > 0.9
    assert max(sum(s.values()) / 2 for s in seen) == pytest.approx(rows[-1]["best"])
    for best_or_last in ("best", "last"):
        net = vnd.load(folder / best_or_last)
        assert type(net) is MODELS["convnet"]
    assert json.loads((folder / "data.json").read_text())["train"] == 97 - 16
    assert {"expected_length", "entropy", "prob_full", "prob_shortest"} <= rows[0]["units"][
        "features.0.ordering"
    ].keys()
    (kept,) = [p.name for p in (folder / "checkpoints").iterdir() if p.name == "step-00000040"]
    assert kept


VARIANTS: dict[str, dict[str, Any]] = {
    "difference": {},
    "independent": {"method": {"name": "bn3", "num_groups": 4, "coupling": "independent", "gradient": "downhill"}},
    "average and clipping": {"train": {"ema": 0.9, "clip": 1.0}},
    "ngd": {"optimizer": {"name": "ngd", "lr": 0.02, "chain_lr": None}},
    "adam, plain": {"method": {"name": "plain"}, "optimizer": {"chain_lr": None}, "train": {"clip": 0.5}},
    "draws": {
        "method": {"name": "bn3", "num_groups": 4, "draws": 4, "estimator": "weight"},
        "optimizer": {"name": "sgd"},
    },
    "mixed images": {"data": {"augment": {"pad": 1, "cutmix": 0.5}}, "method": {"name": "bn3", "num_groups": 4}},
    "loss_temperature": {
        "method": {"name": "bn3", "num_groups": 4, "gradient": "survival", "sandwich": True},
        "data": {"validation": 50},
        "train": {"loss_temperature": 3.0, "batch": 8},
    },
    "bf16": {"train": {"precision": "bf16"}, "optimizer": {"name": "adamw", "weight_decay": 0.01}},
}


ON_A_GPU: dict[str, dict[str, Any]] = {
    "cuda": {"train": {"device": "cuda"}},
    "cuda, plain": {"method": {"name": "plain"}, "optimizer": {"chain_lr": None}, "train": {"device": "cuda"}},
    "cuda, fp16": {"train": {"device": "cuda", "precision": "fp16", "clip": 1.0}},
    "cuda, bf16, channels last": {"train": {"device": "cuda", "precision": "bf16", "channels_last": True}},
    "cuda, compiled": {"train": {"device": "cuda", "compile": True}},
}
if torch.cuda.is_available():
    VARIANTS |= ON_A_GPU


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # of its compiler, on GPUs
@pytest.mark.parametrize("name", VARIANTS)
def test_a_stopped_run_goes_on_to_the_same_bits(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wanted = recipe(data, **VARIANTS[name])
    assert fit(wanted, tmp_path / "whole", quiet=True)
    stopping_at(monkeypatch, 3, 5)  # in the middle of the first epoch, and of the second (counted over both)
    stops = [fit(wanted, tmp_path / "parts", quiet=True) for _ in range(3)]
    assert stops == [False, False, True]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


LASTS: dict[str, dict[str, Any]] = {
    "sizes that are evaluated": {},
    "other sizes": {"train": {"validate_at": [0.3, 0.7]}},
    "average": {"train": {"validate_at": [0.3, 0.7], "ema": 0.9}},
    "plain": {"method": {"name": "plain"}, "optimizer": {"chain_lr": None}},
}


@pytest.mark.parametrize("name", LASTS)
def test_a_run_that_stopped_before_its_last_network_makes_the_same_one(tmp_path: Path, data: Path, name: str) -> None:
    wanted = recipe(data, **LASTS[name])
    assert fit(wanted, tmp_path / "run", quiet=True)
    whole = hashes(tmp_path / "run" / "last")
    assert len(whole) == 2
    shutil.rmtree(tmp_path / "run" / "last")
    assert fit(wanted, tmp_path / "run", quiet=True)
    assert hashes(tmp_path / "run" / "last") == whole


def test_the_check_notices_a_state_that_is_not_brought_back(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(data)
    assert fit(wanted, tmp_path / "whole", quiet=True)
    stopping_at(monkeypatch, 3)
    own = checkpoint._state

    def forgetful(model: nn.Module) -> dict[str, torch.Tensor]:
        return {name: value for name, value in own(model).items() if "differences" not in name}

    monkeypatch.setattr(checkpoint, "_state", forgetful)
    assert [fit(wanted, tmp_path / "parts", quiet=True) for _ in range(2)] == [False, True]
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_checkpoints_are_written_after_so_many_epochs_and_after_the_last(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    write = checkpoint.write
    monkeypatch.setattr(
        checkpoint, "write", lambda folder, step, *rest: (saved.append(step), write(folder, step, *rest))
    )
    assert fit(recipe(data, train={"epochs": 5, "save_every": 2}), tmp_path / "run", quiet=True)
    epoch = saved[-1] // 5
    assert saved == [2 * epoch, 4 * epoch, 5 * epoch]


def kill(tmp_path: Path, data: Path, kills: int) -> None:
    """Train in processes that kill themselves, at steps and inside saves; then compare with a run left alone."""
    given = settings(data, train={"epochs": 4, "checkpoint_every": 2, "validate_at": [0.3, 0.7]})
    (tmp_path / "recipe.json").write_text(json.dumps(given))
    words = [sys.executable, str(HERE / "killed.py"), str(tmp_path / "recipe.json"), str(tmp_path), str(kills)]
    ran = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["killed"] == kills
    assert told["inside saves"] >= kills // 4
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    for one in ("best", "last"):
        assert hashes(tmp_path / "whole" / one) == hashes(tmp_path / "killed" / one)


def test_ten_kills_change_nothing(tmp_path: Path, data: Path) -> None:
    kill(tmp_path, data, 10)


@pytest.mark.fault
def test_two_hundred_kills_change_nothing(tmp_path: Path, data: Path) -> None:
    kill(tmp_path, data, 200)


@pytest.mark.parametrize("draws", [1, 2])
def test_two_processes_agree_with_one(tmp_path: Path, data: Path, draws: int) -> None:
    """Mean weights and no BatchNorm: the same masks, the same images, the loss after 100 steps within 1e-5."""
    given = settings(
        data,
        method={"name": "bn3", "num_groups": 4, "bayesian": False, "measure_every": 2, "draws": draws},
        network={"name": "dense", "num_classes": 3},
        optimizer={"name": "sgd", "lr": 0.02},
        train={
            "device": "cpu" if torch.cuda.is_available() else "auto",
            "epochs": 20,
            "log_every": 1,
            "clip": 5.0,
            "validate_every": 20,
        },
    )
    (tmp_path / "recipe.json").write_text(json.dumps(given))
    losses = {}
    for world in (1, 2):
        folder = tmp_path / f"world-{world}"
        port = str(29_500 + os.getpid() % 2_000)
        shared = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        words = [sys.executable, str(HERE / "alone.py"), str(tmp_path / "recipe.json"), str(folder)]
        ranks = [
            subprocess.Popen(
                words,
                env=shared | ({"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2"} if world == 2 else {}),
                stderr=subprocess.PIPE,
                text=True,
            )
            for r in range(world)
        ]
        told = [rank.communicate(timeout=300)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world, told
        losses[world] = [row["nll"] for row in rows_of(folder) if "nll" in row]
    assert len(losses[1]) == len(losses[2]) == 100
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)
    one, two = state_of(tmp_path / "world-1"), state_of(tmp_path / "world-2")
    for name, mine in one.items():
        if mine.is_floating_point():
            torch.testing.assert_close(two[name], mine, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(two[name], mine), name


@pytest.mark.fault
def test_a_process_that_is_killed_ends_the_others(tmp_path: Path, data: Path) -> None:
    given = settings(data, network={"name": "dense", "num_classes": 3}, train={"epochs": 1000})
    (tmp_path / "recipe.json").write_text(json.dumps(given))
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29417"]
    words += [str(HERE / "alone.py"), str(tmp_path / "recipe.json"), str(tmp_path / "run")]
    ended = {**os.environ, "OMP_NUM_THREADS": "1", "VND_TEST_DIES": "1"}
    ran = subprocess.run(words, env=ended, capture_output=True, check=False, timeout=60 + 30)  # to start, 30
    assert ran.returncode != 0


def test_a_folder_of_another_recipe_is_refused(tmp_path: Path, data: Path) -> None:
    assert fit(recipe(data, train={"epochs": 1}), tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        fit(recipe(data, train={"epochs": 2}), tmp_path / "run", quiet=True)


def edit(folder: Path, *words: str) -> None:
    """Change the recipe that a run keeps."""
    (folder / "recipe.yaml").write_text(parse(folder / "recipe.yaml", words).to_yaml())


def refused(folder: Path, words: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        fit(parse_run(folder), folder, quiet=True, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("train: ")


def test_a_checkpoint_of_another_recipe_is_refused_by_the_keys_that_differ(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    stopping_at(monkeypatch, 3)
    assert not fit(recipe(data), folder, quiet=True)
    kept = (folder / "recipe.yaml").read_text()
    before = {path: path.read_bytes() for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    for words, keys in (
        (["--optimizer.lr=0.02"], ["optimizer.lr"]),
        (["--data.augment.pad=2", "--train.seed=5"], ["data.augment.pad", "train.seed"]),
        (["--evaluate.samples=3"], ["evaluate.samples"]),
        (["--train.epochs=3", "--method.base=2"], ["method.base", "train.epochs"]),
    ):
        edit(folder, *words)
        for allowed in (False, True):  # new epochs allow nothing else
            refused(folder, f"another recipe than recipe.yaml; it differs in {', '.join(keys)};", new_epochs=allowed)
        (folder / "recipe.yaml").write_text(kept)
    edit(folder, "--train.epochs=3")
    refused(folder, r"of a recipe with train\.epochs 2, and recipe\.yaml says 3; .* allow it by --new_epochs 3$")
    assert {path: path.read_bytes() for path in before} == before
    (folder / "recipe.yaml").write_text(kept.replace("about: ''", "about: other words"))
    assert fit(parse_run(folder), folder, quiet=True)  # what is for people decides nothing


def resealed(folder: Path, change: Any) -> None:
    """Change what the newest checkpoint says, with the right checksum."""
    newest = max((folder / "checkpoints").iterdir())
    hostile.rewrite(newest / "checkpoint.json", change)


def test_a_checkpoint_that_says_nothing_of_its_recipe_or_nonsense_is_refused(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    stopping_at(monkeypatch, 3)
    assert not fit(recipe(data), folder, quiet=True)
    (path,) = (folder / "checkpoints").glob("*/checkpoint.json")
    whole = path.read_bytes()
    cases: list[tuple[Any, str]] = [
        (lambda m: m["state"].pop("recipe"), "is damaged: KeyError: 'recipe'"),
        (lambda m: m["state"].update(recipe=3), "is damaged"),
        (lambda m: m["state"].update(recipe={"method": {}}), "is damaged"),
        (
            lambda m: m["state"]["recipe"]["train"].update(seed=9),
            "is of another recipe than recipe.yaml; it differs in",
        ),
        (lambda m: m["state"].pop("best"), "is damaged: KeyError: 'best'"),
        (lambda m: m["state"].update(best=[1]), "is damaged"),
        (lambda m: m["state"].pop("world"), "is damaged: KeyError: 'world'"),
    ]
    for change, words in cases:
        resealed(folder, change)
        refused(folder, words)
        path.write_bytes(whole)
    resealed(folder, lambda m: m.update(step=10**17))
    path.parent.rename(path.parent.with_name(f"step-{10**17:08d}"))
    refused(folder, f"is at step {10**17}, beyond the 10 steps that train.epochs 2 has")


def test_more_epochs_are_trained_where_that_is_asked_for(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert fit(recipe(data), folder, quiet=True)
    before = hashes(folder / "last")
    refusals = {1: "is at step 10, beyond the 5 steps that train.epochs 1 has", 0: "train.epochs must be at least 1"}
    for epochs, words in refusals.items():
        with pytest.raises(SystemExit):
            main(["train", "--resume", str(folder), "--new_epochs", str(epochs)])
        assert words in capsys.readouterr().err
        assert hashes(folder / "last") == before
    main(["train", "--resume", str(folder), "--new_epochs", "2"])  # as many as before
    assert hashes(folder / "last") == before
    main(["train", "--resume", str(folder), "--new_epochs", "3"])
    assert parse_run(folder).train.epochs == 3
    assert checkpoint.read(folder / "checkpoints").step == 15
    after = hashes(folder / "last")
    assert after != before
    main(["train", "--resume", str(folder)])
    assert "is finished" in capsys.readouterr().out
    assert hashes(folder / "last") == after


def test_another_number_of_processes_is_told(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping_at(monkeypatch, 3)
    assert not fit(recipe(data), tmp_path / "run", quiet=True)
    own = checkpoint.read

    def of_two(folder: Path) -> Any:
        found = own(folder)
        found.state["world"] = 2
        return found

    monkeypatch.setattr(checkpoint, "read", of_two)
    with pytest.warns(RuntimeWarning, match="was trained by 2 processes and goes on with 1"):
        assert fit(recipe(data), tmp_path / "run", quiet=True)


def test_weights_that_are_not_finite_are_never_saved(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TrainState.move_average

    def spoilt(self: TrainState) -> None:
        own(self)
        if self.step == 3:  # the fourth step is done, and a checkpoint follows it
            next(self.root.parameters()).data[0] = float("inf")

    monkeypatch.setattr(TrainState, "move_average", spoilt)
    with pytest.raises(FloatingPointError, match=r"parameter features\.0\.weight is not finite after step 3"):
        fit(recipe(data, train={"checkpoint_every": 2}), tmp_path / "run", quiet=True)
    assert checkpoint.read(tmp_path / "run" / "checkpoints").step == 2


def test_a_loss_that_is_not_a_number_stops_with_the_step_and_the_layer(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, own = {"count": 0}, BayesConv2d.forward

    def broken(self: Any, x: torch.Tensor) -> torch.Tensor:
        out = own(self, x)
        if self.in_channels > 1 and self.training and torch.is_grad_enabled():
            calls["count"] += 1
        return out * float("nan") if calls["count"] > 6 and self.in_channels > 1 else out

    monkeypatch.setattr(BayesConv2d, "forward", broken)
    with pytest.raises(
        FloatingPointError, match=r"at step 3 \(epoch 0\): first in the output of layer features\.4 \(Bay"
    ):
        fit(recipe(data), tmp_path / "run", quiet=True)


def test_weights_that_a_step_spoilt_are_named(tmp_path: Path, data: Path) -> None:
    wild = recipe(data, optimizer={"name": "sgd", "lr": 1e30, "chain_lr": 0.0}, schedule={"lr": {"kind": "constant"}})
    with pytest.raises(
        FloatingPointError, match=r"at step \d \(epoch 0\).*(parameter features\.0\.weight|layer features)"
    ):
        fit(wild, tmp_path / "run", quiet=True)


def test_control_c_saves_and_says_how_to_go_on(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(settings(data)))
    own = TrainState.move_average

    def interrupted(self: TrainState) -> None:
        own(self)
        if self.step == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainState, "move_average", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")])
    assert stopped.value.code == 130
    assert f"saved in {tmp_path / 'run'}; go on with: vnd train --resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert checkpoint.read(tmp_path / "run" / "checkpoints").step == 3
    monkeypatch.undo()
    main(["train", "--resume", str(tmp_path / "run")])
    assert (tmp_path / "run" / "last" / "network.json").exists()


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(data)
    assert fit(wanted, tmp_path / "whole", quiet=True)
    stopping_at(monkeypatch, 7)
    assert not fit(wanted, tmp_path / "parts", quiet=True)
    (newest,) = (tmp_path / "parts" / "checkpoints" / "step-00000007").glob("*.safetensors")
    raw = bytearray(newest.read_bytes())
    raw[-9] ^= 4
    newest.write_bytes(raw)
    with pytest.warns(RuntimeWarning, match="step-00000007.*going on from step-00000005"):
        assert fit(wanted, tmp_path / "parts", quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_an_epoch_with_one_image_left_over_has_full_batches(tmp_path: Path, data: Path) -> None:
    # 97 - 16 = 81 images: five batches of 16, and one image that waits for another epoch.
    assert fit(recipe(data, train={"epochs": 1}), tmp_path / "run", quiet=True)
    assert checkpoint.read(tmp_path / "run" / "checkpoints").step == 5


def test_data_of_one_class_are_refused(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "one.npz"
    np.savez(path, x=np.zeros((40, 8, 8), np.uint8), y=np.zeros(40, np.int64))
    with pytest.raises(ValueError, match="class"):
        fit(recipe(path), tmp_path / "run", quiet=True)
