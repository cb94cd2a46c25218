"""Checks of what metrics are given: one line that begins with the metric's name; what passes comes back in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SUM_TOLERANCE = 5e-3  # rounding probabilities to bfloat16 moves their sum by up to 2e-3; logits miss it by far


def checked_predictions(name: str, probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities in float64, and the labels in int64 beside them, once they are known to be such."""
    for argument, value in (("probs", probs), ("labels", labels)):
        check_tensor(name, argument, value)
    if probs.ndim != 2 or not probs.is_floating_point():
        raise ValueError(f"{name}: probs must be floats of shape (N, C); got {probs.dtype} of {tuple(probs.shape)}")
    if labels.shape != probs.shape[:1] or labels.is_floating_point() or labels.is_complex():
        wanted = f"whole numbers of shape ({len(probs)},), one for each row of probs"
        raise ValueError(f"{name}: labels must be {wanted}; got {labels.dtype} of {tuple(labels.shape)}")
    if probs.numel() == 0:
        raise ValueError(f"{name}: probs must not be empty; got shape {tuple(probs.shape)}")
    probs, labels = probs.detach().cpu().double(), labels.detach().cpu().long()
    near = (probs.sum(1) - 1).abs() <= SUM_TOLERANCE  # not so of a row with NaN or infinity
    if near.all() and probs.min() >= 0 and labels.min() >= 0 and labels.max() < probs.size(1):
        return probs, labels
    if (row := _first(~probs.isfinite().all(1))) is not None:
        raise ValueError(f"{name}: probs must be finite; row {row} holds NaN or infinity")
    if (row := _first((probs < 0).any(1))) is not None:
        raise ValueError(f"{name}: probs must not be negative; got {probs[row].min():g} in row {row} (logits?)")
    total = probs.sum(1)
    if (row := _first((total - 1).abs() > SUM_TOLERANCE)) is not None:
        raise ValueError(f"{name}: each row of probs must sum to 1; row {row} sums to {total[row]:g} (logits?)")
    if (row := _first((labels < 0) | (labels >= probs.size(1)))) is not None:
        raise ValueError(f"{name}: labels must lie in 0 … {probs.size(1) - 1}; got {labels[row]} at index {row}")
    return probs, labels


def checked_scores(name: str, argument: str, scores: Tensor) -> Tensor:
    """A vector of real numbers in float64: not empty, no NaN; infinity is a number."""
    check_tensor(name, argument, scores)
    if scores.ndim != 1 or scores.is_complex():
        got = f"{scores.dtype} of {tuple(scores.shape)}"
        raise ValueError(f"{name}: {argument} must be real numbers of shape (N,); got {got}")
    if len(scores) == 0:
        raise ValueError(f"{name}: {argument} must not be empty")
    if (index := _first(scores.isnan())) is not None:
        raise ValueError(f"{name}: {argument} must not hold NaN; got one at index {index}")
    return scores.detach().cpu().double()


def checked_rows(name: str, argument: str, table: Tensor, shape: str) -> Tensor:
    """A table of finite real numbers in float64, not empty; `shape` names its two dimensions for the error."""
    check_tensor(name, argument, table)
    if table.ndim != 2 or table.is_complex() or table.numel() == 0:
        got = f"{table.dtype} of {tuple(table.shape)}"
        raise ValueError(f"{name}: {argument} must be real numbers of shape {shape}, not empty; got {got}")
    if (row := _first(~table.isfinite().all(1))) is not None:
        raise ValueError(f"{name}: {argument} must be finite; row {row} holds NaN or infinity")
    return table.detach().cpu().double()


def check_tensor(name: str, argument: str, value: object) -> None:
    """Refuse what is no tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name}: {argument} must be a tensor; got a {type(value).__name__}")


def check_count(name: str, argument: str, value: int, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {argument} must be a whole number of at least {least}; got {_shown(value)}")


def check_number(name: str, argument: str, value: float, low: float, high: float, ends: str) -> None:
    """Refuse what is no number from `low` to `high`; `ends`, such as "[)", says which of the two belong to it."""
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        above = low <= value if ends[0] == "[" else low < value
        below = value <= high if ends[1] == "]" else value < high
        if above and below:
            return
    raise ValueError(f"{name}: {argument} must be a number in {ends[0]}{low:g}, {high:g}{ends[1]}; got {_shown(value)}")


def _shown(value: object) -> str:
    """A value on one line."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _first(wrong: Tensor) -> int | None:
    """Index of the first True."""
    return int(wrong.to(torch.uint8).argmax()) if wrong.any() else None
