"""Context of a call: width, masks, statistics and draws, in a context variable of the caller's.

A width belongs to whoever runs a network, not to the network: threads and coroutines run one network at different
widths at the same time. `vnd.width`, `vnd.predict` and every forward pass put what holds for each module here: for an
ordering unit the groups it keeps, or its mask; for a BatchNorm its statistics; for a Bayesian layer how it draws. What
is not here is at its default, which `vnd.set_width` sets.

A context does not reach the workers of a thread pool, nor a layer that activation checkpointing runs again. The first
is refused; the second answers as it first did.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ReferenceType, WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

T = TypeVar("T")
_HERE: ContextVar[Mapping[Any, Any]] = ContextVar("vnd", default=MappingProxyType({}))
_BLOCKS: dict[int, tuple[int, frozenset[Any]]] = {}  # open blocks of `vnd.width`: the thread, and whom it speaks of
_ANSWERS: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()  # of the layers in a checkpointed region


@dataclass(frozen=True)
class Draw:
    """Settings of a Bayesian layer's draws; see `BayesLayer` for all but `generator`."""

    sampling: bool
    generator: torch.Generator | None = None  # the source of the noise; None for torch's global one
    expansion: int = 1
    estimator: str | None = None  # None for the layer's own
    pooled: tuple[int, int] | None = None  # samples whose variances are averaged, and their rows; "local" alone


def here(owner: Any) -> Any:
    """Setting of a module or network in the caller's context; None for its default."""
    return _HERE.get().get(owner)


def everything() -> Mapping[Any, Any]:
    """All that the caller's context says."""
    return _HERE.get()


def put(values: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Say more from now on; returns what the context said before, for `put_back`."""
    before = _HERE.get()
    _HERE.set({**before, **values})
    return before


def put_back(before: Mapping[Any, Any]) -> None:
    """Say again what the context said before `put`."""
    _HERE.set(before)


@contextmanager
def saying(values: Mapping[Any, Any]) -> Iterator[None]:
    """Say more within a block."""
    before = put(values)
    try:
        yield
    finally:
        put_back(before)


@contextmanager
def block(values: Mapping[Any, Any]) -> Iterator[None]:
    """Say more within a block of `vnd.width`, and refuse meanwhile what other threads run of this at its defaults."""
    key = object()
    before = put({**values, "blocks": (*_HERE.get().get("blocks", ()), key)})
    _BLOCKS[id(key)] = threading.get_ident(), frozenset(values)
    try:
        yield
    finally:
        del _BLOCKS[id(key)]
        blocks = _HERE.get().get("blocks", ())
        if key in blocks:  # not so where another thread closes it
            put_back(before)
        if blocks[-1:] != (key,):
            raise RuntimeError(
                "vnd.width: blocks must close in their own thread or task, the innermost first, or calls between have "
                "run at the width of another; close them before a generator yields"
            )


def _leave_other_threads() -> None:
    """A forked process has only the thread that forked it."""
    for key, (thread, _) in list(_BLOCKS.items()):
        if thread != threading.get_ident():
            del _BLOCKS[key]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_other_threads)


def said_of(owner: Any) -> Any:
    """Setting of a module or network; raises where its default is not what the caller can have meant."""
    said = _HERE.get()
    if owner in said:
        return said[owner]
    own = threading.get_ident()
    if _BLOCKS and any(thread != own and owner in holders for thread, holders in list(_BLOCKS.values())):
        raise RuntimeError(
            "vnd.width: another thread runs this network in a block of its own, which does not reach this thread; "
            "open a block in this thread, too, or start it with contextvars.copy_context().run"
        )
    if torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            f"{type(owner).__name__}: it runs again within a backward pass, and cannot know at which width it first "
            "ran; checkpoint with use_reentrant=False, and not one within another"
        )
    return None


def recall(owner: Any, answer: Callable[[Any], T]) -> T:
    """The answer of a layer to what the context says of it; where checkpointing runs it again, its first answer."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:  # as nearly always
        return answer(said_of(owner))
    region, again = _region()
    if again and owner in _ANSWERS.get(region, {}):
        return _ANSWERS[region][owner]  # type: ignore[no-any-return]
    with outside_of_regions():
        value = answer(said_of(owner))
    if region is not None and not again:
        first = _ANSWERS.setdefault(region, {}).setdefault(owner, value)
        if not _same(first, value):
            raise RuntimeError(
                f"{type(owner).__name__}: a checkpointed region runs it at two widths or in two passes; checkpoint each"
            )
    return value


def outside_of_regions() -> AbstractContextManager[Any]:
    """Save tensors for the backward pass as if nothing were checkpointed: what is in here does not run again."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)


def runs_again() -> bool:
    """Tell if checkpointing runs a region again."""
    return _region()[1]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.shape == b.shape and bool(torch.equal(a, b)))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _region() -> tuple[Any, bool]:
    """The region of torch's checkpointing that the caller runs in, and whether it runs again.

    torch tells nobody, but it leaves a hook for saved tensors, and the region lies in the closure of that.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None:
        return None, False
    for cell in getattr(inspect.unwrap(hooks[0]), "__closure__", None) or ():
        value = cell.cell_contents
        if isinstance(value, checkpoint._CheckpointFrame):
            return value, False
        if isinstance(value, ReferenceType) and isinstance(value(), checkpoint._CheckpointFrame):
            return value(), True
    return None, False


def remade(module: nn.Module, make: Callable[..., type[nn.Module] | None], *given: Any) -> tuple[Any, ...]:
    """Reduction of a module whose class `make(*given)` makes on demand: copies and pickles ask it for the class again.

    It is what `__reduce_ex__` returns, since no module has such a class under its name.
    """
    return _blank, (make, *given), module.__getstate__()


def _blank(make: Callable[..., type[nn.Module]], *given: Any) -> nn.Module:
    """An empty module, for a copy or a pickle to fill."""
    kind = make(*given)
    return kind.__new__(kind)
