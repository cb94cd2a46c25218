"""Saving and loading networks: safetensors and JSON, checksummed, never a pickle.

A saved network is a folder of two files: `network.json` says how to build the network and what each tensor's SHA-256
is; `tensors-….safetensors` holds the tensors. The JSON file is written last and in one step, so a folder always holds
one whole network: the old one or the new one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from vnd.distributions import BernoulliChain
from vnd.models import MODELS, build
from vnd.nn import Rule, Shape, extract, to_nested
from vnd.nn.extract import ORIGINS
from vnd.nn.plan import Plan, batch_norms, unwrap

FORMAT = 1
MANIFEST = "network.json"
TENSORS = re.compile(r"tensors-[0-9a-f]{12}\.safetensors")
KINDS = ("plain", "nested", "extracted")
PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


def save(net: nn.Module, folder: str | Path) -> Path:
    """Save a nested network, one extracted from it, or a plain one, with its BatchNorm statistics.

    Args:
        net: The network.
        folder: Where to; it is made if need be, and a network in it is replaced in one step.

    Returns:
        The folder.
    """
    root, folder = unwrap(net), Path(folder)
    plan: Plan | None = getattr(root, "_vnd_plan", None)
    tensors = _state(root)
    manifest: dict[str, Any] = {"format": FORMAT, "kind": "plain"}
    if plan is not None:
        manifest |= {"kind": "nested", "conversion": _encode(plan.arguments), "example": _shapes(plan.example)}
        manifest["statistics"] = []
        valid = [key for key in plan.statistics if plan.valid_statistics(root, key) is not None]
        for index, (shape, samples) in enumerate(valid):
            norms = plan.statistics[shape, samples]
            manifest["statistics"].append({"shape": dict(shape), "samples": samples})
            for name, pair in norms.items():
                for part, value in zip(("mean", "variance"), pair, strict=True):
                    tensors[f"statistics/{index}/{part}/{name}"] = value.detach().cpu().contiguous()
    elif root in ORIGINS:
        origin = ORIGINS[root]
        manifest |= {"kind": "extracted", "conversion": _encode(origin["arguments"])}
        manifest |= {"example": _shapes(origin["example"]), "shape": dict(origin["shape"])}
        manifest["bayesian"] = origin["bayesian"]
    manifest["model"] = _model_of(root, manifest["kind"], tensors)
    manifest["buffers"] = {  # those that are not saved, but change their dtype with the network
        name: _name_of(value.dtype)
        for name, value in root.named_buffers()
        if name not in tensors and value.is_floating_point()
    }
    manifest["sha256"] = {name: _digest(value) for name, value in tensors.items()}
    _write(folder, manifest, {name: value.clone() for name, value in tensors.items()})
    return folder


def load(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Load a network that `save` wrote, on the CPU, in evaluation mode; every tensor is checked against its SHA-256.

    Args:
        folder: What was given to `save`.
        model: The plain network it was made from, for one that is not in `vnd.models`; its weights do not matter, and
            it is left as it is.
    """
    folder = Path(folder)
    manifest, tensors = _read(folder)
    try:
        with torch.random.fork_rng(devices=[]):  # building draws weights, which nobody will see
            net = _rebuild(manifest, tensors, model)
        _fill(net, manifest, tensors)
    except Exception as error:
        raise ValueError(f"load: the network in {folder} cannot be built: {_one_line(error)}") from error
    return net.eval()


def _state(root: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network's state."""
    inner = next((n for n, m in root.named_modules() if n and hasattr(m, "_vnd_plan")), None)
    if inner is not None:
        raise ValueError(f"save: {inner} is a nested network within a {type(root).__name__}; save it by itself")
    state = root.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"save: {name} is a {type(value).__name__} and not a tensor; only tensors can be saved")
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def _rebuild(manifest: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module | None) -> nn.Module:
    """Make the network that a manifest describes, with weights of no meaning."""
    kind, known = manifest["kind"], manifest["model"]
    if model is not None:
        model = copy.deepcopy(unwrap(model)).cpu()
    elif known is None:
        raise ValueError("it is not one of vnd.models; give its plain form as model=")
    else:
        misfit = _misfit(known, kind, tensors)
        if misfit is not None:
            raise ValueError(f"{misfit} is not that of the {known['name']} described; give its plain form as model=")
        model = build(known["name"], **known["config"])
    if kind == "plain":
        return model
    example = _example(manifest["example"])
    dtypes = {x.dtype for x in (*example[0], *example[1].values()) if isinstance(x, Tensor) and x.is_floating_point()}
    if len(dtypes) == 1:  # as at the conversion; the state's own dtypes come with the state
        model = model.to(dtypes.pop())
    net = to_nested(model, example[1] or example[0], **_decode(manifest["conversion"]))
    if kind == "nested":
        return net
    return extract(net.eval(), Shape.of(manifest["shape"]), bayesian=manifest["bayesian"])


def _fill(net: nn.Module, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give a network its state, in the dtypes that were saved, and its statistics."""
    own = {name: value for name, value in tensors.items() if not name.startswith("statistics/")}
    dtypes = {name: _dtype_of(dtype) for name, dtype in manifest["buffers"].items()}
    dtypes |= {name: value.dtype for name, value in own.items()}
    for name, value in (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)):
        if name in dtypes:
            value.data = value.data.to(dtypes[name])
    net.load_state_dict(own)
    plan: Plan | None = getattr(net, "_vnd_plan", None)
    if plan is None:
        return
    sizes = {name: (norm.num_features,) for name, norm in batch_norms(net)}
    for index, entry in enumerate(manifest["statistics"]):
        found = {
            name: tuple(tensors[f"statistics/{index}/{part}/{name}"].clone() for part in ("mean", "variance"))
            for name in sizes
        }
        for name, size in sizes.items():
            if any(value.shape != size for value in found[name]):
                raise ValueError(f"statistics {index} of {name} have another size than its {size[0]} channels")
        key = Shape.of(entry["shape"]), bool(entry["samples"])
        plan.statistics[key] = found  # type: ignore[assignment]
        plan.stamps[key] = plan.stamp(net)


def _model_of(root: nn.Module, kind: str, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    """The name and arguments of one of `vnd.models`; None for any other network, or one that was altered."""
    for name, known in MODELS.items():
        if type(root) is known:
            model = {"name": name, "config": root.config}
            return model if _misfit(model, kind, tensors) is None else None
    return None


def _misfit(model: dict[str, Any], kind: str, tensors: dict[str, Tensor]) -> str | None:
    """The first tensor that a network of `vnd.models` has otherwise, by a dry run that takes no memory."""
    count, own_thread = 0, threading.get_ident()

    def bound(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal count
        count += threading.get_ident() == own_thread
        if count > 2 * len(tensors):  # as a hostile depth would have; some networks register a parameter twice
            raise ValueError("it has more parameters than were saved")

    handle = register_module_parameter_registration_hook(bound)
    try:
        with torch.device("meta"):
            dry = build(model["name"], **model["config"]).state_dict()
    finally:
        handle.remove()
    if kind == "extracted":
        return None
    for name, value in dry.items():
        if name not in tensors or tensors[name].shape != value.shape:
            return name
    return next((name for name in tensors if name not in dry), None) if kind == "plain" else None


def _encode(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `to_nested` as JSON; chains become their logits."""

    def one(name: str, x: Any) -> Any:
        if isinstance(x, BernoulliChain):
            return {"keep_logits": x.keep_logits.tolist(), "dtype": _name_of(x.keep_logits.dtype)}
        x = x.item() if hasattr(x, "item") else x  # a number of numpy's or torch's
        if x is None or isinstance(x, bool | int | float | str):
            return x
        raise ValueError(f"save: {name} must be a number, a word or a chain to be written as JSON; got {x!r}")

    encoded = {name: one(name, x) for name, x in arguments.items() if name != "rules"}
    encoded["rules"] = {}
    for pattern, rule in arguments["rules"].items():
        given = {f.name: getattr(rule, f.name) for f in fields(rule)}
        encoded["rules"][pattern] = {name: one(name, x) for name, x in given.items() if x is not None}
    return encoded


def _decode(conversion: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `_encode`."""

    def one(x: Any) -> Any:
        return BernoulliChain(torch.tensor(x["keep_logits"], dtype=_dtype_of(x["dtype"]))) if isinstance(x, dict) else x

    decoded = {name: one(x) for name, x in conversion.items() if name != "rules"}
    decoded["rules"] = {
        pattern: Rule(**{name: one(x) for name, x in rule.items()}) for pattern, rule in conversion["rules"].items()
    }
    return decoded


def _shapes(example: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    """Arguments of a network as JSON; of tensors only shape and dtype."""

    def one(x: Any) -> Any:
        if isinstance(x, Tensor):
            return {"shape": list(x.shape), "dtype": _name_of(x.dtype)}
        if isinstance(x, list | tuple):
            return {"tuple" if isinstance(x, tuple) else "list": [one(y) for y in x]}
        if isinstance(x, dict):
            return {"dict": {key: one(y) for key, y in x.items()}}
        if x is None or isinstance(x, bool | int | float | str):
            return x
        raise ValueError(f"save: the example input of the conversion holds a {type(x).__name__}, not only tensors")

    return {"args": [one(x) for x in example[0]], "kwargs": {key: one(x) for key, x in example[1].items()}}


def _example(shapes: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of these shapes; random between 0 and 1, since on zeros a wrong slicing may compute what is right."""
    generator = torch.Generator().manual_seed(0)

    def one(x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        if "shape" in x:
            dtype = _dtype_of(x["dtype"])
            if dtype.is_floating_point:
                return torch.rand(x["shape"], generator=generator).to(dtype)
            return torch.zeros(x["shape"], dtype=dtype)
        ((kind, parts),) = x.items()
        if kind == "dict":
            return {key: one(y) for key, y in parts.items()}
        return tuple(map(one, parts)) if kind == "tuple" else [one(y) for y in parts]

    return tuple(one(x) for x in shapes["args"]), {key: one(x) for key, x in shapes["kwargs"].items()}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype


def _digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.numel():
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _checksum(manifest: dict[str, Any]) -> str:
    """SHA-256 of what a manifest says, whatever the white space."""
    said = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _write(folder: Path, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the tensors under a new name, then put the manifest in place, then drop what it does not name."""
    manifest["tensors"] = f"tensors-{_checksum(manifest)[:12]}.safetensors"
    manifest["checksum"] = _checksum(manifest)
    text = json.dumps(manifest, indent=1) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _put(folder / manifest["tensors"], lambda part: _save_tensors(tensors, part))
        _put(folder / MANIFEST, lambda part: part.write_text(text, encoding="utf-8"))
    finally:
        with suppress(OSError, ValueError):
            _tidy(folder)


def _put(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then put it there in one step that outlives a loss of power."""
    part = path.with_name(f".{path.name}.part")
    write(part)
    _sync(part)
    os.replace(part, path)
    _sync(path.parent)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(f"save: {path} cannot be written: {_one_line(error)}") from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _tidy(folder: Path) -> None:
    """Remove what saves, also broken ones, have left: all files of ours that the manifest in place does not name."""
    parts = [x for x in folder.glob(".*.part") if x.name == f".{MANIFEST}.part" or TENSORS.fullmatch(x.name[1:-5])]
    for part in parts:
        part.unlink(missing_ok=True)
    named = _read_manifest(folder)["tensors"] if (folder / MANIFEST).exists() else None
    for old in folder.glob("tensors-*.safetensors"):
        if old.name != named and TENSORS.fullmatch(old.name):
            old.unlink(missing_ok=True)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read both files, again if a new network was put in their place meanwhile."""
    manifest = _read_manifest(folder)
    while True:
        try:
            return manifest, _read_tensors(folder, manifest)
        except ValueError:
            before, manifest = manifest, _read_manifest(folder)
            if manifest == before:
                raise


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        _refuse(folder)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
        if version != FORMAT:
            raise ValueError(f"it has format {version!r}; this version of vnd reads format {FORMAT}")
        if manifest["checksum"] != _checksum(manifest):
            raise ValueError("its checksum is not the one that was saved")
        if not TENSORS.fullmatch(manifest["tensors"]):
            raise ValueError(f"it names the tensor file {manifest['tensors']!r}, which save would not")
        if manifest["kind"] not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {manifest['kind']!r}")
        if not isinstance(manifest["sha256"], dict):
            raise ValueError("sha256 must map tensors to their checksums")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"load: {path} is damaged or not of vnd.save: {_one_line(error)}") from None
    return dict(manifest)


def _read_tensors(folder: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / manifest["tensors"]
    try:
        tensors = load_file(path)
    except Exception as error:
        raise ValueError(f"load: {path} cannot be read: {_one_line(error)}") from None
    expected = manifest["sha256"]
    if set(tensors) != set(expected):
        raise ValueError(f"load: {path} and {MANIFEST} name different tensors")
    for name, value in tensors.items():
        if _digest(value) != expected[name]:
            raise ValueError(f"load: tensor {name!r} in {path} is damaged: its SHA-256 is not the one that was saved")
    return dict(tensors)


def _refuse(path: Path) -> None:
    """Say why there is nothing to load: no such path, a pickle, or a folder of something else."""
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    pickle = next((x for x in candidates if x.suffix.lower() in PICKLES or _begins_as_pickle(x)), None)
    if pickle is not None:
        raise ValueError(f"load: {pickle} is a pickle, which can run code when read; give a folder that vnd.save wrote")
    what = f"holds no {MANIFEST}" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
    raise ValueError(f"load: {path} {what}; give a folder that vnd.save wrote")


def _begins_as_pickle(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2).startswith((b"\x80", b"PK"))  # Python's own, and torch's, which are zip archives


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return words[:300] if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words[:300]}"
