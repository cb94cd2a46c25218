"""Data sets that are folders of image files: a user's own, Chest X-ray, Tiny ImageNet, CelebA, 3D Chairs, LIDC-IDRI."""

import hashlib
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from vnd.data.decode import Form, decode, natural, pictures, probe, subfolders
from vnd.data.images import Images, last_fifth, present, stack_masks

TINY_IMAGENET = Form(3, 64, 64)
CELEBA = Form(3, 64, 64, resize=True, frame=(178, 218), crop=148)
CELEBA_FOLDERS = ("img_align_celeba", "Img/img_align_celeba", "celeba64", ".")
CELEBA_PARTITION = "list_eval_partition.txt"
CHAIRS = Form(3, 64, 64, resize=True)
LIDC = Form(1, 128, 128, luma=True)
LIDC_MASK = Form(1, 128, 128, luma=True, binary=True)
GRADERS = 4
LOSSLESS = (".png", ".bmp")
Thing = TypeVar("Thing")


def read_chest_xray(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `{train,test}/{NORMAL,PNEUMONIA}/*` as grey, the whole frame resized to 64×64, whatever its aspect.

    Kermany et al. (2018); 5,232 and 624 images. What some copies have as `val/` is not read.
    """
    classes = "NORMAL", "PNEUMONIA"
    groups = [pictures(folder / split / name) for name in classes]
    return _labelled(folder, f"chest-xray-{split}", groups, classes, Form(1, 64, 64, luma=True, resize=True))


def read_own(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `{train,test}/CLASS/*`, or `CLASS/*`, of PNG, JPEG and BMP files that all have one size.

    A folder that holds `images` and `masks` is one of masks: see `read_masks`. Classes are numbered by name, as the
    training folder has them. Without a division, the last 20 % of each class by name (`images.last_fifth`) are the test
    split. Images are RGB if the first one is, and a grey one among them is repeated; if the first one is grey, all must
    be.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    divided = [x for x in (folder / "train", folder / "test") if x.is_dir()]
    if all((root / name).is_dir() for root in divided or [folder] for name in ("images", "masks")):
        return read_masks(folder, split)
    roots = subfolders(divided[0] if divided else folder)
    classes = tuple(x.name for x in roots)
    if divided:
        place = folder / split
        stray = [x for x in subfolders(place) if x.name not in classes]
        if stray:
            raise ValueError(f"{stray[0]}: is a class that {divided[0]} does not have")
        groups = [pictures(place / name) if (place / name).is_dir() else [] for name in classes]
    else:
        by_class = [pictures(root) for root in roots]
        groups = [_part(files, last_fifth(len(files)), split) for files in by_class]
    if not any(groups):
        raise ValueError(f"{folder}: must have at least two images of some class, to have a test split")
    return _labelled(folder, f"folder-{split}", groups, classes, probe(pictures(roots[0])[0]))


def read_masks(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `{train,test}/images/NAME.*` and `…/masks/NAME/*` or `…/masks/NAME_*.*`, or `images` and `masks` alone.

    An image has any number of masks, from one on, each of a grader, of its size and lossless: PNG or BMP. All images
    have one size; they are RGB if the first one is. Pixels of masks are 0 and 255 (or 1), or, with a file `classes.txt`
    in the folder, numbers of the classes that it names, one a line, the first of them background: grey values, or
    places in a palette. Without a division, the last 20 % of the images by name (`images.last_fifth`) are the test
    split.
    """
    divided = any((folder / x).is_dir() for x in ("train", "test"))
    place = folder / split if divided else folder
    files = sorted(pictures(place / "images"), key=natural)
    if len({file.stem for file in files}) < len(files):
        twice = next(file for file in files if [other.stem for other in files].count(file.stem) > 1)
        raise ValueError(f"{twice}: images must have names of their own, without their endings; got {twice.stem} twice")
    masks = _masks_of(place / "masks", files)
    if not divided:
        if len(files) < 2:
            raise ValueError(
                f"{place / 'images'}: must have at least two images, to have a test split; got {len(files)}"
            )
        files = _part(files, last_fifth(len(files)), split)
    classes = _class_names(folder / "classes.txt")
    form = probe(files[0])
    how = {"classes": len(classes)} if classes else {"luma": True, "binary": True}
    marks = [mask for file in files for mask in masks[file]]
    pixels = decode(folder, f"images-{split}", files, form)
    flat = decode(folder, f"masks-{split}", marks, Form(1, form.height, form.width, **how))
    stacked, counts = stack_masks(flat[:, 0], np.array([len(masks[file]) for file in files]), str(place / "masks"))
    return Images(pixels, classes=classes, masks=stacked, num_graders=counts)


def _masks_of(place: Path, images: list[Path]) -> dict[Path, list[Path]]:
    """The masks of each image, by name: what lies in a folder of its name, or begins with that and `_`."""
    found = {image: list[Path]() for image in images}
    named = {image.stem: image for image in images}
    inner = [x for x in sorted(place.iterdir(), key=natural) if x.name[0] != "."]
    for path in inner:
        whose = path.name if path.is_dir() else path.stem
        while whose not in named and "_" in whose and not path.is_dir():
            whose = whose.rpartition("_")[0]
        if whose not in named:
            raise ValueError(f"{path}: must be of an image in {images[0].parent}, by its name; none is called so")
        masks = sorted(pictures(path, LOSSLESS), key=natural) if path.is_dir() else [path]
        if not path.is_dir() and path.suffix.lower() not in LOSSLESS:
            raise ValueError(f"{path}: a mask must be a file of {' or '.join(LOSSLESS)}, which keep its numbers")
        found[named[whose]] += masks
    if missing := next((image for image, masks in found.items() if not masks), None):
        wanted = f"{place / missing.stem}/GRADER.png or {place / missing.stem}_GRADER.png"
        raise FileNotFoundError(f"{missing}: has no mask; there must be {wanted}")
    return found


def _class_names(path: Path) -> tuple[str, ...]:
    """The names of classes, one a line; none where there is no such file."""
    if not path.is_file():
        return ()
    names = tuple(filter(None, map(str.strip, path.read_text(encoding="utf-8", errors="replace").splitlines())))
    if not 2 <= len(set(names)) == len(names) <= 256:
        got = f"{len(names)} names, {len(set(names))} different"
        raise ValueError(f"{path}: must name 2 … 256 classes, each in a line of its own and once; got {got}")
    return names


def _part(things: list[Thing], held: int, split: Literal["train", "test"]) -> list[Thing]:
    """The last so many of some things, or those before them."""
    first = len(things) - held
    return things[first:] if split == "test" else things[:first]


def _labelled(folder: Path, label: str, groups: list[list[Path]], classes: tuple[str, ...], form: Form) -> Images:
    files = [file for group in groups for file in group]
    labels = np.array([number for number, group in enumerate(groups) for _ in group], np.int64)
    return Images(decode(folder, label, files, form), labels, classes)


def read_tiny_imagenet(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `train/*/images/*.JPEG`, or, since the official test images have no labels, `val/images/*.JPEG` as test.

    Stanford CS231n; 100,000 and 10,000 images of 200 classes, numbered in the order of `wnids.txt`. Grey images, of
    which there are some, become RGB by repeating.
    """
    path = present(folder / "wnids.txt")
    classes = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if not classes or len(set(classes)) != len(classes):
        raise ValueError(f"{path}: must name each class once; got {len(classes)} names, {len(set(classes))} different")
    if split == "train":
        groups = [pictures(folder / "train" / name / "images", (".jpeg",)) for name in classes]
        return _labelled(folder, "tiny-imagenet-train", groups, classes, TINY_IMAGENET)
    files, labels = _annotated(folder / "val", classes)
    return Images(decode(folder, "tiny-imagenet-test", files, TINY_IMAGENET), np.array(labels, np.int64), classes)


def _annotated(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The images that `val_annotations.txt` names, and their classes: name, class and a box in a line, by tabs."""
    path = present(folder / "val_annotations.txt")
    there = {file.name: file for file in pictures(folder / "images", (".jpeg",))}
    numbers = {name: label for label, name in enumerate(classes)}
    labels = dict[str, int]()
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        name, kind, *_ = (*text.split("\t"), "", "")
        if kind not in numbers:
            raise ValueError(f"{path}: line {line}: the class must be one of wnids.txt; got {kind!r}")
        if name not in there:
            raise FileNotFoundError(f"{folder / 'images' / name}: no such file, named in line {line} of {path.name}")
        if name in labels:
            raise ValueError(f"{path}: line {line}: names {name} a second time")
        labels[name] = numbers[kind]
    unnamed = next((name for name in there if name not in labels), None)
    if unnamed is not None:
        raise ValueError(f"{there[unnamed]}: has no line in {path}")
    return [there[name] for name in labels], list(labels.values())


def read_celeba(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read the JPEG files of `img_align_celeba/` (178×218) or `celeba64/` (64×64), or of the folder itself.

    Liu et al. (2015); 202,599 faces. Of an official image the centre square of 148 pixels is cut out and resized to
    64×64; one of 64×64 is taken as it is. The split is that of `list_eval_partition.txt`, where it is there: its test
    part, and as training images its training and validation parts in their order, so that
    `hold_out(images, 19867, seed, "last")` gives the official validation images. Otherwise the last tenth, by name,
    is the test split.
    """
    place = next(folder / name for name in CELEBA_FOLDERS if (folder / name).is_dir() or name == ".")
    files = pictures(place, (".jpg", ".jpeg", ".png"))
    beside = (x / CELEBA_PARTITION for x in (folder, folder / "Eval", place.parent))
    lists = [x for x in beside if x.is_file()]
    if lists:
        files = [file for file, part in _partition(lists[0], files) if (part == "2") == (split == "test")]
    else:
        files = _part(files, max(1, len(files) // 10), split)
    if not files:
        raise ValueError(f"{place}: holds no image of the {split} split")
    return Images(decode(place, f"celeba-{split}", files, CELEBA))


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


def read_chairs(folder: Path, split: Literal["train", "test"]) -> Images:
    """Read `CHAIR/renders/*.png` as RGB, the whole frame resized to 64×64.

    Aubry et al. (2014); 86,366 images of 1,393 chairs from 62 sides. The last tenth of the chairs, by name, is the test
    split; `groups` is the number of the chair.
    """
    chairs = [x for x in subfolders(folder) if (x / "renders").is_dir()]
    if len(chairs) < 2:
        raise ValueError(f"{folder}: must hold at least 2 folders CHAIR/renders; got {len(chairs)}")
    numbered = _part(list(enumerate(chairs)), max(1, len(chairs) // 10), split)
    renders = [(number, pictures(chair / "renders", (".png",))) for number, chair in numbered]
    files = [file for _, views in renders for file in views]
    groups = np.array([number for number, views in renders for _ in views], np.int64)
    return Images(decode(folder, f"chairs-{split}", files, CHAIRS), groups=groups)


def read_lidc(folder: Path, split: Literal["train", "test"]) -> Images:
    r"""Read `PATIENT/nodule-k/images/slice-j.png` as grey 128×128, and `mask-0` … `mask-3` beside it.

    Armato et al. (2011). `groups` is the number of the patient among all in the folder, `group_names` what these are
    called. The test split is a fifth of the patients, chosen by name alone: those for whom $h / 2^{64} < 0.2$, with h
    the first eight bytes of the SHA-256 of `lidc-2:PATIENT`. So a patient stays on the same side whoever else is there;
    of the names LIDC-IDRI-0001 … 1012 it takes 19.4 %.
    """
    groups, images = list[int](), list[Path]()
    patients = subfolders(folder)
    for number, patient in enumerate(patients):
        if is_test_patient(patient.name) == (split == "test"):
            for nodule in subfolders(patient):
                slices = sorted(pictures(nodule / "images", (".png",)), key=natural)
                _check_masks(nodule, slices)
                images += slices
                groups += [number] * len(slices)
    if not images:
        raise ValueError(f"{folder}: holds no patient of the {split} split, which a hash of the name decides")
    masks = [file.parent.parent / f"mask-{grader}" / file.name for file in images for grader in range(GRADERS)]
    pixels = decode(folder, f"lidc-{split}", images, LIDC)
    marks = decode(folder, f"lidc-{split}-masks", masks, LIDC_MASK).reshape(len(images), GRADERS, 128, 128)
    names = tuple(patient.name for patient in patients)
    return Images(pixels, masks=marks, groups=np.array(groups, np.int64), group_names=names)


def is_test_patient(patient: str) -> bool:
    """Tell if a patient belongs to the test split.

    >>> [name for name in ("LIDC-IDRI-0001", "LIDC-IDRI-0002", "LIDC-IDRI-0003") if is_test_patient(name)]
    []
    """
    return int.from_bytes(hashlib.sha256(f"lidc-2:{patient}".encode()).digest()[:8], "big") < 2**64 // 5


def _check_masks(nodule: Path, slices: list[Path]) -> None:
    """Refuse a slice without a mask, or a mask without its slice, before anything is decoded."""
    wanted = {file.name for file in slices}
    for grader in range(GRADERS):
        place = nodule / f"mask-{grader}"
        there = {file.name for file in pictures(place, (".png",))}
        if wanted - there:
            raise FileNotFoundError(f"{place / min(wanted - there)}: no such file; every slice must have four masks")
        if there - wanted:
            raise ValueError(f"{place / min(there - wanted)}: is a mask of a slice that is not in {nodule / 'images'}")
