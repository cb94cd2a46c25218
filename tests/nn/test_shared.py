"""Tied weights: what is one tensor in the plain network is one in every network that is made of it."""

import copy
import sys

import pytest
import torch
from structures import NETWORKS, TiedEmbedding, TiedPair, gap, make, mixed_shapes, run
from torch import Tensor, nn

import vnd
from vnd.nn import BayesLayer
from vnd.nn.state import state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")
module = sys.modules["vnd.nn.extract"]  # the name of the module is that of its function, too
TIED = [name for name in NETWORKS if name.startswith("tied")]


def count(net: nn.Module) -> int:
    return sum(x.numel() for x in net.parameters())


@pytest.mark.parametrize("order", [None, "magnitude"])
@pytest.mark.parametrize("name", [*TIED, "flatten"])
def test_what_was_one_tensor_stays_one(name, order, tmp_path):
    plain, net, example = make(name, order=order)
    shared = module.shared_tensors(plain)
    assert bool(shared) == (name in TIED and name != "tied decoder")
    assert module.shared_tensors(net) == module.shared_tensors(copy.deepcopy(net)) == shared
    assert gap(run(plain.eval(), example), run(net, example)) <= 1e-12
    for width in (0.25, 1.0):
        small = vnd.extract(net, width)
        assert module.shared_tensors(small) == shared
        assert count(small) <= count(plain)
        assert count(vnd.extract(net, width)) == vnd.profile(net, width, count_macs=False).parameters
    if name in TIED:
        vnd.save(net, tmp_path / "net")
        vnd.save(small, tmp_path / "small")
        for folder, saved in (("net", net), ("small", small)):
            loaded = vnd.load(tmp_path / folder, model=NETWORKS[name].make().double())
            assert module.shared_tensors(loaded) == shared
            assert torch.equal(run(loaded, example), run(saved, example))


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_that_are_cut_and_sorted_agree_at_every_width(name):
    for order in (None, "magnitude"):
        _, net, example = make(name, order=order)
        for shape in mixed_shapes(net):
            with torch.no_grad(), vnd.width(net, shape):
                assert gap(run(net, example), run(vnd.extract(net, shape), example)) <= 1e-12


def test_tensors_that_are_not_tied_again_are_caught(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_share", lambda root, groups: None)
    for name in ("tied pair", "tied apart"):
        with pytest.raises(AssertionError):
            test_what_was_one_tensor_stays_one(name, "magnitude", tmp_path)


def test_a_quarter_of_a_language_model_is_smaller_than_the_whole():
    _, net, _ = make("tied embedding")
    small = vnd.extract(net, 0.25)
    assert small.head.weight is small.embed.weight
    assert count(small) < count(TiedEmbedding())


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_are_point_weights(name):
    plain, net, _ = make(name)
    names = {path.rpartition(".")[0] for group in module.shared_tensors(plain) for path in group} or {"encode"}
    for layer, part in net.named_modules():
        if isinstance(part, BayesLayer):
            assert part.bayesian == (layer not in names)


class Gate(nn.Module):
    """Reads the bias of a layer once more."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)) * self.a.bias)


class Groups(nn.Module):
    """Two grouped convolutions of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 9, 1), nn.Conv2d(9, 2, 1)
        self.a, self.b = nn.Conv2d(8, 8, 1, groups=2), nn.Conv2d(8, 8, 1, groups=2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.last(torch.relu(self.b(torch.relu(self.a(torch.relu(self.stem(x)))))))))


@pytest.mark.parametrize(
    ("model", "x", "units"), [(Gate, torch.randn(3, 4), ["a"]), (Groups, torch.randn(2, 3, 4, 4), ["last"])]
)
@pytest.mark.parametrize("order", [None, "magnitude"])
def test_other_ways_to_share_are_cut_alike_or_left_whole(model, x, units, order):
    torch.manual_seed(0)
    plain = model().double()
    net = vnd.to_nested(plain, x.double(), num_groups=4, order=order).eval()
    assert list(state_of(net).units) == units
    assert module.shared_tensors(net) == module.shared_tensors(plain)
    with torch.no_grad():
        assert gap(plain(x.double()), net(x.double())) <= 1e-12
        for shape in mixed_shapes(net):
            with vnd.width(net, shape):
                assert gap(net(x.double()), vnd.extract(net, shape)(x.double())) <= 1e-12


def test_rows_of_a_tied_weight_cannot_be_ordered_by_themselves():
    rules = {"a": vnd.Rule(granularity="input")}
    with pytest.raises(ValueError, match="granularity must be 'output' for a, whose weight is used elsewhere, too"):
        vnd.to_nested(TiedPair(), torch.randn(3, 4), rules=rules)


def test_a_network_that_shares_other_tensors_is_refused(tmp_path):
    torch.manual_seed(0)
    apart = TiedPair()
    apart.b.weight = nn.Parameter(torch.randn(8, 8))
    for name, saved, other, words in (
        ("apart", apart, TiedPair(), "a.weight and b.weight are one tensor in the model, but two were saved"),
        ("tied", TiedPair(), apart, "a.weight and b.weight were saved as one tensor; tie them"),
    ):
        vnd.save(saved, tmp_path / name)
        with pytest.raises(ValueError, match=words):
            vnd.load(tmp_path / name, model=other)
        again = vnd.load(tmp_path / name, model=saved)
        assert torch.equal(again.b.weight, saved.b.weight)


def test_a_posterior_that_a_rule_wants_for_a_tied_weight_is_said_to_be_none():
    with pytest.warns(UserWarning, match="bayesian=True of the rule 'a' has no effect: a shares its weight"):
        vnd.to_nested(TiedPair(), torch.randn(3, 4), rules={"a": vnd.Rule(bayesian=True)})
