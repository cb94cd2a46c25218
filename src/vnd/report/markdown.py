"""A comparison as Markdown, for a page of documentation: what lies between two marks is written, all else stays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from vnd._files import put
from vnd.metrics import Interval
from vnd.report import style
from vnd.report.provenance import origin
from vnd.report.series import Block, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vnd.report.html import Cell, Compared, Part

BEGIN, END = "<!-- vnd report: begin -->", "<!-- vnd report: end -->"
IMAGES, DPI, LARGEST = "images", 144, 150_000  # folder, dots an inch, bytes of a PNG file
AGAIN = (
    "As they were given: what a recipe says may have changed since. The recipe.yaml in the folder of a run has all of "
    "its settings, and `vnd train FOLDER/recipe.yaml` trains by them."
)
TIMES = (
    "Times are means over runs; training is the steps alone, without validation and checkpoints. A commit with + had "
    "changes that were not committed."
)
HEAD = ["Method", "Runs", "Trained on", "torch", "vnd commit", "Training a run", "Evaluation a run"]


def write_markdown(found: Compared, path: Path, sizes: Sequence[float] = (), command: str = "") -> list[Path]:
    """Write a comparison between the marks of a Markdown file, and its figures into `images/` beside it.

    Args:
        found: What is compared.
        path: The file; what lies outside its marks stays as it is. Without a file, one is made.
        sizes: Numbers of parameters at which methods are compared.
        command: What made it, for the reader to repeat.

    Returns:
        The figures.
    """
    from vnd.report.html import Options, parts_of

    marked(path)  # or all the drawing would be for nothing
    text, files = list[str](), list[Path]()
    for block, prefix in found.named:
        text.append(f"### {words(block.name)}")
        for part in parts_of(block, Options("markdown", prefix, tuple(sizes))):
            text += _tables(part)
            for one in part.drawings:
                files.append(_put_figure(one.draw(), path, one.name))
                text.append(f"![{words(part.heading)}]({quote(f'{IMAGES}/{files[-1].name}')})")
                text.append(f"*{words(part.heading)}{'.' * (part.heading[-1:] not in '?!')}* {words(part.note)}")
        text += made(block)
    if command:
        text += ["Tables and figures were made by", code([command])]
    before, after = marked(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    middle = "\n\n".join([BEGIN, *text, END]).encode()
    put(path, lambda partial: partial.write_bytes(before + middle + after))
    return files


def marked(path: Path) -> tuple[bytes, bytes]:
    """What lies before and after the marked part of a file; nothing where there is no file yet.

    Args:
        path: The file. It must have both marks, each once, in their order.
    """
    if not path.exists():
        return b"", b"\n"
    contents = path.read_bytes()
    begin, end = BEGIN.encode(), END.encode()
    if (contents.count(begin), contents.count(end)) != (1, 1) or contents.index(end) < contents.index(begin):
        raise ValueError(
            f"report: {path} must have the lines {BEGIN} and {END}, each once and in this order; put them where the "
            "tables shall stand"
        )
    return contents[: contents.index(begin)], contents[contents.index(end) + len(end) :]


def made(block: Block) -> list[str]:
    """Where the numbers come from: a line a training, however it is read, and the commands of every run."""
    from vnd.report.html import NONE, duration

    named: dict[tuple[int, ...], list[Series]] = {}
    for own in block.series:
        named.setdefault(tuple(map(id, own.runs)), []).append(own)
    lines, commands = [], []
    for series in named.values():
        runs = series[0].runs
        origins = [origin(run) for run in runs]
        said = (dict.fromkeys(getattr(one, key) for one in origins) for key in ("machine", "torch", "commit"))
        line = [words(", ".join(own.name for own in series)), str(len(runs))]
        line += [words(", ".join(filter(None, one))) or NONE for one in said]
        for key in ("train", "evaluate"):
            known = [s[key] for run in runs if (s := run.results.get("seconds") or {}).get(key) is not None]
            line.append(duration(sum(known) / len(known)) if known else NONE)
        lines.append(line)
        commands += [command for one in origins for command in one.commands]
    found = [TIMES, _rows([HEAD, *lines])]
    if commands:
        kept = all("recipe" in run.beside for run in block.runs)
        parts = ["<details><summary>The commands of the runs</summary>", *[AGAIN] * kept, code(commands), "</details>"]
        found.append("\n\n".join(parts))
    return found


def words(text: str) -> str:
    r"""A text of a result file, safe in Markdown: one line, and no mark-up.

    >>> print(words("a|b <i>*c*</i>\n_d_"))
    a\|b &lt;i&gt;\*c\*&lt;/i&gt; \_d\_
    """
    line = "".join(c if c.isprintable() or c == "\u00a0" else " " for c in text)
    line = re.sub("[^\\S\u00a0]+", " ", line).strip()
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escape(line, quote=False))


def code(commands: Sequence[str]) -> str:
    """Commands as a block of code, one a line, whatever is in them."""
    lines = [" ".join(command.split()).replace("<!--", "<! --") for command in commands]  # no mark of ours
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return "\n".join([f"{fence}sh", *lines, fence])


def spread(found: Interval, shape: str) -> str:
    """A mean and half its interval, if it has one, each in a shape.

    >>> print(spread(Interval(0.5, 0.25, 0.75, 3), "{:.2f}"), spread(Interval(0.5, 0.5, 0.5, 1), "{:.3g}"))
    0.50 ± 0.25 0.5
    """
    return shape.format(found.mean) + (f" ± {shape.format((found.high - found.low) / 2)}" if found.count > 1 else "")


def _tables(part: Part) -> list[str]:
    """The tables of a part, after what they show."""
    from vnd.report.html import Items, Table

    found = []
    for one in part.content:
        if isinstance(one, Items):
            found += [words(line[0].text) for line in one.lines]
        elif isinstance(one, Table):
            lines = [[_cell(cell) for cell in line] for line in one.lines]
            found += [words(part.note), _rows([[words(name) for name in one.head], *lines])]
    return found


def _cell(cell: Cell | str) -> str:
    """A number or a name, and in small below what it is of."""
    if isinstance(cell, str):
        return words(cell)
    text = f"**{words(cell.text)}**" if cell.bold else words(cell.text)
    return f"{text}<br><small>{words(cell.small)}</small>" if cell.small else text


def _rows(lines: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; numbers to the right."""
    head, *body = lines
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *body])


def _put_figure(figure: Figure, path: Path, name: str) -> Path:
    """Write a figure into `images/` beside a Markdown file; its path."""
    file = path.parent / IMAGES / f"{path.stem}-{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    contents = style.png(figure, DPI, LARGEST)
    put(file, lambda part: part.write_bytes(contents))
    return file
