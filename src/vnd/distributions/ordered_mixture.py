"""A mixture of Gaussian codes, each component with lengths of its own: what trained codes are like, all together."""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size

from vnd.distributions.constraints import floating_vector, validate
from vnd.functional import length_mask, to_float32


class OrderedMixture(Distribution):
    r"""Gaussian components over all dimensions of an ordered code, of which a leading part is kept.

    $$p(h_{\le b}, b) = \sum_k w_k\, r_k(b)\, \mathcal N\bigl(h_{\le b};\ m_k, L_k L_k^\top\bigr), \qquad h_{> b} = 0$$

    The leading block of a triangular $L_k$ is that of the leading dimensions: their density takes b rows of one solve.

    Shapes: K components of D dimensions, of which `base` are always kept, D − n for n + 1
    possible lengths; the event shape is (D,), there is no batch shape.

    Args:
        weight_logits: Unnormalised log w, (K,).
        loc: m, (K, D).
        scale_tril: L, (K, D, D), lower triangular with a positive diagonal.
        length_logits: Unnormalised log r of the lengths base … D, (K, n + 1) with n ≤ D.
        validate_args: As in `torch.distributions`.

    >>> code = OrderedMixture(torch.zeros(2), torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3), torch.zeros(2, 3))
    >>> code.base, code.sample((4,)).shape
    (1, torch.Size([4, 3]))
    >>> code.log_prob(torch.tensor([0.0, 0.0, 0.0])).exp()  # of length 1: 1/3 of a normal density
    tensor(0.1330)
    """

    arg_constraints: ClassVar = {
        "weight_logits": constraints.real_vector,
        "loc": constraints.real_vector,
        "scale_tril": constraints.lower_cholesky,
        "length_logits": constraints.real_vector,
    }
    support = constraints.real_vector

    def __init__(
        self,
        weight_logits: Tensor,
        loc: Tensor,
        scale_tril: Tensor,
        length_logits: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        given = {"weight_logits": weight_logits, "loc": loc, "scale_tril": scale_tril, "length_logits": length_logits}
        for name, value in given.items():
            floating_vector("OrderedMixture", name, value)
        count, size = loc.shape if loc.ndim == 2 else (0, 0)
        lengths = length_logits.shape[-1]
        fits = weight_logits.shape == (count,) and scale_tril.shape == (count, size, size)
        if not fits or length_logits.shape != (count, lengths) or not 1 <= lengths <= size + 1:
            shapes = ", ".join(str(tuple(value.shape)) for value in given.values())
            raise ValueError(
                f"OrderedMixture: shapes must be (K,), (K, D), (K, D, D), (K, n + 1) with n ≤ D; got {shapes}"
            )
        self.weight_logits, self.loc, self.scale_tril, self.length_logits = given.values()
        self.base = size - lengths + 1
        super().__init__(torch.Size(), torch.Size((size,)), validate_args=False)
        validate(self, validate_args)

    @property
    def survival(self) -> Tensor:
        """Probability that each dimension is kept, 1 for the base ones, (D,)."""
        probs = self.weight_logits.softmax(0) @ self.length_logits.softmax(1)
        nested = probs.flip(0).cumsum(0).flip(0)[1:]
        return torch.cat((nested.new_ones(self.base), nested))

    def sample(self, sample_shape: _size = (), whole: bool = False) -> Tensor:
        """Draw codes, sample_shape + (D,), with zeros beyond their lengths, or `whole` ones of all dimensions."""
        shape = torch.Size(sample_shape)
        with torch.no_grad():
            chosen = torch.multinomial(self.weight_logits.softmax(0), max(1, shape.numel()), replacement=True)
            noise = torch.randn(len(chosen), self.loc.size(1), dtype=self.loc.dtype, device=self.loc.device)
            codes = self.loc[chosen] + (self.scale_tril[chosen] @ noise[..., None]).squeeze(-1)
            if not whole:
                lengths = self.base + torch.multinomial(self.length_logits.softmax(1)[chosen], 1).squeeze(1)
                codes = codes * length_mask(lengths, codes.size(1), codes.dtype)
            return codes[: shape.numel()].view(*shape, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of codes (…, D), (…): of counting lengths times Lebesgue measure, as of an `OrderedNormal`."""
        if self._validate_args:
            self._validate_sample(value)
        value, loc, tril = (to_float32(x) for x in (value, self.loc, self.scale_tril))
        size = loc.size(1)
        position = torch.arange(1, size + 1, device=value.device)
        length = (position * (value != 0)).amax(-1).clamp(min=self.base)
        apart = (value[..., None, :] - loc)[..., None]  # (…, K, D, 1)
        whitened = torch.linalg.solve_triangular(tril.expand(*apart.shape[:-1], size), apart, upper=False).squeeze(-1)
        each = -0.5 * whitened.square() - tril.diagonal(dim1=-2, dim2=-1).log() - 0.5 * math.log(2 * math.pi)
        normal = torch.where((position <= length[..., None])[..., None, :], each, 0.0).sum(-1)  # (…, K)
        of_length = to_float32(self.length_logits).log_softmax(1).T[length - self.base]
        return (to_float32(self.weight_logits).log_softmax(0) + of_length + normal).logsumexp(-1)
