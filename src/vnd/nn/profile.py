"""What an extracted network costs: parameters, multiply-accumulates, bytes, time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.extract import CONVOLUTIONS, TRANSPOSED, slice_network
from vnd.nn.state import arguments_of, state_of, unwrap
from vnd.nn.width import Width, as_shape


@dataclass(frozen=True)
class Profile:
    """The size of a network; `macs` is for one example, 0 if it was not counted."""

    parameters: int
    macs: int
    bytes: int


def profile(net: nn.Module, width: Width = None, example_input: Any = None, *, count_macs: bool = True) -> Profile:
    """Count the extracted network's parameters, its bytes (with buffers), and its multiply-accumulates an example.

    Multiply-accumulates are those of convolutions and linear layers, counted while running the example.

    Args:
        net: A nested network; or any other, of its one width, which needs an example.
        width: A `Shape`, a fraction in (0, 1], or None for the width that is set.
        example_input: A tensor, a tuple of arguments or a dict; that of the conversion if None.
        count_macs: Whether to run the example.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> vnd.profile(net, 0.5)
    Profile(parameters=27, macs=20, bytes=108)
    """
    small = _small(net, width)
    parameters = list(small.parameters())
    size = sum(x.numel() * x.element_size() for x in (*parameters, *small.buffers()))
    macs = _count_macs(small, *_example(net, example_input)) if count_macs else 0
    return Profile(sum(x.numel() for x in parameters), macs, size)


def latency(net: nn.Module, width: Width = None, example_input: Any = None, repeats: int = 11) -> float:
    """Median milliseconds of a forward pass of the extracted network on the example, here and now."""
    small = _small(net, width)
    args, kwargs = _example(net, example_input)
    cuda = any(p.is_cuda for p in small.parameters())
    modes = [(module, module.training) for module in small.modules()]
    times = []
    small.eval()
    try:
        with torch.inference_mode():
            for _ in range(repeats + 2):
                if cuda:
                    torch.cuda.synchronize()
                start = time.perf_counter()
                small(*args, **kwargs)
                if cuda:
                    torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - start))
    finally:
        _set_modes(modes)
    return statistics.median(times[2:])


def _set_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


def _small(net: nn.Module, width: Width) -> nn.Module:
    if width is None and not hasattr(unwrap(net), "_vnd_state"):
        return net
    return slice_network(net, as_shape(net, width))


def _example(net: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is None:
        like = next((p for p in net.parameters() if p.is_floating_point()), None)
        args, kwargs = state_of(net).example
        return _fit(args, like), _fit(kwargs, like)
    return arguments_of(example)


def _fit(x: Any, like: Tensor | None) -> Any:
    """Bring the conversion's example to where the network is now, and to its dtype."""
    if isinstance(x, Tensor) and like is not None:
        return x.to(like) if x.is_floating_point() else x.to(like.device)
    if isinstance(x, dict):
        return {key: _fit(value, like) for key, value in x.items()}
    return type(x)(_fit(value, like) for value in x) if type(x) in (tuple, list) else x


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict | list | tuple):
        for value in x.values() if isinstance(x, dict) else x:
            yield from _tensors(value)


@torch.no_grad()
def _count_macs(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    total = 0

    def count(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        places = inputs[0] if isinstance(module, TRANSPOSED) else output
        channels = module.weight.size(0)
        total += places.numel() // channels * module.weight.numel()

    layers = [m for m in net.modules() if isinstance(m, (nn.Linear, *CONVOLUTIONS))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    modes = [(module, module.training) for module in net.modules()]
    try:
        net.eval()(*args, **kwargs)
    finally:
        _set_modes(modes)
        for hook in hooks:
            hook.remove()
    batch = next((x.size(0) for x in _tensors((args, kwargs)) if x.dim()), 1)
    return total // batch
