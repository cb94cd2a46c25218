"""The command line, `vnd COMMAND`: one file a command, each a plain function with typed arguments."""

import sys
from typing import Any

from jsonargparse import auto_cli

from vnd.cli.demo import demo

COMMANDS: dict[str, Any] = {"demo": demo}


def main(args: list[str] | None = None) -> None:
    """Run the command named by the arguments; bad input ends with one line on standard error and exit code 2."""
    try:
        auto_cli(COMMANDS, args=args, prog="vnd", as_positional=False)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"vnd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("vnd: stopped", file=sys.stderr)
        raise SystemExit(130) from None
