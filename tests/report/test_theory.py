"""The figures of the distributions and of the prices of noise."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from vnd.functional import log_uniform_kl
from vnd.report.theory import downhill, example_chains, fixed_lengths, noise_costs


def drawn(figure: Figure) -> list[list[float]]:
    """The lines of a figure."""
    return [list(line.get_ydata()) for axis in figure.axes for line in axis.lines]


def test_the_chains_of_the_figure_are_distributions_over_lengths() -> None:
    chains = example_chains(8)
    assert len(chains) == 4
    for chain in chains.values():
        assert float(chain.length_log_probs.exp().sum()) == pytest.approx(1, abs=1e-5)


def test_the_fixed_laws_are_those_of_the_literature() -> None:
    geometric, uniform = fixed_lengths(4).values()
    assert geometric == pytest.approx([0.1, 0.09, 0.081, 0.0729, 0.6561], abs=1e-6)
    assert uniform == pytest.approx([0.2] * 5, abs=1e-6)


def test_the_downhill_figure_depends_on_what_it_draws_and_on_nothing_else() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    small, again, large = (drawn(downhill(n=n)) for n in (6, 6, 12))
    assert len(small) == 4 * 13  # twelve samples and their mean, under each temperature
    assert small == again
    assert small != large
    assert torch.equal(before, torch.get_rng_state())


def test_the_prices_of_noise_are_drawn_as_they_are() -> None:
    costs, off = noise_costs().axes
    lines = {line.get_label(): line.get_data() for line in costs.lines}
    assert len(lines) == 4
    for label, form in (("exact", "exact"), ("variational nested dropout", "vnd")):
        place, value = lines[label]
        np.testing.assert_allclose(value, log_uniform_kl(torch.as_tensor(place), form=form), rtol=1e-6)  # type: ignore[arg-type]
    assert lines["variational dropout (α ≤ 1)"][0].max() == pytest.approx(0, abs=1e-3)
    for line in off.lines[:3]:
        assert line.get_ydata()[0] == 0  # matched at the left
