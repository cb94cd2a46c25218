"""Figures of distributions: Downhill samples, lengths, what a noisy weight costs, a Dirichlet on the triangle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vnd.distributions import BernoulliChain, Downhill
from vnd.functional import log_uniform_kl
from vnd.report.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    WIDE,
    canvas,
    legend,
    one_line,
    panels,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEEP = 0.9  # of the geometric law that is shown
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])  # of the first, second and third class
MASSES = (0.5, 0.8, 0.95)  # inside the contours
TONES = [(BLUE, 0.14), (BLUE, 0.28), (BLUE, 0.45)]  # of the regions, the widest first
NODES = 161  # of a grid in each direction, thrice: to the ends of the mass, evenly in it, and evenly in the triangle
SIDES = ("left", "right", "center")  # of a corner's name that is written at its corner
AWAY = {"left": -0.05, "right": 0.05, "center": 0.0}
DRAW, MEAN = "teacher, one draw of the weights", "student's mean"
CONTOURS = "student's Dirichlet: 50, 80 and 95 % of its mass"
DROP = 25.0  # nats below the peak that the mass is followed to


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
    figure, axes = canvas(WIDE, 5.6, len(temperatures), (1, 1), hspace=0.08)
    chain = example_chains(n)["peaked, wide"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for axis, temperature in zip(axes[0], temperatures, strict=True):
            samples = Downhill(temperature, chain.keep_logits).sample((12,))
            for index, sample in enumerate(samples):
                label = "one sample" if index == 0 else None
                axis.plot(range(1, n + 1), sample.numpy(), color=BLUE, alpha=0.4, linewidth=1.2, label=label)
            kept: dict[str, Any] = {"linewidth": 2.0, "linestyle": "--", "label": "P(unit is kept)"}
            axis.plot(range(1, n + 1), chain.mean.numpy(), color=ORANGE, **kept)
            title(axis, f"temperature {temperature:g}")
            axis.set_xlabel("unit")
    colors = (MUTED, ORANGE, BLUE, PURPLE)
    for axis, color, (name, example) in zip(axes[1], colors, example_chains(n).items(), strict=False):
        axis.bar(range(n + 1), example.length_log_probs.exp().numpy(), color=color, width=0.85)
        heading = f"{name}\nmean length {float(example.expected_length):.1f}"
        axis.set_title(heading, color=INK, fontsize=10, loc="left")
        axis.set_xlabel("length (units kept)")
    for row, name in zip(axes, ("mask", "probability"), strict=True):
        row[0].set_ylabel(name)
        for axis in row[1:]:
            axis.sharey(row[0])
            axis.tick_params(labelleft=False)
    return legend(figure, axes[0][0])


def noise_costs() -> Figure:
    """The KL of a weight with Gaussian noise from the log-uniform prior, exact and by three approximations.

    Paper: the figure of approximations to Eq. (16), over log α; on the right, how far each is from the exact one.
    """
    log_alpha = torch.linspace(-8, 8, 401)
    exact = log_uniform_kl(log_alpha, form="exact")
    figure, axes = canvas(WIDE, columns=2, wspace=0.06)
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
    return legend(figure, axes[0])


@dataclass(frozen=True)
class Simplex:
    """Answers of teacher and student to one input, of three classes."""

    points: np.ndarray  # the teacher's probabilities, (S, 3), a row for each draw of its weights
    concentration: np.ndarray  # the three concentrations of the student's Dirichlet
    classes: tuple[str, str, str]  # names of the three classes: at the left, at the right and at the top
    title: str  # the heading of the panel

    def __post_init__(self) -> None:
        points = np.asarray(self.points, dtype=float)
        if points.ndim != 2 or points.shape[1] != 3 or not len(points):
            raise ValueError(f"Simplex: points must be (S, 3), a row a draw, got shape {points.shape}.")
        if not (np.all(points >= 0) and np.allclose(points.sum(axis=1), 1, atol=1e-3)):
            raise ValueError("Simplex: each row of points must be probabilities that sum to 1; see simplex.project.")
        _checked(self.concentration)
        if len(self.classes) != 3:
            raise ValueError(f"Simplex: classes must be three names, got {len(self.classes)}.")


def project(probs: np.ndarray, chosen: tuple[int, int, int]) -> np.ndarray:
    r"""Probabilities of three chosen classes given that it is one of them: $p_i / (p_a + p_b + p_c)$.

    Of (…, C) over all classes, (…, 3), each summing to 1; ⅓ each where none of the three has any probability.

    >>> project(np.array([[0.1, 0.6, 0.1, 0.2], [1.0, 0.0, 0.0, 0.0]]), (3, 1, 2)).round(3).tolist()
    [[0.222, 0.667, 0.111], [0.333, 0.333, 0.333]]
    """
    kept = _picked(probs, chosen, "project")
    total = kept.sum(axis=-1, keepdims=True)
    return np.where(total > 0, kept / np.where(total > 0, total, 1), 1 / 3)


def merged(concentration: np.ndarray, chosen: tuple[int, int, int]) -> np.ndarray:
    r"""Concentrations of three chosen coordinates of a Dirichlet, renormalised to sum 1: $(α_a, α_b, α_c)$.

    A Dirichlet is independent Gamma variables over their sum, $x_i = g_i / \sum_j g_j$ with
    $g_i \sim \mathrm{Gamma}(α_i, 1)$. In $x_i / (x_a + x_b + x_c) = g_i / (g_a + g_b + g_c)$ the sum over all cancels,
    and what is left is the same construction with three variables:
    $$\frac{(x_a, x_b, x_c)}{x_a + x_b + x_c} \sim \mathrm{Dir}(α_a, α_b, α_c),$$
    independent of $x_a + x_b + x_c$, hence also given its value, and whatever the other concentrations are. This is the
    law of `project` of draws of the whole Dirichlet, of C concentrations in all.

    >>> merged(np.array([4.0, 1.0, 0.5, 9.0]), (3, 0, 2)).tolist()
    [9.0, 4.0, 0.5]
    """
    return _picked(concentration, chosen, "merged")


def place(probs: np.ndarray) -> np.ndarray:
    """Places in the plane, (…, 2), of probabilities of three classes, (…, 3)."""
    return np.asarray(np.asarray(probs, dtype=float) @ CORNERS)


def log_density(log_probs: np.ndarray, concentration: np.ndarray) -> np.ndarray:
    r"""Logarithm of a Dirichlet's density at $p$: $\ln Γ(\sum_i α_i) + \sum_i ((α_i - 1) \ln p_i - \ln Γ(α_i))$.

    From logarithms, (…, 3): where $α_i < 1$ most of the mass may lie closer to an edge than the smallest number.

    >>> log_density(np.log([0.2, 0.3, 0.5]), np.ones(3)).round(6) == round(np.log(2), 6)  # one over the area, ½
    np.True_
    """
    alpha = _checked(concentration)
    scale = math.lgamma(alpha.sum()) - sum(map(math.lgamma, alpha))
    return np.asarray(np.sum((alpha - 1) * log_probs, axis=-1) + scale)


def levels(concentration: np.ndarray, masses: Sequence[float] = MASSES) -> np.ndarray:
    r"""Log-densities whose contours hold these shares of a Dirichlet's mass: the smallest regions that do.

    $$\ell_m = \max \{\ell : P(\ln p(x) \ge \ell) \ge m\}.$$
    Those of a flat Dirichlet, α = (1, 1, 1), are all the same: it has no contours.
    """
    log_probs, mass = _grid(_checked(concentration))
    return _held(log_density(log_probs, concentration), mass, masses)


def simplex(inputs: Sequence[Simplex]) -> Figure:
    """The teacher's draws as points and the student's Dirichlet as contours, a triangle an input.

    Paper: the figure of the two steps to the student, SN³.
    """
    if not inputs:
        raise ValueError("simplex: inputs must hold at least one input, got none.")
    figure, axes = panels(len(inputs), 3, 3.5)
    for axis, one in zip(axes, inputs, strict=True):
        _panel(axis, one)
    return legend(figure, *axes)


def _panel(axis: Axes, one: Simplex) -> None:
    """One triangle: regions, points over them, contours and the mean over all, so that many points hide neither."""
    alpha = _checked(one.concentration)
    log_probs, mass = _grid(alpha)
    density, spots = log_density(log_probs, alpha), place(np.exp(log_probs))
    heights = _held(density, mass, sorted(MASSES, reverse=True))
    flat = np.ptp(heights) < 1e-6
    if flat:
        axis.fill(*CORNERS.T, color=TONES[0], linewidth=0)
    else:
        mesh = (spots[..., 0], spots[..., 1], density)
        axis.contourf(*mesh, levels=[*heights, max(density.max(), heights[-1]) + 1], colors=TONES)
        axis.contour(*mesh, levels=heights, colors=[BLUE], linewidths=1.1, linestyles="solid", zorder=3)
    axis.fill(*CORNERS.T, fill=False, edgecolor=MUTED, linewidth=1.1)
    look: dict[str, Any] = {"linestyle": "none", "clip_on": False, "markeredgewidth": 0.4, "markeredgecolor": "white"}
    axis.plot(*place(one.points).T, marker="o", color=ORANGE, alpha=0.75, markersize=4.2, label=DRAW, **look)
    axis.plot([], [], color=BLUE, linewidth=1.6, label=CONTOURS)
    look |= {"markeredgewidth": 1.4, "markeredgecolor": INK, "markerfacecolor": "none", "zorder": 5}
    axis.plot(*place(alpha / alpha.sum()), marker="D", markersize=7, label=MEAN, **look)
    for (x, y), name, side, edge in zip(CORNERS, one.classes, SIDES, ("top", "top", "bottom"), strict=True):
        words: dict[str, Any] = {"ha": side, "va": edge, "color": INK, "fontsize": 9.5}
        axis.text(x + AWAY[side], y + (0.045 if edge == "bottom" else -0.045), one_line(name, 18), **words)
    numbers = ", ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in alpha)
    note = f"Dirichlet({numbers})" + (", the same everywhere" if flat else "")
    axis.text(0.5, -0.15, note, ha="center", va="top", color=MUTED, fontsize=8.5)
    title(axis, one.title, 36)
    axis.set(xlim=(-0.16, 1.16), ylim=(-0.22, 0.97), aspect="equal")
    axis.set_axis_off()


def _grid(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Logarithms of probabilities, (n, n, 3), and the share of a Dirichlet's mass that each stands for, (n, n).

    The stick is broken twice, $p = (u, (1 - u) v, (1 - u)(1 - v))$, where $u \sim \mathrm{Beta}(α_1, α_2 + α_3)$ and
    $v \sim \mathrm{Beta}(α_2, α_3)$ are independent. The log-odds of a Beta have a density without poles, however small
    the concentrations, and a peak that is easy to find, however sharp: an even grid over the triangle would miss both.
    """
    (first, other, share), (second, third, part) = _odds(alpha[0], alpha[1] + alpha[2]), _odds(alpha[1], alpha[2])
    log_probs = np.stack([first[:, None] + 0 * second, other[:, None] + second, other[:, None] + third], axis=-1)
    return log_probs, share[:, None] * part


def _odds(one: float, two: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""$\ln u$, $\ln(1 - u)$ and the mass at each, for $u \sim \mathrm{Beta}(a, b)$.

    With $t = \ln u - \ln(1 - u)$ the log-density of t is $f(t) = a \ln u + b \ln(1 - u)$ and a constant.
    """

    def height(t: np.ndarray) -> np.ndarray:
        return np.asarray(-one * np.logaddexp(0, -t) - two * np.logaddexp(0, t))

    peak = height(np.log(one) - np.log(two))
    low, high = (peak - DROP) / one, (DROP - peak) / two  # f(t) ≤ a t and f(t) ≤ -b t: beyond, f is below peak - DROP
    for _ in range(3):  # closer and closer, where it is sharp
        t = np.linspace(low, high, 1001)
        inside = np.flatnonzero(height(t) >= height(t).max() - DROP)
        low, high = t[max(inside[0] - 1, 0)], t[min(inside[-1] + 1, len(t) - 1)]
    t = np.linspace(low, high, 1001)
    below = np.cumsum(np.exp(height(t) - peak))
    even = (np.arange(NODES) + 0.5) / NODES
    nodes = (np.linspace(low, high, NODES), np.interp(even, below / below[-1], t), np.log(even / (1 - even)))
    t = np.unique(np.concatenate(nodes))
    share = np.exp(height(t) - peak) * np.gradient(t)
    return -np.logaddexp(0, -t), -np.logaddexp(0, t), share / share.sum()


def _held(density: np.ndarray, mass: np.ndarray, masses: Sequence[float]) -> np.ndarray:
    """Log-densities above which a grid holds these shares of its mass."""
    order = np.argsort(-density, axis=None)
    return np.asarray(np.interp(masses, np.cumsum(mass.flat[order]), density.flat[order]))


def _checked(concentration: np.ndarray) -> np.ndarray:
    alpha = np.asarray(concentration, dtype=float)
    if alpha.shape != (3,):
        raise ValueError(f"simplex: a concentration must have shape (3,), got {alpha.shape}; see simplex.merged.")
    if not np.all((alpha > 0) & np.isfinite(alpha)):
        raise ValueError(f"simplex: a concentration must be three finite numbers above 0, got {alpha.tolist()}.")
    return alpha


def _picked(values: np.ndarray, chosen: tuple[int, int, int], who: str) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    classes = values.shape[-1] if values.ndim else 0
    if len(set(chosen)) != 3 or len(chosen) != 3 or not all(0 <= index < classes for index in chosen):
        raise ValueError(f"{who}: chosen must be three different classes of 0 … {classes - 1}, got {chosen}.")
    return values[..., list(chosen)]
