"""Auto-encoders that tests share: every method with options of its own, small networks, images of one bright dot."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vnd.methods import SWAE, VAE, VNDAE, AutoencoderMethod, BetaVAE, JointVAE, NestedAE, Step
from vnd.models import AutoEncoder, DenseAutoEncoder
from vnd.models.autoencoder import CodedNetwork

CODE = 6
DENSE = {"name": "dense_autoencoder", "latent_dim": CODE, "image_size": 8, "in_channels": 1, "hidden": [16]}
SMALL: dict[str, AutoencoderMethod] = {
    "vnd_ae": VNDAE(likelihood_std=0.1),
    "vnd_ae, lengths": VNDAE(
        likelihood_std=0.1, base=2, prior_length=3.5, fractions=(0.5, 1.0), fixed_share=0.4, free_bits=0.2
    ),
    "vnd_ae, decoded twice": VNDAE(
        likelihood_std=0.1,
        fractions=(0.5, 1.0),
        weights=(1, 3),
        fixed_share=0.9,
        each_image="one",
        decodes=2,
        free_bits=2.0,
        free_until=0.95,
    ),
    "vnd_ae, pure": VNDAE(likelihood_std=0.1, all_lengths_share=0.0),
    "vnd_ae, released": VNDAE(likelihood_std=0.1, base=2, sampler="released"),
    "vnd_ae, log-uniform": VNDAE(likelihood_std=0.1, prior="log_uniform"),
    "vae": VAE(likelihood_std=0.1),
    "beta_vae": BetaVAE(likelihood_std=0.1),
    "beta_vae, capacity": BetaVAE(likelihood_std=0.1, form="capacity", over=100),
    "joint_vae": JointVAE(likelihood_std=0.1, categories=3, over=100),
    "swae": SWAE(likelihood_std=0.1, weight=1.0, projections=50),
    "nested_ae": NestedAE(likelihood_std=0.1),
    "nested_ae, geometric": NestedAE(likelihood_std=0.1, base=2, keep=0.8),
}


def dots(count: int, side: int = 8, channels: int = 1) -> Tensor:
    """Images between −1 and 1 with a dot at a place, and of a width, of its own."""
    generator, grid = torch.Generator().manual_seed(3), torch.linspace(-1, 1, side)
    place = 1.2 * torch.rand(count, 2, 1, generator=generator) - 0.6
    width = 0.1 + 0.3 * torch.rand(count, 1, 1, generator=generator)
    down, across = (grid - place[:, 0])[:, :, None], (grid - place[:, 1])[:, None]
    return (2 * torch.exp(-(down.square() + across.square()) / width) - 1)[:, None].repeat(1, channels, 1, 1)


def dense(code: int = CODE, hidden: tuple[int, ...] = (16,)) -> DenseAutoEncoder:
    return DenseAutoEncoder(latent_dim=code, image_size=8, hidden=hidden)


def convolutional(code: int = CODE) -> AutoEncoder:
    return AutoEncoder(latent_dim=code, image_size=32, in_channels=1, width=0.0625)


def model_of(method: AutoencoderMethod, network: CodedNetwork | None = None, seed: int = 1) -> CodedNetwork:
    """A method's model, in training, with heads whose outputs differ from image to image."""
    torch.manual_seed(seed)
    network = network or dense()
    model = method.build(network, torch.zeros(2, 1, network.config["image_size"], network.config["image_size"]))
    assert isinstance(model, CodedNetwork)
    return model.train()


def at(index: int = 0, kl_weight: float = 1.0) -> Step:
    return Step(index, torch.tensor(kl_weight), 0.7, num_data=64)


def learn(
    method: AutoencoderMethod, model: CodedNetwork, x: Tensor, steps: int, rate: float = 0.01, seed: int = 0
) -> None:
    """Train a model on all images at once, by the method's own loss and a rate that falls to 0."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    torch.manual_seed(seed)
    for index in range(steps):
        batch, step = (x, torch.zeros(len(x), dtype=torch.int64)), replace(at(index), share=index / steps)
        method.prepare(model, batch, step, lambda value: value)
        terms = method.loss(model, batch, step)
        assert terms.total.isfinite()
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        schedule.step()
