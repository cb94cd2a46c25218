"""`vnd recipes`: what there is to train."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vnd.files import write_text
from vnd.train.parse import names, parse


def recipes(out: Path | None = None) -> None:
    """List the recipes that come with the package, one line each.

    Example: vnd recipes

    Args:
        out: Write the same, with all settings, to this JSON file.
    """
    found = {name: parse(name) for name in names()}
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("recipe", no_wrap=True)
    table.add_column("what it trains", no_wrap=True)
    for name, recipe in found.items():
        table.add_row(name, recipe.about)
    console = Console()
    console.print(table)
    console.print("train one with: vnd train RECIPE", highlight=False, markup=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps({n: r.to_dict() for n, r in found.items()}, indent=1, ensure_ascii=False) + "\n")
