"""Every public name has a doctest, but types of results, which the function that returns them shows."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType

import pytest

import vnd

MODULES = [vnd, vnd.data, vnd.distributions, vnd.functional, vnd.metrics, vnd.models, vnd.nn]
MIXED_IN = {"BayesLayer"}  # what is mixed into torch's layers


def public(module: ModuleType) -> dict[str, object]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return {name: getattr(module, name) for name in names}


def returned(module: ModuleType) -> str:
    """What the functions of a module return, as their signatures spell it."""
    return " ".join(
        str(inspect.signature(value).return_annotation)
        for value in [*public(module).values(), *vars(vnd.OrderingUnit).values()]
        if inspect.isfunction(value)
    )


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_has_a_doctest(module: ModuleType) -> None:
    found = {
        name: value
        for name, value in public(module).items()
        if (inspect.isfunction(value) or inspect.isclass(value)) and name not in MIXED_IN
    }
    assert found
    results = returned(module)
    lacking = [
        name
        for name, value in found.items()
        if ">>>" not in (inspect.getdoc(value) or "") and not (dataclasses.is_dataclass(value) and name in results)
    ]
    assert not lacking
