"""Series: which runs are one, what they are called, and their points and intervals."""

from statistics import mean, stdev
from typing import Any

import pytest
from fake_runs import fake_run
from pages import made

from vnd.report.series import Series, group, rows_of


def names(*results: dict[str, Any]) -> list[str]:
    return [own.name for own in group(made(*results))]


def rows(result: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in result["tidy"] if all(row[key] == value for key, value in wanted.items())]


def only(*results: dict[str, Any]) -> Series:
    (found,) = group(made(*results))
    return found


def test_display_names() -> None:
    every = ("mc", "mean", "mc_mask", "temperature_scaled")
    assert names(fake_run("bn3", inference=every)) == ["BN³", "DT-BN³", "BN³-MC", "BN³-TS"]
    assert names(fake_run("fn3", inference=("mean", "temperature_scaled"))) == ["FN³", "FN³-TS"]
    assert names(fake_run("fn3", inference=("mc", "mean"))) == ["FN³"]  # weights that are not drawn
    assert names(fake_run("ibnn", inference=("mc", "mean"))) == ["IBNN", "DT-IBNN"]
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


def tried(rate: float, seed: int, method: str = "bn3", share: float | None = None, says: bool = True) -> dict[str, Any]:
    """A run of a grid of rates, as a sweep calls its folder; `says`, whether its file has its settings."""
    width = "" if share is None else f"-fraction={share}"
    return fake_run(
        method,
        seed,
        fractions=(0.5, 1.0) if share is None else (share,),
        recipe=f"c10/{method}",
        run=f"c10-{method}-start={rate:g}{width}-{seed}-f8ee065{seed}",
        settings=f"{rate}" if says else None,
    )


def test_runs_of_equal_settings_are_one_series_whatever_their_seed() -> None:
    found = group(made(*(tried(rate, seed) for rate in (0.1, 1e-5) for seed in (0, 1))))
    assert [own.name for own in found] == ["BN³ (start=0.1)", "BN³ (start=1e-05)"]
    assert [point.measures["accuracy"].count for own in found for point in own.points] == [2] * 4
    assert {point.over for own in found for point in own.points} == {"seeds"}


def test_runs_of_other_settings_are_no_repetition_though_their_seeds_differ() -> None:
    found = group(made(tried(0.1, 0), tried(0.2, 1)))
    assert [own.name for own in found] == ["BN³ (start=0.1)", "BN³ (start=0.2)"]
    assert [point.over for own in found for point in own.points] == [""] * 4
    older = group(made(tried(0.1, 0, says=False), tried(0.2, 1, says=False)))
    assert [len(own.runs) for own in older] == [2]  # what the key is for: nothing else tells these apart


def test_settings_are_told_apart_by_recipe_where_recipes_differ() -> None:
    runs = [fake_run(recipe=f"c10/bn3{end}", settings=end or "s", run=f"x{end}-0-f8ee0651") for end in ("", "-wide")]
    assert names(*runs) == ["BN³", "BN³ (wide)"]
    runs += [fake_run(recipe="c10/bn3", settings="t", run="x-rate=2-0-f8ee0652")]
    assert names(*runs) == ["BN³", "BN³ (wide)", "BN³ (rate=2)"]
    assert names(*(fake_run(settings=hint, run="x-0") for hint in "abc")) == ["BN³", "BN³ (no. 2)", "BN³ (no. 3)"]


def test_the_same_run_evaluated_twice_is_no_repetition() -> None:
    found = group(made(tried(0.1, 0), tried(0.1, 0), tried(0.2, 0)))
    assert [own.name for own in found] == ["BN³ (start=0.1)", "BN³ (start=0.1, no. 2)", "BN³ (start=0.2)"]
    assert {point.over for own in found for point in own.points} == {""}


@pytest.mark.parametrize("method", ["ibnn", "plain"])
def test_widths_of_other_settings_are_not_one_curve(method: str) -> None:
    runs = [tried(rate, seed, method, share) for rate in (0.1, 0.2) for share in (0.5, 1.0) for seed in (0, 1)]
    found = group(made(*runs))
    assert [own.name.partition(" (")[2] for own in found] == ["start=0.1)", "start=0.2)"]
    assert [(p.fraction, p.measures["nll"].count) for own in found for p in own.points] == [(0.5, 2), (1.0, 2)] * 2
    apart = group(made(tried(0.1, 0, method, 0.5), tried(0.2, 0, method, 1.0)))
    assert [len(own.points) for own in apart] == [1, 1]


def test_files_with_and_without_settings_are_not_one() -> None:
    found = group(made(tried(0.1, 0), tried(0.1, 1), tried(0.2, 0, says=False), tried(0.2, 1, says=False)))
    assert [(own.name, len(own.runs)) for own in found] == [("BN³ (start=0.1)", 2), ("BN³ (start=0.2)", 2)]


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
    assert own.points[0].measures["nll"].mean == rows(one, bn_images=1024)[0]["nll"]
    assert len(rows_of(own.runs[0], "mc", 64)) == 6


def test_learned_shapes_of_runs_meet_by_rank_though_they_are_called_otherwise() -> None:
    own = only(fake_run(seed=0, learned=3), fake_run(seed=1, learned=3))
    learned = own.of("learned")
    assert [point.measures["accuracy"].count for point in learned] == [2, 2, 2]
    uneven = only(fake_run(seed=0, learned=3), fake_run(seed=1, learned=2)).of("learned")
    assert sum(point.measures["accuracy"].count for point in uneven) == 5  # by label, where ranks say nothing


def test_the_full_network_is_the_largest_of_the_runs_with_its_zeros() -> None:
    assert [own.dense for own in group(made(fake_run(inference=("mc", "mc_mask"))))] == [9_230_000] * 2
    assert only(fake_run("svb", fractions=(1.0,))).dense == 9_230_000


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
    one = fake_run(inference=("mc", "mc_mask")) | {"inference": ["mc_mask", "mc"]}
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


def test_parts_are_those_of_the_first_run() -> None:
    runs = [fake_run(seed=seed) for seed in (0, 1, 2)]
    for one, labels in zip(runs, ("", "ab", "bc"), strict=True):
        one["reliability"] = [{"label": label} for label in labels]
    assert only(*runs).parts("reliability") == [{"label": "a"}, {"label": "b"}]
