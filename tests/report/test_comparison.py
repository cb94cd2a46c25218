"""The comparison: every number of its tables is that of the files, every figure is drawn, and the page is safe."""

import csv
import json
import re
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import FULL, fake_run, suite, write_runs
from matplotlib.figure import Figure
from test_page import HOSTILE, Reader, lines, words

from vnd.metrics import Interval
from vnd.report import compare, comparison, plates, sections, studies
from vnd.report.captions import PARTS
from vnd.report.comparison import split, write
from vnd.report.explain import number
from vnd.report.runs import open_results
from vnd.report.series import Series
from vnd.report.summary import Block, efficiency, lead, places, times, withheld

LEAST = {"kind": "uniform", "label": "100 %", "parameters": 10, "accuracy": 0.5, "nll": 1.0, "ece": 0.1}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    write_runs(folder / "runs", suite(full=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "DPI", 20)
        assert write([folder / "runs"], folder / "out", "All of them") == folder / "out" / "report.html"
    return folder / "out"


@pytest.fixture(scope="module")
def text(out: Path) -> str:
    return (out / "report.html").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small PNG files and fewer figures; all are drawn once above."""
    monkeypatch.setattr(comparison, "DPI", 20)
    monkeypatch.setattr(plates, "of_theory", list)
    monkeypatch.setattr(sections, "of_theory", lambda pictures: [])


def blocks(folder: Path, runs: dict[str, dict[str, Any]]) -> list[Block]:
    return split([open_results(path / "results.json") for path in write_runs(folder, runs)])


def only(folder: Path, **options: Any) -> Series:
    return blocks(folder, {"a": fake_run(**options)})[0].series[0]


def mean_of(runs: dict[str, Any], method: str, key: str, **wanted: Any) -> float:
    """A measure, averaged over repeats and then over runs, straight from the files."""
    found = []
    for one in runs.values():
        if one["method"] == method:
            own = [row[key] for row in one["tidy"] if all(row[name] == value for name, value in wanted.items())]
            found += [np.mean(own)] if own else []
    return float(np.mean(found))


def shown(share: float) -> str:
    return f"{100 * share:.1f}"


def cells(line: list[str]) -> list[str]:
    """Without marks and intervals."""
    return [re.sub(r"<b>|</b>| <small>.*</small>", "", cell) for cell in line]


def test_the_summary_has_the_numbers_of_the_files(text: str) -> None:
    runs, table = suite(full=False), [cells(line) for line in lines(text)]
    for name, method, reading in (
        ("BN³", "bn3", "mc"),
        ("DT-BN³", "bn3", "mean"),
        ("FN³-TS", "fn3", "temperature_scaled"),
    ):
        for label, size in (("100 %", "9.23 M"), ("25 %", "0.611 M"), ("6.25 %", "46.9 k")):
            which = {"inference": reading, "label": label, "bn_images": 1024}
            numbers = [f"{shown(mean_of(runs, method, key, **which))} %" for key in ("accuracy", "ece", "auroc")]
            assert [name, label, *numbers, size] in table
    svb = [f"{shown(mean_of(runs, 'svb', key))} %" for key in ("accuracy", "ece", "auroc")]
    assert ["SVB", "100 %", *svb, "0.526 M"] in table
    assert words(text).count("Methods with one size") == 1


def test_intervals_of_repeats_are_marked(text: str) -> None:
    table = {line[0]: line for line in lines(text) if line[1] == "100 %" and line[-1].endswith(" M")}
    assert "†</small>" in table["SVB"][2]
    assert "±" in table["BN³"][2]
    assert "†" not in table["BN³"][2]
    assert "±" not in table["IBNN"][2]


def test_the_csv_and_json_hold_every_point(out: Path) -> None:
    runs = suite(full=False)
    with (out / "summary.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    points = json.loads((out / "summary.json").read_text(encoding="utf-8"))["blocks"][0]["points"]
    assert len(table) == len(points) == (6 + 3) * 2 + 1 + 6 * 2 + 1 + 3  # BN³, DT-BN³; MC; FN³, FN³-TS; SVB; IBNN
    (row,) = (row for row in table if (row["series"], row["label"]) == ("BN³", "25 %"))
    which = {"inference": "mc", "label": "25 %", "bn_images": 1024}
    assert float(row["accuracy"]) == pytest.approx(mean_of(runs, "bn3", "accuracy", **which), abs=1e-12)
    assert float(row["accuracy_low"]) < float(row["accuracy"]) < float(row["accuracy_high"])
    assert (row["interval_over"], row["runs"], row["data"], row["network"]) == ("seeds", "2", "cifar10", "vgg11")
    (row,) = (row for row in table if row["series"] == "IBNN" and row["fraction"] == "0.5")
    assert (row["accuracy_low"], row["interval_over"]) == ("", "")


def test_text_in_the_csv_is_no_formula(tmp_path: Path) -> None:
    found = blocks(tmp_path, {"a": fake_run("=cmd()")})
    assert comparison.as_csv(comparison.rows(found)).splitlines()[1].startswith("cifar10,vgg11,'=cmd(),'=cmd(),")


def test_every_figure_is_there_and_no_other(out: Path, text: str) -> None:
    drawn = ("accuracy", "ece", "nll", "auroc", "aupr", "selective", "cascade", "downhill", "kl")
    wanted = {*drawn, *(f"{name}-bn3" for name in ("lengths", "statistics", "correlation", "reliability"))}
    assert {path.stem for path in (out / "figures").iterdir()} == wanted
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (out / "figures").iterdir())
    assert text.count("<svg") == len(wanted)
    listed = json.loads((out / "summary.json").read_text(encoding="utf-8"))["figures"]
    assert sorted(listed) == sorted(f"figures/{name}.png" for name in wanted)
    assert sorted(path.name for path in out.iterdir()) == ["figures", "report.html", "summary.csv", "summary.json"]


def test_the_page_needs_nothing_else_and_explains_itself(text: str) -> None:
    read = Reader(text)
    assert not {"script", "link", "iframe", "object", "img", "base"} & set(read.tags)
    for name, value in read.attributes:
        if name.split(":")[-1] in ("href", "src", "srcset", "data", "action"):
            assert value.startswith(("#", "data:image/png;base64,"))
    assert "//" not in re.sub(r'"data:image/png;base64,[^"]*"', "", text).replace(str(Path("/tmp")), "")
    for term in ("Nested", "ECE", "AUROC", "AUPR", "Interval", "All of them"):
        assert term in words(text)
    assert len(text) < 2_000_000


def test_who_is_best_where(text: str, tmp_path: Path) -> None:
    said = words(text)
    assert re.search(r"A quarter of the width\.\s+Right most often:\s+BN³\s*, 87\.\d", said)
    assert "Cut to 25 % of the width it keeps 6.63 % of its 9.23 M parameters and loses" in said
    runs = {name: fake_run("bn3" if name < "c" else "fn3", int(name in "bd"), lift=0) for name in "abcd"}
    for name, value in zip("abcd", (0.90, 0.91, 0.80, 0.81), strict=True):
        runs[name]["tidy"][-1]["accuracy"] = value
    (block,) = blocks(tmp_path, runs)
    found = lead(block, places(block)["full"], "accuracy")
    assert found is not None
    assert (found.best.name, found.next.name if found.next else "", found.verdict) == ("BN³", "FN³", "overlap")
    for name, value in zip("abcd", (0.9, 0.9001, 0.80, 0.8001), strict=True):
        runs[name]["tidy"][-1]["accuracy"] = value
    (block,) = blocks(tmp_path, runs)
    found = lead(block, places(block)["full"], "accuracy")
    assert found is not None
    assert found.verdict == "apart"
    del runs["d"]
    (block,) = blocks(tmp_path / "three", runs)
    found = lead(block, places(block)["full"], "accuracy")
    assert found is not None
    assert found.verdict == "single"


def test_scaled_answers_are_not_called_more_often_right(tmp_path: Path) -> None:
    runs = {"a": fake_run("fn3", inference=("mc", "temperature_scaled")), "b": fake_run("us_net", lift=0.1)}
    (block,) = blocks(tmp_path, runs)
    found = {key: lead(block, places(block)["quarter"], key) for key in ("accuracy", "ece")}
    names = [(one.best.name, one.next.name) for one in found.values() if one is not None and one.next is not None]
    assert names == [("FN³", "US-Net"), ("FN³-TS", "US-Net")]
    runs["b"] = fake_run("us_net", inference=("temperature_scaled",))  # read in no other way
    (block,) = blocks(tmp_path / "alone", runs)
    one = lead(block, places(block)["quarter"], "accuracy")
    assert one is not None
    assert {one.best.name, one.next.name if one.next else ""} == {"FN³", "US-Net-TS"}
    assert len(compare.curves(block.series, "accuracy").axes[0].lines) == 2


def test_less_is_better_of_errors(tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, {"a": fake_run("bn3"), "b": fake_run("fn3")})
    for key, best in (("ece", "BN³"), ("nll", "BN³"), ("accuracy", "BN³")):
        found = lead(block, places(block)["smallest"], key)
        assert found is not None
        assert found.best.name == best


def test_the_efficiency_table_says_what_is_used(text: str, tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, suite(full=False))
    found = {line["name"]: line for line in efficiency(block)}
    assert list(found)[:5] == ["smallest BN³", "smallest learned BN³", "SVB", "BN³-MC", "full BN³"]
    assert found["smallest BN³"]["usage"] == pytest.approx(46_871 / FULL, rel=1e-3)
    assert found["SVB"]["usage"] == pytest.approx(0.057, rel=1e-4)  # of the dense network
    assert found["full BN³"]["usage"] == 1
    assert found["BN³-MC"]["usage_std"] == pytest.approx(0.27)
    table = {line[0]: cells(line) for line in lines(text) if len(line) == 8}
    assert table["BN³-MC"][-1] == "47 ± 27 %"
    assert table["SVB"][-1] == "5.7 %"
    assert "By chance, AUPR would be 72.2 %." in text


def test_the_time_table_sums_over_widths(text: str, tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, suite(full=False))
    found = {line["name"]: line for line in times(block)}
    assert (found["IBNN"]["train"], found["IBNN"]["trainings"]) == (2700, 3)
    assert (found["BN³"]["train"], found["BN³"]["trainings"], found["BN³"]["runs"]) == (905, 1, 2)
    assert found["BN³"]["test"] == pytest.approx(1.8 * 1.3)
    assert found["DT-BN³"]["test"] == pytest.approx(0.3 * 1.3)
    assert ["IBNN", "45 min", "2.34 s", "draws of the weights", "NVIDIA H200, torch 2.13.0"] in map(cells, lines(text))


def test_withheld_answers_are_those_of_the_files(text: str, tmp_path: Path) -> None:
    runs = suite(full=False)
    (block,) = blocks(tmp_path, runs)
    found = {(line["name"], line["label"]): line for line in withheld(block)}
    values = [runs[f"bn3-{seed}"]["selective"]["rows"][2]["coverage"] for seed in (0, 1)]
    assert found["BN³", "25 %"]["coverage"].mean == pytest.approx(np.mean(values))
    assert found["BN³", "25 %"]["coverage"].count == 2
    assert (found["BN³", "6.25 %"]["never"], found["BN³", "6.25 %"]["risk"]) == (2, None)
    assert "no threshold in 2 of 2" in text


def test_numbers_are_written_with_their_intervals() -> None:
    found = Interval(0.9, 0.875, 0.925, 3)
    assert number(found, "seeds") == "90.0 <small>± 2.5</small> %"
    assert number(found, "repeats", 2) == "90.00 <small>± 2.50†</small> %"
    assert number(found, "seeds", 3) == "0.900 <small>± 0.025</small>"
    assert number(Interval(0.9, 0.9, 0.9, 1), "") == "90.0 %"
    assert number(None, "") == "–"


def test_the_points_of_a_curve_are_drawn_where_they_are(tmp_path: Path) -> None:
    own = only(tmp_path, learned=2, inference=("mc", "mc_mask"))
    left, right = compare.curves([own], "accuracy").axes
    points = own.of("uniform")
    np.testing.assert_allclose(left.lines[0].get_xdata(), [point.fraction for point in points])
    np.testing.assert_allclose(left.lines[0].get_ydata(), [100 * point.measures["accuracy"].mean for point in points])
    np.testing.assert_allclose(right.lines[0].get_xdata(), [point.parameters for point in points])
    np.testing.assert_allclose(right.lines[1].get_xdata(), [point.parameters for point in own.of("learned")])


def test_a_band_is_the_interval_as_far_as_it_can_be(tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, {"a": fake_run(seed=0), "b": fake_run(seed=1)})
    left, _ = compare.curves(block.series, "ece").axes
    band = left.collections[0].get_paths()[0].vertices
    means = [100 * point.measures["ece"].mean for point in block.series[0].points]
    assert any(point.measures["ece"].low < 0 for point in block.series[0].points)  # t over two seeds is 12.7
    for point in block.series[0].points:
        edges = band[np.isclose(band[:, 0], point.fraction), 1]
        found = point.measures["ece"]
        assert [min(edges), max(edges)] == pytest.approx([max(0, 100 * found.low), 100 * found.high])
    low, high = left.get_ylim()
    assert min(means) - (max(means) - min(means)) < low < min(means) < max(means) < high < 2 * max(means)


def test_a_band_much_wider_than_all_else_does_not_set_the_axis(tmp_path: Path) -> None:
    runs = {"a": fake_run(seed=0), "b": fake_run(seed=1)}
    for one, value in zip(runs.values(), (1.0, 4.0), strict=True):
        one["tidy"][0]["nll"] = value
    (block,) = blocks(tmp_path, runs)
    means = [point.measures["nll"].mean for point in block.series[0].points]
    left, _ = compare.curves(block.series, "nll").axes
    assert block.series[0].points[0].measures["nll"].high > 20
    assert left.get_ylim()[1] == pytest.approx(max(means) + 0.3 * (max(means) - min(means)))


def test_every_number_of_images_is_a_line_and_its_spread_a_band(tmp_path: Path) -> None:
    one = fake_run(statistics=(0, 64), repeats=3)
    (own,) = blocks(tmp_path, {"a": one})[0].series
    assert compare.counts(own) == [64, 1024, 0]
    right, _ = compare.statistics(own).axes
    assert [line.get_label() for line in right.lines] == ["64 images", "1,024 images", "all images"]
    rows = [row for row in one["tidy"] if row["bn_images"] == 64 and row["fraction"] == 1.0]
    edges = right.collections[0].get_paths()[0].vertices
    at_full = edges[np.isclose(edges[:, 0], 1.0), 1]
    assert [min(at_full), max(at_full)] == pytest.approx(
        [100 * min(r["accuracy"] for r in rows), 100 * max(r["accuracy"] for r in rows)]
    )


def test_lengths_are_differences_of_survival(tmp_path: Path) -> None:
    one = fake_run()
    one["survival"] = {"first": [1.0, 1.0, 0.75, 0.25]}
    (own,) = blocks(tmp_path, {"a": one})[0].series
    geometric, uniform, first = studies.tail_index(own).axes
    assert [bar.get_height() for bar in first.patches] == pytest.approx([0, 0, 0.25, 0.5, 0.25])
    assert [bar.get_height() for bar in uniform.patches] == pytest.approx([0.2] * 5)
    assert geometric.patches[0].get_height() == pytest.approx(0.1)
    for fixed in ([0.75, 0.5, 0.25], [1.0, 1.0, 1.0]):  # uniform lengths, and no choice at all
        one["survival"] = {"first": fixed}
        (own,) = blocks(tmp_path / "fixed", {"a": one})[0].series
        assert studies.learned_layers(own) == {}


def test_captions_say_which_of_several_trainings_is_shown(text: str, tmp_path: Path) -> None:
    once = blocks(tmp_path, {"a": fake_run(studies=True)})
    drawn = [plates.Plate(key, key, "", Figure()) for key in PARTS]
    alone = comparison.html(once, [drawn], dict.fromkeys(PARTS, "<svg></svg>"))
    said = dict.fromkeys(("lengths", "cascade", "reliability"), "the first is shown")
    for key, which in (said | {"correlation": "the mean is shown", "selective": "the curves are of the first"}).items():
        assert which in text.split(f'id="block-1-{key}"')[1].split("</section>")[0]
        assert "Of several trainings" not in alone.split(f'id="block-1-{key}"')[1].split("</section>")[0]


def test_numbers_of_validation_images_are_not_called_those_of_test_images(tmp_path: Path, text: str) -> None:
    runs = {"a": fake_run(studies=True) | {"split": "validation"}}
    found = blocks(tmp_path, runs)
    drawn = [plates.Plate(key, key, "", Figure()) for key in PARTS]
    told = words(comparison.html(found, [drawn], dict.fromkeys(PARTS, "<svg></svg>")))
    assert told.count("test images") == 1
    assert "All numbers are of validation images, not of test images." in told
    assert "measured on validation images" in told
    assert json.loads(comparison.numbers(found, []))["split"] == "validation"
    assert "All numbers are of" not in text
    assert "measured on test images" in text
    mixed = write_runs(tmp_path, runs | {"b": fake_run("fn3")})
    with pytest.raises(ValueError, match=r"^report: runs must all be measured on the same images; got validation"):
        write(mixed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_legend_of_many_series_leaves_the_curves_their_room(tmp_path: Path) -> None:
    names = [f"bn3 of a rather long name and number {number}" for number in range(30)]
    (block,) = blocks(tmp_path, {name: fake_run(name, fractions=(0.5, 1.0), learned=2) for name in names})
    heights = []
    for series in (block.series[:3], block.series):
        figure = compare.curves(series, "ece")
        figure.savefig(tmp_path / "figure.png", dpi=100)
        (key,) = figure.legends
        place, left = key.get_window_extent(), figure.axes[0].get_window_extent()
        assert place.x1 <= figure.bbox.x1
        assert place.y0 >= left.y1
        heights.append(left.height / figure.dpi)
    assert heights[1] == pytest.approx(heights[0], abs=0.3)
    assert len(key.get_texts()) == 30
    looks = compare.styles(block.series[:21])
    assert len({look[:2] for look in looks.values()}) == 21  # also of points without a line


def test_correlations_are_means_over_runs(tmp_path: Path) -> None:
    runs = {name: fake_run(seed=seed, studies=True) for seed, name in enumerate("abc")}
    runs["b"]["correlation"]["inside"][0][1] = 0.0
    runs["c"]["correlation"] |= {"labels": list("uvwxyz")}  # of other sizes
    (own,) = blocks(tmp_path, runs)[0].series
    labels, maps = studies.mean_correlation(own)
    assert maps["in domain"][0][1] == pytest.approx(runs["a"]["correlation"]["inside"][0][1] / 2)
    assert labels[0] == "6.25 %"
    image = studies.correlation(own).axes[0].images[0]
    np.testing.assert_allclose(image.get_array(), maps["in domain"])


@pytest.mark.parametrize("name", ["curves", "statistics", "lengths", "correlation", "selective", "cascade"])
def test_a_figure_of_the_least_there_can_be(tmp_path: Path, name: str) -> None:
    row = LEAST | {"inference": "mc", "repeat": 0, "fraction": 1.0, "bn_images": 8}
    one = fake_run() | {"tidy": [row, row | {"bn_images": 0}], "survival": {"a": [0.7]}}
    one |= {"correlation": {"labels": ["100 %"], "inside": [[None]], "outside": None}}
    curve = {"coverage": [1.0], "risk": [0.5]}
    one |= {"selective": {"risk": 0.05, "rows": [{"label": "100 %", "coverage": 0.0, "curve": curve}]}}
    one["cascade"] = {"levels": ["a"], "curve": [{"accuracy": 0.5, "macs": 9, "share": [1.0]}]}
    one["cascade"]["single"] = [{"label": "a", "accuracy": 0.5, "macs": 9}]
    (own,) = blocks(tmp_path, {"a": one})[0].series
    figure = {
        "curves": lambda: compare.curves([own], "accuracy"),
        "statistics": lambda: compare.statistics(own),
        "lengths": lambda: studies.tail_index(own),
        "correlation": lambda: studies.correlation(own),
        "selective": lambda: studies.selective([own]),
        "cascade": lambda: studies.cascade([own]),
    }[name]()
    figure.savefig(tmp_path / "figure.png", dpi=30)
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_report_of_one_run_of_the_least_there_can_be(tmp_path: Path) -> None:
    least = {"format": 1, "title": "t", "data": {"name": "d"}, "rows": [LEAST]}
    (run,) = write_runs(tmp_path, {"a": least})
    text = write([run], tmp_path / "out").read_text(encoding="utf-8")
    Reader(text)
    assert {path.stem for path in (tmp_path / "out" / "figures").iterdir()} == {"accuracy", "ece", "nll"}
    assert "None" not in words(text)
    assert "Comparison of 1 run<" in text
    assert ["unknown method", "100 %", "50.0 %", "10.0 %", "–", "10"] in lines(text)


def test_hostile_text_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "measured", lambda series, key: key == "accuracy")
    one = fake_run(
        HOSTILE + "m", network=HOSTILE + "n", data="../../" + HOSTILE, recipe=HOSTILE, run=HOSTILE, studies=True
    )
    one |= {"machine": HOSTILE, "ood": HOSTILE + "{other}", "survival": {HOSTILE: [1.0, 0.5]}}
    for row in (*one["tidy"], *one["selective"]["rows"]):
        row["label"] = HOSTILE + row["label"]
    for row in one["reliability"]:
        row["label"] = "$" + HOSTILE
    runs = write_runs(tmp_path, {"a": one, "b": fake_run()})
    text = write(runs, tmp_path / "out", "<b>$" + HOSTILE).read_text(encoding="utf-8")
    read = Reader(text)
    assert not {"script", "img"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    for said in (HOSTILE + "m", HOSTILE + "n", HOSTILE + "{other}", "<b>$" + HOSTILE):
        assert escape(said) in text
    assert all(path.parent == tmp_path / "out" / "figures" for path in (tmp_path / "out").rglob("*.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]


def test_hostile_names_stay_text_in_words_and_under_folds(tmp_path: Path) -> None:
    runs = {name: fake_run(HOSTILE + name, recipe=HOSTILE, run=HOSTILE) for name in "ab"} | {
        "c": fake_run(HOSTILE + "a")
    }
    (block,) = blocks(tmp_path, runs)
    assert len(block.series) == 3
    drawn = [plates.Plate("lengths", str(i), own.name, Figure()) for i, own in enumerate(block.series)]
    text = comparison.html([block], [drawn], {plate.name: "<svg></svg>" for plate in drawn})
    read = Reader(text)
    assert not {"script", "img"} & set(read.tags)
    assert f"<summary>{escape(block.series[1].name)}</summary>" in text
    assert "Right most often" in text


def test_each_data_set_and_network_is_a_block(tmp_path: Path) -> None:
    runs = {"a": fake_run(), "b": fake_run(network="mobilenet"), "c": fake_run(data="svhn"), "d": fake_run(seed=1)}
    found = blocks(tmp_path, runs)
    assert [(block.data, block.network, len(block.runs)) for block in found] == [
        *(("cifar10", "vgg11", 2), ("cifar10", "mobilenet", 1), ("svhn", "vgg11", 1)),
    ]
    assert plates.prefixes(found) == ["cifar10-vgg11-", "cifar10-mobilenet-", "svhn-vgg11-"]
    assert plates.prefixes(found[:1]) == [""]
    page = comparison.html(found, [[], [], []], {})
    for mark, name in (("block-1", "cifar10, vgg11"), ("block-3", "svhn, vgg11")):
        assert f'<a href="#{mark}">{name}</a>' in page
        assert f'<h2 class="block" id="{mark}">{name}</h2>' in page


def test_names_that_look_alike_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "measured", lambda series, key: False)
    (block,) = blocks(tmp_path, {"a": fake_run("m!"), "b": fake_run("m?")})
    assert [plate.name for plate in plates.of_block(block)] == ["reliability-m", "reliability-m-1"]


def test_the_folder_of_a_run_is_not_written_into(tmp_path: Path) -> None:
    (run,) = write_runs(tmp_path, {"a": fake_run()})
    with pytest.raises(
        ValueError, match=r"^report: out must not be a run's folder, whose report.html it would replace"
    ):
        write([run], run)


def test_runs_that_were_not_evaluated_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "measured", lambda series, key: False)
    write_runs(tmp_path / "runs", {"a": fake_run()})
    for name in ("b<i>", "c"):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "recipe.yaml").touch()
    said: list[str] = []
    text = write([tmp_path / "runs"], tmp_path / "out", say=said.append).read_text(encoding="utf-8")
    assert said == [f"report: left out, not evaluated: {tmp_path}/runs/b<i>, {tmp_path}/runs/c"]
    assert "<p>Left out: b&lt;i&gt;, c, not evaluated.</p>" in text
    assert json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))["left_out"] == ["b<i>", "c"]
    said.clear()
    whole = write([tmp_path / "runs" / "a"], tmp_path / "out", say=said.append).read_text(encoding="utf-8")
    assert said == []
    assert "Left out" not in whole


def test_a_bad_run_among_good_ones_writes_nothing(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, {"a": fake_run(), "b": {"format": 1}})
    for given in (runs, [tmp_path]):  # broken is not unfinished
        with pytest.raises(ValueError, match=r"/b/results.json: title is missing$"):
            write(given, tmp_path / "out")
    assert not (tmp_path / "out").exists()
