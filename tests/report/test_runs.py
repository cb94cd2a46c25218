"""Finding runs and reading their result files: what is missing, broken or half there names itself."""

import json
from pathlib import Path

import pytest
from fake_results import SMALL, fake_results
from fake_runs import fake_run, write_runs

from vnd.report.runs import find, open_results

TIDY = {
    "reading unknown": (
        "tidy.1.reading",
        "dreams",
        "tidy.1.reading must be 'samples' or 'means' or 'masks' or 'scaled'",
    ),
    "repeat negative": ("tidy.1.repeat", -1, "tidy.1.repeat must be a whole number of at least 0; got -1"),
    "fraction 0": ("tidy.1.fraction", 0, "tidy.1.fraction must be a number in (0, 1]; got 0"),
    "fraction in per cent": ("tidy.1.fraction", 25, "tidy.1.fraction must be a number in (0, 1]; got 25"),
    "no parameters": ("tidy.1.parameters", 0, "tidy.1.parameters must be a finite number above 0; got 0"),
    "accuracy as text": ("tidy.1.accuracy", "high", "tidy.1.accuracy must be a number in 0 … 1"),
    "time negative": ("tidy.1.test_seconds", -1, "tidy.1.test_seconds must be a finite number of at least 0"),
    "calibration half": ("tidy.1.calibration", 0.5, "tidy.1.calibration must be a whole number of at least 0"),
    "usage as text": ("tidy.1.usage_std", "2", "tidy.1.usage_std must be a finite number of at least 0"),
    "readings unknown": ("readings", ["dreams"], "readings.0 must be 'samples' or 'means' or 'masks' or 'scaled'"),
    "seed as text": ("series.seed", "0", "series.seed must be a whole number of at least 0"),
    "method a list": ("series.method", ["bn3"], 'series.method must be text; got ["bn3"]'),
    "correlation above 1": (
        "correlation.inside.0.1",
        1.5,
        "correlation.inside.0.1 must be a number in -1 … 1, or null",
    ),
    "correlation ragged": (
        "correlation.inside.0",
        [1.0],
        "correlation.inside must have one row and one column a label",
    ),
    "outside too small": (
        "correlation.outside",
        [[1.0]],
        "correlation.outside must have one row and one column a label",
    ),
    "risk in per cent": ("selective.risk", 5, "selective.risk must be a number in 0 … 1; got 5"),
    "curve uneven": ("selective.rows.1.curve.risk", [0.1], "selective.rows.1.curve: coverage and risk must have one"),
    "threshold infinite": ("selective.rows.1.threshold", float("inf"), "selective.rows.1.threshold must be a finite"),
    "shares uneven": ("cascade.curve.2.share", [1.0], "cascade.curve.2.share must have one number a level, 2"),
    "macs 0": ("cascade.single.0.macs", 0, "cascade.single.0.macs must be a finite number above 0; got 0"),
    "cascade cut": ("cascade.curve", [], "cascade.curve must be a list that is not empty; got []"),
}


def test_runs_files_and_folders_of_runs_are_found_once_each(tmp_path: Path) -> None:
    one, two = write_runs(tmp_path / "runs", {"a": {}, "b": {}})
    (tmp_path / "runs" / "notes").mkdir()  # no run
    (tmp_path / "runs" / "readme.txt").touch()
    files = [one / "results.json", two / "results.json"]
    assert find([tmp_path / "runs"]) == files
    assert find([two, one / "results.json", tmp_path / "runs", two]) == files[::-1]


def test_a_missing_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^report: .*/none does not exist; give run folders or results.json$"):
        find([tmp_path / "none"])
    with pytest.raises(FileNotFoundError, match=r"/results.json does not exist; run `vnd evaluate .*` first$"):
        find([tmp_path / "results.json"])
    with pytest.raises(ValueError, match=r"^report: at least one run must be given; got none$"):
        find([])


@pytest.mark.parametrize("sign", ["recipe.yaml", "metrics.jsonl", ""])
def test_a_run_that_was_not_evaluated_is_named(tmp_path: Path, sign: str) -> None:
    run = tmp_path / "one"
    run.mkdir()
    if sign:
        (run / sign).touch()
    message = rf"^report: {run}/results.json is missing; run `vnd evaluate {run}` first$"
    with pytest.raises(FileNotFoundError, match=message):
        find([run])
    if sign:  # also as one of several, of which the others are whole
        write_runs(tmp_path, {"two": {}})
        with pytest.raises(FileNotFoundError, match=message):
            find([tmp_path])


def test_a_half_file_is_named(tmp_path: Path) -> None:
    (run,) = write_runs(tmp_path, {"a": fake_run()})
    path = run / "results.json"
    path.write_text(path.read_text()[:1000])
    with pytest.raises(ValueError, match=rf"^report: {path} must be JSON in UTF-8: [^\n]+$"):
        open_results(path)


@pytest.mark.parametrize("case", TIDY)
def test_a_wrong_part_is_named(tmp_path: Path, case: str) -> None:
    key, value, message = TIDY[case]
    contents = fake_run(studies=True)
    *path, last = (int(part) if part.isdigit() else part for part in key.split("."))
    place = contents
    for part in path:
        place = place[part]
    place[last] = value
    (run,) = write_runs(tmp_path, {"a": contents})
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        open_results(run / "results.json")
    assert str(error.value).startswith(f"report: {run}/results.json: {message}")


def test_what_a_file_says_of_its_run(tmp_path: Path) -> None:
    contents = fake_run("fn3", 3, recipe="cifar10/fn3", run="first")
    run = open_results(write_runs(tmp_path, {"a": contents})[0] / "results.json")
    said = (run.name, run.method, run.recipe, run.network, run.data, run.seed)
    assert said == ("first", "fn3", "cifar10/fn3", "vgg11", "cifar10", 3)
    assert list(run.rows) == contents["tidy"]


def test_an_older_file_is_read_as_well(tmp_path: Path) -> None:
    contents = fake_results(**SMALL)
    for row in contents["rows"]:
        row.pop("fraction")
    contents["rows"][1]["label"] = "1.2.3 %"  # no number
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.json").write_text(json.dumps(contents))
    run = open_results(tmp_path / "old" / "results.json")
    assert (run.name, run.method, run.recipe, run.data, run.seed) == ("old", "bn3", None, "fashion", None)
    assert [row["fraction"] for row in run.rows] == [1.0, None, 0.5, 0.375, 0.25, 0.125] + [None] * 5
    assert {row["reading"] for row in run.rows} == {"samples"}
