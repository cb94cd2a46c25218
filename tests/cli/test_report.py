"""`vnd report`: what it takes, what it writes, and what it refuses in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vnd.cli import main
from vnd.report import compare, comparison, plates, sections

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from fake_runs import fake_run, write_runs


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small PNG files and fewer figures: tests/report draws all."""
    monkeypatch.setattr(comparison, "DPI", 20)
    monkeypatch.setattr(compare, "measured", lambda series, key: key == "accuracy")
    monkeypatch.setattr(plates, "of_theory", list)
    monkeypatch.setattr(sections, "of_theory", lambda pictures: [])


def fails(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, args)])
    assert stopped.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_help_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    for word in ("RUN [RUN ...]", "--out", "--title", "Example: vnd report"):
        assert word in said


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write_runs(tmp_path, {"a": fake_run("bn3"), "b": fake_run("fn3")})
    main(["report", str(one), str(two / "results.json"), "--out", str(tmp_path / "out"), "--title", "Two of them"])
    said = capsys.readouterr().out
    page = tmp_path / "out" / "report.html"
    assert f"report:  {page}" in said
    assert "<h1>Two of them</h1>" in page.read_text(encoding="utf-8")
    assert (tmp_path / "out" / "summary.csv").read_text(encoding="utf-8").count("\n") == 1 + 6 + 6


def test_a_run_of_a_folder_that_was_not_evaluated_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, failed = write_runs(tmp_path / "runs", {"a": fake_run(), "b": fake_run()})
    (failed / "results.json").rename(failed / "recipe.yaml")
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert said.err == f"vnd: report: left out, not evaluated: {failed}\n"
    assert f"report:  {tmp_path / 'out' / 'report.html'}" in said.out
    assert "Left out: b, not evaluated." in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_bad_input_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, broken = write_runs(tmp_path, {"a": fake_run(), "b": fake_run()})
    (run / "results.json").rename(run / "recipe.yaml")
    go_on = f"is not trained to the end; go on with `vnd train --resume {run}`"
    assert fails(capsys, run) == f"vnd: report: {run} {go_on}\n"
    (run / "last").mkdir()
    assert fails(capsys, run) == f"vnd: report: {run} was not evaluated; run `vnd evaluate {run}` first\n"
    (broken / "results.json").write_text('{"format": 1,')
    assert f"vnd: report: {broken}/results.json must be JSON in UTF-8: " in fails(capsys, broken)
    assert "/none does not exist" in fails(capsys, tmp_path / "none")
    assert "report: the following arguments are required: runs" in fails(capsys)
    assert not (tmp_path / "runs").exists()
