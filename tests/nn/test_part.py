"""A nested network within a larger model: all that works on the network works on the model, and says the same."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structures import gap
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from refusals import refused, table
from vnd.nn.profile import cost_of
from vnd.nn.state import nested_part, state_of

WIDTHS = (0.25, 0.5, 1.0)


def features() -> nn.Sequential:
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 6))


class Classifier(nn.Module):
    """A stem, features and a head, with a dropout that must not run in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 3, 3, bias=False), nn.Linear(6, 4)
        self.body = nn.ModuleDict({"features": features()})
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return {"logits": self.head(self.dropout(self.body["features"](self.stem(x)))) * scale}


def make(**options: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    """The plain model, the model with its features nested, and an input."""
    torch.manual_seed(0)
    plain, x = Classifier().double(), torch.randn(8, 1, 8, 8).double()
    model = copy.deepcopy(plain)
    example = torch.randn(2, 3, 6, 6).double()
    model.body["features"] = vnd.to_nested(plain.body["features"], example, num_groups=4, **options)
    return plain, model.eval(), x


def ready(**options: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    plain, model, x = make(**options)
    vnd.recalibrate(model, [(x, torch.zeros(8)), (x + 1, torch.zeros(8))], widths=WIDTHS, samples="both")
    return plain, model, x


def logits(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)["logits"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_width_of_the_model_is_that_of_its_part_and_extraction_computes_the_same(width: float) -> None:
    _, model, x = ready()
    part = model.body["features"]
    assert nested_part(model) is part
    small = vnd.extract(model, width)
    assert type(small) is Classifier
    assert not hasattr(small.body["features"], "_vnd_state")
    with vnd.width(model, width):
        inside = logits(model, x)
    vnd.set_width(model, width)
    assert torch.equal(logits(model, x), inside)
    assert gap(logits(small, x), inside) <= 1e-12
    vnd.set_width(part, None)
    vnd.set_width(part, width)
    assert torch.equal(logits(model, x), inside)
    cut = vnd.extract(model, width, keep="nested")
    assert gap(logits(cut, x), inside) <= 1e-12
    assert vnd.shape(cut, fraction=1.0) == vnd.shape(part, fraction=width)
    assert small.stem.weight is not model.stem.weight


def test_statistics_of_a_width_are_those_of_the_features_that_the_stem_gives() -> None:
    _, model, x = make()
    with torch.no_grad():
        seen = [model.stem(x), model.stem(x + 1)]
    twin = copy.deepcopy(model.body["features"])
    vnd.recalibrate(twin, seen, widths=WIDTHS)
    vnd.recalibrate(model, [x, x + 1], widths=WIDTHS)
    ours, theirs = (state_of(net).statistics for net in (model, twin))
    assert ours.keys() == theirs.keys()
    for key, norms in theirs.items():
        for name, pair in norms.items():
            assert all(gap(a, b) <= 1e-12 for a, b in zip(pair, ours[key][name], strict=True))
    handle = model.dropout.register_forward_hook(lambda *_: None)  # so that the masked network runs
    other = copy.deepcopy(model)
    vnd.recalibrate(other, [x, x + 1], widths=WIDTHS)
    handle.remove()
    for key, norms in state_of(other).statistics.items():
        kept = state_of(other).kept(state_of(other).outputs["1"], dict(key[0]))
        assert all(
            gap(a[kept], b[kept]) <= 1e-12
            for name, pair in norms.items()
            for a, b in zip(pair, ours[key][name], strict=True)
        )


def test_a_budget_counts_the_whole_model() -> None:
    _, model, x = ready()
    sizes = [vnd.profile(model, width, x) for width in WIDTHS]
    for width, size in zip(WIDTHS, sizes, strict=True):
        assert size == vnd.profile(vnd.extract(model, width), example_input=x)
        assert vnd.profile(model, width, count_macs=False).parameters == size.parameters
        assert cost_of(model, "macs", x)(vnd.shape(model, fraction=width)) == size.macs
    fits = vnd.shape(model, parameters=sizes[1].parameters)
    assert vnd.profile(model, fits, count_macs=False).parameters <= sizes[1].parameters
    outside = sum(p.numel() for layer in (model.stem, model.head) for p in layer.parameters())
    with pytest.raises(ValueError, match="parameters must be at least"):
        vnd.shape(model, parameters=outside)
    whole = sum(p.numel() for p in vnd.extract(model).parameters())
    part = vnd.describe(model.body["features"])
    assert vnd.describe(model).rows() == part.rows()
    assert vnd.describe(model).share == pytest.approx(part.share * (whole - outside) / whole)


def test_predictions_are_those_of_the_model_with_all_of_it_in_evaluation() -> None:
    _, model, x = ready()
    model.train()
    mean = vnd.predict(model, x, width=0.5, samples=0)
    assert model.dropout.training
    assert model.body["features"].training
    model.eval()
    with vnd.width(model, 0.5):
        assert torch.allclose(mean.probs, logits(model, x).softmax(1))
    a, b, other = (vnd.predict(model, (x,), width=0.5, seed=seed, rows=7) for seed in (1, 1, 2))
    assert torch.equal(a.probs, b.probs)
    assert not torch.equal(a.probs, other.probs)
    assert float(a.mutual_information.max()) > 0
    draws = torch.stack([vnd.predict(model, x[:1], width=0.5, samples=200, seed=seed).probs for seed in range(2)])
    assert float((draws[0] - draws[1]).abs().max()) < 0.05  # an average of 200 draws each


def test_training_sees_all_parameters_and_the_kl_of_the_part() -> None:
    _, model, x = make(gradient="difference")
    part = model.body["features"]
    assert torch.equal(vnd.kl(model), vnd.kl(part))
    vnd.set_temperature(model, 0.7)
    model.train()
    optimizer = torch.optim.SGD(vnd.parameter_groups(model, lr=0.01))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))

    def loss_fn() -> Tensor:
        return F.cross_entropy(model(x)["logits"], torch.arange(8) % 4)

    for _ in range(3):
        optimizer.zero_grad()
        order = vnd.step_order(model, loss_fn)
        (loss_fn() + vnd.kl(model) / 1000 + order).backward()
        optimizer.step()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    with pytest.warns(UserWarning, match="BatchNorm has no statistics"):
        logits(model.eval(), x)


@pytest.mark.parametrize("options", [{}, {"order": "magnitude"}, {"bayesian": False}])
@pytest.mark.parametrize("cut", [None, "mean", "posterior", "nested"])
def test_a_saved_model_computes_what_it_did(tmp_path: Path, cut: Any, options: Any) -> None:
    plain, model, x = ready(**options)
    net = model if cut is None else vnd.extract(model, 0.5, keep=cut)
    twin = vnd.load(vnd.save(net, tmp_path), model=plain)
    assert type(twin) is Classifier
    assert torch.equal(logits(twin, x), logits(net, x))
    for width in (0.25, 1.0) if cut in (None, "nested") else ():
        with vnd.width(net, width), vnd.width(twin, width):
            assert torch.equal(logits(twin, x), logits(net, x))
    samples = [vnd.predict(each, x, seed=3).probs for each in (net, twin)]
    assert torch.equal(*samples)
    vnd.save(twin, tmp_path)


def test_a_copy_and_a_state_dict_carry_the_statistics() -> None:
    _, model, x = ready()
    other = make()[1]
    other.load_state_dict(model.state_dict())
    for twin in (other, copy.deepcopy(model)):
        with vnd.width(model, 0.5), vnd.width(twin, 0.5):
            assert torch.equal(logits(twin, x), logits(model, x))


def test_a_compiled_model_runs_at_the_width_of_the_block() -> None:
    _, model, x = ready()
    compiled = torch.compile(model, backend="eager")
    for width in (0.5, 0.25, 1.0):
        with vnd.width(model, width):
            wanted = logits(model, x)
        with vnd.width(compiled, width):
            assert gap(logits(compiled, x), wanted) <= 1e-12
        probs = vnd.predict(compiled, x, width=width, samples=0).probs
        assert torch.allclose(probs, wanted.softmax(1))


class Tied(nn.Module):
    """A part whose table, or one of its layers, is used outside of it, too."""

    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.part = nn.Sequential(self.table, nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
        self.out = nn.Linear(8 if inner else 6, 8 if inner else 11, bias=False)
        self.out.weight = nn.Parameter(torch.randn(8, 8)) if inner else self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.part(ids) @ self.out.weight.t()


def test_what_the_part_shares_with_the_rest_stays_shared_or_is_refused() -> None:
    ids = torch.randint(11, (3, 5))
    model = Tied(inner=False)
    rules = {"0": vnd.Rule(nest=False)}  # the head outside of the part would not know that its table is cut
    model.part = vnd.to_nested(model.part, ids, num_groups=4, bayesian=False, rules=rules)
    model.out.weight = model.part[0].weight
    small = vnd.extract(model.eval(), 0.5)
    assert small.part[0].weight is small.out.weight
    assert small.part[0].weight is not model.out.weight
    with vnd.width(model, 0.5), torch.no_grad():
        assert gap(small(ids), model(ids)) <= 1e-5
    model.extra = nn.Linear(6, 8)
    model.extra.weight = model.part[1].weight
    refused(lambda: vnd.extract(model, 0.5), "extract: part.1.weight is cut, but a layer outside of part shares it")


# -- several parts, and none ------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (vnd.to_nested(features(), torch.randn(2, 3, 6, 6), num_groups=4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


TWO, X = Two().eval(), torch.randn(16, 3, 6, 6)
CALLS: dict[str, Callable[[], Any]] = {
    "set_width": lambda: vnd.set_width(TWO, 0.5),
    "shape": lambda: vnd.shape(TWO, fraction=0.5),
    "extract": lambda: vnd.extract(TWO, 0.5),
    "recalibrate": lambda: vnd.recalibrate(TWO, [X]),
    "describe": lambda: vnd.describe(TWO),
    "predict": lambda: vnd.predict(TWO, X, width=0.5),
}


@table({name: (call, ("Two holds 2 nested networks", "give one of them: a, b")) for name, call in CALLS.items()})
def test_of_several_parts_one_must_be_given(call: Callable[[], Any], words: str) -> None:
    refused(call, words)


def test_several_parts_have_widths_of_their_own(tmp_path: Path) -> None:
    assert gap(vnd.kl(TWO), vnd.kl(TWO.a) + vnd.kl(TWO.b)) <= 1e-6
    for part in (TWO.a, TWO.b):
        vnd.recalibrate(part, [X], widths=(0.5, 1.0))
    with vnd.width(TWO.a, 0.5), vnd.width(TWO.b, 1.0), torch.no_grad():
        out = TWO.a(X) + TWO.b(X)
        assert torch.equal(TWO(X), out)
        assert torch.allclose(vnd.predict(TWO, X, samples=0).probs, out.softmax(1))
    refused(lambda: vnd.save(TWO, tmp_path), "save: Two holds several nested networks; save each by itself: a, b")


def test_a_norm_outside_of_the_part_is_named() -> None:
    model = nn.Sequential(make()[1], Norm()).double().eval()
    with pytest.warns(UserWarning, match=r"recalibrate: 1\.norm is a BatchNorm outside of the nested network"):
        vnd.recalibrate(model, [torch.randn(8, 1, 8, 8).double()], widths=(0.5,))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, out: dict[str, Tensor]) -> Tensor:
        return self.norm(out["logits"])


def test_batches_of_a_model_are_read_by_its_forward() -> None:
    assert list(inspect.signature(Classifier.forward).parameters) == ["self", "x", "scale"]
    _, model, x = make()
    results = []
    for batch in (x, (x, torch.zeros(8)), [x], {"x": x, "label": 3}, ({"x": x}, torch.zeros(8))):
        vnd.recalibrate(model, [batch], widths=(0.5,))
        results.append(state_of(model).statistics[vnd.shape(model, fraction=0.5), False]["1"][0].clone())
    assert all(torch.equal(result, results[0]) for result in results)
    refused(lambda: vnd.recalibrate(model, ["words"]), "recalibrate: batch 0: a batch must be")
    refused(lambda: vnd.profile(model), "example_input must be an input of the Classifier to run it on")
