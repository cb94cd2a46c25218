"""`vnd evaluate` and `vnd extract`: of one tiny run, what is printed, what is written, and what is refused."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import vnd
from refusals import fails
from train.small import blobs, recipe, write_blobs
from vnd import metrics
from vnd.cli import main
from vnd.nn import BayesConv2d
from vnd.report import html
from vnd.tasks import classification as sweep
from vnd.tasks.classification import TABLE as COLUMNS
from vnd.tasks.classification import sizes_table
from vnd.train.loop import fit

COST = {"parameters", "macs", "bytes"}
SCORES = ("accuracy", "nll", "ece", "brier")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, nested and plain, and a set out of their domain."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_blobs(folder / "blobs.npz", train=160, test=64)
    images = np.random.default_rng(5).integers(0, 120, (40, 8, 8), dtype=np.uint8)
    noise = {"ood": "npz", "ood_folder": str(folder / "noise.npz")}
    labels = np.arange(40) % 2
    np.savez(folder / "noise.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    torch.manual_seed(0)
    assert fit(recipe(data, train={"epochs": 6}, evaluate={**noise, "samples": 2}), folder / "nested", quiet=True)
    plain: dict[str, Any] = {"method": {"name": "plain"}, "optimizer": {"chain_lr": None}}
    assert fit(recipe(data, train={"epochs": 1}, **plain), folder / "plain", quiet=True)
    return folder


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures, which take most of the time."""
    monkeypatch.setattr(html, "write_run", lambda results, folder: folder / "report.html")


def run(*words: object) -> None:
    main([str(word) for word in words])


def lines_of(printed: str, rows: list[dict[str, Any]]) -> list[list[str]]:
    """The printed cells of each row, found by its label."""
    found = []
    for row in rows:
        (line,) = [x for x in printed.splitlines() if x.startswith(f"{row['label']} ")]
        cells = re.split(r"(?<=\S) {1,}(?=\S)", line.removeprefix(row["label"]).strip())
        found.append(cells)
    return found


def check_printed(printed: str, rows: list[dict[str, Any]]) -> None:
    for row, cells in zip(rows, lines_of(printed, rows), strict=True):
        text = " ".join(cells)
        for key, (_, show) in COLUMNS.items():
            if key in row:
                assert show(row[key]) in text, (key, text)


# Evaluate


def test_evaluation_prints_the_numbers_that_it_writes(
    runs: Path, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    run("evaluate", runs / "nested")
    printed = capsys.readouterr().out
    results = json.loads((runs / "nested" / "results.json").read_text())
    assert [row["label"] for row in results["rows"]][:2] == ["50 %", "100 %"]
    heading = next(line for line in printed.splitlines() if line.startswith("width"))
    assert heading.split() == ["width", "parameters", "MACs", "bytes", "latency", "accuracy", "NLL", "ECE", "AUROC"]
    check_printed(printed, results["rows"])
    assert (results["samples"], results["split"], results["checkpoint"]) == (2, "test", "best")
    assert results["data"] == {
        "name": "npz", "train": 144, "validation": 16, "test": 64, "classes": ["0", "1", "2"], "image": [1, 8, 8]
    }  # fmt: skip
    assert results["curves"][0].keys() >= {"step", "loss", "nll", "kl"}
    assert str(runs / "nested" / "results.json") in printed
    assert str(runs / "nested" / "report.html") in printed
    told = (runs / "nested" / "report.html").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", told)
    assert all(str(row["label"]) in told for row in results["rows"])


def test_evaluation_again_gives_the_same_numbers(runs: Path, tmp_path: Path, undrawn: None) -> None:
    for name in ("one", "two"):
        torch.manual_seed(len(name) + ord(name[0]))
        run("evaluate", runs / "nested", "--fractions", "[0.5]", "--out", tmp_path / name)
    one, two = (json.loads((tmp_path / name / "results.json").read_text())["rows"][0] for name in ("one", "two"))
    timed = ("latency_ms", "test_seconds")
    assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in two.items() if k not in timed}


def test_sizes_samples_split_and_network_are_options(runs: Path, tmp_path: Path, undrawn: None) -> None:
    out = tmp_path / "deep" / "er"
    run(
        "evaluate", runs / "nested", "--fractions", "[0.25]", "--levels", "[0.9]", "--parameters", "[800, 1e9]",
        "--learned", "2", "--samples", "0", "--checkpoint", "last", "--split", "validation", "--out", out,
    )  # fmt: skip
    results = json.loads((out / "results.json").read_text())
    labels = [row["label"] for row in results["rows"]]
    assert labels[:4] == ["25 %", "level 0.9", "≤ 800", "≤ 1 G"]
    assert results["rows"][2]["parameters"] <= 800
    assert (results["samples"], results["split"], results["checkpoint"]) == (0, "validation", "last")
    assert results["data"]["validation"] == 16
    assert "test" not in results["data"]
    assert all(round(16 * row["accuracy"], 6).is_integer() for row in results["rows"])  # of 16 images


def test_a_network_is_evaluated_and_cut_with_the_statistics_of_training(
    runs: Path, tmp_path: Path, undrawn: None
) -> None:
    words = ("--fractions", "[1.0]", "--inference", "[mean]")
    run("evaluate", runs / "nested", *words, "--out", tmp_path / "as-it-says")
    for name in ("false", "true"):
        run("evaluate", runs / "nested", *words, "--augmented", name, "--out", tmp_path / name)
        run("extract", runs / "nested", "--fraction", 1.0, "--augmented", name, "--out", tmp_path / f"cut-{name}")
    results = {name: json.loads((tmp_path / name / "results.json").read_text()) for name in ("false", "true")}
    cut = {name: json.loads((tmp_path / f"cut-{name}" / "extracted.json").read_text()) for name in results}
    nll = {name: found["rows"][0]["nll"] for name, found in results.items()}
    assert [found["augmented"] for found in results.values()] == [False, True]
    assert nll["true"] != nll["false"]
    as_it_says = json.loads((tmp_path / "as-it-says" / "results.json").read_text())
    assert (as_it_says["augmented"], as_it_says["rows"][0]["nll"]) == (False, nll["false"])
    assert {name: facts["nll"] for name, facts in cut.items()} == pytest.approx(nll)


def test_a_plain_run_is_evaluated_at_its_one_size(
    runs: Path, capsys: pytest.CaptureFixture[str], wide: None, undrawn: None, tmp_path: Path
) -> None:
    run("evaluate", runs / "plain", "--fractions", "[0.5, 1.0]", "--out", tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    (row,) = results["rows"]
    assert (row["label"], row["shape"]) == ("100 %", None)
    net = vnd.load(runs / "plain" / "best")
    assert row["parameters"] == sum(p.numel() for p in net.parameters())
    check_printed(capsys.readouterr().out, [row])


def test_what_a_method_cannot_be_read_by_is_refused_at_once(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sweep, "answer", lambda *_: pytest.fail("it has begun"))
    line = fails(capsys, "evaluate", runs / "plain", "--inference", "[mc, mc_mask]", "--out", tmp_path / "e")
    assert "mc_mask needs a nested network" in line
    assert not (tmp_path / "e").exists()


def test_two_runs_have_a_folder_each_and_rows_in_one_table(
    runs: Path, tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    both = (runs / "nested", runs / "plain")
    run("evaluate", *both, "--fractions", "[0.5, 1.0]", "--samples", "0", "--out", tmp_path)
    capsys.readouterr()
    rows = []
    for name in ("nested", "plain"):
        results = json.loads((tmp_path / name / "results.json").read_text())
        assert results["series"]["run"] == name
        rows += [(name, row["label"], str(row["accuracy"])) for row in results["tidy"]]
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [(row["run"], row["label"], row["accuracy"]) for row in csv.DictReader(file)] == rows
    told = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["run"], row["label"], str(row["accuracy"])) for row in told] == rows
    other = shutil.copytree(runs / "plain", tmp_path / "other" / "nested")  # the same name in another folder
    before = (tmp_path / "nested" / "results.json").read_bytes()
    assert "two runs are called nested" in fails(capsys, "evaluate", both[0], other, "--out", tmp_path)
    assert (tmp_path / "nested" / "results.json").read_bytes() == before


def test_all_runs_are_looked_at_before_the_first_is_evaluated(
    runs: Path, tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--fractions", "[1.0]", "--samples", "0", "--out", tmp_path]
    assert "is not a run" in fails(capsys, "evaluate", runs / "nested", runs / "nowhere", *words)
    for key, words_of_refusal in (
        ("evaluate.bin", "unknown key 'evaluate.bin'; did you mean 'evaluate.bins'?"),
        ("evaluate.target", "unknown key 'evaluate.target'"),  # an auto-encoder's
        ("train.epochs", "of a recipe's keys it takes those of evaluate alone; got --train.epochs"),
    ):
        assert words_of_refusal in fails(capsys, "evaluate", runs / "nested", *words, f"--{key}", "1")
    assert not list(tmp_path.iterdir())


def test_a_table_of_large_networks_fits_eighty_columns() -> None:
    row = {
        "label": "≤ 20.9 M", "parameters": 20_946_282, "macs": 1_234_567_890, "bytes": 83_900_000,
        "latency_ms": 123.456, "accuracy": 0.93456, "nll": 12.3456, "ece": 0.12345, "auroc": 0.98765,
    }  # fmt: skip
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(sizes_table([row], "t", chosen="≤ 20.9 M"))
        told = console.export_text()
    assert "…" not in told
    for key, (heading, show) in COLUMNS.items():
        assert heading in told
        assert show(row[key]) in told
    assert "≤ 20.9 M ←" in told


# Extract


def network_of(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    return vnd.load(folder).eval(), json.loads((folder / "extracted.json").read_text())


def test_an_extracted_network_fits_its_budget_and_is_what_its_numbers_say(
    runs: Path, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    run("extract", runs / "nested", "--parameters", "1200")
    printed = capsys.readouterr().out
    folder = runs / "nested" / "extracted" / "parameters-1200"
    assert str(folder) in printed
    net, facts = network_of(folder)
    check_printed(printed, [facts])
    count = sum(p.numel() for p in net.parameters())
    assert 600 < count <= 1200
    cost = vnd.profile(net, example_input=torch.zeros(1, 1, 8, 8))
    assert {key: facts[key] for key in COST} == {key: getattr(cost, key) for key in COST}
    assert facts["parameters"] == count
    assert not any(isinstance(module, BayesConv2d) for module in net.modules())
    pixels, labels = blobs(64, 1)  # the test images, from outside of the library
    x = (torch.from_numpy(pixels).float()[:, None] / 255 - facts["mean"][0]) / facts["std"][0]
    with torch.no_grad():
        probs, truth = net(x).softmax(1), torch.from_numpy(labels)
    by_hand = {
        "accuracy": metrics.accuracy(probs, truth),
        "nll": metrics.negative_log_likelihood(probs, truth),
        "ece": metrics.expected_calibration_error(probs, truth),
        "brier": metrics.brier_score(probs, truth),
    }
    assert {key: facts[key] for key in SCORES} == pytest.approx({k: float(v) for k, v in by_hand.items()}, rel=1e-4)


def test_an_extracted_network_scores_as_the_sweep_said(runs: Path, tmp_path: Path, undrawn: None) -> None:
    run("evaluate", runs / "nested", "--parameters", "[1200]", "--out", tmp_path / "e")
    row = json.loads((tmp_path / "e" / "results.json").read_text())["rows"][0]
    run("extract", runs / "nested", "--parameters", "1200", "--keep", "posterior", "--out", tmp_path / "x")
    facts = json.loads((tmp_path / "x" / "extracted.json").read_text())
    assert {key: facts[key] for key in SCORES} == {key: row[key] for key in SCORES}
    assert facts["shape"] == row["shape"]


@pytest.mark.parametrize("words", [["--fraction", "0.5"], ["--level", "0.5"], ["--macs", "9000"], ["--bytes", "4000"]])
def test_every_budget_is_kept(words: list[str], runs: Path, tmp_path: Path) -> None:
    run("extract", runs / "nested", *words, "--out", tmp_path / "net")
    net, facts = network_of(tmp_path / "net")
    cost = vnd.profile(net, example_input=torch.zeros(1, 1, 8, 8))
    assert {key: facts[key] for key in COST} == {key: getattr(cost, key) for key in COST}
    name, value = words[0].removeprefix("--"), float(words[1])
    if name in COST:
        assert 0 < facts[name] <= value
    elif name == "fraction":
        assert facts["shape"] == dict.fromkeys(facts["shape"], 2)
        assert facts["kind"] == "uniform"


def test_the_posterior_is_kept_if_asked_for_and_counted(runs: Path, tmp_path: Path) -> None:
    run("extract", runs / "nested", "--fraction", "1.0", "--keep", "posterior", "--out", tmp_path / "net")
    net, facts = network_of(tmp_path / "net")
    assert any(isinstance(module, BayesConv2d) for module in net.modules())
    assert facts["keep"] == "posterior"
    assert facts["samples"] == 2
    assert facts["parameters"] == sum(p.numel() for p in net.parameters())
    x = torch.zeros(4, 1, 8, 8)
    assert (vnd.predict(net, x, samples=8).variance > 0).any()


def test_help_of_a_run_has_the_options_of_what_it_does(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("evaluate", runs / "nested", "--help")
    assert not stopped.value.code
    told = " ".join(capsys.readouterr().out.split())
    assert "Draws of the weights a prediction averages over; 0 for their means. (type: int, default: 2)" in told
    assert "--checkpoint" not in told.partition("keys of the run")[2]  # the command's own
    assert "num_generated" not in told.partition("keys of the run")[2]


REFUSED = [
    (["evaluate"], "the following arguments are required: run"),
    (["evaluate", "{nowhere}"], "is not a run: it holds no recipe.yaml"),
    (["evaluate", "{run}", "--fractions", "[2]"], "fractions must lie in (0, 1]; got [2.0]"),
    (["evaluate", "{run}", "--fractions", "0.5,x"], "fractions must be a list of numbers or none"),
    (["evaluate", "{run}", "--learned", "0"], "must name at least one size; got none"),
    (["evaluate", "{run}", "--samples", "-1"], "samples must be at least 0; got -1"),
    (["evaluate", "{run}", "--parameters", "[3]"], "parameters must be at least"),
    (["evaluate", "{run}", "--checkpoint", "worst"], "checkpoint must be one of 'best' or 'last' or none; got worst"),
    (["evaluate", "{run}", "--fractoins", "[1]"], "unknown key 'evaluate.fractoins'"),
    (["extract", "{nowhere}", "--fraction", "0.5"], "is not a run: it holds no recipe.yaml"),
    (["extract", "{run}"], "give exactly one of fraction, level, parameters, macs, bytes, latency_ms; got none"),
    (["extract", "{run}", "--fraction", "1", "--level", "1"], "give exactly one of"),
    (["extract", "{run}", "--parameters", "3"], "parameters must be at least"),
    (["extract", "{run}", "--parameters", "many"], "parameters must be a number or none; got many"),
    (["extract", "{run}", "--fraction", "0"], "fraction must lie in (0, 1]; got 0.0"),
    (["extract", "{plain}", "--fraction", "0.5"], "has one size, as plain was trained"),
    (["extract", "{plain}", "--fraction", "0.5", "--keep", "posterior"], "has one size, as plain was trained"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED, ids=lambda x: " ".join(x) if isinstance(x, list) else None)
def test_wrong_words_end_in_one_line(
    words: list[str], told: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"nowhere": runs / "nowhere", "run": runs / "nested", "plain": runs / "plain"}
    before = sorted(runs.rglob("*"))
    assert told in fails(capsys, *(word.format(**places) for word in words))
    assert sorted(runs.rglob("*")) == before


@pytest.fixture(scope="module")
def variational(runs: Path) -> Path:
    settings: dict[str, Any] = {"method": {"name": "ibnn", "num_groups": 4, "fraction": 0.5}}
    settings["optimizer"] = {"chain_lr": None}
    assert fit(recipe(runs / "blobs.npz", train={"epochs": 1}, **settings), runs / "variational", quiet=True)
    return runs / "variational"


@pytest.mark.parametrize("words", [[], ["--keep", "posterior"]], ids=["mean", "posterior"])
def test_a_run_of_one_width_has_none_to_choose_from(
    words: list[str], variational: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = fails(capsys, "extract", variational, "--fraction", "0.5", *words)
    assert "one size" in line
    assert "to_nested" not in line
    assert "no posterior" not in line


def test_a_run_without_its_network_says_how_to_go_on(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text((runs / "nested" / "recipe.yaml").read_text())
    line = fails(capsys, "evaluate", tmp_path)
    assert line == f"vnd: {tmp_path} has no best network yet; go on with vnd train --resume {tmp_path}"


def test_data_that_went_away_are_named(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "blobs.npz").rename(runs / "away.npz")
    try:
        assert "blobs.npz" in fails(capsys, "evaluate", runs / "nested", "--out", tmp_path)
    finally:
        (runs / "away.npz").rename(runs / "blobs.npz")
    assert not list(tmp_path.iterdir())
