"""Agreement of sampled masks with those of several graders: energy distance, matching, diversity, calibration.

A mask is (…, H, W), zeros and ones of any type, one foreground class; or, with `num_classes` K, whole numbers 0 … K −
1, class 0 being background. Distance and overlap of two masks with classes are means over the classes 1 … K − 1, each
taken for a foreground of its own: with K = 2 those of one foreground. A class that neither mask has counts as equal, so
that the weights are the same for all pairs, and the energy distance, a mean of such ones, is never negative.

B images have n `samples` (B, n, H, W) and `graders` (B, G, H, W), or where they differ in number a list of (G, H, W).
The masks of an image's graders are the population: they are not taken for a sample of more graders. Pixels are
counted where the masks lie; what comes of the counts is float64 on the CPU, one number an image. Where several of
these numbers are wanted, `pair_distances` of all masks counts the pixels once, and `generalized_energy_distance_of`,
`diversity_of` and `matched_iou_of` take its table or parts of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vnd.metrics._checks import check_count, check_tensor, checked_predictions
from vnd.metrics.calibration import equal_width

CHUNK = 64  # images whose masks are numbers at a time, four bytes a pixel
EXACT = 2**24  # whole numbers up to here are exact in float32
LONGEST = 2048  # sides of a table that masks are matched in: 32 MiB, and some seconds an image


def iou_distance(a: Tensor, b: Tensor, num_classes: int | None = None) -> Tensor:
    r"""One less the intersection over union of two masks' foregrounds; with classes, the mean over all but the first.

    $$d(a, b) = 1 - \frac{|a \cap b|}{|a \cup b|}, \qquad d(\emptyset, \emptyset) = 0, \qquad
      d_K(a, b) = \frac{1}{K - 1} \sum_{k=1}^{K-1} d(\{a = k\}, \{b = k\})$$

    The leading dimensions of the two are broadcast, and are those of what is returned.

    >>> iou_distance(torch.tensor([[1, 1, 0]]), torch.tensor([[0, 1, 1]]))
    tensor(0.6667, dtype=torch.float64)
    >>> iou_distance(torch.tensor([[1, 1, 2]]), torch.tensor([[0, 1, 2]]), num_classes=3)
    tensor(0.2500, dtype=torch.float64)
    """
    return _class_mean(_counts("iou_distance", a, b, num_classes), lambda both, total: _distance(both, total - both))


def dice(a: Tensor, b: Tensor, num_classes: int | None = None) -> Tensor:
    r"""Dice's overlap of two masks, 1 where both are empty; with classes, the mean over all but the first.

    $$\frac{2\, |a \cap b|}{|a| + |b|}$$

    The leading dimensions of the two are broadcast, and are those of what is returned.

    >>> dice(torch.tensor([[1, 1, 0]]), torch.tensor([[0, 1, 1]]))
    tensor(0.5000, dtype=torch.float64)
    """
    counts = _counts("dice", a, b, num_classes)
    return _class_mean(counts, lambda both, total: torch.where(total > 0, 2 * both / total.clamp_min(1), 1.0))


def pair_distances(a: Tensor, b: Tensor | None = None, num_classes: int | None = None) -> Tensor:
    """`iou_distance` of every mask of `a` (B, n, H, W) from every mask of `b` (B, m, H, W), by default `a`: (B, n, m).

    >>> pair_distances(torch.tensor([[[[1, 1]], [[0, 0]]]]), torch.tensor([[[[0, 1]]]]))
    tensor([[[0.5000],
             [1.0000]]], dtype=torch.float64)
    """
    sets = checked_sets("pair_distances", num_classes, a=a, **({} if b is None else {"b": b}))
    return _pairs(sets[0], None if b is None else sets[1], num_classes)


def generalized_energy_distance(
    samples: Tensor, graders: Tensor | Sequence[Tensor], unbiased: bool = False, num_classes: int | None = None
) -> Tensor:
    r"""Generalised energy distance (GED) of the samples of an image from the masks of its graders, (B,).

    $$\frac{2}{nG} \sum_{i, g} d(S_i, Y_g) - \frac{1}{n^2} \sum_{i, j} d(S_i, S_j)
    - \frac{1}{G^2} \sum_{g, h} d(Y_g, Y_h)$$

    with d of `iou_distance`, for one foreground as Kohl et al. (2018) have it: the V-statistic, zero where samples and
    graders are the same masks equally often. Of samples alone the pairs i = j, whose distance is zero, are left out if
    `unbiased`, and $n^2$ becomes n (n − 1): the U-statistic, whose mean is the distance of the samples' distribution
    itself. Graders are the population, so all their pairs stay. Paper: Sec. 6.3.

    Note: The V-statistic is biased upwards by E d(S, S′) / n: compare methods at the same n only. The U-statistic is
        NaN at n = 1, and may be negative.

    >>> samples, graders = torch.tensor([[[[1, 0]], [[1, 0]]]]), torch.tensor([[[[1, 0]], [[1, 1]]]])
    >>> generalized_energy_distance(samples, graders)
    tensor([0.2500], dtype=torch.float64)
    """

    def measured(samples: Tensor, graders: Tensor) -> Tensor:
        samples, graders = checked_sets("energy_distance", num_classes, samples=samples, graders=graders)
        table = _pairs(torch.cat((samples, graders), 1), None, num_classes)
        return generalized_energy_distance_of(table, samples.size(1), unbiased)

    return torch.cat([measured(*some) for some in _alike("energy_distance", samples, graders)])


def generalized_energy_distance_of(table: Tensor, n: int, unbiased: bool = False) -> Tensor:
    """`generalized_energy_distance` from `pair_distances` of n samples and, after them, G graders, (B, n + G, n + G).

    >>> masks = torch.tensor([[[[1, 0]], [[1, 0]], [[1, 0]], [[1, 1]]]])
    >>> generalized_energy_distance_of(pair_distances(masks), n=2)
    tensor([0.2500], dtype=torch.float64)
    """
    name = "energy_distance_of"
    _check_table(name, table)
    check_count(name, "n", n)
    if table.size(1) != table.size(2) or n >= table.size(1):
        wanted = f"of shape (B, n + G, n + G) with n = {n} samples and some graders"
        raise ValueError(f"{name}: table must be {wanted}; got {tuple(table.shape)}")
    samples, across, graders = table[:, :n, :n], table[:, :n, n:], table[:, n:, n:]
    among = _apart(samples) if unbiased else samples.mean((1, 2))
    return 2 * across.mean((1, 2)) - among - graders.mean((1, 2))


def expected_energy_distance(
    masks: Tensor, probs: Tensor, graders: Tensor, n: int, num_classes: int | None = None
) -> Tensor:
    r"""Mean `generalized_energy_distance` of n samples of a known distribution against these graders, (B,).

    $$2\, \mathbb E\, d(S, Y) - \Big(1 - \frac 1n\Big)\, \mathbb E\, d(S, S') - \frac{1}{G^2} \sum_{g, h} d(Y_g, Y_h)$$

    with S and S′ independent, mask k of `masks` (B, K, H, W) with probability $p_k$ of `probs` (B, K), and Y one of the
    graders (B, G, H, W): two of n samples are one and the same in one of n pairs. This is what a network that knows the
    distribution reaches; it is not the least there is, since the masks in the middle of the others are nearer to the
    graders where n is small.

    >>> masks, graders = torch.tensor([[[[1, 0]], [[1, 1]]]]), torch.tensor([[[[1, 0]], [[1, 1]]]])
    >>> expected_energy_distance(masks, torch.tensor([[0.5, 0.5]]), graders, n=4)
    tensor([0.0625], dtype=torch.float64)
    """
    name = "expected_energy_distance"
    masks, graders = checked_sets(name, num_classes, masks=masks, graders=graders)
    check_count(name, "n", n)
    weight, _ = checked_predictions(name, probs, torch.zeros(len(probs), dtype=torch.int64))
    if weight.shape != masks.shape[:2]:
        raise ValueError(f"{name}: probs must be of shape {tuple(masks.shape[:2])}; got {tuple(probs.shape)}")
    among, across = _pairs(masks, None, num_classes), _pairs(masks, graders, num_classes)
    apart = _pairs(graders, None, num_classes)
    known = (weight[:, None] @ among @ weight[:, :, None])[:, 0, 0]
    return 2 * (weight[:, None] @ across).mean((1, 2)) - (1 - 1 / n) * known - apart.mean((1, 2))


def matched_iou(samples: Tensor, graders: Tensor | Sequence[Tensor], num_classes: int | None = None) -> Tensor:
    r"""Mean intersection over union of samples and graders, each with its own partner: the best of all pairings, (B,).

    $$\max_\pi \frac 1L \sum_{l=1}^{L} \big(1 - d(S_l, Y_{\pi(l)})\big)$$

    over permutations π, with both sides repeated to L, the least common multiple of n and G: the Hungarian matching of
    Kohl et al. (2019). 1 where samples are the graders' masks equally often.

    >>> matched_iou(torch.tensor([[[[1, 1]], [[0, 0]]]]), torch.tensor([[[[0, 0]], [[0, 1]]]]))
    tensor([0.7500], dtype=torch.float64)
    """
    every = _alike("matched_iou", samples, graders)
    sets = (checked_sets("matched_iou", num_classes, samples=some, graders=theirs) for some, theirs in every)
    return torch.cat([matched_iou_of(_pairs(some, theirs, num_classes)) for some, theirs in sets])


def matched_iou_of(table: Tensor) -> Tensor:
    """`matched_iou` from `pair_distances` of samples and graders, (B, n, G).

    >>> matched_iou_of(torch.tensor([[[1.0, 0.5], [0.0, 1.0]]]))
    tensor([0.7500], dtype=torch.float64)
    """
    from scipy.optimize import linear_sum_assignment

    _check_table("matched_iou", table)
    n, graders = table.shape[1:]
    times = math.lcm(n, graders)
    if times > LONGEST:
        least = f"the least common multiple of {n} samples and {graders} graders must be at most {LONGEST}"
        raise ValueError(f"matched_iou: {least}; got {times}: take a multiple of {graders} samples")
    rows, columns = torch.arange(times) % n, torch.arange(times) % graders
    matched = []
    for distances in table.detach().cpu().double():  # one image at a time: each is repeated to times × times
        repeated = distances[rows[:, None], columns].numpy()
        matched.append(1 - repeated[linear_sum_assignment(repeated)].mean())
    return torch.tensor(matched, dtype=torch.float64)


def diversity(samples: Tensor, num_classes: int | None = None) -> Tensor:
    r"""Mean distance of two different samples of an image, (B,); NaN where there is but one.

    $$\frac{1}{n (n - 1)} \sum_{i \ne j} d(S_i, S_j)$$

    >>> diversity(torch.tensor([[[[1, 0]], [[1, 1]], [[1, 1]]]]))
    tensor([0.3333], dtype=torch.float64)
    """
    (samples,) = checked_sets("diversity", num_classes, samples=samples)
    return _apart(_pairs(samples, None, num_classes))


def diversity_of(table: Tensor) -> Tensor:
    """`diversity` from `pair_distances` of the samples, (B, n, n).

    >>> diversity_of(torch.tensor([[[0.0, 0.5], [0.5, 0.0]]]))
    tensor([0.5000])
    """
    _check_table("diversity_of", table)
    if table.size(1) != table.size(2):
        raise ValueError(f"diversity_of: table must be of shape (B, n, n); got {tuple(table.shape)}")
    return _apart(table)


def _alike(name: str, samples: Tensor, graders: Tensor | Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples and graders (B, G, H, W) of images that have equally many: all images, or each by itself."""
    if isinstance(graders, Tensor):
        yield samples, graders
        return
    if len(graders) != len(samples) or not graders:
        raise ValueError(f"{name}: graders must be a list of {len(samples)}, one for each image; got {len(graders)}")
    for index, own in enumerate(graders):
        if not isinstance(own, Tensor) or own.ndim != 3:
            got = tuple(own.shape) if isinstance(own, Tensor) else f"a {type(own).__name__}"
            raise ValueError(f"{name}: graders of an image must be (G, H, W); those of image {index} are {got}")
        yield samples[index : index + 1], own[None].to(samples.device)


def _pairs(a: Tensor, b: Tensor | None, num_classes: int | None) -> Tensor:
    """`pair_distances` of masks that are checked: |a ∩ b| is their product, in numbers that stay exact."""
    if num_classes is not None:
        each = [_pairs(a == label, None if b is None else b == label, None) for label in range(1, num_classes)]
        return torch.stack(each).mean(0)
    exact = torch.float32 if a.size(2) * a.size(3) < EXACT else torch.float64
    counts = list[Tensor]()
    with torch.autocast(a.device.type, enabled=False):  # bfloat16 counts no further than 256
        for some in zip(*(masks.split(CHUNK) for masks in (a, b) if masks is not None), strict=True):
            flat = [masks.flatten(2).to(exact) for masks in some]
            total = flat[0].sum(2)[:, :, None] + flat[-1].sum(2)[:, None]
            counts.append(torch.stack((flat[0] @ flat[-1].mT, total)))
    both, total = torch.cat(counts, 1).cpu().double()
    return _distance(both, total - both)


def _apart(distances: Tensor) -> Tensor:
    """Mean distance of two different samples, from those of all pairs; NaN where there is one."""
    count, total = distances.size(1), distances.sum((1, 2))
    return total / (count * (count - 1)) if count > 1 else torch.full_like(total, math.nan)


def _distance(both: Tensor, either: Tensor) -> Tensor:
    """From the pixels of intersection and union; nothing and nothing are the same."""
    return torch.where(either > 0, 1 - both / either.clamp_min(1), 0.0)


def _counts(name: str, a: Tensor, b: Tensor, num_classes: int | None) -> list[tuple[Tensor, Tensor]]:
    """Pixels of the intersection of two masks, and of both together, in float64, of each class but the background."""
    masks = [_checked_masks(name, argument, mask, num_classes) for argument, mask in (("a", a), ("b", b))]
    if a.shape[-2:] != b.shape[-2:]:
        raise ValueError(f"{name}: a and b must be of one size; got {tuple(a.shape)} and {tuple(b.shape)}")
    found = []
    for label in range(1, num_classes or 2):
        one, other = (mask == label for mask in masks)
        both, total = (one & other).sum((-2, -1)), one.sum((-2, -1)) + other.sum((-2, -1))
        found.append((both.cpu().double(), total.cpu().double()))
    return found


def _class_mean(counts: list[tuple[Tensor, Tensor]], measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Mean over the classes of what is measured of each."""
    return torch.stack([measure(both, total) for both, total in counts]).mean(0)


def _check_table(name: str, table: Tensor) -> None:
    """Refuse what cannot be distances of masks from masks."""
    check_tensor(name, "table", table)
    if table.ndim != 3 or not table.is_floating_point() or not table.numel():
        got = f"{table.dtype} of {tuple(table.shape)}"
        raise ValueError(f"{name}: table must be distances, floats of shape (B, n, m), not empty; got {got}")


def checked_sets(name: str, num_classes: int | None = None, /, **sets: Tensor) -> list[Tensor]:
    """Sets of masks (B, n, H, W), all of the same images."""
    inside = [_checked_masks(name, argument, masks, num_classes) for argument, masks in sets.items()]
    for argument, masks in zip(sets, inside, strict=True):
        if masks.ndim != 4 or not masks.numel():
            got = tuple(masks.shape)
            raise ValueError(f"{name}: {argument} must be masks of shape (B, n, H, W), not empty; got {got}")
        if (masks.size(0), *masks.shape[2:]) != (inside[0].size(0), *inside[0].shape[2:]):
            wanted = f"as many and as large as {next(iter(sets))}, {tuple(inside[0].shape)}"
            raise ValueError(f"{name}: {argument} must be of images {wanted}; got {tuple(masks.shape)}")
    return inside


def _checked_masks(name: str, argument: str, masks: Tensor, num_classes: int | None = None) -> Tensor:
    """Masks as booleans, or with classes as uint8 or wider, once they are known to be what they should."""
    check_tensor(name, argument, masks)
    if masks.ndim < 2:
        raise ValueError(f"{name}: {argument} must be masks of shape (…, H, W); got {tuple(masks.shape)}")
    if num_classes is not None:
        if not isinstance(num_classes, int) or num_classes < 2:
            wanted = "num_classes must be 2 or more, background among them, or None for zeros and ones"
            raise ValueError(f"{name}: {wanted}; got {num_classes!r}")
        classes = masks.long() if masks.is_floating_point() else masks
        if bool(((classes != masks) | (classes < 0) | (classes > num_classes - 1)).any()):
            raise ValueError(f"{name}: {argument} must be whole numbers in 0 … {num_classes - 1}; got other values")
        return classes
    inside = masks != 0
    if masks.dtype != torch.bool and not bool((masks == inside).all()):
        raise ValueError(f"{name}: {argument} must be zeros and ones; got other values (logits or probabilities?)")
    return inside


@dataclass(frozen=True, eq=False)
class PixelCalibration:
    """Calibration error of pixels; of each bin (bins,) their number, mean probability and mean share of graders.

    >>> pixel_calibration(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[[1, 1]], [[1, 1]]]]), bins=2).frequency
    tensor([1., 1.], dtype=torch.float64)
    """

    error: Tensor
    count: Tensor
    confidence: Tensor
    frequency: Tensor


def pixel_entropy(probs: Tensor, dim: int | None = None) -> Tensor:
    r"""Entropy of each pixel's being foreground or not, $-p \log p - (1 - p) \log (1 - p)$, in nats; any shape.

    With `dim`, the dimension of the classes, that of its class, $-\sum_k p_k \log p_k$.

    >>> pixel_entropy(torch.tensor([0.0, 0.5]))
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    probs = _checked_probs("pixel_entropy", probs)
    entropy: Tensor = torch.special.entr(probs)
    return entropy + torch.special.entr(1 - probs) if dim is None else entropy.sum(dim)


def pixel_calibration(probs: Tensor, graders: Tensor | Sequence[Tensor], bins: int = 15) -> PixelCalibration:
    r"""Mean gap between a pixel's probability and the share of graders who marked it, over equal-width bins.

    $$\sum_b \frac{n_b}{N} \left| \mathrm{frequency}_b - \mathrm{confidence}_b \right|$$

    Bins are those of `expected_calibration_error`, of `probs` of the foreground, (B, H, W), pooled over all pixels; the
    frequency is the mean over a bin's pixels of the share of graders. Of `probs` of classes, (B, K, H, W), every class
    but the first, the background, is such a foreground, and all of them are pooled.

    Note: Most pixels are background and nobody doubts it, so that the error is small where objects are: compare it
        within one data set only.

    >>> pixel_calibration(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[[1, 1]], [[1, 1]]]]), bins=2).error
    tensor(0.2500, dtype=torch.float64)
    """
    check_count("pixel_calibration", "bins", bins)
    sums = PixelSums(bins)
    sums.add(probs, graders)
    return sums.calibration()


class PixelSums:
    """`pixel_calibration` of images that come batch by batch: sums over the pixels of each bin, and no pixel is kept.

    >>> sums = PixelSums(bins=2)
    >>> for prob in (0.5, 1.0):
    ...     sums.add(torch.tensor([[[prob]]]), torch.tensor([[[[1]], [[1]]]]))
    >>> sums.calibration().error
    tensor(0.2500, dtype=torch.float64)
    """

    def __init__(self, bins: int = 15) -> None:
        check_count("PixelSums", "bins", bins)
        self.count = torch.zeros(bins, dtype=torch.int64)
        self.confidence = torch.zeros(bins, dtype=torch.float64)
        self.share = torch.zeros(bins, dtype=torch.float64)

    def add(self, probs: Tensor, graders: Tensor | Sequence[Tensor]) -> None:
        """Count the pixels of some images: probabilities (B, H, W), or of classes (B, K, H, W), and masks."""
        for some, own in _alike("pixel_calibration", probs, graders):
            self._add(some, own)

    def _add(self, probs: Tensor, graders: Tensor) -> None:
        """Count the pixels of images that have equally many graders."""
        name, bins = "pixel_calibration", len(self.count)
        if probs.ndim == 4 and probs.size(1) == 1:
            probs = probs.squeeze(1)
        classes = probs.size(1) if probs.ndim == 4 else None
        (graders,) = checked_sets(name, classes, graders=graders)
        confidence = _checked_probs(name, probs)
        wanted = (graders.size(0), *(() if classes is None else (classes,)), *graders.shape[2:])
        if confidence.shape != wanted:
            raise ValueError(f"{name}: probs must be of shape {wanted}, as graders are; got {tuple(probs.shape)}")
        share = (
            torch.stack([(graders == label).double().mean(1) for label in range(1, classes or 2)], 1).cpu().flatten()
        )
        confidence = (confidence if classes is None else confidence[:, 1:]).flatten()
        index = equal_width(confidence, bins)
        self.count += torch.bincount(index, minlength=bins)
        self.confidence += torch.bincount(index, confidence, minlength=bins)
        self.share += torch.bincount(index, share, minlength=bins)

    def calibration(self) -> PixelCalibration:
        """Calibration of the pixels counted so far, at least one."""
        if not self.count.any():
            raise ValueError("PixelSums: no pixel was counted; add images first")
        error = (self.confidence - self.share).abs().sum() / self.count.sum()
        held = self.count.clamp_min(1)
        return PixelCalibration(error, self.count.clone(), self.confidence / held, self.share / held)


class PixelCounts:
    r"""Accuracy, overlap, likelihood and calibration of classes of pixels, of images that come batch by batch.

    $$\mathrm{IoU}_k = \frac{n_{kk}}{n_{k \cdot} + n_{\cdot k} - n_{kk}}, \qquad
      \mathrm{Dice}_k = \frac{2 n_{kk}}{n_{k \cdot} + n_{\cdot k}}$$

    with $n_{kl}$ pixels of class k that are taken for class l, of all images together; NaN of a class that is neither
    there nor seen. The calibration error is that of `expected_calibration_error` over pixels.

    >>> counts = PixelCounts(bins=2)
    >>> probs = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.8, 0.6]])
    >>> counts.add(probs.view(1, 2, 1, 3), torch.tensor([[[0, 1, 0]]]))
    >>> counts.accuracy, counts.iou
    (tensor(0.6667, dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    """

    def __init__(self, bins: int = 15) -> None:
        check_count("PixelCounts", "bins", bins)
        self.bins, self.log_likelihood = bins, 0.0
        self.table = torch.zeros(0, 0, dtype=torch.int64)
        self.sums = torch.zeros(3, bins, dtype=torch.float64)  # pixels, their confidence, right ones

    def add(self, probs: Tensor, labels: Tensor, left_out: int | None = None) -> None:
        """Count the pixels of some images: probabilities (B, K, H, W), classes (B, H, W); those `left_out` do not."""
        if probs.dim() < 3:
            raise ValueError(f"PixelCounts: probs must be of shape (B, K, H, W); got {tuple(probs.shape)}")
        rows, flat = probs.movedim(1, -1).flatten(0, -2), labels.flatten()
        if left_out is not None and len(flat) == len(rows):
            known = flat != left_out
            rows, flat = rows[known.to(rows.device)], flat[known]
            if not len(flat):
                return
        rows, flat = checked_predictions("PixelCounts", rows, flat)
        classes = rows.size(1)
        if not self.table.numel():
            self.table = torch.zeros(classes, classes, dtype=torch.int64)
        if len(self.table) != classes:
            raise ValueError(f"PixelCounts: probs must have {len(self.table)} classes, as before; got {classes}")
        confidence, top = rows.max(1)
        self.table += torch.bincount(flat * classes + top, minlength=classes**2).view(classes, classes)
        of_labels = rows.gather(1, flat[:, None]).clamp_min(torch.finfo(torch.float64).tiny)
        self.log_likelihood += float(of_labels.log().sum())
        index = equal_width(confidence, self.bins)
        for own, weight in zip(
            self.sums, (torch.ones_like(confidence), confidence, (top == flat).double()), strict=True
        ):
            own += torch.bincount(index, weight, minlength=self.bins)

    @property
    def count(self) -> int:
        """Number of pixels, at least one."""
        if not self.table.any():
            raise ValueError("PixelCounts: no pixel was counted; add images first")
        return int(self.table.sum())

    @property
    def accuracy(self) -> Tensor:
        """Share of the pixels that are right."""
        return self.table.diagonal().sum().double() / self.count

    @property
    def iou(self) -> Tensor:
        """Intersection over union of each class, (K,)."""
        return self._overlap(1)

    @property
    def dice(self) -> Tensor:
        """Dice coefficient of each class, (K,)."""
        return self._overlap(2)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of a pixel, in nats."""
        return -self.log_likelihood / self.count

    @property
    def error(self) -> Tensor:
        """Expected calibration error."""
        return (self.sums[1] - self.sums[2]).abs().sum() / self.count

    def _overlap(self, factor: int) -> Tensor:
        both = self.table.diagonal().double()
        return factor * both / (self.table.sum(0) + self.table.sum(1) - (2 - factor) * both)


def _checked_probs(name: str, probs: Tensor) -> Tensor:
    """Probabilities in float64 on the CPU."""
    check_tensor(name, "probs", probs)
    wide = probs.detach().cpu().double()
    if not probs.is_floating_point() or not wide.numel() or not bool(((wide >= 0) & (wide <= 1)).all()):
        raise ValueError(f"{name}: probs must be floats in [0, 1], not empty (logits?); got {tuple(probs.shape)}")
    return wide
