"""`vnd`, `vnd recipes` and `vnd train`: help, what a run leaves, and one line where the words are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from refusals import fails
from train.small import settings, write_blobs
from vnd.cli import COMMANDS, main
from vnd.cli import train as train_module
from vnd.train.config import names, parse
from vnd.train.recipe import Recipe

PLAIN = [name for name in COMMANDS if " " not in name]


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with suppress(SystemExit):
        main([*words, "--help"])
    return capsys.readouterr().out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recipe that trains in a second."""
    data = write_blobs(tmp_path / "blobs.npz")
    (tmp_path / "tiny.yaml").write_text(json.dumps(settings(data, train={"epochs": 1})))  # JSON is YAML
    return tmp_path / "tiny.yaml"


# Help


def test_the_overview_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    told = help_of(capsys).splitlines()
    for name in COMMANDS:
        assert sum(line.strip().startswith(f"{name}  ") for line in told) == 1, name
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2


def test_python_runs_the_package() -> None:
    ran = subprocess.run([sys.executable, "-m", "vnd", "--help"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "usage: vnd COMMAND" in ran.stdout
    assert not ran.stderr


@pytest.mark.parametrize("name", PLAIN)
def test_the_help_of_every_command_has_an_example_that_can_be_copied(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = help_of(capsys, name)
    examples = [line for line in told.splitlines() if line.strip().startswith(("Example:", "Examples:"))]
    assert examples
    assert "+ " not in told.partition("options:")[2]  # one way to write a list
    assert f"vnd {name}" in examples[0]
    assert "--out" in told


@pytest.mark.parametrize("words", [["train", "demo"], ["train", "paper/cifar10-vgg11-bn3"]])
def test_the_help_of_training_shows_every_key_and_its_value(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = " ".join(help_of(capsys, *words).split())
    recipe = parse(words[1])
    for key in (
        "--train.epochs",
        "--optimizer.lr",
        "--schedule.kl_weight.start",
        "--data.augment.pad",
        "--method.base",
    ):
        assert f"{key} " in told
    assert f"Passes over the training images. (type: int, default: {recipe.train.epochs})" in told
    assert f"Number of logits. (type: int, default: {recipe.network.config['num_classes']})" in told
    assert "vnd train --resume" in told


# Recipes


def test_recipes_have_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes", "--out", str(tmp_path / "x" / "recipes.json")])
    lines = capsys.readouterr().out.splitlines()
    for name in names():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert parse(name).about in line
    assert json.loads((tmp_path / "x" / "recipes.json").read_text()) == {
        name: parse(name).to_dict() for name in names()
    }


# Training


def test_a_recipe_is_trained_where_it_was_told_to_with_what_was_replaced(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    main(["train", str(file), "--out", str(out), "--train.epochs", "1", "--train.seed=3", "--method.base", "2"])
    told = capsys.readouterr().out
    assert f"vnd evaluate {out}" in told
    recipe = parse(out / "recipe.yaml")
    assert (recipe.train.seed, recipe.method.base) == (3, 2)  # type: ignore[attr-defined]
    assert (out / "last" / "network.json").exists()
    line = fails(capsys, "train", file, "--out", out)
    assert line.endswith(f"{out} holds a run already; go on with vnd train --resume {out}, or give another --out")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "lock"}
    main(["train", "--resume", str(out)])  # finished: nothing is left to do
    assert f"{out} is finished; evaluate it with: vnd evaluate {out}" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before


def trains(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, Path]]:
    """What would be trained, and where."""
    seen: list[tuple[Recipe, Path]] = []
    monkeypatch.setattr(train_module, "fit", lambda recipe, folder, **_: not seen.append((recipe, folder)))  # type: ignore[func-returns-value]
    return seen


@pytest.mark.parametrize(
    "words",
    [
        ["fashion/bn3", "--out", "x", "--train.epochs", "2"],
        ["--out", "x", "fashion/bn3", "--train.epochs", "2"],
        ["fashion/bn3", "--train.epochs=2", "--out=x"],
        ["--train.epochs", "2", "fashion/bn3", "--out=x"],
    ],
)
def test_the_order_of_the_words_does_not_matter(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = trains(monkeypatch)
    main(["train", *words])
    assert seen == [(parse("fashion/bn3", ["--train.epochs", "2"]), Path("x"))]


@pytest.mark.parametrize("words", ["0.5,1", "[0.5, 1.0]"])
def test_lists_are_written_with_commas_or_as_in_the_recipe(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = trains(monkeypatch)
    main(["train", "demo", "--out", "x", "--evaluate.sizes.fractions", words, f"--evaluate.sizes.levels={words}"])
    sizes = seen[0][0].evaluate.sizes
    assert sizes.fractions == sizes.levels == (0.5, 1.0)


def test_a_run_has_a_folder_by_its_recipe_and_seed(monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path) -> None:
    seen = trains(monkeypatch)
    monkeypatch.chdir(tmp_path)
    main(["train", "fashion/bn3", "--train.seed", "7"])
    main(["train", file.name])
    assert [folder for _, folder in seen] == [Path("runs/fashion-bn3-7"), Path("runs/tiny-0")]


def test_a_stop_is_no_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(train_module, "fit", lambda recipe, folder, **_: False)
    line = fails(capsys, "train", "demo", "--out", "x", code=130)
    assert line == "vnd: stopped: saved in x; go on with: vnd train --resume x"


def test_an_unknown_command_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown command 'trian', did you mean 'train'? Known: demo, recipes" in fails(capsys, "trian")
    assert "unknown command 'dance'." in fails(capsys, "dance")
    assert "recipes" in fails(capsys, "recipes", "--loud")


def test_what_the_network_refuses_ends_in_one_line_that_names_the_key(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = fails(capsys, "train", file, "--out", tmp_path / "run", "--network.width", "-1")
    assert line == "vnd: network.width must be a finite number greater than 0; got -1.0"
    assert not (tmp_path / "run" / "recipe.yaml").exists()
