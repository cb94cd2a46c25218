"""Data sets: readers of the official formats, to uint8 arrays; nothing is unpickled."""

from vnd.data.images import Images, fit_to, hold_out, stack_masks
from vnd.data.registry import DATASETS, load

__all__ = ["DATASETS", "Images", "fit_to", "hold_out", "load", "stack_masks"]
