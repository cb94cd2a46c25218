"""Checkpoints: the whole state of training, in checksummed folders, of which the newest good one is read.

    checkpoints/step-00000123/{checkpoint.json, tensors-….safetensors}

A folder `step-…` appears in one step, once all of it is on the disk. So one that lacks a part was damaged later, and is
not what a kill in the middle of a save left: that lies in `.step-….part`, and the next save clears it away.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vnd import _files, _manifest, _text
from vnd.nn.state import unwrap

__all__ = ["Checkpoint", "capture", "flatten_optimizer", "read", "restore", "restore_optimizer", "write"]

FORMAT = 1
MANIFEST = "checkpoint.json"
NAME = re.compile(r"step-([0-9]{8,18})")
STRAY = re.compile(r"\.step-[0-9]{8,18}\.part")


@dataclass(frozen=True)
class Checkpoint:
    """Contents that `write` was given, and their folder; the tensors are on the CPU."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    path: Path


def _check(manifest: dict[str, Any]) -> None:
    if type(manifest["step"]) is not int or manifest["step"] < 0:
        raise ValueError(f"step must be a whole number; got {manifest['step']!r}")
    if not isinstance(manifest["state"], dict):
        raise ValueError(f"state must be a JSON object; got {type(manifest['state']).__name__}")


CHECKPOINT = _manifest.Format(MANIFEST, FORMAT, "checkpoint", "checkpoint", "vnd.train.checkpoint", _check)


def write(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int = 2) -> Path:
    """Write a checkpoint, then remove all but the newest `keep`, and what broken saves have left.

    Checkpoints of later steps go, too: who writes step 250 went back to before it, and what lies beyond is of a history
    that was given up.

    Args:
        folder: Where the checkpoints of a run lie; it is made if need be. That of this one is returned.
        step: Number of steps done.
        tensors: The tensors by name, of any device and layout.
        state: Plain JSON values: dicts with words as keys, lists, numbers (also infinite ones), words, None.
        keep: How many whole checkpoints are kept, this one included; at least 1.
    """
    if not 0 <= step < 10**18 or keep < 1:
        raise ValueError(f"checkpoint: step must lie in 0 … 1e18 and keep be at least 1; got {step} and {keep}")
    _check_plain(state, "state")
    path = folder / f"step-{step:08d}"
    part = path if path.is_dir() else folder / f".{path.name}.part"  # a folder in place is written over file by file
    try:
        _manifest.write(CHECKPOINT, part, {"step": step, "state": state}, tensors)
        if part != path:
            os.replace(part, path)
            _files.sync(folder)
    except BaseException:
        _clear_strays(folder)
        raise
    _clear(folder, step, keep)
    return path


def read(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole, with one line of warning for each newer one that is damaged.

    None if there is no checkpoint; a ValueError if all there are damaged.
    """
    damaged: list[str] = []
    for step, path in _found(folder):
        try:
            manifest, tensors = _manifest.read(CHECKPOINT, path)
            if manifest["step"] != step:
                raise ValueError(f"checkpoint: {path / MANIFEST} is damaged: it is of step {manifest['step']}")
        except (ValueError, OSError) as error:
            damaged.append(_text.one_line(error).removeprefix("checkpoint: "))
            continue
        for reason in damaged:
            warnings.warn(f"checkpoint: {reason}; going on from {path.name} instead", RuntimeWarning, stacklevel=2)
        return Checkpoint(step, tensors, manifest["state"], path)
    if damaged:
        more = f" (and {len(damaged) - 1} older)" if len(damaged) > 1 else ""
        raise ValueError(f"checkpoint: {damaged[0]}{more}; none is left to go on from: remove {folder} to start anew")
    return None


def capture(
    model: nn.Module, optimizer: Any, ema: dict[str, Tensor] | None = None, scaler: Any = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The whole state of training, for `write`: network, optimizer, running mean of the weights, loss scale.

    The tensors are those of training and not copies: write them before the next step. Buffers that a network does not
    save, but training needs (tables of loss differences, the u of the pass under way), are among them. There is no
    state of random numbers, for a loop that seeds every step; one that does not adds its own to what it writes.
    Wrappers of `torch.compile`, of data-parallel training and of Accelerate are looked through.
    """
    inner, plain = flatten_optimizer(optimizer)
    tensors = _state(model) | {f"optimizer/{name}": value for name, value in inner.items()}
    tensors |= {f"ema/{name}": value for name, value in (ema or {}).items()}
    scale = None if scaler is None else scaler.state_dict()
    return tensors, {"optimizer": plain, "ema": ema is not None, "scaler": scale}


def restore(
    model: nn.Module, optimizer: Any, ema: dict[str, Tensor] | None, scaler: Any, checkpoint: Checkpoint
) -> None:
    """Give training the state that `capture` saw: bit for bit, and in place, so that layouts stay as they are.

    Names, shapes and dtypes are compared before anything is changed: a checkpoint of another network or optimizer is
    refused by a ValueError of one line.
    """
    tensors, state = checkpoint.tensors, checkpoint.state
    own = _state(model) | {f"ema/{name}": value for name, value in (ema or {}).items()}
    inner = {name[10:]: value for name, value in tensors.items() if name.startswith("optimizer/")}
    try:
        for name, given in (("ema", ema is not None), ("scaler", scaler is not None)):
            if given != (state[name] not in (None, False)):
                words = ("out", "one") if given else ("", "none")
                raise ValueError(f"it was written with{words[0]} {name}, this training has {words[1]}")
        _check_alike(own, {name: value for name, value in tensors.items() if not name.startswith("optimizer/")})
        restore_optimizer(optimizer, inner, state["optimizer"])
        if scaler is not None:
            scaler.load_state_dict(state["scaler"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = _text.one_line(error).removeprefix("checkpoint: ")
        raise ValueError(f"checkpoint: {checkpoint.path} is not of this training: {reason}") from error
    root = unwrap(model)
    saved = root.state_dict()  # with the versions of its layers, without which torch takes it for an old one
    for name in saved:
        if not name.startswith("_vnd_"):
            saved[name] = tensors[f"model/{name}"]
    root.load_state_dict(saved)
    with torch.no_grad():
        for name, value in own.items():
            if not name.startswith("model/"):
                value.copy_(tensors[name])


def _state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network: its state, and under `buffer/` what it does not save."""
    root = unwrap(model)
    saved = {name: value for name, value in root.state_dict().items() if not name.startswith("_vnd_")}
    for name, value in saved.items():  # without the statistics of widths, which training drops
        if not isinstance(value, Tensor):
            raise ValueError(f"checkpoint: {name} must be a tensor to be written; got {type(value).__name__}")
    state = {f"model/{name}": value for name, value in saved.items()}
    return state | {f"buffer/{name}": value for name, value in root.named_buffers() if name not in saved}


def _check_alike(own: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    """Compare names, shapes and dtypes."""
    for name in (*own, *saved):
        if name not in own or name not in saved:
            raise ValueError(f"{'it' if name in own else 'this training'} has no tensor {name}")
    for name, mine in own.items():
        theirs = saved[name]
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            sizes = [f"{tuple(value.shape)} of {str(value.dtype)[6:]}" for value in (theirs, mine)]
            raise ValueError(f"{name} must be {sizes[0]}; got {sizes[1]}")


def _found(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder, newest first, whole or not."""
    matches = [(NAME.fullmatch(path.name), path) for path in folder.glob("step-*") if path.is_dir()]
    found = [(int(match[1]), path) for match, path in matches if match]
    return sorted(((step, path) for step, path in found if path.name == f"step-{step:08d}"), reverse=True)


def _clear(folder: Path, step: int, keep: int) -> None:
    """Remove all checkpoints but the newest whole ones up to `step`, each in one step; then what is left of it."""
    _clear_strays(folder)
    with suppress(OSError):  # what cannot be removed now is removed after the next save
        kept = 0
        for other, path in _found(folder):
            if other <= step and kept < keep and _whole(path):
                kept += 1
            else:
                os.replace(path, folder / f".{path.name}.part")
    _clear_strays(folder)


def _whole(path: Path) -> bool:
    """Tell if a checkpoint has both its files; its tensors are not read."""
    try:
        return (path / str(_manifest.read_manifest(CHECKPOINT, path)["tensors"])).is_file()
    except ValueError:
        return False


def _clear_strays(folder: Path) -> None:
    """Remove what broken saves have left, as far as that can be done."""
    with suppress(OSError):
        for stray in [path for path in folder.glob(".step-*.part") if STRAY.fullmatch(path.name)]:
            shutil.rmtree(stray, ignore_errors=True)


# The state of an optimizer as tensors and plain JSON, and back: bit for bit, whatever its class


def flatten_optimizer(optimizer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as tensors by name, not copied, and plain JSON; `restore_optimizer` is the inverse."""
    tensors: dict[str, Tensor] = {}
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        shapes = [list(parameter.shape) for parameter in group["params"]]
        groups.append({"shapes": shapes, "options": _encode(options, f"group/{index}", tensors)})
    state = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        if parameter in optimizer.state:
            state[str(index)] = _encode(dict(optimizer.state[parameter]), f"state/{index}", tensors)
    if len(state) != len(optimizer.state):
        raise ValueError(f"checkpoint: {_class_of(optimizer)} has state that belongs to none of its parameters")
    return tensors, {"class": _class_of(optimizer), "groups": groups, "state": state}


def restore_optimizer(optimizer: Any, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Give an optimizer the state that `flatten_optimizer` saw, every tensor in the dtype that it had.

    It is of the same class, over parameters of the same shapes in the same groups; tensors are copied. torch's
    `load_state_dict` will not do: it casts floating state to the dtype of the parameter.
    """
    own = [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]
    try:
        if plain["class"] != _class_of(optimizer):
            raise ValueError(f"the optimizer must be {plain['class']}; got {_class_of(optimizer)}")
        _check_shapes(own, [group["shapes"] for group in plain["groups"]])
        options = [_decode(group["options"], tensors) for group in plain["groups"]]
        parameters = {str(index): parameter for index, parameter in enumerate(_parameters(optimizer))}
        state = {parameters[index]: _decode(tree, tensors) for index, tree in plain["state"].items()}
        if not all(isinstance(part, dict) and "params" not in part for part in (*options, *state.values())):
            raise ValueError("options and state must be JSON objects without parameters")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"checkpoint: the optimizer cannot go on: {_text.one_line(error)}") from None
    optimizer.state.clear()
    for group, saved in zip(optimizer.param_groups, options, strict=True):
        for key, value in saved.items():
            if isinstance(group.get(key), Tensor):  # perhaps in a compiled step, so it stays the same tensor
                group[key].copy_(value) if isinstance(value, Tensor) else group[key].fill_(value)
            else:
                group[key] = value.clone() if isinstance(value, Tensor) else value
        for parameter in group["params"]:
            if parameter in state:
                optimizer.state[parameter] = {
                    key: _place(value, key, parameter, group) for key, value in state[parameter].items()
                }


def _place(value: Any, key: str, parameter: Tensor, group: dict[str, Any]) -> Any:
    """A copy of a value of a parameter's state, on the device where it belongs."""
    if isinstance(value, dict):
        return {name: _place(part, name, parameter, group) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_place(part, key, parameter, group) for part in value)
    if not isinstance(value, Tensor):
        return value
    on_host = key == "step" and not (group.get("fused") or group.get("capturable"))  # where torch wants it
    device = torch.device("cpu") if on_host else parameter.device
    if group.get("fused") and value.shape == parameter.shape:  # fused kernels take both to have the same strides
        return torch.empty_like(parameter, dtype=value.dtype, device=device, requires_grad=False).copy_(value)
    return value.to(device, copy=True)


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A tree as plain JSON; its tensors go to `tensors`, their names in their place."""

    def encode(value: Tensor, name: str) -> dict[str, Any]:
        while name in tensors:  # "a/b", and "b" within "a"
            name += "+"
        tensors[name] = value.detach()
        if value.is_contiguous():
            return {"tensor": name}
        return {"tensor": name, "order": sorted(range(value.ndim), key=lambda dim: -value.stride()[dim])}

    return _manifest.encode(value, "checkpoint", name, encode)


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `_encode`."""

    def decode(tree: dict[str, Any]) -> Tensor:
        value = tensors[tree["tensor"]]
        order = tree.get("order", list(range(value.ndim)))  # of the dimensions in memory
        return value.permute(order).contiguous().permute([order.index(dim) for dim in range(value.ndim)])

    return _manifest.decode(tree, decode)


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _class_of(optimizer: Any) -> str:
    return type(getattr(optimizer, "optimizer", optimizer)).__name__  # of the one that accelerate wraps


def _check_shapes(own: list[list[list[int]]], saved: list[list[list[int]]]) -> None:
    """Compare the shapes of the parameters of each group."""
    if [len(group) for group in own] != [len(group) for group in saved]:
        counts = [" + ".join(str(len(group)) for group in groups) or "0" for groups in (saved, own)]
        raise ValueError(f"it must have {counts[0]} parameters in its groups; got {counts[1]}")
    for index, (mine, theirs) in enumerate(zip(chain(*own), chain(*saved), strict=True)):
        if mine != theirs:
            raise ValueError(f"parameter {index} must have the shape {theirs}; got {mine}")


def _check_plain(value: Any, name: str) -> None:
    """Refuse what would not come back from JSON as it is."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"checkpoint: the keys of {name} must be words; got {key!r:.100}")
            _check_plain(part, f"{name}/{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _check_plain(part, f"{name}/{index}")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(f"checkpoint: {name} must be a plain JSON value; got {type(value).__name__}")
