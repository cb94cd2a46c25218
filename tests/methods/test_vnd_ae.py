"""VND-AE: its KL by enumeration, the least rate that lengths can have, its loss by hand, lengths, and draws."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import vnd.methods.vnd_ae as module
from methods.codes import CODE, at, dense, dots, model_of
from vnd.distributions import BernoulliChain, Downhill, OrderedNormal
from vnd.functional import log_uniform_kl
from vnd.methods import VNDAE
from vnd.methods.codes import Code, covering_lengths, ratio_lengths, ratio_survival
from vnd.methods.vnd_ae import _shared
from vnd.models import DenseAutoEncoder
from vnd.models.autoencoder import CodedNetwork

D = 4
COUNT = 20_000
OPTIONS: list[dict[str, Any]] = [
    {"base": 1},
    {"base": 2},
    {"base": 1, "prior_length": 2.5},
    {"base": 2, "prior_length": 3.2},
]
each_base = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(map(str, options.values())))


def some_code(method: VNDAE, batch: int = 5) -> Code:
    generator = torch.Generator().manual_seed(4)

    def draw(size: int) -> Tensor:
        return torch.randn(batch, size, generator=generator, dtype=torch.float64)

    loc, log_variance, logits = 2 * draw(D), draw(D), 1.5 * draw(D - method.base)
    heads = {"loc": loc, "log_variance": log_variance, "keep_logits": logits}
    return Code(loc, (0.5 * log_variance).exp(), heads)


def keep_probs(logits: Tensor) -> list[list[float]]:
    return [[1 / (1 + math.exp(-x)) for x in row] for row in logits.tolist()]


def length_probs(keep: list[float]) -> list[float]:
    """Of 0 … n kept units, by going through the chain one by one."""
    found = []
    for length in range(len(keep) + 1):
        stop = 1 - keep[length] if length < len(keep) else 1.0
        found.append(math.prod(keep[:length]) * stop)
    return found


def prior_probs(method: VNDAE) -> list[float]:
    """Of the lengths base … D, of 0 … n beyond the base: all alike, or a geometric chain of the right mean."""
    count = D - method.base
    if method.prior_length is None:
        return [1 / (count + 1)] * (count + 1)
    low, high = 0.0, 1.0
    for _ in range(80):
        keep = 0.5 * (low + high)
        mean = method.base + sum(keep**i for i in range(1, count + 1))
        low, high = (keep, high) if mean < method.prior_length else (low, keep)
    return length_probs([keep] * count)


def enumerated(method: VNDAE, code: Code) -> list[float]:
    r"""$\sum_b q_b [\log q_b / p_b + \sum_{i \le b} κ_i]$ with torch's own KL of two Gaussians."""
    cost = kl_divergence(Normal(code.loc, code.scale), Normal(0.0, 1.0)).tolist()
    found = []
    for keep, row in zip(keep_probs(code.heads["keep_logits"]), cost, strict=True):
        lengths = zip(length_probs(keep), prior_probs(method), strict=True)
        found.append(sum(q * (math.log(q / p) + sum(row[: method.base + j])) for j, (q, p) in enumerate(lengths)))
    return found


# The KL


@each_base
def test_the_kl_is_the_expectation_over_all_lengths(options: dict[str, Any]) -> None:
    method = VNDAE(**options)
    code = some_code(method)
    wanted = torch.tensor(enumerated(method, code), dtype=torch.float64)
    torch.testing.assert_close(method.rate(code), wanted, rtol=1e-6, atol=0)  # the prior's logits are float32


@each_base
def test_the_kl_is_that_of_two_ordered_normals(options: dict[str, Any]) -> None:
    method = VNDAE(**options)
    code = some_code(method)
    prior = method.prior_chain(D).keep_logits
    posterior = OrderedNormal(code.loc, code.scale, code.heads["keep_logits"], temperature=1.0)
    standard = OrderedNormal(torch.zeros_like(code.loc), torch.ones_like(code.loc), prior, temperature=1.0)
    assert posterior.base == method.base
    torch.testing.assert_close(method.rate(code), kl_divergence(posterior, standard), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(method.survival(code), posterior.survival, rtol=1e-12, atol=0)


@each_base
def test_a_code_of_a_given_length_pays_for_its_dimensions_alone(options: dict[str, Any]) -> None:
    method = VNDAE(**options)
    code = some_code(method)
    cost = kl_divergence(Normal(code.loc, code.scale), Normal(0.0, 1.0))
    for length in range(method.base, D + 1):
        torch.testing.assert_close(method.rate(code, length), cost[:, :length].sum(1), rtol=1e-12, atol=1e-12)


def test_a_prior_of_an_expected_length_has_it_base_included() -> None:
    for base, length in ((1, 2.5), (3, 40.0), (5, 6.0)):
        chain = VNDAE(base=base, prior_length=length).prior_chain(128)
        assert base + float(chain.expected_length) == pytest.approx(length, rel=1e-5)
    assert float(VNDAE(base=4).prior_chain(10).expected_length) == pytest.approx(3.0)  # half of six


def test_weighing_dimensions_by_the_probability_of_the_length_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's sum of β_i κ_i read dimension by dimension; see docs/errata.md."""
    method = VNDAE()

    def wrong(self: VNDAE, code: Code) -> Tensor:
        return BernoulliChain(code.heads["keep_logits"]).length_log_probs.exp()

    monkeypatch.setattr(VNDAE, "survival", wrong)
    code = some_code(method)
    gap = method.rate(code) - torch.tensor(enumerated(method, code), dtype=torch.float64)
    assert (gap.abs() > 0.05).all()


# The least rate


def rate_is_least(method: VNDAE) -> None:
    """At q_j ∝ p_j exp(−Σκ) the KL is −log C, for no lengths less."""
    code = some_code(method)
    cost = method.cost_of(code)
    least = method.least_rate(code, cost)
    prior = torch.tensor(prior_probs(method), dtype=torch.float64)
    paid = torch.stack([cost[:, : method.base + j].sum(1) for j in range(D - method.base + 1)], 1)
    best = BernoulliChain.from_length_probs(prior * (-paid).exp())
    heads = {**code.heads, "keep_logits": best.keep_logits}
    torch.testing.assert_close(method.rate(dataclasses.replace(code, heads=heads)), least, rtol=1e-6, atol=1e-6)
    constant = (prior * (-paid).exp()).sum(1)
    torch.testing.assert_close(least, -constant.log(), rtol=1e-6, atol=1e-6)
    generator = torch.Generator().manual_seed(0)
    for trial in range(200):
        spread = (0.01, 0.1, 1.0, 3.0)[trial % 4]
        noise = spread * torch.randn(best.keep_logits.shape, generator=generator, dtype=torch.float64)
        logits = best.keep_logits + noise
        found = method.rate(dataclasses.replace(code, heads={**code.heads, "keep_logits": logits}))
        assert (found >= least - 1e-6).all()


@each_base
def test_no_lengths_have_less_than_the_least_rate(options: dict[str, Any]) -> None:
    rate_is_least(VNDAE(**options))


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_least_rate_that_is_off_by_one_dimension_is_caught(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base's last dimension left out of what every length pays, or one too many in it."""
    own = VNDAE.least_rate

    def wrong(self: VNDAE, code: Code, cost: Tensor) -> Tensor:
        moved = torch.roll(cost, shift, 1)
        moved[:, 0 if shift > 0 else -1] = 0.0
        return own(self, code, moved)

    monkeypatch.setattr(VNDAE, "least_rate", wrong)
    with pytest.raises(AssertionError):
        rate_is_least(VNDAE(base=2))


# The loss


LOSSES: dict[str, VNDAE] = {
    "pure": VNDAE(all_lengths_share=0.0),
    "base and prior": VNDAE(likelihood_std=0.3, base=2, prior_length=3.5, initial_logit=0.5, all_lengths_share=0.0),
    "lengths": VNDAE(likelihood_std=0.5, fractions=(0.1, 0.5, 1.0), fixed_share=0.4, initial_logit=1.0),
    "weighted lengths": VNDAE(likelihood_std=0.5, fractions=(0.1, 0.5, 1.0), weights=(1, 2, 5), fixed_share=0.8),
    "lengths of the base": VNDAE(likelihood_std=0.5, base=4, fractions=(0.5, 0.6, 1.0)),
    "free bits": VNDAE(likelihood_std=2.0, free_bits=0.4, fractions=(0.5,)),
    "log-uniform": VNDAE(likelihood_std=0.7, prior="log_uniform", prior_length=2.0, all_lengths_share=0.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_by_hand(name: str) -> None:
    method, x, kappa = LOSSES[name], dots(7), 0.6
    model = model_of(method)
    torch.manual_seed(9)
    terms = method.loss(model, (x, torch.zeros(7)), at(kl_weight=kappa))
    with torch.no_grad():
        heads = model.encode(x)
        loc, logits = heads["loc"], heads["keep_logits"]
        scale = (0.5 * heads["log_variance"]).exp()
        assert logits.shape == (7, CODE - method.base)
        torch.manual_seed(9)
        mask = Downhill(0.7, logits).rsample(hard=True)
        kept = torch.cat((torch.ones(7, method.base), mask), 1)
        lengths = [{0.1: 1, 0.5: 3, 0.6: 4, 1.0: 6}[fraction] for fraction in method.fractions]
        codes = [(loc + scale * torch.randn_like(loc)) * kept]
        for length in lengths:
            drawn = loc + scale * torch.randn_like(loc)
            codes.append(drawn[:, : max(length, method.base)])
        errors = [float((x - model.decode(code)).square().sum() / 7) for code in codes]  # truncation is masking
        if method.prior == "normal":
            cost = kl_divergence(Normal(loc, scale), Normal(0.0, 1.0))
        else:
            cost = log_uniform_kl((scale.square() / loc.square()).log(), "exact")
        cost = torch.maximum(cost, torch.tensor(method.free_bits))
        chain = kl_divergence(BernoulliChain(logits), method.prior_chain(CODE))
        survival = torch.cat((torch.ones(7, method.base), torch.sigmoid(logits).cumprod(1)), 1)
        rates = [float((chain + (survival * cost).sum(1)).mean())]
        rates += [float(cost[:, : max(length, method.base)].sum() / 7) for length in lengths]
    share = method.fixed_share if lengths else 0.0
    each = method.weights or [1] * len(lengths)
    weights = [1 - share, *[share * weight / sum(each) for weight in each]]
    total = sum(
        w * (e + 2 * method.likelihood_std**2 * kappa * r) / 64 for w, e, r in zip(weights, errors, rates, strict=True)
    )
    assert float(terms.total.detach()) == pytest.approx(total, rel=1e-5)
    assert float(terms.parts["mse"]) == pytest.approx(
        sum(w * e for w, e in zip(weights, errors, strict=True)) / 256, rel=1e-5
    )
    assert float(terms.parts["mse_drawn"]) == pytest.approx(errors[0] / 256, rel=1e-5)
    assert float(terms.parts["rate"]) == pytest.approx(rates[0], rel=1e-5)
    assert float(terms.parts["length"]) == pytest.approx(float(kept.sum()) / 7, rel=1e-6)
    assert method.initial_logit > 2 or float(kept.sum()) < 7 * CODE - 3  # some are short
    assert float(terms.parts["rate_least"]) <= float(terms.parts["rate"]) + 1e-5
    assert not any(part.requires_grad for part in terms.parts.values())


def test_one_length_for_each_image_is_the_same_loss_in_the_mean() -> None:
    """Over many steps its error is that of all lengths for each image; its rates are theirs in every step."""
    lengths: dict[str, Any] = {"fractions": (0.2, 1.0), "weights": (3, 1), "fixed_share": 0.6}
    both = {each: VNDAE(likelihood_std=0.5, initial_logit=0.5, each_image=each, **lengths) for each in ("all", "one")}
    both["thrice"] = dataclasses.replace(both["one"], decodes=3)
    model, x, count = model_of(both["all"]), dots(16), 300
    model.eval()  # BatchNorm's statistics are not those of other batches
    found: dict[str, list[float]] = {}
    torch.manual_seed(4)
    with torch.no_grad():
        for name, method in both.items():
            losses = [method.loss(model, (x[torch.randperm(16)], torch.zeros(16)), at()) for _ in range(count)]
            found[name] = [float(terms.parts["mse"]) for terms in losses]
            rates = [float(terms.parts["rate"]) for terms in losses]
            assert max(rates) - min(rates) < 1e-5
    means = {name: sum(values) / count for name, values in found.items()}
    spread = statistics.stdev(found["one"]) / count**0.5
    assert means["one"] == pytest.approx(means["all"], abs=5 * spread)
    assert means["thrice"] == pytest.approx(means["all"], abs=5 * spread)
    assert statistics.stdev(found["one"]) > statistics.stdev(found["all"])
    assert statistics.stdev(found["one"]) > 1.4 * statistics.stdev(found["thrice"])
    swapped = dataclasses.replace(both["all"], weights=(1, 3))  # a planted fault: the weights of other lengths
    torch.manual_seed(4)
    with torch.no_grad():
        other = [float(swapped.loss(model, (x, torch.zeros(16)), at()).parts["mse"]) for _ in range(count)]
    assert abs(sum(other) / count - means["one"]) > 5 * spread


def test_each_time_that_an_image_is_decoded_has_a_length_and_a_draw_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    method = VNDAE(initial_logit=0.5, each_image="one", decodes=3, all_lengths_share=0.0)
    seen = list[Tensor]()
    model, decode = model_of(method), CodedNetwork.decode

    def noted(self: CodedNetwork, code: Tensor) -> Tensor:
        seen.append(code)
        return decode(self, code)

    monkeypatch.setattr(CodedNetwork, "decode", noted)
    terms = method.loss(model, (dots(7), torch.zeros(7)), at())
    (codes,) = seen
    lengths = (codes != 0).sum(1).view(3, 7)
    assert not torch.equal(lengths[0], lengths[1])
    assert not torch.equal(lengths[1], lengths[2])
    assert len(codes[:, 0].unique()) == 21  # the base is kept: other draws each time
    assert float(terms.parts["length"]) == pytest.approx(float(lengths.float().mean()))


@pytest.mark.parametrize("weights", [[0.1, 0.3, 0.6], [1.0], [0.02, 0.49, 0.49]])
def test_every_step_has_its_share_of_each_length(weights: list[float]) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        counts = torch.bincount(_shared(weights, 64, torch.device("cpu")), minlength=len(weights))
        assert len(counts) == len(weights)
        assert (counts - 64 * torch.tensor(weights)).abs().max() <= 1


def test_free_bits_give_cheap_dimensions_no_gradient() -> None:
    """A dimension below the floor pays the floor, whatever its mean; one above it pays its own."""
    x = dots(7)
    for floor, moved in ((0.0, True), (1e6, False)):
        method = VNDAE(likelihood_std=1e4, free_bits=floor)  # all but the KL is nothing
        model = model_of(method)
        method.loss(model, (x, torch.zeros(7)), at()).total.backward()
        gradient = model.heads["log_variance"].weight.grad
        assert gradient is not None
        assert (float(gradient.abs().max()) > 1.0) == moved


@pytest.mark.parametrize(("share", "left"), [(0.0, 1.0), (0.15, 0.75), (0.6, 0.0), (1.0, 0.0)])
def test_free_bits_fall_to_none(share: float, left: float) -> None:
    """Evenly, by the share `free_until` of training: the loss is that of so many free bits."""
    x, step = dots(7), dataclasses.replace(at(), share=share)
    method = VNDAE(likelihood_std=2.0, free_bits=0.4, free_until=0.6)
    model = model_of(method)
    method.prepare(model, (x,), step, lambda value: value)
    totals = []
    for one in (
        method,
        VNDAE(likelihood_std=2.0, free_bits=0.4 * left),
        VNDAE(likelihood_std=2.0, free_bits=0.4 * left + 0.05),
    ):
        torch.manual_seed(9)
        totals.append(float(one.loss(model, (x,), step).total.detach()))
    assert totals[0] == pytest.approx(totals[1], rel=1e-6)
    assert totals[0] < totals[2]


def test_codes_are_long_at_first_and_the_mask_moves_the_lengths() -> None:
    method = VNDAE(initial_logit=3.0, all_lengths_until=None)
    model = model_of(method)
    code = method.encode(model, dots(7))
    torch.testing.assert_close(model.heads["keep_logits"].bias, torch.full((CODE - 1,), 3.0))  # type: ignore[arg-type]
    assert (code.heads["keep_logits"] > 1).all()
    free = dataclasses.replace(
        method, likelihood_std=1e-4
    )  # the KL is nothing: only the decoded images move the lengths
    free.loss(model, (dots(7), torch.zeros(7)), at()).total.backward()
    gradient = model.heads["keep_logits"].weight.grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 1e-6


# Lengths that are not learned ones


RATIO_BASES = [(1, 4), (1, 32), (2, 6), (5, 40)]


def ratio_probs(base: int, size: int) -> list[float]:
    return [math.log((b + 1) / b) / math.log((size + 1) / base) for b in range(base, size + 1)]


@pytest.mark.parametrize(("base", "size"), RATIO_BASES)
def test_lengths_by_ratio_have_their_law(base: int, size: int) -> None:
    """False alarms: one in 10⁴ seeds, and the seed is fixed."""
    torch.manual_seed(2)
    counts = torch.bincount(ratio_lengths(torch.rand(COUNT), base, size), minlength=size + 1)
    assert not counts[:base].any()
    assert len(counts) == size + 1
    probs = ratio_probs(base, size)
    assert stats.chisquare(counts[base:].tolist(), [COUNT * p for p in probs]).pvalue > 1e-4
    even = [COUNT / len(probs)] * len(probs)  # planted: lengths that are even by number
    assert stats.chisquare(counts[base:].tolist(), even).pvalue < 1e-6
    survival = [1.0] * base + [sum(probs[j:]) for j in range(1, len(probs))]
    torch.testing.assert_close(ratio_survival(base, size), torch.tensor(survival), rtol=1e-5, atol=1e-6)


def test_the_ends_of_the_quantiles_are_the_ends_of_the_lengths() -> None:
    for base, size in RATIO_BASES:
        ends = ratio_lengths(torch.tensor([0.0, 1 - 2**-24, 1.0]), base, size)
        assert ends.tolist() == [base, size, size]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_every_batch_has_its_share_of_each_length(share: float) -> None:
    """To within one code, each length; systematic, where independent draws are off by their square root."""
    for seed in range(20):
        torch.manual_seed(seed)
        lengths = covering_lengths(64, share, 1, 4)
        counts = torch.bincount(lengths, minlength=5)
        wanted = 64 * torch.tensor([1 - share, *(share * p for p in ratio_probs(1, 4))])
        assert (counts - wanted).abs().max() <= 1 + 1e-4


def decoded_lengths(method: VNDAE, count: int) -> Tensor:
    """Of the codes that a loss decodes; all images are one, so that they have one posterior."""
    model, seen = model_of(method), list[Tensor]()
    model.decode = lambda code: (seen.append(code), CodedNetwork.decode(model, code))[1]  # type: ignore[method-assign,func-returns-value]
    with torch.no_grad():
        method.loss(model, (dots(1).expand(count, -1, -1, -1), torch.zeros(count)), at())
    (codes,) = seen
    return (codes != 0).sum(1)


def posterior_probs(method: VNDAE) -> Tensor:
    with torch.no_grad():
        code = method.encode(model_of(method), dots(1))
    return BernoulliChain(code.heads["keep_logits"]).length_log_probs.exp()[0]


def test_codes_are_drawn_by_the_law_of_each_sampler() -> None:
    """By chi-square; false alarms: one in 10⁴ seeds, and the seed is fixed. The other sampler's law is caught."""
    laws = {}
    for sampler in ("exact", "released"):
        method = VNDAE(base=2, initial_logit=1.0, sampler=sampler, all_lengths_share=0.0)  # type: ignore[arg-type]
        torch.manual_seed(6)
        counts = torch.bincount(decoded_lengths(method, COUNT), minlength=CODE + 1)
        probs = posterior_probs(method)
        laws[sampler] = counts[2:], (probs if sampler == "exact" else probs.softmax(0)).double()
    for sampler, (counts, _) in laws.items():
        for other, (_, probs) in laws.items():
            p = stats.chisquare(counts.tolist(), (COUNT * probs / probs.sum()).tolist()).pvalue
            assert p > 1e-4 if sampler == other else p < 1e-6


def test_codes_of_all_lengths_are_a_mixture_of_both_laws() -> None:
    """Its other part has the learned law: chi-square as above."""
    method = VNDAE(initial_logit=1.0, all_lengths_share=0.4, all_lengths_until=None, decodes=1)
    torch.manual_seed(6)
    counts = torch.bincount(decoded_lengths(method, COUNT), minlength=CODE + 1)[1:]
    learned = posterior_probs(method).double()
    mixed = 0.6 * learned / learned.sum() + 0.4 * torch.tensor(ratio_probs(1, CODE), dtype=torch.float64)
    assert stats.chisquare(counts.tolist(), (COUNT * mixed).tolist()).pvalue > 1e-4
    assert stats.chisquare(counts.tolist(), (COUNT * learned / learned.sum()).tolist()).pvalue < 1e-6


def check_objective(method: VNDAE) -> None:
    """Its mean over draws is that of the bounds at each length, by enumeration, and the KL of learned lengths exact."""
    model, x, count, share = model_of(method).double(), dots(6).double(), 400, method.covered_share
    torch.manual_seed(3)
    with torch.no_grad():
        code = method.encode(model, x)
        losses = torch.stack([method.loss(model, (x, torch.zeros(6)), at()).total for _ in range(count)])
        errors = torch.stack([
            torch.stack([(x - model.decode(method.sample(code, b))).square().sum((1, 2, 3)) for _ in range(count)])
            .mean(0) for b in range(1, CODE + 1)
        ], 1)  # fmt: skip
        learned = torch.tensor([length_probs(row) for row in keep_probs(code.heads["keep_logits"])])
        even = torch.tensor(ratio_probs(1, CODE), dtype=torch.float64).expand_as(learned)
        paid = kl_divergence(Normal(code.loc, code.scale), Normal(0.0, 1.0)).cumsum(1)
        prior = torch.tensor([1 / CODE] * CODE, dtype=torch.float64)
        divergence = (learned * (learned / prior).log()).sum(1)
        bounds = errors + 2 * method.likelihood_std**2 * paid
        own = (learned * bounds).sum(1) + 2 * method.likelihood_std**2 * divergence
        wanted = ((1 - share) * own + share * (even * bounds).sum(1)).mean() / 64
    error = float(losses.std()) / count**0.5
    assert float(losses.mean()) == pytest.approx(float(wanted), abs=5 * error)


PURE = VNDAE(likelihood_std=2.0, initial_logit=0.5, all_lengths_share=0.0)
MIXED = dataclasses.replace(PURE, all_lengths_share=0.4, all_lengths_until=None)


@pytest.mark.parametrize("method", [PURE, MIXED], ids=["pure", "all lengths"])
def test_the_objective_is_a_mixture_of_bounds(method: VNDAE) -> None:
    check_objective(method)


def test_codes_of_all_lengths_charged_as_full_ones_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VNDAE, "_covering_rate", lambda self, cost: cost.sum(1))
    with pytest.raises(AssertionError):
        check_objective(MIXED)


@pytest.mark.parametrize("options", [{"sampler": "released"}, {"all_lengths_share": 0.5}], ids=str)
def test_how_lengths_are_drawn_changes_no_kl(options: dict[str, Any]) -> None:
    for method in (VNDAE(base=2, **options), VNDAE(base=2, prior_length=3.2, **options)):
        code = some_code(method)
        wanted = torch.tensor(enumerated(method, code), dtype=torch.float64)
        torch.testing.assert_close(method.rate(code), wanted, rtol=1e-6, atol=0)
        x = dots(7)
        model = model_of(method)
        said = method.loss(model, (x, torch.zeros(7)), at()).parts["rate"]
        with torch.no_grad():
            torch.testing.assert_close(said, method.rate(method.encode(model, x)).mean())


@pytest.mark.parametrize(("done", "share"), [(0.0, 1.0), (0.2, 0.8), (0.5, 0.5), (1.0, 0.5)])
def test_the_share_of_all_lengths_falls_from_one(done: float, share: float) -> None:
    x, step = dots(64), dataclasses.replace(at(), share=done)
    method = VNDAE(likelihood_std=2.0, initial_logit=0.5, all_lengths_share=0.5, all_lengths_until=0.5)
    model = model_of(method)
    method.prepare(model, (x,), step, lambda value: value)
    totals = []
    for other in (method, dataclasses.replace(method, all_lengths_share=min(share, 1 - 1e-6), all_lengths_until=None)):
        torch.manual_seed(9)
        totals.append(float(other.loss(model, (x, torch.zeros(64)), step).total.detach()))
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)


def test_unless_told_otherwise_all_lengths_are_trained_and_told() -> None:
    """As said in full; and fixed lengths or the released sampler take their place."""
    x, step = dots(16), dataclasses.replace(at(), share=0.7)
    totals = []
    for method in (VNDAE(), VNDAE(all_lengths_share=0.2, all_lengths_until=1.0, decodes=8)):
        model = model_of(method)
        assert model.config["length_bias"] is True
        method.prepare(model, (x,), step, lambda value: value)
        torch.manual_seed(9)
        totals.append(float(method.loss(model, (x, torch.zeros(16)), step).total.detach()))
    assert totals[0] == totals[1]
    for other in (VNDAE(fractions=(0.5,)), VNDAE(sampler="released"), VNDAE(all_lengths_share=0.0)):
        assert (other.covered_share, other.decodings) == (0.0, 1)


@pytest.mark.parametrize("given", [True, False])
def test_a_network_may_say_whether_lengths_are_told(given: bool) -> None:
    network = DenseAutoEncoder(latent_dim=CODE, image_size=8, hidden=(16,), length_bias=given)
    assert (model_of(VNDAE(), network).length_biases is not None) == given


# Lengths, and draws


def test_the_length_of_an_image_is_the_median_of_its_posterior() -> None:
    method = VNDAE(base=2)
    keep = torch.tensor([[0.9, 0.9], [0.9, 0.5], [0.4, 0.99], [0.6, 0.6], [0.1, 0.1]], dtype=torch.float64)
    code = Code(torch.zeros(5, 4), torch.ones(5, 4), {"keep_logits": torch.logit(keep)})
    # P(length ≥ 3), P(length ≥ 4): (.9, .81), (.9, .45), (.4, .396), (.6, .36), (.1, .01)
    assert method.lengths(code).tolist() == [4, 3, 2, 3, 2]
    for chain, length in zip(keep.tolist(), method.lengths(code).tolist(), strict=True):
        probs = length_probs(chain)  # of 2, 3 and 4 dimensions
        assert sum(probs[: length - 2 + 1]) >= 0.5
        assert sum(probs[length - 2 :]) >= 0.5


def p_value(method: VNDAE, drawn: Tensor) -> float:
    """Of the lengths of codes, by chi-square, under the prior; and that what follows a length is zeros."""
    kept = drawn != 0
    lengths = kept.sum(1)
    assert torch.equal(kept, torch.arange(D) < lengths[:, None])
    counts = torch.bincount(lengths, minlength=D + 1)
    assert not counts[: method.base].any()
    expected = [COUNT * p for p in prior_probs(method)]
    return float(stats.chisquare(counts[method.base :].tolist(), expected).pvalue)


@each_base
def test_drawn_lengths_have_the_prior_s_distribution(options: dict[str, Any]) -> None:
    """False alarms: one in 10⁴ seeds, and the seed is fixed."""
    method = VNDAE(**options)
    model = model_of(method, dense(D))
    torch.manual_seed(0)
    drawn = method.draw(model, COUNT)
    assert drawn.shape == (COUNT, D)
    assert p_value(method, drawn) > 1e-4
    first = drawn[:, 0]
    assert stats.kstest(first.tolist(), "norm").pvalue > 1e-4
    other = dataclasses.replace(method, prior_length=(method.prior_length or (D + method.base) / 2) + 0.1)
    assert p_value(other, drawn) < 1e-6  # planted: a tenth of a dimension more


def test_draws_of_a_given_length_are_as_long_as_it() -> None:
    method = VNDAE()
    model = model_of(method)
    drawn = method.draw(model, 5, 3)
    assert drawn.shape == (5, 3)
    assert (drawn != 0).all()
    assert method.decode(model.eval(), drawn).shape == (5, 1, 8, 8)


def test_the_prior_that_was_made_without_gradients_serves_a_loss() -> None:
    module._kept_logits.cache_clear()
    method, x = VNDAE(), dots(5)
    model = model_of(method)
    with torch.inference_mode():
        method.rate(method.encode(model, x))
        method.draw(model, 3)
    method.loss(model, (x, torch.zeros(5)), at()).total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# Refusals
