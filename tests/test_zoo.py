"""Ten of the networks of `make zoo`, of transformers: what the page says of a row holds."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import zoo

# The fastest ones of their kinds: of text (tied, gated, with layers that are shared), images, sound, and pairs.
NAMES = (
    *("distilbert", "albert", "gpt2", "opt", "llama", "phi"),
    *("vit", "resnet", "audio-spectrogram-transformer", "clip"),
)


@pytest.mark.filterwarnings("ignore")  # of transformers, of BatchNorm without statistics
@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_transformers_is_converted_cut_saved_compiled_and_exported(name):
    found = zoo.row(name)
    torch.compiler.reset()
    assert zoo.faults(found) == []


RIGHT = {
    **{
        "name": "a",
        "kind": "transformer",
        "converts": True,
        "full32": 1e-7,
        "full64": 0.0,
        "sorted": 0.0,
        "exact": 0.0,
    },
    **{"left": 0.4, "left_residual": 0.1, "whole": {}, **dict.fromkeys(zoo.CHECKS, True)},
}
WRONG = {
    "converts": "ValueError: nothing can be nested",
    "full64": 1e-9,
    "exact": float("nan"),
    "left_residual": 0.2,
    "saved": "another function, by 1e-03",
    "exported": "RuntimeError: no",
}


@pytest.mark.parametrize("key", WRONG)
def test_a_row_that_is_wrong_says_so(key):
    assert zoo.faults(RIGHT) == []
    assert [said.partition(":")[0] for said in zoo.faults({**RIGHT, key: WRONG[key]})] == [key]


def test_a_failure_of_the_plain_network_is_none_of_ours():
    assert zoo.faults({**RIGHT, "exported": "plain, too: RuntimeError: no"}) == []


def test_the_page_is_made_of_the_rows():
    row = {
        **RIGHT,
        "parameters": 2_000_000,
        "units": 5,
        "source": "timm",
        "whole_residual": {"head": "reaches the output"},
    }
    page = zoo.page({"versions": {"torch": "2"}, "rows": [row]}, f"before\n{zoo.BEGIN}\nold\n{zoo.END}\nafter\n")
    assert "| a | 2.00 M | 5 | 0.400 | 0.100 | 1e-07 / 0 | 0 | ok |" in page
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
