"""What the functions on nested networks refuse: bad networks, inputs and options, each in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_predict import Wrapped
from torch import nn

import vnd
from refusals import refused, table

torch.manual_seed(0)
PLAIN = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
X = torch.randn(4, 1, 8, 8)
NET = vnd.to_nested(PLAIN, X[:2], num_groups=4).eval()
NETWORKS: dict[str, Callable[[Any], Any]] = {
    "predict": lambda net: vnd.predict(net, X),
    "kl": vnd.kl,
    "describe": vnd.describe,
    "extract": vnd.extract,
    "set_width": lambda net: vnd.set_width(net, 0.5),
    "shape": lambda net: vnd.shape(net, fraction=0.5),
    "recalibrate": lambda net: vnd.recalibrate(net, [X]),
    "profile": vnd.profile,
    "parameter_groups": lambda net: vnd.parameter_groups(net, lr=0.1),
    "set_temperature": lambda net: vnd.set_temperature(net, 0.1),
    "save": lambda net: vnd.save(net, "folder"),
}


@table({f"{name} of a {kind}": (lambda f=f, net=net: f(net), f"net must be an nn.Module; got a {kind}")
        for name, f in NETWORKS.items() for kind, net in (("str", "net"), ("NoneType", None))})  # fmt: skip
def test_what_is_no_network_is_refused(call: Callable[[], Any], words: str) -> None:
    refused(call, words)


def bits(rule: dict[str, Any], **options: Any) -> Callable[[], Any]:
    rules = {"*": vnd.Rule(**{"granularity": "bits", **rule})}
    return lambda: vnd.to_nested(PLAIN, X[:2], num_groups=4, rules=rules, **options)


class Tied(nn.Module):
    """Uses a weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.again = nn.Linear(4, 4), nn.Linear(4, 4)
        self.again.weight = self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(torch.relu(self.layer(x)))


def predict(**options: Any) -> Callable[[], Any]:
    return lambda: vnd.predict(NET, **{"x": X, **options})


@table(
    {
        "one class": (
            predict(output=lambda out: out[:, :1]),
            "the output must have two or more classes; got one of shape (4, 1): give link='sigmoid'",
        ),
        "an unknown link": (
            predict(link="probit"),
            "predict: link must be one of 'softmax', 'dirichlet', 'sigmoid', 'identity'; got 'probit'",
        ),
        "a list": (predict(x=[X]), "predict: x must be a tensor, a tuple of arguments or a dict"),
        "samples -1": (
            predict(samples=-1),
            "predict: samples must be a whole number, 0 (posterior means) or more; got -1",
        ),
        "a width of 2": (predict(width=2), "ambiguous"),
        "a width of a plain network": (
            lambda: vnd.predict(PLAIN, X, width=0.5),
            "Sequential is not a nested network; make it one with vnd.to_nested first",
        ),
        "a word for a model": (lambda: vnd.to_nested("vgg", X), "to_nested: model must be an nn.Module; got 'vgg'"),
        "samples for statistics in words": (
            lambda: vnd.recalibrate(NET, [X], samples="all"),
            "recalibrate: samples must be True, False or 'both'; got 'all'",
        ),
        "a number of samples for statistics": (
            lambda: vnd.recalibrate(NET, [X], samples=6),
            "recalibrate: samples must be True, False or 'both'; got 6",
        ),
        "one tensor for batches": (
            lambda: vnd.recalibrate(NET, X),
            "recalibrate: batches must be an iterable of batches; got one tensor, give it in a list",
        ),
        "no width": (
            lambda: vnd.recalibrate(NET, [X], widths=()),
            "recalibrate: widths must name at least one width; got none",
        ),
        "a number of samples of a width": (
            lambda: vnd.set_width(NET, 0.5, samples=6),
            "width: samples must be True or False; got 6",
        ),
        "no samples of no width": (
            lambda: vnd.set_width(NET, None, samples=None),
            "width: samples must be True or False; got None",
        ),
        "samples True": (predict(samples=True), "predict: samples must be a whole number, 0 (posterior means) or more"),
        "samples 1.5": (predict(samples=1.5), "predict: samples must be a whole number"),
        "rows 1.5": (predict(rows=1.5), "predict: rows must be at least 1, a whole number, or None; got 1.5"),
        "rows nan": (predict(rows=math.nan), "predict: rows must be at least 1, a whole number, or None; got nan"),
        "rows True": (predict(rows=True), "predict: rows must be at least 1, a whole number, or None; got True"),
        "rows 0": (predict(rows=0), "predict: rows must be at least 1"),
        "seed 1.5": (predict(seed=1.5), "predict: seed must be a whole number of 64 bits, or None; got 1.5"),
        "seed of 70 bits": (predict(seed=2**70), "predict: seed must be a whole number of 64 bits"),
        "sparse": (predict(x=X.to_sparse()), "predict: x must be dense, to be taken apart by examples; got layout"),
        "a width of True": (predict(width=True), "ambiguous"),
        "no batches": (
            lambda: vnd.recalibrate(NET, None),
            "recalibrate: batches must be an iterable of batches; got a None",
        ),
        "a width for statistics of 2": (lambda: vnd.recalibrate(NET, [X], widths=2), "ambiguous"),
        "a plain network without an example": (
            lambda: vnd.profile(PLAIN),
            "example_input must be an input of the Sequential to run it on",
        ),
        "a plain network at a width": (lambda: vnd.profile(PLAIN, 0.5, X), "Sequential is not a nested network"),
        "a budget in words": (
            lambda: vnd.shape(NET, parameters="few"),
            "shape: parameters must be a number; got 'few'",
        ),
        "a budget of True": (lambda: vnd.shape(NET, macs=True), "shape: macs must be a number; got True"),
        "a negative rate": (
            lambda: vnd.parameter_groups(NET, lr=-1),
            "parameter_groups: lr must be finite and at least 0",
        ),
        "a rate of nan": (
            lambda: vnd.parameter_groups(NET, lr=0.1, chain_lr=math.nan),
            "parameter_groups: chain_lr must be finite and at least 0; got nan",
        ),
        "an endless decay": (
            lambda: vnd.parameter_groups(NET, lr=0.1, weight_decay=math.inf),
            "parameter_groups: weight_decay must be finite and at least 0; got inf",
        ),
        "a temperature in words": (
            lambda: vnd.set_temperature(NET, "warm"),
            "set_temperature: temperature must be finite",
        ),
        "no bits": (bits({"bits": 0}), "to_nested: bits must be a whole number in 1 … 16; got 0 for 0"),
        "17 bits": (bits({"bits": 17}), "to_nested: bits must be a whole number in 1 … 16; got 17"),
        "2.5 bits": (bits({"bits": 2.5}), "to_nested: bits must be a whole number in 1 … 16; got 2.5"),
        "bits True": (bits({"bits": True}), "to_nested: bits must be a whole number in 1 … 16; got True"),
        "bits of weights without a sign": (bits({"base": 0}), "to_nested: base must be at least 1 for the bits of 0"),
        "bits of channels": (
            bits({"granularity": None, "bits": 4}),
            "to_nested: bits of 0 need granularity='bits'; got 'output' and 4",
        ),
        "bits of a posterior": (bits({"bayesian": True}), "orders bits, of point weights; got bayesian=True"),
        "bits for each example": (bits({}, per_example=True), "granularity 'bits' needs one mask a batch"),
        "bits of a shared weight": (
            lambda: vnd.to_nested(Tied(), X[0, 0, :4, :4], rules={"layer": vnd.Rule(granularity="bits")}),
            "granularity must be 'output' for layer, whose weight is used elsewhere, too",
        ),
        "a nested network of fewer bits": (
            lambda: vnd.extract(bits({})(), 0.5, keep="nested"),
            "keep='nested' has no form where input rows or single weights or bits are ordered",
        ),
        "bits of a layer with a posterior": (
            lambda: vnd.BayesLinear(2, 3).set_weight_bits(lambda: torch.ones(8)),
            "BayesLinear: ordered bits need bayesian = False; got True",
        ),
        "no folder": (lambda: vnd.load(None), "load: folder must be a path; got a NoneType"),
        "a number for a folder": (lambda: vnd.save(NET, 3), "save: folder must be a path; got a int"),
    }
)
def test_bad_options_are_refused(call: Callable[[], Any], words: str) -> None:
    refused(call, words)


def cascade(**options: Any) -> Callable[[], Any]:
    return lambda: vnd.cascade(**{"net": NET, "x": X, "widths": (0.25, 0.5, 1.0), "threshold": 0.5, **options})


def selective(**options: Any) -> Callable[[], Any]:
    return lambda: vnd.selective(**{"net": NET, "x": X, "y": torch.arange(4) % 3, "samples": 0, **options})


def unit(**options: Any) -> Callable[[], Any]:
    return lambda: vnd.OrderingUnit(**{"channels": 8, "num_groups": 4, **options})


SCORES = "score must be 'entropy', 'mutual_information' or 'confidence'; got 'margin'"
NETS = "cascade: net must be a nested network or a list of networks; got a"


@table(
    {
        "widths that fall": (
            cascade(widths=(1.0, 0.5)), ("cascade: widths must grow; step 1 costs", "step 0 before it"),
        ),
        "a width twice": (cascade(widths=(0.5, 0.5)), "cascade: widths must grow"),
        "two fractions of one shape": (cascade(widths=(0.26, 0.5)), "cascade: widths must grow"),
        "no widths": (cascade(widths=()), "cascade: widths must be a list of one width or more; got a tuple of ()"),
        "one width": (cascade(widths=0.5), "cascade: widths must be a list of one width or more; got 0.5"),
        "a width of 2 in a cascade": (cascade(widths=(0.5, 2)), "ambiguous"),
        "a threshold of nan": (
            cascade(threshold=math.nan), "cascade: threshold must be a number, infinity too; got nan",
        ),
        "a threshold in words": (
            cascade(threshold="0.5"), "cascade: threshold must be a number, infinity too; got '0.5'",
        ),
        "too few thresholds": (
            cascade(threshold=[0.5]), "cascade: threshold must be one number, or 2, one a step but the last; got 1",
        ),
        "a score of a cascade": (cascade(score="margin"), f"cascade: {SCORES}"),
        "a score without samples": (
            cascade(score="mutual_information"), "cascade: score 'mutual_information' needs 2 samples or more",
        ),
        "samples of a cascade": (cascade(samples=-1), "samples must be a whole number"),
        "too few macs": (cascade(macs=[1, 2]), "cascade: macs must be 3 numbers, one a step; got 2"),
        "macs that do not grow": (
            cascade(macs=[1, 3, 3]),
            ("cascade: widths must grow; step 2 costs 3 multiply-accumulates an example, step 1", " 3"),
        ),
        "no examples": (cascade(x=X[:0]), "cascade: x must hold at least one example; got shape (0, 1, 8, 8)"),
        "a list for x": (
            cascade(x=[1.0]), ("cascade: x must be a tensor, a tuple of arguments or a dict", "; got a list"),
        ),
        "a plain network in a cascade": (cascade(net=PLAIN), "Sequential is not a nested network"),
        "a word for a network": (cascade(net="net"), f"{NETS} str"),
        "no networks": (cascade(net=[]), f"{NETS} list of none"),
        "networks and widths": (cascade(net=[PLAIN]), "cascade: leave out widths where net is a list of networks"),
        "a score of selective": (selective(score="margin"), f"selective: {SCORES}"),
        "a score of selective without samples": (
            selective(score="mutual_information"), "selective: score 'mutual_information' needs 2 samples or more",
        ),
        "no labels": (
            selective(y=None), "selective: y must be a tensor of classes, one for each row of x; got a NoneType",
        ),
        "batches and labels": (selective(x=[]), "selective: y must be None where x is batches"),
        "no batches": (selective(x=[], y=None), "selective: x must hold at least one batch; got none"),
        "a batch without labels": (
            selective(x=[X], y=None),
            'selective: a batch must be (inputs, labels), labels last, or a dict with "labels"; got a tensor',
        ),
        "too few labels": (selective(y=torch.zeros(3).long()), "as many labels as inputs; got 3 labels and 4 inputs"),
        "a label of no class": (selective(y=torch.full((4,), 7)), "labels must lie in 0 … 2; got 7"),
        "a risk above 1": (selective(risk=1.5), "risk"),
        "a confidence of 2": (selective(confidence=2.0), "confidence"),
        "a width of 2 of selective": (selective(width=2), "ambiguous"),
        "no channels": (unit(channels=0), ("channels", "0")),
        "more groups than channels": (unit(num_groups=9), ("num_groups", "9")),
        "no groups": (unit(num_groups=0), ("num_groups", "0")),
        "a base above the groups": (unit(base=5), ("base", "5")),
        "a base below 0": (unit(base=-1), ("base", "-1")),
        "tiles that do not fit": (unit(num_groups=2, tiles=3), ("tiles", "3")),
        "no temperature": (unit(temperature=0.0), ("temperature", "0.0")),
        "a temperature of nan": (unit(temperature=math.nan), ("temperature", "nan")),
        "no finite temperature": (unit(temperature=math.inf), ("temperature", "inf")),
        "a prior of no length": (unit(prior=1.0), ("prior", "1.0")),
        "a prior of another length": (unit(prior=vnd.BernoulliChain.uniform(4)), ("prior", "(4,)")),
        "a gradient": (unit(gradient="magic"), ("gradient", "magic")),
        "a sampler": (unit(sampler="magic"), ("sampler", "magic")),
        "soft and by survival": (unit(hard=False, gradient="survival"), ("hard", "survival")),
    }
)  # fmt: skip
def test_bad_arguments_are_refused(call: Callable[[], Any], words: str | tuple[str, ...]) -> None:
    refused(call, words)


def formed(form: Callable[[torch.Tensor], Any], output: Any = None, **options: Any) -> Callable[[], Any]:
    return lambda: vnd.predict(Wrapped(form), **{"x": torch.randn(5, 4).double(), "output": output, **options})


def same(z: torch.Tensor) -> torch.Tensor:
    return z


@table(
    {
        "a dict": (
            formed(lambda z: {"a": z, "b": z}), "predict: the network gives a dict; pass output=, one of 'a', 'b'",
        ),
        "a tuple": (formed(lambda z: (z, z)), "predict: the network gives a tuple; pass output=, one of 0, 1"),
        "no key": (
            formed(lambda z: {"a": z}, "c"), "predict: output 'c' is no tensor of the network's dict; it has 'a'",
        ),
        "a word at an index": (
            formed(lambda z: (z, "x"), 1), "predict: output 1 is no tensor of the network's tuple; it has 0",
        ),
        "no index": (formed(lambda z: (z,), 3), "predict: output 3 is no tensor of the network's tuple; it has 0"),
        "words": (formed(lambda z: "words"), "predict: the network gives a str; pass output=, one of no tensor"),
        "a function of no tensor": (
            formed(same, lambda out: 3), "predict: output must pick a tensor; its function gave 3",
        ),
        "no output": (formed(same, 1.5), "predict: output must be a key or attribute, an index or a function"),
        "too few rows": (
            formed(lambda z: z[:2]), ("predict: ", "must have a row for each example, 5; got one of shape (2, 3)"),
        ),
        "no classes": (
            formed(lambda z: z[:, 0]), ("predict: ", "must have a dimension of classes; got one of shape (5,)"),
        ),
        "a list of inputs": (
            formed(same, x=[X]),
            "predict: x must be a tensor, a tuple of arguments or a dict of keyword arguments; got a list",
        ),
        "a word for an input": (formed(same, x="x"), ("predict: x must be a tensor, a tuple ", "; got a str")),
        "a number for an input": (
            formed(same, x=torch.tensor(1.0)),
            "predict: x must hold a tensor with examples along dimension 0; got a tensor of shape ()",
        ),
        "no input": (formed(same, x=()), "predict: x must hold a tensor with examples"),
        "a dict of no tensor": (
            formed(same, x={"input": 3}), ("predict: x must hold a tensor with examples", " the keys 'input'"),
        ),
        "a dict without words": (
            formed(same, x={1: X}), "predict: x must name its arguments by words; got the keys [1]",
        ),
        "classes along the examples": (
            formed(same, dim=0),
            "predict: dim must be a dimension of the output (5, 3) other than 0, its examples; got 0",
        ),
        "no such dimension": (formed(same, dim=2), "predict: dim must be a dimension of the output"),
        "half a dimension": (formed(same, dim=1.0), "predict: dim must be a whole number or None; got 1.0"),
    }
)  # fmt: skip
def test_what_predict_does_not_understand_is_refused(call: Callable[[], Any], words: str | tuple[str, ...]) -> None:
    refused(call, words)


LIKE = "predict: x must be torch.float32 of shape (batch, 1, 8, 8), as the example of the conversion was; got "


@table(
    {
        "dtype": (predict(x=X.double()), LIKE + "torch.float64 of shape (4, 1, 8, 8): "),
        "bytes": (predict(x=X.byte()), LIKE + "torch.uint8 of shape (4, 1, 8, 8): "),
        "channels": (predict(x=X.expand(4, 3, 8, 8), samples=0), LIKE + "torch.float32 of shape (4, 3, 8, 8): "),
        "size": (predict(x=X[:, :, :5]), LIKE + "torch.float32 of shape (4, 1, 5, 8): "),
        "dtype of a plain network": (
            lambda: vnd.predict(PLAIN, X.double()),
            "predict: x must be of torch.float32, as the network's parameters are; got torch.float64",
        ),
    }
)
def test_an_input_that_the_network_cannot_run_on_is_named_beside_torch_s_own_words(
    call: Callable[[], Any], words: str
) -> None:
    refused(call, words, RuntimeError)


def test_an_input_without_channels_is_named_too() -> None:
    refused(predict(x=X[:, 0]), LIKE + "torch.float32 of shape (4, 8, 8): ")


def test_an_error_of_an_input_as_in_the_example_is_the_network_s_own() -> None:
    class Broken(nn.Sequential):
        broken = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.broken:
                raise RuntimeError("of the network")
            return super().forward(x)

    net = vnd.to_nested(Broken(*PLAIN), X[:2], num_groups=4)
    net.broken = True
    with pytest.raises(RuntimeError, match=r"^of the network$"):
        vnd.predict(net, X)


def test_the_whole_number_one_is_all_of_the_network() -> None:
    full = vnd.shape(NET, fraction=1.0)
    vnd.recalibrate(NET, [X], widths=1)
    for width in (1, 1.0, full):
        assert vnd.profile(NET, width) == vnd.profile(NET, full)
        assert torch.equal(vnd.predict(NET, X, width=width, samples=0).probs, vnd.predict(NET, X, samples=0).probs)
    with vnd.width(NET, 1), torch.no_grad():
        assert torch.equal(NET(X), vnd.extract(NET, 1)(X))


def test_a_plain_network_has_the_profile_of_its_one_width() -> None:
    size = vnd.profile(PLAIN, example_input=X)
    assert (size.parameters, size.macs) == (8 * 9 + 8 + 288 * 3 + 3, 8 * 9 * 36 + 288 * 3)
    assert vnd.profile(PLAIN, count_macs=False).parameters == size.parameters
    assert vnd.profile(NET, 1) == size


TWO, Y = torch.zeros(2, 3), torch.tensor([0, 1, 2, 0])


@table(
    {
        "groups in words": (
            lambda: vnd.to_nested(PLAIN, X, num_groups="four"),  # type: ignore[arg-type]
            "to_nested: num_groups must be a whole number; got 'four'",
        ),
        "a link that there is not": (
            lambda: vnd.to_nested(PLAIN, X, link="logit"),  # type: ignore[arg-type]
            "to_nested: link must be 'softmax' or 'dirichlet' or 'sigmoid' or 'identity'; got 'logit'",
        ),
        "a base that is half": (
            lambda: vnd.to_nested(PLAIN, X, num_groups=4, base=0.5),  # type: ignore[arg-type]
            "to_nested: base must be a whole number; got 0.5",
        ),
        "a tensor for a switch": (
            lambda: vnd.to_nested(PLAIN, X, bayesian=TWO),  # type: ignore[arg-type]
            "to_nested: bayesian must be True or False; got a tensor of shape (2, 3)",
        ),
        "a tensor for a model": (
            lambda: vnd.to_nested(TWO, X),
            "model must be an nn.Module; got a tensor of shape (2, 3)",
        ),  # type: ignore[arg-type]
        "a tensor for a width": (
            lambda: vnd.set_width(NET, TWO),  # type: ignore[arg-type]
            "a float fraction in (0, 1] or None; got a tensor of shape (2, 3), which is ambiguous",
        ),
        "an example of words": (
            lambda: vnd.profile(NET, 0.5, "image"),
            "example_input must be a tensor, a tuple of arguments or a dict of them; got 'image'",
        ),
        "an example of another shape": (
            lambda: vnd.profile(NET, 0.5, TWO),
            "example_input must be what the network reads; got a tensor of shape (2, 3): RuntimeError: ",
        ),
        "a time on another shape": (
            lambda: vnd.shape(NET, latency_ms=9, example_input=TWO),
            "example_input must be what the network reads; got a tensor of shape (2, 3): RuntimeError: ",
        ),
        "a shape of a number": (lambda: vnd.Shape(3), "Shape: groups must map units to whole numbers; got a int"),  # type: ignore[arg-type]
        "a unit of words": (
            lambda: vnd.OrderingUnit("8"),  # type: ignore[arg-type]
            "OrderingUnit: channels, num_groups and base must be whole numbers; got (a str, ",
        ),
        "a temperature of none": (
            lambda: vnd.OrderingUnit(8, num_groups=4, temperature=None),  # type: ignore[arg-type]
            "OrderingUnit: temperature must be a number; got a NoneType",
        ),
        "temperatures": (
            lambda: vnd.set_temperature(NET, TWO),  # type: ignore[arg-type]
            "set_temperature: temperature must be finite and greater than 0; got a tensor of shape (2, 3)",
        ),
        "a loss for a function": (
            lambda: vnd.step_order(NET, TWO.sum()),  # type: ignore[arg-type]
            "step_order: loss_fn must be a function without arguments; got a Tensor",
        ),
        "no function of a loss": (
            lambda: vnd.taylor_order(PLAIN, [X], None),  # type: ignore[arg-type]
            "taylor_order: loss_fn must be a function of (model, batch); got a NoneType",
        ),
        "a seed in words": (
            lambda: vnd.selective(NET, X, Y, seed="one"),  # type: ignore[arg-type]
            "selective: seed must be a whole number of 64 bits, or None; got 'one'",
        ),
        "a cost for costs": (
            lambda: vnd.cascade(NET, X, (0.5, 1.0), threshold=0.1, macs=3),  # type: ignore[arg-type]
            "cascade: macs must be 2 numbers, one a step; got 3",
        ),
        "costs in words": (
            lambda: vnd.cascade(NET, X, (0.5, 1.0), threshold=0.1, macs=["few", "many"]),  # type: ignore[list-item]
            "cascade: macs must be numbers, one a step; got a list of ('few', 'many')",
        ),
        "a cascade on another shape": (
            lambda: vnd.cascade(NET, TWO, (0.5, 1.0), threshold=0.1),
            "example_input must be what the network reads; got a tensor of shape (1, 3)",
        ),
    }
)
def test_what_met_an_error_of_python_or_torch_is_refused(call: Callable[[], Any], words: str) -> None:
    refused(call, words)
