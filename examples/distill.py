"""SN³: a quarter of a Bayesian network's channels, deterministic but for the last layer, taught its uncertainty."""

import torch
from torch import nn
from torch.nn import functional as F

import vnd
from vnd.methods import sn3


def main(steps: int = 600) -> None:
    x, new = (torch.from_numpy(vnd.data.load("fashion", s).pixels).float() / 255 for s in ("train", "test"))
    y, truth = (torch.from_numpy(vnd.data.load("fashion", s).labels).long() for s in ("train", "test"))
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2),
        nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    teacher = vnd.to_nested(plain, x[:2], num_groups=16)
    optimizer = torch.optim.Adam(vnd.parameter_groups(teacher, lr=2e-3, chain_lr=1e-2))
    for _ in range(steps):
        some = torch.randint(len(x), (64,))
        loss = F.cross_entropy(teacher(x[some]), y[some]) + 1e-3 / len(x) * vnd.kl(teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batches = x.split(64)  # no labels
    student = vnd.distill(teacher, batches, keep=0.25, steps=steps)
    cut = sn3.prune(teacher, keep=0.25)  # as the student was before it was taught
    for net in (teacher, cut):
        vnd.recalibrate(net.eval(), batches[:16], widths=(1.0,), samples="both")
    for name, net, width in ("full", teacher, 1.0), ("cut", cut, 1.0), ("taught", student, 1.0), ("half", student, 0.5):
        probs = [vnd.predict(net, new, width=width, samples=s).probs for s in (6, 0)]  # draws; one pass, in closed form
        right = [f"{(p.argmax(1) == truth).float().mean():.1%}" for p in probs]
        print(f"{name:6} {vnd.profile(net, width).parameters:>8,} parameters: {right[0]} right, in one pass {right[1]}")


if __name__ == "__main__":
    main()
