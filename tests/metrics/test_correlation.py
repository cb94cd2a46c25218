"""Correlation of uncertainties: numpy, constants, exact symmetry, refused input."""

import numpy as np
import pytest
import torch

from vnd import metrics


def scores(widths: int = 6, rows: int = 300) -> torch.Tensor:
    shared = torch.randn(rows, dtype=torch.float64)
    return shared + torch.linspace(3, 0.1, widths)[:, None] * torch.randn(widths, rows, dtype=torch.float64)


def test_pearson_agrees_with_numpy() -> None:
    for values in (scores(), 1e6 + scores(), scores().float(), 1e200 * scores(), 1e-200 * scores()):
        expected = np.corrcoef((values.double() / values.abs().max().double()).numpy())
        assert np.isfinite(expected).all()
        assert metrics.pearson(values).numpy() == pytest.approx(expected, abs=1e-9)


def test_the_matrix_is_exactly_symmetric_with_ones() -> None:
    matrix = metrics.pearson(torch.cat((scores(40, 17), -3 * scores(2, 17), torch.zeros(1, 17))))
    assert matrix.dtype == torch.float64
    assert torch.equal(matrix, matrix.T)
    assert (matrix.diagonal() == 1).all()
    assert matrix.abs().max() <= 1
    assert matrix.isfinite().all()


def test_known_correlations() -> None:
    row = torch.tensor([1.0, 2.0, 4.0])
    matrix = metrics.pearson(torch.stack((row, 2 * row + 7, -row)))
    assert matrix.numpy() == pytest.approx(np.array([[1, 1, -1], [1, 1, -1], [-1, -1, 1]]), abs=1e-14)
    assert metrics.pearson(torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0]])).tolist() == [[1, 0], [0, 1]]
    independent = metrics.pearson(torch.randn(2, 40_000))
    assert abs(float(independent[0, 1])) < 0.03  # six standard errors


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e300, 5e-324])
def test_a_constant_row_is_uncorrelated_with_all_others(constant: float) -> None:
    rows = torch.stack((torch.full((7,), constant, dtype=torch.float64), torch.arange(7).double()))
    assert metrics.pearson(rows).tolist() == [[1, 0], [0, 1]]
    assert metrics.pearson(rows[:1]).tolist() == [[1]]
    assert metrics.pearson(rows[:, :1]).tolist() == [[1, 0], [0, 1]]  # one image: every row is constant
    assert metrics.pearson(rows[[0, 0]]).tolist() == [[1, 0], [0, 1]]


def test_the_order_of_the_images_does_not_matter() -> None:
    values = scores()
    again = metrics.pearson(values[:, torch.randperm(300)])
    assert torch.allclose(again, metrics.pearson(values), rtol=0, atol=1e-13)


def test_the_smallest_width_is_the_first_that_agrees_with_the_last() -> None:
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, 3] = matrix[3, :3] = torch.tensor([0.5, 0.9, 0.95])
    assert [metrics.smallest_width(matrix, threshold) for threshold in (-1, 0.4, 0.5, 0.89, 0.9, 0.95, 0.999)] == [
        *(0, 0, 1, 1, 2, 3, 3)
    ]  # 0.9 does not exceed 0.9
    assert metrics.smallest_width(matrix) == 2
    assert metrics.smallest_width(torch.ones(1, 1)) == 0
    values = scores()
    column = np.corrcoef(values.numpy())[-1]
    assert metrics.smallest_width(metrics.pearson(values), 0.6) == int(np.argmax(column > 0.6)) > 0
