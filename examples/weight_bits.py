"""Train once, run at any number of weight bits: accuracy and size of your own network at 2 … 8 bits a weight."""

import torch
from torch import nn

import vnd


class Classifier(nn.Sequential):
    """Yours: any network with linear layers or convolutions."""

    def __init__(self) -> None:
        first, second = nn.Conv2d(1, 8, 5, stride=2), nn.Conv2d(8, 16, 5, stride=2)
        super().__init__(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 64), nn.ReLU())
        self.append(nn.Linear(64, 10))


def main(steps: int = 1500) -> None:
    torch.manual_seed(0)
    sets = [vnd.data.load("fashion", split) for split in ("train", "test")]
    (x, y), (images, labels) = [(torch.tensor(s.pixels) / 127.5 - 1, torch.tensor(s.labels).long()) for s in sets]
    rules = {"*": vnd.Rule(granularity="bits", bits=8, base=2)}  # of all layers; two bits always stay
    net = vnd.to_nested(Classifier(), x[:2], rules=rules, initial_logit=1.0)
    optimizer = torch.optim.Adam(vnd.parameter_groups(net, lr=2e-3, chain_lr=0.0))  # how many are drawn stays as it is
    for batch in torch.randint(len(x), (steps, 64)):
        net.zero_grad()
        nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
    for bits in range(2, 9):
        shape = vnd.Shape(dict.fromkeys(vnd.shape(net, fraction=1.0), bits))
        small = vnd.extract(net.eval(), shape)  # a plain Classifier, whose weights have 2 ** bits levels
        right = (small(images).argmax(1) == labels).float().mean()
        print(f"{bits} bits: {right:.1%} right, {vnd.profile(net, shape).bytes / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
