"""Reports: result files as pages, figures and Markdown. `vnd.report.html` writes them."""
