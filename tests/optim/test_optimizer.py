"""Optimizers: each kind of parameter has its rate and its decay."""

from typing import Any

import pytest
import torch
from torch import nn

from vnd.methods import BN3
from vnd.models import ConvNet
from vnd.optim import Optimizer, set_rates
from vnd.optim.ngd import NGD

KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "ngd": NGD}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return BN3(num_groups=4).build(ConvNet(3, 0.1, 8, 1, 16), torch.rand(2, 1, 8, 8))


def kind_of(name: str, parameter: nn.Parameter) -> str:
    last = name.rpartition(".")[2]
    if last in ("log_alpha", "keep_logits"):
        return last
    return "weight" if parameter.dim() > 1 else "bias or norm"


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_has_the_rate_and_the_decay_of_its_kind(name: Any, model: nn.Module) -> None:
    options = Optimizer(name, lr=0.1, log_alpha_lr=0.02, chain_lr=0.3, weight_decay=0.01)
    optimizer = options.build(model)
    assert type(optimizer) is KINDS[name]
    rates = {"weight": 0.1, "bias or norm": 0.1, "log_alpha": 0.02, "keep_logits": 0.3}
    names = {parameter: key for key, parameter in model.named_parameters()}
    found = [(kind_of(names[p], p), group) for group in optimizer.param_groups for p in group["params"]]
    assert len(found) == len(names)
    assert {kind for kind, _ in found} == set(rates)
    for factor in (1.0, 0.5, 0.0, 0.25):  # 0 is not remembered
        set_rates(optimizer, factor)
        for kind, group in found:
            assert group["lr"] == pytest.approx(factor * rates[kind]), kind
    for kind, group in found:
        assert group["weight_decay"] == (0.01 if kind == "weight" else 0.0), kind


def test_rates_that_are_not_given_are_that_of_the_weights(model: nn.Module) -> None:
    optimizer = Optimizer("adam", lr=0.004).build(model)
    assert {group["lr"] for group in optimizer.param_groups} == {0.004}


@pytest.mark.parametrize("name", KINDS)
def test_a_rate_of_zero_moves_nothing_and_another_moves_all_that_has_a_gradient(name: Any, model: nn.Module) -> None:
    optimizer = Optimizer(name, lr=0.01, chain_lr=0.0).build(model)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for key, parameter in model.named_parameters():
        assert parameter.isfinite().all(), key
        assert torch.equal(parameter, before[key]) == key.endswith("keep_logits"), key
    model.load_state_dict(before, strict=False)
    optimizer.zero_grad()


def test_momentum_and_second_reach_adam_and_nesterov_needs_momentum(model: nn.Module) -> None:
    (betas,) = {group["betas"] for group in Optimizer("adamw", momentum=0.8, beta2=0.95).build(model).param_groups}
    assert betas == (0.8, 0.95)
    for name in ("sgd", "ngd"):
        still = Optimizer(name, momentum=0.0).build(model)  # torch refuses nesterov without momentum
        assert not any(group["nesterov"] for group in still.param_groups)
        assert all(group["nesterov"] for group in Optimizer(name).build(model).param_groups)
