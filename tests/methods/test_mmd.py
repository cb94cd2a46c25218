"""The squared MMD: against closed forms, double loops and a biased estimate, and as a loss of a Dirichlet."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet

from vnd.methods.sn3 import median_distance, squared_mmd

WIDTHS = (0.5, 1.0, 2.0)
SCALE = 0.7


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=dtype)


def kernel(a: Tensor, b: Tensor, widths: tuple[float, ...], scale: float) -> float:
    """Of two points, by its definition."""
    square = sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True))
    return sum(math.exp(-square / (2 * m**2 * scale)) for m in widths) / len(widths)


def by_loops(x: Tensor, y: Tensor, widths: tuple[float, ...], scale: float) -> float:
    """The estimate of one example, (S, C) and (T, C), pair by pair."""
    s, t = len(x), len(y)
    xx = sum(kernel(x[i], x[j], widths, scale) for i in range(s) for j in range(s) if i != j)
    yy = sum(kernel(y[i], y[j], widths, scale) for i in range(t) for j in range(t) if i != j)
    xy = sum(kernel(x[i], y[j], widths, scale) for i in range(s) for j in range(t))
    return xx / (s * (s - 1)) + yy / (t * (t - 1)) - 2 * xy / (s * t)


def biased(x: Tensor, y: Tensor) -> Tensor:
    """The planted fault: the V-statistic, which pairs each point with itself."""

    def mean(a: Tensor, b: Tensor) -> Tensor:
        square = (a[:, None] - b[None]).square().sum(-1)
        return sum(((-square / (2 * m**2 * SCALE)).exp() for m in WIDTHS), torch.tensor(0.0)).mean((0, 1)) / len(WIDTHS)

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def unbiased(x: Tensor, y: Tensor) -> Tensor:
    return squared_mmd(x, y, WIDTHS, torch.tensor(SCALE, dtype=torch.float64))


def of_gaussians(a: Tensor, s: float, b: Tensor, t: float) -> float:
    """MMD² of N(a, s² I) and N(b, t² I): a Gaussian kernel's mean over a Gaussian difference is a Gaussian integral."""

    def mean(variance: float, gap: float) -> float:
        hs = [m**2 * SCALE for m in WIDTHS]
        total = sum((h / (h + variance)) ** (len(a) / 2) * math.exp(-gap / (2 * (h + variance))) for h in hs)
        return total / len(hs)

    gap = float((a - b).square().sum())
    return mean(2 * s**2, 0.0) + mean(2 * t**2, 0.0) - 2 * mean(s**2 + t**2, gap)


A, B = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64), torch.tensor([-0.4, 0.5, 0.0], dtype=torch.float64)


def errors_off(estimate: Callable[[Tensor, Tensor], Tensor], count: int, trials: int, equal: bool) -> float:
    """How many standard errors the mean of an estimate is off the closed form."""
    b, t = (A, 0.6) if equal else (B, 1.1)
    x = A + 0.6 * normal((count, trials, 3), 1)
    y = b + t * normal((count, trials, 3), 2)
    values = estimate(x, y)
    assert values.shape == (trials,)
    return float((values.mean() - of_gaussians(A, 0.6, b, t)) / (values.std() / trials**0.5))


def test_many_points_give_the_closed_form_of_two_gaussians() -> None:
    truth = of_gaussians(A, 0.6, B, 1.1)
    assert truth > 0.05
    assert abs(errors_off(unbiased, 100, 100, equal=False)) < 4
    x, y = A + 0.6 * normal((1000, 3), 3), B + 1.1 * normal((1000, 3), 4)
    assert float(unbiased(x, y)) == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("equal", [True, False])
def test_three_points_of_each_are_unbiased_and_the_estimate_that_pairs_points_with_themselves_is_not(
    equal: bool,
) -> None:
    assert abs(errors_off(unbiased, 3, 40_000, equal)) < 4
    assert errors_off(biased, 3, 40_000, equal) > 100


def test_of_equal_distributions_the_estimate_is_0_in_the_mean_and_often_negative() -> None:
    assert of_gaussians(A, 0.6, A, 0.6) == 0
    values = unbiased(normal((3, 1000, 3), 5), normal((3, 1000, 3), 6))
    assert 0.3 < float((values < 0).double().mean()) < 0.9


@pytest.mark.parametrize(
    ("widths", "dtype", "tolerance"),
    [
        ((1.0,), torch.float64, 1e-12),
        ((0.25, 0.5, 1.0, 2.0, 4.0), torch.float32, 1e-6),
        ((0.3, 3.0), torch.float64, 1e-12),
    ],
)
def test_the_estimate_is_that_of_a_double_loop(widths: tuple[float, ...], dtype: torch.dtype, tolerance: float) -> None:
    x, y = normal((4, 2, 3, 5), 7, dtype), normal((3, 2, 3, 5), 8, dtype) + 0.5
    scale = 0.5 + normal((2, 3), 9, dtype).abs()
    found, shared, chosen = squared_mmd(x, y, widths, scale), unbiased(x, y), squared_mmd(x, y, widths)
    medians = median_distance(x, y)
    assert found.shape == (2, 3)
    assert found.dtype == dtype
    for i in range(2):
        for j in range(3):
            own = x[:, i, j], y[:, i, j]
            assert float(found[i, j]) == pytest.approx(by_loops(*own, widths, float(scale[i, j])), abs=tolerance)
            assert float(shared[i, j]) == pytest.approx(by_loops(*own, WIDTHS, SCALE), abs=tolerance)
            assert float(chosen[i, j]) == pytest.approx(by_loops(*own, widths, float(medians[i, j])), abs=tolerance)


def test_half_precision_is_computed_in_float32() -> None:
    x, y = (normal((4, 3, 5), seed).to(torch.bfloat16) for seed in (1, 2))
    found = squared_mmd(x, y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, squared_mmd(x.float(), y.float()))


def near_a_vertex() -> tuple[Tensor, Tensor]:
    """Sure answers in ten classes, float32, about 1e-4 apart."""
    sure = torch.tensor([12.0] + [0.0] * 9)
    x, y = ((sure + normal((6, 4, 10), seed, torch.float32)).softmax(-1) for seed in (10, 11))
    return x, y


def test_points_close_to_a_vertex_are_told_apart_exactly() -> None:
    x, y = near_a_vertex()
    scale = median_distance(x, y, floor=0.0)
    assert float(scale.max()) < 1e-7
    found = squared_mmd(x, y, WIDTHS, scale)
    exact = [by_loops(x[:, i], y[:, i], WIDTHS, float(scale[i])) for i in range(4)]
    torch.testing.assert_close(found, torch.tensor(exact), rtol=0, atol=1e-5)
    points = torch.cat([x, y]).movedim(0, 1)  # the planted fault: float32 products of points that are not centred
    norms, truth = points.square().sum(-1), torch.cdist(points.double(), points.double()).square()
    careless = norms[..., None] + norms[..., None, :] - 2 * points @ points.mT
    assert float((careless - truth).abs().max()) > float(scale.min())


def test_the_estimate_does_not_depend_on_where_the_clouds_lie() -> None:
    x, y = ((256 * normal((4, 3, 5), seed)).round() / 256 for seed in (18, 19))  # so that the sum below is exact
    torch.testing.assert_close(unbiased(x + 2**20, y + 2**20), unbiased(x, y), rtol=0, atol=1e-9)


def test_no_kernel_is_above_1() -> None:
    near = 1e-12 * normal((4, 100, 5), 20) + normal((1, 100, 5), 21)  # squares of 1e-24, below the rounding of 1
    found = squared_mmd(near, normal((4, 100, 5), 22), scale=torch.tensor(1e-18, dtype=torch.float64))
    assert float(found.abs().max()) <= 2  # a negative square of 1e-16 would give e to the hundreds


def test_autocast_does_not_change_the_estimate() -> None:
    x, y = near_a_vertex()
    with torch.autocast("cpu", torch.bfloat16):
        found = squared_mmd(x, y)
    assert torch.equal(found, squared_mmd(x, y))


def test_the_median_is_that_of_the_pooled_pairs() -> None:
    x, y = normal((3, 2, 4), 12), normal((2, 2, 4), 13)  # 10 pairs, an even number; with 3 + 3 points 15, an odd one
    for y_ in (y, torch.cat([y, y[:1] + 1])):
        found = median_distance(x, y_)
        assert found.shape == (2,)
        for example in range(2):
            pooled = [*x[:, example].numpy(), *y_[:, example].numpy()]
            pairs = [float(((p - q) ** 2).sum()) for i, p in enumerate(pooled) for q in pooled[:i]]
            assert float(found[example]) == pytest.approx(float(np.median(pairs)), abs=1e-12)
    corners = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 4.0], [3.0, 4.0]])
    assert float(median_distance(*corners)) == np.median([9, 16, 25, 25, 16, 9])


def test_the_median_is_a_constant_and_never_below_its_floor() -> None:
    x = normal((3, 2), 14).requires_grad_()
    assert not median_distance(x, x + 1).requires_grad
    same = torch.full((3, 5, 2), 0.5)
    assert torch.equal(median_distance(same, same), torch.full((5,), 1e-4))
    assert torch.equal(median_distance(same, same, floor=0.25), torch.full((5,), 0.25))


def test_the_gradient_is_that_of_finite_differences() -> None:
    x, y = normal((3, 2, 4), 15).requires_grad_(), normal((2, 2, 4), 16).requires_grad_()
    assert torch.autograd.gradcheck(unbiased, (x, y))


def test_coinciding_points_have_finite_values_and_gradients() -> None:
    cloud = normal((4, 3, 5), 17, torch.float32).softmax(-1)
    for points in (cloud, torch.eye(5)[torch.zeros(4, 3, dtype=torch.long)]):  # one vertex, in the second
        x, y = points.clone().requires_grad_(), points.clone().requires_grad_()
        value = squared_mmd(x, y)
        value.sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert all(bool(found.isfinite().all()) for found in (value, x.grad, y.grad))
        assert float(value.detach().max()) <= 1e-6  # a point and its copy are as near as can be, and count against it
    assert value.tolist() == pytest.approx([0.0] * 3, abs=1e-6)


def test_a_dirichlet_learns_another_ones_mean_and_spread_through_its_samples() -> None:
    torch.manual_seed(0)
    target = Dirichlet(torch.tensor([6.0, 3.0, 1.0]))
    log_concentration = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([log_concentration], lr=0.03)
    for index in range(300):
        optimizer.zero_grad()
        student = Dirichlet(log_concentration.exp())
        squared_mmd(target.sample((8, 32)), student.rsample((8, 32))).mean().backward()
        gradient = log_concentration.grad
        assert gradient is not None
        assert bool(gradient.isfinite().all())
        assert index > 0 or float(gradient.abs().min()) > 1e-4
        optimizer.step()
    learned = Dirichlet(log_concentration.detach().exp())
    assert float((learned.mean - target.mean).abs().max()) <= 0.05
    assert 6 < float(learned.concentration.sum()) < 16  # 10 is the target's, 3 the start


def test_it_compiles_as_one_graph() -> None:
    x, y = near_a_vertex()
    ours = torch.compile(squared_mmd, backend="eager", fullgraph=True)
    torch.testing.assert_close(ours(x, y), squared_mmd(x, y))


def test_the_median_across_is_of_pairs_between_the_clouds() -> None:
    """A tight cloud of many points far from another: the pooled median is within it, that across is not."""
    x, y = (
        torch.zeros(3, 2),
        torch.tensor([1.0, 0.0]) + 1e-2 * torch.randn(12, 2, generator=torch.Generator().manual_seed(0)),
    )
    across = ((x[:, None] - y[None]) ** 2).sum(-1).flatten()
    assert float(median_distance(x, y, across=True)) == pytest.approx(float(np.median(across.numpy())), rel=1e-5)
    assert float(median_distance(x, y)) < 1e-2
    assert not median_distance(x, (y + 0).requires_grad_(), across=True).requires_grad
