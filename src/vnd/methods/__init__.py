"""The systems of the paper, one file each: how a method builds its model, its loss, how it predicts."""

from vnd.methods.bn3 import BN3
from vnd.methods.fn3 import FN3
from vnd.methods.ibnn import IBNN
from vnd.methods.method import Batch, Method, Size, Sizes, Step, Terms
from vnd.methods.ordered_l0 import OrderedL0
from vnd.methods.plain import Plain
from vnd.methods.sn3 import SN3
from vnd.methods.svb import SVB
from vnd.methods.us_net import USNet

METHODS: dict[str, type[Method]] = {
    "bn3": BN3,
    "fn3": FN3,
    "ibnn": IBNN,
    "svb": SVB,
    "ordered_l0": OrderedL0,
    "us_net": USNet,
    "plain": Plain,
    "sn3": SN3,
}

__all__ = [
    "BN3", "FN3", "IBNN", "METHODS", "SN3", "SVB", "Batch", "Method", "OrderedL0", "Plain", "Size", "Sizes", "Step",
    "Terms", "USNet",
]  # fmt: skip
