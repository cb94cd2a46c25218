"""What is not needed is not loaded: names are loaded on first use, help and the overview without torch."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import vnd
from vnd.cli import COMMANDS

SAY = "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def loaded(words: str) -> set[str]:
    """The packages that some statements load, in a process of their own."""
    ran = subprocess.run([sys.executable, "-c", words + SAY], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [
        "import vnd; dir(vnd)",
        "import vnd; vnd.report; import vnd._text, vnd._files",
        "from vnd.cli import main; main(['--help'])",
        "from vnd.cli import main; main(['data', '--help'])",
        *(
            f"from vnd.cli import main\ntry: main({name.split()} + ['--help'])\nexcept SystemExit: 0"
            for name in COMMANDS
        ),
    ],
)
def test_what_needs_no_torch_loads_none(words: str) -> None:
    assert not loaded(words) & {"torch", "numpy", "matplotlib"}


def test_methods_do_not_load_the_compiler() -> None:
    words = "import sys, vnd.methods, vnd.train.loop; print('torch._dynamo' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert ran.stdout == "False\n", ran.stderr


def test_every_public_name_is_there_and_listed() -> None:
    for name in vnd.__all__:
        assert name in dir(vnd)
        value = getattr(vnd, name)
        assert inspect.ismodule(value) or value is getattr(sys.modules[value.__module__], name)
    tree = ast.parse(Path(vnd.__file__).with_suffix(".pyi").read_text())
    named = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in named)  # or a type checker does not see it


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'vnd' has no attribute 'predct'"):
        _ = vnd.predct  # type: ignore[attr-defined]
    assert not hasattr(vnd, "__wrapped__")


def test_modules_of_packages_that_import_none_are_there() -> None:
    loaded("import vnd; vnd.train.loop.fit, vnd.report.html.section")
    with pytest.raises(AttributeError, match=r"module 'vnd\.train' has no attribute 'lop'"):
        _ = vnd.train.lop
