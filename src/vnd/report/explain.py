"""Plain words for a comparison: what the terms mean, what each method is, and who is best where."""

from __future__ import annotations

from html import escape

from vnd._text import short
from vnd.metrics import Interval
from vnd.report.families import SEPARATE
from vnd.report.series import Point, Series
from vnd.report.summary import Block, Lead, comparable, lead, places

TERMS = {
    "Nested": "The units of every layer are ordered by importance, so that the first few of each layer are a smaller "
    "network that works without training again: one training gives all sizes.",
    "Width": "The share of every layer that is kept. Half the width has about a quarter of the parameters.",
    "Accuracy": "The share of {split} images that are classified right. More is better.",
    "ECE": "Expected calibration error: how far, on average, the stated confidence is from the share of right answers. "
    "A network that is right on 90 of 100 images that it is “90 % sure” of has none. Less is better.",
    "NLL": "Negative log-likelihood: the price of wrong answers, the higher the surer they were. Less is better.",
    "AUROC": "Of an image of the kind it was trained on and an unfamiliar one, how often the network is less certain "
    "of the unfamiliar one. 50 % is chance. More is better.",
    "AUPR": "Of the images that are reported as unfamiliar, how many are, on average over all degrees of caution. What "
    "chance gives depends on the shares of the two kinds, the base rate. More is better.",
    "Interval": "Where the mean of many repetitions would lie with 95 % confidence, by Student's t. It is over "
    "trainings from other random starts (seeds), or where there is one training, over repeated evaluations of it.",
}
METHODS = {
    "bn3": "Bayesian nested network: the order and the weights are learned as distributions; predictions average over "
    "draws of the weights.",
    "fn3": "Nested network with plain weights; in training the width is drawn at random, with equal probability.",
    "us_net": "Slimmable network: every step trains the full, the smallest and random widths together.",
    "ordered_l0": "Nested network with plain weights that learns the order, and pays for every unit that it keeps.",
    "ibnn": "An independent Bayesian network for each width: one training a width, the mark to aim for.",
    "svb": "Sparse variational dropout: single weights are removed; one training gives one size.",
    "sn3": "A student of a Bayesian nested network: its leading channels, deterministic but for the last layer, taught "
    "the spread of its answers as a Dirichlet.",
    "plain": "An ordinary network for each width: one training a width.",
}
READINGS = {
    "mean": "one pass with the means of the weights, not averaged over draws",
    "mc_mask": "a random width each pass, averaged",
    "temperature_scaled": "temperature scaling: confidences are mended for each width on validation images",
}
PLACES = {
    "full": "Full width",
    "quarter": "A quarter of the width",
    "smallest": "The smallest width",
    "one size": "Methods with one size",
}
SHOWN = {"accuracy": "Right most often", "ece": "Most honest confidence", "auroc": "Notices unfamiliar images best"}
VERDICTS = {"apart": "intervals apart", "overlap": "intervals overlap", "single": "one of them measured once"}
REPEATED = "†"  # after an interval that is not over seeds
CHANCE = "Where intervals overlap, or a number was measured once, the difference may be chance."


def terms(split: str = "test") -> str:
    """The terms, as HTML, of numbers measured on these images."""
    return _words({escape(name): escape(text.format(split=split)) for name, text in TERMS.items()})


def methods(block: Block) -> str:
    """What is compared, as HTML: each series, what it is, and how many runs it rests on."""
    lines = {}
    for own in block.series:
        about = METHODS.get(own.method, f"The method “{own.method}”.")
        if own.reading in READINGS and (own.reading != "mean" or own.name.startswith("DT-")):
            about = f"{about} Here: {READINGS[own.reading]}."
        lines[escape(own.name)] = f"{escape(about)} <small>{_count(len(own.runs), 'run')}{_over(own)}.</small>"
    return _words(lines)


def verdicts(block: Block) -> str:
    """Who is best at each place and in what, as HTML."""
    lines = []
    for place, points in places(block).items():
        if place == "one size" or len(points) < 2 or not comparable(points):
            continue
        said = [
            f"{name}: {_lead(found, key)}."
            for key, name in SHOWN.items()
            if (found := lead(block, points, key)) is not None
        ]
        lines.append(f"<li><b>{PLACES[place]}.</b> {' '.join(said)}</li>")
    return f"<ul>{''.join(lines)}</ul><p>{CHANCE}</p>" if lines else ""


def shrinking(block: Block) -> str:
    """What each nested network loses when it is cut, as HTML: main inference that have several widths."""
    lines = []
    for own in block.series:
        widths = [point for point in own.of("uniform") if point.fraction is not None]
        if not own.main or own.method in SEPARATE or len(widths) < 2:
            continue
        quarter = places(block).get("quarter", {}).get(own.name)
        small = quarter if quarter is not None and quarter is not widths[-1] else widths[0]
        lines.append(f"<li>{_shrunk(own, small, widths[-1], len(own.points))}</li>")
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def measure(point: Point, key: str) -> str:
    """A measure of a point, as HTML; a dash where it is not known."""
    return number(point.measures.get(key), point.over, 3 if key in ("nll", "brier") else 1)


def number(found: Interval | None, over: str, digits: int = 1) -> str:
    """A mean and half its interval, as HTML: of shares in per cent to one or two digits, of others to three."""
    if found is None:
        return "–"
    factor, unit = (1, "") if digits == 3 else (100, " %")
    reach = f"{factor * (found.high - found.low) / 2:.{digits}f}{REPEATED if over == 'repeats' else ''}"
    spread = f" <small>± {reach}</small>" if found.count > 1 else ""
    return f"{factor * found.mean:.{digits}f}{spread}{unit}"


def _shrunk(own: Series, small: Point, full: Point, sizes: int) -> str:
    share = 100 * small.parameters / full.parameters
    lost = 100 * (full.measures["accuracy"].mean - small.measures["accuracy"].mean)
    change = f"loses {lost:.1f} percentage points" if lost >= 0 else f"gains {-lost:.1f} percentage points"
    return (
        f"<b>{escape(own.name)}</b> runs at {sizes} sizes. Cut to {escape(small.label)} of the width it keeps "
        f"{share:.3g} % of its {short(full.parameters)} parameters and {change} of accuracy "
        f"({100 * full.measures['accuracy'].mean:.1f} % → {100 * small.measures['accuracy'].mean:.1f} %)."
    )


def _lead(found: Lead, key: str) -> str:
    best = f"<b>{escape(found.best.name)}</b>, {measure(found.point, key)}"
    if found.next is None or found.runner is None:
        return f"{best} (no other to compare with)"
    return f"{best}; next {escape(found.next.name)}, {measure(found.runner, key)} ({VERDICTS[found.verdict]})"


def _words(lines: dict[str, str]) -> str:
    return f'<dl class="words">{"".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in lines.items())}</dl>'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _over(own: Series) -> str:
    over = {point.over for point in own.points} - {""}
    return f"; intervals over {' and '.join(sorted(over))}" if over else ""
