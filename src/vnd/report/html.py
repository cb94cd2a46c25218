"""Pages: what they are made of, and how these parts become one HTML file that needs nothing else, or Markdown.

A page of documentation has its comparison between two marks; what lies outside of them stays.
"""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from vnd._files import put, write_text
from vnd._text import nearest, short
from vnd.metrics import Interval
from vnd.report import style
from vnd.report.results import (
    CAPTIONS,
    FORMAT,
    RESULTS,
    Column,
    Run,
    checked,
    declared,
    find,
    open_run,
    origin,
    refuse_mixtures,
)
from vnd.report.series import Block, Point, Series, blocks_of, is_certain, numbered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEGIN, END = "<!-- vnd report: begin -->", "<!-- vnd report: end -->"
PAGE, NUMBERS, TABLE = "report.html", "summary.json", "summary.csv"
DPI = 144  # of the PNG files
IMAGES, LARGEST = "images", 150_000  # beside a Markdown file: their folder, and bytes of each
REPEATED = "†"  # after an interval that is not over seeds
NONE = "–"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which one begins in a spreadsheet
NOT_TEST = (
    "All numbers are of validation images, not of test images. Training kept what was best on them, and thresholds and "
    "temperatures were fitted on them: on new images the numbers may be worse."
)
HEAD = ["Method", "Runs", "Trained on", "torch", "vnd commit", "Training a run", "Evaluation a run"]


@dataclass(frozen=True)
class Cell:
    """A text with what is in small after it, or below it."""

    text: str
    small: str = ""
    bold: bool = False
    below: bool = False


@dataclass(frozen=True)
class Table:
    """A table; with `fold` it is shown when asked for, under these words. Lines of `marked` stand out."""

    head: Sequence[str]
    lines: Sequence[Sequence[Cell | str]]
    heading: str = ""
    fold: str = ""
    note: str = ""
    marked: tuple[int, ...] = ()
    kind: str = "table"


@dataclass(frozen=True)
class Drawing:
    """A figure: its file's name, how it is drawn, and whose it is where a part has one for each series."""

    name: str
    draw: Callable[[], Figure]
    series: str = ""
    fold: bool = False
    kind: str = "drawing"


@dataclass(frozen=True)
class Items:
    """Paragraphs, the points of a list, terms with what they mean, or cards: each a list of cells."""

    lines: Sequence[Sequence[Cell]]
    kind: Literal["paragraphs", "list", "terms", "cards"] = "list"
    fold: str = ""


Content = Sequence[Table | Drawing | Items]


@dataclass(frozen=True)
class Panel:
    """A panel of a page: heading, note, and what it shows. Without a heading it stands above all others."""

    key: str
    heading: str
    note: str
    content: Content
    is_half: bool = False

    @property
    def drawings(self) -> list[Drawing]:
        """Its figures."""
        return [one for one in self.content if isinstance(one, Drawing)]


@dataclass(frozen=True)
class Options:
    """Of which page the parts are: of a "run", of many ("page", and its "top" and "bottom"), or of "markdown".

    `prefix` begins the names of its figures; `sizes` are those of the table of methods.
    """

    view: str
    prefix: str = ""
    sizes: tuple[float, ...] = ()

    def drawing(self, key: str, draw: Callable[..., Figure], *given: Any) -> Drawing:
        """A figure that is drawn of what is given."""
        return Drawing(self.prefix + key, partial(draw, *given))


MEASURED = ("measured", "curves", "every_size")  # sections of networks of which rows are known, and no run
View = Callable[[Block, Options], list[Panel]]
SECTIONS: dict[str, dict[str, View]] = {}  # by the names that result files have under "sections"


def section(name: str, *views: str) -> Callable[[View], View]:
    """Register what makes the parts of a section for some pages: "run", "page", "markdown", "top", "bottom"."""

    def register(make: View) -> View:
        SECTIONS.setdefault(name, {}).update(dict.fromkeys(views, make))
        return make

    return register


@dataclass(frozen=True)
class Compared:
    """Runs that are compared, in blocks, and the names of runs that are left out."""

    blocks: tuple[Block, ...]
    left_out: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Run]:
        """All runs, block by block."""
        return [run for block in self.blocks for run in block.runs]

    @property
    def named(self) -> list[tuple[Block, str]]:
        """The blocks, each with what the names of its figures begin with."""
        many = len(self.blocks) > 1
        return [(own, f"{slug(own.key[0])}-{index}-" * many) for index, own in enumerate(self.blocks, 1)]


def read(places: Sequence[Path], say: Callable[[str], object] | None = None) -> Compared:
    """Read the runs of some places, as `find` takes them, and find out what can be compared with what.

    `say` is called with one line where runs of a folder are left out, since they were not evaluated.
    """
    runs, left_out = find(places)
    if say is not None and left_out:
        say(f"report: left out, not evaluated: {', '.join(map(str, left_out))}")
    return Compared(tuple(blocks_of(runs)), tuple(path.name for path in left_out))


def parts_of(block: Block, options: Options) -> list[Panel]:
    """The parts of a page that a block has numbers for, in the order that its files say."""
    from vnd.report import curves, lengths, masks  # noqa: F401  they register sections, and draw and compute

    found = []
    for name in block.sections:
        if name not in SECTIONS:
            where, near = block.runs[0].path, nearest(name, SECTIONS)
            raise ValueError(f"report: sections of {where} has {name!r}, which is none{near}")
        make = SECTIONS[name].get(options.view)
        found += [] if make is None else [part for part in make(block, options) if part.content]
    return found


def write_run(path: Path, out: Path) -> Path:
    """Write the report of a run's folder or result file into another folder, with its figures; the path of the page."""
    run = open_run(Path(path) / RESULTS if Path(path).is_dir() else Path(path))
    (block,) = blocks_of([run])
    parts = parts_of(block, Options("run"))
    made = part("made", [_made(run)], is_half=True)
    pictures = style.pictures(_figures(parts), Path(out) / "figures", DPI)
    write_text(Path(out) / PAGE, html(run.results["title"], [("", "", [*parts, made])], pictures))
    return Path(out) / PAGE


def write(found: Compared, out: Path, title: str | None = None) -> Path:
    """Write the page of runs that are compared, its figures, and its numbers as `summary.csv` and `summary.json`.

    The path of the page, whose heading says how much is compared if no title is given.
    """
    out, runs = Path(out), found.runs
    if (out / RESULTS).exists():
        raise ValueError(f"report: out must not be a run's folder, whose {PAGE} it would replace; got {out}")
    noun, several = runs[0].results["task"]["noun"], "s" * (len(runs) > 1)
    title = title or f"Comparison of {len(runs)} {noun}{several}"
    first = found.blocks[0]
    groups = [("", "", [_introduction(found), *parts_of(first, Options("top"))])]
    for index, (block, prefix) in enumerate(found.named, 1):
        heading = block.name if len(found.blocks) > 1 else ""
        groups.append((heading, f"block-{index}", parts_of(block, Options("page", prefix))))
    groups.append(("", "", [*parts_of(first, Options("bottom")), _origins(runs)]))
    parts = [part for _, _, own in groups for part in own]
    pictures = style.pictures(_figures(parts), out / "figures", DPI)
    lines = [line for block in found.blocks for line in rows(block)]
    tables = [
        {"part": part.heading, "head": [*one.head], "lines": [list(map(_text, line)) for line in one.lines]}
        for part in parts
        for one in part.content
        if isinstance(one, Table)
    ]
    about = {"format": FORMAT, "task": runs[0].results["task"]["name"], "split": runs[0].split}
    about |= {"left_out": list(found.left_out), "points": lines, "tables": tables}
    about |= {"figures": [f"figures/{name}.png" for name in pictures]}
    write_text(out / TABLE, as_csv(lines))
    write_text(out / NUMBERS, json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(out / PAGE, html(title, groups, pictures))
    return out / PAGE


def write_measured(results: Sequence[dict[str, Any]], path: Path, title: str | None = None) -> Path:
    """Write the page of networks that no run folder is of, each as the contents of a result file: one file alone."""
    runs = [
        Run(Path(one["title"]), checked(Path(one["title"]), one | {"sections": [*MEASURED, *one["sections"]]}))
        for one in results
    ]
    refuse_mixtures(runs)
    (block,) = blocks_of(runs)
    parts = parts_of(block, Options("run" if len(block.series) == 1 else "page"))
    pictures = {name: style.svg(figure) for name, figure in _figures(parts).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html(title or "Evaluation of " + listed([run.name for run in runs]), [("", "", parts)], pictures))
    return path


def html(title: str, groups: Sequence[tuple[str, str, Sequence[Panel]]], pictures: dict[str, str]) -> str:
    """The page, of groups of parts, each with a heading and a mark, and of each figure as SVG."""
    shown = []
    for heading, mark, parts in groups:
        lines: list[list[Panel]] = []
        for is_half, some in groupby(parts, key=lambda part: part.is_half):
            own = list(some)
            lines += [own[at : at + 2] for at in range(0, len(own), 2)] if is_half else [[part] for part in own]
        shown.append({"heading": heading, "mark": mark, "lines": lines})
    template = _templates().get_template("report.html.j2")
    from markupsafe import Markup

    def picture(part: Panel, one: Drawing) -> Any:
        label = Markup.escape(f"{part.heading} {one.series}".strip())
        return Markup(pictures[one.name].replace("<svg", f'<svg role="img" aria-label="{label}"', 1))

    return str(template.render(title=title, groups=shown, picture=picture))


@cache
def _templates() -> Any:
    """The environment of all templates: what they are given is text, not HTML."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError:
        message = "pages of the report need Jinja2; pip install 'variational-nested-dropout[report]'"
        raise ModuleNotFoundError(message) from None
    loader = PackageLoader("vnd.report", "")
    found = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    found.filters["short"] = short
    return found


def caption(of: str, key: str = "note", /, **given: object) -> str:
    """The note of a name in captions.yaml, or its heading, with what it speaks of."""
    text = declared(CAPTIONS)[of].get(key, "")
    template = _templates().overlay(autoescape=False, trim_blocks=False).from_string(text)
    return re.sub(" *(\n| ) *", r"\1", template.render(given)).strip()


def part(key: str, content: Content, /, is_half: bool = False, caption_of: str = "", **given: object) -> Panel:
    """A part with heading and note of captions.yaml, of its key or another name; without tables that have no line."""
    heading, note = (caption(caption_of or key, which, **given) for which in ("heading", "note"))
    shown = [one for one in content if not isinstance(one, Table) or one.lines]
    return Panel(key, heading, note, shown, is_half)


def rows(block: Block) -> list[dict[str, Any]]:
    """Every point of every series, flat: what the figures draw."""
    from vnd.report import masks  # noqa: F401  it registers what it adds

    more = {key: row for name in block.sections if name in ROWS_OF for key, row in ROWS_OF[name](block).items()}
    found = []
    for own, point in block.points:
        run = own.runs[0]
        line: dict[str, Any] = {
            "data": run.data, "image": run.image, "network": run.network, "series": own.name,
            "method": own.method["key"], "inference": own.inference, "kind": point.kind, "label": point.label,
            "fraction": point.fraction, "runs": len(own.runs), "interval_over": point.over,
        }  # fmt: skip
        for key, value in point.measures.items():
            low, high = (value.low, value.high) if value.count > 1 else (None, None)
            line |= {key: value.mean, f"{key}_low": low, f"{key}_high": high}
        found.append(line | more.get((own.name, point.label), {}))
    return found


ROWS_OF: dict[str, Callable[[Block], dict[tuple[str, str], dict[str, Any]]]] = {}  # what sections add to them


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Flat rows as CSV; what is not known is empty, and no text can pass for a formula of a spreadsheet."""
    text = StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: f"'{x}" if isinstance(x, str) and x[:1] in FORMULA else x for key, x in line.items()})
    return text.getvalue()


# How numbers and names are written


def number(value: float | None, column: Column) -> str:
    """A number as its column writes it; a dash where it is not known.

    >>> number(0.9123, Column("accuracy", "Accuracy", "percent", 1)), number(21_000, Column("macs", "MACs", "short"))
    ('91.2 %', '21 k')
    """
    if value is None:
        return NONE
    forms = {"short": short(value), "bytes": short(value, "B"), "ms": f"{value:.3g} ms"}
    unit = " %" if column.form == "percent" else ""
    return forms.get(column.form) or f"{column.factor * value:.{column.digits}f}{unit}"


def measure(point: Point, column: Column, bold: bool = False) -> Cell:
    """A measure of a point, with half its interval in small if it has one; marked where it is over repeats."""
    return interval(point.measures.get(column.key), column, point.over, bold)


def interval(found: Interval | None, column: Column, over: str = "seeds", bold: bool = False) -> Cell:
    """A mean, with half its interval in small if it has one; marked where it is over repeats."""
    if found is None:
        return Cell(NONE)
    reach = f"± {column.factor * (found.high - found.low) / 2:.{column.digits}f}{REPEATED * (over == 'repeats')}"
    return Cell(number(found.mean, column), reach if found.count > 1 else "", bold)


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(1.784), duration(95), duration(53_640)
    ('1.78 s', '95 s', '14.9 h')
    """
    for scale, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def listed(words: Sequence[str]) -> str:
    """Words with commas and one "and".

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', '')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def slug(text: str) -> str:
    """A name as a part of a file's name.

    >>> slug("DT-BN³ (cifar10/wide)"), slug("../ℓ")
    ('dt-bn3-cifar10-wide', 'l')
    """
    letters = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", letters).strip("-")[:60] or "other"


def each(series: Sequence[Series], name: str, draw: Callable[[Series], Figure], prefix: str) -> list[Drawing]:
    """A figure for each series that has one, of different names; all but the first are folded."""
    names = numbered([f"{prefix}{name}-{slug(own.name)}" for own in series], "-")
    draws = [(stem, partial(draw, own), own.name) for stem, own in zip(names, series, strict=True)]
    return [Drawing(*one, fold=index > 0) for index, one in enumerate(draws)]


def paragraphs(*texts: str) -> Items:
    """Paragraphs, a line each."""
    return Items([[Cell(line)] for text in texts for line in text.splitlines() if line], "paragraphs")


def of_split(results: dict[str, Any], where: str) -> str:
    """On which images a run is measured, in words; and what that means where they are not those of the test."""
    split = results.get("split") or "test"
    count = f"{results['data'][split]:,} " if results["data"].get(split) else ""
    said = f"Here it is measured{where} on {count}{split} images, which it was not trained on."
    return said if split == "test" else f"{said} {NOT_TEST}"


def images_of(results: dict[str, Any]) -> str:
    """The images that a run was trained on, in words."""
    count = f"{results['data']['train']:,} images of " if results["data"].get("train") else ""
    return f"{count}“{results['data']['name']}”"


def _introduction(found: Compared) -> Panel:
    """Say what is compared, of which images its numbers are, and what is missing; with links to the blocks."""
    names = dict.fromkeys(own.name for block in found.blocks for own in block.series)
    runs, where = found.runs, "; ".join(dict.fromkeys(block.name for block in found.blocks))
    lines = [f"{len(runs)} run{'s' * (len(runs) > 1)} of {where}. Shown: {', '.join(names)}."]
    lines += [NOT_TEST] if runs[0].split != "test" else []
    lines += [f"Left out: {', '.join(found.left_out)}, not evaluated."] if found.left_out else []
    return Panel("top", "", "", [paragraphs(*lines)])


def _origins(runs: Sequence[Run]) -> Panel:
    """Provenance of the numbers: every run."""
    head = ["Run", "Method", "Recipe", "Data", "Network", "Seed", "Samples", "Machine", "File"]
    lines = []
    for run in runs:
        said = (run.recipe, run.data, run.network, run.seed, _samples(run), run.results.get("machine"))
        cells = [run.name, run.method["name"], *(NONE if value is None else str(value) for value in said)]
        lines.append([*cells, str(run.path)])
    return part("runs", [Table(head, lines)])


def _made(run: Run) -> Items:
    """Provenance of the numbers of a run."""
    results, chosen, samples = run.results, run.results.get("chosen") or {}, _samples(run)
    data = results["data"]
    sizes = ", ".join(f"{data[part]:,} {part}" for part in ("train", "validation", "test") if data.get(part))
    items = {
        "Command": results.get("command"),
        "Method": run.method["name"],
        "Data": f"{data['name']} ({sizes})" if sizes else data["name"],
        "Out of domain": results.get("ood"),
        "Samples per prediction": "none, the means of the weights" if samples == "0" else samples,
        "Machine": results.get("machine"),
        "Seconds": ", ".join(f"{name} {value:.1f}" for name, value in (results.get("seconds") or {}).items()),
        "Chosen network": chosen.get("folder"),
    }
    return Items([[Cell(name), Cell(str(value))] for name, value in items.items() if value], "terms")


def _samples(run: Run) -> str | None:
    samples = run.results.get("samples")
    if samples is None or is_certain(run.method):  # weights without a posterior: none are drawn
        return None
    return ", ".join(map(str, samples)) if isinstance(samples, list) else str(samples)


def _figures(parts: Sequence[Panel]) -> dict[str, Figure]:
    return {one.name: one.draw() for part in parts for one in part.drawings}


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else " ".join(filter(None, (cell.text, cell.small)))


# Pages of documentation: a comparison as Markdown between two marks


def write_markdown(found: Compared, path: Path, sizes: Sequence[float] = (), command: str = "") -> list[Path]:
    """Write a comparison between the marks of a Markdown file, and its figures into `images/` beside it: their paths.

    Args:
        found: What is compared.
        path: The file; what lies outside its marks stays as it is. Without a file, one is made.
        sizes: Numbers of parameters at which methods are compared.
        command: What made it, for the reader to repeat.
    """
    marked(path)  # or all the drawing would be for nothing
    text, files = list[str](), list[Path]()
    for block, prefix in found.named:
        text.append(f"### {words(block.name)}")
        for part in parts_of(block, Options("markdown", prefix, tuple(sizes))):
            text += _tables(part)
            for one in part.drawings:
                files.append(path.parent / IMAGES / f"{path.stem}-{one.name}.png")
                files[-1].parent.mkdir(parents=True, exist_ok=True)
                put(files[-1], partial(Path.write_bytes, data=style.png(one.draw(), DPI, LARGEST)))
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
    """Split a file at its marks, each of which it must have once; nothing where there is no file."""
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
    """Provenance of the numbers: a line a training, and the commands of every run."""
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
    found = [caption("trainings"), _rows([HEAD, *lines])]
    if commands:
        kept = all("recipe" in run.beside for run in block.runs)
        parts = [
            "<details><summary>The commands of the runs</summary>",
            *[caption("commands")] * kept,
            code(commands),
            "</details>",
        ]
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


def _tables(part: Panel) -> list[str]:
    """The tables of a part, after what they show."""
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
    mark = "**" * cell.bold
    return f"{mark}{words(cell.text)}{mark}" + f"<br><small>{words(cell.small)}</small>" * bool(cell.small)


def _rows(lines: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; numbers to the right."""
    head, *body = lines
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *body])
