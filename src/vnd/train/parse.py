"""From YAML and the command line to a recipe: every key and every value is checked, and a wrong one named."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from jsonargparse import ArgumentError, ArgumentParser

from vnd._options import one_line, refusal, spelled
from vnd._text import nearest
from vnd.data.registry import DATASETS
from vnd.methods import METHODS
from vnd.models import MODELS
from vnd.tasks import Sweep
from vnd.train.recipe import SECTIONS, Data, Network, Recipe
from vnd.train.source import find, names, read

__all__ = ["find", "help_parser", "names", "parse", "parse_run", "parser_of"]


def parse(source: str | Path | dict[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe, check every key and value, and replace some: ["--train.epochs", "2"].

    Args:
        source: The name of a shipped recipe, the path of a YAML file, or what such a file holds.
        overrides: As on the command line, `--section.key value` or `--section.key=value`.
    """
    given, where = read(source)
    overrides = list(overrides)
    for section in ("method", "network"):  # who they are decides which keys they have
        value = _named(overrides, f"--{section}.name")
        part = given.get(section) or {}
        if value is not None:
            kept = part if isinstance(part, dict) and part.get("name") == value else {}
            given[section] = {**kept, "name": value}
    method, network = _choice(given, "method", METHODS, where), _choice(given, "network", MODELS, where)
    parser = _shared_parser(method, network)
    leaves = _check_keys(given, parser, where)
    settings = {
        section: {key: value for key, value in part.items() if key != "name" or section in SECTIONS}
        for section, part in _filled(given, leaves).items()
        if section != "about"
    }
    try:
        known = parser.parse_object(settings)
        _check_words(overrides, parser)
        known = parser.parse_args(spelled(overrides, parser), namespace=known)
        values = known.as_dict()
        _check_finite(values)
        kinds = {**SECTIONS, "method": METHODS[method]}
        parts = {
            name: _make(kind, values.get(name, {}), name) for name, kind in kinds.items()
        }  # it may have no options
        _check_data(parts["data"], parts["evaluate"])
    except ArgumentError as error:
        raise ValueError(f"{where}: {_of_group(error, leaves) or refusal(error)}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return Recipe(str(given.get("about") or ""), method, network=Network(network, values["network"]), **parts)


def parse_run(folder: Path) -> Recipe:
    """The recipe of a run."""
    if not (folder / "recipe.yaml").exists():
        raise ValueError(
            f"{folder} is not a run: it holds no recipe.yaml; make one with vnd train RECIPE --out {folder}"
        )
    return parse(folder / "recipe.yaml")


def parser_of(method: str, network: str) -> ArgumentParser:
    """The parser of a recipe's keys, for one method and one network."""
    parser = ArgumentParser(prog="vnd train RECIPE", exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(METHODS[method], "method")
    parser.add_class_arguments(MODELS[network], "network", instantiate=False)
    for name, kind in SECTIONS.items():
        parser.add_class_arguments(kind, name)
    return parser


_shared_parser = cache(parser_of)  # half of the time that a recipe takes to read


def help_parser(recipe: Recipe) -> ArgumentParser:
    """The same for one recipe, whose values are the defaults that `--help` shows."""
    parser = parser_of(recipe.method_name, recipe.network.name)
    leaves, _ = _keys(parser)
    parser.set_defaults({key: value for key, value in _flatten(recipe.to_dict(), leaves) if key in leaves})
    return parser


def _choice(given: dict[str, Any], section: str, known: Iterable[str], where: str) -> str:
    part = given.get(section)
    name = part.get("name") if isinstance(part, dict) else None
    if name not in list(known):
        raise ValueError(
            f"{where}: {section}.name must be one of {', '.join(known)}; got {name!r}{_like(str(name), known)}"
        )
    return str(name)


def _keys(parser: ArgumentParser) -> tuple[set[str], set[str]]:
    """The keys that hold values, and those that hold keys."""
    known = {action.dest for action in parser._actions if "." in action.dest}
    prefixes = {dest[:i] for dest in known for i, letter in enumerate(dest) if letter == "."}
    return known - prefixes, prefixes


def _check_keys(given: dict[str, Any], parser: ArgumentParser, where: str) -> set[str]:
    """Refuse a key that nobody knows, and name the nearest that somebody does; all that hold a value are returned."""
    leaves, prefixes = _keys(parser)
    leaves |= {"about", "method.name", "network.name"}
    for key, value in _flatten(given, leaves):
        if key in prefixes:
            if value is not None:
                raise ValueError(f"{where}: {key} must hold keys of its own; got {value!r}")
        elif key not in leaves:
            raise ValueError(f"{where}: unknown key {key!r}{_like(key, leaves | prefixes)}")
    return leaves


def _filled(given: dict[str, Any], leaves: set[str], prefix: str = "") -> dict[str, Any]:
    """Without the sections that are null, at every depth: they keep their defaults."""
    return {
        name: value if f"{prefix}{name}" in leaves else _filled(value, leaves, f"{prefix}{name}.")
        for name, value in given.items()
        if value is not None or f"{prefix}{name}" in leaves
    }


def _check_data(data: Data, sweep: Sweep) -> None:
    for key, name in (("data.name", data.name), ("evaluate.ood", sweep.ood)):
        if name is not None and name not in DATASETS:
            raise ValueError(f"{key} must be one of {', '.join(DATASETS)}; got {name!r}{_like(name, DATASETS)}")


def _check_words(overrides: list[str], parser: ArgumentParser) -> None:
    for word in overrides:
        name = word.partition("=")[0]
        options = parser._option_string_actions
        if name.startswith("--") and name not in options:
            raise ValueError(f"unknown key {name[2:]!r}{_like(name[2:], [option[2:] for option in options])}")


def _flatten(given: dict[str, Any], leaves: set[str], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in given.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in leaves:
            yield from _flatten(value, leaves, f"{key}.") if value else [(key, None)]
        else:
            yield key, value


def _check_finite(given: Any, key: str = "") -> None:
    if isinstance(given, dict):
        for name, value in given.items():
            _check_finite(value, f"{key}.{name}" if key else str(name))
    elif isinstance(given, list | tuple):
        for value in given:
            _check_finite(value, key)
    elif isinstance(given, float) and not math.isfinite(given):
        raise ValueError(f"{key} must be finite; got {given}")


def _make(kind: type, given: dict[str, Any], key: str) -> Any:
    """Make a dataclass and those in it; what they refuse is named by its key."""
    hints = get_type_hints(kind)
    for name, value in given.items():
        if value is None and type(None) not in get_args(hints[name]):
            raise ValueError(f"{key}.{name} must have a value; got null")
    made = {
        name: _make(hints[name], value, f"{key}.{name}") if dataclasses.is_dataclass(hints[name]) else value
        for name, value in given.items()
    }
    try:
        return kind(**made)
    except ValueError as error:
        raise ValueError(f"{key}.{error}") from None


def _named(overrides: list[str], option: str) -> str | None:
    """Take the value of an option out of the overrides; None if it is not there."""
    for index, word in enumerate(overrides):
        if word == option:
            if index + 1 == len(overrides):
                raise ValueError(f"recipe: {option} must be followed by a name")
            value = overrides[index + 1]
            del overrides[index : index + 2]
            return value
        if word.startswith(f"{option}="):
            del overrides[index]
            return word.partition("=")[2]
    return None


def _of_group(error: BaseException, leaves: set[str]) -> str | None:
    """What to say where a whole section was given on the command line, and has a key that nobody knows."""
    said = re.fullmatch(r"Group '(.+)' does not accept option '(.+)'", one_line(error))
    return said and f"unknown key '{said[1]}.{said[2]}'{_like(f'{said[1]}.{said[2]}', leaves)}"


def _like(word: str, known: Iterable[str]) -> str:
    return nearest(word, known, cutoff=0.5, lead=";")
