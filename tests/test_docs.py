"""The documentation pages name only what exists, and the README's examples run."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

NAMES = sorted(set(re.findall(r"`(vnd(?:\.\w+)+)", EQUATIONS)))
TESTS = sorted(set(re.findall(r"tests/[\w/]+\.py::\w+", EQUATIONS)))


def resolve(name: str) -> Any:
    """The object at a dotted path: the longest module that imports, then its attributes."""
    parts = name.split(".")
    found, rest = importlib.import_module(parts[0]), parts[1:]
    for depth, part in enumerate(rest, start=2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:depth]))
        found = getattr(found, part)
    return found


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_equations_page_names_functions_and_tests():
    assert len(NAMES) > 30, f"only {len(NAMES)} names of the package found in docs/equations.md: is the pattern right?"
    assert TESTS, "docs/equations.md names no test"


@pytest.mark.parametrize("name", NAMES)
def test_every_function_on_the_equations_page_exists(name):
    try:
        resolve(name)
    except (AttributeError, ImportError) as error:
        pytest.fail(f"docs/equations.md names {name}, which cannot be imported: {error}")


def test_a_name_that_does_not_exist_is_noticed():
    with pytest.raises((AttributeError, ImportError)):
        resolve("vnd.functional.no_such_function")


@pytest.mark.parametrize("test", TESTS)
def test_every_test_on_the_equations_page_exists(test):
    path, function = test.split("::")
    assert (ROOT / path).is_file(), f"docs/equations.md names {path}, which does not exist"
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"\bdef {function}\(", text), f"docs/equations.md names {test}, but {path} has no such function"


def test_every_table_row_has_as_many_cells_as_its_header():
    width, bad = None, []
    for number, line in enumerate(EQUATIONS.splitlines(), start=1):
        if not line.startswith("|"):
            width = None
            continue
        cells = line.count("|") - 1
        width = width or cells
        if cells != width:
            bad.append(f"line {number}: {cells} cells instead of {width}")
    assert not bad, f"docs/equations.md has broken rows (a | inside a formula?): {bad}"


def test_what_is_built_names_a_test_and_what_is_not_says_so():
    bad = []
    for line in EQUATIONS.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or cells[0] in {"paper", "---"}:
            continue
        function, test = cells[3:]
        named = re.fullmatch(r"`tests/[\w/]+\.py::\w+`(, `tests/[\w/]+\.py::\w+`)*", test)
        if not (test == "not built yet" if function.startswith("not built yet") else named):
            bad.append(f"{cells[0]} {cells[1]}: {test}")
    assert not bad, f"docs/equations.md: rows whose last two columns do not agree: {bad}"


def test_every_equation_of_the_paper_has_a_row():
    first_cells = [line.split("|")[1] for line in EQUATIONS.splitlines() if line.startswith("|")]
    found = {number for cell in first_cells for number in re.findall(r"\((A?\d+)\)", cell)}
    wanted = {str(i) for i in range(1, 32)} | {f"A{i}" for i in range(1, 29)}
    assert found == wanted, f"missing {sorted(wanted - found)}, unknown {sorted(found - wanted)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_the_pages_lead_somewhere(page):
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!\w+:)([^)]+)\)", prose):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.relative_to(ROOT)} links to {target}, which does not exist"
        if anchor and linked.suffix == ".md":
            assert anchor in headings(linked), f"{page.relative_to(ROOT)} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_are_python(page):
    for block in python_blocks(page):
        try:
            ast.parse(block)
        except SyntaxError as error:
            pytest.fail(f"{page.relative_to(ROOT)} has a block that is not Python ({error}):\n{block}")


@pytest.mark.parametrize("number", range(4))
def test_the_examples_of_the_readme_run(number):
    blocks = python_blocks(ROOT / "README.md")
    assert len(blocks) == 4, "README.md has another number of ```python blocks than this test runs"
    exec(compile(blocks[number], "README.md", "exec"), {"__name__": "readme"})
