"""The examples: each runs, briefly, in a folder of its own, with networks that are not the library's."""

import importlib.util
import runpy
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
LONGER = {"serve": 140}  # lines: a service
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


def service(sure_from=0.0, waiting=()):
    """The service of serve.py, its network made up: it takes 1, 4 and 16 seconds, and is sure from a width on."""
    module = runpy.run_path(str(EXAMPLES[0].with_name("serve.py")))
    made = object.__new__(module["Service"])
    made.seconds = {0.25: 1.0, 0.5: 4.0, 1.0: 16.0}
    made.widths, made.past = [*made.seconds], deque([(1.0, 1.0)])
    made.waiting = SimpleNamespace(queue=[(time.monotonic() + end, 0, None, None) for end in waiting])
    made.net = SimpleNamespace(classes=["Coat", "Bag"])
    asked = []

    def predict(image, width):
        asked.append(width)
        return SimpleNamespace(probs=np.array([[0.2, 0.8]]), width=width), made.seconds[width]

    made.predict = predict
    made.rules = {w: SimpleNamespace(accept=lambda answer: [answer.width >= sure_from]) for w in made.widths}
    return made, asked


@pytest.mark.parametrize(
    ("seconds", "sure_from", "waiting", "widths", "told"),
    [
        (100.0, 0.0, (), [1.0], "Bag"),  # there is time for the widest
        (30.0, 0.0, (), [0.5], "Bag"),  # not if an unsure one shall have time as well
        (30.0, 1.0, (), [0.5, 1.0], "Bag"),  # which it takes
        (7.0, 1.0, (), [0.25, 0.5], "not sure"),  # and is withheld where it stays so
        (100.0, 0.0, (100.0,) * 5, [0.5], "Bag"),  # others wait, with as much time
        (100.0, 0.0, (9.0,), [0.25], "Bag"),  # or with less
        (2.0, 0.0, (2.0,) * 9, [0.25], "Bag"),  # too many: this one at least
        (0.5, 0.0, (), [], "no time"),
    ],
)
def test_the_deadline_and_the_queue_choose_the_width_of_an_answer(seconds, sure_from, waiting, widths, told):
    made, asked = service(sure_from, waiting)
    found = made.answer(None, time.monotonic() + seconds)
    assert asked == widths
    assert (found["class"] or found["why"]) == told
    made.past.append((1.0, 1000.0))  # it takes longer than it did
    assert made.answer(None, time.monotonic() + seconds)["class"] is None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_brings_its_own_network(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGER.get(path.stem, 40)
    assert "vnd.models" not in text
