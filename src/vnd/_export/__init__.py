"""Export of networks to files that run without this library: ONNX, for one width or all, int8, and torch.export's."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vnd import __version__
from vnd._export import graph as graphs
from vnd._export.coded import is_coded
from vnd._export.coded import write as write_coded
from vnd._export.graph import Inputs, Noise, Width
from vnd._files import write_json
from vnd._text import one_line
from vnd.nn.arguments import Output
from vnd.nn.extract import ORIGINS, extract
from vnd.nn.predict import Link
from vnd.nn.profile import profile
from vnd.nn.state import NestedState, Setting, Shape, arguments_of, batch_norms, nested_part, unwrap
from vnd.nn.width import as_shape

__all__ = ["export"]

SUFFIXES = (".onnx", ".pt2")
REPORT = "export.json"


def export(
    net: nn.Module,
    path: str | Path,
    width: Shape | float | None = None,
    widths: Sequence[Shape | float] | None = None,
    posterior: bool = False,
    *,
    int8: Iterable[Any] | None = None,
    check: tuple[Any, Tensor] | None = None,
    loss: float = 0.01,
    link: Link | None = None,
    output: Output | None = None,
    example_input: Any = None,
    classes: Sequence[str] | None = None,
    card: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    r"""Write a network to a file that runs without this library, and check it against torch at every width.

    The suffix says what is written: `.onnx` for onnxruntime, browsers and `vnd.runtime`, `.pt2` for
    `torch.export.load`. One width gives the extracted network. Several give one file whose input `width`, an int64
    scalar, is the number of one of them, and that costs less with it: each width cuts its weights out of those of the
    widest. Only a network that has no exact smaller form is masked, at its full cost; so is a `.pt2` of several widths.

    With `posterior` the draws are a function of the input `noise`, standard normal numbers (batch, n): the same noise
    gives the same draws in every program. Noise without columns, (batch, 0), gives the posterior means, if BatchNorm
    has their statistics.

    An auto-encoder gives its decoder, whose inputs are codes and their `length`. A probabilistic UNet gives two files,
    NAME-features.onnx, which runs once an image, and NAME-combine.onnx, which gives the masks of noise and a `length`,
    for images of any size.

    Beside the file, `export.json` tells its bytes and inputs, and of each width the largest difference from torch, the
    accuracy on `check` and the time, as a share of the widest's. The file holds nothing of the example's values.

    Args:
        net: A nested network, recalibrated at the widths; or a plain one, of one size.
        path: The file, `.onnx` or `.pt2`.
        width: A `Shape`, a fraction in (0, 1], or None: no width given; the one that is set.
        widths: Several, for one file that has them all.
        posterior: Whether the file draws from the posterior of the weights.
        int8: Batches of inputs to quantize with, those of one width of an `.onnx` file; weights and activations are of
            eight bits then. It needs `check`.
        check: Inputs and classes (N,) to measure the accuracy on.
        loss: How much of the accuracy int8 may cost; more is refused.
        link: What the outputs stand for, as `vnd.predict` takes it; None for what the network was made with.
        output: The tensor that counts, where the network gives several.
        example_input: Arguments of the network: a tensor, a tuple or a dict; None for those of the conversion.
        classes: Names of the classes, to be kept in the file.
        card: Plain values about the network, to be kept in the file.

    Returns:
        What `export.json` tells of the file.

    >>> import tempfile, torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vnd.export(net, f"{folder}/small.pt2", width=0.5)["form"]
    'extracted'
    """
    from vnd._export import onnx, pt2

    path = Path(path)
    _check_suffix(path)
    if is_coded(unwrap(net)):
        given = {"width": width, "widths": widths, "posterior": posterior or None, "int8": int8, "check": check}
        if path.suffix != ".onnx" or any(value is not None for value in given.values()):
            told = ", ".join(name for name, value in given.items() if value is not None) or path.suffix
            raise ValueError(
                f"export: a {type(unwrap(net)).__name__} takes its length as an input, in .onnx; got {told}"
            )
        entries = write_coded(unwrap(net), path, card)
        _report(path, entries)
        return next(iter(entries.values())) if len(entries) == 1 else entries
    job = Job.of(net, path, width, widths, posterior, check, link, output, example_input, classes, card)
    _check_options(path, job, int8, check, loss)
    if path.suffix == ".pt2":
        entry = pt2.write(job, path)
    else:
        entry = onnx.write(job, path, None if int8 is None else (int8, loss))
    _report(path, {path.name: entry})
    return entry


@dataclass(frozen=True)
class Job:
    """The network to export: a copy of the network on the CPU, in float32, in evaluation mode, and its widths."""

    net: nn.Module
    widths: list[Width]
    several: bool
    inputs: Inputs
    output: Output | None
    sites: Noise | None
    means: bool  # whether the file has the means beside the draws, or without any
    masked: str  # why no width can be cut out; empty where all can
    check: tuple[list[Tensor], Tensor] | None
    facts: dict[str, Any]  # of `metadata_props`

    @classmethod
    def of(
        cls,
        given: nn.Module,
        path: Path,
        width: Any,
        widths: Any,
        posterior: bool,
        check: Any,
        link: Any,
        output: Any,
        example_input: Any,
        classes: Any,
        card: Any,
    ) -> Job:
        if width is not None and widths is not None:
            raise ValueError(
                f"export: give width, for one, or widths, for several in one file; got {width} and {widths}"
            )
        if widths is not None and (not isinstance(widths, list | tuple) or not widths):
            raise ValueError(f"export: widths must be a list of widths, one or more; got {widths!r}")
        net = copy.deepcopy(unwrap(given)).cpu().float().eval()
        part = nested_part(net)
        state: NestedState | None = getattr(part, "_vnd_state", None)
        if state is None and (width is not None or widths is not None):
            raise ValueError(f"export: {type(net).__name__} is not nested and has one size; leave out its width")
        inputs = Inputs.of(net, *_example(given, state if part is net else None, example_input))
        wanted = [width] if widths is None else [*widths]
        shapes = [Width(w, None if state is None else as_shape(net, w), _fraction(w)) for w in wanted]
        for number, one in enumerate(shapes):
            if one.shape is not None and any(one.shape == other.shape for other in shapes[:number]):
                raise ValueError(f"export: widths must differ; {one.given!r} has the shape of one before it")
        sites = graphs.find_noise(net, inputs) if posterior else None
        means = _statistics(part, state, shapes, posterior)
        facts = _facts(net, state, shapes, inputs, output, link, classes, card)
        measured = None if check is None else _checked(check, net, inputs)
        masked = _masked(net, state, shapes, posterior)
        return cls(net, shapes, widths is not None, inputs, output, sites, means, masked, measured, facts)

    @property
    def shared(self) -> bool:
        """True if all examples of a pass share its noise."""
        return self.sites is not None and graphs.shares_noise(self.sites)

    def noise(self, count: int, columns: int | None = None) -> Tensor:
        """Zeros in the shape of the noise of so many examples."""
        return torch.zeros(1 if self.shared else count, self.columns if columns is None else columns)

    @property
    def columns(self) -> int:
        """Number of noise columns."""
        return 0 if self.sites is None else graphs.noise_columns(self.sites)


def _check_suffix(path: Path) -> None:
    if path.suffix == ".pte":
        raise ValueError("export: .pte is made from .pt2 by the script in docs/deploy.md, with ExecuTorch installed")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"export: path must end in .onnx or .pt2; got {path.name}")


def _check_options(path: Path, job: Job, int8: Any, check: Any, loss: float) -> None:
    if int8 is None:
        return
    if path.suffix != ".onnx" or job.several or job.sites is not None:
        raise ValueError("export: int8 must be an .onnx file of one width, without posterior")
    if check is None:
        raise ValueError("export: int8 must come with check=(x, y), to see what it costs; got none")
    if isinstance(loss, bool) or not isinstance(loss, float | int) or not 0 <= loss <= 1:
        raise ValueError(f"export: loss must lie in [0, 1], a share of the examples; got {loss!r}")


def _fraction(width: Any) -> float | None:
    return float(width) if isinstance(width, float | int) else None


def _example(net: nn.Module, state: NestedState | None, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example arguments: those given, or those of the conversion."""
    if given is not None:
        return arguments_of(given)
    if state is not None:
        return state.example
    if (origin := ORIGINS.get(unwrap(net))) is not None:
        args, kwargs = origin["example"]
        return args, kwargs
    raise ValueError("export: a network without a conversion of its own needs example_input, the arguments of a call")


def _statistics(part: nn.Module, state: NestedState | None, widths: list[Width], posterior: bool) -> bool:
    """Warn of widths that were not recalibrated, as running them does; tell if the means have their statistics."""
    if state is None:
        return True
    if not posterior:
        for width in widths:
            _look_up(part, state, width, sampled=False)
        return True
    for width in widths:
        _look_up(part, state, width, sampled=True)
    norms = any(True for _ in batch_norms(part))
    fresh = state.stamp(part) == state.converted_at
    return not norms or all(
        state.valid_statistics(part, (w.shape, False)) is not None or (fresh and w.shape == state.full)
        for w in widths
        if w.shape is not None
    )


def _look_up(part: nn.Module, state: NestedState, width: Width, sampled: bool) -> None:
    assert width.shape is not None
    words = "shape" if width.fraction is None else f"{width.fraction:g}"
    state.look_up(part, Setting(width.shape, words, sampled=sampled))


def _masked(net: nn.Module, state: NestedState | None, widths: list[Width], posterior: bool) -> str:
    """The reason why a network has no exact smaller form; empty if it has."""
    if state is None:
        return ""
    try:
        extract(net, widths[0].shape, "posterior" if posterior else "mean", warn=False)
    except ValueError as error:
        return one_line(error).removeprefix("extract: ")
    return ""


def _facts(
    net: nn.Module,
    state: NestedState | None,
    widths: list[Width],
    inputs: Inputs,
    output: Output | None,
    link: Link | None,
    classes: Any,
    card: Any,
) -> dict[str, Any]:
    """Facts that a file tells of itself."""
    example = inputs.arguments(inputs.zeros(2))
    rows = []
    for width in widths:
        cost = profile(net, width.shape, example[1] or example[0])
        rows.append(
            {
                "fraction": width.fraction,
                "shape": None if width.shape is None else dict(width.shape),
                "parameters": cost.parameters,
                "macs": cost.macs,
            }
        )
    out = graphs.reference(net, widths[0], inputs, inputs.zeros(2), output)
    stands_for = link or (None if state is None else state.arguments.get("link"))
    if stands_for is None:  # as vnd.predict has it
        stands_for = "sigmoid" if out.dim() > 3 and out.size(1) == 1 else "softmax"
    known = getattr(net, "classes", None) if classes is None else classes
    told = getattr(net, "card", None) if card is None else card
    return {
        "vnd": __version__,
        "link": stands_for,
        "widths": rows,
        "classes": [str(name) for name in known] if isinstance(known, list | tuple) else None,
        "card": dict(told) if isinstance(told, Mapping) else {"network": type(net).__name__},
    }


def _checked(check: Any, net: nn.Module, inputs: Inputs) -> tuple[list[Tensor], Tensor]:
    """The tensors of inputs that come with classes."""
    if (
        not isinstance(check, tuple | list)
        or len(check) != 2
        or not isinstance(check[1], Tensor)
        or check[1].dim() != 1
    ):
        raise ValueError("export: check must be (x, y): inputs, and classes of shape (N,)")
    x, y = check
    theirs = Inputs.of(net, *arguments_of(x))
    if theirs.names != inputs.names or not len(y) or len(theirs.examples[0]) != len(y):
        raise ValueError(f"export: check must have one class for each input; got {len(y)} classes")
    return [value.to(example) for value, example in zip(theirs.examples, inputs.examples, strict=True)], y.cpu()


def _report(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Write what is known of files beside them, and keep what is known of others."""
    place = path.parent / REPORT
    try:
        known = json.loads(place.read_text(encoding="utf-8"))
        files = known["files"]
        if not isinstance(files, dict):
            raise TypeError(f"files is a {type(files).__name__}")
    except FileNotFoundError:
        files = {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"export: {place} is not what export wrote; move it: {one_line(error)}") from None
    files = {name: found for name, found in files.items() if (path.parent / name).exists()}
    write_json(place, {"vnd": __version__, "files": files | entries})
