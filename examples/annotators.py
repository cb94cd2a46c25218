"""Masks of annotators who disagree, by a UNet of your own: colour images, two classes, one to four annotators each."""

import torch
from torch import nn

import vnd


class MyUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.top, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(48, 16, 3, padding=1)
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Upsample(scale_factor=2))

    def forward(self, x):
        return self.last(torch.cat((self.top(x), self.deep(self.top(x).relu())), 1)).relu()


def scans(count):  # of a blob; the redder it is, the more of its one to four annotators call it 2, and not 1
    down, across, red = torch.rand(3, count, 1, 1)
    blob = (torch.arange(33.0)[:, None] - 10 - 12 * down) ** 2 + (torch.arange(41.0) - 10 - 20 * across) ** 2 < 60
    images = torch.stack((blob * red, 0.5 * blob, blob * (1 - red)), 1) + 0.1 * torch.randn(count, 3, 33, 41)
    return images, [blob[i] * (1 + (torch.rand(torch.randint(1, 5, ()), 1, 1) < red[i])) for i in range(count)], red


def main(steps: int = 600):
    net = vnd.OrderedSegmenter(MyUNet(), 16, num_classes=3, latent_dim=4, in_channels=3, channels=(8, 16), divisor=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        net.loss(*scans(16)[:2]).backward()  # of each image the mask of one annotator, drawn anew
        optimizer.step()
    images, masks, red = scans(64)
    drawn = net.predict(images, samples=16, length=2)  # .masks, .probs, .entropy, .mutual_information
    ged = vnd.metrics.generalized_energy_distance(drawn.masks.transpose(0, 1), masks, num_classes=3).mean()
    print(f"energy distance {ged:.3f}; class 2 off by {(drawn.probs[:, 2].amax((1, 2), True) - red).abs().mean():.3f}")


if __name__ == "__main__":
    main()
