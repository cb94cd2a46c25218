"""`vnd recipes`: a line for each recipe, those that were asked for, and one line where there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vnd.cli import main
from vnd.train.config import names, parse


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    main(["recipes", *words])
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1] if line]


def test_all_are_listed_unless_some_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == names()
    for word in ("cifar10", "paper/svhn", "IBNN", "demo"):
        assert listed(capsys, "--only", word) == [name for name in names() if word.lower() in name] != []


def test_every_line_fits_a_terminal_of_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_the_paper_s_stand_apart_by_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes", "--only", "paper"])
    shelves = [shelf.splitlines() for shelf in capsys.readouterr().out.split("\n\n")][:-1]
    assert [parse(shelf[0].split()[0]).data.name for shelf in shelves] == [
        "celeba", "chairs", "chest-xray", "cifar10", "cifar100", "lidc", "mnist", "svhn", "tiny-imagenet",
    ]  # fmt: skip


def test_only_those_listed_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes", "--only", "demo", "--out", str(tmp_path / "x.json")])
    assert json.loads((tmp_path / "x.json").read_text()) == {"demo": parse("demo").to_dict()}
