"""`vnd evaluate` and `vnd report` of auto-encoders: of tiny runs, what is printed and written, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refusals import fails
from train.small import recipe, write_blobs
from vnd.cli import main
from vnd.evaluation import settings_of
from vnd.report import html, style
from vnd.tasks import autoencoding as drawing
from vnd.tasks.features import Extractor
from vnd.train.loop import fit

NETWORK = {"name": "dense_autoencoder", "image_size": 8, "hidden": [16]}
METHODS: dict[str, dict[str, Any]] = {
    "vnd": {
        "method": {"name": "vnd_ae", "likelihood_std": 0.5, "fractions": [0.5, 1.0]},
        "network": {**NETWORK, "latent_dim": 4},
    },
    "vae-2": {"method": {"name": "vae", "likelihood_std": 0.5}, "network": {**NETWORK, "latent_dim": 2}},
    "vae-4": {"method": {"name": "vae", "likelihood_std": 0.5}, "network": {**NETWORK, "latent_dim": 4}},
}
COMMON: dict[str, Any] = {
    "optimizer": {"chain_lr": None}, "train": {"epochs": 1}, "evaluate": {"sizes": {"fractions": [0.25, 0.5, 1.0]}}
}  # fmt: skip


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.scale * x.flatten(1).unflatten(1, (4, -1)).mean(2)
        return parts, parts


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Auto-encoders, and a classifier."""
    folder = tmp_path_factory.mktemp("codes")
    data = write_blobs(folder / "blobs.npz", train=96, test=33)
    torch.manual_seed(0)
    for name, own in METHODS.items():
        assert fit(recipe(data, **COMMON, **own), folder / name, quiet=True)
    plain: dict[str, Any] = {"method": {"name": "plain"}, "optimizer": {"chain_lr": None}, "train": {"epochs": 1}}
    assert fit(recipe(data, **plain), folder / "plain", quiet=True)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extractor that needs no package, a wide terminal, coarse figures."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(html, "DPI", 20)

    def made(weights: Path | None, device: object) -> Extractor:
        return Extractor("Made", "0" * 64, Parts().requires_grad_(False), lambda images: images / 255)

    monkeypatch.setattr(drawing, "extractor", made)


def test_an_auto_encoder_is_evaluated_at_its_lengths(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["evaluate", str(runs / "vnd"), "--num_generated", "20", "--target", "0.02", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(row["length_rule"], row["length"]) for row in results["tidy"]][:3] == [
        ("fixed", 1),
        ("fixed", 2),
        ("fixed", 4),
    ]
    assert [row["length_rule"] for row in results["tidy"]][3:] == ["posterior", "target"]
    assert results["tidy"][-1]["target"] == 0.02
    assert results["features"]["num_generated"] == 20
    data = {"name": "npz", "train": 80, "validation": 16, "test": 33, "classes": ["0", "1", "2"], "image": [1, 8, 8]}
    assert results["data"] == data
    assert results["curves"][0].keys() >= {"step", "loss", "mse", "rate"}
    assert results["command"].endswith("--num_generated 20 --target 0.02")
    assert results["series"]["method"] == "vnd_ae"
    for row in results["rows"]:
        (line,) = [x for x in printed.splitlines() if x.startswith(row["label"]) and "fixed" in x]
        for text in (f"{row['mse']:.5f}", f"{row['negative_elbo']:.2f}", f"{row['frechet']:.2f}"):
            assert text in line
    assert "Fréchet distance (Made)" in printed
    assert "FID" not in printed
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mse"]) for row in rows] == [row["mse"] for row in results["tidy"]]
    assert "VND-AE" in (tmp_path / "report.html").read_text()


def test_codes_of_validation_images_are_said_to_be_that(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style, "pictures", lambda drawn, folder, dpi: dict.fromkeys(drawn, "<svg></svg>"))
    main(["evaluate", str(runs / "vae-2"), "--num_generated", "0", "--split", "validation", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["split"], "test" in results["data"], len(results["tidy"])) == ("validation", False, 1)
    assert "All numbers are of validation images" in (tmp_path / "report.html").read_text()


def test_evaluated_auto_encoders_are_compared(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(runs / name) for name in METHODS]
    main(["evaluate", *names, "--num_generated", "0", "--out", str(tmp_path / "all")])
    with (tmp_path / "all" / "rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5 + 1 + 1
    assert "num_generated" not in capsys.readouterr().err
    main(["report", str(tmp_path / "all"), "--out", str(tmp_path / "out"), "--keep", str(tmp_path / "kept.jsonl")])
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    lengths = [point["length"] for point in said["points"] if point["series"] == "VAE (retrained)"]
    assert lengths == [2, 4]
    assert (tmp_path / "kept.jsonl").read_text().count("\n") == 3
    words = fails(capsys, "report", tmp_path / "all", "--out", tmp_path / "other", "--sizes", "[10]")
    assert words == "vnd: report: --sizes are parameters of classifiers, and these are auto-encoders; leave it out"


def test_the_length_of_a_code_is_no_setting_of_a_curve(runs: Path) -> None:
    def settings(**own: Any) -> str:
        return settings_of(recipe(runs / "blobs.npz", **COMMON | own))

    assert settings(**METHODS["vae-2"]) == settings(**METHODS["vae-4"])
    other = {**METHODS["vae-2"], "method": {"name": "vae", "likelihood_std": 0.4}}
    assert settings(**other) != settings(**METHODS["vae-2"])


def test_flags_of_the_other_task_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, plain = runs / "vnd", runs / "plain"
    words = fails(capsys, "evaluate", run, "--inference", "[mean]")
    assert words == f"vnd: evaluate: --inference is for a classifier, and {run} is an auto-encoder; leave it out"
    words = fails(capsys, "evaluate", plain, "--target", "0.1")
    assert words == f"vnd: evaluate: --target is for an auto-encoder, and {plain} is a classifier; leave it out"
    assert "--num_generated is for an auto-encoder" in fails(capsys, "evaluate", run, plain, "--num_generated", "5")
    assert "--learned is for a classifier" in fails(capsys, "evaluate", run, "--learned", "4")
    assert "target must be greater than 0; got -1" in fails(capsys, "evaluate", run, "--target", "-1")
    assert "num_generated must be at least 2 images" in fails(capsys, "evaluate", run, "--num_generated", "1")


def test_weights_that_are_not_there_are_refused_before_the_work(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    words = fails(capsys, "evaluate", runs / "vnd", "--inception", tmp_path / "none.pth", "--out", tmp_path / "out")
    assert f"{tmp_path / 'none.pth'} is not a file" in words
    assert not (tmp_path / "out").exists()
