"""Pages of auto-encoders: what is one curve, the numbers of the table, figures, and what is refused."""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_codes import fake_code
from fake_results import fake_results

from vnd.metrics import confidence_interval
from vnd.report import codes, coding, comparison, keep, markdown, marked, page
from vnd.report.codes import Curve, group
from vnd.report.results import read
from vnd.report.runs import Run, run_of

VAES = tuple(("vae", code) for code in (32, 64, 96, 128))


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coding, "DPI", 20)
    monkeypatch.setattr(page, "DPI", 20)
    monkeypatch.setattr(markdown, "DPI", 20)


def runs_of(*results: dict[str, Any]) -> list[Run]:
    return [run_of(Path(f"{index}/results.json"), one) for index, one in enumerate(results)]


def curves_of(*results: dict[str, Any]) -> list[Curve]:
    return group(runs_of(*results))


def put(folder: Path, *results: dict[str, Any]) -> list[Path]:
    places = []
    for index, one in enumerate(results):
        place = folder / f"{index}-{one['series']['run']}"
        place.mkdir(parents=True)
        (place / "results.json").write_text(json.dumps(one))
        places.append(place)
    return places


def several() -> list[dict[str, Any]]:
    return [fake_code(), *(fake_code("vae", code, lift=0.002) for _, code in VAES), fake_code("swae", lift=0.004)]


# Curves


def test_networks_that_were_trained_for_one_length_each_are_one_curve() -> None:
    own, vae, swae = curves_of(*reversed(several()))
    assert [own.name, vae.name, swae.name] == ["VND-AE", "VAE (retrained)", "SWAE"]
    assert [point.length for point in vae.points] == [32, 64, 96, 128]
    assert [point.code for point in vae.points] == [32, 64, 96, 128]
    assert [point.reading for point in own.points] == ["fixed"] * 4 + ["posterior", "target"]


def test_codes_that_can_be_cut_are_a_curve_for_each_code() -> None:
    curves = curves_of(fake_code(code=128), fake_code(code=64))
    assert [{point.code for point in own.points} for own in curves] == [{128}, {64}]
    assert len({own.name for own in curves}) == 2


def test_seeds_are_averaged_with_an_interval() -> None:
    runs = [fake_code("vae", 64, seed) for seed in range(3)]
    (own,) = curves_of(*runs)
    assert own.name == "VAE"
    (point,) = own.points
    wanted = confidence_interval([one["rows"][0]["mse"] for one in runs])
    assert (point.measures["mse"], point.runs) == (wanted, 3)
    assert "± is half a 95 % interval" in coding.note_of([own])


def test_runs_of_other_settings_or_of_one_seed_and_code_are_apart() -> None:
    one, two = curves_of(fake_code("vae", 64), fake_code("vae", 32, settings="other"))
    assert len(one.points) == len(two.points) == 1
    assert len(curves_of(fake_code("vae", 64, run="a"), fake_code("vae", 64, run="b"))) == 2


def test_measures_of_two_extractors_are_never_one_column() -> None:
    curves = curves_of(fake_code(), fake_code("vae"), fake_code("swae", extractor="Inception"))
    head, lines = coding.cells(curves)
    assert head[7:9] == ["Fréchet distance (EfficientNet-Lite0)", "FID"]
    for line in lines:
        assert "–" in (line[7][0], line[8][0])
    names = [one.name for one in coding.shown(curves)]
    assert "distance" in names
    assert "distance-2" not in names  # one point is no curve
    labels = [
        drawn.axes[0].get_ylabel() for one in coding.shown(curves) if "distance" in one.name for drawn in [one.draw()]
    ]
    assert labels == ["Fréchet distance (EfficientNet-Lite0)"]


def test_the_best_of_a_length_is_marked_and_only_where_there_are_several() -> None:
    curves = curves_of(fake_code(), fake_code("vae", 32, lift=-0.005), fake_code("vae", 128, lift=0.01))
    head, lines = coding.cells(curves)
    column = head.index("MSE")
    best = {(line[0][0], line[1][0]) for line in lines if line[column][1]}
    assert best == {("VND-AE", "128 of 128"), ("VAE (retrained)", "32")}


# Figures


def test_lines_are_drawn_at_the_numbers_of_the_file() -> None:
    results = several()
    curves = curves_of(*results)
    axis = codes.against_length(curves, "mse", "error").axes[0]
    drawn = {line.get_label(): line for line in axis.lines}
    assert list(drawn["VAE (retrained)"].get_xdata()) == [32, 64, 96, 128]
    assert list(drawn["VAE (retrained)"].get_ydata()) == [one["rows"][0]["mse"] for one in results[1:5]]
    left, right = codes.rate_distortion(curves).axes
    drawn = {line.get_label(): line for line in left.lines}
    assert list(drawn["VND-AE"].get_xdata()) == [row["rate"] for row in results[0]["rows"]]
    assert list(drawn["VND-AE"].get_ydata()) == [row["distortion"] for row in results[0]["rows"]]
    drawn = {line.get_label(): line for line in right.lines}
    assert list(drawn["VND-AE"].get_ydata()) == [row["negative_elbo"] for row in results[0]["rows"]]


def test_lengths_of_images_are_counted_and_held_against_their_bytes() -> None:
    results = fake_code()
    left, right = codes.lengths(results).axes
    assert sum(bar.get_height() for bar in left.patches) == pytest.approx(200)  # two readings, in per cent
    assert list(right.lines[0].get_xdata()) == results["complexity"]["shown"]["png"]
    assert "Spearman 0.53" in str(right.lines[0].get_label())
    (alone,) = codes.lengths({**results, "complexity": None}).axes
    assert alone.get_xlabel() == "length of the code (dimensions)"


# Pages


@pytest.mark.parametrize("method", ["vnd_ae", "vae", "nested_ae", "swae"])
def test_the_page_of_a_run_has_its_numbers_and_needs_nothing_else(method: str, tmp_path: Path) -> None:
    results = fake_code(method)
    if method in ("nested_ae", "swae"):
        for row in results["tidy"]:
            row |= {"rate": None, "negative_elbo": None}
    results["notes"] = ["<b>a note</b>"]
    (place,) = put(tmp_path, results)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = page.write(place, place).read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!data:|#)|<script""", text)
    for row in results["tidy"]:
        assert f"<td>{row['mse']:.5f}</td>" in text
    assert "&lt;b&gt;a note" in text
    assert "Fréchet distance (EfficientNet-Lite0)" in text
    assert "FID" not in text
    files = {path.stem for path in (place / "figures").iterdir()}
    wanted = {"vnd_ae": {"error", "distance", "rate", "lengths"}, "nested_ae": {"error", "distance"}}
    assert files == wanted.get(method, set()) | {"training"}


def test_many_runs_are_compared_kept_and_written_as_markdown(tmp_path: Path) -> None:
    other = [fake_code(data="cifar10"), fake_code("vae", 128, data="cifar10", extractor=None)]
    places = put(tmp_path / "runs", *several(), *other)
    found = comparison.read(places)
    assert isinstance(found, coding.Codes)
    assert [(block.data, len(block.series)) for block in found.blocks] == [("celeba", 3), ("cifar10", 2)]
    text = comparison.write_page(found, tmp_path / "out", "Two sets").read_text(encoding="utf-8")
    assert "<h1>Two sets</h1>" in text
    rows = list(csv.DictReader((tmp_path / "out" / "summary.csv").read_text(encoding="utf-8").splitlines()))
    said = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert len(rows) == len(said["points"]) == 6 + 4 + 1 + 6 + 1
    assert float(rows[6]["mse"]) == said["points"][6]["mse"] == several()[1]["rows"][0]["mse"]
    assert all((tmp_path / "out" / name).is_file() for name in said["figures"])
    kept = keep.keep(found.runs, tmp_path / "kept")
    assert len(kept.folders) == 8
    again = comparison.read([tmp_path / "kept"])
    assert isinstance(again, coding.Codes)
    assert coding.points(again.blocks) == coding.points(found.blocks)
    path = tmp_path / "docs" / "page.md"
    files = coding.write_markdown(found, path, "vnd report runs/*")
    text = path.read_text(encoding="utf-8")
    assert text.startswith(marked.BEGIN)
    assert "| VAE (retrained) | 32 |" in text
    assert all(f"images/{file.name}" in text and file.is_file() for file in files)
    assert "vnd report runs/*" in text


def test_a_mixture_with_classifiers_is_refused_in_one_line(tmp_path: Path) -> None:
    classifier = fake_results() | {"series": {"run": "c", "method": "bn3", "network": "vgg11", "data": "cifar10"}}
    places = put(tmp_path, fake_code(), classifier)
    with pytest.raises(ValueError, match=r"^report: auto-encoders and classifiers have no measure in common; got .*$"):
        comparison.read(places)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an error below zero": (lambda r: r["rows"][0].update(mse=-1), "rows.0.mse must be a finite number of at least 0"),
    "no code": (lambda r: r.pop("code"), "code is missing"),
    "another reading": (lambda r: r["tidy"][4].update(reading="x"), "tidy.4.reading must be 'fixed' or"),
    "lengths of another code": (lambda r: r["lengths"].update(target=[1, 2]), "lengths.target must count images"),
    "lists of two lengths": (lambda r: r["complexity"]["shown"]["png"].pop(), "complexity.shown: "),
    "a list too few": (lambda r: r["complexity"]["shown"].pop("png"), "complexity.shown must have png"),
    "no name of the distance": (lambda r: r["features"].pop("distance_name"), "features.distance_name is missing"),
    "no row": (lambda r: r.update(rows=[]), "rows must be a list that is not empty"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_by_its_key(fault: str, tmp_path: Path) -> None:
    results = fake_code()
    breaks, words = BROKEN[fault]
    (tmp_path / "ok.json").write_text(json.dumps(results))
    read(tmp_path / "ok.json")
    breaks(results)
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ValueError, match=r"^report: ") as caught:
        read(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
