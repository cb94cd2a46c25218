"""Optimizers and schedules: NGD (Povey's online natural gradient), and what a recipe can name."""

from vnd.optim.ngd import NGD
from vnd.optim.optimizer import Optimizer, set_rates
from vnd.optim.schedule import Schedule, value

__all__ = ["NGD", "Optimizer", "Schedule", "set_rates", "value"]
