"""Laws of the Downhill and of ordered codes, for parameters of all kinds."""

import copy
import itertools
import pickle
import warnings

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor
from torch.distributions import kl_divergence

from laws import strategies
from laws.statistics import increments
from vnd.distributions import BernoulliChain, Downhill, OrderedNormal

close = torch.testing.assert_close


def cold(temperature: float, **parameters: Tensor) -> Downhill:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Downhill(temperature, **parameters)


@given(
    strategies.any_keep_logits, strategies.temperature, strategies.seed, st.sampled_from([torch.float64, torch.float32])
)
def test_samples_descend_from_one_to_zero(logits: Tensor, temperature: float, seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    downhill = Downhill(temperature, logits.to(dtype))
    for hard in (False, True):
        z = downhill.rsample((20,), hard=hard)
        assert z.dtype == dtype
        assert z.isfinite().all()
        assert (z >= 0).all()
        assert (z <= 1).all()
        assert (z[:, 1:] <= z[:, :-1]).all()
        assert downhill.support.check(z).all()


@given(strategies.keep_logits, strategies.seed)
def test_soft_samples_become_the_hard_ones_as_the_temperature_falls(logits: Tensor, seed: int) -> None:
    """With the same noise; what the largest step leaves over never grows as τ falls, and is nothing in the limit."""
    remainders = []
    for temperature in (1.0, 0.1, 0.01, 1e-9):
        torch.manual_seed(seed)
        soft = cold(temperature, keep_logits=logits).rsample((50,))
        torch.manual_seed(seed)
        hard = cold(temperature, keep_logits=logits).rsample((50,), hard=True)
        assert soft.isfinite().all()
        remainders.append(1 - increments(soft).amax(-1))
    for warm, cool in itertools.pairwise(remainders):
        assert (cool <= warm + 1e-12).all()
    assert (soft - hard).abs().max() < 1e-6


@given(strategies.keep_logits, strategies.temperature, strategies.seed)
def test_the_hard_sample_is_the_largest_step_of_the_soft_one(logits: Tensor, temperature: float, seed: int) -> None:
    torch.manual_seed(seed)
    soft = Downhill(temperature, logits).rsample((50,))
    torch.manual_seed(seed)
    hard = Downhill(temperature, logits).rsample((50,), hard=True)
    steps = increments(soft)
    at_length = steps.gather(-1, hard.sum(-1, keepdim=True).long())
    assert (at_length >= steps.amax(-1, keepdim=True) - 1e-12).all()


@given(strategies.any_keep_logits, strategies.temperature)
def test_the_chain_of_the_zero_temperature_limit_has_the_same_lengths(logits: Tensor, temperature: float) -> None:
    downhill = Downhill(temperature, logits)
    assert torch.equal(downhill.chain.length_log_probs, downhill.length_log_probs)
    by_lengths = Downhill(temperature, length_logits=downhill.length_log_probs)
    assert not by_lengths.keep_logits.isnan().any()
    close(by_lengths.chain.length_log_probs.exp(), downhill.length_log_probs.exp(), rtol=1e-9, atol=1e-12)


@given(strategies.vectors(strategies.any_logit, 2), strategies.temperature)
def test_kl_is_that_of_the_chains_at_every_temperature(pair: list[Tensor], temperature: float) -> None:
    q, p = (Downhill(temperature, x) for x in pair)
    expected = kl_divergence(BernoulliChain(pair[0]), BernoulliChain(pair[1]))
    assert kl_divergence(q, p) == kl_divergence(q, p.chain) == expected >= 0
    assert kl_divergence(q, q) == 0


@given(strategies.any_keep_logits, strategies.temperature, st.integers(1, 4))
def test_expand_equals_repeating(logits: Tensor, temperature: float, times: int) -> None:
    expanded, repeated = Downhill(temperature, logits).expand((times,)), Downhill(temperature, logits.repeat(times, 1))
    assert expanded.batch_shape == repeated.batch_shape == (times,)
    assert torch.equal(expanded.length_log_probs, repeated.length_log_probs)
    for hard in (False, True):
        torch.manual_seed(0)
        z = expanded.rsample((3,), hard=hard)
        torch.manual_seed(0)
        assert torch.equal(z, repeated.rsample((3,), hard=hard))


@given(strategies.any_keep_logits, strategies.seed)
def test_given_lengths_stand_at_the_largest_step(logits: Tensor, seed: int) -> None:
    torch.manual_seed(seed)
    downhill = Downhill(0.5, logits)
    length = downhill.chain.sample((20,)).sum(-1).long()
    z = downhill.rsample_given(length)
    assert z.isfinite().all()
    assert (z[:, 1:] <= z[:, :-1]).all()
    steps = increments(z)
    assert (steps.gather(-1, length.unsqueeze(-1)) >= steps.amax(-1, keepdim=True) - 1e-12).all()
    assert torch.equal(downhill.rsample_given(length, hard=True).sum(-1).long(), length)


@given(strategies.keep_logits, strategies.seed, st.integers(0, 3))
def test_hard_codes_are_zero_past_their_length_only(logits: Tensor, seed: int, base: int) -> None:
    torch.manual_seed(seed)
    size = logits.numel() + base
    code = OrderedNormal(torch.zeros(size).double(), torch.ones(size).double(), logits, 1.0)
    h = code.sample((20,))
    kept = (h != 0).double()
    assert (kept[:, 1:] <= kept[:, :-1]).all()
    assert (kept[:, :base] == 1).all()
    assert code.log_prob(h).isfinite().all()
    close(code.survival[base:], BernoulliChain(logits).mean)
    close(code.expected_length, base + BernoulliChain(logits).expected_length)
    for length in range(base, size + 1):
        assert ((code.rsample((5,), length=length) != 0).sum(-1) == length).all()


@given(strategies.vectors(strategies.finite_logit, 4), st.floats(0.1, 10.0))
def test_code_kl_is_never_negative(parts: list[Tensor], scale: float) -> None:
    q = OrderedNormal(parts[0], torch.full_like(parts[0], scale), parts[1], 1.0)
    p = OrderedNormal(parts[2], torch.ones_like(parts[0]), parts[3], 1.0)
    kl = kl_divergence(q, p)
    assert kl.isfinite()
    assert kl >= 0
    assert kl_divergence(q, q) == 0


def test_a_downhill_that_has_been_sampled_can_be_copied_and_pickled() -> None:
    downhill = Downhill(0.5, torch.zeros(3))
    z = downhill.rsample((2,))
    for other in (copy.deepcopy(downhill), pickle.loads(pickle.dumps(downhill))):
        assert torch.equal(other.length_log_probs, downhill.length_log_probs)
        assert other.log_prob(z).isfinite().all()


@given(strategies.vector(strategies.finite_logit, 2), st.floats(-50, 50), strategies.temperature)
def test_length_logits_need_no_normalisation(length_logits: Tensor, shift: float, temperature: float) -> None:
    downhill = Downhill(temperature, length_logits=length_logits + shift)
    close(downhill.length_log_probs, length_logits.log_softmax(-1), rtol=1e-12, atol=1e-12)
    close(downhill.length_log_probs.exp().sum(), torch.tensor(1.0).double(), rtol=1e-12, atol=0.0)


def test_a_code_of_zeros_alone_has_the_length_of_the_base() -> None:
    loc, scale = torch.tensor([0.5, -1.0, 2.0, 0.0]), torch.tensor([1.0, 2.0, 0.5, 1.0])
    code = OrderedNormal(loc, scale, torch.tensor([0.3, -0.2]), 1.0)
    base = torch.distributions.Normal(loc[:2], scale[:2]).log_prob(torch.zeros(2)).sum()
    close(code.log_prob(torch.zeros(4)), base + code.gate.length_log_probs[0])
