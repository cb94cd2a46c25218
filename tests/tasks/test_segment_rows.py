"""Networks that segment: rows by double loops over masks, the same draws each time, graders beside their images."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from vnd.data.batches import Normalise
from vnd.data.images import Images
from vnd.methods import BN3UNet, Segmenter, Size, Sizes
from vnd.methods.base import Single
from vnd.models import UNet
from vnd.tasks import TASKS, TrainedRun
from vnd.tasks import segmentation as segmenting
from vnd.tasks.segmentation import SegmentationEvaluation

SIDE, COUNT, GRADERS = 6, 11, 3
evaluate, work = TASKS["segmentation"].evaluate, TASKS["segmentation"].work
OPTIONS = SegmentationEvaluation(sizes=Sizes((1.0,)), num_mask_samples=(1, 2, 4, 9))


class Brush(Segmenter, Single):
    """Draws what is brighter than a threshold that it draws: one for each sample of each image."""

    def __init__(self) -> None:
        self.thresholds: list[Tensor] = []
        self.recalibrated: list[tuple[Any, bool, int]] = []

    build = loss = None  # type: ignore[assignment]  # it is never trained

    def recalibrate(self, model: nn.Module, batches: Any, widths: list[Any], samples: bool) -> None:
        self.recalibrated.append((widths, samples, sum(len(x) for x in batches())))

    def drawer(self, model: nn.Module, size: Size) -> Any:
        def draw(images: Tensor, count: int) -> Tensor:
            self.thresholds.append(torch.rand(count, len(images), 1, 1))
            return 8 * (images[:, 0] - self.thresholds[-1])[:, :, None]

        return draw


def made() -> Images:
    """Images whose middle is brighter, the more the later; the graders mark what is above a threshold of their own."""
    generator = np.random.default_rng(3)
    grid = np.minimum.outer(np.minimum(np.arange(SIDE), SIDE - 1 - np.arange(SIDE)), np.full(SIDE, SIDE))
    pixels = np.clip(
        grid[None] * np.arange(2, 2 + COUNT)[:, None, None] * 8 + generator.integers(0, 60, (COUNT, SIDE, SIDE)), 0, 255
    )
    levels = np.array([40, 90, 200])[None, :, None, None]
    masks = (pixels[:, None] > levels).astype(np.uint8)
    return Images(pixels[:, None].astype(np.uint8), masks=masks)


def run_of(method: Segmenter) -> TrainedRun:
    model = nn.Linear(2, 3)  # of which nothing is asked but its device and its size
    return TrainedRun(method, model, Normalise((0.0,), (1.0,), "cpu"))  # type: ignore[arg-type]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    either = (a | b).sum()
    return 1 - (a & b).sum() / either if either else 0.0


def mean_distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return float(np.mean([distance(a, b) for a in one for b in other]))


def by_hand(images: Images, thresholds: Tensor) -> dict[str, Any]:
    """What rows say of thresholds (samples, images), by loops over images, masks and pixels."""
    shown, count = images.pixels[:, 0] / 255.0, len(thresholds)
    found: dict[str, Any] = {name: [] for name in ("dice", "entropy", "diversity", "marked", "own_dice", "own")}
    ged: dict[int, list[float]] = {n: [] for n in OPTIONS.num_mask_samples}
    unbiased: dict[int, list[float]] = {n: [] for n in OPTIONS.num_mask_samples}
    probs = []
    for index, image in enumerate(shown):
        masks = [image > t for t in thresholds[:, index].double().numpy()]
        graders = [mask.astype(bool) for mask in images.masks[index]]
        apart = mean_distance(graders, graders)
        for n in (n for n in OPTIONS.num_mask_samples if n <= count):
            groups = [masks[i * n : i * n + n] for i in range(count // n)]
            own = [2 * mean_distance(group, graders) - mean_distance(group, group) - apart for group in groups]
            ged[n].append(float(np.mean(own)))
            if n > 1:
                pairs = [np.mean([distance(a, b) for a, b in combinations(group, 2)]) for group in groups]
                parts = [2 * mean_distance(g, graders) - p - apart for g, p in zip(groups, pairs, strict=True)]
                unbiased[n].append(float(np.mean(parts)))
        mean = np.mean([1 / (1 + np.exp(-8 * (image - t))) for t in thresholds[:, index].double().numpy()], axis=0)
        probs.append(mean)
        nats = -mean * np.log(mean) - (1 - mean) * np.log(1 - mean)
        found["entropy"].append(nats.mean())
        found["marked"] += nats[np.any(graders, axis=0)].tolist()
        found["dice"].append(np.mean([dice(mean > 0.5, grader) for grader in graders]))
        found["diversity"].append(np.mean([distance(a, b) for a, b in combinations(masks, 2)]))
        found["own"].append(np.mean([distance(a, b) for a, b in combinations(graders, 2)]))
        others = [np.mean([g for j, g in enumerate(graders) if j != i], axis=0) > 0.5 for i in range(GRADERS)]
        found["own_dice"].append(np.mean([dice(a, b) for a, b in zip(others, graders, strict=True)]))
    return {
        **{k: float(np.mean(v)) for k, v in found.items()},
        "ged": ged,
        "unbiased": unbiased,
        "probs": np.stack(probs),
    }


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return float(2 * (a & b).sum() / (a.sum() + b.sum())) if a.any() or b.any() else 1.0


def check_row(results: dict[str, Any], images: Images, thresholds: Tensor) -> None:
    hand, (row,) = by_hand(images, thresholds), results["rows"]
    for n in OPTIONS.num_mask_samples:
        assert row["ged"][str(n)] == pytest.approx(np.mean(hand["ged"][n]), abs=1e-9), n
        assert row["per_image"][str(n)] == pytest.approx(hand["ged"][n], abs=1e-5), n
        if n > 1:
            assert row["ged_unbiased"][str(n)] == pytest.approx(np.mean(hand["unbiased"][n]), abs=1e-9), n
    assert row["ged_unbiased"]["1"] is None
    names = {"dice": "dice", "entropy": "entropy", "diversity": "diversity", "entropy_marked": "marked"}
    for name, own in names.items():
        assert row[name] == pytest.approx(hand[own], abs=1e-6), name
    assert results["graders_own"]["diversity"] == pytest.approx(hand["own"])
    assert results["graders_own"]["dice"] == pytest.approx(hand["own_dice"])
    share, bins = images.masks.mean(1).ravel(), np.minimum(hand["probs"].ravel() * 15, 14.999).astype(int)
    gaps = [abs((hand["probs"].ravel() - share)[bins == b].sum()) for b in range(15)]
    assert row["calibration_error"] == pytest.approx(sum(gaps) / share.size, abs=1e-6)
    (drawn,) = results["reliability"].values()
    assert drawn["count"] == np.bincount(bins, minlength=15).tolist()


def test_rows_are_those_of_double_loops() -> None:
    images, method = made(), Brush()
    results = evaluate(run_of(method), OPTIONS, images)
    (thresholds,) = method.thresholds
    check_row(results, images, thresholds[:, :, 0, 0])
    (row,) = results["rows"]
    assert (row["label"], row["parameters"], row["expected_ged"]) == ("100 %", 9, None)
    assert len(set(row["per_image"]["1"])) > 4  # or the test says little
    assert (results["graders"], results["samples"]) == (GRADERS, [1, 2, 4, 9])
    assert 0 < row["matched_iou"] < 1
    json.dumps(results, allow_nan=False)


@pytest.mark.parametrize(
    "fault", ["the first samples alone", "graders of other images", "one sample with itself", "soft masks"]
)
def test_faults_in_rows_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, method = made(), Brush()
    distances, graded, add = segmenting.distances, segmenting.graded, segmenting._Measured.add

    def firsts(table: Tensor, samples: int, count: int, unbiased: bool) -> Tensor:
        own = [*range(count), *range(samples, table.size(1))]
        return distances(table[:, own][:, :, own], count, count, unbiased)

    if fault == "the first samples alone":
        monkeypatch.setattr(segmenting, "distances", lambda t, s, n, unbiased=False: firsts(t, s, n, unbiased))
    elif fault == "graders of other images":
        monkeypatch.setattr(
            segmenting, "graded", lambda *a: ((x, dataclasses.replace(y, masks=y.masks.flip(0))) for x, y in graded(*a))
        )
    elif fault == "one sample with itself":
        monkeypatch.setattr(segmenting, "distances", lambda t, s, n, unbiased=False: distances(t, s, n))
    else:
        monkeypatch.setattr(segmenting._Measured, "add", lambda self, x, g, notes: add(self, 2 * x, g, notes))
    results = evaluate(run_of(method), OPTIONS, images)
    with pytest.raises(AssertionError):
        check_row(results, images, method.thresholds[0][:, :, 0, 0])


def test_many_batches_are_measured_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    images, method = made(), Brush()
    monkeypatch.setattr(segmenting, "PIXELS", 4 * SIDE**2)
    results = evaluate(run_of(method), OPTIONS, images)
    assert [x.size(1) for x in method.thresholds] == [4, 4, 3]
    check_row(results, images, torch.cat(method.thresholds, 1)[:, :, 0, 0])


def test_draws_are_the_same_each_time_and_the_generator_is_left() -> None:
    found = []
    for seed in (3, 4):
        trained_run = run_of(Brush())
        torch.manual_seed(seed)
        rows = evaluate(trained_run, OPTIONS, made())["rows"]
        found.append([{key: value for key, value in row.items() if key != "seconds"} for row in rows])
        after = torch.rand(())
        torch.manual_seed(seed)
        assert torch.rand(()) == after
    assert found[0] == found[1]


def test_what_is_known_of_graders_gives_an_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graders who always draw one of two masks that do not meet: d is 1 between them, each likely by a half."""
    pixels = np.zeros((2, 1, 2, 2), np.uint8)
    one, other = np.array([[1, 0], [0, 0]], np.uint8), np.array([[0, 0], [0, 1]], np.uint8)
    images = Images(pixels, masks=np.stack([[one, other]] * 2))
    truth = torch.from_numpy(np.stack([[one, other]] * 2)), torch.full((2, 2), 0.5)
    monkeypatch.setattr(TrainedRun, "truth", lambda run, images: truth)
    results = evaluate(run_of(Brush()), OPTIONS, images)
    expected = {str(n): 2 * 0.5 - (1 - 1 / n) * 0.5 - 0.5 for n in OPTIONS.num_mask_samples}
    assert results["rows"][0]["expected_ged"] == pytest.approx(expected)
    lines = results["tidy"]
    assert [line["samples"] for line in lines] == [1, 2, 4, 9]
    assert [line["expected_ged"] for line in lines] == pytest.approx(list(expected.values()))
    assert not any(isinstance(value, dict | list) for line in lines for value in line.values())


def test_validation_is_the_distance_of_four_masks() -> None:
    images, method = made(), Brush()
    found = TASKS["segmentation"].validate(
        method, nn.Linear(1, 1), Size("uniform", "100 %", None, 1.0), images, Normalise((0.0,), (1.0,), "cpu")
    )
    hand = by_hand(images, method.thresholds[0][:, :, 0, 0])
    assert len(method.thresholds[0]) == 4
    assert found == pytest.approx(np.mean(hand["ged"][4]))


def test_each_size_is_calibrated_for_draws_before_it_draws() -> None:
    method, done = Brush(), list[int]()
    trained_run = dataclasses.replace(
        run_of(method), bn_batches=lambda count, repeat, augmented: iter([torch.zeros(count, 1)])
    )
    options = dataclasses.replace(OPTIONS, bn_images=20)
    evaluate(trained_run, options, made(), done.append)
    assert method.recalibrated == [([None], True, 20)]
    assert sum(done) == work(trained_run, options, made()) == COUNT


def test_one_sample_and_one_grader_have_no_diversity() -> None:
    images = made()
    one = Images(images.pixels, masks=images.masks[:, :1])
    results = evaluate(run_of(Brush()), dataclasses.replace(OPTIONS, num_mask_samples=(1,)), one)
    (row,) = results["rows"]
    assert row["diversity"] is None
    assert row["ged_unbiased"] == {"1": None}
    assert results["graders_own"] == {"diversity": None, "dice": None}
    json.dumps(results, allow_nan=False)


def owned(names: tuple[str, ...] = ()) -> Images:
    """Images of three groups, one of whom has most of them; numbers of groups are of all splits."""
    return dataclasses.replace(made(), groups=np.array([2] * 7 + [0] + [5] * 3), group_names=names)


@pytest.mark.parametrize("names", [(), tuple("abcdef")])
def test_groups_count_once_and_are_resampled_whole(names: tuple[str, ...]) -> None:
    results = evaluate(run_of(Brush()), OPTIONS, owned(names))
    plain = evaluate(run_of(Brush()), OPTIONS, made())
    assert results["groups"] == (["c"] * 7 + ["a"] + ["f"] * 3 if names else [2] * 7 + [0] + [5] * 3)
    (row,), (other,) = results["rows"], plain["rows"]
    assert (plain["groups"], other["ged_by_group"]) == (None, None)
    assert row["ged"] == other["ged"]
    for n in map(str, OPTIONS.num_mask_samples):
        each = np.array(row["per_image"][n])
        means = [each[:7].mean(), each[7], each[8:].mean()]
        assert row["ged_by_group"][n] == pytest.approx(np.mean(means), abs=1e-5)
        assert row["ged_by_group"][n] != pytest.approx(row["ged"][n], abs=1e-3)  # or the test says little
        for ends in (row["ged_interval"][n], other["ged_interval"][n]):
            assert ends[0] < row["ged"][n] < ends[1]
        assert row["ged_interval"][n] != other["ged_interval"][n]
        assert min(means) - 1e-5 <= row["ged_interval"][n][0] <= row["ged_interval"][n][1] <= max(means) + 1e-5
    line = results["tidy"][-1]
    assert (line["ged_low"], line["ged_high"]) == tuple(row["ged_interval"]["9"])
    assert line["ged_by_group"] == row["ged_by_group"]["9"]
    assert "ged_interval" not in plain["tidy"][0]
    json.dumps(results, allow_nan=False)


@pytest.mark.parametrize("images", [made(), owned(), dataclasses.replace(made(), groups=np.zeros(COUNT, np.int64))])
def test_the_table_says_how_sure_the_largest_size_is(images: Images) -> None:
    results = evaluate(run_of(Both()), OPTIONS, images) | {"title": "t"}
    console = Console(width=120)
    with console.capture() as caught:
        console.print(*TASKS["segmentation"].tables(results, "test", OPTIONS))
    (row, _), printed = results["rows"], " ".join(caught.get().split())  # the caption may be wrapped
    assert "drawn" in printed
    if row["ged_interval"] is None:
        assert "resampling" not in printed
        return
    low, high = row["ged_interval"]["9"]
    assert f"GED 9 at 100 %: {low:.4f} … {high:.4f}, 95 % by resampling " in printed
    whose = "images" if images.groups is None else f"3 groups; mean of their means {row['ged_by_group']['9']:.4f}"
    assert f"resampling {whose}" in printed


def test_one_owner_has_no_interval() -> None:
    images = dataclasses.replace(made(), groups=np.zeros(COUNT, np.int64))
    results = evaluate(run_of(Brush()), OPTIONS, images)
    (row,) = results["rows"]
    assert row["ged_interval"] is None
    assert row["ged_by_group"] == pytest.approx(row["ged"])
    assert [line["ged_low"] for line in results["tidy"]] == [None] * 4


class Few(Brush):
    """Draws four thresholds, again and again, as an ensemble runs its members."""

    few = 4

    def distinct(self, model: nn.Module) -> int | None:
        return self.few

    def drawer(self, model: nn.Module, size: Size) -> Any:
        draw = super().drawer(model, size)
        return lambda images, count: draw(images, self.few)[torch.arange(count) % self.few]


def test_masks_that_come_again_are_no_independent_draws() -> None:
    images, method = made(), Few()
    results = evaluate(run_of(method), dataclasses.replace(OPTIONS, num_mask_samples=(2, 4, 8, 16)), images)
    (row,) = results["rows"]
    alone = evaluate(run_of(Brush()), dataclasses.replace(OPTIONS, num_mask_samples=(2, 4)), images)["rows"][0]
    for n in ("4", "8", "16"):  # the same four masks, equally often
        assert row["ged"][n] == pytest.approx(alone["ged"]["4"], abs=1e-12)
    assert row["ged_unbiased"] == {
        "2": pytest.approx(alone["ged_unbiased"]["2"]), "4": pytest.approx(alone["ged_unbiased"]["4"]),
        "8": None, "16": None,
    }  # fmt: skip
    for key in ("diversity", "matched_iou", "dice"):  # of two different members, not of one with itself
        assert row[key] == pytest.approx(alone[key], abs=1e-12), key
    (note,) = results["notes"]
    assert note == "Few has 4 masks of an image, and further samples repeat them: no unbiased GED of 8, 16 samples"


def test_one_mask_is_no_distance_from_itself() -> None:
    method = Few()
    method.few = 1
    results = evaluate(run_of(method), OPTIONS, made())
    (row,) = results["rows"]
    assert row["diversity"] == 0
    assert set(row["ged_unbiased"].values()) == {None}
    assert results["notes"][0].startswith("Few has one mask of an image, and further samples repeat it")


def test_an_ensemble_that_says_nothing_of_its_members_is_caught() -> None:
    """The planted fault: no method says how few masks it has, and the U-statistic of 8 samples is too large."""
    images, method = made(), Few()
    method.distinct = lambda model: None  # type: ignore[method-assign]
    results = evaluate(run_of(method), dataclasses.replace(OPTIONS, num_mask_samples=(2, 4, 8, 16)), images)
    (row,) = results["rows"]
    assert row["ged_unbiased"]["8"] > row["ged_unbiased"]["4"] + 0.01
    assert results["notes"] == []


class Both(Brush):
    """One that can be read in another way too, which draws nothing."""

    def others(self, model: nn.Module) -> list[Size]:
        return [Size("sampled", "drawn", None)]

    def drawer(self, model: nn.Module, size: Size) -> Any:
        draw = super().drawer(model, size)
        return (lambda images, count: draw(images, count) - 99) if size.kind == "sampled" else draw


def test_what_it_can_be_read_at_beside_comes_after_the_wanted_sizes() -> None:
    images, done = made(), list[int]()
    trained_run = run_of(Both())
    results = evaluate(trained_run, OPTIONS, images, done.append)
    wanted, drawn = results["rows"]
    assert [(row["label"], row["kind"], row["fraction"]) for row in (wanted, drawn)] == [
        ("100 %", "uniform", 1.0), ("drawn", "sampled", None),
    ]  # fmt: skip
    assert wanted["ged"] == evaluate(run_of(Brush()), OPTIONS, images)["rows"][0]["ged"]
    assert drawn["diversity"] == 0 < wanted["diversity"]
    assert sum(done) == work(trained_run, OPTIONS, images) == 2 * COUNT
    assert list(results["reliability"]) == ["100 %", "drawn"]


def test_too_many_masks_are_measured_but_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmenting.metrics.segmentation, "LONGEST", 8)
    results = evaluate(run_of(Brush()), OPTIONS, made())
    assert results["rows"][0]["matched_iou"] is None
    (note,) = results["notes"]
    assert "least common multiple of 9 samples and 3 graders" in note


def test_pixels_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, pairs = list[tuple[int, ...]](), segmenting.metrics.segmentation._pairs

    def counted(a: Tensor, b: Tensor | None, num_classes: int | None) -> Tensor:
        asked.append(tuple(a.shape))
        return pairs(a, b, num_classes)

    monkeypatch.setattr(segmenting.metrics.segmentation, "_pairs", counted)
    images = made()
    evaluate(run_of(Brush()), OPTIONS, images)
    assert asked == [(COUNT, 9 + GRADERS, SIDE, SIDE), (COUNT, GRADERS, SIDE, SIDE)]  # and the graders among themselves


def test_widths_have_costs_of_their_own() -> None:
    torch.manual_seed(0)
    method = BN3UNet(num_groups=4, base=1, initial_logit=3.0)
    images = Images(np.zeros((3, 1, 8, 8), np.uint8), masks=np.ones((3, 2, 8, 8), np.uint8))
    model = method.build(UNet(channels=(4, 8)), torch.rand(2, 1, 8, 8)).eval()
    trained_run = TrainedRun(
        method, model, Normalise((0.0,), (1.0,), "cpu"), lambda count, repeat, augmented: [torch.rand(4, 1, 8, 8)]
    )
    options = SegmentationEvaluation(sizes=Sizes((0.5, 1.0)), num_mask_samples=(1, 2), bn_images=4)
    narrow, wide = evaluate(trained_run, options, images)["rows"]
    assert (narrow["label"], wide["label"]) == ("50 %", "100 %")
    assert 0 < narrow["parameters"] < wide["parameters"]
    assert 0 < narrow["macs"] < wide["macs"]
    assert all(math.isfinite(row["ged"]["2"]) for row in (narrow, wide))


def test_images_without_masks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^evaluate: the images have no masks to be held against"):
        evaluate(run_of(Brush()), OPTIONS, Images(made().pixels))


# Several classes, graders who differ in number


class Classes(Brush):
    """Draws three classes: what is brighter than a threshold, and than it and a tenth."""

    def drawer(self, model: nn.Module, size: Size) -> Any:
        draw = super().drawer(model, size)

        def classes(images: Tensor, count: int) -> Tensor:
            first = draw(images, count)
            return torch.cat((torch.zeros_like(first), first, 2 * first - 0.8), 2)

        return classes


def uneven(classes: tuple[str, ...]) -> Images:
    """The images, whose graders are 1, 3 and 2 by turns; the masks of those that are not there are nonsense."""
    images, counts = made(), np.array([1, 3, 2] * COUNT)[:COUNT]
    masks = images.masks * (1 + (images.pixels > 120).astype(np.uint8)) if classes else images.masks.copy()
    masks[np.arange(GRADERS) >= counts[:, None]] = 1
    return dataclasses.replace(images, masks=masks, num_graders=counts, classes=classes)


def uneven_gap(method: Brush, classes: tuple[str, ...]) -> float:
    """Worst difference of rows from images that are measured one by one, each against its own graders alone."""
    images = uneven(classes)
    results = evaluate(run_of(method), OPTIONS, images)
    (row,), num_classes = results["rows"], len(classes) or None
    logits = type(method).drawer(method, nn.Linear(1, 1), Size("uniform", "100 %", None, 1.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)  # as the evaluation draws
        drawn = logits(torch.from_numpy(images.pixels).float() / 255, 9)
    samples, _ = segmenting.drawn_masks(drawn)
    probs = segmenting.class_probs(drawn).mean(0)
    graders = [torch.from_numpy(own[:count]) for own, count in zip(images.masks, images.num_graders, strict=True)]
    metrics = segmenting.metrics
    ged = metrics.generalized_energy_distance(samples, graders, num_classes=num_classes)
    marked = torch.stack([own.bool().any(0) for own in graders])
    entropy = torch.special.entr(probs).sum(1) + (0 if classes else torch.special.entr(1 - probs).sum(1))
    dice = [
        metrics.dice(segmenting.most_likely(probs[i])[None], own, num_classes).mean() for i, own in enumerate(graders)
    ]
    calibration = metrics.pixel_calibration(probs if classes else probs[:, 0], graders)
    own = [float(metrics.diversity(one[None], num_classes)) for one in graders if len(one) > 1]
    gaps = [
        *(abs(a - float(b)) for a, b in zip(row["per_image"]["9"], ged, strict=True)),
        abs(row["dice"] - float(torch.stack(dice).mean())),
        abs(row["entropy_marked"] - float(entropy[marked].mean())),
        abs(row["calibration_error"] - float(calibration.error)),
        abs(results["graders_own"]["diversity"] - np.mean(own)),
    ]
    assert (results["graders"], results["fewest_graders"]) == (3, 1)
    assert results.get("mask_classes") == (list(classes) or None)
    json.dumps(results, allow_nan=False)
    return float(max(gaps))


BOTH_KINDS = pytest.mark.parametrize(("method", "classes"), [(Brush(), ()), (Classes(), ("none", "cyst", "tumour"))])


@BOTH_KINDS
def test_an_image_is_held_against_its_own_graders(method: Brush, classes: tuple[str, ...]) -> None:
    assert uneven_gap(method, classes) < 2e-5


@BOTH_KINDS
def test_masks_of_graders_that_are_not_there_are_caught(
    method: Brush, classes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: all masks of the array count."""
    whole = lambda self: iter([(torch.arange(len(self.counts)), self.masks)])  # noqa: E731
    monkeypatch.setattr(segmenting.Graders, "alike", whole)
    assert uneven_gap(method, classes) > 1e-2
