"""Evaluation of any network: rows agree with predictions and measures made apart, and the network is left alone."""

from __future__ import annotations

import copy
import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vnd
from refusals import refused, table
from vnd import metrics
from vnd.methods import Sizes
from vnd.nn.state import state_of
from vnd.tasks import TASKS, Task
from vnd.tasks import register as register_task
from vnd.tasks.base import Reading, Scores

X, Y = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 5
BATCHES = [(X[:24], Y[:24]), (X[24:], Y[24:])]
OTHER = 3 * torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def convolutions(classes: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, classes),
    )  # fmt: skip


def smooth() -> nn.Module:
    """Without BatchNorm, so that no width wants for statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 5))


def nested(plain: nn.Module | None = None, example: Any = X[:2]) -> nn.Module:
    net = vnd.to_nested(plain or convolutions(), example, num_groups=4)
    for name, parameter in net.named_parameters():
        if name.endswith("weight") and parameter.dim() > 1:
            parameter.data *= 2  # answers that differ
    return net


class Tokens(nn.Module):
    """Takes words by name, and gives several things, among them the logits of each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.middle, self.head = nn.Embedding(11, 12), nn.Linear(12, 24), nn.Linear(24, 4)

    def forward(self, input_ids: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        hidden = self.middle(scale * self.embed(input_ids)).relu()
        return {"hidden": hidden, "logits": self.head(hidden)}


@pytest.mark.parametrize("samples", [0, 3])
def test_rows_are_what_prediction_and_measures_say_apart(samples: int) -> None:
    net = nested().eval()
    vnd.recalibrate(net, [X], (0.25, 0.5, 1.0), samples="both")
    rows = vnd.evaluate(net, BATCHES, (0.25, 0.5, 1.0), samples=samples, ood=[OTHER[:8], (OTHER[8:], Y[:8])])
    assert [row["fraction"] for row in rows] == [0.25, 0.5, 1.0]
    for row in rows:
        width = row["fraction"]
        cut = vnd.profile(net, width)
        assert (row["parameters"], row["macs"], row["bytes"]) == (cut.parameters, cut.macs, cut.bytes)
        assert row["latency_ms"] > 0
        assert row["recalibrated"] is True
        assert row["accuracy_low"] < row["accuracy"] < row["accuracy_high"]
        assert row["nll_low"] < row["nll"] < row["nll_high"]
        assert ("auroc_mutual_information" in row) == (samples > 0)
        assert all(isinstance(value, str | int | float | None) for value in row.values())
        if samples:  # other draws of the weights: near
            said = vnd.predict(net, X, width, samples=400, seed=0)
            assert row["nll"] == pytest.approx(float(metrics.negative_log_likelihood(said.probs, Y)), abs=0.1)
            continue
        inside, outside = (vnd.predict(net, x, width, samples=0) for x in (X, OTHER))
        assert inside.entropy is not None
        assert outside.entropy is not None
        apart = {
            "accuracy": metrics.accuracy(inside.probs, Y),
            "nll": metrics.negative_log_likelihood(inside.probs, Y),
            "ece": metrics.expected_calibration_error(inside.probs, Y),
            "aurc": metrics.area_under_risk_coverage(inside.probs, Y, inside.entropy),
            "auroc": metrics.auroc(inside.entropy, outside.entropy),
            "aupr": metrics.aupr(inside.entropy, outside.entropy),
            "base_rate": 16 / 56,
        }
        for key, value in apart.items():
            assert row[key] == pytest.approx(float(value), rel=1e-4), key
    again = vnd.evaluate(net, BATCHES, (0.25, 0.5, 1.0), samples=samples)
    assert [row["nll"] for row in again] == [row["nll"] for row in rows]


def test_the_masked_network_runs_where_a_copy_might_do_something_else() -> None:
    net = nested().eval()
    vnd.recalibrate(net, [X], (0.5,))
    plain = vnd.evaluate(net, BATCHES, 0.5)[0]
    last: Any = net[-1]
    last.forward = lambda x: -type(last).forward(last, x)  # in a copy, still of this one
    (turned,) = vnd.evaluate(net, BATCHES, 0.5)
    said = vnd.predict(net, X, 0.5, samples=0)
    assert turned["nll"] == pytest.approx(float(metrics.negative_log_likelihood(said.probs, Y)), rel=1e-5)
    assert turned["nll"] != pytest.approx(plain["nll"], rel=1e-3)
    assert turned["parameters"] == plain["parameters"]
    assert turned["latency_ms"] is None  # what is cut out would call the last layer of the whole


def snapshot(net: nn.Module) -> tuple[Any, ...]:
    state = state_of(net)
    held = {name: value.clone() for name, value in net.state_dict().items()}
    kept = {
        key: {name: (m.clone(), v.clone()) for name, (m, v) in own.items()} for key, own in state.statistics.items()
    }
    return held, [m.training for m in net.modules()], state.shape, kept, dict(state.stamps), torch.get_rng_state()


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_recalibrated", [False, True])
def test_the_network_is_left_as_it_was_also_after_an_error(fails: bool, is_recalibrated: bool) -> None:
    net = nested().train()
    net[1].eval()  # as somebody who freezes a norm
    vnd.recalibrate(net, [X[:8]], (0.5,), samples="both")
    vnd.set_width(net, 0.5)
    x = torch.zeros(1, 3, 8, 8)
    before, answer = snapshot(net), copy.deepcopy(net).eval()(x)
    given = [X[8:]] if is_recalibrated else None
    widths = (None, 1.0) if is_recalibrated else (None, 0.5)
    batches = [*BATCHES, (X, Y + 1)] if fails else BATCHES

    def run() -> Any:
        return vnd.evaluate(net, batches, widths, samples=(0, 2), ood=[OTHER], recalibrate=given)

    if fails:
        refused(run, "batch 2, 50 %: labels must lie in 0 … 4")
    else:
        assert {row["recalibrated"] for row in run()} == {True}
    assert_equal(snapshot(net), before)
    assert torch.equal(net.eval()(x), answer)


def test_a_width_without_statistics_is_said_in_a_warning_and_in_the_row() -> None:
    net = nested()
    net(X)  # trained: statistics are a mixture over widths
    with pytest.warns(UserWarning, match=r"run vnd.recalibrate\(net, batches, widths=\(0.5,\)\) first"):
        (row,) = vnd.evaluate(net, BATCHES, 0.5)
    assert row["recalibrated"] is False
    (mended,) = vnd.evaluate(net, BATCHES, 0.5, recalibrate=lambda: iter([X]))
    assert mended["recalibrated"] is True
    assert mended["nll"] != row["nll"]


def test_what_widths_may_be() -> None:
    net = nested(smooth()).eval()
    shape = vnd.Shape({**dict(vnd.shape(net, fraction=0.5)), "0": 4})
    found = vnd.evaluate(net, BATCHES, [0.5, shape, vnd.shape(net, fraction=0.25), None])
    assert [(row["kind"], row["fraction"]) for row in found] == [
        ("uniform", 0.5),
        ("learned", None),
        ("uniform", 0.25),
        ("uniform", 1.0),
    ]
    assert [row["label"] for row in vnd.evaluate(net, BATCHES, {"small": 0.25, "mine": shape})] == ["small", "mine"]
    sizes = vnd.evaluate(net, BATCHES, Sizes(fractions=(), levels=(0.9,), parameters=(500,)))
    assert [row["label"] for row in sizes] == ["level 0.9", "≤ 500"]
    assert len(vnd.evaluate(net, iter(BATCHES))) == 4  # widths that are sensible, of batches that come once


def test_a_plain_and_an_extracted_network_have_one_size_and_no_draws() -> None:
    net = nested(smooth()).eval()
    for one in (convolutions(), vnd.extract(net, 0.5)):
        one.train()
        (row,) = vnd.evaluate(one, BATCHES, samples=(0, 4), ood={"far": [OTHER], "near": iter([X])})
        assert (row["samples"], row["recalibrated"], row["fraction"]) == (0, None, 1.0)
        assert row["auroc_near"] == pytest.approx(0.5, abs=1e-6)
        assert row["base_rate_far"] == pytest.approx(16 / 56)
        assert all(module.training for module in one.modules())
    posterior = vnd.extract(net, 0.5, keep="posterior")
    drawn = vnd.evaluate(posterior, BATCHES, samples=(0, 4))
    assert [(row["samples"], row["inference"]) for row in drawn] == [(0, "mean"), (4, "mc")]


def test_words_by_name_with_labels_that_are_left_out() -> None:
    words, labels = torch.randint(11, (6, 7)), torch.randint(4, (6, 7))
    labels[:, 5:] = -100
    net = vnd.to_nested(Tokens(), {"input_ids": words[:2]}, num_groups=4).eval()
    given = {"input_ids": words, "labels": labels, "id": torch.arange(6)}
    (row,) = vnd.evaluate(net, [given], 0.5, ood=[{"input_ids": words, "id": torch.arange(6)}])
    said = vnd.predict(net, {"input_ids": words}, 0.5, samples=0, dim=-1).probs[:, :5].flatten(0, 1)
    assert row["nll"] == pytest.approx(float(metrics.negative_log_likelihood(said, labels[:, :5].flatten())), rel=1e-5)
    assert row["auroc"] == 0.5
    assert "nll_low" not in row  # words of a sentence are not independent


def test_numbers_against_numpy() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 3)
    y = 1e8 + torch.stack((x.sum(1), x.prod(1)), 1).double()
    net = vnd.to_nested(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)), x[:2], num_groups=4).eval()
    (row,) = vnd.evaluate(net, [(x[:30], y[:30]), (x[30:], y[30:])], 1.0)
    made, true = net(x).detach().double().numpy(), y.double().numpy()
    rest = ((true - made) ** 2).sum()
    assert row["mse"] == pytest.approx(((made - true) ** 2).mean())
    assert row["mae"] == pytest.approx(np.abs(made - true).mean())
    assert row["r2"] == pytest.approx(1 - rest / ((true - true.mean(0)) ** 2).sum())
    (drawn,) = vnd.evaluate(net, [(x, y)], 1.0, samples=50, ood=[10 * x])
    spread = vnd.predict(net, x, 1.0, samples=2000, link="identity", seed=0).variance
    assert drawn["std"] == pytest.approx(float(spread.mean().sqrt()), rel=0.3)
    assert drawn["auroc"] > 0.8  # weights are multiplied
    flat = vnd.to_nested(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)), x[:2], num_groups=4).eval()
    (one,) = vnd.evaluate(flat, [(x, x.sum(1))], 1.0)  # (50, 1) beside (50,) is no table of differences
    assert one["mse"] == pytest.approx(float((flat(x)[:, 0] - x.sum(1)).square().mean().detach()), rel=1e-5)


@pytest.mark.parametrize("classes", [1, 3])
def test_classes_of_pixels_against_a_table_made_apart(classes: int) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 1))
    net = vnd.to_nested(plain, X[:2], num_groups=4).eval()
    masks = torch.randint(max(2, classes), (40, 8, 8))
    if classes > 1:
        masks[:, 0] = -100
    (row,) = vnd.evaluate(net, [(X[:24], masks[:24]), (X[24:], masks[24:])], 0.5, ood=[OTHER])
    with vnd.width(net, 0.5):
        out = net(X).detach()
    probs = out.softmax(1) if classes > 1 else torch.cat((1 - out.sigmoid(), out.sigmoid()), 1)
    rows, labels = probs.movedim(1, -1).flatten(0, -2), masks.flatten()
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    top, seen = rows.argmax(1), range(classes) if classes > 1 else [1]
    both = np.array([int(((top == k) & (labels == k)).sum()) for k in seen])
    either = np.array([int(((top == k) | (labels == k)).sum()) for k in seen])
    assert row["iou"] == pytest.approx((both / either).mean())
    assert row["dice"] == pytest.approx((2 * both / (both + either)).mean())
    assert row["accuracy"] == pytest.approx(float((top == labels).double().mean()))
    assert row["nll"] == pytest.approx(float(metrics.negative_log_likelihood(rows, labels)), rel=1e-5)
    assert row["ece"] == pytest.approx(float(metrics.expected_calibration_error(rows, labels)), rel=1e-5)
    assert 0 <= row["auroc"] <= 1


@pytest.mark.parametrize("labels", [torch.eye(5)[Y], torch.eye(5)[Y].long()], ids=["floats", "whole"])
def test_rows_of_zeros_with_a_one_are_classes_not_numbers(labels: Tensor) -> None:
    plain = convolutions().eval()
    (row,), (wanted,) = vnd.evaluate(plain, [(X, labels)]), vnd.evaluate(plain, [(X, Y)])
    assert row["task"] == "classification"
    assert row["nll"] == wanted["nll"]


def test_one_logit_is_read_as_a_probability() -> None:
    plain, labels = convolutions(1).eval(), Y % 2
    probs = plain(X).detach().sigmoid()
    rows = torch.cat((1 - probs, probs), 1)
    for given, task in ((labels, None), (labels[:, None].float(), "classification"), (labels.bool(), None)):
        (row,) = vnd.evaluate(plain, [(X, given)], task=task)
        assert row["nll"] == pytest.approx(float(metrics.negative_log_likelihood(rows, labels)), rel=1e-5)


class Cosines(nn.Module):
    """An ordered code of one's own: the first coefficients of a base of cosines."""

    latent_dim = 8

    def __init__(self) -> None:
        super().__init__()
        places = torch.arange(16)
        waves = torch.stack([torch.cos(math.pi * (places + 0.5) * k / 16) for k in range(8)])
        self.base = nn.Parameter(waves / waves.norm(dim=1, keepdim=True))

    def encode(self, x: Tensor, length: Any = None) -> Tensor:
        code = x @ self.base.T
        if length == "posterior":
            return code * (torch.arange(8) < torch.where(x[:, :1] > 0, 2, 6))
        return code * (torch.arange(8) < length)

    def decode(self, codes: Tensor) -> Tensor:
        return codes @ self.base


def test_a_code_is_evaluated_at_its_lengths(tmp_path: Path) -> None:
    code, x = Cosines(), torch.randn(40, 16)
    rows = vnd.evaluate(code, [x[:30], (x[30:], Y[:10])], (0.25, 5, "posterior"))
    for row, length in zip(rows, (2, 5, "posterior"), strict=True):
        found = code.decode(code.encode(x, length)).detach()
        assert row["mse"] == pytest.approx(float((x - found).square().mean()), rel=1e-5)
        assert row["mse_low"] < row["mse"] < row["mse_high"]
    assert [row["length"] for row in rows[:2]] == [2, 5]
    assert rows[2]["length"] == pytest.approx(float(torch.where(x[:, 0] > 0, 2.0, 6.0).mean()), rel=1e-6)
    assert [row["label"] for row in vnd.evaluate(code, [x])] == ["1 of 8", "2 of 8", "4 of 8", "8 of 8"]
    assert "<svg" in vnd.report_page(rows, tmp_path / "code.html").read_text()


@pytest.fixture
def ranks() -> Iterator[None]:
    """A task of one's own, that has but what `vnd.evaluate` asks of it."""

    class Position(Scores):
        def __init__(self) -> None:
            self.places: list[Tensor] = []

        def add(self, prediction: Any, target: Tensor) -> None:
            order = prediction.probs.argsort(1, descending=True)
            self.places.append((order == target[:, None]).double().argmax(1))

        def row(self) -> dict[str, Any]:
            return {"rank": float(torch.cat(self.places).double().mean())}

    @register_task
    class Ranking(Task):
        name = "ranking"
        kind, noun = "a network that ranks", "ranker"
        columns = (
            {"key": "parameters", "heading": "Parameters", "form": "short"},
            {"key": "rank", "heading": "Mean rank", "better": "less", "title": "Ranks", "axis": "rank"},
        )

        def reads(self, output: Tensor, target: Tensor, dim: int | None = None) -> Reading | None:
            return Reading("softmax", 1) if target.dtype == torch.int16 else None

        def scores(self, reading: Reading, bins: int) -> Scores:
            return Position()

    yield
    del TASKS["ranking"]


def test_a_task_of_ones_own_takes_part(ranks: None, tmp_path: Path) -> None:
    rows = vnd.evaluate(nested(smooth()).eval(), [(X, Y.short())], (0.5, 1.0), task="ranking")
    assert all(0 <= row["rank"] <= 4 for row in rows)
    page = vnd.report_page(rows, tmp_path / "page.html").read_text()
    assert "Mean rank" in page


def test_a_page_is_one_file_of_rows_however_they_were_kept(tmp_path: Path) -> None:
    net = nested().eval()
    rows = vnd.evaluate(net, BATCHES, (0.25, 1.0), samples=(0, 2), ood={"far": [OTHER]}, recalibrate=[X])
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)

    class Frame:
        def to_dict(self, orient: str) -> list[dict[str, Any]]:
            return [{key: np.float64(x) if isinstance(x, float) else x for key, x in row.items()} for row in rows]

    pages = []
    for given in (rows, tmp_path / "rows.csv", Frame()):
        path = vnd.report_page({"mine": given, "plain": vnd.evaluate(convolutions(), BATCHES)[:1]}, tmp_path / "p.html")
        pages.append(path.read_text())
    assert all("<svg" in page and "src=" not in page and "AUROC, far" in page for page in pages)
    own = vnd.report_page([row for row in rows if not row["samples"]], tmp_path / "deep" / "one.html", title="A <b>")
    text = own.read_text()
    assert "A &lt;b&gt;" in text
    assert f"{100 * rows[0]['accuracy']:.1f} %" in text
    assert sorted(path.name for path in own.parent.iterdir()) == ["one.html"]


def evaluated(batches: Any = BATCHES, net: nn.Module | None = None, **given: Any) -> Callable[[], object]:
    return lambda: vnd.evaluate(net or convolutions().eval(), batches, **given)


def with_nan() -> nn.Module:
    plain = convolutions().eval()
    plain[-1].bias.data[0] = math.nan
    return plain


def read() -> Iterator[Any]:
    batches = iter(BATCHES)
    list(batches)
    return batches


ROW = {"task": "classification", "label": "100 %", "parameters": 5, "accuracy": 0.5}


def test_the_bytes_of_ordered_bits_are_those_that_are_kept() -> None:
    net = vnd.to_nested(smooth(), X[:2], rules={"*": vnd.Rule(granularity="bits", bits=4)})
    rows = vnd.evaluate(net, BATCHES, (0.25, 0.5, 1.0))
    weights, channels = 8 * 27 + 288 * 16 + 16 * 5, 8 + 16 + 5  # a scale and a bias for each channel
    assert [row["bytes"] for row in rows] == [weights * bits // 8 + 8 * channels for bits in (1, 2, 4)]


def test_a_network_masked_before_its_norms_wants_the_statistics_of_how_it_is_read_alone() -> None:
    net = vnd.to_nested(convolutions(), X[:2], num_groups=4, placement="before_norm")
    rows = vnd.evaluate(net, BATCHES, (0.25,), samples=2, recalibrate=[X])  # a warning is an error
    assert [row["recalibrated"] for row in rows] == [True]
    assert rows[0]["parameters"] == vnd.profile(net, 1.0).parameters


@table(
    {
        "labels out of range": (evaluated([(X, Y + 3)]), ("batch 0, 100 %: labels must lie in 0 … 4", "got 5")),
        "a negative label": (evaluated([(X, Y - 1)]), "labels must lie in 0 … 4, or be -100 to be left out; got -1"),
        "no label that counts": (evaluated([(X, Y * 0 - 100)]), "labels must not all be -100"),
        "a generator that was read": (evaluated(read()), "batches must hold at least one batch; got none"),
        "no batches": (evaluated([]), "evaluate: batches must hold at least one batch; got none"),
        "one tensor": (evaluated(X), "batches must be an iterable of batches; got a tensor of shape (40, 3, 8, 8)"),
        "a dict for batches": (evaluated({"x": X}), "evaluate: batches must be an iterable of batches; got a dict"),
        "no labels": (evaluated([X]), "batch 0: a batch must be (inputs, labels), labels last"),
        "labels of another number": (evaluated([(X, Y[:9])]), "as many labels as inputs; got 9 labels and 40 inputs"),
        "an empty batch": (
            evaluated([*BATCHES, (X[:0], Y[:0])]),
            "evaluate: batch 2 is empty; got a tensor of shape (0,",
        ),
        "outputs of nan": (evaluated(net=with_nan()), "batch 0, 100 %: the network's outputs must be finite; got NaN"),
        "inputs of nan": (evaluated([(X * math.nan, Y)]), "batch 0, 100 %: inputs must be finite; got NaN"),
        "inputs of another shape": (
            evaluated([(X, Y), (X.flatten(1), Y)]),
            ("evaluate: batch 1, 100 %: ", "got inputs of shape (40, 192), those of batch 0 were (40, 3, 8, 8)"),
        ),
        "other inputs of another shape": (
            evaluated(ood=[X[:, :1]]),
            (
                "evaluate: ood, batch 0, 100 %: ",
                "got inputs of shape (40, 1, 8, 8), those of batch 0 were (24, 3, 8, 8)",
            ),
        ),
        "nothing out of domain": (evaluated(ood={"far": []}), "ood far must hold at least one batch; got none"),
        "other sets without names": (evaluated(ood={}), "ood must be batches, or a dict of sets by name; got a dict"),
        "one other tensor": (evaluated(ood=X), "evaluate: ood must be an iterable of batches; got a tensor"),
        "numbers without samples": (
            evaluated([(X, X[:, 0, 0, :5])], ood=[X]),
            "ood: outputs of a network of this task have no uncertainty without samples of the weights; give samples",
        ),
        "no bins": (evaluated(bins=0), "evaluate: bins must be a whole number of at least 1; got 0"),
        "samples": (
            evaluated(samples=-1),
            "evaluate: samples must be whole numbers of 0 (posterior means) or more; got -1",
        ),
        "samples a float": (evaluated(samples=(0, 1.5)), "samples must be whole numbers"),
        "widths of a plain network": (evaluated(widths=(0.5,)), "Sequential is not a nested network; make it one with"),
        "no widths": (evaluated(net=nested(), widths=[]), "evaluate: widths must name at least one width; got none"),
        "a width too wide": (evaluated(net=nested(), widths=[1.5]), "shape: fraction must lie in (0, 1]; got 1.5"),
        "a width in words": (
            evaluated(net=nested(), widths="half"),
            "width must be a Shape, a float fraction in (0, 1]",
        ),
        "no network": (evaluated(net="net"), "net must be an nn.Module; got a str"),  # type: ignore[arg-type]
        "an unknown task": (evaluated(task="classify"), "evaluate: task must be one of "),
        "a task that is none": (evaluated(task=3), "task must be the name of one, a Task or None; got a int"),
        "labels of no task": (
            evaluated([(X, Y[:, None].float() + X[:, 0, 0, :2])]),
            "labels must fit the outputs of a task",
        ),
        "labels of another task": (evaluated(task="segmentation"), "labels must fit the outputs of segmentation; got"),
        "labels of two tasks": (
            evaluated([(X, Y[:, None] % 2.0)], net=convolutions(1)),
            "task must be given where several fit, 'classification' or 'regression'; got outputs of shape (40, 1) and",
        ),
        "shares of classes": (
            evaluated([(X, torch.eye(5)[Y].long()), (X, 2 * torch.eye(5)[Y].long())]),
            "batch 1, 100 %: labels must be whole numbers, or rows of zeros with a one; got shares or several classes",
        ),
        "shares of two classes": (
            evaluated([(X, Y % 2.0), (X, Y / 10)], net=convolutions(1), task="classification"),
            "batch 1, 100 %: labels must be whole numbers; got shares of classes",
        ),
        "shares of classes, or numbers": (
            evaluated([(X, torch.rand(len(X), 5).softmax(1))]),
            "task must be given where several fit, 'classification' or 'regression'; got outputs of shape (40, 5) and",
        ),
        "several classes each": (
            evaluated([(X, (torch.arange(5) <= Y[:, None]).float())]),
            "task must be given where several fit, 'classification' or 'regression'; got outputs of shape (40, 5) and",
        ),
        "classes by another link": (
            evaluated(link="identity"),
            "link must give what labels of classification are held against, by 'softmax' for outputs of shape (24, 5); "
            "got 'identity'",
        ),
        "a length that there is not": (
            evaluated([X], Cosines(), widths=(9,)),
            "lengths in 1 … 8, or 'posterior'; got 9",
        ),
        "a code beside others": (
            evaluated([X], Cosines(), ood=[X]),
            "takes widths alone; got samples, ood or recalibrate",
        ),
        "a code of nan": (
            evaluated([X[:, 0, 0] * math.nan], Cosines()),
            "must be inputs, finite, or begin with them; got",
        ),
        "a page of nothing": (
            lambda: vnd.report_page([], "a.html"),
            "report_page: rows must be a list of dicts, one or",
        ),
        "a page of no networks": (
            lambda: vnd.report_page({}, "a.html"),
            "rows must be of one network or more; got none",
        ),
        "a page of words": (lambda: vnd.report_page(["a"], "a.html"), "rows must be a list of dicts"),
        "a page of no file": (
            lambda: vnd.report_page("rows.csv", "a.html"),
            "the path of a .csv that is there; got rows.csv",
        ),
        "a page in a folder": (
            lambda: vnd.report_page([ROW], "folder"),
            "path must be a file that ends in .html; got folder",
        ),
        "rows of no task": (
            lambda: vnd.report_page([{"label": "a"}], "a.html"),
            "rows must have a task, the same in each",
        ),
        "rows of two tasks": (
            lambda: vnd.report_page({"a": [ROW], "b": [{**ROW, "task": "regression"}]}, "a.html"),
            "have no measure in common",
        ),
        "rows without a size": (
            lambda: vnd.report_page({"mine": [{"task": "classification", "label": "a"}]}, "a.html"),
            "report_page: rows of mine must each have parameters",
        ),
        "an accuracy of 150 %": (
            lambda: vnd.report_page([{**ROW, "accuracy": 150}], "a.html"),
            "rows.0.accuracy must be a number in 0 … 1; got 150",
        ),
    }
)
def test_bad_input_is_refused_in_one_line(call: Callable[[], object], words: str) -> None:
    refused(call, words)
