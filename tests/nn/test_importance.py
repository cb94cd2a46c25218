"""The order measured on data: what closing a gate costs, by definition; and what is lost by cutting in that order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from structures import NETWORKS, VARIED, cast, gap, randomise, run
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from refusals import refused, table
from vnd.nn import TaylorOrder, taylor_order
from vnd.nn.state import state_of


def energy(model: nn.Module, batch: Any) -> Tensor:
    """A loss of whatever the network gives."""
    return run(model, batch).square().mean()


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")
@pytest.mark.parametrize("name", VARIED)
def test_the_function_is_unchanged_at_full_width_and_exact_at_others(name: str) -> None:
    torch.manual_seed(len(name))
    structure = NETWORKS[name]
    plain, example = randomise(structure.make()).double(), cast(structure.example(), torch.float64)
    order = taylor_order(plain, [example], energy)
    options: dict[str, Any] = {"num_groups": 4, **structure.options, "bayesian": False}
    net = vnd.to_nested(plain, example, order=order, **options).eval()
    assert gap(run(plain.eval(), example), run(net, example)) <= 1e-12
    moved = [key for key, value in plain.state_dict().items() if not torch.equal(value, net.state_dict()[key])]
    assert moved
    with torch.no_grad(), vnd.width(net, 0.5):
        assert gap(run(net, example), run(vnd.extract(net, 0.5), example)) <= 1e-12


class Gated(nn.Module):
    """Two convolutions and a head, each output channel times a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 5, 3), nn.Linear(5, 3)
        self.gates: Mapping[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self._gate("first", self.first(x)))
        x = self._gate("second", self.second(x)).relu().mean((2, 3))
        return self._gate("head", self.head(x))

    def _gate(self, name: str, x: Tensor) -> Tensor:
        gate = self.gates.get(name)
        return x if gate is None else x * gate.view(1, -1, *[1] * (x.dim() - 2))


def test_the_importance_is_what_gates_say_by_their_own_gradient_summed_over_examples() -> None:
    torch.manual_seed(0)
    model = Gated().double()
    batches = [(torch.randn(4, 2, 8, 8).double(), torch.randint(3, (4,))) for _ in range(3)]
    order = taylor_order(model, batches, lambda m, b: 4 * cross_entropy(m, b))  # of four examples a sum
    model.gates = {name: torch.ones(size).double().requires_grad_() for name, size in SIZES.items()}
    expected = {name: torch.zeros(size).double() for name, size in SIZES.items()}
    for x, y in batches:
        for i in range(4):
            loss = cross_entropy(model, (x[i : i + 1], y[i : i + 1]))
            gradients = torch.autograd.grad(loss, list(model.gates.values()))
            for name, gradient in zip(SIZES, gradients, strict=True):
                expected[name] += gradient.square()
    assert order.scores.keys() == expected.keys()
    for name, score in expected.items():
        assert gap(score, order.scores[name]) <= 1e-12, name


SIZES = {"first": 6, "second": 5, "head": 3}


def test_the_channels_of_a_unit_come_by_falling_importance_those_of_its_producers_added() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((self.a(x) + self.b(x)).relu())

    torch.manual_seed(1)
    plain, x = Added().double(), torch.randn(32, 4).double()
    order = taylor_order(plain, [x], energy)
    net = vnd.to_nested(plain, x, num_groups=8, bayesian=False, rules={"*": vnd.Rule(nest=True)}, order=order)
    wanted = (order.scores["a"] + order.scores["b"]).argsort(descending=True)
    assert wanted.tolist() != list(range(8))
    assert wanted.tolist() != order.scores["a"].argsort(descending=True).tolist()
    for name in ("a", "b"):
        assert torch.equal(net.get_submodule(name).weight, plain.get_submodule(name).weight[wanted])


def test_a_model_is_left_as_it_was_and_frozen_layers_are_measured_too() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    batch = (torch.randn(16, 4).double(), torch.randint(3, (16,)))
    model(batch[0])
    model[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        order = taylor_order(model, iter([batch]), cross_entropy)
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not batch[0].requires_grad
    assert not any(module._forward_hooks for module in model)
    model.requires_grad_(False)
    frozen = taylor_order(model, [batch], cross_entropy)
    assert all(torch.equal(score, frozen.scores[name]) for name, score in order.scores.items())


def test_tokens_and_dicts_are_batches_and_what_the_loss_does_not_depend_on_has_no_score() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.up, self.head, self.other = (
                nn.Embedding(7, 4), nn.Linear(4, 6), nn.Linear(6, 7), nn.Linear(6, 2),
            )  # fmt: skip

        def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            h = self.up(self.table(ids)).relu()
            logits = self.head(h)
            return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "other": self.other(h)}

    model, ids = Tokens(), torch.randint(7, (3, 5))
    order = taylor_order(model, [{"ids": ids, "labels": ids}], lambda m, batch: m(**batch)["loss"])
    assert {name: len(score) for name, score in order.scores.items()} == {"table": 4, "up": 6, "head": 7}
    assert repr(order) == "TaylorOrder(of 3 layers)"


# -- what is lost by cutting ------------------------------------------------------------------------------------------


def fashion(split: Any, count: int) -> tuple[Tensor, Tensor]:
    images = vnd.data.load("fashion", split)
    return torch.tensor(images.pixels[:count]).float() / 255 - 0.3, torch.tensor(images.labels[:count]).long()


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A small CNN after 150 steps on the embedded images."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
    model = nn.Sequential(*features, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    x, y = fashion("train", 2000)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(150):
        index = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        cross_entropy(model, (x[index], y[index])).backward()
        optimizer.step()
    return model.eval()


def batches() -> list[tuple[Tensor, Tensor]]:
    x, y = fashion("train", 512)
    return list(zip(x.split(64), y.split(64), strict=True))


def accuracy(model: nn.Module, order: Any) -> float:
    """Accuracy cut without further training, averaged over three widths."""
    x, y = fashion("test", 500)
    net = vnd.to_nested(model, x[:2], bayesian=False, order=order).eval()
    widths = (0.25, 0.5, 0.75)
    found = []
    for width in widths:
        with torch.no_grad(), vnd.width(net, width):
            found.append(float((net(x).argmax(1) == y).float().mean()))
    return sum(found) / len(found)


@pytest.fixture(scope="module")
def measured(trained: nn.Module) -> TaylorOrder:
    return vnd.taylor_order(trained, batches(), cross_entropy)


def reverse(order: TaylorOrder) -> TaylorOrder:
    return replace(order, scores={name: 1 / (1e-9 + score) for name, score in order.scores.items()})


def loses_less(model: nn.Module, order: TaylorOrder) -> bool:
    """Whether a network that is cut in this order loses less than one that is not sorted, by five points."""
    return accuracy(model, order) > accuracy(model, None) + 0.05


def test_less_is_lost_by_cutting_what_matters_least(trained: nn.Module, measured: TaylorOrder) -> None:
    assert loses_less(trained, measured)
    assert not loses_less(trained, reverse(measured))  # a planted fault


def test_the_trained_network_is_the_same_function_at_full_width(trained: nn.Module, measured: TaylorOrder) -> None:
    x = fashion("test", 64)[0]
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        plain, inputs = trained.to(dtype), x.to(dtype)
        net = vnd.to_nested(plain, inputs[:2], bayesian=False, order=measured).eval()
        with torch.no_grad():
            assert gap(plain(inputs), net(inputs)) <= tolerance
    trained.float()


# -- refusals ---------------------------------------------------------------------------------------------------------

MODEL, X = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(2, 4)


def order_of(sizes: Mapping[str, int]) -> TaylorOrder:
    return TaylorOrder({name: torch.ones(size).double() for name, size in sizes.items()})


@table(
    {
        "no module": (lambda: taylor_order("net", [], energy), "taylor_order: model must be an nn.Module; got a str"),
        "one tensor": (lambda: taylor_order(MODEL, X, energy), "batches must be an iterable of batches; got a Tensor"),
        "no batches": (lambda: taylor_order(MODEL, [], energy), "batches must hold at least one batch; got none"),
        "no scalar": (
            lambda: taylor_order(MODEL, [X], lambda m, x: m(x)),
            "taylor_order: loss_fn must give one finite number; got a tensor of shape (2, 3) for batch 0",
        ),
        "no number": (
            lambda: taylor_order(MODEL, [X], lambda m, x: m(x).sum() * float("nan")),
            "taylor_order: loss_fn must give one finite number; got nan for batch 0",
        ),
        "another model": (
            lambda: taylor_order(MODEL, [X], lambda m, x: (x.clone().requires_grad_()).sum()),
            "taylor_order: loss_fn must compute the loss by calling the model that it is given",
        ),
        "other layers": (
            lambda: vnd.to_nested(MODEL, X, order=order_of({"7": 8})),
            "to_nested: order must be of the same network; 7 is no layer of this one",
        ),
        "other sizes": (
            lambda: vnd.to_nested(MODEL, X, order=order_of({"0": 9})),
            "to_nested: order must be of the same network; 0 has 8 channels, not 9",
        ),
    }
)
def test_what_cannot_be_measured_or_sorted_by_is_refused(call: Any, words: str) -> None:
    refused(call, words)


def test_a_unit_whose_layers_did_not_run_is_sorted_by_magnitude() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ours, theirs = (
        vnd.to_nested(model, X, num_groups=8, bayesian=False, order=order)
        for order in (order_of({"2": 3}), "magnitude")
    )
    assert torch.equal(ours[0].weight, theirs[0].weight)
    assert list(state_of(ours).units) == ["0"]
