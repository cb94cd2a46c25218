"""Which figures a comparison has: those that its runs hold numbers for, each with its section and its name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vnd.report import compare, figures, studies, theory, trust
from vnd.report.summary import Block

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIAGRAMS = 3  # of reliability beside each other


@dataclass(frozen=True)
class Plate:
    """A figure of the page.

    Args:
        section: The part of the page that it belongs to.
        name: Its file's name, without the ending.
        series: Whose it is; empty for all.
        figure: The figure.
    """

    section: str
    name: str
    series: str
    figure: Figure


def of_block(block: Block, prefix: str = "") -> list[Plate]:
    """The figures of one data set and network."""
    found = [
        Plate(key, f"{prefix}{key}", "", compare.curves(block.series, key))
        for key in compare.AXES
        if compare.measured(block.series, key)
    ]
    main = [own for own in block.series if own.main]
    for number, own in enumerate(main):
        twins = [slug(other.name) for other in main[:number]]
        name = f"{slug(own.name)}-{number}" if slug(own.name) in twins else slug(own.name)
        if studies.learned_layers(own):
            found.append(Plate("lengths", f"{prefix}lengths-{name}", own.name, studies.tail_index(own)))
        if len(compare.counts(own)) > 1:
            found.append(Plate("statistics", f"{prefix}statistics-{name}", own.name, compare.statistics(own)))
        if any(run.results.get("correlation") for run in own.runs):
            found.append(Plate("correlation", f"{prefix}correlation-{name}", own.name, studies.correlation(own)))
        diagrams = trust.spread(own.parts("reliability"), DIAGRAMS)
        if diagrams:
            figure = figures.reliability({"reliability": diagrams})
            found.append(Plate("reliability", f"{prefix}reliability-{name}", own.name, figure))
    answering = [own for own in main if trust.answers(own.parts("selective"))]
    if answering:
        found.append(Plate("selective", f"{prefix}selective", "", studies.selective(answering)))
    growing = [own for own in main if own.runs[0].results.get("cascade")]
    if growing:
        found.append(Plate("cascade", f"{prefix}cascade", "", studies.cascade(growing)))
    return found


def of_theory() -> list[Plate]:
    """The figures that are the same whatever was run."""
    return [Plate("downhill", "downhill", "", theory.downhill()), Plate("kl", "kl", "", theory.noise_costs())]


def prefixes(blocks: Sequence[Block]) -> list[str]:
    """What the names of the figures of each block begin with: nothing where there is one block."""
    if len(blocks) == 1:
        return [""]
    names = [f"{slug(block.data)}-{slug(block.network)}-" for block in blocks]
    return [f"{i}-{name}" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]


def slug(text: str) -> str:
    """A name as a part of a file's name.

    >>> slug("DT-BN³ (cifar10/wide)"), slug("../ℓ")
    ('dt-bn3-cifar10-wide', 'l')
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60] or "other"
