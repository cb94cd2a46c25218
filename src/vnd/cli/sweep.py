"""`vnd sweep`: many runs from one file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from vnd._files import write_json
from vnd._text import command
from vnd.train import sweep as work
from vnd.train.config import load_yaml
from vnd.train.sweep import Run, Worklist, read

BEGUN = {"new": "train", "begun": "go on", "trained": "evaluate"}
COLORS = {"done": "green", "failed": "red", "stopped": "yellow", "left": "yellow"}


def sweep(
    file: str,
    out: Path | None = None,
    jobs: int = 1,
    slurm: str = "",
    shapes_of: Path | None = None,
    most: int = 5,
    dry_run: bool = False,
) -> None:
    """Train and evaluate a list of recipes, with every seed; what is finished is skipped, what was begun goes on.

    A run that fails does not stop the others: the table at the end says which, and why, and the exit code is 1.
    Ctrl-C lets the runs at work save; the same command goes on.

    Example: vnd sweep fashion --out runs/fashion --jobs 2

    Args:
        file: A YAML file, or a sweep that comes with the package.
        out: Folder of the runs; the file's if not given.
        jobs: Runs at a time, on this machine.
        slurm: Options of SLURM jobs, "{partition: gpu, gpus: 1, time: 120}", in addition to the file's; each run is
            submitted as a job, and not waited for. "no" to run here what the file would submit.
        shapes_of: An evaluated run; each of the file's runs is made once for each learned shape of it, as
            `method.shape`: `vnd sweep ceilings --shapes_of RUN` trains plain networks at BN³'s shapes.
        most: So many of these shapes at most, the smallest first.
        dry_run: Only say what there is to do.
    """
    for name, number in (("jobs", jobs), ("most", most)):
        if number < 1:
            raise ValueError(f"sweep: {name} must be at least 1; got {number}")
    worklist = read(file, out, shapes_of, most)
    options = _options(worklist, slurm)
    book = _Book(worklist)
    for name, other in worklist.repeated:
        book.say(f"{name}: the same run as {other}; done once")
    if dry_run:
        book.preview()
    elif options is not None:
        _submit(book, options)
    else:
        given = {"jobs": jobs if jobs > 1 else None, "shapes_of": shapes_of, "most": None if most == 5 else most}
        _run(book, jobs, command("vnd", "sweep", file, out=out, **given))


class _Book:
    """Record of every run of a sweep: on the screen, and in OUT/sweep.json for machines."""

    def __init__(self, worklist: Worklist) -> None:
        self.worklist, self.console = worklist, Console()
        self.path = worklist.out / "sweep.json"
        self.before = _earlier(self.path)
        self.rows: dict[str, dict[str, Any]] = {
            run.name: {
                "name": run.name, "hash": run.digest, "folder": str(run.folder), "status": "left", "error": "",
                "seconds": self.before.get(run.digest, {}).get("seconds"), "job": None,
            }
            for run in worklist.runs
        }  # fmt: skip

    def note(self, run: Run, status: str, error: str = "", **more: Any) -> None:
        self.rows[run.name] |= {"status": status, "error": error, **more}
        self.write()

    def write(self) -> None:
        about = {"sweep": str(self.worklist.path), "about": self.worklist.about, "out": str(self.worklist.out)}
        write_json(self.path, {**about, "runs": list(self.rows.values())})

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)

    def began(self, run: Run, state: str) -> None:
        self.note(run, "running")
        self.say(f"{self._number(run)} {BEGUN.get(state, 'train')}: {run.name}")

    def ended(self, run: Run, outcome: work.Outcome) -> None:
        time = {} if outcome.status == "skipped" else {"seconds": outcome.seconds}
        self.note(run, outcome.status, outcome.error, **time)
        words = f"{outcome.status}{f', {_time(outcome.seconds)}' if time else ''}: {run.name}"
        words += f": {outcome.error}" if outcome.error else ""
        self.say(f"{self._number(run)} {words}", COLORS.get(outcome.status, ""))

    def preview(self) -> None:
        """List what there is to do, one line a run; nothing is written."""
        rows = list[Sequence[str]]()
        for number, run in enumerate(self.worklist.runs, 1):
            try:
                state = "in use" if work.in_use(run.folder) else work.state_of(run, self.worklist.evaluate)
            except ValueError:
                state = "of another recipe"
            rows.append((str(number), run.name, state, command("vnd", "train", run.source, *run.overrides)))
        self.table("", "run", "is", "as", rows=rows)
        self.say(f"{_count(self.worklist.runs)} in {self.worklist.out}; nothing was done")

    def summary(self) -> None:
        """Lines that say how each run ended."""
        rows = list[Sequence[str]]()
        for row in self.rows.values():
            time = "" if row["seconds"] is None else _time(row["seconds"])
            rows.append((row["name"], row["status"], time, f"job {row['job']}" if row["job"] else row["error"]))
        self.table("run", "status", "time", "", rows=rows, style=1)
        counts = Counter(row["status"] for row in self.rows.values())
        self.say(f"{', '.join(f'{number} {status}' for status, number in counts.items())}; {self.path.resolve()}")
        if failed := self.count("failed"):
            self.say(f"what {'it' if failed == 1 else 'they'} said: {self.worklist.out.resolve()}/RUN/{work.LOG}")

    def table(self, *heading: str, rows: list[Sequence[str]], style: int | None = None) -> None:
        """Aligned lines that no terminal breaks within a name; `style` is the column that colours a line."""
        widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)][:-1]
        for row in [heading, *rows]:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            self.say("  ".join([*cells, row[-1]]).rstrip(), COLORS.get(row[style], "") if style is not None else "")

    def count(self, *statuses: str) -> int:
        return sum(row["status"] in statuses for row in self.rows.values())

    def _number(self, run: Run) -> str:
        return f"{[*self.rows].index(run.name) + 1}/{len(self.rows)}"


def _run(book: _Book, jobs: int, again: str) -> None:
    """Do all of it here."""
    book.write()
    worklist = book.worklist
    whole = work.run_all(worklist.runs, worklist.evaluate, jobs, book.began, book.ended)
    book.summary()
    if not whole:
        left = book.count("stopped", "left", "running")
        raise KeyboardInterrupt(f"{left} of {_count(worklist.runs)} left to do; go on with: {again}")
    if book.count("failed"):
        raise SystemExit(1)


def _submit(book: _Book, options: dict[str, Any]) -> None:
    """Give to the cluster what is neither finished nor under way."""
    worklist, folder = book.worklist, book.worklist.out / "submitit"
    wanted = list[Run]()
    for run in worklist.runs:
        job = book.before.get(run.digest, {}).get("job")
        try:
            if work.in_use(run.folder):
                book.note(run, "in use", job=job)
            elif work.state_of(run, worklist.evaluate) == "finished":
                book.note(run, "skipped")
            elif job and options.get("cluster", "slurm") == "slurm" and work.is_queued(job):
                book.note(run, "queued", job=job)
            else:
                wanted.append(run)
        except ValueError as error:
            book.note(run, "failed", str(error))
    submitted = work.submit(wanted, worklist.evaluate, options, folder) if wanted else []
    for run, job in zip(wanted, submitted, strict=True):
        book.note(run, "submitted", job=str(job.job_id))
    book.summary()
    if book.count("failed"):
        raise SystemExit(1)


def _options(worklist: Worklist, text: str) -> dict[str, Any] | None:
    """Options of the cluster's jobs, those of the command over those of the file; None to run here."""
    given = load_yaml(text, "sweep: slurm")
    if given is False:
        return None
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"sweep: slurm must be a mapping such as {{partition: gpu, time: 120}}, or no; got {text}")
    work.check_options(worklist.slurm or {}, f"sweep {worklist.path}: slurm")
    work.check_options(given or {}, "sweep: slurm")
    return None if given is None and worklist.slurm is None else {**(worklist.slurm or {}), **(given or {})}


def _earlier(path: Path) -> dict[str, dict[str, Any]]:
    """Entries of an earlier sweep's runs, by their hash; none if they cannot be read."""
    try:
        return {row["hash"]: row for row in json.loads(path.read_text(encoding="utf-8"))["runs"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _count(runs: Sequence[Run]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"


def _time(seconds: float) -> str:
    """Seconds for people.

    >>> _time(4.2), _time(185), _time(7800)
    ('4 s', '3 min 05 s', '2 h 10 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
