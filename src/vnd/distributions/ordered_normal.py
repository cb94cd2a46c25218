"""A Gaussian code whose dimensions are gated by a Downhill: the latent of VND-AE and VND-PUNet."""

import math
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn import functional as F
from torch.types import _size

from vnd.distributions.constraints import Expandable, floating_vector, positive_finite, validate
from vnd.distributions.downhill import Downhill
from vnd.functional import length_mask, pick, to_float32


class OrderedNormal(Expandable):
    r"""Gaussian dimensions in a fixed order, of which a leading part is kept and the rest is zero.

    $$z \sim \mathrm{Downhill}(τ, m), \qquad h_i = z_i\, x_i, \quad x_i \sim \mathcal N(μ_i, σ_i^2)$$

    The first `base` dimensions are always kept; `base` is the number of dimensions less the number of keep logits.

    Paper: Sec. 4.1 (VND-AE) and 4.2 (VND-PUNet).

    Shapes: `loc` and `scale` (…, D), `keep_logits` (…, n) with n ≤ D; the event shape is (D,).

    Args:
        loc: Means μ, (…, D).
        scale: Standard deviations σ, (…, D).
        keep_logits: Conditional keep logits of the last n dimensions, (…, n).
        temperature: τ of the gate.
        validate_args: As in `torch.distributions`.

    Note:
        The paper gives dropped dimensions a Gaussian of large variance σ∞. Here they are exact zeros, a spike shared
        by prior and posterior, which costs no KL. Moments, `log_prob` and KL are those of hard masks.

    >>> code = OrderedNormal(torch.zeros(4), torch.ones(4), torch.zeros(3), temperature=0.5)
    >>> code.base, code.rsample((2,), hard=True).shape
    (1, torch.Size([2, 4]))
    >>> code.expected_length
    tensor(1.8750)
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "scale": constraints.independent(positive_finite, 1),
        "keep_logits": constraints.real_vector,
        "temperature": positive_finite,
    }
    support = constraints.real_vector
    has_rsample = True
    carried = ("base",)

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        keep_logits: Tensor,
        temperature: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        for name, value in (("loc", loc), ("scale", scale), ("keep_logits", keep_logits)):
            floating_vector("OrderedNormal", name, value)
        if loc.size(-1) != scale.size(-1):
            raise ValueError(
                f"OrderedNormal: loc and scale must have the same number of dimensions; "
                f"got {loc.size(-1)} and {scale.size(-1)}"
            )
        self.base = loc.size(-1) - keep_logits.size(-1)
        if self.base < 0:
            raise ValueError(
                f"OrderedNormal: keep_logits must have at most as many entries as loc; "
                f"got {keep_logits.size(-1)} for {loc.size(-1)} dimensions"
            )
        try:
            batch_shape = torch.broadcast_shapes(loc.shape[:-1], scale.shape[:-1], keep_logits.shape[:-1])
        except RuntimeError:
            shapes = ", ".join(str(tuple(x.shape)) for x in (loc, scale, keep_logits))
            raise ValueError(f"OrderedNormal: loc, scale and keep_logits must broadcast; got shapes {shapes}") from None
        event_shape = loc.shape[-1:]
        logits = keep_logits.expand(batch_shape + keep_logits.shape[-1:])
        self.gate = Downhill(temperature, logits, validate_args=validate_args)
        self.loc, self.scale = (x.expand(self.gate.batch_shape + event_shape) for x in (loc, scale))
        super().__init__(self.gate.batch_shape, event_shape, validate_args=False)
        validate(self, validate_args)

    def expand(self, batch_shape: _size, _instance: Self | None = None) -> Self:
        """Return the same code with its batch shape expanded."""
        new = super().expand(batch_shape, _instance)
        new.gate = self.gate.expand(batch_shape)
        return new

    def released(self) -> "OrderedNormal":
        """The same dimensions, their lengths as the authors' released code draws them: see `Downhill.released`."""
        logits = self.gate.released().keep_logits
        return OrderedNormal(self.loc, self.scale, logits, self.temperature, validate_args=False)

    @property
    def keep_logits(self) -> Tensor:
        """Conditional keep logits of the nested dimensions, (…, n)."""
        return self.gate.keep_logits

    @property
    def temperature(self) -> Tensor:
        """Temperature of the gate."""
        return self.gate.temperature

    @property
    def survival(self) -> Tensor:
        """Probability that each dimension is kept, 1 for the base ones, (…, D)."""
        nested = self.gate.chain.log_survival.exp()
        return torch.cat((nested.new_ones((*nested.shape[:-1], self.base)), nested), -1)

    @property
    def expected_length(self) -> Tensor:
        """Expected number of kept dimensions, the base ones included, (…)."""
        return self.survival.sum(-1)

    @property
    def mean(self) -> Tensor:
        """Mean of the code with hard masks, (…, D)."""
        return self.survival * self.loc

    @property
    def variance(self) -> Tensor:
        """Variance of each dimension with hard masks, (…, D)."""
        kept = self.survival
        return kept * (self.scale.square() + (1 - kept) * self.loc.square())

    @property
    def mode(self) -> Tensor:
        r"""The code of the greatest density by `log_prob`, (…, D): means, as many as make it greatest.

        $$\hat b = \arg\max_b\, \log q_b - \sum_{i \le b} \left(\log σ_i + \tfrac12 \log 2π\right)$$

        Note: Densities of codes of different lengths have different units. The likeliest length alone is that of
            `gate.chain.mode`.
        """
        peak = -to_float32(self.scale).log() - 0.5 * math.log(2 * math.pi)
        of_length = F.pad(peak.cumsum(-1), (1, 0))[..., self.base :]
        return self.mean_at(self.base + (self.gate.length_log_probs + of_length).argmax(-1))

    def mean_at(self, length: int | Tensor) -> Tensor:
        """Mean of the codes of a length, (…, D): zeros beyond it; a number, or a tensor as in `rsample`."""
        return self.loc * self._fixed_mask(length)

    def entropy(self) -> Tensor:
        r"""Entropy in nats, of counting lengths times Lebesgue measure as `log_prob`, (…).

        $$H = -\sum_b q_b \log q_b + \sum_i P(z_i = 1)\, \tfrac12 \log 2π e σ_i^2$$
        """
        each = to_float32(self.scale).log() + 0.5 * math.log(2 * math.pi * math.e)
        return self.gate.chain.entropy() + (self.survival * each).sum(-1)

    def rsample(
        self,
        sample_shape: _size = (),
        hard: bool = False,
        length: int | Tensor | None = None,
    ) -> Tensor:
        """Draw reparameterised codes, sample_shape + (…, D).

        Args:
            sample_shape: What stands before the batch shape.
            hard: Exact masks forward, the gradient of the relaxed ones backward; dropped dimensions are exact zeros.
            length: Keep this many leading dimensions, base included, instead of drawing the length; a number or a
                tensor that broadcasts against sample_shape + the batch shape.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        code = self.loc + self.scale * noise
        if length is None:
            mask = self.gate.rsample(sample_shape, hard=hard).to(code.dtype)
            return torch.cat((code[..., : self.base], code[..., self.base :] * mask), -1)
        return code * self._fixed_mask(length)

    def sample(self, sample_shape: _size = ()) -> Tensor:
        """Draw codes with hard masks, without gradient, sample_shape + (…, D)."""
        with torch.no_grad():
            return self.rsample(sample_shape, hard=True)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log density of codes with hard masks, (…, D) to (…).

        The length is that of the code without its trailing zeros; the density is taken with respect to counting
        lengths times Lebesgue measure on the kept dimensions,
        $\log q_{\text{length}} + \sum_{\text{kept}} \log \mathcal N(h_i; μ_i, σ_i^2)$.
        """
        if self._validate_args:
            self._validate_sample(value)
        size = self.event_shape[0]
        position = torch.arange(1, size + 1, device=value.device)
        length = (position * (value != 0)).amax(-1).clamp(min=self.base)
        loc, scale = to_float32(self.loc), to_float32(self.scale)
        normal = -0.5 * ((value - loc) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)
        kept = torch.where(position <= length.unsqueeze(-1), normal, 0.0).sum(-1)
        return kept + pick(self.gate.length_log_probs, length - self.base)

    def _fixed_mask(self, length: int | Tensor) -> Tensor:
        length = torch.as_tensor(length, device=self.loc.device)
        size = self.event_shape[0]
        whole = not length.is_floating_point()
        if self._validate_args and not (whole and bool(((length >= self.base) & (length <= size)).all())):
            raise ValueError(
                f"OrderedNormal: length must be whole and lie in {self.base} … {size} (base … dimensions); "
                f"got {length.tolist()}"
            )
        return length_mask(length, size, self.loc.dtype)
