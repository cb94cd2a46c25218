"""Do the documentation's tables and figures still follow from the kept results?

Each page with a part written by `vnd report` is written again in an empty folder, by the command that stands in it,
from `docs/results`; the README's table and figures, the figures of the theory, the rows of `docs/zoo.md`, and what
`docs_tables.py` makes of `docs/results` and `benchmarks/results` are made again. Text must be equal. Of a figure the
size must be equal, and at most one pixel in 500 may differ by more than 24 of 255: fonts are drawn a little otherwise
from one version of matplotlib to the next. A figure that no page shows is named, too.

`BY_HAND` names what is not made again, and why; a table or a figure that is neither made nor there is a difference.

    make docs-check                                  # exit code 1 and one line for each difference
    python scripts/docs_check.py --write             # take what was made into the tree, where it is meant to change
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import zoo
from docs_speed import GROWTH, growth
from docs_speed import TABLES as SPEED
from docs_tables import PAGES, bits_figure, serving_figure, short_figure, table
from vnd import pretrained
from vnd._text import short
from vnd.cli import main as vnd
from vnd.report import html
from vnd.report.html import BEGIN, END
from vnd.report.results import read
from vnd.report.theory import downhill

ROOT = Path(__file__).resolve().parents[1]
LEVELS, PIXELS = 24, 1 / 500  # what a pixel may differ by, and the share of pixels that may differ by more
DEMO, FIGURES = "docs/results/demo.json", {"accuracy": "demo-accuracy", "survival": "demo-survival"}
DPI = 144
ZOO = "<!-- zoo: begin -->", "<!-- zoo: end -->"
NETWORKS = "what trained networks draw, which are not kept: vnd"
WORDS = "words alone: no figure of a run is in it"
BY_HAND: dict[str, dict[str, str]] = {  # page → heading of its tables, or figure → why no kept result makes it
    "README.md": {"| part | what it does |": WORDS},
    "docs/codes.md": {
        "| key | what it does |": WORDS,
        "| VND-AE in the paper | CelebA | CIFAR-10 | CIFAR-100 | 3D Chairs | Chest X-ray |": "figures of the paper",
        "codes-growing.png": f"{NETWORKS} generate", "codes-tree.png": f"{NETWORKS} generate",
        "| part | what it may be |": WORDS, "codes-density.png": "a network of the example, trained",
    },
    "docs/deploy.md": {
        "| call | file | inputs |": WORDS,
        "| width | right | mutual information where right, where wrong | time of the widest |": "the example, trained",
    },
    "docs/distillation.md": {
        "| network | parameters | six draws | one pass |": "networks of the example, trained",
        "| option | meaning |": WORDS,
    },
    "docs/equations.md": {"| paper | here |": WORDS, "| paper | in words | symbol | function | test |": WORDS},
    "docs/errata.md": {"| place | says | should be |": WORDS},
    "docs/evaluation.md": {"| keys | what |": WORDS},
    "docs/page.md": {
        "| kind | slider | of a picture | Python |": WORDS,
        **{f"page-{name}.png": "screenshots of the demo's page: make test-page" for name in ("light", "dark", "phone")},
    },
    "docs/reproduction.md": {
        "| figure or table | recipes | commands | status |": WORDS, "| what | recipes | commands | status |": WORDS,
    },
    "docs/segmentation.md": {
        "| key | what it does |": WORDS,
        "NAME.png": "a file of one's own, in a layout",
        "segmentation-masks.png": f"{NETWORKS} segment", "segmentation-lidc-masks.png": f"{NETWORKS} segment",
    },
    "docs/serving.md": {"| from | what holds |": WORDS},
    "docs/sweeps.md": {"| option | what |": WORDS},
    "docs/training.md": {
        "| file | what |": WORDS, "| inference | what it is | in the paper |": WORDS,
        "| `data.name` | what is read | example |": WORDS,
        "| the paper's option | key of a recipe | default | in Python |": WORDS,
    },
    "docs/zoo.md": {"| column | what it says |": WORDS},
}  # fmt: skip


def make(root: Path, folder: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Write all generated text and figures of a tree into a folder, from its kept results.

    Returns:
        The files, relative; and of each page the headings of its tables, but for those between marks.
    """
    (folder / "docs" / "images").mkdir(parents=True)
    (folder / "docs" / "results").symlink_to(root / "docs" / "results")
    made = ["README.md"]
    for path in sorted((root / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if BEGIN in text:
            vnd(_command(text, path)[1:])
            made.append(f"docs/{path.name}")
    makers = PAGES | {"speed.md": SPEED + PAGES["speed.md"]}
    tables = {f"docs/{page}": [make(root) for make in own] for page, own in makers.items()}
    tables["README.md"] = [demo_table(read(root / DEMO)), shipped_table("cifar10-bn3")]
    for page, parts in tables.items():
        text = (folder if page in made[1:] else root).joinpath(page).read_text(encoding="utf-8")
        for part in parts:
            text = _with_table(text, part, page)
        (folder / page).write_text(text, encoding="utf-8")
    headings = {page: [part.splitlines()[0] for part in parts] for page, parts in tables.items()}
    made += [page for page in tables if page not in made]
    for rows in (root / "docs" / "results").glob("zoo.json"):
        text = (root / "docs" / "zoo.md").read_text(encoding="utf-8")
        results = json.loads(rows.read_text(encoding="utf-8"))
        (folder / "docs" / "zoo.md").write_text(zoo.page(results, text), encoding="utf-8")
        made.append("docs/zoo.md")
    html.write_run(root / DEMO, folder / "runs" / "demo")
    for name, ours in FIGURES.items():
        shutil.copyfile(folder / f"runs/demo/figures/{name}.png", folder / f"docs/images/{ours}.png")
    downhill().savefig(folder / "docs/images/downhill.png", dpi=DPI)
    short_figure(root).savefig(folder / "docs/images/cifar10-accuracy.png", dpi=DPI)
    bits_figure(root).savefig(folder / "docs/images/weight-bits.png", dpi=DPI)
    serving_figure(root).savefig(folder / "docs/images/serving-load.png", dpi=DPI)
    for axis in GROWTH:
        growth(root, axis).savefig(folder / f"docs/images/speed-{axis}.png", dpi=DPI)
    return made + [f"docs/images/{path.name}" for path in sorted((folder / "docs" / "images").iterdir())], headings


def differences(root: Path, folder: Path, made: list[str]) -> Iterator[str]:
    """One line for each file of the tree that is not what was made."""
    for name in made:
        theirs, ours = root / name, folder / name
        if not theirs.is_file():
            yield f"{name} is missing"
        elif name.endswith(".png"):
            yield from (f"{name}: {said}" for said in picture_difference(theirs, ours))
        else:
            texts = (path.read_text(encoding="utf-8").splitlines() for path in (theirs, ours))
            lines = [line for line in difflib.unified_diff(*texts, lineterm="", n=0) if line[:1] in "+-"][2:]
            yield from (f"{name}: {len(lines)} lines differ, first:\n    {shown}" for shown in _first(lines))
    pages = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in pages_of(root)}
    for path in sorted((root / "docs" / "images").iterdir()):
        if not any(path.name in text for text in pages.values()):
            yield f"docs/images/{path.name} stands in no page"


def pages_of(root: Path) -> list[Path]:
    """The pages of a tree."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def left(pages: dict[str, str], made: list[str], tables: dict[str, list[str]]) -> Iterator[str]:
    """One line for each table and each figure of the pages that is neither made nor in `BY_HAND`, and the other way.

    Args:
        pages: Text of each page.
        made: The files that were made, relative to the tree.
        tables: Of each page, the headings of the tables that were made, but for those between its marks.
    """
    for page, text in pages.items():
        for begin, end in ((BEGIN, END), ZOO):
            text = re.sub(rf"{re.escape(begin)}.*?{re.escape(end)}", "", text, flags=re.DOTALL)
        headings = set(re.findall(r"^(\|.*)\n\|(?:---\|)+$", text, flags=re.MULTILINE)) - {*tables.get(page, ())}
        figures = {name for name in re.findall(r"images/([\w.-]+\.png)", text) if f"docs/images/{name}" not in made}
        known = {*BY_HAND.get(page, ())}
        if page == "README.md":  # figures that other pages show, too
            figures -= {name for names in BY_HAND.values() for name in names}
        yield from (
            f"{page}: made from no kept result, and not in BY_HAND: {what}"
            for what in sorted((headings | figures) - known)
        )
        yield from (f"{page}: in BY_HAND, but made or not there: {what}" for what in sorted(known - headings - figures))


def picture_difference(one: Path, other: Path) -> Iterator[str]:
    """What two PNG files differ in, where it is more than the drawing of fonts."""
    pixels = [np.asarray(Image.open(path).convert("RGB")).astype(int) for path in (one, other)]
    if pixels[0].shape != pixels[1].shape:
        yield f"{pixels[0].shape[:2]} pixels high and wide, and now {pixels[1].shape[:2]}"
    elif (share := (np.abs(pixels[0] - pixels[1]).max(-1) > LEVELS).mean()) > PIXELS:
        yield f"{100 * share:.2f} % of the pixels differ"


def shipped_table(name: str) -> str:
    """The README's table of a network's sizes, from its card."""
    rows = []
    for row, size in zip(
        pretrained.load_pretrained(name).card["results"], ("1.1 M", "350 k", "200 k", "110 k"), strict=True
    ):
        test = row["test"]
        rows.append(
            f"{size} | {row['parameters']:,} | {100 * test['accuracy']:.1f} % | {test['ece']:.3f} | {test['auroc']:.3f}"
        )
    return table("at most | parameters | test accuracy | calibration error | AUROC, SVHN digits", rows)


def demo_table(results: dict[str, Any]) -> str:
    """The README's table of the demo's sizes."""
    rows, chosen = results["rows"], results["chosen"]
    lines = ["| width | parameters | MACs | latency | accuracy | NLL | ECE | AUROC |", f"|{'---|' * 8}"]
    for row in rows:
        cells = [
            row["label"] + " ←" * (row["label"] == chosen["label"]), f"{row['parameters']:,}", short(row["macs"]),
            f"{row['latency_ms']:.2f} ms", f"{100 * row['accuracy']:.1f} %",
            *(f"{row[key]:.3f}" for key in ("nll", "ece", "auroc")),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _command(text: str, path: Path) -> list[str]:
    """The command of a page's generated part, with a copy of the page in place that has nothing between its marks."""
    within = text[text.index(BEGIN) : text.index(END)]
    found = re.findall(rf"^vnd report .* --markdown docs/{re.escape(path.name)}.*$", within, flags=re.MULTILINE)
    if not found:
        raise SystemExit(f"docs-check: docs/{path.name} does not say the command that made its tables")
    Path("docs", path.name).write_text(text.replace(within, BEGIN), encoding="utf-8")
    return shlex.split(found[-1])


def _with_table(text: str, table: str, page: str) -> str:
    """A page with this table in the place of the one that begins alike."""
    found, count = re.subn(rf"^{re.escape(table.splitlines()[0])}\n(\|.*\n)*", lambda _: f"{table}\n", text, flags=re.M)
    if count != 1:
        raise SystemExit(f"docs-check: {page} must have this table once; got {count}: {table.splitlines()[0]}")
    return found


def _first(lines: list[str]) -> list[str]:
    return ["\n    ".join(line[:300] for line in lines[:4])] if lines else []


def main() -> None:
    """Make, compare, and say what differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put what was made into the tree")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        os.chdir(folder)
        made, headings = make(ROOT, folder)
        found = list(differences(ROOT, folder, made))
        for one in made if write else ():
            if any(said.startswith(one) for said in found):
                shutil.copyfile(folder / one, ROOT / one)
        texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages_of(ROOT)}
        found += left(texts, made, headings)
    print(*found, f"docs-check: {len(made)} files made from docs/results, {len(found)} differ", sep="\n")
    sys.exit(bool(found) and not write)


if __name__ == "__main__":
    main()
