"""Goodness of fit with bounded errors: no test here cries wolf, or sleeps, more than once in a million.

Each check draws from a sampler, a function from a number of samples to a tensor (samples, units), and raises an
AssertionError if the law is not the one that was claimed. `level` is the probability of a false alarm; divide
`FALSE_ALARM` by the number of comparisons (Bonferroni).
"""

import math
from collections.abc import Callable, Iterator

import torch
from scipy import stats
from torch import Tensor

Sampler = Callable[[int], Tensor]

FALSE_ALARM = MISS = 1e-6
GAP = 0.01  # the distance between two distribution functions that must not be missed
ENERGY_SAMPLES = 6000


def one_sample_size(level: float) -> int:
    r"""Samples that a KS test against a known law needs to see a gap of `GAP` with probability 1 − `MISS`.

    By Dvoretzky–Kiefer–Wolfowitz–Massart $P(D_N > ε) ≤ 2 e^{-2Nε^2}$ under the law, so the threshold is
    $ε = \sqrt{\log(2 / \text{level}) / 2N}$. Where the gap is Δ, the empirical value must fall Δ − ε short of its mean
    to be missed: by Hoeffding with probability at most $e^{-2N(Δ - ε)^2}$. Both are 1e-6 at N = 2.83e5.
    """
    return math.ceil(0.5 * ((math.sqrt(math.log(2 / level)) + math.sqrt(math.log(1 / MISS))) / GAP) ** 2)


def two_sample_size(level: float) -> int:
    r"""Samples on each side that a two-sample KS test needs: twice those of `one_sample_size`.

    $P(D_{N,N} > ε) ≤ 2 e^{-Nε^2}$ for N ≥ 458 (Wei and Dudley, 2012), and Hoeffding over both samples.
    """
    return 2 * one_sample_size(level)


def chi_square_size(cells: int, level: float) -> int:
    r"""Samples that a chi-square test needs to see a gap of `GAP` with probability 1 − `MISS`.

    A gap Δ between two distribution functions means $\sum_j |δ_j| ≥ 2Δ$ for the cells, so that the non-centrality is
    $N \sum_j δ_j^2 / p_j ≥ 4 N Δ^2$ by Cauchy and Schwarz.
    """
    threshold, size = stats.chi2.isf(level, cells - 1), 100_000
    while stats.ncx2.cdf(threshold, cells - 1, 4 * size * GAP**2) > MISS:
        size += 50_000
    return size


def check_lengths(sampler: Sampler, log_probs: Tensor, level: float = FALSE_ALARM) -> None:
    """Chi-square of the lengths, the largest step of each descent, against their probabilities (n + 1,).

    Cells that expect fewer than 100 samples are pooled, so that the far tail of the chi-square can be trusted.
    """
    probs = log_probs.double().exp()
    size = chi_square_size(probs.numel(), level)
    counts = sum(torch.bincount(lengths_of(z), minlength=probs.numel()) for z in _draw(sampler, size)).double()
    assert counts[probs == 0].sum() == 0, "lengths: one of probability zero was drawn"
    expected = size * probs
    small = expected < 100
    counts, expected = (torch.cat((x[~small], x[small].sum().view(1))) for x in (counts, expected))
    if expected[-1] < 100:  # the pool itself is too small: into the largest cell
        largest = int(expected.argmax())
        for x in (counts, expected):
            x[largest] += x[-1].item()
        counts, expected = counts[:-1], expected[:-1]
    if expected.numel() == 1:
        return
    statistic = float(((counts - expected).square() / expected).sum())
    threshold = stats.chi2.isf(level, expected.numel() - 1)
    assert statistic <= threshold, f"lengths: chi-square {statistic:.4g} > {threshold:.4g}"


def check_known_marginals(
    sampler: Sampler, thresholds: Tensor, cdf: Tensor, level: float = FALSE_ALARM, size: int | None = None
) -> None:
    """KS on each column against the values (columns, thresholds) of its distribution function at the thresholds."""
    level = level / cdf.size(0)
    size = one_sample_size(level) if size is None else size
    gap = float((distribution_function(sampler, thresholds, size) - cdf).abs().max())
    threshold = math.sqrt(math.log(2 / level) / (2 * size))
    assert gap <= threshold, f"marginals: KS {gap:.4g} > {threshold:.4g}"


def check_same_marginals(sampler: Sampler, reference: Tensor, thresholds: Tensor, level: float = FALSE_ALARM) -> None:
    """KS on each column against a reference's empirical distribution function (columns, thresholds).

    The reference must come of `two_sample_size(level / columns)` samples.
    """
    level = level / reference.size(0)
    size = two_sample_size(level)
    gap = float((distribution_function(sampler, thresholds, size) - reference).abs().max())
    threshold = math.sqrt(math.log(2 / level) / size)
    assert gap <= threshold, f"marginals: two-sample KS {gap:.4g} > {threshold:.4g}"


def check_same_joint(sampler: Sampler, reference: Tensor, level: float = FALSE_ALARM) -> None:
    r"""Energy distance between the sampler's vectors in [0, 1]ⁿ and as many of a reference.

    Divided by √n the vectors lie in a ball of radius ½, so the distance kernel $½(|x| + |y| - |x - y|)$ around its
    centre is bounded and the energy is twice $\mathrm{MMD}_b^2$. The bound is that of Gretton et al. (2012, Thm. 7)
    with the constants of this kernel: one vector moves $\mathrm{MMD}_b$ by at most 1/m, so by McDiarmid it exceeds its
    mean by ε with probability at most $e^{-mε^2}$; under equal laws the mean is at most $\sqrt{E|x - y| / m}$, with
    $E|x - y| ≤ \sqrt{½}$ in that ball. An MMD of `detectable_mmd` is missed once in a million (E MMD_b ≥ MMD).
    """
    size = reference.size(0)
    x, y = (z.double() / math.sqrt(z.size(-1)) for z in (sampler(size), reference))
    assert x.isfinite().all(), "joint: a sample is not finite"
    mmd = math.sqrt(max(0.0, mean_distance(x, y) - 0.5 * (mean_distance(x, x) + mean_distance(y, y))))
    threshold = _mmd_threshold(size, level)
    assert mmd <= threshold, f"joint: MMD {mmd:.4g} > {threshold:.4g}"


def detectable_mmd(size: int, level: float = FALSE_ALARM) -> float:
    """The MMD that `check_same_joint` misses with probability at most `MISS`."""
    return _mmd_threshold(size, level) + math.sqrt(math.log(1 / MISS) / size)


def _mmd_threshold(size: int, level: float) -> float:
    return math.sqrt(math.sqrt(0.5) / size) + math.sqrt(math.log(1 / level) / size)


def mean_distance(x: Tensor, y: Tensor) -> float:
    return sum(float(torch.cdist(part, y).sum()) for part in x.split(500)) / (x.size(0) * y.size(0))


def distribution_function(sampler: Sampler, thresholds: Tensor, size: int) -> Tensor:
    """The share of samples at or below each threshold, (columns, thresholds); a KS on thresholds errs on no side.

    Thresholds well inside the range make the comparison blind to how a value beside 0 or 1 was rounded.
    """
    total: Tensor | None = None
    bins = thresholds.numel() + 1
    for z in _draw(sampler, size):
        cell = torch.bucketize(z.double(), thresholds)
        cell += bins * torch.arange(z.size(-1))
        counts = torch.bincount(cell.flatten(), minlength=bins * z.size(-1)).view(-1, bins)
        total = counts if total is None else total + counts
    assert total is not None
    return total[:, :-1].cumsum(-1).double() / size


def increments(z: Tensor) -> Tensor:
    """Steps of descents, (…, n) to (…, n + 1)."""
    ends = z.new_ones((*z.shape[:-1], 1))
    return torch.diff(torch.cat((ends, z, 0 * ends), -1)).neg()


def lengths_of(z: Tensor) -> Tensor:
    """The length of hard masks, and the one that a relaxed descent is nearest to."""
    return increments(z).argmax(-1)


def record(sampler: Sampler, size: int) -> Tensor:
    return torch.cat(list(_draw(sampler, size)))


def replay(recorded: Tensor) -> Sampler:
    """A sampler that hands out recorded samples in turn, so that several checks can share one drawing."""
    position = 0

    def sampler(size: int) -> Tensor:
        nonlocal position
        position += size
        assert position <= recorded.size(0), "more samples were asked for than recorded"
        return recorded[position - size : position]

    return sampler


def _draw(sampler: Sampler, size: int, part: int = 100_000) -> Iterator[Tensor]:
    for start in range(0, size, part):
        z = sampler(min(part, size - start)).detach().cpu()
        assert z.isfinite().all(), "a sample is not finite"
        yield z
