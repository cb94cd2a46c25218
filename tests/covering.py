"""Parameter sets in the place of full products: all pairs of values, or each value once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows in which each two values of two axes meet: as few as a greedy search finds."""
    values = [list(axis) for axis in axes]
    rows = list(product(*(range(len(axis)) for axis in values)))

    def met(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
        return {(i, j, row[i], row[j]) for i, j in combinations(range(len(row)), 2)}

    missing, chosen = set().union(*map(met, rows)), list[tuple[Any, ...]]()
    while missing:
        best = max(rows, key=lambda row: len(met(row) & missing))
        missing -= met(best)
        chosen.append(tuple(axis[index] for axis, index in zip(values, best, strict=True)))
    return chosen


def turns(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows in which each value of each axis comes: as many as the longest axis has, the others start over."""
    values = [list(axis) for axis in axes]
    return [tuple(axis[i % len(axis)] for axis in values) for i in range(max(map(len, values)))]
