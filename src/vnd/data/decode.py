"""Many image files to one array: decoded by threads, brought to one form, and kept as a memory-mapped `.npy` file.

A cache is used as long as the files it was made of do not change. Beside it lies its SHA-256, as `sha256sum` writes it,
which is checked when a process first uses the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vnd._files import put, write_text
from vnd._text import one_line

if TYPE_CHECKING:
    from PIL.Image import Image

BLOCK = 1024  # images that are in memory together
FORMATS = ("PNG", "JPEG", "BMP")  # and no other, some of which start programs
LARGEST = 2**26  # pixels of an image that is to be made smaller
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
GREY = ("1", "L", "LA")
VERSION = 1  # of what decoding makes of a file; another one makes all caches anew
_checked: set[tuple[str, int, int, int, int]] = set()  # the files whose checksum this process has found right


@dataclass(frozen=True)
class Form:
    """Form that every image of a data set is brought to; an image that cannot be is refused by name.

    Args:
        channels: 1 or 3. Grey becomes RGB by repeating.
        height, width: Of the result.
        luma: Whether colour may become grey (ITU-R BT.601); otherwise, where `channels` is 1, it is refused.
        resize: Whether images of another size are resized (bilinear, antialiased, whatever the aspect) or refused.
        frame: The one other (width, height) that is accepted, if not any.
        crop: Side of the centre square that is cut out of images of another size before they are resized.
        binary: Whether pixels are marks, 0 or 255 (or 1), which become 0 or 1.
        classes: Number of classes, where pixels are numbers of these: grey values, or places in a palette.
    """

    channels: int
    height: int
    width: int
    luma: bool = False
    resize: bool = False
    frame: tuple[int, int] | None = None
    crop: int | None = None
    binary: bool = False
    classes: int | None = None


def pictures(folder: Path, suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """The image files right in a folder, by name; hidden ones, as some archives have, are left out."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(x.name for x in entries if x.name[0] != "." and x.name.lower().endswith(suffixes))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{folder}: no such folder") from None
    if not names:
        raise FileNotFoundError(f"{folder}: holds no image file ({', '.join(suffixes)})")
    return [folder / name for name in names]


def subfolders(folder: Path) -> list[Path]:
    """The folders right in a folder, by name, with numbers in them by value; hidden ones are left out."""
    folders = [x for x in folder.iterdir() if x.is_dir() and x.name[0] != "."] if folder.is_dir() else []
    if not folders:
        raise FileNotFoundError(f"{folder}: {'holds no folders' if folder.is_dir() else 'no such folder'}")
    return sorted(folders, key=natural)


def natural(path: Path) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts slice-9 before slice-10.

    >>> [x.name for x in sorted([Path("slice-10"), Path("slice-9")], key=natural)]
    ['slice-9', 'slice-10']
    """
    parts = re.split(r"(\d+)", path.name)
    return (*((0, int(x), "") if x.isdecimal() else (1, 0, x) for x in parts), (1, 0, path.name))


def decode(folder: Path, label: str, files: Sequence[Path], form: Form) -> NDArray[np.uint8]:
    """The images (N, channels, height, width) of these files below a folder, decoded once and then memory-mapped."""
    shape = (len(files), form.channels, form.height, form.width)
    try:
        name = cache_key(folder, files, repr(form))
    except OSError as error:
        raise FileNotFoundError(f"{error.filename}: {error.strerror}") from None
    return cached(folder, label, name, shape, _blocks(label, files, form))


def probe(path: Path) -> Form:
    """The form of one image file, as it is."""
    with _open(path) as image:
        return Form(1 if image.mode in GREY else 3, image.height, image.width)


def _blocks(label: str, files: Sequence[Path], form: Form) -> Iterator[NDArray[np.uint8]]:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
    ):
        task = bar.add_task(f"decode {label}", total=len(files))
        for start in range(0, len(files), BLOCK):
            block = []
            for image in pool.map(picture, files[start : start + BLOCK], [form] * BLOCK):
                block.append(image)
                bar.advance(task)
            yield np.stack(block)


def _open(path: Path) -> Image:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"reading {path.suffix[1:].upper()} files needs Pillow; pip install 'variational-nested-dropout[data]'"
        ) from None
    try:
        return Image.open(path, formats=FORMATS)
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(f"{path}: {error.strerror}") from None
        what = "is empty" if not path.stat().st_size else "is not an image, or a damaged one"
        raise ValueError(f"{path}: {what} ({type(error).__name__})") from None


def picture(path: Path, form: Form) -> NDArray[np.uint8]:
    """One image file as (channels, height, width), brought to a form."""
    with _open(path) as image:
        misfit = _misfit(image, form)
        if misfit:
            raise ValueError(f"{path}: {misfit}")
        try:
            image.load()
            pixels = np.asarray(_fitted(image, form))
        except Exception as error:
            raise ValueError(f"{path}: cannot be decoded: {one_line(error)}") from None
    if form.binary:
        wrong = np.argwhere((pixels > 1) & (pixels < 255))
        if len(wrong):
            row, column = wrong[0]
            raise ValueError(f"{path}: a mask must be 0 or 255; row {row}, column {column} is {pixels[row, column]}")
        pixels = (pixels > 0).astype(np.uint8)
    if form.classes is not None:
        wrong = np.argwhere(pixels >= form.classes)
        if len(wrong):
            row, column = wrong[0]
            wanted = f"numbers of the {form.classes} classes, 0 … {form.classes - 1}"
            raise ValueError(f"{path}: a mask must be {wanted}; row {row}, column {column} is {pixels[row, column]}")
    return pixels[None] if form.channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _misfit(image: Image, form: Form) -> str | None:
    """Reason why an image cannot be brought to a form, by its header; None if it can."""
    size, wanted = image.size, (form.width, form.height)
    if image.mode[0] in "IF":
        return f"must have 8 bits a channel; got mode {image.mode}"
    if form.classes is not None and image.mode not in ("L", "P"):
        return f"must have one channel, grey or of a palette, to hold numbers of classes; got mode {image.mode}"
    if form.channels == 1 and not form.luma and form.classes is None and image.mode not in GREY:
        return f"must be grey, as the first image is; got mode {image.mode}"
    if size == wanted:
        return None
    also = f" or {form.frame[0]}×{form.frame[1]}" if form.frame else ""
    if not form.resize or (form.frame and size != form.frame):
        return f"must have {form.width}×{form.height}{also} pixels; got {size[0]}×{size[1]}"
    if size[0] * size[1] > LARGEST:
        return f"must have at most {LARGEST} pixels; got {size[0]}×{size[1]}"
    return None


def _fitted(image: Image, form: Form) -> Any:
    from PIL.Image import Resampling

    whole = image.size
    if form.classes is not None:
        return image  # a palette's colours mean nothing
    if "transparency" in image.info:  # Pillow warns of the direct way
        image = image.convert("RGBA")
    image = image.convert("L" if form.channels == 1 else "RGB")
    if whole == (form.width, form.height):
        return image
    if form.crop:
        left, top = (whole[0] - form.crop) // 2, (whole[1] - form.crop) // 2
        image = image.crop((left, top, left + form.crop, top + form.crop))
    return image.resize((form.width, form.height), Resampling.BILINEAR)


def data_root() -> Path:
    """The folder of all data sets: the environment variable `VND_DATA`, else `~/.cache/vnd/data`."""
    given = os.environ.get("VND_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "vnd" / "data"


def cache_key(folder: Path, files: Sequence[Path], how: str) -> str:
    """A name for what decoding makes of these files: another one if any name, size, time or order changes."""
    digest = hashlib.sha256(json.dumps([VERSION, how, len(files)]).encode())
    for file in files:
        about = file.stat()
        digest.update(json.dumps([str(file.relative_to(folder)), about.st_size, about.st_mtime_ns]).encode())
    return digest.hexdigest()[:16]


def cached(
    folder: Path, label: str, name: str, shape: tuple[int, ...], blocks: Iterator[NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """The uint8 array of a cache file, memory-mapped; made of `blocks` if it is not there.

    The file lies beside the data set, in `.FOLDER.vnd-cache/`, or, where that cannot be written, below `data_root()`;
    where neither can, the array stays in memory. A file whose bytes are not those that were written is made anew, with
    a warning; one of the same label, the name of the split, and another name, which `cache_key` gives, is out of date,
    and removed.
    """
    folder = folder.resolve()
    inner = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    places = folder.parent / f".{folder.name}.vnd-cache", data_root() / "cache" / inner
    paths = [place / f"{label}-{name}.npy" for place in places]
    for path in paths:
        if (array := _mapped(path, shape)) is not None:
            return array
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=path.parent):
                pass
        except OSError:
            continue
        _write(path, shape, blocks)
        _tidy(path.parent, label, name)
        if (array := _mapped(path, shape)) is not None:
            return array
        raise OSError(f"{path}: was changed while it was written; read again")
    return np.concatenate(list(blocks))


def _mapped(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The file as an array, if it is one of this shape and has its checksum; a damaged one is as good as none."""
    try:
        if not _intact(path):
            text = f"cache: {path} is damaged: its SHA-256 is not the one that was written; decoding the images anew"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _intact(path: Path) -> bool:
    """Compare a file with the SHA-256 that lies beside it; an OSError if one of the two is missing."""
    about = path.stat()
    mark = str(path), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
    if mark in _checked:
        return True
    wanted = path.with_suffix(".sha256").read_text(encoding="utf-8", errors="replace")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if wanted.split()[:1] != [digest]:
        return False
    _checked.add(mark)
    return True


def _write(path: Path, shape: tuple[int, ...], blocks: Iterator[NDArray[np.uint8]]) -> None:
    """Write the blocks one after the other and put the file in place; after any error nothing is left.

    Not through a memory map, which on a full disk would end the process.
    """
    digest = hashlib.sha256()  # of what is meant, not of what the disk has made of it

    def write(part: Path) -> None:
        with part.open("wb") as file:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for values in chain([header.getbuffer()], (np.ascontiguousarray(block).data for block in blocks)):
                digest.update(values)
                file.write(values)
            if (size := file.tell() - header.tell()) != prod(shape):
                raise ValueError(f"{path}: got {size} bytes for an array of {shape}")

    try:
        put(path, write)
        write_text(path.with_suffix(".sha256"), f"{digest.hexdigest()}  {path.name}\n")
    except OSError as error:
        if error.errno is None:  # of decoding, which says more itself
            raise
        raise OSError(f"{path}: {error.strerror}; make room for the cache of decoded images") from None


def _tidy(place: Path, label: str, name: str) -> None:
    ours = re.compile(rf"{re.escape(label)}-([0-9a-f]{{16}})\.(npy|sha256)")
    for old in place.iterdir():
        if (match := ours.fullmatch(old.name)) and match[1] != name:
            with suppress(OSError):
                old.unlink(missing_ok=True)
