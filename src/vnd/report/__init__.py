"""Reports: result files as pages, figures and Markdown. `vnd.report.html` writes them."""

from functools import partial

from vnd import _submodule

__getattr__ = partial(_submodule, __name__)
