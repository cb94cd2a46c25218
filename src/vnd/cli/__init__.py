"""The command line, `vnd COMMAND`: one file a command, each a plain function with typed arguments."""

import ast
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from vnd._text import nearest

COMMANDS = {  # the words of a command → its function, in the file of its first word
    **{name: name for name in ("demo", "recipes", "train", "sweep", "evaluate", "report", "extract")},
    **{name: name for name in ("generate", "segment", "distill")},
    "data list": "list_sets",
    "data fetch": "fetch",
    "data check": "check",
}


def main(args: list[str] | None = None) -> None:
    """Run the command named by the arguments; bad input ends with one line on standard error and exit code 2."""
    try:
        _run(sys.argv[1:] if args is None else list(args))
    except (ValueError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        print(f"vnd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        print(f"vnd: stopped{f': {error}' if str(error) else ''}", file=sys.stderr)
        raise SystemExit(130) from None


def _run(args: list[str], group: str = "") -> None:
    """Call the command with its options, or say which there are."""
    known = {name.removeprefix(group): name for name in COMMANDS if name.startswith(group)}
    if not args or args[0] in ("-h", "--help"):
        print(_overview(known, f"vnd {group}".strip()))
        if not args:
            raise SystemExit(2)
    elif args[0] in known:
        from vnd.cli.parser import call

        call(function(known[args[0]]), f"vnd {known[args[0]]}", args[1:])
    elif any(name.startswith(f"{args[0]} ") for name in known):
        _run(args[1:], f"{args[0]} ")
    else:
        first = dict.fromkeys(name.partition(" ")[0] for name in known)
        raise ValueError(f"unknown command {args[0]!r}{nearest(args[0], first)} Known: {', '.join(first)}")


def function(name: str) -> Callable[..., None]:
    """The function of a command; its module is loaded now."""
    module = import_module(f"vnd.cli.{name.partition(' ')[0]}")
    command: Callable[..., None] = getattr(module, COMMANDS[name])
    return command


def _overview(known: dict[str, str], words: str) -> str:
    """All commands, one line each."""
    width = max(map(len, known))
    lines = [f"  {short:{width}}  {_summary(name)}" for short, name in known.items()]
    return "\n".join([f"usage: {words} COMMAND ...", "", *lines, "", f"{words} COMMAND --help says more"])


def _summary(name: str) -> str:
    """The first line of a command's docstring, read from its source: to import it would take seconds."""
    source = Path(__file__).with_name(f"{name.partition(' ')[0]}.py").read_text(encoding="utf-8")
    functions: Iterable[Any] = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    command = next(node for node in functions if node.name == COMMANDS[name])
    return (ast.get_docstring(command) or "").partition("\n")[0]
