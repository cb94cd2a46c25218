"""Tasks of networks, one file each: a task registers itself, and no other package knows it by name."""

from vnd.tasks import autoencoding, classification, regression, segmentation
from vnd.tasks.base import TASKS, Evaluation, Task, register, task_of
from vnd.tasks.trained import TrainedRun

__all__ = [
    "TASKS", "Evaluation", "Task", "TrainedRun", "autoencoding", "classification", "register", "regression",
    "segmentation", "task_of",
]  # fmt: skip
