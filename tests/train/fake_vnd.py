"""A stand-in for `vnd train` and `vnd evaluate`: in milliseconds it does to a run's folder what a test wants.

$FAKE_VND is a JSON file: for each run, by its folder's name, the text of its recipe and what happens to it.
"""

import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def install(path: Path, runs: Any, does: dict[str, str], monkeypatch: Any) -> None:
    """Put this program in the place of vnd; `does` says by the beginnings of names what happens, else all goes well."""
    from vnd.train import sweep

    plan = {
        run.name: {
            "recipe": run.recipe.to_yaml(),
            "does": next((what for name, what in does.items() if run.name.startswith(name)), "well"),
        }
        for run in runs
    }
    path.write_text(json.dumps(plan))
    monkeypatch.setenv("FAKE_VND", str(path))
    monkeypatch.setattr(sweep, "VND", (sys.executable, "-S", __file__))


def main(words: list[str]) -> None:
    again = "--resume" in words
    folder = Path(words[1] if words[0] == "evaluate" else words[words.index("--resume" if again else "--out") + 1])
    plan = json.loads(Path(os.environ["FAKE_VND"]).read_text())[folder.name]
    does = plan["does"]
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps({"words": words, "threads": os.environ.get("OMP_NUM_THREADS")}) + "\n")
    print("something that worked")
    if words[0] == "evaluate":
        if does == "fails in evaluation":
            sys.exit("vnd: no digits here")
        (folder / "results.json").write_text("{}")
        return
    if does == "crashes":
        raise RuntimeError("no room\nCUDA out of memory")
    if does == "is refused":
        sys.exit("vnd: train.epochs must be at least 1; got 0")
    if does == "ends in silence":
        os._exit(0)
    (folder / "recipe.yaml").write_text(plan["recipe"])
    if does == "is another":
        (folder / "recipe.yaml").write_text(plan["recipe"].replace("epochs: 1", "epochs: 2"))
    if does == "is killed" or (does == "is killed once" and not again):
        os.kill(os.getpid(), signal.SIGKILL)
    if does.startswith("interrupts") and not again:
        interrupt(folder, int(does.split()[1]))
    if does.startswith("meets"):
        meet(folder.parent / does.split()[1])
    (folder / "last").mkdir()
    (folder / "last" / "network.json").write_text("{}")


def interrupt(folder: Path, times: int) -> None:
    """Press Ctrl-C, and save when told to stop; of more than two times, the last is not heard."""
    assert os.getpgrp() == os.getpid(), "a terminal's Ctrl-C would reach this process too"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for time in range(times):
        os.kill(os.getppid(), signal.SIGINT)
        while time == 2:
            signal.pause()
        signal.sigwait({signal.SIGTERM})
        (folder / "told").write_text(str(time + 1))
    sys.exit("vnd: stopped: saved")


def meet(folder: Path) -> None:
    """Go on only when another process is here at the same time."""
    ends = []
    for name in ("one", "two"):
        with suppress(FileExistsError):
            os.mkfifo(folder.with_name(f"{folder.name}-{name}"))
        ends.append(os.open(folder.with_name(f"{folder.name}-{name}"), os.O_RDWR))
    try:
        folder.mkdir()
        own, other = ends
    except FileExistsError:
        other, own = ends
    os.write(other, b"!")
    if not select.select([own], [], [], 20)[0]:
        sys.exit("vnd: nobody came")


if __name__ == "__main__":
    main(sys.argv[1:])
