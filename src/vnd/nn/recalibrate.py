"""BatchNorm statistics for every width: reset, then averaged over a few batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vnd.nn.bayesian import BayesLayer
from vnd.nn.plan import Shape, batch_norms, plan_of, unwrap
from vnd.nn.width import Width, as_shape, pin_width


@torch.no_grad()
def recalibrate(
    net: nn.Module, batches: Iterable[Any], widths: Sequence[Width] | Width = (1.0,), samples: bool = False
) -> None:
    """Collect BatchNorm's statistics for some widths, in one pass over the batches, and keep them with the network.

    After training the running statistics are a mixture over widths, so that even full width needs this. Statistics
    belong to a shape and to either means or samples: sampled weights give outputs of a larger variance.

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
    sums: dict[Any, dict[str, list[Tensor]]] = {shape: {} for shape in shapes}
    count = 0
    with _collecting(root, norms, samples):
        for batch in batches:
            count += 1
            args, kwargs = _inputs(batch, device)
            for shape in shapes:
                pin_width(root, shape)
                root(*args, **kwargs)
                for name, norm in norms.items():
                    total = sums[shape].setdefault(name, [torch.zeros_like(norm.running_mean) for _ in range(2)])
                    total[0] += norm.running_mean
                    total[1] += norm.running_var
    if count == 0:
        raise ValueError("recalibrate: batches must hold at least one batch; got none")
    for shape in shapes:
        plan.stamps[shape, samples] = plan.stamp(root)
        plan.statistics[shape, samples] = {n: (t[0] / count, t[1] / count) for n, t in sums[shape].items()}
    plan.load_statistics(root)


@contextmanager
def _collecting(root: nn.Module, norms: dict[str, Any], samples: bool) -> Any:
    """BatchNorm shows the statistics of each batch, everything else runs as in evaluation; then all is as before."""
    modes = [(module, module.training) for module in root.modules()]
    momenta = [(norm, norm.momentum) for norm in norms.values()]
    statistics = [(buffer, buffer.clone()) for norm in norms.values() for buffer in norm.buffers()]
    plan = plan_of(root)
    shape, plan.collecting = plan.shape, True
    root.eval()
    for norm in norms.values():
        norm.train()
        norm.momentum = 1.0
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
