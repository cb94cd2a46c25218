"""Laws of the Bernoulli chain and of coupled chains, for parameters of all kinds."""

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.distributions import kl_divergence

from laws import strategies
from vnd.distributions import BernoulliChain, coupled_entropy, total_correlation
from vnd.functional import gated_kl, keep_logits_from_lengths, length_mask, suffix_sum

close = torch.testing.assert_close


@given(strategies.any_keep_logits)
def test_length_probabilities_sum_to_one(logits: Tensor) -> None:
    probs = BernoulliChain(logits).length_log_probs.exp()
    assert not probs.isnan().any()
    assert probs.shape == (logits.numel() + 1,)
    close(probs.sum(), torch.tensor(1.0, dtype=torch.float64), rtol=1e-12, atol=0)


@given(strategies.any_keep_logits)
def test_survival_falls_and_is_the_tail_of_the_lengths(logits: Tensor) -> None:
    chain = BernoulliChain(logits)
    assert not chain.log_survival.isnan().any()
    assert (chain.log_survival[1:] <= chain.log_survival[:-1]).all()
    assert (chain.log_survival <= 0).all()
    tail = suffix_sum(chain.length_log_probs.exp())[1:]
    close(chain.mean, tail, rtol=1e-9, atol=1e-15)
    close(chain.variance, tail * (1 - tail), rtol=1e-9, atol=1e-12)
    close(chain.expected_length, tail.sum(), rtol=1e-9, atol=1e-15)


@given(strategies.any_keep_logits, strategies.seed)
def test_samples_are_ordered_and_of_positive_probability(logits: Tensor, seed: int) -> None:
    torch.manual_seed(seed)
    chain = BernoulliChain(logits)
    z = chain.sample((20,))
    assert (z[:, 1:] <= z[:, :-1]).all()
    assert (chain.log_prob(z) > -torch.inf).all()


@given(strategies.any_keep_logits)
def test_entropy_is_that_of_the_enumerated_masks(logits: Tensor) -> None:
    chain = BernoulliChain(logits)
    masks = chain.enumerate_support()
    assert torch.equal(masks, length_mask(torch.arange(logits.numel() + 1), logits.numel(), torch.float64))
    log_prob = chain.log_prob(masks)
    close(log_prob, chain.length_log_probs)
    expected = -math.fsum(math.exp(x) * x for x in log_prob.tolist() if x > -math.inf)
    close(chain.entropy(), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert 0 <= chain.entropy() <= math.log(logits.numel() + 1) + 1e-12
    assert torch.equal(chain.mode, masks[log_prob.argmax()])


@given(strategies.length_probs)
def test_from_length_probs_is_the_inverse_of_length_log_probs(probs: Tensor) -> None:
    chain = BernoulliChain.from_length_probs(probs)
    assert not chain.keep_logits.isnan().any()
    close(chain.length_log_probs.exp(), probs / probs.sum(), rtol=1e-9, atol=1e-15)


@given(strategies.keep_logits, st.floats(-50, 50))
def test_conditionals_of_the_lengths_are_the_conditionals(logits: Tensor, shift: float) -> None:
    """Of moderate lengths: where a survival underflows against its tail nothing can be recovered."""
    logits = logits / 3
    close(keep_logits_from_lengths(BernoulliChain(logits).length_log_probs + shift), logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "length_logits", [[-torch.inf, 0.0, 1.0], [0.0, -torch.inf, 1.0], [0.0, 1.0, -torch.inf]], ids=str
)
def test_a_length_of_probability_zero_gives_no_nan_gradient(length_logits: list[float]) -> None:
    leaf = torch.tensor(length_logits, requires_grad=True)
    BernoulliChain(keep_logits_from_lengths(leaf)).entropy().backward()
    assert not leaf.grad.isnan().any()


@given(strategies.vectors(strategies.any_logit, 2))
def test_kl_is_never_negative_nor_undefined(pair: list[Tensor]) -> None:
    kl = kl_divergence(BernoulliChain(pair[0]), BernoulliChain(pair[1]))
    assert not kl.isnan()
    assert kl >= 0
    assert kl_divergence(BernoulliChain(pair[0]), BernoulliChain(pair[0])) == 0


@given(strategies.vectors(strategies.finite_logit, 2))
def test_kl_is_the_sum_over_the_lengths(pair: list[Tensor]) -> None:
    q, p = (BernoulliChain(x) for x in pair)
    expected = (q.length_log_probs.exp() * (q.length_log_probs - p.length_log_probs)).sum()
    assert expected.isfinite()
    close(kl_divergence(q, p), expected, rtol=1e-9, atol=1e-12)


@given(strategies.any_keep_logits, st.integers(1, 4))
def test_expand_equals_repeating(logits: Tensor, times: int) -> None:
    expanded, repeated = BernoulliChain(logits).expand((times,)), BernoulliChain(logits.repeat(times, 1))
    assert expanded.batch_shape == repeated.batch_shape == (times,)
    for name in ("length_log_probs", "log_survival", "keep_probs", "expected_length", "mode"):
        close(getattr(expanded, name), getattr(repeated, name), rtol=1e-14, atol=0.0)
    torch.manual_seed(0)
    z = expanded.sample((3,))
    torch.manual_seed(0)
    assert torch.equal(z, repeated.sample((3,)))


@given(st.integers(1, 500), st.floats(0.001, 0.999))
def test_from_expected_length_hits_its_target(n: int, share: float) -> None:
    chain = BernoulliChain.from_expected_length(n, share * n)
    close(chain.expected_length, torch.tensor(share * n), rtol=2e-5, atol=0)
    assert (chain.keep_logits == chain.keep_logits[0]).all()


@pytest.mark.parametrize("n", [1, 31, 1000])
def test_named_chains_have_their_lengths(n: int) -> None:
    uniform = BernoulliChain.uniform(n).length_log_probs.double().exp()
    close(uniform, torch.full((n + 1,), 1 / (n + 1), dtype=torch.float64), rtol=2e-5, atol=0)
    geometric = BernoulliChain.geometric(n, 0.8).mean.double()
    close(geometric, 0.8 ** torch.arange(1, n + 1, dtype=torch.float64), rtol=1e-4, atol=1e-30)


@given(strategies.vectors(strategies.finite_logit, 3))
def test_gated_kl_is_the_mean_over_lengths_of_kept_and_dropped_costs(parts: list[Tensor]) -> None:
    chain, kept, dropped = BernoulliChain(parts[0]), parts[1].abs(), parts[2].abs()
    masks = chain.enumerate_support()
    expected = chain.length_log_probs.exp() @ (masks @ kept + (1 - masks) @ dropped)
    close(gated_kl(chain.log_survival, kept, dropped), expected, rtol=1e-9, atol=1e-9)
    close(gated_kl(chain.log_survival, kept), chain.length_log_probs.exp() @ masks @ kept, rtol=1e-9, atol=1e-9)


def joint_entropy(chains: list[BernoulliChain]) -> float:
    """By brute force: the joint lengths at the middle of each gap between survivals, their gaps summed per length."""
    survivals = [chain.mean.tolist() for chain in chains]
    edges = sorted({0.0, 1.0, *itertools.chain(*survivals)})
    joint: dict[tuple[int, ...], float] = {}
    for low, high in itertools.pairwise(edges):
        u = 0.5 * (low + high)
        lengths = tuple(sum(u < s for s in survival) for survival in survivals)
        joint[lengths] = joint.get(lengths, 0.0) + high - low
    return -math.fsum(p * math.log(p) for p in joint.values() if p > 0)


chains_of_any_size = st.lists(strategies.vector(st.floats(-6, 6), 1, 6), min_size=1, max_size=4)


@given(chains_of_any_size)
def test_coupled_entropy_equals_the_enumeration_of_joint_lengths(logits: list[Tensor]) -> None:
    chains = [BernoulliChain(x) for x in logits]
    expected = joint_entropy(chains)
    close(float(coupled_entropy(chains)), expected, rtol=1e-9, atol=1e-9)
    independent = math.fsum(float(chain.entropy()) for chain in chains)
    correlation = float(total_correlation(chains))
    close(correlation, independent - expected, rtol=1e-9, atol=1e-9)
    assert correlation >= -1e-12


@given(strategies.any_keep_logits)
def test_a_single_chain_has_no_total_correlation_and_a_twin_all_of_it(logits: Tensor) -> None:
    chain = BernoulliChain(logits)
    assert abs(float(total_correlation([chain]))) < 1e-12
    close(total_correlation([chain, chain]), chain.entropy(), rtol=1e-9, atol=1e-12)


def test_total_correlation_of_a_certain_chain_is_zero_and_of_equal_layers_all_entropies_but_one() -> None:
    sure = BernoulliChain(torch.tensor([torch.inf, torch.inf, -torch.inf]))
    assert abs(float(total_correlation([sure, BernoulliChain.uniform(5)]))) < 1e-6
    layer = BernoulliChain(torch.full((30,), 3.0, dtype=torch.float64))
    close(total_correlation([layer] * 7), 6 * layer.entropy(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("fault", ["entropies-averaged", "independent", "one-layer-forgotten"])
def test_faulty_joint_entropies_are_caught(fault: str) -> None:
    chains = [BernoulliChain(torch.tensor(x, dtype=torch.float64)) for x in ([1.0, 0.5], [0.3, -1.0, 2.0])]
    entropies = [chain.entropy() for chain in chains]
    wrong = {
        "entropies-averaged": sum(entropies) / 2,
        "independent": sum(entropies),
        "one-layer-forgotten": coupled_entropy(chains[:1]),
    }
    with pytest.raises(AssertionError):
        close(float(wrong[fault]), joint_entropy(chains), rtol=1e-9, atol=1e-9)
