"""What a nested network holds between calls: statistics, masks, shapes."""

import copy
import json
import warnings

import pytest
import torch
from torch import nn

import vnd
from vnd.nn.state import batch_norms, state_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.head = nn.Linear(8, 2)

    def encode(self, x):
        return self.features(x).mean((2, 3))

    def forward(self, x):
        return self.head(self.encode(x))


def make(**options):
    torch.manual_seed(0)
    x = torch.randn(16, 3, 6, 6)
    return vnd.to_nested(Net(), x, num_groups=4, **options), x


def train(net, x, steps=3):
    net.train()
    for _ in range(steps):
        net(x).square().sum().backward()
    net.zero_grad()


def test_a_compiled_network_uses_the_statistics_that_the_eager_one_uses_after_every_switch_of_mode():
    torch._dynamo.reset()
    net, x = make()
    compiled = torch.compile(net, backend="eager")
    for _ in range(2):
        train(net, x, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dynamo asks a mask for its gradient
            compiled(x)
        vnd.recalibrate(net, [x], widths=(0.5, 1.0))
        for width in (0.5, None):
            vnd.set_width(net.eval(), width)
            with torch.no_grad():
                assert torch.equal(compiled(x), net(x))
    train(net, x, 1)
    net.eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="no statistics"):
        assert torch.equal(compiled(x), net(x))


def test_a_state_holds_the_statistics_of_training_whatever_width_is_set_and_a_loaded_one_stays():
    net, x = make()
    train(net, x)
    before = copy.deepcopy(net.state_dict())
    vnd.recalibrate(net.eval(), [x], widths=(0.5, 1.0))
    vnd.set_width(net, 0.5)
    net(x)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
    other, _ = make()
    train(other, 3 * x, 5)
    net.load_state_dict(other.state_dict())
    net.train()
    for (_, norm), (_, theirs) in zip(batch_norms(net), batch_norms(other), strict=True):
        assert torch.equal(norm.running_mean, theirs.running_mean)


def test_statistics_from_before_training_are_not_used_and_the_width_warns_again():
    net, x = make()
    train(net, x)
    vnd.recalibrate(net.eval(), [x], widths=(0.5,))
    vnd.set_width(net, 0.5)
    train(net, x)
    norm = next(iter(batch_norms(net)))[1]
    assert torch.equal(norm.statistics()[0], norm.running_mean)
    with pytest.warns(UserWarning, match=r"widths=\(0\.5,\)\) first"):
        net.eval()(x)
    net(x)  # once is enough


def test_evaluation_after_training_warns_at_the_line_of_the_caller():
    net, x = make()
    train(net, x)
    with pytest.warns(UserWarning, match=r"widths=\(1\.0,\)\) first") as caught:
        net.eval()(x)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="no statistics") as caught, vnd.width(net, 0.5):
        pass
    assert caught[0].filename == __file__


def test_other_methods_of_the_user_run_and_differentiate_in_training():
    net, x = make(gradient="survival")
    net.train()
    net(x).sum().backward()
    net.encode(x).sum().backward()
    assert all(unit.current is None for unit in state_of(net).units.values())


def test_shapes_are_equal_in_whatever_order_and_made_of_whole_numbers():
    one, other = vnd.Shape({"a": 1, "b": 2}), vnd.Shape({"b": 2, "a": 1})
    assert one == other
    assert hash(one) == hash(other)
    assert vnd.Shape.from_json(json.dumps(dict(one), sort_keys=True)) == one
    assert one != vnd.Shape({"a": 2, "b": 1})
    for wrong, words in (({"a": 1.5}, "must be an int"), ({"a": True}, "must be an int"), ([1], "must map units to")):
        with pytest.raises(ValueError, match=words):
            vnd.Shape(wrong)


def test_a_rule_on_a_module_holds_for_what_it_holds_and_a_mean_prior_for_narrow_layers():
    net, _ = make(rules={"features": vnd.Rule(nest=False, bayesian=False)})
    assert list(state_of(net).units) == []
    assert not net.features[3].bayesian if hasattr(net.features[3], "bayesian") else True
    torch.manual_seed(0)
    mixed = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 2))
    nested = vnd.to_nested(mixed, torch.randn(2, 4), num_groups=32, prior=16.0)
    means = [1 + float(unit.prior.expected_length) for unit in state_of(nested).units.values()]
    assert means == pytest.approx([16.0, 1 + 15 / 31 * 7], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base": 9}, "base must lie in 0 … num_groups = 4; got 9"),
        ({"rules": ["head"]}, "rules must map"),
        ({"rules": {"head": {"nest": False}}}, "must be a Rule"),
        ({"rules": {"features.1": vnd.Rule(nest=False)}}, "matches no layer of Net"),
        ({"rules": {"head": vnd.Rule(nest="no")}}, "nest in the rule"),
        ({"initial_logit": float("nan")}, "initial_logit must be finite; got nan"),
        ({"weight_prior": -1.0}, "weight_prior"),
        ({"prior": "uniform"}, "prior must be"),
        ({"prior": vnd.BernoulliChain.uniform(7)}, "the unit of features"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, words):
    with pytest.raises(ValueError, match=r".") as caught:
        make(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_extracted_posterior_predicts_with_its_own_samples():
    net, x = make(log_alpha_init=-1.0)
    train(net, x)
    vnd.recalibrate(net.eval(), [x], widths=(0.5,), samples=True)
    small = vnd.extract(net, 0.5, keep="posterior")
    ours, theirs = (vnd.predict(one, x, width=w, samples=400, seed=0) for one, w in ((net, 0.5), (small, None)))
    assert float(ours.mutual_information.mean()) > 0
    assert float((ours.probs - theirs.probs).abs().max()) < 0.05  # two averages of 400 draws
    with pytest.raises(ValueError, match="is not a nested network"):
        vnd.predict(small, x, width=0.5)
