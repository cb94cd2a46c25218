"""The triangle of three classes: where things lie on it, how much its contours hold, and what it refuses."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure

from vnd.report.theory import CORNERS, Simplex, levels, log_density, merged, place, project, simplex

NAMES = ("cat", "dog", "bird")


def example(*concentration: float, draws: int = 40) -> Simplex:
    points = np.random.default_rng(1).dirichlet((5, 3, 2), draws)
    return Simplex(points, np.array(concentration), NAMES, "an input")


def samples(concentration: tuple[float, ...], count: int = 20_000) -> np.ndarray:
    return np.random.default_rng(7).dirichlet(concentration, count)


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=30)
    return buffer.getvalue()


def contours(axis: Axes) -> list[ContourSet]:
    return [one for one in axis.collections if isinstance(one, ContourSet)]


def test_corners_and_centre_lie_where_they_must() -> None:
    np.testing.assert_allclose(place(np.eye(3)), [[0, 0], [1, 0], [0.5, 0.8660254]], atol=1e-7)
    np.testing.assert_allclose(place(np.full(3, 1 / 3)), [0.5, 0.2886751], atol=1e-7)
    sides = [np.linalg.norm(CORNERS[i] - CORNERS[j]) for i, j in ((0, 1), (1, 2), (2, 0))]
    assert sides == pytest.approx([1, 1, 1])


def test_each_class_is_named_at_its_corner_and_points_and_mean_are_drawn_as_they_are() -> None:
    one = example(2.0, 3.0, 5.0)
    figure = simplex([one])
    axis = figure.axes[0]
    lines = {line.get_label(): np.array(line.get_data()).T for line in axis.lines}
    np.testing.assert_allclose(lines["teacher, one draw of the weights"], place(one.points))
    np.testing.assert_allclose(lines["student's mean"], [place(np.array([0.2, 0.3, 0.5]))])
    for name, corner in zip(NAMES, CORNERS, strict=True):
        text = next(text for text in axis.texts if text.get_text() == name)
        assert np.linalg.norm(np.array(text.get_position()) - corner) < 0.1
    assert Gcf.get_all_fig_managers() == []  # none of pyplot's


@pytest.mark.parametrize("concentration", [(6, 3, 2), (40, 60, 5), (20_000, 1, 1), (0.4, 0.7, 0.5), (0.05, 2, 300)])
def test_a_contour_holds_its_share_of_the_mass(concentration: tuple[float, ...]) -> None:
    drawn = np.log(np.maximum(samples(concentration), 1e-300))
    density = log_density(drawn, np.array(concentration))
    masses = (0.1, 0.5, 0.8, 0.95)
    held = [float((density >= level).mean()) for level in levels(np.array(concentration), masses)]
    assert held == pytest.approx(masses, abs=0.02)


def test_the_contours_drawn_are_those_of_the_student() -> None:
    """Of samples placed on the picture, the share within each closed line is that of the legend."""
    concentration = (12, 4, 3)
    lines = contours(simplex([example(*concentration)]).axes[0])[-1]
    spots = place(samples(concentration))
    held = [float(path.contains_points(spots).mean()) for path in lines.get_paths()]
    assert held == pytest.approx([0.95, 0.8, 0.5], abs=0.02)


def test_the_density_is_that_of_a_dirichlet() -> None:
    flat, peaked = (log_density(np.log([0.2, 0.3, 0.5]), np.array(alpha)) for alpha in ((1, 1, 1), (3, 2, 2)))
    assert flat == pytest.approx(np.log(2))
    assert peaked == pytest.approx(np.log(360 * 0.2**2 * 0.3 * 0.5))  # Γ(7) / (Γ(3) Γ(2) Γ(2)) = 360


@pytest.mark.parametrize(
    "concentration",
    [(1, 1, 1), (1 + 1e-9, 1, 1), (20_000, 1, 1), (1, 1, 20_000), (7000, 7000, 7000), (0.3, 0.5, 0.4), (1e-3, 1, 2e4)],
)
def test_any_concentration_draws_without_a_warning_and_marks_its_mean(concentration: tuple[float, ...]) -> None:
    figure = simplex([example(*concentration)])
    assert len(png(figure)) > 2000
    axis = figure.axes[0]
    assert bool(contours(axis)) == (not np.allclose(concentration, 1))
    assert np.isfinite(levels(np.array(concentration))).all()
    mean = next(line for line in axis.lines if line.get_label() == "student's mean")
    assert np.isfinite(np.array(mean.get_data())).all()


def test_a_flat_student_has_the_same_density_everywhere() -> None:
    assert levels(np.ones(3)) == pytest.approx([np.log(2)] * 3)
    axis = simplex([example(1, 1, 1)]).axes[0]
    assert any(text.get_text() == "Dirichlet(1, 1, 1), the same everywhere" for text in axis.texts)


def test_a_figure_changes_with_its_data_and_only_then() -> None:
    first = png(simplex([example(9, 3, 2)]))
    assert png(simplex([example(9, 3, 2)])) == first
    assert png(simplex([example(9, 5, 2)])) != first
    assert png(simplex([example(9, 3, 2, draws=41)])) != first


def test_the_legend_covers_no_panel_and_says_each_thing_once() -> None:
    figure = simplex([example(9, 3, 2), example(1, 1, 1), example(2, 2, 2), example(0.5, 1, 1)])
    png(figure)
    (box,) = figure.legends
    assert [text.get_text() for text in box.get_texts()] == [
        "teacher, one draw of the weights",
        "student's Dirichlet: 50, 80 and 95 % of its mass",
        "student's mean",
    ]
    for axis in figure.axes[:4]:
        assert not box.get_window_extent().overlaps(axis.get_tightbbox())  # type: ignore[arg-type]


def test_names_are_drawn_as_text() -> None:
    figure = simplex([Simplex(np.full((1, 3), 1 / 3), np.ones(3), ("$a_", "b\n" * 30, "c"), "$\\frac$")])
    assert len(png(figure)) > 2000
    assert "b b b" in " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_project_renormalises_by_hand() -> None:
    probs = np.array([[[0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]]])
    wanted = [[[0.5, 0.125, 0.375], [1 / 3, 1 / 3, 1 / 3]]]
    np.testing.assert_allclose(project(probs, (3, 0, 2)), wanted)


def test_merged_is_the_law_of_the_renormalised_part() -> None:
    alpha, chosen = (4.0, 1.0, 0.5, 9.0, 2.0), (3, 0, 4)
    small = merged(np.array(alpha), chosen)
    assert small.tolist() == [9.0, 4.0, 2.0]
    part = project(samples(alpha), chosen)
    mean = small / small.sum()
    np.testing.assert_allclose(part.mean(axis=0), mean, atol=0.005)
    np.testing.assert_allclose(part.var(axis=0), mean * (1 - mean) / (small.sum() + 1), rtol=0.05)
