"""BatchNorm statistics for every width: reset, then averaged over a few batches."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from vnd.nn.arguments import batch_inputs, describe_value, tensors_of
from vnd.nn.bayesian import BayesLayer, Estimator
from vnd.nn.context import Draw, here, put, saying
from vnd.nn.depth import BlockMask
from vnd.nn.extract import extract
from vnd.nn.state import (
    NestedState,
    Setting,
    Shape,
    Statistics,
    batch_norms,
    lock_of,
    nested_part,
    path_of,
    state_of,
    unwrap,
)
from vnd.nn.width import Width, as_shape


@torch.no_grad()
def recalibrate(
    net: nn.Module,
    batches: Iterable[Any],
    widths: Sequence[Width] | Width = (1.0,),
    samples: bool | Literal["both"] = False,
) -> None:
    """Collect BatchNorm's statistics for some widths, in one pass over the batches, and keep them with the network.

    After training the running statistics are a mixture over widths, so that even full width needs this. Statistics
    belong to a shape and to either means or samples: sampled weights give outputs of a larger variance.

    Every width runs as an extracted network, and what it collects are the statistics of the kept channels; dropped
    ones keep those of training, and nobody sees them. The extracted networks are in memory together. Where there are
    none of exactly the same function, or no room for them, the masked network runs, at full cost.

    An empty batch, or one that is not finite or whose statistics are not, is refused by its number, counted from 0;
    the network then keeps the statistics that it had.

    Args:
        net: A nested network.
        batches: Batches of inputs, such as a data loader or a generator. A batch is a tensor; a tuple or list that
            begins with as many inputs as the example of the conversion had, labels after them or not; ((a, b), labels);
            a dict of keyword arguments, of which `forward` gets those that it knows; or (dict, labels).
        widths: Shapes, fractions in (0, 1], or None: no width given; the one that is set.
        samples: Run with sampled weights instead of their means; "both" collects the statistics of either kind.

    >>> import torch, vnd
    >>> net = vnd.to_nested(vnd.models.ConvNet(width=0.25), torch.zeros(1, 1, 28, 28), num_groups=4).eval()
    >>> vnd.recalibrate(net, [torch.randn(8, 1, 28, 28) for _ in range(3)], widths=(0.5, 1.0))
    >>> with vnd.width(net, 0.5):
    ...     net(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """
    if not isinstance(samples, bool) and samples != "both":
        raise ValueError(f"recalibrate: samples must be True, False or 'both'; got {describe_value(samples)}")
    state, norms = state_of(net), dict(batch_norms(net))
    if isinstance(batches, Tensor):
        raise ValueError("recalibrate: batches must be an iterable of batches; got one tensor, give it in a list")
    if not isinstance(batches, Iterable):
        raise ValueError(f"recalibrate: batches must be an iterable of batches; got a {type(batches).__name__}")
    widths = [widths] if isinstance(widths, Shape) or not isinstance(widths, Iterable) else list(widths)
    if not widths:
        raise ValueError("recalibrate: widths must name at least one width; got none")
    shapes = list(dict.fromkeys(as_shape(net, width) for width in widths))
    root, part = unwrap(net), nested_part(net)
    path = path_of(root, part)
    _warn_of_left_out(root, part)
    if not norms:
        return
    device = next(root.parameters()).device
    kinds = (False, True) if samples == "both" else (bool(samples),)
    sliced = {kind: _sliced(root, state, shapes, kind) for kind in kinds}
    averages = {
        (shape, kind): _Average(sliced[kind].get(shape, root), path, norms) for kind in kinds for shape in shapes
    }
    with nullcontext() if all(sliced.values()) else _collecting(root, norms):
        for number, batch in enumerate(batches):
            args, kwargs = _checked(root, batch, number, device)
            for (shape, kind), average in averages.items():
                with nullcontext() if sliced[kind] else _masked(root, state, shape, kind):
                    average.add(*args, **kwargs)
                average.check(f"batch {number}")
    if any(average.count == 0 for average in averages.values()):
        raise ValueError("recalibrate: batches must hold at least one batch; got none")
    for average in averages.values():
        average.check("the average over batches")
    found = {
        (shape, kind): average.statistics(state, dict(shape) if sliced[kind] else None)
        for (shape, kind), average in averages.items()
    }
    state.let_go()
    for key, statistics in found.items():  # not before all of them are known to be good
        state.statistics[key] = statistics
        state.stamps[key] = state.stamp(part)
    state.settled = False
    with lock_of(part):
        state.activate(part)
    if (setting := here(state)) is not None:
        put(state.look_up(part, setting))  # for the rest of the block that this is in


def _warn_of_left_out(root: nn.Module, part: nn.Module) -> None:
    """Name the layers whose running statistics stay those of training at every width."""
    state, nested = state_of(root), {*part.modules()}
    kind = nn.modules.batchnorm._BatchNorm
    outside = [
        name
        for name, m in root.named_modules()
        if m not in nested and isinstance(m, kind) and m.running_mean is not None
    ]
    if outside:
        warnings.warn(
            f"recalibrate: {', '.join(outside)} is a BatchNorm outside of the nested network, whose statistics stay "
            "those of training at every width; put it in before vnd.to_nested",
            stacklevel=4,
        )
    if state.functional:
        warnings.warn(
            f"recalibrate: {', '.join(state.functional)} normalises by F.batch_norm with statistics of its own, which "
            "stay those of training at every width; make it an nn.BatchNorm, or a subclass",
            stacklevel=4,
        )
    instance = [name for name, m in root.named_modules() if isinstance(m, _InstanceNorm) and m.running_mean is not None]
    if instance:
        warnings.warn(
            f"recalibrate: {', '.join(instance)} is an InstanceNorm with running statistics, which stay those of "
            "training at every width; make it with track_running_stats=False",
            stacklevel=4,
        )


def _checked(root: nn.Module, batch: Any, number: int, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in a batch; a ValueError that names its number if there are none, or they are not finite."""
    try:
        args, kwargs = batch_inputs(root, batch, device)
    except ValueError as error:
        raise ValueError(f"recalibrate: batch {number}: {error}") from None
    lead = next((x for x in tensors_of((args, kwargs)) if x.dim()), None)
    if lead is not None and lead.numel() == 0:
        raise ValueError(f"recalibrate: batch {number} is empty; got a tensor of shape {tuple(lead.shape)}")
    for x in tensors_of((args, kwargs)):
        if not x.is_floating_point():
            continue
        bad = ~x.isfinite() if x is lead else x.isnan() | (x == torch.inf)  # masks to be added have −∞ in them
        if bad.any():
            raise ValueError(
                f"recalibrate: batch {number} must be finite; got {int(bad.sum())} of {x.numel()} values that are not, "
                f"in a tensor of shape {tuple(x.shape)}"
            )
    return args, kwargs


class _Average:
    """The statistics of each batch that a network's BatchNorm layers show, averaged; every batch counts the same."""

    def __init__(self, network: nn.Module, path: str, norms: dict[str, Any]) -> None:
        self.network, self.norms, self.count = network, norms, 0
        part = network.get_submodule(path)
        modules = dict(part.named_modules())
        self.run = [name for name in norms if name in modules]  # the others lie in blocks that are dropped
        own = [modules[name] for name in self.run]
        self.shown = [norm.get_buffer(part) for norm in own for part in ("running_mean", "running_var")]
        self.totals = [torch.zeros_like(x) for x in self.shown]

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Run a batch."""
        self.network(*args, **kwargs)
        if self.totals:
            torch._foreach_add_(self.totals, self.shown)  # one kernel for all of them
        self.count += 1

    def check(self, what: str) -> None:
        """Refuse statistics that are not finite."""
        if not self.totals or torch.cat([total.flatten() for total in self.totals]).isfinite().all():
            return
        names = [name for name in self.run for _ in range(2)]
        bad = next(name for name, total in zip(names, self.totals, strict=True) if not total.isfinite().all())
        raise ValueError(f"recalibrate: {what} gives statistics of {bad} that are not finite")

    def statistics(self, state: NestedState, groups: dict[str, int] | None) -> Statistics:
        """Full-size statistics, if groups are given from those of a network that keeps as many."""
        means = iter([total / self.count for total in self.totals])
        found = {}
        for name, norm in self.norms.items():
            if name not in self.run:
                found[name] = norm.trained[0].clone(), norm.trained[1].clone()
                continue
            kept = None if groups is None else state.kept(state.outputs.get(name), groups)
            pair = next(means), next(means)
            if kept is not None:
                where = kept.to(pair[0].device)
                pair = tuple(own.index_copy(0, where, part) for own, part in zip(norm.trained, pair, strict=True))
            found[name] = pair
        return found


def _sliced(root: nn.Module, state: NestedState, shapes: list[Shape], samples: bool) -> Mapping[Shape, nn.Module]:
    """The extracted network of each shape, set up to show the statistics of batches; none where masking has to do."""
    if any(is_altered(module, root, state) for module in root.modules()):
        return {}  # a copy might not do what was done to the network
    if any(kept == 0 for shape in shapes for unit, kept in shape.items() if unit not in state.stages):
        return {}  # torch has no convolution without channels
    try:
        networks = {shape: extract(root, shape, "posterior" if samples else "mean", warn=False) for shape in shapes}
    except (ValueError, TypeError, RuntimeError):  # it has no smaller form, cannot be copied, or memory ran out
        return {}
    for network in networks.values():
        part = network.get_submodule(path_of(root, nested_part(root)))
        modules = dict(part.named_modules())
        _show_batches(network, [modules[name] for name, _ in batch_norms(root) if name in modules])
        for module in network.modules():
            if isinstance(module, BayesLayer):
                module.sampling = samples
    return networks


def is_altered(module: nn.Module, root: nn.Module, state: NestedState) -> bool:
    """Tell if somebody hung a hook on a module, or gave it another `forward` than its class has."""
    ours = (state.before_forward, state.after_forward)
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    if any(hook not in ours and not isinstance(getattr(hook, "__self__", None), BlockMask) for hook in hooks):
        return True
    forward = vars(module).get("forward")
    if forward is None:
        return False
    # Accelerate binds the class's own forward to the network, wrapped in a cast: the copy has it bound to the copy.
    bound = module is root and getattr(forward, "__self__", None) is root
    return not (bound and inspect.unwrap(forward.__func__) is type(root).forward)


def _show_batches(network: nn.Module, norms: Iterable[Any]) -> None:
    """Have BatchNorm show the statistics of each batch, and everything else run as in evaluation."""
    network.eval()
    for norm in norms:
        norm.train()
        norm.momentum = 1.0


@contextmanager
def _masked(root: nn.Module, state: NestedState, shape: Shape, samples: bool) -> Any:
    """Run the masked network at a width."""
    said = {state: Setting(shape)} | {unit: shape[name] for name, unit in state.units.items()}
    with saying(said), sampling(root, samples):
        yield


@contextmanager
def _collecting(root: nn.Module, norms: dict[str, Any]) -> Any:
    """The masked network shows the statistics of each batch; then all is as before."""
    modes = [(module, module.training) for module in root.modules()]
    momenta = [(norm, norm.momentum) for norm in norms.values()]
    statistics = [(buffer, buffer.clone()) for norm in norms.values() for buffer in norm.buffers()]
    state = state_of(root)
    state.collecting = threading.get_ident()
    _show_batches(root, norms.values())
    try:
        yield
    finally:
        state.collecting = None
        for module, mode in modes:
            module.training = mode
        for norm, momentum in momenta:
            norm.momentum = momentum
        for buffer, value in statistics:
            buffer.copy_(value)


@contextmanager
def sampling(
    net: nn.Module | list[BayesLayer],
    on: bool,
    generator: torch.Generator | None = None,
    estimator: Estimator | None = None,
    pooled: bool = False,
) -> Any:
    """Let Bayesian layers, or those of a network, sample or use their means in the caller's context, in any mode."""
    draw = Draw(on, generator, estimator=estimator, pooled=(1, 1) if pooled else None)
    layers = net if isinstance(net, list) else [m for m in net.modules() if isinstance(m, BayesLayer)]
    with saying(dict.fromkeys(layers, draw)):
        yield
