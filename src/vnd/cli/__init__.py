"""The command line, `vnd COMMAND`: one file a command, each a plain function with typed arguments."""

import inspect
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from vnd.cli import data as data_command
from vnd.cli import distill as distill_command
from vnd.cli import train as train_command
from vnd.cli.demo import demo
from vnd.cli.evaluate import evaluate
from vnd.cli.extract import extract
from vnd.cli.generate import generate
from vnd.cli.recipes import recipes
from vnd.cli.report import report
from vnd.cli.segment import segment
from vnd.cli.sweep import sweep
from vnd.train.parse import refusal
from vnd.words import nearest

COMMANDS: dict[str, Any] = {
    "demo": demo,
    "recipes": recipes,
    "train": train_command.train,
    "sweep": sweep,
    "evaluate": evaluate,
    "report": report,
    "extract": extract,
    "generate": generate,
    "segment": segment,
    "distill": distill_command.distill,
    "data": data_command.COMMANDS,
}
OF_RECIPES: dict[Any, Callable[[list[str]], None]] = {
    train_command.train: train_command.main,
    distill_command.distill: distill_command.main,
}


def main(args: list[str] | None = None) -> None:
    """Run the command named by the arguments; bad input ends with one line on standard error and exit code 2."""
    try:
        _run(sys.argv[1:] if args is None else list(args), COMMANDS, "vnd")
    except (ValueError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        print(f"vnd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        print(f"vnd: stopped{f': {error}' if str(error) else ''}", file=sys.stderr)
        raise SystemExit(130) from None


def _run(args: list[str], commands: Mapping[str, Any], words: str) -> None:
    """Find the command, which may be one of several below another, and call it with its options."""
    known = {name: command for name, command in commands.items() if not name.startswith("_")}
    if not args or args[0] in ("-h", "--help"):
        print(_overview(known, words))
        if not args:
            raise SystemExit(2)
        return
    name, rest = args[0], args[1:]
    if name not in known:
        raise ValueError(f"unknown command {name!r}{nearest(name, known)} Known: {', '.join(known)}")
    command = known[name]
    if isinstance(command, Mapping):
        _run(rest, command, f"{words} {name}")
    elif command in OF_RECIPES:  # their keys are those of the recipe, which is known only when it was read
        OF_RECIPES[command](rest)
    else:
        parser = _parser(command, f"{words} {name}")
        try:
            options = parser.instantiate(parser.parse_args(_with_underscores(rest, parser)))
        except ArgumentError as error:
            raise ValueError(f"{name}: {refusal(error)}; `{words} {name} --help` says what it takes") from None
        command(**options)


def _parser(command: Callable[..., Any], words: str) -> ArgumentParser:
    """The parser of a function's arguments; `--flag` alone is true."""
    parser = ArgumentParser(
        prog=words,
        description=_description(command),
        formatter_class=_Help,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parameters = inspect.signature(command).parameters
    several: set[str | int] = {
        name for name, one in parameters.items() if one.annotation == "list[Path]" and one.default is one.empty
    }
    if not several & set(list(parameters)[:1]):
        parser.add_function_arguments(command, as_group=False, as_positional=True, skip=several)
    for name in map(str, several):  # jsonargparse would take one JSON list
        word = name.removesuffix("s").upper()
        parser.add_argument(name, nargs="+", type=Path, metavar=word, help=_help_of(command, name))
    if several & set(list(parameters)[:1]):
        parser.add_function_arguments(command, as_group=False, as_positional=True, skip=several)
    for action in parser._actions:
        if parameters.get(action.dest, inspect.Parameter).annotation in (bool, "bool"):
            action.nargs, action.const = "?", True
    return parser


def _with_underscores(args: list[str], parser: ArgumentParser) -> list[str]:
    """The arguments with options as they are spelt in Python: --dry-run is --dry_run."""
    known, words = parser._option_string_actions, []
    for word in args:
        name, equals, value = word.partition("=")
        plain = f"--{name[2:].replace('-', '_')}"
        words.append(f"{plain}{equals}{value}" if name.startswith("--") and plain in known else word)
    return words


def _help_of(command: Callable[..., Any], name: str) -> str:
    """What the docstring says of an argument."""
    return next(
        one.description or "" for one in docstring_parser.parse(command.__doc__ or "").params if one.arg_name == name
    )


class _Help(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    pass


def _overview(commands: Mapping[str, Any], words: str) -> str:
    """All commands, one line each."""
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {_first_line(command)}" for name, command in commands.items()]
    return "\n".join([f"usage: {words} COMMAND ...", "", *lines, "", f"{words} COMMAND --help says more"])


def _first_line(command: Any) -> str:
    if isinstance(command, Mapping):
        return str(command.get("_help", ""))
    return (inspect.getdoc(command) or "").partition("\n")[0]


def _description(command: Callable[..., Any]) -> str:
    """What the docstring says before its arguments, the example included."""
    return (inspect.getdoc(command) or "").partition("\nArgs:")[0].strip()
