"""`vnd report`: many runs and methods on one page."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from vnd._text import command, say, short

OUT, SIZES = Path("runs/report"), (110_000, 350_000, 1_100_000)


def report(
    runs: list[Path],
    out: Path = OUT,
    title: str | None = None,
    keep: Path | None = None,
    markdown: Path | None = None,
    sizes: Sequence[float] = SIZES,
) -> None:
    """Compare evaluated runs: one page that explains itself, its figures as PNG, its numbers as CSV and JSON.

    Runs that differ in their seed alone are one curve with intervals. Each data set and network has its own part.
    Auto-encoders are compared with auto-encoders; those trained for one length each are one curve over lengths.
    Segmenters are compared with segmenters, whatever their network.

    Example: vnd report runs/cifar10-bn3-* runs/cifar10-fn3-* --out runs/report
    Example: vnd report runs/cifar10 --keep kept/cifar10.jsonl --markdown docs/benchmarks.md --sizes 1e5,1e6

    Args:
        runs: Folders of runs that `vnd evaluate` was run on, their results.json, kept files, or folders that hold such
            runs; of these, runs that were not evaluated are left out, and the page says so.
        out: Folder for report.html, figures/, summary.csv and summary.json.
        title: Heading of the page.
        keep: File, NAME.jsonl, to which what a report reads of each run is written, a run a line, small enough to
            commit and without absolute paths: `vnd report NAME.jsonl` gives the same tables and figures.
        markdown: Markdown file; its part between the lines <!-- vnd report: begin --> and <!-- vnd report: end --> is
            replaced by tables and figures, which go to images/ beside it. A file that does not exist is made.
        sizes: Numbers of parameters at which the table of the Markdown file compares methods; of classifiers alone.
    """
    from vnd.report import html
    from vnd.report.html import IMAGES, marked, write_markdown
    from vnd.report.results import keep as write_kept

    if not all(math.isfinite(size) and size > 0 for size in sizes):
        raise ValueError(f"report: sizes must be numbers of parameters above 0; got {list(sizes)}")
    if markdown is not None:
        marked(markdown)  # what is wrong with it is said before the work
    comparison = html.read(runs, lambda line: say(f"vnd: {line}", error=True))
    by_size = any("summary" in block.sections for block in comparison.blocks)  # which has the table of methods by size
    if not by_size and tuple(sizes) != SIZES:
        noun = comparison.runs[0].results["task"]["noun"]
        raise ValueError(f"report: --sizes are parameters of classifiers, and these are {noun}s; leave it out")
    page = html.write(comparison, out, title).resolve()
    words = f"report:  {page}\nfigures: {page.parent / 'figures'}\nnumbers: {page.parent / 'summary.csv'}, summary.json"
    if keep is not None:
        size = write_kept(comparison.runs, keep)
        words += f"\nkept:    {keep.resolve()} ({len(comparison.runs)} runs, {short(size, 'B')})"
    if markdown is not None:
        paths = {"out": None if out == OUT else out, "keep": keep, "markdown": markdown}
        given = {name: path and os.path.relpath(path) for name, path in paths.items()} | {"title": title}
        given["sizes"] = ",".join(f"{size:.12g}" for size in sizes) if by_size else None
        again = command("vnd", "report", *map(os.path.relpath, runs), **given)
        figures = write_markdown(comparison, markdown, sizes, again)
        words += f"\ntables:  {markdown.resolve()} ({len(figures)} figures in {IMAGES}/)"
    say(words)
