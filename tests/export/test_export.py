"""Exported files answer as torch does, at every width and for every noise, and hold nothing of the user's data."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structures import make
from torch import Tensor, nn

import refusals
import vnd
from vnd._export import checks, graph, int8, onnx
from vnd._export.graph import Inputs, Width, find_noise, reference
from vnd.methods.segmenter import normal_of
from vnd.models import build
from vnd.nn.state import state_of

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="the extra [export] is not installed")
ort = pytest.importorskip("onnxruntime")

WIDTHS = (1.0, 0.5)
MARK = np.frombuffer(b"a picture of my own, nobody else", np.float32)


def small(bayesian: bool = True, seed: int = 0, **options: Any) -> nn.Module:
    """A nested network of an image, with BatchNorm and its statistics at all widths."""
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    plain = nn.Sequential(*layers, nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 5))
    for layer in (plain[5], plain[7]):
        nn.init.normal_(layer.weight, std=0.5)  # so that it answers differently
    net = vnd.to_nested(plain, torch.rand(2, 1, 6, 6), num_groups=4, bayesian=bayesian, **options)
    x = torch.rand(64, 1, 6, 6) * 2
    vnd.recalibrate(net, [x], widths=WIDTHS, samples="both" if bayesian else False)
    return net.eval()


def tensors_of(path: Path, *given: Tensor) -> Tensor:
    """The output of an ONNX file for inputs in its order."""
    opened = ort.InferenceSession(path)
    named = {value.name: x.numpy() for value, x in zip(opened.get_inputs(), given, strict=True)}
    return torch.from_numpy(opened.run(None, named)[0])


def drawn(net: nn.Module, x: Tensor, fraction: float, noise: Tensor | None) -> Tensor:
    """What the masked network draws from noise, or its means."""
    inputs = Inputs.of(net, (x,), {})
    width = Width(fraction, vnd.shape(net, fraction=fraction), fraction)
    return reference(net, width, inputs, [x], sites=None if noise is None else find_noise(net, inputs), noise=noise)


def agree(got: Tensor, want: Tensor) -> bool:
    """Tell if outputs are equal but for rounding, and so are the answers."""
    assert got.isfinite().all()
    assert want.isfinite().all()
    near = (got - want).abs().max() <= 1e-5 * want.abs().max() + 1e-5
    return bool(near) and bool((got.argmax(1) == want.argmax(1)).all())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path, dict[str, Any]]:
    """A network, its file of all widths that draws, and what is known of that."""
    net, path = small(), tmp_path_factory.mktemp("export") / "any.onnx"
    x = torch.rand(300, 1, 6, 6)
    with torch.no_grad():
        entry = vnd.export(net, path, widths=WIDTHS, posterior=True, check=(x, net(x).argmax(1)), classes=list("abcde"))
    return net, path, entry


def test_one_file_answers_as_torch_at_every_width_and_for_every_noise(both: tuple[nn.Module, Path, Any]) -> None:
    net, path, entry = both
    x = torch.rand(1000, 1, 6, 6)
    columns = entry["inputs"]["noise"][1]
    assert entry["form"] == "sliced"
    for number, fraction in enumerate(WIDTHS):
        noise = torch.randn(1000, find_columns(path))
        for given in (noise, torch.zeros(1000, 0)):
            got = tensors_of(path, x, torch.tensor(number), given)
            assert agree(got, drawn(net, x, fraction, given if given.numel() else None))
        with torch.no_grad(), vnd.width(net, fraction):
            assert agree(tensors_of(path, x, torch.tensor(number), torch.zeros(1000, 0)), net(x))
    assert columns == "columns"  # as many, or none
    assert not agree(tensors_of(path, x, torch.tensor(0), noise), drawn(net, x, 1.0, noise.flip(0)))


def find_columns(path: Path) -> int:
    told = ort.InferenceSession(path).get_modelmeta().custom_metadata_map
    return int(told["noise"])


def test_a_width_that_the_file_does_not_have_is_refused(both: tuple[nn.Module, Path, Any]) -> None:
    _, path, _ = both
    with pytest.raises(Exception, match=r"out of (data )?bounds"):
        tensors_of(path, torch.rand(1, 1, 6, 6), torch.tensor(2), torch.zeros(1, 0))


def test_files_tell_what_they_are(both: tuple[nn.Module, Path, dict[str, Any]]) -> None:
    net, path, entry = both
    known = json.loads((path.parent / "export.json").read_text())["files"][path.name]
    assert known == entry
    assert known["bytes"] == path.stat().st_size
    told = ort.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == list("abcde")
    rows = json.loads(told["widths"])
    for row, fraction in zip(rows, WIDTHS, strict=True):
        cost = vnd.profile(net, fraction)
        assert (row["fraction"], row["parameters"], row["macs"]) == (fraction, cost.parameters, cost.macs)
        assert row["shape"] == dict(vnd.shape(net, fraction=fraction))
    assert known["widths"][0]["accuracy"] == 1.0 > known["widths"][1]["accuracy"] > 0
    assert known["weights"]["sliced"] > 0
    assert (
        known["weights"]["copied"] == 6
    )  # mean and variance, of two widths, drawn and not; those of the widest are there


@pytest.mark.parametrize(
    ("name", "form"), [("residual, stream", "sliced"), ("grouped", "gathered"), ("inverted", ""), ("transformer", "")]
)
def test_user_networks_answer_as_torch(name: str, form: str, tmp_path: Path) -> None:
    _, net, example = make(name, torch.float32)
    x = example.repeat(20, *[1] * (example.dim() - 1))
    x = x + 0.1 * torch.randn_like(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an only width
        vnd.recalibrate(net, [x], widths=WIDTHS) if any(isinstance(m, nn.BatchNorm2d) for m in net.modules()) else None
        entry = vnd.export(net, tmp_path / "any.onnx", widths=WIDTHS)
        if form == "gathered":  # and of widths of which none is full
            part = vnd.export(net, tmp_path / "part.onnx", widths=(0.5, 0.25))
            assert part["weights"]["gathered"] > part["weights"]["copied"] == 0
    assert entry["form"] == "sliced"
    assert not form or entry["weights"][form] > 0
    for number, fraction in enumerate(WIDTHS):
        with torch.no_grad(), vnd.width(net, fraction):
            assert agree(tensors_of(tmp_path / "any.onnx", x, torch.tensor(number)), net(x))


class Named(nn.Module):
    """A network of several inputs, whose names and parameters have those that files have for other things."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Parameter(torch.rand(4))
        self.inner, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, image: Tensor, noise: Tensor, *, scale: float = 1.0) -> dict[str, Tensor]:
        hidden = self.inner(image * self.image).relu() * scale
        return {"logits": self.last(hidden) + noise[:, :1]}


def test_inputs_and_parameters_may_have_any_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = {"image": torch.rand(3, 4).double(), "noise": torch.rand(3, 2).double(), "scale": 0.5}
    net = vnd.to_nested(Named().double(), given, num_groups=4).eval()
    entry = vnd.export(net, tmp_path / "any.onnx", widths=WIDTHS)
    assert [*entry["inputs"]] == ["image", "noise_input", "width"]
    ready = vnd.runtime.load(tmp_path / "any.onnx")
    for fraction in WIDTHS:
        want = vnd.predict(net, given, fraction, samples=0)
        got = ready.predict((given["image"].numpy(), given["noise"].numpy()), fraction)
        np.testing.assert_allclose(got.probs, want.probs, atol=1e-5)


class Alike(nn.Module):
    """A network whose inputs would have one name, also once it is not one that files have for other things."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, width: Tensor, width_input: Tensor, more: dict[str, Tensor], more_a: Tensor) -> Tensor:
        return self.last(self.inner(width).relu() * width_input + more["a"]) * more_a


def test_inputs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, two, three = (torch.rand(5, 1) for _ in range(3))
    given = torch.rand(5, 4), one, {"a": two}, three
    net = vnd.to_nested(Alike(), given, num_groups=4).eval()
    vnd.export(net, tmp_path / "any.onnx", widths=WIDTHS, posterior=True)
    ready = vnd.runtime.load(tmp_path / "any.onnx")
    assert len({*ready.inputs, "width", "noise"}) == 6
    tensors = tuple(x.numpy() for x in (given[0], one, two, three))
    for fraction in WIDTHS:
        want = vnd.predict(net, given, fraction, samples=0)
        np.testing.assert_allclose(ready.predict(tensors, fraction, samples=0).probs, want.probs, atol=1e-5)


@pytest.mark.parametrize("posterior", [False, True], ids=["means", "draws"])
def test_volumes_are_convolved_without_a_bias(posterior: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Conv3d(1, 8, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 3)
    x = torch.rand(7, 1, 4, 5, 6)
    net = vnd.to_nested(nn.Sequential(*layers), x[:2], num_groups=4).eval()
    for options in ({"widths": WIDTHS}, {"width": 0.5}):
        vnd.export(net, tmp_path / "a.onnx", posterior=posterior, **options)
        got = vnd.runtime.load(tmp_path / "a.onnx").predict(x.numpy(), 0.5, samples=0)
        np.testing.assert_allclose(got.probs, vnd.predict(net, x, 0.5, samples=0).probs, atol=1e-5)


class Scalars(nn.Module):
    """A network with an input that is a number, and one among its constants: that of the token it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor, temperature: Tensor) -> Tensor:
        return self.last(self.norm(self.inner(x))[:, 0]) / temperature


@pytest.mark.parametrize("options", [{"width": 0.5}, {"widths": (0.5, 1.0)}], ids=str)
def test_numbers_stay_numbers(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = torch.rand(5, 2, 4), torch.tensor(0.7)
    net = vnd.to_nested(Scalars(), given, num_groups=4).eval()
    assert vnd.export(net, tmp_path / "a.onnx", **options)["inputs"]["temperature"] == []
    got = vnd.runtime.load(tmp_path / "a.onnx").predict(tuple(x.numpy() for x in given), 0.5)
    np.testing.assert_allclose(got.probs, vnd.predict(net, given, 0.5, samples=0).probs, atol=1e-5)


def test_what_cannot_be_traced_is_refused_in_one_line(tmp_path: Path) -> None:
    class Branching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if bool(x.sum() > 0) else -x)

    net, x = Branching(nn.Linear(4, 3)), torch.ones(2, 4)
    refusals.refused(lambda: vnd.export(net, tmp_path / "a.onnx", example_input=x), "must be able to trace the network")
    assert not list(tmp_path.iterdir())


def test_a_network_that_was_cut_out_keeps_its_posterior(tmp_path: Path) -> None:
    net, x = small(), torch.rand(40, 1, 6, 6)
    entry = vnd.export(vnd.extract(net, 0.5, keep="posterior"), tmp_path / "cut.onnx", posterior=True)
    assert entry["form"] == "extracted"
    got = vnd.runtime.load(tmp_path / "cut.onnx").predict(x.numpy(), samples=400, seed=0)
    want = vnd.predict(net, x, 0.5, samples=400, seed=0)
    assert np.abs(got.probs - want.probs.numpy()).max() < 0.05
    assert 0.7 < got.mutual_information.mean() / want.mutual_information.mean().item() < 1.4


def test_one_width_is_a_small_file_of_any_shape_and_torch_program(tmp_path: Path) -> None:
    net, x = small(), torch.rand(40, 1, 6, 6)
    shape = vnd.Shape({unit: 1 + number % 2 for number, unit in enumerate(vnd.shape(net, fraction=1.0))})
    with pytest.warns(UserWarning, match="no statistics for this width"):
        narrow = vnd.export(net, tmp_path / "narrow.onnx", width=shape)
    whole = vnd.export(net, tmp_path / "whole.pt2", width=1.0, posterior=True)
    assert narrow["form"] == whole["form"] == "extracted"
    assert narrow["bytes"] < sum(p.numel() * 4 for p in net.parameters())
    with torch.no_grad(), pytest.warns(UserWarning, match="no statistics"), vnd.width(net, shape):
        assert agree(tensors_of(tmp_path / "narrow.onnx", x), net(x))
    noise = torch.randn(40, whole["inputs"]["noise"][1])
    program = torch.export.load(tmp_path / "whole.pt2").module()
    assert agree(program(x, noise), drawn(net, x, 1.0, noise))
    known = json.loads((tmp_path / "export.json").read_text())["files"]
    assert set(known) == {"narrow.onnx", "whole.pt2"}


def test_what_cannot_be_cut_is_masked_and_says_why(tmp_path: Path) -> None:
    net, x = small(bayesian=False, placement="before_norm"), torch.rand(50, 1, 6, 6)
    for name in ("any.onnx", "any.pt2"):
        entry = vnd.export(net, tmp_path / name, widths=WIDTHS)
        assert entry["form"] == "masked"
        assert entry["because"]
    assert "no exact smaller form" in entry["because"]
    program = torch.export.load(tmp_path / "any.pt2").module()
    for number, fraction in enumerate(WIDTHS):
        with torch.no_grad(), vnd.width(net, fraction):
            want = net(x)
        assert agree(tensors_of(tmp_path / "any.onnx", x, torch.tensor(number)), want)
        assert agree(program(x, torch.tensor(number)), want)


def test_noise_of_the_weights_is_one_for_all_examples(tmp_path: Path) -> None:
    net, x = small(estimator="weight"), torch.rand(30, 1, 6, 6)
    entry = vnd.export(net, tmp_path / "any.onnx", widths=WIDTHS, posterior=True)
    assert entry["inputs"]["noise"] == [1, "columns"]
    ready, noise = vnd.runtime.load(tmp_path / "any.onnx"), torch.randn(3, 1, find_columns(tmp_path / "any.onnx"))
    for fraction in WIDTHS:
        want = torch.stack([drawn(net, x, fraction, one) for one in noise]).softmax(-1).mean(0)
        np.testing.assert_allclose(ready.predict(x.numpy(), fraction, noise=noise.numpy()).probs, want, atol=1e-5)
        mean = vnd.predict(net, x, fraction, samples=0).probs
        np.testing.assert_allclose(ready.predict(x.numpy(), fraction, samples=0).probs, mean, atol=1e-5)
    assert ready.predict(x.numpy(), 0.5, samples=5, seed=0).samples == 5


def test_draws_alone_where_the_means_have_no_statistics(tmp_path: Path) -> None:
    net = small()
    state_of(net).statistics.clear()
    vnd.recalibrate(net, [torch.rand(64, 1, 6, 6)], widths=WIDTHS, samples=True)
    entry = vnd.export(net, tmp_path / "draws.onnx", width=0.5, posterior=True)
    assert isinstance(entry["inputs"]["noise"][1], int)
    with pytest.raises(ValueError, match="the file has draws alone"):
        vnd.runtime.load(tmp_path / "draws.onnx").predict(np.zeros((1, 1, 6, 6)), samples=0)


# -- planted faults ----------------------------------------------------------------------------------------------------


def _other_channels(patch: pytest.MonkeyPatch) -> None:
    found = onnx._lines
    patch.setattr(onnx, "_lines", lambda *given: [line[::-1].copy() for line in found(*given) or []] or None)


def _other_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.Tensor, "narrow", lambda x, dim, start, size: torch.narrow(x, dim, x.size(dim) - size, size))


def _other_statistics(patch: pytest.MonkeyPatch) -> None:
    cut = graph.slice_network

    def wide(net: nn.Module, shape: Any, keep: Any = "mean") -> nn.Module:
        small = cut(net, shape, keep)
        for module in small.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean += 0.3
        return small

    patch.setattr(graph, "slice_network", wide)


@pytest.mark.parametrize("fault", [_other_channels, _other_noise, _other_statistics], ids=lambda f: f.__name__[1:])
def test_a_file_that_is_wrong_is_not_written(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = small()
    fault(monkeypatch)
    with pytest.raises(ValueError, match="does not agree with torch at width"):
        vnd.export(net, tmp_path / "wrong.onnx", widths=(1.0, 0.5), posterior=fault is _other_noise)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("planted", [False, True])
def test_a_file_holds_no_byte_of_the_users_data(planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(np.resize(MARK, (4, 1, 8, 8)).copy())
    plain = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    net = vnd.to_nested(plain, x, num_groups=4).eval()
    if planted:
        monkeypatch.setattr(Inputs, "zeros", lambda inputs, batch: inputs.examples)
    vnd.export(net, tmp_path / "one.pt2", width=0.5)
    assert (MARK.tobytes() in (tmp_path / "one.pt2").read_bytes()) == planted
    if not planted:
        vnd.export(net, tmp_path / "any.onnx", widths=(1.0, 0.5), example_input=x, check=(x, torch.zeros(4).long()))
        assert MARK.tobytes() not in (tmp_path / "any.onnx").read_bytes()


def test_int8_is_refused_where_it_costs_more_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = small(), torch.rand(400, 1, 6, 6) * 2
    with torch.no_grad(), vnd.width(net, 0.5):
        y = net(x).argmax(1)
    given: dict[str, Any] = {"width": 0.5, "check": (x, y)}
    entry = vnd.export(net, tmp_path / "small-int8.onnx", int8=[x[:200]], loss=0.2, **given)
    assert entry["form"] == "int8"
    assert 0.8 <= entry["accuracy_int8"] < entry["accuracy_float"] == 1.0
    assert entry["widths"][0]["accuracy"] == entry["accuracy_int8"]
    got = vnd.runtime.load(tmp_path / "small-int8.onnx").predict(x.numpy()).probs.argmax(1)
    assert float((got == y.numpy()).mean()) == entry["accuracy_int8"]
    with pytest.raises(
        ValueError, match=r"costs 0\.\d+ of 1\.0000 and leaves 0\.\d+ on 400 examples"
    ):  # all is cut off
        vnd.export(net, tmp_path / "bad.onnx", int8=[x[:50] * 1e-3], loss=0.2, **given)
    assert not (tmp_path / "bad.onnx").exists()


class Overflowing:
    """A session of one linear layer in eight bits on a CPU that adds pairs of products in 16 bits, as with AVX2."""

    def __init__(self, content: bytes) -> None:
        import onnx as package

        graph = package.load_from_string(content).graph
        self.held = {x.name: package.numpy_helper.to_array(x).astype(np.float64) for x in graph.initializer}

    def get_inputs(self) -> Any:
        return [type("Value", (), {"name": "input"})]

    def run(self, _: None, given: dict[str, Any]) -> list[Any]:
        scale, zero = self.held["input_scale"], self.held["input_zero_point"]
        x = np.clip(np.round(given["input"] / scale) + zero, 0, 255)
        weight = self.held["0.weight_quantized"].T
        pairs = (x[:, :, None] * weight).reshape(len(x), -1, 2, weight.shape[1]).sum(2)
        products = np.clip(pairs, -(2**15), 2**15 - 1).sum(1) - zero * weight.sum(0)
        bias = self.held["0.bias_quantized"] * self.held["0.bias_quantized_scale"]
        return [(products * scale * self.held["0.weight_scale"] + bias).astype(np.float32)]


@pytest.mark.parametrize("whole", [False, True], ids=["reduced range", "planted: whole range"])
def test_weights_of_the_whole_range_are_refused_where_products_overflow(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(64, 16)), torch.rand(500, 64)
    with torch.no_grad():
        signs = torch.where(torch.rand(16, 64) < 0.5, -1.0, 1.0)
        net[0].weight.copy_(signs + 0.1 * torch.randn(16, 64))
        net[0].bias.copy_(-net[0].weight.sum(1) / 2)
        y = net(x).argmax(1)
    real = int8.engine
    monkeypatch.setattr(int8, "engine", lambda model: Overflowing(model) if b"QuantizeLinear" in model else real(model))
    given: dict[str, Any] = {"int8": [x[:100]], "check": (x, y), "example_input": x[:2]}
    if whole:
        monkeypatch.setitem(int8.OPTIONS, "reduce_range", False)
        with pytest.raises(ValueError, match=r"costs 0\.2\d+ of 1\.0000 and leaves 0\.7\d+ on 500 examples"):
            vnd.export(net, tmp_path / "a.onnx", loss=0.05, **given)
    else:
        assert vnd.export(net, tmp_path / "a.onnx", loss=0.05, **given)["accuracy_int8"] > 0.95
    assert (tmp_path / "a.onnx").exists() != whole


# -- codes and masks ---------------------------------------------------------------------------------------------------


def test_a_decoder_takes_any_length(tmp_path: Path) -> None:
    torch.manual_seed(0)
    heads = {"loc": 9, "log_variance": 9, "keep_logits": 8}
    net = build("autoencoder", latent_dim=9, image_size=32, width=0.1, heads=heads, length_bias=True).eval()
    nn.init.normal_(net.length_biases.weight)
    vnd.export(net, tmp_path / "decoder.onnx")
    ready, code = vnd.runtime.load(tmp_path / "decoder.onnx"), torch.randn(5, 9)
    for length in range(1, 10):
        with torch.no_grad():
            want = net.decode(code[:, :length])
        for given, kept in ((code, length), (code[:, :length], None)):
            np.testing.assert_allclose(ready.decode(given.numpy(), kept), want, atol=1e-5)
    assert (
        abs(ready.decode(code.numpy(), 9) - want.numpy()).max()
        < abs(ready.decode(code.numpy(), 8) - want.numpy()).max()
    )


def test_masks_of_any_size_come_from_noise_and_length(tmp_path: Path) -> None:
    torch.manual_seed(0)
    heads = {"loc": 4, "log_variance": 4, "keep_logits": 3}
    net = build("probabilistic_unet", channels=[4, 5, 6], latent=4, heads=heads, num_classes=3).eval()
    vnd.export(net, tmp_path / "masks.onnx")
    ready, x, noise = vnd.runtime.load(tmp_path / "masks.onnx"), torch.randn(2, 1, 12, 20), torch.randn(7, 2, 4)
    loc, scale = normal_of(net.describe(x))
    for length in (1, 3, 4):
        latent = (loc + scale * noise)[..., :length]
        with torch.no_grad():
            want = net.combine(net.features(x), latent)
        np.testing.assert_allclose(ready.draw(x.numpy(), length=length, noise=noise.numpy()), want, atol=1e-5)
    assert (ready.draw(x.numpy(), 2, seed=1) == ready.draw(x.numpy(), 2, seed=1)).all()
    assert (ready.draw(x.numpy(), 2, seed=1) != ready.draw(x.numpy(), 2, seed=2)).any()


# -- refusals ----------------------------------------------------------------------------------------------------------

NET = small(bayesian=False)
X, Y = torch.rand(4, 1, 6, 6), torch.zeros(4, dtype=torch.long)


@refusals.table(
    {
        "both": (lambda: vnd.export(NET, "a.onnx", 0.5, (1.0,)), "give width, for one, or widths"),
        "none": (lambda: vnd.export(NET, "a.onnx", widths=()), "widths must be a list of widths"),
        "twice": (lambda: vnd.export(NET, "a.onnx", widths=(0.5, 0.5)), ("widths must differ", "0.5")),
        "count": (lambda: vnd.export(NET, "a.onnx", width=2), "got 2, which is ambiguous"),
        "suffix": (lambda: vnd.export(NET, "a.tflite"), "must end in .onnx or .pt2; got a.tflite"),
        "mobile": (lambda: vnd.export(NET, "a.pte"), "docs/deploy.md"),
        "plain": (lambda: vnd.export(nn.Linear(2, 2), "a.onnx", 0.5), "Linear is not nested and has one size"),
        "unknown": (lambda: vnd.export(nn.Linear(2, 2), "a.onnx"), "needs example_input"),
        "posterior": (lambda: vnd.export(NET, "a.onnx", 0.5, posterior=True), "a network with a posterior"),
        "int8 unmeasured": (lambda: vnd.export(NET, "a.onnx", 0.5, int8=[X]), "check=(x, y)"),
        "int8 widths": (lambda: vnd.export(NET, "a.onnx", widths=WIDTHS, int8=[X], check=(X, Y)), "of one width"),
        "int8 loss": (
            lambda: vnd.export(NET, "a.onnx", 0.5, int8=[X], check=(X, Y), loss=2),
            "loss must lie in [0, 1]",
        ),
        "int8 empty": (lambda: vnd.export(NET, "a.onnx", 0.5, int8=[], check=(X, Y)), "at least one batch"),
        "check": (lambda: vnd.export(NET, "a.onnx", 0.5, check=(X, Y[:2])), "one class for each input; got 2"),
        "code": (lambda: vnd.export(build("dense_autoencoder"), "a.onnx", 0.5), ("takes its length", "width")),
    }
)
def test_refusals(call: Any, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refusals.refused(call, words)
    assert not list(tmp_path.iterdir())


def test_what_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    refusals.refused(lambda: vnd.export(NET, "a.onnx", 0.5), ("onnxscript", "[export]"), ImportError)


def test_rounding_is_told_by_float64() -> None:
    want = torch.tensor([[1.0, 2.0]])
    assert checks.check_outputs(want + 1e-5, want, "here") < 2e-5
    exact = (want + 1e-4).double()  # torch's own float32 is as far from it
    assert checks.check_outputs(want + 2e-4, want, "here", lambda: exact) > 1e-4
    for truth in (None, lambda: want.double()):
        refusals.refused(lambda truth=truth: checks.check_outputs(want + 2e-4, want, "here", truth), "does not agree")
