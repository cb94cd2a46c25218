"""Tiny copies of the data sets in their official layouts, and what a reader must make of them."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from vnd.data import Images
from vnd.data.image_folder import is_test_patient

Splits = dict[str, Images]


def pixels(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Write an IDX file, as gzip if its name says so."""
    body = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    body += array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(body, mtime=0) if path.suffix == ".gz" else body)


def picture(path: Path, image: np.ndarray[Any, Any]) -> None:
    """Write one image (C, H, W), or (H, W), in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = image.transpose(1, 2, 0) if image.ndim == 3 and len(image) == 3 else image.reshape(image.shape[-2:])
    Image.fromarray(np.ascontiguousarray(array)).save(path)


def flat(value: int, *shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An image of one grey, which JPEG and resizing leave as it is."""
    return np.full(shape, value, np.uint8)


def mnist(folder: Path, suffix: str = ".gz") -> Splits:
    splits = {}
    for number, (split, stem, count) in enumerate((("train", "train", 7), ("test", "t10k", 4))):
        x, y = pixels(number, count, 28, 28), (np.arange(count) * 3) % 10
        idx(folder / f"{stem}-images-idx3-ubyte{suffix}", x)
        idx(folder / f"{stem}-labels-idx1-ubyte{suffix}", y)
        splits[split] = Images(x[:, None], y, tuple("0123456789"))
    return splits


def cifar10(folder: Path) -> Splits:
    x, y = pixels(0, 18, 3, 32, 32), np.arange(18) % 10
    names = [f"class{i}" for i in range(10)]
    for number in range(6):
        part = slice(3 * number, 3 * number + 3)
        records = np.concatenate([y[part, None].astype(np.uint8), x[part].reshape(3, -1)], 1)
        (folder / (f"data_batch_{number + 1}.bin" if number < 5 else "test_batch.bin")).write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    whole = Images(x, y, tuple(names))
    return {"train": whole.take(range(15)), "test": whole.take(range(15, 18))}


def cifar100(folder: Path) -> Splits:
    splits = {}
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine{i}" for i in range(100)) + "\n")
    for seed, (split, count) in enumerate((("train", 5), ("test", 3))):
        x, fine, coarse = pixels(seed, count, 3, 32, 32), np.arange(count) * 20, np.full(count, 19)
        labels = np.stack([coarse, fine], 1).astype(np.uint8)
        (folder / f"{split}.bin").write_bytes(np.concatenate([labels, x.reshape(count, -1)], 1).tobytes())
        splits[split] = Images(x, fine, tuple(f"fine{i}" for i in range(100)))
    return splits


def svhn(folder: Path) -> Splits:
    splits = {}
    for seed, (split, count) in enumerate((("train", 5), ("test", 3))):
        x, y = pixels(seed, count, 3, 32, 32), np.array([0, 9, 1, 0, 5])[:count]
        stored = {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None].astype(np.uint8)}
        savemat(folder / f"{split}_32x32.mat", stored, do_compression=True)
        splits[split] = Images(x, y, tuple("0123456789"))
    return splits


def tiny_imagenet(folder: Path) -> Splits:
    classes = "n02", "n01"  # in the order of wnids.txt, which is not that of names
    (folder / "wnids.txt").write_text("\n".join(classes) + "\n")
    train = [flat(10 * i, 3, 64, 64) for i in range(4)]
    for number, image in enumerate(train):
        name = classes[number // 2]
        stored = image[0] if number == 3 else image  # a grey one among them
        picture(folder / "train" / name / "images" / f"{name}_{number}.JPEG", stored)
    lines, val = [], [flat(100 + i, 3, 64, 64) for i in range(3)]
    for number, image in enumerate(val):
        picture(folder / "val" / "images" / f"val_{number}.JPEG", image)
        lines.append(f"val_{number}.JPEG\t{classes[number % 2]}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return {
        "train": Images(np.stack(train), np.array([0, 0, 1, 1]), classes),
        "test": Images(np.stack(val), np.array([0, 1, 0]), classes),
    }


def celeba(folder: Path) -> Splits:
    """Official images: what lies outside of the centre square of 148 is of another grey."""
    parts = [0, 0, 1, 2, 1, 2]
    for number in range(6):
        image = flat(255, 3, 218, 178)
        image[:, 35:183, 15:163] = 20 * number
        picture(folder / "img_align_celeba" / f"{number:06d}.png", image)
    lines = [f"{number:06d}.png {part}\n" for number, part in enumerate(parts)]
    (folder / "list_eval_partition.txt").write_text("".join(lines))
    whole = Images(np.stack([flat(20 * number, 3, 64, 64) for number in range(6)]))
    return {"train": whole.take([0, 1, 2, 4]), "test": whole.take([3, 5])}


def chairs(folder: Path) -> Splits:
    images, groups = [], []
    for chair in range(3):
        for side in range(2):
            images.append(flat(10 * chair + side, 3, 64, 64))
            groups.append(chair)
            picture(folder / f"{'abc'[chair]}" / "renders" / f"{side}.png", flat(10 * chair + side, 3, 100, 100))
    (folder / "all_chair_names.mat").write_bytes(b"")
    whole = Images(np.stack(images), groups=np.array(groups))
    return {"train": whole.take(range(4)), "test": whole.take([4, 5])}


def chest_xray(folder: Path) -> Splits:
    splits = {}
    for base, (split, counts) in enumerate((("train", (2, 3)), ("test", (1, 2)))):
        images, labels = [], []
        for label, name in enumerate(("NORMAL", "PNEUMONIA")):
            for number in range(counts[label]):
                grey = 100 * base + 10 * label + number
                images.append(flat(grey, 1, 64, 64))
                labels.append(label)
                stored = flat(grey, 3, 70, 90) if number else flat(grey, 120, 100)  # some are stored as RGB
                picture(folder / split / name / f"{number}.{'jpeg' if label else 'png'}", stored)
            (folder / split / name / "._0.jpeg").write_bytes(b"what a Mac leaves in archives")
        splits[split] = Images(np.stack(images), np.array(labels), ("NORMAL", "PNEUMONIA"))
    return splits


def lidc(folder: Path) -> Splits:
    splits = {}
    patients = [f"LIDC-IDRI-{i:04d}" for i in range(1, 10)]  # of these, 0006 and 0008 are for testing
    for split in ("train", "test"):
        images, masks, groups = [], [], []
        for owner, patient in enumerate(patients):
            if is_test_patient(patient) != (split == "test"):
                continue
            for nodule, slices in ((9, (2, 9, 10)), (10, (1,))):
                for number in slices:
                    seed = 1000 * owner + 100 * nodule + number
                    image, marks = pixels(seed, 1, 128, 128), pixels(seed + 1, 4, 128, 128) % 2
                    images.append(image)
                    masks.append(marks)
                    groups.append(owner)
                    place = folder / patient / f"nodule-{nodule}"
                    picture(place / "images" / f"slice-{number}.png", image)
                    for grader in range(4):
                        picture(place / f"mask-{grader}" / f"slice-{number}.png", marks[grader] * np.uint8(255))
        splits[split] = Images(
            np.stack(images), masks=np.stack(masks), groups=np.array(groups), group_names=tuple(patients)
        )
    return splits


def own_folder(folder: Path) -> Splits:
    splits = {}
    for seed, (split, count) in enumerate((("train", 3), ("test", 2))):
        x = pixels(seed, 2 * count, 3, 12, 10)
        for number in range(2 * count):
            picture(folder / split / ("cat", "dog")[number // count] / f"{number}.png", x[number])
        splits[split] = Images(x, np.arange(2 * count) // count, ("cat", "dog"))
    return splits


LAYOUTS: dict[str, Callable[[Path], Splits]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "tiny-imagenet": tiny_imagenet,
    "celeba": celeba,
    "chairs": chairs,
    "chest-xray": chest_xray,
    "lidc": lidc,
    "folder": own_folder,
}


def assert_same(found: Images, expected: Images) -> None:
    assert (found.classes, found.group_names) == (expected.classes, expected.group_names)
    for name in ("pixels", "labels", "masks", "num_graders", "groups"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == (np.uint8 if name in ("pixels", "masks") else np.int64), name
            assert np.array_equal(one, other), name


def annotated(folder: Path, classes: tuple[str, ...] = ()) -> Splits:
    """A folder of images and their masks: 1, 3 and 2 annotators in training, by folders and by names; one of a test."""
    splits, most = {}, max(2, len(classes))
    for seed, (split, counts) in enumerate((("train", (1, 3, 2)), ("test", (1, 2)))):
        x, masks = pixels(seed, len(counts), 3, 9, 7), np.zeros((len(counts), max(counts), 9, 7), np.uint8)
        for number, count in enumerate(counts):
            picture(folder / split / "images" / f"scan_{number}.png", x[number])
            for grader in range(count):
                masks[number, grader] = pixels(seed + 10 * number + grader, 9, 7) % most
                flat = masks[number, grader] * np.uint8(1 if classes else 255)
                place = f"scan_{number}/dr-{grader}.png" if number % 2 else f"scan_{number}_{grader}.png"
                picture(folder / split / "masks" / place, flat)
        splits[split] = Images(x, classes=classes, masks=masks, num_graders=np.array(counts))
    if classes:
        (folder / "classes.txt").write_text("\n".join(classes) + "\n")
    return splits
