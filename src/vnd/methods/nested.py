"""Parts of all nested methods: sizes, extraction and prediction, and the losses over several widths."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

import vnd.nn as nested
from vnd._text import short
from vnd.distributions import BernoulliChain
from vnd.methods.base import Batch, Grouped, Method, Size, Sizes, Step, converted, cross_entropy
from vnd.nn.extract import Keep, extract
from vnd.nn.ordering import Gradient, pinned
from vnd.nn.profile import runs_whole
from vnd.nn.state import Shape, state_of, unwrap
from vnd.nn.width import Width

FEWEST_MEASURED = 32  # images that a measurement of the order runs on, if the batch has as many
Selection = tuple[Tensor | int | None, ...]  # by dimension: which entries are kept, or how many leading ones, or all


class Nested(Method):
    """A method whose model is one nested network, read at many widths.

    Attributes:
        bayesian: Whether its weights have a posterior.
        budgeted: What the shapes of a budget are: "learned", or "uniform", the same share of every layer.
    """

    bayesian: bool
    budgeted: Literal["uniform", "learned"] = "learned"
    draws: int

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a plain network."""
        model = converted(network, example, self)
        quantile = state_of(model).quantile
        if quantile is not None:
            quantile.strata.fill_(self.draws)
        return model

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """Uniform fractions, learned levels, and learned shapes of so many parameters."""
        if runs_whole(model) and (wanted.learned or wanted.parameters):
            raise ValueError(
                "sizes: learned and parameters must be left out for a network that is masked before its norms: it runs "
                "whole at every width; give fractions or levels"
            )
        return sizes_of(model, wanted, self.budgeted)

    def recalibrate(
        self, model: nn.Module, batches: Callable[[], Iterable[Any]], widths: list[Width], samples: bool
    ) -> None:
        """Collect BatchNorm's statistics."""
        nested.recalibrate(model, batches(), widths, samples=samples and self.bayesian)

    def extract(self, model: nn.Module, width: Width, keep: Keep = "mean") -> nn.Module:
        """The extracted network; one that is masked before its norms has no exact smaller form, and is run masked."""
        keep = "mean" if keep == "posterior" and not self.bayesian else keep
        if runs_whole(model) and keep != "nested":
            return _masked(model, width, samples=keep == "posterior")
        return nested.extract(model, width, keep, warn=False)


class FixedOrder(Nested):
    """A nested method of point weights whose lengths are never learned, uniform unless it says otherwise."""

    bayesian = False
    budgeted: Literal["uniform", "learned"] = "uniform"
    gradient: Gradient = "survival"

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a plain network."""
        model = super().build(network, example)
        for unit in state_of(model).units.values():
            unit.keep_logits.data.copy_(self.lengths(unit.num_nested).keep_logits)
            unit.keep_logits.requires_grad_(False)
        return model

    def lengths(self, groups: int) -> BernoulliChain:
        """The law of the lengths of so many groups, those that are always kept left out."""
        return BernoulliChain.uniform(groups)


@dataclass(frozen=True)
class Sandwich(Grouped, Nested):
    r"""A nested method that trains several widths in every step; `BN3` does if its option is set.

    $$f\, \mathrm{CE}(p_\text{full}, y) + \frac{1 - f}{R + 1} \Bigl[ \sum_{r \le R} \ell(p_r) + \ell(p_\text{sampled})
      \Bigr], \qquad \ell(p) = (1 - d)\, \mathrm{CE}(p, y) + d\, \mathrm{CE}(p, p_\text{full})$$

    Those of fixed size are the smallest network, and later the fixed budgets in its place. The full network's answers
    are constants in ℓ: in-place distillation (Yu and Huang, 2019). One pass each, at the cost of its width but for the
    sampled one, which is masked.

    Each p is of logits times its network's loss temperature, $p = \operatorname{softmax}(τ z)$; see
    `vnd.train.state.ConfidenceController`. That of a sampled network lies between those of its neighbours. The full
    network's labels are smoothed, those of the others are not, and what it teaches is freed of its smoothing first.

    Args:
        draws: Draws of the masks in a step: the batch is run in so many parts, each with its own, and where layers are
            coupled the draws are spread evenly, so that every step sees narrow and wide networks.
        distill: In a sandwich, d, the share of the full network's answers in the targets of the narrower ones, the
            labels having the rest.
        full_share: In a sandwich, f, the share of the full network's loss; the others share the rest.
        fixed_budgets: In a sandwich, shapes of at most so many parameters that are trained in every step in place of
            the smallest network, on the whole batch, each at the cost of its size.
        sampled_share: Share of the batch that sampled networks are run on once these are cut.
    """

    sandwich = True
    uniform_share = 0.0
    draws: int = 1
    distill: float = 1.0
    full_share: float = 1 / 3
    fixed_budgets: tuple[float, ...] = ()
    sampled_share: float = 0.25

    @property
    def num_loss_temperatures(self) -> int:
        """In a sandwich the fixed budgets, or the smallest network, and the full one."""
        return max(1, len(self.fixed_budgets)) + 1 if self.sandwich else 0

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a plain network, which must be one that the fixed budgets can be cut out of."""
        model = super().build(network, example)
        if not self.fixed_budgets:
            return model
        if not can_be_trained_small(model):
            raise ValueError(
                "fixed_budgets: no slice of this network computes what it does when masked; leave them out"
            )
        least, full = ends(model)
        for budget in self.fixed_budgets:
            if not least <= budget < full:
                raise ValueError(
                    f"fixed_budgets must have from {least:,} to below {full:,} parameters here; got {budget:,.0f}"
                )
        return model

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Cut the smallest network and the fixed budgets out of the full one."""
        self._cut(model, frozen=True)

    def answers(self, model: nn.Module, images: Tensor) -> list[Tensor]:
        """Their logits, for one draw of the weights; none before the budgets are cut."""
        if len(fixed_sizes(model).budgets) < len(self.fixed_budgets):
            return []
        with at_end(model, smallest=False):
            full = model(images)
        return [*_fixed(model, images), full]

    def _cut(self, model: nn.Module, frozen: bool) -> None:
        """Cut the smallest network and, of a frozen order, the fixed budgets out of a nested one, once.

        They run on its own weights. From when the fixed budgets are cut the order stays: its logits learn no more.
        """
        sizes = fixed_sizes(model)
        if sizes is UNCUT:
            if self.fixed_budgets and torch.distributed.is_available() and torch.distributed.is_initialized():
                raise ValueError(
                    "fixed_budgets: networks cut to size are trained in one process only; leave them out with several"
                )
            sizes = FixedSizes()
            object.__setattr__(unwrap(model), "_vnd_fixed_sizes", sizes)
        if sizes.smallest is None and can_be_trained_small(model):
            sizes.smallest = TrainableSubnet(model, nested.shape(model, fraction=1e-9))
        if frozen and self.fixed_budgets and not sizes.budgets:
            units = state_of(model).units.values()
            for unit in units:
                unit.keep_logits.requires_grad_(False)
            shapes = [nested.shape(model, parameters=budget) for budget in self.fixed_budgets]
            lowest = [*(_lowest_survival(model, shape) for shape in shapes), 0.0]
            sizes.lowest = torch.tensor(lowest, device=next(iter(units)).keep_logits.device)
            sizes.budgets = tuple(TrainableSubnet(model, shape) for shape in shapes)

    def _in_sandwich(self, model: nn.Module, batch: Batch, log_loss_temperature: Tensor | None) -> Tensor:
        """The loss of a step; log τ of those of fixed size and of the full network, (R + 1,), None for all 0."""
        (images, labels), fixed_budgets = batch, fixed_sizes(model).budgets
        log, smoothing, distill = log_loss_temperature, self.label_smoothing, self.distill
        loss_temperatures = [1.0] * self.num_loss_temperatures if log is None else list(log.exp())
        with at_end(model, smallest=False):
            full = loss_temperatures[-1] * model(images).float()
        taught = unsmoothed(full.detach().softmax(1), smoothing)

        def narrower(logits: Tensor, y: Tensor, target: Tensor, loss_temperature: float | Tensor) -> Tensor:
            logits = loss_temperature * logits.float()
            return (1 - distill) * cross_entropy(logits, y, 0.0) + distill * cross_entropy(logits, target, 0.0)

        fixed = zip(_fixed(model, images), loss_temperatures, strict=False)
        losses = [narrower(logits, labels, taught, loss_temperature) for logits, loss_temperature in fixed]
        every = max(1, min(round(1 / self.sampled_share), len(labels) // self.draws)) if fixed_budgets else 1
        part = tuple(x[::every] for x in (images, labels, taught))

        def sampled(x: Tensor, y: Tensor, target: Tensor) -> Tensor:
            with _uniform(model, self.uniform_share if fixed_budgets else 0.0) as uniform:
                logits = model(x)
            return narrower(logits, y, target, 1.0 if log is None else _sampled_loss_temperature(model, log, uniform))

        losses.append(in_parts(part, self.draws, sampled))
        whole = cross_entropy(full, labels, smoothing)
        return self.full_share * whole + (1 - self.full_share) * torch.stack(losses).mean()


def _masked(model: nn.Module, width: Width, samples: bool) -> nn.Module:
    """A copy that runs masked at a width."""
    for unit in state_of(model).units.values():
        unit.current = None  # of the last step, with its graph
    network = copy.deepcopy(unwrap(model))
    nested.set_width(network, width, samples=samples, warn=False)  # as `extract` does: methods recalibrate
    return network


def _spread(model: nn.Module, count: int) -> list[float]:
    """Numbers of parameters, spread evenly by ratio from the smallest network to the full one."""
    if count < 1:
        return []
    small, full = ends(model)
    return [full] if count == 1 else [round(small * (full / small) ** (i / (count - 1))) for i in range(count)]


def ends(model: nn.Module) -> tuple[int, int]:
    """Parameters of the smallest network and of the full one."""
    shapes = nested.shape(model, fraction=1e-9), 1.0
    least, full = (nested.profile(model, shape, count_macs=False).parameters for shape in shapes)
    return least, full


def sizes_of(model: nn.Module, wanted: Sizes, budgeted: Literal["uniform", "learned"] = "learned") -> list[Size]:
    """The wanted sizes of a nested network; shapes of levels and of numbers of parameters are `budgeted`."""

    def fitting(budget: float) -> Size:
        return Size(budgeted, f"≤ {short(budget)}", nested.shape(model, parameters=budget))

    fractions, levels, budgets = (dict.fromkeys(x) for x in (wanted.fractions, wanted.levels, wanted.parameters))
    found = [
        Size("uniform", f"{100 * f:.4g} %", nested.shape(model, fraction=f * wanted.leading), f) for f in fractions
    ]
    found += [Size(budgeted, f"level {x:.4g}", nested.shape(model, level=x)) for x in levels]
    found += [fitting(budget) for budget in budgets]
    for size in map(fitting, _spread(model, wanted.learned)):
        if all(size.width != other.width for other in found if other.kind == budgeted):
            found.append(size)
    return told_apart(model, found)


def told_apart(model: nn.Module, sizes: list[Size]) -> list[Size]:
    """The sizes, each with a label of its own: where rounded numbers are equal, with all digits of its parameters."""
    labels, found = [size.label for size in sizes], dict[str, Size]()
    for size in sizes:
        label = size.label
        if labels.count(label) > 1:
            label += f" ({nested.profile(model, size.width, count_macs=False).parameters:,})"
        found.setdefault(label, replace(size, label=label))  # two budgets may be of one shape
    return list(found.values())


def measure_order(
    method: Any, model: nn.Module, step: Any, batch: Batch | None, average: Callable[[Tensor], Tensor]
) -> None:
    """Set the temperature, and at a method's turn measure what one unit is worth to the loss; without a batch, nothing.

    On the method's share of the batch: every so many-th image, in both passes the same ones.
    """
    root = unwrap(model)
    nested.set_temperature(root, step.temperature)
    due = method.gradient == "difference" and method.measure_every and step.index % method.measure_every == 0
    if due and batch is not None:
        every = max(1, min(round(1 / method.measured_share), len(batch[1]) // FEWEST_MEASURED))
        part = batch if every == 1 else tuple(x[::every].clone() for x in batch)  # dense, as the batch is
        nested.update_differences(root, lambda: average(method._likelihood(model, *part)))


def order_term(method: Any, model: nn.Module) -> Tensor | float:
    """A term of value 0 whose gradient is the measured one of the order; 0 where none is measured."""
    if not (method.gradient == "difference" and method.measure_every):
        return 0.0
    order = nested.difference_term(unwrap(model))
    return order - order.detach()


def in_parts(batch: tuple[Tensor, ...], draws: int, loss: Callable[..., Tensor]) -> Tensor:
    """The mean loss of a batch that is run in parts, each at a draw of the masks of its own."""
    count = len(batch[1])
    if count < draws:
        raise ValueError(f"method.draws must be at most the images of a batch, {count}; got {draws}")
    # Every so many-th image: so they are the same ones when several processes share the batch.
    parts = [tuple(part[first::draws] for part in batch) for first in range(draws)]
    return torch.stack([len(part[1]) / count * loss(*part) for part in parts]).sum()


def _sampled_loss_temperature(model: nn.Module, log_loss_temperature: Tensor, uniform: Tensor | None) -> Tensor:
    r"""The loss temperature of the network that was drawn last: log τ interpolated in u between networks of fixed size.

    The full network is that of u = 0, fixed budget r that of $u_r$, the lowest survival among the groups that it keeps.
    Layers that draw a length each share no u, before fixed budgets are cut nothing lies between, and a `uniform` width
    is none of them: the geometric mean of all then.
    """
    quantile, lowest = state_of(model).quantile, fixed_sizes(model).lowest
    if quantile is None or lowest is None:
        return log_loss_temperature.mean().exp()
    places, logs, u = lowest.flip(0), log_loss_temperature.flip(0), quantile.u.to(log_loss_temperature.dtype)
    left, right = places[:-1], places[1:]
    passed = ((u - left) / (right - left).clamp(min=1e-6)).clamp(0, 1)
    between = logs[0] + (passed * logs.diff()).sum()
    return (between if uniform is None else torch.where(uniform, logs.mean(), between)).exp()


@contextmanager
def _uniform(model: nn.Module, share: float) -> Iterator[Tensor | None]:
    """Give a pass the same share of every layer, drawn uniformly, with a probability; yields whether it has."""
    if not share:
        yield None
        return
    units = [*state_of(model).units.values()]
    uniform, fraction = torch.rand(2, device=units[0].keep_logits.device)
    chosen: Tensor = uniform < share
    groups = [(fraction * unit.num_groups).ceil().clamp(min=unit.base) for unit in units]
    with pinned(units, [torch.where(chosen, count, -1.0) for count in groups]):
        yield chosen


def unsmoothed(probs: Tensor, smoothing: float) -> Tensor:
    """The probabilities, (batch, classes), that smoothing would have made these of; none is below 0.

    >>> unsmoothed(torch.tensor([[0.05, 0.95]]), 0.1)
    tensor([[0., 1.]])
    """
    clean = (probs - smoothing / probs.size(1)).clamp(min=0)
    return clean / clean.sum(1, keepdim=True)


@dataclass(eq=False)
class FixedSizes:
    """Networks of fixed size that a sandwich trains, on slices of a nested network's own weights.

    They hang on the network but are no part of it: one that is copied, pickled or loaded has none, and
    the next step cuts them again, of the same weights and order.

    Args:
        smallest: That of base groups alone; None where no slice computes what the masked network does.
        budgets: Those of fixed budgets.
        lowest: The lowest survival of a group in each of these, and 0 for the full network.
    """

    smallest: TrainableSubnet | None = None
    budgets: tuple[TrainableSubnet, ...] = ()
    lowest: Tensor | None = None

    def __reduce__(self) -> tuple[type[FixedSizes], tuple[()]]:
        return FixedSizes, ()


UNCUT = FixedSizes()


def fixed_sizes(model: nn.Module) -> FixedSizes:
    """The networks of fixed size that were cut out of a nested one."""
    sizes: FixedSizes = getattr(unwrap(model), "_vnd_fixed_sizes", UNCUT)
    return sizes


@torch.no_grad()
def _lowest_survival(model: nn.Module, shape: nested.Shape) -> float:
    """The lowest probability to be kept among the groups that a shape keeps; 1 where it keeps none beyond the base."""
    units = state_of(model).units.items()
    kept = [unit.posterior().chain.log_survival.exp()[: shape[name] - unit.base] for name, unit in units]
    return min((float(part[-1]) for part in kept if len(part)), default=1.0)


def _fixed(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The logits of the fixed budgets, or of the smallest network: by slices, or by the masked one."""
    sizes = fixed_sizes(model)
    if networks := sizes.budgets or (() if sizes.smallest is None else (sizes.smallest,)):
        return [network(images) for network in networks]
    with at_end(model, smallest=True):
        return [model(images)]


@contextmanager
def at_end(model: nn.Module, smallest: bool) -> Iterator[None]:
    """Let every layer keep all its groups, or its base alone, in a pass of training; the rotation of u stands still."""
    state = state_of(model)
    units = [*state.units.values()]
    with pinned(units, [unit.base if smallest else unit.num_groups for unit in units]):
        yield
    if state.quantile is not None:
        state.quantile.count.sub_(1)


class TrainableSubnet:
    """A nested network at a fixed shape, run on slices of the network's own parameters: gradients reach those.

    In training it computes what the masked network does, with noise and BatchNorm statistics of its own batch; running
    statistics of the nested network are left alone. Made once, used in every step, compiled or not.

    Args:
        net: A nested network.
        shape: What each unit keeps.
    """

    def __init__(self, net: nn.Module, shape: Shape) -> None:
        def small(network: nn.Module) -> nn.Module:
            return extract(network, shape, "posterior", warn=False)

        root = unwrap(net)
        places = copy.deepcopy(root)
        for parameter in places.parameters():
            parameter.data = torch.arange(parameter.numel(), dtype=torch.float64).view(parameter.shape)
        kept = {name: value.detach().long() for name, value in small(places).named_parameters(remove_duplicate=False)}
        self.root = root
        self.skeleton = small(root).train().requires_grad_(False)
        for norm in self.skeleton.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                # Nobody reads its statistics, and CUDA graphs like nothing to change.
                norm.running_mean = norm.running_var = norm.num_batches_tracked = None
                norm.track_running_stats = False
        # Where each is found, once: torch.compile takes its time over every step of a search.
        found_at = {name: (root.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in kept}
        self.kept = {name: (*found, _selection(kept[name].cpu(), getattr(*found))) for name, found in found_at.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output for a batch."""
        slices = {name: _select(getattr(layer, last), kept) for name, (layer, last, kept) in self.kept.items()}
        return functional_call(self.skeleton, slices, args, kwargs, tie_weights=False)  # all names are given


def can_be_trained_small(net: nn.Module) -> bool:
    """Tell if slices of a nested network compute what it does when masked."""
    state = state_of(net)
    exact = not runs_whole(net) and not state.own_units
    return exact and not state.options["rescale"]


def _selection(places: Tensor, parameter: Tensor) -> Selection:
    """Entries along each dimension of a parameter that a smaller one was cut from, given their places in it."""
    found: list[Tensor | int | None] = []
    stride = parameter.numel()
    for dim, size in enumerate(parameter.shape):
        stride //= size
        first: Any = [slice(None) if d == dim else 0 for d in range(parameter.dim())]
        index = places[tuple(first)] // stride % size
        if len(index) == size:
            found.append(None)
        elif torch.equal(index, torch.arange(len(index))):
            found.append(len(index))
        else:
            found.append(index.to(parameter.device))
    again = torch.arange(parameter.numel()).view(parameter.shape)
    if not torch.equal(_select(again, tuple(i.cpu() if isinstance(i, Tensor) else i for i in found)), places):
        raise ValueError("TrainableSubnet: a parameter of this network is not cut along its dimensions")
    return tuple(found)


def _select(value: Tensor, selection: Selection) -> Tensor:
    for dim, index in enumerate(selection):
        if isinstance(index, int):
            value = value.narrow(dim, 0, index)
        elif index is not None:
            value = value.index_select(dim, index)
    return value
