"""VND-PUNet and P-UNet: the learned KL, the loss by hand, lengths, and a NaN that names its layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from methods.masks import LATENT, at, drawn, model_of, shapes
from vnd.distributions import OrderedNormal
from vnd.distributions.kl import chain_kl, normal_kl, ordered_normal_kl
from vnd.methods import PUNet, Sizes, VNDPUNet
from vnd.methods.segmenter import likelihood, normal_of
from vnd.methods.vnd_punet import probabilistic
from vnd.models import ProbabilisticUNet
from vnd.train.loop import diagnosis

METHOD = VNDPUNet(base=2, fractions=(1 / 3, 0.75), fixed_share=0.4)


def trained_like(method: VNDPUNet, seed: int = 1) -> ProbabilisticUNet:
    """A model whose heads say different things of different images, and of the same image with and without a mask."""
    model = probabilistic(model_of(method, seed)).double()
    with torch.no_grad():
        for net in (model.prior, model.posterior):
            for name, head in net.heads.items():
                head.weight.normal_(std=0.3)
                head.bias.normal_(0.5 if name == "keep_logits" else 0.0, 0.5)
    return model.eval()


def ends(seed: int = 1) -> tuple[OrderedNormal, OrderedNormal]:
    """Posterior and prior of four images."""
    model, (images, masks) = trained_like(METHOD, seed), shapes()
    with torch.no_grad():
        posterior, prior = (METHOD.latent(model, images.double(), y, 0.7) for y in (masks.double(), None))
    return posterior, prior


# The KL


def monte_carlo_gap(kl: Callable[[OrderedNormal, OrderedNormal], Tensor], draws: int = 20_000) -> float:
    """How many standard errors a KL is from the mean of log q − log p over draws of q, at the worst image."""
    posterior, prior = ends()
    h = posterior.sample((draws,))
    difference = posterior.log_prob(h) - prior.log_prob(h)
    error = difference.std(0) / math.sqrt(draws)
    return float(((difference.mean(0) - kl(posterior, prior)).abs() / error).max())


def paper_kl(q: OrderedNormal, p: OrderedNormal) -> Tensor:
    """As the paper prints it: a dimension is charged only where it is the last."""
    cost = normal_kl(q.loc, q.scale, p.loc, p.scale)
    return chain_kl(q.gate.chain, p.gate.chain) + (q.gate.length_log_probs.exp() * cost[:, q.base - 1 :]).sum(1)


WRONG: dict[str, Callable[[OrderedNormal, OrderedNormal], Tensor]] = {
    "the paper's sum of β κ": paper_kl,
    "every dimension charged": lambda q, p: (
        chain_kl(q.gate.chain, p.gate.chain) + normal_kl(q.loc, q.scale, p.loc, p.scale).sum(1)
    ),
    "no chain": lambda q, p: ordered_normal_kl(q, p) - chain_kl(q.gate.chain, p.gate.chain),
    "the other way round": lambda q, p: ordered_normal_kl(p, q),
}


def test_the_learned_kl_is_that_of_monte_carlo() -> None:
    assert monte_carlo_gap(ordered_normal_kl) < 4


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_kl_is_caught(fault: str) -> None:
    assert monte_carlo_gap(WRONG[fault]) > 8


def kl_by_hand(q: OrderedNormal, p: OrderedNormal) -> Tensor:
    """Over all lengths, each with its probability and the cost of what it keeps."""
    cost = kl_divergence(Normal(q.loc, q.scale), Normal(p.loc, p.scale))
    total = torch.zeros(len(cost), dtype=cost.dtype)
    for chain in range(LATENT - q.base + 1):
        ours, theirs = (_length(x.keep_logits.sigmoid(), chain) for x in (q, p))
        total += ours * ((ours / theirs).log() + cost[:, : q.base + chain].sum(1))
    return total


def _length(keep: Tensor, length: int) -> Tensor:
    kept = keep[:, :length].prod(1)
    return kept if length == keep.size(1) else kept * (1 - keep[:, length])


# Losses by hand


def check_loss(method: VNDPUNet, model: ProbabilisticUNet) -> None:
    images, masks = (x.double() for x in shapes())
    torch.manual_seed(11)
    terms = method.loss(model, (images, masks), at(kl_weight=3.0))
    q, p = (method.latent(model, images, y, 0.7) for y in (masks, None))
    torch.testing.assert_close(terms.parts["kl"], kl_by_hand(q, p).mean())
    torch.manual_seed(11)
    codes = [q.rsample(hard=True), q.rsample(length=2), q.rsample(length=5)]
    features = model.unet(images)
    surprise = [
        F.binary_cross_entropy_with_logits(model.combine(features, h)[..., 0, :, :], masks, reduction="sum") / 4
        for h in codes
    ]
    cost = kl_divergence(Normal(q.loc, q.scale), Normal(p.loc, p.scale))
    fixed = [surprise[1] + 3 * cost[:, :2].sum(1).mean(), surprise[2] + 3 * cost[:, :5].sum(1).mean()]
    wanted = 0.6 * (surprise[0] + 3 * kl_by_hand(q, p).mean()) + 0.4 * (fixed[0] + fixed[1]) / 2
    torch.testing.assert_close(terms.total, wanted)
    torch.testing.assert_close(terms.parts["nll"], surprise[0])
    assert 2 < terms.parts["length"] < LATENT


def test_the_loss_is_that_by_hand() -> None:
    check_loss(METHOD, trained_like(METHOD))


def test_a_loss_with_the_paper_s_kl_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vnd.methods.vnd_punet.ordered_normal_kl", paper_kl)
    with pytest.raises(AssertionError):
        check_loss(METHOD, trained_like(METHOD))


def test_the_loss_of_latents_of_all_lengths_is_that_by_hand() -> None:
    """Half of the images have lengths that are even by ratio, 2 … 6, and pay for them."""
    method = VNDPUNet(base=2, all_lengths_share=0.5)
    model, (images, masks) = trained_like(method), (x.double() for x in shapes())
    torch.manual_seed(11)
    terms = method.loss(model, (images, masks), at(kl_weight=3.0))
    q, p = (method.latent(model, images, y, 0.7) for y in (masks, None))
    torch.manual_seed(11)
    drawn, u = q.rsample(hard=True), torch.rand(())
    lengths = [int(2 * 3.5 ** ((image + float(u)) / 2)) for image in (0, 1)]
    assert lengths in ([2, 3], [2, 4], [2, 5], [3, 5], [2, 6], [3, 6])
    told = q.rsample(length=torch.tensor([*lengths, 2, 2]))
    h = torch.cat((told[:2], drawn[2:]))
    logits = model.combine(model.unet(images), h[None])[0, :, 0]
    surprise = F.binary_cross_entropy_with_logits(logits, masks, reduction="sum") / 4
    cost = kl_divergence(Normal(q.loc, q.scale), Normal(p.loc, p.scale))
    probs = [math.log((b + 1) / b) / math.log(7 / 2) for b in range(2, 7)]
    even = sum(prob * cost[:, :b].sum(1) for b, prob in enumerate(probs, 2))
    rate = 0.5 * kl_by_hand(q, p).mean() + 0.5 * even.mean()
    torch.testing.assert_close(terms.total, surprise + 3 * rate, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(terms.parts["kl"], kl_by_hand(q, p).mean())


def test_the_released_sampler_draws_other_latents_and_has_the_same_kl() -> None:
    """Lengths by chi-square, with false alarms in one of 10⁴ seeds; the seed is fixed, and the exact law is caught."""
    exact, released, (images, masks) = VNDPUNet(), VNDPUNet(sampler="released"), shapes()
    model = trained_like(exact)
    images, masks = images.double(), masks.double()
    seen: list[Tensor] = []
    model.combine = lambda features, h: (seen.append(h), ProbabilisticUNet.combine(model, features, h))[1]  # type: ignore[method-assign,func-returns-value]
    torch.manual_seed(3)
    with torch.no_grad():
        terms = released.loss(model, (images[:1].expand(2000, -1, -1, -1), masks[:1].expand(2000, -1, -1)), at())
        q, p = (exact.latent(model, images[:1], y, 0.7) for y in (masks[:1], None))
    counts = torch.bincount((seen[0][0] != 0).sum(1), minlength=LATENT + 1)[2:]
    probs = q.gate.length_log_probs.exp()[0]
    assert stats.chisquare(counts.tolist(), (2000 * probs.softmax(0)).tolist()).pvalue > 1e-4
    assert stats.chisquare(counts.tolist(), (2000 * probs / probs.sum()).tolist()).pvalue < 1e-6
    torch.testing.assert_close(terms.parts["kl"], kl_by_hand(q, p).mean())


def test_the_loss_of_a_p_unet_is_that_by_hand() -> None:
    method, (images, masks) = PUNet(), shapes()
    model = probabilistic(model_of(method)).eval()
    torch.manual_seed(2)
    terms = method.loss(model, (images, masks), at(kl_weight=10.0))
    torch.manual_seed(2)
    q, p = (Normal(*normal_of(model.describe(images, y))) for y in (masks, None))
    surprise = likelihood(model.combine(model.unet(images), q.mean + q.stddev * torch.randn(4, LATENT)), masks).mean()
    divergence = kl_divergence(q, p).sum(1).mean()
    assert divergence > 0.01
    torch.testing.assert_close(terms.total, surprise + 10 * divergence)


def test_without_fixed_lengths_the_drawn_one_has_the_whole_loss() -> None:
    method, (images, masks) = VNDPUNet(), shapes()
    terms = method.loss(model_of(method), (images, masks), at(kl_weight=3.0))
    torch.testing.assert_close(terms.total.detach(), terms.parts["nll"] + 3 * terms.parts["kl"])


@pytest.mark.parametrize("method", [METHOD, PUNet()], ids=str)
def test_the_gradient_reaches_every_parameter(method: Any) -> None:
    model = model_of(method)
    method.loss(model, shapes(), at()).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


# Lengths


@pytest.mark.parametrize("fraction", [1 / 3, 1.0])
def test_a_fixed_length_is_a_masked_latent(fraction: float) -> None:
    model, (images, _) = trained_like(METHOD), shapes()
    images = images.double()
    torch.manual_seed(4)
    found = drawn(METHOD, model, images, 3, fraction)
    torch.manual_seed(4)
    loc, scale = normal_of(model.describe(images))
    h = (loc + scale * torch.randn(3, 4, LATENT, dtype=torch.float64)) * (torch.arange(LATENT) < 6 * fraction)
    torch.testing.assert_close(found, model.combine(model.unet(images), h), rtol=0, atol=1e-10)


def test_latents_come_from_the_prior_and_spread_as_it_says() -> None:
    model, (images, _) = trained_like(METHOD), shapes()
    seen: list[Tensor] = []
    model.combiner.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    drawn(METHOD, model, images.double(), 2000)
    loc, scale = normal_of(model.describe(images.double()))
    h = torch.cat(seen)
    assert ((h.mean(0) - loc).abs() < 5 * scale / math.sqrt(2000)).all()
    torch.testing.assert_close(h.std(0), scale, rtol=0.1, atol=0)


def test_lengths_are_drawn_from_the_prior_as_the_paper_draws_them() -> None:
    """Of two lengths, base and all, each comes as often as the prior says; what is beyond is zero."""
    method = VNDPUNet(base=2, initial_logit=0.5)
    model, (images, _) = model_of(method).eval(), shapes()
    (size,) = method.others(model)
    assert (size.kind, size.label) == ("sampled", "drawn")
    torch.manual_seed(3)
    with torch.no_grad():
        h = method.prior_draws(model, images, 4000, size)  # type: ignore[arg-type]
        prior = method.latent(model, images, None, 0.7)
    assert h.shape == (4000, 4, LATENT)
    torch.testing.assert_close((h != 0).double().mean(0), prior.survival.double(), atol=0.04, rtol=0)
    assert bool(((h != 0).long().diff(dim=-1) <= 0).all())  # no gap in a latent
    fixed = method.prior_draws(model, images, 3, method.sizes(model, Sizes(fractions=(1.0,)))[0])  # type: ignore[arg-type]
    assert bool((fixed != 0).all())
    assert PUNet().others(model) == []


def test_many_samples_are_drawn_in_parts_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (images, _) = trained_like(METHOD), shapes()
    torch.manual_seed(4)
    whole = drawn(METHOD, model, images.double(), 5)
    monkeypatch.setattr("vnd.methods.vnd_punet.PIXELS", 2 * images.numel() + 1)
    torch.manual_seed(4)
    torch.testing.assert_close(drawn(METHOD, model, images.double(), 5), whole)


def test_latents_start_long() -> None:
    for logit in (0.0, 4.0):
        method, (images, masks) = VNDPUNet(initial_logit=logit), shapes()
        model = model_of(method)
        for y in (masks, None):
            keep = method.latent(model, images, y, 1.0).keep_logits
            assert (keep - logit).abs().max() < 1
            assert keep.shape == (4, LATENT - 2)
    assert VNDPUNet().sizes(model_of(VNDPUNet()), Sizes(fractions=(1.0,)))[0].label == "6 of 6"


# What is not a number


def diagnosed(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> str:
    train_state: Any = SimpleNamespace(
        root=model, method=METHOD, folder=Path("run"), epoch=lambda step: 0,
        accelerator=SimpleNamespace(autocast=lambda: torch.autocast("cpu", enabled=False)),
    )  # fmt: skip
    return diagnosis(train_state, batch, at(3), seed=0)


PLACES = ["unet.encoder.1.0", "prior.encoder.2.3", "posterior.heads.log_variance", "combiner.code", "combiner.output"]


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_a_number_names_its_parameter_or_layer(place: str) -> None:
    model, batch = model_of(METHOD), shapes()
    layer = model.get_submodule(place)
    hook = layer.register_forward_hook(lambda module, args, output: output * math.nan)
    assert not METHOD.loss(model, batch, at()).total.isfinite()
    assert f"first in the output of layer {place} ({type(layer).__name__})" in diagnosed(model, batch)
    hook.remove()
    layer.weight.data.view(-1)[0] = math.nan  # type: ignore[union-attr,operator]
    assert not METHOD.loss(model, batch, at()).total.isfinite()
    assert f"parameter {place}.weight is not" in diagnosed(model, batch)
