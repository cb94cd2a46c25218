"""What is kept of runs: all that a comparison reads, exactly, and nothing of one machine."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_codes import fake_code
from fake_results import SMALL, fake_results
from fake_runs import fake_run, suite
from fake_segments import fake_segment
from pages import put

from vnd.report import results as files
from vnd.report.html import as_csv, read, rows
from vnd.report.results import keep, open_run, origin

ENVIRONMENT = {
    "versions": {"python": "3.12.3", "torch": "2.11.0+cu130"},
    "git": {"folder": "/work/secret/src/vnd", "commit": "a2f2da58b6508fe5d8bc78ce9445f037fa9f99e2", "dirty": True},
    "cpus": 16,
    "gpus": ["NVIDIA H200"],
    "command": [
        "__main__.py",
        "train",
        "/home/secret/bn3.yaml",
        "--out",
        "/home/secret/my runs/a",
        "--x=/home/secret/b",
    ],
}
RECIPE = (
    "about: one/two\ndata:\n  name: cifar10\n  folder: /home/secret/data\n  extra: '/home/secret: x'\n  size: null\n"
)


def trained(folder: Path) -> Path:
    """A run with all its files, as training and evaluation leave them."""
    results = fake_run(learned=2, studies=True, recipe="/home/secret/bn3") | {
        "command": "vnd evaluate '/home/secret/my runs/a' --checkpoint=last",
        "chosen": {"label": "100 %", "folder": "/home/secret/my runs/a/extracted"},
        "examples": fake_results(**SMALL)["examples"],
        "curves": [{"step": step, "loss": 1.0} for step in range(1000)],
    }
    (run,) = put(folder, results)
    (run / "recipe.yaml").write_text(RECIPE)
    (run / "data.json").write_text('{"name": "cifar10", "classes": ["T-shirt/top"]}')
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    return run


def table(*places: Path) -> str:
    return as_csv([row for block in read(places).blocks for row in rows(block)])


def kept(folder: Path, *places: Path) -> Path:
    assert keep(read(places).runs, folder / "kept.jsonl") == (folder / "kept.jsonl").stat().st_size
    return folder / "kept.jsonl"


@pytest.mark.parametrize("kind", ["sizes", "codes", "masks"])
def test_a_report_of_what_is_kept_is_that_of_the_runs(kind: str, tmp_path: Path) -> None:
    some = {
        "sizes": [*suite(full=False).values()][::-1],
        "codes": [fake_code("vae", 64), fake_code(), fake_code("vae", 32)],
        "masks": [fake_segment("punet"), fake_segment(drawn=True), fake_segment("punet", seed=1)],
    }[kind]
    places = put(tmp_path, *some)
    file = kept(tmp_path, *places)
    assert table(file) == table(*places)
    for one, other in zip(read([file]).runs, read(places).runs, strict=True):
        assert one.results == {k: v for k, v in other.results.items() if k not in files.DROPPED}  # to the last bit
    again = tmp_path / "again" / "kept.jsonl"
    keep(read([file]).runs, again)
    assert again.read_bytes() == file.read_bytes()


def test_rounded_numbers_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rounded(part) for key, part in value.items()}
        if isinstance(value, list):
            return [rounded(part) for part in value]
        return round(value, 6) if isinstance(value, float) else value

    (run,) = put(tmp_path, fake_run())
    real = json.dumps
    with monkeypatch.context() as patch:
        patch.setattr(files.json, "dumps", lambda value, **options: real(rounded(value), **options))
        file = kept(tmp_path, run)
    assert table(file) != table(run)


def test_no_weights_no_pictures_and_no_path_of_a_machine_are_kept(tmp_path: Path) -> None:
    run = trained(tmp_path)
    file = kept(tmp_path, run)
    text = file.read_text(encoding="utf-8")
    assert "secret" not in text
    assert str(tmp_path) not in text
    found = json.loads(text)
    assert sorted(found) == ["data", "environment", "recipe", "results"]
    assert found["recipe"] == RECIPE.replace("/home/secret/data", "null").replace("'/home/secret: x'", "null")
    assert found["environment"]["command"] == ["__main__.py", "train", "bn3.yaml", "--out", "a", "--x=b"]
    assert found["environment"]["git"] == {"commit": ENVIRONMENT["git"]["commit"], "dirty": True}
    results = found["results"]
    assert (results["command"], results["series"]["recipe"]) == ("vnd evaluate a --checkpoint=last", "bn3")
    assert results["chosen"]["folder"] == "extracted"
    assert table(file) == table(run)


def test_the_origin_of_a_run_is_what_lies_beside_it(tmp_path: Path) -> None:
    run = trained(tmp_path)
    found = origin(open_run(run / "results.json"))
    assert (found.machine, found.torch, found.commit) == ("NVIDIA H200", "2.11.0+cu130", "a2f2da58b+")
    assert found.commands == ("vnd train bn3.yaml --out a --x=b", "vnd evaluate a --checkpoint=last")
    assert origin(read([kept(tmp_path, run)]).runs[0]) == found
    (run / "environment.json").write_text('{"cpus": 16}')
    assert origin(open_run(run / "results.json")).machine == "16 CPU cores"
    for broken in ('{"git": ', "[]", '{"git": 3, "gpus": 2}'):
        (run / "environment.json").write_text(broken)
        found = origin(open_run(run / "results.json"))
        assert (found.machine, found.torch, found.commit) == ("NVIDIA H200", "2.13.0", "")
