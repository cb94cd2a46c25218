"""NGD's recorded steps: on the CPU, by a tape of torch's operations that knows what a CUDA graph knows, and no more."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vnd.optim.advance as advance
import vnd.optim.fisher as fisher
import vnd.optim.natural as natural
import vnd.optim.ngd as ngd
import vnd.optim.replay as replay
from vnd.optim.ngd import NGD
from vnd.optim.state import flatten_optimizer, restore_optimizer

SHAPES = ((6, 5, 3, 3), (9, 6), (6, 5, 3, 3), (7,), (1, 4), (70, 3))


def storages(tree: Any) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tree_leaves(tree) if isinstance(x, Tensor)}


class Taped:
    """Operations with the very tensors they had: a replay runs them on these and fills the tensors they gave.

    Numbers are what they were when they were recorded, as in a CUDA graph.
    """

    def __init__(self, calls: list[tuple[Any, Any, Any, Any]], result: Any) -> None:
        self.calls, self.result, self.replays = calls, result, 0

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, out in self.calls:
            old = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            new = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for own, value in zip(old, new, strict=True):
                if not storages(own) & storages((args, kwargs)):  # neither a view nor in place
                    own.copy_(value)


class Tape(TorchDispatchMode):
    """Records functions without effect: what they write to is put back."""

    made: list[Taped]

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        Tape.made = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        assert name not in ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero"), name
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for x in tree_leaves(value):
                    self.before.setdefault(x.data_ptr(), (x, x.clone()))
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    def record(self, function: Callable[[], Any]) -> Taped:
        self.calls: list[Any] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        with self:
            result = function()
        for x, value in reversed(self.before.values()):
            x.copy_(value)
        Tape.made.append(Taped(self.calls, result))
        return Tape.made[-1]


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(replay.RECORDERS, "cpu", Tape)
    monkeypatch.setattr(natural, "NARROW", 16)  # axes of all kinds in small tensors


class Run:
    """Parameters of all kinds in two groups, their optimizer, and gradients that come in fresh tensors."""

    def __init__(self, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        generator = torch.Generator().manual_seed(3)
        self.parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
        self.parameters[2].data = self.parameters[2].data.to(memory_format=torch.channels_last)
        groups = [{"params": self.parameters[:3]}, {"params": self.parameters[3:], "weight_decay": 0.0}]
        self.optimizer = NGD(groups, **{"lr": 0.1, "weight_decay": 1e-2, "nesterov": True, "replay": True} | options)

    def train(self, first: int, last: int, without: int | None = None, bad: tuple[int, ...] = ()) -> "Run":
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            for index, parameter in enumerate(self.parameters):
                noise = torch.randn(parameter.shape, generator=generator)
                if step in bad and index == 1:
                    noise[2, 1] = math.inf
                gradient = (noise + parameter.detach().nan_to_num(0, 0, 0)).to(parameter.dtype)
                parameter.grad = None if index == without else gradient
            for index, group in enumerate(self.optimizer.param_groups):
                group["lr"] = 0.1 / (1 + step) / (1 + index)
            self.optimizer.step()
        return self

    @property
    def replays(self) -> int:
        recording = self.optimizer._recording
        return recording.ordinary.replays + recording.updating.replays if recording else 0


def assert_same(first: Run, second: Run) -> None:
    for a, b in zip(first.parameters, second.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        mine, theirs = first.optimizer.state[a], second.optimizer.state[b]
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize(
    ("dtype", "overlapped", "options"),
    [
        (torch.float32, (), {}),
        (torch.float32, ("cpu",), {"nesterov": False}),
        (torch.float64, ("cpu",), {"nesterov": False, "update_period": 1}),
        (torch.bfloat16, (), {"momentum": 0.0, "nesterov": False}),
        (torch.bfloat16, ("cpu",), {"update_period": 3}),
    ],
    ids=str,
)
def test_replayed_steps_are_those_taken_one_by_one_bit_for_bit(
    dtype: torch.dtype, overlapped: tuple[str, ...], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty of them, each with its own rates and gradients in other tensors."""
    monkeypatch.setattr(fisher, "OVERLAPPED", overlapped)
    replayed, plain = Run(dtype, **options), Run(dtype, replay=False, **options)
    for first in (0, 20):
        assert_same(replayed.train(first, first + 20), plain.train(first, first + 20))  # its state too, in between
    assert replayed.replays == 26
    assert plain.replays == 0
    assert all(parameter.isfinite().all() for parameter in plain.parameters)


@pytest.mark.usefixtures("taped")
def test_a_gradient_that_is_not_finite_is_replayed_as_it_is() -> None:
    bad = (19, 21, 22)  # with an update and without
    replayed, plain = Run(momentum=0.0, nesterov=False), Run(momentum=0.0, nesterov=False, replay=False)
    assert_same(replayed.train(0, 30, bad=bad), plain.train(0, 30, bad=bad))
    assert replayed.replays == 16
    assert not plain.parameters[1].isfinite().all()
    assert plain.optimizer.state[plain.parameters[1]]["basis_0"].isfinite().all()


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the rate is a number": lambda patch: patch.setattr(NGD, "_set_rates", lambda self: None),
    "the gradients are those of the first": lambda patch: patch.setattr(
        replay.Recording, "step", partial_without_copy(replay.Recording.step)
    ),
    "the products are of old factors": lambda patch: patch.setattr(natural.Kept, "refresh", lambda self: None),
    "an update is never due": lambda patch: patch.setattr(ngd, "due", lambda step, period: False),
    "eigenvectors do not come back": lambda patch: patch.setattr(
        replay.Recording, "end", lambda self, errand: self.ending.replay()
    ),
    "a drifting count": lambda patch: patch.setattr(ngd, "due", lambda step, period: (step - 11) % 4 == 0),
}


def partial_without_copy(step: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(self: replay.Recording, due: bool) -> Any:
        course = self.course
        self.course = course._replace(gradients=[x.clone() for x in course.gradients])
        try:
            return step(self, due)
        finally:
            self.course = course

    return faulty


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Run(replay=False).train(0, 24)
    FAULTS[fault](monkeypatch)
    with pytest.raises(AssertionError):
        assert_same(Run().train(0, 24), plain)


def options_change(run: Run) -> None:
    run.optimizer.param_groups[0]["momentum"] = 0.5


def decay_changes(run: Run) -> None:
    run.optimizer.param_groups[1]["weight_decay"] = 0.1


def group_comes(run: Run) -> None:
    run.parameters.append(nn.Parameter(torch.ones(5, 4)))
    run.optimizer.add_param_group({"params": [run.parameters[-1]]})


def state_is_loaded(run: Run) -> None:
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))


def checkpoint_is_restored(run: Run) -> None:
    tensors, plain = flatten_optimizer(run.optimizer)
    restore_optimizer(run.optimizer, copy.deepcopy(tensors), plain)


def parameter_moves(run: Run) -> None:
    run.parameters[0].data = run.parameters[0].data.clone()


def factor_is_written(run: Run) -> None:
    basis = run.optimizer.state[run.parameters[1]]["basis_0"]
    basis.copy_(basis.flip(1))


def count_is_written(run: Run) -> None:
    for state in run.optimizer.state.values():
        if "step" in state:
            state["step"].sub_(2)


def it_is_switched_off(run: Run) -> None:
    run.optimizer.param_groups[0]["replay"] = False


CHANGES = [
    options_change,
    decay_changes,
    group_comes,
    state_is_loaded,
    checkpoint_is_restored,
    parameter_moves,
    factor_is_written,
    count_is_written,
    it_is_switched_off,
]


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize(("change", "at"), [(change, 18 + 2 * (i % 2)) for i, change in enumerate(CHANGES)])
def test_what_is_not_in_the_recording_ends_it(
    change: Callable[[Run], None], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an update under way, at 18, or none; it is recorded again later."""
    monkeypatch.setattr(fisher, "OVERLAPPED", ("cpu",))
    replayed, plain = Run().train(0, at), Run(replay=False).train(0, at)
    assert replayed.replays == at - 14
    assert bool(replayed.optimizer._pending) == (at == 18)
    for run in (replayed, plain):
        change(run)
        run.train(at, at + 1)
    assert replayed.optimizer._recording is None
    assert_same(replayed.train(at + 1, 44), plain.train(at + 1, 44))
    again = change not in (it_is_switched_off, group_comes)  # the new parameter never is in step with the others
    assert bool(replayed.replays) == again


@pytest.mark.usefixtures("taped")
def test_a_parameter_without_a_gradient_ends_a_recording_and_patience_grows() -> None:
    replayed, plain = Run(), Run(replay=False)
    for run in (replayed, plain):
        run.train(0, 20).train(20, 22, without=3).train(22, 36)
    assert_same(replayed, plain)
    assert replayed.replays == 36 - 28
    assert replayed.optimizer._patience == 2 * ngd.PATIENCE


@pytest.mark.usefixtures("taped")
def test_what_is_written_to_parameters_and_momenta_reaches_the_replay() -> None:
    replayed, plain = Run().train(0, 20), Run(replay=False).train(0, 20)
    for run in (replayed, plain):
        run.parameters[0].data.mul_(2)
        run.optimizer.state[run.parameters[1]]["momentum_buffer"].zero_()
        run.train(20, 30)
    assert_same(replayed, plain)
    assert replayed.replays == 16


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("at", [18, 20])
def test_a_copy_goes_on_alone(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fisher, "OVERLAPPED", ("cpu",))
    first, second = Run().train(0, at), Run()
    second.parameters, second.optimizer = copy.deepcopy((first.parameters, first.optimizer))
    plain = Run(replay=False).train(0, 40)
    assert second.optimizer._recording is None
    second.train(at, 40)
    assert second.replays > 0
    assert_same(first.train(at, 40), second)
    for a, b in zip(first.parameters, plain.parameters, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_where_recording_fails_it_says_so_once_and_goes_on(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Tape):
        def record(self, function: Callable[[], Any]) -> Taped:
            if len(Tape.made) == number:
                raise RuntimeError("operation not permitted\nwhen stream is capturing")
            return super().record(function)

    monkeypatch.setitem(replay.RECORDERS, "cpu", Broken)
    run, plain = Run().train(0, 10), Run(replay=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.train(10, 30)
    assert [str(w.message) for w in caught] == [
        "NGD: its steps cannot be replayed, they go on as they are; replay=False avoids the attempt: "
        "operation not permitted when stream is capturing"
    ]
    assert_same(run, plain.train(0, 30))


def test_without_a_recorder_there_is_none() -> None:
    assert Run().train(0, 20).replays == 0


def test_an_update_is_a_few_calls_of_like_cost() -> None:
    """Of a network like VGG11: thirty matrices of rank 80, some of 48 and many small ones."""
    sizes = {80: 30, 48: 5, 8: 40}
    host = torch.empty(sum(count * size**2 for size, count in sizes.items()))
    portions = fisher._portions(host, sizes, 4)
    assert len(portions) == 4
    assert sum(len(portion) for portion in portions) == 6
    cost = [sum(len(stack) * stack.shape[1] ** 3 for stack in portion) for portion in portions]
    assert max(cost) < 1.2 * min(cost)
    assert sum(stack.numel() for portion in portions for stack in portion) == host.numel()
    assert len(fisher._portions(host, sizes, 1)) == 1
    assert len(fisher._portions(torch.empty(10 * 64), {8: 10}, 4)) == 1


def test_small_ranks_are_decomposed_together() -> None:
    sketch = torch.rand(3, 5, 9).double()
    gram = fisher._gram(sketch, torch.tensor([True, True, True]))
    assert gram.shape == (3, 8, 8)
    fisher._decompose([gram])
    own = gram[:, :5, -5:]
    values = own.mT @ (sketch @ sketch.mT) @ own
    torch.testing.assert_close(values, torch.diag_embed(torch.linalg.eigvalsh(sketch @ sketch.mT)))


def test_products_are_in_tf32_only_while_they_are_asked_for() -> None:
    setting: Any = torch.backends.cuda.matmul
    before = setting.fp32_precision
    with advance.fast_products():
        inside = setting.fp32_precision
    assert inside == "tf32"
    assert setting.fp32_precision == before
    assert torch.get_float32_matmul_precision() == "highest"  # torch refuses where the two do not agree


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA graphs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_graphs_do_what_eager_steps_do(dtype: torch.dtype) -> None:
    replayed, plain = Run(dtype), Run(dtype, replay=False)
    for run in (replayed, plain):
        for parameter in run.parameters:
            parameter.data = parameter.data.cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    for step in range(40):
        noise = [torch.randn(shape, generator=generator, device="cuda").to(dtype) for shape in SHAPES]
        for run in (replayed, plain):
            for parameter, gradient in zip(run.parameters, noise, strict=True):
                parameter.grad = gradient.clone()
            for group in run.optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step)
            run.optimizer.step()
    assert replayed.optimizer._recording is not None
    for a, b in zip(replayed.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
