"""The report of a run: one HTML file that needs no other file, no network and no script."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vnd.files import write_text
from vnd.report import canvas, figures
from vnd.report.document import COLUMNS, document, fold, pair, picture, section, table
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
    path = Path(out) / "report.html"
    write_text(path, html(contents, canvas.pictures(drawn, path.parent / "figures", DPI)))
    return path


def html(results: dict[str, Any], pictures: dict[str, str]) -> str:
    """The page, of what `results.read` gave and of each figure as SVG."""
    other = f"“{results['out_of_domain']}”" if results.get("out_of_domain") else "another kind"
    blocks = {name: _block(name, svg, other) for name, svg in pictures.items()}
    body = [f"<h1>{escape(results['title'])}</h1>", _summary(results, other), _cards(results)]
    body.append(pair(blocks.pop("accuracy", ""), blocks.pop("detection", "")))
    last = pair(blocks.pop("training", ""), _made(results))
    body += [*blocks.values(), _rows(results), last]
    return document(results["title"], body)


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
    numbers = table(["Network", "Kind", *(COLUMNS[key][0] for key in keys)], lines, [row is chosen for row in rows])
    more = ""
    shaped = [row for row in rows if row.get("shape")]
    if shaped:
        layers = dict.fromkeys(layer for row in shaped for layer in row["shape"])
        lines = [[escape(layer), *(f"{row['shape'].get(layer, '–')}" for row in shaped)] for layer in layers]
        units = table(["Layer", *(escape(row["label"]) for row in shaped)], lines)
        more = fold("Units kept in each layer", units)
    return section("All sizes in numbers", note, numbers + more)


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
    return section("How it was made", "", f"<dl>{lines}</dl>")


def _block(name: str, svg: str, other: str) -> str:
    heading, caption = FIGURES[name]
    kind = "half" if name in ("accuracy", "detection", "training") else "wide"
    return section(heading, caption.format(other=other), picture(svg, heading, kind))


def _share(row: dict[str, Any], full: dict[str, Any]) -> str:
    return f"{100 * row['parameters'] / full['parameters']:.3g} %"


def _has(results: dict[str, Any], name: str) -> bool:
    """Whether the results hold what a figure draws."""
    if name == "detection":
        return any(row.get("auroc") is not None for row in results["rows"])
    part = results.get(NEEDS[name]) if name in NEEDS else results["rows"]
    return any(part.values()) if isinstance(part, dict) else bool(part)
