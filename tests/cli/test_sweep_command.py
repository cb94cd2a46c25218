"""`vnd sweep`: what it prints, what it leaves for machines, and how it ends; the runs are those of a fake vnd."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from refusals import fails
from train import fake_vnd
from train.small import settings
from vnd.cli import main
from vnd.train import sweep
from vnd.train.run import lock
from vnd.train.sweep import Run, read


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path)


def write(folder: Path, **keys: Any) -> Path:
    """A sweep of two seeds."""
    (folder / "tiny.yaml").write_text(json.dumps(settings(folder / "blobs.npz", train={"epochs": 1})))
    own = {"about": "two", "out": str(folder / "runs"), "seeds": [0, 1], "runs": ["tiny.yaml"], **keys}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(own, sort_keys=False))
    return folder / "sweep.yaml"


def faked(file: Path, monkeypatch: pytest.MonkeyPatch, **does: str) -> tuple[Run, ...]:
    """The runs of a sweep, with what happens to them by seed: s0="crashes"."""
    runs = read(file).runs
    told = {run.name: does.get(f"s{run.recipe.train.seed}", "well") for run in runs}
    fake_vnd.install(file.parent / "fake.json", runs, told, monkeypatch)
    return runs


def run(*words: object, code: int = 0) -> None:
    """Run the command, which must end with this code."""
    with pytest.raises(SystemExit) if code else nullcontext() as stopped:
        main(["sweep", *map(str, words)])
    if stopped is not None:
        assert stopped.value.code == code


def book(file: Path) -> list[dict[str, Any]]:
    kept: dict[str, Any] = json.loads((file.parent / "runs" / "sweep.json").read_text())
    assert kept.keys() == {"sweep", "about", "out", "runs"}
    rows: list[dict[str, Any]] = kept["runs"]
    return rows


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main(["sweep", "--help"])
    told = capsys.readouterr().out
    assert "Example: vnd sweep fashion --out runs/fashion --jobs 2" in told
    for option in ("--out", "--jobs", "--slurm", "--dry"):
        assert option in told


def test_a_sweep_says_how_each_run_ended_to_people_and_machines(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = faked(file, monkeypatch, s0="crashes")
    run(file, code=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1/2 train: {one.name}"
    assert lines[1].startswith("1/2 failed, ")
    assert lines[1].endswith(f" s: {one.name}: CUDA out of memory")
    assert lines[2] == f"2/2 train: {two.name}"
    assert lines[3].endswith(f" s: {two.name}")
    assert lines[4].split() == ["run", "status", "time"]
    assert [line.split()[:2] for line in lines[5:7]] == [[one.name, "failed"], [two.name, "done"]]
    assert lines[5].endswith("  CUDA out of memory")
    assert lines[7] == f"1 failed, 1 done; {file.parent / 'runs' / 'sweep.json'}"
    assert lines[8] == f"what it said: {file.parent / 'runs'}/RUN/sweep.log"
    first, second = book(file)
    assert first.keys() == {"name", "hash", "folder", "status", "error", "seconds", "job"}
    assert (first["name"], first["hash"], first["folder"]) == (one.name, one.digest, str(one.folder))
    assert [(row["status"], row["error"]) for row in (first, second)] == [
        ("failed", "CUDA out of memory"),
        ("done", ""),
    ]
    assert second["seconds"] >= 0
    faked(file, monkeypatch)  # mended
    run(file)
    assert [row["status"] for row in book(file)] == ["done", "skipped"]
    assert book(file)[1]["seconds"] == second["seconds"]
    assert "1 done, 1 skipped" in capsys.readouterr().out


def test_the_folder_can_be_given_and_what_is_in_use_is_no_failure(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, _ = faked(file, monkeypatch)
    with lock(tmp_path / "else" / one.name):
        run(file, "--out", tmp_path / "else", "--jobs", 2)
    assert "1 in use, 1 done" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert (tmp_path / "else" / "sweep.json").exists()


def test_a_dry_run_lists_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, runs=["tiny.yaml", {"recipe": "tiny.yaml", "name": "again", "seeds": [1]}])
    one, two = faked(file, monkeypatch)
    run(file, "--dry_run")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"again-1-{two.digest[:8]}: the same run as {two.name}; done once"
    assert lines[2] == f"1  {one.name}  new  vnd train {tmp_path / 'tiny.yaml'} --train.seed=0"
    assert lines[-1] == f"2 runs in {tmp_path / 'runs'}; nothing was done"
    assert not (tmp_path / "runs").exists()
    one.folder.mkdir(parents=True)
    (one.folder / "recipe.yaml").write_text(one.recipe.to_yaml())
    two.folder.mkdir(parents=True)
    (two.folder / "recipe.yaml").write_text(one.recipe.to_yaml())
    run(file, "--dry_run")
    lines = capsys.readouterr().out.splitlines()
    assert " begun " in lines[2]
    assert " of another recipe " in lines[3]


def test_ctrl_c_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, seeds=[0, 1, 2])
    faked(file, monkeypatch, s1="interrupts 1 time")
    run(file, code=130)
    told = capfd.readouterr()
    assert told.err.splitlines()[-1] == f"vnd: stopped: 2 of 3 runs left to do; go on with: vnd sweep {file}"
    assert "1 done, 1 stopped, 1 left" in told.out
    assert [row["status"] for row in book(file)] == ["done", "stopped", "left"]
    run(file)
    assert [row["status"] for row in book(file)] == ["skipped", "done", "done"]


def test_runs_are_submitted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, seeds=[0, 1, 2, 3], slurm={"partition": "gpu", "time": 60})
    one, two, three, four = faked(file, monkeypatch)
    asked: list[tuple[list[str], dict[str, Any]]] = []
    queue: set[str] = set()

    def submit(runs: list[Run], evaluate: bool, options: dict[str, Any], folder: Path) -> list[Any]:
        assert evaluate
        assert folder == tmp_path / "runs" / "submitit"
        asked.append(([run.name for run in runs], options))
        return [SimpleNamespace(job_id=f"7_{number}") for number in range(len(runs))]

    monkeypatch.setattr(sweep, "submit", submit)
    monkeypatch.setattr(sweep, "is_queued", lambda job: job in queue)
    run(file, "--slurm", "{time: 120}")
    assert asked == [([one.name, two.name, three.name, four.name], {"partition": "gpu", "time": 120})]
    assert [(row["status"], row["job"]) for row in book(file)] == [("submitted", f"7_{i}") for i in range(4)]
    assert f"{one.name}  submitted        job 7_0" in capsys.readouterr().out
    queue.add("7_1")
    finish(three)
    with lock(one.folder):
        run(file)
    assert asked[1:] == [([four.name], {"partition": "gpu", "time": 60})]  # its job is gone, and it is not finished
    assert [row["status"] for row in book(file)] == ["in use", "queued", "skipped", "submitted"]
    assert [row["job"] for row in book(file)] == ["7_0", "7_1", None, "7_0"]
    run(file, "--slurm", "no")  # here
    assert [row["status"] for row in book(file)] == ["done", "done", "skipped", "done"]
    asked.clear()
    run(file)
    assert not asked


def finish(one: Run) -> None:
    (one.folder / "last").mkdir(parents=True)
    (one.folder / "recipe.yaml").write_text(one.recipe.to_yaml())
    for name in ("last/network.json", "results.json"):
        (one.folder / name).write_text("{}")


def test_without_submitit_the_extra_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    line = fails(capsys, "sweep", file, "--slurm", "{}")
    assert line == "vnd: sweeping on a cluster needs submitit; pip install 'variational-nested-dropout[cluster]'"
