"""Gradients: gradcheck on every op in float64, the straight-through rule, and pathwise against integration."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Normal, kl_divergence

from laws.density import integral
from laws.statistics import increments
from vnd import functional
from vnd.distributions import (
    BernoulliChain,
    Downhill,
    LogUniform,
    MultiplicativeNormal,
    OrderedNormal,
    coupled_entropy,
    total_correlation,
)


def free(*shape: int, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 7)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) + shift).requires_grad_()


MASK = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
DESCENT = torch.tensor([[0.9, 0.5, 0.2, 0.1], [0.99, 0.98, 0.03, 0.01]], dtype=torch.float64)
CODE = torch.tensor([0.3, -0.2, 1.5, 0.0, 0.0], dtype=torch.float64)


def ordered(loc: Tensor, log_scale: Tensor, logits: Tensor) -> OrderedNormal:
    return OrderedNormal(loc, log_scale.exp(), logits, 0.7)


def fixed(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same noise at every call, which makes a sampler a function."""

    def seeded(*arguments: Tensor) -> Tensor:
        torch.manual_seed(3)
        return draw(*arguments)

    return seeded


FUNCTIONS = {
    "to_float32": (functional.to_float32, (free(3),)),
    "log_survival": (functional.log_survival, (free(2, 4),)),
    "length_log_probs": (functional.length_log_probs, (free(2, 4),)),
    "keep_logits_from_lengths": (functional.keep_logits_from_lengths, (free(2, 4),)),
    "suffix_sum": (functional.suffix_sum, (free(2, 4),)),
    "pick": (lambda x: functional.pick(x, torch.tensor([[0], [3]])), (free(2, 4),)),
    "gated_kl": (functional.gated_kl, (free(4), free(2, 4))),
    "gated_kl-dropped": (functional.gated_kl, (free(4), free(2, 4), free(4))),
    "log_uniform_kl-vnd": (lambda x: functional.log_uniform_kl(x, "vnd"), (4 * free(9).detach(),)),
    "log_uniform_kl-exact": (lambda x: functional.log_uniform_kl(x, "exact"), (4 * free(9).detach(),)),
    "log_uniform_kl-molchanov": (lambda x: functional.log_uniform_kl(x, "molchanov"), (4 * free(9).detach(),)),
    "log_uniform_kl-kingma": (lambda x: functional.log_uniform_kl(x, "kingma"), (free(9, shift=-3.0),)),
    "chain.log_prob": (lambda m: BernoulliChain(m).log_prob(MASK), (free(2, 4),)),
    "chain.log_prob-probs": (lambda m: BernoulliChain(keep_probs=m.sigmoid()).log_prob(MASK), (free(2, 4),)),
    "chain.entropy": (lambda m: BernoulliChain(m).entropy(), (free(2, 4),)),
    "chain.expected_length": (lambda m: BernoulliChain(m).expected_length, (free(2, 4),)),
    "chain.variance": (lambda m: BernoulliChain(m).variance, (free(2, 4),)),
    "chain.from_length_probs": (lambda p: BernoulliChain.from_length_probs(p.softmax(-1)).entropy(), (free(2, 4),)),
    "coupled_entropy": (lambda a, b: coupled_entropy([BernoulliChain(a), BernoulliChain(b)]), (free(3), free(4))),
    "total_correlation": (lambda a, b: total_correlation([BernoulliChain(a), BernoulliChain(b)]), (free(3), free(4))),
    "downhill.log_prob": (lambda t, m: Downhill(t.exp(), m).log_prob(DESCENT), (free(), free(2, 4))),
    "downhill.log_prob-lengths": (lambda m: Downhill(0.7, length_logits=m).log_prob(DESCENT), (free(2, 5),)),
    "downhill.rsample": (fixed(lambda t, m: Downhill(t.exp(), m).rsample((3,))), (free(), free(2, 4))),
    "downhill.rsample-lengths": (fixed(lambda m: Downhill(0.7, length_logits=m).rsample((3,))), (free(2, 5),)),
    "ordered.rsample": (fixed(lambda *x: ordered(*x).rsample((3,))), (free(5), free(5), free(3))),
    "ordered.log_prob": (lambda *x: ordered(*x).log_prob(CODE), (free(5), free(5), free(3))),
    "ordered.variance": (lambda *x: ordered(*x).variance, (free(5), free(5), free(3))),
    "weight.rsample": (fixed(lambda *x: MultiplicativeNormal(*x).rsample((3,))), (free(4), free(4))),
    "weight.rsample-variance": (
        fixed(lambda loc, v: MultiplicativeNormal(loc, log_variance=v).rsample((3,))),
        (free(4), free(4)),
    ),
    "weight.log_prob": (lambda *x: MultiplicativeNormal(*x).log_prob(CODE[:4]), (free(4), free(4))),
    "kl-chain": (lambda a, b: kl_divergence(BernoulliChain(a), BernoulliChain(b)), (free(2, 4), free(4))),
    "kl-downhill": (
        lambda a, b: kl_divergence(Downhill(0.7, length_logits=a), Downhill(2.0, b)),
        (free(2, 5), free(4)),
    ),
    "kl-ordered": (
        lambda a, b, c, d, e, f: kl_divergence(ordered(a, b, c), ordered(d, e, f)),
        (free(2, 5), free(5), free(3), free(5), free(1, 5), free(1, 3)),
    ),
    "kl-weight-log-uniform": (
        lambda loc, v: kl_divergence(MultiplicativeNormal(loc, log_variance=v), LogUniform("exact")),
        (free(4), free(4)),
    ),
    "kl-weight-normal": (
        lambda loc, a, m, s: kl_divergence(MultiplicativeNormal(loc, a), Normal(m, s.exp())),
        (free(4), free(4), free(4), free(4)),
    ),
    "concentration": (functional.concentration, (free(3, 4),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    assert gradcheck(function, tuple(x.detach().requires_grad_() for x in inputs), eps=1e-6, atol=1e-6, rtol=1e-5)


def test_every_differentiable_function_is_checked() -> None:
    public = {name for name, f in vars(functional).items() if callable(f) and f.__module__ == "vnd.functional"}
    public = {name for name in public if not name.startswith("_")}
    checked = {name.split("-")[0] for name in FUNCTIONS}
    no_gradient = {"length_mask", "straight_through", "log_exponential_noise", "log_uniform_constant"}
    assert public - checked == no_gradient


def test_a_faulty_gradient_is_caught() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return functional.log_survival(x)

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            return 2 * grad

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(Doubled.apply, (free(4),))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_straight_through_is_hard_forward_and_soft_backward(temperature: float) -> None:
    weights = torch.randn(50, 3, 6, dtype=torch.float64)
    samples, gradients = [], []
    for hard in (False, True):
        logits = free(3, 6).detach().requires_grad_()
        torch.manual_seed(5)
        z = Downhill(temperature, logits).rsample((50,), hard=hard)
        (z * weights).sum().backward()
        samples.append(z)
        gradients.append(logits.grad)
    assert ((samples[1] == 0) | (samples[1] == 1)).all()
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)
    assert gradients[0].abs().max() > 0


@pytest.mark.parametrize("hard", [False, True])
def test_gradients_with_given_lengths_hold_the_noise_fixed(hard: bool) -> None:
    """With noise detached, dz/dm is that of softmax((log q + g) / τ); finite differences would move g with q."""
    logits = free(4).detach().requires_grad_()
    distribution = Downhill(0.7, logits)
    z = distribution.rsample_given(torch.tensor([0, 2, 4, 4]), hard=hard)
    z.sum().backward()
    torch.manual_seed(20260)
    soft = Downhill(0.7, logits.detach()).rsample_given(torch.tensor([0, 2, 4, 4]))
    c = increments(soft)
    position = torch.arange(5, dtype=torch.float64)
    weight = c * (position - (c * position).sum(-1, keepdim=True)) / 0.7  # d(Σ z)/d(log q), row by row
    expected = torch.autograd.functional.vjp(functional.length_log_probs, logits.detach(), weight.sum(0))[1]
    torch.testing.assert_close(logits.grad, expected, rtol=1e-6, atol=1e-9)


def wavy(z: Tensor) -> Tensor:
    """A nonlinear function of a descent."""
    return torch.sin(3 * z[..., 0]) + z[..., 0] * z[..., -1].square()


def check_pathwise(sampler: Callable[[Downhill, int], Tensor], logits: Tensor, temperature: float) -> None:
    leaf = logits.clone().requires_grad_()
    exact = torch.autograd.grad(integral(Downhill(temperature, leaf), of=wavy, points=161), leaf)[0]
    size = 200_000
    rows = logits.expand(size, -1).clone().requires_grad_()
    gradient = torch.autograd.grad(wavy(sampler(Downhill(temperature, rows), size)).sum(), rows)[0]
    assert gradient.isfinite().all()
    error = gradient.std(0) / size**0.5
    assert (error < 0.01).all()
    assert ((gradient.mean(0) - exact).abs() <= 4 * error).all(), f"pathwise: {gradient.mean(0)} against {exact}"


PATHWISE = pytest.mark.parametrize(
    ("logits", "temperature"), [([0.5], 0.5), ([0.5], 2.0), ([1.0, -0.5], 0.7), ([1.0, -0.5], 2.0), ([-1.0, 1.0], 1.0)]
)


@PATHWISE
def test_pathwise_gradients_agree_with_the_derivative_of_the_integral(logits: list[float], temperature: float) -> None:
    check_pathwise(lambda q, size: q.rsample(), torch.tensor(logits, dtype=torch.float64), temperature)


def test_detached_probabilities_are_caught_as_a_faulty_pathwise_gradient() -> None:
    def partly_detached(q: Downhill, size: int) -> Tensor:
        log_q = torch.cat((q.length_log_probs[:, :1].detach(), q.length_log_probs[:, 1:]), -1)
        return Downhill(q.temperature, length_logits=log_q).rsample()

    with pytest.raises(AssertionError, match="pathwise"):
        check_pathwise(partly_detached, torch.tensor([1.0, -0.5], dtype=torch.float64), 1.0)
