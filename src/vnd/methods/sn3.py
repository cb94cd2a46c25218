"""SN³: a student nested network, small and deterministic, distilled from a Bayesian nested teacher."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Dirichlet

import vnd.nn as nested
from vnd.functional import concentration, to_float32
from vnd.methods.method import Batch, Step, Terms, check, register
from vnd.methods.mmd import median_distance, squared_mmd
from vnd.methods.nested import Nested
from vnd.methods.pruning import fitting, leading, prune, tied
from vnd.methods.traits import Traits
from vnd.nn import Shape
from vnd.nn.state import state_of, unwrap
from vnd.nn.trainable_subnet import sliced
from vnd.nn.width import sample_shapes
from vnd.store import load

SHARE = 0.25  # of the groups of every layer that a student has, unless told otherwise


@register(
    "sn3",
    Traits(
        rank=7,
        name="SN³",
        about="A student of a Bayesian nested network: its leading channels, deterministic but for the last layer, "
        "taught the spread of its answers as a Dirichlet.",
        order="learned",
    ),
)
@dataclass(frozen=True)
class SN3(Nested):
    r"""Prune a Bayesian nested network to its leading groups, and teach what is left the spread of its answers.

    $$\mathcal L = \frac1B \sum_b \mathrm{MMD}^2\bigl(\{p_s(x_b)\}_{s \le S},\; \mathrm{Dir}(a(x_b))\bigr)
      + c\, \mathrm{CE}\Bigl(\frac{a}{a_0}, y_b\Bigr) + \frac{κ}{N} \mathrm{KL}(\text{last layer}), \qquad
      |v| = r |\bar v|$$

    with S answers $p_s$ of the teacher at lengths v, a the student's concentrations at lengths $\bar v$, and r the
    ratio of their groups in a layer, each layer having its own: both lengths are drawn together, from the student's
    posterior. Paper: Sec. 3.5.

    The student keeps the means and the order of the teacher's leading groups; variances go, but for the last layer's.
    Its order is the teacher's, coarsened, and learns no more: $P(|\bar v| ≥ j) = P(|v| ≥ ⌈r j⌉)$. Where r does not
    divide the base b, the student's is $⌈b / r⌉$.

    A loss temperature τ (`train.loss_temperature`) is one of the mean alone, $\operatorname{softmax}(τ z)$, at lengths
    of every step.

    Where batches come again (`data.repeat_epochs`), the teacher is asked once for each at the lengths that every step
    has, and its answers are kept: most of a step is the teacher's work, and a student learns for long.

    Args:
        teacher: Folder of the teacher's run.
        checkpoint: Its best or its last network.
        keep: Share of the groups of every layer that the student has, in (0, 1]; at least the teacher's base. 0.25 if
            neither it nor `parameters` is given.
        parameters: In its place, at most so many parameters: the student has the teacher's learned shape of that size,
            another share of each layer. From the smallest network's to below the full one's.
        samples: Draws of the teacher's weights, S.
        student_samples: Draws of the student's Dirichlet.
        bandwidths: Of the kernels, as multiples of the root of the median squared distance between the two clouds.
        divergence: "mmd", or "kl" for plain distillation: the KL of the teacher's mean answer from the student's.
        label_weight: c, on the cross-entropy of the labels.
        full: Every step also at full width, the teacher's and the student's,
        smallest: and at the student's base alone,
        widths: or in its place at these shares of the student's width, each below 1, from the narrowest.
        full_share: Share of the loss at full width; the other lengths share the rest.
        sampled_share: Share of the batch that is run at the lengths that are drawn.
        tie: The teacher's lengths move with the student's; if not, the teacher is always at full width.
        rules: Not used: the student has the teacher's.
    """

    teacher: str = ""
    checkpoint: Literal["best", "last"] = "last"
    keep: float | None = None
    parameters: float | None = None
    samples: int = 6
    student_samples: int = 12
    bandwidths: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    divergence: Literal["mmd", "kl"] = "mmd"
    label_weight: float = 0.0
    full: bool = True
    smallest: bool = True
    widths: tuple[float, ...] = ()
    full_share: float = 1 / 3
    sampled_share: float = 1.0
    tie: bool = True
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    bayesian = True  # its last layer

    def __post_init__(self) -> None:
        check(self)
        if self.keep is not None and self.parameters is not None:
            raise ValueError(f"keep or parameters, not both; got keep {self.keep} and parameters {self.parameters:g}")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise ValueError(f"keep must lie in (0, 1]; got {self.keep}")
        if self.parameters is not None and not 0 < self.parameters < math.inf:
            raise ValueError(f"parameters must be greater than 0 and finite; got {self.parameters}")
        least = 2 if self.divergence == "mmd" else 1
        for name in ("samples", "student_samples"):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least} for {self.divergence}; got {getattr(self, name)}")
        if self.label_weight < 0:
            raise ValueError(f"label_weight must be 0 or more; got {self.label_weight}")
        if list(self.widths) != sorted({share for share in self.widths if 0 < share < 1}):
            raise ValueError(f"widths must lie in (0, 1) and rise; got {list(self.widths)}")
        if not self.bandwidths or not all(0 < m < math.inf for m in self.bandwidths):
            raise ValueError(f"bandwidths must be one or more positive numbers; got {list(self.bandwidths)}")

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Prune the teacher; the network that is given only says what both are."""
        if not self.teacher:
            raise ValueError("sn3: method.teacher must be the folder of a trained run; vnd distill RUN sets it")
        folder = Path(self.teacher) / self.checkpoint
        if not (folder / "network.json").exists():
            raise ValueError(f"sn3: method.teacher must be the folder of a trained run; {folder} holds no network")
        teacher = load(folder)
        kept = self.kept(teacher)
        student = prune(teacher, kept, example)
        teacher.requires_grad_(False)
        state_of(student).lesson = DistillationCache(teacher, kept)
        return student

    def kept(self, teacher: nn.Module) -> Shape:
        """What a student of this teacher has of it: the groups of every unit."""
        if self.parameters is None:
            return leading(teacher, SHARE if self.keep is None else self.keep)
        return fitting(teacher, self.parameters)

    @property
    def num_loss_temperatures(self) -> int:
        """The student at the widths that are trained in every step."""
        return self._narrow + self.full

    @property
    def _narrow(self) -> int:
        return len(self.widths) or int(self.smallest)

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """The logarithms of their means."""
        root = unwrap(model)
        return [_mean(_spread(root, root, _on(shape, images), images)).log() for shape in self._fixed(root)]

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Draw the lengths, and ask the teacher."""
        root, images = unwrap(model), batch[0]
        lesson = state_of(root).lesson
        if lesson is None:
            raise ValueError("sn3: a student that was loaded has no teacher; train it by vnd train --resume RUN")
        lesson.move(images.device, compiled=model is not root)
        drawn = sample_shapes(root, 1, seed=int(torch.randint(2**62, ())))[0]
        thin = max(1, min(round(1 / self.sampled_share), len(images) // 2))
        lesson.parts, asked = [], dict[Shape, Tensor]()
        for shape, every in [*((shape, 1) for shape in self._fixed(root)), (drawn, thin)]:
            lengths = self._taught_at(lesson, shape)
            if lengths in asked:  # of the whole batch
                taught = asked[lengths][:, ::every]
            else:
                again = shape is not drawn or not self.tie
                taught = asked[lengths] = self._answers(lesson, lengths, images[::every], again, step.batch)
            lesson.parts.append(DistillationBatch(_on(shape, images), every, lesson.placed(len(lesson.parts), taught)))

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Weighted mean over the lengths of this step, and the KL of the last layer."""
        root = unwrap(model)
        parts = state_of(root).lesson.parts
        rest = (1 - self.full * self.full_share) / (len(parts) - self.full)
        shares = [rest] * self._narrow + [self.full_share] * self.full + [rest]
        logs = (
            [None] * len(parts)
            if step.log_loss_temperature is None
            else [*step.log_loss_temperature, step.log_loss_temperature.mean()]
        )
        losses = []
        for part, share, log_loss_temperature in zip(parts, shares, logs, strict=True):
            images, labels = (x[:: part.every] for x in batch)
            own = _spread(model, root, part.lengths, images, log_loss_temperature)
            log_mean = _mean(own).log()
            nll = nn.functional.cross_entropy(log_mean, labels)
            losses.append(share * torch.stack([self._distance(part.taught, own, log_mean), nll]))
        distance, nll = torch.stack(losses).sum(0)
        divergence = nested.kl(root)
        total = distance + self.label_weight * nll + step.kl_weight / step.num_data * divergence
        return Terms(total, {"distance": distance.detach(), "nll": nll.detach(), "kl": divergence.detach()})

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> nested.Prediction:
        """The mean of the Dirichlet, in closed form; over draws of the last layer, if there are to be any."""
        return nested.predict(network, x, samples=samples, link="dirichlet")

    def _distance(self, taught: Tensor, own: Tensor, log_mean: Tensor) -> Tensor:
        """Between the teacher's answers (samples, batch, classes) and the student's concentrations (batch, classes)."""
        if self.divergence == "kl":
            target = taught.mean(0)
            apart: Tensor = (target.xlogy(target) - target * log_mean).sum(1).mean()
            return apart
        drawn = Dirichlet(own, validate_args=False).rsample((self.student_samples,))
        return squared_mmd(taught, drawn, self.bandwidths, median_distance(taught, drawn, across=True)).mean()

    def _fixed(self, student: nn.Module) -> list[Shape]:
        """The lengths of every step: the narrow ones, and all it has."""
        units = state_of(student).units
        smallest = Shape({name: max(1, unit.base) for name, unit in units.items()})
        full = Shape({name: unit.num_groups for name, unit in units.items()})
        narrow = [nested.shape(student, fraction=share) for share in self.widths] or [smallest] * self.smallest
        return narrow + [full] * self.full

    def _taught_at(self, lesson: DistillationCache, own: Shape) -> Shape:
        """The teacher's lengths for the student's."""
        units = state_of(lesson.teacher).units
        if not self.tie:
            return Shape({name: unit.num_groups for name, unit in units.items()})
        known = {name: own.get(name, kept) for name, kept in lesson.kept.items()}  # too narrow: all
        return Shape({name: tied(known[name], unit, lesson.kept[name]) for name, unit in units.items()})

    @torch.no_grad()
    def _answers(
        self, lesson: DistillationCache, lengths: Shape, images: Tensor, again: bool, batch: int | None = None
    ) -> Tensor:
        """The teacher's answers at some lengths, which may be asked for again: (samples, batch, classes).

        Those to a batch that comes again are drawn by its number, and nothing else is: a run that goes on, and has kept
        none, has the same.
        """
        if batch is None or not again:
            return self._asked(lesson.at(lengths, again), images)
        if (batch, lengths) not in lesson.kept_answers:
            with torch.random.fork_rng([images.device] if images.is_cuda else []):
                torch.manual_seed(batch)
                lesson.kept_answers[batch, lengths] = self._asked(lesson.at(lengths, again), images)
        return lesson.kept_answers[batch, lengths]

    def _asked(self, teacher: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        return torch.stack([teacher(images).float().softmax(1) for _ in range(self.samples)])


@dataclass(frozen=True)
class DistillationBatch:
    """Lengths of this step, by unit; every so many-th image of the batch is run at them. And what the teacher said."""

    lengths: dict[str, Tensor]
    every: int
    taught: Tensor


@dataclass
class DistillationCache:
    """What a student in training is taught by: the teacher, what it has of it, and what was answered in this step."""

    teacher: nn.Module
    kept: Shape
    kept_answers: dict[tuple[int, Shape], Tensor] = field(default_factory=dict)
    parts: list[DistillationBatch] = field(default_factory=list)
    device: torch.device | None = None
    slices: dict[Shape, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    places: dict[int, Tensor] = field(default_factory=dict)
    compiled: bool = False

    def __post_init__(self) -> None:
        self.asked: Callable[[Tensor], Tensor] = self.teacher

    def at(self, lengths: Shape, again: bool) -> Callable[[Tensor], Tensor]:
        """The teacher at some lengths; where they are asked for again, and can be, cut to them."""
        units = state_of(self.teacher).units
        for name, unit in units.items():
            unit.fixed_groups.fill_(lengths[name])
        if not again or all(lengths[name] == unit.num_groups for name, unit in units.items()):
            return self.asked
        if lengths not in self.slices:
            cut = sliced(self.teacher, lengths)
            self.slices[lengths] = self.asked if cut is None else self._compiled(cut.__call__)
        return self.slices[lengths]

    def placed(self, number: int, taught: Tensor) -> Tensor:
        """The answers of one of a step's parts, always in the same place of memory.

        Where the backward pass needs them ("kl" of up to four draws), its CUDA graph takes them for weights, which do
        not move: torch records it again for every new address. And laid out alike, the step is compiled once.
        """
        place = self.places.get(number)
        if place is None or place.shape != taught.shape or place.device != taught.device:
            place = self.places[number] = torch.empty_like(taught, memory_format=torch.contiguous_format)
        return place.copy_(taught)

    def _compiled(self, network: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """As the student's step is: a pass of so small a batch is mostly launches."""
        if not self.compiled:
            return network
        mode = "reduce-overhead" if self.device is not None and self.device.type == "cuda" else None
        compiled: Callable[[Tensor], Tensor] = torch.compile(network, dynamic=False, mode=mode)
        return compiled

    def move(self, device: torch.device, compiled: bool = False) -> None:
        """Bring the teacher to the student's device, once; it answers by statistics of the batch, as in training."""
        if self.device != device:
            layout = torch.channels_last if device.type == "cuda" else torch.preserve_format
            self.teacher.to(device, memory_format=layout)  # type: ignore[call-overload]
            self.teacher.train()
            self.device, self.compiled = device, compiled
            self.asked = self._compiled(self.teacher)


def _on(shape: Shape, images: Tensor) -> dict[str, Tensor]:
    """Lengths as tensors where the images are, so that a compiled step is compiled once for all of them."""
    return {name: torch.tensor(groups, device=images.device) for name, groups in shape.items()}


def _spread(
    model: nn.Module,
    root: nn.Module,
    lengths: dict[str, Tensor],
    images: Tensor,
    log_loss_temperature: Tensor | None = None,
) -> Tensor:
    """The student's concentrations at some lengths, (batch, classes), scaled where a loss temperature is given."""
    units = state_of(root).units
    for name, unit in units.items():
        unit.fixed_groups.copy_(lengths[name])
    outputs = model(images)
    for unit in units.values():
        unit.fixed_groups.fill_(-1)
    return concentration(
        outputs if log_loss_temperature is None else scale_mean(to_float32(outputs), log_loss_temperature)
    )


def scale_mean(outputs: Tensor, log_loss_temperature: Tensor) -> Tensor:
    r"""Outputs (batch, classes) of the mean $\operatorname{softmax}(τ z)$ and the total concentration $\sum_c e^{z_c}$.

    A loss temperature is about how sure the mean is. Of the spread the teacher alone decides: were all of z multiplied,
    a loss temperature below 1 would ask for outputs that grow without end.
    """
    return (log_loss_temperature.exp() * outputs).log_softmax(1) + outputs.logsumexp(1, keepdim=True)


def _mean(own: Tensor) -> Tensor:
    return own / own.sum(1, keepdim=True)
