"""Check what the documentation pages refer to: functions, tests, scripts, links, Python blocks; a line a fault.

python scripts/check_references.py [ROOT]
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CELLS = 5  # of a row on the equations page: paper, what, equation, function, test
NOT_BUILT = "not built yet"


def problems(root: Path) -> list[str]:
    """What is wrong on the pages of a checkout, a line each."""
    pages = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    found = [f"{page.relative_to(root)}: {line}" for page in pages for line in _of_page(page, texts)]
    equations = root / "docs" / "equations.md"
    if equations not in texts:
        return [*found, "docs/equations.md: is missing"]
    return [*found, *(f"docs/equations.md: {line}" for line in _of_equations(root, texts[equations]))]


def _of_page(page: Path, texts: dict[Path, str]) -> Iterator[str]:
    """Scripts that are not there, links that lead nowhere, and blocks that are not Python."""
    text, root = texts[page], next(folder for folder in page.parents if folder.name != "docs")
    for script in sorted(set(re.findall(r"python ((?:scripts|benchmarks)/\S+\.py)", text))):
        if not (root / script).is_file():
            yield f"names {script}, which does not exist"
    for target in re.findall(r"\]\((?!\w+:)([^)]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists():
            yield f"links to {target}, which does not exist"
        elif anchor and linked.suffix == ".md" and anchor not in _anchors(linked.read_text(encoding="utf-8")):
            yield f"links to {target}: no such heading"
    for block in python_blocks(text):
        try:
            ast.parse(block)
        except SyntaxError as error:
            yield f"has a block that is not Python ({error}): {block[:60]!r}"


def _of_equations(root: Path, text: str) -> Iterator[str]:
    """Names that cannot be imported, tests that are not there, rows that do not fit, equations without a row."""
    names = sorted(set(re.findall(r"`(vnd(?:\.\w+)+)", text)))
    tests = sorted(set(re.findall(r"tests/[\w/]+\.py::\w+", text)))
    if len(names) < 30 or not tests:
        yield f"names {len(names)} functions and {len(tests)} tests: are the patterns right?"
    for name in names:
        if not _exists(name):
            yield f"names {name}, which cannot be imported"
    for test in tests:
        path, function = test.split("::")
        if not (root / path).is_file() or f"def {function}(" not in (root / path).read_text(encoding="utf-8"):
            yield f"names {test}, which does not exist"
    numbers, width = set[str](), 0
    for line in text.splitlines():
        width = (width or line.count("|")) if line.startswith("|") else 0
        if not width:
            continue
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.count("|") != width:
            yield f"a row has {len(cells)} cells, its header {width - 1} (a | inside of a formula?): {line[:60]}"
        numbers |= set(re.findall(r"\((A?\d+)\)", cells[0]))
        if len(cells) != CELLS or cells[0] in {"paper", "---"}:
            continue
        is_test = re.fullmatch(r"`tests/[\w/]+\.py::\w+`(, `tests/[\w/]+\.py::\w+`)*", cells[4])
        if not (cells[4] == NOT_BUILT if cells[3].startswith(NOT_BUILT) else is_test):
            yield f"{cells[0]} {cells[1]}: names a function and no test, or the other way round: {cells[4]}"
    wanted = {*map(str, range(1, 32)), *(f"A{number}" for number in range(1, 29))}
    if numbers != wanted:
        yield f"equations without a row {sorted(wanted - numbers)}, and unknown ones {sorted(numbers - wanted)}"


def python_blocks(text: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(text: str) -> set[str]:
    """The anchors that headings get."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _exists(name: str) -> bool:
    """True if a dotted path is a module, or an attribute of one."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], start=2):
        try:
            if not hasattr(found, part):
                importlib.import_module(".".join(parts[:depth]))
            found = getattr(found, part)
        except (AttributeError, ImportError):
            return False
    return True


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    print("\n".join(wrong) or "All references of the documentation pages lead somewhere.")
    sys.exit(bool(wrong))
