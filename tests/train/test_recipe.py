"""Recipes: read from YAML and written back, and each one trains."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import FrozenInstanceError, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import vnd
from vnd.data import Images
from vnd.data.registry import DATASETS
from vnd.methods import METHODS, Step
from vnd.models import MODELS
from vnd.nn.objective import length_kl
from vnd.nn.state import state_of
from vnd.serialization import save
from vnd.train import checkpoint
from vnd.train.config import find, names, parse, parser_of
from vnd.train.loop import fit
from vnd.train.recipe import Recipe, differing_keys
from vnd.train.run import Log
from vnd.train.state import build_model

BASE: dict[str, Any] = {"method": {"name": "bn3"}, "network": {"name": "convnet"}}


shipped = cache(parse)  # recipes do not change


def nested(path: str, value: Any) -> dict[str, Any]:
    """The base with one key, by its path, set to a value."""
    given = copy.deepcopy(BASE)
    *sections, key = path.split(".")
    part = given
    for section in sections:
        part = part.setdefault(section, {})
    part[key] = value
    return given


# Reading and writing


def test_a_written_recipe_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text(shipped("demo").to_yaml(), encoding="utf-8")
    assert parse(tmp_path / "again.yaml") == shipped("demo")


def test_the_shipped_recipes_are_found_and_lie_in_the_package() -> None:
    assert {"demo", "fashion/bn3", "fashion/plain", "cifar10/vgg11-bn3"} <= set(names())
    for name in names():
        assert find(name).is_file()
        assert "vnd/recipes" in find(name).as_posix()


@pytest.mark.parametrize("network", MODELS)
def test_every_network_survives_writing(network: str) -> None:
    recipe = parse({"method": {"name": "plain"}, "network": {"name": network}})
    assert parse(yaml.safe_load(recipe.to_yaml())) == recipe
    assert recipe.network.build().config == recipe.network.config


def test_the_comparison_notices_a_value_that_is_lost() -> None:
    given = parse("demo").to_dict()
    given["schedule"]["kl_weight"]["warmup"] = 0.0
    assert parse(given) != parse("demo")


def test_what_is_not_said_keeps_its_default() -> None:
    recipe = parse({**BASE, "schedule": {"temperature": {"kind": "linear", "end": 0.5}}, "train": None})
    assert (recipe.schedule.temperature.start, recipe.schedule.temperature.end) == (2.0, 0.5)
    assert recipe.schedule.lr.kind == "cosine"
    assert recipe.train == parse(BASE).train
    assert recipe.about == ""
    for empty in (
        {"data": {"augment": None}},
        {"schedule": {"lr": None}},
        {"evaluate": {"sizes": {}}},
        {"about": None},
    ):
        assert parse({**BASE, **empty}) == parse(BASE)


def test_a_recipe_cannot_be_changed() -> None:
    recipe = parse("demo")
    for part, key in ((recipe, "train"), (recipe.train, "epochs"), (recipe.data.augment, "pad")):
        with pytest.raises(FrozenInstanceError):
            setattr(part, key, 3)


def test_parsing_leaves_what_it_was_given_as_it_was() -> None:
    given, words = nested("train.epochs", 3), ["--method.name", "plain", "--train.epochs", "4"]
    before = copy.deepcopy(given)
    assert parse(given, words).train.epochs == 4
    assert given == before
    assert words == ["--method.name", "plain", "--train.epochs", "4"]


@pytest.mark.parametrize("method", METHODS)
def test_every_option_has_a_type_that_is_checked(method: str) -> None:
    parser = parser_of(method, "convnet")  # jsonargparse leaves a type unchecked that it cannot resolve
    assert not [action.dest for action in parser._actions if "Unvalidated" in str(getattr(action, "_typehint", ""))]


# Overrides


@pytest.mark.parametrize("form", [["--train.epochs", "2"], ["--train.epochs=2"], ["--train", "{epochs: 2}"]])
def test_a_key_is_replaced(form: list[str]) -> None:
    recipe, own = parse("demo", form), parse("demo")
    assert recipe.train.epochs == 2
    assert {**recipe.to_dict(), "train": None} == {**own.to_dict(), "train": None}
    assert recipe.train.batch == own.train.batch


def test_keys_of_every_kind_are_replaced() -> None:
    words = [
        "--optimizer.lr",
        "1e-3",
        "--train.clip=null",
        "--train.compile",
        "true",
        "--train.validate_at",
        "[0.5, 1]",
    ]
    words += ["--schedule.kl_weight.kind=linear", "--evaluate.sizes.learned", "3", "--data.folder", "/some where/12"]
    words += ["--method.rules", '{"features.0": {"nest": false}}', "--network.width=0.5", "--train.seed", "1"]
    recipe = parse("demo", words)
    assert (recipe.optimizer.lr, recipe.train.clip, recipe.train.compile) == (1e-3, None, True)
    assert (recipe.train.validate_at, recipe.train.seed, recipe.data.folder) == ((0.5, 1.0), 1, "/some where/12")
    kept = parse("demo").schedule.kl_weight.start
    assert (recipe.schedule.kl_weight.kind, recipe.schedule.kl_weight.start) == ("linear", kept)
    assert (recipe.evaluate.sizes.learned, recipe.network.config["width"]) == (3, 0.5)
    assert recipe.method.rules == {"features.0": {"nest": False}}


def test_another_method_or_network_has_its_own_options() -> None:
    recipe = parse("demo", ["--method.name=plain", "--method.label_smoothing", "0.1", "--network.name", "vgg11"])
    assert (recipe.method_name, recipe.method.label_smoothing) == ("plain", 0.1)
    assert recipe.network.name == "vgg11"
    assert "image_size" in recipe.network.config
    same = parse("demo", ["--method.name", "bn3", "--method.base", "2"])
    assert (same.method.num_groups, same.method.base) == (parse("demo").method.num_groups, 2)


# What the shipped ones say

IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "tiny-imagenet": 100_000}
CODED = [name for name in names() if shipped(name).method.task == "autoencoding"]  # they have no classes
MASKED = [name for name in names() if shipped(name).method.task == "segmentation"]  # neither have they
PAPER = [name for name in names() if name.startswith("paper/") and name not in (*CODED, *MASKED)]
CHARGED = [name for name in PAPER if name.removesuffix("-decay").endswith(("bn3", "ibnn"))]


def test_there_is_a_recipe_for_every_set_and_network_and_for_every_method() -> None:
    found = set(names())
    for data in IMAGES:
        for network in ("vgg11", "mobilenet", "resnext"):
            assert f"{data}/{network}-bn3" in found
            assert {f"paper/{data}-{network}-{method}" for method in ("bn3", "fn3", "ibnn")} <= found
    for method, kind in METHODS.items():
        if kind().task == "classification":
            assert {f"fashion/{method}", f"cifar10/vgg11-{method}"} <= found


def test_there_is_a_recipe_for_every_set_and_method_of_codes() -> None:
    found = set(names())
    for method in ("vnd_ae", "vae", "beta_vae", "joint_vae", "swae"):
        assert {f"paper/{data}-{method}" for data in ("celeba", "chairs", "chest-xray", "cifar10", "cifar100")} <= found
    assert {"fashion/vnd_ae", "paper/mnist-vnd_ae"} <= found  # the toy
    assert len(CODED) >= 27


@pytest.mark.parametrize("data", ["celeba", "chest-xray", "cifar10"])
def test_benchmarks_of_codes_are_trained_alike(data: str) -> None:
    own = shipped(f"bench/{data}-vnd_ae")
    for method in ("vae", "beta_vae", "joint_vae", "swae"):
        other = shipped(f"bench/{data}-{method}")
        assert (other.data, other.optimizer, other.schedule) == (own.data, own.optimizer, own.schedule)
        assert other.method.likelihood_std == own.method.likelihood_std
        how = {key: getattr(own.train, key) for key in ("compile", "channels_last")}  # the same numbers come of both
        assert replace(other.train, **how) == own.train
        assert other.network.config == own.network.config | {"length_bias": False}  # one length needs none


def test_codes_of_the_paper_and_of_benchmarks_say_how_their_lengths_are_trained() -> None:
    """They are not the method's defaults, which may change."""
    found = [name for name in CODED if name.endswith("vnd_ae") and not name.startswith("fashion/")]
    assert len(found) >= 9
    for name in found:
        recipe = shipped(name)
        assert recipe.method.all_lengths_share == 0.0
        assert recipe.method.decodings == {"bench/celeba-vnd_ae": 2, "bench/cifar10-vnd_ae": 8}.get(name, 1)
        assert recipe.network.config["length_bias"] is name.startswith("bench/")
    assert shipped("fashion/vnd_ae").method == METHODS["vnd_ae"](likelihood_std=0.5)


def test_there_are_recipes_of_masks_for_every_method_trained_alike() -> None:
    methods = [method for method, kind in METHODS.items() if kind().task == "segmentation"]
    families = ("paper/lidc-", "bench/lidc-", "synthetic_graders/")
    assert sorted(MASKED) == sorted(f"{family}{method}" for family in families for method in methods)
    for family in families:
        own = shipped(f"{family}vnd_punet")
        for method in methods:
            other = shipped(f"{family}{method}")
            assert (other.data, other.optimizer.lr, other.train) == (own.data, own.optimizer.lr, own.train)
            assert other.network.config["channels"] == own.network.config["channels"]


def check_what_it_says(recipe: Recipe) -> None:
    """It is described in one line, and it survives writing."""
    assert recipe.about
    assert "\n" not in recipe.about
    assert len(recipe.about) <= 55  # `vnd recipes` has a line for it
    written = yaml.safe_load(recipe.to_yaml())
    assert written == recipe.to_dict()
    assert parse(written) == recipe


def check_what_it_fits(name: str, recipe: Recipe) -> None:
    """Its network fits the images, and its name the content."""
    data, config = DATASETS[recipe.data.name], recipe.network.config
    strange = name in CODED or name in MASKED  # to a stranger they say no class
    logits = {"probabilistic_unet": None, "unet": 1}.get(recipe.network.name, data.num_classes)
    assert config.get("num_classes") == (None if name in CODED else logits)
    assert config["in_channels"] == data.channels
    assert config.get("image_size", data.size) == (recipe.data.size or data.size)
    folder, _, rest = name.rpartition("/")
    if name != "demo":
        assert (rest if folder in ("paper", "bench") else folder).startswith(recipe.data.name)
        assert recipe.method_name in rest
    assert not (recipe.data.augment.flip and recipe.data.name == "svhn")  # digits have no mirror images
    assert (getattr(recipe.evaluate, "ood", None) in (None, recipe.data.name)) == strange


def check_what_was_published(name: str, recipe: Recipe) -> None:
    """Trained without a warmup, tested at the published width; a variant with weight decay differs in that alone."""
    assert recipe.schedule.lr.warmup == (0.03 if name.endswith("-decay") else 0)
    if name.endswith("-decay"):
        found = differing_keys(recipe.to_dict(), shipped(name.removesuffix("-decay")).to_dict())
        assert found == ["optimizer.weight_decay", "schedule.lr.warmup"]
    if name in CHARGED:  # the weight of the KL beside the summed likelihood
        assert recipe.schedule.kl_weight.start == (1e-6 if recipe.data.name == "tiny-imagenet" else 1e-5)
    if name in PAPER:
        wide = recipe.network.config.get("width", 1.0) == 1.5
        tested = recipe.evaluate.sizes.leading
        if name.startswith("paper/tiny-imagenet-vgg11"):  # the one that is tested as wide as it is trained
            assert (wide, tested) == (True, 1.0)
        else:
            assert tested == pytest.approx(2 / 3 if wide else 1.0, abs=1e-4)
        assert recipe.evaluate.repeats == 3
        assert recipe.data.augment.rotation == (20 if recipe.data.name == "tiny-imagenet" else 0)


@pytest.mark.parametrize("name", names())
def test_a_shipped_recipe_says_what_it_is_fits_its_data_and_is_as_published(name: str) -> None:
    recipe = shipped(name)
    check_what_it_says(recipe)
    check_what_it_fits(name, recipe)
    if name.startswith("paper/"):
        check_what_was_published(name, recipe)


def test_the_released_code_weighs_the_kl_beside_the_mean_likelihood_as_much_as_the_paper() -> None:
    """Its KL is a mean over inputs and has no C; beside its mean loss it comes to .0097 nats, the paper's to .0036."""
    prices = []
    for name in ("paper/cifar10-vgg11-bn3", "paper/cifar10-vgg11-bn3-released"):
        recipe = shipped(name)
        net = recipe.method.build(recipe.network.build(), torch.zeros(2, 3, 32, 32))
        with torch.no_grad():
            for unit in state_of(net).units.values():
                unit.keep_logits.fill_(30.0)  # the whole network is kept
            phi = float(length_kl(net))
            weight = recipe.schedule.kl_weight.start / (IMAGES["cifar10"] - recipe.data.validation)
            prices.append(weight * (float(vnd.kl(net, recipe.method.kl_keep_prob)) - phi))
    assert prices == pytest.approx([0.0036, 0.0097], rel=0.01)


@pytest.mark.parametrize("family", ["cifar10/vgg11-", "fashion/"])
def test_methods_are_compared_trained_alike(family: str) -> None:
    own = shipped(f"{family}bn3")
    for name in names():
        if name.startswith(family) and name not in CODED:
            other = shipped(name)
            assert (other.data, other.network, other.schedule.lr) == (own.data, own.network, own.schedule.lr), name
            assert (other.train.epochs, other.train.batch) == (own.train.epochs, own.train.batch), name
            assert other.evaluate.ood == own.evaluate.ood


# Training


def kind_of(value: Any) -> Any:
    """Settings without their numbers: keys, words and switches decide which code runs."""
    if isinstance(value, dict):
        return {key: kind_of(part) for key, part in value.items()}
    if isinstance(value, list):
        return [kind_of(part) for part in value]
    return value if isinstance(value, (str, bool)) else type(value).__name__


def first_of_each_kind() -> list[str]:
    """One recipe of each method, its options, network and optimizer; the loop below trains those of FashionMNIST."""
    found: dict[str, str] = {}
    for name in names():
        given = shipped(name).to_dict()
        kind = kind_of([given["method"], given["network"]["name"], given["optimizer"]["name"]])
        found.setdefault(json.dumps(kind, sort_keys=True), name)
    return [name for name in found.values() if not name.startswith("fashion/")]


def narrow(name: str) -> list[str]:
    """What makes the network of a recipe a small one."""
    if shipped(name).network.name == "resnext":
        return ["--network.depth=11", "--network.base_width=8", "--network.widen_factor=1"]
    if shipped(name).network.name == "dense_autoencoder":
        return ["--network.hidden=[16]"]
    if name in MASKED:
        return ["--network.channels=[8, 16]", "--data.size=16"]
    fixed_budgets = ["--method.fixed_budgets=[20000]"] if getattr(shipped(name).method, "fixed_budgets", ()) else []
    size = ["--method.parameters=20000"] if getattr(shipped(name).method, "parameters", None) else []
    return ["--network.width=0.125", *fixed_budgets, *size]


def with_teacher(name: str, folder: Path) -> list[str]:
    """What gives a student a teacher: a narrow network of its recipe, of no training."""
    if shipped(name).method_name != "sn3":
        return []
    theirs = f"{name.removesuffix('sn3')}bn3" + ("" if name.startswith(("paper/", "bench/")) else "-sandwich")
    assert f"runs/{theirs.replace('/', '-')}-0" == shipped(name).method.teacher  # where `vnd train` puts it
    recipe = parse(theirs, narrow(theirs))
    data = DATASETS[recipe.data.name]
    images = np.zeros((2, data.channels, data.size, data.size), np.uint8)
    save(build_model(recipe, Images(images, np.arange(2), tuple(map(str, range(data.num_classes))))), folder / "last")
    return [f"--method.teacher={folder}"]


@pytest.mark.parametrize("name", first_of_each_kind())
def test_a_shipped_recipe_of_each_kind_takes_a_step(name: str, tmp_path: Path) -> None:
    recipe = parse(name, [*narrow(name), *with_teacher(name, tmp_path)])
    data = DATASETS[recipe.data.name]
    size = recipe.data.size or data.size
    pixels = np.zeros((4, data.channels, size, size), np.uint8)
    model = build_model(recipe, Images(pixels, np.arange(4), tuple(map(str, range(data.num_classes)))))
    optimizer = recipe.optimizer.build(model)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    step = Step(0, torch.tensor(recipe.schedule.kl_weight.start), recipe.schedule.temperature.start, 100)
    masks = (torch.rand(4, size, size) < 0.5).float()
    batch = torch.rand(4, *pixels.shape[1:]), masks if name in MASKED else torch.arange(4)
    recipe.method.prepare(model.train(), batch, step, lambda value: value)
    terms = recipe.method.loss(model, batch, step)
    terms.total.backward()
    optimizer.step()
    most = 20 * (size**2 if name in MASKED else 1)  # nats, of all pixels of a mask
    assert 0 < float(terms.parts["mse" if name in CODED else "nll"]) < most
    assert all(value.isfinite().all() for value in model.parameters())
    moved = [key for key, value in model.named_parameters() if not torch.equal(value, before[key])]
    assert len(moved) > len(before) / 2


def one_step(name: str, folder: Path) -> Recipe:
    """A shipped recipe as it is, but for few images, a narrow network, few sizes, one step."""
    words = with_teacher(name, folder)
    words += ["--train.epochs=1", "--train.device=cpu", "--train.log_every=1", "--train.batch=12", *narrow(name)]
    words += ["--data.limit=12", "--data.validation=40", "--train.validate_at=[1.0]"]
    words += ["--evaluate.sizes.fractions=[0.5, 1.0]", "--evaluate.sizes.learned=1", "--evaluate.sizes.parameters=[]"]
    return parse(name, words)


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("fashion/")])
def test_the_loop_takes_a_step_with_each_method(name: str, tmp_path: Path) -> None:
    recipe = one_step(name, tmp_path / "teacher")
    assert fit(recipe, tmp_path / "run", quiet=True)
    trained = [row for row in Log(tmp_path / "run" / "metrics.jsonl").read() if "loss" in row]
    assert [row["step"] for row in trained] == [1]
    assert math.isfinite(trained[0]["loss"])
    assert 0 < trained[0]["mse" if name in CODED else "nll"] < 20
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]
    found = checkpoint.read(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.step == 1
    assert parse(tmp_path / "run" / "recipe.yaml") == recipe
    assert "like" not in yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8"))
