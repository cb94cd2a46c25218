"""Recipes that are like another: what they take over, what they do not, and one line where that goes wrong."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from vnd.train import config, sweep
from vnd.train.config import names, parse, parse_run, read

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


def refused(path: str | Path | dict[str, Any]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


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


# Refusals


def test_a_loop_is_refused_by_name(tmp_path: Path) -> None:
    one = write(tmp_path, two={"like": "one.yaml"}, one={"like": "two.yaml"})
    two = tmp_path / "two.yaml"
    assert refused(one) == f"recipe {one}: like: leads back to where it came from: {one} → {two} → {one}"
    itself = write(tmp_path, itself={"like": "./../" + tmp_path.name + "/itself.yaml"})
    assert "leads back to where it came from" in refused(itself)


def test_an_unknown_or_missing_other_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, x={"like": "fashion/bn"})
    assert refused(path) == (
        f"recipe {path}: like: unknown recipe 'fashion/bn'; did you mean 'fashion/bn3'? `vnd recipes` lists them"
    )
    path = write(tmp_path, x={"like": "gone.yaml"})
    assert refused(path) == f"recipe {path}: like: recipe {tmp_path / 'gone.yaml'} does not exist"
    (tmp_path / "list.yaml").write_text("- 1\n")
    path = write(tmp_path, x={"like": "list.yaml"})
    assert f"recipe {path}: like: recipe {tmp_path / 'list.yaml'} must hold sections" in refused(path)


@pytest.mark.parametrize("value", [None, 3, "", ["demo"], {"name": "demo"}])
def test_like_must_name_a_recipe(value: Any) -> None:
    assert refused({"like": value}) == (f"recipe: like must be a name of `vnd recipes`, or a YAML file; got {value!r}")


def test_a_wrong_key_is_told_with_all_the_files_it_may_stand_in(tmp_path: Path) -> None:
    wrong = copy.deepcopy(PARENT)
    wrong["train"]["epoch"] = 3
    path = write(tmp_path, parent=wrong, x={"like": "parent.yaml"})
    assert refused(path) == (
        f"recipe {path} (like {tmp_path / 'parent.yaml'}): unknown key 'train.epoch'; did you mean 'train.epochs'?"
    )
    assert refused({"like": "demo", "train": {"epoch": 3}}).startswith("recipe (like demo): unknown key 'train.epoch'")


def test_like_is_no_key_of_the_command_line() -> None:
    with pytest.raises(ValueError, match="unknown key 'like'"):
        parse("demo", ["--like", "fashion/bn3"])


def test_shipped_recipes_are_like_shipped_ones() -> None:
    for name in names():
        given = yaml.safe_load(config.find(name).read_text(encoding="utf-8"))
        assert given.get("like", "demo") in names(), name


# What YAML may not say


def refused_yaml(text: str, tmp_path: Path) -> str:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"x\.yaml: ") as caught:
        parse(tmp_path / "x.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "key", "lines"),
    [
        ("like: demo", "like", (1, 5)),
        ("train: {epochs: 7}", "train", (2, 5)),
        ("data: {limit: 9, size: 8, limit: 9}", "limit", (5, 5)),
        ("schedule:\n  lr:\n    start: 1.0\n    end: 0.5\n    start: 1.0", "start", (7, 9)),
        ("method: {rules: {a: {base: 1, base: 2}}}", "base", (5, 5)),
        ("evaluate: {sizes: {fractions: [{a: 1, 'a': 2}]}}", "a", (5, 5)),
    ],
)
def test_a_key_given_twice_is_refused_with_its_lines(
    more: str, key: str, lines: tuple[int, int], tmp_path: Path
) -> None:
    text = "like: fashion/bn3\ntrain:\n  epochs: 2\n  seed: 3\n"
    (tmp_path / "x.yaml").write_text(text)
    parse(tmp_path / "x.yaml")
    told = refused_yaml(text + more + "\n", tmp_path)
    assert told.endswith(f"key {key!r} must be given once; got it in line {lines[0]} and line {lines[1]}")


def test_a_key_given_twice_is_refused_in_a_sweep_and_in_the_recipe_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("runs: [fashion/bn3]\nseeds: [0]\nruns: [demo]\n")
    with pytest.raises(ValueError, match=r"key 'runs' must be given once; got it in line 1 and line 3$"):
        sweep.read(tmp_path / "s.yaml")
    recipe = parse("fashion/bn3")
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    assert sweep.holds(tmp_path, sweep.digest(recipe))
    again = recipe.to_yaml() + "train: {epochs: 7}\n"
    (tmp_path / "recipe.yaml").write_text(again)
    with pytest.raises(
        ValueError, match=r"recipe\.yaml: key 'train' must be given once; got it in line \d+ and line \d+$"
    ):
        parse_run(tmp_path)
    with pytest.raises(ValueError, match="key 'train' must be given once"):
        sweep.holds(tmp_path, sweep.digest(recipe))


@pytest.mark.parametrize(
    "text",
    [
        "like: fashion/bn3\nmethod: {rules: &a {x: *a}}\n",
        "like: fashion/bn3\nmethod:\n  rules: {x: {a: &a [1, 1]}, y: {a: [*a, *a]}}\n",
        "like: &name fashion/bn3\n",
        "like: demo\ntrain: &t {epochs: 2}\ndata: {<<: *t}\n",
    ],
)
def test_anchors_and_aliases_are_refused(text: str, tmp_path: Path) -> None:
    assert "must be spelt out; got an anchor or an alias" in refused_yaml(text, tmp_path)


def test_eight_levels_of_nine_aliases_are_refused_at_once(tmp_path: Path) -> None:
    levels = ", ".join(f"k{n}: {{a: &a{n} [{', '.join(['1' if n == 0 else f'*a{n - 1}'] * 9)}]}}" for n in range(8))
    assert "&a0 must be spelt out" in refused_yaml(f"like: fashion/bn3\nmethod: {{rules: {{{levels}}}}}\n", tmp_path)
