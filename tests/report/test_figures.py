"""Figures: they draw the numbers they are given, change with them, and stand any name."""

import io
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pytest
from fake_results import SMALL, fake_results
from fake_runs import fake_run
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure

from vnd.report import figures

CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "accuracy": lambda results: results["rows"][0].update(accuracy=0.5),
    "detection": lambda results: results["rows"][0].update(auroc=0.5),
    "calibration": lambda results: results["rows"][0].update(nll=2.5),
    "survival": lambda results: results["survival"].update({"features.4": [1.0] * 4}),
    "reliability": lambda results: results["reliability"][0]["accuracy"].__setitem__(14, 0.2),
    "examples": lambda results: results["examples"]["least_certain"][0].update(prediction="Hat"),
    "training": lambda results: results["curves"][10].update(loss=5.0),
    "selective": lambda results: results["selective"].update(risk=0.1),
    "cascade": lambda results: results["cascade"]["single"][0].update(accuracy=0.5),
}


def small() -> dict[str, Any]:
    return fake_results(**SMALL) | {key: fake_run(studies=True)[key] for key in ("selective", "cascade")}


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=30)
    return buffer.getvalue()


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


@pytest.mark.parametrize("name", CHANGES)
def test_a_figure_changes_with_its_data_and_only_then(name: str) -> None:
    draw, results = getattr(figures, name), small()
    first = png(draw(results))
    assert first.startswith(b"\x89PNG")
    assert len(first) > 2000
    assert png(draw(small())) == first
    CHANGES[name](results)
    assert png(draw(results)) != first
    assert Gcf.get_all_fig_managers() == []  # none of pyplot's


@pytest.mark.parametrize(
    ("name", "key", "place", "factor"),
    [
        ("accuracy", "accuracy", 0, 100),
        ("detection", "auroc", 0, 100),
        ("calibration", "ece", 0, 100),
        ("calibration", "nll", 1, 1),
    ],
)
def test_the_points_are_the_rows(name: str, key: str, place: int, factor: float) -> None:
    results = fake_results(**SMALL)
    axis = getattr(figures, name)(results).axes[place]
    for line, kind in zip(axis.lines, ("uniform", "learned"), strict=False):
        points = sorted((row["parameters"], factor * row[key]) for row in results["rows"] if row["kind"] == kind)
        np.testing.assert_allclose(np.transpose(line.get_data()), points)
    chosen = results["rows"][8]
    np.testing.assert_allclose(np.ravel(axis.lines[2].get_data()), [chosen["parameters"], factor * chosen[key]])
    assert axis.get_xscale() == "log"


def test_survival_has_a_row_for_each_layer_and_its_expected_units() -> None:
    results = fake_results(layers=20)
    results["survival"]["features.4"] = [1.0, 0.5]  # a layer of two units
    figure = figures.survival(results)
    table = figure.axes[0].collections[0].get_array()
    assert table.shape == (20, 32)
    assert table[1].compressed().tolist() == [1.0, 0.5]
    assert {"features.1", "features.4", "features.58", "1.5 of 2"} <= set(texts(figure))


def test_reliability_draws_accuracy_counts_and_the_error_of_its_bins() -> None:
    bins = {"label": "half", "count": [0, 10, 30], "confidence": [None, 0.5, 0.9], "accuracy": [None, 0.6, 0.8]}
    figure = figures.reliability({"reliability": [bins]})
    diagram, counts = figure.axes
    assert sorted(bar.get_height() for bar in diagram.patches) == pytest.approx([60, 80])
    assert [bar.get_height() for bar in counts.patches] == [0, 10, 30]
    assert diagram.get_title(loc="left") == "half: ECE 10.0 %"


def test_large_images_are_thinned_and_colours_are_drawn() -> None:
    example = {"image": np.zeros((200, 224, 3), int).tolist(), "prediction": "cat", "confidence": 0.5}
    figure = figures.examples({"examples": {"ood": [example], "most_certain": None}})
    assert figure.axes[0].images[0].get_array().shape == (67, 75, 3)
    assert {"? cat", "50.0 % sure", "Out of domain"} <= set(texts(figure))


def test_right_and_wrong_examples_are_told_apart() -> None:
    example = {"image": [[0, 255]], "prediction": "cat", "confidence": 0.5}
    groups = {"most_certain": [example | {"label": "cat"}, example | {"label": "dog"}, example]}
    words = texts(figures.examples({"examples": groups}))
    assert words.count("✓ cat") == 1
    assert words.count("✗ cat") == 2
    assert [word for word in words if word.startswith("is ")] == ["is dog"]


def test_any_text_can_be_drawn() -> None:
    hostile = ("$\\frac{$", "a\nb\x00\x07c", "x" * 500, "", "<script>", "\\alpha", "^_{")
    results = fake_results(**SMALL)
    bins, example = results["reliability"][0], {"image": [[0]], "confidence": 0.5}
    results["reliability"] = [bins | {"label": text} for text in hostile[:2]]
    results["survival"] = {text: [1.0, 0.5] for text in hostile}
    results["examples"] = {"least_certain": [example | {"label": text, "prediction": text} for text in hostile]}
    for name in ("survival", "reliability", "examples"):
        assert png(getattr(figures, name)(results))
    for text in hostile[:2]:
        results["rows"][8]["label"] = results["chosen"]["label"] = text
        assert png(figures.accuracy(results))


def test_one_row_and_few_points_can_be_drawn() -> None:
    results = {"rows": fake_results()["rows"][:1], "curves": [{"step": 1, "loss": 2.0}]}
    for name in ("accuracy", "detection", "calibration", "training"):
        assert png(getattr(figures, name)(results))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1 k"),
        (12_345, "12.3 k"),
        (499_000, "499 k"),
        (900_000, "0.9 M"),
        (20_946_282, "20.9 M"),
        (350e6, "350 M"),
        (2.5e9, "2.5 G"),
        (1.8e12, "1800 G"),
    ],
)
def test_numbers_for_people(number: float, text: str) -> None:
    assert figures.short(number) == text


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"need matplotlib; pip install 'variational-nested-dropout\[report\]'$"
    ):
        figures.accuracy(fake_results())


def test_the_curves_of_trust_are_those_of_the_file() -> None:
    results = fake_run(studies=True)
    rows = results["selective"]["rows"]
    (axis,) = figures.selective(results).axes
    lines = {line.get_label(): line for line in axis.lines}
    assert [label for label in lines if not label.startswith("_")] == ["6.25 %", "25 %", "50 %", "100 %"]
    assert lines["100 %"].get_ydata()[-1] == pytest.approx(100 * rows[-1]["curve"]["risk"][-1])
    spots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axis.lines if len(line.get_xdata()) == 1]
    wanted = [(100 * rows[i]["coverage"], 100 * rows[i]["risk"]) for i in (2, 3, 5)]  # the smallest has no threshold
    np.testing.assert_allclose(spots, wanted)
    assert [line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == ":" and len(line.get_xdata()) == 2][
        -1
    ] == 5
    found = results["cascade"]
    (axis,) = figures.cascade(results).axes
    for line, key in zip(axis.lines, ("curve", "single"), strict=True):
        np.testing.assert_allclose(line.get_xdata(), [point["macs"] for point in found[key]])
        np.testing.assert_allclose(line.get_ydata(), [100 * point["accuracy"] for point in found[key]])
