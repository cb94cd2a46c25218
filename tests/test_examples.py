"""The examples: each runs, briefly, in a folder of its own, with networks that are not the library's."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDED = {"lightning_module": "lightning", "hf_trainer": "transformers"}  # which vnd does without


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*LeafSpec")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    if path.stem in NEEDED:
        pytest.importorskip(NEEDED[path.stem], reason=f"needs {NEEDED[path.stem]}", exc_type=ModuleNotFoundError)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(steps=2)
    assert capsys.readouterr().out.strip(), "an example shows what it found"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_brings_its_own_network(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert "vnd.models" not in text
