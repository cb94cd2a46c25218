"""What cannot be is refused in one line that says what was expected and what came."""

from collections.abc import Callable

import torch
from torch import nn

import vnd


def main(steps: int = 0) -> list[str]:  # nothing is trained
    x, y = torch.rand(8, 1, 28, 28), torch.randint(0, 10, (8,))
    plain = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 10))
    net = vnd.to_nested(plain, x, num_groups=4).eval()
    code = vnd.OrderedCode(nn.Identity(), nn.Linear(4, 784), x.flatten(1), 4, likelihood="bernoulli_logits")
    attempts: list[Callable[[], object]] = [
        lambda: vnd.predict(net, x, width=3),
        lambda: vnd.predict(net, x[:, :, :20]),
        lambda: vnd.shape(net, parameters=1),
        lambda: vnd.evaluate(net, [(x, y + 10)]),
        lambda: vnd.predict(net, x, samples=-1),
        lambda: vnd.distill(net, [x], keep=2.0),
        lambda: code.loss(255 * x.flatten(1)),
        lambda: vnd.load_pretrained("cifar10-bn3")(torch.rand(1, 3, 32, 32) * 255),
        lambda: vnd.methods.VNDAE().loss(plain, (x, y), None),
    ]
    lines = []
    for attempt in attempts:
        try:
            attempt()
        except (ValueError, RuntimeError) as error:
            lines.append(str(error))
            print(lines[-1])
    assert [line.count("\n") for line in lines] == [0] * len(attempts), "each in one line"
    return lines


if __name__ == "__main__":
    main()
