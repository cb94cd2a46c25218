"""From YAML and the command line to a recipe: a wrong key or value is named, with the nearest that would be right.

A recipe is a file, the name of a shipped one, or what such a file holds; `like` takes over what another says.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser
from torch import nn

from vnd._code import check_trusted, names_code, trust
from vnd._text import check_known, nearest, on_one_line, refusal, spelled, with_one_syntax
from vnd.data.registry import DATASETS, is_own
from vnd.methods import METHODS
from vnd.models import MODELS
from vnd.tasks import task_of
from vnd.train.recipe import (
    DERIVED,
    SECTIONS,
    Data,
    Network,
    Recipe,
    flatten,
    known_arguments,
    network_class,
    sections_of,
)

CODE = (("network", "name"), ("data", "name"), ("evaluate", "ood"))  # sections and keys that may name code
MAPPINGS = ("data.options.", "evaluate.ood_options.")  # whose keys are not known here
WHO = ("name", "kind")  # keys that say what their siblings mean
OF_LAYERS = ("rules", "shape")  # options of methods that name the layers of a network
WANTED = "sections such as train: {epochs: 2}"
VALUES = (("method",), ("network",))  # sections without sections of their own: what they hold are values


def parse(source: str | Path | dict[str, Any], overrides: Iterable[str] = (), run: Path | None = None) -> Recipe:
    """Read a recipe, check every key and value, and replace some: ["--train.epochs", "2"].

    Args:
        source: The name of a shipped recipe, the path of a YAML file, or what such a file holds.
        overrides: As on the command line, `--section.key value` or `--section.key=value`.
        run: The folder of the run whose recipe it is: what that names is run if it is the user's own code, or trusted;
            see `vnd._code`. None for a recipe that the user gives, who may name any.
    """
    given, where = read(source)
    overrides = list(overrides)
    for section in ("method", "network"):  # who they are decides which keys they have
        value = _named(overrides, f"--{section}.name")
        if value is not None and value != _name(given, section):
            given[section] = {"name": value}
            if section == "network" and isinstance(given.get("method"), dict):
                given["method"] = {key: x for key, x in given["method"].items() if key not in OF_LAYERS}
    try:
        _check_code(given, overrides, run)
        method, network = _choice(given, "method", METHODS), str(_name(given, "network"))
        kind: Any = network_class(network)
        parser = _shared_parser(method, kind, tuple(_further(given, overrides)))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
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
            if name not in options and not name.startswith(MAPPINGS):
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
    config = _with_sizes(values.get("network", {}), network, parts["data"], method)
    return Recipe(str(given.get("about") or ""), method, network=Network(network, config), **parts)


def parse_run(folder: Path) -> Recipe:
    """The recipe of a run."""
    if not (folder / "recipe.yaml").exists():
        how = f"make one with vnd train RECIPE --out {folder}"
        raise ValueError(f"{folder} is not a run: it holds no recipe.yaml; {how}")
    return parse(folder / "recipe.yaml", run=folder)


def parser_of(method: str, network: str, further: Iterable[str] = ()) -> ArgumentParser:
    """The parser of a recipe's keys, for one method and one network, which may take arguments that it does not name."""
    return _parser(method, network_class(network), tuple(further))


def _parser(method: str, network: type[nn.Module], further: tuple[str, ...]) -> ArgumentParser:
    parser = ArgumentParser(prog="vnd train RECIPE", exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(METHODS[method], "method")
    _add_network(parser, network, further)
    for name, kind in sections_of(method).items():
        parser.add_class_arguments(kind, name)
    return with_one_syntax(parser)


_shared_parser = cache(_parser)  # half of the time that a recipe takes to read


def _add_network(parser: ArgumentParser, network: type[nn.Module], further: Iterable[str]) -> None:
    """Add the arguments of a network: those that the data tell have no value unless one is given."""
    known, _ = known_arguments(network)
    own = network not in MODELS.values()
    if not own:
        parser.add_class_arguments(network, "network", instantiate=False)
    for name, (hint, default) in (known if own else {}).items():
        if name != "**":  # what JSON cannot hold is left to the class
            plain = default is None or isinstance(default, bool | int | float | str | list | tuple | dict)
            given = {"default": default} if plain and default is not None else {"default": SUPPRESS}
            parser.add_argument(f"--network.{name}", type=hint if _is_plain(hint) else Any, **given)
    for name in further if "**" in known else ():
        if name not in known:
            parser.add_argument(f"--network.{name}", type=Any, default=SUPPRESS)
    for action in parser._actions:
        if action.dest in {f"network.{name}" for name in DERIVED}:
            action.default = SUPPRESS


def _is_plain(hint: Any) -> bool:
    """Tell if a type is of values that YAML holds: jsonargparse would import what others name."""
    if hint in (bool, int, float, str, type(None), list, tuple, dict, Any, ...) or get_origin(hint) is Literal:
        return True
    if get_origin(hint) in (list, tuple, dict, Sequence, Mapping, Union, UnionType):
        return all(_is_plain(part) for part in get_args(hint))
    return False


def _further(given: dict[str, Any], overrides: list[str]) -> list[str]:
    """Arguments of the network that are given."""
    part = given.get("network")
    said = [str(name) for name in part] if isinstance(part, dict) else []
    options = [word[2:].partition("=")[0] for word in overrides if word.startswith("--network.")]
    return [
        name for name in dict.fromkeys([*said, *(option.partition(".")[2] for option in options)]) if name != "name"
    ]


def _with_sizes(config: dict[str, Any], network: str, data: Data, method: str) -> dict[str, Any]:
    """The arguments of a network, with those that its data tell: now, if it is known what the data are."""
    config = {name: value for name, value in config.items() if name not in DERIVED or value is not None}
    if is_own(data.name):
        return config
    known, built = DATASETS[data.name], Network(network, config)
    size = data.size or known.size
    if not built.is_own and "image_size" in known_arguments(built.kind)[0]:  # of ours a default that recipes count on
        config = {"image_size": inspect.signature(built.kind).parameters["image_size"].default} | config
    classes = task_of(METHODS[method]).num_outputs(known.num_classes) if built.is_own else known.num_classes
    return Network(network, config).arguments((known.channels, size, size), classes)


def _check_code(given: dict[str, Any], overrides: list[str], run: Path | None) -> None:
    """See to the code that a recipe names: that of a run must be trusted, that of the user is from now on.

    jsonargparse takes any mapping with a `class_path` for a class, and would import that.
    """
    if _holds_class_path(given) or any("class_path" in word for word in overrides):
        raise ValueError("class_path names code to import, and is a key of no recipe; leave it out")
    for section, key in CODE:
        said = [word.partition("=")[2] for word in overrides if word.startswith(f"--{section}.{key}=")]
        said += [value for word, value in pairwise(overrides) if word == f"--{section}.{key}"]
        part = given.get(section)
        for name in (*said, part.get(key) if isinstance(part, dict) else None):
            if names_code(name):
                assert isinstance(name, str)
                trust(name) if run is None else check_trusted(name, f"{section}.{key}", run)


def help_parser(recipe: Recipe) -> ArgumentParser:
    """The same for one recipe, whose values are the defaults that `--help` shows."""
    parser = parser_of(recipe.method_name, recipe.network.name, recipe.network.config)
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


def _choice(given: dict[str, Any], section: str, known: Iterable[str]) -> str:
    name = _name(given, section)
    check_known(f"{section}.name", name, known)
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


def _holds_class_path(given: Any) -> bool:
    if isinstance(given, dict):
        return "class_path" in given or any(map(_holds_class_path, given.values()))
    return isinstance(given, list) and any(map(_holds_class_path, given))


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
