"""Steps of NGD recorded once and replayed: on a GPU as CUDA graphs, with one launch for some hundred kernels."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import is_
from typing import Any, Protocol

import torch
from torch import Tensor

from vnd.optim.advance import advance, end, prepare
from vnd.optim.course import Course
from vnd.optim.fisher import Errand, await_all, send
from vnd.optim.natural import Kept

CONSTANT = ("momentum", "weight_decay", "nesterov", "rank", "alpha", "eta", "update_period", "epsilon", "precondition")


class Replayed(Protocol):
    """Work that was recorded: what it gave, in tensors that every replay fills again."""

    result: Any

    def replay(self) -> None:
        """Do it again."""


class Recorder(Protocol):
    """What records a function of fixed tensors, without running it."""

    def __init__(self, device: torch.device) -> None: ...

    def record(self, function: Callable[[], Any]) -> Replayed:
        """What the function does, to be done by each replay."""


class Graph:
    """A CUDA graph; replays go to the stream that is current."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Any) -> None:
        self.graph, self.result = graph, result

    def replay(self) -> None:
        """Launch it."""
        self.graph.replay()


class Graphs:
    """Records CUDA graphs, on a stream and in a pool of memory that they share; they are replayed in turn."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Any]) -> Graph:
        """Capture the kernels of a function, which ran before, if only with other numbers, so that all are loaded."""
        graph = torch.cuda.CUDAGraph()
        # The stream as it is: where a capture fails torch leaves its own stream the current one.
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream(self.device)):
            torch._C._cuda_clearCublasWorkspaces()  # so that the graph has its own, in its pool, and nobody else it
            try:
                with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                    result = function()
            finally:
                torch._C._cuda_clearCublasWorkspaces()
        return Graph(graph, result)


RECORDERS: dict[str, type[Recorder]] = {"cuda": Graphs}  # by kind of device


class Recording:
    """Three pieces of work on the device: a step, a step that begins an update of the factors, and that update's end.

    They work on the parameters and on the tensors of their state themselves, for as long as these stay where they are
    (`fits`), on copies of the gradients, and on rates that lie in tensors.

    Args:
        course: What a step works on.
        groups: The groups of parameters.
        period: Steps from one update of the factors to the next.
    """

    def __init__(self, course: Course, groups: Sequence[dict[str, Any]], period: int) -> None:
        self.course, self.constants, self.period = course, _constants(groups), period
        self.steps: list[Tensor] = [state["step"] for turn in course.turns for state in turn.states]
        self.count = int(self.steps[0])
        self.operators: dict[Any, Kept] = {}
        prepare(course, self.operators)
        device = course.parameters[0].device
        recorder = RECORDERS[device.type](device)
        self.ordinary = recorder.record(partial(advance, course.updating(False), self.operators))
        self.updating = recorder.record(partial(advance, course.updating(True), self.operators))
        (self.half,) = self.updating.result
        self.turned = torch.empty_like(self.half.gram)
        self.ending = recorder.record(partial(end, self.half, self.turned, self.operators))
        cuda = device.type == "cuda"
        self.host = torch.empty(self.half.gram.shape, dtype=torch.float64, pin_memory=True) if cuda else None
        self.ready = torch.cuda.Event(blocking=True) if cuda else None
        self.tensors = self._tensors(course.states)
        self.pointers = self._pointers()
        self.versions = self._versions()

    def fits(self, groups: Sequence[dict[str, Any]], states: dict[Tensor, dict[str, Any]]) -> bool:
        """Whether a step would do the very work that was recorded."""
        graded = [p for group in groups for p in group["params"] if p.grad is not None]
        return (
            _same(graded, self.course.parameters)
            and all(p.grad.layout is torch.strided for p in graded)
            and _constants(groups) == self.constants
            and _same(self._tensors([states.get(p, {}) for p in graded]), self.tensors)
            and self._pointers() == self.pointers
            and self._versions() == self.versions
        )

    def step(self, due: bool) -> Errand | None:
        """Take a step with the parameters' gradients; if an update is due it begins, and `end` must end it."""
        torch._foreach_copy_(self.course.gradients, self.course.given())
        torch._foreach_add_(self.steps, 1)
        self.count += 1
        (self.updating if due else self.ordinary).replay()
        self.versions = self._versions()
        return send(self.half, host=self.host, ready=self.ready) if due else None

    def end(self, errand: Errand) -> None:
        """Bring the update under way to its end."""
        await_all(errand)
        self.turned.copy_(errand.host, non_blocking=True)
        self.ending.replay()
        self.versions = self._versions()

    def _tensors(self, states: Sequence[dict[str, Any]]) -> list[Tensor]:
        return list(chain.from_iterable(state.values() for state in states))

    def _pointers(self) -> list[int]:
        """Addresses of parameters and of the tensors of their state."""
        return [x.data_ptr() for x in chain(self.course.parameters, self.tensors)]

    def _versions(self) -> list[int]:
        """How often what else is derived from has been written to: factors and counts. Replays do not count."""
        parts = (part for kept in self.operators.values() for f in kept.factors for part in (f.basis, f.shrinkage))
        return [x._version for x in chain(parts, self.steps)]


def _constants(groups: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What is written into a recording: options, and to how many parameters they apply."""
    return [(*(group[name] for name in CONSTANT), len(group["params"])) for group in groups]


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
