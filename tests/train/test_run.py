"""The folder of a run: one holder at a time, one history, and no secrets."""

import errno
import fcntl
import json
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hostile
from vnd.train import run
from vnd.train.run import Log, environment, lock

# The lock


def hold(folder: Path) -> tuple[int, int]:
    """Start a child that holds a folder until it is killed; its process id, and a pipe that it has open."""
    ours, theirs = os.pipe()

    def work() -> None:
        os.close(ours)
        with lock(folder):
            os.write(theirs, b".")
            signal.pause()

    child = hostile.forked(work)
    os.close(theirs)
    assert os.read(ours, 1) == b"."
    return child, ours


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError, match=r"^run: .* is in use by ") as caught, lock(folder):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/vnd", "train", "--out", "a b"])
    child, pipe = hold(tmp_path / "runs" / "x")
    try:
        assert refusal(tmp_path / "runs" / "x") == (
            f"run: {tmp_path}/runs/x is in use by process {child} on {socket.gethostname()} (vnd train --out 'a b'); "
            "wait for it or give another folder"
        )
        with lock(tmp_path / "runs" / "y"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        assert hostile.ended(child) == -signal.SIGKILL
        os.close(pipe)
    assert "vnd train" in (tmp_path / "runs" / "x" / "lock.json").read_text()  # it had no time to clear it
    with lock(tmp_path / "runs" / "x"):  # the kernel has dropped it
        assert str(os.getpid()) in (tmp_path / "runs" / "x" / "lock.json").read_text()
        refusal(tmp_path / "runs" / "x")  # also to the process that holds it
    assert not (tmp_path / "runs" / "x" / "lock.json").exists()


def test_the_lock_is_let_go_after_an_error(tmp_path):
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), lock(tmp_path):
            raise error
        assert not (tmp_path / "lock.json").exists()
    with lock(tmp_path):
        pass


def test_a_worker_that_outlives_its_killed_run_does_not_hold_the_folder(tmp_path):
    ours, theirs = os.pipe()

    def serve() -> None:
        os.write(theirs, os.getpid().to_bytes(4, "little"))
        signal.pause()

    def work() -> None:
        with lock(tmp_path):
            hostile.forked(serve)
            signal.pause()

    child = hostile.forked(work)
    worker = int.from_bytes(os.read(ours, 4), "little")
    os.close(ours)
    os.close(theirs)
    try:
        refusal(tmp_path)
        os.kill(child, signal.SIGKILL)
        assert hostile.ended(child) == -signal.SIGKILL
        with lock(tmp_path):
            os.kill(worker, 0)  # it is still there
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_forked_child_that_leaves_the_block_does_not_let_go(tmp_path):
    held = lock(tmp_path)
    with held:
        holder = (tmp_path / "lock.json").read_text()
        assert hostile.ended(hostile.forked(lambda: held.__exit__(None, None, None))) == 0
        assert (tmp_path / "lock.json").read_text() == holder
        refusal(tmp_path)


def test_a_lock_left_on_another_host_is_said_so_and_one_of_this_host_is_not(tmp_path):
    for left in ("", "not JSON", "[1]", "[" * 4000, json.dumps({"pid": 1, "host": socket.gethostname()})):
        (tmp_path / "lock.json").write_text(left)
        with lock(tmp_path):
            pass
    (tmp_path / "lock.json").write_text(
        json.dumps({"pid": 7, "host": "far\naway", "command": "vnd train " + "x" * 500})
    )
    with (
        pytest.warns(RuntimeWarning, match=r"^run: .* was held by process 7 on far away \(vnd train x*, which"),
        lock(tmp_path),
    ):
        refusal(tmp_path)
    with lock(tmp_path):
        pass


def test_a_holder_that_has_not_said_who_it_is_is_another_process(tmp_path):
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "in use by another process;" in refusal(tmp_path)


def test_a_file_system_without_locks_is_said_so(tmp_path, monkeypatch):
    def fails(code: int) -> Any:
        def flock(handle: int, how: int) -> None:
            raise OSError(code, os.strerror(code))

        return flock

    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fails(errno.ENOLCK))
        with (
            pytest.raises(OSError, match=r"^run: .* is on a file system without locks \(No locks available\)"),
            lock(tmp_path),
        ):
            pass
        patch.setattr(fcntl, "flock", fails(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"), lock(tmp_path):
            pass
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)  # none is left open
    with lock(tmp_path):
        pass


# Where it ran


def test_the_environment_is_json_without_environment_variables(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush-12345")
    monkeypatch.setattr(sys, "argv", ["/home/me/bin/vnd", "train", "x.yaml"])
    found = environment()
    assert "hush" not in json.dumps(found, allow_nan=False)
    assert found["command"] == ["vnd", "train", "x.yaml"]
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert found["cpus"] == os.cpu_count()


def test_a_package_that_is_not_there_has_no_version(monkeypatch):
    real = run.metadata.version

    def version(name: str) -> str:
        if name == "accelerate":
            raise run.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(run.metadata, "version", version)
    assert environment()["versions"]["accelerate"] is None


def git(folder: Path, *words: str) -> str:
    own = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"HOME": str(folder)}
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", *name, *words], cwd=folder, env=own, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A checkout of the library, by itself; within a hook's environment, and another current folder."""
    folder = tmp_path / "checkout"
    (folder / "src" / "vnd").mkdir(parents=True)
    git(folder, "init", "-q")
    for name in ("pyproject.toml", "src/vnd/_files.py"):
        (folder / name).write_text("")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(run._files, "__file__", str(folder / "src" / "vnd" / "files.py"))
    return folder


def commit_of(folder: Path) -> dict[str, str]:
    return {"folder": str(folder / "src" / "vnd"), "commit": git(folder, "rev-parse", "HEAD").strip()}


def test_the_commit_is_that_of_the_source(source, tmp_path, monkeypatch):
    assert environment()["git"] == commit_of(source)
    git(source, "pack-refs", "--all")
    assert not [path for path in (source / ".git" / "refs" / "heads").rglob("*") if path.is_file()]
    assert environment()["git"] == commit_of(source)
    git(source, "checkout", "-q", "--detach")
    assert environment()["git"] == commit_of(source)
    git(source, "worktree", "add", "-q", "-b", "feature/a", str(tmp_path / "second"))
    git(tmp_path / "second", "commit", "-q", "--allow-empty", "-m", "y")
    monkeypatch.setattr(run._files, "__file__", str(tmp_path / "second" / "src" / "vnd" / "files.py"))
    assert environment()["git"] == commit_of(tmp_path / "second")
    assert environment()["git"]["commit"] != commit_of(source)["commit"]


def test_an_installed_copy_has_no_commit_wherever_it_is_used(source, monkeypatch):
    installed = source / "venv" / "lib" / "vnd"
    installed.mkdir(parents=True)
    monkeypatch.setattr(run._files, "__file__", str(installed / "files.py"))
    monkeypatch.chdir(source)
    assert environment()["git"] is None


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: ../../x", "x" * 40, "ref: /etc/passwd"])
def test_a_head_that_cannot_be_read_is_no_commit(head, source):
    (source / ".git" / "HEAD").write_text(head)
    assert environment()["git"] is None


def test_no_program_is_run(source, tmp_path, monkeypatch):
    """A configuration that names a program: of the current folder, and of the source."""
    here = tmp_path / "here"
    here.mkdir()
    git(here, "init", "-q")
    for folder in (here, source):
        git(folder, "config", "core.fsmonitor", f"touch {tmp_path / 'RAN'}; false")
        (folder / "a").write_text("a")
        git(folder, "add", "a")
    (tmp_path / "RAN").unlink(missing_ok=True)
    monkeypatch.delenv("GIT_DIR")
    subprocess.run(["git", "status"], cwd=here, check=True, capture_output=True)
    assert (tmp_path / "RAN").exists()  # it is a trap indeed
    (tmp_path / "RAN").unlink()
    monkeypatch.chdir(here)
    assert environment()["git"] == commit_of(source)
    (tmp_path / "RAN").unlink(missing_ok=True)  # of the test's own git
    for name in ("Popen", "run"):
        monkeypatch.setattr(subprocess, name, lambda *args, **kwargs: pytest.fail(f"ran {args}"))
    environment()
    assert not (tmp_path / "RAN").exists()


# What it measured


def test_rows_come_back(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    assert log.read() == []
    rows = [{"step": 1, "loss": 0.1 + 0.2, "name": "ä\n"}, {"step": 2, "parts": {"a": [1, None, True]}}]
    for row in rows:
        log.append(row)
    assert log.read() == rows
    assert Log(tmp_path / "metrics.jsonl").read() == rows
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 2


def test_what_is_not_finite_is_written_as_a_word(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    values = [
        math.nan,
        math.inf,
        -math.inf,
        torch.tensor(math.nan),
        np.float32("inf"),
        torch.tensor(3),
        np.float64(0.5),
    ]
    log.append({"step": 1, "values": values, "pair": (math.nan, 1.0)})
    (row,) = log.read()
    assert row["values"] == ["nan", "inf", "-inf", "nan", "inf", 3, 0.5]
    assert row["pair"] == ["nan", 1.0]
    assert [float(value) for value in row["values"]][1:3] == [math.inf, -math.inf]

    def no_constant(word: str) -> None:
        raise AssertionError(word)

    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=no_constant)


def test_the_history_is_one_after_going_back(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log.truncate(5)
    assert not log.path.exists()
    for step in range(10):
        log.append({"step": step, "try": 1})
    log.truncate(6)
    for step in range(7, 10):
        log.append({"step": step, "try": 2})
    assert log.read() == [{"step": step, "try": 1 + (step > 6)} for step in range(10)]
    log.truncate(-1)
    assert log.read() == []


@pytest.mark.parametrize("torn", [b"{", b'{"step": 3, "a": 0.', b'{"step": 3}', b"\0\0\0", b"\xff"])
def test_a_torn_last_line_is_dropped(torn, tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        log.append({"step": step})
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + torn)
    assert [row["step"] for row in log.read()] == [1, 2]
    log.truncate(2)
    assert log.path.read_bytes() == whole
    log.path.write_bytes(whole + torn)
    log.append({"step": 3})
    assert log.path.read_bytes() == whole + b'{"step": 3}\n'
    log.path.write_bytes(torn)
    log.append({"step": 3})
    assert log.path.read_bytes() == b'{"step": 3}\n'


@pytest.mark.parametrize(
    "line", ["{", "", "[1]", "3", '{"loss": 1}', '{"step": "1"}', '{"step": true}', "[" * 10**5, "\0"]
)
def test_a_damaged_line_is_named_and_nothing_is_lost(line, tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log.append({"step": 1})
    with log.path.open("a") as file:
        file.write(f"{line}\n")
    log.append({"step": 2})
    before = log.path.read_bytes()
    for call in (log.read, lambda: log.truncate(1)):
        with pytest.raises(ValueError, match=r"^run: line 2 of .*metrics\.jsonl is damaged: ") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert log.path.read_bytes() == before


def test_a_row_without_its_step_or_not_of_json_is_refused(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    for row in ({}, {"step": 1.0}, {"step": True}, {"step": "1"}):
        with pytest.raises(ValueError, match=r"^Log: a row must have its step, an int; got "):
            log.append(row)
    with pytest.raises(TypeError):
        log.append({"step": 1, "x": object()})
    assert not log.path.exists()


def test_a_row_is_written_whole_or_not_at_all(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log.append({"step": 1})
    before = log.path.read_bytes()
    for size in (len(before), len(before) + 5):  # nothing more fits, and a part of it
        with pytest.raises(OSError, match=r"File too large|No space left"), hostile.short_writes(size):
            log.append({"step": 2, "loss": 0.5})
        assert log.path.read_bytes() == before
    log.append({"step": 2})
    assert len(log.read()) == 2


@pytest.mark.parametrize("fault", [hostile.full_disk, hostile.broken_disk, hostile.read_only, hostile.interrupted])
def test_going_back_is_one_step(fault, tmp_path, monkeypatch):
    log = Log(tmp_path / "metrics.jsonl")
    for step in range(4):
        log.append({"step": step})
    before = log.path.read_bytes()
    calls = hostile.Calls(monkeypatch)
    for at in range(3):
        calls.restart(at, fault)
        with pytest.raises((OSError, KeyboardInterrupt)):
            log.truncate(1)
        assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
        assert log.path.read_bytes() == before
