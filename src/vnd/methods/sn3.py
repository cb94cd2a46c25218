r"""SN³: a student nested network, small and deterministic, distilled from a Bayesian nested teacher.

`vnd.distill` is all of it in one call, the method `SN3` what recipes train. A loop of one's own is made of the parts,
in this order: `prune` makes the student, `sample_lengths` draws its lengths $\bar v$, `tied_lengths` gives the
teacher's, and `dirichlet_mmd` is the distance of the teacher's answers from the student's Dirichlet, whose
concentration is `vnd.functional.concentration` of its outputs.

>>> import torch, vnd
>>> plain = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
>>> x, teacher = torch.randn(8, 2), vnd.to_nested(plain, torch.zeros(1, 2), num_groups=8).train()
>>> student = prune(teacher, keep=0.5).train()
>>> lengths = sample_lengths(student)
>>> with torch.no_grad(), vnd.width(teacher, tied_lengths(teacher, student, lengths)):
...     probs = torch.stack([teacher(x).softmax(-1) for _ in range(6)])
>>> with vnd.width(student, lengths):
...     loss = dirichlet_mmd(probs, concentration(student(x))).mean() + 1e-7 * vnd.kl(student)
>>> loss.backward()
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Dirichlet

import vnd.nn as nested
from vnd.functional import concentration, to_float32
from vnd.methods.base import Step, Terms, Traits, refuse_unless, register
from vnd.methods.mmd import BANDWIDTHS, median_distance, squared_mmd
from vnd.methods.nested import Nested, TrainableSubnet, can_be_trained_small, ends
from vnd.models import MODELS
from vnd.nn import BayesLayer, OrderingUnit, Shape
from vnd.nn.arguments import Arguments, Output, class_dim, pick_tensor
from vnd.nn.ordering import pin, pinned
from vnd.nn.state import arguments_of, nested_part, state_of, unwrap
from vnd.nn.width import as_shape, sample_shapes
from vnd.serialization import load

SHARE = 0.25  # of the groups of every layer that a student has, unless told otherwise
Inputs = Tensor | Arguments  # of a batch


# The student


@torch.no_grad()
def prune(
    teacher: nn.Module,
    keep: Shape | float = SHARE,
    example: Tensor | tuple[Any, ...] | dict[str, Any] | None = None,
    output: Output | None = None,
) -> nn.Module:
    r"""Cut a student out of a nested network: its leading groups, nested, deterministic but for its last layer.

    The student keeps the means and the order of the teacher's leading groups, coarsened,
    $P(|\bar v| ≥ j) = P(|v| ≥ ⌈r j⌉)$ with r the ratio of the numbers of groups. Variances go, but for those of the
    last Bayesian layer that the output depends on; of a teacher of point weights the student has none either. Its order
    learns no more. Paper: Sec. 3.5, the first step.

    Args:
        teacher: A nested network. Ordered blocks all stay.
        keep: The share of every unit's groups, in (0, 1], at least the unit's base; or the groups of every unit, such
            as `vnd.shape(teacher, parameters=30_000)`.
        example: An example of the input; None for that of the teacher's conversion.
        output: The tensor that counts, where the network gives several, as in `vnd.predict`; None for what the teacher
            was converted with.

    >>> import vnd
    >>> plain = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> teacher = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=8)
    >>> student = prune(teacher, keep=0.5)
    >>> type(student[0]).__name__, student[0].out_features, student[2].bayesian
    ('Linear', 8, True)
    """
    state, shape = state_of(teacher), _shape_of(teacher, keep)
    example = (state.example[1] or state.example[0]) if example is None else example
    small = nested.extract(teacher, shape, "posterior", warn=False)
    output = state.arguments["output"] if output is None else output
    last = _last_bayesian(small, example, output)
    rules = {pattern: replace(rule, prior=None, bayesian=None) for pattern, rule in state.arguments["rules"].items()}
    for name, unit in state.units.items():
        if name not in state.stages:
            own = nested.Rule(num_groups=shape[name], base=coarsened(unit, shape[name])[0])
            rules[name] = own.over(rules.pop(name, nested.Rule()))
    if last is not None:
        rules[last] = nested.Rule(bayesian=True).over(rules.pop(last, nested.Rule()))
    options = {
        k: v for k, v in state.arguments.items() if k not in ("rules", "prior", "bayesian", "num_groups", "base")
    }
    options |= {"rescale": "none", "gradient": "survival"}  # factors are in the weights by now
    options["link"] = "dirichlet"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="to_nested: ")  # said when the teacher was made
        student = nested.to_nested(
            nested.extract(teacher, shape, warn=False), example, bayesian=False, rules=rules, **options
        )
    student.requires_grad_(True)  # also of a teacher that is frozen
    for name, unit in state_of(student).units.items():
        unit.keep_logits.copy_(coarsened(state.units[name], unit.num_groups, unit.base)[1])
        unit.keep_logits.requires_grad_(False)
    for name in ("log_alpha", "log_variance") if last is not None else ():
        theirs, ours = (getattr(net.get_submodule(str(last)), name, None) for net in (small, student))
        if theirs is not None and ours is not None:
            ours.copy_(theirs)
    return student


def _shape_of(teacher: nn.Module, keep: Shape | float) -> Shape:
    """Groups of every unit that a student has; a ValueError where a teacher cannot be pruned to them."""
    state = state_of(teacher)
    if nested_part(teacher) is not unwrap(teacher):
        kind = type(unwrap(teacher)).__name__
        raise ValueError(f"sn3: the teacher must be a nested network itself; got a {kind} that holds one")
    if state.own_units:
        raise ValueError("sn3: a teacher whose input rows, single weights or bits are ordered cannot be pruned")
    modules = dict(unwrap(teacher).named_modules())
    if second := next((name for name in state.units if name not in modules and name not in state.stages), None):
        layer = second.partition("[")[0]
        raise ValueError(f"sn3: {layer} has two units, and a student's has one; convert it with nest=False in a rule")
    if not isinstance(keep, Shape):
        if isinstance(keep, bool) or not isinstance(keep, float | int) or not 0 < keep <= 1:
            raise ValueError(f"sn3: keep must be a Shape or lie in (0, 1]; got {keep!r}")
        return leading(teacher, keep)
    shape = as_shape(teacher, keep)
    if empty := next((name for name, groups in shape.items() if not groups), None):
        raise ValueError(f"sn3: keep must leave at least one group of each unit; got none of {empty}")
    if cut := next((name for name in state.stages if shape[name] < state.units[name].num_groups), None):
        raise ValueError(f"sn3: keep must leave all {state.units[cut].num_groups} blocks of {cut}; got {shape[cut]}")
    return shape


def _last_bayesian(net: nn.Module, example: Any, output: Output | None) -> str | None:
    """Name of the last Bayesian layer to run of those that the output depends on; None where there is none."""
    reached: list[tuple[str, Tensor]] = []

    def follow(name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            out = out if out.requires_grad else out.detach().requires_grad_()
            reached.append((name, out))
            return out

        return hook

    layers = [(name, m) for name, m in net.named_modules() if isinstance(m, BayesLayer) and m.bayesian]
    handles = [module.register_forward_hook(follow(name)) for name, module in layers]
    args, kwargs = arguments_of(example)
    training = net.training
    try:
        with torch.enable_grad():
            total = pick_tensor(net.eval()(*args, **kwargs), output, "sn3").float().sum()
    finally:
        net.train(training)
        for handle in handles:
            handle.remove()
    if not reached or not total.requires_grad:
        return None
    grads = torch.autograd.grad(total, [x for _, x in reached], allow_unused=True)
    return next((name for (name, _), grad in zip(reached[::-1], grads[::-1], strict=True) if grad is not None), None)


def leading(teacher: nn.Module, share: float) -> Shape:
    """The same share of every unit's groups, and no less than its base, which has no order; all of ordered blocks."""
    state = state_of(teacher)
    return Shape(
        {
            name: unit.num_groups
            if name in state.stages and share
            else max(1, unit.base, math.ceil(share * unit.num_groups - 1e-9))
            for name, unit in state.units.items()
        }
    )


def fitting(teacher: nn.Module, parameters: float) -> Shape:
    """The learned shape of at most so many parameters: the groups that are kept most often, whatever their layer."""
    least, full = ends(teacher)
    if not least <= parameters < full:
        raise ValueError(f"sn3: parameters must be from {least:,} to below {full:,} here; got {parameters:,.0f}")
    shape = nested.shape(teacher, parameters=parameters)
    if empty := [name for name, groups in shape.items() if not groups]:
        raise ValueError(f"sn3: parameters: {parameters:,.0f} leave nothing of {empty[0]}; give more of them, or keep")
    return shape


def coarsened(unit: OrderingUnit, kept: int, base: int | None = None) -> tuple[int, Tensor]:
    r"""Base and keep logits of the student's unit: $\bar S_j = S_{⌈r j⌉}$ for the probability that a group is kept.

    Note: The paper copies the order of the leading groups: the student would be full whenever the teacher has as many
        groups, most of the time.
    """
    base = min(kept, math.ceil(unit.base * kept / unit.num_groups - 1e-9)) if base is None else base
    places = torch.tensor([tied(j, unit, kept) - 1 for j in range(1, kept + 1)])
    log_survival = unit.survival().detach().double().cpu().log()[places]
    log_survival[:base] = 0.0  # always kept, also where they stand for groups of the teacher's that are not
    steps = torch.diff(log_survival, prepend=torch.zeros(1, dtype=torch.float64)).clamp(max=-1e-12)[base:]
    return base, (steps - torch.log(-torch.expm1(steps))).clamp(-30, 30).float()


# Lengths, and the distance


def tied(groups: int, unit: OrderingUnit, kept: int) -> int:
    r"""The teacher's length for the student's, $|v| = ⌈r |\bar v|⌉$, base included, if so many of its groups are kept.

    Paper: 16 groups of the teacher's for 4 of the student's, r = 4.
    """
    return min(unit.num_groups, math.ceil(groups * unit.num_groups / kept - 1e-9))


def tied_lengths(teacher: nn.Module, student: nn.Module, lengths: Shape) -> Shape:
    r"""The teacher's lengths for the student's, $|v| = ⌈r |\bar v|⌉$, r being the ratio of their groups in a layer.

    Units that the student has not, as heads of which one is left, are full in the teacher. Paper: Sec. 3.5, Eq. (21).

    >>> import vnd
    >>> plain = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> teacher = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=16)
    >>> tied_lengths(teacher, prune(teacher, keep=0.25), Shape({"0": 3}))
    Shape({'0': 12})
    """
    own = state_of(student).units
    return Shape(
        {
            name: tied(lengths[name], unit, own[name].num_groups) if name in own else unit.num_groups
            for name, unit in state_of(teacher).units.items()
        }
    )


def sample_lengths(student: nn.Module) -> Shape:
    r"""Draw the lengths of all units of a nested network from its posterior, $\bar v \sim q(\bar v)$, as training does.

    The draw is one of torch's global generator.

    >>> import vnd
    >>> plain = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> sorted(sample_lengths(vnd.to_nested(plain, torch.zeros(1, 2))))
    ['0']
    """
    return sample_shapes(student, 1, seed=int(torch.randint(2**62, ())))[0]


def dirichlet_mmd(
    probs: Tensor, concentration: Tensor, samples: int = 12, bandwidths: Sequence[float] = BANDWIDTHS
) -> Tensor:
    r"""Estimate $\mathrm{MMD}^2(\{p_s\}_{s \le S}, \mathrm{Dir}(a))$ of each example, (...), with a gradient in a.

    The scale of the kernels is the median squared distance between the two clouds, a constant. Paper: Eq. (20).

    Args:
        probs: S ≥ 2 answers of the teacher, (S, ..., C).
        concentration: a, the student's, (..., C).
        samples: Draws of the Dirichlet.
        bandwidths: Of the kernels, as multiples of the root of the scale.

    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.85, 0.15]])[:, None]
    >>> _ = torch.manual_seed(0)
    >>> near, far = (dirichlet_mmd(probs, torch.tensor([a]), 100) for a in ([85.0, 15.0], [15.0, 85.0]))
    >>> bool(near < far)
    True
    """
    points = Dirichlet(concentration, validate_args=False).rsample((samples,))
    return squared_mmd(probs, points, bandwidths, median_distance(probs, points, across=True))


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
    bandwidths: tuple[float, ...] = BANDWIDTHS
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
        own = type(network) not in MODELS.values()  # which the teacher's folder does not say how to build
        teacher = load(folder, network if own else None)
        kept = self.kept(teacher)
        student = prune(teacher, kept, example)
        teach(student, DistillationCache(teacher.requires_grad_(False)))
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
        found = [_spread(root, root, _on(shape, images.device), images, Reading()) for shape in self._fixed(root)]
        return [_mean(own).log() for own in found]

    def prepare(self, model: nn.Module, batch: Any, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Draw the lengths, and ask the teacher."""
        root, inputs = unwrap(model), batch[0]
        cache, device = distillation_of(root), _lead(inputs).device
        cache.move(device, compiled=model is not root)
        drawn = sample_lengths(root)
        thin = max(1, min(round(1 / self.sampled_share), len(inputs) // 2))
        cache.parts, asked = [], dict[Shape, Tensor]()
        for shape, every in [*((shape, 1) for shape in self._fixed(root)), (drawn, thin)]:
            lengths = tied_lengths(cache.teacher, root, shape) if self.tie else state_of(cache.teacher).full
            if lengths in asked:  # of the whole batch
                taught = asked[lengths][:, ::every]
            else:
                again = shape is not drawn or not self.tie
                taught = asked[lengths] = self._answers(cache, lengths, _thinned(inputs, every), again, step.batch)
            cache.parts.append(DistillationBatch(_on(shape, device), every, cache.placed(len(cache.parts), taught)))

    def loss(self, model: nn.Module, batch: Any, step: Step) -> Terms:
        """Weighted mean over the lengths of this step, and the KL of the last layer; labels may be None."""
        root = unwrap(model)
        cache, (inputs, labels) = distillation_of(root), batch
        rest = (1 - self.full * self.full_share) / (len(cache.parts) - self.full)
        shares = [rest] * self._narrow + [self.full_share] * self.full + [rest]
        log = step.log_loss_temperature
        logs = [None] * len(cache.parts) if log is None else [*log, log.mean()]
        losses = []
        for part, share, log_loss_temperature in zip(cache.parts, shares, logs, strict=True):
            some = _thinned(inputs, part.every)
            own = _spread(model, root, part.lengths, some, cache.reading, log_loss_temperature)
            log_mean = _mean(own).log()
            nll = log_mean.new_zeros(()) if labels is None else _nll(log_mean, labels[:: part.every])
            losses.append(share * torch.stack([self._distance(part.taught, own, log_mean), nll]))
        distance, nll = torch.stack(losses).sum(0)
        divergence = nested.kl(root)
        total = distance + self.label_weight * nll + step.kl_weight / step.num_data * divergence
        return Terms(total, {"distance": distance.detach(), "nll": nll.detach(), "kl": divergence.detach()})

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> nested.Prediction:
        """Average the Dirichlet's mean over draws of the last layer, as the paper does; of 0 its closed form alone."""
        return nested.predict(network, x, samples=samples, link="dirichlet")

    def _distance(self, taught: Tensor, own: Tensor, log_mean: Tensor) -> Tensor:
        """Between the teacher's answers (samples, ..., classes) and the student's concentrations (..., classes)."""
        if self.divergence == "kl":
            target = taught.mean(0)
            apart: Tensor = (target.xlogy(target) - target * log_mean).sum(-1).mean()
            return apart
        return dirichlet_mmd(taught, own, self.student_samples, self.bandwidths).mean()

    def _fixed(self, student: nn.Module) -> list[Shape]:
        """The lengths of every step: the narrow ones, and all it has."""
        narrow = [nested.shape(student, fraction=share) for share in self.widths]
        return (narrow or [leading(student, 0.0)] * self.smallest) + [state_of(student).full] * self.full

    @torch.no_grad()
    def _answers(
        self, cache: DistillationCache, lengths: Shape, inputs: Inputs, again: bool, batch: int | None = None
    ) -> Tensor:
        """The teacher's answers at some lengths, which may be asked for again: (samples, batch, ..., classes).

        Those to a batch that comes again are drawn by its number, and nothing else is: a run that goes on, and has kept
        none, has the same.
        """
        if batch is None or not again:
            return self._asked(cache, lengths, again, inputs)
        if (batch, lengths) not in cache.kept_answers:
            device = _lead(inputs).device
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(batch)
                cache.kept_answers[batch, lengths] = self._asked(cache, lengths, again, inputs)
        return cache.kept_answers[batch, lengths]

    def _asked(self, cache: DistillationCache, lengths: Shape, again: bool, inputs: Inputs) -> Tensor:
        teacher = cache.at(lengths, again)
        return torch.stack([cache.reading(_run(teacher, inputs)).softmax(-1) for _ in range(self.samples)])


@dataclass(frozen=True)
class Reading:
    """Reader of a network's output: the tensor that counts, where there are several, and its dimension of classes."""

    output: Output | None = None
    dim: int | None = None

    def __call__(self, out: Any) -> Tensor:
        """The outputs, classes last, (batch, ..., classes), float32 or wider."""
        found = pick_tensor(out, self.output, "distill")
        return to_float32(found).movedim(class_dim(tuple(found.shape), self.dim, "distill"), -1)


@dataclass(frozen=True)
class DistillationBatch:
    """Lengths of this step, by unit; every so many-th image of the batch is run at them. And what the teacher said."""

    lengths: dict[str, Tensor]
    every: int
    taught: Tensor


@dataclass(eq=False)
class DistillationCache:
    """Teacher of a student in training: the network, how both are read, and its answers in this step.

    It hangs on the student but is no part of it: a copy of the student has a copy of the teacher, which answers anew.
    """

    teacher: nn.Module
    reading: Reading = field(default_factory=Reading)
    kept_answers: dict[tuple[int, Shape], Tensor] = field(default_factory=dict)
    parts: list[DistillationBatch] = field(default_factory=list)
    device: torch.device | None = None
    slices: dict[Shape, Callable[..., Any]] = field(default_factory=dict)
    places: dict[int, Tensor] = field(default_factory=dict)
    compiled: bool = False

    def __post_init__(self) -> None:
        self.asked: Callable[..., Any] = self.teacher

    def __reduce__(self) -> tuple[type[DistillationCache], tuple[nn.Module, Reading]]:
        return DistillationCache, (self.teacher, self.reading)

    def at(self, lengths: Shape, again: bool) -> Callable[..., Any]:
        """The teacher at some lengths; where they are asked for again, and can be, cut to them."""
        units = state_of(self.teacher).units
        pin([*units.values()], [lengths[name] for name in units])
        if not again or all(lengths[name] == unit.num_groups for name, unit in units.items()):
            return self.asked
        if lengths not in self.slices:
            subnet = self._cut(lengths)
            self.slices[lengths] = self.asked if subnet is None else self._compiled(subnet.__call__)
        return self.slices[lengths]

    def _cut(self, lengths: Shape) -> TrainableSubnet | None:
        """The teacher on slices of its weights; None where it has none, and is run masked."""
        if not can_be_trained_small(self.teacher):
            return None
        try:
            subnet = TrainableSubnet(self.teacher, lengths)
        except ValueError:  # a parameter that is not cut along its dimensions
            return None
        answering(subnet.skeleton)
        return subnet

    def placed(self, number: int, taught: Tensor) -> Tensor:
        """The answers of one of a step's parts, always in the same place of memory.

        Where the backward pass needs them ("kl" of up to four draws), its CUDA graph takes them for weights, which do
        not move: torch records it again for every new address. And laid out alike, the step is compiled once.
        """
        place = self.places.get(number)
        if place is None or place.shape != taught.shape or place.device != taught.device:
            place = self.places[number] = torch.empty_like(taught, memory_format=torch.contiguous_format)
        return place.copy_(taught)

    def _compiled(self, network: Callable[..., Any]) -> Callable[..., Any]:
        """As the student's step is: a pass of so small a batch is mostly launches."""
        if not self.compiled:
            return network
        mode = "reduce-overhead" if self.device is not None and self.device.type == "cuda" else None
        compiled: Callable[..., Any] = torch.compile(network, dynamic=False, mode=mode)
        return compiled

    def move(self, device: torch.device, compiled: bool = False) -> None:
        """Bring the teacher to the student's device, once."""
        if self.device != device:
            layout = torch.channels_last if device.type == "cuda" else torch.preserve_format
            self.teacher.to(device, memory_format=layout)  # type: ignore[call-overload]
            answering(self.teacher)
            self.device, self.compiled = device, compiled
            self.asked = self._compiled(self.teacher)


def answering(teacher: nn.Module) -> None:
    """Let a teacher draw its weights and normalise by statistics of the batch, as in training; dropout drops nothing.

    Random lengths have no other statistics, and what dropout adds to the spread of answers is not of the posterior.
    """
    teacher.eval()
    kinds = (BayesLayer, OrderingUnit, nn.modules.batchnorm._BatchNorm)
    for module in teacher.modules():
        module.training = module is teacher or isinstance(module, kinds)


def teach(student: nn.Module, cache: DistillationCache) -> None:
    """Hang what a student is taught by on it."""
    object.__setattr__(student, "_vnd_distillation", cache)


def distillation_of(student: nn.Module) -> DistillationCache:
    """Find what a student is taught by; a ValueError for one without a teacher."""
    cache = getattr(student, "_vnd_distillation", None)
    if not isinstance(cache, DistillationCache):
        raise ValueError("sn3: a student that was loaded has no teacher; train it by vnd train --resume RUN")
    return cache


def _lead(inputs: Inputs) -> Tensor:
    """The tensor that says where the inputs are, and how many examples."""
    return inputs if isinstance(inputs, Tensor) else inputs.lead


def _thinned(inputs: Inputs, every: int) -> Inputs:
    """Every so many-th example."""
    return inputs[::every] if isinstance(inputs, Tensor) else inputs.rows(slice(None, None, every))


def _run(network: Callable[..., Any], inputs: Inputs) -> Any:
    return network(inputs) if isinstance(inputs, Tensor) else network(*inputs.args, **inputs.kwargs)


def _on(shape: Shape, device: torch.device) -> dict[str, Tensor]:
    """Lengths as tensors on a device, so that a compiled step is compiled once for all of them."""
    return {name: torch.tensor(groups, device=device) for name, groups in shape.items()}


def _spread(
    model: nn.Module,
    root: nn.Module,
    lengths: dict[str, Tensor],
    inputs: Inputs,
    reading: Reading,
    log_loss_temperature: Tensor | None = None,
) -> Tensor:
    """The student's concentrations at some lengths, (batch, ..., classes), scaled where a loss temperature is given."""
    units = state_of(root).units
    with pinned([*units.values()], [lengths[name] for name in units]):
        outputs = reading(_run(model, inputs))
    if log_loss_temperature is not None:
        outputs = scale_mean(outputs, log_loss_temperature)
    return concentration(outputs.movedim(-1, 1)).movedim(1, -1)


def scale_mean(outputs: Tensor, log_loss_temperature: Tensor) -> Tensor:
    r"""Outputs (..., classes) of the mean $\operatorname{softmax}(τ z)$ and the total concentration $\sum_c e^{z_c}$.

    A loss temperature is about how sure the mean is. Of the spread the teacher alone decides: were all of z multiplied,
    a loss temperature below 1 would ask for outputs that grow without end.
    """
    return (log_loss_temperature.exp() * outputs).log_softmax(-1) + outputs.logsumexp(-1, keepdim=True)


def _mean(own: Tensor) -> Tensor:
    return own / own.sum(-1, keepdim=True)


def _nll(log_mean: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of labels (batch, ...), or of probabilities of the classes, (batch, ..., classes)."""
    flat = labels.reshape(-1, *labels.shape[log_mean.dim() - 1 :])
    return nn.functional.cross_entropy(log_mean.flatten(0, -2), flat)
