"""Drawing the masks of ordering units, those of several alike units at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vnd.distributions import Downhill
from vnd.functional import length_mask, straight_through

if TYPE_CHECKING:
    from vnd.nn.ordering import OrderingUnit


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
    if units[0].sampler == "released":
        return Downhill(temperature, length_logits=posterior.length_log_probs.exp(), validate_args=False)
    return posterior


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
