"""Reading results: what is missing or wrong is named, what may be missing may be; and where runs lie."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fake_codes import fake_code
from fake_results import SMALL, fake_results
from fake_runs import fake_run
from fake_segments import fake_segment
from pages import put

from vnd.report.results import check, chosen_row, find, open_run, read


def sizes() -> dict[str, Any]:
    return fake_results(**SMALL | {"shown": 3, "widths": 3, "image": (2, 2)}) | {
        key: fake_run(studies=True)[key] for key in ("tidy", "series", "correlation", "selective", "cascade")
    }


CODES, MASKS = fake_code(), fake_segment(images=6, truth=True)
REQUIRED = (
    *(
        "format",
        "title",
        "task",
        "task.noun",
        "method.key",
        "method.name",
        "columns.0.heading",
        "sections",
        "data.name",
    ),
    *("rows", "rows.3.kind", "rows.3.label", "rows.3.parameters", "chosen.label", "reliability.1.count"),
    *("examples.most_certain.0.image", "curves.5.step", "tidy.2.parameters"),
)
OPTIONAL = (  # what else may be missing, the page of a task of which the report knows nothing is without
    *("chosen", "tidy", "series", "samples", "rows.0.shape", "chosen.reason", "examples.ood", "curves.5.kl"),
)
RATIO = "a number in 0 … 1"
BINS = {"count": [1], "confidence": [0.5], "frequency": [0.5]}
WRONG: list[tuple[Any, str, Any, str]] = [  # of which file, where, what, and what is said
    (sizes, "format", 1, "format must be 2; got 1"),
    (sizes, "format", True, "format must be 2; got true"),
    (sizes, "title", 3, "title must be text; got 3"),
    (sizes, "task", "sorting", 'task must be an object with keys; got "sorting"'),
    (sizes, "method.sizes", "few", "method.sizes must be 'many' or 'each' or 'found'; got \"few\""),
    (sizes, "method.stochastic", 1, "method.stochastic must be true or false; got 1"),
    (sizes, "method.looks", {"mc": {"color": "red", "marker": "o"}}, "method.looks.mc.line is missing"),
    (sizes, "columns", [], "columns must be a list that is not empty; got []"),
    (sizes, "columns.0.form", "bold", "columns.0.form must be 'number'"),
    (sizes, "sections", [1], "sections.0 must be text; got 1"),
    (sizes, "data", [1], "data must be an object with keys; got [1]"),
    (sizes, "rows", {"a": 1}, 'rows must be a list that is not empty; got {"a": 1}'),
    (sizes, "rows.1", 7, "rows.1 must be an object with keys; got 7"),
    (sizes, "rows.1.kind", "best", "rows.1.kind must be 'uniform' or 'learned' or 'sampled'; got \"best\""),
    (sizes, "rows.1.accuracy", 91.0, f"rows.1.accuracy must be {RATIO}; got 91.0"),
    (sizes, "rows.1.accuracy", "0.9", f"rows.1.accuracy must be {RATIO}"),
    (sizes, "rows.1.nll", math.nan, "rows.1.nll must be a finite number; got NaN"),
    (sizes, "rows.1.parameters", 0, "rows.1.parameters must be a finite number above 0; got 0"),
    (sizes, "rows.1.parameters", 10**400, "rows.1.parameters must be a finite number above 0"),
    (sizes, "rows.1.shape", {"a": -1}, "rows.1.shape.a must be a whole number of at least 0; got -1"),
    (sizes, "tidy.1.fraction", 25, "tidy.1.fraction must be a number in (0, 1]; got 25"),
    (sizes, "tidy.1.inference", "dreams", "tidy.1.inference must be 'mc' or"),
    (sizes, "tidy.1.test_seconds", -1, "tidy.1.test_seconds must be a finite number of at least 0"),
    (sizes, "series.seed", "0", "series.seed must be a whole number of at least 0"),
    (sizes, "split", "name", "split must be 'test' or 'validation'; got \"name\""),
    (sizes, "chosen.label", "none such", "chosen.label must be the label of one of the rows"),
    (sizes, "survival", {"a": [1.0, 1.1]}, f"survival.a.1 must be {RATIO}; got 1.1"),
    (sizes, "survival", {"a\nb": 3}, "survival.a b must be a list that is not empty; got 3"),
    (sizes, "reliability.2.count", [1], "reliability.2: count, confidence and accuracy must have one length"),
    (sizes, "examples.most_certain.0.image", [[1, 2], [1]], "examples.most_certain.0.image must be rows"),
    (sizes, "examples.most_certain.0.image", [[256]], "examples.most_certain.0.image must be rows"),
    (sizes, "correlation.inside.0", [1.0], "correlation.inside must have one row and one column a label"),
    (sizes, "selective.rows.1.curve.risk", [0.1], "selective.rows.1.curve: coverage and risk must have one length"),
    (sizes, "cascade.curve.2.share", [1.0], "cascade.curve.2.share must have one number a level, 2"),
    (CODES, "latent_dim", None, "latent_dim must be a whole number of at least 1; got null"),
    (CODES, "rows.0.length", 0, "rows.0.length must be a finite number above 0; got 0"),
    (CODES, "tidy.5.length_rule", "chance", "tidy.5.length_rule must be 'fixed' or 'posterior' or 'target'"),
    (CODES, "lengths.posterior", [1, 2], "lengths.posterior must count images at each length from 0 to latent_dim"),
    (CODES, "complexity.shown", {"png": [1]}, "complexity.shown must have png and one list a correlation"),
    (CODES, "features.real", 0, "features.real must be a whole number of at least 1; got 0"),
    (MASKS, "samples", [0], "samples.0 must be a whole number of at least 1; got 0"),
    (MASKS, "rows.1.label", "2 of 6", 'rows must have one label each; got ["2 of 6", "2 of 6"]'),
    (MASKS, "rows.0.ged", {"3": 0.1}, "rows.0.ged must have the numbers of samples as keys"),
    (MASKS, "rows.0.per_image.4", [0.1], "rows.0.per_image must have one number an image everywhere, 6 as the first"),
    (MASKS, "rows.0.ged_interval.4", [2, 1], "rows.0.ged_interval.4 must be two ends that rise; got [2, 1]"),
    (MASKS, "groups", ["a"], "groups must be one an image, 6; got 1"),
    (MASKS, "reliability", {"a": {}}, "reliability.a.count is missing"),
    (MASKS, "reliability", {"a": BINS}, 'reliability must have labels of rows as keys; got "a"'),
    (sizes, "columns.0.key", "label", 'rows.0.label must be a finite number; got "100 %"'),
]


def at(contents: Any, key: str) -> tuple[Any, Any]:
    *path, last = (
        int(part) if part.isdigit() and isinstance(contents, list | dict) else part for part in key.split(".")
    )
    for part in path:
        contents = contents[part] if isinstance(contents, list) else contents[str(part)]
    return contents, last if isinstance(contents, list) else str(last)


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        read(path)
    return str(error.value)


def copy(contents: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(contents() if callable(contents) else contents))
    return found


def test_a_folder_and_its_file_are_read_alike(tmp_path: Path) -> None:
    for contents in (sizes(), CODES, MASKS):
        (place,) = put(tmp_path / contents["task"]["name"], contents)
        assert read(place) == read(place / "results.json") == copy(contents)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_part_is_named(tmp_path: Path, key: str) -> None:
    contents = copy(sizes)
    parent, last = at(contents, key)
    del parent[last]
    (place,) = put(tmp_path, contents)
    assert refused(place) == f"report: {place}/results.json: {key} is missing"


@pytest.mark.parametrize("key", OPTIONAL)
def test_an_optional_part_may_be_missing_or_null(tmp_path: Path, key: str) -> None:
    without, null = copy(sizes), copy(sizes)
    parent, last = at(without, key)
    del parent[last]
    parent, last = at(null, key)
    parent[last] = None
    for place in put(tmp_path, without, null):
        assert open_run(place / "results.json").rows


@pytest.mark.parametrize(("contents", "key", "value", "message"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_a_wrong_part_is_named(tmp_path: Path, contents: Any, key: str, value: Any, message: str) -> None:
    wrong = copy(contents)
    parent, last = at(wrong, key)
    parent[last] = value
    (place,) = put(tmp_path, wrong)
    assert refused(place).startswith(f"report: {place}/results.json: {message}")


def test_a_schema_without_bounds_is_caught() -> None:
    with pytest.raises(ValueError, match="accuracy must be a number in 0"):
        check({"accuracy": 1.1}, {"accuracy": "share"}, "")
    check({"accuracy": 1.1}, {"accuracy": "number"}, "")  # what the entry is for


@pytest.mark.parametrize("text", [b"", b'{"format": 2', b"\xff\xfe", b"[" * 100_000, b'{"title": "\\ud800"}'])
def test_what_is_not_json_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(text)
    assert refused(path).startswith(f"report: {path} must be JSON in UTF-8: ")


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    for name, todo in (
        ("results.json", f"run `vnd evaluate {tmp_path}` first"),
        ("a.json", "give a run folder or its"),
    ):
        with pytest.raises(FileNotFoundError, match=rf"^report: {tmp_path}/{name} is missing; {todo}"):
            read(tmp_path / name)


def test_the_chosen_row() -> None:
    contents = sizes()
    assert chosen_row(contents) is contents["rows"][8]
    contents["rows"].insert(0, dict(contents["rows"][8], parameters=1))  # the same label, another size
    assert chosen_row(contents) is contents["rows"][9]
    del contents["chosen"]
    assert chosen_row(contents) is None


def test_rows_are_flat_and_numbers_of_features_have_the_names_of_their_extractor(tmp_path: Path) -> None:
    one, other = (open_run(place / "results.json") for place in put(tmp_path, CODES, MASKS))
    row = one.rows[0]
    assert (row["kind"], row["latent_dim"], row["inference"]) == ("fixed", 128, "mc")
    assert row["Fréchet distance (EfficientNet-Lite0)"] == CODES["rows"][0]["frechet"]
    assert other.rows[1]["ged_16"] == MASKS["rows"][1]["ged"]["16"]
    assert "ged_unbiased_1" not in other.rows[0]  # null: a single sample has none


# Where runs lie


def paths(places: list[Path]) -> list[Path]:
    return [run.path for run in find(places)[0]]


def test_runs_files_and_folders_of_runs_are_found_once_each(tmp_path: Path) -> None:
    one, two = put(tmp_path, fake_run(), fake_run("fn3"))
    (tmp_path / "notes").mkdir()  # no run
    (tmp_path / "readme.txt").touch()
    files = [one / "results.json", two / "results.json"]
    assert paths([tmp_path]) == files
    assert paths([two, one / "results.json", tmp_path, two]) == files[::-1]


def test_a_missing_place_is_named(tmp_path: Path) -> None:
    for place, message in (
        (tmp_path / "none", r"/none does not exist; give run folders or results.json$"),
        (tmp_path / "results.json", r"/results.json does not exist; give run folders or results.json$"),
        (tmp_path, r" holds no run; give run folders or folders that hold them$"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            find([place])


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (False, "is not trained to the end; go on with `vnd train --resume {}`"),
        (True, "was not evaluated; run `vnd evaluate {}` first"),
    ],
)
def test_a_run_that_was_not_evaluated_is_refused_by_name_and_left_out_among_others(
    tmp_path: Path, trained: bool, words: str
) -> None:
    run = tmp_path / "one"
    (run / "last" if trained else run).mkdir(parents=True)
    (run / "recipe.yaml").touch()
    for place in (run, run / "results.json"):
        with pytest.raises(FileNotFoundError, match=rf"^report: {run} {words.format(run)}$"):
            find([place])
    with pytest.raises(FileNotFoundError, match=r"^report: none of the runs was evaluated \(one\); run `vnd evaluate`"):
        find([tmp_path])
    put(tmp_path, fake_run())
    runs, left_out = find([tmp_path])
    assert ([run.path.parent.name for run in runs], left_out) == (["run-0"], [run])


def test_mixtures_are_refused(tmp_path: Path) -> None:
    test, validation, codes = put(tmp_path, fake_run(), fake_run() | {"split": "validation"}, CODES)
    got = re.escape(f"got test images in {test}/results.json and validation images in {validation}/results.json")
    with pytest.raises(ValueError, match=rf"^report: runs must all be measured on the same images; {got}$"):
        find([test, validation])
    with pytest.raises(ValueError, match=r"^report: classifiers and auto-encoders have no measure in common; got"):
        find([test, codes])


def test_the_size_of_images_is_in_the_file_or_beside_it(tmp_path: Path) -> None:
    (place,) = put(tmp_path, MASKS)
    for words, wanted in (('{"image": [1, 32, 48]}', "32×48"), ("5", ""), ('{"image": "128x128"}', ""), ("[", "")):
        (place / "data.json").write_text(words)
        assert open_run(place / "results.json").image == wanted
    said = copy(MASKS)
    said["data"]["image"] = [1, 64, 64]
    (place / "results.json").write_text(json.dumps(said))
    assert open_run(place / "results.json").image == "64×64"


def test_a_file_of_kept_runs_names_its_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    path.write_text(json.dumps({"results": MASKS}) + "\n{}\n")
    with pytest.raises(ValueError, match=rf'^report: {path}, line 2 must be a JSON object with "results"$'):
        find([path])
    path.write_text(json.dumps({"results": MASKS}) + "\n" + json.dumps({"results": MASKS | {"title": 3}}) + "\n")
    with pytest.raises(ValueError, match=rf"^report: {path}, line 2: title must be text; got 3$"):
        find([path])
