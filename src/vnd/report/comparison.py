"""The report of many runs: one page, its figures as PNG files, and its numbers as CSV and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from vnd._files import write_text
from vnd.report import canvas, markdown, plates, sections, tasks
from vnd.report.document import document
from vnd.report.page import OWN
from vnd.report.results import RESULTS
from vnd.report.runs import Run, find, open_results, split_of
from vnd.report.series import group
from vnd.report.summary import Block, as_csv, efficiency, rows, times, withheld

FORMAT = 1
TASKS = {name: f"{task.noun}s" for name, task in OWN.items()} | {"classification": "classifiers"}
PAGE, NUMBERS, TABLE = "report.html", "summary.json", "summary.csv"
DPI = 144  # of the PNG files


@dataclass(frozen=True)
class Compared:
    """What is compared: all that is known of some runs, and the names of those that are left out."""

    blocks: tuple[Block, ...]
    left_out: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """All runs, block by block."""
        return [run for block in self.blocks for run in block.runs]


def write(
    places: Sequence[Path], out: Path, title: str | None = None, say: Callable[[str], object] | None = None
) -> Path:
    """Compare runs: a page, its figures, and its numbers.

    Args:
        places: Run folders, result files, or folders that hold runs.
        out: Folder for `report.html`, `figures/`, `summary.csv` and `summary.json`; it is made if need be.
        title: Heading of the page; one that says how much is compared, if not given.
        say: Called with one line where runs of a folder are left out, since they were not evaluated.

    Returns:
        The path of the page.
    """
    return write_page(read(places, say), out, title)


def read(places: Sequence[Path], say: Callable[[str], object] | None = None) -> Compared | tasks.Compared[Any]:
    """Read the runs of some places, and find out what can be compared with what; the arguments are those of `write`."""
    found = find(places)
    runs = [open_results(path) for path in found.results]
    split_of(runs)
    if say is not None and found.left_out:
        say(f"report: left out, not evaluated: {', '.join(map(str, found.left_out))}")
    left_out = tuple(path.name for path in found.left_out)
    first = {run.results.get("task", "classification"): run.path for run in reversed(runs)}
    known = [task for task in TASKS if task in first]
    if len(known) > 1:
        one, other = known[:2]
        raise ValueError(
            f"report: {TASKS[one]} and {TASKS[other]} have no measure in common; got {first[one]} and {first[other]}, "
            "report them apart"
        )
    if known and known[0] in OWN:
        return tasks.compare(OWN[known[0]], runs, left_out)
    return Compared(tuple(split(runs)), left_out)


def write_page(found: Compared | tasks.Compared[Any], out: Path, title: str | None = None) -> Path:
    """Write the page of what was read, its figures and its numbers; its path."""
    out = Path(out)
    if (out / RESULTS).exists():
        raise ValueError(f"report: out must not be a run's folder, whose {PAGE} it would replace; got {out}")
    if isinstance(found, tasks.Compared):
        return tasks.write(found, out, title, DPI)
    blocks, left_out = found.blocks, found.left_out
    drawn = [plates.of_block(block, prefix) for block, prefix in zip(blocks, plates.prefixes(blocks), strict=True)]
    theory = plates.of_theory()
    every = {plate.name: plate.figure for part in (*drawn, theory) for plate in part}
    pictures = canvas.pictures(every, out / "figures", DPI)
    write_text(out / TABLE, as_csv(rows(blocks)))
    write_text(out / NUMBERS, numbers(blocks, list(every), left_out))
    write_text(out / PAGE, html(blocks, drawn, pictures, title, left_out))
    return out / PAGE


def write_markdown(
    found: Compared | tasks.Compared[Any], path: Path, sizes: Sequence[float], command: str = ""
) -> list[Path]:
    """Write what was read between the marks of a Markdown file; its figures. `sizes` are of classifiers alone."""
    if isinstance(found, tasks.Compared):
        return tasks.write_markdown(found, path, command)
    return markdown.write(found.blocks, path, sizes, command)


def split(runs: Sequence[Run]) -> list[Block]:
    """One block for each data set and network, in the order of the runs."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.data, run.network), []).append(run)
    return [Block(*key, tuple(own), tuple(group(own))) for key, own in found.items()]


def html(
    blocks: Sequence[Block],
    drawn: Sequence[list[plates.Plate]],
    pictures: dict[str, str],
    title: str | None = None,
    left_out: Sequence[str] = (),
) -> str:
    """The page, of the blocks, their plates, each figure as SVG, and the names of runs that are missing."""
    count = sum(len(block.runs) for block in blocks)
    said = title or f"Comparison of {count} run{'s' * (count > 1)}"
    marks = [f"block-{index}" for index in range(1, len(blocks) + 1)]
    body = [sections.top(blocks, said, left_out), _links(blocks, marks)]
    for block, own, mark in zip(blocks, drawn, marks, strict=True):
        body += sections.of_block(block, pictures, own, mark, alone=len(blocks) == 1)
    return document(
        said, [*body, *sections.of_theory(pictures), sections.made([run for block in blocks for run in block.runs])]
    )


def numbers(blocks: Sequence[Block], figures: list[str], left_out: Sequence[str] = ()) -> str:
    """What the page says, as JSON."""
    tables = [
        {
            "data": block.data,
            "network": block.network,
            "points": rows([block]),
            "efficiency": efficiency(block),
            "times": times(block),
            "selective": withheld(block),
        }
        for block in blocks
    ]
    found: dict[str, Any] = {"format": FORMAT, "split": blocks[0].runs[0].split, "left_out": list(left_out)}
    found |= {"blocks": tables, "figures": [f"figures/{name}.png" for name in figures]}
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value)


def _links(blocks: Sequence[Block], marks: list[str]) -> str:
    """Ways to the parts of a long page, where there are several blocks."""
    if len(blocks) == 1:
        return ""
    names = [f'<a href="#{mark}">{escape(f"{b.data}, {b.network}")}</a>' for b, mark in zip(blocks, marks, strict=True)]
    return f"<nav>{''.join(names)}</nav>"
