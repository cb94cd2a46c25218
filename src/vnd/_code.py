"""Classes and functions of one's own that a recipe names, `package.module:name`, and whose code may be run.

To name code is to run it. A recipe that is given to `vnd train` is the user's own word: what it names is looked for on
`PYTHONPATH`, among installed packages, and in the current folder. A run that is opened again may be somebody else's.
What its recipe names must be code of the user's own: found on `PYTHONPATH` or in the current folder, not in the run
itself, and no part of Python or of an installed package, unless `VND_TRUST` names that package. A saved network never
names code.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from vnd._text import nearest, one_line

NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
TRUST = "VND_TRUST"  # packages, with commas between, whose code runs of others may name


def names_code(name: object) -> bool:
    """Tell if a name is meant as one of code, `package.module:name`.

    >>> names_code("my_nets:SmallNet"), names_code("convnet")
    (True, False)
    """
    return isinstance(name, str) and ":" in name


def find_code(name: str, key: str) -> Any:
    """The class or function that `package.module:name` names; `key` is that of the recipe, for the message.

    >>> find_code("collections:Counter", "network.name")
    <class 'collections.Counter'>
    >>> find_code("collections:Conter", "network.name")
    Traceback (most recent call last):
    ValueError: network.name: module collections has no 'Conter', did you mean 'Counter'?
    """
    path, attribute = _parts(name, key)
    _look_here()
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):  # something that the module itself needs
            raise ValueError(f"{key}: module {path} needs {error.name}, which is not installed") from None
        where = f"neither in the current folder, {Path.cwd()}, nor on PYTHONPATH, nor installed"
        raise ValueError(f"{key}: no module {error.name!r}, {where}{nearest(path, _modules_here())}") from None
    except Exception as error:  # it is anybody's
        raise ValueError(f"{key}: module {path} cannot be imported: {one_line(error)}") from None
    if not hasattr(module, attribute):
        of = f" ({file})" if (file := getattr(module, "__file__", None)) and not _is_python(Path(file)) else ""
        raise ValueError(f"{key}: module {path}{of} has no {attribute!r}{nearest(attribute, vars(module))}")
    return getattr(module, attribute)


def trust(name: str) -> None:
    """Let runs name code of this package too, here and in processes begun from here: the user has named it."""
    said = [word for word in os.environ.get(TRUST, "").split(",") if word]
    os.environ[TRUST] = ",".join(dict.fromkeys([*said, name.partition(":")[0].partition(".")[0]]))


def check_trusted(name: str, key: str, folder: Path) -> None:
    """Refuse what the recipe of a run names, unless it is code of the user's own or trusted; nothing else is imported.

    Args:
        name: `package.module:name`.
        key: That of the recipe.
        folder: The run.
    """
    path, _ = _parts(name, key)
    _look_here()
    _check_module(path, name, key, folder)
    origin = getattr(find_code(name, key), "__module__", None) or path  # a module of one's own may have imported it
    _check_module(origin, name, key, folder)


def _check_module(path: str, name: str, key: str, folder: Path) -> None:
    top = path.partition(".")[0]
    if top in os.environ.get(TRUST, "").split(","):
        return
    files = _places(top)
    if files is None:
        return  # there is none, which `find_code` says
    inside = next((file for file in files if file.is_relative_to(folder.resolve())), None)
    if inside is not None:
        raise ValueError(f"{folder}: {key} names {name}, code that lies in the run itself; it is not run")
    if top == "vnd" or not files or any(_is_python(file) for file in files):
        raise ValueError(
            f"{folder}: {key} names {name}, of {top}, which is no code in the current folder or on PYTHONPATH; "
            f"if you trust this run, set {TRUST}={top}"
        )


def _places(top: str) -> list[Path] | None:
    """Files or folders of a top-level module, without importing it; None if there is none, [] if it is built in."""
    if top == "__main__" or (top in sys.modules and getattr(sys.modules[top], "__spec__", None) is None):
        file = getattr(sys.modules[top], "__file__", None)  # the program that runs, or one typed in
        return [Path(file or "typed in").resolve()]
    with suppress(ImportError, ValueError):
        if (spec := importlib.util.find_spec(top)) is not None:
            places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])]
            return [Path(str(place)).resolve() for place in places]
    return None


def _is_python(file: Path) -> bool:
    """Tell if a file is a part of Python or of an installed package."""
    known = [path for key, path in sysconfig.get_paths().items() if key.endswith(("stdlib", "lib"))]
    roots = {Path(path).resolve() for path in (*known, *site.getsitepackages(), site.getusersitepackages())}
    return any(file.is_relative_to(root) for root in roots)


def _parts(name: str, key: str) -> tuple[str, str]:
    if (said := NAME.fullmatch(name)) is None:
        raise ValueError(
            f"{key} must be package.module:name for code of your own, such as my_nets:SmallNet; got {name!r}"
        )
    return said[1], said[2]


def _look_here() -> None:
    """Let Python find modules in the current folder too, after all other places."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()  # a module may have been written a moment ago


def _modules_here() -> Iterable[str]:
    found = [*Path.cwd().glob("*.py"), *(file.parent for file in Path.cwd().glob("*/__init__.py"))]
    loaded = [name for name, module in sys.modules.items() if isinstance(module, ModuleType) and "." not in name]
    return [*(path.stem for path in found), *(name for name in loaded if not name.startswith("_"))]
