"""`vnd demo`: a first look at what the library does."""

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.distributions import kl_divergence

from vnd.distributions import BernoulliChain
from vnd.report.theory import downhill_figure, example_chains


def demo(out: Path = Path("runs/demo"), units: int = 24) -> None:
    """Draw Downhill samples and print the length probabilities of four chains.

    Example: vnd demo --out runs/demo --units 24

    Args:
        out: Folder for the figure (downhill.png) and the numbers (lengths.json).
        units: Number of nested units, at least 2.
    """
    if units < 2:
        raise ValueError(f"units must be at least 2; got {units}")
    torch.manual_seed(0)
    chains = example_chains(units)
    shown = sorted({0, units // 4, units // 2, 3 * units // 4, units})
    table = Table(
        title=f"Ordered masks of {units} units: how many are kept",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("chain", no_wrap=True)
    for length in shown:
        table.add_column(f"P({length})", justify="right")
    for heading in ("mean", "entropy", "KL"):
        table.add_column(heading, justify="right")

    rows = []
    for name, chain in chains.items():
        probs = chain.length_log_probs.exp()
        row = {
            "chain": name,
            "length_probs": probs.tolist(),
            "expected_length": float(chain.expected_length),
            "entropy_nats": float(chain.entropy()),
            "kl_from_uniform_nats": float(kl_divergence(chain, BernoulliChain.uniform(units))),
        }
        rows.append(row)
        numbers = [f"{float(probs[length]):.3f}" for length in shown]
        numbers += [f"{row[key]:.2f}" for key in ("expected_length", "entropy_nats", "kl_from_uniform_nats")]
        table.add_row(name, *numbers)

    out.mkdir(parents=True, exist_ok=True)
    (out / "lengths.json").write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    figure = downhill_figure(out / "downhill.png", n=units)
    console = Console()
    console.print(table)
    console.print("mean: expected length; entropy and KL (from uniform lengths) in nats")
    console.print(f"figure:  {figure.resolve()}\nnumbers: {(out / 'lengths.json').resolve()}", soft_wrap=True)
