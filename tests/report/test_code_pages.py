"""Pages of auto-encoders: what is one curve, the numbers of the table, figures, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_codes import fake_code
from task_pages import check_refused, classifier, coarsen, compared, page_of, put, runs_of

from vnd.metrics import confidence_interval
from vnd.report import codes, coding, comparison, tasks
from vnd.report.codes import Curve, group

VAES = tuple(("vae", code) for code in (32, 64, 96, 128))


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    coarsen(monkeypatch)


def curves_of(*results: dict[str, Any]) -> list[Curve]:
    return group(runs_of(*results))


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


def test_images_of_other_sizes_are_blocks_of_their_own() -> None:
    small, large = fake_code(run="a"), fake_code(run="b")
    small["data"]["image"], large["data"]["image"] = [3, 32, 32], [3, 64, 64]
    keys = [block.key for block in tasks.compare(coding.TASK, runs_of(small, large)).blocks]
    assert [key[2] for key in keys] == ["32×32", "64×64"]
    assert coding.TASK.where(keys) == f"of {keys[0][1]} on celeba"


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
    assert sum(bar.get_height() for bar in left.patches) == pytest.approx(200)  # two inference, in per cent
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
    text, files = page_of(tmp_path, results)
    for row in results["tidy"]:
        assert f"<td>{row['mse']:.5f}</td>" in text
    assert "Fréchet distance (EfficientNet-Lite0)" in text
    assert "FID" not in text
    wanted = {"vnd_ae": {"error", "distance", "rate", "lengths"}, "nested_ae": {"error", "distance"}}
    assert files == wanted.get(method, set()) | {"training"}


def test_many_runs_are_compared_kept_and_written_as_markdown(tmp_path: Path) -> None:
    other = [fake_code(data="cifar10"), fake_code("vae", 128, data="cifar10", extractor=None)]
    found = compared(tmp_path, *several(), *other)
    assert found.series == {("celeba", "autoencoder"): 3, ("cifar10", "autoencoder"): 2}
    assert len(found.rows) == 6 + 4 + 1 + 6 + 1
    assert float(found.rows[6]["mse"]) == found.said["points"][6]["mse"] == several()[1]["rows"][0]["mse"]
    assert "| VAE (retrained) | 32 |" in found.markdown


def test_a_mixture_with_classifiers_is_refused_in_one_line(tmp_path: Path) -> None:
    places = put(tmp_path, fake_code(), classifier())
    with pytest.raises(ValueError, match=r"^report: auto-encoders and classifiers have no measure in common; got .*$"):
        comparison.read(places)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an error below zero": (lambda r: r["rows"][0].update(mse=-1), "rows.0.mse must be a finite number of at least 0"),
    "no code": (lambda r: r.pop("latent_dim"), "latent_dim is missing"),
    "another reading": (lambda r: r["tidy"][4].update(length_rule="x"), "tidy.4.length_rule must be 'fixed' or"),
    "lengths of another code": (lambda r: r["lengths"].update(target=[1, 2]), "lengths.target must count images"),
    "lists of two lengths": (lambda r: r["complexity"]["shown"]["png"].pop(), "complexity.shown: "),
    "a list too few": (lambda r: r["complexity"]["shown"].pop("png"), "complexity.shown must have png"),
    "no name of the distance": (lambda r: r["features"].pop("distance_name"), "features.distance_name is missing"),
    "no row": (lambda r: r.update(rows=[]), "rows must be a list that is not empty"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_by_its_key(fault: str, tmp_path: Path) -> None:
    check_refused(tmp_path, fake_code(), *BROKEN[fault])
