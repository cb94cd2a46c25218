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
from vnd.metrics.generation import (
    frechet_distance,
    inception_score,
    pairwise_distance,
    reconstruction_error,
)
from vnd.metrics.segmentation import (
    PixelCalibration,
    PixelCounts,
    PixelSums,
    dice,
    diversity,
    diversity_of,
    expected_energy_distance,
    generalized_energy_distance,
    generalized_energy_distance_of,
    iou_distance,
    matched_iou,
    matched_iou_of,
    pair_distances,
    pixel_calibration,
    pixel_entropy,
)
from vnd.metrics.statistics import (
    Interval,
    bootstrap_interval,
    confidence_interval,
    error_bound,
    group_mean,
    pearson,
    smallest_width,
    spearman,
    student_quantile,
)
from vnd.metrics.uncertainty import (
    CascadeCurve,
    RiskCoverage,
    Selection,
    area_under_risk_coverage,
    aupr,
    auroc,
    base_rate,
    cascade_curve,
    cascade_thresholds,
    classification_scores,
    excess_area_under_risk_coverage,
    fpr_at_tpr,
    risk_coverage,
    selective,
    threshold_for_risk,
)

__all__ = [
    "CascadeCurve", "Interval", "PixelCalibration", "PixelCounts", "PixelSums", "Reliability", "RiskCoverage",
    "Selection", "accuracy", "adaptive_calibration_error", "area_under_risk_coverage", "aupr", "auroc", "base_rate",
    "batch_calibration_error", "bootstrap_interval", "brier_score", "cascade_curve", "cascade_thresholds",
    "classification_scores",
    "classwise_calibration_error", "confidence_interval", "dice", "diversity", "diversity_of", "error_bound",
    "excess_area_under_risk_coverage",
    "expected_calibration_error", "expected_energy_distance", "fpr_at_tpr", "frechet_distance",
    "generalized_energy_distance", "generalized_energy_distance_of", "group_mean", "inception_score",
    "iou_distance", "matched_iou", "matched_iou_of", "negative_log_likelihood", "pair_distances",
    "pairwise_distance", "pearson", "pixel_calibration", "pixel_entropy", "reconstruction_error", "reliability",
    "risk_coverage", "selective", "smallest_width", "spearman", "student_quantile", "threshold_for_risk",
]  # fmt: skip
