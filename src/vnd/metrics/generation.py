"""Quality of generated images and reconstructions: distances of feature sets, scores, diversity, pixel errors.

Features (N, D) and class probabilities (N, C) are those of a feature extractor, and every number belongs to it: a
Fréchet distance is an FID only with Inception's features. All are pooled over the N rows and computed in float64 on
the CPU, whatever the device of the input.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from vnd.metrics._checks import check_count, check_tensor, checked_predictions, checked_rows

ROWS = 1024  # of a table of distances at a time
TOLERANCE = 1e-6  # by which rounding may take pixels beyond 0 … 1


def frechet_distance(a: Tensor, b: Tensor) -> Tensor:
    r"""Squared Fréchet distance of the normal distributions with the means and covariances of two sets of features.

    $$\|\mu_a - \mu_b\|^2 + \operatorname{tr} \Sigma_a + \operatorname{tr} \Sigma_b
    - 2 \operatorname{tr} (\Sigma_a \Sigma_b)^{1/2}$$

    with sets (N, D) and (M, D) of two rows or more, and the covariances over N − 1. Symmetric, not negative, and zero
    for two equal sets. Of features of Inception it is the FID of Heusel et al. (2017).

    Note: With $\Sigma = R^\top R$ the last trace is the sum of the singular values of $R_a R_b^\top$. So no root is
        taken of eigenvalues that are zero up to rounding, and fewer rows than columns cost no digits. The distance
        itself is biased upwards in a finite set: compare sets of equally many rows only.

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
    root_a, root_b = _root_of_rows(a), _root_of_rows(b)
    traces = root_a.square().sum() + root_b.square().sum() - 2 * torch.linalg.svdvals(root_a @ root_b.T).sum()
    distance: Tensor = (a.mean(0) - b.mean(0)).square().sum() + traces.clamp_min(0)  # below zero by rounding only
    return distance


def inception_score(probs: Tensor, splits: int = 10) -> tuple[Tensor, Tensor]:
    r"""Exponential of the information that an image gives of its class: sure of each, and many classes in all.

    $$\exp \frac 1N \sum_n \operatorname{KL}\Big(p_n \,\Big\|\, \frac 1N \sum_m p_m\Big)$$

    in each of `splits` consecutive parts, from 1 to the number of classes; the mean over the parts and their standard
    deviation (over `splits`, as Salimans et al. (2016) and torch-fidelity have it; torchmetrics takes `splits` − 1).

    Note: The parts are as the rows come: images in the order of their classes score too low. torch-fidelity shuffles.

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
    divergences = list[Tensor]()
    for start, end in pairwise(ends):
        part = probs[start:end]  # a class without probability counts nothing
        divergence = torch.special.xlogy(part, part) - torch.special.xlogy(part, part.mean(0))
        divergences.append(divergence.sum(1).mean())
    scores = torch.stack(divergences).exp()
    return scores.mean(), scores.std(correction=0)


def pairwise_distance(features: Tensor) -> Tensor:
    r"""Mean Euclidean distance over all pairs of rows: how diverse a set is.

    $$\frac{2}{N (N - 1)} \sum_{m < n} \|f_m - f_n\|$$

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

    Images (N, …) are floats between 0 and 1; reconstructions may leave that range.

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


def _root_of_rows(rows: Tensor) -> Tensor:
    """R (at most D rows) with RᵀR the covariance."""
    centered = (rows - rows.mean(0)) / (len(rows) - 1) ** 0.5
    root: Tensor = torch.linalg.qr(centered, mode="r").R if len(rows) > rows.size(1) else centered
    return root
