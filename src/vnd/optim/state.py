"""The state of an optimizer as tensors and plain JSON, and back: bit for bit, whatever its class."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor

from vnd import _text


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

    torch's `load_state_dict` will not do: it casts floating state to the dtype of the parameter.

    Args:
        optimizer: One of the same class, over parameters of the same shapes in the same groups.
        tensors: The tensors of `flatten_optimizer`; they are copied.
        plain: Its plain values.
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
    if isinstance(value, Tensor):
        while name in tensors:  # "a/b", and "b" within "a"
            name += "+"
        tensors[name] = value.detach()
        if value.is_contiguous():
            return {"tensor": name}
        return {"tensor": name, "order": sorted(range(value.ndim), key=lambda dim: -value.stride()[dim])}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"checkpoint: the keys of {name} must be words; got {list(value)!r:.100}")
        return {"dict": {key: _encode(part, f"{name}/{key}", tensors) for key, part in value.items()}}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(part, f"{name}/{i}", tensors) for i, part in enumerate(value)]}
    value = value.item() if hasattr(value, "item") else value  # a number of numpy's
    check_plain(value, name)
    return value


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `_encode`."""
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        value = tensors[tree["tensor"]]
        order = tree.get("order", list(range(value.ndim)))  # of the dimensions in memory
        return value.permute(order).contiguous().permute([order.index(dim) for dim in range(value.ndim)])
    ((kind, inside),) = tree.items()
    if kind == "dict":
        return {key: _decode(part, tensors) for key, part in inside.items()}
    if kind not in ("tuple", "list"):
        raise ValueError(f"{kind!r} is not a part of an optimizer's state")
    parts = [_decode(part, tensors) for part in inside]
    return tuple(parts) if kind == "tuple" else parts


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


def check_plain(value: Any, name: str) -> None:
    """Refuse what would not come back from JSON as it is."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"checkpoint: the keys of {name} must be words; got {key!r:.100}")
            check_plain(part, f"{name}/{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            check_plain(part, f"{name}/{index}")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(f"checkpoint: {name} must be a plain JSON value; got {type(value).__name__}")
