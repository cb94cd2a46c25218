"""Two small data sets that come with the library: a part of Fashion-MNIST, and the digits of UCI.

They are IDX files in xz, each known by its SHA-256; their licences lie beside them.
"""

import hashlib
import io
import lzma
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vnd.data.binary import DIGITS, STEMS, assemble_idx, parse_idx
from vnd.data.images import Images

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
LARGEST = 12_000 * 28 * 28  # bytes of the largest array
SHA256 = {
    "fashion-mnist-12k/train-images-idx3-ubyte.xz": "0264801cd718699e5ad1980d6d7f2a37e05ca203081e677234c9d226fd743d3a",
    "fashion-mnist-12k/train-labels-idx1-ubyte.xz": "71515a6ff114bbc89b6a6a5c9cc12e617bf06c433edd42ad8378b3e27e3621bc",
    "fashion-mnist-12k/t10k-images-idx3-ubyte.xz": "1fc8997481a618c88f88289c178961294be868af17404d626c04a306926bde6b",
    "fashion-mnist-12k/t10k-labels-idx1-ubyte.xz": "6ec06759b79da20f1bd01e6b2aa9b21b6c4b997c6dc3351f2c7650ddbd463b50",
    "digits/t10k-images-idx3-ubyte.xz": "b33e203e9818c7da224b25063b658c5028aa92b5ddd1781918b22928a3021aad",
    "digits/t10k-labels-idx1-ubyte.xz": "dd5cba62f41ec12db3a7b8b6b51e3f4e5c7a9d2f3ce0887639673ef6d0b56540",
}


def read_fashion(_: Path, split: Literal["train", "test"]) -> Images:
    """12,000 training and 3,000 test images of Fashion-MNIST, drawn at random from its own splits; 28×28, grey.

    Xiao, Rasul and Vollgraf (2017), MIT licence.
    """
    return _read("fashion-mnist-12k", split, FASHION, 28)


def read_digits(_: Path, split: Literal["train", "test"]) -> Images:
    """1,797 handwritten digits of 8×8 pixels, all of them the test split; the counts 0 … 16 are scaled to 0 … 255.

    Alpaydin and Kaynak (1998), UCI Machine Learning Repository, CC BY 4.0; the test part of `optdigits`, as
    scikit-learn's `load_digits` has it.
    """
    if split == "train":
        raise ValueError("has a test split only; it is for images from another domain")
    return _read("digits", split, DIGITS, 8)


def _read(folder: str, split: Literal["train", "test"], classes: tuple[str, ...], size: int) -> Images:
    images, labels = (f"{folder}/{STEMS[split]}-{kind}-ubyte.xz" for kind in ("images-idx3", "labels-idx1"))
    return assemble_idx(_array(images, 3), _array(labels, 1), classes, size, images, labels)


def _array(name: str, dimensions: int) -> NDArray[np.uint8]:
    content = files(__name__).joinpath(name).read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise ValueError(f"the embedded file {name} is damaged: its SHA-256 is not the one it had; install vnd again")
    with lzma.open(io.BytesIO(content)) as stream:
        return parse_idx(stream, dimensions, name, most=LARGEST)
