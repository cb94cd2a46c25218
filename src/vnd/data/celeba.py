"""CelebA: aligned faces in one folder, without labels."""

from pathlib import Path
from typing import Literal

from vnd.data.arrays import Images
from vnd.data.decode import Form, decode, pictures

FORM = Form(3, 64, 64, resize=True, frame=(178, 218), crop=148)
FOLDERS = ("img_align_celeba", "Img/img_align_celeba", "celeba64", ".")
PARTITION = "list_eval_partition.txt"


def read(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read the JPEG files of `img_align_celeba/` (178×218) or `celeba64/` (64×64), or of the folder itself.

    Liu et al. (2015); 202,599 faces. Of an official image the centre square of 148 pixels is cut out and resized to
    64×64; one of 64×64 is taken as it is. The split is that of `list_eval_partition.txt`, where it is there: its test
    part, and as training images its training and validation parts in their order, so that
    `hold_out(images, 19867, seed, "last")` gives the official validation images. Otherwise the last tenth, by name,
    is the test split.
    """
    place = next(folder / name for name in FOLDERS if (folder / name).is_dir() or name == ".")
    files = pictures(place, (".jpg", ".jpeg", ".png"))
    lists = [x for x in (folder / PARTITION, folder / "Eval" / PARTITION, place.parent / PARTITION) if x.is_file()]
    if lists:
        files = [file for file, part in _partition(lists[0], files) if (part == "2") == (split == "test")]
    else:
        first = len(files) - max(1, len(files) // 10)
        files = files[first:] if split == "test" else files[:first]
    if not files:
        raise ValueError(f"{place}: holds no image of the {split} split")
    return Images(decode(place, f"celeba-{split}", files, FORM))


def _partition(path: Path, files: list[Path]) -> list[tuple[Path, str]]:
    """Each image that the list names, in its order, with its part: 0 training, 1 validation, 2 test."""
    there = {file.name: file for file in files}
    parts = list[tuple[Path, str]]()
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        name, part, *_ = (*text.split(), "", "")
        if part not in ("0", "1", "2"):
            raise ValueError(f"{path}: line {line} must be an image and 0, 1 or 2; got {text[:80]!r}")
        if name not in there:
            raise FileNotFoundError(f"{files[0].parent / name}: no such file, named in line {line} of {path.name}")
        parts.append((there[name], part))
    return parts
