"""The systems of the paper, one file each: how a method builds its model, its loss, how it predicts."""

from importlib import import_module
from pkgutil import iter_modules

from vnd.methods.beta_vae import BetaVAE
from vnd.methods.bn3 import BN3
from vnd.methods.bn3_unet import BN3UNet
from vnd.methods.coding import AutoencoderMethod
from vnd.methods.dropout_unet import DropoutUNet
from vnd.methods.fn3 import FN3
from vnd.methods.ibnn import IBNN
from vnd.methods.joint_vae import JointVAE
from vnd.methods.method import METHODS, Batch, Distills, Method, Size, Sizes, Step, Terms, register
from vnd.methods.nested_ae import NestedAE
from vnd.methods.ordered_l0 import OrderedL0
from vnd.methods.plain import Plain
from vnd.methods.punet import PUNet
from vnd.methods.segmenting import Segmenter
from vnd.methods.sn3 import SN3
from vnd.methods.svb import SVB
from vnd.methods.swae import SWAE
from vnd.methods.traits import TRAITS
from vnd.methods.unet_ensemble import UNetEnsemble
from vnd.methods.us_net import USNet
from vnd.methods.vae import VAE
from vnd.methods.vnd_ae import VNDAE
from vnd.methods.vnd_punet import VNDPUNet

for _file in iter_modules(__path__):  # each registers the methods that it holds
    import_module(f"{__name__}.{_file.name}")
for _name in sorted(METHODS, key=lambda name: TRAITS[name].rank):
    METHODS[_name] = METHODS.pop(_name)

__all__ = [
    "BN3",
    "FN3",
    "IBNN",
    "METHODS",
    "SN3",
    "SVB",
    "SWAE",
    "VAE",
    "VNDAE",
    "AutoencoderMethod",
    "BN3UNet",
    "Batch",
    "BetaVAE",
    "Distills",
    "DropoutUNet",
    "JointVAE",
    "Method",
    "NestedAE",
    "OrderedL0",
    "PUNet",
    "Plain",
    "Segmenter",
    "Size",
    "Sizes",
    "Step",
    "Terms",
    "UNetEnsemble",
    "USNet",
    "VNDPUNet",
    "register",
]  # fmt: skip
