"""Ordered masks, ordered codes and weight posteriors as `torch.distributions`."""

import vnd.distributions.kl  # noqa: F401  (registers the divergences)
from vnd.distributions.bernoulli_chain import BernoulliChain, coupled_entropy, total_correlation
from vnd.distributions.downhill import Downhill
from vnd.distributions.ordered_mixture import OrderedMixture
from vnd.distributions.ordered_normal import OrderedNormal
from vnd.distributions.weights import LogUniform, MultiplicativeNormal

__all__ = [
    "BernoulliChain",
    "Downhill",
    "LogUniform",
    "MultiplicativeNormal",
    "OrderedMixture",
    "OrderedNormal",
    "coupled_entropy",
    "total_correlation",
]
