"""The parts of the comparison's page, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from vnd._text import short
from vnd.report import explain
from vnd.report.captions import NOT_TEST, PARTS, REPEATED, SUMMARY, THEORY, WORDS
from vnd.report.document import COLUMNS, fold, picture, section, table
from vnd.report.plates import Plate
from vnd.report.runs import Run
from vnd.report.series import Series
from vnd.report.summary import Block, comparable, efficiency, lead, places, times, withheld


def top(blocks: Sequence[Block], title: str, left_out: Sequence[str] = ()) -> str:
    """Heading, what was compared and what is missing, and what the words mean."""
    runs = [run for block in blocks for run in block.runs]
    names = [own.name for block in blocks for own in block.series]
    where = "; ".join(f"{block.network} on {block.data}" for block in blocks)
    lines = introduction(runs, f"of {where}", names, left_out)
    words = section("In plain words", WORDS, explain.terms(runs[0].split), "words")
    return f"<h1>{escape(title)}</h1>" + "".join(f"<p>{escape(line)}</p>" for line in lines) + words


def introduction(runs: Sequence[Run], where: str, names: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """What is compared, of which images its numbers are, and what is missing, in words."""
    lines = [f"{len(runs)} run{'s' * (len(runs) > 1)} {where}. Shown: {', '.join(dict.fromkeys(names))}."]
    lines += [NOT_TEST] if runs[0].split != "test" else []
    return [*lines, f"Left out: {', '.join(left_out)}, not evaluated."] if left_out else lines


def of_block(block: Block, pictures: dict[str, str], plates: list[Plate], mark: str, alone: bool) -> list[str]:
    """The sections of one data set and network; those without numbers are left out."""
    other = next((f"“{run.results['ood']}”" for run in block.runs if run.results.get("ood")), None)
    name = f"{block.data}, {block.network}"
    parts = [] if alone else [f'<h2 class="block" id="{mark}">{escape(name)}</h2>']
    parts.append(_summary(block, f"{mark}-summary"))
    tables = {"efficiency": _efficiency(block), "times": _times(block), "selective": _withheld(block)}
    for key, (heading, note) in PARTS.items():
        own = [plate for plate in plates if plate.section == key]
        content = _drawn(own, pictures, heading) + tables.get(key, "")
        if content:
            said = note.format(other=other or "another kind", split=block.runs[0].split)
            if key in REPEATED and any(_repeated(one) for one in block.series if one.main):
                said += f" {REPEATED[key]}"
            parts.append(section(heading, said, content, f"{mark}-{key}"))
    return parts


def of_theory(pictures: dict[str, str]) -> list[str]:
    """The sections on the laws themselves."""
    return [section(*THEORY[key], picture(pictures[key], THEORY[key][0]), key) for key in THEORY]


def made(runs: Sequence[Run]) -> str:
    """Where the numbers come from: every run."""
    head = ["Run", "Method", "Recipe", "Data", "Network", "Seed", "Samples", "Machine", "File"]
    lines = []
    for run in runs:
        samples = run.results.get("samples")
        drawn = ", ".join(map(str, samples)) if isinstance(samples, list) else samples
        said = (run.recipe, run.data, run.network, run.seed, drawn, run.results.get("machine"))
        cells = [run.name, run.method, *("–" if value is None else str(value) for value in said), str(run.path)]
        lines.append([escape(cell) for cell in cells])
    note = "summary.csv and summary.json beside this page hold every point of the figures; figures/ holds them as PNG."
    return section("Where the numbers come from", note, table(head, lines), "runs")


def _repeated(own: Series) -> bool:
    return any(point.over == "seeds" for point in own.points)


def _summary(block: Block, mark: str) -> str:
    parts = [explain.verdicts(block), explain.shrinking(block)]
    for place, points in places(block).items():
        shown = explain.SHOWN if comparable(points) and len(points) > 1 else ()
        best = {key: lead(block, points, key) for key in shown}
        lines = []
        for name, point in points.items():
            cells = [escape(name), escape(point.label)]
            for key in explain.SHOWN:
                cell, found = explain.measure(point, key), best.get(key)
                cells.append(f"<b>{cell}</b>" if found is not None and found.best.name == name else cell)
            lines.append([*cells, short(point.parameters)])
        head = ["Method", "Size", *(COLUMNS[key][0] for key in explain.SHOWN), "Parameters"]
        parts.append(f"<h3>{explain.PLACES[place]}</h3>{table(head, lines)}")
    parts.append(fold("What the methods are", explain.methods(block)))
    return section("Summary", SUMMARY, "".join(parts), mark)


def _efficiency(block: Block) -> str:
    found = efficiency(block)
    lines = []
    for line in found:
        usage = f"{100 * line['usage']:.3g} %"
        if line["usage_std"] is not None:
            usage = f"{100 * line['usage']:.0f} ± {100 * line['usage_std']:.0f} %"
        measures = [explain.number(line[key], line["over"]) for key in ("accuracy", "ece", "auroc", "aupr")]
        lines.append([escape(line["name"]), escape(line["label"]), *measures, short(line["parameters"]), usage])
    head = ["Network", "Size", "Accuracy", "ECE", "AUROC", "AUPR", "Parameters", "Weight usage"]
    rates = sorted({f"{100 * line['base_rate']:.1f} %" for line in found if line["base_rate"] is not None})
    chance = f'<p class="note">By chance, AUPR would be {" or ".join(rates)}.</p>' if rates else ""
    return table(head, lines) + chance


def _times(block: Block) -> str:
    found = times(block)
    if all(line["train"] is None and line["test"] is None for line in found):
        return ""
    lines = []
    for line in found:
        train = "–" if line["train"] is None else duration(line["train"])
        many = f" <small>N = {line['trainings']}</small>" if line["trainings"] > 1 else ""
        size = f" <small>({escape(line['test_label'] or '')})</small>"
        test = "–" if line["test"] is None else duration(line["test"]) + size
        lines.append([escape(line["name"]), train + many, test, line["inference"], escape(line["machine"])])
    return table(["Method", "Training", "Testing", "Inference", "Machine"], lines)


def _withheld(block: Block) -> str:
    lines = []
    for line in withheld(block):
        never = "" if not line["never"] else f" <small>(no threshold in {line['never']} of {line['runs']})</small>"
        coverage, risk = (explain.number(line[key], "seeds") for key in ("coverage", "risk"))
        cells = [coverage + never, risk, explain.number(line["aurc"], "seeds", 2)]
        lines.append([escape(line["name"]), escape(line["label"]), f"{100 * line['target']:g} %", *cells])
    head = ["Method", "Size", "Risk aimed at", "Images answered", "Wrong among these", "AURC (mean risk)"]
    return fold("In numbers", table(head, lines)) if lines else ""


def _drawn(plates: list[Plate], pictures: dict[str, str], heading: str) -> str:
    """The figures of a section; of many like ones the first is open and the others are folded."""
    shown = [(plate.series, picture(pictures[plate.name], f"{heading} {plate.series}".strip())) for plate in plates]
    first = [f"<h3>{escape(name)}</h3>{svg}" if name else svg for name, svg in shown[:1]]
    return "".join(first + [fold(name, svg) for name, svg in shown[1:]])


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(1.784), duration(95), duration(53_640)
    ('1.78 s', '95 s', '14.9 h')
    """
    for scale, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"
