"""The trial by slicing: what passes at conversion is the same function masked and sliced, whatever its weights."""

import pytest
import torch
import torch.nn.functional as F
from structures import VARIED, SizeArithmetic, gap, make, mixed_shapes, run, uniform_shapes
from torch import Tensor, nn

import vnd
import vnd.nn.verify_slicing as trial
from vnd.nn.state import state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")


class Scaled(nn.Module):
    """Attention's scaling: divides by the root of the number of channels."""

    def __init__(self, width: int, slight: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.slight = nn.Linear(8, width), nn.Linear(width, 3), slight

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        return self.b(h * (1 + 1e-6 * h.shape[-1]) if self.slight else h * h.shape[-1] ** -0.5)


def test_arithmetic_on_a_size_is_found_among_many_groups():
    with pytest.raises(ValueError, match=r"nothing of Scaled .* a: a sliced network does not compute what the masked"):
        vnd.to_nested(Scaled(2048), torch.randn(2, 8), num_groups=2048)


def test_a_difference_that_is_slight_is_found():
    with pytest.raises(ValueError, match=r"nothing of Scaled .* a: a sliced network does not compute what the masked"):
        vnd.to_nested(Scaled(64, slight=True), torch.randn(2, 8), num_groups=8)


def test_a_head_that_starts_at_zero_hides_nothing():
    net = vnd.to_nested(SizeArithmetic(), torch.zeros(2, 8), num_groups=8)
    assert list(state_of(net).units) == ["before"]


@pytest.mark.parametrize("fault", ["one group", "tolerance", "given weights"])
def test_a_trial_that_is_weaker_lets_a_wrong_cut_pass(fault, monkeypatch):
    faulty = {"one group": Scaled(2048), "tolerance": Scaled(64, slight=True), "given weights": SizeArithmetic()}
    model, groups = faulty[fault], 2048 if fault == "one group" else 8
    if fault == "given weights":
        copied = trial._copied
        monkeypatch.setattr(trial, "_copied", lambda net, dtype, random: copied(net, dtype, False))
        monkeypatch.setattr(trial._Trial, "randomize", lambda *_: None)
    elif fault == "tolerance":
        monkeypatch.setattr(trial, "TOLERANCE", {torch.float64: 1e-3})
    else:
        right = trial._Trial.search

        def search(self, names, smaller, signed):
            units = self.state.units
            return right(self, names, {name: unit.num_groups - 1 for name, unit in units.items()}, True)

        monkeypatch.setattr(trial._Trial, "search", search)
        monkeypatch.setattr(trial, "TOLERANCE", {torch.float64: 1e-3})
    assert "a" in state_of(vnd.to_nested(model, torch.randn(2, 8), num_groups=groups)).units


@pytest.mark.parametrize("name", VARIED)
def test_masked_and_sliced_agree_with_any_weights(name):
    _, net, example = make(name)
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(seed)
            for key, value in net.named_parameters():
                if "ordering" not in key:
                    value.normal_(0.1, value[0].numel() ** -0.5 if value.dim() > 1 else 0.5)
            for shape in (uniform_shapes(net)[0], *mixed_shapes(net, 2)):
                with vnd.width(net, shape):
                    assert gap(run(net, example), run(vnd.extract(net, shape), example)) <= 1e-9


class Casting(nn.Module):
    """Insists on float32."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x.float())))


class Exploding(nn.Module):
    """Overflows for large weights, and divides by the number of channels where `wrong`."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.a, self.inner, self.b, self.wrong = nn.Linear(4, 16), nn.Linear(16, 8), nn.Linear(8, 2), wrong
        self.register_buffer("power", torch.tensor(400.0))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.exp(self.a(x) * self.power * 1e-3)
        h = F.relu(self.inner(h))
        return self.b(h / h.shape[-1] if self.wrong else h)


def test_code_that_casts_to_float32_is_tried_in_float32():
    net = vnd.to_nested(Casting(), torch.randn(2, 4), num_groups=4)
    assert list(state_of(net).units) == ["a"]


@pytest.mark.parametrize("wrong", [False, True])
def test_networks_that_are_steep_are_tried_as_well(wrong):
    net = vnd.to_nested(Exploding(wrong), torch.randn(2, 4), num_groups=4)
    assert list(state_of(net).units) == (["a"] if wrong else ["a", "inner"])


class Views(nn.Module):
    """Many layers, some of which cannot be sliced."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            if index in (2, 3, 9):
                x = x * x.shape[-1] ** 0.5
        return x


def test_failures_are_found_together(monkeypatch):
    runs, right = [], trial._Trial.failure
    monkeypatch.setattr(trial._Trial, "failure", lambda *args: runs.append(1) or right(*args))
    net = vnd.to_nested(Views(), torch.randn(2, 8), num_groups=4)
    whole = {name for name, reason in state_of(net).whole.items() if "a sliced network" in reason}
    assert whole == {"layers.2", "layers.3", "layers.9"}
    assert len(runs) < 20


def test_the_trial_leaves_network_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    net, x = vnd.to_nested(model, torch.randn(3, 4), num_groups=4), torch.randn(3, 4)
    state, kept = {key: value.clone() for key, value in net.state_dict().items()}, x.clone()
    before = torch.get_rng_state()
    assert trial.try_slicing(net, (x,), {}) == {}
    assert torch.equal(x, kept)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())
    assert state_of(net).shape is None


@pytest.mark.parametrize("shape", [(400, 512), (3, 5), (700, 300)])
@pytest.mark.parametrize("turned", [True, False])
def test_random_numbers_that_repeat_make_no_two_channels_alike(shape, turned):
    value = torch.empty(shape).t() if turned else torch.empty(shape)
    trial._fill(value, torch.randn(trial.POOL), 0.5, 1.0)
    for rows in (value, value.t()):
        assert len(rows.unique(dim=0)) == len(rows)
    if value.numel() > trial.POOL:
        assert abs(float(value.mean()) - 1) < 0.01
        assert abs(float(value.std()) - 0.5) < 0.01


def test_a_trial_of_large_layers_finds_what_that_of_small_ones_does(monkeypatch):
    monkeypatch.setattr(trial, "POOL", 53)  # all but the biases are larger
    with pytest.raises(ValueError, match=r"nothing of Scaled .* a: a sliced network does not compute what the masked"):
        vnd.to_nested(Scaled(64, slight=True), torch.randn(2, 8), num_groups=8)
    assert list(state_of(vnd.to_nested(SizeArithmetic(), torch.zeros(2, 8), num_groups=8)).units) == ["before"]
