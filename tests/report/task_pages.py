"""What tests of pages share, whatever the task: runs in folders, pages and what must be true of each, refusals."""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_results import fake_results

from vnd.report import comparison, keep, markdown, marked, page, tasks
from vnd.report.results import read
from vnd.report.runs import Run, run_of


@dataclass(frozen=True)
class Written:
    """The comparison of some runs: how many series each block has, rows of summary.csv, summary.json, and texts."""

    series: dict[tuple[str, ...], int]
    rows: list[dict[str, str]]
    said: dict[str, Any]
    page: str
    markdown: str


def coarsen(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (comparison, page, markdown):
        monkeypatch.setattr(module, "DPI", 20)


def runs_of(*results: dict[str, Any]) -> list[Run]:
    return [run_of(Path(f"{index}/results.json"), one) for index, one in enumerate(results)]


def put(folder: Path, *results: dict[str, Any]) -> list[Path]:
    places = []
    for index, one in enumerate(results):
        place = folder / f"{index}-{one['series']['run']}"
        place.mkdir(parents=True)
        (place / "results.json").write_text(json.dumps(one))
        places.append(place)
    return places


def classifier() -> dict[str, Any]:
    return fake_results() | {"series": {"run": "c", "method": "bn3", "network": "vgg11", "data": "cifar10"}}


def page_of(folder: Path, results: dict[str, Any]) -> tuple[str, set[str]]:
    """The page of a run, which needs nothing else and escapes what the file says; and the names of its figures."""
    (place,) = put(folder, results | {"notes": ["<b>a note</b>"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = page.write(place, place).read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!data:|#)|<script""", text)
    assert "&lt;b&gt;a note" in text
    return text, {path.stem for path in (place / "figures").iterdir()}


def compared(folder: Path, *results: dict[str, Any]) -> Written:
    """The comparison of some runs: all its files are there, and what is kept of the runs has the same numbers."""
    found = comparison.read(put(folder / "runs", *results))
    assert isinstance(found, tasks.Compared)
    text = comparison.write_page(found, folder / "out", "Two sets").read_text(encoding="utf-8")
    assert "<h1>Two sets</h1>" in text
    rows = list(csv.DictReader((folder / "out" / "summary.csv").read_text(encoding="utf-8").splitlines()))
    said = json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))
    assert len(rows) == len(said["points"])
    assert all((folder / "out" / name).is_file() for name in said["figures"])
    assert len(keep.keep(found.runs, folder / "kept").folders) == len(results)
    again = comparison.read([folder / "kept"])
    assert isinstance(again, tasks.Compared)
    assert points_of(again) == points_of(found)
    path = folder / "docs" / "page.md"
    files = comparison.write_markdown(found, path, (), "vnd report runs/*")
    words = path.read_text(encoding="utf-8")
    assert words.startswith(marked.BEGIN)
    assert all(f"images/{file.name}" in words and file.is_file() for file in files)
    assert "vnd report runs/*" in words
    return Written({block.key: len(block.series) for block in found.blocks}, rows, said, text, words)


def points_of(found: tasks.Compared[Any]) -> list[Any]:
    return [(found.task.rows(block.series), [own.points for own in block.series]) for block in found.blocks]


def check_refused(
    folder: Path, results: dict[str, Any], breaks: Callable[[dict[str, Any]], object], words: str
) -> None:
    """A result file is read, and once it is broken refused in one line with these words."""
    (folder / "ok.json").write_text(json.dumps(results))
    read(folder / "ok.json")
    breaks(results)
    (folder / "results.json").write_text(json.dumps(results))
    with pytest.raises(ValueError, match=r"^report: ") as caught:
        read(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
