"""SN³: what a student keeps of its teacher, that lengths move together, its loss by hand, and a run from end to end."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet
from torch.nn import functional as F

import vnd
from methods.classes import same, step
from train.small import blobs, recipe, settings, write_blobs
from train.test_loop import assert_same_run, stopping_at
from vnd.cli import main
from vnd.evaluation import open_run
from vnd.functional import concentration
from vnd.methods import SN3, sn3
from vnd.methods.sn3 import squared_mmd
from vnd.nn import BayesLayer, Shape
from vnd.nn.state import state_of
from vnd.train.loop import fit

IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(5))
LABELS = torch.arange(6) % 3


def teacher_of(base: int = 2, groups: int = 8) -> nn.Module:
    torch.manual_seed(0)
    plain = vnd.models.ConvNet(num_classes=3, width=0.25, image_size=8, in_channels=1, hidden=32)
    net = vnd.to_nested(plain, IMAGES[:2], num_groups=groups, base=base, log_alpha_init=-2.0)
    for unit in state_of(net).units.values():
        unit.keep_logits.data.uniform_(0, 3)
    return net


def uneven(base: int = 1) -> nn.Module:
    """A teacher whose layers are worth keeping to shares that differ; 5,003 parameters."""
    teacher = teacher_of(base)
    for unit, logit in zip(state_of(teacher).units.values(), (2.5, 0.5, -0.5, 1.5), strict=True):
        unit.keep_logits.data.copy_(torch.linspace(logit + 0.5, logit - 0.5, unit.num_nested))
    return teacher


BUDGET = 1000  # parameters of its students, which keep 8, 3, 2 and 6 groups of 8


def saved(tmp_path: Path, teacher: nn.Module | None = None, **options: Any) -> tuple[SN3, nn.Module]:
    """A method whose teacher lies in a folder, and its student."""
    vnd.save(teacher_of() if teacher is None else teacher, tmp_path / "last")
    method = SN3(**{"teacher": str(tmp_path), "samples": 3, "student_samples": 4} | options)
    torch.manual_seed(1)
    return method, method.build(vnd.models.ConvNet(num_classes=3, image_size=8, in_channels=1), IMAGES[:2]).train()


# What the student keeps


@pytest.mark.parametrize("keep", [0.25, 1.0])
def test_a_student_is_the_leading_part_of_its_teacher(keep: float) -> None:
    teacher = teacher_of().eval()
    student = sn3.prune(teacher, keep, IMAGES[:2]).eval()
    shape = SN3(keep=keep).kept(teacher)
    assert torch.equal(student(IMAGES), vnd.extract(teacher, shape, warn=False)(IMAGES))
    layers = [module for module in student.modules() if isinstance(module, BayesLayer)]
    assert [layer.bayesian for layer in layers] == [False] * (len(layers) - 1) + [True]
    theirs: Any = [
        m for m in vnd.extract(teacher, shape, keep="posterior", warn=False).modules() if isinstance(m, BayesLayer)
    ][-1]
    assert torch.equal(layers[-1].log_alpha, theirs.log_alpha)
    for name, unit in state_of(student).units.items():
        assert unit.group_sizes == state_of(teacher).units[name].group_sizes[: unit.num_groups]
        assert not unit.keep_logits.requires_grad


def survival_agrees(teacher: nn.Module, student: nn.Module, ratio: int) -> None:
    """The student keeps its j-th group as often as the teacher its (r j)-th."""
    for name, unit in state_of(student).units.items():
        theirs = state_of(teacher).units[name].survival()[ratio - 1 :: ratio]
        torch.testing.assert_close(unit.survival(), theirs, atol=1e-5, rtol=1e-4)


def test_the_order_is_the_teacher_s_coarsened(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = teacher_of(base=2)
    student = sn3.prune(teacher, 0.5, IMAGES[:2])
    assert {(unit.num_groups, unit.base) for unit in state_of(student).units.values()} == {(4, 1)}
    survival_agrees(teacher, student, 2)

    def leading(unit: vnd.OrderingUnit, kept: int, base: int | None = None) -> tuple[int, torch.Tensor]:
        # planted: the first logits
        return 1, unit.keep_logits[:3].detach()

    monkeypatch.setattr(sn3, "coarsened", leading)
    with pytest.raises(AssertionError):
        survival_agrees(teacher, sn3.prune(teacher, 0.5, IMAGES[:2]), 2)


def survival_is_that_of_the_ratio(teacher: nn.Module, student: nn.Module) -> None:
    """The student keeps its j-th group as often as the teacher its ⌈r j⌉-th, r being of the layer; but for the base."""
    for name, unit in state_of(student).units.items():
        theirs = state_of(teacher).units[name]
        ratio = Fraction(theirs.num_groups, unit.num_groups)
        assert unit.base == math.ceil(theirs.base / ratio)
        for j in range(unit.base, unit.num_groups):
            wanted = float(theirs.survival().detach()[math.ceil(ratio * (j + 1)) - 1])
            assert float(unit.survival().detach()[j]) == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("base", [0, 1, 2])
def test_a_student_of_so_many_parameters_has_the_learned_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: int
) -> None:
    teacher = uneven(base)
    _, student = saved(tmp_path, teacher, parameters=BUDGET)
    shape = vnd.shape(teacher, parameters=BUDGET)
    assert {name: unit.num_groups for name, unit in state_of(student).units.items()} == dict(shape)
    assert len(set(shape.values())) == 4  # not one share for all
    count = sum(parameter.numel() for parameter in vnd.extract(student, 1.0).parameters())
    assert 0.7 * BUDGET < count <= BUDGET
    assert torch.equal(student.eval()(IMAGES), vnd.extract(teacher.eval(), shape, warn=False)(IMAGES))
    survival_is_that_of_the_ratio(teacher, student)
    right = sn3.coarsened

    def alike(unit: vnd.OrderingUnit, kept: int, base: int | None = None) -> tuple[int, torch.Tensor]:
        # planted: one ratio for all
        own_base, logits = right(unit, min(shape.values()))
        return own_base, logits[torch.arange(kept - own_base).clamp(max=len(logits) - 1)]

    monkeypatch.setattr(sn3, "coarsened", alike)
    with pytest.raises(AssertionError):
        survival_is_that_of_the_ratio(teacher, sn3.prune(teacher, shape, IMAGES[:2]))


def test_a_number_of_parameters_that_a_teacher_does_not_have_is_refused() -> None:
    teacher = uneven()
    least = vnd.profile(teacher, vnd.shape(teacher, fraction=1e-9)).parameters
    full = vnd.profile(teacher, 1.0).parameters
    for parameters in (least - 1, full, 1e9):
        words = f"sn3: parameters must be from {least:,} to below {full:,} here; got {parameters:,.0f}"
        with pytest.raises(ValueError, match=f"^{words}$"):
            SN3(parameters=parameters).kept(teacher)
    assert set(SN3(parameters=least).kept(teacher).values()) == {1}
    assert SN3(parameters=full - 1).kept(teacher) != SN3(keep=1.0).kept(teacher)
    with pytest.raises(
        ValueError, match=r"^sn3: parameters: 150 leave nothing of features\.8; give more of them, or keep$"
    ):
        SN3(parameters=150).kept(uneven(base=0))


@pytest.mark.parametrize(
    ("groups", "base", "keep", "kept", "own_base", "lengths"),
    [
        (16, 1, 0.25, 4, 1, [4, 8, 12, 16]),  # the paper's example, r = 4
        (32, 6, 0.25, 8, 2, [4, 8, 12, 16, 20, 24, 28, 32]),  # r does not divide the base: two groups stand for six
        (8, 3, 0.3, 3, 2, [3, 6, 8]),  # r = 8/3, rounded up
        (8, 5, 0.25, 5, 4, [2, 4, 5, 7, 8]),  # no less than the base
        (8, 8, 0.5, 8, 8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (8, 0, 1.0, 8, 0, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_lengths_are_tied_by_the_ratio_of_groups(
    groups: int, base: int, keep: float, kept: int, own_base: int, lengths: list[int]
) -> None:
    linear = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    net = vnd.to_nested(linear, torch.randn(1, 2), num_groups=groups, base=base)
    (unit,) = state_of(net).units.values()
    unit.keep_logits.data.uniform_(-1, 3, generator=torch.Generator().manual_seed(0))
    assert list(SN3(keep=keep).kept(net).values()) == [kept]
    assert [sn3.tied(j, unit, kept) for j in range(1, kept + 1)] == lengths
    found, logits = sn3.coarsened(unit, kept)
    assert (found, len(logits)) == (own_base, kept - own_base)
    assert sn3.tied(own_base, unit, kept) >= base
    survival = torch.cat([torch.zeros(1), F.logsigmoid(logits).cumsum(0)]).exp()  # P(|v̄| ≥ j) = P(|v| ≥ ⌈r j⌉)
    wanted = [1.0] + [unit.survival().tolist()[length - 1] for length in lengths[own_base:]]
    torch.testing.assert_close(survival, torch.tensor(wanted), atol=1e-6, rtol=1e-4)


def lengths_move_together(method: SN3, student: nn.Module) -> set[tuple[int, ...]]:
    """Ask the teacher some times, and see at which lengths it answers."""
    lesson = sn3.distillation_of(student)
    seen, drawn = [], set()
    units = state_of(lesson.teacher).units
    handle = lesson.teacher.register_forward_pre_hook(
        lambda *_: seen.append({name: int(unit.fixed_groups) for name, unit in units.items()})
    )
    for index in range(12):
        seen.clear()
        torch.manual_seed(index)
        method.prepare(student, (IMAGES, LABELS), step(), same)
        assert len(seen) == method.samples * len({str(part.lengths) for part in lesson.parts})
        for number, theirs in enumerate(seen):
            own = lesson.parts[number // method.samples].lengths
            assert theirs == {
                name: math.ceil(Fraction(int(own[name]) * unit.num_groups, state_of(student).units[name].num_groups))
                for name, unit in units.items()
            }
        drawn.add(tuple(int(x) for x in lesson.parts[-1].lengths.values()))
    handle.remove()
    return drawn


def as_many(groups: int, unit: vnd.OrderingUnit, kept: int) -> int:
    return groups


def one_ratio(groups: int, unit: vnd.OrderingUnit, kept: int) -> int:
    return min(unit.num_groups, 2 * groups)


@pytest.mark.parametrize(
    ("teacher", "options", "planted"),
    [
        (teacher_of, {"keep": 0.25}, as_many),
        (uneven, {"parameters": BUDGET}, as_many),
        (uneven, {"parameters": BUDGET}, one_ratio),
    ],
)
def test_teacher_and_student_lengths_move_together_and_a_wrong_coupling_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    teacher: Callable[[], nn.Module],
    options: dict[str, Any],
    planted: Callable[..., int],
) -> None:
    method, student = saved(tmp_path, teacher(), **options)
    monkeypatch.setattr(sn3, "can_be_trained_small", lambda _: False)
    assert len(lengths_move_together(method, student)) > 1
    monkeypatch.setattr(sn3, "tied", planted)
    with pytest.raises(AssertionError):
        lengths_move_together(method, student)


def test_an_untied_teacher_is_always_full(tmp_path: Path) -> None:
    method, student = saved(tmp_path, tie=False, full=False, smallest=False)
    for index in range(5):
        torch.manual_seed(index)
        method.prepare(student, (IMAGES, LABELS), step(), same)
        units = state_of(sn3.distillation_of(student).teacher).units.values()
        assert all(int(unit.fixed_groups) == unit.num_groups for unit in units)


# The loss


@pytest.mark.parametrize("divergence", ["mmd", "kl"])
def test_the_loss_by_hand(tmp_path: Path, divergence: str) -> None:
    method, student = saved(tmp_path, divergence=divergence, label_weight=0.3)
    method.prepare(student, (IMAGES, LABELS), step(), same)
    lesson = sn3.distillation_of(student)
    state = {name: value.clone() for name, value in student.state_dict().items()}
    torch.manual_seed(7)
    terms = method.loss(student, (IMAGES, LABELS), step(kl_weight=0.5))
    assert {int(unit.fixed_groups) for unit in state_of(student).units.values()} == {-1}
    student.load_state_dict(state)
    torch.manual_seed(7)
    apart, nll = [], []
    assert len(lesson.parts) == 3
    for lengths, taught in ((part.lengths, part.taught) for part in lesson.parts):
        assert taught.shape == (3, 6, 3)
        vnd.set_width(student, Shape({name: int(value) for name, value in lengths.items()}))
        spread = concentration(student(IMAGES))
        mean = spread / spread.sum(1, keepdim=True)
        if divergence == "mmd":
            drawn = Dirichlet(spread).rsample((4,))
            across = (taught[:, None] - drawn[None]).square().sum(-1).detach().flatten(0, 1)
            apart.append(squared_mmd(taught, drawn, scale=across.quantile(0.5, 0).clamp(min=1e-4)).mean())
        else:
            apart.append((taught.mean(0) * (taught.mean(0) / mean).log()).sum(1).mean())
        nll.append(F.nll_loss(mean.log(), LABELS))
    vnd.set_width(student, None)
    expected = sum(apart) / 3 + 0.3 * sum(nll) / 3 + 0.5 / step().num_data * vnd.kl(student)
    assert float(terms.total.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    last = Shape({name: unit.num_groups for name, unit in state_of(student).units.items()})
    assert {name: int(value) for name, value in lesson.parts[1].lengths.items()} == dict(last)
    assert {int(value) for value in lesson.parts[0].lengths.values()} == {
        1
    }  # a base of two of the teacher's eight groups


def test_some_widths_in_every_step_and_their_shares_of_the_loss_by_hand(tmp_path: Path) -> None:
    options = {"widths": (0.25, 0.5), "full_share": 0.4, "sampled_share": 0.5, "divergence": "kl"}
    method, student = saved(tmp_path, keep=0.5, **options)
    assert method.num_loss_temperatures == 3
    given = replace(step(), log_loss_temperature=torch.tensor([0.1, 0.2, 0.6]))
    method.prepare(student, (IMAGES, LABELS), given, same)
    parts = sn3.distillation_of(student).parts
    assert [set(map(int, part.lengths.values())) for part in parts[:3]] == [{1}, {2}, {4}]
    assert [(part.every, part.taught.size(1)) for part in parts] == [(1, 6), (1, 6), (1, 6), (2, 3)]
    state = copy.deepcopy(student.state_dict())
    torch.manual_seed(7)
    found = float(method.loss(student, (IMAGES, LABELS), given).parts["distance"])
    student.load_state_dict(state)
    torch.manual_seed(7)
    wanted = 0.0
    for part, share, log_loss_temperature in zip(parts, (0.2, 0.2, 0.4, 0.2), (0.1, 0.2, 0.6, 0.3), strict=True):
        vnd.set_width(student, Shape({name: int(value) for name, value in part.lengths.items()}))
        outputs, loss_temperature = student(IMAGES[:: part.every]), torch.tensor(log_loss_temperature).exp()
        spread = concentration((loss_temperature * outputs).softmax(1).log() + outputs.exp().sum(1, keepdim=True).log())
        mean, taught = spread / spread.sum(1, keepdim=True), part.taught.mean(0)
        wanted += share * float((taught * (taught / mean.detach()).log()).sum(1).mean())
    assert found == pytest.approx(wanted, rel=1e-4)
    vnd.set_width(student, None)
    answers = method.answers(student, IMAGES)
    assert [tuple(x.shape) for x in answers] == [(6, 3)] * 3
    torch.testing.assert_close(answers[0].exp().sum(1), torch.ones(6))


def test_the_mean_of_the_dirichlet_is_that_of_the_outputs_however_large_they_are() -> None:
    outputs = torch.tensor([[12.0, 11.0, 3.0], [300.0, 298.0, 299.0], [9.0, 8.0, 7.0]])
    spread = concentration(outputs)
    torch.testing.assert_close(F.normalize(spread, 1.0, 1), outputs.softmax(1), atol=1e-4, rtol=0)
    assert float(spread.max()) < 22_100  # e¹⁰ and ε
    images = outputs.T[None, :, :, None].expand(2, 3, 3, 4)  # classes are dimension 1
    torch.testing.assert_close(concentration(images)[0, :, :, 0], spread.T)


def test_a_student_that_is_too_sure_learns_to_be_less_sure() -> None:
    shift = torch.tensor(14.0, requires_grad=True)
    concentration(torch.tensor([[0.0, -3.0, -4.0]]) + shift).sum().backward()
    assert shift.grad is not None
    assert float(shift.grad) == pytest.approx(math.exp(10) * (1 + math.exp(-3) + math.exp(-4)), rel=1e-5)


def test_a_loss_temperature_moves_the_mean_and_not_the_spread() -> None:
    outputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).mul(2).double()
    for log_loss_temperature in (-3.0, 0.0, 1.0):
        moved = sn3.scale_mean(outputs, torch.tensor(log_loss_temperature, dtype=torch.float64))
        torch.testing.assert_close(moved.softmax(1), (math.exp(log_loss_temperature) * outputs).softmax(1))
        torch.testing.assert_close(moved.exp().sum(1), outputs.exp().sum(1))
    torch.testing.assert_close(sn3.scale_mean(outputs, torch.tensor(0.0, dtype=torch.float64)), outputs)


def test_the_teacher_is_cut_where_it_is_asked_again_and_says_the_same(tmp_path: Path) -> None:
    method, student = saved(tmp_path)
    lesson = sn3.distillation_of(student)
    for layer in lesson.teacher.modules():
        if isinstance(layer, BayesLayer):
            layer.log_alpha.data.fill_(-30.0)  # no noise, which would be drawn in other numbers
    lesson.move(IMAGES.device)
    lengths = Shape(dict.fromkeys(state_of(lesson.teacher).units, 4))
    cut, masked = (method._answers(lesson, lengths, IMAGES, again) for again in (True, False))
    assert list(lesson.slices) == [lengths]
    torch.testing.assert_close(cut, masked, atol=1e-5, rtol=1e-4)


def test_an_untied_teacher_is_asked_once(tmp_path: Path) -> None:
    method, student = saved(tmp_path, tie=False)
    lesson, asked = sn3.distillation_of(student), []
    lesson.teacher.register_forward_pre_hook(lambda *_: asked.append(1))
    method.prepare(student, (IMAGES, LABELS), step(), same)
    assert (len(asked), len(lesson.parts)) == (method.samples, 3)


def test_the_gradient_reaches_the_student_through_the_dirichlet_and_the_teacher_not_at_all(tmp_path: Path) -> None:
    method, student = saved(tmp_path)
    method.prepare(student, (IMAGES, LABELS), step(), same)
    method.loss(student, (IMAGES, LABELS), step(kl_weight=0.0)).total.backward()
    weights = [p for name, p in student.named_parameters() if name.endswith("weight")]
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in weights)
    assert all(p.grad is None for p in sn3.distillation_of(student).teacher.parameters())


@pytest.mark.parametrize("options", [{}, {"tie": False, "divergence": "kl", "samples": 4}])
def test_answers_lie_in_the_same_place_in_every_step(tmp_path: Path, options: dict[str, Any]) -> None:
    method, student = saved(tmp_path, sampled_share=0.5, **options)
    lesson, before = sn3.distillation_of(student), list[sn3.DistillationBatch]()
    for index in range(4):  # what a CUDA graph of the backward pass has seen must not move
        torch.manual_seed(index)
        old = [part.taught.clone() for part in before]
        method.prepare(student, (IMAGES + index, LABELS), step(), same)
        assert all(part.taught.is_contiguous() for part in lesson.parts)
        assert len({part.taught.data_ptr() for part in lesson.parts}) == 3
        if before:  # kept, so that no other tensor can lie there
            assert [p.taught.data_ptr() for p in lesson.parts] == [p.taught.data_ptr() for p in before]
            assert not any(torch.equal(a, p.taught) for a, p in zip(old, lesson.parts, strict=True))
        before = lesson.parts
    if not method.tie:
        full, sampled = (part.taught for part in lesson.parts[1:])
        assert torch.equal(sampled, full[:, ::2])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own Dirichlet
def test_the_loss_is_one_graph_for_all_lengths(tmp_path: Path) -> None:
    method, student = saved(tmp_path, sampled_share=0.5)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(method.loss, backend="aot_eager", fullgraph=True)
    for index in range(3):
        torch.manual_seed(index)
        for place, unit in enumerate(state_of(student).units.values()):  # drawn: some of each, the base, all
            unit.keep_logits.data.fill_(((30.0, -30.0)[place % 2], -30.0, 30.0)[index])
        method.prepare(student, (IMAGES, LABELS), step(index=index), same)
        terms = [f(student, (IMAGES, LABELS), step(index=index)) for f in (compiled, method.loss)]
        terms[0].total.backward()
        assert float(terms[0].parts["kl"]) == pytest.approx(float(terms[1].parts["kl"]), rel=1e-5)
        assert terms[0].total.isfinite()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("options", "fresh"),
    [
        ({"tie": False, "full": False, "smallest": False}, 0),
        ({"tie": False, "sampled_share": 0.5}, 0),
        ({"tie": True}, 1),  # lengths that are drawn are asked for in every step
    ],
)
def test_answers_to_a_batch_that_comes_again_are_kept(tmp_path: Path, options: dict[str, Any], fresh: int) -> None:
    method, student = saved(tmp_path, **options)
    lesson, asked = sn3.distillation_of(student), list[int]()
    lesson.teacher.register_forward_pre_hook(lambda *_: asked.append(1))
    for place, unit in enumerate(state_of(student).units.values()):  # other lengths than those of every step
        unit.keep_logits.data.fill_(30.0 if place % 2 else -30.0)
    counts, answers = [], []
    for index, number in enumerate((0, 1, 0, 1)):
        torch.manual_seed(index)
        method.prepare(student, (IMAGES + number, LABELS), replace(step(index), batch=number), same)
        counts.append(len(asked))
        answers.append([part.taught.clone() for part in lesson.parts[: len(lesson.parts) - fresh]])
    assert counts[1] == 2 * counts[0] > 0
    assert counts[3] - counts[2] == counts[2] - counts[1] == fresh * method.samples
    for first, later in ((0, 2), (1, 3)):
        assert all(torch.equal(a, b) for a, b in zip(answers[first], answers[later], strict=True))
    assert not torch.equal(answers[0][0], answers[1][0])


def test_without_views_the_teacher_is_asked_in_every_step(tmp_path: Path) -> None:
    method, student = saved(tmp_path, tie=False)
    lesson, answers = sn3.distillation_of(student), []
    for index in range(2):
        torch.manual_seed(index)
        method.prepare(student, (IMAGES, LABELS), step(index), same)
        answers.append(lesson.parts[0].taught.clone())
    assert not torch.equal(*answers)
    assert not lesson.kept_answers


# Prediction


def test_a_dirichlet_s_mean_entropy_and_information_are_those_of_its_samples() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(2, 3)).double()
    x = 2 * torch.randn(5, 2).double()
    said = vnd.predict(plain, x, samples=0, link="dirichlet")
    drawn = Dirichlet(concentration(plain(x)).detach()).sample((400_000,))
    mean = drawn.mean(0)
    entropy = torch.special.entr(mean).sum(1)
    inner = torch.special.entr(drawn).sum(2).mean(0)
    torch.testing.assert_close(said.probs, mean, atol=3e-3, rtol=0)
    torch.testing.assert_close(said.entropy, entropy, atol=3e-3, rtol=0)
    torch.testing.assert_close(said.mutual_information, entropy - inner, atol=3e-3, rtol=0)
    torch.testing.assert_close(said.variance, drawn.var(0), atol=3e-3, rtol=0)


def test_draws_of_the_last_layer_are_a_mixture() -> None:
    student = sn3.prune(teacher_of(), 0.5, IMAGES[:2]).eval()
    vnd.recalibrate(student, [IMAGES], widths=(1.0,), samples=True)
    said = vnd.predict(student, IMAGES, width=1.0, samples=200, link="dirichlet", seed=0)
    parts = torch.stack([vnd.predict(student, IMAGES, 1.0, 1, "dirichlet", seed=k).probs for k in range(200)])
    assert parts.std(0).max() > 1e-3  # it is drawn
    torch.testing.assert_close(said.probs, parts.mean(0), atol=0.02, rtol=0)
    assert (said.variance > parts.var(0)).all()  # beside the spread within each Dirichlet


@pytest.mark.parametrize("keep", ["mean", "posterior"])
def test_a_student_is_saved_and_cut_as_any_nested_network(tmp_path: Path, keep: Any) -> None:
    student = sn3.prune(teacher_of(), 0.5, IMAGES[:2]).eval()
    vnd.recalibrate(student, [IMAGES], widths=(0.5, 1.0))
    vnd.save(student, tmp_path / "student")
    loaded = vnd.load(tmp_path / "student")
    with vnd.width(student, 1.0), vnd.width(loaded, 1.0):
        assert torch.equal(loaded(IMAGES), student(IMAGES))
    small = vnd.extract(student, 0.5, keep, warn=False).eval()
    if keep == "mean":  # of the others the statistics of sampled weights were not asked for
        with vnd.width(student, 0.5):
            torch.testing.assert_close(small(IMAGES), student(IMAGES))
    vnd.save(small, tmp_path / "small")
    assert torch.equal(vnd.load(tmp_path / "small")(IMAGES), small(IMAGES))
    vnd.save(copy.deepcopy(student), tmp_path / "copy")
    with vnd.width(student, 1.0):
        said = [vnd.predict(net, IMAGES, samples=0) for net in (student, vnd.load(tmp_path / "copy"))]
        wanted = vnd.predict(student, IMAGES, samples=0, link="dirichlet")
    assert all(torch.equal(one.mutual_information, wanted.mutual_information) for one in said)  # it knows its link
    again = vnd.extract(loaded, 0.5, keep, warn=False).eval()  # of the one that was loaded
    vnd.save(again, tmp_path / "again")
    assert torch.equal(vnd.load(tmp_path / "again")(IMAGES), small(IMAGES))


# A run


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained teacher, and its student by the command."""
    folder = tmp_path_factory.mktemp("sn3")
    data = write_blobs(folder / "blobs.npz", train=160)
    method = {"name": "bn3", "num_groups": 8, "measure_every": 2, "log_alpha_init": -4.0}
    network = {"name": "convnet", "width": 0.5, "image_size": 8, "in_channels": 1, "num_classes": 3, "hidden": 32}
    outside = {"ood": "npz", "ood_folder": str(data)}  # the test images
    wanted = recipe(
        data, method=method, network=network, data={"validation": 60}, train={"epochs": 12}, evaluate=outside
    )
    assert fit(wanted, folder / "teacher", quiet=True)
    words = ["--keep", "0.5", "--checkpoint", "last", "--train.epochs", "12", "--method.samples", "3"]
    main(["distill", str(folder / "teacher"), "--out", str(folder / "student"), *words])
    return folder


def test_a_student_learns_from_its_teacher_and_is_evaluated_as_any_run(taught: Path) -> None:
    student, opened = taught / "student", open_run(taught / "teacher", "last")
    x = torch.cat(list(opened.batches(opened.splits.validation)))
    networks = {
        "teacher": opened.model,
        "pruned": sn3.prune(opened.model, 0.5, x[:2]),
        "taught": vnd.load(student / "last"),
    }
    said = {}
    for name, network in networks.items():  # as in training: by statistics of the batch
        vnd.set_width(network.train(), 1.0)
        torch.manual_seed(0)
        with torch.no_grad():
            outputs = [network(x) for _ in range(20)]
        means = [z.softmax(1) if name == "teacher" else F.normalize(concentration(z), 1.0, 1) for z in outputs]
        said[name] = torch.stack(means).mean(0)
    far, near = ((said["teacher"] - said[name]).abs().sum(1).mean() for name in ("pruned", "taught"))
    assert near < far / 2
    main(["evaluate", str(student)])
    results = json.loads((student / "results.json").read_text(encoding="utf-8"))
    assert results["method"]["key"] == "sn3"
    assert {row["inference"] for row in results["tidy"]} == {"mc", "mean"}  # the paper's draws, and the closed form
    assert results["samples"] == 6
    full = next(row for row in results["rows"] if row["fraction"] == 1.0)
    assert full["accuracy"] > 0.9
    teacher = vnd.load(taught / "teacher" / "last")
    parameters = sum(p.numel() for p in vnd.extract(teacher).parameters())
    assert full["parameters"] < parameters / 3


def test_the_command_leaves_its_analysis_and_pictures(taught: Path, tmp_path: Path, capsys: Any) -> None:
    said = json.loads((taught / "student" / "correlation.json").read_text(encoding="utf-8"))
    assert len(said["inside"]) == len(said["outside"]) == len(said["widths"]) == 10
    assert said["inside"] != said["outside"]
    column = [row[-1] for row in said["inside"]]
    assert said["proposed"] == next(w for w, r in zip(said["widths"], column, strict=True) if r > said["threshold"])
    for name in ("correlation.png", "simplex.png"):
        assert (taught / "student" / name).read_bytes()[:4] == b"\x89PNG"
    capsys.readouterr()
    main(["distill", str(taught / "teacher"), "--analyze", "--threshold", "-1", "--out", str(tmp_path / "looked")])
    assert "more than -1: 0.1" in capsys.readouterr().out
    assert not (tmp_path / "looked" / "recipe.yaml").exists()


def test_the_command_takes_the_width_that_it_proposes_and_the_images_that_are_asked_for(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vnd.report import theory as drawing

    shown, draw = [], drawing.simplex
    monkeypatch.setattr("vnd.cli.distill.simplex", lambda panels: (shown.extend(panels), draw(panels))[1])
    words = ["--threshold", "-1", "--images", "3,17,20", "--checkpoint", "last", "--train.epochs", "1"]
    main(["distill", str(taught / "teacher"), "--out", str(tmp_path / "student"), *words])
    opened = open_run(tmp_path / "student", "last")
    assert opened.recipe.method.keep == 0.1  # the first of the widths
    images = open_run(taught / "teacher", "last").splits.validation
    assert images.labels is not None
    assert [one.title for one in shown] == [f"labelled {images.classes[images.labels[n]]}" for n in (3, 17, 20)]
    assert len({one.title for one in shown}) > 1


def test_the_command_makes_a_student_of_so_many_parameters(taught: Path, tmp_path: Path) -> None:
    words = ["--parameters", "6e3", "--checkpoint", "last", "--train.epochs", "1", "--method.samples", "2"]
    main(["distill", str(taught / "teacher"), "--out", str(tmp_path / "student"), *words])
    opened = open_run(tmp_path / "student", "last")
    assert (opened.recipe.method.keep, opened.recipe.method.parameters) == (None, 6000.0)
    shape = vnd.shape(vnd.load(taught / "teacher" / "last"), parameters=6000)
    assert {name: unit.num_groups for name, unit in state_of(opened.model).units.items()} == dict(shape)
    assert vnd.profile(opened.model, 1.0).parameters <= 6000


@pytest.mark.parametrize(("size", "repeat_epochs"), [({"parameters": 6000}, 0), ({"keep": 0.5}, 1)])
def test_a_student_goes_on_where_it_stopped_bit_for_bit(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: dict[str, float], repeat_epochs: int
) -> None:
    given = settings(
        taught / "blobs.npz",
        method={"name": "sn3", "teacher": str(taught / "teacher"), "samples": 2, "student_samples": 2} | size,
        network={"name": "convnet", "width": 0.5, "image_size": 8, "in_channels": 1, "num_classes": 3, "hidden": 32},
        data={"repeat_epochs": repeat_epochs, "validation": 60, "augment": {"cutmix": 0.5 * repeat_epochs}},
        optimizer={"chain_lr": None},
        train={"epochs": 1 + repeat_epochs, "loss_temperature": 2.0 * repeat_epochs},
    )
    from vnd.train.config import parse

    assert fit(parse(given), tmp_path / "whole", quiet=True)
    stopping_at(monkeypatch, 8 if repeat_epochs else 3)  # of 6 steps an epoch
    assert [fit(parse(given), tmp_path / "parts", quiet=True) for _ in range(2)] == [False, True]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    groups = {name: unit.num_groups for name, unit in state_of(vnd.load(tmp_path / "parts" / "last")).units.items()}
    assert groups == dict(SN3(**size).kept(vnd.load(taught / "teacher" / "last")))


def test_a_teacher_that_is_not_there_is_refused(tmp_path: Path, capsys: Any) -> None:
    for teacher, words in (("", "vnd distill RUN sets it"), (str(tmp_path), "holds no network")):
        with pytest.raises(ValueError, match=words):
            SN3(teacher=teacher).build(nn.Identity(), IMAGES)
    data = write_blobs(tmp_path / "blobs.npz")
    assert fit(recipe(data, method={"name": "plain"}, optimizer={"chain_lr": None}), tmp_path / "plain", quiet=True)
    plain = str(tmp_path / "plain")
    for words in (["distill"], ["distill", plain], ["distill", "x", "--keep", "no"]):
        with pytest.raises(SystemExit):
            main(words)
        line = capsys.readouterr().err.strip()
        assert line.startswith("vnd: distill: ")
        assert "\n" not in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--keep", "5"], "keep must lie in (0, 1]; got 5"),
        (
            ["--keep", "0.5", "--parameters", "6000"],
            "vnd: distill: give --keep or --parameters, not both; got 0.5 and 6000",
        ),
        (["--keep", "0.5", "--method.parameters", "6000"], "keep or parameters, not both; got keep 0.5 and"),
        (["--parameters", "10"], "vnd: sn3: parameters must be from "),
        (["--parameters", "1e9"], "here; got 1,000,000,000"),
        (["--parameters", "many"], "parameters must be a number or none; got many"),
        (["--train.epoch", "5"], "unknown key 'train.epoch'"),
        (["--threshold", "1"], "threshold must lie in [-1, 1); got 1"),
        (["--images", "3,x"], "images must be a whole number; got x"),
        (["--images", "3,60"], "images must be numbers of validation images, below 60; got [3, 60]"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    taught: Path, tmp_path: Path, capsys: Any, words: list[str], line: str
) -> None:
    with pytest.raises(SystemExit):
        main(["distill", str(taught / "teacher"), "--out", str(tmp_path / "new"), *words])
    assert line in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_no_other_run_is_written_to_and_a_student_is_no_teacher(taught: Path, capsys: Any) -> None:
    before = sorted(path.name for path in (taught / "teacher").iterdir())
    for words, line in (
        ([str(taught / "teacher"), "--out", str(taught / "teacher")], "holds a run already"),
        ([str(taught / "student")], "is no Bayesian nested network"),
    ):
        with pytest.raises(SystemExit):
            main(["distill", *words])
        assert line in capsys.readouterr().err
    assert sorted(path.name for path in (taught / "teacher").iterdir()) == before


def test_two_classes_have_no_triangle(tmp_path: Path) -> None:
    (x, y), (tx, ty) = blobs(150, 0), blobs(30, 1)
    data = tmp_path / "two.npz"
    np.savez(data, x_train=x[y < 2], y_train=y[y < 2], x_test=tx[ty < 2], y_test=ty[ty < 2])
    network = {"name": "convnet", "width": 0.25, "image_size": 8, "in_channels": 1, "num_classes": 2, "hidden": 16}
    wanted = recipe(data, method={"name": "bn3", "num_groups": 4}, network=network, train={"epochs": 1})
    assert fit(wanted, tmp_path / "teacher", quiet=True)
    main(["distill", str(tmp_path / "teacher"), "--keep", "0.5"])
    assert (tmp_path / "teacher-sn3" / "last").is_dir()
    assert not (tmp_path / "teacher-sn3" / "simplex.png").exists()
