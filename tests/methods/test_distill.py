"""Distillation in one call: networks that are not the library's, what the student learns, and what is left alone."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from refusals import Refusals, refused, table
from vnd.functional import concentration
from vnd.methods import sn3
from vnd.nn import BayesLayer
from vnd.nn.state import state_of


class Reversed(nn.Module):
    """A residual network whose head comes first in its code, with dropout; it reads a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.stem, self.wide, self.narrow = nn.Linear(6, 8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.norm, self.dropout = nn.BatchNorm1d(32), nn.Dropout(0.3)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        x = self.stem(x + shift)
        x = x + self.narrow(self.dropout(F.relu(self.norm(self.wide(x)))))
        return self.head(F.relu(x))


class Encoder(nn.Module):
    """A transformer that reads a dict and gives one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.aside = nn.Linear(2, 16), nn.Linear(16, 3), nn.Linear(16, 5)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        assert labels is None, "the loss of the network itself"
        hidden = self.encoder(self.embed(tokens)).mean(1)
        return {"logits": self.head(hidden), "hidden": self.aside(hidden)}


def points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three clouds around a circle that overlap, in six dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    angle = 2 * torch.pi * y / 3 + 0.7 * torch.randn(count, generator=generator)
    x = 0.5 * torch.randn(count, 6, generator=generator)
    x[:, 0] += 2 * angle.cos()
    x[:, 1] += 2 * angle.sin()
    return x, y


ROOT = Path(__file__).parents[2]
X, Y = points(480, 0)
NEW, TRUTH = points(600, 1)
SHIFT = torch.zeros(1, 6)


def read(name: str, x: Tensor) -> Any:
    return (x, SHIFT) if name == "residual" else {"tokens": x.view(-1, 3, 2)}


def run(net: nn.Module, name: str, x: Tensor) -> Tensor:
    out = net(*read(name, x)) if name == "residual" else net(**read(name, x))
    return out if isinstance(out, Tensor) else out["logits"]


@pytest.fixture(scope="module")
def teachers() -> dict[str, nn.Module]:
    """Two networks of a user's, trained in a loop of her own; narrow widths were hardly seen."""
    found = {}
    for name, make in (("residual", Reversed), ("encoder", Encoder)):
        torch.manual_seed(0)
        options = {"residual": True, "log_alpha_init": -2.0, "initial_logit": 4.0}
        net = vnd.to_nested(make(), read(name, X[:2]), num_groups=8, **options)
        optimizer = torch.optim.Adam(vnd.parameter_groups(net, lr=0.01, chain_lr=0.0))
        for _ in range(120):
            some = torch.randint(len(X), (64,))
            loss = F.cross_entropy(run(net, name, X[some]), Y[some]) + 1e-3 / len(X) * vnd.kl(net)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        vnd.recalibrate(net.eval(), [read(name, X)], widths=(1.0,), samples="both")
        found[name] = net
    return found


def batches(name: str, labelled: bool = False) -> list[Any]:
    if name == "residual":
        return [(x, SHIFT, y) if labelled else (x, SHIFT) for x, y in zip(X.split(48), Y.split(48), strict=True)]
    return [{**read(name, x), "labels": y} for x, y in zip(X.split(48), Y.split(48), strict=True)]


def distance(teacher: nn.Module, net: nn.Module, name: str) -> float:
    """Mean total variation of a network's answers from its teacher's."""
    wanted, found = (vnd.predict(one, read(name, NEW), width=1.0, samples=6, seed=0) for one in (teacher, net))
    return float((wanted.probs - found.probs).abs().sum(1).mean() / 2)


@pytest.mark.parametrize("name", ["residual", "encoder"])
@pytest.mark.parametrize("divergence", ["mmd", "kl"])
def test_a_student_of_a_foreign_network_learns_its_answers_and_leaves_it_as_it_was(
    teachers: dict[str, nn.Module], tmp_path: Path, name: str, divergence: Any
) -> None:
    teacher = teachers[name]
    state, modes = copy.deepcopy(teacher.state_dict()), [module.training for module in teacher.modules()]
    cut = sn3.prune(teacher, keep=0.5).eval()
    vnd.recalibrate(cut, batches(name), widths=(1.0,), samples="both")
    seen: list[dict[str, float]] = []
    torch.manual_seed(1)
    note = lambda index, terms: seen.append(terms)  # noqa: E731
    student = vnd.distill(teacher, batches(name), keep=0.5, divergence=divergence, steps=60, lr=5e-3, callback=note)
    assert len(seen) == 60
    assert all(terms["nll"] == 0 < terms["kl"] for terms in seen)  # without labels
    assert distance(teacher, student, name) < 0.6 * distance(teacher, cut, name)
    assert all(torch.equal(value, state[key]) for key, value in teacher.state_dict().items())
    assert [module.training for module in teacher.modules()] == modes
    assert all(p.requires_grad for p in teacher.parameters())
    assert not vars(student).keys() & {"_vnd_distillation"}
    assert not student.training

    noisy = [key for key, m in student.named_modules() if isinstance(m, BayesLayer) and m.bayesian]
    assert noisy == ["head"]  # the last to run of those that count, not the last in the code
    drawn, closed = (vnd.predict(student, read(name, NEW), width=0.5, samples=s, seed=0) for s in (200, 0))
    assert drawn.samples == 200
    assert drawn.variance.max() > closed.variance.max() > 0  # a Dirichlet has a spread of its own
    parts = torch.stack([vnd.predict(student, read(name, NEW), 0.5, 1, seed=k).probs for k in range(50)])
    torch.testing.assert_close(drawn.probs, parts.mean(0), atol=0.1, rtol=0)

    plain = Reversed() if name == "residual" else Encoder()
    again = vnd.load(vnd.save(student, tmp_path / "student"), model=plain)
    small = vnd.extract(student, 0.5)
    for other, width in ((again, 0.5), (small, None)):
        found = vnd.predict(other, read(name, NEW), width, samples=0, link="dirichlet")
        torch.testing.assert_close(found.probs, closed.probs)


def only_the_head_has_noise(teacher: nn.Module) -> None:
    """The last layer to run, which is not the last in the code, has the teacher's variances, and no other has any."""
    student, wanted = sn3.prune(teacher, 0.5), vnd.extract(teacher, 0.5, keep="posterior", warn=False)
    assert [name for name, _ in student.named_parameters() if name.endswith("log_alpha")] == ["head.log_alpha"]
    assert torch.equal(student.head.log_alpha, wanted.head.log_alpha)


def test_a_student_is_deterministic_but_for_its_last_layer(
    teachers: dict[str, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, convert = teachers["residual"], vnd.nn.to_nested
    only_the_head_has_noise(teacher)
    with monkeypatch.context() as planted:  # variances are kept
        planted.setattr(vnd.nn, "to_nested", lambda *x, **options: convert(*x, **{**options, "bayesian": True}))
        with pytest.raises(AssertionError):
            only_the_head_has_noise(teacher)
    layers = [name for name, m in teacher.named_modules() if isinstance(m, BayesLayer)]
    monkeypatch.setattr(sn3, "_last_bayesian", lambda *_: layers[-1])  # planted: the last in the code
    with pytest.raises(AssertionError):
        only_the_head_has_noise(teacher)


def asked_at(monkeypatch: pytest.MonkeyPatch, teacher: nn.Module, **options: Any) -> list[tuple[dict[str, int], ...]]:
    """The lengths of teacher and student in each part of each step."""
    seen: list[Any] = []
    loss = sn3.SN3.loss

    def look(method: Any, model: nn.Module, batch: Any, step: Any) -> Any:
        seen.extend(part.lengths for part in sn3.distillation_of(model).parts)
        return loss(method, model, batch, step)

    asked: list[dict[str, int]] = []
    answers = sn3.SN3._answers

    def ask(method: Any, cache: Any, lengths: Any, *rest: Any) -> Tensor:
        asked.append(dict(lengths))
        return answers(method, cache, lengths, *rest)

    monkeypatch.setattr(sn3.SN3, "loss", look)
    monkeypatch.setattr(sn3.SN3, "_answers", ask)
    vnd.distill(teacher, batches("residual"), keep=0.5, full=False, smallest=False, samples=2, steps=12, **options)
    own = [{name: int(groups) for name, groups in lengths.items()} for lengths in seen]
    return list(zip(asked, own, strict=True))


def test_lengths_of_teacher_and_student_are_tied_unless_told_otherwise(
    teachers: dict[str, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = copy.deepcopy(teachers["residual"])
    for unit in state_of(teacher).units.values():
        unit.keep_logits.data.fill_(1.5)  # many lengths
    pairs = asked_at(monkeypatch, teacher)
    assert len({tuple(own.values()) for _, own in pairs}) > 2

    def together(pairs: list[Any]) -> bool:
        return all(theirs == {name: 2 * groups for name, groups in own.items()} for theirs, own in pairs)

    assert together(pairs)
    with monkeypatch.context() as planted:
        planted.setattr(sn3, "tied_lengths", lambda teacher, student, lengths: lengths)
        assert not together(asked_at(planted, teacher))
    untied = asked_at(monkeypatch, teacher, tie=False)
    assert all(theirs == dict(state_of(teacher).full) for theirs, _ in untied)


def test_the_loss_has_no_gradient_through_its_scale() -> None:
    probs = torch.randn(5, 4, 3).softmax(-1)
    given = torch.rand(4, 3).double().add(0.5).requires_grad_()

    def gradient(median: Any) -> Tensor:
        torch.manual_seed(0)
        drawn = torch.distributions.Dirichlet(given).rsample((6,))
        return torch.autograd.grad(sn3.squared_mmd(probs, drawn, scale=median(probs, drawn)).sum(), given)[0]

    torch.manual_seed(0)
    own = torch.autograd.grad(sn3.dirichlet_mmd(probs, given, samples=6).sum(), given)[0]
    torch.testing.assert_close(own, gradient(partial(sn3.median_distance, across=True)))

    def attached(x: Tensor, y: Tensor) -> Tensor:  # planted: the scale learns, too
        return (x[:, None] - y[None]).square().sum(-1).flatten(0, 1).quantile(0.5, 0)

    assert not torch.allclose(own, gradient(attached), atol=1e-4)


def test_dropout_adds_nothing_to_the_teacher_s_spread(teachers: dict[str, nn.Module]) -> None:
    teacher = copy.deepcopy(teachers["residual"])
    for layer in teacher.modules():
        if isinstance(layer, BayesLayer):
            layer.log_alpha.data.fill_(-40.0)
    teacher.train()
    with vnd.width(teacher, 1.0):
        assert not torch.equal(teacher(X, SHIFT), teacher(X, SHIFT))  # as training has it
        sn3.answering(teacher)
        first, second = teacher(X, SHIFT), teacher(X, SHIFT)
    torch.testing.assert_close(first, second)
    assert teacher.norm.training


def test_batches_come_in_many_forms_and_labels_count_if_they_are_asked_for(teachers: dict[str, nn.Module]) -> None:
    def parts(**options: Any) -> dict[str, float]:
        seen: list[dict[str, float]] = []
        torch.manual_seed(0)
        vnd.distill(teacher, callback=lambda index, terms: seen.append(terms), samples=2, **options)
        return seen[-1] | {"steps": len(seen)}

    teacher, data = teachers["residual"], batches("residual", labelled=True)
    whole = torch.utils.data.TensorDataset(X, SHIFT.expand(len(X), 6), Y)
    assert parts(batches=data, epochs=2)["steps"] == 20
    assert parts(batches=iter(data), epochs=1)["steps"] == 10
    assert parts(batches=lambda: iter(data[:3]), epochs=2)["steps"] == 6
    assert parts(batches=torch.utils.data.DataLoader(whole, 240), steps=3)["steps"] == 3
    labelled = parts(batches=data[:2], epochs=1, label_weight=2.0)
    assert labelled["loss"] == pytest.approx(labelled["distance"] + 2 * labelled["nll"], rel=1e-3)
    assert labelled["nll"] > 0.2


def test_classes_of_tokens_and_a_teacher_of_point_weights() -> None:
    plain = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    teacher, tokens = vnd.to_nested(plain, torch.zeros(1, 5, 4), num_groups=4), torch.randn(8, 5, 4)
    student = vnd.distill(teacher, [(tokens, torch.zeros(8, 5).long())], keep=0.5, steps=2, dim=-1, label_weight=1.0)
    assert vnd.predict(student, tokens, dim=-1).probs.shape == (8, 5, 3)
    certain = vnd.to_nested(plain, torch.zeros(1, 4), num_groups=4, bayesian=False)
    student = vnd.distill(certain, [tokens[:, 0]], keep=0.5, steps=2, divergence="kl")
    assert not any(m.bayesian for m in student.modules() if isinstance(m, BayesLayer))


def test_a_student_learns_whatever_its_teacher_or_its_caller_have_frozen() -> None:
    teacher = small().requires_grad_(False)
    cut = sn3.prune(teacher, keep=0.5)
    with torch.no_grad():
        student = vnd.distill(teacher, [torch.randn(8, 2)], keep=0.5, steps=2)
    assert not torch.equal(student[0].weight, cut[0].weight)
    assert not any(p.requires_grad for p in teacher.parameters())
    frozen = {name for name, p in student.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in student.named_parameters() if name.endswith("keep_logits")}


def test_ordered_blocks_all_stay() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.relu(self.up(x)))

    plain = nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(Block() for _ in range(3))), nn.Linear(8, 3))
    teacher = vnd.to_nested(plain, torch.randn(2, 4), num_groups=4, depth=True)
    student = vnd.distill(teacher, [torch.randn(8, 4)], keep=0.5, steps=2)
    groups = {name: unit.num_groups for name, unit in state_of(student).units.items()}
    assert groups == {name: 3 if name.endswith("[depth]") else 2 for name in state_of(teacher).units}
    assert vnd.predict(student, torch.randn(2, 4), width=0.5).probs.shape == (2, 3)


# Refusals

PLAIN = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
DATA = [torch.zeros(4, 2)]


def small(**options: Any) -> nn.Module:
    return vnd.to_nested(copy.deepcopy(PLAIN), torch.randn(2, 2), num_groups=4, **options)


def refusing(*args: Any, **options: Any) -> Any:
    net = options.pop("net", None)
    return lambda: vnd.distill(small() if net is None else net(), *(args or (DATA,)), **options)


def endless() -> Iterator[Tensor]:
    yield from DATA


CASES: Refusals = {
    "no nested network": (refusing(net=lambda: PLAIN), "Sequential is not a nested network"),
    "no posterior": (refusing(net=lambda: small(bayesian=False)), "divergence must be 'kl' for a teacher without"),
    "a part of a model": (
        refusing(net=lambda: nn.Sequential(small(), nn.Softmax(1))),
        "sn3: the teacher must be a nested network itself; got a Sequential that holds one",
    ),
    "rows in order": (
        refusing(net=lambda: small(rules={"0": vnd.Rule(granularity="input")})),
        "sn3: a teacher whose input rows, single weights or bits are ordered cannot be pruned",
    ),
    "nothing kept": (refusing(keep=0.0), "sn3: keep must be a Shape or lie in (0, 1]; got 0.0"),
    "none of a unit": (
        refusing(net=lambda: small(base=0), keep=vnd.Shape({"0": 0})),
        "sn3: keep must leave at least one group of each unit; got none of 0",
    ),
    "another network's shape": (refusing(keep=vnd.Shape({"1": 2})), "the shape is of another network"),
    "a divergence": (refusing(divergence="js"), "distill: divergence"),
    "one answer": (refusing(samples=1), "distill: samples must be at least 2 for mmd; got 1"),
    "an option": (refusing(temperature=2.0), "distill: option"),
    "epochs and steps": (refusing(epochs=1, steps=1), "distill: give epochs or steps, not both; got 1 and 1"),
    "half a step": (refusing(steps=0.5), "distill: steps must be a whole number, at least 1; got 0.5"),
    "no rate": (refusing(lr=0), "distill: lr must be above 0 and finite; got 0"),
    "widths that fall": (refusing(widths=(0.5, 0.25)), "distill: widths must be shares in (0, 1] that rise"),
    "a tensor": (refusing(DATA[0]), "distill: batches must be a data loader, a list or a function"),
    "no batches": (refusing([]), "distill: batches must not run out; got none after step 0"),
    "an iterator": (refusing(endless()), "distill: batches must last for several epochs; got an iterator"),
    "it runs out": (refusing(endless(), steps=3), "distill: batches must not run out; got none after step 1"),
    "words": (refusing(["x"]), "distill: batch 0: a batch must be"),
    "an empty batch": (refusing([torch.zeros(0, 2)]), "distill: batch 0 is empty"),
    "no labels": (refusing(label_weight=1.0), "distill: batch 0: labels: a batch must be (inputs, labels)"),
    "no number": (refusing([torch.full((4, 2), torch.nan)]), "distill: the loss must be finite; got nan at step 0"),
    "no classes": (refusing(dim=5), "distill: dim must be a dimension of the output"),
    "one class": (
        refusing(output=lambda out: out[:, :1]),
        "distill: the output must have two or more classes; got one of shape (4, 1)",
    ),
    "several labels": (
        refusing(net=lambda: small(link="sigmoid")),
        "distill: teacher must classify, with the link 'softmax'; it was converted with 'sigmoid'",
    ),
    "a weight in words": (refusing(label_weight="1"), "distill: TypeError: '>=' not supported between"),
    "a callback in words": (refusing(callback="print"), "distill: callback must be a function or None; got 'print'"),
    "half a draw": (refusing(samples=2.5), "distill: samples must be a whole number, at least 1; got 2.5"),
    "inputs of another size": (
        refusing([torch.zeros(4, 3)]),
        "distill: batch 0 must be what the teacher reads; got inputs of shape (4, 3): RuntimeError: ",
    ),
    "labels that are no class": (
        refusing([(torch.randn(4, 2), torch.tensor([0, 1, 9, 2]))], label_weight=1.0),
        "got inputs of shape (4, 2), and labels, torch.int64, of shape (4,): IndexError: Target 9 is out of bounds.",
    ),
}


@table(CASES)
def test_what_cannot_be_meant_is_refused_in_a_line(call: Any, words: Any) -> None:
    refused(call, words)


def test_a_loop_of_ones_own_of_the_public_pieces() -> None:
    """The loop of the documentation: its student comes nearer to its teacher."""
    torch.manual_seed(0)
    teacher = small(log_alpha_init=-2.0).train()
    student = sn3.prune(teacher, keep=0.5).train()
    optimizer = torch.optim.Adam(vnd.parameter_groups(student, lr=0.05))
    x, losses = torch.randn(64, 2), []
    for _ in range(60):
        lengths = sn3.sample_lengths(student)
        with torch.no_grad(), vnd.width(teacher, sn3.tied_lengths(teacher, student, lengths)):
            probs = torch.stack([teacher(x).softmax(-1) for _ in range(6)])
        with vnd.width(student, lengths):
            spread = concentration(student(x))
        loss = sn3.dirichlet_mmd(probs, spread).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_the_page_begins_with_the_example_and_its_loop_runs() -> None:
    page = (ROOT / "docs" / "distillation.md").read_text(encoding="utf-8")
    example, loop, *_ = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert (ROOT / "examples" / "distill.py").read_text(encoding="utf-8").startswith(example.rstrip())
    assert len(loop.splitlines()) <= 20
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    exec(compile(loop, "distillation.md", "exec"), found)
    assert found["loss"].isfinite()
    assert vnd.predict(found["student"], torch.zeros(1, 2), width=0.5).probs.shape == (1, 3)
