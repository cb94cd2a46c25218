"""Work of an optimizer on a GPU: kernels replayed as CUDA graphs, eigenvectors found on the CPU in threads beside it.

CUDA graphs are work on fixed tensors, captured and replayed, so that hundreds of kernels take one launch.
Eigendecompositions of small matrices take a third of the time on the CPU, and the GPU goes on meanwhile.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from math import inf
from threading import Barrier
from typing import Any, NamedTuple

import torch
from torch import Tensor

WARM_UP = 2  # runs before a capture, which load the kernels; twice as many after each time that captures fell away
OVERLAPPED = ("cuda",)  # types of devices that go on while their matrices are decomposed in threads
THREADS = 8
BRANCHES = 8  # of a graph, that the device works on side by side
TF32 = True  # for products that need no more


class GraphCapture:
    """Captures functions on one stream of a GPU, in one pool of memory.

    What they allocate is overwritten by the next replay of another, but for tensors of results that are still held.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream, self.pool = device, torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture a function without running it.

        Returns:
            Its replay, on the stream that is then current, and its result, whose tensors each replay fills.
        """
        graph = torch.cuda.CUDAGraph()
        # The stream as it is: where a capture fails torch leaves its own stream the current one.
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream(self.device)):
            torch._C._cuda_clearCublasWorkspaces()  # so that the graph has its own, in its pool, and nobody else it
            try:
                with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                    result = function()
            finally:
                torch._C._cuda_clearCublasWorkspaces()
        return graph.replay, result


CAPTURES: dict[str, Callable[[torch.device], Any]] = {"cuda": GraphCapture}  # by type of device


class GraphPair(NamedTuple):
    """Two captured functions and what the first one gives."""

    replay: Callable[[], None]
    result: Any
    replay_end: Callable[[], None]


class GraphCache:
    """Pairs of functions, `begin` and `end`, run as they are at first, and replayed as CUDA graphs from then on.

    Both must do nothing but work on tensors of one device that stay where they are, the same work for one key. The end
    of one pair comes before the next begins, or never. Where a capture fails there is one warning, and no capture any
    more.

    Args:
        owner: A name for the warning.
    """

    def __init__(self, owner: str) -> None:
        self.owner, self.patience = owner, float(WARM_UP)
        self.capture: Any = None
        self.runs: Counter[Hashable] = Counter()
        self.pairs: dict[Hashable, GraphPair] = {}

    def run(
        self, key: Hashable, device: torch.device | None, begin: Callable[[], Any], end: Callable[[Any], Any]
    ) -> tuple[Any, Callable[[], Any]]:
        """Begin a pair.

        Args:
            key: A name of the work.
            device: Where it is done; None if on several devices, or if it may not be captured.
            begin: Its first part.
            end: Its second part, a function of what the first one gave; nothing is left to do for an empty result.

        Returns:
            What `begin` gave, and the second part, a function without arguments.
        """
        if key not in self.pairs and device is not None and device.type in CAPTURES and self.runs[key] >= self.patience:
            self._capture(key, device, begin, end)
        if key in self.pairs:
            self.pairs[key].replay()
            return self.pairs[key].result, self.pairs[key].replay_end
        self.runs[key] += 1
        result = begin()
        return result, partial(end, result)

    def forget(self) -> None:
        """Drop what was captured: the tensors are others from now on."""
        self.patience *= 2 if self.pairs else 1
        self.capture = None  # its pool of memory ends with its graphs
        self.runs.clear()
        self.pairs.clear()

    def _capture(
        self, key: Hashable, device: torch.device, begin: Callable[[], Any], end: Callable[[Any], Any]
    ) -> None:
        try:
            self.capture = self.capture or CAPTURES[device.type](device)
            replay, result = self.capture(begin)
            replay_end = self.capture(partial(end, result))[0] if result else lambda: None  # torch warns of empty ones
            self.pairs[key] = GraphPair(replay, result, replay_end)
        except RuntimeError as error:
            self.forget()
            self.patience = inf
            reason = " ".join(str(error).split())
            text = (
                f"{self.owner}: its work cannot be captured as CUDA graphs and goes on without them, slower: {reason}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=4)


def branch(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results of functions that do not need each other's; in a capture they become branches of the graph.

    What a function is given must live until this returns.
    """
    if BRANCHES < 2 or not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return [function() for function in functions]
    main = torch.cuda.current_stream()
    streams = [main, *_streams(main.device, BRANCHES - 1)]
    for stream in streams[1:]:
        stream.wait_stream(main)
    results = []
    for index, function in enumerate(functions):
        with torch.cuda.stream(streams[index % BRANCHES]):
            results.append(function())
    for stream in streams[1:]:
        main.wait_stream(stream)
    return results


@contextmanager
def fast_products(fast: bool) -> Iterator[None]:
    """Products of float32 matrices in TF32 on a GPU, if they are to be `fast`, whatever torch is set to.

    Eleven bits: more than gradients under bfloat16 have.
    """
    setting: Any = torch.backends.cuda.matmul
    before = setting.fp32_precision
    if not (fast and TF32) or before == "tf32":
        yield
        return
    setting.fp32_precision = "tf32"
    try:
        yield
    finally:
        setting.fp32_precision = before


@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]


def decompose(batches: list[Tensor]) -> list["EighJob"]:
    """Put eigenvectors in the place of symmetric matrices, in batches (n, r, r): by the end of the job of each device.

    On devices whose matrices are not decomposed in threads that is at once.
    """
    return [EighJob([x for x in batches if x.device == device]) for device in {x.device for x in batches}]


class EighJob:
    """Decomposition of the matrices of one device, in whose place come their eigenvectors."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches, self.hosts, self.tasks, ready = batches, batches, list[Future[None]](), None
        first = batches[0]
        if first.is_cuda:  # on the CPU matrices this small take a third of the time
            self.flat = torch.cat([x.flatten() for x in batches])  # one copy takes the time of one
            self.host = torch.empty(self.flat.shape, dtype=first.dtype, pin_memory=True)
            self.hosts = self._parts(self.host)
            self.host.copy_(self.flat, non_blocking=True)
            ready = torch.cuda.Event(blocking=True)
            ready.record(torch.cuda.current_stream(first.device))
        if first.device.type not in OVERLAPPED:
            _decompose(self.hosts, ready)
            return
        matrices = sorted(chain.from_iterable(x.unbind() for x in self.hosts), key=len, reverse=True)
        shares = [matrices[i::THREADS] for i in range(THREADS)]  # of about the same cost
        self.tasks = [_threads(os.getpid(), THREADS).submit(_decompose, share, ready) for share in shares if share]

    def finish(self) -> None:
        """Wait for the threads; an error in one of them is raised here, before any matrix of a GPU has changed."""
        for task in self.tasks:
            task.result()
        if self.batches[0].is_cuda:
            torch._foreach_copy_(self.batches, self._parts(self.flat.copy_(self.host, non_blocking=True)))

    def _parts(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([x.numel() for x in self.batches])
        return [part.view(x.shape) for part, x in zip(parts, self.batches, strict=True)]


def _decompose(matrices: list[Tensor], ready: torch.cuda.Event | None) -> None:
    """Put eigenvectors in the place of matrices."""
    if ready is not None:
        with torch.cuda.device(ready.device):  # or the thread would make itself at home on the first one
            ready.synchronize()
    for x in matrices:
        x.copy_(torch.linalg.eigh(x).eigenvectors)


@cache
def _threads(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of a process, each with one of torch's threads; a fork has none of its parent's, so it makes its own."""
    count, started = torch.get_num_threads(), Barrier(threads + 1)
    pool = ThreadPoolExecutor(threads, "vnd-eigh", initializer=torch.set_num_threads, initargs=(1,))
    for _ in range(threads):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(count)  # theirs is their own, but also what threads to come would begin with
    return pool
