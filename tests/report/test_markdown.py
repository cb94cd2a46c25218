"""The comparison as Markdown: its numbers by hand, its marks, its figures, and that nothing else is touched."""

import json
import re
import struct
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from fake_runs import fake_run, suite, write_runs
from test_budget import T2, sized
from test_keep import trained
from test_page import HOSTILE

from vnd.report import canvas, compare, comparison, markdown, marked
from vnd.report.marked import BEGIN, END
from vnd.report.summary import Block

SIZES = (150, 250)


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "DPI", 20)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "drawn", lambda block: [])


def blocks(folder: Path, *runs: dict[str, Any]) -> tuple[Block, ...]:
    return comparison.read(write_runs(folder, {f"run{index}": one for index, one in enumerate(runs)})).blocks


def cells(text: str) -> list[list[str]]:
    """The rows of all tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return [re.split(r" (?<!\\)\| ", line[2:-2]) for line in lines]


def row(text: str, name: str) -> list[str]:
    return next(line for line in cells(text) if line[0] == name)


def by_hand() -> list[dict[str, Any]]:
    bn3 = [
        sized("bn3", seed, ("learned", 100, right, 0.02), ("learned", 200, 0.8, 0.01), ("uniform", 300, 0.9, 0.05))
        for seed, right in enumerate((0.70, 0.72, 0.74))
    ]
    plain = [sized("plain", 0, ("learned", 200, 0.85, 0.04), run="p")]
    return [*bn3, *plain, sized("us_net", 0, ("uniform", 160, 0.6, 0.07), ("uniform", 300, 0.75, 0.03))]


def test_the_table_of_methods_by_hand(tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, *by_hand())
    text = markdown.methods(block, SIZES)
    head, *_ = cells(text)
    assert head[:7] == ["Method", "≤ 150", "≤ 250", "Full", "Worst ECE", "Worst ECE, learned shapes", "AUROC, svhn"]
    assert head[7:] == ["NLL", "Seeds", "Training"]
    reach = f"{100 * T2 * stdev((0.70, 0.72, 0.74)) / 3**0.5:.2f}"
    assert row(text, "BN³")[1:6] == [
        f"72.00 ±\u00a0{reach}<br><small>100</small>",
        "80.00 ±\u00a00.00<br><small>200</small>",
        "90.00 ±\u00a00.00<br><small>300</small>",
        "5.00 ±\u00a00.00<br><small>uniform 300</small>",
        "2.00 ±\u00a00.00<br><small>learned 100</small>",
    ]
    (auroc,) = {f"{100 * mean(one['tidy'][0]['auroc'] for one in by_hand()[:3]):.2f}"}
    assert row(text, "BN³")[6].startswith(f"{auroc} ±\u00a0")
    assert row(text, "BN³")[-2:] == ["3", "15.2 min"]
    us_net = row(text, "US-Net")
    assert us_net[1:6] == [
        "–", "60.00<br><small>160</small>", "75.00<br><small>300</small>", "7.00<br><small>uniform 160</small>", "–",
    ]  # fmt: skip
    assert us_net[-2] == "1"
    shaped = row(text, "plain at learned shapes")
    worst = "4.00<br><small>200</small>"
    assert shaped[1:6] == ["–", "85.00<br><small>200</small>", "–", worst, worst]
    assert shaped[6:8] == ["–", "–"]


def test_the_table_of_sizes_by_hand(tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, *by_hand())
    text = markdown.every_size(block, block.series[0])
    head, *lines = cells(text)
    assert head[:3] == ["Size", "Parameters", "Multiply-adds"]
    assert head[3:9] == ["Accuracy", "ECE", "NLL", "AUROC", "AUPR, by chance 72.2", "AURC"]
    assert head[9:] == ["Plain, same shape", "Difference"]
    assert [line[:3] for line in lines] == [
        ["learned 100, learned", "100", "4 k"], ["learned 200, learned", "200", "8 k"], ["uniform 300", "300", "12 k"],
    ]  # fmt: skip
    assert [line[9:] for line in lines] == [["–", "–"], ["85.00", "-5.00"], ["–", "–"]]
    (block,) = blocks(tmp_path / "other", *by_hand()[:3])
    assert cells(markdown.every_size(block, block.series[0]))[0][-1] == "AURC"  # no twin, no columns


def test_one_training_has_no_interval_though_it_was_evaluated_often(tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, fake_run(repeats=3))
    assert "±" not in markdown.methods(block, SIZES)
    (block,) = blocks(tmp_path, fake_run(seed=0), fake_run(seed=1))
    assert "±" in markdown.methods(block, SIZES)


def test_prose_stays_byte_for_byte(tmp_path: Path, undrawn: None) -> None:
    path = tmp_path / "page.md"
    before, after = b"\xef\xbb\xbf# Caf\xe9\r\n\r\nwords \t\n" + b"a\n", b"\r\nmore\xff\n\n\nend without a line"
    path.write_bytes(before + BEGIN.encode() + b"\nold\n" + END.encode() + after)
    found = blocks(tmp_path, *by_hand())
    markdown.write(found, path, SIZES, "vnd report runs")
    once = path.read_bytes()
    assert once.startswith(before + BEGIN.encode())
    assert once.endswith(END.encode() + after)
    assert b"old" not in once
    assert b"```sh\nvnd report runs\n```" in once
    markdown.write(found, path, SIZES, "vnd report runs")
    assert path.read_bytes() == once


def test_a_file_is_made_with_its_marks(tmp_path: Path, undrawn: None) -> None:
    path = tmp_path / "new" / "page.md"
    markdown.write(blocks(tmp_path, fake_run()), path, SIZES)
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"{BEGIN}\n\n### cifar10, vgg11\n")
    assert text.endswith(f"\n\n{END}\n")


@pytest.mark.parametrize(
    "text", ["", "prose", BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}\n{END}"]
)
def test_a_file_without_its_marks_is_refused_and_left(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    wanted = (
        rf"^report: {path} must have the lines {BEGIN} and {END}, each once and in this order; put them where [^\n]+$"
    )
    with pytest.raises(ValueError, match=wanted):
        markdown.write((), path, SIZES)
    assert path.read_text() == text


def test_figures_lie_beside_the_file_and_are_linked(tmp_path: Path) -> None:
    folder, path = tmp_path / "docs", tmp_path / "docs" / "my page.md"
    found = comparison.read([*write_runs(tmp_path / "runs", suite(full=False))]).blocks
    files = markdown.write(found, path, (1e5, 1e6))
    links = re.findall(r"^!\[([^\]]+)\]\(([^)]+)\)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    names = ["accuracy", "ece", "nll", "auroc", "survival", "reliability"]
    assert files == [folder / "images" / f"my page-{name}.png" for name in names]
    assert [link for _, link in links] == [f"images/my%20page-{name}.png" for name in names]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    assert all(words for words, _ in links)


def test_a_png_file_is_as_large_as_it_may_be_and_no_larger(tmp_path: Path) -> None:
    figure = compare.over_parameters(blocks(tmp_path, fake_run("bn3"), fake_run("fn3"))[0].series, "ece")
    fine, coarse = canvas.png(figure, 100, 150_000), canvas.png(figure, 100, 6_000)
    assert len(coarse) <= 6_000 < len(fine)
    widths = [struct.unpack(">I", one[16:20])[0] for one in (fine, coarse)]
    assert widths[0] == 820 > widths[1] > 300


def test_each_data_set_has_its_part_and_its_figures(tmp_path: Path) -> None:
    runs = [fake_run(data=data, fractions=(0.5, 1.0)) for data in ("cifar10", "svhn")]
    files = markdown.write(blocks(tmp_path, *runs), tmp_path / "page.md", SIZES)
    assert len({file.name for file in files}) == len(files)
    assert {file.name.split("-")[1] for file in files} == {"cifar10", "svhn"}
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert re.findall("^### .*", text, re.MULTILINE) == ["### cifar10, vgg11", "### svhn, vgg11"]


def test_machines_times_and_commands_are_said(tmp_path: Path) -> None:
    places = [trained(tmp_path, name, seed) for seed, name in enumerate("ab")]
    places += write_runs(tmp_path, {"c": fake_run("fn3", inference=("mc", "temperature_scaled"))})
    table, fold = markdown.made(comparison.read(places).blocks[0])[1:]
    assert row(table, "BN³")[1:] == ["2", "NVIDIA H200", "2.11.0+cu130", "a2f2da58b+", "15.1 min", "61 s"]
    assert row(table, "FN³, FN³-TS")[1:] == ["1", "NVIDIA H200", "2.13.0", "–", "15 min", "61 s"]  # as its results say
    assert "\nvnd train bn3.yaml --out a --x=b\nvnd evaluate a --checkpoint=last\n" in fold
    assert "secret" not in fold
    for place in places:  # a recipe of each, or there is nothing to train by
        assert markdown.AGAIN not in markdown.made(comparison.read(places).blocks[0])[-1]
        (place / "recipe.yaml").write_text("")
    assert markdown.AGAIN in markdown.made(comparison.read(places).blocks[0])[-1]
    (places[0] / "environment.json").write_text(json.dumps({"gpus": ["A", "A"], "versions": 3, "git": {"commit": 1}}))
    assert row(markdown.made(comparison.read(places[:1]).blocks[0])[1], "BN³")[2:5] == ["2 × A", "2.13.0", "–"]


def test_no_text_of_a_file_is_mark_up(tmp_path: Path, undrawn: None) -> None:
    bad = f"{HOSTILE} | [a](b) `c` *d*\n# e {END}"
    one = fake_run(bad, data=bad, network=bad, run=bad) | {"machine": bad, "ood": bad, "command": bad}
    for line in one["tidy"]:
        line["label"] += bad
    path = tmp_path / "page.md"
    found = blocks(tmp_path, one)
    markdown.write(found, path, SIZES)
    text = path.read_text(encoding="utf-8")
    outside = re.sub(r"^```+sh$.*?^```+$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in outside
    assert "<img" not in outside
    assert not re.search(r"(?<!\\)\[a", outside)
    widths = [len(line) for line in cells(text)]
    assert widths == [9] * (2 + 1 + 6) + [7] * 2  # methods, sizes and machines: each row is as wide as its head
    marked.parts(path)  # and its marks are still the only ones


def test_validation_images_are_said(tmp_path: Path) -> None:
    (block,) = blocks(tmp_path, fake_run() | {"split": "validation"})
    assert "validation images, not of test images" in markdown.tables(block, SIZES)[0]
