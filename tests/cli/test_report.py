"""`vnd report`: what it takes, what it writes, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_runs import fake_run, write_runs

from refusals import fails
from vnd.cli import main
from vnd.report import curves, html
from vnd.report.html import BEGIN, END


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small PNG files and fewer figures: tests/report draws all."""
    monkeypatch.setattr(html, "DPI", 20)
    assert curves.curves in html.SECTIONS["curves"].values()  # or what is patched would be lost afterwards
    for name in ("theory", "curves", "reliability"):
        monkeypatch.setitem(html.SECTIONS, name, {})


def test_help_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    for word in ("RUN [RUN ...]", "--out", "--title", "--keep", "--markdown", "--sizes", "Example: vnd report"):
        assert word in said


def test_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write_runs(tmp_path, {"a": fake_run("bn3"), "b": fake_run("fn3")})
    main(["report", str(one), str(two / "results.json"), "--out", str(tmp_path / "out"), "--title", "Two of them"])
    said = capsys.readouterr().out
    page = tmp_path / "out" / "report.html"
    assert f"report:  {page}" in said
    assert "<h1>Two of them</h1>" in page.read_text(encoding="utf-8")
    assert (tmp_path / "out" / "summary.csv").read_text(encoding="utf-8").count("\n") == 1 + 6 + 6


def test_runs_are_kept_and_a_page_of_documentation_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(html, "DPI", 20)
    write_runs(tmp_path / "runs", {"b": fake_run("bn3", learned=2, run="b"), "a": fake_run("fn3", run="a")})
    Path("page.md").write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    options = ["--keep", "kept.jsonl", "--markdown", str(tmp_path / "page.md"), "--sizes", "[2e5, 1000000]"]
    main(["report", "runs/b", str(tmp_path / "runs" / "a"), "--out", "one", *options])
    said = capsys.readouterr().out
    assert f"kept:    {tmp_path / 'kept.jsonl'} (2 runs, " in said
    assert f"tables:  {tmp_path / 'page.md'} (" in said
    text = Path("page.md").read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    command = "vnd report runs/b runs/a --out one --keep kept.jsonl --markdown page.md --sizes 200000,1000000"
    assert f"\n{command}\n" in text
    assert "| Method | ≤ 200 k | ≤ 1 M | Full |" in text
    main(["report", "kept.jsonl", "--out", "two"])
    assert Path("two/summary.csv").read_bytes() == Path("one/summary.csv").read_bytes()


def test_bad_options_are_refused_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = write_runs(tmp_path, {"a": fake_run()})
    (tmp_path / "page.md").write_text("prose")
    out = ("--out", tmp_path / "out")
    said = fails(capsys, "report", run, *out, "--markdown", tmp_path / "page.md")
    assert said.startswith(f"vnd: report: {tmp_path}/page.md must have the lines {BEGIN} and {END}, ")
    for sizes in ("[0]", "[-5]", "[.nan]", "[.inf]"):
        assert "report: sizes must be numbers of parameters above 0; got [" in fails(
            capsys, "report", run, *out, "--sizes", sizes
        )
    assert "vnd report --help" in fails(capsys, "report", run, *out, "--sizes", "[many]")
    assert not (tmp_path / "out").exists()
    said = fails(capsys, "report", run, *out, "--keep", run)
    assert said == f"vnd: report: keep must be a file whose name ends in .jsonl; got {run}"


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
    assert fails(capsys, "report", run) == f"vnd: report: {run} {go_on}"
    (run / "last").mkdir()
    assert fails(capsys, "report", run) == f"vnd: report: {run} was not evaluated; run `vnd evaluate {run}` first"
    (broken / "results.json").write_text('{"format": 2,')
    assert f"vnd: report: {broken}/results.json must be JSON in UTF-8: " in fails(capsys, "report", broken)
    assert "/none does not exist" in fails(capsys, "report", tmp_path / "none")
    assert not (tmp_path / "runs").exists()
