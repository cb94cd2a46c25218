"""VND-AE: a variational auto-encoder whose code is ordered, and as long as its image needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.distributions import BernoulliChain, Downhill
from vnd.distributions.kl import chain_kl
from vnd.functional import length_mask, log_uniform_kl
from vnd.methods.base import Batch, Step, Terms, Traits, mc, register
from vnd.methods.codes import (
    CapacitySchedule,
    Code,
    coded,
    covering_lengths,
    length_of,
    masked,
    of_pixel,
    ratio_survival,
    repeated,
    squared_error,
)


class Bound(NamedTuple):
    """Negative bound on a likelihood: what decoding loses, and what the codes cost in nats, means over the batch."""

    misfit: Tensor
    rate: Tensor
    parts: dict[str, Tensor]  # the rate of drawn lengths, the least one that lengths can have, and the mean length
    drawn: Tensor | None = None  # the misfit at drawn lengths alone, where each image is decoded at all lengths


@register("vnd_ae", Traits(rank=8, name="VND-AE", order="learned", looks=mc("#0072b2", "o")))
@dataclass(frozen=True)
class VNDAE(CapacitySchedule):
    r"""Learn an order of a code's dimensions, and for each image how many of them it needs.

    $$\mathcal L = \frac{2 σ^2}{P} \Bigl[-\log p(x \mid z ∘ h) + κ\, \mathrm{KL}\Bigr], \qquad
      \mathrm{KL} = \mathrm{KL}[q(z \mid x) ‖ p(z)] + \sum_i P(z_i = 1 \mid x)\, κ_i$$

    with μ(x), σ(x) and the chain's keep logits from the encoder, $h \sim \mathcal N(μ(x), σ(x)^2)$, a Downhill z, whose
    dropped dimensions are zeros for the decoder, and $κ_i$ the KL of dimension i. Paper: Sec. 4.1, App. A.5.

    This is the loss with `all_lengths_share` 0, and leaves codes that are shorter than most learned ones untrained.
    Unless told otherwise, some decodings have lengths that are not learned, and the decoder is told each (see below).

    With `fractions`, a share of the loss is that of codes of fixed lengths b, charged $\sum_{i \le b} κ_i$, in every
    step, beside the one of a drawn length. Each image is decoded at all of them, or at one, of which every step has its
    share: that costs what a VAE costs, and its gradient is as noisy. With `decodes` k it is decoded k times, from draws
    and at lengths of its own each time, the lengths still by their shares: a length that weighs more is decoded more
    often. All are decoded in one batch, whose statistics BatchNorm keeps: at a test no length needs its own.

    With `all_lengths_share` ε, that share of the decodings has lengths that are even by ratio,
    $s_b ∝ \log (1 + 1 / b)$, in place of learned ones, q: short codes are served whatever is learned, and no length has
    to be named. The loss is

    $$(1 - ε) \bigl(\mathbb E_{b \sim q} [L_b] + \mathrm{KL}[q ‖ p]\bigr) + ε\, \mathbb E_{b \sim s} [L_b], \qquad
      L_b = -\log p(x \mid h_{\le b}) + \sum_{i \le b} κ_i$$

    where each $L_b$ is a bound for codes of b dimensions, and the first term alone moves q. With
    $ε\, \mathrm{KL}[s ‖ p]$, a constant, it is at least the negative bound for lengths drawn by $(1 - ε) q + ε s$, the
    KL being convex. If nothing is given, ε falls evenly from 1 to 0.2 over the training, so that 40 % of all decodings
    have a drawn length, and each image is decoded eight times in a step: eight times the decoder's work.

    Given $κ$, the KL is least, $-\log C$ with $C = \sum_j p_j e^{-\sum_{i \le j} κ_i}$, for lengths
    $q_j ∝ p_j e^{-\sum_{i \le j} κ_i}$ (App. A.5): `rate_least` in the log says what the learned lengths could save.

    Args:
        base: Dimensions that are always kept.
        prior_length: Expected length under the prior, base included; None for uniform lengths.
        initial_logit: Where the keep logits start: at 0 codes would be two dimensions long.
        fractions: Shares of the code that are trained in every step.
        weights: What each of them weighs among them; alike if not given. A shared network gives up on long codes what
            it gains on short ones, and the other way round.
        fixed_share: Their share of the loss.
        each_image: Decode every image at "all" these lengths and a drawn one, or at "one" of them.
        decodes: How often, with "one" or `all_lengths_share`, each image is decoded in a step. If not given, 8 times
            with `all_lengths_share`, else once.
        all_lengths_share: Share of the decodings whose lengths are of all lengths, not learned ones; it takes the
            place of `fractions`. If not given, 0.2, but 0 with `fractions` or the released sampler.
        all_lengths_until: Share of training over which it falls to this from 1, evenly: the order is formed first, and
            then learned lengths have their say. None: it stays.
        sampler: "released" draws lengths as the authors' code does, nearly uniformly: see `Downhill.released`. The KL
            is that of the learned lengths, as there. For reproduction only.
        free_bits: Nats that each dimension is charged at least, so that none is given up early; the paper's appendix
            shows that a KL that stays positive needs such a floor.
        free_until: Share of training over which these fall evenly, to none; if not given they stay. What is learned
            from there on is the bound itself, and a dimension that is not worth its nats is given up after all.
        prior: Of a dimension that is kept: "normal", or "log_uniform" as for weights, from which nothing can be drawn.

    Note: The paper's form is `all_lengths_share` 0 and a network with `length_bias` false; recipes `paper/…` have it.
    """

    ordered = True
    tells_length = True
    base: int = 1
    prior_length: float | None = None
    initial_logit: float = 4.0
    fractions: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    fixed_share: float = 0.5
    each_image: Literal["all", "one"] = "all"
    decodes: int | None = None
    free_bits: float = 0.0
    free_until: float | None = None
    prior: Literal["normal", "log_uniform"] = "normal"
    all_lengths_share: float | None = None
    all_lengths_until: float | None = 1.0
    sampler: Literal["exact", "released"] = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior_length is not None and not self.prior_length > self.base:
            raise ValueError(f"prior_length must be greater than base = {self.base}; got {self.prior_length}")
        if self.weights and (len(self.weights) != len(self.fractions) or not all(w > 0 for w in self.weights)):
            raise ValueError(f"weights must be above 0, one for each of fractions; got {list(self.weights)}")
        one = self.each_image == "one" or self.covered_share > 0
        if self.decodings < 1 or (self.decodings > 1 and not one):
            raise ValueError(f"decodes must be at least 1, and 1 with each_image all; got {self.decodes}")

    @property
    def covered_share(self) -> float:
        """The share of decodings at all lengths, `all_lengths_share` or its default."""
        if self.all_lengths_share is not None:
            return self.all_lengths_share
        return 0.0 if self.fractions or self.sampler == "released" else 0.2

    @property
    def decodings(self) -> int:
        """Times that an image is decoded in a step, at lengths of its own: `decodes` or its default."""
        if self.decodes is not None:
            return self.decodes
        return 8 if self.covered_share else 1

    def heads(self, code: int) -> dict[str, int]:
        """Means, log variances, and keep logits of the dimensions beyond the base."""
        if not self.base < code:
            raise ValueError(f"network.latent_dim must be greater than method.base = {self.base}; got {code}")
        if self.prior_length is not None and not self.prior_length < code:
            raise ValueError(
                f"method.prior_length must be less than network.latent_dim = {code}; got {self.prior_length}"
            )
        return {**super().heads(code), "keep_logits": code - self.base}

    @torch.no_grad()
    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with the heads of this method, its codes long at first."""
        model = super().build(network, example)
        self.start_long(coded(model).heads["keep_logits"])
        return model

    @torch.no_grad()
    def start_long(self, head: nn.Module) -> None:
        """Make a linear head of keep logits give long codes at first."""
        head.weight.mul_(0.1)  # type: ignore[operator]
        head.bias.fill_(self.initial_logit)  # type: ignore[operator]

    def reached(self, step: Step) -> float:
        """The share of training that is done."""
        return step.share

    def prior_chain(self, code: int, device: torch.device | str = "cpu") -> BernoulliChain:
        """The prior over lengths of the dimensions beyond the base, of codes of so many dimensions."""
        logits = _prior_logits(code - self.base, self.prior_length and self.prior_length - self.base, str(device))
        return BernoulliChain(logits, validate_args=False)

    def survival(self, code: Code) -> Tensor:
        """Probability that each dimension is kept, (batch, dimensions)."""
        nested = BernoulliChain(code.heads["keep_logits"], validate_args=False).log_survival.exp()
        return F.pad(nested, (self.base, 0), value=1.0)

    def cost_of(self, code: Code) -> Tensor:
        """KL of each dimension from its prior, (batch, dimensions), in nats."""
        if self.prior == "normal":
            return code.cost
        log_alpha = 2 * (code.scale.log() - code.loc.abs().clamp(min=1e-6).log())
        return log_uniform_kl(log_alpha, "exact")

    def rate(self, code: Code, length: int | None = None) -> Tensor:
        """Nats of a code of some length; with None, of one whose length is drawn, and of that length."""
        cost = self.cost_of(code)
        if length is not None:
            return cost[:, :length].sum(1)
        return self._rate(code, cost)

    def lengths(self, code: Code) -> Tensor:
        """The median length of each image's posterior, (batch,)."""
        return (self.survival(code) >= 0.5).sum(1)

    def draw(self, model: nn.Module, count: int, length: int | None = None) -> Tensor:
        """Codes drawn from the prior: of some length, (count, b), or each of a length that is drawn too."""
        if self.prior != "normal":
            raise ValueError("vnd_ae: nothing can be drawn from a log-uniform prior; train with method.prior normal")
        drawn = super().draw(model, count, length)
        return drawn if length is not None else masked(drawn, self.draw_lengths(drawn))

    def draw_lengths(self, codes: Tensor) -> Tensor:
        """Lengths drawn from the prior, (count,), for codes (count, dimensions)."""
        kept = self.prior_chain(codes.size(1), codes.device).sample((len(codes),))
        return kept.sum(1).long() + self.base

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The negative bound on the likelihood for a drawn length, and for those of every step, scaled."""
        images = batch[0]

        def misfit(codes: Tensor) -> Tensor:
            return squared_error(repeated(images, len(codes)), self.decode(model, codes))

        bound = self.bound(self.encode(model, images), misfit, step.temperature, coded(model).grown)
        parts = dict(bound.parts)
        if bound.drawn is not None:
            parts["mse_drawn"] = of_pixel(bound.drawn, images[0].numel())
        return self.terms(bound.misfit, step.kl_weight * bound.rate, images, parts)

    def bound(
        self,
        code: Code,
        misfit: Callable[[Tensor], Tensor],
        temperature: float | Tensor,
        progress: float | Tensor,
    ) -> Bound:
        r"""Both sides of the negative bound, with codes drawn at the lengths that are trained.

        Args:
            code: Of a batch.
            misfit: What is lost of each example of that batch, (k · batch,), where it is decoded from codes
                (k · batch, dimensions): all of them, then all of them again, k times. Dropped dimensions are zeros.
            temperature: τ of the gate.
            progress: Share of the training that is done, in [0, 1].
        """
        floor = self.free_bits * _left(progress, self.free_until, still=1.0)
        cost = self.cost_of(code).clamp(min=floor)
        gate = Downhill(temperature, code.heads["keep_logits"], validate_args=False)
        gate = gate.released() if self.sampler == "released" else gate
        nested = gate.rsample((self.decodings,), hard=True).flatten(0, 1)  # of every image, then of every image again
        mask = F.pad(nested.to(code.loc.dtype), (self.base, 0), value=1.0)
        fixed = [length_of(code.loc.size(1), fraction, self.base) for fraction in self.fractions]
        share, each = self.fixed_share if fixed else 0.0, self.weights or (1.0,) * len(fixed)
        weights = [1 - share, *(share * weight / sum(each) for weight in each)]
        own = self._rate(code, cost)
        rates = [own.mean(), *(cost[:, :length].sum(1).mean() for length in fixed)]
        rate = _weighted(weights, rates)
        parts = {"rate": own.mean(), "rate_least": self.least_rate(code, cost).mean(), "length": mask.sum(1).mean()}
        if self.covered_share:
            more = _left(progress, self.all_lengths_until, still=0.0)
            covering = self.covered_share + (1 - self.covered_share) * more
            lengths = covering_lengths(len(mask), covering, self.base, mask.size(1), mask.device)
            lost = self._repeated_misfit(misfit, code, mask, lengths)
            return Bound(lost, rate + covering * (self._covering_rate(cost).mean() - rate), parts)
        if self.each_image == "all":
            each_lost = self._misfits(misfit, code, mask, fixed)
            return Bound(_weighted(weights, each_lost), rate, parts, each_lost[0])
        lengths = torch.tensor([0, *fixed], device=mask.device)[_shared(weights, len(mask), mask.device)]
        return Bound(self._repeated_misfit(misfit, code, mask, lengths), rate, parts)

    def _repeated_misfit(self, misfit: Callable[[Tensor], Tensor], code: Code, mask: Tensor, lengths: Tensor) -> Tensor:
        """The misfit of an image, mean over decodings: at lengths (count,), or masked where these are 0."""
        kept = torch.where(lengths[:, None] > 0, length_mask(lengths, mask.size(1), mask.dtype), mask)
        drawn = torch.cat([self.sample(code) for _ in range(self.decodings)])
        return misfit(drawn * kept).mean()

    def _covering_rate(self, cost: Tensor) -> Tensor:
        """Nats of a code whose length is even by ratio, the mean over its lengths, (batch,)."""
        return (ratio_survival(self.base, cost.size(1), cost.device) * cost).sum(1)

    def _misfits(self, misfit: Callable[[Tensor], Tensor], code: Code, mask: Tensor, fixed: list[int]) -> list[Tensor]:
        """The misfit of an image, mean over the batch, at lengths that are drawn and at each of some."""
        size = mask.size(1)
        codes = [self.sample(code) * mask, *(F.pad(self.sample(code, length), (0, size - length)) for length in fixed)]
        return list(misfit(torch.cat(codes)).view(len(codes), -1).mean(1))

    def least_rate(self, code: Code, cost: Tensor) -> Tensor:
        r"""The least KL that lengths can have, given what each dimension costs, $-\log C$, (batch,)."""
        paid = cost.cumsum(1)[:, self.base - 1 :]
        return -torch.logsumexp(self.prior_chain(cost.size(1), cost.device).length_log_probs - paid, 1)

    def _rate(self, code: Code, cost: Tensor) -> Tensor:
        lengths = BernoulliChain(code.heads["keep_logits"], validate_args=False)
        return chain_kl(lengths, self.prior_chain(cost.size(1), cost.device)) + (self.survival(code) * cost).sum(1)


def _left(done: float | Tensor, until: float | None, still: float) -> float | Tensor:
    """Remainder, in [0, 1], of something that falls evenly to nothing over a share of training."""
    if until is None:
        return still
    left = 1 - done / until
    return left.clamp(min=0.0) if isinstance(left, Tensor) else max(left, 0.0)


def _weighted(weights: list[float], terms: list[Tensor]) -> Tensor:
    return torch.stack([weight * term for weight, term in zip(weights, terms, strict=True)]).sum()


def _shared(weights: list[float], count: int, device: torch.device) -> Tensor:
    """Assign things to so many images by their shares, (count,): each gets its share of them, to within one.

    Neighbours get the same one: images of a batch are in no order, and one that comes again comes a batch later.
    """
    place = (torch.arange(count, device=device) + torch.rand((), device=device)) / count
    return torch.bucketize(place, torch.tensor(weights[:-1], device=device).cumsum(0), right=True)


def _prior_logits(count: int, length: float | None, device: str) -> Tensor:
    return _kept_logits(count, length, device)


# What torch.compiler.assume_constant_result does, which would load the compiler with every program: a second.
_prior_logits._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _kept_logits(count: int, length: float | None, device: str) -> Tensor:
    chain = BernoulliChain.uniform(count) if length is None else BernoulliChain.from_expected_length(count, length)
    return chain.keep_logits.to(device)
