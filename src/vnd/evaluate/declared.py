"""What result files say of their task: what its networks are called, the columns of their rows, the parts of a page."""

from __future__ import annotations

from typing import Any

from vnd.methods.traits import describe

PERCENT: dict[str, Any] = {"form": "percent", "digits": 1}
COSTS: list[dict[str, Any]] = [
    {"key": "parameters", "heading": "Parameters", "form": "short"},
    {"key": "macs", "heading": "Multiply-adds", "form": "short"},
    {"key": "bytes", "heading": "Size", "form": "bytes"},
    {"key": "latency_ms", "heading": "Time", "form": "ms"},
]
DECLARED: dict[str, dict[str, Any]] = {
    "classification": {
        "noun": "classifier",
        "compare": ["data", "network"],
        "sections": [
            "summary", "curves", "efficiency", "times", "trust", "survival", "statistics", "correlation", "reliability",
            "examples", "numbers", "training", "theory",
        ],
        "columns": [
            *COSTS,
            {
                **{"key": "accuracy", "heading": "Accuracy", "better": "more", "title": "Accuracy", **PERCENT},
                **{"axis": "accuracy (% of images)", "headline": "Right most often", "scaled": False},
                "description": "The share of {split} images that are classified right. More is better.",
            },
            {
                **{"key": "ece", "heading": "ECE", "better": "less", "title": "Calibration error", **PERCENT},
                **{"axis": "calibration error, ECE (%)", "headline": "Most honest confidence"},
                "description": "Expected calibration error: how far, on average, the stated confidence is from the "
                "share of right answers. A network that is right on 90 of 100 images that it is “90 % sure” of has "
                "none. Less is better.",
            },
            {
                **{"key": "nll", "heading": "NLL (nats)", "better": "less", "title": "Negative log-likelihood"},
                **{"axis": "negative log-likelihood (nats)", "digits": 3},
                "description": "Negative log-likelihood: the price of wrong answers, the higher the surer they were. "
                "Less is better.",
            },
            {"key": "brier", "heading": "Brier", "digits": 3, "better": "less"},
            {
                **{"key": "auroc", "heading": "AUROC", "better": "more", "title": "Noticing unfamiliar images"},
                **{"axis": "AUROC, unfamiliar images (%)", "headline": "Notices unfamiliar images best", **PERCENT},
                "description": "Of an image of the kind it was trained on and an unfamiliar one, how often the network "
                "is less certain of the unfamiliar one. 50 % is chance. More is better.",
            },
            {
                **{"key": "aupr", "heading": "AUPR", "better": "more", "chance": "base_rate", **PERCENT},
                **{"title": "Noticing unfamiliar images: precision and recall", "axis": "AUPR, unfamiliar images (%)"},
                "description": "Of the images that are reported as unfamiliar, how many are, on average over all "
                "degrees of caution. What chance gives depends on the shares of the two kinds, the base rate. More is "
                "better.",
            },
            {"key": "base_rate", "heading": "AUPR by chance", **PERCENT},
        ],
    },
    "autoencoding": {
        "noun": "auto-encoder",
        "compare": ["data", "network", "image"],
        "sections": ["code_lengths", "code_error", "rate_distortion", "image_lengths", "training"],
        "columns": [
            {"key": "mse", "heading": "MSE", "digits": 5, "better": "less"},
            {"key": "summed", "heading": "Summed error", "digits": 4, "form": "short", "better": "less"},
            {"key": "rate", "heading": "Rate", "digits": 2},
            {"key": "distortion", "heading": "Distortion", "digits": 2},
            {"key": "negative_elbo", "heading": "−ELBO", "digits": 2, "better": "less"},
            {"key": "frechet", "heading": "Fréchet", "digits": 3, "better": "less"},
            {"key": "inception_score", "heading": "Score", "digits": 3},
            {"key": "diversity", "heading": "Diversity", "digits": 3},
        ],
    },
    "segmentation": {
        "noun": "segmenter",
        "compare": ["data", "image"],
        "sections": ["mask_tables", "energy_distance", "training"],
        "columns": [
            {"key": "parameters", "heading": "Parameters", "form": "short"},
            {"key": "ged", "heading": "GED", "digits": 3, "better": "less"},
            {"key": "matched_iou", "heading": "Matched IoU", "digits": 3, "better": "more"},
            {"key": "diversity", "heading": "Diversity", "digits": 3},
            {"key": "dice", "heading": "Dice", "digits": 3, "better": "more"},
            {"key": "calibration_error", "heading": "Pixel ECE", "digits": 4, "better": "less"},
            {"key": "entropy_marked", "heading": "Entropy", "digits": 3},
        ],
    },
}  # fmt: skip
# What others published for a data set, on another split of it; and what a group of its images is called.
OF_DATA: dict[str, dict[str, Any]] = {
    "lidc": {"published": {"name": "P-UNet as published, another split", "ged": {"16": 0.29}}, "group_noun": "patient"}
}


def declare(task: str, method: str, data: str) -> dict[str, Any]:
    """What a result file begins with: format, task, method, columns and sections."""
    said = DECLARED[task]
    found: dict[str, Any] = {"format": 2, "task": {"name": task, "noun": said["noun"], "compare": said["compare"]}}
    found |= {"method": describe(method), "columns": said["columns"], "sections": said["sections"]}
    return found | (OF_DATA.get(data, {}) if "mask_tables" in said["sections"] else {})
