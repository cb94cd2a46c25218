"""The KL from the log-uniform prior: the table of the method, numerical integration, derivative, offsets, sign."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special

from covering import turns
from vnd.functional import log_uniform_kl

FORMS = ["vnd", "exact", "molchanov", "kingma"]
CONSTANTS = {"exact": 0.5 * (np.euler_gamma + math.log(2)), "molchanov": 0.63576, "vnd": 0.547125, "kingma": 0.245709}

# ½ log α − E log|1 + √α ε| to four digits: method, §5
TABLE = {
    -8: {"exact": -3.9998, "vnd": -4.0002, "molchanov": -4.0001},
    -5: {"exact": -2.4966, "vnd": -2.5023, "molchanov": -2.5009},
    -3: {"exact": -1.4728, "vnd": -1.4745, "molchanov": -1.4798},
    -1: {"exact": -0.2793, "vnd": -0.2250, "molchanov": -0.2781},
    0: {"exact": 0.2085, "vnd": 0.3326, "molchanov": 0.2045},
    1: {"exact": 0.4620, "vnd": 0.5469, "molchanov": 0.4578},
    3: {"exact": 0.6105, "vnd": 0.1912, "molchanov": 0.6103},
}
SWITCH = -math.log(80.0)  # λ = 1 / 2α = 40


def kl(log_alpha: float, form: str = "exact", **options: float) -> float:
    return float(log_uniform_kl(torch.tensor(log_alpha, dtype=torch.float64), form, **options))


def integrated(log_alpha: float) -> float:
    r"""½ log α − E log|1 + √α ε| by quadrature: E log|x| for x of mean 1 and scale √α, split at the singularity."""
    scale = math.exp(0.5 * log_alpha)
    peak = 1 / scale

    def even(x: float) -> float:  # ε = ±x − 1/√α folded onto x > 0, and log|1 + √α ε| = log(√α x)
        density = math.exp(-0.5 * (x - peak) ** 2) + math.exp(-0.5 * (x + peak) ** 2)
        return math.log(x) * density / math.sqrt(2 * math.pi)

    low, high = max(0.0, peak - 40.0), peak + 40.0
    edges = sorted({low, *(e for e in (1e-6, 1e-2, 1.0, peak - 8, peak, peak + 8) if low < e < high), high})
    parts = [integrate.quad(even, a, b, epsabs=1e-13, epsrel=1e-13, limit=400)[0] for a, b in itertools.pairwise(edges)]
    return -math.fsum(parts)  # ½ log α cancels against log √α


@pytest.mark.parametrize("log_alpha", TABLE)
@pytest.mark.parametrize("form", ["vnd", "molchanov"])
def test_the_table_of_the_method(log_alpha: int, form: str) -> None:
    assert round(CONSTANTS[form] - kl(log_alpha, form), 4) == pytest.approx(TABLE[log_alpha][form], abs=1e-9)
    assert round(-kl(log_alpha, form, offset=0.0), 4) == pytest.approx(TABLE[log_alpha][form], abs=1e-9)


def check_exact(function) -> None:
    for log_alpha in (*np.linspace(-20, 10, 61), SWITCH, SWITCH - 1e-9, SWITCH + 1e-9, SWITCH - 0.05, SWITCH + 0.05):
        actual, expected = function(float(log_alpha)), CONSTANTS["exact"] - integrated(float(log_alpha))
        assert math.isfinite(actual)
        assert abs(actual - expected) <= 1e-9, f"exact: {actual} against {expected} at log α = {log_alpha}"


def test_the_exact_form_agrees_with_numerical_integration() -> None:
    check_exact(kl)


@pytest.mark.parametrize("form", ["vnd", "molchanov"])
def test_an_approximation_in_the_place_of_the_exact_form_is_caught(form: str) -> None:
    with pytest.raises(AssertionError, match="exact: "):
        check_exact(lambda x: kl(x, form, offset=CONSTANTS["exact"]))


def test_the_exact_derivative_is_dawson_s() -> None:
    log_alpha = (
        torch.cat((torch.linspace(-20, 10, 601), SWITCH + torch.linspace(-0.1, 0.1, 41))).double().requires_grad_()
    )
    log_uniform_kl(log_alpha, "exact").sum().backward()
    s = np.exp(-0.5 * (log_alpha.detach().numpy() + math.log(2)))
    assert log_alpha.grad.isfinite().all()
    np.testing.assert_allclose(log_alpha.grad.numpy(), -s * special.dawsn(s), rtol=1e-10, atol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_kl_is_never_negative_and_finite_with_a_finite_gradient(
    form: str, dtype: torch.dtype, device: torch.device
) -> None:
    log_alpha = torch.linspace(-40, 80, 24_001, dtype=dtype, device=device).requires_grad_()
    value = log_uniform_kl(log_alpha, form)
    value.sum().backward()
    assert value.isfinite().all()
    assert log_alpha.grad.isfinite().all()
    assert (value >= 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_the_default_constant_makes_the_smallest_kl_zero(form: str) -> None:
    smallest = log_uniform_kl(torch.linspace(-10, 60, 700_001, dtype=torch.float64), form).min()
    assert 0 <= smallest < 1e-6
    assert kl(0.0, form, offset=CONSTANTS[form]) == pytest.approx(kl(0.0, form), abs=1e-6)


def test_the_paper_s_form_is_smallest_at_a_finite_alpha_and_negative_without_an_offset() -> None:
    log_alpha = torch.linspace(-5, 10, 150_001, dtype=torch.float64)
    value = log_uniform_kl(log_alpha, "vnd")
    assert float(log_alpha[value.argmin()]) == pytest.approx(1.033, abs=2e-3)
    assert kl(-0.65, "vnd", offset=0.0) > 0 > kl(-0.63, "vnd", offset=0.0)


@pytest.mark.parametrize("form", FORMS)
def test_an_offset_shifts_the_kl_and_nothing_else(form: str) -> None:
    x = torch.linspace(-9, 3, 50, dtype=torch.float64)
    difference = log_uniform_kl(x, form, 3.0) - log_uniform_kl(x, form, 1.0)
    torch.testing.assert_close(difference, torch.full_like(x, 2.0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["exact", "molchanov"])
def test_these_forms_fall_with_alpha(form: str) -> None:
    assert (log_uniform_kl(torch.linspace(-30, 10, 4001, dtype=torch.float64), form).diff() < 0).all()


@pytest.mark.parametrize(("form", "dtype"), turns(FORMS, [torch.float16, torch.bfloat16]), ids=str)
def test_half_precision_is_widened(form: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 3, 50).to(dtype)
    assert log_uniform_kl(x, form).dtype == torch.float32
    assert torch.equal(log_uniform_kl(x, form), log_uniform_kl(x.float(), form))


@pytest.mark.parametrize("form", FORMS)
def test_float32_agrees_with_float64(form: str) -> None:
    x = torch.linspace(-20, 10, 3001)
    narrow = log_uniform_kl(x, form).double()
    assert narrow.isfinite().all()
    torch.testing.assert_close(narrow, log_uniform_kl(x.double(), form), rtol=2e-6, atol=2e-6)
