"""What all segmenting methods share: the likelihood, drawn masks, that each learns four images, saving, refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vnd
from methods.masks import LATENT, SIDE, SMALL, at, drawn, model_of, shapes
from vnd.methods import BN3UNet, DropoutUNet, Sizes, UNetEnsemble, VNDPUNet
from vnd.methods.segmenter import LOG_VARIANCE, likelihood, normal_of
from vnd.models import EnsembleUNet
from vnd.nn import BayesLayer

each = pytest.mark.parametrize("name", SMALL)


# The likelihood


def test_the_likelihood_is_that_of_bernoulli_pixels_summed() -> None:
    logits, masks = 3 * torch.randn(2, 3, 5, 5), (torch.rand(3, 5, 5) > 0.5).float()
    wanted = -torch.distributions.Bernoulli(logits=logits).log_prob(masks.expand(2, 3, 5, 5)).sum((2, 3))
    torch.testing.assert_close(likelihood(logits[:, :, None], masks), wanted)
    sure = likelihood(torch.full((1, 1, 2, 2), 1e4), torch.zeros(1, 2, 2))
    assert sure.tolist() == [4e4]  # neither infinite nor cut off
    assert likelihood(logits[:, :, None].bfloat16(), masks).dtype == torch.float32


def test_log_variances_are_held_and_can_come_back() -> None:
    raw = torch.tensor([[-1e3, -20.0, -3.0, 0.0, 20.0, 1e3]], requires_grad=True)
    _, scale = normal_of({"loc": raw, "log_variance": raw})
    log_variance = 2 * scale.log()
    assert log_variance.min() >= LOG_VARIANCE[0] - 1e-5
    assert log_variance.max() <= LOG_VARIANCE[1] + 1e-5
    torch.testing.assert_close(log_variance[0, 2:4], torch.tensor([-3.0, 0.0]), atol=0.2, rtol=0)
    (gradient,) = torch.autograd.grad(log_variance.sum(), raw)
    assert (gradient[0, 1:5] > 1e-3).all()


# Drawn masks


@each
def test_drawn_masks_have_a_shape_and_a_seed_and_leave_the_network_as_it_was(name: str) -> None:
    method, (images, _) = SMALL[name], shapes()
    model = model_of(method)
    model(images)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    size = method.sizes(model, Sizes(fractions=(1.0,)))[0]  # type: ignore[attr-defined]
    method.recalibrate(model, lambda: [images], [size.width], samples=True)  # type: ignore[attr-defined]
    draw, found = method.drawer(model, size), []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(draw(images, 5))
    assert found[0].shape == (5, 4, 1, SIDE, SIDE)
    assert found[0].dtype == torch.float32
    assert not found[0].requires_grad
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    certain = isinstance(method, UNetEnsemble) or name == "bn3_unet, points"
    assert (float((found[0] - found[2]).abs().max()) == 0) is certain
    if name != "bn3_unet, points":
        assert (found[0][0] - found[0][1]).abs().max() > 1e-4  # one sample is not another
    assert all(module.training for module in model.modules())
    state = model.state_dict()  # with the statistics that were collected
    for key, value in before.items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["vnd_punet", "punet", "unet_ensemble", "bn3_unet, points"])
def test_masks_do_not_depend_on_the_other_images_of_the_batch(name: str) -> None:
    """In evaluation mode, that is: BatchNorm has the statistics of training."""
    method, (images, _) = SMALL[name], shapes()
    model = model_of(method)
    size = method.sizes(model, Sizes(fractions=(1.0,)))[0]  # type: ignore[attr-defined]
    draw = method.drawer(model, size)
    other = images.clone()
    other[1:] = 0
    torch.manual_seed(1)
    one = draw(images, 2)
    torch.manual_seed(1)
    torch.testing.assert_close(draw(other, 2)[:, 0], one[:, 0])


def weight_draws_are_shared(method: BN3UNet, model: nn.Module, images: Tensor) -> bool:
    twice = images[:1].repeat(3, 1, 1, 1)
    logits = drawn(method, model, twice, 4)
    assert (logits[0] - logits[1]).abs().max() > 1e-4
    return float((logits - logits[:, :1]).abs().max()) < 1e-4


def test_a_sample_of_bn3_is_one_draw_of_the_weights_for_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    method, (images, _) = SMALL["bn3_unet"], shapes()
    assert isinstance(method, BN3UNet)
    model = model_of(method)
    assert weight_draws_are_shared(method, model, images)
    assert {m.estimator for m in model.modules() if isinstance(m, BayesLayer)} == {"local"}  # as training had it
    plain = BayesLayer.__setattr__

    def local(self: BayesLayer, name: str, value: Any) -> None:
        plain(self, name, "local" if name == "estimator" else value)

    monkeypatch.setattr(BayesLayer, "__setattr__", local)  # each pixel its own noise
    assert not weight_draws_are_shared(method, model, images)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_masks_of_bn3_are_those_of_the_network_of_that_width(fraction: float) -> None:
    method, (images, _) = SMALL["bn3_unet, points"], shapes()
    model = model_of(method)
    found = drawn(method, model, images, 2, fraction)
    vnd.recalibrate(model, [images], [fraction])
    with torch.no_grad(), vnd.width(model.eval(), fraction):
        torch.testing.assert_close(found[1], model(images), rtol=1e-4, atol=1e-4)


def test_sample_i_of_an_ensemble_is_member_i() -> None:
    method, (images, _) = UNetEnsemble(members=3), shapes()
    model = model_of(method)
    assert isinstance(model, EnsembleUNet)
    found = drawn(method, model, images, 7)
    with torch.no_grad():
        members = [member(images) for member in model.eval().members]
    for index in range(7):
        torch.testing.assert_close(found[index], members[index % 3])


def test_a_method_says_how_many_masks_it_has_to_draw_from() -> None:
    found = {name: method.distinct(model_of(method)) for name, method in SMALL.items()}
    limited = {name: count for name, count in found.items() if count is not None}
    assert limited == {"unet_ensemble": 3, "bn3_unet, points": 1}
    for name, count in limited.items():
        logits = drawn(SMALL[name], model_of(SMALL[name]), shapes()[0], 6)
        assert len({tuple(sample.flatten().tolist()) for sample in logits}) == count


def test_dropout_stays_on_when_masks_are_drawn_and_batch_norm_does_not() -> None:
    method, (images, _) = DropoutUNet(rate=0.3), shapes()
    model = model_of(method)
    with torch.no_grad():
        mean = model.eval()(images)
    found = drawn(method, model, images, 6)
    assert all((one - mean).abs().max() > 1e-3 for one in found)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.testing.assert_close(drawn(method, model, images, 1)[0], mean)


def test_bn3_has_widths_ordered_latents_have_lengths_and_others_one_size() -> None:
    wanted = Sizes(fractions=(0.1, 1 / 3, 1.0))
    found = {name: [size.label for size in method.sizes(model_of(method), wanted)] for name, method in SMALL.items()}  # type: ignore[attr-defined]
    assert found["vnd_punet"] == ["2 of 6", "6 of 6"]  # a tenth is no less than the base
    assert found["vnd_punet, lengths"] == ["1 of 6", "2 of 6", "6 of 6"]
    assert found["punet"] == ["6 of 6"]
    assert found["bn3_unet"] == ["10 %", "33.33 %", "100 %"]
    assert found["unet_ensemble"] == found["dropout_unet"] == ["100 %"]
    model = model_of(VNDPUNet())
    assert [VNDPUNet().length(model, size) for size in VNDPUNet().sizes(model, wanted)] == [2, LATENT]


# Losses by hand


def test_the_loss_of_an_ensemble_is_the_sum_of_its_members() -> None:
    method, (images, masks) = UNetEnsemble(members=2), shapes()
    model = model_of(method)
    assert isinstance(model, EnsembleUNet)
    wanted = sum(likelihood(member(images), masks).mean() for member in model.members)
    torch.testing.assert_close(method.loss(model, (images, masks), at()).total, wanted)


def test_the_loss_of_bn3_is_its_likelihood_and_its_share_of_the_kl() -> None:
    method, (images, masks) = BN3UNet(num_groups=8, base=2), shapes()
    model = model_of(method)
    same = copy.deepcopy(model)  # a pass moves on which lengths are next
    torch.manual_seed(3)
    terms = method.loss(model, (images, masks), at(1, 0.5, 40))
    torch.manual_seed(3)
    wanted = likelihood(same(images), masks).mean()
    assert terms.parts["kl"] > 0
    torch.testing.assert_close(terms.parts["nll"], wanted.detach())
    torch.testing.assert_close(terms.total, wanted + 0.5 / 40 * vnd.kl(model, "output"))


# Precision


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's, of setting the flag back
@each
def test_half_precision_does_not_reach_the_loss(name: str) -> None:
    method, batch = SMALL[name], shapes()
    model = model_of(method)
    # oneDNN's transposed convolutions in bfloat16 are an illegal instruction on some processors.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        assert model(batch[0]).dtype == torch.bfloat16
        terms = method.loss(model, batch, at())  # type: ignore[attr-defined]
        size = method.sizes(model, Sizes(fractions=(1.0,)))[0]  # type: ignore[attr-defined]
        assert method.drawer(model, size)(batch[0], 2).dtype == torch.float32
    assert {value.dtype for value in (terms.total, *terms.parts.values())} == {torch.float32}
    assert terms.total.isfinite()


# Costs


@pytest.mark.parametrize("name", ["punet", "bn3_unet", "unet_ensemble"])
def test_a_model_is_counted(name: str) -> None:
    method, (images, _) = SMALL[name], shapes()
    model = model_of(method)
    size = method.sizes(model, Sizes(fractions=(1.0,)))[0]  # type: ignore[attr-defined]
    method.recalibrate(model, lambda: [images], [size.width], samples=True)  # type: ignore[attr-defined]
    network = method.extract(model, size.width)  # type: ignore[attr-defined]
    counted = method.cost(network, images)  # type: ignore[attr-defined]
    assert counted["macs"] > 0
    assert counted["parameters"] == sum(p.numel() for p in network.parameters())
