"""`vnd sweep --slurm` on a real SLURM: one node on loopback, started and stopped by cluster.sh.

Needs root and, on Debian, the packages slurm-wlm and munge. `make test-slurm` runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from train.small import settings, write_blobs

pytestmark = pytest.mark.slurm
CLUSTER = Path(__file__).with_name("cluster.sh")


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("OMP_NUM_THREADS", "1")
        try:
            subprocess.run([CLUSTER, "start", folder], check=True)
            yield
        finally:
            subprocess.run([CLUSTER, "stop", folder], check=True)


def write(folder: Path, epochs: int = 1, **keys: Any) -> Path:
    """A sweep of the smallest recipe that there is."""
    own = settings(write_blobs(folder / "blobs.npz"), method={"name": "plain"}, optimizer={"chain_lr": None})
    own["train"] |= {"epochs": epochs}
    (folder / "tiny.yaml").write_text(json.dumps(own))
    text = {"out": str(folder / "runs"), "runs": ["tiny.yaml"], "slurm": {"time": 5, "cpus": 1}, **keys}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(text))
    return folder / "sweep.yaml"


def sweep(file: Path, code: int = 0) -> list[dict[str, Any]]:
    """What the command wrote of each run."""
    done = subprocess.run([sys.executable, "-m", "vnd", "sweep", file], capture_output=True, text=True)
    assert done.returncode == code, done
    rows: list[dict[str, Any]] = json.loads((file.parent / "runs" / "sweep.json").read_text())["runs"]
    return rows


def wait(what: Any, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, squeue()
        time.sleep(0.2)


def squeue() -> str:
    return subprocess.run(["squeue", "--noheader"], check=True, capture_output=True, text=True).stdout.strip()


def test_runs_are_submitted_once_done_there_and_then_skipped(tmp_path: Path) -> None:
    file = write(tmp_path, seeds=[0, 1], slurm={"time": 5, "cpus": 1, "at_once": 1})
    submitted = sweep(file)
    assert [row["status"] for row in submitted] == ["submitted", "submitted"]
    assert submitted[0]["job"] != submitted[1]["job"]
    again = sweep(file)  # the second waits for the first
    assert {row["status"] for row in again} <= {"queued", "in use"}
    assert again[1]["status"] == "queued"
    assert [row["job"] for row in again] == [row["job"] for row in submitted]
    wait(lambda: not squeue())
    assert [row["status"] for row in sweep(file)] == ["skipped", "skipped"]
    for row in submitted:
        assert (Path(row["folder"]) / "results.json").exists()


def test_a_run_that_failed_there_is_submitted_again_when_it_is_mended(tmp_path: Path) -> None:
    file = write(tmp_path, set={"optimizer.lr": 1.0e30})
    (first,) = sweep(file)
    wait(lambda: not squeue())
    log = (Path(first["folder"]) / "sweep.log").read_text()
    assert "not finite" in log
    assert not (Path(first["folder"]) / "last" / "network.json").exists()
    (second,) = sweep(file)
    assert second["status"] == "submitted"
    assert second["job"] != first["job"]
    wait(lambda: not squeue())


def test_a_job_that_must_go_is_queued_again_and_its_run_goes_on(tmp_path: Path) -> None:
    """SLURM's warning before a time limit or a preemption: the run saves, submitit queues it, it goes on from there."""
    file = write(tmp_path, epochs=2000, set={"train.validate_every": 2000, "train.save_every": 5}, evaluate=False)
    (row,) = sweep(file)
    folder = Path(row["folder"])
    wait(lambda: (folder / "checkpoints").exists())
    subprocess.run(["scancel", "--signal=USR2", row["job"]], check=True)
    wait(lambda: "--resume" in (folder / "sweep.log").read_text())
    wait(lambda: not squeue())
    assert (folder / "last" / "network.json").exists()
    assert [row["status"] for row in sweep(file)] == ["skipped"]
