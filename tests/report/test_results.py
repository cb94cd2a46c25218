"""Reading a result file: what is missing or wrong is named, what may be missing may be missing."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fake_results import SMALL, fake_results

from vnd.report.results import chosen_row, full_row, read, smallest_row

REQUIRED = (
    *("format", "title", "data", "data.name", "rows", "rows.3.kind", "rows.3.label", "rows.3.parameters"),
    *("rows.3.accuracy", "rows.3.nll", "rows.3.ece", "chosen.label", "reliability.1.count", "reliability.1.label"),
    *("examples.most_certain.0.image", "examples.ood.2.confidence", "curves.5.step"),
)
OPTIONAL = (
    *("command", "method", "machine", "ood", "samples", "seconds", "chosen", "reliability", "survival"),
    *("groups", "examples", "curves", "data.train", "data.classes", "rows.0.macs", "rows.0.shape", "rows.0.auroc"),
    *("chosen.reason", "examples.ood", "examples.most_certain.0.label", "curves.5.kl"),
)
WRONG: dict[str, tuple[str, Any, str]] = {
    "a format to come": ("format", 2, "format must be 1; got 2"),
    "format true": ("format", True, "format must be 1; got true"),
    "title a number": ("title", 3, "title must be text; got 3"),
    "data a list": ("data", [1], "data must be an object with keys; got [1]"),
    "rows empty": ("rows", [], "rows must be a list that is not empty; got []"),
    "rows an object": ("rows", {"a": 1}, 'rows must be a list that is not empty; got {"a": 1}'),
    "row a number": ("rows.1", 7, "rows.1 must be an object with keys; got 7"),
    "kind unknown": ("rows.1.kind", "best", "rows.1.kind must be 'uniform' or 'learned' or 'sampled'; got \"best\""),
    "accuracy in per cent": ("rows.1.accuracy", 91.0, "rows.1.accuracy must be a number in 0 … 1; got 91.0"),
    "accuracy as text": ("rows.1.accuracy", "0.9", "rows.1.accuracy must be a number in 0 … 1"),
    "accuracy true": ("rows.1.accuracy", True, "rows.1.accuracy must be a number in 0 … 1; got true"),
    "nll not a number": ("rows.1.nll", math.nan, "rows.1.nll must be a finite number; got NaN"),
    "nll infinite": ("rows.1.nll", math.inf, "rows.1.nll must be a finite number; got Infinity"),
    "ece null": ("rows.1.ece", None, "rows.1.ece must be a number in 0 … 1; got null"),
    "no parameters": ("rows.1.parameters", 0, "rows.1.parameters must be a whole number of at least 1; got 0"),
    "half a parameter": ("rows.1.parameters", 10.5, "rows.1.parameters must be a whole number"),
    "huge": ("rows.1.parameters", 10**400, "rows.1.parameters must be a whole number"),
    "shape as text": ("rows.1.shape", "8", "rows.1.shape must be an object with keys"),
    "shape negative": ("rows.1.shape", {"a": -1}, "rows.1.shape.a must be a whole number of at least 0; got -1"),
    "auroc negative": ("rows.1.auroc", -0.1, "rows.1.auroc must be a number in 0 … 1"),
    "chosen elsewhere": ("chosen.label", "none such", "chosen.label must be the label of one of the rows"),
    "survival flat": ("survival", [1.0], "survival must be an object with keys; got [1.0]"),
    "survival empty": ("survival", {"a": []}, "survival.a must be a list that is not empty; got []"),
    "survival above 1": ("survival", {"a": [1.0, 1.1]}, "survival.a.1 must be a number in 0 … 1; got 1.1"),
    "bins uneven": ("reliability.2.count", [1], "reliability.2: count, confidence and accuracy must have one length"),
    "image flat": ("examples.most_certain.0.image", [1, 2], "examples.most_certain.0.image must be rows of whole"),
    "image ragged": ("examples.most_certain.0.image", [[1, 2], [1]], "examples.most_certain.0.image must be rows"),
    "image too bright": ("examples.most_certain.0.image", [[256]], "examples.most_certain.0.image must be rows"),
    "image of floats": ("examples.most_certain.0.image", [[0.5]], "examples.most_certain.0.image must be rows"),
    "image of 2 colours": ("examples.most_certain.0.image", [[[1, 2]]], "examples.most_certain.0.image must be rows"),
    "curves as text": ("curves.0.loss", "low", 'curves.0.loss must be a finite number; got "low"'),
    "a line break": ("survival", {"a\nb": 3}, "survival.a b must be a list that is not empty; got 3"),
}


def results() -> dict[str, Any]:
    return fake_results(**SMALL | {"shown": 3, "widths": 3, "image": (2, 2)})


def at(contents: Any, key: str) -> tuple[Any, Any]:
    *path, last = (int(part) if part.isdigit() else part for part in key.split("."))
    for part in path:
        contents = contents[part]
    return contents, last


def put(folder: Path, contents: Any) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(contents))
    return path


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        read(path)
    return str(error.value)


def test_a_folder_and_its_file_are_read_alike(tmp_path: Path) -> None:
    path = put(tmp_path, results())
    assert read(tmp_path) == read(path) == results()


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_part_is_named(tmp_path: Path, key: str) -> None:
    contents = results()
    parent, last = at(contents, key)
    del parent[last]
    path = put(tmp_path, contents)
    assert refused(path) == f"report: {path}: {key} is missing"


@pytest.mark.parametrize("key", OPTIONAL)
@pytest.mark.parametrize("empty", ["missing", "null"])
def test_an_optional_part_may_be_missing(tmp_path: Path, key: str, empty: str) -> None:
    contents = results()
    parent, last = at(contents, key)
    if empty == "null":
        parent[last] = None
    else:
        del parent[last]
    assert read(put(tmp_path, contents)) == contents


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_part_is_named(tmp_path: Path, case: str) -> None:
    key, value, message = WRONG[case]
    contents = results()
    parent, last = at(contents, key)
    parent[last] = value
    path = put(tmp_path, contents)
    assert refused(path).startswith(f"report: {path}: {message}")


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"format": 1', b"\xff\xfe", b"[" * 100_000, b'{"title": "\\ud800"}', b"<html>"]
)
def test_what_is_not_json_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(text)
    assert refused(path).startswith(f"report: {path} must be JSON in UTF-8: ")


def test_a_deep_image_is_refused(tmp_path: Path) -> None:
    contents = results()
    for _ in range(300):
        contents["examples"]["most_certain"][0]["image"] = [contents["examples"]["most_certain"][0]["image"]]
    assert "examples.most_certain.0.image must be rows" in refused(put(tmp_path, contents))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "results.json"):
        with pytest.raises(
            FileNotFoundError, match=rf"results.json is missing; run `vnd evaluate {re.escape(str(tmp_path))}` first$"
        ):
            read(path)


def test_bins_may_be_empty_and_shares_a_rounding_off(tmp_path: Path) -> None:
    contents = results()
    contents["reliability"][0]["confidence"][0] = contents["reliability"][0]["accuracy"][0] = None
    contents["survival"]["features.1"][0] = 1.0000001
    assert read(put(tmp_path, contents)) == contents


def test_the_rows_that_are_spoken_of() -> None:
    contents = results()
    sizes = [row["parameters"] for row in contents["rows"]]
    assert full_row(contents)["parameters"] == max(sizes)
    assert smallest_row(contents)["parameters"] == min(sizes)
    assert chosen_row(contents) is contents["rows"][8]
    twin = dict(contents["rows"][8], parameters=1)
    contents["rows"].insert(0, twin)  # the same label, another size
    assert chosen_row(contents) is contents["rows"][9]
    del contents["chosen"]
    assert chosen_row(contents) is None
