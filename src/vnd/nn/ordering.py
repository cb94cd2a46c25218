"""The ordering unit: a layer that learns how many of its channels, in order, are worth keeping."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from vnd.distributions import BernoulliChain, Downhill
from vnd.functional import length_mask, straight_through
from vnd.nn.context import here, recall

GOLDEN = 2654435769  # 2³² divided by the golden ratio, odd: the steps visit all of 2³² before one comes again


class Quantile(nn.Module):
    r"""The shared $u \in (0, 1)$ of coupled ordering units, a golden-ratio rotation over the draws.

    $$u_t = \operatorname{frac}\left(u_0 + \lfloor t / K \rfloor / φ + (t \bmod K) / K\right)$$

    Each $u_t$ is uniform over the random start $u_0$, and any run of draws covers (0, 1) evenly. With K = `strata`
    above 1, the K draws of one step are spread evenly as well. All state is in buffers, so a run resumes where it
    stopped, and every process that starts from the same seed draws the same masks.

    Args:
        strata: Number of draws (forward passes) in one step.

    >>> quantile = Quantile(strata=2)
    >>> first, second = float(quantile.draw()), float(quantile.draw())
    >>> round((second - first) % 1, 6)
    0.5
    """

    count: Tensor
    start: Tensor
    strata: Tensor
    ticks: Tensor

    def __init__(self, strata: int = 1) -> None:
        super().__init__()
        if strata < 1:
            raise ValueError(f"Quantile: strata must be at least 1; got {strata}")
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("start", torch.randint(2**32, (), dtype=torch.int64))
        self.register_buffer("strata", torch.tensor(strata))
        self.register_buffer("ticks", torch.tensor(2**31), persistent=False)  # whole, so that no dtype coarsens it

    @property
    def u(self) -> Tensor:
        """The current u, float64."""
        return (self.ticks.double() + 0.5) / 2**32

    def draw(self) -> Tensor:
        """Move to the next u, in place, and return it."""
        step = torch.div(self.count, self.strata, rounding_mode="floor")
        stratum = (self.count % self.strata) * torch.div(2**32, self.strata, rounding_mode="floor")
        self.ticks.copy_((self.start + step * GOLDEN + stratum) & (2**32 - 1))
        self.count += 1
        return self.u

    def before_forward(self, root: nn.Module, args: Any) -> None:
        """Draw at the start of a forward pass of `root` in training: a forward pre-hook."""
        if root.training:
            self.draw()


def couple(root: nn.Module, strata: int = 1) -> nn.Module:
    """Let all ordering units in `root` share one u, drawn once at the start of each forward pass in training.

    The first unit owns the `Quantile`, as its submodule `shared_quantile`; the others refer to it.

    Args:
        root: The network whose forward pass is one draw.
        strata: Number of forward passes in one training step; their draws are spread evenly.

    Returns:
        `root`.

    >>> import vnd
    >>> units = [vnd.OrderingUnit(8, num_groups=4), vnd.OrderingUnit(8, num_groups=4)]
    >>> first, second = couple(nn.Sequential(*units))
    >>> first.quantile is second.quantile
    True
    """
    units = [module for module in root.modules() if isinstance(module, OrderingUnit)]
    if not units:
        raise ValueError("couple: the network has no OrderingUnit")
    if any(unit.quantile is not None for unit in units):
        raise ValueError("couple: the network has ordering units that are coupled already")
    quantile = Quantile(strata).to(units[0].keep_logits.device)
    units[0].shared_quantile = quantile
    for unit in units:
        unit.join(quantile)
    root.register_forward_pre_hook(quantile.before_forward)
    return root


def draw_masks(
    units: Sequence[OrderingUnit], batch: int | None = None, fixed: int | Sequence[int] | None = None
) -> Tensor:
    """Draw the masks of several units at once, (units, num_groups) or (units, batch, num_groups).

    The units must be alike in all but their parameters, buffers and channels: see `OrderingUnit.likeness`. Each keeps
    as many groups as `fixed` says, base included; −1 as many as are drawn, None as many as its `fixed_groups` says.
    """
    one = units[0]
    if fixed is None:
        groups = torch.stack([unit.fixed_groups for unit in units])
    else:
        groups = torch.tensor(fixed, device=one.fixed_groups.device).expand(len(units))
    groups = groups if batch is None else groups.unsqueeze(-1)
    free, pinned = groups < 0, (groups - one.base).clamp(min=0)
    if not one.training:
        length = torch.where(free, one.num_nested, pinned)
        nested = length_mask(length, one.num_nested, one.prior_logits.dtype)
        if one.rescale:
            kept = torch.stack([unit.survival()[unit.base :] for unit in units]).detach()
            nested = nested * (kept if batch is None else kept.unsqueeze(1))
    else:
        posterior = sampling_posterior(units)
        log_survival = posterior.chain.log_survival
        length = torch.where(free, draw_lengths(one, log_survival, batch), pinned)
        hard = length_mask(length, one.num_nested, one.prior_logits.dtype)
        nested = _attach_gradient(units, hard, length, free.unsqueeze(-1), posterior, log_survival)
    nested = nested if batch is None else nested.expand(len(units), batch, one.num_nested)
    return torch.cat((nested.new_ones((*nested.shape[:-1], one.base)), nested), -1)


def draw_lengths(one: OrderingUnit, log_survival: Tensor, batch: int | None) -> Tensor:
    """Number of nested groups with u < P(z = 1), (units,) or (units, batch)."""
    if one.quantile is None:
        shape = log_survival.shape[:-1] + (() if batch is None else (batch,))
        log_u = -log_survival.new_empty(shape).exponential_()
    else:
        u = one.quantile.u
        if batch is not None:  # the examples share the rotation and are spread evenly around it
            u = (u + torch.arange(batch, device=u.device) / batch) % 1
        log_u = u.log().to(log_survival.dtype)
    thresholds = log_survival if batch is None else log_survival.unsqueeze(-2)
    return (log_u.unsqueeze(-1) < thresholds).sum(-1)


def sampling_posterior(units: Sequence[OrderingUnit]) -> Downhill:
    """The posteriors that masks are drawn from, as one of batch shape (units,)."""
    temperature = torch.stack([unit.temperature for unit in units])
    logits = torch.stack([unit.keep_logits for unit in units])
    posterior = Downhill(temperature, logits, validate_args=False)
    return posterior.released() if units[0].sampler == "released" else posterior


def _attach_gradient(
    units: Sequence[OrderingUnit], hard: Tensor, length: Tensor, free: Tensor, posterior: Downhill, log_survival: Tensor
) -> Tensor:
    one = units[0]
    if one.gradient == "downhill":
        soft = posterior.rsample_given(length.movedim(0, -1)).movedim(-2, 0)  # the units are the posterior's batch
    else:
        soft = log_survival.exp()
        if one.gradient == "difference":  # measured units have their gradient from `difference_term`
            counts = torch.stack([unit.difference_counts for unit in units])
            soft = torch.where(counts > 0, soft.detach(), soft)
        soft = soft.view(len(units), *[1] * (hard.dim() - 2), -1).expand_as(hard)
    # A fixed length is no draw: its mask is hard, and it has nothing to say on the posterior.
    if not one.hard:
        return torch.where(free, soft, hard)
    return straight_through(hard, torch.where(free, soft, soft.detach()))


Gradient = Literal["survival", "downhill", "difference"]
Sampler = Literal["exact", "released"]


@torch.no_grad()
def pin(units: Sequence[OrderingUnit], groups: Sequence[Tensor | int]) -> None:
    """Let units keep so many groups from now on, in every mode; of those with −1 widths are drawn in training."""
    for unit, count in zip(units, groups, strict=True):
        unit.fixed_groups.copy_(count) if isinstance(count, Tensor) else unit.fixed_groups.fill_(count)


@contextmanager
def pinned(units: Sequence[OrderingUnit], groups: Sequence[Tensor | int]) -> Iterator[None]:
    """Let units keep so many groups in a block, whatever width is set; see `pin`."""
    before = [unit.fixed_groups.clone() for unit in units]
    pin(units, groups)
    try:
        yield
    finally:
        pin(units, before)


@dataclass(frozen=True)
class OrderReport:
    """The expected length of an ordering unit and how spread lengths are; they count groups, the base ones included.

    >>> OrderingUnit(2, num_groups=2, base=1, initial_logit=0.0).report().expected_length
    1.5
    """

    expected_length: float
    entropy: float
    prob_shortest: float
    prob_full: float


class OrderingUnit(nn.Module):
    r"""Keeps a leading part of the channels of its input, of a length that it learns.

    The channels are split into `num_groups` groups, as evenly as possible, larger ones first. The first `base` groups
    are always kept; the other n are kept by an ordered mask with posterior $\mathrm{Downhill}(τ, m)$, and
    $m$ = `keep_logits` learned against a Bernoulli-chain prior.

    Paper: Sec. 2.2–2.3, the (variational) ordering unit.

    In training the mask is drawn, unless `fixed_groups` is set: unit i is kept exactly when $u < P(z_i = 1)$, so that
    each length has its probability under the posterior. Where `vnd.to_nested` or `vnd.nn.couple` joined the units of
    a network, they share one u, and the networks seen in training are a one-parameter nested family; otherwise each
    unit draws its own. In evaluation the mask is that of `fixed_groups`, all groups unless set.

    Args:
        channels: Size of the input along `dim`.
        num_groups: Number of groups, at most `channels`.
        base: Number of groups that are always kept, at most `num_groups`.
        dim: The dimension of the channels.
        tiles: Number of equal blocks of channels (the groups of a grouped convolution, say) that are cut alike, so
            that each keeps the same number; `num_groups` then counts within a block.
        prior: A chain over the nested groups, or the expected number of groups to keep, base included (a geometric
            chain with that mean), or None for uniform lengths.
        temperature: τ of the relaxed samples; kept in a buffer, so that it can be annealed.
        initial_logit: Where all keep logits start (3 in the paper: a unit is kept with probability .95 given the one
            before).
        hard: Exact masks (default), or relaxed ones.
        per_example: One mask an example along dimension 0, instead of one a batch.
        gradient: How the loss reaches the logits through a hard mask. "survival": as if the mask were its
            expectation P(z = 1). "downhill": through the relaxed sample, as in the paper. "difference": by a table of
            measured loss differences, where `vnd.nn.update_differences` has fed it; as "survival" where not, so also
            in a loop that knows nothing of the table. None: "difference" for hard masks, "downhill" for relaxed ones.
        rescale: In evaluation, multiply a kept group by its probability P(z = 1) of being kept, as the paper does.
            Not the default: with masks after normalisation, units were trained at full size whenever they were kept.
        sampler: "released" repeats a slip of the authors' code, which passes probabilities where log-probabilities
            belong. For reproduction only.

    Shape: any with `channels` along `dim`; the output has the shape and dtype of the input.

    >>> unit = OrderingUnit(10, num_groups=4, base=1)
    >>> unit.group_sizes
    (3, 3, 2, 2)
    >>> unit(torch.ones(2, 10, 5, 5)).shape
    torch.Size([2, 10, 5, 5])
    """

    temperature: Tensor
    prior_logits: Tensor
    fixed_groups: Tensor
    differences: Tensor
    difference_counts: Tensor

    def __init__(
        self,
        channels: int,
        num_groups: int = 32,
        base: int = 1,
        dim: int = 1,
        *,
        tiles: int = 1,
        prior: BernoulliChain | float | None = None,
        temperature: float = 2.0,
        initial_logit: float = 3.0,
        hard: bool = True,
        per_example: bool = False,
        gradient: Gradient | None = None,
        rescale: bool = False,
        sampler: Sampler = "exact",
    ) -> None:
        super().__init__()
        self.channels, self.num_groups, self.base, self.dim, self.tiles = channels, num_groups, base, dim, tiles
        self.current: Tensor | None = None  # the channel mask of the pass under way, for compiled code
        self.hard, self.per_example, self.sampler, self.rescale = hard, per_example, sampler, rescale
        self.gradient: Gradient = gradient or ("difference" if hard else "downhill")
        self._quantile: tuple[Quantile] | None = None  # in a tuple, so that it does not become a submodule
        self._check_options(temperature, initial_logit)
        prior_logits = self._prior_logits(prior)

        self.keep_logits = nn.Parameter(torch.full((self.num_nested,), float(initial_logit)))
        self.register_buffer("prior_logits", prior_logits)
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("fixed_groups", torch.tensor(-1), persistent=False)  # -1: not fixed
        if self.gradient == "difference":
            # Not in the state dict: who loads a network and trains on without feeding the table starts from none.
            counts = torch.zeros(self.num_nested, dtype=torch.int64)
            self.register_buffer("differences", torch.zeros(self.num_nested), persistent=False)
            self.register_buffer("difference_counts", counts, persistent=False)

    @property
    def num_nested(self) -> int:
        """Number n of groups that can be dropped."""
        return self.num_groups - self.base

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Number of channels of each group, within one tile."""
        small, larger = divmod(self.channels // self.tiles, self.num_groups)
        return (small + 1,) * larger + (small,) * (self.num_groups - larger)

    @property
    def quantile(self) -> Quantile | None:
        """The source of u that this unit shares with others; None if it draws its own."""
        return self._quantile[0] if self._quantile else None

    def join(self, quantile: Quantile) -> None:
        """Take u from `quantile` from now on; a reference only, the network's first unit owns it."""
        self._quantile = (quantile,)

    @property
    def likeness(self) -> tuple[Any, ...]:
        """Traits that units must have in common for their masks to be drawn together."""
        options = (self.training, self.hard, self.per_example, self.gradient, self.rescale, self.sampler)
        shared = 0 if self.quantile is None else id(self.quantile)  # torch.compile knows no id of None
        return (self.num_groups, self.base, *options, shared)

    @property
    def prior(self) -> BernoulliChain:
        """The prior over lengths."""
        return BernoulliChain(self.prior_logits, validate_args=False)

    def posterior(self) -> Downhill:
        """The posterior over masks of the nested groups."""
        return Downhill(self.temperature, self.keep_logits, validate_args=False)

    def survival(self) -> Tensor:
        """Probability that each group is kept, 1 for the base ones, (num_groups,)."""
        nested = self.posterior().chain.mean
        return torch.cat((nested.new_ones(self.base), nested))

    def kl(self) -> Tensor:
        """KL of the length distribution from its prior, Φ₁ of the paper, in nats."""
        return kl_divergence(self.posterior().chain, self.prior)

    def report(self) -> OrderReport:
        """Expected length, entropy, P(shortest) and P(full) of the posterior."""
        with torch.no_grad():
            chain = self.posterior().chain
            ends = chain.length_log_probs[[0, -1]].exp()
            return OrderReport(
                expected_length=self.base + float(chain.expected_length),
                entropy=float(chain.entropy()),
                prob_shortest=float(ends[0]),
                prob_full=float(ends[1]),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the channels of `x` by a mask."""
        if x.size(self.dim) != self.channels:
            raise ValueError(
                f"OrderingUnit: x has {x.size(self.dim)} channels along dimension {self.dim} "
                f"(shape {tuple(x.shape)}); expected {self.channels}"
            )
        dim = self.dim % x.dim()
        if self.per_example and dim == 0:
            raise ValueError("OrderingUnit: per_example masks need the channels on another dimension than 0")
        mask = self.spread(self.mask(x.size(0) if self.per_example else None))
        shape = [1] * x.dim()
        shape[dim] = self.channels
        if mask.dim() > 1:
            shape[0] = mask.size(0)
        return x * mask.view(shape).to(x.dtype)

    def mask(self, batch: int | None = None) -> Tensor:
        """Draw a mask over groups, (num_groups,), or (batch, num_groups) if a batch size is given."""
        return draw_masks([self], batch)[0]

    def spread(self, mask: Tensor) -> Tensor:
        """Repeat a mask over groups for their channels, (…, num_groups) to (…, channels)."""
        small, larger = divmod(self.channels // self.tiles, self.num_groups)
        head, tail = mask[..., :larger], mask[..., larger:]
        parts = [part.repeat_interleave(size, -1) for part, size in ((head, small + 1), (tail, small))]
        return torch.cat(parts * self.tiles, -1)

    def kept_channels(self, groups: int) -> Tensor:
        """Indices of the channels that the first `groups` groups hold, in order."""
        group_of_channel = self.spread(torch.arange(self.num_groups))
        return torch.nonzero(group_of_channel < groups).squeeze(-1)

    @torch.no_grad()
    def shorten(self, groups: int) -> None:
        """Let go of all but the first groups, in place: each keeps its channels and its probability to be kept."""
        self.channels, self.num_groups = len(self.kept_channels(groups)), groups
        self.keep_logits = nn.Parameter(self.keep_logits[: self.num_nested].clone(), self.keep_logits.requires_grad)
        for name in ("prior_logits", "differences", "difference_counts"):
            if name in self._buffers:
                setattr(self, name, getattr(self, name)[: self.num_nested].clone())
        self.fixed_groups.fill_(-1)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and let go of a mask that was drawn in the other."""
        self.current = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle has the width of the context that it is made in as its default."""
        said, state = here(self), self.__dict__ | {"current": None}
        if isinstance(said, int):
            state["_buffers"] = self._buffers | {"fixed_groups": torch.full_like(self.fixed_groups, said)}
        return state

    def channel_mask(self) -> Tensor:
        """The channel mask of the forward pass under way, or a new one outside of any."""
        if torch.compiler.is_compiling():
            return self.spread(self.mask()) if self.current is None else self.current
        return recall(self, self._mask_for)

    def _mask_for(self, said: Tensor | int | None) -> Tensor:
        """The mask of a pass, or a new one of as many groups as the context says."""
        if isinstance(said, Tensor):
            return said
        if said is None and self.current is not None:
            return self.current
        return self.spread(draw_masks([self], fixed=said)[0])

    def extra_repr(self) -> str:
        """Show what the unit orders and how."""
        return (
            f"{self.channels}, num_groups={self.num_groups}, base={self.base}, dim={self.dim}, "
            f"gradient={self.gradient!r}"
        )

    def _prior_logits(self, prior: BernoulliChain | float | None) -> Tensor:
        n = self.num_nested
        if isinstance(prior, BernoulliChain):
            if prior.batch_shape or prior.event_shape != (n,):
                shape = tuple(prior.batch_shape + prior.event_shape)
                raise ValueError(
                    f"OrderingUnit: prior must be a chain of num_groups - base = {n} units; got one of shape {shape}"
                )
            return prior.keep_logits.detach().clone()
        if prior is not None and not isinstance(prior, float | int):
            raise ValueError(f"OrderingUnit: prior must be a BernoulliChain, a number or None; got {prior!r}")
        if prior is None or n == 0:
            return BernoulliChain.uniform(n).keep_logits
        if not self.base < prior < self.num_groups:
            raise ValueError(
                f"OrderingUnit: prior as an expected number of groups must lie strictly between base = {self.base} "
                f"and num_groups = {self.num_groups}; got {prior}"
            )
        return BernoulliChain.from_expected_length(n, prior - self.base).keep_logits

    def _check_options(self, temperature: float, initial_logit: float) -> None:
        def refuse(what: str) -> None:
            raise ValueError(f"OrderingUnit: {what}")

        counts = (self.channels, self.num_groups, self.base)
        if any(isinstance(x, bool) or not isinstance(x, Integral) for x in counts):
            got = ", ".join(repr(x) if isinstance(x, Real) else f"a {type(x).__name__}" for x in counts)
            refuse(f"channels, num_groups and base must be whole numbers; got ({got})")
        for name, value in (("temperature", temperature), ("initial_logit", initial_logit)):
            if not isinstance(value, Real) and not (isinstance(value, Tensor) and value.numel() == 1):
                refuse(f"{name} must be a number; got a {type(value).__name__}")
        if self.channels < 1:
            refuse(f"channels must be at least 1; got {self.channels}")
        if self.tiles < 1 or self.channels % self.tiles:
            refuse(f"tiles must divide channels = {self.channels}; got {self.tiles}")
        if not 1 <= self.num_groups <= self.channels // self.tiles:
            most = self.channels // self.tiles
            refuse(f"num_groups must lie in 1 … channels / tiles = {most}; got {self.num_groups}")
        if not 0 <= self.base <= self.num_groups:
            refuse(f"base must lie in 0 … num_groups = {self.num_groups}; got {self.base}")
        if not math.isfinite(initial_logit):
            refuse(f"initial_logit must be finite; got {initial_logit}")
        if not (math.isfinite(temperature) and temperature > 0):
            refuse(f"temperature must be finite and greater than 0; got {temperature}")
        if self.gradient not in get_args(Gradient):
            refuse(f"gradient must be one of {', '.join(get_args(Gradient))}; got {self.gradient!r}")
        if self.sampler not in get_args(Sampler):
            refuse(f"sampler must be one of {', '.join(get_args(Sampler))}; got {self.sampler!r}")
        if not self.hard and self.gradient != "downhill":
            refuse(f"relaxed masks (hard=False) have the gradient 'downhill'; got {self.gradient!r}")
