"""Networks of several sizes: every number is that of the files, and every curve is drawn where it is."""

import re
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from fake_runs import FULL, fake_run, suite
from pages import block, series, table_of

from vnd.metrics import Interval
from vnd.report import curves, html, sizes, style
from vnd.report.html import Cell, Items, Options, interval
from vnd.report.results import Column
from vnd.report.series import Block, Series

T2 = 4.302653  # Student's t of 0.975 with 2 degrees of freedom
PAGE, MARKDOWN = Options("page"), Options("markdown", sizes=(300_000, 1e7))


def column(own: Block | Series, key: str) -> Column:
    return own.columns[key]


def mean_of(runs: dict[str, Any], method: str, key: str, **wanted: Any) -> float:
    """A measure, averaged over repeats and then over runs, straight from the files."""
    found = []
    for one in runs.values():
        if one["method"]["key"] == method:
            own = [row[key] for row in one["tidy"] if all(row[name] == value for name, value in wanted.items())]
            found += [np.mean(own)] if own else []
    return float(np.mean(found))


def sized(
    method: str, seed: int, *points: tuple[Any, ...], run: str | None = None, inference: tuple[str, ...] = ("mc",)
) -> dict[str, Any]:
    """A run whose rows are (kind, parameters, accuracy, ece)."""
    one = fake_run(method, seed, inference=inference, fractions=(1.0,), run=run or f"{method}-{seed}")
    row, largest = one["tidy"][0], max(point[1] for point in points)
    one["tidy"] = [
        row
        | {"kind": kind, "parameters": parameters, "macs": 40 * parameters, "accuracy": right, "ece": off}
        | {"label": f"{kind} {parameters}", "fraction": parameters / largest if kind == "uniform" else None}
        | {"inference": way}
        for way in inference
        for kind, parameters, right, off in points
    ]
    return one


# Who is best where


def test_the_summary_has_the_numbers_of_the_files() -> None:
    runs = suite(full=False)
    (part,) = sizes.summary(block(*runs.values()), PAGE)
    tables = [table_of(part, at)[1] for at in range(4)]
    table = [[re.sub(r" ±.*", "", cell) for cell in line] for lines in tables for line in lines]
    for name, method, way in (("BN³", "bn3", "mc"), ("DT-BN³", "bn3", "mean"), ("FN³-TS", "fn3", "temperature_scaled")):
        for label, size in (("100 %", "9.23 M"), ("25 %", "0.611 M"), ("6.25 %", "46.9 k")):
            which = {"inference": way, "label": label, "bn_images": 1024}
            shares = [mean_of(runs, method, key, **which) for key in ("accuracy", "ece", "auroc")]
            assert [name, label, *(f"{100 * share:.1f} %" for share in shares), size] in table
    shown = {line[0]: line for line in table_of(part, 3)[1]}
    assert list(shown) == ["BN³-MC", "SVB"]  # no width that others have as well
    assert "†" in shown["SVB"][2]  # over repeats


@pytest.mark.parametrize(
    ("values", "verdict"), [((0.90, 0.91, 0.80, 0.81), "overlap"), ((0.9, 0.9001, 0.80, 0.8001), "apart")]
)
def test_a_verdict_is_by_intervals(values: tuple[float, ...], verdict: str) -> None:
    runs = [fake_run("bn3" if at < 2 else "fn3", at % 2) for at in range(4)]
    for one, value in zip(runs, values, strict=True):
        one["tidy"][-1]["accuracy"] = value
    for some, wanted in ((runs, verdict), (runs[:3], "single")):
        found = block(*some)
        (best, point), (other, second) = sizes.best_of(found, sizes.places(found)["full"], column(found, "accuracy"))
        assert (best.name, other.name) == ("BN³", "FN³")
        assert sizes.verdict(point.measures["accuracy"], second.measures["accuracy"]) == wanted


def test_scaled_answers_are_not_called_more_often_right() -> None:
    found = block(fake_run("fn3", inference=("mc", "temperature_scaled")), fake_run("us_net", lift=0.1))
    points = sizes.places(found)["quarter"]
    names = [
        [own.name for own, _ in sizes.best_of(found, points, column(found, key))][:2] for key in ("accuracy", "ece")
    ]
    assert names == [["FN³", "US-Net"], ["FN³-TS", "US-Net"]]
    alone = block(fake_run("fn3"), fake_run("us_net", inference=("temperature_scaled",)))  # read in no other way
    assert len(curves.over_sizes(alone.series, column(alone, "accuracy")).axes[0].lines) == 2


def test_less_is_better_of_errors() -> None:
    found = block(fake_run("bn3"), fake_run("fn3"))
    for key in ("ece", "nll", "accuracy"):
        assert sizes.best_of(found, sizes.places(found)["smallest"], column(found, key))[0][0].name == "BN³"


def test_the_efficiency_table_says_what_is_used() -> None:
    found = {name: (point, used) for name, point, used in sizes.efficiencies(block(*suite(full=False).values()))}
    assert list(found)[:5] == ["smallest BN³", "smallest learned BN³", "SVB", "BN³-MC", "full BN³"]
    used = {name: used for name, (_, used) in found.items()}
    assert used["smallest BN³"] == f"{100 * 46_871 / FULL:.3g} %"
    assert (used["SVB"], used["full BN³"], used["BN³-MC"]) == ("5.7 %", "100 %", "47 ± 27 %")  # SVB: of the dense one
    (part,) = sizes.efficiency(block(*suite(full=False).values()), PAGE)
    assert part.content[0].note == "By chance, AUPR would be 72.2 %."


def test_the_time_table_sums_over_widths() -> None:
    found = block(*suite(full=False).values())
    took = {own.name: sizes.training_time(own) for own in found.series}
    assert (took["IBNN"], took["BN³"]) == ((2700, 3), (905, 1))
    (part,) = sizes.times(found, PAGE)
    lines = {line[0]: line for line in table_of(part)[1]}
    assert lines["IBNN"] == [
        "IBNN",
        "45 min N = 3",
        "2.34 s (100 %)",
        "draws of the weights",
        "NVIDIA H200, torch 2.13.0",
    ]
    assert (lines["DT-BN³"][2], lines["FN³"][3]) == ("0.39 s (100 %)", "one pass")


def test_withheld_answers_are_those_of_the_files() -> None:
    runs = suite(full=False)
    table = curves.withheld(block(*runs.values()))
    lines = {(line[0], line[1]): line for line in table.lines}
    share = mean(runs[f"bn3-{seed}"]["selective"]["rows"][2]["coverage"] for seed in (0, 1))
    assert lines["BN³", "25 %"][3].text == f"{100 * share:.1f} %"
    assert lines["BN³", "6.25 %"][4] == Cell("–")
    assert "(no threshold in 2 of 2)" in lines["BN³", "6.25 %"][3].small


def test_numbers_are_written_with_their_intervals() -> None:
    found, share = Interval(0.9, 0.875, 0.925, 3), Column("a", "A", "percent", 1)
    assert interval(found, share) == Cell("90.0 %", "± 2.5")
    assert interval(found, share, "repeats") == Cell("90.0 %", "± 2.5†")
    assert interval(found, Column("a", "A")) == Cell("0.900", "± 0.025")
    assert interval(Interval(0.9, 0.9, 0.9, 1), share) == Cell("90.0 %")
    assert interval(None, share) == Cell("–")


# Figures


def test_the_points_of_a_curve_are_drawn_where_they_are() -> None:
    own, _ = series(fake_run(learned=2, inference=("mc", "mc_mask")))
    left, right = curves.over_sizes([own], column(own, "accuracy")).axes
    points = own.of("uniform")
    np.testing.assert_allclose(left.lines[0].get_xdata(), [point.fraction for point in points])
    np.testing.assert_allclose(left.lines[0].get_ydata(), [100 * point.measures["accuracy"].mean for point in points])
    np.testing.assert_allclose(right.lines[0].get_xdata(), [point.parameters for point in points])
    np.testing.assert_allclose(right.lines[1].get_xdata(), [point.parameters for point in own.of("learned")])


def test_a_band_is_the_interval_as_far_as_it_can_be() -> None:
    (own,) = series(fake_run(seed=0), fake_run(seed=1))
    left, _ = curves.over_sizes([own], column(own, "ece")).axes
    band = left.collections[0].get_paths()[0].vertices
    assert any(point.measures["ece"].low < 0 for point in own.points)  # t over two seeds is 12.7
    for point in own.points:
        edges, found = band[np.isclose(band[:, 0], point.fraction), 1], point.measures["ece"]
        assert [min(edges), max(edges)] == pytest.approx([max(0, 100 * found.low), 100 * found.high])
    means = [100 * point.measures["ece"].mean for point in own.points]
    low, high = left.get_ylim()
    assert min(means) - (max(means) - min(means)) < low < min(means) < max(means) < high < 2 * max(means)


def test_every_number_of_images_is_a_line_and_its_spread_a_band() -> None:
    one = fake_run(statistics=(0, 64), repeats=3)
    (own,) = series(one)
    assert curves.image_counts(own) == [64, 1024, 0]
    axis, _ = curves.draw_statistics(own).axes
    assert [line.get_label() for line in axis.lines] == ["64 images", "1,024 images", "all images"]
    rows = [row for row in one["tidy"] if row["bn_images"] == 64 and row["fraction"] == 1.0]
    edges = axis.collections[0].get_paths()[0].vertices
    at_full = edges[np.isclose(edges[:, 0], 1.0), 1]
    wanted = [100 * end(row["accuracy"] for row in rows) for end in (min, max)]
    assert [min(at_full), max(at_full)] == pytest.approx(wanted)


def test_lengths_are_differences_of_survival() -> None:
    one = fake_run()
    one["survival"] = {"first": [1.0, 1.0, 0.75, 0.25]}
    geometric, uniform, first = curves.tail_index(series(one)[0]).axes
    assert [bar.get_height() for bar in first.patches] == pytest.approx([0, 0, 0.25, 0.5, 0.25])
    assert [bar.get_height() for bar in uniform.patches] == pytest.approx([0.2] * 5)
    assert geometric.patches[0].get_height() == pytest.approx(0.1)
    for fixed in ([0.75, 0.5, 0.25], [1.0, 1.0, 1.0]):  # uniform lengths, and no choice at all
        one["survival"] = {"first": fixed}
        assert curves.learned_layers(series(one)[0]) == {}


def test_correlations_are_means_over_runs() -> None:
    runs = [fake_run(seed=seed, studies=True) for seed in range(3)]
    runs[1]["correlation"]["inside"][0][1] = 0.0
    runs[2]["correlation"] |= {"labels": list("uvwxyz")}  # of other sizes
    labels, maps = curves.mean_correlation(series(*runs)[0])
    assert maps["in domain"][0][1] == pytest.approx(runs[0]["correlation"]["inside"][0][1] / 2)
    image = curves.heat_maps(labels, maps, "a").axes[0].images[0]
    np.testing.assert_allclose(image.get_array(), maps["in domain"])


def test_a_legend_of_many_series_leaves_the_curves_their_room(tmp_path: Any) -> None:
    names = [f"bn3 of a rather long name and number {number}" for number in range(30)]
    found, heights = block(*(fake_run(name, fractions=(0.5, 1.0), learned=2) for name in names)), []
    for some in (found.series[:3], found.series):
        figure = curves.over_sizes(some, column(found, "ece"))
        figure.savefig(tmp_path / "figure.png", dpi=100)
        (key,) = figure.legends
        place, left = key.get_window_extent(), figure.axes[0].get_window_extent()
        assert (place.x1 <= figure.bbox.x1, place.y0 >= left.y1) == (True, True)
        heights.append(left.height / figure.dpi)
    assert heights[1] == pytest.approx(heights[0], abs=0.3)
    assert len({look[:2] for look in style.looks(found.series[:21]).values()}) == 21  # also of points without a line


@pytest.mark.parametrize("name", fake_run()["sections"])
def test_the_least_there_can_be_is_drawn(name: str, tmp_path: Any) -> None:
    row = {"kind": "uniform", "label": "100 %", "parameters": 10, "accuracy": 0.5, "nll": 1.0, "ece": 0.1}
    row |= {"inference": "mc", "repeat": 0, "fraction": 1.0, "bn_images": 8}
    one = fake_run() | {"rows": [row], "tidy": [row, row | {"bn_images": 0}], "survival": {"a": [0.7]}}
    one |= {"correlation": {"labels": ["100 %"], "inside": [[None]], "outside": None}}
    curve = {"coverage": [1.0], "risk": [0.5]}
    one |= {"selective": {"risk": 0.05, "rows": [{"label": "100 %", "coverage": 0.0, "curve": curve}]}}
    one["cascade"] = {"levels": ["a"], "curve": [{"accuracy": 0.5, "macs": 9, "share": [1.0]}]}
    one["cascade"]["single"] = [{"label": "a", "accuracy": 0.5, "macs": 9}]
    for view, make in html.SECTIONS[name].items():
        for part in make(block(one), Options(view, sizes=(100.0,))):
            for drawing in part.drawings:
                drawing.draw().savefig(tmp_path / f"{drawing.name}.png", dpi=20)


def test_captions_say_which_of_several_trainings_is_shown() -> None:
    runs = [fake_run(seed=seed, learned=1, studies=True) for seed in (0, 1)]
    many, once = block(*runs), block(runs[0])
    for make, at in (
        (curves.survival, 0),
        (curves.trust, 0),
        (curves.trust, 1),
        (curves.reliability, 0),
        (curves.correlation, 0),
    ):
        assert "Of several trainings" in make(many, PAGE)[at].note
        assert "Of several trainings" not in make(once, PAGE)[at].note


# Methods at the same number of parameters


def check_budget(choose: Any) -> None:
    """The largest network that fits, though a smaller one is more accurate, and none that is above."""
    (own,) = series(sized("fn3", 0, ("uniform", 100, 0.9, 0), ("uniform", 200, 0.8, 0), ("uniform", 300, 0.95, 0)))
    for size, wanted in ((299, 200), (300, 300), (200, 200), (199.9, 100), (100, 100)):
        assert choose(own, ("uniform",), size).parameters == wanted
    assert choose(own, ("uniform",), 99) is None


def test_the_largest_network_that_fits_is_taken_not_the_most_accurate() -> None:
    check_budget(sizes.within)


@pytest.mark.parametrize("key", [lambda p, size: p.measures["accuracy"].mean, lambda p, size: -p.parameters])
def test_another_choice_is_caught(key: Any) -> None:
    def choose(own: Series, kinds: Any, size: float) -> Any:
        return max((p for p in own.points if p.parameters <= size), key=lambda p: key(p, size), default=None)

    with pytest.raises(AssertionError):
        check_budget(choose)


def test_learned_shapes_are_taken_where_there_are_some_and_never_above_the_size_in_any_run() -> None:
    shapes = [(190, 0.80), (210, 0.84), (205, 0.85)]
    runs = [
        sized(
            "bn3", seed, ("uniform", 200, 0.99, 0), ("learned", 100, 0.7 + seed / 100, 0), ("learned", size, right, 0)
        )
        for seed, (size, right) in enumerate(shapes)
    ]
    found = sizes.within(series(*runs)[0], ("uniform", "learned"), 200)  # of the second shapes one fits
    assert found is not None
    assert sorted(row["parameters"] for rows in found.rows for row in rows) == [100, 100, 190]
    values, said = [0.80, 0.71, 0.72], found.measures["accuracy"]
    assert (said.mean, said.high - said.mean) == pytest.approx((mean(values), T2 * stdev(values) / 3**0.5), abs=1e-7)


def test_runs_without_a_network_so_small_are_not_counted() -> None:
    (own,) = series(*(sized("fn3", seed, ("uniform", size, 0.5, 0)) for seed, size in enumerate((100, 300))))
    found = sizes.within(own, ("uniform",), 200)
    assert found is not None
    assert (found.seeds, found.parameters) == (1, 100)


def test_one_training_a_size_is_one_row_and_learned_shapes_are_another() -> None:
    runs = [
        sized("plain", seed, (kind, size, right + seed / 100, 0.01), run=f"p{kind}{size}-{seed}")
        for seed in (0, 1)
        for kind, size, right in (("uniform", 100, 0.7), ("uniform", 400, 0.9), ("learned", 150, 0.8))
        if (seed, size) != (1, 100)
    ]
    for one in runs:  # a share each, as separate trainings have
        row = one["tidy"][0]
        row["fraction"] = {100: 0.5, 400: 1.0}.get(row["parameters"])
    whole, shaped = sizes.budget_lines(block(*runs))
    assert (whole[0], shaped[0]) == ("plain", "plain at learned shapes")
    fits = [sizes.within(*whole[1:], 200), sizes.within(*whole[1:], 400), sizes.within(*shaped[1:], 200)]
    assert [fit.measures["accuracy"].mean for fit in fits] == pytest.approx([0.7, 0.905, 0.805])
    assert [fit.measures["accuracy"].count for fit in fits] == [1, 2, 2]
    assert sizes.within(*shaped[1:], 149) is None
    head, lines = table_of(sizes.budget(block(*runs), MARKDOWN)[0])
    assert [line[head.index("Worst ECE")].split()[-1] for line in lines] == ["100", "150"]


def test_random_masks_fit_no_size() -> None:
    name, own, kinds = sizes.budget_lines(block(fake_run("bn3", inference=("mc", "mc_mask"))))[1]
    assert (name, sizes.within(own, kinds, 1e12)) == ("BN³-MC", None)


def test_the_table_of_methods_names_the_worst_calibrated_size() -> None:
    one = sized("bn3", 0, ("uniform", 100, 0.9, 0.02), ("uniform", 200, 0.8, 0.05), ("learned", 300, 0.9, 0.03))
    head, lines = table_of(sizes.budget(block(one), MARKDOWN)[0])
    assert lines[0][head.index("Worst ECE")] == "5.00 uniform 200"
    assert lines[0][head.index("Worst ECE, learned shapes")] == "3.00 learned 300"
    assert lines[0][head.index("≤ 10 M")] == "90.00 300"


def test_the_headline_is_the_method_given_first_read_as_it_was_asked_for_first() -> None:
    found = block(fake_run("us_net"), fake_run("bn3", inference=("mc", "mean")))
    assert [own.name for own in found.series] == ["BN³", "DT-BN³", "US-Net"]
    assert sizes.headline(found).name == "US-Net"


def test_a_reference_is_the_twin_of_its_own_shape_only() -> None:
    bn3 = [
        sized(
            "bn3",
            seed,
            ("learned", 100 + seed, 0.8 + seed / 100, 0),
            ("learned", 200, 0.9, 0),
            ("learned", 300, 0.9, 0),
        )
        for seed in (0, 1, 2)
    ]
    pairs = ((100, 0.79), (101, 0.82), (200, 0.95))
    others = [sized("plain", 0, ("learned", size, right, 0), run=f"p{size}") for size, right in pairs]
    others.append(sized("plain", 1, ("learned", 200, 0.93, 0), run="p200-1"))
    others.append(sized("plain", 0, ("learned", 300, 0.5, 0), run="p300"))
    others[-1]["tidy"][0]["macs"] = 1  # as many parameters, but another shape
    found = block(*bn3, *others)
    few, one, none = (sizes.twin(found, found.series[0], point) for point in found.series[0].points)
    assert none is None
    assert few is not None
    assert one is not None
    assert (few[0].mean, few[1].mean) == (pytest.approx(0.805), pytest.approx(0, abs=1e-12))
    assert (few[1].count, few[2]) == (2, 2)  # that of seed 2 has none
    assert (one[0].mean, one[0].count) == (pytest.approx(0.94), 2)  # over the seeds of the reference
    assert (one[1].mean, one[1].count) == (pytest.approx(-0.04), 1)


def test_the_methods_are_explained_by_what_their_files_say() -> None:
    (part,) = sizes.summary(block(fake_run("bn3", inference=("mc", "mean")), fake_run("mine")), PAGE)
    said = {
        line[0].text: line[1].text for one in part.content if isinstance(one, Items) and one.fold for line in one.lines
    }
    assert said["BN³"].startswith("Bayesian nested network")
    assert said["DT-BN³"].endswith("Here: one pass with the means of the weights, not averaged over draws.")
    assert said["mine"] == "The method “mine”."
