"""Checkpoints: training goes on bit for bit, from the newest one that is whole, whatever befell the others."""

import copy
import json
import math
import os
import pickle
import resource
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hostile
import vnd
from hostile import DESCRIPTIONS, HEADERS, MANIFESTS, Bomb, Calls, broken_disk, full_disk, interrupted, read_only
from vnd import _manifest
from vnd.models import UNet
from vnd.nn.state import state_of
from vnd.optim.ngd import NGD
from vnd.train import checkpoint
from vnd.train.checkpoint import MANIFEST, Checkpoint, capture, flatten_optimizer, read, restore, restore_optimizer

STATE = {"best": math.inf, "rate": 0.1 + 0.2, "words": ["a", None, True, {"b": -0.0}]}


def tensors(step: int) -> dict[str, Tensor]:
    return {"a": torch.arange(4.0) + step, "b/c": torch.tensor([step], dtype=torch.int64), "d": torch.zeros(0, 2)}


def write(folder: Path, step: int, keep: int = 2) -> Path:
    return checkpoint.write(folder, step, tensors(step), STATE | {"step": step}, keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tensor_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def assert_reads(folder: Path, step: int) -> Checkpoint:
    """That the checkpoint of this step is read, without a warning, exactly as it was written."""
    found = read(folder)
    assert found is not None
    assert (found.step, found.path) == (step, folder / f"step-{step:08d}")
    assert found.state == STATE | {"step": step}
    assert found.tensors.keys() == tensors(step).keys()
    for name, value in tensors(step).items():
        assert value.dtype == found.tensors[name].dtype
        assert torch.equal(value, found.tensors[name])
    return found


def assert_falls_back(folder: Path, step: int, *words: str) -> None:
    """That an older checkpoint is read, with one line of warning that has these words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_reads(folder, step)
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith("checkpoint: ")
    assert message.endswith(f"; going on from step-{step:08d} instead")
    assert "\n" not in message
    assert len(message) < 1000
    assert all(word in message for word in words), message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints."""
    for step in (10, 20):
        write(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


# Writing and reading


def test_the_newest_checkpoint_is_read(tmp_path):
    assert read(tmp_path / "nowhere") is None
    assert read(tmp_path) is None
    for step in (0, 5, 99_999_999, 100_000_000):
        assert write(tmp_path, step) == tmp_path / f"step-{step:08d}"
        assert_reads(tmp_path, step)
    assert names(tmp_path) == ["step-100000000", "step-99999999"]


def test_a_checkpoint_is_two_files_and_the_older_ones_go(tmp_path):
    for step in range(6):
        write(tmp_path, step, keep=3)
    assert names(tmp_path) == [f"step-{step:08d}" for step in (3, 4, 5)]
    assert len(contents(tmp_path)) == 6
    write(tmp_path, 6, keep=1)
    assert names(tmp_path) == ["step-00000006"]


def test_what_is_not_a_checkpoint_is_left_alone(folder):
    others = ["step-1", "step-0000000x", "step-000000030", ".step-x.part", "notes"]
    for name in others:
        (folder / name).mkdir()
    (folder / "step-00000099").write_text("a file")
    write(folder, 30)
    assert_reads(folder, 30)
    assert set(names(folder)) == {"step-00000020", "step-00000030", "step-00000099", *others}


def test_a_step_is_written_over_and_later_ones_are_given_up(folder):
    write(folder, 30, keep=9)
    checkpoint.write(folder, 20, tensors(7), {}, keep=9)
    assert names(folder) == ["step-00000010", "step-00000020"]
    found = read(folder)
    assert found is not None
    assert found.state == {}
    assert torch.equal(found.tensors["a"], tensors(7)["a"])
    write(folder, 5, keep=1)
    assert names(folder) == ["step-00000005"]


def test_damaged_ones_do_not_count_as_kept(folder):
    write(folder, 30, keep=3)
    (folder / "step-00000030" / MANIFEST).unlink()
    tensor_file(folder / "step-00000020").unlink()
    write(folder, 40)
    assert names(folder) == ["step-00000010", "step-00000040"]


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    for state, words in (
        ({"a": torch.zeros(1)}, "state/a must be a plain JSON value; got Tensor"),
        ({"a": [0, {"b": (1, 2)}]}, "state/a/1/b must be a plain JSON value; got tuple"),
        ({"a": {1: 2}}, "the keys of state/a must be words; got 1"),
    ):
        with pytest.raises(ValueError, match=rf"^checkpoint: {words}$"):
            checkpoint.write(tmp_path / "x", 1, {}, state)
    for step, keep in ((-1, 2), (10**18, 2), (1, 0)):
        with pytest.raises(ValueError, match=r"^checkpoint: step must lie"):
            checkpoint.write(tmp_path / "x", step, {}, {}, keep)
    assert not (tmp_path / "x").exists()


# Faults of the disk, and kills


@pytest.mark.parametrize("fault", [full_disk, broken_disk, read_only, interrupted])
def test_after_a_fault_at_any_write_the_old_checkpoint_is_read_and_nothing_is_left_over(fault, folder, monkeypatch):
    before = contents(folder)
    calls = Calls(monkeypatch, (Path, "mkdir"))
    write(folder, 30, keep=3)
    total, shown = calls.count, calls.names
    put = ["fsync", "replace", "fsync"]
    assert shown == ["mkdir", "save_file", *put, "write_text", *put, "replace", "fsync"]
    shutil.rmtree(folder / "step-00000030")
    for at in range(total):
        calls.restart(at, fault)
        with pytest.raises((OSError, KeyboardInterrupt)) as caught:
            write(folder, 30, keep=3)
        assert "\n" not in str(caught.value)
        calls.restart(-1)
        if at < total - 1:
            assert names(folder) == ["step-00000010", "step-00000020"]
            assert contents(folder) == before
            assert_reads(folder, 20)
        else:  # the new one is in place, only not known to be on the disk
            assert_reads(folder, 30)
            assert len(contents(folder)) == 6


@pytest.mark.parametrize("fault", [full_disk, interrupted])
def test_after_a_fault_in_writing_a_step_again_it_is_the_old_or_the_new_one(fault, folder, monkeypatch):
    before = contents(folder)
    calls = Calls(monkeypatch, (Path, "mkdir"))
    checkpoint.write(folder, 20, tensors(20), STATE | {"step": 20})
    total = calls.count
    for at in range(total):
        calls.restart(at, fault)
        with pytest.raises((OSError, KeyboardInterrupt)):
            checkpoint.write(folder, 20, tensors(8), {})
        calls.restart(-1)
        found = read(folder)
        assert found is not None
        assert len(contents(folder)) == 4
        assert torch.equal(found.tensors["a"], tensors(20 if at < total - 1 else 8)["a"])
        assert (contents(folder) == before) == (at < total - 1)


def test_after_a_fault_in_a_first_save_there_is_none(monkeypatch, tmp_path):
    calls = Calls(monkeypatch)
    write(tmp_path / "trial", 1)
    for at in range(calls.count - 1):
        calls.restart(at, full_disk)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "x", 1)
        assert names(tmp_path / "x") == []
        assert read(tmp_path / "x") is None


def test_a_short_write_of_the_system_leaves_the_old_checkpoint(folder):
    before = contents(folder)
    sizes = sorted(len(content) for content in before.values())
    for size in (0, 8, sizes[0] - 1, sizes[0], sizes[-1] - 10):
        with pytest.raises(OSError, match="File too large"), hostile.short_writes(size):
            write(folder, 30)
        assert contents(folder) == before
    assert names(folder) == ["step-00000010", "step-00000020"]
    assert_reads(folder, 20)


def test_what_cannot_be_removed_now_is_removed_after_the_next_save(folder, monkeypatch):
    calls = Calls(monkeypatch)
    write(folder, 30, keep=3)
    calls.restart(calls.count, broken_disk)  # the call after those of a save: it takes the oldest away
    write(folder, 40)
    assert calls.names[-1] == "replace"
    assert_reads(folder, 40)
    assert len(names(folder)) == 4
    calls.restart(-1)
    write(folder, 50)
    assert names(folder) == ["step-00000040", "step-00000050"]


def test_after_a_kill_at_any_write_the_newest_whole_checkpoint_is_read(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    for step in (10, 20):
        write(tmp_path / "trial", step)
    calls.restart(-1)
    write(tmp_path / "trial", 30)
    total, shown = calls.count, calls.names
    assert shown[-3:] == ["replace", "fsync", "replace"]  # in place, on the disk, and the oldest taken away
    assert total >= 11
    for at in range(total):
        folder = tmp_path / str(at)
        for step in (10, 20):
            write(folder, step)
        calls.restart(at, hostile.killed)
        assert hostile.ended(hostile.forked(lambda folder=folder: write(folder, 30))) == -9
        calls.restart(-1)
        assert_reads(folder, 20 if at <= total - 3 else 30)
        write(folder, 40)
        assert names(folder) == [f"step-{step:08d}" for step in ((20, 40) if at <= total - 3 else (30, 40))]
        assert_reads(folder, 40)


def test_after_a_kill_in_the_first_save_training_starts_anew(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    for at in range(8):
        calls.restart(at, hostile.killed)
        assert hostile.ended(hostile.forked(lambda: write(tmp_path, 1))) == -9
        calls.restart(-1)
        assert names(tmp_path) == [".step-00000001.part"]
        assert read(tmp_path) is None
    write(tmp_path, 1)
    assert names(tmp_path) == ["step-00000001"]


@pytest.mark.fault
def test_two_hundred_kills_from_outside_lose_no_checkpoint(tmp_path):
    draw = Random(0)
    step = 0
    for _ in range(200):
        ours, theirs = os.pipe()

        def work(start: int = step, told: int = theirs) -> None:
            for number in range(start + 1, start + 10_000):
                write(tmp_path, number)
                os.write(told, b".")

        child = hostile.forked(work)
        os.close(theirs)
        done = sum(len(os.read(ours, 1)) for _ in range(draw.randrange(1, 6)))
        for _ in range(draw.randrange(2000)):  # on into the next save
            pass
        os.kill(child, 9)
        assert hostile.ended(child) == -9
        done += len(os.read(ours, 1000))
        os.close(ours)
        found = read(tmp_path)
        assert found is not None
        assert found.step in (step + done, step + done + 1)
        step = found.step
        assert_reads(tmp_path, step)
    write(tmp_path, step + 1)
    assert len(names(tmp_path)) == 2


# Corruption


@pytest.mark.parametrize("count", [125, pytest.param(4500, marks=pytest.mark.fault)])  # flips in each of two files
def test_flipped_bits_and_cut_files_are_found_and_the_one_before_is_read(count, folder):
    draw, tried = Random(1), 0
    for path in (folder / "step-00000020" / MANIFEST, tensor_file(folder / "step-00000020")):
        whole = path.read_bytes()
        for broken in (*hostile.flips(whole, count, draw), *hostile.cuts(whole, count // 8, draw)):
            path.write_bytes(broken)
            assert_falls_back(folder, 10, str(path))
            tried += 1
        path.write_bytes(whole)
    assert tried > 2 * count
    assert_reads(folder, 20)


def test_a_missing_file_is_found_and_the_one_before_is_read(folder):
    for path in (folder / "step-00000020" / MANIFEST, tensor_file(folder / "step-00000020")):
        whole = path.read_bytes()
        path.unlink()
        assert_falls_back(folder, 10, "step-00000020", path.name)
        path.write_bytes(whole)
    assert_reads(folder, 20)
    shutil.rmtree(folder / "step-00000010")
    (folder / "step-00000020").rename(folder / "step-00000030")
    with pytest.raises(ValueError, match=r"step-00000030.* is damaged: it is of step 20"):
        read(folder)


def test_a_file_that_cannot_be_read_is_said_so(folder, monkeypatch):
    real = Path.read_text

    def broken(path: Path, *args: Any, **kwargs: Any) -> str:
        if "step-00000020" in str(path):
            raise OSError(5, "Input/output error")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", broken)
    assert_falls_back(folder, 10, "step-00000020", "Input/output error")

    def lost(form: _manifest.Format, path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(_manifest, "read", lost)
    with pytest.raises(ValueError, match="Permission denied"):
        read(folder)


def test_every_damaged_checkpoint_has_its_line_and_if_all_are_it_is_an_error(folder):
    for step in (30, 40):
        write(folder, step, keep=9)
    for step in (30, 40):
        (folder / f"step-{step:08d}" / MANIFEST).write_text("{}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_reads(folder, 20)
    for step, found in zip((40, 30), caught, strict=True):
        assert f"step-{step:08d}" in str(found.message)
    for step in (10, 20):
        tensor_file(folder / f"step-{step:08d}").write_bytes(b"")
    before = contents(folder)
    with pytest.raises(ValueError, match=r"^checkpoint: .*step-00000040.*\(and 3 older\); none is left") as error:
        read(folder)
    assert "\n" not in str(error.value)
    for step in (10, 20, 30):
        shutil.rmtree(folder / f"step-{step:08d}")
    with pytest.raises(ValueError, match=r"step-00000040.*KeyError: 'format'; none is left"):
        read(folder)
    assert contents(folder).items() <= before.items()  # reading removes nothing


def test_a_run_that_fell_back_goes_on_past_the_damaged_one(folder):
    tensor_file(folder / "step-00000020").write_bytes(b"")
    assert_falls_back(folder, 10, "step-00000020")
    write(folder, 15)
    assert names(folder) == ["step-00000010", "step-00000015"]
    write(folder, 20)
    assert_reads(folder, 20)


# Malice


def deep(depth: int) -> dict[str, Any]:
    return json.loads('{"a":' * depth + "1" + "}" * depth)


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = DESCRIPTIONS | {
    "no step": lambda m: m.pop("step"),
    "another step": lambda m: m.update(step=10),
    "negative step": lambda m: m.update(step=-20),
    "step of words": lambda m: m.update(step="20"),
    "true as step": lambda m: m.update(step=True),
    "step that is no number": lambda m: m.update(step=math.nan),
    "infinite step": lambda m: m.update(step=math.inf),
    "float as step": lambda m: m.update(step=20.0),
    "huge step": lambda m: m.update(step=10**400),
    "no state": lambda m: m.pop("state"),
    "list as state": lambda m: m.update(state=[]),
    "word as state": lambda m: m.update(state="__import__('os')"),
    "deep state": lambda m: m.update(state=deep(900)),
    "the other checkpoint's tensors": lambda m: m.update(tensors="../step-00000010/" + m["tensors"]),
    "one tensor more": lambda m: m["sha256"].update(e="0" * 64),
    "one tensor fewer": lambda m: m["sha256"].popitem(),
}


def corpus(folder: Path, mark: Path) -> Iterator[tuple[str, Path, Callable[[], object]]]:
    """Hostile changes of a checkpoint: their name, the file, and what to do to it."""
    description, data = folder / MANIFEST, tensor_file(folder)
    for name, change in HOSTILE.items():
        yield name, description, lambda change=change: hostile.rewrite(description, change)
    for text in MANIFESTS:
        yield f"manifest {text[:20]!r}", description, lambda text=text: description.write_text(text)
    for header in HEADERS:
        yield f"tensors {header[8:30]!r}", data, lambda header=header: data.write_bytes(header)
    for path in (description, data):
        yield f"pickle as {path.suffix}", path, lambda path=path: path.write_bytes(pickle.dumps(Bomb(mark)))
        yield f"torch as {path.suffix}", path, lambda path=path: torch.save({"a": Bomb(mark)}, path)


@pytest.mark.filterwarnings("ignore:Using or importing the ABCs")
def test_hostile_checkpoints_are_refused_in_one_line_and_nothing_is_run(folder, tmp_path):
    tried = 0
    for name, path, change in corpus(folder / "step-00000020", tmp_path / "mark"):
        whole = path.read_bytes()
        change()
        if name == "deep state":  # which some Pythons can read: then it is as it was said to be
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert read(folder) is not None
        else:
            assert_falls_back(folder, 10, "step-00000020")
        path.write_bytes(whole)
        tried += 1
    assert tried >= 45
    assert_reads(folder, 20)
    assert not (tmp_path / "mark").exists()


def test_hostile_checkpoints_take_no_memory(folder, tmp_path):
    def work() -> None:
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**27, -1))
        for _, path, change in corpus(folder / "step-00000020", tmp_path / "mark"):
            whole = path.read_bytes()
            change()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(folder)
            path.write_bytes(whole)

    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")
    assert hostile.ended(hostile.forked(work)) == 0


def test_pickles_and_strangers_beside_a_checkpoint_are_not_looked_at(folder, tmp_path):
    for name in ("optimizer.pt", "a.pkl", "tensors-0123456789ab.safetensors"):
        (folder / "step-00000020" / name).write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    assert_reads(folder, 20)
    assert not (tmp_path / "mark").exists()


# The state of an optimizer


class Wide(torch.optim.Optimizer):
    """An optimizer of one's own: nested state in other dtypes and shapes than the parameter's, lists, words."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "name": "wide", "pair": (1, [2.5, None])})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in [p for p in group["params"] if p.grad is not None]:
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.int64)
                    state["factors"] = {"mean": torch.zeros_like(p, dtype=torch.float64), "deep": {"x": torch.ones(3)}}
                    state["factors/mean"] = torch.full((2,), 0.1, dtype=torch.float32)
                    state["word"], state["history"] = "start", [torch.zeros(1, dtype=torch.float64), 0]
                state["step"] += 1
                state["factors"]["mean"].mul_(0.9).add_(p.grad.double())
                state["factors"]["deep"]["x"] *= 1.1
                state["factors/mean"] += state["factors"]["deep"]["x"][:2]
                state["history"][0] += state["factors/mean"].double().sum()
                state["history"][1] += 1
                factor = state["history"][0].item() / state["history"][1]
                p -= (group["lr"] * factor * state["factors"]["mean"]).to(p.dtype)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "sgd with momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd, fused": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True),
    "adam, amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adam, one by one": lambda groups: torch.optim.Adam(groups, lr=0.01, foreach=False),
    "adam with a tensor as rate": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.01), foreach=False),
    "adamw, amsgrad": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw, foreach": lambda groups: torch.optim.AdamW(groups, lr=0.01, foreach=True),
    "adamw, fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "ngd": lambda groups: NGD(groups, lr=0.1),
    "one's own": Wide,
}


def parameters(seed: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=draw).to(dtype) for shape in ((4, 3, 2, 2), (3,), (3, 5), ())]
    values[0] = values[0].to(memory_format=torch.channels_last)
    return [nn.Parameter(value) for value in values]


def groups(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params[:2]}, {"params": params[2:], "lr": 1 / 3, "weight_decay": 1e-3, "peak": 0.7}]


def turn(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], start: int, stop: int) -> None:
    for step in range(start, stop):
        draw = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=draw))
        if step < 2 and not optimizer.defaults.get("fused"):  # one whose state begins later, which breaks fused SGD
            params[1].grad = None
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list | tuple):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(part, f"{path}/{type(tree).__name__} {key}")
    else:
        yield path, tree


def assert_equal_trees(mine: Any, theirs: Any) -> None:
    """Bit for bit, with dtypes, devices, strides and types."""
    mine, theirs = (sorted(leaves(tree), key=lambda leaf: leaf[0]) for tree in (mine, theirs))
    assert [path for path, _ in mine] == [path for path, _ in theirs]
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        assert type(a) is type(b), path
        if isinstance(a, Tensor):
            assert (a.dtype, a.device, a.shape, a.stride()) == (b.dtype, b.device, b.shape, b.stride()), path
            assert torch.equal(a, b), path
            assert a.data_ptr() != b.data_ptr() or not a.numel(), path
        else:
            assert a == b, path


# Not fused SGD: torch 2.13's in bfloat16 is wrong on the CPU, and not the same from run to run.
IN_HALF_PRECISION = ["sgd with momentum", "adamw, foreach", "ngd", "one's own"]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float32) for case in OPTIMIZERS), *((c, torch.bfloat16) for c in IN_HALF_PRECISION)],
)
def test_an_optimizer_goes_on_bit_for_bit(case, dtype, tmp_path):
    first, second = parameters(0, dtype), parameters(1, dtype)
    optimizer, other = (OPTIMIZERS[case](groups(params)) for params in (first, second))
    turn(optimizer, first, 0, 2)
    turn(other, second, 2, 4)  # with state that it has to give up
    checkpoint.write(tmp_path, 2, *flatten_optimizer(optimizer))
    found = read(tmp_path)
    assert found is not None
    rate = other.param_groups[0]["lr"]
    restore_optimizer(other, found.tensors, found.state)
    with torch.no_grad():
        for mine, theirs in zip(first, second, strict=True):
            theirs.copy_(mine)
    assert other.param_groups[0]["lr"] is rate or not isinstance(rate, Tensor)
    assert_equal_trees(other.state_dict(), optimizer.state_dict())
    turn(optimizer, first, 2, 7)
    turn(other, second, 2, 7)
    for mine, theirs in zip(first, second, strict=True):
        assert mine.isfinite().all()
        assert torch.equal(mine, theirs)
    assert_equal_trees(other.state_dict(), optimizer.state_dict())


def test_torchs_own_way_would_lose_bits():
    """The planted fault: what `load_state_dict` does to wide state of a narrow parameter."""
    first = parameters(0, torch.bfloat16)
    optimizer = Wide(groups(first))
    turn(optimizer, first, 0, 3)
    other = Wide(groups(parameters(0, torch.bfloat16)))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with pytest.raises(AssertionError):
        assert_equal_trees(other.state_dict(), optimizer.state_dict())


def test_a_fused_optimizer_has_its_state_in_the_layout_of_its_parameter():
    def make(layout: torch.memory_format) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        params = [nn.Parameter(p.detach().clone(memory_format=layout)) for p in parameters(0)[:1]]
        return params, torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True)

    ends = []
    for layout in (torch.contiguous_format, torch.channels_last):
        params, optimizer = make(torch.contiguous_format)
        for step in range(6):
            if step == 3:
                state = flatten_optimizer(optimizer)
                kept, (params, optimizer) = params, make(layout)
                with torch.no_grad():
                    params[0].copy_(kept[0])
                restore_optimizer(optimizer, *state)
            draw = torch.Generator().manual_seed(step)
            params[0].grad = torch.empty_like(params[0]).copy_(torch.randn(params[0].shape, generator=draw))
            optimizer.step()
        ends.append(params[0].detach())
    assert torch.equal(*ends)


def test_another_optimizer_is_refused_in_one_line_and_left_as_it_is():
    first = parameters(0)
    optimizer = torch.optim.SGD(groups(first), lr=0.1, momentum=0.9)
    turn(optimizer, first, 0, 3)
    kept, plain = flatten_optimizer(optimizer)
    few, wrong = parameters(0)[:3], parameters(0)
    wrong[2] = nn.Parameter(torch.zeros(5, 3))
    cases: list[tuple[torch.optim.Optimizer, dict[str, Any], str]] = [
        (torch.optim.Adam(groups(parameters(0))), plain, "the optimizer must be SGD; got Adam"),
        (torch.optim.SGD(parameters(0)), plain, r"must have 2 \+ 2 parameters in its groups; got 4"),
        (torch.optim.SGD(groups(few)), plain, r"must have 2 \+ 2 parameters in its groups; got 2 \+ 1"),
        (torch.optim.SGD(groups(wrong)), plain, r"parameter 2 must have the shape \[3, 5\]; got \[5, 3\]"),
    ]
    hostile_states: dict[str, Any] = {
        "no class": {"class": None},
        "no groups": {"groups": None},
        "groups of words": {"groups": ["a", "b"]},
        "state of words": {"state": "x"},
        "state of a stranger": {"state": {"9": {"dict": {}}}},
        "state from behind": {"state": {"-1": {"dict": {}}}},
        "state that is a number": {"state": {"0": 1}},
        "state that is a list": {"state": {"0": {"list": []}}},
        "a tensor that is not there": {"state": {"0": {"dict": {"a": {"tensor": "nowhere"}}}}},
        "an order that is none": {
            "state": {"0": {"dict": {"a": {"tensor": "state/0/momentum_buffer", "order": [0] * 4}}}}
        },
        "an unknown part": {"state": {"0": {"pickle": "x"}}},
        "parameters": {"groups": [group | {"options": {"dict": {"params": []}}} for group in plain["groups"]]},
        "two parts": {"state": {"0": {"dict": {}, "list": []}}},
        "deep": {"state": {"0": {"dict": {"a": deep_list(3000)}}}},
    }
    cases += [(torch.optim.SGD(groups(parameters(0))), plain | change, "") for change in hostile_states.values()]
    for other, state, words in cases:
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(ValueError, match=rf"^checkpoint: the optimizer cannot go on: .*{words}") as caught:
            restore_optimizer(other, kept, state)
        assert "\n" not in str(caught.value)
        assert other.state_dict() == before


def deep_list(depth: int) -> Any:
    tree: Any = 1
    for _ in range(depth):
        tree = {"list": [tree]}
    return tree


def test_state_that_cannot_be_told_is_refused():
    params = parameters(0)
    for state, words in (
        ({3: torch.zeros(1)}, "the keys of state/0 must be words"),
        ({"a": {(1, 2): 3}}, "the keys of state/0/a must be words"),
        ({"a": object()}, "state/0/a must be a plain JSON value; got object"),
    ):
        optimizer = torch.optim.SGD(params, lr=0.1)
        optimizer.state[params[0]] = state
        with pytest.raises(ValueError, match=f"^checkpoint: {words}"):
            flatten_optimizer(optimizer)
    optimizer.state.clear()
    optimizer.state[torch.zeros(1)] = {}
    with pytest.raises(ValueError, match="SGD has state that belongs to none of its parameters"):
        flatten_optimizer(optimizer)


def test_rates_change_between_numbers_and_tensors():
    one, other = parameters(0), parameters(0)
    for mine, theirs in ((0.25, torch.tensor(0.5)), (torch.tensor(0.25), 0.5), (torch.tensor(0.25), torch.tensor(0.5))):
        first, second = (torch.optim.SGD(ps, lr=lr, foreach=False) for ps, lr in ((one, mine), (other, theirs)))
        restore_optimizer(second, *flatten_optimizer(first))
        assert float(second.param_groups[0]["lr"]) == 0.25
        assert second.param_groups[0]["lr"] is not mine or not isinstance(mine, Tensor)


# The whole state of training


class Tied(nn.Module):
    """Two layers with one weight, channels last, a buffer that is not saved, and odd dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.norm = nn.BatchNorm1d(4)
        self.narrow = nn.Parameter(torch.randn(4, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("table", torch.zeros(0, 3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        x = self.conv(x.contiguous(memory_format=torch.channels_last)).mean((2, 3)) + self.narrow
        return self.norm(self.two(torch.relu(self.one(x)))) * self.seen


def nested() -> nn.Module:
    return vnd.to_nested(UNet(channels=(4,)), torch.rand(2, 1, 8, 8), num_groups=4)


class Training:
    """A network, its optimizer, a running mean of its weights and a loss scale."""

    def __init__(self, make: Callable[[], nn.Module], seed: int, wrap: Callable[[nn.Module], nn.Module]) -> None:
        torch.manual_seed(seed)
        self.net = make().train()
        self.wrapped = wrap(self.net)
        self.optimizer = torch.optim.AdamW(vnd.parameter_groups(self.net, 0.01), amsgrad=True)
        self.ema = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0 + seed, growth_interval=3)

    def go(self, start: int, stop: int, x: Tensor) -> list[float]:
        losses = []
        for step in range(start, stop):
            torch.manual_seed(step)  # as the loop does
            self.optimizer.zero_grad()
            loss = self.wrapped(x).square().mean() + 1e-3 * vnd.kl(self.net)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            for name, p in self.net.named_parameters():
                self.ema[name].lerp_(p.detach(), 0.1)
            if hasattr(self.net, "_vnd_state"):
                for unit in state_of(self.net).units.values():
                    unit.differences += loss.item()
                    unit.difference_counts += 1
            losses.append(loss.item())
        return losses

    def everything(self) -> dict[str, Any]:
        tensors, state = capture(self.wrapped, self.optimizer, self.ema, self.scaler)
        return {"tensors": tensors, "state": state}


@pytest.mark.parametrize("wrapper", ["none", "compile", "data parallel"])
@pytest.mark.parametrize(("make", "channels", "size"), [(nested, 1, 8), (Tied, 3, 5)])
def test_training_goes_on_bit_for_bit(make, channels, size, wrapper, tmp_path):
    wrap = {
        "none": lambda net: net,
        "compile": lambda net: torch.compile(net, backend="eager"),
        "data parallel": lambda net: nn.DataParallel(net),
    }[wrapper]
    x = torch.rand(4, channels, size, size)
    one = Training(make, 1, wrap if wrapper != "compile" else lambda net: net)
    one.go(0, 3, x)
    before = copy.deepcopy(one.everything())
    kept, state = capture(wrap(one.net), one.optimizer, one.ema, one.scaler)
    checkpoint.write(tmp_path, 3, kept, state | {"best": 0.5})
    assert_equal_trees(one.everything(), before)  # saving changes nothing
    found = read(tmp_path)
    assert found is not None

    two = Training(make, 2, lambda net: net)
    with pytest.raises(AssertionError):
        assert_equal_trees(two.everything(), before)
    layouts = [p.stride() for p in two.net.parameters()]
    restore(wrap(two.net), two.optimizer, two.ema, two.scaler, found)
    assert_equal_trees(two.everything(), before)
    assert layouts == [p.stride() for p in two.net.parameters()]
    assert one.go(3, 8, x) == two.go(3, 8, x)
    assert_equal_trees(two.everything(), one.everything())
    if make is Tied:
        assert two.net.two.weight is two.net.one.weight
        assert int(two.net.seen) == 8


def test_the_buffers_that_a_network_does_not_save_are_in_a_checkpoint():
    training = Training(nested, 1, lambda net: net)
    names = {name.rpartition(".")[2] for name in training.everything()["tensors"] if name.startswith("buffer/")}
    assert names >= {"differences", "difference_counts", "ticks", "fixed_groups"}


def test_training_without_extras_goes_on(tmp_path):
    nets = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    checkpoint.write(tmp_path, 1, *capture(nets[0], optimizers[0]))
    found = read(tmp_path)
    assert found is not None
    restore(nets[1], optimizers[1], None, None, found)
    assert torch.equal(nets[0].weight, nets[1].weight)


def test_a_checkpoint_of_another_training_is_refused_in_one_line(tmp_path):
    def make(change: Callable[[Training], object] = lambda training: None) -> Training:
        training = Training(Tied, 1, lambda net: net)
        change(training)
        return training

    checkpoint.write(tmp_path, 1, *capture(*(vars(make())[name] for name in ("net", "optimizer", "ema", "scaler"))))
    found = read(tmp_path)
    assert found is not None
    cases: dict[str, Callable[[Training], object]] = {
        "it has no tensor model/more": lambda t: t.net.register_buffer("more", torch.zeros(1)),
        "it has no tensor buffer/more": lambda t: t.net.register_buffer("more", torch.zeros(1), persistent=False),
        "this training has no tensor model/one.bias": lambda t: setattr(t.net.one, "bias", None),
        "model/narrow must be (4,) of bfloat16; got (4,) of float32": lambda t: t.net.float(),
        "buffer/table must be (0, 3) of float32; got (2, 3) of float32": lambda t: setattr(
            t.net, "table", torch.zeros(2, 3)
        ),
        "it was written with ema, this training has none": lambda t: setattr(t, "ema", None),
        "it was written with scaler, this training has none": lambda t: setattr(t, "scaler", None),
        "this training has no tensor ema/narrow": lambda t: t.ema.pop("narrow"),
        "must be AdamW; got SGD": lambda t: setattr(t, "optimizer", torch.optim.SGD(t.net.parameters(), lr=1)),
    }
    for words, change in cases.items():
        training = make(change)
        before = copy.deepcopy(training.net.state_dict())
        with pytest.raises(ValueError, match=r"^checkpoint: .*step-00000001 is not of this training: ") as caught:
            restore(training.net, training.optimizer, training.ema, training.scaler, found)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert all(torch.equal(value, before[name]) for name, value in training.net.state_dict().items())
    bare = make()
    for state in ({}, {"ema": True, "scaler": {}, "optimizer": found.state["optimizer"]}, {"ema": True, "scaler": 3}):
        with pytest.raises(ValueError, match="is not of this training"):
            restore(bare.net, bare.optimizer, bare.ema, bare.scaler, Checkpoint(1, found.tensors, state, tmp_path))
    plain = found.state | {"ema": False, "scaler": None}
    with pytest.raises(ValueError, match="it was written without ema, this training has one"):
        restore(bare.net, bare.optimizer, bare.ema, bare.scaler, Checkpoint(1, found.tensors, plain, tmp_path))


def test_a_network_whose_state_is_not_all_tensors_is_refused():
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    net = Extra(2, 2)
    with pytest.raises(ValueError, match=r"^checkpoint: _extra_state must be a tensor to be written; got dict$"):
        capture(net, torch.optim.SGD(net.parameters(), lr=0.1))


def test_the_optimizer_that_accelerate_wraps_is_looked_through():
    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)
        state = property(lambda self: self.optimizer.state)

    first, second = parameters(0), parameters(0)
    one, two = (torch.optim.SGD(groups(ps), lr=0.1, momentum=0.9) for ps in (first, second))
    turn(one, first, 0, 3)
    restore_optimizer(two, *flatten_optimizer(Wrapper(one)))
    restore_optimizer(Wrapper(two), *flatten_optimizer(one))
    assert_equal_trees(two.state_dict(), one.state_dict())
