"""Ordered codes: mode and entropy by enumeration and by draws; a mixture of them against scipy, and its draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Normal

from examples import ORDERINGS
from vnd.distributions import OrderedMixture, OrderedNormal
from vnd.distributions.ordered_normal import OrderedNormal as Code

SHORT = [ordering for ordering in ORDERINGS if ordering.n <= 6]
COUNT = 20_000
each = pytest.mark.parametrize("ordering", SHORT, ids=str)


def lengths_of(code: OrderedNormal) -> list[float]:
    """Probabilities of 0 … n kept units, unit by unit."""
    keep = torch.sigmoid(code.keep_logits.double()).tolist()
    return [math.prod(keep[:b]) * (1 - keep[b] if b < len(keep) else 1) for b in range(len(keep) + 1)]


def check_entropy(code: OrderedNormal) -> None:
    each_dimension = Normal(code.loc, code.scale).entropy()
    wanted = sum(
        q * (float(each_dimension[: code.base + b].sum()) - math.log(q))
        for b, q in enumerate(lengths_of(code))
        if q > 0
    )
    assert float(code.entropy()) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


@each
def test_entropy_is_that_of_all_lengths(ordering) -> None:
    for base in (0, 2):
        check_entropy(ordering.ordered_normal(torch.float64, base))


def test_entropy_is_the_mean_surprise_of_draws() -> None:
    torch.manual_seed(0)
    code = SHORT[7].ordered_normal(torch.float64)
    surprise = -code.log_prob(code.sample((COUNT,)))
    assert float(surprise.mean()) == pytest.approx(float(code.entropy()), abs=5 * float(surprise.std()) / COUNT**0.5)


def test_an_entropy_that_counts_dropped_dimensions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Code, "survival", property(lambda self: torch.ones_like(self.loc)))
    with pytest.raises(AssertionError):
        check_entropy(SHORT[4].ordered_normal(torch.float64))


def check_mode(code: OrderedNormal) -> None:
    """Nothing is denser: the means at no length, nor any draw."""
    size = code.event_shape[0]
    best = code.log_prob(code.mode)
    for length in range(max(code.base, 1), size + 1):
        assert bool((code.log_prob(code.mean_at(length)) <= best + 1e-9).all())
    torch.manual_seed(1)
    assert bool((code.log_prob(code.sample((500,))) <= best + 1e-9).all())


def sharp() -> OrderedNormal:
    """Its likeliest length is 1, but a third dimension so certain that the density is greatest with it."""
    scale = torch.tensor([[1.0, 0.5, 0.001], [1.0, 0.5, 1.0]], dtype=torch.float64)
    return OrderedNormal(torch.ones(3, dtype=torch.float64), scale, torch.full((2,), -0.5, dtype=torch.float64), 1.0)


@each
def test_no_code_is_denser_than_the_mode(ordering) -> None:
    check_mode(ordering.ordered_normal(torch.float64))


def test_the_mode_of_each_of_a_batch() -> None:
    check_mode(sharp())
    assert sharp().mode.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    assert sharp().mean_at(torch.tensor([1, 2])).tolist() == [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]


def test_the_likeliest_length_in_the_place_of_the_mode_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Code, "mode", property(lambda self: self.mean_at(1 + self.gate.length_log_probs.argmax(-1))))
    with pytest.raises(AssertionError):
        check_mode(sharp())


def mixture(base: int = 1) -> OrderedMixture:
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tril = draw(2, 3, 3).tril()
    tril.diagonal(dim1=1, dim2=2).abs_().add_(0.5)
    return OrderedMixture(draw(2), 2 * draw(2, 3), tril, draw(2, 4 - base))


def check_density(density: OrderedMixture) -> None:
    weights, lengths = density.weight_logits.softmax(0), density.length_logits.softmax(1)
    for length in range(max(1, density.base), 4):
        value = torch.tensor([0.3, -1.2, 0.7], dtype=torch.float64)[:length]
        wanted = 0.0
        for k in range(2):
            covariance = (density.scale_tril[k] @ density.scale_tril[k].T)[:length, :length]
            normal = stats.multivariate_normal(density.loc[k, :length], covariance).pdf(value)
            wanted += float(weights[k] * lengths[k, length - density.base]) * normal
        code = torch.nn.functional.pad(value, (0, 3 - length))
        assert float(density.log_prob(code)) == pytest.approx(math.log(wanted), rel=1e-9)
        assert torch.equal(density.log_prob(code.expand(2, 5, 3)), density.log_prob(code).expand(2, 5))


@pytest.mark.parametrize("base", [0, 1, 2])
def test_the_density_of_a_mixture_of_codes(base: int) -> None:
    check_density(mixture(base))


def test_a_trailing_block_in_the_place_of_the_leading_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = torch.linalg.solve_triangular
    monkeypatch.setattr(torch.linalg, "solve_triangular", lambda a, b, upper: solve(a.flip(-1, -2), b, upper=not upper))
    with pytest.raises(AssertionError):
        check_density(mixture())


def check_draws(density: OrderedMixture, drawn: Tensor) -> None:
    """False alarms: one in 10⁴ seeds, and the seed is fixed. That of an infinite mean is the surprise of no density."""
    lengths = (drawn != 0).sum(1)
    assert torch.equal(drawn != 0, torch.arange(3) < lengths[:, None])
    probs = density.weight_logits.softmax(0) @ density.length_logits.softmax(1)
    counts = torch.bincount(lengths, minlength=4)[density.base :]
    assert stats.chisquare(counts.tolist(), (COUNT * probs).tolist()).pvalue > 1e-4
    # Where it is long, the component shows in the last dimension: its lengths are its own.
    weights = density.weight_logits.softmax(0) * density.length_logits.softmax(1)[:, -1]
    wanted = (weights / weights.sum()) @ density.loc
    longest = drawn[lengths == 3]
    torch.testing.assert_close(
        longest.mean(0), wanted, rtol=0, atol=5 * float(longest.std(0).max()) / len(longest) ** 0.5
    )


def test_draws_of_a_mixture_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also planted: lengths that are those of all components together."""
    density = mixture()
    torch.manual_seed(3)
    check_draws(density, density.sample((COUNT,)))
    assert (density.sample((50,), whole=True) != 0).all()
    probs = density.weight_logits.softmax(0) @ density.length_logits.softmax(1)
    torch.testing.assert_close(density.survival, torch.tensor([1.0, 1 - float(probs[0]), float(probs[2])]).double())
    pooled = OrderedMixture(density.weight_logits, density.loc, density.scale_tril, probs.log().expand(2, 3))
    with pytest.raises(AssertionError):
        check_draws(density, pooled.sample((COUNT,)))


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "shapes": (
        lambda: OrderedMixture(torch.zeros(2), torch.zeros(2, 3), torch.eye(3), torch.zeros(2, 3)),
        "shapes must be (K,), (K, D), (K, D, D), (K, n + 1) with n ≤ D; got (2,), (2, 3), (3, 3), (2, 3)",
    ),
    "a word": (
        lambda: OrderedMixture("a", torch.zeros(2, 3), torch.eye(3), torch.zeros(2, 3)),  # type: ignore[arg-type]
        "OrderedMixture: weight_logits must be a floating-point tensor",
    ),
    "a length": (lambda: sharp().mean_at(4), "OrderedNormal: length must be whole and lie in 1 … 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_code_is_refused(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
