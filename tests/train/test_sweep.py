"""Sweeps: from a file to runs, the hash that knows them, and what becomes of runs that fail, stop or are at work."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from train import fake_vnd
from train.small import settings, write_blobs
from vnd.train import config, sweep
from vnd.train.config import parse
from vnd.train.loop import fit
from vnd.train.run import lock
from vnd.train.state import TrainState
from vnd.train.sweep import (
    Outcome,
    Processes,
    Run,
    Worklist,
    digest,
    holds,
    in_use,
    perform,
    read,
    run_all,
    state_of,
)

# The file, and the runs that it makes


def write(folder: Path, recipe: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A sweep beside its recipe, tiny.yaml."""
    own = settings(folder / "blobs.npz", train={"epochs": 1}) if recipe is None else recipe
    (folder / "tiny.yaml").write_text(json.dumps(own))
    text = yaml.safe_dump({"out": str(folder / "runs"), "runs": ["tiny.yaml"], **keys}, sort_keys=False)
    (folder / "sweep.yaml").write_text(text)
    return folder / "sweep.yaml"


def make(folder: Path, **keys: Any) -> Worklist:
    return read(write(folder, **keys))


def seeds(count: int) -> dict[str, Any]:
    return {"seeds": list(range(count))}


def test_a_sweep_is_recipes_times_settings_times_seeds(tmp_path: Path) -> None:
    found = make(
        tmp_path,
        about="all of it",
        seeds=[0, 3],
        set={"train.epochs": 7, "optimizer.lr": 0.02},
        runs=[
            "tiny.yaml",
            "demo",
            {
                "recipe": "tiny.yaml",
                "name": "wide",
                "set": {"train.epochs": 9},
                "grid": {"method.base": [1, 2], "data.augment.pad": [0, 1, 2]},
                "seeds": [5],
            },
        ],
    )
    runs = found.runs
    assert (found.about, found.out, found.evaluate, found.slurm) == ("all of it", tmp_path / "runs", True, None)
    assert [run.recipe.train.seed for run in runs] == [0, 3, 0, 3] + [5] * 6
    assert [run.recipe.train.epochs for run in runs] == [7] * 4 + [9] * 6
    assert {run.recipe.optimizer.lr for run in runs} == {0.02}
    grid = [(run.recipe.to_dict()["method"]["base"], run.recipe.data.augment.pad) for run in runs[4:]]
    assert grid == [(base, pad) for base in (1, 2) for pad in (0, 1, 2)]
    assert runs[1].name == f"tiny-3-{runs[1].digest[:8]}"
    assert runs[2].name == f"demo-0-{runs[2].digest[:8]}"
    assert runs[9].name == f"wide-base=2-pad=2-5-{runs[9].digest[:8]}"
    assert len({run.digest for run in runs}) == len({run.folder for run in runs}) == 10
    for run in runs:  # the words for `vnd train` make the very same recipe
        assert parse(run.source, run.overrides) == run.recipe
        assert run.digest == digest(run.recipe)


def test_any_value_of_a_recipe_can_be_given(tmp_path: Path) -> None:
    values = {
        "method.name": "plain", "optimizer.name": "sgd", "train.clip": None, "train.compile": True,
        "train.validate_at": [0.5, 1], "schedule.lr": {"kind": "linear", "end": 0.5}, "optimizer.lr": 1e-5,
        "data.folder": "a folder, with spaces", "data.augment.rotation": 3,
    }  # fmt: skip
    (run,) = make(tmp_path, set=values).runs
    recipe = run.recipe
    assert (recipe.method_name, recipe.optimizer.name, recipe.optimizer.lr) == ("plain", "sgd", 1e-5)
    assert (recipe.train.clip, recipe.train.compile, recipe.train.validate_at) == (None, True, (0.5, 1.0))
    assert (recipe.schedule.lr.kind, recipe.schedule.lr.end) == ("linear", 0.5)
    assert (recipe.data.folder, recipe.data.augment.rotation) == ("a folder, with spaces", 3.0)


def test_settings_of_a_run_follow_those_of_all_runs(tmp_path: Path) -> None:
    common = {"schedule.lr.end": 0.5, "train.epochs": 2}
    own = {"schedule.lr": {"kind": "linear", "end": 0.25}, "train.epochs": 3}
    (run,) = make(tmp_path, set=common, runs=[{"recipe": "tiny.yaml", "set": own}]).runs
    assert (run.recipe.schedule.lr.end, run.recipe.train.epochs) == (0.25, 3)


def test_without_seeds_a_run_has_that_of_its_recipe(tmp_path: Path) -> None:
    recipe = settings(tmp_path / "blobs.npz", train={"epochs": 1, "seed": 4})
    (run,) = read(write(tmp_path, recipe)).runs
    assert run.recipe.train.seed == 4
    assert run.name.startswith("tiny-4-")


def evaluated(folder: Path, **rows: dict[str, int]) -> Path:
    """A run with learned shapes, by their parameters, of a network of 8 and 4 groups."""
    groups, learned = {"a": 8, "b": 4}, [{"kind": "fraction", "shape": {"a": 1, "b": 1}, "parameters": 1}]
    learned += [{"kind": "learned", "shape": shape, "parameters": int(name[1:])} for name, shape in rows.items()]
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"groups": groups, "rows": learned}))
    return folder


def test_runs_are_made_for_each_learned_shape_of_a_run(tmp_path: Path) -> None:
    recipe = settings(tmp_path / "blobs.npz", method={"name": "plain"}, optimizer={"chain_lr": None})
    file = write(tmp_path, recipe, runs=[{"recipe": "tiny.yaml", "name": "plain", "set": {"train.epochs": 7}}])
    run = evaluated(
        tmp_path / "run", p90={"a": 5, "b": 2}, p20={"a": 2, "b": 1}, p99={"a": 8, "b": 4}, p50={"a": 3, "b": 1}
    )
    found = read(file, None, run, 2).runs
    assert [(run.name.rsplit("-", 2)[0], run.recipe.to_dict()["method"]["shape"]) for run in found] == [
        ("plain-20", {"a": 2, "b": 1}),
        ("plain-50", {"a": 3, "b": 1}),
    ]
    assert {run.recipe.train.epochs for run in found} == {7}
    assert len(read(file, None, run).runs) == 3  # the full one is none of them
    with pytest.raises(ValueError, match=r"shapes_of: .*none is no evaluated run: FileNotFoundError"):
        read(file, None, tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no learned shapes; try vnd evaluate .* --learned 5"):
        read(file, None, evaluated(tmp_path / "other"))


def test_the_same_run_twice_is_done_once_and_said(tmp_path: Path) -> None:
    grid = {"recipe": "tiny.yaml", "name": "again", "grid": {"train.epochs": [1, 2]}}
    found = make(tmp_path, runs=["tiny.yaml", grid, "tiny.yaml"])
    first, second = found.runs
    assert [run.recipe.train.epochs for run in found.runs] == [1, 2]
    assert found.repeated == ((f"again-epochs=1-0-{first.digest[:8]}", first.name), (first.name, first.name))
    assert second.name.startswith("again-epochs=2-0-")


def test_keys_of_a_grid_that_end_alike_are_told_apart_in_names(tmp_path: Path) -> None:
    grid = {"schedule.temperature.start": [2], "schedule.kl_weight.start": ["1e-3"]}
    (run,) = make(tmp_path, runs=[{"recipe": "tiny.yaml", "grid": grid}]).runs
    assert run.name.startswith("tiny-schedule.temperature.start=2-schedule.kl_weight.start=1e-3-0-")
    assert run.recipe.schedule.kl_weight.start == 1e-3


def test_names_of_folders_hold_nothing_that_a_shell_minds(tmp_path: Path) -> None:
    grid = {"data.folder": ["/a b/../c;d"], "train.validate_at": [[0.5, 1.0]]}
    (run,) = make(tmp_path, runs=[{"recipe": "tiny.yaml", "grid": grid}]).runs
    assert run.name == f"tiny-folder=a-b-..-c-d-validate_at=0.5-1.0-0-{run.digest[:8]}"
    assert run.folder.parent == tmp_path / "runs"


@pytest.mark.parametrize("name", config.names("sweep"))
def test_shipped_sweeps_can_be_read(name: str) -> None:
    found = read(name)
    assert found.about
    assert not found.repeated


# The hash


def test_the_hash_changes_with_what_decides_a_run_and_with_nothing_else(tmp_path: Path) -> None:
    own = settings(tmp_path / "blobs.npz")
    plain = digest(parse(own))
    assert digest(parse({**own, "about": "other words"})) == plain
    turned = {name: dict(reversed(part.items())) for name, part in reversed(own.items())}
    assert digest(parse(turned)) == plain
    recipe = parse(own)
    assert digest(parse(recipe.to_dict())) == plain  # every default written out
    tried = 0
    for section in ("method", "data", "optimizer", "train", "evaluate"):
        part = getattr(recipe, section)
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if type(value) not in (int, float, bool):
                continue
            other = not value if type(value) is bool else value + 1 if type(value) is int else value / 2 + 0.1
            with suppress(ValueError):  # out of range
                changed = dataclasses.replace(part, **{field.name: other})
                assert digest(dataclasses.replace(recipe, **{section: changed})) != plain, f"{section}.{field.name}"
                tried += 1
    assert tried > 20
    network = dataclasses.replace(recipe.network, config={**recipe.network.config, "width": 0.2})
    assert digest(dataclasses.replace(recipe, network=network)) != plain


def test_the_order_of_rules_decides_and_that_of_their_keys_does_not(tmp_path: Path) -> None:
    def hashed(*rules: tuple[str, dict[str, Any]]) -> str:
        return digest(parse(settings(tmp_path / "x.npz", method={"name": "bn3", "rules": dict(rules)})))

    one, two = ("features.*", {"nest": False, "log_alpha_init": -8}), ("features.0", {"nest": True})
    assert hashed(one, two) == hashed(("features.*", {"log_alpha_init": -8, "nest": False}), two)
    assert hashed(one, two) != hashed(two, one)  # the later one wins


def test_a_whole_number_and_its_float_are_one_hash(tmp_path: Path) -> None:
    own = settings(tmp_path / "blobs.npz")
    one, two = (digest(parse(own, [f"--optimizer.lr={word}", f"--train.clip={word}"])) for word in ("1", "1.0"))
    assert one == two


def test_a_folder_holds_a_run_whatever_its_words(tmp_path: Path) -> None:
    recipe = parse(settings(tmp_path / "blobs.npz"))
    wanted = digest(recipe)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    assert holds(tmp_path, wanted)
    shorter = recipe.to_dict()
    del shorter["evaluate"]["bins"]  # as an older version wrote it, which knew no such key
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**shorter, "about": "old"}))
    assert holds(tmp_path, wanted)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml().replace("epochs: 2", "epochs: 3"))
    assert not holds(tmp_path, wanted)
    (tmp_path / "recipe.yaml").write_text("[1")
    with pytest.raises(ValueError, match="is not YAML"):
        holds(tmp_path, wanted)


def test_a_run_is_found_by_its_hash_in_a_folder_of_another_name(tmp_path: Path) -> None:
    run, other = make(tmp_path, **seeds(2)).runs
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recipe.yaml").write_text(run.recipe.to_yaml())
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "recipe.yaml").write_text("nothing")
    again = make(tmp_path, **seeds(2)).runs
    assert [found.folder for found in again] == [tmp_path / "runs" / "mine", other.folder]


# Runs at work, in a fake vnd


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


class Fake:
    """A sweep of fake runs: what is told of them, and what became of each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, does: dict[str, str], **keys: Any) -> None:
        runs = [
            {"recipe": "tiny.yaml", "name": name, "set": {"optimizer.lr": 0.001 * i}} for i, name in enumerate(does)
        ]
        self.worklist = make(folder, **{"runs": runs, **keys})
        self.runs = {run.name.split("-")[0]: run for run in self.worklist.runs}
        fake_vnd.install(folder / "fake.json", self.worklist.runs, does, monkeypatch)
        self.events: list[tuple[str, str]] = []
        self.outcomes: dict[str, Outcome] = {}

    def sweep(self, jobs: int = 1) -> dict[str, str]:
        self.outcomes.clear()
        self.events.clear()
        self.whole = run_all(self.worklist.runs, self.worklist.evaluate, jobs, self.began, self.ended)
        return {name: outcome.status for name, outcome in self.outcomes.items()}

    def began(self, run: Run, state: str) -> None:
        self.events.append((run.name.split("-")[0], state))

    def ended(self, run: Run, outcome: Outcome) -> None:
        self.outcomes[run.name.split("-")[0]] = outcome
        self.events.append((run.name.split("-")[0], outcome.status))

    def calls(self, name: str) -> list[dict[str, Any]]:
        path = self.runs[name].folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def words(self, name: str) -> list[list[str]]:
        return [call["words"] for call in self.calls(name)]


def test_runs_are_trained_and_evaluated_in_turn_and_then_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, monkeypatch, {"one": "well", "two": "well"})
    assert fake.sweep() == {"one": "done", "two": "done"}
    assert fake.whole
    assert fake.events == [("one", "new"), ("one", "done"), ("two", "new"), ("two", "done")]
    run = fake.runs["one"]
    assert fake.words("one") == [
        ["train", run.source, "--out", str(run.folder), *run.overrides],
        ["evaluate", str(run.folder)],
    ]
    assert fake.calls("one")[0]["threads"] is None
    log = (run.folder / "sweep.log").read_text().splitlines()
    assert log[0].startswith(f"$ vnd train {run.source} --out {run.folder} --optimizer.lr=0.0")
    assert log[1:] == ["something that worked", f"$ vnd evaluate {run.folder}", "something that worked"]
    assert fake.sweep() == {"one": "skipped", "two": "skipped"}
    assert fake.events == [("one", "skipped"), ("two", "skipped")]
    assert len(fake.calls("one")) == 2


def test_a_run_is_skipped_only_if_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, {"one": "well"}, evaluate=False)
    run = fake.runs["one"]
    assert state_of(run, False) == "new"
    assert fake.sweep() == {"one": "done"}
    assert len(fake.calls("one")) == 1  # not evaluated
    assert (state_of(run, False), state_of(run, True)) == ("finished", "trained")
    assert perform(run, True, Processes(sweep.VND)).status == "done"
    assert fake.words("one")[1:] == [["evaluate", str(run.folder)]]  # and not trained again
    (run.folder / "last" / "network.json").unlink()
    assert state_of(run, True) == "begun"
    (run.folder / "recipe.yaml").write_text(run.recipe.to_yaml().replace("epochs: 1", "epochs: 2"))
    with pytest.raises(ValueError, match="holds a run of another recipe; move it away"):
        state_of(run, True)
    assert fake.sweep() == {"one": "failed"}
    assert "holds a run of another recipe" in fake.outcomes["one"].error


FAILURES = {
    "crashes": "CUDA out of memory",
    "is refused": "train.epochs must be at least 1; got 0",
    "is killed": "killed by SIGKILL (out of memory?)",
    "ends in silence": "train ended without an error, and left no network",
    "is another": "holds a run of another recipe",
    "fails in evaluation": "no digits here",
}


def test_failures_leave_the_others_alone_and_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    does = {"first": "well", **{f"f{i}": what for i, what in enumerate(FAILURES)}, "last": "well"}
    fake = Fake(tmp_path, monkeypatch, does)
    found = fake.sweep(jobs=2)
    assert found == {**dict.fromkeys(does, "failed"), "first": "done", "last": "done"}
    assert fake.whole
    for i, told in enumerate(FAILURES.values()):
        assert told in fake.outcomes[f"f{i}"].error
        assert "\n" not in fake.outcomes[f"f{i}"].error


def test_a_run_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, {"one": "is killed once", "two": "well"})
    assert fake.sweep() == {"one": "failed", "two": "done"}
    assert fake.sweep() == {"one": "done", "two": "skipped"}
    assert fake.events[0] == ("one", "begun")
    assert fake.words("one")[1:] == [
        ["train", "--resume", str(fake.runs["one"].folder)],
        ["evaluate", str(fake.runs["one"].folder)],
    ]


def test_jobs_are_at_work_at_the_same_time_and_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_cpus", lambda: 6)
    fake = Fake(tmp_path, monkeypatch, {"one": "meets there", "two": "meets there", "three": "well"}, evaluate=False)
    assert fake.sweep(jobs=2) == {"one": "done", "two": "done", "three": "done"}
    assert [fake.calls(name)[0]["threads"] for name in fake.runs] == ["3", "3", "3"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # who says it is heard
    assert Processes(sweep.VND, 3).environment["OMP_NUM_THREADS"] == "5"


def test_what_is_at_work_elsewhere_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, {"one": "well", "two": "well"}, evaluate=False)
    one, two = fake.runs["one"], fake.runs["two"]
    with lock(one.folder):
        assert in_use(one.folder)
        assert not in_use(two.folder)
        assert fake.sweep() == {"one": "in use", "two": "done"}
    assert not fake.calls("one")
    assert not in_use(one.folder)
    second: list[Outcome] = []

    def began(run: Run, state: str) -> None:  # another sweep comes by
        assert in_use(run.folder)
        second.append(perform(run, False, Processes(sweep.VND)))

    assert perform(one, False, Processes(sweep.VND), began).status == "done"
    assert [outcome.status for outcome in second] == ["in use"]
    assert len(fake.calls("one")) == 1


def test_a_process_that_outlives_its_sweep_still_holds_its_run(tmp_path: Path) -> None:
    with (tmp_path / sweep.LOG).open("ab") as log:
        assert sweep._lock(log)
        child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stdout=log)
    assert in_use(tmp_path)
    child.communicate(b"\n")
    assert not in_use(tmp_path)


def test_ctrl_c_lets_runs_save_and_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    fake = Fake(tmp_path, monkeypatch, {"one": "well", "two": "interrupts 1 time", "three": "well"})
    assert fake.sweep() == {"one": "done", "two": "stopped"}
    assert not fake.whole
    assert (fake.runs["two"].folder / "told").read_text() == "1"
    assert capfd.readouterr().err == "stopping: 1 at work saves first; once more to stop at once\n"
    assert signal.getsignal(signal.SIGINT) is before
    assert fake.sweep() == {"one": "skipped", "two": "done", "three": "done"}
    assert fake.whole
    assert "--resume" in fake.words("two")[1]


def test_the_third_ctrl_c_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, monkeypatch, {"one": "interrupts 3 times", "two": "well"})
    assert fake.sweep() == {"one": "stopped"}
    assert (fake.runs["one"].folder / "told").read_text() == "2"


# Runs at work, in the real one


def real(folder: Path) -> dict[str, Any]:
    """The smallest recipe that there is, with its data."""
    data = write_blobs(folder / "blobs.npz")
    return settings(data, method={"name": "plain"}, train={"epochs": 2}, optimizer={"chain_lr": None})


def test_a_real_run_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = read(write(tmp_path, real(tmp_path), seeds=[3], evaluate=False))
    (run,) = found.runs
    outcome = perform(run, False, Processes(sweep.VND))
    assert outcome.status == "done", outcome
    assert parse(run.folder / "recipe.yaml") == run.recipe
    assert (run.folder / "last" / "network.json").exists()
    assert f"done: {run.folder}" in (run.folder / "sweep.log").read_text()


@pytest.mark.fault
def test_a_real_run_that_was_cut_off_goes_on_to_the_same_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (run,) = read(write(tmp_path, real(tmp_path), evaluate=False)).runs
    own = TrainState.validate

    def cut_off(self: TrainState) -> dict[str, float]:
        if self.step == self.steps:
            raise OSError("cut off")
        return own(self)

    with monkeypatch.context() as patched:
        patched.setattr(TrainState, "validate", cut_off)
        with pytest.raises(OSError, match="cut off"):
            fit(run.recipe, run.folder, quiet=True)
    assert state_of(run, False) == "begun"
    outcome = perform(run, False, Processes(sweep.VND))
    assert outcome.status == "done", outcome
    assert "--resume" in (run.folder / "sweep.log").read_text()
    fit(run.recipe, tmp_path / "whole", quiet=True)
    two = [json.loads((folder / "last" / "network.json").read_text()) for folder in (run.folder, tmp_path / "whole")]
    assert two[0]["sha256"] == two[1]["sha256"]


@pytest.mark.fault
def test_real_runs_are_evaluated_and_one_with_a_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    grid = {"recipe": "tiny.yaml", "grid": {"optimizer.lr": [1.0e30, 0.01]}}
    found = read(write(tmp_path, real(tmp_path), runs=[grid]))
    ended: list[Outcome] = []
    assert run_all(found.runs, True, 1, lambda run, state: None, lambda run, outcome: ended.append(outcome))
    assert [outcome.status for outcome in ended] == ["failed", "done"], ended
    assert "not finite" in ended[0].error
    assert json.loads((found.runs[1].folder / "results.json").read_text())["rows"]


# On a cluster


def test_options_of_the_cluster_are_checked() -> None:
    sweep.check_options({"partition": "gpu", "slurm_nodelist": "a", "cluster": "local"}, "here")
    with pytest.raises(ValueError, match="here: unknown key 'partion'; did you mean 'partition'"):
        sweep.check_options({"partion": "gpu"}, "here")


def test_without_submitit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'variational-nested-dropout\[cluster\]'"):
        sweep.submit([], True, {}, Path("x"))


class FakeSubmitit:
    """As much of submitit as is used: it only takes notes."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.parameters: dict[str, Any] = {}
        self.jobs: list[Any] = []

    def AutoExecutor(self, **options: Any) -> FakeSubmitit:  # noqa: N802
        self.made.append(options)
        return self

    def update_parameters(self, **parameters: Any) -> None:
        if "slurm_nonsense" in parameters:
            raise NameError("Unknown argument 'nonsense' for executor 'slurm'\nKnown executors: many")
        self.parameters = parameters

    def batch(self) -> Any:
        return nullcontext()

    def submit(self, job: Any) -> Any:
        self.jobs.append(job)
        return SimpleNamespace(job_id=f"77_{len(self.jobs) - 1}")


def test_runs_are_given_to_submitit_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, submitit = Fake(tmp_path, monkeypatch, {"one": "well", "two": "crashes"}), FakeSubmitit()
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    options = {"partition": "gpu", "gpus": 1, "time": 120, "at_once": 4, "slurm_nodelist": "a"}
    assert [job.job_id for job in sweep.submit(fake.worklist.runs, True, options, tmp_path / "x")] == ["77_0", "77_1"]
    assert submitit.made == [{"folder": tmp_path / "x", "cluster": "slurm"}]
    assert submitit.parameters == {
        "name": "vnd", "slurm_partition": "gpu", "gpus_per_node": 1, "timeout_min": 120,
        "slurm_array_parallelism": 4, "slurm_nodelist": "a",
    }  # fmt: skip
    one, two = pickle.loads(pickle.dumps(submitit.jobs))  # as submitit sends them
    assert one() == "done"
    assert state_of(fake.runs["one"], True) == "finished"
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        two()
    with pytest.raises(ValueError, match=r"^slurm: Unknown argument 'nonsense' for executor 'slurm'$"):
        sweep.submit(fake.worklist.runs, True, {"slurm_nonsense": 1}, tmp_path)


@pytest.mark.fault
def test_submitit_runs_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through submitit's own local executor: pickled, started, trained, and a failure is a failed job."""
    submitit = pytest.importorskip("submitit")
    fake = Fake(tmp_path, monkeypatch, {"one": "well", "two": "crashes"})
    jobs_of = sweep.submit(
        fake.worklist.runs, True, {"cluster": "local", "time": 1, "partition": "gpu"}, tmp_path / "submitit"
    )
    assert jobs_of[0].result() == "done"
    with pytest.raises(submitit.core.utils.FailedJobError, match="CUDA out of memory"):
        jobs_of[1].result()
    assert state_of(fake.runs["one"], True) == "finished"
    again = sweep.Job(fake.runs["one"], True, os.getcwd(), ()).checkpoint()
    assert again.function.run == fake.runs["one"]
    with pytest.raises(ValueError, match='slurm: Could not detect "srun"'):
        sweep.submit(fake.worklist.runs, True, {}, tmp_path / "submitit")
    with pytest.raises(ValueError, match='slurm: Parameter "timeout_min" expected type'):
        sweep.submit(fake.worklist.runs, True, {"cluster": "local", "time": "long"}, tmp_path / "submitit")
