"""The numbers of a row: how good answers are, and how well their uncertainty tells what to trust."""

from __future__ import annotations

from torch import Tensor

from vnd import metrics


def scores(
    probs: Tensor, entropy: Tensor, labels: Tensor, bins: int, domains: tuple[Tensor, Tensor] | None = None
) -> dict[str, float]:
    """Accuracy, likelihood and calibration of answers, and what their entropy is worth.

    Args:
        probs: Class probabilities, (N, C).
        entropy: Of each row, (N,).
        labels: Classes, (N,).
        bins: Of the calibration errors.
        domains: Entropies of images in and out of domain; None where there are no such images.
    """
    measured = {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.negative_log_likelihood(probs, labels),
        "brier": metrics.brier_score(probs, labels),
        "ece": metrics.expected_calibration_error(probs, labels, bins),
        "classwise_ece": metrics.classwise_calibration_error(probs, labels, bins),
        "adaptive_ece": metrics.adaptive_calibration_error(probs, labels, bins),
        "batch_ece": metrics.batch_calibration_error(probs, labels),
        "aurc": metrics.area_under_risk_coverage(probs, labels, entropy),
    }
    if domains is not None:
        measured |= {
            "auroc": metrics.auroc(*domains),
            "aupr": metrics.aupr(*domains),
            "base_rate": metrics.base_rate(*domains),
            "fpr95": metrics.fpr_at_tpr(*domains),
        }
    return {name: float(value) for name, value in measured.items()}
