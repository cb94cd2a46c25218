"""A sweep: recipes × settings × seeds in one file; each combination is a run, known by the hash of what decides it.

What is finished is skipped; the others run in processes of their own, here or as jobs of SLURM through submitit.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from vnd._text import nearest, one_line
from vnd.train.config import SUFFIXES, find, load_yaml, parse, parse_run, read_yaml
from vnd.train.loop import handled
from vnd.train.recipe import Network, Recipe, digest_of
from vnd.train.run import is_locked

KEYS = ("about", "out", "seeds", "set", "runs", "evaluate", "slurm")
KEYS_OF_A_RUN = ("recipe", "name", "set", "grid", "seeds")
LOG = "sweep.log"
VND = (sys.executable, "-m", "vnd")
SLURM = "a mapping such as {partition: gpu, gpus: 1, time: 120}"
STATES = ("new", "begun", "trained", "finished")
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
OPTIONS = {  # as a sweep spells them → as submitit does
    "time": "timeout_min", "gpus": "gpus_per_node", "cpus": "cpus_per_task", "memory": "mem_gb", "name": "name",
    "partition": "slurm_partition", "account": "slurm_account", "qos": "slurm_qos", "constraint": "slurm_constraint",
    "exclude": "slurm_exclude", "setup": "slurm_setup", "at_once": "slurm_array_parallelism",
}  # fmt: skip

Status = Literal["done", "skipped", "failed", "stopped", "in use"]


@dataclass(frozen=True)
class Run:
    """One run of a sweep: its folder, the recipe and the keys replaced in it, and what these make, with its hash."""

    folder: Path
    source: str
    overrides: tuple[str, ...]
    recipe: Recipe
    digest: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


@dataclass(frozen=True)
class Worklist:
    """Runs that a sweep's file asks for, each once, in the folder `out`.

    Args:
        repeated: (name, which it repeats) of the runs that were asked for more than once.
        evaluate: Whether each is evaluated when it is trained.
        slurm: Options of the cluster's jobs; None to run here.
    """

    path: Path
    about: str
    out: Path
    runs: tuple[Run, ...]
    repeated: tuple[tuple[str, str], ...]
    evaluate: bool
    slurm: dict[str, Any] | None


def read(source: str | Path, out: Path | None = None, shapes_of: Path | None = None, most: int = 5) -> Worklist:
    """Read a sweep and make all its recipes, so that what is wrong with one is said before anything is trained.

    Args:
        source: The path of a YAML file, or the name of a shipped sweep.
        out: Folder of the runs, in place of the file's.
        shapes_of: An evaluated run; each of the file's runs is made for each of its learned shapes.
        most: So many of these at most, the smallest first.
    """
    path = find(source, kind="sweep")
    where = f"sweep {path}"
    given = read_yaml(path, where, "keys such as runs: [fashion/bn3]")
    _check_keys(given, KEYS, where)
    entries = _typed(given, "runs", list, "a list of recipes", [], where)
    if not entries:
        raise ValueError(f"{where}: runs must be a list of recipes, such as [fashion/bn3]; got {given.get('runs')!r}")
    entries = [{"recipe": entry} if isinstance(entry, str) else entry for entry in entries]
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("recipe"), str):
            raise ValueError(f"{where}: run {number} must be a recipe or a mapping with recipe: NAME; got {entry!r}")
    if shapes_of is not None:
        shapes = _shapes(shapes_of, most, where)
        entries = [
            {
                **entry,
                "name": f"{entry.get('name') or _plain(entry['recipe'])}-{parameters}",
                "set": {**_settings(entry, "set", where), "method.shape": shape},
            }
            for entry in entries
            for parameters, shape in shapes.items()
        ]
    folder = out or Path(_typed(given, "out", str, "a folder", f"runs/{path.stem}", where))
    slurm = _typed(given, "slurm", dict, SLURM, None, where)
    runs: dict[str, Run] = {}
    repeated, built = list[tuple[str, str]](), list[Network]()
    for number, entry in enumerate(entries, 1):
        for run in _expand(entry, given, path.parent, folder, where, number, built):
            if run.digest in runs:
                repeated.append((run.name, runs[run.digest].name))
            else:
                runs[run.digest] = run
    about = _typed(given, "about", str, "text", "", where)
    evaluate = _typed(given, "evaluate", bool, "true or false", True, where)
    return Worklist(path, about, folder, tuple(_found(runs.values(), folder)), tuple(repeated), evaluate, slurm)


def _shapes(run: Path, most: int, where: str) -> dict[int, Any]:
    """The smallest learned shapes of an evaluated run by their numbers of parameters, without the full one."""
    try:
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        shapes = {
            int(row["parameters"]): row["shape"]
            for row in results["rows"]
            if row["kind"] == "learned" and row["shape"] and row["shape"] != results["groups"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: shapes_of: {run} is no evaluated run: {one_line(error)}") from None
    if not shapes:
        raise ValueError(f"{where}: shapes_of: {run} has no learned shapes; try vnd evaluate {run} --learned 5")
    return {parameters: shapes[parameters] for parameters in sorted(shapes)[:most]}


def digest(recipe: Recipe) -> str:
    """The SHA-256 of all that decides a run, whatever the order of its keys; `about` does not.

    >>> digest(parse("demo")) == digest(parse("demo", ["--train.seed=1"]))
    False
    """
    return digest_of(recipe.to_dict())


def holds(folder: Path, wanted: str) -> bool:
    """Tell if the recipe in a run's folder has this hash, as this version of the library reads it."""
    with suppress(ValueError, TypeError, AttributeError, KeyError):  # it is much faster to look than to parse
        text = (folder / "recipe.yaml").read_text(encoding="utf-8")
        if digest_of(load_yaml(text)) == wanted:
            return True
    return digest(parse_run(folder)) == wanted


def _expand(
    entry: dict[str, Any], given: dict[str, Any], beside: Path, out: Path, where: str, number: int, built: list[Network]
) -> Iterator[Run]:
    """The runs of one entry: every combination of its grid, with every seed."""
    source = entry["recipe"]
    here = f"{where}: run {number} ({source})"
    _check_keys(entry, KEYS_OF_A_RUN, here)
    seeds: list[int] | list[None] = _seeds(entry, here) or _seeds(given, where) or [None]
    common, own, grid = _settings(given, "set", where), _settings(entry, "set", here), _settings(entry, "grid", here)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{here}: grid: {key} must be a list of values; got {values!r}")
    is_file = Path(source).suffix in SUFFIXES
    name = _typed(entry, "name", str, "text", _plain(Path(source).stem if is_file else source), here)
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ValueError(f"{here}: name must be of letters, digits and - + . _, for a folder; got {name!r}")
    source = str(beside / source) if is_file else source
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        words = [f"--{key}={_word(value)}" for key, value in _over(common, own, chosen).items()]
        try:
            first = parse(source, words)
            if first.network not in built:
                first.network.check()  # what it refuses is found now
                built.append(first.network)
            for seed in seeds:
                try:
                    recipe = first if seed is None else first.with_train(seed=seed)
                except ValueError as error:
                    raise ValueError(f"seeds: {error}") from None
                parts = [name, *_labels(chosen), str(recipe.train.seed), (own_digest := digest(recipe))[:8]]
                replaced = words if seed is None else [*words, f"--train.seed={seed}"]
                yield Run(out / "-".join(parts), source, tuple(replaced), recipe, own_digest)
        except ValueError as error:
            raise ValueError(f"{here}: {error}") from None


def _found(runs: Iterable[Run], out: Path) -> Iterator[Run]:
    """The runs, each in the folder that holds it already, whatever that is called: another name, an older version."""
    runs = list(runs)
    own = {run.folder.name for run in runs}
    missing = {run.digest for run in runs if not (run.folder / "recipe.yaml").exists()}
    elsewhere: dict[str, Path] = {}
    for path in sorted(out.glob("*/recipe.yaml")) if missing else ():
        with suppress(ValueError, OSError):  # of something else, or of an older version
            if path.parent.name not in own:
                elsewhere.setdefault(digest(parse_run(path.parent)), path.parent)
    for run in runs:
        there = elsewhere.get(run.digest) if run.digest in missing else None
        yield run if there is None else dataclasses.replace(run, folder=there)


def _over(*layers: dict[str, Any]) -> dict[str, Any]:
    """Settings, those of later layers last: `--schedule.lr.start` must follow the `--schedule.lr` that it changes."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = {key: value for key, value in merged.items() if key not in layer} | layer
    return merged


def _word(value: Any) -> str:
    """A value as the command line has it.

    >>> _word("bn3"), _word([0.5, 1]), _word(True), _word(None)
    ('bn3', '[0.5,1]', 'true', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def _labels(chosen: dict[str, Any]) -> list[str]:
    """Words of a folder's name for a combination: the last words of the keys, where these are all different."""
    last = [key.rpartition(".")[2] for key in chosen]
    keys = last if len(set(last)) == len(last) else list(chosen)
    return [f"{key}={_plain(_word(value))[:24]}" for key, value in zip(keys, chosen.values(), strict=True)]


def _plain(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"


def _seeds(given: dict[str, Any], where: str) -> list[int] | None:
    words = "a list of different whole numbers, such as [0, 1, 2]"
    seeds: list[int] | None = _typed(given, "seeds", list, words, None, where)
    if seeds is not None and (not seeds or any(type(x) is not int for x in seeds) or len(set(seeds)) < len(seeds)):
        raise ValueError(f"{where}: seeds must be {words}; got {seeds!r}")
    return seeds


def _settings(given: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    settings: dict[str, Any] = _typed(given, key, dict, "a mapping such as {train.epochs: 2}", {}, where)
    for name in settings:
        if not isinstance(name, str):
            raise ValueError(f"{where}: {key} must hold keys of recipes, such as train.epochs; got {name!r}")
        if name == "train.seed":
            raise ValueError(f"{where}: {key}: train.seed is what seeds: [0, 1, 2] is for; give it there")
    return settings


def _typed(given: dict[str, Any], key: str, kind: type, words: str, default: Any, where: str) -> Any:
    value = given.get(key)
    if value is not None and type(value) is not kind:
        raise ValueError(f"{where}: {key} must be {words}; got {value!r}")
    return default if value is None else value


def _check_keys(given: dict[str, Any], known: Collection[str], where: str, more: str = "") -> None:
    for key in given:
        if key not in known and not (more and str(key).startswith("slurm_")):
            hint = nearest(str(key), known, cutoff=0.5, lead=";")
            raise ValueError(f"{where}: unknown key {key!r}{hint} Known: {', '.join(known)}{more}")


# Runs at work


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run; `error` is one line."""

    status: Status
    error: str = ""
    seconds: float = 0.0


def state_of(run: Run, evaluate: bool) -> str:
    """State of a run: "new", "begun", "trained", which lacks its evaluation, or "finished"."""
    if not (run.folder / "recipe.yaml").exists():
        return "new"
    if not holds(run.folder, run.digest):
        raise ValueError(f"{run.folder} holds a run of another recipe; move it away, or give another --out")
    if not (run.folder / "last" / "network.json").exists():
        return "begun"
    return "trained" if evaluate and not (run.folder / "results.json").exists() else "finished"


def in_use(folder: Path) -> bool:
    """Tell if a process trains in a folder, or a sweep is at work on it."""
    if is_locked(folder) or not (folder / LOG).exists():
        return is_locked(folder)
    with (folder / LOG).open("rb") as log:
        return not _lock(log, look=True)


def run_all(
    runs: Sequence[Run],
    evaluate: bool,
    jobs: int,
    began: Callable[[Run, str], None],
    ended: Callable[[Run, Outcome], None],
) -> bool:
    """Do all runs, so many at a time; Ctrl-C (or SIGTERM) lets those at work save, and leaves the others.

    `began` is told of each run that is worked on and how far it is, `ended` how it ended, one call at a time.

    Returns:
        True if it went through; False if it was stopped.
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

    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    with handled(heard, processes.stop), ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, runs))
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
            if not _lock(log) or is_locked(run.folder):
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
                process.terminate() if self.told < 3 else process.kill()
            if self.told == 1:
                what = f"{len(self.running)} at work save{'s' if len(self.running) == 1 else ''} first"
                print(f"stopping: {what}; once more to stop at once", file=sys.stderr, flush=True)


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
            lacks = "results" if before == "trained" else "network"
            return "failed", f"{words[0]} ended without an error, and left no {lacks}"
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


def _lock(log: BinaryIO, look: bool = False) -> bool:
    """Hold a log, or only look whether it is held: those that write to it hold it too, when this one is gone.

    Windows has no lock that a process hands on: there the lock of the run alone keeps two trainings of it apart.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return True
    try:
        fcntl.flock(log, (fcntl.LOCK_SH if look else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# On a cluster


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
        outcome = perform(self.run, self.evaluate, Processes(self.command))
        if outcome.status == "failed":
            raise RuntimeError(outcome.error)
        return outcome.status

    def checkpoint(self) -> Any:
        """Job that submitit queues again: this very one, as the run's folder knows how far it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def check_options(options: dict[str, Any], where: str) -> None:
    """Refuse an option that nobody knows."""
    _check_keys(options, [*OPTIONS, "cluster"], where, ", and submitit's slurm_…")


def submit(runs: Sequence[Run], evaluate: bool, options: dict[str, Any], folder: Path) -> list[Any]:
    """Submit each run as a job, all together as one array, and do not wait for them; submitit's files are in a folder.

    The options are spelled as in a sweep; `cluster` is submitit's, "slurm" if not given.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        extra = "pip install 'variational-nested-dropout[cluster]'"
        raise ModuleNotFoundError(f"sweeping on a cluster needs submitit; {extra}") from None
    parameters = {OPTIONS.get(key, key): value for key, value in options.items() if key != "cluster"}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=options.get("cluster", "slurm"))
        executor.update_parameters(**{"name": "vnd", **parameters})
    except (NameError, AssertionError, RuntimeError) as error:  # submitit's ways to refuse
        raise ValueError(f"slurm: {str(error).splitlines()[0]}") from None
    with executor.batch():
        return [executor.submit(Job(run, evaluate, os.getcwd(), tuple(VND))) for run in runs]


def is_queued(job: str) -> bool:
    """Tell if SLURM has a job that waits or works; a doubt is a no, for a run that is at work is locked.

    By `squeue`: submitit asks `sacct`, which knows nothing on a cluster that keeps no accounts.
    """
    try:
        words = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
        return bool(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip())
    except (OSError, subprocess.SubprocessError):
        return False
