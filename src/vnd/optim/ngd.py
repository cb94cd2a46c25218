"""NGD: stochastic gradient descent along Povey's online natural gradient."""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from vnd.optim.advance import advance, undisturbed
from vnd.optim.course import EAGER_STEPS, Course, due, lay_out, turns
from vnd.optim.fisher import Errand, Half, finish, send
from vnd.optim.natural import Kept
from vnd.optim.replay import RECORDERS, Recording

PATIENCE = 4  # steps after the first that are not yet recorded; twice as many after each recording that fell away


class Rate(NamedTuple):
    """A learning rate as a 0-d tensor, and the number that it holds."""

    tensor: Tensor
    value: float


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
        not preconditioned; gradients may have any scale (norms, D, ρ and the decomposition are float64, products of two
        gradients are taken over their norm, and where a direction is out of range it is the gradient); ρ entering T is
        at least 1e-6 tr S, so that a jump in scale leaves R orthonormal, which is otherwise without effect.
        Smoothing scales with the gradient, ε does not: an axis whose mean squared gradient is far below ε is left
        nearly as it is.

    Note: A gradient that is not finite leaves the factors as they are, and reaches the parameter and its momentum as
        in torch's SGD; to skip such a step is the loop's choice.

    Note: Gradients of one shape and layout are turned together, whatever their group. The decompositions run on the
        CPU. For parameters on a GPU they do so in a few threads, and the update, whose result is first needed by the
        next step, ends there, or with the first look at `state` (so does a copy or a `state_dict`): no step but the
        first, and those that are recorded, waits for what the GPU has still to do.

    Note: On a GPU products of float32 matrices are computed in TF32, with eleven bits, whatever torch is set to: more
        than gradients under bfloat16 have.

    Note: With `replay`, on a GPU, steps are recorded as CUDA graphs after the first few, and replayed, with the rates
        of the day and on the tensors of the state themselves. A change of another option, of the parameters with
        gradients or of where tensors lie ends that; it begins again after some more steps.

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
        replay: Record steps on a GPU and replay them, where all groups say so; without effect elsewhere. On an H200 a
            step then keeps the CPU busy for 0.7 ms and not for 12 (benchmarks/results/ngd-h200.json).

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
        replay: bool = True,
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
            "replay": replay,
        }
        _check(defaults)
        self._begin()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin()  # for a copy, which has all else
        super().__setstate__(state)

    def _begin(self) -> None:
        """What is no state: the end of an update under way, products of factors, rates as tensors, and recordings."""
        self._pending: Callable[[], None] | None = None
        self._operators: dict[Any, Kept] = {}
        self._rates: dict[tuple[int, torch.device, torch.dtype], Rate] = {}
        self._recording: Recording | None = None
        self._failed, self._calm, self._patience = False, 0, PATIENCE

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with the defaults for what it does not say."""
        _check(self.defaults | param_group)
        self._finish()
        self._drop()
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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._finish()
        self._set_rates()
        if not self._replay():
            self._take()
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state as `state_dict` gave it: copied to the parameters' devices, in the dtypes it has."""
        self._finish()
        self._drop()
        super().load_state_dict(state_dict)  # which casts to the dtype of the parameter
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, parameter in zip(saved, own, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                device = "cpu" if name == "step" else parameter.device  # reading it must not wait for the device
                self.state[parameter][name] = value.detach().to(device, copy=True)

    @torch.no_grad()
    def _finish(self) -> None:
        """Bring the update under way to its end."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending()

    def _end(self, begun: list[tuple[Half, Errand]]) -> None:
        """The end of an update that was not recorded."""
        self._operators.clear()
        finish(begun)

    def _take(self) -> None:
        """A step that is not replayed."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        with undisturbed(parameters):
            course = self._course(count=True)
            if course.parameters:
                torch._foreach_copy_(course.gradients, course.given())
            begun = [(half, send(half)) for half in advance(course, self._operators)]
        if begun:
            self._pending = partial(self._end, begun)
        if not any(errand.tasks for _, errand in begun):
            self._finish()
        self._calm += 1

    def _replay(self) -> bool:
        """A step that is replayed, perhaps after it was recorded, if there can be one."""
        groups, recording = self.param_groups, self._recording
        wanted = all(group.get("replay", False) for group in groups)
        if recording is not None and not (wanted and recording.fits(groups, self.__dict__["state"])):
            self._drop()
        if self._recording is None and wanted and (period := self._ripe()):
            self._record(period)
        if (recording := self._recording) is None:
            return False
        errand = recording.step(due(recording.count + 1, recording.period))
        if errand is not None:
            self._pending = partial(recording.end, errand)
            if not errand.tasks:
                self._finish()
        return True

    def _ripe(self) -> int:
        """The period of updates if steps can be recorded, on a device that has a recorder and all in step; or 0."""
        if self._failed or self._calm < self._patience:
            return 0
        states, counts, devices = self.state, set(), set()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                devices.add(parameter.device)
                if len(devices) > 1 or parameter.device.type not in RECORDERS:
                    return 0
                state = states.get(parameter, {})
                if group["momentum"]:
                    buffer = state.get("momentum_buffer")
                    if buffer is None or buffer.stride() != parameter.stride():
                        return 0
                if turns(group, parameter) and max(parameter.shape) > 1:
                    counts.add((int(state.get("step", 0)), group["update_period"]))
        ((count, period), *others) = counts or {(0, 0)}
        return period if count >= EAGER_STEPS + PATIENCE and not others else 0

    def _record(self, period: int) -> None:
        """Record steps from now on; if that fails there will be no recording."""
        try:
            with undisturbed([parameter for group in self.param_groups for parameter in group["params"]]):
                self._recording = Recording(self._course(count=False), self.param_groups, period)
        except Exception as error:
            self._failed = True
            reason = " ".join(str(error).split())
            warnings.warn(
                f"NGD: its steps cannot be replayed, they go on as they are; replay=False avoids the attempt: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _drop(self) -> None:
        """Forget what was recorded: it will be recorded again after some more steps."""
        if self._recording is not None:
            self._recording, self._patience = None, 2 * self._patience
        self._calm = 0
        self._operators.clear()
        self._rates.clear()

    def _course(self, count: bool) -> Course:
        return lay_out(self.param_groups, self.state, self._rate, count)

    def _rate(self, index: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The rate of a group as a tensor that always holds it."""
        key, lr = (index, device, dtype), self.param_groups[index]["lr"]
        if key not in self._rates:
            self._rates[key] = Rate(torch.full((), lr, dtype=dtype, device=device), lr)
        return self._rates[key].tensor

    def _set_rates(self) -> None:
        """Bring the tensors that hold rates up to date."""
        for key, (tensor, value) in self._rates.items():
            lr = self.param_groups[key[0]]["lr"] if key[0] < len(self.param_groups) else value
            if lr != value:
                self._rates[key] = Rate(tensor.fill_(lr), lr)


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
    for name in ("nesterov", "precondition", "replay"):
        if not isinstance(group[name], bool):
            raise ValueError(f"NGD: {name} must be True or False; got {group[name]!r}")
    if group["nesterov"] and not group["momentum"]:
        raise ValueError(f"NGD: momentum must be greater than 0 with nesterov; got {group['momentum']!r}")
