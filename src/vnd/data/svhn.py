"""Street View House Numbers, format 2: 32×32 digits in a MATLAB file."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from vnd.data.arrays import DEFLATE, Images, check_labels
from vnd.files import one_line

CLASSES = tuple("0123456789")


def read(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `train_32x32.mat` or `test_32x32.mat`: X is (32, 32, 3, N), y is (N, 1) with 10 for the digit 0.

    Netzer et al. (2011); 73,257 and 26,032 digits of 10 classes.
    """
    path = folder / f"{split}_32x32.mat"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    pixels, labels = _load(path)
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
    return Images(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), digits % 10, CLASSES)


def _load(path: Path) -> tuple[Any, Any]:
    try:
        from scipy.io import loadmat, whosmat
    except ModuleNotFoundError:
        raise ModuleNotFoundError("reading SVHN needs SciPy; pip install 'variational-nested-dropout[data]'") from None
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
