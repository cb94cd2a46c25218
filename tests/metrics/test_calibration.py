"""Accuracy, likelihood, Brier score and calibration: known answers, independent implementations, refused input."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor

from covering import turns
from vnd import metrics

MEASURES = (
    metrics.accuracy,
    metrics.negative_log_likelihood,
    metrics.brier_score,
    metrics.expected_calibration_error,
    metrics.classwise_calibration_error,
    metrics.adaptive_calibration_error,
    metrics.batch_calibration_error,
    metrics.reliability,
)
NUMBERS, BINNED = MEASURES[:-1], MEASURES[3:]  # those that are one number, those that have bins


def predictions(rows: int = 400, classes: int = 5, seed: int = 0, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(classes, (rows,), generator=generator)


def error_by_hand(probs: np.ndarray, labels: np.ndarray, bins: int, lower_closed: bool = False) -> float:
    """The definition of the expected calibration error, bin by bin and row by row."""
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        members = []
        for row, label in zip(probs, labels, strict=True):
            confidence = row.max()
            inside = low <= confidence < high if lower_closed else low < confidence <= high
            if inside or (b == 0 and confidence == 0) or (b == bins - 1 and confidence >= 1):
                members.append((confidence, row.argmax() == label))
        if members:
            sure, right = (sum(column) / len(members) for column in zip(*members, strict=True))
            total += len(members) / len(labels) * abs(right - sure)
    return total


def two_classes(confidences: list[float], right: list[bool]) -> tuple[Tensor, Tensor]:
    top = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack((top, 1 - top), 1), torch.tensor([0 if hit else 1 for hit in right])


@pytest.mark.parametrize(("bins", "sharpness"), turns([1, 15, 37], [0.1, 2.0, 30.0]))
def test_the_calibration_error_is_its_definition(bins: int, sharpness: float) -> None:
    probs, labels = predictions(sharpness=sharpness)
    expected = error_by_hand(probs.numpy(), labels.numpy(), bins)
    assert float(metrics.expected_calibration_error(probs, labels, bins)) == pytest.approx(expected, abs=1e-13)


@given(st.lists(st.tuples(st.integers(15, 30), st.booleans()), min_size=1, max_size=40), st.sampled_from([3, 10, 15]))
def test_confidences_on_the_edges_fall_into_the_lower_bin(rows: list[tuple[int, bool]], bins: int) -> None:
    probs, labels = two_classes([sure / 30 for sure, _ in rows], [right for _, right in rows])
    expected = error_by_hand(probs.numpy(), labels.numpy(), bins)
    assert float(metrics.expected_calibration_error(probs, labels, bins)) == pytest.approx(expected, abs=1e-13)


def test_bins_closed_at_the_other_end_would_be_noticed() -> None:
    probs, labels = two_classes([0.85, 0.9], [False, True])
    assert error_by_hand(probs.numpy(), labels.numpy(), 10) != error_by_hand(probs.numpy(), labels.numpy(), 10, True)
    assert metrics.reliability(probs, labels, bins=10).count.tolist() == [0] * 8 + [2, 0]


# What netcal 1.4's ECE(15) says of `predictions(seed)`, for where it is not installed.
NETCAL = (0.472158289588412, 0.4136309897493342, 0.4328770089814893, 0.43560370973354473, 0.48279436692134653)


@pytest.mark.parametrize("seed", range(5))
def test_the_calibration_error_agrees_with_what_netcal_said(seed: int) -> None:
    found = metrics.expected_calibration_error(*predictions(seed=seed))
    assert float(found) == pytest.approx(NETCAL[seed], abs=1e-12)


def test_the_calibration_error_agrees_with_netcal() -> None:
    pytest.importorskip("netcal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.metrics import ECE
    for seed in range(5):
        probs, labels = predictions(seed=seed)
        expected = ECE(15).measure(probs.numpy(), labels.numpy())
        assert float(metrics.expected_calibration_error(probs, labels)) == pytest.approx(expected, abs=1e-12)


def test_accuracy_and_likelihood_agree_with_scikit_learn() -> None:
    probs, labels = predictions()
    assert float(metrics.accuracy(probs, labels)) == accuracy_score(labels, probs.argmax(1))
    expected = log_loss(labels, probs, labels=range(5))
    assert float(metrics.negative_log_likelihood(probs, labels)) == pytest.approx(expected, rel=1e-12)


def test_the_brier_score_is_its_definition() -> None:
    probs, labels = predictions(rows=50)
    by_hand = 0.0
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        by_hand += sum((p - (c == label)) ** 2 for c, p in enumerate(row)) / 50
    assert float(metrics.brier_score(probs, labels)) == pytest.approx(by_hand, rel=1e-12)


def test_a_perfect_prediction_has_no_error() -> None:
    labels = torch.tensor([2, 0, 1])
    probs = torch.eye(3)[labels]
    assert float(metrics.accuracy(probs, labels)) == 1
    for measure in NUMBERS[1:]:
        assert float(measure(probs, labels)) == 0


def test_sure_and_wrong_costs_the_most() -> None:
    probs, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert float(metrics.accuracy(probs, labels)) == 0
    assert float(metrics.brier_score(probs, labels)) == 2
    for measure in BINNED[:-1]:
        assert float(measure(probs, labels)) == 1
    assert float(metrics.negative_log_likelihood(probs, labels)) == pytest.approx(-math.log(np.finfo(np.float64).tiny))


def test_an_even_prediction_is_calibrated_at_chance() -> None:
    probs, labels = torch.full((4, 4), 0.25), torch.arange(4)
    assert float(metrics.accuracy(probs, labels)) == 0.25  # the first of equal classes
    assert float(metrics.negative_log_likelihood(probs, labels)) == pytest.approx(math.log(4))
    assert float(metrics.brier_score(probs, labels)) == pytest.approx(0.75)
    for measure in BINNED[:-1]:
        assert float(measure(probs, labels)) == pytest.approx(0, abs=1e-15)


def test_a_calibrated_prediction_has_only_the_error_of_chance() -> None:
    probs, _ = predictions(rows=200_000, classes=3, sharpness=1.0)
    labels = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    calibrated = float(metrics.expected_calibration_error(probs, labels))
    assert 0 < calibrated < 0.01  # 15 bins of 13,000 rows: about .4 √(1 / 13,000) = .004
    sharper = probs.square() / probs.square().sum(1, keepdim=True)
    assert float(metrics.expected_calibration_error(sharper, labels)) > 0.1


def test_it_is_pooled_and_not_a_mean_over_batches() -> None:
    probs, labels = two_classes([0.75] * 4, [True, True, True, False])
    assert float(metrics.expected_calibration_error(probs, labels)) == 0
    assert float(metrics.batch_calibration_error(probs, labels, batch=1)) == 0.375


def test_the_classwise_error_is_the_mean_over_classes_of_a_binary_error() -> None:
    for sharpness in (0.1, 2.0, 30.0):
        probs, labels = predictions(sharpness=sharpness)
        by_hand = []
        for c in range(5):
            sure = probs[:, c].numpy()
            place = np.clip(np.ceil(sure * 15).astype(int) - 1, 0, 14)  # no probability is on an edge here
            gaps = [(sure - (labels == c).numpy())[place == b].sum() for b in range(15)]
            by_hand.append(np.abs(gaps).sum() / len(labels))
        assert float(metrics.classwise_calibration_error(probs, labels)) == pytest.approx(np.mean(by_hand), abs=1e-13)


def test_the_classwise_error_sees_what_the_top_class_hides() -> None:
    probs, labels = torch.tensor([[0.5, 0.4, 0.1]]).repeat(10, 1), torch.tensor([0] * 5 + [1, 2, 2, 2, 2])
    assert float(metrics.expected_calibration_error(probs, labels)) == pytest.approx(0, abs=1e-7)
    assert float(metrics.classwise_calibration_error(probs, labels)) == pytest.approx(0.6 / 3, abs=1e-7)


def test_the_classwise_and_the_adaptive_error_agree_with_netcal() -> None:
    pytest.importorskip("netcal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.metrics import ECE
    for seed in range(3):
        probs, labels = predictions(rows=450, seed=seed)  # 15 · 30: where netcal's quantiles cut as ours do
        classes = [ECE(15).measure(probs[:, c].numpy(), (labels == c).long().numpy()) for c in range(5)]
        assert float(metrics.classwise_calibration_error(probs, labels)) == pytest.approx(np.mean(classes), abs=1e-12)
        adaptive = ECE(15, equal_intervals=False).measure(probs.numpy(), labels.numpy())
        assert float(metrics.adaptive_calibration_error(probs, labels)) == pytest.approx(adaptive, abs=1e-12)


@pytest.mark.parametrize(("rows", "bins"), [(1, 15), (7, 15), (101, 3), (64, 1)])
def test_adaptive_bins_hold_equally_many_rows(rows: int, bins: int) -> None:
    probs, labels = predictions(rows=rows)
    sure, top = probs.max(1)
    order = sure.argsort()
    by_hand = 0.0
    for b in range(bins):
        rows_of_bin = order[[i for i in range(rows) if i * bins // rows == b]]
        assert len(rows_of_bin) in (rows // bins, -(-rows // bins))
        by_hand += abs(float((sure - (top == labels).double())[rows_of_bin].sum())) / rows
    assert float(metrics.adaptive_calibration_error(probs, labels, bins)) == pytest.approx(by_hand, abs=1e-13)


@given(st.lists(st.tuples(st.integers(5, 10), st.booleans()), min_size=1, max_size=30), st.sampled_from([2, 5, 15]))
def test_rows_of_equal_confidence_share_an_adaptive_bin(rows: list[tuple[int, bool]], bins: int) -> None:
    rows = sorted(rows)
    members: list[list[float]] = [[] for _ in range(bins)]
    for sure, right in rows:
        places = [i for i, row in enumerate(rows) if row[0] == sure]
        members[(places[0] + places[-1]) * bins // (2 * len(rows))].append(sure / 10 - right)
    by_hand = sum(abs(sum(gaps)) for gaps in members) / len(rows)
    probs, labels = two_classes([sure / 10 for sure, _ in rows], [right for _, right in rows])
    for order in (torch.arange(len(rows)), torch.arange(len(rows)).flip(0), torch.randperm(len(rows))):
        error = metrics.adaptive_calibration_error(probs[order], labels[order], bins)
        assert float(error) == pytest.approx(by_hand, abs=1e-13)


def test_tied_rows_go_where_their_middle_is() -> None:
    probs, labels = two_classes([0.6, 0.9, 0.9, 0.9], [False, True, True, True])
    error = float(metrics.adaptive_calibration_error(probs, labels, bins=2))
    assert error == pytest.approx((0.6 + 0.3) / 4)  # by the first of their places they would join the first row


def test_adaptive_bins_that_cut_ties_would_be_noticed() -> None:
    probs, labels = two_classes([0.75] * 4, [True, True, True, False])
    assert float(metrics.adaptive_calibration_error(probs, labels, bins=2)) == 0  # one bin, in which 3 of 4 are right
    halves = [metrics.expected_calibration_error(p, y) for p, y in zip(probs.split(2), labels.split(2), strict=True)]
    assert float(torch.stack(halves).mean()) == 0.25  # what cutting them in the order of the rows would say


@pytest.mark.parametrize("measure", [each for each in NUMBERS if each is not metrics.batch_calibration_error])
def test_the_order_of_the_rows_does_not_matter(measure) -> None:
    probs, labels = predictions()
    probs = (probs * 8).round() + 1  # many ties
    probs /= probs.sum(1, keepdim=True)
    order = torch.randperm(len(labels))
    assert float(measure(probs[order], labels[order])) == pytest.approx(float(measure(probs, labels)), abs=1e-13)


def test_the_batch_error_is_a_mean_over_consecutive_batches() -> None:
    probs, labels = predictions(rows=150)
    batches = [error_by_hand(probs[i : i + 64].numpy(), labels[i : i + 64].numpy(), 15) for i in (0, 64, 128)]
    assert float(metrics.batch_calibration_error(probs, labels)) == pytest.approx(np.mean(batches), abs=1e-13)
    whole = metrics.expected_calibration_error(probs, labels)
    assert float(metrics.batch_calibration_error(probs, labels, batch=1000)) == float(whole)


@pytest.mark.parametrize(("a", "b", "reads"), [(5, 2, 0.13), (8, 1, 0.073)])
def test_a_perfectly_calibrated_model_reads_high_by_batches(a: int, b: int, reads: float) -> None:
    sure = np.maximum(np.random.default_rng(0).beta(a, b, 10_000), 0.5)
    right = np.random.default_rng(1).random(10_000) < sure
    probs, labels = two_classes(sure.tolist(), right.tolist())
    by_batches = float(metrics.batch_calibration_error(probs, labels))
    assert 0.05 < by_batches < 0.15
    assert by_batches == pytest.approx(reads, rel=0.15)
    assert float(metrics.expected_calibration_error(probs, labels)) < 0.012


@pytest.mark.parametrize(("confidence", "place"), [(1.0, 14), (0.5, 7), (8 / 15, 7), (0.5334, 8), (14 / 15, 13)])
def test_the_bin_of_a_confidence(confidence: float, place: int) -> None:
    bins = metrics.reliability(*two_classes([confidence], [True]))
    assert bins.count.nonzero().tolist() == [[place]]
    assert bins.count.dtype == torch.int64
    assert float(bins.confidence[place]) == confidence
    assert bins.accuracy.tolist() == [float(b == place) for b in range(15)]


def test_one_class_is_always_right() -> None:
    probs, labels = torch.ones(3, 1), torch.zeros(3, dtype=torch.long)
    assert float(metrics.accuracy(probs, labels)) == 1
    for measure in BINNED[:-1]:
        assert float(measure(probs, labels)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_are_widened(dtype: torch.dtype) -> None:
    probs, labels = predictions(rows=2000, classes=100)
    for measure in NUMBERS:
        value = measure(probs.to(dtype).requires_grad_(), labels.to(torch.int16))
        assert value.dtype == torch.float64
        assert not value.requires_grad
        assert float(value) == pytest.approx(float(measure(probs, labels)), rel=1e-2)
