"""SN³: a student nested network, small and deterministic, distilled from a Bayesian nested teacher."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Dirichlet

import vnd.nn as nested
from vnd.functional import concentration, to_float32
from vnd.methods.base import Batch, Step, Terms, Traits, refuse_unless, register
from vnd.methods.nested import Nested, TrainableSubnet, can_be_trained_small, ends
from vnd.nn import BayesLayer, OrderingUnit, Shape
from vnd.nn.ordering import pin, pinned
from vnd.nn.state import state_of, unwrap
from vnd.nn.width import sample_shapes
from vnd.serialization import load


def squared_mmd(
    x: Tensor, y: Tensor, bandwidths: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0), scale: Tensor | None = None
) -> Tensor:
    r"""Unbiased estimate of the squared maximum mean discrepancy between two distributions, from points of each.

    $$\frac{1}{S (S - 1)} \sum_{i \ne j} k(x_i, x_j) + \frac{1}{T (T - 1)} \sum_{i \ne j} k(y_i, y_j)
      - \frac{2}{S T} \sum_{i, j} k(x_i, y_j), \qquad
      k(a, b) = \frac{1}{M} \sum_m \exp\Bigl(-\frac{\lVert a - b \rVert^2}{2 m^2\, \text{scale}}\Bigr)$$

    No point is paired with itself, so the mean over draws is MMD² itself, 0 for equal distributions; a single estimate
    may be negative, and no root is taken (Gretton et al., 2012, Lemma 6). This is what SN³ lowers between the answers
    of a teacher and those of a Dirichlet (paper, Sec. 3.5; Cui et al., 2020).

    Args:
        x: S ≥ 2 points for each example, (S, ..., C).
        y: T ≥ 2 points for each, (T, ..., C).
        bandwidths: The lengths m, in units of the root of the scale.
        scale: A squared length above 0, of shape (...) or one for all; None for `median_distance`.

    Note: With the scale None the estimate is unbiased for a kernel that was chosen from the same points.

    >>> squared_mmd(torch.zeros(2, 1), torch.ones(2, 1), bandwidths=[1.0], scale=torch.tensor(0.5))
    tensor(1.2642)
    """
    if not bandwidths or not all(0 < m < math.inf for m in bandwidths):
        raise ValueError(f"squared_mmd: bandwidths must be one or more positive numbers; got {list(bandwidths)}")
    distances = _squared_distances(x, y, "squared_mmd")
    if scale is None:
        scale = _median(distances)
    elif scale.ndim and scale.shape != x.shape[1:-1]:
        raise ValueError(
            f"squared_mmd: scale must have the shape {tuple(x.shape[1:-1])} of the examples, or be one number; "
            f"got shape {tuple(scale.shape)}"
        )
    exponent = distances / (-2 * scale[..., None, None])
    kernel = torch.stack([(exponent / m**2).exp() for m in bandwidths]).mean(0)
    return (kernel * _weights(len(x), len(y), kernel)).sum((-2, -1))


def median_distance(x: Tensor, y: Tensor, floor: float = 1e-4, across: bool = False) -> Tensor:
    r"""The median heuristic: the middle of all squared distances between different points, those of x and y pooled.

    $$\max\bigl(\text{floor},\ \operatorname{median}_{i < j} \lVert p_i - p_j \rVert^2\bigr),
      \qquad p = (x_1, \dots, x_S, y_1, \dots, y_T)$$

    Of an even number of pairs, the mean of the middle two. No gradient passes through it.

    Args:
        x: As in `squared_mmd`.
        y: As in `squared_mmd`.
        floor: The least squared length: points that all but coincide, as the answers of a sure teacher do, are not
            told apart by less.
        across: Only pairs of a point of x and one of y. Where one cloud is tight, has more points and is far from the
            other, the pooled median is the distance within it, and no kernel reaches across: nothing pulls.

    >>> median_distance(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [7.0]]))  # of 1, 4, 9, 16, 36, 49
    tensor(12.5000)
    """
    distances = _squared_distances(x, y, "median_distance")
    return _middle(distances[..., : len(x), len(x) :].flatten(-2), floor) if across else _median(distances, floor)


def _squared_distances(x: Tensor, y: Tensor, owner: str) -> Tensor:
    r"""Squared distances between all points, those of x first, (..., S + T, S + T), float32 or wider.

    $$\lVert p_i - p_j \rVert^2 = \lVert p_i \rVert^2 + \lVert p_j \rVert^2 - 2\, p_i \cdot p_j$$

    The differences themselves would be C times as many numbers, kept for the gradient: more than 1 GB for 32 + 32
    points of 512 examples in 200 classes. But products cancel: those of points close to one vertex of the simplex are
    all about 1, and in float32 distances below some 5e-4 are lost. So they are of the points less their mean, and in
    float64, which leaves an error of about 1e-16 in a square and which neither autocast nor TF32 touches.
    """
    if x.ndim < 2 or x.shape[1:] != y.shape[1:] or len(x) < 2 or len(y) < 2:
        raise ValueError(
            f"{owner}: x and y must be (S, ..., C) and (T, ..., C) with S and T at least 2; "
            f"got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    points = torch.cat([x.double(), y.double()]).movedim(0, -2)
    points = points - points.detach().mean(-2, keepdim=True)  # distances do not depend on it: no gradient is lost
    products = points @ points.mT
    norms = products.diagonal(dim1=-2, dim2=-1)
    squares = norms[..., :, None] + norms[..., None, :] - 2 * products
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return squares.clamp(min=0).to(dtype)


def _median(distances: Tensor, floor: float = 1e-4) -> Tensor:
    """The median above the diagonal."""
    count = distances.size(-1)
    rows, columns = torch.triu_indices(count, count, 1, device=distances.device)
    return _middle(distances[..., rows, columns], floor)


def _middle(distances: Tensor, floor: float) -> Tensor:
    """The median of the last dimension, as a constant; torch's own would be the lower of the middle two."""
    ordered = distances.detach().sort(-1).values
    pairs = ordered.size(-1)
    return ((ordered[..., (pairs - 1) // 2] + ordered[..., pairs // 2]) / 2).clamp(min=floor)


def _weights(s: int, t: int, like: Tensor) -> Tensor:
    """Weights of pairs in the estimate, (S + T, S + T): 0 where a point meets itself."""
    within = torch.block_diag(like.new_full((s, s), 1 / (s * (s - 1))), like.new_full((t, t), 1 / (t * (t - 1))))
    across = torch.block_diag(like.new_ones(s, s), like.new_ones(t, t)) - 1  # 0 within, −1 across
    weights: Tensor = (within + across / (s * t)).fill_diagonal_(0)
    return weights


def leading(teacher: nn.Module, share: float) -> Shape:
    """The same share of every unit's groups, and no less than its base, which has no order."""
    units = state_of(teacher).units.items()
    return Shape({name: max(1, unit.base, math.ceil(share * unit.num_groups - 1e-9)) for name, unit in units})


def fitting(teacher: nn.Module, parameters: float) -> Shape:
    """The learned shape of at most so many parameters: the groups that are kept most often, whatever their layer."""
    least, full = ends(teacher)
    if not least <= parameters < full:
        raise ValueError(f"sn3: parameters must be from {least:,} to below {full:,} here; got {parameters:,.0f}")
    shape = nested.shape(teacher, parameters=parameters)
    if empty := [name for name, groups in shape.items() if not groups]:
        raise ValueError(f"sn3: parameters: {parameters:,.0f} leave nothing of {empty[0]}; give more of them, or keep")
    return shape


def tied(groups: int, unit: OrderingUnit, kept: int) -> int:
    r"""The teacher's length for the student's, $|v| = ⌈r |\bar v|⌉$, base included, if so many of its groups are kept.

    Paper: 16 groups of the teacher's for 4 of the student's, r = 4.
    """
    return min(unit.num_groups, math.ceil(groups * unit.num_groups / kept - 1e-9))


def coarsened(unit: OrderingUnit, kept: int) -> tuple[int, Tensor]:
    r"""Base and keep logits of the student's unit: $\bar S_j = S_{⌈r j⌉}$ for the probability that a group is kept.

    Note: The paper copies the order of the leading groups: the student would be full whenever the teacher has as many
        groups, most of the time.
    """
    base = min(kept, math.ceil(unit.base * kept / unit.num_groups - 1e-9))
    places = torch.tensor([tied(j, unit, kept) - 1 for j in range(1, kept + 1)])
    log_survival = unit.survival().detach().double().cpu().log()[places]
    log_survival[:base] = 0.0  # always kept, also where they stand for groups of the teacher's that are not
    steps = torch.diff(log_survival, prepend=torch.zeros(1, dtype=torch.float64)).clamp(max=-1e-12)[base:]
    return base, (steps - torch.log(-torch.expm1(steps))).clamp(-30, 30).float()


@torch.no_grad()
def prune(teacher: nn.Module, keep: Shape | float, example: Tensor) -> nn.Module:
    """The leading groups of a nested network as a smaller nested one: means and order, and the last layer's variances.

    `keep` has the groups of every unit, or is the share of them.
    """
    state = state_of(teacher)
    if state.own_units:
        raise ValueError("sn3: a teacher whose input rows or single weights or bits are ordered cannot be pruned")
    if state.stages:
        raise ValueError("sn3: a teacher whose blocks are ordered (depth=True) cannot be pruned")
    shape = keep if isinstance(keep, Shape) else leading(teacher, keep)
    last = [name for name, module in unwrap(teacher).named_modules() if isinstance(module, BayesLayer)][-1]
    rules = {pattern: replace(rule, prior=None, bayesian=None) for pattern, rule in state.arguments["rules"].items()}
    orders = {name: coarsened(unit, shape[name]) for name, unit in state.units.items()}
    for name, (base, _) in orders.items():
        own = nested.Rule(num_groups=shape[name], base=base)
        rules[name] = own.over(rules.pop(name, nested.Rule()))
    rules[last] = nested.Rule(bayesian=True).over(rules.pop(last, nested.Rule()))
    options = {
        k: v for k, v in state.arguments.items() if k not in ("rules", "prior", "bayesian", "num_groups", "base")
    }
    options |= {"rescale": "none", "gradient": "survival"}  # factors are in the weights by now
    options["link"] = "dirichlet"
    student = nested.to_nested(
        nested.extract(teacher, shape, warn=False), example, bayesian=False, rules=rules, **options
    )
    for name, unit in state_of(student).units.items():
        unit.keep_logits.copy_(orders[name][1])
        unit.keep_logits.requires_grad_(False)
    theirs: Any = nested.extract(teacher, shape, "posterior", warn=False).get_submodule(last)
    ours: Any = student.get_submodule(last)
    for name in ("log_alpha", "log_variance"):
        if getattr(theirs, name, None) is not None and getattr(ours, name, None) is not None:
            getattr(ours, name).copy_(getattr(theirs, name))
    return student


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
        super().__post_init__()
        keep, parameters, widths = self.keep, self.parameters, self.widths
        if keep is not None and parameters is not None:
            raise ValueError(f"keep or parameters, not both; got keep {keep} and parameters {parameters:g}")
        refuse_unless(keep is None or 0 < keep <= 1, "keep", "lie in (0, 1]", keep)
        fits = parameters is None or 0 < parameters < math.inf
        refuse_unless(fits, "parameters", "be greater than 0 and finite", parameters)
        least = 2 if self.divergence == "mmd" else 1
        for name in ("samples", "student_samples"):
            count = getattr(self, name)
            refuse_unless(count >= least, name, f"be at least {least} for {self.divergence}", count)
        rising = sorted({share for share in widths if 0 < share < 1})
        refuse_unless(list(widths) == rising, "widths", "lie in (0, 1) and rise", tuple(widths))

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
        object.__setattr__(student, "_vnd_distillation", DistillationCache(teacher, kept))
        return student

    def kept(self, teacher: nn.Module) -> Shape:
        """Groups of every unit that a student of this teacher has."""
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
        cache = distillation_of(root)
        cache.move(images.device, compiled=model is not root)
        drawn = sample_shapes(root, 1, seed=int(torch.randint(2**62, ())))[0]
        thin = max(1, min(round(1 / self.sampled_share), len(images) // 2))
        cache.parts, asked = [], dict[Shape, Tensor]()
        for shape, every in [*((shape, 1) for shape in self._fixed(root)), (drawn, thin)]:
            lengths = self._taught_at(cache, shape)
            if lengths in asked:  # of the whole batch
                taught = asked[lengths][:, ::every]
            else:
                again = shape is not drawn or not self.tie
                taught = asked[lengths] = self._answers(cache, lengths, images[::every], again, step.batch)
            cache.parts.append(DistillationBatch(_on(shape, images), every, cache.placed(len(cache.parts), taught)))

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Weighted mean over the lengths of this step, and the KL of the last layer."""
        root = unwrap(model)
        parts = distillation_of(root).parts
        rest = (1 - self.full * self.full_share) / (len(parts) - self.full)
        shares = [rest] * self._narrow + [self.full_share] * self.full + [rest]
        log = step.log_loss_temperature
        logs = [None] * len(parts) if log is None else [*log, log.mean()]
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
        narrow = [nested.shape(student, fraction=share) for share in self.widths]
        return (narrow or [leading(student, 0.0)] * self.smallest) + [state_of(student).full] * self.full

    def _taught_at(self, cache: DistillationCache, own: Shape) -> Shape:
        """The teacher's lengths for the student's."""
        state = state_of(cache.teacher)
        if not self.tie:
            return state.full
        known = {name: own.get(name, kept) for name, kept in cache.kept.items()}  # too narrow: all
        return Shape({name: tied(known[name], unit, cache.kept[name]) for name, unit in state.units.items()})

    @torch.no_grad()
    def _answers(
        self, cache: DistillationCache, lengths: Shape, images: Tensor, again: bool, batch: int | None = None
    ) -> Tensor:
        """The teacher's answers at some lengths, which may be asked for again: (samples, batch, classes).

        Those to a batch that comes again are drawn by its number, and nothing else is: a run that goes on, and has kept
        none, has the same.
        """
        if batch is None or not again:
            return self._asked(cache.at(lengths, again), images)
        if (batch, lengths) not in cache.kept_answers:
            with torch.random.fork_rng([images.device] if images.is_cuda else []):
                torch.manual_seed(batch)
                cache.kept_answers[batch, lengths] = self._asked(cache.at(lengths, again), images)
        return cache.kept_answers[batch, lengths]

    def _asked(self, teacher: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        return torch.stack([teacher(images).float().softmax(1) for _ in range(self.samples)])


@dataclass(frozen=True)
class DistillationBatch:
    """Lengths of this step, by unit; every so many-th image of the batch is run at them. And what the teacher said."""

    lengths: dict[str, Tensor]
    every: int
    taught: Tensor


@dataclass(eq=False)
class DistillationCache:
    """Teacher of a student in training: the network, the groups that are kept, and its answers in this step.

    It hangs on the student but is no part of it: a copy of the student has a copy of the teacher, which answers anew.
    """

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

    def __reduce__(self) -> tuple[type[DistillationCache], tuple[nn.Module, Shape]]:
        return DistillationCache, (self.teacher, self.kept)

    def at(self, lengths: Shape, again: bool) -> Callable[[Tensor], Tensor]:
        """The teacher at some lengths; where they are asked for again, and can be, cut to them."""
        units = state_of(self.teacher).units
        pin([*units.values()], [lengths[name] for name in units])
        if not again or all(lengths[name] == unit.num_groups for name, unit in units.items()):
            return self.asked
        if lengths not in self.slices:
            small = can_be_trained_small(self.teacher)
            subnet = TrainableSubnet(self.teacher, lengths) if small else None
            self.slices[lengths] = self.asked if subnet is None else self._compiled(subnet.__call__)
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


def distillation_of(student: nn.Module) -> DistillationCache:
    """Find what a student is taught by; a ValueError for one without a teacher."""
    cache = getattr(student, "_vnd_distillation", None)
    if not isinstance(cache, DistillationCache):
        raise ValueError("sn3: a student that was loaded has no teacher; train it by vnd train --resume RUN")
    return cache


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
    with pinned([*units.values()], [lengths[name] for name in units]):
        outputs = model(images)
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
