"""How long does a student take to answer in one pass, against its teacher in six?

The teacher of the CIFAR-10 benchmark, VGG11 of 1.5 times the width with a posterior over its weights, answers as it is
deployed: extracted, six draws, their probabilities averaged (`vnd.predict`); by weights that are drawn, or by the local
trick, whichever is faster being 1. A student keeps a quarter of its channels, or the teacher's learned shape of as many
parameters, and answers by its Dirichlet's mean, one pass, at its full width and at a quarter of it. What the weights
are does not matter for time: nothing is trained. They take turns; medians over rounds, ratios within this run.

    python benchmarks/students.py [--device cuda] [--batches 1,64,512] [--out benchmarks/results/students-cpu.json]
"""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path

import torch

import vnd
from decoding import milliseconds
from record import write
from vnd.methods.sn3 import prune
from vnd.models import VGG11

DRAWS = 6
LEARNED = (28, 19, 12, 5, 5, 2, 15)  # of 32 groups in each layer: 1.38 M parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", default="1,64,512")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    example = torch.rand(2, 3, 32, 32)
    rules = {"features.0": vnd.nn.Rule(nest=False), "classifier.*": vnd.nn.Rule(nest=False)}
    teachers = {
        estimator: vnd.to_nested(VGG11(width=1.5), example, num_groups=32, base=1, estimator=estimator, rules=rules)
        for estimator in ("weight", "local")
    }
    learned = vnd.Shape(dict(zip(vnd.shape(teachers["local"], fraction=1.0), LEARNED, strict=True)))
    students = {"student": prune(teachers["local"], 0.25, example)}
    students["learned student"] = prune(teachers["local"], learned, example)
    means = vnd.extract(teachers["local"], 1.0)
    whole = {f"teacher, {name} draws": vnd.extract(net, 1.0, keep="posterior") for name, net in teachers.items()}
    whole["teacher, means"] = means
    small = {
        f"{name}{width}": vnd.extract(student, fraction)
        for name, student in students.items()
        for width, fraction in (("", 1.0), (", 25 %", 0.25))
    }
    networks = {name: network.to(args.device).eval() for name, network in (whole | small).items()}
    rows = []
    for batch in map(int, args.batches.split(",")):
        images = torch.rand(batch, 3, 32, 32, device=args.device)
        runs = {
            name: partial(
                vnd.predict,
                network,
                images,
                samples=DRAWS if "draws" in name else 0,
                link="dirichlet" if "student" in name else "softmax",
            )
            for name, network in networks.items()
        }
        times = milliseconds(runs, args.rounds, args.device)
        base = min(time for name, time in times.items() if "draws" in name)
        for name, time in times.items():
            plain = networks[name] if name in small else means
            count = sum(parameter.numel() for parameter in plain.parameters())
            rows.append({"batch": batch, "network": name, "parameters": count, "ms": time, "ratio": time / base})
            print(f"batch {batch:4d}: {name:22s} {time:9.3f} ms, {time / base:.4f} of six draws")
    out = args.out or Path(f"benchmarks/results/students-{args.device}.json")
    write(out, shlex.join(["python", *sys.argv]), args.device, rows=rows)


if __name__ == "__main__":
    main()
