"""Refusals of figures and of runs that make no report, each in one line; `test_results` has those of result files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import fake_run
from pages import put

from refusals import refused, table
from vnd.report.html import read, write
from vnd.report.image_grids import Row, rows, tree
from vnd.report.results import find, keep
from vnd.report.theory import Simplex, merged, project, simplex

Call = Callable[[], object]
GOOD, ONES, NAMES = np.full((2, 3), 1 / 3), np.ones(3), ("cat", "dog", "bird")
IMAGES = np.zeros((3, 3, 8, 8), np.uint8)


def triangle(points: Any = GOOD, concentration: Any = ONES, classes: Any = NAMES) -> Call:
    return lambda: Simplex(points, concentration, classes, "")


@table(
    {
        "images of floats": (
            lambda: Row("a", np.zeros((2, 1, 8, 8))),
            "Row: images must be uint8 (count, 1 or 3, height, width); got",
        ),
        "two channels": (lambda: Row("a", IMAGES[:, :2]), "got uint8 (3, 2, 8, 8)"),
        "captions": (
            lambda: Row("a", IMAGES[:2], captions=["x"]),
            "Row: captions must be as many as the 2 images; got 1",
        ),
        "no row": (lambda: rows([], "heading", ""), "rows: shown must hold at least one row"),
        "heads": (
            lambda: rows([Row("a", IMAGES[:2])], "", "", ["x"]),
            "rows: heads must be as many as the 2 columns",
        ),
        "a tree": (lambda: tree([IMAGES[:1], IMAGES], "", "", ("", "")), "tree: level 1 must have 2 images; got 3"),
        "two classes": (triangle(GOOD[:, :2]), "Simplex: points must be (S, 3), a row a draw, got shape (2, 2)."),
        "one point": (triangle(GOOD[0]), "got shape (3,)"),
        "no point": (triangle(GOOD[:0]), "got shape (0, 3)"),
        "a sum of 2": (triangle(2 * GOOD), "must be probabilities that sum to 1"),
        "no number": (triangle(GOOD * np.nan), "must be probabilities that sum to 1"),
        "below 0": (triangle(np.array([[1.5, -0.5, 0.0]])), "must be probabilities that sum to 1"),
        "four concentrations": (
            triangle(concentration=np.ones(4)),
            "must have shape (3,), got (4,); see simplex.merged.",
        ),
        "a concentration of 0": (
            triangle(concentration=np.array([1, 0, 1])),
            "three finite numbers above 0, got [1.0, 0.0, 1.0]",
        ),
        "an infinite one": (triangle(concentration=np.array([1, np.inf, 1])), "three finite numbers above 0"),
        "two names": (triangle(classes=("cat", "dog")), "classes must be three names, got 2"),
        **{
            f"{function.__name__} {chosen}": (
                lambda function=function, chosen=chosen: function(np.full(4, 0.25), chosen),
                f"{function.__name__}: chosen must be three different classes of 0 … 3, got",
            )
            for function, chosen in (
                *((project, chosen) for chosen in ((0, 1), (0, 1, 1), (0, 1, 4), (-1, 0, 1), (0, 1, 2, 3))),
                (merged, (0, 1)),
            )
        },
        "no input": (lambda: simplex([]), "at least one input"),
        "no runs": (lambda: find([]), "report: at least one run must be given; got none"),
    }
)
def test_what_cannot_be_drawn_is_refused(call: Call, words: str) -> None:
    refused(call, words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda run: write(read([run]), run),
            "report: out must not be a run's folder, whose report.html it would replace",
        ),
        (
            lambda run: write(read(put(run / "other", fake_run() | {"sections": ["summery"]})), run / "out"),
            "has 'summery', which is none, did you mean 's",
        ),
        (lambda run: keep(read([run]).runs, run), "report: keep must be a file whose name ends in .jsonl; got "),
    ],
    ids=["into a run", "a section", "kept in a folder"],
)
def test_what_cannot_be_written_is_refused(call: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    (run,) = put(tmp_path, fake_run())
    refused(lambda: call(run), words)
