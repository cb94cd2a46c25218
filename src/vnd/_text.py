"""Text for people: short numbers, suggestions for a mistyped word, an error on one line."""

from collections.abc import Iterable
from difflib import get_close_matches


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


def one_line(error: BaseException) -> str:
    """Message of an error on one line, not too long; with its type unless it is a ValueError."""
    words = " ".join(str(error).split())
    return words[:300] if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words[:300]}"
