"""Checksummed folders and small files: the old one or the new one, whole, whatever the disk does."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import hostile
from hostile import DESCRIPTIONS, HEADERS, MANIFESTS, Calls, broken_disk, full_disk, interrupted, read_only
from vnd import _files, _manifest

FORM = _manifest.Format("things.json", 1, saver="keep", loader="fetch", writer="the test")
OLD = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([2**40, -1])}
NEW = {"a": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor(True)}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensor_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def same(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    alike = mine.keys() == theirs.keys() and all(mine[name].dtype == theirs[name].dtype for name in mine)
    return alike and all(torch.equal(mine[name], theirs[name]) for name in mine)


def refusal(folder: Path, *words: str) -> None:
    with pytest.raises(ValueError, match=r"^fetch: ") as caught:
        _manifest.read(FORM, folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert all(word in message for word in words), message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _manifest.write(FORM, tmp_path / "x", {"note": "old"}, OLD)
    return tmp_path / "x"


def test_what_was_written_is_read(folder):
    manifest, tensors = _manifest.read(FORM, folder)
    assert manifest["note"] == "old"
    assert same(tensors, OLD)
    assert _manifest.read_manifest(FORM, folder) == manifest
    assert json.loads((folder / "things.json").read_text()) == manifest
    _manifest.write(FORM, folder, {"note": "new"}, NEW)
    assert same(_manifest.read(FORM, folder)[1], NEW)
    assert len(contents(folder)) == 2


def test_tensors_that_share_memory_or_are_parts_of_it_or_empty_are_written_as_they_are(tmp_path):
    whole = torch.arange(24.0).view(2, 3, 4)
    odd = {
        "whole": whole,
        "again": whole,
        "part": whole[0],
        "row": whole.flatten()[:24],
        "turned": whole.permute(2, 0, 1),
        "spread": whole.new_ones(1).expand(5),
        "grad": whole.clone().requires_grad_(),
        "none": torch.zeros(0, 3),
        "nothing": torch.zeros(2, 0, dtype=torch.int64),
        "number": torch.tensor(1.5),
    }
    before = {name: value.detach().clone() for name, value in odd.items()}
    _manifest.write(FORM, tmp_path, {}, odd)
    assert same(_manifest.read(FORM, tmp_path)[1], before)
    _manifest.write(FORM, tmp_path, {}, {})
    assert _manifest.read(FORM, tmp_path)[1] == {}


def test_what_was_read_does_not_change_with_its_file(folder):
    tensors = _manifest.read(FORM, folder)[1]
    path = tensor_file(folder)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert same(tensors, OLD)


@pytest.mark.parametrize("fault", [full_disk, broken_disk, read_only, interrupted])
def test_after_a_fault_at_any_write_the_old_folder_is_whole(fault, folder, monkeypatch):
    before = contents(folder)
    calls = Calls(monkeypatch, (Path, "mkdir"))
    _manifest.write(FORM, folder.with_name("trial"), {}, OLD)
    total = calls.count
    assert calls.names[:2] == ["mkdir", "save_file"]
    assert calls.names.count("fsync") == 4
    for at in range(total):
        calls.restart(at, fault)
        with pytest.raises((OSError, KeyboardInterrupt)):
            _manifest.write(FORM, folder, {"note": "new"}, NEW)
        calls.restart(-1)
        if at < total - 1:
            assert contents(folder) == before
        else:  # in place, only not known to be on the disk
            assert same(_manifest.read(FORM, folder)[1], NEW)
            assert len(contents(folder)) == 2


@pytest.mark.parametrize("fault", [full_disk, broken_disk, read_only, interrupted])
def test_a_small_file_is_the_old_one_or_the_new_one(fault, tmp_path, monkeypatch):
    path = tmp_path / "note.txt"
    _files.write_text(path, "old – ä\n")
    assert path.read_text(encoding="utf-8") == "old – ä\n"
    calls = Calls(monkeypatch)
    _files.write_text(path, "old\n")
    total = calls.count
    assert calls.names == ["write_text", "fsync", "replace", "fsync"]
    for at in range(total):
        calls.restart(at, fault)
        with pytest.raises((OSError, KeyboardInterrupt)):
            _files.write_text(path, "new\n")
        assert contents(tmp_path) == {"note.txt": b"old\n" if at < total - 1 else b"new\n"}
    calls.restart(-1)
    with pytest.raises(OSError, match="File too large"), hostile.short_writes(3):
        _files.write_text(path, "newer\n")
    assert contents(tmp_path) == {"note.txt": b"new\n"}


def test_a_kill_at_any_write_leaves_the_old_folder_or_the_new_one(folder, monkeypatch):
    calls = Calls(monkeypatch)
    _manifest.write(FORM, folder.with_name("trial"), {}, OLD)
    total, last = calls.count, len(calls.names) - 2
    for at in range(total):
        _manifest.write(FORM, folder, {"note": "old"}, OLD)
        calls.restart(at, hostile.killed)
        assert hostile.ended(hostile.forked(lambda: _manifest.write(FORM, folder, {"note": "new"}, NEW))) == -9
        calls.restart(-1)
        assert same(_manifest.read(FORM, folder)[1], OLD if at <= last else NEW)
    _manifest.write(FORM, folder, {"note": "new"}, NEW)
    assert len(contents(folder)) == 2


def test_every_flip_and_cut_is_found(folder):
    draw = Random(0)
    for path in (folder / "things.json", tensor_file(folder)):
        whole = path.read_bytes()
        for broken in (*hostile.flips(whole, 150, draw), *hostile.cuts(whole, 20, draw)):
            path.write_bytes(broken)
            refusal(folder, path.name)
        path.write_bytes(whole)
    assert same(_manifest.read(FORM, folder)[1], OLD)


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_a_hostile_manifest_is_refused(case, folder):
    hostile.rewrite(folder / "things.json", DESCRIPTIONS[case], sign=False)
    refusal(folder, str(folder))
    hostile.rewrite(folder / "things.json", lambda m: None)  # now with the right checksum
    refusal(folder, str(folder))


@pytest.mark.parametrize("text", MANIFESTS, ids=lambda text: repr(text[:20]))
def test_what_is_no_manifest_is_refused(text, folder):
    (folder / "things.json").write_text(text)
    refusal(folder, "things.json")


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: repr(header[8:40]))
def test_what_is_no_tensor_file_is_refused(header, folder):
    tensor_file(folder).write_bytes(header)
    refusal(folder, tensor_file(folder).name)


def test_a_manifest_that_says_the_same_in_other_words_is_refused(folder):
    _manifest.write(FORM, folder, {"note": "ä", "number": 0.1 + 0.2, "list": []}, OLD)
    path = folder / "things.json"
    whole = path.read_text()
    for before, after in (
        ('"note": ', '"note": "other", "note": '),
        ("0.30000000000000004", "0.30000000000000005"),
        ("0.30000000000000004", "3.0000000000000004E-1"),
        (r"\u00e4", r"\u00E4"),
        (r"\u00e4", "ä"),
        ("[]", "[ ]"),
    ):
        assert before in whole
        path.write_text(whole.replace(before, after), encoding="utf-8")
        assert json.loads(path.read_text()) == json.loads(whole)
        refusal(folder, "things.json", "checksum")
    path.write_text(whole)
    assert same(_manifest.read(FORM, folder)[1], OLD)


def test_a_manifest_beyond_all_bounds_is_neither_written_nor_read(folder, monkeypatch):
    before = contents(folder)
    monkeypatch.setattr(_manifest, "LONGEST", len(before["things.json"]))
    _manifest.read(FORM, folder)
    with pytest.raises(ValueError, match=r"^keep: things\.json must have at most \d+ bytes; got \d+$"):
        _manifest.write(FORM, folder, {"note": "longer than the old one"}, OLD)
    assert contents(folder) == before
    monkeypatch.setattr(_manifest, "LONGEST", len(before["things.json"]) - 1)
    refusal(folder, "things.json", "at most")


def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_refused_and_not_waited_for(folder):
    path = tensor_file(folder)
    path.unlink()
    os.mkfifo(path)
    refusal(folder, path.name, "not a file")
    path.unlink()
    path.mkdir()
    refusal(folder, path.name, "not a file")
    (folder / "things.json").unlink()
    os.mkfifo(folder / "things.json")
    refusal(folder, "things.json")


def test_another_format_and_a_failed_check_are_refused_in_one_line(folder):
    def check(manifest):
        raise ValueError("no notes today")

    with pytest.raises(ValueError, match=r"^fetch: .*things\.json .* format 1; this version of vnd reads format 2$"):
        _manifest.read(_manifest.Format("things.json", 2, "keep", "fetch", "the test"), folder)
    with pytest.raises(ValueError, match="not of the test: no notes today"):
        _manifest.read(_manifest.Format("things.json", 1, "keep", "fetch", "the test", check), folder)


def test_other_tensors_than_the_manifest_names_are_refused(folder):
    path = tensor_file(folder)
    for tensors, word in (({"a": OLD["a"]}, "different"), (OLD | {"a": OLD["a"] + 1}, "'a'"), (OLD | NEW, "different")):
        save_file(tensors, path)
        refusal(folder, path.name, word)
    shutil.rmtree(folder)
    refusal(folder, "does not exist", "give a folder that the test wrote")


# Two writers


def pair(folder: Path, values: tuple[float, float]) -> None:
    """Two processes that save into one folder, begun together."""
    gate, opened = os.pipe()

    def work(value: float) -> None:
        os.close(opened)
        os.read(gate, 1)  # until it is closed
        _manifest.write(FORM, folder, {"note": value}, {"a": torch.full((8,), value)})

    children = [hostile.forked(lambda value=value: work(value)) for value in values]
    os.close(gate)
    os.close(opened)
    assert [hostile.ended(child) for child in children] == [0, 0]


def whole(folder: Path, *values: float) -> None:
    manifest, tensors = _manifest.read(FORM, folder)
    assert manifest["note"] in values
    assert torch.equal(tensors["a"], torch.full((8,), manifest["note"]))


def test_two_processes_that_save_into_one_folder_lose_nothing(tmp_path):
    for number in range(40):
        folder = tmp_path / str(number % 20)  # empty ones, and ones that hold a save
        pair(folder, (number + 0.25, number + 0.5))
        whole(folder, number + 0.25, number + 0.5)
        assert len(contents(folder)) == 2


def test_threads_that_save_and_load_one_folder_never_fail(tmp_path):
    folder = tmp_path / "x"
    _manifest.write(FORM, folder, {"note": 0.0}, {"a": torch.zeros(8)})
    values = (0.0, 1.0)  # each again and again: the same names of files, removed and made anew

    def save(value: float) -> None:
        for _ in range(25):
            _manifest.write(FORM, folder, {"note": value}, {"a": torch.full((8,), value)})

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(save, value) for value in values]
        loads = 0
        while not all(future.done() for future in done):
            whole(folder, *values)
            loads += 1
        for future in done:
            future.result()
    assert loads
    assert len(contents(folder)) == 2


def test_a_writer_waits_for_the_one_before_and_tidies_nothing_of_it(folder):
    """The tensors of a save whose manifest is not in place yet are not another's to remove."""
    begun, told = os.pipe()
    entered: list[bool] = []

    def save() -> None:
        os.write(told, b".")
        _manifest.write(FORM, folder, {"note": "new"}, NEW)
        entered.append(True)

    with _files.exclusive(folder) as alone, ThreadPoolExecutor(1) as pool:
        assert alone
        future = pool.submit(save)
        os.read(begun, 1)
        coming = folder / "tensors-0123456789ab.safetensors"
        coming.write_bytes(b"of a save under way")
        assert not entered
        coming.unlink()
        other = os.open(folder / _files.LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        assert _manifest.read_manifest(FORM, folder)["note"] == "old"
        handle = next(iter(_files._held))
        (folder / _files.LOCK).unlink()
        _files._held.discard(handle)
        os.close(handle)
        future.result()
    os.close(begun)
    os.close(told)
    assert same(_manifest.read(FORM, folder)[1], NEW)
    assert len(contents(folder)) == 2


def test_a_killed_writer_keeps_nobody_waiting_and_its_parts_are_tidied(folder, monkeypatch):
    def dies(tensors: object, path: Path) -> None:
        Path(path).write_bytes(b"half")
        os.kill(os.getpid(), 9)

    with monkeypatch.context() as patch:
        patch.setattr(_manifest, "save_file", dies)
        assert hostile.ended(hostile.forked(lambda: _manifest.write(FORM, folder, {"note": "new"}, NEW))) == -9
    assert len(contents(folder)) == 4  # its lock file and its part
    assert same(_manifest.read(FORM, folder)[1], OLD)
    _manifest.write(FORM, folder, {"note": "new"}, NEW)
    assert len(contents(folder)) == 2


def test_a_child_forked_within_a_save_does_not_keep_the_lock(tmp_path):
    ours, theirs = os.pipe()

    def work() -> None:
        with _files.exclusive(tmp_path):
            hostile.forked(lambda: (os.write(theirs, os.getpid().to_bytes(4, "little")), signal.pause()))
            signal.pause()

    child = hostile.forked(work)
    worker = int.from_bytes(os.read(ours, 4), "little")
    try:
        os.kill(child, 9)
        assert hostile.ended(child) == -9
        handle = os.open(tmp_path / _files.LOCK, os.O_RDWR)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while anybody has it
        os.close(handle)
    finally:
        os.kill(worker, 9)
        os.close(ours)
        os.close(theirs)


def test_where_there_are_no_locks_only_old_files_are_tidied(folder, monkeypatch):
    def without(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    young, old = folder / "tensors-0123456789ab.safetensors", folder / "tensors-0123456789cd.safetensors"
    for path in (young, old):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    _manifest.write(FORM, folder, {"note": "new"}, NEW)
    assert same(_manifest.read(FORM, folder)[1], NEW)
    assert young.exists()
    assert not old.exists()
    assert not (folder / _files.LOCK).exists()


def test_a_save_of_the_same_contents_in_place_of_another_is_read_again(folder, monkeypatch):
    """A, then B, then A again while it is read: the tensors of A were gone for a moment."""
    real, gone = _manifest._read_tensors, []

    def interrupted_once(form: _manifest.Format, where: Path, manifest: dict) -> dict:
        if not gone:
            gone.append(True)
            _manifest.write(FORM, folder, {"note": "new"}, NEW)
            try:
                return real(form, where, manifest)
            finally:
                _manifest.write(FORM, folder, {"note": "old"}, OLD)
        return real(form, where, manifest)

    monkeypatch.setattr(_manifest, "_read_tensors", interrupted_once)
    assert same(_manifest.read(FORM, folder)[1], OLD)
    assert gone


def test_parts_of_small_files_that_killed_writers_left_go_when_they_are_old(tmp_path):
    old, young = tmp_path / ".a.txt.7-0123abcd.part", tmp_path / ".a.txt.8-0123abcd.part"
    other = tmp_path / ".b.txt.7-0123abcd.part"
    for path in (old, young, other):
        path.write_text("x")
    for path in (old, other):
        os.utime(path, (1, 1))
    _files.write_text(tmp_path / "a.txt", "a")
    assert sorted(contents(tmp_path)) == sorted(["a.txt", young.name, other.name])


# Links, devices and pipes


def test_a_link_is_followed_and_its_target_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link, chain = tmp_path / "there" / "t.json", tmp_path / "link.json", tmp_path / "chain.json"
    target.write_text("old")
    link.symlink_to("there/t.json")
    chain.symlink_to(link)
    for path in (link, chain):
        _files.write_text(path, f"by {path.name}")
        assert path.is_symlink()
        assert target.read_text() == f"by {path.name}"
    assert not target.is_symlink()
    target.unlink()
    _files.write_text(chain, "made")
    assert target.read_text() == "made"
    assert link.is_symlink()
    assert sorted(contents(tmp_path / "there")) == ["t.json"]


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        _files.write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").is_symlink()


def test_into_a_pipe_and_a_device_is_written_and_neither_is_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "terminal"
    os.mkfifo(pipe)
    terminal, device = os.openpty()  # a device of the test's own, which a fault may not take from the machine
    link.symlink_to(os.ttyname(device))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _files.write_text(pipe, "through – ä\n")
    assert os.read(reader, 100).decode() == "through – ä\n"
    os.close(reader)
    assert pipe.is_fifo()
    for path in (link, Path(os.ttyname(device))):
        _files.write_text(path, "shown")
        assert os.read(terminal, 100) == b"shown"
        assert path.is_char_device()
    assert link.is_symlink()
    os.close(terminal)
    os.close(device)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "terminal"]
    with pytest.raises(IsADirectoryError):
        _files.write_text(tmp_path, "x")


def test_standard_output_is_written_into_whatever_it_is(tmp_path):
    """Also a regular file, which others have open: replaced, it would be lost to them."""
    link, out = tmp_path / "stdout", tmp_path / "out.txt"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout is, which a fault may not take from the machine
    code = f"from pathlib import Path; from vnd._files import write_text; write_text(Path({str(link)!r}), 'said\\n')"
    out.write_text("before\n")
    inode = out.stat().st_ino
    with out.open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert out.read_text() == "before\nsaid\n"
    assert out.stat().st_ino == inode
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "said\n"
    assert link.is_symlink()
