"""How the page of a run begins: what was trained and measured, in words that fit its method, and its main numbers."""

from __future__ import annotations

from html import escape
from typing import Any

from vnd._text import short
from vnd.report.document import COLUMNS
from vnd.report.results import chosen_row, full_row, smallest_row

# What was trained on the images, and what it can do, by method; any other gets the neutral words.
NESTED = "One network was trained once on {images}. "
ORDERS = {
    "learned": NESTED
    + "It learned which of its units matter most and keeps them in that order, so that smaller networks are cut from "
    "it without training again.",
    "fixed": NESTED
    + "Its units stand in a fixed order and all its widths were trained at once, so that smaller networks, of the "
    "first units of each layer, are cut from it without training again.",
    "single": "One network of one size was trained on {images}.",
    "": "A network was trained on {images}.",
}
ORDER_OF = {
    **{"bn3": "learned", "ordered_l0": "learned", "sn3": "learned", "fn3": "fixed", "us_net": "fixed"},
    **{"ibnn": "single", "svb": "single", "plain": "single"},
}


def method_of(results: dict[str, Any]) -> str:
    """The method's name, as recipes spell it; empty where the file does not say."""
    return str((results.get("series") or {}).get("method") or results.get("method") or "")


def order_of(results: dict[str, Any]) -> str:
    """How the units of a run are ordered: "learned", "fixed", "single" for none, or "" where it is not known."""
    return ORDER_OF.get(method_of(results), "")


def summary(results: dict[str, Any], other: str) -> str:
    """What was trained, and what came of it, in words, as HTML."""
    data, full, chosen = results["data"], full_row(results), chosen_row(results)
    count = f"{data['train']:,} images of " if data.get("train") else ""
    classes = f", {len(data['classes'])} classes" if data.get("classes") else ""
    trained = ORDERS[order_of(results)].format(images=f"{count}“{data['name']}”{classes}")
    words = [f"{trained} {_measured(results)}"]
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


def cards(results: dict[str, Any]) -> str:
    """The full, the chosen and the smallest network in numbers, as HTML; one where there is one size."""
    full = full_row(results)
    named = {"Full size": full, "Chosen": chosen_row(results), "Smallest": smallest_row(results)}
    if len(results["rows"]) == 1:
        named = {"The network": full}
    return f'<div class="cards">{"".join(_card(name, row, full) for name, row in named.items() if row)}</div>'


def cell(row: dict[str, Any], key: str) -> str:
    """A number of a row as text; a dash where it is not known."""
    return COLUMNS[key][1](row[key]) if row.get(key) is not None else "–"


def _measured(results: dict[str, Any]) -> str:
    sizes, split = len(results["rows"]), results.get("split") or "test"
    number = results["data"].get(split)
    where = f" at {sizes} sizes" if sizes > 1 else " at one size" if order_of(results) != "single" else ""
    said = (
        f"Here it is measured{where} on {f'{number:,} ' if number else ''}{split} images, which it was not trained on"
    )
    if split == "validation":
        return f"{said}; but training kept what was best on them, and test images may turn out worse."
    return f"{said}."


def _card(name: str, row: dict[str, Any], full: dict[str, Any]) -> str:
    measures = {"accuracy": "Accuracy", "ece": "Calibration error (ECE)", "auroc": "Unfamiliar noticed (AUROC)"}
    items = "".join(f"<dt>{label}</dt><dd>{cell(row, key)}</dd>" for key, label in measures.items())
    share = "" if name == "The network" else f"{_share(row, full)} of the full size"
    look = {"Full size": "full", "The network": "full"}.get(name, name.lower())
    return (
        f'<div class="card {look}"><span>{name}: {escape(row["label"])}, {row["kind"]}</span>'
        f"<b>{short(row['parameters'])} parameters</b>{share}<dl>{items}</dl></div>"
    )


def _share(row: dict[str, Any], full: dict[str, Any]) -> str:
    return f"{100 * row['parameters'] / full['parameters']:.3g} %"
