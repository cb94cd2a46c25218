"""One uniform number a step for all layers of a network: coupling by quantile."""

from typing import Any

import torch
from torch import Tensor, nn

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
    from vnd.nn.ordering import OrderingUnit

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
