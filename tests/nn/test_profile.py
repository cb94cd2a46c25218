"""What a network costs: counted and timed on itself, and left as it was."""

import random
import sys
from dataclasses import replace

import pytest
import torch
from structures import NETWORKS, make, mixed_shapes
from torch import nn
from user_networks import USER_NETWORKS

import vnd
from vnd.nn.profile import Counter, cost_of, latency
from vnd.nn.state import state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")  # of no matter for a cost


def modes(net):
    return [module.training for module in net.modules()]


@pytest.mark.parametrize("cost", [vnd.profile, latency])
def test_a_plain_network_is_not_extracted_again_and_keeps_its_modes(cost, monkeypatch):
    _, net, x = make("flatten")
    small = vnd.extract(net, 0.5).train()
    small[1].eval()
    before, weights = modes(small), [p.clone() for p in small.parameters()]

    def refuse(*_, **__):
        raise AssertionError("extracted again")

    monkeypatch.setattr(sys.modules["vnd.nn.profile"], "slice_network", refuse)
    cost(small, example_input=x)
    assert modes(small) == before
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), weights, strict=True))
    with pytest.raises(AssertionError, match="extracted again"):
        cost(net, 0.5, x)


def test_a_failing_example_leaves_the_modes_as_they_were():
    small = vnd.extract(make("flatten")[1], 0.5).train()
    for cost in (vnd.profile, latency):
        with pytest.raises(ValueError, match="example_input must be what the network reads; got a tensor of shape"):
            cost(small, example_input=torch.zeros(1, 7))
        assert all(modes(small))
        assert not any(module._forward_hooks for module in small.modules())


def test_a_cost_counted_on_the_extracted_network_is_that_of_the_nested_one():
    _, net, x = make("vgg11")
    assert vnd.profile(vnd.extract(net, 0.5), example_input=x) == vnd.profile(net, 0.5, x)
    assert latency(net, 0.5, x, repeats=1) > 0


def random_shape(net, seed=0):
    draw = random.Random(seed)
    return vnd.Shape({n: draw.randint(unit.base, unit.num_groups) for n, unit in state_of(net).units.items()})


def counted_and_extracted(net, x):
    shape = random_shape(net)
    macs = cost_of(net, "macs", x)(shape)
    return replace(vnd.profile(net, shape, count_macs=False), macs=macs), vnd.profile(vnd.extract(net, shape), None, x)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_counted_from_layouts_is_what_is_extracted(name):
    _, net, x = make(name)
    counted, extracted = counted_and_extracted(net, x)
    assert counted == extracted


@pytest.mark.parametrize("kind", ["input", "weight"])
def test_own_rows_and_single_weights_are_counted_as_they_are_extracted(kind):
    _, net, x = make("flatten", rules={"5": vnd.Rule(granularity=kind)})
    counted, extracted = counted_and_extracted(net, x)
    assert counted == extracted


def test_a_count_with_the_wrong_end_of_a_layer_is_caught():
    _, net, x = make("uneven")
    state = state_of(net)
    state.inputs["layers.1"] = state.outputs["layers.1"]
    counter, shape = Counter(net), random_shape(net)
    state.inputs["layers.1"] = state.outputs["layers.0"]
    assert counter.profile(shape).parameters != vnd.profile(vnd.extract(net, shape), None, x).parameters


def test_a_budget_is_met_without_extraction(monkeypatch):
    _, net, _ = make("vgg11")
    monkeypatch.setattr(sys.modules["vnd.nn.profile"], "slice_network", None)
    budget = vnd.profile(net, 0.5, count_macs=False).parameters
    assert vnd.profile(net, vnd.shape(net, parameters=budget), count_macs=False).parameters <= budget


@pytest.mark.parametrize("name", ["torch encoder", "GPT-2 layout", "Llama layout", "T5 layout", "Swin layout"])
def test_multiply_accumulates_of_weights_that_functions_read_are_counted_and_kept_to(name):
    torch.manual_seed(0)
    make, example = USER_NETWORKS[name]
    plain, x = make().eval(), example()
    net = vnd.to_nested(plain, x, residual=True, num_groups=8)
    full = vnd.profile(net, 1.0).macs
    assert full == vnd.profile(plain, example_input=x).macs
    for shape in mixed_shapes(net):
        assert cost_of(net, "macs")(shape) == vnd.profile(net, shape).macs  # by layouts, and run
    assert vnd.profile(net, vnd.shape(net, macs=full // 3)).macs <= full // 3


def test_multiply_accumulates_of_torchs_attention_by_hand():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    by_hand = 6 * (3 * 32 * 32 + 32 * 32 + 2 * 32 * 64)  # six positions: q, k and v, out, the MLP
    assert vnd.profile(layer, example_input=torch.randn(2, 6, 32)).macs == by_hand
    assert type(layer.self_attn) is nn.MultiheadAttention
    assert layer.activation_relu_or_gelu == 1
