"""A comparison as Markdown: between its marks alone, with the numbers of the files, figures that are not too large."""

import re
from pathlib import Path
from typing import Any

import pytest
from fake_codes import fake_code
from fake_runs import fake_run
from fake_segments import fake_segment
from pages import HOSTILE, block, put

from vnd.report import html
from vnd.report.html import BEGIN, END, Options, _tables, code, parts_of, read, words, write_markdown

KINDS = {"sizes": lambda: fake_run(learned=2, studies=True), "codes": fake_code, "masks": fake_segment}


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "DPI", 40)


def written(folder: Path, *results: dict[str, Any], name: str = "my page.md") -> tuple[str, list[Path]]:
    path = folder / name
    files = write_markdown(read(put(folder / "runs", *results)), path, (1e5, 1e7), "vnd report runs")
    return path.read_text(encoding="utf-8"), files


@pytest.mark.parametrize("kind", KINDS)
def test_figures_lie_beside_the_page_and_are_shown_in_it(kind: str, tmp_path: Path) -> None:
    text, files = written(tmp_path, KINDS[kind]())
    links = re.findall(r"^!\[(.+)\]\((.+)\)$", text, flags=re.MULTILINE)
    assert [link for _, link in links] == [
        f"images/my%20page-{path.stem.removeprefix('my page-')}.png" for path in files
    ]
    assert len(files) > 1
    assert all(path.stat().st_size <= html.LARGEST for path in files)
    for line in text.splitlines():
        assert not line.startswith("|") or line.count("|") == line.replace("\\|", "").count("|")
    assert text.endswith(f"```sh\nvnd report runs\n```\n\n{END}\n")


def test_what_lies_outside_the_marks_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "my page.md"
    path.write_bytes(f"before\r\n{BEGIN}\nof before\n{END}\r\nafter".encode())
    text, _ = written(tmp_path, fake_segment())
    assert path.read_bytes().startswith(f"before\r\n{BEGIN}\n\n### lidc\n\n".encode())
    assert path.read_bytes().endswith(f"{END}\r\nafter".encode())
    assert "of before" not in text


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_page_without_its_marks_is_refused_and_left(text: str, tmp_path: Path) -> None:
    path = tmp_path / "my page.md"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^report: {path} must have the lines {BEGIN} and {END}, each once"):
        written(tmp_path, fake_segment())
    assert path.read_text() == text
    assert not (tmp_path / "images").exists()


def test_the_table_of_methods_has_the_numbers_of_the_file(tmp_path: Path) -> None:
    one = fake_run(fractions=(0.0625, 1.0), learned=2)
    text, _ = written(tmp_path, one)
    rows = {row["label"]: row for row in one["tidy"]}
    line = next(line for line in text.splitlines() if line.startswith("| BN³ | "))
    full = rows["100 %"]
    assert f"| {100 * full['accuracy']:.2f}<br><small>9.23 M</small> |" in line
    assert f"| {100 * full['auroc']:.2f} | {full['nll']:.3f} | 1 | 15 min |" in line
    assert "| 100 % | 9.23 M | 369 M |" in text


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_validation_images_are_called_so(kind: str) -> None:
    found = block(KINDS[kind]() | {"split": "validation"})
    text = "".join("\n".join(_tables(part)) for part in parts_of(found, Options("markdown")))
    assert "All numbers are of validation images, not of test images." in text


def test_hostile_text_is_no_markup(tmp_path: Path) -> None:
    one = fake_segment()
    one["method"] |= {"name": HOSTILE + "|*a*`_"}
    one["series"] |= {"data": f"{END}{HOSTILE}"}
    one["command"] = "vnd evaluate ``` " + BEGIN
    text, _ = written(tmp_path, one)
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert "<script" not in text
    assert "<img" not in text
    assert words("|*a*`_") in text
    assert code(["a ``` b"]).startswith("````sh\n")
