"""Stability over lengths, temperatures and dtypes: finite, between 0 and 1, monotone, with finite gradients."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from covering import pairs, turns
from vnd.distributions import BernoulliChain, Downhill, OrderedNormal
from vnd.functional import length_log_probs, log_survival

SIZES = [1, 32, 1000, 100_000]
TEMPERATURES = [1e-4, 0.5, 2.0, 1e3]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def logits_of(n: int, kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    position = torch.arange(n, dtype=torch.float64)
    logits = {
        "mixed": 4 * torch.sin(2.3 * position),
        "kept": torch.full((n,), 3.0, dtype=torch.float64),
        "uniform": torch.log(n - position),
        "±50": 50 * torch.sign(torch.sin(2.3 * position + 0.1)),
        "±1e4": 1e4 * torch.sign(torch.sin(2.3 * position + 0.1)),
        "all 1e4": torch.full((n,), 1e4, dtype=torch.float64),
        "all -1e4": torch.full((n,), -1e4, dtype=torch.float64),
    }[kind]
    return logits.to(dtype)


KINDS = ["mixed", "kept", "uniform", "±50", "±1e4", "all 1e4", "all -1e4"]


def cold_downhill(temperature: float, logits: Tensor) -> Downhill:
    """Temperatures below 0.05 warn, on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Downhill(temperature, logits)


def check_descents(z: Tensor, dtype: torch.dtype) -> None:
    assert z.dtype == dtype, "dtype"
    assert z.isfinite().all(), "not finite"
    assert (z >= 0).all(), "negative"
    assert (z <= 1).all(), "above one"
    assert (z[..., 1:] <= z[..., :-1]).all(), "not monotone"


@pytest.mark.parametrize(("n", "temperature", "dtype"), pairs(SIZES, TEMPERATURES, DTYPES), ids=str)
def test_samples_and_gradients_are_finite_bounded_and_monotone(
    n: int, temperature: float, dtype: torch.dtype, device: torch.device
) -> None:
    for kind in KINDS if n <= 1000 else ("kept", "±50"):
        logits = logits_of(n, kind, dtype).to(device).requires_grad_()
        distribution = cold_downhill(temperature, logits)
        length = torch.tensor([0, n // 2, n], device=device)
        for draw in (
            lambda q=distribution: q.rsample((3,)),
            lambda q=distribution: q.rsample((3,), hard=True),
            lambda q=distribution, k=length: q.rsample_given(k),
            lambda q=distribution, k=length: q.rsample_given(k, hard=True),
        ):
            z = draw()
            check_descents(z, dtype)
            (gradient,) = torch.autograd.grad(z.double().mean(), logits, retain_graph=True)
            assert gradient.dtype == dtype
            assert gradient.isfinite().all()


@pytest.mark.parametrize(("n", "dtype"), [*turns(SIZES, DTYPES), *turns(SIZES[::-1], DTYPES)], ids=str)
def test_closed_forms_and_their_gradients_are_finite(n: int, dtype: torch.dtype, device: torch.device) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for kind in KINDS:
        logits = logits_of(n, kind, dtype).to(device).requires_grad_()
        chain = BernoulliChain(logits)
        check_descents(chain.sample((3,)), dtype)
        for value in (
            chain.log_survival,
            chain.length_log_probs,
            chain.entropy(),
            chain.expected_length,
            chain.variance,
        ):
            assert value.dtype == wide
            assert value.isfinite().all()
        (gradient,) = torch.autograd.grad(chain.entropy() + chain.expected_length / n, logits)
        assert gradient.isfinite().all()
        assert 0 <= chain.expected_length <= n * (1 + 1e-6)
        assert chain.entropy() >= 0


@pytest.mark.parametrize(
    ("n", "kind"),
    [*turns(SIZES, ["mixed", "kept", "uniform", "±50"]), *turns(SIZES[::-1], ["mixed", "kept", "uniform", "±50"])],
)
def test_log_survival_in_float32_agrees_with_float64(n: int, kind: str) -> None:
    logits = logits_of(n, kind, torch.float32)
    check_precision(log_survival, logits)


def check_precision(function: Callable[[Tensor], Tensor], logits: Tensor) -> None:
    narrow, wide = function(logits).double(), log_survival(logits.double())
    assert narrow.isfinite().all(), "not finite"
    error = ((narrow - wide) / wide).abs().max()
    assert error <= 4e-7, f"relative error {error:.2g}"


@pytest.mark.parametrize(("n", "kind"), turns(SIZES, ["mixed", "kept", "uniform"]))
def test_length_probabilities_in_float32_agree_with_float64(n: int, kind: str) -> None:
    logits = logits_of(n, kind, torch.float32)
    narrow, wide = length_log_probs(logits).double(), length_log_probs(logits.double())
    assert narrow.isfinite().all()
    torch.testing.assert_close(narrow, wide, rtol=1e-6, atol=1e-6)
    assert abs(float(narrow.exp().sum()) - 1) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_naive_products_are_caught(dtype: torch.dtype) -> None:
    def naive(logits: Tensor) -> Tensor:
        return torch.sigmoid(logits.to(dtype)).cumprod(-1).log()

    with pytest.raises(AssertionError, match="not finite"):
        check_precision(naive, torch.full((1000,), 0.9).logit())
    if dtype == torch.float16:
        with pytest.raises(AssertionError, match="relative error"):
            check_precision(naive, torch.full((30,), 0.9).logit())


def test_logs_of_rounded_probabilities_are_caught() -> None:
    with pytest.raises(AssertionError, match="relative error"):
        check_precision(lambda logits: torch.sigmoid(logits).log().cumsum(-1), logits_of(32, "kept") + 9)


def test_one_minus_cumsum_is_caught_where_the_suffix_sum_is_monotone() -> None:
    increments = torch.softmax(5 * torch.randn(100, 1001), -1)
    with pytest.raises(AssertionError, match=r"negative|above one|not monotone"):
        check_descents(1 - increments.cumsum(-1)[:, :-1], torch.float32)


def test_a_softmax_in_the_parameters_dtype_is_caught() -> None:
    scores = torch.randn(3, 1000, dtype=torch.float16) / torch.tensor(1e-5, dtype=torch.float16)
    with pytest.raises(AssertionError, match="not finite"):
        check_descents((scores.exp() / scores.exp().sum(-1, keepdim=True)).flip(-1).cumsum(-1).flip(-1), torch.float16)


@pytest.mark.parametrize(("dtype", "n"), [*turns(DTYPES, [1, 32, 1000]), (torch.float32, 1000), (torch.float16, 32)])
def test_ordered_codes_are_finite_and_zero_past_their_length(n: int, dtype: torch.dtype, device: torch.device) -> None:
    logits = logits_of(n, "kept", dtype).to(device).requires_grad_()
    code = OrderedNormal(
        torch.ones(n + 2, device=device, dtype=dtype), torch.ones(n + 2, device=device, dtype=dtype), logits, 0.5
    )
    for hard in (False, True):
        h = code.rsample((4,), hard=hard)
        assert h.dtype == dtype
        assert h.isfinite().all()
        (gradient,) = torch.autograd.grad(h.double().mean(), logits, retain_graph=True)
        assert gradient.isfinite().all()
    assert code.log_prob(code.sample((4,))).isfinite().all()


@pytest.mark.parametrize("temperature", [1e-4, 0.049])
def test_cold_temperatures_warn_and_say_what_to_do(temperature: float) -> None:
    with pytest.warns(UserWarning, match=r"temperature .* is below 0\.05"):
        Downhill(temperature, torch.zeros(3))
    with pytest.warns(UserWarning, match="below"):
        Downhill(torch.tensor([1.0, temperature]), torch.zeros(2, 3))


def test_half_precision_logits_are_computed_in_float32() -> None:
    exact = torch.tensor([0.1, 2.0, -1.0])
    for dtype in (torch.float16, torch.bfloat16):
        logits = exact.to(dtype)
        assert torch.equal(length_log_probs(logits), length_log_probs(logits.float()))
        torch.manual_seed(1)
        narrow = Downhill(0.7, logits).rsample((100,))
        torch.manual_seed(1)
        assert torch.equal(narrow, Downhill(0.7, logits.float()).rsample((100,)).to(dtype))
