"""Chains that share one uniform number: how much their lengths tell of each other."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from vnd.distributions.bernoulli_chain import BernoulliChain
from vnd.functional import to_float32


def coupled_entropy(chains: Iterable[BernoulliChain]) -> Tensor:
    r"""Entropy of the joint lengths of chains coupled by quantile, in nats.

    With one $u \sim \mathrm{Uniform}(0, 1)$ for all chains, each keeps its unit i exactly when $u < P(z_i = 1)$. The
    joint lengths change only where u crosses one of the survivals, so their probabilities are the gaps between all
    survivals in order, with 1 and 0 at the ends:

    $$H = -\sum_k g_k \log g_k, \qquad g_k = e^{s_k} - e^{s_{k+1}}, \quad 0 = s_0 ≥ s_1 ≥ … ≥ s_{K+1} = -∞$$

    Args:
        chains: Unbatched chains, of any lengths.

    >>> import vnd
    >>> chains = [vnd.BernoulliChain.uniform(1), vnd.BernoulliChain.uniform(1)]  # both keep their unit, or none does
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
