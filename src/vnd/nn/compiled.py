"""Compiled networks: how what the context says reaches code that cannot read it.

What `torch.compile` makes reads the defaults that modules hold: `fixed_groups` of units, the active statistics of
norms, `sampling` and `expansion` of Bayesian layers. For one call at a time they are set to what the caller's context
says, and others wait: one graph serves all widths, and nobody sees the width of another.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from vnd.nn import context
from vnd.nn.bayesian import BayesLayer
from vnd.nn.norms import CalibratedNorm
from vnd.nn.ordering import OrderingUnit
from vnd.nn.state import NestedState, lock_of, nested_part, unwrap

_CALLS = threading.local()  # what undoes the calls under way, the innermost last


def is_compiled(net: nn.Module) -> bool:
    """Tell if a network, a wrapper of it or a part of it was compiled."""
    return any(_is_wrapper(m) or m._compiled_call_impl is not None for m in net.modules())


def _is_wrapper(module: nn.Module) -> bool:
    """Tell if `torch.compile` gave a module; where its compiler was never loaded, it gave none."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and isinstance(module, frames.OptimizedModule)


@contextmanager
def as_defaults(net: nn.Module) -> Iterator[None]:
    """Run a network, of which all or parts were compiled, with what the context says as its defaults."""
    root = unwrap(net)
    with lock_of(nested_part(root)):
        undo: list[Callable[[], Any]] = []
        try:
            _set(root, undo)
            yield
        finally:
            for step in reversed(undo):
                step()


def serve(net: nn.Module) -> None:
    """Let every call of what `torch.compile` gave run with what its caller's context says."""
    while net is not unwrap(net):
        if _is_wrapper(net) and _before not in net._forward_pre_hooks.values():
            net.register_forward_pre_hook(_before)
            net.register_forward_hook(_after, always_call=True)
        net = net._orig_mod if _is_wrapper(net) else net.module  # type: ignore[assignment]


def _before(wrapper: nn.Module, args: Any) -> None:
    state: NestedState | None = getattr(nested_part(wrapper), "_vnd_state", None)
    if state is not None:
        context.said_of(state)  # refuses other threads
    call = as_defaults(wrapper)
    call.__enter__()
    _CALLS.open = [*getattr(_CALLS, "open", []), call]


def _after(wrapper: nn.Module, args: Any, output: Any) -> None:
    if calls := getattr(_CALLS, "open", []):
        _CALLS.open = calls[:-1]
        calls[-1].__exit__(None, None, None)


def _set(root: nn.Module, undo: list[Callable[[], Any]]) -> None:
    state: NestedState | None = getattr(nested_part(root), "_vnd_state", None)
    if state is not None and state.unseen:
        undo.append(lambda: setattr(state, "unseen", bool(state.blocks)))
        state.unseen = False
    for module in root.modules():
        said = context.here(module)
        if isinstance(module, OrderingUnit) and said is not None:
            undo.append(_copying(module.fixed_groups))
            undo.append(partial(setattr, module, "current", module.current))
            if isinstance(said, int):
                module.fixed_groups.fill_(said)
            else:
                module.current = said
        elif isinstance(module, CalibratedNorm) and said is not None:
            undo += map(_copying, (module.active_mean, module.active_var, module.active_at))
            module.activate(said)
        elif isinstance(module, BayesLayer) and said is not None:
            undo.append(partial(setattr, module, "sampling", module.sampling))
            undo.append(partial(setattr, module, "expansion", module.expansion))
            module.sampling, module.expansion = said.sampling, said.expansion


def _copying(buffer: Any) -> Callable[[], Any]:
    value = buffer.clone()
    return lambda: buffer.copy_(value)
