"""Work grows no faster than the network: calls of conversion, extraction, a step and a prediction as layers double."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import vnd

extraction = importlib.import_module("vnd.nn.extract")  # its function has its name
pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")


def network(depth: int) -> nn.Module:
    """A stream with a block of two layers for each step of depth."""
    layers = [nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 6)) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def calls(function: Callable[[], Any]) -> tuple[Counter[CodeType], Any]:
    """Calls of each piece of Python code, and the resumptions of generators, within a call; and what it gave."""
    found: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(before)
    return found, result


def check_growth() -> None:
    x = torch.randn(5, 6)
    counted: dict[str, list[Counter[CodeType]]] = {}
    for depth in (8, 16, 32):
        plain = network(depth)
        found, net = calls(lambda plain=plain: vnd.to_nested(plain, x, num_groups=2))
        counted.setdefault("conversion", []).append(found)
        step = calls(lambda net=net: (net(x).square().mean() + vnd.kl(net)).backward())[0]
        counted.setdefault("step", []).append(step)
        net.eval()
        for name, call in {
            "extraction": lambda net=net: vnd.extract(net, 0.5, warn=False),
            "prediction": lambda net=net: vnd.predict(net, x, 0.5),
            "shape": lambda net=net: vnd.shape(net, fraction=0.5),
        }.items():
            counted.setdefault(name, []).append(calls(call)[0])
    for name, (first, middle, last) in counted.items():
        for code, count in last.items():
            # what doubles with the layers adds twice as much the second time; what goes with their square, four times
            added, before = count - middle[code], middle[code] - first[code]
            assert count < 300 or added <= 3 * max(before, 32), (
                f"{name}: {code.co_qualname}, line {code.co_firstlineno}"
            )


def test_calls_grow_no_faster_than_the_layers() -> None:
    check_growth()


def test_work_for_each_layer_that_goes_through_all_layers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = extraction.clear_caches

    def slow(root: nn.Module) -> None:
        for _ in root.modules():
            assert any(True for _ in root.modules())
            sum(1 for _ in root.modules())
        right(root)

    monkeypatch.setattr(extraction, "clear_caches", slow)
    with pytest.raises(AssertionError, match=r"Module\.named_modules"):
        check_growth()
