"""Registry of data sets: sizes, files, license, download and reader of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vnd._code import names_code
from vnd._text import check_known, nearest
from vnd.data import arrays, binary, image_folder, synthetic
from vnd.data.decode import data_root
from vnd.data.images import Images, check

__all__ = ["DATASETS", "DataSet", "Remote", "data_root", "load"]


@dataclass(frozen=True)
class Remote:
    """A file to download: its address, SHA-256 in hexadecimal, bytes, and kind of archive."""

    url: str
    sha256: str
    size: int
    unpack: Literal["tar", "zip", "none"]


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Args:
        name, about, licence: For people, a line each.
        read: Reads a split from a folder.
        folder: Its folder below the data root, as the official archive unpacks.
        channels, size, num_classes: Of its images; 0 where users have their own, or there are no labels.
        files: Patterns of which one file is there if a training split is, and if a test split is.
        remotes: Files to download, if a program may.
        manual: Instructions to get it by hand.
        embedded: Whether it comes with the library.
        truth: The distribution that graders draw from, where known: masks (N, K, H, W) and probabilities (N, K).
    """

    name: str
    about: str
    licence: str
    read: Callable[[Path, Literal["train", "test"]], Images]
    folder: str
    channels: int
    size: int
    num_classes: int
    files: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    remotes: tuple[Remote, ...] = ()
    manual: str = ""
    embedded: bool = False
    truth: Callable[[Literal["train", "test"]], tuple[NDArray[np.uint8], NDArray[np.float64]]] | None = None


def _remotes(base: str, unpack: Literal["tar", "zip", "none"], files: dict[str, tuple[str, int]]) -> tuple[Remote, ...]:
    """Files of one server: name → SHA-256 and bytes."""
    return tuple(Remote(base + name, sha256, size, unpack) for name, (sha256, size) in files.items())


CIFAR = "https://www.cs.toronto.edu/~kriz/"
HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers/"
_ALL = (
    DataSet(
        "fashion", "Fashion-MNIST, 12,000 + 3,000 of its images; comes with vnd", "MIT",
        binary.read_fashion, "", 1, 28, 10, embedded=True,
    ),
    DataSet(
        "digits", "UCI handwritten digits, 1,797 for testing; comes with vnd", "CC BY 4.0",
        binary.read_digits, "", 1, 8, 10, embedded=True,
    ),
    DataSet(
        "synthetic_graders",
        "synthetic blobs, 4,096 + 512, each marked by four graders with known probabilities; comes with vnd",
        "Apache 2.0",
        synthetic.read, "", 1, synthetic.SIZE, 0, embedded=True, truth=synthetic.truth,
    ),
    DataSet(
        "cifar10", "CIFAR-10, 50,000 + 10,000 photographs of 10 classes", "none stated; cite Krizhevsky (2009)",
        binary.read_cifar10, "cifar-10-batches-bin", 3, 32, 10, (("data_batch_*.bin",), ("test_batch.bin",)),
        _remotes(CIFAR, "tar", {
        "cifar-10-binary.tar.gz": ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170_052_171),
        }),
        manual=f"unpack {CIFAR}cifar-10-binary.tar.gz",
    ),
    DataSet(
        "cifar100", "CIFAR-100, 50,000 + 10,000 photographs of 100 classes", "none stated; cite Krizhevsky (2009)",
        binary.read_cifar100, "cifar-100-binary", 3, 32, 100, (("train.bin",), ("test.bin",)),
        _remotes(CIFAR, "tar", {
        "cifar-100-binary.tar.gz": ("58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", 168_513_733),
        }),
        manual=f"unpack {CIFAR}cifar-100-binary.tar.gz",
    ),
    DataSet(
        "svhn", "Street View House Numbers, 73,257 + 26,032 digits", "non-commercial use only",
        binary.read_svhn, "svhn", 3, 32, 10, (("train_32x32.mat",), ("test_32x32.mat",)),
        _remotes(HOUSE_NUMBERS, "none", {
        "train_32x32.mat": ("435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794),
        "test_32x32.mat": ("cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384),
        }),
        manual=f"put train_32x32.mat and test_32x32.mat of {HOUSE_NUMBERS} there",
    ),
    DataSet(
        "tiny-imagenet", "Tiny ImageNet, 100,000 + 10,000 photographs of 200 classes",
        "that of ImageNet: non-commercial research and education only",
        image_folder.read_tiny_imagenet, "tiny-imagenet-200", 3, 64, 200, (("wnids.txt",), ("wnids.txt",)),
        _remotes("http://cs231n.stanford.edu/", "zip", {
        "tiny-imagenet-200.zip": ("6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821", 248_100_043),
        }),
        manual="unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ),
    DataSet(
        "mnist", "MNIST, 60,000 + 10,000 handwritten digits", "CC BY-SA 3.0",
        partial(binary.read_idx, classes=binary.DIGITS, size=28), "mnist", 1, 28, 10,
        (("train-*-ubyte*",), ("t10k-*-ubyte*",)),
        _remotes("https://storage.googleapis.com/cvdf-datasets/mnist/", "none", {
        "train-images-idx3-ubyte.gz": ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        "train-labels-idx1-ubyte.gz": ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        "t10k-images-idx3-ubyte.gz": ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        "t10k-labels-idx1-ubyte.gz": ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        }),
        manual="put the four files {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz there",
    ),
    DataSet(
        "fashion-mnist", "Fashion-MNIST, 60,000 + 10,000 pieces of clothing", "MIT",
        partial(binary.read_idx, classes=binary.FASHION, size=28), "fashion-mnist", 1, 28, 10,
        (("train-*-ubyte*",), ("t10k-*-ubyte*",)),
        _remotes("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", "none", {
        "train-images-idx3-ubyte.gz": ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        "train-labels-idx1-ubyte.gz": ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        "t10k-images-idx3-ubyte.gz": ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        "t10k-labels-idx1-ubyte.gz": ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        }),
        manual="put the four files of https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion there",
    ),
    DataSet(
        "celeba", "CelebA, 202,599 faces at 64×64", "non-commercial research only",
        image_folder.read_celeba, "celeba", 3, 64, 0, (("img_align_celeba", "Img/img_align_celeba", "celeba64"),) * 2,
        manual="of https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html put img_align_celeba/ and "
        "list_eval_partition.txt there",
    ),
    DataSet(
        "chairs", "3D Chairs, 86,366 renderings of 1,393 chairs at 64×64", "none stated; cite Aubry et al. (2014)",
        image_folder.read_chairs, "rendered_chairs", 3, 64, 0, (("*/renders",),) * 2,
        manual="unpack rendered_chairs.tar of https://www.di.ens.fr/willow/research/seeing3Dchairs/",
    ),
    DataSet(
        "chest-xray", "Chest X-ray, 5,232 + 624 radiographs of healthy lungs and pneumonia at 64×64", "CC BY 4.0",
        image_folder.read_chest_xray, "chest_xray", 1, 64, 2,
        (("train/NORMAL", "train/PNEUMONIA"), ("test/NORMAL", "test/PNEUMONIA")),
        manual="unpack ChestXRay2017.zip of https://data.mendeley.com/datasets/rscbjbr9sj/2",
    ),
    DataSet(
        "lidc", "LIDC-IDRI, slices of lung nodules at 128×128, each marked by four graders", "CC BY 3.0",
        image_folder.read_lidc, "LIDC-IDRI-slices", 1, 128, 0, (("*/nodule-*/images",),) * 2,
        manual="unpack LIDC-IDRI-slices of https://www.kaggle.com/datasets/zhangweiled/lidcidri",
    ),
    DataSet(
        "folder", "your own images: {train,test}/CLASS/* or CLASS/*, all of one size", "yours",
        image_folder.read_own, "", 0, 0, 0, manual="give the path of your folder",
    ),
    DataSet(
        "npz", "your own arrays: one .npz with x_train, y_train, x_test, y_test, or x and y; masks in the place of y",
        "yours",
        binary.read_npz, "", 0, 0, 0, manual="give the path of your .npz file",
    ),
)  # fmt: skip
DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _ALL}


def find(name: str, who: str, options: Mapping[str, Any] | None = None, key: str = "data.name") -> DataSet:
    """The data set of a name, or what a function of one's own gives with some options; `who` asks, for the message.

    Args:
        name: One of `DATASETS`, or `package.module:function`.
        who: Who asks, where there is none of the name.
        options: Arguments of the function.
        key: That of the recipe that names a function, where one is refused.
    """
    if not isinstance(name, str):
        raise ValueError(f"{who}: name must be that of a data set, text; got a {type(name).__name__}")
    if names_code(name):
        function = arrays.check_function(name, options or {}, key)
        read = partial(_of_function, function, dict(options or {}))
        return DataSet(name, "what a function of your own gives", "yours", read, "", 0, 0, 0)
    if name not in DATASETS:
        hint = nearest(str(name).lower(), DATASETS)
        raise ValueError(f"{who}: unknown data set {name!r}{hint} Known: {', '.join(DATASETS)}")
    return DATASETS[name]


def _of_function(
    function: Callable[..., Any], options: Mapping[str, Any], _: Path, split: Literal["train", "test"]
) -> Images:
    return arrays.from_function(function, options, split)


def is_own(name: str) -> bool:
    """Tell if data are the user's own, so that nothing is known of them before they are read."""
    return names_code(name) or DATASETS[name].size == 0


def check_name(key: str, name: str, folder: str | None, options: Mapping[str, Any]) -> None:
    """Refuse the name of no data set, and a folder or options where there is no use for them."""
    beside = key.removesuffix("name")  # of "name" and of "ood": what its folder and options are called
    beside += "_" if beside else ""
    if names_code(name):
        arrays.check_function(name, options, key)
        if folder is not None:
            raise ValueError(
                f"{beside}folder is for sets that lie in one; give {name} its arguments by {beside}options"
            )
        return
    check_known(key, name, [*DATASETS, "package.module:function"])
    if options:
        raise ValueError(f"{beside}options are for a function of your own; {name} takes none, got {dict(options)}")


def load(
    name: str,
    split: Literal["train", "test"],
    folder: Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Images:
    """Read and check one split of a data set.

    Args:
        name: One of `DATASETS`, or `package.module:function` for what a function of one's own gives: (train, test),
            each `Images`, or images and labels or masks as arrays.
        split: "train" or "test".
        folder: Where the official files lie: the data set's own folder, or one that has it by its official name; by
            default `data_root()`. For `folder` and `npz` the path of the user's own. Embedded data sets need none.
        options: Arguments of a function.

    >>> images = load("fashion", "test")
    >>> images.pixels.shape, images.classes[images.labels[0]]
    ((3000, 1, 28, 28), 'Dress')
    >>> load("cifar", "test")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: load: unknown data set 'cifar', did you mean 'cifar10'? Known: fashion, digits, synthetic_graders, ...
    """
    dataset = find(name, "load", options)
    if split not in ("train", "test"):
        raise ValueError(f"load: split must be 'train' or 'test'; got {split!r}")
    try:
        return check(dataset.read(_place(dataset, folder), split), f"the {split} split")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _place(dataset: DataSet, folder: Path | None) -> Path:
    """Folder to read: the data set's below the one given, if it is there, else the one given."""
    if dataset.embedded or names_code(dataset.name):
        return Path()
    if folder is None and not dataset.folder:
        raise ValueError(dataset.manual)
    inner = (data_root() if folder is None else Path(folder)) / dataset.folder
    place = inner if folder is None or inner.exists() else Path(folder)
    if not place.exists():
        raise FileNotFoundError(f"{place}: no such folder; {dataset.manual}, or say where it lies")
    return place
