"""The classifiers that BN³ is held against: FN³, US-Net, ordered ℓ0, IBNN, SVB, plain networks, temperature scaling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

import vnd.nn as nested
from vnd.distributions import BernoulliChain
from vnd.functional import LogUniformForm
from vnd.methods.base import (
    DASH_DOTS,
    DASHED,
    DOTTED,
    Batch,
    Converted,
    Grouped,
    Look,
    Single,
    Step,
    Terms,
    Traits,
    converted,
    copied,
    cross_entropy,
    mc,
    register,
    with_means,
)
from vnd.methods.nested import FixedOrder, Nested, Sandwich, in_parts, measure_order, order_term
from vnd.models.initialise import initialise
from vnd.nn import BayesLayer
from vnd.nn.bayesian import Estimator
from vnd.nn.conversion import Coupling, Placement, Rescale
from vnd.nn.extract import CONVOLUTIONS, Keep
from vnd.nn.objective import Reduction
from vnd.nn.ordering import Gradient
from vnd.nn.state import Shape, state_of, unwrap
from vnd.nn.width import Width


@register(
    "fn3",
    Traits(
        rank=1,
        name="FN³",
        about="Nested network with plain weights; in training the width is drawn at random, with equal probability.",
        order="fixed",
        stochastic=False,
        looks={"mc": Look("#d55e00", "s"), "temperature_scaled": Look("#e69f00", "D", DASHED)},
    ),
)
@dataclass(frozen=True)
class FN3(Grouped, FixedOrder):
    r"""Train all widths of a network at once, every length as likely as another unless `keep_prob` says otherwise.

    $$\mathcal L = \mathbb E_{z \sim \text{uniform or geometric lengths}} \frac1B \sum_b -\log p(y_b \mid x_b, θ, z)$$

    Paper: Sec. 6.1; Cui et al. (2020), an extension of slimmable networks to fine-grained widths.

    Args:
        coupling: One width for all layers ("quantile"), or a length drawn for each ("independent").
        draws: Draws of the masks in a step, each on its part of the batch.
        keep_prob: None for uniform lengths. Else they are geometric, as in nested dropout (Rippel et al., 2014): with
            this probability, 1 − π, a group is kept where the one before it is.
        rescale: "expected" multiplies kept groups by their probability of being kept in evaluation, as the paper does.
        placement: "before_norm" masks before BatchNorm, as the authors' code does, and reads the network masked.
    """

    coupling: Coupling = "quantile"
    draws: int = 1
    keep_prob: float | None = None
    rescale: Rescale = "none"
    placement: Placement = "after"

    def lengths(self, groups: int) -> BernoulliChain:
        """The law of the lengths of so many groups, those that are always kept left out."""
        return super().lengths(groups) if self.keep_prob is None else BernoulliChain.geometric(groups, self.keep_prob)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch."""
        likelihood = in_parts(batch, self.draws, partial(self._likelihood, model))
        return Terms(likelihood, {"nll": likelihood.detach()})


@register(
    "us_net",
    Traits(
        rank=5,
        name="US-Net",
        about="Slimmable network: every step trains the full, the smallest and random widths together.",
        order="fixed",
        stochastic=False,
        looks=mc("#8a6d00", "<", ":"),
    ),
)
@dataclass(frozen=True)
class USNet(Sandwich, FixedOrder):
    r"""Train the full, the smallest and randomly sampled widths in every step, the narrower taught by the full one.

    The loss is that of `Sandwich`, with point weights and one width for all layers. Yu and Huang, *Universally
    slimmable networks and improved training techniques* (2019): an anchor from outside the paper.

    Note: The mean of the three losses, where theirs is the sum: the learning rate means the same as in other methods.

    Args:
        draws: Sampled widths in a step, each on its part of the batch.
    """

    draws: int = 2

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean loss of the three kinds of width."""
        likelihood = self._in_sandwich(model, batch, step.log_loss_temperature)
        return Terms(likelihood, {"nll": likelihood.detach()})


@register(
    "ordered_l0",
    Traits(
        rank=4,
        name="ordered ℓ0",
        about="Nested network with plain weights that learns the order, and pays for every unit that it keeps.",
        order="learned",
        stochastic=False,
        looks=mc("#7a4b9a", "P", DASH_DOTS),
    ),
)
@dataclass(frozen=True)
class OrderedL0(Grouped, Nested):
    r"""Learn the order of a network's channels at a price for each that is expected to be kept.

    $$\mathcal L = \mathbb E_{z \sim β} \frac1B \sum_b -\log p(y_b \mid x_b, θ, z) + λ \sum_l d_l \sum_j j β_{lj}$$

    with $λ = κ / N$, κ the `kl_weight` of the step. Paper: Eq. (13), (A16), (A17), where $λ = χ d$: the KL of BN³ with
    χ nats a weight and without the KL of the lengths.

    Note: The paper drops a term of the evidence bound that is never negative, so this maximises an upper bound of it,
        not the bound itself (docs/errata.md).

    Args:
        coupling: One draw of the length for all layers ("quantile"), or one each ("independent").
        gradient: How the loss reaches the order; see `OrderingUnit`.
        measure_every: With `gradient` "difference", steps between two measurements of a unit.
        measured_share: Share of the batch that a measurement runs on, of 32 images at least.
        draws: Draws of the masks in a step, each on its part of the batch.
        initial_logit: Where the keep logits start.
        charge: What is counted: "weights", d the weights of a channel, or "units", d = 1 and j in groups.
    """

    bayesian = False
    coupling: Coupling = "quantile"
    gradient: Gradient = "difference"
    measure_every: int = 4
    measured_share: float = 0.125
    draws: int = 1
    initial_logit: float = 3.0
    charge: Literal["weights", "units"] = "weights"

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Set the temperature, and measure what one unit is worth to the loss."""
        measure_order(self, model, step, batch, average)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch, and the price of the expected width."""
        likelihood = in_parts(batch, self.draws, partial(self._likelihood, model))
        size = expected_size(model, self.charge)
        total = likelihood + step.kl_weight / step.num_data * size + order_term(self, model)
        return Terms(total, {"nll": likelihood.detach(), "size": size.detach()})


def expected_size(model: nn.Module, charge: Literal["weights", "units"]) -> Tensor:
    r"""Expected number of weights of the nested channels, or of groups, that are kept: $\sum_l d_l \sum_j j β_{lj}$.

    Summed by tails, $\sum_j j β_j = \sum_i P(z_i = 1)$; a weight counts with its output channel.
    """
    state, root = state_of(model), unwrap(model)
    sizes = [torch.zeros((), device=next(root.parameters()).device)]
    if charge == "units":
        return torch.stack([*sizes, *(unit.survival().sum() for unit in state.units.values())]).sum()
    for name, layout in state.outputs.items():
        layer: Any = root.get_submodule(name)
        if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
            kept = state.survival(layout, layer.weight)
            assert kept is not None
            sizes.append(layer.weight.numel() / len(kept) * kept.sum())
    return torch.stack(sizes).sum()


@dataclass(frozen=True)
class Variational(Converted, Single):
    """A network of one size with a posterior over its weights.

    Args:
        kl_reduction: Over the weights of an output channel: their "sum", or their mean, "fan_in"; see `vnd.kl`.
    """

    kl_reduction: Reduction = "sum"

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch, and the KL."""
        likelihood = self._likelihood(model, *batch)
        divergence = nested.kl(model, reduction=self.kl_reduction)
        total = likelihood + step.kl_weight / step.num_data * divergence
        return Terms(total, {"nll": likelihood.detach(), "kl": divergence.detach()})


@register(
    "ibnn",
    Traits(
        rank=2,
        name="IBNN",
        about="An independent Bayesian network for each width: one training a width, the mark to aim for.",
        sizes="each",
        looks=mc("#009e73", "^", "-."),
    ),
)
@dataclass(frozen=True)
class IBNN(Variational, Grouped):
    r"""Train one width by itself, with a posterior over its weights and no masks.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w) + \frac{κ}{N}\, \mathrm{KL}(q(w) \,\|\, p(w))$$

    Paper: Sec. 6.1, variational Gaussian dropout (Kingma et al., 2015), one network for every width: so many runs.

    Note: BatchNorm's statistics are those of training, of sampled weights; the inference "mean" uses them as well.

    Args:
        fraction: Share of every layer's groups that the network has, in (0, 1].
        log_alpha_init: Where log α starts.
        weight_prior: Form of the log-uniform prior's KL, or the scale of a Gaussian prior.
        kl_constant: C of the log-uniform KL; 0 for the form as printed, None for that which makes the smallest KL 0.
        estimator: How layers sample their weights.
    """

    fraction: float = 1.0
    log_alpha_init: float = -3.0
    weight_prior: LogUniformForm | float = "vnd"
    kl_constant: float | None = None
    estimator: Estimator = "local"

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """A narrower network, with a posterior over its weights."""
        return narrowed(network, example, self)


def narrowed(network: nn.Module, example: Tensor, method: Any, **options: Any) -> nn.Module:
    """A network of a method's `fraction` of the width, or of a shape, with a random start of its own.

    It is cut out of the nested form of the wide one, so that its layers are as wide as those that a nested method is
    tested at; `bayesian=True` among the options gives it a posterior over its weights.
    """
    wide = converted(network, example, method, **options)
    shape = getattr(method, "shape", None)
    width = Shape(shape) if shape else nested.shape(wide, fraction=getattr(method, "fraction", 1.0))
    small = nested.extract(wide, width, "posterior" if options.get("bayesian", True) else "mean", warn=False)
    initialise(small)
    for module in small.modules():
        if isinstance(module, BayesLayer):
            module.reset_noise()
    return small


WORD = 4  # bytes of a float32


@register(
    "svb",
    Traits(
        rank=3,
        name="SVB",
        about="Sparse variational dropout: single weights are removed; one training gives one size.",
        sizes="found",
        looks=mc("#cc79a7", "X"),
    ),
)
@dataclass(frozen=True)
class SVB(Variational):
    r"""Train one network with a posterior over its weights, and set those to zero that are noise.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w) + \frac{κ}{N}\, \mathrm{KL}(q(w) \,\|\, p(w)), \qquad
      w_i := 0 \text{ where } \log α_i > t$$

    with a free variance for each weight and Molchanov's form of the KL. Molchanov et al. (2017); paper: Sec. 6.1,
    Table 1.

    Args:
        threshold: t; 3 is a noise of 95 % of the weight's power.
        log_alpha_init: Where log α starts.
        estimator: How layers sample their weights.
    """

    threshold: float = 3.0
    log_alpha_init: float = -8.0
    estimator: Estimator = "local"

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network, with a posterior over its weights."""
        return narrowed(network, example, self, weight_prior="molchanov", free_variance=True)

    @torch.no_grad()
    def extract(self, model: nn.Module, width: Width, keep: Keep = "mean") -> nn.Module:
        """A copy of the network without the weights that are noise."""
        pruned = copied(model)
        for layer in pruned.modules():
            if isinstance(layer, BayesLayer) and layer.bayesian and layer.log_variance is not None:
                noise = layer.posterior().log_alpha > self.threshold
                layer.weight[noise] = 0.0
                layer.log_variance[noise] = -torch.inf
        return with_means(pruned) if keep == "mean" else pruned

    def cost(self, network: nn.Module, example: Tensor) -> dict[str, int]:
        """Weights that are not zero, and their bytes beside one bit for each that may be.

        Multiply-accumulates are those of the dense network, and so is its latency: torch skips no zeros.
        """
        dense = super().cost(network, example)
        weights = sum(p.numel() for p in network.parameters() if p.dim() > 1)
        zeros = sum(int((p == 0).sum()) for p in network.parameters() if p.dim() > 1)
        stored = dense["bytes"] - WORD * zeros + (weights + 7) // 8
        parameters = {"parameters": dense["parameters"] - zeros, "dense_parameters": dense["parameters"]}
        return {**parameters, "macs": dense["macs"], "bytes": min(dense["bytes"], stored)}


@register(
    "plain",
    Traits(
        rank=6,
        name="plain",
        about="An ordinary network for each width: one training a width.",
        sizes="each",
        stochastic=False,
        reference=True,
        looks=mc("#5f6b76", "h", DOTTED),
    ),
)
@dataclass(frozen=True)
class Plain(Grouped, Single):
    """Train a network by cross-entropy, as it is or as narrow as a nested one is tested at.

    Args:
        fraction: Share of every layer's groups that the network has, in (0, 1]: one run each makes a curve.
        shape: Groups that each unit has, as a result's rows give them, in the place of a fraction.
    """

    fraction: float = 1.0
    shape: dict[str, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape is not None and self.fraction != 1.0:
            raise ValueError(f"shape and fraction cannot both be given; got the fraction {self.fraction:g}")

    @property
    def num_loss_temperatures(self) -> int:
        """The one that there is."""
        return 1

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """Its logits, as in a test: its statistics are those of training, and stay so."""
        model.eval()
        try:
            return [model(images)]
        finally:
            model.train()

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network itself, or a narrower one."""
        whole = self.fraction == 1.0 and self.shape is None
        return network if whole else narrowed(network, example, self, bayesian=False)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch."""
        logits = model(batch[0])
        if step.log_loss_temperature is not None:
            logits = step.log_loss_temperature.exp() * logits.float()
        likelihood = cross_entropy(logits, batch[1], self.label_smoothing)
        return Terms(likelihood, {"nll": likelihood.detach()})


BOUNDS = (-5.0, 5.0)  # of log T: at 0.007 every answer is sure, at 148 none
STEPS = 60


def scaled(probs: Tensor, temperature: float) -> Tensor:
    r"""Probabilities whose logits were divided by a temperature, (N, C): $\mathrm{softmax}(\log p / T)$.

    Those of a softmax are its logits up to a constant, so nothing but the probabilities is needed; for an average over
    draws this scales the average.

    >>> scaled(torch.tensor([[0.9, 0.1]]), 2.0)
    tensor([[0.7500, 0.2500]])
    """
    tiny = torch.finfo(probs.dtype).tiny
    return (probs.clamp_min(tiny).log() / temperature).softmax(1)


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    r"""The temperature that makes labels most likely: FN³-TS (paper, Sec. 6.1; Guo et al., 2017).

    $$T = \arg\min_T \sum_n -\log \mathrm{softmax}(\log p_n / T)_{y_n}$$

    The sum is convex in 1/T, so its derivative changes sign once: found by halving, in float64, to 1e-15 of log T.
    Where every answer is right the likelihood has no maximum, and nothing can be learned of how sure to be: T = 1.

    Args:
        probs: Class probabilities (N, C) of validation images.
        labels: Their classes (N,).
    """
    logits = probs.detach().cpu().clamp_min(torch.finfo(probs.dtype).tiny).double().log()  # as `scaled` has them
    own = logits.gather(1, labels.detach().cpu().long()[:, None])

    def slope(log_temperature: float) -> float:
        """Of the mean negative log-likelihood along 1/T: positive where T is too small."""
        weights = (logits / math.exp(log_temperature)).softmax(1)
        return float(((weights * logits).sum(1, keepdim=True) - own).mean())

    low, high = BOUNDS
    if slope(low) <= 0:
        return 1.0
    if slope(high) >= 0:
        return math.exp(high)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return math.exp((low + high) / 2)
