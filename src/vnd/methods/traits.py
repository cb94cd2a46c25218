"""What results and pages say of each method: its name, what it is, its traits, and how its curves look."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Look:
    """Color, marker and line of a curve, as matplotlib takes them."""

    color: str
    marker: str
    line: Any = "-"


@dataclass(frozen=True)
class Traits:
    """Of a method.

    Args:
        name: As tables and figures call it.
        rank: Its place in legends and tables.
        about: One sentence or two.
        sizes: "many" of one training; "each" where a training has one, chosen before; "found" where training finds it.
        order: Whether the order of units is "learned", "fixed" in advance, or there is "none".
        stochastic: Whether weights or masks are drawn at prediction.
        reference: Whether other methods are held against it.
        looks: Of its curves, by way of inference.
    """

    name: str
    rank: int = 99
    about: str = ""
    sizes: Literal["many", "each", "found"] = "many"
    order: Literal["learned", "fixed", "none"] = "none"
    stochastic: bool = True
    reference: bool = False
    looks: dict[str, Look] = field(default_factory=dict)


DASHED, DOTTED, DASH_DOTS = [0, [5, 1.5]], [0, [1, 1]], [0, [3, 1, 1, 1]]


def mc(color: str, marker: str, line: Any = "-") -> dict[str, Look]:
    """The look of averages over draws alone."""
    return {"mc": Look(color, marker, line)}


TRAITS: dict[str, Traits] = {}


def describe(key: str) -> dict[str, Any]:
    """What a result file says of a method under "method"; of one that declares nothing, its key."""
    return {"key": key, "name": key} | (asdict(TRAITS[key]) if key in TRAITS else {})
