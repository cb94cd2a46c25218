"""Tables of segmenters: energy distances by number of samples, what else was measured, and against one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from vnd._text import short
from vnd.report import markdown, paired
from vnd.report.document import section, table
from vnd.report.entries import Entry, Point, counts, expected, graders, owner_word, published

Cells = list[list[tuple[str, bool]]]  # text, and whether it is the best of its column

# Heading, shape, and whether more is better; None where there is no better.
COLUMNS: dict[str, tuple[str, str, bool | None]] = {
    "matched_iou": ("Matched IoU", "{:.3f}", True),
    "diversity": ("Diversity", "{:.3f}", None),
    "dice": ("Dice", "{:.3f}", True),
    "calibration_error": ("Pixel ECE", "{:.4f}", False),
    "entropy_marked": ("Entropy", "{:.3f}", None),
}
DISTANCES = (
    "GED n: generalised energy distance between n samples of an image and the masks of its {graders} graders, "
    "2 E d(S, Y) − E d(S, S′) − E d(Y, Y′) with d = 1 − IoU, on average over images; less is better. It falls with the "
    "number of samples whatever the network (the V-statistic), so that only columns of one number compare{unbiased}."
)
UNBIASED = "; GED* is without that (the U-statistic)"
AGAIN = ", and there is none where samples come again, as the members of an ensemble do"
SPANS = " 95 % interval: of GED {most}, by 2,000 resamples of the {those}."
BY_OWNER = " By {owner}: GED {most} as the mean of each {owner}'s own mean{share}."
SHARE = ", so that the two who have {share:.0f} % of the images count no more than any others"
DRAWN = " Size “drawn”: each sample has a length of its own, which is drawn too."
SPAN = "span_"  # before a number of samples: key of the column of an interval
OTHERS = (
    "Of all {samples} samples. Matched IoU: the overlap of samples and graders, each with its best partner; more is "
    "better. Diversity: mean d of two samples{own}. Dice: of the mean of the samples, cut at ½, with one grader; more "
    "is better. Pixel ECE: how far the probability of a pixel is from the share of graders who marked it; less is "
    "better. Entropy: of that probability in nats, where at least one grader marked the pixel."
)
HEADINGS = ("Energy distance in numbers", "Overlap, diversity and calibration in numbers")
TRUTH, GRADERS = "Samples of the truth, expected", "Graders among themselves"


def notes(entries: Sequence[Entry]) -> tuple[str, str]:
    """What the columns of the two tables mean."""
    some = sorted({run.results["graders"] for own in entries for run in own.runs})
    unbiased, most = (
        UNBIASED if any(key.startswith("ged_unb") for key in _shapes(entries)[0]) else "",
        counts(entries)[-1],
    )
    every = [point.measures for own in entries for point in own.points if f"ged_{most}" in point.measures]
    unbiased += AGAIN if unbiased and any(f"ged_unbiased_{most}" not in measures for measures in every) else ""
    first = DISTANCES.format(graders=" or ".join(map(str, some)), unbiased=unbiased)
    first += _of_groups(entries)
    if any(point.drawn for own in entries for point in own.points):
        first += DRAWN
    if any(point.runs > 1 for own in entries for point in own.points):
        first += " ± is half a 95 % interval over trainings from other seeds."
    sizes = sorted({len(x) // p.runs for own in entries for p in own.points for x in p.images.values()})
    if len(sizes) > 1:
        first += f" Runs were measured on {listed([f'{size:,}' for size in sizes])} images: these do not compare."
    between = graders(entries, "diversity")
    own = "" if between is None else f"; of two different graders it is {between:.3f}"
    return first, OTHERS.format(samples=counts(entries)[-1], own=own)


def tables(entries: Sequence[Entry]) -> list[tuple[list[str], Cells]]:
    """Heading and lines of the two tables, one line a method and size; the second may have no column."""
    return [_table(entries, shapes) for shapes in _shapes(entries)]


def parts(entries: Sequence[Entry]) -> list[str]:
    """The tables as parts of a page, those that have numbers."""
    found = []
    for heading, note, head, lines in _every(entries):
        body = [[_html(text, best) for text, best in line] for line in lines]
        found += [section(heading, note, table([escape(name) for name in head], body))] if body else []
    return found


def in_markdown(entries: Sequence[Entry]) -> list[str]:
    """The tables as Markdown, each after what it shows."""
    found = []
    for heading, note, head, lines in _every(entries):
        note = note if heading in HEADINGS else f"{heading}. {note}"
        found += [markdown.words(note), markdown.bold_table(head, lines)] if lines else []
    return found


def listed(words: Sequence[str]) -> str:
    """Words with commas and one "and".

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', '')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _every(entries: Sequence[Entry]) -> list[tuple[str, str, list[str], Cells]]:
    """Heading, note, head and lines of each table; the differences stand after the distances."""
    (first, second), (distances, others) = notes(entries), tables(entries)
    return [
        (HEADINGS[0], first, *distances),
        (paired.title(entries), paired.note(entries), *paired.lines(entries)),
        (HEADINGS[1], second, *others),
    ]


def _of_groups(entries: Sequence[Entry]) -> str:
    """What an interval and a mean by groups are, where there are such columns."""
    shapes, word, most = _shapes(entries)[0], owner_word(entries), counts(entries)[-1]
    groups = Counter(next((own.groups for own in entries if own.groups), ()))
    those = f"{len(groups)} {word}s, each with all of their images" if groups else "images"
    found = SPANS.format(most=most, those=those) if f"{SPAN}{most}" in shapes else ""
    if f"ged_by_group_{most}" in shapes:
        share = 100 * sum(count for _, count in groups.most_common(2)) / max(1, groups.total())
        said = SHARE.format(share=share) if len(groups) > 2 else ""
        found += BY_OWNER.format(owner=word, most=most, share=said)
    return found


def _shapes(entries: Sequence[Entry]) -> tuple[dict[str, tuple[str, str, bool | None]], ...]:
    """The columns of the two tables that there are numbers for."""
    known = {key for own in entries for point in own.points for key in point.measures}
    known |= {f"{SPAN}{count}" for own in entries for point in own.points for count in point.spans}
    most = counts(entries)[-1]
    first: dict[str, tuple[str, str, bool | None]] = {"parameters": ("Parameters", "", None)}
    first |= {f"ged_{count}": (f"GED {count}", "{:.3f}", False) for count in counts(entries)}
    first[f"{SPAN}{most}"] = ("95 % interval", "{:.3f}", None)
    first[f"ged_by_group_{most}"] = (f"By {owner_word(entries)}", "{:.3f}", False)
    first[f"ged_unbiased_{most}"] = (f"GED* {most}", "{:.3f}", False)
    return tuple({key: shape for key, shape in own.items() if key in known} for own in (first, COLUMNS))


def _table(entries: Sequence[Entry], shapes: dict[str, tuple[str, str, bool | None]]) -> tuple[list[str], Cells]:
    best: dict[str, float] = {}
    for key, (_, _, more) in shapes.items():
        values = [p.measures[key].mean for own in entries for p in own.points if key in p.measures]
        if more is not None and len(entries) > 1:
            best[key] = max(values) if more else min(values)
    has_size = any(len(own.points) > 1 for own in entries)
    lines: Cells = []
    for own in entries if shapes else ():
        for point in own.points:
            line = [(own.name, False)] + [(point.label if len(own.points) > 1 else "–", False)] * has_size
            for key, (_, shape, _) in shapes.items():
                value = point.measures.get(key)
                line.append((_number(point, key, shape), value is not None and best.get(key) == value.mean))
            lines.append(line)
    for name, known in _beside(entries).items():
        if known.keys() & shapes.keys():
            cells = ["–"] * has_size + [known.get(key, "–") for key in shapes]
            lines.append([(text, False) for text in (name, *cells)])
    return ["Method", *["Size"] * has_size, *(name for name, _, _ in shapes.values())], lines


def _beside(entries: Sequence[Entry]) -> dict[str, dict[str, str]]:
    """Lines for comparison: what samples of the truth would reach, the graders themselves, and what was published."""
    name, others = published(entries)
    own = {"diversity": graders(entries, "diversity"), "dice": graders(entries, "dice")}
    return {
        TRUTH: {f"ged_{count}": f"{value:.3f}" for count, value in expected(entries).items()},
        GRADERS: {key: f"{value:.3f}" for key, value in own.items() if value is not None},
        name: {f"ged_{count}": f"≈ {value:.2f}" for count, value in others.items()},
    }


def _number(point: Point, key: str, shape: str) -> str:
    if key.startswith(SPAN):
        ends = point.spans.get(int(key.removeprefix(SPAN)))
        return "–" if ends is None else " … ".join(map(shape.format, ends))
    value = point.measures.get(key)
    if value is None:
        return "–"
    return short(value.mean) if key == "parameters" else markdown.spread(value, shape)


def _html(text: str, best: bool) -> str:
    """A cell; what follows ± in small below, since there are many columns."""
    mean, mark, reach = escape(text).partition(" ± ")
    return (f"<b>{mean}</b>" if best else mean) + (f"<br><small>± {reach}</small>" if mark else "")
