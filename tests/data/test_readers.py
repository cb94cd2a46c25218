"""The readers: what was written in the official layout is read, and what is damaged is refused, by file and index."""

import builtins
import gzip
import shutil
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from covering import turns
from data.layouts import LAYOUTS, annotated, assert_same, flat, idx, mnist, own_folder, picture, pixels
from vnd.data import DATASETS, hold_out, load
from vnd.data.binary import read_idx_file
from vnd.data.image_folder import is_test_patient


@pytest.fixture(autouse=True)
def own_root(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("VND_DATA", str(tmp_path_factory.mktemp("root")))


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All layouts, below one root."""
    root = tmp_path_factory.mktemp("originals")
    for name, make in LAYOUTS.items():
        folder = root / (DATASETS[name].folder or name)
        folder.mkdir()
        make(folder)
    return root


def place(root: Path, name: str) -> Path:
    return root / (DATASETS[name].folder or name)


def refusal(name: str, folder: Path, *words: str, split: str = "train", kind: type[Exception] = ValueError) -> str:
    """That reading is refused in one line, which begins with the data set's name and has these words."""
    with pytest.raises(kind, match=rf"^{name}: ") as caught:
        load(name, split, folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    assert all(word in message for word in words), message
    return message


# Round trips


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_is_read(name, tmp_path):
    folder = tmp_path / (DATASETS[name].folder or "own")
    folder.mkdir()
    for split, expected in LAYOUTS[name](folder).items():
        for _ in range(2):  # the second time perhaps from a cache
            found = load(name, split, folder)
            assert_same(found, expected)
        if DATASETS[name].folder:
            assert_same(load(name, split, tmp_path), expected)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if DATASETS[name].folder])
def test_the_catalogue_says_what_is_read(name, originals, monkeypatch):
    monkeypatch.setenv("VND_DATA", str(originals))
    dataset = DATASETS[name]
    images = load(name, "test")
    assert images.pixels.shape[1:] == (dataset.channels, dataset.size, dataset.size)
    if name != "tiny-imagenet":  # whose copy here has 2 classes
        assert len(images.classes) == dataset.num_classes


def test_plain_idx_files_are_memory_mapped_and_go_before_packed_ones(tmp_path):
    mnist(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(b"not gzip")
    for split, expected in mnist(tmp_path, suffix="").items():
        found = load("mnist", split, tmp_path)
        assert_same(found, expected)
        assert isinstance(found.pixels, np.memmap)


def test_what_the_format_allows_is_memory_mapped(originals):
    for name in ("cifar10", "cifar100", "tiny-imagenet", "lidc"):
        assert isinstance(load(name, "test", originals).pixels, np.memmap)


def test_cifar_without_its_names_has_numbers(originals, tmp_path):
    for name, file in (("cifar10", "batches.meta.txt"), ("cifar100", "fine_label_names.txt")):
        folder = tmp_path / name
        shutil.copytree(place(originals, name), folder)
        (folder / file).unlink()
        assert load(name, "test", folder).classes == tuple(map(str, range(DATASETS[name].num_classes)))


def test_celeba_without_a_partition_holds_the_last_tenth_for_testing(tmp_path):
    for number in range(25):
        picture(tmp_path / "celeba64" / f"{number:06d}.png", flat(number, 3, 64, 64))
    for folder in (tmp_path, tmp_path / "celeba64"):
        train, test = (load("celeba", split, folder).pixels[:, 0, 0, 0].tolist() for split in ("train", "test"))
        assert train == list(range(23))
        assert test == [23, 24]


def test_lidc_never_divides_a_patient(originals):
    train, test = (load("lidc", split, originals).groups for split in ("train", "test"))
    assert set(train) | set(test) == set(range(9))
    assert set(test) == {5, 7}
    assert not set(train) & set(test)
    patients = [number for number in range(1, 1013) if is_test_patient(f"LIDC-IDRI-{number:04d}")]
    assert patients[:5] == [6, 8, 16, 18, 27]  # published runs depend on it
    assert len(patients) == 196


def test_no_patient_of_lidc_is_trained_on_and_held_out(originals):
    """All three parts of a run: training, validation and test, by the names of the folders that slices came from."""
    whole, test = (load("lidc", split, originals) for split in ("train", "test"))
    for seed in range(5):
        train, validation = hold_out(whole, 6, seed)
        names = [{images.group_names[owner] for owner in images.groups} for images in (train, validation, test)]
        assert all(names)
        assert sum(map(len, names)) == len(set.union(*names)) == 9
        slices = [{x.tobytes() for x in images.pixels} for images in (train, validation, test)]
        assert len(set.union(*slices)) == sum(map(len, slices)) == 36
    leaks = hold_out(replace(whole, groups=None), 6, 0)  # the planted fault: nobody knows whose the slices are
    kept = [{whole.pixels.tolist().index(x.tolist()) // 4 for x in part.pixels} for part in leaks]
    assert kept[0] & kept[1]


def test_masks_of_0_and_1_are_masks_too(originals, tmp_path):
    folder = tmp_path / "LIDC-IDRI-slices"
    shutil.copytree(place(originals, "lidc"), folder)
    expected = load("lidc", "test", originals)
    for path in folder.glob("*/*/mask-*/*.png"):
        Image.fromarray(np.asarray(Image.open(path)) // 255).save(path)
    assert_same(load("lidc", "test", folder), expected)


def test_a_folder_without_a_division_holds_the_last_of_each_class_for_testing(tmp_path):
    values = {"cat": 11, "dog": 3, "eel": 1}
    for label, (name, count) in enumerate(values.items()):
        for number in range(count):
            picture(tmp_path / "own" / name / f"{number:02d}.png", flat(50 * label + number, 9, 9))
    train, test = (load("folder", split, tmp_path / "own") for split in ("train", "test"))
    assert train.classes == test.classes == ("cat", "dog", "eel")
    assert train.pixels[:, 0, 0, 0].tolist() == [*range(9), 50, 51, 100]
    assert test.pixels[:, 0, 0, 0].tolist() == [9, 10, 52]
    assert test.labels is not None
    assert test.labels.tolist() == [0, 0, 1]


def test_modes_of_images_come_to_one_form(tmp_path):
    """Grey, palette and transparent images among RGB ones; a bitmap and a palette with many transparencies too."""
    colour = np.zeros((6, 5, 3), np.uint8) + np.array([10, 200, 30], np.uint8)
    rgb = Image.fromarray(colour)
    (tmp_path / "own" / "a").mkdir(parents=True)
    rgb.save(tmp_path / "own" / "a" / "0.bmp")
    rgb.quantize(4).save(tmp_path / "own" / "a" / "1.png", transparency=b"\0\1\2")
    rgb.convert("RGBA").save(tmp_path / "own" / "a" / "2.png")
    Image.fromarray(colour[..., 0]).save(tmp_path / "own" / "a" / "3.png")
    Image.new("1", (5, 6), 1).save(tmp_path / "own" / "a" / "4.png")
    Image.new("L", (5, 6), 9).convert("LA").save(tmp_path / "own" / "a" / "5.png")
    found = [load("folder", split, tmp_path / "own").pixels[:, :, 2, 2].tolist() for split in ("train", "test")]
    assert found == [[[10, 200, 30]] * 3 + [[10] * 3, [255] * 3], [[9] * 3]]


NPZ_SHAPES = {"N H W": (5, 8, 9), "N H W 1": (5, 8, 9, 1), "N H W 3": (5, 8, 9, 3), "N 3 H W": (5, 3, 8, 9)}


@pytest.mark.parametrize(
    ("kind", "dtype", "save"),
    [
        *turns(NPZ_SHAPES, ["uint8", "float16", "float32", "float64"], [np.savez, np.savez_compressed]),
        *turns(NPZ_SHAPES, ["float64", "uint8"], [np.savez_compressed]),
    ],
)
def test_npz_of_any_shape_is_read(kind, dtype, save, tmp_path):
    x = pixels(0, *NPZ_SHAPES[kind])
    stored = x if dtype == "uint8" else (x / 255).astype(dtype)
    y = np.array([0, 2, 1, 0, 4])
    save(tmp_path / "own.npz", x_train=stored, y_train=y[:, None].astype(np.int16), x_test=stored[:2], y_test=y[:2])
    wanted = x[:, None] if x.ndim == 3 else x if x.shape[1] == 3 else x.transpose(0, 3, 1, 2)
    train, test = (load("npz", split, tmp_path / "own.npz") for split in ("train", "test"))
    assert np.array_equal(train.pixels, wanted)
    assert np.array_equal(test.pixels, wanted[:2])
    assert train.labels is not None
    assert train.labels.tolist() == y.tolist()
    assert train.classes == test.classes == tuple("01234")


def test_npz_without_a_division_or_labels(tmp_path):
    x, y = pixels(0, 12, 8, 8), np.array([0] * 6 + [1] * 5 + [2])
    np.savez(tmp_path / "own.npz", x=x, y=y)
    np.savez(tmp_path / "bare.npz", x=x)
    train, test = (load("npz", split, tmp_path / "own.npz") for split in ("train", "test"))
    assert np.array_equal(test.pixels[:, 0], x[[5, 10]])
    assert np.array_equal(train.pixels[:, 0], x[[0, 1, 2, 3, 4, 6, 7, 8, 9, 11]])
    assert test.classes == tuple("012")
    bare = load("npz", "test", tmp_path / "bare.npz")
    assert bare.labels is None
    assert np.array_equal(bare.pixels[:, 0], x[[10, 11]])


# Damage


def cut(name: str, by: int = 1) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-by])

    return damage


def write(name: str, content: bytes | str) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def poke(name: str, at: int, value: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[at] = value
        (folder / name).write_bytes(content)

    return damage


def image(name: str, array: Any) -> Callable[[Path], None]:
    return lambda folder: picture(folder / name, array)


def mat(**arrays: Any) -> Callable[[Path], None]:
    return lambda folder: savemat(folder / "train_32x32.mat", arrays)


def sixteen_bits(name: str) -> Callable[[Path], None]:
    return lambda folder: Image.fromarray(np.zeros((12, 10), np.uint16)).save(folder / name)


def huge(name: str) -> Callable[[Path], None]:
    """A PNG file of some bytes that says it has 2^32 pixels."""

    def damage(folder: Path) -> None:
        Image.new("L", (1, 1)).save(folder / name)
        content = bytearray((folder / name).read_bytes())
        content[16:24] = struct.pack(">II", 65536, 65536)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        (folder / name).write_bytes(content)

    return damage


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
RECORD = 3073
X, Y = pixels(0, 32, 32, 3, 4), np.array([[1], [2], [10], [3]], np.uint8)
NODULE = "LIDC-IDRI-0002/nodule-9"

DAMAGED: dict[str, tuple[str, Callable[[Path], Any], tuple[str, ...]]] = {
    "gz cut off": ("mnist", cut(IMAGES, 2000), (IMAGES, "record", "of 7")),
    "gz cut off in its check": ("mnist", cut(IMAGES, 3), (IMAGES, "record 7 of 7")),
    "gz with a flipped byte": ("mnist", poke(IMAGES, 1500, 7), (IMAGES, "record")),
    "gz that is none": ("mnist", write(IMAGES, b"<html>not found</html>"), (IMAGES, "header")),
    "gz of other bytes": ("mnist", write(IMAGES, gzip.compress(b"<html>")), (IMAGES, "must be an IDX file")),
    "gz cut off in the header": ("mnist", write(IMAGES, gzip.compress(bytes([0, 0, 8, 3, 0]))), (IMAGES, "header")),
    "labels as images": ("mnist", lambda f: idx(f / IMAGES, np.zeros(7)), (IMAGES, "3 dimensions")),
    "wrong size": ("mnist", lambda f: idx(f / IMAGES, np.zeros((7, 28, 27))), (IMAGES, "28×28", "27×28")),
    "no height": ("mnist", lambda f: idx(f / IMAGES, np.zeros((7, 0, 28))), (IMAGES, "28×28")),
    "empty set": (
        "mnist",
        lambda f: (idx(f / IMAGES, np.zeros((0, 28, 28))), idx(f / LABELS, np.zeros(0))),
        ("train split", "at least one image"),
    ),
    "fewer labels": ("mnist", lambda f: idx(f / LABELS, np.zeros(6)), (LABELS, "7 images", "6")),
    "label out of range": (
        "mnist",
        lambda f: idx(f / LABELS, np.array([0, 1, 2, 10, 3, 4, 11])),
        (LABELS, "record 3 has 10"),
    ),
    "one byte short": ("cifar10", cut("data_batch_3.bin"), ("data_batch_3.bin", "record 2")),
    "one record short": ("cifar10", cut("data_batch_4.bin", RECORD), ("data_batch_4.bin", "data_batch_1.bin", "got 2")),
    "an empty batch": ("cifar10", write("data_batch_2.bin", b""), ("data_batch_2.bin", "record 0")),
    "label of a batch": ("cifar10", poke("data_batch_5.bin", 2 * RECORD, 10), ("data_batch_5.bin", "record 2 has 10")),
    "a name short": ("cifar10", write("batches.meta.txt", "a b"), ("batches.meta.txt", "10 names", "2")),
    "fine label": ("cifar100", poke("train.bin", 3074 + 1, 100), ("train.bin", "record 1 has 100")),
    "cifar100 cut off": ("cifar100", cut("train.bin", 3074 + 1), ("train.bin", "record 3")),
    "mat cut off": ("svhn", cut("train_32x32.mat", 1000), ("train_32x32.mat",)),
    "mat without y": ("svhn", mat(X=X), ("train_32x32.mat", "no variable y")),
    "mat of floats": ("svhn", mat(X=X / 255, y=Y), ("train_32x32.mat", "X must be uint8", "float64")),
    "mat of other sizes": ("svhn", mat(X=X[:31], y=Y), ("train_32x32.mat", "(31, 32, 3, 4)")),
    "mat of one image": ("svhn", mat(X=X[..., 0], y=Y[:1]), ("train_32x32.mat", "(32, 32, 3)")),
    "mat with fewer labels": ("svhn", mat(X=X, y=Y[:3]), ("train_32x32.mat", "4 images", "(3, 1)")),
    "mat with a label 0": ("svhn", mat(X=X, y=Y * 0), ("train_32x32.mat", "record 0")),
    "mat with a label 11": ("svhn", mat(X=X, y=Y + 1), ("train_32x32.mat", "record 2")),
    "mat with a NaN": (
        "svhn",
        mat(X=X, y=Y + np.array([[0], [np.nan], [0], [0]])),
        ("train_32x32.mat", "record 1 has nan"),
    ),
    "mat of words": ("svhn", mat(X=X, y="words"), ("train_32x32.mat", "y must")),
    "an unreadable JPEG": (
        "tiny-imagenet",
        write("train/n01/images/n01_2.JPEG", "<html>"),
        ("n01_2.JPEG", "not an image"),
    ),
    "an empty JPEG": ("tiny-imagenet", write("train/n01/images/n01_2.JPEG", ""), ("n01_2.JPEG", "empty")),
    "a cut JPEG": ("tiny-imagenet", cut("train/n01/images/n01_2.JPEG", 300), ("n01_2.JPEG",)),
    "a JPEG of another size": (
        "tiny-imagenet",
        image("train/n02/images/n02_1.JPEG", flat(3, 3, 64, 63)),
        ("n02_1.JPEG", "64×64", "63×64"),
    ),
    "a class named twice": ("tiny-imagenet", write("wnids.txt", "n01 n01"), ("wnids.txt", "2 names, 1 different")),
    "no classes": ("tiny-imagenet", write("wnids.txt", ""), ("wnids.txt", "0 names")),
    "a face of another size": (
        "celeba",
        image("img_align_celeba/000001.png", flat(3, 3, 100, 100)),
        ("000001.png", "64×64 or 178×218", "100×100"),
    ),
    "a part that is none": ("celeba", write("list_eval_partition.txt", "000000.png 3"), ("partition.txt", "line 1")),
    "no training faces": (
        "celeba",
        write("list_eval_partition.txt", "000000.png 2"),
        ("img_align_celeba", "train split"),
    ),
    "one chair": ("chairs", lambda f: [shutil.rmtree(f / x) for x in "ab"], ("rendered_chairs", "got 1")),
    "a huge x-ray": ("chest-xray", huge("train/NORMAL/1.png"), ("NORMAL/1.png",)),
    "a slice of another size": (
        "lidc",
        image(f"{NODULE}/images/slice-9.png", flat(0, 64, 128)),
        ("slice-9.png", "128×64"),
    ),
    "a mask of another size": (
        "lidc",
        image(f"{NODULE}/mask-2/slice-9.png", flat(0, 64, 128)),
        ("mask-2/slice-9.png",),
    ),
    "a mask of greys": (
        "lidc",
        image(f"{NODULE}/mask-2/slice-9.png", np.arange(128 * 128, dtype=np.uint8).reshape(128, 128)),
        ("mask-2/slice-9.png", "row 0, column 2 is 2"),
    ),
    "a mask too many": ("lidc", image(f"{NODULE}/mask-1/slice-77.png", flat(0, 128, 128)), ("mask-1/slice-77.png",)),
    "another size": ("folder", image("train/dog/4.png", flat(0, 3, 10, 12)), ("dog/4.png", "10×12", "12×10")),
    "sixteen bits": ("folder", sixteen_bits("train/dog/4.png"), ("dog/4.png", "8 bits", "I;16")),
    "another format": (
        "folder",
        lambda f: Image.new("L", (10, 12)).save(f / "train/cat/1.png", format="GIF"),
        ("cat/1.png", "not an image"),
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_refused_in_one_line_with_file_and_index(case, originals, tmp_path):
    name, damage, words = DAMAGED[case]
    folder = tmp_path / place(originals, name).name
    shutil.copytree(place(originals, name), folder)
    load(name, "train", folder)  # whole, and in the cache, if there is one
    damage(folder)
    refusal(name, folder, str(folder), *words) if "train split" not in words else refusal(name, folder, *words)
    assert not list(tmp_path.rglob("*.part"))


MISSING = {
    "a batch": ("cifar10", "data_batch_3.bin"),
    "records": ("cifar100", "train.bin"),
    "a matrix": ("svhn", "train_32x32.mat"),
    "labels": ("mnist", "train-labels-idx1-ubyte.gz"),
    "class numbers": ("tiny-imagenet", "wnids.txt"),
    "a class": ("tiny-imagenet", "train/n01"),
    "all images of a class": ("tiny-imagenet", "train/n01/images/*"),
    "a face of the partition": ("celeba", "img_align_celeba/000002.png"),
    "all faces": ("celeba", "img_align_celeba/*"),
    "renderings": ("chairs", "a/renders/*"),
    "a class of x-rays": ("chest-xray", "train/PNEUMONIA"),
    "all x-rays": ("chest-xray", "train"),
    "a mask": ("lidc", f"{NODULE}/mask-3/slice-10.png"),
    "a grader": ("lidc", f"{NODULE}/mask-3"),
    "images of a nodule": ("lidc", f"{NODULE}/images"),
    "all patients": ("lidc", "*"),
    "a split": ("folder", "train/*"),
    "everything": ("folder", "*"),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_is_named(case, originals, tmp_path):
    name, pattern = MISSING[case]
    folder = tmp_path / place(originals, name).name
    shutil.copytree(place(originals, name), folder)
    for path in list(folder.glob(pattern)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    named = pattern.removesuffix("*").removesuffix(".gz").rstrip("/")
    refusal(name, folder, str(folder / named), kind=FileNotFoundError)


def test_annotations_that_do_not_fit_are_refused(originals, tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    shutil.copytree(place(originals, "tiny-imagenet"), folder)
    path = folder / "val" / "val_annotations.txt"
    lines = path.read_text().splitlines()
    cases = {
        (lines[0], "val_1.JPEG\tn77\t0", lines[2]): ("line 2", "n77"),
        (lines[0], lines[1], "", lines[2]): ("line 3", "got ''"),
        (lines[0], lines[1]): ("val_2.JPEG", "no line"),
        (*lines, lines[1]): ("line 4", "second time"),
        (): ("val_0.JPEG", "no line"),
    }
    for text, words in cases.items():
        path.write_text("\n".join(text))
        refusal("tiny-imagenet", folder, str(folder), *words, split="test")
    path.write_text("\n".join([*lines, "val_9.JPEG\tn01"]))
    refusal("tiny-imagenet", folder, "val_9.JPEG", "line 4", split="test", kind=FileNotFoundError)
    path.unlink()
    refusal("tiny-imagenet", folder, str(path), split="test", kind=FileNotFoundError)


def test_a_class_that_only_the_test_folder_has_is_refused(tmp_path):
    own_folder(tmp_path / "own")
    picture(tmp_path / "own" / "test" / "eel" / "0.png", flat(0, 3, 12, 10))
    refusal("folder", tmp_path / "own", "test/eel", split="test")
    shutil.rmtree(tmp_path / "own" / "test" / "eel")
    shutil.rmtree(tmp_path / "own" / "test" / "cat")
    test = load("folder", "test", tmp_path / "own")
    assert test.classes == ("cat", "dog")
    assert test.labels is not None
    assert test.labels.tolist() == [1, 1]


def test_a_colour_image_in_a_grey_folder_is_refused_and_the_first_is_named(tmp_path):
    for number in range(6):
        image = flat(number, 3, 8, 8) if number in (2, 3) else flat(number, 8, 8)
        picture(tmp_path / "own" / "a" / f"{number}.png", image)
    refusal("folder", tmp_path / "own", "a/2.png", "must be grey", "RGB")


def test_one_image_alone_is_no_test_split(tmp_path):
    picture(tmp_path / "own" / "a" / "0.png", flat(0, 8, 8))
    refusal("folder", tmp_path / "own", "own", split="test")


NPZ_DAMAGED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a NaN": (
        {"x": np.where(np.arange(6) == 4, np.nan, 0.5)[:, None, None] * np.ones((6, 8, 8))},
        ("x:", "image 4 has nan"),
    ),
    "floats up to 255": ({"x": pixels(0, 6, 8, 8).astype(float)}, ("x:", "0 … 1", "image 0")),
    "other numbers": ({"x": np.zeros((6, 8, 8), np.int64)}, ("x:", "uint8", "int64")),
    "objects": ({"x": np.array([None, {}], object)}, ("x:", "objects")),
    "labels of objects": ({"x": pixels(0, 6, 8, 8), "y": np.array([[]] * 6, object)}, ("y:",)),
    "four channels": ({"x": pixels(0, 6, 8, 8, 4)}, ("x:", "(6, 8, 8, 4)")),
    "channels at both ends": ({"x": pixels(0, 6, 3, 8, 3)}, ("x:", "one end only")),
    "no images": ({"x": pixels(0, 0, 8, 8)}, ("at least one image",)),
    "fewer labels": ({"x": pixels(0, 6, 8, 8), "y": np.zeros(5, int)}, ("y", "6 images", "5")),
    "a negative label": ({"x": pixels(0, 6, 8, 8), "y": np.array([0, 1, -1, 0, 1, 0])}, ("y:", "image 2 has -1")),
    "a huge label": ({"x": pixels(0, 6, 8, 8), "y": np.array([0, 1, 2**60, 0, 1, 0])}, ("y:", f"image 2 has {2**60}")),
    "labels of floats": ({"x": pixels(0, 6, 8, 8), "y": np.zeros(6)}, ("y:", "whole numbers", "float64")),
    "one-hot labels": ({"x": pixels(0, 6, 8, 8), "y": np.eye(6, dtype=int)}, ("y:", "(6, 6)")),
    "other names": ({"pictures": pixels(0, 6, 8, 8)}, ("x_train", "pictures")),
    "two of one kind": ({"x": pixels(0, 6, 8, 8), "images": pixels(0, 6, 8, 8)}, ("images once", "x and images")),
    "fewer masks": ({"x": pixels(0, 6, 8, 8), "masks": np.zeros((5, 8, 8))}, ("masks must have a mask for each", "5")),
    "masks of 255": (
        {"x": pixels(0, 6, 8, 8), "masks": np.full((6, 8, 8), 255)},
        ("masks: must be 0 or 1; image 0 has 255"),
    ),
    "larger masks": ({"x": pixels(0, 6, 8, 8), "masks": np.zeros((6, 9, 8))}, ("as large as the images, 8×8; got 9×8")),
    "the test split alone": ({"x_test": pixels(0, 6, 8, 8)}, ("x_train", "x_test")),
}


@pytest.mark.parametrize("case", NPZ_DAMAGED)
def test_a_damaged_npz_is_refused(case, tmp_path):
    arrays, words = NPZ_DAMAGED[case]
    np.savez(tmp_path / "own.npz", **arrays)
    refusal("npz", tmp_path / "own.npz", *words)


def test_an_npz_cut_off_or_flipped_anywhere_is_refused_or_read_right(tmp_path):
    path = tmp_path / "own.npz"
    x = pixels(0, 6, 8, 8)
    np.savez_compressed(path, x_train=x, y_train=np.arange(6))
    whole = path.read_bytes()
    for length in range(0, len(whole), 17):
        path.write_bytes(whole[:length])
        refusal("npz", path, "own.npz")
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
        try:
            found = load("npz", "train", path)
        except ValueError:
            refusal("npz", path, "own.npz")
        else:
            assert np.array_equal(found.pixels[:, 0], x)
    path.write_text("words")
    refusal("npz", path, "own.npz")
    refusal("npz", tmp_path / "nowhere.npz", "nowhere.npz", kind=FileNotFoundError)


FLIPPED = {
    "gz": ("mnist", "train-images-idx3-ubyte.gz", 61),
    "mat": ("svhn", "train_32x32.mat", 211),
    "png": ("folder", "train/cat/1.png", 5),
    "jpeg": ("tiny-imagenet", "train/n02/images/n02_0.JPEG", 11),
}


@pytest.mark.parametrize("case", FLIPPED)
def test_flipped_bits_are_refused_in_one_line_or_do_no_harm(case, originals, tmp_path):
    """Pixels may change unseen where a format has no checksum; of errors only a ValueError with the file may come."""
    name, file, step = FLIPPED[case]
    folder = tmp_path / place(originals, name).name
    shutil.copytree(place(originals, name), folder)
    shape, whole = load(name, "train", folder).pixels.shape, (folder / file).read_bytes()
    refused = 0
    for at in range(0, len(whole), step):
        (folder / file).write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            found = load(name, "train", folder)
        except ValueError:
            refused += 1
            refusal(name, folder, str(folder / file))
        else:
            assert found.pixels.shape == shape
    assert refused > 3


# Hostile sizes: memory is asked for what a file can hold, and not for what it says


def peak(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE = [(2**32 - 1, 28, 28), (2**32 - 1,) * 3, (2**31, 2**31, 4), (10**6, 28, 28)]


@pytest.mark.parametrize(("shape", "suffix"), [*turns(HUGE, ["", ".gz"]), (HUGE[0], ".gz")])
def test_a_hostile_idx_header_takes_no_memory(suffix, shape, tmp_path):
    body = bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape) + bytes(784 * 3)
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(gzip.compress(body) if suffix else body)
    idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(3))
    assert peak(lambda: refusal("mnist", tmp_path, path.name, "promises")) < 2**20


def test_a_gzip_bomb_is_read_no_further_than_its_header_promises(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 3, 28, 28)
    path.write_bytes(gzip.compress(head + bytes(2**24)))
    idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(3))
    assert peak(lambda: refusal("mnist", tmp_path, path.name, "more bytes", "3 records")) < 2**21


def test_a_promise_that_the_file_could_keep_and_does_not_takes_no_memory(tmp_path):
    """Random bytes do not compress, so the bound by the file's size alone would allow a thousand times as much."""
    path = tmp_path / "images.gz"
    body = bytes([0, 0, 8, 3]) + struct.pack(">3I", 200_000, 28, 28) + pixels(0, 2**18).tobytes()
    path.write_bytes(gzip.compress(body))
    with pytest.raises(ValueError, match="cut off in record 334 of 200000"):
        read_idx_file(path, 3)

    def read() -> None:
        with pytest.raises(ValueError, match="cut off"):
            read_idx_file(path, 3)

    assert peak(read) < 2**22


@pytest.mark.parametrize("shape", [(10**9, 28, 28), (2**62, 2**62, 4)])
def test_a_hostile_npz_header_takes_no_memory(shape, tmp_path):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(100)
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", content)
    assert peak(lambda: refusal("npz", tmp_path / "own.npz", "x_train", "does not hold")) < 2**20


# Optional dependencies


def test_a_missing_dependency_names_the_extra(originals, monkeypatch):
    real = builtins.__import__

    def without(wanted: str, *args: Any, **kwargs: Any) -> Any:
        if wanted.split(".")[0] == "PIL":
            raise ModuleNotFoundError(f"No module named {wanted!r}")
        return real(wanted, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"needs Pillow; pip install 'variational-nested-dropout\[data\]'"):
        load("folder", "train", place(originals, "folder"))


# Masks of one's own


@pytest.mark.parametrize("classes", [(), ("nothing", "cyst", "tumour")])
def test_a_folder_of_masks_is_read_whoever_and_however_many_drew_them(classes, tmp_path):
    for split, expected in annotated(tmp_path, classes).items():
        assert_same(load("folder", split, tmp_path), expected)
    for part in ("images", "masks"):  # and without a division
        shutil.move(tmp_path / "train" / part, tmp_path / part)
    for split in ("train", "test"):
        shutil.rmtree(tmp_path / split)
    train, test = (load("folder", split, tmp_path) for split in ("train", "test"))
    assert (len(train), len(test), test.grader_counts.tolist()) == (2, 1, [2])


def test_numbers_of_classes_are_places_in_a_palette(tmp_path):
    expected = annotated(tmp_path, ("a", "b", "c"))["train"]
    for path in (tmp_path / "train" / "masks").rglob("*.png"):
        with Image.open(path) as image:
            other = Image.fromarray(np.asarray(image)).convert("P")
            other.putdata(np.asarray(image).ravel().tolist())
        other.putpalette([200, 30, 30, 0, 0, 0, 255, 255, 255] + 253 * [9, 9, 9])
        other.save(path)
    assert_same(load("folder", "train", tmp_path), expected)


def lone(part, name, value=0):
    return lambda f: picture(f / "train" / part / name, flat(value, 9, 7))


MASKS = {
    "a mask of another size": (
        lambda f: picture(f / "train/masks/scan_2_1.png", flat(0, 9, 8)),
        ("scan_2_1.png", "7×9", "8×9"),
    ),
    "a mask of no image": (lone("masks", "skan_1.png"), ("skan_1.png", "must be of an image in")),
    "an image without a mask": (lone("images", "scan_7.png"), ("scan_7.png: has no mask", "scan_7_GRADER.png")),
    "a mask that was compressed": (lone("masks", "scan_2_7.jpg"), ("scan_2_7.jpg", ".png or .bmp")),
    "a class that has no name": (lone("masks", "scan_2_1.png", 3), ("scan_2_1.png", "0 … 2; row 0, column 0 is 3")),
    "a mask in colours": (
        lambda f: picture(f / "train/masks/scan_2_1.png", flat(1, 3, 9, 7)),
        ("scan_2_1.png", "one channel", "mode RGB"),
    ),
    "two images of one name": (lambda f: picture(f / "train/images/scan_1.bmp", flat(0, 3, 9, 7)), ("scan_1", "twice")),
    "classes of one name": (
        lambda f: (f / "classes.txt").write_text("a\na\n"),
        ("classes.txt", "2 names, 1 different"),
    ),
}


@pytest.mark.parametrize("case", MASKS)
def test_damaged_masks_are_refused_by_file(case, tmp_path):
    damage, words = MASKS[case]
    annotated(tmp_path, ("a", "b", "c"))
    damage(tmp_path)
    kind = FileNotFoundError if "without a mask" in case else ValueError
    refusal("folder", tmp_path, str(tmp_path), *words, kind=kind)


def test_marks_that_are_neither_black_nor_white_are_refused(tmp_path):
    annotated(tmp_path)
    picture(tmp_path / "train" / "masks" / "scan_2_1.png", flat(7, 9, 7))
    refusal("folder", tmp_path, "scan_2_1.png", "0 or 255")


@pytest.mark.parametrize("flat_masks", [False, True])
def test_npz_has_masks_of_any_graders_and_classes(flat_masks, tmp_path):
    x, counts = pixels(0, 5, 3, 9, 7), np.array([2, 1, 3, 1, 2])
    each = [pixels(seed, count, 9, 7) % 4 for seed, count in enumerate(counts)]
    padded = np.full((5, 3, 9, 7), 9, np.int16)  # what is beyond an image's own is never looked at
    for own, place in zip(each, padded, strict=True):
        place[: len(own)] = own
    masks = np.concatenate(each) if flat_masks else padded
    np.savez(
        tmp_path / "own.npz", x_train=x, masks_train=masks, graders_train=counts, x_test=x[:1], masks_test=each[0][None]
    )
    train, test = (load("npz", split, tmp_path / "own.npz") for split in ("train", "test"))
    assert (train.classes, test.classes) == (tuple("0123"),) * 2
    assert train.num_graders.tolist() == counts.tolist()
    for own, found in zip(each, train.masks, strict=True):
        assert np.array_equal(found[: len(own)], own)
        assert not found[len(own) :].any()
    assert test.num_graders is None
    np.savez(tmp_path / "bare.npz", x=x, masks=np.concatenate([own[:1] for own in each]) > 1)  # one annotator each
    bare = load("npz", "test", tmp_path / "bare.npz")
    assert (bare.classes, bare.masks.shape) == ((), (1, 1, 9, 7))


def own_npz(**arrays):
    return lambda f: np.savez(f / "own.npz", **({"x": np.zeros((4, 9, 7), np.uint8)} | arrays))


NPZ = {
    "masks of other images": (
        own_npz(masks=np.zeros((3, 9, 7))),
        ("own.npz", "masks must have a mask for each of the 4 images; got 3"),
    ),
    "masks of another size": (own_npz(masks=np.zeros((4, 9, 8))), ("as large as the images, 9×7", "got 9×8")),
    "half a mask": (own_npz(masks=np.full((4, 9, 7), 0.5)), ("own.npz: masks", "whole numbers", "image 0 has 0.5")),
    "a mask below zero": (own_npz(masks=-np.ones((4, 9, 7), np.int8)), ("own.npz: masks", "image 0 has -1")),
    "more graders than masks": (
        own_npz(masks=np.zeros((4, 2, 9, 7)), graders=np.array([1, 2, 3, 1])),
        ("own.npz: masks", "up to 3 graders"),
    ),
    "graders of no image": (
        own_npz(masks=np.zeros((4, 2, 9, 7)), graders=np.zeros(4, int)),
        ("num_graders must be whole numbers from 1",),
    ),
    "masks that do not add up": (
        own_npz(masks=np.zeros((7, 9, 7)), graders=np.array([1, 2, 3, 4])),
        ("the 10 that", "got 7"),
    ),
}


@pytest.mark.parametrize("case", NPZ)
def test_arrays_of_masks_that_cannot_be_are_refused(case, tmp_path):
    make, words = NPZ[case]
    make(tmp_path)
    with pytest.raises(ValueError, match=r"^npz: ") as caught:
        load("npz", "train", tmp_path / "own.npz")
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
