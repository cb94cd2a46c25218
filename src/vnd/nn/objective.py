r"""Terms of the objective beside the data's: the KL, and the order by measured differences of the loss.

With hard lengths the expected loss is $\mathbb E[L] = L_0 + \sum_i P(z_i = 1)\, Δ_i$, where $Δ_i$ is what the loss
changes by when unit i is added to a network that has all units before it. So

$$\frac{∂\, \mathbb E[L]}{∂ m} = \sum_i \frac{∂ P(z_i = 1)}{∂ m}\, Δ_i,$$

exactly, whatever the loss. $Δ_i$ is measured by two passes without gradient and kept in a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vnd.distributions import BernoulliChain, LogUniform
from vnd.distributions.kl import chain_kl
from vnd.functional import log_uniform_constant, to_float32
from vnd.nn.arguments import describe_value
from vnd.nn.bayesian import BayesConvTranspose2d, BayesLayer
from vnd.nn.bits import BIT_KL
from vnd.nn.ordering import OrderingUnit, pin, pinned
from vnd.nn.state import NestedState, alike, unwrap

KeepProb = Literal["output", "min", "released"]
Reduction = Literal["sum", "fan_in"]


def kl(net: nn.Module, kl_keep_prob: KeepProb = "output", reduction: Reduction = "sum") -> Tensor:
    r"""KL of the posterior over masks and weights from the prior, summed over the network, in nats.

    $$\mathrm{KL} = \sum_l Φ_1^{(l)} + \sum_l \sum_{w} P(w \text{ is kept})\, κ_w$$

    Paper: Eq. (18). A function of the parameters alone: no forward pass is needed, and none leaves anything behind.

    Where blocks are ordered (`depth=True`), a weight is kept if its block is, too, and the lengths of units within a
    block matter only if it is kept; where it is dropped they stay at their prior:

    $$\mathrm{KL} = \sum_d Φ_1^{(d)} + \sum_k P(z_k = 1) \Bigl[\sum_{l \in k} Φ_1^{(l)} +
      \sum_{w \in k} P(w \text{ is kept} \mid z_k = 1)\, κ_w\Bigr]$$

    with the d that order blocks. "output" multiplies the probabilities of channel and block, as of independent units,
    so that a layer has the price that it has by itself, times the probability of its block. "min" takes the smaller
    one, which is exact for units coupled by quantile.

    Where the bits of a layer's weights are ordered, a weight has a price for each, $κ_w = \log 2 \sum_i P(z_i = 1)$: a
    bit that is kept is a fair coin that is known (`vnd.nn.bits`).

    Args:
        net: A nested network, or any that has nested networks, Bayesian layers or ordering units in it.
        kl_keep_prob: With what probability a weight is kept. "output": that of its output channel, as in the paper.
            "min": the smaller of those of its output and input channels and its block, since extraction drops a weight
            when any goes; exact for units coupled by quantile. Where a unit orders a layer's own input rows or single
            weights, their survival counts in both. "released": as "output", but with the reduction "fan_in" and
            without the constant C, as in the authors' code; for reproduction only.
        reduction: Over the weights of an output channel: their "sum", as in the paper, or "fan_in", their mean, which
            is the sum over the number of inputs (and positions of a kernel) that the channel reads.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> loss = vnd.kl(net) / 60_000  # of 60,000 training examples; add the mean loss of a batch
    >>> bool(loss > 0)
    True
    """
    if kl_keep_prob not in get_args(KeepProb):
        raise ValueError(f"kl: kl_keep_prob must be one of {', '.join(get_args(KeepProb))}; got {kl_keep_prob!r}")
    if reduction not in get_args(Reduction):
        raise ValueError(f"kl: reduction must be one of {', '.join(get_args(Reduction))}; got {reduction!r}")
    root = unwrap(net)
    holders: dict[nn.Module, tuple[str, NestedState]] = {}  # layers of nested networks, of which `net` may hold several
    for part in root.modules():
        if isinstance(state := getattr(part, "_vnd_state", None), NestedState):
            holders |= {module: (name, state) for name, module in part.named_modules()}
    terms = [length_kl(root)]
    for module in root.modules():
        name, own = holders.get(module, ("", None))
        if isinstance(module, BayesLayer) and (module.bayesian or (own is not None and name in own.bits)):
            terms.append(_weights_kl(module, name, own, kl_keep_prob, reduction))
    return torch.stack([term.to(terms[-1].device) for term in terms]).sum()


def length_kl(net: nn.Module) -> Tensor:
    r"""The part of `kl` that is of the lengths, $\sum_l Φ_1^{(l)}$, in nats; 0 for a network without ordering units.

    Weighed by c on its own, it keeps lengths apart: where unit j of a layer adds $Δ_j$ to the rest of the objective,
    its optimum is the Gibbs distribution of temperature c around the prior p,

    $$q_j \propto p_j \exp\Bigl(-\tfrac1c \sum_{i \le j} Δ_i\Bigr).$$

    >>> import torch, vnd
    >>> unit = vnd.OrderingUnit(8, num_groups=4)
    >>> length_kl(unit) > 0
    tensor(True)
    """
    units = [module for module in unwrap(net).modules() if isinstance(module, OrderingUnit)]
    blocks = _blocks_of_units(net)
    terms = []
    for together in alike(units):  # of as many groups
        posterior = BernoulliChain(torch.stack([unit.keep_logits for unit in together]), validate_args=False)
        prior = BernoulliChain(torch.stack([unit.prior_logits for unit in together]), validate_args=False)
        # By name: torch's look-up by type makes torch.compile compile twice.
        lengths = chain_kl(posterior, prior)
        if any(unit in blocks for unit in together):
            lengths = lengths * torch.stack([blocks.get(unit, lengths.new_ones(())) for unit in together])
        terms.append(lengths.sum())
    return torch.stack(terms).sum() if terms else torch.zeros(())


def _blocks_of_units(net: nn.Module) -> dict[OrderingUnit, Tensor]:
    """Probability that the block is kept that all channels of a unit lie in, for those of which it is so."""
    found = {}
    for part in unwrap(net).modules():
        if isinstance(state := getattr(part, "_vnd_state", None), NestedState):
            for name, place in state.within.items():
                survival = state.block_survival(place)
                assert survival is not None
                found[state.units[name]] = survival
    return found


def _weights_kl(
    layer: Any, name: str, state: NestedState | None, kl_keep_prob: KeepProb, reduction: Reduction
) -> Tensor:
    """Φ₂ of one layer."""
    if state is not None and name in state.bits:
        bits = _bits_kl(layer, name, state, kl_keep_prob)
        return bits / fan_in(layer) if reduction == "fan_in" else bits
    cost: Tensor = layer.weight_kl()
    if kl_keep_prob == "released":
        cost = cost - _constant(layer)
    if reduction == "fan_in" or kl_keep_prob == "released":
        cost = cost / fan_in(layer)
    if state is None:
        return cost.sum()
    block = state.block_survival(state.place_of(name))
    if block is None or kl_keep_prob == "min":
        return _kept_kl(cost, layer, name, state, kl_keep_prob, block)
    return block * _kept_kl(cost, layer, name, state, kl_keep_prob, None)


def _bits_kl(layer: Any, name: str, state: NestedState, kl_keep_prob: KeepProb) -> Tensor:
    """Φ₂ of a layer whose bits are ordered: each bit of a weight has a price, and is kept if the weight is, too."""
    unit = state.units[state.bits[name]]
    bits, block = unit.spread(unit.survival()), state.block_survival(state.place_of(name))
    cost = torch.full_like(to_float32(layer.weight), BIT_KL)
    if kl_keep_prob == "min":
        most = bits if block is None else torch.minimum(bits, block)
        return torch.stack([_kept_kl(cost, layer, name, state, kl_keep_prob, one) for one in most]).sum()
    weights = _kept_kl(cost, layer, name, state, kl_keep_prob, None) * bits.sum()
    return weights if block is None else weights * block


def _kept_kl(
    cost: Tensor, layer: Any, name: str, state: NestedState, kl_keep_prob: KeepProb, most: Tensor | None
) -> Tensor:
    """Φ₂ of one layer from that of each weight; its weights are kept with a probability of `most` at most."""

    def bounded(survival: Tensor) -> Tensor:
        return survival if most is None else torch.minimum(survival, most)

    if name in state.elements:
        unit = state.units[state.elements[name]]
        return (cost.flatten() * bounded(unit.spread(unit.survival()))).sum()
    outputs = state.survival(state.outputs.get(name), cost)
    inputs = state.survival(state.inputs.get(name), cost) if kl_keep_prob == "min" else None
    if name in state.rows:
        unit = state.units[state.rows[name]]
        rows = unit.spread(unit.survival())
        inputs = rows if inputs is None else torch.minimum(inputs, rows)
    if outputs is None and inputs is None:
        return cost.sum() if most is None else cost.sum() * most
    transposed = isinstance(layer, BayesConvTranspose2d)
    if inputs is None and outputs is not None and not transposed:
        return (cost.sum(tuple(range(1, cost.dim()))) * bounded(outputs)).sum()
    table = cost.flatten(2).sum(2) if cost.dim() > 2 else cost
    groups = getattr(layer, "groups", 1)
    if transposed:  # (in, out / groups) to (out, in / groups)
        table = table.view(groups, -1, table.size(1)).transpose(1, 2).reshape(-1, table.size(0) // groups)
    if inputs is None and outputs is not None:
        return (table.sum(1) * bounded(outputs)).sum()
    ends = table.new_ones(table.size(0)) if outputs is None else outputs
    starts = table.new_ones(table.size(1) * groups) if inputs is None else inputs
    # Output r of a grouped layer reads the inputs of its own group.
    starts = starts.view(groups, 1, -1).expand(groups, table.size(0) // groups, -1).reshape(table.shape)
    return (table * torch.minimum(bounded(ends)[:, None], starts)).sum()


def _constant(layer: Any) -> float:
    """C in the KL of a layer's weights."""
    prior = layer.prior
    if not isinstance(prior, LogUniform):
        raise ValueError("kl: price 'released' is of the log-uniform prior; give weight_prior the name of a form")
    return log_uniform_constant(prior.form, prior.offset)


def fan_in(layer: Any) -> float:
    """Number of weights of a layer that an output channel has.

    >>> fan_in(nn.Conv2d(6, 4, 3)), fan_in(nn.Conv2d(6, 4, 3, groups=2)), fan_in(nn.ConvTranspose2d(6, 4, 3))
    (54.0, 27.0, 54.0)
    """
    transposed = isinstance(layer, nn.modules.conv._ConvTransposeNd)
    outputs = layer.weight.size(1) * layer.groups if transposed else layer.weight.size(0)
    return float(layer.weight.numel() / outputs)


def parameter_groups(
    net: nn.Module,
    lr: float,
    log_alpha_lr: float | None = None,
    chain_lr: float | None = None,
    weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer: weights, log α (or log σ²) and keep logits, each with its own rate.

    Decay applies to weights of two or more dimensions; never to biases, norms, log α or logits.

    Args:
        net: Any network.
        lr: Learning rate of weights.
        log_alpha_lr: That of log α; `lr` if None.
        chain_lr: That of the keep logits; `lr` if None.
        weight_decay: Decay of the weights.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> groups = vnd.parameter_groups(net, lr=0.1, chain_lr=0.3)
    >>> [(group["name"], group["lr"]) for group in groups]
    [('weights', 0.1), ('undecayed', 0.1), ('log_alpha', 0.1), ('chain', 0.3)]
    """
    given = {"lr": lr, "log_alpha_lr": log_alpha_lr, "chain_lr": chain_lr, "weight_decay": weight_decay}
    for name, value in given.items():
        if isinstance(value, Real) and not 0 <= value < math.inf:
            raise ValueError(f"parameter_groups: {name} must be finite and at least 0; got {value}")
    kinds: dict[str, list[nn.Parameter]] = {"weights": [], "undecayed": [], "log_alpha": [], "chain": []}
    for name, parameter in unwrap(net).named_parameters():
        last = name.rpartition(".")[2]
        if last in ("log_alpha", "log_variance"):
            kinds["log_alpha"].append(parameter)
        elif last == "keep_logits":
            kinds["chain"].append(parameter)
        else:
            kinds["weights" if parameter.dim() > 1 else "undecayed"].append(parameter)
    rates = {
        "weights": lr,
        "undecayed": lr,
        "log_alpha": lr if log_alpha_lr is None else log_alpha_lr,
        "chain": lr if chain_lr is None else chain_lr,
    }
    return [
        {"params": params, "lr": rates[kind], "weight_decay": weight_decay if kind == "weights" else 0.0, "name": kind}
        for kind, params in kinds.items()
        if params
    ]


def set_temperature(net: nn.Module, temperature: float) -> None:
    """Set the temperature of all ordering units of a network.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4).eval()
    >>> vnd.set_temperature(net, 0.5)
    >>> [float(unit.temperature) for unit in net.modules() if isinstance(unit, vnd.OrderingUnit)]
    [0.5]
    """
    single = isinstance(temperature, Real) or (isinstance(temperature, Tensor) and temperature.numel() == 1)
    if not single or not 0 < temperature < math.inf:
        got = describe_value(temperature) if isinstance(temperature, Tensor) and not single else temperature
        raise ValueError(f"set_temperature: temperature must be finite and greater than 0; got {got}")
    for module in unwrap(net).modules():
        if isinstance(module, OrderingUnit):
            module.temperature.fill_(temperature)


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
    before = _copied(buffers)
    others = [m for m in root.modules() if isinstance(m, OrderingUnit) and m is not unit]
    others = [other for other in others if unit.quantile is not None and other.quantile is unit.quantile]
    level = unit.posterior().chain.log_survival[index]
    together = alike(others)  # a few kernels for many
    lengths = [length for some in together for length in _lengths_at(some, level)]
    try:
        with pinned([*chain.from_iterable(together), unit], [*lengths, unit.base + index]):
            with torch.random.fork_rng(devices=[unit.keep_logits.device] if unit.keep_logits.is_cuda else []):
                without = loss()
            pin([unit], [unit.base + index + 1])
            difference = loss() - without
    finally:
        _copy(buffers, before)

    unit.difference_counts[index] += 1
    weight = (1 / unit.difference_counts[index]).clamp(min=rate)
    unit.differences[index] += weight * (difference - unit.differences[index])


def _lengths_at(units: list[OrderingUnit], level: Tensor) -> tuple[Tensor, ...]:
    """Groups that units alike keep at a level of the log survival."""
    logits = torch.stack([unit.keep_logits for unit in units])
    log_survival = BernoulliChain(logits, validate_args=False).log_survival
    return (units[0].base + (log_survival >= level).sum(1)).unbind()


def _copied(tensors: list[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(x) for x in tensors]
    _copy(copies, tensors)
    return copies


def _copy(places: list[Tensor], values: list[Tensor]) -> None:
    """Fill tensors, those of a dtype by one kernel."""
    for dtype in {x.dtype for x in places}:
        of_dtype = [(place, value) for place, value in zip(places, values, strict=True) if place.dtype == dtype]
        torch._foreach_copy_([place for place, _ in of_dtype], [value for _, value in of_dtype])


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
        loss_fn: Computes the loss of the current batch, or of a part of it, by calling `net`, without the KL. The
            method `bn3` takes an eighth of the batch, every eighth example, but 32 of them at least.
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
    if not callable(loss_fn):
        raise ValueError(f"step_order: loss_fn must be a function without arguments; got a {type(loss_fn).__name__}")
    root = unwrap(net)
    if not any(isinstance(unit, OrderingUnit) and unit.gradient == "difference" for unit in root.modules()):
        raise ValueError("step_order: no ordering unit of the network has gradient 'difference'; convert it with those")
    if measure:
        update_differences(root, loss_fn)
    term = difference_term(root)
    return term - term.detach()
