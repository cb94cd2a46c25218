"""No package but methods and tasks knows a task or a method by name: by the syntax trees of the library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import vnd
from vnd.methods import METHODS
from vnd.tasks import TASKS

ROOT = Path(vnd.__file__).parent
THEIRS = ("methods", "tasks")
PACKAGES = {"vnd.methods", "vnd.tasks"}
COMMANDS = {  # that are for the networks of one task, and say so of any other run
    "cli/demo.py",  # a tour of one recipe, a classifier's
    "cli/distill.py",  # a student learns the distribution over classes
    "cli/generate.py",  # images come of codes
    "cli/segment.py",  # masks
}
NAMES = {*TASKS, *METHODS} - {"plain"}  # an English word, too: a saved network says so of its layers
CLASSES = {kind.__name__ for kind in METHODS.values()} | {type(task).__name__ for task in TASKS.values()}


def mentions(source: str) -> Iterator[tuple[int, str]]:
    """Lines and names: string constants, imported names and operands of isinstance."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.lineno, node.value
        elif isinstance(node, ast.ImportFrom):
            package, _, module = str(node.module).rpartition(".")
            imported = {alias.name for alias in node.names} | ({module} if package in PACKAGES else set())
            yield from ((node.lineno, name) for name in imported & (NAMES | CLASSES))
        elif isinstance(node, ast.Import):
            parts = (alias.name.rpartition(".") for alias in node.names)
            yield from ((node.lineno, name) for package, _, name in parts if package in PACKAGES and name in NAMES)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.args[1])}
            yield from ((node.lineno, name) for name in names & CLASSES)


def files() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in THEIRS]


def test_no_other_package_knows_a_task_or_a_method_by_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files()
        if path.relative_to(ROOT).as_posix() not in COMMANDS
        for line, name in mentions(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "planted",
    [
        "task == 'segmentation'",
        "kinds = {'bn3': 1}",
        "from vnd.methods import SN3",
        "from vnd.methods.vnd_punet import Drawer",
        "from vnd.tasks import classification",
        "import vnd.tasks.classification",
        "isinstance(method, methods.VNDAE)",
    ],
)
def test_a_planted_name_is_found(planted: str) -> None:
    assert list(mentions(planted))
