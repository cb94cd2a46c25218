"""The parser of every command: options from a function's signature, `--help` from its docstring.

`--flag` alone is true, `--dry-run` is `--dry_run`, a list is written with commas, `--fractions 0.25,0.5,1`. A command
with an argument `overrides` takes keys of a recipe too, `--train.epochs 2`: what has a dot is such a key. One with an
argument `options` takes those of the task of its run as well, `--samples 6`: what is none of its own is such an option.
"""

import inspect
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docstring_parser
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from vnd._text import refusal, spelled, with_one_syntax

HELP = {"-h", "--help"}
REST = ("overrides", "options")  # arguments that take words which are no options of the command's own


def parse(command: Callable[..., None], words: str, args: list[str]) -> dict[str, Any]:
    """The options that a command is to be called with; or its help, and then this does not return."""
    name = words.removeprefix("vnd ")
    parser, parameters, keys = _parser(command, words), inspect.signature(command).parameters, list[str]()
    rest = next((name for name in REST if name in parameters), "")
    if rest:
        args, keys = _apart(args, {*parameters} if rest == "options" else None)
    if HELP & {*args}:
        print(parser.format_help() + _keys_help(command, [word for word in args if word not in HELP]))
        raise SystemExit(0)
    try:
        options = parser.instantiate(parser.parse_args(spelled(args, parser)))
    except ArgumentError as error:
        raise ValueError(f"{name}: {refusal(error)}; `{words} --help` says what it takes") from None
    return {**options, **({rest: keys} if keys else {})}


def _parser(command: Callable[..., None], words: str) -> ArgumentParser:
    parser = ArgumentParser(
        prog=words,
        description=(inspect.getdoc(command) or "").partition("\nArgs:")[0].strip(),
        formatter_class=_Help,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parameters = inspect.signature(command).parameters
    help = {entry.arg_name: entry.description for entry in docstring_parser.parse(command.__doc__ or "").params}
    arguments: dict[str, dict[str, Any]] = {  # that jsonargparse would take as one JSON list, as an option
        name: {"nargs": "+", "type": Path, "metavar": name.removesuffix("s").upper()}
        for name, parameter in parameters.items()
        if parameter.annotation == list[Path] and parameter.default is parameter.empty
    }
    if "overrides" in parameters and "recipe" in parameters:
        arguments["recipe"] = {"nargs": "?", "default": "", "metavar": "RECIPE"}
    skip: set[str | int] = {*arguments, *REST}
    first = next(iter(parameters)) in arguments
    if not first:
        parser.add_function_arguments(command, as_group=False, as_positional=True, skip=skip)
    for name, settings in arguments.items():
        parser.add_argument(name, help=help[name], **settings)
    if first:
        parser.add_function_arguments(command, as_group=False, as_positional=True, skip=skip)
    for action in parser._actions:
        action.option_strings = [word for word in action.option_strings if not word.endswith("+")]  # of the help
        if parameters.get(action.dest, inspect.Parameter).annotation is bool:
            action.nargs, action.const = "?", True
    return with_one_syntax(parser)


class _Help(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    pass


def _apart(args: list[str], own: set[str] | None) -> tuple[list[str], list[str]]:
    """The words of the command, and the keys of its recipe with their values: what has a dot, or is not its own."""
    options, keys = list[str](), list[str]()
    words = iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        short = name[2:].replace("-", "_")
        if name.startswith("--") and ("." in name if own is None else short not in {*own, "help"}):
            keys += [word] if equals else [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            options.append(word)
    return options, keys


def _keys_help(command: Callable[..., None], args: list[str]) -> str:
    """The keys of the recipe that a command trains, or of its run, with their values there, once it is named."""
    parameters = inspect.signature(command).parameters
    what = "recipe" if "recipe" in parameters else "run" if "options" in parameters else ""
    named = next((word for word in args if not word.startswith("-")), None)
    if not what or named is None:  # to know the keys is to load torch
        return "\nkeys of a recipe, and their values: vnd train RECIPE --help" if what == "recipe" else ""
    from vnd.train.config import help_parser, options_parser, parse, parse_run

    parser = help_parser(parse(named)) if what == "recipe" else options_parser(parse_run(Path(named)))
    return f"\nkeys of the {what} {named}:\n{parser.format_help()}"
