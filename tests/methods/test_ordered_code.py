"""Ordered codes of networks that are not ours: one loss with VND-AE, exact rates, lengths, densities, and refusals."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Categorical,
    Cauchy,
    Distribution,
    Independent,
    Laplace,
    Normal,
    Poisson,
    kl_divergence,
)

import vnd
from methods.codes import SMALL, at, dots, learn
from refusals import Refusals, refused, table
from vnd.distributions import BernoulliChain
from vnd.methods import METHODS, VNDAE, Sizes
from vnd.methods.codes import squared_error
from vnd.models.encoder_decoder import EncoderDecoder

D = 5
X = (dots(64) + 1) / 2  # between 0 and 1


class Output(OrderedDict):  # type: ignore[type-arg]
    """As pythae's: a dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Encoder(nn.Module):
    """As pythae's, or one that gives its means and log variances as a pair, or feature maps."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.conv = form, nn.Conv2d(1, 6, 4, stride=4)
        self.loc, self.spread = nn.Linear(24, D), nn.Linear(24, D)

    def forward(self, x: Tensor) -> Any:
        maps = self.conv(x).relu()
        if self.form == "maps":
            return maps
        flat = maps.flatten(1)
        pair = self.loc(flat), self.spread(flat)
        if self.form == "embedding":
            return Output(embedding=pair[0])
        if self.form == "normal":
            return Independent(Normal(pair[0], (0.5 * pair[1]).exp()), 1)
        if self.form == "scale":
            return {"mu": pair[0], "sigma": pair[1].exp()}
        return pair if self.form == "pair" else Output(embedding=pair[0], log_covariance=pair[1])


class Decoder(nn.Module):
    def __init__(self, named: bool = False, end: nn.Module | None = None, size: int = D) -> None:
        super().__init__()
        self.named, self.seen = named, list[Tensor]()
        self.layers = nn.Sequential(nn.Linear(size, 48), nn.ReLU(), nn.Linear(48, 64), end or nn.Identity())

    def forward(self, code: Tensor) -> Any:
        self.seen.append(code.detach())
        images = self.layers(code).view(-1, 1, 8, 8)
        return Output(reconstruction=images) if self.named else images


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())


def coded(seed: int = 0, **options: Any) -> vnd.OrderedCode:
    torch.manual_seed(seed)
    return vnd.OrderedCode(mlp(), Decoder(), X[:2], **{"latent_dim": D, "likelihood_std": 0.1} | options)


def trained(steps: int = 150, **options: Any) -> vnd.OrderedCode:
    code = coded(**options)
    optimizer = torch.optim.Adam(code.parameters(), lr=0.01)
    for step in range(steps):
        loss = code.loss(X, progress=step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return code


# The loss


@pytest.mark.parametrize("name", ["vnd_ae", "vnd_ae, lengths", "vnd_ae, decoded twice", "vnd_ae, released"])
def test_the_loss_is_that_of_the_method(name: str) -> None:
    """In nats, where the method's is scaled: by the same draws, for the same weights."""
    method, x, options = SMALL[name], 2 * X - 1, vars(SMALL[name])
    code = coded(temperature=0.7, tell_length=True, **options)
    step = dataclasses.replace(at(kl_weight=0.6), share=0.4)
    model = code.network
    method.prepare(model, (x, x), step, lambda value: value)
    torch.manual_seed(5)
    scaled = method.loss(model, (x, x), step)
    torch.manual_seed(5)
    mine = code.terms(x, kl_weight=0.6, progress=0.4)
    variance, pixels = method.likelihood_std**2, 64
    wanted = float(scaled.total.detach()) * pixels / (2 * variance) + pixels / 2 * math.log(2 * math.pi * variance)
    assert float(mine.total.detach()) == pytest.approx(wanted, rel=1e-5)
    assert mine.parts.keys() == {"nll", "rate", "rate_least", "length"}
    assert torch.equal(mine.parts["rate"], scaled.parts["rate"])


def check_rate(code: vnd.OrderedCode) -> None:
    """By enumeration of the lengths, with torch's own KL of Gaussians."""
    with torch.no_grad():
        posterior, base = code.posterior(X[:7]), code.method.base
        paid = kl_divergence(Normal(posterior.loc, posterior.scale), Normal(0.0, 1.0)).cumsum(1)
        keep, prior = posterior.keep_logits.sigmoid().tolist(), code.prior.keep_logits.sigmoid().tolist()
        rate = code.kl(X[:7]).tolist()

    def probs(chain: list[float]) -> list[float]:
        return [math.prod(chain[:b]) * (1 - chain[b] if b < len(chain) else 1) for b in range(len(chain) + 1)]

    for row, chain in enumerate(keep):
        q, p = probs(chain), probs(prior)
        wanted = sum(q[b] * (math.log(q[b] / p[b]) + float(paid[row, base + b - 1])) for b in range(len(q)))
        assert rate[row] == pytest.approx(wanted, rel=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(code.kl(X[:7]), kl_divergence(code.posterior(X[:7]), code.prior))


@pytest.mark.parametrize("options", [{}, {"base": 2, "prior_length": 3.0}], ids=str)
def test_the_rate_is_exact(options: dict[str, Any]) -> None:
    check_rate(coded(initial_logit=0.5, **options))


def test_a_rate_without_that_of_lengths_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VNDAE, "_rate", lambda self, code, cost: (self.survival(code) * cost).sum(1))
    with pytest.raises(AssertionError):
        check_rate(coded(initial_logit=0.5))


class LearnedStd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.tensor(-1.0))

    def forward(self, decoded: Tensor) -> Normal:
        return Normal(decoded, self.log_std.exp())


def laplace(decoded: Tensor) -> Laplace:
    return Laplace(decoded, 0.2)


def tenfold(decoded: Tensor, x: Tensor) -> Tensor:
    return -10 * (x - decoded).abs().flatten(1).sum(1)


def surprises(given: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Negative log-likelihoods of each likelihood below, by torch's other functions."""
    logits = nn.functional.binary_cross_entropy_with_logits(given, x, reduction="none")
    return {
        "gaussian": nn.functional.gaussian_nll_loss(given, x, 0.01 * torch.ones_like(x), full=True, reduction="none"),
        "bernoulli": nn.functional.binary_cross_entropy(given.clamp(0, 1), x, reduction="none"),
        "bernoulli_logits": logits,
        "poisson": given.abs() - (3 * x).round() * given.abs().log() + ((3 * x).round() + 1).lgamma(),
        "laplace": (x - given).abs() / 0.2 + math.log(0.4),
        "joint": 10 * (x - given).abs(),
        "module": 0.5 * ((x - given) / math.exp(-1)).square() - 1 + 0.5 * math.log(2 * math.pi),
    }


LIKELIHOODS: dict[str, Any] = {
    "gaussian": "gaussian", "bernoulli": "bernoulli", "bernoulli_logits": "bernoulli_logits", "poisson": Poisson,
    "laplace": laplace, "joint": tenfold, "module": LearnedStd(),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_each_likelihood_is_what_torch_says(name: str) -> None:
    end = {"bernoulli": nn.Sigmoid(), "poisson": nn.Softplus()}.get(name)
    x = (3 * X).round() if name == "poisson" else X
    torch.manual_seed(0)
    options: dict[str, Any] = {"likelihood": LIKELIHOODS[name], "all_lengths_share": 0.0}
    options |= {"likelihood_std": 0.1} if name == "gaussian" else {}
    code = vnd.OrderedCode(mlp(), Decoder(end=end), x[:2], D, **options)
    torch.manual_seed(1)
    terms = code.terms(x)
    given = code.network.decoder.layers(code.network.decoder.seen[-1]).view_as(x)
    wanted = surprises(given, X)[name].flatten(1).sum(1).mean()
    torch.testing.assert_close(terms.parts["nll"], wanted.detach(), rtol=1e-4, atol=1e-3)
    terms.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in code.parameters())
    assert ("likelihood.log_std" in code.state_dict()) == (name == "module")
    decoded = code.reconstruct(x[:3])
    assert decoded.shape == (3, 1, 8, 8)
    assert name != "bernoulli_logits" or (decoded.min() > 0 and decoded.max() < 1)


def test_sequences_and_tables_are_inputs_too() -> None:
    tokens = torch.randint(11, (6, 7))
    decoder = nn.Sequential(nn.Linear(3, 77), nn.Unflatten(1, (7, 11)))
    words = vnd.OrderedCode(
        nn.Embedding(11, 4), decoder, tokens[:2], 3, likelihood=lambda logits: Categorical(logits=logits)
    )
    assert words.reconstruct(tokens).shape == (6, 7)  # the likeliest
    rows = vnd.OrderedCode(nn.Linear(9, 4), nn.Linear(4, 9), torch.randn(2, 9))
    assert rows.latent_dim == 4
    for code, x in ((words, tokens), (rows, torch.randn(6, 9))):
        code.loss(x).backward()
        assert code.loss(x[:1]).isfinite()  # of one


# Encoders and decoders


def networks() -> dict[str, tuple[nn.Module, nn.Module, set[str]]]:
    """With the heads that are new."""
    torch.manual_seed(0)
    maps = nn.Sequential(nn.ConvTranspose2d(6, 1, 4, stride=4))
    new = {"loc", "log_variance", "keep_logits"}
    return {
        "features": (mlp(), Decoder(), new),
        "feature maps, code": (Encoder("maps"), Decoder(), new),
        "feature maps, maps": (Encoder("maps"), maps, new),
        "a pair": (Encoder("pair"), Decoder(), {"keep_logits"}),
        "a distribution": (Encoder("normal"), Decoder(), {"keep_logits"}),
        "pythae's, of a VAE": (Encoder("output"), Decoder(named=True), {"keep_logits"}),
        "pythae's, of an AE": (Encoder("embedding"), Decoder(named=True), new),
    }


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("name", networks())
def test_any_encoder_and_decoder(name: str, told: bool) -> None:
    encoder, decoder, new = networks()[name]
    code = vnd.OrderedCode(encoder, decoder, X[:2], D, tell_length=told, likelihood_std=0.1)
    assert set(code.network.heads) == new
    assert {id(p) for p in encoder.parameters()} <= {id(p) for p in code.parameters()}  # trained where they are
    assert float(code.posterior(X).expected_length.min().detach()) > D - 0.5  # long at first
    optimizer = torch.optim.Adam(code.parameters(), lr=0.01)
    first = float(code.loss(X).detach())
    for step in range(20):
        optimizer.zero_grad()
        code.loss(X, progress=step / 20).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in code.parameters())
        optimizer.step()
    assert float(code.loss(X).detach()) < first
    assert code.sample(3).shape == (3, 1, 8, 8)


def test_methods_of_one_module_may_encode_and_decode(tmp_path: Path) -> None:
    """As in PyTorch's own example of a VAE."""

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.loc, self.spread = nn.Linear(64, 9), nn.Linear(9, D), nn.Linear(9, D)
            self.outer = nn.Linear(D, 64)

        def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
            inner = self.inner(x).relu()
            return self.loc(inner), self.spread(inner)

        def decode(self, z: Tensor) -> Tensor:
            return self.outer(z)

    vae, x = VAE(), X.flatten(1)
    code = vnd.OrderedCode(vae.encode, vae.decode, x[:2])
    code.loss(x).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in vae.parameters())
    assert {id(p) for p in vae.parameters()} < {id(p) for p in code.parameters()}
    torch.testing.assert_close(code.encode(x), vae.encode(x)[0])
    other = copy.deepcopy(vae)
    nn.init.zeros_(other.outer.weight)
    loaded = vnd.load(vnd.save(code, tmp_path / "code"), model=vnd.OrderedCode(other.encode, other.decode, x[:2]))
    torch.testing.assert_close(loaded.reconstruct(x), code.reconstruct(x))  # type: ignore[operator]


def test_a_decoder_sees_zeros_where_a_code_has_stopped() -> None:
    code = trained(steps=5)
    seen = code.network.decoder.seen
    seen.clear()
    code.reconstruct(X[:4], length=torch.tensor([1, 2, 4, 5]))
    assert [(row != 0).sum().item() for row in seen[0]] == [1, 2, 4, 5]
    torch.testing.assert_close(code.decode(torch.ones(2, 3)), code.decode(torch.tensor([[1.0, 1, 1, 0, 0]] * 2)))
    told = trained(steps=5, tell_length=True)
    told.network.decoder.seen.clear()
    told.decode(torch.ones(1, 3))
    assert (told.network.decoder.seen[0] != 0).all()  # in the place of zeros a number of its own, learned


def test_the_methods_take_any_module_with_an_encoder_and_a_decoder() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder, self.latent_dim = mlp(), Decoder(end=nn.Tanh(), size=6), 6

    x = dots(64)
    for name in ("vnd_ae", "vae", "beta_vae", "joint_vae", "swae", "nested_ae"):
        method, network = SMALL[name], Mine()
        assert type(method) is METHODS[name]
        torch.manual_seed(1)
        model: Any = method.build(network, x[:2])
        assert isinstance(model, EncoderDecoder)
        assert (model.length_biases is not None) == (name == "vnd_ae")
        before = {key: value.clone() for key, value in network.state_dict().items()}
        learn(method, model.train(), x, 100)
        assert all(torch.equal(value, network.state_dict()[key]) for key, value in before.items())  # a copy learned
        model.eval()
        with torch.no_grad():
            error = squared_error(x, method.decode(model, method.point(method.encode(model, x)))).mean()
        assert error < squared_error(x, x.mean(0, keepdim=True).expand_as(x)).mean() / 2
        wanted = ["3 of 6", "6 of 6"] if method.ordered else ["6 of 6"]
        assert [size.label for size in method.sizes(model, Sizes(fractions=(0.5, 1.0)))] == wanted


# Lengths


@pytest.fixture(scope="module")
def learned() -> vnd.OrderedCode:
    return trained()


def test_a_longer_code_errs_less(learned: vnd.OrderedCode) -> None:
    errors = [float((learned.reconstruct(X, length) - X).square().mean()) for length in range(1, D + 1)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < float((X - X.mean(0)).square().mean())
    assert errors[-1] < errors[0] / 2


def test_codes_are_as_long_as_was_asked(learned: vnd.OrderedCode) -> None:
    full = learned.encode(X)
    assert (full != 0).all()
    each = torch.arange(64) % D + 1
    for length in (3, torch.tensor(3), each, "posterior"):
        code = learned.encode(X, length)
        wanted = learned.lengths(X) if isinstance(length, str) else torch.as_tensor(length).expand(64)
        assert torch.equal((code != 0).sum(1), wanted)
        assert torch.equal(code, full * (torch.arange(D) < wanted[:, None]))
    with torch.no_grad():
        probs = learned.eval().posterior(X).gate.length_log_probs.exp().cumsum(1)
    assert torch.equal(learned.lengths(X), 1 + (probs < 0.5).sum(1))  # the median


def test_the_length_of_an_error_is_the_least(learned: vnd.OrderedCode) -> None:
    errors = torch.stack([(learned.reconstruct(X, b) - X).square().flatten(1).mean(1) for b in range(1, D + 1)], 1)
    target = float(errors.median())
    wanted = [next((b + 1 for b in range(D) if row[b] <= target), D) for row in errors.tolist()]
    assert len(set(wanted)) > 2
    assert learned.lengths(X, error=target).tolist() == wanted
    assert torch.equal((learned.encode(X, error=target) != 0).sum(1), torch.tensor(wanted))


def test_what_is_drawn_has_the_prior_s_lengths_or_those_asked_for(learned: vnd.OrderedCode) -> None:
    torch.manual_seed(0)
    lengths = (learned.draw(4000) != 0).sum(1)
    counts = torch.bincount(lengths, minlength=D + 1)[1:]
    assert (counts / 4000 - 1 / D).abs().max() < 4 * math.sqrt(0.16 / 4000)
    assert torch.equal((learned.draw(5, torch.arange(1, 6)) != 0).sum(1), torch.arange(1, 6))
    assert [tuple(level.shape) for level in learned.branches(3, first=0.5)] == [(1, D), (2, D), (4, D), (8, D)]
    assert learned.branches(1, 0.5)[1].tolist() == [[0.5, -1.5, 0, 0, 0], [0.5, 1.5, 0, 0, 0]]


def test_a_fitted_density_is_more_like_the_codes_than_the_prior(learned: vnd.OrderedCode) -> None:
    """By the mean log density of codes drawn for the inputs; its lengths are theirs."""
    density = learned.fit_density([(X[:32], 0), (X[32:], 0)], components=3)
    torch.manual_seed(0)
    with torch.no_grad():
        codes = learned.eval().posterior(X).sample((20,)).flatten(0, 1)
        assert density.log_prob(codes).mean() > learned.prior.log_prob(codes).mean() + 0.5
    kept = (codes != 0).double().mean(0)
    drawn = (learned.draw(4000, density=density) != 0).double().mean(0)
    torch.testing.assert_close(drawn, kept, rtol=0, atol=0.06)
    assert learned.sample(4, length=2, density=density).shape == (4, 1, 8, 8)
    again = learned.fit_density(X, components=3)
    torch.testing.assert_close(again.survival, density.survival, rtol=0, atol=0.02)


def test_it_is_evaluated_at_its_lengths(learned: vnd.OrderedCode) -> None:
    rows = vnd.evaluate(learned, [X[:40], X[40:]], widths=(2, 1.0, "posterior"))
    code = learned.eval().posterior(X)
    each = kl_divergence(Normal(code.loc, code.scale), Normal(0.0, 1.0)).mean(0)
    rates = each[:2].sum(), each.sum(), kl_divergence(code, learned.prior).mean()
    for row, length, rate in zip(rows, (2, D, "posterior"), rates, strict=True):
        error = (learned.reconstruct(X, length) - X).square().mean()  # type: ignore[arg-type]
        assert row["mse"] == pytest.approx(float(error), rel=1e-4)
        assert row["rate"] == pytest.approx(float(rate.detach()), rel=1e-4)
    shortest = vnd.evaluate(coded(base=3), [X], widths=(0.2, 0.5, 1.0))  # none below the base
    assert [row["label"] for row in shortest] == ["3 of 5", "5 of 5"]


# As a module


def test_it_is_copied_saved_and_moved_like_any_module(learned: vnd.OrderedCode, tmp_path: Path) -> None:
    other = coded(seed=9)
    other.load_state_dict(learned.state_dict())
    vnd.save(learned, tmp_path)
    learned.temperature.fill_(0.5)
    codes = learned.encode(X, "posterior")
    for again in (copy.deepcopy(learned), other, vnd.load(tmp_path, model=coded(seed=8))):
        assert torch.equal(again.encode(X, "posterior"), codes)
    double = copy.deepcopy(learned).double()
    assert double.loss(X.double()).dtype == torch.float64
    torch.testing.assert_close(double.reconstruct(X.double()).float(), learned.reconstruct(X), rtol=1e-3, atol=1e-3)


def test_modes_are_left_as_they_were_and_no_call_draws_on_dropout() -> None:
    encoder = nn.Sequential(mlp(), nn.BatchNorm1d(48), nn.Dropout(0.5))
    code = vnd.OrderedCode(encoder, Decoder(), X[:2], D)
    before = copy.deepcopy(code.state_dict())
    assert torch.equal(code.encode(X), code.encode(X))
    code.sample(2), code.lengths(X, error=0.1)
    assert all(module.training for module in code.modules())
    assert all(torch.equal(value, before[name]) for name, value in code.state_dict().items())


def test_its_loss_compiles_once_into_one_graph() -> None:
    code, graphs = coded(tell_length=True, decodes=2), list[Any]()
    code.network.decoder.forward = lambda x: code.network.decoder.layers(x).view(-1, 1, 8, 8)  # it keeps what it sees

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(code.loss, backend=backend, fullgraph=True)
    for step in range(3):
        progress = torch.tensor(step / 3)
        code.temperature.fill_(1 - step / 4)
        torch.manual_seed(step)
        mine = compiled(X, progress=progress)
        torch.manual_seed(step)
        torch.testing.assert_close(mine, code.loss(X, progress=progress))
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_progress_decides_how_many_lengths_are_learned() -> None:
    """At first the gates have no part in what is decoded; at the end they do in 80 %."""
    code = coded(initial_logit=0.0, base=1, decodes=1)
    counts = {}
    for progress in (0.0, 1.0):
        code.network.decoder.seen.clear()
        code.network.heads["keep_logits"].weight.data.zero_()
        code.network.heads["keep_logits"].bias.data.fill_(9.0)  # learned lengths are full
        for _ in range(10):
            code.loss(X, progress=progress)
        lengths = (torch.cat(code.network.decoder.seen) != 0).sum(1)
        counts[progress] = float((lengths == D).double().mean())
    assert counts[0.0] < 0.2
    assert counts[1.0] > 0.75


# Refusals


def nan_encoder() -> nn.Module:
    encoder = mlp()
    encoder[1].weight.data.fill_(math.nan)  # type: ignore[index]
    return encoder


def made(**options: Any) -> vnd.OrderedCode:
    return vnd.OrderedCode(**{"encoder": mlp(), "decoder": Decoder(), "example": X[:2], "latent_dim": D} | options)


BAD: Refusals = {
    "no module": (lambda: made(encoder=lambda x: x), "OrderedCode: encoder must be a torch.nn.Module"),
    "an example that is none": (
        lambda: made(example=3),
        "OrderedCode: example must be a batch of inputs, (B, …); got a int",
    ),
    "an encoder of other inputs": (
        lambda: made(example=X[:2, :, :4]),
        "encoder must take inputs of shape (2, 1, 4, 8)",
    ),
    "an encoder that gives no features": (
        lambda: made(encoder=nn.LSTM(8, 3), example=X[:2, 0], latent_dim=3),
        "encoder must give a tensor of features, or means and log variances (B, d)",
    ),
    "an encoder whose deviations would be lost": (
        lambda: made(encoder=Encoder("scale")),
        "named embedding and log_covariance; got dict of mu, sigma",
    ),
    "inputs of another dtype": (
        lambda: made().loss(X.double()),
        "encoder must take inputs of shape (64, 1, 8, 8), torch.float64; got: ",
    ),
    "a prior from which nothing is drawn": (
        lambda: made(prior="log_uniform").prior,
        "a prior of log_uniform dimensions is no distribution; use kl(x)",
    ),
    "a rate of more than all": (lambda: made().kl(X, D + 1), "length must be a whole number in 1 … 5"),
    "a mean of more than all": (
        lambda: made().posterior(X).mean_at(D + 1),
        "length must be whole and lie in 1 … 5 (base … dimensions); got 6",
    ),
    "a decoder of other codes": (lambda: made(latent_dim=4), "decoder must take codes (B, 4) and give"),
    "a decoder of other images": (lambda: made(decoder=nn.Linear(D, 3)), "it gave (2, 3) for inputs of (2, 1, 8, 8)"),
    "feature maps of no size": (
        lambda: made(encoder=Encoder("maps"), latent_dim=None),
        "latent_dim must be given where the encoder's features are no (B, d); got (2, 6, 2, 2)",
    ),
    "another size than the means": (
        lambda: made(encoder=Encoder("pair"), latent_dim=4),
        "latent_dim must be that of the encoder's means, 5; got 4",
    ),
    "no size": (lambda: made(latent_dim=0), "latent_dim must be an integer of at least 1; got 0"),
    "a base of all": (lambda: made(base=D), "must be greater than method.base = 5; got 5"),
    "an option": (lambda: made(prior_lenght=3), "unknown option 'prior_lenght', did you mean 'prior_length'?"),
    "a temperature": (lambda: made(temperature=0.0), "temperature must be finite and greater than 0; got 0.0"),
    "a likelihood": (
        lambda: made(likelihood="gausian"),
        "likelihood must be one of gaussian, bernoulli, bernoulli_logits",
    ),
    "a distribution of two": (lambda: made(likelihood=Normal), "and Normal takes more; give a function"),
    "a std of probabilities": (
        lambda: made(likelihood="bernoulli", likelihood_std=0.5),
        "likelihood_std is of the likelihood gaussian; got it with 'bernoulli'",
    ),
    "a likelihood of no mean": (
        lambda: made(likelihood=lambda g: Cauchy(g * math.nan, 1.0, validate_args=False)).sample(2),
        "the likelihood must have a mean or a mode that is finite; got a Cauchy",
    ),
    "a likelihood of none": (lambda: made(likelihood=3), "likelihood must be a word or a function"),
    "bytes": (
        lambda: made().loss((255 * X).byte()),
        "OrderedCode: inputs must be floating-point numbers; got torch.uint8",
    ),
    "nan": (lambda: made().loss(X / 0), "OrderedCode: inputs must be finite; got nan … nan"),
    "beyond bernoulli": (
        lambda: made(likelihood="bernoulli_logits").loss(255 * X),
        "OrderedCode: inputs must lie between 0 and 1; got ",
    ),
    "logits as probabilities": (
        lambda: made(likelihood="bernoulli").loss(X),
        ("the decoder must give probabilities for bernoulli; got ", "of logits the likelihood is bernoulli_logits"),
    ),
    "beyond a support": (
        lambda: made(likelihood=Poisson, decoder=Decoder(end=nn.Softplus())).loss(X),
        "OrderedCode: inputs must be in the support of Poisson; got ",
    ),
    "a likelihood of all at once": (
        lambda: made(likelihood=lambda decoded, x: (decoded - x).sum()).loss(X),
        "the likelihood must give 512 log-likelihoods, one an input; got shape ()",
    ),
    "a likelihood that is no distribution": (
        lambda: made(likelihood=lambda decoded: decoded).loss(X),
        "the likelihood must be a torch Distribution, or a function of two; got a Tensor",
    ),
    "an encoder of nan": (
        lambda: made(encoder=nan_encoder()).loss(X),
        "the means of the encoder must be finite; got nan at (0, 0)",
    ),
    "a decoder of nan": (
        lambda: made(decoder=Decoder(end=nn.Threshold(math.inf, math.nan))).loss(X),
        "the loss must be finite; got ",
    ),
    "none": (lambda: made().loss(X[:0]), "inputs must be a batch (B, …); got shape (0, 1, 8, 8)"),
    "one without a batch": (lambda: made().loss(X[0]), "inputs must have shape (B, 1, 8, 8); got (1, 8, 8)"),
    "other inputs": (lambda: made().encode(X[..., :4]), "encoder must take inputs of shape (64, 1, 8, 4)"),
    "too long": (lambda: made().encode(X, D + 1), "a whole number in 1 … 5, one for each of 64, or posterior; got 6"),
    "too short": (lambda: made(base=2).encode(X, 1), "length must be a whole number in 2 … 5"),
    "lengths of others": (lambda: made().encode(X, torch.ones(3).long()), "got torch.int64 of shape (3,)"),
    "a share": (lambda: made().encode(X, 0.5), "length must be a whole number in 1 … 5"),
    "a word": (lambda: made().encode(X, "prior"), "or posterior; got 'prior'"),
    "length and error": (lambda: made().encode(X, 2, error=0.1), "give length or error, one of the two; got 2 and 0.1"),
    "an error of none": (lambda: made().encode(X, error=0.0), "error must be finite and greater than 0; got 0.0"),
    "codes too long": (
        lambda: made().decode(torch.zeros(2, D + 1)),
        "codes must have shape (B, b) with b in 1 … 5; got (2, 6)",
    ),
    "codes of bytes": (lambda: made().decode(torch.zeros(2, 3).long()), "codes must be floating-point numbers (…, b)"),
    "no samples": (lambda: made().sample(0), "count must be a whole number of at least 1; got 0"),
    "more components than codes": (
        lambda: made().fit_density(X[:8], components=5),
        "components must be at least 1, and at most half of the 8 inputs; got 5",
    ),
    "progress": (lambda: made().loss(X, progress=1.5), "progress must lie in [0, 1]; got 1.5"),
    "kl_weight": (lambda: made().loss(X, kl_weight=-1.0), "kl_weight must be 0 or more; got -1.0"),
    "a tree too deep": (lambda: made().branches(5), "depth must lie in 0 … 4; got 5"),
    "a loss of another model": (
        lambda: VNDAE().loss(nn.Linear(2, 2), (2 * X - 1, X), at()),
        "model must be an auto-encoder, as the method's build makes it",
    ),
    "a loss of pixels": (
        lambda: VNDAE().loss(made().network, (255 * X, X), at()),
        "images must lie between −1 and 1; got ",
    ),
    "a loss of bytes": (
        lambda: VNDAE().loss(made().network, ((255 * X).byte(), X), at()),
        "images must be a batch of floating-point numbers; got torch.uint8",
    ),
}


@table(BAD)
def test_what_cannot_be_is_refused_in_one_line(call: Any, words: Any) -> None:
    refused(call, words)


def test_it_looks_also_after_a_compilation_which_turns_torch_s_own_checks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", False)  # as torch.compile leaves it
    refused(BAD["beyond bernoulli"][0], BAD["beyond bernoulli"][1])


def test_who_does_not_want_to_look_may_go_on() -> None:
    assert made(validate_args=False).loss(255 * X).isfinite()
    assert not made(validate_args=False, encoder=nan_encoder()).loss(X).isfinite()


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.mixture", None)
    with pytest.raises(ModuleNotFoundError, match=r"variational-nested-dropout\[density\]"):
        made().fit_density(X)


def test_the_prior_is_that_of_the_chain() -> None:
    code = made(prior_length=2.5)
    assert float(code.prior.expected_length) == pytest.approx(2.5, rel=1e-4)
    assert isinstance(code.prior.gate.chain, BernoulliChain)
