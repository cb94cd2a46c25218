"""Files of `torch.export`: a program that `torch.export.load` runs without the network's code, nor this library."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vnd._export.checks import accuracy_of, check_outputs, cost_row
from vnd._export.graph import Function, Masked, any_batch, cut, program, reference
from vnd._export.onnx import put_file

if TYPE_CHECKING:
    from vnd._export import Job


def write(job: Job, path: Path, int8: object = None) -> dict[str, Any]:
    """Write a `.pt2` file that agrees with torch; what is known of it.

    Its inputs are those of the network, then the number of the width where there are several, then the noise.
    """
    names = [*job.inputs.names]
    tensors, batched = job.inputs.zeros(2), [*job.inputs.batched]
    masked = job.several or bool(job.masked)
    if masked:
        shapes = [width.shape for width in job.widths if width.shape is not None]
        function: Function = Masked(job.net, shapes, job.inputs, job.output, job.sites)
        names, tensors, batched = [*names, "width"], [*tensors, torch.zeros((), dtype=torch.int64)], [*batched, False]
    else:
        function = cut(job.net, job.widths[0], job.inputs, job.output, job.sites)
    if job.sites is not None:
        names, tensors, batched = [*names, "noise"], [*tensors, job.noise(2)], [*batched, not job.shared]
    exported = program(function, tensors, (any_batch(batched),))
    file = io.BytesIO()
    told = json.dumps(job.facts | {"inputs": names, "noise": job.columns})
    torch.export.save(exported, file, extra_files={"vnd.json": told})
    content = file.getvalue()
    again = torch.export.load(io.BytesIO(content)).module()
    rows = []
    for number, width in enumerate(job.widths):
        probes = job.inputs.random(16)
        noise = torch.randn(job.noise(16).shape, generator=torch.Generator().manual_seed(number))
        own = [torch.tensor(number)] * masked + [noise] * (job.sites is not None)
        want = reference(job.net, width, job.inputs, probes, job.output, job.sites, noise)
        with torch.no_grad():
            worst = check_outputs(again(*probes, *own), want, f"width {width.given}")
        row = cost_row(job, number) | {"largest_difference": worst, "largest_output": float(want.abs().max())}
        if job.check is not None:
            row["accuracy"] = accuracy_of(job, partial(_answer, again, own))
        rows.append(row)
    put_file(path, content)
    shapes_of = {
        name: ["batch", *x.shape[1:]] if many else list(x.shape)
        for name, x, many in zip(names, tensors, batched, strict=True)
    }
    form = {"form": "masked" if masked else "extracted"}
    reason = job.masked or "torch.export has one graph for all widths"
    because = {"because": reason} if masked else {}
    return form | because | {"bytes": len(content), "inputs": shapes_of, "widths": rows}


def _answer(program: Any, own: list[Tensor], given: list[Tensor]) -> Tensor:
    """The output for a batch, of the width and with noise of zeros."""
    rows = max((len(x) for x in own if x.dim()), default=0)
    out: Tensor = program(
        *given, *(x if x.dim() == 0 else torch.zeros(len(given[0]) if rows > 1 else 1, x.size(1)) for x in own)
    )
    return out
