"""Reports: result files as pages, figures and Markdown. `vnd.report.html` writes them."""

from vnd.report import curves, lengths, masks, sizes

__all__ = ["curves", "lengths", "masks", "sizes"]
