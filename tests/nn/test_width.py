"""Shapes: fractions, learned levels and budgets, and setting them."""

import importlib
import json
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structures import gap, make, mixed_shapes, run, uniform_shapes
from torch import nn

import vnd
from covering import turns
from vnd.nn.state import state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")


def trained(name: str = "flatten", seed: int = 0, **options: object) -> nn.Module:
    """A nested network whose order is as if it had been learned."""
    net = make(name, **options)[1]
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for unit in state_of(net).units.values():
            unit.keep_logits.copy_(torch.randn(unit.num_nested, generator=draw) + 0.5)
    return net


def at_most(small: vnd.Shape, large: vnd.Shape) -> bool:
    return all(small[unit] <= large[unit] for unit in small)


def full(net: nn.Module) -> vnd.Shape:
    return vnd.Shape({name: unit.num_groups for name, unit in state_of(net).units.items()})


def smallest(net: nn.Module) -> vnd.Shape:
    return vnd.Shape({name: unit.base for name, unit in state_of(net).units.items()})


# -- a shape is a value -----------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 64)))
def test_a_shape_goes_through_json_and_is_a_mapping(groups):
    shape = vnd.Shape(groups)
    again = vnd.Shape.from_json(shape.to_json())
    assert again == shape
    assert hash(again) == hash(shape)
    assert dict(shape) == groups == json.loads(shape.to_json())
    assert len(shape) == len(groups)


def test_a_shape_is_frozen():
    shape = vnd.Shape({"a": 1})
    with pytest.raises(AttributeError):
        shape.groups = ()
    with pytest.raises(TypeError):
        shape["a"] = 2


# -- fractions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("groups", "base"), turns([3, 4, 7, 10], [1, 2]))
def test_a_fraction_rounds_up_and_never_goes_below_base(groups, base):
    net = make("uneven", num_groups=groups, base=base)[1]
    units = state_of(net).units
    for tenths in range(1, 21):
        shape = vnd.shape(net, fraction=tenths / 20)
        for name, unit in units.items():
            assert shape[name] == max(unit.base, -(-tenths * unit.num_groups // 20))


@pytest.mark.parametrize("groups", [3, 7, 10, 12])
def test_a_fraction_that_is_a_whole_number_of_groups_is_exact(groups):
    net = make("uneven", num_groups=groups)[1]
    unit = state_of(net).units["layers.0"]
    for k in range(1, unit.num_groups + 1):
        assert vnd.shape(net, fraction=k / unit.num_groups)["layers.0"] == k
        assert vnd.shape(net, fraction=k * (1 / unit.num_groups))["layers.0"] == k


@pytest.mark.parametrize(
    ("value", "kind"), turns([0.0, -0.1, 1.1, math.nan, math.inf, True, "0.5"], ["fraction", "level"])
)
def test_a_share_outside_of_zero_to_one_is_refused(kind, value):
    with pytest.raises(ValueError, match=rf"shape: {kind} must lie in \(0, 1\]"):
        vnd.shape(make("uneven")[1], **{kind: value})


@pytest.mark.parametrize("width", [2, 0, -1, True, "0.5", [0.5], {"0": 1}])
def test_a_width_that_is_neither_shape_nor_float_is_refused_as_ambiguous(width):
    net, x = make("uneven")[1:]
    for use in (
        lambda: vnd.set_width(net, width),
        lambda: vnd.extract(net, width),
        lambda: vnd.predict(net, x, width=width),
        lambda: vnd.width(net, width).__enter__(),
    ):
        with pytest.raises(ValueError, match=r"a float fraction in .*ambiguous"):
            use()
    assert state_of(net).shape is None


def test_exactly_one_way_to_a_shape_must_be_given():
    net = make("uneven")[1]
    with pytest.raises(ValueError, match=r"give exactly one of fraction, level, parameters, .*; got none"):
        vnd.shape(net)
    with pytest.raises(ValueError, match="got fraction, macs"):
        vnd.shape(net, fraction=0.5, macs=100)


# -- levels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_level_keeps_what_survives_at_its_quantile_and_larger_is_larger(seed):
    net = trained(seed=seed)
    shapes = []
    for level in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0):
        shape = vnd.shape(net, level=level)
        for name, unit in state_of(net).units.items():
            assert shape[name] == int((unit.survival() > 1 - level).sum()) or level == 1
        shapes.append(shape)
    assert all(at_most(a, b) for a, b in pairwise(shapes))
    assert shapes[-1] == full(net)
    assert len(set(shapes)) > 3


def test_levels_are_the_shapes_of_training_at_the_same_quantile():
    net = trained(bayesian=False).train()
    quantile = state_of(net).quantile
    x = make("flatten")[2]
    for _ in range(30):
        net(x)
        shape = vnd.shape(net, level=1 - float(quantile.u))
        assert dict(shape) == {n: int(unit.mask().sum()) for n, unit in state_of(net).units.items()}


# -- budgets ----------------------------------------------------------------------------------------------------------


def cost_of(net: nn.Module, kind: str, shape: vnd.Shape) -> int:
    return getattr(vnd.profile(net, shape), kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *turns(["parameters", "macs", "bytes"], ["flatten", "decoder", "grouped"]),
        *turns(["parameters", "macs"], ["grouped", "flatten"]),
    ],
)
def test_a_budget_gives_the_longest_prefix_that_fits_and_growing_ones_are_nested(kind, name):
    net = trained(name)
    low, high = (cost_of(net, kind, shape) for shape in (smallest(net), full(net)))
    order = sorted(
        (-float(p), place, unit)
        for place, (unit, module) in enumerate(state_of(net).units.items())
        for p in module.posterior().chain.log_survival.detach()
    )
    before = smallest(net)
    for budget in torch.linspace(low, high, 7).tolist():
        shape = vnd.shape(net, **{kind: budget + 0.5})
        assert cost_of(net, kind, shape) <= budget + 0.5
        assert at_most(before, shape)
        before = shape
        taken = sum(shape[unit] - smallest(net)[unit] for unit in shape)
        prefix = dict(smallest(net))
        for _, _, unit in order[:taken]:
            prefix[unit] += 1
        assert dict(shape) == prefix
        if taken < len(order):
            prefix[order[taken][2]] += 1
            assert cost_of(net, kind, vnd.Shape(prefix)) > budget + 0.5
    assert before == full(net)


def test_a_budget_that_no_shape_fits_is_refused_with_the_least_that_would():
    net = trained()
    least = cost_of(net, "parameters", smallest(net))
    assert vnd.shape(net, parameters=least) == smallest(net)
    with pytest.raises(ValueError, match=f"shape: parameters must be at least {least}, the smallest network's; got"):
        vnd.shape(net, parameters=least - 1)


def test_a_latency_budget_is_measured_on_the_extracted_network(monkeypatch):
    net = trained()
    monkeypatch.setattr(
        importlib.import_module("vnd.nn.profile"), "latency", lambda net, shape, example: float(sum(shape.values()))
    )
    assert sum(vnd.shape(net, latency_ms=5.0).values()) == 5
    monkeypatch.undo()
    assert vnd.shape(net, latency_ms=1e9) == full(net)


def test_a_budget_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="parameters"):
        vnd.shape(trained(), parameters=math.nan)


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_a_profile_counts_the_extracted_network():
    net = make("flatten", torch.float32)[1]
    shape = vnd.Shape({"0": 2, "5": 1})  # 4 of 6 and 3 of 10 channels
    profile = vnd.profile(net, shape)
    parameters = (4 * 9 + 4) + 2 * 4 + (36 * 3 + 3) + 2 * 3 + (3 * 3 + 3)
    assert profile.parameters == parameters
    assert profile.macs == 36 * 9 * 4 + 36 * 3 + 3 * 3  # 36 pixels of the convolution
    assert profile.bytes == 4 * (parameters + 2 * (4 + 3)) + 2 * 8  # with BatchNorm's statistics and counters


@pytest.mark.parametrize("name", ["grouped", "decoder", "wave", "several", "transformer"])
def test_multiplications_are_those_of_an_example_whatever_the_batch_and_dtype(name):
    _, net, example = make(name, torch.float32)
    own = vnd.profile(net, 0.5)
    one = {k: v[:1] for k, v in example.items()} if isinstance(example, dict) else example[:1]
    assert vnd.profile(net, 0.5, one).macs == own.macs > 0
    assert vnd.profile(net.double(), 0.5).macs == own.macs  # the example follows the network


def test_multiplications_of_grouped_and_transposed_convolutions():
    net = make("grouped")[1]
    pixels = 64
    expected = pixels * (12 * 3 + 16 * 6 * 9 + 16 * 3 * 4) + 4 * pixels * 2 * 12
    assert vnd.profile(net).macs == expected


# -- setting a width --------------------------------------------------------------------------------------------------


def test_a_block_sets_the_width_and_puts_the_former_one_back():
    _, net, x = make("uneven")
    outside = run(net, x)
    with vnd.width(net, 0.5) as same:
        assert same is net
        inside = run(net, x)
        with vnd.width(net, 1.0):
            assert gap(run(net, x), outside) == 0
        assert gap(run(net, x), inside) == 0
    assert gap(run(net, x), outside) == 0
    assert gap(inside.detach(), outside.detach()) > 1e-3
    with pytest.raises(RuntimeError, match="stop"), vnd.width(net, 0.5):
        raise RuntimeError("stop")
    assert gap(run(net, x), outside) == 0


def test_a_width_stays_set_until_it_is_reset_and_a_fraction_is_its_shape():
    _, net, x = make("uneven")
    outside = run(net, x)
    vnd.set_width(net, 0.5)
    inside = run(net, x)
    vnd.set_width(net, vnd.shape(net, fraction=0.5))
    assert gap(run(net, x), inside) == 0
    vnd.set_width(net, None)
    assert gap(run(net, x), outside) == 0


def test_a_width_counts_in_training_and_then_no_mask_is_drawn():
    net, x = make("uneven", bayesian=False)[1:]
    shape = mixed_shapes(net)[0]
    with vnd.width(net, shape):
        fixed = run(net, x)
        assert all(gap(run(net.train(), x), fixed) == 0 for _ in range(5))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"layers.0": 1, "layers.1": 1}, r"of another network; unknown \[\], missing \['layers.2'\]"),
        ({"layers.0": 1, "layers.1": 1, "layers.2": 1, "x": 1}, r"unknown \['x'\], missing \[\]"),
        ({"layers.0": 5, "layers.1": 1, "layers.2": 1}, "unit layers.0 must keep 1 … 4 groups; got 5"),
        ({"layers.0": 0, "layers.1": 1, "layers.2": 1}, "unit layers.0 must keep 1 … 4 groups; got 0"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(groups, message):
    net = make("uneven")[1]
    with pytest.raises(ValueError, match=message):
        vnd.set_width(net, vnd.Shape(groups))
    assert state_of(net).shape is None


def test_wider_shapes_cost_more():
    net = make("vgg11")[1]
    profiles = [vnd.profile(net, shape) for shape in uniform_shapes(net)]
    for kind in ("parameters", "macs", "bytes"):
        costs = [getattr(profile, kind) for profile in profiles]
        assert costs == sorted(set(costs))
