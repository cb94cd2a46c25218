"""Reports: result files as pages, figures and Markdown. `vnd.report.html` writes them."""

from vnd.report import lengths, masks, sizes

__all__ = ["lengths", "masks", "sizes"]
