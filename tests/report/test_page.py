"""The page: whole, alone, safe, and with every number."""

import json
import re
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from fake_results import SMALL, fake_results
from fake_runs import fake_run

from vnd.report import page

VOID = {"meta", "br", "img", "hr", "link", "input"}
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    results = fake_results() | {key: fake_run(studies=True)[key] for key in ("selective", "cascade")}
    (folder / "results.json").write_text(json.dumps(results))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "DPI", 60)
        assert page.write(folder, folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def lines(text: str) -> list[list[str]]:
    """The cells of each line of the tables, as a reader sees them."""
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", text, flags=re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)] for line in found]


def words(text: str) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", text.split("</head>")[1]))


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small PNG files, which are quick; those of the fixture above were made before."""
    monkeypatch.setattr(page, "DPI", 20)


def made(results: dict[str, Any], folder: Path) -> str:
    (folder / "results.json").write_text(json.dumps(results))
    return page.write(folder, folder / "out").read_text(encoding="utf-8")


def test_every_number_of_every_row_is_in_the_table(text: str) -> None:
    table = {line[0]: line[1:] for line in lines(text)[: len(fake_results()["rows"]) + 1]}
    assert table["100 %"] == [
        *("uniform", "99.2 k", "3.97 M", "397 kB", "1.1 ms", "91.1 %", "0.253", "1.2 %", "0.131", "95.7 %"),
        "92.1 %",
    ]
    assert "By chance, AUPR would be 37.5 %." in text
    for row in fake_results()["rows"]:
        expected = {f"{100 * row[key]:.1f} %" for key in ("accuracy", "ece", "auroc", "aupr")}
        expected |= {f"{row['nll']:.3f}", f"{row['brier']:.3f}", f"{row['latency_ms']:.3g} ms", row["kind"]}
        assert expected <= set(table[row["label"]])
    for layer in fake_results()["survival"]:
        kept = [str(row["shape"][layer]) for row in fake_results()["rows"]]
        assert [layer, *kept] in lines(text)


def test_the_summary_is_computed_from_the_rows(text: str) -> None:
    assert "has 21.4 k parameters, 21.5 % of the full 99.2 k. It is right on 90.3 % of these images" in words(text)
    assert "the full network on 91.1 %" in words(text)
    results = fake_results()
    results["rows"][8] |= {"accuracy": 0.7777, "ece": 0.0555, "auroc": 0.6666}
    results["rows"][0]["accuracy"] = 0.8888
    changed = words(page.html(results, {}))
    for number in ("right on 77.8 %", "the full network on 88.9 %", "is 5.5 percentage points off", "in 67 of 100"):
        assert number in changed


def test_the_cards_are_the_full_the_chosen_and_the_smallest_network(text: str) -> None:
    cards = [words("</head>" + card) for card in text.split('<div class="card ')[1:4]]
    for card, label, size in zip(cards, ("100 %", "level 0.4", "12.5 %"), ("99.2 k", "21.4 k", "2.73 k"), strict=True):
        assert f": {label}, " in card
        assert f"{size} parameters" in card


def test_the_chosen_row_alone_is_marked(text: str) -> None:
    assert re.findall(r'<tr class="chosen"><th>(.*?)</th>', text) == ["level 0.4"]


def test_how_it_was_made_is_told(text: str) -> None:
    for part in ("vnd demo --out runs/demo", "bn3", "2 CPU threads, torch 2.13.0", "train 80.1", "runs/demo/extracted"):
        assert part in words(text)


def test_the_page_needs_nothing_else(text: str) -> None:
    read = Reader(text)
    assert not {"script", "link", "iframe", "object", "img", "base"} & set(read.tags)
    for name, value in read.attributes:
        if name.split(":")[-1] in ("href", "src", "srcset", "data", "action"):
            assert value.startswith(("#", "data:image/png;base64,"))
        assert not name.startswith("on")
    assert "//" not in re.sub(r'"data:image/png;base64,[^"]*"', "", text)  # no address of any kind
    assert "@import" not in text
    assert set(re.findall(r"url\(.", text)) <= {"url(#"}
    assert len(text) < 1_500_000


def test_the_figures_are_in_the_page_and_beside_it(text: str, folder: Path) -> None:
    assert text.count("<svg") == len(page.FIGURES) == 9
    for name, (heading, _) in page.FIGURES.items():
        assert f'aria-label="{heading}"' in text
        picture = (folder / "figures" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 4_000
    assert sorted(path.name for path in folder.iterdir()) == ["figures", "report.html", "results.json"]


def test_the_page_is_the_same_each_time_and_leaves_no_settings_behind(tmp_path: Path) -> None:
    before, results = dict(matplotlib.rcParams), fake_results(**SMALL)
    results = {key: results[key] for key in ("format", "title", "data", "rows", "survival")}
    assert made(results, tmp_path) == made(results, tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    def poison(value: Any) -> Any:
        if isinstance(value, str) and value not in ("uniform", "learned"):
            return HOSTILE + value
        if isinstance(value, list):
            return [poison(item) for item in value]
        if isinstance(value, dict):
            known = len(value) == 1 or any(key in value for key in KEYS)
            return {key if known else HOSTILE + key: poison(item) for key, item in value.items()}
        return value

    KEYS = ("format", "name", "kind", "label", "image", "step", "most_certain")  # noqa: N806
    results = poison(fake_results(**SMALL))
    assert HOSTILE + "features.1" in results["survival"]
    read = Reader(made(results, tmp_path))
    assert not {"script", "img"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for value in (results["title"], results["machine"], results["rows"][0]["label"], HOSTILE + "features.1"):
        assert escape(value) in text


def test_a_page_of_the_least_there_can_be(tmp_path: Path) -> None:
    row = {"kind": "uniform", "label": "100 %", "parameters": 10, "accuracy": 0.5, "nll": 1.0, "ece": 0.1}
    examples = {"most_certain": [], "ood": None}
    least = {"format": 1, "title": "t", "data": {"name": "d"}, "rows": [row], "examples": examples, "curves": []}
    text = made(least, tmp_path)
    Reader(text)
    assert "<svg" not in text  # one size is no curve
    assert text.count('<div class="card ') == 1
    for wrong in ("sizes", "order", "full size", "Samples per prediction"):
        assert wrong not in words(text)
    assert "A network was trained on “d”. Here it is measured at one size on test images" in words(text)
    text = made(least | {"rows": [row, row | {"label": "50 %", "parameters": 5}]}, tmp_path)
    assert text.count("<svg") == 2  # accuracy and calibration
    assert "None" not in words(text)
    assert ["100 %", "uniform", "10", "50.0 %", "1.000", "10.0 %"] in lines(text)


def of(method: str | None, rows: int | None = None, **more: Any) -> str:
    """The words of the page of a method, without figures."""
    results = fake_results(**SMALL) | {"method": method} | more
    results["rows"] = results["rows"][:rows]
    return words(page.html(results | {"chosen": None}, {}))


@pytest.mark.parametrize(
    ("methods", "rows", "begins", "samples"),
    [
        (("bn3",), None, "One network was trained once on {}. It learned which of its units matter most", True),
        (("ordered_l0",), None, "One network was trained once on {}. It learned which of its units matter most", False),
        (("fn3", "us_net"), None, "One network was trained once on {}. Its units stand in a fixed order and", False),
        (("ibnn", "svb"), 1, "One network of one size was trained on {}. Here it is", True),
        (("plain",), 1, "One network of one size was trained on {}. Here it is", False),
        ((None, "mine", ""), None, "A network was trained on {}. Here it is", True),
    ],
)
def test_the_words_fit_the_method(
    methods: tuple[str | None, ...], rows: int | None, begins: str, samples: bool
) -> None:
    for method in methods:
        told = of(method, rows)
        assert begins.format("11,000 images of “fashion”, 10 classes") in told
        assert ("learned which of its units" in told) == (method in ("bn3", "ordered_l0"))
        assert ("without training again" in told) == (method in ("bn3", "ordered_l0", "fn3", "us_net"))
        assert ("Samples per prediction" in told) == samples
        where = "measured at 11 sizes on 3,000 test images" if rows is None else "measured on 3,000 test images"
        assert where in told
        assert " 1 sizes" not in told
    assert "measured at one size on 3,000" in of("bn3", 1)
    series = fake_run("plain")["series"]
    assert "One network of one size" in of("bn3", 1, series=series)  # what the series says comes first


def test_what_was_learned_is_shown_where_something_was() -> None:
    for method in ("bn3", "ordered_l0", "fn3", "us_net", None):
        results = fake_results(**SMALL) | {"method": method}
        assert page._has(results, "survival") == (method not in ("fn3", "us_net"))
    assert not page._has(results | {"survival": {}}, "survival")


def test_curves_of_trust_are_there_where_the_file_has_them(text: str) -> None:
    assert "for at most 5\u00a0% wrong answers, the dotted line, measured on the test images" in text
    assert "tried on the first of 25\u00a0% and 100\u00a0%, and goes on to the next" in text
    results = fake_results(**SMALL)
    for name in ("selective", "cascade"):
        assert not page._has(results, name)
        assert not page._has(results | {name: None}, name)
        assert page._has(results | {name: fake_run(studies=True)[name]}, name)
    bare = {"risk": 0.05, "rows": [{"label": "100 %", "coverage": 0.0, "risk": None}]}
    assert not page._has(results | {"selective": bare}, "selective")


def test_validation_images_are_not_called_test_images() -> None:
    results = fake_results(**SMALL) | {"split": "validation", "selective": fake_run(studies=True)["selective"]}
    del results["data"]["test"]
    told = words(page.html(results, {"selective": "<svg></svg>"}))
    assert "on 1,000 validation images, which it was not trained on; but training kept what was best on them" in told
    assert "measured on the same images, which is too kind" in told
    assert told.count("test images") == 1  # which may turn out worse


def test_a_row_without_a_measure_has_a_dash() -> None:
    results = {key: value for key, value in fake_results().items() if key in ("format", "title", "data", "rows")}
    results["rows"][1] |= {"auroc": None, "base_rate": 0.5}
    table = lines(page.html(results, {}))
    assert table[0][-3:] == ["AUROC", "AUPR", "AUPR by chance"]
    assert table[1][-1] == "37.5 %"
    assert table[2][0] == "75 %"
    assert table[2][-3:] == ["–", "91.9 %", "50.0 %"]


def test_names_in_any_script(tmp_path: Path) -> None:
    results = {key: value for key, value in fake_results().items() if key in ("format", "title", "data", "rows")}
    results["rows"] = results["rows"][:2]
    results["title"] = results["rows"][0]["label"] = "时装 👗 été"
    assert "时装 👗 été" in made(results, tmp_path)


def test_a_bad_file_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match=r"results.json: format is missing"):
        page.write(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
