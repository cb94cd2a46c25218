"""`vnd.step_order` in a loop of one's own trains the order as the method BN³ does, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from vnd.methods import BN3, Step

STEPS, NUM_DATA, TEMPERATURE = 6, 600, 1.5


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))


def batches(count: int = 8) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(count, 1, 4, 4), torch.randint(3, (count,))) for _ in range(STEPS)]


def order(net: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for name, value in net.named_parameters() if name.endswith("keep_logits")]


def trained(net: nn.Module, step: Callable[[int, nn.Module, Tensor, Tensor], Tensor], data: list) -> list[Tensor]:
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(vnd.parameter_groups(net, lr=0.1))
    for index, (x, y) in enumerate(data):
        optimizer.zero_grad()
        step(index, net, x, y).backward()
        optimizer.step()
    return order(net)


def both(
    measure: Callable[[int], bool], method: BN3, count: int = 8, every: int = 1
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The order at the start, after steps of the method, and after those of a user's loop on batches of `count`."""
    net, data = method.build(plain(), torch.zeros(1, 1, 4, 4)).train(), batches(count)
    twin, start = copy.deepcopy(net), order(net)

    def of_method(index: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        step = Step(index=index, share=0.0, temperature=TEMPERATURE, kl_weight=1.0, num_data=NUM_DATA)
        method.prepare(net, (x, y), step, lambda value: value)
        return method.loss(net, (x, y), step).total

    def of_user(index: int, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        vnd.set_temperature(net, TEMPERATURE)
        order = vnd.step_order(net, lambda: F.cross_entropy(net(x[::every]), y[::every]), measure=measure(index))
        return F.cross_entropy(net(x), y) + vnd.kl(net) / NUM_DATA + order

    return start, trained(net, of_method, data), trained(twin, of_user, data)


def test_a_loop_of_ones_own_trains_the_order_as_the_method_does() -> None:
    start, ours, theirs = both(lambda index: index % 2 == 0, BN3(num_groups=4, measure_every=2))
    assert ours
    for before, a, b in zip(start, ours, theirs, strict=True):
        assert a.isfinite().all()
        assert not torch.equal(before, a)
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("count", "share", "every"),
    [(256, 0.25, 4), (256, 0.125, 8), (256, 0.01, 8), (256, 1.0, 1), (96, 0.25, 3), (63, 0.25, 1)],
)
def test_a_measurement_runs_on_its_share_of_the_batch_and_on_32_images_at_least(
    count: int, share: float, every: int
) -> None:
    method = BN3(num_groups=4, measure_every=2, measured_share=share)
    for tried in (every, every + 1):
        start, ours, theirs = both(lambda index: index % 2 == 0, method, count, tried)
        assert not any(torch.equal(a, b) for a, b in zip(start, ours, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)) == (tried == every)


def test_a_loop_that_does_not_measure_trains_another_order() -> None:  # or the law above would see nothing
    _, ours, theirs = both(lambda index: False, BN3(num_groups=4, measure_every=2))
    assert not all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_term_is_zero_and_its_gradient_is_that_of_the_table() -> None:
    net = BN3(num_groups=4).build(plain(), torch.zeros(1, 1, 4, 4)).train()
    (x, y), *_ = batches()
    term = vnd.step_order(net, lambda: F.cross_entropy(net(x), y))
    assert float(term.detach()) == 0
    term.backward()
    slopes = [unit.keep_logits.grad for unit in net.modules() if isinstance(unit, vnd.OrderingUnit)]
    assert sum(float(slope.abs().sum()) for slope in slopes if slope is not None) > 0


def test_a_network_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^step_order: no ordering unit of the network has gradient 'difference'"):
        vnd.step_order(plain(), lambda: torch.zeros(()))
