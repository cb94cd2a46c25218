"""What commands say on the screen, and the words with which they are given again."""

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console


def say(text: str, error: bool = False) -> None:
    """Print lines as they are: without markup and colors, none broken; to standard error if asked."""
    Console(stderr=error).print(text, soft_wrap=True, highlight=False, markup=False)


def command(*words: str | Path, **options: Any) -> str:
    """A command as a shell takes it, without the options that are None.

    >>> command("vnd", "evaluate", Path("my run"), fractions=[0.5, 1], seed=None)
    "vnd evaluate 'my run' --fractions 0.5,1"
    """
    given = [word for name, value in options.items() if value is not None for word in (f"--{name}", _word(value))]
    return shlex.join([*map(str, words), *given])


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Refuse an option beyond its limits; `name` has the command too."""
    if not least <= value <= most:
        raise ValueError(f"{name} must lie in {least} … {most}; got {value}")
