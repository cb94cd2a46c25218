"""Which flags of `vnd evaluate` are for which runs."""

from __future__ import annotations

from typing import Any

from vnd.methods import Task

KINDS: dict[Task, str] = {
    "classification": "a classifier",
    "autoencoding": "an auto-encoder",
    "segmentation": "a network that segments",
}
TASKS: dict[str, tuple[Task, ...]] = {  # of flags that are not for every run
    **dict.fromkeys(("levels", "parameters", "learned", "augmented"), ("classification", "segmentation")),
    **dict.fromkeys(("samples", "inference", "repeats", "bn_images_sweep"), ("classification",)),
    **dict.fromkeys(("num_generated", "inception", "target"), ("autoencoding",)),
    "num_mask_samples": ("segmentation",),
}


def check_flags(opened: str, task: Task, given: dict[str, Any]) -> None:
    """Refuse flags that make no sense for what a run does."""
    for name, tasks in TASKS.items():
        if given.get(name) is not None and task not in tasks:
            kinds = " or ".join(KINDS[one] for one in tasks)
            raise ValueError(f"evaluate: --{name} is for {kinds}, and {opened} is {KINDS[task]}; leave it out")
