"""Ways to draw the lengths of an ordered code in training: the paper's, that of its released code, and the default."""

import torch
from torch import nn

import vnd

WAYS = {  # options of vnd.methods.VNDAE, which recipes have as well: --method.sampler released
    "pure": {"all_lengths_share": 0.0},  # lengths are drawn by what is learned alone
    "released": {"sampler": "released"},  # nearly uniform lengths
    "default": {},  # a share of the decodings, falling from 1 to 0.2, has any length
}


def train(options: dict, images: torch.Tensor, steps: int) -> vnd.OrderedCode:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 784), nn.Tanh(), nn.Unflatten(1, (1, 28, 28)))
    code = vnd.OrderedCode(encoder, decoder, images[:2], latent_dim=4, likelihood_std=0.5, **options)
    optimizer = torch.optim.Adam(code.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        code.loss(images[torch.randint(len(images), (64,))], progress=step / steps).backward()
        optimizer.step()
    return code


def main(steps: int = 3000) -> dict[str, list[float]]:
    images, test = (torch.from_numpy(vnd.data.load("fashion", part).pixels) / 127.5 - 1 for part in ("train", "test"))
    errors = {}
    for way, options in WAYS.items():
        code = train(options, images, steps)
        errors[way] = [(code.reconstruct(test, length) - test).square().mean().item() / 4 for length in (1, 2, 3, 4)]
        print(f"{way}: errors at lengths 1 … 4:", *(f"{error:.4f}" for error in errors[way]))
    return errors


if __name__ == "__main__":
    main()
