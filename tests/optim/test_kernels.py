"""The passes over large gradients: what torch does without them, and the kernels against that where there is a GPU."""

import math

import pytest
import torch
from torch import Tensor

from vnd.optim import kernels
from vnd.optim.kernels import narrow_moments, narrow_product, norms, put_scaled

SHAPES = ((3, 5, 7, 401), (2, 96, 9, 96), (4, 1, 1, 4096), (2, 3, 1, 4099))


@pytest.fixture(params=SHAPES, ids=str)
def batch(request: pytest.FixtureRequest, device: torch.device) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(request.param, device=device)


def test_norms_are_those_of_float64_at_any_scale(batch: Tensor) -> None:
    batch[1] *= 1e30  # its squares leave float32
    found, expected = norms(batch), torch.linalg.vector_norm(batch.double().flatten(1), dim=1)
    assert found.dtype == torch.float64
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_place_takes_what_is_scaled_and_stays_where_a_scale_is_not_finite(batch: Tensor, bad: float) -> None:
    place = torch.randn_like(batch)
    before, scale = place.clone(), torch.rand(len(batch), dtype=torch.float64, device=batch.device)
    scale[0] = bad
    batch[0, 0, 0] = bad
    put_scaled(batch, scale, place)
    assert torch.equal(place[0], before[0])
    for one, factor, found in zip(batch[1:], scale[1:], place[1:], strict=True):
        assert found.isfinite().all()
        assert torch.equal(found, one * factor.float())


@pytest.mark.skipif(not torch.cuda.is_available() or kernels.triton is None, reason="the kernel needs a GPU and Triton")
@pytest.mark.parametrize("size", [2, 3, 9, 16])
@pytest.mark.parametrize("after", [16, 96, 401])
def test_a_narrow_product_is_that_of_float64(size: int, after: int) -> None:
    torch.manual_seed(0)
    matrix, x = torch.randn(3, size, size, device="cuda"), torch.randn(3, 5, size, after, device="cuda")
    found = narrow_product(matrix, x)
    assert found is not None
    expected = torch.einsum("nij,nbja->nbia", matrix.double(), x.double())
    assert expected.isfinite().all()
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.skipif(not torch.cuda.is_available() or kernels.triton is None, reason="the kernel needs a GPU and Triton")
@pytest.mark.parametrize("size", [2, 3, 9, 16])
@pytest.mark.parametrize("after", [16, 96, 401])
def test_narrow_moments_are_those_of_float64(size: int, after: int) -> None:
    torch.manual_seed(0)
    x = 1e18 * torch.randn(3, 5, size, after, device="cuda")
    unit = torch.linalg.vector_norm(x.flatten(1), dim=1).reciprocal().view(-1, 1, 1, 1)
    found = narrow_moments(x, unit)
    assert found is not None
    expected = torch.einsum("nbia,nbja,n->nij", x.double(), x.double(), unit.double().flatten())
    assert expected.isfinite().all()
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_there_is_no_narrow_product_where_no_kernel_suits() -> None:
    assert narrow_product(torch.eye(9).expand(2, 9, 9), torch.zeros(2, 3, 9, 20)) is None
    assert narrow_moments(torch.zeros(2, 3, 9, 20), torch.ones(2, 1, 1, 1)) is None
