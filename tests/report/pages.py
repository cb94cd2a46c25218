"""Runs of result files, and pages as a reader sees them."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from vnd.report import curves, lengths, masks  # noqa: F401  they register their sections
from vnd.report.html import Panel, Table, _text
from vnd.report.results import Run
from vnd.report.series import Block, Series, blocks_of

VOID = {"meta", "br", "img", "hr", "link", "input"}
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def made(*results: dict[str, Any]) -> list[Run]:
    return [Run(Path(f"{index}/results.json"), one) for index, one in enumerate(results)]


def block(*results: dict[str, Any]) -> Block:
    (found,) = blocks_of(made(*results))
    return found


def series(*results: dict[str, Any]) -> list[Series]:
    return list(block(*results).series)


def put(folder: Path, *results: dict[str, Any]) -> list[Path]:
    places = []
    for index, one in enumerate(results):
        places.append(folder / f"run-{index}")
        places[-1].mkdir(parents=True)
        (places[-1] / "results.json").write_text(json.dumps(one))
    return places


def table_of(part: Panel, at: int = 0) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a table of a part, as texts."""
    table = [one for one in part.content if isinstance(one, Table)][at]
    return list(table.head), [[_text(cell) for cell in line] for line in table.lines]


class Reader(HTMLParser):
    """The tags and attributes of a page, with a check that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def lines(text: str) -> list[list[str]]:
    """The cells of each line of the tables of a page, without what stands in small."""
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", text, flags=re.DOTALL)
    bare = [re.sub(r"<small>.*?</small>|</?b>|<br>", "", line) for line in found]
    return [[unescape(c).strip() for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in bare]


def words(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text.split("</head>")[-1])).split())
