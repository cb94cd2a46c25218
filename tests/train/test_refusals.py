"""Refusals of recipes, trainings and sweeps: bad keys, values, names, data and files, each in one line."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from refusals import refused, table
from train.small import settings, write_blobs
from train.test_config import PARENT
from vnd.methods import METHODS
from vnd.train import sweep
from vnd.train.config import parse, parse_run
from vnd.train.loop import fit

Call = Callable[[], object]
BASE: dict[str, Any] = {"method": {"name": "bn3"}, "network": {"name": "convnet"}}


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recipe(given: Any, *overrides: str) -> Call:
    return lambda: parse(given, overrides)


def nested(path: str, value: Any) -> dict[str, Any]:
    """The base with one key, by its path, set to a value."""
    given = copy.deepcopy(BASE)
    *sections, key = path.split(".")
    part = given
    for section in sections:
        part = part.setdefault(section, {})
    part[key] = value
    return given


def file(content: str | bytes, read: Callable[[Path], object] = parse, name: str = "x.yaml") -> Call:
    """Read a file that holds this."""

    def call() -> object:
        path = Path(name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read(path)

    return call


def files(**given: Any) -> Call:
    """Read the last of some recipes."""

    def call() -> object:
        for name, value in given.items():
            Path(f"{name}.yaml").write_text(value if isinstance(value, str) else yaml.safe_dump(value))
        return parse(f"{name}.yaml")

    return call


# Recipes

UNKNOWN = {
    "trane.epochs": "train.epochs",
    "train.epoch": "train.epochs",
    "data.augment.flop": "data.augment.flip",
    "schedule.lr.knd": "schedule.lr.kind",
    "evaluate.sizes.fraction": "evaluate.sizes.fractions",
    "method.num_group": "method.num_groups",
    "network.widht": "network.width",
    "optimiser.lr": "optimizer.lr",
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_an_unknown_key_is_refused_with_the_nearest_wherever_it_stands(key: str) -> None:
    words = f"recipe: unknown key {key!r}; did you mean {UNKNOWN[key]!r}?"
    section, _, rest = key.rpartition(".")
    for call in (recipe(nested(key, 3)), recipe(BASE, f"--{key}=3"), recipe(BASE, f"--{key}", "3")):
        assert refused(call, words) == words
    if section not in ("trane", "optimiser"):
        assert refused(recipe(BASE, f"--{section}", f"{{{rest}: 3}}"), words) == words


VALUES = [
    ("train.epochs", "many", "must be a whole number; got many"),
    ("train.epochs", 1.5, "must be a whole number; got 1.5"),
    ("train.epochs", True, "must be a whole number; got True"),
    ("train.epochs", None, "must have a value; got null"),
    ("train.epochs", 0, "must be at least 1; got 0"),
    ("train.batch", 1, "must be at least 2; got 1"),
    ("train.seed", -1, "must lie in 0 … "),
    ("train.seed", 2**63, "must lie in 0 … "),
    ("train.clip", 0.0, "must be greater than 0; got 0.0"),
    ("train.ema", 1.0, "must lie in (0, 1); got 1.0"),
    ("train.precision", "fp8", "must be one of 'no', 'bf16', 'fp16'; got fp8"),
    ("train.compile", "perhaps", "must be true or false; got perhaps"),
    ("train.validate_at", 0.5, "must be a list; got 0.5"),
    ("train.validate_at", [], "must hold fractions in (0, 1]; got []"),
    ("train.validate_at", [math.nan], "must be finite; got nan"),
    ("optimizer.lr", math.nan, "must be finite; got nan"),
    ("optimizer.lr", "fast", "must be a number; got fast"),
    ("optimizer.lr", -1, "must be 0 or more; got -1.0"),
    ("optimizer.name", "sdg", "must be one of 'sgd', 'adam', 'adamw', 'ngd'; got sdg"),
    ("schedule.lr.warmup", 1, "must lie in [0, 1); got 1.0"),
    ("schedule.lr.kind", "cosin", "must be one of 'constant', 'linear', 'cosine', 'exponential', 'steps'; got cosin"),
    ("schedule.temperature", {"start": 0.0}, "must stay greater than 0; got 0.0"),
    ("schedule.temperature", {"kind": "steps", "gamma": 0.0}, "must stay greater than 0; got 0.0"),
    ("schedule.kl_weight.start", -1.0, "must be 0 or more; got -1.0"),
    ("data.name", "cifar", "must be one of fashion"),
    ("data.name", None, "must have a value; got null"),
    ("data.folder", 3, "must be text or none; got 3"),
    ("data.validation", 0, "must be at least 1; got 0"),
    ("data.split_seed", -1, "must be at least 0; got -1"),
    ("data.augment.pad", -1, "must be 0 or more; got -1"),
    ("data.augment", 3, "must hold keys of its own; got 3"),
    ("train", [1], "must hold keys of its own; got [1]"),
    ("method.num_groups", 0, "must be at least 1; got 0"),
    ("method.rules", {"features.0": 3}, "must be a mapping; got 3"),
    ("method.rules.x.log_alpha_init", math.nan, "must be finite; got nan"),
    ("network.width", "wide", "must be a number; got wide"),
    ("evaluate.samples", -1, "must be at least 0; got -1"),
    ("evaluate.sizes.fractions", [0], "must lie in (0, 1]; got [0.0]"),
    ("evaluate.sizes.parameters", [0], "must be greater than 0; got [0.0]"),
    ("evaluate.ood", "svnh", "must be one of fashion"),
]


@pytest.mark.parametrize(("key", "value", "words"), VALUES, ids=lambda x: str(x)[:40])
def test_a_wrong_value_is_refused_by_its_key(key: str, value: Any, words: str) -> None:
    assert refused(recipe(nested(key, value)), words).startswith(f"recipe: {key} {words}")


@pytest.mark.parametrize(("key", "value", "words"), [VALUES[i] for i in (0, 1, 2, 4, 5, 17)], ids=lambda x: str(x)[:40])
def test_a_wrong_value_is_refused_on_the_command_line_too(key: str, value: Any, words: str) -> None:
    given = "null" if value is None else "true" if value is True else value
    assert refused(recipe(BASE, f"--{key}", str(given)), words).startswith(f"recipe: {key} {words}")


LIKE = "recipe: like must be a name of `vnd recipes`, or a YAML file; got "
TWICE = "like: fashion/bn3\ntrain:\n  epochs: 2\n  seed: 3\n"
AGAIN = parse("fashion/bn3").to_yaml() + "train: {epochs: 7}\n"
SPELT = "must be spelt out; got an anchor or an alias"
LEVELS = ", ".join(f"k{n}: {{a: &a{n} [{', '.join(['1' if n == 0 else f'*a{n - 1}'] * 9)}]}}" for n in range(8))


@table(
    {
        "a key near nothing": (recipe({**BASE, "zzz": 1}), "recipe: unknown key 'zzz'."),
        "a key that is no text": (recipe({**BASE, 3: 4}), "recipe: unknown key '3'."),
        "an override near nothing": (recipe({**BASE, "about": {"x": 1}}, "--zzz", "1"), "recipe: unknown key 'zzz'."),
        "a set near another": (recipe(nested("evaluate.ood", "svnh")), "got 'svnh'; did you mean 'svhn'?"),
        "data near others": (recipe(nested("data.name", "cifar")), "did you mean 'cifar10'?"),
        "a method near another": (
            recipe(nested("method.name", "bn")),
            f"recipe: method.name must be one of {', '.join(METHODS)}; got 'bn'; did you mean 'bn3'?",
        ),
        "a network near another": (recipe(BASE, "--network.name", "vgg"), "got 'vgg'; did you mean 'vgg11'?"),
        "no method": (recipe({}), "recipe: method.name must be one of"),
        "a method alone": (recipe({"method": "bn3", "network": "convnet"}), "recipe: method.name must be one of"),
        "a recipe near another": (
            recipe("demos"), "unknown recipe 'demos'; did you mean 'demo'? `vnd recipes` lists them",
        ),
        "a key of a rule": (
            recipe(nested("method.rules", {"features.0": {"nst": False}})),
            "method.rules: features.0 has no 'nst'; known are",
        ),
        "no size": (
            recipe(nested("evaluate.sizes.fractions", [])),
            "recipe: evaluate.sizes.fractions, levels, parameters or learned must name at least one size; got none",
        ),
        "what the network refuses": (
            lambda: parse(nested("network.width", -1)).network.build(),
            "network.width must be a finite number greater than 0; got -1.0",
        ),
        **{
            " ".join(words): (recipe(BASE, *words), "recipe: ")
            for words in (["stray"], ["--train.epochs"], ["--train.epochs", "2", "3"], ["-x"], ["--method.name"])
        },
        "a list": (file("- 1\n- 2\n"), "recipe x.yaml must hold sections such as train: {epochs: 2}; got list"),
        "nothing": (file(""), "recipe x.yaml must hold sections such as train: {epochs: 2}; got NoneType"),
        **{
            name: (file(content), "recipe x.yaml is not YAML: ")
            for name, content in {
                "not YAML": b"train: {epochs: 2\nx: [", "two documents": b"a: 1\n---\nb: 2\n",
                "not text": b"\xff\xfe\x00", "too deep": b"[" * 2_000,
                "an object of Python": b"!!python/object/apply:os.system ['true']",
            }.items()
        },
        "no file": (recipe(Path("none.yaml")), "recipe none.yaml does not exist"),
        "a key of a file": (
            file(yaml.safe_dump(nested("train.epoch", 1))),
            "recipe x.yaml: unknown key 'train.epoch'; did you mean 'train.epochs'?",
        ),
        "a loop": (
            files(two={"like": "one.yaml"}, one={"like": "two.yaml"}),
            "recipe one.yaml: like: leads back to where it came from: one.yaml → two.yaml → one.yaml",
        ),
        "itself": (files(itself={"like": "./itself.yaml"}), "leads back to where it came from"),
        "like one near another": (
            files(x={"like": "fashion/bn"}),
            "recipe x.yaml: like: unknown recipe 'fashion/bn'; did you mean 'fashion/bn3'? `vnd recipes` lists them",
        ),
        "like a file that is not there": (
            files(x={"like": "gone.yaml"}), "recipe x.yaml: like: recipe gone.yaml does not exist",
        ),
        "like a list": (
            files(list="- 1\n", x={"like": "list.yaml"}), "recipe x.yaml: like: recipe list.yaml must hold sections",
        ),
        **{
            f"like {value}": (recipe({"like": value}), f"{LIKE}{value!r}")
            for value in (None, 3, "", ["demo"], {"name": "demo"})
        },
        "a key of another": (
            files(parent={**PARENT, "train": {"epoch": 3}}, x={"like": "parent.yaml"}),
            "recipe x.yaml (like parent.yaml): unknown key 'train.epoch'; did you mean 'train.epochs'?",
        ),
        "a key beside like": (
            recipe({"like": "demo", "train": {"epoch": 3}}), "recipe (like demo): unknown key 'train.epoch'",
        ),
        "like on the command line": (recipe("demo", "--like", "fashion/bn3"), "unknown key 'like'"),
        **{
            f"{key} twice": (
                file(f"{TWICE}{more}\n"),
                f"x.yaml: key {key!r} must be given once; got it in line {first} and line {second}",
            )
            for more, key, first, second in (
                ("like: demo", "like", 1, 5),
                ("train: {epochs: 7}", "train", 2, 5),
                ("data: {limit: 9, size: 8, limit: 9}", "limit", 5, 5),
                ("schedule:\n  lr:\n    start: 1.0\n    end: 0.5\n    start: 1.0", "start", 7, 9),
                ("method: {rules: {a: {base: 1, base: 2}}}", "base", 5, 5),
                ("evaluate: {sizes: {fractions: [{a: 1, 'a': 2}]}}", "a", 5, 5),
            )
        },
        "a key of a run's recipe twice": (
            file(AGAIN, lambda path: parse_run(path.parent), "recipe.yaml"),
            "recipe.yaml: key 'train' must be given once; got it in line ",
        ),
        "the same, looked at by a sweep": (
            file(AGAIN, lambda path: sweep.holds(path.parent, "0"), "recipe.yaml"),
            "key 'train' must be given once",
        ),
        "an anchor in itself": (file("like: fashion/bn3\nmethod: {rules: &a {x: *a}}\n"), SPELT),
        "an alias": (
            file("like: fashion/bn3\nmethod:\n  rules: {x: {a: &a [1, 1]}, y: {a: [*a, *a]}}\n"), SPELT,
        ),
        "an anchor": (file("like: &name fashion/bn3\n"), SPELT),
        "a merge": (file("like: demo\ntrain: &t {epochs: 2}\ndata: {<<: *t}\n"), SPELT),
        "eight levels of nine aliases": (
            file(f"like: fashion/bn3\nmethod: {{rules: {{{LEVELS}}}}}\n"), f"&a0 {SPELT}",
        ),
    }
)  # fmt: skip
def test_a_bad_recipe_is_refused_in_one_line(call: Call, words: str) -> None:
    refused(call, words)


# Trainings

UNTRAINABLE: dict[str, tuple[dict[str, Any], str]] = {
    "batch": ({"train": {"batch": 200}}, "train.batch must be at most the number of training images, 81; got 200"),
    "classes": (
        {"network": {"name": "convnet", "num_classes": 4, "image_size": 8}},
        "network.num_classes must be that of npz, 3; got 4",
    ),
    "image size": (
        {"network": {"name": "convnet", "num_classes": 3, "image_size": 28}},
        "network convnet cannot read the images of npz, 1×8×8",
    ),
    "channels": (
        {"network": {"name": "convnet", "num_classes": 3, "image_size": 8, "in_channels": 3}},
        "network convnet cannot read the images of npz, 1×8×8",
    ),
    "validation": ({"data": {"validation": 97}}, "data.validation must be less than the 97 training images; got 97"),
    "loss_temperature": (
        {"train": {"loss_temperature": 1.0}, "data": {"validation": 60}},
        "train.loss_temperature: bn3 trains no network of a fixed size in every step; use 0",
    ),
    "loss_temperature, average": (
        {"train": {"loss_temperature": 1.0, "ema": 0.9}, "method": {"name": "plain"}, "data": {"validation": 60}},
        "train.loss_temperature and train.ema exclude each other",
    ),
    "loss_temperature, few images": (
        {"train": {"loss_temperature": 1.0}, "method": {"name": "plain"}},
        "train.loss_temperature needs data.validation to be at least 50; got 16",
    ),
    "no GPU": ({"train": {"device": "cuda"}}, "train.device is cuda, and there is no GPU here"),
    "half": ({"train": {"precision": "fp16"}}, "train.precision fp16 needs a GPU"),
}


@pytest.mark.parametrize("name", UNTRAINABLE)
def test_what_cannot_be_trained_is_refused_before_the_first_step(name: str, tmp_path: Path) -> None:
    if name == "no GPU" and torch.cuda.is_available():
        pytest.skip("there is one")
    change, words = UNTRAINABLE[name]
    given = parse(settings(write_blobs(tmp_path / "blobs.npz"), **change))
    refused(lambda: fit(given, tmp_path / "run", quiet=True), words)
    assert not (tmp_path / "run" / "checkpoints").exists()


# Sweeps

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"seed": [0]}, "unknown key 'seed'; did you mean 'seeds'? Known: about, out,"),
    ({"runs": []}, "runs must be a list of recipes, such as [fashion/bn3]; got []"),
    ({"runs": "tiny.yaml"}, "runs must be a list of recipes; got 'tiny.yaml'"),
    ({"runs": [3]}, "run 1 must be a recipe or a mapping with recipe: NAME; got 3"),
    ({"runs": [{"set": {}}]}, "run 1 must be a recipe or a mapping with recipe: NAME"),
    ({"runs": ["tiny.yaml", "demos"]}, "run 2 (demos): unknown recipe 'demos'; did you mean 'demo'?"),
    ({"runs": ["none.yaml"]}, "none.yaml does not exist"),
    ({"runs": [{"recipe": "demo", "sets": {}}]}, "run 1 (demo): unknown key 'sets'; did you mean 'set'?"),
    ({"runs": [{"recipe": "demo", "name": "../x"}]}, "name must be of letters, digits and - + . _, for a folder; got"),
    ({"runs": [{"recipe": "demo", "grid": {"train.epochs": 3}}]}, "grid: train.epochs must be a list of values; got 3"),
    ({"runs": [{"recipe": "demo", "grid": {"train.epochs": []}}]}, "grid: train.epochs must be a list of values"),
    ({"runs": [{"recipe": "demo", "grid": {"train.epochs": [1, 0]}}]}, "train.epochs must be at least 1; got 0"),
    ({"set": {"train.epoch": 2}}, "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
    ({"set": {"network.width": -1.0}}, "network.width must be a finite number greater than 0; got -1.0"),
    ({"set": {"optimizer.lr": float("nan")}}, "optimizer.lr must be a number; got NaN"),
    ({"set": {"train.seed": 3}}, "set: train.seed is what seeds: [0, 1, 2] is for; give it there"),
    ({"set": {3: 3}}, "set must hold keys of recipes, such as train.epochs; got 3"),
    ({"set": ["train.epochs"]}, "set must be a mapping such as {train.epochs: 2}; got ['train.epochs']"),
    ({"seeds": 3}, "seeds must be a list of different whole numbers, such as [0, 1, 2]; got 3"),
    ({"seeds": [1, 1]}, "seeds must be a list of different whole numbers, such as [0, 1, 2]; got [1, 1]"),
    ({"seeds": [True]}, "seeds must be a list of different whole numbers"),
    ({"seeds": []}, "seeds must be a list of different whole numbers"),
    ({"seeds": [-1]}, "seeds: train.seed must lie in 0"),
    ({"evaluate": "often"}, "evaluate must be true or false; got 'often'"),
    ({"slurm": "gpu"}, "slurm must be a mapping such as {partition: gpu, gpus: 1, time: 120}; got 'gpu'"),
    ({"out": 3}, "out must be a folder; got 3"),
]


@pytest.mark.parametrize(("keys", "told"), WRONG, ids=[told[:40] for _, told in WRONG])
def test_a_bad_sweep_is_refused_in_one_line_that_names_it(keys: dict[str, Any], told: str) -> None:
    Path("tiny.yaml").write_text(yaml.safe_dump(settings(Path("blobs.npz"), train={"epochs": 1})))
    sheet = yaml.safe_dump({"out": "runs", "runs": ["tiny.yaml"], **keys}, sort_keys=False)
    refused(file(sheet, sweep.read, "sweep.yaml"), ("sweep sweep.yaml: ", told))
    assert not Path("runs").exists()


@table(
    {
        "a sweep near another": (lambda: sweep.read("fasion"), "unknown sweep 'fasion'; did you mean 'fashion'"),
        "no file": (lambda: sweep.read(Path("none.yaml")), "none.yaml does not exist"),
        "a list": (file("- a", sweep.read), "must hold keys such as runs"),
        "not YAML": (file("a: [", sweep.read), "is not YAML"),
        "a key twice": (
            file("runs: [fashion/bn3]\nseeds: [0]\nruns: [demo]\n", sweep.read),
            "key 'runs' must be given once; got it in line 1 and line 3",
        ),
        "an option of the cluster": (
            lambda: sweep.check_options({"partion": "gpu"}, "here"),
            "here: unknown key 'partion'; did you mean 'partition'",
        ),
    }
)
def test_what_is_no_sweep_is_refused_in_one_line(call: Call, words: str) -> None:
    refused(call, words)
