"""Variational nested dropout: train once, run at every size, and know when not to trust the answer.

Names are loaded on first use (PEP 562): a program that asks for `vnd.report` alone loads no torch. `__init__.pyi` says
which names there are, and where each is from.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    name.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for name in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        if find_spec(f"vnd.{name}"):
            return import_module(f"vnd.{name}")
        if name in _HOMES:
            globals()[name] = getattr(import_module(_HOMES[name]), name)
            return globals()[name]
    raise AttributeError(f"module 'vnd' has no attribute {name!r}", name=name, obj=import_module("vnd"))


def __dir__() -> list[str]:
    modules = (module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return sorted({*globals(), *_HOMES, *modules})
