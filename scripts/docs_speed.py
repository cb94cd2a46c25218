"""The first table of `docs/speed.md`, those of single images and of conversion, and the figures of growing cost.

All from `benchmarks/results`; `scripts/docs_check.py` puts them into the page. "Before" is what was measured when the
targets were set, and stands here alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from docs_tables import measured, table
from vnd.metrics import confidence_interval
from vnd.report.style import BLUE, GREEN, MUTED, ORANGE, PURPLE, Look, legend, panels, plot, size_axis, title

NONE = "not measured"
GROWTH = {"width": ("width, transformer", "width, VGG11"), "depth": ("depth",), "groups": ("groups",)}


def targets(root: Path) -> str:
    """Every target: the limit, the best peer, before, now, to reach."""
    sweep, six = measured(root, "evaluation-h200")["ratio"], measured(root, "predict-h200")["predict"]
    sandwich = {row["name"]: row["milliseconds"] for row in measured(root, "sandwich-h200")["rows"]}
    plain = sum(milliseconds for name, milliseconds in sandwich.items() if name.startswith("plain"))
    ngd = measured(root, "ngd-h200")["rows"][1]["added"]["ngd"]
    step = _steps(root)
    loop = measured(root, "throughput-order-h200")["images_per_second"]["bn3, order measured every 4 steps"]
    conversion, memory = measured(root, "conversion-cpu")["conversion"], _memory(root)
    peer = conversion["Torch-Pruning, pruner"]
    rows = [
        ("nested Bayesian step / deterministic step, local noise, VGG11 1.5×, batch 512, bf16, compiled, H200",
         "1.65 by convolutions alone", "–", "2.00",
         f"{step['local']}; at variance_share 0.25 {step['local, variance_share 0.25']}; "
         f"at 0.125 {step['local, variance_share 0.125']}", "≤ 1.7"),
        ("the same, weight noise", "1", f"bayesian-torch, compiled: {step['peer']}", "1.30", step["weight"],
         "≤ 1.15, ahead of every peer"),
        ("prediction with six samples / six passes, H200", "1", "–", "1.50",
         ", ".join(f"{word} {six[f'ratio, ours, 6 samples, {key}']:.2f}" for word, key in
                   (("local noise", "local"), ("pooled", "pooled"), ("weight noise", "weight"))), "≤ 1.2"),
        ("sandwich step with four fixed budgets / the sum of plain steps of those sizes", "1",
         "US-Net's own loop: not measured", "–", f"{sandwich['sandwich'] / plain:.2f}", "≤ 1.15"),
        ("sweep of ten widths on the test set / ten plain passes, H200", "1", "–", "3.7, with calibration 4.9",
         ", ".join(f"{x:.1f}" for x in sweep.values()), "≤ 1.5 and ≤ 2.0"),
        ("a step of NGD, added behind other work, H200", "–", "–", "3.4 ms", f"{ngd:.1f} ms", "≤ 1.5 ms"),
        ("images a second, whole loop with the order measured every four steps / bare loop, H200", "–", "–", "0.83",
         f"{loop['ratio']:.2f}", "≥ 0.95"),
        ("time to the first step of a compiled run, empty cache, H200: sandwich; deterministic VGG11", "–", "–",
         "40–120 s", f"{_first_steps(root)} (four processes at once)", "≤ 30 s"),
        ("full network / extracted at a quarter, CPU, batch 64", "16", "–", "17",
         f"{measured(root, 'layers-cpu')['extract']['speed-up at a quarter']:.0f}", "16"),
        ("extracted network / one of its size written by hand, CPU, one image: eager, compiled, onnxruntime", "1",
         f"Torch-Pruning's twin: {_beside(root, 'Torch-Pruning')}", "–", _beside(root, "by hand"), "≤ 1"),
        ("cascade over three sizes / the best single one, CIFAR-10, CPU, one image: eager, onnxruntime", "–", "–", "–",
         _cascades(root), "≤ 0.6, at most 0.2 points lost"),
        ("conversion of a transformer of 12 layers of width 512 (38 M), one core", "–",
         f"Torch-Pruning: {peer:.1f} s", "13.5 s", f"{conversion['to_nested']:.1f} s", "≤ 5 s, and the peer's"),
        ("`vnd.kl` with its gradient / training step on 32 sequences of 128 tokens, CPU, 38 M", "–", "–", "≫ 1",
         f"{measured(root, 'kl-cpu')['kl']['ratio']:.3f}", "≤ 0.3"),
        ("memory of a nested training / deterministic one, H200: weight noise, local noise, the same at variance_share "
         "0.25; as published with NGD, a sandwich with four budgets", "1", "–", "–", f"{step['GiB']}; {memory}",
         "≤ 1.6"),
    ]  # fmt: skip
    return table("what | limit | best peer | before | now | to reach", (" | ".join(row) for row in rows))


def _steps(root: Path) -> dict[str, str]:
    """Ratios of a step's time to the deterministic one's, in each run, and of its memory in the first."""
    runs = measured(root, "step-h200")["runs"]
    forms = runs[1]["ratio"] | runs[0]["ratio"]
    said = {
        form: ", ".join(f"{run['ratio'][form]['in a row']:.2f}" for run in runs if form in run["ratio"])
        for form in forms
    }
    names = ("weight", "local", "local, variance_share 0.25")
    said["GiB"] = ", ".join(f"{runs[0]['ratio'][name]['GiB']:.1f}" for name in names)
    peer = runs[0]["peers"]["bayesian-torch"]["compiled"]["in a row"]
    said["peer"] = f"{peer / runs[0]['step']['deterministic']['in a row']:.2f}"
    return said


def steps(root: Path) -> str:
    """Milliseconds of a training step, and what it allocates."""
    lines = []
    runs = measured(root, "step-h200")["runs"]
    for form in runs[1]["step"] | runs[0]["step"]:
        found = [(run["step"][form], run["ratio"][form]) for run in runs if form in run["step"]]
        cells = (
            ", ".join(f"{ms[key]:.2f} ({ratio[key]:.2f})" for ms, ratio in found)
            for key in ("in a row", "alone", "GiB")
        )
        lines.append(f"{form} | {' | '.join(cells)}")
    for way, row in runs[0]["peers"]["bayesian-torch"].items():
        base = runs[0]["step"]["deterministic"]
        cells = (f"{row[key]:.2f} ({row[key] / base[key]:.2f})" for key in ("in a row", "alone", "GiB"))
        lines.append(f"bayesian-torch, {way} | {' | '.join(cells)}")
    return table("a step of two runs, over the deterministic one's | ten in a row, ms | alone, ms | GiB", lines)


def variance_share(root: Path) -> str:
    """Accuracy with gradients through all variances and through an eighth of them, paired by seed."""
    rows = measured(root, "variance-share-h200")["rows"]
    found = {(row["size"], row["variance_share"], row["seed"]): 100 * row["accuracy"] for row in rows}
    lines = []
    for size in dict.fromkeys(row["size"] for row in rows):
        whole, part = ([found[size, share, seed] for seed in range(3)] for share in (1.0, 0.125))
        change = confidence_interval([b - a for a, b in zip(whole, part, strict=True)])
        low, high = (f"{x:+.1f}".replace("-", "−") for x in (change.low, change.high))
        mean = f"{change.mean:+.1f}".replace("-", "−")
        lines.append(f"{size} | {sum(whole) / 3:.1f} | {sum(part) / 3:.1f} | {mean} [{low}, {high}]")
    return table("width | all variances | an eighth | difference, 95 % interval", lines)


def _memory(root: Path) -> str:
    rows = measured(root, "memory-h200")["rows"]
    most = {row["recipe"]: row["allocated_gib"] for row in rows}
    names = ("paper/cifar10-vgg11-bn3-decay", "bench/cifar10-bn3")
    return ", ".join(f"{most[name] / most['bench/cifar10-plain']:.1f}" for name in names)


def _first_steps(root: Path) -> str:
    """Seconds to the first step, with an empty cache, of the sandwich and of the full deterministic network."""
    lines = (root / "benchmarks" / "results" / "first-step-h200.txt").read_text(encoding="utf-8").splitlines()
    empty = lines[: next(i for i, line in enumerate(lines) if line.startswith("the same with"))]
    found = (line.split()[-2] for name in ("sandwich", "plain: full") for line in empty if line.startswith(name))
    return "; ".join(f"{float(seconds):.0f} s" for seconds in found)


def _beside(root: Path, other: str) -> str:
    """Least and most of the ratios of ours to another's, for each way to run them."""
    rows = measured(root, "extracted-cpu")["rows"]
    said = []
    for way in ("eager", "compiled", "onnxruntime"):
        ratios = [row[way]["ratio"][other] for row in rows if row[way] and other in row[way]["ratio"]]
        said.append(f"{min(ratios):.2f} … {max(ratios):.2f}")
    return ", ".join(said)


def _cascades(root: Path) -> str:
    return ", ".join(f"{row['ratio']:.2f}" for row in measured(root, "cascade-cpu")["rows"])


def extracted(root: Path) -> str:
    """Milliseconds of one image, ours over the others."""
    lines = []
    for row in measured(root, "extracted-cpu")["rows"]:
        cells = []
        for way in ("eager", "compiled", "onnxruntime"):
            found = row[way]
            if found is None:
                cells.append("–")
                continue
            others = [found["ratio"].get(name) for name in ("by hand", "Torch-Pruning")]
            cells.append(
                f"{found['ms']['extracted']:.2f}: {', '.join('–' if x is None else f'{x:.2f}' for x in others)}"
            )
        lines.append(f"{row['network']} ({row['parameters'] / 1e6:.2f} M) | {' | '.join(cells)}")
    return table("network | eager, ms: over by hand, over Torch-Pruning | compiled | onnxruntime", lines)


def cascade(root: Path) -> str:
    """Latency and accuracy of a cascade beside the best single size."""
    found = measured(root, "cascade-cpu")
    lines = []
    for row in found["rows"]:
        sizes = ", ".join(_size(found["parameters"][level]) for level in row["levels"])
        shares = ", ".join(f"{100 * share:.0f} %" for share in row["share"])
        best = row["test_alone"][row["best"]]
        lines.append(
            f"{row['way']} | {sizes} | {row['score']} | {row['ms']['alone']:.2f} | {row['ms']['cascade']:.2f} | "
            f"{row['ratio']:.2f} | {shares} | {100 * row['test']:.2f} | {100 * best:.2f}"
        )
    heading = "one size, ms | cascade, ms | ratio | answered by each | accuracy, % | of one size"
    return table(f" | sizes | score | {heading}", lines)


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:.2f} M"


def conversion(root: Path) -> str:
    """Seconds of a conversion."""
    names = {
        "to_nested": "`vnd.to_nested`: dependencies, posterior, slices of three shapes run and compared",
        "Torch-Pruning, graph and groups": "Torch-Pruning: graph of dependencies, all groups of it",
        "Torch-Pruning, pruner": "Torch-Pruning: a pruner, before its first step",
    }
    spent = measured(root, "conversion-cpu")["conversion"]
    return table("conversion | of the CPU, s", (f"{words} | {spent[key]:.2f}" for key, words in names.items()))


def exponents(root: Path) -> str:
    """Exponents of growing cost."""
    keys = ("step", "plain step", "memory", "plain memory", "conversion", "extraction")
    words = {"width, transformer": "parameters, transformer", "width, VGG11": "parameters, VGG11"}
    words |= {"depth": "layers, transformer", "groups": "groups, transformer"}
    lines = []
    for row in measured(root, "growth-cpu")["rows"]:
        cells = (f"{row['exponents'][key]:.2f}".replace("-", "−") for key in keys)
        lines.append(f"{words[row['axis']]} | {' | '.join(cells)}")
    heading = "step | deterministic | memory | deterministic | conversion | extraction"
    return table(f"against | {heading}", lines)


def growth(root: Path, axis: str) -> Figure:
    """Step time, memory, conversion and extraction against the width, the depth or the number of groups."""
    rows = {row["axis"]: row for row in measured(root, "growth-cpu")["rows"]}
    figure, axes = panels(3, 3, 3.0)
    looks: list[Look] = [(BLUE, "o", "-"), (ORANGE, "s", "-")]
    x: list[float] = []
    for name, look in zip(GROWTH[axis], looks, strict=False):
        points = rows[name]["points"]
        own = [point[rows[name]["against"]] for point in points]
        x += own
        words = name.partition(", ")[2] or "transformer"
        of_step = (("step", "plain step", 1.0), ("memory", "plain memory", 2**20))
        for panel, (key, other, unit) in zip(axes, of_step, strict=False):
            plot(panel, own, [point[key] / unit for point in points], look, f"{words}, nested")
            plot(panel, own, [point[other] / unit for point in points], look, f"{words}, deterministic", hollow=True)
        marker = look[1]
        plot(axes[2], own, [point["conversion"] for point in points], (GREEN, marker, "-"), f"{words}, conversion")
        plot(axes[2], own, [point["extraction"] for point in points], (PURPLE, marker, "-"), f"{words}, extraction")
    titles = ("a training step, s", "held by a step, MiB", "conversion, extraction, s")
    words = {"width": "parameters", "depth": "layers", "groups": "groups"}[axis]
    for panel, said in zip(axes, titles, strict=True):
        size_axis(panel, x, f"{words} (log scale)")
        _decades(panel)
        title(panel, said)
    for panel in axes:  # last, so that it stands last in the legend
        _linear(panel)
    return legend(figure, *axes, row=0.15)


def _decades(axis: Axes) -> None:
    """A log scale with numbers for people, of a decade or more."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    middle, reach = math.sqrt(low * high), max(math.sqrt(high / low), math.sqrt(10))
    axis.set_ylim(middle / reach, middle * reach)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if reach < 6 else (1, 3) if reach < 30 else (1,)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())


def _linear(axis: Axes) -> None:
    """Mark the slope of what grows as the axis does, from the lower left corner on."""
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    top = min(right, left * high / low)
    axis.plot([left, top], [low, low * top / left], color=MUTED, linewidth=0.9, linestyle=":", label="linear", zorder=1)
    axis.set(xlim=(left, right), ylim=(low, high))


TABLES: tuple[Callable[[Path], str], ...] = (
    targets,
    steps,
    variance_share,
    extracted,
    cascade,
    conversion,
    exponents,
)
