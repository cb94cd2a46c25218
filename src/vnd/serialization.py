"""Saving and loading networks: safetensors and JSON, checksummed, never a pickle.

A saved network is a folder of two files, which `_manifest.py` writes and reads: `network.json` says how to build the
network, `tensors-….safetensors` holds the tensors.
"""

from __future__ import annotations

import copy
import os
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from vnd import __version__, _manifest, _text
from vnd.distributions import BernoulliChain
from vnd.models import MODELS, build
from vnd.nn import Rule, Shape, to_nested
from vnd.nn.extract import ORIGINS, extract, replace_part, shared_tensors
from vnd.nn.state import NestedState, batch_norms, nested_part, path_of, state_of, unwrap

FORMAT = 1
MANIFEST = "network.json"
KINDS = ("plain", "nested", "extracted")
ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)  # of a network on the Hugging Face Hub
FETCHED = ("*.json", "*.safetensors")  # all that comes from there: text and numbers, nothing that can run


def _check_kind(manifest: dict[str, Any]) -> None:
    if manifest["kind"] not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {manifest['kind']!r}")


NETWORK = _manifest.Format(MANIFEST, FORMAT, saver="save", loader="load", writer="vnd.save", check=_check_kind)


def save(net: nn.Module, folder: str | Path) -> Path:
    """Save a nested network, one extracted from it, or a plain one, with its BatchNorm statistics; returns the folder.

    The folder is made if need be, and a network in it is replaced in one step. Warns of weights and statistics that are
    not finite: `load` will refuse them.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(path.suffix for path in vnd.save(net, folder).iterdir())
    ['.json', '.safetensors']
    """
    root, nested, folder = unwrap(net), nested_part(net), _path(folder, "save")
    state: NestedState | None = getattr(nested, "_vnd_state", None)
    tensors = _state(root)
    manifest: dict[str, Any] = {"kind": "plain"}
    if state is not None:
        manifest |= _named_part(path_of(root, nested))
        manifest |= {"kind": "nested", "conversion": _encode(state.arguments), "example": _shapes(state.example)}
        manifest["statistics"] = []
        valid = [key for key in state.statistics if state.valid_statistics(nested, key) is not None]
        for index, (shape, samples) in enumerate(valid):
            norms = state.statistics[shape, samples]
            manifest["statistics"].append({"shape": dict(shape), "samples": samples})
            for name, pair in norms.items():
                for part, value in zip(("mean", "variance"), pair, strict=True):
                    tensors[f"statistics/{index}/{part}/{name}"] = value
        if state.shortened:
            manifest["shape"] = dict(state.full)
        if state.origin is not None:
            manifest["of"] = _encode_origin(state.origin)
    elif root in ORIGINS:
        manifest |= {"kind": "extracted", **_encode_origin(ORIGINS[root]), **_named_part(ORIGINS[root].get("part", ""))}
    fault = _unfit(root, tensors)
    if fault is not None:
        warnings.warn(f"save: {fault}; load will refuse this network", stacklevel=2)
    manifest["model"] = _model_of(root, _comparable(manifest), tensors)
    manifest["buffers"] = {  # those that are not saved, but change their dtype with the network
        name: _name_of(value.dtype)
        for name, value in root.named_buffers()
        if name not in tensors and value.is_floating_point()
    }
    if tied := _tied(root, tensors):
        manifest["tied"] = tied
    _manifest.write(NETWORK, folder, manifest, tensors)
    return folder


def load(folder: str | Path, model: nn.Module | None = None, example_input: Any = None) -> nn.Module:
    """Load a network that `save` wrote, on the CPU, in evaluation mode; every tensor is checked against its SHA-256.

    Weights and statistics that are not finite, and negative variances, are refused by name. From the Hugging Face Hub
    come files of JSON and of safetensors alone, and no code runs. Without a connection, its cache is asked.

    Args:
        folder: The folder that was given to `save`; or what `push` pushed, "hf://user/name" or "hf://user/name@rev" for
            a branch, a tag or a commit.
        model: The plain network it was made from, for one that is not in `vnd.models`; its weights do not matter, and
            it is left as it is.
        example_input: An input as `to_nested` was given, for a network whose own no file can hold, such as a dataclass.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = vnd.load(vnd.save(net, folder), model=plain)
    >>> torch.equal(again(torch.ones(1, 2)), net(torch.ones(1, 2)))
    True
    """
    remote = isinstance(folder, str) and folder.startswith("hf:")
    folder = _fetched(str(folder)) if remote else _path(folder, "load")
    manifest, tensors = _manifest.read(NETWORK, folder)
    try:
        with torch.random.fork_rng(devices=[]):  # building draws weights, which nobody will see
            net = _rebuild(manifest, tensors, model, example_input)
        _fill(net, manifest, tensors)
    except Exception as error:
        raise ValueError(f"load: the network in {folder} cannot be built: {_text.one_line(error)}") from error
    fault = _unfit(net, tensors)
    if fault is not None:
        raise ValueError(f"load: the network in {folder} is of no use: {fault}")
    return net.eval()


def import_hub(who: str) -> Any:
    """The package huggingface_hub; where it is missing, its extra is named."""
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        needs = "needs huggingface_hub; pip install 'variational-nested-dropout[hub]'"
        raise ModuleNotFoundError(f"{who} {needs}") from None
    return huggingface_hub


def _fetched(address: str) -> Path:
    """The folder of a network of the Hub, in the cache of huggingface_hub."""
    if (match := ADDRESS.fullmatch(address)) is None:
        raise ValueError(f"load: an address must be hf://USER/NAME or hf://USER/NAME@REVISION; got {address!r}")
    hub = import_hub(f"load: {address}")
    about = {"library_name": "vnd", "library_version": __version__}
    try:
        return Path(hub.snapshot_download(match[1], revision=match[2], allow_patterns=list(FETCHED), **about))
    except Exception as error:  # of the Hub, the connection, the cache: they have no class in common
        raise OSError(f"load: {address} cannot be fetched: {_text.one_line(error)}") from error


def _path(folder: Any, who: str) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"{who}: folder must be a path; got a {type(folder).__name__}")
    return Path(folder)


def _unfit(net: nn.Module, tensors: dict[str, Tensor]) -> str | None:
    """The first weight or statistic that is not finite, or variance below 0, in words; other buffers are free.

    A log-variance of −∞ is a weight without noise: `extract` gives it to single weights that are cut.
    """
    checked = {name for name, _ in net.named_parameters(remove_duplicate=False)}
    for name, value in tensors.items():
        statistic = name.startswith("statistics/") or name.rpartition(".")[2] in ("running_mean", "running_var")
        if not (statistic or name in checked) or not value.is_floating_point():
            continue
        bad = ~value.isfinite()
        if name.rpartition(".")[2] == "log_variance" and name.removesuffix("log_variance") + "weight" in tensors:
            bad &= value != -torch.inf
        if bad.any():
            return f"{name} has {int(bad.sum())} of {value.numel()} values that are not finite"
        variance = name.rpartition(".")[2] == "running_var" or name.split("/")[2:3] == ["variance"]
        if statistic and variance and bool((value < 0).any()):
            return f"{name} has {int((value < 0).sum())} of {value.numel()} variances below 0"
    return None


def _state(root: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network's state."""
    nested = [name for name, module in root.named_modules() if hasattr(module, "_vnd_state")]
    if len(nested) > 1:
        raise ValueError(
            f"save: {type(root).__name__} holds several nested networks; save each by itself: {', '.join(nested)}"
        )
    state = root.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"save: {name} is a {type(value).__name__} and not a tensor; only tensors can be saved")
    held = ("_vnd_widths", "_vnd_statistics")  # written one by one, by the names of their norms
    return {name: value for name, value in state.items() if name.rpartition(".")[2] not in held}


def _named_part(path: str) -> dict[str, str]:
    """The entry of a manifest that says which part of a larger model is nested, or was cut."""
    return {"part": path} if path else {}


def _rebuild(manifest: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module | None, given: Any) -> nn.Module:
    """Make the network that a manifest describes, with weights of no meaning."""
    kind, known = manifest["kind"], manifest["model"]
    if model is not None:
        model = copy.deepcopy(unwrap(model)).cpu()
    elif known is None:
        raise ValueError("it is not one of vnd.models; give its plain form as model=")
    else:
        misfit = _misfit(known, _comparable(manifest), tensors)
        if misfit is not None:
            raise ValueError(f"{misfit} is not that of the {known['name']} described; give its plain form as model=")
        model = build(known["name"], **known["config"])
    if kind == "plain":
        return model
    path = manifest.get("part", "")
    part = model.get_submodule(path)
    if kind == "extracted":
        return replace_part(model, path, _extracted(manifest, part, given))
    net = _nested(manifest, part, given)
    if "shape" in manifest:  # units of blocks that were dropped are not in it
        net = extract(net, Shape({**state_of(net).full, **manifest["shape"]}), "nested")
    return replace_part(model, path, net)


def _nested(entry: dict[str, Any], model: nn.Module, given: Any) -> nn.Module:
    """The nested network of a manifest or of an origin in it, made of the plain one that all began with."""
    if entry.get("of") is not None:
        model = _extracted(entry["of"], model, given)
    if entry["example"] is not None:
        args, kwargs = _example(entry["example"])
        dtypes = {x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()}
        if len(dtypes) == 1:  # as at the conversion; the state's own dtypes come with the state
            model = model.to(dtypes.pop())
        given = kwargs or args
    elif given is None:
        raise ValueError("its example input could not be kept in a file; give one as example_input=")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="to_nested: ")  # said when it was made
        return to_nested(model, given, **_decode(entry["conversion"]))


def _extracted(entry: dict[str, Any], model: nn.Module, given: Any) -> nn.Module:
    """The network that was cut out of it."""
    return extract(_nested(entry, model, given).eval(), Shape(entry["shape"]), entry["keep"], warn=False)


def _encode_origin(origin: dict[str, Any]) -> dict[str, Any]:
    """Origin of a network that was cut out of another, as JSON."""
    entry = {"conversion": _encode(origin["arguments"]), "example": _shapes(origin["example"])}
    entry |= {"shape": dict(origin["shape"]), "keep": origin["keep"]}
    return entry if origin.get("of") is None else entry | {"of": _encode_origin(origin["of"])}


def _comparable(manifest: dict[str, Any]) -> str:
    """The kind of a network by which its tensors can be compared with those of a plain one: not where it was cut."""
    return "extracted" if manifest.get("of") is not None or "shape" in manifest else str(manifest["kind"])


def _fill(net: nn.Module, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give a network its state, in the dtypes that were saved, and its statistics."""
    parameters = {name: value for name, value in tensors.items() if not name.startswith("statistics/")}
    _check_tied(net, manifest.get("tied", []), parameters)
    dtypes = {name: _dtype_of(dtype) for name, dtype in manifest["buffers"].items()}
    dtypes |= {name: value.dtype for name, value in parameters.items()}
    for name, value in (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)):
        if name in dtypes:
            value.data = value.data.to(dtypes[name])
    part = nested_part(net)
    state: NestedState | None = getattr(part, "_vnd_state", None)
    if state is None:
        net.load_state_dict(parameters)
        return
    prefix = path_of(net, part) + "." if part is not net else ""
    net.load_state_dict({f"{prefix}_vnd_converted_at": torch.tensor(0), **parameters})
    sizes = {name: (norm.num_features,) for name, norm in batch_norms(net)}
    for index, entry in enumerate(manifest["statistics"]):
        statistics = dict[str, tuple[Tensor, Tensor]]()
        for name, size in sizes.items():
            mean, variance = (tensors[f"statistics/{index}/{part}/{name}"].clone() for part in ("mean", "variance"))
            if mean.shape != size or variance.shape != size:
                raise ValueError(f"statistics {index} of {name} have another size than its {size[0]} channels")
            statistics[name] = mean, variance
        key = Shape(entry["shape"]), bool(entry["samples"])
        state.statistics[key] = statistics
        state.stamps[key] = state.stamp(part)
    state.settled = False
    state.activate(part)


def _tied(net: nn.Module, tensors: dict[str, Tensor]) -> list[list[str]]:
    """Names of the saved tensors that are one in the network."""
    groups = [[name for name in group if name in tensors] for group in shared_tensors(net)]
    return [group for group in groups if len(group) > 1]


def _check_tied(net: nn.Module, tied: list[list[str]], tensors: dict[str, Tensor]) -> None:
    """Refuse a network that shares other tensors than the one that was saved."""
    groups = _tied(net, tensors)
    for first, *others in groups:
        for name in others:
            if _manifest.digest(tensors[first]) != _manifest.digest(tensors[name]):
                raise ValueError(f"{first} and {name} are one tensor in the model, but two were saved; untie them")
    group_of = {name: group for group in groups for name in group}
    for first, *others in tied:
        if lost := next((name for name in others if name not in group_of.get(first, [])), None):
            raise ValueError(f"{first} and {lost} were saved as one tensor; tie them in the network given as model=")


def _model_of(root: nn.Module, kind: str, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    """The name and arguments of one of `vnd.models`; None for any other network, or one that was altered."""
    model = next(({"name": name, "config": root.config} for name, known in MODELS.items() if type(root) is known), None)
    return model if model is not None and _misfit(model, kind, tensors) is None else None


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

    def encode(name: str, x: Any) -> Any:
        if isinstance(x, BernoulliChain):
            return {"keep_logits": x.keep_logits.tolist(), "dtype": _name_of(x.keep_logits.dtype)}
        x = x.item() if hasattr(x, "item") else x  # a number of numpy's or torch's
        if x is None or isinstance(x, bool | int | float | str):
            return x
        raise ValueError(f"save: {name} must be a number, a word or a chain to be written as JSON; got {x!r}")

    encoded = {name: encode(name, x) for name, x in arguments.items() if name != "rules"}
    encoded["rules"] = {
        pattern: {name: encode(name, x) for name, x in vars(rule).items() if x is not None}
        for pattern, rule in arguments["rules"].items()
    }
    return encoded


def _decode(conversion: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `_encode`."""

    def decode(x: Any) -> Any:
        return BernoulliChain(torch.tensor(x["keep_logits"], dtype=_dtype_of(x["dtype"]))) if isinstance(x, dict) else x

    decoded = {name: decode(x) for name, x in conversion.items() if name != "rules"}
    decoded["rules"] = {
        pattern: Rule(**{name: decode(x) for name, x in rule.items()}) for pattern, rule in conversion["rules"].items()
    }
    return decoded


def _shapes(example: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any] | None:
    """Arguments of a network as JSON; of floating tensors only shape and dtype, of short others what they hold.

    None where they are objects, such as dataclasses: a file that named their classes could make any object.
    """

    def form(x: Tensor, _: Any) -> dict[str, Any]:
        entry = {"shape": list(x.shape), "dtype": _name_of(x.dtype)}
        if x.is_floating_point() or x.numel() > 4096:
            return entry
        return entry | {"values": x.flatten().tolist()}  # a path through the network may hang on them

    def encode(x: Any) -> Any:
        return _manifest.encode(x, "save", "the example input of the conversion", form)

    try:
        return {"args": [encode(x) for x in example[0]], "kwargs": {key: encode(x) for key, x in example[1].items()}}
    except ValueError:
        return None


def _example(shapes: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of these shapes; random between 0 and 1, since on zeros a wrong slicing may compute what is right."""
    generator = torch.Generator().manual_seed(0)

    def draw(x: dict[str, Any]) -> Tensor:
        dtype = _dtype_of(x["dtype"])
        if dtype.is_floating_point:
            return torch.rand(x["shape"], generator=generator).to(dtype)
        return (
            torch.tensor(x["values"], dtype=dtype).view(x["shape"])
            if "values" in x
            else torch.zeros(x["shape"], dtype=dtype)
        )

    args, kwargs = (_manifest.decode(tree, draw) for tree in ({"tuple": shapes["args"]}, {"dict": shapes["kwargs"]}))
    return args, kwargs


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype
