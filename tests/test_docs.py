"""The README's examples run, and `scripts/check_references.py`, part of `make lint`, sees what is wrong on a page."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = runpy.run_path(str(ROOT / "scripts" / "check_references.py"))


@pytest.mark.parametrize("number", range(4))
def test_the_examples_of_the_readme_run(number):
    blocks = CHECK["python_blocks"]((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 4, "README.md has another number of ```python blocks than this test runs"
    exec(compile(blocks[number], "README.md", "exec"), {"__name__": "readme"})


FAULTS = {
    "`vnd.functional.no_such_function`": "cannot be imported",
    "`tests/test_docs.py::test_nothing`": "test_docs.py::test_nothing, which does not exist",
    "`python scripts/none.py`": "names scripts/none.py, which does not exist",
    "[there](nowhere.md)": "links to nowhere.md",
    "[there](errata.md#no-such-heading)": "no such heading",
    "```python\nif:\n```": "not Python",
    "| paper | what |\n| --- | --- |\n| (1) | one | more |": "a row has 3 cells",
    "| (99) | none |": "unknown ones ['99']",
    "| (1) | a | b | `vnd.functional.chain_kl` | not built yet |": "names a function and no test",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_a_page_is_found(tmp_path, fault):
    docs = tmp_path / "docs"
    docs.mkdir()
    for page in ("equations", "errata", "reproduction", "benchmarks"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        (docs / f"{page}.md").write_text(text + (f"\n{fault}\n" if page == "equations" else ""), encoding="utf-8")
    new = {*CHECK["problems"](tmp_path)}
    assert any(FAULTS[fault] in line for line in new)
