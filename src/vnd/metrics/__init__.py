"""Measures of predictions: pure functions of tensors that import nothing of the library."""

from vnd.metrics.calibration import (
    Reliability,
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
)
from vnd.metrics.detection import aupr, auroc, base_rate

__all__ = [
    "Reliability",
    "accuracy",
    "aupr",
    "auroc",
    "base_rate",
    "brier_score",
    "expected_calibration_error",
    "negative_log_likelihood",
    "reliability",
]
