"""The share of a network that can be dropped: in its description, an error if it is 0, a warning if it is small."""

import pytest
import torch
from structures import VARIED, make
from torch import Tensor, nn

import vnd
from vnd.nn.extract import slice_network
from vnd.nn.state import state_of


def count(net: nn.Module) -> int:
    return sum(x.numel() for x in net.parameters())


class Stream(nn.Module):
    """A residual stream and nothing else."""

    def __init__(self, inner: bool = False) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 2)
        self.widen, self.narrow = nn.Linear(2, 5), nn.Linear(5, 2)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.head(x + torch.relu(self.block(x)))
        return self.narrow(torch.relu(self.widen(x))) if self.inner else x


@pytest.mark.parametrize("name", VARIED)
def test_the_share_is_what_the_network_of_base_width_does_not_have(name):
    for base in (1, 2):
        plain, net, _ = make(name, base=base)
        smallest = slice_network(net, vnd.Shape({n: u.base for n, u in state_of(net).units.items()}))
        described = vnd.describe(net)
        assert described.share == pytest.approx(1 - count(smallest) / count(plain))
        assert 0 < described.share < 1
        assert str(described).endswith(f"{100 * described.share:.1f} % of the parameters can be dropped")


def test_rows_are_plain_numbers():
    _, net, _ = make("residual, stream")
    row = vnd.describe(net).rows()[0]
    expected = row.pop("expected")
    assert isinstance(expected, float)
    assert 1 < expected < 4
    tied = ["outer", "norm", "inner", "outer_norm", "wide", "shortcut"]
    assert sorted(row.pop("tied")) == sorted(tied)
    assert row == {"unit": "stem", "channels": 8, "groups": 4, "base": 1, "tiles": 1}


def test_single_weights_that_become_zero_are_dropped():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    rules = {"0": vnd.Rule(granularity="weight")}
    net = vnd.to_nested(model, torch.randn(2, 4), num_groups=4, rules=rules)
    assert vnd.describe(net).share == pytest.approx(24 / 58)


def test_nothing_to_nest_is_an_error_that_says_what_to_do():
    message = r"nothing of Stream can be nested; give residual=True: .*stem: a residual stream"
    with pytest.raises(ValueError, match=message) as caught:
        vnd.to_nested(Stream(), torch.randn(3, 4))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ValueError, match=r"nothing of Sequential can be nested.*it has no linear layer or convolution"):
        vnd.to_nested(nn.Sequential(nn.ReLU(), nn.Tanh()), torch.randn(3, 4))


def test_little_to_nest_is_a_warning_with_the_share():
    with pytest.warns(UserWarning, match=r"only 4\.1 % of the parameters of Stream can be dropped; vnd\.describe"):
        net = vnd.to_nested(Stream(True), torch.randn(3, 4))
    assert vnd.describe(net).share == pytest.approx(54 / 1309)


def test_rules_that_leave_all_whole_are_obeyed():
    net = vnd.to_nested(Stream(), torch.randn(3, 4), rules={"*": vnd.Rule(nest=False)})
    assert not state_of(net).units
    assert vnd.describe(net).share == 0


def test_a_loaded_network_is_not_warned_of_again(tmp_path):
    with pytest.warns(UserWarning, match="can be dropped"):
        net = vnd.to_nested(Stream(True), torch.randn(3, 4))
    vnd.save(net, tmp_path)
    vnd.load(tmp_path, model=Stream(True))


def test_a_rule_without_effect_is_a_warning_with_the_reason():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.warns(UserWarning, match="nest=True of the rule '2' has no effect: 2 reaches the output"):
        vnd.to_nested(model, torch.randn(2, 4), rules={"2": vnd.Rule(nest=True)})
    vnd.to_nested(model, torch.randn(2, 4), rules={"*": vnd.Rule(nest=True)})  # has one on a part of its layers


def test_a_lazy_layer_asks_for_a_first_pass():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="0 is a LazyLinear that has no size yet; run the model on an example first"):
        vnd.to_nested(model, torch.randn(2, 4))
    model(torch.randn(2, 4))
    assert list(state_of(vnd.to_nested(model, torch.randn(2, 4))).units) == ["0"]
