"""Masks of samples against those of graders: hand-worked cases, double loops, permutations, simulations, faults."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vnd.metrics import calibration, segmentation
from vnd.metrics import generalized_energy_distance as ged
from vnd.metrics import generalized_energy_distance_of as ged_of
from vnd.metrics.segmentation import expected_energy_distance, matched_iou, pair_distances

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64]


def row(*masks: str) -> Tensor:
    """Masks of one row of pixels, (n, 1, W): `row("##.", "...")`."""
    return torch.tensor([[[int(pixel == "#") for pixel in mask]] for mask in masks])


def some(images: int, count: int, side: int = 5) -> Tensor:
    """Random masks of all densities, empty and full ones among them."""
    density = torch.rand(images, count, 1, 1)
    masks = torch.rand(images, count, side, side) < density
    masks[torch.rand(images, count) < 0.2] = False
    masks[torch.rand(images, count) < 0.1] = True
    return masks


def distance(a: Tensor, b: Tensor) -> float:
    """By sets of pixels."""
    one, other = ({tuple(x) for x in mask.nonzero().tolist()} for mask in (a, b))
    return 1 - len(one & other) / len(one | other) if one | other else 0.0


def by_loops(samples: Tensor, graders: Tensor, unbiased: bool) -> list[float]:
    """The energy distance of each image as it is written, pair by pair."""
    found = []
    for own, theirs in zip(samples, graders, strict=True):
        n, g = len(own), len(theirs)
        across = sum(distance(s, y) for s in own for y in theirs) / (n * g)
        among = sum(distance(own[i], own[j]) for i in range(n) for j in range(n) if not unbiased or i != j)
        among /= n * (n - 1) if unbiased else n * n
        found.append(2 * across - among - sum(distance(y, z) for y in theirs for z in theirs) / g**2)
    return found


# Distances of two masks


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_masks_by_hand(dtype: torch.dtype) -> None:
    a, b = row("##..", "....", "....", "####", "#..."), row(".##.", "....", "#...", "####", "...#")
    a, b = a.to(dtype), b.to(dtype)
    assert segmentation.iou_distance(a, b).tolist() == pytest.approx([2 / 3, 0, 1, 0, 1])
    assert segmentation.dice(a, b).tolist() == pytest.approx([1 / 2, 1, 0, 1, 0])
    assert segmentation.iou_distance(a, b).dtype == segmentation.dice(a, b).dtype == torch.float64


def test_one_mask_is_held_against_many() -> None:
    many, one = some(3, 4), some(1, 1)[0, 0]
    wanted = [[distance(mask, one) for mask in image] for image in many]
    assert torch.allclose(segmentation.iou_distance(many, one), torch.tensor(wanted, dtype=torch.float64))
    overlap = segmentation.dice(many, one)
    assert overlap.shape == (3, 4)
    iou = 1 - torch.tensor(wanted, dtype=torch.float64)
    assert torch.allclose(overlap, 2 * iou / (1 + iou))  # Dice is a function of the intersection over union


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32))
def test_pairs_are_those_of_a_double_loop(images: int, n: int, m: int, seed: int) -> None:
    torch.manual_seed(seed)
    a, b = some(images, n), some(images, m)
    found = pair_distances(a, b)
    assert found.shape == (images, n, m)
    for image, i, j in itertools.product(range(images), range(n), range(m)):
        assert float(found[image, i, j]) == pytest.approx(distance(a[image, i], b[image, j]), abs=1e-15)


def test_counts_stay_exact_under_autocast() -> None:
    masks = torch.zeros(1, 2, 40, 40)
    masks[0, 0, :33], masks[0, 1] = 1, 1  # 1,320 and 1,600 pixels: bfloat16 has neither
    with torch.autocast("cpu", torch.bfloat16):
        assert float(pair_distances(masks, masks)[0, 0, 1]) == 1 - 1320 / 1600


# Energy distance


def test_the_energy_distance_by_hand() -> None:
    graders = row("....", "##..", "##..", "####")[None]
    # d: nothing–pair 1, nothing–all 1, pair–all 1/2. Among graders: 2 (1 + 1 + 1 + 1/2 + 1/2) / 16 = 1/2.
    assert ged(row("....")[None], graders).tolist() == pytest.approx([2 * 3 / 4 - 0 - 1 / 2])
    assert ged(row("##..")[None], graders).tolist() == pytest.approx([2 * (1 + 1 / 2) / 4 - 1 / 2])
    two = row("....", "####")[None]  # apart by 1; from graders by 3/4 and by (1 + 1/2 + 1/2) / 4 = 1/2
    assert ged(two, graders).tolist() == pytest.approx([2 * 5 / 8 - 1 / 2 - 1 / 2])
    assert ged(two, graders, unbiased=True).tolist() == pytest.approx([2 * 5 / 8 - 1 - 1 / 2])


@pytest.mark.parametrize("unbiased", [False, True])
@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 2**32))
def test_the_energy_distance_is_that_of_a_double_loop(unbiased: bool, n: int, graders: int, seed: int) -> None:
    torch.manual_seed(seed)
    samples, marked = some(3, n), some(3, graders)
    wanted = by_loops(samples, marked, unbiased)
    assert ged(samples, marked, unbiased).tolist() == pytest.approx(wanted, abs=1e-12)


def test_the_same_four_masks_are_no_distance_apart() -> None:
    graders = some(20, 4)
    graders[0] = False  # all four mark nothing
    assert float(ged(graders, graders).abs().max()) < 1e-12
    often = graders[:, [3, 1, 0, 2]].repeat(1, 4, 1, 1)  # in another order, each four times
    assert float(ged(often, graders).abs().max()) < 1e-12
    assert bool((ged(graders.flip(0), graders) >= -1e-12).all())
    assert float(ged(graders.flip(0), graders).max()) > 0.1


def test_one_sample_has_no_unbiased_form() -> None:
    found = ged(some(3, 1), some(3, 4), unbiased=True)
    assert found.shape == (3,)
    assert bool(found.isnan().all())
    assert bool(segmentation.diversity(some(3, 1)).isnan().all())
    assert bool(ged(some(3, 1), some(3, 4)).isfinite().all())


def test_a_distance_of_nothing_from_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: nothing and nothing are 1 apart, as 1 − 0/0 would have it where it is 0/1."""
    monkeypatch.setattr(segmentation, "_distance", lambda both, either: 1 - both / either.clamp_min(1))
    nothing = row("...", "...")[None]
    assert float(ged(nothing[:, :1], nothing)) == pytest.approx(0)  # 2 − 1 − 1: this law alone misses it,
    with pytest.raises(AssertionError):  # and others see it
        test_the_energy_distance_by_hand()
    with pytest.raises(AssertionError):
        test_two_masks_by_hand(torch.bool)


# What is expected of samples of a known distribution: none, a core, a core with its rim, as in `synthetic_graders`

TRUTH = row("......", "..##..", ".####.")
PROBS = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)
MARKED = row("..##..", "..##..", "......", ".####.")[None]
ROUNDS = 20_000


def draws(n: int) -> Tensor:
    """So many times n samples, (ROUNDS, n, 1, 6)."""
    return TRUTH[torch.multinomial(PROBS, ROUNDS * n, replacement=True).view(ROUNDS, n)]


def check_mean(values: Tensor, expected: float) -> None:
    """The mean lies within 4.5 standard errors: one false alarm in 150,000."""
    assert bool(values.isfinite().all())
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - expected) < 4.5 * error, (float(values.mean()), expected, error)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_the_expectation_is_that_of_a_simulation(n: int) -> None:
    found = ged(draws(n), MARKED.expand(ROUNDS, -1, -1, -1))
    expected = float(expected_energy_distance(TRUTH[None], PROBS[None], MARKED, n))
    check_mean(found, expected)
    for fault in (float(expected_energy_distance(TRUTH[None], PROBS[None], MARKED, n + 1)), expected + 0.02):
        with pytest.raises(AssertionError):
            check_mean(found, fault)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_u_statistic_is_unbiased_and_the_v_statistic_too_large_by_a_distance_over_n(n: int) -> None:
    samples, graders = draws(n), MARKED.expand(ROUNDS, -1, -1, -1)
    apart = pair_distances(TRUTH[None], TRUTH[None])[0]
    among = float(PROBS @ apart @ PROBS)
    limit = float(expected_energy_distance(TRUTH[None], PROBS[None], MARKED, 10**9))
    check_mean(ged(samples, graders, unbiased=True), limit)
    check_mean(ged(samples, graders), limit + among / n)
    check_mean(segmentation.diversity(samples), among)
    with pytest.raises(AssertionError):
        check_mean(ged(samples, graders), limit)


def test_a_distribution_that_is_the_graders_is_expected_at_its_own_spread_over_n() -> None:
    graders = some(6, 4)
    among = pair_distances(graders, graders).mean((1, 2))
    for n in (1, 4, 16):
        found = expected_energy_distance(graders, torch.full((6, 4), 0.25), graders, n)
        assert torch.allclose(found, among / n)


# Of one table


def check_same(one: Tensor, other: Tensor) -> None:
    assert torch.allclose(one, other, rtol=0, atol=1e-14, equal_nan=True)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
def test_all_numbers_come_of_one_table(n: int, graders: int, seed: int) -> None:
    torch.manual_seed(seed)
    samples, marked = some(3, n), some(3, graders)
    table = pair_distances(torch.cat((samples, marked), 1))
    assert torch.equal(table, pair_distances(torch.cat((samples, marked), 1), torch.cat((samples, marked), 1)))
    for unbiased in (False, True):
        found = ged_of(table, n, unbiased)
        check_same(found, ged(samples, marked, unbiased))
    check_same(segmentation.matched_iou_of(table[:, :n, n:]), matched_iou(samples, marked))
    check_same(segmentation.diversity_of(table[:, :n, :n]), segmentation.diversity(samples))


# Matching


def by_permutations(samples: Tensor, graders: Tensor) -> float:
    times = math.lcm(len(samples), len(graders))
    samples, graders = samples.repeat(times // len(samples), 1, 1), graders.repeat(times // len(graders), 1, 1)
    table = [[1 - distance(s, y) for y in graders] for s in samples]
    return max(sum(table[i][j] for i, j in enumerate(p)) / times for p in itertools.permutations(range(times)))


@pytest.mark.parametrize(("n", "graders"), [(1, 4), (4, 4), (3, 2), (6, 3)])
def test_matching_is_the_best_of_all_permutations(n: int, graders: int) -> None:
    samples, marked = some(3, n), some(3, graders)
    wanted = [by_permutations(s, y) for s, y in zip(samples, marked, strict=True)]
    found = matched_iou(samples, marked)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(wanted)


def test_each_grader_has_a_partner_of_its_own() -> None:
    """The planted fault: partners that several share; four samples of one grader's mask are not four graders."""
    graders = row("....", "##..", "..##", "####")[None]
    assert float(matched_iou(graders.flip(1), graders)) == 1
    assert float(matched_iou(graders.repeat(1, 4, 1, 1), graders)) == 1
    same = graders[:, [1, 1, 1, 1]]
    assert float(matched_iou(same, graders)) == pytest.approx((0 + 1 + 0 + 0.5) / 4)
    shared = (1 - pair_distances(same, graders)).amax(2).mean()
    assert float(shared) == 1


# Pixels


def test_diversity_is_that_of_different_samples() -> None:
    samples = row("##..", "##..", "####")[None]
    assert float(segmentation.diversity(samples)) == pytest.approx((0 + 0.5 + 0.5) / 3)
    assert float(segmentation.diversity(samples[:, :2])) == 0


def test_the_entropy_of_a_pixel() -> None:
    probs = torch.tensor([[0.0, 1.0], [0.5, 0.25]])
    wanted = [[0, 0], [math.log(2), -0.25 * math.log(0.25) - 0.75 * math.log(0.75)]]
    assert segmentation.pixel_entropy(probs).tolist() == [pytest.approx(x) for x in wanted]


def test_pixels_are_calibrated_by_the_share_of_graders() -> None:
    graders = torch.zeros(2, 4, 2, 2)
    graders[:, 0] = 1  # one of four, everywhere
    right = segmentation.pixel_calibration(torch.full((2, 2, 2), 0.25), graders)
    assert float(right.error) == 0
    assert right.count.tolist() == [0, 0, 0, 8] + [0] * 11  # (3/15, 4/15]
    wrong = segmentation.pixel_calibration(torch.full((2, 2, 2), 0.75), graders, bins=4)
    assert float(wrong.error) == 0.5
    assert wrong.confidence.tolist() == [0, 0, 0.75, 0]
    assert wrong.frequency.tolist() == [0, 0, 0.25, 0]


def test_of_one_grader_it_is_the_calibration_of_two_classes() -> None:
    """Where the foreground is the likelier class, its probability is the confidence of the house's own measure."""
    probs = 0.5 + torch.rand(3, 8, 8, dtype=torch.float64) / 2
    graders = (torch.rand(3, 1, 8, 8) < 0.7).long()
    both = torch.stack((1 - probs, probs), -1).view(-1, 2)
    known = calibration.reliability(both, graders.flatten())
    found = segmentation.pixel_calibration(probs, graders)
    assert float(found.error) == pytest.approx(float(calibration.expected_calibration_error(both, graders.flatten())))
    assert torch.equal(found.count, known.count)
    assert torch.allclose(found.confidence, known.confidence)
    assert torch.allclose(found.frequency, known.accuracy)


def test_sums_over_batches_are_those_of_the_whole() -> None:
    probs, graders = torch.rand(9, 8, 8), some(9, 3, 8)
    sums = segmentation.PixelSums(7)
    with pytest.raises(ValueError, match="no pixel was counted"):
        sums.calibration()
    for at in (slice(0, 2), slice(2, 8), slice(8, 9)):
        sums.add(probs[at], graders[at])
    whole, found = segmentation.pixel_calibration(probs, graders, 7), sums.calibration()
    for name in ("error", "count", "confidence", "frequency"):
        assert torch.allclose(getattr(found, name), getattr(whole, name), rtol=0, atol=1e-14), name
    assert 0 < float(found.error) < 1
    sums.add(probs[:1], graders[:1])
    assert torch.equal(found.count, whole.count)  # what was given is not changed by what is added


def test_bins_reach_from_nothing_to_certainty() -> None:
    probs = torch.tensor([[[0.0, 0.5, 0.500001, 1.0]]], dtype=torch.float64)
    found = segmentation.pixel_calibration(probs, row("...#")[None], bins=2)
    assert found.count.tolist() == [2, 2]
    assert float(found.error) == pytest.approx((0.5 + abs(1.500001 - 1)) / 4)


# What is refused


# Several classes, and graders who differ in number


def class_distance(a: np.ndarray, b: np.ndarray, classes: int) -> float:
    """By loops: the mean over foreground classes, a class that neither has at 0."""
    each = []
    for label in range(1, classes):
        either = sum(x == label or y == label for x, y in zip(a.flat, b.flat, strict=True))
        both = sum(x == label and y == label for x, y in zip(a.flat, b.flat, strict=True))
        each.append(1 - both / either if either else 0.0)
    return sum(each) / len(each)


def ragged(classes: int = 4) -> tuple[Tensor, list[Tensor]]:
    """Two samples of each of three images, and 1, 4 and 2 graders; one class is in none of the first image's masks."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(classes, (3, 2, 3, 4), generator=generator)
    graders = [torch.randint(classes, (count, 3, 4), generator=generator) for count in (1, 4, 2)]
    samples[0], graders[0] = samples[0].clamp(max=classes - 2), graders[0].clamp(max=classes - 2)
    return samples, graders


def class_gap() -> float:
    """Worst difference of the energy distance from the loops, each image held against its own graders."""
    samples, graders = ragged()
    found, worst = ged(samples, graders, num_classes=4), 0.0
    for image, own in enumerate(graders):
        sets = [np.asarray(samples[image]), np.asarray(own)]
        across, among, between = (
            np.mean([[class_distance(a, b, 4) for b in two] for a in one])
            for one, two in ((sets[0], sets[1]), (sets[0], sets[0]), (sets[1], sets[1]))
        )
        worst = max(worst, abs(float(found[image]) - (2 * across - among - between)))
    return worst


def test_the_energy_distance_of_classes_is_that_of_loops() -> None:
    assert class_gap() < 1e-12
    samples, graders = ragged()
    matched = matched_iou(samples, graders, num_classes=4)
    for image, own in enumerate(graders):
        alone = matched_iou(samples[image : image + 1], own[None], num_classes=4)
        assert float(matched[image]) == pytest.approx(float(alone))


@pytest.mark.parametrize("fault", ["the background too", "classes that are there"])
def test_another_mean_over_classes_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = segmentation._pairs

    def wrong(a: Tensor, b: Tensor | None, num_classes: int | None) -> Tensor:
        if num_classes is None:
            return pairs(a, b, None)
        other = a if b is None else b
        each = torch.stack([pairs(a == label, other == label, None) for label in range(num_classes)])
        if fault == "the background too":
            return each.mean(0)
        there = torch.stack(
            [(a == k).flatten(2).any(2)[:, :, None] | (other == k).flatten(2).any(2)[:, None] for k in range(1, 4)]
        )
        return (each[1:] * there).sum(0) / there.sum(0).clamp_min(1)

    monkeypatch.setattr(segmentation, "_pairs", wrong)
    assert class_gap() > 1e-3


def test_two_classes_are_one_foreground() -> None:
    samples, graders = ragged(2)
    graders = torch.stack([own[:1] for own in graders])
    for measure in (segmentation.iou_distance, segmentation.dice):
        torch.testing.assert_close(measure(samples, graders, 2), measure(samples, graders))
    torch.testing.assert_close(segmentation.diversity(samples, 2), segmentation.diversity(samples))
    probs = torch.rand(3, 3, 4)
    two = torch.stack((1 - probs, probs), 1)
    for one, other in ((segmentation.pixel_calibration(two, graders), segmentation.pixel_calibration(probs, graders)),):
        torch.testing.assert_close(one.error, other.error)
        torch.testing.assert_close(one.count, other.count)
    torch.testing.assert_close(segmentation.pixel_entropy(two, dim=1), segmentation.pixel_entropy(probs))


def test_pixels_of_classes_are_pooled_over_images_of_any_graders() -> None:
    """By loops over images, classes but the background, and pixels; one bin, so that only sums count."""
    _, graders = ragged()
    probs = torch.rand(3, 4, 3, 4).double().softmax(1)
    shares = torch.stack([torch.stack([(own == label).double().mean(0) for label in range(1, 4)]) for own in graders])
    found = segmentation.pixel_calibration(probs, graders, bins=1)
    assert int(found.count.sum()) == 3 * 3 * 12
    assert float(found.error) == pytest.approx(float((probs[:, 1:] - shares).sum().abs() / shares.numel()))
