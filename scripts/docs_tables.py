"""Tables and a figure of the docs that no command of `vnd` writes, from `docs/results` and `benchmarks/results`.

`PAGES` has them by page; `scripts/docs_check.py` puts each in the place of the table that begins with the same line.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from vnd.methods.base import describe
from vnd.metrics import Interval, confidence_interval
from vnd.report.curves import over_sizes
from vnd.report.results import Column, Run
from vnd.report.series import group
from vnd.report.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, legend, panels, plot, size_axis, title
from vnd.tasks.classification import COLUMNS

Row = dict[str, Any]
Rows = list[Row]


def table(heading: str, rows: Iterable[str]) -> str:
    """A Markdown table of a heading and of rows, without their first and last bars."""
    rule = "---".join("|" * (heading.count("|") + 2))
    first, *others = (f"| {row} |".replace("|  |", "| |") for row in (heading, *rows))
    return "\n".join((first, rule, *others))


def kept(root: Path, name: str) -> list[dict[str, Any]]:
    """The result files that a file of kept runs has, each with all that is known of its data."""
    lines = map(json.loads, (root / "docs" / "results" / name).read_text(encoding="utf-8").splitlines())
    return [line["results"] | {"data": line["data"]} for line in lines]


def tried(root: Path, part: str, name: str = "cifar10-tried.csv") -> Rows:
    """The rows of a table of a CSV file, numbers as such; those of a file without tables are all in one."""
    with (root / "docs" / "results" / name).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("table", part) == part]
    return [{key: _number(value) for key, value in row.items() if value} for row in rows]


def measured(root: Path, name: str) -> Any:
    """What a benchmark wrote."""
    return json.loads((root / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


# Ordered codes: VND-AE against a VAE for each length


def codes(root: Path) -> str:
    """Error, bound and distance of VND-AE and of the VAE of each length, the smaller one bold."""
    runs = kept(root, "codes.jsonl")
    rows = []
    for data, name in {"celeba": "CelebA", "chest-xray": "Chest X-ray", "cifar10": "CIFAR-10"}.items():
        ours, theirs = (
            {row["length"]: row for run in runs for row in run["rows"] if _is_code(run, row, data, method)}
            for method in ("vnd_ae", "vae")
        )
        for length in sorted(theirs):
            cells = [
                _better(ours[length][key], theirs[length][key], digits)
                for key, digits in (("mse", 5), ("negative_elbo", 1), ("frechet", 1))
            ]
            rows.append(f"{name} | {length} | {' | '.join(cells)}")
            name = ""
    heading = " | length | error: VND-AE | VAE | −ELBO: VND-AE | VAE | Fréchet: VND-AE | VAE"
    return table(heading, rows)


def _is_code(run: dict[str, Any], row: dict[str, Any], data: str, method: str) -> bool:
    return bool(run["series"]["data"] == data and run["method"]["key"] == method and row["length_rule"] == "fixed")


def _better(ours: float, theirs: float, digits: int) -> str:
    left, right = f"{ours:.{digits}f}", f"{theirs:.{digits}f}"
    return f"**{left}** | {right}" if ours < theirs else f"{left} | **{right}**"


# Ordered codes: ways to train their lengths


def code_lengths(root: Path, code: int) -> str:
    """Errors over those of a VAE of the length, and bounds, of each way to train codes of some size."""
    names = ("pure", "pure, 8 decodings", "released", "fixed lengths", "all lengths", "vae")
    rows: dict[str, Rows] = {name: [] for name in names}
    for row in measured(root, "code-lengths-h200")["test"]:
        if row["contestant"] in rows and row["code"] in (code, "each"):
            rows[row["contestant"]].append(row)
    vae, lines = rows["vae"], []
    for length in rows["pure"][0]["mse"]:
        cells = [_ratio(rows[name], vae, length) for name in names[:-1]]
        error = confidence_interval(row["mse"][length] for row in vae)
        lines.append(f"length {length} | {' | '.join(cells)} | {error.mean:.4f} ± {error.mean - error.low:.4f}")
    bounds = [_plus_minus((row["negative_elbo"][str(code)] for row in rows[name]), 1) for name in names]
    drawn = [_plus_minus((row["negative_elbo_drawn"] for row in rows[name]), 1) for name in names[:-1]]
    means = [_plus_minus((row["mean_length"] for row in rows[name]), 1) for name in names[:-1]]
    lines.append(f"−ELBO at {code}, nats | {' | '.join(bounds)}")
    lines.append(f"−ELBO, drawn lengths | {' | '.join(drawn)} | –")
    lines.append(f"learned length, mean | {' | '.join(means)} | –")
    lines.append("decodings with a drawn length | 100 % | 100 % | 100 % | 10 % by weight | 0 … 80 %, mean 40 % | –")
    heading = "pure | pure, 8 decodings | released | fixed lengths | all lengths | MSE of a VAE for each"
    return table(f"code of {code} | {heading}", lines)


def _ratio(rows: Rows, vae: Rows, length: str) -> str:
    """Over the VAE of the same seed."""
    pairs = zip(rows, vae, strict=True)
    return _plus_minus((row["mse"][length] / beside["mse"][length] for row, beside in pairs), 2)


def _plus_minus(values: Iterable[float], digits: int) -> str:
    interval = confidence_interval(values)
    reach = f" ± {interval.mean - interval.low:.{digits}f}" * (interval.count > 1)
    return f"{interval.mean:.{digits}f}{reach}"


# The paper's CIFAR-10 figure: differences paired by seed


def targets(root: Path) -> str:
    """Ours less another method at each size, paired by seed: the mean over sizes, and sizes on the wrong side."""
    runs = kept(root, "paper-cifar10.jsonl")
    claims = [("accuracy at or above", "accuracy", 1, ("FN³", "US-Net"))]
    claims += [("ECE not worse than", "ece", -1, ("FN³", "FN³-TS", "US-Net"))]
    claims += [("AUROC not worse than", "auroc", 1, ("FN³", "FN³-TS", "US-Net"))]
    others = {
        "FN³": ("fn3", "mc"),
        "FN³-TS": ("fn3", "temperature_scaled"),
        "US-Net": ("us_net", "mc"),
    }  # trained alike
    rows = []
    for claim, key, sign, names in claims:
        for name in names:
            for kind, words in (("learned", "nine budgets of parameters"), ("uniform", "eleven uniform widths")):
                sizes = _differences(runs, key, kind, *others[name])
                mean = confidence_interval([sum(column) / len(column) for column in zip(*sizes.values(), strict=True)])
                wrong = [label for label, values in sizes.items() if _is_wrong(confidence_interval(values), sign)]
                last = f": {', '.join(wrong)}" if wrong else ""
                rows.append(
                    f"{claim} {name} | {words} | {_points(mean)} | {len(wrong)} of {len(sizes)}{last} | "
                    f"{'missed' if wrong else 'met'}"
                )
    return table("target | sizes | mean over sizes | wrong side | ", rows)


def _differences(runs: Rows, key: str, kind: str, method: str, inference: str) -> dict[str, list[float]]:
    """By size, ours of each seed less the other's at the same share, or the largest within the same budget."""
    found: dict[str, list[float]] = {}
    ours = [run for run in runs if run["series"]["recipe"] == "bench/cifar10-bn3"]
    for run in ours:
        wanted = f"bench/cifar10-{method}", run["series"]["seed"]
        (other,) = (x for x in runs if (x["series"]["recipe"], x["series"]["seed"]) == wanted)
        theirs = [row for row in other["tidy"] if row["inference"] == inference]
        for row in run["tidy"]:
            if row["inference"] != "mc" or row["kind"] != kind:
                continue
            (beside,) = (x for x in theirs if x["label"] == row["label"])
            found.setdefault(row["label"], []).append(100 * (row[key] - beside[key]))
    return found


def _is_wrong(interval: Interval, sign: int) -> bool:
    return interval.high < 0 if sign > 0 else interval.low > 0


def _points(interval: Interval) -> str:
    mean, low, high = (f"{x:+.2f}".replace("-", "−") for x in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"


# All methods for 30 epochs


def short_methods(root: Path) -> str:
    """Accuracy of the main methods at some sizes."""
    rows = [row for row in tried(root, "short") if row["inference"] == "mc"]
    learned = {"BN³": "BN³, learned shapes", "BN³ (sandwich)": "BN³ as a sandwich, learned shapes"}
    learned |= {"ordered ℓ0": "ordered ℓ0, learned shapes"}
    each = {"FN³": "FN³", "US-Net": "US-Net", "IBNN": "IBNN, one training each", "plain": "plain, one training each"}
    lines = [_at_sizes(rows, series, name, "learned") for series, name in learned.items()]
    lines += [_at_sizes(rows, series, name, "uniform") for series, name in (each | {"SVB": "SVB, pruned"}).items()]
    return table("method | smallest | about 0.4 M | about 1 M | about 5 M | full, 20.9 M | ECE, full", lines)


def _at_sizes(rows: Rows, series: str, name: str, kind: str) -> str:
    own = [row for row in rows if row["series"] == series]
    some, full = [row for row in own if row["kind"] == kind], max(own, key=lambda row: row["parameters"])
    cells = []
    for least, most in ((0, 0.2e6), (0.36e6, 0.7e6), (0.9e6, 1.5e6), (4e6, 6e6)):
        row = next((row for row in some if least < row["parameters"] < most), None)
        cells.append("–" if row is None else f"{100 * row['accuracy']:.1f} ({_millions(row['parameters'])})")
    cells.append(f"{100 * full['accuracy']:.1f}" if full["parameters"] > 20e6 else "–")
    return " | ".join([name, *cells, f"{full['ece']:.3f}".removeprefix("0")])


def _millions(count: float) -> str:
    return f"{count / 1e6:.{1 if count > 4e6 else 2}f} M"


def short_figure(root: Path) -> Figure:
    """Accuracy of all methods against width and against parameters."""
    series: dict[tuple[str, str], Rows] = {}
    for row in tried(root, "short"):
        recipe = f"cifar10/vgg11-{row['method']}{'-sandwich' * ('sandwich' in row['series'])}"
        series.setdefault((row["method"], recipe), []).append(row)
    runs = [Run(Path(), _results(method, recipe, rows)) for (method, recipe), rows in series.items()]
    (accuracy,) = (column for column in COLUMNS if column["key"] == "accuracy")
    return over_sizes(group(runs), Column(**accuracy))


def _results(method: str, recipe: str, rows: Rows) -> dict[str, Any]:
    series = {"run": recipe, "recipe": recipe, "settings": recipe, "network": "vgg11", "data": "cifar10", "seed": 0}
    return {"method": describe(method), "series": series, "rows": rows}


# Trials

SANDWICH = {
    "e1": "`full_share` 0.4, labels smoothed by 0.03", "e2": "`full_share` 0.55", "e3": "`kl_weight` 0.001",
    "e4": "`kl_weight` 0.0001", "e6": "e1, labels not smoothed",
}  # fmt: skip
LIMITS = {
    "b5": "BN³, sandwich, `kl_weight` 0.001, log α from −5", "b2": "the same, log α from −3",
    "b3": "the same, `kl_weight` 0.003",
    "c1": "`length_kl_weight` 0.05, price at both ends, log α from −4, lr 0.2, cutout",
    "c2": "the same with the survival gradient, `kl_weight` 0.0001, `length_kl_weight` 0.004",
    "c3": "c1 with `full_share` 0.5 and labels smoothed by 0.05",
}  # fmt: skip
BUDGETS = ("≤ 110 k", "≤ 350 k", "≤ 1.1 M")


def sandwiches(root: Path) -> str:
    """Accuracy and calibration error of sandwiches with fixed budgets, by samples."""
    found = {(row["run"], row["size"]): row for row in tried(root, "validation") if row["inference"] == "mc"}
    cells = {
        run: [f"{100 * row['accuracy']:.1f}, {row['ece']:.3f}" for row in (found[run, size] for size in sizes)]
        for run, sizes in dict.fromkeys(SANDWICH, (*BUDGETS, "≤ 4 M", "100 %")).items()
    }
    lines = (f"{run} | {words} | {' | '.join(cells[run])}" for run, words in SANDWICH.items())
    return table("run |  | 0.11 M | 0.35 M | 1.1 M | 4 M | full", lines)


def limits(root: Path) -> str:
    """Accuracy of nested networks and of plain ones, by posterior means."""
    rows = tried(root, "validation")
    means = {(row["run"], row["size"]): _percent(row) for row in rows if row["inference"] == "mean"}
    others = {(row["run"], row["size"]): row for row in rows if row["inference"] == "mc"}
    plain = [others[run, "own shape"] for run in ("s1", "s2", "s3")] + [others["p3", "100 %"]]
    uniform = [others["u1", size] for size in ("6.25 %", "12.5 %", "25 %", "100 %")]
    first, narrow, quarter, full = map(_percent, uniform)
    sizes = (f"{uniform[1]['parameters'] / 1e6:.2f} M", f"{uniform[2]['parameters'] / 1e6:.1f} M")
    return table(
        "run |  | 0.11 M | 0.35 M | 1.1 M | full",
        [
            "s1, s2, s3, p3 | plain networks, trained one by one (the first three at shapes of b5) | "
            + " | ".join(map(_percent, plain)),
            *(
                f"{run} | {words} | {' | '.join(means[run, size] for size in (*BUDGETS, '100 %'))}"
                for run, words in LIMITS.items()
            ),
            "u1 | US-Net, trained as c1, uniform widths | "
            f"{first} | {narrow} ({sizes[0]}) | {quarter} ({sizes[1]}) | {full}",
        ],
    )


def _percent(row: dict[str, Any]) -> str:
    return f"{100 * row['accuracy']:.1f}"


def log_alpha(root: Path) -> str:
    """Energy distance of BN³ on the UNet by where its log α starts."""
    rows = [row for row in tried(root, "", "lidc-tried.csv") if (row["method"], row["image"]) == ("bn3_unet", 128)]
    found = {(row["log_alpha_init"], row["split"], row["size"]): f"{row['ged_16']:.3f}" for row in rows}
    lines = (
        " | ".join(
            [f"−{-start:.0f}", *(found[start, *at] for at in product(("test", "validation"), ("33.33 %", "100 %")))]
        )
        for start in sorted({start for start, _, _ in found})
    )
    return table(
        "`method.log_alpha_init` | test: a third of the width | all of it | validation: a third | all of it", lines
    )


# Targets: words of each page, and what was reached


def _mean(values: Iterable[float]) -> float:
    return confidence_interval(values).mean


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _missed(value: float, least: float, digits: int) -> str:
    """A figure, and by how much it is below its target."""
    return f"{value:.{digits}f}" + (f", missed by {least - value:.{digits}f}" if value < least else "")


def cifar10_targets(root: Path) -> str:
    """Targets on CIFAR-10: means over seeds of BN³, and plain networks of its shapes."""
    runs = kept(root, "cifar10.jsonl")
    ours = [{row["label"]: row for row in run["rows"]} for run in runs if run["method"]["key"] == "bn3"]
    plain = {row["parameters"]: row for run in runs if run["method"]["key"] == "plain" for row in run["rows"]}
    sizes = [label for label in ours[0] if label.startswith("≤")]
    at = {label: _mean(100 * run[label]["accuracy"] for run in ours) for label in ours[0]}
    alone = {label: 100 * plain[ours[0][label]["parameters"]]["accuracy"] for label in ours[0]}
    ece = {label: _mean(run[label]["ece"] for run in ours) for label in ours[0]}
    worst = max(ece, key=lambda label: ece[label])
    lines = [
        f"{words} | {paper} | {least} | {_missed(at[label], least, 2)} | {alone[label]:.2f}"
        for words, label, paper, least in (
            ("accuracy at ≤ 0.11 M parameters", "≤ 110 k", "(83.5 at its smallest)", 87),
            ("at ≤ 0.35 M", "≤ 350 k", "–", 91),
            ("at ≤ 1.1 M", "≤ 1.1 M", "–", 93),
            ("full, 20.9 M", "100 %", "(92.6)", 94.5),
        )
    ]
    full = _signed(at["100 %"] - alone["100 %"])
    lines.append(f"full, against the plain network trained alike | – | −0.3 | {full} | ")
    first = {label: 100 * ours[0][label]["accuracy"] for label in sizes}
    for words, values in (
        ("at five learned shapes, against plain networks: all seeds", at),
        ("the same, seed 0 alone, whose very shapes they have", first),
    ):
        gaps = [values[label] - alone[label] for label in sizes]
        below, rest = [x for x in gaps if x < -0.5], [x for x in gaps if x >= -0.5]
        said = "; ".join(filter(None, (", ".join([*map(_signed, below), "missed"]), ", ".join(map(_signed, rest)))))
        lines.append(f"{words} | – | −0.5 | {said} | ")
    others = max(value for label, value in ece.items() if label != worst)
    last = max(plain[ours[0][label]["parameters"]]["ece"] for label in ours[0])
    lines.append(
        f"ECE, worst over sizes | – | 0.015 | {ece[worst]:.3f} at {worst}, missed; {others:.3f} or less at the others "
        f"| {last:.3f}"
    )
    auroc = _missed(_mean(run["100 %"]["auroc"] for run in ours), 0.95, 3)
    lines.append(
        f"AUROC against SVHN, full | – | 0.95 | {auroc} | {plain[ours[0]['100 %']['parameters']]['auroc']:.3f}"
    )
    seconds = max(row["seconds_of_steps"] for row in tried(root, "paper-600"))
    lines.append(f"600 epochs of the paper's recipe | 14.9 h | 10 min | {seconds / 60:.1f} min | ")
    return table(" | paper | to reach | BN³ here | plain network of that shape", lines)


SMALL = {
    "A": "sandwich without fixed budgets, `chain_lr` 0.3",
    "B": "with three fixed budgets, order frozen after a quarter",
    "H": "the same, dearer weights (`kl_weight` × 3), half the `length_kl_weight`, `chain_lr` 3, frozen after 0.3",
    "I": "the same with half of the loss for the full network",
}  # fmt: skip
LIKE = {"20-9-8-4-3-3-5": "19-11-7-3-3-3-5"}  # a shape, and the one that a plain network was trained in


def small_budgets(root: Path) -> str:
    """Accuracy of small networks with fixed budgets, and of plain ones in their shapes."""
    rows = tried(root, "small")
    alone = {row["shape"]: _percent(row) for row in rows if row["run"] == "plain"}
    alone |= {shape: f"≈ {alone[like]}" for shape, like in LIKE.items()}
    found = {(row["run"], row["size"]): row for row in rows}
    lines = []
    for run, words in SMALL.items():
        cells = []
        for size in ("≤ 8 k", "≤ 25 k", "≤ 80 k", "100 %"):
            row = found[run, size]
            cells.append(_percent(row) + (f" ({alone[row['shape']]})" if row["shape"] in alone else ""))
        lines.append(f"{run} | {words} | {' | '.join(cells)}")
    return table("run |  | 8 k | 25 k | 80 k | full", lines)


def small_codes(root: Path) -> str:
    """Error and bound of small trials of VND-AE, and of a VAE for each length."""
    rows = {(row["data"], row["run"], row["length"]): row for row in tried(root, "small", "codes-tried.csv")}
    xray, lines = "chest-xray, 1,000 images", []
    for words, data, run, lengths in (
        ("Fashion-MNIST, dense, code 4, test images", "fashion", "VND-AE", (1, 2, 3, 4)),
        ("CIFAR-10, 6,000 images, half the width, 12 epochs, code 128, validation images", "cifar10, 6,000 images",
         "VND-AE", (32, 128)),
        ("Chest X-ray, 1,000 images, half the width, 100 epochs, code 128, validation images", xray, "VND-AE",
         (32, 128)),
        ("the same, other weights and `free_bits` 0.05", xray, "VND-AE with free bits", (32, 128)),
    ):  # fmt: skip
        for length in lengths:
            cells = [
                f"{row['mse']:.5f} | {row['negative_elbo']:.2f}"
                for row in (rows[data, run, length], rows[data, "VAE", length])
            ]
            lines.append(f"{words} | {length} | {' | '.join(cells)}")
            words = ""
    heading = " | length | VND-AE, trained once: error | −ELBO | VAE, trained for this length: error | −ELBO"
    return table(heading, lines)


def paper_ours(root: Path) -> list[dict[str, Row]]:
    """Rows by label of each seed of our form, in the runs of the paper's CIFAR-10 figure."""
    runs = kept(root, "paper-cifar10.jsonl")
    return [
        {row["label"]: row for row in run["rows"]} for run in runs if run["series"]["recipe"] == "bench/cifar10-bn3"
    ]


def more_targets(root: Path) -> str:
    """Targets that no other method has a part in."""
    ours = paper_ours(root)
    ece = {label: _mean(run[label]["ece"] for run in ours) for label in ours[0]}
    learned = max(value for label, value in ece.items() if label.startswith("≤") or label == "100 %")
    worst = max(ece, key=lambda label: ece[label])
    plain = {
        run["rows"][0]["parameters"]: run["rows"][0]["accuracy"]
        for run in kept(root, "paper-cifar10.jsonl")
        if run["method"]["key"] == "plain"
    }
    gaps = {
        label: [100 * (run[label]["accuracy"] - plain[run[label]["parameters"]]) for run in ours]
        for label in ours[0]
        if label != "100 %" and all(run[label]["parameters"] in plain for run in ours)
    }
    at_shapes = "; ".join(f"at {label} {_points(confidence_interval(values))}" for label, values in gaps.items())
    gap = _signed(100 * (ours[0]["100 %"]["accuracy"] - plain[ours[0]["100 %"]["parameters"]]))
    digits = {"four": f"{learned:.4f}".removeprefix("0"), "three": f"{ece[worst]:.3f}".removeprefix("0")}
    return table(
        "target | | ",
        [
            "worst ECE of ours ≤ .015, no temperature fitted afterwards | "
            f"{digits['four']} at nine budgets and in full; {digits['three']} at {worst} of every layer | "
            f"{'met' if learned <= 0.015 else 'missed'} at learned shapes, "
            f"{'met' if ece[worst] <= 0.015 else 'missed'} at uniform ones",
            "within half a point of a plain network of the same shape | "
            f"{at_shapes}, three seeds; in full {gap}, one seed | "
            f"{'met' if all(_mean(values) >= -0.5 for values in gaps.values()) else 'missed'} where run",
        ],
    )


def beside_paper(root: Path) -> str:
    """The paper's figures, those of its form and of its released code, and ours."""
    runs = kept(root, "paper-cifar10.jsonl")
    forms = []
    for name in ("-decay", "-released"):
        rows = [run["tidy"] for run in runs if run["series"]["recipe"] == f"paper/cifar10-vgg11-bn3{name}"]
        forms.append(
            [{(row["inference"], row["label"]): row for row in found if row["bn_images"] == 1024} for found in rows]
        )
    ours = paper_ours(root)
    at = {label: _mean(100 * run[label]["accuracy"] for run in ours) for label in ours[0]}
    size = {label: _mean(run[label]["parameters"] for run in ours) for label in ours[0]}

    def of(form: list[dict[tuple[str, str], Row]], inference: str, label: str) -> str:
        return f"{_mean(100 * run[inference, label]['accuracy'] for run in form):.1f}"

    small, full = ([of(form, "mc", label) for form in forms] for label in ("6.25 %", "100 %"))
    means = [[of(form, "mean", label) for form in forms] for label in ("6.25 %", "100 %")]
    drawn = [of(form, "mc_mask", next(label for kind, label in form[0] if kind == "mc_mask")) for form in forms]
    heading = " | paper, 600 epochs | published form, weight decay and warm-up | released code | ours"
    return table(
        heading,
        [
            f"smallest BN³ | 83.5 | {small[0]}; by means {means[0][0]} | {small[1]}; by means {means[0][1]} | "
            f"{at['≤ 110 k']:.1f} at {size['≤ 110 k'] / 1e3:.0f} k, learned "
            f"shape; {at['6.25 %']:.1f} at {size['6.25 %'] / 1e3:.0f} k, uniform",
            f"BN³-MC | 89.4 | {drawn[0]} | {drawn[1]} | –",
            f"BN³ in full | 92.6 | {full[0]}; by means {means[1][0]} | {full[1]}; by means {means[1][1]} | "
            f"{at['100 %']:.1f} at {size['100 %'] / 1e6:.1f} M; "
            f"{at['≤ 8 M']:.1f} at {size['≤ 8 M'] / 1e6:.1f} M, learned shape",
        ],
    )


def other_forms(root: Path) -> str:
    """The paper's other methods as published, and its form as written, at some widths."""
    rows, every = [], kept(root, "paper-cifar10.jsonl") + kept(root, "paper-cifar10-as-written.jsonl")
    names = {"bn3": "BN³ as written", "fn3-decay": "FN³", "ibnn-decay": "IBNN", "svb": "SVB"}
    for key, name in names.items():
        runs = [run for run in every if run["series"]["recipe"] == f"paper/cifar10-vgg11-{key}"]
        found = {row["label"]: row for run in runs for row in run["rows"]}
        cells = [
            _percent(found[label]) if label in found else "–" for label in ("10 %", "20 %", "25 %", "50 %", "100 %")
        ]
        full = found["100 %"]
        count = (
            f"{full['parameters'] / 1e6:.2f} M" if full["parameters"] >= 1e6 else f"{full['parameters'] / 1e3:.0f} k"
        )
        rows.append(f"{name} | {' | '.join(cells)} | {count} | {100 * full['ece']:.1f}")
    return table(" | 10 % | 20 % | 25 % | 50 % | full | parameters in full | ECE in full", rows)


STUDENTS = (  # words, run, BatchNorm's statistics, inference
    ("by KL, half of the images mixed (CutMix)", "student-kl", "as in training", "temperature_scaled"),
    ("the same", "student-kl", "as in training", "mean"),
    ("the same", "student-kl", "as they are", "mean"),
    ("by MMD, mixed", "student-mmd", "as they are", "mean"),
    ("by MMD, not mixed", "student-unmixed", "as they are", "mean"),
    ("by MMD, not mixed, a quarter of every layer, 125 epochs", "student-quarter", "as they are", "mean"),
)
ASKED = {"full": 0.928, "narrow": 0.89, "ece": 0.0048, "auroc": 0.943}


def distilled(root: Path) -> str:
    """Students of CIFAR-10 against what was asked for: bold is reached."""
    rows = [row for row in tried(root, "cifar10", "sn3.csv") if row["split"] == "test"]
    found = {(row["run"], row["statistics"], row["inference"], row["size"]): row for row in rows}
    teacher = found["teacher", "as they are", "mc", "≤ 109 k"]
    lines = ["asked for | | | ≥ 92.8 % | ≥ 89.0 % | ≤ 0.0048 | ≥ 0.943"]
    for words, run, statistics, inference in STUDENTS:
        full, narrow = (found[run, statistics, inference, size] for size in ("100 %", "25 %"))
        quarter = f"{_percent(narrow)} %"
        if narrow["accuracy"] >= ASKED["narrow"]:
            quarter = f"**{quarter}**"
        elif quarter == "89.0 %":  # only by rounding
            quarter += f" ({100 * narrow['accuracy']:.2f})"
        if narrow["parameters"] != found["student-kl", "as they are", "mean", "25 %"]["parameters"]:
            quarter += f" ({narrow['parameters']:,.0f} parameters; teacher {_percent(teacher)} %)"
        bold = {
            f"{_percent(full)} %": full["accuracy"] >= ASKED["full"],
            f"{full['ece']:.4f}": full["ece"] <= ASKED["ece"],
            f"{full['auroc']:.3f}": full["auroc"] >= ASKED["auroc"],
        }
        whole, error, auroc = (f"**{text}**" if reached else text for text, reached in bold.items())
        shown = statistics if statistics == "as in training" else "of images as they are"
        lines.append(f"{words} | {shown} | {inference} | {whole} | {quarter} | {error} | {auroc}")
    heading = "student | BatchNorm's statistics | inference | full width | quarter width, 176,694 parameters"
    return table(f"{heading} | ECE, full | AUROC, full", lines)


def lidc_targets(root: Path) -> str:
    """Targets on LIDC at 128×128: energy distance at 16 samples, means over seeds."""
    values: dict[tuple[str, str], list[float]] = {}
    for run in kept(root, "segmentation.jsonl"):
        if run["data"]["name"] == "lidc" and run["data"]["image"][-1] == 128:
            for row in run["rows"]:
                values.setdefault((run["method"]["key"], row["label"]), []).append(row["ged"]["16"])
    ged = {key: f"{sum(found) / len(found):.3f}" for key, found in values.items()}
    narrow = {
        row["size"]: f"{row['ged_16']:.3f}"
        for row in tried(root, "", "lidc-tried.csv")
        if (row["image"], row["split"], row.get("log_alpha_init")) == (128, "test", -4)
    }
    short, full, base = (ged[at] for at in (("vnd_punet", "2 of 6"), ("vnd_punet", "6 of 6"), ("punet", "6 of 6")))
    third, whole = ged["bn3_unet", "33.33 %"], ged["bn3_unet", "100 %"]
    dropout, ensemble = ged["dropout_unet", "100 %"], ged["unet_ensemble", "100 %"]
    return table(
        " | target | GED at 16 samples",
        [
            "VND-PUNet | 0.02 below P-UNet, at 2 and at 6 of 6 dimensions | "
            f"reached by the means, {short} and {full} against {base}; see below",
            f"VND-PUNet | not above BN³ on the UNet | reached: BN³ has {whole} at full width",
            "BN³ on the UNet at a third of its width | within 0.01 of its full width | with weights that begin narrow "
            f"(−4): {narrow['33.33 %']} and {narrow['100 %']}; **not** with the recipe's −2, which is better at both: "
            f"{third} and {whole}",
            f"all | below the dropout UNet, {dropout} | reached by the means: the ensemble {ensemble}, BN³ from a "
            f"third of its width on; **not** BN³ at 3/16 of it, {ged['bn3_unet', '18.75 %']}",
        ],
    )


# Speed


def sampling(root: Path) -> str:
    """Milliseconds of a draw."""
    return table(
        "n | Downhill, ms | gumbel_softmax, ms | ratio | one after the other, ms",
        (
            f"{row['n']:,} | {_ms(row, 'downhill')} | {_ms(row, 'gumbel_softmax')} | "
            f"{row['downhill / gumbel_softmax']:.2f} | {1000 * row['seconds']['sequential chain']:,.1f}"
            for row in measured(root, "sampling")["rows"]
        ),
    )


def _ms(row: dict[str, Any], key: str) -> str:
    return f"{1000 * row['seconds'][key]:.2f}"


def layers(root: Path) -> str:
    """A prediction and an extracted network."""
    gpu, cpu = measured(root, "layers-h200"), measured(root, "layers-cpu")
    predict = measured(root, "predict-h200")["predict"]
    small, slow = (
        f"{each['extract']['0.25']:.{digits}f} against {each['extract']['1']:.{digits}f}"
        for each, digits in ((gpu, 2), (cpu, 0))
    )
    return table(
        " | ms | ratio | aimed at",
        [
            f"deterministic forward pass | {predict['deterministic']:.2f} | 1 | ",
            f"prediction with six samples, local noise | {predict['ours, 6 samples, local']:.2f} | "
            f"{predict['ratio, ours, 6 samples, local']:.2f} of six passes | ≤ 1.2",
            f"extracted at a quarter, H200, eager | {small} | "
            f"{gpu['extract']['speed-up at a quarter']:.1f} times faster | ",
            f"extracted at a quarter, two CPU cores, batch 64 (`layers-cpu.json`) | {slow} | "
            f"{cpu['extract']['speed-up at a quarter']:.0f} times faster | ≥ 6",
        ],
    )


def kl(root: Path) -> str:
    """The KL of a large network against a step without it."""
    found = measured(root, "kl-cpu")["kl"]
    return table(
        " | of the CPU, s | ratio | aimed at",
        [
            f"a step without the KL: masks, local estimator, backward | {found['step']:.1f} | 1 | ",
            f"`vnd.kl` with its gradient | {found['kl']:.2f} | {found['ratio']:.3f} | ≤ 0.3",
        ],
    )


def memory(root: Path) -> str:
    """The most memory of trainings."""
    rows = measured(root, "memory-h200")["rows"]
    names = {
        "bench/cifar10-plain": "plain, SGD", "bench/cifar10-fn3": "FN³, point weights, SGD",
        "bench/cifar10-us_net": "US-Net, sandwich with four budgets, SGD",
        "paper/cifar10-vgg11-bn3-decay": "BN³ as published: local noise, log α per weight, NGD",
        "bench/cifar10-bn3": "BN³, sandwich with four budgets, weight noise, SGD",
    }  # fmt: skip
    plain = next(row["allocated_gib"] for row in rows if row["recipe"] == "bench/cifar10-plain")
    lines = []
    for recipe, name in names.items():
        used = [row["allocated_gib"] for row in rows if row["recipe"] == recipe]
        held = max(row["reserved_gib"] for row in rows if row["recipe"] == recipe)
        ratio = "1" if used[0] == plain else _range([x / plain for x in used], 1)
        lines.append(f"{name} | {_range(used, 2)} | {ratio} | {held:.1f}")
    return table(" | allocated | ratio | held", lines)


def _range(values: list[float], digits: int) -> str:
    return " … ".join(dict.fromkeys(f"{x:.{digits}f}" for x in (min(values), max(values))))


def ngd(root: Path) -> str:
    """A step of two optimizers."""
    used = measured(root, "ngd-cpu")["rows"][0]["of the CPU"]
    rows = [f"SGD, foreach | {used['sgd'] / 1000:.3f}", f"NGD | {used['ngd'] / 1000:.2f}"]
    return table(" | of the CPU, s", rows)


def ngd_on_device(root: Path) -> str:
    """A step of two optimizers on a GPU, alone and behind other work."""
    alone, behind = (row["added"] for row in measured(root, "ngd-h200")["rows"])
    names = {"sgd": "SGD, foreach", "ngd": "NGD, its steps as CUDA graphs"}
    rows = [f"{name} | {alone[key]:.2f} | {behind[key]:.2f}" for key, name in names.items()]
    return table(" | alone, ms | added behind 7.5 ms of other work, ms", rows)


def sandwich_step(root: Path) -> str:
    """A step of a sandwich and plain steps of its networks."""
    found = measured(root, "sandwich-h200")
    times = {row["name"]: row["milliseconds"] for row in found["rows"]}
    plain = {name.removeprefix("plain: "): time for name, time in times.items() if name.startswith("plain: ")}
    rows = [f"plain step, {name}{' parameters' * name.startswith('≤')} | {time:.2f} | " for name, time in plain.items()]
    rows += [f"the sum | {sum(plain.values()):.2f} | 1", f"sandwich | {times['sandwich']:.2f} | "]
    rows[-1] += f"{found['ratios']['step']['sandwich']:.2f}"
    return table(" | ms | ratio", rows)


def throughput(root: Path) -> str:
    """Images a second of the loop and of a bare one."""
    names = {"plain": "plain", "bn3": "BN³, the order not measured"}
    names["bn3, order measured every 4 steps"] = "BN³, the order measured every four steps"
    return table(
        " | bare, images/s | ours, images/s | ratio",
        (
            f"{machine}: {names[key]} | {speed['bare']:,.0f} | {speed['ours']:,.0f} | {speed['ratio']:.3f}"
            for machine, file in (("H200", "h200"), ("two CPU cores", "cpu"))
            for key, speed in measured(root, f"throughput-{file}")["images_per_second"].items()
        ),
    )


def measured_share(root: Path) -> str:
    """Accuracy of trainings whose order is measured on a share of the batch."""
    runs: dict[int, list[dict[str, float]]] = {}
    for row in measured(root, "measured-share-h200")["rows"]:
        runs.setdefault(row["images a measurement"], []).append(row["validation accuracy"])
    rows = []
    for images, found in runs.items():
        cells = (", ".join(f"{x[width]:.3f}".lstrip("0") for x in found) for width in ("50 %", "100 %"))
        rows.append(f"{images} | {' | '.join(cells)}")
    return table("images a measurement | accuracy on validation, 50 % of the widths | 100 %", rows)


def evaluation(root: Path) -> str:
    """An evaluation at ten widths against ten passes."""
    rows = []
    for machine, file in (("two CPU cores, VGG11", "cpu"), ("H200, VGG11 1.5×", "h200")):
        found = measured(root, f"evaluation-{file}")
        ratios = [f"{x:.{2 if file == 'cpu' else 1}f}" for x in found["ratio"].values()]
        passes = f"{found['seconds']['passes']:.{0 if file == 'cpu' else 2}f}"
        rows.append(f"{machine} (`evaluation-{file}.json`) | {passes} | {' | '.join(ratios)}")
    return table(" | ten passes, s | evaluation | with recalibration", rows)


def students(root: Path) -> str:
    """Time of a student's pass, as a share of the teacher's six."""
    shares: dict[str, list[str]] = {}
    for row in measured(root, "students-cpu")["rows"]:
        shares.setdefault(row["network"], []).append(f"{row['ratio']:.3f}")
    names = {
        "learned student": "the learned shape", "learned student, 25 %": "at a quarter of its width",
        "student": "a quarter of every layer", "student, 25 %": "at a quarter of its width",
    }  # fmt: skip
    lines = (f"{name} | {' | '.join(shares[network])}" for network, name in names.items())
    return table("on a CPU core | one image | 64 images", lines)


# Ordered bits of weights

CONTESTANTS = {  # color, marker and line of each
    "nested": (BLUE, "o", "-"), "learned budget": (PURPLE, "D", "-"), "clipped": (ORANGE, "s", "--"),
    "min-max": (GREEN, "^", "-."), "truncated": (MUTED, "v", ":"), "aware": (INK, "*", "none"),
}  # fmt: skip
BITS_NAMES = {
    "nested": "nested, one training", "learned budget": "bits learned, as many bytes", "clipped": "rounded, clipped",
    "min-max": "rounded, min-max", "truncated": "leading bits of plain", "aware": "trained for this alone",
}  # fmt: skip


def _bits_rows(root: Path) -> tuple[dict[tuple[str, int], list[float]], dict[int, int]]:
    """Accuracies in per cent of each contestant and number of bits, by seed, and the bytes of each number."""
    found: dict[tuple[str, int], list[float]] = {}
    rows = measured(root, "weight-bits")["rows"]
    for row in rows:
        found.setdefault((row["contestant"], row["bits"]), []).append(100 * row["accuracy"])
    return found, {row["bits"]: row["bytes"] for row in rows if row["contestant"] in ("nested", "plain")}


def weight_bits(root: Path) -> str:
    """Accuracy of each contestant at each number of bits, and the difference of two by seed."""
    found, sizes = _bits_rows(root)
    lines = []
    for bits in sorted(sizes):
        names = ["plain" if bits == 32 and name == "clipped" else name for name in CONTESTANTS]
        cells = [_plus_minus(found[name, bits], 1) if (name, bits) in found else "–" for name in names]
        pairs = zip(found["nested", bits], found["plain" if bits == 32 else "clipped", bits], strict=True)
        cells.append(_plus_minus((a - b for a, b in pairs), 1).replace("-", "−"))
        lines.append(f"{bits} | {sizes[bits] / 1024:.1f} | {' | '.join(cells)}")
    return table(f"bits | KiB | {' | '.join(BITS_NAMES.values())} | nested − clipped", lines)


def bits_figure(root: Path) -> Figure:
    """Accuracy against bits: all of it, and from 3 bits on."""
    found, _ = _bits_rows(root)
    figure, axes = panels(2, 2, 3.4)
    for axis, first in zip(axes, (2, 3), strict=True):
        for name, (color, marker, line) in CONTESTANTS.items():
            points = {bits: confidence_interval(found[name, bits]) for bits in range(first, 9) if (name, bits) in found}
            means = [point.mean for point in points.values()]
            plot(axis, [*points], means, (color, marker, line), BITS_NAMES[name])
            if line != "none":
                low, high = zip(*((point.low, point.high) for point in points.values()), strict=True)
                axis.fill_between([*points], low, high, color=color, alpha=0.1, linewidth=0, zorder=1)
        plain = confidence_interval(found["plain", 32]).mean
        axis.axhline(plain, color=MUTED, linewidth=1.0, label="plain, 32 bits")
        if first > 2:  # the details: what falls far below leaves the frame
            least = min(min(found[name, bits]) for name, bits in found if name != "min-max" and first <= bits < 9)
            axis.set_ylim(bottom=least - 0.5)
        axis.set(xlabel="bits of a weight", ylabel="accuracy, %", xticks=range(first, 9))
        title(axis, "2 … 8 bits" if first == 2 else "from 3 bits on")
    return legend(figure, *axes, row=0.15)


def export_costs(root: Path) -> str:
    """Time and size of a file of all widths, beside its full width and the files of single ones."""
    lines = []
    for row in measured(root, "export-cpu")["rows"]:
        full = [", ".join(f"{x:.2f}" for x in row[f"of_full_{batch}"][1:]) for batch in (1, 64)]
        alone = [f"{min(row[f'of_extracted_{b}']):.2f} … {max(row[f'of_extracted_{b}']):.2f}" for b in (1, 64)]
        sizes = ", ".join(f"{size / 1e6:.2f}" for size in row["bytes_alone"])
        name = f"{row['network']}, {'drawn' if row['posterior'] else 'means'}"
        lines.append(f"{name} | {' | '.join(full + alone)} | {row['bytes'] / 1e6:.2f} ({sizes})")
    heading = "network | one example | 64 | one, to extracted | 64, to extracted | MB (of the four widths alone)"
    return table(heading, lines)


SERVICES = {"any width": (BLUE, "o", "-"), "full width": (ORANGE, "s", "--"), "quarter width": (GREEN, "^", "-.")}


def _served(root: Path) -> dict[tuple[str, float], Row]:
    """Medians over turns of what each service did with each load."""
    found: dict[tuple[str, float], Rows] = {}
    for row in measured(root, "serving-cpu")["rows"]:
        found.setdefault((row["service"], row["load"]), []).append(row)

    def middle(rows: Rows, key: str) -> float | None:
        known = [row[key] for row in rows if row[key] is not None]
        return median(known) if known else None

    keys = ("rate", "right", "wrong", "withheld", "late", "accuracy", "p50_ms", "p99_ms", "width")
    return {place: {key: middle(rows, key) for key in keys} for place, rows in found.items()}


def serving(root: Path) -> str:
    """What becomes of the requests at some loads, by service."""
    lines = []
    for (name, load), row in sorted(_served(root).items(), key=lambda item: item[0][1]):
        if load in (0.5, 1, 2, 4):
            shares = [f"{100 * row[key]:.1f}" for key in ("right", "wrong", "withheld", "late")]
            accuracy = "–" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f}"
            times = [f"{row[key]:.0f}" for key in ("p50_ms", "p99_ms")]
            lines.append(f"{load:g} | {row['rate']:.0f} | {name} | {' | '.join([*shares, accuracy, *times])}")
    heading = "load | a second | service | right, % | wrong | withheld | late | right of the answers, % | p50, ms | p99"
    return table(heading, lines)


def serving_figure(root: Path) -> Figure:
    """Right answers in time, accuracy and latency against load."""
    found = _served(root)
    figure, axes = panels(3, 3, 3.4)
    shown = [("right before the deadline", "of all requests, %", "right", 100)]
    shown += [("right of the answers", "of the answers in time, %", "accuracy", 100)]
    shown += [("latency: p99, and hollow the median", "ms (log scale)", "p99_ms", 1)]
    for axis, (heading, label, key, factor) in zip(axes, shown, strict=True):
        for name, look in SERVICES.items():
            points = {load: row for (service, load), row in found.items() if service == name and row[key] is not None}
            plot(axis, [*points], [factor * row[key] for row in points.values()], look, name)
            if key == "p99_ms":
                plot(axis, [*points], [row["p50_ms"] for row in points.values()], look, hollow=True)
        axis.set_ylabel(label)
        if key == "p99_ms":
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
        elif key == "accuracy":
            axis.set_ylim(80, 100)
        size_axis(axis, [load for _, load in found], "load (log scale)")
        title(axis, heading)
    return legend(figure, *axes, row=0.15)


PAGES: dict[str, tuple[Callable[[Path], str], ...]] = {
    "deploy.md": (export_costs,),
    "serving.md": (serving,),
    "benchmarks.md": (cifar10_targets, sandwiches, limits, small_budgets),
    "codes.md": (codes, partial(code_lengths, code=4), partial(code_lengths, code=32), small_codes),
    "paper-cifar10.md": (targets, more_targets, beside_paper, other_forms),
    "reproduction.md": (short_methods, students, distilled),
    "segmentation.md": (lidc_targets, log_alpha),
    "weight-bits.md": (weight_bits,),
    "speed.md": (
        sampling,
        layers,
        kl,
        memory,
        ngd,
        ngd_on_device,
        sandwich_step,
        throughput,
        measured_share,
        evaluation,
    ),
}


def _number(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text
