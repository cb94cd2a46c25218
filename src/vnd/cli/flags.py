"""Which flags of `vnd evaluate` are for which runs."""

from __future__ import annotations

from typing import Any

from vnd.methods import Task

KINDS: dict[Task, str] = {
    "classify": "a classifier",
    "encode": "an auto-encoder",
    "segment": "a network that segments",
}
TASKS: dict[str, tuple[Task, ...]] = {  # of flags that are not for every run
    **dict.fromkeys(("levels", "parameters", "learned", "augmented"), ("classify", "segment")),
    **dict.fromkeys(("samples", "readings", "repeats", "statistics"), ("classify",)),
    **dict.fromkeys(("drawn", "inception", "target"), ("encode",)),
    "counts": ("segment",),
}


def check_flags(opened: str, task: Task, given: dict[str, Any]) -> None:
    """Refuse flags that make no sense for what a run does."""
    for name, tasks in TASKS.items():
        if given.get(name) is not None and task not in tasks:
            kinds = " or ".join(KINDS[one] for one in tasks)
            raise ValueError(f"evaluate: --{name} is for {kinds}, and {opened} is {KINDS[task]}; leave it out")
