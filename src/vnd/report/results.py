"""Result files: what they must hold, the runs that lie in folders and files, where these come from, and what is kept.

A result file says itself what it is of. Beside numbers, "format" 2 has: "task" (its "name", the "noun" for one of its
networks, and by what runs are "compare"d), "method" (its "key", its display "name" and its traits), "columns" (what the
numbers of a row are called, how they are written, which side is better) and "sections" (the parts of its page, in
order: names of `vnd.report.html.SECTIONS`). The report knows no task and no method by name.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vnd._files import write_text

FORMAT = 2
RESULTS, SCHEMA, CAPTIONS = "results.json", "schema.yaml", "captions.yaml"
SIGNS = ("recipe.yaml", "checkpoints", "metrics.jsonl")  # of a run's folder, evaluated or not
LAST = "last"  # the network at the end of training
PROGRAM = re.compile(r"(vnd|__main__\.py)$")  # what the command line calls itself
# Of a result file: images, which are not ours to pass on, and the curve of training. No comparison reads them.
DROPPED = ("examples", "curves")
FOLDER = re.compile(r"""^(\s*(?:- |[^\s:'"]+: ))['"]?/.*$""", re.MULTILINE)  # a path of one machine, in a recipe
SLACK = 1e-6  # of a share, which was a float32 once


@cache
def declared(name: str) -> dict[str, Any]:
    """Read a YAML file of this package."""
    found: dict[str, Any] = yaml.safe_load(files("vnd.report").joinpath(name).read_text("utf-8"))
    return found


@dataclass(frozen=True)
class Column:
    """A number of a row: what it is called, how it is written, and what it says."""

    key: str  # of the rows
    heading: str  # of the table
    form: str = "number"  # "percent" of shares; "short" of counts
    digits: int = 3  # after the point
    better: str = ""  # "more", "less", or "" where there is no better
    description: str = ""  # what it means, for readers who have not met it
    title: str = ""  # heading of its figure; without one it is not drawn
    axis: str = ""  # what the figure's axis says
    headline: str = ""  # what the best network is said to be in it; without it, nobody is called best
    scaled: bool = True  # whether temperature scaling changes it
    chance: str = ""  # the column that has what chance gives

    @property
    def factor(self) -> int:
        """Factor by which its numbers are multiplied to be shown."""
        return 100 if self.form == "percent" else 1


@dataclass(eq=False)
class Run:
    """One evaluated run; None or empty is what no file says."""

    path: Path  # the file that says so
    results: dict[str, Any]  # what it says
    beside: dict[str, Any] = field(default_factory=dict)  # "environment" and "data" as JSON, "recipe"

    def __post_init__(self) -> None:
        series: dict[str, Any] = self.results.get("series") or {}
        self.name = str(series.get("run") or self.path.resolve().parent.name)  # of its folder
        self.method: dict[str, Any] = self.results["method"]  # key, display name and traits
        self.recipe: str | None = series.get("recipe") or None  # its name
        self.network = str(series.get("network") or "unnamed network")
        self.data = str(series.get("data") or self.results["data"]["name"])
        self.seed: int | None = series.get("seed")  # of its training
        self.settings: str | None = (
            series.get("settings") or None
        )  # hash of what else decides it, but a size of its own
        self.split = str(self.results.get("split") or "test")  # of the images it was measured on
        rows = self.results.get("tidy") or self.results["rows"]
        self.inference = str((self.results.get("inference") or [rows[0].get("inference") or "mc"])[0])  # main

    @property
    def image(self) -> str:
        """Size of its images, "64×64"; empty where nothing says."""
        beside = self.beside.get("data")
        sides: Any = self.results["data"].get("image") or (beside.get("image") if isinstance(beside, dict) else None)
        known = isinstance(sides, list) and len(sides) == 3 and all(isinstance(n, int) and n > 0 for n in sides)
        return "×".join(map(str, sides[1:])) if known else ""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Its rows, all flat: one a way of inference, number of images for BatchNorm, size and repeat."""
        rows = self.results["rows"] if "ged" in self.results["rows"][0] else self.results.get("tidy")
        return [self._flat(row) for row in rows or self.results["rows"]]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns of its rows, by key."""
        known = {one.name for one in fields(Column)}
        names = measure_names(self.results.get("features") or {})
        given = [{k: v for k, v in one.items() if k in known} for one in self.results["columns"]]
        found = [Column(**one | {"key": names.get(one["key"], one["key"])}) for one in given]
        return {column.key: column for column in found}

    def _flat(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with a kind, a label and a way of inference, and with numbers alone; those of features by their names.

        Numbers by a number of samples, {"4": 0.3}, have it behind their key: "ged_4".
        """
        found: dict[str, Any] = {"inference": self.inference, "kind": row.get("length_rule") or "uniform"}
        if "length" in row:
            found |= {"label": f"{row['length']:g}", "latent_dim": self.results["latent_dim"]}
        names = measure_names(self.results.get("features") or {})
        for key, value in row.items():
            if isinstance(value, dict) and key not in ("shape", "per_image", "ged_interval"):
                found |= {f"{key}_{count}": part for count, part in value.items() if part is not None}
            elif value is not None:
                found[names.get(key, key)] = value
        return found


def measure_names(features: dict[str, Any]) -> dict[str, str]:
    """Names of measures of generated images, by their key; with the extractor, so that no two are mixed."""
    if not features:
        return {}
    diversity = f"Diversity ({features['name']})"
    return {"frechet": features["distance_name"], "inception_score": features["score_name"], "diversity": diversity}


def read(place: Path) -> dict[str, Any]:
    """The contents of a run's result file, `checked`."""
    path = Path(place) / RESULTS if Path(place).is_dir() else Path(place)
    return checked(path, _json(path))


def open_run(path: Path) -> Run:
    """The run of a result file, with what lies beside it."""
    beside: dict[str, Any] = {}
    for folder in (path.parent.parent, path.parent):  # a result file may have a folder of its own in that of the run
        for name in ("environment.json", "data.json", "recipe.yaml"):
            try:
                text = (folder / name).read_text(encoding="utf-8", errors="replace")
                beside[Path(name).stem] = text if name.endswith("yaml") else json.loads(text)
            except (OSError, ValueError, RecursionError):
                continue
    return Run(path, read(path), beside)


def find(places: Iterable[Path]) -> tuple[list[Run], list[Path]]:
    """The runs of some places, each once, in the order given; and folders of runs that were not evaluated.

    Places are run folders, result files, files of kept runs (`.jsonl`), or folders with runs one level down. A run that
    is named and was not evaluated is an error. In a folder of runs it is left out, and the page says so: a sweep may
    have runs that failed, and a comparison from which runs are silently missing misleads.
    """
    paths: dict[Path, Path] = {}
    for path in (path for place in places for path in _in(Path(place))):
        paths.setdefault(path.resolve(), path)
    left_out = [path.parent for path in paths.values() if not path.exists()]
    there = [path for path in paths.values() if path.exists()]
    runs = [run for path in there for run in (_kept(path) if path.suffix == ".jsonl" else [open_run(path)])]
    if not runs and left_out:
        names = ", ".join(folder.name for folder in left_out)
        todo = "run `vnd evaluate` on those that are trained"
        raise FileNotFoundError(f"report: none of the runs was evaluated ({names}); {todo}")
    if not runs:
        raise ValueError("report: at least one run must be given; got none")
    refuse_mixtures(runs)
    return runs, left_out


def chosen_row(results: dict[str, Any]) -> dict[str, Any] | None:
    """The row that `chosen` means, by label and, where several have it, by number of parameters; None if none is."""
    chosen = results.get("chosen")
    if not chosen:
        return None
    rows: list[dict[str, Any]] = [row for row in results["rows"] if row["label"] == chosen["label"]]
    if not rows:
        raise ValueError(f"chosen.label must be the label of one of the rows; got {_shown(chosen['label'])}")
    return next((row for row in rows if row["parameters"] == chosen.get("parameters")), rows[0])


def refuse_mixtures(runs: Sequence[Run]) -> None:
    """Runs of several tasks have no measure in common, and images of two splits must not be compared."""
    first = runs[0]
    for other in runs:
        if other.split != first.split:
            got = f"{first.split} images in {first.path} and {other.split} images in {other.path}"
            raise ValueError(f"report: runs must all be measured on the same images; got {got}")
        one, two = first.results["task"], other.results["task"]
        if one["name"] != two["name"]:
            got = f"got {first.path} and {other.path}, report them apart"
            raise ValueError(f"report: {one['noun']}s and {two['noun']}s have no measure in common; {got}")


def _kept(path: Path) -> Iterator[Run]:
    """The runs of a file of kept runs, one a line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            run = json.loads(line)
            results = run.pop("results")
        except (ValueError, RecursionError, KeyError, AttributeError, TypeError):
            raise ValueError(f'report: {path}, line {number} must be a JSON object with "results"') from None
        yield Run(path, checked(Path(f"{path}, line {number}"), results), run)


def _in(place: Path) -> list[Path]:
    """The result files of a place, there or not: its own, or those one level down."""
    own = place / RESULTS if place.is_dir() else place
    if own.exists():
        return [own]
    run = own.parent
    if own.name == RESULTS and _is_run(run):
        is_trained = (run / LAST).is_dir()
        said = f"was not evaluated; run `vnd evaluate {run}` first"
        goes_on = f"is not trained to the end; go on with `vnd train --resume {run}`"
        raise FileNotFoundError(f"report: {run} {said if is_trained else goes_on}")
    if not place.is_dir():
        raise FileNotFoundError(f"report: {place} does not exist; give run folders or {RESULTS}")
    below = [path / RESULTS for path in sorted(place.iterdir()) if path.is_dir() and _is_run(path)]
    if not below:
        raise FileNotFoundError(f"report: {place} holds no run; give run folders or folders that hold them")
    return below


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (RESULTS, *SIGNS))


def _json(path: Path) -> Any:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(contents, ensure_ascii=False).encode()  # half a character passes as JSON, and fails in a page
        return contents
    except FileNotFoundError:
        evaluate, give = f"run `vnd evaluate {path.parent}` first", f"give a run folder or its {RESULTS}"
        where = evaluate if path.name == RESULTS else give
        raise FileNotFoundError(f"report: {path} is missing; {where}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"report: {path} must be JSON in UTF-8: {str(error).splitlines()[0]}") from None


def checked(path: Path, contents: Any) -> dict[str, Any]:
    """The contents of a result file, once every part that the report uses is known to be what it should be."""
    try:
        check(contents, declared(SCHEMA)["file"], "")
        _check_rows(contents)
        _check_lengths(contents)
        if chosen_row(contents) is None:
            contents.pop("chosen", None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"report: {path}: {' '.join(str(error).split())}") from None
    found: dict[str, Any] = contents
    return found


def check(value: Any, wanted: Any, key: str) -> None:
    """Refuse a value that is not what the schema says, by its key."""
    if isinstance(wanted, dict):
        _check_dict(value, wanted, key)
        return
    kind, _, null = str(wanted).partition(" or ")
    if isinstance(wanted, list):
        words, fits = "a list that is not empty", isinstance(value, list) and bool(value)
    elif kind in KINDS:
        words, fits = KINDS[kind][0] + ", or null" * bool(null), KINDS[kind][1](value) or (bool(null) and value is None)
    else:
        choices = wanted.split(" | ") if isinstance(wanted, str) else [wanted]
        words, fits = " or ".join(map(repr, choices)), value in choices and not isinstance(value, bool)
    if not fits:
        raise ValueError(f"{key} must be {words}; got {_shown(value)}")
    for index, item in enumerate(value if isinstance(wanted, list) else ()):
        check(item, wanted[0], f"{key}.{index}")


def _check_dict(value: Any, wanted: dict[str, Any], key: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{key or 'the file'} must be an object with keys; got {_shown(value)}")
    if "*" in wanted:
        wanted = dict.fromkeys(value, wanted["*"])
    for name, inner in wanted.items():
        bare = name if name in value else name.removesuffix("?")
        place = f"{key}.{bare}" if key else bare
        if name != bare and value.get(bare) in (None, [], {}):
            continue
        if bare not in value:
            raise ValueError(f"{place} is missing")
        check(value[bare], inner, place)


def _check_rows(contents: dict[str, Any]) -> None:
    """Rows have what their kind needs, and a number in every declared column that is not empty."""
    schema, columns = declared(SCHEMA), [column["key"] for column in contents["columns"]]
    for part in ("rows", "tidy"):
        for index, row in enumerate(contents.get(part) or []):
            kind = next((key for key in schema["row_kinds"] if key in row), "")
            if kind == "ged" and part == "tidy":
                continue  # the same once more, a line a number of samples
            check(row, schema["file"]["rows"][0], f"{part}.{index}")
            check(row, schema["row_kinds"][kind], f"{part}.{index}")
            for key in columns:
                if isinstance(row.get(key), str | list | bool):
                    raise ValueError(f"{part}.{index}.{key} must be {KINDS['number'][0]}; got {_shown(row[key])}")


def _check_lengths(contents: dict[str, Any]) -> None:
    """Refuse lists that belong together and do not have one length, and keys that do not fit together."""
    if "ged" in contents["rows"][0]:
        _check_samples(contents)
    elif "length" in contents["rows"][0]:
        check(contents, declared(SCHEMA)["codes"], "")
    reliability: Any = contents.get("reliability") or []
    by_label, labels = isinstance(reliability, dict), {row.get("label") for row in contents["rows"]}
    if reliability:
        check(reliability, declared(SCHEMA)["reliability_by_label" if by_label else "reliability"], "reliability")
    for place, width in reliability.items() if by_label else enumerate(reliability):
        if by_label and place not in labels:
            raise ValueError(f"reliability must have labels of rows as keys; got {_shown(place)}")
        _same(f"reliability.{place}", width)
    for index, row in enumerate((contents.get("selective") or {}).get("rows", [])):
        _same(f"selective.rows.{index}.curve", row.get("curve") or {})
    cascade, correlation = contents.get("cascade") or {}, contents.get("correlation") or {}
    for index, point in enumerate(cascade.get("curve", [])):
        if len(point["share"]) != len(cascade["levels"]):
            raise ValueError(f"cascade.curve.{index}.share must have one number a level, {len(cascade['levels'])}")
    for key in ("inside", "outside"):
        size = len(correlation.get("labels", []))
        if correlation.get(key) and [len(line) for line in correlation[key]] != [size] * size:
            raise ValueError(f"correlation.{key} must have one row and one column a label, {size} × {size}")
    for name, counts in (contents.get("lengths") or {}).items():
        if len(counts) != contents.get("latent_dim", 0) + 1 or not sum(counts):
            raise ValueError(f"lengths.{name} must count images at each length from 0 to latent_dim")
    found = contents.get("complexity") or {"correlation": (), "shown": {"png": []}}
    if not {"png", *found["correlation"]} <= set(found["shown"]):
        raise ValueError("complexity.shown must have png and one list a correlation")
    _same("complexity.shown", found["shown"])


def _check_samples(contents: dict[str, Any]) -> None:
    """Rows of masks: one label each, the same numbers of samples, the same images."""
    check(contents, declared(SCHEMA)["masks"], "")
    counts, labels = {*map(str, contents["samples"])}, [row["label"] for row in contents["rows"]]
    if len(set(labels)) < len(labels):
        raise ValueError(f"rows must have one label each; got {_shown(labels)}")
    images = len(next(iter(contents["rows"][0]["per_image"].values()), []))
    for index, row in enumerate(contents["rows"]):
        for key in ("ged", "ged_unbiased", "ged_by_group", "ged_interval", "expected_ged", "per_image"):
            if row.get(key) and set(row[key]) != counts:
                said = f"must have the numbers of samples as keys; got {_shown([*row[key]])}"
                raise ValueError(f"rows.{index}.{key} {said}")
        if any(len(values) != images for values in row["per_image"].values()):
            raise ValueError(f"rows.{index}.per_image must have one number an image everywhere, {images} as the first")
        for count, ends in (row.get("ged_interval") or {}).items():
            if len(ends) != 2 or ends[0] > ends[1]:
                raise ValueError(f"rows.{index}.ged_interval.{count} must be two ends that rise; got {_shown(ends)}")
    if contents.get("groups") and len(contents["groups"]) != images:
        raise ValueError(f"groups must be one an image, {images}; got {len(contents['groups'])}")


def _same(place: str, values: dict[str, Any]) -> None:
    """Refuse lists beside each other that do not have one length."""
    lists = {key: value for key, value in values.items() if isinstance(value, list)}
    if len(set(map(len, lists.values()))) > 1:
        raise ValueError(f"{place}: {', '.join([*lists][:-1])} and {[*lists][-1]} must have one length")


def _is_image(value: Any) -> bool:
    try:
        pixels = np.array(value)
    except ValueError:  # rows of several lengths
        return False
    is_gray_or_rgb = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    return bool(
        is_gray_or_rgb and pixels.dtype == np.int64 and pixels.size and 0 <= pixels.min() <= pixels.max() <= 255
    )


def _number(fits: Callable[[float], bool]) -> Callable[[Any], bool]:
    """Check for finite numbers that fit; NaN is none."""
    return lambda x: isinstance(x, int | float) and not isinstance(x, bool) and -1e300 < x < 1e300 and fits(x)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # of values of the schema: in words, and what tells them
    "text": ("text", lambda x: isinstance(x, str)),
    "flag": ("true or false", lambda x: isinstance(x, bool)),
    "name": ("text or a whole number", lambda x: isinstance(x, str | int) and not isinstance(x, bool)),
    "line": (
        "text, or [offset, [lengths]]",
        lambda x: isinstance(x, str) or (isinstance(x, list) and len(x) == 2 and isinstance(x[1], list)),
    ),
    "image": ("rows of whole numbers in 0 … 255, H × W or H × W × 3", _is_image),
    "number": ("a finite number", _number(lambda x: True)),
    "natural": ("a finite number of at least 0", _number(lambda x: x >= 0)),
    "positive": ("a finite number above 0", _number(lambda x: x > 0)),
    "count": ("a whole number of at least 0", _number(lambda x: x == int(x) >= 0)),
    "size": ("a whole number of at least 1", _number(lambda x: x == int(x) >= 1)),
    "share": ("a number in 0 … 1", _number(lambda x: -SLACK <= x <= 1 + SLACK)),
    "part": ("a number in (0, 1]", _number(lambda x: 0 < x <= 1 + SLACK)),
    "correlation": ("a number in -1 … 1", _number(lambda x: abs(x) <= 1 + SLACK)),
}


def _shown(value: Any) -> str:
    """A value in an error message, not too long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# Where runs come from, and what is kept of them


@dataclass(frozen=True)
class Origin:
    """Provenance of one run, in words; empty where nothing says."""

    machine: str  # its GPUs, or its CPU cores
    torch: str  # version
    commit: str  # of the library, in short; "+" after it where the source was changed
    commands: tuple[str, ...]  # that trained it and that evaluated it


def origin(run: Run) -> Origin:
    """Provenance of a run, as its environment says, which may be missing or broken, or else its results."""
    given: Any = run.beside.get("environment")
    said: dict[str, Any] = {"versions": {}, "git": {}, "gpus": [], "command": [], "cpus": 0}
    for key, empty in said.items() if isinstance(given, dict) else ():
        if isinstance(given.get(key), type(empty)):
            said[key] = given[key]
    machine, _, torch = str(run.results.get("machine") or "").partition(", torch ")
    gpus: dict[str, int] = Counter(map(str, said["gpus"]))
    if gpus:
        machine = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in gpus.items())
    elif said["cpus"]:
        machine = f"{said['cpus']} CPU cores"
    git = dict(said["git"])
    commit = f"{git['commit'][:9]}{'+' * bool(git.get('dirty'))}" if isinstance(git.get("commit"), str) else ""
    command = [str(word) for word in said["command"]]
    command[:1] = [PROGRAM.sub("vnd", word) for word in command[:1]]
    commands = [shlex.join(portable(command)), portable(str(run.results.get("command") or ""))]
    torch = str(said["versions"].get("torch") or torch)
    return Origin(machine, torch, commit, tuple(filter(None, commands)))


def keep(runs: Sequence[Run], path: Path) -> int:
    """Write what a comparison reads of runs into a file, `.jsonl`, a run a line; a report of it is that of the runs.

    All numbers are as they were. Texts have no absolute paths. The size of the file in bytes.
    """
    if path.suffix != ".jsonl":
        raise ValueError(f"report: keep must be a file whose name ends in .jsonl; got {path}")
    recipes = tails([run.recipe for run in runs if run.recipe])
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(kept(run, recipes), ensure_ascii=False, allow_nan=False)}\n" for run in runs)
    write_text(path, text)
    return len(text.encode())


def kept(run: Run, recipes: dict[str, str]) -> dict[str, Any]:
    """Select what is kept of a run: "results", "environment", "data" and "recipe", those that there are."""
    results = {key: value for key, value in run.results.items() if key not in DROPPED}
    results |= {key: portable(results[key]) for key in ("command", "chosen") if results.get(key)}
    if run.recipe and isinstance(results.get("series"), dict):
        results["series"] = {**results["series"], "recipe": recipes[run.recipe]}
    found: dict[str, Any] = {"results": results}
    environment = run.beside.get("environment")
    if isinstance(environment, dict):
        git = environment.get("git")
        own = {key: value for key, value in git.items() if key != "folder"} if isinstance(git, dict) else git
        found["environment"] = portable(environment | ({"git": own} if git is not None else {}))
    if "data" in run.beside:
        found["data"] = run.beside["data"]
    if "recipe" in run.beside:
        found["recipe"] = FOLDER.sub(r"\1null", run.beside["recipe"])
    return found


def tails(paths: Sequence[str]) -> dict[str, str]:
    """For each absolute path the fewest of its last parts that tell it from all others; others are as they are.

    >>> tails(["/a/b/bn3", "/a/c/bn3", "cifar10/fn3"])
    {'/a/b/bn3': 'b/bn3', '/a/c/bn3': 'c/bn3', 'cifar10/fn3': 'cifar10/fn3'}
    """
    for count in range(1, 2 + max((path.count("/") for path in paths), default=0)):
        found = {path: "/".join(Path(path).parts[1:][-count:]) if path.startswith("/") else path for path in paths}
        if len(set(found.values())) == len(found):
            break
    return found


def portable(value: Any) -> Any:
    """A JSON value whose texts have, in the place of an absolute path, its last part alone.

    >>> portable({"folder": "/home/me/runs/first", "command": "vnd evaluate '/home/me/my runs/a' --out=/tmp/b"})
    {'folder': 'first', 'command': 'vnd evaluate a --out=b'}
    >>> portable(["--data.folder=/data/x", "T-shirt/top", "cifar10/bn3", 3])
    ['--data.folder=x', 'T-shirt/top', 'cifar10/bn3', 3]
    """
    if isinstance(value, dict):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    return _text(value) if isinstance(value, str) and "/" in value else value


def _text(text: str) -> str:
    if (short := _word(text)) != text:
        return short
    try:
        words = shlex.split(text)
    except ValueError:  # no command: a lone quote
        return " ".join(_word(word) for word in text.split(" "))
    short_words = [_word(word) for word in words]
    return text if short_words == words else shlex.join(short_words)


def _word(word: str) -> str:
    """A word that is an absolute path, or has one after its first "=", with the path's last part alone."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{Path(value).name}" if value.startswith("/") and len(value) > 1 else word
