"""How long does one hard draw with its backward pass take?

Question: what does a straight-through Downhill cost, from keep logits to their gradient, beside a sequential
Bernoulli chain (one relaxed Bernoulli after the other, the naive way) and beside torch's own
`F.gumbel_softmax(hard=True)` from length logits? Batch 64; medians; ratios within this run.

    python benchmarks/sampling.py [--out benchmarks/results/sampling.json]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import record
import vnd

BATCH, TEMPERATURE, WARM_UP = 64, 0.5, 2


def downhill(logits: Tensor) -> Tensor:
    return vnd.Downhill(TEMPERATURE, logits, validate_args=False).rsample(hard=True)


def gumbel_softmax(logits: Tensor) -> Tensor:
    return F.gumbel_softmax(logits, tau=TEMPERATURE, hard=True)


def sequential_chain(logits: Tensor) -> Tensor:
    kept, mask = torch.ones(BATCH, device=logits.device), []
    for logit in logits.unbind(-1):
        u = torch.rand_like(logit).clamp(1e-6, 1 - 1e-6)
        soft = torch.sigmoid((logit + u.log() - (-u).log1p()) / TEMPERATURE)
        kept = kept * ((soft > 0.5).to(soft.dtype) + (soft - soft.detach()))
        mask.append(kept)
    return torch.stack(mask, -1)


def draw_and_differentiate(draw: Callable[[Tensor], Tensor], logits: Tensor) -> float:
    """Seconds of one draw with its backward pass; stops the run if anything is not finite."""
    logits.grad = None
    synchronize = torch.cuda.synchronize if logits.is_cuda else lambda: None
    weight = torch.ones_like(logits)
    synchronize()
    start = time.perf_counter()
    sample = draw(logits)
    (sample * weight).sum().backward()
    synchronize()
    seconds = time.perf_counter() - start
    if not (sample.isfinite().all() and logits.grad.isfinite().all()):
        raise SystemExit(f"{draw.__name__} gave a value that is not finite at n = {logits.size(-1)}")
    return seconds


def measure(functions: dict[str, Callable[[Tensor], Tensor]], n: int, device: str) -> dict[str, float]:
    """Median seconds of a draw with its backward pass, the contestants taking turns."""
    inputs = {}
    for name in functions:
        logits = torch.full((BATCH, n), 3.0, device=device) + 0.1 * torch.randn(BATCH, n, device=device)
        inputs[name] = logits.requires_grad_()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(WARM_UP + (41 if n < 50_000 else 11)):
        for name, draw in functions.items():
            if name == "sequential chain" and len(times[name]) >= (5 if n < 50_000 else 1):
                continue  # it is slower by orders of magnitude
            seconds = draw_and_differentiate(draw, inputs[name])
            if turn >= WARM_UP or name == "sequential chain":
                times[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sampling.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    functions = {"downhill": downhill, "gumbel_softmax": gumbel_softmax, "sequential chain": sequential_chain}
    rows = []
    print(f"hard draw + backward, batch {BATCH}, {args.device}, torch {torch.__version__}; milliseconds (ratio)")
    print(f"{'n':>8} {'downhill':>12} {'gumbel_softmax':>18} {'sequential chain':>22}")
    for n in (32, 1_024, 100_000):
        seconds = measure(functions, n, args.device)
        own = seconds["downhill"]
        rows.append({"n": n, "seconds": seconds, "downhill / gumbel_softmax": own / seconds["gumbel_softmax"]})
        print(
            f"{n:>8} {own * 1e3:>12.3f} {seconds['gumbel_softmax'] * 1e3:>10.3f} "
            f"({own / seconds['gumbel_softmax']:.2f}×) {seconds['sequential chain'] * 1e3:>13.2f} "
            f"({own / seconds['sequential chain']:.4f}×)"
        )
    options = {"batch": BATCH, "temperature": TEMPERATURE}
    record.write(args.out, "python benchmarks/sampling.py", args.device, **options, rows=rows)


if __name__ == "__main__":
    main()
