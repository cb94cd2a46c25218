"""What a network costs: counted and timed on itself, and left as it was."""

import sys

import pytest
import torch
from structures import make

import vnd
from vnd.nn.profile import latency

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
        with pytest.raises(RuntimeError):
            cost(small, example_input=torch.zeros(1, 7))
        assert all(modes(small))
        assert not any(module._forward_hooks for module in small.modules())


def test_a_cost_counted_on_the_extracted_network_is_that_of_the_nested_one():
    _, net, x = make("vgg11")
    assert vnd.profile(vnd.extract(net, 0.5), example_input=x) == vnd.profile(net, 0.5, x)
    assert latency(net, 0.5, x, repeats=1) > 0
