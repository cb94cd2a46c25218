"""Batched augmentation, against plain loops over images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vnd.data.augment import Augment, Draw, apply, draw


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cropped(images: Tensor, pad: int, drawn: Draw) -> Tensor:
    """One image at a time: pad, mirror the crop, cut."""
    out = []
    for image, (top, left), mirrored in zip(images, drawn.offset.tolist(), drawn.mirrored.tolist(), strict=True):
        crop = F.pad(image, (pad,) * 4)[:, top : top + image.size(1), left : left + image.size(2)]
        out.append(crop.flip(2) if mirrored else crop)
    return torch.stack(out)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("pad", "flip"), [(0, True), (2, False), (4, True)])
def test_crop_and_flip_are_those_of_a_loop_over_images(pad: int, flip: bool, dtype: torch.dtype) -> None:
    images = torch.randint(0, 256, (64, 3, 9, 7)).to(dtype)
    augment = Augment(pad=pad, flip=flip)
    drawn = draw(augment, 64, generator())
    out = apply(augment, images, drawn)
    assert out.dtype == dtype
    assert torch.equal(out, cropped(images, pad, drawn))


@pytest.mark.parametrize("fault", ["rows and columns", "mirror before the crop", "offset from the edge of the image"])
def test_the_loop_catches_a_wrong_gather(fault: str) -> None:
    images = torch.randint(0, 256, (64, 3, 9, 9), dtype=torch.uint8)
    drawn = draw(Augment(2, True), 64, generator())
    wrong = {
        "rows and columns": lambda: apply(
            Augment(2, True), images, Draw(drawn.offset.flip(1), drawn.mirrored, drawn.angle)
        ),
        "mirror before the crop": lambda: apply(
            Augment(2), torch.where(drawn.mirrored.view(-1, 1, 1, 1), images.flip(3), images),
            Draw(drawn.offset, drawn.mirrored & False, drawn.angle),
        ),
        "offset from the edge of the image": lambda: apply(
            Augment(2, True), images, Draw((drawn.offset - 1).clamp(min=0), drawn.mirrored, drawn.angle)
        ),
    }[fault]()  # fmt: skip
    assert not torch.equal(wrong, cropped(images, 2, drawn))


def test_a_quarter_turn_is_exact_and_an_angle_moves_a_point_where_it_should() -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 7] = 1  # right of the middle
    still = Draw(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([False]), torch.tensor([90.0]))
    turned = apply(Augment(rotation=90), image, still)
    assert int(turned.argmax()) in (1 * 9 + 4, 7 * 9 + 4)  # above or below the middle
    assert float(turned.sum()) == pytest.approx(1, abs=1e-4)


def test_rotation_keeps_distances_on_images_that_are_not_square() -> None:
    image = torch.zeros(1, 1, 9, 17)
    image[0, 0, 4, 11] = 1  # three to the right of the middle
    turn = Draw(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([False]), torch.tensor([90.0]))
    row, column = divmod(int(apply(Augment(rotation=90), image, turn).argmax()), 17)
    assert (abs(row - 4), column) == (3, 8)


def test_draws_cover_what_they_may_and_nothing_else() -> None:
    drawn = draw(Augment(pad=2, flip=True, rotation=20), 20_000, generator())
    counts = torch.bincount(drawn.offset.flatten(), minlength=5)
    assert len(counts) == 5
    assert float((counts / 40_000 - 0.2).abs().max()) < 0.02
    assert float(drawn.mirrored.double().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(drawn.angle.abs().max()) <= 20
    assert float(drawn.angle.min()) < -19
    assert float(drawn.angle.max()) > 19


def test_no_augmentation_changes_nothing() -> None:
    images = torch.randint(0, 256, (4, 1, 5, 5), dtype=torch.uint8)
    assert apply(Augment(), images, draw(Augment(), 4, generator())) is images


def test_a_share_of_the_draws_is_that_share() -> None:
    augment, images = Augment(2, True, 30), torch.randint(0, 256, (8, 1, 6, 6), dtype=torch.uint8)
    drawn = draw(augment, 8, generator())
    whole = apply(augment, images, drawn)
    assert torch.equal(apply(augment, images[3:6], drawn.share(slice(3, 6))), whole[3:6])


@pytest.mark.parametrize("options", [{"pad": -1}, {"rotation": 200.0}, {"rotation": -1.0}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
        Augment(**options)
