"""JointVAE: a code of Gaussian dimensions and one category, each held at a capacity that grows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.methods.coding import CapacitySchedule, Code, check_options, coded
from vnd.methods.method import Batch, Step, Terms, register
from vnd.methods.traits import Traits, mc


@register("joint_vae", Traits(rank=11, name="JointVAE", sizes="each", looks=mc("#cc79a7", "X", ":")))
@dataclass(frozen=True)
class JointVAE(CapacitySchedule):
    r"""Gaussian dimensions for what varies smoothly, a category for what does not.

    $$γ \Bigl| \sum_i κ_i - C_t \Bigr| + γ \Bigl| \sum_k q_k \log (K q_k) - D_t \Bigr|, \qquad
      C_t = C \min(t / T, 1), \quad D_t = \min(D \min(t / T, 1), \log K)$$

    in the place of the KL of `VAE`; the category is relaxed by Gumbel-softmax in training. Dupont (2018). Of the
    network's `code` numbers the last K are the category, so that its decoder is as large as all others'.

    Args:
        likelihood_std: σ of a pixel between −1 and 1.
        categories: K.
        temperature: Of the relaxed category.
        gamma: γ.
        capacity: C, in nats.
        category_capacity: D, in nats.
        over: T, in steps.
    """

    likelihood_std: float = 1.0
    categories: int = 40
    temperature: float = 0.5
    gamma: float = 10.0
    capacity: float = 20.0
    category_capacity: float = 20.0
    over: int = 25_000

    def __post_init__(self) -> None:
        check_options(self)
        if self.categories < 2:
            raise ValueError(f"categories must be at least 2; got {self.categories}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be greater than 0; got {self.temperature}")

    def heads(self, code: int) -> dict[str, int]:
        """Means and log variances of the Gaussian dimensions, logits of the category."""
        if code <= self.categories:
            raise ValueError(f"network.latent_dim must be greater than the {self.categories} categories; got {code}")
        return {**super().heads(code - self.categories), "category": self.categories}

    def point(self, code: Code, length: int | None = None) -> Tensor:
        """The means, and the likeliest category."""
        best = F.one_hot(code.heads["category"].argmax(1), self.categories).to(code.loc.dtype)
        return torch.cat((code.loc, best), 1)[:, :length]

    def sample(self, code: Code, length: int | None = None) -> Tensor:
        """A draw of both; the category is relaxed where gradients are wanted."""
        relaxed = F.gumbel_softmax(code.heads["category"], self.temperature, hard=not torch.is_grad_enabled())
        return torch.cat((super().sample(code), relaxed), 1)[:, :length]

    def rate(self, code: Code, length: int | None = None) -> Tensor:
        """Nats of both."""
        return code.cost.sum(1) + self._category_rate(code)

    def draw(self, model: nn.Module, count: int, length: int | None = None) -> Tensor:
        """Gaussian dimensions and a category, all alike likely."""
        drawn = super().draw(model, count)
        chosen = torch.randint(self.categories, (count,), device=drawn.device)
        hot = F.one_hot(chosen, self.categories).to(drawn.dtype)
        return torch.cat((drawn[:, : -self.categories], hot), 1)[:, :length]

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Squared error and both penalties."""
        code = self.encode(model, batch[0])
        smooth, category = code.cost.sum(1).mean(), self._category_rate(code).mean()
        grown = coded(model).grown
        most = (self.category_capacity * grown).clamp(max=math.log(self.categories))
        penalty = self.gamma * ((smooth - self.capacity * grown).abs() + (category - most).abs())
        parts = {"rate": smooth + category, "category_rate": category}
        return self._terms(model, batch[0], self.sample(code), step.kl_weight * penalty[None], parts)

    def _category_rate(self, code: Code) -> Tensor:
        log_probs = code.heads["category"].log_softmax(1)
        return (log_probs.exp() * (log_probs + math.log(self.categories))).sum(1)
