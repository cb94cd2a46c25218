"""Pages of a task that is not to classify: of one run, and of many; all that does not depend on which task it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vnd._files import write_text
from vnd.metrics import Interval
from vnd.report import canvas, markdown, marked, sections
from vnd.report.captions import NOT_TEST
from vnd.report.document import document, pair
from vnd.report.markdown import Named
from vnd.report.runs import Run, run_of
from vnd.report.shown import Shown, framed, laid, prefixes
from vnd.report.summary import as_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1

Own = TypeVar("Own", bound=Named)  # a series of the task: what runs of one method and settings measured


@dataclass(frozen=True)
class Task(Generic[Own]):
    """What a task gives for its pages.

    Args:
        name: As result files spell it.
        noun: What one of its networks is called.
        key: What runs must have in common to be compared, beside the size of their images; the data set first.
        where: What the runs are of, in words, by the keys of their blocks, each with that size where it is known.
        group: The series of runs that can be compared.
        summary: Of a result file, its series, and its training images in words: what was trained, at how many sizes it
            is measured if there are several, and what came of it.
        training: The measure that the figure of training needs, its caption, and how it is drawn.
        tables: The tables of some series, as parts of a page.
        in_markdown: The same tables as Markdown, after what they show.
        shown: The figures of some series that there are numbers for; their names begin with what is given.
        rows: Every point of some series, flat.
    """

    name: str
    noun: str
    key: Callable[[Run], tuple[str, ...]]
    where: Callable[[Sequence[tuple[str, ...]]], str]
    group: Callable[[Sequence[Run]], list[Own]]
    summary: Callable[[dict[str, Any], Own, str], tuple[str, str, str]]
    training: tuple[str, str, Callable[[dict[str, Any]], Figure]]
    tables: Callable[[Sequence[Own]], list[str]]
    in_markdown: Callable[[Sequence[Own]], list[str]]
    shown: Callable[[Sequence[Own], str], list[Shown]]
    rows: Callable[[Sequence[Own]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Block(Generic[Own]):
    """Runs that can be compared: what they have in common, the data set first, and their series."""

    key: tuple[str, ...]
    runs: tuple[Run, ...]
    series: tuple[Own, ...]


@dataclass(frozen=True)
class Compared(Generic[Own]):
    """Networks of a task that are compared, and the names of runs that are left out."""

    task: Task[Own]
    blocks: tuple[Block[Own], ...]
    left_out: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """All runs, block by block."""
        return [run for block in self.blocks for run in block.runs]

    @property
    def named(self) -> list[tuple[Block[Own], str]]:
        """The blocks, each with what the names of its figures begin with."""
        return list(zip(self.blocks, prefixes([block.key[0] for block in self.blocks]), strict=True))


# One run


def drawn(task: Task[Own], results: dict[str, Any]) -> dict[str, Figure]:
    """The figures of a run that there are numbers for, by name."""
    return {one.name: one.draw() for one in (*task.shown(_series(task, results), ""), *_training(task, results))}


def html(task: Task[Own], results: dict[str, Any], pictures: dict[str, str], made: str) -> str:
    """The page of a run, of what `results.read` gave, of each figure as SVG, and of where it comes from, as HTML."""
    series = _series(task, results)
    body = [*_top(results["title"], _summary(task, results, series[0])), *task.tables(series)]
    last = [framed(one, pictures) for one in _training(task, results)]
    return document(results["title"], [*body, *laid(task.shown(series, ""), pictures), pair(*last, made)])


def _series(task: Task[Own], results: dict[str, Any]) -> list[Own]:
    """The one series of a run."""
    return task.group([run_of(Path(), results)])


def _training(task: Task[Own], results: dict[str, Any]) -> list[Shown]:
    """The figure of training, where the file has its curve."""
    key, note, draw = task.training
    known = any(point.get(key) is not None for point in results.get("curves") or [])
    return [Shown("training", "Training", note, partial(draw, results), is_half=True)] if known else []


def _summary(task: Task[Own], results: dict[str, Any], own: Own) -> list[str]:
    """What was trained, and what came of it, in words."""
    data, split = results["data"], results.get("split") or "test"
    count = f"{data['train']:,} images of " if data.get("train") else ""
    trained, where, reached = task.summary(results, own, f"{count}“{data['name']}”")
    number = f"{data[split]:,} " if data.get(split) else ""
    measured = f"Here it is measured{where} on {number}{split} images, which it was not trained on."
    found = [f"{trained} {measured}", reached, *(results.get("notes") or [])]
    return found if split == "test" else [*found, NOT_TEST]


# Many runs


def compare(task: Task[Own], runs: Sequence[Run], left_out: Sequence[str] = ()) -> Compared[Own]:
    """One block for each key of the task and size of images, by which all numbers change, in the order of the runs."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found.setdefault((*task.key(run), *filter(None, [run.image])), []).append(run)
    blocks = (Block(key, tuple(own), tuple(task.group(own))) for key, own in found.items())
    return Compared(task, tuple(blocks), tuple(left_out))


def write(found: Compared[Own], out: Path, title: str | None, dpi: int) -> Path:
    """Write the page of networks that are compared, its figures as PNG files of so many dots an inch, and its numbers.

    Returns:
        The path of the page.
    """
    task, runs, rows, files = found.task, found.runs, list[dict[str, Any]](), list[str]()
    title = title or f"Comparison of {len(runs)} {task.noun}{'s' * (len(runs) > 1)}"
    names = [own.name for block in found.blocks for own in block.series]
    where = task.where([block.key for block in found.blocks])
    body = _top(title, sections.introduction(runs, where, names, found.left_out))
    for block, prefix in found.named:
        if len(found.blocks) > 1:
            body.append(f'<h2 class="block">{escape(", ".join(block.key))}</h2>')
        every = task.shown(block.series, prefix)
        pictures = canvas.pictures({one.name: one.draw() for one in every}, out / "figures", dpi)
        body += [*task.tables(block.series), *laid(every, pictures)]
        rows += task.rows(block.series)
        files += [f"figures/{name}.png" for name in pictures]
    write_text(out / "summary.csv", as_csv(rows))
    about = {"format": FORMAT, "task": task.name, "split": runs[0].split, "left_out": list(found.left_out)}
    about |= {"points": rows, "figures": files}
    write_text(out / "summary.json", json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(out / "report.html", document(title, [*body, sections.made(runs)]))
    return out / "report.html"


def write_markdown(found: Compared[Own], path: Path, command: str = "") -> list[Path]:
    """Write the comparison between the marks of a Markdown file, and its figures into `images/` beside it."""
    marked.parts(path)  # or all the drawing would be for nothing
    text, files = list[str](), list[Path]()
    for block, prefix in found.named:
        text += [f"### {', '.join(map(markdown.words, block.key))}", *found.task.in_markdown(block.series)]
        for one in found.task.shown(block.series, prefix):
            files.append(markdown.put_figure(one.draw(), path, one.name))
            text += markdown.shown(files[-1], one.heading, one.note)
        text += markdown.made(block)
    if command:
        text += ["Tables and figures were made by", markdown.code([command])]
    marked.write(path, "\n\n".join(text))
    return files


def flat(own: Named, measures: dict[str, Interval], **place: object) -> dict[str, Any]:
    """A point of a series, flat: whose it is, where, and of each measure its mean and its interval over trainings."""
    run = own.runs[0]
    said = {"data": run.data, "image": run.image, "network": run.network, "method": run.method, "name": own.name}
    found: dict[str, Any] = {**said, **place}
    for key, value in measures.items():
        found |= {key: value.mean, f"{key} low": value.low, f"{key} high": value.high}
    return found


def _top(title: str, words: Sequence[str]) -> list[str]:
    return [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in words)]
