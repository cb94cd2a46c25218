"""Segmenting methods that tests share: each with options, small networks, four images that are told apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vnd.methods import BN3UNet, DropoutUNet, PUNet, Segmenter, Sizes, Step, UNetEnsemble, VNDPUNet
from vnd.methods.vnd_punet import Probabilistic
from vnd.models import ProbabilisticUNet, UNet

SIDE, LATENT, CHANNELS = 16, 6, (6, 8, 10)
SMALL: dict[str, Segmenter] = {
    "vnd_punet": VNDPUNet(),
    "vnd_punet, lengths": VNDPUNet(base=1, fractions=(1 / 3, 1.0), fixed_share=0.6, initial_logit=2.0),
    "vnd_punet, all lengths": VNDPUNet(all_lengths_share=0.5, sampler="released"),
    "punet": PUNet(),
    "bn3_unet": BN3UNet(num_groups=8, base=2, initial_logit=5.0),
    "bn3_unet, points": BN3UNet(num_groups=8, base=2, bayesian=False, initial_logit=5.0),
    "unet_ensemble": UNetEnsemble(members=3),
    "dropout_unet": DropoutUNet(rate=0.3),
}


def network_of(method: Segmenter, channels: tuple[int, ...] = CHANNELS) -> nn.Module:
    """The plain network that a method is built of."""
    if isinstance(method, Probabilistic):
        return ProbabilisticUNet(channels=channels, latent=LATENT)
    return UNet(channels=channels)


def model_of(method: Segmenter, seed: int = 1, channels: tuple[int, ...] = CHANNELS) -> nn.Module:
    """A method's model, in training."""
    torch.manual_seed(seed)
    network = network_of(method, channels)
    built: nn.Module = method.build(network, torch.rand(2, 1, SIDE, SIDE))  # type: ignore[attr-defined]
    return built.train()


def shapes() -> tuple[Tensor, Tensor]:
    """Four noisy images of a disc, a bar, a ring and nothing, and their masks."""
    grid = torch.linspace(-1, 1, SIDE)
    down, across = grid[:, None].expand(SIDE, SIDE), grid.expand(SIDE, SIDE)
    far = (down.square() + across.square()).sqrt()
    masks = torch.stack([far < 0.5, across.abs() < 0.25, (far > 0.4) & (far < 0.8), far > 9]).float()
    noise = torch.randn(4, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(5))
    return 2 * masks.unsqueeze(1) - 1 + 0.3 * noise, masks


def at(index: int = 0, kl_weight: float = 1.0, num_data: int = 4) -> Step:
    return Step(index, torch.tensor(kl_weight), 0.7, num_data)


def learn(method: Segmenter, model: nn.Module, batch: tuple[Tensor, Tensor], steps: int, rate: float = 0.01) -> None:
    """Train a model on all images at once, by the method's own loss and a rate that falls to 0."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    torch.manual_seed(0)
    for index in range(steps):
        step = at(index, 0.01)
        method.prepare(model, batch, step, lambda value: value)  # type: ignore[attr-defined]
        terms = method.loss(model, batch, step)  # type: ignore[attr-defined]
        assert terms.total.isfinite()
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        schedule.step()


def drawn(method: Segmenter, model: nn.Module, images: Tensor, count: int, fraction: float = 1.0) -> Tensor:
    """Logits of masks at a size, its statistics ready."""
    size = method.sizes(model, Sizes(fractions=(fraction,)))[0]  # type: ignore[attr-defined]
    method.recalibrate(model, lambda: [images], [size.width], samples=True)  # type: ignore[attr-defined]
    return method.drawer(model, size)(images, count)
