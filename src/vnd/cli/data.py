"""`vnd data`: list, download and check data sets."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import rich

from vnd._files import write_json
from vnd._text import say, table
from vnd.data import fetch as fetching
from vnd.data.decode import SUFFIXES, data_root
from vnd.data.images import Images
from vnd.data.registry import DATASETS, find, load

LAYOUTS = {name: dataset.files for name, dataset in DATASETS.items() if dataset.folder}


def list_sets(json: Path | None = None) -> None:
    """List the data sets: what each is, where it lies, what may be done with it.

    Example: vnd data list --json data.json

    Args:
        json: File for the same as JSON.
    """
    columns = "name", "what (licence)", "classes", "size", "where"
    shown, rows = table(columns, columns, ["what (licence)", "where"]), list[dict[str, Any]]()
    for dataset in DATASETS.values():
        place = data_root() / dataset.folder
        here = bool(dataset.folder) and place.exists()
        where = "embedded" if dataset.embedded else f"found in {place.name}" if here else "not here"
        shown.add_row(
            dataset.name,
            f"{dataset.about} ({dataset.licence})",
            str(dataset.num_classes or "–"),
            f"{dataset.channels}×{dataset.size}×{dataset.size}" if dataset.size else "any",
            where if dataset.folder or dataset.embedded else "yours",
        )
        fields = ("name", "about", "num_classes", "channels", "size", "manual", "licence")
        rows.append({
            **{field: getattr(dataset, field) for field in fields},
            "where": "embedded" if dataset.embedded else str(place) if here else None,
            "fetchable": bool(dataset.remotes),
            "download_bytes": sum(remote.size for remote in dataset.remotes),
        })  # fmt: skip
    rich.print(shown)
    fetched = ", ".join(row["name"] for row in rows if row["fetchable"])
    say(f"data root: {data_root()} (VND_DATA sets it)\n`vnd data fetch NAME` gets {fetched}")
    _write(json, rows)


def fetch(name: str, root: Path | None = None) -> None:
    """Download a data set, check it and unpack it; continues what was broken off.

    Example: vnd data fetch cifar10

    Args:
        name: Which one; `vnd data list` names them.
        root: Folder of all data sets; by default VND_DATA, else ~/.cache/vnd/data.
    """
    dataset = find(name, "data")
    if dataset.embedded:
        say(f"{name} comes with vnd; nothing to download", error=True)
        return
    print(fetching.fetch(dataset, data_root() if root is None else root.expanduser()).resolve())


def check(path: Path, name: str | None = None, json: Path | None = None) -> None:
    """Read all of a data set and say what it holds; anything damaged is an error that names file and index.

    Example: vnd data check ~/data/cifar-10-batches-bin

    Args:
        path: Its folder, or one that holds it; for arrays of your own the .npz file.
        name: Which data set it is; found from the names of its files if not given.
        json: File for the same as JSON.
    """
    path = path.expanduser()
    known = recognize(path) if name is None else find(name, "data").name
    say(f"{path}: {'recognised as' if name is None else 'read as'} {known}, {DATASETS[known].about}")
    rows = [{"split": split} | summary(images) for split, images in _splits(known, path)]
    grouped = any(row["groups"] for row in rows)
    columns = "split", "images", "form", "classes", "mean", "std", *["groups"] * grouped
    shown = table(columns, columns)
    for row in rows:
        counts = " … ".join(f"{x:,}" for x in sorted(set(row["label_counts"] or ())))
        classes = f"{row['classes']} × {counts}" if counts else f"{row['classes']} of pixels" if row["classes"] else "–"
        form = "×".join(map(str, row["form"])) + (f", {_graders(row)}" if row["graders"] else "")
        moments = [" ".join(f"{x:.3f}" for x in row[key]) for key in ("mean", "std")]
        shown.add_row(row["split"], f"{row['images']:,}", form, classes, *moments, *[str(row["groups"])] * grouped)
    rich.print(shown)
    say("classes × images of each; mean, std: a channel each, pixels from 0 to 1")
    if grouped:
        say("groups: the patients or objects that the images are of")
    for split in {"train", "test"} - {row["split"] for row in rows}:
        say(f"no file of the {split} split is there")
    _write(json, {"path": str(path.resolve()), "name": known, "splits": rows})


def recognize(path: Path) -> str:
    """The name of the data set whose files lie in a folder, or in a folder of its official name there."""
    if not path.exists():
        raise FileNotFoundError(f"check: {path}: no such file or folder")
    if path.is_file():
        if path.suffix == ".npz":
            return "npz"
        raise ValueError(f"check: {path} must be a folder or a .npz file; say what it is with --name")
    here = [name for name in LAYOUTS if any(_there(name, path))]
    named = [name for name in here if DATASETS[name].folder in (path.name, path.resolve().name)]
    inner = [name for name in LAYOUTS if any(_there(name, path / DATASETS[name].folder))]
    for names in (named, here, inner):
        if len(names) == 1:
            return names[0]
        if names:
            raise ValueError(f"check: {path} may be {' or '.join(names)}; say which with --name")
    roots = [x for x in (path / "train", path / "test") if x.is_dir()] or [path]
    if any(x.suffix.lower() in SUFFIXES for root in roots for x in root.glob("*/*")):
        return "folder"
    raise ValueError(f"check: {path} is no data set that is known by its files; {_nearest(path)}; or give --name")


def summary(images: Images) -> dict[str, Any]:
    """Summary of a split in plain numbers; moments of the pixels are exact, from counts of the 256 values."""
    counts = np.zeros((images.pixels.shape[1], 256), np.int64)
    for start in range(0, len(images), 1024):
        block = images.pixels[start : start + 1024]
        for channel in range(len(counts)):
            counts[channel] += np.bincount(block[:, channel].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1)
    labels = None if images.labels is None else np.bincount(images.labels, minlength=len(images.classes))
    return {
        "images": len(images),
        "form": list(images.pixels.shape[1:]),
        "classes": len(images.classes) if labels is None else len(labels),
        "label_counts": None if labels is None else [int(labels.min()), int(labels.max())],
        "mean": mean.tolist(),
        "std": np.sqrt(variance).tolist(),
        "groups": None if images.groups is None else len(np.unique(images.groups)),
        "graders": None if images.masks is None else int(images.grader_counts.max()),
        "fewest_graders": None if images.masks is None else int(images.grader_counts.min()),
    }


def _graders(row: dict[str, Any]) -> str:
    """Numbers of graders of an image, in words."""
    least, most = row["fewest_graders"], row["graders"]
    return f"{most} masks" if least == most else f"{least} … {most} masks"


def _splits(name: str, path: Path) -> Iterator[tuple[str, Images]]:
    """The splits that are there. One of two may be missing, as where a set only tests; a part of one may not."""
    place = path / DATASETS[name].folder
    there: tuple[bool, ...] = (name != "digits", True)
    if name in LAYOUTS:
        there = _there(name, place if place.exists() else path)
    for split, here in zip(("train", "test"), there, strict=True):
        if here or not any(there):
            yield split, load(name, split, path)  # type: ignore[arg-type]


def _there(name: str, folder: Path) -> tuple[bool, ...]:
    """Tell if the folder has anything of the training, of the test split."""
    return tuple(any(next(folder.glob(x), None) for x in patterns) for patterns in LAYOUTS[name])


def _nearest(path: Path) -> str:
    """The data sets whose file names are most like those in the folder, and what they should be."""
    entries = [path.name, *(x.name for x in path.iterdir())]
    wanted = {part: name for name, split in LAYOUTS.items() for part in (DATASETS[name].folder, *split[0], *split[1])}
    near = dict.fromkeys(wanted[part] for x in entries for part in get_close_matches(x, wanted, 1, 0.75))
    if not near:
        return f"known are {', '.join(LAYOUTS)}, and folders of classes"
    has = {name: " and ".join(dict.fromkeys(x[0] for x in LAYOUTS[name])) for name in near}
    return "nearest: " + "; ".join(f"{name}, which has {parts}" for name, parts in has.items())


def _write(path: Path | None, content: Any) -> None:
    if path is not None:
        write_json(path, content)
        say(f"numbers: {path.resolve()}")
