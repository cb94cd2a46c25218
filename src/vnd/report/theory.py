"""Figures of the theory: what a Downhill sample looks like, how lengths are distributed, what a noisy weight costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vnd.distributions import BernoulliChain, Downhill
from vnd.functional import log_uniform_kl
from vnd.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, WIDE, canvas, legend, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEEP = 0.9  # of the geometric law that is shown


def example_chains(n: int) -> dict[str, BernoulliChain]:
    """The chains that the figure shows: two fixed ones of the literature, two such as a layer may learn."""
    unit = torch.arange(n, dtype=torch.get_default_dtype())
    return {
        "geometric, keep .9": BernoulliChain.geometric(n, keep=KEEP),
        "uniform (FN³)": BernoulliChain.uniform(n),
        "peaked, wide": BernoulliChain(8.0 - 8.0 * torch.sigmoid((unit - 0.6 * n) / 1.5)),
        "peaked, narrow": BernoulliChain(4.0 - 0.55 * unit),
    }


def fixed_lengths(n: int) -> dict[str, list[float]]:
    """Length probabilities for 0 … n units of the two laws of the literature, which no layer and no data changes."""
    laws = {
        "geometric (Rippel)": BernoulliChain.geometric(n, keep=KEEP),
        "uniform (FN³)": BernoulliChain.uniform(n),
    }
    return {name: chain.length_log_probs.exp().tolist() for name, chain in laws.items()}


def downhill(n: int = 24, temperatures: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0), seed: int = 0) -> Figure:
    """Downhill samples under several temperatures, and the length probabilities of `example_chains`.

    Paper: the figures of tail-index probabilities (Sec. 2.1) and of Downhill samples (Sec. 2.3).
    """
    figure, axes = canvas(WIDE, 5.6, len(temperatures), (1, 1))
    chain = example_chains(n)["peaked, wide"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for axis, temperature in zip(axes[0], temperatures, strict=True):
            _draw_samples(axis, Downhill(temperature, chain.keep_logits).sample((12,)), chain, temperature)
    colors = (MUTED, ORANGE, BLUE, PURPLE)
    for axis, color, (name, example) in zip(axes[1], colors, example_chains(n).items(), strict=False):
        _draw_lengths(axis, name, example, color)
    for axis in (*axes[0][1:], *axes[1][1:]):
        axis.sharey(axes[0][0] if axis in axes[0] else axes[1][0])
        axis.tick_params(labelleft=False)
    axes[0][0].set_ylabel("mask")
    axes[1][0].set_ylabel("probability")
    figure.get_layout_engine().set(hspace=0.08)  # type: ignore[union-attr, call-arg]
    legend(figure, axes[0][0])
    return figure


def noise_costs() -> Figure:
    """The KL of a weight with Gaussian noise from the log-uniform prior, exact and by three approximations.

    Paper: the figure of approximations to Eq. (16), over log α; on the right, how far each is from the exact one.
    """
    log_alpha = torch.linspace(-8, 8, 401)
    exact = log_uniform_kl(log_alpha, form="exact")
    figure, axes = canvas(WIDE, 4.2, columns=2)
    axes[0].plot(log_alpha, exact, color=INK, linewidth=4, alpha=0.3, label="exact")
    forms = {
        "vnd": ("variational nested dropout", BLUE, "-"),
        "molchanov": ("sparse variational dropout", ORANGE, "--"),
        "kingma": ("variational dropout (α ≤ 1)", GREEN, "-."),
    }
    for form, (label, color, line) in forms.items():
        cost = log_uniform_kl(log_alpha, form=form)  # type: ignore[arg-type]
        shown = log_alpha < 1e-3 if form == "kingma" else torch.ones_like(log_alpha, dtype=torch.bool)
        axes[0].plot(log_alpha[shown], cost[shown], color=color, linestyle=line, label=label)
        off = cost - exact
        axes[1].plot(log_alpha[shown], (off - off[0])[shown], color=color, linestyle=line, label=label)
    axes[0].set_ylabel("KL (nats)")
    axes[1].set_ylabel("KL less the exact one (nats)")
    axes[1].axhline(0, color=INK, linewidth=4, alpha=0.3)
    for axis in axes:
        axis.set_xlabel("log α: noise of a weight against its size")
        tidy(axis)
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    legend(figure, axes[0])
    return figure


def _draw_samples(axis: Axes, samples: torch.Tensor, chain: BernoulliChain, temperature: float) -> None:
    units = range(1, samples.size(-1) + 1)
    for index, sample in enumerate(samples):
        label = "one sample" if index == 0 else None
        axis.plot(units, sample.numpy(), color=BLUE, alpha=0.4, linewidth=1.2, label=label)
    axis.plot(units, chain.mean.numpy(), color=ORANGE, linewidth=2.0, linestyle="--", label="P(unit is kept)")
    axis.set_title(f"temperature {temperature:g}", color=INK, fontsize=11, loc="left")
    axis.set_xlabel("unit")
    tidy(axis)


def _draw_lengths(axis: Axes, name: str, chain: BernoulliChain, color: str) -> None:
    probs = chain.length_log_probs.exp().numpy()
    axis.bar(range(len(probs)), probs, color=color, width=0.85)
    axis.set_title(f"{name}\nmean length {float(chain.expected_length):.1f}", color=INK, fontsize=10, loc="left")
    axis.set_xlabel("length (units kept)")
    tidy(axis)
