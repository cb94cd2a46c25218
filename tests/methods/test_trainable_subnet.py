"""A fixed width in training, cut to size: it computes what the masked network does, and teaches the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vnd
from vnd.methods.nested import TrainableSubnet, _select, _selection, can_be_trained_small
from vnd.models import build
from vnd.nn import BayesLayer

MODELS: dict[str, dict[str, Any]] = {
    "vgg11": {"width": 0.125},
    "resnext": {"depth": 11, "base_width": 16},
    "mobilenet_v2": {"width": 0.5},
}


def nested_network(name: str, bayesian: bool, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    network = build(name, num_classes=4, **MODELS[name])
    return vnd.to_nested(network, torch.rand(2, 3, 32, 32), num_groups=4, bayesian=bayesian, **options).train()


def silent(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, BayesLayer):
            module.sampling = False


def answers(network: nn.Module, run: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    output = run(x)
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(output.square().sum(), list(named.values()), allow_unused=True)
    zeros = (torch.zeros_like(p) if g is None else g for g, p in zip(found, named.values(), strict=True))
    return output, dict(zip(named, zeros, strict=True))


@pytest.mark.parametrize("bayesian", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_slice_computes_and_teaches_what_the_masked_network_does(name: str, bayesian: bool) -> None:
    net = nested_network(name, bayesian).double()
    width = vnd.shape(net, fraction=0.5)
    network = TrainableSubnet(net, width)
    silent(net)
    silent(network.skeleton)
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    buffers = {key: value.clone() for key, value in net.named_buffers()}
    output, gradients = answers(net, network, x)
    assert all(torch.equal(value, buffers[key]) for key, value in net.named_buffers())  # it leaves no trace
    vnd.set_width(net, width)
    expected, wanted = answers(net, net, x)
    assert torch.allclose(output, expected, rtol=1e-9, atol=1e-12)
    for key, gradient in wanted.items():
        if "keep_logits" not in key:
            assert torch.allclose(gradients[key], gradient, rtol=1e-7, atol=1e-9), key
    assert any(gradient.abs().sum() > 0 for gradient in gradients.values())


def test_a_slice_follows_the_weights_and_draws_noise_of_its_own() -> None:
    net = nested_network("vgg11", bayesian=True)
    network = TrainableSubnet(net, vnd.shape(net, fraction=0.25))
    x = torch.randn(8, 3, 32, 32)
    assert not torch.equal(network(x), network(x))
    silent(network.skeleton)
    before = network(x)
    with torch.no_grad():
        net.classifier[2].bias.add_(1.0)
    assert torch.allclose(network(x), before + 1.0, atol=1e-5)
    assert not any(p.requires_grad for p in network.skeleton.parameters())


def test_there_is_no_slice_where_masked_and_cut_networks_differ() -> None:
    for options in ({"rescale": "expected"}, {"placement": "before_norm"}):
        net = nested_network("vgg11", bayesian=False, **options)
        assert not can_be_trained_small(net)


def test_a_selection_is_found_from_places() -> None:
    parameter = torch.arange(24.0).view(2, 3, 4)
    for rows, columns in (([0, 1], [0, 1]), ([1], [3, 1]), ([0], [0, 1, 2, 3])):
        places = torch.arange(24).view(2, 3, 4)[rows][:, :, columns]
        assert torch.equal(_select(parameter, _selection(places, parameter)), places.float())
    crooked = torch.tensor([[0, 1], [4, 6]])  # row 1 keeps other columns than row 0
    with pytest.raises(ValueError, match="along its dimensions"):
        _selection(crooked, torch.zeros(2, 4))
