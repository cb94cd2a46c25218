"""`vnd evaluate` and `vnd segment` of tiny runs: what is printed, written and drawn, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import fails
from train.masks import METHODS, few, recipe
from train.small import recipe as small_recipe
from train.small import write_blobs
from vnd import metrics
from vnd.cli import main
from vnd.data import synthetic
from vnd.evaluation import open_run
from vnd.report import html
from vnd.report import image_grids as drawn
from vnd.train.loop import fit

command = import_module("vnd.cli.segment")  # the module: in vnd.cli the function has its name


@pytest.fixture(scope="module", autouse=True)
def scarce() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        few(patch)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each method that segments, and a classifier."""
    folder = tmp_path_factory.mktemp("runs")
    for name in METHODS:
        assert fit(recipe(name), folder / name, quiet=True)
    data = write_blobs(folder / "blobs.npz", train=64, test=30)
    plain: dict[str, Any] = {"method": {"name": "plain"}, "optimizer": {"chain_lr": None}, "train": {"epochs": 1}}
    assert fit(small_recipe(data, **plain), folder / "plain", quiet=True)
    return folder


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(html, "DPI", 20)
    monkeypatch.setattr(drawn, "DPI", 20)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report, which takes most of the time."""
    monkeypatch.setattr(html, "write_run", lambda results, folder: folder / "report.html")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A test image as it is, and larger: wide, and in colours."""
    pixels = synthetic.read(None, "test").pixels[0, 0]
    folder = tmp_path / "scans"
    folder.mkdir()
    Image.fromarray(pixels).save(folder / "one.png")
    Image.fromarray(pixels).resize((90, 60)).convert("RGB").save(folder / "wide.jpg")
    return folder


# vnd evaluate


def test_a_run_is_evaluated_at_its_sizes(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(runs / "vnd_punet"), "--num_mask_samples", "[1, 4]", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    sizes = [row["label"] for row in results["rows"]]
    assert sizes == ["3 of 6", "6 of 6", "drawn"]
    assert (results["task"]["name"], results["samples"], results["split"]) == ("segmentation", [1, 4], "test")
    data = {"name": "synthetic_graders", "train": 32, "validation": 16, "test": 12, "classes": [], "image": [1, 32, 32]}
    assert results["data"] == data
    assert results["command"].endswith("--num_mask_samples '[1, 4]'")
    assert results["curves"][0].keys() >= {"step", "loss", "nll", "kl"}
    for row in results["rows"]:
        (line,) = [x for x in printed.splitlines() if x.startswith(row["label"])]
        for value in (
            *row["ged"].values(),
            row["matched_iou"],
            row["diversity"],
            row["dice"],
            row["calibration_error"],
        ):
            assert f"{value:.4f}" in line
        assert len(row["per_image"]["4"]) == 12
    truth = synthetic.truth("test")
    graders = torch.from_numpy(synthetic.read(None, "test").masks)
    expected = metrics.expected_energy_distance(*map(torch.from_numpy, truth), graders, 4).mean()
    assert results["rows"][0]["expected_ged"]["4"] == pytest.approx(float(expected))
    (line,) = [x for x in printed.splitlines() if x.startswith("truth")]
    assert f"{float(expected):.4f}" in line
    with (tmp_path / "rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(x["label"], x["samples"]) for x in lines] == [(label, n) for label in sizes for n in "14"]
    assert [float(x["ged"]) for x in lines] == [ged for row in results["rows"] for ged in row["ged"].values()]
    assert "VND-PUNet" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_validation_images_have_no_known_truth(runs: Path, tmp_path: Path) -> None:
    main(["evaluate", str(runs / "dropout_unet"), "--split", "validation", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["split"], "test" in results["data"]) == ("validation", False)
    assert results["rows"][0]["expected_ged"] is None
    assert len(results["rows"][0]["per_image"]["1"]) == 16


@pytest.mark.usefixtures("undrawn")
def test_widths_of_a_nested_network_are_sizes(runs: Path, tmp_path: Path) -> None:
    main(["evaluate", str(runs / "bn3_unet"), "--fractions", "[0.25, 1.0]", "--learned", "1", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["label"] for row in rows][:2] == ["25 %", "100 %"]
    assert rows[0]["parameters"] < rows[1]["parameters"] == rows[2]["parameters"]


def test_flags_of_other_tasks_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, plain = runs / "vnd_punet", runs / "plain"
    words = fails(capsys, "evaluate", run, "--inference", "[mean]")
    assert (
        words == f"vnd: evaluate: --inference is for a classifier, and {run} is a network that segments; leave it out"
    )
    words = fails(capsys, "evaluate", plain, "--num_mask_samples", "[1]")
    assert (
        words == f"vnd: evaluate: --num_mask_samples is for a network that segments, "
        f"and {plain} is a classifier; leave it out"
    )
    assert "--num_generated is for an auto-encoder" in fails(capsys, "evaluate", run, "--num_generated", "5")
    assert "num_mask_samples must be numbers of masks that rise" in fails(
        capsys, "evaluate", run, "--num_mask_samples", "[4, 1]"
    )
    words = fails(capsys, "extract", run, "--fraction", "0.5")
    assert words.startswith(f"vnd: extract: {run} is a network that segments: vnd segment draws its masks")
    words = fails(capsys, "distill", runs / "bn3_unet")
    assert words.startswith(f"vnd: distill: {runs / 'bn3_unet'} is no Bayesian nested network that classifies; ")
    assert "which learns no codes of images" in fails(capsys, "generate", run)


# vnd segment


def test_pictures_and_numbers_of_each_image_are_written(
    runs: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "masks"
    files = [pictures / "one.png", pictures / "wide.jpg"]
    main(
        [
            "segment",
            str(runs / "vnd_punet"),
            *map(str, files),
            "--num_mask_samples",
            "5",
            "--out",
            str(out),
            "--checkpoint",
            "last",
        ]
    )
    names = [f"{stem}{kind}.png" for stem in ("one", "wide") for kind in ("", "-samples", "-mean", "-uncertainty")]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "segment.json"])
    facts = json.loads((out / "segment.json").read_text())
    assert (facts["num_mask_samples"], facts["size"], facts["checkpoint"], facts["measured_at"]) == (
        5,
        "6 of 6",
        "last",
        [32, 32],
    )
    assert facts["command"].startswith(f"vnd segment {runs / 'vnd_punet'} {files[0]} {files[1]} --num_mask_samples 5")
    assert facts["network"]["name"] == "probabilistic_unet"
    assert [(row["image"], row["width"], row["height"]) for row in facts["images"]] == [
        (str(files[0]), 32, 32),
        (str(files[1]), 90, 60),
    ]
    for name, size in (("one", (32, 32)), ("wide", (90, 60))):
        with Image.open(out / f"{name}-mean.png") as picture:
            assert (picture.size, picture.mode) == (size, "L")
        with Image.open(out / f"{name}-samples.png") as picture:
            assert picture.size == (3 * (size[0] + 2) + 2, 2 * (size[1] + 2) + 2)
    printed = capsys.readouterr().out
    for row in facts["images"]:
        (line,) = [x for x in printed.splitlines() if x.startswith(row["name"])]
        assert f"{100 * row['foreground']:.2f} %" in line
        assert f"{row['diversity']:.3f}" in line
    assert str(out / "segment.json") in printed


def test_what_is_drawn_is_what_the_network_draws(
    runs: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(drawn, "overview", lambda *given: shown.append(given))
    monkeypatch.setattr(drawn, "uncertainty", lambda *given: None)
    monkeypatch.setattr(drawn, "png", lambda figure, dpi: b"")
    torch.manual_seed(7)
    state = torch.get_rng_state()
    main(["segment", str(runs / "punet"), str(pictures / "one.png"), "--seed", "3", "--out", str(tmp_path / "out")])
    assert torch.equal(torch.get_rng_state(), state)
    opened = open_run(runs / "punet")
    (size,) = opened.recipe.method.sizes(opened.model, opened.recipe.evaluate.sizes)
    pixels = torch.from_numpy(synthetic.read(None, "test").pixels[:1])
    torch.manual_seed(3)
    logits = opened.recipe.method.drawer(opened.model, size)(opened.splits.normalise("cpu")(pixels), 16)[:, 0, 0]
    image, mean, entropy, samples, heading, about, classes = shown[0]
    assert np.array_equal(image, pixels[0, 0].numpy())
    assert mean == pytest.approx(logits.sigmoid().mean(0).double().numpy(), abs=1e-5)
    assert entropy == pytest.approx(-mean * np.log(mean) - (1 - mean) * np.log(1 - mean), abs=1e-5)
    assert all(np.array_equal(s, drawn.tinted(image, m)) for s, m in zip(samples, (logits > 0).numpy(), strict=True))
    assert (heading, "16 masks" in about, classes) == ("one", True, [])
    with Image.open(tmp_path / "out" / "one-mean.png") as picture:
        assert np.abs(np.asarray(picture) - 255 * mean).max() < 0.51
    sheet = np.asarray(Image.open(tmp_path / "out" / "one-samples.png"))
    assert np.array_equal(sheet[2:34, 36:68], 255 * (logits[1] > 0).numpy())
    (row,) = json.loads((tmp_path / "out" / "segment.json").read_text())["images"]
    assert row["foreground"] == pytest.approx(float((logits.sigmoid().mean(0) > 0.5).double().mean()))
    assert row["diversity"] == pytest.approx(float(metrics.diversity((logits > 0)[None])))


@pytest.mark.parametrize("name", ["bn3_unet", "unet_ensemble", "dropout_unet"])
def test_every_method_segments(
    runs: Path, pictures: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "png", lambda figure, dpi: b"")
    main(
        [
            "segment",
            str(runs / name),
            str(pictures / "one.png"),
            "--num_mask_samples",
            "2",
            "--out",
            str(tmp_path / "out"),
        ]
    )
    (row,) = json.loads((tmp_path / "out" / "segment.json").read_text())["images"]
    assert 0 <= row["foreground"] <= 1


def test_a_share_of_the_latent_is_taken_and_training_images_are_not_needed(
    runs: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "vnd_punet", tmp_path / "run")
    monkeypatch.setattr(synthetic, "read", None)
    monkeypatch.setattr(drawn, "png", lambda figure, dpi: b"")
    main(["segment", str(tmp_path / "run"), str(pictures / "one.png"), "--num_mask_samples", "1", "--fraction", "0.33"])
    facts = json.loads((tmp_path / "run" / "segmented" / "segment.json").read_text())
    assert facts["size"] == "2 of 6"
    assert facts["images"][0]["diversity"] is None


def test_what_cannot_be_segmented_is_refused_before_anything_is_written(
    runs: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, one = runs / "vnd_punet", pictures / "one.png"
    (tmp_path / "text.png").write_text("no image")
    with Image.open(one) as picture:
        picture.save(pictures / "one.jpg")
    shutil.copy(one, tmp_path / "one-mean.png")
    out = tmp_path / "out"
    cases: list[tuple[tuple[object, ...], str]] = [
        ((runs / "plain", one), "was trained by plain, which draws no masks; give a run of vnd_punet"),
        (
            (runs / "punet", one, "--fraction", "0.5"),
            "has one size, as punet was trained; leave out --fraction, got 0.5",
        ),
        ((run, one, "--fraction", "1.5"), "segment: fraction must lie in (0, 1]; got 1.5"),
        ((run, one, "--num_mask_samples", "0"), "segment: num_mask_samples must lie in 1 … 256; got 0"),
        ((run, one, "--seed", "-1"), "segment: seed must lie in 0 … "),
        ((run, one, tmp_path / "none.png"), f"{tmp_path / 'none.png'}: No such file or directory"),
        ((run, one, tmp_path / "text.png"), f"{tmp_path / 'text.png'}: is not an image, or a damaged one"),
        ((run, one, pictures / "one.jpg"), f"two images would be written to {out / 'one.png'}"),
        ((run, one, tmp_path / "one-mean.png"), f"two images would be written to {out / 'one-mean.png'}"),
        ((tmp_path, one), f"{tmp_path} is not a run"),
    ]
    for given, words in cases:
        assert words in fails(capsys, "segment", *given, "--out", out), given
    assert not out.exists()
    words = fails(capsys, "segment", run, one, "--out", pictures)
    assert words == f"vnd: segment: {one} is one of the images and would be written over; give another --out"
    words = fails(capsys, "segment", run, one, "--out", one)
    assert words == f"vnd: segment: --out must be a folder, and {one} is a file; give another"
    assert "the following arguments are required" in fails(capsys, "segment", run)


def test_images_of_one_name_in_two_folders_are_told_apart_by_these(
    runs: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "png", lambda figure, dpi: b"")
    shutil.copytree(pictures, tmp_path / "others")
    given = [str(folder / "one.png") for folder in (pictures, tmp_path / "others")]
    main(["segment", str(runs / "punet"), *given, "--num_mask_samples", "1", "--out", str(tmp_path / "out")])
    rows = json.loads((tmp_path / "out" / "segment.json").read_text())["images"]
    assert [(row["name"], row["image"]) for row in rows] == list(zip(("scans-one", "others-one"), given, strict=True))
    assert (tmp_path / "out" / "others-one-mean.png").exists()


def test_the_help_has_the_run_first_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["segment", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "run IMAGE [IMAGE ...]" in printed
    assert "Example: vnd segment runs/lungs scans/*.png" in printed


# Masks of one's own: colour, classes, annotators who differ in number


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of colour images of 19×26 with masks of three classes by one to three annotators each."""
    folder, generator = tmp_path_factory.mktemp("scans"), np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 5)):
        for place in ("images", "masks"):
            (folder / split / place).mkdir(parents=True)
        for number in range(count):
            mask = np.zeros((19, 26), np.uint8)
            mask[5:12, number : number + 5] = 1 + number % 2
            image = 60 * mask[..., None] + generator.integers(0, 60, (19, 26, 3))
            Image.fromarray(image.astype(np.uint8)).save(folder / split / "images" / f"{number}.png")
            for grader in range(1 + number % 3):
                marks = np.roll(mask, grader, axis=0)
                Image.fromarray(marks).save(folder / split / "masks" / f"{number}_{grader}.png")
    (folder / "classes.txt").write_text("nothing\ncyst\ntumour\n")
    return folder


OWN = {"in_channels": 3, "num_classes": 3, "channels": [4, 6]}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("vnd_punet", {"sampler": "released"}),  # the authors' sampler, and no fixed lengths
        ("bn3_unet", {"num_groups": 4, "base": 1, "measure_every": 2, "test_noise": "pixels"}),
    ],
)
def test_masks_of_one_s_own_are_learned_evaluated_and_drawn(
    name: str, method: dict[str, Any], scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = {"name": "probabilistic_unet" if name == "vnd_punet" else "unet", **OWN}
    data = {"name": "folder", "folder": str(scans), "validation": 4}
    own = recipe(name, method={"name": name, **method}, network=network, data=data, train={"batch": 8})
    assert fit(own, tmp_path / "run", quiet=True)
    if name == "vnd_punet":
        log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        rows = [row for row in log if "nll" in row]
        assert all(row["loss"] == pytest.approx(row["nll"] + row["kl_weight"] * row["kl"], rel=1e-4) for row in rows)
    main(["evaluate", str(tmp_path / "run"), "--num_mask_samples", "[1, 2]"])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["graders"], results["fewest_graders"]) == (3, 1)
    assert results["mask_classes"] == results["data"]["classes"] == ["nothing", "cyst", "tumour"]
    assert all(0 <= value <= 2 for row in results["rows"] for value in row["ged"].values())
    shown: list[Any] = []
    monkeypatch.setattr(drawn, "overview", lambda *given: shown.append(given))
    monkeypatch.setattr(drawn, "uncertainty", lambda *given: shown.append(given[2]))
    monkeypatch.setattr(drawn, "png", lambda figure, dpi: b"")
    large = tmp_path / "large.png"
    Image.open(scans / "test" / "images" / "1.png").resize((37, 23)).save(large)
    given = ["segment", str(tmp_path / "run"), str(large), "--num_mask_samples", "3", "--out", str(tmp_path / "out")]
    main([*given, "--resize", "false"])
    facts = json.loads((tmp_path / "out" / "segment.json").read_text())
    (row,) = facts["images"]
    assert (facts["measured_at"], list(row["shares"])) == (None, ["nothing", "cyst", "tumour"])
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert row["foreground"] == pytest.approx(1 - row["shares"]["nothing"])
    assert (list(shown[0][-1]), shown[1]) == (["nothing", "cyst", "tumour"], 3)
    opened = open_run(tmp_path / "run")
    size = opened.method.sizes(opened.model, opened.recipe.evaluate.sizes)[-1]
    pixels = torch.from_numpy(np.asarray(Image.open(large)).transpose(2, 0, 1).copy())[None]
    draw = command.ready(opened, size, opened.recipe.evaluate.bn_images)
    torch.manual_seed(0)
    probs = draw(opened.normalise(pixels), 3)[:, 0].softmax(1).mean(0)
    with Image.open(tmp_path / "out" / "large-classes.png") as picture:
        assert picture.mode == "P"
        assert np.array_equal(np.asarray(picture), probs.argmax(0).numpy())
    assert not (tmp_path / "out" / "large-mean.png").exists()
    with Image.open(tmp_path / "out" / "large-samples.png") as picture:
        assert picture.mode == "RGB"


def test_a_network_with_too_few_classes_is_refused(scans: Path, tmp_path: Path) -> None:
    data = {"name": "folder", "folder": str(scans), "validation": 4}
    network = {"name": "unet", **OWN, "num_classes": 2}
    with pytest.raises(
        ValueError, match=r"^network\.num_classes must be 3 or more for the masks of folder, whose pixels"
    ):
        fit(recipe("dropout_unet", network=network, data=data, train={"batch": 8}), tmp_path / "run", quiet=True)
