"""The catalogue: every entry is complete, names are found or the nearest is named, and the embedded sets are whole."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vnd.data import DATASETS, binary, load, registry
from vnd.data.registry import Remote

EMBEDDED = Path(str(binary.EMBEDDED))


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_is_complete(name):
    dataset = DATASETS[name]
    assert dataset.name == name
    assert dataset.licence
    for line in (dataset.about, dataset.manual):
        assert "\n" not in line
    assert dataset.about
    assert dataset.embedded or dataset.manual
    assert not dataset.embedded or not dataset.remotes
    for remote in dataset.remotes:
        assert isinstance(remote, Remote)
        assert len(remote.sha256) == 64
        assert remote.size > 0


def test_no_two_data_sets_share_a_folder():
    named = [dataset.folder for dataset in DATASETS.values() if dataset.folder]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("name", ["cifar10", "lidc"])
def test_a_data_set_that_is_not_there_says_how_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.setenv("VND_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        load(name, "test")
    message = str(caught.value)
    assert message.startswith(f"{name}: {tmp_path / DATASETS[name].folder}")
    assert DATASETS[name].manual in message
    with pytest.raises(FileNotFoundError, match=f"^{name}: .*nowhere"):
        load(name, "test", tmp_path / "nowhere")


def test_a_users_own_data_needs_a_path():
    for name in ("folder", "npz"):
        with pytest.raises(ValueError, match=f"^{name}: give the path"):
            load(name, "train")


def test_a_root_as_words_is_a_path(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((5, 8, 8), np.uint8))
    assert len(load("npz", "train", str(tmp_path / "own.npz"))) == 4  # type: ignore[arg-type]


# The embedded sets


def test_the_embedded_files_are_those_that_are_known():
    there = {str(x.relative_to(EMBEDDED)) for x in EMBEDDED.rglob("*.xz")}
    assert there == set(binary.EMBEDDED_SHA256)
    for name, digest in binary.EMBEDDED_SHA256.items():
        assert hashlib.sha256((EMBEDDED / name).read_bytes()).hexdigest() == digest
    assert sum(x.stat().st_size for x in EMBEDDED.rglob("*.xz")) < 6e6


def test_the_licences_lie_beside():
    assert "Copyright © 2017 Zalando SE" in EMBEDDED.joinpath("fashion-mnist-12k/LICENSE.txt").read_text("utf-8")
    digits = EMBEDDED.joinpath("digits/LICENSE.txt").read_text("utf-8")
    assert all(word in digits for word in ("Alpaydin", "Kaynak", "CC BY 4.0", "UCI"))


def test_fashion_is_whole_and_balanced(tmp_path):
    train, test = load("fashion", "train", tmp_path), load("fashion", "test")
    assert train.pixels.shape == (12_000, 1, 28, 28)
    assert test.pixels.shape == (3_000, 1, 28, 28)
    assert train.classes == test.classes
    assert train.classes[9] == "Ankle boot"
    assert train.labels is not None
    assert test.labels is not None
    assert np.bincount(train.labels).tolist() == [1184, 1187, 1206, 1225, 1217, 1220, 1186, 1156, 1208, 1211]
    assert np.bincount(test.labels).tolist() == [276, 290, 314, 273, 312, 329, 291, 289, 334, 292]
    assert hashlib.sha256(train.pixels.tobytes()).hexdigest() == PIXELS["train"]
    assert hashlib.sha256(test.pixels.tobytes()).hexdigest() == PIXELS["test"]
    repeated = {x.tobytes() for x in train.pixels} & {x.tobytes() for x in test.pixels}
    assert len(repeated) <= 3  # Fashion-MNIST has a few images in both of its splits


PIXELS = {
    "train": "4d531d6220cfb84dd2391242e1db582642cbdeb0edd3d93e139a6b2da27af1a2",
    "test": "33a79e733b153f00df8c9b93283c53f66ad5aa8df9d18923b8b68165af5e1f35",
}


def test_digits_are_those_of_scikit_learn():
    known, mine = load_digits(), load("digits", "test")
    assert mine.pixels.shape == (1797, 1, 8, 8)
    assert mine.labels is not None
    assert np.array_equal(mine.labels, known.target)
    assert np.array_equal(np.rint(mine.pixels[:, 0] * (16 / 255)), known.images)
    assert np.array_equal(mine.pixels[:, 0], np.rint(known.images * 255 / 16))
    assert mine.pixels.max() == 255
    with pytest.raises(ValueError, match=r"^digits: has a test split only"):
        load("digits", "train")


def test_a_damaged_embedded_file_is_refused(monkeypatch):
    name = "digits/t10k-labels-idx1-ubyte.xz"
    monkeypatch.setitem(binary.EMBEDDED_SHA256, name, "0" * 64)
    with pytest.raises(ValueError, match=f"^digits: the embedded file {name} is damaged: its SHA-256"):
        load("digits", "test")


def test_a_reader_that_gives_nonsense_is_caught_before_the_first_step(monkeypatch):
    from dataclasses import replace

    broken = replace(DATASETS["digits"], read=lambda *_: replace(load_good, labels=load_good.labels + 5))
    load_good = load("digits", "test")
    monkeypatch.setitem(registry.DATASETS, "digits", broken)
    with pytest.raises(ValueError, match=r"^digits: the test split: a label must lie in 0 … 9; image 5 has 10"):
        load("digits", "test")
