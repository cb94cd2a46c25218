"""Pages: whole, alone, safe, with every number; and none of them knows a task or a method."""

import ast
import csv
import json
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest
from fake_codes import fake_code
from fake_results import SMALL, fake_results
from fake_runs import fake_run, suite
from fake_segments import fake_segment
from pages import HOSTILE, Reader, block, lines, put, words

import vnd.report
from vnd.methods import METHODS
from vnd.methods.base import TRAITS
from vnd.report import html
from vnd.report.html import MEASURED, SECTIONS, Options, read, rows, write, write_run
from vnd.tasks import TASKS

SOURCE = Path(vnd.report.__file__).parent
STUDIES = ("selective", "cascade", "correlation")


def whole(**options: Any) -> dict[str, Any]:
    """A run with everything that a page can show."""
    return fake_results(**SMALL) | {key: fake_run(studies=True, **options)[key] for key in STUDIES}


KINDS = {"sizes": whole, "codes": fake_code, "masks": fake_segment}


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "DPI", 20)  # quick
    monkeypatch.setitem(SECTIONS, "theory", {})  # drawn in a test of its own


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of runs of many methods."""
    folder = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "DPI", 20)
        assert (
            write(read(put(folder / "runs", *suite(full=False).values())), folder / "out", "All").name == "report.html"
        )
    return folder / "out"


def page(folder: Path, results: dict[str, Any]) -> str:
    (place,) = put(folder, results)
    return write_run(place, place / "out").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_a_run_stands_alone(kind: str, tmp_path: Path) -> None:
    results = KINDS[kind]()
    text = page(tmp_path, results)
    read_page = Reader(text)
    assert not {"script", "link", "iframe", "object", "img", "base"} & set(read_page.tags)
    for name, value in read_page.attributes:
        if name.split(":")[-1] in ("href", "src", "srcset", "data", "action"):
            assert value.startswith(("#", "data:image/png;base64,"))
    assert "//" not in re.sub(r'"data:image/png;base64,[^"]*"', "", text)
    files = list((tmp_path / "run-0" / "out" / "figures").iterdir())
    assert text.count("<svg") == len(files) > 3
    assert f"<h1>{escape(results['title'])}</h1>" in text
    for said in ("How it was made", results["command"], results["machine"]):
        assert said in words(text)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_validation_images_are_not_called_those_of_test_images(kind: str, tmp_path: Path) -> None:
    text = words(page(tmp_path, KINDS[kind]() | {"split": "validation"}))
    assert "All numbers are of validation images, not of test images." in text
    assert "All numbers are of" not in words(page(tmp_path / "test", KINDS[kind]()))


def test_every_number_of_every_row_is_in_the_table(tmp_path: Path) -> None:
    results = fake_results()
    text = page(tmp_path, results)
    table = {line[0]: line[1:] for line in lines(text)}
    numbers = ["99.2 k", "3.97 M", "397 kB", "1.1 ms", "91.1 %", "1.2 %", "0.253", "0.131", "95.7 %", "92.1 %"]
    assert table["100 %"] == ["uniform", *numbers]
    assert "AUPR by chance: 37.5 %." in words(text)
    for row in results["rows"]:
        wanted = {f"{100 * row[key]:.1f} %" for key in ("accuracy", "ece", "auroc", "aupr")} | {f"{row['nll']:.3f}"}
        assert wanted <= set(table[row["label"]])
    for layer in results["survival"]:
        assert [layer, *(str(row["shape"][layer]) for row in results["rows"])] in lines(text)
    assert re.findall(r'<tr class="chosen"><th>(.*?)</th>', text) == ["level 0.4"]
    assert (
        "has 21.4 k parameters, 21.5 % of the full 99.2 k. On these images it has Accuracy 90.3 % (91.1 % at"
        in words(text)
    )


def test_a_run_of_one_size_has_no_curve(tmp_path: Path) -> None:
    one = fake_results(**SMALL)
    one |= {"rows": one["rows"][:1], "chosen": None, "method": one["method"] | {"sizes": "each", "order": "none"}}
    text = page(tmp_path, one)
    assert "One network of one size was trained on" in words(text)
    assert "Further left" not in text
    assert "The network: 100 %, uniform" in words(text)


def test_the_csv_and_json_hold_every_point(compared: Path) -> None:
    with (compared / "summary.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    said = json.loads((compared / "summary.json").read_text(encoding="utf-8"))
    assert len(table) == len(said["points"]) == (6 + 3) * 2 + 1 + 6 * 2 + 1 + 3  # BN³, DT-BN³; MC; FN³, TS; SVB; IBNN
    (row,) = (row for row in table if (row["series"], row["label"]) == ("BN³", "25 %"))
    assert float(row["accuracy_low"]) < float(row["accuracy"]) < float(row["accuracy_high"])
    assert (row["interval_over"], row["runs"], row["data"], row["network"]) == ("seeds", "2", "cifar10", "vgg11")
    (row,) = (row for row in table if row["series"] == "IBNN" and row["fraction"] == "0.5")
    assert (row["accuracy_low"], row["interval_over"]) == ("", "")
    assert {"Summary", "What small networks can do", "Time"} <= {one["part"] for one in said["tables"]}
    names = [f"figures/{path.name}" for path in (compared / "figures").iterdir()]
    assert sorted(said["figures"]) == sorted(names)
    each = {f"figures/{name}-bn3.png" for name in ("lengths", "statistics", "correlation", "reliability")}
    assert each <= set(names)
    text = (compared / "report.html").read_text(encoding="utf-8")
    assert text.count("<svg") == len(names)
    Reader(text)
    for term in ("Nested", "ECE", "AUROC", "AUPR", "Interval", "BN³", "The law behind it"):
        assert term in words(text)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_text_stays_text(kind: str, tmp_path: Path) -> None:
    one = KINDS[kind]()
    one |= {"title": HOSTILE, "machine": HOSTILE, "command": HOSTILE, "notes": [HOSTILE + "{split}"]}
    one["method"] |= {"name": HOSTILE, "about": HOSTILE, "looks": None}
    for column in one["columns"]:
        column |= {"heading": HOSTILE + column["heading"]}
    one["series"] = {"run": "../" + HOSTILE, "method": "m", "network": HOSTILE, "data": "../../" + HOSTILE, "seed": 0}
    for place in (
        write_run(*put(tmp_path / "a", one), tmp_path / "one"),
        write(read(put(tmp_path / "b", one)), tmp_path / "many"),
    ):
        text = place.read_text(encoding="utf-8")
        found = Reader(text)
        assert not {"script", "img"} & set(found.tags)
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        assert escape(HOSTILE, quote=False) in text.replace("&#34;", '"').replace("&#39;", "'").replace("&quot;", '"')
        assert all(path.parent == place.parent / "figures" for path in place.parent.rglob("*.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "many", "one"]


def test_text_in_the_csv_is_no_formula() -> None:
    assert "'=cmd()" in html.as_csv(rows(block(fake_run("=cmd()"))))


def test_each_data_set_is_a_block_with_a_link(tmp_path: Path) -> None:
    runs = [fake_run() | {"sections": ["training"]}, fake_run(data="svhn") | {"sections": ["training"]}]
    text = write(read(put(tmp_path, *runs)), tmp_path / "out").read_text(encoding="utf-8")
    for mark, name in (("block-1", "cifar10, vgg11"), ("block-2", "svhn, vgg11")):
        assert f'<a href="#{mark}">{name}</a>' in text
        assert f'<h2 class="block" id="{mark}">{name}</h2>' in text


def test_names_that_look_alike_have_files_of_their_own() -> None:
    found = html.each(block(fake_run("m!"), fake_run("m?")).series, "x", lambda own: None, "")
    assert [one.name for one in found] == ["x-m", "x-m-2"]


def test_runs_that_were_not_evaluated_are_left_out_and_named(tmp_path: Path) -> None:
    put(tmp_path / "runs", fake_run() | {"sections": ["training"]})
    (tmp_path / "runs" / "b<i>").mkdir()
    (tmp_path / "runs" / "b<i>" / "recipe.yaml").touch()
    said: list[str] = []
    text = write(read([tmp_path / "runs"], said.append), tmp_path / "out").read_text(encoding="utf-8")
    assert said == [f"report: left out, not evaluated: {tmp_path}/runs/b<i>"]
    assert "<p>Left out: b&lt;i&gt;, not evaluated.</p>" in text


def test_a_task_and_a_method_of_which_the_report_knows_nothing_have_a_page(tmp_path: Path) -> None:
    columns = [{"key": "parameters", "heading": "Parameters", "form": "short"}]
    columns.append(
        {"key": "rmse", "heading": "RMSE", "better": "less", "title": "Error", "axis": "RMSE", "headline": "Nearest"}
    )
    results: dict[str, Any] = {
        **{"format": 2, "title": "Houses", "task": {"name": "regression", "noun": "regressor", "compare": ["data"]}},
        **{"method": {"key": "mine", "name": "MyNet"}, "columns": columns, "data": {"name": "houses"}},
        "sections": ["summary", "curves", "times", "numbers", "training"],
        "rows": [
            {
                "kind": "uniform",
                "label": f"{part:.0%}",
                "fraction": part,
                "parameters": round(1e4 * part),
                "rmse": 1 / part,
            }
            for part in (0.25, 1.0)
        ],
    }
    text = words(page(tmp_path / "one", results))
    assert "4.000" in text
    other = results | {
        "method": {"key": "yours", "name": "YourNet"},
        "rows": [r | {"rmse": 0.5} for r in results["rows"]],
    }
    text = words(write(read(put(tmp_path / "two", results, other)), tmp_path / "out").read_text(encoding="utf-8"))
    assert "Comparison of 2 regressors" in text
    assert "Nearest: YourNet , 0.500; next MyNet, 1.000 (one of them measured once)." in text


def names_in(source: str) -> set[str]:
    """String constants, imported names and operands of isinstance in Python source."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {name for alias in node.names for name in (alias.name, alias.asname) if name}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found |= {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
    return found


def test_the_report_names_no_task_and_no_method() -> None:
    known = {*TASKS, *METHODS, *(kind.__name__ for kind in METHODS.values()), *(t.name for t in TRAITS.values())}
    for path in SOURCE.glob("*.py"):
        assert not names_in(path.read_text(encoding="utf-8")) & known, path.name
    assert names_in('if isinstance(x, BN3) or task == "segmentation": from a import plain') >= {
        "BN3",
        "segmentation",
        "plain",
    }


def test_sections_of_all_tasks_are_registered() -> None:
    named = {name for task in TASKS.values() for name in task.sections}
    assert named | set(MEASURED) == set(SECTIONS)
    assert all(callable(make) for views in SECTIONS.values() for make in views.values())


@pytest.mark.parametrize("view", ["run", "page", "markdown"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_says_what_it_shows(kind: str, view: str) -> None:
    for part in html.parts_of(block(KINDS[kind]()), Options(view, sizes=(1e5,))):
        assert "{" not in part.note
        assert part.note.strip() == part.note
        assert part.heading or view != "page"
