"""The auto-encoders that VND-AE is held against: VAE, BetaVAE, JointVAE, SWAE, plain nested dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.distributions import BernoulliChain
from vnd.methods.base import DASH_DOTS, DASHED, DOTTED, Batch, Step, Terms, Traits, mc, refuse_unless, register
from vnd.methods.codes import AutoencoderMethod, CapacitySchedule, Code, DeterministicAutoencoder, coded, masked


@register("vae", Traits(rank=9, name="VAE", sizes="each", looks=mc("#d55e00", "s", DASHED)))
@dataclass(frozen=True)
class VAE(AutoencoderMethod):
    r"""Encode to independent Gaussians, and charge their KL from a standard normal.

    $$\mathcal L = \frac{2 σ^2}{P} \Bigl[-\log p(x \mid h) + κ \sum_i κ_i\Bigr], \qquad h \sim q(h \mid x)$$

    Kingma and Welling (2014). Its length is the network's `code`.
    """

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The negative bound on the likelihood, scaled."""
        code = self.encode(model, batch[0])
        rate = code.cost.sum(1)
        return self._terms(model, batch[0], self.sample(code), step.kl_weight * rate, {"rate": rate.mean()})


@register("beta_vae", Traits(rank=10, name="BetaVAE", sizes="each", looks=mc("#009e73", "^", "-.")))
@dataclass(frozen=True)
class BetaVAE(CapacitySchedule):
    r"""Ask for independent dimensions, by a penalty on the KL.

    $$\text{"beta"}: β \sum_i κ_i, \qquad \text{"capacity"}: γ \Bigl| \sum_i κ_i - C_t \Bigr|, \quad
      C_t = C \min(t / T, 1)$$

    in the place of the KL of `VAE`. Higgins et al. (2017), Burgess et al. (2018).

    Args:
        form: Which of the two.
        beta: β.
        gamma: γ.
        capacity: C, in nats.
        over: T, in steps.
    """

    form: Literal["beta", "capacity"] = "beta"
    beta: float = 10.0
    gamma: float = 10.0
    capacity: float = 25.0
    over: int = 10_000

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Squared error and the penalty."""
        code = self.encode(model, batch[0])
        rate = code.cost.sum(1)
        if self.form == "beta":
            penalty = self.beta * rate
        else:
            penalty = self.gamma * (rate.mean() - self.capacity * coded(model).grown).abs().expand_as(rate)
        return self._terms(model, batch[0], self.sample(code), step.kl_weight * penalty, {"rate": rate.mean()})


@register("joint_vae", Traits(rank=11, name="JointVAE", sizes="each", looks=mc("#cc79a7", "X", ":")))
@dataclass(frozen=True)
class JointVAE(CapacitySchedule):
    r"""Gaussian dimensions for what varies smoothly, a category for what does not.

    $$γ \Bigl| \sum_i κ_i - C_t \Bigr| + γ \Bigl| \sum_k q_k \log (K q_k) - D_t \Bigr|, \qquad
      C_t = C \min(t / T, 1), \quad D_t = \min(D \min(t / T, 1), \log K)$$

    in the place of the KL of `VAE`; the category is relaxed by Gumbel-softmax in training. Dupont (2018). Of the
    network's `code` numbers the last K are the category, so that its decoder is as large as all others'.

    Args:
        categories: K.
        temperature: Of the relaxed category.
        gamma: γ.
        capacity: C, in nats.
        category_capacity: D, in nats.
        over: T, in steps.
    """

    categories: int = 40
    temperature: float = 0.5
    gamma: float = 10.0
    capacity: float = 20.0
    category_capacity: float = 20.0
    over: int = 25_000

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


@register("swae", Traits(rank=12, name="SWAE", sizes="each", looks=mc("#8a6d00", "v", DASH_DOTS)))
@dataclass(frozen=True)
class SWAE(DeterministicAutoencoder):
    r"""Deterministic codes, as a whole distributed as the prior.

    $$\mathcal L = \frac1P \lVert x - g(h) \rVert^2 + \frac{w}{B (B - 1)}\, \frac1{L B} \sum_{l, b}
      \bigl| ⟨θ_l, h⟩_{(b)} - ⟨θ_l, \tilde h⟩_{(b)} \bigr|^p$$

    with B codes h, as many draws $\tilde h$ of the prior, unit vectors $θ_l$ and values in rising order. Kolouri et al.
    (2019); the scale $1 / B (B - 1)$ is that of the code most use, which adds the absolute error to the squared one.

    Args:
        projections: L.
        power: p.
        weight: w.
    """

    projections: int = 200
    power: float = 2.0
    weight: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.power < 1 or self.weight < 0:
            raise ValueError(f"power must be at least 1 and weight 0 or more; got {self.power} and {self.weight}")

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean squared error and the distance of the codes from the prior."""
        code = self.encode(model, batch[0]).loc
        if len(code) < 2:
            raise ValueError(f"swae: train.batch must be at least 2, a cloud of codes; got {len(code)}")
        apart = sliced_distance(code, torch.randn_like(code), self.projections, self.power)
        count, pixels = len(code), batch[0][0].numel()
        penalty = step.kl_weight * self.weight / (count * (count - 1)) * apart * pixels / (2 * self.likelihood_std**2)
        return self._terms(model, batch[0], code, penalty[None], {"sliced": apart})


def sliced_distance(a: Tensor, b: Tensor, projections: int, power: float) -> Tensor:
    r"""Sliced Wasserstein distance of two clouds (n, D), to the power p: mean over directions and sorted pairs."""
    directions = torch.randn(a.size(1), projections, device=a.device, dtype=a.dtype)
    directions = directions / directions.norm(dim=0, keepdim=True)
    first, second = ((x @ directions).sort(0).values for x in (a, b))
    apart: Tensor = (first - second).abs().pow(power).mean()
    return apart


@register("nested_ae", Traits(rank=13, name="nested AE", order="fixed", looks=mc("#7a4b9a", "P", DOTTED)))
@dataclass(frozen=True)
class NestedAE(DeterministicAutoencoder):
    r"""Learn an order by dropping the end of every code, at lengths that nothing learns.

    $$\mathcal L = \frac1P\, \mathbb E_{b \sim p(b)} \lVert x - g(h_{\le b}) \rVert^2$$

    Rippel et al. (2014). With one linear layer each way its codes are the principal components, in their order.

    Args:
        base: Dimensions that are always kept.
        keep: Probability that a dimension is kept given the one before; None for lengths that are all alike likely.
    """

    ordered = True
    base: int = 1
    keep: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless(self.keep is None or 0 < self.keep < 1, "keep", "lie in (0, 1)", self.keep)

    def heads(self, code: int) -> dict[str, int]:
        """The code itself; it may be all base, which is an auto-encoder without an order."""
        if self.base > code:
            raise ValueError(f"network.latent_dim must be at least method.base = {self.base}; got {code}")
        return super().heads(code)

    def draw(self, model: nn.Module, count: int, length: int | None = None) -> Tensor:
        """Refused: its codes have no distribution."""
        raise ValueError("nested_ae: its codes have no prior to draw from; use vnd_ae to generate images")

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean squared error at a length drawn for each image."""
        code = self.encode(model, batch[0]).loc
        logits = _chain_logits(code.size(1) - self.base, self.keep, str(code.device))
        lengths = self.base + BernoulliChain(logits, validate_args=False).sample((len(code),)).sum(1).long()
        return self._terms(model, batch[0], masked(code, lengths), torch.zeros_like(code[:, 0]), {})


def _chain_logits(count: int, keep: float | None, device: str) -> Tensor:
    chain = BernoulliChain.uniform(count) if keep is None else BernoulliChain.geometric(count, keep)
    return chain.keep_logits.to(device)


# What torch.compiler.assume_constant_result does, which would load the compiler with every program: a second.
_chain_logits._dynamo_marked_constant = True  # type: ignore[attr-defined]
