"""`vnd generate`: of networks that write their code into their pixels, what each picture shows, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vnd
from refusals import fails
from train.small import recipe, write_blobs
from vnd.cli import main
from vnd.cli.generate import LatentViews, latent_views
from vnd.evaluation import open_run
from vnd.models.autoencoder import reached
from vnd.report import image_grids
from vnd.report.image_grids import Row
from vnd.tasks.autoencoding import as_pixels
from vnd.train.loop import fit

CODE, GAIN = 6, 0.25  # pixel i of an image is GAIN times dimension i of its code
WORTH = (2.0, 1.0, 3.0, 2.0, 20.0, 40.0)  # dimension i is so many times a pixel of the image that it is the code of
NAMES = ("samples", "reconstructions", "growing", "tree", "traversals")
METHODS: dict[str, dict[str, Any]] = {
    "vnd_ae": {"name": "vnd_ae", "fractions": [0.5, 1.0]},
    "log_uniform": {"name": "vnd_ae", "prior": "log_uniform"},
    "vae": {"name": "vae"},
    "joint_vae": {"name": "joint_vae", "categories": 2},
    "swae": {"name": "swae"},
    "nested_ae": {"name": "nested_ae"},
}
command = import_module("vnd.cli.generate")  # the module: in vnd.cli the function has its name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each method for one epoch, whose networks are then those of `plant`; and one that learns classes."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_blobs(folder / "blobs.npz", train=64, test=30)
    network = {
        "name": "dense_autoencoder", "latent_dim": CODE, "image_size": 8, "in_channels": 1, "hidden": [],
        "bounded": False
    }  # fmt: skip
    options: dict[str, Any] = {"optimizer": {"chain_lr": None}, "train": {"epochs": 1}}
    for name, method in METHODS.items():
        assert fit(recipe(data, method=method, network=network, **options), folder / name, quiet=True)
        for checkpoint in ("best", "last"):
            model = vnd.load(folder / name / checkpoint)
            plant(model)
            vnd.save(model, folder / name / checkpoint)
    assert fit(recipe(data, method={"name": "plain"}, **options), folder / "classes", quiet=True)
    return folder


@torch.no_grad()
def plant(model: nn.Module) -> None:
    """Dimension i is read from pixel (4, i) of an image, and is written to pixel (0, i) of the decoded one."""
    for parameter in model.parameters():
        parameter.zero_()
    for i in range(CODE):
        model.expand.weight[i, i] = GAIN
    heads = model.heads
    for i in range(heads["loc"].out_features):
        heads["loc"].weight[i, 4 * 8 + i] = WORTH[i]
    if "keep_logits" in heads:  # long where pixel (4, 0) is brighter than the middle, else two dimensions
        heads["keep_logits"].weight[1:, 4 * 8] = 100.0
        heads["keep_logits"].bias[0] = 50.0
    if "category" in heads:
        heads["category"].bias[1] = 1.0


def dimensions(images: np.ndarray) -> np.ndarray:
    """The codes that bytes of planted images show, (n, CODE), to the precision of a byte."""
    return (images[:, 0, 0, :CODE].astype(float) / 127.5 - 1) / GAIN


def as_shown(codes: Any) -> np.ndarray:
    """Codes as bytes can show them."""
    values = codes.cpu().numpy() if isinstance(codes, Tensor) else np.asarray(codes, dtype=float)
    return (np.asarray(as_pixels(torch.as_tensor(values * GAIN))).astype(float) / 127.5 - 1) / GAIN


def made(run: Path, length: int | None = None, seed: int = 0, count: int = 8) -> LatentViews:
    return latent_views(open_run(run, "last"), length, seed, count)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the drawing functions are given, by the heading of the sheet; a file has the bytes of its images alone."""
    seen: dict[str, Any] = {}

    def rows(given: list[Row], heading: str, about: str, *rest: Any, **more: Any) -> str:
        seen[heading] = {"rows": given, "about": about, "rest": rest, **more}
        return heading

    def tree(levels: list[np.ndarray], heading: str, about: str, values: tuple[str, str], **more: Any) -> str:
        seen[heading] = {"levels": levels, "about": about, "values": values, **more}
        return heading

    monkeypatch.setattr(image_grids, "rows", rows)
    monkeypatch.setattr(image_grids, "tree", tree)

    def png(heading: str) -> bytes:
        given = seen[heading]
        return b"".join(x.tobytes() for x in given.get("levels", [row.images for row in given.get("rows", ())]))

    monkeypatch.setattr(image_grids, "png", png)
    return seen


# The command


def test_it_writes_five_pictures_and_says_what_they_show(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "pictures"
    main(["generate", str(runs / "vnd_ae"), "--out", str(out), "--checkpoint", "last", "--count", "14", "--depth", "3"])
    files = [out / f"{name}.png" for name in NAMES] + [out / "generate.json"]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in files]
    assert sorted(out.iterdir()) == sorted(files)
    for path in files[:-1]:
        with Image.open(path) as picture:
            assert min(picture.size) > 200, path
    facts = json.loads((out / "generate.json").read_text())
    manifest = json.loads((runs / "vnd_ae" / "last" / "network.json").read_text())
    assert facts["network"] == {"name": "dense_autoencoder", "latent_dim": CODE, "checksum": manifest["checksum"]}
    assert (facts["seed"], facts["checkpoint"], facts["lengths"], facts["not_drawn"]) == (0, "last", [2, 3, 5, 6], None)
    assert facts["command"].startswith(
        f"vnd generate {runs / 'vnd_ae'} --checkpoint last --out {out} --seed 0 --count 14"
    )
    stops = facts["pictures"]["samples"].pop("drawn_lengths")
    assert facts["pictures"]["samples"] == {"lengths": [2, 3, 5, 6], "count": 14}
    assert len(stops) == 14
    assert 1 <= min(stops) < max(stops) <= CODE
    assert len(facts["pictures"]["reconstructions"]["images"]) == 12
    assert facts["pictures"]["growing"] == {"lengths": [1, 2, 3, 4, 5, 6], "codes": 8}
    assert facts["pictures"]["tree"] == {
        "depth": 3, "first": 0.0, "values": [-1.5, 1.5], "dimensions": [1, 2, 3, 4]
    }  # fmt: skip
    assert facts["pictures"]["traversals"]["dimensions"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("shown")
def test_pictures_go_to_the_run_and_a_seed_decides_them(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "vae"
    shutil.copytree(runs / "vae", folder)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = []
    for seed, out in ((0, None), (0, tmp_path / "again"), (3, tmp_path / "other")):
        words = ["generate", str(folder), "--seed", str(seed), "--count", "3"]
        main(words if out is None else [*words, "--out", str(out)])
        place = out or folder / "generated"
        found.append({name: (place / f"{name}.png").read_bytes() for name in NAMES})
    assert found[0] == found[1]
    assert all(found[0][name] != found[2][name] for name in NAMES if name != "tree")  # which has nothing of chance
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("name", ["nested_ae", "log_uniform"])
def test_what_cannot_be_drawn_is_left_out_and_said(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    main(["generate", str(runs / name), "--out", str(tmp_path / name), "--count", "3"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("no samples.png and no growing.png: ")
    assert [Path(line).name for line in said[1:]] == [
        "reconstructions.png", "tree.png", "traversals.png", "generate.json"
    ]  # fmt: skip
    facts = json.loads((tmp_path / name / "generate.json").read_text())
    assert facts["not_drawn"] in said[0]
    assert not (tmp_path / name / "samples.png").exists()


def test_what_is_wrong_is_said_in_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coded, none = runs / "vnd_ae", tmp_path / "none"
    for words, line in (
        ((runs / "classes",), "was trained by plain, which learns no codes of images; give a run of vnd_ae"),
        ((coded, "--length", 7), "generate: length must lie in 1 … 6; got 7"),
        ((coded, "--length", 0), "generate: length must lie in 1 … 6; got 0"),
        ((runs / "vae", "--length", 3), "codes of vae have no order and one length, 6; got --length 3"),
        ((coded, "--count", 0), "generate: count must lie in 1 … 240; got 0"),
        ((coded, "--depth", 7), "generate: depth must lie in 1 … 6; got 7"),
        ((coded, "--depth", 6), "generate: depth must lie in 1 … 5; got 6"),  # beyond the first dimension
        ((coded, "--first", 6), "generate: first must lie in -5 … 5 deviations; got 6.0"),
        ((coded, "--seed", -1), "generate: seed must lie in 0 … "),
        ((coded, "--checkpoint", "worst"), "checkpoint"),
        ((none,), str(none)),
        ((coded, "--lenght", 3), "lenght"),
    ):
        assert line in fails(capsys, "generate", *words, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "--help"])
    assert not stopped.value.code
    told = capsys.readouterr().out
    assert "Example: vnd generate runs/faces --length 32" in told
    for option in ("--length", "--checkpoint", "--out", "--seed", "--count", "--depth", "--first"):
        assert option in told


# What the pictures show


def check_shared(own: LatentViews, shown: dict[str, Any]) -> None:
    """Each length shows the same drawn codes: their leading values, and zeros."""
    command.samples(own)
    *grids, last = shown["Samples"]["rows"]
    assert [row.label for row in grids] == [f"{length} of 6 dimensions" for length in (2, 3, 5, 6)]
    for length, row in zip((2, 3, 5, 6), grids, strict=True):
        found = dimensions(row.images)
        np.testing.assert_allclose(found[:, :length], as_shown(own.drawn)[:, :length])
        np.testing.assert_allclose(found[:, length:], as_shown(np.zeros((8, CODE - length))))
    assert last.label == "drawn lengths"
    assert own.drawn is not None
    for found, code, caption in zip(dimensions(last.images), own.drawn, last.captions, strict=True):
        length = int(caption.removeprefix("length "))
        np.testing.assert_allclose(found[:length], as_shown(code)[:length])
        np.testing.assert_allclose(found[length:], as_shown(np.zeros(CODE - length)))


def test_samples_of_all_lengths_share_their_codes(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "vnd_ae")
    assert own.drawn is not None
    assert own.drawn.shape == (8, CODE)
    assert own.drawn.abs().min() > 0  # whole codes
    assert own.stops is not None
    assert len(own.stops.unique()) > 1
    check_shared(own, shown)


def test_codes_that_are_not_cut_are_found(runs: Path, shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    own = made(runs / "vnd_ae")
    monkeypatch.setattr(LatentViews, "shortened", lambda self, codes, length: codes)
    with pytest.raises(AssertionError):
        check_shared(own, shown)


def test_a_dimension_at_zero_is_still_kept(runs: Path) -> None:
    own = made(runs / "vnd_ae", length=4)
    code = own.shortened(own.codes[:1], 4)
    codes = own.moved(code, 3, (-1.0, 0.0, 1.0))
    assert reached(codes).sum(1).tolist() == [4, 4, 4]
    torch.testing.assert_close(codes[:, 3], torch.tensor([-1.0, 0.0, 1.0]))


def test_one_length_is_shown_alone(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "vnd_ae", length=4)
    for draw in (command.samples, command.reconstructions, command.traversals):
        draw(own)
    assert [row.label for row in shown["Samples"]["rows"]] == ["4 of 6 dimensions"]
    labels = [row.label for row in shown["Reconstructions"]["rows"]]
    assert labels == ["test images", "4 of 6 dimensions", "own lengths"]
    assert [row.label for row in shown["Traversals"]["rows"]] == [f"dimension {i}" for i in (1, 2, 3, 4)]
    np.testing.assert_allclose(dimensions(shown["Traversals"]["first"].images[1:])[0, 4:], as_shown(np.zeros(2)))


def test_reconstructions_have_their_errors_and_own_lengths(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "vnd_ae")
    _, said = command.reconstructions(own)
    first, *others = shown["Reconstructions"]["rows"]
    test = open_run(runs / "vnd_ae").test().pixels[said["images"]]
    np.testing.assert_array_equal(first.images, test)
    x = test.astype(float) / 127.5 - 1
    codes = np.stack([WORTH[i] * x[:, 0, 4, i] for i in range(CODE)], 1)
    lengths = np.where(x[:, 0, 4, 0] >= 0, CODE, 2)
    assert 0 < (lengths == 2).sum() < len(lengths)
    for kept, row, facts in zip((2, 3, 5, 6, lengths), others, said["rows"], strict=True):
        cut = codes * (np.arange(CODE) < np.reshape(kept, (-1, 1)))
        decoded = np.zeros_like(x)
        decoded[:, 0, 0, :CODE] = GAIN * cut
        error = ((x - decoded) ** 2).mean() / 4
        assert facts["mse"] == pytest.approx(error, rel=1e-5)
        assert row.note == f"error {error:.4f}"
        assert facts["length"] == (kept if isinstance(kept, int) else kept.tolist())
        pixels = np.asarray(as_pixels(torch.as_tensor(decoded)))
        assert np.abs(row.images.astype(int) - pixels).max() <= 1  # a half may be rounded either way
    assert list(others[-1].captions) == [f"length {length}" for length in lengths]


def test_a_row_of_growing_codes_shares_one_code(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "vnd_ae")
    command.growing(own)
    given = shown["Codes of growing length"]
    assert given["rest"] == (["1", "2", "3", "4", "5", "6"], "dimensions")
    assert len(given["rows"]) == 8
    for code, row in zip(as_shown(own.drawn), given["rows"], strict=True):
        found, nothing = dimensions(row.images), as_shown(np.zeros(1))[0]
        wanted = np.where(np.tri(CODE, dtype=bool), code, nothing)  # row b of the triangle keeps b + 1
        np.testing.assert_allclose(found, wanted)


def check_tree(own: LatentViews, shown: dict[str, Any], base: int = 1) -> None:
    """The base has one value, each later dimension two."""
    command.tree(own, 4, 0.5)
    levels = shown["Tree of codes"]["levels"]
    assert [len(images) for images in levels] == [1, 2, 4, 8, 16]
    for level, images in enumerate(levels):
        signs = np.array(list(product((-1.5, 1.5), repeat=level))).reshape(2**level, level)
        wanted = np.pad(np.pad(signs, ((0, 0), (base, 0)), constant_values=0.5), ((0, 0), (0, CODE - level - base)))
        np.testing.assert_allclose(dimensions(images), as_shown(wanted))


def test_the_first_dimension_of_a_tree_has_one_value_and_each_later_one_two(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "vnd_ae")
    check_tree(own, shown)
    levels = shown["Tree of codes"]["levels"]
    for above, below in pairwise(levels):  # both below an image differ from it in one dimension only
        assert ((below != above.repeat(2, 0)).sum((1, 2, 3)) == 1).all()
    given = shown["Tree of codes"]
    assert (given["values"], given["trunk"], given["only"]) == (("left: −1.5", "right: +1.5"), 1, "first: +0.5")
    wider = dataclasses.replace(own, method=dataclasses.replace(own.method, base=2))  # type: ignore[type-var]
    check_tree(wider, shown, base=2)
    # Planted: two values of the first dimension too.
    with pytest.raises(AssertionError):
        check_tree(dataclasses.replace(own, method=Forked(own.method)), shown)  # type: ignore[arg-type]


class Forked:
    """A method whose codes begin with nothing."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def __getattr__(self, name: str) -> Any:
        return 0 if name == "base" else getattr(self.method, name)


def test_a_root_of_zeros_has_a_length(runs: Path) -> None:
    own = made(runs / "vnd_ae")
    assert [reached(codes).sum(1).unique().tolist() for codes in own.branches(2, 0.0, 1.5)] == [[1.0], [2.0], [3.0]]


def test_a_traversal_changes_one_dimension_of_a_test_image(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "vnd_ae")
    _, said = command.traversals(own)
    given = shown["Traversals"]
    assert given["rest"] == (["−2.5", "−2", "−1.5", "−1", "−0.5", "0", "+0.5", "+1", "+1.5", "+2", "+2.5"], "value")
    x = open_run(runs / "vnd_ae").test().pixels[said["image"]].astype(float) / 127.5 - 1
    code = np.array([WORTH[i] * x[0, 4, i] for i in range(CODE)])
    for dimension, row in enumerate(given["rows"]):
        wanted = np.tile(code, (11, 1))
        wanted[:, dimension] = np.linspace(-2.5, 2.5, 11)
        np.testing.assert_allclose(dimensions(row.images), as_shown(wanted), atol=0.05)


# Codes without an order


@pytest.mark.parametrize(("name", "words"), [("vae", "nats"), ("swae", "deviation")])
def test_dimensions_without_an_order_are_taken_by_what_they_tell(
    runs: Path, shown: dict[str, Any], name: str, words: str
) -> None:
    own = made(runs / name)
    assert own.lengths == (CODE,)
    assert own.own_lengths is None
    told = own.order.tolist()
    assert told != list(range(CODE))
    assert told[:2] == [5, 4]  # planted to be worth the most
    command.traversals(own)
    rows = shown["Traversals"]["rows"]
    assert [row.label for row in rows] == [f"dimension {i + 1}" for i in told]
    assert all(words in row.note for row in rows)
    _, said = command.tree(own, 1, 0.5)
    assert said["dimensions"] == [6, 5]
    wanted = np.zeros((2, CODE))
    wanted[:, 5], wanted[:, 4] = 0.5, (-1.5, 1.5)
    np.testing.assert_allclose(dimensions(shown["Tree of codes"]["levels"][1]), as_shown(wanted))
    command.growing(own)
    kept = dimensions(shown["Codes of growing length"]["rows"][0].images)[0]
    np.testing.assert_allclose(kept[5], as_shown(own.drawn)[0, 5])
    np.testing.assert_allclose(kept[:5], as_shown(np.zeros(5)))


def test_a_category_stays_while_the_code_grows(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "joint_vae")
    assert sorted(own.order.tolist()) == [0, 1, 2, 3]
    command.growing(own)
    given = shown["Codes of growing length"]
    assert "The category stays." in given["about"]
    for code, row in zip(as_shown(own.drawn), given["rows"], strict=True):
        assert len(row.images) == 4
        np.testing.assert_allclose(dimensions(row.images)[:, 4:], np.tile(code[4:], (4, 1)))
    command.tree(own, 4)
    last = dimensions(shown["Tree of codes"]["levels"][-1])
    np.testing.assert_allclose(last[:, 4:], as_shown(np.tile([0.0, 1.0], (8, 1))))


def test_codes_without_a_prior_are_counted_in_deviations_of_the_test_images(runs: Path, shown: dict[str, Any]) -> None:
    own = made(runs / "nested_ae")
    x = open_run(runs / "nested_ae").test().pixels.astype(float)[:, 0, 4, :2] / 127.5 - 1
    command.tree(own, 1, 0.5)
    found = dimensions(shown["Tree of codes"]["levels"][1])[:, :2]
    middle, spread = x.mean(0) * WORTH[:2], x.std(0) * WORTH[:2]
    np.testing.assert_allclose(found[:, 0], middle[0] + 0.5 * spread[0], atol=0.02)
    np.testing.assert_allclose(found[:, 1], middle[1] + np.array([-1.5, 1.5]) * spread[1], atol=0.02)
    assert shown["Tree of codes"]["values"] == ("left: −1.5 deviations", "right: +1.5 deviations")
