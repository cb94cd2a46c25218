"""The page without a browser: one file that asks for nothing, holds what it says, and no data of the user unasked."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import threading
import urllib.error
import urllib.request
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
import torch
from torch import nn

import refusals
import vnd
from refusals import fails
from train.small import recipe, write_blobs
from vnd._page import document, pictures
from vnd._page.classifier import _evaluated, of_run
from vnd.cli import main
from vnd.data.images import Images
from vnd.evaluation import open_run
from vnd.methods import METHODS
from vnd.models import build
from vnd.nn import Shape
from vnd.report import html
from vnd.train.loop import fit

pytest.importorskip("onnxscript", reason="the extra [export] is not installed")
MODULE = import_module("vnd._page.classifier")
OWN = 5_500_000  # bytes of a page without a network


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path, dict[str, Any]]:
    """A classifier, its page with a rule and a picture of the user's own, and what is told of it."""
    net, path = made.classifier(), tmp_path_factory.mktemp("page") / "page.html"
    examples = made.labelled(net)
    picture = torch.from_numpy(np.frombuffer(made.MARK * 2, np.uint8).reshape(1, *made.IMAGE).copy())
    told = vnd.page(
        net, path, check=examples, validation=examples, risk=0.2, samples=made.SAMPLES, classes=list("abcde"),
        images=picture, title="A <b>title</b> & more",
    )  # fmt: skip
    return net, path, told


def outside(text: str) -> str:
    """A page without the runtime and the networks."""
    return re.sub(r'(<script type="text/plain" id="[^"]+">)[^<]*', r"\1", text)


def test_a_page_asks_for_nothing(both: tuple[nn.Module, Path, Any]) -> None:
    text = outside(both[1].read_text())
    assert not re.search(r"https?://(?!(www\.)?w3\.org)", text)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:,|#)""", text)
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon", text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert not re.search(r"https?:|\*|'self'|connect-src", policy[1])
    planted = text.replace("</main>", '<img src="picture.png"></main>')
    assert re.search(r"""(src|href)\s*=\s*["'](?!data:,|#)""", planted)


def test_its_pieces_are_the_files_of_the_package(both: tuple[nn.Module, Path, Any], tmp_path: Path) -> None:
    known = json.loads((document.RUNTIME / "runtime.json").read_text())
    found = made.files_of(both[1])
    assert hashlib.sha256(found["runtime-wasm"]).hexdigest() == known["sha256"][document.WASM]
    module = gzip.decompress((document.RUNTIME / f"{document.MODULE}.gz").read_bytes())
    assert hashlib.sha256(module).hexdigest() == known["sha256"][document.MODULE]
    assert found["runtime-module"] == b"".join(x for x in module.splitlines(True) if b"sourceMappingURL" not in x)
    for name in document.MODULES:
        assert (document.SITE / f"{name}.mjs").read_text() in both[1].read_text()
    assert {path.stem for path in document.SITE.glob("*.mjs")} == {*document.MODULES}
    assert (made.networks_of(both[1], tmp_path) / "network.onnx").stat().st_size == both[2]["networks"]["network.onnx"]


def test_a_page_is_small(both: tuple[nn.Module, Path, Any]) -> None:
    _, path, told = both
    assert told["bytes"] == path.stat().st_size <= OWN + 1.4 * sum(told["networks"].values())


def test_its_widths_are_those_of_the_file_and_fall_with_it(both: tuple[nn.Module, Path, Any], tmp_path: Path) -> None:
    net, path, told = both
    facts = made.facts_of(path)
    ready = vnd.runtime.load(made.networks_of(path, tmp_path) / "network.onnx")
    assert facts["widths"] == told["widths"]
    assert [row["parameters"] for row in facts["widths"]] == sorted(row["parameters"] for row in ready.widths)
    assert [layer["channels"] for layer in facts["layers"]] == [12, 16]
    assert [row["kept"] for row in facts["widths"]] == [[3, 4], [6, 8], [12, 16]]
    x, y = made.labelled(net)
    for row in facts["widths"]:
        assert ready.widths[row["number"]]["shape"] == row["shape"]
        answer = ready.predict(x.numpy(), row["shape"], made.SAMPLES, seed=0)
        assert row["accuracy"] == (answer.probs.argmax(1) == y.numpy()).mean()
        rule = vnd.runtime.selective(
            ready, x.numpy(), y.numpy(), risk=0.2, width=row["shape"], samples=made.SAMPLES, seed=0
        )
        assert (row["threshold"], row["coverage"]) == (rule.threshold if rule.coverage else None, rule.coverage)
    assert any(row["threshold"] is not None for row in facts["widths"])


def test_torch_and_the_file_in_a_page_draw_alike(both: tuple[nn.Module, Path, Any], tmp_path: Path) -> None:
    for stop in made.expected(both[1], tmp_path, both[0]):
        for told in stop["seeds"]:
            np.testing.assert_allclose(told["draws"], told["torch"], atol=5e-5)
            np.testing.assert_allclose(np.mean(told["draws"], 0), told["probs"], atol=1e-6)
        assert np.abs(np.subtract(*(told["probs"] for told in stop["seeds"]))).max() > 1e-4  # other seeds, other draws


def test_what_is_written_into_a_page_is_text(both: tuple[nn.Module, Path, Any]) -> None:
    text = both[1].read_text()
    assert "<title>A &lt;b&gt;title&lt;/b&gt; &amp; more" in text
    assert made.facts_of(both[1])["title"] == "A <b>title</b> & more"
    assert text.count("</script>") == text.count("<script")
    told = document.document("t", {"classes": ["</script><script>alert(1)</script>", "<!--modules-->"]}, {})
    assert "alert(1)</script>" not in told
    assert told.count("data-module") == text.count("data-module")


def holds(path: Path, mark: bytes) -> bool:
    """Tell if a page holds some bytes: as they are, in its pictures, in its networks."""
    facts = made.facts_of(path)
    pixels = [base64.b64decode(picture["pixels"]) for picture in facts["pictures"]]
    return any(mark in part for part in (path.read_bytes(), *pixels, *made.files_of(path).values()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images of the user's own, each of which begins with a mark."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_blobs(folder / "blobs.npz", train=160, test=64)
    arrays = dict(np.load(data))
    for name in ("x_train", "x_test"):
        arrays[name].reshape(len(arrays[name]), -1)[:, : len(made.MARK)] = np.frombuffer(made.MARK, np.uint8)
    np.savez(data, **arrays)
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "write_run", lambda results, folder: folder / "report.html")  # figures take longest
        assert fit(recipe(data, train={"epochs": 2}), folder / "nested", quiet=True)
    return folder / "nested"


def test_a_page_of_a_run_holds_no_image_of_the_user_unless_asked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["page", str(run), "--samples", "3"])
    assert str(run / "page.html") in capsys.readouterr().out
    assert not holds(run / "page.html", made.MARK)
    facts = made.facts_of(run / "page.html")
    assert {picture["kind"] for picture in facts["pictures"]} == {"unlike"}
    sizes = open_run(run).method.sizes(open_run(run).model, open_run(run).recipe.evaluate.sizes)
    assert len(facts["widths"]) >= 2
    assert len(facts["widths"]) <= len(sizes)
    assert facts["widths"][-1]["kept"] == [layer["channels"] for layer in facts["layers"]]  # the whole network
    assert facts["rule"]["images"] == 16  # those of validation
    assert facts["accuracy_of"] == "64 test images"
    main(["page", str(run), "--samples", "3", "--images", "--out", str(tmp_path / "shown.html")])
    assert holds(tmp_path / "shown.html", made.MARK)
    shown = [picture for picture in made.facts_of(tmp_path / "shown.html")["pictures"] if picture["kind"] == "given"]
    assert len(shown) == 10


def test_the_pictures_of_a_page_may_be_shown_to_anyone() -> None:
    found, whose = pictures.of_training("fashion", (3, 32, 32))
    assert [picture["label"] for picture in found] == [*vnd.data.load("fashion", "test").classes]
    assert "Fashion-MNIST" in whose[0]
    assert "MIT" in whose[0]
    assert all(picture["pixels"].shape == (3, 32, 32) for picture in found)
    assert pictures.of_training("cifar10", (3, 32, 32)) == ([], [])
    others, credits = pictures.unlike("fashion", (1, 20, 28))
    assert {picture["kind"] for picture in others} == {"unlike"}
    assert all(picture["pixels"].shape == (1, 20, 28) for picture in others)
    assert not any("Fashion" in line for line in credits)
    assert any("CC BY 4.0" in line for line in credits)
    assert any("Fashion" in line for line in pictures.unlike("cifar10", (3, 32, 32))[1])
    assert not any(picture["name"].startswith("digit") for picture in pictures.unlike("digits", (1, 8, 8))[0])
    assert {*pictures.CREDITS} == {name for name, data in vnd.data.registry.DATASETS.items() if data.embedded}


@pytest.mark.parametrize(("kind", "make"), [("codes", made.auto_encoder), ("masks", made.segmenter)])
def test_codes_and_masks_have_pages(kind: str, make: Any, tmp_path: Path) -> None:
    net, path = make(), tmp_path / "page.html"
    told = vnd.page(net, path, samples=made.SAMPLES)
    facts = made.facts_of(path)
    assert told["kind"] == facts["kind"] == kind
    assert path.stat().st_size <= OWN + 1.4 * sum(told["networks"].values())
    assert facts["pictures"]
    assert facts["ordered"]
    stops = made.expected(path, tmp_path, net if kind == "codes" else None)
    assert len(stops) == facts["length"]
    if kind == "codes":
        for stop in stops:
            np.testing.assert_allclose(stop["seeds"][0], stop["torch"], atol=1e-5)
    assert not np.allclose(stops[0]["seeds"][0], stops[-1]["seeds"][0])


def test_a_code_in_no_order_is_not_said_to_have_one(tmp_path: Path) -> None:
    plain = build("dense_autoencoder", latent_dim=5, image_size=8, in_channels=1, hidden=[24])
    vnd.page(METHODS["vae"]().build(plain, torch.zeros(2, *made.IMAGE)), tmp_path / "page.html")
    assert not made.facts_of(tmp_path / "page.html")["ordered"]


def own_code() -> nn.Module:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    decoder = nn.Sequential(nn.Linear(3, 64), nn.Unflatten(1, made.IMAGE))
    return vnd.OrderedCode(encoder, decoder, torch.rand(4, *made.IMAGE), latent_dim=3, likelihood="bernoulli_logits")


def test_a_code_of_ones_own_has_a_page(tmp_path: Path) -> None:
    net = own_code()
    refusals.refused(lambda: vnd.page(net, tmp_path / "page.html"), "example_input must be a batch of images")
    vnd.page(net, tmp_path / "page.html", example_input=torch.zeros(1, *made.IMAGE))
    facts = made.facts_of(tmp_path / "page.html")
    assert (facts["length"], facts["logits"], facts["mean"]) == (3, True, None)
    for stop in made.expected(tmp_path / "page.html", tmp_path, net.network):
        np.testing.assert_allclose(stop["seeds"][0], stop["torch"], atol=1e-5)


def test_a_plain_network_has_a_page_of_one_size(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    told = vnd.page(plain, tmp_path / "page.html", example_input=torch.zeros(1, *made.IMAGE))
    assert [(row["parameters"], row["kept"]) for row in told["widths"]] == [(195, [])]
    facts = made.facts_of(tmp_path / "page.html")
    assert (facts["samples"], facts["rule"], facts["classes"]) == (0, None, ["0", "1", "2"])


def test_a_page_is_served_to_this_machine(both: tuple[nn.Module, Path, Any]) -> None:
    server = import_module("vnd.cli.page").server(both[1], 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{address}/") as answer:
            assert answer.read() == both[1].read_bytes()
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{address}/etc/passwd")
        caught.value.close()
        refusals.refused(
            lambda: import_module("vnd.cli.page").server(both[1], server.server_port), "give another --port"
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def small(**options: Any) -> Any:
    return lambda: vnd.page(made.classifier(), "unwritten.html", **options)


X, Y = torch.rand(4, *made.IMAGE), torch.tensor([0, 1, 2, 3])
REFUSED: refusals.Refusals = {
    "suffix": (lambda: vnd.page(made.classifier(), "page.pdf"), "path must end in .html; got page.pdf"),
    "samples": (small(samples=1), "samples must be a whole number in 2 … 64; got 1"),
    "risk": (small(risk=2), "risk must lie in [0, 1]; got 2"),
    "no widths": (small(widths=[]), "widths must be a list of widths, one or more; got []"),
    "check": (small(check=X), "check must be (x, y)"),
    "labels": (small(validation=(X, Y[:2])), "validation must have one class for each image"),
    "classes": (small(widths=(1.0,), classes=["a"]), "classes must be the 5 of the network's outputs; got 1"),
    "image size": (small(widths=(1.0,), images=torch.rand(1, 1, 9, 9)), ("images must be uint8", "(1, 1, 9, 9)")),
    "image values": (small(widths=(1.0,), images=torch.full((1, *made.IMAGE), 7.0)), "lie between 0 and 1; got 7 … 7"),
    "images of a network": (
        small(widths=(1.0,), images=True),
        "must be pictures to show, (N, C, H, W), or of a run True; got True",
    ),
    "no image": (
        lambda: vnd.page(nn.Linear(4, 3), "unwritten.html", example_input=torch.zeros(1, 4)),
        "must take one image, (batch, 1 or 3, height, width)",
    ),
    "no classes": (
        lambda: vnd.page(nn.Conv2d(1, 3, 3), "unwritten.html", example_input=torch.zeros(1, *made.IMAGE)),
        "must give scores of classes",
    ),
    "a run's own": (lambda: vnd.page("nowhere", "unwritten.html", widths=[1.0]), "a run has its own widths"),
}


@refusals.table(REFUSED)
def test_what_is_refused(call: Any, words: refusals.Words) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refusals.refused(call, words)
    assert not Path("unwritten.html").exists()


def test_the_command_refuses_in_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "port must lie in 0 … 65535; got 70000" in fails(capsys, "page", run, "--port", "70000")
    assert "path must end in .html" in fails(capsys, "page", run, "--out", "page.txt")


def test_an_accuracy_is_that_of_the_evaluation_of_the_same_network(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_run(run)
    shapes = [dict(size.width) for size in opened.method.sizes(opened.model, opened.recipe.evaluate.sizes)]
    rows = [{"shape": shape, "accuracy": 0.25} for shape in shapes]
    results = {"checkpoint": opened.checkpoint, "samples": 3, "rows": rows}
    monkeypatch.setattr(MODULE, "read", lambda path: results)
    file, network = run / "results.json", (run / opened.checkpoint / "network.json").stat().st_mtime
    file.touch()
    try:
        os.utime(file, (network + 9, network + 9))
        assert set(_evaluated(opened, 3).values()) == {0.25}
        assert {Shape(shape) for shape in shapes} == {*_evaluated(opened, 3)}
        assert _evaluated(opened, 6) == {}  # of other draws
        monkeypatch.setitem(results, "checkpoint", "another")
        assert _evaluated(opened, 3) == {}
        monkeypatch.setitem(results, "checkpoint", opened.checkpoint)
        os.utime(file, (network - 9, network - 9))  # of the network before it was trained on
        assert _evaluated(opened, 3) == {}
    finally:
        file.unlink()


def test_a_run_without_classes_to_measure_on_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_run(run)
    test = Images(opened.test().pixels)
    monkeypatch.setattr(type(opened), "test", lambda self: test)
    refusals.refused(lambda: of_run(opened, 0.05, 3, lambda words: None), "no classes to measure on")
