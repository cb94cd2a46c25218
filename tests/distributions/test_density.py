"""The density of a Downhill integrates to one, agrees with the sampler, and keeps its digits on own samples."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from covering import turns
from laws.density import grid, integral
from laws.statistics import FALSE_ALARM, chi_square_size, increments
from vnd.distributions import Downhill, downhill

TEMPERATURES = [0.5, 1.0, 2.0, 5.0]
LOGITS = {"even": [0.0], "kept": [2.0], "falling": [1.0, -1.0], "rising": [-1.5, 0.5], "three": [1.0, 0.0, -1.0]}


def build(name: str, temperature: float) -> Downhill:
    return Downhill(temperature, torch.tensor(LOGITS[name], dtype=torch.float64))


def check_total(log_prob, distribution: Downhill) -> None:
    total = float(integral(distribution, log_prob=log_prob, points=33 if distribution.event_shape[0] == 3 else 65))
    assert abs(total - 1) <= 1e-3, f"density: integrates to {total:.6g}"


@pytest.mark.parametrize(("name", "temperature"), [*turns(LOGITS, TEMPERATURES), *turns(LOGITS, TEMPERATURES[::-1])])
def test_the_density_integrates_to_one(name: str, temperature: float) -> None:
    distribution = build(name, temperature)
    check_total(distribution.log_prob, distribution)


def faulty_log_prob(distribution: Downhill, exponent: int = 1, power: int = 0, tilt: float = 1.0):
    """The density of the docstring with K = n + `exponent`, τ to the power n + `power`, and c^{−(τ + tilt)}."""
    n = distribution.event_shape[0]
    log_q, temperature = distribution.length_log_probs, distribution.temperature

    def log_prob(z: Tensor) -> Tensor:
        log_c = increments(z).log()
        total = torch.logsumexp(log_q - temperature * log_c, -1)
        terms = (log_q - (temperature + tilt) * log_c).sum(-1)
        return math.lgamma(n + exponent) + (n + power) * temperature.log() - (n + exponent) * total + terms

    return log_prob


@pytest.mark.parametrize("name", ["kept", "three"])
def test_the_faulty_density_without_a_fault_is_the_density(name: str) -> None:
    distribution = build(name, 2.0)
    z = distribution.rsample((100,))
    expected = faulty_log_prob(distribution)(z)
    assert expected.isfinite().all()
    torch.testing.assert_close(distribution.log_prob(z.clone()), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("fault", [{"exponent": 0}, {"power": 1}, {"power": -1}, {"tilt": 0.0}], ids=str)
@pytest.mark.parametrize("name", ["kept", "falling", "three"])
def test_faulty_densities_are_caught(name: str, fault: dict[str, float]) -> None:
    distribution = build(name, 2.0)
    with pytest.raises(AssertionError, match="density: "):
        check_total(faulty_log_prob(distribution, **fault), distribution)


CUTS = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64)


def cells(distribution: Downhill, log_increments: Tensor) -> Tensor:
    """The cell of each point: the quantile cells of τ log(c_i / c_0), crossed over i."""
    log_q = distribution.length_log_probs
    ratio = distribution.temperature * (log_increments[:, 1:] - log_increments[:, :1]) - (log_q[1:] - log_q[0])
    digits = torch.bucketize(ratio.contiguous(), CUTS)
    return (digits * 4 ** torch.arange(digits.size(-1))).sum(-1)


def cell_probs(distribution: Downhill) -> Tensor:
    """Integrals of the density over the cells, by the midpoint rule: points 0.1 apart that straddle the cuts."""
    z, weights = grid(distribution, points=320, reach=15.95)
    index = cells(distribution, increments(z).log())
    density = distribution.log_prob(z).exp() * weights
    return torch.zeros(4 ** distribution.event_shape[0], dtype=z.dtype).index_add(0, index, density)


def check_cells(sampler, distribution: Downhill, level: float = FALSE_ALARM) -> None:
    probs = cell_probs(distribution)
    assert abs(float(probs.sum()) - 1) < 1e-3
    size = chi_square_size(probs.numel(), level)
    counts = torch.bincount(cells(distribution, increments(sampler(size)).log()), minlength=probs.numel())
    statistic = float(((counts - size * probs).square() / (size * probs)).sum())
    assert statistic <= stats.chi2.isf(level, probs.numel() - 1), f"cells: chi-square {statistic:.4g}"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("name", ["kept", "falling", "rising"])
def test_samples_fall_into_cells_as_the_density_says(name: str, temperature: float) -> None:
    distribution = build(name, temperature)
    check_cells(lambda size: distribution.rsample((size,)), distribution)


OTHERS = {
    "temperature": build("falling", 2.1),
    "logits": build("rising", 2.0),
    "probabilities-as-logits": Downhill(2.0, length_logits=build("falling", 2.0).length_log_probs.exp()),
}


@pytest.mark.parametrize("fault", OTHERS)
def test_samples_of_another_law_do_not(fault: str) -> None:
    with pytest.raises(AssertionError, match="cells: "):
        check_cells(lambda size: OTHERS[fault].rsample((size,)), build("falling", 2.0))


def test_own_float32_samples_keep_their_density_where_others_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.empty(2000, 31, dtype=torch.float64).exponential_().log()
    monkeypatch.setattr(downhill, "log_exponential_noise", lambda shape, like: noise.to(like.dtype))
    logits = torch.linspace(2.0, 1.0, 30)
    narrow, wide = Downhill(0.2, logits), Downhill(0.2, logits.double())
    z = narrow.rsample((2000,))
    own, exact = narrow.log_prob(z), wide.log_prob(wide.rsample((2000,)))
    assert own.isfinite().all()
    assert exact.isfinite().all()
    torch.testing.assert_close(own.double(), exact, rtol=2e-6, atol=1e-3)
    lost = ~narrow.log_prob(z.clone()).isfinite()
    assert lost.float().mean() > 0.5  # documented: differences of z round to zero


def test_a_float64_value_keeps_its_density() -> None:
    distribution = Downhill(2.0, torch.linspace(2.0, 1.0, 30, dtype=torch.float64))
    z = distribution.rsample((2000,))
    own, fresh = distribution.log_prob(z), distribution.log_prob(z.clone())
    assert own.isfinite().all()
    torch.testing.assert_close(fresh, own, rtol=1e-6, atol=1e-6)


def test_the_density_of_a_sample_changed_in_place_is_that_of_its_new_value() -> None:
    distribution = build("falling", 1.0)
    z = distribution.rsample((10,))
    z.mul_(0.5)
    torch.testing.assert_close(distribution.log_prob(z), distribution.log_prob(z.clone()))


def test_only_the_latest_sample_is_remembered_and_any_other_value_is_computed() -> None:
    distribution = build("falling", 1.0)
    first, second = distribution.rsample((10,)), distribution.rsample((10,))
    for z in (first, second):
        torch.testing.assert_close(distribution.log_prob(z), distribution.log_prob(z.clone()))
    assert not torch.equal(distribution.log_prob(first), distribution.log_prob(second))
