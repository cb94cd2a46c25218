"""The runtime gives what `vnd.predict` gives, by NumPy and onnxruntime alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_export import WIDTHS, drawn, small
from torch import nn

import refusals
import vnd
from vnd import runtime
from vnd.nn.predict import _Reading, _summarize

pytest.importorskip("onnx", reason="the extra [export] is not installed")

# Of a process that cannot import torch: it answers what `data` holds and writes the answers down.
WITHOUT_TORCH = """
import json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "scipy"):
            raise ImportError(f"{name} is hidden")

sys.meta_path.insert(0, Hidden())
import numpy as np
import vnd

folder = sys.argv[1]
data = np.load(f"{folder}/data.npz")
x, y = data["x"], data["y"]
ready = vnd.runtime.load(f"{folder}/any.onnx")
found = {}
for fraction in (1.0, 0.5):
    for name, given in (("means", {"samples": 0}), ("draws", {"noise": data["noise"]})):
        p = ready.predict(x, fraction, **given)
        for key in ("probs", "entropy", "mutual_information", "variance"):
            found[f"{fraction} {name} {key}"] = getattr(p, key)
        assert p.samples == (1 if name == "means" else len(data["noise"]))
rule = vnd.runtime.selective(ready, x, y, risk=0.3, samples=0)
cascade = vnd.runtime.cascade(ready, x, (0.5, 1.0), threshold=float(data["limit"]))
found |= {"accepted": rule.accept(ready.predict(x, samples=0)), "coverage": rule.coverage, "risk": rule.risk}
found |= {f"cascade {key}": getattr(cascade, key) for key in ("probs", "uncertainty", "step", "macs")}
a, b, c = (ready.predict(x, 0.5, seed=seed).probs for seed in (3, 3, 4))
assert (a == b).all() and (a != c).any()
assert not {name.partition(".")[0] for name in sys.modules} & {"torch", "vnd.nn"}
np.savez(f"{folder}/found.npz", **found)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    net, folder = small(), tmp_path_factory.mktemp("runtime")
    vnd.export(net, folder / "any.onnx", widths=WIDTHS, posterior=True)
    return folder, net


@pytest.fixture(scope="module")
def ready(folder: tuple[Path, nn.Module]) -> runtime.Network:
    return runtime.load(folder[0] / "any.onnx")


def test_without_torch_the_answers_are_those_of_torch(folder: tuple[Path, nn.Module], ready: runtime.Network) -> None:
    place, net = folder
    torch.manual_seed(1)
    x = torch.rand(200, 1, 6, 6) * 2
    with torch.no_grad():
        y = torch.where(torch.rand(200) < 0.6, net(x).argmax(1), torch.randint(5, (200,)))
    noise = torch.randn(4, 200, ready.columns)
    limit = float(vnd.predict(net, x, 0.5, samples=0).entropy.median())
    np.savez(place / "data.npz", x=x.numpy(), y=y.numpy(), noise=noise.numpy(), limit=limit)
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, place], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = np.load(place / "found.npz")
    for fraction in WIDTHS:
        draws = torch.stack([drawn(net, x, fraction, one) for one in noise]).softmax(-1)
        want = {"means": vnd.predict(net, x, fraction, samples=0), "draws": _summarize(draws, "softmax", 4)}
        for name, prediction in want.items():
            for key in ("probs", "entropy", "mutual_information", "variance"):
                got = found[f"{fraction} {name} {key}"]
                np.testing.assert_allclose(got, getattr(prediction, key), atol=1e-5, err_msg=f"{fraction} {name} {key}")
    rule = vnd.selective(net, x, y, risk=0.3, samples=0, width=1.0)
    assert 0 < rule.coverage < 1
    assert (found["coverage"], found["risk"]) == pytest.approx((rule.coverage, rule.risk))
    cascade = vnd.cascade(net, x, (0.5, 1.0), threshold=limit)
    assert 0 < cascade.step.sum() < 200
    same = found["cascade step"] == cascade.step.numpy()
    assert same.mean() > 0.98  # but for an uncertainty at the threshold itself
    np.testing.assert_allclose(found["cascade probs"][same], cascade.probs[same], atol=1e-5)
    assert (found["cascade macs"][same] == cascade.macs.numpy()[same]).all()


@pytest.mark.parametrize("link", ["softmax", "sigmoid", "identity", "dirichlet"])
@pytest.mark.parametrize("shape", [(6, 9, 4), (6, 9, 4, 3, 2)])
def test_what_is_averaged_is_what_torch_averages(link: Any, shape: tuple[int, ...]) -> None:
    outputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 4
    parts = torch.stack([_Reading(link)(out, 1, 9)[0] for out in outputs])
    want, got = (
        _summarize(parts, link, 6),
        runtime._summarize(runtime._linked(outputs.numpy(), link, None), link, 6, None),
    )
    for key in ("probs", "entropy", "mutual_information", "variance"):
        expected, found = getattr(want, key), getattr(got, key)
        assert (expected is None) == (found is None)
        if expected is not None:
            assert expected.isfinite().all()
            np.testing.assert_allclose(found, expected, atol=2e-5, err_msg=key)


def test_draws_do_not_depend_on_how_they_are_put_together(ready: runtime.Network) -> None:
    x = np.random.default_rng(0).random((7, 1, 6, 6), np.float32)
    noise = np.random.default_rng(1).standard_normal((5, 7, ready.columns), np.float32)
    whole = ready.predict(x, 0.5, noise=noise)
    for rows in (1, 2, 3, 20):
        part = ready.predict(x, 0.5, noise=noise, rows=rows)
        np.testing.assert_allclose(part.probs, whole.probs, atol=1e-6)
        np.testing.assert_allclose(part.variance, whole.variance, atol=1e-6)
    assert ready.predict(x, 0.5, samples=3, seed=0).samples == 3
    assert ready.predict(x).probs.shape == (7, 5)  # the widest
    assert ready.predict(x[:0], samples=0).probs.shape == (0, 5)
    np.testing.assert_array_equal(
        ready.predict(x, ready.widths[1]["shape"], samples=0).probs, ready.predict(x, 0.5, samples=0).probs
    )


def test_the_runtime_loads_no_torch() -> None:
    words = "import vnd.runtime, sys; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert ran.stdout == "False\n", ran.stderr


X = np.zeros((2, 1, 6, 6), np.float32)
REFUSED = {
    "width": (lambda net: net.predict(X, 0.3), "width must be one of the file's: 1.0, 0.5; got 0.3"),
    "samples": (lambda net: net.predict(X, samples=-1), "samples must be a whole number, 0"),
    "shape": (lambda net: net.predict(X[:, :, :5]), "image must have shape (batch, 1, 6, 6); got (2, 1, 5, 6)"),
    "words": (lambda net: net.predict(np.array(["a"])), "image must be of float32"),
    "names": (
        lambda net: net.predict({"picture": X}),
        "x must be the inputs image; got a dict with the keys 'picture'",
    ),
    "noise": (lambda net: net.predict(X, noise=np.zeros((2, 3))), "noise must have shape (samples, 2, "),
    "link": (lambda net: net.predict(X, link="sofmax"), "link must be one of softmax"),
    "dim": (lambda net: net.predict(X, dim=0), "dim must be a dimension of the output"),
    "labels": (lambda net: runtime.selective(net, X, np.zeros(3, int)), "a class for each of 2 examples; got 3"),
    "score": (lambda net: runtime.selective(net, X, np.zeros(2, int), score="sure"), "score must be 'entropy'"),
    "falling": (lambda net: runtime.cascade(net, X, (1.0, 0.5), threshold=1.0), "each costlier than the one before"),
    "thresholds": (lambda net: runtime.cascade(net, X, WIDTHS[::-1], threshold=[1.0, 2.0]), "one a step but the last"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, ready: runtime.Network) -> None:
    call, words = REFUSED[name]
    refusals.refused(lambda: call(ready), words)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no network")
    refusals.refused(lambda: runtime.load(tmp_path / "text.onnx"), "is no ONNX file")
    refusals.refused(lambda: runtime.load(tmp_path / "none.onnx"), "is not there", FileNotFoundError)
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "other.onnx").write_bytes(model.SerializeToString())
    refusals.refused(lambda: runtime.load(tmp_path / "other.onnx"), "does not say what vnd.export tells")
