"""BN³: a Bayesian nested neural network, whose width is chosen at test time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

import vnd.nn as nested
from vnd.functional import LogUniformForm
from vnd.methods.base import DASHED, Batch, Look, Step, Terms, Traits, register
from vnd.methods.nested import Sandwich, fixed_sizes, in_parts, measure_order, order_term
from vnd.nn.bayesian import Estimator
from vnd.nn.conversion import Coupling, Placement, Rescale
from vnd.nn.objective import KeepProb, Reduction
from vnd.nn.ordering import Gradient, Sampler


@register(
    "bn3",
    Traits(
        rank=0,
        name="BN³",
        about="Bayesian nested network: the order and the weights are learned as distributions; predictions average "
        "over draws of the weights.",
        order="learned",
        looks={
            "mc": Look("#0072b2", "o"),
            "mean": Look("#56b4e9", "v", DASHED),
            "mc_mask": Look("#1f2933", "*"),
        },
    ),
)
@dataclass(frozen=True)
class BN3(Sandwich):
    r"""Learn the order of a network's channels together with a posterior over its weights.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w, z) + \frac{κ}{N}\, \mathrm{KL}(q(w, z) \,\|\, p(w, z))$$

    with w and z drawn anew in every step. Paper: Eq. (7), (18), Alg. 1.

    Its options are those of `Grouped` and `Sandwich`, and these; in a sandwich `label_smoothing` is the full network's.

    Args:
        bayesian: A posterior over the weights, or point weights.
        coupling: One draw of the length for all layers ("quantile"), or one each ("independent", the paper).
        gradient: How the loss reaches the order; see `OrderingUnit`.
        measure_every: With `gradient` "difference", steps between two measurements of a unit, each of two passes
            without gradient; 0 for never.
        measured_share: Share of the batch that these run on, of 32 images at least.
        kl_keep_prob: With what probability a weight is charged; see `vnd.kl`.
        placement: "before_norm" masks before BatchNorm, as the authors' code does, and reads the network masked.
        sandwich: In every step the full and the smallest network as well, each on the whole batch, the narrower ones
            taught by the full one's answers.
        freeze_order_after: Share of training after which fixed budgets are cut, and the order stays as it is.
        uniform_share: Probability that a sampled network has the same share of every layer from then on, in place of a
            learned shape.
        length_kl_weight: Extra weight on the KL of the lengths; keeps the length distribution from collapsing to one
            length. With 0 and a small kl_weight, each layer settles on the one length where a group is no
            longer worth its price; see `vnd.nn.length_kl`.
        initial_logit: Where the keep logits start.
        log_alpha_init: Where log α starts.
        prior_length: Expected number of groups kept under the prior, base included; None for uniform lengths.
        weight_prior: Form of the log-uniform prior's KL, or the scale of a Gaussian prior.
        kl_constant: C of the log-uniform KL; 0 for the form as printed, None for that which makes the smallest KL 0.
        kl_reduction: Over the weights of an output channel: their "sum", or their mean, "fan_in"; see `vnd.kl`.
        estimator: How layers sample their weights.
        variance_share: With the "local" estimator, share of a batch through whose output variances gradients flow; a
            quarter makes steps faster. See `vnd.nn.BayesLayer`.
        rescale: "expected" multiplies kept units by their probability in evaluation, as the paper does.
        sampler: "released" repeats a slip of the authors' code; see `OrderingUnit`.
    """

    bayesian: bool = True
    coupling: Coupling = "quantile"
    gradient: Gradient = "difference"
    measure_every: int = 4
    measured_share: float = 0.125
    kl_keep_prob: KeepProb = "output"
    placement: Placement = "after"
    sandwich: bool = False
    freeze_order_after: float = 0.25
    uniform_share: float = 0.0
    length_kl_weight: float = 0.0
    initial_logit: float = 3.0
    log_alpha_init: float = -3.0
    prior_length: float | None = None
    weight_prior: LogUniformForm | float = "vnd"
    kl_constant: float | None = None
    kl_reduction: Reduction = "sum"
    estimator: Estimator = "local"
    variance_share: float = 1.0
    rescale: Rescale = "none"
    sampler: Sampler = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fixed_budgets and not self.sandwich:
            raise ValueError(
                f"fixed_budgets are trained in a sandwich; set sandwich, or leave out {list(self.fixed_budgets)}"
            )
        if self.prior_length is not None and not self.base < self.prior_length < self.num_groups:
            span = f"base = {self.base} and num_groups = {self.num_groups}"
            raise ValueError(f"prior_length must lie strictly between {span}; got {self.prior_length}")
        if self.kl_keep_prob == "released" and not isinstance(self.weight_prior, str):
            raise ValueError(
                f"kl_keep_prob released is of the log-uniform prior; got the Gaussian weight_prior {self.weight_prior}"
            )

    @property
    def student(self) -> str | None:
        """The method that distills it, of a Bayesian network."""
        return "sn3" if self.bayesian else None

    @property
    def prior(self) -> float | None:
        """The prior over lengths, as `to_nested` takes it."""
        return self.prior_length

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Set the temperature, and measure what one unit is worth to the loss."""
        if self.sandwich:
            self._cut(model, frozen=step.share >= self.freeze_order_after)
        frozen = bool(fixed_sizes(model).budgets)  # and there is nothing left to measure
        measure_order(self, model, step, None if frozen else batch, average)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch, and the KL."""
        if self.sandwich:
            likelihood = self._in_sandwich(model, batch, step.log_loss_temperature)
        else:
            likelihood = in_parts(batch, self.draws, partial(self._likelihood, model))
        divergence = nested.kl(model, self.kl_keep_prob, self.kl_reduction)
        total = likelihood + step.kl_weight / step.num_data * divergence + order_term(self, model)
        if self.length_kl_weight:
            total = total + self.length_kl_weight * nested.length_kl(model)
        return Terms(total, {"nll": likelihood.detach(), "kl": divergence.detach()})
