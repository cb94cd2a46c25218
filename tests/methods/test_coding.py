"""What all auto-encoders share: codes that stop early, their lengths and costs, that each learns, and runs of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.utils.flop_counter import FlopCounterMode

import vnd
from methods.codes import CODE, DENSE, SMALL, at, convolutional, dense, dots, learn, model_of
from train.small import recipe, settings
from train.test_loop import rows_of
from vnd.data.batches import Normalise
from vnd.data.images import Images
from vnd.evaluation import open_run
from vnd.methods import METHODS, VAE, VNDAE, AutoencoderMethod, NestedAE, Sizes, Step
from vnd.methods.codes import LOG_VARIANCE, Code, coded, distortion, length_of, masked, shortest, squared_error
from vnd.models import AutoEncoder
from vnd.models.autoencoder import CodedNetwork, PrefixLinear
from vnd.tasks import TASKS
from vnd.train.loop import fit, make_accelerator
from vnd.train.state import TrainState

each = pytest.mark.parametrize("name", SMALL)
of_each_kind = pytest.mark.parametrize("name", [name for name in SMALL if name in METHODS])


# Truncation


def truncation_gap(method: AutoencoderMethod, network: CodedNetwork) -> float:
    """Between codes that stop early and codes with zeros, of all lengths and all images, in float64."""
    x = dots(6, network.config["image_size"]).double()
    model = model_of(method, network).double()
    with torch.no_grad():
        model(x)  # statistics of BatchNorm other than 0 and 1
        model.eval()
        code = method.encode(model, x)
        full, worst = method.full(code), 0.0
        assert full == CODE
        seen = []
        for length in range(1, full + 1):
            cut = method.point(code, length)
            assert cut.shape == (6, length)
            zeros = masked(method.point(code), torch.full((6,), length))
            one, other = method.decode(model, cut), method.decode(model, zeros)
            assert one.dtype == torch.float64
            assert one.isfinite().all()
            worst = max(worst, float((one - other).abs().max()))
            seen.append(one)
        assert float((seen[0] - seen[-1]).abs().max()) > 1e-6  # else the comparison says nothing
    return worst


@pytest.mark.parametrize("name", ["vnd_ae", "joint_vae", "swae"])
def test_truncation_is_masking(name: str) -> None:
    for network in (dense(), convolutional()):
        assert truncation_gap(SMALL[name], network) <= 1e-10


def test_a_decoder_that_reads_the_last_columns_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(self: PrefixLinear, input: Tensor) -> Tensor:
        return torch.nn.functional.linear(input, self.weight[:, -input.shape[-1] :], self.bias)

    monkeypatch.setattr(PrefixLinear, "forward", last)
    assert truncation_gap(SMALL["vae"], dense()) > 1e-3


@pytest.mark.parametrize("name", ["vae", "joint_vae", "swae"])
def test_samples_and_points_have_the_length_that_is_asked_for(name: str) -> None:
    method = SMALL[name]
    code = method.encode(model_of(method), dots(5))
    for length in (None, 1, 4):
        assert method.point(code, length).shape == method.sample(code, length).shape == (5, length or CODE)


def test_log_variances_beyond_what_has_an_effect_are_held() -> None:
    method = VAE()
    model = model_of(method)
    head = model.heads["log_variance"]
    for value, bound in ((-100.0, LOG_VARIANCE[0]), (100.0, LOG_VARIANCE[1])):
        head.weight.data.zero_()
        head.bias.data.fill_(value)
        code = method.encode(model, dots(3))
        torch.testing.assert_close(code.scale, torch.full((3, CODE), math.exp(0.5 * bound)))
        assert code.cost.isfinite().all()


@of_each_kind
def test_half_precision_does_not_reach_the_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = SMALL[name]
    model = model_of(method)
    encode, decode = model.encode, model.decode  # as they answer under autocast
    monkeypatch.setattr(model, "encode", lambda x: {name: out.bfloat16() for name, out in encode(x).items()})
    monkeypatch.setattr(model, "decode", lambda code: decode(code).bfloat16())
    terms = method.loss(model, (dots(5), torch.zeros(5)), at())
    assert {value.dtype for value in (terms.total, *terms.parts.values())} == {torch.float32}
    assert terms.total.isfinite()


# Lengths


class Known(VAE):
    """A coder whose decoder shows the code: pixel i is dimension i, and what is missing is 0."""

    def decode(self, model: torch.nn.Module, code: Tensor) -> Tensor:
        self.seen.append(code.shape)
        return torch.nn.functional.pad(code, (0, 4 - code.size(1))).view(-1, 1, 2, 2)

    @property
    def seen(self) -> list[Any]:
        return SEEN


SEEN: list[Any] = []


def test_the_shortest_code_within_a_target_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.4, 0.4, 0.4, 0.4], [1.0, 1.0, 1.0, 1.0]])
    images = x.view(4, 1, 2, 2)
    code = Code(x, torch.ones(4, 4), {})
    SEEN.clear()
    # A dimension of 1 that is missing costs 1 / (4 · 4) of a pixel between 0 and 1, one of 0.4 costs 0.01.
    cases = [
        (0.0, [1, 2, 4, 4]),
        (0.0101, [1, 2, 3, 4]),
        (0.0201, [1, 2, 2, 4]),
        (0.0626, [1, 1, 1, 3]),
        (1.0, [1] * 4),
    ]
    for target, wanted in cases:
        assert shortest(Known(), torch.nn.Identity(), images, code, target).tolist() == wanted, target
    assert (4, 1) in SEEN
    assert (3, 2) in SEEN  # who is done is not decoded again


def test_a_code_is_never_shorter_than_its_base() -> None:
    method = VNDAE(base=3)
    model = model_of(method).eval()
    x = dots(5)
    code = method.encode(model, x)
    assert shortest(method, model, x, code, 100.0).tolist() == [3] * 5
    assert shortest(method, model, x, code, 0.0).tolist() == [CODE] * 5
    assert method.lengths(code).min() >= 3


@pytest.mark.parametrize("name", ["vae", "joint_vae"])
def test_lengths_of_a_method_that_does_not_say_are_full(name: str) -> None:
    method = SMALL[name]
    code = method.encode(model_of(method), dots(5))
    assert method.lengths(code).tolist() == [CODE] * 5


def test_masked_codes_have_zeros_beyond_their_lengths() -> None:
    code = torch.arange(1.0, 9.0).view(2, 4)
    assert masked(code, torch.tensor([1, 3])).tolist() == [[1.0, 0.0, 0.0, 0.0], [5.0, 6.0, 7.0, 0.0]]


@pytest.mark.parametrize(
    ("code", "fraction", "base", "length"),
    [(128, 0.251, 1, 33), (128, 1.0, 1, 128), (10, 0.1, 4, 4), (7, 0.3, 1, 3)],
)
def test_a_share_of_a_code_is_rounded_up(code: int, fraction: float, base: int, length: int) -> None:
    assert length_of(code, fraction, base) == length


def test_sizes_of_an_ordered_code_are_its_shares_and_of_another_its_own() -> None:
    wanted = Sizes(fractions=(0.1, 0.2, 0.5, 1.0), learned=2)
    for method in (VNDAE(base=2), NestedAE(base=2)):
        sizes = method.sizes(model_of(method), wanted)
        assert [size.label for size in sizes] == ["2 of 6", "3 of 6", "6 of 6"]  # two shares are one length
        assert [length_of(CODE, size.fraction or 0, 2) for size in sizes] == [2, 3, 6]
    assert [size.label for size in VAE().sizes(model_of(VAE()), wanted)] == ["6 of 6"]


# Errors


def test_distortion_is_the_negative_log_likelihood() -> None:
    x, decoded = torch.rand(3, 1, 4, 4), torch.rand(3, 1, 4, 4)
    wanted = -torch.distributions.Normal(decoded, 0.3).log_prob(x).flatten(1).sum(1)
    torch.testing.assert_close(distortion(squared_error(x, decoded), 0.3, 16), wanted)


def test_the_error_of_validation_is_that_of_pixels_between_0_and_1() -> None:
    method = VNDAE()
    model = model_of(method)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 1, 8, 8), np.uint8)
    size = method.sizes(model, Sizes(fractions=(0.5,)))[0]
    found = TASKS["autoencoding"].validate(method, model, size, Images(pixels), Normalise((0.5,), (0.5,), "cpu"))
    assert model.training
    x = torch.from_numpy(pixels / 255.0).float()
    with torch.no_grad():
        model.eval()
        decoded = model.decode(model.encode(2 * x - 1)["loc"][:, :3])
    assert found == pytest.approx(float((x - (decoded + 1) / 2).square().mean()), rel=1e-5)


# Costs


def decoding_flops(model: CodedNetwork, length: int) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.decode(torch.zeros(2, length, device="meta"))
    return int(counter.get_total_flops())


@pytest.mark.parametrize("side", [32, 64])
def test_decoding_costs_no_more_than_linearly_in_the_length(side: int) -> None:
    with torch.device("meta"):
        model = AutoEncoder(image_size=side).eval()
    flat = model.expand.out_features
    assert flat == 512 * (side // 32) ** 2
    lengths = (1, 2, 16, 32, 64, 96, 128)
    found = {length: decoding_flops(model, length) for length in lengths}
    for length in lengths:
        assert found[length] - found[1] == 2 * 2 * flat * (length - 1)  # two images, a product and a sum
        assert found[128] <= 128 / length * found[length]


def test_a_decoder_that_pads_its_codes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def padded(self: PrefixLinear, input: Tensor) -> Tensor:
        whole = torch.nn.functional.pad(input, (0, self.in_features - input.shape[-1]))
        return torch.nn.functional.linear(whole, self.weight, self.bias)

    monkeypatch.setattr(PrefixLinear, "forward", padded)
    with pytest.raises(AssertionError):
        test_decoding_costs_no_more_than_linearly_in_the_length(32)


# Learning


@pytest.mark.parametrize("length_bias", [True, False])
def test_a_convolutional_one_learns_64_images_by_heart(length_bias: bool) -> None:
    method, x = SMALL["vnd_ae, decoded twice" if length_bias else "vnd_ae, pure"], dots(64, 32)
    network = AutoEncoder(latent_dim=CODE, image_size=32, in_channels=1, width=0.125, length_bias=length_bias)
    model = model_of(method, network, seed=0)
    learn(method, model, x, 100)
    assert relative_error(method, model, x) < 1 / 5


@torch.no_grad()
def relative_error(method: AutoencoderMethod, model: CodedNetwork, x: Tensor) -> float:
    """The error of the most likely codes, relative to that of the mean image."""
    model.eval()
    own = squared_error(x, method.decode(model, method.point(method.encode(model, x)))).mean()
    return float(own / squared_error(x, x.mean(0, keepdim=True).expand_as(x)).mean())


def test_an_ordered_code_loses_little_by_little_and_another_at_once() -> None:
    """Half of the code: trained at all lengths it is nearly as good, trained at the full one it is not."""
    x, found = dots(64), {}
    for name, method in {"ordered": SMALL["nested_ae"], "full": NestedAE(base=CODE)}.items():
        model = model_of(method, dense(hidden=(64,)), seed=0)
        learn(method, model, x, 200)
        with torch.no_grad():
            code = method.encode(model.eval(), x)
            found[name] = [
                float(squared_error(x, method.decode(model, method.point(code, b))).mean()) for b in range(1, CODE + 1)
            ]
    assert found["ordered"] == sorted(found["ordered"], reverse=True)
    assert all(mine < theirs for mine, theirs in zip(found["ordered"][:-1], found["full"][:-1], strict=True))


# Compiling


@pytest.mark.parametrize("name", ["vnd_ae, decoded twice", "beta_vae, capacity"])
def test_a_step_compiles_once_into_one_graph(name: str) -> None:
    """And gives what it gives otherwise, with as many draws: torch made one of two that looked alike."""
    method, graphs = SMALL[name], []
    model, given = model_of(method), (dots(5), torch.zeros(5, dtype=torch.int64))

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(method.loss, backend=backend, fullgraph=True)
    weight = torch.tensor(0.0)
    for index in range(98, 103):  # on both sides of what a capacity grows over, and while free bits fall
        step = Step(index, weight.fill_(0.1 * index), 0.7, 50, index / 150)
        method.prepare(model, given, step, lambda value: value)
        torch.manual_seed(index)
        mine = compiled(model, given, step)
        model.zero_grad()
        mine.total.backward()
        torch.manual_seed(index)
        theirs = method.loss(model, given, step)
        torch.testing.assert_close(mine.total, theirs.total)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert len(graphs) == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["vnd_ae, decoded twice", "joint_vae"])
def test_what_was_saved_is_trained_on(name: str, tmp_path: Path) -> None:
    """What changes in training is no part of the file, and is there all the same."""
    method, given = SMALL[name], (dots(5), torch.zeros(5, dtype=torch.int64))
    vnd.save(model_of(method), tmp_path / "saved")
    model = vnd.load(tmp_path / "saved")
    step = Step(50, torch.tensor(1.0), 0.7, 50, 0.5)
    method.prepare(model, given, step, lambda value: value)
    assert 0 < float(coded(model).grown) < 1
    assert method.loss(model, given, step).total.isfinite()


# Runs


def coded_settings(path: Path, name: str = "vnd_ae, lengths", **sections: Any) -> dict[str, Any]:
    method = SMALL[name]
    called = {kind: word for word, kind in METHODS.items()}[type(method)]
    options = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}  # type: ignore[arg-type]
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
    own: dict[str, Any] = {
        "method": {"name": called, **given},
        "network": DENSE,
        "optimizer": {"chain_lr": None},
        "evaluate": {"sizes": {"fractions": [0.5, 1.0]}},
    }
    return settings(path, **{**own, **sections})


def coded_recipe(path: Path, name: str = "vnd_ae, lengths", **sections: Any) -> Any:
    return vnd.train.config.parse(coded_settings(path, name, **sections))


@pytest.fixture
def unlabelled(tmp_path: Path) -> Path:
    """Images of dots, of which nobody says a class."""
    path = tmp_path / "dots.npz"
    pixels = ((dots(97) + 1) * 127.5).round().byte().numpy()[:, 0]
    np.savez(path, x_train=pixels, x_test=pixels[:33])
    return path


@pytest.mark.parametrize("name", ["vnd_ae, decoded twice", "vae", "joint_vae", "swae"])
def test_an_averaged_network_has_statistics_of_codes_as_in_training(name: str, tmp_path: Path) -> None:
    pixels = ((dots(40, 32) + 1) * 127.5).round().byte().numpy()[:, 0]
    np.savez(tmp_path / "dots.npz", x_train=pixels, x_test=pixels[:8])
    network = {"name": "autoencoder", "latent_dim": CODE, "image_size": 32, "in_channels": 1, "width": 0.0625}
    made = coded_recipe(tmp_path / "dots.npz", name, network=network, train={"ema": 0.9})
    train_state, codes = TrainState(made, tmp_path / "run", make_accelerator(made)), list[Tensor]()
    root: Any = train_state.root
    root.expand.register_forward_pre_hook(lambda _, given: codes.append(given[0].detach().clone()))
    for _ in range(2):
        with train_state.averaged():
            pass
    first, again = codes[0], codes[len(codes) // 2]
    assert torch.equal(first, again)  # the same, whatever was drawn before
    assert first.size(1) == CODE  # also of a code whose last dimensions are a category
    with torch.no_grad():
        means = root.train().encode(next(iter(train_state.bn_batches())))["loc"]
    if name == "joint_vae":
        category, first = first[:, -3:], first[:, :-3]
        assert torch.allclose(category.sum(1), torch.ones(len(first)))
        assert category.max(1).values.min() < 0.999  # relaxed, as in training
    if name.startswith("vnd_ae"):
        assert len(first) == 2 * len(means)
        assert {3, CODE} <= {int(row.nonzero().max()) + 1 for row in first}
    else:
        assert torch.allclose(first, means, atol=1e-5) == (name == "swae")  # drawn, where codes are


def test_the_best_network_has_the_least_error_and_is_saved(tmp_path: Path, unlabelled: Path) -> None:
    """A rate that spoils the network after some epochs: the best is not the last."""
    wanted = coded_recipe(
        unlabelled,
        "vnd_ae",
        train={"epochs": 6},
        optimizer={"name": "adam", "lr": 0.01, "chain_lr": None},
        schedule={"lr": {"kind": "steps", "step_size": 4, "gamma": 60.0, "warmup": 0}},
    )
    assert fit(wanted, tmp_path / "run", quiet=True)
    rows = [row for row in rows_of(tmp_path / "run") if "validation" in row]
    errors = [sum(row["validation"].values()) / 2 for row in rows]
    assert list(rows[0]["validation"]) == ["3 of 6", "6 of 6"]
    least = min(range(6), key=errors.__getitem__)
    assert 0 < least < 5
    assert rows[-1]["best"] == pytest.approx(1 - errors[least])
    for checkpoint, error in (("best", errors[least]), ("last", errors[-1])):
        run = open_run(tmp_path / "run", checkpoint)
        assert type(run.model) is type(vnd.load(tmp_path / "run" / checkpoint)) is vnd.models.DenseAutoEncoder
        normalise = run.splits.normalise("cpu")
        assert normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).flatten().tolist() == [-1.0, 1.0]
        sizes = wanted.method.sizes(run.model, Sizes(fractions=(0.5, 1.0)))
        found = [
            TASKS["autoencoding"].validate(wanted.method, run.model, size, run.splits.validation, normalise)
            for size in sizes
        ]
        assert sum(found) / 2 == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("name", ["vnd_ae", "joint_vae"])
def test_a_saved_network_decodes_as_before(name: str, tmp_path: Path) -> None:
    method, x = SMALL[name], dots(5, 32)
    model = model_of(method, convolutional())
    model(x)
    vnd.save(model, tmp_path)
    again: Any = vnd.load(tmp_path)
    model.eval()
    with torch.no_grad():
        mine, theirs = (method.decode(net, method.point(method.encode(net, x), 4)) for net in (model, again.eval()))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        assert {name: out.shape for name, out in again.encode(x).items()} == {
            name: (5, size) for name, size in method.heads(CODE).items()
        }
    cut = method.extract(model, 0.5)
    assert all(a is not b and torch.equal(a, b) for a, b in zip(cut.parameters(), model.parameters(), strict=True))


# Refusals

CONVNET = {"name": "convnet", "width": 0.15, "image_size": 8, "in_channels": 1, "num_classes": 3}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "network": (
        {"network": CONVNET, "data": {"name": "npz", "folder": "labelled"}},
        "network.name must be autoencoder or dense_autoencoder for a method that learns codes, or have an encoder "
        "and a decoder; got a ConvNet",
    ),
    "told lengths": (
        {"network": {**DENSE, "length_bias": True}, "method": {"name": "vae"}},
        "network.length_bias tells the lengths of ordered codes, and codes of this method have one length; "
        "give --network.length_bias false",
    ),
    "base": (
        {"method": {"name": "vnd_ae", "base": 6}},
        "network.latent_dim must be greater than method.base = 6; got 6",
    ),
    "prior, base": (
        {"method": {"name": "vnd_ae", "prior_length": 1.0}},
        "prior_length must be greater than base = 1; got 1.0",
    ),
    "cutmix": (
        {"data": {"augment": {"cutmix": 0.5}}},
        "data.augment.cutmix mixes labels, and a code has none; use 0, got 0.5",
    ),
    "image size": (
        {"network": {**DENSE, "image_size": 28}},
        "DenseAutoEncoder: images must have shape (B, 1, 28, 28); got (2, 1, 8, 8)",
    ),
    "sizes": (
        {"evaluate": {"sizes": {"fractions": [], "learned": 2}}},
        "sizes of an ordered code are fractions of its length; give fractions",
    ),
    "loss_temperature": (
        {"train": {"loss_temperature": 1.0}, "data": {"validation": 60}},
        "train.loss_temperature: vnd_ae trains no network of",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_trained_is_refused_in_one_line(name: str, tmp_path: Path, unlabelled: Path) -> None:
    change = dict(BAD[name][0])
    if name == "network":
        pixels = ((dots(97) + 1) * 127.5).byte().numpy()[:, 0]
        np.savez(tmp_path / "labelled.npz", x=pixels, y=np.arange(97) % 3)
        change["data"] = {"folder": str(tmp_path / "labelled.npz")}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        fit(coded_recipe(unlabelled, **change), tmp_path / "run", quiet=True)
    assert BAD[name][1] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_images_without_labels_have_no_classes_to_learn(tmp_path: Path, unlabelled: Path) -> None:
    with pytest.raises(ValueError, match=r"^data\.name: npz has no labels to learn"):
        fit(recipe(unlabelled), tmp_path / "run", quiet=True)


def test_an_auto_encoder_says_no_classes() -> None:
    method = VNDAE()
    model = model_of(method)
    assert (method.num_loss_temperatures, method.answers(model, dots(3))) == (0, [])
