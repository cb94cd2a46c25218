"""The methods beside BN³: each one's loss by hand, its sizes, and that each learns a small set by heart."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vnd
from methods.classes import SMALL, batch, changed_in, everything, model_of, network, same, step, units_of
from vnd.methods import BN3, FN3, IBNN, SVB, Method, OrderedL0, Plain, Sizes, Step, USNet
from vnd.methods.base import with_means
from vnd.methods.classification_baselines import expected_size, fit_temperature, scaled
from vnd.nn import BayesLayer, OrderingUnit


@pytest.mark.parametrize("name", ["bn3", "bn3 paper", "fn3", "ibnn", "svb", "ordered_l0", "us_net", "plain, half"])
def test_what_is_cut_or_extracted_is_a_plain_copy_that_costs_what_it_says(name: str, tmp_path: Path) -> None:
    method = SMALL[name]
    model = model_of(method)
    before = everything(model)
    size = method.sizes(model, Sizes(fractions=(0.5,)))[0]
    method.recalibrate(model, lambda: [batch(24)[0]], [size.width], samples=False)
    small = method.extract(model, size.width)
    assert not any(isinstance(module, BayesLayer | OrderingUnit) for module in small.modules())
    cost = method.cost(small, batch(1)[0])
    assert cost["parameters"] == sum(p.numel() for p in small.parameters())  # nothing is pruned before training
    for samples in (0, 2):
        method.recalibrate(model, lambda: [batch(24)[0]], [size.width], samples=samples > 0)
        cut = method.extract(model, size.width, "posterior" if samples else "mean")
        for parameter in cut.parameters():
            parameter.data.zero_()
    assert not changed_in(model, before)
    vnd.save(model, tmp_path)
    loaded = vnd.load(tmp_path)
    torch.testing.assert_close(loaded(batch()[0]), copy.deepcopy(model).eval()(batch()[0]))


@pytest.mark.parametrize("name", ["bn3 sandwich", "ibnn", "svb"])
def test_groups_of_convolutions_and_a_base_are_cut_alike(name: str, tmp_path: Path) -> None:
    """ResNeXt: tiles, units of fewer channels than groups, streams that stay whole."""
    torch.manual_seed(0)
    options = {"num_groups": 8, "base": 3} if hasattr(SMALL[name], "base") else {}
    method: Any = dataclasses.replace(SMALL[name], **options)  # type: ignore[type-var]
    x, y = torch.rand(4, 3, 32, 32), torch.arange(4)
    plain = vnd.models.ResNeXt(num_classes=10, depth=11, cardinality=2, base_width=4, widen_factor=1)
    model = method.build(plain, x[:2]).train()
    method.prepare(model, (x, y), step(), same)
    terms = method.loss(model, (x, y), step())
    terms.total.backward()
    assert terms.total.isfinite()
    vnd.save(model.eval(), tmp_path)
    for size in method.sizes(model, Sizes(fractions=(0.1, 1.0), leading=2 / 3)):
        answers = []
        for net in (model, vnd.load(tmp_path)):
            method.recalibrate(net, lambda: [x], [size.width], samples=False)
            answers.append(method.predict(method.extract(net, size.width), x, 0).probs)
        torch.testing.assert_close(*answers)


@pytest.mark.parametrize("name", ["ibnn", "plain, half"])
def test_what_is_cut_of_one_width_can_be_saved(name: str, tmp_path: Path) -> None:
    model = model_of(SMALL[name])
    vnd.save(SMALL[name].extract(model, None, "posterior"), tmp_path)
    assert [p.shape for p in vnd.load(tmp_path).parameters()] == [p.shape for p in model.parameters()]


def test_weights_that_are_cut_have_no_noise_of_their_own() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    rules = {"0": vnd.Rule(granularity="weight")}
    net = vnd.to_nested(plain, torch.randn(2, 4), num_groups=4, rules=rules, free_variance=True, log_alpha_init=0.0)
    small: Any = vnd.extract(net, 0.25, keep="posterior")
    cut = small[0].weight == 0
    assert cut.sum() == 24
    assert (small[0].log_variance[cut] == -torch.inf).all()


def test_the_price_of_a_network_without_units_is_nothing() -> None:
    model = model_of(OrderedL0(num_groups=4, rules={"*": {"nest": False}}))
    assert float(expected_size(model, "weights")) == float(expected_size(model, "units")) == 0.0


# Fixed lengths


@pytest.mark.parametrize("method", [FN3(num_groups=4, base=1), USNet(num_groups=4, base=2)], ids=["fn3", "us_net"])
def test_lengths_are_uniform_and_stay_so(method: Method) -> None:
    model = model_of(method)
    optimizer = torch.optim.SGD(vnd.parameter_groups(model, lr=1.0, chain_lr=10.0))
    method.loss(model, batch(), step()).total.backward()
    optimizer.step()
    for unit in units_of(model):
        probs = unit.posterior().chain.length_log_probs.exp()
        torch.testing.assert_close(probs, torch.full_like(probs, 1 / (unit.num_nested + 1)))
        assert unit.keep_logits.grad is None


def test_one_width_for_all_layers_or_one_for_each() -> None:
    for coupling in ("quantile", "independent"):
        model = model_of(FN3(num_groups=4, coupling=coupling))  # type: ignore[arg-type]
        seen = []
        for _ in range(30):
            model(batch()[0])
            kept = [(unit, int(unit.channel_mask().sum())) for unit in units_of(model)]
            seen.append([next(g for g in range(1, 5) if len(u.kept_channels(g)) == count) for u, count in kept])
        assert any(max(groups) > min(groups) for groups in seen) == (coupling == "independent")
        assert {groups[0] for groups in seen} == {1, 2, 3, 4}


def test_budgets_of_a_fixed_order_are_no_learned_shapes() -> None:
    method = FN3(num_groups=4)
    model = model_of(method)
    sizes = method.sizes(model, Sizes(fractions=(0.5,), parameters=(1500.0,), learned=2))
    assert {size.kind for size in sizes} == {"uniform"}
    assert [size.fraction for size in sizes] == [0.5, None, None, None]


def test_fractions_are_shares_of_the_leading_part() -> None:
    method = FN3(num_groups=6)
    model = model_of(method)
    sizes = method.sizes(model, Sizes(fractions=(0.5, 1.0), leading=2 / 3))
    assert [set(dict(size.width).values()) for size in sizes] == [{2}, {4}]  # type: ignore[arg-type]
    assert [(size.label, size.fraction) for size in sizes] == [("50 %", 0.5), ("100 %", 1.0)]


# Ordered ℓ0


@pytest.mark.parametrize("charge", ["weights", "units"])
def test_the_price_is_the_expected_size_by_enumeration(charge: Any) -> None:
    method = OrderedL0(num_groups=4, charge=charge, measure_every=0)
    model = model_of(method)
    for index, unit in enumerate(units_of(model)):
        unit.keep_logits.data = torch.linspace(2, -2, unit.num_nested) + 0.3 * index
    expected = 0.0
    for name, unit in model.named_modules():
        if not isinstance(unit, OrderingUnit):
            continue
        layer = model.get_submodule(name.removesuffix(".ordering"))
        lengths = unit.posterior().chain.length_log_probs.exp()  # β, over 0 … n nested groups
        per_channel = layer.weight.numel() / layer.weight.size(0)  # type: ignore[operator, union-attr]
        for length, probability in enumerate(lengths.tolist()):
            groups = unit.base + length
            size = groups if charge == "units" else per_channel * len(unit.kept_channels(groups))  # type: ignore[operator]
            expected += probability * size
    assert float(expected_size(model, charge).detach()) == pytest.approx(expected, rel=1e-5)
    terms = method.loss(model, batch(), step())
    total = float(terms.parts["nll"]) + 0.1 / 50 * expected
    assert float(terms.total.detach()) == pytest.approx(total, rel=1e-5)


def test_a_dear_order_grows_short() -> None:
    method = OrderedL0(num_groups=4, gradient="survival", measure_every=0)
    model, given = model_of(method), batch()
    optimizer = torch.optim.SGD(vnd.parameter_groups(model, lr=0.0, chain_lr=1.0))
    before = float(expected_size(model, "weights").detach())
    for index in range(20):
        method.loss(model, given, Step(index, torch.tensor(10.0), 2.0, 50)).total.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(expected_size(model, "weights").detach()) < 0.5 * before


# One size


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_a_network_of_one_width_is_as_wide_as_the_nested_one_at_that_width(fraction: float) -> None:
    nested = model_of(BN3(num_groups=4))
    wanted = {n: p.shape for n, p in vnd.extract(nested, fraction, warn=False).named_parameters()}
    for method in (IBNN(fraction=fraction, num_groups=4), Plain(fraction=fraction, num_groups=4)):
        model = model_of(method)
        assert {n: p.shape for n, p in with_means(model).named_parameters()} == wanted
        assert [(s.label, s.fraction) for s in method.sizes(model, Sizes())] == [(f"{100 * fraction:g} %", fraction)]


def test_a_narrower_network_starts_at_random_by_its_own_size() -> None:
    wide = network()
    model = Plain(fraction=0.5, num_groups=4).build(wide, batch()[0][:2])
    layer, other = model.features[4], wide.features[4]
    assert not torch.equal(layer.weight, other.weight[: len(layer.weight), : layer.weight.size(1)])
    fan_out = layer.weight.size(0) * layer.weight[0, 0].numel()
    assert float(layer.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.25)


def test_a_network_of_a_learned_shape() -> None:
    nested = model_of(BN3(num_groups=4))
    shape = dict(vnd.shape(nested, fraction=0.5)) | {"features.4": 3}
    model = model_of(Plain(shape=shape, num_groups=4))
    wanted = vnd.extract(nested, vnd.Shape(shape), warn=False)
    assert [p.shape for p in model.parameters()] == [p.shape for p in wanted.parameters()]


@pytest.mark.parametrize("method", [IBNN(num_groups=4, log_alpha_init=-2.0), SVB()], ids=["ibnn", "svb"])
def test_a_bayesian_network_of_one_size_has_the_likelihood_and_the_kl_as_its_loss(method: Method) -> None:
    model, (x, y) = model_of(method), batch()
    torch.manual_seed(5)
    terms = method.loss(model, (x, y), step())
    torch.manual_seed(5)
    nll = F.cross_entropy(model(x), y)
    layers = [module for module in model.modules() if isinstance(module, BayesLayer)]
    kl = sum(layer.weight_kl().sum().detach() for layer in layers)
    assert len(layers) == 5
    assert float(kl) > 0  # type: ignore[arg-type]
    assert float(terms.total.detach()) == pytest.approx(float((nll + 0.1 / 50 * kl).detach()), rel=1e-5)


# Sparse variational dropout


def test_weights_of_noise_are_pruned_and_not_counted() -> None:
    method = SVB(threshold=3.0)
    model = model_of(method)
    layer: Any = model.features[4]
    log_alpha = layer.posterior().log_alpha.detach()
    torch.testing.assert_close(log_alpha, torch.full_like(log_alpha, -8.0), rtol=1e-3, atol=1e-3)
    full = method.cost(method.extract(model, None), batch(1)[0])
    layer.log_variance.data[:2] += 11.5  # log α becomes 3.5
    layer.log_variance.data[2] += 10.5  # and 2.5
    small = method.extract(model, None)
    cost = method.cost(small, batch(1)[0])
    pruned = 2 * layer.weight[0].numel()
    assert (small.features[4].weight[:2] == 0).all()
    assert (small.features[4].weight[2:] != 0).all()
    assert cost["parameters"] == full["parameters"] - pruned
    assert cost["dense_parameters"] == full["parameters"] == sum(p.numel() for p in small.parameters())
    assert cost["macs"] == full["macs"]
    weights = sum(p.numel() for p in small.parameters() if p.dim() > 1)
    assert full["bytes"] == sum(x.numel() * x.element_size() for x in (*small.parameters(), *small.buffers()))
    assert cost["bytes"] == min(full["bytes"], full["bytes"] - 4 * pruned + (weights + 7) // 8)
    sampled = method.extract(model, None, "posterior")
    x = batch()[0]
    first = sampled.features[4]
    draws = [first.train()(torch.randn(2, first.in_channels, 4, 4))[:, :2] for _ in range(2)]
    assert all((draw.abs() < 1e-3).all() for draw in draws)  # the square root of a variance keeps a little
    assert method.predict(sampled, x, 3).probs.isfinite().all()


def test_what_says_nothing_is_pruned_and_what_says_all_is_kept() -> None:
    """One input of four decides the class; the noise of the others grows until their weights are gone."""
    torch.manual_seed(0)
    y = torch.arange(64) % 2
    x = torch.randn(64, 4)
    x[:, 0] = 4.0 * y - 2.0
    method = SVB(rules={"*": {"nest": False}})
    plain = nn.Sequential(nn.Linear(4, 2))
    model = method.build(plain, x[:2]).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for index in range(600):
        optimizer.zero_grad()
        method.loss(model, (x, y), Step(index, torch.tensor(1.0), 2.0, 64)).total.backward()
        optimizer.step()
    kept = method.extract(model, None)[0].weight != 0  # type: ignore[index]
    assert kept[:, 0].any()
    assert not kept[:, 1:].any()


def test_a_weight_of_zero_has_a_finite_gradient() -> None:
    layer = vnd.BayesLinear(3, 2, prior=vnd.distributions.LogUniform("molchanov"), free_variance=True)
    layer.weight.data.zero_()
    layer.weight_kl().sum().backward()
    assert layer.weight.grad.isfinite().all()
    assert layer.log_variance.grad.isfinite().all()


# Temperature scaling


@pytest.mark.parametrize("temperature", [0.3, 2.5])
def test_the_temperature_that_answers_were_sharpened_by_is_found(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(40_000, 5, generator=generator, dtype=torch.float64)).softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]  # so probs are calibrated as they are
    sharp = scaled(probs, 1 / temperature)
    found = fit_temperature(sharp, labels)
    assert found == pytest.approx(temperature, rel=0.03)
    grid = [temperature * f for f in (0.9, 0.97, 1.03, 1.1)]
    best = vnd.metrics.negative_log_likelihood(scaled(sharp, found), labels)
    assert all(best <= vnd.metrics.negative_log_likelihood(scaled(sharp, t), labels) for t in grid)
    assert torch.equal(scaled(sharp, found).argmax(1), probs.argmax(1))


def test_scaling_equals_dividing_the_logits() -> None:
    logits = 3 * torch.randn(20, 4, dtype=torch.float64)
    torch.testing.assert_close(scaled(logits.softmax(1), 1.7), (logits / 1.7).softmax(1))


def test_the_fitted_temperature_is_best_for_answers_of_probability_zero() -> None:
    probs = torch.tensor([[0.0, -120.0]] * 5).softmax(1)  # exactly 1 and 0 in float32
    labels = torch.tensor([0, 0, 0, 0, 1])
    best, *others = (
        float(vnd.metrics.negative_log_likelihood(scaled(probs, t), labels))
        for t in (fit_temperature(probs, labels), 40.0, 60.0, 80.0)
    )
    assert best <= min(others) + 1e-6


def test_extremes_of_the_temperature_are_bounded() -> None:
    sure = torch.eye(3)[[0, 1, 2]] * 0.9 + 0.1 / 3
    assert fit_temperature(sure, torch.tensor([0, 1, 2])) == 1.0  # all right: nothing to learn
    assert fit_temperature(sure, torch.tensor([1, 2, 0])) == pytest.approx(math.exp(5))  # all wrong
    hard = torch.eye(3)[[0, 1, 1]]
    assert math.isfinite(fit_temperature(hard, torch.tensor([0, 1, 2])))
    assert scaled(hard, 2.0).isfinite().all()
