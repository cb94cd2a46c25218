"""`vnd report`: many runs and methods on one page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def report(runs: list[Path], out: Path = Path("runs/report"), title: str | None = None) -> None:
    """Compare evaluated runs: one page that explains itself, its figures as PNG, its numbers as CSV and JSON.

    Runs that differ in their seed alone are one curve with intervals. Each data set and network has its own part.

    Example: vnd report runs/cifar10-bn3-* runs/cifar10-fn3-* --out runs/report

    Args:
        runs: Folders of runs that `vnd evaluate` was run on, their results.json, or folders that hold such runs; of
            these, runs that were not evaluated are left out, and the page says so.
        out: Folder for report.html, figures/, summary.csv and summary.json.
        title: Heading of the page.
    """
    from vnd.report import comparison

    def say(line: str) -> None:
        Console(stderr=True).print(f"vnd: {line}", soft_wrap=True, highlight=False, markup=False)

    page = comparison.write(runs, out, title, say).resolve()
    figures = page.parent / "figures"
    words = f"report:  {page}\nfigures: {figures}\nnumbers: {page.parent / 'summary.csv'}, summary.json"
    Console().print(words, soft_wrap=True, highlight=False, markup=False)
