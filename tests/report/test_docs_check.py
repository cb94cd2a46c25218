"""`make docs-check` sees a changed number, a changed figure, one that no page shows, and what nothing makes."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PAGE = "| BN³ | 86.90 ± 0.46 |\n![Accuracy](images/a.png)\n"


@pytest.fixture(scope="module")
def check():
    sys.path.insert(0, str(ROOT / "scripts"))
    import docs_check

    return docs_check


@pytest.fixture
def trees(tmp_path):
    """The tree and what was made of it, alike."""
    pixels = np.full((50, 80, 3), 255, np.uint8)
    pixels[20:30, 10:70] = (0, 114, 178)
    for name in ("tree", "made"):
        (tmp_path / name / "docs" / "images").mkdir(parents=True)
        (tmp_path / name / "docs" / "a.md").write_text(PAGE, encoding="utf-8")
        Image.fromarray(pixels).save(tmp_path / name / "docs" / "images" / "a.png")
    (tmp_path / "tree" / "README.md").write_text("# A page\n", encoding="utf-8")
    return tmp_path / "tree", tmp_path / "made"


MADE = ["docs/a.md", "docs/images/a.png"]


def paint(tree, box, add):
    path = tree / "docs" / "images" / "a.png"
    pixels = np.asarray(Image.open(path)).copy()
    pixels[box] = np.clip(pixels[box].astype(int) + add, 0, 255)
    Image.fromarray(pixels).save(path)


FAULTS = {
    "a digit": lambda tree: (tree / "docs" / "a.md").write_text(PAGE.replace("86.90", "86.91"), encoding="utf-8"),
    "a lost figure": lambda tree: (tree / "docs" / "images" / "a.png").unlink(),
    "a shifted line": lambda tree: paint(tree, np.s_[30:32, 10:70], -200),
    "another size": lambda tree: Image.new("RGB", (80, 51)).save(tree / "docs" / "images" / "a.png"),
    "a figure in no page": lambda tree: Image.new("RGB", (2, 2)).save(tree / "docs" / "images" / "b.png"),
}


def test_equal_trees_have_no_difference(check, trees):
    assert not list(check.differences(*trees, MADE))


def test_a_slightly_other_drawing_is_none(check, trees):
    paint(trees[0], np.s_[:], -12)
    paint(trees[0], np.s_[0, :4], -200)
    assert not list(check.differences(*trees, MADE))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_difference_is_named(check, trees, fault):
    FAULTS[fault](trees[0])
    found = list(check.differences(*trees, MADE))
    assert len(found) == 1
    assert found[0].startswith("docs/")


HEADING = "| size | accuracy |"
TEXT = f"{HEADING}\n|---|---|\n| 1 | 2 |\n\n![Accuracy](images/a.png)\n"
LEFT = {
    "nothing": (["docs/images/a.png"], [HEADING], {}, []),
    "a table": (["docs/images/a.png"], [], {}, [HEADING]),
    "a figure": ([], [HEADING], {}, ["a.png"]),
    "named ones": ([], [], {HEADING: "why", "a.png": "why"}, []),
    "a name too many": (["docs/images/a.png"], [HEADING], {HEADING: "why"}, [HEADING]),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_nothing_makes_must_be_named(check, monkeypatch, case):
    made, headings, named, wanted = LEFT[case]
    monkeypatch.setattr(check, "BY_HAND", {"docs/a.md": named})
    found = list(check.left({"docs/a.md": TEXT}, made, {"docs/a.md": headings}))
    assert [line.partition(": ")[2].partition(": ")[2] for line in found] == wanted
