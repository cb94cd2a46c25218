"""IBNN: an individual Bayesian network of one width, the target that nested ones are measured by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vnd.functional import LogUniformForm
from vnd.methods.method import Batch, Step, Terms, check, register
from vnd.methods.single import Single, narrowed, variational_loss
from vnd.methods.traits import Traits, mc
from vnd.nn.bayesian import Estimator


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
class IBNN(Single):
    r"""Train one width by itself, with a posterior over its weights and no masks.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w) + \frac{κ}{N}\, \mathrm{KL}(q(w) \,\|\, p(w))$$

    Paper: Sec. 6.1, variational Gaussian dropout (Kingma et al., 2015), one network for every width: so many runs.

    Note: BatchNorm's statistics are those of training, of sampled weights; the reading "means" uses them as well.

    Args:
        fraction: Share of every layer's groups that the network has, in (0, 1].
        num_groups: Groups that the channels of a layer are split into, as in the nested network beside it.
        base: Groups that are always kept.
        log_alpha_init: Where log α starts.
        weight_prior: Form of the log-uniform prior's KL.
        estimator: How layers sample their weights.
        label_smoothing: Share of the target given to all classes alike.
        rules: Exceptions by name pattern of a layer.
    """

    fraction: float = 1.0
    num_groups: int = 32
    base: int = 1
    log_alpha_init: float = -3.0
    weight_prior: LogUniformForm = "vnd"
    estimator: Estimator = "local"
    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """A narrower network, with a posterior over its weights."""
        options = {name: getattr(self, name) for name in ("log_alpha_init", "weight_prior", "estimator")}
        return narrowed(network, example, self, **options)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch, and the KL."""
        return variational_loss(model, batch, step, self.label_smoothing)
