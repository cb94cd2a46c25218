"""`vnd data`: the list, the way to a data set, and what is said of one that lies in a folder."""

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refusals import fails
from vnd.cli import declared, main
from vnd.cli.data import LAYOUTS, recognize, summary
from vnd.data.images import Images
from vnd.data.registry import DATASETS


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VND_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "root"


def run(*args: object) -> None:
    main(["data", *map(str, args)])


def cifar10(folder: Path, count: int = 20, drop: tuple[str, ...] = ()) -> Path:
    """CIFAR-10 in small: pixels of batch b are 10 b, 20 b and 30 b in the three channels."""
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], start=1):
        labels = np.arange(count, dtype=np.uint8)[:, None] % 10
        pixels = np.repeat(np.array([[10, 20, 30]], np.uint8) * number, 1024, axis=1).repeat(count, axis=0)
        if name not in drop:
            (folder / name).write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    return folder


def idx(folder: Path, split: str = "t10k", count: int = 20) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.zeros((count, 28, 28), np.uint8)
    (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + images.tobytes())
    labels = np.arange(count, dtype=np.uint8) % 10
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels.tobytes())
    return folder


# list


def test_the_list_names_every_set_and_where_it_is(root, tmp_path, capsys):
    cifar10(root / "cifar-10-batches-bin")
    run("list", "--json", tmp_path / "out" / "list.json")
    printed = capsys.readouterr().out
    rows = {row["name"]: row for row in json.loads((tmp_path / "out" / "list.json").read_text())}
    assert list(rows) == list(DATASETS)
    assert all(f"\n{name} " in printed and dataset.licence in printed for name, dataset in DATASETS.items())
    assert rows["fashion"]["where"] == "embedded"
    assert rows["cifar10"]["where"] == str(root / "cifar-10-batches-bin")
    assert rows["svhn"]["where"] is None
    assert rows["cifar10"]["fetchable"]
    assert rows["cifar10"]["download_bytes"] == 170_052_171
    assert not rows["lidc"]["fetchable"]
    lines = {line.split()[0]: line for line in printed.splitlines() if line}
    assert "embedded" in lines["fashion"]
    assert "found in cifar-10-batches-bin" in lines["cifar10"]
    assert "not here" in lines["svhn"]


def test_a_narrow_list_says_the_same(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run("list")
    printed = "".join(capsys.readouterr().out.split())
    assert all("".join(name.split()) in printed for name in DATASETS)
    assert "(MIT)" in printed


# fetch


def test_fetch_hands_the_set_and_the_root_to_the_store(root, tmp_path, capsys, monkeypatch):
    calls: list[tuple[str, Path]] = []
    monkeypatch.setattr("vnd.data.fetch.fetch", lambda dataset, place: calls.append((dataset.name, place)) or place)
    run("fetch", "cifar10")
    run("fetch", "svhn", "--root", tmp_path / "other")
    assert calls == [("cifar10", root), ("svhn", tmp_path / "other")]
    assert capsys.readouterr().out.splitlines() == [str(root.resolve()), str((tmp_path / "other").resolve())]


def test_a_set_without_a_download_says_how_to_get_it(root, capsys):
    line = fails(capsys, "data", "fetch", "lidc")
    assert str(root / "LIDC-IDRI-slices") in line
    assert line.endswith(DATASETS["lidc"].manual)
    assert not root.exists()


def test_an_embedded_set_needs_no_download(root, capsys):
    run("fetch", "fashion")
    assert "comes with vnd" in capsys.readouterr().err
    assert not root.exists()


# check


def test_check_says_what_a_folder_holds(tmp_path, capsys):
    folder = cifar10(tmp_path / "anything")
    run("check", folder, "--json", tmp_path / "check.json")
    printed = capsys.readouterr().out
    told = json.loads((tmp_path / "check.json").read_text())
    assert "recognised as cifar10" in printed
    assert told["name"] == "cifar10"
    train, test = told["splits"]
    assert (train["split"], train["images"], train["form"], train["classes"]) == ("train", 100, [3, 32, 32], 10)
    assert train["label_counts"] == [10, 10]
    assert train["mean"] == pytest.approx([30 / 255, 60 / 255, 90 / 255], abs=1e-12)
    assert train["std"] == pytest.approx([10 * 2**0.5 / 255, 20 * 2**0.5 / 255, 30 * 2**0.5 / 255], abs=1e-12)
    assert (test["split"], test["images"], test["label_counts"], test["std"]) == ("test", 20, [2, 2], [0, 0, 0])
    assert "0.118 0.235 0.353" in printed
    assert "10 × 10" in printed


def test_damaged_data_is_the_readers_one_line(tmp_path, capsys):
    folder = cifar10(tmp_path / "set")
    with (folder / "data_batch_3.bin").open("r+b") as file:
        file.truncate(1000)
    assert f"{folder / 'data_batch_3.bin'}: is cut off" in fails(capsys, "data", "check", folder)


def test_a_split_with_a_file_missing_is_damaged_and_one_without_any_is_only_not_there(tmp_path, capsys):
    folder = cifar10(tmp_path / "part", drop=("data_batch_2.bin",))
    assert "data_batch_2.bin: no such file" in fails(capsys, "data", "check", folder)
    run("check", cifar10(tmp_path / "test", drop=tuple(f"data_batch_{i}.bin" for i in range(1, 6))))
    assert "no file of the train split is there" in capsys.readouterr().out


def test_a_set_that_is_not_there_at_all_is_the_readers_error(tmp_path, capsys):
    tmp_path.joinpath("empty").mkdir()
    assert "data_batch_1.bin: no such file" in fails(capsys, "data", "check", tmp_path / "empty", "--name", "cifar10")


def test_two_sets_of_one_layout_are_told_apart_by_their_folder_or_by_name(tmp_path, capsys):
    run("check", idx(tmp_path / "mnist"))
    assert "recognised as mnist" in capsys.readouterr().out
    folder = idx(tmp_path / "files")
    assert "may be mnist or fashion-mnist; say which with --name" in fails(capsys, "data", "check", folder)
    run("check", folder, "--name", "fashion-mnist")
    assert "read as fashion-mnist" in capsys.readouterr().out


def test_a_set_is_found_below_the_folder_that_holds_it(tmp_path, capsys):
    cifar10(tmp_path / "data" / "cifar-10-batches-bin")
    assert recognize(tmp_path / "data") == "cifar10"
    run("check", tmp_path / "data")
    assert "100" in capsys.readouterr().out
    idx(tmp_path / "data" / "mnist")
    assert "may be cifar10 or mnist" in fails(capsys, "data", "check", tmp_path / "data")


def test_own_arrays_are_checked(tmp_path, capsys):
    x, y = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    run("check", tmp_path / "mine.npz")
    assert "recognised as npz" in capsys.readouterr().out


def test_embedded_sets_are_checked_by_name(tmp_path, capsys):
    run("check", tmp_path, "--name", "digits", "--json", tmp_path / "digits.json")
    (test,) = json.loads((tmp_path / "digits.json").read_text())["splits"]
    assert (test["split"], test["images"], test["form"]) == ("test", 1797, [1, 8, 8])


PLACES: dict[str, str] = {
    "cifar10": "data_batch_1.bin",
    "cifar100": "train.bin",
    "svhn": "test_32x32.mat",
    "tiny-imagenet": "wnids.txt",
    "celeba": "img_align_celeba/000001.jpg",
    "chairs": "chair/renders/0.png",
    "chest-xray": "test/NORMAL/0.png",
    "lidc": "LIDC-IDRI-0001/nodule-0/images/slice-0.png",
    "folder": "train/cat/0.png",
}


@pytest.mark.parametrize("name", PLACES)
def test_each_layout_is_recognised(name, tmp_path):
    file = tmp_path / "here" / PLACES[name]
    file.parent.mkdir(parents=True)
    file.touch()
    assert recognize(tmp_path / "here") == name


def test_every_set_with_a_folder_of_its_own_has_a_layout():
    assert set(LAYOUTS) == {name for name, dataset in DATASETS.items() if dataset.folder}


def test_what_is_not_recognised_names_the_nearest(tmp_path, capsys):
    pickles = tmp_path / "cifar-10-batches-py"
    pickles.mkdir()
    (pickles / "data_batch_1").touch()
    line = fails(capsys, "data", "check", pickles)
    assert "nearest: cifar10, which has data_batch_*.bin and test_batch.bin;" in line
    (tmp_path / "empty").mkdir()
    assert "known are cifar10, cifar100" in fails(capsys, "data", "check", tmp_path / "empty")
    assert "no such file or folder" in fails(capsys, "data", "check", tmp_path / "nowhere")
    (tmp_path / "x.txt").touch()
    assert "must be a folder or a .npz file" in fails(capsys, "data", "check", tmp_path / "x.txt")


def test_a_summary_agrees_with_numpy_over_several_blocks():
    pixels = np.random.default_rng(0).integers(0, 256, (2500, 3, 4, 5), dtype=np.uint8)
    extra: dict[str, Any] = {"groups": np.arange(2500) // 100, "masks": np.zeros((2500, 4, 4, 5), np.uint8)}
    told = summary(Images(pixels, np.arange(2500) % 7, tuple("abcdefgh"), **extra))
    scaled = pixels / 255
    np.testing.assert_allclose(told["mean"], scaled.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(told["std"], scaled.std((0, 2, 3)), rtol=1e-12)
    assert (told["classes"], told["label_counts"], told["groups"], told["graders"]) == (8, [0, 358], 25, 4)
    json.dumps(told)


@pytest.mark.parametrize(("command", "words"), {"list": "--json", "fetch": "--root", "check": "--name"}.items())
def test_help_says_what_each_command_is_for(command, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(command, "--help")
    assert stopped.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    told = declared("vnd.cli.data", "list_sets" if command == "list" else command).__doc__.splitlines()
    assert told[0] in printed
    assert words in printed
    assert told[2].strip().startswith(f"Example: vnd data {command}")


# Where the numbers go


@pytest.mark.parametrize("words", [["data", "list", "--json"], ["recipes", "--only", "demo", "--out"]])
def test_an_output_that_is_a_link_or_a_pipe_stays_what_it_is(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, link, pipe = (tmp_path / name for name in ("target.json", "link.json", "pipe"))
    link.symlink_to("target.json")
    os.mkfifo(pipe)
    main([*words, str(link)])
    assert link.is_symlink()
    whole = target.read_text(encoding="utf-8")
    assert json.loads(whole)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    main([*words, str(pipe)])
    reader.join()
    assert pipe.is_fifo()
    assert read == [whole]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "pipe", "target.json"]
    capsys.readouterr()
