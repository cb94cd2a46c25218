"""CUDA graphs: on the CPU, by a tape of torch's operations that knows what a CUDA graph knows, and no more."""

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

import vnd.optim.cuda as cuda
import vnd.optim.ngd as ngd
from vnd.optim.cuda import GraphCache
from vnd.optim.ngd import NGD
from vnd.train.checkpoint import flatten_optimizer, restore_optimizer

SHAPES = ((6, 5, 3, 3), (9, 6), (6, 5, 3, 3), (7,), (1, 4), (70, 3))
READS = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero")


def storages(tree: Any) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tree_leaves(tree) if isinstance(x, Tensor)}


class Tape(TorchDispatchMode):
    """Captures functions without effect: what they write to is put back. Tensors and numbers are what they were then.

    A replay runs the operations on the very tensors they had, and fills the tensors they gave.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.replays: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert func._schema.name not in READS, func._schema.name
        named = zip(func._schema.arguments, args, strict=False)
        written = [value for argument, value in named if argument.alias_info and argument.alias_info.is_write]
        for x in tree_leaves((written, kwargs.get("out"))):
            if isinstance(x, Tensor):
                self.before.setdefault(x.data_ptr(), (x, x.clone()))
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    def __call__(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.calls: list[Any] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        with self:
            result = function()
        for x, value in reversed(self.before.values()):
            x.copy_(value)
        calls, number = self.calls, len(self.replays)
        assert calls  # torch warns of an empty graph
        self.replays.append(0)

        @torch.no_grad()
        def replay() -> None:
            self.replays[number] += 1
            for func, args, kwargs, out in calls:
                old = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
                new = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
                for own, value in zip(old, new, strict=True):
                    if not storages(own) & storages((args, kwargs)):  # neither a view nor in place
                        own.copy_(value)

        return replay, result


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda.CAPTURES, "cpu", Tape)
    monkeypatch.setattr(ngd, "NARROW", 16)  # axes of all kinds in small tensors


class Run:
    """Parameters of all kinds in two groups, their optimizer, rates that change, and gradients in fresh tensors."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu", **options: Any) -> None:
        generator = torch.Generator().manual_seed(3)
        tensors = [torch.randn(shape, generator=generator).to(device, dtype) for shape in SHAPES]
        tensors[2] = tensors[2].to(memory_format=torch.channels_last)
        self.parameters = [nn.Parameter(x) for x in tensors]
        groups = [{"params": self.parameters[:3]}, {"params": self.parameters[3:], "weight_decay": 0.0}]
        self.optimizer = NGD(groups, **{"lr": 0.1, "weight_decay": 1e-2, "nesterov": True} | options)

    def train(self, first: int, last: int, without: int | None = None, bad: tuple[int, ...] = ()) -> "Run":
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            for index, parameter in enumerate(self.parameters):
                noise = torch.randn(parameter.shape, generator=generator)
                if step in bad and index == 1:
                    noise[2, 1] = math.inf
                gradient = (noise.to(parameter) + parameter.detach().nan_to_num(0, 0, 0)).to(parameter.dtype)
                parameter.grad = None if index == without else gradient
            for index, group in enumerate(self.optimizer.param_groups):
                group["lr"] = 0.1 / (1 + step) / (1 + index)
            self.optimizer.step()
        return self

    @property
    def pairs(self) -> int:
        return len(self.optimizer._graphs.pairs)

    @property
    def replays(self) -> list[int]:
        """Those of an update's beginning and end, and of a step without one."""
        capture = self.optimizer._graphs.capture
        return capture.replays if capture else []


def plain_run(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> Run:
    """A run whose work is never captured."""
    run = Run(*args, **options)
    monkeypatch.setattr(run.optimizer._graphs, "patience", math.inf)
    return run


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
    monkeypatch.setattr(cuda, "OVERLAPPED", overlapped)
    replayed, plain = Run(dtype, **options), plain_run(monkeypatch, dtype, **options)
    for first in (0, 20):
        assert_same(replayed.train(first, first + 20), plain.train(first, first + 20))  # its state too, in between
    assert not plain.replays
    begun, ended, *without = replayed.replays
    period = options.get("update_period", 4)
    due = sum(step <= 10 or (step - 1) % period == 0 for step in range(4, 41))  # 1 is the first, 2 and 3 warm up
    assert begun == ended == due
    assert without == ([30 - (due - 7) - 2] if period > 1 else [])
    assert all(parameter.isfinite().all() for parameter in plain.parameters)


@pytest.mark.usefixtures("taped")
def test_a_gradient_that_is_not_finite_is_replayed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bad, options = (16, 19, 21, 22), {"momentum": 0.0, "nesterov": False}  # with an update and without
    replayed, plain = Run(**options), plain_run(monkeypatch, **options)
    assert_same(replayed.train(0, 30, bad=bad), plain.train(0, 30, bad=bad))
    assert replayed.pairs == 2
    assert not plain.parameters[1].isfinite().all()
    assert plain.optimizer.state[plain.parameters[1]]["basis_0"].isfinite().all()


def eigenvectors_do_not_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda, "_decompose", lambda matrices, ready: None)


def gradients_are_those_of_the_capture(patch: pytest.MonkeyPatch) -> None:
    turn = ngd.PreconditionGroup.turn

    def faulty(self: ngd.PreconditionGroup) -> Any:
        given, self.gradient = self.gradient, self.gradient.clone()
        given.copy_(GIVEN.setdefault(given.shape, given.clone()))
        self.gradient = given
        return turn(self)

    GIVEN.clear()
    patch.setattr(ngd.PreconditionGroup, "turn", faulty)


def ends_are_lost(patch: pytest.MonkeyPatch) -> None:
    run = GraphCache.run
    patch.setattr(GraphCache, "run", lambda *args: (run(*args)[0], lambda: None))


def updates_and_other_steps_are_one(patch: pytest.MonkeyPatch) -> None:
    count = ngd.PreconditionGroup.count
    patch.setattr(ngd.PreconditionGroup, "count", lambda self: count(self)[:1])


GIVEN: dict[Any, Tensor] = {}
FAULTS = [
    eigenvectors_do_not_come_back, gradients_are_those_of_the_capture, ends_are_lost, updates_and_other_steps_are_one,
]  # fmt: skip


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_caught(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = plain_run(monkeypatch).train(0, 24)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        assert_same(Run().train(0, 24), plain)


def option_changes(run: Run) -> None:
    run.optimizer.param_groups[0]["eta"] = 0.3


def group_comes(run: Run) -> None:
    run.parameters.append(nn.Parameter(torch.ones(5, 4)))
    run.optimizer.add_param_group({"params": [run.parameters[-1]]})


def state_is_loaded(run: Run) -> None:
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))


def checkpoint_is_restored(run: Run) -> None:
    tensors, plain = flatten_optimizer(run.optimizer)
    restore_optimizer(run.optimizer, copy.deepcopy(tensors), plain)


def factor_is_written(run: Run) -> None:
    basis = run.optimizer.state[run.parameters[1]]["basis_0"]
    basis.copy_(basis.flip(1))


def count_is_written(run: Run) -> None:
    for state in run.optimizer.state.values():
        if "step" in state:
            state["step"].sub_(2)


def it_is_copied(run: Run) -> None:
    run.parameters, run.optimizer = copy.deepcopy((run.parameters, run.optimizer))


DROPS = [
    option_changes, group_comes, state_is_loaded, checkpoint_is_restored, factor_is_written, count_is_written,
    it_is_copied,
]  # fmt: skip


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("at", [17, 19])
@pytest.mark.parametrize("change", DROPS)
def test_what_a_graph_does_not_know_of_ends_it(
    change: Callable[[Run], None], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an update under way, at 17, or none; it is captured again later."""
    monkeypatch.setattr(cuda, "OVERLAPPED", ("cpu",))
    replayed, plain = Run().train(0, at), plain_run(monkeypatch).train(0, at)
    assert replayed.pairs == 2
    assert bool(replayed.optimizer._jobs) == (at == 17)
    for run in (replayed, plain):
        change(run)
    plain.optimizer._graphs.patience = math.inf
    for run in (replayed, plain):
        run.train(at, at + 1)
    assert replayed.pairs == plain.pairs == 0
    assert_same(replayed.train(at + 1, 44), plain.train(at + 1, 44))
    assert replayed.pairs >= 1
    assert plain.pairs == 0


def rate_changes(run: Run) -> None:
    run.optimizer.param_groups[0].update(momentum=0.5, weight_decay=0.1)


def parameter_is_written(run: Run) -> None:
    run.parameters[0].data.mul_(2)


def parameter_moves(run: Run) -> None:
    run.parameters[0].data = run.parameters[0].data.clone()


def momentum_is_written(run: Run) -> None:
    run.optimizer.state[run.parameters[1]]["momentum_buffer"].zero_()


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("change", [rate_changes, parameter_is_written, parameter_moves, momentum_is_written])
def test_what_is_outside_of_the_graphs_changes_freely(
    change: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed, plain = Run().train(0, 20), plain_run(monkeypatch).train(0, 20)
    graphs = list(replayed.optimizer._graphs.pairs.values())
    for run in (replayed, plain):
        change(run)
        run.train(20, 30)
    assert_same(replayed, plain)
    assert list(replayed.optimizer._graphs.pairs.values()) == graphs
    assert len(graphs) == 2


@pytest.mark.usefixtures("taped")
def test_a_parameter_without_a_gradient_drops_what_was_captured_and_patience_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replayed, plain = Run(), plain_run(monkeypatch)
    for run in (replayed, plain):
        run.train(0, 20).train(20, 22, without=3).train(22, 36)
    assert_same(replayed, plain)
    assert replayed.optimizer._graphs.patience == 2 * cuda.WARM_UP
    assert replayed.pairs == 1  # four updates were too few


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.usefixtures("taped")
def test_where_a_capture_fails_it_says_so_once_and_goes_on(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Tape):
        def __call__(self, function: Callable[[], Any]) -> Any:
            if len(self.replays) == number:
                raise RuntimeError("operation not permitted\nwhen stream is capturing")
            return super().__call__(function)

    monkeypatch.setitem(cuda.CAPTURES, "cpu", Broken)
    run, plain = Run(), plain_run(monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.train(0, 30)
    assert [str(w.message) for w in caught] == [
        "NGD: its work cannot be captured as CUDA graphs and goes on without them, slower: "
        "operation not permitted when stream is capturing"
    ]
    assert run.pairs == 0
    assert_same(run, plain.train(0, 30))


def test_on_a_device_without_graphs_there_are_none() -> None:
    run = Run().train(0, 20)
    assert run.pairs == 0
    assert run.optimizer._graphs.capture is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA graphs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_graphs_do_what_eager_steps_do(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed, plain = Run(dtype, "cuda").train(0, 40), plain_run(monkeypatch, dtype, "cuda").train(0, 40)
    assert replayed.pairs == 2
    for a, b in zip(replayed.parameters, plain.parameters, strict=True):
        assert b.isfinite().all()
        assert ((a - b).double().norm() / b.double().norm()).item() <= (1e-5 if dtype == torch.float32 else 1e-2)


def test_small_matrices_are_decomposed_in_threads_of_about_the_same_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "OVERLAPPED", ("cpu",))
    monkeypatch.setattr(cuda, "THREADS", 4)
    shares: list[int] = []
    decompose = cuda._decompose
    monkeypatch.setattr(
        cuda, "_decompose", lambda own, ready: shares.append(sum(len(x) ** 3 for x in own)) or decompose(own, ready)
    )
    batches = [torch.randn(n, r, r).double() for n, r in ((6, 40), (2, 2), (6, 40), (2, 5), (2, 48), (2, 48))]
    batches = [x @ x.mT for x in batches]
    expected = [torch.linalg.eigh(x).eigenvectors for x in batches]
    (job,) = cuda.decompose(batches)
    job.finish()
    assert len(shares) == cuda.THREADS
    assert max(shares) < 1.01 * min(shares)
    for x, vectors in zip(batches, expected, strict=True):
        torch.testing.assert_close(x, vectors)


@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
def test_products_are_fast_while_that_lasts_and_torch_keeps_its_setting(before: str) -> None:
    setting: Any = torch.backends.cuda.matmul
    own = setting.fp32_precision
    try:
        setting.fp32_precision = before
        with cuda.fast_products(False):
            assert setting.fp32_precision == before
        with cuda.fast_products(True):
            assert setting.fp32_precision == "tf32"
        assert setting.fp32_precision == before
    finally:
        setting.fp32_precision = own
