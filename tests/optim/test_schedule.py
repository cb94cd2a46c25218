"""Schedules: known values, warm-up, and what is true of all of them."""

import math
from dataclasses import FrozenInstanceError
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vnd.optim import Schedule, value

STEPS = 100

# At the first step, in the middle, and at the last step of 100.
KNOWN = {
    "constant": (Schedule("constant", 2.0, 0.5), (2.0, 2.0, 2.0)),
    "linear": (Schedule("linear", 2.0, 1.0), (2.0, 1.5, 1.01)),
    "linear, rising": (Schedule("linear", 0.0, 1.0), (0.0, 0.5, 0.99)),
    "cosine": (Schedule("cosine", 1.0, 0.0), (1.0, 0.5, 0.0002467198171342)),
    "cosine to a floor": (Schedule("cosine", 3.0, 1.0), (3.0, 2.0, 1 + 2 * 0.0002467198171342)),
    "exponential": (Schedule("exponential", 1.0, 0.01), (1.0, 0.1, 0.01**0.99)),
    "steps": (Schedule("steps", 0.5, step_size=2, gamma=0.1), (0.5, 0.005, 0.00005)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_each_kind_has_its_values(name: str) -> None:
    schedule, expected = KNOWN[name]
    epochs = {0: 0, 50: 5, 99: 9}  # of ten steps each
    assert [value(schedule, step, STEPS, epoch) for step, epoch in epochs.items()] == pytest.approx(expected, rel=1e-12)


def test_steps_fall_at_the_end_of_every_so_many_epochs() -> None:
    schedule = Schedule("steps", 1.0, step_size=150, gamma=0.1)
    found = [value(schedule, 10 * epoch, 6000, epoch) for epoch in (0, 149, 150, 299, 300, 449, 450, 599)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_steps_fall_at_milestones() -> None:
    schedule = Schedule("steps", 1.0, step_size=7, gamma=0.1, milestones=(20, 30, 40, 50))
    found = [value(schedule, 10 * epoch, 500, epoch) for epoch in (0, 19, 20, 29, 30, 40, 49)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.001, 0.001])


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "exponential", "steps"])
def test_a_warmup_rises_in_equal_steps_from_above_zero_to_the_start(kind: Any) -> None:
    schedule = Schedule(kind, 2.0, 0.1, warmup=0.25)
    found = [value(schedule, step, 16, 0) for step in range(16)]
    assert found[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert max(found) == 2.0


@pytest.mark.parametrize(("warmup", "steps", "rising"), [(0.55, 100, 55), (0.1, 30, 3), (0.3, 10, 3), (0.01, 10, 1)])
def test_a_warmup_is_as_long_as_it_says(warmup: float, steps: int, rising: int) -> None:
    # 0.55 · 100 is 55.00000000000001 in floating point
    found = [value(Schedule("constant", 1.0, warmup=warmup), step, steps, 0) for step in range(steps)]
    assert sum(x < 1 for x in found) == rising


def test_the_end_is_reached_after_the_last_step() -> None:
    for kind in ("linear", "cosine"):
        assert value(Schedule(kind, 1.0, 0.25, warmup=0.5), 8, 8, 0) == pytest.approx(0.25)


def test_a_schedule_is_a_pure_function_of_the_step() -> None:
    schedule = Schedule("cosine", 1.0, 0.0, warmup=0.2)
    forth = [value(schedule, step, STEPS, 0) for step in range(STEPS)]
    back = [value(schedule, step, STEPS, 0) for step in reversed(range(STEPS))]
    assert forth == back[::-1]
    with pytest.raises(FrozenInstanceError):
        schedule.start = 2.0  # type: ignore[misc]


POSITIVE = st.floats(1e-6, 1e3)


@given(
    st.sampled_from(["constant", "linear", "cosine", "exponential", "steps"]),
    POSITIVE,
    POSITIVE,
    st.floats(0, 0.99),
    st.integers(1, 200),
)
def test_values_rise_in_the_warmup_then_go_one_way_between_start_and_end(
    kind: Any, start: float, end: float, warmup: float, steps: int
) -> None:
    schedule = Schedule(kind, start, end, warmup=warmup, step_size=3, gamma=0.5)
    found = [value(schedule, step, steps, epoch=step // 10) for step in range(steps)]
    assert all(map(math.isfinite, found))
    rising = math.ceil(warmup * steps - 1e-9)
    warm, rest = found[:rising], found[rising:]
    assert all(x > 0 for x in warm)
    if kind != "steps":
        assert all(a < b for a, b in pairwise(warm))
        assert all(x < start for x in warm)
    low, high = (0.0, start) if kind == "steps" else (start, start) if kind == "constant" else sorted((start, end))
    slack = 1e-9 * max(start, end)
    assert all(low - slack <= x <= high + slack for x in rest)
    falling = kind == "steps" or end <= start
    assert all((b <= a + slack) if falling else (b >= a - slack) for a, b in pairwise(rest))
