"""Write the sweep that trains plain networks one by one at the learned shapes of a run: the ceiling of its accuracy.

    python scripts/ceilings.py runs/cifar10-bench/RUN --recipe bench/cifar10-plain --to ceilings.yaml
    vnd sweep ceilings.yaml --jobs 5

RUN must have been evaluated: its results.json says which groups each learned shape keeps. The recipe must be of the
same network and number of groups; what RUN replaced on its command line is not carried over.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml


def sweep_of(results: dict[str, Any], recipe: str, out: str, most: int) -> dict[str, Any]:
    """The sweep, as its YAML has it: a plain network for each learned shape that is not the full one."""
    full = results["groups"]
    learned = [row for row in results["rows"] if row["kind"] == "learned" and row["shape"] and row["shape"] != full]
    if not learned:
        raise ValueError(
            "it has no learned shapes; they are of methods that learn the order, by vnd evaluate --learned 5"
        )
    distinct = {tuple(row["shape"].items()): row for row in learned}
    rows = sorted(distinct.values(), key=lambda row: int(row["parameters"]))
    runs = [
        {"recipe": recipe, "name": f"plain-{row['parameters']}", "set": {"method.shape": row["shape"]}}
        for row in rows[:most]
    ]
    return {"about": f"Plain networks of the learned shapes of {results['series']['run']}", "out": out, "runs": runs}


def main() -> None:
    """Read the command line, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of an evaluated run")
    parser.add_argument("--recipe", default="bench/cifar10-plain", help="recipe of the plain network")
    parser.add_argument("--out", default="runs/ceilings", help="where the sweep puts its runs")
    parser.add_argument("--most", type=int, default=5, help="number of shapes, the smallest first")
    parser.add_argument("--to", type=Path, default=Path("ceilings.yaml"), help="the sweep's file")
    given = parser.parse_args()
    try:
        results = json.loads((given.run / "results.json").read_text(encoding="utf-8"))
        sweep = sweep_of(results, given.recipe, given.out, given.most)
        given.to.write_text(yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"ceilings: {given.run}: {error}")
    print(f"written to {given.to}: vnd sweep {given.to}")


if __name__ == "__main__":
    main()
