"""NGD: against the recursion written with dense matrices, known answers, and a state that comes back bit for bit."""

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import vnd.optim.cuda as cuda
import vnd.optim.fisher as fisher
import vnd.optim.ngd as ngd
from vnd import parameter_groups
from vnd.models import build
from vnd.optim.ngd import NGD
from vnd.train.checkpoint import flatten_optimizer, restore_optimizer

SHAPES = {"matrix": (12, 9), "kernel": (10, 8, 3, 3), "wide": (8, 14), "flat axes": (1, 7, 1, 6), "cube": (5, 2, 4)}


class DenseFactor:
    """F and the projector on its leading directions as full matrices, inverted by a solver, cut by a full `svd`."""

    def __init__(self, size: int, rank: int, alpha: float, eta: float, epsilon: float) -> None:
        self.rank, self.alpha, self.eta, self.epsilon = min(rank, (size + 1) // 2), alpha, eta, epsilon
        rows = np.zeros((self.rank, size))
        for column in range(size):
            rows[column % self.rank, column] = 1.1 if column < self.rank else 1.0
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        self.projector = rows.T @ rows
        self.rest = epsilon
        self.excess = epsilon * self.projector

    def use(self, x: np.ndarray) -> np.ndarray:
        size = len(x)
        fisher = self.excess + self.rest * np.eye(size)
        smoothed = fisher + self.alpha / size * np.trace(fisher) * np.eye(size)
        turned = np.linalg.solve(smoothed, x)
        return turned * (np.linalg.norm(x) / np.linalg.norm(turned))

    def update(self, x: np.ndarray) -> None:
        size, columns = x.shape
        scatter = x @ x.T / columns
        self.rest = max(self.rest, 1e-6 * np.trace(scatter))
        fisher = self.excess + self.rest * np.eye(size)
        mixed = self.eta * scatter + (1 - self.eta) * fisher
        _, roots, vectors = np.linalg.svd(self.projector @ mixed)  # the roots of the eigenvalues of T R'R T
        roots, vectors = roots[: self.rank], vectors[: self.rank].T
        rest = (np.trace(mixed) - roots.sum()) / (size - self.rank)
        floor = max(self.epsilon, 5e-4 * roots.max())
        self.projector = vectors @ vectors.T
        self.excess = (vectors * np.maximum(roots - rest, floor)) @ vectors.T
        self.rest = max(rest, floor)


class Dense:
    """The directions of NGD for one parameter, axis by axis, in float64."""

    def __init__(
        self,
        shape: tuple[int, ...],
        rank: int = 80,
        alpha: float = 4.0,
        eta: float = 0.1,
        epsilon: float = 1e-10,
        update_period: int = 4,
    ) -> None:
        self.factors = [DenseFactor(size, rank, alpha, eta, epsilon) if size > 1 else None for size in shape]
        self.period, self.step = update_period, 0

    def direction(self, gradient: np.ndarray) -> np.ndarray:
        self.step += 1
        due = self.step <= 10 or (self.step - 1) % self.period == 0
        x = gradient
        for axis, factor in enumerate(self.factors):
            if factor is None:
                continue
            front = np.moveaxis(x, axis, 0)
            matrix = front.reshape(len(front), -1)
            for _ in range(3 if self.step == 1 else 0):
                factor.update(matrix)
            turned = factor.use(matrix)
            if due:
                factor.update(matrix)
            x = np.moveaxis(turned.reshape(front.shape), 0, axis)
        return x


def gradients(shape: tuple[int, ...], steps: int, seed: int = 0) -> Iterator[Tensor]:
    """Anisotropic along every axis, in directions that drift, and of a size that changes from step to step."""
    generator = torch.Generator().manual_seed(seed)
    mixers = [torch.randn(n, n, generator=generator).double() * torch.logspace(0, -1, n) for n in shape]
    drifts = [0.05 * torch.randn(n, n, generator=generator).double() for n in shape]
    for step in range(steps):
        x = torch.randn(shape, generator=generator).double()
        for axis, (mixer, drift) in enumerate(zip(mixers, drifts, strict=True)):
            x = torch.tensordot(mixer + step * drift, x, dims=([1], [axis])).movedim(0, axis)
        yield x * 10 ** math.sin(step)


def direction(optimizer: NGD, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """Where one step of rate 1 leads from zero."""
    parameter.data.zero_()
    parameter.grad = gradient.to(parameter)
    optimizer.step()
    return -parameter.detach().clone()


def largest_error(shape: tuple[int, ...], dtype: torch.dtype, device: Any = "cpu", **options: Any) -> float:
    """Largest relative distance from the dense recursion over 40 steps."""
    parameter = nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))
    optimizer = NGD([parameter], lr=1.0, momentum=0.0, **options)
    dense, worst = Dense(shape, **options), 0.0
    for gradient in gradients(shape, 40):
        gradient = gradient.to(dtype)
        found = direction(optimizer, parameter, gradient).double().cpu().numpy()
        expected = dense.direction(gradient.double().numpy())
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert np.isfinite(error)
        worst = max(worst, error)
    return worst


@pytest.mark.parametrize("name", SHAPES)
def test_directions_agree_with_the_dense_recursion_step_for_step(name: str, device: torch.device) -> None:
    assert largest_error(SHAPES[name], torch.float32, device) <= 1e-5
    assert largest_error(SHAPES[name], torch.float64, device) <= 1e-10


@pytest.mark.parametrize(
    "options",
    [{"rank": 3}, {"alpha": 0.5}, {"eta": 0.4}, {"update_period": 1}, {"update_period": 7}, {"epsilon": 1e-2}],
    ids=str,
)
def test_directions_agree_with_the_dense_recursion_for_every_option(options: dict[str, Any]) -> None:
    assert largest_error((10, 8, 3, 3), torch.float64, **options) <= 1e-10
    assert largest_error((10, 8), torch.float32, **options) <= 1e-5


def test_directions_agree_with_fewer_columns_than_the_rank() -> None:
    """The directions that no gradient has shown are then the start's, as far as rounding lets them be."""
    assert largest_error((30, 4), torch.float64) <= 1e-10
    assert largest_error((30, 4), torch.float32) <= 1e-4
    assert largest_error((30, 4), torch.float32, epsilon=1e-3) <= 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_axes_that_are_brought_to_an_end_of_the_memory_agree_with_the_dense_recursion(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngd, "NARROW", 1)
    assert largest_error(SHAPES[name], torch.float64) <= 1e-10


@pytest.mark.parametrize("narrow", [64, 1])
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 2, 3), (3, 1, 2, 0), (2, 0, 3, 1)], ids=str)
def test_strides_do_not_matter(order: tuple[int, ...], narrow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the parameter, whose momentum has its own, nor of the gradient."""
    monkeypatch.setattr(ngd, "NARROW", narrow)
    back = [order.index(axis) for axis in range(4)]
    plain, strided = (nn.Parameter(torch.zeros(6, 4, 3, 3, dtype=torch.float64)) for _ in range(2))
    strided.data = strided.data.permute(order).contiguous().permute(back)
    optimizers = [NGD([parameter], lr=1.0) for parameter in (plain, strided)]
    for step, gradient in enumerate(gradients((6, 4, 3, 3), 12)):
        expected = direction(optimizers[0], plain, gradient)
        given = gradient if step % 2 else gradient.permute(order).contiguous().permute(back)
        found = direction(optimizers[1], strided, given)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
        assert torch.equal(strided.grad, gradient)
        assert optimizers[1].state[strided]["momentum_buffer"].stride() == strided.stride()


def late(self: ngd.PreconditionGroup) -> tuple[bool, bool]:
    """Updates in steps 14, 18 … and not 13, 17 …"""
    shift = int(self.step > 10)
    self.step -= shift
    work = COUNT(self)
    self.step += shift
    return work


def too_fresh(self: ngd.PreconditionGroup) -> list[Any]:
    """Uses factors that know the gradient already."""
    if self.step == 1:
        return TURN(self)
    gradient = self.gradient.clone()
    for seen in TURN(self):
        update = ngd.PendingUpdate([seen])
        (job,) = cuda.decompose([update.gram])
        job.finish()
        update.finish()
    self.gradient.copy_(gradient)
    TURN(self)
    return []


COUNT = ngd.PreconditionGroup.count
TURN = ngd.PreconditionGroup.turn
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "forgets the norm": (ngd, "norms", lambda x: torch.ones(len(x), dtype=torch.float64)),
    "updates one step late": (ngd.PreconditionGroup, "count", late),
    "updates before the use": (ngd.PreconditionGroup, "turn", too_fresh),
    "updates in every step": (ngd, "INITIAL_UPDATES", 1000),
    "never updates": (ngd.PendingUpdate, "finish", lambda self: None),
    "starts from an unused basis": (ngd, "FIRST_ROUNDS", 0),
    "has no floor": (fisher, "FLOOR", 0.0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught_by_the_dense_recursion(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_error((9, 9, 3, 3), torch.float32) <= 1e-5
    monkeypatch.setattr(*FAULTS[fault])
    assert not largest_error((9, 9, 3, 3), torch.float32) <= 1e-4


@pytest.mark.parametrize("name", SHAPES)
def test_the_gradients_norm_is_kept(name: str) -> None:
    assert norm_error(SHAPES[name]) <= 1e-5


def norm_error(shape: tuple[int, ...]) -> float:
    parameter = nn.Parameter(torch.zeros(shape))
    optimizer = NGD([parameter], lr=1.0, momentum=0.0)
    errors = [
        (direction(optimizer, parameter, g).double().norm() / g.norm() - 1).abs().item() for g in gradients(shape, 20)
    ]
    assert all(map(math.isfinite, errors))
    return max(errors)


def test_the_norm_of_millions_of_entries_is_kept() -> None:
    """Summed at once in float32 it would be wrong by 1e-4, and otherwise so after the preconditioning."""
    parameter = nn.Parameter(torch.zeros(512, 8192))
    gradient = torch.randn(512, 8192) * torch.logspace(0, -3, 512)[:, None]
    found = direction(NGD([parameter], lr=1.0, momentum=0.0, rank=2), parameter, gradient)
    assert (found.double().norm() / gradient.double().norm() - 1).abs() <= 1e-6


def test_a_forgotten_norm_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS["forgets the norm"])
    assert not norm_error((10, 8, 3, 3)) <= 1e-2


def test_directions_approach_the_smoothed_inverse_fisher() -> None:
    """Columns of one known covariance, two of sixteen directions 100 times as strong: a rank of 8 holds them."""
    size, columns, alpha = 16, 32, 0.5
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    spread = torch.ones(size)
    spread[:2] = 100.0
    exact = axes * spread @ axes.t()
    smoothed = exact + alpha * exact.trace() / size * torch.eye(size)
    parameter = nn.Parameter(torch.zeros(size, columns))
    optimizer = NGD([parameter], lr=1.0, momentum=0.0, alpha=alpha, eta=0.02, update_period=1)
    probes = [axes * spread.sqrt() @ torch.randn(size, columns, generator=generator) for _ in range(200)]
    for gradient in probes:
        direction(optimizer, parameter, gradient)
    state = optimizer.state[parameter]
    factor = ngd.Factor(*(state[f"{name}_0"] for name in ngd.Factor._fields))
    cosine = nn.functional.cosine_similarity
    probe = axes.sum(1, keepdim=True)  # as much of each direction
    expected = torch.linalg.solve(smoothed, probe)
    found = probe - factor.basis.t() @ (factor.shrinkage[:, None] * (factor.basis @ probe))
    assert cosine(probe, expected, dim=0).item() < 0.95
    assert cosine(found, expected, dim=0).item() > 0.999
    estimate = factor.basis.t() * factor.strength.float() @ factor.basis + factor.rest.float() * torch.eye(size)
    leading = axes[:, :2]
    assert (leading.t() @ estimate @ leading).diag().mean().item() == pytest.approx(100, rel=0.1)
    assert estimate.trace().item() == pytest.approx(exact.trace().item(), rel=0.1)


def regression(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> float:
    """Excess loss after 200 noisy steps on least squares, where four of 64 inputs have 100 times the variance."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(64, 64, generator=generator))[0]
    spread = torch.ones(64)
    spread[:4] = 100.0
    root = axes * spread.sqrt() @ axes.t()
    goal = torch.randn(64, 16, generator=generator)
    weight = nn.Parameter(torch.zeros(64, 16))
    optimizer = make([weight])
    for _ in range(200):
        x = torch.randn(32, 64, generator=generator) @ root
        y = x @ goal + torch.randn(32, 16, generator=generator)
        weight.grad = x.t() @ (x @ weight.detach() - y) / 32
        optimizer.step()
    return (root @ (weight.detach() - goal)).square().sum().item() / 2


def test_ill_conditioned_least_squares_is_solved_better_than_by_sgd() -> None:
    """Measured: at rate .008 1.9 against 21; at each one's best rate 1.4 against 4.9."""
    rates = (0.002, 0.004, 0.008, 0.016)
    sgd = [regression(lambda p, lr=lr: torch.optim.SGD(p, lr=lr)) for lr in rates]
    own = [regression(lambda p, lr=lr: NGD(p, lr=lr, momentum=0.0)) for lr in rates]
    assert all(map(math.isfinite, sgd + own))
    assert all(a < b for a, b in zip(own, sgd, strict=True))
    assert own[2] < sgd[2] / 5
    assert min(own) < min(sgd) / 2


SGD_OPTIONS: list[dict[str, Any]] = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.8, "weight_decay": 0.1, "nesterov": True},
]


@pytest.mark.parametrize("options", SGD_OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(4, 5), (7,), (), (1, 1)], ids=str)
def test_without_preconditioning_it_is_torchs_sgd(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Switched off for the matrix; vectors, scalars and axes of size 1 have none."""
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = NGD([ours], lr=0.1, precondition=shape != (4, 5), **options)
    sgd = torch.optim.SGD([theirs], lr=0.1, **options)
    for _ in range(12):
        gradient = torch.randn(shape)
        for parameter, optimizer in ((ours, mine), (theirs, sgd)):
            parameter.grad = gradient.clone()
            optimizer.step()
        assert torch.equal(ours.grad, gradient)  # left as it is
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_momentum_and_decay_act_around_the_preconditioning() -> None:
    shape, lr, momentum, decay = (6, 5), 0.3, 0.8, 0.1
    start = torch.randn(shape, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    optimizer = NGD([parameter], lr=lr, momentum=momentum, weight_decay=decay, nesterov=True)
    dense, at, buffer = Dense(shape), start.numpy().copy(), np.zeros(shape)
    for gradient in gradients(shape, 15):
        parameter.grad = gradient
        optimizer.step()
        turned = dense.direction(gradient.numpy() + decay * at)
        buffer = momentum * buffer + turned
        at -= lr * (turned + momentum * buffer)
        np.testing.assert_allclose(parameter.detach().numpy(), at, rtol=1e-9, atol=1e-12)


def test_factors_change_in_the_steps_of_the_published_algorithm() -> None:
    """It counts from 0, and updates at t < 10 and where t is a multiple of four."""
    parameter = nn.Parameter(torch.zeros(6, 4, 3))
    optimizer = NGD([parameter], lr=1.0)
    changed, before = [], None
    for step, gradient in enumerate(gradients((6, 4, 3), 23), start=1):
        direction(optimizer, parameter, gradient)
        now = [optimizer.state[parameter][f"strength_{axis}"].clone() for axis in range(3)]
        if before is None or not all(map(torch.equal, now, before)):
            changed.append(step)
        before = now
    assert changed == [*range(1, 11), 13, 17, 21]


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": torch.zeros_like,
    "rows of zeros": lambda x: x * (torch.arange(len(x)) % 2).view(-1, *[1] * (x.dim() - 1)),
    "one row": lambda x: x * (torch.arange(len(x)) == 2).view(-1, *[1] * (x.dim() - 1)),
    "constant": torch.ones_like,
    "tiny": lambda x: 1e-20 * x,
    "huge": lambda x: 1e20 * x,
    "subnormal": lambda x: 1e-40 * x,
}


@pytest.mark.parametrize("shape", [(12, 9), (10, 8, 3, 3), (20, 2)], ids=str)
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extreme_gradients_give_finite_steps_and_orthonormal_factors(extreme: str, shape: tuple[int, ...]) -> None:
    """Twelve of them, then ordinary ones, then they alternate."""
    parameter = nn.Parameter(torch.zeros(shape))
    optimizer = NGD([parameter], lr=1.0, momentum=0.0)
    for step, gradient in enumerate(gradients(shape, 48)):
        extremely = step < 12 or (step >= 24 and step % 2)
        given = (EXTREMES[extreme](gradient) if extremely else gradient).float()
        found = direction(optimizer, parameter, given)
        assert found.isfinite().all()
        torch.testing.assert_close(found.double().norm(), given.double().norm(), rtol=1e-5, atol=1e-42)
        check_factors(optimizer, parameter)


def trace_after_a_jump(size: float) -> float:
    """Trace of a factor over that of η S, at the first gradient of this size after fifteen of size 1e-20."""
    parameter = nn.Parameter(torch.zeros(30, 2))
    optimizer = NGD([parameter], lr=1.0, momentum=0.0, update_period=1)
    *small, last = gradients((30, 2), 16)
    for gradient in small:
        direction(optimizer, parameter, 1e-20 * gradient)
    direction(optimizer, parameter, size * last)
    check_factors(optimizer, parameter)
    state = optimizer.state[parameter]
    trace = state["strength_0"].sum() + 30 * state["rest_0"]
    return float(trace / (0.1 * (size * last).square().sum() / 2))


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e10, 1e18])
def test_a_jump_in_scale_reaches_the_factors(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns and a rank of 15; without the lift R would lose its orthonormality and the update be refused."""
    assert 0.5 < trace_after_a_jump(size) < 2
    monkeypatch.setattr(fisher, "LIFT", 0.0)
    assert trace_after_a_jump(size) < 1e-3


def check_factors(optimizer: NGD, parameter: nn.Parameter) -> None:
    state = optimizer.state[parameter]
    for axis, size in enumerate(parameter.shape):
        basis, strength, rest, shrinkage = (state[f"{name}_{axis}"] for name in ngd.Factor._fields)
        assert basis.shape == (min(80, (size + 1) // 2), size)
        assert strength.isfinite().all()
        assert rest.isfinite()
        assert ((shrinkage > 0) & (shrinkage < 1)).all()
        assert strength.min() >= 1e-10
        assert rest >= 1e-10
        torch.testing.assert_close(basis @ basis.t(), torch.eye(len(basis)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("when", [1, 5])
def test_a_gradient_that_is_not_finite_leaves_the_factors(bad: float, when: int) -> None:
    shape = (8, 6, 3)
    parameter = nn.Parameter(torch.zeros(shape))
    optimizer = NGD([parameter], lr=1.0, momentum=0.0)
    for step, gradient in enumerate(gradients(shape, 12), start=1):
        if step == when:
            before = copy.deepcopy(optimizer.state[parameter])
            gradient[1, 2, 0] = bad
            found = direction(optimizer, parameter, gradient)
            assert not found.isfinite()[1, 2, 0]
            assert found.isfinite().sum() == found.numel() - 1  # as torch's SGD moves
            after = optimizer.state[parameter]
            assert all(torch.equal(after[name], value) for name, value in before.items() if name != "step")
        else:
            assert direction(optimizer, parameter, gradient).isfinite().all()
        check_factors(optimizer, parameter)


class Pair:
    """A convolution, a matrix and a vector of one dtype, in two groups, with their optimizer and its gradients."""

    def __init__(self, dtype: torch.dtype, seed: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        shapes = ((6, 5, 3, 3), (9, 6), (7,))
        self.parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
        groups = [{"params": self.parameters[:2]}, {"params": self.parameters[2:], "lr": 0.01, "precondition": False}]
        self.optimizer = NGD(groups, lr=0.1, weight_decay=1e-3)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            for parameter in self.parameters:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.grad = (noise + parameter.detach()).to(parameter.dtype)
            self.optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("at", [0, 3, 12])
def test_a_saved_state_continues_bit_for_bit(dtype: torch.dtype, at: int, tmp_path: Path) -> None:
    """By way of a file of safetensors, which takes tensors only; the groups as JSON has them."""
    whole, first, second = Pair(dtype), Pair(dtype), Pair(dtype, seed=4)
    whole.train(0, 25)
    first.train(0, at)
    saved = first.optimizer.state_dict()
    for group in saved["param_groups"]:
        assert all(isinstance(value, bool | int | float) for name, value in group.items() if name != "params")
    flat = {f"{index}/{name}": value for index, state in saved["state"].items() for name, value in state.items()}
    assert all(isinstance(value, Tensor) for value in flat.values())
    save_file(flat, tmp_path / "state.safetensors")
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in load_file(tmp_path / "state.safetensors").items():
        index, _, name = key.partition("/")
        states.setdefault(int(index), {})[name] = value
    for new, old in zip(second.parameters, first.parameters, strict=True):
        new.data.copy_(old.data)
    second.optimizer.load_state_dict({"state": states, "param_groups": saved["param_groups"]})
    first.train(at, 25)  # must not reach what was saved or loaded
    second.train(at, 25)
    for pair in (first, second):
        for own, expected in zip(pair.parameters, whole.parameters, strict=True):
            assert expected.isfinite().all()
            assert torch.equal(own, expected)
            for name, value in whole.optimizer.state[expected].items():
                found = pair.optimizer.state[own][name]
                assert found.dtype == value.dtype
                assert torch.equal(found, value)


def test_a_state_that_is_cast_to_the_parameters_dtype_is_caught() -> None:
    """What torch's own `load_state_dict` would do to a bfloat16 network."""
    first, second = Pair(torch.bfloat16), Pair(torch.bfloat16)
    first.train(0, 12)
    for new, old in zip(second.parameters, first.parameters, strict=True):
        new.data.copy_(old.data)
    torch.optim.Optimizer.load_state_dict(second.optimizer, copy.deepcopy(first.optimizer.state_dict()))
    with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
        second.train(12, 25)


def test_a_loaded_state_is_a_copy() -> None:
    first, second = Pair(torch.float32), Pair(torch.float32)
    first.train(0, 5)
    saved = first.optimizer.state_dict()
    before = copy.deepcopy(saved["state"])
    second.optimizer.load_state_dict(saved)
    second.train(5, 8)
    for index, state in before.items():
        assert all(torch.equal(saved["state"][index][name], value) for name, value in state.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_gradients_are_computed_in_float32(dtype: torch.dtype) -> None:
    half, single = nn.Parameter(torch.zeros(8, 6, dtype=dtype)), nn.Parameter(torch.zeros(8, 6))
    optimizers = [NGD([parameter], lr=1.0, momentum=0.0) for parameter in (half, single)]
    for gradient in gradients((8, 6), 20):
        gradient = gradient.to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = map(direction, optimizers, (half, single), (gradient, gradient.float()))
        torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=0)
        assert optimizers[0].state[half]["basis_0"].dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a device to wait for")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_step_but_the_first_waits_for_the_device() -> None:
    parameter = nn.Parameter(torch.zeros(6, 5, 3, 3, device="cuda"))
    before = NGD([parameter], lr=0.1, weight_decay=1e-4)
    for gradient in gradients(parameter.shape, 7):
        direction(before, parameter, gradient)
    optimizer = NGD([parameter], lr=0.1)
    state = before.state_dict()
    state["state"][0]["step"] = state["state"][0]["step"].cuda()  # as accelerate leaves it
    optimizer.load_state_dict(state)
    optimizer.step()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(12):
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_reads_no_number_of_a_tensor() -> None:
    """On a GPU each would wait for the device."""

    class Reads(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.dtypes: list[torch.dtype] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.name in ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"):
                self.dtypes.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    pair = Pair(torch.float32)
    with Reads() as reads:
        pair.train(0, 14)
    assert reads.dtypes == []


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the decompositions in threads, the second half of an update with the next step."""
    monkeypatch.setattr(cuda, "OVERLAPPED", ("cpu",))


def pair_and_pending(steps: int) -> Pair:
    pair = Pair(torch.float32)
    pair.train(0, steps)
    assert pair.optimizer._jobs
    return pair


def assert_same(first: Pair, second: Pair) -> None:
    for a, b in zip(first.parameters, second.parameters, strict=True):
        assert torch.equal(a, b)
        theirs = second.optimizer.state[b]
        assert first.optimizer.state[a].keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in first.optimizer.state[a].items())


@pytest.mark.parametrize("steps", [1, 9, 13, 29])
def test_an_update_under_way_ends_as_one_at_once(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Pair(torch.float32)
    at_once.train(0, steps)
    assert not at_once.optimizer._jobs
    monkeypatch.setattr(cuda, "OVERLAPPED", ("cpu",))
    later = Pair(torch.float32)
    later.train(0, steps)
    assert bool(later.optimizer._jobs) == (steps <= 10 or steps in (13, 17, 21, 25, 29))
    behind = later.optimizer.__dict__["state"][later.parameters[0]]["strength_0"].clone()
    assert not torch.equal(behind, at_once.optimizer.state[at_once.parameters[0]]["strength_0"])  # or there is no test
    assert_same(later, at_once)
    assert not later.optimizer._jobs


def by_state_dict(pair: Pair, other: Pair) -> None:
    other.optimizer.load_state_dict(pair.optimizer.state_dict())


def by_checkpoint(pair: Pair, other: Pair) -> None:
    restore_optimizer(other.optimizer, *flatten_optimizer(pair.optimizer))


def by_copy(pair: Pair, other: Pair) -> None:
    other.parameters, other.optimizer = copy.deepcopy((pair.parameters, pair.optimizer))


@pytest.mark.usefixtures("deferred")
@pytest.mark.parametrize("way", [by_state_dict, by_checkpoint, by_copy])
@pytest.mark.parametrize("at", [1, 3, 13])
def test_a_state_is_saved_and_loaded_with_its_update(at: int, way: Callable[[Pair, Pair], None]) -> None:
    """While updates are under way on both sides."""
    first, second = pair_and_pending(at), pair_and_pending(5)
    for new, old in zip(second.parameters, first.parameters, strict=True):
        new.data.copy_(old.data)
    way(first, second)
    assert not first.optimizer._jobs
    assert not second.optimizer._jobs
    whole = pair_and_pending(29)
    for pair in (first, second):
        pair.train(at, 29)
        assert_same(pair, whole)


@pytest.mark.usefixtures("deferred")
def test_an_update_under_way_keeps_the_options_of_its_step_and_new_groups_wait_for_it() -> None:
    first, second = pair_and_pending(4), pair_and_pending(4)
    assert first.optimizer.state  # a look ends it
    for pair in (first, second):
        pair.optimizer.param_groups[0].update(eta=0.5, alpha=1.0, epsilon=1e-2)
    assert_same(first, second)
    third = pair_and_pending(4)
    third.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, 3))]})
    assert not third.optimizer._jobs


def test_an_option_that_changes_while_an_update_is_under_way_holds_from_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether or not somebody looks at the state in between."""
    pairs = [Pair(torch.float32) for _ in range(3)]
    for index, pair in enumerate(pairs):
        monkeypatch.setattr(cuda, "OVERLAPPED", ("cpu",) if index else ())
        pair.train(0, 13)
        pair.optimizer.param_groups[0].update(eta=0.5, alpha=1.0)
        assert bool(pair.optimizer._jobs) == bool(index)
        assert index == 2 or pair.optimizer.state
        pair.train(13, 22)
    assert_same(pairs[0], pairs[1])
    assert_same(pairs[0], pairs[2])


@pytest.mark.usefixtures("deferred")
def test_an_error_in_a_thread_is_raised_by_the_next_step_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class BrokenError(Exception):
        pass

    def fail(gram: Tensor) -> None:
        raise BrokenError("no convergence")

    pair = Pair(torch.float32)
    pair.train(0, 3)
    assert pair.optimizer.state  # which ends what is under way
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", fail)
        pair.train(3, 4)
        before = [parameter.detach().clone() for parameter in pair.parameters]
        with pytest.raises(BrokenError, match="no convergence"):
            pair.train(4, 5)
        assert all(map(torch.equal, pair.parameters, before))
    pair.train(4, 12)
    assert all(parameter.isfinite().all() for parameter in pair.parameters)


@pytest.mark.fault
def test_a_process_ends_with_an_update_under_way() -> None:
    code = """
import torch, vnd.optim.cuda as cuda
from vnd.optim.ngd import NGD
cuda.OVERLAPPED = ("cpu",)
weight = torch.nn.Parameter(torch.zeros(90, 90))
weight.grad = torch.randn(90, 90)
optimizer = NGD([weight], lr=0.1)
optimizer.step()
assert optimizer._jobs
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_parameters_of_one_shape_do_not_disturb_each_other() -> None:
    """In two groups, one without a gradient now and then, one with a gradient that is not finite at times."""
    shape, options = (6, 5, 3), {"lr": 0.1, "weight_decay": 0.01}
    alone, together = ([nn.Parameter(torch.ones(shape).double()) for _ in range(4)] for _ in range(2))
    rates = [0.1, 0.1, 0.02, 0.02]
    single = [NGD([parameter], **options | {"lr": lr}) for parameter, lr in zip(alone, rates, strict=True)]
    joint = NGD([{"params": together[:2]}, {"params": together[2:], "lr": 0.02}], **options)
    streams = [gradients(shape, 24, seed) for seed in range(4)]
    for step, given in enumerate(zip(*streams, strict=True)):
        for index, gradient in enumerate(given):
            missing = index == 1 and step % 5 == 0
            if index == 3 and step in (0, 8, 20):
                gradient[1, 2, 0] = math.inf
                alone[3].data.fill_(1.0)
                together[3].data.fill_(1.0)
            for parameters in (alone, together):
                parameters[index].grad = None if missing else gradient.clone()
        for optimizer in (*single, joint):
            optimizer.step()
        for index, (one, other) in enumerate(zip(alone, together, strict=True)):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10, equal_nan=index == 3)
            assert index == 3 or other.isfinite().all()
    for one, other, optimizer in zip(alone, together, single, strict=True):
        for name, value in optimizer.state[one].items():
            if name != "momentum_buffer":
                assert value.isfinite().all()
                close = {"rtol": 1e-6, "atol": 1e-9} if name.startswith("basis") else {"rtol": 1e-9, "atol": 1e-12}
                torch.testing.assert_close(joint.state[other][name], value, **close)


def options_change(pair: Pair) -> None:
    pair.optimizer.param_groups[0].update(momentum=0.5, eta=0.3)


def decay_changes(pair: Pair) -> None:
    pair.optimizer.param_groups[0]["weight_decay"] = 0.1


def group_comes(pair: Pair) -> None:
    pair.parameters.append(nn.Parameter(torch.ones(5, 4)))
    pair.optimizer.add_param_group({"params": [pair.parameters[-1]]})


def state_is_loaded(pair: Pair) -> None:
    pair.optimizer.load_state_dict(copy.deepcopy(pair.optimizer.state_dict()))


def checkpoint_is_restored(pair: Pair) -> None:
    tensors, plain = flatten_optimizer(pair.optimizer)
    restore_optimizer(pair.optimizer, copy.deepcopy(tensors), plain)


def parameter_moves(pair: Pair) -> None:
    pair.parameters[0].data = pair.parameters[0].data.contiguous(memory_format=torch.channels_last)


def factor_is_written(pair: Pair) -> None:
    basis = pair.optimizer.state[pair.parameters[1]]["basis_0"]
    basis.copy_(basis.flip(1))


def count_is_written(pair: Pair) -> None:
    pair.optimizer.state[pair.parameters[0]]["step"].sub_(2)


def momentum_is_written(pair: Pair) -> None:
    pair.optimizer.state[pair.parameters[1]]["momentum_buffer"].zero_()


CHANGES = [
    options_change, decay_changes, group_comes, state_is_loaded, checkpoint_is_restored, parameter_moves,
    factor_is_written, count_is_written, momentum_is_written,
]  # fmt: skip


@pytest.mark.parametrize("overlapped", [(), ("cpu",)], ids=["at once", "deferred"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_steps_reaches_the_next(
    change: Callable[[Pair], None], overlapped: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of parameters are kept from step to step: against such as are made anew before each."""
    monkeypatch.setattr(cuda, "OVERLAPPED", overlapped)
    kept, anew = Pair(torch.float32), Pair(torch.float32)
    kept.train(0, 17)  # with an update in the last step
    groups = kept.optimizer._groups
    kept.train(17, 18)
    assert kept.optimizer._groups is groups
    for step in range(18):
        anew.optimizer._laid_out = None
        anew.train(step, step + 1)
    for pair in (kept, anew):
        change(pair)
    kept.train(18, 30)
    for step in range(18, 30):
        anew.optimizer._laid_out = None
        anew.train(step, step + 1)
    assert_same(kept, anew)


def test_autocast_changes_nothing() -> None:
    plain, cast = Pair(torch.float32), Pair(torch.float32)
    plain.train(0, 15)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast.train(0, 15)
    assert all(map(torch.equal, plain.parameters, cast.parameters))


def test_groups_of_a_network_keep_their_own_rates_and_the_loss_falls() -> None:
    net = build("vgg11", width=1 / 16, hidden=12, num_classes=3)
    optimizer = NGD(parameter_groups(net, lr=0.05, weight_decay=1e-4), lr=1.0)
    assert {group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {
        "weights": (0.05, 1e-4),
        "undecayed": (0.05, 0.0),
    }
    x, labels = torch.randn(24, 3, 32, 32), torch.arange(24) % 3

    def closure() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        return loss.item()

    losses = [optimizer.step(closure) for _ in range(12)]
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < losses[0] / 2
    assert all(p.isfinite().all() for p in net.parameters())


def test_empty_and_ungraded_parameters_are_left_alone() -> None:
    empty, idle = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(2, 3))
    optimizer = NGD([empty, idle], lr=1.0)
    empty.grad = torch.zeros(0, 3)
    optimizer.step()
    assert torch.equal(idle, torch.ones(2, 3))
    assert not optimizer.state[idle]
