"""Selective prediction: the threshold is the best that validation data allows, and accepting keeps to it."""

import importlib
import math
import re
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from structures import make
from torch import Tensor, nn

import vnd
from vnd.nn.predict import Prediction

module = importlib.import_module("vnd.nn.selective")  # its function has its name
selective, Selective = module.selective, module.Selective
PAGE = Path(__file__).parents[2] / "docs" / "trust.md"


def ready(rows: int = 200, **options: Any) -> tuple[nn.Module, Tensor, Tensor]:
    """A nested network, inputs, and labels that it gets right the more often the surer it is."""
    _, net, example = make("flatten", log_alpha_init=-1.0, **options)
    x = torch.randn(rows, *example.shape[1:], dtype=example.dtype)
    for samples in (False, True):
        vnd.recalibrate(net, [x], widths=(0.5, 1.0), samples=samples)
    right = vnd.predict(net, x, width=0.5, samples=0)
    sure = torch.rand(rows) < 0.4 + 0.7 * right.probs.amax(1)
    return net, x, torch.where(sure, right.probs.argmax(1), (right.probs.argmax(1) + 1) % 3)


def best_coverage(uncertainty: Tensor, wrong: Tensor, risk: float) -> float:
    """The largest share that can be accepted, by trying every threshold."""
    shares = [0.0]
    for threshold in uncertainty:
        accepted = uncertainty <= threshold
        if float(wrong[accepted].double().mean()) <= risk:
            shares.append(float(accepted.double().mean()))
    return max(shares)


@pytest.mark.parametrize("score", ["entropy", "confidence"])
@pytest.mark.parametrize("risk", [0.1, 0.15, 0.2])
def test_the_threshold_accepts_the_most_that_the_risk_allows(score, risk):
    net, x, y = ready()
    fit = selective(net, x, y, risk=risk, width=0.5, samples=0, score=score)
    answer = vnd.predict(net, x, width=0.5, samples=0)
    uncertainty = answer.entropy if score == "entropy" else 1 - answer.probs.amax(1)
    wrong = answer.probs.argmax(1) != y
    accepted = fit.accept(answer)
    assert accepted.dtype == torch.bool
    assert 0.05 < fit.coverage < 0.95, "the example must accept some and refuse some"
    assert fit.coverage == float(accepted.double().mean()) == best_coverage(uncertainty, wrong, risk)
    assert fit.risk == float(wrong[accepted].double().mean()) <= risk
    assert torch.equal(accepted, uncertainty <= fit.threshold)
    assert (fit.score, fit.samples) == (score, 1)


def test_batches_are_the_whole_set_and_a_seed_repeats_the_draws():
    net, x, y = ready()
    whole = selective(net, x, y, risk=0.2, width=0.5, samples=0)
    parts = selective(net, zip(x.split(70), y.split(70), strict=True), risk=0.2, width=0.5, samples=0)
    assert parts.coverage == whole.coverage
    assert parts.risk == whole.risk
    assert abs(parts.threshold - whole.threshold) <= 1e-10
    drawn = [selective(net, x, y, risk=0.2, width=0.5, samples=3, score="mutual_information", seed=4) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].samples == 3
    answer = vnd.predict(net, x, width=0.5, samples=3, seed=4)
    assert torch.equal(drawn[0].accept(answer), answer.mutual_information <= drawn[0].threshold)
    assert float(drawn[0].accept(answer).double().mean()) == drawn[0].coverage


def test_what_cannot_be_reached_accepts_nothing():
    net, x, _ = ready(40)
    wrong = (vnd.predict(net, x, width=0.5, samples=0).probs.argmax(1) + 1) % 3
    fit = selective(net, x, wrong, risk=0.05, width=0.5, samples=0)
    assert fit.threshold == -math.inf
    assert fit.coverage == 0
    assert fit.risk is None
    assert not fit.accept(vnd.predict(net, x, width=0.5, samples=0)).any()
    right = (wrong + 2) % 3
    fit = selective(net, x, right, risk=0.0, width=0.5, samples=0)
    assert (fit.coverage, fit.risk) == (1.0, 0.0)


def test_confidence_is_asked_of_the_metric_and_accepts_no_more():
    net, x, y = ready()
    plain, bounded = (selective(net, x, y, risk=0.2, width=0.5, samples=0, confidence=c) for c in (None, 0.95))
    assert bounded.threshold < plain.threshold
    assert bounded.coverage < plain.coverage


def test_an_uncertainty_that_is_not_a_number_is_not_accepted():
    nothing = torch.tensor([math.nan, 0.1])
    answer = Prediction(torch.full((2, 2), 0.5), nothing, nothing, nothing, 1)
    assert Selective(math.inf, 1.0, 0.0, "entropy", 1).accept(answer).tolist() == [False, True]


def test_predictions_of_another_kind_are_refused():
    net, x, y = ready(20)
    fit = selective(net, x, y, width=0.5, samples=2)
    with pytest.raises(ValueError, match="for predictions of 2 samples; got one of 1"):
        fit.accept(vnd.predict(net, x, width=0.5, samples=0))
    with pytest.raises(ValueError, match=r"accept: prediction must be what .* gives; got a Tensor"):
        fit.accept(y)
    with pytest.raises(ValueError, match=r"accept: .* link 'softmax'; got \(20, 3\)"):
        fit.accept(vnd.predict(net, x, width=0.5, samples=2, link="identity"))


def test_of_a_batch_of_several_the_last_are_the_labels():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(2, 8), nn.Linear(3, 8), nn.Linear(16, 3)

        def forward(self, x, y):
            return {"logits": self.head(torch.cat((self.a(x), self.b(y)), -1)), "hidden": x}

    x, y, labels = torch.randn(40, 2), torch.randn(40, 3), torch.randint(3, (40,))
    net = vnd.to_nested(Two(), (x, y), num_groups=4).eval()
    wanted = selective(net, (x, y), labels, risk=0.6, width=0.5, samples=0)
    for batches in ([(x, y, labels)], [[x, y, labels]], [((x, y), labels)], [([x, y], labels)]):
        assert selective(net, batches, risk=0.6, width=0.5, samples=0) == wanted


def test_the_page_runs(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), PAGE.name, "exec"), {"__name__": "page"})
    assert capsys.readouterr().out


def test_inputs_by_name_or_position_and_outputs_of_many_give_the_same_threshold():
    net, x, y = ready()
    wanted = selective(net, x, y, risk=0.2, width=0.5, samples=0)
    assert 0.05 < wanted.coverage < 0.95
    for inputs in ((x,), {"input": x}):
        assert selective(net, inputs, y, risk=0.2, width=0.5, samples=0) == wanted
    for inputs in (x, (x,), [x], {"input": x}):
        assert selective(net, [(inputs, y)], risk=0.2, width=0.5, samples=0) == wanted
    unknown = {"name": ["a"] * len(y)}  # as a data loader gives, and `forward` does not take
    for batch in ({"input": x, "labels": y}, {"label": y, "input": x} | unknown, UserDict(input=x, labels=y)):
        assert selective(net, [batch], risk=0.2, width=0.5, samples=0) == wanted
    net.register_forward_hook(lambda module, args, out: (-out, out))
    assert selective(net, x, y, risk=0.2, width=0.5, samples=0, output=1, dim=-1) == wanted
    with pytest.raises(ValueError, match="pass output=, one of 0, 1"):
        selective(net, x, y, samples=0)
    with pytest.raises(ValueError, match="selective: y must be a tensor of classes"):
        selective(net, {"input": x})
