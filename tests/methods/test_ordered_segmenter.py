"""Masks by networks of one's own: any backbone, several classes, any number of graders, any size."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from methods.masks import at, shapes
from vnd.methods import BN3UNet, DropoutUNet, PUNet, Sizes, UNetEnsemble, VNDPUNet
from vnd.methods import segmenter as parts
from vnd.methods.segmenter import class_entropy, likelihood, most_likely, one_each
from vnd.models import Ensemble, ProbabilisticSegmenter, ProbabilisticUNet, UNet
from vnd.nn.state import state_of


class Backbone(nn.Module):
    """A UNet of somebody else's: maps at half the resolution beside those at full, in a dict, and no BatchNorm."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.top, self.deep = nn.Conv2d(channels, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(16, 6, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        top = self.top(x).relu()
        deep = self.deep(F.max_pool2d(top, 2)).relu()
        return {
            "half": deep,
            "full": self.last(torch.cat((top, deep.repeat_interleave(2, 2).repeat_interleave(2, 3)), 1)),
        }


def segmenter(num_classes: int = 3, **options: Any) -> vnd.OrderedSegmenter:
    torch.manual_seed(2)
    given = {"in_channels": 3, "channels": (4, 6), "divisor": 2, "output": "full"} | options
    return vnd.OrderedSegmenter(Backbone(), 6, num_classes, **given)


# The likelihood of classes


def categorical_gap() -> float:
    logits, masks = 3 * torch.randn(2, 3, 4, 5, 7).double(), torch.randint(4, (3, 5, 7))
    wanted = -torch.distributions.Categorical(logits=logits.movedim(2, -1)).log_prob(masks.expand(2, 3, 5, 7))
    return float((likelihood(logits, masks.double()) - wanted.sum((2, 3))).abs().max())


def test_the_likelihood_of_classes_is_that_of_categories_and_of_two_that_of_one_foreground() -> None:
    assert categorical_gap() < 1e-9
    logits, masks = torch.randn(3, 1, 5, 7).double(), torch.randint(2, (3, 5, 7)).double()
    two = torch.cat((torch.zeros_like(logits), logits), 1)
    torch.testing.assert_close(likelihood(two, masks), likelihood(logits, masks))


def test_a_likelihood_along_another_dimension_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tensor.log_softmax
    monkeypatch.setattr(Tensor, "log_softmax", lambda x, dim: right(x, -1))
    assert categorical_gap() > 1


# One loss, one place


def test_the_loss_on_a_backbone_is_that_of_the_recipe_s_network() -> None:
    """The same weights, the one as a network of recipes with its method, the other as a segmenter in a loop."""
    method, (images, masks) = VNDPUNet(all_lengths_share=0.3), shapes()
    torch.manual_seed(1)
    model = method.build(ProbabilisticUNet(channels=(4, 6), num_classes=2), images)
    unet = UNet(channels=(4, 6))
    unet.output = nn.Identity()  # type: ignore[assignment]
    net = vnd.OrderedSegmenter(unet, 4, 2, method=method, channels=(4, 6))
    net.load_state_dict(model.state_dict())
    torch.manual_seed(5)
    wanted = method.loss(model, (images, masks), at(kl_weight=3.0)).total
    torch.manual_seed(5)
    torch.testing.assert_close(net.loss(images, masks, kl_weight=3.0, temperature=0.7), wanted, rtol=0, atol=0)


def test_masks_of_any_graders_are_drawn_evenly_and_only_from_an_image_s_own() -> None:
    """Of 1, 3 and 2 graders, whose masks are their numbers; counts within 5 standard deviations."""
    torch.manual_seed(0)
    masks = [torch.arange(float(count))[:, None, None].expand(-1, 2, 2) for count in (1, 3, 2)]
    chosen = torch.stack([one_each(masks)[:, 0, 0] for _ in range(3000)]).long()
    for image, count in enumerate((1, 3, 2)):
        found = torch.bincount(chosen[:, image], minlength=count)
        assert len(found) == count
        assert (found - 3000 / count).abs().max() <= 5 * math.sqrt(3000 * (1 / count) * (1 - 1 / count))
    padded = torch.stack([mask[:1] for mask in masks])
    assert one_each(padded).shape == (3, 2, 2)
    assert one_each(padded[:, 0]) is not None


def test_drawn_masks_are_evaluated_beside_all_graders_of_each_image() -> None:
    net, images = segmenter(), torch.rand(4, 3, 9, 13)
    masks = [torch.randint(3, (count, 9, 13)) for count in (1, 3, 7, 1)]
    (row,) = vnd.evaluate(net, [(images, masks)], widths=3, seed=5)
    assert (row["label"], row["examples"], row["samples"]) == ("3 of 6", 4, 16)
    drawn = net.eval().predict(images, 16, length=3, seed=5)
    samples, truth = drawn.masks.transpose(0, 1), {"graders": masks, "num_classes": 3}
    assert row["ged_16"] == pytest.approx(float(vnd.metrics.generalized_energy_distance(samples, **truth).mean()))
    assert row["matched_iou"] == pytest.approx(float(vnd.metrics.matched_iou(samples, **truth).mean()))
    groups = [vnd.metrics.generalized_energy_distance(some, **truth) for some in samples.split(4, 1)]
    assert row["ged_4"] == pytest.approx(float(torch.stack(groups).mean()))
    labels = [own["label"] for own in vnd.evaluate(net, [(images, masks[0][0].expand(4, -1, -1))])]
    assert labels == ["3 of 6", "6 of 6", "drawn"]


# Samples and what they have in common


@pytest.mark.parametrize("num_classes", [1, 4])
def test_a_prediction_is_that_of_its_samples_by_hand(num_classes: int) -> None:
    net, images = segmenter(num_classes), torch.rand(2, 3, 9, 13)
    state = torch.get_rng_state()
    found = net.predict(images, samples=5, length=3, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    size = net.method.sizes(net, Sizes((0.5,)))[0]
    torch.manual_seed(4)
    logits = net.method.drawer(net, size)(images, 5).double()
    assert logits.shape == (5, 2, num_classes, 9, 13)
    probs = torch.cat((1 - logits.sigmoid(), logits.sigmoid()), 2) if num_classes == 1 else logits.softmax(2)
    mean = probs.mean(0)
    entropy = -(mean * mean.log()).sum(1)
    inner = -(probs * probs.log()).sum(2).mean(0)
    torch.testing.assert_close(found.masks, probs.argmax(2))
    torch.testing.assert_close(found.probs.double(), mean[:, 1:] if num_classes == 1 else mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    torch.testing.assert_close(found.mutual_information.double(), entropy - inner, rtol=1e-3, atol=1e-5)  # type: ignore[union-attr]
    assert found.samples == 5
    assert float((found.variance > 0).float().mean()) > 0.9  # the samples differ, or the test says little


def test_a_shorter_latent_and_a_drawn_length_are_other_masks() -> None:
    net, images = segmenter(), torch.rand(2, 3, 8, 8)
    nn.init.normal_(net.combiner.code.weight, std=3.0)
    short, whole, drawn = (net.predict(images, 4, length=length, seed=1).probs for length in (2, None, "drawn"))
    assert (short - whole).abs().max() > 1e-3
    assert (drawn - whole).abs().max() > 1e-3
    one = segmenter(method=PUNet())
    assert one.predict(images, 3).masks.shape == (3, 2, 8, 8)


def learn_two_minds(net: vnd.OrderedSegmenter) -> Tensor:
    """Share of samples that call a pixel 1, and 2, of an image whose three graders call it 1, 1 and 2."""
    images, masks = (
        torch.rand(1, 3, 6, 6).expand(16, -1, -1, -1),
        torch.tensor([1.0, 1, 2])[:, None, None].expand(-1, 6, 6),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        net.loss(images, [masks] * 16, kl_weight=3).backward()
        optimizer.step()
    drawn = net.predict(images[:1], samples=400, seed=0).masks
    assert float((drawn.float().flatten(2).std(2) == 0).float().mean()) > 0.9  # whole masks, as graders draw them
    return torch.stack([(drawn[:, 0, 3, 3] == label).float().mean() for label in (1, 2)])


def test_samples_call_a_class_as_often_as_graders_do() -> None:
    found = learn_two_minds(segmenter(latent_dim=3))
    assert float(found.sum()) > 0.98
    assert 0.15 < float(found[1]) < 0.55  # a third, after few steps


def test_a_loss_that_takes_the_first_grader_s_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vnd.methods.vnd_punet.one_each", lambda masks: torch.stack([own[0] for own in masks]))
    assert float(learn_two_minds(segmenter(latent_dim=3))[1]) < 0.1


# Any size, other networks


@pytest.mark.parametrize(
    "network", [UNet(channels=(4, 6, 8)), ProbabilisticUNet(channels=(4, 6, 8)), segmenter(1, divisor=8)]
)
def test_sides_that_do_not_fit_are_filled_with_their_outermost_pixels(network: Any) -> None:
    network.eval()
    channels = 3 if isinstance(network, vnd.OrderedSegmenter) else 1
    maps = network.features
    x = torch.rand(2, channels, 13, 22)
    large = torch.cat((x, x[..., -1:].expand(-1, -1, -1, 2)), -1)
    large = torch.cat((large, large[..., -1:, :].expand(-1, -1, 3, -1)), -2)
    with torch.no_grad():
        torch.testing.assert_close(maps(x), maps(large)[..., :13, :22], rtol=0, atol=0)
        assert network(x).shape == (2, 1, 13, 22)
        assert network(x[..., :1, :3]).shape == (2, 1, 1, 3)  # smaller than any level
        assert (maps(x) - maps(F.pad(large[..., :13, :22], (0, 2, 0, 3)))[..., :13, :22]).abs().max() > 1e-4  # no zeros


def test_maps_of_half_the_resolution_are_brought_to_that_of_the_images() -> None:
    net = ProbabilisticSegmenter(Backbone(), 8, num_classes=2, in_channels=3, channels=(4,), output="half", divisor=2)
    x = torch.rand(2, 3, 10, 12)
    half = net.unet(x)["half"]
    torch.testing.assert_close(net.features(x), F.interpolate(half, (10, 12), mode="bilinear", align_corners=False))
    assert net(x).shape == (2, 2, 10, 12)


def test_prior_and_posterior_may_be_the_user_s() -> None:
    class Net(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.layer = nn.Linear(channels, 16)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return dict(
                zip(("loc", "log_variance", "keep_logits"), self.layer(x.mean((2, 3))).split((6, 6, 4), 1), strict=True)
            )

    net = segmenter(prior=Net(3), posterior=Net(3 + 3))
    net.loss(torch.rand(2, 3, 8, 8), torch.randint(3, (2, 8, 8))).backward()
    assert all(
        p.grad is not None and p.grad.abs().max() > 0 for p in [*net.prior.parameters(), *net.posterior.parameters()]
    )


@pytest.mark.parametrize("method", [VNDPUNet(base=1), PUNet()])
def test_a_class_of_one_s_own_is_the_network_of_a_recipe(method: Any) -> None:
    class Own(ProbabilisticSegmenter):
        def __init__(self, width: int = 6) -> None:
            super().__init__(Backbone(), width, 3, in_channels=3, channels=(4,), output="full")

    network, images = Own(), torch.rand(2, 3, 8, 12)
    model = method.build(network, images)
    assert set(model.prior.heads) == set(method.heads(6))
    torch.testing.assert_close(model.features(images), network.features(images))  # it keeps the backbone's weights
    method.loss(model, (images, torch.randint(3, (2, 8, 12)).float()), at()).total.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert method.drawer(model, method.sizes(model, Sizes((1.0,)))[0])(images, 2).shape == (2, 2, 3, 8, 12)


@pytest.mark.parametrize("num_classes", [1, 3])
def test_methods_take_any_network_that_segments(num_classes: int) -> None:
    class Own(nn.Module):
        def __init__(self, classes: int = num_classes) -> None:
            super().__init__()
            self.config = {"classes": classes}
            self.first, self.drop, self.last = (
                nn.Conv2d(3, 8, 3, padding=1),
                nn.Dropout2d(0.1),
                nn.Conv2d(8, classes, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.drop(self.first(x).relu()))

    images, masks = torch.rand(4, 3, 11, 7), torch.randint(max(2, num_classes), (4, 11, 7)).float()
    for method in (BN3UNet(num_groups=4, base=1), DropoutUNet(rate=0.4), UNetEnsemble(members=3)):
        model = method.build(Own(), images).train()
        method.prepare(model, (images, masks), at(), lambda value: value)
        terms = method.loss(model, (images, masks), at())
        terms.total.backward()
        size = method.sizes(model, Sizes((1.0,)))[0]
        method.recalibrate(model, lambda: [images], [size.width], samples=True)
        logits = method.drawer(model, size)(images, 3)
        assert logits.shape == (3, 4, num_classes, 11, 7)
        assert (logits[0] - logits[1]).abs().max() > 1e-5
    assert isinstance(model, Ensemble)
    each = torch.stack([class_probs(member(images)) for member in model.eval().members])
    torch.testing.assert_close(class_probs(model(images)), each.mean(0))


def class_probs(logits: Tensor) -> Tensor:
    return parts.class_probs(logits.detach())


# Weights that are drawn


def bayesian() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    images = torch.rand(1, 1, 8, 8).expand(3, -1, -1, -1)
    net = vnd.to_nested(UNet(1, 3, (4, 8)), images, num_groups=4, log_alpha_init=0.0)
    vnd.recalibrate(net, [images], [0.5], samples=True)
    return net.eval(), images


def test_samples_of_weights_are_whole_masks_and_those_of_pixels_the_paper_s() -> None:
    """Three copies of an image: draws of the weights give them one mask, draws of outputs each its own."""
    net, images = bayesian()
    for noise, alike in (("weights", True), ("pixels", False)):
        found = vnd.predict_masks(net, images, samples=4, width=0.5, noise=noise, seed=0)  # type: ignore[arg-type]
        assert (float((found.probs - found.probs[:1]).abs().max()) < 1e-6) is alike
        assert float(found.mutual_information.max()) > 1e-3  # type: ignore[union-attr]
        again = vnd.predict_masks(net, images, samples=4, width=0.5, noise=noise, seed=0)  # type: ignore[arg-type]
        torch.testing.assert_close(again.probs, found.probs, rtol=0, atol=0)
        method = BN3UNet(num_groups=4, base=0, test_noise=noise)  # type: ignore[arg-type]
        size = method.sizes(net, Sizes((0.5,)))[0]
        torch.manual_seed(0)
        logits = method.drawer(net, size)(images, 4)
        assert (float((logits - logits[:, :1]).abs().max()) < 1e-4) is alike
    assert {layer.estimator for layer in net.modules() if isinstance(layer, vnd.nn.BayesLayer)} == {"local"}
    assert state_of(net) is not None


def test_a_plain_network_has_one_mask_and_a_segmenter_its_own() -> None:
    x = torch.rand(2, 3, 6, 6)
    plain: Any = nn.Conv2d(3, 1, 1)
    plain.predict = lambda images: plain(images)  # what other libraries call so is no drawing of masks
    found = vnd.predict_masks(plain, x, samples=3)
    torch.testing.assert_close(found.probs, plain(x).detach().sigmoid())
    torch.testing.assert_close(found.masks, most_likely(plain(x).sigmoid()).expand(3, -1, -1, -1))
    torch.testing.assert_close(found.entropy, class_entropy(found.probs))
    net = segmenter()
    torch.testing.assert_close(vnd.predict_masks(net, x, 4, seed=1).masks, net.predict(x, 4, seed=1).masks)


def test_one_logit_a_pixel_is_a_foreground_to_predict() -> None:
    """Softmax of one logit is 1 everywhere: it was, and nobody was told."""
    x = torch.rand(2, 3, 6, 6)
    net = nn.Conv2d(3, 1, 1)
    found = vnd.predict(net, x)
    torch.testing.assert_close(found.probs, net(x).detach().sigmoid())
    assert found.entropy.shape == (2, 1, 6, 6)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"must have two or more classes; got one of shape .*: give link="):
        vnd.predict(net, x, link="softmax")
    with pytest.raises(ValueError, match="must have two or more classes"):
        vnd.predict(nn.Linear(3, 1), torch.rand(4, 3))
    plain = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    nested = vnd.to_nested(plain, x, num_groups=2, bayesian=False).eval()
    torch.testing.assert_close(vnd.predict(nested, x, width=0.5).probs, vnd.extract(nested, 0.5)(x).detach().sigmoid())
