"""Checksummed folders: one JSON manifest and one safetensors file, written in one step, never a pickle.

The manifest says what the tensors are, what each one's SHA-256 is, and what its own is. It is written last and put in
place in one step, so a folder always holds one whole save: the old one or the new one. Writers of one folder wait for
each other (`exclusive`); readers wait for nobody, and read again what was replaced meanwhile. `write_text` does the
same for one small file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vnd._files import exclusive, is_stale, replace_file, written_for
from vnd._text import one_line

TENSORS = re.compile(r"tensors-[0-9a-f]{12}\.safetensors")
PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
LONGEST = 2**26  # bytes of a manifest: some 400,000 tensors, and no more memory than a reader can spare


@dataclass(frozen=True)
class Format:
    """A kind of checksummed folder: its JSON file, its version, and names in error messages.

    Args:
        manifest: Name of the JSON file.
        version: Number that the manifest states as its format; no other is read.
        saver, loader, writer: Names of the functions that save, load and write such folders.
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

    The folder is made if need be. The manifest holds plain JSON values; tensors may lie on any device and share memory.
    """
    owned = _owned(tensors)
    content = {"format": form.version, **manifest, "sha256": {name: digest(value) for name, value in owned.items()}}
    content["tensors"] = f"tensors-{checksum(content)[:12]}.safetensors"
    content["checksum"] = checksum(content)
    text = _text(content)
    if len(text) > LONGEST:
        raise ValueError(f"{form.saver}: {form.manifest} must have at most {LONGEST} bytes; got {len(text)}")
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder) as alone:
        try:
            replace_file(folder / content["tensors"], lambda part: _save_tensors(form, owned, part))
            replace_file(folder / form.manifest, lambda part: part.write_text(text, encoding="utf-8", newline="\n"))
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


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.numel():
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of what a manifest says."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def encode(value: Any, who: str, name: str, leaf: Callable[[Tensor, str], Any]) -> Any:
    """A tree of dicts, lists, tuples and plain values as JSON, each tensor as what `leaf` makes of it and its name."""
    if isinstance(value, Tensor):
        return leaf(value, name)
    if isinstance(value, dict):
        if (wrong := next((key for key in value if not isinstance(key, str)), None)) is not None:
            raise ValueError(f"{who}: the keys of {name} must be words; got {wrong!r:.100}")
        return {"dict": {key: encode(part, who, f"{name}/{key}", leaf) for key, part in value.items()}}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encode(part, who, f"{name}/{index}", leaf) for index, part in enumerate(value)]}
    value = value.item() if hasattr(value, "item") else value  # a number of numpy's
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{who}: {name} must be a plain JSON value; got {type(value).__name__}")


def decode(tree: Any, leaf: Callable[[dict[str, Any]], Tensor]) -> Any:
    """The inverse of `encode`; `leaf` is that of its own."""
    if not isinstance(tree, dict):
        return tree
    if not tree.keys() & {"dict", "list", "tuple"}:
        return leaf(tree)
    ((kind, parts),) = tree.items()
    if kind == "dict":
        return {key: decode(part, leaf) for key, part in parts.items()}
    return (tuple if kind == "tuple" else list)(decode(part, leaf) for part in parts)


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
    parts = [x for x in folder.glob(".*.part") if written_for(x) == form.manifest or TENSORS.fullmatch(written_for(x))]
    tensors = [x for x in folder.glob("tensors-*.safetensors") if x.name != named and TENSORS.fullmatch(x.name)]
    for old in (*parts, *tensors):
        if alone or is_stale(old, folder / form.manifest):
            old.unlink(missing_ok=True)


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
