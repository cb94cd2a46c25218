"""Cascades: the curve and the thresholds against a loop over images, known answers, ends, refused input."""

import inspect
import itertools
import math
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from vnd import metrics
from vnd.metrics import uncertainty


def steps(rows: int = 60, count: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sharpness = torch.arange(1.0, count + 1)[:, None, None]
    probs = (sharpness * torch.randn(count, rows, 4, generator=generator, dtype=torch.float64)).softmax(2)
    uncertainty = -(probs * probs.log()).sum(2)
    return probs, uncertainty, torch.tensor([1.0, 4.0, 16.0])[:count], torch.randint(4, (rows,), generator=generator)


def by_hand(given: tuple[Tensor, Tensor, Tensor, Tensor], threshold: float, last_only: bool = False) -> tuple:
    """Image by image; `last_only` is the planted fault of charging only the step that answers."""
    probs, uncertainty, costs, labels = (each.tolist() for each in given)
    right, spent, answered = 0, 0.0, [0] * len(costs)
    for n, label in enumerate(labels):
        for step in range(len(costs)):
            if not last_only:
                spent += costs[step]
            if uncertainty[step][n] <= threshold or step == len(costs) - 1:
                break
        spent += costs[step] if last_only else 0
        right += max(range(4), key=probs[step][n].__getitem__) == label
        answered[step] += 1
    return right / len(labels), spent / len(labels), [count / len(labels) for count in answered]


@pytest.mark.parametrize("count", [1, 3])
def test_the_curve_is_what_a_loop_over_images_finds(count: int) -> None:
    given = steps(count=count)
    curve = metrics.cascade_curve(*given)
    for i, threshold in enumerate(curve.threshold.tolist()):
        accuracy, cost, share = by_hand(given, threshold)
        assert float(curve.accuracy[i]) == pytest.approx(accuracy, abs=1e-13)
        assert float(curve.cost[i]) == pytest.approx(cost, abs=1e-12)
        assert curve.share[i].tolist() == pytest.approx(share, abs=1e-13)
    assert {each.dtype for each in vars(curve).values()} == {torch.float64}


def test_charging_only_the_level_that_answers_would_be_noticed() -> None:
    given, threshold = steps(), 0.5
    cost = float(metrics.cascade_curve(*given, torch.tensor([threshold])).cost)
    assert cost == pytest.approx(by_hand(given, threshold)[1])
    assert cost != pytest.approx(by_hand(given, threshold, last_only=True)[1])


def test_the_ends_of_the_curve_are_the_first_and_the_last_level() -> None:
    probs, uncertainty, costs, labels = steps(rows=500)
    curve = metrics.cascade_curve(probs, uncertainty, costs, labels)
    assert len(curve.threshold) == 51
    assert curve.threshold.isfinite().all()
    assert (curve.threshold.diff() > 0).all()
    assert curve.share[0].tolist() == [0, 0, 1]
    assert curve.share[-1].tolist() == [1, 0, 0]
    assert (float(curve.cost[0]), float(curve.cost[-1])) == (21, 1)
    assert (curve.cost.diff() <= 0).all()
    for end, step in ((0, 2), (-1, 0)):
        assert float(curve.accuracy[end]) == pytest.approx(float(metrics.accuracy(probs[step], labels)), abs=1e-15)


def test_equal_uncertainties_are_accepted_together() -> None:
    probs, _, costs, labels = steps(rows=4)
    curve = metrics.cascade_curve(probs, torch.tensor([[1, 1, 1, 2], [0, 0, 0, 0], [0, 0, 0, 0]]), costs, labels)
    assert curve.threshold.tolist() == [-1, 0, 1, 2]  # of both steps that may pass an image on
    assert curve.share.tolist() == [[0, 0, 1], [0, 1, 0], [0.75, 0.25, 0], [1, 0, 0]]
    assert curve.cost.tolist() == [21, 5, 2, 1]


def test_a_constant_uncertainty_leaves_the_two_ends() -> None:
    probs, uncertainty, costs, labels = steps()
    curve = metrics.cascade_curve(probs, torch.zeros_like(uncertainty), costs, labels)
    assert curve.threshold.tolist() == [-1, 0]
    assert curve.cost.tolist() == [21, 1]


def test_thresholds_come_back_in_the_order_given() -> None:
    given = steps()
    curve = metrics.cascade_curve(*given, torch.tensor([math.inf, 0.5, -math.inf]))
    assert curve.threshold.tolist() == [math.inf, 0.5, -math.inf]
    assert curve.share[0].tolist() == [1, 0, 0]
    assert curve.share[2].tolist() == [0, 0, 1]


def test_the_order_of_the_images_does_not_matter_and_input_is_left_alone() -> None:
    probs, uncertainty, costs, labels = steps()
    before = uncertainty.clone()
    curve = metrics.cascade_curve(probs, uncertainty, costs, labels)
    assert torch.equal(uncertainty, before)
    order = torch.randperm(60)
    again = metrics.cascade_curve(probs[:, order], uncertainty[:, order], costs, labels[order])
    for name, value in vars(curve).items():
        assert torch.allclose(getattr(again, name), value, rtol=0, atol=1e-13)


# -- thresholds -------------------------------------------------------------------------------------------------------


def walked(given: tuple[Tensor, Tensor, Tensor, Tensor], limits: tuple[float, ...]) -> tuple[float, float]:
    """Accuracy and mean cost, image by image, of a cascade with a threshold for each step but the last."""
    probs, uncertainty, costs, labels = (each.tolist() for each in given)
    right, spent = 0, 0.0
    for n, label in enumerate(labels):
        for step, limit in enumerate([*limits, math.inf]):
            spent += costs[step]
            if uncertainty[step][n] <= limit:
                right += max(range(4), key=probs[step][n].__getitem__) == label
                break
    return right / len(labels), spent / len(labels)


def cheapest(given: tuple[Tensor, Tensor, Tensor, Tensor], loss: float) -> tuple[float, float]:
    """Accuracy and cost of the cheapest of all cascades, one after the other."""
    probs, uncertainty, _, labels = given
    best = max(float((step.argmax(1) == labels).double().mean()) for step in probs)
    tried = [
        walked(given, limits) for limits in itertools.product(*([-math.inf, *u.tolist()] for u in uncertainty[:-1]))
    ]
    cost = min(cost for accuracy, cost in tried if accuracy >= best - loss - 1e-12)
    return max(accuracy for accuracy, other in tried if other <= cost + 1e-9 and accuracy >= best - loss - 1e-12), cost


def sharper(rows: int, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Steps of which the later are right more often, and surer where they are."""
    probs, _, costs, labels = steps(rows, count, seed)
    signal = torch.nn.functional.one_hot(labels, 4).double() * torch.arange(1.0, count + 1)[:, None, None]
    probs = (probs.log() / 4 + signal).softmax(2)
    return probs, -(probs * probs.log()).sum(2), costs, labels


def check_thresholds(call: Any) -> None:
    cases = [(1, 0.0), (2, 0.0), (2, 0.1), *[(3, 0.0), (3, 0.07)] * 6]
    for prices in ([1.0, 2.0, 10.0], [1.0, 10.0, 2.0]):  # both images to the second step, or one to the third
        right = torch.tensor([[0, 0], [1, 0], [0, 1]])
        unsure = torch.tensor([[0.1, 0.9], [0.5, 0.4], [0.0, 0.0]])
        given = torch.eye(4)[right].double(), unsure, torch.tensor(prices), torch.ones(2, dtype=torch.long)
        assert walked(given, call(*given)) == pytest.approx(cheapest(given, 0.0), abs=1e-6)
    for seed, (count, loss) in enumerate(cases):
        given = sharper(30, count, seed)
        if seed >= 9:  # other prices, and none: then all cascades cost the same, and the most accurate is wanted
            given[2].copy_(torch.tensor([1.0, 9.0, 2.0]) * (seed < 12))
        limits = call(*given, loss)
        assert len(limits) == count - 1
        assert walked(given, limits) == pytest.approx(cheapest(given, loss), abs=1e-12)


def test_the_thresholds_are_those_of_the_cheapest_of_all_cascades() -> None:
    check_thresholds(metrics.cascade_thresholds)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("+= price * arriving", "+= arriving"),
        ("right.sum(1).max()", "right.sum(1).min()"),
        ("- math.floor(loss", "+ math.floor(loss"),
        ("else below.narrow(dim, size - 1, 1) - below", "else below"),
        ("accepted=step < len(sizes)", "accepted=False"),
        ("correct, -1).argmax()", "-correct, -rows - 1).argmax()"),
        ("[torch.cat((none, own.sort().values[places])", "[torch.cat((none, own.sort().values[places // 2])"),
    ],
)
def test_faulty_thresholds_are_caught(right: str, wrong: str) -> None:
    source = inspect.getsource(uncertainty)
    assert source.count(right) == 1, "the fault is planted nowhere, or in several places"
    faulty = types.ModuleType(uncertainty.__name__)
    exec(compile(source.replace(right, wrong), "faulty thresholds", "exec"), faulty.__dict__)
    with pytest.raises((AssertionError, RuntimeError)):
        check_thresholds(faulty.cascade_thresholds)


def test_a_step_that_is_the_best_alone_answers_all() -> None:
    _, _, costs, labels = steps()
    perfect = torch.nn.functional.one_hot(labels, 4).double()
    for place, wanted in ((0, 1.0), (1, 5.0), (2, 21.0)):
        each = torch.stack([perfect if step == place else perfect.roll(1, 1) for step in range(3)])
        given = each, torch.zeros(3, 60), costs, labels
        assert walked(given, metrics.cascade_thresholds(*given)) == (1.0, wanted)


def test_many_steps_try_fewer_thresholds_but_choose_some() -> None:
    probs, uncertainty, _, labels = sharper(200, 3, 0)
    given = probs.repeat(3, 1, 1), uncertainty.repeat(3, 1), torch.arange(1.0, 10), labels
    accuracy, cost = walked(given, metrics.cascade_thresholds(*given))
    assert accuracy >= max(float((step.argmax(1) == labels).double().mean()) for step in probs)
    assert cost < 45


@pytest.mark.parametrize("loss", [-0.1, 1.5, math.nan])
def test_a_loss_that_is_no_share_is_refused(loss: float) -> None:
    with pytest.raises(ValueError, match="cascade_thresholds: loss must"):
        metrics.cascade_thresholds(*steps(), loss)
