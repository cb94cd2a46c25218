"""KL divergences against Monte Carlo of the log-probabilities, within 4 standard errors of at most half a percent."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, kl_divergence

from vnd.distributions import BernoulliChain, Downhill, LogUniform, MultiplicativeNormal, OrderedNormal

pytestmark = pytest.mark.usefixtures("float64")

SIZE = 400_000


def check_mean(terms: Tensor, expected: Tensor) -> None:
    assert terms.isfinite().all()
    error = float(terms.std()) / math.sqrt(terms.numel())
    assert error <= 0.005 * float(expected), f"Monte Carlo: the error {error:.3g} is more than half a percent"
    assert abs(float(terms.mean() - expected)) <= 4 * error, f"Monte Carlo: {terms.mean():.6g} against {expected:.6g}"


def check_monte_carlo(sampled: Distribution, q: Distribution, p: Distribution, kl: Tensor) -> None:
    """`sampled` draws; `q` and `p` weigh what it drew."""
    value = sampled.sample((SIZE,))
    check_mean(q.log_prob(value) - p.log_prob(value), kl)


Q, P = [2.0, 1.0, 0.5, -0.5, 1.5], [-0.5, 0.5, 1.0, 1.0, 0.0]


def chains() -> tuple[BernoulliChain, BernoulliChain]:
    return BernoulliChain(torch.tensor(Q)), BernoulliChain(torch.tensor(P))


def codes() -> tuple[OrderedNormal, OrderedNormal]:
    position = torch.arange(7.0)
    return (
        OrderedNormal(torch.sin(position), 0.4 + 0.1 * position, torch.tensor(Q), 1.0),
        OrderedNormal(torch.zeros(7), torch.ones(7), torch.tensor(P), 1.0),
    )


def test_chain_kl_is_the_mean_of_the_log_ratio() -> None:
    q, p = chains()
    check_monte_carlo(q, q, p, kl_divergence(q, p))


@pytest.mark.parametrize("temperature", [0.1, 2.0])
def test_downhill_kl_is_that_of_its_hard_samples(temperature: float) -> None:
    q, p = chains()
    relaxed = Downhill(temperature, q.keep_logits)
    value = relaxed.rsample((SIZE,), hard=True)
    for kl in (kl_divergence(relaxed, p), kl_divergence(relaxed, Downhill(0.5, p.keep_logits))):
        check_mean(q.log_prob(value) - p.log_prob(value), kl)


def test_code_kl_is_the_mean_of_the_log_ratio() -> None:
    q, p = codes()
    check_monte_carlo(q, q, p, kl_divergence(q, p))


@pytest.mark.parametrize("free", [False, True], ids=["alpha", "variance"])
def test_gaussian_prior_kl_is_the_mean_of_the_log_ratio(free: bool) -> None:
    noise = torch.tensor(-1.0)
    q = (
        MultiplicativeNormal(torch.tensor(1.5), log_variance=noise)
        if free
        else MultiplicativeNormal(torch.tensor(1.5), noise)
    )
    p = Normal(torch.tensor(-0.5), torch.tensor(0.8))
    check_monte_carlo(q, q, p, kl_divergence(q, p))


@pytest.mark.parametrize("log_alpha", [-6.0, -2.0, -0.7, 0.0])
def test_log_uniform_kl_is_the_mean_of_the_log_ratio_up_to_its_constant(log_alpha: float) -> None:
    """With the prior 1/|w| itself the mean is C = −½ log 2πe away from the exact form without an offset."""
    q = MultiplicativeNormal(torch.tensor(-0.8), torch.tensor(log_alpha))
    kl = kl_divergence(q, LogUniform("exact"))
    value = q.sample((4 * SIZE,))
    constant = 0.5 * (1 + math.log(2 * math.pi)) + 0.5 * (0.5772156649015329 + math.log(2))
    check_mean(q.log_prob(value) - LogUniform().log_prob(value) + constant, kl)


def test_the_paper_s_sum_in_the_place_of_the_tail_sum_is_caught() -> None:
    q, p = codes()
    normal = kl_divergence(Normal(q.loc, q.scale), Normal(p.loc, p.scale))
    beta = q.gate.length_log_probs.exp()
    wrong = kl_divergence(q.gate, p.gate) + normal[:2].sum() + (beta[1:] * normal[2:]).sum()
    with pytest.raises(AssertionError, match=r"Monte Carlo: .* against"):
        check_monte_carlo(q, q, p, wrong)


def test_a_kl_two_percent_off_is_caught() -> None:
    q, p = chains()
    with pytest.raises(AssertionError, match=r"Monte Carlo: .* against"):
        check_monte_carlo(q, q, p, 1.02 * kl_divergence(q, p))
