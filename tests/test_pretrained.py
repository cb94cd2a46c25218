"""Networks that come with the package: they load offline, compute what their run's network did, and refuse misuse."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import warnings
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vnd
from train.small import recipe, write_blobs
from vnd import pretrained
from vnd.cli import main
from vnd.data.batches import Normalise, in_order
from vnd.evaluation import open_run
from vnd.methods import Size
from vnd.nn import BayesLayer, Shape
from vnd.nn.state import state_of
from vnd.pretrained import FromPixels, load_pretrained
from vnd.report import html
from vnd.tasks import TrainedRun
from vnd.train.loop import fit

SCRIPT = Path(__file__).parents[1] / "scripts" / "ship.py"
SHIPPED = pretrained.names()
BUDGET = 1200  # of 1906 parameters
SAID: dict[str, Any] = {"classes": ["a", "b"], "mean": [0.5], "std": [0.25], "image": [1, 8, 8], "card": {}}


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("ship", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SHIP = load_script()
cut, outside, within = SHIP.cut, SHIP.outside, SHIP.within


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nested run on blobs of light, and a set out of its domain."""
    folder = tmp_path_factory.mktemp("pretrained")
    data = write_blobs(folder / "blobs.npz", train=160, test=64)
    noise = np.random.default_rng(5).integers(0, 120, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(folder / "noise.npz", x_train=noise, y_train=labels, x_test=noise, y_test=labels)
    outside = {"ood": "npz", "ood_folder": str(folder / "noise.npz")}
    torch.manual_seed(0)
    assert fit(recipe(data, train={"epochs": 6}, evaluate=outside), folder / "run", quiet=True)
    return folder / "run"


@pytest.fixture(scope="module")
def root(run: Path) -> Path:
    """A folder of shipped networks with one in it, "made"."""
    SHIP.ship(run, "made", BUDGET, root=run.parent / "root")
    return run.parent / "root"


@pytest.fixture
def made(root: Path, monkeypatch: pytest.MonkeyPatch) -> FromPixels:
    monkeypatch.setattr(pretrained, "ROOT", root)
    return load_pretrained("made")


@pytest.fixture
def opened(run: Path) -> TrainedRun:
    return open_run(run)


def widths(net: FromPixels) -> list[Shape]:
    return [Shape(row["shape"]) for row in net.card["results"]]


def images(net: FromPixels, count: int = 16) -> torch.Tensor:
    """Bytes as floats between 0 and 1."""
    (example, *_), _ = state_of(net).example
    return torch.randint(256, (count, *example.shape[1:])).float() / 255


# What is shipped


@pytest.mark.parametrize("name", [*SHIPPED, "made"])
def test_a_network_loads_offline_and_predicts_at_the_widths_of_its_card(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> NoReturn:
        raise AssertionError("it opened a connection")

    monkeypatch.setattr(socket, "socket", refuse)
    if name == "made":
        monkeypatch.setattr(pretrained, "ROOT", root)
    state = torch.get_rng_state()
    net = load_pretrained(name)
    assert torch.equal(torch.get_rng_state(), state)
    assert not net.training
    assert sum(path.stat().st_size for path in (pretrained.ROOT / name).iterdir()) <= SHIP.MOST
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in (pretrained.ROOT / name).iterdir())
    assert net.card["name"] == name
    assert [row["width"] for row in net.card["results"]] in ([1.0, 0.75, 0.5, 0.25], [1.0, None, None, None])
    x = images(net)
    bare = net(x)  # by the statistics of full width, before anyone has set a width
    for row in net.card["results"]:
        width = Shape(row["shape"])
        assert row["width"] is None or vnd.shape(net, fraction=row["width"]) == width
        assert vnd.shape(net, parameters=row["parameters"]) == width or row["width"] is not None
        assert vnd.profile(net, width, count_macs=False).parameters == row["parameters"]
        assert 0 <= row["test"]["accuracy"] <= 1
        for samples in (0, 3):  # a width without statistics would warn, which is an error
            said = vnd.predict(net, x, width=width, samples=samples, seed=0)
            assert said.probs.shape == (len(x), len(net.classes))
            torch.testing.assert_close(said.probs.sum(1), torch.ones(len(x)))
    assert vnd.predict(net, x, samples=4).mutual_information.max() > 0  # type: ignore[union-attr]
    torch.testing.assert_close(bare.softmax(1), vnd.predict(net, x, samples=0).probs)


def test_the_network_that_the_documents_name_is_there() -> None:
    assert "cifar10-bn3-small" in SHIPPED
    every = [path for path in pretrained.ROOT.glob("*/*") if path.parent.name in SHIPPED]
    assert sum(path.stat().st_size for path in every) <= 6_000_000
    assert vnd.load_pretrained is load_pretrained


# A network made of a run


def test_learned_shapes_within_it_are_measured_instead_of_fractions(run: Path, tmp_path: Path) -> None:
    folder = SHIP.ship(run, "shapes", BUDGET, root=tmp_path, sizes=(900, 600), half=True)
    net, whole = pretrained.read(folder), pretrained.read(SHIP.ship(run, "whole", BUDGET, root=tmp_path))
    assert {value.dtype for value in net.parameters()} == {torch.float32}
    for name, value in whole.state_dict().items():
        short = name.endswith(("weight", "log_alpha")) and value.ndim > 1
        kept = value.bfloat16().float() if short else value
        assert name.startswith("_vnd") or torch.equal(net.state_dict()[name], kept), name
    assert [row["width"] for row in net.card["results"]] == [1.0, None, None]
    for row, size in zip(net.card["results"], (BUDGET, 900, 600), strict=True):
        assert row["parameters"] <= size
        assert Shape(row["shape"]) == vnd.shape(net, parameters=size)
        vnd.predict(net, images(net), width=Shape(row["shape"]), samples=2)  # warns where statistics are missing
    sizes = [
        sum(path.stat().st_size for path in (tmp_path / name).glob("*.safetensors")) for name in ("shapes", "whole")
    ]
    assert sizes[0] < 0.8 * sizes[1]


@pytest.mark.parametrize("bayesian", [False, True])
def test_every_width_is_bit_for_bit_the_run_s_network(made: FromPixels, opened: TrainedRun, bayesian: bool) -> None:
    test, normalise = opened.test(), opened.splits.normalise("cpu")
    fed = torch.cat(list(in_order(test, normalise, "cpu"))).clone(memory_format=torch.contiguous_format)
    pixels = torch.from_numpy(test.pixels.copy()).float() / 255
    full = Shape({unit: module.num_groups for unit, module in state_of(opened.model).units.items()})
    assert outside(widths(made)[0]) != full  # something was cut away
    keep: Any = "posterior" if bayesian else "mean"
    for width in widths(made):
        theirs = opened.extract(Size("learned", "", outside(width)), keep)
        theirs = theirs.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # or noise lies otherwise
        ours = vnd.extract(made, width, keep)
        assert isinstance(ours, FromPixels)
        state, expected = ours.network.state_dict(), theirs.state_dict()
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(state[name], value), name
        one, other = (vnd.predict(net, x, seed=3) for net, x in ((ours, pixels), (theirs, fed)))
        assert torch.equal(one.probs, other.probs)
        assert one.samples == (6 if bayesian else 1)


def test_the_masked_network_agrees_with_the_extracted_one(made: FromPixels) -> None:
    x = images(made)
    for width in widths(made):
        masked = vnd.predict(made, x, width=width, samples=0)
        torch.testing.assert_close(masked.probs, vnd.predict(vnd.extract(made, width), x, samples=0).probs)


def test_the_learned_order_is_that_of_the_run(made: FromPixels, opened: TrainedRun) -> None:
    whole = widths(made)[0]
    for budget in (300, 600, 900, BUDGET):
        assert vnd.shape(made, parameters=budget) == within(vnd.shape(opened.model, parameters=budget))
    units = state_of(opened.model).units
    for name, unit in state_of(made).units.items():
        before = units[name.removeprefix("network.")]
        assert torch.equal(unit.survival(), before.survival()[: whole[name]])
        assert unit.group_sizes == before.group_sizes[: whole[name]]
        assert torch.equal(unit.prior.mean, before.prior.mean[: unit.num_nested])
        assert torch.equal(state_of(made).arguments["rules"][name].prior.mean, unit.prior.mean)


def test_the_card_has_the_numbers_of_the_evaluation(
    made: FromPixels, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "write_run", lambda results, folder: folder / "report.html")
    for split in ("test", "validation"):
        main(["evaluate", str(run), "--parameters", f"[{BUDGET}]", "--split", split, "--out", str(tmp_path)])
        (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
        mine = made.card["results"][0]
        assert within(Shape(row["shape"])) == Shape(mine["shape"])
        assert (row["parameters"], row["macs"]) == (mine["parameters"], mine["macs"])
        assert {key: row[key] for key in mine[split]} == mine[split]
        assert mine[split].keys() >= {"accuracy", "nll", "ece", "aurc"}
        assert ("auroc" in mine[split]) == (split == "test")


def test_classes_and_card_come_along_and_cannot_be_spoilt(made: FromPixels, opened: TrainedRun) -> None:
    assert made.classes == opened.splits.train.classes == ("0", "1", "2")
    card = made.card
    assert card["data"] == {"name": "npz", "train": 144, "validation": 16, "test": 64}
    assert card["ood"] == {"name": "npz", "test": 40}
    settings = json.loads(json.dumps(opened.recipe.to_dict()))
    settings["data"]["folder"] = settings["evaluate"]["ood_folder"] = None
    assert card["recipe"] == settings
    assert str(opened.folder.parent) not in json.dumps(made.description)  # no path of whoever has shipped it
    assert (card["samples"], card["checkpoint"]) == (2, "best")
    card["results"].clear()
    assert made.card["results"]
    assert vnd.extract(made, 0.5).classes == made.classes  # type: ignore[comparison-overlap]


def test_statistics_can_be_collected_from_pixels(made: FromPixels, opened: TrainedRun) -> None:
    pixels = torch.randint(256, (32, 1, 8, 8), dtype=torch.uint8)
    half = vnd.shape(made, fraction=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vnd.recalibrate(made, [pixels / 255], [half])
    vnd.recalibrate(opened.model, [opened.splits.normalise("cpu")(pixels)], [outside(half)])
    ours, theirs = vnd.extract(made, half), vnd.extract(opened.model, outside(half))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.network.state_dict()[name], value)  # type: ignore[union-attr]


def test_a_saved_copy_is_loaded_with_the_plain_form(made: FromPixels, tmp_path: Path) -> None:
    x = images(made)
    small = vnd.extract(made, 0.5, keep="posterior")
    for place, net in (("nested", made), ("extracted", small)):
        vnd.save(net, tmp_path / place)
        with pytest.raises(ValueError, match="give its plain form as model="):
            vnd.load(tmp_path / place)
        again = vnd.load(tmp_path / place, model=made.plain())
        assert isinstance(again, FromPixels)
        assert again.classes == made.classes
        assert torch.equal(vnd.predict(again, x, seed=1).probs, vnd.predict(net, x, seed=1).probs)


def test_thresholds_are_fitted_and_training_goes_on(made: FromPixels, opened: TrainedRun) -> None:
    test = opened.test()
    x, y = torch.from_numpy(test.pixels.copy()) / 255, torch.as_tensor(test.labels)
    chosen = vnd.selective(made, x, y, risk=0.5, samples=2, seed=0)
    assert chosen.accept(vnd.predict(made, x, samples=2)).shape == (len(x),)
    made.train()
    (F.cross_entropy(made(x), y) + 1e-4 * vnd.kl(made)).backward()
    layers = [module for module in made.modules() if isinstance(module, BayesLayer)]
    assert all(layer.weight.grad is not None and layer.weight.grad.isfinite().all() for layer in layers)


# Pixels


def test_normalisation_is_that_of_training_to_the_bit() -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    bytes_ = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(1, 3, 16, 16)
    net = FromPixels(nn.Identity(), {"mean": mean, "std": std, "image": [3, 16, 16]})
    expected = Normalise(mean, std, "cpu")(bytes_)
    assert torch.equal(net(bytes_ / 255), expected)
    assert torch.equal(net(bytes_.double() / 255), expected)
    hand = (bytes_.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(net(bytes_ / 255), hand.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: (x * 255).byte(), r"must be floats between 0 and 1; got torch.uint8: divide bytes by 255"),
        (lambda x: x * 255, r"must lie between 0 and 1, not normalised; got 0 … 255"),
        (lambda x: (x - 0.5) / 0.25, r"must lie between 0 and 1, not normalised; got -2 … 2"),
        (lambda x: x.index_fill(2, torch.tensor(0), torch.nan), r"must lie between 0 and 1.*nan"),
        (lambda x: x[0], r"must be of the shape \(1, 8, 8\) each; got \(8, 8\)"),
        (lambda x: x.expand(-1, 3, -1, -1), r"must be of the shape \(1, 8, 8\) each; got \(3, 8, 8\)"),
    ],
)
def test_what_is_not_pixels_is_refused_in_one_line(made: FromPixels, change: Any, words: str) -> None:
    x = torch.linspace(0, 1, 2 * 64).view(2, 1, 8, 8)
    made(x)
    made(x * 1.0005)  # what rounding leaves
    with pytest.raises(ValueError, match=words) as refused:
        vnd.predict(made, change(x))
    assert "\n" not in str(refused.value)


# Refusals


def test_an_unknown_name_is_answered_with_the_known_ones(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "ROOT", root)
    with pytest.raises(ValueError, match=r"unknown network 'maed', did you mean 'made'\? Known: made$"):
        load_pretrained("maed")
    for name in ("", ".", "../root/made", "made/"):
        with pytest.raises(ValueError, match="unknown network"):
            load_pretrained(name)


@pytest.mark.parametrize("file", ["card.json", "network.json", "tensors"])
def test_what_is_damaged_is_refused(root: Path, tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(root / "made", tmp_path / "made")
    pretrained.read(folder)
    (path,) = folder.glob(f"{file}*")
    content = bytearray(path.read_bytes())
    place = content.index(b"0.", len(content) // 2) if file.endswith("json") else len(content) - 3
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged") as refused:
        pretrained.read(folder)
    assert "\n" not in str(refused.value)


def test_what_is_too_large_is_refused_and_nothing_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SHIP
    monkeypatch.setattr(script, "MOST", 20_000)
    with pytest.raises(ValueError, match=r"at most 20,000 bytes; got .* of --parameters 1900: try "):
        script.ship(run, "large", 1900, root=tmp_path)
    assert not list(tmp_path.iterdir())


def nested(**options: Any) -> nn.Module:
    return vnd.to_nested(
        vnd.models.ConvNet(width=0.15, image_size=8), torch.rand(1, 1, 8, 8), num_groups=4, **options
    ).eval()


def test_what_has_no_smaller_nested_form_is_refused() -> None:
    other = vnd.to_nested(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.rand(1, 4), num_groups=4)
    with pytest.raises(ValueError, match=r"^cut: the network must be one of vgg11, .*; got a Sequential$"):
        cut(other, vnd.shape(other, fraction=0.5), SAID)
