"""SVB: sparse variational dropout, which prunes single weights by their noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vnd.methods.method import Batch, Step, Terms, check, cost_of, register
from vnd.methods.single import Single, copied, narrowed, variational_loss, with_means
from vnd.methods.traits import Traits, mc
from vnd.nn import BayesLayer
from vnd.nn.bayesian import Estimator
from vnd.nn.width import Width

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
class SVB(Single):
    r"""Train one network with a posterior over its weights, and set those to zero that are noise.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w) + \frac{κ}{N}\, \mathrm{KL}(q(w) \,\|\, p(w)), \qquad
      w_i := 0 \text{ where } \log α_i > t$$

    with a free variance for each weight and Molchanov's form of the KL. Molchanov et al. (2017); paper: Sec. 6.1,
    Table 1.

    Args:
        threshold: t; 3 is a noise of 95 % of the weight's power.
        log_alpha_init: Where log α starts.
        estimator: How layers sample their weights.
        label_smoothing: Share of the target given to all classes alike.
        rules: Exceptions by name pattern of a layer: {"features.0": {"log_alpha_init": -8}}.
    """

    threshold: float = 3.0
    log_alpha_init: float = -8.0
    estimator: Estimator = "local"
    label_smoothing: float = 0.0
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network, with a posterior over its weights."""
        options: dict[str, Any] = {"log_alpha_init": self.log_alpha_init, "estimator": self.estimator}
        return narrowed(network, example, self, **options, weight_prior="molchanov", free_variance=True)

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean negative log-likelihood of the batch, and the KL."""
        return variational_loss(model, batch, step, self.label_smoothing)

    @torch.no_grad()
    def cut(self, model: nn.Module, width: Width, samples: int) -> nn.Module:
        """A copy of the network without the weights that are noise."""
        pruned = copied(model)
        for layer in pruned.modules():
            if isinstance(layer, BayesLayer) and layer.bayesian and layer.log_variance is not None:
                noise = layer.posterior().log_alpha > self.threshold
                layer.weight[noise] = 0.0
                layer.log_variance[noise] = -torch.inf
        return pruned

    def extract(self, model: nn.Module, width: Width) -> nn.Module:
        """The network of posterior means, with zeros where weights were pruned."""
        return with_means(self.cut(model, width, 0))

    def cost(self, network: nn.Module, example: Tensor) -> dict[str, int]:
        """What is left: weights that are not zero, and their bytes beside one bit for each that may be.

        Multiply-accumulates are those of the dense network, and so is its latency: torch skips no zeros.
        """
        dense = cost_of(network, example)
        weights = sum(p.numel() for p in network.parameters() if p.dim() > 1)
        zeros = sum(int((p == 0).sum()) for p in network.parameters() if p.dim() > 1)
        stored = dense["bytes"] - WORD * zeros + (weights + 7) // 8
        parameters = {"parameters": dense["parameters"] - zeros, "dense_parameters": dense["parameters"]}
        return {**parameters, "macs": dense["macs"], "bytes": min(dense["bytes"], stored)}
