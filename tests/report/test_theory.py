"""The figure of the distributions."""

from pathlib import Path

import pytest

from vnd.report.theory import downhill_figure, example_chains


def test_the_chains_of_the_figure_are_distributions_over_lengths() -> None:
    chains = example_chains(8)
    assert len(chains) == 4
    for chain in chains.values():
        assert float(chain.length_log_probs.exp().sum()) == pytest.approx(1, abs=1e-5)


def test_the_figure_is_a_picture_that_depends_on_what_it_draws(tmp_path: Path) -> None:
    small, large = (downhill_figure(tmp_path / f"{n}.png", n=n).read_bytes() for n in (6, 12))
    assert small.startswith(b"\x89PNG")
    assert len(small) > 10_000
    assert small != large
