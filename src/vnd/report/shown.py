"""Figures that a page shows: heading, caption and drawing, how they are laid out, and what their files are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from vnd.report.document import pair, picture, section
from vnd.report.plates import slug

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shown:
    """A figure that there are numbers for: its file's name, its heading and caption, how it is drawn, how wide."""

    name: str
    heading: str
    note: str
    draw: Callable[[], Figure]
    is_half: bool


def laid(every: Sequence[Shown], pictures: dict[str, str]) -> list[str]:
    """Figures as parts of a page in their order, small ones that follow each other side by side."""
    found: list[str] = []
    for is_half, some in groupby(every, key=lambda one: one.is_half):
        parts = [framed(one, pictures) for one in some]
        found += [pair(*parts[at : at + 2]) for at in range(0, len(parts), 2)] if is_half else parts
    return found


def framed(one: Shown, pictures: dict[str, str]) -> str:
    """A figure as a part of a page, with its heading and caption."""
    kind = "half" if one.is_half else "wide"
    return section(one.heading, one.note, picture(pictures[one.name], one.heading, kind))


def prefixes(data: Sequence[str]) -> list[str]:
    """What the names of the figures of each block begin with, of its data set; nothing where there is one block."""
    return [f"{slug(name)}-{index}-" if len(data) > 1 else "" for index, name in enumerate(data, 1)]
