"""Batches by step: what is in them, in which order, and that processes share them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vnd.data import batches as module
from vnd.data.augment import Augment, apply_to_masks
from vnd.data.batches import Batches, Normalise, Passes, in_order, key, statistics
from vnd.data.images import Images

MEAN, DEVIATION = (0.25,), (0.5,)


def numbered(count: int = 50) -> Images:
    """Images of which every pixel is the image's number, and so is the label."""
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 1, 4, 4), np.uint8)
    return Images(pixels, np.arange(count), tuple(map(str, range(count))))


def batches(images: Images | None = None, batch: int = 8, **options: object) -> Batches:
    return Batches(images or numbered(), batch, 3, MEAN, DEVIATION, **options)


def test_an_epoch_has_every_image_once_but_for_what_is_left_over() -> None:
    data = batches()
    assert len(data) == 6
    for epoch in range(3):
        seen = torch.cat([data.at(6 * epoch + i)[1] for i in range(6)])
        assert len(set(seen.tolist())) == 48
    first, second = (torch.cat([data.at(6 * e + i)[1] for i in range(6)]) for e in (0, 1))
    assert not torch.equal(first, second)
    left = [set(range(50)) - set(torch.cat([data.at(6 * e + i)[1] for i in range(6)]).tolist()) for e in range(8)]
    assert len(set.union(*left)) > 8  # others are left over in another epoch


def test_images_go_with_their_labels_and_are_normalised() -> None:
    x, y = batches().at(4)
    assert x.shape == (8, 1, 4, 4)
    torch.testing.assert_close(x, ((y / 255 - 0.25) / 0.5).float().view(-1, 1, 1, 1).expand(x.shape))


def test_a_batch_depends_on_its_step_alone() -> None:
    forward, backward = batches(augment=Augment(1, True)), batches(augment=Augment(1, True))
    theirs = {step: backward.at(step) for step in reversed(range(14))}
    for step, mine in enumerate(forward.run(0, 14)):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs[step], strict=True))
    assert not torch.equal(Batches(numbered(), 8, 4, MEAN, DEVIATION).at(0)[1], forward.at(0)[1])


@pytest.mark.parametrize("masked", [False, True])
def test_batches_come_again_after_so_many_epochs(masked: bool) -> None:
    options: dict[str, object] = {"augment": Augment(1, True)}
    make = segmented if masked else batches
    again, ever = make(repeat_epochs=2, **options), make(repeat_epochs=0, **options)
    period = 2 * len(again)
    for step in range(3 * period):
        same = [torch.equal(a, b) for a, b in zip(again.at(step), ever.at(step % period), strict=True)]
        assert all(same)
        assert again.number(step) == step % period
    assert ever.number(3 * period) == 3 * period
    assert not torch.equal(ever.at(0)[0], ever.at(period)[0])


def test_a_mixed_image_has_the_labels_of_its_pixels() -> None:
    """Pixels say which image they are of: the share of each number is the share of its label."""
    x, y = batches(augment=Augment(cutmix=0.6)).at(2)
    numbers = ((x * 0.5 + 0.25) * 255).round().long().flatten(1)
    assert y.shape == (8, 50)
    for pixels, label in zip(numbers, y, strict=True):
        assert torch.allclose(torch.bincount(pixels, minlength=50) / 16, label)
    plain = batches().at(2)[1]
    assert torch.equal((y > 0).sum(1) > 1, ((y > 0) & (y < 1)).any(1))
    for place, label in enumerate(y):
        allowed = {int(plain[place]), int(plain[7 - place])}
        assert set(label.nonzero().flatten().tolist()) <= allowed
    assert ((y > 0).sum(1) == 2).any()
    assert (y.amax(1) == 1).any()


@pytest.mark.parametrize(("world", "mixed"), [(2, 0.7), (4, 0.0)])
def test_processes_share_a_batch_out_with_its_augmentation(world: int, mixed: float) -> None:
    generator = np.random.default_rng(0)
    images = Images(generator.integers(0, 256, (50, 3, 6, 6), dtype=np.uint8), np.arange(50), ("a",) * 50)
    options = {"augment": Augment(2, True, 15, cutmix=mixed)}
    whole = Batches(images, 8, 3, MEAN * 3, DEVIATION * 3, **options)
    parts = [Batches(images, 8, 3, MEAN * 3, DEVIATION * 3, rank=r, world=world, **options) for r in range(world)]
    for step in (0, 5, 6, 13):
        x, y = whole.at(step)
        shared = [part.at(step) for part in parts]
        assert torch.equal(torch.cat([s[0] for s in shared]), x)
        assert torch.equal(torch.cat([s[1] for s in shared]), y)


def test_the_reader_ahead_gives_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batches()
    expected = [data.at(step) for step in range(3, 9)]
    data.device = type("Other", (), {"type": "meta"})()  # not a CPU: the thread that reads ahead is used
    monkeypatch.setattr("vnd.data.batches._to", lambda tensor, device: tensor)
    found = list(data.run(3, 9))
    assert all(
        torch.equal(a, b) for one, two in zip(expected, found, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_memory_mapped_images_are_read_as_they_are(tmp_path) -> None:
    own = numbered()
    np.save(tmp_path / "pixels.npy", own.pixels)
    mapped = Images(np.load(tmp_path / "pixels.npy", mmap_mode="r"), own.labels, own.classes)
    assert torch.equal(batches(mapped).at(2)[0], batches(own).at(2)[0])
    normalise = Normalise(MEAN, DEVIATION, "cpu")
    assert torch.equal(
        torch.cat(list(in_order(mapped, normalise, "cpu", 7))), torch.cat(list(in_order(own, normalise, "cpu")))
    )


def test_the_last_batch_of_a_test_may_be_one_image() -> None:
    sizes = [len(x) for x in in_order(numbered(9), Normalise(MEAN, DEVIATION, "cpu"), "cpu", batch=4)]
    assert sizes == [4, 4, 1]


@pytest.mark.parametrize("kind", ["kept", "made anew", "from pixels on the device"])
def test_passes_are_the_batches_in_order_every_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, normalise = numbered(9), Normalise(MEAN, DEVIATION, "cpu")
    made = []
    monkeypatch.setattr("vnd.data.batches._to", lambda tensor, device: made.append(1) or tensor)
    if kind != "kept":
        monkeypatch.setattr("vnd.data.batches.ROOM", 9 * 16 * 4 - 1)
    if kind == "from pixels on the device":
        monkeypatch.setattr("vnd.data.batches._resident", lambda pixels, device: torch.from_numpy(pixels))
    expected = list(in_order(images, normalise, "cpu", batch=4))
    made.clear()
    passes = Passes(images, normalise, "cpu", batch=4)
    for _ in range(2):
        found = list(passes)
        assert [len(x) for x in found] == [4, 4, 1]
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(found, expected, strict=True))
    assert len(made) == {"kept": 3, "made anew": 6, "from pixels on the device": 0}[kind]


def test_statistics_are_those_of_all_pixels() -> None:
    generator = np.random.default_rng(0)
    images = Images(generator.integers(0, 256, (5000, 2, 3, 3), dtype=np.uint8))
    mean, std = statistics(images)
    values = images.pixels.astype(np.float64) / 255
    np.testing.assert_allclose(mean, values.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, values.std((0, 2, 3)), rtol=1e-9)
    flat = statistics(Images(np.full((3, 1, 2, 2), 7, np.uint8)))
    assert np.isfinite(1 / flat[1][0])


def test_keys_differ_and_fit_a_seed() -> None:
    keys = {key(seed, word, step) for seed in range(20) for word in ("a", "b") for step in range(50)}
    assert len(keys) == 2000
    assert all(0 <= k < 2**63 for k in keys)
    torch.manual_seed(max(keys))


def test_images_without_labels_have_zeros() -> None:
    unlabelled, labelled = batches(images=Images(numbered().pixels)), batches()
    (x, y), (theirs, labels) = unlabelled.at(3), labelled.at(3)
    assert torch.equal(x, theirs)
    assert (y.dtype, y.shape) == (labels.dtype, labels.shape)
    assert not y.any()


def test_one_channel_is_laid_out_channels_last() -> None:
    x = Normalise(MEAN, DEVIATION, "cpu")(torch.randint(0, 256, (5, 1, 6, 4), dtype=torch.uint8))
    assert x.stride() == (24, 1, 4, 1)  # torch takes (24, 24, 4, 1) for channels first, though both are the same bytes


# Masks

BITS = torch.tensor([1, 2, 4, 8])


def marked(count: int = 24, graders: int = 4, side: int = 12) -> Images:
    """Masks that can be read off the pixels: where grader g marked, a pixel has bit g.

    The first pixels of each mask are the numbers of image and grader besides, so that no two masks are the same.
    """
    masks = np.random.default_rng(5).integers(0, 2, (count, graders, side, side), dtype=np.uint8)
    for image, grader in np.ndindex(count, graders):
        masks[image, grader, 0, :8] = [*np.unpackbits(np.uint8(image))[3:], *np.unpackbits(np.uint8(grader))[5:]]
    bits = (masks << np.arange(graders, dtype=np.uint8)[:, None, None]).sum(1, dtype=np.uint8)
    return Images(bits[:, None], masks=masks, groups=np.arange(count) // 3)


def segmented(images: Images | None = None, **options: object) -> Batches:
    return Batches(images or marked(), 8, 3, (0.0,), (1.0,), masks=True, **options)  # type: ignore[arg-type]


def pixels_of(x: torch.Tensor) -> torch.Tensor:
    """The bits again, (batch, height, width)."""
    return (x[:, 0] * 255).round().long()


def graders_of(x: torch.Tensor, y: torch.Tensor) -> list[int]:
    """Who drew each mask, by the bits of the very image beside it; that it is one of its graders is asserted."""
    masks = (pixels_of(x)[:, None] // BITS.view(1, -1, 1, 1)) % 2
    same = (masks == y[:, None]).flatten(2).all(2)
    assert bool((same.sum(1) == 1).all()), "a mask must be that of exactly one grader of its own image"
    return same.long().argmax(1).tolist()


def test_a_mask_is_that_of_one_grader_of_its_own_image() -> None:
    data, images = segmented(), marked()
    for step in range(9):
        x, y = data.at(step)
        assert (y.dtype, y.shape) == (torch.float32, (8, 12, 12))
        chosen = data._chosen(step)
        for mask, image, grader in zip(y, chosen, graders_of(x, y), strict=True):
            assert torch.equal(mask, torch.from_numpy(images.masks[image, grader]).float())


def test_graders_who_differ_in_number_are_drawn_equally_often_and_only_of_their_own_image() -> None:
    """Counts within 5 standard deviations; what is beyond the graders of an image is never drawn."""
    counts = np.arange(24) % 4 + 1
    images = replace(marked(), num_graders=counts)
    data, drawn = segmented(images), np.zeros((24, 4))
    for step in range(1200):
        chosen = data._chosen(step)
        np.add.at(drawn, (chosen, graders_of(*data.at(step))), 1)
    for image, count in enumerate(counts):
        assert not drawn[image, count:].any()
        spread = np.sqrt(400 * (1 / count) * (1 - 1 / count))
        assert (np.abs(drawn[image, :count] - 400 / count) <= 5 * spread).all()


def test_masks_of_other_images_are_caught() -> None:
    """The planted fault: masks one place further in the batch."""
    x, y = segmented().at(0)
    with pytest.raises(AssertionError, match="of its own image"):
        graders_of(x, y.roll(1, 0))


def test_graders_are_drawn_equally_often_and_anew_in_every_step() -> None:
    data = segmented()
    drawn = np.array([graders_of(*data.at(step)) for step in range(600)])
    counts = np.bincount(drawn.ravel(), minlength=4)
    assert ((counts - 1200) ** 2 / 1200).sum() < 21.1  # chi-squared of 3 degrees: one false alarm in 10,000
    for place in range(8):
        assert ((np.bincount(drawn[:, place], minlength=4) - 150) ** 2 / 150).sum() < 25.9  # one in 100,000 each
    pairs = np.bincount(4 * drawn[:, 0] + drawn[:, 1], minlength=16)
    assert ((pairs - 37.5) ** 2 / 37.5).sum() < 44.3  # neighbours are drawn apart: 15 degrees, one in 10,000
    epochs = {tuple(graders_of(*data.at(step))) for step in range(0, 300, 3)}
    assert len(epochs) > 95
    assert graders_of(*segmented().at(7)) == drawn[7].tolist()


@pytest.mark.parametrize("padding", ["black", "reflect"])
def test_a_mask_follows_its_image_through_crop_and_mirror(padding: str) -> None:
    data = segmented(augment=Augment(pad=3, flip=True, padding=padding))  # type: ignore[arg-type]
    found = set()
    for step in range(6):
        x, y = data.at(step)
        found.update(graders_of(x, y))
        still, _ = segmented().at(step)
        assert not torch.equal(x, still)
    assert found == {0, 1, 2, 3}


def test_a_mask_that_does_not_follow_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted faults: masks that are not cropped, and masks that are cropped as their neighbours."""
    faults = [
        lambda augment, masks, drawn: masks,
        lambda augment, masks, drawn: apply_to_masks(augment, masks, drawn.share(torch.arange(8).roll(1))),
    ]
    for fault in faults:
        monkeypatch.setattr(module, "apply_to_masks", fault)
        with pytest.raises(AssertionError, match="of its own image"):
            test_a_mask_follows_its_image_through_crop_and_mirror("black")


def discs() -> Images:
    """A disc off the middle of each image, which all graders mark exactly."""
    rows, columns = np.mgrid[:32, :32]
    centre = np.random.default_rng(2).integers(9, 23, (24, 2, 1, 1))
    inside = (rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2 <= 30
    return Images(inside[:, None] * np.uint8(255), masks=np.repeat(inside[:, None].astype(np.uint8), 4, 1))


def check_overlap(x: torch.Tensor, y: torch.Tensor) -> None:
    assert bool(((y == 0) | (y == 1)).all())
    seen = x[:, 0] > 0.5
    overlap = (seen & (y > 0)).sum((1, 2)) / (seen | (y > 0)).sum((1, 2))
    assert float(overlap.min()) > 0.9  # the image is blended where it is turned, the mask is not


def test_a_mask_follows_its_image_through_rotation_and_stays_zeros_and_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    data = segmented(discs(), augment=Augment(pad=2, flip=True, rotation=60))
    x, y = data.at(0)
    check_overlap(x, y)

    def backwards(augment: Augment, masks: torch.Tensor, drawn: object) -> torch.Tensor:
        return apply_to_masks(augment, masks, replace(drawn, angle=-drawn.angle))  # type: ignore

    monkeypatch.setattr(module, "apply_to_masks", backwards)
    with pytest.raises(AssertionError):
        check_overlap(*data.at(0))


def test_a_square_covers_no_mask() -> None:
    plain, covered = segmented().at(1), segmented(augment=Augment(cutout=6)).at(1)
    assert torch.equal(plain[1], covered[1])
    assert not torch.equal(plain[0], covered[0])


@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_masks_out(world: int) -> None:
    options = {"augment": Augment(2, True, 15)}
    whole, parts = segmented(**options), [segmented(rank=r, world=world, **options) for r in range(world)]
    for step in (0, 2, 7):
        shared = [part.at(step) for part in parts]
        for which, tensor in enumerate(whole.at(step)):
            assert torch.equal(torch.cat([s[which] for s in shared]), tensor)


def test_masks_change_no_other_draw() -> None:
    options = {"augment": Augment(2, True, 15, cutout=3)}
    images = marked()
    for step in (0, 4):
        plain = Batches(images, 8, 3, (0.0,), (1.0,), **options).at(step)
        assert torch.equal(segmented(images, **options).at(step)[0], plain[0])
        assert plain[1].shape == (8,)


@pytest.mark.parametrize("kept", ["both", "pixels", "masks"])
def test_masks_that_lie_on_the_device_are_the_same(kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    images = marked()
    np.save(tmp_path / "masks.npy", images.masks)
    images = replace(images, masks=np.load(tmp_path / "masks.npy", mmap_mode="r"))
    expected = [segmented(images).at(step) for step in range(3)]
    large = {"both": None, "pixels": images.masks, "masks": images.pixels}[kept]
    monkeypatch.setattr(module, "_resident", lambda x, _: None if x is large else torch.from_numpy(np.array(x)))
    data = segmented(images)
    assert (data.resident is not None, data.marks is not None) == (kept != "masks", kept != "pixels")
    for one, two in zip(expected, data.run(0, 3), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
