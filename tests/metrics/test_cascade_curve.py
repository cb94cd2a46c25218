"""The cascade curve: a loop over images, known answers, its ends, refused input."""

import math

import pytest
import torch
from torch import Tensor

from vnd import metrics


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
