"""Fetching data sets: download, continue, check, unpack, put in place in one step.

root/.downloads/NAME-FILE.part   what has arrived of a file; the next call continues it
root/.downloads/NAME.unpack/     where archives are unpacked; gone after an error
root/FOLDER/                     the data set, and in it `.complete`: the hashes of what it was made from
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from vnd.data.archive import safe_parts, unpack
from vnd.data.catalogue import DataSet, Remote
from vnd.data.download import RefusedError, download

STAMP = ".complete"


def fetch(
    dataset: DataSet,
    root: Path,
    *,
    console: Console | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Path:
    """Download a data set into a folder of its own below `root`, or find that it is there.

    Args:
        dataset: An entry of the catalogue.
        root: The folder of all data sets; it is made if need be.
        console: Where progress is shown; standard error by default.
        pause: Called with the seconds to wait between two tries.

    Returns:
        The folder of the data set.
    """
    console = console or Console(stderr=True)
    folder, downloads = root / dataset.folder, root / ".downloads"
    if not dataset.remotes:
        raise ValueError(f"fetch: {dataset.name} cannot be downloaded by this command; {_by_hand(dataset, folder)}")
    there = f"{dataset.name} is in {folder} and complete; nothing to download"
    if is_complete(dataset, folder):
        console.print(there, soft_wrap=True)
        return folder
    downloads.mkdir(parents=True, exist_ok=True)
    try:
        with _alone(downloads / f"{dataset.name}.lock", dataset):
            if is_complete(dataset, folder):  # by a run that has just ended
                console.print(there, soft_wrap=True)
                return folder
            with _bar(console) as bar:
                _get(dataset, downloads, folder, bar, pause)
    finally:
        with suppress(OSError):  # something to continue, or other downloads under way
            downloads.rmdir()
    console.print(f"{dataset.name} is in {folder}", soft_wrap=True)
    return folder


def is_complete(dataset: DataSet, folder: Path) -> bool:
    """Whether `fetch` made the folder of these files; a folder of anything else is the user's, and an error."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    what = "was not fetched by this command"
    with suppress(OSError, ValueError, KeyError, TypeError):
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        files, size = _count(folder)
        if stamp["sha256"] != _hashes(dataset):
            what = "was made from other files than those of this version"
        elif files < stamp["files"] or size < stamp["bytes"]:
            what = (
                f"is no longer whole: {files:,} files of {size:,} bytes, not {stamp['files']:,} of {stamp['bytes']:,}"
            )
        else:
            return True
    raise FileExistsError(
        f"fetch: {folder} is there already and {what}; look at it with `vnd data check {folder}`, "
        f"or move it away to download {dataset.name} afresh"
    )


def _get(dataset: DataSet, downloads: Path, folder: Path, bar: Progress, pause: Callable[[float], object]) -> None:
    parts = [downloads / f"{dataset.name}-{_file_name(remote)}.part" for remote in dataset.remotes]
    for remote, part in zip(dataset.remotes, parts, strict=True):
        download(
            remote,
            part,
            again=f"`vnd data fetch {dataset.name}`",
            by_hand=_by_hand(dataset, folder),
            show=partial(_show, bar, bar.add_task(_file_name(remote), total=remote.size)),
            pause=pause,
        )
    _install(dataset, parts, downloads / f"{dataset.name}.unpack", folder, bar)
    for part in parts:
        part.unlink()


def _install(dataset: DataSet, parts: list[Path], stage: Path, folder: Path, bar: Progress) -> None:
    """Unpack into a folder beside, stamp it, and rename it to its place; after any error nothing of it is left."""
    shutil.rmtree(stage, ignore_errors=True)  # of a run that was killed
    task = bar.add_task("unpack", total=None)
    try:
        stage.mkdir()
        for remote, part in zip(dataset.remotes, parts, strict=True):
            try:
                if remote.unpack == "none":
                    shutil.copyfile(part, stage / _file_name(remote))
                else:
                    unpack(part, stage, remote.unpack, lambda count: bar.advance(task, count))
            except ValueError as error:
                part.unlink()
                what = str(error).removeprefix("unpack: ")
                raise RefusedError(
                    f"fetch: {what}; the file was removed; put the data yourself: {dataset.manual}"
                ) from error
        inside = list(stage.iterdir())
        top = inside[0] if len(inside) == 1 and inside[0].is_dir() else stage  # an archive of one folder is that folder
        files, size = _count(top)
        stamp = {"name": dataset.name, "sha256": _hashes(dataset), "files": files, "bytes": size}
        with (top / STAMP).open("x", encoding="utf-8") as file:
            file.write(json.dumps(stamp, indent=1) + "\n")
        if hasattr(os, "sync"):  # one call for all: each file by itself would take minutes for a hundred thousand
            os.sync()
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.replace(top, folder)  # only an empty folder can be in its place
    except RefusedError:
        raise
    except OSError as error:
        raise OSError(f"fetch: {folder} cannot be written: {error}; what was downloaded is kept") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    bar.update(task, total=size, completed=size)


def _by_hand(dataset: DataSet, folder: Path) -> str:
    return f"put the files yourself into {folder}: {dataset.manual}" if dataset.folder else dataset.manual


def _show(bar: Progress, task: TaskID, done: int) -> None:
    bar.update(task, completed=done)


def _hashes(dataset: DataSet) -> dict[str, str]:
    return {_file_name(remote): remote.sha256 for remote in dataset.remotes}


def _file_name(remote: Remote) -> str:
    return safe_parts(PurePosixPath(urlsplit(remote.url).path).name)[0]


def _count(folder: Path) -> tuple[int, int]:
    """Number of files in a folder and their bytes, the stamp left out."""
    files = [x for x in folder.rglob("*") if x.is_file() and x != folder / STAMP]
    return len(files), sum(x.stat().st_size for x in files)


@contextmanager
def _alone(lock: Path, dataset: DataSet) -> Iterator[None]:
    """Hold a lock that ends with the process, so that two of them never write one part."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: the hash still finds what two writers mix
        yield
        return
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OSError(
                f"fetch: another run is fetching {dataset.name} into {lock.parent.parent}; wait for it"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
