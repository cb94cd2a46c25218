"""Bad input of every measure: refused in one line, by the name of the measure and of the argument."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from covering import turns
from refusals import refused, table
from vnd import metrics
from vnd.metrics import generalized_energy_distance as ged
from vnd.metrics import generation, group_mean, segmentation
from vnd.metrics.segmentation import expected_energy_distance

NAN, TWO = torch.tensor([[1.0, 2.0], [1.0, math.nan]]), torch.ones(2, 3)
MASKS, HALF = torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), 0.5)
VALUES = torch.rand(6, 2, dtype=torch.float64)
ROWS = (torch.eye(2)[[0, 0]], torch.tensor([0, 1]), torch.tensor([0.0, 1.0], dtype=torch.float64))
LEVELS = torch.full((3, 5, 4), 0.25, dtype=torch.float64)
UNSURE, COSTS, LABELS = torch.rand(3, 5), torch.tensor([1.0, 4.0, 16.0]), torch.arange(5) % 4


def name(value: Any) -> str:
    return getattr(value, "__name__", value)


def cascade(probs: Any = LEVELS, uncertainty: Tensor = UNSURE, costs: Tensor = COSTS, *rest: Any) -> Callable[[], Any]:
    return lambda: metrics.cascade_curve(probs, uncertainty, costs, *(rest or (LABELS,)))


@table(
    {
        # Bootstrap
        "too few groups": (
            lambda: metrics.bootstrap_interval(VALUES, [0] * 5),
            "groups must be as many as the 6 images; got 5",
        ),
        "not a number": (lambda: group_mean(VALUES / 0), "values must be finite"),
        "one dimension": (
            lambda: metrics.bootstrap_interval(VALUES[:, 0]),
            "values must be real numbers of shape (images, col",
        ),
        "no resamples": (lambda: metrics.bootstrap_interval(VALUES, resamples=0), "resamples must be a whole number"),
        "certainty": (
            lambda: metrics.bootstrap_interval(VALUES, confidence=1),
            "confidence must be a number in (0, 1)",
        ),
        # Intervals
        "no values": (lambda: metrics.confidence_interval([]), "confidence_interval: values must not be empty"),
        "a nan among values": (
            lambda: metrics.confidence_interval([0.5, math.nan]),
            "confidence_interval: values must be finite; got nan at index 1",
        ),
        "words for values": (
            lambda: metrics.confidence_interval(["high"]),
            "values must be numbers; got a list: could not convert",
        ),
        "one value": (
            lambda: metrics.confidence_interval(0.5),
            "values must be numbers; got a float: 'float' object is not iterable",
        ),
        "a table for values": (lambda: metrics.confidence_interval(TWO), "values must be numbers; got a Tensor: "),
        "no degrees": (
            lambda: metrics.student_quantile(0.95, 0),
            "student_quantile: degrees must be a whole number of at least 1; got 0",
        ),
        "more errors than rows": (
            lambda: metrics.error_bound(4, 3),
            "error_bound: errors must be at most rows = 3; got 4",
        ),
        "fewer errors than none": (
            lambda: metrics.error_bound(-1, 3),
            "error_bound: errors must be a whole number of at least 0; got -1",
        ),
        # Correlation
        "scores a list": (lambda: metrics.pearson([1.0]), "pearson: scores must be a tensor; got a list"),
        "scores of one width": (
            lambda: metrics.pearson(torch.zeros(3)),
            "pearson: scores must be real numbers of shape (W, N), not empty; got torch.float32 of (3,)",
        ),
        "scores of nothing": (lambda: metrics.pearson(torch.zeros(3, 0)), "not empty; got torch.float32 of (3, 0)"),
        "a nan among scores": (
            lambda: metrics.pearson(NAN),
            "pearson: scores must be finite; row 1 holds NaN or infinity",
        ),
        "no square": (
            lambda: metrics.smallest_width(TWO),
            "smallest_width: correlation must be a square matrix; got (2, 3)",
        ),
        "no correlation with itself": (
            lambda: metrics.smallest_width(torch.zeros(2, 2)),
            "smallest_width: correlation must be 1 of the last width with itself; got 0",
        ),
        "vectors of two lengths": (
            lambda: metrics.spearman(torch.ones(200), torch.ones(3)),
            "spearman: a and b must be equally long; got 200 and 3",
        ),
        # Cascades
        "steps a list": (cascade([]), "cascade_curve: probs must be a tensor; got a list"),
        "one step without its dimension": (
            cascade(LEVELS[0]),
            "probs must be floats of shape (L, N, C), at least one step; got torch.float64 of (5, 4)",
        ),
        "no step": (cascade(LEVELS[:0]), "at least one step; got torch.float64 of (0, 5, 4)"),
        "logits at one step": (
            cascade(torch.stack((LEVELS[0], 3 * LEVELS[1], LEVELS[2]))),
            "step 1: each row of probs must sum to 1; row 0 sums to 3 (logits?)",
        ),
        "steps and rows exchanged": (
            cascade(uncertainty=UNSURE.T),
            "uncertainty must have the shape (3, 5) of the steps and rows of probs; got (5, 3)",
        ),
        "a nan at a step": (
            cascade(uncertainty=UNSURE * torch.tensor([[1.0], [math.nan], [1.0]])),
            "uncertainty must be finite; row 1 holds NaN or infinity",
        ),
        "too few costs": (
            cascade(costs=COSTS[:2]),
            "costs must be 3 finite numbers, one for each step, none negative; got [1.0, 4.0]",
        ),
        "a negative cost": (cascade(costs=-COSTS), "none negative; got [-1.0, -4.0, -16.0]"),
        "no thresholds": (
            cascade(LEVELS, UNSURE, COSTS, LABELS, COSTS[:0]),
            "cascade_curve: thresholds must not be empty",
        ),
        "labels too few for a step": (
            cascade(LEVELS, UNSURE, COSTS, LABELS[:4]),
            "step 0: labels must be whole numbers of shape (5,), one for each row of probs; got torch.int64 of (4,)",
        ),
        "a threshold that is nan": (
            lambda: metrics.selective(*ROWS, math.nan),
            "selective: threshold must be a number in [-inf, inf]; got nan",
        ),
        # Generation
        "features a list": (
            lambda: generation.frechet_distance([[1.0]], torch.zeros(2, 1)),
            "frechet_distance: a must be a tensor; got a list",
        ),
        "features of two sizes": (
            lambda: generation.frechet_distance(torch.zeros(2, 3), torch.zeros(2, 4)),
            "frechet_distance: a and b must have equally many columns; got 3 and 4",
        ),
        "features of one image": (
            lambda: generation.frechet_distance(torch.zeros(2, 3), torch.zeros(1, 3)),
            "frechet_distance: b must have at least 2 rows to have a covariance; got 1",
        ),
        "a nan among features": (
            lambda: generation.frechet_distance(TWO * math.nan, TWO),
            "frechet_distance: a must be finite; row 0 holds NaN or infinity",
        ),
        "features without rows": (
            lambda: generation.frechet_distance(TWO, TWO[0]),
            "b must be real numbers of shape (M, D), not empty; got torch.float32 of (3,)",
        ),
        "more splits than rows": (
            lambda: generation.inception_score(torch.eye(4)),
            "inception_score: splits must be at most the number of rows, 4; got 10",
        ),
        "no splits": (
            lambda: generation.inception_score(torch.eye(4), 0),
            "inception_score: splits must be a whole number of at least 1; got 0",
        ),
        "logits for a score": (
            lambda: generation.inception_score(torch.full((20, 2), 4.0)),
            "inception_score: each row of probs must sum to 1; row 0 sums to 8 (logits",
        ),
        "a score of a list": (
            lambda: generation.inception_score([[1.0]]),
            "inception_score: probs must be a tensor; got a list",
        ),
        "diversity of one image": (
            lambda: generation.pairwise_distance(torch.zeros(1, 3)),
            "pairwise_distance: features must have at least 2 rows; got 1",
        ),
        "reconstructions of another size": (
            lambda: generation.reconstruction_error(torch.zeros(2, 4), torch.zeros(2, 5)),
            "images and reconstructions must have one shape (N, …); got (2, 4) and (2, 5)",
        ),
        "bytes for images": (
            lambda: generation.reconstruction_error(TWO.byte(), TWO),
            "reconstruction_error: images must be floats, 0 … 1 for black to white; got torch.uint8",
        ),
        "images around zero": (
            lambda: generation.reconstruction_error(-TWO, TWO),
            "images must lie in 0 … 1; got -1 … -1 (scaled to −1 … 1?)",
        ),
        "nan reconstructed": (
            lambda: generation.reconstruction_error(TWO, TWO * math.nan),
            "reconstruction_error: reconstructions must be finite; row 0 holds NaN or infinity",
        ),
        "no images at all": (
            lambda: generation.reconstruction_error(None, TWO),
            "reconstruction_error: images must be a tensor; got a NoneType",
        ),
        # Segmentation
        "logits for masks": (lambda: ged(MASKS - 1.5, MASKS), "samples must be zeros and ones"),
        "masks of no images": (lambda: ged(MASKS[0], MASKS[0]), "samples must be masks of shape (B, n, H, W)"),
        "graders of other images": (lambda: ged(MASKS, MASKS[:1]), "graders must be of images as many"),
        "graders of another size": (
            lambda: segmentation.matched_iou(MASKS, MASKS[..., :2]),
            "graders must be of images as many and as large",
        ),
        "no graders": (
            lambda: metrics.generalized_energy_distance_of(torch.zeros(2, 3, 3), 3),
            "with n = 3 samples and some",
        ),
        "distances of no square": (
            lambda: segmentation.diversity_of(torch.zeros(2, 3, 4)),
            "table must be of shape (B, n, n)",
        ),
        "masks for distances": (
            lambda: metrics.generalized_energy_distance_of(MASKS, 2),
            "table must be distances, floats of shape (B, n",
        ),
        "no samples": (lambda: segmentation.diversity(MASKS[:, :0]), "not empty"),
        "masks a list": (lambda: segmentation.dice([[1]], MASKS), "a must be a tensor; got a list"),
        "masks of two sizes": (lambda: segmentation.iou_distance(MASKS, MASKS[..., :2]), "must be of one size"),
        "masks of one number": (lambda: segmentation.dice(torch.ones(3), MASKS), "must be masks of shape (…, H, W)"),
        "none drawn": (
            lambda: expected_energy_distance(MASKS, MASKS[..., 0, 0] + 1 / 3, MASKS, 0),
            "n must be a whole",
        ),
        "weights without a sum": (
            lambda: expected_energy_distance(MASKS, MASKS[..., 0, 0] + 0.5, MASKS, 4),
            "must sum to 1",
        ),
        "fewer masks than weights": (
            lambda: expected_energy_distance(MASKS[:, :2], MASKS[..., 0, 0] + 1 / 3, MASKS, 4),
            "of shape (2, 2)",
        ),
        "probabilities above one": (lambda: segmentation.pixel_entropy(HALF * 3), "probs must be floats in [0, 1]"),
        "nan for probabilities": (
            lambda: segmentation.pixel_calibration(HALF * math.nan, MASKS),
            "probs must be floats",
        ),
        "probabilities of one image": (
            lambda: segmentation.pixel_calibration(HALF[:1], MASKS),
            "probs must be of shape (2, 4, 4)",
        ),
        "no bins": (lambda: segmentation.pixel_calibration(HALF, MASKS, bins=0), "bins must be a whole number"),
        "numbers that share no divisor": (  # before they fill the memory
            lambda: segmentation.matched_iou_of(torch.zeros(1, 1031, 2)),
            "matched_iou: the least common multiple of 1031 samples and 2 graders",
        ),
    }
)
def test_bad_input_is_refused_in_one_line(call: Callable[[], object], words: str) -> None:
    refused(call, words)


# Checks that measures share: each case by one measure, each measure by one case

EVEN, SOME = torch.full((2, 4), 0.25), torch.tensor([0, 3])
PREDICTIONS: dict[str, tuple[Any, Any, str]] = {
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
BINNED = (
    metrics.expected_calibration_error,
    metrics.classwise_calibration_error,
    metrics.adaptive_calibration_error,
    metrics.batch_calibration_error,
    metrics.reliability,
)
PREDICTED = (metrics.accuracy, metrics.negative_log_likelihood, metrics.brier_score, *BINNED)
RANKED = (metrics.auroc, metrics.aupr, metrics.base_rate, metrics.fpr_at_tpr)
ACCEPTED = (
    *(metrics.risk_coverage, metrics.area_under_risk_coverage, metrics.excess_area_under_risk_coverage),
    metrics.threshold_for_risk,
)


@pytest.mark.parametrize("case", PREDICTIONS)
def test_bad_predictions_are_refused(case: str) -> None:
    probs, labels, words = PREDICTIONS[case]
    assert refused(lambda: metrics.accuracy(probs, labels), words).startswith("accuracy: ")


@pytest.mark.parametrize("measure", PREDICTED, ids=name)
def test_every_measure_of_predictions_refuses_in_its_own_name(measure: Callable[..., object]) -> None:
    for case in ("logits", "label too large"):
        probs, labels, words = PREDICTIONS[case]
        refused(lambda probs=probs, labels=labels: measure(probs, labels), f"{measure.__name__}: {words}")


@pytest.mark.parametrize("bins", [0, 1.5, True])
def test_bins_must_be_a_count(bins: Any) -> None:
    for measure in BINNED:
        words = f"{measure.__name__}: bins must be a whole number of at least 1; got"
        refused(lambda measure=measure: measure(EVEN, SOME, bins=bins), words)
    words = "batch_calibration_error: batch must be a whole number of at least 1; got"
    refused(lambda: metrics.batch_calibration_error(EVEN, SOME, batch=bins), words)


SCORES = torch.rand(3)
BAD_SCORES: dict[str, tuple[Any, str]] = {
    "a list": ([0.1], "must be a tensor; got a list"),
    "a table": (SCORES[None], "must be real numbers of shape (N,); got torch.float32 of (1, 3)"),
    "one number": (SCORES[0], "must be real numbers of shape (N,); got torch.float32 of ()"),
    "complex": (SCORES.cfloat(), "must be real numbers of shape (N,); got torch.complex64 of (3,)"),
    "empty": (SCORES[:0], "must not be empty"),
    "nan": (torch.tensor([0.0, math.nan, math.nan]), "must not hold NaN; got one at index 1"),
}


@pytest.mark.parametrize(("measure", "case"), turns(RANKED, BAD_SCORES), ids=name)
def test_bad_scores_are_refused_by_name(measure: Callable[..., object], case: str) -> None:
    scores, words = BAD_SCORES[case]
    refused(lambda: measure(scores, SCORES), f"{measure.__name__}: in_scores {words}")
    refused(lambda: measure(SCORES, scores), f"{measure.__name__}: out_scores {words}")


UNCERTAINTIES: dict[str, tuple[Any, str]] = {
    "a list": ([0.5], "uncertainty must be a tensor; got a list"),
    "too many": (torch.zeros(3), "uncertainty must have one number for each row of probs, 2; got 3"),
    "a table": (torch.zeros(2, 1), "uncertainty must be real numbers of shape (N,); got torch.float32 of (2, 1)"),
    "nan": (torch.tensor([0, math.nan]), "uncertainty must not hold NaN; got one at index 1"),
}


@pytest.mark.parametrize(("measure", "case"), turns(ACCEPTED, UNCERTAINTIES), ids=name)
def test_bad_uncertainties_are_refused_by_name(measure: Callable[..., object], case: str) -> None:
    probs, labels, _ = ROWS
    uncertainty, words = UNCERTAINTIES[case]
    refused(lambda: measure(probs, labels, uncertainty), f"{measure.__name__}: {words}")
    sums = f"{measure.__name__}: each row of probs must sum to 1; row 0 sums to 2"
    refused(lambda: measure(2 * probs, labels, torch.zeros(2)), sums)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, True, "95"])
def test_shares_and_certainties_are_numbers_between_0_and_1(value: Any) -> None:
    certainty = "must be a number in (0, 1); got"
    refused(lambda: metrics.confidence_interval([1.0, 2.0], value), f"confidence_interval: confidence {certainty}")
    refused(lambda: metrics.student_quantile(value, 3), f"student_quantile: confidence {certainty}")
    refused(lambda: metrics.error_bound(1, 3, value), f"error_bound: confidence {certainty}")
    refused(lambda: metrics.threshold_for_risk(*ROWS, confidence=value), f"threshold_for_risk: confidence {certainty}")
    risk = "threshold_for_risk: risk must be a number in [0, 1]; got"
    refused(lambda: metrics.threshold_for_risk(*ROWS, risk=value), risk)
    refused(lambda: metrics.fpr_at_tpr(SCORES, SCORES, value), "fpr_at_tpr: tpr must be a number in (0, 1]; got")


@pytest.mark.parametrize("bound", [0, 1.0])
def test_no_certainty_is_one_of_the_bounds(bound: float) -> None:
    refused(lambda: metrics.confidence_interval([1.0, 2.0], bound), "confidence must be a number in (0, 1)")
    refused(lambda: metrics.student_quantile(bound, 3), "confidence must be a number in (0, 1)")
    refused(lambda: metrics.error_bound(1, 3, bound), "confidence must be a number in (0, 1)")
    if bound == 0:
        refused(lambda: metrics.fpr_at_tpr(SCORES, SCORES, bound), "tpr must be a number in (0, 1]")


@pytest.mark.parametrize("threshold", [1, -1.1, math.nan])
def test_a_threshold_of_correlation_lies_between_minus_one_and_one(threshold: Any) -> None:
    words = "smallest_width: threshold must be a number in [-1, 1); "
    refused(lambda: metrics.smallest_width(torch.eye(2), threshold), words)
