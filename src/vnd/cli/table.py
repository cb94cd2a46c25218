"""Tables of sizes, as the commands print them."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from vnd._text import short

COLUMNS: dict[str, tuple[str, Any]] = {  # key of a row → heading, and how a number is shown
    "parameters": ("parameters", lambda x: f"{x:,}"),
    "macs": ("MACs", short),
    "bytes": ("bytes", short),
    "latency_ms": ("latency", lambda x: f"{x:.2f} ms"),
    "accuracy": ("accuracy", lambda x: f"{100 * x:.2f} %"),
    "nll": ("NLL", lambda x: f"{x:.3f}"),
    "ece": ("ECE", lambda x: f"{x:.3f}"),
    "auroc": ("AUROC", lambda x: f"{x:.3f}"),
}


def sizes_table(rows: list[dict[str, Any]], title: str, chosen: str | None = None) -> Table:
    """One line a size; the chosen one is marked."""
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("width", no_wrap=True)
    shown = [key for key in COLUMNS if any(key in row for row in rows)]
    for key in shown:
        table.add_column(COLUMNS[key][0], justify="right", no_wrap=True)
    for row in rows:
        style = "bold" if row["label"] == chosen else None
        mark = " ←" if row["label"] == chosen else ""
        table.add_row(f"{row['label']}{mark}", *[COLUMNS[key][1](row[key]) for key in shown], style=style)
    return table
