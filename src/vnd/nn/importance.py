"""Importance of channels: the order in which a pretrained network's channels are sorted before they are nested."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.extract import CONVOLUTIONS, TRANSPOSED, _keep, _share, _slice, shared_tensors
from vnd.nn.state import NestedState


@torch.no_grad()
def reorder(net: nn.Module, state: NestedState) -> None:
    """Sort the channels of every unit by importance, largest first, without changing the function of the network.

    The importance of a channel is the norm of the weights that make it times that of the weights that read it. Where
    several blocks are cut alike, they are sorted alike.
    """
    modules = dict(net.named_modules())
    orders: dict[str, Tensor] = {}
    for name, unit in state.units.items():
        score = torch.ones(unit.channels, dtype=torch.float64)
        for table, side in ((state.outputs, 0), (state.inputs, 1)):
            total = torch.zeros(unit.channels, dtype=torch.float64)
            for layer, layout in table.items():
                total += _importance(modules[layer], layout, name, unit.channels, side)
            score *= torch.where(total > 0, total, 1.0)
        within = score.view(unit.tiles, -1).prod(0).sort(descending=True, stable=True).indices
        starts = torch.arange(unit.tiles)[:, None] * (unit.channels // unit.tiles)
        orders[name] = (starts + within).flatten()
    shared = shared_tensors(net)
    for layer in {*state.inputs, *state.outputs}:
        _slice(modules[layer], _permuted(state.inputs.get(layer), orders), _permuted(state.outputs.get(layer), orders))
    for path, layouts in state.parameters.items():
        parent, _, child = path.rpartition(".")
        if parent in state.inputs or parent in state.outputs:  # a layer's own, and sorted with it
            continue
        _keep(net.get_submodule(parent), child, {dim: _permuted(x, orders) for dim, x in enumerate(layouts)})
    _share(net, shared)


def _permuted(layout: Any, orders: dict[str, Tensor]) -> Tensor | None:
    if layout is None:
        return None
    pieces, start = [], 0
    for segment in layout:
        channels = orders.get(segment.unit, torch.arange(segment.channels))
        pieces.append(start + (channels[:, None] * segment.repeat + torch.arange(segment.repeat)).flatten())
        start += segment.channels * segment.repeat
    return torch.cat(pieces)


def _importance(module: Any, layout: Any, unit: str, channels: int, side: int) -> Tensor:
    """Sum of squares of a mixing layer's weights for each channel of a unit, on its output (0) or input (1) side."""
    total = torch.zeros(channels, dtype=torch.float64)
    grouped = getattr(module, "groups", 1) > 1
    if not isinstance(module, (nn.Linear, *CONVOLUTIONS)) or (
        grouped and (side == 1 or isinstance(module, TRANSPOSED))
    ):
        return total
    dim = 1 - side if isinstance(module, TRANSPOSED) else side
    squares = module.weight.double().square().transpose(0, dim).flatten(1).sum(1).cpu()
    start = 0
    for segment in layout:
        size = segment.channels * segment.repeat
        if segment.unit == unit:
            total += squares[start : start + size].view(segment.channels, segment.repeat).sum(1)
        start += size
    return total
