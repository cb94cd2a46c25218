"""Synthetic graders: they draw from what is said, which can be seen, and is the same everywhere."""

import hashlib

import numpy as np
import pytest
import torch

from vnd.data import DATASETS, load, synthetic
from vnd.metrics import expected_energy_distance, pair_distances


@pytest.mark.parametrize("split", ["train", "test"])
def test_graders_draw_from_the_truth(split) -> None:
    """Which mask each drew is found again, and is as frequent as it should be, over all images and over parts."""
    images, (masks, probs) = load("synthetic_graders", split), synthetic.truth(split)
    same = (images.masks[:, :, None] == masks[:, None]).all((3, 4))
    assert (same.sum(2) == 1).all()  # the three masks of an image differ, and a grader drew one of them
    drawn = same.sum(1)
    for part in (slice(None), probs[:, 0] > 0.25, probs[:, 2] > probs[:, 1], probs[:, 2] < 0.15):
        expected, variance = 4 * probs[part].sum(0), 4 * (probs * (1 - probs))[part].sum(0)
        score = (drawn[part].sum(0) - expected) / np.sqrt(variance)
        assert np.abs(score).max() < 4.5
    wrong = np.roll(probs, 1, axis=0)[:, [1, 0, 2]]  # planted: the probabilities of nothing and of the core exchanged
    assert np.abs(drawn.sum(0) - 4 * wrong.sum(0)).max() > 4.5 * np.sqrt(len(images))


def test_graders_draw_apart_from_each_other() -> None:
    """Two graders agree as often as two draws do."""
    images, (_, probs) = load("synthetic_graders", "train"), synthetic.truth("train")
    agree = (probs**2).sum(1)
    for one, other in ((0, 1), (1, 2), (0, 3)):
        found = (images.masks[:, one] == images.masks[:, other]).all((1, 2)).sum()
        assert abs(found - agree.sum()) < 4.5 * np.sqrt((agree * (1 - agree)).sum())


def test_how_probable_a_mask_is_can_be_seen() -> None:
    """The brightness of core and rim in the image says it: a straight line through it misses next to nothing."""
    images, (masks, probs) = load("synthetic_graders", "test"), synthetic.truth("test")
    grey, inner, outer = images.pixels[:, 0].astype(float), masks[:, 1].astype(bool), masks[:, 2].astype(bool)
    rim = outer & ~inner
    core_grey, rim_grey = ((grey * part).sum((1, 2)) / part.sum((1, 2)) for part in (inner, rim))
    for value, wanted in ((core_grey, probs[:, 0]), (rim_grey, probs[:, 2] / (1 - probs[:, 0]))):
        line = np.polyval(np.polyfit(value, wanted, 1), value)
        assert np.abs(line - wanted).max() < 0.1
        assert np.std(line - wanted) < 0.025
    around = (grey * ~outer).sum((1, 2)) / (~outer).sum((1, 2))
    assert (rim_grey - around).min() > 20  # three deviations of the noise: edges can be drawn
    assert (core_grey - rim_grey).min() > 20


def test_masks_are_nested_and_lie_within_the_image() -> None:
    for split, count in synthetic.COUNTS.items():
        masks, probs = synthetic.truth(split)
        assert masks.shape == (count, 3, 32, 32)
        assert not masks[:, 0].any()
        assert (masks[:, 1] <= masks[:, 2]).all()
        assert masks[:, 1].any((1, 2)).all()
        assert (masks[:, 2].sum((1, 2)) > 1.4 * masks[:, 1].sum((1, 2))).all()
        assert not masks[:, :, [0, -1]].any()
        assert not masks[..., [0, -1]].any()
        assert ((probs > 0.004) & (probs < 0.9)).all()
        np.testing.assert_allclose(probs.sum(1), 1)


def test_the_set_is_the_same_everywhere() -> None:
    for split, digest in DIGESTS.items():
        images = load("synthetic_graders", split)
        assert hashlib.sha256(images.pixels.tobytes() + images.masks.tobytes()).hexdigest() == digest
    train, test = (load("synthetic_graders", split).pixels for split in ("train", "test"))
    assert len({x.tobytes() for x in (*train, *test)}) == 4096 + 512


def test_the_catalogue_knows_the_truth() -> None:
    dataset = DATASETS["synthetic_graders"]
    assert dataset.truth is not None
    assert dataset.embedded
    masks, probs = dataset.truth("test")
    assert len(masks) == len(probs) == len(load("synthetic_graders", "test"))
    assert [name for name, other in DATASETS.items() if other.truth] == ["synthetic_graders"]


def test_what_is_expected_of_a_network_that_knows_the_truth() -> None:
    """The numbers that the documents quote, and what they are made of."""
    graders = torch.from_numpy(load("synthetic_graders", "test").masks)
    masks, probs = map(torch.from_numpy, synthetic.truth("test"))
    found = {n: float(expected_energy_distance(masks, probs, graders, n).mean()) for n in (1, 4, 8, 16)}
    among = (probs[:, None] @ pair_distances(masks, masks) @ probs[:, :, None]).mean()
    assert found[1] - found[4] == pytest.approx(0.75 * float(among))
    assert found == pytest.approx(EXPECTED, abs=5e-4)


DIGESTS = {
    "train": "fb028646838e62accecd32486531b87a86b12939adff461e95744f049bf4c440",
    "test": "6b7d3a6ee4ffab8d3d675a5ad75b7e024f00b711752f698fdc2e0c65166c87fe",
}
EXPECTED = {1: 0.5835, 4: 0.2342, 8: 0.1760, 16: 0.1469}
