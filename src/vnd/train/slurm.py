"""The runs of a sweep as jobs of a SLURM cluster, through submitit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vnd._text import nearest
from vnd.train import jobs
from vnd.train.sweeps import Run

OPTIONS = {  # as a sweep spells them → as submitit does
    "time": "timeout_min", "gpus": "gpus_per_node", "cpus": "cpus_per_task", "memory": "mem_gb", "name": "name",
    "partition": "slurm_partition", "account": "slurm_account", "qos": "slurm_qos", "constraint": "slurm_constraint",
    "exclude": "slurm_exclude", "setup": "slurm_setup", "at_once": "slurm_array_parallelism",
}  # fmt: skip
WAITING = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "COMPLETING")


@dataclass(frozen=True)
class Job:
    """One run as a cluster runs it: the same as here, from the folder that it was submitted from.

    Where the cluster takes the machine back, or the time is up, the job is queued again and the run goes on.
    """

    run: Run
    evaluate: bool
    start: str
    command: tuple[str, ...]

    def __call__(self) -> str:
        """Train and evaluate it; what fails here is a failed job there."""
        os.chdir(self.start)
        outcome = jobs.perform(self.run, self.evaluate, jobs.Processes(self.command))
        if outcome.status == "failed":
            raise RuntimeError(outcome.error)
        return outcome.status

    def checkpoint(self) -> Any:
        """What submitit queues again: this very job, as the run's folder knows how far it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def check_options(options: dict[str, Any], where: str) -> None:
    """Refuse an option that nobody knows."""
    known = [*OPTIONS, "cluster"]
    for key in options:
        if key not in known and not str(key).startswith("slurm_"):
            hint = nearest(str(key), known, cutoff=0.5, lead=";")
            raise ValueError(f"{where}: unknown key {key!r}{hint} Known: {', '.join(known)}, and submitit's slurm_…")


def submit(runs: Sequence[Run], evaluate: bool, options: dict[str, Any], folder: Path) -> list[Any]:
    """Submit each run as a job, all together as one array; it does not wait for them.

    Args:
        runs: What to do.
        evaluate: Whether each is evaluated when it is trained.
        options: Of the jobs, as a sweep spells them; `cluster` is submitit's, "slurm" if not given.
        folder: For submitit's files.
    """
    submitit = _submitit()
    parameters = {OPTIONS.get(key, key): value for key, value in options.items() if key != "cluster"}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=options.get("cluster", "slurm"))
        executor.update_parameters(**{"name": "vnd", **parameters})
    except (NameError, AssertionError, RuntimeError) as error:  # submitit's ways to refuse
        raise ValueError(f"slurm: {str(error).splitlines()[0]}") from None
    with executor.batch():
        return [executor.submit(Job(run, evaluate, os.getcwd(), tuple(jobs.VND))) for run in runs]


def is_queued(job: str, folder: Path) -> bool:
    """Whether SLURM knows a job that waits or works; a doubt is a no, for a run that is at work is locked."""
    state = str(_submitit().SlurmJob(folder=folder, job_id=job).state)
    return state.upper().startswith(WAITING)


def _submitit() -> Any:
    try:
        import submitit
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "sweeping on a cluster needs submitit; pip install 'variational-nested-dropout[cluster]'"
        ) from None
    return submitit
