"""Train a recipe once undisturbed, and once in processes that kill themselves again and again; for test_loop.py.

Children are forked from one process that has imported torch and used no thread yet, so that a kill costs little.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from vnd import _files
from vnd.train import loop
from vnd.train.config import parse
from vnd.train.recipe import Recipe
from vnd.train.state import TrainState


def child(work: Any) -> int:
    """Run in a fork, and return how it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def die_at_step(steps: int) -> None:
    own, left = TrainState.move_average, [steps]

    def dying(self: TrainState) -> None:
        own(self)
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    TrainState.move_average = dying  # type: ignore[method-assign]


def die_in_save(calls: int) -> None:
    """Die before the n-th call that makes a file durable: of a checkpoint, of the best network, of a rename."""
    own, left = _files.sync, [calls]

    def dying(path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        own(path)

    _files.sync = dying


def die_in_last(calls: int) -> None:
    """Die after the last checkpoint, before the last network is written, or before the n-th call that makes it last."""
    own = TrainState.finish

    def dying(self: TrainState) -> None:
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        die_in_save(calls - 1)
        own(self)

    TrainState.finish = dying  # type: ignore[method-assign]


def main(recipe: Recipe, folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    if child(lambda: loop.fit(recipe, folder / "whole", quiet=True)) != 0:
        sys.exit("the undisturbed run failed")
    chance, killed, inside = random.Random(0), 0, 0
    target = folder / "killed"
    while killed < kills:
        in_save = chance.random() < 0.5
        point = chance.randrange(8) if in_save else chance.randrange(3)

        def work(in_save: bool = in_save, point: int = point) -> None:
            (die_in_save if in_save else die_at_step)(point)
            loop.fit(recipe, target, quiet=True)

        ended = child(work)
        if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL:
            killed, inside = killed + 1, inside + in_save
        elif ended != 0:
            sys.exit(f"a run that was to be killed failed with {ended}")
        else:  # it was done before its time came: begin again
            import shutil

            shutil.rmtree(target)
    for point in range(5):  # two files, each made durable itself and in its folder

        def last(point: int = point) -> None:
            die_in_last(point)
            loop.fit(recipe, target, quiet=True)

        ended = child(last)
        if not os.WIFSIGNALED(ended):
            sys.exit(f"a run that was to be killed before its end, at {point}, ended with {ended}")
    if child(lambda: loop.fit(recipe, target, quiet=True)) != 0:
        sys.exit("the last run failed")
    print(json.dumps({"killed": killed, "inside saves": inside}))


if __name__ == "__main__":
    main(parse(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2]), int(sys.argv[3]))
