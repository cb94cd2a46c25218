"""Sheets of images: every pixel in its place, trees whose branches are those of their codes, and what is refused."""

import io
import itertools

import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure
from PIL import Image

from vnd.report import image_grids
from vnd.report.image_grids import HIGH, LOW, Row, enlarged, factor_of, png, rows, tree
from vnd.report.style import MUTED, ORANGE


def read(figure: Figure) -> np.ndarray:
    """The pixels of the PNG file, (height, width, 3)."""
    return np.asarray(Image.open(io.BytesIO(png(figure))).convert("RGB"))


def plain_images(count: int, start: int = 0, height: int = 8, width: int = 8) -> np.ndarray:
    """Images of one colour each, all different, and none that a sheet has of its own."""
    images = np.empty((count, 3, height, width), np.uint8)
    for index in range(count):
        images[index] = np.array([10 + 5 * (start + index), 200, 3], np.uint8)[:, None, None]
    return images


def box(sheet: np.ndarray, image: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, width and height of what has the colour of a plain image; it must be one full rectangle."""
    where = (sheet == image[:, 0, 0]).all(-1)
    ys, xs = np.nonzero(where)
    left, top, right, bottom = xs.min(), ys.min(), xs.max() + 1, ys.max() + 1
    assert where[top:bottom, left:right].all()
    return int(left), int(top), int(right - left), int(bottom - top)


def texts(figure: Figure) -> list[str]:
    return [one.get_text() for one in figure.axes[0].texts if one.get_text()]


def test_the_file_has_the_very_pixels_of_an_image() -> None:
    image = np.random.default_rng(0).integers(0, 256, (1, 3, 28, 20), dtype=np.uint8)
    large = image[0].transpose(1, 2, 0).repeat(4, 0).repeat(4, 1)
    for words in ("a", "a longer label that shifts the image", "odd"):
        sheet = read(rows([Row(words, image)], "heading", "about"))
        found = [
            (y, x)
            for y, x in np.argwhere((sheet[:-111, :-79] == large[0, 0]).all(-1))
            if np.array_equal(sheet[y : y + 112, x : x + 80], large)
        ]
        assert len(found) == 1


def test_grey_images_are_grey_and_pixels_become_squares() -> None:
    image = np.array([[[1, 2], [3, 4]]], np.uint8)
    large = enlarged(image, 3)
    assert large.shape == (6, 6, 3)
    assert large[..., 0].tolist() == large[..., 2].tolist() == np.kron([[1, 2], [3, 4]], np.ones((3, 3))).tolist()


def test_rows_lie_below_each_other_and_columns_side_by_side() -> None:
    first, second = plain_images(3), plain_images(3, 3)
    figure = rows([Row("one", first), Row("two", second, "a note", ["x", "y", "z"])], "A heading", "About it.")
    sheet = read(figure)
    boxes = np.array([box(sheet, image) for image in (*first, *second)]).reshape(2, 3, 4)
    factor = factor_of(8, 3)
    assert (boxes[..., 2:] == 8 * factor).all()
    assert (np.diff(boxes[0, :, 0]) == 8 * factor + image_grids.GAP).all()
    assert (boxes[0, :, 0] == boxes[1, :, 0]).all()
    assert (boxes[:, :, 1] == boxes[:, :1, 1]).all()
    assert boxes[1, 0, 1] > boxes[0, 0, 1] + 8 * factor
    assert texts(figure) == ["A heading", "About it.", "one", "two", "a note", "x", "y", "z"]
    for word, (left, top, wide, high) in zip("xyz", boxes[1], strict=True):
        x, y = next(one.get_position() for one in figure.axes[0].texts if one.get_text() == word)
        assert x == left + wide / 2
        assert top + high < y < top + high + 20


def test_a_long_row_goes_on_below_itself() -> None:
    images = plain_images(5)
    sheet = read(rows([Row("one", images)], "heading", "", across=2))
    places = [box(sheet, image)[:2] for image in images]
    assert [x for x, _ in places] == [places[0][0], places[1][0]] * 2 + [places[0][0]]
    assert places[0][1] == places[1][1] < places[2][1] == places[3][1] < places[4][1]


def test_heads_stand_over_their_columns_and_a_first_row_over_them() -> None:
    images, other = plain_images(3), plain_images(1, 9)
    figure = rows([Row("one", images)], "heading", "", ["−1", "0", "1"], "value", first=Row("before", other))
    sheet = read(figure)
    places = {one.get_text(): one.get_position() for one in figure.axes[0].texts}
    for word, image in zip(("−1", "0", "1"), images, strict=True):
        left, top, wide, _ = box(sheet, image)
        assert places[word][0] == left + wide / 2
        assert places[word][1] < top
    _, top, _, high = box(sheet, other[0])
    assert top + high < places["0"][1]


def colours_over(sheet: np.ndarray, left: int, top: int, wide: int) -> str:
    """The blocks over an image, L for the low value and H for the high one."""
    names = {tuple(bytes.fromhex(colour[1:])): name for colour, name in ((LOW, "L"), (HIGH, "H"), (MUTED, "M"))}
    line = sheet[top - 4 - image_grids.BLOCK // 2, left : left + wide]
    seen = [names.get(tuple(int(value) for value in pixel), "") for pixel in line]
    return "".join(name for name, _ in itertools.groupby(seen) if name)


def test_a_tree_has_each_image_over_its_two_and_their_codes_as_blocks() -> None:
    levels = [plain_images(2**level, 2**level - 1, 8, 16) for level in range(4)]
    figure = tree(levels, "heading", "about", ("left: −1", "right: +1"))
    sheet = read(figure)
    boxes = [np.array([box(sheet, image) for image in images]) for images in levels]
    for above, below in itertools.pairwise(boxes):
        middles = below[:, 0].reshape(-1, 2).mean(1)
        np.testing.assert_allclose(above[:, 0], middles, atol=1)
        assert (below[:, 1] == below[0, 1]).all()
        assert below[0, 1] > above[0, 1] + above[0, 3]
        assert (np.diff(below[:, 0]) > below[0, 2]).all()
    for level, found in enumerate(boxes):
        wanted = ["".join(signs) for signs in itertools.product("LH", repeat=level)]
        # A block stands for itself: two of one colour side by side have white between them.
        assert [colours_over(sheet, left, top, wide) for left, top, wide, _ in found] == wanted
    assert len(figure.axes[0].lines) == 14
    assert texts(figure)[1:] == ["about", "left: −1", "right: +1", "length 0", "length 1", "length 2", "length 3"]


def test_a_tree_of_one_value_at_first_says_so_over_each_image() -> None:
    levels = [plain_images(2**level, 2**level - 1) for level in range(3)]
    figure = tree(levels, "heading", "about", ("left", "right"), trunk=2, only="both: 0")
    sheet = read(figure)
    for level, images in enumerate(levels):
        for image, signs in zip(images, itertools.product("LH", repeat=level), strict=True):
            left, top, wide, _ = box(sheet, image)
            assert colours_over(sheet, left, top, wide) == "MM" + "".join(signs)
            assert tuple(sheet[top - 5, left]) == tuple(bytes.fromhex(MUTED[1:]))  # at its top left corner
    assert texts(figure)[2:] == ["both: 0", "left", "right", "length 2", "length 3", "length 4"]


def test_edges_have_the_color_of_their_value_and_end_at_their_images() -> None:
    levels = [plain_images(2**level, 2**level - 1) for level in range(3)]
    figure = tree(levels, "heading", "about", ("left", "right"))
    sheet = read(figure)
    lines = figure.axes[0].lines
    assert [line.get_color() for line in lines] == [LOW, HIGH] * 3
    for line, (parent, child) in zip(
        lines, [((0, 0), (1, 0)), ((0, 0), (1, 1)), *(((1, j // 2), (2, j)) for j in range(4))], strict=True
    ):
        (x, to_x), (y, to_y) = line.get_data()
        left, top, wide, high = box(sheet, levels[parent[0]][parent[1]])
        assert x == pytest.approx(left + wide / 2, abs=1)
        assert top + high <= y < to_y
        left, top, wide, _ = box(sheet, levels[child[0]][child[1]])
        assert to_x == pytest.approx(left + wide / 2, abs=1)
        assert to_y < top


def test_small_images_are_enlarged_so_that_they_are_seen() -> None:
    for side, across in itertools.product((4, 8, 28, 32, 64, 96), (1, 4, 8, 12, 16, 64)):
        assert side * factor_of(side, across) >= 56
        assert side * factor_of(side, across) <= max(128, side)


def test_words_are_drawn_as_they_are_and_pyplot_is_left_alone() -> None:
    figure = rows([Row("$x$ of_y", plain_images(1))], "a $heading", "")
    assert texts(figure) == [r"a \$heading", r"\$x\$ of_y"]
    assert png(figure) == png(rows([Row("$x$ of_y", plain_images(1))], "a $heading", ""))
    assert not Gcf.figs


COLOUR = np.array(tuple(bytes.fromhex(ORANGE[1:])), float)


def test_a_mask_tints_its_inside_and_has_an_edge() -> None:
    image = np.full((5, 5), 100, np.uint8)
    mask = np.zeros((5, 5), bool)
    mask[1:4, 1:4] = True
    found = image_grids.tinted(image, mask).astype(float)
    assert np.array_equal(found[0, 0], [100, 100, 100])
    assert np.array_equal(found[1, 1], COLOUR)
    assert np.abs(found[2, 2] - (0.65 * 100 + 0.35 * COLOUR)).max() <= 0.5
    assert np.array_equal(image_grids.tinted(np.stack([image] * 3, -1), mask), found)


def test_the_border_of_an_image_is_no_edge() -> None:
    found = image_grids.tinted(np.zeros((4, 4), np.uint8), np.ones((4, 4), bool))
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 1


def test_a_grid_has_every_mask_at_its_place() -> None:
    own = np.random.default_rng(0).random((5, 4, 6)) > 0.5
    sheet = image_grids.grid(own)
    assert sheet.shape == (2 * 6 + 2, 3 * 8 + 2)
    for index, mask in enumerate(own):
        row, column = divmod(index, 3)
        assert np.array_equal(sheet[2 + 6 * row : 6 + 6 * row, 2 + 8 * column : 8 + 8 * column], 255 * mask)


@pytest.mark.parametrize(("shape", "count"), [((20, 90), 1), ((90, 20), 9), ((8, 8, 3), 16)])
def test_sheets_of_any_shape_are_drawn(shape: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    image, mean = np.zeros(shape, np.uint8), np.full(shape[:2], 0.5)
    samples = [image_grids.tinted(image, np.ones(shape[:2], bool))] * count
    figure = image_grids.overview(image, mean, mean, samples, "$one_name", "about")
    assert image_grids.png(figure).startswith(b"\x89PNG")
    axes = [axis for axis in figure.get_axes() if axis.images]
    assert len(axes) == 3 + count
    assert image_grids.png(image_grids.uncertainty(mean, "name")).startswith(b"\x89PNG")


def test_classes_have_colors_of_their_own_and_the_background_none() -> None:
    labels = np.array([[0, 1, 1], [2, 2, 0], [9, 0, 0]], np.uint8)
    sheet = image_grids.grid(labels[None])[2:5, 2:5]
    shown = image_grids.tinted(np.full((3, 3), 50, np.uint8), labels)
    for place in np.ndindex(3, 3):
        label = int(labels[place])
        wanted = tuple(bytes.fromhex(image_grids.color_of(label)[1:])) if label else (0, 0, 0)
        assert tuple(sheet[place]) == wanted
        assert tuple(shown[place]) == (wanted if label else (50, 50, 50))  # regions so thin are all edge
        assert tuple(image_grids.palette()[3 * label : 3 * label + 3]) == wanted
    assert len({image_grids.color_of(label) for label in range(1, 9)}) == 8
