"""Pages of documentation: a comparison as Markdown between two marks, where runs come from, and files of kept runs.

What lies outside the marks stays. Texts of kept runs have no path of one machine.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from vnd._files import put, write_text
from vnd.metrics import Interval
from vnd.report import style
from vnd.report.results import Run
from vnd.report.series import Block, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vnd.report.html import Cell, Compared, Part

BEGIN, END = "<!-- vnd report: begin -->", "<!-- vnd report: end -->"
PROGRAM = re.compile(r"(vnd|__main__\.py)$")  # what the command line calls itself
LONGEST, WHOLE = 30_000, 8  # bytes of a kept log, and its rows that speak of every layer
# Of a result file: images, which are not ours to pass on, and the curve, which the log has. No comparison reads them.
DROPPED = ("examples", "curves")
FOLDER = re.compile(r"""^(\s*(?:- |[^\s:'"]+: ))['"]?/.*$""", re.MULTILINE)  # a path of one machine, in a recipe
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


# Where runs come from, and what is kept of them


@dataclass(frozen=True)
class Origin:
    """Where one run was trained, in words; empty where nothing says.

    Args:
        machine: Its GPUs, or its CPU cores.
        torch: Version.
        commit: Of the library, in short; "+" after it where the source was changed.
        commands: That trained it and that evaluated it.
    """

    machine: str
    torch: str
    commit: str
    commands: tuple[str, ...]


def origin(run: Run) -> Origin:
    """Where a run comes from, as its environment says, which may be missing or broken, or else its results."""
    given: Any = run.beside.get("environment")
    said: dict[str, Any] = {"versions": {}, "git": {}, "gpus": [], "command": [], "cpus": 0}
    for key, empty in said.items() if isinstance(given, dict) else ():
        if isinstance(given.get(key), type(empty)):
            said[key] = given[key]
    machine, _, torch = str(run.results.get("machine") or "").partition(", torch ")
    gpus: dict[str, int] = Counter(map(str, said["gpus"]))
    if gpus:
        machine = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in gpus.items())
    elif said["cpus"]:
        machine = f"{said['cpus']} CPU cores"
    git = dict(said["git"])
    commit = f"{git['commit'][:9]}{'+' * bool(git.get('dirty'))}" if isinstance(git.get("commit"), str) else ""
    command = [str(word) for word in said["command"]]
    command[:1] = [PROGRAM.sub("vnd", word) for word in command[:1]]
    commands = [shlex.join(portable(command)), portable(str(run.results.get("command") or ""))]
    torch = str(said["versions"].get("torch") or torch)
    return Origin(machine, torch, commit, tuple(filter(None, commands)))


def keep(runs: Sequence[Run], path: Path) -> int:
    """Write what a comparison reads of runs into one file, a run a line, so that a report of it is that of the runs.

    All numbers are as they were, but for a thinned log. Texts have no absolute paths.

    Args:
        runs: The runs, in the order that they are to have.
        path: The file, `.jsonl`.

    Returns:
        Its bytes.
    """
    if path.suffix != ".jsonl":
        raise ValueError(f"report: keep must be a file whose name ends in .jsonl; got {path}")
    recipes = tails([run.recipe for run in runs if run.recipe])
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(kept(run, recipes), ensure_ascii=False, allow_nan=False)}\n" for run in runs)
    write_text(path, text)
    return len(text.encode())


def kept(run: Run, recipes: dict[str, str]) -> dict[str, Any]:
    """What is kept of a run: "results", "environment", "data", "recipe" and "log", those that there are."""
    results = {key: value for key, value in run.results.items() if key not in DROPPED}
    results |= {key: portable(results[key]) for key in ("command", "chosen") if results.get(key)}
    if run.recipe and isinstance(results.get("series"), dict):
        results["series"] = {**results["series"], "recipe": recipes[run.recipe]}
    found: dict[str, Any] = {"results": results}
    environment = run.beside.get("environment")
    if isinstance(environment, dict):
        git = environment.get("git")
        own = {key: value for key, value in git.items() if key != "folder"} if isinstance(git, dict) else git
        found["environment"] = portable(environment | ({"git": own} if git is not None else {}))
    if "data" in run.beside:
        found["data"] = run.beside["data"]
    if "recipe" in run.beside:
        found["recipe"] = FOLDER.sub(r"\1null", run.beside["recipe"])
    if log := run.beside.get("log") or _log(run.path.parent / "metrics.jsonl"):
        found["log"] = thinned(log)
    return found


def thinned(rows: Sequence[dict[str, Any]], most: int = LONGEST) -> list[dict[str, Any]]:
    r"""A log that is not too long: every n-th row of training and of validation, and the last; n is the least for it.

    What a row says of every layer, its "units", is longer than all else and stays in a few rows.

    >>> [row["step"] for row in thinned([{"step": step, "loss": 1.0} for step in range(1, 8)], 90)]
    [1, 4, 7]
    """
    found = list(rows)
    kinds = [[at for at, row in enumerate(rows) if ("loss" in row) == loss] for loss in (True, False)]
    for step in range(1, len(rows) + 1):
        if sum(len(json.dumps(row)) + 1 for row in found) <= most:
            break
        some = [kind[::step] + kind[-1:] * bool((len(kind) - 1) % step) for kind in kinds if kind]
        whole = {kind[round(part * (len(kind) - 1) / (WHOLE - 1))] for kind in some for part in range(WHOLE)}
        found = [rows[at] if at in whole else _lean(rows[at]) for at in sorted(at for kind in some for at in kind)]
    return found


def tails(paths: Sequence[str]) -> dict[str, str]:
    """For each absolute path the fewest of its last parts that tell it from all others; others are as they are.

    >>> tails(["/a/b/bn3", "/a/c/bn3", "cifar10/fn3"])
    {'/a/b/bn3': 'b/bn3', '/a/c/bn3': 'c/bn3', 'cifar10/fn3': 'cifar10/fn3'}
    """
    for count in range(1, 2 + max((path.count("/") for path in paths), default=0)):
        found = {path: "/".join(Path(path).parts[1:][-count:]) if path.startswith("/") else path for path in paths}
        if len(set(found.values())) == len(found):
            break
    return found


def portable(value: Any) -> Any:
    """A JSON value whose texts have, in the place of an absolute path, its last part alone.

    >>> portable({"folder": "/home/me/runs/first", "command": "vnd evaluate '/home/me/my runs/a' --out=/tmp/b"})
    {'folder': 'first', 'command': 'vnd evaluate a --out=b'}
    >>> portable(["--data.folder=/data/x", "T-shirt/top", "cifar10/bn3", 3])
    ['--data.folder=x', 'T-shirt/top', 'cifar10/bn3', 3]
    """
    if isinstance(value, dict):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    return _text(value) if isinstance(value, str) and "/" in value else value


def _text(text: str) -> str:
    if (short := _word(text)) != text:
        return short
    try:
        words = shlex.split(text)
    except ValueError:  # no command: a lone quote
        return " ".join(_word(word) for word in text.split(" "))
    short_words = [_word(word) for word in words]
    return text if short_words == words else shlex.join(short_words)


def _word(word: str) -> str:
    """A word that is an absolute path, or has one after its first "=", with the path's last part alone."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{Path(value).name}" if value.startswith("/") and len(value) > 1 else word


def _log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; what a kill left of one is none."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        found += [row] if isinstance(row, dict) else []
    return found


def _lean(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "units"}
