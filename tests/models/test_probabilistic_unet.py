"""The probabilistic UNet and the ensemble: their layers by hand, latents that stop early, saving, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd
from vnd.models import EnsembleUNet, ProbabilisticUNet, UNet, build
from vnd.models.autoencoder import PrefixLinear
from vnd.models.probabilistic import LatentNet

HEADS = {"loc": 6, "log_variance": 6, "keep_logits": 4}
SMALL = {"channels": [4, 6, 8], "heads": HEADS}


def small() -> ProbabilisticUNet:
    return ProbabilisticUNet(channels=(4, 6, 8), heads=HEADS)


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 1, size, size), (torch.rand(3, size, size) > 0.5).float()


def encoder_parameters(first: int, channels: tuple[int, ...]) -> int:
    return sum(9 * (i + o) * o + 4 * o for i, o in zip((first, *channels), channels, strict=False))


@pytest.mark.parametrize(("channels", "latent", "images"), [((32, 64, 128, 192), 6, 1), ((5, 7), 3, 2)])
def test_parameters_are_those_by_hand(channels: tuple[int, ...], latent: int, images: int) -> None:
    heads = {"loc": latent, "other": 9}
    with torch.device("meta"):
        network = ProbabilisticUNet(images, channels, latent, heads)
        unet = sum(p.numel() for p in UNet(images, 1, channels).parameters()) - channels[0] - 1
    nets = encoder_parameters(images, channels) + encoder_parameters(images + 1, channels)
    own, size = channels[0], latent + 9
    combiner = own * (own + latent) + own + 2 * (own + 1) * own + own + 1
    wanted = unet + nets + 2 * size * (channels[-1] + 1) + combiner
    assert sum(p.numel() for p in network.parameters()) == wanted


def test_published_blocks_have_three_convolutions_and_no_norm() -> None:
    """By hand: 3×3 weights and biases of every block of the UNet and both nets; what is beside these is the same."""
    channels, heads = (5, 7, 9), {"loc": 6}
    with torch.device("meta"):
        ours = ProbabilisticUNet(1, channels, heads=heads)
        published = ProbabilisticUNet(1, channels, heads=heads, convolutions=3, norm=False)
    blocks = [(1, 5), (5, 7), (7, 9)] * 2 + [(2, 5), (5, 7), (7, 9), (14, 7), (10, 5)]
    two = sum(9 * (i * o + o * o) + 4 * o for i, o in blocks)
    three = sum(9 * (i * o + 2 * o * o) + 3 * o for i, o in blocks)
    mine, theirs = (sum(p.numel() for p in network.parameters()) for network in (ours, published))
    assert theirs - three == mine - two
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in published.modules())


def test_the_combiner_is_the_convolution_of_features_and_a_tiled_latent() -> None:
    network = small().double()
    features, h = torch.randn(3, 4, 8, 8, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
    nn.init.normal_(network.combiner.image.bias)
    both = torch.cat((features, h[:, :, None, None].expand(3, 6, 8, 8)), 1)
    weight = torch.cat((network.combiner.image.weight, network.combiner.code.weight[:, :, None, None]), 1)
    x = F.conv2d(both, weight, network.combiner.image.bias).relu()
    hidden = [layer for layer in network.combiner.hidden if isinstance(layer, nn.Conv2d)]
    assert len(hidden) == 2
    for layer in hidden:
        x = layer(x).relu()
    wanted = network.combiner.output(x)
    assert wanted.std() > 1e-3
    torch.testing.assert_close(network.combine(features, h), wanted, rtol=0, atol=1e-12)


@torch.no_grad()
def truncation_gap() -> float:
    """Between latents that stop early and latents with zeros, of all lengths, several samples at once."""
    network = small().double().eval()
    features, h = torch.randn(3, 4, 8, 8).double(), torch.randn(2, 3, 6).double()
    worst = 0.0
    for length in range(1, 7):
        zeros = h * (torch.arange(6) < length)
        short, long = network.combine(features, h[..., :length]), network.combine(features, zeros)
        assert short.shape == (2, 3, 1, 8, 8)
        worst = max(worst, float((short - long).abs().max()))
    assert (network.combine(features, h[..., :2]) - network.combine(features, h)).abs().max() > 1e-3
    torch.testing.assert_close(network.combine(features, h)[1], network.combine(features, h[1]))
    return worst


def test_a_latent_that_stops_early_is_one_with_zeros() -> None:
    assert truncation_gap() <= 1e-12


def test_a_combiner_that_reads_the_last_dimensions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(self: PrefixLinear, input: Tensor) -> Tensor:
        return F.linear(input, self.weight[:, -input.shape[-1] :], self.bias)

    monkeypatch.setattr(PrefixLinear, "forward", last)
    assert truncation_gap() > 1e-3


def test_the_prior_sees_the_image_and_the_posterior_the_mask_too() -> None:
    network, (x, y) = small().eval(), batch()
    with torch.no_grad():
        prior, posterior = network.describe(x), network.describe(x, y)
        assert {name: out.shape for name, out in posterior.items()} == {name: (3, size) for name, size in HEADS.items()}
        other = network.describe(x, 1 - y)
        assert prior.keys() == posterior.keys()
        assert (posterior["loc"] - other["loc"]).abs().max() > 1e-4
        mean = network.prior.encoder[2](F.max_pool2d(network.prior.encoder[1](F.max_pool2d(
            network.prior.encoder[0](x), 2)), 2)).mean((2, 3))  # fmt: skip
        torch.testing.assert_close(prior["loc"], network.prior.heads["loc"](mean))
        torch.testing.assert_close(network(x), network.combine(network.unet(x), prior["loc"]))
        torch.testing.assert_close(network.unet(x), network.unet.features(x), rtol=0, atol=0)


def test_what_is_said_of_a_latent_is_not_rounded_to_half_precision() -> None:
    """Means and heads are float32 under autocast: a KL between sharp Gaussians is made of small differences."""
    torch.manual_seed(0)
    net = LatentNet(4, (4,), {"loc": 6})
    net.encoder = nn.ModuleList([nn.Identity()])  # what comes before may be rounded, as it is in the whole UNet
    x = 2 + 0.01 * torch.randn(3, 4, 8, 8)
    wanted = net(x)["loc"]
    with torch.autocast("cpu", torch.bfloat16):
        found = net(x)["loc"]
        rounded = net.heads["loc"](x.mean((2, 3))).float()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    assert float((rounded - wanted).abs().max().detach()) > 1e-4  # as it would be


def test_the_gradient_reaches_every_parameter() -> None:
    network, (x, y) = small(), batch()
    heads = [*network.describe(x).values(), *network.describe(x, y).values()]
    total = network.combine(network.unet(x), network.describe(x, y)["loc"])
    loss = (total * torch.randn_like(total)).sum() + sum(out.square().sum() for out in heads)
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_start_is_of_order_one() -> None:
    network, (x, _) = ProbabilisticUNet(heads=HEADS), batch(32)
    with torch.no_grad():
        logits = network.combine(network.unet(x), torch.randn(3, 6))
        assert 0.1 < float(logits.std()) < 3
        assert 0.05 < float(network.describe(x)["loc"].std()) < 2


def test_the_ensemble_answers_with_the_mean_of_probabilities() -> None:
    network, x = EnsembleUNet(channels=(4, 6), members=3).eval(), torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        each = torch.stack([member(x) for member in network.members])
        torch.testing.assert_close(network.logits(x), each, rtol=0, atol=0)
        torch.testing.assert_close(network(x).sigmoid(), each.sigmoid().mean(0))
        assert (each[0] - each[1]).abs().max() > 1e-2  # each has a random start of its own
        network.members[0].output.bias.fill_(1e4)
        assert network(x).isfinite().all()


def test_dropout_is_in_the_deeper_half_of_the_levels() -> None:
    network, seen = UNet(channels=(4, 6, 8, 10), dropout=0.5), []
    assert network.dropout is not None
    network.dropout.register_forward_hook(lambda module, args, output: seen.append(tuple(args[0].shape[1:])))
    network(torch.randn(2, 1, 16, 16))
    assert seen == [(6, 4, 4), (8, 2, 2), (16, 4, 4)]  # two blocks of the encoder, the deepest of the decoder
    x = torch.randn(2, 1, 16, 16)
    assert (network.eval()(x) - network(x)).abs().max() == 0
    assert [name for name in UNet().state_dict() if "dropout" in name] == []


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("probabilistic_unet", {"channels": [4], "latent": 2, "in_channels": 3}),
        ("unet", {"channels": [4, 6], "dropout": 0.25}),
    ],
)
def test_is_saved_and_loaded_by_its_name(name: str, config: dict[str, object], tmp_path: Path) -> None:
    network = build(name, **config)
    x = torch.randn(4, int(network.config["in_channels"]), 8, 8)
    network(x)  # statistics other than 0 and 1
    known = json.loads(json.dumps(network.config))
    assert known == network.config == build(name, **known).config
    vnd.save(network, tmp_path / "net")
    again = vnd.load(tmp_path / "net")
    assert type(again) is type(network)
    with torch.no_grad():
        torch.testing.assert_close(again(x), network.eval()(x), rtol=0, atol=0)
