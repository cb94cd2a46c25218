"""Methods at the same number of parameters: which network counts, against hand-made rows."""

from statistics import mean, stdev
from typing import Any

import pytest
from fake_runs import fake_run
from test_series import made

from vnd.report import budget
from vnd.report.budget import Line, headline, lines, twins, within
from vnd.report.series import group
from vnd.report.summary import Block

T2 = 4.302653  # Student's t of 0.975 with 2 degrees of freedom


def sized(
    method: str, seed: int, *sizes: tuple[Any, ...], run: str | None = None, inference: tuple[str, ...] = ("mc",)
) -> dict[str, Any]:
    """A run whose rows are (kind, parameters, accuracy, ece)."""
    one = fake_run(method, seed, inference=inference, fractions=(1.0,), run=run or f"{method}-{seed}")
    row, largest = one["tidy"][0], max(size[1] for size in sizes)
    one["tidy"] = [
        row
        | {"kind": kind, "parameters": parameters, "macs": 40 * parameters, "accuracy": right, "ece": off}
        | {"label": f"{kind} {parameters}", "fraction": parameters / largest if kind == "uniform" else None}
        | {"inference": reading}
        for reading in inference
        for kind, parameters, right, off in sizes
    ]
    return one


def block(*runs: dict[str, Any]) -> Block:
    found = made(*runs)
    return Block("cifar10", "vgg11", tuple(found), tuple(group(found)))


def line(*runs: dict[str, Any], at: int = 0) -> Line:
    return lines(block(*runs))[at]


def check_budget(chosen: Any) -> None:
    """The largest network that fits, though a smaller one is more accurate, and none that is above."""
    own = line(sized("fn3", 0, ("uniform", 100, 0.9, 0), ("uniform", 200, 0.8, 0), ("uniform", 300, 0.95, 0)))
    for size, wanted in ((299, 200), (300, 300), (200, 200), (199.9, 100), (100, 100)):
        found = chosen(own, size)
        assert (found.point.parameters, found.high) == (wanted, wanted)
    assert chosen(own, 99) is None


def test_the_largest_network_that_fits_is_taken_not_the_most_accurate() -> None:
    check_budget(within)


@pytest.mark.parametrize(
    "key",
    [
        lambda row: row["accuracy"],  # the most accurate
        lambda row: -row["parameters"],  # the smallest
    ],
)
def test_another_choice_is_caught(key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(rows: list[dict[str, Any]], kind: str, size: float) -> list[dict[str, Any]]:
        return sorted((row for row in rows if row["parameters"] <= size), key=key)[-1:]

    monkeypatch.setattr(budget, "_largest", other)
    with pytest.raises(AssertionError):
        check_budget(within)


def test_a_choice_above_the_size_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        budget, "_largest", lambda rows, kind, size: [min(rows, key=lambda r: abs(r["parameters"] - size))]
    )
    with pytest.raises((AssertionError, AttributeError)):
        check_budget(within)


def test_learned_shapes_are_taken_where_there_are_some_and_never_above_the_size_in_any_run() -> None:
    sizes = [(190, 0.80), (210, 0.84), (205, 0.85)]
    runs = [
        sized(
            "bn3", seed, ("uniform", 200, 0.99, 0), ("learned", 100, 0.7 + seed / 100, 0), ("learned", size, right, 0)
        )
        for seed, (size, right) in enumerate(sizes)
    ]
    found = within(line(*runs), 200)  # the mean of the second shapes would be 201.7, and one of them fits
    assert found is not None
    assert (found.low, found.high, found.runs) == (100, 190, 3)
    values = [0.80, 0.71, 0.72]
    said = found.point.measures["accuracy"]
    assert (said.mean, said.high - said.mean) == pytest.approx((mean(values), T2 * stdev(values) / 3**0.5), abs=1e-7)


def test_runs_without_a_network_so_small_are_not_counted() -> None:
    runs = [sized("fn3", seed, ("uniform", size, 0.5, 0)) for seed, size in enumerate((100, 300))]
    found = within(line(*runs), 200)
    assert found is not None
    assert (found.runs, found.point.measures["accuracy"].count, found.high) == (1, 1, 100)


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
    whole, shaped = lines(block(*runs))
    assert (whole.name, shaped.name) == ("plain", "plain at learned shapes")
    narrow, wide, learned = within(whole, 200), within(whole, 400), within(shaped, 200)
    assert None not in (narrow, wide, learned)
    assert [fit.point.measures["accuracy"].mean for fit in (narrow, wide, learned)] == pytest.approx(
        [0.7, 0.905, 0.805]
    )
    assert [fit.point.measures["accuracy"].count for fit in (narrow, wide, learned)] == [1, 2, 2]
    assert within(shaped, 149) is None
    assert budget.full(shaped) is None
    full = budget.full(whole)
    assert full is not None
    assert full.parameters == 400


def test_the_full_network_of_one_training_a_size_must_be_of_the_full_width() -> None:
    one = sized("ibnn", 0, ("uniform", 100, 0.7, 0))
    assert budget.full(line(one)) is not None
    one["tidy"][0]["fraction"] = 0.5
    assert budget.full(line(one)) is None


def test_random_masks_fit_no_size() -> None:
    own = line(fake_run("bn3", inference=("mc", "mc_mask")), at=1)
    assert (own.name, within(own, 1e12)) == ("BN³-MC", None)
    assert budget.full(own) is own.points[0]


def test_the_worst_calibration_is_that_of_the_worst_size() -> None:
    own = line(sized("bn3", 0, ("uniform", 100, 0.9, 0.02), ("uniform", 200, 0.8, 0.05), ("learned", 300, 0.9, 0.03)))
    every, learned = budget.worst(own), budget.worst(own, "learned")
    assert None not in (every, learned)
    assert (every.label, learned.label, budget.worst(own, "sampled")) == ("uniform 200", "learned 300", None)


def test_the_headline_is_the_method_given_first_read_as_it_was_asked_for_first() -> None:
    runs = [fake_run("us_net"), fake_run("bn3", inference=("mc", "mean"))]
    first, second = made(*runs)
    second = second.__class__(**{**second.__dict__, "path": first.path.with_name("other")})
    found = Block("a", "b", (first, second), tuple(group([first, second])))
    assert [own.name for own in found.series] == ["BN³", "DT-BN³", "US-Net"]
    assert headline(found).name == "US-Net"


def test_a_plain_network_is_the_twin_of_its_own_shape_only() -> None:
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
    plain = [
        sized("plain", 0, ("learned", size, right, 0), run=f"p{size}")
        for size, right in ((100, 0.79), (101, 0.82), (200, 0.95))
    ]
    plain.append(sized("plain", 1, ("learned", 200, 0.93, 0), run="p200-1"))
    plain.append(sized("plain", 0, ("learned", 300, 0.5, 0), run="p300"))
    plain[-1]["tidy"][0]["macs"] = 1  # as many parameters, but another shape
    found = block(*bn3, *plain)
    few, one, none = twins(found, found.series[0])
    assert None not in (few, one)
    assert none is None
    assert few.runs == 2  # that of seed 2 has none
    assert few.accuracy.mean == pytest.approx((0.79 + 0.82) / 2)
    assert few.gain.mean == pytest.approx((0.01 - 0.01) / 2, abs=1e-12)
    assert few.gain.count == 2
    assert (one.accuracy.mean, one.accuracy.count) == (pytest.approx(0.94), 2)  # over the seeds of the plain network
    assert (one.gain.mean, one.gain.count) == (pytest.approx(-0.04), 1)
