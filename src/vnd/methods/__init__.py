"""The systems of the paper, one file each: how a method builds its model, its loss, how it predicts."""

from vnd.methods.bn3 import BN3
from vnd.methods.method import Batch, Method, Size, Sizes, Step, Terms
from vnd.methods.plain import Plain

METHODS: dict[str, type[Method]] = {"bn3": BN3, "plain": Plain}

__all__ = ["BN3", "METHODS", "Batch", "Method", "Plain", "Size", "Sizes", "Step", "Terms"]
