"""Series: which runs are one, what they are called, and their points and intervals."""

from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from fake_runs import fake_run

from vnd.report import series as module
from vnd.report.runs import Run
from vnd.report.series import Series, group


def made(*results: dict[str, Any]) -> list[Run]:
    names = ("method", "recipe", "network", "data", "seed")
    return [
        Run(
            Path("results.json"),
            one["series"]["run"],
            *(one["series"][name] for name in names),
            tuple(one["tidy"]),
            one,
        )
        for one in results
    ]


def names(*results: dict[str, Any]) -> list[str]:
    return [own.name for own in group(made(*results))]


def rows(result: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in result["tidy"] if all(row[key] == value for key, value in wanted.items())]


def only(*results: dict[str, Any]) -> Series:
    (found,) = group(made(*results))
    return found


def test_display_names() -> None:
    every = ("samples", "means", "masks", "scaled")
    assert names(fake_run("bn3", readings=every)) == ["BN³", "DT-BN³", "BN³-MC", "BN³-TS"]
    assert names(fake_run("fn3", readings=("means", "scaled"))) == ["FN³", "FN³-TS"]
    assert names(fake_run("fn3", readings=("samples", "means"))) == ["FN³"]  # weights that are not drawn
    assert names(fake_run("ibnn", readings=("samples", "means"))) == ["IBNN", "DT-IBNN"]
    others = [fake_run(method) for method in ("mine", "plain", "us_net", "ordered_l0", "svb")]
    assert names(*others) == ["SVB", "ordered ℓ0", "US-Net", "plain", "mine"]


def test_runs_that_differ_in_their_seed_are_one_series() -> None:
    own = only(fake_run(seed=0), fake_run(seed=1), fake_run(seed=2))
    assert (own.name, len(own.runs)) == ("BN³", 3)


def test_runs_of_two_recipes_are_told_apart_by_them() -> None:
    runs = [fake_run(seed=seed, recipe=recipe) for seed in (0, 1) for recipe in ("c10/bn3", "c10/sandwich")]
    assert names(*runs) == ["BN³ (bn3)", "BN³ (sandwich)"]
    assert [len(own.runs) for own in group(made(*runs))] == [2, 2]


def test_runs_with_one_seed_and_recipe_are_told_apart_by_their_folder() -> None:
    assert names(fake_run(run="a"), fake_run(run="b")) == ["BN³ (a)", "BN³ (b)"]
    assert names(fake_run(run="a"), fake_run(run="a")) == ["BN³", "BN³ (no. 2)"]
    assert names(fake_run(seed=None, run="a"), fake_run(seed=None, run="b")) == ["BN³ (a)", "BN³ (b)"]


@pytest.mark.parametrize("method", ["ibnn", "plain"])
def test_one_training_a_width_is_one_curve(method: str) -> None:
    runs = [
        fake_run(method, seed, fractions=(share,), recipe=f"{method}-{share}")
        for share in (1.0, 0.25)
        for seed in (0, 1)
    ]
    own = only(*runs)
    assert [point.fraction for point in own.points] == [0.25, 1.0]
    assert [point.measures["accuracy"].count for point in own.points] == [2, 2]
    twin = fake_run(method, 0, fractions=(1.0,), recipe="other")
    assert len(group(made(*runs, twin))) == 3  # the recipes tell them apart after all


def test_own_shapes_of_plain_networks_are_points_of_their_own() -> None:
    runs = [fake_run("plain", seed, fractions=(0.5,)) for seed in (0, 1, 0)]
    for one, size in zip(runs, (100, 100, 300), strict=True):
        one["tidy"][0] |= {"kind": "learned", "label": "own shape", "fraction": None, "parameters": size}
    assert [(point.parameters, point.measures["nll"].count) for point in only(*runs).points] == [(100, 2), (300, 1)]


def test_an_interval_is_students_over_seeds_after_repeats_are_averaged() -> None:
    runs = [fake_run(seed=seed, repeats=2) for seed in (0, 1, 2)]
    point = only(*runs).points[-1]
    means = [mean(row["accuracy"] for row in rows(one, label="100 %")) for one in runs]
    reach = 4.302653 * stdev(means) / 3**0.5  # t of 0.975 with 2 degrees of freedom
    found = point.measures["accuracy"]
    assert (point.over, found.count) == ("seeds", 3)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (mean(means), mean(means) - reach, mean(means) + reach), abs=1e-9
    )


def test_an_interval_of_one_run_is_over_its_repeats_and_called_so() -> None:
    one = fake_run(repeats=3)
    point = only(one).points[0]
    values = [row["ece"] for row in rows(one, label="6.25 %")]
    reach = 4.302653 * stdev(values) / 3**0.5
    found = point.measures["ece"]
    assert (point.over, found.count) == ("repeats", 3)
    assert (found.mean, found.high) == pytest.approx((mean(values), mean(values) + reach), abs=1e-9)


def test_one_run_without_repeats_has_no_interval() -> None:
    point = only(fake_run()).points[0]
    found = point.measures["accuracy"]
    assert (point.over, found.count) == ("", 1)
    assert found.low == found.mean == found.high == fake_run()["tidy"][0]["accuracy"]


def test_points_are_those_of_the_first_number_of_calibration_images() -> None:
    one = fake_run(statistics=(0, 64))
    own = only(one)
    assert len(own.points) == 6
    assert own.points[0].measures["nll"].mean == rows(one, calibration=1024)[0]["nll"]
    assert len(module.read_as(own.runs[0], "samples", 64)) == 6


def test_learned_shapes_of_runs_meet_by_rank_though_they_are_called_otherwise() -> None:
    own = only(fake_run(seed=0, learned=3), fake_run(seed=1, learned=3))
    learned = own.of("learned")
    assert [point.measures["accuracy"].count for point in learned] == [2, 2, 2]
    uneven = only(fake_run(seed=0, learned=3), fake_run(seed=1, learned=2)).of("learned")
    assert sum(point.measures["accuracy"].count for point in uneven) == 5  # by label, where ranks say nothing


def test_the_full_network_is_the_largest_of_the_runs_with_its_zeros() -> None:
    assert [own.full for own in group(made(fake_run(readings=("samples", "masks"))))] == [9_230_000] * 2
    assert only(fake_run("svb", fractions=(1.0,))).full == 9_230_000


def test_a_measure_that_some_rows_lack_is_of_the_others() -> None:
    runs = [fake_run(seed=0), fake_run(seed=1)]
    for row in runs[0]["tidy"]:
        row.pop("auroc")
        row["aupr"] = None
    for row in runs[1]["tidy"]:
        row.pop("aupr")
    point = only(*runs).points[0]
    assert point.measures["auroc"].count == 1
    assert "aupr" not in point.measures


def test_the_main_reading_is_the_one_that_was_asked_for_first() -> None:
    one = fake_run(readings=("samples", "masks")) | {"readings": ["masks", "samples"]}
    assert [(own.name, own.main) for own in group(made(one))] == [("BN³", False), ("BN³-MC", True)]


def test_parts_of_separate_trainings_are_put_together() -> None:
    runs = [fake_run("ibnn", seed, fractions=(share,)) for share in (0.5, 1.0) for seed in (0, 1)]
    for one in runs:
        label = one["tidy"][0]["label"]
        one["selective"] = {"risk": 0.05, "rows": [{"label": label, "coverage": one["series"]["seed"]}]}
        one["reliability"] = [{"label": label}]
    own = only(*runs)
    assert own.parts("selective") == [{"label": "50 %", "coverage": 0}, {"label": "100 %", "coverage": 0}]
    assert own.parts("reliability") == [{"label": "50 %"}, {"label": "100 %"}]
