"""`vnd demo`, in small: what it prints, what it leaves, and which folders it does not touch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import vnd
from refusals import fails
from vnd.cli import main
from vnd.report import html
from vnd.tasks.classification import TABLE as COLUMNS
from vnd.train.config import parse
from vnd.train.recipe import Recipe
from vnd.train.run import lock

MODULE = import_module("vnd.cli.demo")
NARROW = [
    "--network.width=0.125",
    "--data.validation=200",
    "--evaluate.samples=2",
    "--evaluate.sizes.parameters=[1500, 3000]",
]


def narrow(source: Any, overrides: Iterable[str] = ()) -> Recipe:
    """The demo's recipe with a narrower network and fewer draws, so that a test can wait for it."""
    return parse(source, [*overrides, *NARROW] if source == "demo" else overrides)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "parse", narrow)
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, Any]]:
    """A demo's folder, what it printed, and its results."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    with redirect_stdout(StringIO()) as printed:
        main(["demo", "--out", str(folder), "--epochs", "1", "--limit", "256"])
    return folder, printed.getvalue(), json.loads((folder / "results.json").read_text())


def test_the_table_has_every_column_and_the_numbers_of_the_file(shown: tuple[Path, str, dict[str, Any]]) -> None:
    _, printed, results = shown
    lines = printed.splitlines()
    heading = next(line for line in lines if line.startswith("width"))
    assert heading.split() == ["width", "parameters", "MACs", "bytes", "latency", "accuracy", "NLL", "ECE", "AUROC"]
    start = lines.index(heading) + 1
    body = lines[start : start + len(results["rows"])]
    assert len(results["rows"]) == 6
    for line, row in zip(body, results["rows"], strict=True):
        label = f"{row['label']} ←" if row["label"] == results["chosen"]["label"] else row["label"]
        cells = [show(row[key]) for key, (_, show) in COLUMNS.items()]
        assert " ".join(line.split()) == " ".join([label, *cells])
    assert sum("←" in line for line in body) == 1


def test_the_results_say_where_they_come_from(shown: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, results = shown
    assert results["data"]["name"] == "fashion"
    assert (results["data"]["train"], results["data"]["validation"], results["data"]["test"]) == (256, 200, 3000)
    assert (results["ood"], results["command"], results["samples"]) == ("digits", "vnd demo", 2)
    assert results["seconds"].keys() == {"evaluate", "train", "total"}
    assert results["machine"] in printed
    assert all(0 <= row[key] <= 1 for row in results["rows"] for key in ("accuracy", "ece", "auroc"))
    assert parse(folder / "recipe.yaml") == narrow("demo", ["--train.epochs=1", "--data.limit=256"])


def test_the_page_stands_alone(shown: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, results = shown
    assert str(folder / "report.html") in printed
    told = (folder / "report.html").read_text()
    assert told.startswith("<!doctype html>")
    assert "<script" not in told
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", told)
    assert not re.search(r"https?://", told)
    assert all(row["label"] in told for row in results["rows"])


def test_a_page_runs_the_network_in_a_browser(shown: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, results = shown
    assert str(folder / "page.html") in printed
    found = re.search(r'id="facts">(.*?)</script>', (folder / "page.html").read_text(), re.DOTALL)
    assert found is not None
    told = json.loads(found[1])
    shown_rows = [row for row in results["rows"] if row["kind"] == "learned" or row["fraction"] == 1]
    wanted = {row["parameters"]: row["accuracy"] for row in shown_rows}
    assert {row["parameters"]: row["accuracy"] for row in told["widths"]} == wanted
    assert told["samples"] == 2
    assert told["rule"]["images"] == 200


def test_the_extracted_network_is_the_smallest_that_loses_little(shown: tuple[Path, str, dict[str, Any]]) -> None:
    folder, printed, results = shown
    chosen, rows = results["chosen"], {row["label"]: row for row in results["rows"]}
    accuracy = chosen["validation"]
    assert accuracy.keys() == rows.keys()
    assert all(round(200 * value, 6).is_integer() for value in accuracy.values())  # of 200 images
    full = accuracy[max(rows, key=lambda label: rows[label]["parameters"])]
    good = [row["parameters"] for label, row in rows.items() if accuracy[label] >= full - 0.01 - 1e-9]
    assert chosen["parameters"] == rows[chosen["label"]]["parameters"] == min(good)
    net = vnd.load(folder / "extracted")
    assert sum(p.numel() for p in net.parameters()) == chosen["parameters"]
    assert f"{chosen['parameters']:,} parameters" in printed
    assert str(folder / "extracted") in printed


def test_a_second_demo_replaces_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "write_run", lambda results, folder: folder / "report.html")  # the figures take long
    monkeypatch.setattr(MODULE, "write_page", lambda run, path: {})
    old = tmp_path / "demo"
    old.mkdir()
    (old / ".vnd-demo").touch()  # a demo that was killed
    (old / "checkpoints").mkdir()
    (old / "checkpoints" / "old").write_text("old")
    main(["demo", "--out", str(old), "--epochs", "1", "--limit", "128"])
    assert not (old / "checkpoints" / "old").exists()
    assert parse(old / "recipe.yaml").data.limit == 128
    assert json.loads((old / "results.json").read_text())["data"]["train"] == 128
    assert "AUROC" in capsys.readouterr().out


def test_a_demo_at_work_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".vnd-demo").touch()
    (tmp_path / "best").mkdir()
    with lock(tmp_path):
        assert f"{tmp_path} is in use by process" in fails(capsys, "demo", "--out", tmp_path)
    assert (tmp_path / "best").exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    line = fails(capsys, "demo", "--out", tmp_path)
    assert line == f"vnd: {tmp_path} holds something that is not a demo; give another --out"
    other = tmp_path / "run"
    other.mkdir()
    (other / "recipe.yaml").write_text(parse("fashion/bn3").to_yaml())
    assert "not a demo" in fails(capsys, "demo", "--out", other)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (other / "recipe.yaml").exists()
