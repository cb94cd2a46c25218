"""What results and pages say of each method: its name, what it is, its traits, and how its curves look."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Look:
    """Color, marker and line of a curve, as matplotlib takes them."""

    color: str
    marker: str
    line: Any = "-"


@dataclass(frozen=True)
class Traits:
    """Of a method.

    Args:
        name: As tables and figures call it.
        about: One sentence or two.
        sizes: "many" of one training; "each" where a training has one, chosen before; "found" where training finds it.
        order: Whether the order of units is "learned", "fixed" in advance, or there is "none".
        stochastic: Whether weights or masks are drawn at prediction.
        reference: Whether other methods are held against it.
        looks: Of its curves, by way of inference.
    """

    name: str
    about: str = ""
    sizes: Literal["many", "each", "found"] = "many"
    order: Literal["learned", "fixed", "none"] = "none"
    stochastic: bool = True
    reference: bool = False
    looks: dict[str, Look] = field(default_factory=dict)


DASHED, DOTTED, DASH_DOTS = [0, [5, 1.5]], [0, [1, 1]], [0, [3, 1, 1, 1]]


def _mc(color: str, marker: str, line: Any = "-") -> dict[str, Look]:
    return {"mc": Look(color, marker, line)}


TRAITS: dict[str, Traits] = {  # in the order of legends and tables
    "bn3": Traits(
        "BN³",
        "Bayesian nested network: the order and the weights are learned as distributions; predictions average over "
        "draws of the weights.",
        order="learned",
        looks={
            "mc": Look("#0072b2", "o"),
            "mean": Look("#56b4e9", "v", DASHED),
            "mc_mask": Look("#1f2933", "*"),
        },
    ),
    "fn3": Traits(
        "FN³",
        "Nested network with plain weights; in training the width is drawn at random, with equal probability.",
        order="fixed",
        stochastic=False,
        looks={"mc": Look("#d55e00", "s"), "temperature_scaled": Look("#e69f00", "D", DASHED)},
    ),
    "ibnn": Traits(
        "IBNN",
        "An independent Bayesian network for each width: one training a width, the mark to aim for.",
        sizes="each",
        looks=_mc("#009e73", "^", "-."),
    ),
    "svb": Traits(
        "SVB",
        "Sparse variational dropout: single weights are removed; one training gives one size.",
        sizes="found",
        looks=_mc("#cc79a7", "X"),
    ),
    "ordered_l0": Traits(
        "ordered ℓ0",
        "Nested network with plain weights that learns the order, and pays for every unit that it keeps.",
        order="learned",
        stochastic=False,
        looks=_mc("#7a4b9a", "P", DASH_DOTS),
    ),
    "us_net": Traits(
        "US-Net",
        "Slimmable network: every step trains the full, the smallest and random widths together.",
        order="fixed",
        stochastic=False,
        looks=_mc("#8a6d00", "<", ":"),
    ),
    "plain": Traits(
        "plain",
        "An ordinary network for each width: one training a width.",
        sizes="each",
        stochastic=False,
        reference=True,
        looks=_mc("#5f6b76", "h", DOTTED),
    ),
    "sn3": Traits(
        "SN³",
        "A student of a Bayesian nested network: its leading channels, deterministic but for the last layer, taught "
        "the spread of its answers as a Dirichlet.",
        order="learned",
    ),
    "vnd_ae": Traits("VND-AE", order="learned", looks=_mc("#0072b2", "o")),
    "vae": Traits("VAE", sizes="each", looks=_mc("#d55e00", "s", DASHED)),
    "beta_vae": Traits("BetaVAE", sizes="each", looks=_mc("#009e73", "^", "-.")),
    "joint_vae": Traits("JointVAE", sizes="each", looks=_mc("#cc79a7", "X", ":")),
    "swae": Traits("SWAE", sizes="each", looks=_mc("#8a6d00", "v", DASH_DOTS)),
    "nested_ae": Traits("nested AE", order="fixed", looks=_mc("#7a4b9a", "P", DOTTED)),
    "vnd_punet": Traits("VND-PUNet", order="learned", looks=_mc("#0072b2", "o")),
    "bn3_unet": Traits("BN³-UNet", order="learned", looks=_mc("#009e73", "^", "-.")),
    "punet": Traits("P-UNet", reference=True, looks=_mc("#d55e00", "s", DASHED)),
    "unet_ensemble": Traits("UNet ensemble", looks=_mc("#8a6d00", "v", DASH_DOTS)),
    "dropout_unet": Traits("dropout UNet", looks=_mc("#cc79a7", "X", DOTTED)),
}


def describe(key: str) -> dict[str, Any]:
    """What a result file says of a method under "method"; of one that declares nothing, its key."""
    found: dict[str, Any] = {"key": key, "name": key}
    if key in TRAITS:
        found |= {"rank": list(TRAITS).index(key)} | asdict(TRAITS[key])
    return found
