"""Threads, tasks, checkpointing, workers: a width belongs to its caller, or the network refuses to run."""

import asyncio
import contextvars
import copy
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from structures import Example, make, run
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import vnd
from vnd.nn import OrderingUnit, context
from vnd.nn.state import state_of

WIDTHS = (1.0, 0.25, 0.5, 0.75)
THREADS = 8
Call = Callable[[], Tensor]


def first(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else next(iter(out.values() if isinstance(out, dict) else out))


def prediction(net: nn.Module, x: Example, width: Any, samples: int) -> Call:
    def call() -> Tensor:
        found = vnd.predict(net, x, width, samples, link="identity", seed=7, output=first)
        return torch.cat([found.probs.flatten(), found.variance.flatten()])

    return call


def block(net: nn.Module, x: Example, width: Any) -> Call:
    def call() -> Tensor:
        with vnd.width(net, width):
            return run(net, x)

    return call


def calls_of(net: nn.Module, x: Example) -> list[Call]:
    """All that may run at once: blocks and predictions at four widths, and those of a network cut out."""
    found = [block(net, x, width) for width in WIDTHS]
    found += [prediction(net, x, width, samples) for width in WIDTHS for samples in (0, 3)]
    found += [lambda: run(vnd.extract(net, 0.75), x)]
    small = vnd.extract(net, 0.5, keep="posterior")
    return [*found, *(prediction(small, x, None, samples) for samples in (0, 3))]


@torch.no_grad()
def in_threads(calls: list[Call], repeats: int) -> list[tuple[int, Tensor]]:
    """Every answer of every call, `repeats` times, by eight threads that begin at different calls."""

    def work(thread: int) -> list[tuple[int, Tensor]]:
        with torch.no_grad():
            order = [(thread + i) % len(calls) for i in range(len(calls) * repeats // THREADS)]
            return [(index, calls[index]()) for index in order]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # or the threads of a busy machine may run one after the other
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            return [answer for answers in pool.map(work, range(THREADS)) for answer in answers]
    finally:
        sys.setswitchinterval(interval)


def wrong(calls: list[Call], repeats: int) -> tuple[int, int]:
    """How many answers by threads differ from those one by one, and how many there were."""
    with torch.no_grad():
        wanted = [call() for call in calls]
    found = in_threads(calls, repeats)
    return sum(not torch.equal(answer, wanted[index]) for index, answer in found), len(found)


def recalibrated(name: str, **options: Any) -> tuple[nn.Module, Example]:
    _, net, x = make(name, dtype=torch.float32, **options)
    batch = x if isinstance(x, dict) else (x,) if isinstance(x, Tensor) else x
    vnd.recalibrate(net, [batch], widths=(1.0, 0.25, 0.5, 0.75), samples="both")
    return net, x


@pytest.mark.parametrize("name", ["residual, stream", "grouped", "transformer", "several"])
def test_threads_at_different_widths_answer_as_one_after_the_other(name):
    net, x = recalibrated(name)
    before = run(net, x)
    assert wrong(calls_of(net, x), repeats=8)[0] == 0
    assert torch.equal(run(net, x), before)
    assert state_of(net).shape is None
    assert not context._HERE.get()


def test_10_000_answers_of_eight_threads_are_those_of_one():
    net, x = recalibrated("flatten")
    x = x[:1].softmax(-1) if x.dim() < 4 else x
    labels = torch.tensor([0, 2])
    calls = calls_of(net, x)
    calls += [lambda: vnd.cascade(net, x, WIDTHS[1:], threshold=0.9, macs=(1, 2, 3)).probs]
    calls += [lambda: torch.tensor(vnd.selective(net, x, labels, risk=0.6, width=0.5, samples=2, seed=1).threshold)]
    bad, count = wrong(calls, repeats=626)
    assert bad == 0
    assert count >= 10_000


def test_10_000_answers_of_eight_coroutines_are_those_of_one():
    net, x = recalibrated("flatten")
    calls = calls_of(net, x)
    with torch.no_grad():
        wanted = [call() for call in calls]
        single = {width: block(net, x, width)() for width in WIDTHS}
    bad = []

    async def work(task: int) -> None:
        for i in range(625):
            width = WIDTHS[(task + i) % 4]
            with vnd.width(net, width):
                await asyncio.sleep(0)
                bad.append(not torch.equal(run(net, x), single[width]))
            index = (task + i) % len(calls)
            await asyncio.sleep(0)
            bad.append(not torch.equal(calls[index](), wanted[index]))

    async def all_of_them() -> None:
        await asyncio.gather(*(work(task) for task in range(THREADS)))

    with torch.no_grad():
        asyncio.run(all_of_them())
    assert (sum(bad), len(bad)) == (0, 10_000)
    assert state_of(net).shape is None


class OfTheModule:
    """A context that all callers share, as if the width lay in the network."""

    def __init__(self) -> None:
        self.value: Any = {}

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize("fault", ["one width for all", "one generator for all"])
def test_what_callers_share_is_caught(fault, monkeypatch):
    net, x = recalibrated("flatten")
    if fault == "one width for all":
        monkeypatch.setattr(context, "_HERE", OfTheModule())
    else:
        monkeypatch.setattr("vnd.nn.noise.source", lambda generator: {})
    calls = [prediction(net, x, width, samples) for width in WIDTHS for samples in (0, 3)]
    for _ in range(20):  # threads need not meet in the first attempt
        try:
            bad = wrong(calls, repeats=100)[0]
        except (RuntimeError, ValueError, KeyError, TypeError):  # loud is well enough
            bad = 1
        if bad:
            break
    assert bad > 0


class OnlyOne(dict):  # type: ignore[type-arg]
    """A table of the networks in evaluation that counts nobody but the last."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, (1, value[1]))

    def pop(self, key: Any) -> Any:  # type: ignore[override]
        return super().pop(key, (1, []))


@pytest.mark.parametrize("fault", [False, True], ids=["as it is", "modes put back by the first"])
def test_the_mode_is_put_back_by_the_last_that_predicts(fault, monkeypatch):
    """One prediction waits within the network until another one, that began later, has ended."""
    net, x = recalibrated("flatten")
    net.train()
    wanted = vnd.predict(net, x, 0.5, samples=0).probs
    if fault:
        monkeypatch.setattr(sys.modules["vnd.nn.predict"], "_EVALUATING", OnlyOne())
    inside, ended = threading.Event(), threading.Event()

    def wait(module: nn.Module, args: Any) -> None:
        if threading.current_thread().name == "slow":
            inside.set()
            ended.wait(60)

    net[0].register_forward_pre_hook(wait)
    found: list[Tensor] = []
    slow = threading.Thread(name="slow", target=lambda: found.append(vnd.predict(net, x, 0.5, samples=0).probs))
    slow.start()
    assert inside.wait(60)
    vnd.predict(net, x, 1.0, samples=0)
    ended.set()
    slow.join(60)
    assert torch.equal(found[0], wanted) is not fault


def test_threads_that_predict_in_training_mode_leave_it_on():
    net, x = recalibrated("flatten")
    net.train()
    net[1].eval()
    modes = [module.training for module in net.modules()]
    calls = [prediction(net, x, width, samples) for width in WIDTHS for samples in (0, 3)]
    assert wrong(calls, repeats=20)[0] == 0
    assert [module.training for module in net.modules()] == modes


# -- what a context does not reach ------------------------------------------------------------------------------------


def test_a_thread_pool_within_a_block_is_refused():
    net, x = recalibrated("flatten")
    at_half = block(net, x, 0.5)()
    with ThreadPoolExecutor(1) as pool, vnd.width(net, 0.5):
        calls = [
            lambda: run(net, x),
            lambda: vnd.predict(net, x),
            lambda: vnd.extract(net),
            lambda: net[5](x.flatten(1)),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="another thread runs this network in a block of its own"):
                pool.submit(call).result()
        assert torch.equal(pool.submit(block(net, x, 0.5)).result(), at_half)
        said = contextvars.copy_context()
        assert torch.equal(pool.submit(said.run, run, net, x).result(), at_half)
        assert torch.equal(pool.submit(prediction(net, x, 0.25, 0)).result(), prediction(net, x, 0.25, 0)())
    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(run, net, x).result(), run(net, x))


def test_blocks_that_cross_are_refused_and_leave_no_width_behind():
    net, x = recalibrated("flatten")
    full = run(net, x)

    def generator(width: float) -> Iterator[Tensor]:
        with vnd.width(net, width):
            yield run(net, x)

    first, second = generator(0.25), generator(0.75)
    assert torch.equal(next(first), block(net, x, 0.25)())
    assert torch.equal(next(second), block(net, x, 0.75)())
    for opened in (first, second):
        with pytest.raises(RuntimeError, match="blocks must close in their own thread or task, the innermost first"):
            next(opened)
    assert torch.equal(run(net, x), full)

    def close_elsewhere() -> None:
        opened = vnd.width(net, 0.5)
        opened.__enter__()
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="blocks must close"):
            pool.submit(opened.__exit__, None, None, None).result()

    contextvars.copy_context().run(close_elsewhere)
    assert not context._BLOCKS
    assert torch.equal(run(net, x), full)


def test_a_pass_that_was_interrupted_does_not_end_a_block_that_opens_later():
    net, x = recalibrated("flatten")
    full, quarter, half = run(net, x), block(net, x, 0.25)(), prediction(net, x, 0.5, 3)()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def interrupted() -> None:
        handle = net[5].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(net, x)
        handle.remove()

    interrupted()
    with vnd.width(net, 0.25):
        assert torch.equal(run(net, x), quarter)
        interrupted()
        assert torch.equal(run(net, x), quarter)
    interrupted()
    assert torch.equal(prediction(net, x, 0.5, 3)(), half)
    assert torch.equal(run(net, x), full)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_leaves_the_blocks_of_other_threads_behind():
    net, x = recalibrated("flatten")
    full = run(net, x)
    opened, done = threading.Event(), threading.Event()

    def hold() -> None:
        with vnd.width(net, 0.5):
            opened.set()
            done.wait()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        opened.wait()
        child = os.fork()
        if child == 0:
            answer = 1
            with suppress(RuntimeError):
                answer = 0 if torch.equal(run(net, x), full) else 2
            os._exit(answer)
        with pytest.raises(RuntimeError, match="another thread"):
            run(net, x)
        done.set()
        holding.result()
    assert os.waitpid(child, 0)[1] == 0


def test_a_pool_that_nobody_refuses_answers_at_another_width(monkeypatch):
    monkeypatch.setattr(context, "_BLOCKS", type("Empty", (dict,), {"__bool__": lambda _: False})())
    net, x = recalibrated("flatten")
    with ThreadPoolExecutor(1) as pool, vnd.width(net, 0.5):
        assert not torch.equal(pool.submit(run, net, x).result(), run(net, x))


def test_tasks_that_start_within_a_block_have_its_width():
    net, x = recalibrated("flatten")
    wanted = block(net, x, 0.5)()

    async def both() -> list[Tensor]:
        async def later() -> Tensor:
            await asyncio.sleep(0)
            return run(net, x)

        with vnd.width(net, 0.5):
            return [await asyncio.create_task(later()), await asyncio.to_thread(run, net, x)]

    for found in asyncio.run(both()):
        assert torch.equal(found, wanted)


class Answers(Dataset):  # type: ignore[type-arg]
    """Runs a network where its examples are asked for: in a worker."""

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        self.net, self.x = net, x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return run(self.net, self.x[index : index + 1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_of_a_data_loader_have_the_width_of_the_block():
    net, x = recalibrated("flatten")
    with torch.no_grad(), vnd.width(net, 0.5):
        wanted = torch.stack([run(net, x[i : i + 1]) for i in range(len(x))])
        loader = DataLoader(Answers(net, x), batch_size=2, num_workers=1, multiprocessing_context="fork")
        assert torch.equal(next(iter(loader)), wanted)
        sent = pickle.loads(pickle.dumps(Answers(net, x)))  # as to a worker that is spawned
    assert torch.equal(torch.stack([sent[i] for i in range(len(x))]), wanted)
    assert not torch.equal(torch.stack([Answers(net, x)[i] for i in range(len(x))]), wanted)


def gradients(net: nn.Module, losses: list[Tensor]) -> list[Tensor]:
    for loss in losses:
        loss.backward()
    found = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    return found


def dense() -> tuple[nn.Module, Tensor]:
    """A network of dense layers, and an example."""
    torch.manual_seed(0)
    x = torch.randn(5, 4).double()
    layers = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    return nn.Sequential(*layers).double(), x


def checkpointed(net: nn.Module, reentrant: bool = False) -> nn.Module:
    """A copy of which everything but the first layer and its norm runs again in the backward pass."""
    twin = copy.deepcopy(net)
    for layer in list(twin)[2:]:
        inner = layer.forward
        layer.forward = lambda y, inner=inner: checkpoint(inner, y, use_reentrant=reentrant)
    return twin


def passes(net: nn.Module, x: Tensor, way: str) -> list[Tensor]:
    """Losses of several passes, all of them before the first backward pass, which is outside of any block."""
    torch.manual_seed(0)
    if way == "training":
        return [net.train()(x + i).square().sum() for i in range(3)]
    if way == "training at widths":
        net.train()
    found = []
    for width in (0.25, None, 0.75):
        with vnd.width(net, width):
            found.append(net(x).square().sum())
    return found


@pytest.mark.parametrize("way", ["training", "training at widths", "evaluation at widths"])
@pytest.mark.parametrize("coupling", ["quantile", "independent"])
def test_checkpointed_layers_run_again_at_the_width_that_they_first_ran_at(way, coupling):
    plain, x = dense()
    net = vnd.to_nested(plain, x, num_groups=8, bayesian=False, coupling=coupling).eval()
    twin, whole, outer = checkpointed(net), copy.deepcopy(net), copy.deepcopy(net)
    own = gradients(net, passes(net, x, way))
    assert all(torch.allclose(a, b) for a, b in zip(own, gradients(twin, passes(twin, x, way)), strict=True))
    inner = type(whole).forward
    whole.forward = lambda y: checkpoint(inner, whole, y, use_reentrant=False)
    assert all(torch.allclose(a, b) for a, b in zip(own, gradients(whole, passes(whole, x, way)), strict=True))
    torch.manual_seed(0)
    if way == "training":
        losses = [checkpoint(outer.train(), x + i, use_reentrant=False).square().sum() for i in range(3)]
        assert all(torch.allclose(a, b) for a, b in zip(own, gradients(outer, losses), strict=True))


def test_a_checkpointed_layer_at_the_width_of_the_moment_has_other_gradients(monkeypatch):
    plain, x = dense()
    net = vnd.to_nested(plain, x, num_groups=8, bayesian=False).eval()
    twin = checkpointed(net)
    own = gradients(net, passes(net, x, "evaluation at widths"))
    monkeypatch.setattr("vnd.nn.ordering.recall", lambda owner, answer: answer(context.here(owner)))
    found = gradients(twin, passes(twin, x, "evaluation at widths"))
    assert not all(torch.allclose(a, b) for a, b in zip(own, found, strict=True))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_and_regions_of_two_widths_are_refused():
    plain, x = dense()
    net = vnd.to_nested(plain, x, num_groups=8, bayesian=False)
    with pytest.raises(RuntimeError, match="cannot know at which width"):
        gradients(net, passes(checkpointed(net, reentrant=True), x, "training"))

    def two(y: Tensor) -> Tensor:
        return block(net.eval(), y, 0.25)() + block(net, y, 0.5)()

    with pytest.raises(RuntimeError, match="at two widths or in two passes"):
        checkpoint(two, x, use_reentrant=False)


def test_a_masked_recalibration_refuses_other_threads():
    net, x = recalibrated("flatten")
    seen: list[Any] = []

    def ask(module: nn.Module, args: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(run, net, x).exception())

    net[3].register_forward_pre_hook(ask)  # for which the network itself runs, masked
    vnd.recalibrate(net, [x], widths=0.5)
    assert "wait for it" in str(seen[0])


# -- compiled ---------------------------------------------------------------------------------------------------------


def test_threads_share_one_compiled_graph_at_all_widths():
    torch.compiler.reset()
    net, x = recalibrated("flatten")
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    calls = [block(compiled, x, width) for width in WIDTHS] + [lambda: run(vnd.extract(net, 1.0), x)]
    calls += [prediction(compiled, x, width, 0) for width in WIDTHS]
    calls += [prediction(net, x, width, 0) for width in WIDTHS]  # eagerly, meanwhile
    with torch.no_grad():
        compiled(x)
        [call() for call in calls]
        with torch._dynamo.config.patch(error_on_recompile=True):
            assert wrong(calls, repeats=80)[0] == 0
    assert torch.equal(compiled(x), net(x))
    torch.compiler.reset()


def test_compiled_code_refuses_a_block_that_it_does_not_see():
    torch.compiler.reset()
    net, x = recalibrated("flatten")
    compiled = torch.compile(net, backend="eager")
    step = torch.compile(lambda y: net(y) + 1, backend="eager")
    for call in (compiled, step):
        with torch.no_grad():
            wanted = call(x)
            with pytest.raises(RuntimeError, match="does not see this block"), vnd.width(net, 0.5):
                call(x)
            assert torch.equal(call(x), wanted)
    torch.compiler.reset()


def test_parts_that_were_compiled_have_the_width_of_the_block():
    torch.compiler.reset()
    net, x = recalibrated("flatten")
    wanted = [block(net, x, width)() for width in WIDTHS]
    net[5].compile(backend="eager")
    calls = [block(net, x, width) for width in WIDTHS] + [prediction(net, x, width, 0) for width in WIDTHS]
    with torch.no_grad():
        for call, found in zip(calls, 2 * wanted, strict=True):
            assert torch.equal(call()[: len(found)], found)
        assert wrong(calls, repeats=40)[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dynamo asks a mask for its gradient
        net.train()(x).sum().backward()
    torch.compiler.reset()


@pytest.mark.parametrize("keep", ["mean", "posterior", "nested"])
def test_cutting_never_changes_the_modes_of_the_network_that_is_cut(monkeypatch, keep):
    net, _ = recalibrated("flatten")
    live, real = set(state_of(net).units.values()), OrderingUnit.train

    def train(unit: OrderingUnit, mode: bool = True) -> OrderingUnit:
        assert unit not in live  # another thread may run it
        return real(unit, mode)

    monkeypatch.setattr(OrderingUnit, "train", train)
    small = vnd.extract(net, 0.5, keep)
    assert not any(module.training for module in small.modules())
