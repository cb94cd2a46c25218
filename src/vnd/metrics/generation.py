"""How good generated images and reconstructions are: distances of feature sets, scores, diversity, pixel errors.

Features (N, D) and class probabilities (N, C) are those of a feature extractor, and every number belongs to it: a
Fréchet distance is an FID only with Inception's features. All are pooled over the N rows and computed in float64 on
the CPU, whatever the device of the input.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from vnd.metrics._checks import check_count, check_tensor, checked_predictions, checked_rows, checked_scores

ROWS = 1024  # of a table of distances at a time
TOLERANCE = 1e-6  # by which a covariance may miss symmetry or positivity, relative to its largest entry


def frechet_distance(a: Tensor, b: Tensor) -> Tensor:
    r"""Squared Fréchet distance of the normal distributions with two sets' means and covariances.

    $$\|\mu_a - \mu_b\|^2 + \operatorname{tr} \Sigma_a + \operatorname{tr} \Sigma_b
    - 2 \operatorname{tr} (\Sigma_a \Sigma_b)^{1/2}$$

    with the covariances over N − 1. Symmetric, not negative, and zero for two equal sets. Of features of Inception it
    is the FID of Heusel et al. (2017).

    Note: With $\Sigma = R^\top R$ the last trace is the sum of the singular values of $R_a R_b^\top$. So no root is
        taken of eigenvalues that are zero up to rounding, and fewer rows than columns cost no digits. The distance
        itself is biased upwards in a finite set: compare sets of equally many rows only.

    Args:
        a: Features (N, D), at least two rows; finite.
        b: Features (M, D), likewise.

    >>> frechet_distance(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [5.0]]))
    tensor(9., dtype=torch.float64)
    """
    name = "frechet_distance"
    a, b = checked_rows(name, "a", a, "(N, D)"), checked_rows(name, "b", b, "(M, D)")
    if a.size(1) != b.size(1):
        raise ValueError(f"{name}: a and b must have equally many columns; got {a.size(1)} and {b.size(1)}")
    for argument, rows in (("a", a), ("b", b)):
        if len(rows) < 2:
            raise ValueError(f"{name}: {argument} must have at least 2 rows to have a covariance; got 1")
    return _frechet(a.mean(0), _root_of_rows(a), b.mean(0), _root_of_rows(b))


def frechet_distance_of(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> Tensor:
    r"""`frechet_distance` from means and covariances, where the features themselves are not at hand.

    Note: A singular covariance has lost digits that `frechet_distance` keeps: of eigenvalues that are zero up to
        rounding, what is below D · 2e-16 of the largest counts as zero.

    Args:
        mean_a: Mean (D,).
        cov_a: Covariance (D, D), symmetric, no eigenvalue below zero but for rounding.
        mean_b: Mean (D,).
        cov_b: Covariance (D, D), likewise.

    >>> frechet_distance_of(torch.zeros(2), torch.eye(2), torch.ones(2), 4 * torch.eye(2))
    tensor(4., dtype=torch.float64)
    """
    name = "frechet_distance_of"
    means = [_checked_mean(name, "mean_a", mean_a), _checked_mean(name, "mean_b", mean_b)]
    if len(means[0]) != len(means[1]):
        raise ValueError(f"{name}: mean_a and mean_b must be equally long; got {len(means[0])} and {len(means[1])}")
    roots = [_root_of_covariance(name, what, cov, len(means[0])) for what, cov in (("cov_a", cov_a), ("cov_b", cov_b))]
    return _frechet(means[0], roots[0], means[1], roots[1])


def inception_score(probs: Tensor, splits: int = 10) -> tuple[Tensor, Tensor]:
    r"""Exponential of the information that an image gives of its class: sure of each, and many classes in all.

    $$\exp \frac 1N \sum_n \operatorname{KL}\Big(p_n \,\Big\|\, \frac 1N \sum_m p_m\Big)$$

    in each of `splits` consecutive parts, from 1 to the number of classes; the mean over the parts and their standard
    deviation (over `splits`, as Salimans et al. (2016) and torch-fidelity have it; torchmetrics takes `splits` − 1).

    Note: The parts are as the rows come: images in the order of their classes score too low. torch-fidelity shuffles.

    Args:
        probs: Class probabilities (N, C).
        splits: Number of parts, 1 to N.

    >>> inception_score(torch.eye(4), splits=1)
    (tensor(4., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    name = "inception_score"
    check_tensor(name, "probs", probs)
    probs, _ = checked_predictions(name, probs, torch.zeros(probs.shape[:1], dtype=torch.long))
    check_count(name, "splits", splits)
    if splits > len(probs):
        raise ValueError(f"{name}: splits must be at most the number of rows, {len(probs)}; got {splits}")
    ends = [index * len(probs) // splits for index in range(splits + 1)]
    scores = torch.stack([_score(probs[start:end]) for start, end in pairwise(ends)])
    return scores.mean(), scores.std(correction=0)


def pairwise_distance(features: Tensor) -> Tensor:
    r"""Mean Euclidean distance over all pairs of rows: how diverse a set is.

    $$\frac{2}{N (N - 1)} \sum_{m < n} \|f_m - f_n\|$$

    Args:
        features: Features (N, D), at least two rows; finite.

    >>> pairwise_distance(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
    tensor(3.3333, dtype=torch.float64)
    """
    features = checked_rows("pairwise_distance", "features", features, "(N, D)")
    count = len(features)
    if count < 2:
        raise ValueError("pairwise_distance: features must have at least 2 rows; got 1")
    features = features - features.mean(0)  # what all rows share costs digits in the products
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, count, ROWS):
        others = torch.cdist(features[start : start + ROWS], features[start:])
        total += others.triu(1).sum()
    return total / (count * (count - 1) / 2)


def reconstruction_error(images: Tensor, reconstructions: Tensor, summed: bool = False) -> Tensor:
    r"""Squared error of each image, as a mean over its pixels and channels or summed over them.

    $$\frac{1}{CHW} \sum_{chw} (x_{chw} - \hat x_{chw})^2$$

    Args:
        images: Images (N, …), floats between 0 and 1.
        reconstructions: Of the same shape; floats on the same scale, which may leave it.
        summed: Sum over the pixels, without dividing.

    Returns:
        One number an image, (N,), in float64.

    >>> reconstruction_error(torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5))
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    name = "reconstruction_error"
    check_tensor(name, "images", images)
    check_tensor(name, "reconstructions", reconstructions)
    if images.shape != reconstructions.shape or images.ndim < 2:
        got = f"{tuple(images.shape)} and {tuple(reconstructions.shape)}"
        raise ValueError(f"{name}: images and reconstructions must have one shape (N, …); got {got}")
    for argument, value in (("images", images), ("reconstructions", reconstructions)):
        if not value.is_floating_point():
            raise ValueError(f"{name}: {argument} must be floats, 0 … 1 for black to white; got {value.dtype}")
    x = checked_rows(name, "images", images.flatten(1), "(N, …)")
    y = checked_rows(name, "reconstructions", reconstructions.flatten(1), "(N, …)")
    if x.min() < -TOLERANCE or x.max() > 1 + TOLERANCE:
        raise ValueError(f"{name}: images must lie in 0 … 1; got {x.min():g} … {x.max():g} (scaled to −1 … 1?)")
    squares = (x - y).square()
    return squares.sum(1) if summed else squares.mean(1)


def _frechet(mean_a: Tensor, root_a: Tensor, mean_b: Tensor, root_b: Tensor) -> Tensor:
    """The distance from roots R of the covariances, of any number of rows, with RᵀR the covariance."""
    shared = torch.linalg.svdvals(root_a @ root_b.T).sum()
    spread = root_a.square().sum() + root_b.square().sum() - 2 * shared
    distance: Tensor = (mean_a - mean_b).square().sum() + spread.clamp_min(0)  # below zero by rounding only
    return distance


def _root_of_rows(rows: Tensor) -> Tensor:
    """R (at most D rows) with RᵀR the covariance."""
    centred = (rows - rows.mean(0)) / (len(rows) - 1) ** 0.5
    root: Tensor = torch.linalg.qr(centred, mode="r").R if len(rows) > rows.size(1) else centred
    return root


def _root_of_covariance(name: str, argument: str, cov: Tensor, size: int) -> Tensor:
    """R with RᵀR the covariance, without rows for the eigenvalues that are zero up to rounding."""
    cov = checked_rows(name, argument, cov, "(D, D)")
    if cov.shape != (size, size):
        raise ValueError(f"{name}: {argument} must have the shape ({size}, {size}); got {tuple(cov.shape)}")
    largest = cov.abs().max()
    if (cov - cov.T).abs().max() > TOLERANCE * largest:
        raise ValueError(f"{name}: {argument} must be symmetric; got a gap of {(cov - cov.T).abs().max():g}")
    values, vectors = torch.linalg.eigh(cov)
    if values[0] < -TOLERANCE * size * largest:
        raise ValueError(f"{name}: {argument} must have no eigenvalue below 0; got {values[0]:g}")
    kept = values > size * torch.finfo(torch.float64).eps * values[-1]
    root: Tensor = values[kept].sqrt()[:, None] * vectors[:, kept].T
    return root


def _checked_mean(name: str, argument: str, mean: Tensor) -> Tensor:
    mean = checked_scores(name, argument, mean)
    if mean.isinf().any():
        raise ValueError(f"{name}: {argument} must be finite; got infinity")
    return mean


def _score(probs: Tensor) -> Tensor:
    """Exponential of the mean divergence of the rows from their mean; a class without probability counts nothing."""
    divergence: Tensor = torch.special.xlogy(probs, probs) - torch.special.xlogy(probs, probs.mean(0))
    return divergence.sum(1).mean().exp()
