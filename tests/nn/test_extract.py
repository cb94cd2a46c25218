"""The keystone: a masked network and the smaller one cut out of it are the same function, at every width."""

import copy
import math
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from structures import (
    GROUPS,
    NETWORKS,
    OPEN,
    STRUCTURES,
    VARIED,
    Example,
    Random,
    gap,
    make,
    mixed_shapes,
    randomise,
    run,
    uniform_shapes,
)
from torch import nn

import vnd
from vnd.nn import BayesLayer, OrderingUnit
from vnd.nn.attention import HeadwiseAttention
from vnd.nn.norms import _MaskedNorm
from vnd.nn.state import NestedState, state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")
Pairs = list[tuple[torch.Tensor, torch.Tensor]]


@torch.no_grad()
def masked_and_extracted(net: nn.Module, example: Example, shapes: Sequence[vnd.Shape]) -> Pairs:
    """Outputs of the masked and of the extracted network for each shape."""
    pairs = []
    for shape in shapes:
        with vnd.width(net, shape):
            pairs.append((run(net, example), run(vnd.extract(net, shape), example)))
    return pairs


def worst_gap(net: nn.Module, example: Example) -> float:
    return max(gap(*pair) for pair in masked_and_extracted(net, example, uniform_shapes(net) + mixed_shapes(net)))


@pytest.mark.parametrize("name", NETWORKS)
def test_masked_and_extracted_agree_at_every_width(name):
    _, net, example = make(name)
    uniform = uniform_shapes(net)
    assert len(uniform) == GROUPS
    pairs = masked_and_extracted(net, example, uniform + mixed_shapes(net))
    assert max(gap(*pair) for pair in pairs) <= 1e-12
    for (narrow, _), (wide, _) in pairwise(pairs[:GROUPS]):  # else the comparison says nothing
        assert gap(narrow, wide) > 1e-4


@pytest.mark.parametrize("name", VARIED)
def test_masked_and_extracted_agree_in_float32(name):
    _, net, example = make(name, torch.float32)
    assert worst_gap(net, example) <= 1e-5


@pytest.mark.parametrize("name", ["root mean square", "mixer"])
def test_masked_and_extracted_agree_in_bfloat16(name):
    _, net, example = make(name, torch.float32)
    net, example = net.bfloat16(), example.bfloat16()
    for masked, small in masked_and_extracted(net, example, uniform_shapes(net)):
        assert masked.dtype == torch.bfloat16
        assert gap(masked.float(), small.float()) < 0.05


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("name", ["uneven", "dense", "grouped"])
def test_they_agree_for_any_number_of_groups(name, groups):
    _, net, example = make(name, num_groups=groups)
    assert worst_gap(net, example) <= 1e-12


@pytest.mark.parametrize("options", [{"bayesian": False}, {"base": 2}, {"per_example": True}, {"order": "magnitude"}])
@pytest.mark.parametrize("name", ["inverted, stream", "transformer", "flatten"])
def test_they_agree_with_other_options(name, options):
    _, net, example = make(name, **options)
    assert worst_gap(net, example) <= 1e-12


NOTHING = (3, 14, 18)  # random networks that have no layer but the head


@pytest.mark.parametrize("order", [None, "magnitude"])
@pytest.mark.parametrize("seed", range(5))
def test_they_agree_for_random_networks(seed, order):
    units = 0
    for index in range(10 * seed, 10 * seed + 10):
        torch.manual_seed(index)
        plain, x = randomise(Random(index)).double().eval(), torch.randn(2, 3, 4, 4).double()
        options = {"num_groups": 3, "rules": {"*": OPEN}, "order": order}
        if index in NOTHING:
            with pytest.raises(ValueError, match="nothing of Random can be nested"):
                vnd.to_nested(plain, x, **options)
            continue
        net = vnd.to_nested(plain, x, **options).eval()
        plan = state_of(net)
        assert not any("slic" in reason for reason in plan.whole.values())  # the analysis alone saw it all
        units += len(plan.units)
        with torch.no_grad():
            assert gap(plain(x), net(x)) <= 1e-12
        assert max((gap(*pair) for pair in masked_and_extracted(net, x, mixed_shapes(net))), default=0.0) <= 1e-12
    assert units > 10


@pytest.mark.parametrize("name", VARIED)
def test_an_extracted_network_is_plain_and_physically_smaller(name):
    plain, net, example = make(name)
    sizes = []
    for shape in uniform_shapes(net):
        small = vnd.extract(net, shape)
        assert type(small) is type(plain)
        for (path, module), (own_path, own) in zip(small.named_modules(), plain.named_modules(), strict=True):
            assert path == own_path
            assert type(module) in (type(own), HeadwiseAttention)  # torch's has as many channels as its heads make
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
            assert set(vars(module)) == set(vars(own))
        assert list(small.state_dict()) == list(plain.state_dict())
        sizes.append(sum(p.numel() for p in small.parameters()))
        assert sizes[-1] == vnd.profile(net, shape, count_macs=False).parameters
        assert all(
            p.is_leaf and p.requires_grad and p.untyped_storage().nbytes() == p.nbytes for p in small.parameters()
        )
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == sum(p.numel() for p in plain.parameters())
    run(small.train(), example).sum().backward()
    assert all(p.grad is not None for p in small.parameters())


@pytest.mark.parametrize("name", ["flatten", "vgg11", "convnext"])
def test_nothing_of_this_library_is_left_in_an_extracted_network(name):
    _, net, _ = make(name)
    assert b"vnd.nn" in pickle.dumps(net)
    assert b"vnd.nn" not in pickle.dumps(vnd.extract(net, 0.5))


def test_attributes_of_the_sliced_layers_say_their_sizes():
    _, net, _ = make("grouped")
    small = vnd.extract(net, 0.5)  # two of three, four and three channels in each group
    assert str(small.reduce) == "Conv2d(3, 8, kernel_size=(1, 1), stride=(1, 1))"
    assert (small.grouped.in_channels, small.grouped.out_channels, small.grouped.groups) == (8, 8, 2)
    assert (small.norm.num_channels, small.norm.num_groups) == (8, 4)
    assert (small.up.in_channels, small.up.out_channels, small.up.groups) == (8, 8, 4)
    _, net, _ = make("inverted")
    depthwise = vnd.extract(net, 0.5).depthwise
    assert (depthwise.in_channels, depthwise.out_channels, depthwise.groups) == (6, 12, 6)
    _, net, _ = make("flatten")
    small = vnd.extract(net, 0.5)
    assert (small[0].out_channels, small[1].num_features) == (4, 4)
    assert (small[5].in_features, small[5].out_features, small[6].num_features) == (36, 6, 6)
    _, net, _ = make("convnext, stream")
    small = vnd.extract(net, 0.5)
    assert small.norm.normalized_shape == (4,)
    assert small.scale.shape == (4,)


def test_extraction_leaves_the_network_alone():
    _, net, example = make("flatten")
    vnd.set_width(net, 0.75)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    out = run(net, example)
    small = vnd.extract(net, 0.25)
    with torch.no_grad():
        for value in (*small.parameters(), *small.buffers()):
            value.zero_()
    assert torch.equal(run(net, example), out)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


KEEPS = ("mean", "posterior", "nested")
OPTIONS = [{"rescale": "expected"}, {"bayesian": False}, {"weight_prior": 0.5}]
ORIGINS = [(name, {}) for name in ("flatten", "shared", "inverted", "functional", "hard-coded view")]


@pytest.mark.parametrize(
    ("name", "options", "keep"),
    [(*origin, KEEPS[i % 3]) for i, origin in enumerate([*ORIGINS, *(("transformer", given) for given in OPTIONS)])]
    + [("transformer", {}, keep) for keep in KEEPS],
)
def test_an_extracted_network_shares_nothing_with_its_origin(name, options, keep):
    _, net, _ = make(name, **options)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    theirs = {x.untyped_storage().data_ptr() for x in (*net.parameters(), *net.buffers()) if x.numel()}
    for width in (0.25, 1.0):
        small = vnd.extract(net, width, keep)
        tensors = [x for x in (*small.parameters(), *small.buffers()) if x.numel()]
        assert not theirs & {x.untyped_storage().data_ptr() for x in tensors}
        assert all(x.is_leaf for x in small.parameters())
        with torch.no_grad():
            for x in tensors:
                x.zero_()
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_weight_that_is_kept_by_reference_alone_is_caught(monkeypatch):
    monkeypatch.setattr(sys.modules["vnd.nn.extract"], "_own", lambda small, root: None)
    with pytest.raises(AssertionError):
        test_an_extracted_network_shares_nothing_with_its_origin("transformer", {}, "posterior")


@pytest.mark.parametrize(
    ("name", "keep"),
    [("squeeze-excite", "mean"), ("inverted", "posterior"), ("grouped", "nested"), ("decoder", "posterior")],
)
def test_channels_last_stay_so(name, keep):
    net = make(name)[1]
    net = net.to(memory_format=torch.channels_last)
    small = vnd.extract(net, 0.5, keep)
    for path, own in small.named_parameters():
        if own.dim() == 4:
            # by strides: those of one channel or one pixel are contiguous either way
            assert own.stride() == torch.empty(own.shape).to(memory_format=torch.channels_last).stride(), path
    plain = vnd.extract(net.to(memory_format=torch.contiguous_format), 0.5, keep)
    assert all(own.is_contiguous() for own in plain.parameters())
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), plain.parameters(), strict=True))


def test_single_weights_are_cut_in_their_order_whatever_their_layout():
    rules = {"5": vnd.Rule(nest=False), "0": vnd.Rule(granularity="weight")}
    _, net, _ = make("flatten", rules=rules)
    shape = vnd.Shape({"0[weight]": 1})
    expected = vnd.extract(net, shape)[0].weight
    found = vnd.extract(net.to(memory_format=torch.channels_last), shape)[0].weight
    assert torch.equal(expected, found)
    assert 0 < int((expected != 0).sum()) < expected.numel()


def test_without_a_width_the_one_that_is_set_is_extracted():
    plain, net, example = make("uneven")
    assert gap(run(plain, example), run(vnd.extract(net), example)) <= 1e-12
    vnd.set_width(net, 0.5)
    assert gap(run(net, example), run(vnd.extract(net), example)) <= 1e-12
    assert vnd.extract(net).layers[0].out_features == 7


@pytest.mark.parametrize("name", ["flatten", "grouped", "transformer", "several", "inverted", "mobilenet_v2"])
def test_a_bayesian_extract_keeps_the_posterior_of_every_weight(name):
    _, net, example = make(name)
    layers = {path: m for path, m in net.named_modules() if isinstance(m, BayesLayer)}
    with torch.no_grad():
        for layer in layers.values():
            layer.log_alpha.normal_(-3, 1)
            layer.weight.mul_(torch.rand_like(layer.weight))  # no two the same
    shape = mixed_shapes(net)[0]
    small, means = vnd.extract(net, shape, keep="posterior"), vnd.extract(net, shape)
    assert not any(isinstance(m, (OrderingUnit, _MaskedNorm)) for m in small.modules())
    for path, layer in layers.items():
        own = small.get_submodule(path)
        assert type(own) is type(layer)
        assert own.input_mask is None
        assert own.weight.shape == means.get_submodule(path).weight.shape == own.log_alpha.shape
        table = dict(zip(layer.weight.flatten().tolist(), layer.log_alpha.flatten().tolist(), strict=True))
        assert [table[w] for w in own.weight.flatten().tolist()] == own.log_alpha.flatten().tolist()
    assert gap(run(means, example), run(small, example)) <= 1e-12
    assert gap(run(small.train(), example), run(small, example)) > 1e-3
    assert float(vnd.kl(small).detach()) > 0


def shapes_within(net: nn.Module, whole: vnd.Shape) -> list[vnd.Shape]:
    """Shapes of at most so many groups: the smallest, one between and the whole."""
    units = state_of(net).units
    return [vnd.Shape({u: max(units[u].base, math.ceil(f * k)) for u, k in whole.items()}) for f in (0.01, 0.6, 1)]


def nested_gap(net: nn.Module, example: Example) -> float:
    """The worst difference between a network, masked, and the nested one that was cut out of it, at its own widths."""
    worst = 0.0
    for whole in mixed_shapes(net)[:2]:
        small = vnd.extract(net, whole, "nested")
        assert state_of(small).full == whole
        for shape in shapes_within(net, whole):
            with torch.no_grad(), vnd.width(net, shape), vnd.width(small, shape):
                worst = max(worst, gap(run(net, example), run(small, example)))
        with torch.no_grad():
            again = vnd.extract(vnd.extract(small, shape, "nested"), keep="mean")
            worst = max(worst, gap(run(vnd.extract(net, shape), example), run(again, example)))
    return worst


@pytest.mark.parametrize("name", NETWORKS)
def test_a_nested_extract_is_the_network_at_every_width_that_it_has(name):
    _, net, example = make(name)
    assert nested_gap(net, example) <= 1e-12


def test_a_nested_extract_of_another_order_or_of_other_channels_is_caught(monkeypatch):
    _, net, example = make("grouped")
    right = OrderingUnit.spread
    monkeypatch.setattr(OrderingUnit, "spread", lambda unit, mask: right(unit, mask).flip(-1))
    shape = mixed_shapes(net)[0]
    small = vnd.extract(net, shape, "nested")
    monkeypatch.undo()
    with torch.no_grad(), vnd.width(net, shape):
        assert gap(run(net, example), run(small, example)) > 1e-3


@pytest.mark.parametrize("options", [{}, {"rescale": "expected"}, {"coupling": "independent", "bayesian": False}])
def test_a_nested_extract_has_its_order_and_its_statistics_and_learns(options):
    _, net, example = make("flatten", **options)
    whole = mixed_shapes(net)[0]
    shapes = list(dict.fromkeys(shapes_within(net, whole)))
    vnd.recalibrate(net, [torch.randn_like(torch.cat([example] * 4))], widths=(*shapes, 1.0))
    small = vnd.extract(net, whole, "nested")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in shapes:
            with torch.no_grad(), vnd.width(net, shape), vnd.width(small, shape):
                assert gap(run(net, example), run(small, example)) <= 1e-12
    for name, unit in state_of(small).units.items():
        old = state_of(net).units[name]
        assert torch.equal(unit.survival(), old.survival()[: whole[name]])
        assert unit.group_sizes == old.group_sizes[: whole[name]]
    assert set(state_of(small).statistics) == {(shape, False) for shape in shapes}
    copied, before = copy.deepcopy(small), dict(vnd.profile(net).__dict__)
    for one in (small, copied):
        torch.manual_seed(3)
        loss = run(one.train(), example).square().mean() + 1e-3 * vnd.kl(one)
        loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(small.parameters(), copied.parameters(), strict=True))
    assert all(p.grad.isfinite().all() for p in small.parameters())
    assert dict(vnd.profile(net).__dict__) == before


def test_a_nested_extract_without_statistics_of_its_width_says_so():
    _, net, example = make("flatten")
    small = vnd.extract(net, 0.5, "nested")
    with pytest.warns(UserWarning, match=r"BatchNorm has no statistics for this width; run vnd.recalibrate"):
        run(small, example)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(vnd.extract(net, 1.0, "nested"), example)


def test_samples_of_the_masked_and_of_the_extracted_network_have_the_same_law():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 1)).double()
    x = torch.randn(1, 4).double().expand(40_000, 4)
    nested = vnd.to_nested(net, x[:2], num_groups=3, log_alpha_init=-1.0)
    shape = vnd.Shape({"0": 2})
    with torch.no_grad(), vnd.width(nested.train(), shape):
        masked = nested(x).squeeze()
        small = vnd.extract(nested, shape, keep="posterior").train()(x).squeeze()
    error = (masked.var() / len(masked)).sqrt() * 2**0.5
    assert float(masked.std()) > 0.1
    assert abs(float(masked.mean() - small.mean())) < 5 * float(error)
    assert float(masked.var() / small.var()) == pytest.approx(1, abs=0.05)


def test_frozen_parameters_and_hooks_of_the_user_stay():
    plain, _, example = make("uneven")
    plain.layers[0].weight.requires_grad_(False)
    seen = []
    plain.layers[1].register_forward_hook(lambda *_: seen.append(1))
    small = vnd.extract(vnd.to_nested(plain, example, num_groups=4).eval(), 0.5)
    assert not small.layers[0].weight.requires_grad
    assert small.layers[1].weight.requires_grad
    seen.clear()
    run(small, example)
    assert seen == [1]


REFUSED = [
    ({"placement": "before_norm"}, "nested", "placement='before_norm' has no exact smaller form"),
    ({"rules": {"5": vnd.Rule(granularity="input")}}, "nested", "keep='nested' has no form where input rows or single"),
    (
        {"rules": {"5": vnd.Rule(granularity="weight")}},
        "nested",
        "keep='nested' has no form where input rows or single",
    ),
    ({"base": 0}, "nested", "keep='nested' needs at least one group of each unit; got none of 0"),
    ({}, "all", "keep must be 'mean', 'posterior', 'nested'; got 'all'"),
    ({}, False, "keep must be 'mean', 'posterior', 'nested'; got False"),
]


@pytest.mark.parametrize(("options", "keep", "words"), REFUSED)
def test_what_has_no_smaller_form_refuses_extraction(options, keep, words):
    _, net, _ = make("flatten", **options)
    with pytest.raises(ValueError, match=f"^extract: .*{words}"):
        vnd.extract(net, vnd.Shape({unit: module.base for unit, module in state_of(net).units.items()}), keep)


def test_only_a_nested_network_can_be_extracted():
    plain, net, _ = make("uneven")
    for other in (plain, vnd.extract(net, 0.5)):
        with pytest.raises(ValueError, match=r"is not a nested network; make it one with vnd\.to_nested"):
            vnd.extract(other, 0.5)


# Planted faults: each is one that a slip in the code could make, and the law above has to see it.


def patch_kept_channels(monkeypatch: pytest.MonkeyPatch, fault: Callable[[OrderingUnit, int], torch.Tensor]) -> None:
    monkeypatch.setattr(OrderingUnit, "kept_channels", fault)


@pytest.mark.parametrize("name", NETWORKS)
def test_slicing_the_last_channels_instead_of_the_first_is_caught(name, monkeypatch):
    _, net, example = make(name)
    right = OrderingUnit.kept_channels
    patch_kept_channels(monkeypatch, lambda unit, k: (unit.channels - 1 - right(unit, k)).flip(0))
    assert worst_gap(net, example) > 1e-3


@pytest.mark.parametrize("name", ["flatten", "wave"])
def test_flattened_pixels_taken_for_channels_are_caught(name, monkeypatch):
    _, net, example = make(name)
    right = NestedState.kept

    def fault(plan, layout, groups):
        index = right(plan, layout, groups)
        if layout is None or layout[0].repeat == 1:
            return index
        return index.view(-1, layout[0].repeat).T.flatten()

    monkeypatch.setattr(NestedState, "kept", fault)
    assert worst_gap(net, example) > 1e-3


@pytest.mark.parametrize("name", ["grouped", "convnext, stream", "root mean square", "mixer"])
def test_norm_statistics_over_dropped_channels_are_caught(name, monkeypatch):
    _, net, example = make(name)
    monkeypatch.setattr(_MaskedNorm, "_kept", lambda norm: torch.ones_like(norm.__dict__["_mask"][0]()))
    assert worst_gap(net, example) > 1e-3


@pytest.mark.parametrize("name", ["flatten", "residual", "wave", "vgg11"])
def test_a_mask_before_the_norm_instead_of_after_is_caught(name):
    plain, net, example = make(name)
    before = vnd.to_nested(plain, example, num_groups=GROUPS, placement="before_norm").eval()
    shape = uniform_shapes(net)[0]
    with torch.no_grad(), vnd.width(before, shape):
        assert gap(run(before, example), run(vnd.extract(net, shape), example)) > 1e-3


@pytest.mark.parametrize("name", ["flatten", "residual", "vgg11"])
def test_batch_norm_statistics_of_another_width_are_caught(name):
    _, net, example = make(name)
    narrow, wide = uniform_shapes(net)[0], uniform_shapes(net)[-1]
    vnd.recalibrate(net, [torch.randn_like(torch.cat([example] * 4))], widths=(narrow, wide))
    assert worst_gap(net, example) <= 1e-12
    with torch.no_grad(), vnd.width(net, narrow):
        masked = run(net, example)
    statistics = state_of(net).statistics
    statistics[narrow, False] = statistics[wide, False]
    assert gap(masked, run(vnd.extract(net, narrow), example).detach()) > 1e-3


def test_a_unit_that_is_not_masked_at_one_of_its_readers_is_caught():
    _, net, example = make("dense")
    net.transition.set_input_mask(None)
    assert worst_gap(net, example) > 1e-3


def test_every_kind_of_dependency_is_there():
    assert len(STRUCTURES) >= 20
    whole = {"autoencoder", "dense_autoencoder", "probabilistic_unet", "ensemble_unet"}  # what is cut is their codes
    assert set(vnd.models.MODELS) - set(NETWORKS) == whole
