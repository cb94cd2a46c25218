"""Correlation of uncertainty between widths: by hand, and of networks that are left as they were."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vnd
from refusals import Refusals, refused, table
from vnd.nn.state import state_of

WIDTHS = (0.25, 0.5, 1.0)


class Named(nn.Module):
    """A network with BatchNorm that reads a dict and gives two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.norm(self.stem(pixels))).mean((2, 3))
        return {"scores": 4 * self.head(hidden), "hidden": hidden.sum(1)}


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return vnd.to_nested(Named(), {"pixels": torch.randn(2, 1, 6, 6)}, num_groups=8, log_alpha_init=-1.0)


def batches(count: int, scale: float) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(count)
    return [{"pixels": scale * torch.randn(20, 1, 6, 6, generator=generator)} for _ in range(count)]


def by_hand(net: nn.Module, data: list[dict[str, Tensor]], widths: tuple[float, ...] = WIDTHS) -> np.ndarray:
    def entropies(width: float) -> Tensor:
        found = [vnd.predict(net, x, width, 6, seed=index, output="scores") for index, x in enumerate(data)]
        return torch.cat([one.entropy for one in found if one.entropy is not None])

    return np.corrcoef(torch.stack([entropies(width) for width in widths]).double().numpy())


def test_it_is_numpy_s_of_the_predictive_entropies_and_leaves_the_network_alone(net: nn.Module) -> None:
    inside, outside = batches(4, 1.0), batches(3, 5.0)
    state, before = copy.deepcopy(net.state_dict()), dict(state_of(net).statistics)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # widths without statistics have them collected
        torch.manual_seed(1)
        found = vnd.uncertainty_correlation(net, iter(inside), WIDTHS, ood=lambda: outside, output="scores")
    assert net.training
    assert state_of(net).statistics == before
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    torch.manual_seed(1)
    vnd.recalibrate(net, inside, WIDTHS, samples=True)
    assert found.inside.numpy() == pytest.approx(by_hand(net, inside), abs=1e-5)
    assert found.outside is not None
    assert found.outside.numpy() == pytest.approx(by_hand(net, outside), abs=1e-5)
    assert found.labels == ("25 %", "50 %", "100 %")
    assert not np.allclose(found.inside.numpy(), by_hand(net, inside, (0.5, 0.5, 1.0)), atol=1e-3)  # planted
    again = vnd.uncertainty_correlation(net, inside, WIDTHS, output="scores")  # by its own statistics
    torch.testing.assert_close(again.inside, found.inside)
    assert again.outside is None
    shapes = vnd.uncertainty_correlation(net, inside, [vnd.shape(net, fraction=w) for w in WIDTHS], output="scores")
    assert torch.equal(shapes.inside, again.inside)
    assert again.smallest(-1.0) == 0


def test_its_picture_is_that_of_the_report(net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vnd.report import curves

    drawn: list[Any] = []
    draw = curves.heat_maps
    monkeypatch.setattr(curves, "heat_maps", lambda *given: (drawn.append(given), draw(*given))[1])
    found = vnd.uncertainty_correlation(net, batches(2, 1.0), WIDTHS, ood=batches(1, 5.0), output="scores")
    found.plot(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    labels, maps, _ = drawn[0]
    assert (tuple(labels), list(maps)) == (found.labels, ["in domain", "out of domain"])
    assert np.array_equal(maps["out of domain"], found.outside.numpy())


def plain() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    return vnd.to_nested(net, torch.randn(2, 2), num_groups=4)


DATA = [torch.randn(4, 2)]
CASES: Refusals = {
    "no nested network": (lambda: vnd.uncertainty_correlation(nn.Linear(2, 3), DATA), "Linear is not a nested network"),
    "one width": (lambda: vnd.uncertainty_correlation(plain(), DATA, 1.0), "widths must be two or more; got [1.0]"),
    "a tensor": (lambda: vnd.uncertainty_correlation(plain(), DATA[0]), "batches must be an iterable of batches"),
    "no batches": (lambda: vnd.uncertainty_correlation(plain(), []), "batches must hold at least one batch; got none"),
    "no entropy": (
        lambda: vnd.uncertainty_correlation(plain(), DATA, link="identity"),
        "uncertainty_correlation: link must be one that gives an entropy; got 'identity'",
    ),
    "widths that fall": (
        lambda: vnd.uncertainty_correlation(plain(), DATA, (1.0, 0.5)),
        "widths must rise, the last one being the full one; got [1.0, 0.5]",
    ),
    "one example": (
        lambda: vnd.uncertainty_correlation(plain(), [DATA[0][:1]]),
        "batches must hold two or more examples; got one",
    ),
    "draws in words": (
        lambda: vnd.uncertainty_correlation(plain(), DATA, samples="six"),  # type: ignore[arg-type]
        "uncertainty_correlation: samples must be a whole number of at least 0; got ",
    ),
    "words": (lambda: vnd.uncertainty_correlation(plain(), ["x"]), "uncertainty_correlation: batch 0: a batch must be"),
}


@table(CASES)
def test_what_cannot_be_meant_is_refused_in_a_line(call: Any, words: Any) -> None:
    refused(call, words)
