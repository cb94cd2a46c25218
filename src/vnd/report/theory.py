"""Figures of the theory: what a Downhill sample looks like, and how the length is distributed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vnd.distributions import BernoulliChain, Downhill

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID, ACCENT = "#1f2933", "#d9dee3", ("#0b6e99", "#d1603d", "#4f7d3a", "#8a5aa8")


def example_chains(n: int) -> dict[str, BernoulliChain]:
    """The chains that the figure shows: two fixed ones of the literature, two such as a layer may learn."""
    unit = torch.arange(n, dtype=torch.get_default_dtype())
    return {
        "geometric, keep .9": BernoulliChain.geometric(n, keep=0.9),
        "uniform (FN³)": BernoulliChain.uniform(n),
        "peaked, wide": BernoulliChain(8.0 - 8.0 * torch.sigmoid((unit - 0.6 * n) / 1.5)),
        "peaked, narrow": BernoulliChain(4.0 - 0.55 * unit),
    }


def downhill_figure(
    path: Path, n: int = 24, temperatures: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0), seed: int = 0
) -> Path:
    """Draw Downhill samples under several temperatures, and the length probabilities of `example_chains`.

    Paper: the figures of tail-index probabilities (Sec. 2.1) and of Downhill samples (Sec. 2.3).

    Returns:
        The path of the PNG.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(2, 4, figsize=(13, 6.2), sharey="row", constrained_layout=True)
    chain = example_chains(n)["peaked, wide"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for axis, temperature in zip(axes[0], temperatures, strict=True):
            samples = Downhill(temperature, chain.keep_logits).sample((12,))
            _draw_samples(axis, samples, chain, temperature)
    for axis, color, (name, example) in zip(axes[1], ACCENT, example_chains(n).items(), strict=True):
        _draw_lengths(axis, name, example, color)
    axes[0, 0].set_ylabel("mask z")
    axes[1, 0].set_ylabel("probability")
    figure.suptitle(
        f"Ordered masks of {n} units: relaxed Downhill samples (top), length probabilities (bottom)",
        color=INK,
        fontsize=13,
    )
    return _save(figure, path)


def _draw_samples(axis: Axes, samples: torch.Tensor, chain: BernoulliChain, temperature: float) -> None:
    units = range(1, samples.size(-1) + 1)
    for sample in samples:
        axis.plot(units, sample.numpy(), color=ACCENT[0], alpha=0.4, linewidth=1.2)
    axis.plot(units, chain.mean.numpy(), color=ACCENT[1], linewidth=2.0, label="P(unit is kept)")
    axis.set_title(f"temperature {temperature:g}", color=INK, fontsize=11)
    axis.set_xlabel("unit")
    if temperature == 0.1:
        axis.legend(frameon=False, fontsize=9, loc="lower left")
    _tidy(axis)


def _draw_lengths(axis: Axes, name: str, chain: BernoulliChain, color: str) -> None:
    probs = chain.length_log_probs.exp().numpy()
    axis.bar(range(len(probs)), probs, color=color, width=0.85)
    axis.set_title(f"{name}\nexpected length {float(chain.expected_length):.1f}", color=INK, fontsize=11)
    axis.set_xlabel("length (units kept)")
    _tidy(axis)


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color=GRID, linewidth=0.7)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, labelsize=9)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
    return path


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ModuleNotFoundError("Figures need matplotlib: pip install 'variational-nested-dropout[report]'") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt
