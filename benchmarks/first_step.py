"""How long does a compiled run take until its first step is done, with an empty cache?

The recipes cifar10/vgg11-bn3, bench/cifar10-bn3 (a sandwich: its first step, and its first one after the order is
frozen and the budgets are cut) and cifar10/resnext-bn3, as `vnd train` runs them, on random images: each in a process
of its own, whose caches of Inductor and Triton are fresh folders. Seconds from the call of the first step to its end;
what importing torch and vnd takes and building the network is beside it. Then the median of later steps, since what is
compiled sooner must not run slower, and where the time went, by torch's own count of its phases (one may lie in
another).

    python benchmarks/first_step.py [--device cuda] [--batch 512] [--out benchmarks/results/first-step.json]
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = time.perf_counter()
import torch  # noqa: E402

import record  # noqa: E402
from vnd.methods import Step  # noqa: E402
from vnd.train import loop  # noqa: E402
from vnd.train.config import parse  # noqa: E402

RECIPES = {"nested": "cifar10/vgg11-bn3", "sandwich": "bench/cifar10-bn3", "ResNeXt": "cifar10/resnext-bn3"}
PHASES = {
    "trace of the Python code": "bytecode_tracing",
    "joint graph": "aot_trace_joint_graph",
    "lowering": "GraphLowering.run",
    "scheduling": "Scheduler.__init__",
    "code": "Scheduler.codegen",
    "compilation of kernels, waited for": "async_compile.wait",
    "all of it": "_compile.compile_inner",
}


class Run:
    """A recipe's steps on one batch of random images."""

    def __init__(self, recipe: Any, device: str, batch: int) -> None:
        self.recipe, self.device, self.method = recipe, device, recipe.method
        network = recipe.network.build((3, 32, 32), 10)
        self.model = self.method.build(network, torch.rand(2, 3, 32, 32)).to(device)
        self.model = self.model.to(memory_format=torch.channels_last).train()
        self.optimizer = recipe.optimizer.build(self.model)
        self.batch = torch.rand(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)
        temperatures = self.method.num_loss_temperatures
        log = torch.zeros(temperatures, device=device) if temperatures else None
        self.moment = Step(0, torch.full((), 3e-4, device=device), 2.0, 45_000, 0.0, log)
        mode = "reduce-overhead" if device == "cuda" else None
        self.loss, self.measured = (torch.compile(x, mode=mode) for x in (self.method.loss, self.model))

    def step(self) -> None:
        """One step of training, to its end."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            self.method.prepare(self.measured, self.batch, self.moment, lambda value: value)
            total = self.loss(self.model, self.batch, self.moment).total
        total.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device == "cuda":
            torch.cuda.synchronize()

    def move_to(self, share: float) -> None:
        """Go to a share of training."""
        self.moment = dataclasses.replace(self.moment, share=share)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(recipe: Any, device: str, batch: int, steps: int) -> dict[str, Any]:
    """Seconds and milliseconds of a run, in this process."""
    found: dict[str, Any] = {"imports": time.perf_counter() - START}
    if device == "cuda":
        torch.zeros(1, device=device)  # the driver
    with loop.deterministic(recipe.train.deterministic):
        start = time.perf_counter()
        run = Run(recipe, device, batch)
        found["network"] = time.perf_counter() - start
        found["first step"] = seconds(run.step)
        found["steps, ms"] = statistics.median([1e3 * seconds(run.step) for _ in range(steps)][steps // 3 :])
        if getattr(recipe.method, "fixed_budgets", ()):
            run.move_to(0.5)
            found["first step of the budgets"] = seconds(run.step)
            later = [1e3 * seconds(run.step) for _ in range(steps)]
            found["steps with the budgets, ms"] = statistics.median(later[steps // 3 :])
    phases = torch._dynamo.utils.compilation_time_metrics
    return found | {"phases": {name: sum(phases.get(key, [])) for name, key in PHASES.items()}}


def in_own_process(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own, with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {key: f"{folder}/{key}" for key in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        command = [sys.executable, __file__, *sys.argv[1:], "--run", name, "--out", f"{folder}/found.json"]
        subprocess.run(command, env=os.environ | caches, check=True)
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--runs", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--run", choices=RECIPES, help="measure this one here, for the process that asks")
    parser.add_argument("--set", action="append", default=[], help="keys of the recipes, as --network.width=0.25")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/first-step.json"))
    args = parser.parse_args()
    if args.run:
        recipe = parse(RECIPES[args.run], args.set)
        args.out.write_text(json.dumps(measure(recipe, args.device, args.batch, args.steps)))
        return
    rows = []
    for name in args.runs:
        found = in_own_process(name, args)
        rows.append({"name": name, "recipe": RECIPES[name], **found})
        for what, number in (found | found["phases"]).items():
            if isinstance(number, float):
                print(f"{name:10} {what:40} {number:8.1f}", flush=True)
    options = {"batch": args.batch, "settings": args.set}
    record.write(args.out, "python benchmarks/first_step.py", args.device, **options, rows=rows)


if __name__ == "__main__":
    main()
