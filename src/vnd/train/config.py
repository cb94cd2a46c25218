"""From YAML and the command line to a recipe: a wrong key or value is named, with the nearest that would be right.

A recipe is a file, the name of a shipped one, or what such a file holds; `like` takes over what another says.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser

from vnd._text import check_known, nearest, on_one_line, refusal, spelled, with_one_syntax
from vnd.methods import METHODS
from vnd.models import MODELS
from vnd.train.recipe import SECTIONS, Network, Recipe, flatten, sections_of

WHO = ("name", "kind")  # keys that say what their siblings mean
OF_LAYERS = ("rules", "shape")  # options of methods that name the layers of a network
WANTED = "sections such as train: {epochs: 2}"
VALUES = (("method",), ("network",))  # sections without sections of their own: what they hold are values


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
        if value is not None and value != _name(given, section):
            given[section] = {"name": value}
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
        options = [option[2:] for option in parser._option_string_actions]
        for name in (word[2:].partition("=")[0] for word in overrides if word.startswith("--")):
            if name not in options:
                raise ValueError(f"unknown key {name!r}{_like(name, options)}")
        known = parser.parse_args(spelled(overrides, parser), namespace=known)
        values = known.as_dict()
        _check_finite(values)
        kinds = {**sections_of(method), "method": METHODS[method]}
        parts = {name: _make(kind, values.get(name, {}), name) for name, kind in kinds.items()}
    except ArgumentError as error:
        raise ValueError(f"{where}: {_of_group(error, leaves) or refusal(error)}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return Recipe(str(given.get("about") or ""), method, network=Network(network, values["network"]), **parts)


def parse_run(folder: Path) -> Recipe:
    """The recipe of a run."""
    if not (folder / "recipe.yaml").exists():
        how = f"make one with vnd train RECIPE --out {folder}"
        raise ValueError(f"{folder} is not a run: it holds no recipe.yaml; {how}")
    return parse(folder / "recipe.yaml")


def parser_of(method: str, network: str) -> ArgumentParser:
    """The parser of a recipe's keys, for one method and one network."""
    parser = ArgumentParser(prog="vnd train RECIPE", exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(METHODS[method], "method")
    parser.add_class_arguments(MODELS[network], "network", instantiate=False)
    for name, kind in sections_of(method).items():
        parser.add_class_arguments(kind, name)
    return with_one_syntax(parser)


_shared_parser = cache(parser_of)  # half of the time that a recipe takes to read


def help_parser(recipe: Recipe) -> ArgumentParser:
    """The same for one recipe, whose values are the defaults that `--help` shows."""
    parser = parser_of(recipe.method_name, recipe.network.name)
    leaves, _ = _keys(parser)
    parser.set_defaults({key: value for key, value in flatten(recipe.to_dict(), leaves) if key in leaves})
    return parser


def options_parser(recipe: Recipe) -> ArgumentParser:
    """A parser for the section `evaluate` of a recipe alone, its keys without the name of the section."""
    parser = ArgumentParser(prog="vnd evaluate RUN", usage=SUPPRESS, exit_on_error=False, add_help=False)
    skip: set[str | int] = {"sizes", "checkpoint"}  # which the command has itself
    parser.add_class_arguments(type(recipe.evaluate), skip=skip, as_group=False)
    parser.set_defaults({key: value for key, value in vars(recipe.evaluate).items() if key not in skip})
    return with_one_syntax(parser)


def _choice(given: dict[str, Any], section: str, known: Iterable[str], where: str) -> str:
    name = _name(given, section)
    try:
        check_known(f"{section}.name", name, known)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
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
    for key, value in flatten(given, leaves):
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
    """Refusal of a whole section on the command line that has a key that nobody knows."""
    said = re.fullmatch(r"Group '(.+)' does not accept option '(.+)'", on_one_line(error))
    return said and f"unknown key '{said[1]}.{said[2]}'{_like(f'{said[1]}.{said[2]}', leaves)}"


def _like(word: str, known: Iterable[str]) -> str:
    return nearest(word, known, cutoff=0.5, lead=";")


# Where recipes come from


PACKAGE = Path(str(files("vnd")))
SUFFIXES = (".yaml", ".yml")


def names(kind: str = "recipe") -> list[str]:
    """The recipes, or sweeps, that come with the package, as `vnd train` takes them."""
    root = PACKAGE / f"{kind}s"
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def find(source: str | Path, beside: Path = Path(), kind: str = "recipe") -> Path:
    """The file of a recipe: a path, which may be relative to a folder, or the name of one that comes with the package.

    >>> find("demo").name
    'demo.yaml'
    """
    if Path(source).suffix in SUFFIXES:
        return beside / source
    known = names(kind)
    if str(source) not in known:
        more = "`vnd recipes` lists them" if kind == "recipe" else f"Give a YAML file, or one of {', '.join(known)}"
        raise ValueError(f"unknown {kind} {str(source)!r}{_like(str(source), known)} {more}")
    return PACKAGE / f"{kind}s" / f"{source}.yaml"


def read(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Read a recipe, with what it takes over from the one that it is `like`, and what to call it in a message.

    Args:
        source: The name of a shipped recipe, the path of a YAML file, or what such a file holds.
    """
    chain = [] if isinstance(source, Mapping) else [find(source)]
    where = f"recipe {chain[0]}" if chain else "recipe"
    layers = [dict(source) if isinstance(source, Mapping) else read_yaml(chain[0], where, WANTED)]
    while "like" in layers[-1]:
        other = layers[-1].pop("like")
        if not isinstance(other, str) or not other:
            raise ValueError(f"{where}: like must be a name of `vnd recipes`, or a YAML file; got {other!r}")
        try:
            path = find(other, chain[-1].parent if chain else Path())
            seen = [one.resolve() for one in chain]
            chain.append(path)
            if path.resolve() in seen:
                raise ValueError(f"leads back to where it came from: {' → '.join(map(_called, chain))}")
            layers.append(read_yaml(path, f"recipe {path}", WANTED))
        except ValueError as error:
            raise ValueError(f"{where}: like: {error}") from None
    if len(layers) > 1:
        where += f" (like {' → '.join(_called(one) for one in chain[1 - len(layers) :])})"
    about = layers[0].get("about")  # what another says of itself is not true of this one
    merged = layers.pop()
    for layer in reversed(layers):
        merged = _over(layer, merged)
    return merged | {"about": about}, where


def _over(own: dict[Any, Any], other: dict[Any, Any], path: tuple[str, ...] = ()) -> dict[Any, Any]:
    """Merge two mappings: one, and the other where it is silent.

    Sections are merged key by key, values replaced. An empty section says nothing. Where `name` or `kind` changes,
    nothing is taken over: the other's settings were meant for something else.
    """
    if any(who in own and own[who] != other.get(who, _default(*path, who)) for who in WHO):
        return own
    merged = {**other}
    if not path and _name(own, "network") not in (None, _name(other, "network")):
        method = other.get("method")
        if isinstance(method, dict):
            merged["method"] = {key: value for key, value in method.items() if key not in OF_LAYERS}
    for key, value in own.items():
        before = merged.get(key)
        if isinstance(before, dict) and (value is None or isinstance(value, dict)) and path not in VALUES:
            merged[key] = _over(value or {}, before, (*path, str(key)))
        else:
            merged[key] = value
    return merged


def _default(section: str, *keys: str) -> Any:
    """Default of a key; None if nobody knows it."""
    found: Any = SECTIONS[section]() if section in SECTIONS else None
    for key in keys:
        found = getattr(found, key, None)
    return found


def _name(given: dict[Any, Any], section: str) -> Any:
    part = given.get(section)
    return part.get("name") if isinstance(part, dict) else None


def read_yaml(path: Path, where: str, wanted: str) -> dict[str, Any]:
    """Read a YAML file, which must be a mapping; in a refusal `where` names it and `wanted` says what of."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{where} does not exist") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not YAML: {on_one_line(error)}") from None
    given = load_yaml(text, where)
    if not isinstance(given, dict):
        raise ValueError(f"{where} must hold {wanted}; got {type(given).__name__}")
    return given


def load_yaml(text: str, where: str = "it") -> Any:
    """Parse YAML by the safe loader; a key given twice, an anchor or an alias is refused, too.

    An alias can stand for more than memory holds, and recipes have `like` for what they share.

    >>> load_yaml("train: {epochs: 2}")
    {'train': {'epochs': 2}}
    """
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if getattr(event, "anchor", None) is not None:
                sign, line = "*" if isinstance(event, yaml.AliasEvent) else "&", event.start_mark.line + 1
                raise ValueError(f"line {line}: {sign}{event.anchor} must be spelt out; got an anchor or an alias")
        return yaml.load(text, _Loader)  # a safe one
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{where} is not YAML: {on_one_line(error)}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if isinstance(key, Hashable):  # of another kind, YAML's own refusal follows
                if key in lines:
                    raise ValueError(f"key {key!r} must be given once; got it in line {lines[key]} and line {line}")
                lines[key] = line
        return super().construct_mapping(node, deep)


def _called(path: Path) -> str:
    """A shipped recipe by its name, another by its path."""
    root = PACKAGE / "recipes"
    return path.relative_to(root).with_suffix("").as_posix() if path.is_relative_to(root) else str(path)
