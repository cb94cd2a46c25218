"""Distillation in one call: SN³ of any nested network, on batches of the user's own."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

import vnd.nn as nested
from vnd._text import check_known, one_line
from vnd.methods.base import Step, Terms
from vnd.methods.sn3 import SHARE, SN3, DistillationCache, Reading, prune, teach
from vnd.nn import BayesLayer, Shape
from vnd.nn.arguments import Arguments, Output, batch_inputs, check_output, split_labels, to_device
from vnd.nn.state import state_of, unwrap

EPOCHS = 10
SIZES = (0.25, 0.5, 0.75, 1.0)  # shares of the student's width that are ready for use, unless others are asked for
WARMUP = 0.05  # share of the steps in which the learning rate rises
RECALIBRATED = 16  # batches that BatchNorm's statistics are of
LARGEST_GRADIENT = 1.0
Batches = Iterable[Any] | Callable[[], Iterable[Any]]


@torch.enable_grad()
def distill(
    teacher: nn.Module,
    batches: Batches,
    keep: Shape | float = SHARE,
    *,
    divergence: Literal["mmd", "kl"] = "mmd",
    tie: bool = True,
    samples: int = 6,
    label_weight: float = 0.0,
    widths: tuple[float, ...] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    lr: float = 3e-3,
    kl_weight: float = 1e-7,
    output: Output | None = None,
    dim: int | None = None,
    callback: Callable[[int, dict[str, float]], None] | None = None,
    **options: Any,
) -> nn.Module:
    r"""Distill a Bayesian nested classifier into a small nested student, deterministic but for its last layer: SN³.

    $$\mathcal L = \frac1B \sum_b \mathrm{MMD}^2\bigl(\{p_s(x_b)\}_{s \le S},\; \mathrm{Dir}(a(x_b))\bigr)
      + c\, \mathrm{CE}\Bigl(\frac{a}{a_0}, y_b\Bigr) + k\, \mathrm{KL}(\text{last layer}), \qquad |v| = r |\bar v|$$

    `vnd.methods.sn3.prune` makes the student of the teacher's leading groups, with its means and its order; then the
    method `vnd.methods.SN3` trains it, as in recipes: at full width, at its base and at lengths that are drawn, S
    answers $p_s$ of the teacher at the lengths that go with them, a being the student's concentrations. Adam, with a
    short warmup and a cosine to 0. Paper: Sec. 3.5.

    The teacher is copied and left as it is. It answers by statistics of the batch, and its dropout drops nothing.

    `vnd.predict(student, x, samples=6)` averages over draws of the last layer, as the paper does; `samples=0` is the
    mean of the Dirichlet in closed form, in one pass. Either has the entropy and mutual information of the Dirichlet.

    Note: "kl" teaches the mean alone: of such a student the spread, and so the mutual information, says nothing.

    Args:
        teacher: A nested network that classifies, trained. One of point weights has no spread to teach: "kl" only.
        batches: A data loader, a list, or a function that gives the batches of an epoch. A batch is a tensor, (x, y), a
            tuple of inputs with labels or not, or a dict, as `vnd.recalibrate` takes it. Labels are not needed.
        keep: Share of every unit's groups that the student has, in (0, 1], at least the unit's base; or a shape, such
            as `vnd.shape(teacher, parameters=30_000)`.
        divergence: "mmd" teaches the spread of the answers, "kl" their mean.
        tie: The teacher's lengths move with the student's; if not, the teacher is always at full width.
        samples: Draws of the teacher's weights, S.
        label_weight: c, on the cross-entropy of the labels, which the batches must have then.
        widths: Shares of the student's width to train in every step in the place of its base, and to recalibrate. None
            for the base alone, and 0.25, 0.5, 0.75 and 1 to be recalibrated.
        epochs: Passes over the batches; 10 if neither they nor steps are given.
        steps: In their place, so many batches.
        lr: Learning rate of Adam; for a large pretrained network 1e-4, say.
        kl_weight: k, in nats of an example: what recipes write as κ / N.
        output: The tensor that counts, where the network gives several, as in `vnd.predict`.
        dim: The dimension of the output that counts classes, as in `vnd.predict`.
        callback: Called after every step with its number and its loss, distance, nll and kl.
        **options: Further options of `vnd.methods.SN3`: student_samples, bandwidths, full, smallest, full_share,
            sampled_share.

    Returns:
        The student, in evaluation mode, its BatchNorm recalibrated on the last batches: a nested network as any other.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    >>> teacher = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=8)  # and trained
    >>> student = vnd.distill(teacher, [torch.randn(16, 2) for _ in range(4)], keep=0.25, epochs=2)
    >>> vnd.predict(student, torch.randn(5, 2), width=0.5, samples=6).probs.shape
    torch.Size([5, 3])
    """
    _check(teacher, divergence, samples, widths, epochs, steps, lr, kl_weight, output, callback)
    method = _method(
        options, divergence=divergence, tie=tie, samples=samples, label_weight=label_weight,
        widths=tuple(share for share in widths or () if share < 1),
    )  # fmt: skip
    root = unwrap(teacher)
    output = state_of(root).arguments["output"] if output is None else output
    student = prune(root, keep, output=output).train()
    device = next(root.parameters()).device
    student.to(device)
    teach(student, DistillationCache(copy.deepcopy(root).requires_grad_(False), Reading(output, dim)))
    optimizer = torch.optim.Adam(nested.parameter_groups(student, lr=lr), lr)
    weight, seen = torch.tensor(kl_weight, device=device), deque[Any](maxlen=RECALIBRATED)
    for index, (share, batch) in enumerate(_passes(batches, epochs, steps)):
        for group in optimizer.param_groups:
            group["lr"] = lr * _rate(share)
        seen.append(batch)
        taken = _inputs(student, batch, device, bool(label_weight), index)
        step = Step(index, weight, 1.0, num_data=1)
        terms = _taught(method, student, taken, step)
        loss = float(terms.total.detach())
        if not math.isfinite(loss):
            raise ValueError(f"distill: the loss must be finite; got {loss} at step {index}; lower lr, see the batches")
        optimizer.zero_grad()
        terms.total.backward()
        nn.utils.clip_grad_norm_(student.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        if callback is not None:
            callback(index, {"loss": loss, **{name: float(x) for name, x in terms.parts.items()}})
    del student._vnd_distillation
    nested.recalibrate(student.eval(), seen, widths=(*(widths or SIZES[:-1]), 1.0), samples="both")
    return student


def _check(
    teacher: nn.Module, divergence: str, samples: Any, widths: Any, epochs: Any, steps: Any, lr: Any, kl_weight: Any,
    output: Any, callback: Any,
) -> None:  # fmt: skip
    """Refuse what cannot be meant, before any work."""
    state_of(teacher)
    check_output(output, "distill")
    check_known("distill: divergence", divergence, ("mmd", "kl"))
    bayesian = any(isinstance(module, BayesLayer) and module.bayesian for module in teacher.modules())
    if divergence == "mmd" and not bayesian:
        raise ValueError(
            "distill: divergence must be 'kl' for a teacher without Bayesian layers, whose answers have no spread; "
            "got 'mmd'"
        )
    if epochs is not None and steps is not None:
        raise ValueError(f"distill: give epochs or steps, not both; got {epochs} and {steps}")
    if (link := state_of(teacher).arguments["link"]) in ("sigmoid", "identity"):
        raise ValueError(f"distill: teacher must classify, with the link 'softmax'; it was converted with {link!r}")
    for name, count in (("epochs", epochs), ("steps", steps), ("samples", samples)):
        whole = isinstance(count, Integral) and not isinstance(count, bool)
        if count is not None and not (whole and int(count) >= 1):
            raise ValueError(f"distill: {name} must be a whole number, at least 1; got {count!r}")
    if callback is not None and not callable(callback):
        raise ValueError(f"distill: callback must be a function or None; got {callback!r}")
    for name, value, above in (("lr", lr, True), ("kl_weight", kl_weight, False)):
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf or (above and not value):
            raise ValueError(f"distill: {name} must be {'above' if above else 'at least'} 0 and finite; got {value!r}")
    shares = isinstance(widths, tuple | list) and all(isinstance(x, Real) and 0 < float(x) <= 1 for x in widths)
    if widths is not None and not (shares and list(widths) == sorted({*widths})):
        raise ValueError(f"distill: widths must be shares in (0, 1] that rise; got {widths!r}")


def _method(options: Mapping[str, Any], **given: Any) -> SN3:
    """The method of recipes with these options."""
    known = {f.name for f in fields(SN3)} - {*given, "teacher", "checkpoint", "keep", "parameters", "rules"}
    for name in options:
        check_known("distill: option", name, sorted(known))
    try:
        return SN3(**given, **options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"distill: {one_line(error)}") from None


def _taught(method: SN3, student: nn.Module, batch: tuple[Arguments, Tensor | None], step: Step) -> Terms:
    """The loss of a batch; what the networks or the loss cannot read is said with its shapes."""
    try:
        method.prepare(student, batch, step, lambda value: value)
        return method.loss(student, batch, step)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if str(error).startswith("distill: "):
            raise
        inputs, labels = batch
        of_labels = "" if labels is None else f", and labels, {labels.dtype}, of shape {tuple(labels.shape)}"
        got = f"inputs of shape {tuple(inputs.lead.shape)}{of_labels}"
        raise ValueError(
            f"distill: batch {step.index} must be what the teacher reads; got {got}: {one_line(error)}"
        ) from error


def _rate(share: float) -> float:
    """Factor of the learning rate once a share of training is done."""
    return min(1.0, (share + 1e-3) / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def _passes(batches: Any, epochs: int | None, steps: int | None) -> Iterator[tuple[float, Any]]:
    """Batches, epoch after epoch, and the share of training that is done; until the first one has ended by steps."""
    if isinstance(batches, Tensor | Mapping) or not (callable(batches) or isinstance(batches, Iterable)):
        raise ValueError(
            "distill: batches must be a data loader, a list or a function that gives the batches of an epoch; "
            f"got a {type(batches).__name__}"
        )
    epochs = epochs or EPOCHS
    if isinstance(batches, Iterator) and steps is None and epochs > 1:
        raise ValueError(
            "distill: batches must last for several epochs; got an iterator, which has one; give a list, or epochs=1"
        )
    length = None if isinstance(batches, Iterator) or not hasattr(batches, "__len__") else len(batches)
    total = steps or (length and epochs * length)
    done = epoch = 0
    while steps is not None or epoch < epochs:
        first = done
        for batch in batches() if callable(batches) else batches:
            yield done / total if total else epoch / epochs, batch
            done += 1
            if done == steps:
                return
        if done == first:
            raise ValueError(f"distill: batches must not run out; got none after step {done}")
        epoch, total = epoch + 1, total or epochs * done


def _inputs(
    student: nn.Module, batch: Any, device: torch.device, labelled: bool, number: int
) -> tuple[Arguments, Tensor | None]:
    """The inputs of a batch, and its labels where they are wanted."""
    try:
        if labelled:
            inputs, labels = split_labels(student, batch, "labels")
            args, kwargs = to_device((inputs.args, inputs.kwargs), device)
            labels = labels.to(device)
        else:
            if isinstance(batch, Mapping):  # a network that knows labels would make a loss of its own of them
                batch = {name: x for name, x in batch.items() if name not in ("labels", "label")}
            (args, kwargs), labels = batch_inputs(student, batch, device), None
    except ValueError as error:
        raise ValueError(f"distill: batch {number}: {error}") from None
    found = Arguments.of(kwargs or args, "distill")
    if not len(found):
        raise ValueError(f"distill: batch {number} is empty")
    return found, labels
