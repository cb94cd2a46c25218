r"""Eight-bit networks: static quantisation of weights, a channel each, and of activations, by what batches reach.

Weights have seven bits of range: on a CPU that adds pairs of products in 16 bits, as those with AVX2 alone do, eight
overflow, and cost 15 points of accuracy in one network. What quantisation costs is measured, and refused if too much.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vnd._export.checks import accuracy, engine, required
from vnd.nn.arguments import batch_inputs
from vnd.nn.state import nested_part

if TYPE_CHECKING:
    from vnd._export import Job

OPTIONS: dict[str, Any] = {"per_channel": True, "reduce_range": True}


class AccuracyError(ValueError):
    """Eight bits cost more accuracy than they may."""


def quantize(job: Job, content: bytes, batches: Iterable[Any], loss: float) -> tuple[bytes, dict[str, Any]]:
    """The file in eight bits, and what is known of it; refused where it costs more accuracy than `loss`.

    Args:
        job: What is exported, with the inputs to measure the accuracy on.
        content: The file in floating point.
        batches: Batches of inputs, with labels or without.
        loss: Largest share of the inputs that may be told wrong beside those that were.
    """
    onnx, quantization = required("onnx", "onnxruntime.quantization")
    shape_inference = required("onnxruntime.quantization.shape_inference")[0]
    feeds = list(_feeds(job, batches))
    if not feeds:
        raise ValueError("export: int8 must hold at least one batch of inputs; got none")
    root = logging.getLogger()
    level = root.level
    with tempfile.TemporaryDirectory() as folder:
        plain, ready, small = (Path(folder) / f"{name}.onnx" for name in ("plain", "ready", "small"))
        plain.write_bytes(content)
        root.setLevel(logging.ERROR)  # it advises what was done already
        try:
            shape_inference.quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
            quantization.quantize_static(
                str(ready), str(small), _reader(quantization, feeds),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                **OPTIONS,
            )  # fmt: skip
        finally:
            root.setLevel(level)
        model = onnx.load(str(small))
    del model.graph.value_info[:]
    told = {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}
    from vnd._export.onnx import describe

    describe(model, told | {"int8": "true"})
    quantized = model.SerializeToString()
    before, after = accuracy(job, engine(content)), accuracy(job, engine(quantized))
    if before - after > loss + 1e-9:
        assert job.check is not None
        raise AccuracyError(
            f"export: int8 must cost at most {loss:g} of the accuracy; it costs {before - after:.4f} of {before:.4f} "
            f"and leaves {after:.4f} on {len(job.check[1]):,} examples; nothing was written"
        )
    known = {"accuracy_float": before, "accuracy_int8": after, "bytes_float": len(content)}
    return quantized, known


def _feeds(job: Job, batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Inputs of the calibration, by the names of the inputs."""
    from vnd._export.graph import Inputs

    for batch in [batches] if isinstance(batches, torch.Tensor) else batches:
        if hasattr(nested_part(job.net), "_vnd_state"):
            args, kwargs = batch_inputs(job.net, batch, torch.device("cpu"))
        else:
            args, kwargs = ((batch[0] if isinstance(batch, tuple | list) else batch),), {}
        found = Inputs.of(job.net, args, kwargs)
        yield {
            name: x.to(like.dtype).numpy()
            for name, x, like in zip(job.inputs.names, found.examples, job.inputs.examples, strict=True)
        }


def _reader(quantization: Any, feeds: list[dict[str, Any]]) -> Any:
    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(feeds)

        def get_next(self) -> dict[str, Any] | None:
            return next(self.rest, None)

    return Reader()
