"""Which gradient of the order is the better one?

Question: three layers of 30 nested units each, coupled by quantile, learn a small problem under the paper's ordered
l0 objective J = E[loss] + price x expected length. E[loss] is enumerated: as u falls from 1 to 0 the network passes
through 91 shapes, so the true gradient on the keep logits is known. Each estimator (straight-through Downhill at two
temperatures, survival, measured differences) is held against it, on networks that each of them trained:

- size: length of the mean estimate along the truth, over the truth's (1 is right);
- cosine: between the mean estimate and the truth;
- noise: standard deviation of one step's estimate, over the truth's length;
- J: the objective that training with this estimator reaches, enumerated (lower is better).

Size, cosine and noise are printed after a fifth of the steps, while the order is being learned; the file has both ends.

    python benchmarks/gradients.py [--seeds 3] [--steps 3000] [--out benchmarks/results/gradients.json]
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vnd
from vnd.nn import couple, difference_term, update_differences

ESTIMATORS = {
    "survival": {"gradient": "survival"},
    "downhill τ=2": {"gradient": "downhill", "temperature": 2.0},
    "downhill τ=0.5": {"gradient": "downhill", "temperature": 0.5},
    "difference": {"gradient": "difference"},
}
PRICE, CLASSES, FEATURES, HIDDEN = 0.002, 5, 8, 62


def make_data(seed: int, count: int = 8192) -> tuple[Tensor, Tensor]:
    """Labels of a random two-layer teacher, one in ten redrawn at random."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    hidden = torch.tanh(x @ torch.randn(FEATURES, 32, generator=generator))
    labels = (hidden @ torch.randn(32, CLASSES, generator=generator)).argmax(1)
    noise = torch.randint(CLASSES, (count,), generator=generator)
    return x, torch.where(torch.rand(count, generator=generator) < 0.1, noise, labels)


def make_network(options: dict[str, object]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (FEATURES, HIDDEN, HIDDEN):
        layers += [nn.Linear(inputs, HIDDEN), nn.ReLU(), vnd.OrderingUnit(HIDDEN, 31, base=1, **options)]
    return couple(nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES)))


def units_of(net: nn.Module) -> list[vnd.OrderingUnit]:
    return [module for module in net.modules() if isinstance(module, vnd.OrderingUnit)]


def price(net: nn.Module) -> Tensor:
    return PRICE * sum(unit.posterior().chain.expected_length for unit in units_of(net))


def train(net: nn.Module, data: tuple[Tensor, Tensor], steps: int, measure_every: int = 4) -> None:
    """Adam on E[loss] + price; the difference table is fed by two passes without gradient every fourth step."""
    chain = [unit.keep_logits for unit in units_of(net)]
    weights = [p for name, p in net.named_parameters() if "keep_logits" not in name]
    optimizer = torch.optim.Adam([{"params": weights, "lr": 2e-3}, {"params": chain, "lr": 1e-2}])
    for step in range(steps):
        rows = torch.randint(len(data[0]), (128,))
        x, y = data[0][rows], data[1][rows]

        def loss(x: Tensor = x, y: Tensor = y) -> Tensor:
            return F.cross_entropy(net(x), y)

        if step % measure_every == 0:
            update_differences(net, loss)
        optimizer.zero_grad()
        (loss() + price(net) + difference_term(net)).backward()
        optimizer.step()


@torch.no_grad()
def enumerate_losses(net: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Survivals of all units in falling order, (k,), and the loss of each shape between them, (k + 1,)."""
    units = units_of(net)
    survivals = torch.cat([unit.posterior().chain.log_survival for unit in units])
    owner = torch.cat([torch.full((unit.num_nested,), i) for i, unit in enumerate(units)])
    order = survivals.sort(descending=True, stable=True).indices
    for unit in units:
        unit.fixed_groups.fill_(unit.base)
    losses = [F.cross_entropy(net(data[0]), data[1])]
    for index in order:
        units[owner[index]].fixed_groups.add_(1)
        losses.append(F.cross_entropy(net(data[0]), data[1]))
    for unit in units:
        unit.fixed_groups.fill_(-1)
    return order, torch.stack(losses)


def expected_loss(net: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    """E[loss] over u, differentiable in the keep logits: L_0 + sum of P(kept) times the change of the loss."""
    order, losses = enumerate_losses(net, data)
    survival = torch.cat([unit.posterior().chain.log_survival for unit in units_of(net)]).exp()
    return losses[0] + (survival[order] * losses.diff()).sum()


def chain_gradient(net: nn.Module, value: Tensor) -> Tensor:
    grads = torch.autograd.grad(value, [unit.keep_logits for unit in units_of(net)], allow_unused=True)
    return torch.cat([g if g is not None else torch.zeros(30) for g in grads])


def compare(net: nn.Module, data: tuple[Tensor, Tensor], draws: int) -> dict[str, float]:
    """Hold one step's estimates on the current network against the truth."""
    truth = chain_gradient(net, expected_loss(net, data))
    estimates = []
    for _ in range(draws):
        rows = torch.randint(len(data[0]), (128,))
        value = F.cross_entropy(net(data[0][rows]), data[1][rows]) + difference_term(net)
        estimates.append(chain_gradient(net, value))
    stacked = torch.stack(estimates)
    mean = stacked.mean(0)
    return {
        "size": float(mean @ truth / truth.square().sum()),
        "cosine": float(F.cosine_similarity(mean, truth, 0)),
        "noise": float((stacked - mean).square().sum(1).mean().sqrt() / truth.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gradients.json"))
    args = parser.parse_args()
    rows = []
    print(f"{'estimator':>16} {'size':>8} {'cosine':>8} {'noise':>8} {'J':>8} {'E[loss]':>8} {'length':>8}")
    for name, options in ESTIMATORS.items():
        runs = []
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            data, net = make_data(seed), make_network(dict(options))
            train(net, data, args.steps // 5)
            early = compare(net, data, args.draws)
            train(net, data, args.steps - args.steps // 5)
            with torch.no_grad():
                loss, cost = float(expected_loss(net, data)), float(price(net))
            late = compare(net, data, args.draws)
            runs.append(
                {"seed": seed, "early": early, "late": late, "J": loss + cost, "loss": loss, "length": cost / PRICE}
            )
        mean = {key: statistics.mean(run["early"][key] for run in runs) for key in ("size", "cosine", "noise")}
        mean |= {key: statistics.mean(run[key] for run in runs) for key in ("J", "loss", "length")}
        print(f"{name:>16} " + " ".join(f"{mean[key]:>8.3f}" for key in mean), flush=True)
        rows.append({"estimator": name, "mean": mean, "runs": runs})
    print(
        "'difference' is the default of OrderingUnit. It wants the loop to call update_differences (two passes without"
    )
    print("gradient, here every fourth step) and to add difference_term; a loop that does not gets 'survival'.")
    summary = {
        "command": f"python benchmarks/gradients.py --seeds {args.seeds} --steps {args.steps} --draws {args.draws}",
        "torch": torch.__version__,
        "kl_keep_prob": PRICE,
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
