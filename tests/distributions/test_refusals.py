"""Bad input is refused with a ValueError of one line that names the argument and the value."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import kl_divergence

from refusals import Refusals, refused, table
from vnd.distributions import (
    BernoulliChain,
    Downhill,
    LogUniform,
    MultiplicativeNormal,
    OrderedNormal,
    coupled_entropy,
)
from vnd.functional import log_uniform_kl

zeros, ones = torch.zeros, torch.ones
NAN = torch.tensor([0.0, math.nan])


FORMS = ("form must be one of vnd, exact, molchanov, kingma; got 'exakt'",)


def code(**changes):
    return OrderedNormal(**{"loc": zeros(3), "scale": ones(3), "keep_logits": zeros(2), "temperature": 1.0, **changes})


CASES: Refusals = {
    "chain-nan-batched": (lambda: BernoulliChain(NAN.expand(3, 2)), ("keep_logits", "nan", "index (0, 1)")),
    "chain-scalar": (lambda: BernoulliChain(torch.tensor(0.5)), ("keep_logits", "shape ()")),
    "chain-int": (lambda: BernoulliChain(torch.tensor([1, 2])), ("keep_logits", "torch.int64")),
    "chain-list": (lambda: BernoulliChain([0.5, 0.5]), ("keep_logits", "[0.5, 0.5]")),
    "chain-both": (lambda: BernoulliChain(zeros(2), keep_probs=zeros(2)), ("keep_logits", "keep_probs")),
    "chain-neither": (lambda: BernoulliChain(), ("keep_logits", "keep_probs")),
    "chain-probs-above-one": (
        lambda: BernoulliChain(keep_probs=torch.tensor([0.5, 1.5])),
        ("keep_probs", "1.5", "(1,)"),
    ),
    "lengths-zero": (lambda: BernoulliChain.from_length_probs(zeros(3)), ("probs", "0")),
    "lengths-nan": (lambda: BernoulliChain.from_length_probs(NAN), ("probs", "nan")),
    "lengths-inf": (lambda: BernoulliChain.from_length_probs(torch.tensor([1.0, math.inf])), ("probs", "inf")),
    "lengths-one-bad-row": (
        lambda: BernoulliChain.from_length_probs(torch.tensor([[0.5, 0.5], [0.5, -0.5], [1.0, 0.0]])),
        ("probs", "-0.5"),
    ),
    "lengths-int": (lambda: BernoulliChain.from_length_probs(torch.tensor([1, 2])), ("probs", "int64")),
    "lengths-none": (lambda: BernoulliChain.from_length_probs(zeros(0)), ("probs",)),
    "expected-zero": (lambda: BernoulliChain.from_expected_length(5, 0.0), ("length", "0.0", "5")),
    "expected-n": (lambda: BernoulliChain.from_expected_length(5, 5), ("length", "5")),
    "expected-nan": (lambda: BernoulliChain.from_expected_length(5, math.nan), ("length", "nan")),
    "downhill-zero": (lambda: Downhill(0.0, zeros(2)), ("Downhill", "temperature", "0.0")),
    "downhill-words": (lambda: Downhill("low", zeros(2)), ("Downhill: temperature must be a number", "got a str")),
    "downhill-inf": (lambda: Downhill(math.inf, zeros(2)), ("temperature", "inf")),
    "downhill-nan": (lambda: Downhill(math.nan, zeros(2)), ("temperature", "nan")),
    "downhill-one-bad-row": (lambda: Downhill(torch.tensor([1.0, -2.0]), zeros(2, 3)), ("temperature", "-2.0", "(1,)")),
    "downhill-shapes": (lambda: Downhill(ones(3), zeros(2, 4)), ("temperature", "(3,)", "(2,)")),
    "downhill-logits-nan": (lambda: Downhill(1.0, NAN), ("keep_logits", "nan")),
    "downhill-lengths-nan": (lambda: Downhill(1.0, length_logits=NAN), ("length_logits", "nan")),
    "downhill-lengths-none": (lambda: Downhill(1.0, length_logits=zeros(0)), ("length_logits",)),
    "downhill-int": (lambda: Downhill(1.0, torch.tensor([1, 2])), ("keep_logits", "int64")),
    "downhill-lengths-int": (lambda: Downhill(1.0, length_logits=torch.tensor([1, 2])), ("length_logits", "int64")),
    "downhill-both": (lambda: Downhill(1.0, zeros(2), length_logits=zeros(3)), ("keep_logits", "length_logits")),
    "downhill-neither": (lambda: Downhill(1.0), ("keep_logits", "length_logits")),
    "code-sizes": (lambda: code(scale=ones(4)), ("loc", "scale", "3", "4")),
    "code-too-many-logits": (lambda: code(keep_logits=zeros(4)), ("keep_logits", "4", "3")),
    "code-batches": (lambda: code(loc=zeros(2, 3), scale=ones(5, 3)), ("loc", "scale", "(2, 3)", "(5, 3)")),
    "code-scalar": (lambda: code(loc=torch.tensor(0.0)), ("loc", "()")),
    "code-scale-zero": (lambda: code(scale=torch.tensor([1.0, 0.0, 1.0])), ("scale", "0.0", "(1,)")),
    "code-loc-nan": (lambda: code(loc=torch.tensor([math.nan, 1.0, 1.0])), ("loc", "nan")),
    "code-temperature-shape": (lambda: code(loc=zeros(2, 3), temperature=ones(3)), ("temperature", "(3,)", "(2,)")),
    "code-length-below-base": (lambda: code().rsample(length=0), ("length", "0", "1 … 3")),
    "code-length-tensor": (lambda: code().rsample((2,), length=torch.tensor([1, 7])), ("length", "[1, 7]")),
    "weight-both": (
        lambda: MultiplicativeNormal(zeros(2), zeros(2), log_variance=zeros(2)),
        ("log_alpha", "log_variance"),
    ),
    "weight-neither": (lambda: MultiplicativeNormal(zeros(2)), ("log_alpha", "log_variance")),
    "weight-shapes": (lambda: MultiplicativeNormal(zeros(2), zeros(3)), ("loc", "(2,)", "(3,)")),
    "weight-nan": (lambda: MultiplicativeNormal(NAN, zeros(2)), ("loc", "nan", "(1,)")),
    "weight-variance-nan": (lambda: MultiplicativeNormal(zeros(2), log_variance=NAN), ("log_variance", "nan")),
    "weight-int": (lambda: MultiplicativeNormal(torch.tensor([1, 2]), zeros(2)), ("loc", "int64")),
    "kl-chains": (
        lambda: kl_divergence(BernoulliChain(zeros(2)), BernoulliChain(zeros(3))),
        ("kl_divergence", "2", "3"),
    ),
    "kl-downhill-chain": (lambda: kl_divergence(Downhill(1.0, zeros(2)), BernoulliChain(zeros(3))), ("2", "3")),
    "kl-downhill": (lambda: kl_divergence(Downhill(1.0, zeros(2)), Downhill(1.0, zeros(3))), ("2", "3")),
    "kl-codes": (lambda: kl_divergence(code(), code(keep_logits=zeros(3))), ("3 dimensions, 1", "3, 0")),
    "coupled-none": (lambda: coupled_entropy([]), ("chains", "empty")),
    "kl-form": (lambda: log_uniform_kl(zeros(1), "exakt"), FORMS),
    "prior-form": (lambda: LogUniform("exakt"), FORMS),
    "coupled-batch": (lambda: coupled_entropy([BernoulliChain(zeros(2, 3))]), ("chains", "(2,)")),
}


@table(CASES)
def test_bad_input_is_refused_in_one_line_that_names_argument_and_value(
    call: Callable[[], object], words: tuple[str, ...]
) -> None:
    refused(call, words)


@pytest.mark.parametrize(
    ("distribution", "value"),
    [
        (BernoulliChain(zeros(3)), [0.0, 1.0, 0.0]),
        (BernoulliChain(zeros(3)), [1.0, 0.5, 0.0]),
        (Downhill(1.0, zeros(3)), [0.2, 0.5, 0.1]),
        (Downhill(1.0, zeros(2)), [1.2, 0.5]),
        (Downhill(1.0, zeros(2)), [0.5, -0.1]),
        (Downhill(1.0, zeros(2)), [math.nan, 0.1]),
        (OrderedNormal(zeros(3), ones(3), zeros(2), 1.0), [math.nan, 0.0, 0.0]),
    ],
    ids=str,
)
def test_values_outside_the_support_are_refused(distribution, value: list[float]) -> None:
    with pytest.raises(ValueError, match="support"):
        distribution.log_prob(torch.tensor(value))


def test_validation_can_be_switched_off() -> None:
    assert BernoulliChain(NAN, validate_args=False).length_log_probs.isnan().any()
    assert Downhill(0.01, zeros(2), validate_args=False).rsample().isfinite().all()
    assert code(scale=-ones(3), validate_args=False).rsample(length=0).eq(0).all()
