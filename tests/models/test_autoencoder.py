"""The auto-encoders: sizes by hand, codes that stop early, and what saving, compiling and copying need of them."""

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import vnd
from covering import pairs, turns
from vnd.models import MODELS, autoencoder, build
from vnd.models.autoencoder import AutoEncoder, CodedNetwork, DenseAutoEncoder, PrefixLinear

HEADS = {"loc": 6, "log_scale": 6, "keep_logits": 5}
SMALL: dict[str, dict[str, Any]] = {  # each network, small enough to run in milliseconds
    "autoencoder": {"latent_dim": 6, "image_size": 32, "width": 0.125, "heads": HEADS},
    "dense_autoencoder": {"latent_dim": 6, "image_size": 5, "in_channels": 2, "hidden": [9, 7], "heads": HEADS},
}
CLASSES: dict[str, type[CodedNetwork]] = {"autoencoder": AutoEncoder, "dense_autoencoder": DenseAutoEncoder}
NAMES = tuple(SMALL)


def small(name: str, **config: Any) -> CodedNetwork:
    return CLASSES[name](**{**SMALL[name], **config})


def images(network: CodedNetwork, batch: int = 3) -> Tensor:
    channels, side = network.config["in_channels"], network.config["image_size"]
    return torch.rand(batch, channels, side, side) * 2 - 1


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def weights(i: int, o: int) -> int:
    return i * o + o


def convolutional(code: int, side: int, channels: int, width: float, heads: int) -> int:
    """Parameters of `AutoEncoder`; `side` is that of the deepest maps, `heads` the sum of the heads' sizes."""
    sizes = [round(c * width) for c in (32, 64, 128, 256, 512)]
    flat = sizes[-1] * side**2
    body = sum(9 * i * o + 2 * o for i, o in pairwise([channels, *sizes]))
    body += sum(9 * i * o + 2 * o for i, o in pairwise([*reversed(sizes), sizes[0]]))
    return body + (flat + 1) * heads + weights(code, flat) + 9 * sizes[0] * channels + channels


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: AutoEncoder(), convolutional(128, 2, 3, 1, 128)),
        (lambda: AutoEncoder(32, 32, 1), convolutional(32, 1, 1, 1, 32)),
        (lambda: AutoEncoder(length_bias=True), convolutional(128, 2, 3, 1, 128) + 128 * 2048),
        (lambda: AutoEncoder(10, 96, 2, 0.25, {"loc": 4, "other": 9}), convolutional(10, 3, 2, 0.25, 13)),
        (lambda: DenseAutoEncoder(), 2 * (784 * 512 + 512 * 256 + 256 * 4) + 2 * (512 + 256) + 4 + 784),
        (lambda: DenseAutoEncoder(3, 4, 2, [5], {"loc": 2, "b": 7}), 2 * 32 * 5 + 5 + 32 + weights(5, 9) + 3 * 5 + 5),
        (lambda: DenseAutoEncoder(3, 4, 2, ()), weights(32, 3) + weights(3, 32)),
    ],
)
def test_parameter_counts_are_those_by_hand(make: Callable[[], nn.Module], expected: int) -> None:
    with torch.device("meta"):
        assert parameters(make()) == expected


def test_multiplications_are_those_by_hand() -> None:
    """The whole of the default network; every stride counts, and so does the layer that expands a code."""
    layers = [3 * 32 * 32**2] + [i * 2 * i * (16 * 32 // i) ** 2 for i in (32, 64, 128, 256)]
    layers += [2 * i * i * (2 * 256 // i) ** 2 for i in (256, 128, 64, 32)] + [32 * 32 * 32**2, 32 * 3 * 64**2]
    with torch.device("meta"):
        counted = vnd.profile(AutoEncoder(), example_input=torch.empty(2, 3, 64, 64))
    assert counted.macs == 9 * sum(layers) + 2 * 2048 * 128


SHAPES = [
    (lambda **o: AutoEncoder(6, 64, width=0.125, heads=HEADS, **o), (3, 64, 64)),
    (lambda **o: AutoEncoder(6, 32, width=0.125, heads=HEADS, **o), (3, 32, 32)),
    (lambda **o: AutoEncoder(6, 64, 1, 0.125, heads=HEADS, **o), (1, 64, 64)),
    (lambda **o: DenseAutoEncoder(6, heads=HEADS, **o), (1, 28, 28)),
    (lambda **o: DenseAutoEncoder(6, 5, 3, [], heads=HEADS, **o), (3, 5, 5)),
]


@pytest.mark.parametrize(("make", "shape", "bounded"), [(*case, i % 2 == 0) for i, case in enumerate(SHAPES)])
def test_shapes_and_bounds(make: Callable[..., CodedNetwork], shape: tuple[int, ...], bounded: bool) -> None:
    network = make(bounded=bounded)
    x = images(network)
    outputs = network.encode(x)
    assert {name: out.shape for name, out in outputs.items()} == {name: (3, size) for name, size in HEADS.items()}
    again = network.decode(outputs["loc"])
    assert again.shape == (3, *shape) == x.shape
    assert again.isfinite().all()
    with torch.no_grad():  # whether tanh is there, whatever the start: an output ten times as large
        last = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)][-1]
        last.weight.mul_(10)
        largest = float(network(x).abs().max())
    assert (largest <= 1) is bounded


@pytest.mark.parametrize("name", NAMES)
def test_forward_decodes_the_head_loc(name: str) -> None:
    network = small(name, heads={"other": 6, "loc": 4}).eval()
    x = images(network)
    with torch.no_grad():
        torch.testing.assert_close(network(x), network.decode(network.encode(x)["loc"]), rtol=0, atol=0)
        assert (network(x) - network.decode(network.encode(x)["other"])).abs().max() > 1e-4


def test_without_hidden_layers_it_is_one_linear_layer_each_way() -> None:
    network = DenseAutoEncoder(latent_dim=3, image_size=4, in_channels=2, hidden=(), bounded=False).double()
    linear = [m for m in network.modules() if list(m.parameters(recurse=False))]
    assert linear == [network.heads["loc"], network.expand]
    x = images(network).double()
    code = x.flatten(1) @ network.heads["loc"].weight.T + network.heads["loc"].bias
    by_hand = code @ network.expand.weight.T + network.expand.bias
    torch.testing.assert_close(network(x).flatten(1), by_hand, rtol=0, atol=1e-12)


def test_the_dense_network_is_that_of_its_equation() -> None:
    network = DenseAutoEncoder(latent_dim=3, image_size=4, hidden=(7, 5)).double()
    one, two, head, expand, back, out = (m for m in network.modules() if isinstance(m, nn.Linear))
    assert (head, expand) == (network.heads["loc"], network.expand)
    x = images(network).double()
    code = F.linear(F.linear(F.linear(x.flatten(1), *one.parameters()).relu(), *two.parameters()).relu(), head.weight)
    y = F.linear(F.linear(F.linear(code, expand.weight).relu(), back.weight).relu(), out.weight).tanh()
    torch.testing.assert_close(network(x).flatten(1), y, rtol=0, atol=1e-12)  # biases start at zero


# Truncation is masking.


def check_truncation(network: CodedNetwork) -> None:
    """Every length: the images of a short code are those of the long one with zeros at its end."""
    network.double()
    with torch.no_grad():
        nn.init.normal_(network.expand.bias)
        if network.length_biases is not None:
            nn.init.normal_(network.length_biases.weight)
        codes = torch.randn(5, network.config["latent_dim"], dtype=torch.float64)
        for length in range(1, codes.shape[1] + 1):
            masked = codes.clone()
            masked[:, length:] = 0
            short, long = network.decode(codes[:, :length]), network.decode(masked)
            assert long.isfinite().all()
            assert long.abs().max() > 1e-3
            torch.testing.assert_close(short, long, rtol=1e-12, atol=1e-12)


def expansion(network: CodedNetwork, length: int) -> int:
    """Multiplications of `decode` for one code of this length, less those for one of full length."""

    def count(b: int) -> int:
        with FlopCounterMode(display=False) as counter:
            network.decode(torch.zeros(2, b))
        return counter.get_total_flops() // 4

    return count(length) - count(network.config["latent_dim"])


def check_cost(network: CodedNetwork) -> None:
    """A code of b dimensions costs b columns of the first layer, and of the biases of lengths."""
    column = network.expand.out_features * (2 if network.config["length_bias"] else 1)
    for length in (1, 2, 5):
        assert expansion(network, length) == (length - network.config["latent_dim"]) * column


@pytest.mark.parametrize(("name", "training", "length_bias"), pairs(NAMES, [True, False], [True, False]))
def test_truncation_equals_masking(name: str, training: bool, length_bias: bool) -> None:
    check_truncation(small(name, length_bias=length_bias).train(training))


@pytest.mark.parametrize(("name", "length_bias"), turns(NAMES, [True, False]))
def test_a_short_code_costs_its_own_columns(name: str, length_bias: bool) -> None:
    check_cost(small(name, length_bias=length_bias).eval())


def padded(self: PrefixLinear, x: Tensor) -> Tensor:
    return F.linear(F.pad(x, (0, self.in_features - x.shape[-1])), self.weight, self.bias)


FAULTS: dict[str, tuple[Callable[[PrefixLinear, Tensor], Tensor], Callable[[CodedNetwork], None]]] = {
    "last columns": (lambda self, x: F.linear(x, self.weight[:, -x.shape[-1] :], self.bias), check_truncation),
    "no bias when short": (
        lambda self, x: F.linear(x, self.weight[:, : x.shape[-1]], self.bias if x.shape[-1] > 5 else None),
        check_truncation,
    ),
    "rescaled": (
        lambda self, x: F.linear(x * (6 / x.shape[-1]) ** 0.5, self.weight[:, : x.shape[-1]], self.bias),
        check_truncation,
    ),
    "padded": (padded, check_cost),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_truncation_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, check = FAULTS[fault]
    monkeypatch.setattr(PrefixLinear, "forward", forward)
    with pytest.raises(AssertionError):
        check(small("dense_autoencoder").eval())


def told_and_not(name: str) -> tuple[CodedNetwork, CodedNetwork]:
    """A network that is told lengths, by biases that are not zero, and the same network that is not."""
    told, plain = small(name, length_bias=True).double().eval(), small(name).double().eval()
    assert set(told.state_dict()) - set(plain.state_dict()) == {"length_biases.weight"}
    plain.load_state_dict({key: value for key, value in told.state_dict().items() if key != "length_biases.weight"})
    assert told.length_biases is not None
    nn.init.normal_(told.length_biases.weight)
    return told, plain


def check_bias(name: str, codes: Tensor, length: int) -> None:
    """The network that is told lengths is, at one length, the other one with another bias."""
    told, plain = told_and_not(name)
    assert told.length_biases is not None
    with torch.no_grad():
        plain.expand.bias += told.length_biases.weight[:, :length].mean(1) * length / 6
        torch.testing.assert_close(told.decode(codes), plain.decode(codes), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("length", "name"), turns([1, 4, 6], NAMES))
def test_a_length_is_a_part_of_the_bias(name: str, length: int) -> None:
    check_bias(name, torch.randn(5, length, dtype=torch.float64), length)


WITH_ZEROS = torch.tensor([[0.0, 1.5, 0.0, -0.5, 0.0, 0.0]], dtype=torch.float64)


def test_zeros_within_a_code_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_bias("dense_autoencoder", WITH_ZEROS, 4)
    monkeypatch.setattr(autoencoder, "reached", lambda code: (code != 0).to(code.dtype))
    with pytest.raises(AssertionError):
        check_bias("dense_autoencoder", WITH_ZEROS, 4)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_say_nothing_at_first(name: str) -> None:
    network = small(name, length_bias=True).eval()
    code = torch.randn(2, 4)
    with torch.no_grad():
        before = network.decode(code)
        network.length_biases = None
        torch.testing.assert_close(network.decode(code), before, rtol=0, atol=0)


# The start.


@pytest.mark.parametrize("side", [32, 64])
def test_the_start_is_of_order_one_and_leaves_tanh_its_slope(side: int) -> None:
    network = AutoEncoder(image_size=side, width=0.5, bounded=False)
    x = images(network, 8)
    with torch.no_grad():
        assert 0.3 < float(network.encode(x)["loc"].std()) < 1.5
        out = network.decode(torch.randn(8, 128))
    assert 0.2 < float(out.std()) < 1.5
    assert float((out.abs() > 2).float().mean()) < 0.05  # tanh's slope there is 0.07


def test_the_start_of_the_dense_network_is_of_order_one() -> None:
    network = DenseAutoEncoder(latent_dim=32, bounded=False)
    with torch.no_grad():
        assert 0.1 < float(network.encode(images(network, 64))["loc"].std()) < 1.5
        assert 0.1 < float(network.decode(torch.randn(64, 32)).std()) < 1.5


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_reaches_every_parameter(name: str) -> None:
    network = small(name, length_bias=True)
    outputs = network.encode(images(network, 8))
    total = network.decode(outputs["loc"])
    loss = (total * torch.randn_like(total)).sum() + sum(out.square().sum() for out in outputs.values())
    loss.backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


# What the rest of the library needs.


@pytest.mark.parametrize(("name", "length_bias"), turns(NAMES, [True, False]))
def test_compiles_to_one_graph(name: str, length_bias: bool) -> None:
    torch.compiler.reset()
    network = small(name, length_bias=length_bias).eval()
    x = images(network)
    with torch.no_grad():
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-5, atol=1e-6)
    torch.compiler.reset()


def test_codes_of_every_length_compile() -> None:
    torch.compiler.reset()
    network = small("dense_autoencoder").eval()
    decode = torch.compile(network.decode, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for length in (6, 2, 5, 1):
            code = torch.randn(2, length)
            torch.testing.assert_close(decode(code), network.decode(code), rtol=1e-5, atol=1e-6)
    torch.compiler.reset()


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_the_same_and_its_own(name: str) -> None:
    network = small(name).eval()
    again, x = copy.deepcopy(network), images(network)
    with torch.no_grad():
        before = network(x)
        torch.testing.assert_close(again(x), before, rtol=0, atol=0)
        again.expand.weight.zero_()
        torch.testing.assert_close(network(x), before, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "heads"), turns(NAMES, [HEADS, None]))
def test_config_rebuilds_the_network_through_json(name: str, heads: dict[str, int] | None) -> None:
    network = small(name, heads=heads, bounded=False)
    config = json.loads(json.dumps(network.config))
    assert config["heads"] == heads
    again = CLASSES[name](**config)
    assert again.config == network.config == config
    assert list(again.heads) == list(network.heads)  # their order, too
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in network.state_dict().items()}
    again.load_state_dict(network.state_dict())
    x = images(network)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(x), network.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_config_holds_every_argument_and_is_its_own(name: str) -> None:
    given = dict(HEADS)
    network = small(name, heads=given)
    given["loc"] = 1
    assert network.config["heads"] == HEADS
    arguments = CLASSES[name].__init__.__code__
    assert tuple(network.config) == arguments.co_varnames[1 : arguments.co_argcount]


@pytest.mark.parametrize("name", NAMES)
def test_is_saved_and_loaded_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, name, CLASSES[name])
    network = small(name)
    x = images(network)
    network(x)  # statistics other than 0 and 1
    vnd.save(network, tmp_path / "net")
    again = vnd.load(tmp_path / "net")
    assert type(again) is type(network) is type(build(name, **network.config))
    with torch.no_grad():
        torch.testing.assert_close(again(x), network.eval()(x), rtol=0, atol=0)
        assert again.encode(x).keys() == HEADS.keys()


# Refusals.
