"""The systems of the paper, one file each: how a method builds its model, its loss, how it predicts."""

from vnd.methods.beta_vae import BetaVAE
from vnd.methods.bn3 import BN3
from vnd.methods.bn3_unet import BN3UNet
from vnd.methods.coding import AutoencoderMethod
from vnd.methods.dropout_unet import DropoutUNet
from vnd.methods.fn3 import FN3
from vnd.methods.ibnn import IBNN
from vnd.methods.joint_vae import JointVAE
from vnd.methods.method import Batch, Method, Size, Sizes, Step, Task, Terms
from vnd.methods.nested_ae import NestedAE
from vnd.methods.ordered_l0 import OrderedL0
from vnd.methods.plain import Plain
from vnd.methods.punet import PUNet
from vnd.methods.segmenting import Segmenter
from vnd.methods.sn3 import SN3
from vnd.methods.svb import SVB
from vnd.methods.swae import SWAE
from vnd.methods.unet_ensemble import UNetEnsemble
from vnd.methods.us_net import USNet
from vnd.methods.vae import VAE
from vnd.methods.vnd_ae import VNDAE
from vnd.methods.vnd_punet import VNDPUNet

METHODS: dict[str, type[Method]] = {
    "bn3": BN3,
    "fn3": FN3,
    "ibnn": IBNN,
    "svb": SVB,
    "ordered_l0": OrderedL0,
    "us_net": USNet,
    "plain": Plain,
    "sn3": SN3,
    "vnd_ae": VNDAE,
    "vae": VAE,
    "beta_vae": BetaVAE,
    "joint_vae": JointVAE,
    "swae": SWAE,
    "nested_ae": NestedAE,
    "vnd_punet": VNDPUNet,
    "punet": PUNet,
    "bn3_unet": BN3UNet,
    "unet_ensemble": UNetEnsemble,
    "dropout_unet": DropoutUNet,
}

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
    "Task",
    "Terms",
    "UNetEnsemble",
    "USNet",
    "VNDPUNet",
]  # fmt: skip
