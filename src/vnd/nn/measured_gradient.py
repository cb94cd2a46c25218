r"""The gradient of the order by measured differences of the loss.

With hard lengths the expected loss is $\mathbb E[L] = L_0 + \sum_i P(z_i = 1)\, Δ_i$, where $Δ_i$ is what the loss
changes by when unit i is added to a network that has all units before it. So

$$\frac{∂\, \mathbb E[L]}{∂ m} = \sum_i \frac{∂ P(z_i = 1)}{∂ m}\, Δ_i,$$

exactly, whatever the loss. $Δ_i$ is measured by two passes without gradient and kept in a table.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vnd.nn.ordering import OrderingUnit, pin, pinned
from vnd.nn.state import unwrap


def difference_term(root: nn.Module) -> Tensor:
    r"""The term to add to the loss, $\sum_l \sum_i P(z_i = 1) \hat Δ_i$: its gradient is the data's on the order.

    Its value means nothing. Units of another `gradient` add nothing.

    >>> difference_term(nn.Linear(2, 2))  # nothing in it is ordered
    tensor(0.)
    """
    units = _measured_units(root)
    if not units:
        return torch.zeros(())
    terms = [(unit.posterior().chain.log_survival.exp() * unit.differences).sum() for unit in units]
    return torch.stack(terms).sum()


@torch.no_grad()
def update_differences(root: nn.Module, loss: Callable[[], Tensor], rate: float = 0.1) -> None:
    """Measure the loss with and without one unit drawn at random, and move its entry of the table there.

    The other layers stand where they would when this unit is the last to be kept: at the quantile u = P(zᵢ = 1) if
    they are coupled (units of other layers with the very same survival count as kept), at a fresh draw if not. Both
    passes see the same random numbers, and running statistics of BatchNorm are put back. Entries start as plain
    averages and become exponential moving ones.

    Args:
        root: The network, in training mode.
        loss: Computes the loss on the current batch by calling `root`.
        rate: Smallest weight of a new measurement.

    >>> import vnd
    >>> plain = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).train()
    >>> update_differences(net, lambda: net(torch.ones(4, 2)).square().mean())
    >>> [int(unit.difference_counts.sum()) for unit in net.modules() if isinstance(unit, vnd.OrderingUnit)]
    [1]
    """
    units = _measured_units(root)
    sizes = torch.tensor([unit.num_nested for unit in units])
    if not units or int(sizes.sum()) == 0:
        return
    chosen = int(torch.randint(int(sizes.sum()), ()))
    which = int((chosen >= sizes.cumsum(0)).sum())
    unit, index = units[which], chosen - int(sizes[:which].sum())

    buffers = [b for m in root.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) for b in m.buffers()]
    buffers += [unit.quantile.count] if unit.quantile is not None else []  # the rotation goes on undisturbed
    before = [buffer.clone() for buffer in buffers]
    others = [m for m in root.modules() if isinstance(m, OrderingUnit) and m is not unit]
    others = [other for other in others if unit.quantile is not None and other.quantile is unit.quantile]
    level = unit.posterior().chain.log_survival[index]
    lengths = [other.base + (other.posterior().chain.log_survival >= level).sum() for other in others]
    try:
        with pinned([*others, unit], [*lengths, unit.base + index]):
            with torch.random.fork_rng(devices=[unit.keep_logits.device] if unit.keep_logits.is_cuda else []):
                without = loss()
            pin([unit], [unit.base + index + 1])
            difference = loss() - without
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)

    unit.difference_counts[index] += 1
    weight = (1 / unit.difference_counts[index]).clamp(min=rate)
    unit.differences[index] += weight * (difference - unit.differences[index])


def _measured_units(root: nn.Module) -> list[OrderingUnit]:
    return [m for m in root.modules() if isinstance(m, OrderingUnit) and m.gradient == "difference"]


def step_order(net: nn.Module, loss_fn: Callable[[], Tensor], measure: bool = True) -> Tensor:
    r"""A term for the loss whose value is 0 and whose gradient is the measured one of the order.

    $$\sum_l \sum_i P(z_i = 1)\, \hat Δ_i, \qquad \hat Δ_i = \mathbb E[L \mid \text{unit } i \text{ added}] -
    \mathbb E[L \mid \text{not}]$$

    Without it the order is trained through the masks that were drawn, as `OrderingUnit` says of "survival"; the method
    `bn3` trains it so. Each call measures Δ of one unit drawn at random, by two passes without gradient; the average
    over calls is kept in the network.

    Args:
        net: A nested network in training mode, whose units have `gradient` "difference", as `to_nested` makes them.
        loss_fn: Computes the loss of the current batch by calling `net`, without the KL.
        measure: Whether to measure in this step; every fourth is enough, `measure=step % 4 == 0`.

    Returns:
        A scalar to add to the loss before `backward`.

    >>> import torch, vnd
    >>> net = vnd.to_nested(vnd.models.ConvNet(width=0.25), torch.zeros(1, 1, 28, 28), num_groups=4).train()
    >>> x, y = torch.randn(8, 1, 28, 28), torch.arange(8)
    >>> loss_fn = lambda: nn.functional.cross_entropy(net(x), y)
    >>> order = vnd.step_order(net, loss_fn)
    >>> loss = loss_fn() + vnd.kl(net) / 60_000 + order
    >>> loss.backward()
    >>> float(order.detach())
    0.0
    """
    root = unwrap(net)
    if not any(isinstance(unit, OrderingUnit) and unit.gradient == "difference" for unit in root.modules()):
        raise ValueError("step_order: no ordering unit of the network has gradient 'difference'; convert it with those")
    if measure:
        update_differences(root, loss_fn)
    term = difference_term(root)
    return term - term.detach()
