"""Fetching data sets: download, continue, check, unpack, put in place in one step.

root/.downloads/NAME-FILE.part   what has arrived of a file; the next connection, or call, asks for the rest
root/.downloads/NAME.unpack/     where archives are unpacked; gone after an error
root/FOLDER/                     the data set, and in it `.complete`: the hashes of what it was made from

A file is accepted if its length and SHA-256 are those of the registry, and by nothing else. Archives of strangers give
plain files and folders below one folder, of bounded size, or nothing: one is read as a stream of members, each checked
before a byte of it is written, and written by this file alone. No member is a link or a device, no name leads out of
the folder, nothing is written twice, and what comes out is counted, whatever the headers promise.
"""

import gzip
import hashlib
import json
import os
import shutil
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPException, HTTPMessage
from pathlib import Path, PurePosixPath
from typing import IO
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from vnd.data.registry import DataSet, Remote

STAMP = ".complete"
CHUNK = 2**18
TRIES = 5
TIMEOUT = 30.0  # seconds without a byte
PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that another try may better
PAGES = ("text/html", "application/xhtml+xml")
EXPANSION = 20  # an image archive unpacks to about its own size, never to more than this many times it
SLACK = 2**20  # small archives are mostly headers
MEMBERS = 1_000_000
TOO_LARGE = f"it would unpack to more than {EXPANSION} times its size"
FORBIDDEN = frozenset('\\:*?"<>|')  # what some system reads as more than a name


def fetch(
    dataset: DataSet,
    root: Path,
    *,
    console: Console | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Path:
    """Download a data set into its folder below `root`, or find that it is there; returns the folder.

    Progress is shown on `console`, by default standard error; `pause` is given the seconds to wait between two tries.
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
    lock = downloads / f"{dataset.name}.lock"  # so that two processes never write one part
    try:
        with FileLock(lock, timeout=0):
            try:
                if is_complete(dataset, folder):  # by a run that has just ended
                    console.print(there, soft_wrap=True)
                    return folder
                with _bar(console) as bar:
                    _get(dataset, downloads, folder, bar, pause)
            finally:
                lock.unlink(missing_ok=True)
    except Timeout:
        raise OSError(f"fetch: another run is fetching {dataset.name} into {root}; wait for it") from None
    finally:
        with suppress(OSError):  # something to continue, or other downloads under way
            downloads.rmdir()
    console.print(f"{dataset.name} is in {folder}", soft_wrap=True)
    return folder


def is_complete(dataset: DataSet, folder: Path) -> bool:
    """Tell if `fetch` made the folder of these files; a folder of anything else is the user's, and an error."""
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
    again, by_hand = f"`vnd data fetch {dataset.name}`", _by_hand(dataset, folder)
    for remote, part in zip(dataset.remotes, parts, strict=True):
        task = bar.add_task(_file_name(remote), total=remote.size)
        _download(remote, part, again, by_hand, partial(bar.update, task), pause)
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


def _hashes(dataset: DataSet) -> dict[str, str]:
    return {_file_name(remote): remote.sha256 for remote in dataset.remotes}


def _file_name(remote: Remote) -> str:
    return safe_parts(PurePosixPath(urlsplit(remote.url).path).name)[0]


def _count(folder: Path) -> tuple[int, int]:
    """Number of files in a folder and their bytes, the stamp left out."""
    files = [x for x in folder.rglob("*") if x.is_file() and x != folder / STAMP]
    return len(files), sum(x.stat().st_size for x in files)


def _bar(console: Console) -> Progress:
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    return Progress(TextColumn("{task.description}"), *columns, console=console)


class RefusedError(OSError):
    """Error of what arrived and is not the file: none of it may be kept."""


def _download(
    remote: Remote,
    part: Path,
    again: str,
    by_hand: str,
    show: Callable[..., object],
    pause: Callable[[float], object],
) -> None:
    """Bring a part to its full length over as many connections as it takes, and check it; a wrong one is removed.

    The errors name `again`, the command to give once more, and `by_hand`, how to do without it; `show` is given the
    number of bytes that are there as `completed`.
    """
    trouble = ""
    for attempt in range(TRIES):
        if length(part) > remote.size:  # left by something else
            part.unlink()
        if length(part) == remote.size:
            break
        if attempt:
            pause(2.0 ** (attempt - 1))
        try:
            trouble = _receive(remote, part, show)
        except RefusedError:
            part.unlink(missing_ok=True)
            raise
        except HTTPError as error:
            error.close()
            trouble = f"{error.code} {_reason(error.reason)}"
            if error.code == 416:  # the server has no more than we have, and we have too little: start over
                part.unlink(missing_ok=True)
            elif error.code not in PASSING:
                raise OSError(f"fetch: {remote.url} answers {trouble}; if it stays so, {by_hand}") from None
        except URLError as error:
            trouble = _reason(error.reason)
            if not attempt:
                raise OSError(
                    f"fetch: cannot reach {urlsplit(remote.url).hostname} ({trouble}); with a network run {again} "
                    f"again, or {by_hand}"
                ) from None
    if length(part) != remote.size:
        raise OSError(
            f"fetch: {remote.url} broke off {TRIES} times ({trouble}); {length(part):,} of {remote.size:,} bytes are "
            f"in {part}, and {again} continues from there"
        )
    show(completed=remote.size)
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != remote.sha256:
        part.unlink()
        raise RefusedError(
            f"fetch: {remote.url} must have SHA-256 {remote.sha256}; got {digest}; it was removed; run {again} "
            f"again; if it stays so, {by_hand}"
        )


def length(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def _receive(remote: Remote, part: Path, show: Callable[..., object]) -> str:
    """Append to the part what one connection brings; returns why it ended."""
    start = length(part)
    headers = {"User-Agent": "vnd", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = request.build_opener(_Redirects).open(
            request.Request(_checked(remote.url), headers=headers), timeout=TIMEOUT
        )
    except (URLError, RefusedError):
        raise
    except (OSError, HTTPException) as error:  # cut off before the answer's headers
        return _reason(error)
    with response:
        start = _position(remote, start, response.status, response.headers)
        data, trouble = _read(response)
        if not start and data.lstrip()[:1] == b"<":  # before the part is touched: a login page does not cost it
            raise _web_page(remote)
        try:
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                while data:
                    start += len(data)
                    if start > remote.size:
                        raise RefusedError(f"fetch: {remote.url} must have {remote.size:,} bytes; got more; removed")
                    file.write(data)
                    show(completed=start)
                    data, trouble = _read(response)
                file.flush()
                os.fsync(file.fileno())
        except RefusedError:
            raise
        except OSError as error:
            raise OSError(f"fetch: {part} cannot be written: {_reason(error)}; what is there is kept") from error
    return trouble


def _read(response: IO[bytes]) -> tuple[bytes, str]:
    """The next bytes of an answer, or none and the reason; a cut is no error, since what has arrived is good."""
    try:
        return response.read(CHUNK), "the connection was closed"
    except (OSError, HTTPException) as error:
        return b"", _reason(error)


def _position(remote: Remote, start: int, status: int, headers: HTTPMessage) -> int:
    """Position of an answer's bytes in the file, if its headers are those of the file."""
    if "Content-Type" in headers and headers.get_content_type() in PAGES:
        raise _web_page(remote)
    if status == 206:
        place, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        if place.partition("-")[0] != str(start) or total not in ("*", str(remote.size)):
            got = headers.get("Content-Range")
            raise RefusedError(
                f"fetch: {remote.url} must send bytes {start}- of {remote.size}; got {got}; part removed"
            )
        return start
    size = headers.get("Content-Length", str(remote.size))  # 200: the whole file, whatever was asked for
    if status != 200 or size != str(remote.size):
        raise RefusedError(f"fetch: {remote.url} must have {remote.size:,} bytes; got {size} (status {status})")
    return 0


def _web_page(remote: Remote) -> OSError:
    return OSError(f"fetch: {remote.url} must send the file; got a web page: is there a login or a blocked network?")


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects to http and https only."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        try:
            return super().redirect_request(req, fp, code, msg, headers, _checked(newurl))
        except RefusedError:
            fp.close()
            raise


def _checked(url: str) -> str:
    """An address of the web: urllib would open file:, ftp: and data: too."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise RefusedError(f"fetch: only http and https are fetched from; got {url}")
    return url


def _reason(error: object) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def unpack(archive: Path, folder: Path, kind: str, advance: Callable[[int], object] = lambda count: None) -> None:
    """Unpack an archive into a folder that holds nothing of the same names; a hostile or broken one is a ValueError.

    After an error the folder holds the members before the bad one: the caller unpacks beside and then renames. The kind
    is "tar", plain or gzip, or "zip"; `advance` is given the number of bytes written, again and again.
    """
    if kind not in ("tar", "zip"):
        raise ValueError(f"unpack: kind must be tar or zip; got {kind!r}")
    budget = EXPANSION * archive.stat().st_size + SLACK
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with closing((_tar if kind == "tar" else _zip)(archive, budget)) as members:
            for count, (name, size, source) in enumerate(members):
                if count >= MEMBERS:
                    raise ValueError(f"it has more than {MEMBERS:,} members")
                path = folder.joinpath(*safe_parts(name))
                try:
                    (path if source is None else path.parent).mkdir(parents=True, exist_ok=True)
                except (FileExistsError, NotADirectoryError):
                    raise ValueError(f"{name[:80]!r} lies in or is a folder that is also a file") from None
                if source is not None:
                    _write(path, name, size, source, advance)
    except Exception as error:  # the standard library's readers raise nearly anything on bytes made to break them
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise  # a full disk is not the archive's fault
        words = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"unpack: {archive} is refused: {words}") from error


def safe_parts(name: str) -> list[str]:
    r"""The parts of a member's path, if it is one that stays below its folder on every system.

    >>> safe_parts("./train/n01443537/images/0.JPEG")
    ['train', 'n01443537', 'images', '0.JPEG']
    >>> safe_parts("../x")
    Traceback (most recent call last):
    ValueError: the name '../x' leads out of its folder
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise ValueError(f"the name {name[:80]!r} leads out of its folder")
    if not name.isprintable() or FORBIDDEN & set(name):
        raise ValueError(f"the name {name[:80]!r} has characters that no data set needs")
    if len(parts) > 32 or any(len(part.encode()) > 255 or part != part.rstrip(". ") for part in parts):
        raise ValueError(f"the name {name[:80]!r} is too long, too deep, or ends in a dot or space")
    return parts


Member = tuple[str, int, IO[bytes] | None]  # name, size, content; None for a folder


def _tar(archive: Path, budget: int) -> Generator[Member]:
    """The members of a tar file, plain or gzip, in one pass that never goes back."""
    with archive.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(archive) if is_packed else archive.open("rb") as plain:
        stream = _Bounded(plain, budget)  # type: ignore[arg-type]
        tar: tarfile.TarFile = tarfile.open(fileobj=stream, mode="r|")  # type: ignore[call-overload]  # noqa: SIM115
        for member in tar:
            if member.issparse() or not (member.isreg() or member.isdir()):
                raise ValueError(f"{member.name[:80]!r} is a link, a device or sparse; only plain files are unpacked")
            safe_parts(member.name)
            if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later: its own opinion, on top
                tarfile.data_filter(member, str(archive.parent))
            yield member.name, member.size, None if member.isdir() else tar.extractfile(member)


class _Bounded:
    """A stream that ends in an error after so many bytes: a tar's own headers can be a bomb too."""

    def __init__(self, stream: IO[bytes], budget: int) -> None:
        self.stream, self.left = stream, budget

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError(TOO_LARGE)
        return data


def _zip(archive: Path, budget: int) -> Generator[Member]:
    """The members of a zip file; all of its directory is checked before the first."""
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        for member in members:
            safe_parts(member.orig_filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{member.filename[:80]!r} is a link or a device; only plain files are unpacked")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(
                    f"{member.filename[:80]!r} has compression {member.compress_type}; not stored or deflate"
                )
        if sum(member.file_size for member in members) > budget:
            raise ValueError(TOO_LARGE)
        for member in members:
            if member.is_dir():
                yield member.filename, 0, None
            else:
                with packed.open(member) as source:
                    yield member.filename, member.file_size, source


def _write(path: Path, name: str, size: int, source: IO[bytes], advance: Callable[[int], object]) -> None:
    """Write one file that was not there, of exactly the size that was promised."""
    try:
        target = path.open("xb")
    except (FileExistsError, IsADirectoryError):
        raise ValueError(f"{name[:80]!r} is there twice") from None
    written = 0
    with target:
        while data := source.read(min(CHUNK, size + 1 - written)):
            written += len(data)
            if written > size:
                break
            target.write(data)
            advance(len(data))
    if written != size:
        raise ValueError(f"{name[:80]!r} must have {size:,} bytes; got {'more' if written > size else f'{written:,}'}")
