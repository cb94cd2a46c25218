"""The runs of a sweep at work: each in processes of its own, so that one that fails takes no other with it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from vnd.train.run import LOCK
from vnd.train.sweeps import Run, holds

LOG = "sweep.log"
VND = (sys.executable, "-m", "vnd")
STATES = ("new", "begun", "trained", "finished")
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


Status = Literal["done", "skipped", "failed", "stopped", "in use"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `error` is one line."""

    status: Status
    error: str = ""
    seconds: float = 0.0


def state_of(run: Run, evaluate: bool) -> str:
    """How far a run is: "new", "begun", "trained", which lacks its evaluation, or "finished"."""
    if not (run.folder / "recipe.yaml").exists():
        return "new"
    if not holds(run.folder, run.digest):
        raise ValueError(f"{run.folder} holds a run of another recipe; move it away, or give another --out")
    if not (run.folder / "last" / "network.json").exists():
        return "begun"
    return "trained" if evaluate and not (run.folder / "results.json").exists() else "finished"


def in_use(folder: Path) -> bool:
    """Whether a process trains in a folder, or a sweep is at work on it."""
    return _is_trained_in(folder) or _is_locked(folder / LOG)


def run_all(
    runs: Sequence[Run],
    evaluate: bool,
    jobs: int,
    began: Callable[[Run, str], None],
    ended: Callable[[Run, Outcome], None],
) -> bool:
    """Do all runs, some at a time; Ctrl-C (or SIGTERM) lets those at work save, and leaves the others.

    Args:
        runs: What to do, in this order.
        evaluate: Whether each is evaluated when it is trained.
        jobs: How many at a time.
        began: Told of each run that is worked on, and how far it is, and
        ended: how each ended; one call at a time.

    Returns:
        Whether it went through; False if it was stopped.
    """
    threads = None if jobs == 1 else max(1, _cpus() // jobs)
    processes, turn = Processes(VND, threads), threading.Lock()

    def one(run: Run) -> None:
        if processes.told:
            return
        outcome = perform(run, evaluate, processes, begins)
        with turn:
            ended(run, outcome)

    def begins(run: Run, state: str) -> None:
        with turn:
            began(run, state)

    with processes.interruptible(), ThreadPoolExecutor(jobs) as pool:
        work = [pool.submit(one, run) for run in runs]
        wait(work)
    for part in work:
        part.result()
    return not processes.told


def perform(
    run: Run, evaluate: bool, processes: Processes, began: Callable[[Run, str], None] = lambda run, state: None
) -> Outcome:
    """Bring one run to its end, from wherever it is; whatever happens to its processes, this returns."""
    begin = time.perf_counter()
    status: Status
    try:
        if state_of(run, evaluate) == "finished":
            return Outcome("skipped")
        run.folder.mkdir(parents=True, exist_ok=True)
        with (run.folder / LOG).open("ab", buffering=0) as log:
            if not _lock(log) or _is_trained_in(run.folder):
                return Outcome("in use")
            began(run, state_of(run, evaluate))
            status, error = _steps(run, evaluate, processes, log)
    except (ValueError, OSError) as refusal:
        status, error = "failed", " ".join(str(refusal).split())
    return Outcome(status, error, round(time.perf_counter() - begin, 1))


class Processes:
    """The processes of a sweep: all are told when it is to stop, and none is begun after that.

    They are in process groups of their own, or else a terminal's Ctrl-C would reach them too, and two are one too many:
    the second means to stop at once.

    Args:
        command: What the words of a command follow.
        threads: Of each process; None to leave that to it.
    """

    def __init__(self, command: Sequence[str], threads: int | None = None) -> None:
        self.command = list(command)
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if threads is not None:
            self.environment.setdefault("OMP_NUM_THREADS", str(threads))
        self.turn = threading.RLock()  # a signal can come while it is held
        self.running: set[subprocess.Popen[bytes]] = set()
        self.told = 0

    def call(self, words: Sequence[str], log: BinaryIO) -> int | None:
        """Run a command to its end, its output in a log, and return its exit code; None if it may not begin."""
        with self.turn:
            if self.told:
                return None
            process = subprocess.Popen(
                [*self.command, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                process_group=0,
            )  # fmt: skip
            self.running.add(process)
        try:
            return process.wait()
        finally:
            with self.turn:
                self.running.discard(process)

    def stop(self, *_: Any) -> None:
        """Tell all to stop: after their step, at the second time at once, at the third they are killed."""
        with self.turn:
            self.told += 1
            for process in self.running:
                process.send_signal(signal.SIGTERM if self.told < 3 else signal.SIGKILL)
            if self.told == 1:
                what = f"{len(self.running)} at work save{'s' if len(self.running) == 1 else ''} first"
                print(f"stopping: {what}; once more to stop at once", file=sys.stderr, flush=True)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C, SIGTERM and the end of the terminal stop them."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    before[number] = signal.signal(number, self.stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _steps(run: Run, evaluate: bool, processes: Processes, log: BinaryIO) -> tuple[Status, str]:
    """Train, or go on, then evaluate; the status, and the error."""
    state = state_of(run, evaluate)
    while state != "finished":
        words = {
            "new": ["train", run.source, "--out", str(run.folder), *run.overrides],
            "begun": ["train", "--resume", str(run.folder)],
            "trained": ["evaluate", str(run.folder)],
        }[state]
        log.write(f"$ vnd {shlex.join(words)}\n".encode())
        since = os.fstat(log.fileno()).st_size
        code = processes.call(words, log)
        before, state = state, state_of(run, evaluate)
        if state != "finished" and processes.told:
            return "stopped", ""
        if code != 0:
            return "failed", _last_words(run.folder / LOG, since, code or 0)
        if STATES.index(state) < max(STATES.index("trained"), STATES.index(before) + 1):
            return (
                "failed",
                f"{words[0]} ended without an error, and left no {'results' if before == 'trained' else 'network'}",
            )
    return "done", ""


def _last_words(path: Path, since: int, code: int) -> str:
    """Why a process failed: the signal that killed it, or the last line that it wrote."""
    if code < 0:
        name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        return f"killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(since, size - 8192))
        lines = log.read().decode(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1].removeprefix("vnd: ")[:500] if said else f"exit code {code}"


def _lock(log: BinaryIO) -> bool:
    """Hold a log; the processes that write to it hold it too, also when this one is gone."""
    import fcntl

    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_trained_in(folder: Path) -> bool:
    path = folder / LOCK  # left in order it is empty, and then not even looked at: that would be in the way of a start
    return path.exists() and path.stat().st_size > 0 and _is_locked(path)


def _is_locked(path: Path) -> bool:
    import fcntl

    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
