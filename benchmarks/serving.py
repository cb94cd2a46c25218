"""What does a service get of answering at any width, beside services of one width, as its load grows?

Questions: of examples/serve.py with all widths of a network, with the full width alone, and with the narrowest alone,
how many requests are answered rightly before their deadlines at each load, how many of the answers are right, and how
long do replies take (p50, p99)? All three are one program, with the same rule of what is withheld.

A convolutional network is trained on 11,000 images of Fashion-MNIST and exported; the rule is fitted on the other
1,000 training images; the requests are test images, one each. They come at random (exponential gaps), whether those
before have been answered or not, and wait from the time at which they were due. Deadlines are 2, 4 or 8 times what the
full width takes, equally often; loads are counted in what the full width alone could answer without a pause. Each
service is a process of its own on 127.0.0.1 with one thread for the network; services and loads take turns.

    python benchmarks/serving.py [--out benchmarks/results/serving-cpu.json] [--network FOLDER] [--small]
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = (1.0, 0.5, 0.25)
SERVICES: dict[str, tuple[float, ...]] = {"any width": WIDTHS, "full width": (1.0,), "quarter width": (0.25,)}
LOADS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
DEADLINES = (2, 4, 8)  # times what the full width takes
SAMPLES, RISK, CALLERS = 6, 0.1, 64
TURNS, SECONDS = 2, 4.0
EPOCHS, CHANNELS, KL_WEIGHT = 4, 32, 0.01


# -- the service: a process without torch ------------------------------------------------------------------------------


def serve(folder: Path, widths: list[float]) -> None:
    """Serve the network of a folder at these widths, until standard input ends; says its port and its times first."""
    sys.path.insert(0, str(ROOT / "examples"))
    import serve as example

    data = np.load(folder / "validation.npz")
    service = example.Service(folder / "any.onnx", data["x"], data["y"], RISK, SAMPLES, widths)
    assert "torch" not in sys.modules
    told = {"port": example.serve(service).server_port, "seconds": service.seconds}
    told |= {"rules": {width: [rule.coverage, rule.risk] for width, rule in service.rules.items()}}
    print(json.dumps(told), flush=True)
    sys.stdin.read()


@contextmanager
def started(folder: Path, widths: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    """A service in a process of its own, and what it says of itself."""
    call = [sys.executable, __file__, "--serve", str(folder), "--widths", *map(str, widths)]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


# -- the network -------------------------------------------------------------------------------------------------------


def plain(channels: int) -> Any:
    """A convolutional network with one fifth of its multiply-adds in each of five layers, about."""
    from torch import nn

    c, layers = channels, []
    for before, after, stride in ((1, c, 2), (c, 2 * c, 1), (2 * c, 2 * c, 1), (2 * c, 4 * c, 2), (4 * c, 4 * c, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * c, 10))


def train(x: Any, y: Any, epochs: int, channels: int) -> Any:
    """A nested network, trained and with the statistics of its widths; on a GPU where there is one."""
    import torch
    from torch import nn

    import vnd

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y, steps = x.to(device), y.to(device), epochs * len(x) // 128
    net = vnd.to_nested(plain(channels).to(device), x[:2], num_groups=16)
    optimizer = torch.optim.Adam(vnd.parameter_groups(net, lr=2e-3))
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        rows = torch.randint(len(x), (128,), device=device)
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            logits = net(x[rows])
        loss = nn.functional.cross_entropy(logits.float(), y[rows]) + KL_WEIGHT * vnd.kl(net) / len(x)
        loss.backward()
        optimizer.step()
        falling.step()
        if step % 50 == 0:
            print(f"step {step} of {steps}: loss {loss:.3f}", flush=True)
    vnd.recalibrate(net.eval(), x[:2048].split(256), widths=WIDTHS, samples="both")
    return net.cpu()


def prepare(folder: Path, epochs: int, channels: int, saved: Path | None) -> None:
    """Export a network, trained now or saved before, and keep the images that the rule is fitted on."""
    import torch

    import vnd

    images = vnd.data.load("fashion", "train")
    x, y = torch.from_numpy(images.pixels / 255).float(), torch.from_numpy(images.labels).long()
    if saved is not None and saved.exists():
        net = vnd.load(saved, model=plain(channels))
    else:
        net = train(x[:11000], y[:11000], epochs, channels)
        if saved is not None:
            vnd.save(net, saved)
    np.savez(folder / "validation.npz", x=x[11000:].numpy(), y=y[11000:].numpy())
    vnd.export(net, folder / "any.onnx", widths=WIDTHS, posterior=True, classes=images.classes)


# -- the load ----------------------------------------------------------------------------------------------------------


def load(port: int, bodies: list[str], due: np.ndarray) -> list[tuple[dict[str, Any], float]]:
    """Replies to requests that are due at these seconds, and how long each took from then on."""
    replies: list[Any] = [None] * len(due)
    waiting = iter(range(len(due)))
    ready, lock = threading.Barrier(CALLERS + 1), threading.Lock()
    begin = [0.0]

    def call() -> None:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        line.connect()
        ready.wait()
        ready.wait()
        while True:
            with lock:
                number = next(waiting, None)
            if number is None:
                break
            time.sleep(max(0.0, begin[0] + due[number] - time.monotonic()))
            line.request("POST", "/", bodies[number])
            told = json.loads(line.getresponse().read())
            replies[number] = told, time.monotonic() - begin[0] - due[number]
        line.close()

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    ready.wait()
    begin[0] = time.monotonic() + 0.1
    ready.wait()
    for caller in callers:
        caller.join()
    return replies


def point(port: int, images: Any, rate: float, full: float, seconds: float, turn: int) -> dict[str, Any]:
    """What a service does with one load."""
    random = np.random.default_rng((turn, int(1e6 * rate * full)))
    due = random.exponential(1 / rate, max(20, round(rate * seconds))).cumsum()
    chosen = (
        random.permutation(len(images))[: len(due)] if len(due) <= len(images) else random.choice(len(images), len(due))
    )
    deadlines = full * random.choice(DEADLINES, len(due))
    bodies = [
        json.dumps({"image": (images.pixels[i] / 255).round(4).tolist(), "seconds": limit})
        for i, limit in zip(chosen, deadlines, strict=True)
    ]
    replies = load(port, bodies, due)
    counts = dict.fromkeys(("right", "wrong", "withheld", "late"), 0)
    for (told, took), i, limit in zip(replies, chosen, deadlines, strict=True):
        if "error" in told:
            raise SystemExit(f"the service refuses a request: {told['error']}")
        if took > limit or told.get("why") == "no time":
            counts["late"] += 1
        elif told["class"] is None:
            counts["withheld"] += 1
        else:
            counts["right" if told["class"] == images.classes[images.labels[i]] else "wrong"] += 1
    took = [1000 * took for _, took in replies]
    widths = [told["width"] for told, _ in replies if "width" in told]
    answered = counts["right"] + counts["wrong"]
    return {
        "rate": len(due) / float(due[-1]),
        "requests": len(due),
        **{key: value / len(due) for key, value in counts.items()},
        "accuracy": counts["right"] / answered if answered else None,
        "p50_ms": float(np.quantile(took, 0.5)),
        "p99_ms": float(np.quantile(took, 0.99)),
        "width": statistics.fmean(widths) if widths else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/serving-cpu.json"))
    parser.add_argument(
        "--network", type=Path, help="a folder of the trained network, which is trained if it is not there"
    )
    parser.add_argument("--small", action="store_true", help="a small network and a few requests, to see that it runs")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--widths", type=float, nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve, args.widths)
        return
    import record
    import vnd

    turns, seconds, loads = (1, 1.0, (0.5, 2.0)) if args.small else (TURNS, SECONDS, LOADS)
    images, rows = vnd.data.load("fashion", "test"), []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, *((1, 8) if args.small else (EPOCHS, CHANNELS)), args.network)
        names = [*SERVICES]
        with started(folder, SERVICES[names[0]]) as one, started(folder, SERVICES[names[1]]) as two, \
                started(folder, SERVICES[names[2]]) as three:  # fmt: skip
            services = dict(zip(names, (one, two, three), strict=True))
            full = two["seconds"]["1.0"]
            print("ms at width:", {w: round(1000 * s, 2) for w, s in one["seconds"].items()}, "rules:", one["rules"])
            for turn in range(turns):
                for times in loads:
                    for name, service in services.items():
                        row = point(service["port"], images, times / full, full, seconds, turn)
                        rows.append({"service": name, "load": times, "turn": turn, **row})
                        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    facts = {
        "deadlines": DEADLINES,
        "samples": SAMPLES,
        "risk": RISK,
        "ms": {w: 1000 * s for w, s in one["seconds"].items()},
    }
    record.write(args.out, "python benchmarks/serving.py", "cpu", **facts, rules=one["rules"], rows=rows)


if __name__ == "__main__":
    main()
