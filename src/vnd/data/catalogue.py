"""The data sets by name: what each is, where it lies, how it is had, and how it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vnd.data import annotators, celeba, chairs, cifar, embedded, folders, idx, lidc, npz, svhn, tiny_imagenet
from vnd.data.arrays import Images, check
from vnd.data.cache import data_root
from vnd.words import nearest

__all__ = ["DATASETS", "DataSet", "Remote", "data_root", "load"]


@dataclass(frozen=True)
class Remote:
    """A file to download.

    Args:
        url: Where it is.
        sha256: What it must have, in hexadecimal.
        size: Its bytes.
        unpack: What kind of archive it is.
    """

    url: str
    sha256: str
    size: int
    unpack: Literal["tar", "zip", "none"]


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Args:
        name: What it is called.
        about: What it is, in one line.
        licence: What may be done with it.
        read: Reads a split from a folder.
        folder: Its folder below the data root, as the official archive unpacks.
        channels: Of its images; 0 where they differ from user to user, as for `size`.
        size: Height and width.
        num_classes: 0 where there are no labels, or they differ from user to user.
        remotes: What is downloaded, if a program may.
        manual: How to get it by hand.
        embedded: Whether it comes with the library.
        truth: Where it is known what graders draw from: masks (N, K, H, W) and probabilities (N, K) of a split.
    """

    name: str
    about: str
    licence: str
    read: Callable[[Path, Literal["train", "test"]], Images]
    folder: str
    channels: int
    size: int
    num_classes: int
    remotes: tuple[Remote, ...] = ()
    manual: str = ""
    embedded: bool = False
    truth: Callable[[Literal["train", "test"]], tuple[NDArray[np.uint8], NDArray[np.float64]]] | None = None


_ALL = (
    DataSet(
        name="fashion",
        about="Fashion-MNIST, 12,000 + 3,000 of its images; comes with vnd",
        licence="MIT",
        read=embedded.read_fashion,
        folder="",
        channels=1,
        size=28,
        num_classes=10,
        embedded=True,
    ),
    DataSet(
        name="digits",
        about="UCI handwritten digits, 1,797 for testing; comes with vnd",
        licence="CC BY 4.0",
        read=embedded.read_digits,
        folder="",
        channels=1,
        size=8,
        num_classes=10,
        embedded=True,
    ),
    DataSet(
        name="annotators",
        about="made-up blobs, 4,096 + 512, each marked by four graders by known probabilities; comes with vnd",
        licence="Apache 2.0",
        read=annotators.read,
        folder="",
        channels=1,
        size=annotators.SIZE,
        num_classes=0,
        embedded=True,
        truth=annotators.truth,
    ),
    DataSet(
        name="cifar10",
        about="CIFAR-10, 50,000 + 10,000 photographs of 10 classes",
        licence="none stated; cite Krizhevsky (2009)",
        read=cifar.read_cifar10,
        folder="cifar-10-batches-bin",
        channels=3,
        size=32,
        num_classes=10,
        remotes=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
                "tar",
            ),
        ),
        manual="unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    DataSet(
        name="cifar100",
        about="CIFAR-100, 50,000 + 10,000 photographs of 100 classes",
        licence="none stated; cite Krizhevsky (2009)",
        read=cifar.read_cifar100,
        folder="cifar-100-binary",
        channels=3,
        size=32,
        num_classes=100,
        remotes=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                168_513_733,
                "tar",
            ),
        ),
        manual="unpack https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    ),
    DataSet(
        name="svhn",
        about="Street View House Numbers, 73,257 + 26,032 digits",
        licence="non-commercial use only",
        read=svhn.read,
        folder="svhn",
        channels=3,
        size=32,
        num_classes=10,
        remotes=(
            Remote(
                "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                182_040_794,
                "none",
            ),
            Remote(
                "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                64_275_384,
                "none",
            ),
        ),
        manual="put train_32x32.mat and test_32x32.mat of http://ufldl.stanford.edu/housenumbers/ there",
    ),
    DataSet(
        name="tiny-imagenet",
        about="Tiny ImageNet, 100,000 + 10,000 photographs of 200 classes",
        licence="that of ImageNet: non-commercial research and education only",
        read=tiny_imagenet.read,
        folder="tiny-imagenet-200",
        channels=3,
        size=64,
        num_classes=200,
        remotes=(
            Remote(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                248_100_043,
                "zip",
            ),
        ),
        manual="unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ),
    DataSet(
        name="mnist",
        about="MNIST, 60,000 + 10,000 handwritten digits",
        licence="CC BY-SA 3.0",
        read=partial(idx.read, classes=embedded.DIGITS, size=28),
        folder="mnist",
        channels=1,
        size=28,
        num_classes=10,
        remotes=(
            Remote(
                "https://storage.googleapis.com/cvdf-datasets/mnist/train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                9_912_422,
                "none",
            ),
            Remote(
                "https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                28_881,
                "none",
            ),
            Remote(
                "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                1_648_877,
                "none",
            ),
            Remote(
                "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                4_542,
                "none",
            ),
        ),
        manual="put the four files {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz there",
    ),
    DataSet(
        name="fashion-mnist",
        about="Fashion-MNIST, 60,000 + 10,000 pieces of clothing",
        licence="MIT",
        read=partial(idx.read, classes=embedded.FASHION, size=28),
        folder="fashion-mnist",
        channels=1,
        size=28,
        num_classes=10,
        remotes=(
            Remote(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                26_421_880,
                "none",
            ),
            Remote(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-labels-idx1-ubyte.gz",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                29_515,
                "none",
            ),
            Remote(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-images-idx3-ubyte.gz",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                4_422_102,
                "none",
            ),
            Remote(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                5_148,
                "none",
            ),
        ),
        manual="put the four files of https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion there",
    ),
    DataSet(
        name="celeba",
        about="CelebA, 202,599 faces at 64×64",
        licence="non-commercial research only",
        read=celeba.read,
        folder="celeba",
        channels=3,
        size=64,
        num_classes=0,
        remotes=(),
        manual="of https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html put img_align_celeba/ and "
        "list_eval_partition.txt there",
    ),
    DataSet(
        name="chairs",
        about="3D Chairs, 86,366 renderings of 1,393 chairs at 64×64",
        licence="none stated; cite Aubry et al. (2014)",
        read=chairs.read,
        folder="rendered_chairs",
        channels=3,
        size=64,
        num_classes=0,
        remotes=(),
        manual="unpack rendered_chairs.tar of https://www.di.ens.fr/willow/research/seeing3Dchairs/",
    ),
    DataSet(
        name="chest-xray",
        about="Chest X-ray, 5,232 + 624 radiographs of healthy lungs and pneumonia at 64×64",
        licence="CC BY 4.0",
        read=folders.read_chest_xray,
        folder="chest_xray",
        channels=1,
        size=64,
        num_classes=2,
        remotes=(),
        manual="unpack ChestXRay2017.zip of https://data.mendeley.com/datasets/rscbjbr9sj/2",
    ),
    DataSet(
        name="lidc",
        about="LIDC-IDRI, slices of lung nodules at 128×128, each marked by four graders",
        licence="CC BY 3.0",
        read=lidc.read,
        folder="LIDC-IDRI-slices",
        channels=1,
        size=128,
        num_classes=0,
        remotes=(),
        manual="unpack LIDC-IDRI-slices of https://www.kaggle.com/datasets/zhangweiled/lidcidri",
    ),
    DataSet(
        name="folder",
        about="your own images: {train,test}/CLASS/* or CLASS/*, all of one size",
        licence="yours",
        read=folders.read_own,
        folder="",
        channels=0,
        size=0,
        num_classes=0,
        manual="give the path of your folder",
    ),
    DataSet(
        name="npz",
        about="your own arrays: one .npz with x_train, y_train, x_test, y_test, or x and y",
        licence="yours",
        read=npz.read,
        folder="",
        channels=0,
        size=0,
        num_classes=0,
        manual="give the path of your .npz file",
    ),
)
DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _ALL}


def find(name: str, who: str) -> DataSet:
    """The data set of a name; `who` asks, for the message where there is none."""
    if name not in DATASETS:
        hint = nearest(str(name).lower(), DATASETS)
        raise ValueError(f"{who}: unknown data set {name!r}{hint} Known: {', '.join(DATASETS)}")
    return DATASETS[name]


def load(name: str, split: Literal["train", "test"], folder: Path | None = None) -> Images:
    """Read and check one split of a data set.

    Args:
        name: One of `DATASETS`.
        split: Which one.
        folder: Where the official files lie: the data set's own folder, or one that has it by its official name; by
            default `data_root()`. For `folder` and `npz` the path of the user's own. Embedded data sets need none.

    >>> images = load("fashion", "test")
    >>> images.pixels.shape, images.classes[images.labels[0]]
    ((3000, 1, 28, 28), 'Dress')
    >>> load("cifar", "test")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: load: unknown data set 'cifar', did you mean 'cifar10'? Known: fashion, digits, annotators, ...
    """
    dataset = find(name, "load")
    if split not in ("train", "test"):
        raise ValueError(f"load: split must be 'train' or 'test'; got {split!r}")
    try:
        return check(dataset.read(_place(dataset, folder), split), f"the {split} split")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _place(dataset: DataSet, folder: Path | None) -> Path:
    """Where to read: the data set's folder below the one given, if it is there, else the one given."""
    if dataset.embedded:
        return Path()
    if folder is None and not dataset.folder:
        raise ValueError(dataset.manual)
    inner = (data_root() if folder is None else Path(folder)) / dataset.folder
    place = inner if folder is None or inner.exists() else Path(folder)
    if not place.exists():
        raise FileNotFoundError(f"{place}: no such folder; {dataset.manual}, or say where it lies")
    return place
