"""A sweep: recipes × settings × seeds in one file; each combination is a run, known by the hash of what decides it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from vnd._text import nearest
from vnd.train.parse import parse, parse_run
from vnd.train.recipe import Network, Recipe, digest_of
from vnd.train.source import load_yaml, read_yaml

KEYS = ("about", "out", "seeds", "set", "runs", "evaluate", "slurm")
KEYS_OF_A_RUN = ("recipe", "name", "set", "grid", "seeds")
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Run:
    """One run of a sweep.

    Args:
        folder: Where it is kept.
        source: Its recipe, and
        overrides: the keys that are replaced in it, as `vnd train` takes them.
        recipe: What that makes.
        digest: The hash of the recipe.
    """

    folder: Path
    source: str
    overrides: tuple[str, ...]
    recipe: Recipe
    digest: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


@dataclass(frozen=True)
class Worklist:
    """What a sweep's file asks for.

    Args:
        path: The file.
        about: One line for people.
        out: Folder of the runs.
        runs: All runs, each once.
        repeated: (name, which it repeats) of the runs that were asked for more than once.
        evaluate: Whether each is evaluated when it is trained.
        slurm: Options of the cluster's jobs; None to run here.
    """

    path: Path
    about: str
    out: Path
    runs: tuple[Run, ...]
    repeated: tuple[tuple[str, str], ...]
    evaluate: bool
    slurm: dict[str, Any] | None


def names() -> list[str]:
    """The sweeps that come with the package."""
    root = Path(str(files("vnd") / "sweeps"))
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def find(source: str | Path) -> Path:
    """The file of a sweep: a path, or the name of one that comes with the package."""
    if Path(source).suffix in SUFFIXES:
        return Path(source)
    if str(source) not in names():
        hint = nearest(str(source), names(), cutoff=0.5, lead=";")
        raise ValueError(f"unknown sweep {str(source)!r}{hint} Give a YAML file, or one of {', '.join(names())}")
    return Path(str(files("vnd") / "sweeps")) / f"{source}.yaml"


def read(source: str | Path, out: Path | None = None) -> Worklist:
    """Read a sweep and make all its recipes, so that what is wrong with one is said before anything is trained.

    Args:
        source: The path of a YAML file, or the name of a shipped sweep.
        out: Folder of the runs, in place of the file's.
    """
    path = find(source)
    where = f"sweep {path}"
    given = read_yaml(path, where, "keys such as runs: [fashion/bn3]")
    _check_keys(given, KEYS, where)
    entries = _typed(given, "runs", list, "a list of recipes", [], where)
    if not entries:
        raise ValueError(f"{where}: runs must be a list of recipes, such as [fashion/bn3]; got {given.get('runs')!r}")
    folder = out or Path(_typed(given, "out", str, "a folder", f"runs/{path.stem}", where))
    slurm = _typed(given, "slurm", dict, "a mapping such as {partition: gpu, gpus: 1, time: 120}", None, where)
    runs: dict[str, Run] = {}
    repeated, built = list[tuple[str, str]](), list[Network]()
    for number, entry in enumerate(entries, 1):
        for run in _expand(entry, given, path.parent, folder, where, number, built):
            if run.digest in runs:
                repeated.append((run.name, runs[run.digest].name))
            else:
                runs[run.digest] = run
    return Worklist(
        path,
        _typed(given, "about", str, "text", "", where),
        folder,
        tuple(_found(runs.values(), folder)),
        tuple(repeated),
        _typed(given, "evaluate", bool, "true or false", True, where),
        slurm,
    )


def digest(recipe: Recipe) -> str:
    """The SHA-256 of all that decides a run, whatever the order of its keys; `about` does not.

    >>> digest(parse("demo")) == digest(parse("demo", ["--train.seed=1"]))
    False
    """
    return digest_of(recipe.to_dict())


def holds(folder: Path, wanted: str) -> bool:
    """Whether the recipe in a run's folder has this hash, as this version of the library reads it."""
    with suppress(
        ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError
    ):  # it is much faster to look than to parse
        text = (folder / "recipe.yaml").read_text(encoding="utf-8")
        if digest_of(load_yaml(text)) == wanted:
            return True
    return digest(parse_run(folder)) == wanted


def _expand(
    entry: Any, given: dict[str, Any], beside: Path, out: Path, where: str, number: int, built: list[Network]
) -> Iterator[Run]:
    """The runs of one entry: every combination of its grid, with every seed."""
    entry = {"recipe": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, dict) or not isinstance(entry.get("recipe"), str):
        raise ValueError(f"{where}: run {number} must be a recipe or a mapping with recipe: NAME; got {entry!r}")
    source = entry["recipe"]
    here = f"{where}: run {number} ({source})"
    _check_keys(entry, KEYS_OF_A_RUN, here)
    seeds: list[int] | list[None] = _seeds(entry, here) or _seeds(given, where) or [None]
    common, own, grid = _settings(given, "set", where), _settings(entry, "set", here), _settings(entry, "grid", here)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{here}: grid: {key} must be a list of values; got {values!r}")
    is_file = Path(source).suffix in SUFFIXES
    name = _typed(entry, "name", str, "text", _plain(Path(source).stem if is_file else source), here)
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise ValueError(f"{here}: name must be of letters, digits and - + . _, for a folder; got {name!r}")
    source = str(beside / source) if is_file else source
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        words = [f"--{key}={_word(value)}" for key, value in _over(common, own, chosen).items()]
        try:
            first = parse(source, words)
            if first.network not in built:
                first.network.build()  # what it refuses is found now
                built.append(first.network)
            for seed in seeds:
                recipe = first if seed is None else _seeded(first, seed)
                parts = [name, *_labels(chosen), str(recipe.train.seed), (own_digest := digest(recipe))[:8]]
                replaced = words if seed is None else [*words, f"--train.seed={seed}"]
                yield Run(out / "-".join(parts), source, tuple(replaced), recipe, own_digest)
        except ValueError as error:
            raise ValueError(f"{here}: {error}") from None


def _found(runs: Iterable[Run], out: Path) -> Iterator[Run]:
    """The runs, each in the folder that holds it already, whatever that is called: another name, an older version."""
    runs = list(runs)
    own = {run.folder.name for run in runs}
    others = [path for path in sorted(out.glob("*/recipe.yaml")) if path.parent.name not in own]
    elsewhere: dict[str, Path] = {}
    if any(not (run.folder / "recipe.yaml").exists() for run in runs):
        for path in others:
            try:
                elsewhere.setdefault(digest(parse_run(path.parent)), path.parent)
            except (ValueError, OSError):  # of something else, or of an older version
                continue
    for run in runs:
        there = None if (run.folder / "recipe.yaml").exists() else elsewhere.get(run.digest)
        yield run if there is None else dataclasses.replace(run, folder=there)


def _seeded(recipe: Recipe, seed: int) -> Recipe:
    try:
        return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, seed=seed))
    except ValueError as error:
        raise ValueError(f"seeds: train.{error}") from None


def _over(*layers: dict[str, Any]) -> dict[str, Any]:
    """Settings, those of later layers last: `--schedule.lr.start` must follow the `--schedule.lr` that it changes."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = {key: value for key, value in merged.items() if key not in layer} | layer
    return merged


def _word(value: Any) -> str:
    """A value as the command line has it.

    >>> _word("bn3"), _word([0.5, 1]), _word(True), _word(None)
    ('bn3', '[0.5,1]', 'true', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def _labels(chosen: dict[str, Any]) -> list[str]:
    """What a folder's name says of a combination: the last words of the keys, where these are all different."""
    last = [key.rpartition(".")[2] for key in chosen]
    keys = last if len(set(last)) == len(last) else list(chosen)
    return [f"{key}={_plain(_word(value))[:24]}" for key, value in zip(keys, chosen.values(), strict=True)]


def _plain(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"


def _seeds(given: dict[str, Any], where: str) -> list[int] | None:
    words = "a list of different whole numbers, such as [0, 1, 2]"
    seeds: list[int] | None = _typed(given, "seeds", list, words, None, where)
    if seeds is not None and (not seeds or any(type(x) is not int for x in seeds) or len(set(seeds)) < len(seeds)):
        raise ValueError(f"{where}: seeds must be {words}; got {seeds!r}")
    return seeds


def _settings(given: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    settings: dict[str, Any] = _typed(given, key, dict, "a mapping such as {train.epochs: 2}", {}, where)
    for name in settings:
        if not isinstance(name, str):
            raise ValueError(f"{where}: {key} must hold keys of recipes, such as train.epochs; got {name!r}")
        if name == "train.seed":
            raise ValueError(f"{where}: {key}: train.seed is what seeds: [0, 1, 2] is for; give it there")
    return settings


def _typed(given: dict[str, Any], key: str, kind: type, words: str, default: Any, where: str) -> Any:
    value = given.get(key)
    if value is not None and type(value) is not kind:
        raise ValueError(f"{where}: {key} must be {words}; got {value!r}")
    return default if value is None else value


def _check_keys(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            hint = nearest(str(key), known, cutoff=0.5, lead=";")
            raise ValueError(f"{where}: unknown key {key!r}{hint} Known: {', '.join(known)}")
