"""Checks of exported files against torch, and what they cost: largest difference, accuracy, seconds of CPU."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vnd._export.graph import reference

if TYPE_CHECKING:
    from vnd._export import Job

Array = NDArray[Any]
PROBES, REPEATS = 16, 7  # inputs that files are checked on, and runs that are timed
ROUNDING, SLACK = 1e-5, 4.0


def required(*names: str) -> list[Any]:
    """The modules of the extra `export`; an error that says how to install them."""
    from importlib import import_module

    try:
        return [import_module(name) for name in names]
    except ImportError as error:
        raise ImportError(
            f"export: {error.name} is not installed; pip install 'variational-nested-dropout[export]'"
        ) from None


def engine(content: bytes) -> Any:
    """A session of onnxruntime in one thread."""
    (onnxruntime,) = required("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def feed(opened: Any, job: Job, tensors: Sequence[Tensor], number: int, noise: Tensor | None) -> dict[str, Array]:
    """Inputs of a session, by name."""
    given = dict(zip(job.inputs.names, (x.numpy() for x in tensors), strict=True))
    given |= {"width": np.asarray(number, np.int64)}
    given |= {} if noise is None else {"noise": noise.numpy()}
    return {value.name: given[value.name] for value in opened.get_inputs()}


def compare(job: Job, content: bytes) -> list[dict[str, Any]]:
    """Distance of onnxruntime from torch, masked, at each width; refused where that is more than rounding."""
    opened, rows = engine(content), []
    tensors = job.inputs.random(PROBES)
    for number, width in enumerate(job.widths):
        row = cost_row(job, number)
        worst = scale = 0.0
        for sites in [None] * job.means + [job.sites] * (job.sites is not None):
            noise = None if job.sites is None else job.noise(PROBES, 0)
            if sites is not None:
                noise = torch.randn(job.noise(PROBES).shape, generator=torch.Generator().manual_seed(number))
            got = torch.from_numpy(opened.run(None, feed(opened, job, tensors, number, noise))[0])
            want = reference(job.net, width, job.inputs, tensors, job.output, sites, noise)
            exact = partial(_exact, job, number, tensors, sites, noise)
            worst = max(worst, check_outputs(got, want, f"width {width.given}", exact))
            scale = max(scale, float(want.abs().max()))
        row |= {"largest_difference": worst, "largest_output": scale}
        if job.check is not None:
            row["accuracy"] = accuracy(job, opened, number)
        rows.append(row)
    return rows


def _exact(job: Job, number: int, tensors: Sequence[Tensor], sites: Any, noise: Tensor | None) -> Tensor:
    """The outputs of torch in float64."""
    net = copy.deepcopy(job.net).double()
    wide = [x.double() if x.is_floating_point() else x for x in tensors]
    return reference(net, job.widths[number], job.inputs, wide, job.output, sites, noise)


def cost_row(job: Job, number: int) -> dict[str, Any]:
    """The width of a number, and its cost."""
    return dict(job.facts["widths"][number])


def check_outputs(got: Tensor, want: Tensor, where: str, exact: Callable[[], Tensor] | None = None) -> float:
    """The largest difference from torch's outputs; refused where rounding does not explain it.

    It does up to 1e-5 of the largest output, and that much besides. A network that is more sensitive than that is told
    by float64: there a file may be `SLACK` times as far as torch's own float32 is.
    """
    told = f"export: the file does not agree with torch at {where}"
    if got.shape != want.shape or not bool((got.isfinite() == want.isfinite()).all()):
        raise ValueError(f"{told}; it gives {tuple(got.shape)} for {tuple(want.shape)}, or others that are not finite")
    both = want.isfinite()
    if not bool(both.any()):
        return 0.0
    worst, limit = float((got - want)[both].abs().max()), ROUNDING * (float(want[both].abs().max()) + 1)
    if worst > limit:
        truth = want if exact is None else exact()
        own, theirs = (float((x - truth)[both].abs().max()) for x in (want, got))
        if not theirs <= SLACK * own + limit:
            raise ValueError(f"{told}: outputs up to {limit / ROUNDING - 1:.3g} differ by {worst:.3g}")
    return worst


def accuracy(job: Job, opened: Any, number: int = 0) -> float:
    """The share of `check` that is told right, by posterior means where the file has them."""

    def run(tensors: list[Tensor]) -> Tensor:
        noise = None if job.sites is None else job.noise(len(tensors[0]), 0 if job.means else None)
        return torch.from_numpy(opened.run(None, feed(opened, job, tensors, number, noise))[0])

    return accuracy_of(job, run)


@torch.no_grad()
def accuracy_of(job: Job, run: Callable[[list[Tensor]], Tensor]) -> float:
    """The share of `check` that a function of inputs tells right."""
    assert job.check is not None
    tensors, classes = job.check
    right = 0
    for start in range(0, len(classes), 256):
        part = [x[start : start + 256] if many else x for x, many in zip(tensors, job.inputs.batched, strict=True)]
        out = run(part)
        right += int((out.argmax(-1 if out.dim() == 3 else 1) == classes[start : start + 256]).sum())
    return right / len(classes)


def cpu_times(job: Job, content: bytes, alone: Sequence[bytes]) -> list[tuple[float, float | None]]:
    """Median seconds of CPU of one example at each width, in turns with the extracted network's where there is one."""
    opened = engine(content)
    singles = [engine(model) for model in alone]
    tensors = job.inputs.random(1)
    noise = None if job.sites is None else job.noise(1)
    calls = [(opened, number) for number in range(len(job.widths))] + [(single, 0) for single in singles]
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(REPEATS + 1):
        for index, (runner, number) in enumerate(calls):
            given = feed(runner, job, tensors, number, noise)
            start = time.process_time()
            runner.run(None, given)
            if turn:  # the first warms up
                seconds[index].append(time.process_time() - start)
    medians = [max(statistics.median(some), 1e-9) for some in seconds]
    count = len(job.widths)
    return [(medians[i], medians[count + i] if singles else None) for i in range(count)]
