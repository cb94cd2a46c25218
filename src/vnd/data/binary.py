"""Data sets of one file or a few: IDX (MNIST and its kin), CIFAR's binary version, SVHN's MATLAB files, `.npz`.

What a header promises is held against what the file can hold before memory is asked for; nothing is unpickled.
"""

import gzip
import hashlib
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Collection
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vnd._text import one_line
from vnd.data.arrays import KINDS, labels_of, split_of, with_classes_of
from vnd.data.images import DEFLATE, Images, check_labels, last_fifth, present, stack_masks

CHUNK = 2**20
STEMS = {"train": "train", "test": "t10k"}
CIFAR_PIXELS = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
SPLITS = ("train", "test")
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, OverflowError, UnicodeError)
DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EMBEDDED = files("vnd.data").joinpath("embedded")  # IDX files in xz, with their licenses beside them
LARGEST = 12_000 * 28 * 28  # bytes of the largest array of these
EMBEDDED_SHA256 = {
    "fashion-mnist-12k/train-images-idx3-ubyte.xz": "0264801cd718699e5ad1980d6d7f2a37e05ca203081e677234c9d226fd743d3a",
    "fashion-mnist-12k/train-labels-idx1-ubyte.xz": "71515a6ff114bbc89b6a6a5c9cc12e617bf06c433edd42ad8378b3e27e3621bc",
    "fashion-mnist-12k/t10k-images-idx3-ubyte.xz": "1fc8997481a618c88f88289c178961294be868af17404d626c04a306926bde6b",
    "fashion-mnist-12k/t10k-labels-idx1-ubyte.xz": "6ec06759b79da20f1bd01e6b2aa9b21b6c4b997c6dc3351f2c7650ddbd463b50",
    "digits/t10k-images-idx3-ubyte.xz": "b33e203e9818c7da224b25063b658c5028aa92b5ddd1781918b22928a3021aad",
    "digits/t10k-labels-idx1-ubyte.xz": "dd5cba62f41ec12db3a7b8b6b51e3f4e5c7a9d2f3ce0887639673ef6d0b56540",
}


def read_idx(folder: Path, split: Literal["train", "test"], classes: tuple[str, ...], size: int) -> Images:
    """Read `{train,t10k}-{images-idx3,labels-idx1}-ubyte`, plain (memory-mapped) or with `.gz`.

    t10k is the test split; `size` is the height and width that the images must have.
    """
    images, labels = (_idx_file(folder / f"{STEMS[split]}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    return assemble_idx(read_idx_file(images, 3), read_idx_file(labels, 1), classes, size, images, labels)


def assemble_idx(
    pixels: NDArray[np.uint8], labels: NDArray[np.uint8], classes: tuple[str, ...], size: int, images: Any, where: Any
) -> Images:
    """A split of two IDX arrays; `images` and `where` name their files."""
    if pixels.shape[1:] != (size, size):
        raise ValueError(f"{images}: images must have {size}×{size} pixels; got {pixels.shape[2]}×{pixels.shape[1]}")
    if len(labels) != len(pixels):
        raise ValueError(f"{where}: must have a label for each of the {len(pixels)} images; got {len(labels)}")
    check_labels(labels, len(classes), where, "record")
    return Images(pixels[:, None], labels.astype(np.int64), classes)


def read_idx_file(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one IDX file of bytes; a plain one is memory-mapped."""
    size = path.stat().st_size
    if path.suffix != ".gz":
        with path.open("rb") as file:
            shape = idx_header(file, dimensions, str(path), most=size)
            start = file.tell()
        if prod(shape) != size - start:
            raise _wrong_length(shape, size - start, str(path))
        return np.memmap(path, np.uint8, "r", start, shape) if size > start else np.zeros(shape, np.uint8)
    with gzip.GzipFile(path) as stream:
        return parse_idx(stream, dimensions, str(path), most=DEFLATE * size)


def parse_idx(stream: io.BufferedIOBase, dimensions: int, where: str, most: int) -> NDArray[np.uint8]:
    """Read IDX from a stream of decompressed bytes, never more of them than its header promises, and one."""
    shape = idx_header(stream, dimensions, where, most)
    body, size = bytearray(), prod(shape)
    try:
        while len(body) <= size and (part := stream.read1(min(CHUNK, size + 1 - len(body)))):
            body += part  # grows with what there is, whatever was promised
    except (EOFError, OSError, zlib.error) as error:
        said = f"is cut off or damaged at record {len(body) // max(1, prod(shape[1:]))} of {shape[0]}"
        raise ValueError(f"{where}: {said} ({type(error).__name__}: {error})") from None
    if len(body) != size:
        raise _wrong_length(shape, len(body), where)
    return np.frombuffer(body, np.uint8).reshape(shape)


def idx_header(stream: io.BufferedIOBase, dimensions: int, where: str, most: int) -> tuple[int, ...]:
    """The sizes that a header gives, if a file with room for `most` bytes can keep its promise."""
    try:
        head = stream.read(4 + 4 * dimensions)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{where}: is damaged in its header ({type(error).__name__}: {error})") from None
    if head[:4] != bytes([0, 0, 8, dimensions]):
        wanted = f"an IDX file of bytes in {dimensions} dimensions"
        raise ValueError(
            f"{where}: must be {wanted}, beginning 0 0 8 {dimensions}; it begins {' '.join(map(str, head[:4]))}"
        )
    if len(head) < 4 + 4 * dimensions:
        raise ValueError(f"{where}: is cut off in its header")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    if prod(shape) > most:
        raise ValueError(f"{where}: its header promises {' × '.join(map(str, shape))} bytes, more than it can hold")
    return shape


def _idx_file(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    if not (path.is_file() or packed.is_file()):
        raise FileNotFoundError(f"{path}: neither it nor {packed.name} is there")
    return path if path.is_file() else packed


def _wrong_length(shape: tuple[int, ...], length: int, where: str) -> ValueError:
    if length > prod(shape):
        return ValueError(f"{where}: has more bytes than the {shape[0]} records that its header promises")
    return ValueError(f"{where}: is cut off in record {length // prod(shape[1:])} of {shape[0]}")


def read_fashion(_: Path, split: Literal["train", "test"]) -> Images:
    """12,000 training and 3,000 test images of Fashion-MNIST, drawn at random from its own splits; 28×28, grey.

    Xiao, Rasul and Vollgraf (2017), MIT licence.
    """
    return _embedded("fashion-mnist-12k", split, FASHION, 28)


def read_digits(_: Path, split: Literal["train", "test"]) -> Images:
    """1,797 handwritten digits of 8×8 pixels, all of them the test split; the counts 0 … 16 are scaled to 0 … 255.

    Alpaydin and Kaynak (1998), UCI Machine Learning Repository, CC BY 4.0; the test part of `optdigits`, as
    scikit-learn's `load_digits` has it.
    """
    if split == "train":
        raise ValueError("has a test split only; it is for images from another domain")
    return _embedded("digits", split, DIGITS, 8)


def _embedded(folder: str, split: Literal["train", "test"], classes: tuple[str, ...], size: int) -> Images:
    images, labels = (f"{folder}/{STEMS[split]}-{kind}-ubyte.xz" for kind in ("images-idx3", "labels-idx1"))
    return assemble_idx(_embedded_array(images, 3), _embedded_array(labels, 1), classes, size, images, labels)


def _embedded_array(name: str, dimensions: int) -> NDArray[np.uint8]:
    content = EMBEDDED.joinpath(name).read_bytes()
    if hashlib.sha256(content).hexdigest() != EMBEDDED_SHA256[name]:
        raise ValueError(f"the embedded file {name} is damaged: its SHA-256 is not the one it had; install vnd again")
    with lzma.open(io.BytesIO(content)) as stream:
        return parse_idx(stream, dimensions, name, most=LARGEST)


def read_cifar10(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `data_batch_1.bin` … `data_batch_5.bin`, or `test_batch.bin`, which is memory-mapped.

    Krizhevsky (2009); 50,000 and 10,000 images of 10 classes, whose names are in `batches.meta.txt`.
    """
    names = BATCHES if split == "train" else ("test_batch.bin",)
    batches = [_cifar_records(folder / name, label_bytes=1, classes=10) for name in names]
    for name, batch in zip(names, batches, strict=True):
        if len(batch) != len(batches[0]):  # as when a file was cut off just between two records
            raise ValueError(
                f"{folder / name}: must have as many records as {names[0]}, {len(batches[0])}; got {len(batch)}"
            )
    records = batches[0] if len(batches) == 1 else np.concatenate(batches)
    return _cifar_images(records, 1, _cifar_names(folder / "batches.meta.txt", 10))


def read_cifar100(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `train.bin` or `test.bin`, memory-mapped; the fine labels, and not the coarse ones before them.

    Krizhevsky (2009); 50,000 and 10,000 images of 100 classes, whose names are in `fine_label_names.txt`.
    """
    records = _cifar_records(folder / f"{split}.bin", label_bytes=2, classes=100)
    return _cifar_images(records, 2, _cifar_names(folder / "fine_label_names.txt", 100))


def _cifar_records(path: Path, label_bytes: int, classes: int) -> NDArray[np.uint8]:
    size, length = present(path).stat().st_size, label_bytes + CIFAR_PIXELS
    if not size or size % length:
        raise ValueError(f"{path}: is cut off in record {size // length}; a record has {length} bytes, the file {size}")
    records = np.memmap(path, np.uint8, "r", shape=(size // length, length))
    check_labels(records[:, label_bytes - 1], classes, str(path), "record")
    return records


def _cifar_images(records: NDArray[np.uint8], label_bytes: int, names: tuple[str, ...]) -> Images:
    pixels = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    return Images(pixels, records[:, label_bytes - 1].astype(np.int64), names)


def _cifar_names(path: Path, count: int) -> tuple[str, ...]:
    """The names of the classes; their numbers where the file of names was left behind."""
    if not path.is_file():
        return tuple(map(str, range(count)))
    names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if len(names) != count:
        raise ValueError(f"{path}: must have {count} names; got {len(names)}")
    return names


def read_svhn(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `train_32x32.mat` or `test_32x32.mat`: X is (32, 32, 3, N), y is (N, 1) with 10 for the digit 0.

    Netzer et al. (2011); 73,257 and 26,032 digits of 10 classes.
    """
    path = present(folder / f"{split}_32x32.mat")
    pixels, labels = _load_mat(path)
    if pixels.shape[:3] != (32, 32, 3) or pixels.ndim != 4 or pixels.dtype != np.uint8:
        raise ValueError(f"{path}: X must be uint8 (32, 32, 3, N); got {pixels.dtype} {pixels.shape}")
    count = pixels.shape[3]
    if labels.shape != (count, 1) or not np.issubdtype(labels.dtype, np.number):
        raise ValueError(
            f"{path}: y must have a number for each of the {count} images; got {labels.dtype} {labels.shape}"
        )
    wrong = np.flatnonzero((labels[:, 0] != np.round(labels[:, 0])) | ~np.isfinite(labels[:, 0]))
    if len(wrong):
        raise ValueError(f"{path}: y must hold whole numbers; record {wrong[0]} has {labels[wrong[0], 0]}")
    digits = labels[:, 0].astype(np.int64)
    check_labels(digits - 1, 10, f"{path}: y less 1", "record")
    return Images(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), digits % 10, DIGITS)


def _load_mat(path: Path) -> tuple[Any, Any]:
    from scipy.io import loadmat, whosmat

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        missing = next((name for name in ("X", "y") if name not in shapes), None)
        if missing is None and np.prod(shapes["X"], dtype=float) > DEFLATE * path.stat().st_size:
            raise ValueError(f"X is said to be {shapes['X']}, more than the file can hold")
        arrays = {} if missing else loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # SciPy's reader raises many kinds
        raise ValueError(f"{path}: is cut off, or not a MATLAB file of SVHN: {one_line(error)}") from None
    if missing:
        raise ValueError(f"{path}: has no variable {missing}")
    return arrays["X"], arrays["y"]


def read_npz(path: Path, split: Literal["train", "test"]) -> Images:
    """Read x_train, y_train, x_test and y_test, or x and y, of which the last 20 % of each class are the test split.

    "images" may be written for x and "labels" for y, and the split before them: train_images. With "masks" in the place
    of y, or beside it, there are masks, and "graders" says how many an image has, where they differ. What each array
    must be is said in `arrays.split_of`; labels and masks may be left out. Classes are 0 … the highest label, or number
    in a mask, of both splits. Nothing is unpickled.
    """
    present(path)
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            names = {Path(name).stem: name for name in archive.namelist() if name.endswith(".npy")}
            divided = any(_entry(names, "images", part, path) for part in SPLITS)
            own = {kind: _entry(names, kind, split if divided else "", path) for kind in KINDS}
            if own["images"] is None:
                raise ValueError(f"{path}: must have x_train and x_test, or x; it has {', '.join(names) or 'nothing'}")

            def array(name: str) -> NDArray[Any]:
                return _npz_array(archive, names[name], f"{path}: {name}")

            where = {kind: f"{path}: {name}" for kind, name in own.items() if name}
            images = split_of({kind: array(name) for kind, name in own.items() if name}, where)
            others = [{kind: _entry(names, kind, part, path) for kind in KINDS} for part in SPLITS if part != split]
            labels, masks = list[NDArray[np.int64]](), list[NDArray[np.uint8]]()
            for other in others if divided else ():
                if name := other["labels"]:
                    labels.append(labels_of(array(name), f"{path}: {name}"))
                if name := other["masks"]:
                    counts = array(other["graders"]) if other["graders"] else None
                    masks.append(stack_masks(array(name), counts, f"{path}: {name}")[0])
    except DAMAGE as error:
        raise ValueError(f"{path}: is cut off, or not a .npz file: {one_line(error)}") from None
    return with_classes_of(images, labels, masks) if divided else _divided(images, split)


def _entry(names: Collection[str], kind: str, split: str, path: Path) -> str | None:
    """The name of an array of a kind and a split in an archive, if there is one."""
    words = [word for name in KINDS[kind] for word in ((f"{name}_{split}", f"{split}_{name}") if split else (name,))]
    found = [word for word in words if word in names]
    if len(found) > 1:
        raise ValueError(f"{path}: must have its {kind} once; got {' and '.join(found)}")
    return found[0] if found else None


def _npz_array(archive: zipfile.ZipFile, name: str, where: str) -> NDArray[Any]:
    """One array, if the file has the bytes that its header promises; memory is not asked for before that."""
    about = archive.getinfo(name)
    if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{where}: must be stored or deflated, as numpy.savez has it")
    with archive.open(about) as file:
        try:
            version = np.lib.format.read_magic(file)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = reader(file)
            start = file.tell()
        except Exception as error:  # it is parsed as Python, so of many kinds
            raise ValueError(f"{where}: is not an array of NumPy: {one_line(error)}") from None
        if dtype.hasobject:
            raise ValueError(f"{where}: must hold numbers; it holds Python objects, which are not unpickled")
        size = prod(shape) * dtype.itemsize
        if start + size != about.file_size or about.file_size > DEFLATE * (about.compress_size + 1):
            raise ValueError(f"{where}: its header promises {shape} of {dtype}, which the file does not hold")
        file.seek(0)
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _divided(images: Images, split: Literal["train", "test"]) -> Images:
    """The last 20 % of each class, or all but those; of all images where there are no labels."""
    labels = np.zeros(len(images), np.int64) if images.labels is None else images.labels
    test = np.zeros(len(images), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        test[members[len(members) - last_fifth(len(members)) :]] = True
    return images.take(np.flatnonzero(test if split == "test" else ~test))
