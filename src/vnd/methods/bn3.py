"""BN³: a Bayesian nested neural network, whose width is chosen at test time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd.nn as nested
from vnd.functional import LogUniformForm
from vnd.methods.method import Batch, Size, Sizes, Step, Terms
from vnd.nn.bayesian import Estimator
from vnd.nn.nested import Coupling
from vnd.nn.objective import Price
from vnd.nn.ordering import Gradient
from vnd.nn.plan import plan_of, unwrap
from vnd.nn.width import Width
from vnd.words import short


@dataclass(frozen=True)
class BN3:
    r"""Learn the order of a network's channels together with a posterior over its weights.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w, z) + \frac{κ}{N}\, \mathrm{KL}(q(w, z) \,\|\, p(w, z))$$

    with w and z drawn anew in every step. Paper: Eq. (7), (18), Alg. 1.

    Args:
        num_groups: Groups that the channels of a layer are split into.
        base: Groups that are always kept.
        bayesian: A posterior over the weights, or point weights.
        coupling: One draw of the length for all layers ("quantile"), or one each ("independent", the paper).
        gradient: How the loss reaches the order; see `OrderingUnit`.
        measure_every: With `gradient` "difference", steps between two measurements of a unit, each of two passes
            without gradient; 0 for never.
        price: With what probability a weight is charged; see `vnd.kl`.
        draws: Draws of the masks in a step: the batch is run in so many parts, each with its own, and where layers are
            coupled the draws are spread evenly, so that every step sees narrow and wide networks.
        initial_logit: Where the keep logits start.
        log_alpha_init: Where log α starts.
        prior_length: Expected number of groups kept under the prior, base included; None for uniform lengths.
        weight_prior: Form of the log-uniform prior's KL.
        estimator: How layers sample their weights.
        label_smoothing: Share of the target given to all classes alike.
        rules: Exceptions by name pattern of a layer: {"features.0": {"nest": false, "log_alpha_init": -8}}.
    """

    num_groups: int = 32
    base: int = 1
    bayesian: bool = True
    coupling: Coupling = "quantile"
    gradient: Gradient = "difference"
    measure_every: int = 4
    price: Price = "output"
    draws: int = 1
    initial_logit: float = 3.0
    log_alpha_init: float = -3.0
    prior_length: float | None = None
    weight_prior: LogUniformForm = "vnd"
    estimator: Estimator = "local"
    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_groups < 1:
            raise ValueError(f"num_groups must be at least 1; got {self.num_groups}")
        if not 0 <= self.base <= self.num_groups:
            raise ValueError(f"base must lie in 0 … num_groups = {self.num_groups}; got {self.base}")
        if self.prior_length is not None and not self.base < self.prior_length < self.num_groups:
            span = f"base = {self.base} and num_groups = {self.num_groups}"
            raise ValueError(f"prior_length must lie strictly between {span}; got {self.prior_length}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must lie in [0, 1); got {self.label_smoothing}")
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1; got {self.draws}")
        if self.measure_every < 0:
            raise ValueError(f"measure_every must be 0 (never) or more; got {self.measure_every}")
        self._rules()

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a plain network."""
        model = nested.to_nested(
            network,
            example,
            num_groups=self.num_groups,
            base=self.base,
            bayesian=self.bayesian,
            rules=self._rules(),
            coupling=self.coupling,
            log_alpha_init=self.log_alpha_init,
            estimator=self.estimator,
            weight_prior=self.weight_prior,
            prior=self.prior_length,
            initial_logit=self.initial_logit,
            gradient=self.gradient,
        )
        quantile = plan_of(model).quantile
        if quantile is not None:
            quantile.strata.fill_(self.draws)
        return model

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Set the temperature, and measure what one unit is worth to the loss."""
        root = unwrap(model)
        nested.set_temperature(root, step.temperature)
        if self.gradient == "difference" and self.measure_every and step.index % self.measure_every == 0:
            nested.update_differences(root, lambda: average(self._likelihood(model, batch)))

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch, and the KL."""
        if len(batch[1]) < self.draws:
            raise ValueError(f"method.draws must be at most the images of a batch, {len(batch[1])}; got {self.draws}")
        # Every so many-th image: so they are the same ones when several processes share the batch.
        parts = [(batch[0][first :: self.draws], batch[1][first :: self.draws]) for first in range(self.draws)]
        shares = [len(y) / len(batch[1]) * self._likelihood(model, (x, y)) for x, y in parts]
        likelihood = torch.stack(shares).sum()
        divergence = nested.kl(model, self.price)
        total = likelihood + step.kl_weight / step.num_data * divergence
        if self.gradient == "difference" and self.measure_every:
            order = nested.difference_term(unwrap(model))
            total = total + order - order.detach()  # its gradient counts, its value means nothing
        return Terms(total, {"nll": likelihood.detach(), "kl": divergence.detach()})

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """Uniform fractions, learned levels, and learned shapes of so many parameters."""
        found = [Size("uniform", f"{100 * f:.4g} %", nested.shape(model, fraction=f)) for f in wanted.fractions]
        found += [Size("learned", f"level {x:.4g}", nested.shape(model, level=x)) for x in wanted.levels]
        found += [_fitting(model, budget) for budget in wanted.parameters]
        for size in (_fitting(model, budget) for budget in _spread(model, wanted.learned)):
            if all(size.width != other.width for other in found if other.kind == "learned"):
                found.append(size)
        return found

    def calibrate(
        self, model: nn.Module, batches: Callable[[], Iterable[Any]], widths: list[Width], samples: bool
    ) -> None:
        """Collect BatchNorm's statistics."""
        nested.recalibrate(model, batches(), widths, samples=samples and self.bayesian)

    def cut(self, model: nn.Module, width: Width, samples: int) -> nn.Module:
        """The extracted network, with its posterior if it is to be drawn from: BatchNorm has statistics for each."""
        return nested.extract(model, width, bayesian=self.bayesian and samples > 0)

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> nested.Prediction:
        """Average the probabilities over draws of the weights."""
        return nested.predict(network, x, samples=samples)

    def extract(self, model: nn.Module, width: Width) -> nn.Module:
        """The extracted network of posterior means."""
        return nested.extract(model, width)

    def _rules(self) -> dict[str, nested.Rule]:
        known = {f.name for f in fields(nested.Rule)}
        for pattern, options in self.rules.items():
            if unknown := set(options) - known:
                raise ValueError(f"rules: {pattern} has no {unknown.pop()!r}; known are {', '.join(sorted(known))}")
        return {pattern: nested.Rule(**options) for pattern, options in self.rules.items()}

    def _likelihood(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1], label_smoothing=self.label_smoothing)


def _fitting(model: nn.Module, budget: float) -> Size:
    return Size("learned", f"≤ {short(budget)}", nested.shape(model, parameters=budget))


def _spread(model: nn.Module, count: int) -> list[float]:
    """Numbers of parameters, spread evenly by ratio from the smallest network to the full one."""
    if count < 1:
        return []
    small = nested.profile(model, nested.shape(model, fraction=1e-9), count_macs=False).parameters
    full = nested.profile(model, 1.0, count_macs=False).parameters
    return [full] if count == 1 else [round(small * (full / small) ** (i / (count - 1))) for i in range(count)]
