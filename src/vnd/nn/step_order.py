r"""The measured gradient of the order, for a training loop of one's own."""

from collections.abc import Callable

from torch import Tensor, nn

from vnd.nn.differences import difference_term, update_differences
from vnd.nn.ordering import OrderingUnit
from vnd.nn.plan import unwrap


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
