"""Options of the paper that recipes have: each changes its own term of the loss, by the value worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import vnd
from methods.classes import same
from vnd.methods import BN3, FN3, IBNN, Step
from vnd.nn.objective import length_kl
from vnd.train.config import parse

INPUTS, HIDDEN, CLASSES, LOGIT, LOG_ALPHA = 2, 4, 3, 1.0, -2.0
KEEP = 1 / (1 + math.exp(-LOGIT))
KEPT = sum(KEEP**i for i in range(HIDDEN))  # channels of the hidden layer, of which the first always stays
WEIGHTS = INPUTS * KEPT + HIDDEN * CLASSES  # that are kept, as the paper counts them: by their output channel
MEANS = INPUTS * KEPT / INPUTS + HIDDEN * CLASSES / HIDDEN  # the same, each over its fan-in


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def step(temperature: float = 2.0) -> Step:
    return Step(0, torch.tensor(0.5), temperature, num_data=50)


def terms(method: Any) -> tuple[float, float, float, nn.Module]:
    """The loss of a batch, its likelihood, its KL, and the model; with the same draws each time."""
    model = method.build(network(), torch.zeros(2, INPUTS)).train()
    x, y = torch.linspace(-1, 1, 12).view(6, INPUTS), torch.arange(6) % CLASSES
    torch.manual_seed(2)
    method.prepare(model, (x, y), step(), same)
    torch.manual_seed(3)
    found = method.loss(model, (x, y), step())
    return float(found.total.detach()), float(found.parts["nll"]), float(found.parts["kl"]), model


def bn3(**options: Any) -> BN3:
    return BN3(num_groups=HIDDEN, initial_logit=LOGIT, log_alpha_init=LOG_ALPHA, coupling="independent", **options)


def by_hand(log_alpha: float) -> float:
    """KL of a weight as Eq. (17) has it, without C."""
    bump = 0.7294 * math.exp(-math.exp(0.5387) * (0.3492 * log_alpha - 0.2041) ** 2)
    return -bump + 0.5 * math.log1p(math.exp(-log_alpha))


PRICE = by_hand(LOG_ALPHA)
OPTIONS: dict[str, tuple[dict[str, Any], float]] = {  # and what the KL of the weights is then
    "none": ({}, WEIGHTS * (PRICE + 0.547125)),
    "no constant": ({"kl_constant": 0.0}, WEIGHTS * PRICE),
    "a constant": ({"kl_constant": 2.0}, WEIGHTS * (PRICE + 2)),
    "fan-in": ({"kl_reduction": "fan_in"}, MEANS * (PRICE + 0.547125)),
    "fan-in, no constant": ({"kl_reduction": "fan_in", "kl_constant": 0.0}, MEANS * PRICE),
    "released": ({"kl_keep_prob": "released"}, MEANS * PRICE),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_the_kl_changes_that_term_alone_and_by_hand(name: str) -> None:
    options, expected = OPTIONS[name]
    total, nll, kl, model = terms(bn3(**options))
    assert kl == pytest.approx(float(length_kl(model).detach()) + expected, rel=1e-5)
    assert nll == terms(bn3())[1]
    assert total == pytest.approx(nll + 0.5 / 50 * kl, rel=1e-6)
    if "kl_keep_prob" not in options:  # without masks, all weights are kept
        whole = IBNN(num_groups=HIDDEN, log_alpha_init=LOG_ALPHA, **options)
        full = expected * (INPUTS * HIDDEN + HIDDEN * CLASSES) / WEIGHTS
        full = full if "kl_reduction" not in options else expected * (HIDDEN + CLASSES) / MEANS
        assert terms(whole)[2] == pytest.approx(full, rel=1e-5)


@pytest.mark.parametrize("scale", [0.1, 2.0])
def test_a_gaussian_prior_charges_its_kl_by_hand(scale: float) -> None:
    _, nll, kl, model = terms(bn3(weight_prior=scale))
    expected = float(length_kl(model).detach())
    for name, kept in (("0", torch.tensor([KEEP**i for i in range(HIDDEN)])), ("2", torch.ones(CLASSES))):
        weight = model.get_submodule(name).weight.detach().double()
        variance = math.exp(LOG_ALPHA) * weight.square()
        charge = 0.5 * ((variance + weight.square()) / scale**2 - 1 - (variance / scale**2).log())
        expected += float((charge.sum(1) * kept).sum())
    assert kl == pytest.approx(expected, rel=1e-5)
    assert nll == pytest.approx(terms(bn3())[1], rel=1e-5)  # where training begins, the posterior is the same


def test_geometric_lengths_have_their_law_and_scale_the_units_by_it() -> None:
    model = terms_of(FN3(num_groups=HIDDEN, keep_prob=0.8, rescale="expected"))
    (unit,) = (module for module in model.modules() if isinstance(module, vnd.OrderingUnit))
    probs = unit.posterior().length_log_probs.exp()
    torch.testing.assert_close(
        probs, torch.tensor([0.2, 0.8 * 0.2, 0.64 * 0.2, 0.512])
    )  # of the last, all that is left
    drawn = torch.zeros(4)
    for _ in range(2000):
        model(torch.ones(1, INPUTS))
        drawn[int(unit.mask().sum()) - 1] += 1
    assert float((drawn / 2000 - probs).abs().max()) < 0.06  # false alarm below 1e-6: five standard deviations
    plain, model = network(), model.eval()
    hidden = torch.relu(plain[0](torch.ones(1, INPUTS)))
    kept = torch.tensor([1, 0.8, 0.64, 0])
    with vnd.width(model, 0.75), torch.no_grad():
        torch.testing.assert_close(model(torch.ones(1, INPUTS)), plain[2](hidden * kept))
        small = vnd.extract(model, 0.75)
    torch.testing.assert_close(small(torch.ones(1, INPUTS)), plain[2](hidden * kept))


def terms_of(method: Any) -> nn.Module:
    model: nn.Module = method.build(network(), torch.zeros(2, INPUTS)).train()
    return model


def test_the_temperature_of_a_step_reaches_the_order_through_relaxed_samples_alone() -> None:
    grads: dict[tuple[str, float], dict[str, torch.Tensor]] = {}
    for gradient in ("downhill", "survival"):
        for temperature in (0.5, 2.0):
            method = bn3(gradient=gradient)
            model = terms_of(method)
            x, y = torch.linspace(-1, 1, 12).view(6, INPUTS), torch.arange(6) % CLASSES
            method.prepare(model, (x, y), step(temperature), same)
            assert all(float(u.temperature) == temperature for u in model.modules() if isinstance(u, vnd.OrderingUnit))
            torch.manual_seed(5)
            (method.loss(model, (x, y), step(temperature)).total).backward()
            grads[gradient, temperature] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for gradient in ("downhill", "survival"):
        cold, warm = grads[gradient, 0.5], grads[gradient, 2.0]
        differing = {name.rpartition(".")[2] for name in cold if not torch.equal(cold[name], warm[name])}
        assert differing == ({"keep_logits"} if gradient == "downhill" else set())


def test_recipes_have_them_all() -> None:
    options = {"weight_prior": "exact", "kl_constant": 0.0, "kl_reduction": "fan_in", "placement": "before_norm"}
    recipe = parse({"method": {"name": "bn3", **options}, "network": {"name": "convnet"}})
    assert {name: getattr(recipe.method, name) for name in options} == options
    assert parse("fashion/bn3", ["--method.weight_prior", "0.1"]).method.weight_prior == 0.1
    fixed = parse("fashion/fn3", ["--method.keep_prob", "0.9", "--method.rescale", "expected"])
    assert parse(fixed.to_dict()).method == fixed.method
