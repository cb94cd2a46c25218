"""Prediction at a width: probabilities averaged over posterior samples, and how far to trust them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vnd.functional import concentration, widen
from vnd.nn.bayesian import BayesLayer
from vnd.nn.plan import Plan, plan_of, unwrap
from vnd.nn.recalibrate import sampling
from vnd.nn.width import Width
from vnd.nn.width import width as at_width

Link = Literal["softmax", "dirichlet", "sigmoid", "identity"]
LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda out: out.softmax(1),
    "dirichlet": concentration,
    "sigmoid": torch.sigmoid,
    "identity": lambda out: out,
}
ROWS = 16384  # examples times samples in one pass


@dataclass(frozen=True)
class Prediction:
    r"""What a nested network says of a batch.

    `probs` are averaged over samples. `entropy` is that of the average, in nats; `mutual_information` is what it
    exceeds the samples' mean entropy by, the part that a better posterior would take away. Both are None for
    `link="identity"`. `variance` is that between the samples' outputs after the link.
    """

    probs: Tensor
    entropy: Tensor | None
    mutual_information: Tensor | None
    variance: Tensor
    samples: int


@torch.no_grad()
def predict(
    net: nn.Module,
    x: Tensor,
    width: Width = None,
    samples: int = 6,
    link: Link | None = None,
    seed: int | None = None,
    rows: int | None = None,
) -> Prediction:
    r"""Predict at a width with several draws of the weights, averaging probabilities.

    $$p = \frac1S \sum_s p_s, \qquad H[p] = \underbrace{\frac1S \sum_s H[p_s]}_{\text{in the data}} + \text{MI}$$

    With the "local" estimator the samples run as one batch, in chunks of `rows` and smaller ones where memory does not
    suffice, and share the statistics of the first layer if only one layer reads the input. Other estimators run one
    sample a pass.

    Args:
        net: A nested network, one with Bayesian layers, such as `extract(…, bayesian=True)` gives, or a plain one, of
            which all draws are the same: one is made.
        x: A batch of inputs, (batch, …).
        width: A `Shape`, a fraction in (0, 1], or None for the width that is set.
        samples: Draws of the weights; 0 for one pass with the posterior means.
        link: From the network's outputs to what is averaged: "softmax" over dimension 1 (classes), "sigmoid" for
            masks, "identity" for regression; "dirichlet" for a student of SN³, whose outputs give a Dirichlet over
            probabilities: its mean, entropy and mutual information in closed form, see `vnd.functional.concentration`.
            None for what a nested network was made with, "softmax" but for students, and "softmax" for others.
        seed: Makes the draws repeatable; the global generator is left as it was.
        rows: Most examples times samples in one pass.
    """
    if link is not None and link not in get_args(Link):
        raise ValueError(f"predict: link must be one of {', '.join(map(repr, get_args(Link)))}; got {link!r}")
    if not isinstance(x, Tensor):
        raise ValueError(f"predict: x must be a tensor; got a {type(x).__name__}")
    if isinstance(rows, int) and rows < 1:
        raise ValueError(f"predict: rows must be at least 1; got {rows}")
    if not isinstance(samples, int) or samples < 0:
        raise ValueError(f"predict: samples must be a whole number, 0 (posterior means) or more; got {samples}")
    root = unwrap(net)
    plan: Plan | None = getattr(root, "_vnd_plan", None)
    if plan is None and width is not None:
        plan_of(net)  # refuses it: there is no width to set
    stands_for: Link = link or ("softmax" if plan is None else plan.arguments.get("link", "softmax"))
    drawing = samples > 0 and any(isinstance(m, BayesLayer) and m.bayesian for m in root.modules())
    count = samples if drawing else 1
    modes = [(module, module.training) for module in root.modules()]
    root.eval()
    devices = [x.get_device()] if x.is_cuda else []
    try:
        with (
            torch.random.fork_rng(devices=devices) if seed is not None else nullcontext(),
            nullcontext() if plan is None else at_width(net, plan.shape if width is None else width, samples=drawing),
            sampling(root, drawing),
        ):
            if seed is not None:
                torch.manual_seed(seed)
            parts = _run(net, x, count, rows or ROWS, stands_for)
    finally:
        for module, mode in modes:
            module.training = mode
    return _summarise(parts, stands_for, count)


def _run(net: nn.Module, x: Tensor, samples: int, rows: int, link: Link) -> Tensor:
    """Outputs after the link, (samples, batch, …); halves the chunk when the device's memory does not suffice."""
    while True:
        try:
            at_once = max(1, min(samples, rows // max(1, min(rows, x.size(0))))) if _separable(net) else 1
            step = max(1, min(x.size(0), rows))
            chunks = [_pass(net, part, samples, at_once, link) for part in x.split(step)]
            return torch.cat(chunks, 1)
        except RuntimeError as error:  # CUDA has a kind of its own, a CPU has not
            if rows <= 1 or not (isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)):
                raise
            rows = max(1, min(rows, samples * x.size(0)) // 2)
            torch.cuda.empty_cache()


def _separable(net: nn.Module) -> bool:
    """Whether the examples of one pass are separate draws: not so where they share the noise of a weight."""
    return all(m.estimator == "local" for m in unwrap(net).modules() if isinstance(m, BayesLayer) and m.bayesian)


def _pass(net: nn.Module, x: Tensor, samples: int, at_once: int, link: Link) -> Tensor:
    outputs = []
    done = 0
    while done < samples:
        count = min(at_once, samples - done)
        out = widen(_draw(net, x, count))
        out = LINKS[link](out)
        outputs.append(out.view(count, x.size(0), *out.shape[1:]))
        done += count
    return torch.cat(outputs)


def _draw(net: nn.Module, x: Tensor, count: int) -> Tensor:
    """One pass with `count` draws for every example, (count · batch, …), samples first."""
    if count == 1:
        return torch.as_tensor(net(x))
    root = unwrap(net)
    plan: Plan | None = getattr(root, "_vnd_plan", None)
    first = [] if plan is None else [root.get_submodule(name) for name in plan.first_consumers]
    if len(first) == 1 and isinstance(first[0], BayesLayer) and first[0].bayesian:
        first[0].expansion = count
        try:
            return torch.as_tensor(net(x))
        finally:
            first[0].expansion = 1
    return torch.as_tensor(net(x.repeat(count, *[1] * (x.dim() - 1))))


def _summarise(parts: Tensor, link: Link, samples: int) -> Prediction:
    if link == "dirichlet":
        return _summarise_dirichlet(parts, samples)
    probs = parts.mean(0)
    variance = parts.var(0, correction=0)
    if link == "identity":
        return Prediction(probs, None, None, variance, samples)
    entropy, inner = _entropy(probs, link), _entropy(parts.flatten(0, 1), link)
    inner = inner.view(samples, -1, *inner.shape[1:]).mean(0)
    return Prediction(probs, entropy, (entropy - inner).clamp(min=0.0), variance, samples)


def _summarise_dirichlet(parts: Tensor, samples: int) -> Prediction:
    r"""A mixture of Dirichlets with concentrations a, (samples, batch, classes, …), each of total $a_0$.

    $$\bar p = \frac1S \sum_s \frac{a_s}{a_{s0}}, \qquad \mathbb E\, H[p] = \frac1S \sum_s \Bigl[ ψ(a_{s0} + 1) -
      \sum_c \frac{a_{sc}}{a_{s0}}\, ψ(a_{sc} + 1) \Bigr], \qquad
      \operatorname{Var} p_c = \frac1S \sum_s \frac{p_{sc} (1 - p_{sc})}{a_{s0} + 1} + \operatorname{Var}_s p_{sc}$$
    """
    total = parts.sum(2, keepdim=True)
    means = parts / total
    probs = means.mean(0)
    inner = (total + 1).digamma().squeeze(2) - (means * (parts + 1).digamma()).sum(2)
    variance = (means * (1 - means) / (total + 1)).mean(0) + means.var(0, correction=0)
    entropy = _entropy(probs, "softmax")
    return Prediction(probs, entropy, (entropy - inner.mean(0)).clamp(min=0.0), variance, samples)


def _entropy(probs: Tensor, link: Link) -> Tensor:
    own: Tensor = torch.special.entr(probs)
    if link == "softmax":
        return own.sum(1)
    other: Tensor = torch.special.entr(1 - probs)
    return own + other
