"""Sections on networks of several sizes: measures over sizes, who is best where, trust, and what was learned."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vnd._text import short
from vnd.metrics import Interval, confidence_interval
from vnd.report import theory
from vnd.report.html import (
    NONE,
    NOT_TEST,
    Cell,
    Drawing,
    Items,
    Options,
    Part,
    Table,
    duration,
    each,
    images_of,
    interval,
    listed,
    measure,
    number,
    of_split,
    paragraphs,
    section,
)
from vnd.report.results import Column, chosen_row
from vnd.report.series import Block, Point, Rows, Series, is_certain, point_of, points_of, rows_of, size_of
from vnd.report.style import (
    BLUE,
    GREEN,
    INK,
    LOOKS_OF_SIZES,
    MUTED,
    ORANGE,
    PURPLE,
    WIDE,
    Look,
    canvas,
    half,
    legend,
    looks,
    one_line,
    panels,
    size_axis,
    tidy,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUARTER, WHOLE, NEAR = 0.25, 1.0, 0.011
HEIGHT, ROW = 3.9, 0.19  # inches: of a figure, and what each row of its legend adds
PAGE = 8.2  # inches: what a page of documentation has room for
MANY = 12  # series; with more, only they are in the legend
FEW = 20  # predictions in a bin, or points of a curve: accuracy is mostly chance, a line is hard to see
DIAGRAMS, CURVES, DRAWN = 3, 4, 200  # reliability diagrams; curves in a panel; points of a curve: more cannot be seen
KINDS = {
    "uniform": ("the same share of every layer", "Uniform: the same share of every layer."),
    "learned": ("learned shape", "Learned: as many units of each layer as training found worth keeping."),
    "sampled": ("a random mask each time", "Sampled: a random share each time."),
}
INFERENCE = {
    "mc": ("draws of the weights", ""),
    "mean": ("means of the weights", "one pass with the means of the weights, not averaged over draws"),
    "mc_mask": ("random masks", "a random width each pass, averaged"),
    "temperature_scaled": ("scaled", "temperature scaling: confidences are mended for each width on validation images"),
}
TERMS = {
    "Nested": "The units of every layer are ordered by importance, so that the first few of each layer are a smaller "
    "network that works without training again: one training gives all sizes.",
    "Width": "The share of every layer that is kept. Half the width has about a quarter of the parameters.",
    "Interval": "Where the mean of many repetitions would lie with 95 % confidence, by Student's t. It is over "
    "trainings from other random starts (seeds), or where there is one training, over repeated evaluations of it.",
}
TRAINED = {  # by sizes and order of a method
    ("many", "learned"): "One network was trained once on {images}. It learned which of its units matter most and "
    "keeps them in that order, so that smaller networks are cut from it without training again.",
    ("many", "fixed"): "One network was trained once on {images}. Its units stand in a fixed order and all its widths "
    "were trained at once, so that smaller networks, of the first units of each layer, are cut from it without "
    "training again.",
    ("each", "none"): "One network of one size was trained on {images}.",
    ("found", "none"): "One network of one size was trained on {images}.",
}
PLACES = {
    "full": "Full width",
    "quarter": "A quarter of the width",
    "smallest": "The smallest width",
    "one size": "Methods with one size",
}
VERDICTS = {"apart": "intervals apart", "overlap": "intervals overlap", "single": "one of them measured once"}
CHANCE = "Where intervals overlap, or a number was measured once, the difference may be chance."
BOLD = (
    "The best number of a place is bold, where all are of one width. ± is half a 95 % interval over trainings from "
    "other seeds; with † over repeated evaluations of one training; a number without it was measured once."
)
CURVE = (
    " Left: at the same share of every layer. Right: at the same number of parameters, further left is smaller; hollow "
    "markers are learned shapes, where training decided how much of each layer stays. Bands and bars are 95 % "
    "intervals; a wide one may reach past the figure."
)
OVER = (
    " Further left is smaller. Hollow markers are learned shapes; bands and bars are 95 % intervals over seeds, and a "
    "wide one may reach past the figure."
)
BUDGET = (
    "Accuracy in % of {split} images, of the largest network of each method that has no more parameters than the head "
    "of the column says; in small, its parameters. Methods that learn the shapes of their networks are taken at "
    "learned shapes, others at the same share of every layer; a method with one training a size is one row. “Full” and "
    "what follows “Worst ECE” are of the full network. “Worst ECE” is the expected calibration error in % "
    "(pooled{bins}) of the size where it is largest, which is named. ± is half a 95 % interval (Student's t) over "
    "trainings from other seeds; without it, there is one. “Training” is one run, times the runs that a method needs "
    "for its sizes."
)
EVERY_SIZE = (
    "Every size of {name} on the {split} images; all but NLL (nats) in %, AUROC and AUPR against “{other}”. AURC is "
    "the mean risk over all shares of answers withheld. Where a plain network of the same shape was trained for "
    "itself, its accuracy is beside it, and by how many points the row is better."
)
SURVIVAL = (
    "Each cell is one unit of a layer{whose}. Bright units stay even in small networks, dark ones are the first to go."
)
RELIABILITY = (
    "Of the answers given with some confidence, how many were right; on the dotted line the two agree. Pale bars rest "
    "on too few images to tell. {below}"
)
SELECTIVE = (
    "A network that withholds its least certain answers makes fewer mistakes. Each curve is a size; further right is "
    "more answered, lower is fewer mistakes. The marker is the threshold fitted on validation images for the risk at "
    "the dotted line, measured on {split} images; a size without a marker has no such threshold.{again}"
)
CASCADE = (
    "Every image is tried on a narrow network, and goes on to a wider one only where that is uncertain: accuracy "
    "against the mean cost, beside each size for itself. Further up and left is better.{again}"
)
LEARNED = (
    "Probability that exactly so many of a layer's units are kept: grey, two laws of earlier work that are the same "
    "for every layer; blue, what training found, layer by layer.{again}"
)
STATISTICS = (
    "After a network is cut, its BatchNorm layers collect their statistics from training images again. A band reaches "
    "from the worst repeat to the best, on average over runs."
)
CORRELATION = (
    "Correlation of the uncertainties (predictive entropies) of two widths over all images: 1 where they doubt alike. "
    "Images of {other} are out of domain.{again}"
)
EFFICIENCY = (
    "Each method at its smallest, beside the full network. Weight usage is the share of the parameters of the method's "
    "own full network; with a random mask each pass it is the mean ± standard deviation over masks."
)
TIMES = (
    "Training: of all networks that the method needs; N trainings where it needs one for each width. Testing: all "
    "{split} images once, at the full width. Times of different machines do not compare."
)
DOWNHILL = (
    "A mask says how much of each unit is kept, and falls from the first unit to the last. Top: samples of the "
    "Downhill distribution; at a low temperature each is a clear cliff, at a high one a slope, from which training can "
    "tell which unit to move. Bottom: how probable each length is, under two fixed laws and two such as a layer may "
    "learn."
)
PRICE = (
    "A Bayesian weight pays for being certain. Left: the exact price (KL from the log-uniform prior) and three "
    "approximations, each with its smallest value at 0. Right: how far each is from the exact one, matched where the "
    "noise is small. The paper's is smallest at log α ≈ 1, so that noise stays finite; sparse variational dropout has "
    "no such place and lets weights drown in noise; variational dropout holds for α ≤ 1 only."
)
EXAMPLES = {"most_certain": "Most certain", "least_certain": "Least certain", "ood": "Out of domain"}
ACROSS, PIXELS = 8, 96  # examples in a row; a larger one is thinned: it is shown small
FIRST = " Of several trainings from other seeds, the first is shown."


def drawn_columns(block: Block) -> list[Column]:
    """The columns with a figure that there are numbers for."""
    known = {key for own in block.series for point in own.points for key in point.measures}
    return [column for column in block.columns.values() if column.title and column.key in known]


def headlines(block: Block) -> list[Column]:
    """The columns in which a network is called best."""
    return [column for column in block.columns.values() if column.headline]


def other_of(block: Block) -> str:
    """The name of the data out of domain, in quotes."""
    return f"“{block.first('ood')}”" if block.first("ood") else "another kind"


def again(block: Block, words: str) -> str:
    """Words where there are several trainings, which a figure does not average."""
    return words if any(point.over == "seeds" for own in block.main for point in own.points) else ""


# What is said of one run


@section("summary", "run")
def overview(block: Block, options: Options) -> list[Part]:
    """What was trained, what came of it, and the full, the chosen and the smallest network in numbers."""
    results, method, columns = block.runs[0].results, block.runs[0].method, headlines(block)
    rows, chosen = results["rows"], chosen_row(results)
    full = max(rows, key=lambda row: row["parameters"])
    classes = f", {len(results['data']['classes'])} classes" if results["data"].get("classes") else ""
    trained = TRAINED.get((method.get("sizes", ""), method.get("order", "")), "A network was trained on {images}.")
    at_one = " at one size" if (method.get("sizes") or "many") == "many" else ""
    where = f" at {len(rows)} sizes" if len(rows) > 1 else at_one
    lines = [f"{trained.format(images=images_of(results) + classes)} {of_split(results, where)}"]
    if chosen is not None:
        reason = f" ({results['chosen']['reason']})" if results["chosen"].get("reason") else ""
        known = [c for c in columns if chosen.get(c.key) is not None]
        numbers_of = [(c.heading, number(chosen[c.key], c), number(full.get(c.key), c)) for c in known]
        said = listed([f"{name} {value} ({whole} at full size)" for name, value, whole in numbers_of])
        lines.append(
            f"The chosen network, {chosen['label']}{reason}, has {short(chosen['parameters'])} parameters, "
            f"{_share(chosen, full)} of the full {short(full['parameters'])}. On these images it has {said}."
        )
    smallest = min(rows, key=lambda row: (row["parameters"], *(-row.get(column.key, 0) for column in columns[:1])))
    named = {"Full size": full, "Chosen": chosen, "Smallest": smallest} if len(rows) > 1 else {"The network": full}
    cards = []
    for name, row in named.items():
        if row is not None:
            share = f"{_share(row, full)} of the full size" if len(rows) > 1 else ""
            card = [
                Cell(f"{name}: {row['label']}, {row['kind']}"),
                Cell(f"{short(row['parameters'])} parameters", share),
            ]
            cards.append(card + [Cell(number(row.get(column.key), column), column.heading) for column in columns])
    return [Part("summary", "", "", [paragraphs(*lines), Items(cards, "cards")])]


@section("curves", "run")
def against_size(block: Block, options: Options) -> list[Part]:
    """Each measure of a run against its size."""
    results = block.runs[0].results
    if len(results["rows"]) == 1:
        return []  # one point is no curve; its numbers are said
    found = []
    for column in drawn_columns(block):
        if not column.chance and any(row.get(column.key) is not None for row in results["rows"]):
            drawing = Drawing(column.key, partial(one_run, results, column))
            found.append(Part(column.key, column.title, _with(column, block), [drawing], is_half=True))
    return found


def one_run(results: dict[str, Any], column: Column) -> Figure:
    """A measure against the number of parameters, the kinds of size as series; the chosen network is ringed."""
    figure, axis = half()
    rows = sorted((r for r in results["rows"] if r.get(column.key) is not None), key=lambda row: row["parameters"])
    shapes = {"uniform": (BLUE, "o", "-"), "learned": (ORANGE, "D", "--"), "sampled": (PURPLE, "*", ":")}
    for kind, (color, marker, line) in shapes.items():
        some = [row for row in rows if row["kind"] == kind]
        if some:
            places, values = [row["parameters"] for row in some], [column.factor * row[column.key] for row in some]
            look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": line, "markersize": 5, "zorder": 3}
            axis.plot(places, values, label=KINDS[kind][0], **look)
    chosen, full = chosen_row(results), max(results["rows"], key=lambda row: row["parameters"])
    if chosen is not None and chosen.get(column.key) is not None:
        label = f"chosen: {one_line(chosen['label'], 20)}, {short(chosen['parameters'])} parameters"
        look = {"marker": "o", "markersize": 13, "markerfacecolor": "none", "markeredgewidth": 2, "linestyle": "none"}
        place, value = chosen["parameters"], column.factor * chosen[column.key]
        axis.plot(place, value, color=GREEN, label=label, zorder=4, **look)
    size_axis(axis, [row["parameters"] for row in rows])
    tidy(axis)
    if full.get(column.key) is not None and not column.scaled:
        label = f"full size: {number(full[column.key], column)}"
        axis.axhline(column.factor * full[column.key], color=MUTED, linewidth=1, linestyle=":", label=label, zorder=1)
    axis.set_ylabel(column.axis)
    if column.better == "less":
        axis.set_ylim(bottom=0)
    legend(figure, axis)
    return figure


@section("numbers", "run")
def numbers(block: Block, options: Options) -> list[Part]:
    """Every size of a run in numbers; the units of each layer under a fold."""
    results = block.runs[0].results
    rows, chosen = results["rows"], chosen_row(results)
    columns = [column for key, column in block.columns.items() if any(row.get(key) is not None for row in rows)]
    kinds = {row["kind"] for row in rows}
    note = "".join(f"{words} " for kind, (_, words) in KINDS.items() if kind in kinds and len(rows) > 1)
    note += " ".join(f"{column.heading}: {_better(column)}." for column in columns if column.better)
    for column in [one for one in columns if one.key in {other.chance for other in columns}]:
        if len({number(row.get(column.key), column) for row in rows}) == 1:  # one number needs no column
            columns.remove(column)
            note += f" {column.heading}: {number(rows[0][column.key], column)}."
    lines = [[row["label"], row["kind"], *(number(row.get(c.key), c) for c in columns)] for row in rows]
    marked = tuple(index for index, row in enumerate(rows) if row is chosen)
    tables = [Table(["Network", "Kind", *(c.heading for c in columns)], lines, marked=marked)]
    shaped = [row for row in rows if row.get("shape")]
    if shaped:
        layers = dict.fromkeys(layer for row in shaped for layer in row["shape"])
        lines = [[layer, *(str(row["shape"].get(layer, NONE)) for row in shaped)] for layer in layers]
        tables.append(Table(["Layer", *(row["label"] for row in shaped)], lines, fold="Units kept in each layer"))
    return [Part("numbers", "All sizes in numbers" if len(rows) > 1 else "In numbers", note, tables)]


@section("examples", "run")
def examples(block: Block, options: Options) -> list[Part]:
    """The images a network is most and least sure of."""
    groups = {key: (block.first("examples") or {}).get(key) for key in EXAMPLES}
    shown = {EXAMPLES[key]: (some, key == "ood") for key, some in groups.items() if some}
    note = f"The images with the surest and the least sure answers, and images of {other_of(block)}, for which no "
    drawing = [Drawing("examples", partial(draw_examples, shown))] if shown else []
    return [Part("examples", "What it is sure of, and what it is not", f"{note}answer is right.", drawing)]


def draw_examples(shown: dict[str, tuple[list[dict[str, Any]], bool]]) -> Figure:
    """Images with prediction and confidence, a row a group; those of foreign groups have no right answer."""
    columns = min(ACROSS, max(len(group) for group, _ in shown.values()))
    figure, axes = canvas(1.35 * max(columns, 4), 2.15 * len(shown), columns=columns, ratios=(1,) * len(shown))
    for row, (name, (group, foreign)) in zip(axes, shown.items(), strict=True):
        for axis in row:
            axis.set_axis_off()
        for axis, example in zip(row, group, strict=False):
            image = np.asarray(example["image"], dtype=np.uint8)
            thin = -(-max(image.shape[:2]) // PIXELS)
            axis.imshow(image[::thin, ::thin], cmap="gray", vmin=0, vmax=255, interpolation="none")
            prediction, label = str(example["prediction"]), str(example.get("label") or "")
            right = prediction == label
            mark = "?" if foreign else "✓" if right else "✗"
            lines = [f"{mark} {one_line(prediction, 13)}", f"{100 * example['confidence']:.1f} % sure"]
            lines += [f"is {one_line(label, 14)}"] if label and not right else []
            color = PURPLE if foreign else INK if right else ORANGE
            for index, line in enumerate(lines):  # one by one, or the baselines differ from image to image
                place: dict[str, Any] = {"xytext": (0, -11 - 11 * index), "textcoords": "offset points"}
                axis.annotate(line, (0, 0), xycoords="axes fraction", color=color, fontsize=8.5, **place)
        row[0].text(0, 1.1, name, transform=row[0].transAxes, color=INK, fontsize=11, weight="bold")
    return figure


@section("training", "run")
def training(block: Block, options: Options) -> list[Part]:
    """What fell over the steps of training, and what it costs in a panel of its own, since its scale is."""
    curves = block.first("curves") or []
    known = [key for key in ("mse", "loss") if any(point.get(key) is not None for point in curves)][:1]
    note = "Over the steps of training, pale as it was and bold as a running mean."
    drawing = Drawing("training", partial(draw_training, curves, known[0])) if known else None
    return [Part("training", "Training", note, [drawing] if drawing else [], is_half=True)]


def draw_training(curves: list[dict[str, Any]], key: str) -> Figure:
    """Curves over the steps of training."""
    above = {"loss": ("loss", BLUE, "-"), "nll": ("negative log-likelihood", ORANGE, "--")}
    if key == "mse":
        above = {"mse": ("mean squared error", BLUE, "-")}
    below, words, look = ("rate", "rate", (ORANGE, "--")) if key == "mse" else ("kl", "KL term", (GREEN, "-."))
    has_below = any(point.get(below) is not None for point in curves)
    figure, axes = half(ratios=(2, 1) if has_below else (1,))
    for name, (label, color, line) in above.items():
        draw_curve(axes[0][0], curves, name, label, color, line)
    axes[0][0].set_ylabel("error of a pixel" if key == "mse" else "nats per image")
    if has_below:
        draw_curve(axes[1][0], curves, below, words, *look)
        axes[1][0].set_ylabel(f"{words.removesuffix(' term')} (nats)")
        axes[0][0].tick_params(labelbottom=False)
    axes[-1][0].set_xlabel("step")
    legend(figure, *axes[:, 0])
    return figure


def draw_curve(axis: Axes, curves: list[dict[str, Any]], key: str, label: str, color: str, line: str) -> None:
    """A running mean over the points themselves, pale; a few points are drawn as they are."""
    points = [(point["step"], point[key]) for point in curves if point.get(key) is not None]
    if not points:
        return
    steps, values = np.asarray(points, dtype=float).T
    window = max(1, len(values) // 40)
    if window > 1:
        axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        values = np.convolve(values, np.ones(window) / window, "valid")
        steps = steps[window // 2 :][: len(values)]
    marker = "o" if len(values) <= FEW else ""  # a line of one point cannot be seen
    axis.plot(steps, values, color=color, linestyle=line, marker=marker, markersize=3, label=label)
    tidy(axis)


# Who is best where


@section("summary", "top")
def glossary(block: Block, options: Options) -> list[Part]:
    """What the numbers mean."""
    split = block.runs[0].split
    said = {c.heading: c.description for c in block.columns.values() if c.description} | TERMS
    lines = [[Cell(name), Cell(text.format(split=split))] for name, text in said.items()]
    return [Part("words", "In plain words", "What the numbers below mean.", [Items(lines, "terms")])]


@section("summary", "page")
def summary(block: Block, options: Options) -> list[Part]:
    """Who is best at each place, what cutting costs, the places in numbers, and what the methods are."""
    columns, found = headlines(block), places(block)
    verdicts = []
    for place, points in found.items():
        if place != "one size" and len(points) > 1 and comparable(points):
            line = [Cell(f"{PLACES[place]}.", bold=True)]
            for column in columns:
                line += lead(block, points, column)
            verdicts.append(line)
    cut = [line for own in block.main if (line := _shrunk(own, found.get("quarter", {}).get(own.name)))]
    content: list[Table | Drawing | Items] = []
    if verdicts:
        content += [Items(verdicts), paragraphs(CHANCE)]
    content += [Items(cut)] if cut else []
    for place, points in found.items():
        best: dict[str, str] = {}
        for column in columns if comparable(points) and len(points) > 1 else ():
            ranked = best_of(block, points, column)
            best[column.key] = ranked[0][0].name if ranked else ""
        lines: list[list[Cell | str]] = []
        for name, point in points.items():
            cells = [measure(point, c, bold=best.get(c.key) == name) for c in columns]
            lines.append([name, point.label, *cells, short(point.parameters)])
        content.append(Table(["Method", "Size", *(c.heading for c in columns), "Parameters"], lines, PLACES[place]))
    about = []
    for own in block.series:
        said = own.method.get("about") or f"The method “{own.method['key']}”."
        said += (
            f" Here: {INFERENCE[own.inference][1]}."
            if INFERENCE[own.inference][1] and own.name != own.method["name"]
            else ""
        )
        over = sorted({point.over for point in own.points} - {""})
        runs = f"{len(own.runs)} run{'s' * (len(own.runs) > 1)}" + f"; intervals over {' and '.join(over)}" * bool(over)
        about.append([Cell(own.name), Cell(said, f"{runs}.")])
    content.append(Items(about, "terms", fold="What the methods are"))
    return [Part("summary", "Summary", BOLD, content)]


def places(block: Block) -> dict[str, dict[str, Point]]:
    """The points of a block that its summary speaks of, by place and by series.

    "smallest" is the narrowest of the widths, where there are several; "one size" what has no others.
    """
    found: dict[str, dict[str, Point]] = {"full": {}, "quarter": {}, "smallest": {}, "one size": {}}
    for own in block.series:
        widths = [point for point in own.of("uniform") if point.fraction is not None]
        if own.method.get("sizes") == "found" or not widths:
            if len(own.points) == 1:
                found["one size"][own.name] = own.points[0]
            continue
        for place, share in (("full", WHOLE), ("quarter", QUARTER)):
            near = min(widths, key=lambda point: abs((point.fraction or 0) - share))
            if abs((near.fraction or 0) - share) < NEAR:
                found[place][own.name] = near
        if len(widths) > 1:
            found["smallest"][own.name] = min(widths, key=lambda point: point.fraction or 0)
    return {place: points for place, points in found.items() if points}


def comparable(points: dict[str, Point]) -> bool:
    """Whether points are of one width, so that the best of them is best at something."""
    shares = [point.fraction for point in points.values()]
    return None not in shares and max(shares) - min(shares) < 2 * NEAR  # type: ignore[operator, type-var]


def answering(series: Sequence[Series]) -> list[Series]:
    """The series whose answers differ: a scaled one has those of another one of its runs, and other confidences."""
    other = {id(run) for own in series if own.inference != "temperature_scaled" for run in own.runs}
    return [
        own for own in series
        if own.inference != "temperature_scaled" or any(id(run) not in other for run in own.runs)
    ]  # fmt: skip


def best_of(block: Block, points: dict[str, Point], column: Column) -> list[tuple[Series, Point]]:
    """Some points from the best in a column to the worst; without those that give another's answers."""
    some = [own for own in block.series if own.name in points and column.key in points[own.name].measures]
    named = [(own, points[own.name]) for own in (some if column.scaled else answering(some))]
    sign = -1 if column.better == "more" else 1
    return sorted(named, key=lambda pair: sign * pair[1].measures[column.key].mean)


def verdict(first: Interval, second: Interval) -> str:
    """Whether the difference of two means is more than chance may make."""
    if min(first.count, second.count) < 2:
        return "single"
    return "overlap" if first.low <= second.high and second.low <= first.high else "apart"


def lead(block: Block, points: dict[str, Point], column: Column) -> list[Cell]:
    """The best of some points in a column, who is next, and what their difference is worth."""
    ranked = best_of(block, points, column)
    if not ranked:
        return []
    (best, point), *others = ranked
    found = [Cell(f" {column.headline}: "), Cell(best.name, bold=True), Cell(", "), measure(point, column)]
    if not others:
        return [*found, Cell(" (no other to compare with).")]
    said = VERDICTS[verdict(point.measures[column.key], others[0][1].measures[column.key])]
    return [*found, Cell(f"; next {others[0][0].name}, "), measure(others[0][1], column), Cell(f" ({said}).")]


def _shrunk(own: Series, quarter: Point | None) -> list[Cell]:
    """What a nested network loses when it is cut; nothing where it has one width."""
    widths = [point for point in own.of("uniform") if point.fraction is not None]
    column = next((c for c in own.columns.values() if c.headline), None)
    if own.is_separate or len(widths) < 2 or column is None:
        return []
    full, small = widths[-1], quarter if quarter is not None and quarter is not widths[-1] else widths[0]
    before, after = (point.mean(column.key) for point in (full, small))
    return [
        Cell(own.name, bold=True),
        Cell(
            f" runs at {len(own.points)} sizes. Cut to {small.label} of the width it keeps "
            f"{100 * small.parameters / full.parameters:.3g} % of its {short(full.parameters)} parameters; "
            f"{column.heading} goes from {number(before, column)} to {number(after, column)}."
        ),
    ]


@section("efficiency", "page")
def efficiency(block: Block, options: Options) -> list[Part]:
    """What little networks can do, and what they use; the order is the paper's."""
    lines = efficiencies(block)
    columns = [c for key in ("accuracy", "ece", "auroc", "aupr") if (c := block.columns.get(key))]
    table: list[list[Cell | str]] = [
        [name, p.label, *(measure(p, c) for c in columns), short(p.parameters), used] for name, p, used in lines
    ]
    rates = {number(p.mean(c.chance), c) for _, p, _ in lines for c in columns if c.chance and c.chance in p.measures}
    chance = f"By chance, AUPR would be {' or '.join(sorted(rates))}." if rates else ""
    head = ["Network", "Size", *(c.heading for c in columns), "Parameters", "Weight usage"]
    return [Part("efficiency", "What small networks can do", EFFICIENCY, [Table(head, table, note=chance)])]


def efficiencies(block: Block) -> list[tuple[str, Point, str]]:
    """Name, point and weight usage of the smallest networks.

    Paper: the table of performance with limited parameters. The usage is of the method's own largest network.
    """
    lines: list[tuple[int, str, Series, Point]] = []
    for own in block.series:
        if own.inference == "temperature_scaled":
            continue  # other confidences, not another network
        nested = own.method.get("order") == "learned" and not is_certain(own.method)  # as the paper's own
        rank = (0 if own.main else 5) if nested else 1 if own.method.get("sizes") == "found" else 4
        uniform, learned = own.of("uniform"), own.of("learned") if own.main else []
        lines += [(rank, f"smallest {own.name}" if len(uniform) > 1 else own.name, own, p) for p in uniform[:1]]
        lines += [(rank, f"smallest learned {own.name}", own, p) for p in learned[:1]]
        lines += [(2, own.name, own, p) for p in own.of("sampled")]
        if nested and own.main:
            lines += [(3, f"full {own.name}", own, p) for p in uniform[-1:] if len(uniform) > 1]
    found = []
    for _, name, own, point in sorted(lines, key=lambda line: line[0]):
        full, std = point.mean("dense_parameters") or own.dense, point.mean("usage_std")
        used = f"{100 * point.parameters / full:.3g} %"
        if std is not None:
            used = f"{100 * point.parameters / full:.0f} ± {100 * std / full:.0f} %"
        found.append((name, point, used))
    return found


@section("times", "page")
def times(block: Block, options: Options) -> list[Part]:
    """What training and testing took."""
    lines: list[list[Cell | str]] = []
    for own in block.series:
        train, trainings = training_time(own)
        tested = own.of("uniform", "sampled", having="test_seconds")
        widest = max(tested, key=lambda point: point.parameters, default=None)
        test = Cell(NONE)
        if widest is not None:
            test = Cell(duration(widest.measures["test_seconds"].mean), f"({widest.label})")
        machines = ", ".join(dict.fromkeys(run.results.get("machine") or "not said" for run in own.runs))
        many = f"N = {trainings}" if trainings > 1 else ""
        one_pass = is_certain(own.method) and own.inference != "temperature_scaled"
        way = "one pass" if one_pass else INFERENCE[own.inference][0]
        lines.append([own.name, Cell(NONE if train is None else duration(train), many), test, way, machines])
    known = any(cell.text != NONE for line in lines for cell in line[1:3] if isinstance(cell, Cell))
    table = Table(["Method", "Training", "Testing", "Inference", "Machine"], lines)
    return [Part("times", "Time", TIMES.format(split=block.runs[0].split), [table] if known else [])]


def training_time(own: Series) -> tuple[float | None, int]:
    """Seconds of all trainings that a series needs, and how many these are; None where a file does not say.

    Paper: the table of training and testing time.
    """
    trained: dict[Hashable, list[float]] = {}
    for run in own.runs:
        size = size_of(run.rows[0], separate=True) if own.is_separate else ""
        seconds = (run.results.get("seconds") or {}).get("train")
        trained.setdefault(size, []).extend([] if seconds is None else [seconds])
    known = [sum(values) / len(values) for values in trained.values() if values]
    return sum(known) if len(known) == len(trained) else None, len(trained)


# Methods at the same number of parameters


@section("summary", "markdown")
def budget(block: Block, options: Options) -> list[Part]:
    """The table of methods at some numbers of parameters, and that of all sizes of the first run's method."""
    split, own = block.runs[0].split, headline(block)
    other = block.first("ood") or "unfamiliar"
    bins = {len(one["count"]) for run in block.runs for one in run.results.get("reliability") or []}
    said = BUDGET.format(split=split, bins=f", {bins.pop()} bins" if len(bins) == 1 else "")
    sizes = EVERY_SIZE.format(name=own.name, split=split, other=other)
    return [
        Part("methods", "", said if split == "test" else f"{said} {NOT_TEST}", [methods(block, options.sizes, other)]),
        Part("sizes", "", sizes, [every_size(block, own)]),
    ]


def headline(block: Block) -> Series:
    """The main series of the run that was given first."""
    return next(own for own in block.main if block.runs[0] in own.runs)


def budget_lines(block: Block) -> list[tuple[str, Series, tuple[str, ...]]]:
    """The rows of the table of methods: name, series and kinds; of one training a size, widths and shapes apart."""
    found = []
    for own in block.series:
        kinds = dict.fromkeys(point.kind for point in own.points)
        parts = [(kind,) for kind in ("uniform", "learned") if kind in kinds]
        for part in parts if own.is_separate else [tuple(kinds)]:
            shaped = own.is_separate and part == ("learned",)
            found.append((f"{own.name} at learned shapes" if shaped else own.name, own, part))
    return found


def methods(block: Block, sizes: Sequence[float], other: str) -> Table:
    """One row a method: accuracy at each size, the full network, calibration at worst, seeds and time."""
    rows, columns = budget_lines(block), block.columns
    learned = any(own.of("learned") for _, own, kinds in rows if "learned" in kinds)
    head = ["Method", *(f"≤ {short(size)}" for size in sizes), "Full", "Worst ECE"]
    head += [*["Worst ECE, learned shapes"] * learned, f"AUROC, {other}", "NLL", "Seeds", "Training"]
    lines = []
    for name, own, kinds in rows:
        line = [Cell(name), *(_fit(own, kinds, size) for size in sizes)]
        whole = [p for p in own.of(*kinds) if (p.fraction or 0) >= 1 - 1e-6 or p.is_drawn]
        full = max(whole, key=lambda point: point.parameters, default=None)
        if full is None:
            line.append(Cell(NONE))
        else:
            line.append(_seeded(full, columns["accuracy"], short(full.parameters) + " on average" * full.is_drawn))
        for some in (kinds, *[[kind for kind in kinds if kind == "learned"]] * learned):
            known = own.of(*some) if some else []
            worst = max(known, key=lambda point: point.measures["ece"].mean, default=None)
            shaped = worst is not None and own.is_separate and worst.kind == "learned"
            label = "" if worst is None else short(worst.parameters) if shaped else worst.label
            line.append(Cell(NONE) if worst is None else _seeded(worst, columns["ece"], label))
        line += [Cell(NONE) if full is None else _seeded(full, columns[key]) for key in ("auroc", "nll")]
        counts = [_count(point) for point in own.of(*kinds)]
        seconds, count = training_time(own)
        took = NONE if seconds is None else duration(seconds / count) + f" ×\u00a0{count}" * (count > 1)
        seeds = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} … {max(counts)}"
        lines.append([*line, Cell(seeds), Cell(took)])
    return Table(head, lines)


def within(own: Series, kinds: Sequence[str], size: float) -> Point | None:
    """The largest network of each training that has no more parameters than `size`; None where none has so few.

    Of a method that learns shapes it is one of these. Random masks fit no size: they reach to the full network.
    """
    kind = "learned" if "learned" in kinds else "uniform"
    chosen: Rows
    if own.is_separate:  # a size is as large in every run, and not every seed need have every size
        fit = [point for point in own.of(kind) if _most(point.rows) <= size]
        chosen = max((point.rows for point in fit), key=_most, default=[])
    else:
        chosen = []
        for run in own.runs:
            some = [r for r in rows_of(run, own.inference) if r["kind"] == kind and r["parameters"] <= size]
            best = max(some, key=lambda row: row["parameters"], default=None)
            chosen += [[row for row in some if row["label"] == best["label"]]] if best else []
    return point_of(chosen) if chosen else None


def every_size(block: Block, own: Series) -> Table:
    """One row a size of a series, beside the plain network of the same shape where there is one."""
    beside = [twin(block, own, point) for point in own.points]
    keys = [key for key in ("accuracy", "ece", "nll", "auroc", "aupr", "aurc") if own.of(having=key)]
    columns = [block.columns.get(key) or Column(key, key.upper(), "percent") for key in keys]
    heads = []
    for column in columns:
        rates = {f"{100 * p.measures[column.chance].mean:.1f}" for p in own.of(having=column.chance or "none")}
        heads.append(column.heading.partition(" (")[0] + (f", by chance {rates.pop()}" if len(rates) == 1 else ""))
    head = ["Size", "Parameters", "Multiply-adds", *heads]
    head += ["Plain, same shape", "Difference"] if any(beside) else []
    lines = []
    for point, found in zip(own.points, beside, strict=True):
        label = f"{point.label}, learned" if point.kind == "learned" else point.label
        macs = point.mean("macs")
        line = [Cell(label), Cell(short(point.parameters)), Cell(NONE if macs is None else short(macs))]
        line += [_seeded(point, column) for column in columns]
        if found is not None:
            accuracy, gain, runs = found
            few = f"{runs} of {_count(point)} seeds" if runs < _count(point) else ""
            line += [_spread(accuracy, columns[0], few), _spread(gain, columns[0], sign="+")]
        lines.append(line if found is not None or not any(beside) else [*line, Cell(NONE), Cell(NONE)])
    return Table(head, lines)


def twin(block: Block, own: Series, point: Point) -> tuple[Interval, Interval, int] | None:
    """Reference networks of the shapes of a size, trained for themselves, known by parameters and multiply-adds.

    Their accuracy, how much more accurate the networks of the size are (over shapes where trainings have shapes of
    their own), and how many trainings of the size have one.
    """
    theirs: dict[Hashable, Point] = {}
    for other in block.main:
        if other.method.get("reference") and other is not own:
            for one in other.points:
                theirs.setdefault(_shape(one.rows[0][0]), one)
    alike: dict[Hashable, Rows] = {}  # trainings by shape: uniform widths have one, learned shapes one each
    for run in point.rows:
        if _shape(run[0]) in theirs:
            alike.setdefault(_shape(run[0]), []).append(run)
    if not alike:
        return None
    found = [theirs[shape].measures["accuracy"] for shape in alike]
    ours = [point_of(runs).measures["accuracy"] for runs in alike.values()]
    gain = confidence_interval([one.mean - other.mean for one, other in zip(ours, found, strict=True)])
    accuracy = found[0] if len(found) == 1 else confidence_interval([one.mean for one in found])
    return accuracy, gain, sum(map(len, alike.values()))


def _fit(own: Series, kinds: Sequence[str], size: float) -> Cell:
    found = within(own, kinds, size)
    if found is None:
        return Cell(NONE)
    sizes = [row["parameters"] for rows in found.rows for row in rows]
    low, high = short(float(min(sizes))), short(float(max(sizes)))
    few = found.seeds < len(own.runs) and not own.is_separate
    said = (low if low == high else f"{low} … {high}") + f", {found.seeds} of {len(own.runs)} runs" * few
    return _seeded(found, own.columns["accuracy"], said)


def _seeded(point: Point, column: Column, below: str = "") -> Cell:
    """A measure to one digit more; its interval only where it is over seeds: repeats say nothing of other trainings."""
    found = point.measures.get(column.key)
    if found is None:
        return Cell(NONE, below, below=True)
    alone = point.over != "seeds"
    return _spread(Interval(found.mean, found.mean, found.mean, 1) if alone else found, column, below)


def _spread(found: Interval, column: Column, below: str = "", sign: str = "") -> Cell:
    digits = 2 if column.factor == 100 else 3
    reach = f" ±\u00a0{column.factor * (found.high - found.low) / 2:.{digits}f}" if found.count > 1 else ""
    return Cell(f"{column.factor * found.mean:{sign}.{digits}f}{reach}", below, below=True)


def _count(point: Point) -> int:
    """How many trainings a point rests on."""
    return point.measures["accuracy"].count if point.over == "seeds" else 1


def _shape(row: dict[str, Any]) -> Hashable:
    """What tells shapes of a network apart without the shape itself, which not all rows have."""
    return row["parameters"], row.get("macs")


def _most(rows: Rows) -> float:
    return max(float(row["parameters"]) for run in rows for row in run)


def _share(row: dict[str, Any], full: dict[str, Any]) -> str:
    return f"{100 * row['parameters'] / full['parameters']:.3g} %"


def _better(column: Column) -> str:
    return f"{column.better} is better"


def _with(column: Column, block: Block) -> str:
    return column.description.format(split=block.runs[0].split)


# Figures over sizes


@section("curves", "page", "markdown")
def curves(block: Block, options: Options) -> list[Part]:
    """Each measure of all series over sizes."""
    found = []
    for index, column in enumerate(drawn_columns(block)):
        on_page, note = options.view == "page", _with(column, block)
        if not on_page and (column.chance or column.better == ""):
            continue
        draw = over_sizes if on_page else over_parameters
        heading = column.title if on_page else f"{column.title}, over parameters"
        note += (CURVE if on_page else OVER) * (index == 0)
        drawing = Drawing(f"{options.prefix}{column.key}", partial(draw, block.series, column))
        found.append(Part(column.key, heading, note.strip(), [drawing]))
    return found


def over_sizes(series: Sequence[Series], column: Column) -> Figure:
    """A measure of all series against width, on the left, and against parameters; bands are confidence intervals.

    Learned shapes have their own lines, on the right, and of main series only.
    """
    styles, series = looks(series), series if column.scaled else answering(series)
    figure, (left, right) = canvas(WIDE, HEIGHT, columns=2)
    right.sharey(left)
    for own in series:
        known = own.of(having=column.key)
        shares = sorted((p for p in known if p.fraction is not None), key=lambda p: p.fraction or 0)
        look = styles[own.name]
        _line(left, [p.fraction or 0 for p in shares], shares, column, own.name, look)
        for kind in ("uniform", "learned", "sampled") if own.main else ("uniform", "sampled"):  # enough lines as it is
            some, label = [point for point in known if point.kind == kind], own.name
            if kind == "learned":
                label = f"{own.name}, learned" if len(series) <= MANY else "_"  # the caption says what is hollow
            _line(right, [p.parameters for p in some], some, column, label, look, hollow=kind == "learned")
    known = [p for own in series for p in own.of(having=column.key)]
    _width_axis(left)
    size_axis(right, [p.parameters for p in known])
    left.set_ylabel(column.axis)
    _limit(left, [column.factor * p.measures[column.key].mean for p in known])
    right.tick_params(labelleft=False)
    rates = [p.measures[column.chance].mean for p in known if column.chance in p.measures]
    if rates and max(rates) - min(rates) < 1e-4:  # what chance gives; the axis keeps to the measured numbers
        limits = left.get_ylim()
        left.axhline(100 * rates[0], color=MUTED, linewidth=1, linestyle=":", zorder=1)
        left.set_ylim(limits)
        left.set_ylabel(f"{left.get_ylabel()}, by chance {100 * rates[0]:.1f}")
    for axis in (left, right):
        tidy(axis)
    figure.set_figheight(HEIGHT + ROW * legend(figure, right, left))
    return figure


def over_parameters(series: Sequence[Series], column: Column) -> Figure:
    """A measure of main series against parameters, on one axis; learned shapes have hollow markers.

    Scaled ones are there where confidence itself is measured, unless there are too many series.
    """
    styles = looks(series)
    scaled = [own for own in series if own.main or (own.inference == "temperature_scaled" and column.better == "less")]
    shown = scaled if len(scaled) <= MANY else [own for own in scaled if own.main]
    shown = [own for own in shown if own.of(having=column.key)]
    figure, axis = canvas(PAGE, HEIGHT)
    for own in shown:
        for kind in dict.fromkeys(point.kind for point in own.points):
            some, is_learned = own.of(kind, having=column.key), kind == "learned"
            label = f"{own.name}, learned" if is_learned else own.name
            _line(axis, [p.parameters for p in some], some, column, label, styles[own.name], is_learned)
    known = [point for own in shown for point in own.of(having=column.key)]
    size_axis(axis, [point.parameters for point in known])
    axis.set_ylabel(column.axis)
    _limit(axis, [column.factor * point.measures[column.key].mean for point in known])
    tidy(axis)
    figure.set_figheight(HEIGHT + ROW * legend(figure, axis))
    return figure


def _line(
    axis: Axes, at: list[float], shown: list[Point], column: Column, label: str, look: Look, hollow: bool = False
) -> None:
    """A series with its band; one point is a larger marker, with bars in the place of the band."""
    if not shown:
        return
    color, marker, line = look
    found = [point.measures[column.key] for point in shown]
    mean, low, high = ([column.factor * getattr(one, part) for one in found] for part in ("mean", "low", "high"))
    if column.factor == 100:
        high = [min(100, x) for x in high]  # what can be
    low = [max(0.0, x) for x in low]
    style: dict[str, Any] = {"color": color, "marker": marker, "label": one_line(label, 60), "zorder": 3}
    if len(shown) == 1:
        across = (shown[0].mean("usage_std") or 0) if axis.get_xscale() == "log" or at[0] > 1 else 0
        reach = [[mean[0] - low[0]], [high[0] - mean[0]]] if found[0].count > 1 else None
        sides = [[min(across, 0.9 * at[0])], [across]] if across else None
        axis.errorbar(at, mean, yerr=reach, xerr=sides, linestyle="none", markersize=9, elinewidth=1.2, **style)
        return
    if hollow:
        style |= {"markerfacecolor": "white", "linestyle": (0, (2, 1.5)), "linewidth": 1.2, "markersize": 5.5}
    else:
        style |= {"linestyle": line, "linewidth": 1.7, "markersize": 5.5}
    axis.plot(at, mean, **style)
    if any(one.count > 1 for one in found):
        axis.fill_between(at, low, high, color=color, alpha=0.13, linewidth=0, zorder=1)


def _limit(axis: Axes, means: list[float]) -> None:
    """Keep to the means and a part of the bands: over two seeds a band may be ten times as wide as all else."""
    room = 0.3 * (max(means) - min(means)) or 0.05 * abs(means[0]) or 1.0
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, min(means) - room), min(high, max(means) + room))


def _width_axis(axis: Axes) -> None:
    axis.set_xlabel("width (% of every layer)")
    axis.set_xlim(0, 1.04)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100"])


@section("statistics", "page")
def statistics(block: Block, options: Options) -> list[Part]:
    """What more images for BatchNorm's statistics are worth."""
    some = [own for own in block.main if len(image_counts(own)) > 1]
    drawings = each(some, "statistics", draw_statistics, options.prefix)
    return [Part("statistics", "How many images BatchNorm's statistics need", STATISTICS, drawings)]


def image_counts(own: Series) -> list[int]:
    """The numbers of images that BatchNorm's statistics were collected from, as its runs say; 0, all, last."""
    found = {row.get("bn_images") for run in own.runs for row in run.rows if row["inference"] == own.inference}
    return sorted((count for count in found if count is not None), key=lambda count: (count == 0, count))


def draw_statistics(own: Series) -> Figure:
    """The first two drawn columns against width, for every number of images that BatchNorm's statistics are of.

    Paper: the appendix on less data for batch-norm statistics. A band reaches from the worst repeat to the best,
    on average over runs.
    """
    columns = [column for column in own.columns.values() if column.title and own.of(having=column.key)][:2]
    figure, axes = canvas(WIDE, 4.2, columns=2)
    for index, count in enumerate(image_counts(own)):
        runs = [rows for run in own.runs if (rows := rows_of(run, own.inference, count))]
        sizes = sorted((p for p in points_of(runs) if p.fraction is not None), key=lambda p: p.fraction or 0)
        color, marker, _ = LOOKS_OF_SIZES[index % len(LOOKS_OF_SIZES)]
        label = "all images" if count == 0 else f"{count:,} images"
        for axis, column in zip(axes, columns, strict=False):
            shares, key, factor = [p.fraction or 0 for p in sizes], column.key, column.factor
            values = [factor * p.measures[key].mean for p in sizes]
            axis.plot(shares, values, color=color, marker=marker, label=label)
            ends = []
            for end in (min, max):  # the outermost repeat of a size, averaged over runs: what draws do, not seeds
                found = [[end(r[key] for r in rows) for rows in p.rows] for p in sizes]
                ends.append([factor * sum(values) / len(values) for values in found])
            axis.fill_between(shares, *ends, color=color, alpha=0.15, linewidth=0)
    for axis, column in zip(axes, columns, strict=False):
        _width_axis(axis)
        axis.set_ylabel(column.axis)
        tidy(axis)
    title(axes[0], own.name)
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    legend(figure, axes[0])
    return figure


# What was learned


def length_probs(survival: Sequence[float]) -> list[float]:
    r"""$P(\text{length} = j)$ for j = 0 … n, from $P(\text{unit } j \text{ is kept})$: differences of neighbors.

    >>> length_probs([1.0, 0.75, 0.25])
    [0.0, 0.25, 0.5, 0.25]
    """
    steps = [1.0, *survival, 0.0]
    return [max(0.0, before - after) for before, after in pairwise(steps)]


def learned_layers(own: Series) -> dict[str, list[float]]:
    """Length probabilities of each layer of the first run; none where lengths are fixed: all alike, or certain."""
    layers = {name: length_probs(probs) for name, probs in (own.runs[0].results.get("survival") or {}).items()}
    learned = any(
        1e-3 < max(probs) < 0.999 and np.ptp([p for p in probs if p > 1e-6]) > 1e-3 for probs in layers.values()
    )
    return layers if learned else {}


@section("survival", "run", "page", "markdown")
def survival(block: Block, options: Options) -> list[Part]:
    """What a network learned to keep: unit by unit for one run, and how many for many."""
    heading = "What the network learned to keep"
    if options.view == "page":
        drawings = each([own for own in block.main if learned_layers(own)], "lengths", tail_index, options.prefix)
        return [Part("lengths", "How many units each layer keeps", LEARNED.format(again=again(block, FIRST)), drawings)]
    own = headline(block)
    layers = own.runs[0].results.get("survival")
    known = learned_layers(own) if options.view == "markdown" else layers and own.method.get("order") != "fixed"
    whose = f" of {own.name}, of its first run" if options.view == "markdown" else ""
    drawing = Drawing(f"{options.prefix}survival", partial(draw_survival, layers)) if known and layers else None
    return [Part("survival", heading, SURVIVAL.format(whose=whose), [drawing] if drawing else [])]


def draw_survival(layers: dict[str, list[float]]) -> Figure:
    """Probability that each unit is kept, one row a layer, with the expected number of units beside it."""
    units = max(len(probs) for probs in layers.values())
    table = np.full((len(layers), units), np.nan)
    for row, probs in enumerate(layers.values()):
        table[row, : len(probs)] = probs
    figure, axis = canvas(WIDE, 1.5 + 0.3 * len(layers))
    edges = np.arange(units + 1) + 0.5
    mesh = axis.pcolormesh(edges, np.arange(len(layers) + 1) - 0.5, np.ma.masked_invalid(table), vmin=0, vmax=1)
    mesh.set(cmap="cividis", edgecolor="white", linewidth=0.6)
    axis.set_yticks(range(len(layers)), [one_line(name, 28) for name in layers])
    axis.invert_yaxis()
    step = next(step for step in (1, 2, 4, 8, 16, 32, units) if units / step <= 34)
    axis.set_xticks([unit for unit in range(1, units + 1) if unit == 1 or unit % step == 0])
    axis.set_xlabel("unit, in the order learned (a unit is a group of channels)", color=INK, fontsize=10)
    expected = axis.secondary_yaxis("right")
    expected.set_yticks(range(len(layers)), [f"{sum(probs):.1f} of {len(probs)}" for probs in layers.values()])
    expected.set_ylabel("units kept on average", color=INK, fontsize=10)
    bar = figure.colorbar(mesh, ax=axis, pad=0.02, aspect=max(8, 3 * len(layers)))
    bar.set_label("P(unit is kept)", color=INK, fontsize=10)
    for scale in (axis, expected, bar.ax):
        scale.tick_params(colors=INK, labelsize=9, length=0)
        for spine in scale.spines.values():
            spine.set_visible(False)
    bar.outline.set_visible(False)
    return figure


def tail_index(own: Series) -> Figure:
    """How many units a layer keeps, as learned, after two laws of the literature that are fixed for all layers.

    Paper: the first figure, on the probabilities of the tail index.
    """
    layers = learned_layers(own)
    fixed = theory.fixed_lengths(max(len(probs) for probs in layers.values()) - 1)
    shown = [
        *((name, probs, MUTED) for name, probs in fixed.items()),
        *((n, probs, BLUE) for n, probs in layers.items()),
    ]
    few = len(shown) <= 12
    figure, axes = panels(len(shown), 4 if few else 6, 1.75)
    for axis, (name, probs, color) in zip(axes, shown, strict=True):
        axis.bar(range(len(probs)), probs, color=color, width=0.9)
        title(axis, name, 26 if few else 19, 9.5)
        note = f"mean {sum(j * p for j, p in enumerate(probs)):.1f} of {len(probs) - 1}"
        axis.text(0.03, 0.97, note, transform=axis.transAxes, color=INK, fontsize=8, va="top", zorder=5)
        axis.set_ylim(0, 1.22 * max(probs))  # room for the note
        axis.set_xlim(-0.7, len(probs) - 0.3)
        axis.locator_params(axis="y", nbins=3)
        axis.locator_params(axis="x", nbins=5, integer=True)
        tidy(axis)
    figure.supxlabel("units kept", color=INK, fontsize=10)
    figure.supylabel("probability", color=INK, fontsize=10)
    return figure


@section("correlation", "page")
def correlation(block: Block, options: Options) -> list[Part]:
    """How alike the uncertainties of two widths are: Pearson's correlation of their entropies, mean over runs."""
    some = [own for own in block.main if own.first("correlation")]
    means = " Of several trainings from other seeds, the mean is shown, of those with the sizes of the first."
    note = CORRELATION.format(other=other_of(block), again=again(block, means))
    drawings = each(some, "correlation", lambda own: heat_maps(*mean_correlation(own), own.name), options.prefix)
    return [Part("correlation", "Do small networks doubt the same images?", note, drawings)]


def mean_correlation(own: Series) -> tuple[list[str], dict[str, Any]]:
    """Labels and the mean matrices in and out of domain, of the runs that have the labels of the first."""
    found = [run.results["correlation"] for run in own.runs if run.results.get("correlation")]
    labels: list[str] = found[0]["labels"]
    alike = [one for one in found if one["labels"] == labels]
    maps = {}
    for key, name in (("inside", "in domain"), ("outside", "out of domain")):
        tables = [np.asarray(one[key], dtype=float) for one in alike if one.get(key)]
        if tables:
            maps[name] = np.mean(tables, axis=0)
    return labels, maps


def heat_maps(labels: Sequence[str], maps: dict[str, Any], name: str) -> Figure:
    """Correlations of pairs as colored squares, a panel a map.

    Args:
        labels: What the rows and the columns of each map are.
        maps: A square table of correlations for each name of a map; NaN where there is none.
        name: Whose they are: the beginning of each heading.
    """
    lowest = min(float(np.nan_to_num(one).min()) for one in maps.values())
    low = lowest if lowest < -0.05 else 0.0
    figure, axes = panels(len(maps), 2, 4.3)
    figure.set_layout_engine("compressed")  # squares need not fill the page
    mesh = None
    for axis, (part, table) in zip(axes, maps.items(), strict=True):
        mesh = axis.imshow(table, vmin=low, vmax=1, cmap="cividis")
        for (row, column), value in np.ndenumerate(table) if len(labels) <= MANY else ():
            dark = (value - low) / (1 - low) < 0.55
            words = NONE if np.isnan(value) else f"{value:.2f}"
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5 if len(labels) <= 8 else 7}
            axis.text(column, row, words, color="white" if dark else INK, **look)
        title(axis, f"{name}, {part}", 44)
        names = [one_line(label, 10) for label in labels]
        axis.set_xticks(range(len(labels)), names, rotation=45 if len(labels) > 5 else 0)
        axis.set_yticks(range(len(labels)), names)
        axis.tick_params(colors=INK, labelsize=9, length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, shrink=0.85)  # type: ignore[arg-type]
    bar.set_label("correlation", color=INK, fontsize=10)
    bar.ax.tick_params(colors=INK, labelsize=9, length=0)
    bar.outline.set_visible(False)
    return figure


# What a network can be trusted with


@section("trust", "run", "page")
def trust(block: Block, options: Options) -> list[Part]:
    """Answers withheld, and narrow networks first."""
    withholding = [own for own in block.main if answers(own)]
    growing = [own for own in block.main if own.runs[0].results.get("cascade")]
    first = " Of several trainings from other seeds, the curves are of the first; the numbers are means."
    alone, notes = options.view == "run", [SELECTIVE, CASCADE]
    split = block.runs[0].split
    said = [
        note.format(split=split, again=again(block, more)) for note, more in zip(notes, (first, FIRST), strict=True)
    ]
    shown: list[Table | Drawing | Items] = []
    if withholding:
        shown.append(Drawing(f"{options.prefix}selective", partial(draw_selective, withholding)))
    shown += [] if alone else withheld(block)
    grown = [Drawing(f"{options.prefix}cascade", partial(draw_cascade, growing))] if growing else []
    return [
        Part("selective", "Answering only when sure", said[0], shown, is_half=alone),
        Part("cascade", "Narrow networks first", said[1], grown, is_half=alone),
    ]


def answers(own: Series) -> list[dict[str, Any]]:
    """The sizes that have a curve of errors against answers."""
    return [row for row in own.parts("selective") if row.get("curve")]


def draw_selective(series: Sequence[Series]) -> Figure:
    """Errors among the answers given against the share of images answered, a panel a series."""
    figure, axes = _panels(series)
    for axis, own in zip(axes, series, strict=True):
        for row, (color, marker, line) in zip(spread_out(answers(own), CURVES), LOOKS_OF_SIZES, strict=False):
            share, risk = (np.asarray(row["curve"][key], dtype=float) for key in ("coverage", "risk"))
            kept = np.unique(np.linspace(0, len(share) - 1, DRAWN).round().astype(int))
            label = one_line(row["label"], 14)
            axis.plot(100 * share[kept], 100 * risk[kept], color=color, linestyle=line, label=label, linewidth=1.6)
            if row.get("risk") is not None:
                spot: dict[str, Any] = {"marker": marker, "markersize": 8, "markeredgecolor": INK, "linestyle": "none"}
                axis.plot(100 * row["coverage"], 100 * row["risk"], color=color, zorder=4, **spot)
        axis.axhline(100 * own.first("selective")["risk"], color=MUTED, linestyle=":", linewidth=1.2)
        axis.set_xlabel("images answered (%)")
        axis.set_xlim(0, 103)
        axis.legend(edgecolor="none", fontsize=8.5, labelcolor=INK)
        tidy(axis)
    for axis in axes[::3]:
        axis.set_ylabel("wrong among these (%)")
    axes[0].set_ylim(bottom=0)  # of all, once all are drawn
    return figure


def draw_cascade(series: Sequence[Series]) -> Figure:
    """Accuracy against the mean cost of an answer, of narrow networks first, a panel a series; of its first run."""
    figure, axes = _panels(series)
    styles = looks(series) if len(series) > 1 else {series[0].name: (BLUE, "o", "-")}
    for axis, own in zip(axes, series, strict=True):
        found, (color, marker, _) = own.runs[0].results["cascade"], styles[own.name]
        curve, single = (sorted(found[key], key=lambda point: point["macs"]) for key in ("curve", "single"))
        costs, alone = [point["macs"] for point in curve], [point["macs"] for point in single]
        right = [100 * point["accuracy"] for point in curve]
        axis.plot(costs, right, color=color, linewidth=2, label="narrow first", zorder=3)
        look: dict[str, Any] = {"color": MUTED, "marker": marker, "markersize": 6, "markerfacecolor": "white"}
        values = [100 * point["accuracy"] for point in single]
        axis.plot(alone, values, linestyle="--", linewidth=1, label="one size alone", **look)
        size_axis(axis, [*costs, *alone], "multiply-adds an image (log scale)")
        axis.legend(edgecolor="none", fontsize=8.5, labelcolor=INK)
        tidy(axis)
    for axis in axes[::3]:
        axis.set_ylabel("accuracy (% of images)")
    return figure


def _panels(series: Sequence[Series]) -> tuple[Figure, list[Axes]]:
    """A panel for each series with its name; one of its own is as large as half a page, and needs none."""
    if len(series) == 1:
        figure, axis = half()
        return figure, [axis]
    figure, axes = panels(len(series), 3, 3.5, share=True)
    for axis, own in zip(axes, series, strict=True):
        title(axis, own.name, 30)
    return figure, axes


def withheld(block: Block) -> list[Table]:
    """Coverage and risk at the fitted thresholds, means over runs; how many runs have no threshold."""
    share, risk = Column("", "", "percent", 1), Column("", "", "percent", 2)
    lines: list[list[Cell | str]] = []
    for own in block.main:
        rows: dict[tuple[str, float], list[dict[str, Any]]] = {}
        for run in own.runs:
            said = run.results.get("selective") or {"rows": []}
            for row in said["rows"]:
                rows.setdefault((row["label"], said["risk"]), []).append(row)
        for (label, target), same in rows.items():
            means = [
                confidence_interval(values) if (values := [r[key] for r in same if r.get(key) is not None]) else None
                for key in ("coverage", "risk", "aurc")
            ]
            cells = [interval(one, column) for one, column in zip(means, (share, share, risk), strict=True)]
            never = sum(row.get("threshold") is None for row in same)
            none = f"(no threshold in {never} of {len(same)})" if never else ""
            cells[0] = Cell(cells[0].text, " ".join(filter(None, (cells[0].small, none))))
            lines.append([own.name, label, f"{100 * target:g} %", *cells])
    head = ["Method", "Size", "Risk aimed at", "Images answered", "Wrong among these", "AURC (mean risk)"]
    return [Table(head, lines, fold="In numbers")] if lines else []


@section("reliability", "run", "page", "markdown")
def reliability(block: Block, options: Options) -> list[Part]:
    """Confidence against accuracy, at a few sizes."""
    heading, below = "Confidence against accuracy", "Below: how many images there are."
    note = RELIABILITY.format(below=below if options.view == "run" else "").strip()
    some = [own for own in block.main if own.parts("reliability")]
    if options.view == "page":
        drawings = each(some, "reliability", _diagrams, options.prefix)
        return [Part("reliability", heading, note + again(block, FIRST), drawings)]
    own = headline(block)
    drawing = [Drawing(f"{options.prefix}reliability", partial(_diagrams, own))] if own in some else []
    return [Part("reliability", heading, note + f" Shown is {own.name}." * (options.view == "markdown"), drawing)]


def _diagrams(own: Series) -> Figure:
    return draw_reliability(spread_out(own.parts("reliability"), DIAGRAMS))


def draw_reliability(widths: Sequence[dict[str, Any]]) -> Figure:
    """Accuracy in each bin of confidence, and how many predictions it holds, for each width given."""
    figure, axes = canvas(WIDE, 4.8, columns=len(widths), ratios=(3, 1))
    for diagram, counts, width in zip(*axes, widths, strict=True):
        count = np.asarray(width["count"], dtype=float)
        sure, right = (np.nan_to_num(np.asarray(width[key], dtype=float)) for key in ("confidence", "accuracy"))
        bins, some = len(count), count > 0
        left = np.arange(bins) / bins * 100
        gap = float((count * abs(sure - right)).sum() / max(count.sum(), 1))
        style: dict[str, Any] = {"width": 94 / bins, "align": "edge"}
        few = f"the same, of fewer than {FEW} images"
        for shown, strength, label in ((count >= FEW, 1.0, "images right"), (some & (count < FEW), 0.35, few)):
            if shown.any():  # or the legend has a wrong color for nothing
                diagram.bar(left[shown], 100 * right[shown], color=BLUE, alpha=strength, label=label, **style)
        dashes = diagram.hlines(100 * sure[some], left[some], left[some] + style["width"], color=ORANGE, linewidth=2.2)
        dashes.set_label("mean confidence")
        diagram.plot((0, 100), (0, 100), color=MUTED, linestyle=":", linewidth=1.2, label="perfectly calibrated")
        diagram.set(xlim=(0, 100), ylim=(0, 102))
        heading = f"{one_line(width['label'], 24)}: ECE {100 * gap:.1f} %"
        diagram.set_title(heading, color=INK, fontsize=11, loc="left")
        diagram.tick_params(labelbottom=False)
        counts.bar(left, count, color=MUTED, **style)
        counts.set(xlim=(0, 100), xlabel="confidence (%)")
        for axis in (diagram, counts):
            axis.set_xticks((0, 20, 40, 60, 80, 100))
            tidy(axis)
    for row, name in zip(axes, ("images right (%)", "images"), strict=True):
        row[0].set_ylabel(name)
    legend(figure, *axes[0])
    return figure


def spread_out(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many of some rows, from the first to the last.

    >>> spread_out([{"label": size} for size in "abcdefg"], 3)
    [{'label': 'a'}, {'label': 'd'}, {'label': 'g'}]
    """
    kept = dict.fromkeys(round(index * (len(rows) - 1) / (most - 1)) for index in range(most))
    return [rows[index] for index in kept] if rows else []


@section("theory", "bottom")
def laws(block: Block, options: Options) -> list[Part]:
    """The figures that are the same whatever was run."""
    return [
        Part("downhill", "The law behind it: ordered masks", DOWNHILL, [Drawing("downhill", theory.downhill)]),
        Part("kl", "The price of a certain weight", PRICE, [Drawing("kl", theory.noise_costs)]),
    ]
