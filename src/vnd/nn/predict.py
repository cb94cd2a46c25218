"""Prediction at a width: probabilities averaged over posterior samples, and how far to trust them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vnd.functional import concentration, to_float32
from vnd.nn.arguments import Arguments, Output, check_output, class_dim, describe_value, pick_tensor, tensors_of
from vnd.nn.bayesian import BayesLayer, Estimator
from vnd.nn.context import Draw, here, saying
from vnd.nn.recalibrate import sampling
from vnd.nn.state import NestedState, all_modules, lock_of, nested_part, state_of, unwrap
from vnd.nn.width import Width, as_defaults, is_compiled, setting_of

Link = Literal["softmax", "dirichlet", "sigmoid", "identity"]
ROWS = 16384  # examples times samples in one pass


@dataclass(frozen=True)
class Prediction:
    r"""Prediction of a network for a batch, averaged over samples.

    `probs` are averaged over samples. `entropy` is that of the average, in nats; `mutual_information` is what it
    exceeds the samples' mean entropy by, the part that a better posterior would take away. Both are None for
    `link="identity"`. `variance` is that between the samples' outputs after the link.

    >>> import torch, vnd
    >>> prediction = vnd.predict(torch.nn.Linear(2, 3), torch.zeros(4, 2), samples=0)
    >>> prediction.probs.shape, prediction.entropy.shape, prediction.samples
    (torch.Size([4, 3]), torch.Size([4]), 1)
    """

    probs: Tensor
    entropy: Tensor | None
    mutual_information: Tensor | None
    variance: Tensor
    samples: int


@torch.no_grad()
def predict(
    net: nn.Module,
    x: Tensor | tuple[Any, ...] | Mapping[str, Any],
    width: Width = None,
    samples: int = 6,
    link: Link | None = None,
    seed: int | None = None,
    rows: int | None = None,
    dim: int | None = None,
    output: Output | None = None,
    estimator: Estimator | Literal["pooled"] | None = None,
) -> Prediction:
    r"""Predict at a width with several draws of the weights, averaging probabilities.

    $$p = \frac1S \sum_s p_s, \qquad H[p] = \underbrace{\frac1S \sum_s H[p_s]}_{\text{in the data}} + \text{MI}$$

    With the "local" estimator the samples run as one batch, in chunks of `rows` and smaller ones where memory does not
    suffice, and share the statistics of the first layer if only one layer reads the input. Other estimators run one
    sample a pass.

    Args:
        net: A nested network, one with Bayesian layers, such as `extract(…, keep="posterior")` gives, or a plain one,
            of which all draws are the same: one is made.
        x: A batch of inputs, (batch, …); or a tuple of positional arguments, or a dict or other mapping of keyword
            arguments. The first tensor with a dimension says how many examples there are. Tensors of that size along
            dimension 0 are split and repeated with the examples, all else is handed on as it is.
        width: A `Shape`, a fraction in (0, 1], or None: no width given; the one that is set.
        samples: Draws of the weights; 0 for one pass with the posterior means.
        link: From the network's outputs to what is averaged: "softmax" over `dim` (classes), "sigmoid" for
            masks, "identity" for regression; "dirichlet" for a student of SN³, whose outputs give a Dirichlet over
            probabilities: its mean, entropy and mutual information in closed form, see `vnd.functional.concentration`.
            None for "dirichlet" of a student, "sigmoid" where images have one output a pixel, the foreground's, and
            "softmax" otherwise. Softmax of one output alone is always 1, and refused.
        seed: Makes the draws of the weights repeatable; the global generator is left as it was.
        rows: Most examples times samples in one pass.
        dim: The dimension of the output that counts classes, for the links "softmax" and "dirichlet"; the others need
            none. None for 1, as in (batch, classes), images and volumes; an output of three dimensions, which may be
            (batch, time, classes) or (batch, classes, time), is refused without it.
        output: The tensor that counts, where the network gives several: a key or an attribute, an index, or a function
            of what the network gives. None for the only tensor, or the one named `logits`.
        estimator: How layers draw in this call, as they take it; None for their own. With "weight" a draw is the same
            for all examples and positions: see `vnd.predict_masks`. With "pooled" it is as with "local", but all
            samples of an example have one variance at each output, the mean of theirs, and a layer takes little more
            than one convolution for each sample instead of two: their variance over draws is the same, and what one
            sample's inputs say of its own is left out. Samples in one pass share it; see `rows`.

    >>> import vnd
    >>> net = nn.Linear(4, 3)
    >>> tokens = torch.zeros(2, 7, 4)
    >>> vnd.predict(net, tokens, dim=-1).probs.sum(-1).shape
    torch.Size([2, 7])
    >>> vnd.predict(net, {"input": tokens[:, 0]}, output=lambda out: 2 * out).probs.shape
    torch.Size([2, 3])
    """
    inputs = _checked(net, x, samples, link, seed, rows, dim, output)
    pooled = estimator == "pooled"
    if estimator is not None and not pooled and estimator not in get_args(Estimator):
        known = ", ".join(map(repr, (*get_args(Estimator), "pooled")))
        raise ValueError(f"predict: estimator must be one of {known}; got {estimator!r}")
    own: Estimator | None = "local" if pooled else estimator  # type: ignore[assignment]
    root, part = unwrap(net), nested_part(net)
    if net is not root and any(isinstance(m, nn.DataParallel) and len(m.device_ids) > 1 for m in net.modules()):
        raise ValueError("predict: nn.DataParallel runs a network in threads, which no width reaches; give its .module")
    state: NestedState | None = getattr(part, "_vnd_state", None)
    if state is None and width is not None:
        state_of(net)  # refuses it: there is no width to set
    stands_for: Link | None = link or (None if state is None else state.arguments.get("link"))
    layers = [m for m in all_modules(root) if isinstance(m, BayesLayer)]  # looked for once: for one example it counts
    drawing = samples > 0 and any(layer.bayesian for layer in layers)
    count = samples if drawing else 1
    reading = _Reading(stands_for, dim, output)
    with ExitStack() as stack:
        stack.enter_context(evaluating(root))
        generator = None
        if seed is not None and is_compiled(net):  # its code draws from the global generator: one call at a time
            stack.enter_context(lock_of(part))
            stack.enter_context(
                torch.random.fork_rng(devices=[inputs.lead.get_device()] if inputs.lead.is_cuda else [])
            )
            torch.manual_seed(int(seed))
        elif seed is not None:
            generator = torch.Generator(inputs.lead.device).manual_seed(int(seed))
        if state is not None:
            setting = setting_of(net, width)
            stack.enter_context(saying(state.said(part, replace(setting, sampled=drawing))))
        stack.enter_context(sampling(layers, drawing, generator, own, pooled))
        try:
            parts = _run(net, inputs, count, rows or ROWS, reading, own)
        except (RuntimeError, ValueError) as error:
            if (explained := _explained(error, inputs, root)) is error:
                raise
            raise explained from error
    return _summarize(parts, _link_of(stands_for, tuple(parts.shape[1:]), dim), count, dim)


def _checked(net: Any, x: Any, samples: Any, link: Any, seed: Any, rows: Any, dim: Any, output: Any) -> Arguments:
    """The inputs; a ValueError of one line if these or an option cannot be meant."""
    if not isinstance(net, nn.Module):
        raise ValueError(f"predict: net must be an nn.Module; got a {type(net).__name__}")
    if link is not None and link not in get_args(Link):
        raise ValueError(
            f"predict: link must be one of {', '.join(map(repr, get_args(Link)))}; got {describe_value(link)}"
        )
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
        raise ValueError(f"predict: dim must be a whole number or None; got {describe_value(dim)}")
    check_output(output, "predict")
    if not _whole(samples, 0):
        raise ValueError(
            f"predict: samples must be a whole number, 0 (posterior means) or more; got {describe_value(samples)}"
        )
    if rows is not None and not _whole(rows, 1):
        raise ValueError(f"predict: rows must be at least 1, a whole number, or None; got {describe_value(rows)}")
    check_seed(seed, "predict")
    return Arguments.of(x, "predict")


def check_seed(seed: Any, who: str) -> None:
    """Refuse a seed that no generator takes."""
    if seed is not None and not _whole(seed, -(2**63), 2**64 - 1):
        raise ValueError(f"{who}: seed must be a whole number of 64 bits, or None; got {describe_value(seed)}")


def _whole(value: Any, least: int, most: float = math.inf) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most


def _explained(error: Exception, x: Arguments, root: nn.Module) -> Exception:
    """An error of a forward pass, with its reason where that is an input unlike those that the network is made for.

    Nothing is refused before it fails: sizes may differ from those of the conversion's example.
    """
    state: NestedState | None = getattr(root, "_vnd_state", None)
    like = next((parameter for parameter in root.parameters() if parameter.is_floating_point()), None)
    example = None if state is None else next((y for y in tensors_of(state.example) if y.dim()), None)
    wanted = x.lead if example is None else example
    dtype = like.dtype if like is not None and wanted.is_floating_point() else wanted.dtype
    fits = (x.lead.dtype, x.lead.shape[1:]) == (dtype, wanted.shape[1:])
    if fits or not x.single or type(error) not in (RuntimeError, ValueError) or str(error).startswith("predict: "):
        return error
    sizes = ", ".join(map(str, ("batch", *wanted.shape[1:])))
    words = f"of {dtype}, as the network's parameters are"
    if example is not None:
        words = f"{dtype} of shape ({sizes}), as the example of the conversion was"
    return type(error)(
        f"predict: x must be {words}; got {x.lead.dtype} of shape {tuple(x.lead.shape)}: {' '.join(str(error).split())}"
    )


_EVALUATING: WeakKeyDictionary[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def evaluating(root: nn.Module) -> Iterator[None]:
    """Run a network in evaluation mode, alone or with others; the last one out sets the modes back."""
    with _LOCK:
        users, modes = _EVALUATING.get(root) or (0, [])
        if users == 0 and any(module.training for module in all_modules(root)):
            modes = [(module, module.training) for module in root.modules()]
            root.eval()
        _EVALUATING[root] = users + 1, modes
    try:
        yield
    finally:
        with _LOCK:
            users, modes = _EVALUATING.pop(root)
            if users > 1:
                _EVALUATING[root] = users - 1, modes
            else:
                for module, mode in modes:
                    module.training = mode


@dataclass(frozen=True)
class _Reading:
    """Reader of outputs: the tensor that counts, and the link along its classes; None for what its shape says."""

    link: Link | None
    dim: int | None = None
    output: Output | None = None

    def __call__(self, out: Any, count: int, batch: int) -> Tensor:
        """The output of a pass after the link, (count, batch, …)."""
        found = to_float32(pick_tensor(out, self.output, "predict"))
        if found.dim() == 0 or found.size(0) != count * batch:
            told = f"{count} × {batch}" if count > 1 else batch
            raise ValueError(
                f"predict: the output must have a row for each example, {told}; got one of shape {tuple(found.shape)}"
            )
        shape = (batch, *found.shape[1:])
        link = _link_of(self.link, shape, self.dim)
        if link == "identity":
            linked = found
        elif link == "sigmoid":
            linked = found.sigmoid()
        else:
            dim = class_dim(shape, self.dim, "predict")
            linked = found.softmax(dim) if link == "softmax" else concentration(found.movedim(dim, 1))
            linked = linked if link == "softmax" else linked.movedim(1, dim)
        return linked.reshape(count, batch, *linked.shape[1:])


def _link_of(link: Link | None, shape: tuple[int, ...], dim: int | None) -> Link:
    """The link of an output of a shape: of images one output a pixel is the foreground's, all else has classes."""
    if link is None and len(shape) > 3 and dim in (None, 1) and shape[1] == 1:
        return "sigmoid"
    return link or "softmax"


def _run(
    net: nn.Module, x: Arguments, samples: int, rows: int, reading: _Reading, estimator: Estimator | None = None
) -> Tensor:
    """Outputs after the link, (samples, batch, …); halves the chunk when the device's memory does not suffice."""
    while True:
        try:
            together = samples > 1 and _separable(net, estimator)
            at_once = max(1, min(samples, rows // max(1, min(rows, len(x))))) if together else 1
            counts = [min(at_once, samples - done) for done in range(0, samples, at_once)]
            with as_defaults(net) if at_once == 1 and is_compiled(net) else nullcontext():  # once for all draws
                chunks = [
                    _cat([reading(_draw(net, part, count), count, len(part)) for count in counts])
                    for part in x.split(max(1, min(len(x), rows)))
                ]
            return _cat(chunks, 1)
        except RuntimeError as error:  # CUDA has a kind of its own, a CPU has not
            if rows <= 1 or not (isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)):
                raise
            rows = max(1, min(rows, samples * len(x)) // 2)
            torch.cuda.empty_cache()


def _cat(parts: list[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _separable(net: nn.Module, estimator: Estimator | None = None) -> bool:
    """Tell if the examples of one pass are separate draws: not so where they share the noise of a weight."""
    return all(
        (estimator or m.estimator) == "local" for m in unwrap(net).modules() if isinstance(m, BayesLayer) and m.bayesian
    )


def _draw(net: nn.Module, x: Arguments, count: int) -> Any:
    """One pass with `count` draws for every example, (count · batch, …), samples first."""
    root, said = unwrap(net), dict[nn.Module, Draw]()
    if count > 1:
        draws = {m: here(m) for m in root.modules() if isinstance(m, BayesLayer)}
        said |= {m: replace(draw, pooled=(count, count * len(x))) for m, draw in draws.items() if draw and draw.pooled}
        state: NestedState | None = getattr(root, "_vnd_state", None)
        first = [] if state is None or not x.single else [root.get_submodule(name) for name in state.first_consumers]
        if len(first) == 1 and isinstance(first[0], BayesLayer) and first[0].bayesian:
            said[first[0]] = replace(here(first[0]), expansion=count)
        else:
            x = x.repeat(count)
    with saying(said), as_defaults(net) if count > 1 and is_compiled(net) else nullcontext():
        return x.run(net)


def _summarize(parts: Tensor, link: Link, samples: int, dim: int | None = None) -> Prediction:
    probs = parts[0] if samples == 1 and link != "identity" else parts.mean(0)  # never the network's own memory
    variance = parts.var(0, correction=0) if samples > 1 else torch.zeros_like(probs)
    if link == "identity":
        return Prediction(probs, None, None, variance, samples)
    if link == "sigmoid":
        entropy, inner = _binary_entropy(probs), _binary_entropy(parts).mean(0)
        return Prediction(probs, entropy, (entropy - inner).clamp(min=0.0), variance, samples)
    classes = class_dim(tuple(probs.shape), dim, "predict")
    if link == "dirichlet":
        return _summarize_dirichlet(parts, samples, classes)
    entropy = torch.special.entr(probs).sum(classes)
    if samples == 1:
        return Prediction(probs, entropy, torch.zeros_like(entropy), variance, samples)
    inner = torch.special.entr(parts).sum(classes + 1).mean(0)
    return Prediction(probs, entropy, (entropy - inner).clamp(min=0.0), variance, samples)


def _summarize_dirichlet(parts: Tensor, samples: int, classes: int) -> Prediction:
    r"""A mixture of Dirichlets with concentrations a, (samples, *output), each of total $a_0$ along the classes.

    $$\bar p = \frac1S \sum_s \frac{a_s}{a_{s0}}, \qquad \mathbb E\, H[p] = \frac1S \sum_s \Bigl[ ψ(a_{s0} + 1) -
      \sum_c \frac{a_{sc}}{a_{s0}}\, ψ(a_{sc} + 1) \Bigr], \qquad
      \operatorname{Var} p_c = \frac1S \sum_s \frac{p_{sc} (1 - p_{sc})}{a_{s0} + 1} + \operatorname{Var}_s p_{sc}$$
    """
    within = classes + 1
    total = parts.sum(within, keepdim=True)
    means = parts / total
    probs = means.mean(0)
    inner = (total + 1).digamma().squeeze(within) - (means * (parts + 1).digamma()).sum(within)
    variance = (means * (1 - means) / (total + 1)).mean(0) + means.var(0, correction=0)
    entropy = torch.special.entr(probs).sum(classes)
    return Prediction(probs, entropy, (entropy - inner.mean(0)).clamp(min=0.0), variance, samples)


def _binary_entropy(probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probs) + torch.special.entr(1 - probs)
    return entropy
