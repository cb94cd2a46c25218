"""Batched augmentation, against plain loops over images."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from covering import turns
from vnd.data.augment import GREY, Augment, Draw, Padding, apply, apply_to_masks, draw, mix


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cropped(images: Tensor, pad: int, drawn: Draw, padding: Padding = "black") -> Tensor:
    """One image at a time: pad, mirror the crop, cut."""
    mode: Any = {"black": "constant", "reflect": "reflect"}[padding]
    out = []
    for image, (top, left), mirrored in zip(images, drawn.offset.tolist(), drawn.mirrored.tolist(), strict=True):
        padded = torch.from_numpy(np.pad(image.numpy(), ((0, 0), (pad, pad), (pad, pad)), mode=mode))
        crop = padded[:, top : top + image.size(1), left : left + image.size(2)]
        out.append(crop.flip(2) if mirrored else crop)
    return torch.stack(out)


def still(count: int = 1, **others: Tensor) -> Draw:
    """Nothing is done to an image that is not padded, but for what is given."""
    own = {"offset": torch.zeros(count, 2).long(), "mirrored": torch.zeros(count).bool(), "angle": torch.zeros(count)}
    return Draw(**(own | others))


def covered(images: Tensor, side: int, drawn: Draw) -> Tensor:
    """One image at a time: a grey square about the centre, as far as there is an image."""
    out = images.clone()
    assert drawn.centre is not None
    assert drawn.covered is not None
    height, width = images.shape[2:]
    for image, (row, column), wanted in zip(out, drawn.centre.tolist(), drawn.covered.tolist(), strict=True):
        top, left = int(row * height) - side // 2, int(column * width) - side // 2
        if wanted:
            image[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 128
    return out


@pytest.mark.parametrize(
    ("crop", "dtype", "padding"),
    turns(
        [(0, True), (2, False), (4, True), (15, True)],
        [torch.uint8, torch.float32],
        ["black", "reflect", "reflect", "black"],
    ),
)
def test_crop_and_flip_are_those_of_a_loop_over_images(
    crop: tuple[int, bool], dtype: torch.dtype, padding: Padding
) -> None:
    pad, flip = crop
    images = torch.randint(0, 256, (64, 3, 9, 7)).to(dtype)
    before = images.clone()
    augment = Augment(pad=pad, flip=flip, padding=padding)
    drawn = draw(augment, 64, generator())
    out = apply(augment, images, drawn)
    assert out.dtype == dtype
    assert torch.equal(out, cropped(images, pad, drawn, padding))
    assert torch.equal(images, before)


def test_reflection_by_hand() -> None:
    image = torch.arange(1, 7, dtype=torch.uint8).view(1, 1, 2, 3)  # 1 2 3 over 4 5 6
    for offset, wanted in {(0, 0): [3, 2, 1, 6, 5, 4], (1, 1): [5, 4, 5, 2, 1, 2], (3, 4): [6, 5, 4, 3, 2, 1]}.items():
        out = apply(Augment(pad=2, padding="reflect"), image, still(offset=torch.tensor([offset])))
        assert out.flatten().tolist() == wanted
    pixel = torch.full((1, 1, 1, 1), 7, dtype=torch.uint8)  # there is nothing to reflect: as numpy has it, itself
    assert apply(Augment(pad=1, padding="reflect"), pixel, still(offset=torch.tensor([[2, 0]]))).item() == 7


def test_a_square_by_hand() -> None:
    image = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    grey = torch.tensor([True])
    for side, centre, wanted in [
        (2, (0.5, 0.5), ["....", ".##.", ".##.", "...."]),
        (2, (0.0, 0.99), ["..##", "....", "....", "...."]),
        (3, (0.0, 0.0), ["##..", "##..", "....", "...."]),
        (3, (0.75, 0.25), ["....", "....", "###.", "###."]),
        (9, (0.0, 0.0), ["####", "####", "####", "####"]),
        (1, (0.5, 0.75), ["....", "....", "...#", "...."]),
    ]:
        out = apply(Augment(cutout=side), image, still(centre=torch.tensor([centre]), covered=grey))
        assert ["".join(".#"[int(pixel == GREY)] for pixel in row) for row in out[0, 0]] == wanted, (side, centre)


@pytest.mark.parametrize(
    ("side", "share", "dtype"),
    turns([1, 4, 5, 20], [1.0, 0.5, 1.0, 0.3], [torch.uint8, torch.float32, torch.float64]),
)
def test_squares_are_those_of_a_loop_over_images(side: int, share: float, dtype: torch.dtype) -> None:
    images = torch.randint(0, 128, (64, 3, 9, 7)).to(dtype)
    before, augment = images.clone(), Augment(cutout=side, cutout_share=share)
    drawn = draw(augment, 64, generator())
    out = apply(augment, images, drawn)
    assert out.dtype == dtype
    assert torch.equal(out, covered(images, side, drawn))
    assert torch.equal(images, before)


def test_the_loop_catches_a_wrong_square() -> None:
    images = torch.randint(0, 128, (64, 3, 9, 9), dtype=torch.uint8)
    drawn = draw(Augment(cutout=4, cutout_share=0.5), 64, generator())
    assert drawn.centre is not None
    assert drawn.covered is not None
    where = {"angle": drawn.angle, "centre": drawn.centre, "covered": drawn.covered}
    for fault in (
        {"centre": drawn.centre.flip(1)},  # rows and columns
        {"centre": drawn.centre * 5 / 9 + 2 / 9},  # squares that are never cut off
        {"covered": ~drawn.covered},
    ):
        wrong = apply(Augment(cutout=4), images, still(64, **(where | fault)))
        assert not torch.equal(wrong, covered(images, 4, drawn))


def test_a_square_comes_last_and_does_not_turn() -> None:
    augment = Augment(pad=2, flip=True, rotation=45, cutout=4)
    out = apply(augment, torch.zeros(256, 1, 12, 12, dtype=torch.uint8), draw(augment, 256, generator()))
    assert torch.equal(out, covered(torch.zeros(256, 1, 12, 12), 4, draw(augment, 256, generator())))


def test_squares_cover_all_of_an_image_and_the_share_that_is_asked_for() -> None:
    drawn = draw(Augment(cutout=8, cutout_share=0.3), 20_000, generator())
    assert drawn.centre is not None
    assert drawn.covered is not None
    assert float(drawn.covered.double().mean()) == pytest.approx(0.3, abs=0.02)
    assert float(drawn.centre.max()) < 1
    counts = torch.bincount((drawn.centre * 5).long().flatten(), minlength=5) / 40_000
    assert len(counts) == 5
    assert float((counts - 0.2).abs().max()) < 0.02
    place = torch.stack((*drawn.centre.T, drawn.covered.float()))
    assert float((place.corrcoef() - torch.eye(3)).abs().max()) < 0.03
    for share, wanted in ((0.0, 0), (1.0, 20_000)):
        all_or_none = draw(Augment(cutout=8, cutout_share=share), 20_000, generator()).covered
        assert all_or_none is not None
        assert int(all_or_none.sum()) == wanted


@pytest.mark.parametrize("more", [{}, {"padding": "reflect"}, {"cutout": 3, "cutout_share": 0.5}])
def test_what_came_first_is_drawn_as_ever(more: dict[str, Any]) -> None:
    """Runs of old are repeated bit for bit: the three lines that drew before there were squares."""
    drawn, old = draw(Augment(4, True, 20, **more), 32, generator(3)), generator(3)
    assert torch.equal(drawn.offset, torch.randint(9, (32, 2), generator=old))
    assert torch.equal(drawn.mirrored, torch.rand(32, generator=old) < 0.5)
    assert torch.equal(drawn.angle, (2 * torch.rand(32, generator=old) - 1) * 20)


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


def boxed(images: Tensor, others: Tensor, drawn: Draw) -> tuple[Tensor, list[float]]:
    """One image at a time: a box of the other one about the centre, as far as there is an image."""
    out, shares = images.clone(), []
    height, width = images.shape[2:]
    assert drawn.box is not None
    for image, other, (row, column, side) in zip(out, others, drawn.box.tolist(), strict=True):
        tall, wide = round(side * height), round(side * width)
        top, left = int(row * height) - tall // 2, int(column * width) - wide // 2
        rows, columns = slice(max(top, 0), max(top + tall, 0)), slice(max(left, 0), max(left + wide, 0))
        image[:, rows, columns] = other[:, rows, columns]
        shares.append(image[0, rows, columns].numel() / (height * width))
    return out, shares


@pytest.mark.parametrize(("share", "dtype"), [(0.3, torch.uint8), (1.0, torch.float32)])
def test_boxes_are_those_of_a_loop_over_images(share: float, dtype: torch.dtype) -> None:
    images, others = (torch.randint(0, 256, (64, 3, 9, 7)).to(dtype) for _ in range(2))
    drawn = draw(Augment(cutmix=share), 64, generator())
    out, found = mix(images, others, drawn)
    wanted, shares = boxed(images, others, drawn)
    assert out.dtype == dtype
    assert torch.equal(out, wanted)
    assert found.tolist() == pytest.approx(shares)
    assert drawn.box is not None
    for fault in (drawn.box[:, [1, 0, 2]], drawn.box * torch.tensor([1, 1, 0.7]), drawn.box.flip(0)):
        assert not torch.equal(mix(images, others, still(64, box=fault))[0], wanted)


def test_boxes_take_every_share_of_an_image_and_come_to_the_share_of_images_asked_for() -> None:
    images = torch.zeros(4000, 1, 32, 32)
    drawn = draw(Augment(cutmix=0.5), 4000, generator())
    assert drawn.box is not None
    areas = drawn.box[:, 2].square()
    assert float((areas > 0).float().mean()) == pytest.approx(0.5, abs=0.03)
    quarters = torch.histc(areas[areas > 0], 4, 0, 1) / (areas > 0).sum()
    assert quarters.tolist() == pytest.approx([0.25] * 4, abs=0.04)  # uniform, before the edges cut off
    mixed, share = mix(images, images + 1, drawn)
    assert torch.equal(share > 0, mixed.amax((1, 2, 3)) > 0)
    assert float(share.max()) > 0.9


@pytest.mark.parametrize(("dtype", "padding"), [(torch.uint8, "black"), (torch.float32, "reflect")])
def test_masks_are_cropped_as_images_are(dtype: torch.dtype, padding: Padding) -> None:
    masks = (torch.rand(16, 6, 9) < 0.5).to(dtype)
    augment = Augment(2, True, padding=padding, cutout=3)
    drawn = draw(augment, 16, generator())
    found = apply_to_masks(augment, masks, drawn)
    assert found.dtype == dtype
    assert torch.equal(found, cropped(masks[:, None], 2, drawn, padding)[:, 0])


def test_masks_are_turned_as_images_are_and_stay_zeros_and_ones() -> None:
    mask = torch.zeros(1, 9, 17, dtype=torch.uint8)
    mask[0, 4, 11] = 1  # three to the right of the middle
    for angle in (90.0, -90.0, 180.0, 0.0):
        turn = still(angle=torch.tensor([angle]))
        found = apply_to_masks(Augment(rotation=180), mask, turn)
        image = apply(Augment(rotation=180), mask[:, None], turn)
        assert found.dtype == torch.uint8
        assert int(found.sum()) == 1
        assert int(found.argmax()) == int(image.argmax())
    blob = (torch.rand(8, 12, 12) < 0.5).to(torch.uint8)
    turned = apply_to_masks(Augment(rotation=45), blob, draw(Augment(rotation=45), 8, generator()))
    assert set(turned.unique().tolist()) == {0, 1}


def test_right_angles_are_those_of_rot90_for_images_and_masks() -> None:
    augment = Augment(turn=True)
    images = torch.randint(0, 256, (40, 3, 5, 5), dtype=torch.uint8)
    drawn = draw(augment, 40, generator())
    assert drawn.turns is not None
    assert sorted(set(drawn.turns.tolist())) == [0, 1, 2, 3]
    by_hand = torch.stack([torch.rot90(x, int(k), (1, 2)) for x, k in zip(images, drawn.turns, strict=True)])
    assert torch.equal(apply(augment, images, drawn), by_hand)
    assert torch.equal(apply_to_masks(augment, images[:, 0] % 2, drawn), by_hand[:, 0] % 2)
    backwards = dataclasses.replace(drawn, turns=(4 - drawn.turns) % 4)  # a planted fault
    assert not torch.equal(apply(augment, images, backwards), by_hand)
    with pytest.raises(ValueError, match=r"turn is for square images; got 4×5"):
        apply(augment, images[:, :, :4], drawn)


def test_no_augmentation_leaves_masks_alone() -> None:
    masks = torch.ones(2, 4, 4, dtype=torch.uint8)
    assert torch.equal(apply_to_masks(Augment(cutout=3), masks, draw(Augment(cutout=3), 2, generator())), masks)


def test_a_share_of_the_draws_is_that_share() -> None:
    augment = Augment(2, True, 30, "reflect", 3, 0.5, 0.5, True)
    images = torch.randint(0, 256, (8, 1, 6, 6), dtype=torch.uint8)
    drawn = draw(augment, 8, generator())
    whole = apply(augment, images, drawn)
    assert torch.equal(apply(augment, images[3:6], drawn.share(slice(3, 6))), whole[3:6])
