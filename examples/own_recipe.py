"""A network and data of one's own in a recipe, named `module:Class` and `module:function`."""

import json
from pathlib import Path

from vnd.cli import main as command

MODULE = """
import vnd
from torch import nn
class Shoes(nn.Module):  # its in_channels and num_classes are the data's
    def __init__(self, in_channels: int, num_classes: int, channels: int = 24):
        super().__init__()
        first, second = (nn.Conv2d(a, channels * k, 3, 2, 1) for a, k in ((in_channels, 1), (channels, 2)))
        self.body = nn.Sequential(first, nn.BatchNorm2d(channels), nn.ReLU(), second, nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(98 * channels, 64), nn.ReLU(), nn.Linear(64, num_classes))

    def forward(self, x):
        return self.head(self.body(x))
def shoes(count: int = 3000):  # the training split and the test split, each images and labels
    def split(name, count):
        images = vnd.data.load("fashion", name)
        some = [i for i, label in enumerate(images.labels) if label in (5, 7, 9)][:count]
        return images.pixels[some, 0], (images.labels[some] - 5) // 2
    return split("train", count), split("test", 900)
"""


def main(steps: int = 448) -> None:
    Path("shoe_shop.py").write_text(MODULE)  # in the current folder; on PYTHONPATH it would be found, too
    own = "--network.name shoe_shop:Shoes --network.channels 16 --data.name shoe_shop:shoes --evaluate.ood null"
    size = f"--data.options.count {50 * min(steps, 56) + 200} --data.validation 200 --train.epochs {-(-steps // 56)}"
    command(["train", "fashion/bn3", "--out", "runs/shoes", *own.split(), *size.split(), "--train.batch", "50"])
    command(["evaluate", "runs/shoes", "--fractions", "0.125,0.25,0.5,1.0"])
    rows = json.loads(Path("runs/shoes/results.json").read_text())["rows"]
    print({row["label"]: (row["parameters"], round(row["accuracy"], 3)) for row in rows})


if __name__ == "__main__":
    main()
