"""The command line, `vnd COMMAND`: one file a command, each a plain function with typed arguments."""

import sys
from typing import Any

from jsonargparse import auto_cli

from vnd.cli import train as train_command
from vnd.cli.demo import demo
from vnd.cli.evaluate import evaluate
from vnd.cli.extract import extract
from vnd.cli.recipes import recipes

COMMANDS: dict[str, Any] = {
    "demo": demo,
    "recipes": recipes,
    "train": train_command.train,
    "evaluate": evaluate,
    "extract": extract,
}


def main(args: list[str] | None = None) -> None:
    """Run the command named by the arguments; bad input ends with one line on standard error and exit code 2."""
    args = sys.argv[1:] if args is None else args
    try:
        if args[:1] == ["train"]:  # its keys are those of the recipe, which is known only when it was read
            train_command.main(args[1:])
        else:
            auto_cli(COMMANDS, args=args, prog="vnd", as_positional=True)
    except (ValueError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        print(f"vnd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        print(f"vnd: stopped{f': {error}' if str(error) else ''}", file=sys.stderr)
        raise SystemExit(130) from None
