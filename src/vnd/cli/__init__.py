"""The command line, `vnd COMMAND`: one file a command, each a plain function with typed arguments."""

import ast
import builtins
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from vnd._text import nearest

SOURCE = Path(__file__).parents[2]

COMMANDS = {  # the words of a command → its function, in the file of its first word
    **{name: name for name in ("demo", "recipes", "train", "sweep", "evaluate", "report", "extract", "push")},
    **{name: name for name in ("generate", "segment", "distill", "export", "page")},
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
        width, words = max(map(len, known)), f"vnd {group}".strip()
        summaries = {short: declared(*_place(name)).__doc__.partition("\n")[0] for short, name in known.items()}
        lines = [f"  {short:{width}}  {summary}" for short, summary in summaries.items()]
        print("\n".join([f"usage: {words} COMMAND ...", "", *lines, "", f"{words} COMMAND --help says more"]))
        if not args:
            raise SystemExit(2)
    elif args[0] in known:
        from vnd.cli.parser import parse

        module, name = _place(known[args[0]])
        options = parse(declared(module, name), f"vnd {known[args[0]]}", args[1:])
        getattr(import_module(module), name)(**options)
    elif any(name.startswith(f"{args[0]} ") for name in known):
        _run(args[1:], f"{args[0]} ")
    else:
        first = dict.fromkeys(name.partition(" ")[0] for name in known)
        raise ValueError(f"unknown command {args[0]!r}{nearest(args[0], first)} Known: {', '.join(first)}")


def _place(name: str) -> tuple[str, str]:
    """The module of a command, and its function there."""
    return f"vnd.cli.{name.partition(' ')[0]}", COMMANDS[name]


@cache
def declared(module: str, name: str) -> Any:
    """A name of a module, made of the source alone, a function without its body: to import all of it would load torch.

    What its signature or its value names is made alike; only modules of others are imported.
    """
    path = SOURCE.joinpath(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    node = next(node for node in ast.parse(text).body if name in _bound(node))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("vnd."):
        return declared(str(node.module), name)
    if isinstance(node, ast.FunctionDef):
        node.body = node.body[:1]
    named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    space: dict[str, Any] = {one: declared(module, one) for one in named if not hasattr(builtins, one)}
    space["__name__"] = "builtins"  # a module that is there and has none of these names
    exec(compile(ast.Module([node], []), str(path), "exec"), space)
    return space[name]


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement makes."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.Assign):
        return {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return {node.name} if isinstance(node, ast.FunctionDef) else set()
