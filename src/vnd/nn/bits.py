r"""Ordered bits of weights: one network, of which any number of leading bits can be kept.

A weight within ±c is a sum of halving steps whose signs are its bits, and its first b bits are the weight, coarser:

$$q_b(w) = c \sum_{i=1}^{b} 2^{-i} s_i, \qquad s_i \in \{-1, 1\}, \qquad |w - q_b(w)| \le 2^{-b} c.$$

It is the middle of that of $2^b$ equal parts of [−c, c] in which w lies, so $s_i$ is the same for all b ≥ i. An
ordering unit over the bits of a layer, $q(w) = c \sum_i z_i 2^{-i} s_i$, makes them nested: training draws how many
are kept, and each number of bits gives a network that was trained to work. Each output channel has a scale c, a learned
multiple of the root mean square of its weights: c starts at the largest of them, where none is clipped, and goes along
with them. (Learned by itself it lagged behind weights that grow, most of which it clipped.)

Paper: Sec. 1 names quantization bits as what nested dropout can order; they are the fine grain of FN³ (Cui et al.,
IJCAI 2020), where a quantized value is a sum of weighted bits and the number kept is drawn from a fixed law.

Note: Variational here, which neither paper has: the number of bits has a posterior, with the KL of its chain, $Φ_1$. A
    bit is a fair coin a priori and known a posteriori, so one that is kept costs $\log 2$ nats, one that is dropped
    nothing: a layer of N weights adds $N \log 2 \sum_i P(z_i = 1)$, the expected length of its code. Against the
    likelihood of few examples that price is high; weigh the KL, or keep the lengths as they start.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vnd.functional import straight_through, to_float32

MOST_BITS = 16  # at which sums of steps are exact in float32
BIT_KL = math.log(2)  # nats


def quantize(weight: Tensor, log_scale: Tensor, mask: Tensor) -> Tensor:
    r"""Weights of the bits that a mask keeps, $c \sum_i z_i 2^{-i} s_i$, of the shape and dtype of `weight`.

    The gradient is straight through: $∂q/∂w$ is 1 where |w| ≤ c and 0 beyond, as if nothing were rounded, and so
    $∂q/∂c = q/c - \operatorname{clamp}(w/c, -1, 1)$ within, $q/c$ beyond (the learned step size of Esser et al., 2020).
    That by $z_i$ is exact, $2^{-i} c\, s_i$.

    Args:
        weight: Weights of any shape.
        log_scale: log c, which broadcasts against `weight`.
        mask: z, (bits,): which bits are kept, in falling order; relaxed masks weigh them.

    >>> quantize(torch.tensor([0.3, -0.8, 2.0]), torch.tensor(0.0), torch.tensor([1.0, 1.0, 0.0]))
    tensor([ 0.2500, -0.7500,  0.7500])
    """
    wide, scale, bits = to_float32(weight), to_float32(log_scale).exp(), mask.size(-1)
    ratio = (wide / scale).clamp(-1, 1)
    half = 2.0 ** (bits - 1)
    code = (ratio.detach() * half).floor().clamp(max=half - 1) + half  # the bits as one number
    steps = 2.0 ** -torch.arange(1, bits + 1, dtype=code.dtype, device=code.device).view(-1, *[1] * code.dim())
    signs = 2 * (code * (0.5**bits / steps)).floor().remainder(2) - 1  # (bits, …)
    level = (mask.to(code.dtype).view(steps.shape) * steps * signs).sum(0)
    return (scale * straight_through(level, ratio)).to(weight.dtype)


@torch.no_grad()
def log_sizes(weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Logs of the root mean square and of the largest weight of each channel along a dimension, (channels,) each.

    >>> log_rms, log_largest = log_sizes(torch.tensor([[1.0, -7.0], [0.5, 0.5]]), 0)
    >>> log_rms.exp(), log_largest.exp()
    (tensor([5.0000, 0.5000]), tensor([7.0000, 0.5000]))
    """
    rows = to_float32(weight).abs().movedim(dim, 0).flatten(1).clamp(min=1e-8)  # of a channel of zeros, too
    return 0.5 * rows.square().mean(1).log(), rows.amax(1).log()
