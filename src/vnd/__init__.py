"""Variational nested dropout: train once, run at every size, and know when not to trust the answer."""

from vnd import distributions, functional, nn
from vnd.distributions import BernoulliChain, Downhill, OrderedNormal
from vnd.nn import OrderingUnit

__version__ = "0.1.0"

__all__ = ["BernoulliChain", "Downhill", "OrderedNormal", "OrderingUnit", "distributions", "functional", "nn"]
