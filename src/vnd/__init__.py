"""Variational nested dropout: train once, run at every size, and know when not to trust the answer."""

from vnd import data, distributions, functional, metrics, models, nn
from vnd.distributions import BernoulliChain, Downhill, OrderedNormal
from vnd.nn import (
    BayesConv1d,
    BayesConv2d,
    BayesConv3d,
    BayesConvTranspose2d,
    BayesLinear,
    OrderingUnit,
    Rule,
    Shape,
    cascade,
    describe,
    extract,
    kl,
    parameter_groups,
    predict,
    profile,
    recalibrate,
    selective,
    set_temperature,
    set_width,
    shape,
    to_nested,
    width,
)
from vnd.pretrained import load_pretrained
from vnd.store import load, save

__version__ = "0.1.0"

__all__ = [
    "BayesConv1d",
    "BayesConv2d",
    "BayesConv3d",
    "BayesConvTranspose2d",
    "BayesLinear",
    "BernoulliChain",
    "Downhill",
    "OrderedNormal",
    "OrderingUnit",
    "Rule",
    "Shape",
    "cascade",
    "data",
    "describe",
    "distributions",
    "extract",
    "functional",
    "kl",
    "load",
    "load_pretrained",
    "metrics",
    "models",
    "nn",
    "parameter_groups",
    "predict",
    "profile",
    "recalibrate",
    "save",
    "selective",
    "set_temperature",
    "set_width",
    "shape",
    "to_nested",
    "width",
]
