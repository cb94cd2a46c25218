"""The comparison of runs as Markdown, for a page of documentation: two tables, figures, machines and commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from vnd._files import put
from vnd._text import short
from vnd.metrics import Interval
from vnd.report import budget, canvas, compare, figures, marked, plates, trust
from vnd.report.captions import BUDGET, NOT_TEST, OVER, PARTS, SIZES, SURVIVAL
from vnd.report.families import SEPARATE
from vnd.report.keep import RECIPE
from vnd.report.origins import origin
from vnd.report.runs import Run
from vnd.report.sections import duration
from vnd.report.series import Point, Series
from vnd.report.studies import learned_layers
from vnd.report.summary import Block, times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES, DPI, LARGEST = "images", 144, 150_000  # folder, dots an inch, bytes of a PNG file
NONE = "–"
AGAIN = (
    "As they were given: what a recipe says may have changed since. The recipe.yaml in the folder of a run has all of "
    "its settings, and `vnd train FOLDER/recipe.yaml` trains by them."
)
SPACE = "\u00a0"  # that does not break


def write(blocks: Sequence[Block], path: Path, sizes: Sequence[float], command: str = "") -> list[Path]:
    """Write the comparison between the marks of a Markdown file, and its figures into `images/` beside it.

    Args:
        blocks: What is compared.
        path: The file; what lies outside its marks stays as it is. Without a file, one is made.
        sizes: Numbers of parameters at which methods are compared.
        command: What made it, for the reader to repeat.

    Returns:
        The figures.
    """
    marked.parts(path)  # or all the drawing would be for nothing
    text, files = [], []
    for block, prefix in zip(blocks, plates.prefixes(blocks), strict=True):
        text += [f"### {words(block.data)}, {words(block.network)}", *tables(block, sizes)]
        for key, heading, caption, figure in drawn(block):
            files.append(put_figure(figure, path, f"{prefix}{key}"))
            text += shown(files[-1], heading, caption)
        text += made(block)
    if command:
        text += ["Tables and figures were made by", code([command])]
    marked.write(path, "\n\n".join(text))
    return files


def put_figure(figure: Figure, path: Path, name: str) -> Path:
    """Write a figure into `images/` beside a Markdown file; its path."""
    file = path.parent / IMAGES / f"{path.stem}-{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    contents = canvas.png(figure, DPI, LARGEST)
    put(file, lambda part: part.write_bytes(contents))
    return file


def shown(file: Path, heading: str, caption: str) -> list[str]:
    """A figure as Markdown, and what it shows."""
    return [
        f"![{words(heading)}]({quote(f'{IMAGES}/{file.name}')})",
        f"*{words(heading)}{'.' * (heading[-1:] not in '?!')}* {words(caption)}",
    ]


def tables(block: Block, sizes: Sequence[float]) -> list[str]:
    """The table of methods and the table of the headline's sizes, each after what it shows."""
    split = block.runs[0].split
    own, other = budget.headline(block), _outside(block)
    bins = {len(one["count"]) for run in block.runs for one in run.results.get("reliability") or []}
    said = BUDGET.format(split=split, bins=f", {bins.pop()} bins" if len(bins) == 1 else "")
    found = [said if split == "test" else f"{said} {NOT_TEST}", methods(block, sizes)]
    return [*found, SIZES.format(name=words(own.name), split=split, other=words(other)), every_size(block, own)]


def methods(block: Block, sizes: Sequence[float]) -> str:
    """One row a method: accuracy at each size, the full network, calibration at worst, seeds and time."""
    rows = budget.lines(block)
    learned = any(budget.worst(line, "learned") for line in rows)
    took = {line["name"]: line for line in times(block)}
    head = ["Method", *(f"≤ {short(size)}" for size in sizes), "Full", "Worst ECE"]
    head += ["Worst ECE, learned shapes"] if learned else []
    head += [f"AUROC, {words(_outside(block))}", "NLL", "Seeds", "Training"]
    lines = []
    for line in rows:
        full, worst = budget.full(line), [budget.worst(line), *([budget.worst(line, "learned")] if learned else [])]
        cells = [_fit(budget.within(line, size), line.own) for size in sizes]
        mean = " on average" if full is not None and full.kind == "sampled" else ""
        cells.append(NONE if full is None else _two(measure(full, "accuracy"), short(full.parameters) + mean))
        cells += [NONE if point is None else _two(measure(point, "ece"), _name(point, line)) for point in worst]
        cells += [NONE if full is None else measure(full, key) for key in ("auroc", "nll")]
        lines.append([words(line.name), *cells, _seeds(line.points), _training(took[line.own.name])])
    return table(head, lines)


def every_size(block: Block, own: Series) -> str:
    """One row a size of a series, beside the plain network of the same shape where there is one."""
    twins = budget.twins(block, own)
    rates = {f"{100 * point.costs['base_rate']:.1f}" for point in own.points if "base_rate" in point.costs}
    chance = f", by chance {rates.pop()}" if len(rates) == 1 else ""
    keys = [key for key in ("accuracy", "ece", "nll", "auroc", "aupr", "aurc") if compare.measured([own], key)]
    names = {"accuracy": "Accuracy", "ece": "ECE", "nll": "NLL", "auroc": "AUROC", "aupr": f"AUPR{chance}"}
    head = ["Size", "Parameters", "Multiply-adds", *(names.get(key, key.upper()) for key in keys)]
    head += ["Plain, same shape", "Difference"] if any(twins) else []
    lines = []
    for point, twin in zip(own.points, twins, strict=True):
        label = f"{point.label}, learned" if point.kind == "learned" else point.label
        macs = short(point.costs["macs"]) if "macs" in point.costs else NONE
        cells = [words(label), short(point.parameters), macs, *(measure(point, key) for key in keys)]
        if twin is not None:
            few = f"{twin.runs} of {budget.seeds(point)} seeds" if twin.runs < budget.seeds(point) else ""
            cells += [_two(number(twin.accuracy), few), number(twin.gain, sign="+")]
        lines.append(cells if twin is not None or not any(twins) else [*cells, NONE, NONE])
    return table(head, lines)


def drawn(block: Block) -> list[tuple[str, str, str, Figure]]:
    """At most six figures: name, heading, caption and drawing; those that there are numbers for."""
    own, other = budget.headline(block), f"“{_outside(block)}”"
    found = [
        (key, heading, caption.format(other=other), compare.over_parameters(block.series, key))
        for key, (heading, caption) in OVER.items()
        if compare.measured(block.series, key)
    ]
    if learned_layers(own):
        heading, caption = SURVIVAL
        found.append(("survival", heading, caption.format(name=own.name), figures.survival(own.runs[0].results)))
    diagrams = trust.spread(own.parts("reliability"), plates.DIAGRAMS)
    if diagrams:
        heading, caption = PARTS["reliability"]
        drawing = figures.reliability({"reliability": diagrams})
        found.append(("reliability", heading, f"{caption} Shown is {own.name}.", drawing))
    return found


class Named(Protocol):
    """What has a name, and runs that it is of."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its runs."""


class Blocked(Protocol):
    """What has series: a block, of whatever kind of network."""

    @property
    def series(self) -> Sequence[Named]:
        """Its series."""


def made(block: Blocked) -> list[str]:
    """Where the numbers come from: a line a training, whatever its inference, and the commands of every run."""
    named: dict[tuple[Path, ...], list[Named]] = {}
    for own in block.series:
        named.setdefault(tuple(run.path for run in own.runs), []).append(own)
    lines, commands = [], []
    for series in named.values():
        origins = [origin(run) for run in series[0].runs]
        said = (dict.fromkeys(getattr(one, key) for one in origins) for key in ("machine", "torch", "commit"))
        took = (
            [(run.results.get("seconds") or {}).get(key) for run in series[0].runs] for key in ("train", "evaluate")
        )
        cells = [words(", ".join(filter(None, one))) or NONE for one in said]
        lines.append([words(", ".join(own.name for own in series)), str(len(origins)), *cells, *map(_mean, took)])
        commands += [command for one in origins for command in one.commands]
    head = ["Method", "Runs", "Trained on", "torch", "vnd commit", "Training a run", "Evaluation a run"]
    note = (
        "Times are means over runs; training is the steps alone, without validation and checkpoints. A commit with + "
        "had changes that were not committed."
    )
    found = [note, table(head, lines)]
    if commands:
        kept = all((run.path.parent / RECIPE).is_file() for own in block.series for run in own.runs)
        parts = ["<details><summary>The commands of the runs</summary>", *[AGAIN] * kept, code(commands), "</details>"]
        found.append("\n\n".join(parts))
    return found


def table(head: list[str], lines: list[list[str]]) -> str:
    """A table of cells that are Markdown already; numbers to the right."""
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def bold_table(head: list[str], lines: list[list[tuple[str, bool]]]) -> str:
    """A table of texts, each with whether it is the best, which is bold."""
    body = [[f"**{text}**" if best else words(text) for text, best in line] for line in lines]
    return table([words(name) for name in head], body)


def measure(point: Point, key: str) -> str:
    """A measure of a point; with ± where it is over trainings of several seeds."""
    return number(point.measures.get(key) if point.over == "seeds" else _alone(point, key), nats=key == "nll")


def number(found: Interval | None, nats: bool = False, sign: str = "") -> str:
    """A mean and half its interval, if it has one: in per cent to two digits, in nats to three.

    >>> print(number(Interval(0.912, 0.91, 0.914, 3)), number(Interval(0.0312, 0.0312, 0.0312, 1), sign="+"))
    91.20 ±\u00a00.20 +3.12
    """
    if found is None:
        return NONE
    factor, digits = (1, 3) if nats else (100, 2)
    spread = f" ±{SPACE}{factor * (found.high - found.low) / 2:.{digits}f}" if found.count > 1 else ""
    return f"{factor * found.mean:{sign}.{digits}f}{spread}"


def spread(found: Interval, shape: str) -> str:
    """A mean and half its interval, if it has one, each in a shape.

    >>> print(spread(Interval(0.5, 0.25, 0.75, 3), "{:.2f}"), spread(Interval(0.5, 0.5, 0.5, 1), "{:.3g}"))
    0.50 ± 0.25 0.5
    """
    return shape.format(found.mean) + (f" ± {shape.format((found.high - found.low) / 2)}" if found.count > 1 else "")


def words(text: str) -> str:
    r"""A text of a result file, safe in Markdown: one line, and no mark-up.

    >>> print(words("a|b <i>*c*</i>\n_d_"))
    a\|b &lt;i&gt;\*c\*&lt;/i&gt; \_d\_
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escape(line, quote=False))


def code(commands: Sequence[str]) -> str:
    """Commands as a block of code, one a line, whatever is in them."""
    lines = [" ".join(command.split()).replace("<!--", "<! --") for command in commands]  # no mark of ours
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return "\n".join([f"{fence}sh", *lines, fence])


def _alone(point: Point, key: str) -> Interval | None:
    """The mean alone: repeated evaluations of one training say nothing of another training."""
    found = point.measures.get(key)
    return None if found is None else Interval(found.mean, found.mean, found.mean, 1)


def _fit(found: budget.Fit | None, own: Series) -> str:
    if found is None:
        return NONE
    said = short(found.low) if short(found.low) == short(found.high) else f"{short(found.low)} … {short(found.high)}"
    few = len(own.runs) > found.runs and own.method not in SEPARATE
    return _two(measure(found.point, "accuracy"), said + f", {found.runs} of {len(own.runs)} runs" * few)


def _name(point: Point, line: budget.Line) -> str:
    """What a size is called; shapes that were trained for themselves are all called alike: their parameters."""
    return short(point.parameters) if line.separate and point.kind == "learned" else words(point.label)


def _two(first: str, second: str) -> str:
    """A cell of a number, and in small below what it is of."""
    return f"{first}<br><small>{second}</small>" if second else first


def _seeds(points: Sequence[Point]) -> str:
    low, high = (end(map(budget.seeds, points)) for end in (min, max))
    return str(low) if low == high else f"{low} … {high}"


def _training(took: dict[str, object]) -> str:
    """The time of one training, and how many the method needs."""
    seconds, count = took["train"], took["trainings"]
    if not isinstance(seconds, int | float) or not isinstance(count, int):
        return NONE
    return f"{duration(seconds / count)} ×{SPACE}{count}" if count > 1 else duration(seconds)


def _mean(seconds: Sequence[float | None]) -> str:
    known = [one for one in seconds if one is not None]
    return duration(sum(known) / len(known)) if known else NONE


def _outside(block: Block) -> str:
    """The name of the data out of domain."""
    return next((run.results["ood"] for run in block.runs if run.results.get("ood")), "unfamiliar")
