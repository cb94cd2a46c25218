"""Eigendecompositions of small matrices on the CPU, for a GPU in threads beside its work."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import chain
from threading import Barrier

import torch
from torch import Tensor

OVERLAPPED = ("cuda",)  # types of devices that go on while their matrices are decomposed in threads
THREADS = 4


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
            self.hosts = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in batches]
            for host, x in zip(self.hosts, batches, strict=True):
                host.copy_(x, non_blocking=True)
            ready = torch.cuda.Event(blocking=True)
            ready.record(torch.cuda.current_stream(first.device))
        if first.device.type not in OVERLAPPED:
            _decompose(self.hosts, ready)
            return
        matrices = sorted(chain.from_iterable(x.unbind() for x in self.hosts), key=len, reverse=True)
        shares = [matrices[i::THREADS] for i in range(THREADS)]  # of about the same cost
        self.tasks = [_threads(os.getpid()).submit(_decompose, share, ready) for share in shares if share]

    def finish(self) -> None:
        """Wait for the threads; an error in one of them is raised here, before any matrix of a GPU has changed."""
        for task in self.tasks:
            task.result()
        for x, host in zip(self.batches, self.hosts, strict=True):
            if x is not host:
                x.copy_(host, non_blocking=True)


def _decompose(matrices: list[Tensor], ready: torch.cuda.Event | None) -> None:
    """Put eigenvectors in the place of matrices."""
    if ready is not None:
        with torch.cuda.device(ready.device):  # or the thread would make itself at home on the first one
            ready.synchronize()
    for x in matrices:
        x.copy_(torch.linalg.eigh(x).eigenvectors)


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Threads of a process, each with one of torch's threads; a fork has none of its parent's, so it makes its own."""
    count, started = torch.get_num_threads(), Barrier(THREADS + 1)
    pool = ThreadPoolExecutor(THREADS, "vnd-eigh", initializer=torch.set_num_threads, initargs=(1,))
    for _ in range(THREADS):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(count)  # theirs is their own, but also what threads to come would begin with
    return pool
