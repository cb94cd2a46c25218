"""`vnd export`: of tiny runs, the files that are written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vnd
from refusals import fails
from train.small import recipe, write_blobs
from vnd._export import int8
from vnd.cli import main
from vnd.report import html
from vnd.train.loop import fit

pytest.importorskip("onnx", reason="the extra [export] is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    data = write_blobs(folder / "blobs.npz", train=160, test=64)
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "write_run", lambda results, folder: folder / "report.html")  # figures take longest
        assert fit(recipe(data, train={"epochs": 6}), folder / "nested", quiet=True)
    return folder / "nested"


def test_a_run_is_exported_for_pixels(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--widths", "0.5", "--int8", "--loss", "0.5", "--images", "50", "--out", str(tmp_path)]
    main(["export", str(run), *words])
    printed = capsys.readouterr().out
    told: dict[str, Any] = json.loads((tmp_path / "export.json").read_text())["files"]
    assert set(told) == {"any.onnx", "w-0.5.onnx", "w-0.5-int8.onnx"}
    assert all(name in printed for name in told)
    blobs = np.load(run.parent / "blobs.npz")
    ready = vnd.runtime.load(tmp_path / "any.onnx")
    assert ready.classes == ["0", "1", "2"]
    assert ready.card["method"] == "bn3"
    assert ready.columns > 0
    images = blobs["x_test"][:, None] / 255
    small = vnd.runtime.load(tmp_path / "w-0.5.onnx")
    assert (small.predict(images).probs.argmax(1) == ready.predict(images, 0.5, samples=0).probs.argmax(1)).all()
    extracted = tmp_path / "cut"
    main(["extract", str(run), "--fraction", "0.5", "--out", str(extracted)])
    facts = json.loads((extracted / "extracted.json").read_text())
    normal = (torch.from_numpy(images).float() - facts["mean"][0]) / facts["std"][0]
    with torch.no_grad():
        logits = vnd.load(extracted).eval()(normal)
    np.testing.assert_allclose(small.predict(images).probs, logits.softmax(1), atol=1e-4)


def test_eight_bits_that_cost_too_much_are_refused_and_all_else_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter((1.0, 0.5, 0.9, 0.9))  # in floating point and eight bits, at two widths
    monkeypatch.setattr(int8, "accuracy", lambda *_: next(found))
    said = fails(capsys, "export", run, "--widths", "1,0.5", "--int8", "--images", "50", "--out", tmp_path)
    assert "w-1-int8.onnx: int8 must cost at most 0.01 of the accuracy; it costs 0.5000 of 1.0000" in said
    told = json.loads((tmp_path / "export.json").read_text())["files"]
    assert set(told) == {"any.onnx", "w-1.onnx", "w-0.5.onnx", "w-0.5-int8.onnx"}
    assert told["w-0.5-int8.onnx"]["widths"][0]["time_to_float"] > 0


def test_what_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "none")]
    assert "images must be at least 1; got 0" in fails(capsys, "export", run, "--images", "0", *out)
    assert "fraction must lie in (0, 1]; got 2.0" in fails(capsys, "export", run, "--widths", "2", *out)
    assert not (tmp_path / "none").exists()
