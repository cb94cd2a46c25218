"""Options as jsonargparse reads them, and what it refuses, in our words: for commands and for keys of recipes."""

import re
from collections.abc import Iterable

from jsonargparse import ArgumentParser

KINDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "tuple": "a list",
    "dict": "a mapping", "NoneType": "none",
}  # fmt: skip
LISTS = re.compile(r"\b(Sequence|tuple|list)\[")  # types


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
    message = re.fullmatch(r'Parser key "(.+?)": (.+)', one_line(error))
    if message is None:
        return one_line(error)
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


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
