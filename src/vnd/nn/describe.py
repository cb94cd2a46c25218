"""A table of what is nested in a network, what is tied to what, and what was left whole and why."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from vnd.nn.profile import Counter
from vnd.nn.state import nested_part, state_of


@dataclass(frozen=True)
class Description:
    """The rows of the table; printing it shows them.

    `share` is the part of the parameters that can be dropped: those of the full network that the one of base width
    does not have.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> round(vnd.describe(vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4)).share, 2)
    0.71
    """

    units: tuple[dict[str, Any], ...]
    whole: tuple[tuple[str, str], ...]
    share: float

    def rows(self) -> list[dict[str, Any]]:
        """Units as plain dicts (unit, channels, groups, base, tiles, expected, tied), as pandas takes them."""
        return [{**row, "tied": list(row["tied"])} for row in self.units]

    def __str__(self) -> str:
        rows = [("unit", "channels", "groups", "expected", "tied to"), *map(_cells, self.units)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        if self.whole:
            longest = max(len(name) for name, _ in self.whole)
            lines += ["", "left whole"]
            lines += [f"{name.ljust(longest)}  {reason}" for name, reason in self.whole]
        lines += ["", f"{100 * self.share:.1f} % of the parameters can be dropped"]
        return "\n".join(lines)

    __repr__ = __str__


def describe(net: nn.Module) -> Description:
    """Describe a nested network: its units, their groups, what shares them, and what was left whole and why.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> print(vnd.describe(net))
    unit  channels  groups  expected  tied to
    0     8         1 + 3   3.7       2
    <BLANKLINE>
    left whole
    2  reaches the output of the network
    <BLANKLINE>
    70.6 % of the parameters can be dropped
    """
    state = state_of(net)
    rows = []
    for name, unit in state.units.items():
        readers = [layer for layer, layout in state.inputs.items() if any(s.unit == name for s in layout)]
        makers = state.groups[name].producers if name in state.groups else []
        blocks = list(state.stages[name].blocks) if name in state.stages else []
        rows.append(
            {
                "unit": name,
                **{"channels": unit.channels, "groups": unit.num_groups, "base": unit.base, "tiles": unit.tiles},
                "expected": float(unit.report().expected_length),
                "tied": blocks + makers[1:] + [r for r in readers if r not in makers],
            }
        )
    return Description(tuple(rows), tuple(state.whole.items()), droppable_share(net))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    tiles = f" × {row['tiles']}" if row["tiles"] > 1 else ""
    groups = f"{row['base']} + {row['groups'] - row['base']}{tiles}"
    return row["unit"], str(row["channels"]), groups, f"{row['expected']:.1f}", ", ".join(row["tied"])


def droppable_share(net: nn.Module) -> float:
    """Part of the parameters of the plain network that the one of base width does not have.

    Single weights that a rule orders count as dropped where they become zero, weights whose bits are ordered by the
    share of their bits that goes.
    """
    state, counter = state_of(net), Counter(net)
    full = counter.profile(state.full).parameters
    base = {name: unit.base for name, unit in state.units.items()}
    left: float = counter.profile(base).parameters
    for name, key in state.elements.items():
        unit, weight = state.units[key], nested_part(net).get_submodule(name).weight
        left -= weight.numel() * (1 - len(unit.kept_channels(unit.base)) / unit.channels)  # type: ignore[operator]
    for name, key in state.bits.items():
        unit, weight = state.units[key], nested_part(net).get_submodule(name).weight
        left -= counter.entries(base)[id(weight)] * (1 - len(unit.kept_channels(unit.base)) / unit.channels)
    return 1 - left / max(1, full)
