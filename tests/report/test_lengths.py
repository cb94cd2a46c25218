"""Codes: what is one series, and the numbers of table and figures."""

import numpy as np
import pytest
from fake_codes import fake_code
from pages import block, series, table_of

from vnd.report import html, lengths
from vnd.report.html import Options

PAGE, CODES = Options("page"), (32, 64, 96, 128)
EXTRACTOR = "Fréchet distance (EfficientNet-Lite0)"


def trained(**options: object) -> list[dict]:
    return [fake_code(**options), *(fake_code("vae", code, **options) for code in CODES)]


def test_codes_trained_one_by_one_are_one_series_and_ordered_ones_are_not() -> None:
    found = series(*trained(), fake_code("vae", 64, seed=1))
    assert [(own.name, len(own.runs)) for own in found] == [("VND-AE", 1), ("VAE (retrained)", 5)]
    assert [point.length for point in found[1].points] == [32, 64, 96, 128]
    assert found[1].points[1].measures["mse"].count == 2
    assert len(series(fake_code(code=64), fake_code(code=128))) == 2


def test_other_settings_seeds_and_extractors_are_told_apart() -> None:
    assert len(series(fake_code(run="a"), fake_code(run="b"))) == 2
    assert len(series(fake_code(), fake_code(seed=1, settings="other"))) == 2
    assert len(series(fake_code(), fake_code(seed=1))) == 1
    assert len(series(fake_code(), fake_code(seed=1, extractor="Inception"))) == 2


def test_the_table_has_every_length_and_the_best_of_each_is_bold() -> None:
    results = trained()
    (part,) = lengths.numbers(block(*results), PAGE)
    head, lines = table_of(part)
    measured = ["MSE", "Summed error", "Rate", "Distortion", "−ELBO", "Fréchet", "Score", "Diversity"]
    assert head == ["Method", "Length", *measured]
    row = results[0]["rows"][0]
    assert lines[0][:4] == ["VND-AE", "32 of 128", f"{row['mse']:.5f}", f"{row['summed']:.4g}"]
    assert [line[1].split(" of ")[0] for line in lines] == [
        *map(str, CODES),
        *(lines[at][1].split(" of ")[0] for at in (4, 5)),
        *map(str, CODES),
    ]
    table = part.content[0]
    for length in CODES:
        same = [line for line in table.lines if line[1].text.split(" of ")[0] == str(length)]
        marked = [line[2].text for line in same if line[2].bold]
        assert marked == [min((line[2].text for line in same), key=float)]
    assert not any(line[4].bold for line in table.lines)  # a rate has no better side
    assert "14.2" in part.note  # how far real images are apart


def test_extractors_have_columns_of_their_own() -> None:
    head, lines = table_of(lengths.numbers(block(fake_code(), fake_code(extractor="Inception")), PAGE)[0])
    assert EXTRACTOR in head
    assert "FID" in head
    assert [line[head.index("FID")] == "–" for line in lines[:4]] == [True] * 4


def test_points_are_drawn_at_the_numbers_of_the_file() -> None:
    results = trained()
    found = block(*results)
    (axis,) = lengths.against_length(found.series, "mse", "error").axes
    by_name = {line.get_label(): line for line in axis.lines}
    assert list(by_name["VND-AE"].get_ydata()) == [row["mse"] for row in results[0]["rows"]]
    assert list(by_name["VAE (retrained)"].get_xdata()) == list(CODES)
    assert list(by_name["VND-AE, by image"].get_ydata()) == [0.011]
    left, _ = lengths.rate_distortion(found.series).axes
    row = results[0]["rows"][-1]
    np.testing.assert_allclose(left.lines[0].get_xydata()[-1], (row["rate"], row["distortion"]))
    counts = results[0]["lengths"]["posterior"]
    bars = lengths.draw_lengths(results[0]).axes[0].patches[: len(counts) - 1]
    assert sum(bar.get_height() for bar in bars) == pytest.approx(100)


def test_an_interval_over_seeds_is_said_and_drawn() -> None:
    found = block(fake_code(), fake_code(seed=1))
    assert "± is half a 95 % interval over trainings from other seeds." in lengths.numbers(found, PAGE)[0].note
    (axis,) = lengths.against_length(found.series, "mse", "error").axes
    for bar, point in zip(axis.collections, found.series[0].of("fixed"), strict=True):
        ends = [[point.length, point.measures["mse"].low], [point.length, point.measures["mse"].high]]
        np.testing.assert_allclose(bar.get_segments(), [ends])


def test_a_run_alone_says_what_came_of_it() -> None:
    parts = html.parts_of(block(fake_code()), Options("run"))
    said = " ".join(line[0].text for line in parts[0].content[0].lines)
    assert "An auto-encoder with a code of 128 numbers was trained on 6,000 images of “celeba”." in said
    assert "Here it is measured at 4 lengths on 1,500 test images" in said
    assert [part.key for part in parts] == ["summary", "numbers", "error", "distance", "rate", "lengths", "training"]
