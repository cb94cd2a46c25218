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
    if name in _HOMES and not find_spec(f"vnd.{name}"):
        globals()[name] = getattr(import_module(_HOMES[name]), name)
        return globals()[name]
    return _submodule("vnd", name)


def _submodule(package: str, name: str) -> Any:
    """Import a module of a package on first use: the `__getattr__` of packages that import none of theirs."""
    if name.startswith("_") or not find_spec(f"{package}.{name}"):
        obj = import_module(package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=obj)
    return import_module(f"{package}.{name}")


def __dir__() -> list[str]:
    modules = (module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return sorted({*globals(), *_HOMES, *modules})
