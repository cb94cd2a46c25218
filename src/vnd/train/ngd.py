"""NGD: stochastic gradient descent along Povey's online natural gradient."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from vnd.functional import widen

EAGER_STEPS = 10  # the factors are updated on each of the first steps, then once a period
FIRST_ROUNDS = 3  # updates with the first gradient before its use: a power method from the regular start
FLOOR = 5e-4  # δ, the smallest eigenvalue of a factor over its largest
LIFT = 1e-6  # the smallest ρ over the trace of a scatter to be mixed in


class Factor(NamedTuple):
    """One axis's Fisher factor, $F = R^⊤ D R + ρ I$, and $E = D (D + β I)^{-1}$: (r, d), (r,), a 0-d tensor, (r,)."""

    basis: Tensor
    strength: Tensor
    rest: Tensor
    shrinkage: Tensor


class Update(NamedTuple):
    """What a factor is updated with: $R x x^⊤$ and the norm of x, to be brought to `energy`, the square of its norm."""

    factor: Factor
    scattered: Tensor
    norm: Tensor
    energy: Tensor
    columns: int


class NGD(Optimizer):
    r"""SGD with momentum along an online natural gradient, with one low-rank-plus-identity Fisher factor per axis.

    A gradient of shape $(d_1, …, d_k)$, k ≥ 2, is taken along its axes in turn. For an axis of size d > 1 the others
    make N columns, $X \in \mathbb{R}^{d × N}$, with scatter $S_t = X X^⊤ / N$. The axis's factor is

    $$F_t = R_t^⊤ D_t R_t + ρ_t I, \qquad R_t R_t^⊤ = I_r, \quad D_t \text{ diagonal}, \quad
      r = \min(\text{rank}, ⌊(d + 1) / 2⌋).$$

    *Use.* With $β_t = ρ_t + \frac{α}{d} \operatorname{tr} F_t$ and $G_t = R_t^⊤ D_t R_t + β_t I$, the factor smoothed
    by the identity,

    $$\hat X = β_t G_t^{-1} X = X - R_t^⊤ E_t R_t X, \quad E_t = D_t (D_t + β_t I)^{-1}, \qquad
      X ← \hat X \, ‖X‖ / ‖\hat X‖,$$

    so that the direction has the gradient's norm. The next axis takes what this one returns.

    *Update*, on each of the first 10 steps and then on every `update_period`-th, after the factor's use:

    $$T_t = η S_t + (1 - η) F_t, \quad Y_t = R_t T_t, \quad Y_t Y_t^⊤ = U C U^⊤, \quad
      R_{t+1} = C^{-1/2} U^⊤ Y_t, $$
    $$ρ_{t+1} = \frac{\operatorname{tr} T_t - \operatorname{tr} C^{1/2}}{d - r}, \quad D_{t+1} = C^{1/2} - ρ_{t+1} I,
      \quad \text{both at least } \max(ε, δ \max C^{1/2}),\ δ = 5 · 10^{-4}.$$

    One step of the power method on T, whose trace F keeps. Factors start at $ρ = D = ε$ with a regular R, and the first
    gradient updates them three times before its use.

    *Step.* With g the gradient plus `weight_decay` times the parameter, and P the above: $m ← μ m + P g$,
    $θ ← θ - \text{lr} · m$; with `nesterov` $θ ← θ - \text{lr} (P g + μ m)$. As in torch's SGD, m starts as the first
    direction. Vectors and scalars, and groups with `precondition=False`, have P = I.

    Povey, Zhang and Khudanpur (2015), Parallel training of DNNs with natural gradient and parameter averaging, the
    appendix on the online method. Paper: App. C.1 trains with it.

    Note: As in its authors' PyTorch version the columns are the gradient's other axes, for want of gradients of single
        examples; the norm is restored axis by axis; decay comes before the preconditioning. Departures: vectors are
        not preconditioned; gradients may have any scale (they are taken over their largest entry; D, ρ and the
        decomposition are float64); ρ entering T is at least 1e-6 tr S, so that a jump in scale leaves R orthonormal,
        which is otherwise without effect.
        Smoothing scales with the gradient, ε does not: an axis whose mean squared gradient is far below ε is left
        nearly as it is.

    Note: A gradient that is not finite leaves the factors as they are, and reaches the parameter and its momentum as
        in torch's SGD; to skip such a step is the loop's choice. A step waits for the device only when it updates
        the factors, since `eigh` runs on the CPU.

    The state is tensors only: `step` (on the CPU), `momentum_buffer`, and `basis_i`, `strength_i`, `rest_i`,
    `shrinkage_i` for axis i, in float32 or wider whatever the parameter; `load_state_dict`, unlike torch's, keeps their
    dtypes.

    Args:
        params: Parameters, or groups of them; a group may have its own value of every argument below.
        lr: Learning rate.
        momentum: μ, from 0 to below 1.
        weight_decay: Factor of the parameter that is added to its gradient.
        nesterov: Nesterov momentum.
        rank: Largest rank r of a factor.
        alpha: α, the identity's weight in the smoothed factor.
        eta: η, the weight of the latest scatter, between 0 and 1.
        update_period: Steps from one update of the factors to the next.
        epsilon: ε, the smallest eigenvalue of a factor.
        precondition: False for plain SGD.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 2))
    >>> optimizer = NGD([weight], lr=0.1)
    >>> weight.grad = torch.tensor([[3.0, 3.0], [0.0, 0.1], [0.0, 0.0]])
    >>> optimizer.step()
    >>> weight.detach().norm() / weight.grad.norm()  # lr: the norm is kept, the direction is not
    tensor(0.1000)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        rank: int = 80,
        alpha: float = 4.0,
        eta: float = 0.1,
        update_period: int = 4,
        epsilon: float = 1e-10,
        precondition: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "rank": rank,
            "alpha": alpha,
            "eta": eta,
            "update_period": update_period,
            "epsilon": epsilon,
            "precondition": precondition,
        }
        _check(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with the defaults for what it does not say."""
        _check(self.defaults | param_group)
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if not parameter.is_floating_point():
                self.param_groups.pop()
                raise ValueError(f"NGD: parameters must be real floating-point tensors; got {parameter.dtype}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; `closure`, if given, computes the loss and the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            updates: list[Update] = []
            for parameter in group["params"]:
                if parameter.grad is not None:
                    with torch.autocast(parameter.device.type, enabled=False):
                        direction = self._direction(parameter, group, updates)
                        self._move(parameter, group, direction)
            _refresh(updates, group)
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state as `state_dict` gave it: copied to the parameters' devices, in the dtypes it has."""
        super().load_state_dict(state_dict)  # which casts to the dtype of the parameter
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, parameter in zip(saved, own, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                device = "cpu" if name == "step" else parameter.device  # reading it must not wait for the device
                self.state[parameter][name] = value.detach().to(device, copy=True)

    def _direction(self, parameter: Tensor, group: dict[str, Any], updates: list[Update]) -> Tensor:
        """The natural gradient of a parameter; what its factors are to be updated with is added to `updates`."""
        if parameter.grad is None or parameter.grad.layout != torch.strided:
            raise ValueError("NGD: gradients must be dense tensors; got a sparse one, make its layer with sparse=False")
        gradient = widen(parameter.grad)
        if group["weight_decay"]:
            gradient = gradient.add(widen(parameter), alpha=group["weight_decay"])
        if not group["precondition"] or gradient.ndim < 2 or not gradient.numel():
            return gradient
        state = self.state[parameter]
        step = state.setdefault("step", torch.zeros((), dtype=torch.int64)).add_(1).item()
        largest = gradient.abs().amax()
        x = gradient / torch.where(largest > 0, largest, 1.0)
        norm = _norm(x)
        energy = (largest.double() * norm).square()
        for axis, size in enumerate(gradient.shape):
            x = x.reshape(size, -1)
            if size > 1:
                factor = _factor(state, axis, x, group)
                for _ in range(FIRST_ROUNDS if step == 1 else 0):
                    _refresh([_update(factor, x, energy)], group)
                if _due(step, group["update_period"]):
                    updates.append(_update(factor, x, energy))
                x = _precondition(x, factor)
            x = _turn(x)
        direction = _restore(x.reshape(gradient.shape), norm) * largest
        return torch.where(largest.isfinite(), direction, gradient)

    def _move(self, parameter: Tensor, group: dict[str, Any], direction: Tensor) -> None:
        """Move a parameter along a direction, with momentum."""
        momentum = group["momentum"]
        if momentum:
            state = self.state[parameter]
            if "momentum_buffer" in state:
                state["momentum_buffer"].mul_(momentum).add_(direction)
            else:
                state["momentum_buffer"] = direction.clone(memory_format=torch.contiguous_format)
            buffer = state["momentum_buffer"]
            direction = direction.add(buffer, alpha=momentum) if group["nesterov"] else buffer
        parameter.add_(direction, alpha=-group["lr"])


def _due(step: int, period: int) -> bool:
    """Whether the factors are updated on this step, counted from 1."""
    return step <= EAGER_STEPS or (step - EAGER_STEPS) % period == 0


def _turn(x: Tensor) -> Tensor:
    """Put the leading axis last, and so the next one in front; after all axes the order is the first again."""
    return x.t()


def _factor(state: dict[str, Any], axis: int, x: Tensor, group: dict[str, Any]) -> Factor:
    """An axis's factor, made if there is none: rows of equal entries in turn, (1.1, 0, 1, 0, 1 …), (0, 1.1, 0, 1 …)."""
    names = [f"{name}_{axis}" for name in Factor._fields]
    if names[0] not in state:
        size = x.shape[0]
        rank = min(group["rank"], (size + 1) // 2)
        rows = torch.arange(rank, device=x.device)[:, None]
        basis = (torch.arange(size, device=x.device) % rank == rows).to(x.dtype)
        basis[:, :rank] *= 1.1  # or a direction that gradients often lack, (1, …, 1), would be a sum of rows
        strength = torch.full((rank,), group["epsilon"], dtype=torch.float64, device=x.device)
        shrinkage = _shrinkage(strength, strength[0], size, group["alpha"]).to(x.dtype)
        made = torch.nn.functional.normalize(basis, dim=1), strength, strength[0].clone(), shrinkage
        state.update(zip(names, made, strict=True))
    return Factor(*(state[name] for name in names))


def _shrinkage(strength: Tensor, rest: Tensor, size: int, alpha: float) -> Tensor:
    """E, of one factor or a batch of them."""
    beta = (1 + alpha) * rest + alpha / size * strength.sum(-1)
    return strength / (strength + beta[..., None])


def _precondition(x: Tensor, factor: Factor) -> Tensor:
    """$β G^{-1} x$, by Woodbury's identity."""
    return torch.addmm(x, factor.basis.t(), factor.shrinkage[:, None] * (factor.basis @ x), alpha=-1)


def _restore(x: Tensor, norm: Tensor) -> Tensor:
    """`x` with another norm; zeros stay zeros."""
    own = _norm(x)
    return x * (norm / torch.where(own > 0, own, 1.0)).to(x.dtype)


def _norm(x: Tensor) -> Tensor:
    """Norm, in float64, row by row: over all of five million entries at once float32 is wrong by 1e-4 on the CPU."""
    norm: Tensor = torch.linalg.vector_norm(torch.linalg.vector_norm(x.flatten(1), dim=1).double())
    return norm


def _update(factor: Factor, x: Tensor, energy: Tensor) -> Update:
    """The parts of an update that are as large as x, in its precision."""
    return Update(factor, (factor.basis @ x) @ x.t(), _norm(x), energy, x.shape[1])


def _refresh(updates: list[Update], group: dict[str, Any]) -> None:
    """Update factors in place, those of one shape together."""
    batches: dict[tuple[torch.Size, torch.device, torch.dtype], list[Update]] = {}
    for update in updates:
        basis = update.factor.basis
        batches.setdefault((basis.shape, basis.device, basis.dtype), []).append(update)
    for batch in batches.values():
        old = Factor(*(torch.stack(parts) for parts in zip(*(update.factor for update in batch), strict=True)))
        new = _renew(old, batch, group)
        for update, parts in zip(batch, zip(*new, strict=True), strict=True):
            for own, value in zip(update.factor, parts, strict=True):
                own.copy_(value)


def _renew(old: Factor, batch: list[Update], group: dict[str, Any]) -> Factor:
    """The next factors of a batch; the old ones where a gradient is not finite."""
    (rank, size), eta = old.basis.shape[1:], group["eta"]
    norm, energy = (torch.stack([getattr(update, name) for update in batch]) for name in ("norm", "energy"))
    power = energy / norm.new_tensor([update.columns for update in batch])  # the trace of S
    rest = torch.maximum(old.rest, LIFT * power)
    sketch = torch.stack([update.scattered for update in batch]).double()
    sketch *= (eta * power / torch.where(norm > 0, norm, 1.0).square())[:, None, None]
    sketch += ((1 - eta) * (old.strength + rest[:, None]))[:, :, None] * old.basis
    trace = eta * power + (1 - eta) * (size * rest + old.strength.sum(1))

    scale = sketch.abs().amax((1, 2))
    usable = energy.isfinite() & scale.isfinite()
    sketch /= scale[:, None, None]
    one = torch.eye(rank, dtype=torch.float64, device=sketch.device)
    gram = torch.where(usable[:, None, None], sketch @ sketch.mT, one)
    # On the CPU, where matrices this small take a third of the time.
    rows = torch.linalg.eigh(gram.cpu()).eigenvectors.mT.to(sketch.device) @ sketch
    # Norms of rows are the roots of the eigenvalues, of which the smallest are lost beside the largest.
    roots = torch.linalg.vector_norm(rows, dim=2)
    basis = rows / roots[:, :, None]
    usable &= (basis @ basis.mT - one).abs().amax((1, 2)) < 1e-4  # false for NaN

    roots = torch.maximum(roots * scale[:, None], (1 - eta) * rest[:, None])
    rest = (trace - roots.sum(1)) / (size - rank)
    floor = (FLOOR * roots.amax(1)).clamp(min=group["epsilon"])
    strength, rest = torch.maximum(roots - rest[:, None], floor[:, None]), torch.maximum(rest, floor)
    new = basis, strength, rest, _shrinkage(strength, rest, size, group["alpha"])
    return Factor(
        *(
            torch.where(usable.view(-1, *[1] * (was.dim() - 1)), now.to(was.dtype), was)
            for now, was in zip(new, old, strict=True)
        )
    )


def _check(group: dict[str, Any]) -> None:
    """Refuse options out of range, by name."""
    ranges: dict[str, tuple[str, Callable[[float], bool]]] = {
        "lr": ("a finite number of at least 0", lambda x: x >= 0),
        "momentum": ("a number from 0 to below 1", lambda x: 0 <= x < 1),
        "weight_decay": ("a finite number of at least 0", lambda x: x >= 0),
        "rank": ("an integer of at least 1", lambda x: isinstance(x, int) and x >= 1),
        "alpha": ("a finite number of at least 0", lambda x: x >= 0),
        "eta": ("a number greater than 0 and less than 1", lambda x: 0 < x < 1),
        "update_period": ("an integer of at least 1", lambda x: isinstance(x, int) and x >= 1),
        "epsilon": ("a finite number greater than 0", lambda x: x > 0),
    }
    for name, (what, allowed) in ranges.items():
        value = group[name]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not allowed(value):
            raise ValueError(f"NGD: {name} must be {what}; got {value!r}")
    for name in ("nesterov", "precondition"):
        if not isinstance(group[name], bool):
            raise ValueError(f"NGD: {name} must be True or False; got {group[name]!r}")
    if group["nesterov"] and not group["momentum"]:
        raise ValueError(f"NGD: momentum must be greater than 0 with nesterov; got {group['momentum']!r}")
