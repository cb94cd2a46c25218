"""A VAE of one's own becomes a VND-AE: one training, and a code that may stop after any of its dimensions."""

import torch
from torch import nn

import vnd


class VAE(nn.Module):  # any encoder of features, any decoder of codes
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU())
        grow = nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid()
        self.decoder = nn.Sequential(nn.Linear(16, 32 * 7 * 7), nn.ReLU(), nn.Unflatten(1, (32, 7, 7)), *grow)


def main(steps: int = 1500) -> dict[str, float]:
    torch.manual_seed(0)
    train, test = (torch.from_numpy(vnd.data.load("fashion", part).pixels) / 255 for part in ("train", "test"))
    test, vae, errors = test[:1000], VAE(), {}

    code = vnd.OrderedCode(vae.encoder, vae.decoder, train[:2], latent_dim=16, likelihood="bernoulli", decodes=4)
    optimizer = torch.optim.Adam(code.parameters(), lr=1e-3)
    for step in range(steps):
        loss = code.loss(train[torch.randint(len(train), (64,))], progress=step / steps)  # nats of an image
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for length in (1, 2, 4, 8, 16, "posterior"):  # the first dimensions alone, or as many as each image needs
        errors[str(length)] = (code.reconstruct(test, length) - test).square().mean().item()
        print(f"length {length}: error {errors[str(length)]:.4f}")
    lengths = code.lengths(test, error=0.02)  # the least that reach this error
    print(f"error 0.02: {lengths.double().mean():.1f} dimensions of 16; bound {code.loss(test):.1f} nats")
    return errors


if __name__ == "__main__":
    main()
