"""What does a nested Bayesian network cost beside a deterministic one, and beside other libraries' Bayesian layers?

Question: with VGG11 1.5× on CIFAR-sized images, how long is a training step (forward, KL, masks, backward, optimizer),
a six-sample prediction, and a forward pass of a network extracted at a quarter of the width? Ratios within this run.

- step: ours (log α per weight, nested, coupled; local estimator, whole and with a `variance_share` of a quarter and an
  eighth, and weight noise) against the deterministic network, all compiled; ten steps in a row, as in a training loop,
  and, beside it, one step from synchronization to synchronization; the most memory that was allocated;
- predict: six samples against six deterministic passes, both compiled: in one batched pass by the local estimator, as
  it is and with one variance for all samples ("pooled"), and in six passes by the weight estimator;
- extract: full width against a quarter, eager, as deployed;
- kl: `vnd.kl` with its gradient against the rest of a step, for a transformer of 12 layers of width 512 (38 M weights)
  on 32 sequences of 128 tokens, eager, float32, in seconds of the CPU, one thread; alone it is `--only kl`;
- conversion: `vnd.to_nested` of that transformer, which finds what depends on what, makes the posterior, and runs
  slices of three shapes to see that they compute the same; beside it Torch-Pruning, where it is installed: its graph
  of dependencies with all groups of it, and its pruner (`--only conversion`);
- peers, where installed: bayesian-torch, blitz and torch-uncertainty, their own layers in the same network.

    python benchmarks/layers.py [--device cuda] [--batch 512] [--out benchmarks/results/layers.json]
"""

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vnd


class Setting:
    """The device, the data and the precision of a run."""

    def __init__(self, device: str, batch: int, width: float, rounds: int) -> None:
        self.device, self.width, self.rounds = device, width, rounds
        self.mode = "reduce-overhead" if device == "cuda" else None  # CUDA graphs, for all that compile
        torch.manual_seed(0)
        self.x = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
        self.y = torch.randint(10, (batch,), device=device)

    def autocast(self) -> Any:
        """Mixed precision on a GPU, none on a CPU."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

    def network(self) -> nn.Module:
        """The plain network."""
        return vnd.models.VGG11(width=self.width).to(self.device).to(memory_format=torch.channels_last)

    def time(self, run: Callable[[], Any], row: int = 1) -> float:
        """Median milliseconds of a run; of several in a row, with one synchronization at the end of each row."""
        synchronize = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        for _ in range(max(3, self.rounds // 3)):
            run()
        times = []
        for _ in range(self.rounds):
            synchronize()
            start = time.perf_counter()
            for _ in range(row):
                run()
            synchronize()
            times.append(1e3 * (time.perf_counter() - start) / row)
        return statistics.median(times)


FORMS: dict[str, dict[str, Any]] = {
    "local": {},
    "local, variance_share 0.25": {"variance_share": 0.25},
    "local, variance_share 0.125": {"variance_share": 0.125},
    "weight": {"estimator": "weight"},
}


def nested(setting: Setting, form: str = "local") -> nn.Module:
    rules = {"features.0": vnd.Rule(nest=False, log_alpha_init=-8.0), "classifier.*": vnd.Rule(nest=False)}
    plain = setting.network()
    return vnd.to_nested(plain, setting.x[:2], num_groups=32, base=2, rules=rules, **FORMS[form])


def step(
    setting: Setting, net: nn.Module, penalty: Callable[[], Tensor] | None, groups: Any, compiled: bool
) -> dict[str, float]:
    """Milliseconds of a training step, in a row and alone, and GiB at most allocated."""
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if setting.device == "cuda" else 0
    net.train()
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True, fused=setting.device == "cuda")

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with setting.autocast():
            value = F.cross_entropy(net(x), y)
        return value if penalty is None else value + penalty()

    function = torch.compile(loss, mode=setting.mode) if compiled else loss

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        function(setting.x, setting.y).backward()
        optimizer.step()

    times = {"in a row": setting.time(run, row=10 if setting.device == "cuda" else 1), "alone": setting.time(run)}
    if setting.device == "cuda":
        held = sum(x.numel() * x.element_size() for x in net.parameters())
        times["GiB"] = (torch.cuda.max_memory_allocated() - before + held) / 2**30
    return times


def scaled_kl(net: nn.Module) -> Tensor:
    return vnd.kl(net) * 2e-8


def predictions(setting: Setting, samples: int) -> dict[str, float]:
    """Milliseconds of a prediction with several samples by ours, and of one deterministic pass, all compiled."""
    found, ways = {}, {"local": ("local", None), "pooled": ("local", "pooled"), "weight": ("weight", None)}
    with torch.inference_mode(), setting.autocast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these networks were never trained, nor recalibrated
        plain = torch.compile(setting.network().eval(), mode=setting.mode)
        found["deterministic"] = setting.time(lambda: plain(setting.x))
        for name, (trained, read) in ways.items():
            net = torch.compile(nested(setting, trained).eval(), mode=setting.mode)
            run = partial(vnd.predict, net, setting.x, samples=samples, estimator=read)
            found[f"ours, {samples} samples, {name}"] = setting.time(run)
            print(f"  {name}, ms: {found[f'ours, {samples} samples, {name}']:.3f}", flush=True)
            torch.compiler.reset()
    return found


def extraction(setting: Setting, net: nn.Module) -> dict[str, float]:
    """Milliseconds of a forward pass of the extracted network, full and at a quarter of the width."""
    out = {}
    with torch.inference_mode():
        for fraction in (1.0, 0.25):
            small = vnd.extract(net.eval(), fraction)
            out[f"{fraction:g}"] = setting.time(lambda small=small: small(setting.x))
    return out


class Block(nn.Module):
    """Attention and an MLP, each added to the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to all positions, then widen and narrow each."""
        batch, length, width = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.before_mlp(x))))


def transformer(layers: int = 12, width: int = 512) -> nn.Module:
    """A transformer that reads vectors of 16 numbers."""
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(nn.Linear(16, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def kl_share(rounds: int = 3) -> dict[str, float]:
    """Seconds of the CPU of `vnd.kl` with its gradient, and of the rest of a training step, one thread."""
    torch.set_num_threads(1)
    net, x = vnd.to_nested(transformer(), torch.randn(1, 4, 16)), torch.randn(32, 128, 16)

    def seconds(loss: Callable[[], Tensor]) -> float:
        start = time.process_time()
        loss().backward()
        return time.process_time() - start

    step, kl = [], []
    for _ in range(rounds):
        step.append(seconds(lambda: net(x).square().mean()))
        kl.append(seconds(lambda: vnd.kl(net)))
    result = {"kl": statistics.median(kl), "step": statistics.median(step)}
    return result | {"ratio": result["kl"] / result["step"]}


def conversion(rounds: int = 5) -> dict[str, float]:
    """Seconds of the CPU of the conversion of a transformer, and of Torch-Pruning's steps, one thread, in turns."""
    torch.set_num_threads(1)
    plain, x = transformer(), torch.randn(1, 4, 16)
    calls: dict[str, Callable[[], Any]] = {"to_nested": lambda: vnd.to_nested(plain, x)}
    if importlib.util.find_spec("torch_pruning") is None:
        print("  torch-pruning: not installed, skipped (pip install --no-deps torch-pruning)")
    else:
        import torch_pruning as tp

        def graph() -> None:
            list(tp.DependencyGraph().build_dependency(plain, example_inputs=x).get_all_groups())

        def pruner() -> Any:
            return tp.pruner.MagnitudePruner(
                plain, x, importance=tp.importance.MagnitudeImportance(), pruning_ratio=0.5
            )

        calls |= {"Torch-Pruning, graph and groups": graph, "Torch-Pruning, pruner": pruner}
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            spent[name].append(time.process_time() - start)
    return {name: statistics.median(own) for name, own in spent.items()}


def peers(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Milliseconds of a training step with other libraries' layers, where installed, each in its own process."""
    found = {}
    for name in PEERS:
        if importlib.util.find_spec(name.replace("-", "_")) is None:
            print(f"  {name}: not installed, skipped (pip install '.[peers]')")
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "peer.json"
            options = [] if args.rounds is None else ["--rounds", str(args.rounds)]
            options += [] if args.batch is None else ["--batch", str(args.batch)]
            command = [sys.executable, __file__, "--only", f"peer:{name}", "--out", str(out), "--device", args.device]
            command += ["--width", str(args.width), *options]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=args.limit)
            except subprocess.TimeoutExpired:
                print(f"  {name}: not done after {args.limit:g} s", flush=True)
                continue
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                print(f"  {name}: failed here, exit code {done.returncode} ({last[:150]})", flush=True)
                continue
            found[name] = json.loads(out.read_text())["step"]
            print(f"  {name}, ms: {found[name]}", flush=True)
    return found


def peer_step(setting: Setting, name: str) -> dict[str, dict[str, float]]:
    """Milliseconds of a training step with one library's layers, eager and, on a GPU, compiled."""
    net, penalty = PEERS[name](setting.network())
    net = net.to(setting.device).to(memory_format=torch.channels_last)
    times = {"eager": step(setting, net, penalty, net.parameters(), compiled=False)}
    if setting.device == "cuda":
        try:
            times["compiled"] = step(setting, net, penalty, net.parameters(), compiled=True)
        except Exception as error:
            print(f"{name} does not compile: {error}", file=sys.stderr)
    return times


def bayesian_torch_network(net: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    prior = {
        "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
        "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5,
    }  # fmt: skip
    dnn_to_bnn(net, prior)
    return net, lambda: get_kl_loss(net) / 50_000


def blitz_network(net: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear

    def swap(layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d):
            return BayesianConv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=1, bias=False)
        return BayesianLinear(layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else None

    swap_layers(net, swap)
    return net, lambda: kl_divergence_from_nn(net) / 50_000


def torch_uncertainty_network(net: nn.Module) -> tuple[nn.Module, Callable[[], Tensor]]:
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear

    def swap(layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d):
            return BayesConv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=1, bias=False)
        return BayesLinear(layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else None

    layers = swap_layers(net, swap)

    def penalty() -> Tensor:
        return sum(layer.log_variational_posterior - layer.log_prior for layer in layers) / 50_000

    return net, penalty


PEERS: dict[str, Callable[[nn.Module], tuple[nn.Module, Callable[[], Tensor]]]] = {
    "bayesian-torch": bayesian_torch_network,
    "blitz": blitz_network,
    "torch-uncertainty": torch_uncertainty_network,
}


def swap_layers(net: nn.Module, swap: Callable[[nn.Module], nn.Module | None]) -> list[Any]:
    new = []
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            other = swap(child)
            if other is not None:
                setattr(parent, name, other)
                new.append(other)
    return new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=None, help="512 on a GPU, 64 on a CPU")
    parser.add_argument("--width", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--limit", type=float, default=300, help="seconds that a peer may take")
    parser.add_argument("--only", default="step,peers,predict,extract")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/layers.json"))
    args = parser.parse_args()
    cuda = args.device == "cuda"
    setting = Setting(args.device, args.batch or (512 if cuda else 64), args.width, args.rounds or (50 if cuda else 7))
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    result: dict[str, Any] = {
        "command": f"python benchmarks/layers.py --only {args.only}",
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "batch": setting.x.size(0),
        "width": args.width,
    }
    wanted = args.only.split(",")
    if "step" in wanted:
        plain = setting.network()
        result["step"] = {"deterministic": step(setting, plain, None, plain.parameters(), compiled=True)}
        for form in FORMS:
            torch._dynamo.reset()
            net = nested(setting, form)
            groups = vnd.parameter_groups(net, 0.01)
            penalty = partial(scaled_kl, net)
            result["step"][form] = step(setting, net, penalty, groups, compiled=True)
            del net, groups, penalty
        base = result["step"]["deterministic"]
        result["step ratio"] = {
            form: {kind: row[kind] / base[kind] for kind in row} for form, row in result["step"].items()
        }
        for form, row in result["step"].items():
            ratios = result["step ratio"][form]
            print(f"step, {form:28}", {k: (round(v, 3), round(ratios[k], 3)) for k, v in row.items()}, flush=True)
    if "peers" in wanted:
        result["peers"] = peers(args)
    if args.only.startswith("peer:"):
        result["step"] = peer_step(setting, args.only.removeprefix("peer:"))
    if "predict" in wanted:
        times = predictions(setting, samples=6)
        one = times["deterministic"]
        ratios = {f"ratio, {name}": ms / (6 * one) for name, ms in times.items() if ms is not one}
        result["predict"] = times | ratios
        print("predict, ms:", {k: round(v, 3) for k, v in result["predict"].items()}, flush=True)
    if "extract" in wanted:
        times = extraction(setting, nested(setting))
        result["extract"] = {**times, "speed-up at a quarter": times["1"] / times["0.25"]}
        print("extract, ms:", {k: round(v, 3) for k, v in result["extract"].items()}, flush=True)
    if "conversion" in wanted:
        result["conversion"] = conversion()
        print("conversion, s:", {k: round(v, 3) for k, v in result["conversion"].items()}, flush=True)
    if "kl" in wanted:
        result["kl"] = kl_share()
        print("kl, s:", {k: round(v, 3) for k, v in result["kl"].items()}, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
