"""The paper's toy and its tree: the first dimension of an ordered code has one value, each later one has two."""

from pathlib import Path

import torch
from torch import nn

import vnd
from vnd.report import image_grids


def toy_images() -> torch.Tensor:  # MNIST where it is (`vnd data list`), else the Fashion-MNIST of the package
    try:
        images = vnd.data.load("mnist", "train")
    except FileNotFoundError:
        images = vnd.data.load("fashion", "train")
    return torch.from_numpy(images.pixels) / 127.5 - 1


def main(steps: int = 4000) -> Path:
    torch.manual_seed(0)
    images = toy_images()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
    layers = nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh()
    decoder = nn.Sequential(*layers, nn.Unflatten(1, (1, 28, 28)))
    code = vnd.OrderedCode(encoder, decoder, images[:2], latent_dim=4, likelihood_std=0.5, decodes=2)
    optimizer = torch.optim.Adam(code.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        code.loss(images[torch.randint(len(images), (64,))], progress=step / steps).backward()
        optimizer.step()
    levels = [((code.decode(codes) + 1) * 127.5).byte().numpy() for codes in code.branches(depth=3)]
    figure = image_grids.tree(levels, "Tree of codes", "", ("left: −1.5", "right: +1.5"), trunk=1, only="first: 0")
    Path("tree.png").write_bytes(image_grids.png(figure))
    print(f"tree.png: {', '.join(str(len(level)) for level in levels)} images, of codes of length 1, 2, 3, 4")
    return Path("tree.png").resolve()


if __name__ == "__main__":
    main()
