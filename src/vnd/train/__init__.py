"""Training: the loop, recipes, checkpoints, sweeps, and the folder of a run."""

from functools import partial

from vnd import _submodule

__getattr__ = partial(_submodule, __name__)
