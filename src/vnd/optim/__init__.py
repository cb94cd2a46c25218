"""Optimizers and schedules: NGD (Povey's online natural gradient), and what a recipe can name."""

from vnd.optim.ngd import NGD
from vnd.optim.optimizer import Optimizer, Schedule, set_rates, value

__all__ = ["NGD", "Optimizer", "Schedule", "set_rates", "value"]
