"""The checks of each sampler: what its samples must look like, given the parameters alone."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from examples import ORDERINGS, Ordering
from laws import reference
from laws.statistics import (
    ENERGY_SAMPLES,
    FALSE_ALARM,
    Sampler,
    check_known_marginals,
    check_lengths,
    check_same_joint,
    check_same_marginals,
    increments,
    record,
    replay,
    two_sample_size,
)
from vnd.distributions import Downhill, OrderedNormal

LEVEL = FALSE_ALARM / len(ORDERINGS)  # for all the parameter sets of a test together
LOGISTIC_GRID = torch.linspace(-7.0, 7.0, 257, dtype=torch.float64)
CODE_GRID = torch.linspace(-4.0, 4.0, 256, dtype=torch.float64)  # an even number of points: 0 is none of them


def log_probs(ordering: Ordering) -> Tensor:
    return torch.from_numpy(reference.length_probs(np.array(ordering.keep_logits))).log()


def check_masks(sampler: Sampler, ordering: Ordering) -> None:
    """Hard masks: ordered, made of zeros and ones, of lengths that follow q, which settles their joint law."""

    def ordered(size: int) -> Tensor:
        z = sampler(size)
        assert ((z == 0) | (z == 1)).all(), "masks: not made of zeros and ones"
        assert (z[:, 1:] <= z[:, :-1]).all(), "masks: not ordered"
        return z

    check_lengths(ordered, log_probs(ordering), LEVEL)


def check_descents(sampler: Sampler, ordering: Ordering) -> None:
    """Relaxed masks: the length, each coordinate and all coordinates together, an even share of the level each."""
    recorded = record(sampler, two_sample_size(LEVEL / 3 / ordering.n))
    for check in (check_descent_lengths, check_descent_marginals, check_descent_joint):
        check(replay(recorded), ordering)


def check_descent_lengths(sampler: Sampler, ordering: Ordering) -> None:
    check_lengths(sampler, log_probs(ordering), LEVEL / 3)


def check_descent_marginals(sampler: Sampler, ordering: Ordering) -> None:
    marginals = reference.downhill_marginals(ordering, two_sample_size(LEVEL / 3 / ordering.n))
    check_same_marginals(sampler, marginals, reference.THRESHOLDS, LEVEL / 3)


def check_descent_joint(sampler: Sampler, ordering: Ordering) -> None:
    check_same_joint(sampler, reference.downhill_vectors(ordering), LEVEL / 3)


def warm(ordering: Ordering) -> Ordering:
    """The same at a temperature at which no increment is lost to the rounding of float64."""
    return replace(ordering, temperature=max(2.0, ordering.temperature))


def check_log_ratios(sampler: Sampler, ordering: Ordering) -> None:
    r"""Closed form: $τ (\log c_i - \log c_0) - (\log q_i - \log q_0)$ is Logistic(0, 1)."""
    log_q = log_probs(ordering)

    def logistic(size: int) -> Tensor:
        log_c = increments(sampler(size).double()).log()
        ratio = ordering.temperature * (log_c[:, 1:] - log_c[:, :1]) - (log_q[1:] - log_q[0])
        return ratio.clamp(-1e9, 1e9)  # one increment may round to zero, both may not: that would be NaN

    cdf = torch.sigmoid(LOGISTIC_GRID).expand(ordering.n, -1)
    check_known_marginals(logistic, LOGISTIC_GRID, cdf, LEVEL)


def check_codes(sampler: Sampler, ordering: Ordering, base: int = 1) -> None:
    """Ordered codes: the length, each dimension's mixture of a spike and a Gaussian in closed form, and the joint."""

    def gates(size: int) -> Tensor:
        code = sampler(size)
        assert (code[:, :base] != 0).all(), "codes: a base dimension is zero"
        return (code[:, base:] != 0).float()

    check_masks(gates, ordering)

    position = torch.arange(ordering.n + base, dtype=torch.float64)
    loc, scale = torch.cos(position), 0.5 + torch.sin(position).square()
    kept = torch.cat((torch.ones(base), torch.from_numpy(1 - np.cumsum(log_probs(ordering).exp().numpy())[:-1])))
    normal = torch.special.ndtr((CODE_GRID - loc.unsqueeze(-1)) / scale.unsqueeze(-1))
    cdf = kept.unsqueeze(-1) * normal + (1 - kept).unsqueeze(-1) * (CODE_GRID >= 0)
    check_known_marginals(sampler, CODE_GRID, cdf, LEVEL)

    rng = np.random.default_rng(3)
    vectors = torch.from_numpy(reference.codes(ordering, base, ENERGY_SAMPLES, rng))
    check_same_joint(lambda size: _squash(sampler(size)), _squash(vectors), LEVEL)


def _squash(code: Tensor) -> Tensor:
    """Into [0, 1], where the energy test is bounded."""
    return 0.5 + 0.5 * torch.tanh(code)


def relaxed(ordering: Ordering, dtype: torch.dtype = torch.float32) -> Sampler:
    distribution = ordering.downhill(dtype)
    return lambda size: distribution.rsample((size,))


def given(distribution: Downhill, ordering: Ordering, hard: bool = False) -> Sampler:
    """`rsample_given`, fed with lengths of law q that the reference drew."""
    rng = np.random.default_rng(4)
    logits = np.array(ordering.keep_logits)
    return lambda size: distribution.rsample_given(torch.from_numpy(reference.lengths(logits, size, rng)), hard=hard)


def coded(distribution: OrderedNormal) -> Sampler:
    return lambda size: distribution.rsample((size,), hard=True)


def closed_form_sets() -> list[Ordering]:
    """The sets whose rarest length is not so rare that its increments round away."""
    return [warm(s) for s in ORDERINGS if float(log_probs(s).max() - log_probs(s).min()) < 40 * math.log(2)]
