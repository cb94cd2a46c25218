"""Text for people: tables, short numbers, commands, the nearest word, an error on one line; and what people write.

Options are spelled in our way for jsonargparse, and what it refuses is said in our words: for commands and for keys of
recipes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser
    from rich.table import Table


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6, lead: str = ",") -> str:
    """Suggest the nearest known word after one that is not known; a full stop where none is near.

    >>> nearest("cifar", ["cifar10", "svhn"]), nearest("mnist", ["svhn"])
    (", did you mean 'cifar10'?", '.')
    """
    matches = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"{lead} did you mean {matches[0]!r}?" if matches else "."


def check_known(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a word that is none of those that are known, and suggest the nearest."""
    if value not in (known := list(known)):
        hint = nearest(str(value), known, cutoff=0.5, lead=";")
        raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}{hint}")


def short(number: float, unit: str = "") -> str:
    """A number for people, to three digits.

    >>> short(21_000), short(900_000), short(512), short(84_500, "B"), short(1_234_567_890)
    ('21 k', '0.9 M', '512', '84.5 kB', '1.23 G')
    """
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= (scale if prefix == "k" else scale / 2):
            return f"{_three_digits(number / scale)} {prefix}{unit}"
    return f"{_three_digits(number)} {unit}".strip()


def _three_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def table(columns: Iterable[str], left: Iterable[str] = (), wrapped: Iterable[str] = (), **look: Any) -> Table:
    """A table without lines, whose columns are numbers at the right, but for some, and in one line, but for some."""
    from rich.table import Table

    made = Table(box=None, title_justify="left", caption_justify="left", **{"padding": (0, 2, 0, 0), **look})
    for column in columns:
        made.add_column(column, no_wrap=column not in wrapped, overflow="fold")
        made.columns[-1].justify = "left" if column in left else "right"
    return made


def say(text: str, error: bool = False) -> None:
    """Print lines as they are: without markup and colors, none broken; to standard error if asked."""
    from rich.console import Console

    Console(stderr=error).print(text, soft_wrap=True, highlight=False, markup=False)


def command(*words: str | Path, **options: Any) -> str:
    """A command as a shell takes it, without the options that are None.

    >>> command("vnd", "evaluate", Path("my run"), fractions=[0.5, 1], seed=None)
    "vnd evaluate 'my run' --fractions 0.5,1"
    """
    given = list(map(str, words))
    for name, value in options.items():
        if value is not None:
            given += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    return shlex.join(given)


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Refuse an option beyond its limits; `name` has the command too."""
    if not least <= value <= most:
        raise ValueError(f"{name} must lie in {least} … {most}; got {value}")


def on_one_line(error: BaseException) -> str:
    """Message of an error on one line."""
    return " ".join(str(error).split())


def one_line(error: BaseException) -> str:
    """Message of an error on one line, not too long; with its type unless it is a ValueError."""
    words = on_one_line(error)[:300]
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"


KINDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "tuple": "a list",
    "dict": "a mapping", "NoneType": "none",
}  # fmt: skip
LISTS = re.compile(r"\b(Sequence|tuple|list)\[")  # types


def with_one_syntax(parser: ArgumentParser) -> ArgumentParser:
    """The parser without the options by which jsonargparse appends to a list, `--fractions+`: commas make lists."""
    for name in [name for name in parser._option_string_actions if name.endswith("+")]:
        action = parser._option_string_actions.pop(name)
        action.option_strings = [other for other in action.option_strings if other != name]
    return parser


def spelled(args: Iterable[str], parser: ArgumentParser) -> list[str]:
    """The arguments as jsonargparse reads them: options as in Python, lists in brackets."""
    known, spelled, is_list = parser._option_string_actions, list[str](), False
    for word in args:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            plain = f"--{name[2:].replace('-', '_')}"
            is_list = bool(LISTS.search(str(getattr(known.get(plain), "_typehint", ""))))
            value = _bracketed(value) if is_list else value
            spelled.append(f"{plain if plain in known else name}{equals}{value}")
        else:
            spelled.append(_bracketed(word) if is_list else word)
            is_list = False
    return spelled


def _bracketed(words: str) -> str:
    """0.25,1 → [0.25,1]; what is a list in YAML stays."""
    return f"[{words}]" if words and not re.fullmatch(r"\s*(\[.*\]|null)\s*", words) else words


def refusal(error: BaseException) -> str:
    """Message of jsonargparse about a value, in our words and on one line."""
    message = re.fullmatch(r'Parser key "(.+?)": (.+)', on_one_line(error))
    if message is None:
        return on_one_line(error)
    single = re.fullmatch(r"Expected an? (.+?)\.? Got value: (.+)", message[2])
    several = re.fullmatch(r".+? Subtypes: [\[(](.+?)[\])] Errors: .+ Given value: (.+)", message[2])
    if (wanted := single or several) is None:
        return f"{message[1]}: {message[2]}"
    kinds = re.sub(
        r"<class '([^']+)'>|Literal\[(.+?)\]", lambda m: KINDS.get(m[1], m[1]) if m[1] else f"one of {m[2]}", wanted[1]
    )
    kinds = kinds.replace("typing.", "").replace("collections.abc.Sequence[float]", "a list of numbers")
    kinds = kinds.replace("collections.abc.Sequence[int]", "a list of whole numbers")
    return f"{message[1]} must be {kinds.replace(', ', ' or ') if several else kinds}; got {wanted[2]}"
