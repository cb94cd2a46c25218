"""KL divergences against enumeration and direct formulas, in float64, to 1e-12."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from covering import turns
from examples import ORDERINGS, Ordering
from laws.reference import length_probs
from vnd.distributions import BernoulliChain, Downhill, LogUniform, MultiplicativeNormal, OrderedNormal
from vnd.functional import log_uniform_kl

pytestmark = pytest.mark.usefixtures("float64")

INF = math.inf


def close(actual: Tensor, expected: Tensor | float) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert actual.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-15)


def enumerated(q: np.ndarray, p: np.ndarray) -> float:
    """Σ q (log q − log p) over the lengths, summed without error."""
    return math.fsum(a * (math.log(a) - math.log(b)) for a, b in zip(q, p, strict=True) if a > 0)


def wavering(n: int, height: float = 2.0) -> Tensor:
    return height * torch.sin(1.3 * torch.arange(n) + 1.0)


@pytest.mark.parametrize("ordering", ORDERINGS[::3], ids=str)
def test_chain_kl_is_the_sum_over_lengths(ordering: Ordering) -> None:
    prior = wavering(ordering.n)
    expected = enumerated(length_probs(ordering.logits().double().numpy()), length_probs(prior.numpy()))
    chain = BernoulliChain(ordering.logits().double())
    close(kl_divergence(chain, BernoulliChain(prior)), expected)
    close(kl_divergence(Downhill(0.3, chain.keep_logits), BernoulliChain(prior)), expected)
    close(kl_divergence(Downhill(0.3, chain.keep_logits), Downhill(4.0, prior)), expected)
    log_q = chain.length_log_probs + 3.0  # unnormalised lengths are the same distribution
    close(kl_divergence(Downhill(0.3, length_logits=log_q), Downhill(4.0, prior)), expected)


def test_chain_kl_of_a_batch_against_a_batch_broadcasts() -> None:
    q, p = 2 * torch.randn(3, 1, 5), 2 * torch.randn(4, 5)
    actual = kl_divergence(BernoulliChain(q), BernoulliChain(p))
    assert actual.shape == (3, 4)
    rows = [[enumerated(length_probs(a[0].numpy()), length_probs(b.numpy())) for b in p] for a in q]
    close(actual, torch.tensor(rows))


def test_kl_of_a_distribution_from_itself_is_zero_at_any_length() -> None:
    n = 100_000
    logits = wavering(n, 4.0)
    chain, downhill = BernoulliChain(logits), Downhill(0.5, logits)
    code = OrderedNormal(wavering(n), wavering(n).exp(), logits, 1.0)
    for q, p in ((chain, chain), (downhill, chain), (downhill, downhill), (code, code)):
        assert kl_divergence(q, p) == 0
    weight = MultiplicativeNormal(torch.tensor(0.3), log_variance=torch.tensor(-1.2))
    assert abs(float(kl_divergence(weight, Normal(torch.tensor(0.3), torch.tensor(-0.6).exp())))) < 1e-15


@pytest.mark.parametrize(
    ("posterior", "prior", "expected"),
    [
        ([0.0, 0.0], [INF, 0.0], INF),  # the prior never stops at 0
        ([0.0, 0.0], [0.0, -INF], INF),  # the prior never reaches 2
        ([INF, 0.0], [INF, 0.0], 0.0),
        ([INF, 0.0], [0.0, 0.0], math.log(2)),
        ([-INF, 0.0], [0.0, 5.0], math.log(2)),  # what is never reached costs nothing
        ([-INF, 0.0], [0.0, -INF], math.log(2)),
        ([-INF, 0.0], [-INF, INF], 0.0),
        ([INF, -INF], [0.0, 0.0], 2 * math.log(2)),
        ([INF, INF], [INF, -INF], INF),
        ([-INF, -INF], [INF, 0.0], INF),
    ],
)
def test_chain_kl_with_units_kept_always_or_never(posterior: list[float], prior: list[float], expected: float) -> None:
    actual = kl_divergence(BernoulliChain(torch.tensor(posterior)), BernoulliChain(torch.tensor(prior)))
    assert not actual.isnan()
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-12, atol=1e-15)


def test_the_gradient_of_a_finite_kl_is_finite_beside_units_kept_always_or_never() -> None:
    logits = torch.tensor([0.5, 1.0, -0.3], requires_grad=True)
    fixed = torch.tensor([INF, -INF, 0.0])
    kl_divergence(
        BernoulliChain(torch.cat((fixed[:1], logits))), BernoulliChain(torch.tensor([INF, 0.0, 0.1, 0.2]))
    ).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad != 0).all()


def random_code(*shape: int, n: int) -> OrderedNormal:
    return OrderedNormal(torch.randn(shape), torch.rand(shape) + 0.5, torch.randn((*shape[:-1], n)), 1.0)


def gaussian_kl(q: OrderedNormal, p: OrderedNormal) -> Tensor:
    ratio = q.scale / p.scale
    return 0.5 * (ratio**2 + ((q.loc - p.loc) / p.scale) ** 2 - 1) - ratio.log()


def prefix_kl(q: OrderedNormal, p: OrderedNormal) -> Tensor:
    """KL of one code from another, by enumeration over the lengths: Σ_j q_j (log q_j − log p_j + K_j)."""
    cost = gaussian_kl(q, p)
    prefix = torch.stack([cost[: q.base + j].sum() for j in range(q.event_shape[0] - q.base + 1)])
    a, b = (torch.from_numpy(length_probs(x.keep_logits.numpy())) for x in (q, p))
    return (a * (a.log() - b.log() + prefix)).sum()


def check_code_kl(divergence) -> None:
    for dimensions, n in ((4, 3), (6, 6), (9, 2)):
        q, p = random_code(dimensions, n=n), random_code(dimensions, n=n)
        actual, expected = divergence(q, p), prefix_kl(q, p)
        assert actual.isfinite()
        assert abs(actual - expected) <= 1e-12 * expected, f"codes: {actual} against {expected}"


def test_code_kl_is_the_sum_over_lengths_of_the_kl_of_each_prefix() -> None:
    check_code_kl(kl_divergence)


def test_the_paper_s_sum_in_the_place_of_the_tail_sum_is_caught() -> None:
    def papers(q: OrderedNormal, p: OrderedNormal) -> Tensor:
        cost, beta = gaussian_kl(q, p), q.gate.length_log_probs.exp()
        always, nested = cost[: q.base].sum(), cost[q.base :]
        return kl_divergence(q.gate, p.gate) + always + (beta[1:] * nested).sum()

    with pytest.raises(AssertionError, match="codes: "):
        check_code_kl(papers)


def test_code_kl_broadcasts() -> None:
    q, p = random_code(3, 1, 4, n=2), random_code(2, 4, n=2)
    actual = kl_divergence(q, p)
    assert actual.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            one = OrderedNormal(q.loc[i, 0], q.scale[i, 0], q.keep_logits[i, 0], 1.0)
            other = OrderedNormal(p.loc[j], p.scale[j], p.keep_logits[j], 1.0)
            close(actual[i, j], prefix_kl(one, other))


def test_the_best_lengths_are_the_prior_s_times_exp_of_minus_the_prefix_kl() -> None:
    """Paper, App. A.5: given κ, the optimal β is p_j e^{−K_j} / C, and the KL there is −log C."""
    q, p = random_code(6, n=5), random_code(6, n=5)
    prefix = gaussian_kl(q, p).cumsum(0)  # base 1: K_j of the lengths 0 … 5
    scores = p.gate.length_log_probs - prefix
    best = BernoulliChain.from_length_probs(scores.softmax(0)).keep_logits
    at_best = kl_divergence(OrderedNormal(q.loc, q.scale, best, 1.0), p)
    close(at_best, -scores.logsumexp(0))
    leaf = best.clone().requires_grad_()
    kl_divergence(OrderedNormal(q.loc, q.scale, leaf, 1.0), p).backward()
    assert leaf.grad.abs().max() < 1e-12
    for _ in range(20):
        other = OrderedNormal(q.loc, q.scale, best + 0.3 * torch.randn(5), 1.0)
        assert kl_divergence(other, p) > at_best


@pytest.mark.parametrize(
    ("form", "offset"), [*turns(["vnd", "exact", "molchanov", "kingma"], [None]), ("vnd", 0.0), ("exact", 2.5)]
)
def test_weight_kl_from_a_log_uniform_prior_is_the_form_of_its_alpha(form: str, offset: float | None) -> None:
    loc, log_alpha = torch.randn(3, 1), torch.linspace(-9.0, 3.0, 7)
    prior = LogUniform(form, offset)
    expected = log_uniform_kl(log_alpha, form, offset).expand(3, 7)
    close(kl_divergence(MultiplicativeNormal(loc, log_alpha), prior), expected)
    free = MultiplicativeNormal(loc, log_variance=log_alpha + loc.square().log())
    assert kl_divergence(free, prior).isfinite().all()
    torch.testing.assert_close(kl_divergence(free, prior), expected, rtol=1e-10, atol=1e-12)


def test_weight_kl_from_a_gaussian_prior_is_that_of_two_gaussians() -> None:
    loc, log_alpha, log_variance = torch.randn(3, 1), torch.randn(4), torch.randn(4)
    prior = Normal(torch.randn(4), torch.rand(4) + 0.5)
    for weight, scale in (
        (MultiplicativeNormal(loc, log_alpha), (0.5 * log_alpha).exp() * loc.abs()),
        (MultiplicativeNormal(loc, log_variance=log_variance), (0.5 * log_variance).exp().expand(3, 4)),
    ):
        close(kl_divergence(weight, prior), kl_divergence(Normal(loc, scale), prior))


def test_weight_kl_from_a_gaussian_prior_grows_without_bound_as_the_mean_vanishes() -> None:
    loc = torch.tensor([1.0, 1e-2, 1e-4, 1e-8])
    prior = Normal(torch.tensor(0.0), torch.tensor(1.0))
    assert (kl_divergence(MultiplicativeNormal(loc, torch.tensor(-1.0)), prior).diff() > 0).all()
    free = kl_divergence(MultiplicativeNormal(loc, log_variance=torch.tensor(-1.0)), prior)
    assert (free < free[0] + 1e-12).all()


@pytest.mark.parametrize("fault", ["reversed", "prior-shifted", "independent-units"])
def test_faulty_chain_kls_are_caught(fault: str) -> None:
    q, p = torch.tensor([1.0, -0.5, 0.3]), torch.tensor([0.2, 0.7, -1.0])
    bernoulli = torch.distributions.Bernoulli
    wrong = {
        "reversed": kl_divergence(BernoulliChain(p), BernoulliChain(q)),
        "prior-shifted": kl_divergence(BernoulliChain(q), BernoulliChain(p.roll(1))),
        "independent-units": kl_divergence(bernoulli(logits=q), bernoulli(logits=p)).sum(),
    }
    with pytest.raises(AssertionError):
        close(wrong[fault], enumerated(length_probs(q.numpy()), length_probs(p.numpy())))
