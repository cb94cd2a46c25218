"""The Downhill distribution: the relaxed posterior over ordered masks."""

import math
import warnings
import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property
from torch.types import _size

from vnd.distributions.bernoulli_chain import BernoulliChain
from vnd.distributions.constraints import Expandable, descending, floating_vector, one_of, positive_finite, validate
from vnd.functional import (
    keep_logits_from_lengths,
    length_log_probs,
    length_mask,
    log_exponential_noise,
    straight_through,
    suffix_sum,
    to_float32,
)

COLD = 0.05  # below this temperature most gradients of a relaxed sample are exactly zero


class Downhill(Expandable):
    r"""Suffix sums of a relaxed one-hot length: a smooth descent from one to zero.

    $$c = \mathrm{softmax}\!\left(\frac{\log q + g}{τ}\right), \quad g_j \sim \mathrm{Gumbel}(0, 1), \qquad
      z_i = \sum_{j ≥ i} c_j, \qquad 1 ≥ z_1 ≥ … ≥ z_n ≥ 0$$

    $q$ are the probabilities of the lengths 0 … n. As τ → 0 the samples become hard ordered masks with
    $P(\text{length} = j) = q_j$: the Bernoulli chain `self.chain`.

    Paper: Definition 1 and Properties 1–2, Sec. 2.3.

    Shapes: parameters (…, n) or (…, n + 1), temperature broadcast against …; event shape (n,). Samples have the dtype
    of the parameters; they are computed in float32 or wider.

    Args:
        temperature: τ, finite and greater than 0; a number or a tensor of the batch shape.
        keep_logits: Conditional keep logits, (…, n).
        length_logits: Unnormalised log probabilities of the lengths, (…, n + 1); give one of the two.
        validate_args: As in `torch.distributions`.

    Note:
        The paper's density is off by one index: n free values have n + 1 increments. See docs/errata.md.

    >>> q = Downhill(0.5, torch.zeros(3))
    >>> z = q.rsample((2,))
    >>> z.shape, bool((z[:, 1:] <= z[:, :-1]).all())
    (torch.Size([2, 3]), True)
    >>> q.rsample((100,), hard=True).unique().tolist()
    [0.0, 1.0]
    """

    arg_constraints: ClassVar = {
        "temperature": positive_finite,
        "keep_logits": constraints.real_vector,
        "length_logits": constraints.real_vector,
    }
    support = descending
    has_rsample = True
    carried = ("_dtype",)
    _last: tuple[weakref.ref[Tensor], int, Tensor] | None = None  # the latest relaxed sample, and its log increments

    def __init__(
        self,
        temperature: float | Tensor,
        keep_logits: Tensor | None = None,
        *,
        length_logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, logits = one_of("Downhill", keep_logits=keep_logits, length_logits=length_logits)
        n = floating_vector("Downhill", name, logits).size(-1) - (name == "length_logits")
        if n < 0:
            raise ValueError("Downhill: length_logits must hold at least the length 0; got none")
        try:
            self.temperature = torch.as_tensor(
                temperature, dtype=to_float32(logits[..., :0]).dtype, device=logits.device
            )
        except (TypeError, ValueError):
            kind = type(temperature).__name__
            raise ValueError(f"Downhill: temperature must be a number or a tensor; got a {kind}") from None
        try:
            batch_shape = torch.broadcast_shapes(logits.shape[:-1], self.temperature.shape)
        except RuntimeError:
            raise ValueError(
                f"Downhill: temperature of shape {tuple(self.temperature.shape)} does not broadcast against the "
                f"batch shape {tuple(logits.shape[:-1])}"
            ) from None
        self._dtype = logits.dtype
        setattr(self, name, logits.expand(batch_shape + logits.shape[-1:]))
        super().__init__(batch_shape, torch.Size((n,)), validate_args=False)
        validate(self, validate_args)
        if self._validate_args and bool((self.temperature < COLD).any()):
            warnings.warn(
                f"Downhill: temperature {self.temperature.min().item():.2g} is below {COLD}; most gradients of "
                "relaxed samples vanish there. Anneal to a higher one, or differentiate the survival instead.",
                stacklevel=2,
            )

    def released(self) -> "Downhill":
        r"""The Downhill that the authors' released code samples from, $q'_j ∝ e^{q_j}$.

        It passes probabilities where log-probabilities belong, so that lengths are drawn nearly uniformly whatever has
        been learned: no length has more than e times the probability of another.

        >>> Downhill(0.5, torch.tensor([9.0, 9.0, 9.0])).released().length_log_probs.exp()
        tensor([0.1749, 0.1749, 0.1749, 0.4752])
        """
        return Downhill(self.temperature, length_logits=self.length_log_probs.exp(), validate_args=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    @lazy_property
    def keep_logits(self) -> Tensor:
        """Conditional keep logits, (…, n)."""
        return keep_logits_from_lengths(self.length_logits)

    @lazy_property
    def length_logits(self) -> Tensor:
        """Log probabilities of the lengths up to a constant, (…, n + 1)."""
        return self.length_log_probs

    @lazy_property
    def length_log_probs(self) -> Tensor:
        """Log probability of each hard length 0 … n, (…, n + 1)."""
        if "keep_logits" in self.__dict__:
            return length_log_probs(self.keep_logits)
        return to_float32(self.length_logits).log_softmax(-1)

    @property
    def chain(self) -> BernoulliChain:
        """The Bernoulli chain that this distribution becomes at zero temperature."""
        return BernoulliChain(self.keep_logits, validate_args=False)

    def rsample(self, sample_shape: _size = (), hard: bool = False) -> Tensor:
        """Draw reparameterised samples, sample_shape + (…, n).

        Args:
            sample_shape: What stands before the batch shape.
            hard: Straight-through: exact ordered masks forward, the gradient of the relaxed sample backward.
        """
        shape = torch.Size(sample_shape) + self.batch_shape + self.length_log_probs.shape[-1:]
        scores = self.length_log_probs - log_exponential_noise(shape, self.length_log_probs)
        return self._descend(scores, scores.argmax(-1) if hard else None)

    def rsample_given(self, length: Tensor, hard: bool = False) -> Tensor:
        r"""Draw relaxed samples whose hard length is given, so that several layers can share one source of noise.

        The largest perturbed score is $Z \sim \mathrm{Gumbel}(0)$ and stands at `length`; the others are Gumbel noise
        below it, $g_k = -\log(q_k e^{-Z} + E_k)$ with $E_k \sim \mathrm{Exp}(1)$. If the lengths have law q, the
        samples have the law of `rsample`.

        Args:
            length: Hard lengths in 0 … n, a shape that the batch shape ends, (…).
            hard: As in `rsample`.

        Returns:
            (…, n).
        """
        n = self.event_shape[0]
        if self._validate_args and not bool(((length >= 0) & (length <= n)).all()):
            raise ValueError(f"Downhill: length must lie in 0 … {n}; got {length.min().item()} … {length.max().item()}")
        log_probs = self.length_log_probs.expand((*length.shape, -1))
        with torch.no_grad():
            top = -log_exponential_noise(torch.Size((*length.shape, 1)), log_probs)
            noise = -torch.logaddexp(log_probs - top, log_exponential_noise(log_probs.shape, log_probs))
            index = length.unsqueeze(-1)
            noise.scatter_(-1, index, top - log_probs.gather(-1, index))
        return self._descend(log_probs + noise, length if hard else None)

    def sample(self, sample_shape: _size = ()) -> Tensor:
        """Draw relaxed samples without gradient, sample_shape + (…, n)."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def _descend(self, scores: Tensor, length: Tensor | None) -> Tensor:
        """Turn perturbed scores (…, n + 1) into relaxed masks, or into hard ones if their lengths are given."""
        scores = scores / self.temperature.unsqueeze(-1)
        if length is not None:
            soft = suffix_sum(scores.softmax(-1)[..., 1:])
            return straight_through(length_mask(length, self.event_shape[0], soft.dtype), soft).to(self._dtype)
        log_increments = scores.log_softmax(-1)
        z = suffix_sum(log_increments.exp()[..., 1:]).clamp(max=1.0).to(self._dtype)
        self._last = (weakref.ref(z), z._version, log_increments)
        return z

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log density of relaxed masks, (…, n) to (…).

        $$\log f(z) = \log Γ(n + 1) + n \log τ - (n + 1) \log \sum_j q_j c_j^{-τ}
          + \sum_j \left(\log q_j - (τ + 1) \log c_j\right)$$

        with $c_0 = 1 - z_1$, $c_j = z_j - z_{j+1}$, $z_{n+1} = 0$; the map from c to z has a unit Jacobian.

        Note:
            Differences of z lose the small increments: in float32 most samples at n = 30, τ = 0.2 have one that
            rounds to zero. The latest sample of this object carries its own log c and is exact; for any other value
            work in float64.
        """
        if self._validate_args:
            self._validate_sample(value)
        n = self.event_shape[0]
        log_probs = self.length_log_probs
        log_increments = self._log_increments(value)
        temperature = self.temperature.unsqueeze(-1)
        total = (log_probs - temperature * log_increments).logsumexp(-1)
        terms = (log_probs - (temperature + 1) * log_increments).sum(-1)
        return math.lgamma(n + 1) + n * self.temperature.log() - (n + 1) * total + terms

    def _log_increments(self, value: Tensor) -> Tensor:
        """Log of the steps of a descent, (…, n) to (…, n + 1)."""
        if self._last is not None and self._last[0]() is value and self._last[1] == value._version:
            return self._last[2]
        z = to_float32(value)
        ones, zeros = z.new_ones((*z.shape[:-1], 1)), z.new_zeros((*z.shape[:-1], 1))
        return torch.diff(torch.cat((ones, z, zeros), -1)).neg().log()
