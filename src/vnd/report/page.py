"""The report of a run: one HTML file that needs no other file, no network and no script."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vnd._files import write_text
from vnd.report import canvas, coding, figures, segmenting, tasks
from vnd.report.document import COLUMNS, document, fold, pair, picture, section, table
from vnd.report.opening import cards, cell, method_of, order_of, summary
from vnd.report.results import chosen_row, read
from vnd.report.series import CERTAIN
from vnd.report.tasks import Task
from vnd.report.trust import answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Heading, and what the figure shows; in braces what `_said` has words for.
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
    "selective": (
        "Answering only when sure",
        "A network that withholds its least certain answers makes fewer mistakes: further right is more answered, "
        "lower is fewer mistakes. A marker is the threshold fitted on validation images for at most {risk} wrong "
        "answers, the dotted line, {fitted}; a size without a marker has no such threshold.",
    ),
    "cascade": (
        "Narrow networks first",
        "Every image is tried on the first of {levels}, and goes on to the next only where that is uncertain: accuracy "
        "against the mean cost, beside each size for itself. Further up and left is better.",
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
KINDS = {
    "uniform": "Uniform: the same share of every layer.",
    "learned": "Learned: as many units of each layer as training found worth keeping.",
    "sampled": "Sampled: a random share each time.",
}
OWN: dict[str, Task[Any]] = {task.name: task for task in (coding.TASK, segmenting.TASK)}  # with pages of their own
DPI = 144  # of the PNG files
NEEDS = {
    **{"survival": "survival", "reliability": "reliability", "examples": "examples", "training": "curves"},
    "cascade": "cascade",
}
HALVES = ("accuracy", "detection", "selective", "cascade", "training")


def write(results: Path, out: Path) -> Path:
    """Write the report of a run, and its figures as PNG files beside it.

    Args:
        results: A run folder, or its `results.json`.
        out: Folder for `report.html` and `figures/`; it is made if need be.

    Returns:
        The path of the page.
    """
    contents = read(Path(results))
    own = OWN.get(contents.get("task", ""))
    drawn: dict[str, Figure] = (
        tasks.drawn(own, contents)
        if own is not None
        else {name: getattr(figures, name)(contents) for name in FIGURES if _has(contents, name)}
    )
    path = Path(out) / "report.html"
    pictures = canvas.pictures(drawn, path.parent / "figures", DPI)
    write_text(path, html(contents, pictures) if own is None else tasks.html(own, contents, pictures, _made(contents)))
    return path


def html(results: dict[str, Any], pictures: dict[str, str]) -> str:
    """The page, of what `results.read` gave and of each figure as SVG."""
    said = _said(results)
    blocks = {name: _block(name, svg, said) for name, svg in pictures.items()}
    body = [f"<h1>{escape(results['title'])}</h1>", summary(results, said["other"]), cards(results)]
    body.append(pair(blocks.pop("accuracy", ""), blocks.pop("detection", "")))
    body.append(blocks.pop("calibration", ""))
    body.append(pair(blocks.pop("selective", ""), blocks.pop("cascade", "")))
    last = pair(blocks.pop("training", ""), _made(results))
    body += [*blocks.values(), _rows(results), last]
    return document(results["title"], body)


def _said(results: dict[str, Any]) -> dict[str, str]:
    """What captions say of these results."""
    selective, levels = results.get("selective") or {}, (results.get("cascade") or {}).get("levels", [])
    fitted = "measured on the test images"
    if results.get("split") == "validation":
        fitted = "measured on the same images, which is too kind"
    return {
        "other": f"“{results['ood']}”" if results.get("ood") else "another kind",
        "risk": f"{100 * selective.get('risk', 0):g}\u00a0%",
        "fitted": fitted,
        "levels": " and ".join(filter(None, (", ".join(levels[:-1]), *levels[-1:]))).replace(" %", "\u00a0%"),
    }


def _rows(results: dict[str, Any]) -> str:
    """Every size in numbers; the units of each layer under a fold."""
    rows, chosen = results["rows"], chosen_row(results)
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    kinds = {row["kind"] for row in rows}
    note = "".join(f"{words} " for kind, words in KINDS.items() if kind in kinds and len(rows) > 1)
    note += (
        "NLL: negative log-likelihood. ECE: expected calibration error. Of accuracy, AUROC and AUPR more is better, of "
        "the others less."
    )
    if keys[-1:] == ["base_rate"] and len({cell(row, "base_rate") for row in rows}) == 1:  # one number needs no column
        note += f" By chance, AUPR would be {cell(rows[0], keys.pop())}."
    lines = [[escape(row["label"]), row["kind"], *(cell(row, key) for key in keys)] for row in rows]
    numbers = table(["Network", "Kind", *(COLUMNS[key][0] for key in keys)], lines, [row is chosen for row in rows])
    more = ""
    shaped = [row for row in rows if row.get("shape")]
    if shaped:
        layers = dict.fromkeys(layer for row in shaped for layer in row["shape"])
        lines = [[escape(layer), *(f"{row['shape'].get(layer, '–')}" for row in shaped)] for layer in layers]
        units = table(["Layer", *(escape(row["label"]) for row in shaped)], lines)
        more = fold("Units kept in each layer", units)
    return section("All sizes in numbers" if len(rows) > 1 else "In numbers", note, numbers + more)


def _made(results: dict[str, Any]) -> str:
    """Where the numbers come from."""
    data, chosen, samples = results["data"], results.get("chosen") or {}, results.get("samples")
    if method_of(results) in CERTAIN:  # weights without a posterior: none are drawn
        samples = None
    elif isinstance(samples, list):
        samples = ", ".join(map(str, samples))
    sizes = ", ".join(f"{data[part]:,} {part}" for part in ("train", "validation", "test") if data.get(part))
    items = {
        "Command": results.get("command"),
        "Method": results.get("method"),
        "Data": f"{data['name']} ({sizes})" if sizes else data["name"],
        "Out of domain": results.get("ood"),
        "Samples per prediction": "none, the means of the weights" if samples == 0 else samples,
        "Machine": results.get("machine"),
        "Seconds": ", ".join(f"{name} {value:.1f}" for name, value in (results.get("seconds") or {}).items()),
        "Chosen network": chosen.get("folder"),
    }
    lines = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in items.items() if value)
    return section("How it was made", "", f"<dl>{lines}</dl>")


def _block(name: str, svg: str, said: dict[str, str]) -> str:
    heading, caption = FIGURES[name]
    return section(heading, caption.format(**said), picture(svg, heading, "half" if name in HALVES else "wide"))


def _has(results: dict[str, Any], name: str) -> bool:
    """Whether the results hold what a figure draws, and it is true of them."""
    if name in ("accuracy", "detection", "calibration") and len(results["rows"]) == 1:
        return False  # one point is no curve; its numbers are said
    if name == "detection":
        return any(row.get("auroc") is not None for row in results["rows"])
    if name == "selective":
        return bool(answers((results.get("selective") or {"rows": []})["rows"]))
    if name == "survival" and order_of(results) == "fixed":
        return False  # nothing was learned
    part = results.get(NEEDS[name]) if name in NEEDS else results["rows"]
    return any(part.values()) if isinstance(part, dict) else bool(part)
