"""Units over a layer's own input rows, and over its single weights."""

import itertools

import pytest
import torch
from torch import nn

import vnd
from vnd.nn.state import state_of


def make(kind, pattern="2", **options):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(7, 5).double()
    rules = {pattern: vnd.Rule(granularity=kind)}
    return vnd.to_nested(plain, x, num_groups=4, rules=rules, **options).double(), x


def relative(a, b):
    assert a.isfinite().all()
    assert b.isfinite().all()
    return float((a - b).abs().max() / a.abs().max())


@pytest.mark.parametrize("kind", ["input", "weight"])
@pytest.mark.parametrize("bayesian", [True, False])
def test_masked_and_extracted_agree_at_every_width(kind, bayesian):
    net, x = make(kind, bayesian=bayesian)
    net.eval()
    assert f"2[{kind}]" in state_of(net).units
    outputs = []
    with torch.no_grad():
        for groups in range(1, 5):
            shape = vnd.Shape(dict.fromkeys(state_of(net).units, groups))
            with vnd.width(net, shape):
                masked = net(x)
            outputs.append(masked)
            assert relative(masked, vnd.extract(net, shape)(x)) <= 1e-12
    assert all(relative(a, b) > 1e-4 for a, b in itertools.pairwise(outputs))


def test_cut_rows_are_physically_gone_and_single_weights_are_zeros():
    net, _ = make("input")
    small = vnd.extract(net.eval(), 0.5)
    assert small[2][1].weight.shape == (6, 6)
    net, _ = make("weight")
    small = vnd.extract(net.eval(), vnd.Shape({"0": 4, "2[weight]": 1}))
    assert small[2].weight.shape == (6, 12)
    assert int((small[2].weight != 0).sum()) == 18


@pytest.mark.parametrize("kind", ["input", "weight"])
def test_the_price_of_a_weight_is_the_survival_of_its_own_unit(kind):
    net, _ = make(kind)
    plan = state_of(net)
    layer, unit = net[2], plan.units[f"2[{kind}]"]
    with torch.no_grad():
        unit.keep_logits.copy_(torch.tensor([1.0, 0.0, -1.0]))
        survival = unit.spread(unit.survival())
        cost = layer.weight_kl()
        expected = (cost * survival).sum() if kind == "input" else (cost.flatten() * survival).sum()
        others = vnd.kl(net) - expected
        unit_kl = unit.kl()
        layer.log_alpha.fill_(1e4)  # the last two digits of the others stay
        changed = (layer.weight_kl() * (survival if kind == "input" else survival.view(6, 12))).sum()
        assert float(vnd.kl(net) - changed) == pytest.approx(float(others), rel=1e-9)
        assert float(unit_kl) > 0


@pytest.mark.parametrize("kind", ["input", "weight"])
def test_every_parameter_gets_a_gradient(kind):
    net, x = make(kind, gradient="survival")
    (net.train()(x).square().sum() + vnd.kl(net)).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []


def test_a_grouped_layer_and_an_unknown_kind_are_refused():
    grouped = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 2, 1))
    x = torch.randn(1, 4, 3, 3)
    with pytest.raises(ValueError, match="granularity 'input' needs a layer without groups; 1 has"):
        vnd.to_nested(grouped, x, rules={"1": vnd.Rule(granularity="input")})
    with pytest.raises(ValueError, match="granularity must be one of output, input, weight, bits, depth; got 'column'"):
        vnd.to_nested(grouped, x, rules={"0": vnd.Rule(granularity="column")})
