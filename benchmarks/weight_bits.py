"""What does it cost to train one network for every number of weight bits?

A small CNN on Fashion-MNIST (the embedded 12,000 training and 3,000 test images), from each seed:

- nested: trained once with ordered bits (`vnd.Rule(granularity="bits")`), 2 … 8 kept, drawn uniformly each step;
- learned: the same, but how many bits each layer keeps is learned, by the loss and the price of a bit (`vnd.kl`);
- truncated: a plainly trained network whose leading bits are kept, without training for it;
- min-max and clipped: that plain network quantized uniformly after training at each number of bits, symmetric, a scale
  for each output channel: of its largest weight; or of the least squared error over 80 scales and two grids, one with
  a zero and one without;
- aware: trained for one number of bits alone (2, 3, 4), with the same quantizer: the mark to aim for.

All are trained alike (Adam, one cosine, the same batches of a seed); weights of all layers are quantized, biases, norms
and activations are not. BatchNorm's statistics are estimated anew for each network, on the same training images. No
setting was chosen on test images: `--validation` holds 2,000 training images out and measures on them.

    python benchmarks/weight_bits.py [--device cuda] [--validation] [--out benchmarks/results/weight-bits.json]
    python benchmarks/weight_bits.py --small --out /tmp/weight-bits.json      # does it run? a few seconds on a CPU
"""

from __future__ import annotations

import argparse
import copy
import math
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vnd
from record import write

BITS, AWARE, BATCH, RATE, KL_WEIGHT = range(2, 9), (2, 3, 4), 100, 2e-3, 1e-2
Split = tuple[Tensor, Tensor]


def network() -> nn.Module:
    """A plain CNN of nine thousand weights."""
    sizes = (1, 8, 16, 32)
    blocks = [
        [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
        for a, b in pairwise(sizes)
    ]
    return nn.Sequential(*(layer for block in blocks for layer in block), nn.Flatten(), nn.Linear(32 * 9, 10))


def batches(data: Split, generator: torch.Generator) -> Iterator[Split]:
    """An epoch."""
    order = torch.randperm(len(data[0]), generator=generator).to(data[0].device)
    yield from ((data[0][index], data[1][index]) for index in order.split(BATCH))


def train(net: nn.Module, data: Split, args: argparse.Namespace, seed: int, learned: bool = False) -> nn.Module:
    """Adam with a cosine; keep logits stay as they start unless they are learned."""
    groups = vnd.parameter_groups(net, lr=RATE, chain_lr=10 * RATE if learned else 0.0)
    optimizer = torch.optim.Adam(groups)
    steps = args.epochs * math.ceil(len(data[0]) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    net.train()
    for step, (x, y) in enumerate(pair for _ in range(args.epochs) for pair in batches(data, generator)):
        of_order: Any = 0.0
        if learned:
            of_order = vnd.step_order(net, lambda x=x, y=y: F.cross_entropy(net(x), y), measure=step % 4 == 0)
            of_order = of_order + KL_WEIGHT / len(data[0]) * vnd.kl(net)
        optimizer.zero_grad(set_to_none=True)
        (F.cross_entropy(net(x), y) + of_order).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def nested(net: nn.Module, example: Tensor, bits: int, base: int) -> nn.Module:
    """A network with ordered bits, of which the numbers kept are equally likely."""
    rule = vnd.Rule(granularity="bits", bits=bits, base=base)
    net = vnd.to_nested(net, example, bayesian=False, rules={"*": rule})
    for unit in net.modules():
        if isinstance(unit, vnd.OrderingUnit):
            unit.keep_logits.data.copy_(unit.prior_logits)
    return net


@torch.no_grad()
def rounded(weight: Tensor, bits: int, clipped: bool) -> Tensor:
    """Uniform quantization of a weight, symmetric, by output channel."""
    rows = weight.flatten(1)
    largest = rows.abs().amax(1, keepdim=True).clamp(min=1e-8)
    most = 2 ** (bits - 1) - 1

    def with_zero(scale: Tensor) -> Tensor:
        return (rows / scale * most).round().clamp(-most, most) * scale / most

    def without(scale: Tensor) -> Tensor:
        return ((rows / scale * 2 ** (bits - 1)).floor().clamp(-most - 1, most) + 0.5) * scale / 2 ** (bits - 1)

    if not clipped:
        return with_zero(largest).view_as(weight)
    best, error = rows, torch.full_like(largest, math.inf)
    for share in torch.linspace(1.2 / 80, 1.2, 80).tolist():
        for grid in (with_zero, without):
            tried = grid(share * largest)
            squares = (tried - rows).square().sum(1, keepdim=True)
            best, error = torch.where(squares < error, tried, best), torch.minimum(squares, error)
    return best.view_as(weight)


def quantized(net: nn.Module, bits: int, clipped: bool) -> nn.Module:
    """A plain network with all weights quantized."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.weight.data = rounded(layer.weight, bits, clipped)
    return net


@torch.no_grad()
def normalised(net: nn.Module, data: Split) -> nn.Module:
    """A plain network with BatchNorm's statistics of these images."""
    norms = [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average
        norm.train()
    for x in data[0].split(BATCH):
        net(x)
    return net.eval()


@torch.no_grad()
def measured(net: nn.Module, data: Split) -> dict[str, float]:
    """Accuracy and NLL of a plain network."""
    logits = torch.cat([net(x) for x in data[0].split(500)])
    hits = (logits.argmax(1) == data[1]).float().mean()
    return {"accuracy": round(float(hits), 5), "nll": round(float(F.cross_entropy(logits, data[1])), 5)}


def at_bits(net: nn.Module, bits: int) -> vnd.Shape:
    """The shape of so many bits in each layer."""
    return vnd.Shape(dict.fromkeys(vnd.shape(net, fraction=1.0), bits))


def run(seed: int, fit: Split, held: Split, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train all from one seed; a row for each network."""
    images = fit[0][:2000], fit[1][:2000]  # for BatchNorm

    def row(name: str, bits: int, net: nn.Module, size: int, **more: Any) -> dict[str, Any]:
        found = {"contestant": name, "bits": bits, "seed": seed, "bytes": size} | more
        found |= measured(normalised(net, images), held)
        print(found, flush=True)
        return found

    def start() -> nn.Module:
        torch.manual_seed(seed)
        return network().to(fit[0].device)

    def rows_of(name: str, net: nn.Module) -> Iterator[dict[str, Any]]:
        for bits in BITS:
            shape = at_bits(net, bits)
            small = vnd.extract(net, shape, warn=False)
            yield row(name, bits, small, vnd.profile(net, shape, count_macs=False).bytes)

    def floats(net: nn.Module) -> nn.Module:
        plain = network().to(fit[0].device)
        plain.load_state_dict(net.state_dict(), strict=False)
        return plain

    example = fit[0][:2]
    plain = train(start(), fit, args, seed)
    size = vnd.profile(plain, example_input=example).bytes
    yield row("plain", 32, plain, size)
    truncated = nested(plain, example, max(BITS), min(BITS))
    yield from rows_of("truncated", truncated)
    sizes = {bits: vnd.profile(truncated, at_bits(truncated, bits), count_macs=False).bytes for bits in BITS}
    for name in ("min-max", "clipped"):
        for bits in BITS:
            yield row(name, bits, quantized(plain, bits, name == "clipped"), sizes[bits])
    net = train(nested(start(), example, max(BITS), min(BITS)), fit, args, seed)
    yield row("nested", 32, floats(net), size)
    yield from rows_of("nested", net)
    net = train(nested(start(), example, max(BITS), min(BITS)), fit, args, seed, learned=True)
    yield from rows_of("learned", net)
    for bits in BITS:  # the same bytes, shared out among layers by what was learned
        shape = vnd.shape(net, bytes=sizes[bits])
        small = vnd.extract(net, shape, warn=False)
        yield row("learned budget", bits, small, vnd.profile(net, shape, count_macs=False).bytes, shape=dict(shape))
    for bits in AWARE:
        net = train(nested(start(), example, bits, bits), fit, args, seed)
        yield row("aware", bits, vnd.extract(net, warn=False), sizes[bits])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--validation", action="store_true", help="measure on 2,000 training images that are held out")
    parser.add_argument("--small", action="store_true", help="one seed, one epoch, 500 images")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/weight-bits.json"))
    args = parser.parse_args()
    if args.small:
        args.epochs, args.seeds = 1, 1
    parts: dict[str, Split] = {}
    for name in ("train", "test"):
        data = vnd.data.load("fashion", name)
        pixels = torch.from_numpy(data.pixels.copy()).float().div_(127.5).sub_(1)
        parts[name] = pixels.to(args.device), torch.from_numpy(data.labels.copy()).long().to(args.device)
    (x, y), held = parts["train"], parts["test"]
    if args.validation:
        held, (x, y) = (x[:2000], y[:2000]), (x[2000:], y[2000:])
    fit = (x[:500], y[:500]) if args.small else (x, y)
    rows = [row for seed in range(1, args.seeds + 1) for row in run(seed, fit, held, args)]
    options = {"epochs": args.epochs, "batch": BATCH, "rate": RATE, "kl_weight": KL_WEIGHT}
    options |= {"train_images": len(fit[0]), "images": len(held[0]), "held_out": args.validation}
    write(args.out, shlex.join(["python", *sys.argv]), args.device, **options, rows=rows)


if __name__ == "__main__":
    main()
