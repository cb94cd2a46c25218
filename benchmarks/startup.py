"""How long `import vnd` and the help of every command take above `import torch`.

Medians of whole processes that take turns, in this run; what was imported is in the page cache.

    python benchmarks/startup.py [--repeats 7] [--out benchmarks/results/startup.json]
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from vnd.cli import COMMANDS

PROGRAMS = {
    "import torch": ["-c", "import torch"],
    "import vnd": ["-c", "import vnd"],
    "import vnd; vnd.nn": ["-c", "import vnd; vnd.nn"],
    "vnd --help": ["-m", "vnd", "--help"],
    **{f"vnd {name} --help": ["-m", "vnd", *name.split(), "--help"] for name in COMMANDS},
}


def seconds(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for words in PROGRAMS.values():
        seconds(words)
    rounds = [{name: seconds(words) for name, words in PROGRAMS.items()} for _ in range(options.repeats)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in PROGRAMS}
    above = {name: median - medians["import torch"] for name, median in medians.items()}
    for name, median in medians.items():
        print(f"{name:24} {median:6.2f} s   {above[name]:+.2f} s")
    if options.out:
        facts = {
            "command": "python " + " ".join(sys.argv),
            "machine": platform.machine(),
            "python": sys.version.split()[0],
        }
        options.out.write_text(json.dumps({**facts, "seconds": medians, "above_torch": above}, indent=1) + "\n")


if __name__ == "__main__":
    main()
