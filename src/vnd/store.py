"""Saving and loading networks: safetensors and JSON, checksummed, never a pickle.

A saved network is a folder of two files: `network.json` says how to build the network and what each tensor's SHA-256
is; `tensors-….safetensors` holds the tensors. The JSON file is written last and in one step, so a folder always holds
one whole network: the old one or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vnd.distributions import BernoulliChain
from vnd.models import MODELS, build
from vnd.nn import Rule, Shape, extract, to_nested
from vnd.nn.extract import ORIGINS
from vnd.nn.plan import Plan, unwrap

FORMAT = 1
MANIFEST = "network.json"
PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


def save(net: nn.Module, folder: str | Path) -> Path:
    """Save a nested network, one extracted from it, or a plain one of `vnd.models`, with its BatchNorm statistics.

    Args:
        net: The network.
        folder: Where to; it is made if need be, and a network in it is replaced in one step.

    Returns:
        The folder.
    """
    root, folder = unwrap(net), Path(folder)
    plan: Plan | None = getattr(root, "_vnd_plan", None)
    tensors = {name: value.detach().cpu().contiguous() for name, value in root.state_dict().items()}
    if plan is not None and plan.loaded is not None:  # the state is that of training; what is loaded is kept beside it
        for name, pair in plan.trained.items():
            tensors |= {f"{name}.running_mean": pair[0].cpu(), f"{name}.running_var": pair[1].cpu()}
    manifest: dict[str, Any] = {"format": FORMAT, "model": _model_of(root)}
    if plan is not None:
        manifest |= {"kind": "nested", "conversion": _encode(plan.arguments), "example": _shapes(plan.example)}
        manifest["statistics"] = []
        for index, ((shape, samples), norms) in enumerate(plan.statistics.items()):
            manifest["statistics"].append({"shape": dict(shape), "samples": samples})
            for name, pair in norms.items():
                for part, value in zip(("mean", "variance"), pair, strict=True):
                    tensors[f"statistics/{index}/{part}/{name}"] = value.detach().cpu().contiguous()
    elif root in ORIGINS:
        origin = ORIGINS[root]
        manifest |= {"kind": "extracted", "conversion": _encode(origin["arguments"])}
        manifest |= {"example": _shapes(origin["example"]), "shape": dict(origin["shape"])}
        manifest["bayesian"] = origin["bayesian"]
    else:
        manifest["kind"] = "plain"
    manifest["sha256"] = {name: _digest(value) for name, value in tensors.items()}
    _write(folder, manifest, {name: value.clone() for name, value in tensors.items()})
    return folder


def load(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Load a network that `save` wrote, on the CPU, in evaluation mode; every tensor is checked against its SHA-256.

    Args:
        folder: What was given to `save`.
        model: The plain network it was made from, for one that is not in `vnd.models`; its weights do not matter.
    """
    folder = Path(folder)
    if folder.suffix in PICKLES and not folder.is_dir():
        raise ValueError(f"load: {folder} is a pickle, which can run code when read; give a folder that vnd.save wrote")
    manifest = _read_manifest(folder)
    tensors = _read_tensors(folder, manifest)
    net = _rebuild(manifest, model, folder)
    own = {name: value for name, value in tensors.items() if not name.startswith("statistics/")}
    try:
        net.load_state_dict(own)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:300]
        raise ValueError(f"load: the tensors in {folder} do not fit the network: {first}") from None
    plan: Plan | None = getattr(net, "_vnd_plan", None)
    if plan is not None:
        for index, entry in enumerate(manifest["statistics"]):
            key = (Shape.of(entry["shape"]), bool(entry["samples"]))
            prefix = f"statistics/{index}/mean/"
            names = [name[len(prefix) :] for name in tensors if name.startswith(prefix)]
            plan.statistics[key] = {
                name: (tensors[prefix + name], tensors[f"statistics/{index}/variance/{name}"]) for name in names
            }
    return net.eval()


def _rebuild(manifest: dict[str, Any], model: nn.Module | None, folder: Path) -> nn.Module:
    if model is None:
        if manifest["model"] is None:
            raise ValueError(f"load: {folder} holds a network that is not in vnd.models; give its plain form as model=")
        model = build(manifest["model"]["name"], **manifest["model"]["config"])
    if manifest["kind"] == "plain":
        return model
    args, kwargs = _examples(manifest["example"])
    net = to_nested(model, kwargs or tuple(args), **_decode(manifest["conversion"]))
    if manifest["kind"] == "nested":
        return net
    return extract(net.eval(), Shape.of(manifest["shape"]), bayesian=manifest["bayesian"])


def _model_of(root: nn.Module) -> dict[str, Any] | None:
    for name, kind in MODELS.items():
        if type(root) is kind:
            return {"name": name, "config": root.config}
    return None


def _encode(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `to_nested` as JSON; chains become their logits."""

    def value(x: Any) -> Any:
        if isinstance(x, BernoulliChain):
            return {"keep_logits": x.keep_logits.tolist()}
        if isinstance(x, Rule):
            return {"rule": {name: value(y) for name, y in asdict(x).items() if y is not None}}
        return {key: value(y) for key, y in x.items()} if isinstance(x, dict) else x

    encoded: dict[str, Any] = value(arguments)
    return encoded


def _decode(arguments: dict[str, Any]) -> dict[str, Any]:
    def value(x: Any) -> Any:
        if isinstance(x, dict) and set(x) == {"keep_logits"}:
            return BernoulliChain(torch.tensor(x["keep_logits"]))
        if isinstance(x, dict) and set(x) == {"rule"}:
            return Rule(**{name: value(y) for name, y in x["rule"].items()})
        return {key: value(y) for key, y in x.items()} if isinstance(x, dict) else x

    decoded: dict[str, Any] = value(arguments)
    return decoded


def _shapes(example: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    def one(x: Any) -> Any:
        return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")} if isinstance(x, Tensor) else x

    return {"args": [one(x) for x in example[0]], "kwargs": {key: one(x) for key, x in example[1].items()}}


def _examples(shapes: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    def one(x: Any) -> Any:
        return torch.zeros(x["shape"], dtype=getattr(torch, x["dtype"])) if isinstance(x, dict) else x

    return [one(x) for x in shapes["args"]], {key: one(x) for key, x in shapes["kwargs"].items()}


def _digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and bytes."""
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    flat = tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return hashlib.sha256(head + flat.numpy().tobytes()).hexdigest()


def _write(folder: Path, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the tensors under a new name, then put the manifest in place, then drop what it no longer names."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:12]
    manifest["tensors"] = f"tensors-{stamp}.safetensors"
    try:
        temporary = folder / f".{manifest['tensors']}.part"
        save_file(tensors, temporary)
        _sync(temporary)
        os.replace(temporary, folder / manifest["tensors"])
        temporary = folder / f".{MANIFEST}.part"
        temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        _sync(temporary)
        os.replace(temporary, folder / MANIFEST)
        _sync(folder)
    except BaseException:
        for stray in folder.glob(".*.part"):
            stray.unlink(missing_ok=True)
        raise
    for old in folder.glob("tensors-*.safetensors"):
        if old.name != manifest["tensors"]:
            old.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"load: {folder} holds no {MANIFEST}; give a folder that vnd.save wrote")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = manifest["format"], manifest["kind"], manifest["model"], manifest["tensors"], manifest["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"load: {path} is damaged: {type(error).__name__}: {error}") from None
    if known[0] != FORMAT:
        raise ValueError(f"load: {path} has format {known[0]!r}; this version of vnd reads format {FORMAT}")
    if not isinstance(known[3], str) or Path(known[3]).name != known[3] or not known[3].endswith(".safetensors"):
        raise ValueError(f"load: {path} names the tensor file {known[3]!r}, which is not one in its folder")
    return dict(manifest)


def _read_tensors(folder: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / manifest["tensors"]
    try:
        tensors = load_file(path)
    except Exception as error:
        raise ValueError(f"load: {path} cannot be read: {error}") from None
    expected = manifest["sha256"]
    if set(tensors) != set(expected):
        raise ValueError(f"load: {path} and {MANIFEST} name different tensors")
    for name, value in tensors.items():
        if _digest(value) != expected[name]:
            raise ValueError(f"load: tensor {name} in {path} is damaged: its SHA-256 is not the one that was saved")
    return dict(tensors)
