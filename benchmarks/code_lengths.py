"""Which way to train the lengths of an ordered code serves every length?

Four ways to train VND-AE once, and a VAE for each length, with the same network, likelihood, images and epochs:

- pure: lengths are drawn from what is learned, as in the paper;
- released: drawn as in the authors' code, nearly uniformly;
- fixed lengths: some lengths are named, and trained in each step, 90 % of the loss;
- all lengths: none is named; a share of the decodings has lengths of all sizes, which falls over the training. Its
  share, its end, the number of decodings and whether the decoder is told the length (`VARIANTS`) are chosen on
  2,000 validation images, and with them the size of the network: the least shortfall from what was aimed at (`choose`).

Beside them, with as many decodings as that: pure, and VAEs from one seed. Then every way is trained again, from each
seed, and measured on test images: the mean squared error of the most likely codes and −ELBO at each length, in nats.

    python benchmarks/code_lengths.py [--device cuda] [--out benchmarks/results/code-lengths-h200.json]
    python benchmarks/code_lengths.py --small --out /tmp/code-lengths.json     # does it run? under a minute on a CPU
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vnd.data
from record import write
from vnd.methods import VAE, VNDAE, AutoencoderMethod, Step
from vnd.methods.codes import distortion, masked, of_pixel, squared_error
from vnd.models import DenseAutoEncoder

LENGTHS = {4: (1, 2, 3, 4), 32: (1, 2, 3, 4, 8, 12, 16, 24, 32)}
NAMED = {4: (1, 2, 3, 4), 32: (1, 2, 4, 8, 16, 32)}  # by fixed lengths
NETWORKS = {"small": (512, 256), "large": (1024, 512)}
STD, BATCH, RATE, WARMUP, DECODES = 0.5, 64, 1e-3, 0.05, 8
SETTINGS = (  # share of all lengths, share of training over which it falls to that, decodings, whether lengths are told
    (0.5, None, 1, False), (0.5, None, DECODES, True), (0.3, None, DECODES, True), (0.3, 0.7, 1, True),
    (0.3, 0.7, DECODES, False), (0.3, 0.7, DECODES, True), (0.3, 1.0, DECODES, True), (0.2, 0.7, DECODES, True),
    (0.2, 1.0, DECODES, True), (0.1, 0.7, DECODES, True), (0.1, 1.0, DECODES, True), (0.05, 1.0, DECODES, True),
)  # fmt: skip
VARIANTS = {
    f"share {share}{'' if until is None else f' falling until {until}'}, {decodes} decodings{', told' * told}": (
        VNDAE(likelihood_std=STD, all_lengths_share=share, all_lengths_until=until, decodes=decodes),
        told,
    )
    for share, until, decodes, told in SETTINGS
}
PURE = VNDAE(likelihood_std=STD, all_lengths_share=0.0)


@dataclass(frozen=True)
class Contestant:
    """A way to train, for codes of one size, from one seed; `repeat` is how often an image comes in a batch."""

    name: str
    code: int
    seed: int
    network: str
    method: AutoencoderMethod
    told: bool = False
    repeat: int = 1


def rivals(code: int, seed: int, network: str) -> list[Contestant]:
    """The ways that VND-AE is trained otherwise."""
    fractions = tuple(length / code for length in NAMED[code])
    methods = {
        "pure": PURE,
        "released": VNDAE(likelihood_std=STD, sampler="released"),
        "fixed lengths": VNDAE(likelihood_std=STD, fractions=fractions, fixed_share=0.9),
    }
    return [Contestant(name, code, seed, network, method) for name, method in methods.items()]


def vaes(seed: int, network: str, name: str = "vae", repeat: int = 1) -> list[Contestant]:
    """A VAE for each length."""
    return [
        Contestant(name, length, seed, network, VAE(likelihood_std=STD), repeat=repeat)
        for length in sorted({length for lengths in LENGTHS.values() for length in lengths})
    ]


def trained(contestant: Contestant, images: Tensor, epochs: int) -> Any:
    """Its model: Adam, a warm-up and a cosine."""
    torch.manual_seed(1000 * contestant.code + contestant.seed)
    network = DenseAutoEncoder(
        latent_dim=contestant.code, hidden=NETWORKS[contestant.network], length_bias=contestant.told
    )
    model = contestant.method.build(network, images[:2].cpu()).to(images.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    one, steps = torch.ones((), device=images.device), epochs * (len(images) // BATCH)
    for index in range(steps):
        if index % (len(images) // BATCH) == 0:
            batches = iter(torch.randperm(len(images), device=images.device).split(BATCH))
        share = index / steps
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, share / WARMUP) * 0.5 * (1 + math.cos(math.pi * share))
        x = images[next(batches)].repeat(contestant.repeat, 1, 1, 1)
        batch = x, torch.zeros(len(x), device=x.device)
        step = Step(index=index, kl_weight=one, temperature=1.0, num_data=len(images), share=share)
        contestant.method.prepare(model, batch, step, lambda value: value)
        optimizer.zero_grad(set_to_none=True)
        contestant.method.loss(model, batch, step).total.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def measured(contestant: Contestant, model: Any, images: Tensor, draws: int) -> dict[str, Any]:
    """Error of the most likely codes and −ELBO at each length, and −ELBO of codes of learned lengths."""
    method, pixels = contestant.method, images[0].numel()
    torch.manual_seed(7)
    code = method.encode(model, images)
    row: dict[str, Any] = {"contestant": contestant.name, "code": contestant.code, "seed": contestant.seed}
    row |= {"network": contestant.network, "mse": {}, "rate": {}, "negative_elbo": {}}

    def error(drawn: Tensor) -> Tensor:
        return squared_error(images, method.decode(model, drawn)).mean()

    for length in LENGTHS[contestant.code] if isinstance(method, VNDAE) else (contestant.code,):
        noisy = torch.stack([error(method.sample(code, length)) for _ in range(draws)]).mean()
        rate = method.rate(code, length)
        assert rate is not None
        row["mse"][str(length)] = round(float(of_pixel(error(method.point(code, length)), pixels)), 7)
        row["rate"][str(length)] = round(float(rate.mean()), 3)
        row["negative_elbo"][str(length)] = round(float(distortion(noisy, STD, pixels) + rate.mean()), 3)
    if isinstance(method, VNDAE):
        survival = method.survival(code)
        lengths = [(torch.rand(len(images), 1, device=images.device) < survival).sum(1) for _ in range(draws)]
        noisy = torch.stack([error(masked(method.sample(code), length)) for length in lengths]).mean()
        row["negative_elbo_drawn"] = round(float(distortion(noisy, STD, pixels) + method.rate(code).mean()), 3)
        row["mean_length"] = round(float(survival.sum(1).mean()), 3)
        row["nats_by_dimension"] = " ".join(f"{nats:.2f}" for nats in code.cost.mean(0).tolist())
    return row


def run(contestants: list[Contestant], fit: Tensor, held: Tensor, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train all and measure them; VAEs of all lengths are one row."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for contestant in contestants:
        row = measured(contestant, trained(contestant, fit, args.epochs), held, args.draws)
        code = "each" if isinstance(contestant.method, VAE) else contestant.code
        kept = rows.setdefault((contestant.name, code, contestant.seed, contestant.network), row)
        kept["code"] = code
        for key in ("mse", "rate", "negative_elbo"):
            kept[key] |= row[key]
        print(contestant.network, contestant.name, contestant.code, contestant.seed, row["mse"], flush=True)
    return list(rows.values())


def choose(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The network and variant with the least shortfall, summed over the sizes of codes; ties by the largest ratio.

    The shortfall is the largest excess of an error over 1.1 times the VAE's, in per cent, and what the bound of full
    codes is behind that of pure ones, in nats. Each row is given its own.
    """
    known = {(row["network"], row["contestant"], row["code"]): row for row in rows}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row["contestant"] in VARIANTS:
            vae, pure = known[row["network"], "vae", "each"], known[row["network"], "pure", row["code"]]
            full = str(row["code"])
            row["worst_ratio"] = round(max(row["mse"][length] / vae["mse"][length] for length in row["mse"]), 4)
            behind = row["negative_elbo"][full] - pure["negative_elbo"][full]
            row["shortfall"] = round(100 * max(0.0, row["worst_ratio"] - 1.1) + max(0.0, behind), 3)
            scores = found.setdefault((row["network"], row["contestant"]), [])
            scores.append((row["shortfall"], row["worst_ratio"]))
    return min(found, key=lambda key: (sum(x for x, _ in found[key]), max(ratio for _, ratio in found[key])))


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """What a variant, or pure, has on validation images."""
    known = {key: row[key] for key in ("network", "contestant", "code", "mean_length")}
    known["negative_elbo"] = row["negative_elbo"][str(row["code"])]
    return known | {key: row[key] for key in ("worst_ratio", "shortfall") if key in row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=10, help="of codes, for a bound")
    parser.add_argument("--networks", type=lambda text: text.split(","), default=list(NETWORKS))
    parser.add_argument("--images", type=int, default=None, help="use so many images only, of each part")
    parser.add_argument("--small", action="store_true", help="an epoch of a few images")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.small:
        args.epochs, args.seeds, args.draws, args.networks, args.images = 1, 1, 1, ["small"], 128
    torch.set_float32_matmul_precision("high")
    parts = {}
    for name in ("train", "test"):
        pixels = torch.from_numpy(vnd.data.load("fashion", name).pixels.copy())
        parts[name] = pixels.float().div_(127.5).sub_(1).to(args.device)
    order = torch.randperm(len(parts["train"]), generator=torch.Generator().manual_seed(0)).to(args.device)
    fit, validation = parts["train"][order[2000:]][: args.images], parts["train"][order[:2000]][: args.images]
    test = parts["test"][: args.images]

    tried: list[Contestant] = []
    for network in args.networks:
        for code in LENGTHS:
            tried += [Contestant(name, code, 0, network, *setting) for name, setting in VARIANTS.items()]
            tried.append(Contestant("pure", code, 0, network, PURE))
        tried += vaes(0, network)
    rows = run(tried, fit, validation, args)
    network, variant = choose(rows)
    print("chosen:", network, variant, flush=True)

    contestants: list[Contestant] = []
    for seed in range(1, args.seeds + 1):
        for code in LENGTHS:
            contestants += rivals(code, seed, network)
            contestants.append(Contestant("all lengths", code, seed, network, *VARIANTS[variant]))
            contestants.append(Contestant(f"pure, {DECODES} decodings", code, seed, network, PURE, repeat=DECODES))
        contestants += vaes(seed, network)
    contestants += vaes(1, network, f"vae, {DECODES} decodings", DECODES)
    options = {"epochs": args.epochs, "batch": BATCH, "likelihood_std": STD, "networks": NETWORKS}
    options |= {"train_images": len(fit), "validation_images": len(validation), "test_images": len(test)}
    write(
        args.out or Path(f"benchmarks/results/code-lengths-{args.device}.json"), "python benchmarks/code_lengths.py",
        args.device, **options, chosen={"network": network, "variant": variant}, test=run(contestants, fit, test, args),
        validation=[summary(row) for row in rows if row["code"] != "each"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
