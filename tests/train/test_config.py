"""Recipes that are like another: what they take over, what they do not, and one line where that goes wrong."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from vnd.train import config
from vnd.train.config import names, parse, read

PARENT: dict[str, Any] = {
    "about": "the parent",
    "method": {
        "name": "bn3", "num_groups": 16, "base": 2,
        "rules": {"features.0": {"nest": False}, "classifier.*": {"nest": False}},
    },
    "network": {"name": "vgg11", "width": 0.5},
    "data": {"name": "cifar10", "folder": "/some/where", "augment": {"pad": 4, "flip": True}},
    "optimizer": {"name": "sgd", "lr": 0.3, "momentum": 0.8},
    "schedule": {"lr": {"kind": "cosine", "warmup": 0.25}},
    "train": {"epochs": 7, "clip": 1.0},
    "evaluate": {"sizes": {"fractions": [0.5, 1.0], "learned": 3}},
}  # fmt: skip


def write(folder: Path, **files: Any) -> Path:
    """Write recipes, and return the path of the last."""
    for name, given in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(given, allow_unicode=True), encoding="utf-8")
    return path


def child(folder: Path, **sections: Any) -> dict[str, Any]:
    """What a recipe says that is like the parent, with some sections of its own."""
    return read(write(folder, parent=PARENT, child={"like": "parent.yaml", **sections}))[0]


# What is taken over


def check_merging(folder: Path) -> None:
    """Sections merge key by key at every depth, values are replaced, and the parent is left as it was."""
    found = child(
        folder,
        train={"epochs": 9, "clip": None},
        evaluate={"sizes": {"fractions": [0.25]}},
        data={"augment": {"flip": False}},
        method={"base": 3, "rules": {"features.4": {"nest": False}}},
        schedule=None,
    )
    assert found["train"] == {"epochs": 9, "clip": None}
    assert found["evaluate"] == {"sizes": {"fractions": [0.25], "learned": 3}}
    assert found["data"] == {**PARENT["data"], "augment": {"pad": 4, "flip": False}}
    assert found["method"] == {"name": "bn3", "num_groups": 16, "base": 3, "rules": {"features.4": {"nest": False}}}
    assert found["schedule"] == PARENT["schedule"]
    assert found["network"] == PARENT["network"]


def check_starting_anew(folder: Path) -> None:
    """Where a name or a kind changes, nothing of that section is left, and no rule survives another network."""
    assert child(folder, method={"name": "plain"})["method"] == {"name": "plain"}
    assert child(folder, data={"name": "svhn"})["data"] == {"name": "svhn"}
    assert child(folder, optimizer={"name": "adam"})["optimizer"] == {"name": "adam"}
    steps = {"kind": "steps", "step_size": 3}
    assert child(folder, schedule={"lr": steps})["schedule"] == {"lr": steps}
    other = child(folder, network={"name": "resnext"})
    assert other["network"] == {"name": "resnext"}
    assert other["method"] == {"name": "bn3", "num_groups": 16, "base": 2}
    rules = {"stem": {"nest": False}}
    assert child(folder, network={"name": "resnext"}, method={"rules": rules})["method"]["rules"] == rules
    same = child(folder, network={"name": "vgg11", "width": 0.25})
    assert same["method"] == PARENT["method"]


def test_sections_merge_and_values_are_replaced(tmp_path: Path) -> None:
    check_merging(tmp_path)
    assert yaml.safe_load((tmp_path / "parent.yaml").read_text()) == PARENT


def test_a_change_of_name_or_kind_starts_anew(tmp_path: Path) -> None:
    check_starting_anew(tmp_path)


def _shallow(own: Any, other: Any, path: Any = ()) -> Any:
    return {**other, **own}


def _everything(own: Any, other: Any, path: Any = ()) -> Any:
    return {
        **other,
        **{k: _everything(v, other[k]) if isinstance(v, dict) and k in other else v for k, v in own.items()},
    }


def _other_wins(own: Any, other: Any, path: Any = ()) -> Any:
    return {**own, **other}


@pytest.mark.parametrize("fault", [_shallow, _everything, _other_wins], ids=lambda fault: fault.__name__)
def test_faulty_merging_is_caught(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_over", fault)
    with pytest.raises(AssertionError):
        check_merging(tmp_path)


@pytest.mark.parametrize("name", ["WHO", "OF_LAYERS"])
def test_what_was_meant_for_something_else_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, name, ())
    with pytest.raises(AssertionError):
        check_starting_anew(tmp_path)


def test_what_is_not_said_has_its_default_name_and_kind(tmp_path: Path) -> None:
    silent = {**PARENT, "optimizer": {"lr": 0.3}, "schedule": {"lr": {"warmup": 0.5}}}  # SGD, and cosine
    write(tmp_path, silent=silent)

    def found(**sections: Any) -> dict[str, Any]:
        return read(write(tmp_path, child={"like": "silent.yaml", **sections}))[0]

    assert found(optimizer={"name": "sgd"})["optimizer"] == {"name": "sgd", "lr": 0.3}
    assert found(optimizer={"name": "ngd"})["optimizer"] == {"name": "ngd"}
    assert found(schedule={"lr": {"kind": "cosine"}})["schedule"]["lr"] == {"kind": "cosine", "warmup": 0.5}
    assert found(schedule={"lr": {"kind": "steps"}})["schedule"]["lr"] == {"kind": "steps"}
    assert found(what={"name": "x"})["what"] == {"name": "x"}  # refused later, by its key


def test_what_another_says_of_itself_is_not_taken_over(tmp_path: Path) -> None:
    assert not child(tmp_path, train={"epochs": 3})["about"]
    assert child(tmp_path, about="mine")["about"] == "mine"
    assert parse({"like": "demo"}).about == ""


def test_a_chain_is_read_from_its_end(tmp_path: Path) -> None:
    middle = {"like": "parent.yaml", "train": {"epochs": 8, "batch": 16}, "network": {"width": 0.25}}
    last = {"like": "middle.yaml", "train": {"epochs": 9}}
    found = read(write(tmp_path, parent=PARENT, middle=middle, last=last))[0]
    assert found["train"] == {"epochs": 9, "batch": 16, "clip": 1.0}
    assert found["network"] == {"name": "vgg11", "width": 0.25}
    assert "like" not in found


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"parent": PARENT, "below/child": {"like": "../parent.yaml"}, "below/again": {"like": "child.yaml"}}
    path = write(tmp_path, **files)
    monkeypatch.chdir("/")
    assert read(path)[0] == {**PARENT, "about": None}
    assert parse(write(tmp_path, named={"like": "fashion/plain"})).data == parse("fashion/plain").data
    monkeypatch.chdir(tmp_path)
    assert read({"like": "parent.yaml"})[0]["train"] == PARENT["train"]


def test_a_recipe_like_another_is_that_one_and_is_written_out_in_full(tmp_path: Path) -> None:
    given = {"about": parse("demo").about, "like": "demo"}
    before = copy.deepcopy(given)
    recipe = parse(given)
    assert recipe == parse("demo")
    assert given == before
    assert "like" not in recipe.to_dict()
    assert parse(given, ["--train.epochs", "3"]).train.epochs == 3


def test_shipped_recipes_are_like_shipped_ones() -> None:
    for name in names():
        given = yaml.safe_load(config.find(name).read_text(encoding="utf-8"))
        assert given.get("like", "demo") in names(), name
