"""A pass of training through a fixed width, at the cost of that width and not of the full one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vnd.nn.extract import extract
from vnd.nn.state import Shape, state_of, unwrap

Selection = tuple[Tensor | int | None, ...]  # by dimension: which entries are kept, or how many leading ones, or all


class TrainableSubnet:
    """A nested network at a fixed shape, run on slices of the network's own parameters: gradients reach those.

    In training it computes what the masked network does, with noise and BatchNorm statistics of its own batch; running
    statistics of the nested network are left alone. Made once, used in every step, compiled or not.

    Args:
        net: A nested network.
        shape: What each unit keeps.
    """

    def __init__(self, net: nn.Module, shape: Shape) -> None:
        def small(network: nn.Module) -> nn.Module:
            return extract(network, shape, "posterior", warn=False)

        root = unwrap(net)
        places = copy.deepcopy(root)
        for parameter in places.parameters():
            parameter.data = torch.arange(parameter.numel(), dtype=torch.float64).view(parameter.shape)
        kept = {name: value.detach().long() for name, value in small(places).named_parameters()}
        self.root = root
        self.skeleton = small(root).train().requires_grad_(False)
        for norm in self.skeleton.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                # Nobody reads its statistics, and CUDA graphs like nothing to change.
                norm.running_mean = norm.running_var = norm.num_batches_tracked = None
                norm.track_running_stats = False
        own = dict(root.named_parameters())
        self.kept = {name: _selection(place.cpu(), own[name]) for name, place in kept.items()}

    def __call__(self, x: Tensor) -> Tensor:
        """The output for a batch."""
        own = dict(self.root.named_parameters())
        slices = {name: _select(own[name], selection) for name, selection in self.kept.items()}
        output: Tensor = functional_call(self.skeleton, slices, (x,))
        return output


def can_be_trained_small(net: nn.Module) -> bool:
    """Tell if slices of a nested network compute what it does when masked."""
    state = state_of(net)
    exact = state.options["placement"] != "before_norm" and not (state.rows or state.elements)
    return exact and not state.options["rescale"]


def _selection(places: Tensor, parameter: Tensor) -> Selection:
    """Entries along each dimension of a parameter that a smaller one was cut from, given their places in it."""
    found: list[Tensor | int | None] = []
    stride = parameter.numel()
    for dim, size in enumerate(parameter.shape):
        stride //= size
        first: Any = [slice(None) if d == dim else 0 for d in range(parameter.dim())]
        index = places[tuple(first)] // stride % size
        if len(index) == size:
            found.append(None)
        elif torch.equal(index, torch.arange(len(index))):
            found.append(len(index))
        else:
            found.append(index.to(parameter.device))
    again = torch.arange(parameter.numel()).view(parameter.shape)
    if not torch.equal(_select(again, tuple(i.cpu() if isinstance(i, Tensor) else i for i in found)), places):
        raise ValueError("TrainableSubnet: a parameter of this network is not cut along its dimensions")
    return tuple(found)


def _select(value: Tensor, selection: Selection) -> Tensor:
    for dim, index in enumerate(selection):
        if isinstance(index, int):
            value = value.narrow(dim, 0, index)
        elif index is not None:
            value = value.index_select(dim, index)
    return value
