"""Sections on networks of several sizes: who is best where, tables at equal sizes, and a run in words and numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from vnd._text import short
from vnd.metrics import Interval, confidence_interval
from vnd.report.html import (
    NONE,
    NOT_TEST,
    Cell,
    Drawing,
    Items,
    Options,
    Panel,
    Table,
    caption,
    duration,
    images_of,
    listed,
    measure,
    number,
    of_split,
    paragraphs,
    part,
    section,
)
from vnd.report.results import CAPTIONS, Column, chosen_row, declared
from vnd.report.series import Block, Point, Rows, Series, is_certain, point_of, rows_of, size_of
from vnd.report.style import (
    BLUE,
    GREEN,
    MUTED,
    ORANGE,
    PURPLE,
    canvas,
    legend,
    one_line,
    plot,
    size_axis,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALED = "temperature_scaled"
QUARTER, WHOLE, NEAR = 0.25, 1.0, 0.011
KINDS = {
    "uniform": ("the same share of every layer", "Uniform: the same share of every layer."),
    "learned": ("learned shape", "Learned: as many units of each layer as training found worth keeping."),
    "sampled": ("a random mask each time", "Sampled: a random share each time."),
}
LOOKS_OF_KINDS = {"uniform": (BLUE, "o", "-"), "learned": (ORANGE, "D", "--"), "sampled": (PURPLE, "*", ":")}
INFERENCE = {
    "mc": ("draws of the weights", ""),
    "mean": ("means of the weights", "one pass with the means of the weights, not averaged over draws"),
    "mc_mask": ("random masks", "a random width each pass, averaged"),
    "temperature_scaled": ("scaled", "temperature scaling: confidences are mended for each width on validation images"),
}
PLACES = {
    "full": "Full width",
    "quarter": "A quarter of the width",
    "smallest": "The smallest width",
    "one size": "Methods with one size",
}
VERDICTS = {"apart": "intervals apart", "overlap": "intervals overlap", "single": "one of them measured once"}


def drawn_columns(block: Block) -> list[Column]:
    """The columns with a figure that there are numbers for."""
    known = {key for _, point in block.points for key in point.measures}
    return [column for column in block.columns.values() if column.title and column.key in known]


def headlines(block: Block) -> list[Column]:
    """The columns in which a network is called best, and that there are numbers for."""
    known = {key for _, point in block.points for key in point.measures}
    return [column for column in block.columns.values() if column.headline and column.key in known]


def other_of(block: Block) -> str:
    """The name of the data out of domain, in quotes."""
    return f"“{block.first('ood')}”" if block.first("ood") else "another kind"


def has_several(block: Block) -> bool:
    """Tell if there are several trainings of a series, which figures do not average."""
    return any(point.over == "seeds" for own in block.main for point in own.points)


def first_of(block: Block) -> str:
    """The sentence on figures of one training, where there are several."""
    return "Of several trainings from other seeds, the first is shown." if has_several(block) else ""


# What is said of one run


@section("summary", "run")
def overview(block: Block, options: Options) -> list[Panel]:
    """Summary of what was trained, what came of it, and the full, the chosen and the smallest network in numbers."""
    results, method, columns = block.runs[0].results, block.runs[0].method, headlines(block)
    rows, chosen = results["rows"], chosen_row(results)
    full = max(rows, key=lambda row: row["parameters"])
    classes = f", {len(results['data']['classes'])} classes" if results["data"].get("classes") else ""
    sizes, where = method.get("sizes") or "many", f" at {len(rows)} sizes" if len(rows) > 1 else ""
    said = [
        f"{c.heading} {number(chosen[c.key], c)} ({number(full.get(c.key), c)} at full size)"
        for c in columns if chosen is not None and chosen.get(c.key) is not None
    ]  # fmt: skip
    text = caption(
        "trained_sizes", sizes=sizes, order=method.get("order", ""), chosen=chosen, full=full, numbers=listed(said),
        images=images_of(results) + classes, share=chosen and _share(chosen, full),
        reason=(results.get("chosen") or {}).get("reason"),
        measured=of_split(results, where or " at one size" * (sizes == "many")),
    )  # fmt: skip
    return [Panel("summary", "", "", [paragraphs(text), cards_of(block)])]


def cards_of(block: Block) -> Items:
    """The full, the chosen and the smallest network of a run, in numbers."""
    results, columns = block.runs[0].results, headlines(block)
    rows, chosen = results["rows"], chosen_row(results)
    full = max(rows, key=lambda row: row["parameters"])
    smallest = min(rows, key=lambda row: (row["parameters"], *(-row.get(column.key, 0) for column in columns[:1])))
    named = {"Full size": full, "Chosen": chosen, "Smallest": smallest} if len(rows) > 1 else {"The network": full}
    cards = [
        [
            Cell(f"{name}: {row['label']}, {row['kind']}"),
            Cell(f"{short(row['parameters'])} parameters", f"{_share(row, full)} of the full size" * (len(rows) > 1)),
            *(Cell(number(row.get(column.key), column), column.heading) for column in columns),
        ]
        for name, row in named.items() if row is not None
    ]  # fmt: skip
    return Items(cards, "cards")


@section("measured", "run", "page")
def measured(block: Block, options: Options) -> list[Panel]:
    """Summary of networks of which nothing is known but rows of numbers."""
    rows = [row for run in block.runs for row in run.rows]
    known = {key: list(dict.fromkeys(row[key] for row in rows if row.get(key) is not None)) for key in SAID}
    text = caption(
        "measured", names=listed([run.method["name"] for run in block.runs]), sizes=len({row["label"] for row in rows}),
        examples=[f"{count:,}" for count in known["examples"]], samples=known["samples"], machines=known["machine"],
        is_compared=any("auroc" in key for row in rows for key in row), listed=listed,
        notes=list(dict.fromkeys(note for run in block.runs for note in run.results.get("notes") or ())),
    )  # fmt: skip
    if options.view == "page":
        return [Panel("measured", "", "", [paragraphs(text)]), *summary(block, options)]
    cards = [cards_of(block)] if len({row["parameters"] for row in rows}) > 1 else []  # one code has all its lengths
    return [Panel("measured", "", "", [paragraphs(text), *cards])]


SAID = ("examples", "samples", "machine")  # of rows


@section("every_size", "run", "page")
def every_row(block: Block, options: Options) -> list[Panel]:
    """Every row in numbers, a table a series."""
    if options.view == "run":
        return numbers(block, options)
    found = []
    for own in block.series:
        note, table = _in_numbers([row for point in own.points for rows in point.rows for row in rows], block)
        found.append(Panel(f"numbers-{own.name}", f"{own.name} in numbers", note, [table]))
    return found


@section("curves", "run")
def against_size(block: Block, options: Options) -> list[Panel]:
    """Each measure of a run against its size."""
    results = block.runs[0].results
    if len(results["rows"]) == 1:
        return []  # one point is no curve; its numbers are said
    found = []
    for column in drawn_columns(block):
        if not column.chance and any(row.get(column.key) is not None for row in results["rows"]):
            drawing = options.drawing(column.key, one_run, results, column)
            found.append(Panel(column.key, column.title, described(column, block), [drawing], is_half=True))
    return found


def one_run(results: dict[str, Any], column: Column) -> Figure:
    """A measure against the number of parameters, the kinds of size as series; the chosen network is ringed."""
    figure, axis = canvas()
    rows = sorted((r for r in results["rows"] if r.get(column.key) is not None), key=lambda row: row["parameters"])
    for kind, look in LOOKS_OF_KINDS.items():
        if some := [row for row in rows if row["kind"] == kind]:
            places, values = [row["parameters"] for row in some], [column.factor * row[column.key] for row in some]
            plot(axis, places, values, look, KINDS[kind][0], markersize=5, linewidth=1.5)
            ends = [[row.get(f"{column.key}_{end}") for row in some] for end in ("low", "high")]
            if not any(None in side for side in ends):
                low, high = ([column.factor * value for value in side] for side in ends)
                axis.fill_between(places, low, high, color=look[0], alpha=0.13, linewidth=0, zorder=1)
    chosen, full = chosen_row(results), max(results["rows"], key=lambda row: row["parameters"])
    if chosen is not None and chosen.get(column.key) is not None:
        label = f"chosen: {one_line(chosen['label'], 20)}, {short(chosen['parameters'])} parameters"
        ring: dict[str, Any] = {"markersize": 13, "markerfacecolor": "none", "markeredgewidth": 2, "zorder": 4}
        axis.plot(chosen["parameters"], column.factor * chosen[column.key], "o", color=GREEN, label=label, **ring)
    size_axis(axis, [row["parameters"] for row in rows])
    if full.get(column.key) is not None and not column.scaled:
        label = f"full size: {number(full[column.key], column)}"
        axis.axhline(column.factor * full[column.key], color=MUTED, linewidth=1, linestyle=":", label=label, zorder=1)
    axis.set_ylabel(column.axis)
    if column.better == "less":
        axis.set_ylim(bottom=0)
    return legend(figure, axis)


@section("numbers", "run")
def numbers(block: Block, options: Options) -> list[Panel]:
    """Every size of a run in numbers; the units of each layer under a fold."""
    results = block.runs[0].results
    rows, chosen = results["rows"], chosen_row(results)
    note, table = _in_numbers(rows, block, chosen)
    tables = [table]
    shaped = [row for row in rows if row.get("shape")]
    if shaped:
        layers = dict.fromkeys(layer for row in shaped for layer in row["shape"])
        lines = [[layer, *(str(row["shape"].get(layer, NONE)) for row in shaped)] for layer in layers]
        tables.append(Table(["Layer", *(row["label"] for row in shaped)], lines, fold="Units kept in each layer"))
    return [Panel("numbers", "All sizes in numbers" if len(rows) > 1 else "In numbers", note, tables)]


def _in_numbers(rows: list[dict[str, Any]], block: Block, chosen: Any = None) -> tuple[str, Table]:
    """Rows as a table, and what its columns mean; ends of intervals stand in small."""
    columns = [column for key, column in block.columns.items() if any(row.get(key) is not None for row in rows)]
    named = [row.get("kind") or row.get("length_rule", NONE) for row in rows]
    note = "".join(f"{words} " for kind, (_, words) in KINDS.items() if kind in named and len(rows) > 1)
    note += " ".join(f"{column.heading}: {column.better} is better." for column in columns if column.better)
    for column in [one for one in columns if one.key in {other.chance for other in columns}]:
        if len({number(row.get(column.key), column) for row in rows}) == 1:  # one number needs no column
            columns.remove(column)
            note += f" {column.heading}: {number(rows[0][column.key], column)}."
    if any(f"{column.key}_low" in row for column in columns for row in rows):
        note += " In small: 95 % intervals over examples, of this one training."
    cells = ([_with_ends(row, column) for column in columns] for row in rows)
    lines = [[row["label"], kind, *own] for row, kind, own in zip(rows, named, cells, strict=True)]
    marked = tuple(index for index, row in enumerate(rows) if row is chosen)
    return note, Table(["Network", "Kind", *(c.heading for c in columns)], lines, marked=marked)


def _with_ends(row: dict[str, Any], column: Column) -> Cell | str:
    """A number of a row, with the ends of its interval below it where they are known."""
    ends = [row.get(f"{column.key}_{end}") for end in ("low", "high")]
    text = number(row.get(column.key), column)
    if None in ends:
        return text
    return Cell(text, " … ".join(number(end, column).removesuffix(" %") for end in ends), below=True)


# Who is best where


@section("summary", "top")
def glossary(block: Block, options: Options) -> list[Panel]:
    """Glossary of the numbers."""
    split = block.runs[0].split
    said = {c.heading: c.description for c in block.columns.values() if c.description} | declared(CAPTIONS)["terms"]
    lines = [[Cell(name), Cell(text.format(split=split))] for name, text in said.items()]
    return [part("words", [Items(lines, "terms")])]


@section("summary", "page")
def summary(block: Block, options: Options) -> list[Panel]:
    """Best method at each place, cost of cutting, the places in numbers, and what the methods are."""
    columns, found = headlines(block), places(block)
    verdicts = []
    for place, points in found.items():
        if place != "one size" and len(points) > 1 and comparable(points):
            leads = (cell for column in columns for cell in lead(block, points, column))
            verdicts.append([Cell(f"{PLACES[place]}.", bold=True), *leads])
    cut = [line for own in block.main if (line := _shrunk(own, found.get("quarter", {}).get(own.name)))]
    content: list[Table | Drawing | Items] = []
    if verdicts:
        content += [Items(verdicts), paragraphs(caption("chance"))]
    content += [Items(cut)] if cut else []
    for place, points in found.items():
        best = set()
        for column in columns if comparable(points) and len(points) > 1 else ():
            best |= {(own.name, column) for own, _ in best_of(block, points, column)[:1]}
        lines: list[list[Cell | str]] = []
        for name, point in points.items():
            cells = [measure(point, column, bold=(name, column) in best) for column in columns]
            lines.append([name, point.label, *cells, short(point.parameters)])
        content.append(Table(["Method", "Size", *(c.heading for c in columns), "Parameters"], lines, PLACES[place]))
    about = []
    for own in block.series:
        said, way = own.method.get("about") or f"The method “{own.method['key']}”.", INFERENCE[own.inference][1]
        said += f" Here: {way}." if way and own.name != own.method["name"] else ""
        over = sorted({point.over for point in own.points} - {""})
        runs = f"{len(own.runs)} run{'s' * (len(own.runs) > 1)}" + f"; intervals over {' and '.join(over)}" * bool(over)
        about.append([Cell(own.name), Cell(said, f"{runs}.")])
    content.append(Items(about, "terms", fold="What the methods are"))
    return [part("summary", content)]


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
    """Tell if points are of one width, so that the best of them is best at something."""
    shares = [point.fraction for point in points.values()]
    return None not in shares and max(shares) - min(shares) < 2 * NEAR  # type: ignore[operator, type-var]


def answering(series: Sequence[Series]) -> list[Series]:
    """The series whose answers differ: a scaled one has those of another one of its runs, and other confidences."""
    other = {id(run) for own in series if own.inference != SCALED for run in own.runs}
    return [own for own in series if own.inference != SCALED or any(id(run) not in other for run in own.runs)]


def best_of(block: Block, points: dict[str, Point], column: Column) -> list[tuple[Series, Point]]:
    """Some points from the best in a column to the worst; without those that give another's answers."""
    some = [own for own in block.series if own.name in points and column.key in points[own.name].measures]
    named = [(own, points[own.name]) for own in (some if column.scaled else answering(some))]
    sign = -1 if column.better == "more" else 1
    return sorted(named, key=lambda pair: sign * pair[1].measures[column.key].mean)


def verdict(first: Interval, second: Interval) -> str:
    """Tell if the difference of two means is more than chance may make."""
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
    """Loss of a nested network when it is cut; nothing where it has one width."""
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
def efficiency(block: Block, options: Options) -> list[Panel]:
    """Accuracy and weight usage of small networks; the order is the paper's."""
    lines = efficiencies(block)
    columns = [c for key in ("accuracy", "ece", "auroc", "aupr") if (c := block.columns.get(key))]
    table: list[list[Cell | str]] = [
        [name, p.label, *(measure(p, c) for c in columns), short(p.parameters), used] for name, p, used in lines
    ]
    rates = {number(p.mean(c.chance), c) for _, p, _ in lines for c in columns if c.chance and c.chance in p.measures}
    chance = f"By chance, AUPR would be {' or '.join(sorted(rates))}." if rates else ""
    head = ["Network", "Size", *(c.heading for c in columns), "Parameters", "Weight usage"]
    return [part("efficiency", [Table(head, table, note=chance)])]


def efficiencies(block: Block) -> list[tuple[str, Point, str]]:
    """Name, point and weight usage of the smallest networks.

    Paper: the table of performance with limited parameters. The usage is of the method's own largest network.
    """
    lines: list[tuple[int, str, Series, Point]] = []
    for own in block.series:
        if own.inference == SCALED:
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
        used = 100 * point.parameters / full
        found.append((name, point, f"{used:.3g} %" if std is None else f"{used:.0f} ± {100 * std / full:.0f} %"))
    return found


@section("times", "page")
def times(block: Block, options: Options) -> list[Panel]:
    """Times of training and testing."""
    lines: list[list[Cell | str]] = []
    for own in block.series:
        train, trainings = training_time(own)
        tested = own.of("uniform", "sampled", having="test_seconds")
        widest = max(tested, key=lambda point: point.parameters, default=None)
        took = None if widest is None else widest.mean("test_seconds")
        test = Cell(NONE) if widest is None or took is None else Cell(duration(took), f"({widest.label})")
        machines = ", ".join(dict.fromkeys(run.results.get("machine") or "not said" for run in own.runs))
        many = f"N = {trainings}" if trainings > 1 else ""
        one_pass = is_certain(own.method) and own.inference != SCALED
        way = "one pass" if one_pass else INFERENCE[own.inference][0]
        lines.append([own.name, Cell(NONE if train is None else duration(train), many), test, way, machines])
    known = any(cell.text != NONE for line in lines for cell in line[1:3] if isinstance(cell, Cell))
    table = Table(["Method", "Training", "Testing", "Inference", "Machine"], lines)
    return [part("times", [table] if known else [], split=block.runs[0].split)]


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
def budget(block: Block, options: Options) -> list[Panel]:
    """The table of methods at some numbers of parameters, and that of all sizes of the first run's method."""
    split, own = block.runs[0].split, headline(block)
    other = block.first("ood") or "unfamiliar"
    bins = {len(one["count"]) for run in block.runs for one in run.results.get("reliability") or []}
    table, not_test = methods(block, options.sizes, other), NOT_TEST * (split != "test")
    return [
        part("methods", [table], split=split, bins=bins.pop() if len(bins) == 1 else 0, not_test=not_test),
        part("sizes", [every_size(block, own)], name=own.name, split=split, other=other),
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
        for some in parts if own.is_separate else [tuple(kinds)]:
            shaped = own.is_separate and some == ("learned",)
            found.append((f"{own.name} at learned shapes" if shaped else own.name, own, some))
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
        size = "" if full is None else short(full.parameters) + " on average" * full.is_drawn
        line.append(_seeded(full, columns["accuracy"], size))
        for some in (kinds, *[[kind for kind in kinds if kind == "learned"]] * learned):
            known = own.of(*some) if some else []
            worst = max(known, key=lambda point: point.measures["ece"].mean, default=None)
            label = "" if worst is None else worst.label
            if worst is not None and own.is_separate and worst.kind == "learned":
                label = short(worst.parameters)
            line.append(_seeded(worst, columns["ece"], label))
        line += [_seeded(full, columns[key]) for key in ("auroc", "nll")]
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
        lines.append(line + [Cell(NONE)] * (len(head) - len(line)))
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


def _seeded(point: Point | None, column: Column, below: str = "") -> Cell:
    """A measure to one digit more; its interval only where it is over seeds: repeats say nothing of other trainings."""
    found = None if point is None else point.measures.get(column.key)
    if point is None or found is None:
        return Cell(NONE, below, below=True)
    return _spread(found, column, below, has_interval=point.over == "seeds")


def _spread(found: Interval, column: Column, below: str = "", sign: str = "", has_interval: bool = True) -> Cell:
    digits = 2 if column.factor == 100 else 3
    reach = f" ±\u00a0{column.factor * (found.high - found.low) / 2:.{digits}f}"
    reach *= has_interval and found.count > 1
    return Cell(f"{column.factor * found.mean:{sign}.{digits}f}{reach}", below, below=True)


def _count(point: Point) -> int:
    """Number of trainings that a point rests on."""
    return point.measures["accuracy"].count if point.over == "seeds" else 1


def _shape(row: dict[str, Any]) -> Hashable:
    """Key of a network's shape without the shape itself, which not all rows have."""
    return row["parameters"], row.get("macs")


def _most(rows: Rows) -> float:
    return max(float(row["parameters"]) for run in rows for row in run)


def _share(row: dict[str, Any], full: dict[str, Any]) -> str:
    return f"{100 * row['parameters'] / full['parameters']:.3g} %"


def described(column: Column, block: Block) -> str:
    """Describe a column, of the images that runs were measured on."""
    return column.description.format(split=block.runs[0].split)
