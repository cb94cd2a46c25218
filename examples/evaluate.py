"""A network of one's own at four widths: what each costs, how often it is right, and if it knows when it is not."""

import torch
from torch import nn
from torch.nn import functional as F

import vnd


def images(name: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    data = vnd.data.load(name, split)
    pixels = F.interpolate(torch.from_numpy(data.pixels.copy()).float() / 255, 28)
    return pixels, torch.from_numpy(data.labels.copy()).long()


def main(steps: int = 1500) -> None:
    torch.manual_seed(0)
    (x, y), (x_test, y_test) = images("fashion", "train"), images("fashion", "test")
    plain = nn.Sequential(
        nn.Conv2d(1, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64),
        nn.ReLU(), nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    net = vnd.to_nested(plain, x[:2])
    optimizer = torch.optim.Adam(vnd.parameter_groups(net, lr=1e-3))
    for step in range(steps):
        some = torch.randint(len(x), (64,))
        loss = F.cross_entropy(net(x[some]), y[some]) + min(1, 2 * step / steps) * vnd.kl(net) / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    test, digits = zip(x_test.split(500), y_test.split(500), strict=True), images("digits", "test")[0].split(500)
    rows = vnd.evaluate(net, test, (0.125, 0.25, 0.5, 1.0), samples=6, ood=digits, recalibrate=x[:1024].split(256))
    line = "{label:>6}: {parameters:7,} parameters, accuracy {accuracy:.3f}, ECE {ece:.3f}, AUROC of digits {auroc:.3f}"
    print(*(line.format(**row) for row in rows), sep="\n")
    print(vnd.report_page(rows, "evaluate.html", title="A network of one's own"))


if __name__ == "__main__":
    main()
