"""Finding runs and reading their result files: what is missing, broken or half there names itself."""

import json
from pathlib import Path

import pytest
from fake_results import SMALL, fake_results
from fake_runs import fake_run, write_runs

from vnd.report.runs import Found, find, open_results, split_of

TIDY = {
    "reading unknown": (
        "tidy.1.inference",
        "dreams",
        "tidy.1.inference must be 'mc' or 'mean' or 'mc_mask' or 'temperature_scaled'",
    ),
    "repeat negative": ("tidy.1.repeat", -1, "tidy.1.repeat must be a whole number of at least 0; got -1"),
    "fraction 0": ("tidy.1.fraction", 0, "tidy.1.fraction must be a number in (0, 1]; got 0"),
    "fraction in per cent": ("tidy.1.fraction", 25, "tidy.1.fraction must be a number in (0, 1]; got 25"),
    "no parameters": ("tidy.1.parameters", 0, "tidy.1.parameters must be a finite number above 0; got 0"),
    "accuracy as text": ("tidy.1.accuracy", "high", "tidy.1.accuracy must be a number in 0 … 1"),
    "time negative": ("tidy.1.test_seconds", -1, "tidy.1.test_seconds must be a finite number of at least 0"),
    "calibration half": ("tidy.1.bn_images", 0.5, "tidy.1.bn_images must be a whole number of at least 0"),
    "usage as text": ("tidy.1.usage_std", "2", "tidy.1.usage_std must be a finite number of at least 0"),
    "inference unknown": (
        "inference",
        ["dreams"],
        "inference.0 must be 'mc' or 'mean' or 'mc_mask' or 'temperature_scaled'",
    ),
    "seed as text": ("series.seed", "0", "series.seed must be a whole number of at least 0"),
    "settings a number": ("series.settings", 3, "series.settings must be text; got 3"),
    "split unknown": ("split", "name", "split must be 'test' or 'validation'; got \"name\""),
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
    assert find([tmp_path / "runs"]) == Found((*files,), ())
    assert find([two, one / "results.json", tmp_path / "runs", two]) == Found((*files[::-1],), ())


def test_a_missing_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^report: .*/none does not exist; give run folders or results.json$"):
        find([tmp_path / "none"])
    with pytest.raises(FileNotFoundError, match=r"/results.json does not exist; give run folders or results.json$"):
        find([tmp_path / "results.json"])
    with pytest.raises(FileNotFoundError, match=rf"^report: {tmp_path} holds no run; give run folders or folders that"):
        find([tmp_path])
    with pytest.raises(ValueError, match=r"^report: at least one run must be given; got none$"):
        find([])


@pytest.mark.parametrize("sign", ["recipe.yaml", "metrics.jsonl"])
@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (False, "is not trained to the end; go on with `vnd train --resume {}`"),
        (True, "was not evaluated; run `vnd evaluate {}` first"),
    ],
)
def test_a_run_that_was_not_evaluated_is_refused_by_name_and_left_out_among_others(
    tmp_path: Path, sign: str, trained: bool, words: str
) -> None:
    run = tmp_path / "one"
    (run / "last" if trained else run).mkdir(parents=True)
    (run / sign).touch()
    for place in (run, run / "results.json"):
        with pytest.raises(FileNotFoundError, match=rf"^report: {run} {words.format(run)}$"):
            find([place])
    with pytest.raises(FileNotFoundError, match=r"^report: none of the runs was evaluated \(one\); run `vnd evaluate`"):
        find([tmp_path])
    (two,) = write_runs(tmp_path, {"two": {}})
    assert find([tmp_path]) == find([tmp_path, two, tmp_path]) == Found((two / "results.json",), (run,))
    with pytest.raises(FileNotFoundError, match=rf"^report: {run} "):
        find([tmp_path, run])  # named as well


def test_images_of_two_kinds_are_not_mixed(tmp_path: Path) -> None:
    splits = {"a": {}, "b": {"split": "test"}, "c": {"split": "validation"}}
    places = write_runs(tmp_path, {name: fake_run() | split for name, split in splits.items()})
    first, second, third = (open_results(place / "results.json") for place in places)
    assert (split_of([first, second]), split_of([third])) == ("test", "validation")
    got = f"got test images in {first.path} and validation images in {third.path}"
    with pytest.raises(ValueError, match=rf"^report: runs must all be measured on the same images; {got}$"):
        split_of([first, second, third])


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
    contents = fake_run("fn3", 3, recipe="cifar10/fn3", run="first", settings="0a1b")
    run = open_results(write_runs(tmp_path, {"a": contents})[0] / "results.json")
    said = (run.name, run.method, run.recipe, run.network, run.data, run.seed, run.settings, run.split)
    assert said == ("first", "fn3", "cifar10/fn3", "vgg11", "cifar10", 3, "0a1b", "test")
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
    assert run.settings is None
    assert [row["fraction"] for row in run.rows] == [1.0, None, 0.5, 0.375, 0.25, 0.125] + [None] * 5
    assert {row["inference"] for row in run.rows} == {"mc"}
