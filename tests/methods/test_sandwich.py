"""The sandwich: the loss of the full, the smallest, fixed and sampled networks, by hand, and when its order settles."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from covering import pairs
from methods.classes import batch, everything, model_of, put_back, same, step, units_of
from train.small import recipe, write_blobs
from vnd.methods import BN3, Step
from vnd.methods.nested import TrainableSubnet, at_end, fixed_sizes, unsmoothed
from vnd.nn.state import state_of
from vnd.train import checkpoint
from vnd.train.loop import fit

LEAST, BUDGET = 217.0, 1200.0  # between the 217 parameters of the smallest network and the 1,906 of the full one


def sandwiched(distill: float = 1.0, **options: Any) -> BN3:
    return BN3(num_groups=4, bayesian=False, gradient="survival", sandwich=True, distill=distill, **options)


def at(share: float) -> Step:
    return dataclasses.replace(step(kl_weight=0.0), share=share)


@pytest.mark.parametrize(
    ("distill", "coupling", "prepared", "tempered"),
    pairs([0.0, 0.3, 1.0], ["quantile", "independent"], [True, False], [True, False]),
)
def test_a_sandwich_is_the_loss_of_the_full_the_smallest_or_fixed_budgets_and_a_sampled_network(
    distill: float, coupling: str, prepared: bool, tempered: bool
) -> None:
    fixed_budgets = (LEAST, BUDGET) if prepared else ()
    log_loss_temperature = torch.tensor([0.3, -0.2, 0.5] if prepared else [0.3, 0.5]) if tempered else None
    method = sandwiched(
        distill,
        coupling=coupling,
        label_smoothing=0.1,
        full_share=0.4,
        fixed_budgets=fixed_budgets,
        freeze_order_after=0.5,
    )
    model, (x, y) = model_of(method), batch()
    if prepared:
        method.prepare(model, (x, y), at(0.5), same)
    state = everything(model)
    torch.manual_seed(3)
    terms = method.loss(model, (x, y), dataclasses.replace(at(0.5), log_loss_temperature=log_loss_temperature))
    put_back(model, state)
    torch.manual_seed(3)
    logits = {}
    for name, width in (("full", vnd.shape(model, fraction=1.0)), ("smallest", vnd.shape(model, fraction=1e-9))):
        vnd.set_width(model, width)
        logits[name] = model(x)
    vnd.set_width(model, vnd.shape(model, parameters=BUDGET))
    logits["rung"] = model(x)
    vnd.set_width(model, None)
    put_back(model, state)  # the rotation stands where it stood
    part = slice(None, None, 4) if prepared else slice(None)
    torch.manual_seed(3)
    if coupling == "independent":  # other passes have drawn before
        with at_end(model, smallest=False):
            model(x)
        if not prepared:
            with at_end(model, smallest=True):
                model(x)
    sampled = model(x[part])
    drawn = float(state_of(model).quantile.u) if coupling == "quantile" else 0.0

    loss_temperatures = [1.0, 1.0, 1.0] if log_loss_temperature is None else log_loss_temperature.exp().tolist()
    usual = 1.0 if log_loss_temperature is None else float(log_loss_temperature.mean().exp())
    if log_loss_temperature is not None and prepared and coupling == "quantile":
        kept = vnd.shape(model, parameters=BUDGET)
        chains = {name: unit.posterior().chain.log_survival.exp() for name, unit in state_of(model).units.items()}
        lowest = min(float(chains[name][kept[name] - 2]) for name in chains if kept[name] > 1)
        between = np.interp(drawn, [0.0, lowest, 1.0], log_loss_temperature.tolist()[::-1])
        assert not any(math.isclose(between, log, abs_tol=1e-3) for log in log_loss_temperature.tolist())
        usual = math.exp(between)
    full = loss_temperatures[-1] * logits["full"]
    rest = (full.detach().softmax(1) - 0.1 / 3).clamp(min=0)
    taught = rest / rest.sum(1, keepdim=True)

    def narrow(said: Tensor, part: slice) -> Tensor:
        own = F.cross_entropy(said, y[part])
        return (1 - distill) * own - distill * (taught[part] * said.log_softmax(1)).sum(1).mean()

    whole = slice(None)
    narrower = [narrow(loss_temperatures[0] * logits["smallest"], whole), narrow(usual * sampled, part)]
    if prepared:
        narrower.append(narrow(loss_temperatures[1] * logits["rung"], whole))
    full = F.cross_entropy(full, y, label_smoothing=0.1)
    expected = 0.4 * full + 0.6 * torch.stack(narrower).mean()
    assert float(terms.parts["nll"]) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_the_answers_of_the_full_network_are_constants_to_the_narrower_ones() -> None:
    method, given = sandwiched(1.0), batch()
    model = model_of(method)
    state, gradients = everything(model), []
    for distill in (1.0, 0.0):
        put_back(model, state)
        model.zero_grad()
        with at_end(model, smallest=False):
            full = model(given[0])
        taught = full.detach().softmax(1)
        with at_end(model, smallest=True):
            small = model(given[0])
        soft = F.cross_entropy(small, taught) if distill else F.cross_entropy(small, given[1])
        (F.cross_entropy(full, given[1]) + soft).backward()
        gradients.append(model.features[4].weight.grad.clone())
    assert not torch.equal(*gradients)
    unit = units_of(model)[1]
    beyond = unit.kept_channels(unit.base)
    rest = [c for c in range(unit.channels) if c not in beyond.tolist()]
    assert rest
    assert torch.equal(gradients[0][rest], gradients[1][rest])  # what only the full network has learns from labels


@pytest.mark.parametrize("prepared", [True, False])
def test_a_sandwich_leaves_the_width_and_the_rotation_as_a_single_pass_does(prepared: bool) -> None:
    single, layered = BN3(num_groups=4, draws=2, measure_every=0), BN3(num_groups=4, draws=2, sandwich=True)
    counts = []
    for method in (single, layered):
        model = model_of(method)
        if prepared:
            method.prepare(model, batch(), step(index=1), same)
        method.loss(model, batch(), step())
        assert {int(unit.fixed_groups) for unit in units_of(model)} == {-1}
        counts.append(int(model.features[0].ordering.quantile.count))
    assert counts == [2, 2]


def test_the_order_learns_until_it_is_frozen_and_fixed_budgets_are_its_shapes() -> None:
    method = sandwiched(fixed_budgets=(BUDGET,), freeze_order_after=0.5, length_kl_weight=0.1)
    model, given = model_of(method), batch()
    for share in (0.0, 0.49):
        method.prepare(model, given, at(share), same)
        assert fixed_sizes(model).budgets == ()
        method.loss(model, given, at(share)).total.backward()
        assert all(unit.keep_logits.grad.abs().sum() > 0 for unit in units_of(model))
        model.zero_grad()
    method.prepare(model, given, at(0.5), same)
    (network,) = fixed_sizes(model).budgets
    wanted = vnd.shape(model, parameters=BUDGET)
    assert sum(p.numel() for p in network.skeleton.parameters()) == vnd.profile(model, wanted).parameters
    method.loss(model, given, at(0.5)).total.backward()
    assert all(unit.keep_logits.grad is None for unit in units_of(model))
    method.prepare(model, given, at(0.75), same)
    assert fixed_sizes(model).budgets == (network,)  # cut once


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fixed_budgets": (10.0,)}, "fixed_budgets must have from 217 to below 1,906 parameters here; got 10"),
        ({"fixed_budgets": (7000.0,)}, "fixed_budgets must have from 217 to below 1,906 parameters here; got 7,000"),
        ({"fixed_budgets": (BUDGET,), "rescale": "expected"}, "fixed_budgets: no slice of this network"),
    ],
)
def test_fixed_budgets_that_cannot_be_are_refused_when_the_network_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model_of(sandwiched(**options))


def test_nothing_is_measured_of_an_order_that_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    method = BN3(num_groups=4, measure_every=1, sandwich=True, fixed_budgets=(BUDGET,), freeze_order_after=0.5)
    model, measured = model_of(method), []
    monkeypatch.setattr(vnd.nn, "update_differences", lambda *_: measured.append(1))
    for share in (0.4, 0.5, 0.6):
        method.prepare(model, batch(), at(share), same)
    assert measured == [1]


def test_what_was_smoothed_is_found_again() -> None:
    torch.manual_seed(0)
    clean = torch.rand(5, 4).softmax(1)
    assert torch.allclose(unsmoothed(0.8 * clean + 0.2 / 4, 0.2), clean, atol=1e-6)
    sure = unsmoothed(torch.tensor([[0.999, 0.001, 0.0, 0.0]]), 0.2)  # surer than smoothed labels would have it
    assert torch.equal(sure, torch.tensor([[1.0, 0.0, 0.0, 0.0]]))


def test_the_average_of_an_order_that_has_settled_is_that_order(tmp_path: Path) -> None:
    """Or the sizes that are evaluated would be others than the fixed_budgets that were trained."""
    method = {
        "name": "bn3",
        "num_groups": 4,
        "gradient": "survival",
        "sandwich": True,
        "fixed_budgets": [1200],
        "freeze_order_after": 0.5,
    }
    wanted = recipe(
        write_blobs(tmp_path / "blobs.npz"),
        method=method,
        train={"epochs": 2, "ema": 0.99},
        optimizer={"chain_lr": 30.0},
    )
    assert fit(wanted, tmp_path / "run", quiet=True)
    found = checkpoint.read(tmp_path / "run" / "checkpoints")
    assert found is not None
    last = vnd.load(tmp_path / "run" / "last")
    kept = {name: value for name, value in last.named_parameters() if "keep_logits" in name}
    assert kept
    for name, value in kept.items():
        assert torch.equal(value, found.tensors[f"model/{name}"])


def test_a_share_of_the_sampled_networks_has_the_same_share_of_every_layer() -> None:
    """P(uniform) = .5 and each of its lengths as likely as another; the rest keep their learned shapes."""
    method = sandwiched(
        1.0, fixed_budgets=(LEAST, BUDGET), freeze_order_after=0.5, uniform_share=0.5, sampled_share=1.0
    )
    model = model_of(method)
    for place, unit in enumerate(units_of(model)):  # learned shapes are never uniform: the layers differ by two groups
        unit.keep_logits.data.fill_(9.0 if place % 2 else -9.0)
    given, lengths = batch(), []
    method.prepare(model, given, at(0.5), same)
    torch.manual_seed(0)

    def note(module: nn.Module, args: Any) -> None:
        lengths.append(tuple(int(unit.fixed_groups) for unit in units_of(model)))

    model.register_forward_pre_hook(note)
    with torch.no_grad():
        for _ in range(400):
            method.loss(model, given, at(0.6))
    drawn = lengths[1::2]  # after each pass of the full network
    assert set(lengths[::2]) == {(4,) * 4}
    uniform = [groups[0] for groups in drawn if groups[0] >= 0]
    assert all(len(set(groups)) == 1 for groups in drawn)
    assert len(uniform) / len(drawn) == pytest.approx(0.5, abs=0.1)  # 4 standard deviations
    assert all(uniform.count(kept) / len(uniform) == pytest.approx(0.25, abs=0.13) for kept in (1, 2, 3, 4))
    assert all(int(unit.fixed_groups) == -1 for unit in units_of(model))


def test_what_was_cut_for_training_is_no_part_of_the_network() -> None:
    method = sandwiched(fixed_budgets=(BUDGET,), freeze_order_after=0.0)
    model, given = model_of(method), batch()
    method.prepare(model, given, at(0.5), same)
    assert not any(isinstance(value, TrainableSubnet) for value in vars(state_of(model)).values())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), vnd.extract(model, 1.0)):
        assert fixed_sizes(other).budgets == ()
        assert fixed_sizes(other).smallest is None
    other = copy.deepcopy(model)
    method.prepare(other, given, at(0.5), same)
    (theirs,), (ours,) = fixed_sizes(model).budgets, fixed_sizes(other).budgets
    assert ours.root is other
    assert torch.equal(ours(given[0]), theirs(given[0]))
