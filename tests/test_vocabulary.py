"""The vocabulary check finds a private word wherever it is a name, and leaves prose alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import vocabulary

FAULTS = {
    "a variable": "log_temper = 1",
    "an argument": "def f(owners): ...",
    "an attribute": "x.readings",
    "a class": "class Errand: ...",
    "a keyword": "f(warm_up=1)",
    "a part in camel case": "class DistilLoss: ...",
    "a key": "x = {'owners': 1}",
    "a column": "row['drawn'] + row['deviation']",
    "a value of Literal": "X = Literal['output', 'both_ends']",
    "a column that may lack": "row.get('owners')",
    "another letter case": "def f(session): ...",
    "a docstring": '"""Whether it is so."""',
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_private_name_is_found(fault: str, tmp_path: Path) -> None:
    (tmp_path / "nn").mkdir()
    (tmp_path / "nn" / "x.py").write_text(FAULTS[fault])
    assert [package for package, _ in vocabulary.hits(tmp_path)] == ["nn"]


def test_keys_of_recipes_and_modules_are_names_and_prose_is_none(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "set: {network.code: 32}\nnetwork: {code: 32}\nabout: which of every second\n"
    )
    (tmp_path / "words.py").write_text('"""The owners, which, every second."""\n\nwhichever = "which"  # deviation\n')
    assert [line.partition(": ")[2] for _, line in vocabulary.hits(tmp_path)] == [
        "set.network.code is latent_dim", "network.code is latent_dim", "the module is _text",
    ]  # fmt: skip


def test_names_of_tests_are_names(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("def test_owners(session, widen): ...")
    assert [line.partition(": ")[2] for line in vocabulary.beside(tmp_path)] == [
        "test_owners is groups", "session is TrainState",
    ]  # fmt: skip
