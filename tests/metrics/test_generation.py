"""Fréchet distance, score, diversity, reconstruction, ranks: scipy, closed forms, singular sets, refused input."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr
from torch import Tensor

from vnd.metrics import generation, spearman


def features(rows: int, columns: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """Not negative and correlated, as those of a network."""
    mix = torch.rand(columns, columns, dtype=torch.float64) / columns
    return (scale * torch.randn(rows, columns, dtype=torch.float64) + shift).relu() @ mix


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.mean(0), torch.as_tensor(np.cov(rows.numpy(), rowvar=False)).reshape(rows.size(1), rows.size(1))


def by_matrix_root(a: Tensor, b: Tensor) -> float:
    """The formula as it is written, by scipy's root of a matrix."""
    return of_moments(*moments(a), *moments(b))


def of_moments(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> float:
    root = np.trace(sqrtm((cov_a @ cov_b).numpy())).real
    return float((mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace()) - 2 * root


@pytest.mark.parametrize(("n", "m", "d"), [(40, 30, 1), (300, 200, 24), (25, 200, 24)])
def test_the_distance_is_that_of_the_formula(n: int, m: int, d: int) -> None:
    a, b = features(n, d), features(m, d, 1.3, 0.2)
    expected = by_matrix_root(a, b)
    assert expected > 0
    assert float(generation.frechet_distance(a, b)) == pytest.approx(expected, rel=1e-9)
    assert generation.frechet_distance(a.float(), b.float()).dtype == torch.float64


def planted(fault: str, a: Tensor, b: Tensor) -> Tensor | float:
    """What a slip in the formula would give."""
    (mean_a, cov_a), (mean_b, cov_b) = moments(a), moments(b)
    if fault == "covariance over N":
        return of_moments(mean_a, cov_a * (len(a) - 1) / len(a), mean_b, cov_b)
    if fault == "float32 moments":
        return of_moments(*(x.float() for x in (mean_a, cov_a, mean_b, cov_b)))
    if fault == "product of the roots' diagonals":
        shared = (cov_a.diagonal() * cov_b.diagonal()).sqrt().sum()
        return (mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * shared
    return generation.frechet_distance(a, b).sqrt()


@pytest.mark.parametrize(
    "fault", ["covariance over N", "float32 moments", "product of the roots' diagonals", "not squared"]
)
def test_slips_in_the_formula_are_caught(fault: str) -> None:
    a, b = features(300, 24), features(200, 24, 1.3, 0.2)
    assert float(planted(fault, a, b)) != pytest.approx(by_matrix_root(a, b), rel=1e-9)


@pytest.mark.parametrize(("rows", "columns"), [(5, 40), (40, 40), (41, 40)])
def test_sets_with_a_closed_form(rows: int, columns: int) -> None:
    """As exact with fewer rows than columns: where the root of a matrix loses half of its digits."""
    a = features(rows, columns)
    mean, cov = moments(a)
    turned = torch.linalg.qr(torch.randn(columns, columns, dtype=torch.float64)).Q
    shift = torch.randn(columns, dtype=torch.float64)
    trace = float(cov.trace())
    assert float(generation.frechet_distance(a, a)) == pytest.approx(0, abs=1e-13 * trace)
    assert float(generation.frechet_distance(a, a + shift)) == pytest.approx(float(shift @ shift), rel=1e-12)
    tripled = float(4 * mean @ mean) + 4 * trace  # tr (Σ · 9Σ)^½ is 3 tr Σ
    assert float(generation.frechet_distance(a, 3 * a)) == pytest.approx(tripled, rel=1e-12)
    assert float(generation.frechet_distance(a @ turned, 3 * a @ turned)) == pytest.approx(tripled, rel=1e-12)


def test_sets_that_vary_in_different_directions() -> None:
    turned = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64)).Q
    a = torch.randn(8, 4, dtype=torch.float64) @ turned[:4]
    b = torch.randn(9, 5, dtype=torch.float64) @ turned[4:9]
    expected = (a.mean(0) - b.mean(0)).square().sum() + a.var(0).sum() + b.var(0).sum()  # nothing is shared
    assert float(generation.frechet_distance(a, b)) == pytest.approx(float(expected), rel=1e-12)
    one = float(generation.frechet_distance(a[:2], torch.zeros(2, 30)))  # a set without any variance
    assert one == pytest.approx(float(a[:2].mean(0).square().sum() + a[:2].var(0).sum()), rel=1e-12)


def test_the_distance_is_symmetric_and_never_negative() -> None:
    for rows in (2, 3, 17, 64, 400):
        a = features(rows, 32)
        for b in (a + 1e-9 * torch.randn_like(a), a.flip(0), features(rows + 5, 32), 1e-5 * a, 1e5 * a):
            there, back = generation.frechet_distance(a, b), generation.frechet_distance(b, a)
            assert there.isfinite()
            assert min(there, back) >= 0
            scale = float(a.var(0).sum() + b.var(0).sum())
            assert float(there) == pytest.approx(float(back), rel=1e-12, abs=1e-13 * scale)


@pytest.mark.parametrize(("rows", "classes", "splits"), [(100, 10, 10), (31, 1008, 3), (20, 4, 1), (7, 3, 7)])
def test_the_score_is_that_of_the_formula(rows: int, classes: int, splits: int) -> None:
    """torch-fidelity's `isc_features_to_metric`, without its shuffling."""
    logits = 3 * torch.randn(rows, classes, dtype=torch.float64)
    probs, scores = logits.softmax(1).numpy(), []
    for part in range(splits):
        own = probs[part * rows // splits : (part + 1) * rows // splits]
        scores.append(math.exp((own * (np.log(own) - np.log(own.mean(0)))).sum(1).mean()))
    mean, score_std = generation.inception_score(logits.softmax(1), splits)
    assert float(mean) == pytest.approx(np.mean(scores), rel=1e-12)
    assert float(score_std) == pytest.approx(np.std(scores), rel=1e-9, abs=1e-14)
    assert float(generation.inception_score(logits.softmax(1).float(), splits)[0]) == pytest.approx(
        float(mean), rel=1e-6
    )


def test_the_score_lies_between_one_and_the_number_of_classes() -> None:
    assert [float(x) for x in generation.inception_score(torch.eye(8).repeat(10, 1))] == pytest.approx([8, 0])
    assert [float(x) for x in generation.inception_score(torch.eye(8)[[3] * 20])] == [1, 0]  # one class, quite sure
    assert float(generation.inception_score(torch.full((20, 8), 0.125))[0]) == pytest.approx(1, abs=1e-14)
    in_order = generation.inception_score(torch.eye(2).repeat_interleave(10, 0), 2)
    assert float(in_order[0]) == 1  # as the docstring warns


@pytest.mark.parametrize("rows", [2, 1024, 1025, 2100])
def test_diversity_is_the_mean_over_all_pairs(rows: int) -> None:
    assert generation.ROWS == 1024  # the sizes are around one and two blocks
    values = torch.randn(rows, 3, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.1])
    for moved in (values, values + 1e5):
        found = generation.pairwise_distance(moved)
        assert float(found) == pytest.approx(pdist(moved.numpy()).mean(), rel=1e-9)


def test_equal_images_have_no_diversity() -> None:
    assert generation.pairwise_distance(torch.rand(1, 50).repeat(40, 1)) == 0
    near = 100 + 1e-6 * torch.randn(40, 50, dtype=torch.float64)  # a generator that has collapsed
    assert float(generation.pairwise_distance(near)) == pytest.approx(pdist(near.numpy()).mean(), rel=1e-6)


def test_reconstruction_error_is_per_pixel_or_summed() -> None:
    images = torch.rand(5, 3, 8, 4)
    made = images + torch.arange(5)[:, None, None, None] / 10  # also beyond white
    assert generation.reconstruction_error(images, made).tolist() == pytest.approx(
        [0, 0.01, 0.04, 0.09, 0.16], rel=1e-5
    )
    summed = generation.reconstruction_error(images, made, summed=True)
    assert summed.tolist() == pytest.approx([96 * error for error in (0, 0.01, 0.04, 0.09, 0.16)], rel=1e-5)
    assert summed.dtype == torch.float64
    one = torch.zeros(2, 1, 2, 2).index_put(
        (torch.tensor(1), torch.tensor(0), torch.tensor(1), torch.tensor(0)), torch.tensor(1.0)
    )
    assert generation.reconstruction_error(torch.zeros(2, 1, 2, 2), one).tolist() == [0, 0.25]  # of its own image alone


def test_rank_correlation_agrees_with_scipy() -> None:
    a = torch.randn(200)
    for b in (a + torch.randn(200), a.round(), (3 * a).round().long(), -(a**3)):
        expected = spearmanr(a.numpy(), b.numpy()).statistic
        assert float(spearman(a, b)) == pytest.approx(expected, abs=1e-12)
    assert spearman(a, torch.ones(200)) == 0
    assert float(spearman(a, a.exp())) == pytest.approx(1, abs=1e-14)
