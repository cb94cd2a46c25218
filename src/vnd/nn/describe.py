"""A table of what is nested in a network, what is tied to what, and what was left whole and why."""

from dataclasses import dataclass

from torch import nn

from vnd.nn.plan import plan_of


@dataclass(frozen=True)
class Description:
    """The rows of the table; printing it shows them."""

    units: tuple[dict[str, str], ...]
    whole: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        rows = [{"unit": "unit", "channels": "channels", "groups": "groups", "expected": "expected", "tied": "tied to"}]
        rows += list(self.units)
        widths = {key: max(len(row[key]) for row in rows) for key in rows[0]}
        lines = ["  ".join(row[key].ljust(widths[key]) for key in row).rstrip() for row in rows]
        if self.whole:
            longest = max(len(name) for name, _ in self.whole)
            lines += ["", "left whole"]
            lines += [f"{name.ljust(longest)}  {reason}" for name, reason in self.whole]
        return "\n".join(lines)

    __repr__ = __str__


def describe(net: nn.Module) -> Description:
    """Describe a nested network: its units, their groups, what shares them, and what was left whole and why."""
    plan = plan_of(net)
    rows = []
    for name, unit in plan.units.items():
        readers = [layer for layer, layout in plan.inputs.items() if any(s.unit == name for s in layout)]
        makers = plan.groups[name].producers if name in plan.groups else []
        tied = makers[1:] + [r for r in readers if r not in makers]
        tiles = f" × {unit.tiles}" if unit.tiles > 1 else ""
        rows.append(
            {
                "unit": name,
                "channels": str(unit.channels),
                "groups": f"{unit.base} + {unit.num_nested}{tiles}",
                "expected": f"{unit.report().expected_length:.1f}",
                "tied": ", ".join(tied),
            }
        )
    return Description(tuple(rows), tuple(plan.whole.items()))
