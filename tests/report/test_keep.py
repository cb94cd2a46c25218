"""What is kept of runs: all that a comparison reads, exactly, and nothing of one machine."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_results import SMALL, fake_results
from fake_runs import fake_run, suite, write_runs

from vnd.report import comparison, keep
from vnd.report.runs import ORDER, open_results
from vnd.report.summary import as_csv, rows

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


def trained(folder: Path, name: str = "a", seed: int = 0, epochs: int = 2) -> Path:
    """A run with all its files, as training and evaluation leave them."""
    results = fake_run("bn3", seed, learned=2, studies=True, recipe="/home/secret/bn3", run=name) | {
        "command": "vnd evaluate '/home/secret/my runs/a' --checkpoint=last",
        "chosen": {"label": "100 %", "folder": "/home/secret/my runs/a/extracted"},
        "examples": fake_results(**SMALL)["examples"],
        "curves": [{"step": step, "loss": 1.0} for step in range(1000)],
    }
    (run,) = write_runs(folder, {name: results})
    units = {
        f"features.{layer}": dict.fromkeys(("expected_length", "entropy"), 1.2345678901234567) for layer in range(8)
    }
    log = []
    for step in range(20, 90 * epochs + 1, 10):
        log.append({"step": step, "epoch": step // 90, "loss": 1 / step, "nll": "nan", "units": units})
        if step % 90 == 0:
            log.append({"step": step, "validation": {"50 %": 1 / 3, "100 %": 0.819}, "best": 0.8115})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in log) + '{"step": 7')
    (run / "recipe.yaml").write_text(RECIPE)
    (run / "data.json").write_text('{"name": "cifar10", "classes": ["T-shirt/top"]}')
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT | {"cpus": 16 + seed}))
    (run / "best").mkdir()
    (run / "best" / "tensors-0123.safetensors").write_bytes(b"\0" * 2_000_000)
    return run


def kept(places: list[Path], folder: Path) -> keep.Kept:
    return keep.keep(comparison.read(places).runs, folder)


def table(*places: Path) -> str:
    return as_csv(rows(comparison.read(places).blocks))


def test_a_report_of_what_is_kept_is_that_of_the_runs(tmp_path: Path) -> None:
    names = [
        "us_net-0",
        "bn3-2",
        "bn3-0",
        "fn3-1",
        "sandwich",
        "plain-0.5",
        "ordered_l0-0",
        "fn3-0",
        "bn3-1",
        "ibnn-0.5",
    ]
    found = {name: one for name, one in suite().items() if name in names}
    write_runs(tmp_path / "runs", found)
    places = [tmp_path / "runs" / name for name in names]  # not in the order of their names
    kept(places, tmp_path / "kept")
    assert table(tmp_path / "kept") == table(*places)
    ours, theirs = (comparison.read(given).blocks[0] for given in ([tmp_path / "kept"], places))
    assert [run.name for run in ours.runs] == [run.name for run in theirs.runs] == names
    for one, other in zip(ours.runs, theirs.runs, strict=True):
        same = {key: value for key, value in other.results.items() if key not in ("examples", "curves")}
        assert one.results == same  # to the last bit
    (tmp_path / "kept" / ORDER).unlink()
    assert [run.name for run in comparison.read([tmp_path / "kept"]).runs] == sorted(names)  # what the file is for


def test_rounded_numbers_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = write_runs(tmp_path, {"a": fake_run()})
    real = json.dumps
    with monkeypatch.context() as patch:
        patch.setattr(keep.json, "dumps", lambda value, **options: real(_rounded(value), **options))
        kept([run], tmp_path / "kept")
    assert table(tmp_path / "kept") != table(run)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 6) if isinstance(value, float) else value


def test_no_weights_no_pictures_and_no_path_of_a_machine_are_kept(tmp_path: Path) -> None:
    run = trained(tmp_path, epochs=300)
    assert (run / "metrics.jsonl").stat().st_size > 1_000_000
    found = kept([run], tmp_path / "kept")
    (place,) = found.folders
    names = {"results.json", "recipe.yaml", "data.json", "environment.json", "metrics.jsonl"}
    files = {path.name: path.read_text() for path in place.iterdir()}
    assert place == tmp_path / "kept" / "a"
    assert set(files) == names
    assert found.size == sum(len(text.encode()) for text in files.values())
    assert len(files["metrics.jsonl"]) <= keep.LONGEST
    for text in files.values():
        assert "secret" not in text
        assert str(tmp_path) not in text
    assert files["recipe.yaml"] == RECIPE.replace("/home/secret/data", "null").replace("'/home/secret: x'", "null")
    environment = json.loads(files["environment.json"])
    assert environment["command"] == ["__main__.py", "train", "bn3.yaml", "--out", "a", "--x=b"]
    assert environment["git"] == {"commit": "a2f2da58b6508fe5d8bc78ce9445f037fa9f99e2", "dirty": True}
    results = json.loads(files["results.json"])
    assert results["command"] == "vnd evaluate a --checkpoint=last"
    assert results["chosen"]["folder"] == "extracted"
    assert results["series"]["recipe"] == "bn3"
    assert table(tmp_path / "kept") == table(run)


def test_a_short_log_is_kept_whole_and_a_long_one_evenly_with_first_and_last(tmp_path: Path) -> None:
    short, long = (trained(tmp_path, name, epochs=epochs) / "metrics.jsonl" for name, epochs in (("a", 2), ("b", 300)))
    whole = [json.loads(line) for line in short.read_text().splitlines()[:-1]]
    assert [json.loads(line) for line in keep.thinned(short.read_text()).splitlines()] == whole
    thin = keep.thinned(long.read_text())
    before = {json.dumps(row) for line in long.read_text().splitlines()[:-1] if (row := _lean(line))}
    lines = thin.splitlines()
    assert {json.dumps(_lean(line)) for line in lines} <= before
    assert 8 <= sum("units" in line for line in lines) < len(lines)
    for key in ("loss", "validation"):
        steps = [json.loads(line)["step"] for line in lines if key in line]
        own = [json.loads(line)["step"] for line in long.read_text().splitlines()[:-1] if key in line]
        assert (steps[0], steps[-1]) == (own[0], own[-1])
        assert len(steps) > 25
        assert len({b - a for a, b in pairwise(steps[:-1])}) == 1
    assert keep.thinned(thin) == thin
    assert keep.thinned("") == keep.thinned("no JSON\n[1]\n") == ""


def _lean(line: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if key != "units"}


def test_runs_of_one_name_do_not_replace_each_other_and_a_run_is_kept_once(tmp_path: Path) -> None:
    one, two = trained(tmp_path / "x", seed=0), trained(tmp_path / "y", seed=1)
    folder = tmp_path / "kept"
    assert [place.name for place in kept([one, two], folder).folders] == ["a", "a-2"]
    assert [place.name for place in kept([two], folder).folders] == ["a-2"]
    assert table(folder) == table(one, two)
    results = json.loads((two / "results.json").read_text())
    results["tidy"][0]["accuracy"] = 0.125  # evaluated anew
    (two / "results.json").write_text(json.dumps(results))
    assert [place.name for place in kept([two, one], folder).folders] == ["a-2", "a"]
    assert json.loads((folder / ORDER).read_text()) == ["a", "a-2"]
    assert open_results(folder / "a-2" / "results.json").rows[0]["accuracy"] == 0.125
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(kept([folder], folder).folders) == 2  # of itself
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_other_results_of_one_name_without_their_training_are_other_runs(tmp_path: Path) -> None:
    (one,) = write_runs(tmp_path / "x", {"a": fake_run(seed=0, run="a")})
    (two,) = write_runs(tmp_path / "y", {"a": fake_run(seed=1, run="a")})
    assert [kept([run], tmp_path / "kept").folders[0].name for run in (one, two, one)] == ["a", "a-2", "a"]


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (run,) = write_runs(tmp_path / "x", {"a": fake_run(run="../../b")})
    (place,) = kept([run], tmp_path / "kept").folders
    assert place.parent == tmp_path / "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "x"]


def test_broken_files_beside_the_results_are_no_obstacle(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (run / "environment.json").write_text('{"git": ')
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    (place,) = kept([run], tmp_path / "kept").folders
    assert (place / "environment.json").read_text() == "{}\n"
    assert table(tmp_path / "kept") == table(run)


def test_what_cannot_be_kept_is_said_in_one_line(tmp_path: Path) -> None:
    (run,) = write_runs(tmp_path, {"a": fake_run()})
    with pytest.raises(ValueError, match=rf"^report: keep must be a folder for runs, not a run's own; got {run}$"):
        kept([run], run)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ORDER).write_text("{")
    with pytest.raises(
        ValueError, match=r"^report: .*order.json must be a JSON list of the names of runs; mend it, or"
    ):
        kept([run], tmp_path / "kept")
