"""Where recipes come from: files, the names of shipped ones, and recipes that say only how they differ from another."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from vnd._text import nearest
from vnd.train.recipe import SECTIONS

WHO = ("name", "kind")  # keys that say what their siblings mean
OF_LAYERS = ("rules", "shape")  # options of methods that name the layers of a network
VALUES = (("method",), ("network",))  # sections without sections of their own: what they hold are values


def names() -> list[str]:
    """The recipes that come with the package, as `vnd train` takes them."""
    return sorted(path.relative_to(_root()).with_suffix("").as_posix() for path in _root().rglob("*.yaml"))


def find(source: str | Path, beside: Path = Path()) -> Path:
    """The file of a recipe: a path, which may be relative to a folder, or the name of one that comes with the package.

    >>> find("demo").name
    'demo.yaml'
    """
    if Path(source).suffix in (".yaml", ".yml"):
        return beside / source
    known = names()
    if str(source) not in known:
        hint = nearest(str(source), known, cutoff=0.5, lead=";")
        raise ValueError(f"unknown recipe {str(source)!r}{hint} `vnd recipes` lists them")
    return _root() / f"{source}.yaml"


def read(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What a recipe says, with what it takes over from the one that it is `like`, and what to call it in a message.

    Args:
        source: The name of a shipped recipe, the path of a YAML file, or what such a file holds.
    """
    chain = [] if isinstance(source, Mapping) else [find(source)]
    where = f"recipe {chain[0]}" if chain else "recipe"
    layers = [dict(source) if isinstance(source, Mapping) else _load(chain[0])]
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
            layers.append(_load(path))
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
    """What one mapping says, and what the other says where it is silent.

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
    """What a key has where nothing is said; None if nobody knows it."""
    found: Any = SECTIONS[section]() if section in SECTIONS else None
    for key in keys:
        found = getattr(found, key, None)
    return found


def _name(given: dict[Any, Any], section: str) -> Any:
    part = given.get(section)
    return part.get("name") if isinstance(part, dict) else None


def _load(path: Path) -> dict[str, Any]:
    return read_yaml(path, f"recipe {path}", "sections such as train: {epochs: 2}")


def read_yaml(path: Path, where: str, wanted: str) -> dict[str, Any]:
    """What a YAML file holds, which must be a mapping; in a refusal `where` names it and `wanted` says what of."""
    try:
        given = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{where} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    except RefusedYAMLError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{where} must hold {wanted}; got {type(given).__name__}")
    return given


def load_yaml(text: str) -> Any:
    """What YAML says, by the safe loader; a key given twice, an anchor or an alias is refused by a `RefusedYAMLError`.

    An alias can stand for more than memory holds, and recipes have `like` for what they share.

    >>> load_yaml("train: {epochs: 2}")
    {'train': {'epochs': 2}}
    """
    for event in yaml.parse(text, Loader=_Loader):
        if getattr(event, "anchor", None) is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise RefusedYAMLError(
                f"line {event.start_mark.line + 1}: {sign}{event.anchor} must be spelt out; got an anchor or an alias"
            )
    return yaml.load(text, _Loader)  # a safe one


class RefusedYAMLError(ValueError):
    """YAML that says what no recipe may."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if isinstance(key, Hashable):  # of another kind, YAML's own refusal follows
                if key in lines:
                    raise RefusedYAMLError(
                        f"key {key!r} must be given once; got it in line {lines[key]} and line {line}"
                    )
                lines[key] = line
        return super().construct_mapping(node, deep)


def _called(path: Path) -> str:
    """A shipped recipe by its name, another by its path."""
    root = _root()
    return path.relative_to(root).with_suffix("").as_posix() if path.is_relative_to(root) else str(path)


def _root() -> Path:
    return Path(str(files("vnd") / "recipes"))
