"""What does a step of a sandwich cost beside plain steps of the networks that it trains?

Question: a step of the recipe bench/cifar10-bn3 with its order frozen trains VGG11 1.5×, four networks that are cut out
of it, and one that is sampled, on a quarter of the batch. How long does it take beside the sum of plain steps (forward,
loss, backward, SGD) of deterministic networks of exactly those shapes, each on a batch of that size, the sampled one
counted as the full network? All compiled in the same mode. `prepare`, the masks, the noise of the weights, the KL and
twice the parameters (log α) are part of ours.

The peer is US-Net's own loop, written as its authors do: layers slice their weights by the width that is set, the
widths are run one after the other, each with its own backward pass, the narrower ones taught by the full one's answers,
then one step of the optimizer. Of the same shapes and batches, with point weights; BatchNorm for each width. Eager, as
theirs is, and with each width compiled.

Rounds of ten steps with one synchronisation at the end of each, in turns; medians. On a GPU also the time that its
kernels take, from a profile of five steps.

    python benchmarks/sandwich.py [--device cuda] [--batch 512] [--out benchmarks/results/sandwich.json]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import record
import vnd
from layers import Setting
from vnd.methods import Step
from vnd.train.config import parse

SHARE = 0.5  # of training that is done: the order is frozen
SGD: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "nesterov": True}


def plain_step(setting: Setting, net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    """A step of a deterministic network."""
    net = net.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), fused=setting.device == "cuda", **SGD)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with setting.autocast():
            return F.cross_entropy(net(x), y)

    compiled = torch.compile(loss, mode=setting.mode)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x, y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def sandwich_step(setting: Setting, method: Any, net: nn.Module) -> Callable[[], object]:
    """A step of ours, as the loop of `vnd train` makes it."""
    optimizer = torch.optim.SGD(vnd.parameter_groups(net, SGD["lr"]), fused=setting.device == "cuda", **SGD)
    weight, log = torch.full((), 3e-4, device=setting.device), torch.zeros(method.num_loss_temperatures)
    moment = Step(0, weight, 2.0, 45_000, SHARE, log.to(setting.device))
    loss, batch = torch.compile(method.loss, mode=setting.mode), (setting.x, setting.y)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with setting.autocast():
            method.prepare(net, batch, moment, lambda value: value)
            total = loss(net, batch, moment).total
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class SlimmableConv2d(nn.Conv2d):
    """A convolution that runs on the leading channels of its weight."""

    width: tuple[int, int]  # channels in and out

    def forward(self, x: Tensor) -> Tensor:
        """Slice and convolve."""
        given, made = self.width
        bias = None if self.bias is None else self.bias[:made]
        return F.conv2d(x, self.weight[:made, :given], bias, self.stride, self.padding, self.dilation, self.groups)


class SlimmableLinear(nn.Linear):
    """A linear layer that runs on the leading entries of its weight."""

    width: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        """Slice and multiply."""
        given, made = self.width
        return F.linear(x, self.weight[:made, :given], None if self.bias is None else self.bias[:made])


def slimmable(net: nn.Module, networks: list[nn.Module]) -> Callable[[int], nn.Module]:
    """The network with layers that slice, and how to set the width of one of its smaller networks."""
    switches: list[list[tuple[nn.Module, str, nn.Module]]] = []
    kinds: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: SlimmableConv2d, nn.Linear: SlimmableLinear}
    named = dict(net.named_modules())
    for module in named.values():
        if type(module) in kinds:
            module.__class__ = kinds[type(module)]
    for small in networks:
        of_width = []
        for name, module in small.named_modules():
            parent, _, last = name.rpartition(".")
            if isinstance(module, nn.BatchNorm2d):
                of_width.append((named[parent], last, nn.BatchNorm2d(module.num_features).to(module.weight.device)))
            elif isinstance(module, nn.Conv2d | nn.Linear):
                made, given = module.weight.shape[:2]
                of_width.append((named[name], "width", (given, made)))  # type: ignore[arg-type]
        switches.append(of_width)
    norms = [norm for of_width in switches for _, _, norm in of_width if isinstance(norm, nn.Module)]
    net.norms_of_widths = nn.ModuleList(norms)  # so that they are trained

    def set_width(which: int) -> nn.Module:
        for owner, name, value in switches[which]:
            setattr(owner, name, value)
        return net

    return set_width


def us_net_step(
    setting: Setting, net: nn.Module, networks: list[nn.Module], batches: list[Tensor], compiled: bool
) -> Callable[[], object]:
    """A step of US-Net's own loop: the full network, then the others, one after the other."""
    set_width = slimmable(net.to(memory_format=torch.channels_last).train(), networks)  # type: ignore[call-overload]
    set_width(0)
    optimizer = torch.optim.SGD(net.parameters(), fused=setting.device == "cuda", **SGD)

    def loss_of(which: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def loss(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            with setting.autocast():
                logits = net(x).float()
            return F.cross_entropy(logits, target), logits.detach().softmax(1)

        return torch.compile(loss, mode=setting.mode) if compiled else loss

    losses = [loss_of(which) for which in range(len(networks))]
    for parameter in net.parameters():  # that graphs add to: what one of them made, the next would overwrite
        parameter.grad = torch.zeros_like(parameter)

    def step() -> None:
        taught = setting.y
        for which, (loss, x) in enumerate(zip(losses, batches, strict=True)):
            torch.compiler.cudagraph_mark_step_begin()
            set_width(which)
            value, probs = loss(x, taught[:: len(taught) // len(x)])
            value.backward()
            taught = probs.clone() if which == 0 else taught
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def kernels(step: Callable[[], object], steps: int = 5) -> float:
    """Milliseconds that the kernels of a step take on a GPU."""
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity], acc_events=True) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / steps / 1e3


def measure(steps: dict[str, Callable[[], object]], rounds: int, length: int, device: str) -> dict[str, float]:
    """Median milliseconds of a step."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            synchronize()
            start = time.perf_counter()
            for _ in range(length):
                step()
            synchronize()
            times[name].append((time.perf_counter() - start) / length * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="512 on a GPU, 64 on a CPU")
    parser.add_argument("--width", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budgets", type=float, nargs="*", help="those of the recipe, if not given")
    parser.add_argument("--only", nargs="*", default=[""], help="the contestants that have one of these in their names")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sandwich.json"))
    args = parser.parse_args()
    cuda = args.device == "cuda"
    setting = Setting(args.device, args.batch or (512 if cuda else 64), args.width, args.rounds)
    settings = [] if args.budgets is None else [f"--method.fixed_budgets={args.budgets}"]
    method = parse("bench/cifar10-bn3", settings).method
    net = method.build(setting.network(), setting.x[:2]).to(memory_format=torch.channels_last).train()
    part, labels = (value[:: round(1 / method.sampled_share)].clone() for value in (setting.x, setting.y))
    part = part.to(memory_format=torch.channels_last)
    shapes = {f"≤ {budget:,.0f}": vnd.shape(net, parameters=budget) for budget in method.fixed_budgets}
    networks = {"full": setting.network(), "sampled": setting.network()}
    networks |= {name: vnd.extract(net, shape, warn=False) for name, shape in shapes.items()}
    data = {name: (part, labels) if name == "sampled" else (setting.x, setting.y) for name in networks}
    steps = {"sandwich": sandwich_step(setting, method, net)}
    steps |= {f"plain: {name}": plain_step(setting, own, *data[name]) for name, own in networks.items()}
    for how in ("eager", "compiled"):
        batches = [x for x, _ in data.values()]
        own = us_net_step(setting, setting.network(), list(networks.values()), batches, how == "compiled")
        steps[f"US-Net's loop, {how}"] = own
    steps = {name: step for name, step in steps.items() if any(word in name for word in args.only)}
    first = {}
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        first[name] = time.perf_counter() - start
        for _ in range(4):  # CUDA graphs are recorded
            step()
        print(f"{name:28} first step {first[name]:6.1f} s", flush=True)
    times = measure(steps, args.rounds, 10 if cuda else 1, args.device)
    busy = {name: kernels(step) for name, step in steps.items()} if cuda else {}
    rows = []
    for name in steps:
        row = {"name": name, "milliseconds": times[name], "kernels": busy.get(name), "first step, s": first[name]}
        rows.append(row)
        print(f"{name:28} {times[name]:9.3f} ms   kernels {busy.get(name, 0):9.3f} ms")
    ratios = {}
    for what, found in (("step", times), ("kernels", busy)):
        if not found:
            continue
        total = sum(value for name, value in found.items() if name.startswith("plain"))
        if not total:
            continue
        ratios[what] = {name: value / total for name, value in found.items() if not name.startswith("plain")}
        print(
            f"{what}: sum of plain ones {total:.3f} ms; times that:", {n: round(r, 3) for n, r in ratios[what].items()}
        )
    parameters = {name: sum(p.numel() for p in own.parameters()) for name, own in networks.items()}
    options = {"batch": len(setting.y), "width": args.width, "rounds": args.rounds, "parameters": parameters}
    record.write(args.out, "python benchmarks/sandwich.py", args.device, **options, rows=rows, ratios=ratios)


if __name__ == "__main__":
    main()
