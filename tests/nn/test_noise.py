"""Noise from mean and variance: the plain form, and the kernel against it where there is a GPU."""

import pytest
import torch
from scipy import stats

from vnd.nn.noise import SMALLEST_VARIANCE, add_noise, plain_add_noise


def assert_standard_normal(noise: torch.Tensor) -> None:
    values = noise.flatten().double().cpu().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-6
    for lag in (1, 2, 511, 512, 513, 2048):  # the strides of the kernel's blocks
        product = values[:-lag] * values[lag:]
        assert abs(product.mean()) < 5.5 / len(product) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_have_the_given_mean_and_variance(device, dtype):
    mean = torch.full((64, 8, 13, 17), 3.0, device=device, dtype=dtype)
    variance = torch.full_like(mean, 4.0)
    out = add_noise(mean, variance)
    assert out.dtype == dtype
    if dtype == torch.float32:
        assert_standard_normal((out - 3) / 2)
    else:
        assert float(out.float().mean()) == pytest.approx(3, abs=0.03)
        assert float(out.float().std()) == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("leading", [5, 2])
def test_the_gradient_is_that_of_the_noise_that_was_drawn(device, layout, leading):
    mean = torch.randn(5, 7, 9, 11, device=device).to(memory_format=layout).requires_grad_()
    variance = torch.rand(5, 7, 9, 11, device=device).to(memory_format=layout)
    variance[0] = 0.0
    variance.requires_grad_()
    rest = variance[leading:].detach() if leading < 5 else None
    out = add_noise(mean, variance[:leading], rest=rest)
    weight = torch.randn_like(out)
    grad_mean, grad_variance = torch.autograd.grad((out * weight).sum(), (mean, variance))
    noise = (out - mean).detach() / variance.detach().clamp(min=SMALLEST_VARIANCE).sqrt()
    assert torch.equal(grad_mean, weight)
    assert torch.equal(grad_variance[0], torch.zeros_like(grad_variance[0]))
    expected = weight * noise / (2 * variance.detach().sqrt()) * 5 / leading
    torch.testing.assert_close(grad_variance[1:leading], expected[1:leading], rtol=1e-3, atol=1e-4)
    assert not grad_variance[leading:].any()


def test_a_seed_repeats_the_noise_and_another_does_not(device):
    mean, variance = torch.zeros(1000, device=device), torch.ones(1000, device=device)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(add_noise(mean, variance))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_unlike_layouts_fall_back_to_the_plain_form(device):
    mean = torch.zeros(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    variance = torch.ones(2, 3, 4, 5, device=device)
    torch.manual_seed(0)
    out = add_noise(mean, variance)
    torch.manual_seed(0)
    assert torch.equal(out, plain_add_noise(mean, variance))
