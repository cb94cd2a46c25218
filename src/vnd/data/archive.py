"""Unpacking archives of strangers: plain files and folders below one folder, of bounded size, or nothing.

An archive is read as a stream of members, each checked before a byte of it is written, and written by this file alone:
no member is a link or a device, no name leads out of the folder, nothing is written twice, and what comes out is
counted, whatever the headers promise.
"""

import gzip
import stat
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

EXPANSION = 20  # an image archive unpacks to about its own size, never to more than this many times it
SLACK = 2**20  # small archives are mostly headers
MEMBERS = 1_000_000
CHUNK = 2**20
TOO_LARGE = f"it would unpack to more than {EXPANSION} times its size"
FORBIDDEN = frozenset('\\:*?"<>|')  # what some system reads as more than a name


def unpack(archive: Path, folder: Path, kind: str, advance: Callable[[int], object] = lambda count: None) -> None:
    """Unpack an archive into a folder that holds nothing of the same names; a hostile or broken one is a ValueError.

    After an error the folder holds the members before the bad one: the caller unpacks beside and then renames.

    Args:
        archive: The file.
        folder: Destination; it is made if need be.
        kind: "tar" (plain or gzip) or "zip".
        advance: Called with the number of bytes written, again and again.
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
                _folder(path if source is None else path.parent, name)
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
    with _decompressed(archive) as plain:
        stream = _Bounded(plain, budget)
        tar: tarfile.TarFile = tarfile.open(fileobj=stream, mode="r|")  # type: ignore[call-overload]  # noqa: SIM115
        for member in tar:
            if member.issparse() or not (member.isreg() or member.isdir()):
                raise ValueError(f"{member.name[:80]!r} is a link, a device or sparse; only plain files are unpacked")
            safe_parts(member.name)
            if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later: its own opinion, on top
                tarfile.data_filter(member, str(archive.parent))
            yield member.name, member.size, None if member.isdir() else tar.extractfile(member)


@contextmanager
def _decompressed(archive: Path) -> Iterator[IO[bytes]]:
    with archive.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=raw) as plain:
                yield plain  # type: ignore[misc]
        else:
            yield raw


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


def _folder(path: Path, name: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{name[:80]!r} lies in or is a folder that is also a file") from None


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
