"""Evaluation: any network at some widths, as tidy rows and a page; a trained run, and its results as files."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

import vnd.nn as nested
from vnd._files import write_json, write_text
from vnd._text import check_known, one_line, short
from vnd.data.batches import Normalise
from vnd.data.images import Images
from vnd.methods import Size, Sizes
from vnd.methods.nested import sizes_of, told_apart
from vnd.metrics._checks import check_count
from vnd.nn import BayesLayer, Prediction, Shape
from vnd.nn.arguments import Arguments, Output, batch_inputs, check_output, describe_value, split_labels, to_device
from vnd.nn.extract import extract
from vnd.nn.predict import Link, evaluating, predict
from vnd.nn.profile import TIMED, latency, profile
from vnd.nn.recalibrate import is_altered
from vnd.nn.state import NestedState, batch_norms, lock_of, nested_part, state_of, unwrap
from vnd.nn.width import Width, as_shape
from vnd.serialization import load
from vnd.tasks import TASKS, Evaluation, Task, TrainedRun, task_of
from vnd.tasks.base import Reading, Scores, declare, detection, machine
from vnd.tasks.trained import BestOrLast, Splits, bn_batches, read_splits, repeatable
from vnd.train.config import parse_run
from vnd.train.recipe import Recipe, digest_of
from vnd.train.run import Log


def find_network(folder: Path, checkpoint: BestOrLast | None = None) -> tuple[Recipe, BestOrLast]:
    """The recipe of a run, and which of its networks is meant; refused where that is not there."""
    recipe = parse_run(folder)
    checkpoint = checkpoint or recipe.evaluate.checkpoint
    if not (folder / checkpoint / "network.json").exists():
        raise ValueError(f"{folder} has no {checkpoint} network yet; go on with vnd train --resume {folder}")
    return recipe, checkpoint


def open_run(folder: Path, checkpoint: BestOrLast | None = None, augmented: bool | None = None) -> TrainedRun:
    """Open a trained run, the network of one checkpoint; its images are read when they are first asked for.

    BatchNorm's statistics are collected from images that are `augmented` as in training or not. Of this and of the
    checkpoint None is what the recipe says.
    """
    recipe, checkpoint = find_network(folder, checkpoint)
    place = "cuda" if recipe.train.device != "cpu" and torch.cuda.is_available() else "cpu"  # wherever it was trained
    task, (image, mean, std) = task_of(recipe.method), fed(folder)
    plain = _network_of(recipe, folder, checkpoint, image) if recipe.network.is_own else None
    model: nn.Module = load(folder / checkpoint, plain).to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @cache
    def read() -> Splits:
        splits = read_splits(recipe.data, task)
        splits.check_same(folder)
        return splits

    return TrainedRun(
        recipe.method, model, Normalise(mean, std, place),
        lambda images, repeat, augmented: bn_batches(recipe, read(), task, place, images, repeat, augmented),
        augmented, read, recipe, folder, checkpoint,
    )  # fmt: skip


def _network_of(recipe: Recipe, folder: Path, checkpoint: BestOrLast, image: tuple[int, ...]) -> nn.Module:
    """The network of one's own that a run's was made from, as its recipe says: no saved network names code."""
    about = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    kind = json.loads((folder / checkpoint / "network.json").read_text(encoding="utf-8")).get("kind")
    with repeatable():  # weights that nobody will see
        classes = task_of(recipe.method).num_outputs(len(about.get("classes", ())))
        network = recipe.network.build(image, classes)
        return recipe.method.build(network, torch.rand(2, *image)) if kind == "plain" else network


def fed(folder: Path) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """Input of a run's network: channels, height and width, and the mean and std of its channels."""
    path = folder / "data.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        shape, mean, std = (tuple(about[key]) for key in ("image", "mean", "std"))
        if len(shape) != 3 or not len(mean) == len(std) == shape[0]:
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: must say image, mean and std, as vnd train wrote them") from None
    return shape, mean, std


def results_of(
    run: TrainedRun, options: Evaluation, test: Images, command: str, done: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """Evaluate a run at its sizes, and say where it all comes from: what `results.json` holds.

    `command` is the user's; `done` is called again and again with a part of the work that the task says there is.
    """
    recipe, splits, task = run.recipe, run.splits, task_of(run.method)
    start = time.perf_counter()
    found = task.evaluate(dataclasses.replace(run, augmented=options.augmented), options, test, done)
    seconds = {"evaluate": round(time.perf_counter() - start, 2)}
    log = Log(run.folder / "metrics.jsonl").read()
    shown = ("step", "epoch", "loss", "nll", "kl", "mse", "rate")
    series = {
        "run": run.folder.resolve().name, "recipe": recipe_name(run.folder), "method": recipe.method_name,
        "network": recipe.network.name, "data": recipe.data.name, "seed": recipe.train.seed,
        "settings": settings_of(recipe),
    }  # fmt: skip
    seconds["train"] = training_seconds(log, recipe.train.batch)
    return {
        **declare(task, recipe.method_name, recipe.data.name), "machine": machine(run.device), **found,
        "seconds": seconds, "series": series,
        "title": recipe.about or f"{recipe.method_name} on {recipe.data.name}", "command": command,
        "checkpoint": run.checkpoint, "data": splits.about(recipe.data.name) | {"test": len(test)},
        "curves": [{key: row[key] for key in shown if key in row} for row in log if "loss" in row],
    }  # fmt: skip


def training_seconds(log: list[dict[str, Any]], batch: int) -> float:
    """Seconds of a run's steps, validation and checkpoints left out, from the speeds in its log."""
    seconds, before = 0.0, 0
    for row in log:
        if "images_per_second" in row:
            seconds += (row["step"] - before) * batch / max(row["images_per_second"], 1e-9)
            before = row["step"]
    return round(seconds, 1)


def settings_of(recipe: Recipe) -> str:
    """A short hash of what decides a training but its seed, its width and where it runs: runs of one curve have one.

    The width of an auto-encoder is the length of its code; a network that segments has all its sizes in one run.
    """
    given = recipe.to_dict()
    widths = task_of(recipe.method).widths
    for section, keys in (("train", ("seed", "device", "track")), ("data", ("folder",)), widths):
        given[section] = {key: value for key, value in given[section].items() if key not in keys}
    del given["evaluate"]
    return digest_of(given)[:12]


def recipe_name(folder: Path) -> str | None:
    """The recipe that a run was begun with, as its command named it; None where it was not begun by one."""
    try:
        words = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["command"]
        name = words[words.index("train") + 1]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return None if not isinstance(name, str) or name.startswith("-") else Path(name).with_suffix("").as_posix()


def write(results: dict[str, Any], folder: Path) -> Path:
    """Write `results.json` and its tidy rows as `rows.csv`; the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows([results], folder, as_json=False)
    write_json(folder / "results.json", results)  # last: who finds it takes the run for evaluated
    return folder / "results.json"


def write_rows(every: list[dict[str, Any]], folder: Path, as_json: bool = True) -> None:
    """Write the tidy rows of some results, what they are of in front, as `rows.csv` and `rows.json`."""
    rows, buffer = list[dict[str, Any]](), io.StringIO()
    for results in every:
        own = {"train_seed" if key == "seed" else key: x for key, x in (results.get("series") or {}).items()}
        rows += [own | row for row in results["tidy"]]
    table = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(folder / "rows.csv", buffer.getvalue())
    if as_json:
        write_json(folder / "rows.json", rows)


def choose(rows: list[dict[str, Any]], accuracy: dict[str, float], margin: float = 0.01) -> dict[str, Any]:
    """The row of the smallest network whose accuracy is within a margin of the largest's.

    The accuracy is that of each row's label on images that are not those of the test, the margin a share of these.
    """
    full = max(rows, key=lambda row: row["parameters"])
    least = accuracy[full["label"]] - margin - 1e-9  # 0.87 - 0.01 is a little more than 0.86
    good = [row for row in rows if accuracy[row["label"]] >= least]
    return min(good, key=lambda row: row["parameters"])


# -- any network ------------------------------------------------------------------------------------------------------

WIDTHS: tuple[Width, ...] = (0.125, 0.25, 0.5, 1.0)
FAMILY = {"dirichlet": "softmax"}  # links whose predictions are of one kind
Batches = Iterable[Any] | Callable[[], Iterable[Any]]


@torch.no_grad()
def evaluate(
    net: nn.Module,
    batches: Batches,
    widths: Sequence[Width] | Mapping[str, Width] | Sizes | Width = WIDTHS,
    samples: int | Sequence[int] = 0,
    ood: Batches | Mapping[str, Batches] | None = None,
    *,
    task: str | Task | None = None,
    recalibrate: Batches | None = None,
    output: Output | None = None,
    dim: int | None = None,
    link: Link | None = None,
    bins: int = 15,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Evaluate any network at some widths: what each costs, how often it is right, and if it knows when it is not.

    All widths see each batch before the next one is read, so that `batches` are read once. Each runs as an extracted
    network, or masked where none of the same function can be extracted. The network is left as it was: its mode, its
    width, its statistics; so is the global generator.

    A row is a dict of plain values, so that `pandas.DataFrame(rows)` is a table. It has

    - the size: `label`, `kind` ("uniform": the same share of every layer; "learned": a shape), `fraction`;
    - its cost, extracted: `parameters`, `macs` of one example, `bytes`, `latency_ms`, the median time of
      `latency_batch` = 1 example on the `machine`; None where it does not run cut;
    - how it was read: `task`, `samples`, `inference` ("mean" or "mc"), the number of `examples`, and `recalibrated`:
      whether BatchNorm has statistics of this width; None without BatchNorm. Where it has none it runs on those of
      training, a mixture over widths, with a warning: give `recalibrate`;
    - the scores of its task. Classes: `accuracy`, `nll`, `brier`, `ece` and three more calibration errors, `aurc`.
      Numbers: `mse`, `rmse`, `mae`, `r2`. Classes of pixels: `iou`, `dice`, `accuracy`, `nll`, `ece`. Drawn masks:
      `ged_1` … `ged_16` and what else runs have. Codes: `length`, `mse`, `rate`. Those with `_low` and `_high` are the
      ends of a 95 % interval over examples;
    - with `ood`: `auroc`, `aupr` (by chance it is `base_rate`) and `fpr95` of telling its examples by the uncertainty:
      the entropy, or the spread of samples of numbers. With samples the same by `_mutual_information`, and of several
      sets each with its name behind: `auroc_svhn`.

    Args:
        net: A nested network, or any other, which has one size; or an ordered code, with `latent_dim`, `encode(x,
            length)` and `decode(codes)`, whose widths are lengths: shares, whole numbers, or "posterior"; or an
            `OrderedSegmenter`, whose widths are lengths of its latent: shares, whole numbers, or "drawn".
        batches: Labelled ones: (inputs, labels), (a, b, …, labels), or a dict with "labels" or "label" in it; a list, a
            data loader, a generator, or a function that gives one. Labels of −100 are left out.
        widths: Fractions, Shapes, or None for the width that is set; a dict gives them names. `vnd.methods.Sizes` has
            learned levels and numbers of parameters, too.
        samples: Draws of the weights that a prediction averages over; 0 for their means. Several, as (0, 6), give rows
            of each. A network whose weights have no posterior is read once, by its weights.
        ood: Batches as the network reads them, with labels or without, of what it was not trained on; or a dict of
            such sets by name.
        task: What outputs and labels are taken for, one of `vnd.tasks.TASKS` or a `Task`; None for the only one they
            can be.
        recalibrate: Batches of training data that BatchNorm's statistics of each width are collected from; see
            `vnd.recalibrate`. They are forgotten afterwards.
        output: The tensor that counts, where the network gives several, as in `vnd.predict`.
        dim: The dimension of the output that counts classes, as in `vnd.predict`.
        link: From outputs to predictions, as in `vnd.predict`; None for that of the conversion or of the task.
        bins: Of calibration errors.
        seed: Of the draws.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> batches = [(torch.randn(16, 2), torch.randint(3, (16,)))]
    >>> rows = vnd.evaluate(net, batches, widths=(0.5, 1.0), ood=[torch.randn(16, 2)])
    >>> [(row["label"], row["parameters"]) for row in rows], {"accuracy", "ece", "auroc"} <= set(rows[0])
    ([('50 %', 27), ('100 %', 51)], True)
    """
    draws, sets = _draws(net, samples), _named_sets(ood)
    check_output(output, "evaluate")
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
        raise ValueError(f"evaluate: dim must be a whole number or None; got {describe_value(dim)}")
    if link is not None and not isinstance(link, str):
        raise ValueError(f"evaluate: link must be text, as vnd.predict takes it, or None; got {describe_value(link)}")
    check_count("evaluate", "bins", bins)
    check_count("evaluate", "seed", seed, 0)
    if (taker := next((one for one in TASKS.values() if one.takes(net)), None)) is not None:
        if sets or recalibrate is not None or samples not in (0, [0], (0,)):
            raise ValueError(f"evaluate: {taker.kind} takes widths alone; got samples, ood or recalibrate")
        with repeatable(seed), evaluating(net), _bar(batches) as done:
            return taker.measure(net, _iterable(batches, "batches"), None if widths is WIDTHS else widths, done)
    with repeatable(seed), _as_before(net) if recalibrate is not None else nullcontext():
        sizes = _sizes(net, widths)
        if recalibrate is not None:
            kinds: Any = "both" if 0 in draws and max(draws) > 0 else 0 not in draws
            given = _iterable(recalibrate, "recalibrate")
            nested.recalibrate(net, given, [size.width for size in sizes], samples=kinds)
        run = _Evaluated(net, [(size, count) for size in sizes for count in draws], output, dim, link, bins, seed)
        with _bar(batches, *sets.values()) as done:
            run.read(_iterable(batches, "batches"), task, bool(sets), done)
            for name, own in sets.items():
                run.read_outside(name, _iterable(own, "ood"), done)
        return run.rows()


def _draws(net: Any, samples: Any) -> list[int]:
    """The numbers of samples, each once; 0 alone where no weight is drawn."""
    root, listed = unwrap(net), list(samples) if isinstance(samples, list | tuple) else [samples]
    if not listed or not all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in listed):
        raise ValueError(
            f"evaluate: samples must be whole numbers of 0 (posterior means) or more; got {describe_value(samples)}"
        )
    drawn = any(isinstance(module, BayesLayer) and module.bayesian for module in root.modules())
    return list(dict.fromkeys(listed)) if drawn else [0]


def _named_sets(ood: Any) -> dict[str, Any]:
    """Sets out of domain by name; "" for one that has none."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        return {"": ood}
    if not ood or not all(isinstance(name, str) and name for name in ood):
        raise ValueError(f"evaluate: ood must be batches, or a dict of sets by name; got {describe_value(ood)}")
    return dict(ood)


def _iterable(batches: Any, name: str) -> Iterable[Any]:
    """Batches, also of a function that gives them."""
    is_function = callable(batches) and not isinstance(batches, Iterable | nn.Module)
    found = batches() if is_function else batches
    if isinstance(found, Tensor | Mapping | str) or not isinstance(found, Iterable):
        raise ValueError(f"evaluate: {name} must be an iterable of batches; got {describe_value(found)}")
    return found


@contextmanager
def _bar(*several: Any) -> Iterator[Callable[[], None]]:
    """Show a bar over batches on a terminal; what is given counts one."""
    try:
        total = sum(map(len, several))
    except TypeError:  # a generator, or a data loader over a stream
        total = None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("evaluate", total=total)
        yield lambda: progress.advance(bar)


def _sizes(net: nn.Module, widths: Any) -> list[Size]:
    """The sizes that are meant; one of a network that is not nested."""
    if widths is WIDTHS and not hasattr(nested_part(net), "_vnd_state"):
        return [Size("uniform", "100 %", None, 1.0)]
    state_of(net)  # refuses what has no widths
    if isinstance(widths, Sizes):
        return sizes_of(net, widths)
    if isinstance(widths, Mapping) and not isinstance(widths, Shape):
        found = [dataclasses.replace(_size(net, width), label=str(name)) for name, width in widths.items()]
    elif isinstance(widths, Iterable) and not isinstance(widths, Shape | str):
        found = [_size(net, width) for width in widths]
    else:
        found = [_size(net, widths)]
    if not found:
        raise ValueError("evaluate: widths must name at least one width; got none")
    return told_apart(net, list(dict.fromkeys(found)))


def _size(net: nn.Module, width: Any) -> Size:
    """The size of a width, of which a shape may be a share of every layer, too."""
    shape = as_shape(net, width)
    if isinstance(width, int | float) and not isinstance(width, bool):
        return Size("uniform", f"{100 * width:.4g} %", shape, float(width))
    units = state_of(net).units
    shares = sorted({kept / units[name].num_groups for name, kept in shape.items() if kept})
    share = next((share for share in shares if as_shape(net, share) == shape), None)
    if share is not None:
        return Size("uniform", f"{100 * share:.4g} %", shape, share)
    return Size("learned", f"{short(profile(net, shape, count_macs=False).parameters)} parameters", shape)


@contextmanager
def _as_before(net: nn.Module) -> Iterator[None]:
    """Forget the statistics that are collected meanwhile."""
    part = nested_part(net)
    state: NestedState | None = getattr(part, "_vnd_state", None)
    if state is None:
        yield
        return
    held = dict(state.statistics), dict(state.stamps), state.trained
    try:
        yield
    finally:
        state.statistics, state.stamps, state.trained = held
        state.settled = False
        with lock_of(part):
            state.activate(part)


def report_page(rows: Any, path: Path | str, title: str | None = None) -> Path:
    """Write the page of the rows of one network or of several: one HTML file that needs nothing else.

    Accuracy, calibration and what else their task measures against the number of parameters, and all rows in numbers.

    Args:
        rows: What `evaluate` gave, or what was kept of it: a list of dicts, also as `csv.DictReader` reads them, a
            table with `to_dict`, as pandas has them, or the path of a `.csv`; or a dict of these by names of networks.
        path: The file, `.html`; its folder is made.
        title: Its heading.

    The path comes back.

    >>> rows = [{"label": "50 %", "kind": "uniform", "fraction": 0.5, "task": "classification", "parameters": 27,
    ...          "accuracy": 0.8, "ece": 0.1, "nll": 0.5, "inference": "mean", "samples": 0, "examples": 100}]
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report_page({"mine": rows}, f"{folder}/page.html").name
    'page.html'
    """
    from vnd.report.html import write_measured

    if not isinstance(path, str | Path):
        raise ValueError(f"report_page: path must be that of a file; got a {type(path).__name__}")
    if title is not None and not isinstance(title, str):
        raise ValueError(f"report_page: title must be text or None; got a {type(title).__name__}")
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"report_page: path must be a file that ends in .html; got {path}")
    named = rows if isinstance(rows, Mapping) else {"": rows}
    if not named:
        raise ValueError("report_page: rows must be of one network or more; got none")
    return write_measured([_results_of(str(name), given) for name, given in named.items()], path, title)


def _results_of(name: str, given: Any) -> dict[str, Any]:
    """A result file's contents of the rows of a network."""
    whose = f"report_page: rows of {name}" if name else "report_page: rows"
    rows = _plain_rows(whose, given)
    tasks = list(dict.fromkeys(row.get("task") for row in rows))
    if len(tasks) != 1 or tasks[0] not in TASKS:
        raise ValueError(f"{whose} must have a task, the same in each, one of {', '.join(TASKS)}; got {tasks}")
    if missing := next((key for key in ("label", "parameters") if any(row.get(key) is None for row in rows)), None):
        raise ValueError(f"{whose} must each have {missing}, as those of vnd.evaluate have")
    task = TASKS[str(tasks[0])]
    is_drawn = any(row.get("samples") for row in rows)
    ways = list(dict.fromkeys(row.setdefault("inference", "mc" if row.get("samples") else "mean") for row in rows))
    for row in rows:
        if "length_rule" not in row:
            row.setdefault("kind", "uniform")
        row["label"] = str(row["label"])
    columns = [{key: _of_examples(x) for key, x in column.items()} for column in task.measures or task.columns]
    method = {"key": name or "network", "name": name or "The network", "stochastic": is_drawn}
    unlike = any(row.get("recalibrated") in (False, 0) for row in rows)
    return {
        "format": 2, **task.describe(), "columns": columns + _further(columns, rows),
        "method": method | {"about": f"{name or 'The network'}, at {len({row['label'] for row in rows})} sizes."},
        "title": name or "Evaluation", "data": {"name": "the given examples"}, "inference": ways, "ood": None,
        "series": {"run": name or "network", "method": name or "network", "network": "", "data": "the given examples"},
        "rows": [row for row in rows if row["inference"] == ways[0]], "tidy": rows,
        "machine": rows[0].get("machine"), "split": "test", "sections": [*task.drawn],
        "latent_dim": rows[0].get("latent_dim"),
        "notes": ["BatchNorm has no statistics of some of these widths: give evaluate recalibrate="] * unlike,
    }  # fmt: skip


def _plain_rows(whose: str, given: Any) -> list[dict[str, Any]]:
    """Rows as dicts of plain values, those of text read, and without what is not known."""
    if isinstance(given, str | Path):
        if Path(given).suffix.lower() != ".csv" or not Path(given).exists():
            raise ValueError(f"{whose} must be a list of dicts or the path of a .csv that is there; got {given}")
        with Path(given).open(encoding="utf-8", newline="") as file:
            given = list(csv.DictReader(file))
    if hasattr(given, "to_dict"):
        given = given.to_dict("records")
    is_list = isinstance(given, list | tuple)
    if not is_list or not given or not all(isinstance(row, Mapping) for row in given):
        got = "none" if is_list and not given else describe_value(given)
        raise ValueError(f"{whose} must be a list of dicts, one or more, as vnd.evaluate gives them; got {got}")
    return [{str(key): x for key, value in row.items() if (x := _plain(key, value)) is not None} for row in given]


def _of_examples(words: Any) -> Any:
    """Words on images as words on examples, which may be of any kind."""
    return words.replace("image", "example") if isinstance(words, str) else words


WORDS = ("label", "kind", "task", "inference", "machine")  # values of rows that are words, whatever they look like


def _plain(key: Any, value: Any) -> Any:
    """A value of a row as JSON has it; None where it is not known."""
    value = value.item() if hasattr(value, "item") else value
    if key not in WORDS and isinstance(value, str):
        try:
            value = {"True": True, "False": False}.get(value, float(value) if value not in ("True", "False") else 0)
        except ValueError:
            return value or None
    if isinstance(value, float) and value.is_integer() and key not in ("fraction",):
        return int(value)
    return None if value is None or value != value or value == "" else value


def _further(columns: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Columns of further uncertainties and of further sets out of domain, after those of the first."""
    found = []
    for column in columns:
        if column["key"] not in ("auroc", "aupr"):
            continue
        for key in dict.fromkeys(key for row in rows for key in row if key.startswith(f"{column['key']}_")):
            of = key.removeprefix(f"{column['key']}_")
            name = of.removeprefix("mutual_information").removeprefix("_")
            by = "mutual information" if of.startswith("mutual_information") else ""
            own = {k: x for k, x in column.items() if k not in ("chance", "headline")}
            if by or "title" not in own:  # in the table, not drawn
                own.pop("title", None)
            else:
                own["title"] = f"{own['title']}: {name}"
            found.append({**own, "key": key, "heading": ", ".join(filter(None, (own["heading"], by, name)))})
    return found


@dataclass(eq=False)
class _Contestant:
    """A size that is read in one way: what runs, at which width, and what was found so far."""

    size: Size
    samples: int
    network: nn.Module
    width: Width
    row: dict[str, Any] = field(default_factory=dict)
    scores: Scores | None = None
    inside: dict[str, list[Tensor]] = field(default_factory=dict)
    outside: dict[str, dict[str, list[Tensor]]] = field(default_factory=dict)


class _Evaluated:
    """A network at all its sizes, and what was found of it so far."""

    task: Task
    reading: Reading

    def __init__(
        self, net: nn.Module, wanted: list[tuple[Size, int]], output: Any, dim: Any, link: Any, bins: int, seed: int
    ) -> None:
        self.net, self.root = net, unwrap(net)
        self.output, self.dim, self.link, self.bins, self.seed = output, dim, link, bins, seed
        like = next(self.root.parameters(), None)
        self.device = torch.device("cpu") if like is None else like.device
        self.examples, self.shape = 0, tuple[int, ...]()
        self.contestants = [self._open(size, samples) for size, samples in wanted]

    def read(self, batches: Iterable[Any], task: str | Task | None, is_compared: bool, done: Callable[[], Any]) -> None:
        """Score labelled batches at every size."""
        for number, batch in enumerate(batches):
            where = f"batch {number}"
            inputs, labels = self._told(where, split_labels, self.root, batch, "evaluate")
            inputs = self._moved(where, inputs)
            if len(labels.shape) and len(labels) != len(inputs):
                raise ValueError(
                    f"evaluate: {where} must have as many labels as inputs; got {len(labels)} labels and "
                    f"{len(inputs)} inputs"
                )
            if number == 0:
                self._begin(inputs, labels, task)
            for one in self.contestants:
                prediction = self._predict(one, inputs, number, where)
                assert one.scores is not None  # `_begin` made them
                self._told(f"{where}, {one.size.label}", one.scores.add, prediction, labels)
                for name, found in self.task.uncertainties(prediction).items() if is_compared else ():
                    one.inside.setdefault(name, []).append(found.cpu())
            self.examples += len(inputs)
            done()
        if not self.examples:
            raise ValueError("evaluate: batches must hold at least one batch; got none (a generator that was read?)")

    def read_outside(self, name: str, batches: Iterable[Any], done: Callable[[], Any]) -> None:
        """Uncertainties of a set out of domain at every size."""
        which, number = f"ood {name}".strip(), -1
        for number, batch in enumerate(batches):
            where = f"{which}, batch {number}"
            inputs = self._moved(where, self._told(where, self._unlabelled, batch))
            for one in self.contestants:
                found = self.task.uncertainties(self._predict(one, inputs, number, where))
                if not found:
                    raise ValueError(
                        f"evaluate: {which}: outputs of a network of this task have no uncertainty without samples of "
                        f"the weights; give samples, got {one.samples}"
                    )
                for kind, own in found.items():
                    one.outside.setdefault(name, {}).setdefault(kind, []).append(own.cpu())
            done()
        if number < 0:
            raise ValueError(f"evaluate: {which} must hold at least one batch; got none (a generator that was read?)")

    def rows(self) -> list[dict[str, Any]]:
        """The rows, in the order of sizes."""
        return [self._row(one) for one in self.contestants]

    def _open(self, size: Size, samples: int) -> _Contestant:
        """An extracted network; the masked one where none of the same function is there."""
        net = self.net
        if not hasattr(nested_part(net), "_vnd_state"):
            return _Contestant(size, samples, net, None)
        is_share = size.fraction is not None and as_shape(net, size.fraction) == size.width
        state, width = state_of(net), size.fraction if is_share else size.width  # in the words of a warning
        if any(is_altered(module, self.root, state) for module in self.root.modules()):
            return _Contestant(size, samples, net, width)
        try:
            return _Contestant(size, samples, extract(net, width, "posterior" if samples else "mean").eval(), None)
        except (ValueError, TypeError, RuntimeError):  # it has no smaller form, or cannot be copied
            return _Contestant(size, samples, net, width)

    def _begin(self, inputs: Arguments, labels: Tensor, wanted: str | Task | None) -> None:
        """Find out the task by the first batch, and measure costs on its first example."""
        first = self.contestants[0]
        drawn = min(1, first.samples)  # as it is read: BatchNorm may have statistics of drawn weights alone
        options: dict[str, Any] = {"samples": drawn, "seed": self.seed, "link": "identity", "output": self.output}
        raw = self._told("batch 0", predict, first.network, inputs.given, first.width, **options).probs
        self.task, self.reading = _task_of(raw, labels, wanted, self.dim)
        state: NestedState | None = getattr(nested_part(self.net), "_vnd_state", None)
        own = None if state is None else state.arguments.get("link")
        link = self.link or (own if own not in (None, "softmax") else self.reading.link)
        if self.reading.link != "identity" and FAMILY.get(link, link) != FAMILY.get(
            self.reading.link, self.reading.link
        ):
            raise ValueError(
                f"evaluate: link must give what labels of {self.task.name} are held against, by {self.reading.link!r} "
                f"for outputs of shape {tuple(raw.shape)}; got {link!r}"
            )
        self.reading, self.shape = Reading(link, self.reading.dim), tuple(inputs.lead.shape)
        example, costs = inputs.rows(slice(0, 1)).given, dict[str, dict[str, Any]]()
        for one in self.contestants:
            if one.size.label not in costs:
                costs[one.size.label] = self._told("batch 0", self._cost, one, example)
            one.row = self._about(one) | costs[one.size.label]
            one.scores = self.task.scores(self.reading, self.bins)

    def _about(self, one: _Contestant) -> dict[str, Any]:
        about = {
            "label": one.size.label, "kind": one.size.kind, "fraction": one.size.fraction, "task": self.task.name,
            "samples": one.samples, "inference": "mc" if one.samples else "mean", "recalibrated": None,
        }  # fmt: skip
        part = nested_part(self.net)
        state: NestedState | None = getattr(part, "_vnd_state", None)
        if state is not None and any(True for _ in batch_norms(part)):
            shape = as_shape(self.net, one.size.width)
            as_converted = shape == state.full and state.stamp(part) == state.converted_at
            about["recalibrated"] = as_converted or state.valid_statistics(part, (shape, one.samples > 0)) is not None
        return about

    def _cost(self, one: _Contestant, example: Any) -> dict[str, Any]:
        """Cost of the network of a size with the means of its weights."""
        net, width, cost = self.net, one.size.width, dict[str, Any]()
        state: NestedState | None = getattr(nested_part(net), "_vnd_state", None)
        if state is not None and not state.bits and one.width is None and not one.samples:
            net, width = one.network, None  # cut out already; bits of its weights would be floats
        try:
            cost = dataclasses.asdict(profile(net, width, example))
            cost["latency_ms"] = latency(net, width, example, TIMED)
        except ValueError:
            if one.size.width is None:
                raise
            cost = dataclasses.asdict(profile(self.net, one.size.width, count_macs=False))  # cannot be run cut
            cost |= {"macs": None, "latency_ms": None}
        return cost | {"latency_batch": 1, "machine": machine(self.device)}

    def _predict(self, one: _Contestant, inputs: Arguments, number: int, where: str) -> Prediction:
        """Predict a batch; refused where an answer is not a number."""
        where = f"{where}, {one.size.label}"
        options: dict[str, Any] = {"link": self.reading.link, "dim": self.reading.dim, "output": self.output}
        options |= {"samples": one.samples, "seed": self.seed + number}
        try:
            found = predict(one.network, inputs.given, one.width, **options)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, RuntimeError, TypeError, IndexError, KeyError) as error:
            shape = tuple(inputs.lead.shape)
            unlike = shape[1:] != self.shape[1:]
            got = f"; got inputs of shape {shape}, those of batch 0 were {self.shape}" if unlike else ""
            raise ValueError(f"evaluate: {where}: {one_line(error)}{got}") from error
        if not bool(found.probs.isfinite().all()):
            bad = any(not bool(x.isfinite().all()) for x in inputs.tensors() if x.is_floating_point())
            what = "inputs" if bad else "the network's outputs"
            raise ValueError(f"evaluate: {where}: {what} must be finite; got NaN or infinity")
        return found

    def _unlabelled(self, batch: Any) -> Arguments:
        args, kwargs = batch_inputs(self.root, batch, self.device)
        return Arguments.of(kwargs or (args[0] if len(args) == 1 else args), "evaluate")

    def _moved(self, where: str, inputs: Arguments) -> Arguments:
        if not inputs.lead.numel():
            raise ValueError(f"evaluate: {where} is empty; got a tensor of shape {tuple(inputs.lead.shape)}")
        return Arguments.of(to_device(inputs.given, self.device), "evaluate")

    def _told(self, where: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function; what it refuses is said with the batch."""
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, RuntimeError, TypeError, IndexError, KeyError) as error:
            said = one_line(error)
            for who in ("evaluate: ", "predict: "):
                said = said.removeprefix(who)
            raise ValueError(f"evaluate: {where}: {said}") from error

    def _row(self, one: _Contestant) -> dict[str, Any]:
        assert one.scores is not None  # `read` made them
        found: dict[str, Any] = one.row | {"examples": self.examples} | self._told(one.size.label, one.scores.row)
        for name, kinds in one.outside.items():
            for kind, outside in kinds.items():
                inside = torch.cat(one.inside[kind])
                ends = "".join(f"_{part}" for part in (kind, name) if part)
                apart = detection(inside, torch.cat(outside))
                found |= {f"{key}{ends}": float(x) for key, x in apart.items() if key != "base_rate" or not kind}
        return found


def _task_of(output: Tensor, target: Tensor, wanted: str | Task | None, dim: int | None) -> tuple[Task, Reading]:
    """The task that outputs and labels are of, and how it reads them."""
    shapes = f"outputs of shape {tuple(output.shape)} and labels, {target.dtype}, of shape {tuple(target.shape)}"
    if isinstance(wanted, str):
        check_known("evaluate: task", wanted, TASKS)
    elif wanted is not None and not isinstance(wanted, Task):
        raise ValueError(f"evaluate: task must be the name of one, a Task or None; got a {type(wanted).__name__}")
    asked = [TASKS[wanted] if isinstance(wanted, str) else wanted] if wanted is not None else list(TASKS.values())
    try:
        fits = [(one, found) for one in asked if (found := one.reads(output, target, dim)) is not None]
    except ValueError as error:
        raise ValueError(f"evaluate: {error}") from None
    if len(fits) == 1:
        return fits[0]
    if not fits:
        raise ValueError(
            f"evaluate: labels must fit the outputs of {asked[0].name if wanted else 'a task'}; got {shapes}"
        )
    names = " or ".join(repr(one.name) for one, _ in fits)
    raise ValueError(f"evaluate: task must be given where several fit, {names}; got {shapes}")
