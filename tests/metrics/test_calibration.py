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

from vnd import metrics

MEASURES = (
    metrics.accuracy,
    metrics.negative_log_likelihood,
    metrics.brier_score,
    metrics.expected_calibration_error,
    metrics.reliability,
)


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


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 37])
@pytest.mark.parametrize("sharpness", [0.1, 2.0, 30.0])
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
    for measure in MEASURES[1:4]:
        assert float(measure(probs, labels)) == 0


def test_sure_and_wrong_costs_the_most() -> None:
    probs, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert float(metrics.accuracy(probs, labels)) == 0
    assert float(metrics.brier_score(probs, labels)) == 2
    assert float(metrics.expected_calibration_error(probs, labels)) == 1
    assert float(metrics.negative_log_likelihood(probs, labels)) == pytest.approx(-math.log(np.finfo(np.float64).tiny))


def test_an_even_prediction_is_calibrated_at_chance() -> None:
    probs, labels = torch.full((4, 4), 0.25), torch.arange(4)
    assert float(metrics.accuracy(probs, labels)) == 0.25  # the first of equal classes
    assert float(metrics.negative_log_likelihood(probs, labels)) == pytest.approx(math.log(4))
    assert float(metrics.brier_score(probs, labels)) == pytest.approx(0.75)
    assert float(metrics.expected_calibration_error(probs, labels)) == pytest.approx(0, abs=1e-15)


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
    batches = [metrics.expected_calibration_error(p, y) for p, y in zip(probs.split(1), labels.split(1), strict=True)]
    assert float(torch.stack(batches).mean()) == 0.375


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
    assert float(metrics.expected_calibration_error(probs, labels)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_are_widened(dtype: torch.dtype) -> None:
    probs, labels = predictions(rows=2000, classes=100)
    for measure in MEASURES[:4]:
        value = measure(probs.to(dtype).requires_grad_(), labels.to(torch.int16))
        assert value.dtype == torch.float64
        assert not value.requires_grad
        assert float(value) == pytest.approx(float(measure(probs, labels)), rel=1e-2)


EVEN, SOME = torch.full((2, 4), 0.25), torch.tensor([0, 3])
REFUSED = {
    "a list": ([[1.0]], SOME, "probs must be a tensor; got a list"),
    "labels a list": (EVEN, [0, 3], "labels must be a tensor; got a list"),
    "one row": (EVEN[0], SOME, "probs must be floats of shape (N, C); got torch.float32 of (4,)"),
    "whole numbers": (EVEN.long(), SOME, "probs must be floats of shape (N, C); got torch.int64 of (2, 4)"),
    "labels too many": (EVEN, torch.zeros(3).long(), "labels must be whole numbers of shape (2,)"),
    "labels one-hot": (EVEN, EVEN.long(), "labels must be whole numbers of shape (2,)"),
    "labels as floats": (EVEN, torch.zeros(2), "labels must be whole numbers of shape (2,)"),
    "empty": (EVEN[:0], SOME[:0], "probs must not be empty; got shape (0, 4)"),
    "no classes": (EVEN[:, :0], SOME, "probs must not be empty; got shape (2, 0)"),
    "nan": (torch.tensor([[0.5, 0.5], [0.5, math.nan]]), SOME, "probs must be finite; row 1 holds NaN or infinity"),
    "infinite": (torch.tensor([[math.inf, 0.5], [0.5, 0.5]]), SOME, "probs must be finite; row 0"),
    "negative": (torch.tensor([[0.5, 0.5], [1.5, -0.5]]), SOME, "probs must not be negative; got -0.5 in row 1"),
    "logits": (torch.tensor([[0.5, 0.5], [2.5, 0.5]]), SOME, "each row of probs must sum to 1; row 1 sums to 3"),
    "a little off": (EVEN * 1.006, SOME, "each row of probs must sum to 1; row 0 sums to 1.006"),
    "label too large": (EVEN, torch.tensor([0, 4]), "labels must lie in 0 … 3; got 4 at index 1"),
    "label negative": (EVEN, torch.tensor([-1, 2]), "labels must lie in 0 … 3; got -1 at index 0"),
}


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.__name__)
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_by_name(measure, case) -> None:
    probs, labels, message = REFUSED[case]
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        measure(probs, labels)
    assert str(refused.value).startswith(f"{measure.__name__}: {message}")


@pytest.mark.parametrize("bins", [0, -1, 1.5, True, None])
def test_bins_must_be_a_count(bins) -> None:
    for measure in MEASURES[3:]:
        with pytest.raises(ValueError, match=f"{measure.__name__}: bins must be a whole number of at least 1; got"):
            measure(EVEN, SOME, bins)
