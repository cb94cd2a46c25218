"""Checksummed folders: one JSON manifest and one safetensors file, written in one step, never a pickle.

The manifest says what the tensors are, what each one's SHA-256 is, and what its own is. It is written last and put in
place in one step, so a folder always holds one whole save: the old one or the new one. Writers of one folder wait for
each other (`exclusive`); readers wait for nobody, and read again what was replaced meanwhile. `write_text` does the
same for one small file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

TENSORS = re.compile(r"tensors-[0-9a-f]{12}\.safetensors")
PART = re.compile(r"\.(.+?)(?:\.[0-9]+-[0-9a-f]{8})?\.part")
PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
LONGEST = 2**26  # bytes of a manifest: some 400,000 tensors, and no more memory than a reader can spare
LOCK = ".lock"  # in a folder that is being written; whoever holds it removes it
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
STALE = 3600  # seconds after which a part of a file is of a writer that was killed
_held: set[int] = set()  # the open lock files of this process


@dataclass(frozen=True)
class Format:
    """A kind of checksummed folder, and the names it has in error messages.

    Args:
        manifest: Name of the JSON file.
        version: Number that the manifest states as its format; no other is read.
        saver: Who speaks when a folder cannot be written.
        loader: Who speaks when a folder cannot be read.
        writer: The function that writes such folders.
        check: Raises a ValueError if a manifest that is otherwise whole does not say what it must.
    """

    manifest: str
    version: int
    saver: str
    loader: str
    writer: str
    check: Callable[[dict[str, Any]], None] = lambda manifest: None


def write(form: Format, folder: Path, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the tensors under a new name, then put the manifest in place, then drop what it does not name.

    Args:
        form: What kind of folder it is.
        folder: Where to; it is made if need be, and what it holds is replaced in one step.
        manifest: What to say of the tensors; plain JSON values.
        tensors: The tensors by name, of any device and layout; two may share memory.
    """
    owned = _owned(tensors)
    said = {"format": form.version, **manifest, "sha256": {name: digest(value) for name, value in owned.items()}}
    said["tensors"] = f"tensors-{checksum(said)[:12]}.safetensors"
    said["checksum"] = checksum(said)
    text = _text(said)
    if len(text) > LONGEST:
        raise ValueError(f"{form.saver}: {form.manifest} must have at most {LONGEST} bytes; got {len(text)}")
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder) as alone:
        try:
            _replace(folder / said["tensors"], lambda part: _save_tensors(form, owned, part))
            _replace(folder / form.manifest, lambda part: part.write_text(text, encoding="utf-8"))
        finally:
            with suppress(OSError, ValueError):
                _tidy(form, folder, alone)


def read(form: Format, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the manifest and the tensors, in memory of their own, on the CPU; a ValueError of one line if damaged.

    Both are read again if a new save was put in their place meanwhile, be it of the same contents.
    """
    while True:
        version = _version(folder / form.manifest)
        manifest = read_manifest(form, folder)
        try:
            return manifest, _read_tensors(form, folder, manifest)
        except ValueError:
            if version == _version(folder / form.manifest):
                raise


def read_manifest(form: Format, folder: Path) -> dict[str, Any]:
    """Read the manifest alone, checked against its own checksum."""
    path = folder / form.manifest
    if not path.is_file():
        _refuse(form, folder)
    try:
        if path.stat().st_size > LONGEST:
            raise ValueError(f"it must have at most {LONGEST} bytes; got {path.stat().st_size}")
        text = path.read_text(encoding="utf-8")
        manifest = json.loads(text)
        version = manifest["format"]
        if version != form.version:
            raise ValueError(f"it has format {version!r}; this version of vnd reads format {form.version}")
        if manifest["checksum"] != checksum(manifest) or text != _text(manifest):  # 0.30000000000000005 is 0.3…04
            raise ValueError("its checksum is not the one that was saved")
        if not TENSORS.fullmatch(manifest["tensors"]):
            raise ValueError(f"it names the tensor file {manifest['tensors']!r}, which save would not")
        if not isinstance(manifest["sha256"], dict):
            raise ValueError("sha256 must map tensors to their checksums")
        form.check(manifest)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{form.loader}: {path} is damaged or not of {form.writer}: {one_line(error)}") from None
    return dict(manifest)


@contextmanager
def exclusive(folder: Path) -> Iterator[bool]:
    """Wait until no other process or thread writes into a folder, and keep them waiting.

    The kernel drops the lock of a process that ends, however it ends, so a killed writer keeps nobody waiting. The lock
    file is removed by whoever holds it, so one that waited for a removed file tries again.

    Yields:
        True; False where there are no locks (Windows, some network file systems), and nobody waits.
    """
    handle = _locked(folder / LOCK)
    if handle is None:
        yield False
        return
    _held.add(handle)
    try:
        yield True
    finally:
        if handle in _held:  # not in a forked child
            _held.discard(handle)
            with suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a small file in one step: whoever reads it, also after a kill or a full disk, sees the old or the new."""
    put(path, lambda part: part.write_text(text, encoding="utf-8"))


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then put it there in one step that outlives a loss of power.

    A link is followed, and the file that it leads to is replaced. Into what is no regular file (a device, a pipe, one
    of this process's open files such as /dev/stdout) the contents are written as they are.
    """
    target = _target(path)
    if target is not None:
        _replace(target, write)
        _tidy_parts(target)
        return
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part"
        write(part)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        with open(handle, "wb") as file:
            file.write(part.read_bytes())


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a name that nobody else has, then rename it."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        write(part)
        sync(part)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _target(path: Path) -> Path | None:
    """The place of a regular file that a path leads to, there or not; None for what must not be replaced."""
    place = Path(os.path.abspath(path))
    for _ in range(40):  # links; the kernel follows as many
        if place.parts[1:2] in (("dev",), ("proc",)) and os.path.lexists(place):
            return place if place.is_relative_to("/dev/shm") and _regular(place) else None
        if not place.is_symlink():
            break
        place = Path(os.path.abspath(place.parent.resolve() / os.readlink(place)))
    return place if not os.path.lexists(place) or _regular(place) else None


def _regular(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _locked(path: Path) -> int | None:
    """An open lock file that is locked and in its place; None where there are no locks."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return None
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(handle)
                raise
            with suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _leave() -> None:
    """Let go of all locks in a forked child, or one that outlives a killed writer would keep others waiting."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.numel():
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of what a manifest says."""
    said = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def one_line(error: BaseException) -> str:
    """What an error says, on one line and not too long; with its kind where the words alone may not do."""
    words = " ".join(str(error).split())
    return words[:300] if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words[:300]}"


def _text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1) + "\n"


def _owned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, none of them a part of other memory, as safetensors wants them."""
    owned, seen = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        memory = value.untyped_storage()
        if memory.data_ptr() in seen or memory.nbytes() != value.nbytes:
            value = value.clone(memory_format=torch.contiguous_format)
        seen.add(value.untyped_storage().data_ptr())
        owned[name] = value
    return owned


def _save_tensors(form: Format, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(f"{form.saver}: {path} cannot be written: {one_line(error)}") from error


def _tidy(form: Format, folder: Path, alone: bool) -> None:
    """Remove what saves, also broken ones, have left: all files of ours that the manifest in place does not name.

    Where others may be writing, only what is so old that none of them can be about to name it.
    """
    named = read_manifest(form, folder)["tensors"] if (folder / form.manifest).exists() else None
    parts = [
        x for x in folder.glob(".*.part") if _written_for(x) == form.manifest or TENSORS.fullmatch(_written_for(x))
    ]
    tensors = [x for x in folder.glob("tensors-*.safetensors") if x.name != named and TENSORS.fullmatch(x.name)]
    for old in (*parts, *tensors):
        if alone or _stale(old, folder / form.manifest):
            old.unlink(missing_ok=True)


def _tidy_parts(path: Path) -> None:
    """Remove the parts that killed writers of this file have left long ago."""
    with suppress(OSError):
        for part in path.parent.glob(".*.part"):
            if _written_for(part) == path.name and _stale(part, path):
                part.unlink(missing_ok=True)


def _written_for(part: Path) -> str:
    """The name of the file that a part was to become."""
    match = PART.fullmatch(part.name)
    return match[1] if match else ""


def _stale(part: Path, written: Path) -> bool:
    """Whether a file is much older than one that was just written, by the clock of their file system."""
    return written.stat().st_mtime - part.stat().st_mtime > STALE


def _version(path: Path) -> tuple[int, ...] | None:
    """A mark of the file in a place, another one after it was replaced; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_ctime_ns


def _read_tensors(form: Format, folder: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / manifest["tensors"]
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for ever
            raise ValueError("it is not a file")
        mapped = load_file(path)
    except Exception as error:
        raise ValueError(f"{form.loader}: {path} cannot be read: {one_line(error)}") from None
    expected = manifest["sha256"]
    if set(mapped) != set(expected):
        raise ValueError(f"{form.loader}: {path} and {form.manifest} name different tensors")
    tensors = {name: value.clone() for name, value in mapped.items()}  # so that what is checked is what is used
    for name, value in tensors.items():
        if digest(value) != expected[name]:
            raise ValueError(
                f"{form.loader}: tensor {name!r} in {path} is damaged: its SHA-256 is not the one that was saved"
            )
    return tensors


def _refuse(form: Format, path: Path) -> NoReturn:
    """Say why there is nothing to read: no such path, a pickle, or a folder of something else."""
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    pickle = next((x for x in candidates if x.suffix.lower() in PICKLES or _begins_as_pickle(x)), None)
    wanted = f"give a folder that {form.writer} wrote"
    if pickle is not None:
        raise ValueError(f"{form.loader}: {pickle} is a pickle, which can run code when read; {wanted}")
    what = f"holds no {form.manifest}" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
    raise ValueError(f"{form.loader}: {path} {what}; {wanted}")


def _begins_as_pickle(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2).startswith((b"\x80", b"PK"))  # Python's own, and torch's, which are zip archives
