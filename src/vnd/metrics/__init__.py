"""Measures of predictions: pure functions of tensors that import nothing of the library."""

from vnd.metrics.calibration import (
    Reliability,
    accuracy,
    adaptive_calibration_error,
    batch_calibration_error,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
)
from vnd.metrics.cascade import CascadeCurve, cascade_curve
from vnd.metrics.correlation import pearson, smallest_width
from vnd.metrics.detection import aupr, auroc, base_rate, fpr_at_tpr
from vnd.metrics.generation import (
    frechet_distance,
    frechet_distance_of,
    inception_score,
    pairwise_distance,
    reconstruction_error,
    spearman,
)
from vnd.metrics.intervals import Interval, confidence_interval, error_bound, student_quantile
from vnd.metrics.selection import (
    RiskCoverage,
    Selection,
    area_under_risk_coverage,
    coverage_at_risk,
    excess_area_under_risk_coverage,
    risk_coverage,
    selective,
    threshold_for_risk,
)

__all__ = [
    "CascadeCurve",
    "Interval",
    "Reliability",
    "RiskCoverage",
    "Selection",
    "accuracy",
    "adaptive_calibration_error",
    "area_under_risk_coverage",
    "aupr",
    "auroc",
    "base_rate",
    "batch_calibration_error",
    "brier_score",
    "cascade_curve",
    "classwise_calibration_error",
    "confidence_interval",
    "coverage_at_risk",
    "error_bound",
    "excess_area_under_risk_coverage",
    "expected_calibration_error",
    "fpr_at_tpr",
    "frechet_distance",
    "frechet_distance_of",
    "inception_score",
    "negative_log_likelihood",
    "pairwise_distance",
    "pearson",
    "reconstruction_error",
    "reliability",
    "risk_coverage",
    "selective",
    "smallest_width",
    "spearman",
    "student_quantile",
    "threshold_for_risk",
]
