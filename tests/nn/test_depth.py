"""Depth: blocks of a stage are dropped from its end, and the masked network is the one without them."""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from structures import gap, mixed_shapes, randomise, run, uniform_shapes
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

import vnd
from refusals import refused
from vnd.methods.nested import TrainableSubnet
from vnd.nn import depth as depth_module
from vnd.nn.depth import BlockMask, Skip
from vnd.nn.profile import Counter, cost_of
from vnd.nn.state import state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")


class Basic(nn.Module):
    """A residual block of two convolutions, whose activation comes after the addition."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        same = stride == 1 and inputs == channels
        self.shortcut = None if same else nn.Conv2d(inputs, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """A stem, a stage of three blocks, and one of a strided block and three more."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Sequential(*[Basic(8, 8) for _ in range(3)])
        self.second = nn.Sequential(Basic(8, 12, 2), *[Basic(12, 12) for _ in range(3)])
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(F.relu(self.stem(x)))).mean((2, 3)))


class PreNorm(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Blocks in a list, run by a loop."""

    def __init__(self, block: Callable[[int], nn.Module] = PreNorm, blocks: int = 4) -> None:
        super().__init__()
        self.inputs = nn.Linear(5, 16)
        self.blocks = nn.ModuleList(block(16) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


@dataclass
class Output:
    """What a block gives: a stream, and a bias for the next block."""

    hidden: Tensor
    bias: Tensor | None = None
    scores: Tensor | None = None


class PostNorm(nn.Module):
    """A post-norm block that hands a bias on, and gives scores that nobody reads."""

    kind = "full"

    def __init__(self, width: int, form: str) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(width, 24), nn.Linear(24, width), nn.LayerNorm(width)
        self.form, self.layer_type = form, "full"

    def forward(self, hidden: Tensor, bias: Tensor, shift: float = 0.0) -> Any:
        inner = torch.tanh(self.inner(hidden) + bias)
        out = self.norm(hidden + self.outer(inner) + shift)
        if self.form == "tuple":
            return out, bias, inner
        if self.form == "dict":
            return {"hidden": out, "bias": bias, "scores": inner}
        return Output(out, bias, inner)


class Handing(nn.Module):
    """Blocks called by name, that ask each block for a plain attribute, and give more than their stream."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.inputs = nn.Linear(5, 16)
        self.layers = nn.ModuleList(PostNorm(16, form) for _ in range(4))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Any = None
        hidden, bias = self.inputs(x), x.mean((1, 2), keepdim=True)
        for layer in self.layers:
            out = layer(hidden=hidden, bias=bias, shift={"full": 0.5}[layer.layer_type])
            parts = out if isinstance(out, tuple) else (*out.values(),) if isinstance(out, dict) else vars(out).values()
            hidden, bias, _ = parts
        return self.head(hidden.mean(1))


def encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(5, 16), stack, nn.Flatten(), nn.Linear(6 * 16, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, int]]] = {
    "resnet": (ResNet, (3, 3, 8, 8), {"first[depth]": 3, "second[depth]": 3}),
    "pre-norm": (Transformer, (3, 6, 5), {"blocks[depth]": 4}),
    "tuples": (lambda: Handing("tuple"), (3, 6, 5), {"layers[depth]": 4}),
    "dicts": (lambda: Handing("dict"), (3, 6, 5), {"layers[depth]": 4}),
    "dataclasses": (lambda: Handing("dataclass"), (3, 6, 5), {"layers[depth]": 4}),
    "torch's encoder, pre-norm": (lambda: encoder(True), (3, 6, 5), {"1.layers[depth]": 3}),
    "torch's encoder, post-norm": (lambda: encoder(False), (3, 6, 5), {"1.layers[depth]": 3}),
}
named = pytest.mark.parametrize("name", NETWORKS)


def make(name: str, **options: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(len(name))
    build, size, _ = NETWORKS[name]
    plain, x = randomise(build()).double().eval(), torch.randn(size).double()
    return plain, vnd.to_nested(plain, x, **{"num_groups": 4, "depth": True, **options}).eval(), x


def shapes_of(net: nn.Module) -> list[vnd.Shape]:
    return uniform_shapes(net) + mixed_shapes(net)


@torch.no_grad()
def worst_gap(net: nn.Module, x: Tensor, keep: Any = "mean") -> float:
    gaps = []
    for shape in shapes_of(net):
        with vnd.width(net, shape):
            gaps.append(gap(run(net, x), run(vnd.extract(net, shape, keep).eval(), x)))
    return max(gaps)


# -- the law ----------------------------------------------------------------------------------------------------------


@named
@pytest.mark.parametrize("residual", [False, True])
def test_masked_and_extracted_agree_at_every_depth_and_width(name, residual):
    _, net, x = make(name, residual=residual)
    assert {unit: len(stage.blocks) for unit, stage in state_of(net).stages.items()} == NETWORKS[name][2]
    assert worst_gap(net, x) <= 1e-12
    assert worst_gap(net, x, "nested") <= 1e-12


@named
def test_the_full_network_is_the_original_and_every_depth_another_one(name):
    plain, net, x = make(name)
    assert gap(run(plain, x), run(net, x)) <= 1e-12
    full, units = dict(state_of(net).full), NETWORKS[name][2]
    for unit, blocks in units.items():
        outputs = [run(plain, x)]
        for kept in range(1, blocks):
            with vnd.width(net, vnd.Shape({**full, unit: kept})):
                outputs.append(run(net, x))
        assert all(gap(a, b) > 1e-6 for a, b in itertools.combinations(outputs, 2))


def test_a_dropped_block_hands_on_its_input_and_the_others_keep_their_names():
    plain, net, x = make("pre-norm")
    small = vnd.extract(net, vnd.Shape({**state_of(net).full, "blocks[depth]": 2}))
    assert [type(block) for block in small.blocks] == [PreNorm, PreNorm, Skip, Skip]
    dropped = ("blocks.2.", "blocks.3.")
    kept = {name: value for name, value in plain.state_dict().items() if not name.startswith(dropped)}
    assert small.state_dict().keys() == kept.keys()
    assert all(torch.equal(small.state_dict()[name], value) for name, value in kept.items())
    by_hand = plain.inputs(x)
    for block in plain.blocks[:2]:
        by_hand = block(by_hand)
    assert gap(plain.head(plain.norm(by_hand).mean(1)), small(x)) <= 1e-12


def test_without_channels_only_depth_is_nested():
    _, net, x = make("resnet", rules={"*": vnd.Rule(nest=False)})
    assert list(state_of(net).units) == ["first[depth]", "second[depth]"]
    assert worst_gap(net, x) <= 1e-12


def test_no_block_is_dropped_unless_asked():
    _, net, _ = make("resnet", depth=False)
    assert not state_of(net).stages
    assert not any("depth" in name for name in (*state_of(net).units, *state_of(net).whole))


def test_of_blocks_within_blocks_the_outer_ones_are_ordered_unless_a_rule_leaves_them():
    class Outer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.parts = nn.ModuleList(PreNorm(width) for _ in range(2))
            self.last = nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            y = x
            for part in self.parts:
                y = part(y)
            return x + self.last(y)

    torch.manual_seed(0)
    plain, x = Transformer(Outer, 2).double(), torch.randn(2, 6, 5).double()
    assert list(state_of(vnd.to_nested(plain, x, depth=True)).stages) == ["blocks[depth]"]
    rules = {"blocks.0": vnd.Rule(nest=False, granularity="depth")}
    net = vnd.to_nested(plain, x, num_groups=4, depth=True, rules=rules).eval()
    assert list(state_of(net).stages) == ["blocks.1.parts[depth]"]  # the other inner ones lie in what the rule matches
    assert worst_gap(net, x) <= 1e-12


# -- planted faults ---------------------------------------------------------------------------------------------------


def noisy(self: Skip, *args: Any, **kwargs: Any) -> Any:
    out = self.form.skip(args, kwargs)
    return out + torch.linspace(0, 1e-3, out.size(-1)).to(out)


def one_too_early(net: nn.Module) -> None:
    """Let each block have the mask of the one before."""
    masks = [getattr(hook, "__self__", None) for module in net.modules() for hook in module._forward_hooks.values()]
    for mask in masks:
        if isinstance(mask, BlockMask):
            mask.index = max(0, mask.index - 1)


@pytest.mark.parametrize("fault", ["a skip that adds", "a mask off by one"])
def test_the_trial_at_conversion_finds_a_wrong_cut(fault, monkeypatch):
    torch.manual_seed(0)
    plain, x = Transformer().double(), torch.randn(2, 6, 5).double()
    if fault == "a skip that adds":
        monkeypatch.setattr(Skip, "forward", noisy)
    else:

        def masks(net: nn.Module, stages: Any, units: Any) -> None:
            depth_module.mask_blocks(net, stages, units)
            one_too_early(net)

        monkeypatch.setattr("vnd.nn.conversion.mask_blocks", masks)
    with pytest.warns(UserWarning, match="depth=True has no effect: blocks: a sliced network does not compute"):
        net = vnd.to_nested(plain, x, num_groups=4, depth=True)
    assert not state_of(net).stages
    assert "blocks[depth]" in dict(vnd.describe(net).whole)


def test_the_law_itself_finds_a_mask_off_by_one():
    _, net, x = make("pre-norm")
    one_too_early(net)
    assert worst_gap(net, x) > 1e-3


# -- masks and gradients ----------------------------------------------------------------------------------------------


def test_the_gradient_reaches_the_order_as_the_mask_says():
    plain, net, x = make("pre-norm", gradient="survival", bayesian=False, rules={"*": vnd.Rule(nest=False)})
    unit, target = state_of(net).units["blocks[depth]"], torch.randn(3, 3).double()
    net.train()
    state_of(net).quantile.start.fill_(2**31)
    (net(x) - target).square().sum().backward()
    z = unit.mask().detach().round().requires_grad_()  # the same u: evaluated after the pass, before the next
    logits = unit.keep_logits.detach().clone().requires_grad_()
    hidden = plain.inputs(x)
    for index, block in enumerate(plain.blocks):
        hidden = hidden + z[index] * (block(hidden) - hidden)
    (plain.head(plain.norm(hidden).mean(1)) - target).square().sum().backward()
    (vnd.BernoulliChain(logits).mean * z.grad[1:]).sum().backward()
    assert unit.keep_logits.grad.abs().min() > 0
    torch.testing.assert_close(unit.keep_logits.grad, logits.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "options", [{"hard": False}, {"gradient": "downhill"}, {"per_example": True}, {"coupling": "independent"}]
)
def test_every_parameter_gets_a_finite_gradient(options):
    _, net, x = make("resnet", residual=True, **options)
    net.train()
    for _ in range(3):
        (net(x).square().sum() + 1e-6 * vnd.kl(net)).backward()
    grads = {name: p.grad for name, p in net.named_parameters()}
    assert [name for name, grad in grads.items() if grad is None or not grad.isfinite().all()] == []
    assert all(unit.keep_logits.grad.abs().min() > 0 for unit in state_of(net).units.values())


def test_each_example_has_a_depth_of_its_own():
    _, net, x = make("pre-norm", bayesian=False, per_example=True, rules={"*": vnd.Rule(nest=False)})
    unit = state_of(net).units["blocks[depth]"]
    with torch.no_grad():
        unit.keep_logits.fill_(0.0)
    x = torch.randn(16, 6, 5).double()
    with torch.no_grad():
        out = net.train()(x)
    net.eval()
    depths = []
    for index in range(len(x)):
        gaps = []
        for kept in range(1, 5):
            with vnd.width(net, vnd.Shape({"blocks[depth]": kept})):
                gaps.append(float((net(x[index : index + 1])[0] - out[index]).detach().abs().max()))
        assert min(gaps) <= 1e-12
        depths.append(gaps.index(min(gaps)) + 1)
    assert {1, 2, 3, 4} == set(depths)


def test_examples_along_another_dimension_have_no_masks_of_their_own():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24)
    plain = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3))
    x = torch.randn(6, 4, 16)

    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(0, 1)).mean(0)

    net = vnd.to_nested(
        Transposed(), x, depth=True, per_example=True, bayesian=False, rules={"*": vnd.Rule(nest=False)}
    )
    refused(lambda: net.train()(x), "per_example masks need the examples along dimension 0 of a block's output; got")


def test_a_measured_order_and_a_checkpointed_block():
    class Checkpointed(Transformer):
        def forward(self, x: Tensor) -> Tensor:
            x = self.inputs(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if torch.is_grad_enabled() else block(x)
            return self.head(self.norm(x).mean(1))

    torch.manual_seed(0)
    plain, x = Checkpointed().double(), torch.randn(2, 6, 5).double()
    net = vnd.to_nested(plain, x, num_groups=4, depth=True, bayesian=False).train()
    twin = vnd.to_nested(Transformer().double(), x, num_groups=4, depth=True, bayesian=False).train()
    twin.load_state_dict(net.state_dict())
    for network in (net, twin):
        torch.manual_seed(1)
        (network(x).square().sum() + vnd.step_order(network, lambda n=network: n(x).square().sum())).backward()
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


# -- the KL -----------------------------------------------------------------------------------------------------------


def toy() -> nn.Module:
    torch.manual_seed(0)

    class Small(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(width, 4), nn.Linear(4, width)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.b(torch.tanh(self.a(x)))

    plain = Transformer(Small, 3).double()
    net = vnd.to_nested(plain, torch.randn(2, 6, 5).double(), num_groups=3, depth=True)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("keep_logits"):
                parameter.copy_(torch.randn_like(parameter))
            elif name.endswith("log_alpha"):
                parameter.uniform_(-4, 0)
    return net


def lengths(unit: vnd.OrderingUnit) -> list[tuple[int, float]]:
    """Number of groups and probability."""
    probs = unit.posterior().chain.length_log_probs.exp().tolist()
    return [(unit.base + n, p) for n, p in enumerate(probs)]


@torch.no_grad()
def test_the_kl_is_that_of_an_enumeration_of_depths_and_lengths():
    net = toy()
    units, weights = state_of(net).units, dict(net.named_modules())
    stage = units.pop("blocks[depth]")
    state_of(net).units["blocks[depth]"] = stage
    outside = sum(float(weights[name].weight_kl().sum()) for name in ("inputs", "head"))
    total = float(stage.kl()) + outside
    for depth, chance in lengths(stage):
        for k in range(depth):
            unit = units[f"blocks.{k}.a"]
            total += chance * (float(unit.kl()) + float(weights[f"blocks.{k}.b"].weight_kl().sum()))
            cost = weights[f"blocks.{k}.a"].weight_kl().sum(1)
            for groups, probability in lengths(unit):
                total += chance * probability * float(cost[unit.kept_channels(groups)].sum())
    assert float(vnd.kl(net)) == pytest.approx(total, rel=1e-6)


@torch.no_grad()
def test_the_smallest_probability_is_that_of_units_that_share_a_quantile():
    net = toy()
    units, modules = state_of(net).units, dict(net.named_modules())
    stage = units["blocks[depth]"]
    total = float(stage.kl()) + sum(float(modules[name].weight_kl().sum()) for name in ("inputs", "head"))
    for k in range(3):
        total += float(stage.survival()[k] * units[f"blocks.{k}.a"].kl())
    ends = sorted({0.0, 1.0, *(float(p) for unit in units.values() for p in unit.survival())})
    for low, high in itertools.pairwise(ends):
        u = (low + high) / 2
        for k in range(int((stage.survival() > u).sum())):
            unit = units[f"blocks.{k}.a"]
            kept = unit.kept_channels(int((unit.survival() > u).sum()))
            costs = (
                modules[f"blocks.{k}.a"].weight_kl()[kept].sum() + modules[f"blocks.{k}.b"].weight_kl()[:, kept].sum()
            )
            total += (high - low) * float(costs)
    assert float(vnd.kl(net, "min")) == pytest.approx(total, rel=1e-6)


def test_the_kl_alone_moves_the_depth():
    net = toy()
    stage = state_of(net).units["blocks[depth]"]
    (vnd.kl(net) - vnd.kl(net).detach() + 0 * stage.keep_logits.sum()).backward()
    assert (stage.keep_logits.grad > 0).all()  # weights cost, so that fewer blocks are kept


# -- sizes ------------------------------------------------------------------------------------------------------------


@named
def test_counts_from_layouts_are_those_of_what_is_extracted(name):
    _, net, _ = make(name, residual=True)
    counter = Counter(net)
    for shape in shapes_of(net):
        small = vnd.extract(net, shape, warn=False)
        counted = counter.profile(shape)
        assert counted.parameters == sum(p.numel() for p in small.parameters())
        assert counted.bytes == sum(x.numel() * x.element_size() for x in (*small.parameters(), *small.buffers()))


@pytest.mark.parametrize("name", ["resnet", "tuples"])
@pytest.mark.parametrize("budget", ["parameters", "macs", "bytes"])
def test_a_budget_is_kept_and_one_group_more_would_break_it(name, budget):
    _, net, _ = make(name, residual=True)
    torch.manual_seed(1)
    units = state_of(net).units
    with torch.no_grad():
        for unit in units.values():
            unit.keep_logits.normal_(1, 1)
        for name_of_stage in NETWORKS[name][2]:
            units[name_of_stage].keep_logits.fill_(0.0)
    full = getattr(vnd.profile(net, 1.0), budget)
    previous = None
    for share in (0.3, 0.5, 0.8):
        shape = vnd.shape(net, **{budget: share * full})
        assert getattr(vnd.profile(net, shape), budget) <= share * full
        survival = [(unit.survival()[shape[n]].item(), n) for n, unit in units.items() if shape[n] < unit.num_groups]
        bigger = vnd.Shape({**shape, max(survival)[1]: shape[max(survival)[1]] + 1})
        assert getattr(vnd.profile(net, bigger), budget) > share * full
        assert previous is None or all(previous[n] <= shape[n] for n in shape)
        previous = shape
        assert share > 0.3 or any(shape[n] < units[n].num_groups for n in NETWORKS[name][2])


def test_macs_are_counted_without_running_each_size(monkeypatch):
    _, net, _ = make("resnet")
    wanted = {shape: vnd.profile(net, shape).macs for shape in mixed_shapes(net)}
    cost = cost_of(net, "macs")
    monkeypatch.setattr(sys.modules["vnd.nn.profile"], "slice_network", None)  # so that none is cut from here on
    assert {shape: cost(shape) for shape in wanted} == wanted


def test_a_description_names_the_blocks():
    _, net, _ = make("resnet")
    rows = {row["unit"]: row for row in vnd.describe(net).rows()}
    assert rows["second[depth]"] == {
        **{"unit": "second[depth]", "channels": 3, "groups": 3, "base": 1, "tiles": 1},
        "expected": rows["second[depth]"]["expected"],
        "tied": ["second.1", "second.2", "second.3"],
    }
    _, without, _ = make("resnet", depth=False)
    assert vnd.describe(net).share > vnd.describe(without).share + 0.1


# -- statistics, files, other verbs -----------------------------------------------------------------------------------


def test_statistics_are_those_of_a_network_of_that_depth():
    _, net, x = make("resnet")
    shape = vnd.Shape({**state_of(net).full, "first[depth]": 2, "second[depth]": 1})
    batches = [torch.randn(4, 3, 8, 8).double() for _ in range(3)]
    small = vnd.extract(net, shape, warn=False)
    for norm in small.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None
    small.train()
    for batch in batches:
        small(batch)
    vnd.recalibrate(net, batches, widths=(shape,))
    assert gap(small.eval()(x), vnd.extract(net, shape)(x)) <= 1e-12
    with vnd.width(net, shape):
        assert gap(small(x), net(x)) <= 1e-12
    trained = dict(net.named_modules())["first.2.bn1"].trained[0]
    assert torch.equal(state_of(net).statistics[shape, False]["first.2.bn1"][0], trained)  # of a block that is dropped


def test_a_masked_network_collects_the_same_statistics():
    _, net, x = make("resnet")
    shape = vnd.Shape({**state_of(net).full, "first[depth]": 2})
    batches = [torch.randn(4, 3, 8, 8).double() for _ in range(2)]
    vnd.recalibrate(net, batches, widths=(shape,))
    wanted = vnd.extract(net, shape)(x)
    net.first[0].register_forward_hook(lambda module, args, output: output)  # a copy might not have what this does
    vnd.recalibrate(net, batches, widths=(shape,))
    assert gap(wanted, vnd.extract(net, shape)(x)) <= 1e-12


@named
def test_networks_come_back_from_files(name, tmp_path):
    plain, net, x = make(name, residual=True)
    with torch.no_grad():
        for unit in state_of(net).units.values():
            unit.keep_logits.normal_()
    shape = mixed_shapes(net)[0]
    cut = vnd.extract(net, shape, "nested").eval()
    again = vnd.extract(cut, vnd.Shape({n: u.base for n, u in state_of(cut).units.items()}), "nested").eval()
    for index, network in enumerate((net, cut, again, vnd.extract(net, shape), vnd.extract(net, shape, "posterior"))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = vnd.load(vnd.save(network, tmp_path / str(index)), model=plain)
        network.eval()
        assert torch.equal(run(network, x), run(loaded, x))
        assert loaded.state_dict().keys() == network.state_dict().keys()
        if index < 3:
            assert vnd.shape(loaded, level=0.6) == vnd.shape(network, level=0.6)


def test_a_nested_cut_forgets_what_was_in_dropped_blocks():
    _, net, x = make("resnet")
    full = state_of(net).full
    shape = vnd.Shape({**full, "first[depth]": 2})
    batches = [torch.randn(4, 3, 8, 8).double()]
    smaller = vnd.Shape({**full, "first[depth]": 1, "second.0.conv1": 2})
    vnd.recalibrate(net, batches, widths=(shape, smaller, 1.0))
    cut = vnd.extract(net, shape, "nested").eval()
    state = state_of(cut)
    gone = [name for name in full if name.startswith("first.2")]
    assert gone
    assert list(state.units) == [name for name in full if name not in gone]
    assert state.stages["first[depth]"].blocks == ("first.0", "first.1")
    inside = [*state.inputs, *state.outputs, *state.parameters, *state.groups, *state.within]
    assert not [name for name in inside if name.startswith("first.2")]
    assert len(state.statistics) == 2
    assert not [name for held in state.statistics.values() for name in held if name.startswith("first.2")]
    own = vnd.Shape({name: groups for name, groups in smaller.items() if name in state.units})
    with vnd.width(cut, own), vnd.width(net, smaller):
        assert gap(net(x), cut(x)) <= 1e-12
    assert gap(vnd.extract(net, smaller)(x), vnd.extract(cut, own)(x)) <= 1e-12
    (cut.train()(x).square().sum() + vnd.kl(cut)).backward()
    assert all(unit.keep_logits.grad is not None for unit in state.units.values())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("training", [False, True])
def test_one_graph_serves_all_depths(training):
    torch.compiler.reset()
    _, net, x = make("pre-norm", residual=True, bayesian=False)
    net.train(training)
    counter = CompileCounter()
    compiled = torch.compile(net, backend=counter, fullgraph=True)
    shapes = shapes_of(net)
    graphs = set()
    for shape in shapes:
        with vnd.width(compiled, shape):
            out = compiled(x)
        graphs.add(counter.frame_count)
        with vnd.width(net, shape):
            assert gap(net(x), out) <= 1e-12
    assert len(graphs) == 1
    torch.compiler.reset()


def test_prediction_and_training_of_a_small_part_run_at_a_depth():
    _, net, x = make("pre-norm", residual=True, bayesian=False)
    shape = vnd.Shape({**state_of(net).full, "blocks[depth]": 2})
    prediction = vnd.predict(net, x, width=shape, samples=0)
    assert gap(vnd.extract(net, shape)(x).softmax(1), prediction.probs.double()) <= 1e-6
    small = TrainableSubnet(net, shape)
    with vnd.width(net, shape):
        assert gap(net.train()(x), small(x)) <= 1e-12
    small(x).square().sum().backward()
    assert net.blocks[1].mlp[0].weight.grad.abs().sum() > 0
    assert net.blocks[2].mlp[0].weight.grad is None


def test_a_part_of_a_larger_model_loses_blocks():
    _, net, x = make("pre-norm")
    model = nn.Sequential(nn.Linear(5, 5).double(), net, nn.Linear(3, 2).double()).eval()
    for share in (0.25, 0.5, 1.0):
        shape = vnd.shape(model, fraction=share)
        with vnd.width(model, shape):
            masked = model(x)
        small = vnd.extract(model, shape)
        assert gap(masked, small(x)) <= 1e-12
        assert Counter(model).profile(shape).parameters == sum(p.numel() for p in small.parameters())


def test_the_smallest_sizes_need_no_block_where_a_rule_says_so():
    rules = {"second": vnd.Rule(granularity="depth", base=0), "first": vnd.Rule(granularity="depth", num_groups=2)}
    _, net, x = make("resnet", rules=rules)
    units = state_of(net).units
    assert [(unit.base, unit.num_groups) for name, unit in units.items() if "depth" in name] == [(1, 2), (0, 3)]
    least = vnd.Shape({name: unit.base for name, unit in units.items()})
    vnd.recalibrate(net, [torch.randn(4, 3, 8, 8).double()], widths=(least,))
    small = vnd.extract(net, least)
    assert [type(block) for block in (*small.first, *small.second)] == [Basic, Basic, Skip, Basic, Skip, Skip, Skip]
    with vnd.width(net, least):
        assert gap(net(x), small(x)) <= 1e-12
    assert worst_gap(net, x) <= 1e-12
    refused(lambda: vnd.extract(net, least, "nested"), "needs at least one group of each unit; got none of second[dep")


def test_the_prior_of_a_depth_is_the_same_share_unless_a_rule_gives_one():
    _, net, _ = make("pre-norm", prior=2.0)  # of four groups, one of which always stays: a third of the others
    unit = state_of(net).units["blocks[depth]"]
    assert float(unit.prior.expected_length) == pytest.approx(1.0, abs=1e-4)
    rules = {"blocks": vnd.Rule(granularity="depth", prior=3.5)}
    _, net, _ = make("pre-norm", prior=2.0, rules=rules)
    assert float(state_of(net).units["blocks[depth]"].prior.expected_length) == pytest.approx(2.5, abs=1e-4)


# -- refusals ---------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """A block that adds nothing to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 8), nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class InPlace(Plain):
    """A block that writes on its input."""

    def forward(self, x: Tensor) -> Tensor:
        x += super().forward(x)
        return x


class Adding(Plain):
    """A residual block."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Streams(Plain):
    """A block of several streams in a list, whose entries it replaces."""

    def forward(self, streams: list[Tensor]) -> list[Tensor]:
        streams[0] = streams[0] + super().forward(streams[0])
        return [*streams]


class Branches(Transformer):
    """Blocks that take and give lists."""

    def forward(self, x: Tensor) -> Tensor:
        streams = [self.inputs(x), x]
        for block in self.blocks:
            streams = block(streams)
        return self.head(self.norm(streams[0]).mean(1))


class Between(Transformer):
    """Something lies between the blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        for block in self.blocks:
            x = block(x) * 2
        return self.head(self.norm(x).mean(1))


def shared() -> nn.Module:
    net = Transformer(Adding)
    for block in net.blocks[1:]:
        block.b.weight = net.blocks[0].b.weight
    return net


REASONS = {
    "a block that adds nothing": (lambda: Transformer(Plain), "blocks: its block blocks.0 adds nothing to its input"),
    "in a list in place": (lambda: Branches(Streams), "blocks: its block blocks.0 changes its input in place"),
    "in place": (lambda: Transformer(InPlace), "blocks: its block blocks.0 changes its input in place"),
    "something between": (lambda: Between(Adding), "blocks: its blocks do not feed one another"),
    "a shared weight": (shared, "blocks: its block blocks.0 shares a weight with blocks.1.b.weight"),
    "no blocks": (lambda: nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)), "Sequential: it has no blocks of one class"),
    "one block": (lambda: Transformer(Adding, 1), "Transformer: it has no blocks of one class in consecutive places"),
}


@pytest.mark.parametrize("name", REASONS)
def test_that_nothing_is_dropped_is_said_with_the_reason(name):
    torch.manual_seed(0)
    build, words = REASONS[name]
    with pytest.warns(UserWarning, match=f"^to_nested: depth=True has no effect: {re.escape(words)}"):
        net = vnd.to_nested(build(), torch.randn(2, 6, 5), num_groups=4, depth=True)
    container, _, reason = words.partition(": ")
    whole = dict(vnd.describe(net).whole)
    assert reason in whole[f"{container if container in ('blocks',) else ''}[depth]"]
    assert not state_of(net).stages


def test_what_a_dropped_block_gives_beside_its_stream_must_not_be_needed():
    class Reading(Handing):
        def forward(self, x: Tensor) -> Any:
            hidden, bias, scores = self.inputs(x), x.mean((1, 2), keepdim=True), 0
            for layer in self.layers:
                hidden, bias, own = layer(hidden, bias)
                scores = scores + (0 if own is None else own.sum((1, 2), keepdim=True))
            return self.head(hidden.mean(1)), scores

    torch.manual_seed(0)
    x = torch.randn(2, 6, 5).double()
    with pytest.warns(UserWarning, match="layers: a sliced network does not compute what the masked one does"):
        net = vnd.to_nested(Reading("tuple").double(), x, num_groups=4, depth=True)
    assert not state_of(net).stages
    net = vnd.to_nested(Reading("tuple").double(), x, num_groups=4, depth=True, output=0).eval()
    assert list(state_of(net).stages) == ["layers[depth]"]


def test_blocks_that_are_ruled_out_stay_without_a_word():
    rules = {"first": vnd.Rule(granularity="depth", nest=False)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, net, x = make("resnet", rules=rules)
    assert list(state_of(net).stages) == ["second[depth]"]
    assert "first.0.conv1" in state_of(net).units  # its channels are ordered
    assert worst_gap(net, x) <= 1e-12


def test_a_rule_of_blocks_needs_blocks():
    torch.manual_seed(0)
    plain, x = Transformer(Adding), torch.randn(2, 6, 5)
    rules = {"blocks": vnd.Rule(granularity="depth", base=2)}
    refused(lambda: vnd.to_nested(plain, x, rules=rules), "the rule 'blocks' is of blocks; give depth=True, too")
    rules = {"head": vnd.Rule(granularity="depth", base=2)}
    with pytest.warns(UserWarning, match="the rule 'head' matches no stage of blocks"):
        vnd.to_nested(plain, x, num_groups=4, depth=True, rules=rules)


def test_a_network_without_anything_to_nest_says_why_its_blocks_stay():
    plain = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    refused(
        lambda: vnd.to_nested(plain, torch.randn(2, 5), depth=True),
        ("nothing of Sequential can be nested", "it has no blocks of one class in consecutive places"),
    )


def test_a_student_of_a_teacher_whose_blocks_are_ordered_has_all_blocks():
    from vnd.methods.sn3 import prune

    _, net, x = make("resnet")
    student = prune(net, 0.5, x)
    kept = {name: unit.num_groups for name, unit in state_of(student).units.items()}
    stages = {name: unit.num_groups for name, unit in state_of(net).units.items() if name.endswith("[depth]")}
    assert stages
    assert {name: kept[name] for name in stages} == stages
    assert any(kept[name] < unit.num_groups for name, unit in state_of(net).units.items() if name in kept)


# -- networks of others -----------------------------------------------------------------------------------------------


def test_a_language_model_generates_alike_masked_and_without_its_last_blocks():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{"hidden_size": 16, "intermediate_size": 32, "vocab_size": 50, "num_hidden_layers": 4, "eos_token_id": None},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0},
    )
    plain, tokens = transformers.LlamaForCausalLM(config).eval(), torch.randint(1, 50, (2, 5))
    options = {"num_groups": 4, "depth": True, "output": "logits", "bayesian": False}
    net = vnd.to_nested(plain, {"input_ids": tokens}, **options).eval()
    given = {"max_new_tokens": 6, "do_sample": False}
    written = []
    for kept in (1, 2, 4):
        shape = vnd.Shape({**state_of(net).full, "model.layers[depth]": kept})
        vnd.set_width(net, shape)
        small = vnd.extract(net, shape)
        assert [type(block) is Skip for block in small.model.layers] == [False] * kept + [True] * (4 - kept)
        written.append(net.generate(tokens, **given))
        assert torch.equal(written[-1], small.generate(tokens, **given))
    assert torch.equal(written[-1], plain.generate(tokens, **given))
    assert not torch.equal(written[0], written[-1])
