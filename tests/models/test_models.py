"""The plain networks: their sizes against formulas and published numbers, and what conversion needs of them."""

import copy
import json
import math
import operator
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.models import MODELS, VGG11, ConvNet, MobileNetV2, ResNeXt, UNet, build
from vnd.models.initialise import initialise
from vnd.models.mobilenet import InvertedResidual
from vnd.models.resnet import GroupedBottleneck

SMALL: dict[str, dict[str, Any]] = {  # each network, small enough to run in milliseconds
    "vgg11": {"width": 0.125, "hidden": 16},
    "mobilenet_v2": {"width": 0.25},
    "resnext": {"depth": 11, "base_width": 4, "widen_factor": 1},
    "unet": {"channels": [4, 6, 8, 10]},
    "convnet": {"width": 0.25, "image_size": 32, "in_channels": 3},
}
NAMES = tuple(SMALL)


def small(name: str, **config: Any) -> nn.Module:
    return build(name, **{**SMALL[name], **config})


def images(name: str, batch: int = 2, size: int = 32) -> Tensor:
    return torch.randn(batch, 1 if name == "unet" else 3, size, size)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """A network without storage: shapes are all that counting needs."""
    with torch.device("meta"):
        return make()


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def macs(network: nn.Module, x: Tensor) -> int:
    """Multiplications of convolutions and dense layers for one image, counted by hooks."""
    total = 0

    def count(layer: nn.Module, _: Any, out: Tensor) -> None:
        nonlocal total
        total += out.numel() * layer.weight[0].numel()

    for layer in network.modules():
        assert not isinstance(layer, nn.ConvTranspose2d), "another formula"
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    network(x)
    return total


# Parameters of the layers, for the formulas below.


def conv(i: int, o: int, k: int, groups: int = 1) -> int:
    return i // groups * o * k * k


def conv_norm(i: int, o: int, k: int, groups: int = 1) -> int:
    return conv(i, o, k, groups) + 2 * o


def linear(i: int, o: int) -> int:
    return i * o + o


VGG_LEVELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg_parameters(num_classes: int, width: float, side: int, hidden: int) -> int:
    sizes = [3, *(round(c * width) for level in VGG_LEVELS for c in level)]
    body = sum(conv_norm(i, o, 3) for i, o in pairwise(sizes))
    return body + linear(sizes[-1] * side**2, hidden) + linear(hidden, num_classes)


def mobilenet_parameters(num_classes: int, width: float) -> int:
    def block(i: int, t: int, o: int) -> int:
        m = t * i
        return (conv_norm(i, m, 1) if t > 1 else 0) + conv_norm(m, m, 3, groups=m) + conv_norm(m, o, 1)

    outs = [16, 24, 24, *[32] * 3, *[64] * 4, *[96] * 3, *[160] * 3, 320]
    sizes = [round(c * width) for c in (32, *outs)]
    first, *others = pairwise(sizes)
    last = round(1280 * max(1, width))
    body = block(first[0], 1, first[1]) + sum(block(i, 6, o) for i, o in others)
    return conv_norm(3, sizes[0], 3) + body + conv_norm(sizes[-1], last, 1) + linear(last, num_classes)


def resnext_parameters(num_classes: int, depth: int, groups: int, base: int, widen_factor: int = 4) -> int:
    total, i = conv_norm(3, 64, 3), 64
    for stage in (1, 2, 4):
        m, o = groups * base * stage, 64 * widen_factor * stage
        for _ in range((depth - 2) // 9):
            total += conv_norm(i, m, 1) + conv_norm(m, m, 3, groups) + conv_norm(m, o, 1)
            total += conv_norm(i, o, 1) if i != o else 0
            i = o
    return total + linear(i, num_classes)


def unet_parameters(i: int, classes: int, sizes: tuple[int, ...]) -> int:
    def two(i: int, o: int) -> int:
        return conv_norm(i, o, 3) + conv_norm(o, o, 3)

    down = sum(two(a, b) for a, b in pairwise((i, *sizes)))
    up = sum(conv(b, a, 2) + a + two(2 * a, a) for a, b in pairwise(sizes))
    return down + up + sizes[0] * classes + classes


def convnet_parameters(i: int, classes: int, width: float, side: int, hidden: int) -> int:
    sizes = [i, *(round(c * width) for c in (32, 64, 96))]
    inner = round(hidden * width)
    return (
        sum(conv_norm(a, b, 3) for a, b in pairwise(sizes))
        + linear(sizes[-1] * side**2, inner)
        + linear(inner, classes)
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: VGG11(), vgg_parameters(10, 1, 1, 256)),
        (lambda: VGG11(200, 1.5, image_size=64), vgg_parameters(200, 1.5, 2, 256)),
        (lambda: VGG11(width=0.3, hidden=64), vgg_parameters(10, 0.3, 1, 64)),
        (lambda: MobileNetV2(), mobilenet_parameters(10, 1)),
        (lambda: MobileNetV2(200, width=1.5), mobilenet_parameters(200, 1.5)),
        (lambda: ResNeXt(), resnext_parameters(10, 29, 2, 64)),
        (lambda: ResNeXt(100, 20, 4, 8, 2), resnext_parameters(100, 20, 4, 8, 2)),
        (lambda: UNet(), unet_parameters(1, 1, (32, 64, 128, 192))),
        (lambda: UNet(3, 5, (7, 9)), unet_parameters(3, 5, (7, 9))),
        (lambda: UNet(2, 1, (8,)), unet_parameters(2, 1, (8,))),
        (lambda: ConvNet(), convnet_parameters(1, 10, 1, 3, 128)),
        (lambda: ConvNet(7, 0.5, 33, 3, 60), convnet_parameters(3, 7, 0.5, 4, 60)),
    ],
)
def test_parameter_counts_are_those_of_the_formulas(make: Callable[[], nn.Module], expected: int) -> None:
    assert parameters(on_meta(make)) == expected


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        (lambda: VGG11(width=1.5), 20.9),  # the design's measurements; hidden 256 as in the released code
        (lambda: MobileNetV2(1000), 3.504872),  # torchvision's: strides do not count
        (lambda: ResNeXt(cardinality=8), 34.4),  # Xie et al. (2017), table 7
    ],
)
def test_parameter_counts_are_those_published(make: Callable[[], nn.Module], millions: float) -> None:
    assert 0 <= parameters(on_meta(make)) / 1e6 - millions < 0.1


def test_vgg11_has_the_multiplications_of_the_design() -> None:
    network = on_meta(lambda: VGG11(width=1.5))
    sizes = [3, *(round(c * 1.5) for level in VGG_LEVELS for c in level)]
    sides = [32 >> depth for depth, level in enumerate(VGG_LEVELS) for _ in level]
    convolutions = sum(conv(i, o, 3) * s**2 for i, o, s in zip(sizes, sizes[1:], sides, strict=False))
    assert round(convolutions / 1e6) == 342  # the design's number; the dense layers add 0.2 M
    total = macs(network, torch.empty(1, 3, 32, 32, device="meta"))
    assert total == convolutions + 768 * 256 + 256 * 10


@pytest.mark.parametrize(("name", "maps"), [("mobilenet_v2", 4), ("resnext", 8)])
def test_strides_leave_maps_of_the_stated_size(name: str, maps: int) -> None:
    network, seen = small(name), []
    network.pool.register_forward_hook(lambda _, x, __: seen.append(x[0].shape[2:]))
    network(images(name))
    network(images(name, size=64))
    assert seen == [(maps, maps), (2 * maps, 2 * maps)]


@pytest.mark.parametrize(
    ("name", "function", "count"),
    [("mobilenet_v2", operator.add, 10), ("resnext", operator.add, 3), ("unet", torch.cat, 3)],
)
def test_every_shortcut_is_there(name: str, function: Callable[..., Tensor], count: int) -> None:
    nodes = torch.fx.symbolic_trace(small(name)).graph.nodes
    assert sum(node.target is function for node in nodes) == count


@pytest.mark.parametrize(
    ("block", "inner", "expected"),
    [
        (InvertedResidual(6, 6, stride=1, expansion=6), "project_norm", lambda x: x),
        (InvertedResidual(6, 6, stride=2, expansion=6), "project_norm", lambda x: 0 * x[..., ::2, ::2]),
        (GroupedBottleneck(6, 4, 6, groups=2, stride=1), "expand_norm", torch.relu),
    ],
)
def test_a_block_that_computes_nothing_passes_its_input_on(
    block: nn.Module, inner: str, expected: Callable[[Tensor], Tensor]
) -> None:
    nn.init.zeros_(block.get_submodule(inner).weight)
    x = torch.randn(2, 6, 8, 8)
    torch.testing.assert_close(block(x).detach(), expected(x))


def test_a_block_is_that_of_its_equation() -> None:
    """Inverted residual and grouped bottleneck in evaluation, with fresh statistics, written out by hand."""

    def apply(block: nn.Module, name: str, x: Tensor) -> Tensor:
        layer = block.get_submodule(name)
        out = F.conv2d(x, layer.weight, None, layer.stride, layer.padding, groups=layer.groups)
        return out / math.sqrt(1 + 1e-5)  # the norm's mean 0 and variance 1

    x = torch.randn(2, 6, 8, 8)
    block: nn.Module = InvertedResidual(6, 9, stride=2, expansion=3).eval()
    middle = F.relu6(apply(block, "depthwise", F.relu6(apply(block, "expand", x))))
    torch.testing.assert_close(block(x), apply(block, "project", middle))

    block = GroupedBottleneck(6, 4, 9, groups=2, stride=2).eval()
    middle = F.relu(apply(block, "grouped", F.relu(apply(block, "reduce", x))))
    torch.testing.assert_close(block(x), F.relu(apply(block, "shortcut.0", x) + apply(block, "expand", middle)))


@pytest.mark.parametrize("name", NAMES)
def test_other_image_channels(name: str) -> None:
    assert small(name, in_channels=4)(torch.randn(2, 4, 32, 32)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_an_image_alone_has_the_logits_that_it_has_in_a_batch(name: str) -> None:
    network, x = small(name), images(name, batch=3)
    network(x)  # statistics other than 0 and 1
    network.eval()
    with torch.no_grad():
        alone, together = network(x[:1]), network(x)[:1]
    assert alone.isfinite().all()
    torch.testing.assert_close(alone, together)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_reaches_every_parameter(name: str) -> None:
    network, x = small(name), images(name, batch=4)
    out = network(x)
    (out * torch.randn_like(out)).sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize(
    ("name", "cuts"),
    [  # one interior of each network: the layers whose outputs, then whose inputs, lose channels
        ("vgg11", (["features.0", "features.1"], ["features.4"])),
        (
            "mobilenet_v2",
            (["blocks.2.expand", "blocks.2.expand_norm", "blocks.2.depthwise_norm"], ["blocks.2.project"]),
        ),
        ("unet", (["encoder.3.0", "encoder.3.1"], ["encoder.3.3"])),
    ],
)
def test_forward_runs_after_slicing(name: str, cuts: tuple[list[str], list[str]]) -> None:
    network = small(name).eval()
    outputs, inputs = cuts
    kept = network.get_submodule(outputs[1]).num_features // 2
    with torch.no_grad():
        for path in outputs:
            cut(network.get_submodule(path), 0, kept)
        for path in inputs:
            cut(network.get_submodule(path), 1, kept)
        if name == "mobilenet_v2":
            depthwise = network.get_submodule("blocks.2.depthwise")
            cut(depthwise, 0, kept)
            depthwise.groups = kept
        assert network(images(name)).isfinite().all()


def cut(layer: nn.Module, dim: int, kept: int) -> None:
    layer.weight = nn.Parameter(layer.weight.narrow(dim, 0, kept).clone())
    if isinstance(layer, nn.BatchNorm2d):
        layer.bias = nn.Parameter(layer.bias[:kept].clone())
        layer.running_mean, layer.running_var = layer.running_mean[:kept], layer.running_var[:kept]


@pytest.mark.parametrize("name", NAMES)
def test_compiles_to_one_graph(name: str) -> None:
    torch.compiler.reset()
    network, x = small(name).eval(), images(name)
    with torch.no_grad():
        compiled = torch.compile(network, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), network(x), rtol=0, atol=0)
    torch.compiler.reset()


@pytest.mark.parametrize("name", NAMES)
def test_config_rebuilds_the_network_through_json(name: str) -> None:
    network = small(name, num_classes=3)
    config = json.loads(json.dumps(network.config))
    again = build(name, **config)
    assert type(again) is MODELS[name]
    assert again.config == network.config == config
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in network.state_dict().items()}
    again.load_state_dict(network.state_dict())
    x = images(name)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(x), network.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_config_is_one_for_trainer_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    network = small(name)
    before = dict(network.config)
    args = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    transformers.Trainer(network, args)  # sets `config.use_cache`
    assert network.config.use_cache is False
    assert network.config == before == network.config.to_dict() == json.loads(network.config.to_json_string())
    assert copy.deepcopy(network).config == pickle.loads(pickle.dumps(network)).config == before
    network.config = before  # planted: a plain dict
    with pytest.raises(AttributeError, match="use_cache"):
        transformers.Trainer(network, args)


@pytest.mark.parametrize("name", NAMES)
def test_config_holds_every_argument(name: str) -> None:
    network = on_meta(MODELS[name])
    arguments = MODELS[name].__init__.__code__
    assert tuple(network.config) == arguments.co_varnames[1 : arguments.co_argcount]


@pytest.mark.parametrize(
    ("layer", "std"),
    [
        (nn.Conv2d(64, 32, 3), math.sqrt(2 / (9 * 32))),
        (nn.Conv2d(64, 128, 3, groups=4), math.sqrt(2 / (9 * 32))),
        (nn.Conv2d(2048, 2048, 3, groups=2048), math.sqrt(2 / 9)),
        (nn.ConvTranspose2d(64, 32, 2, stride=2), math.sqrt(2 / (4 * 32))),
        (nn.Linear(512, 16), math.sqrt(1 / 512)),
    ],
    ids=str,
)
def test_initial_weights_have_the_stated_scale(layer: nn.Module, std: float) -> None:
    initialise(layer)
    # 8192 weights or more: a relative error of 0.8 % in one standard deviation.
    assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.05)
    assert layer.bias.abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_first_logits_are_of_order_one(name: str) -> None:
    assert 0.1 < float(small(name)(images(name, batch=8)).detach().std()) < 3
