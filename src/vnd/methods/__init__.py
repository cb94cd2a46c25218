"""The systems of the paper and those they are held against: how each builds its model, its loss, how it predicts."""

from importlib import import_module
from pkgutil import iter_modules

from vnd.methods.autoencoding_baselines import SWAE, VAE, BetaVAE, JointVAE, NestedAE
from vnd.methods.base import METHODS, TRAITS, Batch, Distills, Method, Size, Sizes, Step, Terms, register
from vnd.methods.bn3 import BN3
from vnd.methods.classification_baselines import FN3, IBNN, SVB, OrderedL0, Plain, USNet
from vnd.methods.codes import AutoencoderMethod
from vnd.methods.ordered_code import OrderedCode
from vnd.methods.segmenter import MaskPrediction, Segmenter, predict_masks
from vnd.methods.sn3 import SN3
from vnd.methods.vnd_ae import VNDAE
from vnd.methods.vnd_punet import BN3UNet, DropoutUNet, OrderedSegmenter, PUNet, UNetEnsemble, VNDPUNet

for _file in iter_modules(__path__):  # each registers the methods that it holds
    import_module(f"{__name__}.{_file.name}")
for _name in sorted(METHODS, key=lambda name: TRAITS[name].rank):
    METHODS[_name] = METHODS.pop(_name)

__all__ = [
    "BN3", "FN3", "IBNN", "METHODS", "SN3", "SVB", "SWAE", "VAE", "VNDAE", "AutoencoderMethod", "BN3UNet", "Batch",
    "BetaVAE", "Distills", "DropoutUNet", "JointVAE", "MaskPrediction", "Method", "NestedAE", "OrderedCode",
    "OrderedL0", "OrderedSegmenter", "PUNet", "Plain", "Segmenter", "Size", "Sizes", "Step", "Terms",
    "UNetEnsemble", "USNet", "VNDPUNet", "predict_masks", "register",
]  # fmt: skip
