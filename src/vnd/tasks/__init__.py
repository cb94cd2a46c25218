"""What networks are for, one file each: a task registers itself, and no other package knows it by name."""

from vnd.tasks import autoencoding, classification, segmentation
from vnd.tasks.base import TASKS, Subject, Sweep, Task, register, task_of

__all__ = ["TASKS", "Subject", "Sweep", "Task", "autoencoding", "classification", "register", "segmentation", "task_of"]
