"""BatchNorm statistics for every width: reset, then averaged over a few batches."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.bayesian import BayesLayer
from vnd.nn.extract import extract
from vnd.nn.plan import Plan, Shape, Statistics, batch_norms, plan_of, unwrap
from vnd.nn.width import Width, as_shape, pin_width


@torch.no_grad()
def recalibrate(
    net: nn.Module, batches: Iterable[Any], widths: Sequence[Width] | Width = (1.0,), samples: bool = False
) -> None:
    """Collect BatchNorm's statistics for some widths, in one pass over the batches, and keep them with the network.

    After training the running statistics are a mixture over widths, so that even full width needs this. Statistics
    belong to a shape and to either means or samples: sampled weights give outputs of a larger variance.

    Every width runs as an extracted network, and what it collects are the statistics of the kept channels; dropped
    ones keep those of training, and nobody sees them. The extracted networks are in memory together. Where there are
    none of exactly the same function, or no room for them, the masked network runs, at full cost.

    Args:
        net: A nested network.
        batches: Inputs: tensors, or tuples or lists that begin with one, or dicts of keyword arguments.
        widths: Shapes, fractions in (0, 1], or None for full width.
        samples: Run with sampled weights instead of their means.
    """
    plan, norms = plan_of(net), dict(batch_norms(net))
    if isinstance(batches, Tensor):
        raise ValueError("recalibrate: batches must be an iterable of batches; got one tensor, give it in a list")
    widths = [widths] if widths is None or isinstance(widths, float | Shape) else list(widths)
    if not widths:
        raise ValueError("recalibrate: widths must name at least one width; got none")
    shapes = list(dict.fromkeys(as_shape(net, width) for width in widths))
    if not norms:
        return
    root = unwrap(net)
    device = next(root.parameters()).device
    sliced = _sliced(root, plan, shapes, samples)
    averages = {shape: _Average(sliced.get(shape, root), norms) for shape in shapes}
    with nullcontext() if sliced else _collecting(root, norms, samples):
        for batch in batches:
            args, kwargs = _inputs(batch, device)
            for shape, average in averages.items():
                if not sliced:
                    pin_width(root, shape)
                average.add(*args, **kwargs)
    if any(average.count == 0 for average in averages.values()):
        raise ValueError("recalibrate: batches must hold at least one batch; got none")
    for shape, average in averages.items():
        plan.stamps[shape, samples] = plan.stamp(root)
        plan.statistics[shape, samples] = average.statistics(plan, dict(shape) if sliced else None)
    plan.load_statistics(root)


class _Average:
    """The statistics of each batch that a network's BatchNorm layers show, averaged; every batch counts the same."""

    def __init__(self, network: nn.Module, norms: dict[str, Any]) -> None:
        self.network, self.norms, self.count = network, norms, 0
        own: list[Any] = [network.get_submodule(name) for name in norms]
        self.shown = [x for norm in own for x in (norm.running_mean, norm.running_var)]
        self.totals = [torch.zeros_like(x) for x in self.shown]

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Run a batch."""
        self.network(*args, **kwargs)
        torch._foreach_add_(self.totals, self.shown)  # one kernel for all of them
        self.count += 1

    def statistics(self, plan: Plan, groups: dict[str, int] | None) -> Statistics:
        """Full-size statistics, if groups are given from those of a network that keeps as many."""
        means = iter([total / self.count for total in self.totals])
        found = {}
        for name, norm in self.norms.items():
            kept = None if groups is None else plan.kept(plan.outputs.get(name), groups)
            pair = next(means), next(means)
            if kept is not None:
                where = kept.to(pair[0].device)
                pair = norm.running_mean.index_copy(0, where, pair[0]), norm.running_var.index_copy(0, where, pair[1])
            found[name] = pair
        return found


def _sliced(root: nn.Module, plan: Plan, shapes: list[Shape], samples: bool) -> Mapping[Shape, nn.Module]:
    """The extracted network of each shape, set up to show the statistics of batches; none where masking has to do."""
    if any(_altered(module, root, plan) for module in root.modules()):
        return {}  # a copy might not do what was done to the network
    if any(kept == 0 for shape in shapes for kept in shape.values()):
        return {}  # torch has no convolution without channels
    try:
        networks = {shape: extract(root, shape, bayesian=samples) for shape in shapes}
    except (ValueError, TypeError, RuntimeError):  # it has no smaller form, cannot be copied, or memory ran out
        return {}
    for network in networks.values():
        _show_batches(network, [network.get_submodule(name) for name, _ in batch_norms(root)])
        for module in network.modules():
            if isinstance(module, BayesLayer):
                module.sampling = samples
    return networks


def _altered(module: nn.Module, root: nn.Module, plan: Plan) -> bool:
    """Whether somebody hung a hook on a module, or gave it another `forward` than its class has."""
    ours = (plan.before_forward, plan.after_forward)
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    if any(hook not in ours for hook in hooks):
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
def _collecting(root: nn.Module, norms: dict[str, Any], samples: bool) -> Any:
    """The masked network shows the statistics of each batch; then all is as before."""
    modes = [(module, module.training) for module in root.modules()]
    momenta = [(norm, norm.momentum) for norm in norms.values()]
    statistics = [(buffer, buffer.clone()) for norm in norms.values() for buffer in norm.buffers()]
    plan = plan_of(root)
    shape, plan.collecting = plan.shape, True
    _show_batches(root, norms.values())
    try:
        with sampling(root, samples):
            yield
    finally:
        pin_width(root, shape)
        plan.collecting = False
        for module, mode in modes:
            module.training = mode
        for norm, momentum in momenta:
            norm.momentum = momentum
        for buffer, value in statistics:
            buffer.copy_(value)


@contextmanager
def sampling(root: nn.Module, on: bool) -> Any:
    """Let Bayesian layers sample, or use their means, whatever the mode of the network."""
    layers = [module for module in root.modules() if isinstance(module, BayesLayer)]
    before = [layer.sampling for layer in layers]
    for layer in layers:
        layer.sampling = on
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.sampling = value


def _inputs(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, dict):
        return (), {key: x.to(device) if isinstance(x, Tensor) else x for key, x in batch.items()}
    first = batch[0] if isinstance(batch, list | tuple) else batch
    if not isinstance(first, Tensor):
        raise ValueError(
            f"recalibrate: a batch must be a tensor, begin with one, or be a dict; got {type(batch).__name__}"
        )
    return (first.to(device),), {}
