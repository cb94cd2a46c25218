"""The Bernoulli chain: the prior over ordered masks; and chains that are coupled by one uniform number."""

import math
from collections.abc import Iterable
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property
from torch.types import _size

from vnd.distributions.constraints import Expandable, floating_vector, one_of, ordered_mask, validate
from vnd.functional import keep_logits_from_lengths, length_log_probs, length_mask, log_survival, pick, to_float32


class BernoulliChain(Expandable):
    r"""A chain of Bernoulli variables in which a unit can be kept only if the one before it was.

    $$P(z_i = 1 \mid z_{i-1} = 1) = μ_i = σ(m_i), \qquad P(z_i = 1 \mid z_{i-1} = 0) = 0, \qquad z_0 = 1$$

    Paper: Eq. (1), Sec. 2.2. A sample is one of n + 1 ordered masks: `length` ones, then zeros.

    Shapes: `keep_logits` (…, n); the batch shape is what stands before n, the event shape is (n,). Samples have the
    dtype of the parameters; log-probabilities, lengths and entropies come in float32 or wider.

    Args:
        keep_logits: Conditional keep logits m, (…, n). ±∞ is allowed: a unit kept always or never.
        keep_probs: The same as probabilities μ; give one of the two.
        validate_args: As in `torch.distributions`.

    Note:
        "The first node is always kept" (π₁ = 1 in the paper) belongs to a layer, as `base ≥ 1` of `OrderingUnit`,
        not to this distribution: here the length 0 is a possible one.

    >>> chain = BernoulliChain(torch.tensor([0.0, 0.0]))
    >>> chain.length_log_probs.exp()
    tensor([0.5000, 0.2500, 0.2500])
    >>> chain.expected_length
    tensor(0.7500)
    """

    arg_constraints: ClassVar = {"keep_logits": constraints.real_vector, "keep_probs": constraints.unit_interval}
    support = ordered_mask
    has_enumerate_support = True
    carried = ("_dtype",)

    def __init__(
        self,
        keep_logits: Tensor | None = None,
        *,
        keep_probs: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, param = one_of("BernoulliChain", keep_logits=keep_logits, keep_probs=keep_probs)
        setattr(self, name, floating_vector("BernoulliChain", name, param))
        self._dtype = param.dtype
        super().__init__(param.shape[:-1], param.shape[-1:], validate_args=False)
        validate(self, validate_args)

    @classmethod
    def geometric(cls, n: int, keep: float = 0.95) -> Self:
        """Every unit kept with the same probability given the one before: Rippel's truncated geometric lengths."""
        return cls(keep_probs=torch.full((_whole(n),), keep))

    @classmethod
    def uniform(cls, n: int) -> Self:
        """All n + 1 lengths equally likely: the categorical of FN³. The logits are log(n), …, log(1)."""
        return cls(torch.arange(_whole(n), 0, -1, dtype=torch.get_default_dtype()).log())

    @classmethod
    def from_length_probs(cls, probs: Tensor) -> Self:
        """The chain whose lengths 0 … n have these probabilities, (…, n + 1); they are normalised."""
        floating_vector(cls.__name__, "probs", probs)
        bad = probs[~((probs >= 0) & (probs < torch.inf))]
        if bad.numel():
            raise ValueError(f"{cls.__name__}: probs must be finite and at least 0; got {bad[0].item()}")
        if probs.size(-1) == 0 or not bool((probs.sum(-1) > 0).all()):
            raise ValueError(f"{cls.__name__}: probs must sum to more than 0; got a row that sums to 0")
        return cls(keep_logits_from_lengths(probs.log()).to(probs.dtype))

    @classmethod
    def from_expected_length(cls, n: int, length: float) -> Self:
        r"""The geometric chain with this expected length, $\sum_{i=1}^n μ^i$ = `length`, found by bisection."""
        if not 0 < length < n:
            raise ValueError(f"{cls.__name__}: length must lie strictly between 0 and n = {n}; got {length}")
        low, high = -60.0, 60.0
        for _ in range(100):
            logit = 0.5 * (low + high)
            log_keep = -math.log1p(math.exp(-logit))
            mean = math.exp(log_keep) * math.expm1(n * log_keep) / math.expm1(log_keep)
            low, high = (logit, high) if mean < length else (low, logit)
        return cls(torch.full((n,), logit))

    @lazy_property
    def keep_logits(self) -> Tensor:
        """Conditional keep logits m, (…, n)."""
        return torch.logit(to_float32(self.keep_probs))

    @lazy_property
    def keep_probs(self) -> Tensor:
        """Conditional keep probabilities μ, (…, n)."""
        return torch.sigmoid(self.keep_logits)

    @lazy_property
    def log_survival(self) -> Tensor:
        """Log probability that each unit is kept, (…, n)."""
        return log_survival(self.keep_logits)

    @lazy_property
    def length_log_probs(self) -> Tensor:
        """Log probability of each length 0 … n, (…, n + 1)."""
        return length_log_probs(self.keep_logits)

    @property
    def expected_length(self) -> Tensor:
        """Expected number of kept units, (…)."""
        return self.log_survival.exp().sum(-1)

    @property
    def mean(self) -> Tensor:
        """Probability that each unit is kept, (…, n)."""
        return self.log_survival.exp()

    @property
    def variance(self) -> Tensor:
        """Variance of each unit's mask, (…, n)."""
        return -self.log_survival.exp() * torch.expm1(self.log_survival)

    @property
    def mode(self) -> Tensor:
        """The most likely mask, (…, n)."""
        return length_mask(self.length_log_probs.argmax(-1), self.event_shape[0], self._dtype)

    def sample(self, sample_shape: _size = ()) -> Tensor:
        r"""Draw masks, sample_shape + (…, n), with one random number a mask.

        With an exponential clock $E$ per mask, unit i is kept while $E ≥ -S_i$, since $P(E ≥ -S_i) = e^{S_i}$.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            clock = self.log_survival.new_empty((*shape[:-1], 1)).exponential_()
            return (clock >= -self.log_survival).to(self._dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of ordered masks, (…, n) to (…)."""
        if self._validate_args:
            self._validate_sample(value)
        length = value.sum(-1, dtype=torch.int64)
        return pick(self.length_log_probs, length)

    def entropy(self) -> Tensor:
        """Entropy in nats, (…)."""
        probs = self.length_log_probs.exp()
        return -(probs * torch.where(probs > 0, self.length_log_probs, 0.0)).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All n + 1 masks, shortest first, (n + 1, …, n)."""
        n = self.event_shape[0]
        lengths = torch.arange(n + 1, device=self.length_log_probs.device)
        masks = length_mask(lengths, n, self._dtype).view((n + 1,) + (1,) * len(self.batch_shape) + (n,))
        return masks.expand((n + 1, *self.batch_shape, n)) if expand else masks


def _whole(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ValueError(f"BernoulliChain: n must be a whole number, at least 0; got {n!r}")
    return n


def coupled_entropy(chains: Iterable[BernoulliChain]) -> Tensor:
    r"""Entropy of the joint lengths of unbatched chains coupled by quantile, in nats.

    With one $u \sim \mathrm{Uniform}(0, 1)$ for all chains, each keeps its unit i exactly when $u < P(z_i = 1)$. The
    joint lengths change only where u crosses one of the survivals, so their probabilities are the gaps between all
    survivals in order, with 1 and 0 at the ends:

    $$H = -\sum_k g_k \log g_k, \qquad g_k = e^{s_k} - e^{s_{k+1}}, \quad 0 = s_0 ≥ s_1 ≥ … ≥ s_{K+1} = -∞$$

    >>> chains = [BernoulliChain.uniform(1), BernoulliChain.uniform(1)]  # both keep their unit, or none does
    >>> coupled_entropy(chains)
    tensor(0.6931)
    """
    survivals = []
    for chain in chains:
        if chain.batch_shape:
            raise ValueError(f"chains must be unbatched; got one of batch shape {tuple(chain.batch_shape)}")
        survivals.append(to_float32(chain.log_survival))
    if not survivals:
        raise ValueError("chains must not be empty")
    upper = F.pad(torch.cat(survivals).sort(descending=True).values, (1, 0))
    lower = F.pad(upper[1:], (0, 1), value=-torch.inf)
    gap = -upper.exp() * torch.expm1(torch.where(upper > -torch.inf, lower - upper, 0.0))
    return -(gap * torch.where(gap > 0, gap, 1.0).log()).sum()


def total_correlation(chains: Iterable[BernoulliChain]) -> Tensor:
    r"""Total correlation of chains coupled by quantile, $\sum_l H(q_l) - H(\text{joint}) ≥ 0$, in nats.

    Against independent priors the joint KL of the lengths is $\sum_l \mathrm{KL}_l$ plus this; leave it out of an
    objective if you like, but count it wherever an evidence bound is claimed.

    >>> chain = BernoulliChain.uniform(3)
    >>> round(float(total_correlation([chain, chain]) / chain.entropy()), 6)
    1.0
    """
    chains = list(chains)
    return sum((chain.entropy() for chain in chains), torch.zeros(())) - coupled_entropy(chains)
