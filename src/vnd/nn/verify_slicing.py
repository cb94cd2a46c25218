"""A trial at conversion: does a sliced network run, and compute what the masked one does?

It is made where it can fail: on a copy with random weights, so that a head that starts at zero hides nothing, at base
width, where a size that enters the arithmetic differs most, at a mixed shape, in which units that hang together
unnoticed keep different shares, and in float64, where only rounding separates the two.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.extract import clear_caches, slice_network
from vnd.nn.ordering import OrderingUnit
from vnd.nn.recorder import tensors_within
from vnd.nn.state import Shape, state_of
from vnd.nn.width import set_width

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # relative to the largest output; of narrower dtypes 0.05
GOLDEN = (5**0.5 - 1) / 2
POOL = 104_729  # random numbers that larger tensors repeat: a prime, so that no two channels are alike
NOISE = ("log_alpha", "log_variance")  # parameters that no mean depends on
Example = tuple[tuple[Any, ...], dict[str, Any]]


@torch.no_grad()
def try_slicing(
    net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], pick: Callable[[Any], Any] = lambda output: output
) -> dict[str, str]:
    """Slice units down to several shapes, and run a random copy of the network: which units fail, and why."""
    if not state_of(net).units:
        return {}
    devices = {x.device.index for x in net.parameters() if x.is_cuda}
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Trial(net, (args, kwargs), pick).failures()


class _Trial:
    """A copy of a nested network to be sliced, with an example of its dtype.

    Its weights are random, of a scale by which activations stay near 1 at the width that is tried: positive at base
    width, so that no ReLU is dead and nothing cancels, of both signs elsewhere. Where user code insists on a dtype the
    copy keeps the one given; where random numbers make outputs that are not finite, the weights and the example given.
    """

    def __init__(self, net: nn.Module, example: Example, pick: Callable[[Any], Any]) -> None:
        self.random, self.pick = True, pick
        for dtype, self.random in ((torch.float64, True), (None, True), (torch.float64, False), (None, False)):
            self.net = _copied(net, dtype, self.random).eval()
            self.example = example
            if dtype is not None:
                self.net, self.example = self.net.to(dtype), _map(example, methodcaller("to", dtype))
            self.state = state_of(self.net)
            self.unround()
            if self.random:
                self.example = _map(self.example, torch.rand_like)
            full = {name: unit.num_groups for name, unit in self.state.units.items()}
            try:
                outputs = self.run(full, False, [])
            except Exception:
                continue
            if all(bool(x.isfinite().all()) for x in tensors_within(outputs)):
                break

    def unround(self) -> None:
        """Give the copy all of its weights: those of few bits are alike, and would hide what goes wrong with them."""
        for name in self.state.bits:
            layer: Any = self.net.get_submodule(name)
            layer.log_scale = layer._bits = None
        self.state.bits = {}

    def failures(self) -> dict[str, str]:
        """Units whose slices fail, with the reason."""
        units = self.state.units
        stages = self.state.stages  # which may lose all their blocks
        base = {name: max(unit.base, int(name not in stages)) for name, unit in units.items()}
        half = {name: max(base[name], unit.num_groups // 2) for name, unit in units.items()}
        mixed = {  # multiples of the golden ratio, modulo 1: no two units that are near each other keep the same share
            name: base[name] + int((unit.num_groups - base[name] + 1) * (number * GOLDEN % 1))
            for number, (name, unit) in enumerate(units.items(), 1)
        }
        shapes = {tuple(shape.values()): shape for shape in (base, half, mixed)}
        for number, shape in enumerate(shapes.values()):
            if failures := self.search(list(units), shape, number > 0):
                return failures
        return {}

    def search(self, names: list[str], smaller: dict[str, int], signed: bool) -> dict[str, str]:
        """Those of the units that fail, found by halves: all together, then each half of those that do."""
        full = {name: unit.num_groups for name, unit in self.state.units.items()}
        reason = self.failure(full | {name: smaller[name] for name in names}, signed)
        if reason is None or len(names) == 1:
            return {} if reason is None else {names[0]: reason}
        middle = len(names) // 2
        found = self.search(names[:middle], smaller, signed) | self.search(names[middle:], smaller, signed)
        return found or dict.fromkeys(names, f"together with others {reason}")

    def failure(self, groups: dict[str, int], signed: bool) -> str | None:
        """The reason why the slice of a shape is not the masked network, or None."""
        try:
            masked, sliced = self.run(groups, signed, [slice_network])
        except Exception as error:
            return f"slicing it fails: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        return None if alike(masked, sliced) else "a sliced network does not compute what the masked one does"

    def run(self, groups: dict[str, int], signed: bool, cuts: list[Callable[..., nn.Module]]) -> list[Any]:
        """Outputs of the masked network of a shape and of what is cut out of it, with the same random numbers."""
        shape = Shape(groups)
        torch.manual_seed(int(signed))
        if self.random:
            self.randomize(groups, signed)
        clear_caches(self.net)
        set_width(self.net, shape, warn=False)
        outputs = []
        for network in (self.net, *(cut(self.net, shape) for cut in cuts)):
            torch.manual_seed(2)
            args, kwargs = copy.deepcopy(self.example)
            outputs.append(self.pick(network(*args, **kwargs)))
        return outputs

    def randomize(self, groups: dict[str, int], signed: bool) -> None:
        """Draw all parameters and running statistics anew; a parameter that is shared is drawn once."""
        drawn: set[int] = set()
        normal, uniform = torch.randn(POOL, dtype=torch.float64), torch.rand(POOL, dtype=torch.float64)
        for name, module in self.net.named_modules():
            if isinstance(module, OrderingUnit):
                continue
            kept = self.state.kept(self.state.inputs.get(name), groups)
            total = 1 if kept is None else sum(s.size for s in self.state.inputs[name])
            share = 1.0 if kept is None else len(kept) / total
            for key, value in (*module._parameters.items(), *module._buffers.items()):
                statistic = key in ("running_mean", "running_var")
                if value is None or not value.is_floating_point() or id(value) in drawn:
                    continue
                if key in NOISE or (key in module._buffers and not statistic):
                    continue
                drawn.add(id(value))
                fan_in = max(1.0, value[0].numel() * share) if value.dim() > 1 and len(value) else 1.0
                if key == "running_var" or (value.dim() < 2 and not signed):
                    _fill(value, uniform, 1.0, 0.5)
                elif signed:
                    _fill(value, normal, fan_in**-0.5)
                else:
                    _fill(value, uniform, 2.0 / fan_in)


def _copied(net: nn.Module, dtype: torch.dtype | None, random: bool) -> nn.Module:
    """A copy to be tried; of what will be drawn anew it has the size alone, and of the noise, which nothing reads."""
    arguments = state_of(net).arguments  # shared with the copy: a prior of the user's may be part of a graph
    memo: dict[int, Any] = {id(arguments): arguments}
    for module in net.modules() if random else ():
        for key, value in module._parameters.items():
            if type(value) is not nn.Parameter or not value.is_floating_point() or isinstance(module, OrderingUnit):
                continue
            if key in NOISE:
                like = value.detach().flatten()[:1].to(dtype or value.dtype).expand(value.shape)
            else:
                like = torch.empty_like(value, dtype=dtype)
            memo[id(value)] = nn.Parameter(like, value.requires_grad)
    return copy.deepcopy(net, memo)


def _fill(value: Tensor, pool: Tensor, scale: float, shift: float = 0.0) -> None:
    """Fill a tensor with random numbers of a pool, from anywhere in it on, as often as it takes."""
    start = int(torch.randint(len(pool), ()))
    numbers = pool.roll(-start).mul_(scale).add_(shift).to(value.device, value.dtype)
    if value.numel() <= len(pool) or not value.is_contiguous():
        count = -(-value.numel() // len(pool))
        value.copy_(numbers.repeat(count)[: value.numel()].view(value.shape))
        return
    flat, whole = value.view(-1), value.numel() // len(pool) * len(pool)
    flat[:whole].view(-1, len(pool)).copy_(numbers)
    flat[whole:].copy_(numbers[: len(flat) - whole])


def _map(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An example with its floating tensors changed."""
    if isinstance(x, Tensor):
        return change(x) if x.is_floating_point() else x
    if isinstance(x, dict):
        return {key: _map(value, change) for key, value in x.items()}
    return type(x)(_map(value, change) for value in x) if type(x) in (tuple, list) else x


def alike(a: Any, b: Any) -> bool:
    """Tell if two outputs are equal but for rounding."""
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.shape != b.shape:
            return False
        if not a.is_floating_point():
            return torch.equal(a, b)
        scale = a.abs().max().clamp(min=1e-30) if a.numel() else 1.0
        return bool(((a - b).abs() <= TOLERANCE.get(a.dtype, 0.05) * scale).all())
    if isinstance(a, Mapping):
        return all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    return alike(list(tensors_within(a)), list(tensors_within(b)))
