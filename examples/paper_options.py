"""The paper's literal form on a network of one's own: each option of the library that departs from it, set back."""

import torch
from torch import nn

import vnd


def main(steps: int = 800) -> None:
    layers = [nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 64, 3, 2, 1), nn.BatchNorm2d(64)]
    head = [nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)]
    train, test = (vnd.data.load("fashion", split) for split in ("train", "test"))
    x, y = torch.tensor(train.pixels) / 255 - 0.5, torch.tensor(train.labels)
    net = vnd.to_nested(
        nn.Sequential(*layers, *head), x[:2], num_groups=16,
        rules={"0": vnd.Rule(nest=False, log_alpha_init=-8)},  # the first layer whole, and with little noise
        placement="before_norm",  # Eq. (19): the mask on a layer's own output
        coupling="independent", gradient="downhill",  # a length for each layer; gradients by relaxed samples
        rescale="expected",  # App. B.2: at test a unit is scaled by its probability of being kept
        weight_prior="vnd", kl_constant=0.0,  # Eq. (17) as printed; a number as weight_prior is a Gaussian's scale
    )  # fmt: skip
    optimizer = torch.optim.Adam(vnd.parameter_groups(net.train(), lr=3e-3, chain_lr=1e-2))
    for step in range(steps):
        vnd.set_temperature(net, 2.0 * 0.25 ** (step / steps))  # annealed, Sec. 3.3
        batch = torch.randint(len(x), (128,))
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        loss = loss + 1e-5 / len(x) * vnd.kl(net, reduction="sum")  # κ of App. C.1; "fan_in" as the authors' code
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    vnd.recalibrate(net.eval(), [x[:1024]], widths=(0.25, 0.5, 1.0), samples=True)
    pixels, labels = torch.tensor(test.pixels) / 255 - 0.5, torch.tensor(test.labels)
    for width in (0.25, 0.5, 1.0):  # masked: it has no smaller form, and costs the same at every width
        said = vnd.predict(net, pixels, width=width, samples=6).probs.argmax(1)
        print(f"{width:4.0%}: accuracy {(said == labels).float().mean():.3f}, {vnd.profile(net, width)}")


if __name__ == "__main__":
    main()
