"""Planted faults: each is a sampler that is subtly wrong, and the check that must notice it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from examples import ORDERINGS, Ordering
from laws import samplers
from laws.samplers import LEVEL, log_probs, relaxed
from laws.statistics import (
    ENERGY_SAMPLES,
    GAP,
    Sampler,
    chi_square_size,
    detectable_mmd,
    lengths_of,
    mean_distance,
    one_sample_size,
    two_sample_size,
)
from vnd.distributions import BernoulliChain, Downhill
from vnd.functional import length_mask, suffix_sum

COLD = next(s for s in ORDERINGS if s.name == "uniform" and s.n == 8 and s.temperature == 0.1)
PAPER = next(s for s in ORDERINGS if s.name == "paper")
FALLING = Ordering("falling", (1.5, 0.5, -0.5), 0.7)


def released(ordering: Ordering) -> Downhill:
    """The authors' released code: probabilities where log-probabilities belong."""
    return Downhill(ordering.temperature, length_logits=log_probs(ordering).exp().float())


def from_scores(
    ordering: Ordering, scores: Callable[[Tensor, Tensor], Tensor], temperature: float | None = None
) -> Sampler:
    """A relaxed sampler with its own way to combine log-probabilities and Gumbel noise."""
    log_q = log_probs(ordering)

    def sampler(size: int) -> Tensor:
        noise = -torch.empty(size, log_q.numel(), dtype=log_q.dtype).exponential_().log()
        c = torch.softmax(scores(log_q, noise) / (temperature or ordering.temperature), -1)
        return suffix_sum(c[:, 1:]).clamp(max=1.0)

    return sampler


def right(log_q: Tensor, noise: Tensor) -> Tensor:
    return log_q + noise


def shifted(sampler: Sampler) -> Sampler:
    """1 − cumsum with the index of the wrong end: z_i = 1 − Σ_{j ≤ i} c_j loses the first increment's unit."""

    def wrong(size: int) -> Tensor:
        z = sampler(size)
        return torch.cat((z[:, 1:], torch.zeros_like(z[:, :1])), -1)

    return wrong


def test_the_ground_truth_of_the_faulty_samplers_passes() -> None:
    samplers.check_descents(from_scores(FALLING, right), FALLING)


MASK_FAULTS = {
    "probabilities-as-logits": lambda s: lambda size: released(s).rsample((size,), hard=True),
    "probabilities-as-logits-at-the-paper's-initial-value": lambda s: (
        lambda size: released(PAPER).rsample((size,), hard=True)
    ),
    "length-one-too-long": lambda s: (
        lambda size: length_mask((lengths_of(s.chain().sample((size,))) + 1).clamp(max=s.n), s.n)
    ),
    "length-one-too-short": lambda s: (
        lambda size: s.chain().sample((size,)).roll(-1, -1) * (torch.arange(s.n) < s.n - 1)
    ),
    "independent-units": lambda s: lambda size: torch.bernoulli(s.chain().mean.expand(size, -1)),
    "keep-probabilities-as-logits": lambda s: lambda size: BernoulliChain(s.chain().keep_probs).sample((size,)),
    "survival-as-conditional": lambda s: lambda size: BernoulliChain(keep_probs=s.chain().mean).sample((size,)),
}


@pytest.mark.parametrize("fault", MASK_FAULTS)
def test_faulty_masks_are_caught(fault: str) -> None:
    ordering = PAPER if "paper" in fault else FALLING
    with pytest.raises(AssertionError, match=r"lengths: |masks: "):
        samplers.check_masks(MASK_FAULTS[fault](ordering), ordering)


DESCENT_FAULTS = {
    "probabilities-as-logits": (lambda s: lambda size: released(s).rsample((size,)), "lengths"),
    "index-shifted": (lambda s: shifted(relaxed(s)), "lengths"),
    "gumbel-of-the-wrong-sign": (lambda s: from_scores(s, lambda log_q, noise: log_q - noise), "lengths"),
    "logistic-for-gumbel-noise": (
        lambda s: from_scores(s, lambda log_q, noise: log_q + noise - noise.roll(1, 0)),
        "lengths",
    ),
    "noise-after-the-temperature": (
        lambda s: from_scores(s, lambda log_q, noise: log_q + s.temperature * noise),
        "lengths",
    ),
    "temperature-ignored": (lambda s: from_scores(s, right, temperature=1.0), "marginals"),
    "temperature-5-percent-off": (lambda s: from_scores(s, right, temperature=1.05 * s.temperature), "marginals"),
    "hard-instead-of-soft": (lambda s: lambda size: s.downhill().rsample((size,), hard=True), "marginals"),
}


@pytest.mark.parametrize("fault", DESCENT_FAULTS)
def test_faulty_descents_are_caught(fault: str) -> None:
    sampler, by = DESCENT_FAULTS[fault]
    check = samplers.check_descent_lengths if by == "lengths" else samplers.check_descent_marginals
    with pytest.raises(AssertionError, match=f"{by}: "):
        check(sampler(FALLING), FALLING)


def test_noise_that_is_not_held_below_the_given_length_is_caught() -> None:
    def unconditional(size: int) -> Tensor:
        length = torch.from_numpy(
            samplers.reference.lengths(np.array(FALLING.keep_logits), size, np.random.default_rng(size))
        )
        noise = -torch.empty(size, FALLING.n + 1).exponential_().log()
        top = -torch.empty(size, 1).exponential_().log()
        log_q = log_probs(FALLING).float()
        scores = (log_q + noise).scatter(1, length.unsqueeze(-1), top)
        return suffix_sum(torch.softmax(scores / FALLING.temperature, -1)[:, 1:]).clamp(max=1.0)

    with pytest.raises(AssertionError, match="lengths: "):
        samplers.check_descent_lengths(unconditional, FALLING)
    with pytest.raises(AssertionError, match="marginals: "):
        samplers.check_descent_marginals(unconditional, FALLING)


@pytest.mark.parametrize("temperature", [2.04, 1.96])
def test_a_temperature_two_percent_off_is_caught_by_the_closed_form(temperature: float) -> None:
    ordering = samplers.warm(FALLING)
    with pytest.raises(AssertionError, match="marginals: KS"):
        samplers.check_log_ratios(from_scores(ordering, right, temperature=temperature), ordering)


def permuted(ordering: Ordering) -> Sampler:
    """Every coordinate has its law; together they are no descent."""
    sampler = relaxed(ordering)
    return lambda size: torch.stack([column[torch.randperm(size)] for column in sampler(size).unbind(-1)], -1)


def test_a_destroyed_joint_is_caught_by_the_energy_and_by_nothing_else() -> None:
    samplers.check_descent_marginals(permuted(COLD), COLD)
    with pytest.raises(AssertionError, match="joint: "):
        samplers.check_descent_joint(permuted(COLD), COLD)


def test_the_energy_has_the_power_to_see_a_destroyed_joint() -> None:
    x, y = (sampler(4000).double() / COLD.n**0.5 for sampler in (relaxed(COLD), permuted(COLD)))
    mmd = (mean_distance(x, y) - 0.5 * (mean_distance(x, x) + mean_distance(y, y))) ** 0.5
    assert mmd > detectable_mmd(ENERGY_SAMPLES, LEVEL / 3)


def gapped(ordering: Ordering, gap: float) -> Sampler:
    """All coordinates 1 in a share `gap` of the samples: distribution functions that part by nearly `gap`."""
    sampler = relaxed(ordering)
    return lambda size: torch.where(torch.rand(size, 1) < gap, 1.0, sampler(size))


def test_a_gap_of_one_percent_is_caught_by_ks() -> None:
    ordering = Ordering("short", (-4.0,), 1.0)
    share = GAP / float(torch.special.expit(torch.tensor(9.0 + 4.0)))  # F at the last threshold
    with pytest.raises(AssertionError, match="marginals: "):
        samplers.check_descent_marginals(gapped(ordering, share), ordering)
    with pytest.raises(AssertionError, match="marginals: "):
        samplers.check_log_ratios(gapped(ordering, share), ordering)


def test_a_gap_of_one_percent_in_the_lengths_is_caught_by_chi_square() -> None:
    even = Ordering("uniform", tuple(float(np.log(k)) for k in range(10, 0, -1)), 1.0)
    probs = log_probs(even).exp()
    probs[:5] += GAP / 5
    probs[5:] -= GAP / 6
    chain = BernoulliChain.from_length_probs(probs)
    with pytest.raises(AssertionError, match="lengths: "):
        samplers.check_masks(lambda size: chain.sample((size,)), even)


CODE_FAULTS = {
    "scale-as-variance": ("scale", torch.sqrt),
    "scale-ignored": ("scale", torch.ones_like),
    "means-reversed": ("loc", lambda loc: loc.flip(-1)),
}


@pytest.mark.parametrize("fault", CODE_FAULTS)
def test_faulty_codes_are_caught(fault: str) -> None:
    code = FALLING.ordered_normal()
    name, change = CODE_FAULTS[fault]
    setattr(code, name, change(getattr(code, name)))
    with pytest.raises(AssertionError, match="marginals: "):
        samplers.check_codes(samplers.coded(code), FALLING)


def test_a_gate_over_the_base_dimensions_is_caught() -> None:
    code = FALLING.ordered_normal()
    with pytest.raises(AssertionError, match="codes: a base dimension is zero"):
        samplers.check_codes(lambda size: code.rsample((size,), hard=True).roll(1, -1), FALLING)


def test_codes_that_are_correlated_are_caught_by_the_energy() -> None:
    ordering = Ordering("full", (8.0,) * 3, 1.0)
    code = ordering.ordered_normal()

    def correlated(size: int) -> Tensor:
        noise = torch.randn(size, 1)
        mask = code.gate.rsample((size,), hard=True)
        return (code.loc + code.scale * noise) * torch.cat((torch.ones(size, 1), mask), -1)

    with pytest.raises(AssertionError, match="joint: "):
        samplers.check_codes(correlated, ordering)


@pytest.mark.parametrize("comparisons", [1, 32, 32 * len(ORDERINGS)])
def test_the_sample_sizes_give_the_stated_power(comparisons: int) -> None:
    """Exact binomials at the point of the gap, for the worst place of it, 1/2: no bound involved."""
    level = 1e-6 / comparisons
    size = one_sample_size(level)
    assert 2.8e5 < size < 3.6e5
    threshold = np.sqrt(np.log(2 / level) / (2 * size))
    assert stats.binom.cdf(np.ceil(size * (0.5 + threshold)), size, 0.5 + GAP) <= 1e-6

    size = two_sample_size(level)
    threshold, std = np.sqrt(np.log(2 / level) / size), np.sqrt(0.5 / size)
    assert stats.norm.cdf((threshold - GAP) / std) <= 1e-6

    cells = 33
    size = chi_square_size(cells, level)
    assert stats.ncx2.cdf(stats.chi2.isf(level, cells - 1), cells - 1, 4 * size * GAP**2) <= 1e-6
