"""Extraction: a physically smaller network that computes what the masked one does; plain, Bayesian, or still nested."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vnd.functional import LogUniformForm
from vnd.nn.attention import close_attention
from vnd.nn.bayesian import BayesLayer
from vnd.nn.dependency import Layout
from vnd.nn.depth import dropped_blocks, skip_blocks, unmask_blocks
from vnd.nn.masked import MaskedModule, unmask_module
from vnd.nn.norms import ACTIVE, WidthNorm, _MaskedNorm
from vnd.nn.ordering import OrderingUnit
from vnd.nn.recorder import attributes
from vnd.nn.state import (
    InputMask,
    NestedState,
    OutputMask,
    ProductMask,
    Setting,
    Shape,
    nested_part,
    path_of,
    state_of,
    unwrap,
)

if TYPE_CHECKING:
    from vnd.nn.width import Width

Keep = Literal["mean", "posterior", "nested"]
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# What an extracted network was cut from, for `vnd.save`; kept here, so that the network itself stays plain. One that
# was nested again has it in its state, and what is cut out of that has it under "of".
ORIGINS: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()
MODULES_OWN = ("_vnd_weights", "_vnd_statistics", "_vnd_fused")  # what any module may have, the root, too
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)


@torch.no_grad()
def extract(net: nn.Module, width: Width = None, keep: Keep = "mean", *, warn: bool = True) -> nn.Module:
    """Cut a network out of a nested one: of the user's class, only as wide as asked, and its own from then on.

    At every width that it has it computes what the nested network does there. BatchNorm gets the statistics that
    `recalibrate` made for this width, or else those of training, and a warning: recalibrate first.

    Args:
        net: A nested network, or a model that holds one: a copy of all of it, with a smaller part.
        width: A `Shape`, a fraction in (0, 1], or None: no width given; the one that is set.
        keep: "mean": torch's own layers, with the posterior means. "posterior": Bayesian layers of the smaller size,
            without masks. "nested": a nested network whose units end there, to be trained, or cut again; its order, its
            posterior and the statistics of all widths that it has go along.
        warn: Warn of a width that was not recalibrated. A nested network warns when it is run.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> vnd.extract(net, 0.5)
    Sequential(
      (0): Linear(in_features=2, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=3, bias=True)
    )
    >>> vnd.shape(vnd.extract(net, 0.5, keep="nested"), fraction=1.0)
    Shape({'0': 2})
    """
    from vnd.nn.width import setting_of

    state, setting = state_of(net), setting_of(net, width)
    _check_form(state, setting.shape, keep)
    small = slice_network(net, setting.shape, keep)
    if warn and keep != "nested":
        state.look_up(nested_part(net), replace(setting, sampled=keep == "posterior"))
    return small


def _check_form(state: NestedState, shape: Shape, keep: Keep) -> None:
    """Refuse what has no smaller form of the same function."""
    if keep not in get_args(Keep):
        raise ValueError(f"extract: keep must be {', '.join(map(repr, get_args(Keep)))}; got {keep!r}")
    if state.options["placement"] == "before_norm":
        raise ValueError("extract: a network with placement='before_norm' has no exact smaller form")
    if (
        keep == "posterior"
        and state.elements
        and state.arguments.get("weight_prior", "vnd") not in get_args(LogUniformForm)
    ):
        raise ValueError("extract: keep='posterior' has no form for single weights cut under a Gaussian prior")
    if keep == "nested" and state.own_units:
        raise ValueError("extract: keep='nested' has no form where input rows or single weights or bits are ordered")
    if keep == "nested" and (empty := next((unit for unit, groups in shape.items() if not groups), None)):
        raise ValueError(f"extract: keep='nested' needs at least one group of each unit; got none of {empty}")


@torch.no_grad()
def slice_network(net: nn.Module, shape: Shape, keep: Keep = "mean") -> nn.Module:
    """Slice a network to a shape, whether or not it computes the same; see `extract`."""
    root, part = unwrap(net), nested_part(net)
    if part is not root:
        return replace_part(root, path_of(root, part), slice_network(part, shape, keep))
    state, groups = state_of(net), dict(shape)
    small = _copy(root, state, keep)
    statistics = None if keep == "nested" else state.valid_statistics(root, (shape, keep == "posterior"))
    for name, unit in state.bits.items():  # before all that multiplies weights
        coarse: Any = small.get_submodule(name)
        kept = (torch.arange(state.units[unit].channels) < len(state.units[unit].kept_channels(groups[unit]))).float()
        _put(coarse, "weight", coarse.quantized(kept.to(coarse.weight.device)))
        coarse.log_scale = coarse._bits = None
    if state.options["rescale"] and keep != "nested":
        _rescale(small, state)
    for name, unit in state.elements.items():
        layer: Any = small.get_submodule(name)
        place = torch.arange(layer.weight.numel(), device=layer.weight.device).view(layer.weight.shape)
        dropped = place >= len(state.units[unit].kept_channels(groups[unit]))
        _put(layer, "weight", layer.weight.masked_fill(dropped, 0.0))
        if getattr(layer, "log_variance", None) is not None and layer.log_variance.shape == dropped.shape:
            _put(layer, "log_variance", layer.log_variance.masked_fill(dropped, -torch.inf))
    for name, module in list(small.named_modules()):
        if statistics is not None and isinstance(module, WidthNorm):
            for own, value in zip(module.trained, statistics[name], strict=True):
                own.copy_(value)
        inputs, outputs = state.kept(state.inputs.get(name), groups), state.kept(state.outputs.get(name), groups)
        if name in state.rows:
            unit = state.rows[name]
            inputs = _take_rows(small, name, inputs, state.units[unit].kept_channels(groups[unit]))
        if inputs is not None or outputs is not None:
            _slice(module, inputs, outputs)
    for name, layouts in state.parameters.items():
        parent, _, child = name.rpartition(".")
        if parent in state.inputs or parent in state.outputs:  # a layer's own, and cut with it
            continue
        _keep(small.get_submodule(parent), child, {d: state.kept(layout, groups) for d, layout in enumerate(layouts)})
    _count_anew(small, state, groups)
    if keep == "nested":
        _shorten(small, root, shape)
    else:
        _forget(small, keep)
        ORIGINS[small] = {
            "arguments": state.arguments, "example": state.example, "shape": shape, "keep": keep, "of": state.origin,
        }  # fmt: skip
    clear_caches(small)  # not before: until here it shares units with a network that other threads may run
    _own(small, root)
    _share(small, shared_tensors(root))
    if skipped := dropped_blocks(state.stages, state.units, groups):
        skip_blocks(small, skipped)
        if keep == "nested":
            _forget_blocks(small, [*skipped])
    return small


def clear_caches(root: nn.Module) -> None:
    """Clear what modules keep in evaluation and let go of in training, such as biases of attention by position."""
    modes = [module.training for module in root.modules()]
    root.train()
    for module, training in zip(root.modules(), modes, strict=True):
        module.training = training


def _count_anew(small: nn.Module, state: NestedState, groups: dict[str, int]) -> None:
    """Set the numbers in modules that follow from how many channels there are."""
    for (path, name, place), (layout, size, value) in state.attributes.items():
        kept = state.kept(layout, groups)
        number = value if kept is None else value * len(kept) // size
        held, key = attributes(small.get_submodule(path), name)
        held[key] = number if place is None else type(held[key])([*held[key][:place], number, *held[key][place + 1 :]])
    for module in small.modules():
        if isinstance(module, nn.Embedding):
            module.embedding_dim = module._parameters["weight"].size(1)  # type: ignore[union-attr]
        elif isinstance(module, nn.PReLU):
            module.num_parameters = module._parameters["weight"].numel()  # type: ignore[union-attr]


def replace_part(root: nn.Module, path: str, new: nn.Module) -> nn.Module:
    """A copy of a model with another network in the place of one of its parts; what both hold is tied as it was."""
    part = root.get_submodule(path)
    if part is root:
        return new
    theirs = dict(new.named_modules())
    memo: dict[int, Any] = {id(m): theirs[name] for name, m in part.named_modules() if name in theirs}
    inside = {*part.modules()}
    outer = {id(x) for m in root.modules() if m not in inside for x in (*m._parameters.values(), *m._buffers.values())}
    for table in ("named_parameters", "named_buffers"):
        tensors = dict(getattr(new, table)(remove_duplicate=False))
        for name, tensor in getattr(part, table)(remove_duplicate=False):
            if id(tensor) in outer and name in tensors:
                if tensors[name].shape != tensor.shape:
                    raise ValueError(
                        f"extract: {path}.{name} is cut, but a layer outside of {path} shares it; nest the whole model"
                    )
                memo[id(tensor)] = tensors[name]
    copied = copy.deepcopy(root, memo)
    if new in ORIGINS:
        ORIGINS[copied] = ORIGINS[new] | {"part": path}
    return copied


def _copy(root: nn.Module, state: NestedState, keep: Keep) -> nn.Module:
    """A copy that shares with its origin what it will be rid of: what methods keep, and parameters, yet to be cut.

    So are the state and the units, but by a network that stays nested.
    """
    shared: list[Any] = [*root.parameters()]
    shared += [
        value
        for name, value in vars(root).items()
        if name.startswith("_vnd_") and name not in MODULES_OWN and value is not state
    ]
    shared += [state.statistics] if keep == "nested" else [state, *state.units.values()]
    memo: dict[int, Any] = {id(x): x for x in shared}
    small = _clone(root, memo)
    if keep == "mean":
        for layer in small.modules():
            if isinstance(layer, BayesLayer):
                layer.log_alpha = layer.log_variance = None
    return small


SIMPLE = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device})


def _clone(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A copy like that of `copy.deepcopy`, several times as fast: most of what a module holds is empty or a number."""
    if id(module) in memo:
        return memo[id(module)]  # type: ignore[no-any-return]
    kind = type(module)
    reduce = kind.__reduce_ex__
    plain = reduce is object.__reduce_ex__ or reduce.__module__.startswith("vnd.")  # ours only make classes on demand
    plain = plain and kind.__reduce__ is object.__reduce__ and not hasattr(kind, "__deepcopy__")
    held = module.__getstate__() if plain else None
    if not isinstance(held, dict):
        return copy.deepcopy(module, memo)
    new = memo[id(module)] = kind.__new__(kind)
    copied: dict[str, Any] = {}
    for name, value in held.items():
        if type(value) in SIMPLE:
            copied[name] = value
        elif type(value) in (dict, OrderedDict, set) and not value:
            copied[name] = type(value)()
        elif name == "_modules":
            copied[name] = type(value)((key, None if x is None else _clone(x, memo)) for key, x in value.items())
        elif name == "_buffers":
            for x in value.values():
                if type(x) is Tensor and id(x) not in memo and x._base is None and not x.requires_grad:
                    memo[id(x)] = x.clone()
            copied[name] = copy.deepcopy(value, memo)
        else:
            copied[name] = copy.deepcopy(value, memo)
    new.__setstate__(copied)
    return new


def _shorten(small: nn.Module, root: nn.Module, shape: Shape) -> None:
    """Let the state and the units of a sliced copy end where it does."""
    old, state = state_of(root), state_of(small)
    for name in [name for name in vars(small) if name.startswith("_vnd_") and name not in ("_vnd_state", *MODULES_OWN)]:
        delattr(small, name)
    for name, unit in state.units.items():
        unit.shorten(shape[name])
        if name in state.groups:
            state.groups[name] = replace(state.groups[name], channels=unit.channels)

    kept = {name: unit.kept_channels(shape[name]).cpu() for name, unit in old.units.items()}

    def shorter(layout: Layout) -> Layout:
        return tuple(s if s.unit is None else s.shortened(kept[s.unit]) for s in layout)

    state.inputs, state.outputs = (
        {name: shorter(layout) for name, layout in table.items()} for table in (state.inputs, state.outputs)
    )
    state.parameters = {
        name: tuple(None if layout is None else shorter(layout) for layout in layouts)
        for name, layouts in state.parameters.items()
    }
    state.reductions = {
        name: tuple(replace(r, layout=(own := shorter(r.layout)), size=sum(s.size for s in own)) for r in found)
        for name, found in state.reductions.items()
    }
    for mask in _masks(small):
        mask.shorten({unit: kept[name] for name, unit in state.units.items()})
    for module in small.modules():
        if isinstance(module, MaskedModule):
            fresh = [((f, dim, mask.size), mask) for (f, dim, _), mask in vars(module)["_vnd_statistics"]]
            vars(module)["_vnd_statistics"] = tuple(fresh)
    for (path, name, place), (layout, *_) in list(state.attributes.items()):
        table, place_of = attributes(small.get_submodule(path), name)
        held, own = table[place_of], shorter(layout)
        state.attributes[path, name, place] = own, sum(s.size for s in own), held if place is None else held[place]
    state.statistics, state.stamps, state.warned, state.positions = {}, {}, set(), None
    for key in old.statistics:
        norms = old.valid_statistics(root, key)
        if norms is None or any(groups > shape[unit] for unit, groups in key[0].items()):
            continue
        state.statistics[key] = {
            name: _kept_statistics(pair, old.kept(old.outputs.get(name), dict(shape))) for name, pair in norms.items()
        }
        state.stamps[key] = old.stamps[key]
    if shape != old.full:
        state.converted_at, state.shortened = -1, True  # the statistics of training are those of another width
    state.default = Setting(state.full, free=True)
    state.activate(small)
    state.settled = False  # so that it warns where it has no statistics


def _forget_blocks(small: nn.Module, dropped: list[str]) -> None:
    """Let the state of a network that stays nested forget what was in blocks that it does not have."""
    state, modules = state_of(small), {*small.modules()}

    def left(table: dict[Any, Any]) -> dict[Any, Any]:
        return {key: x for key, x in table.items() if not inside(key[0] if isinstance(key, tuple) else key)}

    def inside(name: str) -> bool:
        return any(name == block or name.startswith(f"{block}.") for block in dropped)

    state.units = {name: unit for name, unit in state.units.items() if unit in modules}
    state.stages = {
        name: stage.shortened(len([b for b in stage.blocks if b not in dropped]))
        for name, stage in state.stages.items()
    }
    state.within = {name: place for name, place in state.within.items() if name in state.units}
    state.groups = {
        name: replace(group, producers=[p for p in group.producers if not inside(p)])
        for name, group in state.groups.items()
        if name in state.units
    }
    for key in (
        "inputs",
        "outputs",
        "parameters",
        "masked",
        "reductions",
        "attributes",
        "rows",
        "elements",
        "bits",
        "whole",
    ):
        setattr(state, key, left(getattr(state, key)))
    first = [name for name in state.first_consumers if not inside(name)]
    state.first_consumers = first if len(first) == len(state.first_consumers) else []
    state.functional = [name for name in state.functional if not inside(name)]
    rekeyed = {
        key: (Shape({unit: groups for unit, groups in key[0].items() if unit in state.units}), key[1])
        for key in state.statistics
    }
    state.stamps = {rekeyed[key]: stamp for key, stamp in state.stamps.items()}
    state.statistics = {rekeyed[key]: left(held) for key, held in state.statistics.items()}
    state.default = Setting(state.full, free=True)
    state.activate(small)
    state.settled = False


def _masks(root: nn.Module) -> Iterator[InputMask]:
    """All masks that layers, norms and modules of a network read."""
    held: list[Any] = []
    for module in root.modules():
        found = vars(module)
        if isinstance(module, MaskedModule):
            held += [mask for mask, _ in found["_vnd_weights"].values()]
            held += [mask for _, mask in found["_vnd_statistics"]]
        held += [found[key][0] for key in ("_input_mask", "_mask") if found.get(key)]
    seen: set[int] = set()
    while held:
        mask = held.pop()
        if isinstance(mask, ProductMask):
            held += [mask.first, mask.second]
        elif id(mask) not in seen:
            seen.add(id(mask))
            yield mask


def _kept_statistics(pair: tuple[Tensor, Tensor], kept: Tensor | None) -> tuple[Tensor, Tensor]:
    index = slice(None) if kept is None else kept.to(pair[0].device)
    return pair[0][index].clone(), pair[1][index].clone()


def _own(small: nn.Module, root: nn.Module) -> None:
    """Copy the parameters that were not cut, which a network still shares with its origin."""
    theirs, memo = {id(parameter) for parameter in root.parameters()}, {}  # type: ignore[var-annotated]
    for module in small.modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in theirs:
                module._parameters[name] = copy.deepcopy(parameter, memo)


def shared_tensors(root: nn.Module) -> list[list[str]]:
    """Names of the parameters and buffers that several modules hold, those of one tensor together."""
    names: dict[int, list[str]] = {}
    for path, module in root.named_modules():
        for key, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None:
                names.setdefault(id(value), []).append(f"{path}.{key}" if path else key)
    return [group for group in names.values() if len(group) > 1]


def _share(root: nn.Module, groups: list[list[str]]) -> None:
    """Let the modules of each group hold one tensor again, after each was given its own."""
    for first, *others in groups:
        parent, _, key = first.rpartition(".")
        owner = root.get_submodule(parent)
        for name in others:
            path, _, other = name.rpartition(".")
            module = root.get_submodule(path)
            if key in owner._parameters and other in module._parameters:
                module._parameters[other] = owner._parameters[key]
            elif key in owner._buffers and other in module._buffers:
                module._buffers[other] = owner._buffers[key]


def _rescale(root: nn.Module, state: NestedState) -> None:
    """Build the factors P(z = 1) of the masks into the weights that read them."""
    for name, layer in root.named_modules():
        if not isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
            continue
        factor = None if is_depthwise(layer) else state.survival(state.inputs.get(name), layer.weight)
        if name in state.rows:
            unit = state.units[state.rows[name]]
            rows = unit.spread(unit.survival())
            factor = rows if factor is None else factor * rows
        if name in state.elements:
            unit = state.units[state.elements[name]]
            spread = unit.spread(unit.survival()).view(layer.weight.shape).to(layer.weight.dtype)
            _put(layer, "weight", layer.weight * spread)
        if factor is not None:
            dim = 0 if isinstance(layer, TRANSPOSED) else 1
            factor = factor[: layer.weight.size(dim)]  # the groups of a convolution are cut alike
            shape = [-1 if d == dim else 1 for d in range(layer.weight.dim())]
            _put(layer, "weight", layer.weight * factor.view(shape).to(layer.weight.dtype))
            if isinstance(layer, BayesLayer) and layer.log_variance is not None:
                wide = factor.view(shape).to(torch.promote_types(factor.dtype, layer.weight.dtype))
                _put(layer, "log_variance", (layer.log_variance + 2 * wide.log()).to(layer.weight.dtype))


class Leading(nn.Module):
    """Hands on a part of the channels: what stands before a layer whose own input rows were cut."""

    index: Tensor

    def __init__(self, index: Tensor, dim: int) -> None:
        super().__init__()
        self.register_buffer("index", index)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Select the channels."""
        return x.index_select(self.dim, self.index)


def _take_rows(root: nn.Module, name: str, arriving: Tensor | None, kept: Tensor) -> Tensor:
    """Put a selection before a layer that reads only some of the channels that arrive; return those that it reads."""
    layer: Any = root.get_submodule(name)
    if arriving is None:
        arriving = torch.arange(layer.weight.size(0 if isinstance(layer, TRANSPOSED) else 1))
    read = torch.isin(arriving, kept)
    index = torch.nonzero(read).squeeze(-1).to(layer.weight.device)
    parent, _, child = name.rpartition(".")
    selection = Leading(index, -1 if isinstance(layer, nn.Linear) else 1)
    setattr(root.get_submodule(parent), child, nn.Sequential(selection, layer))
    return arriving[read]


def _forget(root: nn.Module, keep: Keep) -> None:
    """Turn a copied nested network back into one without widths: no state, no hooks, no units, torch's own layers."""
    state = state_of(root)
    for name in [name for name in vars(root) if name.startswith("_vnd_") and name not in MODULES_OWN]:
        delattr(root, name)
    hooks = {state.before_forward, state.after_forward, state.write_state, state.before_loading, state.after_loading}
    tables: list[Any] = [root._forward_pre_hooks, root._forward_hooks, root._state_dict_hooks]
    tables += [root._load_state_dict_pre_hooks, root._load_state_dict_post_hooks]
    for table in tables:
        for key in [key for key, hook in table.items() if getattr(hook, "hook", hook) in hooks]:
            del table[key]
            for flags in (root._forward_pre_hooks_with_kwargs, root._forward_hooks_always_called):
                flags.pop(key, None)
    for module in root.modules():
        for key in [
            k for k, hook in module._forward_hooks.items() if isinstance(getattr(hook, "__self__", None), OutputMask)
        ]:
            del module._forward_hooks[key]
    swapped: dict[int, nn.Module] = {}
    unmask_blocks(root)
    for module in root.modules():
        unmask_module(module)
    for parent in list(root.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, OrderingUnit) and name.startswith("ordering"):
                delattr(parent, name)
            elif isinstance(module, BayesLayer) and keep == "posterior" and module.bayesian:
                module.set_input_mask(None)
                module.set_weight_mask(None)
            elif isinstance(module, BayesLayer | _MaskedNorm | WidthNorm):
                if id(module) not in swapped:  # what was cut is a copy already, and `_own` copies the rest
                    swapped[id(module)] = (
                        module.to_plain(copy=False) if isinstance(module, BayesLayer) else module.to_plain()
                    )
                    for own in [n for n in swapped[id(module)]._modules if n.startswith("ordering")]:
                        del swapped[id(module)]._modules[own]
                setattr(parent, name, swapped[id(module)])
    close_attention(root)


def is_depthwise(module: nn.Module) -> bool:
    """Tell if a convolution has a group for each input channel: it hands channels on and mixes none."""
    groups = getattr(module, "groups", 1)
    return isinstance(groups, int) and groups > 1 and groups == getattr(module, "in_channels", None)


def _slice(module: Any, inputs: Tensor | None, outputs: Tensor | None) -> None:
    """Keep these input and output channels of a layer, in place."""
    if isinstance(module, nn.Linear):
        _cut_weights(module, {0: outputs, 1: inputs})
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, CONVOLUTIONS):
        _slice_convolution(module, inputs, outputs)
    elif outputs is not None:
        for name in ("weight", "bias", "running_mean", "running_var", *ACTIVE[:2]):
            if name in module._parameters or name in module._buffers:
                _keep(module, name, {0: outputs})
        if getattr(module, "num_groups", None) == getattr(module, "num_channels", 0):  # each channel by itself
            module.num_groups = len(outputs)
        for name in ("num_features", "num_channels"):
            if hasattr(module, name):
                setattr(module, name, len(outputs))
        if hasattr(module, "normalized_shape"):
            module.normalized_shape = (len(outputs),)


def _slice_convolution(module: Any, inputs: Tensor | None, outputs: Tensor | None) -> None:
    depthwise = is_depthwise(module)
    own, other = (inputs, outputs) if isinstance(module, TRANSPOSED) else (outputs, inputs)
    if module.groups == 1:
        across = other
    elif depthwise:  # one group a channel that is left
        across = None
    else:  # each group is cut alike, so the first one tells
        span = (module.out_channels if isinstance(module, TRANSPOSED) else module.in_channels) // module.groups
        across = None if other is None else other[other < span]
    _cut_weights(module, {0: own, 1: across}, bias=outputs)
    if inputs is not None:
        module.in_channels = len(inputs)
    if outputs is not None:
        module.out_channels = len(outputs)
    if depthwise and inputs is not None:
        module.groups = len(inputs)


def _cut_weights(module: Any, kept: dict[int, Tensor | None], bias: Tensor | None = None) -> None:
    for name in ("weight", "log_alpha", "log_variance"):
        value = getattr(module, name, None)
        if value is not None:
            _keep(module, name, {d: index for d, index in kept.items() if name == "weight" or value.size(d) > 1})
    if module.bias is not None:
        _keep(module, "bias", {0: kept[0] if bias is None and isinstance(module, nn.Linear) else bias})


def _keep(owner: nn.Module, name: str, kept: dict[int, Tensor | None]) -> None:
    """Keep these entries of a parameter or buffer along some dimensions, in one copy that lies in memory as it did."""
    held = _held(owner, name)
    if held is None or all(index is None for index in kept.values()):
        return
    value, strides = held.detach(), held.stride()
    order = sorted(range(value.dim()), key=lambda dim: (-strides[dim], value.shape[dim] == 1))
    part = value.permute(order)
    for dim, index in kept.items():
        if index is not None:
            part = _select(part, order.index(dim), index)
    part = part.clone(memory_format=torch.contiguous_format)
    _put(owner, name, part.permute(sorted(range(value.dim()), key=order.__getitem__)))


def _select(value: Tensor, dim: int, index: Tensor) -> Tensor:
    """The entries of an index along a dimension: where they lie side by side a view, which copies nothing yet."""
    first = int(index[0]) if len(index) else 0
    if torch.equal(index, torch.arange(first, first + len(index), device=index.device)):
        return value.narrow(dim, first, len(index))
    return value.index_select(dim, index.to(value.device))


def _held(owner: nn.Module, name: str) -> Tensor | None:
    """A parameter or buffer itself: a BatchNorm may show the statistics of a width in the place of its own."""
    return owner._parameters[name] if name in owner._parameters else owner._buffers[name]


def _put(owner: nn.Module, name: str, value: Tensor) -> None:
    """Put a value in the place of a parameter or buffer, of which others may still hold the old one."""
    old = _held(owner, name)
    if isinstance(old, nn.Parameter):
        owner._parameters[name] = nn.Parameter(value, old.requires_grad)
    else:
        owner._buffers[name] = value
