"""Trackers: they see what the log has, decide nothing, write into the run's folder, and go on where a run goes on."""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml

from refusals import refused
from train.small import recipe, write_blobs
from vnd.evaluation import settings_of
from vnd.train import loop, track
from vnd.train.loop import fit
from vnd.train.recipe import digest_of
from vnd.train.run import Log

accelerate = pytest.importorskip("accelerate")
FAKED = ("trackio", "wandb")


class Fake(accelerate.tracking.GeneralTracker):
    """A tracker that writes nothing, and draws from every generator there is."""

    requires_logging_directory = False
    name = "wandb"
    started: ClassVar[list[Fake]] = []

    def __init__(self, run_name: str, **options: Any) -> None:
        self.options, self.config, self.rows = options, None, list[tuple[int | None, dict[str, Any]]]()
        self.finished = False

    @property
    def tracker(self) -> Fake:
        return self

    def start(self) -> None:
        Fake.started.append(self)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        assert all(type(value) in (int, float, str) for value in values.values())
        random.seed(1), torch.manual_seed(1), torch.rand(3)
        self.rows.append((step, values))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    monkeypatch.setattr(Fake, "started", [])
    installed = [accelerate.utils.LoggerType(name) for name in FAKED]
    monkeypatch.setattr(accelerate.tracking, "_available_trackers", installed)
    for name, variable in zip(FAKED, ("TRACKIO_DIR", "WANDB_CACHE_DIR"), strict=True):
        monkeypatch.setitem(accelerate.tracking.LOGGER_TYPE_TO_CLASS, name, Fake)
        monkeypatch.setenv(variable, "/nowhere")  # and set back afterwards
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return Fake.started


def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wish(loop.GracefulStop):
        count = 0

        def asked(self, accelerator: Any) -> bool:
            Wish.count += 1
            return Wish.count == step

    monkeypatch.setattr(loop, "GracefulStop", Wish)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "last").iterdir()}


def check(tmp_path: Path, fakes: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_blobs(tmp_path / "blobs.npz")
    assert fit(recipe(data), tmp_path / "plain", quiet=True)
    run, tracked = tmp_path / "run", recipe(data, train={"track": [*FAKED]})
    stopped_at(7, monkeypatch)
    assert not fit(tracked, run, quiet=True)
    assert fit(tracked, run, quiet=True)
    assert files(run) == files(tmp_path / "plain")
    assert [tracker.finished for tracker in fakes] == [True] * 4
    places = run.resolve() / "trackers"
    for first, second in (fakes[::2], fakes[1::2]):
        assert first.options == second.options  # one id in both parts
        assert first.config is not None
        assert first.config["optimizer/lr"] == 0.01
        assert second.config is None
        rows = Log(run / "metrics.jsonl").read()
        seen = first.rows + second.rows
        assert [step for step, _ in seen] == [row["step"] for row in rows]
        assert [values.get("loss") for _, values in seen] == [row.get("loss") for row in rows]
        assert any("validation/50 %" in values for _, values in seen)
    assert fakes[1].options["dir"] == str(places)
    assert fakes[1].options["mode"] == "offline"
    assert track.os.environ["TRACKIO_DIR"] == str(places / "trackio")
    assert {path.name for path in tmp_path.iterdir()} == {"blobs.npz", "plain", "run"}
    assert track.run_id(tracked, run) != track.run_id(tracked, tmp_path / "plain")
    assert track.run_id(tracked.with_train(epochs=5), run) == track.run_id(tracked, run)


def test_a_tracked_run_has_the_same_bits_and_one_history(tmp_path, fakes, monkeypatch) -> None:
    check(tmp_path, fakes, monkeypatch)


@pytest.mark.parametrize("fault", ["another id", "nothing tracked", "noise of trackers"])
def test_a_tracker_that_loses_its_run_is_caught(fault, tmp_path, fakes, monkeypatch) -> None:
    if fault == "another id":
        monkeypatch.setattr(track, "run_id", lambda *_: secrets.token_hex(8))
    elif fault == "nothing tracked":
        monkeypatch.setattr(track, "flat", lambda row: {})
    else:  # the loop draws from where a tracker has left the generator
        monkeypatch.setattr(loop, "_seed", lambda number: None)
    with pytest.raises((AssertionError, KeyError)):
        check(tmp_path, fakes, monkeypatch)


def test_tensorboard_shows_one_history_of_a_run_that_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked = recipe(write_blobs(tmp_path / "blobs.npz"), train={"track": ["tensorboard"]})
    stopped_at(7, monkeypatch)
    assert not fit(tracked, tmp_path / "run", quiet=True)
    assert fit(tracked, tmp_path / "run", quiet=True)
    events = EventAccumulator(str(tmp_path / "run" / "trackers" / "vnd"))
    events.Reload()
    wanted = [(row["step"], row["loss"]) for row in Log(tmp_path / "run" / "metrics.jsonl").read() if "loss" in row]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == pytest.approx(np.array(wanted))


def test_trackers_decide_nothing_so_a_run_may_get_one_on_the_way(tmp_path, fakes, monkeypatch) -> None:
    data = write_blobs(tmp_path / "blobs.npz")
    plain, tracked = recipe(data), recipe(data, train={"track": ["wandb"]})
    assert digest_of(plain.to_dict()) == digest_of(tracked.to_dict())
    assert settings_of(plain) == settings_of(tracked)
    old = plain.to_dict()
    del old["train"]["track"]  # of a checkpoint that was written before there were trackers
    assert digest_of(old) == digest_of(plain.to_dict())
    stopped_at(3, monkeypatch)
    fit(plain, tmp_path / "run", quiet=True)
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(tracked.to_dict()))
    assert fit(tracked, tmp_path / "run", quiet=True)
    assert min(step for step, _ in fakes[0].rows if step is not None) > 3


def test_a_tracker_that_is_unknown_or_not_installed_is_refused_and_nothing_begins(tmp_path, fakes, monkeypatch) -> None:
    data = write_blobs(tmp_path / "blobs.npz")
    words = {"tensorbord": "did you mean 'tensorboard'?", "all": "train.track must be one of"}
    for name, told in words.items():
        refused(lambda name=name: fit(recipe(data, train={"track": [name]}), tmp_path / "run", quiet=True), told)

    def fails(tracker: Fake) -> None:
        raise RuntimeError("no connection\nto anywhere")

    monkeypatch.setattr(Fake, "start", fails)
    tracked, told = recipe(data, train={"track": ["wandb"]}), "RuntimeError: no connection to anywhere"
    refused(lambda: fit(tracked, tmp_path / "broken", quiet=True), ("train.track: wandb cannot", told), OSError)
    missing = recipe(data, train={"track": ["tensorboard"]})
    told = "train.track: tensorboard is not installed; pip install tensorboard"
    refused(lambda: fit(missing, tmp_path / "run", quiet=True), told, ModuleNotFoundError)
    assert not (tmp_path / "run").exists()


def test_trackio_which_keeps_one_folder_a_process_is_refused_another(tmp_path, fakes, monkeypatch) -> None:
    monkeypatch.setitem(track.sys.modules, "trackio", object())
    tracked = recipe(write_blobs(tmp_path / "blobs.npz"), train={"track": ["trackio"]})
    refused(lambda: fit(tracked, tmp_path / "run", quiet=True), ("one folder a process", "train in another process"))
