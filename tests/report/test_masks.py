"""Pictures of masks: pixels by hand, and sheets of any shape."""

import numpy as np
import pytest

from vnd.report import masks
from vnd.report.canvas import ORANGE

COLOUR = np.array(tuple(bytes.fromhex(ORANGE[1:])), float)


def test_a_mask_tints_its_inside_and_has_an_edge() -> None:
    image = np.full((5, 5), 100, np.uint8)
    mask = np.zeros((5, 5), bool)
    mask[1:4, 1:4] = True
    found = masks.tinted(image, mask).astype(float)
    assert np.array_equal(found[0, 0], [100, 100, 100])
    assert np.array_equal(found[1, 1], COLOUR)
    assert np.abs(found[2, 2] - (0.65 * 100 + 0.35 * COLOUR)).max() <= 0.5
    assert np.array_equal(masks.tinted(np.stack([image] * 3, -1), mask), found)


def test_the_border_of_an_image_is_no_edge() -> None:
    found = masks.tinted(np.zeros((4, 4), np.uint8), np.ones((4, 4), bool))
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 1


def test_a_grid_has_every_mask_at_its_place() -> None:
    own = np.random.default_rng(0).random((5, 4, 6)) > 0.5
    sheet = masks.grid(own)
    assert sheet.shape == (2 * 6 + 2, 3 * 8 + 2)
    for index, mask in enumerate(own):
        row, column = divmod(index, 3)
        assert np.array_equal(sheet[2 + 6 * row : 6 + 6 * row, 2 + 8 * column : 8 + 8 * column], 255 * mask)


@pytest.mark.parametrize(("shape", "count"), [((20, 90), 1), ((90, 20), 9), ((8, 8, 3), 16)])
def test_sheets_of_any_shape_are_drawn(shape: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "DPI", 20)
    image, mean = np.zeros(shape, np.uint8), np.full(shape[:2], 0.5)
    samples = [masks.tinted(image, np.ones(shape[:2], bool))] * count
    figure = masks.overview(image, mean, mean, samples, "$one_name", "about")
    assert masks.png(figure).startswith(b"\x89PNG")
    axes = [axis for axis in figure.get_axes() if axis.images]
    assert len(axes) == 3 + count
    assert masks.png(masks.uncertainty(mean, "name")).startswith(b"\x89PNG")
