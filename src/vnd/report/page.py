"""The report of a run: one HTML file that needs no other file, no network and no script."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vnd.files import write_text
from vnd.report import figures
from vnd.report.results import chosen_row, full_row, read, smallest_row
from vnd.words import short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Heading, and what the figure shows; `{other}` is the name of the out-of-domain data.
FIGURES = {
    "accuracy": (
        "Accuracy at every size",
        "Each point is a network cut from the same training. Higher is better; further left is smaller.",
    ),
    "detection": (
        "Noticing unfamiliar images",
        "Of an image of its own kind and one of {other}, how often it is less certain of the latter; by chance 50 %.",
    ),
    "calibration": (
        "Can its confidence be believed?",
        "Left: how far apart stated confidence and accuracy are. Right: the price of wrong answers, the higher the "
        "surer they were. Lower is better in both.",
    ),
    "survival": (
        "What the network learned to keep",
        "Each cell is one unit of a layer. Bright units stay even in small networks, dark ones are the first to go.",
    ),
    "reliability": (
        "Confidence against accuracy",
        "Of the answers given with some confidence, how many were right; on the dotted line the two agree. Pale bars "
        "rest on too few images to tell. Below: how many images there are.",
    ),
    "examples": (
        "What it is sure of, and what it is not",
        "The images with the surest and the least sure answers, and images of {other}, for which no answer is right.",
    ),
    "training": ("Training", "The loss over the steps of training, pale as it was and bold as a running mean."),
}
DPI = 144  # of the PNG files
NEEDS = {"survival": "survival", "reliability": "reliability", "examples": "examples", "training": "curves"}


def _percent(digits: int) -> Callable[[float], str]:
    return lambda share: f"{100 * share:.{digits}f} %"


# Heading of each column, and how its numbers are written.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "parameters": ("Parameters", short),
    "macs": ("Multiply-adds", short),
    "bytes": ("Size", lambda value: short(value, "B")),
    "latency_ms": ("Time", lambda value: f"{value:.3g} ms"),
    "accuracy": ("Accuracy", _percent(1)),
    "nll": ("NLL (nats)", lambda value: f"{value:.3f}"),
    "ece": ("ECE", _percent(1)),
    "brier": ("Brier", lambda value: f"{value:.3f}"),
    "auroc": ("AUROC", _percent(1)),
    "aupr": ("AUPR", _percent(1)),
    "base_rate": ("AUPR by chance", _percent(1)),
}

STYLE = """
:root{--ink:#1f2933;--muted:#5f6b76;--line:#d9dee3;--blue:#0072b2;--green:#009e73;--wash:#f5f7f9;
--font:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",Helvetica,Arial,sans-serif}
*{box-sizing:border-box}
body{margin:0;background:var(--wash);color:var(--ink);font:16px/1.55 var(--font)}
main{max-width:1120px;margin:0 auto;padding:32px 20px 56px}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 12px}h2{font-size:1.12rem;margin:0 0 2px}
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
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
thead th{color:var(--muted)}th:first-child{text-align:left}th{font-weight:600}
tr.chosen>*{background:#e6f5f0}
details{margin-top:14px}summary{cursor:pointer;color:var(--blue)}
@media(max-width:600px){main{padding:20px 12px 40px}section{padding:14px 12px}h1{font-size:1.4rem}}
@media print{body{background:#fff}section,.card{break-inside:avoid}}
"""


def write(results: Path, out: Path) -> Path:
    """Write the report of a run, and its figures as PNG files beside it.

    Args:
        results: A run folder, or its `results.json`.
        out: Folder for `report.html` and `figures/`; it is made if need be.

    Returns:
        The path of the page.
    """
    contents = read(Path(results))
    drawn: dict[str, Figure] = {name: getattr(figures, name)(contents) for name in FIGURES if _has(contents, name)}
    path, pictures = Path(out) / "report.html", {}
    (path.parent / "figures").mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a box in the PNG; browsers have more fonts
            figure.savefig(path.parent / "figures" / f"{name}.png", dpi=DPI)
            figure.set_layout_engine("none")  # laid out now; once is enough
            pictures[name] = _svg(figure)
    write_text(path, html(contents, pictures))
    return path


def html(results: dict[str, Any], pictures: dict[str, str]) -> str:
    """The page, of what `results.read` gave and of each figure as SVG."""
    other = f"“{results['out_of_domain']}”" if results.get("out_of_domain") else "another kind"
    title = escape(results["title"])
    blocks = {name: _block(name, picture, other) for name, picture in pictures.items()}
    body = [f"<h1>{title}</h1>", _summary(results, other), _cards(results)]
    body.append(_pair(blocks.pop("accuracy", ""), blocks.pop("detection", "")))
    last = _pair(blocks.pop("training", ""), _made(results))
    body += [*blocks.values(), _rows(results), last]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _summary(results: dict[str, Any], other: str) -> str:
    """What was trained, and what came of it, in words."""
    data, full, chosen = results["data"], full_row(results), chosen_row(results)
    images = f"{data['train']:,} images of " if data.get("train") else ""
    classes = f", {len(data['classes'])} classes" if data.get("classes") else ""
    split = results.get("split") or "test"
    measured = f"{data[split]:,} {split} images" if data.get(split) else f"{split} images"
    words = [
        f"One network was trained once on {images}“{data['name']}”{classes}. It learned which of its units matter most "
        f"and keeps them in that order, so that smaller networks are cut from it without training again. Here it is "
        f"measured at {len(results['rows'])} sizes on {measured}, which it was not trained on."
    ]
    if chosen is not None:
        reason = f" ({results['chosen']['reason']})" if results["chosen"].get("reason") else ""
        words.append(
            f"The chosen network, {chosen['label']}{reason}, has {short(chosen['parameters'])} parameters, "
            f"{_share(chosen, full)} of the full {short(full['parameters'])}. It is right on "
            f"{100 * chosen['accuracy']:.1f} % of these images; the full network on {100 * full['accuracy']:.1f} %. "
            f"On average its stated confidence is {100 * chosen['ece']:.1f} percentage points off."
        )
        if chosen.get("auroc") is not None:
            words[-1] += (
                f" Shown one of these and one of {other}, which it was not trained for, it is less certain of "
                f"the latter in {100 * chosen['auroc']:.0f} of 100 cases."
            )
    return "\n".join(f"<p>{escape(text)}</p>" for text in words)


def _cards(results: dict[str, Any]) -> str:
    """The full, the chosen and the smallest network, in numbers."""
    full = full_row(results)
    named = {"Full size": full, "Chosen": chosen_row(results), "Smallest": smallest_row(results)}
    return f'<div class="cards">{"".join(_card(name, row, full) for name, row in named.items() if row)}</div>'


def _card(name: str, row: dict[str, Any], full: dict[str, Any]) -> str:
    measures = {"accuracy": "Accuracy", "ece": "Calibration error (ECE)", "auroc": "Unfamiliar noticed (AUROC)"}
    items = "".join(f"<dt>{label}</dt><dd>{_cell(row, key)}</dd>" for key, label in measures.items())
    return (
        f'<div class="card {name.split()[0].lower()}"><span>{name}: {escape(row["label"])}, {row["kind"]}</span>'
        f"<b>{short(row['parameters'])} parameters</b>{_share(row, full)} of the full size<dl>{items}</dl></div>"
    )


def _rows(results: dict[str, Any]) -> str:
    """Every size in numbers; the units of each layer under a fold."""
    rows, chosen = results["rows"], chosen_row(results)
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    note = (
        "Uniform: the same share of every layer. Learned: as many units of each layer as training found worth keeping. "
        "NLL: negative log-likelihood. ECE: expected calibration error. Of accuracy, AUROC and AUPR more is better, of "
        "the others less."
    )
    if keys[-1:] == ["base_rate"] and len({_cell(row, "base_rate") for row in rows}) == 1:  # one number needs no column
        note += f" By chance, AUPR would be {_cell(rows[0], keys.pop())}."
    lines = [[escape(row["label"]), row["kind"], *(_cell(row, key) for key in keys)] for row in rows]
    table = _table(["Network", "Kind", *(COLUMNS[key][0] for key in keys)], lines, [row is chosen for row in rows])
    fold = ""
    shaped = [row for row in rows if row.get("shape")]
    if shaped:
        layers = dict.fromkeys(layer for row in shaped for layer in row["shape"])
        lines = [[escape(layer), *(f"{row['shape'].get(layer, '–')}" for row in shaped)] for layer in layers]
        units = _table(["Layer", *(escape(row["label"]) for row in shaped)], lines, [False] * len(lines))
        fold = f"<details><summary>Units kept in each layer</summary>{units}</details>"
    return f'<section><h2>All sizes in numbers</h2><p class="note">{note}</p>{table}{fold}</section>'


def _table(head: list[str], lines: list[list[str]], marks: list[bool]) -> str:
    """A table of cells that are HTML already; marked lines stand out."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body, mark = "", ' class="chosen"'
    for line, marked in zip(lines, marks, strict=True):
        cells = "".join(f"<td>{cell}</td>" for cell in line[1:])
        body += f"<tr{mark if marked else ''}><th>{line[0]}</th>{cells}</tr>\n"
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _cell(row: dict[str, Any], key: str) -> str:
    return COLUMNS[key][1](row[key]) if row.get(key) is not None else "–"


def _made(results: dict[str, Any]) -> str:
    """Where the numbers come from."""
    data, chosen, samples = results["data"], results.get("chosen") or {}, results.get("samples")
    sizes = ", ".join(f"{data[part]:,} {part}" for part in ("train", "validation", "test") if data.get(part))
    items = {
        "Command": results.get("command"),
        "Method": results.get("method"),
        "Data": f"{data['name']} ({sizes})" if sizes else data["name"],
        "Out of domain": results.get("out_of_domain"),
        "Samples per prediction": "none, the means of the weights" if samples == 0 else samples,
        "Machine": results.get("machine"),
        "Seconds": ", ".join(f"{name} {value:.1f}" for name, value in (results.get("seconds") or {}).items()),
        "Chosen network": chosen.get("folder"),
    }
    lines = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in items.items() if value)
    return f"<section><h2>How it was made</h2><dl>{lines}</dl></section>"


def _block(name: str, picture: str, other: str) -> str:
    heading, caption = FIGURES[name]
    caption = escape(caption.format(other=other))
    picture = picture.replace("<svg", f'<svg role="img" aria-label="{heading}"', 1)
    kind = "half" if name in ("accuracy", "detection", "training") else "wide"
    return (
        f'<section><h2>{heading}</h2><p class="note">{caption}</p><figure class="{kind}">{picture}</figure></section>'
    )


def _pair(*sections: str) -> str:
    return f'<div class="pair">{"".join(sections)}</div>'


def _share(row: dict[str, Any], full: dict[str, Any]) -> str:
    return f"{100 * row['parameters'] / full['parameters']:.3g} %"


def _has(results: dict[str, Any], name: str) -> bool:
    """Whether the results hold what a figure draws."""
    if name == "detection":
        return any(row.get("auroc") is not None for row in results["rows"])
    part = results.get(NEEDS[name]) if name in NEEDS else results["rows"]
    return any(part.values()) if isinstance(part, dict) else bool(part)


def _svg(figure: Figure) -> str:
    """A figure as an element of a page: text stays text, and nothing in it names an address."""
    import matplotlib

    buffer = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vnd"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg, count=2)
