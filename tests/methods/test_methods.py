"""Methods: the loss by hand, what a measurement leaves alone, the sizes that a network has, and that they learn."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from methods.classes import batch, changed_in, everything, model_of, network, put_back, same, step, units_of
from vnd.methods import BN3, METHODS, Plain, Size, Sizes, Step
from vnd.nn import BayesConv2d, BayesLinear, OrderingUnit

OWN = dataclasses.replace  # a method is a frozen dataclass


# The loss

LOSSES: dict[str, BN3] = {
    "default": BN3(num_groups=4),
    "independent": BN3(num_groups=4, coupling="independent", gradient="downhill"),
    "both ends, smoothed": BN3(num_groups=4, kl_keep_prob="min", label_smoothing=0.1, measure_every=0),
    "point weights": BN3(num_groups=4, bayesian=False, gradient="survival"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_the_mean_likelihood_and_the_weighted_kl(name: str) -> None:
    method = LOSSES[name]
    model = model_of(method)
    state = everything(model)
    method.prepare(model, batch(), step(), same)
    x, y = batch()
    torch.manual_seed(3)
    terms = method.loss(model, (x, y), step())
    put_back(model, state)  # the rotation of the quantile went on
    vnd.set_temperature(model, 2.0)
    torch.manual_seed(3)
    nll = F.cross_entropy(model(x), y, label_smoothing=method.label_smoothing)
    kl = vnd.kl(model, method.kl_keep_prob)
    assert terms.total.isfinite()
    assert float(terms.parts["nll"]) == pytest.approx(float(nll.detach()), rel=1e-6)
    assert float(terms.parts["kl"]) == pytest.approx(float(kl.detach()), rel=1e-6)
    assert float(terms.total.detach()) == pytest.approx(float((nll + 0.1 / 50 * kl).detach()), rel=1e-6)
    assert not any(part.requires_grad for part in terms.parts.values())


def test_the_difference_term_moves_the_order_and_leaves_the_value() -> None:
    with_term, without = BN3(num_groups=4, measure_every=1), BN3(num_groups=4, measure_every=0)
    model = model_of(with_term)
    units = [module for module in model.modules() if isinstance(module, OrderingUnit)]
    for index, unit in enumerate(units):
        unit.differences.copy_(torch.linspace(-2, 1, unit.num_nested) + index)
    state = everything(model)
    found: dict[int, tuple[float, dict[str, Tensor]]] = {}
    for method in (with_term, without):
        put_back(model, state)
        model.zero_grad()
        torch.manual_seed(3)
        total = method.loss(model, batch(), step()).total
        total.backward()
        found[method.measure_every] = (
            float(total.detach()),
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
        )
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    expected = {}
    for name, unit in model.named_modules():
        if isinstance(unit, OrderingUnit):
            term = (unit.posterior().chain.log_survival.exp() * unit.differences).sum()
            (expected[f"{name}.keep_logits"],) = torch.autograd.grad(term, unit.keep_logits)
    assert len(expected) == len(units)
    for name, gradient in found[1][1].items():
        other = found[0][1][name]
        torch.testing.assert_close(gradient, other + expected[name] if name in expected else other)
        assert (name in expected) != torch.equal(gradient, other), name


# Measuring


def test_a_measurement_changes_the_table_of_differences_and_nothing_else() -> None:
    method = BN3(num_groups=4, measure_every=2)
    model = model_of(method)
    model(batch()[0])  # so that BatchNorm has statistics of its own
    before = everything(model)
    method.prepare(model, batch(), step(index=1), same)  # not its turn
    assert not changed_in(model, before)
    method.prepare(model, batch(), step(index=2), same)
    changed = {key for key in changed_in(model, before) if not key.endswith(".ticks")}  # the next pass draws them anew
    assert {key.rpartition(".")[2] for key in changed} == {"differences", "difference_counts"}
    assert len({key.rpartition(".")[0] for key in changed}) == 1  # of one unit
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


@pytest.mark.parametrize("change", [{"measure_every": 0}, {"gradient": "downhill", "coupling": "independent"}])
def test_what_does_not_measure_leaves_all_as_it_was(change: dict[str, Any]) -> None:
    method = BN3(num_groups=4, **change)
    model = model_of(method)
    before = everything(model)
    calls: list[int] = []
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    method.prepare(model, batch(), step(), same)
    hook.remove()
    assert not calls
    assert not changed_in(model, before)


def test_the_mean_over_processes_is_what_counts_and_all_draw_the_same_unit() -> None:
    method = BN3(num_groups=4, measure_every=1)
    models = [model_of(method) for _ in range(2)]
    for model, factor in zip(models, (1.0, 3.0), strict=True):
        torch.manual_seed(5)
        method.prepare(model, batch(), step(), lambda loss, factor=factor: factor * loss)
    one, three = [dict(model.named_buffers()) for model in models]
    changed = [
        key for key in one if key.endswith("differences") and not torch.equal(one[key], torch.zeros_like(one[key]))
    ]
    assert len(changed) == 1
    torch.testing.assert_close(three[changed[0]], 3 * one[changed[0]])


def test_the_temperature_of_the_step_reaches_every_unit() -> None:
    method = BN3(num_groups=4)
    model = model_of(method)
    method.prepare(model, batch(), Step(1, torch.tensor(0.0), 0.75, 50), same)
    assert {float(m.temperature) for m in model.modules() if isinstance(m, OrderingUnit)} == {0.75}


# Options


def test_options_reach_the_layers() -> None:
    method = BN3(
        num_groups=3, base=2, log_alpha_init=-5.0, initial_logit=1.5, estimator="weight", weight_prior="molchanov",
        rules={"features.0": {"nest": False, "log_alpha_init": -8}, "classifier.*": {"bayesian": False}},
    )  # fmt: skip
    model = model_of(method)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, BayesConv2d | BayesLinear)}
    units = {n: m for n, m in model.named_modules() if isinstance(m, OrderingUnit)}
    assert not any(name.startswith("features.0.") for name in units)
    assert units
    assert {(unit.num_groups, unit.base) for unit in units.values()} == {(3, 2)}
    assert all((unit.keep_logits == 1.5).all() for unit in units.values())
    assert (layers["features.0"].log_alpha == -8).all()
    assert (layers["features.4"].log_alpha == -5).all()
    assert layers["features.4"].bayesian
    assert not layers["classifier.0"].bayesian
    assert {layer.estimator for layer in layers.values() if layer.bayesian} == {"weight"}


def test_every_method_is_a_frozen_dataclass_of_plain_values() -> None:
    for method in METHODS.values():
        made: Any = method()
        assert dataclasses.is_dataclass(made)
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.label_smoothing = 0.5


# Sizes


def parameters(model: nn.Module, size: Size) -> int:
    return sum(p.numel() for p in vnd.extract(model, size.width, warn=False).parameters())


def uneven(method: BN3) -> nn.Module:
    """A network whose layers were worth different lengths."""
    model = model_of(method)
    for index, unit in enumerate(m for m in model.modules() if isinstance(m, OrderingUnit)):
        unit.keep_logits.data = torch.linspace(3, -3, unit.num_nested) + index
    return model


def test_the_sizes_are_those_that_were_asked_for() -> None:
    method = BN3(num_groups=4)
    model = uneven(method)
    sizes = method.sizes(model, Sizes(fractions=(0.25, 1.0), levels=(0.5,), parameters=(1200.0,), learned=0))
    assert [(size.kind, size.label) for size in sizes] == [
        ("uniform", "25 %"), ("uniform", "100 %"), ("learned", "level 0.5"), ("learned", "≤ 1.2 k"),
    ]  # fmt: skip
    widths = [vnd.shape(model, fraction=0.25), vnd.shape(model, fraction=1.0), vnd.shape(model, level=0.5)]
    assert [size.width for size in sizes[:3]] == widths
    assert parameters(model, sizes[3]) <= 1200


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_learned_sizes_are_nested_distinct_within_their_budgets_and_end_at_the_full_network(count: int) -> None:
    method = BN3(num_groups=4)
    model = uneven(method)
    sizes = method.sizes(model, Sizes(fractions=(), learned=count))
    full = vnd.shape(model, fraction=1.0)
    assert sizes[-1].width == full
    assert count > 12 or len(sizes) == count
    assert len({size.width for size in sizes}) == len(sizes) == len({size.label for size in sizes})
    for small, large in pairwise(sizes):
        shapes = small.width, large.width
        assert all(isinstance(x, vnd.Shape) for x in shapes)
        assert all(shapes[0][name] <= shapes[1][name] for name in full)
        assert parameters(model, small) < parameters(model, large)
    if count > 1:
        smallest = vnd.shape(model, fraction=1e-9)
        assert sizes[0].width == smallest
        low, high = (vnd.profile(model, width, count_macs=False).parameters for width in (smallest, full))
        budgets = [round(low * (high / low) ** (i / (count - 1))) for i in range(count)]
        kept = [vnd.shape(model, parameters=budget) for budget in budgets]
        assert [size.width for size in sizes] == list(dict.fromkeys(kept))


def test_sizes_of_one_rounded_label_are_told_apart_and_none_is_there_twice() -> None:
    method = BN3(num_groups=4)
    model = uneven(method)
    full = vnd.profile(model, 1.0, count_macs=False).parameters
    sizes = method.sizes(model, Sizes(fractions=(0.5, 0.5), parameters=(float(full), full - 1.0, full + 1.0, 900.0)))
    assert len({size.label for size in sizes}) == len(sizes) == 4
    assert [size.label for size in sizes[:1]] == ["50 %"]
    assert all(f"{parameters(model, size):,}" in size.label for size in sizes[1:3])


def test_sizes_that_cannot_be_are_refused() -> None:
    for change, words in (
        ({"fractions": (0.0,)}, "fractions must lie in (0, 1]; got [0.0]"),
        ({"levels": (1.5,)}, "levels must lie in (0, 1]; got [1.5]"),
        ({"parameters": (-1.0,)}, "parameters must be greater than 0; got [-1.0]"),
        ({"learned": -1}, "learned must be 0 or more; got -1"),
        ({"fractions": ()}, "fractions, levels, parameters or learned must name at least one size; got none"),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            Sizes(**change)  # type: ignore[arg-type]
        assert str(caught.value) == words
    method = BN3(num_groups=4)
    with pytest.raises(ValueError, match="parameters must be at least"):
        method.sizes(model_of(method), Sizes(parameters=(3.0,)))


def test_a_plain_network_has_one_size_and_is_itself() -> None:
    method, net = Plain(), network()
    assert method.build(net, batch()[0]) is net
    sizes = method.sizes(net, Sizes(fractions=(0.25, 0.5, 1.0), learned=3))
    assert sizes == [Size("uniform", "100 %", None, 1.0)]
    x, y = batch()
    terms = method.loss(net.train(), (x, y), step())
    assert float(terms.total.detach()) == pytest.approx(float(F.cross_entropy(net(x), y).detach()), rel=1e-6)
    assert terms.parts.keys() == {"nll"}
    before = everything(net)
    method.prepare(net, (x, y), step(), same)
    method.recalibrate(net, lambda: iter(()), [None], samples=True)
    assert not changed_in(net, before)
    torch.testing.assert_close(method.predict(net, x, 6).probs, net.eval()(x).softmax(1))


# Prediction


@pytest.mark.parametrize("samples", [0, 3])
def test_a_cut_network_has_the_statistics_it_was_calibrated_with(samples: int) -> None:
    method = BN3(num_groups=4, log_alpha_init=-1.0)
    model = model_of(method)
    width = vnd.shape(model, fraction=0.5)
    method.recalibrate(model, lambda: [batch(64)[0]], [width], samples=samples > 0)
    small = method.extract(model, width, "posterior" if samples else "mean")
    kept = model._vnd_state.statistics[width, samples > 0]  # type: ignore[union-attr, index]
    norms = {name: module for name, module in small.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert norms.keys() == kept.keys()
    for name, norm in norms.items():
        torch.testing.assert_close(norm.running_mean, kept[name][0][: norm.num_features])
    assert any(isinstance(m, BayesConv2d) for m in small.modules()) == (samples > 0)
    torch.manual_seed(4)
    mine = method.predict(small, batch()[0], samples)
    torch.manual_seed(4)
    theirs = vnd.predict(model, batch()[0], width, samples=samples)
    assert mine.samples == max(1, samples)
    assert mine.probs.isfinite().all()
    if samples == 0:
        torch.testing.assert_close(mine.probs, theirs.probs, rtol=1e-5, atol=1e-6)


def test_the_statistics_of_training_are_others() -> None:
    """What a network cut for samples would have had in a sweep of means: the check above would notice."""
    method = BN3(num_groups=4, log_alpha_init=-1.0)
    model = model_of(method)
    width = vnd.shape(model, fraction=0.5)
    method.recalibrate(model, lambda: [batch(64)[0]], [width], samples=False)
    wrong, right = method.extract(model, width, "posterior"), method.extract(model, width)
    assert not torch.allclose(wrong.features[1].running_mean, right.features[1].running_mean)  # type: ignore[index, union-attr]


# Learning


def test_several_draws_a_step_run_parts_of_the_batch_at_masks_spread_evenly() -> None:
    method = BN3(num_groups=4, bayesian=False, measure_every=0, draws=3)
    model, (x, y) = model_of(method), batch(11)
    assert int(model.features[0].ordering.quantile.strata) == 3
    state, seen = everything(model), []
    handle = model.register_forward_pre_hook(lambda *_: seen.append(float(model.features[0].ordering.quantile.u)))
    terms = method.loss(model, (x, y), step(kl_weight=0.0))
    handle.remove()
    assert len(seen) == 3
    assert sorted((u - seen[0]) % 1 for u in seen) == pytest.approx([0, 1 / 3, 2 / 3], abs=1e-6)
    put_back(model, state)
    expected = sum(len(y[i::3]) * F.cross_entropy(model(x[i::3]), y[i::3]) for i in range(3))
    assert float(terms.parts["nll"]) == pytest.approx(float(expected.detach()) / 11, rel=1e-6)
    assert int(model.features[0].ordering.quantile.count) == 3


def test_what_is_done_to_a_plain_network_that_was_cut_is_not_done_to_the_one_in_training() -> None:
    method = Plain()
    model = model_of(method)
    cut = method.extract(model, None)
    assert cut is not model
    assert all(a is not b for a, b in zip(cut.parameters(), model.parameters(), strict=True))


def test_a_network_masked_before_its_norms_is_read_masked_and_costs_what_the_whole_one_does() -> None:
    method = BN3(num_groups=4, placement="before_norm")
    model = model_of(method)
    images, labels = batch()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.bias, 0.5)
    method.loss(model.train(), (images, labels), step()).total.backward()  # leaves the masks of the step behind
    model.eval()
    width = vnd.shape(model, fraction=0.5)
    method.recalibrate(model, lambda: [images], [width], samples=False)
    network = method.extract(model, width)
    with vnd.width(model, width), torch.no_grad():
        assert torch.equal(network.eval()(images), model(images))
    after = BN3(num_groups=4)
    whole = after.extract(model_of(after), 1.0)
    assert method.cost(method.extract(model, width), images[:1]) == after.cost(whole, images[:1])
    for given in (width, 1.0, None):
        assert (
            vnd.profile(model, given, images[:1], count_macs=False).parameters
            == vnd.profile(whole, None, images[:1]).parameters
        )
    assert all(int(unit.fixed_groups) == -1 for unit in units_of(model))  # training goes on unpinned
