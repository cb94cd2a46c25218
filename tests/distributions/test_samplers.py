"""Each sampler has the law that its parameters claim: chi-square, KS and energy, over every parameter set."""

import pytest
import torch

from examples import ORDERINGS, Ordering
from laws import samplers
from laws.samplers import closed_form_sets, given, relaxed, warm
from vnd.distributions import BernoulliChain, Downhill

FAST = [ORDERINGS[k] for k in (0, 5, 11)]


def over(orderings: list[Ordering], fast: list[Ordering]):
    """All the sets, of which those that are not among the fast ones run with the long tests."""
    return pytest.mark.parametrize(
        "ordering",
        [pytest.param(s, marks=() if s in fast else pytest.mark.statistical) for s in orderings],
        ids=str,
    )


def test_there_are_at_least_twenty_parameter_sets() -> None:
    assert len(ORDERINGS) >= 20
    assert len(set(ORDERINGS)) == len(ORDERINGS)
    assert len(closed_form_sets()) >= 20


@over(ORDERINGS, FAST)
def test_chain_samples_follow_the_length_probabilities(ordering: Ordering) -> None:
    chain = ordering.chain()
    samplers.check_masks(lambda size: chain.sample((size,)), ordering)


@over(ORDERINGS, FAST)
def test_hard_downhill_samples_follow_the_length_probabilities(ordering: Ordering) -> None:
    downhill = ordering.downhill()
    samplers.check_masks(lambda size: downhill.rsample((size,), hard=True), ordering)


@over(ORDERINGS, FAST)
def test_soft_downhill_samples_follow_the_law(ordering: Ordering) -> None:
    samplers.check_descents(relaxed(ordering), ordering)


@over(ORDERINGS, FAST)
def test_samples_with_given_lengths_follow_the_law_of_rsample(ordering: Ordering) -> None:
    samplers.check_descents(given(ordering.downhill(), ordering), ordering)


@over(ORDERINGS, FAST)
def test_hard_samples_with_given_lengths_are_the_masks_of_those_lengths(ordering: Ordering) -> None:
    length = torch.randint(ordering.n + 1, (1000,))
    z = ordering.downhill().rsample_given(length, hard=True)
    assert torch.equal(z, (torch.arange(ordering.n) < length.unsqueeze(-1)).float())


@over(closed_form_sets(), [warm(s) for s in FAST])
def test_log_ratios_of_increments_are_logistic(ordering: Ordering) -> None:
    samplers.check_log_ratios(relaxed(ordering, torch.float64), ordering)


@over(closed_form_sets(), [warm(s) for s in FAST])
def test_log_ratios_with_given_lengths_are_logistic(ordering: Ordering) -> None:
    samplers.check_log_ratios(given(ordering.downhill(torch.float64), ordering), ordering)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("logit", [0.0, -2.0, 8.0])
def test_a_single_unit_is_logistic_in_its_logit_at_every_temperature(logit: float, temperature: float) -> None:
    ordering = Ordering("single", (logit,), temperature)
    samplers.check_log_ratios(relaxed(ordering, torch.float64), ordering)


@over(ORDERINGS, FAST)
def test_ordered_codes_follow_the_law(ordering: Ordering) -> None:
    samplers.check_codes(samplers.coded(ordering.ordered_normal()), ordering)


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_batched_parameters_are_sampled_each_from_its_own_law(hard: bool) -> None:
    rows = [s for s in ORDERINGS if s.n == 3]
    temperatures = torch.tensor([s.temperature for s in rows])
    downhill = Downhill(temperatures, torch.stack([s.logits() for s in rows]))
    for row, ordering in enumerate(rows):
        samplers.check_descent_lengths(lambda size, row=row: downhill.rsample((size,), hard=hard)[:, row], ordering)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@over(ORDERINGS, FAST)
def test_samples_on_an_accelerator_follow_the_law(ordering: Ordering) -> None:
    logits = ordering.logits().cuda()
    chain, downhill = BernoulliChain(logits), Downhill(ordering.temperature, logits)
    samplers.check_masks(lambda size: chain.sample((size,)), ordering)
    samplers.check_masks(lambda size: downhill.rsample((size,), hard=True), ordering)
    samplers.check_descents(lambda size: downhill.rsample((size,)).cpu(), ordering)
