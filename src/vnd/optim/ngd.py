"""NGD: stochastic gradient descent along Povey's online natural gradient."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import chain
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict
from torch.optim.sgd import sgd

from vnd.functional import to_float32
from vnd.optim.cuda import EighJob, GraphCache, branch, decompose, fast_products
from vnd.optim.fisher import Factor, Observed, PendingUpdate, by_kind, identity, shrinkage_of
from vnd.optim.kernels import narrow_moments, narrow_product, norms, put_scaled

INITIAL_UPDATES = 10  # the factors are updated on each of the first steps, then once a period
FIRST_ROUNDS = 3  # updates with the first gradient before its use: a power method from the regular start
NARROW = (
    64  # a run of axes up to this size takes one product, with a full matrix; a longer one two, at an end of memory
)
EXTENT = 1e30  # units of gradients lie between one over it and it, in float32
OPTIONS = ("rank", "alpha", "eta", "epsilon", "update_period")  # of factors


class NGD(Optimizer):
    r"""SGD with momentum along an online natural gradient, with one low-rank-plus-identity Fisher factor per axis.

    A gradient of shape $(d_1, …, d_k)$, k ≥ 2, is taken along its axes in turn. For an axis of size d > 1 the others
    make N columns, $X \in \mathbb{R}^{d × N}$, with scatter $S_t = X X^⊤ / N$. The axis's factor is

    $$F_t = R_t^⊤ D_t R_t + ρ_t I, \quad R_t R_t^⊤ = I_r, \quad D_t \text{ diagonal}, \quad
      r = \min(\text{rank}, ⌊(d + 1) / 2⌋).$$

    *Use.* With $β_t = ρ_t + \frac{α}{d} \operatorname{tr} F_t$, the factor is smoothed by the identity,

    $$\hat X = β_t (R_t^⊤ D_t R_t + β_t I)^{-1} X = X - R_t^⊤ E_t R_t X, \quad E_t = D_t (D_t + β_t I)^{-1}, \quad
      X ← \hat X \, ‖X‖ / ‖\hat X‖,$$

    of the gradient's norm. The next axis takes what this one returns.

    *Update*, after the use, in steps 1 … 10, then in those of one more than a multiple of `update_period`: 13, 17, …

    $$T_t = η S_t + (1 - η) F_t, \quad Y_t = R_t T_t, \quad Y_t Y_t^⊤ = U C U^⊤, \quad
      R_{t+1} = C^{-1/2} U^⊤ Y_t, $$
    $$ρ_{t+1} = \frac{\operatorname{tr} T_t - \operatorname{tr} C^{1/2}}{d - r}, \quad D_{t+1} = C^{1/2} - ρ_{t+1} I,
      \quad \text{both at least } \max(ε, δ \max C^{1/2}),\ δ = 5 · 10^{-4}.$$

    It is a step of the power method on T. Factors start at $ρ = D = ε$ with a regular R, and the first gradient updates
    them three times before its use.

    *Step.* With g the gradient plus `weight_decay` times the parameter, P g is its direction (g itself for vectors and
    scalars, and without `precondition`), and the parameter moves as in torch's SGD: $m ← μ m + P g$,
    $θ ← θ - \text{lr} · m$; with `nesterov` $θ ← θ - \text{lr} (P g + μ m)$.

    Povey, Zhang and Khudanpur (2015), Parallel training of DNNs with natural gradient and parameter averaging, the
    appendix on the online method. Paper: App. C.1 trains with it.

    Note: As in its authors' PyTorch version the columns are the gradient's other axes, and decay comes before the
        preconditioning. Departures: vectors are not preconditioned; gradients may have any scale (norms, D, ρ and the
        decomposition are float64, products of two gradients are taken over their norm); one that is not finite, or
        whose direction is not, is its direction, and leaves the factors; ρ entering T is at least 1e-6 tr S, so that
        a jump in scale leaves R orthonormal.

    Note: The state is tensors: `step`, `momentum_buffer`, and `basis_i`, `strength_i`, `rest_i`, `shrinkage_i` of axis
        i, in float32 or wider; `load_state_dict` keeps their dtypes. Decompositions run on the CPU, for parameters on a
        GPU in threads, until the next step or the next look at `state`. On one GPU preconditioning is captured as CUDA
        graphs when it has run a few times, and replayed while options and parameters with gradients stay what they are.
        Products along axes longer than 64 are in TF32 there: corrections of gradients, with eleven bits.

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
        self, params: ParamsT, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, nesterov: bool = False,
        rank: int = 80, alpha: float = 4.0, eta: float = 0.1, update_period: int = 4, epsilon: float = 1e-10,
        precondition: bool = True,
    ) -> None:  # fmt: skip
        defaults = {name: value for name, value in locals().items() if name not in ("self", "params", "__class__")}
        _check(defaults)
        self._reset()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()  # for a copy, or a state that was loaded
        super().__setstate__(state)

    def _reset(self) -> None:
        self._jobs: list[EighJob] = []  # of the update under way, and its end
        self._end: Callable[[], Any] = list
        self._graphs = GraphCache("NGD")
        self._groups: list[PreconditionGroup] = []
        self._moves: list[tuple[dict[str, Any], list[Tensor], list[Tensor]]] = []
        self._laid_out: Any = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with the defaults for what it does not say."""
        _check(self.defaults | param_group)
        self._finish()
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if not parameter.is_floating_point():
                self.param_groups.pop()
                raise ValueError(f"NGD: parameters must be real floating-point tensors; got {parameter.dtype}")

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """State by parameter, with the update under way, if there is one, brought to its end."""
        self._finish()
        state: defaultdict[Tensor, Any] = self.__dict__["state"]  # where torch's methods for pickle look for it
        return state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self.__dict__["state"] = state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; `closure`, if given, computes the loss and the gradients first."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        kept = self._laid_out == self._layout()
        self._end_update()
        if not kept:
            self._lay_out()
        for group, parameters, along in self._moves:
            torch._foreach_copy_(along, [p.grad for p in parameters if p.grad is not None])
            if group["weight_decay"]:
                torch._foreach_add_(along, [to_float32(p) for p in parameters], alpha=group["weight_decay"])
        work, devices = tuple(own.count() for own in self._groups), {own.gradient.device for own in self._groups}
        device = devices.pop() if len(devices) == 1 else None
        updates, self._end = self._graphs.run(work, device, self._turn, lambda own: branch([x.finish for x in own]))
        self._jobs = decompose([update.gram for update in updates])
        for move in self._moves:
            _move(*move, self.__dict__["state"])
        if not any(job.tasks for job in self._jobs):
            self._end_update()
        self._laid_out = self._layout()
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state as `state_dict` gave it: copied to the parameters' devices, in the dtypes it has."""
        super().load_state_dict(state_dict)  # which casts to the dtype of the parameter
        saved, own = (chain.from_iterable(g["params"] for g in x["param_groups"]) for x in (state_dict, vars(self)))
        for key, parameter in zip(saved, own, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                device = "cpu" if name == "step" else parameter.device  # reading it must not wait for the device
                self.state[parameter][name] = value.detach().to(device, copy=True)

    def _turn(self) -> list[PendingUpdate]:
        """Precondition all gradients; nothing but work on tensors that stay where they are, which can be captured."""
        seen = branch([own.turn for own in sorted(self._groups, key=lambda own: -own.gradient.numel())])
        return branch([partial(PendingUpdate, alike) for alike in by_kind(chain.from_iterable(seen))])

    @torch.no_grad()
    def _finish(self) -> None:
        """Bring the update under way to its end, outside of a step."""
        if self._jobs:
            kept = self._laid_out == self._layout()
            self._end_update()
            self._laid_out = self._layout() if kept else None

    def _end_update(self) -> None:
        """Bring the update under way to its end. An error in a thread is raised here, before any factor changes."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.finish()
        if jobs:
            self._end()

    def _layout(self) -> Any:
        """Layout of groups: options, parameters with gradients, their state, and how often it was written."""
        states, found = self.__dict__["state"], list[Any]()
        for group in self.param_groups:
            options = *(group[name] for name in OPTIONS), group["precondition"]
            for p in [p for p in group["params"] if p.grad is not None]:
                own = map(id, states.get(p, {}).values())
                found.append((options, id(p), p.stride(), p.device, p.grad.layout, *own))
        return found, [x._version for group in self._groups for x in group.stacks]

    def _lay_out(self) -> None:
        """Put parameters together that can be worked on together, for as long as nothing but numbers changes."""
        states, kinds, places = self.__dict__["state"], dict[Any, list[Tensor]](), dict[Any, list[Tensor]]()
        self._graphs.forget()
        for index, group in enumerate(self.param_groups):
            for p in [p for p in group["params"] if p.grad is not None]:
                if p.grad.layout != torch.strided:
                    raise ValueError("NGD: gradients must be dense tensors; got a sparse one: use sparse=False")
                places.setdefault((index, p.device, p.dtype), []).append(p)
                if group["precondition"] and p.ndim >= 2 and p.numel() > 0:
                    order = tuple(sorted(range(p.ndim), key=lambda axis: -p.stride()[axis]))  # the outermost first
                    own = order, int(states[p].get("step", 0)), tuple(group[name] for name in OPTIONS)
                    kinds.setdefault((p.device, p.dtype == torch.float64, p.shape, *own), []).append(p)
        self._groups = [PreconditionGroup(own, [states[p] for p in own], *kind[3:]) for kind, own in kinds.items()]
        inside = {p: x for group in self._groups for p, x in group.gradients.items()}
        self._moves = [
            (self.param_groups[index], own, [inside[p] if p in inside else _empty(p) for p in own])
            for (index, *_), own in places.items()
        ]


class PreconditionGroup:
    """Parameters of one shape, layout and step whose gradients are preconditioned together.

    `gradient` holds their gradients, (n, …), the axes in the order in which they lie in memory, and then their
    directions; `gradients` are its parts, with the parameters' own axes. The states become views of stacks.
    """

    def __init__(self, parameters: list[Tensor], states: list[Any], order: Any, step: int, options: Any) -> None:
        first, self.order, self.step, self.options = parameters[0], list(order), step, options
        shape, back = [first.shape[axis] for axis in order], [order.index(axis) for axis in range(first.ndim)]
        self.gradient = _empty(first).new_empty(len(parameters), *shape)
        self.gradients = {p: x.permute(back) for p, x in zip(parameters, self.gradient.unbind(), strict=True)}
        self.steps = _stacked(states, "step", torch.zeros(len(states), dtype=torch.int64))
        self.factors = {axis: self._factor(states, axis, size) for axis, size in enumerate(first.shape) if size > 1}
        self.stacks = [self.steps, *chain.from_iterable(self.factors.values())]

    def _factor(self, states: list[Any], axis: int, size: int) -> Factor:
        """An axis's factors, new ones of rows of equal entries in turn, (1.1, 0, 1, 0, 1 …), (0, 1.1, 0, 1, 0 …)."""
        (most, alpha, _, epsilon, _), n, x = self.options, len(states), self.gradient
        rank = min(most, (size + 1) // 2)
        basis = (torch.arange(size, device=x.device) % rank == torch.arange(rank, device=x.device)[:, None]).to(x.dtype)
        basis[:, :rank] *= 1.1  # or a direction that gradients often lack, (1, …, 1), would be a sum of rows
        strength = torch.full((n, rank), epsilon, dtype=torch.float64, device=x.device)
        shrinkage = shrinkage_of(strength, strength[:, 0], size, alpha).to(x.dtype)
        made = torch.nn.functional.normalize(basis, dim=1).repeat(n, 1, 1), strength, strength[:, 0].clone(), shrinkage
        return Factor(*(_stacked(states, f"{k}_{axis}", v) for k, v in zip(Factor._fields, made, strict=True)))

    def count(self) -> tuple[bool, bool]:
        """Count a step; gives what decides its work: whether it is the first, and whether it updates the factors."""
        self.steps.add_(1)
        self.step += 1
        self.due = self.step <= INITIAL_UPDATES or (self.step - 1) % self.options[-1] == 0
        return self.step == 1, self.due

    def _runs(self) -> list[list[int]]:
        """The axes in turn, narrow ones that lie side by side in memory together."""
        sizes, runs = dict(zip(self.order, self.gradient.shape[1:], strict=True)), list[list[int]]()
        memory = [axis for axis in self.order if sizes[axis] > 1]
        for axis in self.factors:
            own = [*runs[-1], axis] if runs else []
            joined = own and memory.index(axis) == memory.index(own[-2]) + 1 and prod(sizes[i] for i in own) <= NARROW
            runs = [*runs[:-1], own] if joined else [*runs, [axis]]
        if not self.due:  # products along axes commute, and a narrow run, not in place, saves a copy
            runs.sort(key=lambda own: prod(sizes[axis] for axis in own) > NARROW)
        return runs

    def turn(self) -> list[Observed]:
        """Put natural gradients in the place of gradients; gives what the factors are to be updated with, if due.

        A gradient that is not finite, or whose direction is not, stays what it is.
        """
        norm, updates = norms(self.gradient), list[Observed]()
        unit = norm.reciprocal().clamp(1 / EXTENT, EXTENT).to(self.gradient.dtype).view(-1, 1, 1, 1)
        x, order = self.gradient, self.order
        for run in self._runs():
            at, size = order.index(run[0]) + 1, prod(self.factors[axis].basis.shape[2] for axis in run)
            if size > NARROW and min(x.shape[1:at].numel(), x.shape[at + 1 :].numel()) > 1:
                x, order = x.movedim(at, 1).contiguous(), [*run, *(other for other in order if other not in run)]
                at = 1
            flat, use = x.view(len(x), x.shape[1:at].numel(), size, -1), self._wide if size > NARROW else self._narrow
            with torch.autocast(x.device.type, enabled=False), fast_products(size > NARROW):
                x = use(flat, run, norm, unit, updates, x is self.gradient).view(x.shape)
        scale = norm / norms(x)  # not finite for zeros
        x = x.permute(0, *(1 + order.index(axis) for axis in self.order))
        put_scaled(x, scale, self.gradient)
        return updates

    def _observed(self, factor: Factor, scatter: Callable[[Tensor], Tensor], *given: Tensor) -> Observed:
        """An observation for a factor, which in the first step it has learned from before."""
        for _ in range(FIRST_ROUNDS if self.step == 1 else 0):
            update = PendingUpdate([Observed(factor, self.options, scatter(factor.basis), *given)])
            decompose([update.gram])[0].finish()
            update.finish()
        return Observed(factor, self.options, scatter(factor.basis), *given)

    def _wide(self, x: Tensor, run: list[int], norm: Tensor, unit: Tensor, updates: list[Any], given: bool) -> Tensor:
        """$X - R^⊤ E (R X)$ for one axis, in place unless x was `given`."""
        factor, sketch = self.factors[run[0]], torch.empty(0)
        if self.due:
            square = norm.square() if given else norms(x).square()  # its norm is to be the gradient's

            def scatter(basis: Tensor) -> Tensor:
                nonlocal sketch
                sketch = _times(basis, x)
                return _scatter(sketch * unit, x)

            power = norm.square() * x.shape[2] / x[0].numel()
            updates.append(self._observed(factor, scatter, square * unit.view(-1), power))
        else:
            sketch = _times(factor.basis, x)
        return _times((factor.basis * -factor.shrinkage[:, :, None]).mT, sketch, x.clone() if given else x)

    def _narrow(self, x: Tensor, run: list[int], norm: Tensor, unit: Tensor, updates: list[Any], given: bool) -> Tensor:
        """The same for a run of narrow axes by one product; what they learn is in the run's second moments."""
        n, size, before = len(x), x.shape[2], 1
        matrix, moments = x.new_ones(1, 1, 1), narrow_moments(x, unit) if self.due else x
        moments = _scatter(x * unit, x) if moments is None else moments
        for axis in run:
            factor, basis, d = self.factors[axis], self.factors[axis].basis, self.factors[axis].basis.shape[2]
            if self.due:
                split = before, d, size // (before * d)
                scatter = moments.view(n, *split, *split).diagonal(dim1=1, dim2=4).diagonal(dim1=2, dim2=4).sum((3, 4))
                square = scatter.diagonal(dim1=1, dim2=2).sum(1, dtype=torch.float64)
                power = norm.square() * d / x[0].numel()
                updates.append(self._observed(factor, scatter.__rmatmul__, square, power))
            own = torch.baddbmm(identity(basis.mT), basis.mT, basis * factor.shrinkage[:, :, None], alpha=-1)
            for _ in range(2 if self.due and axis != run[-1] else 0):  # rows, then columns: it is symmetric
                moments = _times(own, moments.view(n, before, d, -1)).view(n, size, size).mT.contiguous()
            matrix = (matrix[:, :, None, :, None] * own[:, None, :, None, :]).view(n, before * d, before * d)
            before *= d
        product = narrow_product(matrix, x)
        return _times(matrix, x) if product is None else product


def _move(group: dict[str, Any], parameters: list[Tensor], along: list[Tensor], states: dict[Tensor, Any]) -> None:
    """Move parameters along directions, with momentum, in one pass where torch has a kernel for it."""
    buffers: list[Tensor | None] = [None] * len(parameters)
    for i, (p, x) in enumerate(zip(parameters, along, strict=True) if group["momentum"] else ()):
        buffers[i] = buffer = states[p].get("momentum_buffer")
        if buffer is None or (buffer.stride(), buffer.device) != (x.stride(), x.device):  # or there is no fast way
            new = torch.zeros_like(x)  # to which torch's SGD adds the first direction
            buffers[i] = states[p]["momentum_buffer"] = new if buffer is None else new.copy_(buffer)
    fast = all(p.dtype == torch.float32 and p.stride() == x.stride() for p, x in zip(parameters, along, strict=True))
    options = {name: group[name] for name in ("lr", "momentum", "nesterov")} | {"fused": fast, "foreach": False}
    sgd(parameters, along, buffers, weight_decay=0.0, dampening=0.0, maximize=False, **options)


def _empty(p: Tensor) -> Tensor:
    return torch.empty_like(p, dtype=torch.promote_types(p.dtype, torch.float32), requires_grad=False)


def _stacked(states: list[dict[str, Any]], name: str, made: Tensor) -> Tensor:
    """Stack what states hold under a name, or what is `made` for them, in one tensor; they now hold its parts."""
    stack = torch.stack([state[name] for state in states]).to(made.device) if name in states[0] else made
    for state, part in zip(states, stack.unbind(), strict=True):
        state[name] = part
    return stack


def _times(matrix: Tensor, x: Tensor, onto: Tensor | None = None) -> Tensor:
    """(n, m, d) times (n, before, d, after), along d where it lies; perhaps added `onto` a tensor, in place."""
    n, before, _, after = x.shape
    if after == 1:
        left, right = x.squeeze(3), matrix.mT
    else:
        left, right = matrix[:, None].expand(-1, before, -1, -1).flatten(0, 1), x.flatten(0, 1)
    if onto is None:
        return torch.bmm(left, right).view(n, before, matrix.shape[1], after)
    onto.view(len(left), left.shape[1], right.shape[2]).baddbmm_(left, right)
    return onto


def _scatter(y: Tensor, x: Tensor) -> Tensor:
    """$Y X^⊤$, of (n, before, r, after) and (n, before, d, after): (n, r, d)."""
    if x.shape[3] == 1:
        return torch.bmm(y.squeeze(3).mT, x.squeeze(3))
    return torch.matmul(y, x.mT).sum(1)


def _check(group: dict[str, Any]) -> None:
    """Refuse options out of range, by name."""
    bounds = {"lr": (0, inf), "weight_decay": (0, inf), "alpha": (0, inf), "momentum": (0, 1), "eta": (1e-300, 1)}
    for name, (low, high) in (bounds | {"epsilon": (1e-300, inf)}).items():
        if not isinstance(group[name], int | float) or isinstance(group[name], bool) or not low <= group[name] < high:
            raise ValueError(f"NGD: {name} must be a number from {low} to below {high}; got {group[name]!r}")
    for name in [name for name in ("rank", "update_period") if type(group[name]) is not int or group[name] < 1]:
        raise ValueError(f"NGD: {name} must be an integer of at least 1; got {group[name]!r}")
    for name in [name for name in ("nesterov", "precondition") if not isinstance(group[name], bool)]:
        raise ValueError(f"NGD: {name} must be True or False; got {group[name]!r}")
    if group["nesterov"] and not group["momentum"]:
        raise ValueError(f"NGD: momentum must be greater than 0 with nesterov; got {group['momentum']!r}")
