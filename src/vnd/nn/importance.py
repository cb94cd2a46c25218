r"""Importance of channels: the order in which a pretrained network's channels are sorted before they are nested.

"magnitude" asks the weights alone. `taylor_order` asks data: multiply output channel c of a layer by a gate $g_c = 1$.
When it closes, the loss of example n changes to first order by $\partial \ell_n / \partial g_c$, and

$$I_c = \sum_n \Bigl( \frac{\partial \ell_n}{\partial g_c} \Bigr)^2
      = \sum_n \Bigl( \sum_p h_{ncp}\, \frac{\partial \ell_n}{\partial h_{ncp}} \Bigr)^2$$

over the positions p of its activations h: activation times gradient, squared (Molchanov et al. 2019, "Importance
Estimation for Neural Network Pruning").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vnd.nn.arguments import describe_value, to_device
from vnd.nn.dependency import Layout
from vnd.nn.extract import CONVOLUTIONS, TRANSPOSED, _keep, _share, _slice, shared_tensors
from vnd.nn.predict import evaluating
from vnd.nn.state import NestedState, unwrap


@dataclass(frozen=True, eq=False, repr=False)
class TaylorOrder:
    """The importance of every layer's output channels, by the layer's name: what `taylor_order` measured.

    >>> TaylorOrder({"0": torch.tensor([0.1, 0.3])})
    TaylorOrder(of 1 layers)
    """

    scores: Mapping[str, Tensor]

    def __repr__(self) -> str:
        return f"TaylorOrder(of {len(self.scores)} layers)"


def taylor_order(model: nn.Module, batches: Iterable[Any], loss_fn: Callable[[nn.Module, Any], Tensor]) -> TaylorOrder:
    r"""Measure how much the loss depends on each channel of a pretrained network, for `to_nested(…, order=)`.

    $$I_c = \sum_n \Bigl( \sum_p h_{ncp}\, \frac{\partial \ell_n}{\partial h_{ncp}} \Bigr)^2$$

    over examples n and positions p, for the activations h that each linear layer, convolution or embedding makes. The
    model runs in evaluation mode. Its modes are put back, and its parameters get no gradients.

    Args:
        model: The network that is to be nested.
        batches: A few batches of one size, such as a list or a data loader.
        loss_fn: Computes the loss of a batch by calling the model, `loss_fn(model, batch)`. The batch has its tensors
            where the model is.

    >>> import torch, vnd
    >>> plain = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> batches = [(torch.randn(16, 2), torch.randint(3, (16,))) for _ in range(4)]
    >>> def loss_fn(model, batch):
    ...     return nn.functional.cross_entropy(model(batch[0]), batch[1])
    >>> order = vnd.taylor_order(plain, batches, loss_fn)
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4, order=order)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"taylor_order: model must be an nn.Module; got a {type(model).__name__}")
    if isinstance(batches, Tensor | Mapping) or not isinstance(batches, Iterable):
        raise ValueError(f"taylor_order: batches must be an iterable of batches; got a {type(batches).__name__}")
    if not callable(loss_fn):
        raise ValueError(f"taylor_order: loss_fn must be a function of (model, batch); got a {type(loss_fn).__name__}")
    root, effects = unwrap(model), _GateEffects()
    device = next((parameter.device for parameter in root.parameters()), torch.device("cpu"))
    with ExitStack() as stack:
        stack.enter_context(evaluating(root))
        stack.enter_context(torch.enable_grad())
        for name, module in root.named_modules():
            if isinstance(weight := getattr(module, "weight", None), Tensor) and weight.dim() > 1:
                stack.callback(module.register_forward_hook(partial(effects.note, name)).remove)
        for number, batch in enumerate(batches):
            effects.add(loss_fn(root, to_device(batch, device)), number)
    if not effects.scores:
        raise ValueError("taylor_order: batches must hold at least one batch; got none")
    return TaylorOrder(effects.scores)


@dataclass(eq=False)
class _GateEffects:
    """The effects of closing gates, summed over batches, and the activations of the pass under way."""

    scores: dict[str, Tensor] = field(default_factory=dict)
    activations: list[tuple[str, int, Tensor]] = field(default_factory=list)  # layer, dimension of channels, activation

    def note(self, name: str, layer: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Note what a layer makes: a forward hook."""
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() < 2:
            return output
        made = output if output.requires_grad else output.detach().requires_grad_()  # of a frozen layer
        self.activations.append((name, 1 if isinstance(layer, CONVOLUTIONS) else made.dim() - 1, made))
        return made

    def add(self, loss: Any, number: int) -> None:
        """Sum up the effects on the loss of a batch."""
        noted, self.activations = self.activations, []
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.isfinite():
            got = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else describe_value(loss)
            raise ValueError(f"taylor_order: loss_fn must give one finite number; got {got} for batch {number}")
        if not noted or not loss.requires_grad:
            raise ValueError("taylor_order: loss_fn must compute the loss by calling the model that it is given")
        gradients = torch.autograd.grad(loss.sum(), [made for *_, made in noted], allow_unused=True)
        for (name, dim, made), gradient in zip(noted, gradients, strict=True):
            if gradient is not None:
                effect = (made.detach() * gradient).movedim(dim, -1).reshape(len(made), -1, made.size(dim))
                per_example = effect.sum(1, dtype=torch.promote_types(made.dtype, torch.float32))
                total = per_example.cpu().double().square().sum(0)
                self.scores[name] = self.scores[name] + total if name in self.scores else total


def check_order(order: Any, model: nn.Module) -> None:
    """Refuse an order that `to_nested` cannot sort a model's channels by."""
    if isinstance(order, TaylorOrder):
        names = {name for name, _ in unwrap(model).named_modules()}
        if unknown := sorted({*order.scores} - names):
            raise ValueError(f"to_nested: order must be of the same network; {unknown[0]} is no layer of this one")
    elif order not in (None, "magnitude"):
        raise ValueError(f"to_nested: order must be 'magnitude', what vnd.taylor_order gives, or None; got {order!r}")


@torch.no_grad()
def reorder(net: nn.Module, state: NestedState, order: Literal["magnitude"] | TaylorOrder = "magnitude") -> None:
    """Sort the channels of every unit by importance, largest first, without changing the function of the network.

    Where several blocks are cut alike, they are sorted alike. By "magnitude" the importance of a channel is the norm of
    the weights that make it times that of the weights that read it. By a `TaylorOrder` it is summed over the layers
    that make the channel; where none of them was seen to run, it is by magnitude.
    """
    modules = dict(net.named_modules())
    orders: dict[str, Tensor] = {}
    for name, unit in state.units.items():
        within = _scores(modules, state, name, order).sort(descending=True, stable=True).indices
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


def _scores(
    modules: dict[str, nn.Module], state: NestedState, unit: str, order: Literal["magnitude"] | TaylorOrder
) -> Tensor:
    """Importance of a unit's channels, those of its tiles together, (channels / tiles,)."""
    tiles = state.units[unit].tiles
    makers, readers = (
        {name: layout for name, layout in table.items() if any(segment.unit == unit for segment in layout)}
        for table in (state.outputs, state.inputs)
    )
    if isinstance(order, TaylorOrder):
        producers = [name for name in state.groups[unit].producers if name in makers] if unit in state.groups else []
        effects = _summed({name: order.scores.get(name) for name in producers}, makers, state, unit)
        if effects.any():
            return effects.view(tiles, -1).sum(0)
    score = torch.ones(state.units[unit].channels, dtype=torch.float64)
    for side, layouts in enumerate((makers, readers)):
        norms = _summed({name: _squares(modules[name], side) for name in layouts}, layouts, state, unit)
        score *= torch.where(norms > 0, norms, 1.0)
    return score.view(tiles, -1).prod(0)


def _summed(
    values: Mapping[str, Tensor | None], layouts: Mapping[str, Layout], state: NestedState, unit: str
) -> Tensor:
    """Sum of the layers' values for each channel of a unit."""
    total = torch.zeros(state.units[unit].channels, dtype=torch.float64)
    for name, value in values.items():
        sizes = [segment.size for segment in layouts[name]]
        if value is None:
            continue
        if len(value) != sum(sizes):
            raise ValueError(
                f"to_nested: order must be of the same network; {name} has {sum(sizes)} channels, not {len(value)}"
            )
        for segment, part in zip(layouts[name], value.split(sizes), strict=True):
            if segment.unit == unit:
                total.index_add_(0, segment.places, part.double())
    return total


def _squares(layer: Any, side: int) -> Tensor | None:
    """Sum of squares of a mixing layer's weights for each channel of its output (side 0) or input (1)."""
    grouped = getattr(layer, "groups", 1) > 1
    if not isinstance(layer, (nn.Linear, *CONVOLUTIONS)) or (grouped and (side == 1 or isinstance(layer, TRANSPOSED))):
        return None
    dim = 1 - side if isinstance(layer, TRANSPOSED) else side
    squares: Tensor = layer.weight.double().square().transpose(0, dim).flatten(1).sum(1).cpu()
    return squares


def _permuted(layout: Layout | None, orders: dict[str, Tensor]) -> Tensor | None:
    """Entries of a layout, by place, when the units' channels are sorted, repetitions in their order."""
    if layout is None:
        return None
    units: list[str | None] = [segment.unit for segment in layout for _ in range(segment.size)]
    channels = torch.cat([torch.arange(s.size) if s.unit is None else s.places for s in layout]).tolist()
    places: dict[tuple[str | None, int], list[int]] = {}
    for place, key in enumerate(zip(units, channels, strict=True)):
        places.setdefault(key, []).append(place)
    index = torch.arange(len(units))
    for (unit, channel), own in places.items():
        if unit in orders:
            index[own] = torch.tensor(places[unit, int(orders[unit][channel])])
    return index
