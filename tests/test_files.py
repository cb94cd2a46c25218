"""Checksummed folders and small files: the old one or the new one, whole, whatever the disk does."""

import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import hostile
from hostile import DESCRIPTIONS, HEADERS, MANIFESTS, Calls, broken_disk, full_disk, interrupted, read_only
from vnd import files

FORM = files.Format("things.json", 1, saver="keep", loader="fetch", writer="the test")
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
        files.read(FORM, folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert all(word in message for word in words), message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files.write(FORM, tmp_path / "x", {"note": "old"}, OLD)
    return tmp_path / "x"


def test_what_was_written_is_read(folder):
    manifest, tensors = files.read(FORM, folder)
    assert manifest["note"] == "old"
    assert same(tensors, OLD)
    assert files.read_manifest(FORM, folder) == manifest
    assert json.loads((folder / "things.json").read_text()) == manifest
    files.write(FORM, folder, {"note": "new"}, NEW)
    assert same(files.read(FORM, folder)[1], NEW)
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
    files.write(FORM, tmp_path, {}, odd)
    assert same(files.read(FORM, tmp_path)[1], before)
    files.write(FORM, tmp_path, {}, {})
    assert files.read(FORM, tmp_path)[1] == {}


def test_what_was_read_does_not_change_with_its_file(folder):
    tensors = files.read(FORM, folder)[1]
    path = tensor_file(folder)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert same(tensors, OLD)


@pytest.mark.parametrize("fault", [full_disk, broken_disk, read_only, interrupted])
def test_after_a_fault_at_any_write_the_old_folder_is_whole(fault, folder, monkeypatch):
    before = contents(folder)
    calls = Calls(monkeypatch, (Path, "mkdir"))
    files.write(FORM, folder.with_name("trial"), {}, OLD)
    total = calls.count
    assert calls.names[:2] == ["mkdir", "save_file"]
    assert calls.names.count("fsync") == 4
    for at in range(total):
        calls.restart(at, fault)
        with pytest.raises((OSError, KeyboardInterrupt)):
            files.write(FORM, folder, {"note": "new"}, NEW)
        calls.restart(-1)
        if at < total - 1:
            assert contents(folder) == before
        else:  # in place, only not known to be on the disk
            assert same(files.read(FORM, folder)[1], NEW)
            assert len(contents(folder)) == 2


@pytest.mark.parametrize("fault", [full_disk, broken_disk, read_only, interrupted])
def test_a_small_file_is_the_old_one_or_the_new_one(fault, tmp_path, monkeypatch):
    path = tmp_path / "note.txt"
    files.write_text(path, "old – ä\n")
    assert path.read_text(encoding="utf-8") == "old – ä\n"
    calls = Calls(monkeypatch)
    files.write_text(path, "old\n")
    total = calls.count
    assert calls.names == ["write_text", "fsync", "replace", "fsync"]
    for at in range(total):
        calls.restart(at, fault)
        with pytest.raises((OSError, KeyboardInterrupt)):
            files.write_text(path, "new\n")
        assert contents(tmp_path) == {"note.txt": b"old\n" if at < total - 1 else b"new\n"}
    calls.restart(-1)
    with pytest.raises(OSError, match="File too large"), hostile.short_writes(3):
        files.write_text(path, "newer\n")
    assert contents(tmp_path) == {"note.txt": b"new\n"}


def test_a_kill_at_any_write_leaves_the_old_folder_or_the_new_one(folder, monkeypatch):
    calls = Calls(monkeypatch)
    files.write(FORM, folder.with_name("trial"), {}, OLD)
    total, last = calls.count, len(calls.names) - 2
    for at in range(total):
        files.write(FORM, folder, {"note": "old"}, OLD)
        calls.restart(at, hostile.killed)
        assert hostile.ended(hostile.forked(lambda: files.write(FORM, folder, {"note": "new"}, NEW))) == -9
        calls.restart(-1)
        assert same(files.read(FORM, folder)[1], OLD if at <= last else NEW)
    files.write(FORM, folder, {"note": "new"}, NEW)
    assert len(contents(folder)) == 2


def test_every_flip_and_cut_is_found(folder):
    draw = Random(0)
    for path in (folder / "things.json", tensor_file(folder)):
        whole = path.read_bytes()
        for broken in (*hostile.flips(whole, 150, draw), *hostile.cuts(whole, 20, draw)):
            path.write_bytes(broken)
            refusal(folder, path.name)
        path.write_bytes(whole)
    assert same(files.read(FORM, folder)[1], OLD)


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
    files.write(FORM, folder, {"note": "ä", "number": 0.1 + 0.2, "list": []}, OLD)
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
    assert same(files.read(FORM, folder)[1], OLD)


def test_a_manifest_beyond_all_bounds_is_neither_written_nor_read(folder, monkeypatch):
    before = contents(folder)
    monkeypatch.setattr(files, "LONGEST", len(before["things.json"]))
    files.read(FORM, folder)
    with pytest.raises(ValueError, match=r"^keep: things\.json must have at most \d+ bytes; got \d+$"):
        files.write(FORM, folder, {"note": "longer than the old one"}, OLD)
    assert contents(folder) == before
    monkeypatch.setattr(files, "LONGEST", len(before["things.json"]) - 1)
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
        files.read(files.Format("things.json", 2, "keep", "fetch", "the test"), folder)
    with pytest.raises(ValueError, match="not of the test: no notes today"):
        files.read(files.Format("things.json", 1, "keep", "fetch", "the test", check), folder)


def test_other_tensors_than_the_manifest_names_are_refused(folder):
    path = tensor_file(folder)
    for tensors, word in (({"a": OLD["a"]}, "different"), (OLD | {"a": OLD["a"] + 1}, "'a'"), (OLD | NEW, "different")):
        save_file(tensors, path)
        refusal(folder, path.name, word)
    shutil.rmtree(folder)
    refusal(folder, "does not exist", "give a folder that the test wrote")
