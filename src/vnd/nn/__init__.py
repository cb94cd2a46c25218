"""Layers and networks that learn the order of their units."""

from vnd.nn.bayesian import BayesConv1d, BayesConv2d, BayesConv3d, BayesConvTranspose2d, BayesLayer, BayesLinear
from vnd.nn.conversion import Rule, to_nested
from vnd.nn.correlation import UncertaintyCorrelation, uncertainty_correlation
from vnd.nn.describe import Description, describe
from vnd.nn.extract import extract
from vnd.nn.importance import TaylorOrder, taylor_order
from vnd.nn.objective import (
    difference_term,
    kl,
    length_kl,
    parameter_groups,
    set_temperature,
    step_order,
    update_differences,
)
from vnd.nn.ordering import OrderingUnit, OrderReport, Quantile, couple
from vnd.nn.predict import Prediction, predict
from vnd.nn.profile import Profile, profile
from vnd.nn.recalibrate import recalibrate
from vnd.nn.selective import Cascade, Selective, cascade, cascade_thresholds, selective
from vnd.nn.state import Shape
from vnd.nn.width import set_width, shape, width

__all__ = [
    "BayesConv1d",
    "BayesConv2d",
    "BayesConv3d",
    "BayesConvTranspose2d",
    "BayesLayer",
    "BayesLinear",
    "Cascade",
    "Description",
    "OrderReport",
    "OrderingUnit",
    "Prediction",
    "Profile",
    "Quantile",
    "Rule",
    "Selective",
    "Shape",
    "TaylorOrder",
    "UncertaintyCorrelation",
    "cascade",
    "cascade_thresholds",
    "couple",
    "describe",
    "difference_term",
    "extract",
    "kl",
    "length_kl",
    "parameter_groups",
    "predict",
    "profile",
    "recalibrate",
    "selective",
    "set_temperature",
    "set_width",
    "shape",
    "step_order",
    "taylor_order",
    "to_nested",
    "uncertainty_correlation",
    "update_differences",
    "width",
]
