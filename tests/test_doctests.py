"""Every public name has a doctest."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import vnd

MODULES = [vnd, vnd.data, vnd.distributions, vnd.functional, vnd.metrics, vnd.models, vnd.nn]


def public(module: ModuleType) -> dict[str, object]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return {name: getattr(module, name) for name in names}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_has_a_doctest(module: ModuleType) -> None:
    found = {
        name: value for name, value in public(module).items() if inspect.isfunction(value) or inspect.isclass(value)
    }
    assert found
    assert not [name for name, value in found.items() if ">>>" not in (inspect.getdoc(value) or "")]
