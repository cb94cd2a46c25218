"""BatchNorm's statistics for every width: reset, averaged, kept, and missed when they are not there."""

import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import pytest
import torch
from structures import Example, gap, make, mixed_shapes, run, uniform_shapes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import vnd
from covering import turns
from vnd.nn import BayesLayer
from vnd.nn.recalibrate import _Average, _sliced
from vnd.nn.state import Shape, batch_norms, state_of


def statistics_of(norm):
    """What a BatchNorm normalises with in evaluation, nested or plain."""
    return norm.statistics() if hasattr(norm, "statistics") else (norm.running_mean, norm.running_var)


def batches(count: int = 3, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(7, 1, 8, 8, generator=draw).double() * 2 + 1 for _ in range(count)]


def norms(net: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def state(net: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in net.state_dict().items()}


def collected(net: nn.Module, shape: vnd.Shape) -> list[Tensor]:
    """Statistics of an extracted network that collects them as torch does: reset, then a cumulative average."""
    small = vnd.extract(net, shape).eval()
    for norm in norms(small):
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in batches():
            small(batch)
    return [buffer for norm in norms(small) for buffer in statistics_of(norm)]


def test_statistics_are_those_that_the_extracted_network_would_collect():
    net = make("flatten")[1]
    shapes = uniform_shapes(net)
    vnd.recalibrate(net, batches(), widths=shapes)
    for shape in shapes:
        small = vnd.extract(net, shape)
        own = [buffer for norm in norms(small) for buffer in statistics_of(norm)]
        assert all(gap(a, b) <= 1e-12 for a, b in zip(own, collected(net, shape), strict=True))
        with vnd.width(net, shape):
            for norm, cut in zip(norms(net), norms(small), strict=True):
                assert gap(cut.running_mean, statistics_of(norm)[0][: cut.num_features]) == 0


def test_a_calibrated_width_is_masked_as_it_is_extracted_and_warns_of_nothing():
    _, net, x = make("flatten")
    vnd.recalibrate(net, batches(), widths=(0.25, 0.5, 1.0, None))
    with torch.no_grad():
        for width in (0.25, 0.5, 1.0, None):
            with vnd.width(net, width):
                assert gap(run(net, x), run(vnd.extract(net), x)) <= 1e-12


def test_collecting_again_forgets_the_former_statistics():
    net = make("flatten")[1]
    vnd.recalibrate(net, batches(seed=1), widths=(0.5,))
    vnd.recalibrate(net, batches(), widths=(0.5,))
    small = vnd.extract(net, 0.5)
    own = [buffer for norm in norms(small) for buffer in statistics_of(norm)]
    assert all(gap(a, b) <= 1e-12 for a, b in zip(own, collected(net, vnd.shape(net, fraction=0.5)), strict=True))


def test_one_pass_over_a_generator_serves_all_widths():
    net, other = make("flatten")[1], make("flatten")[1]
    handed = []

    def once() -> Iterator[Tensor]:
        for batch in batches():
            handed.append(len(handed))
            yield batch

    vnd.recalibrate(net, once(), widths=(0.25, 0.5, 1.0))
    assert handed == [0, 1, 2]
    for width in (0.25, 0.5, 1.0):
        vnd.recalibrate(other, batches(), widths=(width,))
    assert state_of(net).statistics.keys() == state_of(other).statistics.keys()
    for key, found in state_of(net).statistics.items():
        for name, pair in found.items():
            assert all(torch.equal(a, b) for a, b in zip(pair, state_of(other).statistics[key][name], strict=True))


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: (x, torch.zeros(7)), lambda x: [x, "label"], lambda x: {"input": x}]
)
def test_batches_come_as_tensors_pairs_or_keywords(wrap):
    net = make("flatten")[1]
    vnd.recalibrate(net, (wrap(batch) for batch in batches()), widths=(0.5,))
    assert len(state_of(net).statistics) == 1


def test_means_and_samples_have_statistics_of_their_own():
    net = make("flatten", log_alpha_init=0.0)[1]
    shape = vnd.shape(net, fraction=0.5)
    vnd.recalibrate(net, batches(), widths=(shape,))
    vnd.recalibrate(net, batches(), widths=(shape,), samples=True)
    means, samples = (state_of(net).statistics[shape, kind]["6"][1][:6] for kind in (False, True))
    assert float((samples / means).mean()) > 1.2  # noise adds variance
    vnd.set_width(net, shape, samples=True)
    assert torch.equal(net[6].statistics()[1][:6], samples)
    vnd.set_width(net, shape)
    assert torch.equal(net[6].statistics()[1][:6], means)
    assert torch.equal(vnd.extract(net, shape, keep="posterior")[6].running_var, samples)
    assert torch.equal(vnd.extract(net, shape)[6].running_var, means)


@pytest.mark.parametrize("training", [True, False])
def test_everything_else_is_left_as_it_was(training):
    net = make("flatten")[1].train(training)
    net[6].eval()
    net[1].momentum = 0.3
    before = state(net)
    vnd.recalibrate(net, batches(), widths=(0.25, 0.5))
    assert all(torch.equal(value, state(net)[key]) for key, value in before.items())
    assert [net.training, net[1].training, net[6].training] == [training, training, False]
    assert (net[1].momentum, net[6].momentum) == (0.3, 0.1)
    assert all(m.sampling is None for m in net.modules() if isinstance(m, BayesLayer))
    assert state_of(net).shape is None


@pytest.mark.parametrize("training", [True, False])
def test_the_width_that_is_set_has_its_statistics_at_once(training):
    net = make("flatten")[1].train(training)
    vnd.recalibrate(net, batches(), widths=(0.25, 1.0))
    wide = state_of(net).statistics[vnd.shape(net, fraction=1.0), False]
    assert torch.equal(net[1].statistics()[0], wide["1"][0])
    x = batches()[0]
    assert gap(net.eval()(x).detach(), vnd.extract(net, 1.0)(x).detach()) <= 1e-12


def test_an_error_on_the_way_leaves_the_network_as_it_was():
    net = make("flatten")[1].train()
    before = state(net)
    with pytest.raises(RuntimeError):
        vnd.recalibrate(net, [*batches(1), torch.zeros(2, 3, 8, 8).double()], widths=(0.25,))
    assert all(torch.equal(value, state(net)[key]) for key, value in before.items())
    assert net.training
    assert net[1].training
    assert not state_of(net).statistics


def test_no_batches_and_odd_batches_are_refused():
    net = make("flatten")[1]
    with pytest.raises(ValueError, match="recalibrate: batches must hold at least one batch; got none"):
        vnd.recalibrate(net, [])
    with pytest.raises(ValueError, match=r"batch 0: a batch must be a tensor of shape \(2, 1, 8, 8\) .*; got 'batch'"):
        vnd.recalibrate(net, ["batch"])


def test_a_network_without_batch_norm_needs_none_of_this():
    _, net, x = make("grouped")
    vnd.recalibrate(net, iter([x]), widths=(0.5,))
    with vnd.width(net, 0.5):  # and warns of nothing
        run(net, x)


# -- as extracted networks ---------------------------------------------------------------------------------------------

MODULE = sys.modules["vnd.nn.recalibrate"]  # by its name, `vnd.nn` has the function
Collected = list[tuple[Tensor, Tensor]]


def kept_statistics(net: nn.Module, shapes: list[Shape], samples: bool = False) -> Collected:
    """The statistics of all shapes at the channels that they keep."""
    plan, found = state_of(net), []
    for shape in shapes:
        for name, pair in plan.statistics[shape, samples].items():
            kept = plan.kept(plan.outputs.get(name), dict(shape))
            found.append(pair if kept is None else (pair[0][kept], pair[1][kept]))
    return found


def several(example: Example, count: int = 2) -> list[Example]:
    """Batches like an example, four times as large and each of its own scale."""

    def like(x: Tensor, scale: int) -> Tensor:
        return scale * torch.randn_like(torch.cat([x] * 4)) + 1

    if isinstance(example, dict):
        return [{key: like(x, 1 + i) for key, x in example.items()} for i in range(count)]
    return [like(example, 1 + i) for i in range(count)]


def both_ways(net: nn.Module, inputs: list[Example], monkeypatch: pytest.MonkeyPatch, samples: bool = False) -> float:
    """Largest gap between what extracted networks and the masked one collect, over all kinds of widths."""
    shapes = list(dict.fromkeys(uniform_shapes(net) + mixed_shapes(net, 2)))
    assert _sliced(net, state_of(net), shapes, samples)  # or both ways were the same
    vnd.recalibrate(net, inputs, widths=shapes, samples=samples)
    sliced = kept_statistics(net, shapes, samples)
    with monkeypatch.context() as patch:
        patch.setattr(MODULE, "_sliced", lambda *_: {})
        vnd.recalibrate(net, inputs, widths=shapes, samples=samples)
    masked = kept_statistics(net, shapes, samples)
    return max(gap(a, b) for one, other in zip(masked, sliced, strict=True) for a, b in zip(one, other, strict=True))


def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every draw be the same number, whatever the size of what is drawn."""
    monkeypatch.setattr("vnd.nn.bayesian.add_noise", lambda mean, variance, *_: mean + 0.7 * variance.sqrt())
    monkeypatch.setattr(torch, "randn_like", lambda x, **_: torch.full_like(x, 0.7))
    monkeypatch.setattr(BayesLayer, "_signs", lambda layer, x, *_: torch.ones_like(x))


with_norms = pytest.mark.parametrize(
    "name", ["residual, stream", "dense", "squeeze-excite", "inverted", "decoder", "wave", "vgg11"]
)


@with_norms
def test_extracted_networks_collect_what_the_masked_one_does(name, monkeypatch):
    _, net, example = make(name)
    assert both_ways(net, several(example), monkeypatch) <= 1e-12


@with_norms
def test_so_do_extracted_networks_that_sample(name, monkeypatch):
    _, net, example = make(name, log_alpha_init=-1.0)
    inputs = several(example)
    same_noise(monkeypatch)
    assert both_ways(net, inputs, monkeypatch, samples=True) <= 1e-12


GAUSSIAN = {"weight_prior": 0.5}


@pytest.mark.parametrize(
    "options",
    [
        {"rescale": "expected"}, {"rescale": "expected", **GAUSSIAN},
        {"rescale": "expected", "noise": "channel", **GAUSSIAN},
        {"bayesian": False}, {"base": 2}, {"noise": "layer"}, {"estimator": "weight"}, {"estimator": "flipout"},
        {"per_example": True}, {"order": "magnitude"}, {"coupling": "independent"},
    ],
)  # fmt: skip
def test_they_agree_with_every_option(options, monkeypatch):
    _, net, example = make("flatten", log_alpha_init=-1.0, **options)
    with torch.no_grad():
        for unit in state_of(net).units.values():
            unit.keep_logits.uniform_(-1, 2)
    inputs = several(example)
    assert both_ways(net, inputs, monkeypatch) <= 1e-12
    same_noise(monkeypatch)
    assert both_ways(net, inputs, monkeypatch, samples=True) <= 1e-12


@pytest.mark.parametrize("kind", ["input", "weight"])
def test_they_agree_where_rows_or_single_weights_are_ordered(kind, monkeypatch):
    _, net, example = make("flatten", rules={"5": vnd.Rule(granularity=kind)}, rescale="expected")
    assert f"5[{kind}]" in state_of(net).units
    inputs = several(example)
    assert both_ways(net, inputs, monkeypatch) <= 1e-12
    same_noise(monkeypatch)
    assert both_ways(net, inputs, monkeypatch, samples=True) <= 1e-12


def test_statistics_put_back_at_the_wrong_channels_are_caught(monkeypatch):
    _, net, example = make("dense")
    inputs = several(example)
    right = _Average.statistics

    def fault(average, plan, groups):
        found = right(average, plan, groups)
        if groups is None:
            return found
        return {name: (pair[0].roll(1), pair[1].roll(1)) for name, pair in found.items()}

    monkeypatch.setattr(_Average, "statistics", fault)
    assert both_ways(net, inputs, monkeypatch) > 1e-3


def test_samples_that_are_means_are_caught(monkeypatch):
    _, net, example = make("flatten", log_alpha_init=-1.0)
    inputs = several(example)
    same_noise(monkeypatch)

    def fault(root, plan, shapes, samples):
        return _sliced(root, plan, shapes, False)

    monkeypatch.setattr(MODULE, "_sliced", fault)
    assert both_ways(net, inputs, monkeypatch, samples=True) > 1e-3


def test_sampled_statistics_have_the_same_law_both_ways(monkeypatch):
    net = make("flatten", log_alpha_init=0.0)[1]
    shape = vnd.shape(net, fraction=0.5)
    x = batches(1)[0].repeat(300, 1, 1, 1)  # the mean over many draws of the noise of the same images
    found = []
    for masked in (False, True):
        with monkeypatch.context() as patch:
            if masked:
                patch.setattr(MODULE, "_sliced", lambda *_: {})
            vnd.recalibrate(net, [x], widths=(shape,), samples=True)
        found.append(kept_statistics(net, [shape], samples=True))
    for own, other in zip(*found, strict=True):
        # 2,100 images: about 2 % of the deviation for a mean, 3 % for a variance; five times that
        assert float(((own[0] - other[0]) / own[1].sqrt()).abs().max()) < 0.15
        assert float((own[1] / other[1] - 1).abs().max()) < 0.2


def test_dropped_channels_keep_the_statistics_of_training():
    net = make("flatten")[1]
    vnd.recalibrate(net, batches(), widths=(0.5,))
    found = state_of(net).statistics[vnd.shape(net, fraction=0.5), False]["6"]
    assert torch.equal(found[0][6:], net[6].running_mean[6:])
    assert torch.equal(found[1][6:], net[6].running_var[6:])
    assert not torch.isin(found[0][:6], net[6].running_mean).any()


class Doubled(nn.Module):
    """A forward of one's own, written over a network's."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.inner = [net.forward]

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner[0](2 * x)


def hang_hook(net: nn.Module) -> None:
    net[0].register_forward_hook(lambda module, args, out: 2 * out)


def write_over_forward(net: nn.Module) -> None:
    object.__setattr__(net, "forward", Doubled(net))


def keep_what_cannot_be_copied(net: nn.Module) -> None:
    net.last = (net[0].weight * 2,)  # a part of a graph


MASKED: dict[str, tuple[dict[str, Any], Callable[[nn.Module], None]]] = {
    "masked before the norm": ({"placement": "before_norm"}, lambda net: None),
    "nothing of a layer kept": ({"base": 0}, lambda net: None),
    "a hook of the user": ({}, hang_hook),
    "a forward of the user": ({}, write_over_forward),
    "no copy": ({}, keep_what_cannot_be_copied),
}


@pytest.mark.parametrize("case", MASKED)
def test_where_there_is_no_extracted_network_the_masked_one_collects(case):
    options, change = MASKED[case]
    net = make("flatten", **options)[1]
    change(net)
    shape = vnd.Shape({"0": 2, "5": 0 if "base" in options else 2})
    assert not _sliced(net, state_of(net), [shape], False)
    before = state(net)
    vnd.recalibrate(net, batches(), widths=(shape,))
    assert all(torch.equal(value, state(net)[key]) for key, value in before.items())
    with torch.no_grad(), vnd.width(net, shape):
        seen: dict[str, Tensor] = {}
        handles = [
            norm.register_forward_pre_hook(lambda _, args, name=name: seen.setdefault(name, args[0]))
            for name, norm in batch_norms(net)
        ]
        net(batches()[0])
        vnd.recalibrate(net, batches()[:1], widths=(shape,))
        for handle in handles:
            handle.remove()
    mean = state_of(net).statistics[shape, False]["1"][0]
    torch.testing.assert_close(mean, seen["1"].mean((0, 2, 3)), rtol=1e-12, atol=1e-12)


def test_single_weights_cut_under_a_gaussian_prior_are_sampled_masked():
    net = make("flatten", rules={"5": vnd.Rule(granularity="weight")}, **GAUSSIAN)[1]
    shape = vnd.shape(net, fraction=0.5)
    assert _sliced(net, state_of(net), [shape], False)
    assert not _sliced(net, state_of(net), [shape], True)
    vnd.recalibrate(net, batches(), widths=(shape,), samples=True)
    assert state_of(net).statistics[shape, True]["6"][1].isfinite().all()


def test_the_forward_that_accelerate_binds_is_followed_in_the_copy():
    net, other = make("flatten")[1], make("flatten")[1]

    @functools.wraps(type(net).forward)
    def doubled(self: nn.Module, x: Tensor) -> Tensor:
        return type(net).forward(self, 2 * x)

    net.forward = MethodType(doubled, net)
    assert _sliced(net, state_of(net), [vnd.shape(net, fraction=0.5)], False)
    vnd.recalibrate(net, batches(), widths=(0.5,))
    vnd.recalibrate(other, [2 * x for x in batches()], widths=(0.5,))
    shapes = [vnd.shape(net, fraction=0.5)]
    assert all(
        torch.equal(a, b)
        for one, two in zip(kept_statistics(net, shapes), kept_statistics(other, shapes), strict=True)
        for a, b in zip(one, two, strict=True)
    )


def test_wrappers_are_looked_through():
    net, other = make("flatten")[1], make("flatten")[1]
    vnd.recalibrate(torch.compile(net, backend="eager"), batches(), widths=(0.5,))
    vnd.recalibrate(other, batches(), widths=(0.5,))
    shapes = [vnd.shape(net, fraction=0.5)]
    for one, two in zip(kept_statistics(net, shapes), kept_statistics(other, shapes), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_batch_of_one_is_refused_as_torch_does():
    net = make("flatten")[1]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        vnd.recalibrate(net, [batches()[0][:1]], widths=(0.5,))
    assert not state_of(net).statistics


def test_half_precision_has_statistics_of_its_dtype():
    net = make("flatten", torch.float32)[1].bfloat16()
    vnd.recalibrate(net, [x.bfloat16() for x in batches()], widths=(0.5,))
    other = make("flatten", torch.float32)[1]
    vnd.recalibrate(other, [x.float() for x in batches()], widths=(0.5,))
    shapes = [vnd.shape(net, fraction=0.5)]
    for one, two in zip(kept_statistics(net, shapes), kept_statistics(other, shapes), strict=True):
        assert one[0].dtype == one[1].dtype == torch.bfloat16
        assert gap(two[0], one[0].float()) < 0.05
        assert gap(two[1], one[1].float()) < 0.05


# -- the warning ------------------------------------------------------------------------------------------------------


def test_an_uncalibrated_width_warns_once_naming_the_call_that_mends_it():
    _, net, x = make("flatten")
    with pytest.warns(UserWarning, match=r"run vnd\.recalibrate\(net, batches, widths=\(0\.5,\)\) first"):
        vnd.set_width(net, 0.5)
    vnd.set_width(net, None, warn=False)
    vnd.set_width(net, 0.5)  # warnings are errors: this one is silent
    with pytest.warns(UserWarning, match=r"widths=\(0\.25,\)\) first"), vnd.width(net, 0.25):
        pass
    with pytest.warns(UserWarning, match=r"widths=\(0\.25,\), samples=True\) first"):
        vnd.predict(net, x, width=0.25, samples=2)
    vnd.predict(net, x, width=0.25, samples=2)
    vnd.set_width(net, None)  # nor is there more to say: full width is as it was converted
    shape = vnd.Shape({"0": 1, "5": 4})
    with pytest.warns(UserWarning, match=r"widths=\(shape,\)\) first"):
        vnd.set_width(net, shape)


def test_the_call_that_the_warning_names_mends_it():
    _, net, x = make("flatten")
    vnd.recalibrate(net, batches(), widths=(0.5,))
    vnd.recalibrate(net, batches(), widths=(0.5,), samples=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vnd.set_width(net, 0.5)
        vnd.predict(net, x, samples=2)
        vnd.predict(net, x, samples=0)


@pytest.mark.parametrize("frozen", [[1], []])
def test_training_with_frozen_norms_makes_statistics_stale(frozen):
    """BatchNorm in evaluation mode does not count batches; nor need the one that counts most be the one that trains."""
    net = make("flatten")[1]
    net[1].num_batches_tracked.fill_(100)
    vnd.recalibrate(net, batches(), widths=(0.5, 1.0), samples="both")
    with torch.no_grad():
        net(batches()[0])
    vnd.set_width(net, 0.5)  # nothing of this is training
    net.train()
    for index, norm in enumerate(norms(net)):
        norm.train(index in frozen)
    net(batches()[0]).square().mean().backward()
    net.eval()
    with pytest.warns(UserWarning, match=r"widths=\(0\.5,\)\) first"):
        net(batches()[0])
    assert "_vnd_statistics" not in net.state_dict()
    vnd.recalibrate(net, batches(), widths=(0.5,))
    net(batches()[0])  # warnings are errors: this one is silent
    assert "_vnd_statistics" in net.state_dict()


def test_in_training_nothing_warns():
    net = make("flatten")[1].train()
    with vnd.width(net, 0.5):
        net(batches()[0])


@pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")
def test_an_uncalibrated_width_does_not_run_on_the_statistics_of_another():
    _, net, x = make("flatten")
    as_trained = run(net, x)
    vnd.recalibrate(net, batches(), widths=(0.25,))
    vnd.set_width(net, 0.25)
    vnd.set_width(net, None)
    assert gap(as_trained, run(net, x)) == 0


# -- batches that are no good, and batches of any form -----------------------------------------------------------------


def kept(net: nn.Module) -> list[Tensor]:
    return [x.clone() for found in state_of(net).statistics.values() for pair in found.values() for x in pair]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x * math.nan, r"recalibrate: batch 1 must be finite; got 448 of 448 values that are not"),
        (lambda x: x.index_fill(0, torch.tensor([2]), math.inf), r"batch 1 must be finite; got 64 of 448"),
        (lambda x: x[:0], r"recalibrate: batch 1 is empty; got a tensor of shape \(0, 1, 8, 8\)"),
        (lambda x: x * 1e200, "recalibrate: batch 1 gives statistics of 1 that are not finite"),
    ],
)
def test_batches_that_are_no_good_are_named_and_the_good_statistics_kept(spoil, message, masked):
    net = make("flatten")[1]
    if masked:
        hang_hook(net)
    vnd.recalibrate(net, batches(), widths=(0.5, 1.0))
    before, training = kept(net), state(net)
    first, second, third = batches(seed=3)
    with pytest.raises(ValueError, match=message) as caught:
        vnd.recalibrate(net, [first, spoil(second), third], widths=(0.5, 1.0))
    assert "\n" not in str(caught.value)
    assert len(before) == len(kept(net)) > 0
    assert all(torch.equal(a, b) for a, b in zip(before, kept(net), strict=True))
    assert all(torch.equal(value, training[key]) for key, value in state(net).items())


@pytest.mark.parametrize("masked", [False, True])
def test_both_kinds_of_statistics_come_of_one_pass_over_the_batches(masked):
    net, other = (make("flatten", log_alpha_init=0.0)[1] for _ in range(2))
    if masked:
        hang_hook(net)
        hang_hook(other)
    torch.manual_seed(3)
    vnd.recalibrate(net, iter(batches()), widths=(0.5, 1.0), samples="both")
    torch.manual_seed(3)
    vnd.recalibrate(other, batches(), widths=(0.5, 1.0))
    vnd.recalibrate(other, batches(), widths=(0.5, 1.0), samples=True)
    mine, theirs = state_of(net).statistics, state_of(other).statistics
    assert mine.keys() == theirs.keys()
    assert len(mine) == 4
    for key, found in mine.items():
        for name, pair in found.items():
            assert all(torch.equal(a, b) for a, b in zip(pair, theirs[key][name], strict=True)), (key, name)
    assert all(m.sampling is None for m in net.modules() if isinstance(m, BayesLayer))


class Two(nn.Module):
    """Two inputs, a third that may be left out, and BatchNorm behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 6)
        self.norm, self.head = nn.BatchNorm1d(12), nn.Linear(12, 2)

    def forward(self, a: Tensor, b: Tensor, shift: Tensor | None = None) -> Tensor:
        h = torch.cat((self.a(a), self.b(b)), 1)
        return self.head(torch.relu(self.norm(h if shift is None else h + shift)))


A, B, LABELS = torch.randn(9, 4).double(), torch.randn(9, 3).double(), torch.arange(9) % 2
FORMS: dict[str, Any] = {
    "(a, b)": (A, B),
    "[a, b]": [A, B],
    "(a, b, label)": (A, B, LABELS),
    "((a, b), label)": ((A, B), LABELS),
    "[[a, b], label]": [[A, B], LABELS],
    "a dict": {"b": B, "a": A},
    "a dict with labels": {"a": A, "b": B, "labels": LABELS},
    "(dict, label)": ({"a": A, "b": B}, LABELS),
}


@pytest.mark.parametrize(("form", "named"), [*turns(FORMS, [False]), ("(a, b)", True), *turns(list(FORMS)[5:], [True])])
def test_networks_of_several_inputs_read_batches_of_any_form(form, named):
    torch.manual_seed(0)
    example: Any = {"a": A[:2], "b": B[:2]} if named else (A[:2], B[:2])
    net = vnd.to_nested(Two().double(), example, num_groups=3, bayesian=False)
    batch = FORMS[form]
    if named and form == "(a, b)":
        with pytest.raises(
            ValueError, match=r"batch 0: a batch must be a dict with 'a', 'b' as in .*; got a (tuple|list)"
        ):
            vnd.recalibrate(net, [batch])
        return
    vnd.recalibrate(net, (batch for _ in range(2)))
    hidden = torch.cat((net.a(A), net.b(B)), 1)
    mean, variance = state_of(net).statistics[vnd.shape(net, fraction=1.0), False]["norm"]
    assert gap(mean, hidden.mean(0).detach()) <= 1e-12
    assert gap(variance, hidden.var(0).detach()) <= 1e-12


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        (A, r"a tensor of shape \(9, 4\)"),
        ((A,), r"a tuple of \(a tensor of shape \(9, 4\)\)"),
        ((A, "label"), r"a tuple of \(a tensor of shape \(9, 4\), 'label'\)"),
        ({"a": A, "labels": LABELS}, "a dict with the keys 'a', 'labels'"),
        ({"labels": LABELS}, "a dict with the keys 'labels'"),
        (((A, B, A), LABELS), "a tuple of"),
        ([], r"a list of \(\)"),
        (None, "None"),
    ],
)
def test_batches_that_are_not_understood_are_refused_with_the_form_of_the_example(batch, got):
    net = vnd.to_nested(Two().double(), (A[:2], B[:2]), num_groups=3)
    expected = r"recalibrate: batch 1: a batch must be \(a tensor of shape \(2, 4\), .* \(2, 3\)\) as in .*; got "
    with pytest.raises(ValueError, match=expected + got) as caught:
        vnd.recalibrate(net, [(A, B), batch])
    assert "\n" not in str(caught.value)
    assert not state_of(net).statistics


def test_a_data_loader_with_labels_is_a_source_of_batches():
    net, other = make("flatten")[1], make("flatten")[1]
    x = torch.cat(batches())
    vnd.recalibrate(net, DataLoader(TensorDataset(x, torch.zeros(21)), 7), widths=(0.5,))
    vnd.recalibrate(other, x.split(7), widths=(0.5,))
    assert all(torch.equal(a, b) for a, b in zip(kept(net), kept(other), strict=True))


def test_whole_numbers_and_masks_to_be_added_are_no_faults():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.up = nn.Embedding(5, 4), nn.Linear(4, 6)
            self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 2)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            shares = (self.table(ids).sum(-1) + mask).softmax(1)
            return self.head(torch.relu(self.norm(self.up((self.table(ids) * shares[..., None]).sum(1)))))

    ids, mask = torch.randint(5, (6, 3)), torch.tensor([0.0, 0.0, -math.inf]).expand(6, 3)
    net = vnd.to_nested(Tokens(), (ids, mask), num_groups=3)
    vnd.recalibrate(net, [(ids, mask)])
    assert all(x.isfinite().all() for x in kept(net))
    with pytest.raises(ValueError, match="batch 0 must be finite"):
        vnd.recalibrate(net, [(ids, mask * math.nan)])
