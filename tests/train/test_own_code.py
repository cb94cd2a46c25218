"""Networks and data of the user's own, named by recipes; and runs that name code, which is not run unasked."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import vnd
from refusals import Refusals, fails, refused, table
from train.small import settings
from vnd import _code
from vnd.cli import main
from vnd.data.arrays import from_function
from vnd.evaluation import open_run
from vnd.train.config import parse, parse_run
from vnd.train.recipe import known_arguments, network_class

NETS = """
    import torch
    from torch import nn
    from os import system
    from vnd.models import DenseAutoEncoder, UNet

    class SmallNet(nn.Module):
        def __init__(self, channels: int, num_classes, in_channels=3, act: type[nn.Module] = nn.ReLU, wide=None):
            super().__init__()
            if channels < 1:
                raise ValueError(f"channels must be at least 1; got {channels}")
            if wide:
                raise KeyError("wide")
            self.body = nn.Sequential(
                nn.Conv2d(in_channels, channels, 3, padding=1), nn.BatchNorm2d(channels), act(),
                nn.Conv2d(channels, 8, 3, stride=4), act(), nn.Flatten(),
            )
            self.head = nn.Linear(32, num_classes)

        def forward(self, x):
            return self.head(self.body(x))

    class Deep(SmallNet):
        def __init__(self, depth: int = 2, **kwargs):
            super().__init__(**kwargs)

    class Open(nn.Module):
        def __init__(self, **kwargs):
            super().__init__()
            self.inner = SmallNet(**kwargs)

        def forward(self, x):
            return self.inner(x)

    class Pair(SmallNet):
        def forward(self, x):
            return x, x

    class Coder(DenseAutoEncoder):
        pass

    class Marker(UNet):
        pass
"""
DATA = """
    import numpy as np

    def blobs(count: int = 96, size=8, shift=0, masks=False, form="pair"):
        def split(count, seed):
            labels = np.arange(count) % 3
            images = np.random.default_rng(seed + shift).integers(0, 120, (count, size, size), dtype=np.uint8)
            marks = np.zeros((count, size, size), bool)
            for image, mark, label in zip(images, marks, labels):
                row, column = divmod(int(label), 2)
                mark[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = True
                image[mark] += 90
            return images, marks if masks else labels
        return split(count, 0), split(count // 3, 1)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with two modules; what is imported from it is forgotten."""
    for name, text in (("own_nets", NETS), ("own_data", DATA)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(_code.TRUST, "")
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def given(**sections: Any) -> dict[str, Any]:
    own = {"network": {"name": "own_nets:SmallNet", "channels": 4}, "data": {"name": "own_data:blobs", "folder": None}}
    return settings(Path("none"), **{**own, **sections})


def write(path: Path, **sections: Any) -> str:
    path.write_text(yaml.safe_dump(given(**sections)))
    return str(path)


def test_a_network_and_data_of_ones_own_train_go_on_are_evaluated_cut_and_distilled(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(here / "own.yaml", evaluate={"ood": "own_data:blobs", "ood_options": {"shift": 7}})
    main(["train", recipe, "--out", "run", "--data.options.count", "90", "--train.epochs", "3"])
    main(["train", "--resume", "run", "--new_epochs", "4"])
    main(["evaluate", "run"])
    row = json.loads(Path("run/results.json").read_text())["rows"][-1]
    assert row["accuracy"] > 0.6  # chance is a third
    assert row["auroc"] is not None
    kept = yaml.safe_load(Path("run/recipe.yaml").read_text())
    assert kept["network"] == {"name": "own_nets:SmallNet", "channels": 4}  # the rest is the data's
    assert kept["data"]["options"] == {"count": 90}
    capsys.readouterr()
    main(["extract", "run", "--fraction", "0.5"])
    assert "model=SmallNet(channels=4, in_channels=1, num_classes=3)" in " ".join(capsys.readouterr().out.split())
    plain = network_class("own_nets:SmallNet")(channels=4, num_classes=3, in_channels=1)
    assert vnd.load("run/extracted/fraction-0.5", model=plain)(torch.ones(1, 1, 8, 8)).shape == (1, 3)
    refused(lambda: vnd.load("run/last"), "it is not one of vnd.models; give its plain form as model=")
    main(["distill", "run", "--keep", "0.5", "--train.epochs", "1"])
    assert open_run(Path("run-sn3")).model.body[0].out_channels == 2


KINDS: dict[str, dict[str, Any]] = {
    "a code": {
        "method": {"name": "vae"},
        "network": {"name": "own_nets:Coder", "latent_dim": 4},
        "evaluate": {"num_generated": 0, "sizes": {"fractions": [1.0]}},
    },
    "masks": {
        "method": {"name": "bn3_unet", "num_groups": 4, "base": 1, "gradient": "survival"},
        "network": {"name": "own_nets:Marker", "channels": [4, 4]},
        "data": {"name": "own_data:blobs", "folder": None, "options": {"masks": True}, "augment": None},
        "evaluate": {"num_mask_samples": [1, 2], "sizes": {"fractions": [0.5, 1.0]}, "bn_images": 16},
    },
    "masks, dropout": {
        "method": {"name": "dropout_unet"},
        "network": {"name": "own_nets:Marker", "channels": [4, 4]},
        "data": {"name": "own_data:blobs", "folder": None, "options": {"masks": True}},
        "evaluate": {"num_mask_samples": [1, 2], "sizes": {"fractions": [1.0]}},
    },
    "one size": {"method": {"name": "plain"}},
    "one size, cut": {"method": {"name": "ibnn", "fraction": 0.5, "num_groups": 4}},
    "masked": {
        "method": {"name": "bn3", "num_groups": 4, "placement": "before_norm"},
        "evaluate": {"sizes": {"fractions": [0.5, 1.0], "levels": [0.5]}, "inference": ["mc", "mean", "mc_mask"]},
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_each_task_and_kind_of_run_is_opened_again_as_it_was(
    here: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = given(**KINDS[name])
    if name == "a code" or "masks" in name:
        own["evaluate"] = KINDS[name]["evaluate"]
    Path("own.yaml").write_text(yaml.safe_dump(own))
    main(["train", "own.yaml", "--out", "run", "--train.epochs", "1"])
    main(["evaluate", "run"])
    capsys.readouterr()
    results = json.loads(Path("run/results.json").read_text())
    opened = open_run(Path("run"))
    assert type(opened.model).__name__ in ("Coder", "Marker", "UNet", "SmallNet")
    if name == "masked":  # at every width, and by every way of inference, it runs whole
        assert len({row["parameters"] for row in results["tidy"]}) == 1
        assert {row["inference"] for row in results["tidy"]} == {"mc", "mean", "mc_mask"}
        assert results["rows"][0]["nll"] != results["rows"][1]["nll"]
        assert "masked before its norms and has no smaller form" in fails(capsys, "extract", "run", "--fraction", "0.5")


def test_sizes_are_the_datas_for_our_networks_too(here: Path) -> None:
    recipe = parse(given(network={"name": "convnet", "width": 0.15, "hidden": 16}))
    assert recipe.network.config == {"width": 0.15, "hidden": 16}
    assert parse(recipe.to_dict()) == recipe
    network = recipe.network.build((1, 8, 8), 3)
    assert network.config | {"in_channels": 1, "image_size": 8, "num_classes": 3} == network.config
    known = parse(given(network={"name": "own_nets:SmallNet", "channels": 2}, data={"name": "cifar100"}))
    assert known.network.config == {"channels": 2, "num_classes": 100, "in_channels": 3}


def test_arguments_that_a_class_passes_on_are_known(here: Path) -> None:
    known, needed = known_arguments(network_class("own_nets:Deep"))
    assert [*known] == ["depth", "channels", "num_classes", "in_channels", "act", "wide"]
    assert needed == []
    words = ["--network.num_classes", "5", "--network.in_channels=1"]  # nobody says that it takes these
    recipe = parse(given(network={"name": "own_nets:Open", "channels": 3}), words)
    assert parse(recipe.to_dict()) == recipe
    assert recipe.network.build((1, 8, 8), 3).inner.head.out_features == 5


# What is not run


def hostile(here: Path, section: str, **keys: Any) -> Path:
    """A run that somebody else made, whose recipe names code."""
    run = here / "theirs"
    run.mkdir(exist_ok=True)
    own = given()
    own[section] = {**own[section], **keys}
    (run / "recipe.yaml").write_text(yaml.safe_dump(own))
    return run


@pytest.mark.parametrize(
    ("section", "keys", "words"),
    [
        ("network", {"name": "evil_nets:Net"}, "network.name names evil_nets:Net, code that lies in the run itself"),
        ("data", {"name": "os:system", "options": {"command": "touch touched"}}, "of os, which is no code in the"),
        ("data", {"name": "own_nets:system", "options": {"command": "touch touched"}}, "own_nets:system, of posix"),
        ("data", {"name": "numpy:load", "options": {"file": "x"}}, "if you trust this run, set VND_TRUST=numpy"),
        ("data", {"name": "vnd._files:write_text", "options": {"path": "touched", "text": ""}}, "of vnd"),
        ("evaluate", {"ood": "pydoc:pipepager", "ood_options": {"text": "", "cmd": "touch touched"}}, "evaluate.ood"),
    ],
)
def test_a_run_cannot_name_code_that_is_not_the_users(
    here: Path, monkeypatch: pytest.MonkeyPatch, section: str, keys: dict[str, Any], words: str
) -> None:
    run = hostile(here, section, **keys)
    (run / "evil_nets.py").write_text("open('touched', 'w')")
    monkeypatch.syspath_prepend(run)  # as if one stood in its folder
    refused(lambda: parse_run(run), (str(run), words))
    refused(lambda: open_run(run), words)
    assert not Path("touched").exists()
    assert "evil_nets" not in sys.modules


def test_a_package_that_is_trusted_may_be_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = hostile(here, "network", name="torch.nn:Identity")
    refused(lambda: parse_run(run), "VND_TRUST=torch")
    monkeypatch.setenv(_code.TRUST, "numpy,torch")
    assert parse_run(run).network.name == "torch.nn:Identity"
    monkeypatch.setenv(_code.TRUST, "")
    assert parse(run / "recipe.yaml") == parse_run(run)  # the first is the user's own word, and stays so


@pytest.mark.parametrize("section", ["network", "method", "data"])
def test_a_value_is_never_taken_for_a_class_to_import(here: Path, section: str) -> None:
    Path("evil.py").write_text("open('touched', 'w')")
    named = [{"class_path": "evil.Act", "init_args": {}}]
    sections = {
        "network": {"name": "own_nets:SmallNet", "channels": 2, "act": named},
        "method": {"name": "bn3", "rules": {"body.0": {"prior": named}}},
        "data": {"name": "own_data:blobs", "folder": None, "options": {"count": named}},
    }
    refused(lambda: parse(given(**{section: sections[section]})), "class_path names code to import")
    refused(lambda: parse(given(), [f"--{section}", json.dumps(sections[section])]), "class_path names code to import")
    assert not Path("touched").exists()


def test_a_saved_network_names_no_code(here: Path) -> None:
    main(["train", write(here / "own.yaml"), "--out", "run", "--train.epochs", "1"])
    assert "own_nets" not in Path("run/last/network.json").read_text()
    del sys.modules["own_nets"]
    refused(lambda: vnd.load("run/last"), "give its plain form as model=")
    assert "own_nets" not in sys.modules


def test_other_images_than_a_run_was_trained_on_are_refused(here: Path) -> None:
    main(["train", write(here / "own.yaml"), "--out", "run", "--train.epochs", "1"])
    Path("own_data.py").write_text(Path("own_data.py").read_text().replace("seed + shift", "seed + shift + 1"))
    del sys.modules["own_data"]
    for step in (lambda: open_run(Path("run")).splits, lambda: again("--new_epochs", "2")):
        refused(step, "run was trained on other images than data.name gives now: their SHA-256 was")


def again(*words: str) -> None:
    from vnd.cli.train import train

    train(resume=Path("run"), new_epochs=int(words[1]))


# Refusals


def network(name: str, **config: Any) -> Callable[[], object]:
    return lambda: parse(given(network={"name": name, **config})).network.build((1, 8, 8), 3)


def trained(**sections: Any) -> Callable[[], object]:
    def call() -> None:
        from vnd.train.loop import fit

        fit(parse(given(**sections)), Path("run"), quiet=True)

    return call


CASES: Refusals = {
    "no module": (network("own_net:SmallNet"), ("no module 'own_net'", "current folder", "did you mean 'own_nets'?")),
    "no class": (network("own_nets:SmalNet"), ("own_nets.py) has no 'SmalNet'", "did you mean 'SmallNet'?")),
    "no network": (network("own_nets:torch"), "must be a class of torch.nn.Module; own_nets:torch is a module"),
    "no name": (network("own_nets:"), "network.name must be package.module:name"),
    "a path": (network("own/nets.py:SmallNet"), "network.name must be package.module:name"),
    "an unknown argument": (network("own_nets:SmallNet", chanels=3), "did you mean 'network.channels'?"),
    "one that a class passes on": (network("own_nets:Deep", chanels=3), "did you mean 'network.channels'?"),
    "one that nobody names": (
        network("own_nets:Open", chanels=3),
        ("network: Open(chanels=3) cannot be made: TypeError", "unexpected keyword argument 'chanels'"),
    ),
    "no argument": (network("own_nets:SmallNet"), "network.channels must be given: own_nets:SmallNet has no default"),
    "another kind": (network("own_nets:SmallNet", channels="x"), "network.channels must be a whole number; got x"),
    "a bad argument": (network("own_nets:SmallNet", channels=0), "network.channels must be at least 1; got 0"),
    "an error": (network("own_nets:SmallNet", channels=1, wide=1), "cannot be made: KeyError: 'wide'"),
    "two answers": (
        trained(network={"name": "own_nets:Pair", "channels": 2}),
        "must answer two images with a logit for each of the 3 classes of own_data:blobs, (2, 3); got a tuple",
    ),
    "too many classes": (
        trained(network={"name": "own_nets:Open", "channels": 2, "num_classes": 5, "in_channels": 1}),
        "network.num_classes must be that of own_data:blobs, 3; got 5",
    ),
    "cannot read": (
        trained(network={"name": "own_nets:SmallNet", "channels": 2, "in_channels": 4}),
        "network own_nets:SmallNet cannot read the images of own_data:blobs, 1×8×8",
    ),
    "no function": (trained(data={"name": "own_data:blob"}), ("data.name", "did you mean 'blobs'?")),
    "a class of data": (trained(data={"name": "own_nets:SmallNet"}), "data.name must be a function that gives images"),
    "an unknown option": (
        trained(data={"name": "own_data:blobs", "folder": None, "options": {"cont": 3}}),
        "data.options: own_data:blobs has no 'cont', did you mean 'count'? It takes count, size, shift",
    ),
    "a folder": (trained(data={"name": "own_data:blobs", "folder": "x"}), "data.folder is for sets that lie in one"),
    "options of a set": (
        trained(data={"name": "fashion", "folder": None, "options": {"a": 3}}),
        "data.options are for a function of your own; fashion takes none",
    ),
    "a set that is not there": (trained(data={"name": "fashin"}), "did you mean 'fashion'?"),
    "a set out of domain": (trained(evaluate={"ood": "own_data:blob"}), ("evaluate.ood", "did you mean 'blobs'?")),
    "an option out of domain": (
        trained(evaluate={"ood": "own_data:blobs", "ood_options": {"cont": 3}}),
        "evaluate.ood_options: own_data:blobs has no 'cont'",
    ),
}


@table(CASES)
def test_what_cannot_be_is_refused_in_one_line(
    call: Callable[[], object], words: str | tuple[str, ...], here: Path
) -> None:
    refused(call, words)
    assert not Path("run/recipe.yaml").exists()


def test_a_module_that_fails_is_named(here: Path) -> None:
    Path("broken.py").write_text("import no_such_package")
    Path("worse.py").write_text("1 / 0")
    refused(network("broken:Net"), "network.name: module broken needs no_such_package, which is not installed")
    refused(network("worse:Net"), "network.name: module worse cannot be imported: ZeroDivisionError")


def test_images_are_the_same_by_every_way(here: Path, tmp_path: Path) -> None:
    """By a function, a file of arrays with two ways to name them: the same split, and so the same run."""
    (x, y), (tx, ty) = _code.find_code("own_data:blobs", "data.name")()
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    np.savez(tmp_path / "b.npz", train_images=x, train_labels=y[:, None], test_images=tx, test_labels=ty[:, None])
    by_function = vnd.data.load("own_data:blobs", "train")
    for name in ("a", "b"):
        images = vnd.data.load("npz", "train", tmp_path / f"{name}.npz")
        assert np.array_equal(images.pixels, by_function.pixels)
        assert np.array_equal(images.labels, by_function.labels)
        assert images.classes == by_function.classes == ("0", "1", "2")
    tensors = torch.tensor(x / 255, requires_grad=True), torch.tensor(y)
    assert np.array_equal(from_function(lambda: (tensors, tensors), {}, "train").pixels, by_function.pixels)
    halves = (torch.tensor(x) > 99).bfloat16(), torch.tensor(y)  # a dtype that numpy has not
    assert np.array_equal(from_function(lambda: (halves, halves), {}, "train").pixels, 255 * (by_function.pixels > 99))
