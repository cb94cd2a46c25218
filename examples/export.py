"""A network of your own as one file for every width, and its answers without torch, at three widths."""

import torch
from torch import nn

import vnd


class MyNet(nn.Module):
    def __init__(self):
        super().__init__()
        stem = nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()
        self.body = nn.Sequential(*stem, nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.head(self.body(x))


def main(steps: int = 300):
    train, test = (vnd.data.load("fashion", split) for split in ("train", "test"))
    x, y = torch.from_numpy(train.pixels / 255).float(), torch.from_numpy(train.labels).long()
    net = vnd.to_nested(MyNet(), x[:2], num_groups=16)
    optimizer = torch.optim.Adam(vnd.parameter_groups(net, lr=2e-3))
    for step, rows in enumerate(torch.randint(len(x), (steps, 128))):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(net(x[rows]), y[rows]) + min(1, step / steps) * vnd.kl(net) / len(x)).backward()
        optimizer.step()
    vnd.recalibrate(net.eval(), [x[:1024]], widths=(1.0, 0.5, 0.25), samples="both")
    told = vnd.export(net, "any.onnx", widths=(1.0, 0.5, 0.25), posterior=True, classes=train.classes)
    ready, images, labels = vnd.runtime.load("any.onnx"), test.pixels[:1000] / 255, test.labels[:1000]  # no torch
    for row in told["widths"]:
        answer = ready.predict(images, row["fraction"], samples=6, seed=0)
        right, unsure = answer.probs.argmax(1) == labels, answer.mutual_information
        print(f"{row['fraction']}: {right.mean():.1%} right in {row['time_ratio']:.2f} of the time, "
              f"mutual information {unsure[right].mean():.4f}, {unsure[~right].mean():.4f} where wrong")  # fmt: skip


if __name__ == "__main__":
    main()
