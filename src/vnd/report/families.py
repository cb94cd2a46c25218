"""Families of a comparison: which runs of a method are one series, and the words that tell one from another."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from vnd.report.runs import Run

SEPARATE = ("ibnn", "plain")  # one training a width
MARK = re.compile(r"(?<![0-9]e)-|[/ ]")  # between the words of a name; not within 1e-05


def families(method: str, runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Runs of a method that belong together, each family with what tells it apart; no words where there is no need.

    Runs of equal settings that differ in their seed are one family, and with one training a width, those of all
    widths. Files that do not say their settings go by recipe. Runs that would be one and have the same seed at the same
    size differ in something else: each is a family.
    """
    parts: list[list[Run]] = []
    for family in _alike(method, runs):
        parts += [[run] for run in family] if _clash(family) else [family]
    return list(zip(labels_of(parts), parts, strict=True))


def size_of(row: dict[str, Any], separate: bool = False) -> Hashable:
    """What tells the size of a row from others of its kind: its share of every layer, or its label."""
    if row.get("fraction") is not None:
        return round(float(row["fraction"]), 6)
    return (row["label"], row["parameters"]) if separate else str(row["label"])


def differences(labels: Sequence[str]) -> list[str]:
    """Labels without the words that all of them have; one of them may be those alone, and needs no words.

    >>> differences(["cifar10/vgg11-bn3", "cifar10/vgg11-bn3-sandwich"]), differences(["a-lr=1e-05", "a-lr=1e-06"])
    (['', 'sandwich'], ['lr=1e-05', 'lr=1e-06'])
    """
    words = [MARK.split(label) for label in labels]
    common = set(words[0]).intersection(*words)
    found = ["-".join(word for word in own if word not in common).strip("-_, ") for own in words]
    return found if len(set(found)) == len(found) else list(labels)


def _alike(method: str, runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of equal settings; those that do not say theirs, by recipe, or with one training a width all together."""
    together = method in SEPARATE and not _clash([run for run in runs if run.settings is None])
    found: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        older: Hashable = "together" if together else ("recipe", run.recipe)
        found[older if run.settings is None else ("settings", run.settings)].append(run)
    return list(found.values())


def _clash(runs: Sequence[Run]) -> bool:
    """Whether two runs have one seed and a size in common."""
    seen: set[Hashable] = set()
    for run in runs:
        own = {(run.seed, row["kind"], size_of(row, run.method in SEPARATE)) for row in run.rows}
        if seen & own:
            return True
        seen |= own
    return False


def labels_of(parts: Sequence[list[Run]]) -> list[str]:
    """What tells families apart: their recipes, else what differs in the names of their folders, else a number."""
    stems = [_stem(part) for part in parts]
    for labels in ([part[0].recipe or "" for part in parts], stems, [part[0].name for part in parts]):
        if "" not in labels and len(set(labels)) == len(labels):
            return differences(labels)
    short = dict(zip(dict.fromkeys(stems), differences(list(dict.fromkeys(stems))), strict=True))
    found: list[str] = []
    for stem in stems:
        label, number = short[stem], 1
        while label in found:
            number += 1
            label = f"{short[stem]}, no. {number}".removeprefix(", ")
        found.append(label)
    return found


def _stem(part: Sequence[Run]) -> str:
    """What the names of the folders of a family have in common, without seed and hash."""
    names = [re.sub(rf"-{run.seed}(-[0-9a-f]{{8}})?$", "", run.name) for run in part]
    first, *others = [name.split("-") for name in names]
    return "-".join(word for word in first if all(word in other for other in others)) or names[0]
