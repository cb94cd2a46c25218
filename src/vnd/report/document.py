"""Pages: one HTML file that needs no other file, no network and no script."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from vnd._text import short

STYLE = """
:root{--ink:#1f2933;--muted:#5f6b76;--line:#d9dee3;--blue:#0072b2;--green:#009e73;--wash:#f5f7f9;
--font:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",Helvetica,Arial,sans-serif}
*{box-sizing:border-box}
body{margin:0;background:var(--wash);color:var(--ink);font:16px/1.55 var(--font)}
main{max-width:1120px;margin:0 auto;padding:32px 20px 56px}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 12px}h2{font-size:1.12rem;margin:0 0 2px}
h3{font-size:1rem;margin:16px 0 4px}
p{margin:0 0 12px;max-width:78ch}.note{color:var(--muted);font-size:.92rem;max-width:110ch;text-wrap:pretty}
section,.card{background:#fff;border:1px solid var(--line);border-radius:10px;padding:18px 20px;min-width:0}
section{margin:18px 0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:18px;margin:18px 0}
.pair section{margin:0}
figure{margin:0;overflow-x:auto}svg{display:block;width:100%;height:auto;max-width:1040px;margin:auto}
.wide svg{min-width:640px}.half svg{max-width:560px}svg text{font-family:var(--font)!important}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,240px),1fr));gap:14px;margin:18px 0}
.card{border-top:4px solid var(--muted);padding:14px 18px}
.card.full{border-top-color:var(--blue)}.card.chosen{border-top-color:var(--green)}
.card b{display:block;font-size:1.5rem;line-height:1.3}.card span,dt{color:var(--muted)}
dl{display:grid;grid-template-columns:auto 1fr;gap:3px 18px;margin:8px 0 0}
dd{margin:0;overflow-wrap:anywhere}.card dl{grid-template-columns:1fr auto}
.card dd{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
dl.words{gap:6px 18px}.words dt{color:var(--ink);font-weight:600}.words dd{max-width:90ch}
ul{margin:0 0 12px;padding-left:1.2em}li{margin:4px 0;max-width:100ch}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.92rem;margin:12px 0}nav a,summary{color:var(--blue)}
.block{font-size:1.4rem;margin:36px 0 4px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
thead th{color:var(--muted)}th:first-child{text-align:left}th{font-weight:600}tbody th{white-space:normal;min-width:7em}
tr.chosen>*{background:#e6f5f0}td b{color:#00674b}td small{color:var(--muted)}
details{margin-top:14px}summary{cursor:pointer}
@media(max-width:600px){main{padding:20px 12px 40px}section{padding:14px 12px}h1{font-size:1.4rem}
dl.words{grid-template-columns:1fr;gap:0}.words dd{margin-bottom:8px}}
@media print{body{background:#fff}section,.card{break-inside:avoid}}
"""


def percent(digits: int) -> Callable[[float], str]:
    """How a share is written, with so many digits after the point."""
    return lambda share: f"{100 * share:.{digits}f} %"


# Heading of each column, and how its numbers are written.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "parameters": ("Parameters", short),
    "macs": ("Multiply-adds", short),
    "bytes": ("Size", lambda value: short(value, "B")),
    "latency_ms": ("Time", lambda value: f"{value:.3g} ms"),
    "accuracy": ("Accuracy", percent(1)),
    "nll": ("NLL (nats)", lambda value: f"{value:.3f}"),
    "ece": ("ECE", percent(1)),
    "brier": ("Brier", lambda value: f"{value:.3f}"),
    "auroc": ("AUROC", percent(1)),
    "aupr": ("AUPR", percent(1)),
    "base_rate": ("AUPR by chance", percent(1)),
}


def document(title: str, body: list[str]) -> str:
    """A page of parts that are HTML already; the title is text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, note: str, content: str, name: str = "") -> str:
    """A part of the page; heading and note are text, the content is HTML, the name is for links."""
    mark, said = f' id="{name}"' if name else "", f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section{mark}><h2>{escape(heading)}</h2>{said}{content}</section>"


def picture(svg: str, label: str, kind: str = "wide") -> str:
    """A figure of a page, of its SVG."""
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    return f'<figure class="{kind}">{svg}</figure>'


def table(head: list[str], lines: list[list[str]], marks: list[bool] | None = None) -> str:
    """A table of cells that are HTML already; marked lines stand out."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body, mark = "", ' class="chosen"'
    for line, marked in zip(lines, marks or [False] * len(lines), strict=True):
        cells = "".join(f"<td>{cell}</td>" for cell in line[1:])
        body += f"<tr{mark if marked else ''}><th>{line[0]}</th>{cells}</tr>\n"
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>'


def fold(summary: str, content: str) -> str:
    """Content that is shown when asked for."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def pair(*sections: str) -> str:
    """Two sections beside each other where there is room; empty ones leave none."""
    return f'<div class="pair">{"".join(sections)}</div>' if any(sections) else ""
