"""The posterior of a single weight, a multiplicative Gaussian, and its improper log-uniform prior."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import lazy_property
from torch.types import _size

from vnd.distributions.constraints import Expandable, one_of, validate
from vnd.functional import LogUniformForm, log_uniform_kl, to_float32

SMALLEST = 1e-30  # of |θ| in log α: its logarithm is finite in float32


class MultiplicativeNormal(Expandable):
    r"""A weight with noise in proportion to its size.

    $$w = θ (1 + \sqrt α\, ε), \quad ε \sim \mathcal N(0, 1), \qquad q(w) = \mathcal N(θ, αθ^2)$$

    Paper: Sec. 3.4. With a free `log_variance` in the place of log α the same family is written
    $\mathcal N(θ, σ^2)$, the form that suits a Gaussian prior: αθ² vanishes with θ, and the KL would not be finite.

    Args:
        loc: Means θ, (…).
        log_alpha: Log noise-to-signal ratio log α; broadcasts against `loc`.
        log_variance: log σ² instead; give one of the two.
        validate_args: As in `torch.distributions`.

    >>> q = MultiplicativeNormal(torch.tensor(2.0), torch.tensor(0.0))
    >>> q.variance, q.log_variance
    (tensor(4.), tensor(1.3863))
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real,
        "log_alpha": constraints.real,
        "log_variance": constraints.real,
    }
    support = constraints.real
    has_rsample = True
    carried = ("_free_variance",)

    def __init__(
        self,
        loc: Tensor,
        log_alpha: Tensor | None = None,
        *,
        log_variance: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        kind, given = one_of("MultiplicativeNormal", log_alpha=log_alpha, log_variance=log_variance)
        for name, value in (("loc", loc), (kind, given)):
            if not value.is_floating_point():
                raise ValueError(f"MultiplicativeNormal: {name} must be a floating-point tensor; got {value.dtype}")
        noise: Tensor
        self.loc: Tensor
        try:
            self.loc, noise = torch.broadcast_tensors(loc, given)
        except RuntimeError:
            raise ValueError(
                f"MultiplicativeNormal: loc of shape {tuple(loc.shape)} and noise of shape {tuple(given.shape)} "
                "must broadcast"
            ) from None
        self._free_variance = kind == "log_variance"
        setattr(self, kind, noise)
        super().__init__(self.loc.shape, validate_args=False)
        validate(self, validate_args)

    @lazy_property
    def log_alpha(self) -> Tensor:
        """Log α = log σ² − log θ², (…); large and with no gradient to θ where θ is 0."""
        return to_float32(self.log_variance) - 2 * to_float32(self.loc).abs().clamp_min(SMALLEST).log()

    @lazy_property
    def log_variance(self) -> Tensor:
        """Log σ² = log α + log θ², (…)."""
        return to_float32(self.log_alpha) + 2 * to_float32(self.loc).abs().log()

    @property
    def mean(self) -> Tensor:
        """θ, (…)."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """αθ², or the free variance, (…)."""
        if self._free_variance:
            return self.log_variance.exp()
        return self.log_alpha.exp() * self.loc.square()

    def rsample(self, sample_shape: _size = ()) -> Tensor:
        """Draw reparameterised weights, sample_shape + (…)."""
        noise = torch.randn(
            self._extended_shape(torch.Size(sample_shape)), dtype=self.loc.dtype, device=self.loc.device
        )
        if self._free_variance:
            return self.loc + (0.5 * self.log_variance).exp() * noise
        return self.loc * (1 + (0.5 * self.log_alpha).exp() * noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, (…)."""
        if self._validate_args:
            self._validate_sample(value)
        log_variance = self.log_variance
        squared = (value - to_float32(self.loc)).square() * torch.exp(-log_variance)
        return -0.5 * (squared + log_variance + math.log(2 * math.pi))


class LogUniform(Distribution):
    r"""The improper prior $p(|w|) ∝ 1 / |w|$, which makes the KL a function of α alone.

    Paper: Sec. 3.4. It cannot be sampled and its objective is no evidence bound (Hron et al., 2018); `offset` is the
    constant that the KL is known up to, and the price of a weight: see `vnd.functional.log_uniform_kl`.

    Args:
        form: Which approximation of the KL: "vnd", "exact", "molchanov" or "kingma".
        offset: The constant of the KL; by default the one that makes its minimum 0.

    >>> LogUniform().log_prob(torch.tensor([1.0, 2.0]))
    tensor([-0.0000, -0.6931])
    """

    arg_constraints: ClassVar = {}
    support = constraints.real

    def __init__(self, form: LogUniformForm = "vnd", offset: float | None = None) -> None:
        log_uniform_kl(torch.zeros(0), form)  # refuses an unknown form
        self.form, self.offset = form, offset
        super().__init__(validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density up to a constant, −log|w|."""
        return -value.abs().log()
