"""The public names and their homes: `__init__.py` loads each from here on first use, type checkers read it as it is."""

from vnd import data as data
from vnd import distributions as distributions
from vnd import functional as functional
from vnd import methods as methods
from vnd import metrics as metrics
from vnd import models as models
from vnd import nn as nn
from vnd import report as report
from vnd import runtime as runtime
from vnd import train as train
from vnd._export import export as export
from vnd._page import page as page
from vnd.distributions import BernoulliChain as BernoulliChain
from vnd.distributions import Downhill as Downhill
from vnd.distributions import OrderedNormal as OrderedNormal
from vnd.evaluation import evaluate as evaluate
from vnd.evaluation import report_page as report_page
from vnd.hub import push as push
from vnd.methods import MaskPrediction as MaskPrediction
from vnd.methods import OrderedSegmenter as OrderedSegmenter
from vnd.methods import predict_masks as predict_masks
from vnd.methods.distill import distill as distill
from vnd.methods.ordered_code import OrderedCode as OrderedCode
from vnd.nn import BayesConv1d as BayesConv1d
from vnd.nn import BayesConv2d as BayesConv2d
from vnd.nn import BayesConv3d as BayesConv3d
from vnd.nn import BayesConvTranspose2d as BayesConvTranspose2d
from vnd.nn import BayesLinear as BayesLinear
from vnd.nn import Cascade as Cascade
from vnd.nn import Description as Description
from vnd.nn import OrderingUnit as OrderingUnit
from vnd.nn import Prediction as Prediction
from vnd.nn import Profile as Profile
from vnd.nn import Rule as Rule
from vnd.nn import Selective as Selective
from vnd.nn import Shape as Shape
from vnd.nn import TaylorOrder as TaylorOrder
from vnd.nn import UncertaintyCorrelation as UncertaintyCorrelation
from vnd.nn import cascade as cascade
from vnd.nn import cascade_thresholds as cascade_thresholds
from vnd.nn import describe as describe
from vnd.nn import extract as extract
from vnd.nn import kl as kl
from vnd.nn import parameter_groups as parameter_groups
from vnd.nn import predict as predict
from vnd.nn import profile as profile
from vnd.nn import recalibrate as recalibrate
from vnd.nn import selective as selective
from vnd.nn import set_temperature as set_temperature
from vnd.nn import set_width as set_width
from vnd.nn import shape as shape
from vnd.nn import step_order as step_order
from vnd.nn import taylor_order as taylor_order
from vnd.nn import to_nested as to_nested
from vnd.nn import uncertainty_correlation as uncertainty_correlation
from vnd.nn import width as width
from vnd.pretrained import FromPixels as FromPixels
from vnd.pretrained import load_pretrained as load_pretrained
from vnd.serialization import load as load
from vnd.serialization import save as save

__version__: str

def _submodule(package: str, name: str) -> object: ...
